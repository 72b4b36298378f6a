/*
Comparison of results, for the self-check, tests and benchmarks.
defines: relative_error
*/
#pragma once
#include <math.h>
#include <stddef.h>

// ||a - b|| / ||b||, in double; ||a - b|| if b is zero
static inline double relative_error(const double *a, const double *b, size_t n) {
    double difference = 0, reference = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        reference += b[i] * b[i];
    }
    return reference > 0 ? sqrt(difference / reference) : sqrt(difference);
}
