/*
Sum of squares of a flat array: the square of the gradients' global norm (clipping: Pascanu, Mikolov, Bengio 2013).
  *norm_squared (+)= sum_i x[i]^2
Shapes      x (n) real or bf16; *norm_squared is set or added to by mode.
Bytes       n of x, read once.
*/
#pragma once
#include "llmc/gradient.h"

static inline void reference_global_norm_squared(real *norm_squared, Gradient x, GradMode mode, size_t n, Exec *ex) {
    (void)ex;
    double sum = mode == GRAD_ADD ? *norm_squared : 0;
    for (size_t i = 0; i < n; i++) { sum += (double)gradient_value(x, i) * gradient_value(x, i); }
    *norm_squared = (real)sum;
}
