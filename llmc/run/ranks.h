/*
The ranks of a run: the groups, the check that all ranks have the same input, each rank's cores and output, and the
signals that end a run with a checkpoint.

The signals are SIGINT, SIGTERM, SIGHUP (an ssh connection ends), SIGPIPE (the reader of stdout is gone), SIGXCPU (the
soft limit of CPU time), and SIGUSR1 and SIGUSR2, which mpirun forwards without killing the ranks. A second signal ends
the program at once.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/device.h"
#include "llmc/common/floatx.h"
#include "llmc/common/hash.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/run/backends.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/flags.h"
#include "llmc/run/train_args.h"
#include <inttypes.h>
#include <omp.h>
#include <signal.h>
#include <unistd.h>

// Stops if an item of a rank differs from rank 0's. `advice` ends the error. Deletes the items.
static inline void require_same_items(Comm *world, cJSON *items, const char *advice) {
    const cJSON *item;
    cJSON_ArrayForEach(item, items) {
        char *text = cJSON_PrintUnformatted(item);
        long long mine = (long long)(hash_bytes(0, text, strlen(text)) >> 1);
        long long first = comm_max(world->rank == 0 ? mine : -1, world);
        long long other = comm_max(mine != first ? world->size - world->rank : 0, world);
        if (other > 0) {
            input_error("rank %lld has a different %s from rank 0: %s", world->size - other, item->string, advice);
        }
        cJSON_free(text);
    }
    cJSON_Delete(items);
}

static inline void hash_text(char text[17], uint64_t hash) { snprintf(text, 17, "%016" PRIx64, hash); }

static inline void add_hash(cJSON *json, const char *name, uint64_t hash) {
    char text[17];
    hash_text(text, hash);
    cJSON_AddStringToObject(json, name, text);
}

// Compares builds first, since another build may have other flags. CPU levels count, since they round differently.
static inline void require_same_flags(const TrainArgs *a, const Device *device, Comm *world) {
    cJSON *build = cJSON_CreateObject(), *flags = flags_to_json(flag_table, NUM_FLAGS, a);
    cJSON_AddStringToObject(build, "type of weights", dtype_name(DT_FLOATX));
    cJSON_AddStringToObject(build, "device", device->name);
    cJSON_AddNumberToObject(build, "number of flags", cJSON_GetArraySize(flags));
    cJSON_AddStringToObject(build, "CPU level", CPU_LEVEL);
    require_same_items(
        world, build,
        "start the same program on all ranks, on machines all with a GPU, or all without; TRAIN_GPT2_ARCH "
        "sets the CPU level");
    cJSON_DeleteItemFromObject(flags, "process-rank");
    require_same_items(world, flags,
                       "give all ranks the same flags, on their command lines and in the config.json of -o");
}

#ifdef HAVE_CUDA
// Runs the collectives of training once, so that require_memory and --fit see the memory that is really free: NCCL
// allocates the buffers of an algorithm at its first use, 0.5 to 1.6 GB in a group (NCCL's issues 964 and 864), and
// chooses the algorithm by size. With -tp, the only collective of the whole world is the all-reduce of loss and norm.
static inline void connect_groups(const Groups *groups) {
    const size_t largest = (size_t)64 << 20;
    Comm *world = groups->world, *comms[3] = {groups->dp, groups->tp, world};
    const Device *device = world->device;
    Exec exec = {};
    cuda_exec_open(&exec, NULL, 0);
    float *buffer = static_cast<float *>(device->allocate(largest));
    device->fill(buffer, 0, largest);
    for (size_t bytes = 4 << 10; bytes <= largest; bytes *= 128) {
        for (int i = 0; i < 2; i++) {
            size_t chunk = bytes / sizeof(float) / static_cast<size_t>(comms[i]->size);
            float *own = buffer + static_cast<size_t>(comms[i]->rank) * chunk;
            comm_all_reduce(buffer, bytes / sizeof(float), DT_F32, comms[i], &exec);
            comm_reduce_scatter(own, buffer, chunk, DT_F32, comms[i], &exec);
            comm_broadcast(buffer, bytes / sizeof(float), DT_F32, 0, comms[i], &exec);
            comm_wait(comm_all_gather(buffer, own, chunk, DT_F32, comms[i], &exec), comms[i], &exec);
        }
    }
    comm_wait(comm_all_reduce(buffer, 2, DT_F32, world, &exec), world, &exec);
    device->event_record(0, &exec);
    comm_event_synchronize(0, world, &exec);
    device->release(buffer);
    cuda_exec_close(&exec);
}
#endif

// Splits the world into groups, and connects them on a GPU.
static inline Groups groups_of(const TrainArgs *a, Comm *world) {
    int t = a->tensor_parallel;
    Groups groups = {world, world, NULL};
    if (t > 1) {
        groups.tp = comm_split(world, world->rank / t, world->rank);
        groups.dp = comm_split(world, world->rank % t, world->rank);
    } else {
        groups.tp = comm_single(world->device);
    }
#ifdef HAVE_CUDA
    if (world->size > 1 && world->device != &cpu_device && world->backend->capturable) { connect_groups(&groups); }
#endif
    return groups;
}

// The groups of a run on `device`. launched: from comm_open. Close with close_groups.
static inline Groups open_groups(const TrainArgs *a, const Device *device, Comm *launched) {
    require_same_flags(a, device, launched);
    Comm *world = a->init_method == COMM_INIT_MPI
                      ? comm_open_for(device, launched)
                      : comm_open_by_file(device, num_ranks(a), a->rank, a->gpus_per_node, a->shared_folder);
    if (launched->size == 1) { require_same_flags(a, device, world); }
    return groups_of(a, world);
}

static inline void close_groups(const Groups *groups, const Comm *launched) {
    if (groups->dp != groups->world) { comm_close(groups->dp); }
    comm_close(groups->tp);
    if (groups->world != launched) { comm_close(groups->world); }
}

// Silences all ranks but rank 0, and divides the cores of a machine among its ranks.
static inline void share_machine(const TrainArgs *a, Comm *launched) {
    omp_set_dynamic(0);  // OMP_NUM_THREADS is the number of threads
    if (num_ranks(a) > 1 && a->rank > 0 && !freopen("/dev/null", "w", stdout)) {
        run_error("could not open /dev/null: %s", strerror(errno));
    }
    int ranks_here = (int)comm_max(launched->local_rank, launched) + 1, cores = omp_get_num_procs() / ranks_here;
    if (ranks_here > 1 && !getenv("OMP_NUM_THREADS")) { omp_set_num_threads(cores > 1 ? cores : 1); }
}

// ---- signals

// Globals, as received_signal is: a signal handler has no argument.
static volatile double received_at;  // seconds
static char signal_answer[160];      // printed at the first signal; "": nothing

// Two signals within 0.2 s count as one, since `timeout` signals both the program and its group. SIGXCPU comes again
// after each second of CPU time until the hard limit, and SIGPIPE with each line that has no reader.
static inline void handle_signal(int signal_number) {
    const double one_signal = 0.2;  // seconds
    int error = errno;
    if (!received_signal) {
        received_at = now_seconds();
        received_signal = signal_number;
        ssize_t put = write(STDERR_FILENO, signal_answer, strlen(signal_answer));  // a handler may not call printf
        (void)put;
    } else if (signal_number != SIGXCPU && signal_number != SIGPIPE && now_seconds() - received_at > one_signal) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
    errno = error;
}

// A signal that was ignored when the program started, as under nohup, stays ignored.
static inline void catch_signals(const TrainArgs *a) {
    const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE};
    bool by_mpirun = num_ranks(a) > 1 && a->init_method == COMM_INIT_MPI;  // it kills the ranks a second later
    if (a->rank == 0 && !by_mpirun) {
        snprintf(signal_answer, sizeof signal_answer, "\ntrain_gpt2: stopping after this %s%s\n",
                 num_ranks(a) > 1 ? "update" : "micro-step",
                 a->checkpoint_every > 0 ? ", then saving; Ctrl-C again stops without saving"
                                         : "; without -n nothing is saved now, and Ctrl-C again stops at once");
    }
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action, before;
        memset(&action, 0, sizeof action);
        action.sa_handler = handle_signal;
        action.sa_flags = SA_RESTART | SA_NODEFER;
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) { continue; }
        sigaction(signals[i], &action, NULL);
    }
}
