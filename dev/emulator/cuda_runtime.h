/*
Emulates the CUDA runtime on the host. It has the functions that the trainer calls, and the emulator (simt.h) runs the
kernels. If a build has -Idev/emulator, it includes this file for <cuda_runtime.h>, cublasLt.h of this folder for
<cublasLt.h>, and llmc/common/ptx.cuh of this folder for the one of llmc.
Names, arguments and return values are those of CUDA 12.0 and later. The emulated runtime differs as follows.
  Memory     Device memory is filled with NaN bytes. Allocations have no padding, so that ASan detects an access past
             the end. A copy or memset whose device end is not inside one device allocation fails with
             cudaErrorInvalidValue. With SIMT_PRIVATE=1 the host can access device memory only while device work runs,
             and a page without access follows each allocation. SIMT_DEVICE_MIB and SIMT_PINNED_MIB are the capacities.
             Kernels of cuBLASLt, once used, and executable graphs take memory of the device, as they do on a GPU.
  Launches   More than 48 KB of dynamic shared memory needs cudaFuncSetAttribute first, as on a GPU.
  Streams    Work runs at the call, in the order of the calls. With SIMT_LATE=1 it runs, in the same order, when the
             host waits for it: for an event, a stream or the device, in cudaMemcpy, or in cudaFree.
  Order      With SIMT_STREAMS work runs late, in any order that CUDA allows. A piece of work waits for the latest piece
             of its stream and for the events that its stream waited for. Among the pieces that may run, the next one is
               SIMT_STREAMS=1             of the stream created first: copies on younger streams land late
               SIMT_STREAMS=2             of the stream created last: copies on younger streams land early
               SIMT_STREAMS=3 and above   drawn at random; the value is the seed
             Orders 1 and 2 do not show every missing wait among three streams, so a test also runs several seeds.
             cudaEventSynchronize runs the work that the event waits for, and no other work. cudaEventQuery runs one
             piece of this work. Every other wait of the host runs all work. The default stream is the oldest stream,
             and does not synchronise with the others.
  Processes  A piece of work may wait for other processes (nccl.h). If that is true of every piece that the host waits
             for, other pending work runs in the meantime.
  GPUs       SIMT_GPUS is the number of GPUs, 1 by default. They differ only in name: each process uses one.
  Clock      Events read an emulated clock, so that autotuning makes the same choice on every machine. Time advances by
             the cost of each piece of work, in nanoseconds, on any stream:
               kernel        LAUNCH_NANOSECONDS + launched threads / THREADS_PER_NANOSECOND
               copy, memset  LAUNCH_NANOSECONDS + bytes / BYTES_PER_NANOSECOND
               cuBLASLt      LAUNCH_NANOSECONDS + FLOPs / LT_FLOPS_PER_NANOSECOND + a test's slowdown (cublasLt.h)
             Equal work always costs the same. Streams do not overlap, and host code costs nothing.
  Capture    Between cudaStreamBeginCapture and EndCapture, launches, copies and memsets on the stream are recorded with
             their arguments; cudaGraphLaunch runs them. A stream that waits for an event of a capturing stream joins
             the capture, and must be joined back before the capture ends. Synchronisation, allocation, cudaFree, copies
             of pageable host memory and the default stream fail and invalidate the capture: every capture is as strict
             as cudaStreamCaptureModeGlobal. Nodes of a graph stand in the order of the calls. A kernel node has the
             name from its launch; a cuBLASLt product is one kernel node. The nodes of a launched graph wait for
             earlier work of the launching stream, and later work of that stream waits for all nodes. In between,
             SIMT_STREAMS orders the nodes by the stream of their capture.
  Dry run    With simt::runtime().dry_run, device memory and pinned host memory are address space without pages, and no
             work runs: launches and copies are only checked and recorded. The host may access pinned memory. A dry run
             shows the plan and the launches of a model that is larger than this machine.
  Counters   simt::runtime() counts host synchronisations, pageable copies, launches, and graphs launched between an
             event and the wait for the event.
Only one host thread may call it.
*/
#pragma once
#include "dev/emulator/ptx.h"
#include "dev/emulator/simt.h"
#include <cctype>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <unistd.h>

#define SIMT  // for tests: this is the emulator
// Of the self-check: the longest silence of a child in seconds, the file with the driver's version, and the largest
// arrays in bytes, since test_ops runs all shapes.
#define SELF_CHECK_SECONDS simt::setting_from_environment("SIMT_CHECK_SECONDS", 3600)
#define DRIVER_VERSION_FILE (getenv("SIMT_DRIVER") ? getenv("SIMT_DRIVER") : "/dev/null")
#define SELF_CHECK_LARGEST (150 << 10)

// ---- CUDA's types and constants, with CUDA's values

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureUnmatched = 903,
    cudaErrorStreamCaptureUnjoined = 904,
    cudaErrorStreamCaptureImplicit = 906,
    cudaErrorCapturedEvent = 907
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaDeviceAttr {
    cudaDevAttrClockRate = 13,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone,
    cudaStreamCaptureStatusActive,
    cudaStreamCaptureStatusInvalidated
};
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount, l2CacheSize;
};

