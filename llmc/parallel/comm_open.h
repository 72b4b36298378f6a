/*
Opens the world: the communicator follows from the launcher, the build and the device.
    Comm *launched = comm_open();                    first: afterwards, one rank reports an error for all
    ... flags ...
    Comm *world = comm_open_for(device, launched);   before the first device allocation; -pi fs: comm_open_by_file
    ...
    if (world != launched) { comm_close(world); }
    comm_close(launched);
              one process     mpirun                                    -pi fs, -pn N -pr R -pg G
  CPU         single          MPI                                       an error
  GPU         single          NCCL; MPI in a build without NCCL,        NCCL
                              or if two ranks are on one card
*/
#pragma once
#ifdef HAVE_CUDA
#include "llmc/parallel/nccl_host.h"
#include "llmc/common/device.cuh"
#endif
#include "llmc/common/hash.h"
#include "llmc/parallel/comm.h"
#ifdef HAVE_MPI
#include "llmc/parallel/comm_mpi.h"
#endif
#if defined(HAVE_CUDA) && defined(HAVE_NCCL)
#include "llmc/parallel/comm_nccl.cuh"
#define COMM_HAS_NCCL 1
#endif

enum { COMM_INIT_MPI, COMM_INIT_FILE };  // -pi, in the order of COMM_INITS
#define COMM_INITS "mpi fs"

// Returns the variable with the number of Slurm's tasks. sbatch's script and salloc's shell are one process each and
// not a step, although SLURM_NTASKS is set there for the steps that they start.
static inline const char *slurm_tasks(void) {
    const char *rank = getenv("SLURM_PROCID");
    bool is_shell = getenv("SLURM_JOB_ID") && !getenv("SLURM_STEP_ID") && (!rank || atoi(rank) == 0);
    return is_shell || getenv("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

// Returns the environment variable (NAME=VALUE) of a launcher that started this process as one of several, or NULL.
static inline const char *comm_launcher(void) {
    const struct {
        const char *name, *with;  // another variable that must be set; NULL: none
        int several;              // the value from which on there are several processes
    } variables[] = {
        {"OMPI_COMM_WORLD_SIZE", NULL, 2},  {"PMI_SIZE", NULL, 2},  // mpirun of Open MPI, of MPICH
        {"MV2_COMM_WORLD_SIZE", NULL, 2},   {"PMIX_RANK", NULL, 1},
        {slurm_tasks(), "SLURM_PROCID", 2}, {"WORLD_SIZE", "RANK", 2},  // torchrun
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i].name), *with = variables[i].with;
        bool several = value && atoi(value) >= variables[i].several && (!with || getenv(with));
        if (several) { return value - strlen(variables[i].name) - 1; }
    }
    return NULL;
}

// The world of all ranks that mpirun started, on host memory. Call it before the first possible error.
static inline Comm *comm_open(void) {
    const char *launcher = comm_launcher();  // before MPI sets PMIX_RANK
#ifdef HAVE_MPI
    Comm *launched = mpi_started() ? comm_mpi_open() : comm_single(&cpu_device);
#else
    Comm *launched = comm_single(&cpu_device);
#endif
    launched->launcher = launcher;
    return launched;
}

// the GPU of a rank
typedef struct {
    char uuid[16];  // of the GPU, or of a MIG instance
    uint64_t card;  // hash of the machine and the PCI bus id: the same for all MIG instances of a card
} RankGpu;

// Finds the first two ranks on the same card, where NCCL cannot connect them. Returns false if there are none.
static inline bool comm_same_card(const RankGpu *gpus, int size, int *one, int *other) {
    for (*other = 1; *other < size; ++*other) {
        for (*one = 0; *one < *other; ++*one) {
            if (gpus[*one].card == gpus[*other].card) { return true; }
        }
    }
    return false;
}

// Number of ranks that divide the memory of this rank's GPU. A MIG instance has memory of its own.
static inline int comm_gpu_ranks(const RankGpu *gpus, int size, int rank) {
    int count = 0;
    for (int i = 0; i < size; i++) { count += memcmp(gpus[i].uuid, gpus[rank].uuid, sizeof gpus[i].uuid) == 0; }
    return count;
}

#ifdef HAVE_CUDA
// Selects the GPU of a local rank. A rank that sees a single GPU (CUDA_VISIBLE_DEVICES) takes that one.
static inline RankGpu comm_take_gpu(int local_rank) {
    const char *why;
    char bus_id[PCI_BUS_ID_LENGTH], host[256] = "";
    RankGpu taken;
    struct cudaDeviceProp gpu;
    int gpus = cuda_device_count(&why), device = gpus > 0 ? local_rank % gpus : 0;
    if (gpus == 0) { run_error("local rank %d of this machine sees no GPU (%s)", local_rank, why); }
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaGetDeviceProperties(&gpu, device));
    cuda_pci_bus_id(bus_id);
    memcpy(taken.uuid, gpu.uuid.bytes, sizeof taken.uuid);
    gethostname(host, sizeof host - 1);
    taken.card = hash_bytes(hash_whole_file(0, "/proc/sys/kernel/random/boot_id"), host, strlen(host));
    taken.card = hash_bytes(taken.card, bus_id, strlen(bus_id));
    return taken;
}

