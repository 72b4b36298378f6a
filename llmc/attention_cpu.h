/*
Causal attention on the CPU.
A thread computes one head of one sequence, TILE_N queries at a time. Scores are transposed, (keys, queries), and exist
for these queries only: T x TILE_N, never T x T. Keys after the last query of a tile are skipped, which halves the work.
Heads are copied into rows of real, padded to whole tiles, so one code path serves every head size and storage type.
*/
#pragma once
#include "llmc/attention.h"
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include "llmc/common/vectors.h"
#include <assert.h>

// ---- the inner GEMM: a tile of C in registers
// C (TILE_M, columns) = or += A (TILE_M, K) B (K, columns). A's elements are broadcast one by one, so A may have any
// strides; rows of B and C are contiguous. TILE_N is two vector registers wide, and TILE_M rows of C take half of the
// registers.

#if defined(__AVX512F__) || (defined(__aarch64__) && !defined(PRECISION_FP64))
enum { TILE_M = 8 };  // 16 sums in 32 registers
#else
enum { TILE_M = 4 };  // 8 sums in 16 registers
#endif
enum { TILE_N = 2 * (int)VECTOR_LANES };
static_assert((int)TILE_N % (int)TILE_M == 0, "TILE_N queries are whole tiles of TILE_M rows");

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

// ---- tiles of a head

// out (rows_padded, width) = scale * in (rows, HS), rows `in_row` elements apart; zeros in the padding
static inline void attention_load(real *out, const floatX *in, size_t in_row, int rows, int rows_padded, int HS,
                                  int width, real scale) {
    for (int r = 0; r < rows; r++) {
        const floatX *from = in + (size_t)r * in_row;
        // prefetch the same row of the next head, which this thread loads next: rows are too far apart for the hardware
        for (int d = 0; d < HS; d += CACHE_LINE / (int)sizeof(floatX)) { __builtin_prefetch(from + HS + d); }
        for (int v = 0; v < width; v += VECTOR_LANES) {
            real *to = out + (size_t)r * width + v;
            if (v + VECTOR_LANES <= HS) {
                vec_store(to, scale * vec_of(from + v));
            } else {
                for (int i = 0; i < VECTOR_LANES; i++) { to[i] = v + i < HS ? scale * to_real(from[v + i]) : 0; }
            }
        }
    }
    memset(out + (size_t)rows * width, 0, (size_t)(rows_padded - rows) * width * sizeof(real));
}

// out (width, TILE_N) = in (TILE_N, width)^T
static inline void attention_transpose(real *out, const real *in, int width) {
    for (int q = 0; q < TILE_N; q += VECTOR_LANES) {
        for (int d = 0; d < width; d += VECTOR_LANES) {
            vec row[VECTOR_LANES];
            UNROLL_ALL
            for (int i = 0; i < VECTOR_LANES; i++) { row[i] = vec_load(in + (size_t)(q + i) * width + d); }
            vec_transpose(row);
            UNROLL_ALL
            for (int i = 0; i < VECTOR_LANES; i++) { vec_store(out + (size_t)(d + i) * TILE_N + q, row[i]); }
        }
    }
}

// out (rows, HS), rows `out_row` elements apart, = scale * in (rows, width)
static inline void attention_store(floatX *out, size_t out_row, const real *in, int rows, int HS, int width,
                                   real scale) {
    for (int r = 0; r < rows; r++) {
#pragma omp simd
        for (int d = 0; d < HS; d++) { out[(size_t)r * out_row + d] = to_floatX(scale * in[(size_t)r * width + d]); }
    }
}

// out (keys, TILE_N) = rows (keys, width) columns (HS, TILE_N): scores, or dout . V. Scores of the first VECTOR_LANES
// queries are left out for keys after these queries: nothing uses them.
static inline void attention_scores(real *out, const real *rows, const real *columns, int first_query, int keys, int HS,
                                    int width) {
    for (int k = 0; k < keys; k += TILE_M) {
        real *to = out + (size_t)k * TILE_N;
        if (k < first_query + VECTOR_LANES) {
            tile_multiply(to, TILE_N, rows + (size_t)k * width, (size_t)width, 1, columns, TILE_N, HS, TILE_N, false);
        } else {
            tile_multiply(to + VECTOR_LANES, TILE_N, rows + (size_t)k * width, (size_t)width, 1, columns + VECTOR_LANES,
                          TILE_N, HS, VECTOR_LANES, false);
        }
    }
}

