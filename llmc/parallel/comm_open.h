/*
Opens the world: the communicator follows from the launcher, the build and the device.
defines: CommInit, COMM_INITS, CommOptions, comm_open, comm_open_for, comm_backends, comm_same_gpu
    Comm *host = comm_open();                              first: afterwards, one rank reports an error for all
    ... flags ...
    Comm *world = comm_open_for(device, &options, host);   before the first device allocation
    ...
    if (world != host) { comm_close(world); }
    comm_close(host);
              one process     mpirun                                    -pi fs | tcp, -pn N -pr R -pg G
  CPU         single          MPI                                       an error
  GPU         single          NCCL; MPI in a build without NCCL,        NCCL
                              or if ranks share a GPU
*/
#pragma once
#include "llmc/parallel/comm.h"
#include "llmc/parallel/comm_wire.h"
#ifdef HAVE_MPI
#include "llmc/parallel/comm_mpi.h"
#endif
#if defined(__CUDACC__) && defined(HAVE_NCCL)
#include "llmc/parallel/comm_nccl.cuh"
#define COMM_HAS_NCCL 1
#endif

typedef enum { COMM_INIT_MPI, COMM_INIT_FILE, COMM_INIT_TCP } CommInit;  // in the order of COMM_INITS
#define COMM_INITS "mpi fs tcp"

typedef struct {
    CommInit init;                           // -pi
    int num_processes, rank, gpus_per_node;  // -pn -pr -pg; for fs and tcp only: mpirun sets its own
    const char *server;                      // -ps, for tcp: HOST:PORT or HOST of rank 0
    const char *folder;                      // -pf, for fs: a folder that all ranks can write to
    const char *job;                         // for fs and tcp: the same on all ranks, different in other jobs
    double timeout;                          // --comm-timeout, seconds
    const char *secret_file;                 // --secret-file, for tcp
} CommOptions;

// The world of all ranks that mpirun started, on host memory. Call it before the first possible error.
static inline Comm *comm_open(void) {
#ifdef HAVE_MPI
    if (mpi_started()) { return comm_mpi_open(); }
#else
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (size && atoi(size) > 1) {
        input_error("mpirun started %s ranks, but this program was built without MPI: install Open MPI "
                    "(libopenmpi-dev) and run make again, or start without mpirun",
                    size);
    }
#endif
    return comm_single(&cpu_device);
}

enum { GPU_NAME_BYTES = 16 };  // a GPU's UUID

// Finds the first two ranks on the same GPU; false if there are none. names: (size, GPU_NAME_BYTES).
static inline bool comm_same_gpu(const char *names, int size, int *one, int *other) {
    for (*other = 1; *other < size; ++*other) {
        for (*one = 0; *one < *other; ++*one) {
            if (memcmp(names + *one * GPU_NAME_BYTES, names + *other * GPU_NAME_BYTES, GPU_NAME_BYTES) == 0) {
                return true;
            }
        }
    }
    return false;
}

#ifdef COMM_HAS_NCCL
static inline Comm *comm_open_gpus_without_mpi(const CommOptions *o, const Secret *secret) {
    int rank = o->rank, size = o->num_processes;
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    nccl_set_launch_order();
    if (rank == 0) { id = nccl_unique_id(); }
    Rendezvous rendezvous = {rank, size, o->job, o->timeout, &id, sizeof id, secret, "--secret-file"};
    Wire *wire = o->init == COMM_INIT_FILE ? wire_by_file(&rendezvous, o->folder) : wire_by_tcp(&rendezvous, o->server);
    return comm_nccl_open(id, rank, size, rank % o->gpus_per_node, NULL, wire, o->timeout);
}

// Selects the GPU of a local rank and returns the GPU's name. A rank that sees a single GPU (CUDA_VISIBLE_DEVICES)
// takes that one.
static inline void comm_take_gpu(int local_rank, char *name) {
    const char *why;
    struct cudaDeviceProp gpu;
    int gpus = cuda_device_count(&why), device = gpus > 0 ? local_rank % gpus : 0;
    if (gpus == 0) { run_error("local rank %d of this machine sees no GPU (%s)", local_rank, why); }
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaGetDeviceProperties(&gpu, device));
    memcpy(name, gpu.uuid.bytes, GPU_NAME_BYTES);
}

