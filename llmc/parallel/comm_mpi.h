/*
The communicator over MPI: on host memory, and on a device's memory through host buffers, one piece at a time.
defines: comm_mpi_open, comm_mpi_for_device, mpi_started
  reduce_scatter   each rank sends chunk p to rank p and sums what it receives, in the order of ranks, in fp32
  all_gather       each rank sends its chunk to every other
  all_reduce       the two, piece by piece, in place
  broadcast        a binomial tree
Each sends and receives what a ring does, (size - 1) / size of the buffer, in one step instead of size - 1. A piece is
what fits COMM_PIECE_BYTES, so memory does not grow with a call; it is also below the 2^31 elements of MPI's int counts.

Waiting   No call blocks inside MPI: MPI_Testsome is polled beside a clock, first yielding the core and then asleep for
          moments, as there may be more ranks than cores. Started by mpirun with `--bind-to none`, or every thread of a
          rank sits on one core.
Silence   A rank that has waited for `timeout` seconds asks all others for a sign. Those that wait as well give one, so
          that the names which remain are those of ranks that hang, not of ranks that wait for them.
The end   The first rank of a machine that takes a flag in memory they share says why, later machines after a delay,
          and MPI_Abort ends them all: one sentence, though every rank may have found the same file missing.
*/
#pragma once
#include "llmc/parallel/comm.h"
#include <sched.h>
#include <unistd.h>
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

enum { COMM_PIECE_BYTES = 4 << 20, COMM_SUM_BLOCK = 1024 };
enum { TAG_QUESTION, TAG_SIGN };
#define SIGN_SECONDS 2.0  // within which a rank that waits gives a sign

// one a process, shared by its groups
typedef struct {
    MPI_Comm control;  // the world again, for questions and signs
    int rank, size;    // of the world
    int first_here;    // lowest rank on this machine
    MPI_Win window;
    int *spoken;  // shared by this machine's ranks: 1 once one of them says why all end
    bool speaks;  // it is this one
} MpiJob;

struct MpiGroup {
    MpiJob *job;
    MPI_Comm ranks;
    bool is_job, owns_buffers;  // closing it ends the job; frees the buffers
    char *received;             // COMM_PIECE_BYTES of host memory
    char *staged;               // as much, where the group's calls take a device's memory; NULL on a CPU
    // messages under way, at most one each way for every rank
    int num_requests;
    MPI_Request *requests;
    int *finished;
    int tag;
};

static inline void mpi_check(int error, const char *call) {
    if (error == MPI_SUCCESS) { return; }
    char why[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, why, &length);
    run_error("%s: %s", call, why);
}
#define CHECK_MPI(call) mpi_check((call), #call)

static inline void sleep_seconds(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

// ---- signs of life

// takes an empty message with this tag, if one is there, and says whose; else -1
static inline int mpi_take(const MpiJob *job, int tag) {
    int there;
    MPI_Status status;
    CHECK_MPI(MPI_Iprobe(MPI_ANY_SOURCE, tag, job->control, &there, &status));
    if (!there) { return -1; }
    CHECK_MPI(MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, tag, job->control, MPI_STATUS_IGNORE));
    return status.MPI_SOURCE;
}

// An empty message to a rank that may never take it.
static inline void mpi_give(const MpiJob *job, int tag, int rank) {
    MPI_Request request;
    CHECK_MPI(MPI_Isend(NULL, 0, MPI_BYTE, rank, tag, job->control, &request));
    CHECK_MPI(MPI_Request_free(&request));
}

static inline void mpi_give_signs(const MpiJob *job) {
    for (int rank; (rank = mpi_take(job, TAG_QUESTION)) >= 0;) { mpi_give(job, TAG_SIGN, rank); }
}

// sleeps, but gives signs
static inline void mpi_rest(const MpiJob *job, double seconds) {
    for (double end = now_seconds() + seconds; now_seconds() < end; sleep_seconds(1e-3)) { mpi_give_signs(job); }
}

