/*
ZeRO (Rajbhandari et al. 2020): N data-parallel ranks train one model and divide its state. Communication goes bucket by
bucket (layout.h: the embeddings, each layer, lnf) and runs beside compute.
  -z   sharded                          gradients                              parameters
  0    nothing                          all-reduce, last micro-batch           none
  1    optimizer state                  reduce-scatter, last micro-batch       all-gather, next forward
  2    optimizer state, gradients       reduce-scatter, every micro-batch      all-gather, next forward
  3    optimizer state, gradients,      reduce-scatter, every micro-batch      all-gather of a layer per forward and
       parameters                                                              backward; other buckets as at 2
A bucket's gradients are reduced when its backward is enqueued. An all-gather of the next forward begins with it and is
waited for where the bucket is read. At stages 2 and 3 the gradients of a layer live in one of two buffers, reused two
layers later. With several micro-batches the shard accumulates them in real; with one, the shard has the type of the
gradients (stored_gradients). At stage 3 the parameters of a layer live in one of two buffers too, and the next layer is
prefetched. Order and rounding of sums: comm.h. With MPI they do not depend on the stage: a step of one micro-batch has
the same bits at every stage. Bytes sent: traffic.h.
defines: Zero, zero_open, zero_close, zero_params, zero_grads, zero_owned_params, zero_owned_grads, zero_stored_grads,
         zero_params_wait, zero_wait_all, zero_all_params_wait, zero_params_changed, zero_micro_step, zero_grad_mode,
         zero_grads_reduce, zero_grads_wait, zero_gathers_layers, zero_norm_squared
*/
#pragma once
#include "llmc/ops.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/layout.h"

typedef struct {
    ParamLayout layout;
    Comm *dp;
    const Ops *ops;
    Exec *ex;
    floatX *params;        // read by operations: the flat buffer, or at stage 3 buffers of buckets
    floatX *params_shard;  // stage 3: this rank's shard
    Gradient grads;        // written by operations: the flat buffer, or at stages 2 and 3 buffers of buckets
    Gradient grads_shard;  // stages 2 and 3: this rank's shard
    bool changed;          // this rank's shard of the parameters changed and was not all-gathered since
    // the current micro-step
    GradMode mode;
    bool first_and_last, last;  // the micro-step is the only one of its step, the last one
    // collectives not waited for, one a bucket; 0: none
    CommWork *gathers, *reductions;
    int buffered[2];  // stage 3: the bucket in each layer buffer; 0: none
} Zero;

// dp: a group of layout.sharding.dp_size ranks
static inline void zero_open(Zero *z, const ParamLayout *layout, Comm *dp, const Ops *ops, Exec *ex) {
    memset(z, 0, sizeof *z);
    z->layout = *layout;
    z->dp = dp;
    z->ops = ops;
    z->ex = ex;
    z->gathers = (CommWork *)xcalloc(2 * (size_t)num_buckets(layout), sizeof *z->gathers);
    z->reductions = z->gathers + num_buckets(layout);
}

static inline void zero_close(Zero *z) { free(z->gathers); }

// ---- where a bucket is

static inline floatX *zero_params(const Zero *z, int bucket) {
    bool buffered = z->layout.sharding.stage >= 3;
    return z->params + (buffered ? bucket_buffer(&z->layout, bucket) : param_bucket(&z->layout, bucket).offset);
}

static inline Gradient zero_grads(const Zero *z, int bucket) {
    bool buffered = z->layout.sharding.stage >= 2;
    size_t offset = buffered ? bucket_buffer(&z->layout, bucket) : param_bucket(&z->layout, bucket).offset;
    return gradient_at(z->grads, offset);
}

// the chunk of the bucket that this rank owns and its optimizer updates
static inline floatX *zero_owned_params(const Zero *z, int bucket) {
    Bucket b = param_bucket(&z->layout, bucket);
    return z->layout.sharding.stage < 3 ? z->params + b.owned_offset : z->params_shard + b.shard_offset;
}

static inline Gradient zero_owned_grads(const Zero *z, int bucket) {
    Bucket b = param_bucket(&z->layout, bucket);
    bool whole = z->layout.sharding.stage < 2;
    return whole ? gradient_at(z->grads, b.owned_offset) : gradient_at(z->grads_shard, b.shard_offset);
}

