/*
FLOPs of a training step, per token, from the flags alone: of matmuls and attention, two a multiply-add.
  model       6 M + 6 L C (T + 1)      M = 12 L C^2 + Vp C weights of matmuls
  recomputed  what -r recomputes
  step        model + recomputed + L C (T + 1): the scores that attention_backward needs again. Its two kernels compute
              scores and their gradients each for itself, two GEMMs more, which count as the kernels' own cost
A token attends to (T + 1) / 2 positions on average. Forward and backward of attention are 2 and 4 GEMMs over the pairs
of a query and a key. MFU is the share of the GPU's peak that the model's FLOPs take: recomputation does not raise it.
defines: model_flops_per_token, recomputed_flops_per_token, step_flops_per_token
*/
#pragma once
#include "llmc/memory/activations.h"

// of one GEMM of all heads over the pairs of a query and a key, in one block
static inline double attention_flops_per_token(const GPT2Config *c, int T) { return c->channels * (T + 1.0); }

static inline double model_flops_per_token(const GPT2Config *c, int T) {
    double C = c->channels, L = c->num_layers;
    double weights = 12 * L * C * C + (double)c->padded_vocab_size * C;
    return 6 * weights + 6 * L * attention_flops_per_token(c, T);
}

static inline double recomputed_flops_per_token(const GPT2Config *c, const Recompute *r, int T) {
    double C = c->channels, attention = attention_flops_per_token(c, T), flops = 0;
    for (int l = 0; l < c->num_layers; l++) {
        int level = layer_level(r, l);
        if (level >= RECOMPUTE_UP_PROJECTION) { flops += 8 * C * C; }
        if (level >= RECOMPUTE_BLOCK) { flops += 8 * C * C + 2 * attention; }
        if (level >= RECOMPUTE_BLOCK && segment_end(r, l) != l) { flops += 8 * C * C; }  // the down-projection
    }
    return flops;
}

static inline double step_flops_per_token(const GPT2Config *c, const Recompute *r, int T) {
    double scores = c->num_layers * attention_flops_per_token(c, T);
    return model_flops_per_token(c, T) + recomputed_flops_per_token(c, r, T) + scores;
}
