/*
AdamW's update, bucket by bucket (update_buckets.h). With --offload, the state of a bucket that is in host memory passes
through one of two slots on the device, a double buffer.
  bucket i - 1   is downloaded to host memory while bucket i is uploaded
  bucket i       is uploaded one bucket ahead, before adamw_update reads and writes its slot
Each slot has a copy stream: bucket i + 2 is uploaded after bucket i was downloaded. With --offload 1 a bucket has
moments and masters or remainders; from 2 on also gradients, which are not downloaded; from 3 on also parameters.
defines: Update, update_open, update_close, BucketState, update_acquire, update_release, update_wait
*/
#pragma once
#include "llmc/shapes/update_buckets.h"
#include "llmc/parallel/zero.h"

typedef struct {
    const Zero *zero;
    OptimizerState stored;      // of this rank; at --offload 1 to 4 moments, masters and remainders are in host memory
    OptimizerState slots;       // --offload: two slots on the device for each array that is in host memory; else NULL
    Gradient grad_slots;        // --offload 2: two slots
    size_t slot_elements;       // of one slot
    const UpdateRange *ranges;  // on the device
    UpdateBucket *buckets;
    int num_buckets;
    CopyWork copies[2];  // --offload: the latest copy of each slot
} Update;

// Cuts the update into buckets and uploads their ranges to `ranges`, (num_update_ranges) on the device; NULL: the model
// does not train. slots, grad_slots: as in Update. Free with update_close.
static inline void update_open(Update *u, const Zero *zero, const OptimizerState *stored, const OptimizerState *slots,
                               Gradient grad_slots, UpdateRange *ranges) {
    const ParamLayout *layout = &zero->layout;
    memset(u, 0, sizeof *u);
    u->zero = zero;
    u->stored = *stored;
    u->slots = *slots;
    u->grad_slots = grad_slots;
    u->ranges = ranges;
    if (!ranges) { return; }
    UpdateRange *all = (UpdateRange *)xmalloc(num_update_ranges(layout) * sizeof *all);
    u->buckets = (UpdateBucket *)xmalloc((size_t)update_buckets(NULL, layout) * sizeof *u->buckets);
    u->num_buckets = update_buckets(u->buckets, layout);
    u->slot_elements = update_bucket_elements(layout);
    int count = set_update_ranges(all, u->buckets, layout);
    zero->device->upload(ranges, all, (size_t)count * sizeof *all);
    free(all);
}

static inline void update_close(Update *u) { free(u->buckets); }

// the arguments of adamw_update for an update bucket: its first element in each array, its ranges, its size
typedef struct {
    OptimizerState state;
    Gradient grads;
    const UpdateRange *ranges;
    int num_ranges;
    size_t count;
} BucketState;

static inline void *elements_at(const void *array, size_t offset, DType dtype) {
    return array ? (char *)array + offset * dtype_size(dtype) : NULL;
}

// the state from element `offset` on; `params` may be at another offset
static inline OptimizerState optimizer_at(const OptimizerState *o, floatX *params, size_t offset) {
    OptimizerState at = {
        .params = params,
        .master = (real *)elements_at(o->master, offset, DT_REAL),
        .remainder = (int16_t *)elements_at(o->remainder, offset, DT_I16),
        .m = elements_at(o->m, offset, o->moments),
        .v = elements_at(o->v, offset, o->moments),
        .moments = o->moments,
        .m_scales = (float *)elements_at(o->m_scales, offset / MOMENT_BLOCK, DT_F32),
        .v_scales = (float *)elements_at(o->v_scales, offset / MOMENT_BLOCK, DT_F32),
    };
    return at;
}

// a bucket where this rank stores it
static inline BucketState bucket_stored(const Update *u, const UpdateBucket *b) {
    const Zero *z = u->zero;
    size_t shard = z->layout.sharding.stage == 0 ? 0 : param_bucket(&z->layout, b->param_bucket).shard_offset;
    floatX *params = zero_stored_params(z, b->param_bucket) + b->offset;
    BucketState at = {optimizer_at(&u->stored, params, shard + b->offset),
                      gradient_at(zero_stored_grads(z, b->param_bucket), b->offset), u->ranges + b->first_range,
                      b->num_ranges, b->count};
    return at;
}

// a bucket where adamw_update finds it: arrays in host memory are in a slot
static inline BucketState bucket_on_device(const Update *u, int i) {
    BucketState at = bucket_stored(u, &u->buckets[i]);
    if (!u->zero->layout.sharding.offload) { return at; }
    size_t slot = (size_t)(i % 2) * u->slot_elements;
    floatX *params = u->slots.params ? u->slots.params + slot : at.state.params;
    at.state = optimizer_at(&u->slots, params, slot);
    if (u->grad_slots.at) { at.grads = gradient_at(u->grad_slots, slot); }
    return at;
}

// Begins to copy an array of a bucket between host memory and its slot, unless both are the same memory or NULL.
static inline void copy_array(Update *u, int i, void *stored, void *slot, size_t bytes, bool upload) {
    const Device *device = u->zero->device;
    int stream = COPY_UPDATE + i % 2;
    if (stored == slot) { return; }
    u->copies[i % 2] = upload ? device->upload_begin(stream, slot, stored, bytes, u->zero->ex)
                              : device->download_begin(stream, stored, slot, bytes, u->zero->ex);
}

static inline void copy_bucket(Update *u, int i, bool upload) {
    BucketState stored = bucket_stored(u, &u->buckets[i]), slot = bucket_on_device(u, i);
    const OptimizerState *from = &stored.state, *to = &slot.state;
    size_t n = u->buckets[i].count, moments = n * dtype_size(from->moments), scales = n / MOMENT_BLOCK * sizeof(float);
    copy_array(u, i, from->params, to->params, n * sizeof *from->params, upload);
    copy_array(u, i, from->master, to->master, n * sizeof *from->master, upload);
    copy_array(u, i, from->remainder, to->remainder, n * sizeof *from->remainder, upload);
    copy_array(u, i, from->m, to->m, moments, upload);
    copy_array(u, i, from->v, to->v, moments, upload);
    copy_array(u, i, from->m_scales, to->m_scales, scales, upload);
    copy_array(u, i, from->v_scales, to->v_scales, scales, upload);
    if (upload) { copy_array(u, i, stored.grads.at, slot.grads.at, n * dtype_size(stored.grads.dtype), true); }
}

// Bucket i of the update, which work enqueued from now on may read and write. Buckets are acquired in order.
static inline BucketState update_acquire(Update *u, int i) {
    if (!u->zero->layout.sharding.offload) { return bucket_on_device(u, i); }
    if (i == 0) { copy_bucket(u, 0, true); }
    if (i + 1 < u->num_buckets) { copy_bucket(u, i + 1, true); }
    u->zero->device->copy_wait(u->copies[i % 2], u->zero->ex);
    return bucket_on_device(u, i);
}

// Begins to store bucket i, after its adamw_update was enqueued.
static inline void update_release(Update *u, int i) {
    if (u->zero->layout.sharding.offload) { copy_bucket(u, i, false); }
}

// Work enqueued from now on may read the stored state.
static inline void update_wait(Update *u) {
    for (int slot = 0; slot < 2; slot++) {
        u->zero->device->copy_wait(u->copies[slot], u->zero->ex);
        u->copies[slot] = 0;
    }
}
