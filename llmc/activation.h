/*
The activation function between the two matmuls of the MLP. GPT-2's is GELU, in the tanh form (Hendrycks, Gimpel 2016).
  u(x)     = sqrt(2/pi) (x + 0.044715 x^3)
  gelu(x)  = 0.5 x (1 + tanh u)
  gelu'(x) = 0.5 (1 + tanh u) + 0.5 x (1 - tanh^2 u) u'(x),  u'(x) = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
Shapes      out, in (n) floatX. out may not be in.
Bytes       forward 2n floatX: each element is read once and written once.
The backward is part of matmul_backward (matmul.h), which multiplies dinp by the slope.
The fast versions use 0.5 (1 + tanh u) = s = 1 / (1 + exp(-2u)), one exponential:
  gelu(x) = x s;  gelu'(x) = s + 2 x s (1 - s) u'(x)
CONTRIBUTING.md, "Change the architecture", says how to add another activation.
*/
#pragma once
#include "llmc/ops.h"

// the model's; config.json of a checkpoint names it
static const ActivationFunction MLP_ACTIVATION = GELU;

// By ActivationFunction: the name in cuBLASLt's autotune cache, then those of the same function in transformers. The
// first of these goes into config.json.
enum { MAX_ACTIVATION_NAMES = 6 };
static const char *const activation_names[][MAX_ACTIVATION_NAMES] = {
    {"none", "linear"}, {"gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh"}};

#define GELU_SCALE ((real)0.7978845608028654)  // sqrt(2/pi)
#define GELU_CUBIC ((real)0.044715)

// The fast versions. s is GELU's: the CPU and the GPU each have their own sigmoid. Choose another function by `?:`: of
// a loop with a branch in it, gcc makes no vectors.
static inline HOST_DEVICE real activation_value(ActivationFunction function, real x, real s) {
    (void)function;  // GELU is the only one
    return x * s;
}

static inline HOST_DEVICE real activation_slope(ActivationFunction function, real x, real s) {
    (void)function;
    return s + 2 * x * s * (1 - s) * GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x);
}

// the reference, in double
static inline double reference_activation(ActivationFunction function, double x) {
    (void)function;
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static inline double reference_activation_slope(ActivationFunction function, double x) {
    (void)function;
    double tanh_u = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    double du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + tanh_u) + 0.5 * x * (1 - tanh_u * tanh_u) * du;
}

static inline void reference_activation_forward(floatX *out, const floatX *in, ActivationFunction function, size_t n,
                                                Exec *ex) {
    (void)ex;
    for (size_t i = 0; i < n; i++) { out[i] = to_floatX((real)reference_activation(function, to_real(in[i]))); }
}
