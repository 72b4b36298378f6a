/*
Parameter gradients on the GPU.
  gradient_put              stores one element, real or bf16 by a branch. Kernels that store many elements a thread have
                            the type as a template argument.
  cuda_gradient_accumulate  a thread has a pack of x (16 bytes) and the sums of its elements. Arrays that are not
                            aligned to 16 bytes, and the last elements, go one element at a time.
Bytes       as in gradient.h, 512 in a row by a warp. One addition an element: bound by memory bandwidth.
defines: gradient_put, cuda_gradient_accumulate
*/
#pragma once
#include "llmc/common/device.cuh"
#include "llmc/gradient.h"

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

enum { ACCUMULATE_THREADS = 256 };

// WIDTH is a pack, or 1 if sum or x is not aligned to packs
template <int WIDTH, class T>
static __global__ void __launch_bounds__(ACCUMULATE_THREADS)
    gradient_accumulate_kernel(float *sum, const T *x, bool add, size_t n) {
    size_t i = (static_cast<size_t>(blockIdx.x) * ACCUMULATE_THREADS + threadIdx.x) * WIDTH;
    if (i + WIDTH > n) {
        for (; i < n; i++) { sum[i] = load_float(x + i) + (add ? sum[i] : 0); }
        return;
    }
    float from[WIDTH], to[WIDTH] = {};
    load_floats(from, x + i);
    if (add) { load_floats(to, sum + i); }
    UNROLL
    for (int k = 0; k < WIDTH; k++) { to[k] = from[k] + to[k]; }
    store_floats(sum + i, to);
}

template <class T> static inline void gradient_accumulate_of(float *sum, const T *x, bool add, size_t n, Exec *ex) {
    constexpr int WIDTH = Pack<T>::SIZE;
    bool packed = aligned_to_pack(x, sum);
    size_t threads = packed ? ceil_div(n, static_cast<size_t>(WIDTH)) : n;
    if (n == 0) { return; }
    LAUNCH((packed ? gradient_accumulate_kernel<WIDTH, T> : gradient_accumulate_kernel<1, T>),
           ceil_div(threads, static_cast<size_t>(ACCUMULATE_THREADS)), ACCUMULATE_THREADS, 0, stream_of(ex), sum, x,
           add, n);
}

static inline void cuda_gradient_accumulate(real *sum, Gradient x, GradMode mode, size_t n, Exec *ex) {
    if (x.dtype == DT_BF16) {
        gradient_accumulate_of(sum, static_cast<const bf16 *>(x.at), mode == GRAD_ADD, n, ex);
    } else {
        gradient_accumulate_of(sum, static_cast<const float *>(x.at), mode == GRAD_ADD, n, ex);
    }
}
