/*
The self-check: every operation on this machine's device against its reference implementation (reference_*), on the
shapes and with the tolerances of cases.h.
  --self-check       prints a line for each operation: its kernel, and its error as a share of the tolerance
  start of a run     A GPU, driver or program that the self-check has not seen is checked first.
`--self-check` and the check at the start remember a pass in $TRAIN_GPT2_SELF_CHECK, else in
~/.cache/train_gpt2/self_check.txt. With an empty variable a run starts without the check.
An operation that fails is checked again with plainer kernels (FallbackKernels of common/device.h), which the run then
uses. Without plainer kernels, or if these fail too, the run ends before training.
The check runs in a child process on the same device: this program, started by posix_spawn, since CUDA and MPI are not
valid in a copy of this process. If the child reports an error, crashes or is silent for long, a new child repeats the
operation. A second such end is a failure of the operation: the first may come from elsewhere, as from a user who stops
the program for a while.
*/
#pragma once
#include "llmc/common/cache_file.h"
#include "llmc/common/check.h"
#include "llmc/common/device.h"
#include "llmc/common/hash.h"
#include "llmc/cpu_ops.h"
#include "llmc/memory/backend.h"
#include "llmc/parallel/comm.h"
#include "llmc/self_check/cases.h"
#include "llmc/shapes/params.h"
#include "llmc/shapes/slices.h"
#include <fcntl.h>
#include <inttypes.h>
#include <omp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

// An emulated GPU defines its own: it is slow, and no driver stands behind it.
#ifndef SELF_CHECK_SECONDS
#define SELF_CHECK_SECONDS 60  // longest silence of a child
#define DRIVER_VERSION_FILE "/proc/driver/nvidia/version"
#define SELF_CHECK_LARGEST (2 << 20)  // bytes of a shape's arrays; larger shapes are left out
#endif

// ---- plainer kernels

enum { FALLBACK_LEVELS = 3 };

// operations with plainer kernels on a GPU, in the order of FallbackKernels: a prefix of the operations' names, and the
// names of the kernels by level
#ifdef PRECISION_BF16
#define TENSOR_CORES "tensor cores",
#else
#define TENSOR_CORES  // which take bf16
#endif
static const struct {
    const char *operations;
    const char *kernels[FALLBACK_LEVELS];
} replaceable_kernels[NUM_FALLBACKS] = {
    {"attention_forward", {TENSOR_CORES "CUDA cores"}},
    {"attention_backward", {TENSOR_CORES "CUDA cores"}},
    {"matmul", {"cuBLASLt", "cuBLASLt, unfused", "plain GEMM"}},
};

// the operation's index in FallbackKernels; -1 if there is only one kernel
static inline int fallback_of(const char *operation) {
    for (int i = 0; i < NUM_FALLBACKS; i++) {
        const char *prefix = replaceable_kernels[i].operations;
        if (strncmp(prefix, operation, strlen(prefix)) == 0) { return i; }
    }
    return -1;
}

// the name of a kernel at a level; NULL after the last level. which: fallback_of its operation
static inline const char *kernel_at_level(int which, int level, bool gpu) {
    if (!gpu || which < 0) { return level > 0 ? NULL : gpu ? "CUDA cores" : "C"; }
    return level < FALLBACK_LEVELS ? replaceable_kernels[which].kernels[level] : NULL;
}

// ---- one operation

enum { SELF_CHECK_PARTIALS = 64 << 20 };  // bytes of scratch

// Opens a backend for single operations. Returns their scratch on the device, for check_close.
static inline void *check_open(Exec *ex, const Backend *backend, FallbackKernels fallback) {
    static const GPT2Config small = {64, 256, 256, 1, 1, 64};
    LocalShape local = local_shape(&small, 1, 0);
    size_t workspace_bytes = backend->matmul_workspace_bytes(&small, &local, 1, 1);
    char *partials = (char *)backend->device->allocate(SELF_CHECK_PARTIALS + workspace_bytes);
    memset(ex, 0, sizeof *ex);
    ex->fallback = fallback;
    ex->skip_autotune = true;  // the autotuner compares what it chooses; here the library's first choice is checked
    backend->open(ex, partials, SELF_CHECK_PARTIALS, partials + SELF_CHECK_PARTIALS, workspace_bytes, false);
    return partials;
}