// the reduced gradients that this rank stores: the bucket at stage 0, the owned chunk at 1 to 3
static inline Gradient zero_stored_grads(const Zero *z, int bucket) {
    return z->layout.sharding.stage == 0 ? zero_grads(z, bucket) : zero_owned_grads(z, bucket);
}

// ---- a POISON_SCRATCH build fills reused buffers with NaN between uses, so that a stale read shows

static inline void zero_poison(const Zero *z, void *memory, size_t bytes) {
#ifdef POISON_SCRATCH
    z->dp->device->enqueue_fill(memory, 0xFF, bytes, z->ex);
#else
    (void)z, (void)memory, (void)bytes;
#endif
}

// The gaps between tensors are not poisoned: they are reduced with the tensors, and the norm reads them.
static inline void zero_poison_grads(const Zero *z, int bucket) {
    int kind = bucket_kind(&z->layout, bucket), layer = kind == LAYER_BUCKET ? bucket - 1 : 0;
    for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
        size_t offset = param_offset(&z->layout, (ParamId)id, layer) - param_bucket(&z->layout, bucket).offset;
        Gradient tensor = gradient_at(zero_grads(z, bucket), offset);
        zero_poison(z, tensor.at, param_count(&z->layout, (ParamId)id) * dtype_size(tensor.dtype));
    }
}

// Marks both layer buffers empty.
static inline void zero_empty_buffers(Zero *z) {
    z->buffered[0] = z->buffered[1] = 0;
    if (z->layout.sharding.stage < 3) { return; }
    size_t first = bucket_buffer(&z->layout, 1), end = bucket_buffer(&z->layout, num_buckets(&z->layout) - 1);
    zero_poison(z, zero_params(z, 1), (end - first) * sizeof(floatX));
}

// ---- parameters

static inline void zero_gather(Zero *z, int bucket) {
    size_t chunk = param_bucket(&z->layout, bucket).chunk, size = param_bucket(&z->layout, bucket).size;
    if (z->layout.sharding.stage >= 3) { zero_poison(z, zero_params(z, bucket), size * sizeof(floatX)); }
    z->gathers[bucket] =
        comm_all_gather(zero_params(z, bucket), zero_owned_params(z, bucket), chunk, DT_FLOATX, z->dp, z->ex);
}

// Stage 3: a layer is all-gathered each time it is read.
static inline bool zero_gathers_layers(const Zero *z, int bucket) {
    return z->layout.sharding.stage >= 3 && bucket_kind(&z->layout, bucket) == LAYER_BUCKET;
}

// Begins to all-gather a layer, unless it is in its buffer.
static inline void zero_prefetch(Zero *z, int bucket) {
    if (z->buffered[layer_buffer(bucket)] == bucket) { return; }
    z->buffered[layer_buffer(bucket)] = bucket;
    zero_gather(z, bucket);
}

// Begins to all-gather changed parameters in the order of the forward; at stage 3 without the layers.
static inline void zero_gather_changed(Zero *z) {
    if (!z->changed) { return; }
    z->changed = false;
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        if (!zero_gathers_layers(z, b)) { zero_gather(z, b); }
    }
}

// Work enqueued from now on may read the bucket's parameters. At stage 3 they stay valid until the next bucket with the
// same buffer. `next`: the bucket read after this one, or NO_BUCKET; at stage 3 it is prefetched if it has another
// buffer.
static inline void zero_params_wait(Zero *z, int bucket, int next) {
    z->ex->layer = bucket_kind(&z->layout, bucket) == LAYER_BUCKET ? bucket - 1 : NO_LAYER;
    zero_gather_changed(z);
    if (zero_gathers_layers(z, bucket)) { zero_prefetch(z, bucket); }
    if (z->gathers[bucket]) { comm_wait(z->gathers[bucket], z->dp, z->ex); }
    z->gathers[bucket] = 0;
    if (zero_gathers_layers(z, next) && layer_buffer(next) != layer_buffer(bucket)) { zero_prefetch(z, next); }
}

// Work enqueued from now on may read every bucket whose all-gather has begun.
static inline void zero_wait_all(Zero *z) {
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        if (z->gathers[b]) { comm_wait(z->gathers[b], z->dp, z->ex); }
        z->gathers[b] = 0;
    }
}

// Work enqueued from now on may read all parameters; at stage 3 without the layers.
static inline void zero_all_params_wait(Zero *z) {
    zero_gather_changed(z);
    zero_wait_all(z);
}

