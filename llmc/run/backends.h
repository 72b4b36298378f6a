// The backends, and the choice between them: CPU, CUDA, and the reference implementations on the CPU.
#pragma once
#include "llmc/shapes/params.h"
#include "llmc/shapes/slices.h"
#include "llmc/memory/backend.h"
#include "llmc/common/cache_file.h"
#include "llmc/cpu_ops.h"
#include "llmc/gemm.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/gpus.h"
#include <omp.h>
#ifdef HAVE_CUDA
#include "llmc/cuda_ops.cuh"
#include "llmc/pdl.cuh"
#endif

// in a program for many CPUs: a comma and the CPU level of this copy, such as ", x86-64-v3"; otherwise ""
#ifndef CPU_LEVEL
#define CPU_LEVEL ""
#endif

// bytes of partial sums, and of a workspace for matmuls: a CPU has neither
static inline size_t cpu_scratch_bytes(const GPT2Config *c, const LocalShape *local, int B, int T) {
    (void)c, (void)local, (void)B, (void)T;
    return 0;
}

static inline void cpu_open(Exec *ex, void *partials, size_t partials_bytes, void *workspace, size_t workspace_bytes,
                            bool tf32) {
    (void)ex, (void)partials, (void)partials_bytes, (void)workspace, (void)workspace_bytes, (void)tf32;
}

static inline void cpu_close(Exec *ex) { (void)ex; }

static inline void cpu_describe(char *text, size_t room) {
    int threads = omp_get_max_threads();
    snprintf(text, room, "cpu, %d thread%s%s", threads, plural_s((uint64_t)threads), CPU_LEVEL);
}

static inline void reference_describe(char *text, size_t room) { snprintf(text, room, "cpu, reference operations"); }

static inline int cpu_capability(void) { return 0; }

static inline double cpu_peak_flops(bool tf32) {
    (void)tf32;
    return 0;
}

#define CPU_BACKEND(table, bf16_inputs, describes)                                                                     \
    {                                                                                                                  \
        .ops = &(table), .device = &cpu_device, .takes_bf16_inputs = (bf16_inputs),                                    \
        .matmul_workspace_bytes = cpu_scratch_bytes, .partials_bytes = cpu_scratch_bytes, .open = cpu_open,            \
        .close = cpu_close, .describe = (describes), .capability = cpu_capability, .peak_flops = cpu_peak_flops,       \
    }
static const Backend cpu_backend = CPU_BACKEND(cpu_ops, DT_FLOATX == DT_F32 && GEMM_HAS_BF16, cpu_describe);
static const Backend reference_backend = CPU_BACKEND(reference_ops, false, reference_describe);

#ifdef HAVE_CUDA
static inline size_t cuda_partials_bytes(const GPT2Config *c, const LocalShape *local, int B, int T) {
    const size_t partials[] = {attention_partials(B, T, local->heads), layernorm_partials(B * T, c->channels),
                               embedding_partials(B, T, c->channels), global_norm_partials()};
    size_t largest = 0;
    for (size_t i = 0; i < sizeof partials / sizeof partials[0]; i++) {
        if (partials[i] > largest) { largest = partials[i]; }
    }
    return largest;
}

// The bytes for the weight gradient whose k is split most. Its output has at most 144 tiles of 128 x 128 (GPT-2 124M's
// fcw); with tiles of 128 x 256 it has 72, which fill six waves of 132 multiprocessors when k is split in 11. Larger
// outputs need fewer splits. Only micro-batches whose activations take gigabytes get more than CUDA_MATMUL_WORKSPACE.
static inline size_t cuda_matmul_workspace_bytes(const GPT2Config *c, const LocalShape *local, int B, int T) {
    const size_t most = (size_t)144 * 128 * 128, splits = 11, C = (size_t)c->channels;
    const size_t outputs[] = {C * (size_t)local->attn_dim, 3 * C * (size_t)local->attn_dim, C * (size_t)local->d_ff};
    size_t bytes = CUDA_MATMUL_WORKSPACE;
    for (int i = 0; i < 3; i++) {
        size_t partials = splits * outputs[i] * sizeof(float) + LT_SCRATCH_BYTES;
        if (B * T >= 32768 && outputs[i] <= most && partials > bytes) { bytes = partials; }
    }
    return bytes;
}

// True if fp32 matmuls round their inputs to TF32: if that is wanted, and the GPU is sm_80 or newer.
static inline bool cuda_takes_tf32(bool wanted) { return wanted && DT_FLOATX == DT_F32 && cuda_capability() >= 80; }

static inline void cuda_open(Exec *ex, void *partials, size_t partials_bytes, void *workspace, size_t workspace_bytes,
                             bool tf32) {
    char path[PATH_LENGTH];
    struct cudaDeviceProp gpu;
    CUDA_CHECK(cudaGetDeviceProperties(&gpu, cuda_current_device()));
    cuda_exec_open(ex, partials, partials_bytes);
    ex->cuda->matmuls = cuda_matmuls_create(ex->cuda->stream, workspace, workspace_bytes, gpu.name,
                                            cuda_takes_tf32(tf32), cache_path(path, AUTOTUNE_CACHE, "autotune.txt"));
    ex->cuda->matmuls->fallback = ex->fallback.level[FALLBACK_MATMUL];
    pdl_try(ex);
}