static inline void check_close(Exec *ex, const Backend *backend, void *scratch) {
    backend->close(ex);
    backend->device->release(scratch);
}

// the same problem with `data` on the device, filled with the values before a run
static inline Problem problem_on_device(const Problem *p, const Device *device) {
    Problem copy = *p;
    for (int i = 0; i < p->num_arrays; i++) {
        copy.array[i].data = device->allocate(array_bytes(&p->array[i]));
        device->upload(copy.array[i].data, p->array[i].start, array_bytes(&p->array[i]));
    }
    return copy;
}

// The largest error of an output as a share of its tolerance; infinite if an output has a NaN or an input was written.
// p has the wanted values, on_device the device's. Frees the arrays of on_device.
static inline double share_of_tolerance(const Problem *p, Problem *on_device, const Device *device) {
    double largest = 0;
    for (int i = 0; i < p->num_arrays; i++) {
        const Array *a = &p->array[i];
        Array got = *a;
        got.data = xmalloc(array_bytes(a));
        device->download(got.data, on_device->array[i].data, array_bytes(a));
        device->release(on_device->array[i].data);
        if (a->role == INPUT) {
            if (memcmp(got.data, a->start, array_bytes(a)) != 0) { largest = INFINITY; }
        } else {
            double *wanted = array_doubles(a, a->data), share = array_share(p, &got, wanted, kernel_slack(p, a));
            largest = fmax(largest, isnan(share) ? INFINITY : share);  // fmax alone drops a NaN
            free(wanted);
        }
        free(got.data);
    }
    return largest;
}

// The largest share of the tolerance over all shapes with at most SELF_CHECK_LARGEST bytes, and all variants. Above 1
// the operation is wrong.
static inline double check_operation(const OpCase *op, const Backend *backend, Exec *ex) {
    double largest = 0;
    for (int i = 0; op_shape(op, i); i++) {
        for (int v = 0; v < op->num_variants && largest <= 1; v++) {
            if (problem_memory(op, op_shape(op, i), op->variants[v]) > SELF_CHECK_LARGEST) { continue; }
            Problem p = problem_make(op, op_shape(op, i), op->variants[v]);
            Problem on_device = problem_on_device(&p, backend->device);
            problem_run(&p, &reference_ops, NULL);
            problem_run(&on_device, backend->ops, ex);
            largest = fmax(largest, share_of_tolerance(&p, &on_device, backend->device));
            problem_free(&p);
        }
    }
    return largest;
}

// ---- all operations

enum { CHECK_TEXT = 512 };

typedef enum { UNCHECKED, RIGHT, FAILED } CheckState;  // FAILED: the operation has no right kernel

typedef struct {
    FallbackKernels fallback;  // levels at which every operation is right, unless it has FAILED
    struct {
        CheckState state;
        double share;  // error as a share of the tolerance
        int ends;      // children that ended, or were ended, while they checked this kernel
        // how the last wrong kernel failed, such as "is off by 3 times the tolerance"; empty if no kernel was wrong
        char failure[CHECK_TEXT];
    } operations[NUM_OP_CASES];
    bool begun;                    // a child has started to check an operation
    char not_started[CHECK_TEXT];  // why a child ended before its first operation; empty if none did
} SelfCheck;

// the first operation in this state; -1 if there is none
static inline int find_checked(const SelfCheck *result, CheckState state) {
    for (int i = 0; i < NUM_OP_CASES; i++) {
        if (result->operations[i].state == state) { return i; }
    }
    return -1;
}

// The operation's kernel has failed. If there is a plainer one, all operations of its level are checked with theirs.
static inline void replace_kernel(SelfCheck *result, int failed, bool gpu) {
    int which = fallback_of(op_cases[failed].name);
    if (which < 0 || !kernel_at_level(which, result->fallback.level[which] + 1, gpu)) {
        result->operations[failed].state = FAILED;
        return;
    }
    result->fallback.level[which]++;
    for (int i = 0; i < NUM_OP_CASES; i++) {
        if (fallback_of(op_cases[i].name) != which) { continue; }
        result->operations[i].state = UNCHECKED;
        result->operations[i].ends = 0;
    }
}

