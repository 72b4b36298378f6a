/*
The update, bucket by bucket (update_buckets.h). With --offload, the state of a bucket that is in host memory passes
through one of two slots on the device, a double buffer.
  bucket i - 1   is downloaded to host memory while bucket i is uploaded
  bucket i       is uploaded one bucket ahead, before an operation reads and writes its slot
Each slot has a copy stream: bucket i + 2 is uploaded after bucket i was downloaded. With --offload 1 a bucket has
moments and remainders; from 2 on also gradients, which are not downloaded; from 3 on also parameters.
Muon's momentum buckets copy moments and gradients, its weights buckets the others.
*/
#pragma once
#include "llmc/ops.h"
#include "llmc/parallel/orthogonalise.h"
#include "llmc/parallel/zero.h"
#include "llmc/shapes/update_buckets.h"

typedef struct {
    const Zero *zero;
    OptimizerState stored;      // of this rank; at --offload 1 to 4 moments and remainders are in host memory
    OptimizerState slots;       // --offload: two slots on the device for each array that is in host memory; else NULL
    Gradient grad_slots;        // --offload 2: two slots
    size_t slot_elements;       // of one slot
    const UpdateRange *ranges;  // of the list, on the device
    UpdateList list;
    Comm *tp;
    floatX *matrices;    // Muon: (muon_scratch_elements), during an update
    CopyWork copies[2];  // --offload: the latest copy of each slot
} Update;

// Lists the buckets and uploads their ranges to `ranges`, (max_update_ranges) on the device; NULL: the model does not
// train. slots, grad_slots: as in Update. Free with update_close.
static inline void update_open(Update *u, const Zero *zero, Comm *tp, const OptimizerState *stored,
                               const OptimizerState *slots, Gradient grad_slots, UpdateRange *ranges) {
    memset(u, 0, sizeof *u);
    u->zero = zero;
    u->stored = *stored;
    u->slots = *slots;
    u->grad_slots = grad_slots;
    u->ranges = ranges;
    if (!ranges) { return; }
    u->list = update_list(&zero->layout);
    u->slot_elements = update_bucket_elements(&zero->layout);
    u->tp = tp;
    zero->device->upload(ranges, u->list.ranges, (size_t)u->list.num_ranges * sizeof *ranges);
}

static inline void update_close(Update *u) {
    free(u->list.buckets);
    free(u->list.ranges);
}

// The state of bucket i where this rank stores it; in_slot: where operations find it, with the arrays in host memory
// replaced by their slot
static inline OptimizerState bucket_state(const Update *u, int i, bool in_slot) {
    const UpdateBucket *b = &u->list.buckets[i];
    const ParamLayout *layout = &u->zero->layout;
    floatX *params = zero_stored_params(u->zero, b->param_bucket) + b->offset;
    size_t shard = layout->sharding.stage == 0 ? 0 : param_bucket(layout, b->param_bucket).shard_offset;
    if (!in_slot || !layout->sharding.offload) { return state_at(&u->stored, params, shard + b->offset, b->v); }
    size_t slot = (size_t)(i % 2) * u->slot_elements;
    return state_at(&u->slots, u->slots.params ? u->slots.params + slot : params, slot, slot);
}

// the gradients of bucket i where this rank stores them; in_slot: where operations find them
static inline Gradient bucket_grads(const Update *u, int i, bool in_slot) {
    const UpdateBucket *b = &u->list.buckets[i];
    return in_slot && u->grad_slots.at ? gradient_at(u->grad_slots, (size_t)(i % 2) * u->slot_elements)
                                       : gradient_at(zero_stored_grads(u->zero, b->param_bucket), b->offset);
}

// Begins to copy an array of a bucket between host memory and its slot, unless both are the same memory, NULL or empty.
static inline void copy_array(Update *u, int i, void *stored, void *slot, size_t bytes, bool upload) {
    const Device *device = u->zero->device;
    int stream = COPY_UPDATE + i % 2;
    if (stored == slot || bytes == 0) { return; }
    u->copies[i % 2] = upload ? device->upload_begin(stream, slot, stored, bytes, u->zero->ex)
                              : device->download_begin(stream, stored, slot, bytes, u->zero->ex);
}

