/*
The communicator between GPUs: NCCL on a stream of its own.
Each collective enqueues three things, and the host does not wait:
  an event in the compute stream, for which NCCL's stream waits: earlier work has written the inputs and read the output
  the collective, in the group's stream
  an event after it, for which comm_wait lets the compute stream wait
A ring holds the events of the latest NCCL_EVENTS collectives. Fewer are pending at a time: at most one all-gather and
one reduce-scatter per bucket, of L + 2 buckets. An older work shares its slot with a later collective, and comm_wait
then waits for the later one. A slot last recorded in a CUDA graph must not be waited for outside of that graph.
Overlapping groups (dp and tp) need the same launch order on every rank. NCCL from 2.26 on keeps the host's order with
NCCL_LAUNCH_ORDER_IMPLICIT, which nccl_set_launch_order sets unless the environment does.
The groups share no buffers. With ncclConfig_t.splitShare = 1, which counts in the world's configuration and not in
ncclCommSplit's, NCCL starts a collective of one group only when the last one of any group is complete: a layer's tp
all-gather would wait for the gradients' dp reduce-scatter, which crosses machines.
A rank that has ended shows as an asynchronous NCCL error, or as silence: comm_event_synchronize checks for both. NCCL's
own calls may also block on other ranks, and so may launches while the GPU's queue is full. A watchdog thread
(nccl_host.h) covers both: every NCCL call, and launches after comm_watch. NCCL's non-blocking mode
(ncclConfig_t.blocking = 0) is no alternative: every collective then starts a thread. With MPI (`launched`) one rank
reports the error. Without MPI each rank prints its own sentence, and the launcher ends the rest (srun
--kill-on-bad-exit). comm_max uses MPI. Without MPI it is an all-reduce on the GPU, which waits for every collective
launched earlier, and so for the update, because NCCL also keeps the launch order between communicators.
*/
#pragma once
#include "llmc/parallel/comm.h"
#include "llmc/parallel/nccl_host.h"
#include "llmc/common/device.cuh"
#include <nccl.h>
#include <unistd.h>

enum { NCCL_EVENTS = 256, NCCL_CHILDREN = 4 };

struct NcclGroup {
    ncclComm_t nccl;  // NULL until all ranks have connected
    Comm *launched;   // the same ranks through MPI; NULL without MPI
    Watch *watch;     // the world's watchdog
    bool is_world;
    const char *id_file;                        // touched until the ranks have connected; NULL: none (nccl_host.h)
    struct NcclGroup *parent;                   // this group was split from it; it checks this group's errors too
    struct NcclGroup *children[NCCL_CHILDREN];  // groups split from this one; NULL: none
    cudaStream_t stream;
    cudaEvent_t enqueued;           // in the compute stream, at the latest collective
    cudaEvent_t done[NCCL_EVENTS];  // call n's is n % NCCL_EVENTS
    long long *max_device;          // one number, for comm_max without MPI
    long long *max_host;
};

static inline void nccl_check(ncclResult_t result, const char *call) {
    if (result == ncclSuccess) { return; }
    const char *why = ncclGetErrorString(result);
    if (result == ncclUnhandledCudaError) {  // usually an out-of-memory, which neither text need say
        run_error("%s: %s: %s; if memory ran out, give a smaller -b, or --fit; NCCL_DEBUG=WARN says more", call, why,
                  ncclGetLastError(NULL));
    }
    run_error("%s: %s%s", call, why, result == ncclRemoteError ? "; see the last message of the rank that ended" : "");
}
#define NCCL_CHECK(call) nccl_check((call), #call)

