// The activation function on the CPU. GELU's sigmoid has a fast exponential.
#pragma once
#include "llmc/activation.h"
#include "llmc/common/floatx.h"
#include "llmc/common/vectors.h"

static inline real gelu_sigmoid(real x) { return 1 / (1 + fast_exp(-2 * GELU_SCALE * (x + GELU_CUBIC * x * x * x))); }

static inline void activation_row(floatX *out, const floatX *in, ActivationFunction function, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        real x = to_real(in[i]);
        out[i] = to_floatX(activation_value(function, x, gelu_sigmoid(x)));
    }
}

// dinp (n) = dout (n) times the slope at pre (n), in place or not
static inline void activation_backward_row(floatX *dinp, const floatX *dout, const floatX *pre,
                                           ActivationFunction function, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        real x = to_real(pre[i]);
        dinp[i] = to_floatX(to_real(dout[i]) * activation_slope(function, x, gelu_sigmoid(x)));
    }
}

enum { ACTIVATION_BLOCK = 4096 };  // elements that a thread computes at a time

static inline void cpu_activation_forward(floatX *out, const floatX *in, ActivationFunction function, size_t n,
                                          Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += ACTIVATION_BLOCK) {
        activation_row(out + i, in + i, function, n - i < ACTIVATION_BLOCK ? n - i : (size_t)ACTIVATION_BLOCK);
    }
}
