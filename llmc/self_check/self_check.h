/*
The self-check: every operation on this machine's device against its reference implementation, on the shapes and with
the tolerances of cases.h.
  --self-check       prints a line for each operation: kernel, error as a share of the tolerance, time, rate
  start of a run     A GPU, driver or program that the self-check has not seen is checked first.
`--self-check` and the check at the start remember a pass in $TRAIN_GPT2_SELF_CHECK, else in
~/.cache/train_gpt2/self_check.txt. With an empty variable a run starts without the check.
An operation that fails is checked again with plainer kernels (PlainKernels of common/device.h), which the run then
uses. Without plainer kernels, or if these fail too, the run ends before training.
On a CPU the reference runs on one thread with our own matmul, so the check covers oneDNN and the division of work among
threads.
defines: SelfCheck, self_check, self_check_print, self_check_at_start
*/
#pragma once
#include "llmc/common/hash.h"
#include "llmc/run/backends.h"
#include "llmc/self_check/cases.h"

// ---- plainer kernels

enum { PLAIN_LEVELS = 3 };

// operations with plainer kernels: a prefix of the operations' names, their index in PlainKernels, and the names of the
// kernels by level; NULL after the last
typedef struct {
    const char *operations;
    int plain;
    const char *on_gpu[PLAIN_LEVELS], *on_cpu[PLAIN_LEVELS];
} ReplaceableKernel;

// tensor cores take bf16
static const ReplaceableKernel replaceable_kernels[] = {
    {"matmul",
     PLAIN_MATMUL,
     {"cuBLASLt", "cuBLASLt, first choice, unfused", "plain GEMM"},
     {"oneDNN or portable", "portable", NULL}},
#ifdef PRECISION_BF16
    {"attention_forward", PLAIN_ATTENTION_FORWARD, {"tensor cores", "CUDA cores", NULL}, {"C"}},
    {"attention_backward", PLAIN_ATTENTION_BACKWARD, {"tensor cores", "CUDA cores", NULL}, {"C"}},
#endif
};
enum { NUM_REPLACEABLE = sizeof replaceable_kernels / sizeof replaceable_kernels[0] };

static inline const ReplaceableKernel *find_replaceable(const char *operation) {
    for (int i = 0; i < NUM_REPLACEABLE; i++) {
        const ReplaceableKernel *r = &replaceable_kernels[i];
        if (strncmp(r->operations, operation, strlen(r->operations)) == 0) { return r; }
    }
    return NULL;
}

// the name of the operation's kernel at a level; NULL after the last level
static inline const char *kernel_at_level(const char *operation, int level, bool gpu) {
    const ReplaceableKernel *r = find_replaceable(operation);
    if (!r) { return level > 0 ? NULL : gpu ? "CUDA" : "C"; }
    return level >= PLAIN_LEVELS ? NULL : gpu ? r->on_gpu[level] : r->on_cpu[level];
}

// ---- one operation

enum { SELF_CHECK_PARTIALS = 64 << 20, SELF_CHECK_LARGEST = 2 << 20 };  // bytes: scratch; arrays of a shape

// a backend opened for single operations
typedef struct {
    const Backend *backend;
    Exec exec;
    void *partials, *workspace;
} CheckedDevice;

static inline CheckedDevice checked_device_open(const Backend *backend, PlainKernels plain) {
    static const GPT2Config small = {64, 256, 256, 1, 1, 64};
    CheckedDevice d;
    memset(&d, 0, sizeof d);
    d.backend = backend;
    LocalShape local = local_shape(&small, 1, 0);
    size_t workspace_bytes = backend->matmul_workspace_bytes(&small, &local, 1, 1);
    d.partials = backend->device->allocate(SELF_CHECK_PARTIALS);
    d.workspace = backend->device->allocate(workspace_bytes);
    d.exec.plain = plain;
    backend->open(&d.exec, d.partials, SELF_CHECK_PARTIALS, d.workspace, workspace_bytes, false);
    d.exec.rare_shapes = true;  // the autotuner compares what it chooses; here the library's first choice is checked
    return d;
}