// NCCL_CHECK under the watchdog, for a call that may block on other ranks
#define NCCL_WATCHED(call, comm)                                                                                       \
    do {                                                                                                               \
        watch_enter((comm)->nccl->watch);                                                                              \
        ncclResult_t watched_result = (call);                                                                          \
        watch_leave((comm)->nccl->watch);                                                                              \
        nccl_check(watched_result, #call);                                                                             \
    } while (0)

static inline int nccl_version(void) {
    int version = 0;
    NCCL_CHECK(ncclGetVersion(&version));
    return version;
}

static inline ncclDataType_t nccl_type(DType dtype) {
    return dtype == DT_F32 ? ncclFloat32 : dtype == DT_BF16 ? ncclBfloat16 : ncclUint8;
}

// ---- collectives

// Enqueues the collective `call` after the work of ex, and records the event that nccl_wait waits for.
#define NCCL_ENQUEUE(call)                                                                                             \
    do {                                                                                                               \
        struct NcclGroup *g = comm->nccl;                                                                              \
        CUDA_CHECK(cudaEventRecord(g->enqueued, stream_of(ex)));                                                       \
        CUDA_CHECK(cudaStreamWaitEvent(g->stream, g->enqueued, 0));                                                    \
        NCCL_WATCHED(call, comm);                                                                                      \
        CUDA_CHECK(cudaEventRecord(g->done[comm->calls % NCCL_EVENTS], g->stream));                                    \
    } while (0)

static inline void nccl_all_reduce(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex) {
    NCCL_ENQUEUE(ncclAllReduce(buffer, buffer, count, nccl_type(dtype), ncclSum, g->nccl, g->stream));
}

static inline void nccl_reduce_scatter(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    NCCL_ENQUEUE(ncclReduceScatter(in, out, chunk, nccl_type(dtype), ncclSum, g->nccl, g->stream));
}

static inline void nccl_all_gather(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    NCCL_ENQUEUE(ncclAllGather(in, out, chunk, nccl_type(dtype), g->nccl, g->stream));
}

static inline void nccl_broadcast(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex) {
    NCCL_ENQUEUE(ncclBroadcast(buffer, buffer, count, nccl_type(dtype), root, g->nccl, g->stream));
}

static inline void nccl_after_copy(CopyWork copy, Comm *comm, Exec *ex) {
    stream_wait_copy(comm->nccl->stream, copy, ex);
}

static inline void nccl_wait(CommWork work, Comm *comm, Exec *ex) {
    CUDA_CHECK(cudaStreamWaitEvent(stream_of(ex), comm->nccl->done[work % NCCL_EVENTS], 0));
}

// ---- waiting on the host

// Stops the program if `waited` exceeds the timeout, or at an asynchronous error of the group or its children. Called
// while this rank waits, by the watchdog too.
static inline void nccl_check_ranks(void *group, double waited) {
    const Comm *comm = static_cast<const Comm *>(group);
    for (int i = -1; i < NCCL_CHILDREN; i++) {
        const struct NcclGroup *g = i < 0 ? comm->nccl : comm->nccl->children[i];
        ncclResult_t state = ncclSuccess;
        if (g && g->nccl) { NCCL_CHECK(ncclCommGetAsyncError(g->nccl, &state)); }
        if (state != ncclInProgress) { nccl_check(state, "a collective"); }
    }
    if (comm->nccl->id_file) { id_file_touch(comm->nccl->id_file); }
    if (waited > COMM_TIMEOUT) { comm_no_answer(comm, "NCCL"); }
}

static inline void nccl_watch(Comm *comm) { watch_stay(comm->nccl->watch, true); }

static inline void nccl_event_wait(cudaEvent_t event, Comm *comm) {
    AwakeClock clock = {0, 0};
    double checked = 0;
    cudaError_t state;
    watch_stay(comm->nccl->watch, false);
    while ((state = cudaEventQuery(event)) == cudaErrorNotReady) {
        double waited = awake_seconds(&clock);
        if (waited - checked > 1e-2) {
            nccl_check_ranks(comm, waited);
            checked = waited;
        }
        if (waited > 1e-3) { usleep(20); }
    }
    cudaGetLastError();  // cudaErrorNotReady stays the last error, which the next launch would report
    CUDA_CHECK(state);
}

static inline void nccl_event_synchronize(int event, Comm *comm, Exec *ex) {
    nccl_event_wait(ex->cuda->events[event], comm);
}

static inline long long nccl_max(long long value, Comm *comm) {
    struct NcclGroup *g = comm->nccl;
    watch_stay(g->watch, false);
    if (g->launched) { return comm_max(value, g->launched); }
    const size_t bytes = sizeof value;
    cudaEvent_t done = g->done[comm->calls % NCCL_EVENTS];
    *g->max_host = value;
    CUDA_CHECK(cudaMemcpyAsync(g->max_device, g->max_host, bytes, cudaMemcpyHostToDevice, g->stream));
    NCCL_WATCHED(ncclAllReduce(g->max_device, g->max_device, 1, ncclInt64, ncclMax, g->nccl, g->stream), comm);
    CUDA_CHECK(cudaMemcpyAsync(g->max_host, g->max_device, bytes, cudaMemcpyDeviceToHost, g->stream));
    CUDA_CHECK(cudaEventRecord(done, g->stream));
    nccl_event_wait(done, comm);
    return *g->max_host;
}

static inline Comm *nccl_split(Comm *comm, int colour, int key);
static inline void nccl_close(Comm *comm);

static const CommBackend comm_nccl_backend = {
    .name = "nccl",
    .capturable = true,
    .ordered = false,
    .all_reduce = nccl_all_reduce,
    .reduce_scatter = nccl_reduce_scatter,
    .all_gather = nccl_all_gather,
    .broadcast = nccl_broadcast,
    .after_copy = nccl_after_copy,
    .wait = nccl_wait,
    .event_synchronize = nccl_event_synchronize,
    .watch = nccl_watch,
    .max = nccl_max,
    .split = nccl_split,
    .close = nccl_close,
};

// ---- groups

// a group without an ncclComm_t yet; the caller keeps ownership of `launched` and `watch`
static inline Comm *nccl_group(Comm *launched, Watch *watch) {
    Comm *comm = comm_new(&comm_nccl_backend, &cuda_device);
    struct NcclGroup *g = comm->nccl = static_cast<struct NcclGroup *>(xcalloc(1, sizeof *g));
    g->launched = launched;
    g->watch = watch;
    // a higher priority than compute kernels, because other GPUs wait for a collective too
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&g->stream, cudaStreamNonBlocking, greatest));
    CUDA_CHECK(cudaEventCreateWithFlags(&g->enqueued, cudaEventDisableTiming));
    for (int i = 0; i < NCCL_EVENTS; i++) { CUDA_CHECK(cudaEventCreateWithFlags(&g->done[i], cudaEventDisableTiming)); }
    if (!launched) {
        g->max_device = static_cast<long long *>(cuda_allocate(sizeof *g->max_device));
        g->max_host = static_cast<long long *>(cuda_allocate_host(sizeof *g->max_host));
    }
    return comm;
}

