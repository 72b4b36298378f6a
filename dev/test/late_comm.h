/*
A communicator that is late, for tests. A call of MPI is done when it returns, so that on a CPU no work can see whether
it waited for it; this one wraps another group and does as late as comm.h lets it
  LATE_RESULTS  what a call writes: it is NaN from the call to its join
  LATE_CALLS    all of a call: at its join it also reads, so that what has been written there meanwhile is sent
Work that reads without having joined, or writes what is still read, has other results than with the group itself. What
is never joined is done by late_finish. Calls are done in order, and a join does those before it too, as comm.h says.
defines: LateKind, late_comm, late_finish, late_close
*/
#pragma once
#include "llmc/parallel/comm.h"

typedef enum { LATE_RESULTS, LATE_CALLS } LateKind;

typedef enum { LATE_ALL_REDUCE, LATE_REDUCE_SCATTER, LATE_ALL_GATHER, LATE_BROADCAST } LateOperation;

// a call that has not been joined
typedef struct {
    LateOperation operation;
    void *out;
    const void *in;  // may be out, or a part of it, or hold it
    size_t count;    // of a buffer or a chunk
    DType dtype;
    int root;
    CommWork work;
    void *result;  // LATE_RESULTS: what out is to become
} LateCall;

typedef struct {
    Comm comm;  // what others see; must be first
    Comm *real;
    LateKind kind;
    LateCall *calls;
    int num_calls;
} LateComm;

// of what a call writes
static inline size_t late_bytes(const LateCall *c, const Comm *comm) {
    size_t chunks = c->operation == LATE_ALL_GATHER ? (size_t)comm->size : 1;
    return chunks * c->count * dtype_size(c->dtype);
}

// The call by the wrapped group; `out` where a buffer is both.
static inline void late_do(LateComm *late, const LateCall *c, void *out, const void *in, Exec *ex) {
    Comm *real = late->real;
    CommWork work = 0;
    switch (c->operation) {
    case LATE_ALL_REDUCE: work = comm_all_reduce(out, c->count, c->dtype, real, ex); break;
    case LATE_REDUCE_SCATTER: work = comm_reduce_scatter(out, in, c->count, c->dtype, real, ex); break;
    case LATE_ALL_GATHER: work = comm_all_gather(out, in, c->count, c->dtype, real, ex); break;
    case LATE_BROADCAST: work = comm_broadcast(out, c->count, c->dtype, c->root, real, ex); break;
    }
    comm_wait(work, real, ex);
    late->comm.sent_bytes = real->sent_bytes;
}

// NaN, but for the rank's own chunk of a gather where that is both read and what it becomes
static inline void late_poison(const LateCall *c, const Comm *comm, Exec *ex) {
    size_t bytes = late_bytes(c, comm), chunk = c->count * dtype_size(c->dtype), own = (size_t)comm->rank * chunk;
    char *out = (char *)c->out;
    if (c->operation == LATE_ALL_GATHER && c->in == out + own) {
        comm->device->enqueue_fill(out, 0xFF, own, ex);
        comm->device->enqueue_fill(out + own + chunk, 0xFF, bytes - own - chunk, ex);
    } else {
        comm->device->enqueue_fill(out, 0xFF, bytes, ex);
    }
}

static inline void late_begin(LateCall call, Comm *comm, Exec *ex) {
    LateComm *late = (LateComm *)comm;
    size_t bytes = late_bytes(&call, comm);
    call.work = comm->calls;
    if (late->kind == LATE_RESULTS) {
        call.result = host_allocate(bytes);
        bool in_place = call.operation == LATE_ALL_REDUCE || call.operation == LATE_BROADCAST;
        if (in_place) { comm->device->enqueue_copy(call.result, call.out, bytes, ex); }
        late_do(late, &call, call.result, call.in, ex);
        late_poison(&call, comm, ex);
    }
    late->calls = (LateCall *)xrealloc(late->calls, (size_t)(late->num_calls + 1) * sizeof *late->calls);
    late->calls[late->num_calls++] = call;
}

static inline void late_end(LateComm *late, LateCall *c, Exec *ex) {
    if (late->kind == LATE_CALLS) {
        late_do(late, c, c->out, c->in, ex);
    } else {
        late->comm.device->enqueue_copy(c->out, c->result, late_bytes(c, &late->comm), ex);
        free(c->result);
    }
}

static inline void late_wait(CommWork work, Comm *comm, Exec *ex) {
    LateComm *late = (LateComm *)comm;
    int done = 0;
    while (done < late->num_calls && late->calls[done].work <= work) { late_end(late, &late->calls[done++], ex); }
    late->num_calls -= done;
    for (int i = 0; i < late->num_calls; i++) { late->calls[i] = late->calls[i + done]; }
}

static inline void late_all_reduce(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex) {
    LateCall call = {LATE_ALL_REDUCE, buffer, buffer, count, dtype, 0, 0, NULL};
    late_begin(call, comm, ex);
}

static inline void late_reduce_scatter(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    LateCall call = {LATE_REDUCE_SCATTER, out, in, chunk, dtype, 0, 0, NULL};
    late_begin(call, comm, ex);
}

static inline void late_all_gather(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    LateCall call = {LATE_ALL_GATHER, out, in, chunk, dtype, 0, 0, NULL};
    late_begin(call, comm, ex);
}

static inline void late_broadcast(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex) {
    LateCall call = {LATE_BROADCAST, buffer, buffer, count, dtype, root, 0, NULL};
    late_begin(call, comm, ex);
}

static inline void late_event_synchronize(int mark, Comm *comm, Exec *ex) {
    comm_event_synchronize(mark, ((LateComm *)comm)->real, ex);
}
static inline long long late_max(long long value, Comm *comm) { return comm_max(value, ((LateComm *)comm)->real); }

// Does the calls that were never joined. Every rank calls it at the same place, before the memory of the calls goes.
static inline void late_finish(Comm *comm, Exec *ex) { late_wait(comm->calls, comm, ex); }

// All calls are finished; the wrapped group is the caller's.
static inline void late_close(Comm *comm) {
    free(((LateComm *)comm)->calls);
    free(comm);
}

// groups are split before they are wrapped
static const CommBackend late_backend = {"late",
                                         false,
                                         false,
                                         late_all_reduce,
                                         late_reduce_scatter,
                                         late_all_gather,
                                         late_broadcast,
                                         late_wait,
                                         late_event_synchronize,
                                         late_max,
                                         NULL,
                                         late_close};

// A group of the same ranks on host memory. late_close frees it, before `real` is closed.
static inline Comm *late_comm(Comm *real, LateKind kind) {
    LateComm *late = (LateComm *)xcalloc(1, sizeof *late);
    late->comm = *real;
    late->comm.backend = &late_backend;
    late->comm.mpi = NULL, late->comm.nccl = NULL;
    late->real = real;
    late->kind = kind;
    return &late->comm;
}
