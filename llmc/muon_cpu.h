/*
Muon on the CPU: tiles of elements as in adamw_cpu.h, and the matmuls of matmul_cpu.h. The bits of momentum and weights
are those of the textbook in muon.h, which has the formulas.
defines: cpu_muon_momentum, cpu_muon_newton_schulz, cpu_muon_weights
*/
#pragma once
#include "llmc/adamw.h"
#include "llmc/adamw_cpu.h"
#include "llmc/common/floatx.h"
#include "llmc/global_norm_cpu.h"
#include "llmc/matmul_cpu.h"
#include "llmc/muon.h"
#include "llmc/ops.h"

// elements [start, start + n) of a range
static inline void muon_momentum_tile(floatX *update, const OptimizerState *state, Gradient grads, size_t start,
                                      size_t n, const UpdateRange *range, real grad_scale, AdamWScales s) {
    size_t i = range->offset + start;
    real m_buffer[ADAMW_TILE], g_buffer[ADAMW_TILE];
    real *m = tile_of_moment(state, false, i, n, m_buffer);
    const real *g = tile_of(grads.at, grads.dtype, i, n, g_buffer);
    floatX *u = update + start;
#pragma omp simd
    for (size_t e = 0; e < n; e++) { u[e] = to_floatX(muon_moment(&m[e], g[e] * grad_scale, s.momentum)); }
    tile_store_moment(state, false, i, n, m, range, s);
}

static inline void cpu_muon_momentum(floatX *update, const OptimizerState *state, Gradient grads,
                                     const real *norm_squared, const UpdateRange *range, const StepHyper *hyper,
                                     Exec *ex) {
    (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    AdamWScales scales = adamw_scales(hyper);
    real grad_scale = adamw_grad_scale(hyper->clip, *norm_squared);
#pragma omp parallel for schedule(static)
    for (size_t start = 0; start < range->count; start += ADAMW_TILE) {
        size_t left = range->count - start, n = left < ADAMW_TILE ? left : (size_t)ADAMW_TILE;
        muon_momentum_tile(update, state, grads, start, n, range, grad_scale, scales);
    }
}

// y (n) = x / |x|
static inline void muon_normalise(floatX *y, real *norm_squared, const floatX *x, size_t n, Exec *ex) {
    Gradient all = {(void *)x, DT_FLOATX};
    cpu_global_norm_squared(norm_squared, all, GRAD_SET, n, ex);
    real norm = REAL_MATH(sqrt)(*norm_squared) + MUON_EPSILON;
#pragma omp parallel for schedule(static)
    for (size_t start = 0; start < n; start += ADAMW_TILE) {
        size_t end = n - start < ADAMW_TILE ? n : start + ADAMW_TILE;
#pragma omp simd
        for (size_t i = start; i < end; i++) { y[i] = to_floatX(to_real(x[i]) / norm); }
    }
}

// poly (m,m), which holds A^2, = a I + b A + c A^2
static inline void muon_polynomial(floatX *poly, const floatX *a, int m) {
#pragma omp parallel for schedule(static)
    for (int i = 0; i < m; i++) {
        floatX *row = poly + (size_t)i * m;
        const floatX *a_row = a + (size_t)i * m;
#pragma omp simd
        for (int j = 0; j < m; j++) {
            row[j] = to_floatX(newton_schulz_polynomial(to_real(a_row[j]), to_real(row[j]), i == j));
        }
    }
}

static inline void cpu_muon_newton_schulz(floatX *x, floatX *scratch, int rows, int cols, Exec *ex) {
    NewtonSchulz ns = newton_schulz_open(x, scratch, rows, cols);
    Gradient a = {ns.a, DT_FLOATX};
    int m = ns.m;
    muon_normalise(ns.x[0], ns.norm, x, (size_t)rows * (size_t)cols, ex);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const floatX *from = ns.x[step % 2];
        floatX *to = ns.x[(step + 1) % 2];
        if (ns.tall) {  // X^T X
            cpu_matmul_backward(NULL, a, no_gradient, no_gradient, from, from, NULL, NULL, GRAD_SET, rows, m, m, ex);
        } else {  // X X^T
            cpu_matmul_forward(ns.a, from, from, NULL, NULL, m, cols, m, ex);
        }
        cpu_matmul_forward(ns.poly, ns.a, ns.a, NULL, NULL, m, m, m, ex);  // A is symmetric: A A^T is A^2
        muon_polynomial(ns.poly, ns.a, m);
        if (ns.tall) {  // X poly
            cpu_matmul_forward(to, from, ns.poly, NULL, NULL, rows, m, m, ex);
        } else {  // poly X
            cpu_matmul_backward(to, no_gradient, no_gradient, no_gradient, ns.poly, NULL, from, NULL, GRAD_SET, m, cols,
                                m, ex);
        }
    }
}

static inline void cpu_muon_weights(const OptimizerState *state, const floatX *update, const real *norm_squared,
                                    const UpdateRange *range, real scale, const StepHyper *hyper, Exec *ex) {
    (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    AdamWScales scales = adamw_scales(hyper);
    real keep = scales.keep, step = hyper->learning_rate * scale;
#pragma omp parallel for schedule(static)
    for (size_t start = 0; start < range->count; start += ADAMW_TILE) {
        size_t left = range->count - start, n = left < ADAMW_TILE ? left : (size_t)ADAMW_TILE;
        size_t i = range->offset + start;
        real buffer[ADAMW_TILE], *w = tile_of_weights(state, i, n, buffer);
        const floatX *x = update + start;
#pragma omp simd
        for (size_t e = 0; e < n; e++) { w[e] = muon_weight(w[e], to_real(x[e]), keep, step); }
        tile_store_weights(state, i, n, w, range, scales);
    }
}
