/*
The communicator over MPI: on host memory, and on device memory staged through a host buffer, one piece at a time.
defines: comm_mpi_open, comm_mpi_for_device, mpi_started, mpi_answer_pings, mpi_timeout
  reduce_scatter   MPI_Ialltoallv brings each rank its chunk from every rank; the rank sums in fp32, in rank order
  all_gather       MPI_Iallgatherv
  all_reduce       the two, piece by piece, in place
  broadcast        MPI_Ibcast
A piece is at most COMM_PIECE_BYTES, so the buffers do not grow with a call.

Waiting   No call blocks inside MPI. MPI_Test is polled until a deadline, at first yielding the core, later sleeping,
          because there may be more ranks than cores. Start mpirun with `--bind-to none`, or all threads of a rank run
          on one core.
Timeout   A rank that waits for COMM_TIMEOUT pings all others. Ranks that wait too answer, so the error names only ranks
          that hang, and no ranks that wait for them.
Errors    Several ranks may find the same error. One rank of each machine claims a flag in shared memory and reports it,
          later machines after a delay, and MPI_Abort ends all ranks: one sentence is printed.
*/
#pragma once
#include "llmc/common/range.h"
#include "llmc/parallel/comm.h"
#include <limits.h>
#include <sched.h>
#include <unistd.h>
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

enum { COMM_PIECE_BYTES = 4 << 20, COMM_SUM_BLOCK = 1024 };
enum { TAG_PING, TAG_PONG };
#define PONG_SECONDS 2.0  // time for an answer to a ping

// state of the process, shared by its groups
typedef struct {
    MPI_Comm control;            // a copy of the world, for pings
    int rank, size, local_rank;  // of the world
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
    // size: elements of each rank's part of a piece, and its offset; received[r]: of the part that came from rank r
    int *counts, *offsets, *received_counts, *received_offsets;
};

static inline void mpi_check(int error, const char *call) {
    if (error == MPI_SUCCESS) { return; }
    char why[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, why, &length);
    run_error("%s: %s", call, why);
}
#define CHECK_MPI(call) mpi_check((call), #call)

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
    for (double end = now_seconds() + seconds; now_seconds() < end; usleep(1000)) { mpi_answer_pings(job); }
}

