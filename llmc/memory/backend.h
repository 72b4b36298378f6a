// A backend: operations, device, scratch. The CPU backend and the CUDA backend are in run/backends.h.
#pragma once
#include "llmc/common/device.h"
#include "llmc/ops.h"
#include "llmc/shapes/slices.h"

typedef struct {
    const Ops *ops;
    const Device *device;
    bool takes_bf16_inputs;  // -f 2: fp32 matmuls can round their inputs to bf16
    // device memory for use within one operation, on a rank of this shape and for micro-batches of B x T: cuBLASLt's
    // workspace; and partial sums of reductions
    size_t (*matmul_workspace_bytes)(const GPT2Config *c, const LocalShape *local, int B, int T);
    size_t (*partials_bytes)(const GPT2Config *c, const LocalShape *local, int B, int T);
    // prepares ex for work with that memory. tf32: fp32 matmuls may round their inputs to TF32
    void (*open)(Exec *ex, void *partials, size_t partials_bytes, void *workspace, size_t workspace_bytes, bool tf32);
    void (*close)(Exec *ex);
    void (*describe)(char *text, size_t room);  // the machine in words, for the banner
    int (*capability)(void);                    // a GPU's compute capability, times 10: 90 is an H100's; 0: a CPU
    // FLOPs per second of matmuls that the device cannot exceed, for MFU; 0: unknown. tf32: as for open
    double (*peak_flops)(bool tf32);
} Backend;

static inline bool is_gpu(const Backend *backend) { return backend->device != &cpu_device; }
