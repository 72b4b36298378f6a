/*
The GPU: memory, copies, events and CUDA graphs as a struct Device; and the CUDA part of Exec: the stream of all
operations, their shared scratch, and the copy streams.
*/
#pragma once
#include "llmc/common/cuda_common.cuh"  // IWYU pragma: export
#include "llmc/common/device.h"         // IWYU pragma: export

typedef struct CudaMatmuls CudaMatmuls;  // matmul_cublaslt.cuh: cuBLASLt's handle, and one algorithm per GEMM

enum { COPY_EVENTS = 8 };  // events of each copy stream

struct CudaExec {
    cudaStream_t stream;
    cudaEvent_t events[2];
    cudaStream_t copy_streams[COPY_STREAMS];
    cudaEvent_t enqueued;  // in `stream`, at the latest copy
    // Copy n of a copy stream has event n % COPY_EVENTS. A later copy of the stream may record the event again: it runs
    // after copy n. The CopyWork is n * COPY_STREAMS + the stream.
    cudaEvent_t copied[COPY_STREAMS][COPY_EVENTS];
    CopyWork num_copies[COPY_STREAMS];
    int multiprocessors, shared_bytes, block_shared_bytes;  // shared memory of a multiprocessor, and of a block at most
    // partial sums of a first stage; a second stage adds them in a fixed order. Shared by all operations of the stream
    void *partials;
    size_t partials_bytes;
    CudaMatmuls *matmuls;
    bool captures_pdl;  // the capture began with PDL
};

static inline cudaStream_t stream_of(const Exec *ex) { return ex->cuda->stream; }

// `count` uninitialised elements of T, for one operation
template <class T> static inline T *partials_of(const Exec *ex, size_t count, const char *operation) {
    if (count * sizeof(T) > ex->cuda->partials_bytes) {
        run_error("%s needs %zu bytes of partial sums, but the memory plan has %zu: a bug in the plan", operation,
                  count * sizeof(T), ex->cuda->partials_bytes);
    }
    return static_cast<T *>(ex->cuda->partials);
}

// Work enqueued on `stream` from now on runs after the copy; 0: none.
static inline void stream_wait_copy(cudaStream_t stream, CopyWork copy, const Exec *ex) {
    if (copy == 0) { return; }
    cudaEvent_t copied = ex->cuda->copied[copy % COPY_STREAMS][copy / COPY_STREAMS % COPY_EVENTS];
    CUDA_CHECK(cudaStreamWaitEvent(stream, copied, 0));
}

// The number of usable GPUs. If 0, *why is the reason in the words of the CUDA runtime.
static inline int cuda_device_count(const char **why) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    int driver = 0;
    bool no_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
    *why = error == cudaSuccess ? "" : no_driver ? "no NVIDIA driver is installed" : cudaGetErrorString(error);
    cudaGetLastError();  // clears the error, which the next call would report again
    return error == cudaSuccess ? count : 0;
}

// the GPU of this process: number 0, unless comm_open.h chose another
static inline int cuda_current_device(void) {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    return device;
}

// compute capability times 10: 75 for a T4
static inline int cuda_capability(void) {
    int device = cuda_current_device(), major = 0, minor = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return 10 * major + minor;
}

enum { PCI_BUS_ID_LENGTH = 32 };
static inline void cuda_pci_bus_id(char id[PCI_BUS_ID_LENGTH]) {
    CUDA_CHECK(cudaDeviceGetPCIBusId(id, PCI_BUS_ID_LENGTH, cuda_current_device()));
}

