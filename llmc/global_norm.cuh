/*
The sum of squares of a flat array, in two fixed stages: at most NORM_MAX_BLOCKS blocks sum a range of elements each,
then one block adds their sums. n and the type alone decide the order of the sum, so that every GPU gives the same
bits. x is aligned to 16 bytes.
A thread adds up every 256th pack of its block's range, with one sum for each element of a pack; then the block adds its
threads.
Bytes       n fp32 or bf16, read once, 512 bytes in a row by a warp. Two or three instructions an element: bound by
            memory bandwidth. Loads are not streaming, since AdamW reads the gradients next.
*/
#pragma once
#include "llmc/common/device.cuh"
#include "llmc/ops.h"

enum { NORM_MAX_BLOCKS = 4096, NORM_THREADS = 256, NORM_FINAL_THREADS = 1024 };

// scratch of cuda_global_norm_squared in bytes, for any n
static inline size_t global_norm_partials(void) { return NORM_MAX_BLOCKS * sizeof(float); }

// partials[b] = sum of squares of x[b * range .. (b + 1) * range - 1]
template <class T>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_blocks_kernel(float *partials, const T *x, size_t n, size_t range) {
    wait_for_previous_kernel();
    constexpr int WIDTH = Pack<T>::SIZE;
    size_t begin = blockIdx.x * range, end = min(begin + range, n), packs_end = end - end % WIDTH;
    float sum[WIDTH] = {};
    for (size_t i = begin + threadIdx.x * WIDTH; i < packs_end; i += NORM_THREADS * WIDTH) {
        float value[WIDTH];
        load_floats(value, x + i);
        UNROLL
        for (int k = 0; k < WIDTH; k++) { sum[k] = fmaf(value[k], value[k], sum[k]); }
    }
    size_t rest = packs_end + threadIdx.x;
    if (rest < end) {
        float value = load_float(x + rest);
        sum[0] = fmaf(value, value, sum[0]);
    }
    float of_thread = 0;
    UNROLL
    for (int k = 0; k < WIDTH; k++) { of_thread += sum[k]; }
    float of_block = block_sum<NORM_THREADS>(of_thread);
    if (threadIdx.x == 0) { partials[blockIdx.x] = of_block; }
}

// out (+)= sum of partials (count), by one block
static __global__ void __launch_bounds__(NORM_FINAL_THREADS)
    norm_total_kernel(float *out, const float *partials, int count, GradMode mode) {
    wait_for_previous_kernel();
    float sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += NORM_FINAL_THREADS) { sum += partials[i]; }
    sum = block_sum<NORM_FINAL_THREADS>(sum);
    if (threadIdx.x == 0) { *out = mode == GRAD_ADD ? sum + *out : sum; }
}

static inline void cuda_global_norm_squared(real *norm_squared, Gradient x, GradMode mode, size_t n, Exec *ex) {
    require_packs(x.at);
    with_type(x.dtype, x.at, [&]<class T>(const T *from) {
        constexpr size_t SWEEP = NORM_THREADS * Pack<T>::SIZE;
        size_t range = ceil_div(ceil_div(n, static_cast<size_t>(NORM_MAX_BLOCKS)), SWEEP) * SWEEP;
        int blocks = n == 0 ? 1 : static_cast<int>(ceil_div(n, range));
        float *partials = partials_of<float>(ex, static_cast<size_t>(blocks), "global_norm_squared");
        LAUNCH(norm_blocks_kernel<T>, blocks, NORM_THREADS, 0, stream_of(ex), partials, from, n, range);
        LAUNCH(norm_total_kernel, 1, NORM_FINAL_THREADS, 0, stream_of(ex), norm_squared, partials, blocks, mode);
    });
}
