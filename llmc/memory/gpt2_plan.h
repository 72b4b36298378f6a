/*
What a GPT-2 holds on its device for a options: every tensor with its lifetime, made from the flags alone.
defines: MasterKind, MASTER_CHOICES, MOMENT_CHOICES, GRADIENT_CHOICES, moment_types, ModelOptions, PlanIndex,
         classifier_chunk, kept_gradients, gpt2_plan, gpt2_plan_bytes, gpt2_sent_bytes, best_segment, llmc_bytes
*/
#pragma once
#include "llmc/memory/activations.h"
#include "llmc/backend.h"
#include "llmc/memory/plan.h"
#include "llmc/moments.h"
#include "llmc/parallel/zero.h"

// -w: the fp32 master copy of weights that are bf16: none, whole, or the weight and the 16 bits it lacks
typedef enum { MASTER_NONE, MASTER_FP32, MASTER_SPLIT } MasterKind;  // in the order of MASTER_CHOICES
#define MASTER_CHOICES "none|0 fp32|1 split|2"

// -om and -gd
#define MOMENT_CHOICES "fp32 bf16 8bit"
#define GRADIENT_CHOICES "auto fp32 bf16"
static const DType moment_types[] = {DT_REAL, DT_BF16, DT_U8};

// what a model is built for
typedef struct {
    const Backend *backend;
    int B, T;                  // micro-batch; when decoding only, T rows are the most that one call may advance by
    int micro_steps;           // micro-batches of an update
    bool training;             // with gradients and optimizer state
    int decode_positions;      // room of the key-value cache; 0: no decoding
    bool round_matmul_inputs;  // to bf16, on a CPU: -f 2 where it pays
    bool tf32;                 // fp32 products may round their inputs to TF32, on a GPU: -f 1 and 2
    bool graph;                // record micro-steps where the device can
    bool fuse_gelu;            // into the product before it: the forward's; the backward's always is
    Recompute recompute;
    int classifier_rows;  // of logits that exist at once; 0: classifier_chunk chooses
    MasterKind master;    // where weights are bf16
    DType moments;        // DT_REAL, DT_BF16 or DT_U8
    DType gradients;      // DT_REAL or DT_BF16
    Sharding sharding;    // of several processes: which of them this is, and what it keeps
    bool gather_again;    // -ra, with tensor parallelism: gathered inputs of products are not kept for the backward
} ModelOptions;

// where each planned tensor is in the plan; -1 where this options has none
typedef struct {
    int params, gathered, master, remainder, grads, grads_shard, m, v, m_scales, v_scales, ranges;
    int activations[NUM_ACTIVATIONS], tokens, targets, results;
    int replicated, statistics, dresidual, narrow, normed, gathered_gradient, wide, keys, values, rounded_in,
        rounded_dout, rounded_params, partials, matmul_workspace;
} PlanIndex;

// processes that share a model whose tensors are split, and what this one has of it
static inline int options_slices(const ModelOptions *p) { return p->sharding.tp_size > 1 ? p->sharding.tp_size : 1; }
static inline LocalShape options_local_shape(const GPT2Config *c, const ModelOptions *p) {
    return local_shape(c, options_slices(p), p->sharding.tp_rank);
}

// Rows of logits to hold at once. Where -lc does not say: about as many as fit where the MLP's gradient lives anyway,
// but at least 256, so that the weights are not streamed from memory for a handful of rows; in equal chunks of whole
// tiles of a product.
static inline int classifier_chunk(const GPT2Config *c, const ModelOptions *p) {
    enum { LEAST = 256, TILE = 128 };
    int64_t rows = (int64_t)p->B * p->T, chunk = p->classifier_rows;
    if (chunk == 0) {
        LocalShape shape = options_local_shape(c, p);
        int64_t room = rows * shape.units / shape.vocab;
        if (room < LEAST) { room = LEAST; }
        int64_t chunks = (rows + room / 2) / room;  // to the nearest
        chunk = chunks > 1 ? (rows + chunks * TILE - 1) / (chunks * TILE) * TILE : rows;
    }
    return (int)(chunk < rows ? chunk : rows);
}

