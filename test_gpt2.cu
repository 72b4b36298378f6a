/*
Tests of the whole model, with the trainer's own functions.
  1. PyTorch           loss, logits, every gradient, ten AdamW steps against dev/test/golden (float64, dev/oracle)
  2. order of sums     logits chunks, micro-batches and threads give the same numbers; recomputation the same bits
  3. initial weights   of the right deviation; padding and gaps are zero
  4. decoding          the key-value cache against the training forward; text past the end of the context
  5. memory            the arena is the plan, each planned tensor has one pointer, no operation writes past a tensor
  6. runs              a run resumed at any step has the bits of an uninterrupted run; outlier detectors
Run it in the root of the repository. One table has the tolerances of each precision.
*/
#ifndef TESTING
#define TESTING
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // main's own helpers
#include "train_gpt2.cu"
#pragma GCC diagnostic pop
#include "dev/test/faulty.h"
#include "dev/test/optimizer_fixture.h"
#include "dev/test/run_open.h"
#include "dev/test/testing.h"

// ---------------------------------------------------------------------------------------------------------------------
// tolerances and helpers

static const Backend *backend;  // the one under test

static int device_choice(void) { return backend == &cpu_backend ? DEVICE_CPU : DEVICE_AUTO; }

// communicators of one rank; they live until the program ends
static Comm *alone_host(void) {
    static Comm *host;
    if (!host) { host = comm_single(&cpu_device); }
    return host;
}

static Groups alone(void) {
    static Comm *world;
    if (!world) { world = comm_single(backend->device); }
    Groups groups = {world, world, world};
    return groups;
}

static int num_ranges(const GPT2 *m) { return m->update.list.buckets[0].num_ranges; }  // of the only bucket

// relative errors: norm of the difference / norm; of gradients and parameters, for each tensor alone
typedef struct {
    double loss, logits, gradient, grad_norm;  // of the first step, against PyTorch
    double step_loss, final;                   // of ten steps: each loss and norm; the parameters after the last step
    double order;                              // the same sums in another order
    double other_matmuls;                      // on a GPU, micro-batches of another size: see micro_batch_tolerance
    double cache;                              // logits of decoding
} Tolerance;

static const Tolerance tolerances[] = {
    {1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 1e-4, 1e-5},  // fp32
    // (the worst matmul algorithm gave a norm that was off by 1.04e-2 within ten steps)
    {1e-2, 2e-2, 5e-2, 1e-2, 2e-2, 1e-2, 1e-5, 5e-2, 2e-2},  // bf16, stored or only as matmul inputs (-f 2)
};
static const Tolerance *const tolerance = &tolerances[DT_FLOATX == DT_BF16];

// On a GPU a micro-batch or a logits chunk of another size has other matmul algorithms: every activation may round
// differently, and the tolerance is as against PyTorch. On a CPU only the sums of gradients have another order.
static double micro_batch_tolerance(void) {
    return backend == &cpu_backend ? tolerance->order : tolerance->other_matmuls;
}

static const char *likely_reasons = "";  // of the next failure

// Fails unless error <= limit. NaN fails. In the emulator's hardware mode a tolerance has a factor of 1.5 to spare.
static void assert_close(const char *name, double error, double limit) {
#ifdef SIMT
    if (simt::settings().hardware) { limit /= 1.5; }
#endif
    if (!(error <= limit)) {
        fail_msg("%s is off by %.2e, expected at most %.0e%s", name, error, limit, likely_reasons);
    }
}

static double relative_difference(double a, double b) { return fabs(a - b) / fabs(b); }

static double vector_error(const real *a, const real *b, size_t n) {
    double *x = (double *)xmalloc(2 * n * sizeof(double)), *y = x + n;
    for (size_t i = 0; i < n; i++) {
        x[i] = (double)a[i];
        y[i] = (double)b[i];
    }
    double error = relative_error(x, y, n);
    free(x);
    return error;
}

// one tensor of one layer in a flat buffer (ParamLayout)
typedef struct {
    ParamId id;
    int layer;
    size_t at, count;     // without the vocabulary's padding
    size_t padded_count;  // with it
    char name[NAME_LENGTH];
} Tensor;

enum { MAX_TENSORS = 64 };

static int list_tensors(Tensor *list, const GPT2Config *c) {
    ParamLayout layout = param_layout(c);
    int count = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        for (int layer = 0; layer < param_layers(id, c); layer++) {
            Tensor *t = &list[count++];
            t->id = id;
            t->layer = layer;
            t->at = param_offset(&layout, id, layer);
            t->count = param_used_rows(id, c) * param_cols(id, c);
            t->padded_count = param_rows(id, c) * param_cols(id, c);
            param_name(t->name, sizeof t->name, id, layer);
        }
    }
    return count;
}

// Compares two flat buffers, each tensor of each layer alone. Prints the largest error.
static void assert_blocks_close(const char *name, const real *got, const real *expected, const GPT2Config *c,
                                double limit) {
    Tensor list[MAX_TENSORS];
    char label[2 * NAME_LENGTH];
    int count = list_tensors(list, c), worst_tensor = 0;
    double worst = -1;
    for (int i = 0; i < count; i++) {
        double error = vector_error(got + list[i].at, expected + list[i].at, list[i].padded_count);
        snprintf(label, sizeof label, "%s: %s", name, list[i].name);
        assert_close(label, error, limit);
        if (error > worst) {
            worst = error;
            worst_tensor = i;
        }
    }
    print_message("    %-44s worst %-24s %.1e of %.0e\n", name, list[worst_tensor].name, worst, limit);
}

// The host's copy of a tensor of the plan, at the place of `at` in the tensor: read from the device now. On a CPU, the
// tensor itself. Valid until a tensor of the fourth model after this one is read.
static const void *on_host(const GPT2 *m, const void *at) {
    enum { MODELS = 4 };
    static struct {
        const unsigned char *arena;
        unsigned char *copy;
        size_t bytes;
    } mirrors[MODELS];
    static int next;
    if (m->device == &cpu_device) { return at; }
    int k = 0;
    while (k < MODELS && mirrors[k].arena != m->arena.device) { k++; }
    if (k == MODELS) { k = next++ % MODELS; }
    size_t arena_bytes = plan_device_bytes(&m->plan), offset = (size_t)((const unsigned char *)at - m->arena.device);
    if (mirrors[k].arena != m->arena.device || mirrors[k].bytes != arena_bytes) {
        free(mirrors[k].copy);
        mirrors[k].arena = m->arena.device;
        mirrors[k].bytes = arena_bytes;
        mirrors[k].copy = (unsigned char *)xmalloc(arena_bytes);
    }
    int i = 0;
    while (m->plan.tensors[i].lifetime == HOST || m->plan.tensors[i].offset + m->plan.tensors[i].bytes <= offset) {
        i++;
    }
    const PlanTensor *t = &m->plan.tensors[i];
    m->device->download(mirrors[k].copy + t->offset, m->arena.device + t->offset, t->bytes);
    return mirrors[k].copy + offset;
}

// Waits for all enqueued work.
static void settle(GPT2 *m) {
    m->device->event_record(0, &m->exec);
    m->device->event_synchronize(0, &m->exec);
}

// one update, with no work left on the device
static StepReport train_step(Run *run) {
    assert_true(start_step(run));
    settle(&run->model);
    return finish_step(run);
}

// runs the model over tokens (B,T)
static void forward(GPT2 *m, const int *tokens) {
    gpt2_stage_batch(m, tokens, tokens, not_packed);
    gpt2_forward(m);
    settle(m);
}

static real grad_norm(GPT2 *m) {
    gpt2_norm(m);
    return REAL_MATH(sqrt)(device_number(m, m->norm_squared));
}

// the optimizer's state, copied to the host; free it with state_free
static OptimizerState copy_state(const GPT2 *m) {
    const OptimizerState *o = &m->tensors.optimizer;
    const size_t n = m->layout.total, of_part[] = {n, n, num_second_moments(&m->layout)};
    OptimizerState copy = state_make(o->remainder, o->moments, n, n);
    for (int i = 0; i < NUM_STATE_ARRAYS; i++) {
        const StateArray a = state_array(i, o->remainder, o->moments);
        size_t bytes = state_elements(&a, of_part[a.part]) * dtype_size(a.dtype);
        if (a.exists) { memcpy(copy.array[i], on_host(m, o->array[i]), bytes); }
    }
    return copy;
}

static bool state_is(const GPT2 *m, const OptimizerState *expected) {
    OptimizerState now = copy_state(m);
    bool same = !state_difference(&now, expected, m->layout.total);
    state_free(&now);
    return same;
}

