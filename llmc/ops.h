/*
Every operation of GPT-2 once, in forward order: the table of contents of the maths.
defines: GradMode, Gradient, no_gradient, gradient_at, UpdateRange, AdamW, OptimizerState, MOMENT_BLOCK,
         CLASSIFIER_LEAST, Ops

Shapes      B sequences, T positions, N = B*T rows, C channels, NH heads of HS = C/NH channels, OC output channels,
            V vocabulary, Vp the vocabulary padded in memory. All arrays are dense and row-major.
Types       floatX is the type of storage, real the type of arithmetic (floatx.h). Statistics and losses are real.
            A parameter gradient is real or bf16. Its sum, with the old value under GRAD_ADD, is computed in real and
            rounded once, to nearest even.
Semantics   Outputs are written with = unless the comment says +=. (+)= is = under GRAD_SET and += under GRAD_ADD.
            An output may not overlap an input unless the comment says "in place".
The formula and the reference implementation of operation <op> are in llmc/<op>.h, its kernels in llmc/<op>.cuh.
cpu_ops.h and cuda_ops.cuh collect them. Operations cannot fail: the trainer checks shapes before the first step.
*/
#pragma once
#include "llmc/common/floatx.h"
#include <stdbool.h>
#include <stddef.h>

// the device, the stream and the scratch of an operation (common/device.h)
typedef struct Exec Exec;

// The first micro-step of an accumulation sets a gradient, later ones add to it. No memset is needed.
typedef enum { GRAD_SET, GRAD_ADD } GradMode;

// a parameter gradient: real, or bf16 with -gd bf16; at is NULL if it is not wanted
typedef struct {
    void *at;
    DType dtype;  // DT_REAL or DT_BF16
} Gradient;

static const Gradient no_gradient = {NULL, DT_REAL};

// the gradient from element `offset` on
static inline Gradient gradient_at(Gradient g, size_t offset) {
    Gradient further = {g.at ? (char *)g.at + offset * dtype_size(g.dtype) : NULL, g.dtype};
    return further;
}

// the maximum over no logits: below every logit, and finite, since inf - inf is NaN
#define CLASSIFIER_LEAST ((real)-1e30)

enum { MOMENT_BLOCK = 128 };  // elements that share a scale of 8-bit moments

// A range of one tensor that AdamW updates: elements [offset, offset + count) of the flat buffers, which are elements
// [tensor_offset, tensor_offset + count) of this rank's tensor. Both offsets are multiples of MOMENT_BLOCK.
// A slice is a strided view of the whole tensor: rows of view_cols elements. In the whole tensor the first row begins
// at element view_offset, and rows are view_stride elements apart.
typedef struct {
    size_t offset, count, tensor_offset;
    bool decay;
    int tensor;  // number below 2^20: keys stochastic rounding, with the element's index in the whole tensor
    uint32_t view_offset, view_cols, view_stride;  // view_cols is 0 if the slice is the whole tensor
} UpdateRange;

// one AdamW step's numbers (Loshchilov, Hutter 2019); step counts from 1
typedef struct {
    real learning_rate, beta1, beta2, epsilon, weight_decay;
    real clip;  // largest global norm of the gradients, which are scaled down to it; 0 disables clipping
    int step;
    uint64_t seed;  // of stochastic rounding
} AdamW;

// AdamW's state: flat buffers with the same elements in the same order, aligned to 16 bytes
typedef struct {
    floatX *params;
    real *master;                // params before rounding, half up; or
    int16_t *remainder;          // master minus params (floatx.h); both are NULL if params are the only copy
    void *m, *v;                 // moments
    DType moments;               // DT_REAL, DT_BF16, or DT_U8: codes (moments.h)
    float *m_scales, *v_scales;  // DT_U8: element i has scale i / MOMENT_BLOCK; otherwise NULL
} OptimizerState;

