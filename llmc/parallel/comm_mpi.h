/*
The communicator over MPI: on host memory, and on device memory staged through host buffers, one piece at a time.
defines: comm_mpi_open, comm_mpi_for_device, mpi_started, mpi_answer_pings, mpi_timeout
  reduce_scatter   each rank sends chunk p to rank p and sums the chunks it receives in fp32, in the order of ranks
  all_gather       each rank sends its chunk to every other rank
  all_reduce       reduce_scatter and all_gather, piece by piece, in place
  broadcast        a binomial tree
reduce_scatter and all_gather send (size - 1) / size of the buffer, as a ring does, in one step instead of size - 1.
all_reduce is both, so it sends twice as much. A piece is at most COMM_PIECE_BYTES, so buffers do not grow with a call,
and counts stay below the 2^31 of MPI's int.

Waiting   No call blocks inside MPI. MPI_Testsome is polled beside a clock, at first yielding the core, later sleeping,
          because there may be more ranks than cores. Start mpirun with `--bind-to none`, or all threads of a rank run
          on one core.
Timeout   A rank that waits for `timeout` seconds pings all others. Ranks that wait too answer, so the error names only
          ranks that hang, and no ranks that wait for them.
Errors    Several ranks may find the same error. One rank of each machine claims a flag in shared memory and reports it,
          later machines after a delay, and MPI_Abort ends all ranks: one sentence is printed.
*/
#pragma once
#include "llmc/parallel/comm.h"
#include <sched.h>
#include <unistd.h>
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

enum { COMM_PIECE_BYTES = 4 << 20, COMM_SUM_BLOCK = 1024 };
enum { TAG_PING, TAG_PONG };
#define PONG_SECONDS 2.0  // time for an answer to a ping

// state of the process, shared by its groups
typedef struct {
    MPI_Comm control;  // a copy of the world, for pings
    int rank, size;    // of the world
    int first_here;    // lowest rank on this machine
    MPI_Win window;
    int *reported;  // shared by the ranks of this machine: 1 once one of them reports an error
    bool reports;   // true on the rank that reports the error
} MpiJob;

struct MpiGroup {
    MpiJob *job;
    MPI_Comm ranks;
    bool is_world, owns_buffers;  // closing the group ends MPI; frees the buffers
    char *received;               // COMM_PIECE_BYTES of host memory
    char *staged;                 // COMM_PIECE_BYTES to stage device memory; NULL for host memory
    // pending messages, at most one to and one from each rank
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

// ---- pings

// receives a pending empty message with this tag; returns the sender, or -1 if there is none
static inline int mpi_probe_receive(const MpiJob *job, int tag) {
    int there;
    MPI_Status status;
    CHECK_MPI(MPI_Iprobe(MPI_ANY_SOURCE, tag, job->control, &there, &status));
    if (!there) { return -1; }
    CHECK_MPI(MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, tag, job->control, MPI_STATUS_IGNORE));
    return status.MPI_SOURCE;
}

// sends an empty message to a rank that may never receive it
static inline void mpi_send_empty(const MpiJob *job, int tag, int rank) {
    MPI_Request request;
    CHECK_MPI(MPI_Isend(NULL, 0, MPI_BYTE, rank, tag, job->control, &request));
    CHECK_MPI(MPI_Request_free(&request));
}

static inline void mpi_answer_pings(const MpiJob *job) {
    for (int rank; (rank = mpi_probe_receive(job, TAG_PING)) >= 0;) { mpi_send_empty(job, TAG_PONG, rank); }
}

// sleeps and answers pings
static inline void mpi_sleep(const MpiJob *job, double seconds) {
    for (double end = now_seconds() + seconds; now_seconds() < end; sleep_seconds(1e-3)) { mpi_answer_pings(job); }
}

// Pings every other rank and fills answered[rank]. Returns the number of ranks without an answer.
static inline int mpi_ping_all(const MpiJob *job, bool *answered) {
    int silent = job->size - 1;
    memset(answered, 0, (size_t)job->size * sizeof *answered);
    answered[job->rank] = true;
    for (int rank = 0; rank < job->size; rank++) {
        if (rank != job->rank) { mpi_send_empty(job, TAG_PING, rank); }
    }
    for (double end = now_seconds() + PONG_SECONDS; silent > 0 && now_seconds() < end; mpi_sleep(job, 1e-3)) {
        for (int rank; (rank = mpi_probe_receive(job, TAG_PONG)) >= 0;) {
            silent -= !answered[rank];
            answered[rank] = true;
        }
    }
    return silent;
}

