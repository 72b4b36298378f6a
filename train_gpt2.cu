/*
train_gpt2: trains GPT-2, top to bottom.

To follow one step: main -> train -> advance -> start_step -> gpt2_micro_step -> gpt2_forward -> block_forward ->
expand_forward, project_forward -> one operation in llmc/; the backward is its mirror image, and finish_step reads the
results. The sections, in order:
  1. flags           TrainArgs and the one table of flags
  2. the model       activations, the memory plan, build and free; rows that processes exchange
  3. forward         block_forward, gpt2_forward, the chunked classifier
  4. backward        block_backward, gpt2_backward: section 3 reversed
  5. update          sums over processes, global norm, AdamW
  6. decoding        the same blocks with a key-value cache; text from a prompt
  7. the run         data, checkpoints, evaluation, one training step
  8. main            --plan, --generate, or train
*/
#include "llmc/common/check.h"   // input_error, run_error, xmalloc
#include "llmc/common/floatx.h"  // floatX, real, DType
#include "llmc/ops.h"            // Ops, GradMode, AdamW, UpdateRange
#include "llmc/common/device.h"
#include "llmc/backend.h"             // Backend, backend_choose
#include "llmc/memory/plan.h"         // Plan, Arena, Scratch
#include "llmc/params.h"              // GPT2Config, ParamId, param_specs
#include "llmc/parallel/slices.h"     // LocalShape, RowShare, slice_init_tensor: what a process has of a model with -tp
#include "llmc/parallel/layout.h"     // Sharding, ParamLayout, param_layout_sharded: where parameters lie
#include "llmc/memory/activations.h"  // ActivationId, Places: what is kept for the backward and what is rebuilt
#include "llmc/parallel/comm_open.h"  // Comm, comm_open, comm_max: the processes that train together
#include "llmc/parallel/zero.h"       // Zero: which of them keeps what, and when it travels
#include "llmc/memory/gpt2_plan.h"    // ModelOptions, gpt2_plan
#include "llmc/memory/fit.h"          // fit_choose: --fit
#include "llmc/files/checkpoint.h"    // ModelState, checkpoint_save, checkpoint_load, model_open
#include "llmc/files/dataloader.h"    // TokenFiles, DataLoader
#include "llmc/files/hellaswag.h"     // HellaSwag
#include "llmc/files/tokenizer.h"     // Tokenizer
#include "llmc/run/sampler.h"         // sample_token
#include "llmc/run/schedule.h"        // schedule_lr
#include "llmc/run/outlier_detector.h"  // OutlierDetector, outlier_zscore
#include "llmc/run/logger.h"            // Logger, now_seconds
#include "llmc/run/train_args.h"        // Flag, flags_parse
#include <ctype.h>
#include <omp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/statvfs.h>

// ---------------------------------------------------------------------------------------------------------------------
// 2. the model

// the processes that train a model
typedef struct {
    Comm *world;  // all of them
    Comm *dp;     // those whose data differ
    Comm *tp;     // those that share a model whose tensors are split; neighbours in the world
} Groups;

typedef struct {
    GPT2Config config;
    ModelOptions options;
    Groups groups;
    const Ops *ops;
    const Device *device;
    Exec exec;
    LocalShape local;  // its slices of split tensors
    ParamLayout layout;
    Zero zero;        // where parameters and gradients are, and when they travel
    int *first_span;  // (buckets + 1) of each bucket, and how many there are
    Plan plan;
    PlanIndex index;
    Places places;  // of the activations
    Arena arena;
    int B, T;  // sequences and positions of the micro-batch at hand: the options's, but an evaluation may have its own
    bool decoding;  // every rank has every row
    int *staged;    // host memory for the micro-batches on their way: inputs and targets, a slot each
    int num_slots, next_slot;
    DeviceGraph *graphs[4];  // of a micro-step: the first, the last of an update, or both; NULL: none yet
    int runs[4];             // how often each has run without one
    // ---- views into the arena
    OptimizerState optimizer;            // what this rank keeps of (layout.total) weights, masters and moments
    Gradient grads;                      // (layout.total), or buckets from -z 2 on
    void *activations[NUM_ACTIVATIONS];  // (slots,B,T,width), with -tp of its rows or columns
    int *tokens, *targets;               // (B,T)
    real *loss, *norm_squared;           // one number each, neighbours
    UpdateRange *ranges;                 // (num_ranges)
    BackendScratch own;                  // the backend's
    void *replicated;                    // with -tp: gradients of tensors that are not split, on their way
    real *statistics;                    // with -tp: (t,classifier_rows,3) of the logits
    floatX *dresidual;                   // (B,T,C) gradient of the residual stream, from the last block to the first
    Scratch narrow;                      // (B,T,C): dlnf dln2 datty dln1, and with -tp sums before they are scattered
    Scratch normed;                      // (B,T,C): lnf, and ln1 ln2 where they are rebuilt or gathered
    Scratch gathered_gradient;           // with -tp: (B,T,C) dresidual of all ranks
    Scratch wide;           // (B,T,4C) or a chunk of logits: fch_gelu and dfch where they are rebuilt, dqkv, logits
    floatX *keys, *values;  // (L,decode_positions,C), with -tp of its heads
    int classifier_rows;    // rows of logits that exist at once
} GPT2;

static void *planned(const GPT2 *m, int index) { return index < 0 ? NULL : arena_tensor(&m->arena, &m->plan, index); }

static Scratch planned_scratch(GPT2 *m, int index) {
    Scratch s = {planned(m, index), index < 0 ? 0 : m->plan.tensors[index].bytes, NULL, m->device, &m->exec};
    return s;
}

static void gpt2_lay_out(GPT2 *m) {
    const PlanIndex *at = &m->index;
    m->optimizer.params = (floatX *)planned(m, at->params);
    m->optimizer.master = (real *)planned(m, at->master);
    m->optimizer.remainder = (int16_t *)planned(m, at->remainder);
    m->optimizer.m = planned(m, at->m);
    m->optimizer.v = planned(m, at->v);
    m->optimizer.moments = m->options.moments;
    m->optimizer.m_scales = (float *)planned(m, at->m_scales);
    m->optimizer.v_scales = (float *)planned(m, at->v_scales);
    m->grads.at = planned(m, at->grads);
    m->grads.dtype = m->options.gradients;
    m->zero.params = at->gathered < 0 ? m->optimizer.params : (floatX *)planned(m, at->gathered);
    m->zero.params_shard = m->optimizer.params;
    m->zero.grads = m->grads;
    m->zero.grads_shard.at = planned(m, at->grads_shard);
    m->zero.grads_shard.dtype = at->grads_shard < 0 ? m->grads.dtype : m->plan.tensors[at->grads_shard].dtype;
    for (int id = 0; id < NUM_ACTIVATIONS; id++) { m->activations[id] = planned(m, at->activations[id]); }
    m->tokens = (int *)planned(m, at->tokens);
    m->targets = (int *)planned(m, at->targets);
    m->loss = (real *)planned(m, at->results);
    m->norm_squared = m->loss + 1;
    m->ranges = (UpdateRange *)planned(m, at->ranges);
    m->replicated = planned(m, at->replicated);
    m->statistics = (real *)planned(m, at->statistics);
    m->dresidual = (floatX *)planned(m, at->dresidual);
    m->narrow = planned_scratch(m, at->narrow);
    m->normed = planned_scratch(m, at->normed);
    m->gathered_gradient = planned_scratch(m, at->gathered_gradient);
    m->wide = planned_scratch(m, at->wide);
    m->keys = (floatX *)planned(m, at->keys);
    m->values = (floatX *)planned(m, at->values);
    m->exec.rounded.in = (bf16 *)planned(m, at->rounded_in);
    m->exec.rounded.dout = (bf16 *)planned(m, at->rounded_dout);
    m->exec.rounded.params = (bf16 *)planned(m, at->rounded_params);
}

static void open_backend(GPT2 *m) {
    const ModelOptions *p = &m->options;
    m->own = p->backend->scratch(&m->config, &m->local, p->B, p->T);
    m->own.partials = planned(m, m->index.partials);
    m->own.matmul_workspace = planned(m, m->index.matmul_workspace);
    p->backend->open(&m->exec, &m->own, p->tf32);
    backend_share_autotune_cache(&m->exec, m->groups.world);
}

static void upload_spans(GPT2 *m) {
    int buckets = num_buckets(&m->layout), count = 0;
    UpdateRange *ranges = (UpdateRange *)xmalloc((size_t)num_param_tensors(&m->config) * sizeof *ranges);
    m->first_span = (int *)xmalloc((size_t)(buckets + 1) * sizeof *m->first_span);
    for (int b = 0; b < buckets; b++) {
        m->first_span[b] = count;
        count += bucket_update_ranges(ranges + count, &m->layout, b);
    }
    m->first_span[buckets] = count;
    if (m->ranges) { m->device->upload(m->ranges, ranges, (size_t)count * sizeof *ranges); }
    free(ranges);
}

// host memory for all micro-batches that may be on their way to the device at once
static void allocate_staging(GPT2 *m) {
    const ModelOptions *p = &m->options;
    m->num_slots = p->micro_steps * (1 + m->device->steps_ahead);
    size_t ints = (size_t)m->num_slots * 2 * (size_t)p->B * (size_t)p->T;
    m->staged = (int *)m->device->allocate_host(ints * sizeof(int));
}

// allocates the plan; the parameters are still zero. Free with gpt2_free. *m must stay where it is.
static void gpt2_build(GPT2 *m, GPT2Config config, ModelOptions options, Groups groups) {
    memset(m, 0, sizeof *m);
    m->config = config;
    m->options = options;
    m->groups = groups;
    m->ops = options.backend->ops;
    m->device = options.backend->device;
    m->local = options_local_shape(&config, &options);
    m->layout = param_layout_sharded(&config, options.sharding);
    m->plan = gpt2_plan(&config, &options, &m->index);
    m->places = places_make(&options.recompute, config.num_layers);
    m->arena = arena_create(&m->plan, m->device);
    m->B = options.B, m->T = options.T;
    m->classifier_rows = classifier_chunk(&config, &options);
    zero_open(&m->zero, &m->layout, groups.dp, m->ops, &m->exec);
    gpt2_lay_out(m);
    open_backend(m);
    upload_spans(m);
    allocate_staging(m);
}

static void gpt2_free(GPT2 *m) {
    for (int i = 0; i < 4; i++) {
        if (m->graphs[i]) { m->device->graph_destroy(m->graphs[i]); }
    }
    m->options.backend->close(&m->exec);
    m->device->release_host(m->staged);
    arena_free(&m->arena);
    zero_close(&m->zero);
    free(m->first_span);
    places_free(&m->places);
    plan_free(&m->plan);
}

static ModelState gpt2_state(GPT2 *m) {
    ModelState state = {&m->config, m->device, m->optimizer, m->options.sharding, m->groups.world};
    return state;
}

// this rank has filled what it keeps of the parameters
static void gpt2_params_changed(GPT2 *m) {
    m->ops->params_changed(m->optimizer.params, m->layout.total, &m->exec);
    zero_params_changed(&m->zero);
}

// GPT-2's initial weights, made on the host a tensor at a time
static void gpt2_init(GPT2 *m, uint64_t seed) {
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        size_t used = param_used(&m->layout, p);
        real *init = (real *)xmalloc(used * sizeof(real));
        for (int layer = 0; layer < param_layers(p, &m->config); layer++) {
            ParamRange range = param_updated_range(&m->layout, p, layer, used);
            slice_init_tensor(init, &m->layout.slice[id], p, layer, range.offset, range.count, &m->config, seed);
            weights_store(&m->optimizer, init, range, m->device);
        }
        free(init);
    }
    gpt2_params_changed(m);
}

// weights and moments of a checkpoint of the same shape, whose model is opened
static void gpt2_resume(GPT2 *m, const char *folder, const ModelFile *file) {
    ModelState state = gpt2_state(m);
    checkpoint_load(folder, file, &state);
    gpt2_params_changed(m);
}

// the weights of an opened model of the same shape
static void gpt2_load(GPT2 *m, const ModelFile *file) {
    ModelState state = gpt2_state(m);
    weights_load(file, "", &state);
    gpt2_params_changed(m);
}

// ---- one tensor of one layer

static size_t offset_in_bucket(const GPT2 *m, ParamId id, int layer, int bucket) {
    return param_offset(&m->layout, id, layer) - param_bucket(&m->layout, bucket).offset;
}
static const floatX *param(const GPT2 *m, ParamId id, int layer) {
    int bucket = param_bucket_of(&m->layout, id, layer);
    return zero_params(&m->zero, bucket) + offset_in_bucket(m, id, layer, bucket);
}
static Gradient grad(const GPT2 *m, ParamId id, int layer) {
    int bucket = param_bucket_of(&m->layout, id, layer);
    return gradient_at(zero_grads(&m->zero, bucket), offset_in_bucket(m, id, layer, bucket));
}

// The parameters of a block may be read from here on, those of `next` are read after it; there is none where `next`
// is past the last one, or -1.
static void params_ready(GPT2 *m, int layer, int next) {
    zero_params_ready(&m->zero, layer_bucket(layer), next < m->config.num_layers ? layer_bucket(next) : 0);
}
static const Gradient no_gradient = {NULL, DT_REAL};

// elements of a slot
static size_t activation_size(const GPT2 *m, ActivationId id) {
    size_t rows = activation_rows(id, m->B * m->T, m->local.tp_size, !m->options.gather_again);
    return rows * width_size(activation_specs[id].width, &m->config, &m->local);
}
static size_t activation_offset(const GPT2 *m, ActivationId id, int layer) {
    return activation_size(m, id) * (size_t)place_of(&m->places, id, layer, m->config.num_layers).slot;
}
static floatX *act(const GPT2 *m, ActivationId id, int layer) {
    return (floatX *)m->activations[id] + activation_offset(m, id, layer);
}
static real *statistic(const GPT2 *m, ActivationId id, int layer) {
    return (real *)m->activations[id] + activation_offset(m, id, layer);
}
static bool kept(const GPT2 *m, ActivationId id, int layer) {
    return place_of(&m->places, id, layer, m->config.num_layers).kept;
}

// ---- rows of layernorms and of the residual stream: with -tp each rank has its own, and products take all of them

static bool rows_are_split(const GPT2 *m) { return m->local.tp_size > 1 && !m->decoding; }

static Range rows_of(const GPT2 *m, int N) {
    return row_range(N, rows_are_split(m) ? m->local.tp_size : 1, rows_are_split(m) ? m->local.tp_rank : 0);
}
static size_t chunk_elements(const GPT2 *m, int N) {
    return chunk_size((size_t)N, rows_are_split(m) ? m->local.tp_size : 1) * (size_t)m->config.channels;
}

// elements before this rank's rows of N, and of the ranks' rows together
static size_t elements_before(const GPT2 *m, int N) { return rows_of(m, N).offset * (size_t)m->config.channels; }
static size_t gathered_elements(const GPT2 *m, int N) {
    size_t chunks = rows_are_split(m) ? (size_t)m->local.tp_size : 1;
    return chunks * chunk_elements(m, N);
}