// Waits for the group's collectives, in ncclCommFinalize, and frees NCCL's and CUDA's objects
static inline void nccl_free(Comm *comm) {
    struct NcclGroup *g = comm->nccl;
    NCCL_WATCHED(ncclCommFinalize(g->nccl), comm);
    ncclComm_t finalized = g->nccl;
    g->nccl = NULL;  // from here on the watchdog must not ask it for errors
    NCCL_WATCHED(ncclCommDestroy(finalized), comm);
    for (int i = 0; i < NCCL_EVENTS; i++) { CUDA_CHECK(cudaEventDestroy(g->done[i])); }
    CUDA_CHECK(cudaEventDestroy(g->enqueued));
    CUDA_CHECK(cudaStreamDestroy(g->stream));
    if (g->max_device) {
        cuda_release(g->max_device);
        cuda_release_host(g->max_host);
    }
}

// StopHook without MPI. _exit, because exit would wait for device work that waits for other ranks.
static inline void nccl_stop(void *world, int status, const char *sentence) {
    fprintf(stderr, "train_gpt2: rank %d: %s\n", static_cast<const Comm *>(world)->rank, sentence);
    _exit(status);
}

static inline void nccl_close(Comm *comm) {
    struct NcclGroup *g = comm->nccl;
    watch_stay(g->watch, false);  // the watchdog looks at groups
    nccl_free(comm);
    for (int i = 0; g->parent && i < NCCL_CHILDREN; i++) {
        if (g->parent->children[i] == g) { g->parent->children[i] = NULL; }
    }
    if (g->is_world) {
        watch_close(g->watch);
        free(g->watch);
        if (stop_hook()->ctx == comm) { stop_hook()->stop = NULL; }
    } else if (g->launched) {
        comm_close(g->launched);
    }
    free(g);
    free(comm);
}

