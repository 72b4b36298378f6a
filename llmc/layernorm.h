/*
LayerNorm over channels (Ba, Kiros, Hinton 2016), epsilon 1e-5.
  forward   mean = mean_c x,  rstd = 1 / sqrt(mean_c (x - mean)^2 + 1e-5),  y = (x - mean) rstd w + b
  backward  with n = (x - mean) rstd and g = dy w:
            dx += rstd (g - mean_c g - n mean_c(g n));  dw (+)= sum_rows dy n;  db (+)= sum_rows dy
layernorm_from_statistics computes y from saved mean and rstd by the same expression, so y has the forward's bits.
Shapes      x, y, dx, dy (N,C) and w, b (C) floatX; mean, rstd (N) real; dw, db (C) real or bf16. y may not be x.
            dx may not be dy or x: threads read dy and x for dw and db while others write dx.
Bytes       forward, from statistics 2NC floatX; backward 4NC floatX for dx, and 2NC more for dw and db on a CPU.
*/
#pragma once
#include "llmc/gradient.h"

#define LAYERNORM_EPSILON ((real)1e-5)

static inline void reference_layernorm_from_statistics(floatX *out, const floatX *in, const real *mean,
                                                       const real *rstd, const floatX *weight, const floatX *bias,
                                                       int N, int C, Exec *ex) {
    (void)ex;
    for (int n = 0; n < N; n++) {
        for (int c = 0; c < C; c++) {
            size_t at = (size_t)n * C + c;
            real normed = (to_real(in[at]) - mean[n]) * rstd[n];
            out[at] = to_floatX(normed * to_real(weight[c]) + to_real(bias[c]));
        }
    }
}

static inline void reference_layernorm_forward(floatX *out, real *mean, real *rstd, const floatX *in,
                                               const floatX *weight, const floatX *bias, int N, int C, Exec *ex) {
    for (int n = 0; n < N; n++) {
        const floatX *x = in + (size_t)n * C;
        double sum = 0, squares = 0;
        for (int c = 0; c < C; c++) { sum += to_real(x[c]); }
        for (int c = 0; c < C; c++) { squares += pow(to_real(x[c]) - sum / C, 2); }
        mean[n] = (real)(sum / C);
        rstd[n] = (real)(1 / sqrt(squares / C + LAYERNORM_EPSILON));
    }
    reference_layernorm_from_statistics(out, in, mean, rstd, weight, bias, N, C, ex);
}

static inline void reference_layernorm_backward(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout,
                                                const floatX *in, const floatX *weight, const real *mean,
                                                const real *rstd, GradMode mode, int N, int C, Exec *ex) {
    (void)ex;
    for (int n = 0; n < N; n++) {
        const floatX *x = in + (size_t)n * C, *dy = dout + (size_t)n * C;
        floatX *dx = dinp + (size_t)n * C;
        double sum_g = 0, sum_gn = 0;
        for (int c = 0; c < C; c++) {
            double g = (double)to_real(dy[c]) * to_real(weight[c]), normed = (to_real(x[c]) - mean[n]) * rstd[n];
            sum_g += g;
            sum_gn += g * normed;
        }
        for (int c = 0; c < C; c++) {
            double g = (double)to_real(dy[c]) * to_real(weight[c]), normed = (to_real(x[c]) - mean[n]) * rstd[n];
            dx[c] = to_floatX((real)(to_real(dx[c]) + rstd[n] * (g - sum_g / C - normed * sum_gn / C)));
        }
    }
    for (int c = 0; c < C; c++) {
        double dw = 0, db = 0;
        for (int n = 0; n < N; n++) {
            size_t at = (size_t)n * C + c;
            dw += (double)to_real(dout[at]) * (to_real(in[at]) - mean[n]) * rstd[n];
            db += to_real(dout[at]);
        }
        gradient_set(dweight, (size_t)c, dw, mode);
        gradient_set(dbias, (size_t)c, db, mode);
    }
}
