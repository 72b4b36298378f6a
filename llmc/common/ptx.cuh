/*
The launch of a kernel, shared arrays and PTX instructions, for nvcc. Kernels get them through cuda_common.cuh. The
tests' emulator puts a file of the same name in place of this one, so that kernels also run on a CPU.
*/
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

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

// ---- launches

// From sm_90 on the blocks of a kernel are placed while the last blocks of the kernel before it run (programmatic
// dependent launch). A kernel's first statement waits until that kernel has ended and its results are in memory. A
// kernel that did not wait could end before the kernel before it, and the next kernel would read unfinished results.
static __device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");  // the next kernel's blocks may be placed
#endif
}

inline bool pdl_enabled = false;  // set by pdl.cuh where it works

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
    config.numAttrs = pdl_enabled;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// LAUNCH of cuda_common.cuh, which returns the error
#define LAUNCH_KERNEL(kernel, grid, block, shared_bytes, stream, ...)                                                  \
    launch_kernel(kernel, (grid), (block), (shared_bytes), (stream)__VA_OPT__(, ) __VA_ARGS__)

// UNROLL keeps arrays with constant indices in registers; NO_UNROLL keeps a loop rolled, to use fewer registers.
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")

// ---- shared memory

// SHARED_ARRAY(T, name, count)   static: T name[count], 16-byte aligned
// DYNAMIC_SHARED(T, name)        the launch's shared bytes as an array of T, 1024-byte aligned
// Both declare a SharedPtr<T>: name[i], name + i, &name[i], atomicAdd(name + i, x). Read name[i] into a T, never into
// an `auto`, which would be the emulator's reference. T has at least 2 bytes.
template <class T> using SharedPtr = T *;
#define SHARED_ARRAY(T, name, count) __shared__ __align__(16) T name[count]
#define DYNAMIC_SHARED(T, name)                                                                                        \
    extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];                                            \
    T *const name = reinterpret_cast<T *>(dynamic_shared_bytes)

// shared_address(p): the 32-bit address that the instructions below take. load_shared<V>, store_shared<V>: one access
// of sizeof(V) = 4, 8 or 16 bytes at such an address.
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
template <class V> static __device__ __forceinline__ V load_shared(uint32_t address) {
    return *static_cast<const V *>(__cvta_shared_to_generic(address));
}
template <class V> static __device__ __forceinline__ void store_shared(uint32_t address, V value) {
    *static_cast<V *>(__cvta_shared_to_generic(address)) = value;
}

// ---- global memory, one access of 8 or 16 bytes at a multiple of its size

template <class V> static __device__ __forceinline__ V load_global(const V *address) { return *address; }
template <class V> static __device__ __forceinline__ void store_global(V *address, V x) { *address = x; }

// Starts the fetch of the address's 128-byte line from memory to L2.
static __device__ __forceinline__ void prefetch_l2(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(address)));
}

// ---- special functions

// 2^x by the special function unit; 2^-inf = 0, and a subnormal result becomes 0
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x by the special function unit; a subnormal x or result counts as 0, with its sign
static __device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// off by at most 2 units in the last place, 1 unit, 1 unit
static __device__ __forceinline__ float rsqrt_device(float x) { return rsqrtf(x); }
static __device__ __forceinline__ float log_device(float x) { return logf(x); }
static __device__ __forceinline__ float log2_device(float x) { return log2f(x); }

// ---- tensor cores and asynchronous copies, called by whole warps; shared addresses are from shared_address

// Four 8x8 matrices of 16-bit elements. Lane 8i+r gives the address of row r of matrix i (16 bytes, 16-byte aligned).
// Lane l gets in r[i] elements 2*(l%4) and the next, of row l/4 of matrix i.
static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// The same, transposed: lane l gets in r[i] rows 2*(l%4) and the next, of column l/4 of matrix i.
static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// d (16x8) += a (16x16) b (16x8): bf16 products, float sums. With g = lane/4, t = 2*(lane%4):
// a[i] holds row g + 8*(i%2), columns t + 8*(i/2) and the next; b0 and b1 rows t and t + 8 and the next, of column g;
// d[i] is row g + 8*(i/2), column t + i%2.
static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// cp_async of cuda_common.cuh, where has_cp_async()
static __device__ __forceinline__ constexpr bool has_cp_async() {
#ifdef SM_80
    return true;
#else
    return false;
#endif
}

static __device__ __forceinline__ void start_cp_async(uint32_t to, const void *from, bool valid) {
    if constexpr (has_cp_async()) {  // .cg: through L2 alone
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                     "r"(valid ? 16 : 0)
                     : "memory");
    }
}

// The thread's copies since its last commit become one group.
static __device__ __forceinline__ void cp_async_commit() {
    if constexpr (has_cp_async()) { asm volatile("cp.async.commit_group;" ::: "memory"); }
}

// waits until at most PENDING of the thread's groups are incomplete
template <int PENDING> static __device__ __forceinline__ void cp_async_wait() {
    if constexpr (has_cp_async()) { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
}
