/*
The communicator between GPUs: NCCL on a stream of its own beside the one that computes.
defines: comm_nccl_open, nccl_keep_order, nccl_draw_id, nccl_version
Each call puts three things into streams, and the host goes on:
  an event in the compute stream, which the group's stream waits for      what the call reads has been written, what it
                                                                          overwrites has been read
  the collective, in the group's stream
  an event after it, which comm_wait makes the compute stream wait for    what it wrote may be read
A ring keeps the events of the latest NCCL_EVENTS calls, more than are under way at once: at most one gather and one
reduction a bucket, of L + 2. An older work shares its slot with a later call: joining it waits for that one. A slot
that was last recorded in a graph may not be joined outside of it.
Groups that overlap (dp and tp) need the same order of launches on every rank; NCCL keeps the host's, from 2.26 on, with
NCCL_LAUNCH_ORDER_IMPLICIT, which nccl_keep_order sets unless the environment says otherwise.
A rank that has gone shows as an error that NCCL reports by and by, or as a silence: comm_event_synchronize looks for both.
NCCL's own calls may wait for other ranks, too; a thread watches over each of them (comm_watch.h). NCCL has calls that
return at once instead (ncclConfig_t.blocking = 0), but then every collective starts a thread of its own. With MPI
beside it (`host`) the silent rank is named. Without, a wire to rank 0 (comm_wire.h) shows a rank that has ended, each
rank says what it knows, and the launcher ends the rest (srun --kill-on-bad-exit).
comm_max goes through MPI or the wire. On the GPU it would wait for every collective launched before it, and so for
AdamW: NCCL keeps the order of launches between communicators too.
*/
#pragma once
#include "llmc/parallel/comm_watch.h"
#include "llmc/parallel/comm_wire.h"
#include "llmc/common/device.cuh"
#ifdef HAVE_MPI
#include "llmc/parallel/comm_mpi.h"
#endif
#include <nccl.h>
#include <unistd.h>

enum { NCCL_EVENTS = 256, NCCL_PARTS = 4 };

struct NcclGroup {
    ncclComm_t nccl;
    Comm *host;    // the same ranks through MPI; NULL without it
    Wire *wire;    // the same ranks without MPI; NULL with it, and in parts of the world
    Watch *watch;  // over calls of NCCL that may wait; the world's
    bool is_world;
    struct NcclGroup *whole;  // what a part was split from, which also looks for its errors, and is closed after it
    struct NcclGroup *parts[NCCL_PARTS];  // of a whole; NULL: none
    cudaStream_t stream;
    cudaEvent_t given;               // what the compute stream was given before the latest call
    cudaEvent_t done[NCCL_EVENTS];   // call n's is n % NCCL_EVENTS
    long long *value, *given_value;  // what comm_max of a part without MPI works on, on the device and on the host
};

static inline void nccl_check(ncclResult_t result, const char *call) {
    if (result == ncclSuccess) { return; }
    run_error("%s: %s%s", call, ncclGetErrorString(result),
              result == ncclRemoteError ? "; what the rank that was lost last said tells why" : "");
}
#define NCCL_CHECK(call) nccl_check((call), #call)

// the same for a call that may wait for other ranks
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

// ---- calls

static inline void nccl_begin(Comm *comm, Exec *ex) {
    struct NcclGroup *g = comm->nccl;
    CUDA_CHECK(cudaEventRecord(g->given, stream_of(ex)));
    CUDA_CHECK(cudaStreamWaitEvent(g->stream, g->given, 0));
}

static inline void nccl_end(Comm *comm, uint64_t sent_bytes) {
    CUDA_CHECK(cudaEventRecord(comm->nccl->done[comm->calls % NCCL_EVENTS], comm->nccl->stream));
    comm->sent_bytes += sent_bytes;
}

static inline void nccl_all_reduce(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex) {
    nccl_begin(comm, ex);
    struct NcclGroup *g = comm->nccl;
    NCCL_WATCHED(ncclAllReduce(buffer, buffer, count, nccl_type(dtype), ncclSum, g->nccl, g->stream), comm);
    nccl_end(comm, all_reduce_bytes(count, dtype, comm->rank, comm->size));
}

static inline void nccl_reduce_scatter(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    nccl_begin(comm, ex);
    struct NcclGroup *g = comm->nccl;
    NCCL_WATCHED(ncclReduceScatter(in, out, chunk, nccl_type(dtype), ncclSum, g->nccl, g->stream), comm);
    nccl_end(comm, all_gather_bytes(chunk, dtype, comm->size));
}

static inline void nccl_all_gather(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    nccl_begin(comm, ex);
    struct NcclGroup *g = comm->nccl;
    NCCL_WATCHED(ncclAllGather(in, out, chunk, nccl_type(dtype), g->nccl, g->stream), comm);
    nccl_end(comm, all_gather_bytes(chunk, dtype, comm->size));
}

