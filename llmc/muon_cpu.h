/*
Muon on the CPU, in tiles of elements as adamw_cpu.h. The bits are those of the reference in muon.h, which has the
formulas.
*/
#pragma once
#include "llmc/adamw.h"
#include "llmc/adamw_cpu.h"
#include "llmc/common/floatx.h"
#include "llmc/muon.h"
#include "llmc/ops.h"

static inline void cpu_muon_momentum(floatX *update, const OptimizerState *state, Gradient grads,
                                     const real *norm_squared, const UpdateRange *range, size_t elements,
                                     const StepHyper *hyper, Exec *ex) {
    (void)elements, (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    StepScales s = step_scales(hyper);
    real grad_scale = adamw_grad_scale(hyper->clip, *norm_squared);
#pragma omp parallel for schedule(static)
    for (size_t start = 0; start < range->count; start += ADAMW_TILE) {
        size_t n = tile_size(start, range->count, ADAMW_TILE), i = range->offset + start;
        real m_buffer[ADAMW_TILE], g_buffer[ADAMW_TILE], *m = tile_of_moment(state, false, i, n, m_buffer);
        const real *g = tile_of(grads.at, grads.dtype, i, n, g_buffer);
        floatX *u = update + start;
#pragma omp simd
        for (size_t e = 0; e < n; e++) { u[e] = to_floatX(muon_moment(&m[e], g[e] * grad_scale, s.momentum)); }
        tile_store_moment(state, false, i, n, m, range, s);
    }
}

static inline void cpu_muon_normalise(floatX *out, const floatX *in, const real *norm_squared, size_t n, Exec *ex) {
    (void)ex;
    real squared = *norm_squared;
#pragma omp parallel for schedule(static)
    for (size_t start = 0; start < n; start += ADAMW_TILE) {
        size_t end = start + tile_size(start, n, ADAMW_TILE);
#pragma omp simd
        for (size_t i = start; i < end; i++) { out[i] = to_floatX(muon_normal(to_real(in[i]), squared)); }
    }
}

static inline void cpu_muon_polynomial(floatX *b, const floatX *a, int m, Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < m; i++) {
        size_t row = (size_t)i * (size_t)m;
#pragma omp simd
        for (int j = 0; j < m; j++) {
            b[row + j] = to_floatX(muon_polynomial_term(to_real(a[row + j]), to_real(b[row + j]), i == j));
        }
    }
}

static inline void cpu_muon_weights(const OptimizerState *state, const floatX *update, const real *norm_squared,
                                    const UpdateRange *range, size_t elements, real scale, const StepHyper *hyper,
                                    Exec *ex) {
    (void)elements, (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    StepScales s = step_scales(hyper);
    real keep = s.keep, step = hyper->learning_rate * scale;
#pragma omp parallel for schedule(static)
    for (size_t start = 0; start < range->count; start += ADAMW_TILE) {
        size_t n = tile_size(start, range->count, ADAMW_TILE), i = range->offset + start;
        real buffer[ADAMW_TILE], *w = tile_of_weights(state, i, n, buffer);
        const floatX *x = update + start;
#pragma omp simd
        for (size_t e = 0; e < n; e++) { w[e] = muon_weight(w[e], to_real(x[e]), keep, step); }
        tile_store_weights(state, i, n, w, range, s);
    }
}
