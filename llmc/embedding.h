/*
Token plus position embedding.
  forward   out[b,t] = wte[tokens[b,t]] + wpe[t]
  backward  dwte[tokens[b,t]] += dout[b,t];  dwpe[t] (+)= sum_b dout[b,t]
Shapes      out, dout (B,T,C), wte (Vp,C), wpe (maxT,C) floatX; tokens (B,T) int32; dwte, dwpe real or bf16.
Bytes       forward 3NC floatX; backward 2NC floatX + TC of dwpe + 2NC of dwte, or less as tokens repeat.
The same in two steps, for a rank that holds rows [first, first + rows) of wte, or rows [first, first + N) of (B,T):
  token     out[n] = wte[tokens[n] - first], or 0 if another rank holds that row;  backward over this rank's rows of wte
  position  out[n] += wpe[(first + n) % T];  backward over this rank's rows of (B,T)
For each token, the rows of all ranks but one are 0. The sum over the ranks therefore has no rounding, and both steps
give the forward's bits.
The backward adds up a token's rows in order, then adds the sum to the gradient, which is rounded once.
*/
#pragma once
#include "llmc/gradient.h"
#include <limits.h>

static inline void reference_embedding_forward(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe,
                                               int B, int T, int C, Exec *ex) {
    (void)ex;
    for (int n = 0; n < B * T; n++) {
        const floatX *token = wte + (size_t)tokens[n] * C, *position = wpe + (size_t)(n % T) * C;
        for (int c = 0; c < C; c++) { out[(size_t)n * C + c] = to_floatX(to_real(token[c]) + to_real(position[c])); }
    }
}

static inline void reference_token_embedding_forward(floatX *out, const int *tokens, const floatX *wte, int first,
                                                     int rows, int N, int C, Exec *ex) {
    (void)ex;
    for (int n = 0; n < N; n++) {
        int row = tokens[n] - first;
        bool here = row >= 0 && row < rows;
        for (int c = 0; c < C; c++) { out[(size_t)n * C + c] = here ? wte[(size_t)row * C + c] : to_floatX(0); }
    }
}

static inline void reference_position_embedding_forward(floatX *out, const floatX *wpe, int first, int N, int T, int C,
                                                        Exec *ex) {
    (void)ex;
    for (int n = 0; n < N; n++) {
        const floatX *position = wpe + (size_t)((first + n) % T) * C;
        floatX *row = out + (size_t)n * C;
        for (int c = 0; c < C; c++) { row[c] = to_floatX(to_real(row[c]) + to_real(position[c])); }
    }
}

static inline bool reference_token_was_before(const int *tokens, int n) {
    for (int k = 0; k < n; k++) {
        if (tokens[k] == tokens[n]) { return true; }
    }
    return false;
}

static inline void reference_token_embedding_backward(Gradient dwte, const floatX *dout, const int *tokens, int first,
                                                      int rows, int N, int C, Exec *ex) {
    (void)ex;
    for (int n = 0; n < N; n++) {
        int row = tokens[n] - first;
        if (row < 0 || row >= rows || reference_token_was_before(tokens, n)) { continue; }
        for (int c = 0; c < C; c++) {
            double sum = 0;
            for (int k = n; k < N; k++) {
                if (tokens[k] == tokens[n]) { sum += to_real(dout[(size_t)k * C + c]); }
            }
            gradient_set(dwte, (size_t)row * C + c, sum, GRAD_ADD);
        }
    }
}

static inline void reference_position_embedding_backward(Gradient dwpe, const floatX *dout, GradMode mode, int first,
                                                         int N, int T, int maxT, int C, Exec *ex) {
    (void)ex;
    for (int t = 0; t < (mode == GRAD_SET ? maxT : T); t++) {
        for (int c = 0; c < C; c++) {
            double sum = 0;
            for (int n = 0; n < N; n++) {
                if ((first + n) % T == t) { sum += to_real(dout[(size_t)n * C + c]); }
            }
            gradient_set(dwpe, (size_t)t * C + c, sum, mode);
        }
    }
}

static inline void reference_embedding_backward(Gradient dwte, Gradient dwpe, const floatX *dout, const int *tokens,
                                                GradMode mode, int B, int T, int maxT, int C, Exec *ex) {
    reference_position_embedding_backward(dwpe, dout, mode, 0, B * T, T, maxT, C, ex);
    reference_token_embedding_backward(dwte, dout, tokens, 0, INT_MAX, B * T, C, ex);
}
