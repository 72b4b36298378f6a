/*
AdamW's moments in 8 bits: of each MOMENT_BLOCK neighbours a scale in fp32, of each moment a code.
defines: NEAREST_BITS, moment_blocks, m_scale, v_scale, inverse_scale, m_code, v_code, m_of_code, v_of_code,
         m_encode_block, v_encode_block, m_decode_block, v_decode_block
  m   = sign * scale * number(code)        1 bit of sign, 4 of exponent, 3 of mantissa
  v   = (scale * number(code))^2           4 bits of exponent, 4 of mantissa: of its root, which has half the range

A number with M bits of mantissa is a code moved to where fp32 has its exponent and mantissa, with another bias. Below 1
numbers are 2^-M apart and go down to 0; from 1 on there are 2^M in each power of two, up to 2^15 - 2^(14-M). The scale
is such that the largest of the block has the last code, so it is never out of date.
Rounding    is stochastic: random bits are added below those that are kept. 16 of them and a constant make the mean of
            m, and of v's root, exact to 2^-17 of the distance of two codes. The mean of v is larger by the variance of
            its root: of gradients that keep their size v becomes 0.6 % too large with beta2 = 0.95, 2.4 % with 0.999,
            and a step half of that too short. Where a conversion is to be to nearest, NEAREST_BITS stand for the
            random bits.
Error       from one code to the next, since either neighbour may be taken:
                m     relative 2^-3;   below 1/30720 of the block's largest: 2^-3 / 30720 = 4.1e-6 of it
                root  relative 2^-4;   below 1/31744 of the block's largest: 2^-4 / 31744 = 2.0e-6 of it
            A v that is not 0 never has code 0: that beside an m that lives would be as large a step as epsilon allows.
Extremes    a block of zeros has scale 0. The scale is never subnormal, so that it has an inverse: a block whose largest
            m is below 3.6e-34 is as exact as one where it is that. Infinite moments, which no finite norm makes, are
            stored as the largest that can be, 3.4e38, and keep the others of their block near 0.
*/
#pragma once
#include "llmc/ops.h"

enum { M_MANTISSA = 3, V_MANTISSA = 4, NEAREST_BITS = 0x8000 };

static inline size_t moment_blocks(size_t count) { return (count + MOMENT_BLOCK - 1) / MOMENT_BLOCK; }

// The number of a code. Moved to where fp32 has its own, the first 2^mantissa codes are 0.5 to 1 where they should be 0
// to 1. Both products are exact, so that a compiler may or may not make an fma of them.
static inline HOST_DEVICE float code_number(uint32_t code, int mantissa) {
    float x = bits_to_float((code << (23 - mantissa)) + 0x3F000000u);
    return x < 1 ? 2 * x - 1 : x;
}

// The code of number y >= 0, cut off after `random` is added, in units of 2^(mantissa - 23) of a code. Beyond the last
// code where y is beyond the last number.
static inline HOST_DEVICE uint32_t number_code(float y, int mantissa, uint32_t random) {
    float x = y < 1 ? 0.5f * y + 0.5f : y;
    return (float_to_bits(x) + random - 0x3F000000u) >> (23 - mantissa);
}

// ---- scales, from the largest magnitude of a block; at `limit` a decoded moment is still finite

static inline HOST_DEVICE float block_scale(float largest, float limit, float last_inverse) {
    float scale = (largest < limit ? largest : limit) * last_inverse;
    if (scale < 0x1p-126f) { scale = 0x1p-126f; }
    return largest > 0 ? scale : 0;
}

static inline HOST_DEVICE float m_scale(float largest) { return block_scale(largest, 0x1.fffp127f, 1.0f / 30720); }
static inline HOST_DEVICE float v_scale(float largest_root) {
    return block_scale(largest_root, 0x1.fffp63f, 1.0f / 31744);
}
static inline HOST_DEVICE float inverse_scale(float scale) { return scale > 0 ? 1 / scale : 0; }

// ---- codes; random_bits are 16

static inline HOST_DEVICE uint8_t m_code(float m, float inverse, uint32_t random_bits) {
    uint32_t bits = float_to_bits(m);
    float magnitude = bits_to_float(bits & 0x7FFFFFFFu);
    // 8, and 4 below: the middle of the bits that are not random
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

// ---- a block on the host, n of at most MOMENT_BLOCK moments; random_bits (n) are 16 each. Encoding returns the scale.

static inline float m_encode_block(uint8_t *codes, const real *m, size_t n, const uint16_t *random_bits) {
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (size_t e = 0; e < n; e++) {
        float magnitude = fabsf((float)m[e]);
        largest = magnitude > largest ? magnitude : largest;
    }
    float scale = m_scale(largest), inverse = inverse_scale(scale);
#pragma omp simd
    for (size_t e = 0; e < n; e++) { codes[e] = m_code((float)m[e], inverse, random_bits[e]); }
    return scale;
}

static inline float v_encode_block(uint8_t *codes, const real *v, size_t n, const uint16_t *random_bits) {
    float largest = 0, root[MOMENT_BLOCK];
#pragma omp simd reduction(max : largest)
    for (size_t e = 0; e < n; e++) {
        root[e] = sqrtf((float)v[e]);
        largest = root[e] > largest ? root[e] : largest;
    }
    float scale = v_scale(largest), inverse = inverse_scale(scale);
#pragma omp simd
    for (size_t e = 0; e < n; e++) { codes[e] = v_code(root[e], inverse, random_bits[e]); }
    return scale;
}

static inline void m_decode_block(real *m, const uint8_t *codes, size_t n, float scale) {
#pragma omp simd
    for (size_t e = 0; e < n; e++) { m[e] = m_of_code(codes[e], scale); }
}

static inline void v_decode_block(real *v, const uint8_t *codes, size_t n, float scale) {
#pragma omp simd
    for (size_t e = 0; e < n; e++) { v[e] = v_of_code(codes[e], scale); }
}
