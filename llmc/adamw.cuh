/*
AdamW on the GPU: all tensors in one launch.
The flat block, from the first span to the last, is cut into one run of elements a block, and there are as many blocks
as the GPU holds at once. A block finds the span at the beginning of its run by a binary search (11 reads for 1200
spans) and goes on from span to span. Its threads take neighbouring groups of four elements: a warp touches 512 bytes in
a row of each fp32 array, and four elements are what one random draw rounds. What is left of a span after its last whole
group, or all of it where it or an array is not aligned to groups, is taken one by one.
An element's new values depend on nothing but itself, so the bits are the same for any grid. They are the twin's: the
formula is its adamw_weight, and nvcc rounds division and square root correctly, unless told to be fast.
The norm of the gradients is read on the GPU: the host waits for nothing. The step's other numbers are arguments.
Bytes       a parameter: bf16 with master 30 (w written, master, m, v read and written, grads read), bf16 without 24 (w
            read and written), fp32 without 28. 53 instructions a parameter, 71 with a rounding draw, a third of what an
            H200 can do while it moves them: memory is the limit.
defines: cuda_adamw_update, cuda_params_changed
*/
#pragma once
#include "adamw.h"
#include "device.cuh"

enum { ADAMW_THREADS = 256, ADAMW_BLOCKS_A_MULTIPROCESSOR = 4, ADAMW_GROUP = 4 };
enum { ADAMW_SWEEP = ADAMW_THREADS * ADAMW_GROUP };  // elements a block takes at a time

// ---- WIDTH elements, 1 or a group; each is used once a step, but params, which the next forward reads, stay cached

template <int WIDTH> static __device__ __forceinline__ void adamw_load(float (&x)[WIDTH], const float *from) {
    if constexpr (WIDTH == 1) {
        x[0] = __ldcs(from);
    } else {
        Pack<float> pack = load128_streaming(from);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[i] = pack[i]; }
    }
}

template <int WIDTH> static __device__ __forceinline__ void adamw_load(float (&x)[WIDTH], const bf16 *from) {
    if constexpr (WIDTH == 1) {
        x[0] = bf16_to_float(*from);
    } else {
        uint2 pair = __ldcs(reinterpret_cast<const uint2 *>(from));
        float2 low = unpack_bf16(pair.x), high = unpack_bf16(pair.y);
        x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
    }
}

template <int WIDTH> static __device__ __forceinline__ void adamw_store(float *to, const float (&x)[WIDTH]) {
    if constexpr (WIDTH == 1) {
        __stcs(to, x[0]);
    } else {
        store128_streaming(to, Pack<float>::of(x));
    }
}

template <int WIDTH> static __device__ __forceinline__ void adamw_store_params(float *to, const float (&x)[WIDTH]) {
    if constexpr (WIDTH == 1) {
        *to = x[0];
    } else {
        store128(to, Pack<float>::of(x));
    }
}

template <int WIDTH> static __device__ __forceinline__ void adamw_store_params(bf16 *to, const bf16 (&x)[WIDTH]) {
    if constexpr (WIDTH == 1) {
        *to = x[0];
    } else {
        *reinterpret_cast<uint2 *>(to) = make_uint2(static_cast<uint32_t>(x[1].bits) << 16 | x[0].bits,
                                                    static_cast<uint32_t>(x[3].bits) << 16 | x[2].bits);
    }
}

// ---- the kernel

struct AdamWArrays {
    floatX *params;
    float *master, *m, *v;
    const float *grads;
    bool aligned;  // to groups
};

// elements i .. i + WIDTH - 1 of the flat block
template <int WIDTH, bool HAS_MASTER>
static __device__ __forceinline__ void adamw_elements(const AdamWArrays &a, size_t i, const AdamWTensor &t,
                                                      const AdamWScales &s) {
    float w[WIDTH], m[WIDTH], v[WIDTH], g[WIDTH];
    if constexpr (HAS_MASTER) {
        adamw_load(w, a.master + i);
    } else {
        adamw_load(w, a.params + i);
    }
    adamw_load(m, a.m + i);
    adamw_load(v, a.v + i);
    adamw_load(g, a.grads + i);
    floatX stored[WIDTH];
    UNROLL
    for (int k = 0; k < WIDTH; k++) {
        w[k] = adamw_weight(w[k], &m[k], &v[k], g[k] * t.grad_scale, t.span.decay, s);
        if constexpr (HAS_MASTER) {
            stored[k] = to_floatX(w[k]);
        } else {
            // a group begins at a multiple of 4 in its tensor, and said like this the compiler makes one draw for it
            size_t index = i - t.span.begin, random_index = WIDTH == 1 ? index : index / 4 * 4 + k;
            uint32_t random_bits = rounding_bits(t.seed, t.step, static_cast<uint64_t>(t.span.tensor), random_index);
            stored[k] = to_floatX_stochastic(w[k], random_bits);
        }
    }
    if constexpr (HAS_MASTER) { adamw_store(a.master + i, w); }
    adamw_store(a.m + i, m);
    adamw_store(a.v + i, v);
    adamw_store_params(a.params + i, stored);
}

