/*
ZeRO (Rajbhandari et al. 2020): N data-parallel ranks train one model and divide its state. Communication goes bucket by
bucket (layout.h: the embeddings, each layer, lnf) and overlaps compute.
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
the same bits at every stage.
With --offload the host owns the state that it holds, at any number of ranks. A bucket of parameters is uploaded to its
buffer before it is all-gathered, one layer ahead. A bucket of gradients leaves its buffer for host memory when its
backward and its reduction are done.
  --offload   in pinned host memory        buffers on the device
  1           optimizer state              update buckets (update.h)
  2           and gradients                the embeddings, two layers, lnf. Later micro-batches: the sum so far is
                                           uploaded before the bucket's backward, one layer ahead
  3           and parameters               the embeddings, two layers, lnf
  4           and inputs of blocks         two slots (memory/activation_offload.h)
Sums over micro-batches are computed on the device. fp32 sums of P parameters then move 4 P bytes each way over the link
for a micro-batch: at 25 GB/s, both ways at once, 0.16 ns a parameter. Sums on the host would move 2 P bytes over the
link; to add them would read and write 10 P bytes of host memory: at 50 GB/s 0.2 ns a parameter.
*/
#pragma once
#include "llmc/ops.h"            // IWYU pragma: export
#include "llmc/parallel/comm.h"  // IWYU pragma: export
#include "llmc/shapes/layout.h"  // IWYU pragma: export

typedef struct {
    ParamLayout layout;
    Comm *dp;
    const Ops *ops;
    const Device *device;
    Exec *ex;
    floatX *params;           // read by operations: the flat buffer, or buffers of buckets (buffers_params)
    floatX *stored_params;    // stored by this rank: the flat buffer or its shard; in host memory from --offload 3 on
    Gradient grads;           // written by operations: the flat buffer, or buffers of buckets (buffers_gradients)
    Gradient stored_grads;    // stored by this rank: the flat buffer or its shard; in host memory from --offload 2 on
    Gradient reduced_chunks;  // stages 2 and 3 at --offload 2: buffers of this rank's chunks of buckets
    bool changed;             // parameters changed and were not uploaded and all-gathered since
    // the current micro-step
    GradMode mode;
    bool first_and_last, last;  // the micro-step is the only one of its step, the last one
    // collectives not waited for, one a bucket; 0: none
    CommWork *gathers, *reductions;
    // --offload: the latest copy of each buffer; 0: none, or waited for
    CopyWork param_copies[BUCKET_BUFFERS], grad_copies[BUCKET_BUFFERS];
    int buffered[2];  // buffers_params: the bucket in each layer buffer, or NO_BUCKET
} Zero;

// dp: a group of layout.sharding.dp_size ranks
static inline void zero_open(Zero *z, const ParamLayout *layout, Comm *dp, const Ops *ops, const Device *device,
                             Exec *ex) {
    memset(z, 0, sizeof *z);
    z->layout = *layout;
    z->dp = dp;
    z->ops = ops;
    z->device = device;
    z->ex = ex;
    z->gathers = (CommWork *)xcalloc(2 * (size_t)num_buckets(layout), sizeof *z->gathers);
    z->reductions = z->gathers + num_buckets(layout);
}

static inline void zero_close(Zero *z) { free(z->gathers); }

static inline int zero_offload(const Zero *z) { return z->layout.sharding.offload; }

// ---- where a bucket is

static inline floatX *zero_params(const Zero *z, int bucket) {
    bool buffered = buffers_params(&z->layout.sharding);
    return z->params + (buffered ? bucket_buffer(&z->layout, bucket) : param_bucket(&z->layout, bucket).offset);
}

static inline Gradient zero_grads(const Zero *z, int bucket) {
    bool buffered = buffers_gradients(&z->layout.sharding);
    size_t offset = buffered ? bucket_buffer(&z->layout, bucket) : param_bucket(&z->layout, bucket).offset;
    return gradient_at(z->grads, offset);
}

