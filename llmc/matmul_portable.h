/*
A portable GEMM: blocked, packed, threaded C for machines without oneDNN and CBLAS, and for the fp64
build.
  C (M,N) = or += A (M,K) B (K,N) + bias (N) + residual (M,N)
Operands are strided views, so a transpose swaps two strides. Packing converts any view of any type to real. A block of
C is summed in real over all of K and rounded once.
defines: Matrix, Matmul, matrix, gemm, matmul_parts, matmul_of_thread
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/gradient.h"
#include "llmc/common/tile.h"

// element (i,j) is data[i * row + j * col], in elements of dtype
typedef struct {
    const void *data;
    DType dtype;
    size_t row, col;
} Matrix;

static inline Matrix matrix(const void *data, DType dtype, size_t row, size_t col) {
    Matrix m = {data, dtype, row, col};
    return m;
}

// C (M,N) = or += A (M,K) B (K,N) + bias (N) + residual (M,N), or one thread's part of that, which may be empty.
// M, N and K are BLAS's. In
// the forward, M is the number of rows of the micro-batch, N is OC, and K is C.
typedef struct {
    Matrix c, a, b;          // the columns of c are contiguous
    const floatX *bias;      // NULL: none
    const floatX *residual;  // dense; NULL: none
    bool accumulate;         // C += instead of C =
    size_t M, N, K;
} Matmul;

enum { GEMM_M = 12 * TILE_M, GEMM_N = 8 * TILE_N, GEMM_K = 256 };  // a block of C; depth of a packed block

static inline real matrix_element(Matrix m, size_t i, size_t j) {
    size_t at = i * m.row + j * m.col;
    switch (m.dtype) {
    case DT_BF16: return bf16_to_float(((const bf16 *)m.data)[at]);
    case DT_F64: return (real)((const double *)m.data)[at];
    default: return ((const float *)m.data)[at];
    }
}

// packed[tile][k][lane] = m in tiles of `wide` lanes, from lane lane0 and depth k0 on; zeros beyond `lanes`. Lanes are
// the rows of m, or the columns.
static inline void gemm_pack(real *packed, Matrix m, bool lanes_are_rows, size_t lane0, int lanes, size_t k0, int depth,
                             int wide) {
    for (int tile = 0; tile < lanes; tile += wide) {
        for (int k = 0; k < depth; k++) {
            for (int lane = 0; lane < wide; lane++) {
                size_t at = lane0 + (size_t)(tile + lane), along = k0 + (size_t)k;
                bool inside = tile + lane < lanes;
                *packed++ = !inside ? 0 : lanes_are_rows ? matrix_element(m, at, along) : matrix_element(m, along, at);
            }
        }
    }
}

// C's block at (i0,j0) = or += block + bias + residual, rounded once; `block` is modified. C is real or bf16, like a
// gradient, and stored with the same function.
static inline void gemm_store(const Matmul *p, real *block, size_t i0, size_t j0, int rows, int cols) {
    Gradient out = {(void *)p->c.data, p->c.dtype};
    for (int i = 0; i < rows; i++) {
        real *sum = block + (size_t)i * GEMM_N;
        for (int j = 0; p->bias && j < cols; j++) { sum[j] += to_real(p->bias[j0 + j]); }
        for (int j = 0; p->residual && j < cols; j++) { sum[j] += to_real(p->residual[(i0 + i) * p->N + j0 + j]); }
        gradient_store(out, (i0 + i) * p->c.row + j0, sum, (size_t)cols, p->accumulate ? GRAD_ADD : GRAD_SET);
    }
}

enum { GEMM_PACKED_A = GEMM_M * GEMM_K, GEMM_PACKED_B = GEMM_N * GEMM_K };
enum { GEMM_BUFFER = GEMM_PACKED_A + GEMM_PACKED_B + GEMM_M * GEMM_N };

// C's block (rows,cols) at (i0,j0). buffer (GEMM_BUFFER) takes the packed operands and the sums.
static inline void gemm_block(real *buffer, const Matmul *p, size_t i0, size_t j0, int rows, int cols) {
    real *a = buffer, *b = a + GEMM_PACKED_A, *sums = b + GEMM_PACKED_B;
    for (size_t k0 = 0; k0 < p->K; k0 += GEMM_K) {
        int depth = p->K - k0 < (size_t)GEMM_K ? (int)(p->K - k0) : (int)GEMM_K;
        gemm_pack(a, p->a, true, i0, rows, k0, depth, TILE_M);
        gemm_pack(b, p->b, false, j0, cols, k0, depth, TILE_N);
        for (int j = 0; j < cols; j += TILE_N) {
            for (int i = 0; i < rows; i += TILE_M) {
                tile_multiply(sums + (size_t)i * GEMM_N + j, GEMM_N, a + (size_t)i * depth, 1, TILE_M,
                              b + (size_t)j * depth, TILE_N, depth, k0 > 0);
            }
        }
    }
    gemm_store(p, sums, i0, j0, rows, cols);
}

// C is real or bf16. All threads of a parallel region call gemm and share the blocks.
static inline void gemm(const Matmul *p) {
    size_t blocks_m = (p->M + GEMM_M - 1) / GEMM_M, blocks_n = (p->N + GEMM_N - 1) / GEMM_N;
    real *buffer = (real *)xmalloc(GEMM_BUFFER * sizeof *buffer);
#pragma omp for schedule(static)
    for (size_t block = 0; block < blocks_m * blocks_n; block++) {
        size_t i0 = block % blocks_m * GEMM_M, j0 = block / blocks_m * GEMM_N;
        int rows = p->M - i0 < (size_t)GEMM_M ? (int)(p->M - i0) : (int)GEMM_M;
        int cols = p->N - j0 < (size_t)GEMM_N ? (int)(p->N - j0) : (int)GEMM_N;
        gemm_block(buffer, p, i0, j0, rows, cols);
    }
    free(buffer);
}

// ---- the threads' parts, for a library that computes each part in one call

enum {
    MATMUL_GRAIN = 16,             // a thread's rows or columns are a multiple of 16
    MATMUL_SHARED_BYTES = 1 << 19  // the largest B that every thread repacks
};

// the submatrix that begins at (i,j)
static inline Matrix matrix_from(Matrix m, size_t i, size_t j) {
    return matrix((const char *)m.data + (i * m.row + j * m.col) * dtype_size(m.dtype), m.dtype, m.row, m.col);
}

// The parts that a library's matmul is divided into. A library's order of sums depends on the shape of a part: 1, 2 and
// 4 threads share four parts and have the same bits. Other numbers of threads use one part per thread.
static inline int matmul_parts(int threads) { return threads <= 2 ? 4 : threads; }

// rows of C per thread if B is small or C is tall, else columns
static inline Matmul matmul_of_thread(const Matmul *whole, size_t threads, size_t thread) {
    bool by_rows = whole->K * whole->N * dtype_size(whole->b.dtype) <= MATMUL_SHARED_BYTES || whole->M >= 4 * whole->N;
    size_t all = by_rows ? whole->M : whole->N, width = (all + threads - 1) / threads;
    width = (width + MATMUL_GRAIN - 1) / MATMUL_GRAIN * MATMUL_GRAIN;
    size_t begin = thread * width < all ? thread * width : all, end = all - begin < width ? all : begin + width;
    size_t i = by_rows ? begin : 0, j = by_rows ? 0 : begin;
    Matmul p = *whole;
    p.c = matrix_from(p.c, i, j);
    p.a = matrix_from(p.a, i, 0);
    p.b = matrix_from(p.b, 0, j);
    if (p.bias) { p.bias += j; }
    if (p.residual) { p.residual += i * p.c.row + j; }
    p.M = by_rows ? end - begin : p.M;
    p.N = by_rows ? p.N : end - begin;
    return p;
}
