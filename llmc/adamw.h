/*
AdamW with decoupled weight decay (Loshchilov, Hutter 2019), after clipping by global norm (Pascanu et al. 2013).
  g = grad * min(1, clip / ||grads||)
  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
  w -= lr (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon) + decay w)
The arithmetic is in real. The storage of each number is independent of it:
  w   params and a 16-bit remainder, which together are an fp32 number (floatx.h); or params alone. bf16 params alone
      are rounded stochastically: to nearest, most updates would be lost
  m v real; or bf16, rounded stochastically; or 8 bits with a scale per 128 neighbours (moments.h), rounded
      stochastically. To nearest, v would never decay: with beta2 = 0.999 a step changes v by less than one bf16 unit
  g   real or bf16
The random bits of stochastic rounding are keyed by seed, step, tensor, element of the tensor, and one of w, m, v.
Nothing is updated if the norm of the gradients is not finite.
Every multiply-add is written as one fma, which no compiler splits or forms: all compilers and the CUDA kernel compute
the same bits. A build for CPUs without FMA (x86-64-v2) calls libm's fma for each one, element by element, and is slow.
Shapes      params, remainder, m, v and g are flat arrays of one layout; UpdateRange selects elements of them.
Bytes       per parameter. All but g are read and written; 8-bit scales add 1/8:
              fp32       28    w 4, m 4, v 4, g 4
              bf16       28    w 2, remainder 2, m 4, v 4, g 4
                         18    w 2, remainder 2, m 2, v 2, g 2
                         14    w 2, remainder 2, m 1, v 1, g 2
*/
#pragma once
#include "llmc/common/rng.h"
#include "llmc/gradient.h"
#include "llmc/moments.h"

// the numbers of a step that all elements share
typedef struct {
    real beta1, beta2, epsilon, clip, momentum;
    real step_size;     // lr / (1 - beta1^step)
    real second_scale;  // 1 / (1 - beta2^step)
    real keep;          // 1 - lr decay: the factor of weight decay
    uint64_t seed, step;
} StepScales;

static inline StepScales step_scales(const StepHyper *hyper) {
    StepScales s = {hyper->beta1, hyper->beta2,         hyper->epsilon, hyper->clip, hyper->momentum, 0, 0, 0,
                    hyper->seed,  (uint64_t)hyper->step};
    s.step_size = (real)(hyper->learning_rate / (1 - pow((double)hyper->beta1, hyper->step)));
    s.second_scale = (real)(1 / (1 - pow((double)hyper->beta2, hyper->step)));
    s.keep = REAL_MATH(fma)(-hyper->learning_rate, hyper->weight_decay, 1);
    return s;
}

static inline HOST_DEVICE real adamw_grad_scale(real clip, real norm_squared) {
    real norm = REAL_MATH(sqrt)(norm_squared);
    return clip > 0 && norm > clip ? clip / norm : 1;
}

// the new weight from the old one and the scaled gradient g; m and v are updated in place
static inline HOST_DEVICE real adamw_weight(real w, real *m, real *v, real g, bool decays, StepScales s) {
    *m = REAL_MATH(fma)(s.beta1, *m, (1 - s.beta1) * g);
    *v = REAL_MATH(fma)(s.beta2, *v, (1 - s.beta2) * g * g);
    real deviation = REAL_MATH(sqrt)(*v * s.second_scale) + s.epsilon;
    return REAL_MATH(fma)(decays ? s.keep : 1, w, -(s.step_size * *m / deviation));
}

// element e of a slice, as an element of the whole tensor
static inline HOST_DEVICE size_t view_element(const UpdateRange *range, size_t e) {
    if (range->view_cols == 0) { return e; }
    uint32_t row = (uint32_t)e / range->view_cols, col = (uint32_t)e % range->view_cols;
    return range->view_offset + row * range->view_stride + col;
}

// ---- the reference: MOMENT_BLOCK elements at a time, since 8-bit moments share a scale

// the random bits that round w, m or v of element e of a range
static inline uint32_t reference_rounding_bits(const UpdateRange *range, size_t e, Rounded what,
                                               const StepHyper *hyper) {
    size_t element = view_element(range, range->tensor_offset + e);
    uint64_t group =
        group_rounding_bits(hyper->seed, (uint64_t)hyper->step, (uint64_t)range->tensor, what, element / 4);
    return element_rounding_bits(group, element % 4);
}

static inline real reference_weight(const OptimizerState *state, size_t i) {
    return state->remainder ? joined_real(state->params[i], state->remainder[i]) : to_real(state->params[i]);
}

