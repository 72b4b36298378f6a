/*
Muon (Jordan 2024): momentum, orthogonalised, for the matrices of transformer blocks. AdamW updates all other tensors.
  g = grad * min(1, clip / ||grads||)                            as in adamw.h
  m = mu m + g;  u = g + mu m                                    muon_momentum: Nesterov's momentum
  X = u / (|u| + 1e-7), |u| the Frobenius norm; five times       newton_schulz
      A = X X^T;  X = (a I + b A + c A^2) X                      (a, b, c) = (3.4445, -4.7750, 2.0315)
  w = w (1 - lr decay) - lr 0.2 sqrt(max(rows, cols)) X          muon_weights
A step of Newton-Schulz replaces each singular value x of X by a x + b x^3 + c x^5. The constants raise small values
fast: after five steps, all but the tiniest are between 0.7 and 1.2, so all directions of u have about equal weight. The
factor 0.2 sqrt(max(rows, cols)) gives the step AdamW's size, about 0.2 lr an element, so AdamW's learning rate and
weight decay carry over (Liu et al., "Muon is scalable for LLM training", arXiv 2502.16982, equation 4).
For a matrix with more rows than columns the same numbers come from A = X^T X;  X = X (a I + b A + c A^2).
Rounding    u, A, A^2, the polynomial and each X are rounded to floatX; sums are real. m and w: as in adamw.h
Storage     m as AdamW's, and no v
Shapes      a matrix (rows,cols); m, g and w are flat arrays, of which UpdateRange selects elements of one tensor
Bytes       an element with fp32 state: 16 for momentum (m twice, g, u), 12 for weights (w twice, X). Newton-Schulz is
            bound by arithmetic: newton_schulz_flops in ops.h
defines: NewtonSchulz, newton_schulz_open, newton_schulz_polynomial, muon_scale, muon_moment, muon_weight,
         reference_muon_momentum, reference_muon_newton_schulz, reference_muon_weights
*/
#pragma once
#include "llmc/adamw.h"
#include "llmc/common/floatx.h"
#include "llmc/common/rng.h"
#include "llmc/gradient.h"
#include "llmc/ops.h"

#define MUON_A ((real)3.4445)
#define MUON_B ((real)-4.7750)
#define MUON_C ((real)2.0315)
#define MUON_EPSILON ((real)1e-7)

// the factor on the learning rate for a matrix
static inline real muon_scale(size_t rows, size_t cols) {
    return (real)(0.2 * sqrt((double)(rows > cols ? rows : cols)));
}

// u of a scaled gradient g; m is updated in place
static inline HOST_DEVICE real muon_moment(real *m, real g, real momentum) {
    *m = REAL_MATH(fma)(momentum, *m, g);
    return REAL_MATH(fma)(momentum, *m, g);
}

// the new weight; keep: 1 - lr decay; step: lr scale
static inline HOST_DEVICE real muon_weight(real w, real x, real keep, real step) {
    return REAL_MATH(fma)(keep, w, -(step * x));
}

// an element of a I + b A + c A^2
static inline HOST_DEVICE real newton_schulz_polynomial(real a, real a_squared, bool diagonal) {
    return REAL_MATH(fma)(MUON_C, a_squared, REAL_MATH(fma)(MUON_B, a, diagonal ? MUON_A : 0));
}

// How Newton-Schulz divides its scratch. x and y take turns as source and result of a step; step 0 reads y.
typedef struct {
    int m;             // the smaller of rows and cols
    bool tall;         // more rows than cols: A = X^T X
    real *norm;        // |u|^2
    floatX *x[2];      // (rows,cols): y, x
    floatX *a, *poly;  // (m,m)
} NewtonSchulz;

static inline NewtonSchulz newton_schulz_open(floatX *x, floatX *scratch, int rows, int cols) {
    NewtonSchulz ns = {rows < cols ? rows : cols, rows > cols, (real *)(void *)scratch, {NULL, x}, NULL, NULL};
    ns.x[0] = scratch + NEWTON_SCHULZ_NORM;
    ns.a = ns.x[0] + (size_t)rows * (size_t)cols;
    ns.poly = ns.a + (size_t)ns.m * (size_t)ns.m;
    return ns;
}

// ---- the textbook

static inline void reference_muon_momentum(floatX *update, const OptimizerState *state, Gradient grads,
                                           const real *norm_squared, const UpdateRange *range, const StepHyper *hyper,
                                           Exec *ex) {
    (void)ex;
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

// out (rows,cols) = p (rows,inner) q (inner,cols), or with transposed operands: element (i,j) of p is
// p[i * p_row + j * p_col], and of q likewise. Sums in double.
static inline void reference_product(floatX *out, const floatX *p, size_t p_row, size_t p_col, const floatX *q,
                                     size_t q_row, size_t q_col, int rows, int cols, int inner) {
#pragma omp parallel for
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++) {
            double sum = 0;
            for (int k = 0; k < inner; k++) {
                sum += (double)to_real(p[i * p_row + k * p_col]) * to_real(q[k * q_row + j * q_col]);
            }
            out[(size_t)i * cols + j] = to_floatX((real)sum);
        }
    }
}

static inline void reference_muon_newton_schulz(floatX *x, floatX *scratch, int rows, int cols, Exec *ex) {
    (void)ex;
    NewtonSchulz ns = newton_schulz_open(x, scratch, rows, cols);
    int m = ns.m, n = ns.tall ? rows : cols;
    // the matrix (m,n), m <= n, and its transpose: strides in x
    size_t row = ns.tall ? 1 : (size_t)cols, col = ns.tall ? (size_t)cols : 1, count = (size_t)rows * (size_t)cols;
    double norm_squared = 0;
    for (size_t i = 0; i < count; i++) { norm_squared += (double)to_real(x[i]) * to_real(x[i]); }
    real norm = REAL_MATH(sqrt)((real)norm_squared) + MUON_EPSILON;
    for (size_t i = 0; i < count; i++) { ns.x[0][i] = to_floatX(to_real(x[i]) / norm); }
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const floatX *from = ns.x[step % 2];
        floatX *to = ns.x[(step + 1) % 2];
        reference_product(ns.a, from, row, col, from, col, row, m, m, n);  // X X^T
        reference_product(ns.poly, ns.a, (size_t)m, 1, ns.a, (size_t)m, 1, m, m, m);
        for (int i = 0; i < m * m; i++) {
            bool diagonal = i / m == i % m;
            ns.poly[i] = to_floatX(newton_schulz_polynomial(to_real(ns.a[i]), to_real(ns.poly[i]), diagonal));
        }
        if (ns.tall) {
            reference_product(to, from, (size_t)cols, 1, ns.poly, (size_t)m, 1, rows, cols, m);
        } else {
            reference_product(to, ns.poly, (size_t)m, 1, from, (size_t)cols, 1, rows, cols, m);
        }
    }
}

static inline void reference_muon_weights(const OptimizerState *state, const floatX *update, const real *norm_squared,
                                          const UpdateRange *range, real scale, const StepHyper *hyper, Exec *ex) {
    (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    real keep = adamw_scales(hyper).keep, step = hyper->learning_rate * scale;
    for (size_t e = 0; e < range->count; e++) {
        size_t i = range->offset + e;
        real w = muon_weight(reference_weight(state, i), to_real(update[e]), keep, step);
        reference_weight_store(state, i, w, reference_rounding_bits(range, e, ROUND_WEIGHT, hyper));
    }
}
