/*
ZeRO (Rajbhandari et al. 2020): N processes train one model, each on other data, and each keeps a part of its state.
What they tell each other goes a bucket at a time (layout.h: the embeddings, each layer, lnf), beside other work:
  -z   a rank keeps 1/N of        gradients                                 parameters
  0    nothing                    all_reduce    } after the backward of
  1    moments, masters           reduce_scatter } the last micro-batch     all_gather where the next forward begins,
  2    and gradients              reduce_scatter after every backward       joined where it reads the bucket
  3    and parameters             the same                                  all_gather of a layer before its forward and
                                                                            backward; of the others as at 1 and 2
At stages 2 and 3 the gradients of a layer live in one of two buffers, which is used again two layers on; a rank's part
is summed over the micro-batches in real. At stage 3 so do the parameters, gathered a layer ahead.
Sums are those of comm.h. With MPI they do not depend on the stage: an update of one micro-batch has the same bits at
all of them. Bytes sent a rank, of P parameters and G micro-batches, times (N - 1) / N:
  0    2 P gradients                          2    G P gradients + P parameters
  1    P gradients + P parameters             3    G P gradients + nearly 2 G P parameters (zero_sent_bytes)
defines: Zero, zero_open, zero_close, zero_params, zero_grads, zero_own_params, zero_own_grads, zero_kept_grads,
         zero_params_ready, zero_join_sent, zero_all_params_ready, zero_params_changed, zero_micro_step, zero_grad_mode,
         zero_gradients_done, zero_backward_done, zero_layer_gathers, zero_sent_bytes
*/
#pragma once
#include "llmc/memory/activations.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/layout.h"
#include "llmc/ops.h"

typedef struct {
    ParamLayout layout;
    Comm *dp;  // the ranks whose data differ
    const Ops *ops;
    Exec *ex;
    floatX *params;        // what operations read: the block, or at stage 3 buffers
    floatX *params_shard;  // stage 3: this rank's part
    Gradient grads;        // what they write: the block, or at stages 2 and 3 buffers
    Gradient grads_shard;  // stages 2 and 3: this rank's part
    bool changed;          // this rank's part of the parameters has; nothing has been sent since
    // the micro-step at hand
    GradMode mode;
    bool only, last;  // is it the only one, the last one of its update
    // on their way, by bucket; 0: nothing
    CommWork *gathers, *reductions;
    int held[2];  // stage 3: the bucket in each buffer of layers, 0: none
} Zero;

// dp: a group of layout.sharding.dp_size
static inline void zero_open(Zero *z, const ParamLayout *layout, Comm *dp, const Ops *ops, Exec *ex) {
    memset(z, 0, sizeof *z);
    z->layout = *layout;
    z->dp = dp, z->ops = ops, z->ex = ex;
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
    size_t at = buffered ? bucket_buffer(&z->layout, bucket) : param_bucket(&z->layout, bucket).offset;
    return gradient_at(z->grads, at);
}

// the rank's own chunk, which its optimizer works on
static inline floatX *zero_own_params(const Zero *z, int bucket) {
    Bucket b = param_bucket(&z->layout, bucket);
    return z->layout.sharding.stage < 3 ? z->params + b.owned_offset : z->params_shard + b.shard_offset;
}

static inline Gradient zero_own_grads(const Zero *z, int bucket) {
    Bucket b = param_bucket(&z->layout, bucket);
    return z->layout.sharding.stage < 2 ? gradient_at(z->grads, b.owned_offset)
                                        : gradient_at(z->grads_shard, b.shard_offset);
}

// all that it keeps of the bucket: at stage 0 the whole
static inline Gradient zero_kept_grads(const Zero *z, int bucket) {
    return z->layout.sharding.stage == 0 ? zero_grads(z, bucket) : zero_own_grads(z, bucket);
}

// ---- buffers that are used again

// In a POISON_SCRATCH build such memory is NaN while it holds nothing, so that a stale read shows.
static inline void zero_poison(const Zero *z, void *at, size_t bytes) {
#ifdef POISON_SCRATCH
    z->dp->device->enqueue_fill(at, 0xFF, bytes, z->ex);
#else
    (void)z, (void)at, (void)bytes;
#endif
}