// a scratch buffer for the ranks' rows together
static floatX *take_rows(GPT2 *m, Scratch *scratch, const char *holder, int N) {
    return (floatX *)scratch_acquire(scratch, holder, gathered_elements(m, N) * sizeof(floatX));
}

// rows that ranks send each other: where they will be, and the work to join before they are read, 0 for none
typedef struct {
    floatX *rows;
    CommWork work;
} Exchange;

// Work given from now on may read the rows.
static floatX *exchanged(GPT2 *m, Exchange e) {
    if (e.work) { comm_wait(e.work, m->groups.tp, &m->exec); }
    return e.rows;
}

// all = every rank's rows. This rank's are `own`, in their place in `all` or outside of it. Where rows are not split,
// `own` is all.
static Exchange gather_rows(GPT2 *m, floatX *all, floatX *own, int N) {
    size_t chunk = chunk_elements(m, N);
    Exchange e = {own, 0};
    if (!rows_are_split(m)) { return e; }
    e.rows = all;
    e.work = comm_all_gather(all, own, chunk, DT_FLOATX, m->groups.tp, &m->exec);
    return e;
}

// Sums `partial` over the ranks, in place: each gets its own rows of the sum, and all of them when decoding.
static Exchange sum_rows(GPT2 *m, floatX *partial, int N) {
    Comm *tp = m->groups.tp;
    size_t chunk = chunk_elements(m, N);
    Exchange e = {partial + elements_before(m, N), 0};
    if (m->local.tp_size == 1) { return e; }
    e.work = m->decoding ? comm_all_reduce(partial, chunk, DT_FLOATX, tp, &m->exec)
                         : comm_reduce_scatter(e.rows, partial, chunk, DT_FLOATX, tp, &m->exec);
    return e;
}

// Where LN1, LN2 or FCH_GELU of a block goes: its slot if it is kept, else scratch, taken until drop. Of a layernorm it
// is this rank's first row.
static floatX *hold(GPT2 *m, ActivationId id, int layer) {
    const ActivationSpec *spec = &activation_specs[id];
    size_t first = is_norm(id) ? elements_before(m, m->B * m->T) : 0;
    if (kept(m, id, layer)) { return act(m, id, layer) + (m->options.gather_again ? 0 : first); }
    if (is_norm(id)) { return take_rows(m, &m->normed, spec->name, m->B * m->T) + first; }
    return (floatX *)scratch_acquire(&m->wide, spec->name, activation_size(m, id) * sizeof(floatX));
}
static void drop(GPT2 *m, ActivationId id, int layer) {
    bool gathered_apart = is_norm(id) && rows_are_split(m) && m->options.gather_again;
    if (kept(m, id, layer) && !gathered_apart) { return; }
    scratch_release(activation_specs[id].home == IN_WIDE ? &m->wide : &m->normed);
}

// All ranks' rows of LN1 or LN2, gathered around this rank's own, which hold has given; in scratch where the slot has
// room for those alone (-ra 1).
static Exchange gather_norm(GPT2 *m, ActivationId id, int layer, floatX *own) {
    int N = m->B * m->T;
    bool apart = rows_are_split(m) && kept(m, id, layer) && m->options.gather_again;
    floatX *all = apart ? take_rows(m, &m->normed, activation_specs[id].name, N) : own - elements_before(m, N);
    return gather_rows(m, all, own, N);
}

// what block `layer` reads: the output of the one before it
static floatX *block_input(const GPT2 *m, int layer) {
    return layer == 0 ? act(m, ENCODED, 0) : act(m, RESIDUAL3, layer - 1);
}

// A block is two branches off the residual stream: a layernorm, a product that expands its rows, attention or GELU, and
// a product that projects them back. With -tp the first product has some of the weight's rows, the second some columns.
typedef struct {
    bool mlp;  // else attention's
    ActivationId norm, mean, rstd, expanded, out;
    ParamId norm_weight, norm_bias, expand_weight, expand_bias, project_weight, project_bias;
} Branch;

static const Branch attention_branch = {
    .mlp = false,
    .norm = LN1,
    .mean = LN1_MEAN,
    .rstd = LN1_RSTD,
    .expanded = QKV,
    .out = RESIDUAL2,
    .norm_weight = LN1W,
    .norm_bias = LN1B,
    .expand_weight = QKVW,
    .expand_bias = QKVB,
    .project_weight = ATTPROJW,
    .project_bias = ATTPROJB,
};
static const Branch mlp_branch = {
    .mlp = true,
    .norm = LN2,
    .mean = LN2_MEAN,
    .rstd = LN2_RSTD,
    .expanded = FCH,
    .out = RESIDUAL3,
    .norm_weight = LN2W,
    .norm_bias = LN2B,
    .expand_weight = FCW,
    .expand_bias = FCB,
    .project_weight = FCPROJW,
    .project_bias = FCPROJB,
};

// the residual stream where the branch leaves it
static floatX *branch_input(const GPT2 *m, const Branch *b, int layer) {
    return b->mlp ? act(m, RESIDUAL2, layer) : block_input(m, layer);
}
// channels of what the first product makes, and of what the second one reads
static int expanded_width(const GPT2 *m, const Branch *b) { return b->mlp ? m->local.units : 3 * m->local.attention; }
static int projected_width(const GPT2 *m, const Branch *b) { return b->mlp ? m->local.units : m->local.attention; }

