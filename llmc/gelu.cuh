/*
GELU on the GPU: two packs of 16 bytes a thread, in flight together, hide the memory's latency. Arrays that are not
aligned to packs, and the last elements, go one element a thread.
Each element is read and written once, 2n floatX, so copy bandwidth is the limit. Arithmetic would be a second limit:
while a bf16 element is copied, an H200 has time for some 25 instructions. The sigmoid therefore takes two instructions
of the special function unit: about 10 instructions an element forward, and 20 for gelu'.
Relative error of the sigmoid: ex2.approx and rcp.approx give 2^-22 each. The roundings of the exponent z add at most
|z| 2^-23. |z| is below 8 where gelu(x) is above 4e-3 |x|: the error of such a gelu(x) is about 1e-6. For any x the
error is at most 4e-7 |x|, and that of the CPU backend at most 1.5e-7 |x|.
z = +inf gives 2^z = inf and a sigmoid of 0; z = -inf gives 1; NaN stays NaN.
Matmul epilogues with a GELU use gelu_value_device and gelu_slope_device too, so that all have the same bits.
defines: gelu_value_device, gelu_slope_device, cuda_gelu_forward
*/
#pragma once
#include "llmc/common/device.cuh"
#include "llmc/gelu.h"

enum { GELU_THREADS = 256, GELU_PACKS = 2 };

// s of gelu.h: exp(-2u) = 2^z, z = x (linear + cubic x^2)
static __device__ __forceinline__ float gelu_sigmoid_device(float x) {
    constexpr float linear = -2 * 1.4426950408889634 * 0.7978845608028654, cubic = linear * 0.044715;
    return reciprocal_fast(1 + exp2_fast(x * fmaf(x * x, cubic, linear)));
}

static __device__ __forceinline__ float gelu_value_device(float x) { return x * gelu_sigmoid_device(x); }
static __device__ __forceinline__ float gelu_slope_device(float x) { return gelu_slope_of(x, gelu_sigmoid_device(x)); }

// A thread has PACKS times WIDTH neighbours, GELU_THREADS WIDTH apart, and loads all before it uses the first. n is a
// multiple of WIDTH.
template <int WIDTH, int PACKS>
static __global__ void __launch_bounds__(GELU_THREADS) gelu_forward_kernel(floatX *out, const floatX *in, size_t n) {
    wait_for_previous_kernel();
    size_t first = (blockIdx.x * (size_t)(GELU_THREADS * PACKS) + threadIdx.x) * WIDTH;
    float x[PACKS][WIDTH];
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        size_t at = first + (size_t)p * GELU_THREADS * WIDTH;
        if (at < n) { load_floats(x[p], in + at); }
    }
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        size_t at = first + (size_t)p * GELU_THREADS * WIDTH;
        if (at >= n) { return; }
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[p][i] = gelu_value_device(x[p][i]); }
        store_floats(out + at, x[p]);
    }
}

static inline void cuda_gelu_forward(floatX *out, const floatX *in, size_t n, Exec *ex) {
    constexpr size_t PACK = Pack<floatX>::SIZE, THREADS = GELU_THREADS;
    size_t packed = aligned_to_pack(out, in) ? n - n % PACK : 0, rest = n - packed;
    if (packed) {
        LAUNCH((gelu_forward_kernel<PACK, GELU_PACKS>), ceil_div(packed, PACK * THREADS * GELU_PACKS), GELU_THREADS, 0,
               stream_of(ex), out, in, packed);
    }
    if (rest) {
        LAUNCH((gelu_forward_kernel<1, 1>), ceil_div(rest, THREADS), GELU_THREADS, 0, stream_of(ex), out + packed,
               in + packed, rest);
    }
}
