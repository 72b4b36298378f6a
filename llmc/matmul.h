/*
Linear layers: y = x W^T + b with W (OC,C) row-major.
  forward   out (N,OC) = in (N,C) weight^T + bias + residual
  backward  dinp = dout weight [gelu'(pre)];  dweight (+)= dout^T in;  dbias (+)= column sums of dout
FLOPs       2 N C OC forward, twice that backward.
The products go through oneDNN where it is there, else through matmul_portable.h; a single row (decoding) through dot products at
the speed of memory. With -f 2 the products' inputs are rounded to bf16 first (Exec.rounded); sums stay fp32.
An operation starts the threads once; the functions that say "team" are called by all of them, share the work between
them and end when all of it is done.
defines: cpu_matmul_forward, cpu_matmul_gelu_forward, cpu_matmul_backward, cpu_params_changed, matmul_rounds_inputs
*/
#pragma once
#include "llmc/common/device.h"
#include "llmc/gelu.h"
#include "llmc/matmul_portable.h"
#include "llmc/matmul_onednn.h"
#include "llmc/common/vector_math.h"

// whether this build on this CPU multiplies bf16 faster than fp32, so that -f 2 pays
static inline bool matmul_rounds_inputs(void) {
#if defined(HAVE_ONEDNN) && defined(__AVX512BF16__) && !defined(PRECISION_BF16) && !defined(PRECISION_FP64)
    return true;
#else
    return false;
#endif
}

// a team's product, as gemm()
static inline void multiply(Exec *ex, Matrix c, Matrix a, Matrix b, const MatmulEpilogue *add, size_t M, size_t N,
                            size_t K) {
    if (!onednn_multiply(ex, c, a, b, add, M, N, K)) { gemm(c, a, b, add, M, N, K); }
}

enum { ROUNDING_BLOCK = 4096 };  // elements a thread rounds at a time

// out (n) = in (n) rounded to nearest even, by a team
static inline void team_round_to_bf16(bf16 *out, const floatX *in, size_t n) {
#pragma omp for schedule(static)
    for (size_t i = 0; i < n; i += ROUNDING_BLOCK) {
        round_to_bf16(out + i, in + i, n - i < ROUNDING_BLOCK ? n - i : (size_t)ROUNDING_BLOCK);
    }
}

// a product's input as it is stored, or its rounded copy, which a team writes to `copy`
static inline Matrix matmul_operand(bf16 *copy, const floatX *x, size_t rows, size_t cols) {
    if (!copy) { return matrix(x, DT_FLOATX, cols, 1); }
    team_round_to_bf16(copy, x, rows * cols);
    return matrix(copy, DT_BF16, cols, 1);
}

// the weight as it is stored, or where -f 2 mirrors the parameters, its place in the mirror
static inline Matrix matmul_weight(const Exec *ex, const floatX *weight, size_t C) {
    const RoundedCopies *r = &ex->rounded;
    if (r->params) { return matrix(r->params + (weight - r->source), DT_BF16, C, 1); }
    return matrix(weight, DT_FLOATX, C, 1);
}

static inline Matrix transposed(Matrix m) { return matrix(m.data, m.dtype, m.col, m.row); }

static inline void cpu_params_changed(const floatX *params, size_t n, Exec *ex) {
    if (!ex->rounded.params) { return; }
    ex->rounded.source = params;
#pragma omp parallel
    team_round_to_bf16(ex->rounded.params, params, n);
}

// one row: out (OC) = in (C) . weight (OC,C) rows + bias + residual. It reads the weights once, at the speed of memory
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

// by a team
static inline void matmul_rows(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                               const floatX *residual, int N, int C, int OC, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C, oc = (size_t)OC;
    MatmulEpilogue add = {bias, residual, false};
    Matrix x = matmul_operand(ex->rounded.in, in, n, c);
    multiply(ex, matrix(out, DT_FLOATX, oc, 1), x, transposed(matmul_weight(ex, weight, c)), &add, n, oc, c);
}

static inline void cpu_matmul_forward(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                                      const floatX *residual, int N, int C, int OC, Exec *ex) {
    if (N == 1) {
        matmul_row(out, in, weight, bias, residual, C, OC);
        return;
    }
    onednn_open(ex);
#pragma omp parallel
    matmul_rows(out, in, weight, bias, residual, N, C, OC, ex);
}

static inline void cpu_matmul_gelu_forward(floatX *out, floatX *pre, const floatX *in, const floatX *weight,
                                           const floatX *bias, int N, int C, int OC, Exec *ex) {
    cpu_matmul_forward(pre, in, weight, bias, NULL, N, C, OC, ex);
    cpu_gelu_forward(out, pre, (size_t)N * OC, ex);
}

enum { BIAS_SLICE = 64 };  // columns whose sums a thread holds in registers

// by a team
static inline void matmul_backward_bias(Gradient dbias, const floatX *dout, GradMode mode, int N, int OC) {
#pragma omp for schedule(static)
    for (int begin = 0; begin < OC; begin += BIAS_SLICE) {
        int width = OC - begin < BIAS_SLICE ? OC - begin : (int)BIAS_SLICE;
        real sum[BIAS_SLICE] = {0};
        for (int n = 0; n < N; n++) {
            const floatX *row = dout + (size_t)n * OC + begin;
#pragma omp simd
            for (int o = 0; o < width; o++) { sum[o] += to_real(row[o]); }
        }
        gradient_store(dbias, (size_t)begin, sum, (size_t)width, mode);
    }
}

// weight and bias gradients first, since dinp may be in
static inline void cpu_matmul_backward(floatX *dinp, Gradient dweight, Gradient dbias, Gradient dgelu_bias,
                                       const floatX *dout, const floatX *in, const floatX *weight,
                                       const floatX *gelu_pre, GradMode mode, int N, int C, int OC, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C, oc = (size_t)OC;
    onednn_open(ex);
#pragma omp parallel
    {
        Matrix dy = matmul_operand(ex->rounded.dout, dout, n, oc);
        if (dweight.at) {
            MatmulEpilogue add = {NULL, NULL, mode == GRAD_ADD};
            Matrix x = matmul_operand(ex->rounded.in, in, n, c);
            multiply(ex, matrix(dweight.at, dweight.dtype, c, 1), transposed(dy), x, &add, oc, c, n);
        }
        if (dbias.at) { matmul_backward_bias(dbias, dout, mode, N, OC); }
        if (dinp) {
            MatmulEpilogue nothing = {NULL, NULL, false};
            multiply(ex, matrix(dinp, DT_FLOATX, c, 1), dy, matmul_weight(ex, weight, c), &nothing, n, c, oc);
            if (gelu_pre) { team_gelu_backward(dinp, dinp, gelu_pre, n * c); }
            if (gelu_pre && dgelu_bias.at) { matmul_backward_bias(dgelu_bias, dinp, mode, N, C); }
        }
    }
}
