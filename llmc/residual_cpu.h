// Bias and residual on the CPU.
#pragma once
#include "llmc/common/floatx.h"
#include "llmc/common/vectors.h"
#include "llmc/residual.h"

// One row. The loop has a copy with bias and a copy without: clang does not vectorise a bf16 load under a condition.
ALWAYS_INLINE void residual_row(floatX *out, const floatX *in, const floatX *bias, const floatX *residual, int C) {
#pragma omp simd
    for (int c = 0; c < C; c++) {
        real x = to_real(in[c]) + (bias ? to_real(bias[c]) : 0);
        out[c] = to_floatX(x + to_real(residual[c]));
    }
}

static inline void cpu_residual_forward(floatX *out, const floatX *in, const floatX *bias, const floatX *residual,
                                        int N, int C, Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        size_t row = (size_t)n * C;
        if (bias) {
            residual_row(out + row, in + row, bias, residual + row, C);
        } else {
            residual_row(out + row, in + row, NULL, residual + row, C);
        }
    }
}
