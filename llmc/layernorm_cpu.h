// LayerNorm on the CPU. Each thread takes whole rows; for dw and db it takes columns, and adds the rows in order.
#pragma once
#include "llmc/common/floatx.h"
#include "llmc/common/vectors.h"
#include "llmc/gradient_cpu.h"
#include "llmc/layernorm.h"
#include "llmc/ops.h"

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

// dw, db (LAYERNORM_COLUMN_BLOCK) = sums of these columns of dout and in, (N,C)
static inline void layernorm_sum_columns(real *dw, real *db, const floatX *dout, const floatX *in, const real *mean,
                                         const real *rstd, int N, int C) {
    enum { VECTORS = LAYERNORM_COLUMN_BLOCK / VECTOR_LANES };
    vec sum_w[VECTORS] = {{0}}, sum_b[VECTORS] = {{0}};
    for (int n = 0; n < N; n++) {
        UNROLL_ALL
        for (int j = 0; j < VECTORS; j++) {
            size_t at = (size_t)n * C + j * VECTOR_LANES;
            vec dy = vec_of(dout + at), x = vec_of(in + at);
            sum_w[j] += dy * (x - mean[n]) * rstd[n];
            sum_b[j] += dy;
        }
    }
    UNROLL_ALL
    for (int j = 0; j < VECTORS; j++) {
        vec_store(dw + j * VECTOR_LANES, sum_w[j]);
        vec_store(db + j * VECTOR_LANES, sum_b[j]);
    }
}

// `width` columns of dweight and dbias, from column `begin` on. Rows are added in order, so the sums do not depend on
// the number of threads.
static inline void layernorm_backward_columns(Gradient dweight, Gradient dbias, const floatX *dout, const floatX *in,
                                              const real *mean, const real *rstd, GradMode mode, int begin, int width,
                                              int N, int C) {
    real dw[LAYERNORM_COLUMN_BLOCK] = {0}, db[LAYERNORM_COLUMN_BLOCK] = {0};
    if (width == LAYERNORM_COLUMN_BLOCK) { layernorm_sum_columns(dw, db, dout + begin, in + begin, mean, rstd, N, C); }
    for (int c = 0; width < LAYERNORM_COLUMN_BLOCK && c < width; c++) {
        for (int n = 0; n < N; n++) {
            size_t at = (size_t)n * C + begin + c;
            dw[c] += to_real(dout[at]) * (to_real(in[at]) - mean[n]) * rstd[n];
            db[c] += to_real(dout[at]);
        }
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
