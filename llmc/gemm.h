/*
The GEMM of the CPU backend, in C with vector registers.
  C (M,N) = or += A (M,K) B (K,N) + bias (N) + residual (M,N);  C *= slope(pre (M,N));  activated (M,N) = function(C)
Operands are strided views, so a transpose swaps two strides. A and B are float, double or bf16. Sums have the type
real, and run over k in order, in blocks of GEMM_K. C is rounded once. With `pre` the product is rounded, multiplied by
the slope, and rounded again.
  part   of C: one thread computes it (gemm_part)
  area   of a part: GEMM_AREA_N columns, or what the buffer of sums holds (gemm_area)
  block  of an area: GEMM_M rows, GEMM_K of k, GEMM_N columns or more (gemm_block); its B, 384 KB, stays in the L2 cache
  panel  of a block: GEMM_COLS columns (gemm_panel)
  tile   of a panel: GEMM_ROWS rows, with sums in registers (gemm_tile; read it first)
Most operands of a training step are not in the cache. So each tile prefetches its part of C, and a little of the A and
B that later tiles read.
With `bf16_inputs` A and B are rounded to bf16 while they are packed, in pairs of neighbouring k. One instruction
multiplies and adds a pair (AVX512-BF16). A pair has the size of a float, and the code of both cases is the same.
A sum does not depend on the number of threads.
Source      packing and loops: Goto, van de Geijn, "Anatomy of high-performance matrix multiplication", 2008, with the
            roles of A and B exchanged
*/
#pragma once
#include "llmc/activation_cpu.h"
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include "llmc/common/vectors.h"
#include "llmc/gradient_cpu.h"
#include "llmc/ops.h"
#include <assert.h>
#include <float.h>
#include <omp.h>

// 1: `bf16_inputs` works (fp32, AVX512-BF16). 0 under nvcc, whose versions 12.4 to 12.6 cannot read gcc 13's header
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

// A GEMM, or one thread's part of it, which may be empty. M, N and K are BLAS's: in the forward the micro-batch's rows,
// the output channels and the input channels. residual, pre and activated have the row stride of C. K is 1 or more.
typedef struct {
    Matrix c, a, b;          // C: real or bf16; floatX if pre or activated is set. A row is contiguous
    const floatX *bias;      // NULL: none; the same for the next three
    const floatX *residual;  // may be C
    const floatX *pre;       // backward: C is multiplied by the activation's slope at pre
    floatX *activated;       // forward: the activation of C
    ActivationFunction function;
    bool accumulate;   // C += instead of C =; residual is NULL
    bool bf16_inputs;  // only if GEMM_HAS_BF16
    size_t M, N, K;
} Matmul;

// A tile is GEMM_ROWS rows and GEMM_VECTORS vectors of sums. A thread packs GEMM_K rows, or pairs of rows, and GEMM_N
// columns of B at once, or more columns if K is small. GEMM_GROUP rows of A are packed side by side: tiles fit into a
// group, and groups into GEMM_M rows.
#if defined(__AVX512F__) || defined(__aarch64__)
// 24 sums in 32 registers. With AVX-512 a panel of B has 96 KB, and is read from the L2 cache
enum { GEMM_VECTORS = 4, GEMM_K = 384, GEMM_N = 256, GEMM_GROUP = 48 };
#else
// 12 sums in 16 registers. With AVX2 a panel of B (16 KB) and a tile of A (6 KB) stay in the L1 cache
enum { GEMM_VECTORS = 2, GEMM_K = 256, GEMM_N = 384, GEMM_GROUP = 6 };
#endif
enum {
    GEMM_ROWS = 6,
    GEMM_COLS = (int)GEMM_VECTORS * (int)VECTOR_LANES,
    GEMM_M = 8 * GEMM_ROWS,  // rows of A that are packed at once
    GEMM_AREA_N = 768,       // columns of an area, if C holds the sums
    GEMM_SUMS_M = 384,       // rows of C with sums in a buffer, if C cannot hold them
    GEMM_PART_ROWS = 192,    // a thread packs B for this many rows or more, if it can
    // Contiguous rows of A are copied into tiles if the thread's part of C has GEMM_PACK_N columns or more: for fewer
    // the copy costs more than it saves. A vector must hold the rows of a tile. With AVX-512 the copy never paid
    GEMM_PACKS_TILES = (int)GEMM_GROUP == GEMM_ROWS && VECTOR_LANES >= GEMM_ROWS,
    GEMM_PACK_N = 640
};
static_assert((int)GEMM_N % GEMM_COLS == 0 && GEMM_AREA_N % GEMM_COLS == 0, "whole panels");
static_assert((int)GEMM_GROUP % GEMM_ROWS == 0 && (int)GEMM_M % GEMM_GROUP == 0, "whole tiles and groups");
static_assert(GEMM_ROWS <= 6, "gemm_tile has instances for 1 to 6 rows");