// Asks every other rank for a sign; answered[rank] says which gave one. Returns how many did not.
static inline int mpi_ask(const MpiJob *job, bool *answered) {
    int silent = job->size - 1;
    memset(answered, 0, (size_t)job->size * sizeof *answered);
    answered[job->rank] = true;
    for (int rank = 0; rank < job->size; rank++) {
        if (rank != job->rank) { mpi_give(job, TAG_QUESTION, rank); }
    }
    for (double end = now_seconds() + SIGN_SECONDS; silent > 0 && now_seconds() < end; mpi_rest(job, 1e-3)) {
        for (int rank; (rank = mpi_take(job, TAG_SIGN)) >= 0;) {
            silent -= !answered[rank];
            answered[rank] = true;
        }
    }
    return silent;
}

// ---- the end of all

// Returns in one rank of each machine, which then says why all end. The others give signs until they are ended.
static inline void mpi_take_the_word(MpiJob *job, int status) {
    if (job->speaks) { return; }
    job->speaks = __atomic_exchange_n(job->spoken, 1, __ATOMIC_ACQ_REL) == 0;
    if (job->speaks) { return; }
    mpi_rest(job, 30);
    _exit(status);
}

// StopHook: `sentence` on stderr, once, and the end of every process with this status
static inline void mpi_stop(void *of, int status, const char *sentence) {
    MpiJob *job = (MpiJob *)of;
    mpi_take_the_word(job, status);
    mpi_rest(job, job->first_here < 100 ? 0.02 * job->first_here : 2.0);  // a machine that ends before ends this one
    if (job->size > 1) {
        fprintf(stderr, "train_gpt2: rank %d: %s\n", job->rank, sentence);
    } else {
        fprintf(stderr, "train_gpt2: %s\n", sentence);
    }
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

// This rank has waited too long in `call`: names those that hang. Does not return.
static inline void mpi_give_up(Comm *comm, const char *call) {
    MpiJob *job = comm->mpi->job;
    char who[128];
    bool *answered = (bool *)xmalloc((size_t)job->size * sizeof *answered);
    mpi_take_the_word(job, EXIT_RUN_FAILED);
    int silent = mpi_ask(job, answered);
    if (silent == 0) {
        run_error("%s has waited %g s, yet every rank answers now: one was busy for that long (give a longer "
                  "--comm-timeout), a link is at fault, or the ranks make other calls, a bug",
                  call, comm->timeout);
    }
    comm_name_missing(who, sizeof who, answered, job->size);
    run_error("%s ha%s not answered for %g s (in %s); if nothing hangs there, give a longer --comm-timeout", who,
              silent > 1 ? "ve" : "s", comm->timeout, call);
}

// ---- messages

static inline void mpi_send(const void *from, size_t bytes, int to, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    if (bytes == 0 || to == comm->rank) { return; }
    CHECK_MPI(MPI_Isend(from, (int)bytes, MPI_BYTE, to, g->tag, g->ranks, &g->requests[g->num_requests++]));
    comm->sent_bytes += bytes;
}

static inline void mpi_receive(void *to, size_t bytes, int from, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    if (bytes == 0 || from == comm->rank) { return; }
    CHECK_MPI(MPI_Irecv(to, (int)bytes, MPI_BYTE, from, g->tag, g->ranks, &g->requests[g->num_requests++]));
}

// between two polls after `waited` seconds without news: at first the core goes to another rank, then nobody needs it
static inline void mpi_idle(const MpiJob *job, double waited) {
    if (waited < 2e-3) {
        sched_yield();
    } else {
        mpi_give_signs(job);
        sleep_seconds(1e-4);
    }
}

// until all messages of this group have gone and come; each that does is an answer
static inline void mpi_wait(Comm *comm, const char *call) {
    struct MpiGroup *g = comm->mpi;
    double answered = now_seconds();
    for (int left = g->num_requests; left > 0;) {
        int done = 0;
        CHECK_MPI(MPI_Testsome(g->num_requests, g->requests, &done, g->finished, MPI_STATUSES_IGNORE));
        double now = now_seconds();
        if (done > 0) {
            left -= done;
            answered = now;
        } else if (now - answered > comm->timeout) {
            mpi_give_up(comm, call);
        } else {
            mpi_idle(g->job, now - answered);
        }
    }
    g->num_requests = 0;
}

// ---- host and device memory. A slot is an offset in the buffers

// where the host reads these bytes: there, or in the staging buffer, to which they are copied
static inline const void *mpi_to_host(const void *memory, size_t bytes, size_t slot, Comm *comm) {
    if (!comm->mpi->staged) { return memory; }
    if (bytes > 0) { comm->device->download(comm->mpi->staged + slot, memory, bytes); }
    return comm->mpi->staged + slot;
}

// where the host writes what mpi_to_device then brings to `memory`
static inline void *mpi_on_host(void *memory, size_t slot, Comm *comm) {
    return comm->mpi->staged ? comm->mpi->received + slot : (char *)memory;
}

static inline void mpi_to_device(void *memory, const void *host, size_t bytes, Comm *comm) {
    if (host != memory && bytes > 0) { comm->device->upload(memory, host, bytes); }
}

// ---- sums

static inline void sum_add(float *sum, const void *values, size_t count, DType dtype) {
    if (dtype == DT_F32) {
        const float *x = (const float *)values;
#pragma omp simd
        for (size_t i = 0; i < count; i++) { sum[i] += x[i]; }
    } else {
        const bf16 *x = (const bf16 *)values;
#pragma omp simd
        for (size_t i = 0; i < count; i++) { sum[i] += bf16_to_float(x[i]); }
    }
}

static inline void sum_store(void *out, const float *sum, size_t count, DType dtype) {
    if (dtype == DT_F32) {
        memcpy(out, sum, count * sizeof *sum);
    } else {
        bf16 *to = (bf16 *)out;
#pragma omp simd
        for (size_t i = 0; i < count; i++) { to[i] = float_to_bf16(sum[i]); }
    }
}

// out (count) = x_0 + x_1 + ... in this order, x_rank being `mine` and x_r row r of others (size, count). out may be
// mine.
static inline void sum_in_order(void *out, const void *mine, const void *others, size_t count, DType dtype,
                                const Comm *comm) {
    size_t width = dtype_size(dtype);
    ptrdiff_t blocks = (ptrdiff_t)((count + COMM_SUM_BLOCK - 1) / COMM_SUM_BLOCK);
#pragma omp parallel for schedule(static) if (blocks > 16)
    for (ptrdiff_t block = 0; block < blocks; block++) {
        size_t begin = (size_t)block * COMM_SUM_BLOCK;
        size_t n = count - begin < (size_t)COMM_SUM_BLOCK ? count - begin : (size_t)COMM_SUM_BLOCK;
        float sum[COMM_SUM_BLOCK];
        // -0 and not 0: (-0) + x is x for every x, so that the sum begins with x_0 itself
        for (size_t i = 0; i < n; i++) { sum[i] = -0.0f; }
        for (int rank = 0; rank < comm->size; rank++) {
            const char *x =
                rank == comm->rank ? (const char *)mine : (const char *)others + (size_t)rank * count * width;
            sum_add(sum, x + begin * width, n, dtype);
        }
        sum_store((char *)out + begin * width, sum, n, dtype);
    }
}

// ---- rectangles: elements [at, at + piece) of every chunk

// one call: `count` elements in chunks of `chunk`, the last of which may be short or empty
typedef struct {
    const char *name;
    size_t chunk, count, width, piece;  // elements; width: bytes of one; piece: all ranks' fill a buffer
    DType dtype;
} MpiCall;

static inline MpiCall mpi_call(const char *name, int kind, size_t chunk, size_t count, DType dtype, Comm *comm) {
    size_t width = dtype_size(dtype);
    MpiCall call = {name, chunk, count, width, COMM_PIECE_BYTES / width / (size_t)comm->size, dtype};
    comm->mpi->tag = (int)(comm->calls % 4096) * 8 + kind;  // never matches an earlier call, nor one of another kind
    return call;
}

// bytes of the piece of rank's chunk
static inline size_t mpi_piece_bytes(const MpiCall *c, size_t at, int rank) {
    size_t part = chunk_range(c->count, c->chunk, rank).count;
    size_t left = part > at ? part - at : 0;
    return (left < c->piece ? left : c->piece) * c->width;
}

// where the piece of rank's chunk is
static inline char *mpi_piece_of(const void *whole, const MpiCall *c, size_t at, int rank) {
    return (char *)whole + ((size_t)rank * c->chunk + at) * c->width;
}

// out: where the piece of this rank's sum goes
static inline void mpi_reduce_piece(char *out, const void *in, size_t at, const MpiCall *c, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    size_t mine = mpi_piece_bytes(c, at, comm->rank), slot = c->piece * c->width;
    const void *own = NULL;
    for (int rank = 0; rank < comm->size; rank++) { mpi_receive(g->received + (size_t)rank * mine, mine, rank, comm); }
    for (int rank = 0; rank < comm->size; rank++) {
        size_t bytes = mpi_piece_bytes(c, at, rank);
        const void *theirs = mpi_to_host(mpi_piece_of(in, c, at, rank), bytes, (size_t)rank * slot, comm);
        mpi_send(theirs, bytes, rank, comm);
        if (rank == comm->rank) { own = theirs; }
    }
    mpi_wait(comm, c->name);
    void *sum = g->staged ? g->staged + (size_t)comm->rank * slot : out;
    sum_in_order(sum, own, g->received, mine / c->width, c->dtype, comm);
    mpi_to_device(out, sum, mine, comm);
}

// in: the piece of this rank's chunk
static inline void mpi_gather_piece(void *out, const char *in, size_t at, const MpiCall *c, Comm *comm) {
    size_t mine = mpi_piece_bytes(c, at, comm->rank), slot = c->piece * c->width;
    const void *from = mpi_to_host(in, mine, 0, comm);
    for (int rank = 0; rank < comm->size; rank++) {
        void *to = mpi_on_host(mpi_piece_of(out, c, at, rank), (size_t)rank * slot, comm);
        mpi_receive(to, mpi_piece_bytes(c, at, rank), rank, comm);
    }
    for (int rank = 0; rank < comm->size; rank++) { mpi_send(from, mine, rank, comm); }
    mpi_wait(comm, c->name);
    for (int rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank) { continue; }
        char *to = mpi_piece_of(out, c, at, rank);
        mpi_to_device(to, mpi_on_host(to, (size_t)rank * slot, comm), mpi_piece_bytes(c, at, rank), comm);
    }
}