static inline size_t offset_in_bucket(const ParamLayout *layout, ParamId id, int layer) {
    return param_offset(layout, id, layer) - param_bucket(layout, param_bucket_of(layout, id, layer)).offset;
}

// one tensor of one layer, 0 for a tensor outside of the layers
static inline floatX *zero_param(const Zero *z, ParamId id, int layer) {
    return zero_params(z, param_bucket_of(&z->layout, id, layer)) + offset_in_bucket(&z->layout, id, layer);
}
static inline Gradient zero_grad(const Zero *z, ParamId id, int layer) {
    Gradient bucket = zero_grads(z, param_bucket_of(&z->layout, id, layer));
    return gradient_at(bucket, offset_in_bucket(&z->layout, id, layer));
}

// name (size bytes) = the parameter at this address that block `layer` reads, or the model outside of its blocks; "" if
// there is none. For --profile and --nan-check.
static inline void zero_param_name(char *name, size_t size, const Zero *z, int layer, const void *at) {
    const int outside = final_bucket(&z->layout);
    const int buckets[] = {embeddings_bucket(), outside, layer == NO_LAYER ? outside : layer_bucket(layer)};
    *name = 0;
    for (int i = 0; i < 3; i++) {
        int kind = bucket_kind(&z->layout, buckets[i]), of_layer = kind == LAYER_BUCKET ? layer : 0;
        for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
            if (zero_param(z, (ParamId)id, of_layer) == at) { param_name(name, size, (ParamId)id, of_layer); }
        }
    }
}

// the chunk of the bucket that this rank owns and its optimizer updates
static inline floatX *zero_owned_params(const Zero *z, int bucket) {
    Bucket b = param_bucket(&z->layout, bucket);
    return z->stored_params + (shards_params(&z->layout.sharding) ? b.shard_offset : b.owned_offset);
}

static inline Gradient zero_owned_grads(const Zero *z, int bucket) {
    Bucket b = param_bucket(&z->layout, bucket);
    return gradient_at(z->stored_grads, shards_gradients(&z->layout.sharding) ? b.shard_offset : b.owned_offset);
}

// the parameters and the reduced gradients that this rank updates: the bucket at stage 0, the owned chunk at 1 to 3
static inline floatX *zero_stored_params(const Zero *z, int bucket) {
    bool whole = z->layout.sharding.stage == 0;
    return whole ? z->stored_params + param_bucket(&z->layout, bucket).offset : zero_owned_params(z, bucket);
}

static inline Gradient zero_stored_grads(const Zero *z, int bucket) {
    bool whole = z->layout.sharding.stage == 0;
    return whole ? gradient_at(z->stored_grads, param_bucket(&z->layout, bucket).offset) : zero_owned_grads(z, bucket);
}

// Stages 2 and 3: device memory where this rank's chunk is summed over ranks and micro-batches.
static inline Gradient zero_reduced_chunk(const Zero *z, int bucket) {
    size_t offset = bucket_buffer(&z->layout, bucket) / (size_t)z->layout.sharding.dp_size;
    return zero_offload(z) >= OFFLOAD_GRADIENTS ? gradient_at(z->reduced_chunks, offset) : zero_owned_grads(z, bucket);
}

// ---- device_poison between two uses of a buffer

// The gaps between tensors are not poisoned: they are reduced with the tensors, and the norm reads them.
static inline void zero_poison_grads(const Zero *z, int bucket) {
    int kind = bucket_kind(&z->layout, bucket), layer = kind == LAYER_BUCKET ? bucket - 1 : 0;
    for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
        Gradient tensor = zero_grad(z, (ParamId)id, layer);
        device_poison(z->device, tensor.at, param_count(&z->layout, (ParamId)id) * dtype_size(tensor.dtype), z->ex);
    }
}

// Marks both layer buffers empty.
static inline void zero_empty_buffers(Zero *z) {
    z->buffered[0] = z->buffered[1] = NO_BUCKET;
    if (!buffers_params(&z->layout.sharding)) { return; }
    size_t first = bucket_buffer(&z->layout, 1), end = bucket_buffer(&z->layout, num_buckets(&z->layout) - 1);
    device_poison(z->device, zero_params(z, 1), (end - first) * sizeof(floatX), z->ex);
}

