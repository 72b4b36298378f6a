/*
The optimizer's moments in 8 bits: one code per moment, and one fp32 scale per MOMENT_BLOCK neighbours.
  m   = sign * scale * number(code)        sign 1 bit, exponent 4 bits, mantissa 3 bits
  v   = (scale * number(code))^2           exponent 4 bits, mantissa 4 bits: the root has half the range of v

Numbers     With M bits of mantissa a code is the upper part of an fp32 number with another exponent bias. Below 1
            numbers are 2^-M apart, down to 0. From 1 on each power of two has 2^M numbers, up to 2^15 - 2^(14-M).
Scale       Maps the largest moment of a block to the last code; every update computes it again.
Rounding    Stochastic: random bits are added below the last kept bit. 16 random bits and a constant make the mean of m,
            and of v's root, exact to 2^-17 of the distance of two codes. The mean of v is larger, by the variance of
            its root. With gradients of constant size v becomes 0.6 % too large with beta2 = 0.95 and 2.4 % with 0.999,
            and a step half of that too short. NEAREST_BITS in place of random bits rounds to nearest.
Error       One distance of codes, since either neighbour may result:
                m     relative 2^-3;   below 1/30720 of the block's largest: 2^-3 / 30720 = 4.1e-6 of the largest
                root  relative 2^-4;   below 1/31744 of the block's largest: 2^-4 / 31744 = 2.0e-6 of the largest
            A v that is not 0 never has code 0: v = 0 with m != 0 would make the largest step that epsilon allows.
Extremes    A block of zeros has scale 0. Other scales are at least 2^-126, so that their inverse is finite: below a
            largest m of 3.6e-34 the absolute error no longer shrinks. Infinite moments, which no finite norm makes, are
            stored as the largest number, 3.4e38, and the others of the block become nearly 0.
*/
#pragma once
#include "llmc/ops.h"  // IWYU pragma: export

enum { M_MANTISSA = 3, V_MANTISSA = 4, NEAREST_BITS = 0x8000 };

static inline size_t moment_blocks(size_t count) { return (count + MOMENT_BLOCK - 1) / MOMENT_BLOCK; }

// The number of a code. With the code's bits at fp32's exponent and mantissa, the first 2^mantissa codes give 0.5 to 1
// instead of 0 to 1: hence 2x - 1. 2x is exact, so an fma gives the same bits.
static inline HOST_DEVICE float code_number(uint32_t code, int mantissa) {
    float x = bits_to_float((code << (23 - mantissa)) + 0x3F000000u);
    return x < 1 ? 2 * x - 1 : x;
}

// The code of y >= 0, truncated after adding `random`, in units of 2^(mantissa - 23) of a code. Larger than the last
// code if y is larger than the last number.
static inline HOST_DEVICE uint32_t number_code(float y, int mantissa, uint32_t random) {
    float x = y < 1 ? 0.5f * y + 0.5f : y;
    return (float_to_bits(x) + random - 0x3F000000u) >> (23 - mantissa);
}

// ---- scales, from the largest magnitude of a block. `limit`: the largest that decodes to a finite moment

static inline HOST_DEVICE float block_scale(float largest, float limit, float last_inverse) {
    float scale = (largest < limit ? largest : limit) * last_inverse;
    if (scale < 0x1p-126f) { scale = 0x1p-126f; }
    return largest == 0 ? 0 : scale;
}

static inline HOST_DEVICE float m_scale(float largest) { return block_scale(largest, 0x1.fffp127f, 1.0f / 30720); }
static inline HOST_DEVICE float v_scale(float largest_root) {
    return block_scale(largest_root, 0x1.fffp63f, 1.0f / 31744);
}
static inline HOST_DEVICE float inverse_scale(float scale) { return scale > 0 ? 1 / scale : 0; }

// ---- codes; random_bits: 16 of them

static inline HOST_DEVICE uint8_t m_code(float m, float inverse, uint32_t random_bits) {
    uint32_t bits = float_to_bits(m);
    float magnitude = bits_to_float(bits & 0x7FFFFFFFu);
    // 8, and 4 in v_code: half of the unit of the lowest random bit
    uint32_t code = number_code(magnitude * inverse, M_MANTISSA, random_bits << 4 | 8);
    return (uint8_t)((code < 0x7F ? code : 0x7F) | (bits >> 24 & 0x80));
}

static inline HOST_DEVICE float m_of_code(uint8_t code, float scale) {
    float magnitude = code_number(code & 0x7F, M_MANTISSA) * scale;
    return bits_to_float(float_to_bits(magnitude) | (uint32_t)(code & 0x80) << 24);
}

static inline HOST_DEVICE uint8_t v_code(float root, float inverse, uint32_t random_bits) {
    uint32_t code = number_code(root * inverse, V_MANTISSA, random_bits << 3 | 4);
    if (root > 0 && code == 0) { code = 1; }
    return (uint8_t)(code < 0xFF ? code : 0xFF);
}

static inline HOST_DEVICE float v_of_code(uint8_t code, float scale) {
    float root = code_number(code, V_MANTISSA) * scale;
    return root * root;
}

// ---- a block on the host: n <= MOMENT_BLOCK moments; random_bits (n): 16 each. Encoding returns the scale.

static inline float moment_encode_block(bool is_v, uint8_t *codes, const real *x, size_t n,
                                        const uint16_t *random_bits) {
    uint32_t largest = 0;
    float number[MOMENT_BLOCK];
#pragma omp simd reduction(max : largest)
    for (size_t e = 0; e < n; e++) {
        number[e] = is_v ? sqrtf((float)x[e]) : (float)x[e];
        // the bits of |number|, in its order: clang vectorises a maximum of integers, and none of floats
        uint32_t bits = float_to_bits(number[e]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    float scale = is_v ? v_scale(bits_to_float(largest)) : m_scale(bits_to_float(largest));
    float inverse = inverse_scale(scale);
#pragma omp simd
    for (size_t e = 0; e < n; e++) {
        codes[e] = is_v ? v_code(number[e], inverse, random_bits[e]) : m_code(number[e], inverse, random_bits[e]);
    }
    return scale;
}

static inline void moment_decode_block(bool is_v, real *x, const uint8_t *codes, size_t n, float scale) {
#pragma omp simd
    for (size_t e = 0; e < n; e++) { x[e] = is_v ? v_of_code(codes[e], scale) : m_of_code(codes[e], scale); }
}

static inline HOST_DEVICE float *moment_scales(const OptimizerState *o, bool is_v) {
    return is_v ? o->v_scales : o->m_scales;
}
