/*
Building blocks of all kernels, compiled by nvcc for the GPU or by a C++20 compiler for the emulator.
fp32 runs from sm_75 on, bf16 from sm_80 on.
defines: MULTIPROCESSOR_THREADS, LAUNCH, LAUNCH_KERNEL, early_launches, early_launches_off, wait_for_previous_kernel,
         CUDA_CHECK, UNROLL, NO_UNROLL, ceil_div, lane_id, warp_id, LOG2_E, LN_2, Pack, aligned_to_pack, load128,
         load128_streaming, store128, store128_streaming, load64, store64, prefetch_l2, pack_bf16, unpack_bf16,
         SHARED_ARRAY, DYNAMIC_SHARED, SharedPtr, shared_cast, shared_address, load_shared, store_shared, warp_sum,
         warp_max, block_sum, block_max, ldmatrix_x4, ldmatrix_x4_trans, mma_bf16, cp_async, cp_async_commit,
         cp_async_wait, exp2_fast, reciprocal_fast, rsqrt_device, log_device, log2_device, load_float, store_float,
         load_floats, store_floats
A kernel uses hardware instructions only through functions of this file, so that it also runs emulated. Shared memory is
declared by the two macros and passed as SharedPtr<T>, since the emulator checks its accesses.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include "llmc/common/rng.h"
#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "llmc/emulator/simt.h"
#include "llmc/emulator/runtime.h"
#endif
#include <type_traits>

// SM_80: device code is compiled for sm_80 or newer. fp32 kernels use two of its instructions, a conversion to bf16 and
// cp.async, and have a plain form of both for sm_75.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define SM_80
#elif defined(__CUDA_ARCH__) && defined(PRECISION_BF16)
#error "bf16 kernels need sm_80 or newer: build with make PRECISION=fp32 for this GPU"
#endif

// the fewest threads that a multiprocessor of these GPUs has room for
#ifdef SM_80
static constexpr int MULTIPROCESSOR_THREADS = 1536;
#else
static constexpr int MULTIPROCESSOR_THREADS = 1024;
#endif

// ---- calls and launches

// stops the program if a runtime call fails
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)

static inline void cuda_check(cudaError_t error, const char *call, const char *file, int line) {
    if (error != cudaSuccess) { run_error("%s:%d: %s: %s", file, line, call, cudaGetErrorString(error)); }
}

// LAUNCH(kernel, grid, block, shared_bytes, stream, arguments ...). Arguments are copied at the launch. A kernel with
// template arguments is in parentheses: LAUNCH((scale<float, 256>), ...). LAUNCH_KERNEL has the same arguments, and
// returns the error.
// A kernel's first statement is wait_for_previous_kernel(); the emulator refuses a kernel without it. From sm_90 on the
// blocks of a kernel are placed while the last blocks of the kernel before it run (programmatic dependent launch), and
// wait until that kernel has ended and its results are in memory. A kernel that did not wait could end before the
// kernel before it, and the next kernel would read unfinished results. run/early_launches.cuh sets early_launches where
// this works.
#ifdef __CUDACC__
static __device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");  // the next kernel's blocks may be placed
#endif
}

inline bool early_launches = false;

template <class... P, class... A>
static inline cudaError_t launch_kernel(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                        cudaStream_t stream, A... arguments) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = early_launches;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

#define LAUNCH_KERNEL(kernel, grid, block, shared_bytes, stream, ...)                                                  \
    launch_kernel(kernel, (grid), (block), (shared_bytes), (stream)__VA_OPT__(, ) __VA_ARGS__)
#else
using simt::early_launches;
using simt::wait_for_previous_kernel;
#define LAUNCH_KERNEL(kernel, grid, block, shared_bytes, stream, ...)                                                  \
    simt::launch(#kernel, kernel, (grid), (block), (shared_bytes), (stream)__VA_OPT__(, ) __VA_ARGS__)
#endif

// Call after a failed launch or graph. Turns early launches off. True if the caller should try again; false if they
// were off already, or if the error is sticky, such as a kernel's bad access.
static inline bool early_launches_off(cudaError_t error) {
    cudaGetLastError();  // clears an error that is not sticky
    if (!early_launches || cudaGetLastError() != cudaSuccess) { return false; }
    early_launches = false;
    fprintf(stderr,
            "train_gpt2: an early launch failed (%s); training goes on without early launches, slightly slower and "
            "with the same bits; TRAIN_GPT2_EARLY_LAUNCHES=0 turns them off from the start\n",
            cudaGetErrorString(error));
    return true;
}

#define LAUNCH(kernel, ...)                                                                                            \
    do {                                                                                                               \
        cudaError_t launched = LAUNCH_KERNEL(kernel, __VA_ARGS__);                                                     \
        if (launched != cudaSuccess && early_launches_off(launched)) {                                                 \
            launched = LAUNCH_KERNEL(kernel, __VA_ARGS__);                                                             \
        }                                                                                                              \
        cuda_check(launched, "launch of " #kernel, __FILE__, __LINE__);                                                \
    } while (0)

// UNROLL unrolls the next loop: constant indices keep arrays in registers. NO_UNROLL keeps the next loop rolled:
// fewer registers.
#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#else
#define UNROLL
#define NO_UNROLL
#endif

template <class A, class B> static inline HOST_DEVICE constexpr auto ceil_div(A a, B b) { return (a + b - 1) / b; }

// in a one-dimensional block
static __device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x % 32); }
static __device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x / 32); }

// ---- shared memory

// SHARED_ARRAY(T, name, count)   static: T name[count], 16-byte aligned
// DYNAMIC_SHARED(T, name)        the launch's shared bytes as an array of T, 1024-byte aligned
// Both declare a SharedPtr<T>: name[i], name + i, &name[i], atomicAdd(name + i, x). Read name[i] into a T, never into
// an `auto`, which would be the emulator's reference. T has at least 2 bytes.
#ifdef __CUDACC__
template <class T> using SharedPtr = T *;
#define SHARED_ARRAY(T, name, count) __shared__ __align__(16) T name[count]
#define DYNAMIC_SHARED(T, name)                                                                                        \
    extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];                                            \
    T *const name = reinterpret_cast<T *>(dynamic_shared_bytes)
#endif

// shared_cast<U>(p): the same memory as an array of U. shared_address(p): the 32-bit address that the instructions
// below take. load_shared<V>, store_shared<V>: one access of sizeof(V) = 4, 8 or 16 bytes at such an address.
#ifdef __CUDACC__
template <class U, class T> static __device__ __forceinline__ U *shared_cast(T *p) { return reinterpret_cast<U *>(p); }
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
template <class V> static __device__ __forceinline__ V load_shared(uint32_t address) {
    return *static_cast<const V *>(__cvta_shared_to_generic(address));
}
template <class V> static __device__ __forceinline__ void store_shared(uint32_t address, V value) {
    *static_cast<V *>(__cvta_shared_to_generic(address)) = value;
}
#else
template <class U, class T> SharedPtr<U> shared_cast(SharedPtr<T> p) { return {p.address, p.begin, p.end}; }
template <class T> uint32_t shared_address(SharedPtr<T> p) { return p.address; }
using simt::load_shared;
using simt::store_shared;
#endif

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

// 2^x by the special function unit; 2^-inf = 0, and a subnormal result becomes 0
static __device__ __forceinline__ float exp2_fast(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    float y = x == floorf(x) ? exp2f(x) : simt::approximated(exp2((double)x), x, 0x1p-22);
    return y < 0x1p-126f ? 0.0f : y;
#endif
}

// 1 / x by the special function unit; a subnormal x or result counts as 0, with its sign
static __device__ __forceinline__ float reciprocal_fast(float x) {
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    float y = fabsf(x) < 0x1p-126f ? copysignf(INFINITY, x) : simt::approximated(1 / (double)x, x, 0x1p-23);
    return fabsf(y) < 0x1p-126f ? copysignf(0.0f, y) : y;
#endif
}

// CUDA's own functions, whose documented errors the emulator adds: 2 units in the last place, 1 unit, 1 unit
static __device__ __forceinline__ float rsqrt_device(float x) {
#ifdef __CUDACC__
    return rsqrtf(x);
#else
    return simt::approximated(1 / sqrt((double)x), x, 0x1p-22);
#endif
}
static __device__ __forceinline__ float log_device(float x) {
#ifdef __CUDACC__
    return logf(x);
#else
    return simt::approximated(log((double)x), x, 0x1p-23);
#endif
}
static __device__ __forceinline__ float log2_device(float x) {
#ifdef __CUDACC__
    return log2f(x);
#else
    return simt::approximated(log2((double)x), x, 0x1p-23);
#endif
}

// ---- 128-bit packs: the widest access of a thread

// 16 bytes of float or bf16, read and written as float: x[i], x.set(i, value), Pack<T>::of(values).
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
    __device__ __forceinline__ void set(int i, float value) {
        if constexpr (SIZE == 4) {
            word[i] = __float_as_uint(value);
        } else if (i % 2) {
            word[i / 2] = (word[i / 2] & 0xffffu) | pack_bf16(0.0f, value);
        } else {
            word[i / 2] = (word[i / 2] & 0xffff0000u) | pack_bf16(value, 0.0f);
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

// whether packs can be loaded and stored at all of these addresses; NULL counts as aligned
template <class... T> static inline bool aligned_to_pack(const T *...address) {
    return ((reinterpret_cast<uintptr_t>(address) | ...) % sizeof(Pack<float>)) == 0;
}

// The address is a multiple of 16 bytes. Streaming: for data used once, evicted from the cache first.
template <class T> static __device__ __forceinline__ Pack<T> load128(const T *address) {
#ifdef __CUDACC__
    return pack_of_words<T>(*reinterpret_cast<const uint4 *>(address));
#else
    return pack_of_words<T>(simt::load_global(reinterpret_cast<const uint4 *>(address)));
#endif
}
template <class T> static __device__ __forceinline__ Pack<T> load128_streaming(const T *address) {
    return pack_of_words<T>(__ldcs(reinterpret_cast<const uint4 *>(address)));
}
template <class T> static __device__ __forceinline__ void store128(T *address, Pack<T> x) {
#ifdef __CUDACC__  // a plain store of words from shared memory becomes four 4-byte stores with nvcc 13
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(address)), "r"(x.word[0]),
                 "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
                 : "memory");
#else
    simt::store_global(reinterpret_cast<uint4 *>(address), words_of_pack(x));
#endif
}
template <class T> static __device__ __forceinline__ void store128_streaming(T *address, Pack<T> x) {
    __stcs(reinterpret_cast<uint4 *>(address), words_of_pack(x));
}

// the same for 8 bytes
static __device__ __forceinline__ uint2 load64(const void *address) {
#ifdef __CUDACC__
    return *static_cast<const uint2 *>(address);
#else
    return simt::load_global(static_cast<const uint2 *>(address));
#endif
}
static __device__ __forceinline__ void store64(void *address, uint2 x) {
#ifdef __CUDACC__
    asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(__cvta_generic_to_global(address)), "r"(x.x), "r"(x.y)
                 : "memory");
#else
    simt::store_global(static_cast<uint2 *>(address), x);
#endif
}

// Starts the fetch of the address's 128-byte line from memory to L2.
static __device__ __forceinline__ void prefetch_l2(const void *address) {
#ifdef __CUDACC__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(address)));
#else
    (void)*static_cast<const volatile char *>(address);  // AddressSanitizer sees an address outside of the array
#endif
}

// one element of an array of float or bf16
static __device__ __forceinline__ float load_float(const float *from) { return *from; }
static __device__ __forceinline__ float load_float(const bf16 *from) { return bf16_to_float(*from); }
static __device__ __forceinline__ void store_float(float *to, float x) { *to = x; }
static __device__ __forceinline__ void store_float(bf16 *to, float x) { *to = float_to_bf16(x); }

// WIDTH neighbours of such an array as floats: whole packs; half a pack, if WIDTH is a pack of the other type; or one
// element, for rows or arrays that are not whole packs
template <int WIDTH, class T> static __device__ __forceinline__ void load_floats(float (&x)[WIDTH], const T *from) {
    constexpr int SIZE = Pack<T>::SIZE;
    if constexpr (WIDTH == 1) {
        x[0] = load_float(from);
    } else if constexpr (WIDTH < SIZE) {
        static_assert(WIDTH == 4 && SIZE == 8, "half a pack of bf16");
        uint2 words = load64(from);
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
        store64(to, make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])));
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

// ---- tensor cores and asynchronous copies, called by whole warps; shared addresses are from shared_address

// Four 8x8 matrices of 16-bit elements. Lane 8i+r gives the address of row r of matrix i (16 bytes, 16-byte aligned).
// Lane l gets in r[i] elements 2*(l%4) and the next, of row l/4 of matrix i.
static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#else
    simt::ldmatrix(r, address, false);
#endif
}

// The same, transposed: lane l gets in r[i] rows 2*(l%4) and the next, of column l/4 of matrix i.
static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#else
    simt::ldmatrix(r, address, true);
#endif
}

// d (16x8) += a (16x16) b (16x8): bf16 products, float sums. With g = lane/4, t = 2*(lane%4):
// a[i] holds row g + 8*(i%2), columns t + 8*(i/2) and the next; b0 and b1 rows t and t + 8 and the next, of column g;
// d[i] is row g + 8*(i/2), column t + i%2.
static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    simt::mma(d, a, b0, b1);
#endif
}

// cp_async before sm_80: the thread copies at once, and a later commit or wait has nothing to do
template <int BYTES> static __device__ __forceinline__ void copy_at_once(uint32_t to, const void *from, bool valid) {
    if constexpr (BYTES == 16) {
        store_shared(to, valid ? words_of_pack(load128(static_cast<const float *>(from))) : make_uint4(0, 0, 0, 0));
    } else if constexpr (BYTES == 8) {
        store_shared(to, valid ? load64(from) : make_uint2(0, 0));
    } else {
        store_shared(to, valid ? __ldg(static_cast<const uint32_t *>(from)) : 0u);
    }
}

// Starts a copy of BYTES = 4, 8 or 16 from global to shared memory, both aligned to BYTES. If not `valid`, writes zeros
// and does not read `from`. Visible to the calling thread after cp_async_wait, to other threads after a barrier too.
template <int BYTES> static __device__ __forceinline__ void cp_async(uint32_t to, const void *from, bool valid) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef SM_80
    int bytes_read = valid ? BYTES : 0;
    if constexpr (BYTES == 16) {  // .cg: through L2 alone
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                     "r"(bytes_read)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                     "n"(BYTES), "r"(bytes_read)
                     : "memory");
    }
#elif defined(__CUDACC__)
    copy_at_once<BYTES>(to, from, valid);
#else
    if (simt::settings().capability < 80) { return copy_at_once<BYTES>(to, from, valid); }
    simt::start_copy(to, from, BYTES, valid);
#endif
}

// The thread's copies since its last commit become one group.
static __device__ __forceinline__ void cp_async_commit() {
#ifdef SM_80
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
    simt::commit_copies();
#endif
}

// waits until at most PENDING of the thread's groups are incomplete
template <int PENDING> static __device__ __forceinline__ void cp_async_wait() {
#ifdef SM_80
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#elif !defined(__CUDACC__)
    simt::wait_for_copies(PENDING);
#endif
}
