/*
--profile times each operation of a few steps, and writes a trace in Chrome's Trace Event Format, which Perfetto
(ui.perfetto.dev) and chrome://tracing open. A timed event of the device is recorded before and after each operation,
copy and collective. Outside of the profiled steps nothing is recorded, so CUDA graphs hold no events. Profiled steps
launch each kernel by itself, and a collective is waited for where it begins.
The trace: thread 0 has the steps, thread 1 the operations, copies and collectives. "bytes" are the minimum that the
operation reads and writes, or the bytes that this rank sends; "flops" are those of matmuls and attention (ops.h).
Trace Event Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
*/
#pragma once
#include "llmc/memory/backend.h"
#include "llmc/common/create_file.h"
#include "llmc/op_call.h"
#include "llmc/parallel/zero.h"
#include "llmc/run/train_args.h"
#include <limits.h>

// Steps of a start that are not profiled: the first autotunes matmuls, the second captures CUDA graphs.
enum { PROFILE_WARMUP = 2 };

typedef struct {
    const char *name, *category;
    DeviceEvent *begin, *end;
    double bytes, flops;
    int layer;        // or NO_LAYER
    char tensor[64];  // "h.3.mlp.c_fc.weight": the weight that the operation reads, or ""
} ProfiledCall;

typedef struct Profile {
    // the wrapped tables
    OpHooks hooks;
    const Device *device;
    const CommBackend *collectives;
    // the tables given to the model
    CommBackend wrapped_collectives;
    Device wrapped_device;
    Backend backend;
    // the model
    const Zero *zero;
    Comm *world;
    // the profiled steps
    int wanted, skipped, done;  // done: written
    long long step;             // of the profile's current or last step, from 1
    bool active;                // calls are recorded
    ProfiledCall *calls;        // (num_calls), of the step
    size_t num_calls;
    DeviceEvent *step_begin, *last_begin, *operation_begin;  // last_begin: of the profiled step before; or NULL
    double step_start;                                       // seconds from the first profiled step to step_begin
    // the file, which holds whole steps
    char path[PATH_LENGTH];
    PartFile out;  // without a file: not open
} Profile;

// ---- the file

__attribute__((noreturn)) static inline void profile_failed(Profile *p, int error) {
    part_discard(&p->out);
    run_error("could not write '%s': %s; make room in -o, or leave out --profile", p->path, strerror(error));
}

// Opens the file and names the threads.
static inline void profile_open_file(Profile *p) {
    int rank = p->world->rank;
    p->out = part_open(p->path);
    if (p->out.error) { profile_failed(p, p->out.error); }
    fprintf(p->out.file,
            "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d\"}},\n"
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"steps\"}},\n"
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":1,\"args\":{\"name\":\"operations\"}}",
            rank, rank, rank, rank);
}

// seconds from the first profiled step
static inline double profile_time(const Profile *p, const DeviceEvent *event) {
    return p->step_start + p->device->seconds_between(p->step_begin, event);
}

static inline void profile_write_call(const Profile *p, const ProfiledCall *call) {
    double begin = profile_time(p, call->begin), end = profile_time(p, call->end);
    fprintf(p->out.file,
            ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"bytes\":%.0f,\"flops\":%.0f",
            call->name, call->category, p->world->rank, 1e6 * begin, 1e6 * (end - begin), call->bytes, call->flops);
    if (call->layer != NO_LAYER) { fprintf(p->out.file, ",\"layer\":%d", call->layer); }
    if (*call->tensor) { fprintf(p->out.file, ",\"tensor\":\"%s\"", call->tensor); }
    fputs("}}", p->out.file);
}

// Ends the trace and gives the file its name.
static inline void profile_finish_file(Profile *p) {
    fputs("\n]}\n", p->out.file);
    int error = part_finish(&p->out);
    if (error) { profile_failed(p, error); }
}

// ---- one call

// NULL: the call is not recorded
static inline DeviceEvent *profile_begin(Exec *ex) {
    Profile *p = ex->profile;
    return p && p->active ? p->device->event_timed(ex) : NULL;
}

// Records the end of a call and returns the call, or NULL if it is not recorded.
static inline ProfiledCall *profile_end(DeviceEvent *begin, const char *name, const char *category, double bytes,
                                        double flops, Exec *ex) {
    Profile *p = ex->profile;
    if (!begin) { return NULL; }
    ProfiledCall call = {name, category, begin, p->device->event_timed(ex), bytes, flops, ex->layer, ""};
    p->calls = (ProfiledCall *)xgrow(p->calls, p->num_calls, sizeof call);
    p->calls[p->num_calls] = call;
    return &p->calls[p->num_calls++];
}

// ---- the operations: hooks of hooked_ops

