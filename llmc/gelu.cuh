/*
GELU on the GPU. A thread takes GELU_PACKS packs of 16 bytes, a block apart, all loaded before the first is used; each
element is read and written once, so copy bandwidth is the limit: forward 2n floatX, backward 3n. What would stand in
the way is arithmetic (a bf16 element leaves an H200 some 25 instructions), hence the sigmoid by two instructions of the
special function unit: about 10 an element forward, 20 backward.
The sigmoid's error, relative: ex2.approx and rcp.approx 2^-22 each, and the exponent z, a product with two roundings,
puts |z| 2^-23 into 2^z. |z| is below 8 where gelu(x) is above 1e-3 |x| and beyond that the value fades faster than the
error grows: in all at most 1e-6 relative there, 3e-7 of |x| anywhere, which is the twin's own.
z = +inf gives 2^z = inf and a sigmoid of 0; z = -inf gives 1; a NaN stays one.
The operations that end with a GELU use gelu_value_device and gelu_slope_device too, so that all have the same bits.
defines: gelu_value_device, gelu_slope_device, cuda_gelu_forward, cuda_gelu_backward
*/
#pragma once
#include "llmc/common/device.cuh"
#include "llmc/gelu.h"

enum { GELU_THREADS = 256, GELU_PACKS = 2 };

// gelu.h's s: exp(-2u) = 2^z, z = x (linear + cubic x^2)
static __device__ __forceinline__ float gelu_sigmoid_device(float x) {
    constexpr float linear = -2 * 1.4426950408889634 * 0.7978845608028654, cubic = linear * 0.044715;
    return reciprocal_fast(1 + exp2_fast(x * fmaf(x * x, cubic, linear)));
}

static __device__ __forceinline__ float gelu_value_device(float x) { return x * gelu_sigmoid_device(x); }
static __device__ __forceinline__ float gelu_slope_device(float x) { return gelu_slope_of(x, gelu_sigmoid_device(x)); }

// ---- kernels. WIDTH is a pack, or 1 for what is not aligned or not a whole pack

// the thread's first element; the others follow GELU_THREADS packs apart
template <int WIDTH> static __device__ __forceinline__ size_t gelu_first() {
    return (blockIdx.x * (size_t)(GELU_THREADS * GELU_PACKS) + threadIdx.x) * WIDTH;
}

template <int WIDTH>
static __global__ void __launch_bounds__(GELU_THREADS) gelu_forward_kernel(floatX *out, const floatX *in, size_t n) {
    size_t first = gelu_first<WIDTH>();
    float x[GELU_PACKS][WIDTH];
    UNROLL
    for (int p = 0; p < GELU_PACKS; p++) {
        size_t at = first + (size_t)p * GELU_THREADS * WIDTH;
        if (at < n) { load_floats(x[p], in + at); }
    }
    UNROLL
    for (int p = 0; p < GELU_PACKS; p++) {
        size_t at = first + (size_t)p * GELU_THREADS * WIDTH;
        if (at >= n) { return; }
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[p][i] = gelu_value_device(x[p][i]); }
        store_floats(out + at, x[p]);
    }
}

template <int WIDTH>
static __global__ void __launch_bounds__(GELU_THREADS)
    gelu_backward_kernel(floatX *dinp, const floatX *dout, const floatX *in, size_t n) {
    size_t first = gelu_first<WIDTH>();
    float dy[GELU_PACKS][WIDTH], x[GELU_PACKS][WIDTH];
    UNROLL
    for (int p = 0; p < GELU_PACKS; p++) {
        size_t at = first + (size_t)p * GELU_THREADS * WIDTH;
        if (at < n) {
            load_floats(dy[p], dout + at);
            load_floats(x[p], in + at);
        }
    }
    UNROLL
    for (int p = 0; p < GELU_PACKS; p++) {
        size_t at = first + (size_t)p * GELU_THREADS * WIDTH;
        if (at >= n) { return; }
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[p][i] = dy[p][i] * gelu_slope_device(x[p][i]); }
        store_floats(dinp + at, x[p]);
    }
}

// ---- launchers

// of n elements, how many make whole packs if all pointers are aligned to packs
template <class... T> static inline size_t gelu_packed(size_t n, const T *...address) {
    return aligned_to_pack(address...) ? n - n % Pack<floatX>::SIZE : 0;
}

static inline unsigned gelu_blocks(size_t n, int width) {
    return (unsigned)ceil_div(n, (size_t)GELU_THREADS * GELU_PACKS * (size_t)width);
}

static inline void cuda_gelu_forward(floatX *out, const floatX *in, size_t n, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    size_t packed = gelu_packed(n, out, in), rest = n - packed;
    if (packed) {
        LAUNCH((gelu_forward_kernel<PACK>), gelu_blocks(packed, PACK), GELU_THREADS, 0, stream_of(ex), out, in, packed);
    }
    if (rest) {
        LAUNCH((gelu_forward_kernel<1>), gelu_blocks(rest, 1), GELU_THREADS, 0, stream_of(ex), out + packed,
               in + packed, rest);
    }
}

static inline void cuda_gelu_backward(floatX *dinp, const floatX *dout, const floatX *in, size_t n, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    size_t packed = gelu_packed(n, dinp, dout, in), rest = n - packed;
    if (packed) {
        LAUNCH((gelu_backward_kernel<PACK>), gelu_blocks(packed, PACK), GELU_THREADS, 0, stream_of(ex), dinp, dout, in,
               packed);
    }
    if (rest) {
        LAUNCH((gelu_backward_kernel<1>), gelu_blocks(rest, 1), GELU_THREADS, 0, stream_of(ex), dinp + packed,
               dout + packed, in + packed, rest);
    }
}
