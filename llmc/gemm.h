/*
The GEMM of the CPU backend, in C with vector registers.
  C (M,N) = or += A (M,K) B (K,N) + bias (N) + residual (M,N), times gelu'(gelu_pre (M,N));  gelu (M,N) = gelu(C)
Operands are strided views, so a transpose swaps two strides. A and B may have any type. Sums have the type real, and
run over k in order, in blocks of GEMM_K. C is rounded once. With gelu_pre the rounded C is multiplied by
gelu'(gelu_pre), and rounded again.
Each thread computes one part of C, and packs B block by block into panels of GEMM_COLS columns, which stay in the L2
cache. A thread's part (gemm_part) is computed area by area (gemm_area), an area block by block of k and of columns
(gemm_block), and a block tile by tile. Read gemm_tile first: it multiplies GEMM_ROWS rows of A with a panel, in
registers.
With `bf16_inputs` A and B are rounded to bf16 while they are packed, in pairs of neighbouring k. One instruction
multiplies and adds a pair (AVX512-BF16). A pair has the size of a float, and the code of both cases is the same.
A sum does not depend on the number of threads.
Source      packing and loops: Goto, van de Geijn, "Anatomy of high-performance matrix multiplication", 2008
defines: Matrix, Matmul, matrix, transposed, gemm, GEMM_HAS_BF16, GEMM_K, GEMM_ROWS, GEMM_COLS
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include "llmc/common/vectors.h"
#include "llmc/gelu_cpu.h"
#include "llmc/gradient_cpu.h"
#include "llmc/ops.h"
#include <float.h>
#include <omp.h>

// not under nvcc: nvcc 12.4 to 12.6 cannot read gcc 13's header of AVX512-BF16
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(__CUDACC__) && !defined(PRECISION_BF16) &&            \
    !defined(PRECISION_FP64)
#include <immintrin.h>
#define GEMM_HAS_BF16 1
#else
#define GEMM_HAS_BF16 0
#endif

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

static inline Matrix transposed(Matrix m) { return matrix(m.data, m.dtype, m.col, m.row); }

// the submatrix that begins at (i,j)
static inline Matrix matrix_from(Matrix m, size_t i, size_t j) {
    return matrix((const char *)m.data + (i * m.row + j * m.col) * dtype_size(m.dtype), m.dtype, m.row, m.col);
}

// A GEMM, or one thread's part of it, which may be empty. M, N and K are BLAS's. In the forward, M is the number of
// rows of the micro-batch, N is OC, and K is C. residual, gelu and gelu_pre have the row stride of C. K is 1 or more.
typedef struct {
    Matrix c, a, b;          // C: real or bf16; floatX if gelu or gelu_pre is set. A row is contiguous
    const floatX *bias;      // NULL: none; the same for the next three
    const floatX *residual;  // may be C
    const floatX *gelu_pre;
    floatX *gelu;
    bool accumulate;   // C += instead of C =; residual is NULL
    bool bf16_inputs;  // only if GEMM_HAS_BF16
    size_t M, N, K;
} Matmul;

#if defined(__AVX512F__) || defined(__aarch64__)
enum { GEMM_VECTORS = 4 };  // 6 x 4 sums in 32 registers
#else
enum { GEMM_VECTORS = 2 };  // 6 x 2 sums in 16 registers
#endif
enum {
    GEMM_ROWS = 6,
    GEMM_COLS = (int)GEMM_VECTORS * (int)VECTOR_LANES,
    GEMM_M = 8 * GEMM_ROWS,  // rows of A that are packed at once
    GEMM_N = 256,            // columns of B that are packed at once, or more if K is small; a multiple of GEMM_COLS
    GEMM_K = 384,            // rows of B, or pairs of rows, that are packed at once
    GEMM_AREA_N = 768,       // columns of an area, if C holds the sums
    GEMM_SUMS_M = 384,       // rows of C with sums in a buffer, if C cannot hold them
    GEMM_PART_ROWS = 192     // a thread packs B for this many rows or more, if it can
};

// ---- packing. A unit is one element of A or B. With `pairs` a unit is two elements at neighbouring k, as bf16 in the
// bits of a real. `operand` is A (M,K) or the transpose of B (N,K): k is its column. `depth` is the number of units to
// pack, and `K` the number of elements from the operand's first column to the last column of the whole matrix.

static inline real matrix_element(Matrix m, size_t i, size_t j) {
    size_t at = i * m.row + j * m.col;
    switch (m.dtype) {
    case DT_BF16: return bf16_to_float(((const bf16 *)m.data)[at]);
    case DT_F64: return (real)((const double *)m.data)[at];
    default: return ((const float *)m.data)[at];
    }
}

// x rounded to bf16, as AVX512-BF16 does it: a subnormal x is 0
static inline bf16 bf16_input(real x) { return float_to_bf16(fabsf((float)x) < FLT_MIN ? 0 : (float)x); }

// unit `unit` of a row; the last pair of an odd K has a second element of 0
static inline real matrix_unit(Matrix operand, size_t row, size_t unit, size_t K, bool pairs) {
    if (!pairs) { return matrix_element(operand, row, unit); }
    uint32_t low = bf16_input(matrix_element(operand, row, 2 * unit)).bits;
    uint32_t high = 2 * unit + 1 < K ? bf16_input(matrix_element(operand, row, 2 * unit + 1)).bits : 0;
    return bits_to_float(low | high << 16);
}

// units_of_rows: the same unit of VECTOR_LANES neighbouring rows, from the reals at `first` and, with pairs, `second`.
// units_of_row: VECTOR_LANES neighbouring units of one row, from the reals at `first`.
#if GEMM_HAS_BF16
ALWAYS_INLINE vec units_of_rows(const real *first, const real *second, bool pairs) {
    if (!pairs) { return vec_load(first); }
    const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                                 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(second), _mm512_loadu_ps(first));
    return (vec)_mm512_permutexvar_epi16(interleaved, (__m512i)both);
}
ALWAYS_INLINE vec units_of_row(const real *first, bool pairs) {
    if (!pairs) { return vec_load(first); }
    return (vec)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(first + VECTOR_LANES), _mm512_loadu_ps(first));
}
#else
ALWAYS_INLINE vec units_of_rows(const real *first, const real *second, bool pairs) {
    (void)second, (void)pairs;
    return vec_load(first);
}
ALWAYS_INLINE vec units_of_row(const real *first, bool pairs) {
    (void)pairs;
    return vec_load(first);
}
#endif

// True if neighbouring rows are contiguous reals, and the last pair of `depth` units does not reach beyond K
ALWAYS_INLINE bool rows_are_vectors(Matrix operand, int depth, size_t K, bool pairs) {
    return operand.row == 1 && operand.dtype == DT_REAL && (size_t)depth * (pairs ? 2 : 1) <= K;
}

// packed (depth,GEMM_COLS) = units [0, depth) of `columns` columns of B, which are rows of operand; 0 in other columns
ALWAYS_INLINE void gemm_pack_b(real *packed, Matrix operand, int columns, int depth, size_t K, bool pairs) {
    int step = pairs ? 2 : 1, k = 0;
    if (columns == GEMM_COLS && operand.dtype == DT_REAL && operand.col == 1) {
        for (int j = 0; j < GEMM_COLS; j += VECTOR_LANES) {
            for (k = 0; (size_t)(k + VECTOR_LANES) * step <= K && k + VECTOR_LANES <= depth; k += VECTOR_LANES) {
                vec row[VECTOR_LANES];
                UNROLL_ALL
                for (int i = 0; i < VECTOR_LANES; i++) {
                    row[i] = units_of_row((const real *)operand.data + (size_t)(j + i) * operand.row + (size_t)k * step,
                                          pairs);
                }
                vec_transpose(row);
                UNROLL_ALL
                for (int i = 0; i < VECTOR_LANES; i++) { vec_store(packed + (k + i) * GEMM_COLS + j, row[i]); }
            }
        }
    }
    for (; k < depth; k++) {
        for (int j = 0; j < GEMM_COLS; j++) {
            packed[k * GEMM_COLS + j] = j < columns ? matrix_unit(operand, (size_t)j, (size_t)k, K, pairs) : 0;
        }
    }
}

// Units of A: unit k of row i is data[i / GEMM_ROWS * block + i % GEMM_ROWS * row + k * col].
typedef struct {
    const real *data;
    size_t row, col, block;
} PackedRows;

// Packs units [0, depth) of `rows` rows of A, unless A can be read where it is.
ALWAYS_INLINE PackedRows gemm_pack_a(real *packed, Matrix operand, int rows, int depth, size_t K, bool pairs) {
    const real *data = (const real *)operand.data;
    if (!pairs && operand.dtype == DT_REAL && operand.col == 1) {
        PackedRows in_place = {data, operand.row, 1, GEMM_ROWS * operand.row};
        return in_place;
    }
    if (operand.dtype == DT_REAL && operand.col == 1) {  // pairs of a row
        for (int i = 0; i < rows; i++) {
            real *to = packed + (size_t)i * depth;
            int k = 0;
            for (; 2 * (size_t)(k + VECTOR_LANES) <= K && k + VECTOR_LANES <= depth; k += VECTOR_LANES) {
                vec_store(to + k, units_of_row(data + (size_t)i * operand.row + 2 * (size_t)k, pairs));
            }
            for (; k < depth; k++) { to[k] = matrix_unit(operand, (size_t)i, (size_t)k, K, pairs); }
        }
        PackedRows by_rows = {packed, (size_t)depth, 1, GEMM_ROWS * (size_t)depth};
        return by_rows;
    }
    int step = pairs ? 2 : 1;
    for (int k = 0; k < depth; k++) {
        real *to = packed + k * GEMM_M;
        int i = 0;
        if (operand.dtype == DT_REAL && operand.row == 1 && (size_t)(k + 1) * step <= K) {
            const real *first = data + (size_t)k * step * operand.col;
            for (; i + VECTOR_LANES <= rows; i += VECTOR_LANES) {
                vec_store(to + i, units_of_rows(first + i, first + operand.col + i, pairs));
            }
        }
        for (; i < rows; i++) { to[i] = matrix_unit(operand, (size_t)i, (size_t)k, K, pairs); }
    }
    PackedRows by_k = {packed, 1, GEMM_M, GEMM_ROWS};
    return by_k;
}

// ---- the tile

// sum + a b, of a unit and a vector of units
ALWAYS_INLINE vec multiply_add(vec sum, real a, vec b, bool pairs) {
#if GEMM_HAS_BF16
    if (pairs) { return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(a), (__m512bh)b); }
#endif
    (void)pairs;
    return sum + a * b;
}

// A tile of C, or of a buffer: element (i,j) of out and start is [i * row + j].
typedef struct {
    real *out;
    const real *start;  // added after the sum; NULL: none. May be out
    const real *bias;   // (GEMM_COLS) added to each row; NULL: none
    size_t row;
} Tile;

// Columns of B: packed (depth,GEMM_COLS). If source is not NULL, the tile packs them on the way: vector j of unit k is
// at source + k * row + j * VECTOR_LANES, and the second row of a pair `second` reals further.
typedef struct {
    real *packed;
    const real *source;
    size_t row, second;
} PackedColumns;

// out (rows,GEMM_COLS) = A (rows,depth) B (depth,GEMM_COLS) + start + bias
ALWAYS_INLINE void gemm_tile(Tile t, PackedRows a, PackedColumns b, int depth, int rows, bool packs, bool pairs) {
    vec sum[GEMM_ROWS][GEMM_VECTORS];
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        UNROLL_ALL
        for (int j = 0; j < GEMM_VECTORS; j++) { sum[i][j] = (vec){0}; }
    }
    for (int k = 0; k < depth; k++) {
        vec b_k[GEMM_VECTORS];
        UNROLL_ALL
        for (int j = 0; j < GEMM_VECTORS; j++) {
            real *packed = b.packed + k * GEMM_COLS + j * VECTOR_LANES;
            if (packs) {
                const real *source = b.source + k * b.row + j * VECTOR_LANES;
                b_k[j] = units_of_rows(source, source + b.second, pairs);
                vec_store(packed, b_k[j]);
            } else {
                b_k[j] = vec_load(packed);
            }
        }
        UNROLL_ALL
        for (int i = 0; i < rows; i++) {
            real a_ik = a.data[i * a.row + k * a.col];
            UNROLL_ALL
            for (int j = 0; j < GEMM_VECTORS; j++) { sum[i][j] = multiply_add(sum[i][j], a_ik, b_k[j], pairs); }
        }
    }
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        UNROLL_ALL
        for (int j = 0; j < GEMM_VECTORS; j++) {
            size_t at = i * t.row + j * VECTOR_LANES;
            if (t.start) { sum[i][j] += vec_load(t.start + at); }
            if (t.bias) { sum[i][j] += vec_load(t.bias + j * VECTOR_LANES); }
            vec_store(t.out + at, sum[i][j]);
        }
    }
}

// a tile of 1 to GEMM_ROWS rows: one instance of the loops for each number of registers
ALWAYS_INLINE void gemm_any_tile(Tile t, PackedRows a, PackedColumns b, int depth, int rows, bool pairs) {
    if (b.source) {  // rows is GEMM_ROWS: gemm_area
        gemm_tile(t, a, b, depth, GEMM_ROWS, true, pairs);
        return;
    }
    switch (rows) {
    case 6: gemm_tile(t, a, b, depth, 6, false, pairs); break;
    case 5: gemm_tile(t, a, b, depth, 5, false, pairs); break;
    case 4: gemm_tile(t, a, b, depth, 4, false, pairs); break;
    case 3: gemm_tile(t, a, b, depth, 3, false, pairs); break;
    case 2: gemm_tile(t, a, b, depth, 2, false, pairs); break;
    default: gemm_tile(t, a, b, depth, 1, false, pairs);
    }
}

// ---- C

// C's row i, columns [j, j + cols), before GELU, = or += sum + bias + residual. sum is modified
static inline void gemm_store(const Matmul *p, real *sum, size_t i, size_t j, int cols) {
    Gradient c = {(void *)p->c.data, p->c.dtype};
    size_t at = i * p->c.row + j;
    for (int x = 0; p->bias && x < cols; x++) { sum[x] += to_real(p->bias[j + x]); }
    for (int x = 0; p->residual && x < cols; x++) { sum[x] += to_real(p->residual[at + x]); }
    gradient_store(c, at, sum, (size_t)cols, p->accumulate ? GRAD_ADD : GRAD_SET);
}

// GELU of C's row i, columns [j, j + cols)
static inline void gemm_gelu(const Matmul *p, size_t i, size_t j, int cols) {
    size_t at = i * p->c.row + j;
    floatX *c = (floatX *)p->c.data + at;
    if (p->gelu_pre) { gelu_backward_row(c, c, p->gelu_pre + at, (size_t)cols); }
    if (p->gelu) { gelu_row(p->gelu + at, c, (size_t)cols); }
}

// ---- one thread's part

// A thread's memory: packed A (GEMM_K,GEMM_M); packed B (GEMM_K,GEMM_N), or (depth,cols) of no more elements; and sums
// (GEMM_SUMS_M,GEMM_N) over the blocks of K so far, if C cannot hold them.
enum { GEMM_B = GEMM_M * GEMM_K, GEMM_SUMS = GEMM_B + GEMM_K * GEMM_N, GEMM_MEMORY = GEMM_SUMS + GEMM_SUMS_M * GEMM_N };

// Sums over the blocks of K stay in C if C, bias and residual are real, but for a tile that is narrower than GEMM_COLS.
static inline bool gemm_sums_in_c(const Matmul *p) {
    return p->c.dtype == DT_REAL && (DT_FLOATX == DT_REAL || (!p->bias && !p->residual));
}

// Rows [i, i + rows) and columns [j, j + cols) of C, and `depth` units of k.
typedef struct {
    size_t i, j;
    int rows, cols, depth;
    bool first, last;  // of C's blocks of k
} GemmBlock;

// C's block = or += A B. sums (rows,GEMM_N): its sums so far, if C cannot hold them. With `packs` the first tile of
// each panel of B packs the panel.
ALWAYS_INLINE void gemm_block(const Matmul *p, GemmBlock block, PackedRows packed_a, PackedColumns packed_b, bool packs,
                              real *sums, bool pairs) {
    bool sums_in_c = gemm_sums_in_c(p);
    for (int j = 0; j < block.cols; j += GEMM_COLS) {
        for (int i = 0; i < block.rows; i += GEMM_ROWS) {
            PackedRows a = packed_a;
            a.data += (size_t)(i / GEMM_ROWS) * a.block;
            int height = block.rows - i < GEMM_ROWS ? block.rows - i : (int)GEMM_ROWS;
            int width = block.cols - j < GEMM_COLS ? block.cols - j : (int)GEMM_COLS;
            size_t at = (block.i + i) * p->c.row + block.j + j;
            PackedColumns b = packed_b;
            b.packed += j * block.depth;
            b.source = packs && i == 0 && width == GEMM_COLS ? b.source + j : NULL;
            if (sums_in_c && width == GEMM_COLS) {
                real *c = (real *)p->c.data + at;
                const real *residual = p->residual ? (const real *)p->residual + at : NULL;
                Tile t = {c, block.first && !p->accumulate ? residual : c, NULL, p->c.row};
                if (block.first && p->bias) { t.bias = (const real *)p->bias + block.j + j; }
                gemm_any_tile(t, a, b, block.depth, height, pairs);
            } else {
                real *sum = sums + i * GEMM_N + j;
                Tile t = {sum, block.first ? NULL : sum, NULL, GEMM_N};
                gemm_any_tile(t, a, b, block.depth, height, pairs);
                for (int r = 0; block.last && r < height; r++) {
                    gemm_store(p, sum + r * GEMM_N, block.i + i + r, block.j + j, width);
                }
            }
        }
    }
    if (!block.last || (!p->gelu_pre && !p->gelu)) { return; }
    for (int i = 0; i < block.rows; i++) { gemm_gelu(p, block.i + i, block.j, block.cols); }
}

// Rows [m0, m1) and columns [n0, n1) of C. A block of B fills its buffer: the fewer units, the more columns.
ALWAYS_INLINE void gemm_area(const Matmul *p, real *memory, size_t m0, size_t m1, size_t n0, size_t n1, bool pairs) {
    size_t units = pairs ? (p->K + 1) / 2 : p->K;
    for (size_t k0 = 0; k0 < units; k0 += GEMM_K) {
        int depth = units - k0 < GEMM_K ? (int)(units - k0) : (int)GEMM_K;
        int most_cols = GEMM_K * GEMM_N / depth / GEMM_COLS * GEMM_COLS;
        size_t k = pairs ? 2 * k0 : k0, K = p->K - k;
        for (size_t j0 = n0; j0 < n1; j0 += (size_t)most_cols) {
            int cols = n1 - j0 < (size_t)most_cols ? (int)(n1 - j0) : most_cols;
            Matrix operand = transposed(matrix_from(p->b, k, j0));
            PackedColumns b = {memory + GEMM_B, (const real *)operand.data, (pairs ? 2 : 1) * operand.col, operand.col};
            bool by_tiles = rows_are_vectors(operand, depth, K, pairs) && m1 - m0 >= GEMM_ROWS;
            for (int j = 0; j < cols; j += GEMM_COLS) {
                int width = cols - j < GEMM_COLS ? cols - j : (int)GEMM_COLS;
                if (by_tiles && width == GEMM_COLS) { continue; }
                gemm_pack_b(memory + GEMM_B + j * depth, matrix_from(operand, (size_t)j, 0), width, depth, K, pairs);
            }
            for (size_t i = m0; i < m1; i += GEMM_M) {
                int rows = m1 - i < GEMM_M ? (int)(m1 - i) : (int)GEMM_M;
                PackedRows a = gemm_pack_a(memory, matrix_from(p->a, i, k), rows, depth, K, pairs);
                GemmBlock block = {i, j0, rows, cols, depth, k0 == 0, k0 + depth == units};
                gemm_block(p, block, a, b, by_tiles && i == m0, memory + GEMM_SUMS + (i - m0) * GEMM_N, pairs);
            }
        }
    }
}

// If C holds the sums, an area is GEMM_AREA_N columns wide, so that it stays in the cache while all blocks of K are
// added. Otherwise an area is as large as the buffer of sums.
ALWAYS_INLINE void gemm_part(const Matmul *p, real *memory, bool pairs) {
    bool sums_in_c = gemm_sums_in_c(p) && p->N % GEMM_COLS == 0;
    size_t rows = sums_in_c ? p->M : (size_t)GEMM_SUMS_M, cols = sums_in_c ? (size_t)GEMM_AREA_N : (size_t)GEMM_N;
    for (size_t i = 0; i < p->M; i += rows) {
        for (size_t j = 0; j < p->N; j += cols) {
            size_t end_i = p->M - i < rows ? p->M : i + rows, end_j = p->N - j < cols ? p->N : j + cols;
            gemm_area(p, memory, i, end_i, j, end_j, pairs);
        }
    }
}

// a function for each case, so that profiles and disassemblies name them
static inline void gemm_part_of_reals(const Matmul *p, real *memory) { gemm_part(p, memory, false); }
static inline void gemm_part_of_pairs(const Matmul *p, real *memory) { gemm_part(p, memory, true); }

// C is divided into threads / cols x cols parts; returns cols. If rows are divided, each thread packs all of B, and its
// rows of A are in its cache from the operation before. Columns are divided only if a part would have fewer than
// GEMM_PART_ROWS rows.
static inline int gemm_part_columns(const Matmul *p, int threads) {
    int parts = 1, tiles = (int)((p->N + GEMM_COLS - 1) / GEMM_COLS);
    for (int cols = 1; cols <= tiles && p->M < GEMM_PART_ROWS * (size_t)(threads / parts); cols++) {
        if (threads % cols == 0) { parts = cols; }
    }
    return parts;
}

// the first element of part `at`, where `count` elements are divided into `parts` parts of whole tiles
static inline size_t gemm_part_start(size_t count, size_t tile, int at, int parts) {
    size_t end = (count + tile - 1) / tile * (size_t)at / (size_t)parts * tile;
    return end < count ? end : count;
}

// All threads of a parallel region call gemm, share the work and wait for the end.
static inline void gemm(const Matmul *p) {
    int threads = omp_get_num_threads(), cols = gemm_part_columns(p, threads), rows = threads / cols;
    real *memory = (real *)xaligned(64, GEMM_MEMORY * sizeof(real));
#pragma omp for schedule(static, 1)
    for (int t = 0; t < threads; t++) {
        int row = t / cols, col = t % cols;
        size_t i = gemm_part_start(p->M, GEMM_ROWS, row, rows), j = gemm_part_start(p->N, GEMM_COLS, col, cols);
        size_t at = i * p->c.row + j;
        Matmul part = *p;
        part.M = gemm_part_start(p->M, GEMM_ROWS, row + 1, rows) - i;
        part.N = gemm_part_start(p->N, GEMM_COLS, col + 1, cols) - j;
        part.a = matrix_from(p->a, i, 0);
        part.b = matrix_from(p->b, 0, j);
        part.c = matrix_from(p->c, i, j);
        part.bias = p->bias ? p->bias + j : NULL;
        part.residual = p->residual ? p->residual + at : NULL;
        part.gelu_pre = p->gelu_pre ? p->gelu_pre + at : NULL;
        part.gelu = p->gelu ? p->gelu + at : NULL;
        if (p->bf16_inputs) {
            gemm_part_of_pairs(&part, memory);
        } else {
            gemm_part_of_reals(&part, memory);
        }
    }
    free(memory);
}
