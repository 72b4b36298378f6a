/*
--nan-check: finds the operation that made the first number that is not finite. A step whose loss or gradient norm is
not finite changes nothing. The trainer therefore runs the step again from the same weights and data, through a table of
operations that checks the inputs and outputs of each call. Every rank makes all calls of the step, so collectives
match. The first element that is not finite, and the cause:
  in a weight                        was not finite before the step
  in an output of an operation       the operation: all its inputs were finite
  in an input of an operation        a collective, a copy or faulty hardware, since no operation wrote the element
  none; loss or norm is not finite   a sum over the ranks
  none; loss and norm are finite     faulty hardware or a race: the same step had another result
defines: NanCheck, nan_check_open, nan_check_params, nan_check_result
*/
#pragma once
#include "llmc/parallel/zero.h"
#include <limits.h>

enum { NAN_CHUNK = 1 << 18, NAN_TEXT = 400 };  // elements downloaded at once; bytes of a finding

typedef struct NanCheck {
    const Ops *ops;  // the wrapped table
    const Device *device;
    const Zero *zero;
    Ops checking_ops;
    unsigned char *chunk;  // (NAN_CHUNK) elements
    long long calls;       // of operations in the step
    // the first finding
    bool found, read;  // read: in an input that no operation wrote
    char text[NAN_TEXT];
    long long at;  // calls before it
} NanCheck;

enum { NAN_READ = 1, NAN_WRITTEN = 2 };

// an argument of an operation: n elements; at may be NULL
typedef struct {
    const char *name;
    const void *at;
    size_t n;
    int use;  // NAN_READ, NAN_WRITTEN or both
    DType dtype;
} NanArray;

static inline NanArray nan_array(const char *name, int use, const void *at, size_t n, DType dtype) {
    NanArray a = {name, at, n, use, dtype};
    return a;
}
static inline NanArray x_in(const char *name, const floatX *at, size_t n) {
    return nan_array(name, NAN_READ, at, n, DT_FLOATX);
}
static inline NanArray x_out(const char *name, const floatX *at, size_t n) {
    return nan_array(name, NAN_WRITTEN, at, n, DT_FLOATX);
}
static inline NanArray x_inout(const char *name, const floatX *at, size_t n) {
    return nan_array(name, NAN_READ | NAN_WRITTEN, at, n, DT_FLOATX);
}
static inline NanArray real_in(const char *name, const real *at, size_t n) {
    return nan_array(name, NAN_READ, at, n, DT_REAL);
}
static inline NanArray real_out(const char *name, const real *at, size_t n) {
    return nan_array(name, NAN_WRITTEN, at, n, DT_REAL);
}
static inline NanArray grad_out(const char *name, Gradient g, GradMode mode, size_t n) {
    return nan_array(name, mode == GRAD_ADD ? NAN_READ | NAN_WRITTEN : (int)NAN_WRITTEN, g.at, n, g.dtype);
}

// ---- looking

static inline double nan_value(const void *values, size_t i, DType dtype) {
    if (dtype == DT_BF16) { return (double)bf16_to_float(((const bf16 *)values)[i]); }
    return dtype == DT_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

// Index of the first of n elements that is not finite, and *value; n if all are finite. Waits for all enqueued work.
static inline size_t nan_find(NanCheck *c, const void *at, size_t n, DType dtype, double *value) {
    size_t size = dtype_size(dtype);
    for (size_t begin = 0; begin < n; begin += NAN_CHUNK) {
        size_t count = n - begin < NAN_CHUNK ? n - begin : (size_t)NAN_CHUNK;
        c->device->download(c->chunk, (const char *)at + begin * size, count * size);
        for (size_t i = 0; i < count; i++) {
            *value = nan_value(c->chunk, i, dtype);
            if (!isfinite(*value)) { return begin + i; }
        }
    }
    return n;
}

// "NaN", "inf" or "-inf"
static inline const char *nan_name(double value) { return isnan(value) ? "NaN" : value > 0 ? "inf" : "-inf"; }

// text = " (h.1.mlp.c_fc.weight)", the weight that an operation reads, or "": there is none, or it is in a buffer of a
// bucket. A block has four matmuls, and two layernorms.
static inline void nan_weight(char *text, size_t size, const NanCheck *c, const NanArray *arrays, int count) {
    const ParamLayout *layout = &c->zero->layout;
    char name[NAME_LENGTH];
    *text = 0;
    for (int i = 0; i < count && c->zero->params; i++) {
        if (strcmp(arrays[i].name, "weight") != 0 || buffers_params(&layout->sharding)) { continue; }
        size_t offset = (size_t)((const floatX *)arrays[i].at - c->zero->params);
        for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
            ParamId p = (ParamId)id;
            for (int layer = 0; layer < (param_is_layered(p) ? num_buckets(layout) - 2 : 1); layer++) {
                if (param_offset(layout, p, layer) != offset) { continue; }
                param_name(name, sizeof name, p, layer);
                snprintf(text, size, " (%s)", name);
            }
        }
    }
}

