/*
Softmax cross entropy over a chunk of rows, loss and gradient in one visit of the logits.
  loss[n] = log sum_{v<V} exp(l[n,v]) - l[n,target]
  dlogits[n,v] = (softmax(l[n])[v] - (v == target)) dloss   in place;  columns V..Vp are set to 0
The padded columns take no part: whatever the matmul left there is not read.
Bytes       NVp floatX read, and written where a gradient is wanted; a row stays in cache between its three passes.
defines: cpu_classifier, cpu_loss_sum
*/
#pragma once
#include "ops.h"
#include "vector_math.h"

static inline void classifier_row(real *loss, floatX *logits, int target, real dloss, int V, int Vp) {
    real max = to_real(logits[0]), sum = 0;
#pragma omp simd reduction(max : max)
    for (int v = 0; v < V; v++) { max = to_real(logits[v]) > max ? to_real(logits[v]) : max; }
#pragma omp simd reduction(+ : sum)
    for (int v = 0; v < V; v++) { sum += fast_exp(to_real(logits[v]) - max); }
    *loss = REAL_MATH(log)(sum) - (to_real(logits[target]) - max);
    if (dloss == 0) { return; }
    real scale = dloss / sum;
    real at_target = fast_exp(to_real(logits[target]) - max) * scale - dloss;
#pragma omp simd
    for (int v = 0; v < V; v++) { logits[v] = to_floatX(fast_exp(to_real(logits[v]) - max) * scale); }
    logits[target] = to_floatX(at_target);
    for (int v = V; v < Vp; v++) { logits[v] = to_floatX(0); }
}

static inline void cpu_classifier(real *losses, floatX *logits, const int *targets, real dloss, int N, int V, int Vp,
                                  Exec *ex) {
    (void)ex;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) { classifier_row(losses + n, logits + (size_t)n * Vp, targets[n], dloss, V, Vp); }
}

static inline void cpu_loss_sum(real *total, const real *losses, real scale, int N, Exec *ex) {
    (void)ex;
    double sum = 0;
    for (int n = 0; n < N; n++) { sum += losses[n]; }
    *total += (real)(sum * scale);
}
