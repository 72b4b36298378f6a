/*
Programmatic dependent launch (PDL, cuda_common.cuh) is on if this GPU and its driver run it right in a CUDA graph. It
needs kernels that were compiled for sm_90 or newer, and a driver for CUDA 12.3. The trial is a graph with each join of
kernels that a micro-step has. Its kernels count: one that does not run, or runs twice, gives another sum.
TRAIN_GPT2_PDL=0 turns PDL off without a trial.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/cuda_common.cuh"
#include "llmc/common/device.cuh"
#include "llmc/common/floatx.h"
#include "llmc/common/ptx.cuh"
#include "llmc/matmul.cuh"
#include "llmc/matmul_autotune.cuh"
#include "llmc/matmul_cublaslt.cuh"
#include <stddef.h>

enum { PDL_SIDE = 128, PDL_KERNELS = 5 };  // a GEMM of the size of a tile, as in training

// on the device
typedef struct {
    int sum;    // accumulates over both launches; the graph clears the other fields
    int count;  // kernels of this launch so far
    // out = in in, by cuBLASLt
    alignas(16) floatX in[PDL_SIDE * PDL_SIDE], out[PDL_SIDE * PDL_SIDE];
} PdlTrial;

static __global__ void pdl_trial_kernel(PdlTrial *trial) {
    wait_for_previous_kernel();
    trial->count++;
    trial->sum += trial->count + (int)load_float(trial->out);
    store_float(trial->in, (float)trial->count);
}

// alg->desc NULL: without the matmul
static inline bool pdl_trial_counts(const CudaExec *cuda, PdlTrial *trial, const LtAlgorithm *alg,
                                    const LtMatmul *product) {
    cudaStream_t stream = cuda->stream, other = cuda->copy_streams[0];
    cudaEvent_t fork = cuda->enqueued, join = cuda->copied[0][0];
    cudaGraphExec_t graph = NULL;
    int sum = 0, once = PDL_KERNELS * (PDL_KERNELS + 1) / 2;
    if (alg->desc) { once += (PDL_KERNELS - 1) * (PDL_KERNELS - 1); }
    // no error is checked: any failure leaves a wrong sum
    cudaMemsetAsync(&trial->sum, 0, sizeof trial->sum, stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    cudaMemsetAsync(&trial->count, 0, sizeof *trial - offsetof(PdlTrial, count), stream);
    LAUNCH_KERNEL(pdl_trial_kernel, 1, 1, 0, stream, trial);  // after a memset
    LAUNCH_KERNEL(pdl_trial_kernel, 1, 1, 0, stream, trial);  // after a kernel
    cudaEventRecord(fork, stream);
    cudaStreamWaitEvent(other, fork, 0);
    LAUNCH_KERNEL(pdl_trial_kernel, 1, 1, 0, other, trial);
    cudaEventRecord(join, other);
    cudaStreamWaitEvent(stream, join, 0);
    LAUNCH_KERNEL(pdl_trial_kernel, 1, 1, 0, stream, trial);  // after an event of another stream
    if (alg->desc) { lt_run(cuda->matmuls, alg, product, &alg->algo); }
    LAUNCH_KERNEL(pdl_trial_kernel, 1, 1, 0, stream, trial);  // after cuBLASLt's kernel
    cuda_launch_captured(stream, &graph);
    if (graph) { cudaGraphLaunch(graph, stream); }
    cudaStreamSynchronize(stream);
    cudaMemcpy(&sum, &trial->sum, sizeof sum, cudaMemcpyDeviceToHost);
    if (graph) { cudaGraphExecDestroy(graph); }
    cudaGetLastError();  // clears an error, which the next check would report
    return sum == 2 * once;
}

// Call once ex has its matmuls, before anything uses their scratch. With skip_autotune, as in the self-check, the
// trial has no matmul: if that crashed, every operation would look broken.
static inline void pdl_try(Exec *ex) {
    const CudaMatmuls *mm = ex->cuda->matmuls;
    const char *given = getenv("TRAIN_GPT2_PDL");
    cudaFuncAttributes attributes;
    pdl_enabled = false;
    if (getenv("TRAIN_GPT2_EARLY_LAUNCHES")) {
        input_error("TRAIN_GPT2_EARLY_LAUNCHES is now TRAIN_GPT2_PDL: rename it");
    }
    CUDA_CHECK(cudaFuncGetAttributes(&attributes, pdl_trial_kernel));
    if (attributes.ptxVersion < 90 || (given && strcmp(given, "0") == 0)) { return; }
    static_assert(sizeof(PdlTrial) <= LT_SUMS_BYTES, "the trial is in the scratch of the matmuls");
    PdlTrial *trial = reinterpret_cast<PdlTrial *>(mm->scratch);
    LtMatmul product = lt_gemm(trial->out, DT_FLOATX, trial->in, false, trial->in, false, PDL_SIDE, PDL_SIDE, PDL_SIDE);
    for (int &bytes : product.key.aligned) { bytes = LT_ALIGNMENT; }
    LtAlgorithm alg = {};
    alg.key = product.key;
    if (!ex->skip_autotune) { lt_choose_untimed(mm, &alg, &product); }
    // loads cuBLASLt's kernel, which a capture might not allow
    if (alg.desc && lt_run(mm, &alg, &product, &alg.algo) != CUBLAS_STATUS_SUCCESS) { lt_destroy_descriptors(&alg); }
    pdl_enabled = true;
    pdl_enabled = pdl_trial_counts(ex->cuda, trial, &alg, &product);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) {  // sticky, since the trial has cleared it once
        run_error("the trial of PDL crashed (%s); set TRAIN_GPT2_PDL=0", cudaGetErrorString(error));
    }
    lt_destroy_descriptors(&alg);
}
