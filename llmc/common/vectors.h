/*
A vector register of reals, as an extension of C that gcc and clang share: +, - and * work lane by lane.
The widest registers of the target are used: 64 bytes with AVX-512, 32 with AVX, else 16 (SSE, NEON).
*/
#pragma once
#include "llmc/common/floatx.h"

#define ALWAYS_INLINE __attribute__((always_inline)) static inline
#define NEVER_INLINE __attribute__((noinline, unused)) static
// UNROLL_ALL unrolls a loop of constant length, so that its array stays in registers. UNROLL_4 unrolls by four with
// gcc; clang keeps the loop, whose sums it would spill. nvcc does not know the pragmas, and clang ignores gcc's.
#ifdef __CUDACC__
#define UNROLL_ALL
#define UNROLL_4
#elif defined(__clang__)
#define UNROLL_ALL _Pragma("clang loop unroll(full)")
#define UNROLL_4 _Pragma("clang loop unroll(disable)")
#else
#define UNROLL_ALL _Pragma("GCC unroll 16")
#define UNROLL_4 _Pragma("GCC unroll 4")
#endif

#ifdef __AVX512F__
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#ifdef PRECISION_FP64
#define VECTOR_LANES (VECTOR_BYTES / 8)
typedef int64_t VecBits __attribute__((vector_size(VECTOR_BYTES)));
#else
#define VECTOR_LANES (VECTOR_BYTES / 4)
typedef int32_t VecBits __attribute__((vector_size(VECTOR_BYTES)));
#endif

enum { CACHE_LINE = 64 };  // bytes

typedef real vec __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef real UnalignedVec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

ALWAYS_INLINE vec vec_load(const real *p) { return *(const UnalignedVec *)p; }
ALWAYS_INLINE void vec_store(real *p, vec v) { *(UnalignedVec *)p = v; }

// lanes of a where all bits of the condition are set, lanes of b where none is
ALWAYS_INLINE vec vec_select(VecBits condition, vec a, vec b) {
    return (vec)((condition & (VecBits)a) | (~condition & (VecBits)b));
}

// the larger of each lane; b if either is a NaN
ALWAYS_INLINE vec vec_max(vec a, vec b) { return vec_select((VecBits)(a > b), a, b); }

// VECTOR_LANES neighbours as real
#ifdef PRECISION_BF16
typedef uint16_t VecHalves __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
ALWAYS_INLINE vec vec_of(const floatX *p) {
    return (vec)(__builtin_convertvector(*(const VecHalves *)p, VecBits) << 16);
}
#else
ALWAYS_INLINE vec vec_of(const floatX *p) { return vec_load(p); }
#endif

#if defined(__clang__) || (!defined(__CUDACC__) && defined(__GNUC__) && __GNUC__ >= 12)
#define VEC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VEC_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (VecBits){__VA_ARGS__})
#endif

// the lower halves of a and b, and the upper halves, interleaved: a0 b0 a1 b1 ...
#if VECTOR_LANES == 16
#define INTERLEAVE_LOW(a, b) VEC_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define INTERLEAVE_HIGH(a, b) VEC_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif VECTOR_LANES == 8
#define INTERLEAVE_LOW(a, b) VEC_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) VEC_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif VECTOR_LANES == 4
#define INTERLEAVE_LOW(a, b) VEC_SHUFFLE(a, b, 0, 4, 1, 5)
#define INTERLEAVE_HIGH(a, b) VEC_SHUFFLE(a, b, 2, 6, 3, 7)
#else
#define INTERLEAVE_LOW(a, b) VEC_SHUFFLE(a, b, 0, 2)
#define INTERLEAVE_HIGH(a, b) VEC_SHUFFLE(a, b, 1, 3)
#endif

// Transposes the square of VECTOR_LANES vectors: interleaving its two halves, log2(VECTOR_LANES) times.
ALWAYS_INLINE void vec_transpose(vec row[VECTOR_LANES]) {
    enum { HALF = VECTOR_LANES / 2 };
    UNROLL_ALL
    for (int step = 1; step < VECTOR_LANES; step *= 2) {
        vec next[VECTOR_LANES];
        UNROLL_ALL
        for (int i = 0; i < HALF; i++) {
            next[2 * i] = INTERLEAVE_LOW(row[i], row[i + HALF]);
            next[2 * i + 1] = INTERLEAVE_HIGH(row[i], row[i + HALF]);
        }
        UNROLL_ALL
        for (int i = 0; i < VECTOR_LANES; i++) { row[i] = next[i]; }
    }
}

// ---- exp for loops that compilers vectorise: a call of libm would break the loop
//   exp(x) = 2^n exp(r),  n = round(x / ln 2),  r = x - n ln 2 in two parts (Cody, Waite 1980), |r| <= 0.347
// exp(r) by its Taylor polynomial of degree 7: truncation below 6e-9 relative, so fp32 rounding (1e-7) dominates. Below
// -87.3 the result is 0, above 88.3 exp(88.3); a NaN stays a NaN. The fp64 build calls libm.

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
    // 2^n: n is in the low bits, and the exponent field of 2^n is n + 127
    float scale = bits_to_float((float_to_bits(shifted) << 23) + 0x3F800000u);
    return x < -87.3f ? 0.0f : p * scale;
}
#endif