static inline void checked_device_close(CheckedDevice *d) {
    d->backend->close(&d->exec);
    d->backend->device->release(d->partials);
    d->backend->device->release(d->workspace);
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

// The largest error of an output as a share of its tolerance; infinite if an output has a NaN or an input was written. p
// has the wanted values, on_device the device's. Frees the arrays of on_device.
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

// runs the reference implementation, on one thread and with our own matmul
static inline void run_reference(Problem *p) {
    Exec reference;
    memset(&reference, 0, sizeof reference);
    reference.plain.level[PLAIN_MATMUL] = MATMUL_PLAIN;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    problem_run(p, &cpu_ops, &reference);
    omp_set_num_threads(threads);
    onednn_free(&reference);
}

// The largest share of the tolerance over all shapes with at most SELF_CHECK_LARGEST bytes, and all variants. Above 1
// the operation is wrong.
static inline double check_operation(const OpCase *op, CheckedDevice *d) {
    double largest = 0;
    for (int i = 0; op_shape(op, i); i++) {
        for (int variant = 0; variant < op->variants && largest <= 1; variant++) {
            Problem sizes = problem_describe(op, op_shape(op, i), variant);
            size_t bytes = 0;
            for (int k = 0; k < sizes.num_arrays; k++) { bytes += array_bytes(&sizes.array[k]); }
            if (bytes > SELF_CHECK_LARGEST) { continue; }
            Problem p = problem_make(op, op_shape(op, i), variant);
            Problem on_device = problem_on_device(&p, d->backend->device);
            run_reference(&p);
            problem_run(&on_device, d->backend->ops, &d->exec);
            largest = fmax(largest, share_of_tolerance(&p, &on_device, d->backend->device));
            problem_free(&p);
        }
    }
    return largest;
}

// ---- all operations

typedef struct {
    PlainKernels plain;             // levels at which every operation is right
    double share[NUM_OP_CASES];     // error as a share of the tolerance, at these levels
    double replaced[NUM_OP_CASES];  // the same of the latest kernel that failed; 0: none failed
    const OpCase *failed;           // an operation without a right kernel; NULL: none
} SelfCheck;

// params_changed only writes -f 2's bf16 copy, which these Execs lack
static inline bool self_check_covers(const OpCase *op) { return strcmp(op->name, "params_changed") != 0; }

// Checks all operations. After a replacement all are checked again, since operations share levels.
static inline SelfCheck self_check(const Backend *backend) {
    SelfCheck result;
    memset(&result, 0, sizeof result);
    CheckedDevice d = checked_device_open(backend, result.plain);
    for (int i = 0; i < NUM_OP_CASES; i++) {
        const OpCase *op = &op_cases[i];
        const ReplaceableKernel *r = find_replaceable(op->name);
        if (!self_check_covers(op)) { continue; }
        result.share[i] = check_operation(op, &d);
        if (result.share[i] <= 1) { continue; }
        result.replaced[i] = result.share[i];
        int next = r ? result.plain.level[r->plain] + 1 : 1;
        if (!kernel_at_level(op->name, next, backend != &cpu_backend)) {
            result.failed = op;
            break;
        }
        result.plain.level[r->plain] = next;
        checked_device_close(&d);
        d = checked_device_open(backend, result.plain);
        i = -1;
    }
    checked_device_close(&d);
    return result;
}

static inline const char *kernel_of(const OpCase *op, PlainKernels plain, const Backend *backend) {
    const ReplaceableKernel *r = find_replaceable(op->name);
    return kernel_at_level(op->name, r ? plain.level[r->plain] : 0, backend != &cpu_backend);
}

// ---- rates, for --self-check

#ifdef SIMT
enum { RATE_RUNS = 1, RATE_SIDE = 64 };
#else
enum { RATE_RUNS = 10, RATE_SIDE = 1024 };  // a square matmul of a CPU
#endif

// seconds of a run: the shortest of RATE_RUNS after the first
static inline double seconds_of_run(Problem *p, CheckedDevice *d) {
    const Device *device = d->backend->device;
    double best = INFINITY;
    for (int i = 0; i <= RATE_RUNS; i++) {
        device->event_record(0, &d->exec);
        device->event_synchronize(0, &d->exec);
        double begin = now_seconds();
        problem_run(p, d->backend->ops, &d->exec);
        device->event_record(0, &d->exec);
        device->event_synchronize(0, &d->exec);
        if (i > 0) { best = fmin(best, now_seconds() - begin); }
    }
    return best;
}

// GPT-2 124M's shape: on a GPU 16 sequences of 1024 tokens, more than caches hold; on a CPU 4 of 64. The logits have a
// quarter of the rows, flat arrays at most 32 M elements.
static inline OpShape shape_for_rates(const OpCase *op, bool gpu) {
#ifdef SIMT  // times of the emulator mean nothing
    return *op_shape(op, 0);
#endif
    OpShape s = op_shape_gpt2(op, gpu ? 16 : 4, gpu ? 1024 : 64);
    if (s.V > 0 && s.C == 0) { s.T /= 4; }
    if (s.n > (32 << 20)) { s.n = 32 << 20; }
    return s;
}

// seconds of the operation at a shape; *bytes and *flops of a run
static inline double time_operation(const OpCase *op, const OpShape *s, CheckedDevice *d, double *bytes,
                                    double *flops) {
    Problem p = problem_make(op, s, 0), on_device = problem_on_device(&p, d->backend->device);
    *bytes = problem_bytes(&p);
    *flops = p.flops;
    double seconds = seconds_of_run(&on_device, d);
    for (int i = 0; i < p.num_arrays; i++) { d->backend->device->release(on_device.array[i].data); }
    problem_free(&p);
    return seconds;
}

// seconds of copying `bytes` on the device: the shortest of RATE_RUNS
static inline double seconds_of_copy(CheckedDevice *d, size_t bytes) {
    const Device *device = d->backend->device;
    char *memory = (char *)device->allocate(2 * bytes);
    double best = INFINITY;
    for (int i = 0; i < RATE_RUNS; i++) {
        double begin = now_seconds();
        device->enqueue_copy(memory + bytes, memory, bytes, &d->exec);
        device->event_record(0, &d->exec);
        device->event_synchronize(0, &d->exec);
        best = fmin(best, now_seconds() - begin);
    }
    device->release(memory);
    return best;
}

// the rates of a large copy, in bytes read and written per second, and of a large square matmul, in FLOPs per second
typedef struct {
    double bytes, flops;
} DeviceRates;

static inline DeviceRates device_rates(CheckedDevice *d) {
    bool gpu = d->backend != &cpu_backend;
#ifdef SIMT
    gpu = false;
#endif
    size_t copied = gpu ? (size_t)512 << 20 : (size_t)64 << 20;
    OpShape square = op_case("matmul_forward")->shapes->gpt2;
    square.B = 1;
    square.T = square.C = square.OC = gpu ? 8192 : RATE_SIDE;
    double bytes, flops, seconds = time_operation(op_case("matmul_forward"), &square, d, &bytes, &flops);
    DeviceRates rates = {2 * (double)copied / seconds_of_copy(d, copied), flops / seconds};
    return rates;
}

static inline void print_operation(const OpCase *op, const SelfCheck *result, CheckedDevice *d,
                                   const DeviceRates *rates) {
    int i = (int)(op - op_cases);
    OpShape shape = shape_for_rates(op, d->backend != &cpu_backend);
    double bytes, flops, seconds = time_operation(op, &shape, d, &bytes, &flops);
    bool by_flops = flops / rates->flops > bytes / rates->bytes;
    double share = by_flops ? flops / rates->flops / seconds : bytes / rates->bytes / seconds;
    printf("%-28s %-32s %5.2f %9.3f %8.0f %-7s %4.0f %%\n", op->name, kernel_of(op, result->plain, d->backend),
           result->share[i], 1e3 * seconds, (by_flops ? flops : bytes) / seconds / 1e9, by_flops ? "GFLOP/s" : "GB/s",
           100 * share);
    if (result->replaced[i] != 0) {
        printf("%-28s a faster kernel is off by %.3g times the tolerance\n", "", result->replaced[i]);
    }
    fflush(stdout);
}

// ---- the remembered pass

enum { CHECKED_MACHINE = 512 };  // bytes

// This device, its driver and this program, as one line without tabs.
static inline void checked_machine(char *text, size_t room, const Backend *backend) {
    char driver[256] = "", program[17];
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file && !fgets(driver, sizeof driver, file)) { driver[0] = 0; }
    if (file) { fclose(file); }
    backend->describe(text, room);
    size_t used = strlen(text);
    uint64_t hash = hash_whole_file(hash_bytes(0, driver, strlen(driver)), "/proc/self/exe");
    snprintf(program, sizeof program, "%016" PRIx64, hash);
    snprintf(text + used, room - used, ", driver and program %s", program);
}

