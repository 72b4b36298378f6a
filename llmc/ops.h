/*
Every operation of GPT-2 once, in forward order: the table of contents of the maths.

Shapes      B sequences, T positions, N = B*T rows, C channels, NH heads of HS = C/NH channels, OC output channels,
            V vocabulary, Vp the vocabulary padded in memory. All arrays are dense and row-major.
Types       floatX is the type of storage, real the type of arithmetic (floatx.h). Statistics and losses are real.
            A parameter gradient is real or bf16. Its sum, with the old value under GRAD_ADD, is computed in real and
            rounded once, to nearest even.
Semantics   Outputs are written with = unless the comment says +=. (+)= is = under GRAD_SET and += under GRAD_ADD.
            An output may not overlap an input unless the comment says "in place".
Operation <op> has three implementations: the reference's in llmc/<op>.h, after the formula; the fast CPU code in
llmc/<op>_cpu.h; the kernels in llmc/<op>.cuh. cpu_ops.h and cuda_ops.cuh collect them. Operations cannot fail: the
trainer checks shapes before the first step.
OPS is the only list of them. The tables of functions are generated from it, and the hooks of op_call.h, through which
--profile, --nan-check and `make predict` see every call.
*/
#pragma once
#include "llmc/common/floatx.h"    // IWYU pragma: export
#include "llmc/optimizer_state.h"  // IWYU pragma: export
#include <stdbool.h>
#include <stddef.h>

// the device, the stream and the scratch of an operation (common/device.h)
typedef struct Exec Exec;

// The first micro-step of an accumulation sets a gradient, later ones add to it. No memset is needed.
typedef enum { GRAD_SET, GRAD_ADD } GradMode;

// A parameter gradient, in real or bf16 as -gd decides (gradients_of in run/fit.h). at is NULL if it is not wanted.
typedef struct {
    void *at;     // first: arena_bind sets the pointer that a struct of GPT2Tensors begins with
    DType dtype;  // DT_REAL or DT_BF16
} Gradient;

static const Gradient no_gradient = {NULL, DT_REAL};

// View that starts at element `offset`.
static inline Gradient gradient_at(Gradient g, size_t offset) {
    Gradient further = {g.at ? (char *)g.at + offset * dtype_size(g.dtype) : NULL, g.dtype};
    return further;
}

// activation.h has the formulas
typedef enum { NO_ACTIVATION, GELU } ActivationFunction;

// An activation between two matmuls: in the epilogue of the first one's forward and of the second one's backward.
typedef struct {
    ActivationFunction function;
    floatX *pre;     // its input, as many elements as its output: written in the forward, read in the backward
    Gradient dbias;  // the gradient of the first matmul's bias, computed in the second one's backward
} Activation;

static const Activation no_activation = {NO_ACTIVATION, NULL, {NULL, DT_REAL}};

// The maximum of a row without logits. It is below every logit, and finite, since inf - inf is NaN.
#define CLASSIFIER_LEAST ((real)-1e30)

// A range of one tensor to update: elements [offset, offset + count) of the flat buffers, which are elements
// [tensor_offset, tensor_offset + count) of this rank's tensor. Both offsets are multiples of MOMENT_BLOCK.
// A slice is a strided view of the whole tensor: rows of view_cols elements. In the whole tensor the first row begins
// at element view_offset, and rows are view_stride elements apart.
typedef struct {
    size_t offset, count, tensor_offset;
    bool decay;
    int tensor;  // number below 2^20: keys stochastic rounding, with the element's index in the whole tensor
    uint32_t view_offset, view_cols, view_stride;  // view_cols is 0 if the slice is the whole tensor
} UpdateRange;

// the numbers of one step of AdamW and Muon; step counts from 1
typedef struct {
    real learning_rate, beta1, beta2, epsilon, weight_decay;
    real clip;  // largest global norm of the gradients, which are scaled down to it; 0 disables clipping
    int step;
    uint64_t seed;  // of stochastic rounding
    real momentum;  // of Muon
} StepHyper;

// ---- the list: OP(name, (parameters), (arguments), FLOPs, operands of a call)
// FLOPs: of matmuls, two a multiply-add. Operands: the arrays of a call as matrices (name, rows, cols), for op_call.h.
//   IN OUT INOUT              read; written; both. An array that is NULL is no operand
//   SUM                       (+)=: written under GRAD_SET, read and written under GRAD_ADD
//   GRAD GRAD_IN              SUM and IN of a Gradient
//   ROWS OUT_ROWS GRAD_ROWS   IN, OUT and INOUT of some rows of a larger matrix
//   IDS                       int32
//   OF_STATE                  INOUT of n elements of an array of an OptimizerState
// So OUT(out, B * T, C) says that the call writes `out`, B*T rows of C elements.