// ---- levels as text, " 0 0 1": in a child's arguments and in the cache

enum { LEVELS_TEXT = 16 * NUM_FALLBACKS };

static inline void print_levels(char *text, FallbackKernels fallback) {
    const int *level = fallback.level;
    snprintf(text, LEVELS_TEXT, " %d %d %d", level[0], level[1], level[2]);
}

// False if the text has other numbers than levels.
static inline bool read_levels(const char *text, FallbackKernels *fallback) {
    int *level = fallback->level, end = 0;
    bool read = sscanf(text, " %1d %1d %1d%n", &level[0], &level[1], &level[2], &end) == NUM_FALLBACKS && !text[end];
    for (int i = 0; i < NUM_FALLBACKS && read; i++) { read = level[i] >= 0 && level[i] < FALLBACK_LEVELS; }
    return read;
}

// ---- the child
// Its arguments: CHILD_FLAG, the GPU's number (-1: the CPU backend), threads, levels, a character for each operation: 1
// if the child checks it. Its lines: "checks NAME" before an operation, "share X" after it.

#define CHILD_FLAG "--self-check-child"
enum { CHILD_ARGUMENTS = 6 };

static inline bool self_check_is_child(int argc, char **argv) {
    return argc == CHILD_ARGUMENTS && strcmp(argv[1], CHILD_FLAG) == 0;
}

// A child's main. It ends after an operation that is wrong. It opens no communicator, and adds nothing to the autotune
// cache. gpu: NULL in a build without CUDA.
static inline int self_check_child(char **argv, const Backend *cpu, const Backend *gpu) {
    const Backend *backend = atoi(argv[2]) < 0 ? cpu : gpu;
    FallbackKernels fallback;
    if (!backend || !read_levels(argv[4], &fallback) || strlen(argv[5]) != NUM_OP_CASES) { return EXIT_BAD_INPUT; }
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // the child ends with its parent
    signal(SIGPIPE, SIG_DFL);          // and at its first line if the parent has already ended
    prctl(PR_SET_NAME, "train_gpt2");  // else ps shows "exe"
    omp_set_num_threads(atoi(argv[3]));
    setlinebuf(stdout);  // a pipe: the parent reads each line as it comes
#ifdef HAVE_CUDA
    if (backend == gpu) { CUDA_CHECK(cudaSetDevice(atoi(argv[2]))); }
#endif
    Exec ex;
    void *scratch = check_open(&ex, backend, fallback);
    double share = 0;
    for (int i = 0; i < NUM_OP_CASES && share <= 1; i++) {
        if (argv[5][i] != '1') { continue; }
        printf("checks %s\n", op_cases[i].name);
        share = check_operation(&op_cases[i], backend, &ex);
        printf("share %.9g\n", share);
    }
    check_close(&ex, backend, scratch);
    return 0;
}

// ---- its parent

// Starts this program with other arguments. Returns a file descriptor of its stdout and stderr; -1 and errno if it does
// not start.
static inline int start_child(pid_t *child, char *const *argv) {
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0) { return -1; }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    int error = posix_spawn(child, "/proc/self/exe", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (!error) { return ends[0]; }
    close(ends[0]);
    errno = error;
    return -1;
}

// line (CHECK_TEXT) = the next line of a child. False at its end, and after SELF_CHECK_SECONDS of silence, also within
// a line. A silent child gets SIGKILL: a kernel may hang in the driver, where the child takes no other signal.
static inline bool child_line(pid_t child, int lines, char *line, bool *silent) {
    struct pollfd ready = {lines, POLLIN, 0};
    size_t length = 0;
    char c = 0;
    *silent = false;
    while (c != '\n') {
        int found = poll(&ready, 1, 1000 * SELF_CHECK_SECONDS);
        if (found < 0 && errno == EINTR) { continue; }
        *silent = found == 0;
        if (*silent) { kill(child, SIGKILL); }
        if (*silent || read(lines, &c, 1) != 1) { break; }
        if (c != '\n' && length + 1 < CHECK_TEXT) { line[length++] = c; }
    }
    line[length] = 0;
    return c == '\n' || (length > 0 && !*silent);
}