// A tree: rank root + k takes from root + k without its lowest bit, and gives to root + k + every lower bit.
static inline void mpi_broadcast_piece(char *buffer, size_t bytes, int root, const MpiCall *c, Comm *comm) {
    int size = comm->size, k = (comm->rank - root + size) % size, bit = 1;
    const void *from;
    while (bit < size && !(k & bit)) { bit *= 2; }
    if (k == 0) {
        from = mpi_to_host(buffer, bytes, 0, comm);
    } else {
        void *to = mpi_on_host(buffer, 0, comm);
        mpi_receive(to, bytes, (comm->rank - bit + size) % size, comm);
        mpi_wait(comm, c->name);
        mpi_to_device(buffer, to, bytes, comm);
        from = to;
    }
    for (bit /= 2; bit > 0; bit /= 2) {
        if (k + bit < size) { mpi_send(from, bytes, (comm->rank + bit) % size, comm); }
    }
    mpi_wait(comm, c->name);
}

// ---- the table

static inline void mpi_all_reduce(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex) {
    (void)ex;
    MpiCall c = mpi_call("all_reduce", 0, chunk_size(count, comm->size), count, dtype, comm);
    for (size_t at = 0; at < c.chunk; at += c.piece) {
        char *own = mpi_piece_of(buffer, &c, at, comm->rank);
        mpi_reduce_piece(own, buffer, at, &c, comm);
        mpi_gather_piece(buffer, own, at, &c, comm);
    }
}

