/*
Muon (Jordan 2024): orthogonalised momentum, for the matrices of transformer blocks. AdamW updates all other tensors.
  g = grad * min(1, clip / ||grads||)                            as in adamw.h
  m = mu m + g;  u = g + mu m                                    muon_momentum: Nesterov's momentum
  X = u / (|u| + 1e-7), |u| the Frobenius norm; five times       newton_schulz of parallel/orthogonalise.h
      A = X X^T;  X = (a I + b A + c A^2) X                      (a, b, c) = (3.4445, -4.7750, 2.0315)
  w = w (1 - lr decay) - lr 0.2 sqrt(max(rows, cols)) X          muon_weights
A step of Newton-Schulz replaces each singular value x of X by a x + b x^3 + c x^5. The constants raise small values
fast: after five steps, all above 0.002 are between 0.68 and 1.2, so all directions of u have about equal weight. The
factor 0.2 sqrt(max(rows, cols)) gives the step AdamW's size, about 0.2 lr an element, so AdamW's learning rate and
weight decay carry over (Liu et al., "Muon is scalable for LLM training", arXiv 2502.16982, equation 4).
A = X^T X;  X = X (a I + b A + c A^2) gives the same numbers, and is cheaper with more rows than columns:
split_rows of MuonMatrix (shapes/update_buckets.h) chooses.
Rounding    u, A, A^2, the polynomial and each X are rounded to floatX; sums are real. The matmuls' inputs are rounded
            as the model's (-f). m and w: as in adamw.h
Storage     m as AdamW's, and no v
Bytes       an element with fp32 state: 16 for momentum (m twice, g, u), 12 for weights (w twice, X). Newton-Schulz is
            bound by arithmetic: 300 C^3 FLOPs a layer
*/
#pragma once
#include "llmc/adamw.h"
#include "llmc/common/floatx.h"
#include "llmc/common/rng.h"
#include "llmc/gradient.h"
#include "llmc/ops.h"

// the factor on the learning rate for a matrix
static inline real muon_scale(int rows, int cols) { return (real)(0.2 * sqrt((double)(rows > cols ? rows : cols))); }

// u of a scaled gradient g; m is updated in place
static inline HOST_DEVICE real muon_moment(real *m, real g, real momentum) {
    *m = REAL_MATH(fma)(momentum, *m, g);
    return REAL_MATH(fma)(momentum, *m, g);
}

// the new weight; keep: 1 - lr decay; step: lr scale
static inline HOST_DEVICE real muon_weight(real w, real x, real keep, real step) {
    return REAL_MATH(fma)(keep, w, -(step * x));
}

// an element of X from one of u
static inline HOST_DEVICE real muon_normal(real x, real norm_squared) {
    return x / (REAL_MATH(sqrt)(norm_squared) + (real)1e-7);
}

// an element of a I + b A + c A^2
static inline HOST_DEVICE real muon_polynomial_term(real a, real a_squared, bool diagonal) {
    real linear = REAL_MATH(fma)((real)-4.7750, a, diagonal ? (real)3.4445 : 0);
    return REAL_MATH(fma)((real)2.0315, a_squared, linear);
}

// ---- the reference

static inline void reference_muon_momentum(floatX *update, const OptimizerState *state, Gradient grads,
                                           const real *norm_squared, const UpdateRange *range, size_t elements,
                                           const StepHyper *hyper, Exec *ex) {
    (void)elements, (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    real grad_scale = adamw_grad_scale(hyper->clip, *norm_squared);
    for (size_t start = 0; start < range->count; start += MOMENT_BLOCK) {
        size_t left = range->count - start, n = left < MOMENT_BLOCK ? left : (size_t)MOMENT_BLOCK;
        size_t i = range->offset + start;
        real m[MOMENT_BLOCK];
        uint16_t random_bits[MOMENT_BLOCK];
        reference_moment(m, state, false, i, n);
        for (size_t e = 0; e < n; e++) {
            real g = gradient_value(grads, i + e) * grad_scale;
            update[start + e] = to_floatX(muon_moment(&m[e], g, hyper->momentum));
            random_bits[e] = (uint16_t)reference_rounding_bits(range, start + e, ROUND_M, hyper);
        }
        reference_moment_store(state, false, i, n, m, random_bits);
    }
}

static inline void reference_muon_normalise(floatX *out, const floatX *in, const real *norm_squared, size_t n,
                                            Exec *ex) {
    (void)ex;
    for (size_t i = 0; i < n; i++) { out[i] = to_floatX(muon_normal(to_real(in[i]), *norm_squared)); }
}

static inline void reference_muon_polynomial(floatX *b, const floatX *a, int m, Exec *ex) {
    (void)ex;
    for (int i = 0; i < m * m; i++) {
        b[i] = to_floatX(muon_polynomial_term(to_real(a[i]), to_real(b[i]), i / m == i % m));
    }
}

static inline void reference_muon_weights(const OptimizerState *state, const floatX *update, const real *norm_squared,
                                          const UpdateRange *range, size_t elements, real scale, const StepHyper *hyper,
                                          Exec *ex) {
    (void)elements, (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    real keep = step_scales(hyper).keep, step = hyper->learning_rate * scale;
    for (size_t e = 0; e < range->count; e++) {
        size_t i = range->offset + e;
        real w = muon_weight(reference_weight(state, i), to_real(update[e]), keep, step);
        reference_weight_store(state, i, w, reference_rounding_bits(range, e, ROUND_WEIGHT, hyper));
    }
}

// ---- Newton-Schulz

enum { NEWTON_SCHULZ_STEPS = 5 };
