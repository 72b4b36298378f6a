/*
Late copies between host and device, for tests. A copy of cpu_device is done when the call returns, so a missing
copy_wait changes nothing. This device's memory is the host's, and its copies are as late as device.h allows:
  EARLY_COPIES        a copy is done when the call returns
  LATE_COPY_RESULTS   the destination is NaN from the call until copy_wait
  LATE_COPY_CALLS     the whole copy runs at copy_wait, and so reads a source that was written in between
Copies of one stream run in order, so copy_wait also runs the earlier copies of its stream. Other streams stay late.
The device counts the copies that were never waited for, and those that were waited for before any work ran beside them:
a test counts its work.
*/
#pragma once
#include "llmc/common/device.h"
#include "llmc/parallel/comm.h"

typedef enum { EARLY_COPIES, LATE_COPY_RESULTS, LATE_COPY_CALLS, NUM_COPY_KINDS } CopyKind;

typedef struct {
    int stream;
    void *to;
    const void *from;
    size_t bytes;
    CopyWork copy;
    uint64_t work;  // LateCopies.work at the call
    void *data;     // LATE_COPY_RESULTS: the source at the call
} PendingCopy;

enum { MAX_PENDING = 64 };

typedef struct {
    CopyKind kind;
    PendingCopy pending[MAX_PENDING];
    int num_pending;
    CopyWork num_copies;
    uint64_t work, exposed;       // pieces of work so far; late copies without work beside them
    const char *host, *host_end;  // the latest allocation of pinned host memory
} LateCopies;

// of this process
static inline LateCopies *late_copies(void) {
    static LateCopies all;
    return &all;
}

static inline bool in_pinned_memory(const void *p) {
    return (const char *)p >= late_copies()->host && (const char *)p < late_copies()->host_end;
}

// runs the oldest pending copy of a stream up to number `last`; false if there is none
static inline bool copies_run_one(int stream, CopyWork last) {
    LateCopies *all = late_copies();
    int i = 0;
    while (i < all->num_pending && (all->pending[i].stream != stream || all->pending[i].copy > last)) { i++; }
    if (i == all->num_pending) { return false; }
    PendingCopy *c = &all->pending[i];
    memcpy(c->to, c->data ? c->data : c->from, c->bytes);
    free(c->data);
    all->num_pending--;
    memmove(c, c + 1, (size_t)(all->num_pending - i) * sizeof *c);
    return true;
}

static inline CopyWork late_copy_begin(int stream, void *to, const void *from, size_t bytes) {
    LateCopies *all = late_copies();
    PendingCopy c = {stream, to, from, bytes, ++all->num_copies, all->work, NULL};
    if (all->num_pending == MAX_PENDING) { run_error("%d copies are not waited for: a bug", MAX_PENDING); }
    if (all->kind == LATE_COPY_RESULTS) {
        c.data = memcpy(xmalloc(bytes), from, bytes);
        memset(to, 0xFF, bytes);
    }
    all->pending[all->num_pending++] = c;
    if (all->kind == EARLY_COPIES) { copies_run_one(stream, c.copy); }
    return c.copy;
}

static inline CopyWork late_upload_begin(int stream, void *device, const void *host, size_t bytes, Exec *ex) {
    (void)ex;
    if (!in_pinned_memory(host) || in_pinned_memory(device)) { run_error("an upload is from host to device: a bug"); }
    return late_copy_begin(stream, device, host, bytes);
}

static inline CopyWork late_download_begin(int stream, void *host, const void *device, size_t bytes, Exec *ex) {
    (void)ex;
    if (!in_pinned_memory(host) || in_pinned_memory(device)) { run_error("a download is from device to host: a bug"); }
    return late_copy_begin(stream, host, device, bytes);
}

static inline void late_copy_wait(CopyWork copy, Exec *ex) {
    LateCopies *all = late_copies();
    (void)ex;
    for (int i = 0; i < all->num_pending; i++) {
        if (all->pending[i].copy != copy) { continue; }
        int stream = all->pending[i].stream;
        all->exposed += all->pending[i].work == all->work;
        while (copies_run_one(stream, copy)) {}
        return;
    }
}

static inline void *noted_allocate_host(size_t bytes) {
    char *p = (char *)cpu_device.allocate_host(bytes);
    late_copies()->host = p;
    late_copies()->host_end = p + bytes;
    return p;
}

static inline Device late_device(CopyKind kind) {
    Device device = cpu_device;
    late_copies()->kind = kind;
    device.allocate_host = noted_allocate_host;
    device.upload_begin = late_upload_begin;
    device.download_begin = late_download_begin;
    device.copy_wait = late_copy_wait;
    return device;
}

// ---- a communicator of comm_after_copy: the copy is done before the next collective

static inline void late_after_copy(CopyWork copy, Comm *comm, Exec *ex) {
    (void)comm;
    late_copy_wait(copy, ex);
}

// All groups of several ranks must have the same backend.
static inline void comm_with_late_copies(Comm *comm) {
    static CommBackend backend;
    if (comm->size == 1) { return; }
    backend = *comm->backend;
    backend.after_copy = late_after_copy;
    comm->backend = &backend;
}