// This rank's shard changed; it is all-gathered before the next read. At stage 0 there is nothing to all-gather.
static inline void zero_params_changed(Zero *z) {
    zero_empty_buffers(z);
    z->changed = z->layout.sharding.stage > 0;
}

// ---- gradients

// Begins micro-step `micro` of a step. A micro-step makes the same calls every time, so a CUDA graph can capture it:
// the first one all-gathers parameters even if an evaluation has done so, and the layer buffers begin empty.
static inline void zero_micro_step(Zero *z, int micro, int micro_steps) {
    z->changed = micro == 0 && z->layout.sharding.stage > 0;
    z->mode = micro == 0 ? GRAD_SET : GRAD_ADD;
    z->last = micro == micro_steps - 1;
    z->first_and_last = micro_steps == 1;
    zero_empty_buffers(z);
}

// Whether the backward sets gradients or adds to them. At stages 2 and 3 it sets them: a buffer holds one micro-batch.
static inline GradMode zero_grad_mode(const Zero *z) { return z->layout.sharding.stage >= 2 ? GRAD_SET : z->mode; }

// Work enqueued from now on may read the bucket's reduced gradients.
static inline void zero_bucket_wait(Zero *z, int bucket) {
    if (!z->reductions[bucket]) { return; }
    comm_wait(z->reductions[bucket], z->dp, z->ex);
    z->reductions[bucket] = 0;
    if (z->layout.sharding.stage < 2) { return; }
    if (!z->first_and_last) {
        Bucket b = param_bucket(&z->layout, bucket);
        Gradient reduced = gradient_at(zero_grads(z, bucket), b.owned_offset - b.offset);
        z->ops->gradient_accumulate((real *)zero_owned_grads(z, bucket).at, reduced, z->mode, b.chunk, z->ex);
    }
    zero_poison_grads(z, bucket);
}

// Begins to reduce a bucket's gradients, which the backward has enqueued. Stages 2 and 3 then wait for bucket + 1,
// reduced before it: the next layer of the backward reuses the buffer of bucket + 1.
static inline void zero_reduce_bucket(Zero *z, int bucket) {
    int stage = z->layout.sharding.stage;
    if (z->layout.sharding.dp_size == 1 || (stage < 2 && !z->last)) { return; }
    Bucket b = param_bucket(&z->layout, bucket);
    Gradient whole = zero_grads(z, bucket);
    if (stage == 0) {
        z->reductions[bucket] = comm_all_reduce(whole.at, b.size, whole.dtype, z->dp, z->ex);
    } else {
        bool accumulates = stage >= 2 && !z->first_and_last;  // in place; zero_bucket_wait adds it to the shard
        Gradient chunk = gradient_at(whole, b.owned_offset - b.offset);
        Gradient out = stage >= 2 && !accumulates ? zero_owned_grads(z, bucket) : chunk;
        z->reductions[bucket] = comm_reduce_scatter(out.at, whole.at, b.chunk, whole.dtype, z->dp, z->ex);
    }
    if (stage >= 2 && bucket < num_buckets(&z->layout) - 1) { zero_bucket_wait(z, bucket + 1); }
}

static inline void zero_grads_reduce(Zero *z, int bucket) {
    zero_reduce_bucket(z, bucket);
    z->ex->layer = NO_LAYER;  // the bucket's backward is over
}

// Work enqueued from now on may read all gradients that this rank stores.
static inline void zero_grads_wait(Zero *z) {
    for (int b = 0; b < num_buckets(&z->layout); b++) { zero_bucket_wait(z, b); }
}

// *norm_squared += squares of the gradients that this rank owns; replicated tensors count on tensor-parallel
// rank 0 alone.
static inline void zero_norm_squared(const Zero *z, real *norm_squared) {
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        Range ranges[LAYER_PARAMS] = {{0, param_bucket(&z->layout, b).chunk}};
        int count = 1;  // the whole chunk
        if (z->layout.sharding.tp_rank > 0) { count = bucket_ranges(ranges, &z->layout, b, true, true); }
        for (int i = 0; i < count; i++) {
            Gradient owned = gradient_at(zero_owned_grads(z, b), ranges[i].offset);
            z->ops->global_norm_squared(norm_squared, owned, GRAD_ADD, ranges[i].count, z->ex);
        }
    }
}
