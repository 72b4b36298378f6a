/*
The device that holds the model: memory, copies, events in the stream of work, CUDA graphs of it. A table like Ops, so
that the trainer does not ask which device it is. Exec: the stream of work, handed to every operation; a field of the
model, zero at first. The operations' own state in it is freed by Backend.close.
defines: Exec, RoundedCopies, Device, DeviceGraph, cpu_device, now_seconds

Work (operations, enqueued fills and copies) given to one Exec is done in the order it was given. On a CPU it is done
when the call returns; on a GPU the host goes on at once, and learns by marks how far the device is.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include <stdbool.h>
#include <time.h>

struct PreparedMatmuls;  // matmul_onednn.h: oneDNN's engine and one primitive a shape
struct CudaExec;         // device.cuh: the stream, and scratch for sums

// -f 2: matmul inputs rounded to bf16. The buffers belong to the plan; params mirrors the whole parameter block.
typedef struct {
    bf16 *in, *dout, *params;
    const floatX *source;  // the parameter block that params mirrors
    size_t count;          // its elements
} RoundedCopies;

typedef struct Exec {
    struct PreparedMatmuls *matmuls;
    RoundedCopies rounded;  // all NULL: matmuls take their inputs as they are stored
    struct CudaExec *cuda;  // NULL on a CPU
    bool rare_shapes;  // what comes next has shapes that seldom come again: it is not worth choosing algorithms for
} Exec;

typedef struct DeviceGraph DeviceGraph;  // work that was recorded, to be given again as a whole

typedef struct {
    const char *name;
    int steps_ahead;  // steps the host may have given to the device before the results of the first are there

    // ---- memory. Host memory for enqueued copies is a kind of its own: the device reads it while the host goes on
    void *(*allocate)(size_t bytes);  // 256-byte aligned; stops the program if there is no memory
    void (*release)(void *p);
    size_t (*free_bytes)(void);  // what allocate has left for a plan, a reserve for the rest aside
    void *(*allocate_host)(size_t bytes);
    void (*release_host)(void *p);

    // ---- these wait for all work given before, and return when they are done
    void (*fill)(void *p, int byte, size_t bytes);
    void (*upload)(void *device, const void *host, size_t bytes);
    void (*download)(void *host, const void *device, size_t bytes);

    // ---- work
    void (*enqueue_fill)(void *p, int byte, size_t bytes, Exec *ex);
    void (*enqueue_upload)(void *device, const void *host, size_t bytes, Exec *ex);    // host: of allocate_host
    void (*enqueue_download)(void *host, const void *device, size_t bytes, Exec *ex);  // host: of allocate_host
    void (*enqueue_copy)(void *to, const void *from, size_t bytes, Exec *ex);          // from device to device

    // ---- mark 0 or 1 stands after the work given so far; wait_for returns when that is done
    void (*event_record)(int which, Exec *ex);
    void (*event_synchronize)(int which, Exec *ex);

    // ---- between begin and end work is recorded and not done; replay gives all of it at once. NULL: not on this
    // device
    void (*capture_begin)(Exec *ex);
    DeviceGraph *(*capture_end)(Exec *ex);
    void (*graph_launch)(DeviceGraph *graph, Exec *ex);
    void (*graph_destroy)(DeviceGraph *graph);
} Device;

static inline void *host_allocate(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes ? bytes : 256) != 0) {
        run_error("out of memory: the plan needs %.1f MiB; a smaller -b, -t or model needs less (see --plan)",
                  (double)bytes / (1 << 20));
    }
    return p;
}

// the number in a file that holds one; SIZE_MAX where there is none ("max")
static inline size_t number_in_file(const char *path) {
    unsigned long long number;
    FILE *file = fopen(path, "r");
    bool read = file && fscanf(file, "%llu", &number) == 1;
    if (file) { fclose(file); }
    return read ? (size_t)number : SIZE_MAX;
}

// What is available without swapping, here and in the control group, less 3 % for what a run needs beside its plan.
// SIZE_MAX where nobody says.
static inline size_t host_free_bytes(void) {
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %llu kB", &kib) != 1) {}
    if (file) { fclose(file); }
    size_t room = kib ? (size_t)kib * 1024 : SIZE_MAX;
    size_t most = number_in_file("/sys/fs/cgroup/memory.max"), used = number_in_file("/sys/fs/cgroup/memory.current");
    if (most != SIZE_MAX && used <= most && most - used < room) { room = most - used; }
    return room == SIZE_MAX ? room : room - room / 32;
}

static inline void host_fill(void *p, int byte, size_t bytes) { memset(p, byte, bytes); }
static inline void host_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static inline void host_enqueue_fill(void *p, int byte, size_t bytes, Exec *ex) {
    (void)ex;
    memset(p, byte, bytes);
}
static inline void host_enqueue_copy(void *to, const void *from, size_t bytes, Exec *ex) {
    (void)ex;
    memcpy(to, from, bytes);
}
static inline void host_event(int which, Exec *ex) { (void)which, (void)ex; }

static const Device cpu_device = {
    .name = "cpu",
    .steps_ahead = 0,
    .allocate = host_allocate,
    .release = free,
    .free_bytes = host_free_bytes,
    .allocate_host = host_allocate,
    .release_host = free,
    .fill = host_fill,
    .upload = host_copy,
    .download = host_copy,
    .enqueue_fill = host_enqueue_fill,
    .enqueue_upload = host_enqueue_copy,
    .enqueue_download = host_enqueue_copy,
    .enqueue_copy = host_enqueue_copy,
    .event_record = host_event,
    .event_synchronize = host_event,
    .capture_begin = NULL,
    .capture_end = NULL,
    .graph_launch = NULL,
    .graph_destroy = NULL,
};

// seconds since some moment in the past, at which no clock is set
static inline double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