// ---- parameters

static inline CopyWork *zero_param_copy(Zero *z, int bucket) {
    return &z->param_copies[buffer_of_bucket(&z->layout, bucket)];
}

// Begins to all-gather a bucket. With --offload 3 an upload of the part that this rank stores comes first.
static inline void zero_gather(Zero *z, int bucket) {
    Bucket b = param_bucket(&z->layout, bucket);
    bool whole = z->layout.sharding.stage == 0;
    floatX *params = zero_params(z, bucket), *own = zero_stored_params(z, bucket);
    if (buffers_params(&z->layout.sharding)) { device_poison(z->device, params, b.size * sizeof(floatX), z->ex); }
    if (zero_offload(z) >= OFFLOAD_PARAMS) {
        floatX *to = whole ? params : params + b.owned_offset - b.offset;
        size_t bytes = (whole ? b.size : b.chunk) * sizeof(floatX);
        *zero_param_copy(z, bucket) = z->device->upload_begin(COPY_PARAMS, to, own, bytes, z->ex);
        own = to;
    }
    if (whole) { return; }
    comm_after_copy(*zero_param_copy(z, bucket), z->dp, z->ex);
    z->gathers[bucket] = comm_all_gather(params, own, b.chunk, DT_FLOATX, z->dp, z->ex);
}

// Stage 3 or --offload 3: a layer is uploaded and all-gathered each time it is read.
static inline bool zero_gathers_layers(const Zero *z, int bucket) {
    return bucket != NO_BUCKET && buffers_params(&z->layout.sharding) &&
           bucket_kind(&z->layout, bucket) == LAYER_BUCKET;
}

// Begins to all-gather a layer, unless it is in its buffer.
static inline void zero_prefetch(Zero *z, int bucket) {
    if (z->buffered[layer_buffer(bucket)] == bucket) { return; }
    z->buffered[layer_buffer(bucket)] = bucket;
    zero_gather(z, bucket);
}

// Begins to all-gather changed parameters in the order of the forward; without layers that are gathered for each use.
static inline void zero_gather_changed(Zero *z) {
    if (!z->changed) { return; }
    z->changed = false;
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        if (!zero_gathers_layers(z, b)) { zero_gather(z, b); }
    }
}

static inline void zero_bucket_params_wait(Zero *z, int bucket) {
    z->device->copy_wait(*zero_param_copy(z, bucket), z->ex);
    *zero_param_copy(z, bucket) = 0;
    if (z->gathers[bucket]) { comm_wait(z->gathers[bucket], z->dp, z->ex); }
    z->gathers[bucket] = 0;
}

// Work enqueued from now on may read the bucket's parameters. In buffers they stay valid until the next bucket with the
// same buffer. `next`: the bucket read after this one, or NO_BUCKET; a layer that has another buffer is prefetched.
static inline void zero_params_wait(Zero *z, int bucket, int next) {
    z->ex->layer = bucket_kind(&z->layout, bucket) == LAYER_BUCKET ? bucket - 1 : NO_LAYER;
    zero_gather_changed(z);
    if (zero_gathers_layers(z, bucket)) { zero_prefetch(z, bucket); }
    zero_bucket_params_wait(z, bucket);
    if (zero_gathers_layers(z, next) && layer_buffer(next) != layer_buffer(bucket)) { zero_prefetch(z, next); }
}

// Work enqueued from now on may read every bucket whose all-gather or upload has begun.
static inline void zero_wait_all(Zero *z) {
    for (int b = 0; b < num_buckets(&z->layout); b++) { zero_bucket_params_wait(z, b); }
}

// True if operations read other memory than this rank stores.
static inline bool zero_gathers(const Zero *z) {
    return z->layout.sharding.stage > 0 || zero_offload(z) >= OFFLOAD_PARAMS;
}

