/*
Counts and names the kernels that an operation launches, by the nodes of its CUDA graph. Kernels of libraries have names
too. This header is C++, for builds with CUDA and for the emulator, where a cuBLASLt matmul is one kernel.

Names come from the driver (cuFuncGetName, since CUDA 12.3), demangled and without parameters. The driver's functions
are looked up by name, so no further library is linked. An older driver gives "?".
*/
#pragma once
#include "llmc/common/device.cuh"
#ifdef __CUDACC__
#include <cuda.h>
#include <cxxabi.h>
#endif

enum { RECORDED_NAMES = 16, RECORDED_LENGTH = 128 };

typedef struct {
    int kernels, others;                         // others: copies and fills
    char name[RECORDED_NAMES][RECORDED_LENGTH];  // of the first RECORDED_NAMES kernels
} Recorded;

// ---- a kernel's name

// name = words without "void " and without parameters, which begin at the first parenthesis outside angle brackets
static inline void record_name(char name[RECORDED_LENGTH], const char *words) {
    static const char nowhere[] = "(anonymous namespace)";
    int depth = 0, length = 0;
    if (strncmp(words, "void ", 5) == 0) { words += 5; }
    for (; *words && length < RECORDED_LENGTH - 1; words++) {
        if (depth == 0 && strncmp(words, nowhere, sizeof nowhere - 1) == 0) { words += sizeof nowhere + 1; }  // and ::
        if (depth == 0 && (*words == '(' || *words == ')')) { break; }
        depth += (*words == '<') - (*words == '>');
        name[length++] = *words;
    }
    name[length] = 0;
}

#ifdef __CUDACC__
// NULL if the driver does not have this `version` of the function
static inline void *driver_function(const char *name, unsigned version) {
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
#else
    (void)version;
    cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    cudaGetLastError();  // the next check must not report it
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : NULL;
}

// A node's kernel is a CUfunction, or a CUkernel if the library is loaded late.
static inline void node_name(char name[RECORDED_LENGTH], cudaGraphNode_t node) {
    auto params =
        (CUresult(*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2 *))driver_function("cuGraphKernelNodeGetParams", 12000);
    auto of_function = (CUresult(*)(const char **, CUfunction))driver_function("cuFuncGetName", 12030);
    auto of_kernel = (CUresult(*)(const char **, CUkernel))driver_function("cuKernelGetName", 12030);
    const char *found = NULL;
    CUDA_KERNEL_NODE_PARAMS_v2 p = {};
    snprintf(name, RECORDED_LENGTH, "?");
    if (!params || params(node, &p) != CUDA_SUCCESS) { return; }
    CUresult result = p.func && of_function ? of_function(&found, p.func) : CUDA_ERROR_NOT_FOUND;
    if (result != CUDA_SUCCESS && p.kern && of_kernel) { result = of_kernel(&found, p.kern); }
    if (result != CUDA_SUCCESS || !found) { return; }
    char *words = abi::__cxa_demangle(found, NULL, NULL, NULL);
    record_name(name, words ? words : found);
    free(words);
}
#else
static inline void node_name(char name[RECORDED_LENGTH], cudaGraphNode_t node) {
    const char *words = node->name + (*node->name == '(');  // a name with commas stands in parentheses
    record_name(name, words);
}
#endif

// ---- graph

static inline void record_node(Recorded *r, cudaGraphNode_t node) {
    cudaGraphNodeType type;
    CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeKernel) {
        r->others++;
        return;
    }
    if (r->kernels < RECORDED_NAMES) { node_name(r->name[r->kernels], node); }
    r->kernels++;
}

// From now on, work enqueued on the Exec is captured and does not run. Run the operation once before, to choose
// algorithms and load modules.
static inline void record_start(const Exec *ex) {
    CUDA_CHECK(cudaStreamBeginCapture(stream_of(ex), cudaStreamCaptureModeThreadLocal));
}

static inline Recorded record_stop(const Exec *ex) {
    Recorded r = {};
    cudaGraph_t graph;
    size_t count = 0;
    CUDA_CHECK(cudaStreamEndCapture(stream_of(ex), &graph));
    CUDA_CHECK(cudaGraphGetNodes(graph, NULL, &count));
    cudaGraphNode_t *nodes = (cudaGraphNode_t *)xmalloc((count + 1) * sizeof *nodes);
    CUDA_CHECK(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) { record_node(&r, nodes[i]); }
    free(nodes);
    CUDA_CHECK(cudaGraphDestroy(graph));
    return r;
}
