/*
AdamW with decoupled weight decay (Loshchilov, Hutter 2019), after clipping by global norm (Pascanu et al. 2013): the
reference implementation.
  g = grad * min(1, clip / ||grads||)
  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
  w -= lr (m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + epsilon) + decay w)
The arithmetic is in real. The storage of each number is independent of it:
  w   an fp32 master and params rounded from it; or params and a 16-bit remainder (floatx.h), the same numbers bit for
      bit; or params alone. bf16 params alone are rounded stochastically: to nearest, most updates would be lost
  m v real; or bf16, rounded stochastically; or 8 bits with a scale per 128 neighbours (moments.h), rounded
      stochastically. To nearest, v would never decay: with beta2 = 0.999 a step changes v by less than one bf16 unit
  g   real or bf16
The random bits of stochastic rounding are keyed by seed, step, tensor, element of the tensor, and one of w, m, v.
Nothing is updated if the norm of the gradients is not finite.
Every multiply-add is written as one fma, which no compiler splits or forms: all compilers and the CUDA kernel compute
the same bits. A build for CPUs without FMA (x86-64-v2) calls libm's fma for each one, element by element, and is slow.
Shapes      params, master, remainder, m, v and g are flat arrays of one layout; UpdateRange selects elements of them.
Bytes       per parameter. All but g are read and written; 8-bit scales add 1/8:
              fp32       28    w 4, m 4, v 4, g 4
              bf16       30    w 2 (written only), master 4, m 4, v 4, g 4
                         18    w 2, remainder 2, m 2, v 2, g 2
                         14    w 2, remainder 2, m 1, v 1, g 2
defines: AdamWScales, adamw_scales, adamw_grad_scale, adamw_weight, view_element, cpu_adamw_update
*/
#pragma once
#include "llmc/common/device.h"
#include "llmc/moments.h"
#include "llmc/common/rng.h"
#include "llmc/common/vector_math.h"

// the numbers of a step that all elements share
typedef struct {
    real beta1, beta2, epsilon, clip;
    real step_size;     // lr / (1 - beta1^step)
    real second_scale;  // 1 / (1 - beta2^step)
    real keep;          // 1 - lr decay: the factor of weight decay
    uint64_t seed, step;
} AdamWScales;

