/*
Everything a GPT-2 holds on its device and in pinned host memory: the tensors, the options that decide which of them
exist, and the memory plan. This header includes no kernel and no communicator.
*/
#pragma once
#include "llmc/common/device.h"
#include "llmc/common/range.h"
#include "llmc/memory/backend.h"
#include "llmc/memory/plan.h"
#include "llmc/ops.h"
#include "llmc/shapes/activations.h"
#include "llmc/shapes/layout.h"
#include "llmc/shapes/params.h"
#include "llmc/shapes/slices.h"
#include "llmc/shapes/update_buckets.h"

// -w, -om and -gd. For -w, 0 and 1 are llm.c's values, and 2 is in config.json of older versions.
#define MASTER_CHOICES "none|0 split|1|2"
enum { MASTER_NONE, MASTER_SPLIT };
#define MOMENT_CHOICES "fp32 bf16 8bit"
#define GRADIENT_CHOICES "auto fp32 bf16"
enum { GRADIENTS_AUTO, GRADIENTS_FP32, GRADIENTS_BF16 };
static const DType moment_types[] = {DT_REAL, DT_BF16, DT_U8};

// how a model is built
typedef struct {
    const Backend *backend;
    int B, T;                  // micro-batch; a model that only decodes takes at most T tokens at a time
    int micro_steps;           // micro-batches per update
    bool training;             // with gradients and optimizer state
    int decode_positions;      // of the key-value cache; 0: no decoding
    bool round_matmul_inputs;  // -f 2: fp32 matmuls round their inputs to bf16, on a CPU with AVX512-BF16
    bool tf32;                 // all but -f 0: fp32 matmuls may round their inputs to TF32, on a GPU
    bool graph;                // capture micro-steps as CUDA graphs
    bool fuse_gelu;            // -ge: the forward's GELU is part of the matmul before it
    Recompute recompute;
    int classifier_rows;  // rows of a logits chunk; 0: logits_chunk decides
    bool remainders;      // -w split: of bf16 weights
    DType moments;        // DT_REAL, DT_BF16 or DT_U8
    DType gradients;      // DT_REAL or DT_BF16
    Sharding sharding;
    bool gather_again;  // -ra 1: the backward all-gathers layernorms again; 0: the gathered rows are saved
    FallbackKernels fallback;
    int capability;  // Backend.capability()
} ModelOptions;

// sizes of the slices that this rank holds
static inline LocalShape options_local_shape(const GPT2Config *c, const ModelOptions *o) {
    return local_shape(c, o->sharding.tp_size > 1 ? o->sharding.tp_size : 1, o->sharding.tp_rank);
}

// Sets the stage of --offload. Without a backward pass nothing reads the block inputs again, so they are not offloaded.
static inline void options_set_offload(ModelOptions *o, int stage) {
    o->sharding.offload = stage;
    o->recompute.offload_inputs = o->training && stage >= OFFLOAD_INPUTS;
}

// Pointers to the tensors of a model; NULL where the options need no such tensor. Shapes are in elements: t is tp_size,
// A is attn_dim of this rank, R = t * chunk_size(B*T,t) rows, which is B*T without -tp.
typedef struct {
    // ---- state
    // The optimizer's state (layout.total); from -z 1 on this rank's shard. In host memory from --offload 1 on. Its
    // params are all parameter tensors in one flat buffer (param_offset finds one): at -z 3 this rank's shard, in host
    // memory from --offload 3 on.
    OptimizerState optimizer;
    floatX *gathered_params;  // -z 3, --offload 3: uploaded and all-gathered buckets (bucket_buffers)
    // gradients
    Gradient grads;                       // (layout.total); from -z 2 or --offload 2 on buffers of buckets
    Gradient stored_grads;                // from -z 2 on this rank's shard. In host memory from --offload 2 on
    Gradient reduced_chunks;              // -z 2 and 3 with --offload 2: buffers of this rank's chunks of buckets
    void *replicated_grads;               // -tp: gradients of replicated tensors, all-reduced together
    UpdateRange *update_ranges;           // (max_update_ranges)
    floatX *decode_keys, *decode_values;  // (L,decode_positions,A)
    floatX *block_inputs;                 // --offload 4: (inputs,R/t,C) in host memory
    // ---- saved
    int *tokens, *targets;               // (B,T)
    void *activations[NUM_ACTIVATIONS];  // (slots,B,T,width); with -tp, activation_rows of layernorms and residuals
    // ---- scratch
    // mlp_scratch has the size of the largest of: a logits chunk; dqkv (B,T,3A); from -r 1 on fch_gelu (B,T,d_ff),
    // which dfch overwrites; Muon's matrices (muon_scratch_elements). At -r 0, dfch overwrites the saved fch_gelu.
    floatX *mlp_scratch;
    floatX *norm_scratch;       // (R,C) lnf; layernorms that are recomputed or all-gathered
    floatX *hidden_scratch;     // (R,C) dlnf, dln2, dln1; datty (B,T,A); with -tp terms of a sum over the ranks
    floatX *dresidual;          // (R/t,C) gradient of the residual stream, from the last block to the first
    floatX *gathered_gradient;  // -tp: (R,C) dresidual of all ranks
    real *statistics;           // -tp: (t,rows of a logits chunk,3)
    // --offload: two slots of each array of the optimizer state in host memory (update.h)
    OptimizerState optimizer_slots;
    Gradient slot_grads;
    real *results;                      // (2): loss, and the squared norm of the gradients
    void *partials, *matmul_workspace;  // of the backend (backend.h)
    // ---- host
    int *staged;         // (staging_slots,2,B,T) micro-batches that are being uploaded
    real *read_results;  // (2,2) results of the steps on the device, step n at n % 2
} GPT2Tensors;

