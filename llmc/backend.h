/*
A backend: operations, device, scratch. The CPU backend and the CUDA backend are in backends.h.
defines: BackendScratch, Backend
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

typedef struct {
    const Ops *ops;
    const Device *device;
    // Rough rates of a typical machine, per second: FLOPs of matmuls, bytes of memory traffic, bytes sent to another rank;
    // and seconds to start an operation. --fit compares choices, so only the ratios of the rates matter.
    double flop_rate, memory_rate, link_rate, launch_seconds;
    // bytes for micro-batches of B x T on a rank of this shape; both pointers of the result are NULL
    BackendScratch (*scratch)(const GPT2Config *c, const LocalShape *local, int B, int T);
    // prepares ex for work. tf32: fp32 matmuls may round their inputs to TF32
    void (*open)(Exec *ex, const BackendScratch *scratch, bool tf32);
    void (*close)(Exec *ex);
    void (*describe)(char *text, size_t room);  // the machine in words, for the banner
} Backend;
