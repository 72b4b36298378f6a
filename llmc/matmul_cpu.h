/*
Linear layers on the CPU. gemm.h does the GEMMs. A single row (decoding) is OC dot products, at the speed of memory.
With -f 2 the inputs of the GEMMs are rounded to bf16 first (Exec.bf16_inputs); sums stay fp32.
An operation opens one parallel region. All its threads call each team_ function, share the work and wait for the end.
*/
#pragma once
#include "llmc/common/device.h"
#include "llmc/common/vectors.h"
#include "llmc/gemm.h"
#include "llmc/gradient_cpu.h"
#include "llmc/matmul.h"
#include "llmc/ops.h"

// x (rows,cols), row-major
static inline Matrix operand(const floatX *x, size_t cols) { return matrix(x, DT_FLOATX, cols, 1); }

// One row: out (OC) = weight (OC,C) in (C) + bias + residual. Bound by reading the weight once.
static inline void matmul_row(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                              const floatX *residual, int C, int OC) {
#pragma omp parallel for schedule(static)
    for (int o = 0; o < OC; o++) {
        const floatX *w = weight + (size_t)o * C;
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < C; c++) { sum += to_real(in[c]) * to_real(w[c]); }
        if (bias) { sum += to_real(bias[o]); }
        if (residual) { sum += to_real(residual[o]); }
        out[o] = to_floatX(sum);
    }
}

static inline void cpu_matmul_forward(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                                      const floatX *residual, Activation activation, int N, int C, int OC, Exec *ex) {
    if (N == 1 && !activation.pre) {
        matmul_row(out, in, weight, bias, residual, C, OC);
        return;
    }
    size_t n = (size_t)N, c = (size_t)C, oc = (size_t)OC;
    Matmul p = {.c = operand(activation.pre ? activation.pre : out, oc),
                .a = operand(in, c),
                .b = transposed(operand(weight, c)),
                .bias = bias,
                .residual = residual,
                .activated = activation.pre ? out : NULL,
                .function = activation.function,
                .bf16_inputs = ex->bf16_inputs,
                .M = n,
                .N = oc,
                .K = c};
#pragma omp parallel
    gemm(&p);
}

enum { BIAS_COLUMNS = 64 };  // a thread sums this many columns in registers

// sum (BIAS_COLUMNS) = sums of these columns of dout (N,OC)
static inline void bias_sum_columns(real *sum, const floatX *dout, int N, int OC) {
    enum { VECTORS = BIAS_COLUMNS / VECTOR_LANES };
    vec sums[VECTORS] = {{0}};
    for (int n = 0; n < N; n++) {
        UNROLL_ALL
        for (int j = 0; j < VECTORS; j++) { sums[j] += vec_of(dout + (size_t)n * OC + j * VECTOR_LANES); }
    }
    UNROLL_ALL
    for (int j = 0; j < VECTORS; j++) { vec_store(sum + j * VECTOR_LANES, sums[j]); }
}

// dbias (OC) = or += column sums of dout (N,OC)
static inline void team_backward_bias(Gradient dbias, const floatX *dout, GradMode mode, int N, int OC) {
#pragma omp for schedule(static)
    for (int begin = 0; begin < OC; begin += BIAS_COLUMNS) {
        int width = OC - begin < BIAS_COLUMNS ? OC - begin : (int)BIAS_COLUMNS;
        real sum[BIAS_COLUMNS] = {0};
        if (width == BIAS_COLUMNS) { bias_sum_columns(sum, dout + begin, N, OC); }
        for (int o = 0; width < BIAS_COLUMNS && o < width; o++) {
            for (int n = 0; n < N; n++) { sum[o] += to_real(dout[(size_t)n * OC + begin + o]); }
        }
        gradient_store(dbias, (size_t)begin, sum, (size_t)width, mode);
    }
}

// Weight and bias gradients first, since dinp may be in.
static inline void cpu_matmul_backward(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout,
                                       const floatX *in, const floatX *weight, Activation activation, GradMode mode,
                                       int N, int C, int OC, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C, oc = (size_t)OC;
    Matrix dy = operand(dout, oc);
    Matmul dw = {.c = matrix(dweight.at, dweight.dtype, c, 1),
                 .a = transposed(dy),
                 .b = operand(in, c),
                 .accumulate = mode == GRAD_ADD,
                 .bf16_inputs = ex->bf16_inputs,
                 .M = oc,
                 .N = c,
                 .K = n};
    Matmul dx = {.c = operand(dinp, c),
                 .a = dy,
                 .b = operand(weight, c),
                 .pre = activation.pre,
                 .function = activation.function,
                 .bf16_inputs = ex->bf16_inputs,
                 .M = n,
                 .N = c,
                 .K = oc};
#pragma omp parallel
    {
        if (dweight.at) { gemm(&dw); }
        if (dbias.at) { team_backward_bias(dbias, dout, mode, N, OC); }
        if (dinp) { gemm(&dx); }
        if (dinp && activation.dbias.at) { team_backward_bias(activation.dbias, dinp, mode, N, C); }
    }
}