// count / size, rounded up
static inline int gemm_divide_up(int count, int size) { return (count + size - 1) / size; }

// the smaller of size and left: the size of the next block
static inline int gemm_up_to(int size, size_t left) { return left < (size_t)size ? (int)left : size; }

// ---- packing. A unit is one element of A or B or, with `pairs`, two at neighbouring k, as two bf16 in one float.
// `operand` is A (M,K) or the transpose of B (N,K). Unit k begins at column k or, with pairs, 2 k. Units [0, depth) are
// packed: the first `whole` of them have all their elements; if K is odd, the last pair is an element and 0.

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

// unit k of row i
static inline real matrix_unit(Matrix operand, int i, int k, int whole, bool pairs) {
    size_t row = (size_t)i, col = (size_t)k;
    if (!pairs) { return matrix_element(operand, row, col); }
    uint32_t low = bf16_input(matrix_element(operand, row, 2 * col)).bits;
    uint32_t high = k < whole ? bf16_input(matrix_element(operand, row, 2 * col + 1)).bits : 0;
    return bits_to_float(low | high << 16);
}

// units_across_rows: the same unit of VECTOR_LANES neighbouring rows, from the reals at `first` and, with pairs,
// `second`. units_along_row: VECTOR_LANES neighbouring units of one row, from the reals at `first`.
ALWAYS_INLINE vec units_across_rows(const real *first, const real *second, bool pairs) {
#if GEMM_HAS_BF16
    if (pairs) {
        const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                                     7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(second), _mm512_loadu_ps(first));
        return (vec)_mm512_permutexvar_epi16(interleaved, (__m512i)both);
    }
#endif
    (void)second, (void)pairs;
    return vec_load(first);
}
ALWAYS_INLINE vec units_along_row(const real *first, bool pairs) {
#if GEMM_HAS_BF16
    if (pairs) { return (vec)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(first + VECTOR_LANES), _mm512_loadu_ps(first)); }
#endif
    (void)pairs;
    return vec_load(first);
}

// packed[k * width + i] = unit k of row i, for VECTOR_LANES rows of contiguous reals. If there are fewer `rows`, row 0
// stands in for the others. Returns the number of units packed: as many as fill vectors.
ALWAYS_INLINE int gemm_pack_rows(real *packed, int width, Matrix operand, int rows, int whole, bool pairs) {
    int step = pairs ? 2 : 1, k = 0;
    for (; k + VECTOR_LANES <= whole; k += VECTOR_LANES) {
        vec row[VECTOR_LANES];
        UNROLL_ALL
        for (int i = 0; i < VECTOR_LANES; i++) {
            size_t from = i < rows ? (size_t)i * operand.row : 0;
            row[i] = units_along_row((const real *)operand.data + from + (size_t)k * step, pairs);
        }
        vec_transpose(row);
        UNROLL_ALL
        for (int i = 0; i < VECTOR_LANES; i++) { vec_store(packed + (k + i) * width, row[i]); }
    }
    return k;
}

// packed (depth,GEMM_COLS) = units [0, depth) of `columns` columns of B, which are rows of operand; 0 in other columns
ALWAYS_INLINE void gemm_pack_b(real *packed, Matrix operand, int columns, int depth, int whole, bool pairs) {
    int k = 0;
    if (columns == GEMM_COLS && operand.dtype == DT_REAL && operand.col == 1) {
        for (int j = 0; j < GEMM_COLS; j += VECTOR_LANES) {
            Matrix rows = matrix_from(operand, (size_t)j, 0);
            k = gemm_pack_rows(packed + j, GEMM_COLS, rows, VECTOR_LANES, whole, pairs);
        }
    }
    for (; k < depth; k++) {
        for (int j = 0; j < GEMM_COLS; j++) {
            packed[k * GEMM_COLS + j] = j < columns ? matrix_unit(operand, j, k, whole, pairs) : 0;
        }
    }
}