// What the backward wrote of the bucket has gone where it is summed. The gaps between tensors travel with it, and stay
// zero.
static inline void zero_poison_grads(const Zero *z, int bucket) {
    int kind = bucket_kind(&z->layout, bucket), layer = kind == LAYER_BUCKET ? bucket - 1 : 0;
    for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
        size_t at = param_offset(&z->layout, (ParamId)id, layer) - param_bucket(&z->layout, bucket).offset;
        Gradient tensor = gradient_at(zero_grads(z, bucket), at);
        zero_poison(z, tensor.at, param_count(&z->layout, (ParamId)id) * dtype_size(tensor.dtype));
    }
}

// The buffers of layers hold none any more.
static inline void zero_forget_layers(Zero *z) {
    z->held[0] = z->held[1] = 0;
    if (z->layout.sharding.stage < 3) { return; }
    size_t first = bucket_buffer(&z->layout, 1), end = bucket_buffer(&z->layout, num_buckets(&z->layout) - 1);
    zero_poison(z, zero_params(z, 1), (end - first) * sizeof(floatX));
}

// ---- parameters

static inline void zero_gather(Zero *z, int bucket) {
    size_t chunk = param_bucket(&z->layout, bucket).chunk, size = param_bucket(&z->layout, bucket).size;
    if (z->layout.sharding.stage >= 3) { zero_poison(z, zero_params(z, bucket), size * sizeof(floatX)); }
    z->gathers[bucket] =
        comm_all_gather(zero_params(z, bucket), zero_own_params(z, bucket), chunk, DT_FLOATX, z->dp, z->ex);
}

static inline bool zero_gathers_layers(const Zero *z, int bucket) {
    return z->layout.sharding.stage >= 3 && bucket_kind(&z->layout, bucket) == LAYER_BUCKET;
}

// Starts to gather a layer, unless its buffer holds it.
static inline void zero_fetch(Zero *z, int bucket) {
    if (z->held[bucket % 2] == bucket) { return; }
    z->held[bucket % 2] = bucket;
    zero_gather(z, bucket);
}

// Starts to gather what has changed, in the order of the forward, but for layers that are fetched.
static inline void zero_send_params(Zero *z) {
    if (!z->changed) { return; }
    z->changed = false;
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        if (!zero_gathers_layers(z, b)) { zero_gather(z, b); }
    }
}

// Work given from now on may read the bucket's parameters, until another layer takes their buffer. `next`: the one that
// is to be read after it, 0 for none: it is on its way meanwhile, where it has another buffer.
static inline void zero_params_ready(Zero *z, int bucket, int next) {
    zero_send_params(z);
    if (zero_gathers_layers(z, bucket)) { zero_fetch(z, bucket); }
    if (z->gathers[bucket]) { comm_wait(z->gathers[bucket], z->dp, z->ex); }
    z->gathers[bucket] = 0;
    if (zero_gathers_layers(z, next) && (next - bucket) % 2 != 0) { zero_fetch(z, next); }
}

// What is on its way is there for work given from now on.
static inline void zero_join_sent(Zero *z) {
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        if (z->gathers[b]) { comm_wait(z->gathers[b], z->dp, z->ex); }
        z->gathers[b] = 0;
    }
}

// Work given from now on may read all parameters but those of layers that are fetched.
static inline void zero_all_params_ready(Zero *z) {
    zero_send_params(z);
    zero_join_sent(z);
}

// This rank's own part is another now: the others get it before they read it. At stage 0 every rank has made all of it.
static inline void zero_params_changed(Zero *z) {
    zero_forget_layers(z);
    z->changed = z->layout.sharding.stage > 0;
}

// ---- gradients

// Micro-step `micro` of `micro_steps` begins. It forgets which layers are in the buffers, and the first one sends
// parameters even if an evaluation has, so that its calls are the same every time: it may be recorded.
static inline void zero_micro_step(Zero *z, int micro, int micro_steps) {
    z->changed = micro == 0 && z->layout.sharding.stage > 0;
    z->mode = micro == 0 ? GRAD_SET : GRAD_ADD;
    z->last = micro == micro_steps - 1;
    z->only = micro_steps == 1;
    zero_forget_layers(z);
}

