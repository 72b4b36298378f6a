/*
How a kernel writes a parameter gradient where that is one number a thread: real or bf16 is a branch here. Kernels that
write many have the type as a template argument.
defines: gradient_put
*/
#pragma once
#include "cuda_common.cuh"
#include "ops.h"

// element i of g (+)= sum, rounded once
static __device__ __forceinline__ void gradient_put(Gradient g, size_t i, float sum, GradMode mode) {
    if (g.dtype == DT_BF16) {
        bf16 *to = static_cast<bf16 *>(g.at) + i;
        store_float(to, mode == GRAD_ADD ? sum + load_float(to) : sum);
    } else {
        float *to = static_cast<float *>(g.at) + i;
        store_float(to, mode == GRAD_ADD ? sum + load_float(to) : sum);
    }
}