// Rows of A, packed or in place. Unit k of row i is data[i * row + k] or, in groups of GEMM_GROUP rows (row is 0),
// data[(i / GEMM_GROUP * depth + k) * GEMM_GROUP + i % GEMM_GROUP].
typedef struct {
    const real *data;
    size_t row;
    bool in_groups;
} PackedRows;

// packed = units [0, depth) of `rows` contiguous rows of A, in groups of a tile. A vector has more lanes than a tile
// has rows: the next unit overwrites the surplus, and the last one writes beyond the last tile.
ALWAYS_INLINE void gemm_pack_tiles(real *packed, Matrix operand, int rows, int depth) {
    for (int i = 0; i < rows; i += GEMM_ROWS) {
        Matrix tile = matrix_from(operand, (size_t)i, 0);
        int height = gemm_up_to(GEMM_ROWS, (size_t)(rows - i));
        real *to = packed + i * depth;
        int k = gemm_pack_rows(to, GEMM_ROWS, tile, height, depth, false);
        for (; k < depth; k++) {
            for (int r = 0; r < height; r++) { to[k * GEMM_ROWS + r] = matrix_element(tile, (size_t)r, (size_t)k); }
        }
    }
}

// packed = units [0, depth) of `rows` rows of A of any strides, in groups
ALWAYS_INLINE void gemm_pack_groups(real *packed, Matrix operand, int rows, int depth, int whole, bool pairs) {
    bool vectors = operand.dtype == DT_REAL && operand.row == 1;
    for (int k = 0; k < depth; k++) {
        real buffer[GEMM_M];  // unit k of all rows
        const real *units = buffer, *first = NULL;
        if (vectors) { first = (const real *)operand.data + (size_t)k * (pairs ? 2 : 1) * operand.col; }
        int i = 0, g = 0;
        if (vectors && !pairs) {
            units = first;
            i = rows;
        } else if (vectors && k < whole) {
            for (; i + VECTOR_LANES <= rows; i += VECTOR_LANES) {
                vec_store(buffer + i, units_across_rows(first + i, first + operand.col + i, pairs));
            }
        }
        for (; i < rows; i++) { buffer[i] = matrix_unit(operand, i, k, whole, pairs); }
        real *to = packed + k * GEMM_GROUP;
        for (; g + GEMM_GROUP <= rows; g += GEMM_GROUP) {  // the constant size becomes a few moves
            memcpy(to + g * depth, units + g, GEMM_GROUP * sizeof(real));
        }
        for (int r = g; r < rows; r++) { to[g * depth + r - g] = units[r]; }
    }
}

// packed (rows,depth) = pairs [0, depth) of `rows` contiguous rows of A
ALWAYS_INLINE void gemm_pack_row_pairs(real *packed, Matrix operand, int rows, int depth, int whole) {
    for (int i = 0; i < rows; i++) {
        const real *row = (const real *)operand.data + (size_t)i * operand.row;
        real *to = packed + (size_t)i * depth;
        int k = 0;
        for (; k + VECTOR_LANES <= whole; k += VECTOR_LANES) {
            vec_store(to + k, units_along_row(row + 2 * (size_t)k, true));
        }
        for (; k < depth; k++) { to[k] = matrix_unit(operand, i, k, whole, true); }
    }
}

// Packs units [0, depth) of `rows` rows of A, unless A can be read where it is. N: columns of the thread's part of C
ALWAYS_INLINE PackedRows gemm_pack_a(real *packed, Matrix operand, int rows, int depth, int whole, size_t N,
                                     bool pairs) {
    PackedRows in_groups = {packed, 0, true}, in_rows = {packed, (size_t)depth, false};
    PackedRows in_place = {(const real *)operand.data, operand.row, false};
    if (operand.dtype != DT_REAL || operand.col != 1) {
        gemm_pack_groups(packed, operand, rows, depth, whole, pairs);
        return in_groups;
    }
    if (pairs) {
        gemm_pack_row_pairs(packed, operand, rows, depth, whole);
        return in_rows;
    }
    if (!GEMM_PACKS_TILES || N < GEMM_PACK_N) { return in_place; }
    gemm_pack_tiles(packed, operand, rows, depth);
    return in_groups;
}

