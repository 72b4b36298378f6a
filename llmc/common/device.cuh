/*
The GPU: memory, copies, events and graphs behind struct Device; and what CUDA operations find in Exec, the stream they
run on and the scratch they share.
defines: CudaExec, cuda_exec_open, cuda_exec_close, stream_of, partials_of, cuda_device, cuda_device_count,
         cuda_current_device
*/
#pragma once
#include "llmc/common/cuda_common.cuh"
#include "llmc/common/device.h"

typedef struct CudaMatmuls CudaMatmuls;  // matmul_cublaslt.cuh: cuBLASLt's handle, and one plan a product

struct CudaExec {
    cudaStream_t stream;
    cudaEvent_t events[2];
    int multiprocessors;
    // sums of a first stage that a second stage adds up, in a fixed order. Operations of one stream take turns with it
    void *partials;
    size_t partials_bytes;
    CudaMatmuls *matmuls;
};

struct DeviceGraph {
    cudaGraphExec_t executable;
};

static inline cudaStream_t stream_of(const Exec *ex) { return ex->cuda->stream; }

// `count` elements of T for one operation; their contents are whatever the last operation left
template <class T> static inline T *partials_of(const Exec *ex, size_t count, const char *operation) {
    if (count * sizeof(T) > ex->cuda->partials_bytes) {
        run_error("%s takes %zu bytes of partial sums, planned were %zu: a bug in the memory plan", operation,
                  count * sizeof(T), ex->cuda->partials_bytes);
    }
    return static_cast<T *>(ex->cuda->partials);
}

// The GPUs that this program can use; 0 where there is none, or no driver. *why is then the runtime's word for it.
static inline int cuda_device_count(const char **why) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    int driver = 0;
    bool no_driver = cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0;
    *why = error == cudaSuccess ? "" : no_driver ? "no NVIDIA driver is installed" : cudaGetErrorString(error);
    cudaGetLastError();  // so that the next call does not report it again
    return error == cudaSuccess ? count : 0;
}

// the GPU of this process: the first one, unless comm_open.h took another
static inline int cuda_current_device(void) {
    int device = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    return device;
}

// partials: device memory for partials_of, at least as much as any operation takes
static inline void cuda_exec_open(Exec *ex, void *partials, size_t partials_bytes) {
    CudaExec *cuda = static_cast<CudaExec *>(xcalloc(1, sizeof *cuda));
    CUDA_CHECK(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) { CUDA_CHECK(cudaEventCreateWithFlags(&cuda->events[i], cudaEventDisableTiming)); }
    CUDA_CHECK(cudaDeviceGetAttribute(&cuda->multiprocessors, cudaDevAttrMultiProcessorCount, cuda_current_device()));
    cuda->partials = partials;
    cuda->partials_bytes = partials_bytes;
    ex->cuda = cuda;
}

static inline void cuda_exec_close(Exec *ex) {
    CUDA_CHECK(cudaStreamSynchronize(ex->cuda->stream));
    for (int i = 0; i < 2; i++) { CUDA_CHECK(cudaEventDestroy(ex->cuda->events[i])); }
    CUDA_CHECK(cudaStreamDestroy(ex->cuda->stream));
    free(ex->cuda);
    ex->cuda = NULL;
}

// ---- memory

// for modules that are loaded late, cuBLASLt's handle, graphs, the copy of an output that tuning works on
static const size_t CUDA_RESERVE = (size_t)512 << 20;

static inline size_t cuda_free_bytes(void) {
    size_t room = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&room, &total));
    return room > CUDA_RESERVE ? room - CUDA_RESERVE : 0;
}

static inline void *cuda_allocate(size_t bytes) {
    void *p = NULL;
    size_t room = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&room, &total));
#ifdef TESTING  // tests look at the device's memory from the host
    cudaError_t error = cudaMallocManaged(&p, bytes ? bytes : 256);
