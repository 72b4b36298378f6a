/*
train_gpt2: trains GPT-2, top to bottom.
  1. the model     its tensors, memory plan, build and free
  2. forward       block_forward, gpt2_forward, the classifier in chunks of logits
  3. backward      block_backward, gpt2_backward: section 2 in reverse, with recomputation
  4. update        global norm, AdamW
  5. generation    the same blocks with a key-value cache
  6. the run       checkpoints, evaluation, one training step
  7. main          train, --generate, --eval, --export, --plan, --self-check or --tokenize
One step, from the training loop in train:
  advance
    start_step              enqueues the step
      enqueue_gradients
        gpt2_micro_step     for each micro-batch
          gpt2_forward      embedding, block_forward for each layer
          gpt2_backward     final layernorm, logits and loss; block_backward for each layer; embedding
        gpt2_norm           global norm of the gradients
      gpt2_update           AdamW
    finish_step             reads loss and norm
Most lines of block_forward are one operation of llmc/. On one rank a function of llmc/parallel/ is one operation or
nothing.
*/
#include "llmc/common/check.h"               // input_error, run_error, xmalloc
#include "llmc/ops.h"                        // Ops, Gradient, AdamW, OptimizerState
#include "llmc/shapes/params.h"              // GPT2Config, ParamId, param_specs
#include "llmc/memory/plan.h"                // Plan, arena_create, Scratch
#include "llmc/shapes/activations.h"         // ActivationId, activation_slot: saved or recomputed
#include "llmc/memory/gpt2_plan.h"           // ModelOptions, GPT2Tensors, gpt2_plan
#include "llmc/memory/activation_offload.h"  // ActivationOffload: --offload 4
#include "llmc/memory/traffic.h"             // model_flops_per_token, for MFU
#include "llmc/shapes/layout.h"              // Sharding, ParamLayout, Bucket
#include "llmc/parallel/zero.h"              // Zero: -z, --offload
#include "llmc/parallel/update.h"            // Update: AdamW piece by piece
#include "llmc/parallel/tensor_parallel.h"   // TensorParallel: -tp; row_parallel_forward
#include "llmc/checkpoint/checkpoint.h"      // ModelState, checkpoint_load
#include "llmc/run/backends.h"               // Backend, backend_choose
#include "llmc/run/train_args.h"             // TrainArgs
#include "llmc/run/flag_table.h"             // flag_table, read_flags
#include "llmc/run/ranks.h"                  // Groups, open_groups, limit_spinning, agreed_signal
#include "llmc/run/fit.h"                    // choose_options, choose_what_fits, check_memory, note_pinning
#include "llmc/run/model_source.h"           // ModelSource, model_source
#include "llmc/run/data.h"                   // RunData, data_open, data_state_check
#include "llmc/run/run_dir.h"                // check_run_dir, save_run_config, evaluations_read
#include "llmc/run/text.h"                   // find_tokenizer, prompt_tokens
#include "llmc/run/generate.h"               // Generator, generate, generate_samples
#include "llmc/run/tokenize.h"               // tokenize_corpus, train_bpe
#include "llmc/run/evaluate.h"               // EvalModel, validate, score_hellaswag, eval_run
#include "llmc/run/export.h"                 // export_model
#include "llmc/run/banner.h"                 // print_model_lines, print_plan, print_version
#include "llmc/run/profile.h"                // --profile: the time of each operation
#include "llmc/self_check/self_check.h"      // self_check_print, self_check_at_start, self_check_child
#include "llmc/run/logger.h"                 // Logger
#include "llmc/run/schedule.h"               // step_hyper, due, skip_reason, Evaluations
#include "llmc/run/nan_check.h"              // --nan-check

// ---------------------------------------------------------------------------------------------------------------------
// 1. the model

// Pointers to the tensors of one transformer block. Shapes of parameters and gradients: params.h. N is B*T.
typedef union {
    struct {
        const floatX *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw, *fcprojb;
    };
    const floatX *at[LAYER_PARAMS];  // LN1W to FCPROJB
} BlockParams;

typedef union {
    struct {
        Gradient ln1w, ln1b, qkvw, qkvb, attprojw, attprojb, ln2w, ln2b, fcw, fcb, fcprojw, fcprojb;
    };
    Gradient at[LAYER_PARAMS];
} BlockGrads;

// The activations that the forward saves for the backward. A tensor that -r recomputes is NULL, or shares its memory
// with other blocks. With -tp "/ t" is this rank's rows.
typedef struct {
    floatX *input;                                    // (N / t,C) residual3 of the block before, or the embeddings
    floatX *ln1, *ln2;                                // (N / t,C), at -ra 0 the rows of all ranks; or NULL
    real *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;  // (N / t)
    floatX *qkv;                                      // (N,3,heads,HS)
    floatX *atty;                                     // (N,heads,HS)
    real *lse;                                        // (B,heads,T)
    floatX *keys, *values;                            // (decode_positions,heads,HS) key-value cache
    floatX *residual2;                                // (N / t,C) after attention
    floatX *fch, *fch_gelu;                           // (N,d_ff); fch_gelu may be NULL
    floatX *residual3;                                // (N / t,C) the output
    bool recomputes_attention;                        // block_backward recomputes qkv, atty, lse and residual2 (-r 4)
    bool recomputes_fch;                              // block_backward recomputes fch (from -r 3 on)
} BlockActivations;

typedef struct {
    GPT2Config config;
    ModelOptions options;
    const Ops *ops;
    const Device *device;
    Exec exec;
    // ---- memory
    Plan plan;
    Arena arena;  // memory of the plan
    GPT2Tensors tensors;
    BlockParams *block_params;            // (L) pointers into the tensors
    BlockGrads *block_grads;              // (L)
    BlockActivations *block_activations;  // (L)
    // one buffer each, used in turn: (N,4C) of the MLP, the logits and dqkv; (N,C) of a layernorm's output; (N,C) of
    // the gradient below a matmul; with -tp dresidual of all ranks
    Scratch mlp_scratch, norm_scratch, hidden_scratch, gathered_gradient;
    int classifier_rows;  // rows of a logits chunk
    // ---- ranks
    Groups groups;
    LocalShape local;  // this rank's heads, MLP channels and vocabulary
    ParamLayout layout;
    TensorParallel tp;
    Zero zero;
    // ---- optimizer
    OptimizerState optimizer;  // params: the shard at -z 3; the rest: the shard from -z 1 on
    Gradient grads;            // (layout.total), from -z 2 or --offload 2 on buffers of buckets
    Update update;
    real *loss, *norm_squared;  // tensors.results[0] and [1]
    ActivationOffload offload;
    // ---- the current micro-batch
    int B, T;                // HellaSwag and decoding use another shape than options.B and options.T
    int decode_from;         // position of the first row in the key-value cache; -1: not decoding
    PackedSequences packed;  // sequences of other lengths than T
    real update_targets;     // targets of the whole update, over all micro-batches and ranks
    int next_slot;           // of tensors.staged
    // CUDA graphs of a micro-step, [first of its step][last of its step]: the first sets gradients, the last reduces
    // them
    DeviceGraph *graphs[2][2];  // NULL: not captured
    bool has_run[2][2];         // without a graph
} GPT2;

// ---- pointers to one tensor of one layer

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

static size_t activation_bytes(const GPT2 *m, ActivationId id) {
    const ModelOptions *o = &m->options;
    size_t size = activation_specs[id].statistic ? sizeof(real) : sizeof(floatX);
    return activation_elements(id, o->B * o->T, &m->config, &m->local, !o->gather_again) * size;
}
static void *activation(const GPT2 *m, ActivationId id, int layer) {
    size_t slot = (size_t)activation_slot(&m->options.recompute, id, layer, m->config.num_layers);
    return (char *)m->tensors.activations[id] + slot * activation_bytes(m, id);
}
static floatX *act(const GPT2 *m, ActivationId id, int layer) { return (floatX *)activation(m, id, layer); }
static real *statistic(const GPT2 *m, ActivationId id, int layer) { return (real *)activation(m, id, layer); }

static bool is_saved(const GPT2 *m, ActivationId id, int l) {
    return activation_is_saved(&m->options.recompute, id, l);
}

static BlockActivations block_activations(const GPT2 *m, int l) {
    // block_backward recomputes the last block of a checkpoint segment; block_forward recomputes the others
    bool last_of_segment = segment_end(&m->options.recompute, l) == l;
    size_t cache = (size_t)l * (size_t)m->options.decode_positions * (size_t)m->local.attn_dim;
    BlockActivations a = {
        .input = l == 0 ? act(m, ENCODED, 0) : act(m, RESIDUAL3, l - 1),
        .ln1 = is_saved(m, LN1, l) ? act(m, LN1, l) : NULL,
        .ln2 = is_saved(m, LN2, l) ? act(m, LN2, l) : NULL,
        .ln1_mean = statistic(m, LN1_MEAN, l),
        .ln1_rstd = statistic(m, LN1_RSTD, l),
        .ln2_mean = statistic(m, LN2_MEAN, l),
        .ln2_rstd = statistic(m, LN2_RSTD, l),
        .qkv = act(m, QKV, l),
        .atty = act(m, ATTY, l),
        .lse = statistic(m, LSE, l),
        .keys = m->tensors.decode_keys ? m->tensors.decode_keys + cache : NULL,
        .values = m->tensors.decode_values ? m->tensors.decode_values + cache : NULL,
        .residual2 = act(m, RESIDUAL2, l),
        .fch = act(m, FCH, l),
        .fch_gelu = is_saved(m, FCH_GELU, l) ? act(m, FCH_GELU, l) : NULL,
        .residual3 = act(m, RESIDUAL3, l),
        .recomputes_attention = last_of_segment && !is_saved(m, QKV, l),
        .recomputes_fch = last_of_segment && !is_saved(m, FCH, l),
    };
    return a;
}