struct SimtStream;
struct SimtGraph;
// Numbers of pieces of work, counted from 1 in the order of the calls; in a capture, numbers of nodes of its graph.
typedef std::vector<uint64_t> SimtNumbers;
struct SimtEvent {
    bool recorded = false, timed = true;
    uint64_t nanoseconds = 0;      // clock at the record
    SimtGraph *capture = nullptr;  // capture in which the event was recorded; NULL outside a capture
    SimtStream *stream = nullptr;  // stream of the record
    SimtNumbers after;             // the event is complete after these
    uint64_t graphs_before = 0;    // runtime().graph_launches at the record
    uint64_t submitted = 0;        // runtime().submitted at the record
};
enum cudaGraphNodeType { cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset };
struct SimtGraphNode {
    cudaGraphNodeType type;
    const char *name;      // a kernel's name as written in the launch
    uint64_t nanoseconds;  // cost on the emulated clock
    std::function<void()> work;
    size_t stream = 0;  // SimtStream::number of the stream of the call
    SimtNumbers after = {};
    std::function<bool()> ready = nullptr;  // false while the work waits for another process; NULL: true
    std::function<void(SimtGraphNode &, uint64_t)> submitted = nullptr;  // called with the number of the piece, or NULL
};
// a captured graph: its nodes in the order of the calls
struct SimtGraph {
    std::vector<SimtGraphNode> nodes;
    SimtStream *origin = nullptr;
    SimtNumbers ends = {};                      // the graph is complete after these nodes
    bool invalidated = false, refused = false;  // refused: settings().pdl_fault
};
struct SimtGraphExec {
    std::vector<SimtGraphNode> nodes;
    SimtNumbers ends;
};
struct SimtStream {
    size_t number = 0;             // counted from 1 in the order of creation; 0 is the default stream
    SimtNumbers after = {};        // the stream's next piece waits for these
    SimtGraph *capture = nullptr;  // graph under capture; NULL outside a capture
    SimtNumbers node_after = {};   // the same of the stream's next node in the capture
    bool joined = false;           // of a stream that joined a capture: some stream waited for it
    SimtNumbers &next_after() { return capture ? node_after : after; }
};
typedef SimtStream *cudaStream_t;
typedef SimtEvent *cudaEvent_t;
typedef SimtGraph *cudaGraph_t;
typedef SimtGraphNode *cudaGraphNode_t;
typedef SimtGraphExec *cudaGraphExec_t;