static inline void profile_before(const OpCall *call, Exec *ex) {
    (void)call;
    ex->profile->operation_begin = profile_begin(ex);
}

static inline void profile_after(const OpCall *call, Exec *ex) {
    Profile *p = ex->profile;
    const Operand *weight = find_operand(call, "weight");
    ProfiledCall *recorded =
        profile_end(p->operation_begin, call->op, "operation", op_call_bytes(call), call->flops, ex);
    if (!recorded || !weight) { return; }
    zero_param_name(recorded->tensor, sizeof recorded->tensor, p->zero, ex->layer, weight->at);
}

// ---- copies, fills and collectives

// A copy within the device reads and writes each byte.
#define PROFILED_COPY(function, name, times, parameters, arguments)                                                    \
    static inline void profiled_##function parameters {                                                                \
        DeviceEvent *begin = profile_begin(ex);                                                                        \
        ex->profile->device->function arguments;                                                                       \
        profile_end(begin, name, "copy", (times) * (double)bytes, 0, ex);                                              \
    }
PROFILED_COPY(enqueue_fill, "fill", 1, (void *p, int byte, size_t bytes, Exec *ex), (p, byte, bytes, ex))
PROFILED_COPY(enqueue_upload, "upload", 1, (void *to, const void *from, size_t bytes, Exec *ex), (to, from, bytes, ex))
PROFILED_COPY(enqueue_download, "download", 1, (void *to, const void *from, size_t bytes, Exec *ex),
              (to, from, bytes, ex))
PROFILED_COPY(enqueue_copy, "copy", 2, (void *to, const void *from, size_t bytes, Exec *ex), (to, from, bytes, ex))

// A copy on another stream is waited for at once, so that its end is an event of the operations' stream.
#define PROFILED_COPY_BEGIN(function, name)                                                                            \
    static inline CopyWork profiled_##function(int stream, void *to, const void *from, size_t bytes, Exec *ex) {       \
        DeviceEvent *begin = profile_begin(ex);                                                                        \
        CopyWork copy = ex->profile->device->function(stream, to, from, bytes, ex);                                    \
        if (begin) { ex->profile->device->copy_wait(copy, ex); }                                                       \
        profile_end(begin, name, "copy", (double)bytes, 0, ex);                                                        \
        return copy;                                                                                                   \
    }
PROFILED_COPY_BEGIN(upload_begin, "offload upload")
PROFILED_COPY_BEGIN(download_begin, "offload download")

// sent: bytes that this rank sends. The wait makes the collective's end an event of the operations' stream.
#define PROFILED_COLLECTIVE(function, sent, parameters, arguments)                                                     \
    static inline void profiled_##function parameters {                                                                \
        DeviceEvent *begin = profile_begin(ex);                                                                        \
        const CommBackend *inner = ex->profile->collectives;                                                           \
        inner->function arguments;                                                                                     \
        if (begin) { inner->wait(comm->calls, comm, ex); }                                                             \
        profile_end(begin, #function, "collective", (double)(sent), 0, ex);                                            \
    }
PROFILED_COLLECTIVE(all_reduce, all_reduce_bytes(count, dtype, comm->rank, comm->size),
                    (void *buffer, size_t count, DType dtype, Comm *comm, Exec *ex), (buffer, count, dtype, comm, ex))
PROFILED_COLLECTIVE(reduce_scatter, all_gather_bytes(chunk, dtype, comm->size),
                    (void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex),
                    (out, in, chunk, dtype, comm, ex))
PROFILED_COLLECTIVE(all_gather, all_gather_bytes(chunk, dtype, comm->size),
                    (void *out, const void *in, size_t chunk, DType dtype, Comm *comm, Exec *ex),
                    (out, in, chunk, dtype, comm, ex))
PROFILED_COLLECTIVE(broadcast, broadcast_bytes(count, dtype, root, comm->rank, comm->size),
                    (void *buffer, size_t count, DType dtype, int root, Comm *comm, Exec *ex),
                    (buffer, count, dtype, root, comm, ex))

// All groups of several ranks have the world's backend.
static inline void profile_wrap_collectives(Profile *p, const Groups *groups) {
    Comm *const comms[] = {groups->world, groups->dp, groups->tp};
    if (p->world->size == 1) { return; }
    p->collectives = p->world->backend;
    p->wrapped_collectives = *p->collectives;
    p->wrapped_collectives.all_reduce = profiled_all_reduce;
    p->wrapped_collectives.reduce_scatter = profiled_reduce_scatter;
    p->wrapped_collectives.all_gather = profiled_all_gather;
    p->wrapped_collectives.broadcast = profiled_broadcast;
    for (int i = 0; i < 3; i++) {
        if (comms[i]->backend == p->collectives) { comms[i]->backend = &p->wrapped_collectives; }
    }
}