// ---- prefetching into the L2 cache, a few rows at a time

typedef struct {
    const char *at;
    size_t stride;           // bytes from row to row
    int rows, bytes, burst;  // rows left, the bytes of each, and the rows of one prefetch
} Prefetch;

// m (rows,cols) in `turns` calls of prefetch
ALWAYS_INLINE Prefetch prefetch_of(Matrix m, size_t rows, size_t cols, int turns) {
    bool by_cols = m.row == 1;
    size_t size = dtype_size(m.dtype), count = by_cols ? cols : rows, length = by_cols ? rows : cols;
    Prefetch p = {(const char *)m.data, (by_cols ? m.col : m.row) * size, (int)count, (int)(length * size),
                  gemm_divide_up((int)count, turns)};
    return p;
}

ALWAYS_INLINE void prefetch(Prefetch *p) {
    for (int r = 0; r < p->burst && p->rows > 0; r++, p->rows--, p->at += p->stride) {
        for (int at = 0; at < p->bytes; at += CACHE_LINE) { __builtin_prefetch(p->at + at, 0, 2); }
    }
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

// The arguments of gemm_panel: a block of A (rows,depth), of at most GEMM_M rows, times a panel of B (depth,GEMM_COLS)
typedef struct {
    int rows, depth;
    real *out;  // (rows,GEMM_COLS) of C, or of a buffer: element (i,j) is out[i * row + j]
    size_t row;
    const real *addend;  // (rows,GEMM_COLS) added to the sums, with out's row stride; NULL: none. May be out
    const real *bias;    // (GEMM_COLS) added to each row; NULL: none
    PackedRows a;
    real *b;             // (depth,GEMM_COLS)
    const real *source;  // B's columns in memory, from which the first tile packs b; NULL: b is packed
    size_t source_row;   // reals from row to row of source; a pair is of two rows
    Prefetch *next_a;    // A of the next block; all panels of a block share it
    Prefetch next_b;     // the next panel of B
} Panel;

// out (rows,GEMM_COLS) = A (rows,depth) B (depth,GEMM_COLS) + addend + bias, for the panel's rows from `first` on
ALWAYS_INLINE void gemm_tile(Panel *p, int first, int rows, bool packs, bool in_groups, bool pairs) {
    size_t row = p->row, a_row = p->a.row, source_row = p->source_row;
    int depth = p->depth, group = first / GEMM_GROUP * GEMM_GROUP;
    const real *a = p->a.data + (in_groups ? (size_t)(group * depth + first - group) : (size_t)first * a_row);
    const real *a_3 = a + 3 * a_row;  // rows 3 to 5 from a second pointer: with one for each row gcc spills
    const real *source = p->source, *addend = p->addend ? p->addend + (size_t)first * row : NULL;
    real *out = p->out + (size_t)first * row, *b = p->b;
    vec sum[GEMM_ROWS][GEMM_VECTORS];
    prefetch(&p->next_b);
    prefetch(p->next_a);
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        UNROLL_ALL
        for (int j = 0; j < GEMM_VECTORS; j++) { sum[i][j] = (vec){0}; }
        UNROLL_ALL
        for (int j = 0; j < GEMM_COLS; j += CACHE_LINE / (int)sizeof(real)) {
            __builtin_prefetch(out + i * row + j, 1);  // written after the loop
        }
    }
    UNROLL_4
    for (int k = 0; k < depth; k++) {
        vec b_k[GEMM_VECTORS];
        UNROLL_ALL
        for (int j = 0; j < GEMM_VECTORS; j++) {
            real *packed = b + k * GEMM_COLS + j * VECTOR_LANES;
            if (packs) {
                const real *from = source + k * (pairs ? 2 : 1) * source_row + j * VECTOR_LANES;
                b_k[j] = units_across_rows(from, from + source_row, pairs);
                vec_store(packed, b_k[j]);
            } else {
                b_k[j] = vec_load(packed);
            }
        }
        UNROLL_ALL
        for (int i = 0; i < rows; i++) {
            real a_ik = in_groups ? a[k * GEMM_GROUP + i] : i < 3 ? a[i * a_row + k] : a_3[(i - 3) * a_row + k];
            UNROLL_ALL
            for (int j = 0; j < GEMM_VECTORS; j++) { sum[i][j] = multiply_add(sum[i][j], a_ik, b_k[j], pairs); }
        }
    }
    UNROLL_ALL
    for (int i = 0; i < rows; i++) {
        UNROLL_ALL
        for (int j = 0; j < GEMM_VECTORS; j++) {
            size_t at = i * row + j * VECTOR_LANES;
            if (addend) { sum[i][j] += vec_load(addend + at); }
            if (p->bias) { sum[i][j] += vec_load(p->bias + j * VECTOR_LANES); }
            vec_store(out + at, sum[i][j]);
        }
    }
}

