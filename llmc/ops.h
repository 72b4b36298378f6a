/*
Every operation of GPT-2 once, in forward order: the table of contents of the maths.
defines: GradMode, Gradient, gradient_at, UpdateRange, AdamW, OptimizerState, MOMENT_BLOCK, CLASSIFIER_LEAST,
         Ops

Shapes      B sequences, T positions, N = B*T rows, C channels, NH heads of HS = C/NH channels, OC output channels,
            V vocabulary, Vp the vocabulary padded in memory. All arrays are dense and row-major.
Types       floatX is storage, real is arithmetic (floatx.h). Statistics and losses are real. A parameter gradient is
            real or bf16: its sums are made in real, the old value with GRAD_ADD included, and rounded once, to nearest
            even.
Semantics   outputs are written with = unless the line says += ; GRAD_ADD turns a parameter gradient's = into += .
            An output may not overlap an input unless the line says "in place".
An operation <op> has its formula and its plain C twin in llmc/<op>.h. The twins are collected in cpu_ops (cpu_ops.h).
Operations cannot fail: the trainer checks shapes before the first step.
*/
#pragma once
#include "llmc/common/floatx.h"
#include <stdbool.h>
#include <stddef.h>

// where an operation runs and what it may use there (common/device.h)
typedef struct Exec Exec;

// the first micro-step of an accumulation sets a gradient, the others add to it: no memset is needed
typedef enum { GRAD_SET, GRAD_ADD } GradMode;

// where a parameter gradient is written: real, or bf16 (-gd bf16). at is NULL where it is not wanted
typedef struct {
    void *at;
    DType dtype;  // DT_REAL or DT_BF16
} Gradient;

// the gradient `count` elements further on
static inline Gradient gradient_at(Gradient g, size_t count) {
    Gradient further = {g.at ? (char *)g.at + count * dtype_size(g.dtype) : NULL, g.dtype};
    return further;
}

// what the largest of no logits is: below all others, and finite, since inf - inf is NaN
#define CLASSIFIER_LEAST ((real)-1e30)

enum { MOMENT_BLOCK = 128 };  // elements that share a scale where moments have 8 bits

// A slice of a tensor as a strided view of the whole: rows of `cols` elements; the first begins at element `offset` of
// the whole tensor, and rows are `stride` elements apart there. cols is 0 where the slice is the whole tensor.
typedef struct {
    uint32_t offset, cols, stride;
} StridedView;

// A range of one tensor that AdamW updates: elements [offset, offset + count) of the flat blocks, which are elements
// [tensor_offset, tensor_offset + count) of this rank's tensor. Both offsets are multiples of MOMENT_BLOCK.
typedef struct {
    size_t offset, count, tensor_offset;
    bool decay;
    int tensor;  // its number, below 2^20: stochastic rounding is keyed by it and by the element of the whole tensor
    StridedView view;
} UpdateRange;

// one AdamW step's numbers (Loshchilov, Hutter 2019); step counts from 1
typedef struct {
    real learning_rate, beta1, beta2, epsilon, weight_decay;
    real clip;  // gradients are scaled to this global norm if theirs is larger; 0 turns clipping off
    int step;
    uint64_t seed;  // of stochastic rounding
} AdamW;

// what AdamW works on: flat blocks of the same layout, aligned to 16 bytes
typedef struct {
    floatX *params;
    real *master;                // params before they were rounded, half up;  or
    int16_t *remainder;          // what params lack of that (floatx.h);  or, both NULL, params are all there is
    void *m, *v;                 // the moments
    DType moments;               // DT_REAL, DT_BF16, or DT_U8: codes (moments.h)
    float *m_scales, *v_scales;  // of DT_U8: element i has the scale i / MOMENT_BLOCK;  NULL otherwise
} OptimizerState;