// Returns n weights with their remainders; the caller frees them.
static real *exact_weights(const OptimizerState *o, size_t n) {
    real *numbers = (real *)xmalloc(n * sizeof *numbers);
    for (size_t i = 0; i < n; i++) { numbers[i] = reference_weight(o, i); }
    return numbers;
}

// The model's weights, exactly; the caller frees them.
static real *weights(const GPT2 *m) {
    OptimizerState copy = copy_state(m);
    real *numbers = exact_weights(&copy, m->layout.total);
    state_free(&copy);
    return numbers;
}

// moments of models that store them in `real`
static const real *first_moment(const GPT2 *m) { return (const real *)on_host(m, m->tensors.optimizer.m); }
static const real *second_moment(const GPT2 *m) { return (const real *)on_host(m, m->tensors.optimizer.v); }
static const UpdateRange *ranges_of(const GPT2 *m) { return (const UpdateRange *)on_host(m, m->tensors.update_ranges); }

// Compares the state that a checkpoint saves, bit for bit.
static void assert_models_equal(const GPT2 *a, const GPT2 *b) {
    assert_int_equal(a->plan.count, b->plan.count);
    for (int i = 0; i < a->plan.count; i++) {
        const PlanTensor *t = &a->plan.tensors[i];
        const char *unsaved[] = {"grads", "update_ranges", "decode_keys", "decode_values"};
        bool saved = t->lifetime == STATE;
        for (int k = 0; k < 4; k++) { saved &= strcmp(t->name, unsaved[k]) != 0; }
        if (!saved) { continue; }
        const void *ours = on_host(a, a->arena.device + t->offset), *theirs = on_host(b, b->arena.device + t->offset);
        if (memcmp(ours, theirs, t->bytes) != 0) { fail_msg("%s differs", t->name); }
    }
}

static real *copy_block(const GPT2 *m, const real *block) {
    size_t bytes = m->layout.total * sizeof(real);
    return (real *)memcpy(xmalloc(bytes), block, bytes);
}

// gradients of a model that stores them in `real`
static const real *grads_of(const GPT2 *m) { return (const real *)on_host(m, m->tensors.grads.at); }

// Fills the gradients of all tensors with NaN: GRAD_SET must write every element.
static void poison_gradients(GPT2 *m) {
    size_t size = dtype_size(m->tensors.grads.dtype);
    const UpdateRange *ranges = ranges_of(m);
    for (int s = 0; s < num_ranges(m); s++) {
        m->device->fill((unsigned char *)m->tensors.grads.at + ranges[s].offset * size, 0xFF, ranges[s].count * size);
    }
}

// Returns the loss of one update's tokens, and leaves the gradients in the model.
static double gradients(GPT2 *m, const int *tokens, const int *targets) {
    int rows = m->B * m->T, total = rows * m->options.micro_steps;
    poison_gradients(m);
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    for (int first = 0; first < total; first += rows) {
        gpt2_stage_batch(m, tokens + first, targets + first, not_packed);
        gpt2_micro_step(m, first / rows);
    }
    return (double)device_number(m, m->loss);
}

// logits (B*T,V) of the last forward
static void read_logits(GPT2 *m, real *logits) {
    int N = m->B * m->T, V = m->config.vocab_size, Vp = m->config.padded_vocab_size;
    floatX *padded = scratch_acquire(&m->mlp_scratch, "logits", (size_t)N * (size_t)Vp);
    const floatX *lnf = final_layernorm_output(m);
    m->ops->matmul_forward(padded, lnf, param(m, WTE, 0), NULL, NULL, no_activation, N, m->config.channels, Vp,
                           &m->exec);
    settle(m);
    norm_release(m, lnf);
    const floatX *host = (const floatX *)on_host(m, padded);
    for (int i = 0; i < N * V; i++) { logits[i] = to_real(host[i / V * Vp + i % V]); }
    scratch_release(&m->mlp_scratch);
}

// ---------------------------------------------------------------------------------------------------------------------
// 1. PyTorch

enum {
    GOLDEN_B = 3,
    GOLDEN_T = 16,
    GOLDEN_V = 67,
    POSITIONS = 20,  // of the golden model
    GOLDEN_STEPS = 10,
    GOLDEN_ROWS = GOLDEN_B * GOLDEN_T,
    GOLDEN_LOGITS = GOLDEN_ROWS * GOLDEN_V,
    PROMPT = 27,  // tokens of the longest prompt
    GENERATED = 60
};

typedef struct {
    ModelFile file;
    int tokens[GOLDEN_ROWS], targets[GOLDEN_ROWS];
    real loss, losses[GOLDEN_STEPS], grad_norms[GOLDEN_STEPS], logits[GOLDEN_LOGITS];
    real muon_losses[GOLDEN_STEPS];
    real *grads, *final, *muon_final;
} Golden;

// out (n) = a whole tensor, as `real`, or as int if the file stores I32
static void golden_read(const Golden *g, const char *name, void *out, size_t n) {
    const SafeTensor *t = safetensors_find(&g->file.file, name);
    assert_non_null(t);
    assert_int_equal(t->end - t->begin, n * dtype_size(t->dtype));
    if (t->dtype == DT_I32) {
        safetensors_read(&g->file.file, t, 0, out, n * sizeof(int));
    } else {
        safetensors_read_real(&g->file.file, t, 0, (real *)out, n);
    }
}

// the tensors prefix + name, exact in every build, as a flat buffer
static real *golden_block(const Golden *g, const char *prefix) {
    size_t n = param_layout(&g->file.config).total;
    ModelState s = {&g->file.config, &cpu_device, state_make(true, DT_REAL, n, n), {0}, NULL, NULL};
    state_load(&g->file, prefix, &s);
    real *block = exact_weights(&s.optimizer, n);
    state_free(&s.optimizer);
    return block;
}

static int golden_open(void **state) {
    static Golden golden;
    Golden *g = &golden;
    GPT2Config config = {POSITIONS, GOLDEN_V, 128, 2, 3, 48};
    g->file.config = config;
    g->file.file = safetensors_open("dev/test/golden/gpt2_tiny.safetensors");
    golden_read(g, "tokens", g->tokens, GOLDEN_ROWS);
    golden_read(g, "targets", g->targets, GOLDEN_ROWS);
    golden_read(g, "loss", &g->loss, 1);
    golden_read(g, "losses", g->losses, GOLDEN_STEPS);
    golden_read(g, "muon_losses", g->muon_losses, GOLDEN_STEPS);
    golden_read(g, "grad_norms", g->grad_norms, GOLDEN_STEPS);
    golden_read(g, "logits", g->logits, GOLDEN_LOGITS);
    g->grads = golden_block(g, "grads.");
    g->final = golden_block(g, "final.");
    g->muon_final = golden_block(g, "muon_final.");
    *state = g;
    return 0;
}

static int golden_close(void **state) {
    Golden *g = (Golden *)*state;
    free(g->grads);
    free(g->final);
    free(g->muon_final);
    model_close(&g->file);
    return 0;
}

// a model with the golden parameters
static void golden_model(GPT2 *m, const Golden *g, ModelOptions options) {
    gpt2_build(m, g->file.config, options, alone());
    ModelState state = gpt2_state(m);
    state_load(&g->file, "params.", &state);
    zero_params_changed(&m->zero);
}

// options of an update of max(GOLDEN_B, B) sequences in micro-batches of B
static ModelOptions training(int B, int T) {
    ModelOptions p = {.backend = backend, .B = B, .T = T, .training = true, .graph = true, .fuse_gelu = true};
    p.micro_steps = B < GOLDEN_B ? GOLDEN_B / B : 1;
    p.recompute.every = 1;
    p.remainders = p.gather_again = true;
    p.moments = p.gradients = DT_REAL;
    p.sharding.dp_size = p.sharding.tp_size = 1;
    return p;
}

static ModelOptions decoding(int T, int positions) {
    const Recompute nothing_saved = {FORWARD_ONLY, 1, 1000, false};
    ModelOptions p = training(1, T);
    p.micro_steps = 1;
    p.training = false;
    p.decode_positions = positions;
    p.graph = false;
    p.recompute = nothing_saved;
    p.remainders = false;
    return p;
}

static ModelOptions rounding(ModelOptions p) {
    p.round_matmul_inputs = true;
    return p;
}

static const Tolerance *tolerance_of(ModelOptions p) { return p.round_matmul_inputs ? &tolerances[1] : tolerance; }