// how the backward writes gradients: buffers are set, what they held has gone where it is summed
static inline GradMode zero_grad_mode(const Zero *z) { return z->layout.sharding.stage >= 2 ? GRAD_SET : z->mode; }

// the bucket's gradients are where they are to be, for work given from now on
static inline void zero_settle(Zero *z, int bucket) {
    if (!z->reductions[bucket]) { return; }
    comm_wait(z->reductions[bucket], z->dp, z->ex);
    z->reductions[bucket] = 0;
    if (z->layout.sharding.stage < 2) { return; }
    if (!z->only) {
        Bucket b = param_bucket(&z->layout, bucket);
        Gradient part = gradient_at(zero_grads(z, bucket), b.owned_offset - b.offset);
        z->ops->gradient_accumulate((real *)zero_own_grads(z, bucket).at, part, z->mode, b.chunk, z->ex);
    }
    zero_poison_grads(z, bucket);
}

// The backward has given all work that writes the bucket's gradients. Backwards, a bucket after the one behind it: that
// one's buffer is free for the next.
static inline void zero_gradients_done(Zero *z, int bucket) {
    int stage = z->layout.sharding.stage;
    if (z->layout.sharding.dp_size == 1 || (stage < 2 && !z->last)) { return; }
    Bucket b = param_bucket(&z->layout, bucket);
    Gradient whole = zero_grads(z, bucket);
    if (stage == 0) {
        z->reductions[bucket] = comm_all_reduce(whole.at, b.size, whole.dtype, z->dp, z->ex);
    } else {
        Gradient part = gradient_at(whole, b.owned_offset - b.offset);
        if (stage >= 2 && z->only) { part = zero_own_grads(z, bucket); }  // nothing is added to it
        z->reductions[bucket] = comm_reduce_scatter(part.at, whole.at, b.chunk, whole.dtype, z->dp, z->ex);
    }
    if (stage >= 2 && bucket < num_buckets(&z->layout) - 1) { zero_settle(z, bucket + 1); }
}

// The backward is over: what is owned of all gradients is there, for work given from now on.
static inline void zero_backward_done(Zero *z) {
    for (int b = 0; b < num_buckets(&z->layout); b++) { zero_settle(z, b); }
}

// ---- bytes

// how often a micro-step gathers a layer at stage 3: in the forward each, in the backward each that is not there yet,
// for a replay and the backward after it once
static inline int zero_layer_gathers(const int *replay_from, int L) {
    int held[2] = {-1, -1}, gathers = 0;
    for (int l = 0; l < L; l++) {
        gathers += held[l % 2] != l;
        held[l % 2] = l;
    }
    for (int l = L - 1; l >= 0; l--) {
        for (int read = replay_from[l] < l ? replay_from[l] : l; read <= l; read++) {
            gathers += held[read % 2] != read;
            held[read % 2] = read;
        }
    }
    return gathers;
}

// What this rank sends to others for an update of buckets: what its group counts in sent_bytes. gradients: what they
// are where the backward writes them; replay_from as in Places.
static inline uint64_t zero_sent_bytes(const ParamLayout *layout, DType gradients, int micro_steps,
                                       const int *replay_from) {
    int ranks = layout->sharding.dp_size, rank = layout->sharding.dp_rank, stage = layout->sharding.stage;
    uint64_t sent = 0, updates = stage < 2 ? 1 : (uint64_t)micro_steps;
    for (int i = 0; i < num_buckets(layout); i++) {
        Bucket b = param_bucket(layout, i);
        bool by_layer = stage >= 3 && bucket_kind(layout, i) == LAYER_BUCKET;
        sent += stage == 0 ? all_reduce_bytes(b.size, gradients, rank, ranks)
                           : updates * all_gather_bytes(b.chunk, gradients, ranks);
        if (stage > 0 && !by_layer) { sent += all_gather_bytes(b.chunk, DT_FLOATX, ranks); }
    }
    if (stage < 3) { return sent; }
    uint64_t gathers = (uint64_t)micro_steps * (uint64_t)zero_layer_gathers(replay_from, layout->num_layers);
    return sent + gathers * all_gather_bytes(layout->chunk[LAYER_BUCKET], DT_FLOATX, ranks);
}