static inline void plan_optimizer(Plan *plan, PlanIndex *at, size_t total, const ModelOptions *p) {
    bool rounds = DT_FLOATX == DT_BF16;
    if (rounds && p->master == MASTER_FP32) { at->master = plan_add(plan, "master", STATE, DT_REAL, dims1(total)); }
    if (rounds && p->master == MASTER_SPLIT) {
        at->remainder = plan_add(plan, "remainder", STATE, DT_I16, dims1(total));
    }
    at->m = plan_add(plan, "m", STATE, p->moments, dims1(total));
    at->v = plan_add(plan, "v", STATE, p->moments, dims1(total));
    if (p->moments == DT_U8) {
        at->m_scales = plan_add(plan, "m_scales", STATE, DT_F32, dims1(moment_blocks(total)));
        at->v_scales = plan_add(plan, "v_scales", STATE, DT_F32, dims1(moment_blocks(total)));
    }
}

// what gradients are where a rank keeps them: from -z 2 on micro-batches are added up in its part, which is real
static inline DType kept_gradients(const ModelOptions *p) {
    return p->sharding.stage >= 2 && p->micro_steps > 1 ? DT_REAL : p->gradients;
}

static inline void plan_state(Plan *plan, PlanIndex *at, const GPT2Config *c, const ModelOptions *p) {
    ParamLayout layout = param_layout_sharded(c, p->sharding);
    LocalShape shape = options_local_shape(c, p);
    int stage = p->sharding.stage;
    size_t total = layout.total;
    at->params = plan_add(plan, "params", STATE, DT_FLOATX, dims1(stage < 3 ? total : layout.shard));
    if (stage >= 3) { at->gathered = plan_add(plan, "gathered", STATE, DT_FLOATX, dims1(bucket_buffers(&layout))); }
    if (p->training) {
        size_t written = stage < 2 ? total : bucket_buffers(&layout);
        at->grads = plan_add(plan, "grads", STATE, p->gradients, dims1(written));
        if (stage >= 2) {
            at->grads_shard = plan_add(plan, "grads_shard", STATE, kept_gradients(p), dims1(layout.shard));
        }
        if (shape.tp_size > 1) {
            Dims replicated = dims1(max_replicated(&layout));
            at->replicated = plan_add(plan, "replicated_grads", STATE, kept_gradients(p), replicated);
        }
        plan_optimizer(plan, at, stage < 1 ? total : layout.shard, p);
        at->ranges = plan_add(plan, "ranges", STATE, DT_U8, dims2((size_t)num_param_tensors(c), sizeof(UpdateRange)));
    }
    if (p->decode_positions > 0) {
        Dims cache = dims3((size_t)c->num_layers, (size_t)p->decode_positions, (size_t)shape.attention);
        at->keys = plan_add(plan, "decode_keys", STATE, DT_FLOATX, cache);
        at->values = plan_add(plan, "decode_values", STATE, DT_FLOATX, cache);
    }
    if (p->round_matmul_inputs) { at->rounded_params = plan_add(plan, "rounded_params", STATE, DT_BF16, dims1(total)); }
}

static inline void plan_saved(Plan *plan, PlanIndex *at, const GPT2Config *c, const ModelOptions *p) {
    size_t B = (size_t)p->B, T = (size_t)p->T;
    at->tokens = plan_add(plan, "tokens", SAVED, DT_I32, dims2(B, T));
    at->targets = plan_add(plan, "targets", SAVED, DT_I32, dims2(B, T));
    Places places = places_make(&p->recompute, c->num_layers);
    LocalShape shape = options_local_shape(c, p);
    for (int id = 0; id < NUM_ACTIVATIONS; id++) {
        const ActivationSpec *spec = &activation_specs[id];
        if (places.slots[id] == 0) { continue; }
        size_t slots = (size_t)places.slots[id], width = width_size(spec->width, c, &shape);
        size_t rows = activation_rows((ActivationId)id, p->B * p->T, shape.tp_size, !p->gather_again);
        Dims dims =
            spec->rows == ALL_ROWS || shape.tp_size == 1 ? dims4(slots, B, T, width) : dims3(slots, rows, width);
        at->activations[id] = plan_add(plan, spec->name, SAVED, spec->statistic ? DT_REAL : DT_FLOATX, dims);
    }
    places_free(&places);
}