static StepHyper golden_hyper(int step) {
    StepHyper hyper = {(real)1e-3, (real)0.9, (real)0.95, (real)1e-8, (real)0.1, 1, step, 1, (real)0.95};
    return hyper;
}

// one AdamW step on the golden batch
static void golden_step(GPT2 *m, const Golden *g, StepHyper hyper) {
    gradients(m, g->tokens, g->targets);
    gpt2_norm(m);
    gpt2_update(m, &hyper);
    settle(m);
}

static void check_first_step(const Golden *g, const char *name, ModelOptions options) {
    const Tolerance *limit = tolerance_of(options);
    static real logits[GOLDEN_LOGITS];
    GPT2 m;
    golden_model(&m, g, options);
    double loss = gradients(&m, g->tokens, g->targets);
    likely_reasons = "; if you changed the model, change dev/oracle/gpt2.py too and run dev/oracle/write_golden.py";
    assert_close("loss", relative_difference(loss, (double)g->loss), limit->loss);
    likely_reasons =
        "; a backward does not match its forward (make test-quick OP=gradients), or a tensor is read after "
        "it was overwritten (build/test/test_gpt2_poisoned fills released scratch with NaN)";
    assert_blocks_close(name, grads_of(&m), g->grads, &m.config, limit->gradient);
    likely_reasons = "";
    double norm = (double)grad_norm(&m);
    assert_close("gradient norm", relative_difference(norm, (double)g->grad_norms[0]), limit->grad_norm);
    read_logits(&m, logits);
    assert_close("logits", vector_error(logits, g->logits, GOLDEN_LOGITS), limit->logits);
    gpt2_free(&m);
}

TEST(test_first_step) {
    ModelOptions options = training(GOLDEN_B, GOLDEN_T);
    check_first_step((const Golden *)*state, "gradients", options);
    check_first_step((const Golden *)*state, "gradients, matmul inputs rounded", rounding(options));
}

// Copies the keys' bias of every layer. PyTorch's moves, since AdamW makes steps of its gradient's rounding; ours is
// defined as 0.
static void copy_key_bias(real *to, const real *from, const GPT2Config *c) {
    ParamLayout layout = param_layout(c);
    size_t C = (size_t)c->channels;
    for (int layer = 0; layer < c->num_layers; layer++) {
        size_t at = param_offset(&layout, QKVB, layer) + C;
        memcpy(to + at, from + at, C * sizeof(real));
    }
}

// The gradient and both moments of the keys' bias are exactly 0, those of the queries' and values' bias are not.
static void assert_key_bias_untouched(GPT2 *m) {
    const real *blocks[] = {grads_of(m), first_moment(m), second_moment(m)};
    size_t C = (size_t)m->config.channels;
    for (int i = 0; i < 3; i++) {
        for (int layer = 0; layer < m->config.num_layers; layer++) {
            const real *bias = blocks[i] + param_offset(&m->layout, QKVB, layer);
            for (size_t j = 0; j < C; j++) {
                assert_true(bias[C + j] == 0);
                assert_true(bias[j] != 0 && bias[2 * C + j] != 0);
            }
        }
    }
}

// the vocabulary's padding and the gaps between tensors
static void assert_padding_zero(const real *block, const GPT2Config *c) {
    size_t total = param_layout(c).total;
    Tensor list[MAX_TENSORS];
    int count = list_tensors(list, c);
    unsigned char *used = (unsigned char *)xcalloc(total, 1);
    for (int i = 0; i < count; i++) { memset(used + list[i].at, 1, list[i].count); }
    for (size_t i = 0; i < total; i++) { assert_true(used[i] || block[i] == 0); }
    free(used);
}

static void check_ten_steps(const Golden *g, const char *name, OptimizerKind optimizer, ModelOptions options) {
    const Tolerance *limit = tolerance_of(options);
    const bool adamw = optimizer == OPTIMIZER_ADAMW;
    GPT2 m;
    options.sharding.optimizer = optimizer;
    golden_model(&m, g, options);
    real *initial = weights(&m);
    for (int i = 0; i < GOLDEN_STEPS; i++) {
        double loss = gradients(&m, g->tokens, g->targets), norm = (double)grad_norm(&m);
        double expected = (double)(adamw ? g->losses : g->muon_losses)[i];
        assert_close("loss of a step", relative_difference(loss, expected), limit->step_loss);
        expected = adamw ? (double)g->grad_norms[i] : norm;
        assert_close("gradient norm of a step", relative_difference(norm, expected), limit->step_loss);
        StepHyper hyper = golden_hyper(i + 1);
        gpt2_update(&m, &hyper);
    }
    settle(&m);
    real *got = weights(&m), *expected = copy_block(&m, adamw ? g->final : g->muon_final);
    const real *blocks[] = {got, grads_of(&m), first_moment(&m), second_moment(&m)};
    for (int i = 0; i < (adamw ? 4 : 3); i++) { assert_padding_zero(blocks[i], &m.config); }
    if (adamw) { assert_key_bias_untouched(&m); }
    copy_key_bias(expected, initial, &m.config);
    assert_blocks_close(name, got, expected, &m.config, limit->final);
    free(got);
    free(expected);
    free(initial);
    gpt2_free(&m);
}

// Muon too: AdamW updates the keys' bias, whose gradient is 0, so it keeps its initial value.
TEST(test_ten_steps_of_muon) {
    const Golden *g = (const Golden *)*state;
    ModelOptions usual = training(GOLDEN_B, GOLDEN_T);
    check_ten_steps(g, "after ten steps of Muon", OPTIMIZER_MUON, usual);
    check_ten_steps(g, "after ten steps of Muon, matmul inputs rounded", OPTIMIZER_MUON, rounding(usual));
}

TEST(test_ten_steps) {
    const Golden *g = (const Golden *)*state;
    ModelOptions usual = training(GOLDEN_B, GOLDEN_T);
    check_ten_steps(g, "after ten steps", OPTIMIZER_ADAMW, usual);
    check_ten_steps(g, "after ten steps of three micro-batches", OPTIMIZER_ADAMW, training(1, GOLDEN_T));
    check_ten_steps(g, "after ten steps, matmul inputs rounded", OPTIMIZER_ADAMW, rounding(usual));
}

static void parse_epsilon(void *value) {
    char program[] = "train_gpt2", flag[] = "--epsilon";
    char *argv[] = {program, flag, (char *)value};
    TrainArgs a = default_args;
    flags_parse(flag_table, NUM_FLAGS, &a, 3, argv);
}

