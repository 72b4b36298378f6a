/*
A vector register of reals, as an extension of C that gcc and clang share: +, - and * work lane by lane.
The widest registers of the target are used: 64 bytes with AVX-512, 32 with AVX, else 16 (SSE, NEON).
defines: vec, VecBits, VECTOR_BYTES, VECTOR_LANES, ALWAYS_INLINE, UNROLL_ALL, vec_load, vec_store, vec_select, vec_max,
         vec_of, vec_transpose
*/
#pragma once
#include "llmc/common/floatx.h"

#define ALWAYS_INLINE __attribute__((always_inline)) static inline
// Unrolls a loop of constant length, so that its array stays in registers. nvcc does not know the pragmas. clang keeps
// the loop with gcc's pragma.
#ifdef __CUDACC__
#define UNROLL_ALL
#elif defined(__clang__)
#define UNROLL_ALL _Pragma("clang loop unroll(full)")
#else
#define UNROLL_ALL _Pragma("GCC unroll 16")
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
#else
#define VECTOR_LANES (VECTOR_BYTES / 4)
#endif

typedef real vec __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef real UnalignedVec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));

ALWAYS_INLINE vec vec_load(const real *p) { return *(const UnalignedVec *)p; }
ALWAYS_INLINE void vec_store(real *p, vec v) { *(UnalignedVec *)p = v; }

#ifdef PRECISION_FP64
typedef int64_t VecBits __attribute__((vector_size(VECTOR_BYTES)));
#else
typedef int32_t VecBits __attribute__((vector_size(VECTOR_BYTES)));
#endif

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