static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

// normed holds one layernorm's output at a time; wide the MLP's widest tensor, the gradient of QKV, a chunk of logits.
// With tensor parallelism normed, narrow and gathered_gradient are the three buffers that are gathered into and summed
// from, whatever the layers are.
static inline void plan_scratch(Plan *plan, PlanIndex *at, const GPT2Config *c, const ModelOptions *p) {
    LocalShape shape = options_local_shape(c, p);
    size_t N = (size_t)p->B * (size_t)p->T, C = (size_t)c->channels, units = (size_t)shape.units;
    size_t chunk = chunk_size(N, shape.tp_size), all = chunk * (size_t)shape.tp_size,
           rows = (size_t)classifier_chunk(c, p);
    size_t decoded = p->decode_positions > 0 ? (size_t)shape.tp_size : 1, qkv = 3 * (size_t)shape.attention;
    size_t logits = larger(rows, decoded) * (size_t)shape.vocab;
    bool gelu_is_kept = layer_level(&p->recompute, 0) < REBUILD_GELU;
    size_t widest = larger(qkv, gelu_is_kept ? 0 : units);
    at->wide = plan_add(plan, "wide", SCRATCH, DT_FLOATX, dims1(larger(logits, N * widest)));
    at->normed = plan_add(plan, "normed", SCRATCH, DT_FLOATX, dims2(all, C));
    if (p->training) { at->dresidual = plan_add(plan, "dresidual", SCRATCH, DT_FLOATX, dims2(chunk, C)); }
    if (p->training || shape.tp_size > 1) { at->narrow = plan_add(plan, "narrow", SCRATCH, DT_FLOATX, dims2(all, C)); }
    if (shape.tp_size > 1) {
        at->gathered_gradient =
            p->training ? plan_add(plan, "gathered_gradient", SCRATCH, DT_FLOATX, dims2(all, C)) : -1;
        at->statistics = plan_add(plan, "statistics", SCRATCH, DT_REAL, dims3((size_t)shape.tp_size, rows, 3));
    }
    if (p->round_matmul_inputs) {
        size_t inner = larger(widest, larger(units, C));
        at->rounded_in = plan_add(plan, "rounded_in", SCRATCH, DT_BF16, dims2(N, inner));
        at->rounded_dout = plan_add(plan, "rounded_dout", SCRATCH, DT_BF16, dims1(larger(logits, N * inner)));
    }
    at->results = plan_add(plan, "results", SCRATCH, DT_REAL, dims1(2));
    BackendScratch own = p->backend->scratch(c, &shape, p->B, p->T);
    if (own.partials_bytes) { at->partials = plan_add(plan, "partials", SCRATCH, DT_U8, dims1(own.partials_bytes)); }
    if (own.matmul_workspace_bytes) {
        at->matmul_workspace = plan_add(plan, "matmul_workspace", SCRATCH, DT_U8, dims1(own.matmul_workspace_bytes));
    }
}

// Everything a model for this options will hold on its device: --plan prints it, gpt2_build allocates it.
static inline Plan gpt2_plan(const GPT2Config *c, const ModelOptions *p, PlanIndex *at) {
    Plan plan = {NULL, 0};
    memset(at, -1, sizeof *at);
    plan_state(&plan, at, c, p);
    plan_saved(&plan, at, c, p);
    plan_scratch(&plan, at, c, p);
    return plan;
}

// the plan's bytes in all
static inline size_t gpt2_plan_bytes(const GPT2Config *c, const ModelOptions *p) {
    PlanIndex at;
    Plan plan = gpt2_plan(c, p, &at);
    size_t bytes = plan_bytes(&plan, NUM_LIFETIMES);
    plan_free(&plan);
    return bytes;
}