// start_child for a check of the operations that are UNCHECKED
static inline int start_check(pid_t *child, const SelfCheck *result, const Backend *backend) {
    char gpu[16] = "-1", threads[16], levels[LEVELS_TEXT], checked[NUM_OP_CASES + 1] = "";
#ifdef HAVE_CUDA
    if (is_gpu(backend)) { snprintf(gpu, sizeof gpu, "%d", cuda_current_device()); }
#endif
    (void)backend;
    snprintf(threads, sizeof threads, "%d", omp_get_max_threads());
    print_levels(levels, result->fallback);
    for (int i = 0; i < NUM_OP_CASES; i++) { checked[i] = result->operations[i].state == UNCHECKED ? '1' : '0'; }
    char *argv[CHILD_ARGUMENTS + 1] = {(char *)"train_gpt2", (char *)CHILD_FLAG, gpu, threads, levels, checked, NULL};
    return start_child(child, argv);
}

// Waits for a child, and describes in why (CHECK_TEXT) how it exited, with its last line. Gives up on a child that is
// stuck in the driver after ten seconds.
static inline void wait_for_child(pid_t child, bool silent, const char *last, char *why) {
    int status = 0;
    for (int i = 0; i < 1000 && waitpid(child, &status, WNOHANG) == 0; i++) { usleep(10000); }
    if (silent) {
        snprintf(why, CHECK_TEXT, "no answer for %d s", SELF_CHECK_SECONDS);
    } else if (WIFSIGNALED(status)) {
        snprintf(why, CHECK_TEXT, "%s%s%.400s", strsignal(WTERMSIG(status)), *last ? ": " : "", last);
    } else if (*last) {
        snprintf(why, CHECK_TEXT, "%s", last);
    } else {
        snprintf(why, CHECK_TEXT, "exit status %d", WEXITSTATUS(status));
    }
}

// the operation has this share of its tolerance
static inline void take_share(SelfCheck *result, int i, double share, bool gpu) {
    char *failure = result->operations[i].failure;
    result->operations[i].share = share;
    result->operations[i].state = RIGHT;
    if (share <= 1) { return; }
    if (isinf(share)) {
        snprintf(failure, CHECK_TEXT, "gives NaN, leaves an output unwritten, or writes an input");
    } else {
        snprintf(failure, CHECK_TEXT, "is off by %.3g times the tolerance", share);
    }
    replace_kernel(result, i, gpu);
}

// Checks the operations that are UNCHECKED in one child, until one fails.
static inline void check_in_child(SelfCheck *result, const Backend *backend) {
    bool gpu = is_gpu(backend), started = false, silent;
    char line[CHECK_TEXT], name[64], last[CHECK_TEXT] = "", why[CHECK_TEXT] = "";
    int current = -1;  // the operation under check
    double share;
    pid_t child;
    int lines = start_check(&child, result, backend);
    if (lines < 0) {
        snprintf(result->not_started, CHECK_TEXT, "%s", strerror(errno));
        return;
    }
    while (child_line(child, lines, line, &silent)) {
        if (sscanf(line, "checks %63s", name) == 1) {
            current = (int)(op_case(name) - op_cases);
            started = true;
            last[0] = 0;
        } else if (current >= 0 && sscanf(line, "share %lf", &share) == 1) {
            take_share(result, current, share, gpu);
            current = -1;
        } else if (*line) {
            snprintf(last, sizeof last, "%s", line + (strncmp(line, "train_gpt2: ", 12) == 0 ? 12 : 0));
        }
    }
    close(lines);
    wait_for_child(child, silent, last, why);
    if (current >= 0 && ++result->operations[current].ends == 2) {
        snprintf(result->operations[current].failure, CHECK_TEXT, "failed: %.480s", why);
        replace_kernel(result, current, gpu);
    }
    if (!started) { snprintf(result->not_started, CHECK_TEXT, "%s", why); }
    result->begun = result->begun || started;
}