// In a POISON_SCRATCH build: what block `layer` will have rebuilt, of the tensors first..last, becomes NaN.
static void poison_rebuilt(GPT2 *m, int layer, ActivationId first, ActivationId last) {
#ifdef POISON_SCRATCH
    for (int id = (int)first; id <= (int)last; id++) {
        const ActivationSpec *spec = &activation_specs[id];
        if (kept(m, (ActivationId)id, layer) || spec->home != IN_SLOTS) { continue; }
        size_t size = spec->statistic ? sizeof(real) : sizeof(floatX),
               bytes = activation_size(m, (ActivationId)id) * size;
        void *at = (unsigned char *)m->activations[id] + activation_offset(m, (ActivationId)id, layer) * size;
        m->device->enqueue_fill(at, 0xFF, bytes, &m->exec);
    }
#else
    (void)m, (void)layer, (void)first, (void)last;
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. forward

// attention over whole sequences, or over a cache when decoding
static void block_attention(GPT2 *m, int l, int N, int decode_from) {
    int NH = m->local.heads, HS = config_head_size(&m->config);
    if (decode_from < 0) {
        m->ops->attention_forward(act(m, ATTY, l), statistic(m, LSE, l), act(m, QKV, l), m->B, m->T, NH, HS, &m->exec);
        return;
    }
    size_t layer = (size_t)l * (size_t)m->options.decode_positions * (size_t)m->local.attention;
    m->ops->attention_decode(act(m, ATTY, l), m->keys + layer, m->values + layer, act(m, QKV, l), decode_from, N, NH,
                             HS, &m->exec);
}

// expanded (N,OC) = norm (N,C) weight (OC,C)^T + bias, of all ranks' rows; and its GELU, where that is fused
static void expand_norm(GPT2 *m, const Branch *b, int l, int N, const floatX *norm, floatX *fused_gelu) {
    const floatX *weight = param(m, b->expand_weight, l), *bias = param(m, b->expand_bias, l);
    floatX *out = act(m, b->expanded, l);
    int C = m->config.channels, OC = expanded_width(m, b);
    if (fused_gelu) {
        m->ops->matmul_gelu_forward(fused_gelu, out, norm, weight, bias, N, C, OC, &m->exec);
    } else {
        m->ops->matmul_forward(out, norm, weight, bias, NULL, N, C, OC, &m->exec);
    }
}

// the first half of a branch: the layernorm of this rank's rows, and the product
static void expand_forward(GPT2 *m, const Branch *b, int l, int N, floatX *fused_gelu) {
    floatX *own = hold(m, b->norm, l);
    m->ops->layernorm_forward(own, statistic(m, b->mean, l), statistic(m, b->rstd, l), branch_input(m, b, l),
                              param(m, b->norm_weight, l), param(m, b->norm_bias, l), (int)rows_of(m, N).count,
                              m->config.channels, &m->exec);
    expand_norm(m, b, l, N, exchanged(m, gather_norm(m, b->norm, l, own)), fused_gelu);
    drop(m, b->norm, l);
}

// The second half: out (N,C) = in (N,K) weight (C,K)^T + bias + the branch's input. With -tp each rank's product is a
// part of the sum, to which bias and input are added once; they and out are its own rows.
static void project_forward(GPT2 *m, const Branch *b, int l, int N, const floatX *in) {
    const floatX *weight = param(m, b->project_weight, l), *bias = param(m, b->project_bias, l);
    floatX *out = act(m, b->out, l), *residual = branch_input(m, b, l);
    int C = m->config.channels, K = projected_width(m, b);
    if (m->local.tp_size == 1) {
        m->ops->matmul_forward(out, in, weight, bias, residual, N, K, C, &m->exec);
        return;
    }
    floatX *partial = take_rows(m, &m->narrow, "partial", N);
    m->ops->matmul_forward(partial, in, weight, NULL, NULL, N, K, C, &m->exec);
    m->ops->residual_forward(out, exchanged(m, sum_rows(m, partial, N)), bias, residual, (int)rows_of(m, N).count, C,
                             &m->exec);
    scratch_release(&m->narrow);
}

// N rows through block l. decode_from < 0: they are B whole sequences; else N new positions of one, from decode_from
// on. cuBLASLt's fused GELU may round otherwise than the one that the backward makes again.
static void block_forward(GPT2 *m, int l, int N, int decode_from) {
    expand_forward(m, &attention_branch, l, N, NULL);
    block_attention(m, l, N, decode_from);
    project_forward(m, &attention_branch, l, N, act(m, ATTY, l));
    floatX *gelu = hold(m, FCH_GELU, l);
    bool fused = m->options.fuse_gelu;
    expand_forward(m, &mlp_branch, l, N, fused ? gelu : NULL);
    if (!fused) { m->ops->gelu_forward(gelu, act(m, FCH, l), (size_t)N * (size_t)m->local.units, &m->exec); }
    project_forward(m, &mlp_branch, l, N, gelu);
    drop(m, FCH_GELU, l);
}

// the last residual -> its layernorm, in m->normed, which the caller releases
static const floatX *final_norm_forward(GPT2 *m, int N) {
    floatX *lnf = take_rows(m, &m->normed, "lnf", N), *own = lnf + elements_before(m, N);
    zero_params_ready(&m->zero, num_buckets(&m->layout) - 1, 0);
    m->ops->layernorm_forward(own, statistic(m, LNF_MEAN, 0), statistic(m, LNF_RSTD, 0),
                              block_input(m, m->config.num_layers), param(m, LNFW, 0), param(m, LNFB, 0),
                              (int)rows_of(m, N).count, m->config.channels, &m->exec);
    return exchanged(m, gather_rows(m, lnf, own, N));
}

// Sends a micro-batch, inputs and targets (B,T), on its way to the device. The arrays may change afterwards.
static void gpt2_give_batch(GPT2 *m, const int *inputs, const int *targets) {
    size_t N = (size_t)m->B * (size_t)m->T, bytes = N * sizeof(int);
    int *slot = m->staged + (size_t)m->next_slot * 2 * (size_t)m->options.B * (size_t)m->options.T;
    m->next_slot = (m->next_slot + 1) % m->num_slots;
    memcpy(slot, inputs, bytes);
    memcpy(slot + N, targets, bytes);
    m->device->enqueue_upload(m->tokens, slot, bytes, &m->exec);
    m->device->enqueue_upload(m->targets, slot + N, bytes, &m->exec);
}

// ENCODED of B sequences of T tokens, from position `from` on. With -tp the embedding of a token is one rank's, and the
// others' are 0.
static void embed(GPT2 *m, int B, int T, int from) {
    int C = m->config.channels, N = B * T, vocab = m->local.vocab;
    const floatX *positions = param(m, WPE, 0) + (size_t)from * (size_t)C;
    floatX *encoded = act(m, ENCODED, 0);
    zero_params_ready(&m->zero, 0, layer_bucket(0));
    if (m->local.tp_size == 1) {
        m->ops->embedding_forward(encoded, m->tokens, param(m, WTE, 0), positions, B, T, C, &m->exec);
        return;
    }
    Range rows = rows_of(m, N);
    floatX *partial = take_rows(m, &m->narrow, "partial", N);
    m->ops->token_embedding_forward(partial, m->tokens, param(m, WTE, 0), m->local.tp_rank * vocab, vocab, N, C,
                                    &m->exec);
    const floatX *sum = exchanged(m, sum_rows(m, partial, N));
    m->device->enqueue_copy(encoded, sum, rows.count * (size_t)C * sizeof(floatX), &m->exec);
    m->ops->position_embedding_forward(encoded, positions, (int)rows.offset, (int)rows.count, T, C, &m->exec);
    scratch_release(&m->narrow);
}

// the micro-batch given last -> activations up to the last block's output
static void gpt2_forward(GPT2 *m) {
    int B = m->B, T = m->T, N = B * T;
    m->exec.rare_shapes = B != m->options.B || T != m->options.T;
    embed(m, B, T, 0);
    for (int l = 0; l < m->config.num_layers; l++) {
        params_ready(m, l, l + 1);
        block_forward(m, l, N, -1);
        poison_rebuilt(m, l, LN1, FCH_GELU);
        if (l > 0 && act(m, RESIDUAL3, l - 1) != act(m, RESIDUAL3, l)) {  // block l has read it
            poison_rebuilt(m, l - 1, RESIDUAL3, RESIDUAL3);
        }
    }
}

// Losses of `rows` rows from `first` on, and their logits' gradient times dloss, in place; with -tp of this rank's
// columns
static void classify_rows(GPT2 *m, floatX *logits, int first, int rows, real dloss) {
    Exec *ex = &m->exec;
    Comm *tp = m->groups.tp;
    int V = m->config.vocab_size, Vl = m->local.vocab, begin = m->local.tp_rank * Vl;
    real *losses = statistic(m, LOSSES, 0) + first;
    const int *targets = m->targets + first;
    if (m->local.tp_size == 1) {
        m->ops->classifier(losses, logits, targets, dloss, rows, V, Vl, ex);
        return;
    }
    size_t count = 3 * (size_t)rows;
    real *own = m->statistics + (size_t)tp->rank * count;
    m->ops->classifier_statistics(own, logits, targets, begin, rows, V, Vl, ex);
    comm_wait(comm_all_gather(m->statistics, own, count, DT_REAL, tp, ex), tp, ex);
    m->ops->classifier_from_statistics(losses, logits, m->statistics, targets, dloss, tp->size, begin, rows, V, Vl, ex);
}

// The final layernorm, then logits a chunk of rows at a time: *loss += scale * sum of losses. With dlnf (B,T,C), also
// the gradient of scale * loss: dlnf is written and wte's gradient set or added to.
static void gpt2_classify(GPT2 *m, floatX *dlnf, real scale, GradMode mode) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int N = m->B * m->T, C = m->config.channels, vocab = m->local.vocab, chunk = m->classifier_rows;
    const floatX *lnf = final_norm_forward(m, N);
    for (int first = 0; first < N; first += chunk) {
        int rows = N - first < chunk ? N - first : chunk;
        size_t at = (size_t)first * (size_t)C;
        floatX *logits = (floatX *)scratch_acquire(&m->wide, "logits", (size_t)rows * (size_t)vocab * sizeof(floatX));
        ops->matmul_forward(logits, lnf + at, param(m, WTE, 0), NULL, NULL, rows, C, vocab, ex);
        classify_rows(m, logits, first, rows, dlnf ? scale : 0);
        if (dlnf) {
            ops->matmul_backward(dlnf + at, grad(m, WTE, 0), no_gradient, no_gradient, logits, lnf + at,
                                 param(m, WTE, 0), NULL, first == 0 ? mode : GRAD_ADD, rows, C, vocab, ex);
        }
        scratch_release(&m->wide);
    }
    scratch_release(&m->normed);
    ops->loss_sum(m->loss, statistic(m, LOSSES, 0), scale, N, ex);
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. backward

// A branch's layernorm of all ranks' rows, kept or normalised again from the stored statistics; taken until drop.
static Exchange rebuilt_norm(GPT2 *m, const Branch *b, int l) {
    int N = m->B * m->T;
    bool is_kept = kept(m, b->norm, l);
    floatX *own = hold(m, b->norm, l);
    if (is_kept && !m->options.gather_again) {
        Exchange gathered = {own - elements_before(m, N), 0};
        return gathered;
    }
    if (!is_kept) {
        m->ops->layernorm_normalise(own, branch_input(m, b, l), statistic(m, b->mean, l), statistic(m, b->rstd, l),
                                    param(m, b->norm_weight, l), param(m, b->norm_bias, l), (int)rows_of(m, N).count,
                                    m->config.channels, &m->exec);
    }
    return gather_norm(m, b->norm, l, own);
}

// the GELU of a block, kept or made again; taken until drop
static floatX *rebuilt_gelu(GPT2 *m, int l) {
    floatX *gelu = hold(m, FCH_GELU, l);
    if (!kept(m, FCH_GELU, l)) { m->ops->gelu_forward(gelu, act(m, FCH, l), activation_size(m, FCH), &m->exec); }
    return gelu;
}

// block_forward again, as far as its results are not kept: bit for bit the same. LN2 is left to the backward where that
// comes next.
static void block_replay(GPT2 *m, int l) {
    int N = m->B * m->T, L = m->config.num_layers;
    if (!kept(m, QKV, l)) {
        expand_norm(m, &attention_branch, l, N, exchanged(m, rebuilt_norm(m, &attention_branch, l)), NULL);
        drop(m, LN1, l);
        block_attention(m, l, N, -1);
        project_forward(m, &attention_branch, l, N, act(m, ATTY, l));
    }
    if (!kept(m, FCH, l)) {
        expand_norm(m, &mlp_branch, l, N, exchanged(m, rebuilt_norm(m, &mlp_branch, l)), NULL);
        if (!replay_leaves_norm(&m->places, l, L)) { drop(m, LN2, l); }
    }
    if (!kept(m, RESIDUAL3, l)) {
        project_forward(m, &mlp_branch, l, N, rebuilt_gelu(m, l));
        drop(m, FCH_GELU, l);
    }
}

// LN2 as the replay has left it, or rebuilt now; taken until drop
static Exchange norm_of_mlp(GPT2 *m, int l) {
    Exchange left = {(floatX *)m->normed.memory, 0};
    return replay_leaves_norm(&m->places, l, m->config.num_layers) ? left : rebuilt_norm(m, &mlp_branch, l);
}

// dresidual of all ranks' rows; released by whoever has read it
static Exchange gather_dresidual(GPT2 *m) {
    int N = m->B * m->T;
    floatX *all = rows_are_split(m) ? take_rows(m, &m->gathered_gradient, "dresidual", N) : NULL;
    return gather_rows(m, all, m->dresidual, N);
}
static void release_dresidual(GPT2 *m) {
    if (rows_are_split(m)) { scratch_release(&m->gathered_gradient); }
}

// The backward of project_forward, from dresidual, gathered: din (N,K), times gelu' in the MLP, and the gradients of
// its weight and bias, and of the bias before the GELU. din may be in.
static void project_backward(GPT2 *m, const Branch *b, int l, floatX *din, const floatX *in, Exchange gathered,
                             GradMode mode) {
    int N = m->B * m->T, C = m->config.channels;
    Gradient dweight = grad(m, b->project_weight, l), dbias = grad(m, b->project_bias, l);
    Gradient dgelu_bias = b->mlp ? grad(m, b->expand_bias, l) : no_gradient;
    const floatX *weight = param(m, b->project_weight, l), *gelu_pre = b->mlp ? act(m, FCH, l) : NULL;
    if (rows_are_split(m)) {  // the bias is every rank's, for its own rows
        m->ops->matmul_backward(NULL, no_gradient, dbias, no_gradient, m->dresidual, NULL, NULL, NULL, mode,
                                (int)rows_of(m, N).count, 0, C, &m->exec);
        dbias = no_gradient;
    }
    m->ops->matmul_backward(din, dweight, dbias, dgelu_bias, exchanged(m, gathered), in, weight, gelu_pre, mode, N,
                            projected_width(m, b), C, &m->exec);
    release_dresidual(m);
}

// The backward of expand_forward, from dout (N,OC) and its layernorm, gathered: dresidual += what comes through the
// branch, and the gradients of weights and biases; the bias before a GELU has its own from project_backward. With -tp
// the product that needs no layernorm comes first, and its sum over the ranks is made beside the other one.
static void expand_backward(GPT2 *m, const Branch *b, int l, const floatX *dout, Exchange gathered, GradMode mode) {
    int N = m->B * m->T, C = m->config.channels, OC = expanded_width(m, b);
    Gradient dweight = grad(m, b->expand_weight, l), dbias = b->mlp ? no_gradient : grad(m, b->expand_bias, l);
    const floatX *weight = param(m, b->expand_weight, l);
    floatX *dnorm = take_rows(m, &m->narrow, "dnorm", N);
    Exchange sum = {dnorm, 0};
    if (rows_are_split(m)) {
        m->ops->matmul_backward(dnorm, no_gradient, no_gradient, no_gradient, dout, NULL, weight, NULL, mode, N, C, OC,
                                &m->exec);
        sum = sum_rows(m, dnorm, N);
        m->ops->matmul_backward(NULL, dweight, dbias, no_gradient, dout, exchanged(m, gathered), NULL, NULL, mode, N, C,
                                OC, &m->exec);
    } else {
        m->ops->matmul_backward(dnorm, dweight, dbias, no_gradient, dout, gathered.rows, weight, NULL, mode, N, C, OC,
                                &m->exec);
    }
    drop(m, b->norm, l);
    m->ops->layernorm_backward(m->dresidual, grad(m, b->norm_weight, l), grad(m, b->norm_bias, l), exchanged(m, sum),
                               branch_input(m, b, l), param(m, b->norm_weight, l), statistic(m, b->mean, l),
                               statistic(m, b->rstd, l), mode, (int)rows_of(m, N).count, C, &m->exec);
    scratch_release(&m->narrow);
}

// dresidual comes in as the gradient of block l's output and leaves as that of its input: a residual addition passes it
// on unchanged, and what comes through the branch is added to it by layernorm_backward's +=. GELU's backward is part of
// the product that makes dfch, in the place of the GELU that it has read. Rows are gathered as early as can be: those
// of a branch's layernorm are on their way while what is behind them in the branch runs backwards.
static void block_backward(GPT2 *m, int l, GradMode mode) {
    int NH = m->local.heads, HS = config_head_size(&m->config);
    size_t row = (size_t)m->B * (size_t)m->T * (size_t)m->local.attention * sizeof(floatX);

    Exchange gathered = gather_dresidual(m);
    floatX *gelu = rebuilt_gelu(m, l), *dfch = gelu;
    Exchange ln2 = norm_of_mlp(m, l);
    project_backward(m, &mlp_branch, l, dfch, gelu, gathered, mode);
    expand_backward(m, &mlp_branch, l, dfch, ln2, mode);
    drop(m, FCH_GELU, l);

    gathered = gather_dresidual(m);
    Exchange ln1 = rebuilt_norm(m, &attention_branch, l);
    floatX *datty = (floatX *)scratch_acquire(&m->narrow, "datty", row);
    project_backward(m, &attention_branch, l, datty, act(m, ATTY, l), gathered, mode);
    floatX *dqkv = (floatX *)scratch_acquire(&m->wide, "dqkv", 3 * row);
    m->ops->attention_backward(dqkv, datty, act(m, QKV, l), act(m, ATTY, l), statistic(m, LSE, l), m->B, m->T, NH, HS,
                               &m->exec);
    scratch_release(&m->narrow);
    expand_backward(m, &attention_branch, l, dqkv, ln1, mode);
    scratch_release(&m->wide);
}

// the block whose parameters the backward reads after those of block l, -1 for none
static int read_after(const GPT2 *m, int l) {
    int next = l - 1;
    return next >= 0 && m->places.replay_from[next] < next ? m->places.replay_from[next] : next;
}

// block l's backward, after those blocks have been replayed whose replay stands before it
static void replay_and_backward(GPT2 *m, int l, GradMode mode) {
    for (int replayed = m->places.replay_from[l]; replayed <= l; replayed++) {
        params_ready(m, replayed, replayed < l ? replayed + 1 : read_after(m, l));
        block_replay(m, replayed);
    }
    params_ready(m, l, read_after(m, l));
    block_backward(m, l, mode);
    zero_gradients_done(&m->zero, layer_bucket(l));
}

// The embeddings' gradients, wte's added to that of the logits.
static void embed_backward(GPT2 *m, GradMode mode) {
    int B = m->B, T = m->T, N = B * T, maxT = m->config.max_seq_len, C = m->config.channels, vocab = m->local.vocab;
    if (m->local.tp_size == 1) {
        m->ops->embedding_backward(grad(m, WTE, 0), grad(m, WPE, 0), m->dresidual, m->tokens, mode, B, T, maxT, C,
                                   &m->exec);
        return;
    }
    Range rows = rows_of(m, N);
    Exchange all = gather_dresidual(m);
    m->ops->position_embedding_backward(grad(m, WPE, 0), m->dresidual, mode, (int)rows.offset, (int)rows.count, T, maxT,
                                        C, &m->exec);
    m->ops->token_embedding_backward(grad(m, WTE, 0), exchanged(m, all), m->tokens, m->local.tp_rank * vocab, vocab, N,
                                     C, &m->exec);
    release_dresidual(m);
}

// After gpt2_forward: the loss, and every parameter's gradient, set or added to as zero_micro_step says. scale is
// 1 / (rows of the whole update).
static void gpt2_backward(GPT2 *m, real scale) {
    GradMode mode = zero_grad_mode(&m->zero);
    int N = m->B * m->T, C = m->config.channels, own = (int)rows_of(m, N).count;
    floatX *dlnf = take_rows(m, &m->narrow, "dlnf", N);
    gpt2_classify(m, dlnf, scale, mode);
    Exchange sum = sum_rows(m, dlnf, N);
    m->device->enqueue_fill(m->dresidual, 0, (size_t)own * (size_t)C * sizeof(floatX), &m->exec);
    m->ops->layernorm_backward(m->dresidual, grad(m, LNFW, 0), grad(m, LNFB, 0), exchanged(m, sum),
                               block_input(m, m->config.num_layers), param(m, LNFW, 0), statistic(m, LNF_MEAN, 0),
                               statistic(m, LNF_RSTD, 0), mode, own, C, &m->exec);
    scratch_release(&m->narrow);
    zero_gradients_done(&m->zero, num_buckets(&m->layout) - 1);
    for (int l = m->config.num_layers - 1; l >= 0; l--) {
        replay_and_backward(m, l, mode);
        poison_rebuilt(m, l, LN1, RESIDUAL3);
    }
    embed_backward(m, mode);
    zero_gradients_done(&m->zero, 0);
    zero_backward_done(&m->zero);
}

// Forward and backward of the micro-batch given last, the update's `micro`-th. Its work is the same every time, so that
// from the second time on a device that can is given it as one graph; the first time, products may try out their
// algorithms. A graph waits for nothing that was sent before it, so that is waited for first.
static void gpt2_micro_step(GPT2 *m, int micro) {
    const Device *device = m->device;
    int micro_steps = m->options.micro_steps, kind = (micro > 0) + 2 * (micro == micro_steps - 1);
    real scale = 1 / ((real)m->B * (real)m->T * (real)micro_steps * (real)m->groups.dp->size);
    bool records =
        device->capture_begin && m->options.graph && m->groups.world->backend->capturable && m->runs[kind] > 0;
    zero_micro_step(&m->zero, micro, micro_steps);
    if (records) { zero_join_sent(&m->zero); }
    if (records && m->graphs[kind]) {
        device->graph_launch(m->graphs[kind], &m->exec);
        return;
    }
    if (records) { device->capture_begin(&m->exec); }
    gpt2_forward(m);
    gpt2_backward(m, scale);
    m->runs[kind]++;
    if (records) {
        m->graphs[kind] = device->capture_end(&m->exec);
        device->graph_launch(m->graphs[kind], &m->exec);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. update

// Waits for all work given so far, but for other processes no longer than --comm-timeout; the device's own transfers to
// and from the host, which come after it, know no such end.
static void finish_work(GPT2 *m) {
    m->device->event_record(0, &m->exec);
    comm_event_synchronize(0, m->groups.world, &m->exec);
}

static real device_number(GPT2 *m, const real *x) {
    real value;
    finish_work(m);
    m->device->download(&value, x, sizeof value);
    return value;
}

// the sum of every rank's x, in fp32
static double sum_over_ranks(GPT2 *m, double x) {
    if (m->groups.dp->size == 1) { return x; }
    real value = (real)x;
    m->device->upload(m->loss, &value, sizeof value);
    comm_wait(comm_all_reduce(m->loss, 1, DT_REAL, m->groups.dp, &m->exec), m->groups.dp, &m->exec);
    return (double)device_number(m, m->loss);
}

// mean loss of one micro-batch, without gradients
static real gpt2_loss(GPT2 *m, const int *inputs, const int *targets) {
    gpt2_give_batch(m, inputs, targets);
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    gpt2_forward(m);
    gpt2_classify(m, NULL, 1 / (real)(m->B * m->T), GRAD_SET);
    return device_number(m, m->loss);
}

// the gradients of a bucket's tensors that every slice has whole, to m->replicated + at, or back; returns where they
// end
static size_t copy_replicated(GPT2 *m, int bucket, size_t at, bool back) {
    Range ranges[LAYER_PARAMS];
    Gradient grads = zero_kept_grads(&m->zero, bucket), together = {m->replicated, grads.dtype};
    int count = bucket_ranges(ranges, &m->layout, bucket, false, false);
    for (int i = 0; i < count; i++) {
        void *there = gradient_at(grads, ranges[i].offset).at, *here = gradient_at(together, at).at;
        size_t bytes = ranges[i].count * dtype_size(grads.dtype);
        m->device->enqueue_copy(back ? there : here, back ? here : there, bytes, &m->exec);
        at += ranges[i].count;
    }
    return at;
}

// With -tp each rank has made the gradients of such tensors for its own rows: their sum, in one call.
static void sum_replicated(GPT2 *m) {
    Comm *tp = m->groups.tp;
    size_t count = 0, at = 0;
    for (int b = 0; b < num_buckets(&m->layout); b++) { count = copy_replicated(m, b, count, false); }
    DType dtype = zero_kept_grads(&m->zero, 0).dtype;
    comm_wait(comm_all_reduce(m->replicated, count, dtype, tp, &m->exec), tp, &m->exec);
    // at -z 0 all of a dp group have these sums, each from its own tp group, which may have added up in another order
    if (m->layout.sharding.stage == 0 && !tp->backend->ordered) {
        comm_wait(comm_broadcast(m->replicated, count, dtype, 0, m->groups.dp, &m->exec), m->groups.dp, &m->exec);
    }
    for (int b = 0; b < num_buckets(&m->layout); b++) { at = copy_replicated(m, b, at, true); }
}

// Adds the squares of what this rank owns of a bucket's gradients. Tensors that every slice has whole count in slice 0
// alone.
static void add_squares(GPT2 *m, int bucket) {
    Range ranges[LAYER_PARAMS] = {{0, param_bucket(&m->layout, bucket).chunk}};
    bool first = m->local.tp_rank == 0;
    int count = first ? 1 : bucket_ranges(ranges, &m->layout, bucket, true, true);
    for (int i = 0; i < count; i++) {
        Gradient part = gradient_at(zero_own_grads(&m->zero, bucket), ranges[i].offset);
        m->ops->global_norm_squared(m->norm_squared, part, GRAD_ADD, ranges[i].count, &m->exec);
    }
}

// Loss and square of the gradients' norm, over all ranks: each adds what it owns, at every stage of -z the same. Slices
// of one model have the same loss, which slice 0 adds. They stay on the device, for gpt2_update.
static void gpt2_norm(GPT2 *m) {
    Comm *world = m->groups.world;
    if (world->size == 1) {
        m->ops->global_norm_squared(m->norm_squared, m->grads, GRAD_SET, m->layout.total, &m->exec);
        return;
    }
    if (m->local.tp_size > 1) { sum_replicated(m); }
    m->device->enqueue_fill(m->norm_squared, 0, sizeof(real), &m->exec);
    for (int b = 0; b < num_buckets(&m->layout); b++) { add_squares(m, b); }
    if (m->local.tp_rank > 0) { m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec); }
    comm_wait(comm_all_reduce(m->loss, 2, DT_REAL, world, &m->exec), world, &m->exec);
}

// the optimizer's state of this rank's chunk of a bucket
static OptimizerState optimizer_of(const GPT2 *m, int bucket) {
    OptimizerState o = m->optimizer;
    size_t at = param_bucket(&m->layout, bucket).shard_offset, bytes = at * dtype_size(o.moments);
    o.params = zero_own_params(&m->zero, bucket);
    if (o.master) { o.master += at; }
    if (o.remainder) { o.remainder += at; }
    o.m = (char *)o.m + bytes, o.v = (char *)o.v + bytes;
    if (o.m_scales) { o.m_scales += at / MOMENT_BLOCK, o.v_scales += at / MOMENT_BLOCK; }
    return o;
}

// All at once; or, where each rank has its part, a bucket after the other: parts of parameters and of gradients do not
// follow on each other as those of moments do.
static void gpt2_update(GPT2 *m, const AdamW *hyper) {
    int buckets = num_buckets(&m->layout);
    const int *first = m->first_span;
    if (m->layout.sharding.stage == 0) {
        m->ops->adamw_update(&m->optimizer, m->grads, m->norm_squared, m->ranges, first[buckets], hyper, &m->exec);
        return;
    }
    for (int b = 0; b < buckets; b++) {
        OptimizerState own = optimizer_of(m, b);
        m->ops->adamw_update(&own, zero_own_grads(&m->zero, b), m->norm_squared, m->ranges + first[b],
                             first[b + 1] - first[b], hyper, &m->exec);
    }
    zero_params_changed(&m->zero);
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. decoding

// Appends n tokens at positions from.. of one sequence to the cache; logits (V) of the last one, on the host as float.
static void gpt2_decode(GPT2 *m, const int *tokens, int from, int n, float *logits) {
    int C = m->config.channels, V = m->config.vocab_size, vocab = m->local.vocab;
    Comm *tp = m->groups.tp;
    m->device->upload(m->tokens, tokens, (size_t)n * sizeof(int));
    m->exec.rare_shapes = true;
    m->decoding = true;
    embed(m, 1, n, from);
    for (int l = 0; l < m->config.num_layers; l++) {
        params_ready(m, l, l + 1);
        block_forward(m, l, n, from);
    }
    const floatX *last = final_norm_forward(m, n) + (size_t)(n - 1) * (size_t)C;
    floatX *row = (floatX *)scratch_acquire(&m->wide, "logits", (size_t)(vocab * m->local.tp_size) * sizeof(floatX));
    floatX *own = row + (size_t)(m->local.tp_rank * vocab);
    m->ops->matmul_forward(own, last, param(m, WTE, 0), NULL, NULL, 1, C, vocab, &m->exec);
    comm_wait(comm_all_gather(row, own, (size_t)vocab, DT_FLOATX, tp, &m->exec), tp, &m->exec);
    scratch_release(&m->normed);
    m->decoding = false;
    floatX *host = (floatX *)xmalloc((size_t)V * sizeof(floatX));
    finish_work(m);
    m->device->download(host, row, (size_t)V * sizeof(floatX));
    for (int v = 0; v < V; v++) { logits[v] = (float)to_real(host[v]); }
    free(host);
    scratch_release(&m->wide);
}

// the same for any number of tokens, as many at a time as the activations have rows
static void gpt2_prefill(GPT2 *m, const int *tokens, int from, int n, float *logits) {
    int most = (int)chunk_size((size_t)(m->B * m->T), m->local.tp_size);
    for (int done = 0; done < n; done += most) {
        gpt2_decode(m, tokens + done, from + done, n - done < most ? n - done : most, logits);
    }
}

static volatile sig_atomic_t stop_signal;  // a signal handler has nowhere else to leave its word
static volatile double stop_asked;         // seconds

// the signal that came to any rank, 0 for none; every rank asks at the same time
static int agreed_signal(const GPT2 *m) { return (int)comm_max(stop_signal, m->groups.world); }

// The second time is no request. One that comes right after the first is the same: `timeout` sends its signal to the
// program and to its group.
static void ask_to_stop(int signal_number) {
    const double seconds_of_one = 0.2;
    if (!stop_signal) {
        stop_asked = now_seconds();
        stop_signal = signal_number;
    } else if (now_seconds() - stop_asked > seconds_of_one) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
}

// The first of these ends a run with a checkpoint as soon as that can be written, a second one ends the program at
// once: SIGHUP comes when an ssh connection ends, SIGUSR1 is what mpirun passes on without killing a second later. A
// signal that the program was started to ignore, as nohup and scripts do, stays ignored. The handler has a stack of its
// own, and OpenMP's other threads, which have none, are never interrupted: in some products of oneDNN 2.6 the stack
// pointer stands in an array, which a handler would overwrite.
static void catch_signals(void) {
    static char handler_stack[1 << 16];
    const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1}, count = sizeof signals / sizeof signals[0];
    sigset_t caught;
    sigemptyset(&caught);
    for (int i = 0; i < count; i++) { sigaddset(&caught, signals[i]); }
#pragma omp parallel
    if (omp_get_thread_num() > 0) { pthread_sigmask(SIG_BLOCK, &caught, NULL); }
    stack_t own;
    memset(&own, 0, sizeof own);
    own.ss_sp = handler_stack, own.ss_size = sizeof handler_stack;
    sigaltstack(&own, NULL);
    for (int i = 0; i < count; i++) {
        struct sigaction action, before;
        memset(&action, 0, sizeof action);
        action.sa_handler = ask_to_stop;
        action.sa_flags = SA_RESTART | SA_NODEFER | SA_ONSTACK;
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) { continue; }
        sigaction(signals[i], &action, NULL);
    }
}

// writes one token as text, or as a number where there is no tokenizer
static void print_token(const Tokenizer *tokenizer, int token) {
    if (!tokenizer) {
        printf("%d ", token);
        return;
    }
    size_t bytes;
    const char *text = tokenizer_decode(tokenizer, token, &bytes);
    bool terminal = isatty(STDOUT_FILENO);
    for (size_t i = 0; i < bytes; i++) {
        bool controls = iscntrl((unsigned char)text[i]) && text[i] != '\n' && text[i] != '\t';
        putchar(terminal && controls ? '?' : text[i]);  // a terminal would obey it
    }
}

// how text is drawn
typedef struct {
    double temperature;
    int top_k;
    uint64_t seed, stream;  // the key of the coins
} Sampling;

// keeps the coins apart from the seed's other uses; those of step n are SAMPLE_STREAM + n
#define SAMPLE_STREAM 0x73616D706C65u

// Prints the prompt's text and `count` more tokens as they come. When the context is full the latter half is read again
// as a new beginning: the positions are learned and cannot slide.
static void generate(GPT2 *m, const Tokenizer *tokenizer, const int *prompt, size_t prompt_length, int count,
                     Sampling how) {
    size_t room = prompt_length + (size_t)count;
    int positions = m->options.decode_positions, at = 0;
    int *tokens = (int *)xmalloc(room * sizeof(int));
    float *logits = (float *)xmalloc((size_t)m->config.vocab_size * sizeof(float));
    memcpy(tokens, prompt, prompt_length * sizeof(int));
    size_t length = prompt_length, unread = prompt_length;
    for (size_t i = 0; i < prompt_length; i++) { print_token(tokenizer, prompt[i]); }
    for (int i = 0; i < count && !agreed_signal(m); i++) {
        if ((size_t)at + unread > (size_t)positions) {
            unread = (size_t)(positions + 1) / 2;
            at = 0;
        }
        gpt2_prefill(m, tokens + length - unread, at, (int)unread, logits);
        at += (int)unread;
        unread = 1;
        double coin = rng_uniform(how.seed, how.stream, (uint64_t)i);
        tokens[length] = sample_token(logits, m->config.vocab_size, how.temperature, how.top_k, coin);
        print_token(tokenizer, tokens[length++]);
        fflush(stdout);
    }
    putchar('\n');
    free(tokens);
    free(logits);
}

// ids past the model's vocabulary would be read past its embeddings
static void check_tokenizer(const Tokenizer *tokenizer, const char *path, int vocab_size) {
    if (tokenizer_vocab_size(tokenizer) > vocab_size) {
        input_error(
            "the tokenizer '%s' has %d tokens, the model only %d; give the one it was trained with by --tokenizer",
            path, tokenizer_vocab_size(tokenizer), vocab_size);
    }
}

// the file to read and write text with: --tokenizer, or one that lies in or beside the model or in the run's folder; or
// ""
static void find_tokenizer_file(char *path, const TrainArgs *a) {
    char beside[PATH_LENGTH] = "";
    if (a->model && access(a->model, F_OK) == 0) {
        const char *slash = strrchr(a->model, '/');
        format_path(beside, "%.*s", slash ? (int)(slash - a->model) : 1, slash ? a->model : ".");
    }
    const char *const folders[] = {a->model, beside, a->run_dir}, *const names[] = {"merges.txt", "vocab.bpe"};
    format_path(path, "%s", a->tokenizer ? a->tokenizer : "");
    for (int i = 0; i < 6 && !*path; i++) {
        const char *folder = folders[i / 2];
        if (!folder || !*folder) { continue; }
        format_path(path, "%s/%s", folder, names[i % 2]);
        if (access(path, R_OK) != 0) { *path = 0; }
    }
}

// A tokenizer that speaks this vocabulary: a file's, or bytes. False: there is none, and text is numbers.
static bool find_tokenizer(Tokenizer *tokenizer, const TrainArgs *a, int vocab_size) {
    char path[PATH_LENGTH];
    find_tokenizer_file(path, a);
    if (!a->tokenizer && vocab_size == BYTE_VOCABULARY) {
        *tokenizer = tokenizer_bytes();
        return true;
    }
    if (!*path) { return false; }
    *tokenizer = tokenizer_load(path);
    check_tokenizer(tokenizer, path, vocab_size);
    return true;
}

// The prompt as tokens (malloced). An empty one becomes the token that documents begin with: a newline in bytes,
// end-of-text.
static size_t prompt_tokens(const Tokenizer *tokenizer, const char *text, int vocab_size, int **tokens) {
    if (*text && !tokenizer) {
        input_error(
            "--prompt is text, but the model's %d tokens need a tokenizer: give GPT-2's merges file with --tokenizer",
            vocab_size);
    }
    if (*text) { return tokenizer_encode(tokenizer, text, strlen(text), tokens); }
    *tokens = (int *)xmalloc(sizeof(int));
    (*tokens)[0] = tokenizer ? tokenizer->end_of_text : vocab_size - 1;
    return 1;
}

// ---------------------------------------------------------------------------------------------------------------------
// 7. the run

// an update that the device was given: its loss and norm are read when it is done
typedef struct {
    double began;   // seconds
    real *results;  // loss and square of the norm, in host memory the device writes to
    double loss, norm, learning_rate;
    bool known;        // loss and norm
    const char *note;  // "" or why it was skipped
} Update;

typedef struct {
    const TrainArgs *args;
    const Backend *backend;
    const char *backend_note;  // "" or why it is not another
    Comm *host;                // the processes as they were started; whoever opened it closes it
    Groups groups;
    GPT2 model;
    TokenFiles files, train_files, val_files;
    char fingerprint[17];  // of the tokens that are trained on: their contents, not their paths
    DataLoader train_loader, val_loader;
    HellaSwag hellaswag;
    Tokenizer tokenizer;
    bool has_tokenizer;
    int *prompt;
    size_t prompt_length;
    OutlierDetector loss_guard, norm_guard;
    Logger log;
    long long step, max_steps;    // finished updates, and how many there will be
    long long given;              // updates that the device was given
    Update updates[2];            // update n is in updates[n % 2]
    long long planned_steps;      // how many there would have been when the run that is resumed began; 0 for a new run
    double started, last_finish;  // seconds
    int lock;                     // of the run's folder: a file descriptor, -1 where there is none
} Run;

// what a run starts from
typedef struct {
    GPT2Config config;
    bool has_weights;              // else they are drawn from --seed
    ModelFile weights;             // opened
    char checkpoint[PATH_LENGTH];  // the checkpoint that is resumed, "" for a new run
} Origin;

// -r -rk -rn for a model of L blocks
static Recompute recompute_of(const TrainArgs *a, int L) {
    Recompute r = {a->recompute, a->recompute_every > 0 ? a->recompute_every : 1, a->recompute_layers};
    if (r.layers < 0 || r.layers > L) { r.layers = L; }
    return r;
}

// -gd auto: sums of several micro-batches would lose too much in bf16; from -z 2 on they are made in sharding, which are
// fp32 whatever is sent there
static DType auto_gradients(int micro_steps, int stage) { return micro_steps > 1 && stage < 2 ? DT_REAL : DT_FLOATX; }

static DType gradients_of(const TrainArgs *a) {
    const DType types[] = {auto_gradients(accumulation_steps(a), a->zero), DT_REAL, DT_BF16};
    return types[a->gradients];
}

// what process `rank` keeps: neighbours have slices of one model
static Sharding sharding_of(const TrainArgs *a, int rank) {
    int t = a->tensor_parallel;
    Sharding s = {data_ranks(a), rank / t, data_ranks(a) > 1 ? a->zero : 0, t, rank % t};
    return s;
}

static ModelOptions model_options(const TrainArgs *a, const GPT2Config *c, const Backend *backend) {
    ModelOptions p;
    memset(&p, 0, sizeof p);
    p.backend = backend;
    p.training = !a->generate;
    p.B = p.training ? a->B : 1;
    p.T = p.training ? a->T : 64;
    p.micro_steps = p.training ? accumulation_steps(a) : 1;
    p.decode_positions = a->sample_every > 0 || a->generate ? c->max_seq_len : 0;
    p.sharding = sharding_of(a, a->rank);
    p.gather_again = a->gather_again != 0;
    // the rounded copy is of parameters that this process changes itself
    p.round_matmul_inputs =
        a->matmul_precision == 2 && backend == &cpu_backend && matmul_rounds_inputs() && p.sharding.stage == 0;
    p.tf32 = a->matmul_precision > 0;
    p.graph = p.training && a->graph != 0;
    p.fuse_gelu = a->fuse_gelu > 0;
    p.recompute = p.training ? recompute_of(a, c->num_layers) : forward_only(c->num_layers);
    p.classifier_rows = a->classifier_rows;
    p.master = (MasterKind)a->master;
    p.moments = moment_types[a->moments];
    p.gradients = gradients_of(a);
    if (a->recompute_every == 0) { p.recompute.every = best_segment(c, p); }
    return p;
}

// ---- --fit

// flags that stand at their defaults may be chosen
static FitFree fit_free(const TrainArgs *a) {
    const TrainArgs *usual = &default_args;
    FitFree may;
    may.micro_batch = a->B == usual->B, may.recompute = a->recompute == usual->recompute;
    may.every = a->recompute_every == usual->recompute_every || a->recompute_every == 0;
    may.layers = a->recompute_layers == usual->recompute_layers;
    may.classifier = a->classifier_rows == usual->classifier_rows;
    may.master = a->master == usual->master, may.moments = a->moments == usual->moments;
    may.gradients = a->gradients == usual->gradients;
    return may;
}
static const FitFree fit_all = {true, true, true, true, true, true, true, true};

// the flags that say what was chosen, those that say nothing at their defaults
static void fit_apply(TrainArgs *a, const ModelOptions *p, int L) {
    const Recompute *r = &p->recompute;
    a->batch_tokens = (int64_t)p->B * p->T * p->micro_steps * data_ranks(a);
    a->B = p->B, a->recompute = r->level, a->recompute_every = r->every;
    a->recompute_layers = r->level == 0 || r->layers == L ? -1 : r->layers;
    a->classifier_rows = p->classifier_rows, a->master = (int)p->master;
    a->moments = type_index(moment_types, p->moments);
    a->gradients = p->gradients == DT_REAL ? 1 : 2;
}

// what each choice saves and costs, the others being as they are
static void print_fit(FILE *out, const Fit *fit, const ModelOptions *wanted, const GPT2Config *c) {
    const char *gradients_lose = fit->options.gradients == DT_BF16 ? "; the gradients lose precision" : "";
    const char *const loses[FIT_PARTS] = {
        "", "", "", "; the weights lose precision", "; the moments lose precision", gradients_lose};
    for (int i = 0; i < FIT_PARTS; i++) {
        char text[FLAG_TEXT], was[FLAG_TEXT];
        fit_part_text(text, (FitPart)i, &fit->options, c);
        fit_part_text(was, (FitPart)i, wanted, c);
        if (strcmp(text, was) == 0) { continue; }
        ModelOptions without = fit->options;
        fit_take(&without, wanted, (FitPart)i);
        double saved = (double)gpt2_plan_bytes(c, &without) - (double)fit->bytes;
        fprintf(out, "fit       %s instead of %s: %+.2f GiB, %+.1f %% time%s\n", text, was, -saved / (1 << 30),
                100 * (fit->seconds / fit_seconds(c, &without) - 1), loses[i]);
    }
}

// The bytes that each process may take of its device: the least that any finds, host memory divided among those of a
// machine.
static size_t room_for_each(const Backend *backend, Comm *world) {
    size_t room = backend->device->free_bytes(), most = (size_t)LLONG_MAX;
    size_t sharing = (size_t)comm_max(world->local_rank, world) + 1;
    if (backend->device == &cpu_device && room != SIZE_MAX) { room /= sharing; }
    return (size_t)-comm_max(-(long long)(room < most ? room : most), world);
}

// What fits best if every flag may be chosen, and, where *parts becomes true, -z 3 as well.
static Fit fit_at_all(const GPT2Config *c, ModelOptions p, size_t budget, bool *parts) {
    Fit fit = fit_choose(c, p, &fit_all, budget, auto_gradients);
    *parts = fit.bytes > budget && p.training && p.sharding.dp_size > 1 && p.sharding.stage < 3;
    p.sharding.stage = 3;
    return *parts ? fit_choose(c, p, &fit_all, budget, auto_gradients) : fit;
}

// Makes of the flags those of --fit, and says on `out` which and why.
static void choose_what_fits(FILE *out, TrainArgs *a, const GPT2Config *c, const Backend *backend, Comm *world) {
    size_t budget = *a->fit ? (size_t)(strtod(a->fit, NULL) * (1 << 30)) : room_for_each(backend, world);
    double gib = (double)budget / (1 << 30);
    FitFree may = fit_free(a);
    if (may.micro_batch && a->batch_tokens != -1) { a->B = 1; }  // any that divides -d
    ModelOptions wanted = model_options(a, c, backend);
    Fit fit = fit_choose(c, wanted, &may, budget, auto_gradients), least;
    char flags[FLAG_TEXT];
    if (fit.bytes > budget) {
        bool parts;
        least = fit_at_all(c, wanted, budget, &parts);
        fit_flags_text(flags, &least.options, &wanted, c);
        input_error("--fit: nothing fits in %.2f GiB%s%s%s takes %.2f GiB; %s", gib,
                    least.bytes < fit.bytes ? " with the flags that are given; " : "; the smallest, ",
                    parts ? "-z 3 " : "", flags, (double)least.bytes / (1 << 30),
                    least.bytes <= budget ? "leave out what stands against that"
                                          : "give more, or a smaller -e, -t or -d");
    }
    fit_flags_text(flags, &fit.options, &wanted, c);
    fprintf(out, "fit       %.2f of %.2f GiB: %s\n", (double)fit.bytes / (1 << 30), gib, *flags ? flags : "as it is");
    print_fit(out, &fit, &wanted, c);
    fit_apply(a, &fit.options, c->num_layers);
}

// Stops what would take more than is free, and says which flags would make it fit.
static void check_memory(const TrainArgs *a, const GPT2Config *c, const ModelOptions *p, Comm *world) {
    size_t bytes = gpt2_plan_bytes(c, p), room = room_for_each(p->backend, world);
    if (bytes <= room) { return; }
    char flags[FLAG_TEXT] = "", sentence[2 * FLAG_TEXT];
    FitFree may = fit_free(a);
    may.micro_batch = true;  // it costs no precision
    bool parts = false;
    Fit fit = fit_choose(c, *p, &may, room, auto_gradients);
    if (fit.bytes > room) { fit = fit_at_all(c, *p, room, &parts); }
    if (p->training) { fit_flags_text(flags, &fit.options, p, c); }
    if (fit.bytes <= room) {
        snprintf(sentence, sizeof sentence, "it fits with %s%s", parts ? "-z 3 " : "", flags);
    } else {
        snprintf(sentence, sizeof sentence, "no flags make it fit: give a smaller -e%s", p->training ? " or -t" : "");
    }
    input_error("this takes %.1f MiB and %.1f are free: %.1f too few; %s", mebibytes(bytes), mebibytes(room),
                mebibytes(bytes - room), sentence);
}

// The shape that -e asks for, `positions` being those of a shape without any; *file is opened where -e names weights.
// Returns whether it does.
static bool resolve_model(const TrainArgs *a, int data_vocab, int positions, GPT2Config *config, ModelFile *file) {
    const char *word = a->model ? a->model : "d12";
    if (config_from_descriptor(config, word, data_vocab, positions)) {
        char where[256];
        snprintf(where, sizeof where, "-e %s", word);
        config_check(config, where);
        return false;
    }
    if (access(word, F_OK) != 0) {
        input_error("-e %s is neither a shape (d6 d12 d24 d36 d48 d60 d72 d84, gpt3:c768 and the like, l4h4c128) nor a "
                    "file or folder that exists",
                    word);
    }
    char folder[PATH_LENGTH];
    format_path(folder, "%s", word);
    long long latest = checkpoint_latest(word);
    if (latest >= 0) { checkpoint_path(folder, word, latest); }  // a run's folder stands for its last checkpoint
    char weights[PATH_LENGTH];
    struct stat info;
    format_path(weights, "%s/model.safetensors", folder);
    if (stat(folder, &info) == 0 && S_ISDIR(info.st_mode) && access(weights, F_OK) != 0) {
        input_error("-e %s is a folder without a model.safetensors and without checkpoints; give one that has them",
                    word);
    }
    *file = model_open(folder);
    *config = file->config;
    return true;
}

static void check_length(const TrainArgs *a, const GPT2Config *c) {
    if (a->T > c->max_seq_len) {
        input_error("-t %d is longer than the model's %d positions; give -t %d or less", a->T, c->max_seq_len,
                    c->max_seq_len);
    }
}

// With -tp rows are dealt in chunks of N / t, rounded up, so that the last process may get none; products need one.
static void check_rows(const TrainArgs *a, int rows, const char *of_what) {
    int t = a->tensor_parallel;
    if (row_range(rows, t, t - 1).count > 0) { return; }
    input_error(
        "-tp %d shares the %d rows of %s in chunks of %d, which leaves none for its last process; give a smaller "
        "-tp, or a larger -b or -t",
        t, rows, of_what, (int)chunk_size((size_t)rows, t));
}

// the same shape, or the checkpoint belongs to another model than -e asks for
static void check_same_shape(const TrainArgs *a, int data_vocab, const GPT2Config *saved, const char *folder) {
    GPT2Config asked;
    ModelFile file;
    memset(&asked, 0, sizeof asked);
    if (resolve_model(a, data_vocab, saved->max_seq_len, &asked, &file)) { model_close(&file); }
    if (memcmp(&asked, saved, sizeof asked) == 0) { return; }
    input_error("'%s' holds a model of %d layers, %d heads, %d channels, %d positions and %d tokens, but -e %s asks "
                "for %d, %d, %d, %d and %d; leave -e out to go on with it",
                folder, saved->num_layers, saved->num_heads, saved->channels, saved->max_seq_len, saved->vocab_size,
                a->model, asked.num_layers, asked.num_heads, asked.channels, asked.max_seq_len, asked.vocab_size);
}

// the last checkpoint in -o where -y asks for it and there is one, else what -e says. Close origin.weights.
static Origin choose_model(const TrainArgs *a, int data_vocab) {
    Origin origin;
    memset(&origin, 0, sizeof origin);
    long long resumed = a->resume && !a->generate ? checkpoint_latest(a->run_dir) : -1;
    if (resumed < 0) {
        origin.has_weights = resolve_model(a, data_vocab, a->T, &origin.config, &origin.weights);
        return origin;
    }
    checkpoint_path(origin.checkpoint, a->run_dir, resumed);
    origin.weights = model_open(origin.checkpoint);
    origin.has_weights = true;
    origin.config = origin.weights.config;
    if (a->model) { check_same_shape(a, data_vocab, &origin.config, origin.checkpoint); }
    return origin;
}

// a new run needs a folder of its own; a resumed one need not have begun
static void check_run_dir(const TrainArgs *a) {
    struct stat info;
    if (!a->run_dir) { return; }
    if (strlen(a->run_dir) > PATH_LENGTH - 64) {
        input_error("-o is %zu characters long, and at most %d leave room for the files in it; give a shorter one",
                    strlen(a->run_dir), PATH_LENGTH - 64);
    }
    if (stat(a->run_dir, &info) == 0 && !S_ISDIR(info.st_mode)) {
        input_error("-o %s is a file; give a folder, which need not exist yet", a->run_dir);
    }
    if (a->resume) { return; }
    const char *const traces[] = {"metrics.jsonl", "config.json"};
    bool used = checkpoint_latest(a->run_dir) >= 0;
    for (int i = 0; i < 2; i++) {
        char path[PATH_LENGTH];
        format_path(path, "%s/%s", a->run_dir, traces[i]);
        used |= access(path, F_OK) == 0;
    }
    if (used) {
        input_error("-o %s holds another run; give a folder of its own, or -y 1 to go on with that run", a->run_dir);
    }
}

static void make_run_dir(const char *path) {
    char part[PATH_LENGTH];
    for (const char *slash = path; slash; slash++) {
        slash = strchr(slash + 1, '/');
        format_path(part, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            input_error("-o %s: could not make the folder '%s': %s", path, part, strerror(errno));
        }
        if (!slash) { return; }
    }
}

// weights that were trained on tokens of text would be trained on bytes that mean something else to them
static void check_text_fits(const Run *run, const Origin *origin) {
    bool other_weights = origin->has_weights && !*origin->checkpoint;
    if (other_weights && token_files_are_text(&run->files) && origin->config.vocab_size != BYTE_VOCABULARY) {
        input_error(
            "-i %s is text, which is read as bytes, but -e %s knows %d tokens; make token sharding of it first: "
            "train_gpt2 -i %s --tokenizer vocab.bpe --tokenize shard.bin",
            run->args->train_data, run->args->model, origin->config.vocab_size, run->args->train_data);
    }
}

// Two processes in one folder would delete each other's files: the first holds it until run_close.
static void lock_run_dir(Run *run) {
    const char *folder = run->args->run_dir;
    run->lock = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (run->lock >= 0 && flock(run->lock, LOCK_EX | LOCK_NB) != 0) {
        input_error("-o %s is in use by another process; wait for its end, or give another folder", folder);
    }
}

// the nearest folder that exists to `path`, which need not
static void nearest_folder(char *folder, const char *path) {
    format_path(folder, "%s", path);
    for (char *slash; access(folder, F_OK) != 0 && (slash = strrchr(folder, '/'));) {
        slash[slash == folder] = 0;
        if (strcmp(folder, "/") == 0) { return; }
    }
    if (access(folder, F_OK) != 0) { format_path(folder, "."); }
}

// there must be room for at least one checkpoint before hours are spent on it
static void check_disk(const TrainArgs *a, const GPT2Config *c) {
    struct statvfs disk;
    char folder[PATH_LENGTH];
    if (a->checkpoint_every == 0) { return; }
    if (a->resume) { remove_unfinished(a->run_dir); }  // what a killed save left takes room
    nearest_folder(folder, a->run_dir);
    if (statvfs(folder, &disk) != 0) { return; }
    bool keeps_masters = DT_FLOATX != DT_REAL && a->master != MASTER_NONE;
    double room = (double)disk.f_bavail * (double)disk.f_frsize,
           needed = (double)checkpoint_bytes(c, keeps_masters, moment_types[a->moments]);
    if (room < needed) {
        input_error(
            "-o %s has %.1f MiB free, and one checkpoint of this model takes %.1f MiB; make room or choose another "
            "folder",
            a->run_dir, room / (1 << 20), needed / (1 << 20));
    }
}

static void open_data(Run *run) {
    const TrainArgs *a = run->args;
    if (!a->train_data) {
        input_error(
            "-i is missing: give the data to train on, a text file or llm.c token sharding (--help lists all flags)");
    }
    run->files = token_files_open("-i", a->train_data);
    if (a->val_data) {
        run->train_files = token_files_copy(&run->files, "");
        run->val_files = token_files_open("-j", a->val_data);
        if (token_files_are_text(&run->train_files) != token_files_are_text(&run->val_files)) {
            input_error("-i %s is %s, but -j %s is %s; give both of one kind", a->train_data,
                        token_files_kind(&run->train_files), a->val_data, token_files_kind(&run->val_files));
        }
    } else {
        token_files_split(&run->files, 0.1, &run->train_files, &run->val_files);
    }
    snprintf(run->fingerprint, sizeof run->fingerprint, "%016" PRIx64, token_files_fingerprint(&run->train_files));
}

// The examples are short: as many rows of their longest length as a micro-batch has room for are several times as fast.
static HellaSwag open_hellaswag(const TrainArgs *a, int V) {
    HellaSwag set = hellaswag_open(HELLASWAG_PATH, a->B, a->T, V);
    int T = set.longest;
    hellaswag_close(&set);
    check_rows(a, a->B * a->T / T * T, "HellaSwag's examples");
    return hellaswag_open(HELLASWAG_PATH, a->B * a->T / T, T, V);
}

static void open_loaders(Run *run, int V) {
    const TrainArgs *a = run->args;
    token_files_check_ids(&run->train_files, V);
    token_files_check_ids(&run->val_files, V);
    int rank = run->groups.dp->rank, ranks = run->groups.dp->size;
    run->train_loader = dataloader_open(&run->train_files, a->B, a->T, true, (uint64_t)a->seed, rank, ranks, V);
    if (a->val_every > 0) { run->val_loader = dataloader_open(&run->val_files, a->B, a->T, false, 0, rank, ranks, V); }
    if (a->hellaswag) { run->hellaswag = open_hellaswag(a, V); }
}

static int64_t steps_of_an_epoch(const Run *run) {
    int64_t steps =
        (int64_t)dataloader_sequences_per_epoch(&run->train_loader) / (tokens_of_update(run->args) / run->args->T);
    return steps > 0 ? steps : 1;
}

// ---- checkpoints

static cJSON *run_state(const Run *run) {
    cJSON *state = cJSON_CreateObject();
    cJSON_AddNumberToObject(state, "step", (double)run->step);
    cJSON_AddNumberToObject(state, "max_steps", (double)run->max_steps);
    cJSON_AddNumberToObject(state, "position", (double)dataloader_position(&run->train_loader));
    cJSON_AddNumberToObject(state, "sequence_length", run->args->T);
    cJSON_AddNumberToObject(state, "seed", (double)run->args->seed);
    cJSON_AddStringToObject(state, "training_data", run->fingerprint);
    cJSON_AddNumberToObject(state, "training_tokens", (double)token_files_total(&run->train_files));
    cJSON_AddBoolToObject(state, "validation_held_out", !run->args->val_data);
    cJSON_AddItemToObject(state, "loss_guard", outlier_detector_to_json(&run->loss_guard));
    cJSON_AddItemToObject(state, "norm_guard", outlier_detector_to_json(&run->norm_guard));
    return state;
}

static void save_checkpoint(Run *run) {
    const TrainArgs *a = run->args;
    ModelState model = gpt2_state(&run->model);
    cJSON *state = run_state(run);
    finish_work(&run->model);
    checkpoint_save(a->run_dir, run->step, &model, state);
    if (is_first_rank(&model)) { checkpoint_prune(a->run_dir, a->keep_checkpoints, a->major_every); }
    char folder[PATH_LENGTH];
    checkpoint_path(folder, a->run_dir, run->step);
    logger_saved(&run->log, run->step, folder);
    cJSON_Delete(state);
}

// a resumed run's place in the data means something only in the same data, cut and shuffled the same way
static void check_same_data(const Run *run, const cJSON *state, const char *file) {
    const TrainArgs *a = run->args;
    int T = (int)json_whole(state, "sequence_length", 1, INT_MAX, file);
    int64_t seed = json_whole(state, "seed", 0, MAX_SEED, file);
    if (T != a->T || seed != a->seed) {
        input_error("'%s' was trained with -t %d --seed %lld, which its place in the data depends on; found -t %d "
                    "--seed %lld: give the same",
                    file, T, (long long)seed, a->T, (long long)a->seed);
    }
    bool held_out = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, "validation_held_out"));
    if (held_out != !a->val_data) {
        input_error("'%s' was trained %s, and now there is %s: the training data is another; give the same", file,
                    held_out ? "without -j, on all but the last tenth of -i" : "with a -j", held_out ? "one" : "none");
    }
    const char *then = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(state, "training_data"));
    if (!then || strcmp(then, run->fingerprint) != 0) {
        input_error("'%s' was trained on %" PRId64 " tokens of other files than -i %s, which gives %" PRIu64
                    "; give the files it was trained on",
                    file, json_whole(state, "training_tokens", 0, 0x1p53, file), a->train_data,
                    token_files_total(&run->train_files));
    }
}

