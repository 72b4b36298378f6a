/*
GELU, the tanh form (Hendrycks, Gimpel 2016), written with a sigmoid: 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)).
  u(x)     = sqrt(2/pi) (x + 0.044715 x^3)
  gelu(x)  = x s,  s = 1 / (1 + exp(-2u))
  gelu'(x) = s + 2 x s (1 - s) u'(x),  u'(x) = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
Shapes      out, in (n) floatX. out may not be in.
Bytes       forward 2n floatX: each element is read once and written once.
The backward is part of matmul_backward (matmul.h), which multiplies dinp by gelu'.
defines: gelu_value, gelu_slope, gelu_slope_of, gelu_row, gelu_backward_row, cpu_gelu_forward
*/
#pragma once
#include "llmc/ops.h"
#include "llmc/common/vector_math.h"

#define GELU_SCALE ((real)0.7978845608028654)  // sqrt(2/pi)
#define GELU_CUBIC ((real)0.044715)

static inline real gelu_sigmoid(real x) { return 1 / (1 + fast_exp(-2 * GELU_SCALE * (x + GELU_CUBIC * x * x * x))); }

static inline real gelu_value(real x) { return x * gelu_sigmoid(x); }

// gelu'(x) from x and s. The kernels compute s by another sigmoid (gelu.cuh)
static inline HOST_DEVICE real gelu_slope_of(real x, real s) {
    return s + 2 * x * s * (1 - s) * GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
}

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
