/*
The device that holds the model: memory, copies, events and CUDA graphs. Device is a table of functions like Ops, so the
trainer runs the same code on a CPU and a GPU. Exec is the stream of work: a field of the model, zero at first, and an
argument of every operation. Backend.close frees the state of operations in the Exec.

Work is an operation, or an enqueued fill or copy. Work of one Exec runs in the order of the calls. On a CPU the work is
done when the call returns. On a GPU the call returns at once, and events tell the host which work is done.
Copies between host and device can also overlap the work, in copy streams. Such a copy begins and returns a CopyWork. It
runs after all work enqueued so far, and after all earlier copies of its stream. It may overlap work enqueued later,
which must not write to its source or touch its destination before copy_wait. A CUDA graph must wait for every copy that
it begins, and for no copy begun outside of it.
*/
#pragma once
#include "llmc/common/check.h"   // IWYU pragma: export
#include "llmc/common/floatx.h"  // IWYU pragma: export
#include <omp.h>
#include <stdbool.h>
#include <time.h>

struct CudaExec;  // device.cuh: the stream, and scratch for sums
struct Profile;   // run/profile.h: --profile
struct OpHooks;   // op_call.h

// Plainer kernels for a GPU on which the fast ones, level 0, fail the self-check. Attention: 1 is CUDA cores.
enum { FALLBACK_ATTENTION_FORWARD, FALLBACK_ATTENTION_BACKWARD, FALLBACK_MATMUL, NUM_FALLBACKS };
typedef struct {
    int level[NUM_FALLBACKS];
} FallbackKernels;

// Matmuls: autotuned; cuBLASLt's first choice without a fused epilogue; our own GEMM
enum { MATMUL_FASTEST, MATMUL_FIRST_CHOICE, MATMUL_PLAIN };

typedef struct Exec {
    bool bf16_inputs;          // -f 2 on a CPU: matmul inputs are rounded to bf16
    struct CudaExec *cuda;     // NULL on a CPU
    bool skip_autotune;        // matmuls of HellaSwag and decoding, whose shapes seldom repeat, are not timed
    FallbackKernels fallback;  // set before Backend.open
    struct Profile *profile;   // of a backend that --profile wraps, else NULL
    struct OpHooks *hooks;     // of every operation of hooked_ops; else NULL
    int layer;                 // the transformer block that runs, or NO_LAYER: --profile and --nan-check show it
} Exec;

enum { NO_LAYER = -1 };

typedef struct DeviceGraph DeviceGraph;  // a CUDA graph: captured work, launched as one
typedef struct DeviceEvent DeviceEvent;  // a point in the work of an Exec, and the time at which the device reaches it

typedef uint64_t CopyWork;  // a copy that may still run; 0: none, or done

// Copy streams of --offload: one of parameters, two of gradients (one a buffer), one of inputs of blocks, two of update
// buckets (one a slot). An upload to one buffer or slot overlaps the download of another.
enum { COPY_PARAMS, COPY_GRADIENTS, COPY_INPUTS = COPY_GRADIENTS + 2, COPY_UPDATE, COPY_STREAMS = COPY_UPDATE + 2 };

