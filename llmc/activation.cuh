/*
Activation functions on the GPU: two packs of 16 bytes a thread, in flight together, hide the memory's latency. Arrays
that are not aligned to packs, and the last elements, go one element a thread.
Each element is read and written once, 2n floatX, so copy bandwidth is the limit. Arithmetic would be a second limit:
while a bf16 element is copied, an H200 has time for some 25 instructions. GELU's sigmoid therefore takes two
instructions of the special function unit: about 10 instructions an element forward, and 20 for the slope.
Relative error of the sigmoid: ex2.approx and rcp.approx give 2^-22 each. The roundings of the exponent z add at most
|z| 2^-23. |z| is below 8 where gelu(x) is above 4e-3 |x|: the error of such a gelu(x) is about 1e-6. For any x the
error is at most 4e-7 |x|, and that of the CPU backend at most 1.5e-7 |x|.
z = +inf gives 2^z = inf and a sigmoid of 0; z = -inf gives 1; NaN stays NaN.
Our matmul epilogues use the same sigmoid, so that all have the same bits.
*/
#pragma once
#include "llmc/activation.h"
#include "llmc/common/device.cuh"

enum { ACTIVATION_THREADS = 256, ACTIVATION_PACKS = 2 };

// s of activation.h: exp(-2u) = 2^z, z = x (linear + cubic x^2)
static __device__ __forceinline__ float gelu_sigmoid_device(float x) {
    constexpr float linear = -2 * 1.4426950408889634 * 0.7978845608028654, cubic = linear * 0.044715;
    return reciprocal_fast(1 + exp2_fast(x * fmaf(x * x, cubic, linear)));
}

// A thread has PACKS times WIDTH neighbours, ACTIVATION_THREADS WIDTH apart, and loads all before it uses the first. n
// is a multiple of WIDTH.
template <int WIDTH, int PACKS>
static __global__ void __launch_bounds__(ACTIVATION_THREADS)
    activation_forward_kernel(floatX *out, const floatX *in, ActivationFunction function, size_t n) {
    wait_for_previous_kernel();
    size_t first = (blockIdx.x * (size_t)(ACTIVATION_THREADS * PACKS) + threadIdx.x) * WIDTH;
    float x[PACKS][WIDTH];
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        size_t at = first + (size_t)p * ACTIVATION_THREADS * WIDTH;
        if (at < n) { load_floats(x[p], in + at); }
    }
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        size_t at = first + (size_t)p * ACTIVATION_THREADS * WIDTH;
        if (at >= n) { return; }
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[p][i] = activation_value(function, x[p][i], gelu_sigmoid_device(x[p][i])); }
        store_floats(out + at, x[p]);
    }
}

static inline void cuda_activation_forward(floatX *out, const floatX *in, ActivationFunction function, size_t n,
                                           Exec *ex) {
    constexpr size_t PACK = Pack<floatX>::SIZE, THREADS = ACTIVATION_THREADS;
    size_t packed = aligned_to_pack(out, in) ? n - n % PACK : 0, rest = n - packed;
    if (packed) {
        LAUNCH((activation_forward_kernel<PACK, ACTIVATION_PACKS>), ceil_div(packed, PACK * THREADS * ACTIVATION_PACKS),
               ACTIVATION_THREADS, 0, stream_of(ex), out, in, function, packed);
    }
    if (rest) {
        LAUNCH((activation_forward_kernel<1, 1>), ceil_div(rest, THREADS), ACTIVATION_THREADS, 0, stream_of(ex),
               out + packed, in + packed, function, rest);
    }
}
