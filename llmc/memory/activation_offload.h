/*
--offload 4: the inputs of blocks that the forward saves (the residual stream; at -r 4 one per checkpoint segment) are
in pinned host memory. Input i is in slot i % 2 of the device.
  forward    input i is downloaded from slot i % 2 while the next block writes the other slot
  backward   input i - 1 is uploaded while the blocks that read input i run backward
The residual stream after the last block is not an input: the final layernorm reads it from its slot. The input of the
first block, the embeddings, stays on the device.
*/
#pragma once
#include "llmc/common/device.h"

typedef struct {
    const Device *device;
    Exec *ex;
    char *host;    // (count,bytes); NULL: the inputs stay on the device
    char *slots;   // (2,bytes)
    size_t bytes;  // of one input
    int count;
    bool stores;         // a backward follows the forward
    CopyWork copies[2];  // the latest copy of each slot; 0: none, or waited for
} ActivationOffload;

// host: (count,bytes) or NULL; slots: (2,bytes)
static inline void offload_open(ActivationOffload *in, const Device *device, Exec *ex, void *host, void *slots,
                                size_t bytes, int count) {
    memset(in, 0, sizeof *in);
    in->device = device;
    in->ex = ex;
    in->host = (char *)host;
    in->slots = (char *)slots;
    in->bytes = bytes;
    in->count = count;
}

static inline void offload_copy_wait(ActivationOffload *in, int i) {
    in->device->copy_wait(in->copies[i % 2], in->ex);
    in->copies[i % 2] = 0;
}

// Work enqueued from now on may write input i, 0 to count; -1: an output that is not saved.
static inline void offload_acquire(ActivationOffload *in, int i) {
    if (in->host && i >= 0) { offload_copy_wait(in, i); }
}

static inline char *offload_slot(const ActivationOffload *in, int i) { return in->slots + (size_t)(i % 2) * in->bytes; }

// Begins to store input i, which enqueued work wrote.
static inline void offload_store(ActivationOffload *in, int i) {
    if (!in->host || !in->stores || i < 0 || i >= in->count) { return; }
    in->copies[i % 2] = in->device->download_begin(COPY_INPUTS, in->host + (size_t)i * in->bytes, offload_slot(in, i),
                                                   in->bytes, in->ex);
}

// Work enqueued from now on may read input i. Inputs are read in descending order, and the next one is uploaded during
// that work. The last input is still in its slot.
static inline void offload_wait(ActivationOffload *in, int i) {
    if (!in->host || i < 0) { return; }
    offload_copy_wait(in, i);
    if (i == 0) { return; }
    in->copies[(i - 1) % 2] = in->device->upload_begin(COPY_INPUTS, offload_slot(in, i - 1),
                                                       in->host + (size_t)(i - 1) * in->bytes, in->bytes, in->ex);
}