// puts a run where its checkpoint left it: step, place in the data, guards
static void restore_run(Run *run, const char *folder) {
    char file[PATH_LENGTH];
    format_path(file, "%s/state.json", folder);
    cJSON *state = checkpoint_load_state(folder);
    check_same_data(run, state, file);
    if (!outlier_detector_from_json(&run->loss_guard, cJSON_GetObjectItem(state, "loss_guard")) ||
        !outlier_detector_from_json(&run->norm_guard, cJSON_GetObjectItem(state, "norm_guard"))) {
        input_error("'%s' has no loss_guard and norm_guard of at most %d numbers: it was cut short or edited", file,
                    OUTLIER_WINDOW);
    }
    run->step = json_whole(state, "step", 0, INT_MAX - 1, file);
    if (run->step != checkpoint_latest(run->args->run_dir)) {
        input_error("'%s' says that it is of step %lld, and its folder another; restore the file or the folder's name",
                    file, run->step);
    }
    run->planned_steps = json_whole(state, "max_steps", 1, 1e12, file);
    if (run->args->max_steps > 0 && run->step > run->args->max_steps) {
        input_error("-x %lld: '%s' has already made %lld steps; give a larger -x to go on with it",
                    (long long)run->args->max_steps, folder, run->step);
    }
    dataloader_seek(&run->train_loader, (uint64_t)json_whole(state, "position", 0, 0x1p53, file));
    cJSON_Delete(state);
}