// The stored parameters changed; they are uploaded and all-gathered before the next read. At stage 0 without --offload
// there is nothing to do.
static inline void zero_params_changed(Zero *z) {
    zero_empty_buffers(z);
    z->changed = zero_gathers(z);
}

// ---- gradients

// Begins micro-step `micro` of a step. A micro-step makes the same calls every time, so a CUDA graph can capture it:
// the first one all-gathers parameters even if an evaluation has done so, and the layer buffers begin empty.
static inline void zero_micro_step(Zero *z, int micro, int micro_steps) {
    z->changed = micro == 0 && zero_gathers(z);
    z->mode = micro == 0 ? GRAD_SET : GRAD_ADD;
    z->last = micro == micro_steps - 1;
    z->first_and_last = micro_steps == 1;
    zero_empty_buffers(z);
}

// Whether the backward sets gradients or adds to them. At stages 2 and 3 it sets them: a buffer holds one micro-batch.
static inline GradMode zero_grad_mode(const Zero *z) { return z->layout.sharding.stage >= 2 ? GRAD_SET : z->mode; }

static inline bool zero_offloads_grads(const Zero *z) { return zero_offload(z) >= OFFLOAD_GRADIENTS; }

static inline CopyWork *zero_grad_copy(Zero *z, int bucket) {
    return &z->grad_copies[buffer_of_bucket(&z->layout, bucket)];
}

// Work enqueued from now on runs after the latest copy of the bucket's buffer.
static inline void zero_grad_copy_wait(Zero *z, int bucket) {
    z->device->copy_wait(*zero_grad_copy(z, bucket), z->ex);
    *zero_grad_copy(z, bucket) = 0;
}

// --offload 2: begins to copy a bucket's gradients between host memory and their buffer. Copies this rank's chunk at
// stages 2 and 3, and in stage 1's last micro-step; otherwise the whole bucket.
static inline void zero_copy_grads(Zero *z, int bucket, bool upload) {
    Bucket b = param_bucket(&z->layout, bucket);
    bool shards = shards_gradients(&z->layout.sharding);
    bool owned = shards || (z->layout.sharding.stage == 1 && z->last && !upload);
    Gradient buffer = shards ? zero_reduced_chunk(z, bucket) : zero_grads(z, bucket);
    if (owned && !shards) { buffer = gradient_at(buffer, b.owned_offset - b.offset); }
    Gradient stored = owned ? zero_owned_grads(z, bucket) : gradient_at(z->stored_grads, b.offset);
    size_t bytes = (owned ? b.chunk : b.size) * dtype_size(buffer.dtype);
    int stream = COPY_GRADIENTS + buffer_of_bucket(&z->layout, bucket) % 2;
    *zero_grad_copy(z, bucket) = upload ? z->device->upload_begin(stream, buffer.at, stored.at, bytes, z->ex)
                                        : z->device->download_begin(stream, stored.at, buffer.at, bytes, z->ex);
}

// --offload 2, later micro-steps: begins to upload the sum of a bucket's gradients, to which its backward adds. At
// stages 2 and 3 the backward sets gradients.
static inline void zero_upload_grads(Zero *z, int bucket) {
    if (!zero_offloads_grads(z) || zero_grad_mode(z) == GRAD_SET) { return; }
    zero_copy_grads(z, bucket, true);
}

// Begins to upload the gradients that a backward adds to first: of the embeddings, lnf and the last two layers.
static inline void zero_grads_prefetch(Zero *z) {
    int buckets = num_buckets(&z->layout);
    zero_upload_grads(z, embeddings_bucket());
    for (int b = buckets - 1; b > embeddings_bucket() && b >= buckets - 3; b--) { zero_upload_grads(z, b); }
}

// Work enqueued from now on may write the bucket's gradients, with zero_grad_mode.
static inline void zero_grads_acquire(Zero *z, int bucket) {
    if (!zero_offloads_grads(z) || shards_gradients(&z->layout.sharding)) { return; }
    zero_grad_copy_wait(z, bucket);
    if (zero_grad_mode(z) == GRAD_SET) { zero_poison_grads(z, bucket); }
}