static inline void cuda_close(Exec *ex) {
    cuda_matmuls_free(ex->cuda->matmuls);
    cuda_exec_close(ex);
}

static inline void cuda_describe(char *text, size_t room) {
    struct cudaDeviceProp gpu;
    int driver = 0;
    CUDA_CHECK(cudaGetDeviceProperties(&gpu, cuda_current_device()));
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    snprintf(text, room, "cuda, %s, %.1f GiB, driver for CUDA %d.%d, matmuls by cuBLASLt %zu", gpu.name,
             (double)gpu.totalGlobalMem / (1 << 30), driver / 1000, driver % 1000 / 10, cublasLtGetVersion());
}

// Without a GPU, --plan assumes an H100.
static inline int cuda_backend_capability(void) {
    const char *why;
    return cuda_device_count(&why) > 0 ? cuda_capability() : 90;
}

static inline int cuda_attribute(cudaDeviceAttr attribute) {
    int value = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, cuda_current_device()));
    return value;
}

static inline GpuModel cuda_gpu(void) {
    struct cudaDeviceProp p;
    CUDA_CHECK(cudaGetDeviceProperties(&p, cuda_current_device()));
    GpuModel gpu = {"", NULL, 10 * p.major + p.minor, p.multiProcessorCount, 0, 0, 0, (double)p.totalGlobalMem};
    return gpu_model(p.name, gpu, cuda_attribute(cudaDevAttrClockRate), cuda_attribute(cudaDevAttrMemoryClockRate),
                     cuda_attribute(cudaDevAttrGlobalMemoryBusWidth));
}

// TF32 has half the rate of 16-bit inputs.
static inline double cuda_peak_flops(bool tf32) {
    GpuModel gpu = cuda_gpu();
    if (DT_FLOATX == DT_BF16) { return gpu.matmul_flops; }
    return cuda_takes_tf32(tf32) ? gpu.matmul_flops / 2 : gpu.fp32_flops;
}

// Stops the program if its kernels are not for this GPU. bf16 needs the tensor cores of sm_80.
static inline void require_capability(void) {
    bool bf16_build = DT_FLOATX == DT_BF16;
    int needed = bf16_build ? 80 : 75, found = cuda_capability();
    if (found >= needed) { return; }
    struct cudaDeviceProp gpu;
    CUDA_CHECK(cudaGetDeviceProperties(&gpu, cuda_current_device()));
    input_error("the GPU (%s) has compute capability %d.%d, and this %s build needs %d.%d; %sgive --device cpu",
                gpu.name, found / 10, found % 10, bf16_build ? "bf16" : "fp32", needed / 10, needed % 10,
                found >= 75 ? "build with make PRECISION=fp32, or " : "");
}

static const Backend cuda_backend = {
    .ops = &cuda_ops,
    .device = &cuda_device,
    .matmul_workspace_bytes = cuda_matmul_workspace_bytes,
    .partials_bytes = cuda_partials_bytes,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .capability = cuda_backend_capability,
    .peak_flops = cuda_peak_flops,
};
static const Backend *const gpu_backend = &cuda_backend;
enum { BUILT_WITH_CUDA = true };

static inline void share_bytes(void *bytes, size_t count, void *world) {
    comm_broadcast_host(bytes, count, 0, static_cast<Comm *>(world));
}
#else
static const Backend *const gpu_backend = NULL;
enum { BUILT_WITH_CUDA = false };
#endif

// All ranks use rank 0's cuBLASLt algorithms. They run the same matmuls in the same order.
static inline void backend_share_autotune_cache(Exec *ex, Comm *world) {
#ifdef HAVE_CUDA
    if (ex->cuda && world->size > 1) { cuda_matmuls_share(ex->cuda->matmuls, world->rank == 0, share_bytes, world); }
#endif
    (void)ex, (void)world;
}

typedef enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_REFERENCE } DeviceChoice;  // in the order of DEVICE_CHOICES
#define DEVICE_CHOICES "auto cpu cuda reference"

// "", or why the program has no GPU
static inline const char *why_no_gpu(void) {
    const char *why = "it was built without CUDA; make DEVICE=cuda builds it in, with nvcc";
#ifdef HAVE_CUDA
    if (cuda_device_count(&why) > 0) { return ""; }
#endif
    return *why ? why : "CUDA finds none";
}

// The backend that --device asks for. here: it runs on this machine; false for --plan.
static inline const Backend *backend_choose(DeviceChoice choice, bool here) {
    if (choice == DEVICE_REFERENCE) { return &reference_backend; }
    if (choice == DEVICE_CPU) { return &cpu_backend; }
    const char *why = why_no_gpu();
    if (choice == DEVICE_AUTO && *why) { return &cpu_backend; }
    if (*why && (here || !BUILT_WITH_CUDA)) {
        input_error("--device cuda: there is no GPU that this program can use (%s); give --device cpu", why);
    }
#ifdef HAVE_CUDA
    if (here) { require_capability(); }
#endif
    return gpu_backend;
}
