/*
Linear layers: the reference implementation and CPU backend. weight is row-major, one row per output channel.
  forward   out (N,OC) = in (N,C) weight (OC,C)^T + bias (OC) + residual (N,OC)
  backward  dinp (N,C) = dout (N,OC) weight, times gelu'(gelu_pre);  dweight (OC,C) = or += dout^T in;
            dbias (OC) = or += column sums of dout
Types       activations and weights floatX; gradients real or bf16. dinp may be in.
FLOPs       2 N C OC forward, twice that backward. Bytes: each operand once.
oneDNN does the GEMMs, without oneDNN a CBLAS, without both matmul_portable.h. A single row (decoding) is OC dot
products, at the speed of memory. Read matmul_row first: it is the formula for one row. The GEMMs compute the same for N
rows. With -f 2 the inputs of the GEMMs are rounded to bf16 first (Exec.rounded); sums stay fp32.
An operation opens one parallel region. All its threads call each team_ function, share the work and wait for the end.
defines: cpu_matmul_forward, cpu_matmul_gelu_forward, cpu_matmul_backward, cpu_params_changed, matmul_rounds_inputs,
         matmul_library
*/
#pragma once
#include "llmc/common/device.h"
#include "llmc/gelu.h"
#include "llmc/matmul_portable.h"
#include "llmc/matmul_cblas.h"
#include "llmc/matmul_onednn.h"
#include "llmc/common/vector_math.h"

// whether this build multiplies bf16 faster than fp32 on this CPU: the condition for -f 2
static inline bool matmul_rounds_inputs(void) {
#if defined(HAVE_ONEDNN) && defined(__AVX512BF16__) && !defined(PRECISION_BF16) && !defined(PRECISION_FP64)
    return true;
#else
    return false;
#endif
}

// the library of the GEMMs in this build, with its version
static inline const char *matmul_library(void) {
    const char *library = onednn_version() ? onednn_version() : cblas_version();
    return library ? library : "portable C";
}

// before a parallel region with GEMMs
static inline void matmul_open(Exec *ex) {
    onednn_open(ex);
    cblas_open();
}

static inline void team_multiply(Exec *ex, const Matmul *p) {
    bool fastest = ex->plain.level[PLAIN_MATMUL] == MATMUL_FASTEST;
    if (!fastest || !(onednn_multiply(ex, p) || cblas_multiply(p))) { gemm(p); }
}

enum { ROUNDING_BLOCK = 4096 };  // elements a thread rounds at a time

// out (n) = in (n), rounded to nearest even
static inline void team_round_to_bf16(bf16 *out, const floatX *in, size_t n) {
#pragma omp for schedule(static)
    for (size_t i = 0; i < n; i += ROUNDING_BLOCK) {
        round_to_bf16(out + i, in + i, n - i < ROUNDING_BLOCK ? n - i : (size_t)ROUNDING_BLOCK);
    }
}

// x (rows,cols) as a GEMM operand; with `copy`, rounded to bf16 there first
static inline Matrix team_operand(bf16 *copy, const floatX *x, size_t rows, size_t cols) {
    if (!copy) { return matrix(x, DT_FLOATX, cols, 1); }
    team_round_to_bf16(copy, x, rows * cols);
    return matrix(copy, DT_BF16, cols, 1);
}

// the weight (OC,C) as a GEMM operand; with -f 2, from the rounded copy of the parameters
static inline Matrix matmul_weight(const Exec *ex, const floatX *weight, size_t C) {
    const bf16 *rounded = ex->rounded.params;
    if (rounded) { return matrix(rounded + (weight - ex->rounded.source), DT_BF16, C, 1); }
    return matrix(weight, DT_FLOATX, C, 1);
}

static inline Matrix transposed(Matrix m) { return matrix(m.data, m.dtype, m.col, m.row); }

static inline void cpu_params_changed(const floatX *params, size_t n, Exec *ex) {
    if (!ex->rounded.params) { return; }
    ex->rounded.source = params;
#pragma omp parallel
    team_round_to_bf16(ex->rounded.params, params, n);
}

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

static inline void team_matmul(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                               const floatX *residual, int N, int C, int OC, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C, oc = (size_t)OC;
    Matrix x = team_operand(ex->rounded.in, in, n, c), w = transposed(matmul_weight(ex, weight, c));
    Matmul p = {matrix(out, DT_FLOATX, oc, 1), x, w, bias, residual, false, n, oc, c};
    team_multiply(ex, &p);
}

static inline void cpu_matmul_forward(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                                      const floatX *residual, int N, int C, int OC, Exec *ex) {
    if (N == 1) {
        matmul_row(out, in, weight, bias, residual, C, OC);
        return;
    }
    matmul_open(ex);
#pragma omp parallel
    team_matmul(out, in, weight, bias, residual, N, C, OC, ex);
}

static inline void cpu_matmul_gelu_forward(floatX *out, floatX *pre, const floatX *in, const floatX *weight,
                                           const floatX *bias, int N, int C, int OC, Exec *ex) {
    cpu_matmul_forward(pre, in, weight, bias, NULL, N, C, OC, ex);
    cpu_gelu_forward(out, pre, (size_t)N * OC, ex);
}

enum { BIAS_COLUMNS = 64 };  // a thread sums this many columns in registers

// dbias (OC) = or += column sums of dout (N,OC)
static inline void team_backward_bias(Gradient dbias, const floatX *dout, GradMode mode, int N, int OC) {
#pragma omp for schedule(static)
    for (int begin = 0; begin < OC; begin += BIAS_COLUMNS) {
        int width = OC - begin < BIAS_COLUMNS ? OC - begin : (int)BIAS_COLUMNS;
        real sum[BIAS_COLUMNS] = {0};
        for (int n = 0; n < N; n++) {
            const floatX *row = dout + (size_t)n * OC + begin;
#pragma omp simd
            for (int o = 0; o < width; o++) { sum[o] += to_real(row[o]); }
        }
        gradient_store(dbias, (size_t)begin, sum, (size_t)width, mode);
    }
}

// Weight and bias gradients first, since dinp may be in.
static inline void cpu_matmul_backward(floatX *dinp, Gradient dweight, Gradient dbias, Gradient dgelu_bias,
                                       const floatX *dout, const floatX *in, const floatX *weight,
                                       const floatX *gelu_pre, GradMode mode, int N, int C, int OC, Exec *ex) {
    size_t n = (size_t)N, c = (size_t)C, oc = (size_t)OC;
    matmul_open(ex);
#pragma omp parallel
    {
        Matrix dy = team_operand(ex->rounded.dout, dout, n, oc);
        if (dweight.at) {
            Matrix x = team_operand(ex->rounded.in, in, n, c), dw = matrix(dweight.at, dweight.dtype, c, 1);
            Matmul p = {dw, transposed(dy), x, NULL, NULL, mode == GRAD_ADD, oc, c, n};
            team_multiply(ex, &p);
        }
        if (dbias.at) { team_backward_bias(dbias, dout, mode, N, OC); }
        if (dinp) {
            Matrix dx = matrix(dinp, DT_FLOATX, c, 1), w = matmul_weight(ex, weight, c);
            Matmul p = {dx, dy, w, NULL, NULL, false, n, c, oc};
            team_multiply(ex, &p);
            if (gelu_pre) { team_gelu_backward(dinp, dinp, gelu_pre, n * c); }
            if (gelu_pre && dgelu_bias.at) { team_backward_bias(dgelu_bias, dinp, mode, N, C); }
        }
    }
}
