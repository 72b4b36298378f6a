/*
Sum of squares on the CPU, in two fixed stages: blocks of 2048 elements, then the blocks in order. The bits are the same
with any number of threads.
*/
#pragma once
#include "llmc/common/floatx.h"
#include "llmc/global_norm.h"
#include "llmc/ops.h"

enum { NORM_BLOCK = 2048, NORM_GROUP = 8192 };  // elements of a block; blocks of a group

// sum of at most NORM_BLOCK squares, one partial sum per vector lane
static inline double sum_of_squares(const real *x, size_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) { sum += x[i] * x[i]; }
    return (double)sum;
}

static inline double sum_of_squares_bf16(const bf16 *x, size_t n) {
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        real value = bf16_to_float(x[i]);
        sum += value * value;
    }
    return (double)sum;
}

static inline void cpu_global_norm_squared(real *norm_squared, Gradient x, GradMode mode, size_t n, Exec *ex) {
    (void)ex;
    double total = 0;
    for (size_t group = 0; group < n; group += (size_t)NORM_BLOCK * NORM_GROUP) {
        double sums[NORM_GROUP];
        size_t left = (n - group + NORM_BLOCK - 1) / NORM_BLOCK;
        int blocks = left < NORM_GROUP ? (int)left : (int)NORM_GROUP;
#pragma omp parallel for schedule(static)
        for (int block = 0; block < blocks; block++) {
            size_t begin = group + (size_t)block * NORM_BLOCK;
            size_t end = begin + NORM_BLOCK < n ? begin + NORM_BLOCK : n;
            sums[block] = x.dtype == DT_BF16 ? sum_of_squares_bf16((const bf16 *)x.at + begin, end - begin)
                                             : sum_of_squares((const real *)x.at + begin, end - begin);
        }
        for (int block = 0; block < blocks; block++) { total += sums[block]; }
    }
    *norm_squared = (real)total + (mode == GRAD_ADD ? *norm_squared : 0);
}
