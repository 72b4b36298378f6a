/*
Causal multi-head self-attention on packed queries, keys and values.
  forward   s[q,k] = Q[q] . K[k] / sqrt(HS) for k <= q;  lse[q] = log sum_k exp(s[q,k])
            p[q,k] = exp(s[q,k] - lse[q]);  out[q] = sum_k p[q,k] V[k]
  backward  delta[q] = dout[q] . out[q];  ds[q,k] = p[q,k] (dout[q] . V[k] - delta[q])
            dV[k] = sum_q p[q,k] dout[q];  dK[k] = sum_q ds[q,k] Q[q] / sqrt(HS);  dQ[q] = sum_k ds[q,k] K[k] / sqrt(HS)
            (Dao et al. 2022: the probabilities are recomputed from lse, never stored)
  decode    one query per new position over a cache of keys and values (maxT,NH,HS), to which the new ones are appended
Shapes      qkv, dqkv (B,T,3,NH,HS) and out, dout (B,T,NH,HS) floatX;  lse (B,NH,T) real. N = B*T, C = NH*HS
Semantics   out, lse and dqkv are written with =. No output may overlap an input.
Bytes       forward 4NC floatX, backward 8NC floatX.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/ops.h"

static inline double reference_dot(const floatX *a, const floatX *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) { sum += (double)to_real(a[i]) * to_real(b[i]); }
    return sum;
}

// One query over `count` keys and values, whose rows are `stride` elements apart: out (HS). Returns lse. p (count): the
// probabilities
static inline double reference_attend(floatX *out, double *p, const floatX *query, const floatX *keys,
                                      const floatX *values, size_t stride, int count, int HS) {
    double max = -INFINITY, sum = 0;
    for (int k = 0; k < count; k++) {
        p[k] = reference_dot(query, keys + (size_t)k * stride, HS) / sqrt(HS);
        max = fmax(max, p[k]);
    }
    for (int k = 0; k < count; k++) { sum += exp(p[k] - max); }
    double lse = max + log(sum);
    for (int k = 0; k < count; k++) { p[k] = exp(p[k] - lse); }
    for (int d = 0; d < HS; d++) {
        double mean = 0;
        for (int k = 0; k < count; k++) { mean += p[k] * to_real(values[(size_t)k * stride + d]); }
        out[d] = to_floatX((real)mean);
    }
    return lse;
}

static inline void reference_attention_forward(floatX *out, real *lse, const floatX *qkv, int B, int T, int NH, int HS,
                                               Exec *ex) {
    (void)ex;
    size_t C = (size_t)NH * HS;
    double *p = (double *)xmalloc((size_t)T * sizeof(double));
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h++) {
            const floatX *Q = qkv + (size_t)b * T * 3 * C + (size_t)h * HS, *K = Q + C, *V = K + C;
            for (int q = 0; q < T; q++) {
                floatX *row = out + ((size_t)b * T + q) * C + (size_t)h * HS;
                lse[((size_t)b * NH + h) * T + q] =
                    (real)reference_attend(row, p, Q + (size_t)q * 3 * C, K, V, 3 * C, q + 1, HS);
            }
        }
    }
    free(p);
}

static inline void reference_attention_decode(floatX *out, floatX *keys, floatX *values, const floatX *qkv, int pos,
                                              int n, int NH, int HS, Exec *ex) {
    (void)ex;
    size_t C = (size_t)NH * HS;
    double *p = (double *)xmalloc((size_t)(pos + n) * sizeof(double));
    for (int i = 0; i < n; i++) {
        const floatX *query = qkv + (size_t)i * 3 * C;
        memcpy(keys + (size_t)(pos + i) * C, query + C, C * sizeof(floatX));
        memcpy(values + (size_t)(pos + i) * C, query + 2 * C, C * sizeof(floatX));
        for (size_t h = 0; h < C; h += (size_t)HS) {
            reference_attend(out + (size_t)i * C + h, p, query + h, keys + h, values + h, C, pos + i + 1, HS);
        }
    }
    free(p);
}

// One head of one sequence. sums (T,3,HS): dQ, dK and dV before they are rounded
static inline void reference_head_backward(double *sums, const floatX *dout, const floatX *qkv, const floatX *out,
                                           const real *lse, int T, size_t C, int HS) {
    memset(sums, 0, (size_t)T * 3 * HS * sizeof(double));
    for (int q = 0; q < T; q++) {
        const floatX *Q = qkv + (size_t)q * 3 * C, *dy = dout + (size_t)q * C;
        double *dQ = sums + (size_t)q * 3 * HS, delta = reference_dot(dy, out + (size_t)q * C, HS);
        for (int k = 0; k <= q; k++) {
            const floatX *K = qkv + (size_t)k * 3 * C + C, *V = K + C;
            double *dK = sums + (size_t)k * 3 * HS + HS, *dV = dK + HS;
            double p = exp(reference_dot(Q, K, HS) / sqrt(HS) - lse[q]);
            double ds = p * (reference_dot(dy, V, HS) - delta) / sqrt(HS);
            for (int d = 0; d < HS; d++) {
                dQ[d] += ds * to_real(K[d]);
                dK[d] += ds * to_real(Q[d]);
                dV[d] += p * to_real(dy[d]);
            }
        }
    }
}

static inline void reference_attention_backward(floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out,
                                                const real *lse, int B, int T, int NH, int HS, Exec *ex) {
    (void)ex;
    size_t C = (size_t)NH * HS;
    double *sums = (double *)xmalloc((size_t)T * 3 * HS * sizeof(double));
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h++) {
            size_t at = (size_t)b * T * C + (size_t)h * HS, packed = (size_t)b * T * 3 * C + (size_t)h * HS;
            const real *lse_of_head = lse + ((size_t)b * NH + h) * T;
            reference_head_backward(sums, dout + at, qkv + packed, out + at, lse_of_head, T, C, HS);
            for (int row = 0; row < 3 * T; row++) {  // rows of (T,3)
                for (int d = 0; d < HS; d++) {
                    dqkv[packed + (size_t)row * C + d] = to_floatX((real)sums[(size_t)row * HS + d]);
                }
            }
        }
    }
    free(sums);
}