// ---- a run

// Returns the model's backend: `inner`, wrapped if --profile is given. steps_left are this start's. *p must not move.
static inline const Backend *profile_backend(Profile *p, const TrainArgs *a, const Backend *inner,
                                             long long steps_left) {
    memset(p, 0, sizeof *p);
    if (a->profile == 0) { return inner; }
    if (steps_left < a->profile + (long long)PROFILE_WARMUP) {
        input_error("--profile %d records the steps after the first %d, but only %lld step%s left: give a larger -x, "
                    "or a smaller --profile",
                    a->profile, PROFILE_WARMUP, steps_left, steps_left == 1 ? " is" : "s are");
    }
    OpHooks hooks = {inner->ops, profile_before, profile_after, NULL};
    p->hooks = hooks;
    p->device = inner->device;
    p->wrapped_device = *inner->device;
    p->wrapped_device.enqueue_fill = profiled_enqueue_fill;
    p->wrapped_device.enqueue_upload = profiled_enqueue_upload;
    p->wrapped_device.enqueue_download = profiled_enqueue_download;
    p->wrapped_device.enqueue_copy = profiled_enqueue_copy;
    p->wrapped_device.upload_begin = profiled_upload_begin;
    p->wrapped_device.download_begin = profiled_download_begin;
    p->backend = *inner;
    p->backend.ops = &hooked_ops;
    p->backend.device = &p->wrapped_device;
    p->wanted = a->profile;
    return &p->backend;
}

// Call it after the model is built, before its first operation. ex, zero: the model's.
static inline void profile_attach(Profile *p, const TrainArgs *a, Exec *ex, const Zero *zero, const Groups *groups) {
    if (p->wanted == 0) { return; }
    ex->profile = p;
    ex->hooks = &p->hooks;
    p->zero = zero;
    p->world = groups->world;
    char name[32] = "profile.json";
    if (p->world->size > 1) { snprintf(name, sizeof name, "profile_%d.json", p->world->rank); }
    format_path(p->path, "%s/%s", a->run_dir, name);
    profile_wrap_collectives(p, groups);
}

// Call it before each step. `enqueued`: the steps before it.
static inline void profile_step_begin(Profile *p, long long enqueued, Exec *ex) {
    if (p->done == p->wanted || p->skipped++ < PROFILE_WARMUP) { return; }
    if (!p->out.file) { profile_open_file(p); }
    p->step = enqueued + 1;
    p->active = true;
    p->wrapped_device.capture_begin = NULL;  // no CUDA graph
    p->last_begin = p->step_begin;
    p->step_begin = p->device->event_timed(ex);
}

// Call it after each step. It waits for the step and writes it, unless it was cut short (`whole` is false). The step's
// event is recorded again after the update, so finish_step waits for the update too.
static inline void profile_step_end(Profile *p, bool whole, Exec *ex) {
    if (!p->active) { return; }
    p->active = false;
    p->wrapped_device.capture_begin = p->device->capture_begin;
    int event = (int)((p->step - 1) % 2);
    DeviceEvent *end = p->device->event_timed(ex);
    p->device->event_record(event, ex);
    comm_event_synchronize(event, p->world, ex);
    if (p->last_begin) {
        p->step_start += p->device->seconds_between(p->last_begin, p->step_begin);
        p->device->event_destroy(p->last_begin);
    }
    for (size_t i = 0; i < p->num_calls; i++) {
        if (whole) { profile_write_call(p, &p->calls[i]); }
        p->device->event_destroy(p->calls[i].begin);
        p->device->event_destroy(p->calls[i].end);
    }
    p->num_calls = 0;
    double seconds = p->device->seconds_between(p->step_begin, end);
    p->device->event_destroy(end);
    if (!whole) { return; }
    fprintf(p->out.file,
            ",\n{\"name\":\"step %lld\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"step\":%lld}}",
            p->step, p->world->rank, 1e6 * p->step_start, 1e6 * seconds, p->step);
    if (fflush(p->out.file) != 0) { profile_failed(p, errno); }
    if (++p->done == p->wanted) { profile_finish_file(p); }
}

// Call it at the end of the run, before its groups are closed. A run that stopped early leaves its whole steps.
static inline void profile_close(Profile *p) {
    if (p->done > 0) {
        if (p->out.file) { profile_finish_file(p); }
        printf("profile   %d step%s in %s\n", p->done, plural_s((uint64_t)p->done), p->path);
    }
    part_discard(&p->out);
    if (p->step_begin) { p->device->event_destroy(p->step_begin); }
    free(p->calls);
}