// Checks the arrays that have the flag `use`; keeps the first finding of the step.
static inline void nan_look(const char *op, const NanArray *arrays, int count, int use, Exec *ex) {
    NanCheck *c = ex->nan_check;
    double value = 0;
    char layer[32] = "", weight[NAME_LENGTH + 4] = "";
    for (int i = 0; i < count && !c->found; i++) {
        if (!arrays[i].at || !(arrays[i].use & use)) { continue; }
        size_t index = nan_find(c, arrays[i].at, arrays[i].n, arrays[i].dtype, &value);
        if (index == arrays[i].n) { continue; }
        if (ex->layer != NO_LAYER) { snprintf(layer, sizeof layer, " of layer %d", ex->layer); }
        nan_weight(weight, sizeof weight, c, arrays, count);
        c->found = true;
        c->read = use == NAN_READ;
        c->at = c->calls;
        if (c->read) {
            snprintf(c->text, sizeof c->text,
                     "%s%s%s read the first non-finite number, %s in element %zu of %s, which no operation wrote", op,
                     layer, weight, nan_name(value), index, arrays[i].name);
        } else {
            snprintf(c->text, sizeof c->text,
                     "%s%s%s made the first non-finite number, %s in element %zu of %s, from finite inputs", op, layer,
                     weight, nan_name(value), index, arrays[i].name);
        }
    }
}

// before and after the call of an operation
static inline void nan_before(const char *op, const NanArray *arrays, int count, Exec *ex) {
    ex->nan_check->calls++;
    nan_look(op, arrays, count, NAN_READ, ex);
}
static inline void nan_after(const char *op, const NanArray *arrays, int count, Exec *ex) {
    nan_look(op, arrays, count, NAN_WRITTEN, ex);
}

// ---- the operations of a step, in the order of ops.h

// elements of this rank's wte, whose rows the embedding operations do not know
static inline size_t nan_wte_size(const Exec *ex) { return param_count(&ex->nan_check->zero->layout, WTE); }

static inline void checked_embedding_forward(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe,
                                             int B, int T, int C, Exec *ex) {
    size_t N = (size_t)B * (size_t)T, c = (size_t)C;
    const NanArray a[] = {x_out("out", out, N * c), x_in("wte", wte, nan_wte_size(ex)),
                          x_in("wpe", wpe, (size_t)T * c)};
    nan_before("embedding_forward", a, 3, ex);
    ex->nan_check->ops->embedding_forward(out, tokens, wte, wpe, B, T, C, ex);
    nan_after("embedding_forward", a, 3, ex);
}

static inline void checked_token_embedding_forward(floatX *out, const int *tokens, const floatX *wte, int first,
                                                   int rows, int N, int C, Exec *ex) {
    size_t c = (size_t)C;
    const NanArray a[] = {x_out("out", out, (size_t)N * c), x_in("wte", wte, (size_t)rows * c)};
    nan_before("token_embedding_forward", a, 2, ex);
    ex->nan_check->ops->token_embedding_forward(out, tokens, wte, first, rows, N, C, ex);
    nan_after("token_embedding_forward", a, 2, ex);
}