typedef struct {
    const char *name;
    int steps_ahead;  // steps that the host may enqueue before it reads the results of an earlier step

    // ---- memory. Enqueued copies need allocate_host: the device reads or writes host memory after the call returns
    void *(*allocate)(size_t bytes);       // 256-byte aligned; stops the program if there is no memory
    void (*release)(void *p);              // of allocate
    size_t (*free_bytes)(void);            // free for a plan, without a reserve for all other memory
    size_t (*whole_bytes)(void);           // for a plan if nothing else used the device: the same number at every start
    void *(*allocate_host)(size_t bytes);  // zeroed; pinned: the device reads and writes it without the host
    void (*release_host)(void *p);

    // ---- blocking: these wait for all earlier work, and return when they are done. `device` may also be memory of
    // allocate_host: --offload keeps state there
    void (*fill)(void *p, int byte, size_t bytes);
    void (*upload)(void *device, const void *host, size_t bytes);
    void (*download)(void *host, const void *device, size_t bytes);

    // ---- work
    void (*enqueue_fill)(void *p, int byte, size_t bytes, Exec *ex);
    void (*enqueue_upload)(void *device, const void *host, size_t bytes, Exec *ex);    // host: from allocate_host
    void (*enqueue_download)(void *host, const void *device, size_t bytes, Exec *ex);  // host: from allocate_host
    void (*enqueue_copy)(void *to, const void *from, size_t bytes, Exec *ex);  // ends: the device or allocate_host

    // ---- copies that overlap the work; host: from allocate_host
    CopyWork (*upload_begin)(int stream, void *device, const void *host, size_t bytes, Exec *ex);
    CopyWork (*download_begin)(int stream, void *host, const void *device, size_t bytes, Exec *ex);
    void (*copy_wait)(CopyWork copy, Exec *ex);  // work enqueued from now on runs after the copy

    // ---- event 0 or 1: record it after the work enqueued so far; synchronize returns when that work is done
    void (*event_record)(int which, Exec *ex);
    void (*event_synchronize)(int which, Exec *ex);

    // ---- timed events, any number of them: recorded at once. seconds_between does not wait for the work before them
    DeviceEvent *(*event_timed)(Exec *ex);
    double (*seconds_between)(const DeviceEvent *from, const DeviceEvent *to);
    void (*event_destroy)(DeviceEvent *event);

    // ---- CUDA graphs; NULL: the device has none. Work between begin and end is captured. capture_end launches it as a
    // graph, or returns NULL: the driver refused the graph, and the caller captures the work once more
    void (*capture_begin)(Exec *ex);
    DeviceGraph *(*capture_end)(Exec *ex);
    void (*graph_launch)(DeviceGraph *graph, Exec *ex);
    void (*graph_destroy)(DeviceGraph *graph);
} Device;

// A POISON_SCRATCH build fills memory with NaN between two uses, so that a stale read shows.
static inline void device_poison(const Device *device, void *memory, size_t bytes, Exec *ex) {
#ifdef POISON_SCRATCH
    device->enqueue_fill(memory, 0xFF, bytes, ex);
#else
    (void)device, (void)memory, (void)bytes, (void)ex;
#endif
}

static inline void *host_allocate(size_t bytes) { return xaligned(256, bytes); }
static inline void *host_allocate_zeroed(size_t bytes) { return memset(xaligned(256, bytes), 0, bytes); }

// Returns the first number that a line of the file gives in this format, such as "inactive_file %llu", or SIZE_MAX.
static inline size_t number_in_file(const char *folder, const char *name, const char *format) {
    char path[PATH_LENGTH], line[128];
    unsigned long long number = SIZE_MAX;
    format_path(path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, format, &number) != 1) {}
    if (file) { fclose(file); }
    return (size_t)number;
}

static inline size_t meminfo_bytes(const char *format) {
    size_t kib = number_in_file("/proc", "meminfo", format);
    return kib == SIZE_MAX ? kib : kib * 1024;
}

// Lowers *limit and *left to those of a control group and its ancestors. Truncates `group`, its path.
static inline void group_memory_lower(size_t *limit, size_t *left, const char *root, bool v1, char *group) {
    char folder[PATH_LENGTH];
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = 0;
        format_path(folder, "%s/sys/fs/cgroup%s%s", root, v1 ? "/memory" : "", group);
        size_t max = number_in_file(folder, v1 ? "memory.limit_in_bytes" : "memory.max", "%llu");
        size_t used = number_in_file(folder, v1 ? "memory.usage_in_bytes" : "memory.current", "%llu");
        size_t cache = number_in_file(folder, "memory.stat", v1 ? "total_inactive_file %llu" : "inactive_file %llu");
        if (max < *limit) { *limit = max; }
        if (max == SIZE_MAX || used == SIZE_MAX) { continue; }
        if (cache <= used) { used -= cache; }
        size_t room = used < max ? max - used : 0;
        if (room < *left) { *left = room; }
    }
}

// Reads this process's control groups, version 1 or 2. *limit = the tightest memory limit, *left = the bytes left in
// the fullest group, or SIZE_MAX without a limit. Page cache that the kernel drops first (inactive_file) counts as
// left, since a save may fill the group with it. root: "", or a folder with copies of /proc and /sys.
static inline void group_memory(size_t *limit, size_t *left, const char *root) {
    *limit = *left = SIZE_MAX;
    char path[PATH_LENGTH], line[PATH_LENGTH];
    format_path(path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {  // "4:memory:/docker" of version 1, "0::/docker" of version 2
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) { continue; }
        *group = 0;
        bool v1 = strstr(controllers, "memory") != NULL, v2 = !controllers[1];
        if (v1 || v2) { group_memory_lower(limit, left, root, v1, group + 1); }
    }
    if (file) { fclose(file); }
}

