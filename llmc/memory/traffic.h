/*
Bytes that a rank moves for one update, from the flags alone: to other ranks, and between host and device.
Sent to other ranks; Comm.sent_bytes counts the same while training:
  ZeRO (zero.h), with P parameters and G micro-batches, times (N - 1) / N of N data-parallel ranks:
    -z 0   2 P gradients                       all-reduce
    -z 1   P gradients + P parameters          reduce-scatter, all-gather
    -z 2   G P gradients + P parameters        a reduce-scatter after every backward
    -z 3   G P gradients + about 2 G P parameters: layers are all-gathered for every forward and backward
  Tensor parallelism (tensor_parallel.h): rows of activations, statistics of logits, gradients of replicated tensors
  Loss and squared norm: one all-reduce of two numbers
Between host and device with --offload, of P stored parameters and G micro-batches, of which each saves n inputs of
blocks (num_block_inputs). Tokens and targets are not counted:
                          up                                       down
  1  optimizer state      P (moments, masters or remainders)       the same
  2  gradients            G - 1 times P sums; norm and AdamW: 2 P  G times P
  3  parameters           embeddings, lnf; layers for every        P, after AdamW
                          forward and backward; AdamW: P
  4  inputs of blocks     G (n - 1) inputs                         G n inputs
  --eval and --generate upload the layers for every forward; the embeddings and lnf once, which is not counted
defines: zero_layer_gathers, zero_sent_bytes, gpt2_sent_bytes, LinkBytes, micro_step_link_bytes, update_link_bytes,
         MICRO_STEP_KINDS, MicroSteps, micro_steps_alike, gpt2_link_bytes, link_seconds
*/
#pragma once
#include "llmc/memory/gpt2_plan.h"

// All-gathers, or uploads, of layers in a micro-step at stage 3 or --offload 3. The forward reads every layer; the
// backward of block l reads layers recompute_from(l) to l. A layer in neither of the two buffers is all-gathered before
// the read.
static inline int zero_layer_gathers(const Recompute *r, int L) {
    int buffered[2] = {-1, -1}, gathers = 0;
    for (int l = 0; l < L; l++) {
        gathers += buffered[l % 2] != l;
        buffered[l % 2] = l;
    }
    for (int l = L - 1; l >= 0; l--) {
        int from = recompute_from(r, l);
        for (int read = from < l ? from : l; read <= l; read++) {
            gathers += buffered[read % 2] != read;
            buffered[read % 2] = read;
        }
    }
    return gathers;
}

// gradients: the type that the backward writes
static inline uint64_t zero_sent_bytes(const ParamLayout *layout, DType gradients, int micro_steps,
                                       const Recompute *r) {
    int ranks = layout->sharding.dp_size, rank = layout->sharding.dp_rank, stage = layout->sharding.stage;
    uint64_t sent = 0, reductions = stage < 2 ? 1 : (uint64_t)micro_steps;
    for (int i = 0; i < num_buckets(layout); i++) {
        Bucket b = param_bucket(layout, i);
        bool by_layer = buffers_params(&layout->sharding) && bucket_kind(layout, i) == LAYER_BUCKET;
        sent += stage == 0 ? all_reduce_bytes(b.size, gradients, rank, ranks)
                           : reductions * all_gather_bytes(b.chunk, gradients, ranks);
        if (stage > 0 && !by_layer) { sent += all_gather_bytes(b.chunk, DT_FLOATX, ranks); }
    }
    if (!buffers_params(&layout->sharding) || stage == 0) { return sent; }
    uint64_t gathers = (uint64_t)micro_steps * (uint64_t)zero_layer_gathers(r, layout->num_layers);
    return sent + gathers * all_gather_bytes(layout->chunk[LAYER_BUCKET], DT_FLOATX, ranks);
}

