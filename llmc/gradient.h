/*
Parameter gradients: storing a sum into one, and the sum over micro-batches.
  store       g (+)= sum, computed in real and rounded once if the gradient is bf16
  accumulate  sum (+)= x: the gradient shard at -z 2 and 3 (parallel/zero.h)
Shapes        sum (n) real, x (n) real or bf16
Bytes         accumulate reads n of x and writes n real; under GRAD_ADD it also reads n real.
*/
#pragma once
#include "llmc/ops.h"  // IWYU pragma: export

static inline real gradient_value(Gradient g, size_t i) {
    return g.dtype == DT_BF16 ? bf16_to_float(((const bf16 *)g.at)[i]) : ((const real *)g.at)[i];
}

// g[i] (+)= sum
static inline void gradient_set(Gradient g, size_t i, double sum, GradMode mode) {
    real value = (real)sum + (mode == GRAD_ADD ? gradient_value(g, i) : 0);
    if (g.dtype == DT_BF16) {
        ((bf16 *)g.at)[i] = float_to_bf16((float)value);
    } else {
        ((real *)g.at)[i] = value;
    }
}

static inline void reference_gradient_accumulate(real *sum, Gradient x, GradMode mode, size_t n, Exec *ex) {
    (void)ex;
    for (size_t i = 0; i < n; i++) { sum[i] = gradient_value(x, i) + (mode == GRAD_ADD ? sum[i] : 0); }
}
