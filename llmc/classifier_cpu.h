// Softmax cross entropy on the CPU, a row at a time. The row stays in cache between its three passes.
#pragma once
#include "llmc/classifier.h"
#include "llmc/common/floatx.h"
#include "llmc/common/vectors.h"
#include "llmc/ops.h"

static inline real larger_logit(real a, real b) { return a > b ? a : b; }

// the largest of V logits: one maximum per lane, since clang vectorises no reduction to a maximum of floats
static inline real classifier_max(const floatX *logits, int V) {
    enum { LANES = 64 };
    real lane_max[LANES], max = CLASSIFIER_LEAST;
    for (int i = 0; i < LANES; i++) { lane_max[i] = CLASSIFIER_LEAST; }
    int whole = V - V % LANES;
    for (int v = 0; v < whole; v += LANES) {
#pragma omp simd
        for (int i = 0; i < LANES; i++) { lane_max[i] = larger_logit(to_real(logits[v + i]), lane_max[i]); }
    }
    for (int v = whole; v < V; v++) { max = larger_logit(to_real(logits[v]), max); }
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) { lane_max[i] = larger_logit(lane_max[i + width], lane_max[i]); }
    }
    return larger_logit(lane_max[0], max);
}

// the largest of V logits, and the sum of exp(logit - largest)
static inline void classifier_sum(real *largest, real *total, const floatX *logits, int V) {
    real max = classifier_max(logits, V), sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int v = 0; v < V; v++) { sum += fast_exp(to_real(logits[v]) - max); }
    *largest = max;
    *total = sum;
}

// logits become their gradient; target is outside [0, V) if another rank has it
static inline void classifier_gradient(floatX *logits, int target, real max, real sum, real dloss, int V, int Vp) {
    bool here = target >= 0 && target < V;
    real scale = dloss / sum;
    real at_target = here ? fast_exp(to_real(logits[target]) - max) * scale - dloss : 0;
#pragma omp simd
    for (int v = 0; v < V; v++) { logits[v] = to_floatX(fast_exp(to_real(logits[v]) - max) * scale); }
    if (here) { logits[target] = to_floatX(at_target); }
    for (int v = V; v < Vp; v++) { logits[v] = to_floatX(0); }
}

static inline void classifier_row(real *loss, floatX *logits, int target, real dloss, int V, int Vp) {
    real max, sum;
    if (target < 0) {
        *loss = 0;
        if (dloss != 0) { memset(logits, 0, (size_t)Vp * sizeof *logits); }
        return;
    }
    classifier_sum(&max, &sum, logits, V);
    *loss = REAL_MATH(log)(sum) - (to_real(logits[target]) - max);
    if (dloss != 0) { classifier_gradient(logits, target, max, sum, dloss, V, Vp); }
}

static inline void cpu_classifier(real *losses, floatX *logits, const int *targets, real dloss, int N, int V, int Vp,
                                  Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) { classifier_row(losses + n, logits + (size_t)n * Vp, targets[n], dloss, V, Vp); }
}

static inline void cpu_classifier_statistics(real *statistics, const floatX *logits, const int *targets, int first,
                                             int N, int V, int Vl, Exec *ex) {
    (void)ex;
    int columns = classifier_columns(first, V, Vl);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        const floatX *row = logits + (size_t)n * Vl;
        int target = targets[n] - first;
        bool here = target >= 0 && target < columns;
        classifier_sum(&statistics[3 * (size_t)n], &statistics[3 * (size_t)n + 1], row, columns);
        statistics[3 * (size_t)n + 2] = here ? to_real(row[target]) : 0;
    }
}

// row n's maximum, sum and target logit over all ranks
static inline void classifier_combine(real *max, real *sum, real *target, const real *statistics, int ranks, int N,
                                      int n) {
    const real *of_row = statistics + 3 * (size_t)n;
    size_t stride = 3 * (size_t)N;
    *max = CLASSIFIER_LEAST;
    *sum = *target = 0;
    for (int r = 0; r < ranks; r++) { *max = of_row[r * stride] > *max ? of_row[r * stride] : *max; }
    for (int r = 0; r < ranks; r++) {
        *sum += of_row[r * stride + 1] * fast_exp(of_row[r * stride] - *max);
        *target += of_row[r * stride + 2];
    }
}

static inline void cpu_classifier_from_statistics(real *losses, floatX *logits, const real *statistics,
                                                  const int *targets, real dloss, int ranks, int first, int N, int V,
                                                  int Vl, Exec *ex) {
    (void)ex;
    int columns = classifier_columns(first, V, Vl);
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        real max, sum, target;
        classifier_combine(&max, &sum, &target, statistics, ranks, N, n);
        bool counts = targets[n] >= 0;
        losses[n] = counts ? REAL_MATH(log)(sum) - (target - max) : 0;
        if (dloss == 0) { continue; }
        classifier_gradient(logits + (size_t)n * Vl, targets[n] - first, max, sum, counts ? dloss : 0, columns, Vl);
    }
}

static inline void cpu_loss_sum(real *total, const real *losses, real scale, int N, Exec *ex) {
    (void)ex;
    double sum = 0;
    for (int n = 0; n < N; n++) { sum += losses[n]; }
    *total += (real)(sum * scale);
}