// clang-format off
#define OPS(OP)                                                                                                        \
/* ---- forward */                                                                                                     \
                                                                                                                       \
/* out (N,C) = wte (Vp,C)[tokens] + wpe (maxT,C)[t];  tokens (B,T) int32 */                                            \
OP(embedding_forward,                                                                                                  \
   (floatX *out, const int *tokens, const floatX *wte, const floatX *wpe, int B, int T, int C, Exec *ex),              \
   (out, tokens, wte, wpe, B, T, C, ex),                                                                               \
   0, OUT(out, B * T, C), IDS(tokens, B * T), ROWS(wte, B * T, C), IN(wpe, T, C))                                      \
                                                                                                                       \
/* The same in two steps, for ranks that hold a slice of wte or of the rows.                                           \
   out (N,C) = wte (rows,C)[tokens - first], or 0 if tokens - first is outside [0, rows);  tokens (N) int32 */         \
OP(token_embedding_forward,                                                                                            \
   (floatX *out, const int *tokens, const floatX *wte, int first, int rows, int N, int C, Exec *ex),                   \
   (out, tokens, wte, first, rows, N, C, ex),                                                                          \
   0, OUT(out, N, C), IDS(tokens, N), ROWS(wte, N, C))                                                                 \
                                                                                                                       \
/* out (N,C) += wpe (maxT,C)[(first + n) % T];  out is rows [first, first + N) of (B,T) */                             \
OP(position_embedding_forward,                                                                                         \
   (floatX *out, const floatX *wpe, int first, int N, int T, int C, Exec *ex),                                         \
   (out, wpe, first, N, T, C, ex),                                                                                     \
   0, INOUT(out, N, C), IN(wpe, T, C))                                                                                 \
                                                                                                                       \
/* out (N,C) = (in - mean) * rstd * weight + bias;  also writes mean, rstd (N) */                                      \
OP(layernorm_forward,                                                                                                  \
   (floatX *out, real *mean, real *rstd, const floatX *in, const floatX *weight, const floatX *bias, int N, int C,     \
    Exec *ex),                                                                                                         \
   (out, mean, rstd, in, weight, bias, N, C, ex),                                                                      \
   0, OUT(mean, N, 1), OUT(rstd, N, 1), OUT(out, N, C), IN(in, N, C), IN(weight, C, 1), IN(bias, C, 1))                \
                                                                                                                       \
/* layernorm_forward's out, bit for bit, from saved mean and rstd: no reductions. For recomputation */                 \
OP(layernorm_from_statistics,                                                                                          \
   (floatX *out, const floatX *in, const real *mean, const real *rstd, const floatX *weight, const floatX *bias,       \
    int N, int C, Exec *ex),                                                                                           \
   (out, in, mean, rstd, weight, bias, N, C, ex),                                                                      \
   0, OUT(out, N, C), IN(in, N, C), IN(mean, N, 1), IN(rstd, N, 1), IN(weight, C, 1), IN(bias, C, 1))                  \
                                                                                                                       \
/* out (N,OC) = in (N,C) weight (OC,C)^T + bias (OC) + residual (N,OC);  bias and residual may be NULL.                \
   With an activation, pre (N,OC) is this sum, out = function(pre), and residual is NULL */                            \
OP(matmul_forward,                                                                                                     \
   (floatX *out, const floatX *in, const floatX *weight, const floatX *bias, const floatX *residual,                   \
    Activation activation, int N, int C, int OC, Exec *ex),                                                            \
   (out, in, weight, bias, residual, activation, N, C, OC, ex),                                                        \
   2.0 * N * C * OC, OUT(activation.pre, N, OC), OUT(out, N, OC), IN(in, N, C), IN(weight, OC, C), IN(bias, OC, 1),    \
   IN(residual, N, OC))                                                                                                \
                                                                                                                       \
/* out (N,C) = in (N,C) + bias (C) + residual (N,C);  in place: out may be in or residual;  bias may be NULL.          \
   For a row-parallel linear, whose reduce-scatter comes before bias and residual */                                   \
OP(residual_forward,                                                                                                   \
   (floatX *out, const floatX *in, const floatX *bias, const floatX *residual, int N, int C, Exec *ex),                \
   (out, in, bias, residual, N, C, ex),                                                                                \
   0, OUT(out, N, C), IN(in, N, C), IN(bias, C, 1), IN(residual, N, C))                                                \
                                                                                                                       \
