/*
FLOPs of a training step, per token, from the flags alone: of matmuls and attention, two a multiply-add.
  6 M + 6 L C (T + 1)      M = 12 L C^2 + Vp C weights of matmuls
A token attends to (T + 1) / 2 positions on average. Forward and backward of attention are 2 and 4 GEMMs over the pairs
of a query and a key. MFU is the share of the GPU's peak that the model's FLOPs take: recomputation does not raise it.
defines: attention_flops_per_token, model_flops_per_token
*/
#pragma once
#include "llmc/shapes/activations.h"

// of one GEMM of all heads over the pairs of a query and a key, in one block
static inline double attention_flops_per_token(const GPT2Config *c, int T) { return c->channels * (T + 1.0); }

static inline double model_flops_per_token(const GPT2Config *c, int T) {
    double C = c->channels, L = c->num_layers;
    double weights = 12 * L * C * C + (double)c->padded_vocab_size * C;
    return 6 * weights + 6 * L * attention_flops_per_token(c, T);
}
