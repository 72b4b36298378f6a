/*
Softmax cross entropy over a chunk of rows: loss and gradient in one visit of the logits.
  loss[n] = log sum_{v<V} exp(l[n,v]) - l[n,target]
  dlogits[n,v] = (softmax(l[n])[v] - (v == target)) dloss   in place;  columns [V, Vp) become 0
Padded columns are written, never read. A row whose target is below 0 has no loss: its loss and gradient are 0.
Shapes      logits (N,Vp) floatX, losses (N) real, targets (N) int32. dloss = 0 computes the loss alone.
Bytes       NV floatX read; NVp written for a gradient.
If each rank holds a slice of the columns, its statistics of a row are the maximum m of its logits, the sum s of
exp(logit - m), and the target's logit (0 if another rank has the target). Over all ranks
  M = max m;  Z = sum s exp(m - M);  loss = log Z - (target - M);  dlogits as above, from Z and M
classifier_statistics reads the logits twice, classifier_from_statistics reads and writes them once. The row goes
through memory once more than on a single rank.
Source      online softmax: Milakov, Gimelshein 2018; over ranks: Megatron-LM's vocabulary-parallel cross entropy.
*/
#pragma once
#include "llmc/ops.h"

// number of columns below V in [first, first + Vl)
static inline int classifier_columns(int first, int V, int Vl) {
    int left = V > first ? V - first : 0;
    return left < Vl ? left : Vl;
}

static inline void reference_classifier(real *losses, floatX *logits, const int *targets, real dloss, int N, int V,
                                        int Vp, Exec *ex) {
    (void)ex;
    for (int n = 0; n < N; n++) {
        floatX *row = logits + (size_t)n * Vp;
        int target = targets[n];
        double max = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) { max = fmax(max, to_real(row[v])); }
        for (int v = 0; v < V; v++) { sum += exp(to_real(row[v]) - max); }
        losses[n] = target >= 0 ? (real)(max + log(sum) - to_real(row[target])) : 0;
        for (int v = 0; dloss != 0 && v < Vp; v++) {
            double p = v < V ? exp(to_real(row[v]) - max) / sum : 0;
            row[v] = to_floatX(target >= 0 ? (real)((p - (v == target)) * dloss) : 0);
        }
    }
}

static inline void reference_classifier_statistics(real *statistics, const floatX *logits, const int *targets,
                                                   int first, int N, int V, int Vl, Exec *ex) {
    (void)ex;
    int columns = classifier_columns(first, V, Vl);
    for (int n = 0; n < N; n++) {
        const floatX *row = logits + (size_t)n * Vl;
        int target = targets[n] - first;
        double max = CLASSIFIER_LEAST, sum = 0;
        for (int v = 0; v < columns; v++) { max = fmax(max, to_real(row[v])); }
        for (int v = 0; v < columns; v++) { sum += exp(to_real(row[v]) - max); }
        statistics[3 * (size_t)n] = (real)max;
        statistics[3 * (size_t)n + 1] = (real)sum;
        statistics[3 * (size_t)n + 2] = target >= 0 && target < columns ? to_real(row[target]) : 0;
    }
}

static inline void reference_classifier_from_statistics(real *losses, floatX *logits, const real *statistics,
                                                        const int *targets, real dloss, int ranks, int first, int N,
                                                        int V, int Vl, Exec *ex) {
    (void)ex;
    int columns = classifier_columns(first, V, Vl);
    for (int n = 0; n < N; n++) {
        floatX *row = logits + (size_t)n * Vl;
        double max = CLASSIFIER_LEAST, sum = 0, target = 0;
        for (int r = 0; r < ranks; r++) { max = fmax(max, statistics[3 * ((size_t)r * N + n)]); }
        for (int r = 0; r < ranks; r++) {
            const real *of_rank = statistics + 3 * ((size_t)r * N + n);
            sum += of_rank[1] * exp(of_rank[0] - max);
            target += of_rank[2];
        }
        bool counts = targets[n] >= 0;
        losses[n] = counts ? (real)(log(sum) - (target - max)) : 0;
        for (int v = 0; dloss != 0 && v < Vl; v++) {
            double p = v < columns ? exp(to_real(row[v]) - max) / sum : 0;
            row[v] = to_floatX(counts ? (real)((p - (first + v == targets[n])) * dloss) : 0);
        }
    }
}

static inline void reference_loss_sum(real *total, const real *losses, real scale, int N, Exec *ex) {
    (void)ex;
    double sum = 0;
    for (int n = 0; n < N; n++) { sum += losses[n]; }
    *total += (real)(sum * scale);
}
