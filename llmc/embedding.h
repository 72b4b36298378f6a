/*
Token plus position embedding.
  forward   out[b,t] = wte[tokens[b,t]] + wpe[t]
  backward  dwte[tokens[b,t]] += dout[b,t];  dwpe[t] (+)= sum_b dout[b,t]
Bytes       forward 3NC floatX; backward NC floatX + 2NC real or less, as tokens repeat.
A token may occur many times: the backward gives each thread a range of channels and walks the rows in order, so that
sums have one order whatever the number of threads.
defines: cpu_embedding_forward, cpu_embedding_backward
*/
#pragma once
#include "ops.h"

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

enum { EMBEDDING_SLICE = 64 };  // channels a thread owns at a time: whole cache lines of real

static inline void cpu_embedding_backward(real *dwte, real *dwpe, const floatX *dout, const int *tokens, GradMode mode,
                                          int B, int T, int maxT, int C, Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int begin = 0; begin < C; begin += EMBEDDING_SLICE) {
        int end = begin + EMBEDDING_SLICE < C ? begin + EMBEDDING_SLICE : C;
        for (int t = 0; mode == GRAD_SET && t < maxT; t++) {
            for (int c = begin; c < end; c++) { dwpe[(size_t)t * C + c] = 0; }
        }
        for (size_t n = 0; n < (size_t)B * T; n++) {
            const floatX *row = dout + n * C;
            real *token = dwte + (size_t)tokens[n] * C;
            real *position = dwpe + n % T * C;
#pragma omp simd
            for (int c = begin; c < end; c++) {
                token[c] += to_real(row[c]);
                position[c] += to_real(row[c]);
            }
        }
    }
}