// $TRAIN_GPT2_SELF_CHECK, else ~/.cache/train_gpt2/self_check.txt; NULL: no check at the start
static inline const char *self_check_path(char *path) {
    const char *given = getenv("TRAIN_GPT2_SELF_CHECK");
    if (given) { return *given ? given : NULL; }
    return user_cache_path(path, "self_check.txt") ? path : "";
}

// The levels after a machine's text: " 0 0 1". False if they are not levels.
static inline bool read_levels(const char *text, PlainKernels *plain) {
    for (int i = 0; i < NUM_PLAIN; i++) {
        char *end;
        long level = strtol(text, &end, 10);
        if (end == text || level < 0 || level >= PLAIN_LEVELS) { return false; }
        plain->level[i] = (int)level;
        text = end;
    }
    return true;
}

// A line: machine, tab, then the levels of PlainKernels. False if no line is this machine's.
static inline bool self_check_recall(const char *path, const char *machine, PlainKernels *plain) {
    FILE *file = fopen(path, "r");
    char line[1024];
    bool found = false;
    size_t length = strlen(machine);
    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, machine, length) == 0 && line[length] == '\t') { found = read_levels(line + length, plain); }
    }
    if (file) { fclose(file); }
    return found;
}

static inline void self_check_remember(const char *path, const char *machine, PlainKernels plain) {
    FILE *file = fopen(path, "a");
    if (file) {
        fprintf(file, "%s\t", machine);
        for (int i = 0; i < NUM_PLAIN; i++) { fprintf(file, " %d", plain.level[i]); }
        fprintf(file, "\n");
    }
    if (!file || fclose(file) != 0) {
        fprintf(stderr,
                "train_gpt2: could not write %s: %s; the self-check runs at every start (TRAIN_GPT2_SELF_CHECK names "
                "another file)\n",
                *path ? path : "self_check.txt, as HOME is not set", strerror(errno));
    }
}