static inline void reference_weight_store(const OptimizerState *state, size_t i, real w, uint32_t random_bits) {
    state->params[i] = state->remainder ? to_floatX_half_up(w) : to_floatX_stochastic(w, random_bits);
    if (state->remainder) { state->remainder[i] = remainder_of(w); }
}

// x (n) = elements [i, i + n) of m or v
static inline void reference_moment(real *x, const OptimizerState *state, bool is_v, size_t i, size_t n) {
    const Gradient stored = {is_v ? state->v : state->m, state->moments};
    if (state->moments == DT_U8) {
        float scale = moment_scales(state, is_v)[i / MOMENT_BLOCK];
        moment_decode_block(is_v, x, (const uint8_t *)stored.at + i, n, scale);
        return;
    }
    for (size_t e = 0; e < n; e++) { x[e] = gradient_value(stored, i + e); }
}

// elements [i, i + n) of m or v = x (n)
static inline void reference_moment_store(const OptimizerState *state, bool is_v, size_t i, size_t n, const real *x,
                                          const uint16_t *random_bits) {
    void *stored = is_v ? state->v : state->m;
    if (state->moments == DT_U8) {
        float *scale = &moment_scales(state, is_v)[i / MOMENT_BLOCK];
        *scale = moment_encode_block(is_v, (uint8_t *)stored + i, x, n, random_bits);
        return;
    }
    for (size_t e = 0; e < n; e++) {
        if (state->moments == DT_BF16) {
            ((bf16 *)stored)[i + e] = bf16_round_stochastic((float)x[e], random_bits[e]);
        } else {
            ((real *)stored)[i + e] = x[e];
        }
    }
}

// The formula. Each fma is a multiply-add that is rounded once, so that every implementation has these bits.
static inline real reference_adamw_weight(real w, real *m, real *v, real g, bool decays, const StepHyper *h) {
    real step_size = (real)(h->learning_rate / (1 - pow((double)h->beta1, h->step)));
    real second_scale = (real)(1 / (1 - pow((double)h->beta2, h->step)));
    real keep = decays ? REAL_MATH(fma)(-h->learning_rate, h->weight_decay, 1) : 1;
    *m = REAL_MATH(fma)(h->beta1, *m, (1 - h->beta1) * g);
    *v = REAL_MATH(fma)(h->beta2, *v, (1 - h->beta2) * g * g);
    return REAL_MATH(fma)(keep, w, -(step_size * *m / (REAL_MATH(sqrt)(*v * second_scale) + h->epsilon)));
}

// elements [start, start + n) of a range, a block of moments
static inline void reference_adamw_block(const OptimizerState *state, Gradient grads, const UpdateRange *range,
                                         size_t start, size_t n, real grad_scale, const StepHyper *hyper) {
    real m[MOMENT_BLOCK], v[MOMENT_BLOCK];
    uint16_t m_bits[MOMENT_BLOCK], v_bits[MOMENT_BLOCK];
    size_t i = range->offset + start;
    reference_moment(m, state, false, i, n);
    reference_moment(v, state, true, i, n);
    for (size_t e = 0; e < n; e++) {
        real g = gradient_value(grads, i + e) * grad_scale, w = reference_weight(state, i + e);
        w = reference_adamw_weight(w, &m[e], &v[e], g, range->decay, hyper);
        reference_weight_store(state, i + e, w, reference_rounding_bits(range, start + e, ROUND_WEIGHT, hyper));
        m_bits[e] = (uint16_t)reference_rounding_bits(range, start + e, ROUND_M, hyper);
        v_bits[e] = (uint16_t)reference_rounding_bits(range, start + e, ROUND_V, hyper);
    }
    reference_moment_store(state, false, i, n, m, m_bits);
    reference_moment_store(state, true, i, n, v, v_bits);
}

static inline void reference_adamw_update(const OptimizerState *state, Gradient grads, const real *norm_squared,
                                          const UpdateRange *ranges, int num_ranges, size_t elements,
                                          const StepHyper *hyper, Exec *ex) {
    (void)elements, (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    real grad_scale = adamw_grad_scale(hyper->clip, *norm_squared);
    for (int r = 0; r < num_ranges; r++) {
        for (size_t start = 0; start < ranges[r].count; start += MOMENT_BLOCK) {
            size_t left = ranges[r].count - start, n = left < MOMENT_BLOCK ? left : (size_t)MOMENT_BLOCK;
            reference_adamw_block(state, grads, &ranges[r], start, n, grad_scale, hyper);
        }
    }
}