// ---- the end before the end

// Why training ends before its last step, "" where it does not. Every rank asks at the same time, and all get the same
// answer.
static const char *cut_short(const Run *run) {
    if (run->step >= run->max_steps) { return ""; }
    enum { time_is_up = 1000 };  // no signal's number
    double limit = run->args->time_limit;
    bool up = limit > 0 && now_seconds() - run->started > limit;
    switch (comm_max(up ? time_is_up : stop_signal, run->groups.world)) {
    case 0: return "";
    case time_is_up: return "--time-limit is up";
    case SIGINT: return "interrupted";
    case SIGTERM: return "told to end by SIGTERM";
    default: return "told to end by a signal";
    }
}

// ---- evaluation

// The batches are dealt to the ranks in turn. All make as many forwards, since at -z 3 they make them together: what is
// left over counts for nothing.
static double validate(Run *run) {
    int ranks = run->groups.dp->size, rank = run->groups.dp->rank;
    int64_t sequences = (int64_t)dataloader_sequences_per_epoch(&run->val_loader);
    int64_t all = sequences / run->args->B > 0 ? sequences / run->args->B : 1;
    int64_t batches = run->args->val_batches < 0 || run->args->val_batches > all ? all : run->args->val_batches;
    double sum = 0;
    dataloader_seek(&run->val_loader, 0);
    for (int64_t i = 0; i < batches && !agreed_signal(&run->model); i += ranks) {
        dataloader_next(&run->val_loader);
        double loss = (double)gpt2_loss(&run->model, run->val_loader.inputs, run->val_loader.targets);
        if (i + rank < batches) { sum += loss; }
    }
    return sum_over_ranks(&run->model, sum) / (double)batches;
}