/* out (n) = function(in (n)) */                                                                                       \
OP(activation_forward,                                                                                                 \
   (floatX *out, const floatX *in, ActivationFunction function, size_t n, Exec *ex),                                   \
   (out, in, function, n, ex),                                                                                         \
   0, OUT(out, n, 1), IN(in, n, 1))                                                                                    \
                                                                                                                       \
/* out (N,C) = causal attention of qkv (B,T,3,NH,HS);  lse (B,NH,T) is the log-sum-exp of each row's scaled scores */  \
OP(attention_forward,                                                                                                  \
   (floatX *out, real *lse, const floatX *qkv, int B, int T, int NH, int HS, Exec *ex),                                \
   (out, lse, qkv, B, T, NH, HS, ex),                                                                                  \
   2.0 * B * NH * HS * T * (T + 1.0), OUT(out, B * T, NH * HS), OUT(lse, B * NH, T), IN(qkv, B * T, 3 * NH * HS))      \
                                                                                                                       \
/* out (n,C) = attention of positions [pos, pos + n) of one sequence, qkv (n,3,NH,HS), over the KV cache: keys and     \
   values (maxT,C). The new keys and values are appended to the cache first */                                         \
OP(attention_decode,                                                                                                   \
   (floatX *out, floatX *keys, floatX *values, const floatX *qkv, int pos, int n, int NH, int HS, Exec *ex),           \
   (out, keys, values, qkv, pos, n, NH, HS, ex),                                                                       \
   2.0 * NH * HS * n * (2.0 * pos + n + 1), OUT(out, n, NH * HS), IN(qkv, n, 3 * NH * HS),                             \
   OUT_ROWS(keys, pos + n, NH * HS), OUT_ROWS(values, pos + n, NH * HS))                                               \
                                                                                                                       \
/* losses (N) = -log softmax(logits (N,Vp)[:V])[target];  in place: logits become their gradient times dloss, and      \
   columns [V, Vp) become 0. With dloss = 0 logits are not written. A row whose target is -1 has no loss: its loss     \
   and its gradient are 0, here and below */                                                                           \
OP(classifier,                                                                                                         \
   (real *losses, floatX *logits, const int *targets, real dloss, int N, int V, int Vp, Exec *ex),                     \
   (losses, logits, targets, dloss, N, V, Vp, ex),                                                                     \
   0, OUT(losses, N, 1), IN(logits, N, Vp), OUT(logits, dloss != 0 ? N : 0, Vp), IDS(targets, N))                      \
                                                                                                                       \
/* The classifier in two steps, for a rank that holds columns [first, first + Vl) of the logits, as (N,Vl).            \
   statistics (N,3) = maximum, sum of exp(logit - maximum), and target's logit, over the row's columns below V.        \
   Without such columns the first two are CLASSIFIER_LEAST and 0; the third is 0 if another rank has the target */     \
OP(classifier_statistics,                                                                                              \
   (real *statistics, const floatX *logits, const int *targets, int first, int N, int V, int Vl, Exec *ex),            \
   (statistics, logits, targets, first, N, V, Vl, ex),                                                                 \
   0, OUT(statistics, N, 3), IN(logits, N, Vl), IDS(targets, N))                                                       \
                                                                                                                       \
/* losses and logits as the classifier's, from the statistics of all ranks, (ranks,N,3), combined in rank order */     \
OP(classifier_from_statistics,                                                                                         \
   (real *losses, floatX *logits, const real *statistics, const int *targets, real dloss, int ranks, int first, int N, \
    int V, int Vl, Exec *ex),                                                                                          \
   (losses, logits, statistics, targets, dloss, ranks, first, N, V, Vl, ex),                                           \
   0, OUT(losses, N, 1), IN(logits, N, Vl), OUT(logits, dloss != 0 ? N : 0, Vl), IN(statistics, ranks * N, 3),         \
   IDS(targets, N))                                                                                                    \
                                                                                                                       \
/* *total += scale * sum of losses (N) */                                                                              \
OP(loss_sum,                                                                                                           \
   (real *total, const real *losses, real scale, int N, Exec *ex),                                                     \
   (total, losses, scale, N, ex),                                                                                      \
   0, INOUT(total, 1, 1), IN(losses, N, 1))                                                                            \
                                                                                                                       \
/* ---- backward, in the order it runs */                                                                              \
                                                                                                                       \
