/*
Linear layers. weight is row-major, one row per output channel.
  forward   out (N,OC) = in (N,C) weight (OC,C)^T + bias (OC) + residual (N,OC)
  backward  dinp (N,C) = dout (N,OC) weight, times gelu'(gelu_pre);  dweight (OC,C) = or += dout^T in;
            dbias (OC) = or += column sums of dout;  with gelu_pre, dgelu_bias (C) = or += column sums of dinp
Types       activations and weights floatX; gradients real or bf16. dinp may be in.
Bytes       each operand once
FLOPs       2 N C OC forward, twice that backward
defines: reference_matmul_forward, reference_matmul_gelu_forward, reference_matmul_backward
*/
#pragma once
#include "llmc/gelu.h"
#include "llmc/gradient.h"

static inline void reference_matmul_forward(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                                            const floatX *residual, int N, int C, int OC, Exec *ex) {
    (void)ex;
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const floatX *x = in + (size_t)n * C;
        for (int o = 0; o < OC; o++) {
            const floatX *w = weight + (size_t)o * C;
            size_t at = (size_t)n * OC + o;
            double sum = bias ? to_real(bias[o]) : 0;
            for (int c = 0; c < C; c++) { sum += (double)to_real(x[c]) * to_real(w[c]); }
            if (residual) { sum += to_real(residual[at]); }
            out[at] = to_floatX((real)sum);
        }
    }
}

static inline void reference_matmul_gelu_forward(floatX *out, floatX *pre, const floatX *in, const floatX *weight,
                                                 const floatX *bias, int N, int C, int OC, Exec *ex) {
    reference_matmul_forward(pre, in, weight, bias, NULL, N, C, OC, ex);
    reference_gelu_forward(out, pre, (size_t)N * OC, ex);
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
                                            const floatX *gelu_pre, int N, int C, int OC) {
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        for (int c = 0; c < C; c++) {
            size_t at = (size_t)n * C + c;
            double sum = 0;
            for (int o = 0; o < OC; o++) {
                sum += (double)to_real(dout[(size_t)n * OC + o]) * to_real(weight[(size_t)o * C + c]);
            }
            dinp[at] = to_floatX((real)sum);
            if (gelu_pre) {  // a second rounding: gemm.h multiplies the stored product
                double slope = reference_gelu_slope(to_real(gelu_pre[at]));
                dinp[at] = to_floatX((real)(to_real(dinp[at]) * slope));
            }
        }
    }
}

// dinp is last, because it may overwrite in
static inline void reference_matmul_backward(floatX *dinp, Gradient dweight, Gradient dbias, Gradient dgelu_bias,
                                             const floatX *dout, const floatX *in, const floatX *weight,
                                             const floatX *gelu_pre, GradMode mode, int N, int C, int OC, Exec *ex) {
    (void)ex;
    if (dweight.at) { reference_weight_backward(dweight, dout, in, mode, N, C, OC); }
    if (dbias.at) { reference_bias_backward(dbias, dout, mode, N, OC); }
    if (dinp) { reference_input_backward(dinp, dout, weight, gelu_pre, N, C, OC); }
    if (dinp && gelu_pre && dgelu_bias.at) { reference_bias_backward(dgelu_bias, dinp, mode, N, C); }
}
