/*
Bias and residual: the end of a row-parallel linear (Megatron-LM, Shoeybi et al. 2019), after its reduce-scatter.
  out[n,c] = (in[n,c] + bias[c]) + residual[n,c]   rounded once to floatX
Shapes      out, in, residual (N,C), bias (C), all floatX. bias may be NULL. out may be in or residual.
Bytes       3NC floatX: in and residual are read, out is written.
*/
#pragma once
#include "llmc/ops.h"

static inline void reference_residual_forward(floatX *out, const floatX *in, const floatX *bias, const floatX *residual,
                                              int N, int C, Exec *ex) {
    (void)ex;
    for (size_t i = 0; i < (size_t)N * (size_t)C; i++) {
        real x = to_real(in[i]) + (bias ? to_real(bias[i % (size_t)C]) : 0);
        out[i] = to_floatX(x + to_real(residual[i]));
    }
}