// Pings every other rank and fills answered[rank].
static inline void mpi_ping_all(const MpiJob *job, bool *answered) {
    memset(answered, 0, (size_t)job->size * sizeof *answered);
    for (int rank = 0; rank < job->size; rank++) {
        if (rank != job->rank) { mpi_send_empty(job, TAG_PING, rank); }
    }
    answered[job->rank] = true;
    for (double end = now_seconds() + PONG_SECONDS; now_seconds() < end; mpi_sleep(job, 1e-3)) {
        for (int rank; (rank = mpi_probe_receive(job, TAG_PONG)) >= 0;) { answered[rank] = true; }
    }
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
static inline void mpi_stop(void *ctx, int status, const char *sentence) {
    MpiJob *job = (MpiJob *)ctx;
    int first_here = job->rank - job->local_rank;
    mpi_claim_report(job, status);
    mpi_sleep(job, first_here < 100 ? 0.02 * first_here : 2.0);  // an earlier machine ends this one
    if (job->size > 1) {
        fprintf(stderr, "train_gpt2: rank %d: %s\n", job->rank, sentence);
    } else {
        fprintf(stderr, "train_gpt2: %s\n", sentence);
    }
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

// The ranks with present[rank] false: "rank 3", "ranks 3, 5", with ", ..." after the eighth. Returns their number.
static inline int mpi_name_missing(char *text, size_t room, const bool *present, int size) {
    int missing = 0, named = 0;
    for (int rank = 0; rank < size; rank++) { missing += !present[rank]; }
    int length = snprintf(text, room, "%s", missing > 1 ? "ranks" : "rank");
    for (int rank = 0; rank < size && named < 8; rank++) {
        if (present[rank]) { continue; }
        length += snprintf(text + length, room - (size_t)length, "%s %d", named++ ? "," : "", rank);
    }
    if (missing > named) { snprintf(text + length, room - (size_t)length, ", ... (%d)", missing); }
    return missing;
}

// Stops all ranks after a timeout in `call` and names the ranks that hang.
static inline void mpi_timeout(Comm *comm, const char *call) {
    MpiJob *job = comm->mpi->job;
    char who[128];
    bool *answered = (bool *)xmalloc((size_t)job->size * sizeof *answered);
    mpi_claim_report(job, EXIT_RUN_FAILED);
    mpi_ping_all(job, answered);
    int silent = mpi_name_missing(who, sizeof who, answered, job->size);
    if (silent == 0) {
        run_error("%s has waited %g s, yet every rank answers now: one rank was busy that long, a link is faulty, or "
                  "the ranks make different calls, a bug",
                  call, COMM_TIMEOUT);
    }
    run_error("%s ha%s not answered for %g s (in %s): check the machine, then resume with -y 1", who,
              silent > 1 ? "ve" : "s", COMM_TIMEOUT, call);
}

// The one wait of all collectives.
static inline void mpi_wait(MPI_Request *request, const char *call, Comm *comm) {
    AwakeClock clock = {0, 0};
    for (int done = 0;;) {
        CHECK_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) { return; }
        double waited = awake_seconds(&clock);
        if (waited > COMM_TIMEOUT) { mpi_timeout(comm, call); }
        if (waited < 2e-3) {
            sched_yield();  // to a rank that shares the core
        } else {
            mpi_answer_pings(comm->mpi->job);
            usleep(100);
        }
    }
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

// out (count) = x_0 + x_1 + ... in this order; x_r is row r of x (size, count)
static inline void sum_in_order(void *out, const char *x, size_t count, DType dtype, int size) {
    size_t width = dtype_size(dtype);
    ptrdiff_t blocks = (ptrdiff_t)((count + COMM_SUM_BLOCK - 1) / COMM_SUM_BLOCK);
#pragma omp parallel for schedule(static) if (blocks > 16)
    for (ptrdiff_t block = 0; block < blocks; block++) {
        size_t begin = (size_t)block * COMM_SUM_BLOCK;
        size_t n = count - begin < (size_t)COMM_SUM_BLOCK ? count - begin : (size_t)COMM_SUM_BLOCK;
        float sum[COMM_SUM_BLOCK];
        // -0, because (-0) + x is x for every x, -0 included
        for (size_t i = 0; i < n; i++) { sum[i] = -0.0f; }
        for (int rank = 0; rank < size; rank++) { sum_add(sum, x + ((size_t)rank * count + begin) * width, n, dtype); }
        sum_store((char *)out + begin * width, sum, n, dtype);
    }
}

// ---- pieces

// A piece: `count` elements in parts of `part`, one for each rank; the last parts may be short or empty. In the
// caller's buffer the parts begin `stride` elements apart.
typedef struct {
    size_t count, part, stride;
    DType dtype;
} MpiPiece;

static inline MPI_Datatype mpi_type(DType dtype) {
    return dtype == DT_F32 ? MPI_FLOAT : dtype == DT_BF16 ? MPI_UINT16_T : MPI_BYTE;
}

static inline size_t mpi_part(const MpiPiece *p, int rank) { return chunk_range(p->count, p->part, rank).count; }

// Fills counts and offsets for parts `stride` elements apart.
static inline void mpi_lay_out(const MpiPiece *p, size_t stride, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    if (stride > (size_t)INT_MAX / (size_t)comm->size) {
        run_error("a collective of %zu elements is longer than MPI's int: divide the tensors with a larger -tp",
                  stride);
    }
    for (int rank = 0; rank < comm->size; rank++) {
        g->counts[rank] = (int)mpi_part(p, rank);
        g->offsets[rank] = rank * (int)stride;
    }
}

// out (this rank's part) = sum of every rank's part of `in`. out may be the part in `in`.
static inline void mpi_reduce_piece(char *out, const char *in, const MpiPiece *p, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    MPI_Request request;
    MPI_Datatype type = mpi_type(p->dtype);
    size_t width = dtype_size(p->dtype), own = mpi_part(p, comm->rank);
    mpi_lay_out(p, g->staged ? p->part : p->stride, comm);
    for (int rank = 0; rank < comm->size; rank++) {
        size_t at = (size_t)rank * width, bytes = mpi_part(p, rank) * width;
        g->received_counts[rank] = (int)own;
        g->received_offsets[rank] = rank * (int)own;
        if (g->staged && bytes > 0) { comm->device->download(g->staged + at * p->part, in + at * p->stride, bytes); }
    }
    CHECK_MPI(MPI_Ialltoallv(g->staged ? g->staged : in, g->counts, g->offsets, type, g->received, g->received_counts,
                             g->received_offsets, type, g->ranks, &request));
    mpi_wait(&request, "reduce_scatter", comm);
    sum_in_order(g->staged ? g->staged : out, g->received, own, p->dtype, comm->size);
    if (g->staged && own > 0) { comm->device->upload(out, g->staged, own * width); }
}

// out = every rank's part; in: this rank's, which may be its part of `out`
static inline void mpi_gather_piece(char *out, const char *in, const MpiPiece *p, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    MPI_Request request;
    MPI_Datatype type = mpi_type(p->dtype);
    size_t width = dtype_size(p->dtype), own = mpi_part(p, comm->rank) * width;
    size_t stride = g->staged ? p->part : p->stride;
    char *to = g->staged ? g->staged : out, *place = to + (size_t)comm->rank * stride * width;
    if (place != in && own > 0) { comm->device->download(place, in, own); }
    mpi_lay_out(p, stride, comm);
    CHECK_MPI(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, to, g->counts, g->offsets, type, g->ranks, &request));
    mpi_wait(&request, "all_gather", comm);
    for (int rank = 0; g->staged && rank < comm->size; rank++) {
        size_t at = (size_t)rank * width, bytes = mpi_part(p, rank) * width;
        if (bytes > 0) { comm->device->upload(out + at * p->stride, g->staged + at * p->part, bytes); }
    }
}

// elements of a rank's part that fit the buffers
static inline size_t mpi_longest_part(DType dtype, const Comm *comm) {
    return COMM_PIECE_BYTES / dtype_size(dtype) / (size_t)comm->size;
}

// ---- the table

static inline void mpi_all_reduce(void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex) {
    (void)ex;
    size_t width = dtype_size(dtype), longest = mpi_longest_part(dtype, comm) * (size_t)comm->size;
    for (size_t at = 0; at < count; at += longest) {
        size_t n = count - at < longest ? count - at : longest, part = chunk_size(n, comm->size);
        MpiPiece piece = {n, part, part, dtype};
        char *whole = (char *)buffer + at * width, *own = whole + (size_t)comm->rank * part * width;
        mpi_reduce_piece(own, whole, &piece, comm);
        mpi_gather_piece(whole, own, &piece, comm);
    }
}

static inline void mpi_reduce_scatter(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    (void)ex;
    size_t width = dtype_size(dtype), longest = mpi_longest_part(dtype, comm);
    for (size_t at = 0; at < chunk; at += longest) {
        size_t part = chunk - at < longest ? chunk - at : longest;
        MpiPiece piece = {part * (size_t)comm->size, part, chunk, dtype};
        mpi_reduce_piece((char *)out + at * width, (const char *)in + at * width, &piece, comm);
    }
}

static inline void mpi_all_gather(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    (void)ex;
    size_t width = dtype_size(dtype), longest = mpi_longest_part(dtype, comm);
    for (size_t at = 0; at < chunk; at += longest) {
        size_t part = chunk - at < longest ? chunk - at : longest;
        MpiPiece piece = {part * (size_t)comm->size, part, chunk, dtype};
        mpi_gather_piece((char *)out + at * width, (const char *)in + at * width, &piece, comm);
    }
}

static inline void mpi_broadcast(void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex) {
    (void)ex;
    size_t bytes = count * dtype_size(dtype), piece = COMM_PIECE_BYTES;
    for (size_t at = 0; at < bytes; at += piece) {
        size_t n = bytes - at < piece ? bytes - at : piece;
        char *memory = (char *)buffer + at, *host = comm->mpi->staged ? comm->mpi->staged : memory;
        MPI_Request request;
        if (host != memory && comm->rank == root) { comm->device->download(host, memory, n); }
        CHECK_MPI(MPI_Ibcast(host, (int)n, MPI_BYTE, root, comm->mpi->ranks, &request));
        mpi_wait(&request, "broadcast", comm);
        if (host != memory && comm->rank != root) { comm->device->upload(memory, host, n); }
    }
}

static inline long long mpi_max(long long value, Comm *comm) {
    long long most;
    MPI_Request request;
    CHECK_MPI(MPI_Iallreduce(&value, &most, 1, MPI_LONG_LONG, MPI_MAX, comm->mpi->ranks, &request));
    mpi_wait(&request, "barrier", comm);
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

// ---- groups

// takes ownership of `ranks`; the caller sets the buffers
static inline Comm *mpi_group(MPI_Comm ranks, MpiJob *job, const Device *device) {
    Comm *comm = comm_new(&comm_mpi_backend, device);
    struct MpiGroup *g = comm->mpi = (struct MpiGroup *)xcalloc(1, sizeof *g);
    CHECK_MPI(MPI_Comm_rank(ranks, &comm->rank));
    CHECK_MPI(MPI_Comm_size(ranks, &comm->size));
    comm->local_rank = job->local_rank;
    g->job = job;
    g->ranks = ranks;
    g->counts = (int *)xcalloc(4 * (size_t)comm->size, sizeof *g->counts);
    g->offsets = g->counts + comm->size;
    g->received_counts = g->offsets + comm->size;
    g->received_offsets = g->received_counts + comm->size;
    return comm;
}

static inline Comm *mpi_split(Comm *comm, int colour, int key) {
    MPI_Comm ranks;
    int size;
    comm_barrier(comm);  // has a timeout, unlike MPI_Comm_split
    CHECK_MPI(MPI_Comm_split(comm->mpi->ranks, colour, key, &ranks));
    CHECK_MPI(MPI_Comm_size(ranks, &size));
    if (size == 1) {  // needs no communication
        CHECK_MPI(MPI_Comm_free(&ranks));
        return comm_single(comm->device);
    }
    Comm *part = mpi_group(ranks, comm->mpi->job, comm->device);
    part->mpi->received = comm->mpi->received;
    part->mpi->staged = comm->mpi->staged;
    return part;
}

static inline void mpi_close(Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    if (g->is_world) { comm_barrier(comm); }
    if (g->owns_buffers) {
        comm->device->release_host(g->received);
        comm->device->release_host(g->staged);
    }
    CHECK_MPI(MPI_Comm_free(&g->ranks));
    if (g->is_world) {
        stop_hook()->stop = NULL;
        CHECK_MPI(MPI_Win_free(&g->job->window));
        CHECK_MPI(MPI_Comm_free(&g->job->control));
        CHECK_MPI(MPI_Finalize());
        free(g->job);
    }
    free(g->counts);
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

// Finds the local rank and allocates the flag that the ranks of this machine share.
static inline void mpi_find_local_ranks(MpiJob *job) {
    MPI_Comm here;
    MPI_Aint bytes;
    int unit;
    CHECK_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here));
    CHECK_MPI(MPI_Comm_rank(here, &job->local_rank));
    CHECK_MPI(MPI_Win_allocate_shared(job->local_rank ? 0 : (MPI_Aint)sizeof(int), sizeof(int), MPI_INFO_NULL, here,
                                      &job->reported, &job->window));
    CHECK_MPI(MPI_Win_shared_query(job->window, 0, &bytes, &unit, &job->reported));
    if (job->local_rank == 0) { *job->reported = 0; }
    CHECK_MPI(MPI_Barrier(here));
    CHECK_MPI(MPI_Comm_free(&here));
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
    mpi_find_local_ranks(job);
    Comm *comm = mpi_group(ranks, job, &cpu_device);
    job->rank = comm->rank;
    job->size = comm->size;
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
    comm->mpi->owns_buffers = true;
    comm->mpi->received = (char *)device->allocate_host(COMM_PIECE_BYTES);
    comm->mpi->staged = (char *)device->allocate_host(COMM_PIECE_BYTES);
    return comm;
}