namespace simt {

// ---- the state of the runtime

enum MemoryKind { PAGEABLE, PINNED, DEVICE };
struct Allocation {
    size_t bytes;
    MemoryKind kind;
    char *pages;  // private or reserved memory: whole pages that hold the allocation at their end; else NULL
    size_t page_bytes;
};

struct Runtime {
    uint64_t host_synchronisations = 0;  // including each cudaMemcpy
    uint64_t pageable_copies = 0;        // cudaMemcpyAsync calls with pageable host memory, which wait
    uint64_t launches = 0, graph_launches = 0;
    uint64_t graphs_meanwhile = 0;  // graphs launched between an event and the wait for it, over all waits
    size_t device_bytes = static_cast<size_t>(settings().device_mib) << 20;  // capacity; a test may shrink it
    size_t device_bytes_used = 0;                                            // by allocations
    size_t graph_bytes = 0;
    std::set<uint64_t> modules;                                              // of cuBLASLt; never unloaded
    size_t pinned_bytes = static_cast<size_t>(settings().pinned_mib) << 20;  // capacity for pinned memory
    size_t pinned_bytes_used = 0;
    bool dry_run = false;
    uint64_t nanoseconds = 0;                   // emulated clock
    std::map<uint64_t, SimtGraphNode> pending;  // work that has not run yet, by number
    uint64_t submitted = 0;                     // number of the latest piece of work
    int gpu = 0;                                // cudaSetDevice
    cudaError_t last_error = cudaSuccess;
    cudaError_t context_error = cudaSuccess;  // set by work that crashed: from then on work, allocations and waits fail
    std::map<uintptr_t, Allocation> allocations;          // by address
    std::map<const void *, size_t> shared_bytes_allowed;  // by kernel, set by cudaFuncSetAttribute
    std::vector<cudaStream_t> streams;
    size_t streams_created = 0;
    SimtStream default_stream;
    std::vector<cudaGraph_t> captures;  // in progress
};

inline Runtime &runtime() {
    static Runtime all;
    return all;
}

enum { DEVICE_SMS = 4, DEVICE_KILOHERTZ = 1000000, DEVICE_L2_BYTES = 4 << 20, SHARED_BYTES_BY_DEFAULT = 48 * 1024 };
// CUDA reserves 1 KB of it for each block, but on sm_75
inline int shared_bytes_of_sm() { return shared_bytes_limit() + (settings().capability < 80 ? 0 : 1024); }

// sets the last error, as every failing call does
inline cudaError_t failed(cudaError_t error) {
    runtime().last_error = error;
    return error;
}

// success, or the error that the context is left with
inline cudaError_t check_context() {
    cudaError_t error = runtime().context_error;
    return error == cudaSuccess ? error : failed(error);
}

// ---- the clock: cost of work in emulated nanoseconds

enum : uint64_t { LAUNCH_NANOSECONDS = 2000, THREADS_PER_NANOSECOND = 4, BYTES_PER_NANOSECOND = 100 };

inline uint64_t kernel_nanoseconds(uint64_t threads) { return LAUNCH_NANOSECONDS + threads / THREADS_PER_NANOSECOND; }
inline uint64_t copy_nanoseconds(size_t bytes) { return LAUNCH_NANOSECONDS + bytes / BYTES_PER_NANOSECOND; }

// ---- private memory, and address space alone

enum : size_t { PAGE = 4096, ALIGNMENT = 256 };

// Memory of `bytes` that ends, but for the alignment, before a page without access. NULL if there is none.
inline void *map_private(size_t bytes, Allocation *allocation) {
    size_t used = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    allocation->page_bytes = (used + PAGE - 1) / PAGE * PAGE;
    // `ulimit -d` counts private memory that the host may write, so pinned memory is shared
    int shared = allocation->kind == DEVICE ? MAP_PRIVATE : MAP_SHARED;
    void *pages =
        mmap(nullptr, allocation->page_bytes + PAGE, PROT_NONE, shared | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) { return nullptr; }
    // mprotect then changes fewer pages. It never changes pinned memory, where the host touches some pages alone.
    if (allocation->kind == DEVICE) { madvise(pages, allocation->page_bytes, MADV_HUGEPAGE); }
    allocation->pages = static_cast<char *>(pages);
    return allocation->pages + allocation->page_bytes - used;
}

inline void unmap(void *address, const Allocation &allocation) {
    if (allocation.pages) {
        munmap(allocation.pages, allocation.page_bytes + PAGE);
    } else {
        std::free(address);
    }
}

inline void allow_access(const Allocation &a, bool allowed) {
    if (a.pages) { mprotect(a.pages, a.page_bytes, allowed ? PROT_READ | PROT_WRITE : PROT_NONE); }
}

// Device memory is accessible from here on, or no longer.
inline void allow_device_access(bool allowed) {
    if (!settings().private_memory) { return; }
    for (const auto &[address, allocation] : runtime().allocations) {
        if (allocation.kind == DEVICE) { allow_access(allocation, allowed); }
    }
}

// ---- work that waits

// Called while no pending work can run before another process acts. It sleeps, or stops the program.
inline void (*wait_for_processes)() = nullptr;

// True if the work that `piece` waits for has run. Forgets the numbers of work that has run.
inline bool may_run(SimtGraphNode &piece) {
    SimtNumbers &after = piece.after;
    while (!after.empty() && !runtime().pending.contains(after.back())) { after.pop_back(); }
    return after.empty() && (!piece.ready || piece.ready());
}

// The piece of `needed` that runs next (settings().stream_order). Whatever a piece of `needed` waits for is in `needed`
// or has run. 0: they wait for other processes.
inline uint64_t next_piece(const std::set<uint64_t> &needed) {
    Runtime &r = runtime();
    int order = settings().stream_order;
    if (order == 0) { return may_run(r.pending.at(*needed.begin())) ? *needed.begin() : 0; }
    SimtNumbers ready;
    std::copy_if(needed.begin(), needed.end(), std::back_inserter(ready),
                 [&](uint64_t number) { return may_run(r.pending.at(number)); });
    if (ready.empty()) { return 0; }
    auto older = [&](uint64_t a, uint64_t b) { return r.pending.at(a).stream < r.pending.at(b).stream; };
    if (order == 1) { return *std::min_element(ready.begin(), ready.end(), older); }
    if (order == 2) { return *std::max_element(ready.begin(), ready.end(), older); }
    uint64_t already_run = r.submitted - r.pending.size();
    return ready[rng_bits(static_cast<uint64_t>(order), 0, already_run) % ready.size()];
}

inline std::set<uint64_t> all_pending() {
    std::set<uint64_t> all;
    for (const auto &[number, piece] : runtime().pending) { all.insert(all.end(), number); }
    return all;
}

// Runs pieces until `count` have run or none of `needed` is left; of other work too where `needed` waits for other
// processes. blocks: waits for these, else returns.
inline void run_pieces(std::set<uint64_t> needed, size_t count = SIZE_MAX, bool blocks = true) {
    if (needed.empty()) { return; }
    allow_device_access(true);
    for (bool goes_on = true; goes_on && count > 0 && !needed.empty();) {
        uint64_t number = next_piece(needed);
        if (number == 0) { number = next_piece(all_pending()); }
        if (number == 0) {
            wait_for_processes();
            goes_on = blocks;
            continue;
        }
        needed.erase(number);
        auto piece = runtime().pending.extract(number);
        piece.mapped().work();
        count--;
    }
    allow_device_access(false);
}

// Runs the pending work of all streams.
inline void run_pending() { run_pieces(all_pending()); }

// Pending work that the event waits for, directly or not. In the order of the calls: all work before the event.
inline std::set<uint64_t> pending_before(const SimtEvent &event) {
    std::set<uint64_t> waited(event.after.begin(), event.after.end()), needed;
    const auto &pending = runtime().pending;
    for (auto at = pending.rbegin(); at != pending.rend(); ++at) {
        const auto &[number, piece] = *at;
        if (settings().stream_order == 0 ? number > event.submitted : !waited.contains(number)) { continue; }
        needed.insert(needed.begin(), number);
        waited.insert(piece.after.begin(), piece.after.end());
    }
    return needed;
}

// Frees all captures, streams and allocations, and resets the clock, the counters and the device's capacity. For the
// setup of a test: a failed assertion leaves its test by longjmp, which runs no destructor. Events and graphs are not
// freed.
inline void reset_runtime() {
    Runtime &r = runtime();
    for (cudaGraph_t graph : r.captures) { delete graph; }
    for (cudaStream_t stream : r.streams) { delete stream; }
    for (const auto &[address, allocation] : r.allocations) { unmap(reinterpret_cast<void *>(address), allocation); }
    r = Runtime();
}

// ---- memory

// the last allocation that begins at or before an address, with its begin; NULL if there is none
inline const std::pair<const uintptr_t, Allocation> *allocation_before(uintptr_t address) {
    const auto &all = runtime().allocations;
    auto after = all.upper_bound(address);
    return after == all.begin() ? nullptr : &*std::prev(after);
}

// Kind of the memory [address, address + bytes): PAGEABLE unless it lies inside one allocation.
inline MemoryKind memory_kind(const void *address, size_t bytes) {
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    const auto *found = allocation_before(at);
    if (!found) { return PAGEABLE; }
    const auto &[begin, allocation] = *found;
    bool inside = at - begin < allocation.bytes && bytes <= allocation.bytes - (at - begin);
    return inside ? allocation.kind : PAGEABLE;
}

inline bool capturing() { return !runtime().captures.empty(); }
inline bool in_progress(cudaGraph_t capture) {
    const auto &all = runtime().captures;
    return std::find(all.begin(), all.end(), capture) != all.end();
}

// Fails a call that a capture forbids: every capture in progress becomes invalid.
inline cudaError_t invalidate_captures(cudaError_t error) {
    for (cudaGraph_t graph : runtime().captures) { graph->invalidated = true; }
    return failed(error);
}

enum : size_t { GRAPH_NODE_BYTES = 64 << 10 };

inline size_t device_bytes_free() {
    const Runtime &r = runtime();
    size_t modules = r.modules.size() * static_cast<size_t>(settings().module_mib) << 20;
    return r.device_bytes - std::min(r.device_bytes, r.device_bytes_used + r.graph_bytes + modules);
}

// True if `bytes` more of this kind pass the capacity.
inline bool is_full(MemoryKind kind, size_t bytes) {
    const Runtime &r = runtime();
    if (kind == DEVICE) { return bytes > device_bytes_free(); }
    return kind == PINNED && bytes > r.pinned_bytes - std::min(r.pinned_bytes, r.pinned_bytes_used);
}

inline cudaError_t allocate(void **address, size_t bytes, MemoryKind kind) {
    Runtime &r = runtime();
    *address = nullptr;
    if (capturing()) { return invalidate_captures(cudaErrorStreamCaptureUnsupported); }
    if (r.context_error != cudaSuccess || bytes == 0) { return check_context(); }
    if (is_full(kind, bytes)) { return failed(cudaErrorMemoryAllocation); }
    Allocation allocation = {bytes, kind, nullptr, 0};
    bool reserved = r.dry_run;
    if (reserved || (kind == DEVICE && settings().private_memory)) {
        *address = map_private(bytes, &allocation);
    } else if (posix_memalign(address, ALIGNMENT, bytes)) {
        *address = nullptr;
    }
    if (!*address) { return failed(cudaErrorMemoryAllocation); }
    if (!reserved) {
        allow_access(allocation, true);
        std::memset(*address, 0xff, bytes);  // NaN in every floating-point type
    }
    allow_access(allocation, kind != DEVICE);
    r.allocations[reinterpret_cast<uintptr_t>(*address)] = allocation;
    if (kind == DEVICE) { r.device_bytes_used += bytes; }
    if (kind == PINNED) { r.pinned_bytes_used += bytes; }
    return cudaSuccess;
}

inline cudaError_t release(void *address, MemoryKind kind) {
    Runtime &r = runtime();
    if (!address) { return check_context(); }
    if (capturing()) { return invalidate_captures(cudaErrorStreamCaptureUnsupported); }
    auto found = r.allocations.find(reinterpret_cast<uintptr_t>(address));
    if (found == r.allocations.end() || found->second.kind != kind) { return failed(cudaErrorInvalidValue); }
    run_pending();
    if (kind == DEVICE) { r.device_bytes_used -= found->second.bytes; }
    if (kind == PINNED) { r.pinned_bytes_used -= found->second.bytes; }
    unmap(address, found->second);
    r.allocations.erase(found);
    return cudaSuccess;
}

// ---- work on streams

inline SimtStream &stream_at(cudaStream_t stream) { return stream ? *stream : runtime().default_stream; }

// number of the latest work: a piece, or a node if the stream is capturing
inline uint64_t latest_number(const SimtStream &stream) {
    return stream.capture ? stream.capture->nodes.size() : runtime().submitted;
}

// Runs work after node.after, keeps it for later, or records it if the stream is capturing.
inline void add_work(const SimtStream &stream, SimtGraphNode node) {
    Runtime &r = runtime();
    if (stream.capture) {
        stream.capture->nodes.push_back(std::move(node));
        return;
    }
    r.submitted++;
    r.nanoseconds += node.nanoseconds;
    if (r.dry_run) { return; }
    if (node.submitted) { node.submitted(node, r.submitted); }
    r.pending.emplace(r.submitted, std::move(node));
    if (!settings().late_streams && !settings().stream_order) { run_pending(); }
}

// Adds work to the end of a stream.
inline cudaError_t submit(cudaStream_t stream, SimtGraphNode node) {
    if (!stream && capturing()) { return invalidate_captures(cudaErrorStreamCaptureImplicit); }
    if (runtime().context_error != cudaSuccess) { return check_context(); }
    SimtStream &at = stream_at(stream);
    node.stream = at.number;
    node.after = at.next_after();
    add_work(at, std::move(node));
    at.next_after() = {latest_number(at)};
    return cudaSuccess;
}

// True if the stream that began the capture waits for every node.
inline bool joins_all(const SimtGraph &graph) {
    std::set<uint64_t> waited(graph.origin->node_after.begin(), graph.origin->node_after.end());
    for (uint64_t number = graph.nodes.size(); number > 0; number--) {
        if (!waited.contains(number)) { return false; }
        const SimtNumbers &after = graph.nodes[number - 1].after;
        waited.insert(after.begin(), after.end());
    }
    return true;
}

inline size_t shared_bytes_allowed(const void *kernel) {
    auto found = runtime().shared_bytes_allowed.find(kernel);
    return found == runtime().shared_bytes_allowed.end() ? size_t{SHARED_BYTES_BY_DEFAULT} : found->second;
}

// ---- kernels that fail, for tests: modes of settings().broken_kernel

enum Break { WORKS, GIVES_WRONG, GIVES_NAN, DOES_NOTHING, RETURNS_ERROR, CRASHES, HANGS };

// how settings().broken_kernel says that this launch fails
inline Break break_of(const char *name, unsigned threads) {
    static const char *const modes[] = {"nan", "nothing", "error", "crash", "hang"};
    if (!settings().broken_kernel) { return WORKS; }
    std::string text = settings().broken_kernel;
    size_t colon = std::min(text.find(':'), text.size());
    if (std::strncmp(name + (*name == '('), text.c_str(), colon) != 0) { return WORKS; }
    int how = GIVES_WRONG;
    while (colon < text.size()) {
        size_t begin = colon + 1;
        colon = std::min(text.find(':', begin), text.size());
        std::string word = text.substr(begin, colon - begin);
        if (std::isdigit(static_cast<unsigned char>(word[0]))) {
            if (static_cast<unsigned>(std::stoi(word)) != threads) { return WORKS; }
        } else {
            how = GIVES_NAN + static_cast<int>(std::find(modes, std::end(modes), word) - modes);
        }
    }
    if (how > HANGS) {
        std::fprintf(stderr, "simt: SIMT_BREAK=%s has an unknown mode\n", text.c_str());
        std::abort();
    }
    return static_cast<Break>(how);
}

// true: the kernel does not run
inline bool replaced_by(Break how) {
    if (how == CRASHES) {
        std::fprintf(stderr, "simt: a kernel of SIMT_BREAK crashes\n");
        std::abort();
    }
    if (how == HANGS) { std::fputs("simt: a kernel of SIMT_BREAK hangs within a line", stderr); }
    while (how == HANGS) { pause(); }
    return how == DOES_NOTHING;
}

template <class T> void break_output(T *output, Break how) {
    if constexpr (!std::is_const_v<T> && !std::is_void_v<T>) {
        int byte = how == GIVES_NAN ? 0xff : 0x47;  // 0x47: 51000 or so in fp32 and bf16
        if (output) { std::memset(static_cast<void *>(output), byte, sizeof *output); }
    }
}
template <class T> void break_output(const T &, Break) {}

inline bool pdl_enabled = false;

// the mode of settings().pdl_fault if it strikes the stream's next kernel, else ""
inline std::string pdl_fault(cudaStream_t stream) {
    if (!settings().pdl_fault || !pdl_enabled || !stream || !stream->capture) { return ""; }
    const SimtGraph &graph = *stream->capture;
    std::string fault = settings().pdl_fault, join = "kernel";
    for (uint64_t number : stream->node_after) {
        const SimtGraphNode &before = graph.nodes[number - 1];
        if (before.type == cudaGraphNodeTypeMemset) { join = "memset"; }
        if (before.stream != stream->number) { join = "event"; }
        if (std::strcmp(before.name, "cublasLtMatmul") == 0) { join = "matmul"; }
    }
    for (const std::string &word : {join + ":", std::string(graph.nodes.size() > 16 ? "large:" : "no:")}) {
        if (fault.starts_with(word)) { return fault.substr(word.size()); }
    }
    return "";
}

// [begin, end) of allocation_before, else {0, 0}
inline std::pair<uint64_t, uint64_t> allocation_range(uint64_t address) {
    const auto *found = allocation_before(address);
    if (!found) { return {0, 0}; }
    return {found->first, found->first + found->second.bytes};
}

// Adds a line to the file of settings().launches, unless it is there
inline void record(const std::string &line) {
    static FILE *file = settings().launches ? std::fopen(settings().launches, "a") : nullptr;
    static std::set<std::string> known;
    if (!file || !known.insert(line).second) { return; }
    std::fprintf(file, "%s\n", line.c_str());
    std::fflush(file);
}

// `KERNEL THREADS BYTES` of a launch: the kernel's name in the PTX, threads of a block, bytes of dynamic shared memory
inline void record_launch(const void *kernel, uint64_t threads, size_t shared_bytes) {
    if (!settings().launches) { return; }
    record(ptx::name_of(kernel) + " " + std::to_string(threads) + " " + std::to_string(shared_bytes));
}

// Runs a kernel as nvcc compiled it, and records `KERNEL ptx`.
template <class... P>
void run_ptx(void (*kernel)(P...), dim3 grid, dim3 dim, size_t shared_bytes, const std::tuple<P...> &arguments) {
    std::vector<ptx::Argument> list;
    std::string name = ptx::name_of(reinterpret_cast<const void *>(kernel));
    std::apply([&](const P &...argument) { (list.push_back({&argument, sizeof argument}), ...); }, arguments);
    ptx::launch(name, grid, dim, shared_bytes, list, allocation_range);
    record(name + " ptx");
}

// Launches a kernel. Arguments are converted to the kernel's parameter types and copied.
template <class... P>
cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 dim, size_t shared_bytes,
                   cudaStream_t stream, std::type_identity_t<P>... arguments) {
    uint64_t threads = uint64_t{dim.x} * dim.y * dim.z;
    bool grid_fits = grid.x && grid.y && grid.z && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535;
    if (!grid_fits || threads == 0 || threads > MAX_THREADS || dim.z > 64) {
        return failed(cudaErrorInvalidConfiguration);
    }
    if (shared_bytes > shared_bytes_allowed(reinterpret_cast<const void *>(kernel))) {
        return failed(cudaErrorInvalidValue);
    }
    Break how = break_of(name, dim.x);
    if (how == RETURNS_ERROR) { return failed(cudaErrorInvalidConfiguration); }
    std::string fault = pdl_fault(stream);
    if (fault == "graph" || fault == "both") { stream->capture->refused = true; }
    if (fault == "launch" || fault == "both") { return failed(cudaErrorInvalidValue); }
    int times = fault == "nothing" ? 0 : fault == "twice" ? 2 : 1;
    runtime().launches++;
    record_launch(reinterpret_cast<const void *>(kernel), threads, shared_bytes);
    std::tuple<P...> copied(arguments...);
    auto run = [=] {
        if (replaced_by(how)) { return; }
        if (fault == "crash") { runtime().context_error = cudaErrorIllegalAddress; }
        for (int i = 0; i < times; i++) {
            if (settings().ptx) {
                run_ptx(kernel, grid, dim, shared_bytes, copied);
            } else {
                run_grid(name, grid, dim, shared_bytes, [&] { std::apply(kernel, copied); });
            }
        }
        if (how != WORKS) { break_output(std::get<0>(copied), how); }
    };
    uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    return submit(stream, {cudaGraphNodeTypeKernel, name, kernel_nanoseconds(blocks * threads), run});
}

