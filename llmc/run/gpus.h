/*
NVIDIA GPUs: published rates and sizes, by name; for an unknown GPU, from its properties. For MFU, and for predictions
of a training step (dev/bench/roofline.h).
defines: GpuModel, known_gpus, NUM_GPUS, GpuProperties, gpu_of_properties
*/
#pragma once
#include <stdio.h>
#include <string.h>

typedef struct {
    char name[32];        // as a flag's value: "h200"
    const char *device;   // part of the name that the driver reports
    int capability;       // 90: compute capability 9.0, sm_90
    int multiprocessors;  // SMs
    double matmul_flops;  // FLOPs per second of tensor cores: dense, 16-bit inputs, fp32 sums
    double fp32_flops;    // of CUDA cores
    double bandwidth;     // bytes per second of device memory
    double memory;        // bytes
} GpuModel;

// NVIDIA's data sheets: H200, H100, A100, T4; whitepapers "Ada GPU Architecture" and "RTX Blackwell GPU Architecture".
// T4 has no bf16: the rate is fp16's.
static const GpuModel known_gpus[] = {
    {"h200", "H200", 90, 132, 989.4e12, 66.9e12, 4.8e12, 141e9},
    {"h100", "H100 80GB HBM3", 90, 132, 989.4e12, 66.9e12, 3.35e12, 80e9},
    {"h100-pcie", "H100 PCIe", 90, 114, 756e12, 51.2e12, 2.04e12, 80e9},
    {"a100", "A100-SXM4-80GB", 80, 108, 312e12, 19.5e12, 2.039e12, 80e9},
    {"a100-40gb", "A100-SXM4-40GB", 80, 108, 312e12, 19.5e12, 1.555e12, 40e9},
    {"4090", "RTX 4090", 89, 128, 165.2e12, 82.6e12, 1.008e12, 24e9},
    {"5090", "RTX 5090", 120, 170, 209.5e12, 104.8e12, 1.792e12, 32e9},
    {"t4", "T4", 75, 40, 65e12, 8.1e12, 0.32e12, 16e9},
};
enum { NUM_GPUS = sizeof known_gpus / sizeof known_gpus[0] };

// properties of a GPU that the CUDA runtime reports
typedef struct {
    const char *name;
    int capability, multiprocessors, kilohertz, memory_kilohertz, memory_bits;
    double memory;  // bytes
} GpuProperties;

// FLOPs of a multiprocessor in a cycle: tensor cores as in GpuModel.matmul_flops, CUDA cores in fp32
typedef struct {
    int capability;
    double matmul, fp32;
} GpuCycle;

static const GpuCycle gpu_cycles[] = {{75, 1024, 128}, {80, 2048, 128},  {86, 512, 256},   {89, 512, 256},
                                      {90, 4096, 256}, {100, 8192, 256}, {103, 8192, 256}, {120, 512, 256}};

// The known GPU of that name. A laptop's GPU or a part of a GPU may have the same name and fewer multiprocessors: its
// rates are computed, like those of an unknown GPU. The latest architecture stands in for an unknown one.
static inline GpuModel gpu_of_properties(const GpuProperties *p) {
    for (int i = 0; i < NUM_GPUS; i++) {
        const GpuModel *known = &known_gpus[i];
        if (strstr(p->name, known->device) && p->multiprocessors == known->multiprocessors) { return *known; }
    }
    GpuModel gpu;
    memset(&gpu, 0, sizeof gpu);
    int at = sizeof gpu_cycles / sizeof gpu_cycles[0] - 1;
    while (at > 0 && gpu_cycles[at].capability > p->capability) { at--; }
    double cycles = 1e3 * p->kilohertz * p->multiprocessors;
    snprintf(gpu.name, sizeof gpu.name, "%.31s", p->name);
    gpu.device = p->name;
    gpu.capability = p->capability;
    gpu.multiprocessors = p->multiprocessors;
    gpu.matmul_flops = gpu_cycles[at].matmul * cycles;
    gpu.fp32_flops = gpu_cycles[at].fp32 * cycles;
    gpu.bandwidth = 2e3 * p->memory_kilohertz * p->memory_bits / 8;  // two transfers a cycle
    gpu.memory = p->memory;
    return gpu;
}