typedef struct {
    // ---- forward
    // out (N,C) = wte (Vp,C)[tokens] + wpe (maxT,C)[t];  tokens (B,T) int32
    void (*embedding_forward)(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe, int B, int T, int C,
                              Exec *ex);
    // The same in two steps, for ranks that hold a slice of wte or of the rows.
    // out (N,C) = wte (rows,C)[tokens - first], or 0 if tokens - first is outside [0, rows);  tokens (N) int32
    void (*token_embedding_forward)(floatX *out, const int *tokens, const floatX *wte, int first, int rows, int N,
                                    int C, Exec *ex);
    // x (N,C) += wpe (maxT,C)[(first + n) % T];  x is rows [first, first + N) of (B,T)
    void (*position_embedding_forward)(floatX *x, const floatX *wpe, int first, int N, int T, int C, Exec *ex);
    // out (N,C) = (in - mean) * rstd * weight + bias;  also writes mean, rstd (N)
    void (*layernorm_forward)(floatX *out, real *mean, real *rstd, const floatX *in, const floatX *weight,
                              const floatX *bias, int N, int C, Exec *ex);
    // layernorm_forward's out, bit for bit, from saved mean and rstd: no reductions. For recomputation
    void (*layernorm_from_statistics)(floatX *out, const floatX *in, const real *mean, const real *rstd,
                                      const floatX *weight, const floatX *bias, int N, int C, Exec *ex);
    // out (N,OC) = in (N,C) weight (OC,C)^T + bias (OC) + residual (N,OC);  bias and residual may be NULL
    void (*matmul_forward)(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                           const floatX *residual, int N, int C, int OC, Exec *ex);
    // pre (N,OC) = in weight^T + bias;  out (N,OC) = gelu(pre)
    void (*matmul_gelu_forward)(floatX *out, floatX *pre, const floatX *in, const floatX *weight, const floatX *bias,
                                int N, int C, int OC, Exec *ex);
    // out (N,C) = in (N,C) + bias (C) + residual (N,C);  in place: out may be in or residual;  bias may be NULL.
    // For a row-parallel linear, whose reduce-scatter comes before bias and residual
    void (*residual_forward)(floatX *out, const floatX *in, const floatX *bias, const floatX *residual, int N, int C,
                             Exec *ex);
    // out (n) = gelu(in (n)), the tanh form
    void (*gelu_forward)(floatX *out, const floatX *in, size_t n, Exec *ex);
    // out (N,C) = causal attention of qkv (B,T,3,NH,HS);  lse (B,NH,T) is the log-sum-exp of each row's scaled scores
    void (*attention_forward)(floatX *out, real *lse, const floatX *qkv, int B, int T, int NH, int HS, Exec *ex);
    // out (n,C) = attention of positions [pos, pos + n) of one sequence, qkv (n,3,NH,HS), over the KV cache: keys and
    // values (maxT,C). The new keys and values are appended to the cache first
    void (*attention_decode)(floatX *out, floatX *keys, floatX *values, const floatX *qkv, int pos, int n, int NH,
                             int HS, Exec *ex);
    // losses (N) = -log softmax(logits (N,Vp)[:V])[target];  in place: logits become their gradient times dloss, and
    // columns [V, Vp) become 0. With dloss = 0 logits are not written. A row whose target is -1 has no loss: its loss
    // and its gradient are 0, here and below
    void (*classifier)(real *losses, floatX *logits, const int *targets, real dloss, int N, int V, int Vp, Exec *ex);
    // The classifier in two steps, for a rank that holds columns [first, first + Vl) of the logits, as (N,Vl).
    // statistics (N,3) = maximum, sum of exp(logit - maximum), and target's logit, over the row's columns below V.
    // Without such columns the first two are CLASSIFIER_LEAST and 0; the third is 0 if another rank has the target
    void (*classifier_statistics)(real *statistics, const floatX *logits, const int *targets, int first, int N, int V,
                                  int Vl, Exec *ex);
    // losses and logits as the classifier's, from the statistics of all ranks, (ranks,N,3), combined in rank order
    void (*classifier_from_statistics)(real *losses, floatX *logits, const real *statistics, const int *targets,
                                       real dloss, int ranks, int first, int N, int V, int Vl, Exec *ex);
    // *total += scale * sum of losses (N)
    void (*loss_sum)(real *total, const real *losses, real scale, int N, Exec *ex);

    // ---- backward, in the order it runs
    // dinp (N,C) = dout (N,OC) weight (OC,C), times gelu'(gelu_pre (N,C)) unless gelu_pre is NULL
    // dweight (OC,C) (+)= dout^T in (N,C);  dbias (OC) (+)= column sums of dout
    // dgelu_bias (C) (+)= column sums of dinp, gelu' included: the bias gradient of the layer below
    // dinp, dweight, dbias, dgelu_bias may be NULL. In place: dinp may be in, since dweight is computed first
    void (*matmul_backward)(floatX *dinp, Gradient dweight, Gradient dbias, Gradient dgelu_bias, const floatX *dout,
                            const floatX *in, const floatX *weight, const floatX *gelu_pre, GradMode mode, int N, int C,
                            int OC, Exec *ex);
    // dinp (N,C) += gradient through the layernorm of dout (N,C);  dweight, dbias (C) (+)=
    void (*layernorm_backward)(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout, const floatX *in,
                               const floatX *weight, const real *mean, const real *rstd, GradMode mode, int N, int C,
                               Exec *ex);
    // dqkv (B,T,3,NH,HS) from dout (N,C), the forward's out and lse;  recomputes the probabilities from qkv and lse
    void (*attention_backward)(floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out, const real *lse,
                               int B, int T, int NH, int HS, Exec *ex);
    // dwte (Vp,C)[tokens] += dout (N,C);  dwpe (maxT,C) (+)= sums over sequences, rows [T, maxT) = 0 under GRAD_SET
    void (*embedding_backward)(Gradient dwte, Gradient dwpe, const floatX *dout, const int *tokens, GradMode mode,
                               int B, int T, int maxT, int C, Exec *ex);
    // The same in two steps. dwte (rows,C)[tokens - first] += dout (N,C), if tokens - first is in [0, rows)
    void (*token_embedding_backward)(Gradient dwte, const floatX *dout, const int *tokens, int first, int rows, int N,
                                     int C, Exec *ex);
    // dwpe (maxT,C)[(first + n) % T] (+)= dout (N,C), which is rows [first, first + N) of (B,T);  positions without
    // rows are set to 0 under GRAD_SET
    void (*position_embedding_backward)(Gradient dwpe, const floatX *dout, GradMode mode, int first, int N, int T,
                                        int maxT, int C, Exec *ex);

    // ---- update
    // sum (n) (+)= x (n): adds a micro-batch's reduced gradients to a real shard
    void (*gradient_accumulate)(real *sum, Gradient x, GradMode mode, size_t n, Exec *ex);
    // *out (+)= sum of squares of x (n)
    void (*global_norm_squared)(real *out, Gradient x, GradMode mode, size_t n, Exec *ex);
    // One AdamW step on params, their masters or remainders, and the moments. grads are scaled by
    // min(1, clip / sqrt(*norm_squared)). If that norm is not finite, nothing changes. Moments of bf16 or 8 bits are
    // rounded stochastically, and so are bf16 params without masters and remainders.
    // ranges, on the device and sorted by offset, cover the elements to update
    void (*adamw_update)(const OptimizerState *state, Gradient grads, const real *norm_squared,
                         const UpdateRange *ranges, int num_ranges, const AdamW *hyper, Exec *ex);
} Ops;
