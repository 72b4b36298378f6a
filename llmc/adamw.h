/*
AdamW with decoupled weight decay (Loshchilov, Hutter 2019), after clipping by global norm (Pascanu et al. 2013).
  g = grad * min(1, clip / ||grads||)
  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
  w -= lr (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon) + decay w)
A weight that is bf16 without an fp32 master copy is rounded stochastically: to nearest, most updates would be lost. The
draw depends on the seed, the step, the tensor and the element in it alone.
Where the gradients' norm is not finite, nothing is updated.
Every multiply-add is written as one fma, which a compiler neither splits nor forms by itself, so that all of them, and
the CUDA kernel, compute the same bits.
With -f 2 the rounded copy of the parameters (Exec.rounded) is written beside them, while they are in cache.
Bytes       28 a parameter in fp32: w, m, v read and written, grads read.
defines: AdamWScales, adamw_scales, adamw_grad_scale, adamw_weight, cpu_adamw_update
*/
#pragma once
#include "exec.h"
#include "rng.h"
#include "vector_math.h"

enum { ADAMW_BLOCK = 4096 };  // elements a thread updates at a time

// what the step's numbers come to for every element
typedef struct {
    real beta1, beta2, epsilon, clip;
    real step_size;     // lr / (1 - beta1^step)
    real second_scale;  // 1 / (1 - beta2^step)
    real keep;          // what decay leaves of a weight: 1 - lr decay
} AdamWScales;

static inline AdamWScales adamw_scales(const AdamW *hyper) {
    AdamWScales s = {hyper->beta1, hyper->beta2, hyper->epsilon, hyper->clip, 0, 0, 0};
    s.step_size = (real)(hyper->learning_rate / (1 - pow((double)hyper->beta1, hyper->step)));
    s.second_scale = (real)(1 / (1 - pow((double)hyper->beta2, hyper->step)));
    s.keep = REAL_MATH(fma)(-hyper->learning_rate, hyper->weight_decay, 1);
    return s;
}

static inline HOST_DEVICE real adamw_grad_scale(real clip, real norm_squared) {
    real norm = REAL_MATH(sqrt)(norm_squared);
    return clip > 0 && norm > clip ? clip / norm : 1;
}

// the new weight from the old one and its scaled gradient;  m and v are updated in place
static inline HOST_DEVICE real adamw_weight(real w, real *m, real *v, real g, bool decays, AdamWScales s) {
    *m = REAL_MATH(fma)(s.beta1, *m, (1 - s.beta1) * g);
    *v = REAL_MATH(fma)(s.beta2, *v, (1 - s.beta2) * g * g);
    real deviation = REAL_MATH(sqrt)(*v * s.second_scale) + s.epsilon;
    return REAL_MATH(fma)(decays ? s.keep : 1, w, -(s.step_size * *m / deviation));
}

// what a block of elements is part of
typedef struct {
    TensorSpan span;
    uint64_t seed, step;
    real grad_scale;
} AdamWTensor;

// elements [i, i + n) of the flat block;  has_master is a constant where it is inlined, which the vectors need
static inline void adamw_block(floatX *params, real *master, real *m, real *v, const real *grads, size_t i, size_t n,
                               bool has_master, AdamWTensor t, AdamWScales s) {
#pragma omp simd
    for (size_t e = i; e < i + n; e++) {
        real w = has_master ? master[e] : to_real(params[e]);
        w = adamw_weight(w, &m[e], &v[e], grads[e] * t.grad_scale, t.span.decay, s);
        if (has_master) {
            master[e] = w;
            params[e] = to_floatX(w);
        } else {
            uint32_t random_bits = rounding_bits(t.seed, t.step, (uint64_t)t.span.tensor, e - t.span.begin);
            params[e] = to_floatX_stochastic(w, random_bits);
        }
    }
}

static inline void cpu_adamw_update(floatX *params, real *master, real *m, real *v, const real *grads,
                                    const real *norm_squared, const TensorSpan *spans, int num_spans,
                                    const AdamW *hyper, Exec *ex) {
    if (!isfinite(*norm_squared)) { return; }
    bf16 *rounded = ex->rounded.params ? ex->rounded.params + (params - ex->rounded.source) : NULL;
    AdamWScales scales = adamw_scales(hyper);
    real grad_scale = adamw_grad_scale(hyper->clip, *norm_squared);
#pragma omp parallel
    for (int s = 0; s < num_spans; s++) {
        AdamWTensor tensor = {spans[s], hyper->seed, (uint64_t)hyper->step, grad_scale};
#pragma omp for schedule(static) nowait
        for (size_t start = 0; start < spans[s].count; start += ADAMW_BLOCK) {
            size_t i = spans[s].begin + start, left = spans[s].count - start;
            size_t n = left < ADAMW_BLOCK ? left : (size_t)ADAMW_BLOCK;
            if (master) {
                adamw_block(params, master, m, v, grads, i, n, true, tensor, scales);
            } else {
                adamw_block(params, NULL, m, v, grads, i, n, false, tensor, scales);
            }
            if (rounded) { round_to_bf16(rounded + i, params + i, n); }
        }
    }
}
