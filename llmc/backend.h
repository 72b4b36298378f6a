/*
Where a model runs: its operations, its device, and the device memory that they use besides the model's own tensors. The
backends themselves are in backends.h.
defines: BackendScratch, MachineRates, Backend
*/
#pragma once
#include "llmc/common/device.h"
#include "llmc/ops.h"
#include "llmc/parallel/slices.h"

// device memory for use within one operation: partial sums of reductions, and cuBLASLt's workspace
typedef struct {
    void *partials, *matmul_workspace;
    size_t partials_bytes, matmul_workspace_bytes;
} BackendScratch;

// Rough rates of such a machine, per second. --fit weighs one choice against another by their ratios.
typedef struct {
    double flops, bytes, link;  // FLOPs of matmuls; bytes of memory traffic; bytes sent to another rank
    double launch;              // seconds to start an operation
} MachineRates;

typedef struct {
    const Ops *ops;
    const Device *device;
    MachineRates rates;
    // bytes for micro-batches of B x T on a rank of this shape; the pointers stay NULL
    BackendScratch (*scratch)(const GPT2Config *c, const LocalShape *local, int B, int T);
    // prepares ex for work. tf32: fp32 matmuls may round their inputs to TF32
    void (*open)(Exec *ex, const BackendScratch *scratch, bool tf32);
    void (*close)(Exec *ex);
    void (*describe)(char *text, size_t room);  // the machine in words
} Backend;