// a chain: every rank but the last hands it on
static inline void nccl_broadcast(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex) {
    nccl_begin(comm, ex);
    struct NcclGroup *g = comm->nccl;
    NCCL_WATCHED(ncclBroadcast(buffer, buffer, count, nccl_type(dtype), root, g->nccl, g->stream), comm);
    bool last = (comm->rank + 1) % comm->size == root;
    nccl_end(comm, last ? 0 : count * dtype_size(dtype));
}

static inline void nccl_wait(CommWork work, Comm *comm, Exec *ex) {
    CUDA_CHECK(cudaStreamWaitEvent(stream_of(ex), comm->nccl->done[work % NCCL_EVENTS], 0));
}

// ---- waiting on the host

// after `waited` seconds for others: stops the program if one has gone, or the time is up
static inline void nccl_look(void *group, double waited) {
    Comm *comm = static_cast<Comm *>(group);
#ifdef HAVE_MPI
    Comm *host = comm->nccl->host;
    if (host && host->mpi) {
        mpi_give_signs(host->mpi->job);
        if (waited > comm->timeout) { mpi_give_up(host, "NCCL"); }
    }
#endif
    if (comm->nccl->wire) { wire_check(comm->nccl->wire); }
    if (waited > comm->timeout) {
        run_error("a rank has not answered for %g s (rank %d of %d waits, in NCCL); if nothing hangs, give a longer "
                  "--comm-timeout",
                  comm->timeout, comm->rank, comm->size);
    }
}

static inline void nccl_look_for_error(const struct NcclGroup *g) {
    ncclResult_t state = ncclSuccess;
    NCCL_CHECK(ncclCommGetAsyncError(g->nccl, &state));
    if (state != ncclInProgress) { nccl_check(state, "a collective"); }
}

// the same while the device is waited for: NCCL may know of an error
static inline void nccl_look_at_device(Comm *comm, double waited) {
    nccl_look_for_error(comm->nccl);
    for (int i = 0; i < NCCL_PARTS; i++) {
        if (comm->nccl->parts[i]) { nccl_look_for_error(comm->nccl->parts[i]); }
    }
    nccl_look(comm, waited);
}

static inline void nccl_wait_for_event(cudaEvent_t event, Comm *comm) {
    double start = now_seconds(), watched = start;
    cudaError_t state;
    while ((state = cudaEventQuery(event)) == cudaErrorNotReady) {
        double now = now_seconds();
        if (now - watched > 1e-2) {
            nccl_look_at_device(comm, now - start);
            watched = now;
        }
        if (now - start > 1e-3) { usleep(20); }
    }
    CUDA_CHECK(state);
}

static inline void nccl_event_synchronize(int mark, Comm *comm, Exec *ex) {
    nccl_wait_for_event(ex->cuda->events[mark], comm);
}

static inline long long nccl_max(long long value, Comm *comm) {
    struct NcclGroup *g = comm->nccl;
    if (g->host) { return comm_max(value, g->host); }
    if (g->wire) { return wire_max(value, g->wire); }
    const size_t bytes = sizeof value;
    cudaEvent_t done = g->done[comm->calls % NCCL_EVENTS];
    *g->given_value = value;
    CUDA_CHECK(cudaMemcpyAsync(g->value, g->given_value, bytes, cudaMemcpyHostToDevice, g->stream));
    NCCL_WATCHED(ncclAllReduce(g->value, g->value, 1, ncclInt64, ncclMax, g->nccl, g->stream), comm);
    CUDA_CHECK(cudaMemcpyAsync(g->given_value, g->value, bytes, cudaMemcpyDeviceToHost, g->stream));
    CUDA_CHECK(cudaEventRecord(done, g->stream));
    nccl_wait_for_event(done, comm);
    return *g->given_value;
}

static inline Comm *nccl_split(Comm *comm, int colour, int key);
static inline void nccl_close(Comm *comm);

static const CommBackend comm_nccl_backend = {
    "nccl",          true,           false,     nccl_all_reduce,        nccl_reduce_scatter,
    nccl_all_gather, nccl_broadcast, nccl_wait, nccl_event_synchronize, nccl_max,
    nccl_split,      nccl_close,
};

// ---- groups

// a group that has no communicator yet; `host`, `wire` and `watch` are the caller's
static inline Comm *nccl_group(Comm *host, Wire *wire, Watch *watch, double timeout) {
    Comm *comm = comm_new(&comm_nccl_backend, &cuda_device);
    struct NcclGroup *g = comm->nccl = static_cast<struct NcclGroup *>(xcalloc(1, sizeof *g));
    comm->timeout = timeout;
    g->host = host, g->wire = wire, g->watch = watch;
    // before compute kernels where both could run: a collective is waited for on other GPUs too
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&g->stream, cudaStreamNonBlocking, greatest));
    CUDA_CHECK(cudaEventCreateWithFlags(&g->given, cudaEventDisableTiming));
    for (int i = 0; i < NCCL_EVENTS; i++) { CUDA_CHECK(cudaEventCreateWithFlags(&g->done[i], cudaEventDisableTiming)); }
    if (!host && !wire) {
        g->value = static_cast<long long *>(cuda_allocate(sizeof *g->value));
        g->given_value = static_cast<long long *>(cuda_allocate_host(sizeof *g->given_value));
    }
    return comm;
}