static inline void checked_position_embedding_forward(floatX *x, const floatX *wpe, int first, int N, int T, int C,
                                                      Exec *ex) {
    size_t c = (size_t)C;
    const NanArray a[] = {x_inout("x", x, (size_t)N * c), x_in("wpe", wpe, (size_t)T * c)};
    nan_before("position_embedding_forward", a, 2, ex);
    ex->nan_check->ops->position_embedding_forward(x, wpe, first, N, T, C, ex);
    nan_after("position_embedding_forward", a, 2, ex);
}

static inline void checked_layernorm_forward(floatX *out, real *mean, real *rstd, const floatX *in,
                                             const floatX *weight, const floatX *bias, int N, int C, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C;
    const NanArray a[] = {real_out("mean", mean, n), real_out("rstd", rstd, n), x_out("out", out, n * c),
                          x_in("in", in, n * c),     x_in("weight", weight, c), x_in("bias", bias, c)};
    nan_before("layernorm_forward", a, 6, ex);
    ex->nan_check->ops->layernorm_forward(out, mean, rstd, in, weight, bias, N, C, ex);
    nan_after("layernorm_forward", a, 6, ex);
}

static inline void checked_layernorm_from_statistics(floatX *out, const floatX *in, const real *mean, const real *rstd,
                                                     const floatX *weight, const floatX *bias, int N, int C, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C;
    const NanArray a[] = {x_out("out", out, n * c), x_in("in", in, n * c),     real_in("mean", mean, n),
                          real_in("rstd", rstd, n), x_in("weight", weight, c), x_in("bias", bias, c)};
    nan_before("layernorm_from_statistics", a, 6, ex);
    ex->nan_check->ops->layernorm_from_statistics(out, in, mean, rstd, weight, bias, N, C, ex);
    nan_after("layernorm_from_statistics", a, 6, ex);
}

static inline void checked_matmul_forward(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                                          const floatX *residual, int N, int C, int OC, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C, o = (size_t)OC;
    const NanArray a[] = {x_out("out", out, n * o), x_in("in", in, n * c), x_in("weight", weight, o * c),
                          x_in("bias", bias, o), x_in("residual", residual, n * o)};
    nan_before("matmul_forward", a, 5, ex);
    ex->nan_check->ops->matmul_forward(out, in, weight, bias, residual, N, C, OC, ex);
    nan_after("matmul_forward", a, 5, ex);
}

static inline void checked_matmul_gelu_forward(floatX *out, floatX *pre, const floatX *in, const floatX *weight,
                                               const floatX *bias, int N, int C, int OC, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C, o = (size_t)OC;
    const NanArray a[] = {x_out("pre", pre, n * o), x_out("out", out, n * o), x_in("in", in, n * c),
                          x_in("weight", weight, o * c), x_in("bias", bias, o)};
    nan_before("matmul_gelu_forward", a, 5, ex);
    ex->nan_check->ops->matmul_gelu_forward(out, pre, in, weight, bias, N, C, OC, ex);
    nan_after("matmul_gelu_forward", a, 5, ex);
}

static inline void checked_residual_forward(floatX *out, const floatX *in, const floatX *bias, const floatX *residual,
                                            int N, int C, Exec *ex) {
    size_t n = (size_t)N * (size_t)C;
    const NanArray a[] = {x_out("out", out, n), x_in("in", in, n), x_in("bias", bias, (size_t)C),
                          x_in("residual", residual, n)};
    nan_before("residual_forward", a, 4, ex);
    ex->nan_check->ops->residual_forward(out, in, bias, residual, N, C, ex);
    nan_after("residual_forward", a, 4, ex);
}

static inline void checked_gelu_forward(floatX *out, const floatX *in, size_t n, Exec *ex) {
    const NanArray a[] = {x_out("out", out, n), x_in("in", in, n)};
    nan_before("gelu_forward", a, 2, ex);
    ex->nan_check->ops->gelu_forward(out, in, n, ex);
    nan_after("gelu_forward", a, 2, ex);
}