// accuracy on HellaSwag, whose batches are dealt as in a validation
static double score_hellaswag(Run *run) {
    int ranks = run->groups.dp->size, rank = run->groups.dp->rank;
    GPT2 *m = &run->model;
    HellaSwag *set = &run->hellaswag;
    size_t bytes = (size_t)set->B * (size_t)set->T * sizeof(real);
    real *losses = (real *)xmalloc(bytes);
    hellaswag_rewind(set);
    m->B = set->B, m->T = set->T;
    int rounds = (hellaswag_batches(set) + ranks - 1) / ranks;
    for (int i = 0; i < rounds && !agreed_signal(m); i++) {
        for (int other = 0; other < rank; other++) { hellaswag_next_batch(set); }
        hellaswag_next_batch(set);
        gpt2_loss(m, set->inputs, set->targets);
        m->device->download(losses, statistic(m, LOSSES, 0), bytes);
        hellaswag_score(set, losses);
        for (int other = rank + 1; other < ranks; other++) { hellaswag_next_batch(set); }
    }
    m->B = m->options.B, m->T = m->options.T;
    free(losses);
    return sum_over_ranks(m, set->correct) / set->num_examples;
}

// A signal cuts it short, and what is found of a part says nothing.
static void evaluate(Run *run) {
    double loss = validate(run);
    if (agreed_signal(&run->model)) { return; }
    logger_val(&run->log, run->step, loss);
    if (!run->args->hellaswag || run->step == 0) { return; }
    double accuracy = score_hellaswag(run);
    if (!agreed_signal(&run->model)) { logger_hellaswag(&run->log, run->step, accuracy); }
}

static void show_sample(Run *run) {
    const TrainArgs *a = run->args;
    Sampling how = {a->temperature, a->top_k, (uint64_t)a->seed, SAMPLE_STREAM + (uint64_t)run->step};
    logger_clear_line(&run->log);
    printf("sample at step %lld:\n---\n", run->step);
    generate(&run->model, run->has_tokenizer ? &run->tokenizer : NULL, run->prompt, run->prompt_length,
             a->sample_tokens, how);
    puts("---");
}

// ---- do all ranks still have the same parameters?

static uint64_t hash_device(uint64_t hash, const GPT2 *m, const void *at, size_t bytes) {
    void *host = xmalloc(bytes);
    m->device->download(host, at, bytes);
    hash = hash_bytes(hash, host, bytes);
    free(host);
    return hash;
}

// masters and moments of `count` elements from `at` on
static uint64_t hash_optimizer(uint64_t hash, const GPT2 *m, size_t at, size_t count) {
    const OptimizerState *o = &m->optimizer;
    size_t size = dtype_size(o->moments);
    if (o->master) { hash = hash_device(hash, m, o->master + at, count * sizeof *o->master); }
    if (o->remainder) { hash = hash_device(hash, m, o->remainder + at, count * sizeof *o->remainder); }
    hash = hash_device(hash, m, (const char *)o->m + at * size, count * size);
    return hash_device(hash, m, (const char *)o->v + at * size, count * size);
}

// What every rank of the dp group has: parameters, at -z 3 but those that are gathered a layer at a time, and at -z 0
// masters and moments.
static uint64_t hash_replica(GPT2 *m) {
    uint64_t hash = 0;
    zero_all_params_ready(&m->zero);
    finish_work(m);
    for (int b = 0; b < num_buckets(&m->layout); b++) {
        if (zero_gathers_layers(&m->zero, b)) { continue; }
        hash = hash_device(hash, m, zero_params(&m->zero, b), param_bucket(&m->layout, b).size * sizeof(floatX));
    }
    return m->layout.sharding.stage > 0 ? hash : hash_optimizer(hash, m, 0, m->layout.total);
}

// What every rank of the tp group has: of tensors that are not split, what this rank keeps.
static uint64_t hash_whole_tensors(GPT2 *m) {
    uint64_t hash = 0;
    finish_work(m);
    for (int b = 0; b < num_buckets(&m->layout); b++) {
        Bucket bucket = param_bucket(&m->layout, b);
        bool all = m->layout.sharding.stage == 0;
        const floatX *params = all ? zero_params(&m->zero, b) : zero_own_params(&m->zero, b);
        Range ranges[LAYER_PARAMS];
        int count = bucket_ranges(ranges, &m->layout, b, false, false);
        for (int i = 0; i < count; i++) {
            size_t at = ranges[i].offset;
            hash = hash_device(hash, m, params + at, ranges[i].count * sizeof(floatX));
            hash = hash_optimizer(hash, m, (all ? bucket.offset : bucket.shard_offset) + at, ranges[i].count);
        }
    }
    return hash;
}

// Stops the run and names the first rank of the group whose parameters are not those of most ranks, or of the first of
// them. The group's ranks are `stride` apart in the world, and its first one is `first`.
static void check_group(Run *run, Comm *group, int first, int stride) {
    if (group->size == 1) { return; }
    GPT2 *m = &run->model;
    long long mine = (long long)((group == run->groups.tp ? hash_whole_tensors(m) : hash_replica(m)) >> 1);
    if (comm_max(mine, group) == -comm_max(-mine, group)) { return; }
    long long *hashes = (long long *)xmalloc((size_t)group->size * sizeof *hashes);
    int usual = 0, most = 0, other = 0;
    for (int r = 0; r < group->size; r++) { hashes[r] = comm_max(r == group->rank ? mine : -1, group); }
    for (int r = 0; r < group->size; r++) {
        int same = 0;
        for (int s = 0; s < group->size; s++) { same += hashes[s] == hashes[r]; }
        if (same > most) { usual = r, most = same; }
    }
    while (hashes[other] == hashes[usual]) { other++; }
    if (2 * most <= group->size) {
        run_error("after step %lld ranks %d and %d have other parameters, which should be the same, and it cannot be "
                  "said which are right: memory or arithmetic is at fault on one of their machines; go on with -y 1 "
                  "elsewhere",
                  run->step, first + stride * usual, first + stride * other);
    }
    run_error(
        "after step %lld rank %d has other parameters than rank %d, which %d of %d ranks have: they should be the "
        "same, so memory or arithmetic there is at fault; go on with -y 1 without that machine",
        run->step, first + stride * other, first + stride * usual, most, group->size);
}