// All-gathers and reduce-scatters of rows in a micro-step with tensor parallelism:
//   forward of a block                                        4
//   backward of a block                                       4
//   -ra 1, or a recomputed layernorm: each of ln1 and ln2     1
//   -r 4: recomputation of a block                            4; of the last block of a checkpoint segment 2
//   outside of the blocks                                     4
static inline int row_collectives(const Recompute *r, int L, bool gather_again) {
    int count = 4;
    for (int l = 0; l < L; l++) {
        count += 8;
        count += gather_again || !activation_is_saved(r, LN1, l);
        count += gather_again || !activation_is_saved(r, LN2, l);
        count += activation_is_saved(r, QKV, l) ? 0 : 2;
        count += activation_is_saved(r, RESIDUAL3, l) ? 0 : 2;
    }
    return count;
}

static inline uint64_t tensor_parallel_sent_bytes(const GPT2Config *c, const ModelOptions *o,
                                                  const ParamLayout *layout) {
    int t = layout->sharding.tp_size;
    size_t N = (size_t)o->B * (size_t)o->T, rows = (size_t)logits_chunk(c, o);
    uint64_t chunk = all_gather_bytes(chunk_size(N, t) * (size_t)c->channels, DT_FLOATX, t);
    uint64_t sent = (uint64_t)row_collectives(&o->recompute, c->num_layers, o->gather_again) * chunk;
    for (size_t row = 0; row < N; row += rows) {
        sent += all_gather_bytes(3 * (N - row < rows ? N - row : rows), DT_REAL, t);
    }
    return sent * (uint64_t)o->micro_steps +
           all_reduce_bytes(num_replicated(layout), stored_gradients(o), o->sharding.tp_rank, t);
}

static inline uint64_t gpt2_sent_bytes(const GPT2Config *c, const ModelOptions *o) {
    ParamLayout layout = param_layout_sharded(c, o->sharding);
    const Sharding *s = &layout.sharding;
    uint64_t bytes = zero_sent_bytes(&layout, o->gradients, o->micro_steps, &o->recompute);
    bytes += all_reduce_bytes(2, DT_REAL, s->dp_rank * s->tp_size + s->tp_rank, s->dp_size * s->tp_size);
    if (s->tp_size > 1) { bytes += tensor_parallel_sent_bytes(c, o, &layout); }
    return bytes;
}

// ---- --offload

// bytes from the host to the device, and from the device to the host
typedef struct {
    uint64_t up, down;
} LinkBytes;

// parameters of a bucket that this rank uploads, in bytes
static inline uint64_t uploaded_bytes(const ParamLayout *layout, int bucket) {
    Bucket b = param_bucket(layout, bucket);
    return (layout->sharding.stage == 0 ? b.size : b.chunk) * sizeof(floatX);
}

// Uploads of layers in a forward that follows another forward, without training. Two buffers still hold the last two
// layers. A model of one or two layers uploads nothing; a model of three uploads layers 0 and 2.
static inline int forward_layer_uploads(int L) { return L > 3 ? L : L == 3 ? 2 : 0; }

// Copies of micro-step `micro` of an update; without training of a forward after the first.
static inline LinkBytes micro_step_link_bytes(const GPT2Config *c, const ModelOptions *o, int micro) {
    ParamLayout layout = param_layout_sharded(c, o->sharding);
    LocalShape shape = options_local_shape(c, o);
    const Sharding *s = &layout.sharding;
    LinkBytes bytes = {0, 0};
    if (s->offload >= OFFLOAD_GRADIENTS && o->training) {
        uint64_t size = dtype_size(stored_gradients(o)), all = shards_gradients(s) ? layout.shard : layout.total;
        bool reduced = s->stage == 1 && micro == o->micro_steps - 1;
        bytes.up += micro > 0 ? all * size : 0;
        bytes.down += (reduced ? layout.shard : all) * size;
    }
    if (s->offload >= OFFLOAD_PARAMS) {
        int layers =
            o->training ? zero_layer_gathers(&o->recompute, c->num_layers) : forward_layer_uploads(c->num_layers);
        bytes.up += (uint64_t)layers * uploaded_bytes(&layout, layer_bucket(0));
        if (micro == 0 && o->training) {
            bytes.up += uploaded_bytes(&layout, embeddings_bucket()) + uploaded_bytes(&layout, final_bucket(&layout));
        }
    }
    uint64_t inputs = (uint64_t)num_block_inputs(o, c->num_layers);
    uint64_t input = activation_elements(RESIDUAL3, o->B * o->T, c, &shape, false) * sizeof(floatX);
    bytes.down += inputs * input;
    bytes.up += inputs > 0 ? (inputs - 1) * input : 0;
    return bytes;
}

