/*
Communicators: groups of ranks and their collectives. One table of functions, with three backends:
  single   one rank: no communication
  MPI      host memory, or device memory staged through host buffers (comm_mpi.h)
  NCCL     device memory, between GPUs (comm_nccl.cuh)
comm_open.h chooses the backend.

Ranks     A process has a rank, 0 to size - 1, in each of its groups. The world is dp x tp with tp fastest:
          world rank = dp_rank * t + tp_rank, so that
              tp = comm_split(world, world->rank / t, world->rank)     t neighbours
              dp = comm_split(world, world->rank % t, world->rank)     every t-th rank
Order     Every rank of a group makes the same calls with the same sizes in the same order. Calls on different groups
          also have the same order on every rank.
Chunks    Sizes are in elements. A scattered or gathered buffer is `size` chunks of `chunk` elements; rank r's chunk
          begins at r * chunk. The ranks need not divide a bucket evenly: with n elements it has room for
          size * chunk_size(n, size), and its padding is communicated like the rest.
Types     Collectives take DT_F32 and DT_BF16. all_gather and broadcast also take DT_U8, for any bytes.
Sums      MPI adds ((x0 + x1) + x2) + ... in fp32, in the order of ranks, and rounds to bf16 once: the same bits on
          every rank and in every run. NCCL adds in its own order, with the same bits on every rank.
Begin     A collective begins and returns a CommWork. It runs after all work enqueued on ex so far, so it may read the
and wait  results of that work and overwrite its inputs. It overlaps work enqueued later, which must not touch its
          buffers before comm_wait(work, comm, ex). Work enqueued after comm_wait runs after the collective.
          comm_after_copy orders a collective after a copy between host and device (common/device.h).
          Collectives of one group run in order, so waiting for one also waits for all before it.
              work = comm_reduce_scatter(shard, bucket, chunk, dtype, dp, ex);    layer l
              ... the backward of layer l - 1, into another bucket ...
              comm_wait(work, dp, ex);                                            before the bucket is used again
          With NCCL the host never blocks: both orders are events between streams. A CUDA graph can capture collectives
          of a `capturable` backend; it must wait for every work it begins, and for no work begun outside.
          With MPI a collective is done when the call returns, and comm_wait does nothing.
Failure   With MPI, a rank that stops with run_error or input_error ends all ranks, with one sentence that names the
          rank; so does a rank that waits longer than COMM_TIMEOUT. The launcher reports a killed rank and ends the
          others. Without MPI each rank prints its own sentence, and the launcher ends the rest. The timeout is on an
          AwakeClock, since a scheduler that suspends a job stops all of its ranks.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/device.h"  // IWYU pragma: export
#include "llmc/common/range.h"
#include <signal.h>
#include <stdbool.h>

// A clock that stops while this process is suspended. It must be read more than once a second.
typedef struct {
    double seconds, read;  // read: time of the last reading, or 0
} AwakeClock;

// Returns the seconds since the first reading, which returns 0.
static inline double awake_seconds(AwakeClock *clock) {
    double now = now_seconds();
    if (clock->read > 0 && now - clock->read < 1) { clock->seconds += now - clock->read; }
    clock->read = now;
    return clock->seconds;
}

typedef struct Comm Comm;

typedef struct {
    Comm *world;  // all ranks
    Comm *dp;     // data-parallel group: ranks with the same slice and different data
    Comm *tp;     // tensor-parallel group: neighbouring ranks, with the same data and different slices
} Groups;

typedef uint64_t CommWork;  // identifies a collective: the number of the call in its group

typedef struct {
    const char *name;
    bool capturable;  // a CUDA graph can capture collectives
    bool ordered;     // sums run in the order of ranks: equal inputs give equal bits in every group

    // The comm_* functions below check sizes and types, then call these.
    void (*all_reduce)(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex);
    void (*reduce_scatter)(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex);
    void (*all_gather)(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex);
    void (*broadcast)(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex);
    void (*after_copy)(CopyWork copy, Comm *comm, Exec *ex);  // NULL: collectives run after all copies anyway
    void (*wait)(CommWork work, Comm *comm, Exec *ex);
    void (*event_synchronize)(int event, Comm *comm, Exec *ex);
    void (*watch)(Comm *comm);  // NULL: launches do not wait for other ranks
    long long (*max)(long long value, Comm *comm);
    Comm *(*split)(Comm *comm, int colour, int key);
    void (*close)(Comm *comm);
} CommBackend;

struct Comm {
    const CommBackend *backend;
    const Device *device;  // of the buffers
    int rank, size;        // in this group
    int local_rank;        // among the world's ranks on this machine; chooses the GPU
    int gpu_ranks;         // ranks of the world that share this rank's GPU and its memory
    const char *launcher;  // comm_open sets it to the result of comm_launcher
    // Bytes this rank sends in the group's collectives, by the formulas of common/range.h; comm_max is not counted. A
    // captured collective counts once, at its capture: graph launches change neither sent_bytes nor calls.
    uint64_t sent_bytes;
    CommWork calls;
    struct MpiGroup *mpi;    // comm_mpi.h
    struct NcclGroup *nccl;  // comm_nccl.cuh
};

#ifndef COMM_TIMEOUT
#define COMM_TIMEOUT 600.0  // seconds without an answer before the run ends; tests set another
#endif

// Stops the program after COMM_TIMEOUT in `call`.
__attribute__((noreturn)) static inline void comm_no_answer(const Comm *comm, const char *call) {
    run_error("a rank has not answered for %g s (of %d ranks, in %s): look for a process or machine that hangs, and at "
              "the last message of each rank; then resume with -y 1",
              COMM_TIMEOUT, comm->size, call);
}

// ---- collectives

// Numbers the call and checks its arguments. This rank's chunk `own` must be outside `whole`, or in place at whole +
// rank * chunk. It is NULL if the call has no chunks.
static inline CommWork comm_begin(Comm *comm, const char *call, const void *whole, const void *own, size_t chunk,
                                  DType dtype, bool sum) {
    if (dtype != DT_F32 && dtype != DT_BF16 && (sum || dtype != DT_U8)) {
        run_error("%s of type %s: this collective takes F32 and BF16%s; a bug", call, dtype_name(dtype),
                  sum ? "" : " and U8");
    }
    uintptr_t bytes = chunk * dtype_size(dtype), at = (uintptr_t)own, begin = (uintptr_t)whole;
    bool in_place = at == begin + (uintptr_t)comm->rank * bytes;
    if (own && !in_place && at + bytes > begin && at < begin + (uintptr_t)comm->size * bytes) {
        run_error("%s: a chunk overlaps the whole buffer outside its own place: a bug", call);
    }
    return ++comm->calls;
}

// buffer (count) = sum of all ranks' buffers
static inline CommWork comm_all_reduce(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex) {
    CommWork work = comm_begin(comm, "all_reduce", buffer, NULL, 0, dtype, true);
    comm->sent_bytes += all_reduce_bytes(count, dtype, comm->rank, comm->size);
    comm->backend->all_reduce(buffer, count, dtype, comm, ex);
    return work;
}

// out (chunk) = sum of all ranks' in (size, chunk)[rank]. out is outside `in`, or in place at in + rank * chunk; the
// other chunks of `in` are unchanged.
static inline CommWork comm_reduce_scatter(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    CommWork work = comm_begin(comm, "reduce_scatter", in, out, chunk, dtype, true);
    comm->sent_bytes += all_gather_bytes(chunk, dtype, comm->size);
    comm->backend->reduce_scatter(out, in, chunk, dtype, comm, ex);
    return work;
}

// out (size, chunk) = all ranks' in (chunk). in is outside `out`, or in place at out + rank * chunk.
static inline CommWork comm_all_gather(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    CommWork work = comm_begin(comm, "all_gather", out, in, chunk, dtype, false);
    comm->sent_bytes += all_gather_bytes(chunk, dtype, comm->size);
    comm->backend->all_gather(out, in, chunk, dtype, comm, ex);
    return work;
}

// buffer (count) = the buffer of rank root
static inline CommWork comm_broadcast(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex) {
    CommWork work = comm_begin(comm, "broadcast", buffer, NULL, 0, dtype, false);
    if (root < 0 || root >= comm->size) { run_error("broadcast from rank %d of %d: a bug", root, comm->size); }
    comm->sent_bytes += broadcast_bytes(count, dtype, root, comm->rank, comm->size);
    comm->backend->broadcast(buffer, count, dtype, root, comm, ex);
    return work;
}

// Collectives of the group that begin from now on run after the copy.
static inline void comm_after_copy(CopyWork copy, Comm *comm, Exec *ex) {
    if (copy && comm->backend->after_copy) { comm->backend->after_copy(copy, comm, ex); }
}

// Orders later work on ex after this collective and after all earlier ones of the group.
static inline void comm_wait(CommWork work, Comm *comm, Exec *ex) { comm->backend->wait(work, comm, ex); }

// Waits as Device.event_synchronize does, but stops the program if work before the event depends on a rank that ended
// or hangs. Afterwards, in any group, all collectives waited for before the event are done. comm is the world.
static inline void comm_event_synchronize(int event, Comm *comm, Exec *ex) {
    comm->backend->event_synchronize(event, comm, ex);
}

// Arms the watchdog, which stops the program after COMM_TIMEOUT, until the next comm_event_synchronize or comm_max.
// Without it a run could hang forever: if a rank dies, the GPU's queue fills up, and then a launch blocks. Reading data
// counts as waiting. comm is the world. The host must not call MPI meanwhile.
static inline void comm_watch(Comm *comm) {
    if (comm->backend->watch) { comm->backend->watch(comm); }
}

// Returns the maximum of a value over the ranks, between hosts. With MPI it does not wait for collectives on a device.
static inline long long comm_max(long long value, Comm *comm) {
    comm->calls++;
    return comm->backend->max(value, comm);
}

// Broadcasts a few bytes of rank `root` between hosts. Seven bytes per comm_max look slow, but callers are rare.
static inline void comm_broadcast_host(void *bytes, size_t count, int root, Comm *comm) {
    for (size_t at = 0; at < count; at += 7) {
        size_t n = count - at < 7 ? count - at : 7;
        long long seven = 0;  // 0 to 2^56 - 1, greater than the -1 of the other ranks
        memcpy(&seven, (char *)bytes + at, n);
        seven = comm_max(comm->rank == root ? seven : -1, comm);
        memcpy((char *)bytes + at, &seven, n);
    }
}

// Blocks the host until every rank of the group calls it.
static inline void comm_barrier(Comm *comm) { comm_max(0, comm); }

static volatile sig_atomic_t received_signal;  // set by the handler in run/ranks.h; 0: none

// Returns a signal that any rank has received, or 0. All ranks call it together.
static inline int agreed_signal(Comm *world) { return (int)comm_max(received_signal, world); }

// Returns the bytes that this rank has sent. If the world is also the data-parallel group, it counts once.
static inline uint64_t groups_sent(const Groups *groups) {
    uint64_t dp = groups->dp != groups->world ? groups->dp->sent_bytes : 0;
    return groups->world->sent_bytes + dp + groups->tp->sent_bytes;
}

// Returns the group of the ranks that give the same colour, ordered by key, then by rank. Every rank of `comm` calls
// it, and closes the new group before `comm`.
static inline Comm *comm_split(Comm *comm, int colour, int key) { return comm->backend->split(comm, colour, key); }

// Frees a group after its last collective. Every rank of the group calls it; closing the world ends the connection.
static inline void comm_close(Comm *comm) { comm->backend->close(comm); }

// ---- single: a group of one

static inline Comm *comm_new(const CommBackend *backend, const Device *device) {
    Comm *comm = (Comm *)xcalloc(1, sizeof *comm);
    comm->backend = backend;
    comm->device = device;
    comm->size = 1;
    comm->gpu_ranks = 1;
    return comm;
}

static inline void single_all_reduce(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex) {
    (void)buffer, (void)count, (void)dtype, (void)comm, (void)ex;
}

static inline void single_copy(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    if (out != in) { comm->device->enqueue_copy(out, in, chunk * dtype_size(dtype), ex); }
}

static inline void single_broadcast(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex) {
    (void)buffer, (void)count, (void)dtype, (void)root, (void)comm, (void)ex;
}

static inline void single_wait(CommWork work, Comm *comm, Exec *ex) { (void)work, (void)comm, (void)ex; }

static inline void single_event_synchronize(int event, Comm *comm, Exec *ex) {
    comm->device->event_synchronize(event, ex);
}

static inline long long single_max(long long value, Comm *comm) {
    (void)comm;
    return value;
}

static inline Comm *comm_single(const Device *device);

static inline Comm *single_split(Comm *comm, int colour, int key) {
    (void)colour, (void)key;
    return comm_single(comm->device);
}

static inline void single_close(Comm *comm) { free(comm); }

static const CommBackend comm_single_backend = {
    .name = "single",
    .capturable = true,
    .ordered = true,
    .all_reduce = single_all_reduce,
    .reduce_scatter = single_copy,
    .all_gather = single_copy,
    .broadcast = single_broadcast,
    .wait = single_wait,
    .event_synchronize = single_event_synchronize,
    .max = single_max,
    .split = single_split,
    .close = single_close,
};

// The group of this process alone; comm_close frees it.
static inline Comm *comm_single(const Device *device) { return comm_new(&comm_single_backend, device); }
