// Parameter gradients on the CPU.
#pragma once
#include "llmc/gradient.h"

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

static inline void cpu_gradient_accumulate(real *sum, Gradient x, GradMode mode, size_t n, Exec *ex) {
    (void)ex;
    bool add = mode == GRAD_ADD;
    const bf16 *rounded = (const bf16 *)x.at;
    const real *exact = (const real *)x.at;
    if (x.dtype == DT_BF16) {
#pragma omp parallel for simd schedule(static)
        for (size_t i = 0; i < n; i++) { sum[i] = bf16_to_float(rounded[i]) + (add ? sum[i] : 0); }
    } else {
#pragma omp parallel for simd schedule(static)
        for (size_t i = 0; i < n; i++) { sum[i] = exact[i] + (add ? sum[i] : 0); }
    }
}
