/*
exp for loops that compilers vectorise: a call of libm would break the loop.
defines: fast_exp
  exp(x) = 2^n exp(r),  n = round(x / ln 2),  r = x - n ln 2 in two parts (Cody, Waite 1980), |r| <= 0.347
  exp(r) by its Taylor polynomial of degree 7: truncation below 6e-9 relative, so fp32 rounding (1e-7) dominates.
Below -87.3 the result is 0, above 88.3 exp(88.3); a NaN stays a NaN. The fp64 build calls libm.
*/
#pragma once
#include "llmc/common/floatx.h"

#ifdef PRECISION_FP64
static inline real fast_exp(real x) { return exp(x); }
#else
// Always inlined: a loop with a call is not vectorised, and gcc's own choice depends on the size of the whole program.
__attribute__((always_inline)) static inline real fast_exp(real x) {
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
    float clamped = x > 88.3f ? 88.3f : x;
    float shifted = clamped * 1.44269504f + shift;
    float n = shifted - shift;
    float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3F800000u;  // 2^n: n is in the low bits, and the exponent field of 2^n is n + 127
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87.3f ? 0.0f : p * scale;
}
#endif