static inline void mpi_reduce_scatter(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    (void)ex;
    MpiCall c = mpi_call("reduce_scatter", 1, chunk, chunk * (size_t)comm->size, dtype, comm);
    for (size_t at = 0; at < chunk; at += c.piece) { mpi_reduce_piece((char *)out + at * c.width, in, at, &c, comm); }
}

static inline void mpi_all_gather(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    MpiCall c = mpi_call("all_gather", 2, chunk, chunk * (size_t)comm->size, dtype, comm);
    char *own = mpi_piece_of(out, &c, 0, comm->rank);
    if (own != in) { comm->device->enqueue_copy(own, in, chunk * c.width, ex); }
    for (size_t at = 0; at < chunk; at += c.piece) {
        mpi_gather_piece(out, (const char *)in + at * c.width, at, &c, comm);
    }
}

static inline void mpi_broadcast(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex) {
    (void)ex;
    size_t bytes = count * dtype_size(dtype);
    MpiCall c = mpi_call("broadcast", 3, bytes, bytes, DT_U8, comm);
    for (size_t at = 0; at < bytes; at += c.piece) {
        size_t left = bytes - at;
        mpi_broadcast_piece((char *)buffer + at, left < c.piece ? left : c.piece, root, &c, comm);
    }
}

// a number to and from every rank
static inline long long mpi_max(long long value, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    long long most;
    CHECK_MPI(MPI_Iallreduce(&value, &most, 1, MPI_LONG_LONG, MPI_MAX, g->ranks, &g->requests[g->num_requests++]));
    mpi_wait(comm, "barrier");
    return most;
}

