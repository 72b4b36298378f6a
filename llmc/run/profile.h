/*
--profile: times each operation of a few steps, and writes a trace in Chrome's Trace Event Format, which Perfetto
(ui.perfetto.dev) and chrome://tracing open.
defines: Profile, profile_backend, profile_attach, profile_step_begin, profile_step_end, profile_close
  profile_backend     the backend with its operations hooked and its copies wrapped: a timed event of the device is
                      recorded before and after each call. Without --profile, the backend itself
  profile_attach      finds the model, and wraps the collectives
  profile_step_begin  and profile_step_end surround each step, and record and write the profiled ones
Hooks and wrappers find the Profile in their Exec. Outside of the profiled steps they record nothing, so CUDA graphs
hold no events. Profiled steps launch each kernel by itself, and a collective is waited for where it begins.
The trace: thread 0 has the steps, thread 1 the operations, copies and collectives. "bytes" are the minimum that the
operation reads and writes, or the bytes that this rank sends; "flops" are those of matmuls (ops.h).
Trace Event Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
*/
#pragma once
#include "llmc/memory/backend.h"
#include "llmc/common/create_file.h"
#include "llmc/op_call.h"
#include "llmc/parallel/zero.h"
#include "llmc/run/ranks.h"
#include "llmc/run/train_args.h"
#include <sys/types.h>
#include <unistd.h>

// Steps of a start that are not profiled: the first autotunes matmuls, the second captures CUDA graphs.
enum { PROFILE_WARMUP = 2, PROFILE_CALLS = 4096 };

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
    struct {
        Comm *comm;
        const CommBackend *inner;
        CommBackend wrapped;
    } comms[3];
    int num_comms;
    // the tables given to the model
    Device wrapped_device;
    Backend backend;
    // the model
    const Zero *zero;
    Comm *world;
    // the profiled steps
    int wanted, skipped, done;  // done: written
    long long step;             // of the profile's current or last step, from 1
    bool active;                // calls are recorded
    ProfiledCall *calls;        // (PROFILE_CALLS) not written yet
    int num_calls;
    DeviceEvent *step_begin, *operation_begin;
    double step_start;  // seconds from the first profiled step to step_begin
    // the file
    char path[PATH_LENGTH];
    PartFile out;       // without a file: not open
    off_t whole_steps;  // bytes of the file that hold whole steps
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

static inline void profile_forget_calls(Profile *p) {
    for (int i = 0; i < p->num_calls; i++) {
        p->device->event_destroy(p->calls[i].begin);
        p->device->event_destroy(p->calls[i].end);
    }
    p->num_calls = 0;
}

// Waits for the device and writes the recorded calls. Event `step % 2` is free: start_step records it at its end, and
// no step that waits for it is pending.
static inline void profile_flush(Profile *p, Exec *ex) {
    int event = (int)((p->step - 1) % 2);
    p->device->event_record(event, ex);
    comm_event_synchronize(event, p->world, ex);
    for (int i = 0; i < p->num_calls; i++) { profile_write_call(p, &p->calls[i]); }
    profile_forget_calls(p);
    if (fflush(p->out.file) != 0 || ferror(p->out.file)) { profile_failed(p, errno); }
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

// Records the end of a call; `call` has its name, category, bytes and flops.
static inline ProfiledCall *profile_end(DeviceEvent *begin, ProfiledCall call, Exec *ex) {
    Profile *p = ex->profile;
    call.begin = begin;
    call.end = p->device->event_timed(ex);
    call.layer = ex->layer;
    if (p->num_calls == PROFILE_CALLS) { profile_flush(p, ex); }
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
    ProfiledCall profiled = {call->op, "operation", NULL, NULL, op_call_bytes(call), call->flops, 0, ""};
    if (!p->operation_begin) { return; }
    if (weight) { zero_param_name(profiled.tensor, sizeof profiled.tensor, p->zero, ex->layer, weight->at); }
    profile_end(p->operation_begin, profiled, ex);
}

// ---- copies, fills and collectives

static inline void profile_transfer(DeviceEvent *begin, const char *name, const char *category, double bytes,
                                    Exec *ex) {
    ProfiledCall call = {name, category, NULL, NULL, bytes, 0, 0, ""};
    if (begin) { profile_end(begin, call, ex); }
}

// A copy within the device reads and writes each byte.
#define PROFILED_COPY(function, name, times, parameters, arguments)                                                    \
    static inline void profiled_##function parameters {                                                                \
        DeviceEvent *begin = profile_begin(ex);                                                                        \
        ex->profile->device->function arguments;                                                                       \
        profile_transfer(begin, name, "copy", (times) * (double)bytes, ex);                                            \
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
        profile_transfer(begin, name, "copy", (double)bytes, ex);                                                      \
        return copy;                                                                                                   \
    }