// The panel's tiles: an instance for each number of rows, so that the sums stay in registers. If the first tile packs,
// it has GEMM_ROWS rows.
ALWAYS_INLINE void gemm_tiles(Panel p, bool in_groups, bool pairs) {
    int i = 0;
    if (p.source) {
        gemm_tile(&p, 0, GEMM_ROWS, true, in_groups, pairs);
        i = GEMM_ROWS;
    }
    for (; i + GEMM_ROWS <= p.rows; i += GEMM_ROWS) { gemm_tile(&p, i, GEMM_ROWS, false, in_groups, pairs); }
    switch (p.rows - i) {
    case 5: gemm_tile(&p, i, 5, false, in_groups, pairs); break;
    case 4: gemm_tile(&p, i, 4, false, in_groups, pairs); break;
    case 3: gemm_tile(&p, i, 3, false, in_groups, pairs); break;
    case 2: gemm_tile(&p, i, 2, false, in_groups, pairs); break;
    case 1: gemm_tile(&p, i, 1, false, in_groups, pairs); break;
    default: break;
    }
}

// Not inlined: inside gemm_block gcc spills registers in the tiles' loops.
NEVER_INLINE void gemm_panel_of_rows(const Panel *p) { gemm_tiles(*p, false, false); }
NEVER_INLINE void gemm_panel_of_groups(const Panel *p) { gemm_tiles(*p, true, false); }
NEVER_INLINE void gemm_panel_of_row_pairs(const Panel *p) { gemm_tiles(*p, false, true); }
NEVER_INLINE void gemm_panel_of_group_pairs(const Panel *p) { gemm_tiles(*p, true, true); }

ALWAYS_INLINE void gemm_panel(const Panel *p, bool pairs) {
    if (p->a.in_groups) {
        pairs ? gemm_panel_of_group_pairs(p) : gemm_panel_of_groups(p);
    } else {
        pairs ? gemm_panel_of_row_pairs(p) : gemm_panel_of_rows(p);
    }
}

// ---- C

// C's row i, columns [j, j + cols), before the activation, = or += sum + bias + residual. sum is modified
static inline void gemm_store(const Matmul *p, real *sum, size_t i, size_t j, int cols) {
    Gradient c = {(void *)p->c.data, p->c.dtype};
    size_t at = i * p->c.row + j;
    for (int x = 0; p->bias && x < cols; x++) { sum[x] += to_real(p->bias[j + x]); }
    for (int x = 0; p->residual && x < cols; x++) { sum[x] += to_real(p->residual[at + x]); }
    gradient_store(c, at, sum, (size_t)cols, p->accumulate ? GRAD_ADD : GRAD_SET);
}

// the activation, or its slope, for C's row i, columns [j, j + cols)
static inline void gemm_activation(const Matmul *p, size_t i, size_t j, int cols) {
    size_t at = i * p->c.row + j;
    floatX *c = (floatX *)p->c.data + at;
    if (p->pre) { activation_backward_row(c, c, p->pre + at, p->function, (size_t)cols); }
    if (p->activated) { activation_row(p->activated + at, c, p->function, (size_t)cols); }
}

// ---- one thread's part

// A thread's memory: packed A (GEMM_M,GEMM_K); packed B (GEMM_K,GEMM_N), or (depth,cols) of no more elements; and sums
// (GEMM_SUMS_M,GEMM_N) over the blocks of K so far, if C cannot hold them.
enum {
    GEMM_B = (int)GEMM_M * (int)GEMM_K + 16,  // + 16: what gemm_pack_tiles writes beyond A; B stays aligned to 64 bytes
    GEMM_SUMS = GEMM_B + (int)GEMM_K * (int)GEMM_N,
    GEMM_MEMORY = GEMM_SUMS + (int)GEMM_SUMS_M * (int)GEMM_N
};

