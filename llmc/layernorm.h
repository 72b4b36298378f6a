/*
LayerNorm over channels (Ba, Kiros, Hinton 2016), epsilon 1e-5.
  forward   mean = mean_c x,  rstd = 1 / sqrt(mean_c (x - mean)^2 + 1e-5),  y = (x - mean) rstd w + b
  backward  with n = (x - mean) rstd and g = dy w:
            dx += rstd (g - mean_c g - n mean_c(g n));  dw (+)= sum_rows dy n;  db (+)= sum_rows dy
layernorm_from_statistics computes y from saved mean and rstd by the same expression, so y has the forward's bits.
Shapes      x, y, dx, dy (N,C) and w, b (C) floatX; mean, rstd (N) real; dw, db (C) real or bf16. y may not be x.
Bytes       forward, from statistics 2NC floatX; backward 4NC floatX for dx, and 2NC more for dw and db on a CPU.
defines: cpu_layernorm_forward, cpu_layernorm_from_statistics, cpu_layernorm_backward
*/
#pragma once
#include "llmc/gradient.h"
#include "llmc/common/vectors.h"

#define LAYERNORM_EPSILON ((real)1e-5)

static inline void layernorm_row(floatX *out, const floatX *in, real mean, real rstd, const floatX *weight,
                                 const floatX *bias, int C) {
#pragma omp simd
    for (int c = 0; c < C; c++) {
        real normed = (to_real(in[c]) - mean) * rstd;
        out[c] = to_floatX(normed * to_real(weight[c]) + to_real(bias[c]));
    }
}

static inline void layernorm_statistics(real *mean, real *rstd, const floatX *in, int C) {
    real sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < C; c++) { sum += to_real(in[c]); }
    real m = sum / (real)C;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++) { squares += (to_real(in[c]) - m) * (to_real(in[c]) - m); }
    *mean = m;
    *rstd = 1 / REAL_MATH(sqrt)(squares / (real)C + LAYERNORM_EPSILON);
}

static inline void cpu_layernorm_forward(floatX *out, real *mean, real *rstd, const floatX *in, const floatX *weight,
                                         const floatX *bias, int N, int C, Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const floatX *x = in + (size_t)n * C;
        layernorm_statistics(&mean[n], &rstd[n], x, C);
        layernorm_row(out + (size_t)n * C, x, mean[n], rstd[n], weight, bias, C);
    }
}

static inline void cpu_layernorm_from_statistics(floatX *out, const floatX *in, const real *mean, const real *rstd,
                                                 const floatX *weight, const floatX *bias, int N, int C, Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        layernorm_row(out + (size_t)n * C, in + (size_t)n * C, mean[n], rstd[n], weight, bias, C);
    }
}

static inline void layernorm_backward_row(floatX *dinp, const floatX *dout, const floatX *in, const floatX *weight,
                                          real mean, real rstd, int C) {
    real sum_g = 0, sum_gn = 0;
#pragma omp simd reduction(+ : sum_g, sum_gn)
    for (int c = 0; c < C; c++) {
        real g = to_real(dout[c]) * to_real(weight[c]);
        sum_g += g;
        sum_gn += g * (to_real(in[c]) - mean) * rstd;
    }
    real mean_g = sum_g / (real)C, mean_gn = sum_gn / (real)C;
#pragma omp simd
    for (int c = 0; c < C; c++) {
        real g = to_real(dout[c]) * to_real(weight[c]);
        real normed = (to_real(in[c]) - mean) * rstd;
        dinp[c] = to_floatX(to_real(dinp[c]) + rstd * (g - mean_g - normed * mean_gn));
    }
}

enum { LAYERNORM_COLUMN_BLOCK = 32 };  // channels with column sums in a thread's registers

// dw, db (width) += columns [0, width) of dout and in, (N,C). Rows are added in order, so the sums do not depend on the
// number of threads. With a constant width the sums stay in registers.
ALWAYS_INLINE void layernorm_sum_columns(real *dw, real *db, const floatX *dout, const floatX *in, const real *mean,
                                         const real *rstd, int width, int N, int C) {
    for (int n = 0; n < N; n++) {
        const floatX *dy = dout + (size_t)n * C, *x = in + (size_t)n * C;
#pragma omp simd
        for (int c = 0; c < width; c++) {
            dw[c] += to_real(dy[c]) * (to_real(x[c]) - mean[n]) * rstd[n];
            db[c] += to_real(dy[c]);
        }
    }
}

// `width` columns of dweight and dbias, from column `begin` on
static inline void layernorm_backward_columns(Gradient dweight, Gradient dbias, const floatX *dout, const floatX *in,
                                              const real *mean, const real *rstd, GradMode mode, int begin, int width,
                                              int N, int C) {
    real dw[LAYERNORM_COLUMN_BLOCK] = {0}, db[LAYERNORM_COLUMN_BLOCK] = {0};
    if (width == LAYERNORM_COLUMN_BLOCK) {
        layernorm_sum_columns(dw, db, dout + begin, in + begin, mean, rstd, LAYERNORM_COLUMN_BLOCK, N, C);
    } else {
        layernorm_sum_columns(dw, db, dout + begin, in + begin, mean, rstd, width, N, C);
    }
    gradient_store(dweight, (size_t)begin, dw, (size_t)width, mode);
    gradient_store(dbias, (size_t)begin, db, (size_t)width, mode);
}

static inline void cpu_layernorm_backward(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout,
                                          const floatX *in, const floatX *weight, const real *mean, const real *rstd,
                                          GradMode mode, int N, int C, Exec *ex) {
    (void)ex;
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int n = 0; n < N; n++) {
            size_t row = (size_t)n * C;
            layernorm_backward_row(dinp + row, dout + row, in + row, weight, mean[n], rstd[n], C);
        }
#pragma omp for schedule(static)
        for (int begin = 0; begin < C; begin += LAYERNORM_COLUMN_BLOCK) {
            int width = C - begin < LAYERNORM_COLUMN_BLOCK ? C - begin : (int)LAYERNORM_COLUMN_BLOCK;
            layernorm_backward_columns(dweight, dbias, dout, in, mean, rstd, mode, begin, width, N, C);
        }
    }
}