// True if both ends of a copy match its direction. cudaMemcpyDefault matches everything.
inline bool ends_match(MemoryKind to, MemoryKind from, cudaMemcpyKind direction) {
    bool to_device = direction == cudaMemcpyHostToDevice || direction == cudaMemcpyDeviceToDevice;
    bool from_device = direction == cudaMemcpyDeviceToHost || direction == cudaMemcpyDeviceToDevice;
    if (direction == cudaMemcpyDefault) { return true; }
    return (to == DEVICE) == to_device && (from == DEVICE) == from_device;
}

inline cudaError_t count_synchronisation() {
    if (capturing()) { return invalidate_captures(cudaErrorStreamCaptureUnsupported); }
    run_pending();
    runtime().host_synchronisations++;
    return check_context();
}

}  // namespace simt

// ---- errors

inline const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnmatched: return "capture was not initiated in this stream";
    case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureImplicit: return "operation would make the legacy stream depend on a capturing stream";
    case cudaErrorCapturedEvent: return "operation not permitted on an event last recorded in a capturing stream";
    }
    return "unrecognized error code";
}
inline cudaError_t cudaGetLastError() {
    return std::exchange(simt::runtime().last_error, simt::runtime().context_error);
}

// ---- the device: a small one, with the compute capability of settings()