// A gradient of exactly 0 over an epsilon of 0 would be NaN. The smallest value of --epsilon gives no NaN.
TEST(test_smallest_epsilon) {
    char zero[] = "0", too_small[] = "9e-31", smallest[] = "1e-30";
    assert_stops(2, "--epsilon", parse_epsilon, zero);
    assert_stops(2, "--epsilon", parse_epsilon, too_small);
    parse_epsilon(smallest);
    StepHyper hyper = golden_hyper(1);
    hyper.epsilon = (real)1e-30;
    GPT2 m;
    golden_model(&m, (const Golden *)*state, training(GOLDEN_B, GOLDEN_T));
    golden_step(&m, (const Golden *)*state, hyper);
    real *stepped = weights(&m);
    assert_padding_zero(stepped, &m.config);
    free(stepped);
    gpt2_free(&m);
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. order of sums

// Loss and gradients of the golden batch agree with those of one micro-batch in one logits chunk.
static void check_same(const Golden *g, const char *name, int B, int classifier_rows, int threads, double limit) {
    GPT2 whole, other;
    golden_model(&whole, g, training(GOLDEN_B, GOLDEN_T));
    golden_model(&other, g, training(B, GOLDEN_T));
    assert_int_equal(whole.classifier_rows, GOLDEN_ROWS);
    double expected = gradients(&whole, g->tokens, g->targets);
    int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    other.classifier_rows = classifier_rows;
    double loss = gradients(&other, g->tokens, g->targets);
    omp_set_num_threads(before);
    assert_close(name, relative_difference(loss, expected), backend == &cpu_backend ? 1e-6 : limit);
    assert_blocks_close(name, grads_of(&other), grads_of(&whole), &whole.config, limit);
    gpt2_free(&whole);
    gpt2_free(&other);
}

TEST(test_order_of_sums) {
    int all = omp_get_max_threads();
    double again = micro_batch_tolerance(), chunks = backend == &cpu_backend ? tolerance->order / 10 : again;
    const struct {
        const char *name;
        int B, classifier_rows, threads;
        double limit;
    } cases[] = {{"logits chunks of 1 row", GOLDEN_B, 1, all, chunks},
                 {"logits chunks of 7 rows", GOLDEN_B, 7, all, chunks},
                 {"one logits chunk", GOLDEN_B, GOLDEN_ROWS, all, chunks},
                 {"three micro-batches", 1, GOLDEN_T, all, again},
                 {"three micro-batches, chunks of 7 rows", 1, 7, all, again},
                 {"one thread", GOLDEN_B, GOLDEN_ROWS, 1, tolerance->order},
                 {"two threads", GOLDEN_B, GOLDEN_ROWS, 2, tolerance->order}};
    for (size_t i = 0; i < LEN(cases); i++) {
        check_same((const Golden *)*state, cases[i].name, cases[i].B, cases[i].classifier_rows, cases[i].threads,
                   cases[i].limit);
    }
}

// ---- several sequences in one row

enum { PACKED_T = 16, PACKED = 3 };
static const Range packed_ranges[PACKED] = {{0, 5}, {5, 7}, {12, 4}};
static const real PACKED_TARGETS = 9;

// targets with and without a loss
static void packed_batch(const Golden *g, int *tokens, int *targets) {
    int with_loss = 0;
    for (int t = 0; t < PACKED_T; t++) {
        tokens[t] = g->tokens[t];
        targets[t] = t % 5 < 3 && with_loss < (int)PACKED_TARGETS ? g->targets[t] : -1;
        with_loss += targets[t] >= 0;
    }
    assert_true((real)with_loss == PACKED_TARGETS);
}

static ModelOptions one_micro_batch(int T, int level) {
    ModelOptions p = training(1, T);
    p.micro_steps = 1;
    p.fuse_gelu = false;  // a recomputed GELU has other bits than the fused one
    p.recompute.level = level;
    p.recompute.layers = level ? 1000 : 0;
    return p;
}

// the loss, and the gradients in the model
static double packed_step(GPT2 *m, const int *tokens, const int *targets, PackedSequences sequences) {
    poison_gradients(m);
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    gpt2_stage_batch(m, tokens, targets, sequences);
    m->update_targets = PACKED_TARGETS;
    gpt2_micro_step(m, 0);
    return (double)device_number(m, m->loss);
}

// Three sequences in one row have the loss and the gradients of each alone, added up; and the same bits at -r 4.
TEST(test_packed_sequences) {
    const Golden *g = (const Golden *)*state;
    const PackedSequences sequences = {packed_ranges, PACKED};
    int tokens[PACKED_T], targets[PACKED_T];
    packed_batch(g, tokens, targets);
    GPT2 packed, recomputed;
    golden_model(&packed, g, one_micro_batch(PACKED_T, 0));
    golden_model(&recomputed, g, one_micro_batch(PACKED_T, RECOMPUTE_BLOCK));
    size_t total = packed.layout.total;
    real *sum = (real *)xcalloc(total, sizeof(real));
    double loss = packed_step(&packed, tokens, targets, sequences), sum_of_losses = 0;
    double again = packed_step(&recomputed, tokens, targets, sequences);
    assert_true(again == loss);
    Tensor tensors[MAX_TENSORS];
    int num_tensors = list_tensors(tensors, &packed.config);
    for (int i = 0; i < num_tensors; i++) {  // the gaps between tensors hold any bits
        const Tensor *t = &tensors[i];
        assert_memory_equal(grads_of(&recomputed) + t->at, grads_of(&packed) + t->at, t->count * sizeof(real));
    }
    for (int d = 0; d < PACKED; d++) {
        Range range = packed_ranges[d];
        GPT2 alone_model;
        golden_model(&alone_model, g, one_micro_batch((int)range.count, 0));
        sum_of_losses += packed_step(&alone_model, tokens + range.offset, targets + range.offset, not_packed);
        const real *grads = grads_of(&alone_model);
        for (size_t i = 0; i < total; i++) { sum[i] += grads[i]; }
        gpt2_free(&alone_model);
    }
    double limit = micro_batch_tolerance();
    assert_close("the loss of packed sequences", relative_difference(loss, sum_of_losses), limit);
    assert_blocks_close("packed sequences", grads_of(&packed), sum, &packed.config, limit);
    free(sum);
    gpt2_free(&packed);
    gpt2_free(&recomputed);
}

static volatile sig_atomic_t signals_seen;
static void see_signal(int number) { signals_seen = signals_seen + (number == SIGUSR1); }

// A signal handler that interrupts a matmul overwrites nothing, with the flags of catch_signals.
TEST(test_signals_in_matmuls) {
    enum { N = 12 * 64, C = 128, OC = 512, SIGNALS = 500 };
    if (backend != &cpu_backend) { skip(); }
    int threads = omp_get_max_threads();
    omp_set_num_threads(2);
    floatX *dout = (floatX *)xcalloc(N * OC, sizeof(floatX)), *in = (floatX *)xcalloc(N * C, sizeof(floatX));
    floatX *weight = (floatX *)xcalloc(OC * C, sizeof(floatX)), *din = (floatX *)xcalloc(N * C, sizeof(floatX));
    real *dweight = (real *)xcalloc(OC * C, sizeof(real));
    Gradient into = {dweight, DT_REAL};
    Exec ex;
    memset(&ex, 0, sizeof ex);
    catch_signals(&default_args);
    struct sigaction action;
    sigaction(SIGUSR1, NULL, &action);
    action.sa_handler = see_signal;
    sigaction(SIGUSR1, &action, NULL);
    struct sigevent event;
    memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGUSR1;
    timer_t timer;
    assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    const struct itimerspec every_ms = {{0, 1000000}, {0, 1000000}};
    timer_settime(timer, 0, &every_ms, NULL);
    while (signals_seen < SIGNALS) {
        cpu_matmul_backward(din, into, no_gradient, dout, in, weight, no_activation, GRAD_SET, N, C, OC, &ex);
    }
    timer_delete(timer);
    for (int i = 0; i < N * C; i++) { assert_true(to_real(din[i]) == 0); }
    for (int i = 0; i < OC * C; i++) { assert_true(dweight[i] == 0); }
    const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE};
    for (size_t i = 0; i < LEN(caught); i++) { signal(caught[i], SIG_DFL); }
    free(dout);
    free(in);
    free(weight);
    free(din);
    free(dweight);
    omp_set_num_threads(threads);
}

enum { RECOMPUTE_L = 5, RECOMPUTE_ROWS = 2 * 24 * 2 };

typedef struct {
    GPT2Config config;
    ModelOptions options;  // without -r, -rk, -rn
    int tokens[RECOMPUTE_ROWS], targets[RECOMPUTE_ROWS];
    double loss, first_loss;  // -r 0: of an update, and of its first micro-batch by gpt2_loss
    unsigned char *grads;     // -r 0
} RecomputeCase;

static void recompute_model(GPT2 *m, const RecomputeCase *c, Recompute recompute) {
    ModelOptions options = c->options;
    options.recompute = recompute;
    gpt2_build(m, c->config, options, alone());
    gpt2_init(m, 5);
}

// Loss and gradients with recomputation have the bits of -r 0, and so has the loss of gpt2_loss.
static void check_recompute(const RecomputeCase *c, Recompute recompute) {
    GPT2 m;
    recompute_model(&m, c, recompute);
    size_t size = dtype_size(m.tensors.grads.dtype);
    for (int times = 0; times < 2; times++) {  // the second time as a CUDA graph, on a device with graphs
        double loss = gradients(&m, c->tokens, c->targets);
        if (loss != c->loss) {
            fail_msg("-r %d -rk %d -rn %d: loss %.9g, expected %.9g", recompute.level, recompute.every,
                     recompute.layers, loss, c->loss);
        }
        const UpdateRange *ranges = ranges_of(&m);
        const char *got = (const char *)on_host(&m, m.tensors.grads.at);
        for (int s = 0; s < num_ranges(&m); s++) {
            const UpdateRange *t = &ranges[s];
            if (memcmp(got + t->offset * size, c->grads + t->offset * size, t->count * size) != 0) {
                fail_msg("-r %d -rk %d -rn %d: the gradient of tensor %d differs from -r 0", recompute.level,
                         recompute.every, recompute.layers, t->tensor);
            }
        }
        if (m.options.decode_positions) {  // decoding between two updates
            float logits[61];
            gpt2_prefill(&m, c->tokens, 0, 11, logits);
            settle(&m);
        }
    }
    assert_true((double)gpt2_loss(&m, c->tokens, c->targets) == c->first_loss);
    gpt2_free(&m);
}