/* dinp (N,C) = dout (N,OC) weight (OC,C);  dweight (OC,C) (+)= dout^T in (N,C);  dbias (OC) (+)= column sums of dout  \
   With an activation, whose output is `in`: dinp, times the slope at pre (N,C), is the gradient of pre, and           \
   activation.dbias (C) (+)= column sums of dinp. All outputs may be NULL.                                             \
   In place: dinp may be in, since dweight is computed first */                                                        \
OP(matmul_backward,                                                                                                    \
   (floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout, const floatX *in, const floatX *weight,        \
    Activation activation, GradMode mode, int N, int C, int OC, Exec *ex),                                             \
   (dinp, dweight, dbias, dout, in, weight, activation, mode, N, C, OC, ex),                                           \
   2.0 * N * C * OC * ((dinp != NULL) + (dweight.at != NULL)), OUT(dinp, N, C), GRAD(dweight, OC, C),                  \
   GRAD(dbias, OC, 1), GRAD(activation.dbias, C, 1), IN(dout, N, OC), IN(in, dweight.at ? N : 0, C),                   \
   IN(weight, dinp ? OC : 0, C), IN(activation.pre, N, C))                                                             \
                                                                                                                       \
/* dinp (N,C) += gradient through the layernorm of dout (N,C);  dweight, dbias (C) (+)= */                             \
OP(layernorm_backward,                                                                                                 \
   (floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout, const floatX *in, const floatX *weight,        \
    const real *mean, const real *rstd, GradMode mode, int N, int C, Exec *ex),                                        \
   (dinp, dweight, dbias, dout, in, weight, mean, rstd, mode, N, C, ex),                                               \
   0, INOUT(dinp, N, C), GRAD(dweight, C, 1), GRAD(dbias, C, 1), IN(dout, N, C), IN(in, N, C), IN(weight, C, 1),       \
   IN(mean, N, 1), IN(rstd, N, 1))                                                                                     \
                                                                                                                       \
/* dqkv (B,T,3,NH,HS) from dout (N,C), the forward's out and lse;  recomputes the probabilities from qkv and lse */    \
OP(attention_backward,                                                                                                 \
   (floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out, const real *lse, int B, int T, int NH,     \
    int HS, Exec *ex),                                                                                                 \
   (dqkv, dout, qkv, out, lse, B, T, NH, HS, ex),                                                                      \
   5.0 * B * NH * HS * T * (T + 1.0), OUT(dqkv, B * T, 3 * NH * HS), IN(dout, B * T, NH * HS),                         \
   IN(qkv, B * T, 3 * NH * HS), IN(out, B * T, NH * HS), IN(lse, B * NH, T))                                           \
                                                                                                                       \
/* dwte (Vp,C)[tokens] += dout (N,C);  dwpe (maxT,C) (+)= sums over sequences, rows [T, maxT) = 0 under GRAD_SET */    \
OP(embedding_backward,                                                                                                 \
   (Gradient dwte, Gradient dwpe, const floatX *dout, const int *tokens, GradMode mode, int B, int T, int maxT, int C, \
    Exec *ex),                                                                                                         \
   (dwte, dwpe, dout, tokens, mode, B, T, maxT, C, ex),                                                                \
   0, GRAD_ROWS(dwte, B * T, C), GRAD(dwpe, maxT, C), IN(dout, B * T, C), IDS(tokens, B * T))                          \
                                                                                                                       \
/* The same in two steps. dwte (rows,C)[tokens - first] += dout (N,C), if tokens - first is in [0, rows) */            \
OP(token_embedding_backward,                                                                                           \
   (Gradient dwte, const floatX *dout, const int *tokens, int first, int rows, int N, int C, Exec *ex),                \
   (dwte, dout, tokens, first, rows, N, C, ex),                                                                        \
   0, GRAD_ROWS(dwte, N, C), IN(dout, N, C), IDS(tokens, N))                                                           \
                                                                                                                       \
/* dwpe (maxT,C)[(first + n) % T] (+)= dout (N,C), which is rows [first, first + N) of (B,T);  positions without       \
   rows are set to 0 under GRAD_SET */                                                                                 \
OP(position_embedding_backward,                                                                                        \
   (Gradient dwpe, const floatX *dout, GradMode mode, int first, int N, int T, int maxT, int C, Exec *ex),             \
   (dwpe, dout, mode, first, N, T, maxT, C, ex),                                                                       \
   0, GRAD(dwpe, maxT, C), IN(dout, N, C))                                                                             \
                                                                                                                       \