namespace simt {
inline bool has_gpu(int device) { return device >= 0 && device < settings().gpus; }
}  // namespace simt
inline cudaError_t cudaGetDeviceCount(int *count) {
    *count = simt::settings().gpus;
    return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int *device) {
    *device = simt::runtime().gpu;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
    if (!simt::has_gpu(device)) { return simt::failed(cudaErrorInvalidDevice); }
    simt::runtime().gpu = device;
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    if (!simt::has_gpu(device)) { return simt::failed(cudaErrorInvalidDevice); }
    *properties = cudaDeviceProp{};
    snprintf(properties->name, sizeof properties->name, "emulator");
    const char *uuid = simt::settings().uuid ? simt::settings().uuid : "emulator";
    std::memcpy(properties->uuid.bytes, uuid, std::min(std::strlen(uuid), sizeof properties->uuid.bytes));
    properties->uuid.bytes[15] = static_cast<char>(properties->uuid.bytes[15] + device);
    properties->totalGlobalMem = simt::runtime().device_bytes;
    properties->major = simt::settings().capability / 10;
    properties->minor = simt::settings().capability % 10;
    properties->multiProcessorCount = simt::DEVICE_SMS;
    properties->l2CacheSize = simt::DEVICE_L2_BYTES;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp properties;
    cudaError_t error = cudaGetDeviceProperties(&properties, device);
    if (error != cudaSuccess) { return error; }
    switch (attribute) {
    case cudaDevAttrClockRate: *value = simt::DEVICE_KILOHERTZ; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrMemoryClockRate: *value = simt::DEVICE_KILOHERTZ; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 64; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = simt::shared_bytes_of_sm(); break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = simt::shared_bytes_limit(); break;
    default: return simt::failed(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
inline cudaError_t cudaDeviceGetPCIBusId(char *id, int room, int device) {
    if (!simt::has_gpu(device)) { return simt::failed(cudaErrorInvalidDevice); }
    int length = snprintf(id, static_cast<size_t>(room), "0000:%02x:0d.0", static_cast<unsigned>(0x51 + device));
    return length < room ? cudaSuccess : simt::failed(cudaErrorInvalidValue);
}
inline cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = simt::runtime().device_bytes;
    *free_bytes = simt::device_bytes_free();
    return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

template <class Kernel> cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) { return cudaSuccess; }
    if (value < 0 || value > simt::shared_bytes_limit()) { return simt::failed(cudaErrorInvalidValue); }
    simt::runtime().shared_bytes_allowed[reinterpret_cast<const void *>(kernel)] = static_cast<size_t>(value);
    return cudaSuccess;
}
struct cudaFuncAttributes {
    int ptxVersion;
};
template <class Kernel> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, Kernel *) {
    attributes->ptxVersion = simt::settings().capability;
    return cudaSuccess;
}