PROFILED_COPY_BEGIN(upload_begin, "offload upload")
PROFILED_COPY_BEGIN(download_begin, "offload download")

static inline const CommBackend *profile_inner(const Comm *comm, const Profile *p) {
    int i = 0;
    while (p->comms[i].comm != comm) { i++; }
    return p->comms[i].inner;
}

// sent: bytes that this rank sends. The wait makes the collective's end an event of the operations' stream.
#define PROFILED_COLLECTIVE(function, sent, parameters, arguments)                                                     \
    static inline void profiled_##function parameters {                                                                \
        DeviceEvent *begin = profile_begin(ex);                                                                        \
        const CommBackend *inner = profile_inner(comm, ex->profile);                                                   \
        inner->function arguments;                                                                                     \
        if (begin) { inner->wait(comm->calls, comm, ex); }                                                             \
        profile_transfer(begin, #function, "collective", (double)(sent), ex);                                          \
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

static inline void profile_wrap_comm(Profile *p, Comm *comm) {
    int i = p->num_comms;
    if (comm->size == 1 || comm->backend == &p->comms[0].wrapped) { return; }  // -tp 1: dp is the world
    CommBackend *wrapped = &p->comms[i].wrapped;
    p->comms[i].comm = comm;
    p->comms[i].inner = comm->backend;
    *wrapped = *comm->backend;
    wrapped->all_reduce = profiled_all_reduce;
    wrapped->reduce_scatter = profiled_reduce_scatter;
    wrapped->all_gather = profiled_all_gather;
    wrapped->broadcast = profiled_broadcast;
    comm->backend = wrapped;
    p->num_comms++;
}

// ---- a run

// The backend that the model is built with. steps_left: of this start. *p must not move.
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
    p->calls = (ProfiledCall *)xmalloc(PROFILE_CALLS * sizeof *p->calls);
    if (groups->world->size > 1) {
        format_path(p->path, "%s/profile_%d.json", a->run_dir, groups->world->rank);
    } else {
        format_path(p->path, "%s/profile.json", a->run_dir);
    }
    profile_wrap_comm(p, groups->world);
    profile_wrap_comm(p, groups->dp);
    profile_wrap_comm(p, groups->tp);
}

// Before every step. `enqueued`: the steps before it.
static inline void profile_step_begin(Profile *p, long long enqueued, Exec *ex) {
    if (p->done == p->wanted || p->skipped++ < PROFILE_WARMUP) { return; }
    if (!p->out.file) { profile_open_file(p); }
    p->whole_steps = ftello(p->out.file);
    p->step = enqueued + 1;
    p->active = true;
    p->wrapped_device.capture_begin = NULL;  // no CUDA graph
    DeviceEvent *begin = p->device->event_timed(ex);
    if (p->step_begin) {
        profile_flush(p, ex);  // waits for `begin`
        p->step_start = profile_time(p, begin);
        p->device->event_destroy(p->step_begin);
    }
    p->step_begin = begin;
}

// After every step. whole: false for one that was cut short, which is not written.
static inline void profile_step_end(Profile *p, bool whole, Exec *ex) {
    if (!p->active) { return; }
    p->active = false;
    p->wrapped_device.capture_begin = p->device->capture_begin;
    DeviceEvent *end = p->device->event_timed(ex);
    profile_flush(p, ex);
    double seconds = p->device->seconds_between(p->step_begin, end);
    p->device->event_destroy(end);
    if (!whole) { return; }
    fprintf(p->out.file,
            ",\n{\"name\":\"step %lld\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,"
            "\"args\":{\"step\":%lld}}",
            p->step, p->world->rank, 1e6 * p->step_start, 1e6 * seconds, p->step);
    if (fflush(p->out.file) != 0) { profile_failed(p, errno); }
    p->whole_steps = ftello(p->out.file);
    if (++p->done == p->wanted) { profile_finish_file(p); }
}

// At the end of the run, before its groups are closed: names the file. A run that stopped early leaves its whole steps.
static inline void profile_close(Profile *p) {
    if (p->wanted == 0) { return; }
    if (p->out.file && p->done > 0) {
        if (ftruncate(fileno(p->out.file), p->whole_steps) != 0 || fseeko(p->out.file, p->whole_steps, SEEK_SET) != 0) {
            profile_failed(p, errno);
        }
        profile_finish_file(p);
    } else {
        part_discard(&p->out);
    }
    if (p->done > 0) { printf("profile   %d step%s in %s\n", p->done, plural_s((uint64_t)p->done), p->path); }
    if (p->step_begin) { p->device->event_destroy(p->step_begin); }
    free(p->calls);
}
