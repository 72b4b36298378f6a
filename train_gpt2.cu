/*
train_gpt2: trains GPT-2, top to bottom.
  1. the model     its tensors, memory plan, build and free
  2. forward       block_forward, gpt2_forward, the classifier in chunks of logits
  3. backward      block_backward, gpt2_backward: section 2 in reverse, with recomputation
  4. update        global norm, AdamW or Muon
  5. generation    the same blocks with a key-value cache
  6. the run       checkpoints, evaluation, one training step
  7. main          train, --generate, --eval, --export, --plan, --self-check or --tokenize
One step:
  train                       the loop: step, save, evaluate, sample
    advance
      start_step              enqueues one step
        enqueue_gradients
          gpt2_micro_step     for each micro-batch
            gpt2_forward      embedding; block_forward for each layer
            gpt2_backward     final layernorm, logits, loss; block_backward for each layer, last to first; embedding
          gpt2_norm           global norm of the gradients
        gpt2_update           AdamW or Muon: update_params of llmc/parallel/update.h
      finish_step             reads the loss and the norm
Most lines of block_forward are one operation of llmc/. On one rank, a call of llmc/parallel/ is one too, or a no-op.
*/
#include "llmc/common/check.h"               // run_error, xmalloc
#include "llmc/ops.h"                        // Ops, Gradient, StepHyper
#include "llmc/shapes/params.h"              // GPT2Config, ParamId, model_flops_per_token
#include "llmc/memory/plan.h"                // Plan, arena_create, Scratch
#include "llmc/shapes/activations.h"         // ActivationId, activation_slot: saved or recomputed
#include "llmc/memory/gpt2_plan.h"           // ModelOptions, GPT2Tensors, gpt2_plan
#include "llmc/memory/activation_offload.h"  // ActivationOffload: --offload 4
#include "llmc/shapes/layout.h"              // ParamLayout, layer_bucket
#include "llmc/parallel/zero.h"              // Zero: -z, --offload
#include "llmc/parallel/update.h"            // Update: the optimizer, bucket by bucket
#include "llmc/parallel/tensor_parallel.h"   // TensorParallel: -tp; row_parallel_forward
#include "llmc/checkpoint/checkpoint.h"      // ModelState, checkpoint_load
#include "llmc/run/backends.h"               // Backend, backend_choose
#include "llmc/run/train_args.h"             // TrainArgs
#include "llmc/run/flag_table.h"             // flag_table, read_flags
#include "llmc/run/ranks.h"                  // Groups, open_groups, require_same_items, agreed_signal
#include "llmc/run/fit.h"                    // choose_options, require_memory
#include "llmc/run/resolve.h"                // resolve_flags
#include "llmc/run/model_source.h"           // ModelSource, model_source
#include "llmc/run/data.h"                   // RunData, data_open, require_same_data_state
#include "llmc/run/run_dir.h"                // claim_run_dir, open_run_dir, evaluations_read
#include "llmc/run/text.h"                   // RunText, find_tokenizer, prompt_tokens
#include "llmc/run/generate.h"               // Generator, generate, generate_samples
#include "llmc/run/tokenize.h"               // tokenize_corpus, train_bpe
#include "llmc/run/evaluate.h"               // EvalModel, validate, score_hellaswag, eval_run
#include "llmc/run/export.h"                 // export_model
#include "llmc/run/banner.h"                 // print_banner, plan_memory, print_version
#include "llmc/run/profile.h"                // Profile: --profile
#include "llmc/run/nan_check.h"              // NanCheck: --nan-check
#include "llmc/self_check/self_check.h"      // self_check_print, self_check_at_start, self_check_child
#include "llmc/run/logger.h"                 // Logger
#include "llmc/run/schedule.h"               // step_hyper, is_due, skip_reason, Evaluations

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
// with other blocks. With -tp, N / t rows are this rank's.
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
    // Buffers that all layers share. Each has one user at a time, from scratch_acquire to scratch_release.
    // hidden_scratch is also tp.partial: with -tp, row_parallel_forward and the embeddings' forward acquire it.
    Scratch mlp_scratch;        // (N,4C) of the MLP, the logits, dqkv or Muon's matrices
    Scratch norm_scratch;       // (N,C) a layernorm's output
    Scratch hidden_scratch;     // (N,C) the gradient of a matmul's input; with -tp also terms of sums over the ranks
    Scratch gathered_gradient;  // (N,C) with -tp, dresidual of all ranks
    int classifier_rows;        // rows of a logits chunk
    ActivationOffload offload;  // --offload 4: inputs of blocks in host memory
    // ---- ranks
    Groups groups;
    LocalShape local;  // this rank's heads, MLP channels and vocabulary
    ParamLayout layout;
    TensorParallel tp;
    Zero zero;
    // ---- optimizer
    Update update;
    real *loss, *norm_squared;  // tensors.results[0] and [1]
    // ---- the current micro-batch
    int B, T;                // HellaSwag and decoding use another shape than options.B and options.T
    int decode_from;         // position of the first row in the key-value cache; -1: not decoding
    PackedSequences packed;  // sequences of other lengths than T
    real update_targets;     // targets of the whole update, over all micro-batches and ranks
    int next_slot;           // of tensors.staged
    // [first of its step][last]: a micro-step sets gradients or adds to them, and reduces them over the ranks or not
    DeviceGraph *graphs[2][2];  // CUDA graph; NULL: not captured
    bool has_run;               // every variant of a micro-step has run without a graph
} GPT2;

// ---- pointers to one tensor of one layer

static const floatX *param(const GPT2 *m, ParamId id, int layer) { return zero_param(&m->zero, id, layer); }
static Gradient grad(const GPT2 *m, ParamId id, int layer) { return zero_grad(&m->zero, id, layer); }