// Checks the operations, and the kernels that replace those that fail. If `all`, goes on after one has no right kernel.
static inline SelfCheck self_check(const Backend *backend, bool all) {
    SelfCheck result;
    memset(&result, 0, sizeof result);
    while (!*result.not_started && find_checked(&result, UNCHECKED) >= 0) {
        if (!all && find_checked(&result, FAILED) >= 0) { break; }
        check_in_child(&result, backend);
    }
    return result;
}

// ---- the remembered pass

enum { CHECKED_MACHINE = 1024 };  // bytes

// this device, its driver and this program, as one line without tabs
static inline void checked_machine(char *text, size_t room, const Backend *backend) {
    backend->describe(text, room);
    size_t used = strlen(text);
#ifdef HAVE_CUDA
    if (is_gpu(backend)) {
        struct cudaDeviceProp gpu;
        CUDA_CHECK(cudaGetDeviceProperties(&gpu, cuda_current_device()));
        used += (size_t)snprintf(text + used, room - used, ", GPU %016" PRIx64 ", driver %016" PRIx64,
                                 hash_bytes(0, gpu.uuid.bytes, sizeof gpu.uuid.bytes),
                                 hash_whole_file(0, DRIVER_VERSION_FILE));
    }
#endif
    snprintf(text + used, room - used, ", program %016" PRIx64, hash_whole_file(0, "/proc/self/exe"));
}

// Reads the machine's entry, the levels of FallbackKernels or "failed". False if there is none, or if it says "failed".
static inline bool self_check_recall(const char *path, const char *machine, FallbackKernels *fallback) {
    char levels[LEVELS_TEXT];
    return cache_find(path, machine, levels, sizeof levels) && read_levels(levels, fallback);
}

// Adds the machine's entry. problem = "", or the sentence if the file cannot be written.
static inline void self_check_remember(const char *path, const char *machine, const SelfCheck *result, char *problem,
                                       size_t room) {
    char levels[LEVELS_TEXT];
    print_levels(levels, result->fallback);
    problem[0] = 0;
    int error = cache_add(path, machine, find_checked(result, FAILED) < 0 ? levels : "failed");
    if (error) {
        snprintf(problem, room,
                 "could not write %s: %s; the self-check runs at every start (TRAIN_GPT2_SELF_CHECK names another "
                 "file)",
                 *path ? path : "self_check.txt", *path ? strerror(error) : "there is no cache in HOME");
    }
}

// ---- --self-check, and the check at the start of a run

// a note to the user for each slower kernel of the GPU
static inline void print_slower_kernels(FILE *out, FallbackKernels fallback) {
    for (int i = 0; i < NUM_FALLBACKS; i++) {
        const char *kernel = kernel_at_level(i, fallback.level[i], true);
        if (fallback.level[i] == 0 || !kernel) { continue; }
        fprintf(out,
                "note      %s uses a slower kernel (%s): the fast one fails the self-check on this GPU; --self-check "
                "checks again\n",
                replaceable_kernels[i].operations, kernel);
    }
}

// a line of the report, and another one for a slower kernel
static inline void print_operation(int i, const SelfCheck *result, bool gpu) {
    const char *name = op_cases[i].name, *failure = result->operations[i].failure;
    int which = fallback_of(name), level = which < 0 ? 0 : result->fallback.level[which];
    if (result->operations[i].state == FAILED) {
        printf("%-28s %s, and has no other kernel\n", name, failure);
        return;
    }
    printf("%-28s %-18s %5.2f\n", name, kernel_at_level(which, level, gpu), result->operations[i].share);
    if (*failure) { printf("%-28s a faster kernel %s\n", "", failure); }
}

// ends the program: not all operations could be checked
static inline void self_check_stopped(const SelfCheck *result) {
    run_error("the self-check %s: %s; TRAIN_GPT2_SELF_CHECK= trains without it",
              result->begun ? "broke off" : "did not start", result->not_started);
}