// when the group's calls are done
static inline void nccl_free(Comm *comm) {
    struct NcclGroup *g = comm->nccl;
    CUDA_CHECK(cudaEventRecord(g->given, g->stream));
    nccl_wait_for_event(g->given, comm);
    NCCL_WATCHED(ncclCommFinalize(g->nccl), comm);
    NCCL_WATCHED(ncclCommDestroy(g->nccl), comm);
    for (int i = 0; i < NCCL_EVENTS; i++) { CUDA_CHECK(cudaEventDestroy(g->done[i])); }
    CUDA_CHECK(cudaEventDestroy(g->given));
    CUDA_CHECK(cudaStreamDestroy(g->stream));
    if (g->value) {
        cuda_release(g->value);
        cuda_release_host(g->given_value);
    }
}

// StopHook where there is no MPI: ends this process at once, as its usual end would wait for work that waits for others
static inline void nccl_stop(void *world, int status, const char *sentence) {
    fprintf(stderr, "train_gpt2: rank %d: %s\n", static_cast<const Comm *>(world)->rank, sentence);
    _exit(status);
}

// the world's: its watch, wire and hook with it. The host's group is the caller's
static inline void nccl_close_world(Comm *comm) {
    struct NcclGroup *g = comm->nccl;
    watch_close(g->watch);
    free(g->watch);
    if (g->wire) {
        wire_max(0, g->wire);  // so that no rank takes another's end for a fault
        wire_close(g->wire);
    }
    if (stop_hook()->of == comm) { stop_hook()->stop = NULL; }
}

static inline void nccl_close(Comm *comm) {
    struct NcclGroup *g = comm->nccl;
    nccl_free(comm);
    for (int i = 0; g->whole && i < NCCL_PARTS; i++) {
        if (g->whole->parts[i] == g) { g->whole->parts[i] = NULL; }
    }
    if (g->is_world) {
        nccl_close_world(comm);
    } else if (g->host) {
        comm_close(g->host);
    }
    free(g);
    free(comm);
}

static inline Comm *nccl_split(Comm *comm, int colour, int key) {
    struct NcclGroup *g = comm->nccl;
    comm_barrier(comm);  // which gives up on a rank that does not come
    Comm *host = g->host ? comm_split(g->host, colour, key) : NULL;
    Comm *part = nccl_group(host, NULL, g->watch, comm->timeout);
    NCCL_WATCHED(ncclCommSplit(g->nccl, colour, key, &part->nccl->nccl, NULL), comm);
    NCCL_CHECK(ncclCommUserRank(part->nccl->nccl, &part->rank));
    NCCL_CHECK(ncclCommCount(part->nccl->nccl, &part->size));
    part->local_rank = comm->local_rank;
    if (part->size > 1 && part->size < comm->size && nccl_version() < 22600) {
        run_error(
            "-tp beside other data takes NCCL 2.26 or later, which keeps the order of calls; found %d: update it, "
            "or give -tp 1 or as many as there are processes",
            nccl_version());
    }
    if (part->size > 1) {
        int i = 0;
        while (i < NCCL_PARTS && g->parts[i]) { i++; }
        if (i == NCCL_PARTS) { run_error("a group of processes is split into more than %d parts: a bug", NCCL_PARTS); }
        g->parts[i] = part->nccl, part->nccl->whole = g;
        return part;
    }
    nccl_close(part);  // a group of one has nothing to send
    return comm_single(&cuda_device);
}

// Before the first call of NCCL, which may start threads that read the environment.
static inline void nccl_keep_order(void) { setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); }

// The id that one rank draws and all need; the others get it by comm_broadcast or by llmc/parallel/rendezvous.h.
static inline ncclUniqueId nccl_draw_id(void) {
    ncclUniqueId id;
    NCCL_CHECK(ncclGetUniqueId(&id));
    return id;
}

// The world of `size` processes with a GPU each: this one's is the current one. host: the same ranks through MPI, which
// the caller closes after what is returned; without MPI a wire between them, closed with it. One of the two, or neither
// in a world of one.
static inline Comm *comm_nccl_open(ncclUniqueId id, int rank, int size, int local_rank, Comm *host, Wire *wire,
                                   double timeout) {
    Watch *watch = static_cast<Watch *>(xcalloc(1, sizeof *watch));
    Comm *comm = nccl_group(host, wire, watch, timeout);
    comm->nccl->is_world = true;
    comm->rank = rank, comm->size = size, comm->local_rank = local_rank;
    if (!host) { *stop_hook() = {nccl_stop, comm}; }
    watch_open(watch, nccl_look, comm);
    NCCL_WATCHED(ncclCommInitRank(&comm->nccl->nccl, size, id, rank), comm);
    return comm;
}