// bytes of one slot
static size_t activation_bytes(const GPT2 *m, ActivationId id) {
    return plan_slot_bytes(plan_find(&m->plan, activation_specs[id].name));
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
    bool last_of_segment = ends_segment(&m->options.recompute, l);
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

// The arena has set the pointers of the state; this sets the types.
static void open_state(GPT2 *m) {
    GPT2Tensors *t = &m->tensors;
    t->optimizer.moments = t->optimizer_slots.moments = m->options.moments;
    t->grads.dtype = m->options.gradients;
    t->stored_grads.dtype = t->reduced_chunks.dtype = t->slot_grads.dtype = stored_gradients(&m->options);
    m->loss = t->results;
    m->norm_squared = t->results + 1;
    zero_open(&m->zero, &m->layout, m->groups.dp, m->ops, m->device, &m->exec);
    m->zero.params = t->gathered_params ? t->gathered_params : t->optimizer.params;
    m->zero.stored_params = t->optimizer.params;
    m->zero.grads = t->grads;
    m->zero.stored_grads = t->stored_grads.at ? t->stored_grads : t->grads;
    m->zero.reduced_chunks = t->reduced_chunks;
    update_open(&m->update, &m->zero, m->groups.tp, &t->optimizer, &t->optimizer_slots, t->slot_grads,
                t->update_ranges);
}

static void open_backend(GPT2 *m) {
    const ModelOptions *o = &m->options;
    const GPT2Tensors *t = &m->tensors;
    size_t partials_bytes = o->backend->partials_bytes(&m->config, &m->local, o->B, o->T);
    m->exec.fallback = o->fallback;
    size_t workspace_bytes = o->backend->matmul_workspace_bytes(&m->config, &m->local, o->B, o->T);
    o->backend->open(&m->exec, t->partials, partials_bytes, t->matmul_workspace, workspace_bytes, o->tf32);
    backend_share_autotune_cache(&m->exec, m->groups.world);
    m->exec.bf16_inputs = o->round_matmul_inputs;
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
    m->mlp_scratch = scratch_open(m->arena, &m->plan, "mlp_scratch", m->device, &m->exec);
    m->norm_scratch = scratch_open(m->arena, &m->plan, "norm_scratch", m->device, &m->exec);
    m->hidden_scratch = scratch_open(m->arena, &m->plan, "hidden_scratch", m->device, &m->exec);
    m->gathered_gradient = scratch_open(m->arena, &m->plan, "gathered_gradient", m->device, &m->exec);
    open_state(m);
    tp_open(&m->tp, m->ops, m->device, &m->exec, m->groups.tp, m->local.vocab, &m->hidden_scratch,
            m->tensors.statistics);
    open_backend(m);
    offload_open(&m->offload, m->device, &m->exec, m->tensors.block_inputs, m->tensors.activations[RESIDUAL3],
                 activation_bytes(m, RESIDUAL3), num_block_inputs(&options, config.num_layers));
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
    for (int i = 0; i < 4; i++) {
        if (m->graphs[i / 2][i % 2]) { m->device->graph_destroy(m->graphs[i / 2][i % 2]); }
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
    ModelState state = {&m->config, m->device, m->tensors.optimizer, m->options.sharding, m->groups.world, NULL};
    return state;
}

// Loads the weights from a model file and closes it; a resumed run also loads the moments of its checkpoint. Without a
// file, draws initial weights.
static void gpt2_load(GPT2 *m, ModelSource *source, uint64_t seed) {
    ModelState state = gpt2_state(m);
    if (!source->has_weights) {
        weights_init(&state, seed);
    } else if (*source->checkpoint) {
        checkpoint_load(source->checkpoint, &source->weights, &state);
    } else {
        state_load(&source->weights, "", &state);
    }
    if (source->has_weights) { model_close(&source->weights); }
    zero_params_changed(&m->zero);
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. forward

// Returns the buffer from which the next matmul reads a layernorm's output: `saved`, or norm_scratch if that is NULL.
// Release it with norm_release. The layernorm writes to *own. On one rank that is the buffer. With -tp *own has this
// rank's rows and the buffer those of all ranks; it is norm_scratch at -ra 1, where `saved` has this rank's rows.
static floatX *norm_acquire(GPT2 *m, floatX *saved, floatX **own) {
    bool own_rows = m->tp.splits_rows && m->options.gather_again;  // `saved` has this rank's rows alone
    floatX *all = saved && !own_rows ? saved : scratch_acquire(&m->norm_scratch, "layernorm", m->tp.all_elements);
    *own = saved && own_rows ? saved : all + m->tp.own_offset;
    return all;
}

static void norm_release(GPT2 *m, const floatX *output) {
    if (output == m->norm_scratch.memory) { scratch_release(&m->norm_scratch); }
}

// Returns layernorm(in) (N,C) for the next matmul, all-gathered with -tp. Release it with norm_release.
static const floatX *layernorm_output(GPT2 *m, floatX *saved, real *mean, real *rstd, const floatX *in,
                                      const floatX *weight, const floatX *bias) {
    floatX *own, *output = norm_acquire(m, saved, &own);
    m->ops->layernorm_forward(own, mean, rstd, in, weight, bias, m->tp.own_rows, m->config.channels, &m->exec);
    rows_all_gather(&m->tp, output, own);
    rows_wait(&m->tp, output);
    return output;
}

// Attention of each sequence of the micro-batch: B sequences of T tokens, or packed sequences of any length.
static void attention_forward(GPT2 *m, const BlockActivations *a) {
    int NH = m->local.heads, HS = m->local.head_size;
    if (!m->packed.ranges) { m->ops->attention_forward(a->atty, a->lse, a->qkv, m->B, m->T, NH, HS, &m->exec); }
    for (int i = 0; i < m->packed.count; i++) {
        Range rows = m->packed.ranges[i];
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
    for (int i = 0; i < m->packed.count; i++) {
        Range rows = m->packed.ranges[i];
        size_t at = rows.offset * (size_t)m->local.attn_dim;
        m->ops->attention_backward(dqkv + 3 * at, datty + at, a->qkv + 3 * at, a->atty + at,
                                   a->lse + rows.offset * (size_t)NH, 1, (int)rows.count, NH, HS, &m->exec);
    }
}

// Block l of the current micro-batch: input (N,C) -> residual3 (N,C), N = B*T rows. On one rank A is C, d_ff is 4C, and
// row_parallel_forward is matmul_forward. With -tp a rank has some rows of the residual stream, and all rows of its own
// heads and its own columns of the MLP: layernorm_output all-gathers, row_parallel_forward reduce-scatters.
static void block_forward(GPT2 *m, int l) {
    const Ops *ops = m->ops;
    const BlockParams *p = &m->block_params[l];
    const BlockActivations *a = &m->block_activations[l];
    Exec *ex = &m->exec;
    int N = m->B * m->T, C = m->config.channels;
    int NH = m->local.heads, HS = m->local.head_size, A = m->local.attn_dim, d_ff = m->local.d_ff;

    // residual2 = input + attproj(attention(qkv(ln1(input))))
    const floatX *ln1 = layernorm_output(m, a->ln1, a->ln1_mean, a->ln1_rstd, a->input, p->ln1w, p->ln1b);
    ops->matmul_forward(a->qkv, ln1, p->qkvw, p->qkvb, NULL, no_activation, N, C, 3 * A, ex);
    norm_release(m, ln1);
    if (m->decode_from < 0) {
        attention_forward(m, a);
    } else {  // new positions of one sequence, over the key-value cache
        ops->attention_decode(a->atty, a->keys, a->values, a->qkv, m->decode_from, N, NH, HS, ex);
    }
    row_parallel_forward(&m->tp, a->residual2, a->atty, p->attprojw, p->attprojb, a->input, N, A, C);

    // residual3 = residual2 + fcproj(gelu(fc(ln2(residual2))))
    const floatX *ln2 = layernorm_output(m, a->ln2, a->ln2_mean, a->ln2_rstd, a->residual2, p->ln2w, p->ln2b);
    floatX *gelu = a->fch_gelu ? a->fch_gelu : scratch_acquire(&m->mlp_scratch, "fch_gelu", (size_t)N * (size_t)d_ff);
    if (m->options.fuse_gelu) {
        Activation activation = {MLP_ACTIVATION, a->fch, no_gradient};
        ops->matmul_forward(gelu, ln2, p->fcw, p->fcb, NULL, activation, N, C, d_ff, ex);
    } else {
        ops->matmul_forward(a->fch, ln2, p->fcw, p->fcb, NULL, no_activation, N, C, d_ff, ex);
        ops->activation_forward(gelu, a->fch, MLP_ACTIVATION, (size_t)N * (size_t)d_ff, ex);
    }
    norm_release(m, ln2);
    row_parallel_forward(&m->tp, a->residual3, gelu, p->fcprojw, p->fcprojb, a->residual2, N, d_ff, C);
    if (!a->fch_gelu) { scratch_release(&m->mlp_scratch); }
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

// Poisons activations first..last of block l that will be recomputed, in the slots that they share with other blocks.
static void poison_recomputed(GPT2 *m, int l, ActivationId first, ActivationId last) {
    for (ActivationId id = first; id <= last; id = (ActivationId)(id + 1)) {
        if (is_saved(m, id, l) || activation_specs[id].home != IN_SLOTS) { continue; }
        device_poison(m->device, activation(m, id, l), activation_bytes(m, id), &m->exec);
    }
}

// Waits for block l's parameters (-z 3, --offload 3) and for memory for its output (--offload 4), and begins to fetch
// the next block's parameters. Without these flags it does nothing.
static void block_forward_begin(GPT2 *m, int l) {
    zero_params_wait(&m->zero, layer_bucket(l), layer_bucket(l + 1));
    offload_acquire(&m->offload, output_of_block(&m->options.recompute, l));
}

// Begins to store block l's output in host memory (--offload 4), and poisons what the backward recomputes.
static void block_forward_end(GPT2 *m, int l) {
    offload_store(&m->offload, output_of_block(&m->options.recompute, l));
    poison_recomputed(m, l, LN1, FCH_GELU);
    // block l has read the output of block l - 1; without a backward both are in one slot
    if (l > 0 && m->block_activations[l].input != m->block_activations[l].residual3) {
        poison_recomputed(m, l - 1, RESIDUAL3, RESIDUAL3);
    }
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

// Runs the staged micro-batch through all blocks. gpt2_classify goes on with the final layernorm and the loss, in
// chunks with their gradients, since the logits of all rows would be the largest tensor.
static void gpt2_forward(GPT2 *m) {
    embedding_forward(m);
    for (int l = 0; l < m->config.num_layers; l++) {
        block_forward_begin(m, l);
        block_forward(m, l);
        block_forward_end(m, l);
    }
}

// The final layernorm, then logits and losses in chunks of rows: *loss += scale * sum of losses. If dlnf (N,C) is
// given, it becomes the gradient of scale * loss (with -tp, this rank's part of the sum), and wte's gradient is set or
// added to per mode.
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
        ops->matmul_forward(logits, lnf + at, wte, NULL, NULL, no_activation, rows, C, vocab, ex);
        vocab_parallel_classifier(&m->tp, losses + row, logits, m->tensors.targets + row, dlnf ? scale : 0, rows,
                                  m->config.vocab_size);
        if (dlnf) {  // the classifier overwrote the logits with dlogits
            GradMode chunk_mode = row == 0 ? mode : GRAD_ADD;
            ops->matmul_backward(dlnf + at, grad(m, WTE, 0), no_gradient, logits, lnf + at, wte, no_activation,
                                 chunk_mode, rows, C, vocab, ex);
        }
        scratch_release(&m->mlp_scratch);
    }
    norm_release(m, lnf);
    ops->loss_sum(m->loss, losses, scale, N, ex);
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. backward

// Returns a layernorm's output for the backward. If it was not saved, we recompute it from the saved mean and rstd,
// with the same bits. With -tp this begins the all-gather of its rows, unless -ra 0 saved the gathered rows: call
// rows_wait before reading it. Release it with norm_release.
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

// At -r 4, repeats the attention half of block_forward for the last block of a segment, with the same bits.
static void recompute_attention(GPT2 *m, int l) {
    const BlockParams *p = &m->block_params[l];
    const BlockActivations *a = &m->block_activations[l];
    int N = m->B * m->T, C = m->config.channels, A = m->local.attn_dim;
    if (!a->recomputes_attention) { return; }
    const floatX *ln1 = recompute_layernorm(m, a->ln1, a->input, a->ln1_mean, a->ln1_rstd, p->ln1w, p->ln1b);
    rows_wait(&m->tp, ln1);
    m->ops->matmul_forward(a->qkv, ln1, p->qkvw, p->qkvb, NULL, no_activation, N, C, 3 * A, &m->exec);
    norm_release(m, ln1);
    attention_forward(m, a);
    row_parallel_forward(&m->tp, a->residual2, a->atty, p->attprojw, p->attprojb, a->input, N, A, C);
}

// From -r 3 on, recomputes the MLP's up-projection.
static void recompute_fch(GPT2 *m, int l, const floatX *ln2) {
    const BlockParams *p = &m->block_params[l];
    const BlockActivations *a = &m->block_activations[l];
    if (!a->recomputes_fch) { return; }
    rows_wait(&m->tp, ln2);
    m->ops->matmul_forward(a->fch, ln2, p->fcw, p->fcb, NULL, no_activation, m->B * m->T, m->config.channels,
                           m->local.d_ff, &m->exec);
}

// From -r 1 on, recomputes GELU in m->mlp_scratch and returns it. Below, returns the saved tensor.
static floatX *recompute_gelu(GPT2 *m, const BlockActivations *a) {
    size_t elements = (size_t)(m->B * m->T) * (size_t)m->local.d_ff;
    if (a->fch_gelu) { return a->fch_gelu; }
    floatX *gelu = scratch_acquire(&m->mlp_scratch, "fch_gelu", elements);
    m->ops->activation_forward(gelu, a->fch, MLP_ACTIVATION, elements, &m->exec);
    return gelu;
}

// Returns dresidual (N,C) for the next matmul. With -tp, begins to all-gather this rank's rows into gathered_gradient.
static const floatX *gather_gradient(GPT2 *m, floatX *dresidual) {
    if (!m->tp.splits_rows) { return dresidual; }
    floatX *all = scratch_acquire(&m->gathered_gradient, "dresidual", m->tp.all_elements);
    rows_all_gather(&m->tp, all, dresidual);
    return all;
}

static void release_gradient(GPT2 *m) {
    if (m->tp.splits_rows) { scratch_release(&m->gathered_gradient); }
}

// block_forward in reverse. dresidual (N,C) enters as the gradient of residual3 and leaves as the gradient of input: a
// residual addition passes the gradient on, and layernorm_backward adds the gradient through the layernorm. With -tp,
// gather_gradient and recompute_layernorm begin their all-gathers early, and the linear layer that reads the result
// waits; column_parallel_backward returns this rank's rows of partial_dln2 and partial_dln1, summed over the ranks.
static void block_backward(GPT2 *m, int l, floatX *dresidual, GradMode mode) {
    const BlockParams *p = &m->block_params[l];
    const BlockGrads *g = &m->block_grads[l];
    const BlockActivations *a = &m->block_activations[l];
    Exec *ex = &m->exec;
    int N = m->B * m->T, C = m->config.channels, A = m->local.attn_dim, d_ff = m->local.d_ff;

    recompute_attention(m, l);
    // the MLP, from the down-projection to ln2
    const floatX *dout = gather_gradient(m, dresidual);
    const floatX *ln2 = recompute_layernorm(m, a->ln2, a->residual2, a->ln2_mean, a->ln2_rstd, p->ln2w, p->ln2b);
    recompute_fch(m, l, ln2);
    floatX *gelu = recompute_gelu(m, a), *dfch = gelu;  // dfch overwrites gelu; the matmul multiplies by gelu'(fch)
    // Which matmul adds up fcb's gradient, the column sums of dfch? cuBLASLt writes sums in the type of the matmul's
    // output: the one that writes dfch if the gradient is floatX, else the one that reads dfch.
    bool floatX_bias = g->fcb.dtype == DT_FLOATX;
    Activation activation = {MLP_ACTIVATION, a->fch, floatX_bias ? g->fcb : no_gradient};
    row_parallel_backward(&m->tp, dfch, g->fcprojw, g->fcprojb, dout, gelu, p->fcprojw, activation, mode, N, d_ff, C);
    release_gradient(m);
    floatX *partial_dln2 = scratch_acquire(&m->hidden_scratch, "dln2", m->tp.all_elements);
    const floatX *dln2 = column_parallel_backward(&m->tp, partial_dln2, g->fcw, floatX_bias ? no_gradient : g->fcb,
                                                  dfch, ln2, p->fcw, mode, N, C, d_ff);
    norm_release(m, ln2);
    m->ops->layernorm_backward(dresidual, g->ln2w, g->ln2b, dln2, a->residual2, p->ln2w, a->ln2_mean, a->ln2_rstd, mode,
                               m->tp.own_rows, C, ex);
    scratch_release(&m->hidden_scratch);
    if (!a->fch_gelu) { scratch_release(&m->mlp_scratch); }

    // attention, from its projection to ln1
    dout = gather_gradient(m, dresidual);
    const floatX *ln1 = recompute_layernorm(m, a->ln1, a->input, a->ln1_mean, a->ln1_rstd, p->ln1w, p->ln1b);
    floatX *datty = scratch_acquire(&m->hidden_scratch, "datty", (size_t)N * (size_t)A);
    row_parallel_backward(&m->tp, datty, g->attprojw, g->attprojb, dout, a->atty, p->attprojw, no_activation, mode, N,
                          A, C);
    release_gradient(m);
    floatX *dqkv = scratch_acquire(&m->mlp_scratch, "dqkv", (size_t)N * 3 * (size_t)A);
    attention_backward(m, a, dqkv, datty);
    scratch_release(&m->hidden_scratch);
    floatX *partial_dln1 = scratch_acquire(&m->hidden_scratch, "dln1", m->tp.all_elements);
    const floatX *dln1 =
        column_parallel_backward(&m->tp, partial_dln1, g->qkvw, g->qkvb, dqkv, ln1, p->qkvw, mode, N, C, 3 * A);
    norm_release(m, ln1);
    // The keys' bias shifts all scores of a query alike, so its gradient is 0: otherwise AdamW turns rounding noise
    // into full-size updates.
    m->device->enqueue_fill(gradient_at(g->qkvb, (size_t)A).at, 0, (size_t)A * dtype_size(g->qkvb.dtype), ex);
    m->ops->layernorm_backward(dresidual, g->ln1w, g->ln1b, dln1, a->input, p->ln1w, a->ln1_mean, a->ln1_rstd, mode,
                               m->tp.own_rows, C, ex);
    scratch_release(&m->hidden_scratch);
    scratch_release(&m->mlp_scratch);
}

// Computes the gradients of the embeddings. wte's is added to the one from the logits.
static void embedding_backward(GPT2 *m, floatX *dresidual, GradMode mode) {
    const floatX *dout = gather_gradient(m, dresidual);
    vocab_parallel_embedding_backward(&m->tp, grad(m, WTE, 0), grad(m, WPE, 0), dout, m->tensors.tokens, m->packed,
                                      mode, m->B, m->T, m->config.max_seq_len, m->config.channels);
    release_gradient(m);
}

// Runs the final layernorm, logits and loss, forward and backward. dresidual = the gradient of the last block's output.
static void classifier_forward_backward(GPT2 *m, floatX *dresidual, real scale, GradMode mode) {
    int C = m->config.channels;
    floatX *partial_dlnf = scratch_acquire(&m->hidden_scratch, "dlnf", m->tp.all_elements);
    zero_grads_acquire(&m->zero, embeddings_bucket());
    gpt2_classify(m, partial_dlnf, scale, mode);
    const floatX *dlnf = rows_reduce_scatter(&m->tp, partial_dlnf);
    m->device->enqueue_fill(dresidual, 0, (size_t)m->tp.own_rows * (size_t)C * sizeof(floatX), &m->exec);
    rows_wait(&m->tp, dlnf);
    zero_grads_acquire(&m->zero, final_bucket(&m->layout));
    m->ops->layernorm_backward(dresidual, grad(m, LNFW, 0), grad(m, LNFB, 0), dlnf, last_residual(m), param(m, LNFW, 0),
                               statistic(m, LNF_MEAN, 0), statistic(m, LNF_RSTD, 0), mode, m->tp.own_rows, C, &m->exec);
    scratch_release(&m->hidden_scratch);
}

// At -r 4, if a checkpoint segment ends at block l, runs the forward of the segment's other blocks again. Block l
// itself is recomputed by block_backward.
static void recompute_segment(GPT2 *m, int l) {
    const Recompute *r = &m->options.recompute;
    if (!ends_segment(r, l)) { return; }
    offload_wait(&m->offload, input_of_block(r, segment_begin(r, l)));
    for (int k = segment_begin(r, l); k < l; k++) {
        zero_params_wait(&m->zero, layer_bucket(k), layer_bucket(k + 1));
        block_forward(m, k);
    }
}

// Waits for block l's parameters and for memory for its gradients, and begins to fetch the parameters read next.
static void block_backward_begin(GPT2 *m, int l) {
    zero_params_wait(&m->zero, layer_bucket(l), layer_bucket(backward_next(&m->options.recompute, l)));
    zero_grads_acquire(&m->zero, layer_bucket(l));
}

// Begins to reduce block l's gradients over the ranks, and poisons the activations that the backward recomputed.
static void block_backward_end(GPT2 *m, int l) {
    poison_recomputed(m, l, LN1, RESIDUAL3);
    zero_grads_reduce(&m->zero, layer_bucket(l));
}

// Computes the loss after gpt2_forward, and sets or adds to every parameter's gradient. scale is 1 / targets of the
// whole update. With -z, gradients are reduced over the data-parallel ranks during the next block's backward.
static void gpt2_backward(GPT2 *m, real scale) {
    GradMode mode = zero_grad_mode(&m->zero);
    floatX *dresidual = m->tensors.dresidual;
    zero_grads_prefetch(&m->zero);
    classifier_forward_backward(m, dresidual, scale, mode);
    zero_grads_reduce(&m->zero, final_bucket(&m->layout));
    for (int l = m->config.num_layers - 1; l >= 0; l--) {
        recompute_segment(m, l);
        block_backward_begin(m, l);
        block_backward(m, l, dresidual, mode);
        block_backward_end(m, l);
    }
    embedding_backward(m, dresidual, mode);
    zero_grads_reduce(&m->zero, embeddings_bucket());
    zero_grads_wait(&m->zero);
}

// Runs forward and backward of the staged micro-batch, number `micro` of its step. A GPU replays both as one CUDA
// graph, which saves the host hundreds of launches. The first step runs without graphs, since it autotunes matmuls and
// counts the bytes sent. The second captures them, once more without PDL if the driver refuses a graph. A graph cannot
// wait for a collective or a copy that began outside of it, so we wait before the capture and before each launch.
static void gpt2_micro_step(GPT2 *m, int micro) {
    bool first = micro == 0, last = micro == m->options.micro_steps - 1;
    DeviceGraph **graph = &m->graphs[first][last];
    bool uses_graph = m->device->capture_begin && m->options.graph && m->groups.world->backend->capturable &&
                      !m->packed.ranges && m->has_run;  // a graph keeps update_targets; packed sequences change it
    for (bool done = false; !done;) {                   // a second time if the driver refuses the graph
        zero_micro_step(&m->zero, micro, m->options.micro_steps);
        if (uses_graph) { zero_wait_all(&m->zero); }
        if (uses_graph && *graph) {
            m->device->graph_launch(*graph, &m->exec);
            return;
        }
        if (uses_graph) { m->device->capture_begin(&m->exec); }
        m->offload.stores = true;
        gpt2_forward(m);
        gpt2_backward(m, 1 / m->update_targets);
        m->offload.stores = false;
        m->has_run |= last;
        if (uses_graph) { *graph = m->device->capture_end(&m->exec); }
        done = !uses_graph || *graph;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. update

// Blocks until enqueued work is done. Stops the run if another rank is silent. Event 0 is free: no step is pending.
static void finish_work(GPT2 *m) {
    m->device->event_record(0, &m->exec);
    comm_event_synchronize(0, m->groups.world, &m->exec);
}

// Sums the loss and the squared norm of the gradients over all ranks. Both stay on the device, where gpt2_update reads
// them. All ranks of a tensor-parallel group have computed the same loss, so only tp_rank 0 contributes it.
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
    comm_wait(comm_all_reduce(m->loss, 2, DT_REAL, world, &m->exec), world, &m->exec);
}

// Adds 0 * loss to *norm_squared. If the loss is not finite, the norm becomes NaN, and the update skips the step.
static void carry_nan_to_norm(GPT2 *m) { m->ops->loss_sum(m->norm_squared, m->loss, 0, 1, &m->exec); }

static void gpt2_update(GPT2 *m, const StepHyper *hyper) {
    comm_watch(m->groups.world);  // if the host has read the norm, that ended the watch
    carry_nan_to_norm(m);
    floatX *matrices = scratch_acquire(&m->mlp_scratch, "Muon's matrices", muon_scratch_elements(&m->layout));
    update_params(&m->update, matrices, m->norm_squared, hyper);
    scratch_release(&m->mlp_scratch);
    zero_params_changed(&m->zero);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. generation

// Downloads the logits (V) of the token that follows row `row` of the last forward.
static void gpt2_logits(GPT2 *m, int row, float *logits) {
    int C = m->config.channels, V = m->config.vocab_size, vocab = m->local.vocab;
    Comm *tp_comm = m->groups.tp;
    const floatX *lnf = final_layernorm_output(m);
    floatX *all = scratch_acquire(&m->mlp_scratch, "logits", (size_t)vocab * (size_t)m->local.tp_size);
    floatX *own = all + (size_t)vocab * (size_t)m->local.tp_rank;
    m->ops->matmul_forward(own, lnf + (size_t)row * (size_t)C, param(m, WTE, 0), NULL, NULL, no_activation, 1, C, vocab,
                           &m->exec);
    comm_wait(comm_all_gather(all, own, (size_t)vocab, DT_FLOATX, tp_comm, &m->exec), tp_comm, &m->exec);
    norm_release(m, lnf);
    floatX *host = (floatX *)xmalloc((size_t)V * sizeof(floatX));
    finish_work(m);
    m->device->download(host, all, (size_t)V * sizeof(floatX));
    for (int v = 0; v < V; v++) { logits[v] = (float)to_real(host[v]); }
    free(host);
    scratch_release(&m->mlp_scratch);
}

// Generator.prefill. Runs the tokens in chunks, each of at most as many tokens as the activations have rows.
static void gpt2_prefill(void *model, const int *tokens, int from, int n, float *logits) {
    GPT2 *m = (GPT2 *)model;
    int chunk = (int)chunk_size((size_t)m->options.B * (size_t)m->options.T, m->local.tp_size);
    for (int done = 0, count; done < n; done += count) {
        count = n - done < chunk ? n - done : chunk;
        m->device->upload(m->tensors.tokens, tokens + done, (size_t)count * sizeof(int));
        set_batch(m, 1, count, from + done);
        gpt2_forward(m);
        gpt2_logits(m, count - 1, logits);
    }
    set_batch(m, m->options.B, m->options.T, -1);
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
    Comm *launched;  // all ranks that mpirun started; main closes it
    Groups groups;
    ModelSource source;
    char chosen[FLAG_TEXT];  // the level that -r auto chose, as text for the banner
    GPT2 model;
    RunData data;
    RunText text;
    Outliers outliers;
    Evaluations evaluations;
    Logger log;
    Profile profile;
    long long step, max_steps;    // finished steps (saved <= step <= enqueued), and their number at the end
    long long enqueued;           // steps enqueued on the device; a GPU runs one ahead of `step`
    StepReport reports[2];        // of the steps on the device, double-buffered: step n is at n % 2
    long long saved;              // step of the newest step_ folder that this run has saved or resumed; 0: none
    long long planned_steps;      // max_steps of the run when its checkpoint was saved; 0 for a new run
    double started, last_finish;  // seconds
    int lock;                     // file descriptor of the locked run directory; -1: none
} Run;

// ---- checkpoints

static cJSON *run_state(const Run *run) {
    cJSON *state = cJSON_CreateObject();
    cJSON_AddNumberToObject(state, "step", (double)run->step);
    cJSON_AddNumberToObject(state, "max_steps", (double)run->max_steps);
    data_state_add(state, &run->data, run->args);
    outliers_add(state, &run->outliers);
    return state;
}

// True if DONE_<step> can be written now. The last step's file has to wait for its evaluation.
static bool can_mark_done(const Run *run, bool ending) {
    return run->step < run->max_steps || !evaluation_due(&run->evaluations, run->args, run->step, ending);
}

// Saves RUN/name. Takes ownership of `state`, the content of state.json. The logs reach the disk first: otherwise a
// power cut could leave a checkpoint without its steps in metrics.jsonl. If the save fails, we warn and the next save
// tries again. If the run is `ending` there is no next one, so the failure is an error.
static bool save_checkpoint(Run *run, const char *name, cJSON *state, bool ending) {
    double start = now_seconds();
    uint32_t crcs[2];
    ModelState model = gpt2_state(&run->model);
    model.tokenizer = run->text.tokenizer;
    finish_work(&run->model);
    logger_sync(&run->log);
    bool saved = checkpoint_save(run->args->run_dir, name, &model, state, ending, crcs);
    if (saved) {  // two runs with the same CRC32Cs have the same bits
        logger_print(run->step, "saved %s/%s | paused %.1f ms | weights %08x, optimizer %08x", run->args->run_dir, name,
                     1000 * (now_seconds() - start), crcs[0], crcs[1]);
    }
    cJSON_Delete(state);
    return saved;
}

// If this step's checkpoint is saved, writes DONE_<step>, which marks a whole checkpoint as in llm.c.
static void mark_done(Run *run, bool ending) {
    if (run->step == 0 || run->saved != run->step || !can_mark_done(run, ending)) { return; }
    checkpoint_mark_done(run->args->run_dir, run->step, run->groups.world, ending);
}

static void save_step(Run *run, bool ending) {
    const TrainArgs *a = run->args;
    char name[32];
    snprintf(name, sizeof name, "step_%08lld", run->step);
    if (!save_checkpoint(run, name, run_state(run), ending)) { return; }
    run->saved = run->step;
    mark_done(run, ending);
    if (run->groups.world->rank == 0) { checkpoint_prune(a->run_dir, a->keep_checkpoints, a->major_every); }
}

// Counts a validation for --patience, and saves RUN/best for --keep-best.
static void note_validation(Run *run, double loss, bool ending) {
    Evaluations *e = &run->evaluations;
    comm_broadcast_host(&loss, sizeof loss, 0, run->groups.world);  // the ranks decide alike
    evaluations_add(e, run->step, loss);
    evaluations_apply_patience(e, run->args->patience);
    if (!keeps_best(run->args) || !(logged_loss(loss) < e->best)) { return; }
    cJSON *state = run_state(run);
    cJSON_AddNumberToObject(state, "val_loss", logged_loss(loss));
    cJSON_AddNumberToObject(state, "val_tokens", (double)e->tokens);
    if (save_checkpoint(run, "best", state, ending)) { e->best = logged_loss(loss); }
}

// Restores step, position in the data and outlier detectors from a checkpoint.
static void restore_run(Run *run, const char *folder) {
    char file[PATH_LENGTH];
    format_path(file, "%s/state.json", folder);
    cJSON *state = checkpoint_load_state(folder);
    require_same_data_state(state, &run->data, run->args, file);
    outliers_restore(&run->outliers, state, file);
    run->step = resumed_step(state, run->args, run->source.step, file);
    run->saved = has_ending(folder, "/best") ? 0 : run->step;
    run->planned_steps = json_whole(state, "max_steps", 1, 1e12, file);
    data_state_seek(state, &run->data, file);
    cJSON_Delete(state);
}

// Returns why training stops before its last step, or "" if it does not. All ranks call it and get the same answer.
static const char *stop_reason(const Run *run) {
    Comm *world = run->groups.world;
    double limit = run->args->time_limit;
    if (run->step >= run->max_steps) { return ""; }
    if (*run->evaluations.patience_over) { return run->evaluations.patience_over; }
    if (run->outliers.skipped >= MAX_SKIPS) { return "too many updates in a row were skipped"; }
    if (limit > 0 && comm_max(now_seconds() - run->started > limit, world)) { return "--time-limit is up"; }
    int signal_number = agreed_signal(world);
    return signal_number ? strsignal(signal_number) : "";
}

// ---- evaluation

static real device_number(GPT2 *m, const real *x) {
    real value;
    finish_work(m);
    m->device->download(&value, x, sizeof value);
    return value;
}

// EvalModel.sum
static double sum_over_ranks(void *model, double x) {
    GPT2 *m = (GPT2 *)model;
    Comm *dp = m->groups.dp;
    if (dp->size == 1) { return x; }
    real value = (real)x;
    m->device->upload(m->loss, &value, sizeof value);
    comm_wait(comm_all_reduce(m->loss, 1, DT_REAL, dp, &m->exec), dp, &m->exec);
    return (double)device_number(m, m->loss);
}

// EvalModel.loss: forward without gradients
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

// Validates and scores HellaSwag, unless metrics.jsonl has this step's results. A signal ends it without a result.
static void evaluate(Run *run, bool ending) {
    EvalModel model = eval_model(&run->model);
    if (run->evaluations.val < run->step) {
        Validation v = validate(&model, &run->data.val_loader, run->args->val_batches, run->text.tokenizer);
        if (agreed_signal(run->groups.world)) { return; }
        note_validation(run, v.loss, ending);  // first: a run killed before logger_val validates again
        logger_val(&run->log, run->step, v.loss, v.bits_per_byte, run->evaluations.tokens);
    }
    if (hellaswag_due(&run->evaluations, run->step)) {
        double accuracy = score_hellaswag(&model, &run->data.hellaswag);
        if (agreed_signal(run->groups.world)) { return; }
        logger_hellaswag(&run->log, run->step, accuracy);
        run->evaluations.hellaswag = run->step;
    }
}

static void show_sample(Run *run) {
    printf("sample at step %lld:\n---\n", run->step);
    Generator g = gpt2_generator(&run->model, run->args, run->text.tokenizer);
    generate(&g, run->text.prompt, run->text.prompt_length, run->args->sample_tokens, -1,
             SAMPLE_STREAM + (uint64_t)run->step);
    puts("---");
}

// ---- one step

// Reads loss and norm of step n, and decides whether its update is skipped.
static void read_results(Run *run, long long n) {
    int buffer = (int)(n % 2);
    StepReport *r = &run->reports[buffer];
    comm_event_synchronize(buffer, run->groups.world, &run->model.exec);
    const real *results = run->model.tensors.read_results + 2 * buffer;
    r->loss = (double)results[0];
    r->grad_norm = sqrt((double)results[1]);
    r->skipped = skip_reason(run->args, &run->outliers, r->loss, r->grad_norm);
}

// Enqueues each micro-batch's forward and backward, and the norm. If may_stop, returns false when the run stops between
// micro-batches; the next step overwrites the gradients. For one rank: stop_reason calls MPI, which comm_watch forbids.
static bool enqueue_gradients(Run *run, bool may_stop) {
    GPT2 *m = &run->model;
    DataLoader *loader = &run->data.train_loader;
    comm_watch(m->groups.world);
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    for (int micro = 0; micro < m->options.micro_steps; micro++) {
        if (micro > 0 && may_stop && *stop_reason(run)) { return false; }
        dataloader_next(loader);
        gpt2_stage_batch(m, loader->inputs, loader->targets, loader->packed);
        gpt2_micro_step(m, micro);
    }
    gpt2_norm(m);
    return true;
}

// For --nan-check, finds the operation that made the loss or the norm not finite, by running the step that begins with
// sequence `first` again. Weights, moments and the position in the data stay as they are.
static void find_origin(Run *run, uint64_t first, char *origin, size_t size) {
    GPT2 *m = &run->model;
    const Ops *ops = m->ops;
    OpHooks *hooks = m->exec.hooks;  // of --profile
    bool graph = m->options.graph;
    NanCheck check;
    nan_check_open(&check, hooks ? hooks->ops : ops, &m->zero);
    m->ops = m->tp.ops = m->zero.ops = &hooked_ops;
    m->exec.hooks = &check.hooks;
    m->options.graph = false;
    dataloader_seek(&run->data.train_loader, first);
    enqueue_gradients(run, false);
    bool finite = isfinite(device_number(m, m->loss)) && isfinite(device_number(m, m->norm_squared));
    m->ops = m->tp.ops = m->zero.ops = ops;
    m->exec.hooks = hooks;
    m->options.graph = graph;
    nan_check_result(&check, finite, origin, size, run->groups.world);
}

// Enqueues one step: gradients, their norm, the update. Nothing here waits for the device, unless the results are
// needed before the update. If a run of one rank stops between micro-batches, this rewinds the data and returns false.
static bool start_step(Run *run) {
    GPT2 *m = &run->model;
    DataLoader *loader = &run->data.train_loader;
    int buffer = (int)(run->enqueued % 2);
    StepReport *report = &run->reports[buffer];
    report->start_time = now_seconds();
    report->skipped = "";
    report->sent = groups_sent(&m->groups);
    *report->origin = 0;
    if (run->args->overfit) { dataloader_seek(loader, 0); }
    uint64_t first = loader->position, sequences = (uint64_t)tokens_of_update(run->args) / (uint64_t)m->T;
    m->update_targets = (real)dataloader_targets(loader, first, sequences);
    if (!enqueue_gradients(run, num_ranks(run->args) == 1)) {
        dataloader_seek(loader, first);
        return false;
    }
    m->device->enqueue_download(m->tensors.read_results + 2 * buffer, m->loss, 2 * sizeof(real), &m->exec);
    m->device->event_record(buffer, &m->exec);
    StepHyper hyper = step_hyper(run->args, run->max_steps, run->enqueued);
    report->lr = (double)hyper.learning_rate;
    if (update_waits(run->args)) {
        read_results(run, run->enqueued);
        bool finite = isfinite(report->loss) && isfinite(report->grad_norm);
        if (run->args->nan_check && !finite) { find_origin(run, first, report->origin, sizeof report->origin); }
    }
    if (!*report->skipped) { gpt2_update(m, &hyper); }
    report->sent = groups_sent(&m->groups) - report->sent;
    run->enqueued++;
    return true;
}

// Finishes the oldest pending step. Its update may have run already, and skipped itself if loss or norm was not finite.
static StepReport finish_step(Run *run) {
    StepReport *report = &run->reports[run->step % 2];
    if (!update_waits(run->args)) { read_results(run, run->step); }
    run->step++;
    double now = now_seconds(), limit = run->args->time_limit;
    report->step = run->step;
    report->ms = (now - fmax(report->start_time, run->last_finish)) * 1000;
    run->last_finish = now;
    report->seconds_left = limit > 0 ? limit - (now - run->started) : INFINITY;
    run->outliers.skipped = *report->skipped ? run->outliers.skipped + 1 : 0;
    return *report;
}

// ---- from flags to a run that can take steps. We check flags, data and memory before the banner, since building the
// model may take a minute. We check a new -o again after it, since another run may have started there.

// Phase 1 opens what the user asked for: the device, the ranks, and a run directory that no other run uses.
static void open_ranks(Run *run, const TrainArgs *a, Comm *launched) {
    memset(run, 0, sizeof *run);
    run->args = a;
    run->launched = launched;
    run->backend = backend_choose((DeviceChoice)a->device, true);
    run->groups = open_groups(a, run->backend->device, launched);
    run->lock = run->groups.world->rank == 0 ? claim_run_dir(a) : -1;
    comm_barrier(run->groups.world);  // no rank opens a checkpoint that rank 0 has not checked
}

// Phase 2 reads data and checkpoint. Each call needs the ones before it: the data's kind and vocabulary, the model's
// shape, the flags in effect (*a does not change afterwards), tokenizer, loaders, step and position, the last step.
static void open_data(Run *run, TrainArgs *a) {
    RunText *text = &run->text;
    data_open(&run->data, a);
    run->source = model_source(a, run->data.files.vocab_size);
    const GPT2Config *c = &run->source.config;
    resolve_flags(a, &run->data.train_files, c, run->backend, run->groups.world, stdout);
    require_length(a, c);
    require_rows(a);
    require_fitting_text(&run->data, a, &run->source);
    if (data_find_tokenizer(&text->file, &run->data, a, c->vocab_size)) { text->tokenizer = &text->file; }
    data_open_loaders(&run->data, a, c->vocab_size, text->tokenizer, run->groups.dp);
    if (*run->source.checkpoint) { restore_run(run, run->source.checkpoint); }
    run->max_steps = a->max_steps > 0 ? a->max_steps : data_last_step(&run->data, a, run->step);
    if (run->max_steps > run->planned_steps) { require_data_ids(&run->data, a, run->max_steps - run->step); }
    FILE *notes = a->sample_every > 0 ? stdout : NULL;
    text->prompt_length = prompt_tokens(text->tokenizer, a->prompt, c, notes, &text->prompt);
    data_open_hellaswag(&run->data, a, text->tokenizer, c->vocab_size);
    cJSON *state = run_state(run);
    cJSON_AddNumberToObject(state, "prompt_length", (double)text->prompt_length);
    require_same_input(state, &run->data, &run->source, run->groups.world);
}

// Phase 3 finds what fits: -r auto chooses its level. Stops if the disk or the memory is too small.
static ModelOptions choose_memory(Run *run) {
    const TrainArgs *a = run->args;
    Comm *world = run->groups.world;
    const GPT2Config *c = &run->source.config;
    if (a->run_dir && world->rank == 0) { require_disk_space(a, c); }
    ModelOptions options = choose_options(run->chosen, a, c, run->backend, world);
    if (!a->fit || *a->fit) { require_memory(a, c, &options, world); }  // --fit without a number has just checked
    comm_barrier(world);  // a rank's allocation must not change another rank's require_memory
    return options;
}

// Phase 4 builds the model and loads its weights.
static void build_model(Run *run, ModelOptions options) {
    const TrainArgs *a = run->args;
    const GPT2Config *c = &run->source.config;
    options.fallback = self_check_at_start(run->backend, run->groups.world, stdout);
    options.backend = profile_backend(&run->profile, a, run->backend, run->max_steps - run->step);
    gpt2_build(&run->model, *c, options, run->groups);
    if (is_gpu(run->backend)) { print_pdl(); }
    profile_attach(&run->profile, a, &run->model.exec, &run->model.zero, &run->groups);
    gpt2_load(&run->model, &run->source, (uint64_t)a->seed);
    run->enqueued = run->step;
    double peak_rate = num_ranks(a) * run->backend->peak_flops(options.tf32) / model_flops_per_token(c, a->T);
    StepReport report = {.max_steps = run->max_steps, .tokens = (double)tokens_of_update(a), .peak_rate = peak_rate};
    run->reports[0] = run->reports[1] = report;
}

// Writes config.json, and continues the logs at run->step. Evaluations that are already in the logs are not repeated.
static void open_files(Run *run) {
    const TrainArgs *a = run->args;
    Comm *world = run->groups.world;
    const char *folder = world->rank == 0 ? a->run_dir : NULL;  // the other ranks write parts of checkpoints only
    comm_barrier(world);                                        // nothing is written before every rank has its model
    open_run_dir(&run->lock, a, run->planned_steps, run->max_steps, world);
    run->evaluations = evaluations_read(a, run->data.hellaswag_path, data_val_tokens(&run->data, a), run->step, world);
    run->log =
        logger_open(folder, run->step, run->evaluations.val == run->step, run->evaluations.hellaswag == run->step);
    if (folder) {  // a kill may have come before them; the last step gets no DONE_ while its evaluation is missing
        checkpoint_prune(folder, a->keep_checkpoints, a->major_every);
        checkpoint_sync_done(folder, can_mark_done(run, true) ? -1 : run->step);
    }
}

static void run_close(Run *run) {
    logger_close(&run->log);
    profile_close(&run->profile);
    data_close(&run->data, run->args);
    text_close(&run->text);
    gpt2_free(&run->model);
    close_groups(&run->groups, run->launched);
    if (run->lock >= 0) { close(run->lock); }
}

// ---------------------------------------------------------------------------------------------------------------------
// 7. main

// Steps until pauses_after or stop_reason. With a GPU the host enqueues step n + 1, then reads loss and norm of step n.
static void advance(Run *run) {
    int ahead = update_waits(run->args) ? 0 : run->model.device->steps_ahead;
    do {
        profile_step_begin(&run->profile, run->enqueued, &run->model.exec);
        bool whole = start_step(run);
        profile_step_end(&run->profile, whole, &run->model.exec);
        if (!whole) { break; }
        if (run->enqueued - run->step > ahead) { logger_step(&run->log, finish_step(run)); }
    } while (!pauses_after(run->args, run->enqueued, run->max_steps) && !*stop_reason(run));
    while (run->step < run->enqueued) { logger_step(&run->log, finish_step(run)); }
}

// The training loop. At a pause the checkpoint comes first: a scheduler may kill the run before a long evaluation ends.
// DONE_ of the last step comes last, for a script that restarts the run until that file exists.
static void train(TrainArgs *a, Comm *launched) {
    Run run;
    open_ranks(&run, a, launched);
    open_data(&run, a);
    ModelOptions options = choose_memory(&run);
    catch_signals(a);
    print_banner(a, &run.source, &options, run.chosen, &run.data, run.groups.world, run.step, run.max_steps);
    build_model(&run, options);
    open_files(&run);
    run.started = now_seconds();
    long long sampled = run.step;
    for (bool ending = false; !ending;) {
        const char *reason = stop_reason(&run);
        ending = *reason || run.step >= run.max_steps;
        if (*reason) { logger_stopped(&run.log, run.step, run.max_steps, reason); }
        if (run.step > run.saved && is_due(run.step, a->checkpoint_every, ending)) { save_step(&run, ending); }
        require_updates(&run.outliers, &run.log, ending);
        require_progress(a, run.log.steps_seen, reason);
        if (ending && agreed_signal(run.groups.world)) { break; }  // no evaluation after a signal
        if (evaluation_due(&run.evaluations, a, run.step, ending)) {
            evaluate(&run, ending);
            mark_done(&run, ending);
        }
        if (run.step > sampled && is_due(run.step, a->sample_every, ending)) {
            show_sample(&run);
            sampled = run.step;
        }
        if (!ending && !*stop_reason(&run)) { advance(&run); }
    }
    if ((run.step < run.max_steps || received_signal) && !*run.evaluations.patience_over) { print_resume_command(a); }
    run_close(&run);
}

// Runs --generate or --eval with the trained model of -e. Notes go to stderr: stdout has only the text or the scores.
static void use_trained(TrainArgs *a, Comm *launched) {
    ModelSource source = model_source(a, BYTE_VOCABULARY);
    const GPT2Config *c = &source.config;
    require_weights(&source, a->generate ? "--generate" : "--eval", a);
    const Backend *backend = backend_choose((DeviceChoice)a->device, true);
    RunText text;
    EvalFile file;
    memset(&text, 0, sizeof text);
    resolve_flags(a, NULL, c, backend, launched, stderr);
    require_length(a, c);
    if (find_tokenizer(&text.file, a, c->vocab_size)) { text.tokenizer = &text.file; }
    if (a->generate) {
        text.prompt_length = prompt_tokens(text.tokenizer, a->prompt, c, stderr, &text.prompt);
    } else {
        eval_open(&file, a, c, text.tokenizer);
    }
    ModelOptions options = model_options(a, c, backend);
    Groups groups = open_groups(a, backend->device, launched);
    require_memory(a, c, &options, groups.world);
    options.fallback = self_check_at_start(backend, groups.world, stderr);
    GPT2 model;
    gpt2_build(&model, *c, options, groups);
    gpt2_load(&model, &source, 0);
    if (a->generate) {
        Generator g = gpt2_generator(&model, a, text.tokenizer);
        generate_samples(&g, text.prompt, text.prompt_length, source.weights.eos);
    } else {
        EvalModel scored = eval_model(&model);
        eval_run(&file, &scored);
        eval_close(&file);
    }
    gpt2_free(&model);
    close_groups(&groups, launched);
    text_close(&text);
}

#if !defined(TESTING) && !defined(WITHOUT_MAIN)
static void self_check_device(TrainArgs *a, Comm *launched) {
    (void)launched;
    self_check_print(backend_choose((DeviceChoice)a->device, true));
}

int main(int argc, char **argv) {
#define MODE_MAIN(flag, main, obeys, needs) main,
    static void (*const mains[])(TrainArgs *, Comm *) = {MODES(MODE_MAIN)};
    signal(SIGXFSZ, SIG_IGN);  // a file-size limit becomes a failed write, reported like a full disk, also in MPI
    if (self_check_is_child(argc, argv)) { return self_check_child(argv, &cpu_backend, gpu_backend); }
    Comm *launched = comm_open();  // from here on an error ends all ranks and is printed once
    TrainArgs args;
    cJSON *run_flags = read_flags(&args, argc, argv);
    args_set_ranks(&args, launched);
    share_machine(&args, launched);
    require_consistent_flags(&args);
    mains[mode_of(&args)](&args, launched);
    cJSON_Delete(run_flags);
    if (!received_signal) { require_stdout(); }  // a signal may have ended the reader of stdout too
    comm_close(launched);
    return 0;
}
#endif