// Returns the free memory of the machine or its control group, whichever has less, minus 3 % for what is outside the
// plan. SIZE_MAX if unknown.
static inline size_t host_free_bytes(void) {
    size_t room = meminfo_bytes("MemAvailable: %llu kB"), limit, left;
    group_memory(&limit, &left, "");
    if (left < room) { room = left; }
    return room == SIZE_MAX ? room : room - room / 32;
}

// All memory of the machine or, if less, of its control group, minus a quarter for other programs. SIZE_MAX if unknown.
static inline size_t host_whole_bytes(void) {
    size_t whole = meminfo_bytes("MemTotal: %llu kB"), limit, left;
    group_memory(&limit, &left, "");
    if (limit < whole) { whole = limit; }
    return whole == SIZE_MAX ? whole : whole - whole / 4;
}

static inline void host_fill(void *p, int byte, size_t bytes) { memset(p, byte, bytes); }
// Copies, or zeroes if from is NULL, by all threads: one thread alone does not use all of the memory's bandwidth. Each
// copies one part, since memcpy keeps a large copy out of the caches.
static inline void host_copy_parallel(void *to, const void *from, size_t bytes) {
    size_t threads = (size_t)omp_get_max_threads(), part = bytes / threads + 1;
#pragma omp parallel for schedule(static) if (bytes >= 1 << 20)
    for (size_t at = 0; at < bytes; at += part) {
        size_t n = bytes - at < part ? bytes - at : part;
        if (from) {
            memcpy((char *)to + at, (const char *)from + at, n);
        } else {
            memset((char *)to + at, 0, n);
        }
    }
}
static inline void host_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static inline void host_enqueue_fill(void *p, int byte, size_t bytes, Exec *ex) {
    (void)ex;
    memset(p, byte, bytes);
}
static inline void host_enqueue_copy(void *to, const void *from, size_t bytes, Exec *ex) {
    (void)ex;
    memcpy(to, from, bytes);
}
static inline CopyWork host_copy_begin(int stream, void *to, const void *from, size_t bytes, Exec *ex) {
    (void)stream, (void)ex;
    host_copy_parallel(to, from, bytes);
    return 0;
}
static inline void host_copy_wait(CopyWork copy, Exec *ex) { (void)copy, (void)ex; }
static inline void host_event(int which, Exec *ex) { (void)which, (void)ex; }

// seconds on a clock that never jumps; only differences have a meaning
static inline double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// a DeviceEvent of the CPU is the time of its record
static inline DeviceEvent *host_event_timed(Exec *ex) {
    double *seconds = (double *)xmalloc(sizeof *seconds);
    (void)ex;
    *seconds = now_seconds();
    return (DeviceEvent *)seconds;
}
static inline double host_seconds_between(const DeviceEvent *from, const DeviceEvent *to) {
    return *(const double *)to - *(const double *)from;
}
static inline void host_event_destroy(DeviceEvent *event) { free(event); }

static const Device cpu_device = {
    .name = "cpu",
    .steps_ahead = 0,
    .allocate = host_allocate,
    .release = free,
    .free_bytes = host_free_bytes,
    .whole_bytes = host_whole_bytes,
    .allocate_host = host_allocate_zeroed,
    .release_host = free,
    .fill = host_fill,
    .upload = host_copy,
    .download = host_copy,
    .enqueue_fill = host_enqueue_fill,
    .enqueue_upload = host_enqueue_copy,
    .enqueue_download = host_enqueue_copy,
    .enqueue_copy = host_enqueue_copy,
    .upload_begin = host_copy_begin,
    .download_begin = host_copy_begin,
    .copy_wait = host_copy_wait,
    .event_record = host_event,
    .event_synchronize = host_event,
    .event_timed = host_event_timed,
    .seconds_between = host_seconds_between,
    .event_destroy = host_event_destroy,
    // no CUDA graphs
};