static inline void checked_attention_forward(floatX *out, real *lse, const floatX *qkv, int B, int T, int NH, int HS,
                                             Exec *ex) {
    size_t rows = (size_t)B * (size_t)T * (size_t)NH, n = rows * (size_t)HS;
    const NanArray a[] = {x_out("out", out, n), real_out("lse", lse, rows), x_in("qkv", qkv, 3 * n)};
    nan_before("attention_forward", a, 3, ex);
    ex->nan_check->ops->attention_forward(out, lse, qkv, B, T, NH, HS, ex);
    nan_after("attention_forward", a, 3, ex);
}

static inline void checked_classifier(real *losses, floatX *logits, const int *targets, real dloss, int N, int V,
                                      int Vp, Exec *ex) {
    size_t n = (size_t)N;
    const NanArray a[] = {real_out("losses", losses, n), x_inout("logits", logits, n * (size_t)Vp)};
    nan_before("classifier", a, 2, ex);
    ex->nan_check->ops->classifier(losses, logits, targets, dloss, N, V, Vp, ex);
    nan_after("classifier", a, 2, ex);
}

static inline void checked_classifier_statistics(real *statistics, const floatX *logits, const int *targets, int first,
                                                 int N, int V, int Vl, Exec *ex) {
    size_t n = (size_t)N;
    const NanArray a[] = {real_out("statistics", statistics, 3 * n), x_in("logits", logits, n * (size_t)Vl)};
    nan_before("classifier_statistics", a, 2, ex);
    ex->nan_check->ops->classifier_statistics(statistics, logits, targets, first, N, V, Vl, ex);
    nan_after("classifier_statistics", a, 2, ex);
}

static inline void checked_classifier_from_statistics(real *losses, floatX *logits, const real *statistics,
                                                      const int *targets, real dloss, int ranks, int first, int N,
                                                      int V, int Vl, Exec *ex) {
    size_t n = (size_t)N;
    const NanArray a[] = {real_out("losses", losses, n), x_inout("logits", logits, n * (size_t)Vl),
                          real_in("statistics", statistics, 3 * n * (size_t)ranks)};
    nan_before("classifier_from_statistics", a, 3, ex);
    ex->nan_check->ops->classifier_from_statistics(losses, logits, statistics, targets, dloss, ranks, first, N, V, Vl,
                                                   ex);
    nan_after("classifier_from_statistics", a, 3, ex);
}

static inline void checked_loss_sum(real *total, const real *losses, real scale, int N, Exec *ex) {
    const NanArray a[] = {nan_array("total", NAN_READ | NAN_WRITTEN, total, 1, DT_REAL),
                          real_in("losses", losses, (size_t)N)};
    nan_before("loss_sum", a, 2, ex);
    ex->nan_check->ops->loss_sum(total, losses, scale, N, ex);
    nan_after("loss_sum", a, 2, ex);
}

static inline void checked_matmul_backward(floatX *dinp, Gradient dweight, Gradient dbias, Gradient dgelu_bias,
                                           const floatX *dout, const floatX *in, const floatX *weight,
                                           const floatX *gelu_pre, GradMode mode, int N, int C, int OC, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C, o = (size_t)OC;
    const NanArray a[] = {x_out("dinp", dinp, n * c),        grad_out("dweight", dweight, mode, o * c),
                          grad_out("dbias", dbias, mode, o), grad_out("dgelu_bias", dgelu_bias, mode, c),
                          x_in("dout", dout, n * o),         x_in("in", in, n * c),
                          x_in("weight", weight, o * c),     x_in("gelu_pre", gelu_pre, n * c)};
    nan_before("matmul_backward", a, 8, ex);
    ex->nan_check->ops->matmul_backward(dinp, dweight, dbias, dgelu_bias, dout, in, weight, gelu_pre, mode, N, C, OC,
                                        ex);
    nan_after("matmul_backward", a, 8, ex);
}