// ---- build and free

// a scratch buffer on the tensor `name` of the plan; without memory if the plan has none
static Scratch scratch_create(GPT2 *m, const char *name, floatX *memory) {
    const PlanTensor *t = plan_find(&m->plan, name);
    Scratch s = {memory, t ? t->bytes : 0, NULL, m->device, &m->exec};
    return s;
}

// The arena has set the pointers of the state; this sets the types.
static void open_state(GPT2 *m) {
    GPT2Tensors *t = &m->tensors;
    t->optimizer.moments = t->slots.moments = m->options.moments;
    t->grads.dtype = m->options.gradients;
    t->stored_grads.dtype = t->reduced_chunks.dtype = t->slot_grads.dtype = stored_gradients(&m->options);
    m->optimizer = t->optimizer;
    m->grads = t->grads;
    m->loss = t->results;
    m->norm_squared = t->results + 1;
    zero_open(&m->zero, &m->layout, m->groups.dp, m->ops, m->device, &m->exec);
    m->zero.params = t->gathered_params ? t->gathered_params : t->optimizer.params;
    m->zero.stored_params = t->optimizer.params;
    m->zero.grads = t->grads;
    m->zero.stored_grads = t->stored_grads.at ? t->stored_grads : t->grads;
    m->zero.reduced_chunks = t->reduced_chunks;
    update_open(&m->update, &m->zero, &t->optimizer, &t->slots, t->slot_grads, t->update_ranges);
}

static void open_offload(GPT2 *m) {
    offload_open(&m->offload, m->device, &m->exec, m->tensors.block_inputs, m->tensors.activations[RESIDUAL3],
                 activation_bytes(m, RESIDUAL3), num_block_inputs(&m->options, m->config.num_layers));
}

static void open_backend(GPT2 *m) {
    const ModelOptions *o = &m->options;
    const GPT2Tensors *t = &m->tensors;
    size_t partials_bytes = o->backend->partials_bytes(&m->config, &m->local, o->B, o->T);
    m->exec.fallback = o->fallback;
    size_t workspace_bytes = o->backend->matmul_workspace_bytes(&m->config, &m->local, o->B, o->T);
    o->backend->open(&m->exec, t->partials, partials_bytes, t->matmul_workspace, workspace_bytes, o->tf32);
    backend_share_autotune_cache(&m->exec, m->groups.world);
    m->exec.bf16_inputs = o->round_matmul_inputs && GEMM_HAS_BF16;
}

// Sets the shape of the next micro-batch: B sequences of T tokens, or with decode_from >= 0 T new tokens of one.
static void set_batch(GPT2 *m, int B, int T, int decode_from) {
    m->B = B;
    m->T = T;
    m->decode_from = decode_from;
    m->packed = not_packed;
    m->exec.skip_autotune = B != m->options.B || T != m->options.T || decode_from >= 0;
    tp_set_rows(&m->tp, B * T, m->config.channels, decode_from >= 0);
}

// Allocates the plan; the parameters are zero. *m must not move: Scratch, Zero and TensorParallel point into it. Free
// with gpt2_free.
static void gpt2_build(GPT2 *m, GPT2Config config, ModelOptions options, Groups groups) {
    memset(m, 0, sizeof *m);
    m->config = config;
    m->options = options;
    m->groups = groups;
    m->ops = options.backend->ops;
    m->device = options.backend->device;
    m->local = options_local_shape(&config, &options);
    m->layout = param_layout_sharded(&config, options.sharding);
    m->classifier_rows = logits_chunk(&config, &options);
    m->plan = gpt2_plan(&config, &options);
    m->arena = arena_create(&m->plan, m->device);
    arena_bind(m->arena, &m->plan, &m->tensors);
    m->mlp_scratch = scratch_create(m, "mlp_scratch", m->tensors.mlp_scratch);
    m->norm_scratch = scratch_create(m, "norm_scratch", m->tensors.norm_scratch);
    m->hidden_scratch = scratch_create(m, "hidden_scratch", m->tensors.hidden_scratch);
    m->gathered_gradient = scratch_create(m, "gathered_gradient", m->tensors.gathered_gradient);
    open_state(m);
    tp_open(&m->tp, m->ops, m->device, &m->exec, m->groups.tp, m->local.vocab, &m->hidden_scratch,
            m->tensors.statistics);
    open_backend(m);
    open_offload(m);
    size_t L = (size_t)config.num_layers;
    m->block_params = (BlockParams *)xmalloc(L * sizeof *m->block_params);
    m->block_grads = (BlockGrads *)xmalloc(L * sizeof *m->block_grads);
    m->block_activations = (BlockActivations *)xmalloc(L * sizeof *m->block_activations);
    for (int l = 0; l < config.num_layers; l++) {
        for (int i = 0; i < LAYER_PARAMS; i++) {
            m->block_params[l].at[i] = param(m, (ParamId)(LN1W + i), l);
            m->block_grads[l].at[i] = grad(m, (ParamId)(LN1W + i), l);
        }
        m->block_activations[l] = block_activations(m, l);
    }
    m->update_targets = (real)options.B * (real)options.T * (real)options.micro_steps * (real)groups.dp->size;
    set_batch(m, options.B, options.T, -1);
}

static void gpt2_free(GPT2 *m) {
    for (int first = 0; first < 2; first++) {
        for (int last = 0; last < 2; last++) {
            if (m->graphs[first][last]) { m->device->graph_destroy(m->graphs[first][last]); }
        }
    }
    m->options.backend->close(&m->exec);
    arena_release(m->arena, m->device);
    zero_close(&m->zero);
    update_close(&m->update);
    free(m->block_params);
    free(m->block_grads);
    free(m->block_activations);
    plan_free(&m->plan);
}

// ---- weights

static ModelState gpt2_state(GPT2 *m) {
    ModelState state = {&m->config, m->device, m->optimizer, m->options.sharding, m->groups.world, NULL};
    return state;
}

// GPT-2's initial weights, drawn on the host tensor by tensor.
static void gpt2_init(GPT2 *m, uint64_t seed) {
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        size_t used = param_used(&m->layout, p);
        real *init = (real *)xmalloc(used * sizeof(real));
        for (int layer = 0; layer < param_layers(p, &m->config); layer++) {
            ParamRange range = param_updated_range(&m->layout, p, layer, used);
            if (range.count == 0) { continue; }  // another rank owns the tensor
            slice_init_tensor(init, &m->layout.slice[id], p, layer, range.offset, range.count, &m->config, seed);
            weights_store(&m->optimizer, init, range, m->device);
        }
        free(init);
    }
    zero_params_changed(&m->zero);
}

// Loads weights and moments of a checkpoint of the same shape. file: the checkpoint's open model file.
static void gpt2_resume(GPT2 *m, const char *folder, const ModelFile *file) {
    ModelState state = gpt2_state(m);
    checkpoint_load(folder, file, &state);
    zero_params_changed(&m->zero);
}