static void check_replicas(Run *run) {
    const Groups *g = &run->groups;
    check_group(run, g->dp, g->tp->rank, g->tp->size);
    check_group(run, g->tp, g->dp->rank * g->tp->size, 1);
}

// ---- one step

static AdamW step_hyper(const Run *run) {
    const TrainArgs *a = run->args;
    AdamW hyper;
    hyper.learning_rate =
        (real)schedule_lr((ScheduleKind)a->schedule, a->lr, a->warmup, run->max_steps, a->final_fraction, run->given);
    hyper.beta1 = (real)a->beta1, hyper.beta2 = (real)a->beta2, hyper.epsilon = (real)a->epsilon;
    hyper.weight_decay = (real)a->weight_decay, hyper.clip = (real)a->clip;
    hyper.step = (int)run->given + 1;
    hyper.seed = (uint64_t)a->seed;
    return hyper;
}

// reads what the device made of update n, and asks the guards about it: is its loss or norm off the recent ones by more
// than -sl, -sg allow
static void know_results(Run *run, long long n) {
    const TrainArgs *a = run->args;
    Update *u = &run->updates[n % 2];
    if (u->known) { return; }
    comm_event_synchronize((int)(n % 2), run->groups.world, &run->model.exec);
    u->loss = (double)u->results[0], u->norm = sqrt((double)u->results[1]);
    double z_loss = outlier_zscore(&run->loss_guard, u->loss), z_norm = outlier_zscore(&run->norm_guard, u->norm);
    if (a->loss_guard > 0 && z_loss > a->loss_guard) {
        u->note = "skipped: loss is an outlier";
    } else if (a->norm_guard > 0 && z_norm > a->norm_guard) {
        u->note = "skipped: gradient norm is an outlier";
    }
    u->known = true;
}

// Gives the device one update: micro-batches forward and backward, the norm, AdamW. Nothing here waits for the device,
// unless the guards have to see the results before AdamW.
// A process alone that is cut short between micro-batches leaves no trace and returns false.
static bool start_step(Run *run) {
    GPT2 *m = &run->model;
    uint64_t position = dataloader_position(&run->train_loader);
    long long n = run->given;
    Update *u = &run->updates[n % 2];
    u->began = now_seconds(), u->known = false, u->note = "";
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    if (run->args->overfit) { dataloader_seek(&run->train_loader, 0); }
    for (int micro = 0; micro < m->options.micro_steps; micro++) {
        if (micro > 0 && num_ranks(run->args) == 1 && *cut_short(run)) {
            dataloader_seek(&run->train_loader, position);
            return false;
        }
        dataloader_next(&run->train_loader);
        gpt2_give_batch(m, run->train_loader.inputs, run->train_loader.targets);
        gpt2_micro_step(m, micro);
    }
    gpt2_norm(m);
    m->device->enqueue_download(u->results, m->loss, 2 * sizeof(real), &m->exec);
    m->device->event_record((int)(n % 2), &m->exec);
    AdamW hyper = step_hyper(run);
    u->learning_rate = (double)hyper.learning_rate;
    if (run->args->loss_guard > 0 || run->args->norm_guard > 0) { know_results(run, n); }
    if (!*u->note) { gpt2_update(m, &hyper); }
    run->given++;
    return true;
}

// The oldest update that was given is done after this. AdamW changed nothing if it diverged.
static StepReport finish_step(Run *run) {
    Update *u = &run->updates[run->step % 2];
    know_results(run, run->step);
    if (!*u->note && (!isfinite(u->loss) || !isfinite(u->norm))) {
        run_error("training diverged: step %lld has loss %g and gradient norm %g; a lower -l, a longer -u or -sl 6 "
                  "-sg 6 may help",
                  run->step + 1, u->loss, u->norm);
    }
    run->step++;
    double now = now_seconds(), limit = run->args->time_limit;
    double begin = u->began > run->last_finish ? u->began : run->last_finish;
    double tokens = (double)tokens_of_update(run->args);
    double left = limit > 0 ? limit - (now - run->started) : -1;
    run->last_finish = now;
    StepReport report = {run->step, run->max_steps, u->loss, u->norm, u->learning_rate, (now - begin) * 1000,
                         tokens,    left,           u->note};
    return report;
}

// ---- from flags to a run that can take steps

// -d as a number, so that it is the same when other processes go on
static cJSON *run_config(const Run *run) {
    TrainArgs args = *run->args;
    args.batch_tokens = tokens_of_update(run->args);
    args.num_processes = num_ranks(run->args);
    return flags_to_json(flag_table, NUM_FLAGS, &args);
}

static void save_run_config(const Run *run) {
    char path[PATH_LENGTH];
    format_path(path, "%s/config.json", run->args->run_dir);
    cJSON *json = run_config(run);
    int error = write_json(path, json);
    if (error) { run_error("could not write '%s': %s", path, strerror(error)); }
    cJSON_Delete(json);
}

// Names the flags that a resumed run did not have. A config.json that cannot be read costs no more than these notes,
// and that flags which are left out are not the run's.
static void print_changed_flags(const Run *run) {
    char path[PATH_LENGTH];
    format_path(path, "%s/config.json", run->args->run_dir);
    cJSON *before = try_read_json(path), *now = run_config(run), *item;
    cJSON_ArrayForEach(item, now) {
        const cJSON *old = before ? cJSON_GetObjectItemCaseSensitive(before, item->string) : NULL;
        if (!old || strcmp(item->string, "resume") == 0 || strcmp(item->string, "output") == 0) { continue; }
        char *was = cJSON_PrintUnformatted(old), *is = cJSON_PrintUnformatted(item);
        if (strcmp(was, is) != 0) { printf("note      this run had --%s %s, now it has %s\n", item->string, was, is); }
        free(was);
        free(is);
    }
    if (run->planned_steps != run->max_steps) {
        printf("note      the schedule was for %lld steps and is now for %lld: the learning rate is another\n",
               run->planned_steps, run->max_steps);
    }
    cJSON_Delete(before);
    cJSON_Delete(now);
}

static void print_banner(const Run *run) {
    const GPT2Config *c = &run->model.config;
    flags_print_banner(stdout, flag_table, NUM_FLAGS, run->args, &default_args);
    printf("model     %d layers, %d heads, %d channels, %d positions, %d tokens: %.1fM parameters\n", c->num_layers,
           c->num_heads, c->channels, c->max_seq_len, c->vocab_size, (double)num_parameters(c) / 1e6);
    printf("memory    %.1f MiB: state %.1f, saved activations %.1f, scratch %.1f\n", mebibytes(run->model.arena.bytes),
           mebibytes(plan_bytes(&run->model.plan, STATE)), mebibytes(plan_bytes(&run->model.plan, SAVED)),
           mebibytes(plan_bytes(&run->model.plan, SCRATCH)));
    printf("data      %" PRIu64 " training tokens, %" PRIu64 " validation tokens, %lld steps of %lld tokens\n",
           token_files_total(&run->train_files), token_files_total(&run->val_files), run->max_steps,
           tokens_of_update(run->args));
    char machine[256];
    run->backend->describe(machine, sizeof machine);
    bool rounds = run->model.options.round_matmul_inputs, in_vain = run->args->matmul_precision == 2 && !rounds;
    printf("machine   %s%s%s\n", machine, rounds ? " with bf16 inputs" : "",
           in_vain ? run->model.options.sharding.stage > 0
                         ? " (-f 2 does nothing at -z 1 and above)"
                         : " (-f 2: this build or machine has no fast bf16 products of fp32)"
                   : "");
    if (num_ranks(run->args) > 1) {
        char layout[64] = "";
        if (run->args->tensor_parallel > 1) { snprintf(layout, sizeof layout, " -tp %d,", run->args->tensor_parallel); }
        printf("processes %d through %s,%s -z %d: each sends %.2f MiB an update\n", num_ranks(run->args),
               run->groups.world->backend->name, layout, run->args->zero,
               mebibytes(gpt2_sent_bytes(c, &run->model.options)));
    }
    if (*run->backend_note) {
        printf("note      this program can use a GPU, but finds none (%s)\n", run->backend_note);
    }
    if (token_files_are_text(&run->files) && c->vocab_size != BYTE_VOCABULARY) {
        printf("note      -i is read as bytes: of the model's %d tokens only the first 256 occur\n", c->vocab_size);
    }
    if (run->args->run_dir && run->args->checkpoint_every == 0) {
        printf("note      no checkpoint will be saved: -n is not given\n");
    }
    if (run->args->recompute_every != 1 && run->args->recompute < REBUILD_BLOCK) {
        printf("note      -rk does nothing below -r %d\n", REBUILD_BLOCK);
    }
    if (run->args->gather_again == 0 && (run->args->tensor_parallel == 1 || run->args->recompute >= REBUILD_NORMS)) {
        printf("note      -ra 0 does nothing without -tp, and nothing from -r %d on, which keeps no layernorms\n",
               REBUILD_NORMS);
    }
    if (run->args->master != default_args.master && DT_FLOATX == DT_REAL) {
        printf("note      -w does nothing in this build, whose weights are fp32 themselves\n");
    }
    if (run->step > 0) { printf("resumed   at step %lld\n", run->step); }
    if (run->args->resume && run->step == 0) {
        printf("resumed   nothing: %s holds no checkpoint, so the run and its metrics.jsonl begin anew\n",
               run->args->run_dir);
    }
    fflush(stdout);
}

// weights, and a resumed run's moments
static void load_weights(GPT2 *m, Origin *origin, uint64_t seed) {
    if (*origin->checkpoint) {
        gpt2_resume(m, origin->checkpoint, &origin->weights);
    } else if (origin->has_weights) {
        gpt2_load(m, &origin->weights);
    } else {
        gpt2_init(m, seed);
    }
    if (origin->has_weights) { model_close(&origin->weights); }
}

static void allocate_updates(Run *run) {
    for (int i = 0; i < 2; i++) {
        run->updates[i].results = (real *)run->model.device->allocate_host(2 * sizeof(real));
    }
    run->given = run->step;
}

// Every process reads flags and files by itself. What they found is compared, an item after the other, before anything
// is made of it; `advice` says where a difference may come from. Deletes the items.
static void check_all_have(Comm *world, cJSON *items, const char *advice) {
    const cJSON *item;
    cJSON_ArrayForEach(item, items) {
        char *text = cJSON_PrintUnformatted(item);
        long long mine = (long long)(hash_bytes(0, text, strlen(text)) >> 1);
        long long first = comm_max(world->rank == 0 ? mine : -1, world);
        long long other = comm_max(mine != first ? world->size - world->rank : 0, world);
        if (other > 0) {
            input_error("rank %lld has another %s than rank 0: %s", world->size - other, item->string, advice);
        }
        free(text);
    }
    cJSON_Delete(items);
}

// as many comparisons on every rank: builds first, which may have other flags
static void check_same_flags(const TrainArgs *a, const Device *device, Comm *world) {
    cJSON *build = cJSON_CreateObject(), *flags = flags_to_json(flag_table, NUM_FLAGS, a);
    cJSON_AddStringToObject(build, "type of weights", dtype_name(DT_FLOATX));
    cJSON_AddStringToObject(build, "device", device->name);
    cJSON_AddNumberToObject(build, "number of flags", cJSON_GetArraySize(flags));
    check_all_have(world, build, "processes of a run are the same program, on machines that all have a GPU or none do");
    cJSON_DeleteItemFromObject(flags, "process-rank");
    cJSON_DeleteItemFromObject(flags, "threads");
    check_all_have(world, flags,
                   "processes of a run take the same flags, from their command lines and -o's config.json");
}

// the group of all processes on the memory of the device
static Groups open_groups(const TrainArgs *a, const Device *device, Comm *host) {
    char job[64];
    meeting_job(job, sizeof job);
    CommOptions options = {(CommInit)a->init_method, num_ranks(a), a->rank,        a->gpus_per_node, a->server,
                           a->shared_folder,         job,          a->comm_timeout};
    Groups groups;
    int t = a->tensor_parallel;
    check_same_flags(a, device, host);
    Comm *world = comm_open_for(device, &options, host);
    if (host->size == 1) { check_same_flags(a, device, world); }
    groups.world = groups.dp = world;
    groups.tp = t > 1 ? comm_split(world, world->rank / t, world->rank) : comm_single(device);
    if (t > 1) { groups.dp = comm_split(world, world->rank % t, world->rank); }
    return groups;
}

static void close_groups(const Groups *groups, const Comm *host) {
    if (groups->dp != groups->world) { comm_close(groups->dp); }
    comm_close(groups->tp);
    if (groups->world != host) { comm_close(groups->world); }
}

static void add_hash(cJSON *json, const char *name, uint64_t hash) {
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    cJSON_AddStringToObject(json, name, text);
}

// Each process opens -e by itself: the same shape, and the same weights where there are any.
static void check_same_model(const Origin *origin, Comm *world) {
    cJSON *model = cJSON_CreateObject();
    uint64_t hash = hash_bytes(0, &origin->config, sizeof origin->config);
    if (origin->has_weights) { hash = hash_file(hash, "-e", origin->weights.file.path); }
    add_hash(model, "model", hash);
    check_all_have(world, model, "all processes need the same files at -o and -e");
}

static void check_same_data_and_state(const Run *run) {
    cJSON *data = cJSON_CreateObject(), *state = run_state(run);
    cJSON_AddStringToObject(data, "training data", run->fingerprint);
    cJSON_AddNumberToObject(data, "number of training tokens", (double)token_files_total(&run->train_files));
    cJSON_AddNumberToObject(data, "number of validation tokens", (double)token_files_total(&run->val_files));
    if (run->args->hellaswag) { add_hash(data, HELLASWAG_PATH, hash_file(0, "-h", HELLASWAG_PATH)); }
    check_all_have(run->groups.world, data, "all processes need the same files at -i and -j, and of HellaSwag");
    cJSON_AddNumberToObject(state, "planned_steps", (double)run->planned_steps);
    cJSON_AddNumberToObject(state, "prompt_length", (double)run->prompt_length);
    check_all_have(run->groups.world, state, "all processes need the same files at -o and -e");
}

static bool writes_files(const Run *run) { return run->args->run_dir && run->groups.world->rank == 0; }