// True if the sums of C's whole panels stay in C from block to block of k: C, bias and residual are real.
static inline bool gemm_sums_in_c(const Matmul *p) {
    return p->c.dtype == DT_REAL && (DT_FLOATX == DT_REAL || (!p->bias && !p->residual));
}

// Rows [i, i + rows) and columns [j, j + cols) of C, and `depth` units of k, the first `whole` with all their elements
typedef struct {
    size_t i, j;
    int rows, cols, depth, whole;
    bool first, last;  // of C's blocks of k
    bool pack_b;       // B is not packed yet
    PackedRows a;
    Matrix b;        // transposed
    real *memory;    // the thread's. At GEMM_B it has packed B (depth,cols), panel by panel
    size_t sums_at;  // where memory has the sums (rows,GEMM_N) so far; maybe beyond it, if C holds them
    Prefetch next_a;
} GemmBlock;

// the block's panel of C's columns [j, j + GEMM_COLS), with its sums in C
ALWAYS_INLINE Panel gemm_panel_in_c(const Matmul *p, const GemmBlock *block, size_t j) {
    size_t at = block->i * p->c.row + j;
    real *c = (real *)p->c.data + at;
    Panel panel = {.out = c, .row = p->c.row, .addend = c};
    if (block->first) {
        if (!p->accumulate) { panel.addend = p->residual ? (const real *)p->residual + at : NULL; }
        panel.bias = p->bias ? (const real *)p->bias + j : NULL;
    }
    return panel;
}

// Packs the panel's B, columns [j, j + width) of the block, or lets the first tile do it, if that reads whole vectors
// and has GEMM_ROWS rows. Prefetches the next panel.
ALWAYS_INLINE void gemm_pack_panel(Panel *panel, const GemmBlock *block, int j, int width, bool pairs) {
    Matrix b = matrix_from(block->b, (size_t)j, 0);
    if (block->cols - j >= 2 * GEMM_COLS) {
        size_t depth = (size_t)block->depth * (pairs ? 2 : 1);
        int tiles = gemm_divide_up(block->rows, GEMM_ROWS);
        panel->next_b = prefetch_of(matrix_from(b, GEMM_COLS, 0), GEMM_COLS, depth, tiles);
    }
    bool vectors = width == GEMM_COLS && b.dtype == DT_REAL && b.row == 1;
    if (block->rows >= GEMM_ROWS && vectors && block->whole == block->depth) {
        panel->source = (const real *)b.data;
        panel->source_row = b.col;
    } else {
        gemm_pack_b(panel->b, b, width, block->depth, block->whole, pairs);
    }
}

// Adds A B to the block's sums. Bias and residual are added with the first k to sums in C, with the last to others.
ALWAYS_INLINE void gemm_block(const Matmul *p, GemmBlock block, bool pairs) {
    for (int j = 0; j < block.cols; j += GEMM_COLS) {
        int width = gemm_up_to(GEMM_COLS, (size_t)(block.cols - j));
        bool in_c = gemm_sums_in_c(p) && width == GEMM_COLS;
        real *sums = in_c ? NULL : block.memory + block.sums_at + j;
        Panel panel = {.out = sums, .row = GEMM_N, .addend = block.first ? NULL : sums};
        if (in_c) { panel = gemm_panel_in_c(p, &block, block.j + j); }
        panel.rows = block.rows;
        panel.depth = block.depth;
        panel.a = block.a;
        panel.b = block.memory + GEMM_B + j * block.depth;
        panel.next_a = &block.next_a;
        if (block.pack_b) { gemm_pack_panel(&panel, &block, j, width, pairs); }
        gemm_panel(&panel, pairs);
        for (int i = 0; block.last && !in_c && i < block.rows; i++) {
            gemm_store(p, sums + i * GEMM_N, block.i + i, block.j + j, width);
        }
    }
    if (!block.last || (!p->pre && !p->activated)) { return; }
    for (int i = 0; i < block.rows; i++) { gemm_activation(p, block.i + i, block.j, block.cols); }
}