// rows of each of `chunks` equal logits chunks, in whole matmul tiles
static inline int64_t equal_chunk(int64_t rows, int64_t chunks) {
    enum { TILE = 128 };
    return chunks > 1 ? (rows + chunks * TILE - 1) / (chunks * TILE) * TILE : rows;
}

// Returns the rows of a logits chunk. If the options give none, the logits take about as much memory as dfch, but a
// chunk has at least MIN_ROWS rows, because each chunk reads wte once.
static inline int logits_chunk(const GPT2Config *c, const ModelOptions *o) {
    enum { MIN_ROWS = 256 };
    int64_t rows = (int64_t)o->B * o->T, chunk = o->classifier_rows;
    if (chunk == 0) {
        LocalShape shape = options_local_shape(c, o);
        int64_t room = rows * shape.d_ff / shape.vocab;
        if (room < MIN_ROWS) { room = MIN_ROWS; }
        chunk = equal_chunk(rows, (rows + room / 2) / room);  // to the nearest
    }
    return (int)(chunk < rows ? chunk : rows);
}

// Type of the gradients that a rank stores. From -z 2 on, micro-batches are accumulated in its shard, in real.
static inline DType stored_gradients(const ModelOptions *o) {
    return o->sharding.stage >= 2 && o->micro_steps > 1 ? DT_REAL : o->gradients;
}

// micro-batches that may be in upload at once
static inline int staging_slots(const ModelOptions *o) {
    return o->micro_steps * (1 + o->backend->device->steps_ahead);
}

// Returns how many block inputs are in host memory. Every saved block output is one, except the last block's.
static inline int num_block_inputs(const ModelOptions *o, int L) {
    bool offload = o->training && o->recompute.offload_inputs;
    return offload ? num_saved(&o->recompute, RESIDUAL3, L) - 1 : 0;
}

// one tensor: PLAN_ADD(member of GPT2Tensors, lifetime, type, dimensions...)
#define PLAN_ADD(...) PLAN_ADD_MEMBER(plan, GPT2Tensors, __VA_ARGS__)

// one array of the optimizer's state with `count` elements: of this rank (slots false), or two slots of update.h
static inline void plan_array(Plan *plan, bool slots, int array, Lifetime lifetime, const ModelOptions *o,
                              size_t count) {
    const StateArray a = state_array(array, DT_FLOATX == DT_BF16 && o->remainders, o->moments);
    const size_t dims[] = {2, state_elements(&a, count)};
    size_t first = slots ? offsetof(GPT2Tensors, optimizer_slots.array) : offsetof(GPT2Tensors, optimizer.array);
    if (!a.exists) { return; }
    plan_add(plan, first + (size_t)array * sizeof(void *), slots ? a.slot_name : a.name, lifetime, a.dtype,
             slots ? 2 : 1, slots ? dims : dims + 1);
}

// all arrays but params: count elements, of which `second` have a second moment
static inline void plan_optimizer(Plan *plan, bool slots, size_t count, size_t second, const ModelOptions *o,
                                  Lifetime lifetime) {
    const size_t of_part[] = {count, count, second};
    for (int i = STATE_PARAMS + 1; i < NUM_STATE_ARRAYS; i++) {
        plan_array(plan, slots, i, lifetime, o, of_part[state_array(i, true, o->moments).part]);
    }
}