// How often a micro-step with tensor parallelism gathers rows or scatters sums of them: for a block 4 times in the
// forward and 4 in the backward; once more for each layernorm that is gathered again, unless a replay has left it
// gathered; those of the replay itself; and 4 times outside of the blocks.
static inline int row_exchanges(const Places *places, int L, bool gather_again) {
    int exchanges = 4;
    for (int l = 0; l < L; l++) {
        exchanges += 8;
        exchanges += gather_again || !place_of(places, LN1, l, L).kept;
        exchanges += (gather_again || !place_of(places, LN2, l, L).kept) && !replay_leaves_norm(places, l, L);
        exchanges += place_of(places, QKV, l, L).kept ? 0 : 2;
        exchanges += !place_of(places, FCH, l, L).kept + !place_of(places, RESIDUAL3, l, L).kept;
    }
    return exchanges;
}

// what a rank sends to those that have the other slices, for an update
static inline uint64_t slices_sent_bytes(const GPT2Config *c, const ModelOptions *p, const ParamLayout *layout,
                                         const Places *places) {
    int t = options_slices(p);
    size_t N = (size_t)p->B * (size_t)p->T, rows = (size_t)classifier_chunk(c, p);
    size_t chunk = chunk_size(N, t) * (size_t)c->channels;
    uint64_t exchanges = (uint64_t)row_exchanges(places, c->num_layers, p->gather_again);
    uint64_t sent = exchanges * all_gather_bytes(chunk, DT_FLOATX, t);
    for (size_t at = 0; at < N; at += rows) {
        sent += all_gather_bytes(3 * (N - at < rows ? N - at : rows), DT_REAL, t);
    }
    return sent * (uint64_t)p->micro_steps +
           all_reduce_bytes(num_replicated(layout), kept_gradients(p), p->sharding.tp_rank, t);
}

// What a rank sends to others for an update: by zero.h, by tensor parallelism, and its loss and norm.
static inline uint64_t gpt2_sent_bytes(const GPT2Config *c, const ModelOptions *p) {
    ParamLayout layout = param_layout_sharded(c, p->sharding);
    Places places = places_make(&p->recompute, c->num_layers);
    int t = options_slices(p), world = layout.sharding.dp_size * t,
        rank = layout.sharding.dp_rank * t + p->sharding.tp_rank;
    uint64_t bytes = zero_sent_bytes(&layout, p->gradients, p->micro_steps, places.replay_from);
    bytes += all_reduce_bytes(2, DT_REAL, rank, world);
    if (t > 1) { bytes += slices_sent_bytes(c, p, &layout, &places); }
    places_free(&places);
    return bytes;
}

// the blocks of a segment that need least bytes: -rk 0
static inline int best_segment(const GPT2Config *c, ModelOptions p) {
    int best = 1;
    size_t least = SIZE_MAX;
    if (p.recompute.level < REBUILD_BLOCK) { return best; }
    for (int every = 1; every <= p.recompute.layers; every++) {
        p.recompute.every = every;
        size_t bytes = gpt2_plan_bytes(c, &p);
        if (bytes < least) { least = bytes, best = every; }
    }
    return best;
}

// llm.c's layout of the same model and micro-batch, for comparison: gradients as weights, fp32 master and moments, all
// logits at once, -r at most 2 (its fill_in_activation_sizes, with cuDNN's attention)
static inline size_t llmc_bytes(const GPT2Config *c, const ModelOptions *p) {
    size_t N = (size_t)p->B * (size_t)p->T, C = (size_t)c->channels, L = (size_t)c->num_layers;
    size_t heads = (size_t)c->num_heads, total = param_layout(c).total;
    size_t of_block = p->recompute.level == 0 ? 16 * C : p->recompute.level == 1 ? 12 * C : 10 * C;
    size_t gelu = p->recompute.level == 0 ? 0 : 4 * C;
    size_t output = larger(larger(3 * C, heads * (size_t)p->T), (size_t)c->padded_vocab_size);
    size_t stored = N * (L * of_block + 2 * C + gelu + output + 5 * C);  // encoded, lnf; then two buffers of scratch
    size_t statistics = N * (L * (heads + 4) + 3);
    size_t master = DT_FLOATX == DT_REAL ? 0 : sizeof(real);
    return (stored + 2 * total) * sizeof(floatX) + statistics * sizeof(real) + total * (2 * sizeof(real) + master);
}
