/*
Token plus position embedding on the CPU. The backward adds up a token's rows in order, then adds the sum to the
gradient: the sum has one order with any number of threads.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include "llmc/embedding.h"
#include "llmc/gradient_cpu.h"
#include "llmc/ops.h"

static inline void cpu_embedding_forward(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe, int B,
                                         int T, int C, Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (size_t n = 0; n < (size_t)B * T; n++) {
        const floatX *token = wte + (size_t)tokens[n] * C;
        const floatX *position = wpe + n % T * C;
        floatX *row = out + n * C;
#pragma omp simd
        for (int c = 0; c < C; c++) { row[c] = to_floatX(to_real(token[c]) + to_real(position[c])); }
    }
}

static inline void cpu_token_embedding_forward(floatX *out, const int *tokens, const floatX *wte, int first, int rows,
                                               int N, int C, Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        int token = tokens[n] - first;
        bool here = token >= 0 && token < rows;
        floatX *row = out + (size_t)n * C;
        for (int c = 0; c < C; c++) { row[c] = here ? wte[(size_t)token * C + c] : to_floatX(0); }
    }
}

static inline void cpu_position_embedding_forward(floatX *out, const floatX *wpe, int first, int N, int T, int C,
                                                  Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const floatX *position = wpe + (size_t)((first + n) % T) * C;
        floatX *row = out + (size_t)n * C;
#pragma omp simd
        for (int c = 0; c < C; c++) { row[c] = to_floatX(to_real(row[c]) + to_real(position[c])); }
    }
}

enum { EMBEDDING_COLUMN_BLOCK = 64 };  // channels with sums in a thread's registers

// The rows of each token in [begin, begin + rows) as a linked list, in order. Returns next, which the caller frees:
// next[row] is the row after `row`, N at the end. (*first)[token - begin] is a token's first row, in the memory behind
// next.
static inline int *embedding_chains(int **first, const int *tokens, int begin, int rows, int N) {
    int most = 0;
    for (int n = 0; n < N; n++) {
        int token = tokens[n] - begin;
        most = token < rows && token > most ? token : most;
    }
    int *next = (int *)xmalloc(((size_t)N + (size_t)most + 1) * sizeof(int));
    *first = next + N;
    for (int row = 0; row <= most; row++) { (*first)[row] = N; }
    for (int n = N - 1; n >= 0; n--) {
        int token = tokens[n] - begin;
        if (token < 0 || token >= rows) { continue; }
        next[n] = (*first)[token];
        (*first)[token] = n;
    }
    return next;
}

static inline void embedding_add_row(real *sum, const floatX *row, int width) {
#pragma omp simd
    for (int c = 0; c < width; c++) { sum[c] += to_real(row[c]); }
}

// g (C) += row `row` of dout (N,C) and the rows that follow it in its list
static inline void embedding_backward_token(Gradient g, const floatX *dout, const int *next, int row, int N, int C) {
    for (int begin = 0; begin < C; begin += EMBEDDING_COLUMN_BLOCK) {
        int width = C - begin < EMBEDDING_COLUMN_BLOCK ? C - begin : (int)EMBEDDING_COLUMN_BLOCK;
        real sum[EMBEDDING_COLUMN_BLOCK] = {0};
        for (int n = row; n < N; n = next[n]) { embedding_add_row(sum, dout + (size_t)n * C + begin, width); }
        gradient_store(g, (size_t)begin, sum, (size_t)width, GRAD_ADD);
    }
}

// g (C) (+)= rows row, row + T, row + 2T, ... of dout (N,C)
static inline void embedding_backward_position(Gradient g, const floatX *dout, int row, GradMode mode, int N, int T,
                                               int C) {
    for (int begin = 0; begin < C; begin += EMBEDDING_COLUMN_BLOCK) {
        int width = C - begin < EMBEDDING_COLUMN_BLOCK ? C - begin : (int)EMBEDDING_COLUMN_BLOCK;
        real sum[EMBEDDING_COLUMN_BLOCK] = {0};
        for (int n = row; n < N; n += T) { embedding_add_row(sum, dout + (size_t)n * C + begin, width); }
        gradient_store(g, (size_t)begin, sum, (size_t)width, mode);
    }
}

static inline void cpu_token_embedding_backward(Gradient dwte, const floatX *dout, const int *tokens, int first,
                                                int rows, int N, int C, Exec *ex) {
    (void)ex;
    int *first_row, *next = embedding_chains(&first_row, tokens, first, rows, N);
#pragma omp parallel for schedule(static, 4)
    for (int n = 0; n < N; n++) {  // most first rows are early: small chunks balance the threads
        int token = tokens[n] - first;
        if (token < 0 || token >= rows || first_row[token] != n) { continue; }
        embedding_backward_token(gradient_at(dwte, (size_t)token * C), dout, next, n, N, C);
    }
    free(next);
}

static inline void cpu_position_embedding_backward(Gradient dwpe, const floatX *dout, GradMode mode, int first, int N,
                                                   int T, int maxT, int C, Exec *ex) {
    (void)ex;
    int positions = mode == GRAD_SET ? maxT : T;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < positions; t++) {
        int row = t < T ? (t + T - first % T) % T : N;  // the position's first row; from T on there is none
        embedding_backward_position(gradient_at(dwpe, (size_t)t * C), dout, row, mode, N, T, C);
    }
}

static inline void cpu_embedding_backward(Gradient dwte, Gradient dwpe, const floatX *dout, const int *tokens,
                                          GradMode mode, int B, int T, int maxT, int C, Exec *ex) {
    cpu_position_embedding_backward(dwpe, dout, mode, 0, B * T, T, maxT, C, ex);
    cpu_token_embedding_backward(dwte, dout, tokens, 0, INT_MAX, B * T, C, ex);
}