static RecomputeCase recompute_case(ModelOptions options) {
    RecomputeCase c = {.config = {24, 61, 128, RECOMPUTE_L, 2, 16}, .options = options};
    for (int i = 0; i < RECOMPUTE_ROWS; i++) {
        c.tokens[i] = i * 31 % 61;
        c.targets[i] = i * 17 % 61;
    }
    c.options.fuse_gelu = false;
    GPT2 plain;
    recompute_model(&plain, &c, (Recompute){0, 1, 0, false});
    size_t bytes = plain.layout.total * dtype_size(plain.tensors.grads.dtype);
    c.loss = gradients(&plain, c.tokens, c.targets);
    c.first_loss = (double)gpt2_loss(&plain, c.tokens, c.targets);
    c.grads = (unsigned char *)memcpy(xmalloc(bytes), on_host(&plain, plain.tensors.grads.at), bytes);
    gpt2_free(&plain);
    return c;
}

// every -r with every -rk and -rn
TEST(test_recompute) {
    RecomputeCase c = recompute_case(training(2, 24));
    bool fast = backend == &cpu_backend;  // emulated kernels run a selection
    for (int level = 1; level <= RECOMPUTE_BLOCK; level++) {
        for (int layers = RECOMPUTE_L; layers >= 0; layers -= fast ? 1 : 2) {
            for (int every = 1; every <= (level < RECOMPUTE_BLOCK ? 1 : fast ? RECOMPUTE_L : 2); every++) {
                Recompute recompute = {level, every, layers, false};
                check_recompute(&c, recompute);
            }
        }
    }
    free(c.grads);
}