static inline Comm *comm_open_gpus_by_mpi(const CommOptions *o, Comm *host) {
    char *names = (char *)xmalloc((size_t)host->size * GPU_NAME_BYTES);
    char *own = names + host->rank * GPU_NAME_BYTES;
    int one, other;
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    comm_take_gpu(host->local_rank, own);
    comm_all_gather(names, own, GPU_NAME_BYTES, DT_U8, host, NULL);
    bool shared = comm_same_gpu(names, host->size, &one, &other);
    free(names);
    if (shared) {
        if (host->rank == 0) {
            fprintf(
                stderr,
                "train_gpt2: ranks %d and %d share a GPU, so all ranks communicate through MPI and host memory, not "
                "NCCL\n",
                one, other);
        }
        return NULL;
    }
    nccl_set_launch_order();
    if (host->rank == 0) { id = nccl_unique_id(); }
    comm_broadcast(&id, sizeof id, DT_U8, 0, host, NULL);
    return comm_nccl_open(id, host->rank, host->size, host->local_rank, host, NULL, o->timeout);
}

// NULL if ranks share a GPU and use MPI instead
static inline Comm *comm_open_gpus(const CommOptions *o, const Secret *secret, Comm *host) {
    if (o->init == COMM_INIT_MPI) { return comm_open_gpus_by_mpi(o, host); }
    char name[GPU_NAME_BYTES];
    const char *why;
    int gpus = cuda_device_count(&why), local_rank = o->rank % o->gpus_per_node;
    if (gpus > 1 && local_rank >= gpus) {
        input_error("rank %d has no GPU of its own: -pg %d is the number of ranks per machine, one per GPU, but this "
                    "machine has %d GPUs",
                    o->rank, o->gpus_per_node, gpus);
    }
    comm_take_gpu(local_rank, name);
    return comm_open_gpus_without_mpi(o, secret);
}
#endif

// The world on the memory of `device`; for host memory, `host` itself.
static inline Comm *comm_open_for(const Device *device, const CommOptions *o, Comm *host) {
    host->timeout = o->timeout;
    int size = o->init == COMM_INIT_MPI ? host->size : o->num_processes;
    if (device == &cpu_device && (o->init == COMM_INIT_MPI || size == 1)) { return host; }
    if (size == 1) { return comm_single(device); }
    Secret secret;
    if (o->init != COMM_INIT_MPI) { secret_check_library(); }
    if (o->init == COMM_INIT_TCP) { secret_read(&secret, o->secret_file); }
#ifdef COMM_HAS_NCCL
    Comm *gpus = device == &cpu_device ? NULL : comm_open_gpus(o, &secret, host);
    if (gpus) {
        explicit_bzero(&secret, sizeof secret);
        return gpus;
    }
#endif
    explicit_bzero(&secret, sizeof secret);
    if (o->init != COMM_INIT_MPI) {
        input_error("-pi fs and -pi tcp connect GPUs through NCCL, %s; start the ranks with mpirun",
                    device == &cpu_device ? "but this run is on CPUs" : "but this program was built without NCCL");
    }
#ifdef HAVE_MPI
    return comm_mpi_for_device(host, device);
#else
    return comm_single(device);
#endif
}

// for --version: "single, MPI (Open MPI v4.1.4), NCCL 2.28.9, OpenSSL 3.0.19"
static inline void comm_backends(char *text, size_t room) {
    int length = snprintf(text, room, "single");
#ifdef HAVE_MPI
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int bytes;
    CHECK_MPI(MPI_Get_library_version(version, &bytes));
    length += snprintf(text + length, room - (size_t)length, ", MPI (%.*s)", (int)strcspn(version, ",\n"), version);
#endif
#ifdef COMM_HAS_NCCL
    int v = nccl_version();
    length += snprintf(text + length, room - (size_t)length, ", NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
#endif
    const char *crypto = secret_library();
    if (crypto) {  // "OpenSSL 3.0.19 27 Jan 2026"
        int words = (int)(strcspn(crypto, " ") + 1 + strcspn(crypto + strcspn(crypto, " ") + 1, " "));
        snprintf(text + length, room - (size_t)length, ", %.*s", words, crypto);
    }
}