// partials: device memory for partials_of, the maximum over all operations or more
static inline void cuda_exec_open(Exec *ex, void *partials, size_t partials_bytes) {
    CudaExec *cuda = static_cast<CudaExec *>(xcalloc(1, sizeof *cuda));
    CUDA_CHECK(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) { CUDA_CHECK(cudaEventCreateWithFlags(&cuda->events[i], cudaEventDisableTiming)); }
    for (int i = 0; i < COPY_STREAMS; i++) {
        CUDA_CHECK(cudaStreamCreateWithFlags(&cuda->copy_streams[i], cudaStreamNonBlocking));
        for (int k = 0; k < COPY_EVENTS; k++) {
            CUDA_CHECK(cudaEventCreateWithFlags(&cuda->copied[i][k], cudaEventDisableTiming));
        }
    }
    CUDA_CHECK(cudaEventCreateWithFlags(&cuda->enqueued, cudaEventDisableTiming));
    int device = cuda_current_device();
    CUDA_CHECK(cudaDeviceGetAttribute(&cuda->multiprocessors, cudaDevAttrMultiProcessorCount, device));
    CUDA_CHECK(cudaDeviceGetAttribute(&cuda->shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    CUDA_CHECK(cudaDeviceGetAttribute(&cuda->block_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    cuda->partials = partials;
    cuda->partials_bytes = partials_bytes;
    ex->cuda = cuda;
}

static inline void cuda_exec_close(Exec *ex) {
    CudaExec *cuda = ex->cuda;
    CUDA_CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 2; i++) { CUDA_CHECK(cudaEventDestroy(cuda->events[i])); }
    CUDA_CHECK(cudaEventDestroy(cuda->enqueued));
    for (int i = 0; i < COPY_STREAMS; i++) {
        for (int k = 0; k < COPY_EVENTS; k++) { CUDA_CHECK(cudaEventDestroy(cuda->copied[i][k])); }
        CUDA_CHECK(cudaStreamDestroy(cuda->copy_streams[i]));
    }
    CUDA_CHECK(cudaStreamDestroy(cuda->stream));
    free(cuda);
    ex->cuda = NULL;
}

// ---- memory

// Free memory outside the plan: modules loaded later, cuBLASLt's handle, CUDA graphs, autotuning's copy of an output.
// cuBLASLt never unloads a kernel that autotuning tried, some hundred of 0.1 to several MB. Assumed, until measured.
static const size_t CUDA_RESERVE = (size_t)1 << 30;

static inline size_t cuda_free_bytes(void) {
    size_t room = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&room, &total));
    return room > CUDA_RESERVE ? room - CUDA_RESERVE : 0;
}

// memory of a GPU outside of a plan: CUDA's context, NCCL's buffers, a desktop, and CUDA_RESERVE
static const size_t CUDA_WHOLE_RESERVE = (size_t)2 << 30;

static inline size_t cuda_whole_bytes(void) {
    struct cudaDeviceProp gpu;
    CUDA_CHECK(cudaGetDeviceProperties(&gpu, cuda_current_device()));
    return gpu.totalGlobalMem > CUDA_WHOLE_RESERVE ? gpu.totalGlobalMem - CUDA_WHOLE_RESERVE : 0;
}

static inline void *cuda_allocate(size_t bytes) {
    void *p = NULL;
    size_t room = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&room, &total));
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 256);
    if (error != cudaSuccess) {
        run_error(
            "out of GPU memory: the plan needs %.1f MiB, but %.1f of %.1f MiB are free (%s); use a smaller -b, -t or "
            "model (see --plan)",
            static_cast<double>(bytes) / (1 << 20), static_cast<double>(room) / (1 << 20),
            static_cast<double>(total) / (1 << 20), cudaGetErrorString(error));
    }
    return p;
}
static inline void cuda_release(void *p) { CUDA_CHECK(cudaFree(p)); }

static inline void *cuda_allocate_host(size_t bytes) {
    void *p = NULL;
    cudaError_t error = cudaMallocHost(&p, bytes ? bytes : 256);
    if (error != cudaSuccess) {
        run_error("cannot pin %.1f MiB of host memory (%s); raise the limit of locked memory (ulimit -l), or give a "
                  "smaller --offload or -b",
                  static_cast<double>(bytes) / (1 << 20), cudaGetErrorString(error));
    }
    host_copy_parallel(p, NULL, bytes);  // seconds for one thread: --offload takes 15 GB at 1558M
    return p;
}
static inline void cuda_release_host(void *p) { CUDA_CHECK(cudaFreeHost(p)); }

// ---- synchronous copies. They run in the default stream, which does not synchronise with the stream of an Exec

static inline void cuda_fill(void *p, int byte, size_t bytes) {
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemset(p, byte, bytes));
    CUDA_CHECK(cudaDeviceSynchronize());
}
static inline void cuda_copy(void *to, const void *from, size_t bytes) {
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    CUDA_CHECK(cudaDeviceSynchronize());
}

// ---- asynchronous work in the stream of an Exec

static inline void cuda_enqueue_fill(void *p, int byte, size_t bytes, Exec *ex) {
    CUDA_CHECK(cudaMemsetAsync(p, byte, bytes, stream_of(ex)));
}
// With a direction, the tests' emulator checks that each end is where its caller says.
static inline void cuda_enqueue_upload(void *device, const void *host, size_t bytes, Exec *ex) {
    CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_of(ex)));
}
static inline void cuda_enqueue_download(void *host, const void *device, size_t bytes, Exec *ex) {
    CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_of(ex)));
}
static inline void cuda_enqueue_copy(void *to, const void *from, size_t bytes, Exec *ex) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(ex)));
}

// ---- copies that overlap the work

static inline CopyWork cuda_copy_begin(int stream, void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                       Exec *ex) {
    CudaExec *cuda = ex->cuda;
    cudaStream_t copies = cuda->copy_streams[stream];
    CUDA_CHECK(cudaEventRecord(cuda->enqueued, cuda->stream));
    CUDA_CHECK(cudaStreamWaitEvent(copies, cuda->enqueued, 0));
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, copies));
    CopyWork number = ++cuda->num_copies[stream];
    CUDA_CHECK(cudaEventRecord(cuda->copied[stream][number % COPY_EVENTS], copies));
    return number * COPY_STREAMS + (CopyWork)stream;
}

