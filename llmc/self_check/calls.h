/*
Describes a call of an operation as a Problem of cases.h, to count its bytes and FLOPs. Nothing is allocated;
problem_bytes(&p) and p.flops are the result.
defines: embedding_shape_of, position_rows_shape, gradient_variant, call_of, call_rows, call_matmul_forward,
         call_matmul_gelu_forward, call_matmul_backward, call_residual_forward, call_attention, call_classifier,
         call_rank_classifier, call_flat, call_adamw_update
*/
#pragma once
#include "llmc/parallel/slices.h"
#include "llmc/self_check/cases.h"

static inline OpShape rows_shape(int N, int C) {
    OpShape s;
    memset(&s, 0, sizeof s);
    s.B = 1;
    s.T = N;
    s.C = C;
    return s;
}

// of all embedding operations of a micro-batch (B,T)
static inline OpShape embedding_shape_of(const GPT2Config *c, const LocalShape *local, int B, int T) {
    OpShape s = rows_shape(T, c->channels);
    s.B = B;
    s.maxT = c->max_seq_len;
    s.V = c->vocab_size;
    s.Vp = local->vocab;
    s.ranks = local->tp_size > 1 ? local->tp_size : 0;
    s.rank = local->tp_rank;
    return s;
}

// The shape of a position embedding's call on N rows: `all`, this rank's rows of B sequences of T positions, or for at
// most T rows one sequence of N.
static inline OpShape position_rows_shape(OpShape all, int N, int T) {
    if (N > T) { return all; }
    all.B = 1;
    all.T = N;
    all.ranks = 1;
    all.rank = 0;
    return all;
}

// GRAD_SET or GRAD_ADD, of gradients in real or bf16
static inline int gradient_variant(Gradient g, GradMode mode) {
    return (g.dtype == DT_REAL ? 0 : (int)GRADIENT_BF16) + (mode == GRAD_ADD);
}

static inline Problem call_of(const char *op, OpShape shape, int variant) {
    return problem_describe(op_case(op), &shape, variant);
}

// layernorms, gelu_forward and loss_sum: rows (N,C)
static inline Problem call_rows(const char *op, int N, int C, int variant) {
    return call_of(op, rows_shape(N, C), variant);
}

static inline OpShape matmul_shape(int N, int C, int OC) {
    OpShape s = rows_shape(N, C);
    s.OC = OC;
    return s;
}

static inline Problem call_matmul_forward(const floatX *bias, const floatX *residual, int N, int C, int OC) {
    int variant = (bias ? (int)MATMUL_WITH_BIAS : 0) + (residual ? (int)MATMUL_WITH_RESIDUAL : 0);
    return call_of("matmul_forward", matmul_shape(N, C, OC), variant);
}

static inline Problem call_matmul_gelu_forward(int N, int C, int OC) {
    return call_of("matmul_gelu_forward", matmul_shape(N, C, OC), 0);
}

// cases.h has some combinations of outputs as variants; here each combination is described
static inline Problem call_matmul_backward(const floatX *dinp, Gradient dweight, Gradient dbias, const floatX *in,
                                           const floatX *gelu_pre, GradMode mode, int N, int C, int OC) {
    DType type = dweight.at ? dweight.dtype : dbias.dtype;
    MatmulBackwardVariant v = {
        mode,           gelu_pre != NULL, dinp != NULL, dweight.at != NULL, dbias.at != NULL, dinp && dinp == in,
        type == DT_BF16};
    Problem p;
    memset(&p, 0, sizeof p);
    p.op = op_case("matmul_backward");
    p.shape = matmul_shape(N, C, OC);
    p.variant = (int)mode + 2 * v.gelu + 4 * v.dinp + 8 * v.dweight + 16 * v.dbias + 32 * v.in_place + 64 * v.rounded;
    add_matmul_backward(&p, &v);
    return p;
}

static inline Problem call_residual_forward(const floatX *out, const floatX *in, const floatX *bias,
                                            const floatX *residual, int N, int C) {
    int over = out == in ? (int)RESIDUAL_OVER_IN : out == residual ? (int)RESIDUAL_OVER_RESIDUAL : 0;
    return call_rows("residual_forward", N, C, over + (bias ? 0 : (int)RESIDUAL_WITHOUT_BIAS));
}

// attention_forward and attention_backward
static inline Problem call_attention(const char *op, int B, int T, int NH, int HS) {
    OpShape s = rows_shape(T, 0);
    s.B = B;
    s.NH = NH;
    s.HS = HS;
    return call_of(op, s, 0);
}

static inline Problem call_classifier(real dloss, int N, int V, int Vp) {
    OpShape s = rows_shape(N, 0);
    s.V = V;
    s.Vp = Vp;
    return call_of("classifier", s, dloss != 0 ? CLASSIFIER_GRADIENT : CLASSIFIER_LOSS);
}

// classifier_statistics and classifier_from_statistics of the rank whose first id is `first`
static inline Problem call_rank_classifier(const char *op, int variant, int ranks, int first, int N, int V, int Vl) {
    OpShape s = rows_shape(N, 0);
    s.V = V;
    s.Vp = Vl;
    s.ranks = ranks;
    s.rank = first / Vl;
    return call_of(op, s, variant);
}

// gradient_accumulate and global_norm_squared: n elements
static inline Problem call_flat(const char *op, Gradient x, GradMode mode, size_t n) {
    OpShape s = rows_shape(0, 0);
    s.n = n;
    return call_of(op, s, gradient_variant(x, mode));
}

static inline int moment_kind(DType type) {
    return type == DT_REAL ? (int)ADAMW_REAL : type == DT_BF16 ? (int)ADAMW_BF16 : (int)ADAMW_BYTES;
}

// n: the elements that are updated
static inline Problem call_adamw_update(const OptimizerState *state, Gradient grads, size_t n) {
    int weights = state->master ? (int)ADAMW_MASTER : state->remainder ? (int)ADAMW_SPLIT : (int)ADAMW_ALONE;
    Problem p;
    memset(&p, 0, sizeof p);
    p.op = op_case("adamw_update");
    p.shape.n = n;
    p.variant = ADAMW_VARIANT(weights, moment_kind(state->moments), moment_kind(grads.dtype));
    add_adamw(&p, n);
    return p;
}
