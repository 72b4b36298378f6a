/*
Linear layers. weight is row-major, one row per output channel.
  forward   out (N,OC) = function(pre),  pre (N,OC) = in (N,C) weight (OC,C)^T + bias (OC) + residual (N,OC)
  backward  dinp (N,C) = dout (N,OC) weight, times the slope at pre (N,C) of the activation whose output is `in`;
            dweight (OC,C) = or += dout^T in;  dbias (OC) = or += column sums of dout;
            activation.dbias (C) = or += column sums of dinp
Without an activation, function(x) is x and nothing is written to pre.
Types       activations and weights floatX; gradients real or bf16. dinp may be in.
Bytes       each operand once
FLOPs       2 N C OC forward, twice that backward
*/
#pragma once
#include "llmc/activation.h"
#include "llmc/gradient.h"

static inline void reference_matmul_forward(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                                            const floatX *residual, Activation activation, int N, int C, int OC,
                                            Exec *ex) {
    floatX *sums = activation.pre ? activation.pre : out;
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX *x = in + (size_t)n * C;
        for (int o = 0; o < OC; o++) {
            const floatX *w = weight + (size_t)o * C;
            size_t at = (size_t)n * OC + o;
            double sum = bias ? to_real(bias[o]) : 0;
            for (int c = 0; c < C; c++) { sum += (double)to_real(x[c]) * to_real(w[c]); }
            if (residual) { sum += to_real(residual[at]); }
            sums[at] = to_floatX((real)sum);
        }
    }
    if (activation.pre) { reference_activation_forward(out, sums, activation.function, (size_t)N * OC, ex); }
}

// dbias (OC) (+)= column sums of dout (N,OC)
static inline void reference_bias_backward(Gradient dbias, const floatX *dout, GradMode mode, int N, int OC) {
    for (int o = 0; o < OC; o++) {
        double sum = 0;
        for (int n = 0; n < N; n++) { sum += to_real(dout[(size_t)n * OC + o]); }
        gradient_set(dbias, (size_t)o, sum, mode);
    }
}

static inline void reference_weight_backward(Gradient dweight, const floatX *dout, const floatX *in, GradMode mode,
                                             int N, int C, int OC) {
#pragma omp parallel for
    for (int o = 0; o < OC; o++) {
        for (int c = 0; c < C; c++) {
            double sum = 0;
            for (int n = 0; n < N; n++) {
                sum += (double)to_real(dout[(size_t)n * OC + o]) * to_real(in[(size_t)n * C + c]);
            }
            gradient_set(dweight, (size_t)o * C + c, sum, mode);
        }
    }
}

static inline void reference_input_backward(floatX *dinp, const floatX *dout, const floatX *weight,
                                            Activation activation, int N, int C, int OC) {
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        for (int c = 0; c < C; c++) {
            size_t at = (size_t)n * C + c;
            double sum = 0;
            for (int o = 0; o < OC; o++) {
                sum += (double)to_real(dout[(size_t)n * OC + o]) * to_real(weight[(size_t)o * C + c]);
            }
            dinp[at] = to_floatX((real)sum);
            if (activation.pre) {  // a second rounding: gemm.h multiplies the stored product
                double slope = reference_activation_slope(activation.function, to_real(activation.pre[at]));
                dinp[at] = to_floatX((real)(to_real(dinp[at]) * slope));
            }
        }
    }
}

// dinp is last, because it may overwrite in
static inline void reference_matmul_backward(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout,
                                             const floatX *in, const floatX *weight, Activation activation,
                                             GradMode mode, int N, int C, int OC, Exec *ex) {
    (void)ex;
    if (dweight.at) { reference_weight_backward(dweight, dout, in, mode, N, C, OC); }
    if (dbias.at) { reference_bias_backward(dbias, dout, mode, N, OC); }
    if (dinp) { reference_input_backward(dinp, dout, weight, activation, N, C, OC); }
    if (dinp && activation.dbias.at) { reference_bias_backward(activation.dbias, dinp, mode, N, C); }
}