// ---- memory

template <class T> cudaError_t cudaMalloc(T **address, size_t bytes) {
    return simt::allocate(reinterpret_cast<void **>(address), bytes, simt::DEVICE);
}
template <class T> cudaError_t cudaMallocHost(T **address, size_t bytes) {
    return simt::allocate(reinterpret_cast<void **>(address), bytes, simt::PINNED);
}
inline cudaError_t cudaFree(void *address) { return simt::release(address, simt::DEVICE); }
inline cudaError_t cudaFreeHost(void *address) { return simt::release(address, simt::PINNED); }

inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind direction,
                                   cudaStream_t stream = nullptr) {
    simt::MemoryKind to_kind = simt::memory_kind(to, bytes), from_kind = simt::memory_kind(from, bytes);
    if (bytes == 0) { return cudaSuccess; }
    if (!simt::ends_match(to_kind, from_kind, direction)) { return simt::failed(cudaErrorInvalidValue); }
    bool waits = to_kind == simt::PAGEABLE || from_kind == simt::PAGEABLE;
    if (waits) {
        if (stream && stream->capture) { return simt::invalidate_captures(cudaErrorStreamCaptureUnsupported); }
        simt::runtime().pageable_copies++;
    }
    cudaError_t error = simt::submit(
        stream, {cudaGraphNodeTypeMemcpy, "", simt::copy_nanoseconds(bytes), [=] { std::memmove(to, from, bytes); }});
    if (waits) { simt::run_pending(); }
    return error;
}
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind direction) {
    if (!simt::ends_match(simt::memory_kind(to, bytes), simt::memory_kind(from, bytes), direction) && bytes) {
        return simt::failed(cudaErrorInvalidValue);
    }
    cudaError_t error = simt::count_synchronisation();
    if (error == cudaSuccess && bytes) {
        simt::allow_device_access(true);
        if (!simt::runtime().dry_run) { std::memmove(to, from, bytes); }
        simt::allow_device_access(false);
        simt::runtime().nanoseconds += simt::copy_nanoseconds(bytes);
    }
    return error;
}
inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream = nullptr) {
    if (bytes == 0) { return cudaSuccess; }
    if (simt::memory_kind(to, bytes) != simt::DEVICE) { return simt::failed(cudaErrorInvalidValue); }
    return simt::submit(
        stream, {cudaGraphNodeTypeMemset, "", simt::copy_nanoseconds(bytes), [=] { std::memset(to, value, bytes); }});
}
inline cudaError_t cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }

// ---- streams and events

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    *stream = new SimtStream{++simt::runtime().streams_created};
    simt::runtime().streams.push_back(*stream);
    return cudaSuccess;
}
// priorities change nothing here
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    auto &all = simt::runtime().streams;
    auto found = std::find(all.begin(), all.end(), stream);
    if (found == all.end()) { return simt::failed(cudaErrorInvalidResourceHandle); }
    if (stream->capture) { return simt::invalidate_captures(cudaErrorStreamCaptureUnsupported); }
    all.erase(found);
    delete stream;
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return simt::count_synchronisation(); }
inline cudaError_t cudaDeviceSynchronize() { return simt::count_synchronisation(); }

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = new SimtEvent();
    (*event)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr) {
    if (!stream && simt::capturing()) { return simt::invalidate_captures(cudaErrorStreamCaptureImplicit); }
    event->stream = &simt::stream_at(stream);
    event->capture = event->stream->capture;
    event->after = event->stream->next_after();
    event->graphs_before = simt::runtime().graph_launches;
    event->recorded = true;
    event->submitted = simt::runtime().submitted;
    event->nanoseconds = simt::runtime().nanoseconds;
    return simt::check_context();
}
// Late streams: each query runs one more piece of the work that the event waits for, or of other work if that waits for
// other processes. As on a GPU, cudaErrorNotReady stays the last error.
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (event->capture) { return simt::invalidate_captures(cudaErrorCapturedEvent); }
    std::set<uint64_t> needed = simt::pending_before(*event);
    if (needed.empty()) { return cudaSuccess; }
    simt::run_pieces(std::move(needed), 1, false);
    return simt::failed(cudaErrorNotReady);
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    simt::Runtime &r = simt::runtime();
    if (event->capture) { return simt::invalidate_captures(cudaErrorCapturedEvent); }
    if (simt::capturing()) { return simt::invalidate_captures(cudaErrorStreamCaptureUnsupported); }
    r.graphs_meanwhile += r.graph_launches - event->graphs_before;
    simt::run_pieces(simt::pending_before(*event));
    r.host_synchronisations++;
    return simt::check_context();
}
inline cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    bool recorded = from->recorded && to->recorded && !from->capture && !to->capture;
    if (!recorded || !from->timed || !to->timed) { return simt::failed(cudaErrorInvalidResourceHandle); }
    *milliseconds =
        static_cast<float>(1e-6 * static_cast<double>(static_cast<int64_t>(to->nanoseconds - from->nanoseconds)));
    return cudaSuccess;
}
// The stream's next work waits for the work before the event. Within a capture: a stream that is not capturing joins
// the capture of the event, and the event's stream counts as joined back.
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned = 0) {
    bool other_capture = stream && stream->capture && stream->capture != event->capture;
    if (event->capture ? !stream || other_capture : stream && stream->capture) {
        return simt::invalidate_captures(cudaErrorStreamCaptureUnsupported);
    }
    if (event->capture && !simt::in_progress(event->capture)) { return simt::failed(cudaErrorCapturedEvent); }
    if (event->capture && !stream->capture) {
        stream->capture = event->capture;
        stream->node_after.clear();
        stream->joined = false;
    }
    if (event->capture) { event->stream->joined = true; }
    SimtNumbers &after = simt::stream_at(stream).next_after();
    after.insert(after.end(), event->after.begin(), event->after.end());
    return cudaSuccess;
}