#else
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 256);
#endif
    if (error != cudaSuccess) {
        run_error(
            "out of GPU memory: the plan needs %.1f MiB, free are %.1f of %.1f MiB (%s); a smaller -b, -t or model "
            "needs less (see --plan)",
            static_cast<double>(bytes) / (1 << 20), static_cast<double>(room) / (1 << 20),
            static_cast<double>(total) / (1 << 20), cudaGetErrorString(error));
    }
    return p;
}

static inline void cuda_release(void *p) { CUDA_CHECK(cudaFree(p)); }

static inline void *cuda_allocate_host(size_t bytes) {
    void *p = NULL;
    CUDA_CHECK(cudaMallocHost(&p, bytes ? bytes : 256));
    return p;
}

static inline void cuda_release_host(void *p) { CUDA_CHECK(cudaFreeHost(p)); }

// ---- copies that wait. The stream of an Exec does not wait for the default one, nor that for it

static inline void cuda_fill(void *p, int byte, size_t bytes) {
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemset(p, byte, bytes));
    CUDA_CHECK(cudaDeviceSynchronize());
}

static inline void cuda_upload(void *device, const void *host, size_t bytes) {
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
}

static inline void cuda_download(void *host, const void *device, size_t bytes) {
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

// ---- work

static inline void cuda_enqueue_fill(void *p, int byte, size_t bytes, Exec *ex) {
    CUDA_CHECK(cudaMemsetAsync(p, byte, bytes, stream_of(ex)));
}

static inline void cuda_enqueue_upload(void *device, const void *host, size_t bytes, Exec *ex) {
    CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_of(ex)));
}

static inline void cuda_enqueue_download(void *host, const void *device, size_t bytes, Exec *ex) {
    CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_of(ex)));
}

static inline void cuda_enqueue_copy(void *to, const void *from, size_t bytes, Exec *ex) {
    CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(ex)));
}

static inline void cuda_event_record(int which, Exec *ex) {
    CUDA_CHECK(cudaEventRecord(ex->cuda->events[which], stream_of(ex)));
}
static inline void cuda_event_synchronize(int which, Exec *ex) {
    CUDA_CHECK(cudaEventSynchronize(ex->cuda->events[which]));
}

static inline void cuda_capture_begin(Exec *ex) {
    CUDA_CHECK(cudaStreamBeginCapture(stream_of(ex), cudaStreamCaptureModeThreadLocal));
}

static inline DeviceGraph *cuda_capture_end(Exec *ex) {
    cudaGraph_t captured;
    DeviceGraph *graph = static_cast<DeviceGraph *>(xmalloc(sizeof *graph));
    CUDA_CHECK(cudaStreamEndCapture(stream_of(ex), &captured));
    // each kernel keeps the priority of the stream it was captured in: collectives go before compute
    CUDA_CHECK(cudaGraphInstantiate(&graph->executable, captured, cudaGraphInstantiateFlagUseNodePriority));
    CUDA_CHECK(cudaGraphDestroy(captured));
    return graph;
}

static inline void cuda_graph_launch(DeviceGraph *graph, Exec *ex) {
    CUDA_CHECK(cudaGraphLaunch(graph->executable, stream_of(ex)));
}

static inline void cuda_graph_destroy(DeviceGraph *graph) {
    CUDA_CHECK(cudaGraphExecDestroy(graph->executable));
    free(graph);
}

static const Device cuda_device = {
    .name = "cuda",
    .steps_ahead = 1,
    .allocate = cuda_allocate,
    .release = cuda_release,
    .free_bytes = cuda_free_bytes,
    .allocate_host = cuda_allocate_host,
    .release_host = cuda_release_host,
    .fill = cuda_fill,
    .upload = cuda_upload,
    .download = cuda_download,
    .enqueue_fill = cuda_enqueue_fill,
    .enqueue_upload = cuda_enqueue_upload,
    .enqueue_download = cuda_enqueue_download,
    .enqueue_copy = cuda_enqueue_copy,
    .event_record = cuda_event_record,
    .event_synchronize = cuda_event_synchronize,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
};