/* ---- update */                                                                                                      \
                                                                                                                       \
/* sum (n) (+)= x (n): adds a micro-batch's reduced gradients to a real shard */                                       \
OP(gradient_accumulate,                                                                                                \
   (real *sum, Gradient x, GradMode mode, size_t n, Exec *ex),                                                         \
   (sum, x, mode, n, ex),                                                                                              \
   0, SUM(sum, n, 1), GRAD_IN(x, n, 1))                                                                                \
                                                                                                                       \
/* *norm_squared (+)= sum of squares of x (n) */                                                                       \
OP(global_norm_squared,                                                                                                \
   (real *norm_squared, Gradient x, GradMode mode, size_t n, Exec *ex),                                                \
   (norm_squared, x, mode, n, ex),                                                                                     \
   0, SUM(norm_squared, 1, 1), GRAD_IN(x, n, 1))                                                                       \
                                                                                                                       \
/* One AdamW step on params, their remainders, and the moments. grads are scaled by                                    \
   min(1, clip / sqrt(*norm_squared)). If that norm is not finite, nothing changes. Moments of bf16 or 8 bits are      \
   rounded stochastically, and so are bf16 params without remainders.                                                  \
   ranges, on the device and sorted by offset, name the elements to update; n counts the padding between them too */   \
OP(adamw_update,                                                                                                       \
   (const OptimizerState *state, Gradient grads, const real *norm_squared, const UpdateRange *ranges, int num_ranges,  \
    size_t n, const StepHyper *hyper, Exec *ex),                                                                       \
   (state, grads, norm_squared, ranges, num_ranges, n, hyper, ex),                                                     \
   0, OF_STATE(PARAMS, n), OF_STATE(REMAINDER, n), OF_STATE(M, n), OF_STATE(V, n), OF_STATE(M_SCALES, n),              \
   OF_STATE(V_SCALES, n), GRAD_IN(grads, n, 1), IN(norm_squared, 1, 1))                                                \
                                                                                                                       \
/* Muon's momentum, on one range of a matrix: m = momentum m + g;  update (n) = g + momentum m. g are the gradients,   \
   scaled as AdamW's; m is rounded as AdamW's. range, on the device, has the n elements */                             \
OP(muon_momentum,                                                                                                      \
   (floatX *update, const OptimizerState *state, Gradient grads, const real *norm_squared, const UpdateRange *range,   \
    size_t n, const StepHyper *hyper, Exec *ex),                                                                       \
   (update, state, grads, norm_squared, range, n, hyper, ex),                                                          \
   0, OUT(update, n, 1), OF_STATE(M, n), OF_STATE(M_SCALES, n), GRAD_IN(grads, n, 1), IN(norm_squared, 1, 1))          \
                                                                                                                       \
/* out (n) = in / (sqrt(*norm_squared) + 1e-7): a matrix whose singular values are at most 1 */                        \
OP(muon_normalise,                                                                                                     \
   (floatX *out, const floatX *in, const real *norm_squared, size_t n, Exec *ex),                                      \
   (out, in, norm_squared, n, ex),                                                                                     \
   0, OUT(out, n, 1), IN(in, n, 1), IN(norm_squared, 1, 1))                                                            \
                                                                                                                       \
/* b (m,m), which holds A^2, = 3.4445 I - 4.7750 A + 2.0315 A^2 */                                                     \
OP(muon_polynomial,                                                                                                    \
   (floatX *b, const floatX *a, int m, Exec *ex),                                                                      \
   (b, a, m, ex),                                                                                                      \
   0, INOUT(b, m, m), IN(a, m, m))                                                                                     \
                                                                                                                       \
/* Muon's weights, on one range: params and their remainders, which are rounded as AdamW's,                            \
   w = w (1 - lr decay) - lr scale update (n).  If the gradients' norm is not finite, nothing changes */               \
OP(muon_weights,                                                                                                       \
   (const OptimizerState *state, const floatX *update, const real *norm_squared, const UpdateRange *range, size_t n,   \
    real scale, const StepHyper *hyper, Exec *ex),                                                                     \
   (state, update, norm_squared, range, n, scale, hyper, ex),                                                          \
   0, OF_STATE(PARAMS, n), OF_STATE(REMAINDER, n), IN(update, n, 1), IN(norm_squared, 1, 1))
// clang-format on

// every operation of one backend
#define OPS_MEMBER(op, parameters, ...) void(*op) parameters;
typedef struct {
    OPS(OPS_MEMBER)
} Ops;