// with gradients in bf16, with rounded matmul inputs, with decoding between updates
TEST(test_recompute_with_other_options) {
    ModelOptions narrow = training(2, 24), sampling = training(2, 24);
    narrow.gradients = DT_BF16;
    sampling.decode_positions = 24;
    const ModelOptions options[] = {narrow, rounding(training(2, 24)), sampling};
    for (int i = 0; i < 3; i++) {
        RecomputeCase c = recompute_case(options[i]);
        for (int level = 1; level <= RECOMPUTE_BLOCK; level++) {
            Recompute all = {level, 1, RECOMPUTE_L, false},
                      some = {level, level < RECOMPUTE_BLOCK ? 1 : 2, RECOMPUTE_L - 2, false};
            check_recompute(&c, all);
            check_recompute(&c, some);
        }
        free(c.grads);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. initial weights

// gpt2_init stores the values of param_init_value, which test_params.c tests, for any number of threads and any seed;
// padding and gaps are zero.
TEST(test_initial_weights) {
    GPT2Config config = {32, 300, 384, 3, 2, 64};
    Tensor list[MAX_TENSORS];
    int count = list_tensors(list, &config), before = omp_get_max_threads();
    for (int threads = 1; threads <= 2; threads++) {
        const uint64_t seed = 41 + (uint64_t)threads;
        GPT2 m;
        omp_set_num_threads(threads);
        gpt2_build(&m, config, training(1, 32), alone());
        gpt2_init(&m, seed);
        omp_set_num_threads(before);
        real *x = weights(&m);
        assert_padding_zero(x, &config);
        for (int i = 0; i < count; i++) {
            const Tensor *t = &list[i];
            for (size_t e = 0; e < t->count; e++) {
                assert_true(x[t->at + e] == param_init_value(t->id, t->layer, e, &config, seed));
            }
        }
        free(x);
        gpt2_free(&m);
    }
}

// A file of random bytes: a model cannot predict them, only memorise them.
static const char *random_file(const char *name, size_t bytes) {
    char *text = (char *)xmalloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        char byte = (char)rng_bits(7, 7, i);
        text[i] = byte ? byte : '\1';  // a NUL would make it no text
    }
    const char *path = write_file(name, text, bytes);
    free(text);
    return path;
}

static TrainArgs small_run(const char *train_data) {
    TrainArgs a = default_args;
    a.train_data = train_data;
    a.model = "l1h2c16";
    a.B = 2;
    a.T = 8;
    a.batch_tokens = 32;
    a.max_steps = 12;
    a.lr = 1e-2;
    a.warmup = 3;
    a.final_fraction = 0.1;
    a.weight_decay = 0.1;
    a.val_every = a.sample_every = 1;
    a.sample_tokens = 12;
    a.gradients = 1;
    a.device = device_choice();
    return a;
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. decoding

// Decodes the golden sequences, `chunk` tokens a call. The logits after each call are those of the training forward.
static void check_cache(const Golden *g, GPT2 *decoder, const real *expected, int chunk) {
    float logits[GOLDEN_V];
    real converted[GOLDEN_V];
    for (int b = 0; b < GOLDEN_B; b++) {
        for (int t = 0, n; t < GOLDEN_T; t += n) {
            n = GOLDEN_T - t < chunk ? GOLDEN_T - t : chunk;
            gpt2_prefill(decoder, g->tokens + b * GOLDEN_T + t, t, n, logits);
            for (int v = 0; v < GOLDEN_V; v++) { converted[v] = (real)logits[v]; }
            const real *row = expected + (size_t)(b * GOLDEN_T + t + n - 1) * GOLDEN_V;
            assert_close("logits of a decoded position", vector_error(converted, row, GOLDEN_V), tolerance->cache);
        }
    }
}

TEST(test_cache) {
    const Golden *g = (const Golden *)*state;
    static real expected[GOLDEN_LOGITS];
    GPT2 trainer, decoder, narrow;
    golden_model(&trainer, g, training(GOLDEN_B, GOLDEN_T));
    golden_model(&decoder, g, decoding(GOLDEN_T, POSITIONS));
    golden_model(&narrow, g, decoding(5, POSITIONS));
    forward(&trainer, g->tokens);
    read_logits(&trainer, expected);
    const int chunks[] = {1, 2, 5, 7, GOLDEN_T};
    for (int i = 0; i < 5; i++) {
        check_cache(g, &decoder, expected, chunks[i]);
        check_cache(g, &narrow, expected, chunks[i]);  // prefills chunks of more than 5 tokens in several calls
    }
    gpt2_free(&trainer);
    gpt2_free(&decoder);
    gpt2_free(&narrow);
}

// tokens (length + GENERATED) = the prompt and the tokens that `generate` adds
static void generated_tokens(GPT2 *m, const int *prompt, int length, double temperature, int64_t seed, uint64_t stream,
                             int *tokens) {
    TrainArgs args = default_args;
    args.temperature = temperature;
    args.seed = seed;
    const char *path = temp_path("generated.txt");
    int saved = redirect(STDOUT_FILENO, path, NEW_FILE);
    Generator g = gpt2_generator(m, &args, NULL);
    generate(&g, prompt, (size_t)length, GENERATED, -1, stream);
    restore(STDOUT_FILENO, saved);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int i = 0; i < length + GENERATED; i++) { assert_int_equal(fscanf(file, "%d", &tokens[i]), 1); }
    assert_int_equal(fscanf(file, "%*s"), EOF);
    fclose(file);
    assert_memory_equal(tokens, prompt, (size_t)length * sizeof(int));
}

// Best logit after the n tokens of `window` minus the logit of `chosen`, by the training forward.
static double shortfall(GPT2 *m, const int *window, int n, int chosen) {
    static real logits[POSITIONS * GOLDEN_V];
    int tokens[POSITIONS] = {0};  // tokens after the window do not matter: attention is causal
    memcpy(tokens, window, (size_t)n * sizeof(int));
    forward(m, tokens);
    read_logits(m, logits);
    const real *row = logits + (size_t)(n - 1) * GOLDEN_V;
    double best = (double)row[0];
    for (int v = 1; v < GOLDEN_V; v++) { best = (double)row[v] > best ? (double)row[v] : best; }
    return best - (double)row[chosen];
}

// Temperature 0 takes the likeliest token at every step. A full context starts again with its second half.
static void check_greedy(GPT2 *m, const int *prompt, int length) {
    int tokens[PROMPT + GENERATED];
    generated_tokens(m, prompt, length, 0, 1, 0, tokens);
    for (int end = length, begin = 0; end < length + GENERATED; end++) {
        if (end - begin > POSITIONS) { begin = end - POSITIONS / 2; }
        assert_close("the likeliest token", shortfall(m, tokens + begin, end - begin, tokens[end]), tolerance->cache);
    }
}

TEST(test_generation) {
    const Golden *g = (const Golden *)*state;
    GPT2 m;
    golden_model(&m, g, decoding(POSITIONS, POSITIONS));
    const int lengths[] = {1, 3, POSITIONS - 1, POSITIONS, POSITIONS + 1, PROMPT};
    for (int i = 0; i < 6; i++) { check_greedy(&m, g->tokens, lengths[i]); }

    int first[PROMPT + GENERATED], second[PROMPT + GENERATED];
    const int64_t seeds[] = {5, 6, 5};  // the same; another seed; another stream
    const uint64_t streams[] = {9, 9, 10};
    generated_tokens(&m, g->tokens, 3, 1, 5, 9, first);
    for (int i = 0; i < 3; i++) {
        generated_tokens(&m, g->tokens, 3, 1, seeds[i], streams[i], second);
        assert_int_equal(memcmp(first, second, sizeof(int) * (3 + GENERATED)) == 0, i == 0);
    }
    gpt2_free(&m);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. memory

// without the plan's alignment
static size_t tensor_bytes(const PlanTensor *t) {
    size_t bytes = dtype_size(t->dtype);
    for (int d = 0; d < t->num_dims; d++) { bytes *= t->shape[d]; }
    return bytes;
}

enum { MAX_POINTERS = 64 };

// Lists the pointers of GPT2Tensors that the arena sets. Returns their number.
static int list_pointers(const void **list, const GPT2 *m) {
    const void *tensors[sizeof m->tensors / sizeof(void *)] = {NULL};
    int count = 0;
    arena_bind(m->arena, &m->plan, tensors);
    for (size_t i = 0; i < LEN(tensors); i++) {
        if (tensors[i]) { list[count++] = tensors[i]; }
    }
    return count;
}

// The plan's tensors are adjacent and fill the two arenas. Exactly one pointer of GPT2Tensors points to each.
static void check_plan(const GPT2Config *c, ModelOptions p) {
    const void *pointers[MAX_POINTERS];
    GPT2 m;
    gpt2_build(&m, *c, p, alone());
    int num_pointers = list_pointers(pointers, &m);
    assert_int_equal(num_pointers, m.plan.count);
    size_t ends[2] = {0, 0};
    for (int i = 0; i < m.plan.count; i++) {
        const PlanTensor *t = &m.plan.tensors[i];
        bool host = t->lifetime == HOST;
        int uses = 0;
        for (int k = 0; k < num_pointers; k++) {
            uses += pointers[k] == (host ? m.arena.host : m.arena.device) + t->offset;
        }
        assert_int_equal(uses, 1);
        assert_int_equal(t->offset, ends[host]);
        assert_in_range(t->bytes, tensor_bytes(t), tensor_bytes(t) + PLAN_ALIGN - 1);
        ends[host] += t->bytes;
    }
    size_t sum = plan_bytes(&m.plan, STATE) + plan_bytes(&m.plan, SAVED) + plan_bytes(&m.plan, SCRATCH);
    assert_int_equal(plan_device_bytes(&m.plan), ends[0]);
    assert_int_equal(sum, ends[0]);
    assert_int_equal(plan_bytes(&m.plan, HOST), ends[1]);
    gpt2_free(&m);
}

// The emulator's modes change arithmetic, streams and kernels. A test of none of these runs in the usual mode only.
static void skip_in_other_modes(void) {
#ifdef SIMT
    if (simt::settings().hardware || simt::settings().capability < 90) { skip(); }
#endif
}

TEST(test_planned_is_allocated) {
    skip_in_other_modes();
    const GPT2Config configs[] = {{20, 67, 128, 2, 3, 48}, {64, 256, 256, 3, 2, 64}, {16, 300, 384, 1, 1, 5}};
    const int batches[][2] = {{1, 1}, {3, 7}, {2, 16}};
    for (int i = 0; i < 3 * 3 * 4; i++) {
        const int *batch = batches[i / 3 % 3];
        ModelOptions p = training(batch[0], batch[1]);
        p.training = i / 9 % 2 == 0;
        p.decode_positions = i / 18 % 2 ? 11 : 0;
        check_plan(&configs[i % 3], p);
    }
}

// Every memory flag sets its field of ModelOptions.
TEST(test_flags_set_the_options) {
    char line[] = "train_gpt2 -b 3 -t 16 -d 96 -r 3 -rk 2 -rn 4 -ge 1 -w none -om 8bit -gd bf16 --graph 0 "
                  "--offload 4";
    char *argv[32];
    int argc = 0;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) { argv[argc++] = word; }
    TrainArgs a = default_args;
    flags_parse(flag_table, NUM_FLAGS, &a, argc, argv);
    const GPT2Config config = {16, 67, 128, 12, 2, 24};
    ModelOptions p = model_options(&a, &config, backend), usual = model_options(&default_args, &config, backend);
    assert_true(p.B == 3 && p.T == 16 && p.micro_steps == 2 && p.training && !p.graph && usual.graph);
    assert_true(p.recompute.level == 3 && p.recompute.every == 2 && p.recompute.layers == 4);
    assert_true(p.fuse_gelu && !p.remainders);
    assert_true(p.moments == DT_U8 && p.gradients == DT_BF16);
    bool gpu = is_gpu(p.backend);  // a CPU ignores --offload
    assert_true(p.sharding.offload == (gpu ? 4 : 0) && p.recompute.offload_inputs == gpu);
    assert_true(usual.sharding.offload == 0 && !usual.recompute.offload_inputs);
    assert_true(usual.recompute.level == 0 && usual.recompute.every == 1 && usual.recompute.layers == 12);
    assert_true(!usual.fuse_gelu && usual.remainders);
    assert_true(usual.moments == DT_REAL && usual.gradients == DT_FLOATX);
    a = default_args;
    a.recompute = 4;
    a.recompute_every = 0;
    const GPT2Config deep = {1024, 50257, 50304, 48, 25, 1600}, small = {65, 256, 256, 1, 2, 16};
    const ModelOptions rows_520 = training(8, 65);
    assert_int_equal(logits_chunk(&small, &rows_520), 384);
    assert_int_equal(model_options(&a, &deep, backend).recompute.every, 2);
}

// for -r, -rk, -rn, -w, -om, -gd, --offload and the rows of a logits chunk
TEST(test_planned_is_allocated_for_all_flags) {
    skip_in_other_modes();
    const GPT2Config config = {16, 67, 128, 5, 2, 24};
    int step = backend == &cpu_backend ? 1 : 23;  // 23 shares no factor with the numbers of values
    for (int i = 0; i < 5 * 3 * 3 * 2 * 2 * 3 * 2; i += step) {
        ModelOptions p = training(2, 16);
        p.recompute.level = i % 5;
        p.recompute.every = 1 + i / 5 % 3;
        p.recompute.layers = i / 15 % 3 == 0 ? 5 : i / 15 % 3 + 1;
        p.classifier_rows = i / 45 % 2 ? 7 : 0;
        p.remainders = i / 90 % 2;
        p.moments = moment_types[i / 180 % 3];
        p.gradients = i / 540 ? DT_BF16 : DT_REAL;
        options_set_offload(&p, i / 5 % 5);
        check_plan(&config, p);
    }
}

// Fills the gaps between the arenas' tensors, or fails if a byte of them changed. Returns the bytes of all gaps.
static int visit_gaps(GPT2 *m, bool fill) {
    const unsigned char filler = 0xFF;  // a POISON_SCRATCH build writes the same value
    int count = 0;
    for (int i = 0; i < m->plan.count; i++) {
        const PlanTensor *t = &m->plan.tensors[i];
        for (size_t b = tensor_bytes(t); b < t->bytes; b++, count++) {
            if (fill && t->lifetime == HOST) { m->arena.host[t->offset + b] = filler; }
            if (fill && t->lifetime != HOST) { m->device->fill(m->arena.device + t->offset + b, filler, 1); }
        }
        const unsigned char *host = m->arena.host + t->offset;
        if (t->lifetime != HOST) { host = (const unsigned char *)on_host(m, m->arena.device + t->offset); }
        for (size_t b = tensor_bytes(t); b < t->bytes; b++) {
            if (host[b] != filler) { fail_msg("an operation writes past the end of %s", t->name); }
        }
    }
    return count;
}

// The shape leaves a gap after every tensor except the flat buffers of parameters.
static void check_gaps(ModelOptions options) {
    GPT2Config config = {11, 67, 71, 2, 3, 33};
    StepHyper hyper = golden_hyper(1);
    GPT2 m;
    int tokens[21], targets[21];
    float logits[67];
    for (int i = 0; i < 21; i++) {
        tokens[i] = i % 67;
        targets[i] = i * 5 % 67;
    }
    gpt2_build(&m, config, options, alone());
    assert_true(visit_gaps(&m, true) > m.plan.count);
    gpt2_init(&m, 1);
    gradients(&m, tokens, targets);
    grad_norm(&m);
    gpt2_update(&m, &hyper);
    gpt2_loss(&m, tokens, targets);
    gpt2_prefill(&m, tokens, 0, 11, logits);
    settle(&m);
    visit_gaps(&m, false);
    gpt2_free(&m);
}

TEST(test_no_write_past_a_tensor) {
    ModelOptions options = rounding(training(3, 7));
    options.decode_positions = 11;
    check_gaps(options);
    for (int level = 1; level <= RECOMPUTE_BLOCK; level++) {
        options.recompute.level = level;
        options.recompute.every = 2;
        options.recompute.layers = 2;
        options.remainders = level % 2;
        options.moments = moment_types[level % 3];
        options.gradients = level % 2 ? DT_BF16 : DT_REAL;
        options.classifier_rows = level;
        check_gaps(options);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. runs

enum { RUN_STEPS = 12 };

// Fills the windows of the outlier detectors with values near the run's, so that some steps are skipped.
static void fill_outlier_windows(Run *run) {
    for (uint64_t i = 0; i < OUTLIER_WINDOW; i++) {
        outlier_zscore(&run->outliers.loss, 5.45 + 0.05 * rng_normal(1, 1, i));
        outlier_zscore(&run->outliers.norm, 1.05 + 0.05 * rng_normal(1, 2, i));
    }
}

static void assert_detectors_equal(const OutlierDetector *a, const OutlierDetector *b) {
    cJSON *x = outlier_detector_to_json(a), *y = outlier_detector_to_json(b);
    assert_true(cJSON_Compare(x, y, true));
    cJSON_Delete(x);
    cJSON_Delete(y);
}

static void assert_runs_equal(const Run *a, const Run *b) {
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->data.train_loader.position, b->data.train_loader.position);
    assert_models_equal(&a->model, &b->model);
    assert_detectors_equal(&a->outliers.loss, &b->outliers.loss);
    assert_detectors_equal(&a->outliers.norm, &b->outliers.norm);
}

static void assert_reports_equal(const StepReport *a, const StepReport *b) {
    assert_int_equal(a->step, b->step);
    assert_true(a->loss == b->loss && a->grad_norm == b->grad_norm && a->lr == b->lr);
    assert_string_equal(a->skipped, b->skipped);
}

// Runs `stop` steps, a validation and a sample, which change nothing, and saves a checkpoint. A resumed run then makes
// the remaining steps with the bits of the uninterrupted run.
static void check_resume(TrainArgs *args, const Run *straight, const StepReport *reports, int stop) {
    char dir[PATH_LENGTH];
    static int number;
    format_path(dir, "%s/run_%d", temp_dir(), number++);
    TrainArgs begin = *args;
    begin.run_dir = dir;
    begin.checkpoint_every = 1;
    TrainArgs resumed = begin;
    resumed.resume = 1;

    Run run;
    StepReport report;
    run_open(&run, &begin, alone_host());
    fill_outlier_windows(&run);
    for (int i = 0; i < stop; i++) {
        report = train_step(&run);
        assert_reports_equal(&report, &reports[i]);
    }
    int saved = redirect(STDOUT_FILENO, "/dev/null", NEW_FILE);
    evaluate(&run, false);
    show_sample(&run);
    save_step(&run, true);
    restore(STDOUT_FILENO, saved);
    run_close(&run);

    run_open(&run, &resumed, alone_host());
    assert_int_equal(run.step, stop);
    for (int i = stop; i < RUN_STEPS; i++) {
        report = train_step(&run);
        assert_reports_equal(&report, &reports[i]);
    }
    assert_runs_equal(&run, straight);
    run_close(&run);
}

// Compares runs stopped after steps first..last, on a GPU after every third, with an uninterrupted run.
static void check_resumes(TrainArgs *args, int first, int last) {
    Run straight;
    StepReport reports[RUN_STEPS];
    int skipped = 0;
    run_open(&straight, args, alone_host());
    fill_outlier_windows(&straight);
    for (int i = 0; i < RUN_STEPS; i++) {
        reports[i] = train_step(&straight);
        skipped += *reports[i].skipped != 0;
    }
    if (args->skip_loss > 0) { assert_in_range(skipped, 1, RUN_STEPS - 1); }
    int stride = backend == &cpu_backend ? 1 : 3;
    for (int stop = first; stop <= last; stop += stride) { check_resume(args, &straight, reports, stop); }
    run_close(&straight);
}

// 22 training sequences of 8 tokens, 4 a step: the second epoch begins in step 6.
TEST(test_resume) {
    TrainArgs args = small_run(random_file("resume.txt", 200));
    args.skip_loss = args.skip_norm = 1.9;
    check_resumes(&args, 1, RUN_STEPS - 1);
}

// --overfit, and -f 2
TEST(test_resume_with_flags) {
    TrainArgs args = small_run(random_file("overfit.txt", 200)), rounded = args;
    args.overfit = 1;
    rounded.matmul_precision = 2;
    check_resumes(&args, 5, 5);
    check_resumes(&rounded, 5, 5);
}

// with every -w, -om and -gd
TEST(test_resume_small_states) {
    skip_in_other_modes();
    TrainArgs args = small_run(random_file("states.txt", 200));
    for (args.master = MASTER_NONE; args.master <= MASTER_SPLIT; args.master++) {
        for (args.moments = 0; args.moments < 3; args.moments++) {
            // not `< 3`: a function has the name `gradients`, and nvcc reads `gradients <` as a template argument list
            for (args.gradients = 1; args.gradients <= 2; args.gradients++) {
                bool chosen = backend == &cpu_backend || (args.master + args.moments + args.gradients) % 3 == 0;
                if (chosen) { check_resumes(&args, 5, 5); }
            }
        }
    }
}

// AdamW of one tensor in double: updates w from g and from the m and v before this step.
static void expected_update(double *w, const real *m, const real *v, const real *g, size_t n, double lr, double decay,
                            double clip_scale, int step, const TrainArgs *a) {
    for (size_t i = 0; i < n; i++) {
        double gradient = (double)g[i] * clip_scale;
        double mean = (a->beta1 * (double)m[i] + (1 - a->beta1) * gradient) / (1 - pow(a->beta1, step));
        double square = (a->beta2 * (double)v[i] + (1 - a->beta2) * gradient * gradient) / (1 - pow(a->beta2, step));
        w[i] -= lr * (mean / (sqrt(square) + a->epsilon) + decay * w[i]);
    }
}

// Three steps of a run, warmup included, follow the formula of AdamW with the flags' values.
TEST(test_optimizer_flags) {
    TrainArgs a = small_run(random_file("flags.txt", 2000));
    a.beta1 = 0.7;
    a.beta2 = 0.8;
    a.epsilon = 1e-3;
    a.weight_decay = 0.9;
    a.clip = 0.4;
    a.warmup = 2;
    a.schedule = SCHEDULE_CONSTANT;
    Run run;
    run_open(&run, &a, alone_host());
    GPT2 *model = &run.model;
    Tensor list[MAX_TENSORS];
    int count = list_tensors(list, &model->config);
    for (int step = 1; step <= 3; step++) {
        OptimizerState before = copy_state(model);
        const real *m = (const real *)before.m, *v = (const real *)before.v;
        StepReport report = train_step(&run);
        assert_true(report.grad_norm > a.clip);
        OptimizerState after = copy_state(model);
        const real *gradient = grads_of(model);
        assert_close("learning rate", relative_difference(report.lr, step == 1 ? a.lr / 2 : a.lr), 1e-6);
        for (int i = 0; i < count; i++) {
            const Tensor *t = &list[i];
            double *expected = (double *)xmalloc(2 * t->count * sizeof(double)), *got = expected + t->count;
            for (size_t e = 0; e < t->count; e++) {
                expected[e] = (double)reference_weight(&before, t->at + e);
                got[e] = (double)reference_weight(&after, t->at + e);
            }
            bool decays = strstr(t->name, ".weight") && !strstr(t->name, "ln_");
            expected_update(expected, m + t->at, v + t->at, gradient + t->at, t->count, report.lr,
                            decays ? a.weight_decay : 0, a.clip / report.grad_norm, step, &a);
            assert_close(t->name, relative_error(got, expected, t->count), 1e-6);
            free(expected);
        }
        state_free(&before);
        state_free(&after);
    }
    run_close(&run);
}

// Every logit becomes NaN.
static void break_weights(GPT2 *m) {
    floatX nan = to_floatX((real)NAN);
    m->device->upload(m->tensors.optimizer.params + param_offset(&m->layout, LNFW, 0), &nan, sizeof nan);
}

#ifdef SIMT  // only the emulator counts waits and copies, and has a faulty driver

// After two steps, matmuls are autotuned and micro-steps are CUDA graphs. Then start_step launches a graph for each
// micro-step, never waits for the device, and copies only from pinned memory: at every --offload.
TEST(test_start_step_does_not_wait) {
    for (int offload = 0; offload <= 4; offload++) {
        TrainArgs args = small_run(random_file("stream.txt", 2000));
        args.offload = offload;
        Run run;
        run_open(&run, &args, alone_host());
        assert_int_equal(run.model.options.sharding.offload, backend == &cpu_backend ? 0 : offload);
        for (int i = 0; i < 2; i++) { train_step(&run); }
        const auto &count = simt::runtime();
        uint64_t graphs = count.graph_launches, waits = count.host_synchronisations, copies = count.pageable_copies;
        assert_true(start_step(&run));
        int expected = backend == &cpu_backend ? 0 : run.model.options.micro_steps;
        assert_int_equal(count.graph_launches - graphs, expected);
        assert_int_equal(count.host_synchronisations, waits);
        assert_int_equal(count.pageable_copies, copies);
        finish_step(&run);
        run_close(&run);
    }
}

// three steps with a fault in PDL (SIMT_PDL), or none; returns the last one
static StepReport run_with_fault(const char *fault, int offload) {
    TrainArgs args = small_run(random_file("stream.txt", 2000));
    args.offload = offload;
    simt::settings().pdl_fault = fault;
    Run run;
    run_open(&run, &args, alone_host());
    assert_true(pdl_enabled);  // the trial's graph is small
    for (int i = 0; i < 2; i++) { train_step(&run); }
    assert_int_equal(pdl_enabled, fault == NULL);
    uint64_t graphs = simt::runtime().graph_launches;
    StepReport report = train_step(&run);
    assert_int_equal(simt::runtime().graph_launches - graphs, run.model.options.micro_steps);
    run_close(&run);
    simt::settings().pdl_fault = NULL;
    return report;
}

// If the driver refuses the graph of a micro-step, or a launch in its capture, the run goes on without PDL
// and has the same bits.
TEST(test_refused_pdl) {
    if (backend == &cpu_backend || simt::settings().capability < 90) { skip(); }  // none before sm_90
    for (int offload = 0; offload <= 4; offload += 4) {
        StepReport usual = run_with_fault(NULL, offload);
        for (const char *fault : {"large:graph", "large:launch", "large:both"}) {
            StepReport report = run_with_fault(fault, offload);
            assert_true(report.loss == usual.loss && report.grad_norm == usual.grad_norm);
        }
    }
}

// The loop waits once a step: for the results of one step after it has enqueued the next. The device is idle only after
// the last step.
TEST(test_loop_waits_a_step_behind) {
    TrainArgs args = small_run(random_file("stream.txt", 2000));
    args.val_every = args.sample_every = 0;
    args.max_steps = 6;
    args.offload = 4;
    Run run;
    run_open(&run, &args, alone_host());
    for (int i = 0; i < 2; i++) { train_step(&run); }
    const auto &count = simt::runtime();
    uint64_t waits = count.host_synchronisations, copies = count.pageable_copies, meanwhile = count.graphs_meanwhile;
    advance(&run);
    assert_int_equal(run.step, 6);
    bool device = backend != &cpu_backend;
    assert_int_equal(count.host_synchronisations - waits, device ? 4 : 0);
    assert_int_equal(count.graphs_meanwhile - meanwhile, device ? 3 * run.model.options.micro_steps : 0);
    assert_int_equal(count.pageable_copies, copies);
    run_close(&run);
}
#endif

// An outlier's update is skipped and counts as a step, with the outlier in the window.
TEST(test_outlier_detectors) {
    TrainArgs args = small_run(random_file("outliers.txt", 2000));
    args.skip_loss = 5;
    Run run;
    run_open(&run, &args, alone_host());
    train_step(&run);
    for (uint64_t i = 0; i < OUTLIER_WINDOW; i++) {
        outlier_zscore(&run.outliers.loss, 1 + 0.01 * rng_normal(1, 3, i));
    }
    for (int i = 0; i < 2; i++) {  // a loss of 5.5 in a window around 1; NaN
        OptimizerState before = copy_state(&run.model);
        uint64_t position = run.data.train_loader.position;
        StepReport report = train_step(&run);
        assert_string_equal(report.skipped, i == 0 ? "loss is an outlier" : "loss is not finite");
        assert_int_equal(report.step, 2 + i);
        assert_int_equal(run.data.train_loader.position, position + 4);
        assert_true(state_is(&run.model, &before));
        state_free(&before);
        break_weights(&run.model);
    }
    run_close(&run);
}

// Sets the loss on the device after a finite norm, then updates. Returns whether weights or moments changed.
static bool updates_with_loss(const Golden *g, OptimizerKind optimizer, real loss) {
    GPT2 m;
    ModelOptions options = training(GOLDEN_B, GOLDEN_T);
    options.sharding.optimizer = optimizer;
    golden_model(&m, g, options);
    StepHyper hyper = golden_hyper(1);
    gradients(&m, g->tokens, g->targets);
    assert_true(isfinite(grad_norm(&m)));
    OptimizerState before = copy_state(&m);
    m.device->upload(m.loss, &loss, sizeof loss);
    gpt2_update(&m, &hyper);
    settle(&m);
    bool updates = !state_is(&m, &before);
    state_free(&before);
    gpt2_free(&m);
    return updates;
}

// The device skips an update whose loss is not finite, also if the norm is finite: the host may be a step behind.
TEST(test_loss_not_finite) {
    const Golden *g = (const Golden *)*state;
    const OptimizerKind optimizers[] = {OPTIMIZER_ADAMW, OPTIMIZER_MUON};
    for (int i = 0; i < 2; i++) {
        assert_true(updates_with_loss(g, optimizers[i], (real)3.5));
        assert_false(updates_with_loss(g, optimizers[i], (real)NAN));
        assert_false(updates_with_loss(g, optimizers[i], (real)INFINITY));
        assert_false(updates_with_loss(g, optimizers[i], (real)-INFINITY));
    }
}

// ---- a faulty operation

static TrainArgs faulty_run(const char *path) {
    TrainArgs args = small_run(path);
    args.model = "l3h2c16";
    args.graph = 0;  // upload waits for the device
    args.recompute = 0;
    return args;
}

// The origin of a step with a fault in calls [first, last] of two micro-batches a step; broken: with bad weights.
static void check_origin(int first, int last, bool broken, const char *expected) {
    TrainArgs args = faulty_run(random_file("fault.txt", 2000));
    args.nan_check = 1;
    args.graph = broken;
    Run run;
    Ops ops;
    run_open(&run, &args, alone_host());
    train_step(&run);
    insert_fault(&run.model, &ops, first, last, (real)NAN);
    if (broken) { break_weights(&run.model); }
    uint64_t position = run.data.train_loader.position;
    StepReport report = train_step(&run);
    assert_string_equal(report.skipped, "loss is not finite");
    assert_non_null(strstr(report.origin, expected));
    assert_int_equal(run.data.train_loader.position, position + 4);
    assert_ptr_equal(run.model.ops, &ops);
    assert_null(run.model.exec.hooks);
    assert_int_equal(run.model.options.graph, broken);
    assert_ptr_equal(run.model.tp.ops, run.model.zero.ops);
    run_close(&run);
}

TEST(test_nan_check) {
    check_origin(1, 99, false,
                 "attention_forward of layer 1 made the first non-finite number, NaN in element 3 of out");
    check_origin(99, 99, true, "ln_f.weight was not finite before the step: NaN in element 0");
    check_origin(1, 2, false, "the same step, run again, is finite");
}

int main(void) {
    const char *device = getenv("TEST_DEVICE");
    setenv("TRAIN_GPT2_AUTOTUNE_CACHE", temp_path("autotune.txt"), 1);
    setenv("TRAIN_GPT2_SELF_CHECK", "", 1);  // no self-check at the start of each run
    backend = backend_choose(device && strcmp(device, "cpu") != 0 ? DEVICE_CUDA : DEVICE_CPU, true);
    return cmocka_run_group_tests_name("gpt2", test_list()->tests, golden_open, golden_close);
}
