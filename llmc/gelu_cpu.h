/*
GELU on the CPU, by a sigmoid with a fast exponential.
defines: gelu_value, gelu_slope, gelu_row, gelu_backward_row, cpu_gelu_forward
*/
#pragma once
#include "llmc/common/floatx.h"
#include "llmc/common/vectors.h"
#include "llmc/gelu.h"

static inline real gelu_sigmoid(real x) { return 1 / (1 + fast_exp(-2 * GELU_SCALE * (x + GELU_CUBIC * x * x * x))); }

static inline real gelu_value(real x) { return x * gelu_sigmoid(x); }

static inline real gelu_slope(real x) { return gelu_slope_of(x, gelu_sigmoid(x)); }

static inline void gelu_row(floatX *out, const floatX *in, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) { out[i] = to_floatX(gelu_value(to_real(in[i]))); }
}

// dinp (n) = dout (n) gelu'(in (n)), in place or not
static inline void gelu_backward_row(floatX *dinp, const floatX *dout, const floatX *in, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) { dinp[i] = to_floatX(to_real(dout[i]) * gelu_slope(to_real(in[i]))); }
}

enum { GELU_BLOCK = 4096 };  // elements that a thread computes at a time

static inline void cpu_gelu_forward(floatX *out, const floatX *in, size_t n, Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += GELU_BLOCK) {
        gelu_row(out + i, in + i, n - i < GELU_BLOCK ? n - i : (size_t)GELU_BLOCK);
    }
}
