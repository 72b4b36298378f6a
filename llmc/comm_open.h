/*
Which communicator a program gets: from how it was started, what it was built with, and where the model runs.
defines: CommInit, COMM_INITS, CommOptions, comm_open, comm_open_for, comm_backends
    Comm *host = comm_open();                           first of all: from here on an error is said once for all ranks
    ... flags ...
    Comm *world = comm_open_for(device, &options, host);   before anything is allocated on the device
    ...
    if (world != host) { comm_close(world); }
    comm_close(host);
              one process     mpirun                                    -pi fs | tcp, -pn N -pr R -pg G
  CPU         single          MPI                                       an error
  GPU         single          NCCL; MPI where it is not built in,       NCCL
                              or ranks share a GPU
*/
#pragma once
#include "comm.h"
#include "rendezvous.h"
#ifdef HAVE_MPI
#include "comm_mpi.h"
#endif
#if defined(__CUDACC__) && defined(HAVE_NCCL)
#include "comm_nccl.cuh"
#define COMM_HAS_NCCL 1
#endif

typedef enum { COMM_INIT_MPI, COMM_INIT_FILE, COMM_INIT_TCP } CommInit;  // in the order of COMM_INITS
#define COMM_INITS "mpi fs tcp"

// what flags say. mpirun tells ranks and sizes itself: num_processes, rank and gpus_per_node are those of fs and tcp
typedef struct {
    CommInit init;                           // -pi
    int num_processes, rank, gpus_per_node;  // -pn -pr -pg
    const char *server;                      // -ps, of tcp: HOST:PORT of rank 0
    const char *folder;                      // -pf, of fs: one that all processes see
    const char *job;                         // of fs and tcp: the same in all processes, another in other jobs
    double timeout;                          // --comm-timeout, seconds
} CommOptions;

// The processes that were started together, on host memory. Call it before anything can go wrong.
static inline Comm *comm_open(void) {
#ifdef HAVE_MPI
    if (mpi_started()) { return comm_mpi_open(); }
#else
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (size && atoi(size) > 1) {
        input_error("mpirun started %s processes, but this program was built without MPI: install Open MPI "
                    "(libopenmpi-dev) and run make again, or start it without mpirun",
                    size);
    }
#endif
    return comm_single(&cpu_device);
}

#ifdef COMM_HAS_NCCL
static inline ncclUniqueId comm_meet(const CommOptions *o, int rank, int size, Comm *host) {
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    if (rank == 0) { id = nccl_draw_id(); }
    Meeting meeting = {rank, size, o->job, o->timeout, &id, sizeof id};
    switch (o->init) {
    case COMM_INIT_MPI: comm_broadcast(&id, sizeof id, DT_U8, 0, host, NULL); break;
    case COMM_INIT_FILE: rendezvous_file(&meeting, o->folder); break;
    case COMM_INIT_TCP: rendezvous_tcp(&meeting, o->server); break;
    }
    return id;
}

// Takes the GPU for this process; whether every process has one of its own.
static inline bool comm_take_gpu(int local_rank, Comm *host) {
    const char *why;
    int gpus = cuda_device_count(&why);
    if (gpus > 0) { CUDA_CHECK(cudaSetDevice(local_rank % gpus)); }
    return comm_max(local_rank >= gpus, host) == 0;
}

static inline Comm *comm_open_gpus(const CommOptions *o, Comm *host) {
    bool by_mpi = o->init == COMM_INIT_MPI;
    int rank = by_mpi ? host->rank : o->rank, size = by_mpi ? host->size : o->num_processes;
    int local_rank = by_mpi ? host->local_rank : o->rank % o->gpus_per_node;
    if (!comm_take_gpu(local_rank, host)) {
        if (by_mpi) { return NULL; }
        input_error("rank %d has no GPU of its own: -pg %d says how many processes run on a machine, one for each GPU",
                    rank, o->gpus_per_node);
    }
    return comm_nccl_open(comm_meet(o, rank, size, host), rank, size, local_rank, by_mpi ? host : NULL, o->timeout);
}
#endif

// The group of all processes on the memory of `device`; where that is the host's, it is `host` itself.
static inline Comm *comm_open_for(const Device *device, const CommOptions *o, Comm *host) {
    host->timeout = o->timeout;
    int size = o->init == COMM_INIT_MPI ? host->size : o->num_processes;
    if (device == &cpu_device && (o->init == COMM_INIT_MPI || size == 1)) { return host; }
    if (size == 1) { return comm_single(device); }
#ifdef COMM_HAS_NCCL
    Comm *gpus = device == &cpu_device ? NULL : comm_open_gpus(o, host);
    if (gpus) { return gpus; }
#endif
    if (o->init != COMM_INIT_MPI) {
        input_error("-pi fs and -pi tcp connect GPUs through NCCL, %s; start the processes with mpirun",
                    device == &cpu_device ? "but this run is on CPUs" : "which this program was built without");
    }
#ifdef HAVE_MPI
    return comm_mpi_for_device(host, device);
#else
    return comm_single(device);
#endif
}

// for --version: "single, MPI (Open MPI v4.1.4), NCCL 2.28.9"
static inline void comm_backends(char *text, size_t room) {
    int length = snprintf(text, room, "single");
#ifdef HAVE_MPI
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int bytes;
    MPI_CHECK(MPI_Get_library_version(version, &bytes));
    length += snprintf(text + length, room - (size_t)length, ", MPI (%.*s)", (int)strcspn(version, ",\n"), version);
#endif
#ifdef COMM_HAS_NCCL
    int v = nccl_version();
    snprintf(text + length, room - (size_t)length, ", NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
#endif
    (void)length;
}