// Reduced gradients of a bucket: adds them to the sum over micro-batches, and with --offload 2 begins to store them.
static inline void zero_store_grads(Zero *z, int bucket) {
    bool shards = shards_gradients(&z->layout.sharding), offloads = zero_offloads_grads(z);
    if (shards && !z->first_and_last) {
        Bucket b = param_bucket(&z->layout, bucket);
        Gradient reduced = gradient_at(zero_grads(z, bucket), b.owned_offset - b.offset);
        if (offloads) { zero_grad_copy_wait(z, bucket); }
        z->ops->gradient_accumulate((real *)zero_reduced_chunk(z, bucket).at, reduced, z->mode, b.chunk, z->ex);
    }
    if (shards) { zero_poison_grads(z, bucket); }
    if (!offloads) { return; }
    zero_copy_grads(z, bucket, false);
    int next = bucket - 2;  // with the same buffer
    if (!shards && bucket_kind(&z->layout, bucket) == LAYER_BUCKET && next >= layer_bucket(0)) {
        zero_upload_grads(z, next);
    }
}

// Work enqueued from now on may read the bucket's reduced gradients; with --offload 2 after zero_grads_wait.
static inline void zero_bucket_grads_wait(Zero *z, int bucket) {
    if (!z->reductions[bucket]) { return; }
    comm_wait(z->reductions[bucket], z->dp, z->ex);
    z->reductions[bucket] = 0;
    if (buffers_gradients(&z->layout.sharding)) { zero_store_grads(z, bucket); }
}

// Begins to reduce a bucket's gradients, which the backward has enqueued. If gradients are in buffers, it then waits
// for bucket + 1: the next layer of the backward is about to overwrite its buffer.
static inline void zero_reduce_bucket(Zero *z, int bucket) {
    int stage = z->layout.sharding.stage;
    bool shards = shards_gradients(&z->layout.sharding), offloads = zero_offloads_grads(z);
    if (z->layout.sharding.dp_size == 1 || (!shards && !z->last)) {
        if (offloads) { zero_store_grads(z, bucket); }
        return;
    }
    Bucket b = param_bucket(&z->layout, bucket);
    Gradient whole = zero_grads(z, bucket);
    if (stage == 0) {
        z->reductions[bucket] = comm_all_reduce(whole.at, b.size, whole.dtype, z->dp, z->ex);
    } else {
        bool accumulates = shards && !z->first_and_last;  // in place; zero_store_grads adds it to the shard
        Gradient chunk = gradient_at(whole, b.owned_offset - b.offset);
        Gradient out = shards && !accumulates ? zero_reduced_chunk(z, bucket) : chunk;
        // the chunk's buffer may still be stored for an earlier bucket
        if (out.at != chunk.at) { comm_after_copy(*zero_grad_copy(z, bucket), z->dp, z->ex); }
        z->reductions[bucket] = comm_reduce_scatter(out.at, whole.at, b.chunk, whole.dtype, z->dp, z->ex);
        if (accumulates && offloads && z->mode == GRAD_ADD) { zero_copy_grads(z, bucket, true); }
    }
    bool buffered = buffers_gradients(&z->layout.sharding);
    if (buffered && bucket < num_buckets(&z->layout) - 1) { zero_bucket_grads_wait(z, bucket + 1); }
}

static inline void zero_grads_reduce(Zero *z, int bucket) {
    zero_reduce_bucket(z, bucket);
    z->ex->layer = NO_LAYER;  // the bucket's backward is over
}

// Work enqueued from now on may read all gradients that this rank stores.
static inline void zero_grads_wait(Zero *z) {
    for (int b = 0; b < num_buckets(&z->layout); b++) { zero_bucket_grads_wait(z, b); }
    for (int b = 0; b < num_buckets(&z->layout); b++) { zero_grad_copy_wait(z, b); }
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
