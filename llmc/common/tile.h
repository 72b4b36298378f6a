/*
The inner GEMM of attention: a tile of C in registers. Matmuls use gemm_tile of gemm.h.
  C (TILE_M, columns) = or += A (TILE_M, K) B (K, columns);  columns: TILE_N or VECTOR_LANES
A's elements are broadcast one by one, so A may have any strides; rows of B and C are contiguous. TILE_N is two vector
registers wide, and TILE_M rows of C take half of the registers.
defines: TILE_M, TILE_N, tile_multiply, round_up
*/
#pragma once
#include "llmc/common/vectors.h"
#include <assert.h>

#if defined(__AVX512F__) || (defined(__aarch64__) && !defined(PRECISION_FP64))
enum { TILE_M = 8 };  // 16 sums in 32 registers
#else
enum { TILE_M = 4 };  // 8 sums in 16 registers
#endif
enum { TILE_N = 2 * (int)VECTOR_LANES };
static_assert((int)TILE_N % (int)TILE_M == 0, "attention_cpu.h divides TILE_N queries into whole tiles of TILE_M rows");

static inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// C = A B, or C += A B with `add`. Element (i,k) of A is a[i * a_row + k * a_col]; row k of B begins at b + k * b_row.
// columns: TILE_N or VECTOR_LANES, a constant. C may not overlap A or B.
ALWAYS_INLINE void tile_multiply(real *c, size_t c_row, const real *a, size_t a_row, size_t a_col, const real *b,
                                 size_t b_row, int K, int columns, bool add) {
    vec sum[TILE_M][2];
    UNROLL_ALL
    for (int i = 0; i < TILE_M; i++) { sum[i][0] = sum[i][1] = (vec){0}; }
    for (int k = 0; k < K; k++) {
        vec b_k[2];
        UNROLL_ALL
        for (int j = 0; j * VECTOR_LANES < columns; j++) {
            b_k[j] = vec_load(b + (size_t)k * b_row + j * VECTOR_LANES);
        }
        UNROLL_ALL
        for (int i = 0; i < TILE_M; i++) {
            real a_ik = a[(size_t)i * a_row + (size_t)k * a_col];
            UNROLL_ALL
            for (int j = 0; j * VECTOR_LANES < columns; j++) { sum[i][j] += a_ik * b_k[j]; }
        }
    }
    UNROLL_ALL
    for (int i = 0; i < TILE_M; i++) {
        UNROLL_ALL
        for (int j = 0; j * VECTOR_LANES < columns; j++) {
            real *c_i = c + (size_t)i * c_row + j * VECTOR_LANES;
            if (add) { sum[i][j] += vec_load(c_i); }
            vec_store(c_i, sum[i][j]);
        }
    }
}