// a bucket's elements in Muon's matrices; the bucket is one range
static inline floatX *bucket_matrix(const Update *u, const UpdateBucket *b) {
    size_t offset = u->list.ranges[b->first_range].tensor_offset;
    return muon_update_at(&u->zero->layout, u->matrices, b->id, b->layer) + offset;
}

// Begins to upload the arrays that bucket i's operation reads, or to download its results. Buckets that clear or
// orthogonalise have no elements.
static inline void copy_bucket(Update *u, int i, bool upload) {
    OptimizerState stored = bucket_state(u, i, false), slot = bucket_state(u, i, true);
    Gradient grads = bucket_grads(u, i, false);
    const UpdateBucket *b = &u->list.buckets[i];
    const size_t of_part[] = {b->kind == UPDATE_MOMENTUM ? 0 : b->count, b->kind == UPDATE_WEIGHTS ? 0 : b->count,
                              b->kind == UPDATE_ADAMW ? b->count : 0};
    for (int array = 0; array < NUM_STATE_ARRAYS; array++) {
        const StateArray a = state_array(array, true, stored.moments);
        size_t bytes = state_elements(&a, of_part[a.part]) * dtype_size(a.dtype);
        copy_array(u, i, stored.array[array], slot.array[array], bytes, upload);
    }
    size_t bytes = of_part[OF_M] * dtype_size(grads.dtype);
    if (upload) { copy_array(u, i, grads.at, bucket_grads(u, i, true).at, bytes, true); }
}

// If the norm is not finite, moments and weights stay. Newton-Schulz runs on stale scratch, and its result is not used.
static inline void update_bucket(Update *u, int i, const real *norm_squared, const StepHyper *hyper) {
    const Zero *z = u->zero;
    const UpdateBucket *b = &u->list.buckets[i];
    const UpdateRange *ranges = u->ranges + b->first_range;
    OptimizerState state = bucket_state(u, i, true);
    Gradient grads = bucket_grads(u, i, true);
    switch (b->kind) {
    case UPDATE_ADAMW:
        z->ops->adamw_update(&state, grads, norm_squared, ranges, b->num_ranges, b->count, hyper, z->ex);
        break;
    case UPDATE_CLEAR: {
        size_t n = (size_t)z->layout.sharding.dp_size * muon_chunk(&z->layout, b->id);
        z->device->enqueue_fill(u->matrices, 0, n * sizeof(floatX), z->ex);
        break;
    }
    case UPDATE_MOMENTUM:
        z->ops->muon_momentum(bucket_matrix(u, b), &state, grads, norm_squared, ranges, b->count, hyper, z->ex);
        break;
    case UPDATE_ORTHOGONALISE: muon_orthogonalise(z, u->tp, u->matrices, b->id, b->layer); break;
    case UPDATE_WEIGHTS:
        z->ops->muon_weights(&state, bucket_matrix(u, b), norm_squared, ranges, b->count,
                             muon_matrix(&z->layout, b->id).scale, hyper, z->ex);
    }
}

// Every bucket in order. matrices: Muon's scratch, (muon_scratch_elements). Work enqueued from now on may read the
// stored state.
static inline void update_params(Update *u, floatX *matrices, const real *norm_squared, const StepHyper *hyper) {
    const Zero *z = u->zero;
    bool offload = z->layout.sharding.offload > 0;
    u->matrices = matrices;
    if (offload && u->list.num_buckets > 0) { copy_bucket(u, 0, true); }  // a shard may be all padding
    for (int i = 0; i < u->list.num_buckets; i++) {
        if (offload && i + 1 < u->list.num_buckets) { copy_bucket(u, i + 1, true); }
        if (u->list.buckets[i].count > 0) { z->device->copy_wait(u->copies[i % 2], z->ex); }
        update_bucket(u, i, norm_squared, hyper);
        if (offload) { copy_bucket(u, i, false); }
    }
    for (int slot = 0; slot < 2; slot++) {
        z->device->copy_wait(u->copies[slot], z->ex);
        u->copies[slot] = 0;
    }
}