// ---- --self-check, and the check at the start of a run

// --self-check: returns the exit status, 1 if an operation has no right kernel
static inline int self_check_print(const Backend *backend) {
    char machine[CHECKED_MACHINE], buffer[2 * PATH_LENGTH];
    const char *path = self_check_path(buffer);
    PlainKernels remembered;
    checked_machine(machine, sizeof machine, backend);
    printf("self-check of %s\n", machine);
    fflush(stdout);
    SelfCheck result = self_check(backend);
    CheckedDevice d = checked_device_open(backend, result.plain);
    DeviceRates rates = device_rates(&d);
    printf("a large copy moves %.0f GB/s, a large matmul computes %.0f GFLOP/s\n\n%-28s %-32s %5s %9s %16s %6s\n",
           rates.bytes / 1e9, rates.flops / 1e9, "operation", "kernel", "error", "ms", "rate", "share");
    int checked = 0;
    for (int i = 0; i < NUM_OP_CASES && &op_cases[i] != result.failed; i++) {
        if (!self_check_covers(&op_cases[i])) { continue; }
        print_operation(&op_cases[i], &result, &d, &rates);
        checked++;
    }
    checked_device_close(&d);
    printf("\nerror: the largest difference from the reference implementation, as a share of the tolerance\n");
    if (result.failed) {
        printf("%s is wrong on this device: %.3g times the tolerance\n", result.failed->name,
               result.share[result.failed - op_cases]);
        return EXIT_RUN_FAILED;
    }
    printf("%d operations agree with their reference implementations\n", checked);
    bool new_machine = backend != &cpu_backend && path && !self_check_recall(path, machine, &remembered);
    if (new_machine) { self_check_remember(path, machine, result.plain); }
    return 0;
}

// this rank's levels, remembered or checked now
static inline PlainKernels self_check_of_rank(const Backend *backend, const char *path, bool prints) {
    char machine[CHECKED_MACHINE];
    PlainKernels plain = {{0}};
    checked_machine(machine, sizeof machine, backend);
    if (self_check_recall(path, machine, &plain)) { return plain; }
    if (prints) {
        printf("self-check the operations on this device, once for each GPU, driver and program ...\n");
        fflush(stdout);
    }
    SelfCheck result = self_check(backend);
    if (result.failed) {
        double share = result.share[result.failed - op_cases];
        run_error("%s is wrong on %s: its error is %.3g times the tolerance, and there is no other kernel; "
                  "--self-check shows all operations, and TRAIN_GPT2_SELF_CHECK= trains without the check",
                  result.failed->name, machine, share);
    }
    self_check_remember(path, machine, result.plain);
    return result.plain;
}

// The kernels for a run: all ranks use the plainest levels that one of them needs. A CPU is not checked.
static inline PlainKernels self_check_at_start(const Backend *backend, Comm *world) {
    char buffer[2 * PATH_LENGTH];
    PlainKernels plain = {{0}};
    const char *path = self_check_path(buffer);
    if (backend == &cpu_backend || !path) { return plain; }
    plain = self_check_of_rank(backend, path, world->rank == 0);
    for (int i = 0; i < NUM_PLAIN; i++) { plain.level[i] = (int)comm_max(plain.level[i], world); }
    for (int i = 0; i < NUM_REPLACEABLE && world->rank == 0; i++) {
        const ReplaceableKernel *r = &replaceable_kernels[i];
        const char *kernel = kernel_at_level(r->operations, plain.level[r->plain], true);
        if (plain.level[r->plain] > 0 && kernel) {
            printf("note      %s uses a slower kernel (%s): the self-check found the fast one wrong on this device\n",
                   r->operations, kernel);
        }
    }
    return plain;
}