static inline void checked_layernorm_backward(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout,
                                              const floatX *in, const floatX *weight, const real *mean,
                                              const real *rstd, GradMode mode, int N, int C, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C;
    const NanArray a[] = {x_inout("dinp", dinp, n * c),
                          grad_out("dweight", dweight, mode, c),
                          grad_out("dbias", dbias, mode, c),
                          x_in("dout", dout, n * c),
                          x_in("in", in, n * c),
                          x_in("weight", weight, c),
                          real_in("mean", mean, n),
                          real_in("rstd", rstd, n)};
    nan_before("layernorm_backward", a, 8, ex);
    ex->nan_check->ops->layernorm_backward(dinp, dweight, dbias, dout, in, weight, mean, rstd, mode, N, C, ex);
    nan_after("layernorm_backward", a, 8, ex);
}

static inline void checked_attention_backward(floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out,
                                              const real *lse, int B, int T, int NH, int HS, Exec *ex) {
    size_t rows = (size_t)B * (size_t)T * (size_t)NH, n = rows * (size_t)HS;
    const NanArray a[] = {x_out("dqkv", dqkv, 3 * n), x_in("dout", dout, n), x_in("qkv", qkv, 3 * n),
                          x_in("out", out, n), real_in("lse", lse, rows)};
    nan_before("attention_backward", a, 5, ex);
    ex->nan_check->ops->attention_backward(dqkv, dout, qkv, out, lse, B, T, NH, HS, ex);
    nan_after("attention_backward", a, 5, ex);
}

static inline void checked_embedding_backward(Gradient dwte, Gradient dwpe, const floatX *dout, const int *tokens,
                                              GradMode mode, int B, int T, int maxT, int C, Exec *ex) {
    size_t c = (size_t)C;
    const NanArray a[] = {grad_out("dwte", dwte, GRAD_ADD, nan_wte_size(ex)),
                          grad_out("dwpe", dwpe, mode, (size_t)maxT * c),
                          x_in("dout", dout, (size_t)B * (size_t)T * c)};
    nan_before("embedding_backward", a, 3, ex);
    ex->nan_check->ops->embedding_backward(dwte, dwpe, dout, tokens, mode, B, T, maxT, C, ex);
    nan_after("embedding_backward", a, 3, ex);
}

static inline void checked_token_embedding_backward(Gradient dwte, const floatX *dout, const int *tokens, int first,
                                                    int rows, int N, int C, Exec *ex) {
    size_t c = (size_t)C;
    const NanArray a[] = {grad_out("dwte", dwte, GRAD_ADD, (size_t)rows * c), x_in("dout", dout, (size_t)N * c)};
    nan_before("token_embedding_backward", a, 2, ex);
    ex->nan_check->ops->token_embedding_backward(dwte, dout, tokens, first, rows, N, C, ex);
    nan_after("token_embedding_backward", a, 2, ex);
}

static inline void checked_position_embedding_backward(Gradient dwpe, const floatX *dout, GradMode mode, int first,
                                                       int N, int T, int maxT, int C, Exec *ex) {
    size_t c = (size_t)C;
    const NanArray a[] = {grad_out("dwpe", dwpe, mode, (size_t)maxT * c), x_in("dout", dout, (size_t)N * c)};
    nan_before("position_embedding_backward", a, 2, ex);
    ex->nan_check->ops->position_embedding_backward(dwpe, dout, mode, first, N, T, maxT, C, ex);
    nan_after("position_embedding_backward", a, 2, ex);
}

static inline void checked_gradient_accumulate(real *sum, Gradient x, GradMode mode, size_t n, Exec *ex) {
    const Gradient to = {sum, DT_REAL};
    const NanArray a[] = {grad_out("sum", to, mode, n), nan_array("x", NAN_READ, x.at, n, x.dtype)};
    nan_before("gradient_accumulate", a, 2, ex);
    ex->nan_check->ops->gradient_accumulate(sum, x, mode, n, ex);
    nan_after("gradient_accumulate", a, 2, ex);
}

static inline void checked_global_norm_squared(real *out, Gradient x, GradMode mode, size_t n, Exec *ex) {
    const Gradient to = {out, DT_REAL};
    const NanArray a[] = {grad_out("out", to, mode, 1), nan_array("x", NAN_READ, x.at, n, x.dtype)};
    nan_before("global_norm_squared", a, 2, ex);
    ex->nan_check->ops->global_norm_squared(out, x, mode, n, ex);
    nan_after("global_norm_squared", a, 2, ex);
}