// scores (keys, TILE_N) = -inf for keys after their query
static inline void attention_mask(real *scores, int first_query, int keys) {
    VecBits lane;
    UNROLL_ALL
    for (int i = 0; i < VECTOR_LANES; i++) { lane[i] = i; }
    for (int k = first_query; k < keys; k++) {
        UNROLL_ALL
        for (int j = 0; j < 2; j++) {
            real *s = scores + (size_t)k * TILE_N + j * VECTOR_LANES;
            VecBits visible = lane + j * VECTOR_LANES >= (VecBits){0} + (k - first_query);
            vec_store(s, vec_select(visible, vec_load(s), (vec){0} - (real)INFINITY));
        }
    }
}

// scores (keys, TILE_N) = exp(scores - top), which is 0 for keys after their query. Writes top and sum (TILE_N): the
// largest score of each query, and the sum of its exponentials
static inline void attention_softmax(real *scores, real *top, real *sum, int keys) {
    vec largest[2] = {vec_load(scores), vec_load(scores + VECTOR_LANES)};  // key 0 is visible to every query
    for (int k = 1; k < keys; k++) {
        largest[0] = vec_max(vec_load(scores + (size_t)k * TILE_N), largest[0]);
        largest[1] = vec_max(vec_load(scores + (size_t)k * TILE_N + VECTOR_LANES), largest[1]);
    }
    vec_store(top, largest[0]);
    vec_store(top + VECTOR_LANES, largest[1]);
    memset(sum, 0, TILE_N * sizeof(real));
    for (int k = 0; k < keys; k++) {
        real *s = scores + (size_t)k * TILE_N;
#pragma omp simd
        for (int q = 0; q < TILE_N; q++) {
            s[q] = fast_exp(s[q] - top[q]);
            sum[q] += s[q];
        }
    }
}

// out (TILE_N, width) = scores (keys, TILE_N)^T rows (keys, width): a sum over keys, up to the last visible one
static inline void attention_sum_keys(real *out, const real *scores, const real *rows, int first_query, int keys,
                                      int width) {
    for (int q = 0; q < TILE_N; q += TILE_M) {
        int visible = first_query + q + TILE_M < keys ? first_query + q + TILE_M : keys;
        for (int d = 0; d < width; d += TILE_N) {
            tile_multiply(out + (size_t)q * width + d, (size_t)width, scores + q, 1, TILE_N, rows + d, (size_t)width,
                          visible, TILE_N, false);
        }
    }
}

// out (keys, width) (+)= scores (keys, TILE_N) rows (TILE_N, width): a sum over queries
static inline void attention_sum_queries(real *out, const real *scores, const real *rows, int first_query, int keys,
                                         int width, bool add) {
    for (int k = 0; k < keys; k += TILE_M) {
        int skip = k > first_query ? k - first_query : 0;  // queries before key k do not attend to it
        for (int d = 0; d < width; d += TILE_N) {
            tile_multiply(out + (size_t)k * width + d, (size_t)width, scores + (size_t)k * TILE_N + skip, TILE_N, 1,
                          rows + (size_t)skip * width + d, (size_t)width, TILE_N - skip, TILE_N, add);
        }
    }
}

// out (queries, HS) = attention of queries [first_query, first_query + queries) over keys and values (rows, width).
// buffer: TILE_N (2 width + rows) of real
static inline void attention_tile(floatX *out, size_t out_row, real *lse, const floatX *in, size_t in_row,
                                  const real *keys, const real *values, real *buffer, int first_query, int queries,
                                  int HS, int width) {
    int num_keys = round_up(first_query + queries, TILE_M);
    real top[TILE_N], sum[TILE_N];
    real *query = buffer, *transposed = query + (size_t)TILE_N * width, *scores = transposed + (size_t)TILE_N * width;
    attention_load(query, in, in_row, queries, TILE_N, HS, width, 1 / REAL_MATH(sqrt)((real)HS));
    attention_transpose(transposed, query, width);
    attention_scores(scores, keys, transposed, first_query, num_keys, HS, width);
    attention_mask(scores, first_query, num_keys);
    attention_softmax(scores, top, sum, num_keys);
    attention_sum_keys(query, scores, values, first_query, num_keys, width);
    for (int q = 0; q < queries; q++) {
        attention_store(out + (size_t)q * out_row, out_row, query + (size_t)q * width, 1, HS, width, 1 / sum[q]);
        lse[q] = top[q] + REAL_MATH(log)(sum[q]);
    }
}

