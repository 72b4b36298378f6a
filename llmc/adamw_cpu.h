/*
AdamW on the CPU: tiles of elements that stay in the L1 cache, and loops that compilers vectorise. The bits are those of
reference_adamw_update, which has the formulas.
*/
#pragma once
#include "llmc/adamw.h"
#include "llmc/common/floatx.h"
#include "llmc/common/rng.h"
#include "llmc/moments.h"
#include "llmc/ops.h"

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
    if (!state->remainder) { return tile_of(state->params, DT_FLOATX, i, n, buffer); }
#pragma omp simd
    for (size_t e = 0; e < n; e++) { buffer[e] = joined_real(state->params[i + e], state->remainder[i + e]); }
    return buffer;
}

// elements of the tile, or block of moments, of at most `size` elements that begins with element `start` of n
static inline size_t tile_size(size_t start, size_t n, size_t size) { return n - start < size ? n - start : size; }

// Elements [i, i + n) of m or v as real: a pointer into the moment if it is real, else `buffer`.
static inline real *tile_of_moment(const OptimizerState *state, bool is_v, size_t i, size_t n, real *buffer) {
    void *stored = is_v ? state->v : state->m;
    if (state->moments != DT_U8) { return tile_of(stored, state->moments, i, n, buffer); }
    const uint8_t *codes = (const uint8_t *)stored + i;
    for (size_t block = 0; block < n; block += MOMENT_BLOCK) {
        float scale = moment_scales(state, is_v)[(i + block) / MOMENT_BLOCK];
        moment_decode_block(is_v, buffer + block, codes + block, tile_size(block, n, MOMENT_BLOCK), scale);
    }
    return buffer;
}

// ---- stores, with stochastic rounding

// random bits for a slice: neighbours of the slice need not be neighbours in the tensor
static inline void tile_random_bits_of_slice(uint16_t *random_bits, Rounded what, size_t first, size_t n,
                                             const UpdateRange *range, StepScales s) {
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
                                    StepScales s) {
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
                                      const UpdateRange *range, StepScales s) {
    uint16_t random_bits[ADAMW_TILE];
    floatX *params = state->params + i;
    if (state->remainder) {
        int16_t *remainder = state->remainder + i;
#pragma omp simd
        for (size_t e = 0; e < n; e++) {
            params[e] = to_floatX_half_up(w[e]);
            remainder[e] = remainder_of(w[e]);
        }
    } else if (DT_FLOATX == DT_BF16) {
        tile_random_bits(random_bits, ROUND_WEIGHT, i, n, range, s);
        tile_round((bf16 *)(void *)params, w, random_bits, n);
    }
}

// Elements [i, i + n) of m or v, from x (n) to their storage type; a real moment was updated in place.
static inline void tile_store_moment(const OptimizerState *state, bool is_v, size_t i, size_t n, const real *x,
                                     const UpdateRange *range, StepScales s) {
    uint16_t random_bits[ADAMW_TILE];
    void *stored = is_v ? state->v : state->m;
    if (state->moments == DT_REAL) { return; }
    tile_random_bits(random_bits, is_v ? ROUND_V : ROUND_M, i, n, range, s);
    if (state->moments == DT_BF16) {
        tile_round((bf16 *)stored + i, x, random_bits, n);
        return;
    }
    uint8_t *codes = (uint8_t *)stored + i;
    for (size_t block = 0; block < n; block += MOMENT_BLOCK) {
        size_t count = tile_size(block, n, MOMENT_BLOCK);
        moment_scales(state, is_v)[(i + block) / MOMENT_BLOCK] =
            moment_encode_block(is_v, codes + block, x + block, count, random_bits + block);
    }
}

// elements [i, i + n) of the flat arrays, in one range; i - range->offset is a multiple of ADAMW_TILE
static inline void adamw_tile(const OptimizerState *state, Gradient grads, size_t i, size_t n, const UpdateRange *range,
                              real grad_scale, StepScales s) {
    real w_buffer[ADAMW_TILE], m_buffer[ADAMW_TILE], v_buffer[ADAMW_TILE], g_buffer[ADAMW_TILE];
    real *w = tile_of_weights(state, i, n, w_buffer);
    real *m = tile_of_moment(state, false, i, n, m_buffer), *v = tile_of_moment(state, true, i, n, v_buffer);
    const real *g = tile_of(grads.at, grads.dtype, i, n, g_buffer);
    bool decay = range->decay;
#pragma omp simd
    for (size_t e = 0; e < n; e++) { w[e] = adamw_weight(w[e], &m[e], &v[e], g[e] * grad_scale, decay, s); }
    tile_store_weights(state, i, n, w, range, s);
    tile_store_moment(state, false, i, n, m, range, s);
    tile_store_moment(state, true, i, n, v, range, s);
}

static inline void cpu_adamw_update(const OptimizerState *state, Gradient grads, const real *norm_squared,
                                    const UpdateRange *ranges, int num_ranges, size_t elements, const StepHyper *hyper,
                                    Exec *ex) {
    (void)elements, (void)ex;
    if (!isfinite(*norm_squared)) { return; }
    StepScales scales = step_scales(hyper);
    real grad_scale = adamw_grad_scale(hyper->clip, *norm_squared);
#pragma omp parallel
    for (int r = 0; r < num_ranges; r++) {
#pragma omp for schedule(static) nowait
        for (size_t start = 0; start < ranges[r].count; start += ADAMW_TILE) {
            size_t i = ranges[r].offset + start, n = tile_size(start, ranges[r].count, ADAMW_TILE);
            adamw_tile(state, grads, i, n, &ranges[r], grad_scale, scales);
        }
    }
}