// gradients that the norm reads on this rank: its shard; with tensor parallelism replicated tensors on tp_rank 0 alone
static inline uint64_t norm_elements(const ParamLayout *layout) {
    uint64_t elements = 0;
    if (layout->sharding.tp_rank == 0) { return layout->shard; }
    for (int b = 0; b < num_buckets(layout); b++) {
        Range ranges[LAYER_PARAMS];
        int count = bucket_ranges(ranges, layout, b, true, true);
        for (int i = 0; i < count; i++) { elements += ranges[i].count; }
    }
    return elements;
}

// Bytes of the norm and of AdamW. The norm reads gradients in host memory over the link.
static inline LinkBytes update_link_bytes(const GPT2Config *c, const ModelOptions *o) {
    ParamLayout layout = param_layout_sharded(c, o->sharding);
    const Sharding *s = &layout.sharding;
    uint64_t elements = s->stage == 0 ? layout.total : layout.shard, state = 2 * elements * dtype_size(o->moments);
    LinkBytes bytes = {0, 0};
    if (s->offload == 0 || !o->training) { return bytes; }
    if (o->moments == DT_U8) { state += 2 * elements / MOMENT_BLOCK * sizeof(float); }
    if (DT_FLOATX == DT_BF16 && o->master == MASTER_FP32) { state += elements * sizeof(real); }
    if (DT_FLOATX == DT_BF16 && o->master == MASTER_SPLIT) { state += elements * sizeof(int16_t); }
    if (s->offload >= OFFLOAD_PARAMS) { state += elements * sizeof(floatX); }
    bytes.up = bytes.down = state;
    if (s->offload >= OFFLOAD_GRADIENTS) {
        uint64_t size = dtype_size(stored_gradients(o)), replicated = s->tp_size > 1 ? num_replicated(&layout) : 0;
        bytes.up += (norm_elements(&layout) + elements + replicated) * size;
        bytes.down += replicated * size;
    }
    return bytes;
}

enum { MICRO_STEP_KINDS = 3 };
typedef struct {
    int micro, times;
} MicroSteps;

// Micro-steps of an update with the same copies: the first, the last, all others. `times` of them are as `micro`.
static inline MicroSteps micro_steps_alike(int kind, int micro_steps) {
    const MicroSteps kinds[MICRO_STEP_KINDS] = {
        {0, 1}, {micro_steps - 1, micro_steps > 1}, {1, micro_steps > 2 ? micro_steps - 2 : 0}};
    return kinds[kind];
}

// of one update; without training of a forward after the first
static inline LinkBytes gpt2_link_bytes(const GPT2Config *c, const ModelOptions *o) {
    LinkBytes bytes = update_link_bytes(c, o);
    for (int kind = 0; kind < MICRO_STEP_KINDS; kind++) {
        MicroSteps alike = micro_steps_alike(kind, o->micro_steps);
        LinkBytes step = micro_step_link_bytes(c, o, alike.micro);
        bytes.up += (uint64_t)alike.times * step.up;
        bytes.down += (uint64_t)alike.times * step.down;
    }
    return bytes;
}

// Copies up run beside copies down.
static inline double link_seconds(LinkBytes bytes, double rate) {
    return (double)(bytes.up > bytes.down ? bytes.up : bytes.down) / rate;
}
