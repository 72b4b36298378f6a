/*
A late communicator, for tests. An MPI collective is done when the call returns, so on a CPU a missing comm_wait changes
nothing. This communicator wraps another one and is as late as comm.h allows:
  LATE_RESULTS  the output is NaN from the call until comm_wait
  LATE_CALLS    the whole collective runs at comm_wait, inputs included, so it sends data written in between
Work that reads an output before comm_wait, or overwrites an input before comm_wait, then gives other results than with
the wrapped group. late_finish runs collectives that were never waited for. Collectives run in order, and comm_wait also
runs all earlier ones, as comm.h says.
*/
#pragma once
#include "llmc/parallel/comm.h"

typedef enum { LATE_RESULTS, LATE_CALLS } LateKind;

typedef enum { LATE_ALL_REDUCE, LATE_REDUCE_SCATTER, LATE_ALL_GATHER, LATE_BROADCAST } LateOperation;

// a collective before its comm_wait
typedef struct {
    LateOperation operation;
    void *out;
    const void *in;  // may be out, or overlap out in place
    size_t count;    // elements of the buffer or chunk
    DType dtype;
    int root;
    CommWork work;
    void *result;  // LATE_RESULTS: the output, until comm_wait
} LateCall;

typedef struct {
    Comm comm;  // must be first: callers hold a pointer to it
    Comm *real;
    LateKind kind;
    LateCall *calls;
    int num_calls;
} LateComm;

// bytes of the output
static inline size_t late_bytes(const LateCall *c, const Comm *comm) {
    size_t chunks = c->operation == LATE_ALL_GATHER ? (size_t)comm->size : 1;
    return chunks * c->count * dtype_size(c->dtype);
}

// Runs the collective in the wrapped group; `out` is also the input of an in-place buffer.
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

// Fills the output with NaN, except for the rank's own chunk of an in-place all-gather, which is input and output.
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

static inline void late_event_synchronize(int event, Comm *comm, Exec *ex) {
    comm_event_synchronize(event, ((LateComm *)comm)->real, ex);
}
static inline long long late_max(long long value, Comm *comm) { return comm_max(value, ((LateComm *)comm)->real); }

// Runs collectives that were never waited for. Every rank calls it at the same place, before their buffers are freed.
static inline void late_finish(Comm *comm, Exec *ex) { late_wait(comm->calls, comm, ex); }

// Call it after late_finish; the wrapped group belongs to the caller.
static inline void late_close(Comm *comm) {
    free(((LateComm *)comm)->calls);
    free(comm);
}

// split is NULL: split groups before wrapping them
static const CommBackend late_backend = {
    .name = "late",
    .capturable = false,
    .ordered = false,
    .all_reduce = late_all_reduce,
    .reduce_scatter = late_reduce_scatter,
    .all_gather = late_all_gather,
    .broadcast = late_broadcast,
    .wait = late_wait,
    .event_synchronize = late_event_synchronize,
    .max = late_max,
    .split = NULL,
    .close = late_close,
};

// Wraps a group on host memory. late_close frees the wrapper, before `real` is closed.
static inline Comm *late_comm(Comm *real, LateKind kind) {
    LateComm *late = (LateComm *)xcalloc(1, sizeof *late);
    late->comm = *real;
    late->comm.backend = &late_backend;
    late->comm.mpi = NULL;
    late->comm.nccl = NULL;
    late->real = real;
    late->kind = kind;
    return &late->comm;
}