// ---- graphs

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (!stream || stream->capture) { return simt::failed(cudaErrorStreamCaptureUnsupported); }
    stream->capture = new SimtGraph();
    stream->capture->origin = stream;
    stream->node_after.clear();
    simt::runtime().captures.push_back(stream->capture);
    return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    if (!stream || !stream->capture) {
        *status = cudaStreamCaptureStatusNone;
    } else if (stream->capture->invalidated) {
        *status = cudaStreamCaptureStatusInvalidated;
    } else {
        *status = cudaStreamCaptureStatusActive;
    }
    return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    *graph = nullptr;
    if (!stream || !stream->capture || stream->capture->origin != stream) {
        return simt::failed(cudaErrorStreamCaptureUnmatched);
    }
    SimtGraph *captured = stream->capture;
    captured->ends = stream->node_after;
    bool unjoined = !simt::joins_all(*captured);
    for (cudaStream_t other : simt::runtime().streams) {
        if (other->capture != captured) { continue; }
        unjoined |= other != stream && !other->joined;  // even without work
        other->capture = nullptr;
    }
    std::erase(simt::runtime().captures, captured);
    if (captured->invalidated || unjoined) {
        cudaError_t error = captured->invalidated ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined;
        cudaGraphDestroy(captured);
        return simt::failed(error);
    }
    *graph = captured;
    return cudaSuccess;
}
// nodes: room for *count, or NULL to query the count. The nodes live as long as the graph.
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    size_t room = nodes ? *count : 0;
    *count = nodes ? std::min(room, graph->nodes.size()) : graph->nodes.size();
    for (size_t i = 0; i < std::min(room, *count); i++) { nodes[i] = &graph->nodes[i]; }
    return cudaSuccess;
}
inline cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type) {
    *type = node->type;
    return cudaSuccess;
}
enum { cudaGraphInstantiateFlagUseNodePriority = 8 };
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long = 0) {
    size_t bytes = graph->nodes.size() * simt::GRAPH_NODE_BYTES;
    if (graph->refused) { return simt::failed(cudaErrorInvalidValue); }
    if (simt::is_full(simt::DEVICE, bytes)) { return simt::failed(cudaErrorMemoryAllocation); }
    simt::runtime().graph_bytes += bytes;
    *exec = new SimtGraphExec{graph->nodes, graph->ends};
    return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    simt::runtime().graph_bytes -= exec->nodes.size() * simt::GRAPH_NODE_BYTES;
    delete exec;
    return cudaSuccess;
}
// Nodes that wait for no node wait for the stream's earlier work.
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    simt::runtime().graph_launches++;
    if (!stream && simt::capturing()) { return simt::invalidate_captures(cudaErrorStreamCaptureImplicit); }
    SimtStream &at = simt::stream_at(stream);
    uint64_t before = simt::latest_number(at);
    auto renumbered = [&](SimtNumbers numbers) {
        for (uint64_t &number : numbers) { number += before; }
        return numbers.empty() ? at.next_after() : numbers;
    };
    for (SimtGraphNode node : exec->nodes) {
        node.after = renumbered(std::move(node.after));
        simt::add_work(at, std::move(node));
    }
    at.next_after() = renumbered(exec->ends);
    return cudaSuccess;
}