static inline Comm *nccl_split(Comm *comm, int colour, int key) {
    struct NcclGroup *g = comm->nccl;
    comm_barrier(comm);  // has a timeout
    Comm *launched = g->launched ? comm_split(g->launched, colour, key) : NULL;
    Comm *part = nccl_group(launched, g->watch);
    NCCL_WATCHED(ncclCommSplit(g->nccl, colour, key, &part->nccl->nccl, NULL), comm);
    NCCL_CHECK(ncclCommUserRank(part->nccl->nccl, &part->rank));
    NCCL_CHECK(ncclCommCount(part->nccl->nccl, &part->size));
    part->local_rank = comm->local_rank;
    if (part->size > 1 && part->size < comm->size && nccl_version() < 22600) {
        run_error(
            "-tp together with data parallelism needs NCCL 2.26 or later, which keeps the launch order; found %d: "
            "update NCCL, or give -tp 1 or -tp with the number of ranks",
            nccl_version());
    }
    if (part->size > 1) {
        int i = 0;
        while (i < NCCL_CHILDREN && g->children[i]) { i++; }
        if (i == NCCL_CHILDREN) { run_error("a group has more than %d groups split from it: a bug", NCCL_CHILDREN); }
        g->children[i] = part->nccl;
        part->nccl->parent = g;
        return part;
    }
    nccl_close(part);  // a group of one rank needs no communication
    return comm_single(&cuda_device);
}

// Call it before any NCCL call, because NCCL may start threads that read the environment.
static inline void nccl_set_launch_order(void) { setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); }

// One rank creates the id; the others receive it through comm_broadcast or the id file.
static inline ncclUniqueId nccl_unique_id(void) {
    ncclUniqueId id;
    NCCL_CHECK(ncclGetUniqueId(&id));
    return id;
}

// The world of `size` ranks with one GPU each, for this rank the current device. launched: the same ranks through MPI,
// closed by the caller after the world; NULL: without MPI. id_file: rank 0's file without MPI, removed once all ranks
// have connected; otherwise NULL.
static inline Comm *comm_nccl_open(ncclUniqueId id, int rank, int size, int local_rank, Comm *launched,
                                   const char *id_file) {
    Watch *watch = static_cast<Watch *>(xcalloc(1, sizeof *watch));
    Comm *comm = nccl_group(launched, watch);
    comm->nccl->is_world = true;
    comm->nccl->id_file = id_file;
    comm->rank = rank;
    comm->size = size;
    comm->local_rank = local_rank;
    if (!launched) { *stop_hook() = {nccl_stop, comm}; }
    watch_open(watch, nccl_check_ranks, comm);
    ncclComm_t connected = NULL;
    NCCL_WATCHED(ncclCommInitRank(&connected, size, id, rank), comm);
    comm->nccl->nccl = connected;
    if (id_file) { unlink(id_file); }
    comm->nccl->id_file = NULL;
    return comm;
}