// --self-check: prints a line for each operation. Ends the program with an error if one has no right kernel.
static inline void self_check_print(const Backend *backend) {
    char machine[CHECKED_MACHINE], buffer[PATH_LENGTH], problem[3 * PATH_LENGTH] = "";
    const char *path = is_gpu(backend) ? cache_path(buffer, "TRAIN_GPT2_SELF_CHECK", "self_check.txt") : NULL;
    checked_machine(machine, sizeof machine, backend);
    printf("self-check of %s\n", machine);
    fflush(stdout);
    SelfCheck result = self_check(backend, true);
    if (*result.not_started) { self_check_stopped(&result); }
    printf("\n%-28s %-18s %5s\n", "operation", "kernel", "error");
    int failed = 0;
    for (int i = 0; i < NUM_OP_CASES; i++) {
        print_operation(i, &result, is_gpu(backend));
        failed += result.operations[i].state == FAILED;
    }
    printf("\nerror: the largest difference from the reference implementation, as a share of the tolerance\n");
    if (is_gpu(backend)) { print_slower_kernels(stdout, result.fallback); }
    if (path) { self_check_remember(path, machine, &result, problem, sizeof problem); }
    if (*problem) { fprintf(stderr, "train_gpt2: %s\n", problem); }
    if (failed == 0) { printf("%d operations agree with the reference\n", NUM_OP_CASES); }
    if (failed > 0) {
        run_error("%d of %d operations have no right kernel on this device: train on another one", failed,
                  NUM_OP_CASES);
    }
}

// Returns this rank's levels, which are remembered or checked now. problem = "", or a sentence for the user.
static inline FallbackKernels self_check_of_rank(const Backend *backend, const char *path, FILE *out, char *problem,
                                                 size_t room) {
    char machine[CHECKED_MACHINE];
    FallbackKernels fallback = {{0}};
    checked_machine(machine, sizeof machine, backend);
    if (self_check_recall(path, machine, &fallback)) { return fallback; }
    fprintf(out, "checking every operation on this GPU, once for each GPU, driver and program ...\n");
    fflush(out);
    SelfCheck result = self_check(backend, false);
    int failed = find_checked(&result, FAILED);
    if (failed >= 0) {
        run_error("%s %s, and there is no other kernel (%s); --self-check shows all operations, and "
                  "TRAIN_GPT2_SELF_CHECK= trains without the check",
                  op_cases[failed].name, result.operations[failed].failure, machine);
    }
    for (int i = 0; i < NUM_OP_CASES; i++) {
        const char *failure = result.operations[i].failure;
        if (*failure) { fprintf(out, "the fast kernel of %s %s\n", op_cases[i].name, failure); }
    }
    // after a failure that leaves the GPU unusable no child starts
    if (result.begun && *result.not_started) { self_check_stopped(&result); }
    if (*result.not_started) {
        snprintf(problem, room, "the self-check did not start: %s; the run goes on without it", result.not_started);
    } else {
        self_check_remember(path, machine, &result, problem, room);
    }
    return result.fallback;
}

// Returns the kernels for a run. Every rank uses the highest level of all ranks. A CPU is not checked. `out` gets the
// notes. Ranks above 0 have no stdout, so the lowest rank with a problem prints it on stderr.
static inline FallbackKernels self_check_at_start(const Backend *backend, Comm *world, FILE *out) {
    char buffer[PATH_LENGTH], problem[3 * PATH_LENGTH] = "";
    FallbackKernels fallback = {{0}};
    if (!is_gpu(backend)) { return fallback; }
    const char *path = cache_path(buffer, "TRAIN_GPT2_SELF_CHECK", "self_check.txt");
    if (path) { fallback = self_check_of_rank(backend, path, out, problem, sizeof problem); }
    for (int i = 0; i < NUM_FALLBACKS; i++) { fallback.level[i] = (int)comm_max(fallback.level[i], world); }
    int place = world->size - world->rank;
    if (comm_max(*problem ? place : 0, world) == place) { fprintf(stderr, "train_gpt2: %s\n", problem); }
    if (world->rank == 0) { print_slower_kernels(out, fallback); }
    return fallback;
}
