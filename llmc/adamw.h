/*
AdamW with decoupled weight decay (Loshchilov, Hutter 2019), after clipping by global norm (Pascanu et al. 2013).
  g = grad * min(1, clip / ||grads||)
  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
  w -= lr (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon) + decay w)
With -f 2 the rounded copy of the parameters (Exec.rounded) is written beside them, while they are in cache.
Bytes       28 a parameter in fp32: w, m, v read and written, grads read.
defines: cpu_adamw_update
*/
#pragma once
#include "exec.h"
#include "vector_math.h"

enum { ADAMW_BLOCK = 4096 };  // elements a thread updates at a time

// the step's numbers once they are known for every element
typedef struct {
    real grad_scale, step_size, second_scale, decay;
} AdamWScales;

static inline AdamWScales adamw_scales(const AdamW *hyper, real norm_squared) {
    real norm = REAL_MATH(sqrt)(norm_squared);
    AdamWScales s;
    s.grad_scale = hyper->clip > 0 && norm > hyper->clip ? hyper->clip / norm : 1;
    s.step_size = (real)(hyper->learning_rate / (1 - pow((double)hyper->beta1, hyper->step)));
    s.second_scale = (real)(1 / (1 - pow((double)hyper->beta2, hyper->step)));
    s.decay = hyper->learning_rate * hyper->weight_decay;
    return s;
}

static inline void adamw_block(floatX *params, real *master, real *m, real *v, const real *grads, size_t n, bool decays,
                               const AdamW *hyper, AdamWScales s) {
    real keep = decays ? 1 - s.decay : 1;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        real g = grads[i] * s.grad_scale;
        real mean = hyper->beta1 * m[i] + (1 - hyper->beta1) * g;
        real square = hyper->beta2 * v[i] + (1 - hyper->beta2) * g * g;
        real w = master ? master[i] : to_real(params[i]);
        w = keep * w - s.step_size * mean / (REAL_MATH(sqrt)(square * s.second_scale) + hyper->epsilon);
        m[i] = mean;
        v[i] = square;
        if (master) { master[i] = w; }
        params[i] = to_floatX(w);
    }
}

static inline void cpu_adamw_update(floatX *params, real *master, real *m, real *v, const real *grads,
                                    const real *norm_squared, const TensorSpan *spans, int num_spans,
                                    const AdamW *hyper, Exec *ex) {
    bf16 *rounded = ex->rounded.params ? ex->rounded.params + (params - ex->rounded.source) : NULL;
    AdamWScales scales = adamw_scales(hyper, *norm_squared);
#pragma omp parallel
    for (int s = 0; s < num_spans; s++) {
        const TensorSpan *span = &spans[s];
#pragma omp for schedule(static) nowait
        for (size_t start = 0; start < span->count; start += ADAMW_BLOCK) {
            size_t i = span->begin + start;
            size_t left = span->count - start, n = left < ADAMW_BLOCK ? left : (size_t)ADAMW_BLOCK;
            adamw_block(params + i, master ? master + i : NULL, m + i, v + i, grads + i, n, span->decay, hyper, scales);
            if (rounded) { round_to_bf16(rounded + i, params + i, n); }
        }
    }
}
