/*
sum (+)= x: a rank's own part of the gradients, over the micro-batches of an update. x is what came of the other ranks'
parts (llmc/zero.h); sums are real, whatever x is.
Bytes       n of x read, n real written, and read where they are added to.
defines: cpu_gradient_accumulate
*/
#pragma once
#include "ops.h"

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