// --offload: the slots of update.h, on the device: two for each array that is in host memory
static inline void plan_slots(Plan *plan, const ParamLayout *layout, const ModelOptions *o) {
    size_t n = update_bucket_elements(layout);
    if (layout->sharding.offload >= OFFLOAD_PARAMS) { plan_array(plan, true, STATE_PARAMS, SCRATCH, o, n); }
    if (layout->sharding.offload >= OFFLOAD_GRADIENTS) { PLAN_ADD(slot_grads, SCRATCH, stored_gradients(o), 2, n); }
    plan_optimizer(plan, true, n, n, o, SCRATCH);
}

static inline void plan_gradients(Plan *plan, const ParamLayout *layout, const ModelOptions *o) {
    const Sharding *s = &layout->sharding;
    bool shards = shards_gradients(s), offload = s->offload >= OFFLOAD_GRADIENTS;
    size_t buffers = bucket_buffers(layout);
    PLAN_ADD(grads, STATE, o->gradients, buffers_gradients(s) ? buffers : layout->total);
    if (buffers_gradients(s)) {
        PLAN_ADD(stored_grads, offload ? HOST : STATE, stored_gradients(o), shards ? layout->shard : layout->total);
    }
    if (shards && offload) { PLAN_ADD(reduced_chunks, STATE, stored_gradients(o), buffers / (size_t)s->dp_size); }
    if (s->tp_size > 1) { PLAN_ADD(replicated_grads, STATE, stored_gradients(o), max_replicated(layout)); }
}

static inline void plan_state(Plan *plan, const GPT2Config *c, const ModelOptions *o) {
    ParamLayout layout = param_layout_sharded(c, o->sharding);
    LocalShape shape = options_local_shape(c, o);
    const Sharding *s = &layout.sharding;
    size_t total = layout.total, shard = layout.shard;
    plan_array(plan, false, STATE_PARAMS, s->offload >= OFFLOAD_PARAMS ? HOST : STATE, o,
               shards_params(s) ? shard : total);
    if (buffers_params(s)) { PLAN_ADD(gathered_params, STATE, DT_FLOATX, bucket_buffers(&layout)); }
    if (o->training) {
        plan_gradients(plan, &layout, o);
        plan_optimizer(plan, false, s->stage < 1 ? total : shard, num_second_moments(&layout), o,
                       s->offload > 0 ? HOST : STATE);
        PLAN_ADD(update_ranges, STATE, DT_U8, max_update_ranges(&layout), sizeof(UpdateRange));
        if (s->offload > 0) { plan_slots(plan, &layout, o); }
    }
    if (o->decode_positions > 0) {
        size_t L = (size_t)c->num_layers, positions = (size_t)o->decode_positions, A = (size_t)shape.attn_dim;
        PLAN_ADD(decode_keys, STATE, DT_FLOATX, L, positions, A);
        PLAN_ADD(decode_values, STATE, DT_FLOATX, L, positions, A);
    }
}

static inline void plan_saved(Plan *plan, const GPT2Config *c, const ModelOptions *o) {
    size_t B = (size_t)o->B, T = (size_t)o->T;
    PLAN_ADD(tokens, SAVED, DT_I32, B, T);
    PLAN_ADD(targets, SAVED, DT_I32, B, T);
    LocalShape shape = options_local_shape(c, o);
    for (int id = 0; id < NUM_ACTIVATIONS; id++) {
        size_t count = (size_t)num_activation_slots(&o->recompute, (ActivationId)id, c->num_layers);
        if (count == 0) { continue; }
        size_t width = activation_width((ActivationId)id, c, &shape);
        size_t rows = activation_rows((ActivationId)id, o->B * o->T, &shape, !o->gather_again);
        const size_t of_all[] = {count, B, T, width}, of_own[] = {count, rows, width};
        bool all = activation_specs[id].rows == ALL_ROWS || shape.tp_size == 1;
        size_t member = offsetof(GPT2Tensors, activations) + (size_t)id * sizeof(void *);
        plan_add(plan, member, activation_specs[id].name, SAVED, activation_specs[id].statistic ? DT_REAL : DT_FLOATX,
                 all ? 4 : 3, all ? of_all : of_own);
    }
    size_t inputs = (size_t)num_block_inputs(o, c->num_layers);
    if (inputs > 0) {
        size_t rows = activation_rows(RESIDUAL3, o->B * o->T, &shape, false);
        PLAN_ADD(block_inputs, HOST, DT_FLOATX, inputs, rows, (size_t)c->channels);
    }
}