static inline AdamWScales adamw_scales(const AdamW *hyper) {
    AdamWScales s = {hyper->beta1, hyper->beta2,         hyper->epsilon, hyper->clip, 0, 0, 0,
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
static inline HOST_DEVICE real adamw_weight(real w, real *m, real *v, real g, bool decays, AdamWScales s) {
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

// ---- one tile of elements at a time: storage types are decided per tile, outside of the loops over elements

enum { ADAMW_TILE = 512 };  // elements; whole blocks of moments, and all arrays of a tile fit in the L1 cache

// Elements [i, i + n) of an array as real: a pointer into a real array, else `buffer`, converted from bf16.
static inline real *tile_of(void *array, DType dtype, size_t i, size_t n, real *buffer) {
    if (dtype != DT_BF16) { return (real *)array + i; }
    const bf16 *from = (const bf16 *)array + i;
#pragma omp simd
    for (size_t e = 0; e < n; e++) { buffer[e] = bf16_to_float(from[e]); }
    return buffer;
}

static inline real *tile_of_weights(const OptimizerState *state, size_t i, size_t n, real *buffer) {
    if (state->master) { return state->master + i; }
    if (!state->remainder) { return tile_of(state->params, DT_FLOATX, i, n, buffer); }
#pragma omp simd
    for (size_t e = 0; e < n; e++) { buffer[e] = joined_real(state->params[i + e], state->remainder[i + e]); }
    return buffer;
}

// the end of the block of moments that begins at element `block` of a tile of n elements
static inline size_t block_end(size_t block, size_t n) { return block + MOMENT_BLOCK < n ? block + MOMENT_BLOCK : n; }

// m, v (n) from 8 bits
static inline void tile_decode(const OptimizerState *state, size_t i, size_t n, real *m, real *v) {
    const uint8_t *m_codes = (const uint8_t *)state->m + i, *v_codes = (const uint8_t *)state->v + i;
    for (size_t block = 0; block < n; block += MOMENT_BLOCK) {
        size_t count = block_end(block, n) - block, scale = (i + block) / MOMENT_BLOCK;
        m_decode_block(m + block, m_codes + block, count, state->m_scales[scale]);
        v_decode_block(v + block, v_codes + block, count, state->v_scales[scale]);
    }
}

// ---- stores, with stochastic rounding

// random bits for a slice: neighbours of the slice need not be neighbours in the tensor
static inline void tile_random_bits_of_slice(uint16_t *random_bits, Rounded what, size_t first, size_t n,
                                             const UpdateRange *range, AdamWScales s) {
    uint64_t group_bits = 0;
    for (size_t e = 0, last = SIZE_MAX; e < n; e++) {
        size_t element = view_element(range, first + e), group = element / 4;
        if (group != last) { group_bits = group_rounding_bits(s.seed, s.step, (uint64_t)range->tensor, what, group); }
        random_bits[e] = (uint16_t)element_rounding_bits(group_bits, element % 4);
        last = group;
    }
}

// random bits (n) for w, m or v of elements [i, i + n); i - range->offset is a multiple of 4
static inline void tile_random_bits(uint16_t *random_bits, Rounded what, size_t i, size_t n, const UpdateRange *range,
                                    AdamWScales s) {
    uint64_t groups[ADAMW_TILE / 4];
    size_t first = range->tensor_offset + i - range->offset;
    if (range->view_cols > 0) {
        tile_random_bits_of_slice(random_bits, what, first, n, range, s);
        return;
    }
    for (size_t group = 0; group < (n + 3) / 4; group++) {
        groups[group] = group_rounding_bits(s.seed, s.step, (uint64_t)range->tensor, what, first / 4 + group);
    }
    memcpy(random_bits, groups, n * sizeof *random_bits);  // little-endian: element 0 has the lowest 16 bits
}

static inline void tile_round(bf16 *to, const real *from, const uint16_t *random_bits, size_t n) {
#pragma omp simd
    for (size_t e = 0; e < n; e++) { to[e] = bf16_round_stochastic((float)from[e], random_bits[e]); }
}

static inline void tile_store_weights(const OptimizerState *state, size_t i, size_t n, const real *w,
                                      const UpdateRange *range, AdamWScales s) {
    uint16_t random_bits[ADAMW_TILE];
    floatX *params = state->params + i;
    if (state->master || state->remainder) {
#pragma omp simd
        for (size_t e = 0; e < n; e++) { params[e] = to_floatX_half_up(w[e]); }
    } else if (DT_FLOATX == DT_BF16) {
        tile_random_bits(random_bits, ROUND_WEIGHT, i, n, range, s);
        tile_round((bf16 *)(void *)params, w, random_bits, n);
    }
    if (state->remainder) {
#pragma omp simd
        for (size_t e = 0; e < n; e++) { state->remainder[i + e] = remainder_of(w[e]); }
    }
}

static inline void tile_encode_m(const OptimizerState *state, size_t i, size_t n, const real *m,
                                 const uint16_t *random_bits) {
    uint8_t *codes = (uint8_t *)state->m + i;
    for (size_t block = 0; block < n; block += MOMENT_BLOCK) {
        state->m_scales[(i + block) / MOMENT_BLOCK] =
            m_encode_block(codes + block, m + block, block_end(block, n) - block, random_bits + block);
    }
}

static inline void tile_encode_v(const OptimizerState *state, size_t i, size_t n, const real *v,
                                 const uint16_t *random_bits) {
    uint8_t *codes = (uint8_t *)state->v + i;
    for (size_t block = 0; block < n; block += MOMENT_BLOCK) {
        state->v_scales[(i + block) / MOMENT_BLOCK] =
            v_encode_block(codes + block, v + block, block_end(block, n) - block, random_bits + block);
    }
}

// m, v (n) to their storage type; real moments were updated in place
static inline void tile_store_moments(const OptimizerState *state, size_t i, size_t n, const real *m, const real *v,
                                      const UpdateRange *range, AdamWScales s) {
    uint16_t random_bits[ADAMW_TILE];
    if (state->moments == DT_REAL) { return; }
    bool bytes = state->moments == DT_U8;
    tile_random_bits(random_bits, ROUND_M, i, n, range, s);
    if (bytes) {
        tile_encode_m(state, i, n, m, random_bits);
    } else {
        tile_round((bf16 *)state->m + i, m, random_bits, n);
    }
    tile_random_bits(random_bits, ROUND_V, i, n, range, s);
    if (bytes) {
        tile_encode_v(state, i, n, v, random_bits);
    } else {
        tile_round((bf16 *)state->v + i, v, random_bits, n);
    }
}

// elements [i, i + n) of the flat arrays, in one range; i - range->offset is a multiple of ADAMW_TILE
static inline void adamw_tile(const OptimizerState *state, Gradient grads, size_t i, size_t n, const UpdateRange *range,
                              real grad_scale, AdamWScales s) {
    real w_buffer[ADAMW_TILE], m_buffer[ADAMW_TILE], v_buffer[ADAMW_TILE], g_buffer[ADAMW_TILE];
    real *w = tile_of_weights(state, i, n, w_buffer), *m = m_buffer, *v = v_buffer;
    const real *g = tile_of(grads.at, grads.dtype, i, n, g_buffer);
    bool decay = range->decay;
    if (state->moments == DT_U8) {
        tile_decode(state, i, n, m, v);
    } else {
        m = tile_of(state->m, state->moments, i, n, m);
        v = tile_of(state->v, state->moments, i, n, v);
    }
#pragma omp simd
    for (size_t e = 0; e < n; e++) { w[e] = adamw_weight(w[e], &m[e], &v[e], g[e] * grad_scale, decay, s); }
    tile_store_weights(state, i, n, w, range, s);
    tile_store_moments(state, i, n, m, v, range, s);
}

static inline void cpu_adamw_update(const OptimizerState *state, Gradient grads, const real *norm_squared,
                                    const UpdateRange *ranges, int num_ranges, size_t n, const AdamW *hyper, Exec *ex) {
    (void)n, (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    AdamWScales scales = adamw_scales(hyper);
    real grad_scale = adamw_grad_scale(hyper->clip, *norm_squared);
#pragma omp parallel
    for (int r = 0; r < num_ranges; r++) {
#pragma omp for schedule(static) nowait
        for (size_t start = 0; start < ranges[r].count; start += ADAMW_TILE) {
            size_t i = ranges[r].offset + start, left = ranges[r].count - start;
            size_t n = left < ADAMW_TILE ? left : (size_t)ADAMW_TILE;
            adamw_tile(state, grads, i, n, &ranges[r], grad_scale, scales);
        }
    }
}