static inline Comm *mpi_split(Comm *comm, int colour, int key);
static inline void mpi_close(Comm *comm);

static const CommBackend comm_mpi_backend = {
    "mpi",          false,         true,        mpi_all_reduce,           mpi_reduce_scatter,
    mpi_all_gather, mpi_broadcast, single_wait, single_event_synchronize, mpi_max,
    mpi_split,      mpi_close,
};

// a group of one has nothing to send
static inline Comm *mpi_split_alone(Comm *comm, int colour, int key) {
    (void)colour, (void)key;
    return comm_single(comm->device);
}

static const CommBackend comm_mpi_alone = {
    "mpi",
    true,
    true,
    single_all_reduce,
    single_copy,
    single_copy,
    single_broadcast,
    single_wait,
    single_event_synchronize,
    single_max,
    mpi_split_alone,
    mpi_close,
};

// ---- groups

// takes over `ranks`; the caller gives it buffers
static inline Comm *mpi_group(MPI_Comm ranks, MpiJob *job, const Device *device) {
    int size;
    CHECK_MPI(MPI_Comm_size(ranks, &size));
    Comm *comm = comm_new(size > 1 ? &comm_mpi_backend : &comm_mpi_alone, device);
    struct MpiGroup *g = comm->mpi = (struct MpiGroup *)xcalloc(1, sizeof *g);
    CHECK_MPI(MPI_Comm_rank(ranks, &comm->rank));
    comm->size = size;
    g->job = job;
    g->ranks = ranks;
    g->requests = (MPI_Request *)xcalloc(2 * (size_t)comm->size, sizeof *g->requests);
    g->finished = (int *)xcalloc(2 * (size_t)comm->size, sizeof *g->finished);
    return comm;
}

static inline Comm *mpi_split(Comm *comm, int colour, int key) {
    MPI_Comm ranks;
    comm_barrier(comm);  // which gives up on a rank that does not come; MPI_Comm_split would not
    CHECK_MPI(MPI_Comm_split(comm->mpi->ranks, colour, key, &ranks));
    Comm *part = mpi_group(ranks, comm->mpi->job, comm->device);
    part->local_rank = comm->local_rank;
    part->timeout = comm->timeout;
    part->mpi->received = comm->mpi->received;
    part->mpi->staged = comm->mpi->staged;
    return part;
}

