/*
How the twins write parameter gradients: sums made in real, set or added to what was there, rounded once where the
gradient is bf16.
defines: gradient_store
*/
#pragma once
#include "ops.h"

// elements [at, at + n) of g (+)= sum (n)
static inline void gradient_store(Gradient g, size_t at, const real *sum, size_t n, GradMode mode) {
    bool add = mode == GRAD_ADD;
    if (g.dtype == DT_BF16) {
        bf16 *to = (bf16 *)g.at + at;
#pragma omp simd
        for (size_t i = 0; i < n; i++) { to[i] = float_to_bf16((float)(sum[i] + (add ? bf16_to_float(to[i]) : 0))); }
    } else {
        real *to = (real *)g.at + at;
#pragma omp simd
        for (size_t i = 0; i < n; i++) { to[i] = sum[i] + (add ? to[i] : 0); }
    }
}