// Loads the weights of an open model of the same shape.
static void gpt2_load(GPT2 *m, const ModelFile *file) {
    ModelState state = gpt2_state(m);
    state_load(file, "", &state);
    zero_params_changed(&m->zero);
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. forward

// The output of a layernorm: `saved`, or norm_scratch if the backward recomputes it. Release it with norm_release. Only
// with -tp does *own, where this rank's rows go, differ: -ra 1 saves them alone and gathers the rest in norm_scratch.
static floatX *norm_acquire(GPT2 *m, floatX *saved, floatX **own) {
    bool saves_own = saved && m->tp.splits_rows && m->options.gather_again;
    floatX *all = saved && !saves_own ? saved : scratch_acquire(&m->norm_scratch, "layernorm", m->tp.all_elements);
    *own = saves_own ? saved : all + m->tp.own_offset;
    return all;
}

static void norm_release(GPT2 *m, const floatX *output) {
    if (output == m->norm_scratch.memory) { scratch_release(&m->norm_scratch); }
}

// layernorm(in) (N,C) for the next matmul: all-gathered with -tp. Release it with norm_release.
static const floatX *layernorm_output(GPT2 *m, floatX *saved, real *mean, real *rstd, const floatX *in,
                                      const floatX *weight, const floatX *bias) {
    floatX *own, *output = norm_acquire(m, saved, &own);
    m->ops->layernorm_forward(own, mean, rstd, in, weight, bias, m->tp.own_rows, m->config.channels, &m->exec);
    rows_all_gather(&m->tp, output, own);
    rows_wait(&m->tp, output);
    return output;
}

// Attention of each sequence of the micro-batch: B sequences of T tokens, or documents of any length.
static void attention_forward(GPT2 *m, const BlockActivations *a) {
    int NH = m->local.heads, HS = m->local.head_size;
    if (!m->packed.ranges) { m->ops->attention_forward(a->atty, a->lse, a->qkv, m->B, m->T, NH, HS, &m->exec); }
    for (int d = 0; d < m->packed.count; d++) {
        Range rows = m->packed.ranges[d];
        size_t at = rows.offset * (size_t)m->local.attn_dim;
        m->ops->attention_forward(a->atty + at, a->lse + rows.offset * (size_t)NH, a->qkv + 3 * at, 1, (int)rows.count,
                                  NH, HS, &m->exec);
    }
}

// dqkv (N,3,NH,HS) from datty (N,C)
static void attention_backward(GPT2 *m, const BlockActivations *a, floatX *dqkv, const floatX *datty) {
    int NH = m->local.heads, HS = m->local.head_size;
    if (!m->packed.ranges) {
        m->ops->attention_backward(dqkv, datty, a->qkv, a->atty, a->lse, m->B, m->T, NH, HS, &m->exec);
    }
    for (int d = 0; d < m->packed.count; d++) {
        Range rows = m->packed.ranges[d];
        size_t at = rows.offset * (size_t)m->local.attn_dim;
        m->ops->attention_backward(dqkv + 3 * at, datty + at, a->qkv + 3 * at, a->atty + at,
                                   a->lse + rows.offset * (size_t)NH, 1, (int)rows.count, NH, HS, &m->exec);
    }
}

// Block l of the current micro-batch: input (N,C) -> residual3 (N,C), N = B*T rows. On one rank A is C, U is 4C, and
// row_parallel_forward is matmul_forward. With -tp this rank has its rows of the residual stream, and of qkv, attention
// and the MLP all rows of its own heads and MLP channels: layernorm_output all-gathers, row_parallel_forward
// reduce-scatters.
static void block_forward(GPT2 *m, int l) {
    const Ops *ops = m->ops;
    const BlockParams *p = &m->block_params[l];
    const BlockActivations *a = &m->block_activations[l];
    Exec *ex = &m->exec;
    int N = m->B * m->T, C = m->config.channels;
    int NH = m->local.heads, HS = m->local.head_size, A = m->local.attn_dim, U = m->local.d_ff;

    // residual2 = input + attproj(attention(qkv(ln1(input))))
    const floatX *ln1 = layernorm_output(m, a->ln1, a->ln1_mean, a->ln1_rstd, a->input, p->ln1w, p->ln1b);
    ops->matmul_forward(a->qkv, ln1, p->qkvw, p->qkvb, NULL, N, C, 3 * A, ex);
    norm_release(m, ln1);
    if (m->decode_from < 0) {
        attention_forward(m, a);
    } else {  // new positions of one sequence, over the key-value cache
        ops->attention_decode(a->atty, a->keys, a->values, a->qkv, m->decode_from, N, NH, HS, ex);
    }
    row_parallel_forward(&m->tp, a->residual2, a->atty, p->attprojw, p->attprojb, a->input, N, A, C);

    // residual3 = residual2 + fcproj(gelu(fc(ln2(residual2))))
    const floatX *ln2 = layernorm_output(m, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, p->ln2w, p->ln2b);
    floatX *gelu = a->fch_gelu ? a->fch_gelu : scratch_acquire(&m->mlp_scratch, "fch_gelu", (size_t)N * (size_t)U);
    if (m->options.fuse_gelu) {
        ops->matmul_gelu_forward(gelu, a->fch, ln2, p->fcw, p->fcb, N, C, U, ex);
    } else {
        ops->matmul_forward(a->fch, ln2, p->fcw, p->fcb, NULL, N, C, U, ex);
        ops->gelu_forward(gelu, a->fch, (size_t)N * (size_t)U, ex);
    }
    norm_release(m, ln2);
    row_parallel_forward(&m->tp, a->residual3, gelu, p->fcprojw, p->fcprojb, a->residual2, N, U, C);
    if (!a->fch_gelu) { scratch_release(&m->mlp_scratch); }
}

// --offload 4 keeps the saved inputs of blocks on the host, numbered from 0. The one that block l reads; -1: the
// embeddings, which stay on the GPU
static int input_of_block(const GPT2 *m, int l) { return num_saved(&m->options.recompute, RESIDUAL3, l) - 1; }

// the one that block l writes; -1: its output is not saved
static int output_of_block(const GPT2 *m, int l) { return is_saved(m, RESIDUAL3, l) ? input_of_block(m, l + 1) : -1; }

// Waits for the parameters of block l. At -z 3 or --offload 3 it begins to fetch those of block `next`, the block read
// after l; -1 or L: none.
static void wait_for_params(GPT2 *m, int l, int next) {
    zero_params_wait(&m->zero, layer_bucket(l),
                     next >= 0 && next < m->config.num_layers ? layer_bucket(next) : NO_BUCKET);
}

// encoded = wte[tokens] + wpe, of the current micro-batch
static void embedding_forward(GPT2 *m) {
    int first_position = m->decode_from < 0 ? 0 : m->decode_from, C = m->config.channels;
    const floatX *wpe = param(m, WPE, 0) + (size_t)first_position * (size_t)C;
    zero_params_wait(&m->zero, embeddings_bucket(), layer_bucket(0));
    vocab_parallel_embedding_forward(&m->tp, act(m, ENCODED, 0), m->tensors.tokens, param(m, WTE, 0), wpe, m->packed,
                                     m->B, m->T, C);
}

static floatX *last_residual(const GPT2 *m) { return m->block_activations[m->config.num_layers - 1].residual3; }

// lnf (N,C), in scratch. Release it with norm_release.
static const floatX *final_layernorm_output(GPT2 *m) {
    zero_params_wait(&m->zero, final_bucket(&m->layout), NO_BUCKET);
    return layernorm_output(m, NULL, statistic(m, LNF_MEAN, 0), statistic(m, LNF_RSTD, 0), last_residual(m),
                            param(m, LNFW, 0), param(m, LNFB, 0));
}

// In a POISON_SCRATCH build, fills the slots of block l that will be recomputed, of tensors first..last, with NaN.
static void poison_recomputed(GPT2 *m, int l, ActivationId first, ActivationId last) {
#ifdef POISON_SCRATCH
    for (int id = (int)first; id <= (int)last; id++) {
        ActivationId tensor = (ActivationId)id;
        if (is_saved(m, tensor, l) || activation_specs[id].home != IN_SLOTS) { continue; }
        m->device->enqueue_fill(activation(m, tensor, l), 0xFF, activation_bytes(m, tensor), &m->exec);
    }
#else
    (void)m, (void)l, (void)first, (void)last;
#endif
}

// Copies a micro-batch, inputs and targets (B,T), to the device. The caller may reuse both arrays after the call; the
// ranges of packed sequences must stay until the micro-step is done.
static void gpt2_stage_batch(GPT2 *m, const int *inputs, const int *targets, PackedSequences packed) {
    size_t N = (size_t)m->B * (size_t)m->T, bytes = N * sizeof(int);
    int *slot = m->tensors.staged + (size_t)m->next_slot * 2 * (size_t)m->options.B * (size_t)m->options.T;
    m->next_slot = (m->next_slot + 1) % staging_slots(&m->options);
    memcpy(slot, inputs, bytes);
    memcpy(slot + N, targets, bytes);
    m->device->enqueue_upload(m->tensors.tokens, slot, bytes, &m->exec);
    m->device->enqueue_upload(m->tensors.targets, slot + N, bytes, &m->exec);
    m->packed = packed;
}

// The staged micro-batch -> the activations up to the last block's output. gpt2_classify goes on with the final
// layernorm and the loss, chunk by chunk: logits of all rows would be the largest tensor of all.
static void gpt2_forward(GPT2 *m) {
    embedding_forward(m);
    for (int l = 0; l < m->config.num_layers; l++) {
        wait_for_params(m, l, l + 1);
        offload_acquire(&m->offload, output_of_block(m, l));
        block_forward(m, l);
        offload_store(&m->offload, output_of_block(m, l));
        poison_recomputed(m, l, LN1, FCH_GELU);
        if (l > 0 && m->block_activations[l].input != m->block_activations[l].residual3) {
            poison_recomputed(m, l - 1, RESIDUAL3, RESIDUAL3);
        }
    }
}

// The final layernorm, then logits and losses in chunks of rows: *loss += scale * sum of losses. With dlnf, also the
// gradients of scale * loss: dlnf (N,C) = (with -tp this rank's term of a sum over the ranks), wte's gradient = or +=.
static void gpt2_classify(GPT2 *m, floatX *dlnf, real scale, GradMode mode) {
    const Ops *ops = m->ops;
    Exec *ex = &m->exec;
    int N = m->B * m->T, C = m->config.channels, vocab = m->local.vocab, chunk = m->classifier_rows;
    const floatX *wte = param(m, WTE, 0);
    real *losses = statistic(m, LOSSES, 0);
    const floatX *lnf = final_layernorm_output(m);
    for (int row = 0; row < N; row += chunk) {
        int rows = N - row < chunk ? N - row : chunk;
        size_t at = (size_t)row * (size_t)C;
        floatX *logits = scratch_acquire(&m->mlp_scratch, "logits", (size_t)rows * (size_t)vocab);
        ops->matmul_forward(logits, lnf + at, wte, NULL, NULL, rows, C, vocab, ex);
        vocab_parallel_classifier(&m->tp, losses + row, logits, m->tensors.targets + row, dlnf ? scale : 0, rows,
                                  m->config.vocab_size);
        if (dlnf) {  // dlogits is in the place of the logits
            GradMode chunk_mode = row == 0 ? mode : GRAD_ADD;
            ops->matmul_backward(dlnf + at, grad(m, WTE, 0), no_gradient, no_gradient, logits, lnf + at, wte, NULL,
                                 chunk_mode, rows, C, vocab, ex);
        }
        scratch_release(&m->mlp_scratch);
    }
    norm_release(m, lnf);
    ops->loss_sum(m->loss, losses, scale, N, ex);
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. backward

// The output of a layernorm for the backward: saved, or recomputed from the saved mean and rstd with the same bits.
// With -tp its all-gather begins here, unless -ra 0 saved the gathered rows: rows_wait before reading. Release it with
// norm_release.
static const floatX *recompute_layernorm(GPT2 *m, floatX *saved, const floatX *in, const real *mean, const real *rstd,
                                         const floatX *weight, const floatX *bias) {
    floatX *own, *output = norm_acquire(m, saved, &own);
    if (!saved) {
        m->ops->layernorm_from_statistics(own, in, mean, rstd, weight, bias, m->tp.own_rows, m->config.channels,
                                          &m->exec);
    }
    if (!saved || m->options.gather_again) { rows_all_gather(&m->tp, output, own); }
    return output;
}

// -r 4: the attention half of block_forward for the last block of a checkpoint segment, the same bits
static void recompute_attention(GPT2 *m, int l) {
    const BlockParams *p = &m->block_params[l];
    const BlockActivations *a = &m->block_activations[l];
    int N = m->B * m->T, C = m->config.channels, A = m->local.attn_dim;
    if (!a->recomputes_attention) { return; }
    const floatX *ln1 = recompute_layernorm(m, a->ln1, a->input, a->ln1_mean, a->ln1_rstd, p->ln1w, p->ln1b);
    rows_wait(&m->tp, ln1);
    m->ops->matmul_forward(a->qkv, ln1, p->qkvw, p->qkvb, NULL, N, C, 3 * A, &m->exec);
    norm_release(m, ln1);
    attention_forward(m, a);
    row_parallel_forward(&m->tp, a->residual2, a->atty, p->attprojw, p->attprojb, a->input, N, A, C);
}

// from -r 3 on: the MLP's up-projection
static void recompute_fch(GPT2 *m, int l, const floatX *ln2) {
    const BlockParams *p = &m->block_params[l];
    const BlockActivations *a = &m->block_activations[l];
    if (!a->recomputes_fch) { return; }
    rows_wait(&m->tp, ln2);
    m->ops->matmul_forward(a->fch, ln2, p->fcw, p->fcb, NULL, m->B * m->T, m->config.channels, m->local.d_ff, &m->exec);
}

// from -r 1 on: GELU. Returns the saved or the recomputed tensor; the latter is in m->mlp_scratch
static floatX *recompute_gelu(GPT2 *m, const BlockActivations *a) {
    size_t elements = (size_t)(m->B * m->T) * (size_t)m->local.d_ff;
    if (a->fch_gelu) { return a->fch_gelu; }
    floatX *gelu = scratch_acquire(&m->mlp_scratch, "fch_gelu", elements);
    m->ops->gelu_forward(gelu, a->fch, elements, &m->exec);
    return gelu;
}

// dresidual (N,C) for the next matmul. With -tp: begins to all-gather this rank's rows, in gathered_gradient.
static const floatX *gather_gradient(GPT2 *m, floatX *dresidual) {
    if (!m->tp.splits_rows) { return dresidual; }
    floatX *all = scratch_acquire(&m->gathered_gradient, "dresidual", m->tp.all_elements);
    rows_all_gather(&m->tp, all, dresidual);
    return all;
}

static void release_gradient(GPT2 *m) {
    if (m->tp.splits_rows) { scratch_release(&m->gathered_gradient); }
}

// Block l backwards. dresidual (N,C) enters as the gradient of residual3 and leaves as the gradient of input: a
// residual addition passes the gradient on, and layernorm_backward adds the gradient through the layernorm. With -tp, a
// collective begins when its input is ready; the linear layer that reads its output waits.
static void block_backward(GPT2 *m, int l, floatX *dresidual, GradMode mode) {
    const Ops *ops = m->ops;
    TensorParallel *tp = &m->tp;
    const BlockParams *p = &m->block_params[l];
    const BlockGrads *g = &m->block_grads[l];
    const BlockActivations *a = &m->block_activations[l];
    Exec *ex = &m->exec;
    int N = m->B * m->T, C = m->config.channels, A = m->local.attn_dim, U = m->local.d_ff;

    recompute_attention(m, l);
    // the MLP, from the down-projection to ln2
    // when fch is recomputed, ln2 is needed first: it is gathered before dresidual
    const floatX *dout = a->recomputes_fch ? NULL : gather_gradient(m, dresidual);
    const floatX *ln2 = recompute_layernorm(m, a->ln2, a->residual2, a->ln2_mean, a->ln2_rstd, p->ln2w, p->ln2b);
    if (a->recomputes_fch) { dout = gather_gradient(m, dresidual); }
    recompute_fch(m, l, ln2);
    floatX *gelu = recompute_gelu(m, a), *dfch = gelu;  // dfch overwrites gelu. The matmul multiplies by gelu'(fch)
    // fcb's gradient is the column sums of dfch. A matmul adds them up in the type of its output: dfch's matmul in
    // floatX, the matmul of fcw's gradient in fp32
    bool with_dfch = g->fcb.dtype == DT_FLOATX;
    row_parallel_backward(tp, dfch, g->fcprojw, g->fcprojb, with_dfch ? g->fcb : no_gradient, dout, gelu, p->fcprojw,
                          a->fch, mode, N, U, C);
    release_gradient(m);
    floatX *dln2 = scratch_acquire(&m->hidden_scratch, "dln2", tp->all_elements);
    const floatX *own_dln2 =
        column_parallel_backward(tp, dln2, g->fcw, with_dfch ? no_gradient : g->fcb, dfch, ln2, p->fcw, mode, N, C, U);
    norm_release(m, ln2);
    ops->layernorm_backward(dresidual, g->ln2w, g->ln2b, own_dln2, a->residual2, p->ln2w, a->ln2_mean, a->ln2_rstd,
                            mode, tp->own_rows, C, ex);
    scratch_release(&m->hidden_scratch);
    if (!a->fch_gelu) { scratch_release(&m->mlp_scratch); }

    // attention, from its projection to ln1
    dout = gather_gradient(m, dresidual);
    const floatX *ln1 = recompute_layernorm(m, a->ln1, a->input, a->ln1_mean, a->ln1_rstd, p->ln1w, p->ln1b);
    floatX *datty = scratch_acquire(&m->hidden_scratch, "datty", (size_t)N * (size_t)A);
    row_parallel_backward(tp, datty, g->attprojw, g->attprojb, no_gradient, dout, a->atty, p->attprojw, NULL, mode, N,
                          A, C);
    release_gradient(m);
    floatX *dqkv = scratch_acquire(&m->mlp_scratch, "dqkv", (size_t)N * 3 * (size_t)A);
    attention_backward(m, a, dqkv, datty);
    scratch_release(&m->hidden_scratch);
    floatX *dln1 = scratch_acquire(&m->hidden_scratch, "dln1", tp->all_elements);
    const floatX *own_dln1 =
        column_parallel_backward(tp, dln1, g->qkvw, g->qkvb, dqkv, ln1, p->qkvw, mode, N, C, 3 * A);
    norm_release(m, ln1);
    // The keys' bias shifts all scores of a query alike, so its gradient is 0: otherwise AdamW turns rounding noise
    // into full-size updates.
    m->device->enqueue_fill(gradient_at(g->qkvb, (size_t)A).at, 0, (size_t)A * dtype_size(g->qkvb.dtype), ex);
    ops->layernorm_backward(dresidual, g->ln1w, g->ln1b, own_dln1, a->input, p->ln1w, a->ln1_mean, a->ln1_rstd, mode,
                            tp->own_rows, C, ex);
    scratch_release(&m->hidden_scratch);
    scratch_release(&m->mlp_scratch);
}

// The block to prefetch while block l runs backward: l - 1, or the start of its checkpoint segment if l - 1 must be
// recomputed. -1 if none.
static int prefetch_after(const GPT2 *m, int l) {
    int next = l - 1, from = next >= 0 ? recompute_from(&m->options.recompute, next) : next;
    return from < next ? from : next;
}

// The gradients of the embeddings; wte's is added to that of the logits.
static void embedding_backward(GPT2 *m, floatX *dresidual, GradMode mode) {
    const floatX *dout = gather_gradient(m, dresidual);
    vocab_parallel_embedding_backward(&m->tp, grad(m, WTE, 0), grad(m, WPE, 0), dout, m->tensors.tokens, m->packed,
                                      mode, m->B, m->T, m->config.max_seq_len, m->config.channels);
    release_gradient(m);
}

// Final layernorm, logits and loss, forward and backward: dresidual = the gradient of the last block's output.
static void classifier_forward_backward(GPT2 *m, floatX *dresidual, real scale, GradMode mode) {
    int C = m->config.channels;
    floatX *dlnf = scratch_acquire(&m->hidden_scratch, "dlnf", m->tp.all_elements);
    zero_grads_acquire(&m->zero, embeddings_bucket());
    gpt2_classify(m, dlnf, scale, mode);
    const floatX *own_dlnf = rows_reduce_scatter(&m->tp, dlnf);
    m->device->enqueue_fill(dresidual, 0, (size_t)m->tp.own_rows * (size_t)C * sizeof(floatX), &m->exec);
    rows_wait(&m->tp, own_dlnf);
    zero_grads_acquire(&m->zero, final_bucket(&m->layout));
    m->ops->layernorm_backward(dresidual, grad(m, LNFW, 0), grad(m, LNFB, 0), own_dlnf, last_residual(m),
                               param(m, LNFW, 0), statistic(m, LNF_MEAN, 0), statistic(m, LNF_RSTD, 0), mode,
                               m->tp.own_rows, C, &m->exec);
    scratch_release(&m->hidden_scratch);
}

// After gpt2_forward: the loss, and every parameter's gradient, set or added to by the micro-step. scale is 1 / targets
// of the whole update. A bucket's gradients are reduced over the data-parallel ranks (-z) beside the next block's
// backward.
static void gpt2_backward(GPT2 *m, real scale) {
    GradMode mode = zero_grad_mode(&m->zero);
    floatX *dresidual = m->tensors.dresidual;
    zero_grads_prefetch(&m->zero);
    classifier_forward_backward(m, dresidual, scale, mode);
    zero_grads_reduce(&m->zero, final_bucket(&m->layout));
    for (int l = m->config.num_layers - 1; l >= 0; l--) {
        // -r 4 -rk: l's checkpoint segment
        int from = recompute_from(&m->options.recompute, l);
        if (from <= l) { offload_wait(&m->offload, input_of_block(m, from)); }
        for (int before = from; before < l; before++) {
            wait_for_params(m, before, before + 1);
            block_forward(m, before);  // with -ge 1 the fused GELU, as in the forward
        }
        wait_for_params(m, l, prefetch_after(m, l));
        zero_grads_acquire(&m->zero, layer_bucket(l));
        block_backward(m, l, dresidual, mode);
        poison_recomputed(m, l, LN1, RESIDUAL3);
        zero_grads_reduce(&m->zero, layer_bucket(l));
    }
    embedding_backward(m, dresidual, mode);
    zero_grads_reduce(&m->zero, embeddings_bucket());
    zero_grads_wait(&m->zero);
}

// Forward and backward of the staged micro-batch, the `micro`-th of its step. The work is the same every time, so a
// device with CUDA graphs captures it the second time; the first time, matmuls are autotuned. A CUDA graph cannot wait
// for a collective or a copy that began outside of it: these are waited for before the capture and each launch.
// False if the driver refused the captured graph: a second call captures the work without early launches.
static bool try_micro_step(GPT2 *m, int micro) {
    const Device *device = m->device;
    bool first = micro == 0, last = micro == m->options.micro_steps - 1;
    DeviceGraph **graph = &m->graphs[first][last];
    bool uses_graph = device->capture_begin && m->options.graph && m->groups.world->backend->capturable &&
                      !m->packed.ranges && m->has_run[first][last];
    zero_micro_step(&m->zero, micro, m->options.micro_steps);
    if (uses_graph) { zero_wait_all(&m->zero); }
    if (uses_graph && *graph) {
        device->graph_launch(*graph, &m->exec);
        return true;
    }
    if (uses_graph) { device->capture_begin(&m->exec); }
    m->offload.stores = true;
    gpt2_forward(m);
    gpt2_backward(m, 1 / m->update_targets);
    m->offload.stores = false;
    m->has_run[first][last] = true;
    if (uses_graph) { *graph = device->capture_end(&m->exec); }
    return !uses_graph || *graph;
}

static void gpt2_micro_step(GPT2 *m, int micro) {
    if (!try_micro_step(m, micro)) { try_micro_step(m, micro); }
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. update

// Blocks until enqueued work is done. Stops the run if another rank is silent. Event 0 is free: no step is pending.
static void finish_work(GPT2 *m) {
    m->device->event_record(0, &m->exec);
    comm_event_synchronize(0, m->groups.world, &m->exec);
}

// Sums the loss and the squared norm of the gradients over all ranks. Both stay on the device, for gpt2_update. All
// tensor-parallel ranks compute the same loss; tp_rank 0 contributes it.
static void gpt2_norm(GPT2 *m) {
    Comm *world = m->groups.world;
    if (world->size == 1) {
        m->ops->global_norm_squared(m->norm_squared, m->zero.stored_grads, GRAD_SET, m->layout.total, &m->exec);
        return;
    }
    replicated_grads_all_reduce(&m->tp, &m->zero, m->tensors.replicated_grads);
    m->device->enqueue_fill(m->norm_squared, 0, sizeof(real), &m->exec);
    zero_norm_squared(&m->zero, m->norm_squared);
    if (m->local.tp_rank > 0) { m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec); }
    CommWork work = comm_all_reduce(m->loss, 2, DT_REAL, world, &m->exec);
    comm_wait(work, world, &m->exec);
}

// AdamW, unless loss or norm is not finite. Piece by piece: at -z 0 everything at once, from -z 1 on a bucket's chunk
// that this rank owns at a time. With --offload a piece comes from host memory and returns there.
static void gpt2_update(GPT2 *m, const AdamW *hyper) {
    // norm += 0 * loss, which is NaN if the loss is not finite: AdamW skips the step then
    m->ops->loss_sum(m->norm_squared, m->loss, 0, 1, &m->exec);
    for (int i = 0; i < m->update.num_pieces; i++) {
        PieceState piece = update_acquire(&m->update, i);
        m->ops->adamw_update(&piece.state, piece.grads, m->norm_squared, piece.ranges, piece.num_ranges,
                             m->update.pieces[i].count, hyper, &m->exec);
        update_release(&m->update, i);
    }
    update_wait(&m->update);
    zero_params_changed(&m->zero);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. generation

// logits (V), on the host: after row `row` of the last forward.
static void gpt2_logits(GPT2 *m, int row, float *logits) {
    int C = m->config.channels, V = m->config.vocab_size, vocab = m->local.vocab;
    Comm *tp_comm = m->groups.tp;
    const floatX *lnf = final_layernorm_output(m);
    floatX *all = scratch_acquire(&m->mlp_scratch, "logits", (size_t)vocab * (size_t)m->local.tp_size);
    floatX *own = all + (size_t)vocab * (size_t)m->local.tp_rank;
    m->ops->matmul_forward(own, lnf + (size_t)row * (size_t)C, param(m, WTE, 0), NULL, NULL, 1, C, vocab, &m->exec);
    CommWork work = comm_all_gather(all, own, (size_t)vocab, DT_FLOATX, tp_comm, &m->exec);
    comm_wait(work, tp_comm, &m->exec);
    norm_release(m, lnf);
    floatX *host = (floatX *)xmalloc((size_t)V * sizeof(floatX));
    finish_work(m);
    m->device->download(host, all, (size_t)V * sizeof(floatX));
    for (int v = 0; v < V; v++) { logits[v] = (float)to_real(host[v]); }
    free(host);
    scratch_release(&m->mlp_scratch);
}

// Appends n tokens of one sequence, at positions [from, from + n), to the key-value cache. logits (V): of the last
// token, on the host.
static void gpt2_decode(GPT2 *m, const int *tokens, int from, int n, float *logits) {
    m->device->upload(m->tensors.tokens, tokens, (size_t)n * sizeof(int));
    set_batch(m, 1, n, from);
    gpt2_forward(m);
    gpt2_logits(m, n - 1, logits);
    set_batch(m, m->options.B, m->options.T, -1);
}

// gpt2_decode in chunks of as many tokens as the activations have rows. model: a GPT2, for Generator.prefill.
static void gpt2_prefill(void *model, const int *tokens, int from, int n, float *logits) {
    GPT2 *m = (GPT2 *)model;
    int most = (int)chunk_size((size_t)m->options.B * (size_t)m->options.T, m->local.tp_size);
    for (int done = 0; done < n; done += most) {
        gpt2_decode(m, tokens + done, from + done, n - done < most ? n - done : most, logits);
    }
}

static Generator gpt2_generator(GPT2 *m, const TrainArgs *a, const Tokenizer *tokenizer) {
    Generator g = {m, gpt2_prefill, m->config.vocab_size, m->options.decode_positions, tokenizer, a, m->groups.world};
    return g;
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. the run

typedef struct {
    const TrainArgs *args;
    const Backend *backend;
    Comm *host;  // all ranks that mpirun started; main closes it
    Groups groups;
    GPT2 model;
    RunData data;
    RunText text;
    Outliers outliers;
    Evaluations evaluations;
    Logger log;
    Profile profile;
    long long step, max_steps;    // finished steps, and their number at the end
    long long enqueued;           // steps that the device was given: on a GPU one more than `step`
    StepReport reports[2];        // of the steps on the device, step n at n % 2
    long long saved;              // step of the last checkpoint that this run has saved or resumed; 0: none
    long long planned_steps;      // max_steps when the resumed run began; 0 for a new run
    double started, last_finish;  // seconds
    int lock;                     // file descriptor of the locked run directory; -1: none
} Run;

// ---- checkpoints

static cJSON *run_state(const Run *run) {
    cJSON *state = cJSON_CreateObject();
    cJSON_AddNumberToObject(state, "step", (double)run->step);
    cJSON_AddNumberToObject(state, "max_steps", (double)run->max_steps);
    data_state_add(state, &run->data, run->args);
    cJSON_AddItemToObject(state, "loss_guard", outlier_detector_to_json(&run->outliers.loss));
    cJSON_AddItemToObject(state, "norm_guard", outlier_detector_to_json(&run->outliers.norm));
    return state;
}

// True if DONE_ of this step can be there: that of the last step is created after its evaluation.
static bool step_is_done(const Run *run, bool last) {
    return run->step < run->max_steps || !evaluation_due(&run->evaluations, run->args, run->step, last);
}

// Saves RUN/name. state: of state.json, which is deleted. The logs reach the disk first: a power cut leaves no
// checkpoint whose steps are missing in metrics.jsonl. last: the run ends now, and a failure is an error, else a
// warning.
static bool save_checkpoint(Run *run, const char *name, cJSON *state, bool last) {
    double begin = now_seconds();
    uint32_t crcs[2];
    ModelState model = gpt2_state(&run->model);
    model.tokenizer = run->text.tokenizer;
    finish_work(&run->model);
    logger_sync(&run->log);
    bool saved = checkpoint_save(run->args->run_dir, name, &model, state, last, crcs);
    if (saved) {  // other CRC32C than another run: other bits
        logger_print(&run->log, run->step, "saved %s/%s | paused %.1f ms | weights %08x, optimizer %08x",
                     run->args->run_dir, name, 1000 * (now_seconds() - begin), crcs[0], crcs[1]);
    }
    cJSON_Delete(state);
    return saved;
}

// Creates DONE_ of this step if its checkpoint is saved.
static void mark_done(Run *run, bool last) {
    if (run->step == 0 || run->saved != run->step || !step_is_done(run, last)) { return; }
    checkpoint_mark_done(run->args->run_dir, run->step, run->groups.world, last);
}

// -n
static void save_step(Run *run, bool last) {
    const TrainArgs *a = run->args;
    char name[32];
    snprintf(name, sizeof name, "step_%08lld", run->step);
    if (!save_checkpoint(run, name, run_state(run), last)) { return; }
    run->saved = run->step;
    mark_done(run, last);
    if (run->groups.world->rank == 0) { checkpoint_prune(a->run_dir, a->keep_checkpoints, a->major_every); }
}

// Counts a validation for --patience, and saves RUN/best for --keep-best.
static void note_validation(Run *run, double loss, bool last) {
    Evaluations *e = &run->evaluations;
    comm_broadcast_host(&loss, sizeof loss, 0, run->groups.world);  // the ranks decide alike
    evaluations_add(e, run->step, loss);
    evaluations_check_patience(e, run->args->patience);
    if (!keeps_best(run->args) || !(logged_loss(loss) < e->best)) { return; }
    cJSON *state = run_state(run);
    cJSON_AddNumberToObject(state, "val_loss", logged_loss(loss));
    if (save_checkpoint(run, "best", state, last)) { e->best = logged_loss(loss); }
}

// Restores step, position in the data and outlier detectors from a checkpoint.
static void restore_run(Run *run, const char *folder) {
    char file[PATH_LENGTH];
    format_path(file, "%s/state.json", folder);
    cJSON *state = checkpoint_load_state(folder);
    data_state_check(state, &run->data, run->args, file);
    if (!outlier_detector_from_json(&run->outliers.loss, cJSON_GetObjectItem(state, "loss_guard")) ||
        !outlier_detector_from_json(&run->outliers.norm, cJSON_GetObjectItem(state, "norm_guard"))) {
        input_error("'%s' has no loss_guard and norm_guard of at most %d numbers: it was cut short or edited; "
                    "resume from an earlier checkpoint",
                    file, OUTLIER_WINDOW);
    }
    run->step = json_whole(state, "step", 0, INT_MAX - 1, file);
    if (run->step != checkpoint_latest(run->args->run_dir)) {
        input_error("'%s' says step %lld, and its folder is named for another; restore the file or the folder's name",
                    file, run->step);
    }
    run->planned_steps = json_whole(state, "max_steps", 1, 1e12, file);
    if (run->args->max_steps > 0 && run->step > run->args->max_steps) {
        input_error("-x %lld: '%s' has already made %lld steps; give a larger -x to resume it",
                    (long long)run->args->max_steps, folder, run->step);
    }
    data_state_seek(state, &run->data, file);
    cJSON_Delete(state);
}

// Why training stops before its last step; "" if it does not. All ranks call it together and get the same answer.
static const char *cut_short(const Run *run) {
    if (run->step >= run->max_steps) { return ""; }
    if (*run->evaluations.patience_over) { return run->evaluations.patience_over; }
    if (run->outliers.skipped >= MAX_SKIPS) { return "too many updates in a row were skipped"; }
    double limit = run->args->time_limit;
    if (limit > 0 && comm_max(now_seconds() - run->started > limit, run->groups.world)) { return "--time-limit is up"; }
    switch (comm_max(received_signal, run->groups.world)) {
    case 0: return "";
    case SIGINT: return "interrupted";
    case SIGTERM: return "told to end by SIGTERM";
    default: return "told to end by a signal";
    }
}

// ---- evaluation

static real device_number(GPT2 *m, const real *x) {
    real value;
    finish_work(m);
    m->device->download(&value, x, sizeof value);
    return value;
}

// the sum of x over the data-parallel ranks, in fp32
static double sum_over_ranks(void *model, double x) {
    GPT2 *m = (GPT2 *)model;
    Comm *dp = m->groups.dp;
    if (dp->size == 1) { return x; }
    real value = (real)x;
    m->device->upload(m->loss, &value, sizeof value);
    CommWork work = comm_all_reduce(m->loss, 1, DT_REAL, dp, &m->exec);
    comm_wait(work, dp, &m->exec);
    return (double)device_number(m, m->loss);
}

// The mean loss of the B*T rows of a micro-batch, without gradients. losses (B,T): NULL, or the loss at each position,
// on the host.
static real gpt2_losses(void *model, int B, int T, const int *inputs, const int *targets, PackedSequences packed,
                        real *losses) {
    GPT2 *m = (GPT2 *)model;
    set_batch(m, B, T, -1);
    gpt2_stage_batch(m, inputs, targets, packed);
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    gpt2_forward(m);
    gpt2_classify(m, NULL, 1 / (real)(B * T), GRAD_SET);
    real mean = device_number(m, m->loss);
    if (losses) { m->device->download(losses, statistic(m, LOSSES, 0), (size_t)B * (size_t)T * sizeof(real)); }
    set_batch(m, m->options.B, m->options.T, -1);
    return mean;
}

static EvalModel eval_model(GPT2 *m) {
    EvalModel e = {m, &m->groups, m->options.B, m->options.T, m->config.vocab_size, gpt2_losses, sum_over_ranks};
    return e;
}

// Validates and scores HellaSwag, unless metrics.jsonl has the result of this step. A signal cuts an evaluation short;
// its partial result is not logged. last: the run ends now.
static void evaluate(Run *run, bool last) {
    EvalModel model = eval_model(&run->model);
    if (run->evaluations.val < run->step) {
        Validation v = validate(&model, &run->data.val_loader, run->args->val_batches, run->text.tokenizer);
        if (agreed_signal(run->groups.world)) { return; }
        note_validation(run, v.loss, last);  // first: a run killed before logger_val validates again
        logger_val(&run->log, run->step, v.loss, v.bits_per_byte);
    }
    if (hellaswag_due(&run->evaluations, run->step)) {
        double accuracy = score_hellaswag(&model, &run->data.hellaswag);
        if (agreed_signal(run->groups.world)) { return; }
        logger_hellaswag(&run->log, run->step, accuracy);
        run->evaluations.hellaswag = run->step;
    }
}

static void show_sample(Run *run) {
    logger_clear_line(&run->log);
    printf("sample at step %lld:\n---\n", run->step);
    Generator g = gpt2_generator(&run->model, run->args, run->text.tokenizer);
    generate(&g, run->text.prompt, run->text.prompt_length, run->args->sample_tokens, -1,
             SAMPLE_STREAM + (uint64_t)run->step);
    puts("---");
}

// ---- one step

// Reads loss and norm of step n, and decides whether its update is skipped.
static void read_results(Run *run, long long n) {
    int slot = (int)(n % 2);
    StepReport *r = &run->reports[slot];
    comm_event_synchronize(slot, run->groups.world, &run->model.exec);
    const real *results = run->model.tensors.read_results + 2 * slot;
    r->loss = (double)results[0];
    r->grad_norm = sqrt((double)results[1]);
    r->skipped = skip_reason(run->args, &run->outliers, r->loss, r->grad_norm);
}

// Enqueues forward and backward of each micro-batch, and the norm. may_stop: false is returned if the run is cut short
// between micro-batches, and the next step overwrites the gradients. (With several ranks cut_short is a collective.)
static bool enqueue_gradients(Run *run, bool may_stop) {
    GPT2 *m = &run->model;
    DataLoader *loader = &run->data.train_loader;
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    for (int micro = 0; micro < m->options.micro_steps; micro++) {
        if (micro > 0 && may_stop && *cut_short(run)) { return false; }
        dataloader_next(loader);
        gpt2_stage_batch(m, loader->inputs, loader->targets, loader->packed);
        gpt2_micro_step(m, micro);
    }
    gpt2_norm(m);
    return true;
}

static void set_ops(GPT2 *m, const Ops *ops) { m->ops = m->tp.ops = m->zero.ops = ops; }

// --nan-check: origin = the operation that made the loss or the norm not finite, found by running the step that begins
// with sequence `first` again. Weights, moments and the position in the data stay as they are.
static void find_origin(Run *run, uint64_t first, char *origin, size_t size) {
    GPT2 *m = &run->model;
    const Ops *ops = m->ops;
    OpHooks *hooks = m->exec.hooks;  // of --profile
    bool graph = m->options.graph;
    NanCheck check;
    real results[2];
    nan_check_open(&check, hooks ? hooks->ops : ops, &m->zero);
    nan_check_params(&check);
    set_ops(m, &hooked_ops);
    m->exec.hooks = &check.hooks;
    m->options.graph = false;
    dataloader_seek(&run->data.train_loader, first);
    enqueue_gradients(run, false);
    finish_work(m);
    set_ops(m, ops);
    m->exec.hooks = hooks;
    m->options.graph = graph;
    m->device->download(results, m->loss, sizeof results);
    nan_check_result(&check, isfinite(results[0]) && isfinite(results[1]), origin, size, run->groups.world);
}

// Enqueues one step: gradients, their norm, AdamW. Nothing here waits for the device, unless the results are needed
// before AdamW. One rank may be cut short: it rewinds the data and returns false.
static bool start_step(Run *run) {
    GPT2 *m = &run->model;
    DataLoader *loader = &run->data.train_loader;
    int slot = (int)(run->enqueued % 2);
    StepReport *report = &run->reports[slot];
    report->began = now_seconds();
    report->skipped = "";
    *report->origin = 0;
    if (run->args->overfit) { dataloader_seek(loader, 0); }
    uint64_t first = loader->position, sequences = (uint64_t)tokens_of_update(run->args) / (uint64_t)m->T;
    m->update_targets = (real)dataloader_targets(loader, first, sequences);
    if (!enqueue_gradients(run, num_ranks(run->args) == 1)) {
        dataloader_seek(loader, first);
        return false;
    }
    m->device->enqueue_download(m->tensors.read_results + 2 * slot, m->loss, 2 * sizeof(real), &m->exec);
    m->device->event_record(slot, &m->exec);
    AdamW hyper = step_hyper(run->args, run->max_steps, run->enqueued);
    report->lr = (double)hyper.learning_rate;
    if (update_waits(run->args)) {
        read_results(run, run->enqueued);
        bool finite = isfinite(report->loss) && isfinite(report->grad_norm);
        if (run->args->nan_check && !finite) { find_origin(run, first, report->origin, sizeof report->origin); }
    }
    if (!*report->skipped) { gpt2_update(m, &hyper); }
    run->enqueued++;
    return true;
}

// Finishes the oldest pending step. AdamW skips a step whose loss or norm is not finite.
static StepReport finish_step(Run *run) {
    StepReport *report = &run->reports[run->step % 2];
    if (!update_waits(run->args)) { read_results(run, run->step); }
    run->step++;
    double now = now_seconds(), limit = run->args->time_limit;
    report->step = run->step;
    report->ms = (now - fmax(report->began, run->last_finish)) * 1000;
    run->last_finish = now;
    report->seconds_left = limit > 0 ? limit - (now - run->started) : -1;
    run->outliers.skipped = *report->skipped ? run->outliers.skipped + 1 : 0;
    return *report;
}

// Ends a run in which MAX_SKIPS updates in a row were skipped.
static void stop_skipping(const Run *run) {
    char saved[2 * PATH_LENGTH] = "no checkpoint was saved, since -n is not given";
    if (run->saved > 0) {
        snprintf(saved, sizeof saved, "the last checkpoint is '%s/step_%08lld'", run->args->run_dir, run->saved);
    }
    const char *advice = "find the operation with --nan-check 1, lower -l or give a longer -u";
    if (run->outliers.skipped == run->log.steps_seen) {
        advice = "no update since the start was good: find the operation with --nan-check 1; if the weights are not "
                 "finite, move the checkpoints with them out of -o and resume, or give other weights with -e";
    }
    run_error("%d updates in a row were skipped, the last at step %lld: %s; %s; %s", run->outliers.skipped, run->step,
              run->reports[(run->step - 1) % 2].skipped, saved, advice);
}

// ---- from flags to a run that can take steps

// Loads or draws the weights, and loads a resumed run's moments.
static void load_weights(GPT2 *m, ModelSource *source, uint64_t seed) {
    if (*source->checkpoint) {
        gpt2_resume(m, source->checkpoint, &source->weights);
    } else if (source->has_weights) {
        gpt2_load(m, &source->weights);
    } else {
        gpt2_init(m, seed);
    }
    if (source->has_weights) { model_close(&source->weights); }
}

static void check_same_data_and_state(const Run *run) {
    cJSON *data = cJSON_CreateObject(), *state = run_state(run);
    cJSON_AddStringToObject(data, "training data", run->data.fingerprint);
    cJSON_AddNumberToObject(data, "number of training tokens", (double)token_files_total(&run->data.train_files));
    cJSON_AddNumberToObject(data, "number of validation tokens", (double)token_files_total(&run->data.val_files));
    const char *hellaswag = run->data.hellaswag_path;
    if (hellaswag) { add_hash(data, hellaswag, hash_file(0, "-h", hellaswag)); }
    check_all_have(run->groups.world, data, "all ranks need the same -i, -j and HellaSwag files");
    cJSON_AddNumberToObject(state, "planned_steps", (double)run->planned_steps);
    cJSON_AddNumberToObject(state, "prompt_length", (double)run->text.prompt_length);
    check_all_have(run->groups.world, state, "all ranks need the same files at -o and -e");
}

// Rank 0 writes the run directory; every rank writes its shard of a checkpoint.
static bool writes_files(const Run *run) { return run->args->run_dir && run->groups.world->rank == 0; }

static void open_run_dir(Run *run) {
    const TrainArgs *a = run->args;
    if (writes_files(run)) {
        make_run_dir(a->run_dir);
        if (run->lock < 0) { run->lock = lock_run_dir(a->run_dir); }
    }
    if (saves_checkpoints(a) || a->resume || a->profile > 0) { check_shared_folder(a->run_dir, run->groups.world); }
    if (writes_files(run)) {
        if (run->step > 0) { print_changed_flags(a); }
        if (run->step > 0) { print_changed_schedule(a, run->planned_steps, run->max_steps); }
        save_run_config(a);
    }
    run->evaluations = evaluations_read(a, run->data.hellaswag_path, run->step, run->groups.world);
    run->log = logger_open(writes_files(run) ? a->run_dir : NULL, run->step, run->evaluations.val == run->step,
                           run->evaluations.hellaswag == run->step, num_ranks(a) == 1);
    if (writes_files(run)) { checkpoint_sync_done(a->run_dir, step_is_done(run, true) ? -1 : run->step); }
    run->saved = run->step;
}

// Phase 1, the flags alone: device, ranks, and a run directory that no other run uses.
static void open_place(Run *run, TrainArgs *a) {
    run->backend = backend_choose((DeviceChoice)a->device, true);
    run->groups = open_groups(a, run->backend->device, run->host);
    if (writes_files(run)) {
        check_run_dir(a);
        run->lock = lock_run_dir(a->run_dir);
    }
    check_last_checkpoint(a, run->groups.world);
    choose_matmul_inputs(a, run->backend, run->groups.world);
}

// Phase 2, the data and the checkpoint: the model's shape and weights, the tokenizer, the number of steps, and the step
// and the place in the data to resume from.
static ModelSource open_data(Run *run, TrainArgs *a) {
    RunText *text = &run->text;
    data_open(&run->data, a);
    ModelSource source = model_source(a, run->data.files.vocab_size);
    const GPT2Config *c = &source.config;
    check_same_model(&source, run->groups.world);
    check_length(a, c);
    check_rows(a);
    check_text_fits(&run->data, a, &source);
    if (data_find_tokenizer(&text->file, &run->data, a, c->vocab_size)) { text->tokenizer = &text->file; }
    data_open_loaders(&run->data, a, c->vocab_size, text->tokenizer, run->groups.dp);
    if (*source.checkpoint) { restore_run(run, source.checkpoint); }
    run->max_steps = a->max_steps > 0 ? a->max_steps : data_steps_per_epoch(&run->data, a);
    text->prompt_length = prompt_tokens(text->tokenizer, a->prompt, c->vocab_size, &text->prompt);
    data_open_hellaswag(&run->data, a, text->tokenizer, c->vocab_size);
    check_same_data_and_state(run);
    return source;
}

// Phase 3, the memory: --fit and -r auto choose flags that fit. Stops if disk or memory is too small.
static ModelOptions choose_what_runs(Run *run, TrainArgs *a, const GPT2Config *c) {
    Comm *world = run->groups.world;
    char chosen[FLAG_TEXT];
    if (writes_files(run)) { check_disk(a, c); }
    if (a->fit) { choose_what_fits(stdout, a, c, run->backend, world); }
    ModelOptions options = choose_options(chosen, a, c, run->backend, world);
    if (!a->fit || *a->fit) { check_memory(a, c, &options, world); }  // --fit without a number has just checked
    comm_barrier(world);  // a rank's allocation must not change another rank's check_memory
    return options;
}

// Phase 4
static void build(Run *run, ModelSource *source, ModelOptions options) {
    const TrainArgs *a = run->args;
    const GPT2Config *c = &source->config;
    options.fallback = self_check_at_start(run->backend, run->groups.world, stdout);
    options.backend = profile_backend(&run->profile, a, run->backend, run->max_steps - run->step);
    note_pinning(c, &options);
    gpt2_build(&run->model, *c, options, run->groups);
    profile_attach(&run->profile, a, &run->model.exec, &run->model.zero, &run->groups);
    load_weights(&run->model, source, (uint64_t)a->seed);
    run->enqueued = run->step;
    for (int slot = 0; slot < 2; slot++) {
        StepReport *report = &run->reports[slot];
        report->max_steps = run->max_steps;
        report->tokens = (double)tokens_of_update(a);
        report->peak_rate = num_ranks(a) * run->backend->peak_flops(options.tf32) / model_flops_per_token(c, a->T);
    }
}

// All checks come before the first byte is written. *a changes by --fit, -r auto and -f auto.
static void run_open(Run *run, TrainArgs *a, Comm *host) {
    memset(run, 0, sizeof *run);
    run->args = a;
    run->host = host;
    run->lock = -1;
    open_place(run, a);
    ModelSource source = open_data(run, a);
    ModelOptions options = choose_what_runs(run, a, &source.config);
    build(run, &source, options);
    comm_barrier(run->groups.world);  // nothing is written before every rank has passed its checks
    open_run_dir(run);
}

static void run_close(Run *run) {
    logger_close(&run->log);
    profile_close(&run->profile);
    data_close(&run->data, run->args);
    if (run->text.tokenizer) { tokenizer_free(&run->text.file); }
    free(run->text.prompt);
    gpt2_free(&run->model);
    close_groups(&run->groups, run->host);
    if (run->lock >= 0) { close(run->lock); }
}

static void print_banner(const Run *run) {
    const TrainArgs *a = run->args;
    const GPT2 *m = &run->model;
    char chosen[FLAG_TEXT];
    choose_options(chosen, a, &m->config, run->backend, run->groups.world);
    flags_print_banner(stdout, flag_table, NUM_FLAGS, a, &default_args);
    if (*chosen) { printf("chosen    %s\n", chosen); }
    print_model_lines(a, &m->config, &m->plan, &run->data, run->max_steps);
    print_machine_lines(a, &m->config, &m->options, run->groups.world, why_no_gpu((DeviceChoice)a->device));
    print_notes(a, &m->config, &run->data, run->step);
}

// ---------------------------------------------------------------------------------------------------------------------
// 7. main

// Steps until pauses_after or cut_short. A GPU runs one step ahead: the host enqueues step n + 1, then reads the loss
// and norm of step n.
static void advance(Run *run) {
    int ahead = update_waits(run->args) ? 0 : run->model.device->steps_ahead;
    do {
        profile_step_begin(&run->profile, run->enqueued, &run->model.exec);
        bool whole = start_step(run);
        profile_step_end(&run->profile, whole, &run->model.exec);
        if (!whole) { break; }
        if (run->enqueued - run->step > ahead) { logger_step(&run->log, finish_step(run)); }
    } while (!pauses_after(run->args, run->enqueued, run->max_steps) && !*cut_short(run));
    while (run->step < run->enqueued) { logger_step(&run->log, finish_step(run)); }
}

// The training loop. At a pause the checkpoint comes first: evaluation may take long, and a supervisor may wait for a
// stopped run. DONE_ of the last step comes after the evaluation: a script that starts the run until then gets both.
static void train(TrainArgs *a, Comm *host) {
    Run run;
    run_open(&run, a, host);
    catch_signals();
    print_banner(&run);
    run.started = now_seconds();
    long long sampled = run.step;
    if (run.step >= run.max_steps) {
        printf("finished  all %lld steps are done: a larger -x continues and stretches the schedule\n", run.max_steps);
    }
    for (bool last = false; !last;) {
        const char *why = cut_short(&run);
        last = *why || run.step >= run.max_steps;
        if (*why) { logger_stopped(&run.log, run.step, run.max_steps, why); }
        bool saves = run.step > run.saved && due(run.step, a->checkpoint_every, last);
        if (saves) { save_step(&run, last); }
        if (run.outliers.skipped >= MAX_SKIPS) { stop_skipping(&run); }
        if (last && agreed_signal(run.groups.world)) { break; }  // no evaluation after a signal
        if (evaluation_due(&run.evaluations, a, run.step, last)) {
            evaluate(&run, last);
            mark_done(&run, last);
        }
        if (run.step > sampled && due(run.step, a->sample_every, last)) {
            show_sample(&run);
            sampled = run.step;
        }
        if (!last && !*cut_short(&run)) { advance(&run); }
    }
    run_close(&run);
}

// Builds the trained model of -e for --generate and --eval, whose results alone go to stdout.
static Groups open_trained(GPT2 *m, ModelSource *source, const TrainArgs *a, Comm *host) {
    const GPT2Config *c = &source->config;
    const Backend *backend = backend_choose((DeviceChoice)a->device, true);
    ModelOptions options = model_options(a, c, backend);
    Groups groups = open_groups(a, backend->device, host);
    print_offload_note(stderr, a, backend);
    check_memory(a, c, &options, groups.world);
    options.fallback = self_check_at_start(backend, groups.world, stderr);
    note_pinning(c, &options);
    gpt2_build(m, *c, options, groups);
    load_weights(m, source, 0);
    return groups;
}

// --generate
static void generate_text(const TrainArgs *a, Comm *host) {
    ModelSource source = model_source(a, BYTE_VOCABULARY);
    check_trained(&source, "--generate", a);
    const GPT2Config *c = &source.config;
    Tokenizer file;
    const Tokenizer *tokenizer = find_tokenizer(&file, a, c->vocab_size) ? &file : NULL;
    int *prompt;
    size_t length = prompt_tokens(tokenizer, a->prompt, c->vocab_size, &prompt);
    GPT2 model;
    Groups groups = open_trained(&model, &source, a, host);
    Generator g = gpt2_generator(&model, a, tokenizer);
    generate_samples(&g, prompt, length);
    gpt2_free(&model);
    close_groups(&groups, host);
    if (tokenizer) { tokenizer_free(&file); }
    free(prompt);
}

// --eval
static void evaluate_file(TrainArgs *a, Comm *host) {
    ModelSource source = model_source(a, BYTE_VOCABULARY);
    check_trained(&source, "--eval", a);
    check_length(a, &source.config);
    EvalFile file;
    eval_open(&file, a, &source.config);
    GPT2 model;
    Groups groups = open_trained(&model, &source, a, host);
    EvalModel scored = eval_model(&model);
    eval_run(&file, &scored);
    gpt2_free(&model);
    close_groups(&groups, host);
    eval_close(&file);
}

#if !defined(TESTING) && !defined(WITHOUT_MAIN)
int main(int argc, char **argv) {
    limit_spinning(argv);
    omp_set_dynamic(0);        // --threads is the number of threads
    signal(SIGXFSZ, SIG_IGN);  // a file-size limit becomes a failed write, reported like a full disk
    if (self_check_is_child(argc, argv)) { return self_check_child(argv, &cpu_backend, gpu_backend); }
    Comm *host = comm_open();  // from here on an error ends all ranks and is printed once
    TrainArgs args;
    cJSON *run_flags = read_flags(&args, argc, argv);
    int status = 0;
    args_set_ranks(&args, host);
    share_machine(&args, host);
    if (args.help) {
        print_help();
    } else if (args.version) {
        print_version();
    } else if (args.self_check) {
        const Backend *backend = backend_choose((DeviceChoice)args.device, true);
        if (host->rank == 0) { status = self_check_print(backend); }
    } else {
        args_check(&args);
        if (args.plan) {
            print_plan(&args, host);
        } else if (args.export_format) {
            export_model(&args);
        } else if (args.train_bpe) {
            train_bpe(&args);
        } else if (args.tokenize) {
            Tokenizer tokenizer = tokenizer_open(args.tokenizer);
            tokenize_corpus(&args, &tokenizer);
            tokenizer_free(&tokenizer);
        } else if (args.generate) {
            generate_text(&args, host);
        } else if (args.eval) {
            evaluate_file(&args, host);
        } else {
            train(&args, host);
        }
    }
    cJSON_Delete(run_flags);
    if (fflush(stdout) != 0 || ferror(stdout)) { run_error("could not write to stdout: %s", strerror(errno)); }
    comm_close(host);
    return status;
}
#endif
