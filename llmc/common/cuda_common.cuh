/*
Building blocks of all kernels. fp32 runs from sm_75 on, bf16 from sm_80 on.
A kernel uses hardware instructions only through functions of this file and of ptx.cuh, so that the tests can run it on
a CPU. Shared memory is declared by the macros of ptx.cuh and passed as SharedPtr<T>, so that the tests check accesses.
*/
#pragma once
#include "llmc/common/check.h"   // IWYU pragma: export
#include "llmc/common/floatx.h"  // IWYU pragma: export
#include "llmc/common/ptx.cuh"   // IWYU pragma: export
#include <type_traits>

// ---- calls and launches

// stops the program if a runtime call fails
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)

static inline void cuda_check(cudaError_t error, const char *call, const char *file, int line) {
    if (error != cudaSuccess) { run_error("%s:%d: %s: %s", file, line, call, cudaGetErrorString(error)); }
}

// LAUNCH(kernel, grid, block, shared_bytes, stream, arguments ...). Arguments are copied at the launch. A kernel with
// template arguments is in parentheses: LAUNCH((scale<float, 256>), ...). A kernel's first statement is
// wait_for_previous_kernel(): the tests refuse a kernel without it.

// Call after a failed launch or graph. Turns PDL off. True if the caller should try again; false if it
// was off already, or if the error is sticky, such as a kernel's bad access.
static inline bool pdl_off(cudaError_t error) {
    cudaGetLastError();  // clears an error that is not sticky
    if (!pdl_enabled || cudaGetLastError() != cudaSuccess) { return false; }
    pdl_enabled = false;
    fprintf(
        stderr,
        "train_gpt2: a programmatic dependent launch failed (%s); training goes on without PDL, slightly slower and "
        "with the same bits; TRAIN_GPT2_PDL=0 turns it off from the start\n",
        cudaGetErrorString(error));
    return true;
}

#define LAUNCH(kernel, ...)                                                                                            \
    do {                                                                                                               \
        cudaError_t launched = LAUNCH_KERNEL(kernel, __VA_ARGS__);                                                     \
        if (launched != cudaSuccess && pdl_off(launched)) { launched = LAUNCH_KERNEL(kernel, __VA_ARGS__); }           \
        cuda_check(launched, "launch of " #kernel, __FILE__, __LINE__);                                                \
    } while (0)

template <class A, class B> static inline HOST_DEVICE constexpr auto ceil_div(A a, B b) { return (a + b - 1) / b; }

// in a one-dimensional block
static __device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x % 32); }
static __device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x / 32); }

// ---- numbers

static constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// two floats to bf16, to nearest even; `low` in the lower half. Every NaN becomes 0x7fff.
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
#ifdef SM_80
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    auto half = [](float x) { return x != x ? 0x7fffu : uint32_t{float_to_bf16(x).bits}; };
    return half(high) << 16 | half(low);
#endif
}

static __device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// ---- 128-bit packs: the widest access of a thread

// 16 bytes of float or bf16, read and written as float: x[i], Pack<T>::of(values).
template <class T> struct alignas(16) Pack {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16>, "a pack holds float or bf16");
    static constexpr int SIZE = 16 / static_cast<int>(sizeof(T));
    uint32_t word[4];

    __device__ __forceinline__ float operator[](int i) const {
        if constexpr (SIZE == 4) {
            return __uint_as_float(word[i]);
        } else {
            return __uint_as_float(i % 2 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
        }
    }
    static __device__ __forceinline__ Pack of(const float (&value)[SIZE]) {
        Pack pack;
        UNROLL
        for (int i = 0; i < 4; i++) {
            if constexpr (SIZE == 4) {
                pack.word[i] = __float_as_uint(value[i]);
            } else {
                pack.word[i] = pack_bf16(value[2 * i], value[2 * i + 1]);
            }
        }
        return pack;
    }
};

template <class T> static __device__ __forceinline__ Pack<T> pack_of_words(uint4 v) { return {{v.x, v.y, v.z, v.w}}; }
template <class T> static __device__ __forceinline__ uint4 words_of_pack(Pack<T> x) {
    return make_uint4(x.word[0], x.word[1], x.word[2], x.word[3]);
}

// true if packs can be loaded and stored at all the addresses; NULL counts as aligned
template <class... T> static inline bool aligned_to_pack(const T *...address) {
    return ((reinterpret_cast<uintptr_t>(address) | ...) % sizeof(Pack<float>)) == 0;
}

// of kernels that only take packs: the plan aligns all arrays of the model
template <class... T> static inline void require_packs(const T *...address) {
    if (!aligned_to_pack(address...)) { run_error("an array of gradients does not begin at a multiple of 16 bytes"); }
}