static inline void mpi_end_job(MpiJob *job) {
    stop_hook()->stop = NULL;
    CHECK_MPI(MPI_Win_free(&job->window));
    CHECK_MPI(MPI_Comm_free(&job->control));
    CHECK_MPI(MPI_Finalize());
    free(job);
}

static inline void mpi_close(Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    if (g->is_job) { comm_barrier(comm); }
    if (g->owns_buffers) {
        comm->device->release_host(g->received);
        comm->device->release_host(g->staged);
    }
    CHECK_MPI(MPI_Comm_free(&g->ranks));
    if (g->is_job) { mpi_end_job(g->job); }
    free(g->requests);
    free(g->finished);
    free(g);
    free(comm);
}

// Was this process started by mpirun, or by Slurm with an MPI?
static inline bool mpi_started(void) {
    const char *const signs[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (int i = 0; i < 3; i++) {
        if (getenv(signs[i])) { return true; }
    }
    return false;
}

// Rank among the processes of this machine, and the flag they share.
static inline int mpi_meet_neighbours(MpiJob *job) {
    MPI_Comm here;
    MPI_Aint bytes;
    int local_rank, unit;
    CHECK_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here));
    CHECK_MPI(MPI_Comm_rank(here, &local_rank));
    CHECK_MPI(MPI_Allreduce(&job->rank, &job->first_here, 1, MPI_INT, MPI_MIN, here));
    CHECK_MPI(MPI_Win_allocate_shared(local_rank ? 0 : (MPI_Aint)sizeof(int), sizeof(int), MPI_INFO_NULL, here,
                                      &job->spoken, &job->window));
    CHECK_MPI(MPI_Win_shared_query(job->window, 0, &bytes, &unit, &job->spoken));
    if (local_rank == 0) { *job->spoken = 0; }
    CHECK_MPI(MPI_Barrier(here));
    CHECK_MPI(MPI_Comm_free(&here));
    return local_rank;
}

// The world of all processes that mpirun started, on host memory. To be called before anything can go wrong: from here
// on errors are said once. comm_close, after all else is closed, ends MPI.
static inline Comm *comm_mpi_open(void) {
    int provided;
    MPI_Comm ranks;
    MpiJob *job = (MpiJob *)xcalloc(1, sizeof *job);
    CHECK_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided));
    if (provided < MPI_THREAD_SERIALIZED) {
        run_error("this MPI gives its calls to one thread only (MPI_Init_thread provides %d, wanted was %d); build it "
                  "with threads",
                  provided, MPI_THREAD_SERIALIZED);
    }
    CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &job->control));
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &ranks));
    Comm *comm = mpi_group(ranks, job, &cpu_device);
    job->rank = comm->rank, job->size = comm->size;
    comm->local_rank = mpi_meet_neighbours(job);
    comm->mpi->is_job = comm->mpi->owns_buffers = true;
    comm->mpi->received = (char *)host_allocate(COMM_PIECE_BYTES);
    StopHook hook = {mpi_stop, job};
    *stop_hook() = hook;
    return comm;
}

// The same world on a device's memory, through host buffers: for several ranks on one GPU, and without NCCL. Closed
// before `host`. Its calls wait for all work given to the device.
static inline Comm *comm_mpi_for_device(Comm *host, const Device *device) {
    MPI_Comm ranks;
    comm_barrier(host);
    CHECK_MPI(MPI_Comm_dup(host->mpi->ranks, &ranks));
    Comm *comm = mpi_group(ranks, host->mpi->job, device);
    comm->local_rank = host->local_rank;
    comm->timeout = host->timeout;
    comm->mpi->owns_buffers = true;
    comm->mpi->received = (char *)device->allocate_host(COMM_PIECE_BYTES);
    comm->mpi->staged = (char *)device->allocate_host(COMM_PIECE_BYTES);
    return comm;
}