// ---- errors

// Returns on one rank of each machine, which then reports the error. The other ranks answer pings until MPI ends them.
static inline void mpi_claim_report(MpiJob *job, int status) {
    if (job->reports) { return; }
    job->reports = __atomic_exchange_n(job->reported, 1, __ATOMIC_ACQ_REL) == 0;
    if (job->reports) { return; }
    mpi_sleep(job, 30);
    _exit(status);
}

// StopHook: prints `sentence` once and ends all ranks with this exit status
static inline void mpi_stop(void *of, int status, const char *sentence) {
    MpiJob *job = (MpiJob *)of;
    mpi_claim_report(job, status);
    mpi_sleep(job, job->first_here < 100 ? 0.02 * job->first_here : 2.0);  // an earlier machine ends this one
    if (job->size > 1) {
        fprintf(stderr, "train_gpt2: rank %d: %s\n", job->rank, sentence);
    } else {
        fprintf(stderr, "train_gpt2: %s\n", sentence);
    }
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

// Stops all ranks after a timeout in `call` and names the ranks that hang.
static inline void mpi_timeout(Comm *comm, const char *call) {
    MpiJob *job = comm->mpi->job;
    char who[128];
    bool *answered = (bool *)xmalloc((size_t)job->size * sizeof *answered);
    mpi_claim_report(job, EXIT_RUN_FAILED);
    int silent = mpi_ping_all(job, answered);
    if (silent == 0) {
        run_error("%s has waited %g s, yet every rank answers now: one rank was busy that long (give a longer "
                  "--comm-timeout), a link is faulty, or the ranks make different calls, a bug",
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

// Pause between two polls after `waited` seconds without progress: first yield the core to another rank, later sleep.
static inline void mpi_poll_pause(const MpiJob *job, double waited) {
    if (waited < 2e-3) {
        sched_yield();
    } else {
        mpi_answer_pings(job);
        sleep_seconds(1e-4);
    }
}

// Waits for all pending messages of the group. Each completed message restarts the timeout.
static inline void mpi_wait(Comm *comm, const char *call) {
    struct MpiGroup *g = comm->mpi;
    AwakeClock clock = {0, 0};
    double answered = 0;
    for (int left = g->num_requests; left > 0;) {
        int done = 0;
        CHECK_MPI(MPI_Testsome(g->num_requests, g->requests, &done, g->finished, MPI_STATUSES_IGNORE));
        double now = awake_seconds(&clock);
        if (done > 0) {
            left -= done;
            answered = now;
        } else if (now - answered > comm->timeout) {
            mpi_timeout(comm, call);
        } else {
            mpi_poll_pause(g->job, now - answered);
        }
    }
    g->num_requests = 0;
}

// ---- staging of device memory; `slot` is an offset in the host buffers

// host address of these bytes: of a copy in the staging buffer for device memory
static inline const void *mpi_stage_in(const void *memory, size_t bytes, size_t slot, Comm *comm) {
    if (!comm->mpi->staged) { return memory; }
    if (bytes > 0) { comm->device->download(comm->mpi->staged + slot, memory, bytes); }
    return comm->mpi->staged + slot;
}

// host address to receive into; mpi_stage_out then copies the bytes to `memory`
static inline void *mpi_staging_buffer(void *memory, size_t slot, Comm *comm) {
    return comm->mpi->staged ? comm->mpi->received + slot : (char *)memory;
}

static inline void mpi_stage_out(void *memory, const void *host, size_t bytes, Comm *comm) {
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

// out (count) = x_0 + x_1 + ... in this order; x_r is row r of others (size, count), and `mine` for this rank. out may
// be `mine`.
static inline void sum_in_order(void *out, const void *mine, const void *others, size_t count, DType dtype,
                                const Comm *comm) {
    size_t width = dtype_size(dtype);
    ptrdiff_t blocks = (ptrdiff_t)((count + COMM_SUM_BLOCK - 1) / COMM_SUM_BLOCK);
#pragma omp parallel for schedule(static) if (blocks > 16)
    for (ptrdiff_t block = 0; block < blocks; block++) {
        size_t begin = (size_t)block * COMM_SUM_BLOCK;
        size_t n = count - begin < (size_t)COMM_SUM_BLOCK ? count - begin : (size_t)COMM_SUM_BLOCK;
        float sum[COMM_SUM_BLOCK];
        // -0, because (-0) + x is x for every x, -0 included
        for (size_t i = 0; i < n; i++) { sum[i] = -0.0f; }
        for (int rank = 0; rank < comm->size; rank++) {
            const char *x =
                rank == comm->rank ? (const char *)mine : (const char *)others + (size_t)rank * count * width;
            sum_add(sum, x + begin * width, n, dtype);
        }
        sum_store((char *)out + begin * width, sum, n, dtype);
    }
}

// ---- pieces: elements [at, at + piece) of every chunk

// one collective: `count` elements in chunks of `chunk`; the last chunks may be short or empty
typedef struct {
    const char *name;
    size_t chunk, count;  // elements
    size_t width;         // bytes per element
    size_t piece;         // elements; one piece per rank fills a host buffer
    DType dtype;
} MpiCall;

static inline MpiCall mpi_call(const char *name, int kind, size_t chunk, size_t count, DType dtype, Comm *comm) {
    size_t width = dtype_size(dtype);
    MpiCall call = {name, chunk, count, width, COMM_PIECE_BYTES / width / (size_t)comm->size, dtype};
    comm->mpi->tag = (int)(comm->calls % 4096) * 8 + kind;  // differs from earlier calls and other collectives
    return call;
}

// bytes of the piece at `at` of the rank's chunk
static inline size_t mpi_piece_bytes(const MpiCall *c, size_t at, int rank) {
    size_t part = chunk_range(c->count, c->chunk, rank).count;
    size_t left = part > at ? part - at : 0;
    return (left < c->piece ? left : c->piece) * c->width;
}

// address of that piece
static inline char *mpi_piece_of(const void *whole, const MpiCall *c, size_t at, int rank) {
    return (char *)whole + ((size_t)rank * c->chunk + at) * c->width;
}

// reduce_scatter of one piece into out
static inline void mpi_reduce_piece(char *out, const void *in, size_t at, const MpiCall *c, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    size_t mine = mpi_piece_bytes(c, at, comm->rank), slot = c->piece * c->width;
    const void *own = NULL;
    for (int rank = 0; rank < comm->size; rank++) { mpi_receive(g->received + (size_t)rank * mine, mine, rank, comm); }
    for (int rank = 0; rank < comm->size; rank++) {
        size_t bytes = mpi_piece_bytes(c, at, rank);
        const void *theirs = mpi_stage_in(mpi_piece_of(in, c, at, rank), bytes, (size_t)rank * slot, comm);
        mpi_send(theirs, bytes, rank, comm);
        if (rank == comm->rank) { own = theirs; }
    }
    mpi_wait(comm, c->name);
    void *sum = g->staged ? g->staged + (size_t)comm->rank * slot : out;
    sum_in_order(sum, own, g->received, mine / c->width, c->dtype, comm);
    mpi_stage_out(out, sum, mine, comm);
}

// all_gather of one piece; in: the piece of this rank's chunk
static inline void mpi_gather_piece(void *out, const char *in, size_t at, const MpiCall *c, Comm *comm) {
    size_t mine = mpi_piece_bytes(c, at, comm->rank), slot = c->piece * c->width;
    const void *from = mpi_stage_in(in, mine, 0, comm);
    for (int rank = 0; rank < comm->size; rank++) {
        void *to = mpi_staging_buffer(mpi_piece_of(out, c, at, rank), (size_t)rank * slot, comm);
        mpi_receive(to, mpi_piece_bytes(c, at, rank), rank, comm);
    }
    for (int rank = 0; rank < comm->size; rank++) { mpi_send(from, mine, rank, comm); }
    mpi_wait(comm, c->name);
    for (int rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank) { continue; }
        char *to = mpi_piece_of(out, c, at, rank);
        mpi_stage_out(to, mpi_staging_buffer(to, (size_t)rank * slot, comm), mpi_piece_bytes(c, at, rank), comm);
    }
}

// Binomial tree: rank root + k receives from root + k without its lowest bit, and sends to root + k + each lower bit.
static inline void mpi_broadcast_piece(char *buffer, size_t bytes, int root, const MpiCall *c, Comm *comm) {
    int size = comm->size, k = (comm->rank - root + size) % size, bit = 1;
    const void *from;
    while (bit < size && !(k & bit)) { bit *= 2; }
    if (k == 0) {
        from = mpi_stage_in(buffer, bytes, 0, comm);
    } else {
        void *to = mpi_staging_buffer(buffer, 0, comm);
        mpi_receive(to, bytes, (comm->rank - bit + size) % size, comm);
        mpi_wait(comm, c->name);
        mpi_stage_out(buffer, to, bytes, comm);
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
    .name = "mpi",
    .capturable = false,
    .ordered = true,
    .all_reduce = mpi_all_reduce,
    .reduce_scatter = mpi_reduce_scatter,
    .all_gather = mpi_all_gather,
    .broadcast = mpi_broadcast,
    .wait = single_wait,
    .event_synchronize = single_event_synchronize,
    .max = mpi_max,
    .split = mpi_split,
    .close = mpi_close,
};

// A group of one rank needs no communication; mpi_close still ends MPI.
static const CommBackend comm_mpi_alone = {
    .name = "mpi",
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
    .close = mpi_close,
};

// ---- groups

// takes ownership of `ranks`; the caller sets the buffers
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
    comm_barrier(comm);  // has a timeout, unlike MPI_Comm_split
    CHECK_MPI(MPI_Comm_split(comm->mpi->ranks, colour, key, &ranks));
    Comm *part = mpi_group(ranks, comm->mpi->job, comm->device);
    part->local_rank = comm->local_rank;
    part->timeout = comm->timeout;
    part->mpi->received = comm->mpi->received;
    part->mpi->staged = comm->mpi->staged;
    return part;
}

static inline void mpi_finalize(MpiJob *job) {
    stop_hook()->stop = NULL;
    CHECK_MPI(MPI_Win_free(&job->window));
    CHECK_MPI(MPI_Comm_free(&job->control));
    CHECK_MPI(MPI_Finalize());
    free(job);
}

static inline void mpi_close(Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    if (g->is_world) { comm_barrier(comm); }
    if (g->owns_buffers) {
        comm->device->release_host(g->received);
        comm->device->release_host(g->staged);
    }
    CHECK_MPI(MPI_Comm_free(&g->ranks));
    if (g->is_world) { mpi_finalize(g->job); }
    free(g->requests);
    free(g->finished);
    free(g);
    free(comm);
}

// Was this process started by mpirun, or by Slurm with an MPI?
static inline bool mpi_started(void) {
    const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (int i = 0; i < 3; i++) {
        if (getenv(variables[i])) { return true; }
    }
    return false;
}

// Returns the local rank and allocates the flag that the ranks of this machine share.
static inline int mpi_find_local_ranks(MpiJob *job) {
    MPI_Comm here;
    MPI_Aint bytes;
    int local_rank, unit;
    CHECK_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here));
    CHECK_MPI(MPI_Comm_rank(here, &local_rank));
    CHECK_MPI(MPI_Allreduce(&job->rank, &job->first_here, 1, MPI_INT, MPI_MIN, here));
    CHECK_MPI(MPI_Win_allocate_shared(local_rank ? 0 : (MPI_Aint)sizeof(int), sizeof(int), MPI_INFO_NULL, here,
                                      &job->reported, &job->window));
    CHECK_MPI(MPI_Win_shared_query(job->window, 0, &bytes, &unit, &job->reported));
    if (local_rank == 0) { *job->reported = 0; }
    CHECK_MPI(MPI_Barrier(here));
    CHECK_MPI(MPI_Comm_free(&here));
    return local_rank;
}

// The world of all ranks that mpirun started, on host memory. Call it before the first possible error: from here on,
// one rank reports an error for all. comm_close ends MPI; close every other group first.
static inline Comm *comm_mpi_open(void) {
    int provided;
    MPI_Comm ranks;
    MpiJob *job = (MpiJob *)xcalloc(1, sizeof *job);
    CHECK_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided));
    if (provided < MPI_THREAD_SERIALIZED) {
        run_error("this MPI supports calls from one thread only (MPI_Init_thread provides %d, expected %d); build MPI "
                  "with thread support",
                  provided, MPI_THREAD_SERIALIZED);
    }
    CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &job->control));
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &ranks));
    Comm *comm = mpi_group(ranks, job, &cpu_device);
    job->rank = comm->rank;
    job->size = comm->size;
    comm->local_rank = mpi_find_local_ranks(job);
    comm->mpi->is_world = true;
    comm->mpi->owns_buffers = true;
    comm->mpi->received = (char *)host_allocate(COMM_PIECE_BYTES);
    StopHook hook = {mpi_stop, job};
    *stop_hook() = hook;
    return comm;
}

// The same world on device memory, staged through host buffers: for builds without NCCL and for ranks that share a GPU.
// Close it before `host`. Its collectives wait for all work enqueued on the device.
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
