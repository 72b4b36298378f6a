/*
The inner GEMM of attention: a tile of C in registers. Matmuls have another, gemm_tile of gemm.h.
  C (TILE_M, TILE_N) = or += A (TILE_M, K) B (K, TILE_N)
A's elements are broadcast one by one, so A may have any strides; rows of B and C are contiguous. TILE_N is two vector
registers wide, and TILE_M rows of C fill the registers. Compilers keep the sums of these loops in registers.
defines: TILE_M, TILE_N, tile_multiply, round_up
*/
#pragma once
#include "llmc/common/floatx.h"
#include <stdbool.h>

#ifdef __AVX512F__
enum { TILE_M = 8, TILE_N = 128 / (int)sizeof(real) };  // 16 accumulators of 32 registers
#else
enum { TILE_M = 4, TILE_N = 64 / (int)sizeof(real) };  // 8 accumulators of 16 registers with AVX2
#endif

static inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// C = A B, or C += A B with `add`. Element (i,k) of A is a[i * a_row + k * a_col]; row k of B begins at b + k * b_row.
// C may not overlap A or B.
static inline void tile_multiply(real *__restrict__ c, size_t c_row, const real *a, size_t a_row, size_t a_col,
                                 const real *b, size_t b_row, int K, bool add) {
    real sum[TILE_M][TILE_N] = {{0}};
    for (int k = 0; k < K; k++) {
        const real *b_k = b + (size_t)k * b_row;
        for (int i = 0; i < TILE_M; i++) {
            real a_ik = a[(size_t)i * a_row + (size_t)k * a_col];
#pragma omp simd
            for (int j = 0; j < TILE_N; j++) { sum[i][j] += a_ik * b_k[j]; }
        }
    }
    for (int i = 0; i < TILE_M; i++) {
        real *c_i = c + (size_t)i * c_row;
#pragma omp simd
        for (int j = 0; j < TILE_N; j++) { c_i[j] = sum[i][j] + (add ? c_i[j] : 0); }
    }
}