// Selects the GPU of each rank, and sets *gpu_ranks to comm_gpu_ranks. Returns true if no two ranks are on one card, so
// that NCCL can connect them.
static inline bool comm_take_gpus(Comm *launched, int *gpu_ranks) {
    int one, other;
    RankGpu *gpus = (RankGpu *)xmalloc((size_t)launched->size * sizeof *gpus);
    gpus[launched->rank] = comm_take_gpu(launched->local_rank);
    comm_all_gather(gpus, &gpus[launched->rank], sizeof *gpus, DT_U8, launched, NULL);
    *gpu_ranks = comm_gpu_ranks(gpus, launched->size, launched->rank);
    bool same = comm_same_card(gpus, launched->size, &one, &other);
    if (same && launched->rank == 0) {
        bool shared = memcmp(gpus[one].uuid, gpus[other].uuid, sizeof gpus[one].uuid) == 0;
        fprintf(stderr,
                "train_gpt2: ranks %d and %d %s, so all ranks communicate through MPI and host memory, not NCCL\n", one,
                other, shared ? "share a GPU" : "have two MIG instances of one GPU");
    }
    free(gpus);
    return !same;
}
#endif

// The world of `size` ranks that were started without MPI (-pi fs), each on a GPU of its own. size, rank, gpus_per_node
// and folder are -pn, -pr, -pg and -pf.
static inline Comm *comm_open_by_file(const Device *device, int size, int rank, int gpus_per_node, const char *folder) {
    if (size == 1) { return comm_single(device); }
    if (device == &cpu_device) {
        input_error("-pi fs connects GPUs, but this run is on CPUs: start the ranks with mpirun");
    }
#ifdef COMM_HAS_NCCL
    const char *why;
    int gpus = cuda_device_count(&why), local_rank = rank % gpus_per_node;
    if (gpus > 1 && local_rank >= gpus) {
        input_error("rank %d has no GPU of its own: -pg %d is the number of ranks per machine, one per GPU, but this "
                    "machine has %d GPUs",
                    rank, gpus_per_node, gpus);
    }
    comm_take_gpu(local_rank);
    char path[PATH_LENGTH];
    ncclUniqueId id;
    nccl_set_launch_order();
    id_file_path(path, folder);
    if (rank == 0) {
        id = nccl_unique_id();
        id_file_write(path, &id, sizeof id);
    } else {
        id_file_wait(path, &id, sizeof id, rank, size);
    }
    return comm_nccl_open(id, rank, size, local_rank, NULL, rank == 0 ? path : NULL);
#else
    (void)rank, (void)gpus_per_node, (void)folder;
    input_error("-pi fs connects GPUs through NCCL, but this program was built without it: install libnccl-dev "
                "and run make again, or start the ranks with mpirun");
#endif
}

// The world of all ranks that mpirun started, on the memory of `device`; for host memory, `launched` itself.
static inline Comm *comm_open_for(const Device *device, Comm *launched) {
    if (launched->size == 1) { return comm_single(device); }
    if (device == &cpu_device) { return launched; }
#if defined(HAVE_MPI) && defined(HAVE_CUDA)
    int gpu_ranks;
    bool distinct = comm_take_gpus(launched, &gpu_ranks);
#ifdef COMM_HAS_NCCL
    if (distinct) {
        ncclUniqueId id;
        memset(&id, 0, sizeof id);
        nccl_set_launch_order();
        if (launched->rank == 0) { id = nccl_unique_id(); }
        comm_broadcast(&id, sizeof id, DT_U8, 0, launched, NULL);
        return comm_nccl_open(id, launched->rank, launched->size, launched->local_rank, launched, NULL);
    }
#endif
    (void)distinct;  // only NCCL needs it
    Comm *world = comm_mpi_for_device(launched, device);
    world->gpu_ranks = gpu_ranks;
    return world;
#else
    return launched;  // without MPI there is one rank, and without a GPU one device
#endif
}

// for --version: "single, MPI (Open MPI v4.1.4), NCCL 2.28.9"
static inline void comm_backends(char *text, size_t room) {
    snprintf(text, room, "single");
#ifdef HAVE_MPI
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int bytes;
    CHECK_MPI(MPI_Get_library_version(version, &bytes));
    snprintf(text + strlen(text), room - strlen(text), ", MPI (%.*s)", (int)strcspn(version, ",\n"), version);
#endif
#ifdef COMM_HAS_NCCL
    int v = nccl_version();
    snprintf(text + strlen(text), room - strlen(text), ", NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
#endif
}