// The address is a multiple of 16 bytes. Streaming: for data used once, evicted from the cache first.
template <class T> static __device__ __forceinline__ Pack<T> load128(const T *address) {
    return pack_of_words<T>(load_global(reinterpret_cast<const uint4 *>(address)));
}
template <class T> static __device__ __forceinline__ Pack<T> load128_streaming(const T *address) {
    return pack_of_words<T>(__ldcs(reinterpret_cast<const uint4 *>(address)));
}
template <class T> static __device__ __forceinline__ void store128(T *address, Pack<T> x) {
    store_global(reinterpret_cast<uint4 *>(address), words_of_pack(x));
}
template <class T> static __device__ __forceinline__ void store128_streaming(T *address, Pack<T> x) {
    __stcs(reinterpret_cast<uint4 *>(address), words_of_pack(x));
}

// one element of an array of float or bf16
static __device__ __forceinline__ float load_float(const float *from) { return *from; }
static __device__ __forceinline__ float load_float(const bf16 *from) { return bf16_to_float(*from); }
static __device__ __forceinline__ void store_float(float *to, float x) { *to = x; }
static __device__ __forceinline__ void store_float(bf16 *to, float x) { *to = float_to_bf16(x); }

// WIDTH neighbours of such an array as floats: whole packs, half a pack of bf16, or one element of an odd row.
template <int WIDTH, class T> static __device__ __forceinline__ void load_floats(float (&x)[WIDTH], const T *from) {
    constexpr int SIZE = Pack<T>::SIZE;
    if constexpr (WIDTH == 1) {
        x[0] = load_float(from);
    } else if constexpr (WIDTH < SIZE) {
        static_assert(WIDTH == 4 && SIZE == 8, "half a pack of bf16");
        uint2 words = load_global(reinterpret_cast<const uint2 *>(from));
        float2 low = unpack_bf16(words.x), high = unpack_bf16(words.y);
        x[0] = low.x;
        x[1] = low.y;
        x[2] = high.x;
        x[3] = high.y;
    } else {
        UNROLL
        for (int p = 0; p < WIDTH; p += SIZE) {
            Pack<T> pack = load128(from + p);
            UNROLL
            for (int i = 0; i < SIZE; i++) { x[p + i] = pack[i]; }
        }
    }
}

template <int WIDTH, class T> static __device__ __forceinline__ void store_floats(T *to, const float (&x)[WIDTH]) {
    constexpr int SIZE = Pack<T>::SIZE;
    if constexpr (WIDTH == 1) {
        store_float(to, x[0]);
    } else if constexpr (WIDTH < SIZE) {
        static_assert(WIDTH == 4 && SIZE == 8, "half a pack of bf16");
        store_global(reinterpret_cast<uint2 *>(to), make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])));
    } else {
        UNROLL
        for (int p = 0; p < WIDTH; p += SIZE) {
            float part[SIZE];
            UNROLL
            for (int i = 0; i < SIZE; i++) { part[i] = x[p + i]; }
            store128(to + p, Pack<T>::of(part));
        }
    }
}

// run(x) with the array as its type, bf16 or real: for launches of kernels that are templates over the type
template <class Run> static inline void with_type(DType dtype, void *array, Run run) {
    if (dtype == DT_BF16) {
        run(static_cast<bf16 *>(array));
    } else {
        run(static_cast<real *>(array));
    }
}

// ---- reductions: all lanes or threads get the same bits, in a fixed order of sums

static __device__ __forceinline__ float warp_sum(float x) {
    UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2) { x += __shfl_xor_sync(0xffffffffu, x, lanes); }
    return x;
}

static __device__ __forceinline__ float warp_max(float x) {
    UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2) { x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes)); }
    return x;
}

// over a one-dimensional block of THREADS, a multiple of 32, all of which call; neutral: 0 for sums, -inf for maxima
template <int THREADS, float (*WARP_REDUCE)(float)>
static __device__ __forceinline__ float block_reduce(float x, float neutral) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is 1 to 32 whole warps");
    SHARED_ARRAY(float, of_warp, 32);
    x = WARP_REDUCE(x);
    if (lane_id() == 0) { of_warp[warp_id()] = x; }
    __syncthreads();  // the results of all warps are complete
    x = neutral;
    if (lane_id() < THREADS / 32) { x = of_warp[lane_id()]; }
    __syncthreads();  // all warps have read the results before a later call overwrites them
    return WARP_REDUCE(x);
}
template <int THREADS> static __device__ __forceinline__ float block_sum(float x) {
    return block_reduce<THREADS, warp_sum>(x, 0.0f);
}
template <int THREADS> static __device__ __forceinline__ float block_max(float x) {
    return block_reduce<THREADS, warp_max>(x, -INFINITY);
}

// ---- asynchronous copies, called by whole warps; shared addresses are from shared_address

// Starts a copy of 16 bytes from global to shared memory, both aligned to 16 bytes. If not `valid`, writes zeros and
// does not read `from`. Visible to the calling thread after cp_async_wait, to other threads after a barrier too. Before
// sm_80 the thread copies at once, and a later commit or wait has nothing to do.
static __device__ __forceinline__ void cp_async(uint32_t to, const void *from, bool valid) {
    if (has_cp_async()) {
        start_cp_async(to, from, valid);
    } else {
        store_shared(to, valid ? words_of_pack(load128(static_cast<const float *>(from))) : make_uint4(0, 0, 0, 0));
    }
}