static inline Ops nan_checking_ops(const Ops *inner) {
    Ops ops = *inner;
    ops.embedding_forward = checked_embedding_forward;
    ops.token_embedding_forward = checked_token_embedding_forward;
    ops.position_embedding_forward = checked_position_embedding_forward;
    ops.layernorm_forward = checked_layernorm_forward;
    ops.layernorm_from_statistics = checked_layernorm_from_statistics;
    ops.matmul_forward = checked_matmul_forward;
    ops.matmul_gelu_forward = checked_matmul_gelu_forward;
    ops.residual_forward = checked_residual_forward;
    ops.gelu_forward = checked_gelu_forward;
    ops.attention_forward = checked_attention_forward;
    ops.classifier = checked_classifier;
    ops.classifier_statistics = checked_classifier_statistics;
    ops.classifier_from_statistics = checked_classifier_from_statistics;
    ops.loss_sum = checked_loss_sum;
    ops.matmul_backward = checked_matmul_backward;
    ops.layernorm_backward = checked_layernorm_backward;
    ops.attention_backward = checked_attention_backward;
    ops.embedding_backward = checked_embedding_backward;
    ops.token_embedding_backward = checked_token_embedding_backward;
    ops.position_embedding_backward = checked_position_embedding_backward;
    ops.gradient_accumulate = checked_gradient_accumulate;
    ops.global_norm_squared = checked_global_norm_squared;
    return ops;
}

// ---- a step

// ops: the model's. *c must not move before nan_check_result. The step then runs with c->checking_ops, and with c as
// Exec.nan_check.
static inline void nan_check_open(NanCheck *c, const Ops *ops, const Zero *zero) {
    memset(c, 0, sizeof *c);
    c->ops = ops;
    c->device = zero->device;
    c->zero = zero;
    c->checking_ops = nan_checking_ops(ops);
    c->chunk = (unsigned char *)xmalloc(NAN_CHUNK * sizeof(double));
}

// Checks the weights that this rank updates, before the step: at stage 0 all of them.
static inline void nan_check_params(NanCheck *c) {
    const ParamLayout *layout = &c->zero->layout;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        int layers = param_is_layered(p) ? num_buckets(layout) - 2 : 1;
        for (int layer = 0; layer < layers && !c->found; layer++) {
            ParamRange range = param_updated_range(layout, p, layer, param_count(layout, p));
            double value = 0;
            char name[NAME_LENGTH];
            size_t index = nan_find(c, c->zero->stored_params + range.params, range.count, DT_FLOATX, &value);
            if (index == range.count) { continue; }
            param_name(name, sizeof name, p, layer);
            c->found = true;
            snprintf(c->text, sizeof c->text, "%s was not finite before the step: %s in element %zu", name,
                     nan_name(value), range.offset + index);
        }
    }
}

// text = the origin of a loss or norm that is not finite, with its rank. finite: the step that ran again has a finite
// loss and norm. All ranks call it and get the same text. Frees *c.
static inline void nan_check_result(NanCheck *c, bool finite, char *text, size_t size, Comm *world) {
    // the first finding of all ranks; outputs come first: a collective may have carried their numbers to another rank
    long long key = c->found ? c->at + (c->read ? 1LL << 40 : 0) : LLONG_MAX, lowest = -comm_max(-key, world);
    int rank = world->size - (int)comm_max(key == lowest ? world->size - world->rank : 0, world);
    free(c->chunk);
    if (lowest < LLONG_MAX) {
        char where[32] = "";
        if (world->size > 1) { snprintf(where, sizeof where, ", on rank %d", rank); }
        comm_broadcast_host(c->text, sizeof c->text, rank, world);
        snprintf(text, size, "%s%s", c->text, where);
    } else if (finite) {
        snprintf(text, size, "the same step, run again, is finite: the hardware is faulty, or there is a race");
    } else {
        snprintf(text, size, "every operation made finite numbers: a sum over the ranks is beyond the range of fp32");
    }
}
