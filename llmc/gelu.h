/*
GELU, the tanh form (Hendrycks, Gimpel 2016).
  u(x)     = sqrt(2/pi) (x + 0.044715 x^3)
  gelu(x)  = 0.5 x (1 + tanh u)
  gelu'(x) = 0.5 (1 + tanh u) + 0.5 x (1 - tanh^2 u) u'(x),  u'(x) = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
Shapes      out, in (n) floatX. out may not be in.
Bytes       forward 2n floatX: each element is read once and written once.
The backward is part of matmul_backward (matmul.h), which multiplies dinp by gelu'.
The fast versions use 0.5 (1 + tanh u) = s = 1 / (1 + exp(-2u)), one exponential:
  gelu(x) = x s;  gelu'(x) = s + 2 x s (1 - s) u'(x)
defines: GELU_SCALE, GELU_CUBIC, gelu_slope_of, reference_gelu, reference_gelu_slope, reference_gelu_forward
*/
#pragma once
#include "llmc/ops.h"

#define GELU_SCALE ((real)0.7978845608028654)  // sqrt(2/pi)
#define GELU_CUBIC ((real)0.044715)

// gelu'(x) from x and s. The kernels compute s by another sigmoid (gelu.cuh)
static inline HOST_DEVICE real gelu_slope_of(real x, real s) {
    return s + 2 * x * s * (1 - s) * GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
}

static inline double reference_gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static inline double reference_gelu_slope(double x) {
    double tanh_u = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    double du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + tanh_u) + 0.5 * x * (1 - tanh_u * tanh_u) * du;
}

static inline void reference_gelu_forward(floatX *out, const floatX *in, size_t n, Exec *ex) {
    (void)ex;
    for (size_t i = 0; i < n; i++) { out[i] = to_floatX((real)reference_gelu(to_real(in[i]))); }
}