static inline void cpu_attention_forward(floatX *out, real *lse, const floatX *qkv, int B, int T, int NH, int HS,
                                         Exec *ex) {
    (void)ex;
    int width = round_up(HS, TILE_N), rows = round_up(T, TILE_M);
    size_t C = (size_t)NH * HS, head = (size_t)rows * width;
#pragma omp parallel
    {
        real *keys = (real *)xmalloc((2 * head + (size_t)TILE_N * (2 * width + rows)) * sizeof(real));
        real *values = keys + head, *buffer = values + head;
#pragma omp for schedule(static)
        for (size_t bh = 0; bh < (size_t)B * NH; bh++) {
            size_t row = bh / NH * T, h = bh % NH * HS;
            const floatX *q = qkv + row * 3 * C + h;
            attention_load(keys, q + C, 3 * C, T, rows, HS, width, 1);
            attention_load(values, q + 2 * C, 3 * C, T, rows, HS, width, 1);
            for (int t = 0; t < T; t += TILE_N) {
                int queries = T - t < TILE_N ? T - t : TILE_N;
                attention_tile(out + (row + t) * C + h, C, lse + bh * T + t, q + (size_t)t * 3 * C, 3 * C, keys, values,
                               buffer, t, queries, HS, width);
            }
        }
        free(keys);
    }
}

// out (HS) = attention of one query over num_keys rows of the cache, in one pass (online softmax; Milakov, Gimelshein
// 2018). sums: HS of real, scratch
static inline void attention_decode_row(floatX *out, const floatX *query, const floatX *keys, const floatX *values,
                                        real *sums, size_t C, int num_keys, int HS) {
    real top = 0, sum = 0, scale = 1 / REAL_MATH(sqrt)((real)HS);
    for (int k = 0; k < num_keys; k++) {
        const floatX *key = keys + (size_t)k * C, *value = values + (size_t)k * C;
        real score = 0;
#pragma omp simd reduction(+ : score)
        for (int d = 0; d < HS; d++) { score += to_real(query[d]) * to_real(key[d]); }
        score *= scale;
        real shrink = 1;
        if (k == 0 || score > top) {
            shrink = k == 0 ? 0 : fast_exp(top - score);
            top = score;
        }
        real p = fast_exp(score - top);
        sum = sum * shrink + p;
#pragma omp simd
        for (int d = 0; d < HS; d++) { sums[d] = (k == 0 ? 0 : sums[d] * shrink) + p * to_real(value[d]); }
    }
    for (int d = 0; d < HS; d++) { out[d] = to_floatX(sums[d] / sum); }
}

static inline void cpu_attention_decode(floatX *out, floatX *keys, floatX *values, const floatX *qkv, int pos, int n,
                                        int NH, int HS, Exec *ex) {
    (void)ex;
    size_t C = (size_t)NH * HS;
    for (int i = 0; i < n; i++) {
        memcpy(keys + (size_t)(pos + i) * C, qkv + ((size_t)i * 3 + 1) * C, C * sizeof(floatX));
        memcpy(values + (size_t)(pos + i) * C, qkv + ((size_t)i * 3 + 2) * C, C * sizeof(floatX));
    }
#pragma omp parallel
    {
        real *sums = (real *)xmalloc((size_t)HS * sizeof(real));
#pragma omp for schedule(static)
        for (size_t ih = 0; ih < (size_t)n * NH; ih++) {
            size_t i = ih / NH, h = ih % NH * HS;
            attention_decode_row(out + i * C + h, qkv + i * 3 * C + h, keys + h, values + h, sums, C, pos + (int)i + 1,
                                 HS);
        }
        free(sums);
    }
}