static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

// With -tp, norm_scratch, hidden_scratch and gathered_gradient are the three communication buffers, shared by all
// layers.
static inline void plan_scratch(Plan *plan, const GPT2Config *c, const ModelOptions *o) {
    LocalShape shape = options_local_shape(c, o);
    size_t N = (size_t)o->B * (size_t)o->T, C = (size_t)c->channels, d_ff = (size_t)shape.d_ff;
    size_t t = (size_t)shape.tp_size, chunk = chunk_size(N, shape.tp_size), all_rows = chunk * t;
    size_t rows = (size_t)logits_chunk(c, o), decoded = o->decode_positions > 0 ? t : 1;
    size_t logits = larger(rows, decoded) * (size_t)shape.vocab, qkv = 3 * (size_t)shape.attn_dim;
    bool gelu_is_saved = layer_level(&o->recompute, 0) < RECOMPUTE_GELU;
    size_t widest = larger(qkv, gelu_is_saved ? 0 : d_ff);
    ParamLayout layout = param_layout_sharded(c, o->sharding);
    size_t matrices = o->training ? muon_scratch_elements(&layout) : 0;
    PLAN_ADD(mlp_scratch, SCRATCH, DT_FLOATX, larger(matrices, larger(logits, N * widest)));
    PLAN_ADD(norm_scratch, SCRATCH, DT_FLOATX, all_rows, C);
    if (o->training) { PLAN_ADD(dresidual, SCRATCH, DT_FLOATX, chunk, C); }
    if (o->training || t > 1) { PLAN_ADD(hidden_scratch, SCRATCH, DT_FLOATX, all_rows, C); }
    if (t > 1 && o->training) { PLAN_ADD(gathered_gradient, SCRATCH, DT_FLOATX, all_rows, C); }
    if (t > 1) { PLAN_ADD(statistics, SCRATCH, DT_REAL, t, rows, 3); }
    PLAN_ADD(results, SCRATCH, DT_REAL, 2);
    size_t partials_bytes = o->backend->partials_bytes(c, &shape, o->B, o->T);
    size_t workspace_bytes = o->backend->matmul_workspace_bytes(c, &shape, o->B, o->T);
    if (partials_bytes) { PLAN_ADD(partials, SCRATCH, DT_U8, partials_bytes); }
    if (workspace_bytes) { PLAN_ADD(matmul_workspace, SCRATCH, DT_U8, workspace_bytes); }
}

// The memory plan for these options: --plan prints the plan, gpt2_build allocates it. Free with plan_free.
static inline Plan gpt2_plan(const GPT2Config *c, const ModelOptions *o) {
    Plan plan = {NULL, 0};
    plan_state(&plan, c, o);
    plan_saved(&plan, c, o);
    plan_scratch(&plan, c, o);
    PLAN_ADD_MEMBER(&plan, GPT2Tensors, staged, HOST, DT_I32, (size_t)staging_slots(o), 2, (size_t)o->B, (size_t)o->T);
    PLAN_ADD_MEMBER(&plan, GPT2Tensors, read_results, HOST, DT_REAL, 2, 2);
    return plan;
}

typedef struct {
    size_t device, host;  // host: pinned host memory with --offload; 0 without
} PlanBytes;

static inline PlanBytes gpt2_plan_both(const GPT2Config *c, const ModelOptions *o) {
    Plan plan = gpt2_plan(c, o);
    PlanBytes bytes = {plan_device_bytes(&plan), o->sharding.offload > 0 ? plan_bytes(&plan, HOST) : 0};
    plan_free(&plan);
    return bytes;
}

// bytes on the device
static inline size_t gpt2_plan_bytes(const GPT2Config *c, const ModelOptions *o) { return gpt2_plan_both(c, o).device; }

// -rk 0: blocks per checkpoint segment that need the fewest bytes
static inline int best_segment(const GPT2Config *c, ModelOptions o) {
    int best = 1;
    size_t least = SIZE_MAX;
    if (o.recompute.level < RECOMPUTE_BLOCK) { return best; }
    for (int every = 1; every <= o.recompute.layers; every++) {
        o.recompute.every = every;
        size_t bytes = gpt2_plan_bytes(c, &o);
        if (bytes < least) {
            least = bytes;
            best = every;
        }
    }
    return best;
}
