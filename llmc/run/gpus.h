/*
NVIDIA GPUs: published rates and sizes, by name; for an unknown GPU, from its properties. For MFU, and for predictions
of a training step (dev/bench/roofline.h).
*/
#pragma once
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    char name[32];        // as a flag's value: "h200"
    const char *device;   // last words of the name that the driver reports
    int capability;       // 90: compute capability 9.0, sm_90
    int multiprocessors;  // SMs
    double matmul_flops;  // FLOPs per second of tensor cores: dense, 16-bit inputs, fp32 sums
    double fp32_flops;    // of CUDA cores
    double bandwidth;     // bytes per second of device memory
    double memory;        // bytes that the CUDA runtime reports, a little less than the card is sold with
} GpuModel;

#define GPU_GIB 1073741824.0

// NVIDIA's data sheets: H200, H100, A100, T4; whitepapers "Ada GPU Architecture" and "RTX Blackwell GPU Architecture".
// T4 has no bf16: the rate is fp16's. The memory is cudaDeviceProp.totalGlobalMem.
static const GpuModel known_gpus[] = {
    {"h200", "H200", 90, 132, 989.4e12, 66.9e12, 4.8e12, 139.8 * GPU_GIB},
    {"h100", "H100 80GB HBM3", 90, 132, 989.4e12, 66.9e12, 3.35e12, 79.1 * GPU_GIB},
    {"h100-pcie", "H100 PCIe", 90, 114, 756e12, 51.2e12, 2.04e12, 79.1 * GPU_GIB},
    {"a100", "A100-SXM4-80GB", 80, 108, 312e12, 19.5e12, 2.039e12, 79.2 * GPU_GIB},
    {"a100-40gb", "A100-SXM4-40GB", 80, 108, 312e12, 19.5e12, 1.555e12, 39.4 * GPU_GIB},
    {"4090", "GeForce RTX 4090", 89, 128, 165.2e12, 82.6e12, 1.008e12, 23.6 * GPU_GIB},
    {"4070", "GeForce RTX 4070", 89, 46, 58.3e12, 29.1e12, 0.504e12, 11.7 * GPU_GIB},
    {"4060", "GeForce RTX 4060", 89, 24, 30.2e12, 15.1e12, 0.272e12, 7.7 * GPU_GIB},
    {"3060", "GeForce RTX 3060", 86, 28, 25.5e12, 12.7e12, 0.36e12, 11.7 * GPU_GIB},
    {"5090", "GeForce RTX 5090", 120, 170, 209.5e12, 104.8e12, 1.792e12, 31.4 * GPU_GIB},
    {"t4", "T4", 75, 40, 65e12, 8.1e12, 0.32e12, 14.6 * GPU_GIB},
};
enum { NUM_GPUS = sizeof known_gpus / sizeof known_gpus[0] };

// FLOPs of a multiprocessor in a cycle: tensor cores as in GpuModel.matmul_flops, of which a GeForce does half from
// sm_75 to sm_89 and on sm_120; CUDA cores in fp32
static const struct {
    int capability;
    double matmul, fp32;
} gpu_cycles[] = {{75, 1024, 128}, {80, 2048, 128},  {86, 1024, 256},  {89, 1024, 256},
                  {90, 4096, 256}, {100, 8192, 256}, {103, 8192, 256}, {120, 1024, 256}};

// True if the name ends with these words.
static inline bool gpu_is(const char *name, const char *words) {
    size_t length = strlen(name), last = strlen(words);
    return length >= last && strcmp(name + length - last, words) == 0 &&
           (length == last || name[length - last - 1] == ' ');
}

// Returns the GPU that the driver calls `name`. `gpu` has its capability, multiprocessors and memory; kilohertz is the
// clock of its multiprocessors, and the others are the clock and the width of its memory bus. If a laptop's GPU or a
// part of a GPU has a known name but fewer multiprocessors, we compute its rates as for an unknown GPU. An unknown
// architecture counts as the latest known one before it.
static inline GpuModel gpu_model(const char *name, GpuModel gpu, int kilohertz, int memory_kilohertz, int memory_bits) {
    for (int i = 0; i < NUM_GPUS; i++) {
        const GpuModel *known = &known_gpus[i];
        if (gpu_is(name, known->device) && gpu.multiprocessors == known->multiprocessors) { return *known; }
    }
    int at = sizeof gpu_cycles / sizeof gpu_cycles[0] - 1;
    while (at > 0 && gpu_cycles[at].capability > gpu.capability) { at--; }
    double cycles = 1e3 * kilohertz * gpu.multiprocessors;
    snprintf(gpu.name, sizeof gpu.name, "%.31s", name);
    gpu.matmul_flops = gpu_cycles[at].matmul * cycles * (strstr(name, "GeForce") ? 0.5 : 1);
    gpu.fp32_flops = gpu_cycles[at].fp32 * cycles;
    gpu.bandwidth = 2e3 * memory_kilohertz * memory_bits / 8;  // two transfers a cycle
    return gpu;
}