static inline CopyWork cuda_upload_begin(int stream, void *device, const void *host, size_t bytes, Exec *ex) {
    return cuda_copy_begin(stream, device, host, bytes, cudaMemcpyHostToDevice, ex);
}
static inline CopyWork cuda_download_begin(int stream, void *host, const void *device, size_t bytes, Exec *ex) {
    return cuda_copy_begin(stream, host, device, bytes, cudaMemcpyDeviceToHost, ex);
}

static inline void cuda_copy_wait(CopyWork copy, Exec *ex) { stream_wait_copy(stream_of(ex), copy, ex); }

static inline void cuda_event_record(int which, Exec *ex) {
    CUDA_CHECK(cudaEventRecord(ex->cuda->events[which], stream_of(ex)));
}
static inline void cuda_event_synchronize(int which, Exec *ex) {
    CUDA_CHECK(cudaEventSynchronize(ex->cuda->events[which]));
}

// A DeviceEvent is CUDA's event, a DeviceGraph its executable graph: both are pointers.
static inline cudaEvent_t cuda_event(const DeviceEvent *event) {
    return reinterpret_cast<cudaEvent_t>(const_cast<DeviceEvent *>(event));
}

static inline DeviceEvent *cuda_event_timed(Exec *ex) {
    cudaEvent_t timed;
    CUDA_CHECK(cudaEventCreateWithFlags(&timed, cudaEventDefault));
    CUDA_CHECK(cudaEventRecord(timed, stream_of(ex)));
    return reinterpret_cast<DeviceEvent *>(timed);
}
static inline double cuda_seconds_between(const DeviceEvent *from, const DeviceEvent *to) {
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, cuda_event(from), cuda_event(to)));
    return 1e-3 * static_cast<double>(milliseconds);
}
static inline void cuda_event_destroy(DeviceEvent *timed) { CUDA_CHECK(cudaEventDestroy(cuda_event(timed))); }

static inline void cuda_capture_begin(Exec *ex) {
    CUDA_CHECK(cudaStreamBeginCapture(stream_of(ex), cudaStreamCaptureModeThreadLocal));
    ex->cuda->captures_pdl = pdl_enabled;
}

// Ends the capture, and launches its graph. *graph: for further launches; NULL if there is none.
static inline cudaError_t cuda_launch_captured(cudaStream_t stream, cudaGraphExec_t *graph) {
    cudaGraph_t captured = NULL;
    *graph = NULL;
    cudaError_t error = cudaStreamEndCapture(stream, &captured);
    if (error == cudaSuccess) {
        // a kernel keeps the priority of its captured stream: collectives run before compute
        error = cudaGraphInstantiate(graph, captured, cudaGraphInstantiateFlagUseNodePriority);
    }
    if (error == cudaSuccess) { error = cudaGraphLaunch(*graph, stream); }
    if (captured) { CUDA_CHECK(cudaGraphDestroy(captured)); }
    return error;
}

static inline DeviceGraph *cuda_capture_end(Exec *ex) {
    cudaGraphExec_t executable;
    cudaError_t error = cuda_launch_captured(stream_of(ex), &executable);
    if (error != cudaSuccess) { pdl_enabled = ex->cuda->captures_pdl; }  // a failed launch turned it off
    if (error != cudaSuccess && pdl_off(error)) {
        if (executable) { CUDA_CHECK(cudaGraphExecDestroy(executable)); }
        return NULL;
    }
    cuda_check(error, "the captured CUDA graph", __FILE__, __LINE__);
    return reinterpret_cast<DeviceGraph *>(executable);
}

static inline void cuda_graph_launch(DeviceGraph *graph, Exec *ex) {
    CUDA_CHECK(cudaGraphLaunch(reinterpret_cast<cudaGraphExec_t>(graph), stream_of(ex)));
}
static inline void cuda_graph_destroy(DeviceGraph *graph) {
    CUDA_CHECK(cudaGraphExecDestroy(reinterpret_cast<cudaGraphExec_t>(graph)));
}

static const Device cuda_device = {
    .name = "cuda",
    .steps_ahead = 1,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .free_bytes = cuda_free_bytes,
    .whole_bytes = cuda_whole_bytes,
    .allocate_host = cuda_allocate_host,
    .release_host = cuda_release_host,
    .fill = cuda_fill,
    .upload = cuda_copy,
    .download = cuda_copy,
    .enqueue_fill = cuda_enqueue_fill,
    .enqueue_upload = cuda_enqueue_upload,
    .enqueue_download = cuda_enqueue_download,
    .enqueue_copy = cuda_enqueue_copy,
    .upload_begin = cuda_upload_begin,
    .download_begin = cuda_download_begin,
    .copy_wait = cuda_copy_wait,
    .event_record = cuda_event_record,
    .event_synchronize = cuda_event_synchronize,
    .event_timed = cuda_event_timed,
    .seconds_between = cuda_seconds_between,
    .event_destroy = cuda_event_destroy,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
};
