/*
The communicator over MPI: on host memory, and on device memory staged through a host buffer, one piece at a time.
  reduce_scatter   MPI_Ialltoallv brings each rank its chunk from every rank; the rank sums in fp32, in rank order
  all_gather       MPI_Iallgatherv
  all_reduce       the two, piece by piece, in place
  broadcast        MPI_Ibcast
A piece is at most COMM_PIECE_BYTES, so the buffers do not grow with a call.

Waiting   No call blocks inside MPI. MPI_Test is polled until COMM_TIMEOUT, at first yielding the core, later sleeping,
          because there may be more ranks than cores. Start mpirun with `--bind-to none`, or all threads of a rank run
          on one core.
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

struct MpiGroup {
    MPI_Comm ranks;
    bool is_world, owns_buffers;  // closing the group ends MPI; frees the buffers
    MPI_Win window;               // of the world: holds *reported, shared by the ranks of this machine
    int *reported;                // 1 once one of them reports an error
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

// StopHook: prints `sentence` once and ends all ranks with this exit status
static inline void mpi_stop(void *ctx, int status, const char *sentence) {
    const Comm *world = (const Comm *)ctx;
    if (__atomic_exchange_n(world->mpi->reported, 1, __ATOMIC_ACQ_REL) != 0) {
        sleep(30);  // a rank of this machine reports the error, and its MPI_Abort ends this one
        _exit(status);
    }
    int first_here = world->rank - world->local_rank;
    usleep(first_here < 100 ? 20000 * (useconds_t)first_here : 2000000);  // an earlier machine ends this one
    fprintf(stderr, "train_gpt2: rank %d: %s\n", world->rank, sentence);
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
}

// The one wait of all collectives.
static inline void mpi_wait(MPI_Request *request, const char *call, Comm *comm) {
    AwakeClock clock = {0, 0};
    for (int done = 0;;) {
        CHECK_MPI(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        if (done) { return; }
        double waited = awake_seconds(&clock);
        if (waited > COMM_TIMEOUT) { comm_no_answer(comm, call); }
        if (waited < 2e-3) {
            sched_yield();  // to a rank that shares the core
        } else {
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

// ---- pieces: `count` elements in equal parts, one for each rank; the last parts may be short or empty. In the
// caller's buffer the parts begin `stride` elements apart, in g->staged one after another.

static inline MPI_Datatype mpi_type(DType dtype) {
    return dtype == DT_F32 ? MPI_FLOAT : dtype == DT_BF16 ? MPI_UINT16_T : MPI_BYTE;
}

static inline size_t mpi_part(size_t count, int rank, const Comm *comm) {
    return chunk_range(count, chunk_size(count, comm->size), rank).count;
}

// Fills counts and offsets for parts `stride` elements apart.
static inline void mpi_lay_out(size_t count, size_t stride, Comm *comm) {
    if (stride > (size_t)INT_MAX / (size_t)comm->size) {
        run_error("a collective of %zu elements is longer than MPI's int: divide the tensors with a larger -tp",
                  stride);
    }
    for (int rank = 0; rank < comm->size; rank++) {
        comm->mpi->counts[rank] = (int)mpi_part(count, rank, comm);
        comm->mpi->offsets[rank] = rank * (int)stride;
    }
}

// Copies the parts of a piece between device memory and g->staged.
static inline void mpi_stage(char *device, size_t count, size_t stride, size_t width, bool download, Comm *comm) {
    char *host = comm->mpi->staged;
    for (int rank = 0; rank < comm->size; rank++) {
        size_t bytes = mpi_part(count, rank, comm) * width;
        if (bytes > 0 && download) { comm->device->download(host, device, bytes); }
        if (bytes > 0 && !download) { comm->device->upload(device, host, bytes); }
        device += stride * width;
        host += bytes;
    }
}

// Sums a piece over the ranks: out = this rank's part of the sum of all ranks' `in`. out may be that part of `in`.
static inline void mpi_reduce_piece(char *out, const char *in, size_t count, size_t stride, DType dtype, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    MPI_Request request;
    MPI_Datatype type = mpi_type(dtype);
    size_t width = dtype_size(dtype), own = mpi_part(count, comm->rank, comm);
    mpi_lay_out(count, g->staged ? chunk_size(count, comm->size) : stride, comm);
    for (int rank = 0; rank < comm->size; rank++) {
        g->received_counts[rank] = (int)own;
        g->received_offsets[rank] = rank * (int)own;
    }
    if (g->staged) { mpi_stage((char *)in, count, stride, width, true, comm); }
    CHECK_MPI(MPI_Ialltoallv(g->staged ? g->staged : in, g->counts, g->offsets, type, g->received, g->received_counts,
                             g->received_offsets, type, g->ranks, &request));
    mpi_wait(&request, "reduce_scatter", comm);
    sum_in_order(g->staged ? g->staged : out, g->received, own, dtype, comm->size);
    if (g->staged && own > 0) { comm->device->upload(out, g->staged, own * width); }
}

// Gathers every rank's part into `out`. `in` is this rank's part, and may be its place in `out`.
static inline void mpi_gather_piece(char *out, const char *in, size_t count, size_t stride, DType dtype, Comm *comm) {
    struct MpiGroup *g = comm->mpi;
    MPI_Request request;
    MPI_Datatype type = mpi_type(dtype);
    size_t width = dtype_size(dtype), own = mpi_part(count, comm->rank, comm) * width;
    size_t host_stride = g->staged ? chunk_size(count, comm->size) : stride;
    char *host = g->staged ? g->staged : out, *place = host + (size_t)comm->rank * host_stride * width;
    if (place != in && own > 0) { comm->device->download(place, in, own); }
    mpi_lay_out(count, host_stride, comm);
    CHECK_MPI(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, host, g->counts, g->offsets, type, g->ranks, &request));
    mpi_wait(&request, "all_gather", comm);
    if (g->staged) { mpi_stage(out, count, stride, width, false, comm); }
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
        char *whole = (char *)buffer + at * width, *own = whole + (size_t)comm->rank * part * width;
        mpi_reduce_piece(own, whole, n, part, dtype, comm);
        mpi_gather_piece(whole, own, n, part, dtype, comm);
    }
}

// reduce_scatter or all_gather: `piece` moves the same elements of every rank's chunk
static inline void mpi_by_pieces(void (*piece)(char *, const char *, size_t, size_t, DType, Comm *), void *out,
                                 const void *in, size_t chunk, DType dtype, Comm *comm) {
    size_t width = dtype_size(dtype), longest = mpi_longest_part(dtype, comm);
    for (size_t at = 0; at < chunk; at += longest) {
        size_t part = chunk - at < longest ? chunk - at : longest;
        piece((char *)out + at * width, (const char *)in + at * width, part * (size_t)comm->size, chunk, dtype, comm);
    }
}

static inline void mpi_reduce_scatter(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    (void)ex;
    mpi_by_pieces(mpi_reduce_piece, out, in, chunk, dtype, comm);
}

static inline void mpi_all_gather(void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex) {
    (void)ex;
    mpi_by_pieces(mpi_gather_piece, out, in, chunk, dtype, comm);
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
static inline Comm *mpi_group(MPI_Comm ranks, int local_rank, const Device *device) {
    Comm *comm = comm_new(&comm_mpi_backend, device);
    struct MpiGroup *g = comm->mpi = (struct MpiGroup *)xcalloc(1, sizeof *g);
    CHECK_MPI(MPI_Comm_rank(ranks, &comm->rank));
    CHECK_MPI(MPI_Comm_size(ranks, &comm->size));
    comm->local_rank = local_rank;
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
    Comm *part = mpi_group(ranks, comm->local_rank, comm->device);
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
        CHECK_MPI(MPI_Win_free(&g->window));
        CHECK_MPI(MPI_Finalize());
    }
    free(g->counts);
    free(g);
    free(comm);
}

// Was this process started by mpirun, or by Slurm with an MPI?
static inline bool mpi_started(void) {
    return getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK") || getenv("PMI_RANK");
}

// Finds the local rank and allocates the flag that the ranks of this machine share.
static inline void mpi_find_local_ranks(Comm *world) {
    struct MpiGroup *g = world->mpi;
    MPI_Comm here;
    MPI_Aint bytes;
    int unit;
    CHECK_MPI(MPI_Comm_split_type(g->ranks, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here));
    CHECK_MPI(MPI_Comm_rank(here, &world->local_rank));
    CHECK_MPI(MPI_Win_allocate_shared(world->local_rank ? 0 : (MPI_Aint)sizeof(int), sizeof(int), MPI_INFO_NULL, here,
                                      &g->reported, &g->window));
    CHECK_MPI(MPI_Win_shared_query(g->window, 0, &bytes, &unit, &g->reported));
    if (world->local_rank == 0) { *g->reported = 0; }
    CHECK_MPI(MPI_Barrier(here));
    CHECK_MPI(MPI_Comm_free(&here));
}

// The world of all ranks that mpirun started, on host memory. Call it before the first possible error: from here on,
// one rank reports an error for all. comm_close ends MPI; close every other group first.
static inline Comm *comm_mpi_open(void) {
    int provided;
    MPI_Comm ranks;
    CHECK_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided));
    if (provided < MPI_THREAD_SERIALIZED) {
        run_error("this MPI supports calls from one thread only (MPI_Init_thread provides %d, expected %d); build MPI "
                  "with thread support",
                  provided, MPI_THREAD_SERIALIZED);
    }
    CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &ranks));
    Comm *comm = mpi_group(ranks, 0, &cpu_device);
    mpi_find_local_ranks(comm);
    comm->mpi->is_world = true;
    comm->mpi->owns_buffers = true;
    comm->mpi->received = (char *)host_allocate(COMM_PIECE_BYTES);
    StopHook hook = {comm->size > 1 ? mpi_stop : NULL, comm};  // MPI_Abort adds a paragraph to the error
    *stop_hook() = hook;
    return comm;
}

// The same world on device memory, staged through host buffers: for builds without NCCL and for ranks that share a GPU.
// Close it before `launched`. Its collectives wait for all work enqueued on the device.
static inline Comm *comm_mpi_for_device(Comm *launched, const Device *device) {
    MPI_Comm ranks;
    comm_barrier(launched);
    CHECK_MPI(MPI_Comm_dup(launched->mpi->ranks, &ranks));
    Comm *comm = mpi_group(ranks, launched->local_rank, device);
    comm->mpi->owns_buffers = true;
    comm->mpi->received = (char *)device->allocate_host(COMM_PIECE_BYTES);
    comm->mpi->staged = (char *)device->allocate_host(COMM_PIECE_BYTES);
    return comm;
}
