/*
Parameter gradients on the GPU.
  gradient_put              stores one element, real or bf16 by a branch. Kernels that store many elements a thread have
                            the type as a template argument.
  cuda_gradient_accumulate  a thread has a pack of x (16 bytes) and the sums of its elements. The last elements go one
                            at a time. x and the sums are aligned to 16 bytes.
  gradient_fold             second stage of a gradient that is a sum over rows: adds the partial sums of all blocks in a
                            fixed order. A launch of its own, estimated at 4 to 5 us, takes less than the last block
                            of the first stage would: one multiprocessor reads layernorm's 5.3 MB in about 50 us.
Bytes       as in gradient.h, 512 in a row by a warp. One addition an element: bound by memory bandwidth.
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

enum { FOLD_WARPS = 32 };

// column c of partial (slices,cols), summed over the slices, is element c of a, or c - a_cols of b. A lane has a
// column, a warp every 32nd slice.
static __global__ void __launch_bounds__(FOLD_WARPS * 32)
    gradient_fold_kernel(Gradient a, Gradient b, const float *partial, GradMode mode, int slices, int cols,
                         int a_cols) {
    wait_for_previous_kernel();
    SHARED_ARRAY(float, of_warp, FOLD_WARPS * 32);
    int column = static_cast<int>(blockIdx.x) * 32 + lane_id();
    float sum = 0;
    for (int i = warp_id(); column < cols && i < slices; i += FOLD_WARPS) {
        sum += partial[static_cast<size_t>(i) * cols + column];
    }
    of_warp[static_cast<int>(threadIdx.x)] = sum;
    __syncthreads();  // every warp's sums are there
    if (warp_id() > 0 || column >= cols) { return; }
    sum = 0;
    for (int warp = 0; warp < FOLD_WARPS; warp++) { sum += of_warp[warp * 32 + lane_id()]; }
    if (column < a_cols) {
        gradient_put(a, static_cast<size_t>(column), sum, mode);
    } else {
        gradient_put(b, static_cast<size_t>(column - a_cols), sum, mode);
    }
}

// a (a_cols), b (cols - a_cols) (+)= column sums of partial (slices,cols)
static inline void gradient_fold(Gradient a, Gradient b, const float *partial, GradMode mode, int slices, int cols,
                                 int a_cols, cudaStream_t stream) {
    LAUNCH(gradient_fold_kernel, ceil_div(cols, 32), FOLD_WARPS * 32, 0, stream, a, b, partial, mode, slices, cols,
           a_cols);
}

enum { ACCUMULATE_THREADS = 256 };

template <class T>
static __global__ void __launch_bounds__(ACCUMULATE_THREADS)
    gradient_accumulate_kernel(float *sum, const T *x, bool add, size_t n) {
    wait_for_previous_kernel();
    constexpr int WIDTH = Pack<T>::SIZE;
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

static inline void cuda_gradient_accumulate(real *sum, Gradient x, GradMode mode, size_t n, Exec *ex) {
    if (n == 0) { return; }
    require_packs(x.at, sum);
    with_type(x.dtype, x.at, [&]<class T>(const T *from) {
        constexpr size_t SWEEP = ACCUMULATE_THREADS * Pack<T>::SIZE;
        LAUNCH(gradient_accumulate_kernel<T>, ceil_div(n, SWEEP), ACCUMULATE_THREADS, 0, stream_of(ex), sum, from,
               mode == GRAD_ADD, n);
    });
}