// The gradients from queries [first_query, first_query + queries). Sets dq; adds to dkeys and dvalues, or sets them if
// `add` is false. q, out and dout point at the first of these queries. keys, values, dkeys, dvalues: (rows, width).
// buffer: TILE_N (3 width + 2 rows) of real
static inline void attention_backward_tile(floatX *dq, const floatX *q, const floatX *out, const floatX *dout,
                                           const real *lse, size_t C, const real *keys, const real *values, real *dkeys,
                                           real *dvalues, real *buffer, int first_query, int queries, int HS, int width,
                                           bool add) {
    size_t tile = (size_t)TILE_N * width;
    real *query = buffer, *query_dout = query + tile, *transposed = query_dout + tile;
    real scale = 1 / REAL_MATH(sqrt)((real)HS);
    int num_keys = round_up(first_query + queries, TILE_M);
    real *scores = transposed + tile, *dscores = scores + (size_t)num_keys * TILE_N;
    real log_sum[TILE_N] = {0}, delta[TILE_N] = {0};
    attention_load(query, q, 3 * C, queries, TILE_N, HS, width, scale);
    attention_load(query_dout, dout, C, queries, TILE_N, HS, width, 1);
    for (int i = 0; i < queries; i++) {
        const floatX *dout_i = dout + (size_t)i * C, *out_i = out + (size_t)i * C;
        real dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int d = 0; d < HS; d++) { dot += to_real(dout_i[d]) * to_real(out_i[d]); }
        delta[i] = dot;
        log_sum[i] = lse[i];
    }
    attention_transpose(transposed, query, width);
    attention_scores(scores, keys, transposed, first_query, num_keys, HS, width);
    attention_transpose(transposed, query_dout, width);
    attention_scores(dscores, values, transposed, first_query, num_keys, HS, width);
    attention_mask(scores, first_query, num_keys);
    for (int k = 0; k < num_keys; k++) {
        real *s = scores + (size_t)k * TILE_N, *ds = dscores + (size_t)k * TILE_N;
#pragma omp simd
        for (int i = 0; i < TILE_N; i++) {
            s[i] = fast_exp(s[i] - log_sum[i]);
            ds[i] = s[i] * (ds[i] - delta[i]);
        }
    }
    attention_sum_queries(dvalues, scores, query_dout, first_query, num_keys, width, add);
    attention_sum_queries(dkeys, dscores, query, first_query, num_keys, width, add);
    attention_sum_keys(query, dscores, keys, first_query, num_keys, width);
    attention_store(dq, 3 * C, query, queries, HS, width, scale);
}

static inline void cpu_attention_backward(floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out,
                                          const real *lse, int B, int T, int NH, int HS, Exec *ex) {
    (void)ex;
    int width = round_up(HS, TILE_N), rows = round_up(T, TILE_M);
    size_t C = (size_t)NH * HS, head = (size_t)rows * width;
#pragma omp parallel
    {
        real *keys = (real *)xmalloc((4 * head + (size_t)TILE_N * (3 * width + 2 * rows)) * sizeof(real));
        real *values = keys + head, *dkeys = values + head, *dvalues = dkeys + head, *buffer = dvalues + head;
#pragma omp for schedule(static)
        for (size_t bh = 0; bh < (size_t)B * NH; bh++) {
            size_t row = bh / NH * T, h = bh % NH * HS;
            const floatX *q = qkv + row * 3 * C + h;
            floatX *dq = dqkv + row * 3 * C + h;
            attention_load(keys, q + C, 3 * C, T, rows, HS, width, 1);
            attention_load(values, q + 2 * C, 3 * C, T, rows, HS, width, 1);
            int last = (T - 1) / TILE_N * TILE_N;  // the last tile has all keys: it goes first and sets dkeys, dvalues
            for (int t = last; t >= 0; t -= TILE_N) {
                int queries = T - t < TILE_N ? T - t : TILE_N;
                size_t at = (row + t) * C + h;
                attention_backward_tile(dq + (size_t)t * 3 * C, q + (size_t)t * 3 * C, out + at, dout + at,
                                        lse + bh * T + t, C, keys, values, dkeys, dvalues, buffer, t, queries, HS,
                                        width, t < last);
            }
            attention_store(dq + C, 3 * C, dkeys, T, HS, width, 1);
            attention_store(dq + 2 * C, 3 * C, dvalues, T, HS, width, 1);
        }
        free(keys);
    }
}