typedef struct {
    // ---- forward
    // out (N,C) = wte (Vp,C)[tokens] + wpe (maxT,C)[t];  tokens (B,T) int32
    void (*embedding_forward)(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe, int B, int T, int C,
                              Exec *ex);
    // the two apart, for a process that has a part of wte, or of the rows. tokens (N)
    // out (N,C) = wte (rows,C)[tokens - first], or 0 where that is outside of [0, rows)
    void (*token_embedding_forward)(floatX *out, const int *tokens, const floatX *wte, int first, int rows, int N,
                                    int C, Exec *ex);
    // x (N,C) += wpe (maxT,C)[(first + n) % T];  x is rows first.. of (B,T)
    void (*position_embedding_forward)(floatX *x, const floatX *wpe, int first, int N, int T, int C, Exec *ex);
    // out (N,C) = (in - mean) * rstd * weight + bias;  mean, rstd (N) are written too
    void (*layernorm_forward)(floatX *out, real *mean, real *rstd, const floatX *in, const floatX *weight,
                              const floatX *bias, int N, int C, Exec *ex);
    // sum (N,C) = in + in_bias (C) + residual;  out, mean, rstd are sum's layernorm;  sum may be in or residual,
    // in_bias may be NULL, and so may out: then there is no layernorm. For where a reduction over devices stands
    // between a product and its bias and residual
    void (*residual_layernorm_forward)(floatX *sum, floatX *out, real *mean, real *rstd, const floatX *in,
                                       const floatX *in_bias, const floatX *residual, const floatX *weight,
                                       const floatX *bias, int N, int C, Exec *ex);
    // layernorm_forward's out from stored mean and rstd: no reductions, bit for bit what layernorm_forward wrote. For
    // recomputation
    void (*layernorm_normalise)(floatX *out, const floatX *in, const real *mean, const real *rstd, const floatX *weight,
                                const floatX *bias, int N, int C, Exec *ex);
    // out (N,OC) = in (N,C) weight (OC,C)^T + bias (OC) + residual (N,OC);  bias and residual may be NULL
    void (*matmul_forward)(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                           const floatX *residual, int N, int C, int OC, Exec *ex);
    // pre (N,OC) = in weight^T + bias;  out (N,OC) = gelu(pre)
    void (*matmul_gelu_forward)(floatX *out, floatX *pre, const floatX *in, const floatX *weight, const floatX *bias,
                                int N, int C, int OC, Exec *ex);
    // out (n) = gelu(in (n)), the tanh form
    void (*gelu_forward)(floatX *out, const floatX *in, size_t n, Exec *ex);
    // out (N,C) = causal attention of qkv (B,T,3,NH,HS);  lse (B,NH,T) is the log-sum-exp of each row's scaled scores
    void (*attention_forward)(floatX *out, real *lse, const floatX *qkv, int B, int T, int NH, int HS, Exec *ex);
    // out (n,C) for n new positions pos.. of one sequence, qkv (n,3,NH,HS), over a cache of keys and values (maxT,C)
    // each, to which the new ones are appended first
    void (*attention_decode)(floatX *out, floatX *keys, floatX *values, const floatX *qkv, int pos, int n, int NH,
                             int HS, Exec *ex);
    // losses (N) = -log softmax(logits (N,Vp)[:V])[target];  in place, logits become their own gradient times dloss,
    // columns V.. become 0;  logits are left alone where dloss is 0
    void (*classifier)(real *losses, floatX *logits, const int *targets, real dloss, int N, int V, int Vp, Exec *ex);
    // The classifier in two steps, for a process that has columns [first, first + Vl) of the logits, in (N,Vl):
    // statistics (N,3) = of each row's columns below V the largest, the sum of exp(logit - largest), and the target's
    // logit;  CLASSIFIER_LEAST and 0 where there are no such columns, 0 where the target is elsewhere
    void (*classifier_statistics)(real *statistics, const floatX *logits, const int *targets, int first, int N, int V,
                                  int Vl, Exec *ex);
    // then, from those of all processes, (ranks,N,3), summed in order: losses and logits as the classifier's
    void (*classifier_from_statistics)(real *losses, floatX *logits, const real *statistics, const int *targets,
                                       real dloss, int ranks, int first, int N, int V, int Vl, Exec *ex);
    // *total += scale * sum of losses (N)
    void (*loss_sum)(real *total, const real *losses, real scale, int N, Exec *ex);

    // ---- backward, in the order it runs
    // dinp (N,C) = dout (N,OC) weight (OC,C), times gelu'(gelu_pre (N,C)) unless that is NULL
    // dweight (OC,C) (+)= dout^T in (N,C);  dbias (OC) (+)= column sums of dout;  dgelu_bias (C) (+)= column sums of
    // dinp once gelu' is in it: the bias gradient of the layer below.  dinp, dweight, dbias, dgelu_bias may be NULL.
    // dinp may be in: dinp is written after dweight has been made
    void (*matmul_backward)(floatX *dinp, Gradient dweight, Gradient dbias, Gradient dgelu_bias, const floatX *dout,
                            const floatX *in, const floatX *weight, const floatX *gelu_pre, GradMode mode, int N, int C,
                            int OC, Exec *ex);
    // dinp (n) = dout (n) * gelu'(in (n));  in place is allowed: dinp may be dout
    void (*gelu_backward)(floatX *dinp, const floatX *dout, const floatX *in, size_t n, Exec *ex);
    // dinp (N,C) += gradient through the layernorm of dout (N,C);  dweight, dbias (C) (+)=
    void (*layernorm_backward)(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout, const floatX *in,
                               const floatX *weight, const real *mean, const real *rstd, GradMode mode, int N, int C,
                               Exec *ex);
    // dqkv (B,T,3,NH,HS) from dout (N,C), recomputing the probabilities from qkv and lse;  out is the forward's
    void (*attention_backward)(floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out, const real *lse,
                               int B, int T, int NH, int HS, Exec *ex);
    // dwte (Vp,C)[tokens] += dout (N,C);  dwpe (maxT,C) (+)= sums over sequences, rows T.. set to 0 by GRAD_SET
    void (*embedding_backward)(Gradient dwte, Gradient dwpe, const floatX *dout, const int *tokens, GradMode mode,
                               int B, int T, int maxT, int C, Exec *ex);
    // the two apart: dwte (rows,C)[tokens - first] += dout (N,C), where that is in [0, rows)
    void (*token_embedding_backward)(Gradient dwte, const floatX *dout, const int *tokens, int first, int rows, int N,
                                     int C, Exec *ex);
    // dwpe (maxT,C) (+)= sums over the rows of dout (N,C), which are rows first.. of (B,T), at each position;  those of
    // none are set to 0 by GRAD_SET
    void (*position_embedding_backward)(Gradient dwpe, const floatX *dout, GradMode mode, int first, int N, int T,
                                        int maxT, int C, Exec *ex);

    // ---- update
    // sum (n) (+)= x (n), a part of the gradients of which other micro-batches have another
    void (*gradient_accumulate)(real *sum, Gradient x, GradMode mode, size_t n, Exec *ex);
    // *out (+)= sum of squares of x (n)
    void (*global_norm_squared)(real *out, Gradient x, GradMode mode, size_t n, Exec *ex);
    // one AdamW step on params, their masters or remainders, and the moments;  grads are scaled by
    // min(1, clip / sqrt(*norm_squared)), and if that norm is not finite nothing changes.  Where there are neither
    // masters nor remainders, params that are bf16 are rounded stochastically, and so are moments that are not real.
    // ranges, on the device and sorted by offset, cover the elements to update
    void (*adamw_update)(const OptimizerState *state, Gradient grads, const real *norm_squared,
                         const UpdateRange *ranges, int num_ranges, const AdamW *hyper, Exec *ex);
    // params (n) have changed otherwise than by adamw_update, which sees to it itself: whatever ex keeps of them (the
    // rounded copy of -f 2) is brought up to date
    void (*params_changed)(const floatX *params, size_t n, Exec *ex);
} Ops;