// elements [begin, end) of the tensor, by the whole block
template <bool HAS_MASTER>
static __device__ __forceinline__ void adamw_run(const AdamWArrays &a, size_t begin, size_t end, const AdamWTensor &t,
                                                 const AdamWScales &s) {
    bool grouped = a.aligned && begin % ADAMW_GROUP == 0 && t.span.begin % ADAMW_GROUP == 0;
    size_t groups_end = grouped ? end - end % ADAMW_GROUP : begin;
    for (size_t i = begin + threadIdx.x * ADAMW_GROUP; i < groups_end; i += ADAMW_SWEEP) {
        adamw_elements<ADAMW_GROUP, HAS_MASTER>(a, i, t, s);
    }
    for (size_t i = groups_end + threadIdx.x; i < end; i += ADAMW_THREADS) {
        adamw_elements<1, HAS_MASTER>(a, i, t, s);
    }
}

// the first span that ends after `position`; num_spans if none does
static __device__ __forceinline__ int adamw_span_at(const TensorSpan *spans, int num_spans, size_t position) {
    int low = 0, high = num_spans;
    while (low < high) {
        int middle = (low + high) / 2;
        if (spans[middle].begin + spans[middle].count <= position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

template <bool HAS_MASTER>
static __global__ void __launch_bounds__(ADAMW_THREADS, ADAMW_BLOCKS_A_MULTIPROCESSOR)
    adamw_kernel(AdamWArrays arrays, const float *norm_squared, const TensorSpan *spans, int num_spans, uint64_t seed,
                 int step, AdamWScales scales) {
    if (!isfinite(*norm_squared)) { return; }
    float grad_scale = adamw_grad_scale(scales.clip, *norm_squared);
    size_t first = spans[0].begin, last = spans[num_spans - 1].begin + spans[num_spans - 1].count;
    size_t sweeps = ceil_div(last - first, static_cast<size_t>(ADAMW_SWEEP));
    size_t run = ceil_div(sweeps, static_cast<size_t>(gridDim.x)) * ADAMW_SWEEP;
    size_t begin = first + blockIdx.x * run, end = min(begin + run, last);
    int s = adamw_span_at(spans, num_spans, begin);
    for (; s < num_spans && spans[s].begin < end; s++) {
        AdamWTensor tensor = {spans[s], seed, static_cast<uint64_t>(step), grad_scale};
        size_t from = max(begin, tensor.span.begin), to = min(end, tensor.span.begin + tensor.span.count);
        adamw_run<HAS_MASTER>(arrays, from, to, tensor, scales);
    }
}

static inline bool adamw_aligned(const AdamWArrays &a) {
    uintptr_t fp32 = reinterpret_cast<uintptr_t>(a.master) | reinterpret_cast<uintptr_t>(a.m) |
                     reinterpret_cast<uintptr_t>(a.v) | reinterpret_cast<uintptr_t>(a.grads);
    return fp32 % (ADAMW_GROUP * sizeof(float)) == 0 &&
           reinterpret_cast<uintptr_t>(a.params) % (ADAMW_GROUP * sizeof(floatX)) == 0;
}

static inline void cuda_adamw_update(floatX *params, real *master, real *m, real *v, const real *grads,
                                     const real *norm_squared, const TensorSpan *spans, int num_spans,
                                     const AdamW *hyper, Exec *ex) {
    if (num_spans == 0) { return; }
    AdamWArrays arrays = {params, master, m, v, grads, false};
    arrays.aligned = adamw_aligned(arrays);
    auto kernel = master ? adamw_kernel<true> : adamw_kernel<false>;
    LAUNCH(kernel, ex->cuda->multiprocessors * ADAMW_BLOCKS_A_MULTIPROCESSOR, ADAMW_THREADS, 0, stream_of(ex), arrays,
           norm_squared, spans, num_spans, hyper->seed, hyper->step, adamw_scales(hyper));
}

// nothing is kept of them: kernels read params themselves
static inline void cuda_params_changed(const floatX *params, size_t n, Exec *ex) { (void)params, (void)n, (void)ex; }
