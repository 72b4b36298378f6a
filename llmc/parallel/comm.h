/*
Groups of processes that work as one, and what they tell each other: a table like Ops, with three backends.
defines: Comm, CommBackend, CommWork, COMM_TIMEOUT, comm_name_missing, comm_all_reduce, comm_reduce_scatter, comm_all_gather, comm_broadcast, comm_wait,
         comm_event_synchronize, comm_max, comm_tell, comm_barrier, comm_split, comm_close, comm_new, comm_single
  single   one process: nothing is sent and nothing is waited for
  MPI      host memory, and device memory through host buffers (comm_mpi.h)
  NCCL     device memory, between GPUs (comm_nccl.cuh)
comm_open.h chooses one.

Ranks     A process has a rank, 0 to size - 1, in every group it belongs to. The world is dp x tp with tp fastest:
          world rank = dp_rank * t + tp_rank, so that
              tp = comm_split(world, world->rank / t, world->rank)     t neighbours
              dp = comm_split(world, world->rank % t, world->rank)     every t-th
Calls     Every rank of a group makes the same calls with the same sizes in the same order, and every rank the same
          calls on different groups in the same order, as the program text does by itself.
Chunks    Sizes are in elements. What is scattered or gathered is `size` chunks of `chunk` elements, rank r's at
          r * chunk. Nothing has to divide by anything: a bucket of n elements gets room for
          size * chunk_size(n, size), and what lies past n is summed and sent like the rest.
Types     DT_F32 and DT_BF16; all_gather and broadcast also DT_U8, bytes of anything.
Sums      On MPI ((x0 + x1) + x2) + ... in fp32, in the order of ranks, rounded once to bf16: the same bits on every
          rank and in every run, whoever comes first. On NCCL in its order, the same on every rank.
Streams   A call takes the Exec of the work it stands among. It starts when all work given to ex so far is done, so it
          may read what that work writes and overwrite what that work reads; it runs beside the work given to ex after
          it, which must leave its memory alone until comm_wait(work, comm, ex): work given to ex after that starts
          when the call is done. Calls of one group are done in order, so joining one joins those before it.
          The host waits for nothing on NCCL; on MPI the call is done when it returns, and joining costs nothing. Both
          waits are events between streams, so calls may be recorded (Device.capture_begin) where the backend `records`.
          A graph joins every work it takes, and no work from outside.
              work = comm_reduce_scatter(shard, bucket, chunk, dtype, dp, ex);    layer l
              ... the backward of layer l - 1, into another bucket ...
              comm_wait(work, dp, ex);                                            before the bucket is used again
Failure   With MPI, a process that stops with run_error or input_error ends all of them, with its sentence and its
          rank, once. One that waits longer than `timeout` seconds for another names those that do not answer, and does
          the same. One that is killed is named by the launcher, which ends the others. Without MPI each says its own
          sentence: the others that one of them has ended, or does not answer.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/device.h"
#include "llmc/common/range.h"
#include <stdbool.h>

typedef struct Comm Comm;
typedef uint64_t CommWork;  // the n-th call of its group

typedef struct {
    const char *name;
    bool capturable;  // its calls can be part of a graph
    bool ordered;     // sums are made in the order of ranks: the same numbers have the same sum in every group

    // ---- see the functions comm_...; sizes and types are checked there
    void (*all_reduce)(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex);
    void (*reduce_scatter)(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex);
    void (*all_gather)(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex);
    void (*broadcast)(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex);
    void (*wait)(CommWork work, Comm *comm, Exec *ex);
    void (*event_synchronize)(int mark, Comm *comm, Exec *ex);
    long long (*max)(long long value, Comm *comm);
    Comm *(*split)(Comm *comm, int colour, int key);
    void (*close)(Comm *comm);
} CommBackend;

struct Comm {
    const CommBackend *backend;
    const Device *device;  // whose memory the calls take
    int rank, size;        // in this group
    int local_rank;        // in the world: among its processes on this machine, so the GPU to take
    double timeout;        // seconds without an answer after which a rank is given up
    // by this rank to others, in this group's collectives so far; comm_max counts as nothing. A recorded call counts
    // once, when it is recorded; replays count neither here nor in `calls`.
    uint64_t sent_bytes;
    CommWork calls;
    struct MpiGroup *mpi;    // comm_mpi.h
    struct NcclGroup *nccl;  // comm_nccl.cuh
};

#define COMM_TIMEOUT 600.0

// "rank 3", "ranks 3, 5", ", ..." after the eighth: those that have not come
static inline void comm_name_missing(char *text, size_t room, const bool *came, int size) {
    int missing = 0, named = 0;
    for (int rank = 0; rank < size; rank++) { missing += !came[rank]; }
    int length = snprintf(text, room, "%s", missing > 1 ? "ranks" : "rank");
    for (int rank = 0; rank < size && named < 8; rank++) {
        if (came[rank]) { continue; }
        length += snprintf(text + length, room - (size_t)length, "%s %d", named++ ? "," : "", rank);
    }
    if (missing > named) { snprintf(text + length, room - (size_t)length, ", ... (%d)", missing); }
}

// ---- calls

static inline CommWork comm_begin(Comm *comm, const char *call, DType dtype, bool sum) {
    if (dtype != DT_F32 && dtype != DT_BF16 && (sum || dtype != DT_U8)) {
        run_error("%s of type %s: the communicator takes F32 and BF16%s, a bug", call, dtype_name(dtype),
                  sum ? "" : " and U8");
    }
    return ++comm->calls;
}

// Does the own chunk stand where it is in the whole? If not, they must lie apart.
static inline bool comm_in_place(const void *whole, const void *own, size_t chunk, DType dtype, const Comm *comm) {
    uintptr_t bytes = chunk * dtype_size(dtype), at = (uintptr_t)own, begin = (uintptr_t)whole;
    if (at == begin + (uintptr_t)comm->rank * bytes) { return true; }
    if (at + bytes > begin && at < begin + (uintptr_t)comm->size * bytes) {
        run_error("a chunk overlaps the whole in another place than its own: a bug");
    }
    return false;
}

// buffer (count) = the sum of every rank's buffer
static inline CommWork comm_all_reduce(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex) {
    CommWork work = comm_begin(comm, "all_reduce", dtype, true);
    comm->backend->all_reduce(buffer, count, dtype, comm, ex);
    return work;
}

// out (chunk) = the sum of every rank's in (size, chunk)[rank]. out is apart from in, or in place: in + rank * chunk;
// the rest of `in` is left as it was.
static inline CommWork comm_reduce_scatter(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    CommWork work = comm_begin(comm, "reduce_scatter", dtype, true);
    comm_in_place(in, out, chunk, dtype, comm);
    comm->backend->reduce_scatter(out, in, chunk, dtype, comm, ex);
    return work;
}

// out (size, chunk) = every rank's in (chunk). in is apart from out, or in place: out + rank * chunk.
static inline CommWork comm_all_gather(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    CommWork work = comm_begin(comm, "all_gather", dtype, false);
    comm_in_place(out, in, chunk, dtype, comm);
    comm->backend->all_gather(out, in, chunk, dtype, comm, ex);
    return work;
}

// buffer (count) = rank root's
static inline CommWork comm_broadcast(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex) {
    CommWork work = comm_begin(comm, "broadcast", dtype, false);
    if (root < 0 || root >= comm->size) { run_error("broadcast from rank %d of %d: a bug", root, comm->size); }
    comm->backend->broadcast(buffer, count, dtype, root, comm, ex);
    return work;
}

// Work given to ex from now on starts when the call of this work, and those of the group before it, are done.
static inline void comm_wait(CommWork work, Comm *comm, Exec *ex) { comm->backend->wait(work, comm, ex); }

// Device.event_synchronize, but not for ever: stops the program when the work before the mark waits for a rank that has gone.
// comm: the world. Every call whose work was joined before the mark, of any group, is done then.
static inline void comm_event_synchronize(int mark, Comm *comm, Exec *ex) {
    comm->backend->event_synchronize(mark, comm, ex);
}

// The largest of the values that the ranks' hosts give: whether a signal came to any, how far all are. Need not
// wait for work.
static inline long long comm_max(long long value, Comm *comm) {
    comm->calls++;
    return comm->backend->max(value, comm);
}

// The first rank's bytes to every rank's host; a few, as seven go at a time. Need not wait for work.
static inline void comm_tell(void *bytes, size_t count, Comm *comm) {
    for (size_t at = 0; at < count; at += 7) {
        size_t n = count - at < 7 ? count - at : 7;
        long long seven = 0;  // below 2^56, and so above the -1 of all others
        memcpy(&seven, (char *)bytes + at, n);
        seven = comm_max(comm->rank == 0 ? seven : -1, comm);
        memcpy((char *)bytes + at, &seven, n);
    }
}

// The host goes on when every rank's host has come here.
static inline void comm_barrier(Comm *comm) { comm_max(0, comm); }

// The group of those ranks that give the same colour, in the order of their keys and then of their ranks here. Every
// rank of `comm` calls it. The caller closes what it returns, before `comm`.
static inline Comm *comm_split(Comm *comm, int colour, int key) { return comm->backend->split(comm, colour, key); }

// Frees a group when its calls are done. Every rank of it calls it; closing the world ends the connection.
static inline void comm_close(Comm *comm) { comm->backend->close(comm); }

// ---- single: a group of one

static inline Comm *comm_new(const CommBackend *backend, const Device *device) {
    Comm *comm = (Comm *)xcalloc(1, sizeof *comm);
    comm->backend = backend;
    comm->device = device;
    comm->size = 1;
    comm->timeout = COMM_TIMEOUT;
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

static inline void single_event_synchronize(int mark, Comm *comm, Exec *ex) {
    comm->device->event_synchronize(mark, ex);
}

static inline long long single_max(long long value, Comm *comm) {
    (void)comm;
    return value;
}

static inline Comm *single_split(Comm *comm, int colour, int key) {
    (void)colour, (void)key;
    return comm_new(comm->backend, comm->device);
}

static inline void single_close(Comm *comm) { free(comm); }

static const CommBackend comm_single_backend = {
    "single",          true,         true,
    single_all_reduce, single_copy,  single_copy,
    single_broadcast,  single_wait,  single_event_synchronize,
    single_max,        single_split, single_close,
};

// The group of this process alone; comm_close frees it.
static inline Comm *comm_single(const Device *device) { return comm_new(&comm_single_backend, device); }