// Rows [m0, m1) and columns [n0, n1) of C. A block of B fills its buffer: the fewer units, the more columns.
ALWAYS_INLINE void gemm_area(const Matmul *p, real *memory, size_t m0, size_t m1, size_t n0, size_t n1, bool pairs) {
    size_t step = pairs ? 2 : 1, units = (p->K + step - 1) / step;
    for (size_t k0 = 0; k0 < units; k0 += GEMM_K) {
        int depth = gemm_up_to(GEMM_K, units - k0), most_cols = GEMM_K * GEMM_N / depth / GEMM_COLS * GEMM_COLS;
        size_t k = step * k0, next_k = k + step * depth;
        int whole = next_k <= p->K ? depth : depth - 1;
        for (size_t j = n0; j < n1; j += (size_t)most_cols) {
            int cols = gemm_up_to(most_cols, n1 - j);
            for (size_t i = m0; i < m1; i += GEMM_M) {
                int rows = gemm_up_to(GEMM_M, m1 - i);
                int tiles = gemm_divide_up(rows, GEMM_ROWS) * gemm_divide_up(cols, GEMM_COLS);
                GemmBlock block = {.i = i,
                                   .j = j,
                                   .rows = rows,
                                   .cols = cols,
                                   .depth = depth,
                                   .whole = whole,
                                   .first = k0 == 0,
                                   .last = k0 + depth == units,
                                   .pack_b = i == m0,
                                   .a = gemm_pack_a(memory, matrix_from(p->a, i, k), rows, depth, whole, p->N, pairs),
                                   .b = transposed(matrix_from(p->b, k, j)),
                                   .memory = memory,
                                   .sums_at = GEMM_SUMS + (i - m0) * GEMM_N};
                // next_a may reach beyond A, which has fewer rows: a prefetch does not fault
                bool more_rows = m1 - i > GEMM_M, same_k = more_rows || n1 - j > (size_t)most_cols;
                Matrix next = matrix_from(p->a, more_rows ? i + GEMM_M : m0, same_k ? k : next_k);
                if (same_k || next_k < p->K) { block.next_a = prefetch_of(next, GEMM_M, step * depth, tiles); }
                gemm_block(p, block, pairs);
            }
        }
    }
}

// If C holds the sums, an area is GEMM_AREA_N columns wide, so that more of it stays in the cache from one block of k
// to the next; limiting its rows too gains nothing. Otherwise an area is as large as the buffer of sums.
ALWAYS_INLINE void gemm_part(const Matmul *p, real *memory, bool pairs) {
    bool all_in_c = gemm_sums_in_c(p) && p->N % GEMM_COLS == 0;
    size_t rows = all_in_c ? p->M : (size_t)GEMM_SUMS_M, cols = all_in_c ? (size_t)GEMM_AREA_N : (size_t)GEMM_N;
    for (size_t i = 0; i < p->M; i += rows) {
        for (size_t j = 0; j < p->N; j += cols) {
            size_t end_i = p->M - i < rows ? p->M : i + rows, end_j = p->N - j < cols ? p->N : j + cols;
            gemm_area(p, memory, i, end_i, j, end_j, pairs);
        }
    }
}

// C is divided into (threads / cols) x cols parts; returns cols. If rows are divided, each thread packs all of B, and
// its rows of A are in its cache from the operation before. Columns are divided only if a part would have fewer than
// GEMM_PART_ROWS rows.
static inline int gemm_part_columns(const Matmul *p, int threads) {
    int cols = 1, panels = gemm_divide_up((int)p->N, GEMM_COLS);
    for (int n = 2; n <= panels && p->M < GEMM_PART_ROWS * (size_t)(threads / cols); n++) {
        if (threads % n == 0) { cols = n; }
    }
    return cols;
}

// the first element of part `at`, where `count` elements are divided into `parts` parts of whole tiles
static inline size_t gemm_part_start(size_t count, size_t tile, int at, int parts) {
    size_t start = (count + tile - 1) / tile * (size_t)at / (size_t)parts * tile;
    return start < count ? start : count;
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
        part.pre = p->pre ? p->pre + at : NULL;
        part.activated = p->activated ? p->activated + at : NULL;
        if (GEMM_HAS_BF16 && p->bf16_inputs) {  // two inlined copies: `pairs` is a constant in each
            gemm_part(&part, memory, true);
        } else {
            gemm_part(&part, memory, false);
        }
    }
    free(memory);
}