// the run's folder and what is in it besides checkpoints are the first rank's
static void open_run_dir(Run *run) {
    const TrainArgs *a = run->args;
    if (writes_files(run)) {
        make_run_dir(a->run_dir);
        if (run->lock < 0) { lock_run_dir(run); }
    }
    if (a->checkpoint_every > 0 || a->resume) { check_shared_folder(a->run_dir, run->groups.world); }
    if (writes_files(run)) {
        if (run->step > 0) { print_changed_flags(run); }
        save_run_config(run);
    }
    run->log = logger_open(writes_files(run) ? a->run_dir : NULL, run->step, num_ranks(a) == 1);
}

// What can be checked without the model comes before it is built, and that before the first byte is written. --fit
// changes the flags.
static void run_open(Run *run, TrainArgs *a, Comm *host) {
    memset(run, 0, sizeof *run);
    run->args = a;
    run->host = host;
    run->lock = -1;
    run->backend = backend_choose((DeviceChoice)a->device, true, &run->backend_note);
    run->groups = open_groups(a, run->backend->device, host);
    if (writes_files(run)) {
        check_run_dir(a);
        lock_run_dir(run);
    }
    open_data(run);
    Origin origin = choose_model(a, run->files.vocab_size);
    const GPT2Config *c = &origin.config;
    check_same_model(&origin, run->groups.world);
    check_length(a, c);
    if (a->fit) { choose_what_fits(stdout, a, c, run->backend, run->groups.world); }
    check_rows(a, a->B * a->T, "a micro-batch");
    check_text_fits(run, &origin);
    open_loaders(run, c->vocab_size);
    if (*origin.checkpoint) { restore_run(run, origin.checkpoint); }
    run->max_steps = a->max_steps > 0 ? a->max_steps : steps_of_an_epoch(run);
    run->has_tokenizer = find_tokenizer(&run->tokenizer, a, c->vocab_size);
    run->prompt_length =
        prompt_tokens(run->has_tokenizer ? &run->tokenizer : NULL, a->prompt, c->vocab_size, &run->prompt);
    check_same_data_and_state(run);
    if (writes_files(run)) { check_disk(a, c); }

    ModelOptions options = model_options(a, c, run->backend);
    if (!a->fit || *a->fit) { check_memory(a, c, &options, run->groups.world); }  // else it was asked a moment ago
    comm_barrier(run->groups.world);  // what one allocates is not free for another that still asks
    gpt2_build(&run->model, *c, options, run->groups);
    allocate_updates(run);
    load_weights(&run->model, &origin, (uint64_t)a->seed);
    comm_barrier(run->groups.world);  // nothing is written before all ranks have found everything in order
    open_run_dir(run);
}

static void run_close(Run *run) {
    logger_close(&run->log);
    dataloader_close(&run->train_loader);
    if (run->args->val_every > 0) { dataloader_close(&run->val_loader); }
    if (run->args->hellaswag) { hellaswag_close(&run->hellaswag); }
    token_files_close(&run->val_files);
    token_files_close(&run->train_files);
    token_files_close(&run->files);
    if (run->has_tokenizer) { tokenizer_free(&run->tokenizer); }
    free(run->prompt);
    for (int i = 0; i < 2; i++) { run->model.device->release_host(run->updates[i].results); }
    gpt2_free(&run->model);
    close_groups(&run->groups, run->host);
    if (run->lock >= 0) { close(run->lock); }
}

// ---------------------------------------------------------------------------------------------------------------------
// 8. main

static bool due(long long step, int every, bool last) { return every > 0 && (last || (step > 0 && step % every == 0)); }

// whether something else is to be done after `step` updates
static bool pauses_after(const Run *run, long long step) {
    const TrainArgs *a = run->args;
    return step >= run->max_steps || due(step, a->val_every, false) || due(step, a->sample_every, false) ||
           due(step, a->checkpoint_every, false) || due(step, a->check_replicas, false);
}

// Updates until something else is due or the run is cut short. The device gets the next one before the last is read, if
// it can.
static void advance(Run *run) {
    do {
        if (!start_step(run)) { break; }
        if (run->given - run->step > run->model.device->steps_ahead) { logger_step(&run->log, finish_step(run)); }
    } while (!pauses_after(run, run->given) && !*cut_short(run));
    while (run->step < run->given) { logger_step(&run->log, finish_step(run)); }
}

// the checkpoint comes first: what follows may take long, and somebody may be waiting for the end
static void train(TrainArgs *a, Comm *host) {
    Run run;
    run_open(&run, a, host);
    catch_signals();
    print_banner(&run);
    run.started = now_seconds();
    long long saved = run.step, sampled = run.step, evaluated = run.step > 0 ? run.step : -1;  // nothing is done twice
    if (run.step >= run.max_steps) {
        printf("finished  all %lld steps are made: a larger -x goes on, and the learning rate follows\n",
               run.max_steps);
    }
    for (bool last = false; !last;) {
        const char *why = cut_short(&run);
        last = *why || run.step >= run.max_steps;
        if (*why) {
            logger_clear_line(&run.log);
            printf("stopped at step %lld of %lld: %s\n", run.step, run.max_steps, why);
            fflush(stdout);
        }
        if (due(run.step, a->check_replicas, false)) { check_replicas(&run); }  // before they are saved
        if (run.step > saved && due(run.step, a->checkpoint_every, last)) {
            save_checkpoint(&run);
            saved = run.step;
        }
        if (last && agreed_signal(&run.model)) { break; }  // whoever sent it waits
        if (run.step > evaluated && a->val_every > 0 && (last || run.step % a->val_every == 0)) {
            evaluate(&run);
            evaluated = run.step;
        }
        if (run.step > sampled && due(run.step, a->sample_every, last)) {
            show_sample(&run);
            sampled = run.step;
        }
        if (!last && !agreed_signal(&run.model)) { advance(&run); }
    }
    run_close(&run);
}

static void generate_text(const TrainArgs *a, Comm *host) {
    Origin origin = choose_model(a, BYTE_VOCABULARY);
    if (!origin.has_weights) {
        input_error(
            "--generate needs trained weights, but -e %s only describes a shape; give a folder or .safetensors file",
            a->model);
    }
    const GPT2Config *c = &origin.config;
    const char *note;
    const Backend *backend = backend_choose((DeviceChoice)a->device, true, &note);
    Tokenizer tokenizer;
    int *prompt;
    bool has_tokenizer = find_tokenizer(&tokenizer, a, c->vocab_size);
    size_t length = prompt_tokens(has_tokenizer ? &tokenizer : NULL, a->prompt, c->vocab_size, &prompt);
    GPT2 model;
    ModelOptions options = model_options(a, c, backend);
    Groups groups = open_groups(a, backend->device, host);
    check_memory(a, c, &options, groups.world);
    gpt2_build(&model, *c, options, groups);
    load_weights(&model, &origin, 0);
    Sampling how = {a->temperature, a->top_k, (uint64_t)a->seed, SAMPLE_STREAM};
    generate(&model, has_tokenizer ? &tokenizer : NULL, prompt, length, a->generate, how);
    gpt2_free(&model);
    close_groups(&groups, host);
    if (has_tokenizer) { tokenizer_free(&tokenizer); }
    free(prompt);
}

static char *read_text(const TokenFile *text) {
    char *bytes = (char *)xmalloc(text->num_tokens);
    FILE *file = fopen(text->path, "rb");
    if (!file || fread(bytes, 1, text->num_tokens, file) != text->num_tokens) {
        run_error("-i: could not read '%s': %s", text->path, strerror(errno));
    }
    fclose(file);
    return bytes;
}

// all of the text -i, after the token that documents begin with, into one shard
static void tokenize_text(const TrainArgs *a) {
    enum { IDS_OF_A_SHARD = 65536 };
    TokenFiles files = token_files_open("-i", a->train_data);
    if (!token_files_are_text(&files)) {
        input_error("-i %s holds tokens already; --tokenize takes text", a->train_data);
    }
    Tokenizer tokenizer = tokenizer_load(a->tokenizer);
    if (tokenizer_vocab_size(&tokenizer) > IDS_OF_A_SHARD) {
        input_error("the tokenizer '%s' has %d tokens; a shard's ids end at %d", a->tokenizer,
                    tokenizer_vocab_size(&tokenizer), IDS_OF_A_SHARD - 1);
    }
    int *tokens = (int *)xmalloc(sizeof(int));
    size_t count = 0;
    for (int i = 0; i < files.num_files; i++) {
        int *ids;
        char *text = read_text(&files.files[i]);
        size_t n = tokenizer_encode(&tokenizer, text, files.files[i].num_tokens, &ids);
        tokens = (int *)xrealloc(tokens, (count + 1 + n) * sizeof(int));
        tokens[count] = tokenizer.end_of_text;
        memcpy(tokens + count + 1, ids, n * sizeof(int));
        count += 1 + n;
        free(ids);
        free(text);
    }
    token_shard_write(a->tokenize, tokens, count);
    printf("%s: %zu tokens of %" PRIu64 " bytes\n", a->tokenize, count, token_files_total(&files));
    free(tokens);
    tokenizer_free(&tokenizer);
    token_files_close(&files);
}

// {"ranks":[...]}: what each process takes of its device, and sends to others for an update
static void print_plan_json(const TrainArgs *a, const GPT2Config *c, ModelOptions options, size_t llmc) {
    cJSON *json = cJSON_CreateObject(), *ranks = cJSON_AddArrayToObject(json, "ranks");
    for (int r = 0; r < num_ranks(a); r++) {
        PlanIndex index;
        options.sharding = sharding_of(a, r);
        Plan plan = gpt2_plan(c, &options, &index);
        cJSON *rank = plan_json(&plan, r);
        cJSON_AddItemToArray(ranks, rank);
        if (num_ranks(a) > 1) { cJSON_AddNumberToObject(rank, "sent", (double)gpt2_sent_bytes(c, &options)); }
        if (llmc) { cJSON_AddNumberToObject(rank, "llmc_total", (double)llmc); }
        plan_free(&plan);
    }
    char *text = cJSON_Print(json);
    puts(text);
    free(text);
    cJSON_Delete(json);
}

static void print_plan_table(const TrainArgs *a, const GPT2Config *c, const ModelOptions *options, size_t llmc) {
    PlanIndex index;
    Plan plan = gpt2_plan(c, options, &index);
    const char *what = options->recompute.level > 2 ? "llm.c's layout at -r 2, its last level" : "llm.c's layout";
    plan_print(stdout, &plan);
    if (num_ranks(a) > 1) {
        char of[96];
        snprintf(of, sizeof of, "each of %d processes holds this; it sends, an update", num_ranks(a));
        printf("%-60s %12.2f\n", of, mebibytes(gpt2_sent_bytes(c, options)));
    }
    if (llmc) { printf("%-60s %12.2f\n", what, mebibytes(llmc)); }
    plan_free(&plan);
}

static void print_plan(TrainArgs *a, Comm *host) {
    int data_vocab = BYTE_VOCABULARY;
    if (a->train_data) {
        TokenFiles files = token_files_open("-i", a->train_data);
        data_vocab = files.vocab_size;
        token_files_close(&files);
    }
    Origin origin = choose_model(a, data_vocab);
    if (origin.has_weights) { model_close(&origin.weights); }
    if (!a->generate) { check_length(a, &origin.config); }
    const char *note;
    const Backend *backend = backend_choose((DeviceChoice)a->device, false, &note);
    if (a->fit && !*a->fit && backend != backend_choose(DEVICE_AUTO, true, &note) && a->device != DEVICE_CPU) {
        input_error("--fit: there is no GPU here whose free memory it could take; give the GiB, as in --fit=80");
    }
    bool json_wanted = strcmp(a->plan, "json") == 0;
    if (a->fit) { choose_what_fits(json_wanted ? stderr : stdout, a, &origin.config, backend, host); }
    if (!a->generate) { check_rows(a, a->B * a->T, "a micro-batch"); }
    ModelOptions options = model_options(a, &origin.config, backend);
    size_t llmc = options.training ? llmc_bytes(&origin.config, &options) : 0;
    if (json_wanted) {
        print_plan_json(a, &origin.config, options, llmc);
    } else {
        print_plan_table(a, &origin.config, &options, llmc);
    }
}

static void print_version(void) {
    char backends[512];
    comm_backends(backends, sizeof backends);
    printf("train_gpt2: weights %s, arithmetic %s, devices %s, CPU matmuls by %s%s, processes %s\n",
           dtype_name(DT_FLOATX), dtype_name(DT_REAL), DEVICES_BUILT_IN, onednn_version(),
           matmul_rounds_inputs() ? " (-f 2: bf16 inputs)" : "", backends);
}

// What is printed is the first rank's; and where processes share a machine, they share its cores.
static void take_a_share(const TrainArgs *a, Comm *host) {
    if (num_ranks(a) > 1 && a->rank > 0 && !freopen("/dev/null", "w", stdout)) {
        run_error("could not open /dev/null: %s", strerror(errno));
    }
    int sharing = (int)comm_max(host->local_rank, host) + 1, cores = omp_get_num_procs() / sharing;
    if (sharing > 1 && !getenv("OMP_NUM_THREADS")) { omp_set_num_threads(cores > 1 ? cores : 1); }
    if (a->threads > 0) { omp_set_num_threads(a->threads); }
}

#if !defined(TESTING) && !defined(WITHOUT_MAIN)
// A waiting OpenMP thread should spin for a moment only: on a core it shares with another program it would spin away
// the time slice that its partner needs (a step of 11 ms took 870 ms beside two busy programs, and takes 27 ms this
// way). libgomp reads its setting when it is loaded, so it is set for a second start of the same program.
static void limit_spinning(char **argv) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) { return; }
    char path[PATH_LENGTH];  // /proc/self/exe itself would name the process "exe"
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0) { return; }
    path[length] = 0;
    setenv("GOMP_SPINCOUNT", "1000", 1);
    execv(path, argv);  // where that is not possible the program goes on as it is
}

int main(int argc, char **argv) {
    limit_spinning(argv);
    omp_set_dynamic(0);        // oneDNN's primitives stay with the thread that made them
    signal(SIGXFSZ, SIG_IGN);  // a file-size limit is then a failed write, which is reported as a full disk is
    Comm *host = comm_open();  // from here on an error is said once for all processes
    TrainArgs args;
    cJSON *run_flags = read_flags(&args, argc, argv);
    args_meet(&args, host);
    take_a_share(&args, host);
    if (args.help) {
        flags_print_help(stdout, "usage: train_gpt2 -i DATA [-e MODEL] [-o DIR] [flags]", flag_table, NUM_FLAGS,
                         &default_args);
    } else if (args.version) {
        print_version();
    } else {
        args_check(&args);
        if (args.plan) {
            print_plan(&args, host);
        } else if (args.tokenize) {
            tokenize_text(&args);
        } else if (args.generate) {
            generate_text(&args, host);
        } else {
            train(&args, host);
        }
    }
    cJSON_Delete(run_flags);
    if (fflush(stdout) != 0 || ferror(stdout)) { run_error("could not write to stdout: %s", strerror(errno)); }
    comm_close(host);
    return 0;
}
#endif
