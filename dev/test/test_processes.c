/*
The trainer's model on several ranks, with the trainer's own functions.
    test_processes                      one rank: -z changes nothing
    mpirun test_processes layouts       -z 0..3 at -r 0, 2 and 4, one micro-batch and three: gradients and loss against
                                        one rank, bits against -z 0, allocated bytes against the plan
    mpirun test_processes slices T      -tp T with every -z, -r and -ra, one micro-batch and three: the same checks;
                                        padding after 50 updates; decoding
    mpirun test_processes late T        the same bits through a late communicator (late_comm.h)
    mpirun test_processes offload T     --offload 1 to 4 with every -z, -r 0, 2 and 4, one micro-batch and three: the
                                        bits of --offload 0, also with late copies (late_copies.h); allocated bytes,
                                        and copies that run beside work
    mpirun test_processes sample T      a fifth of it: one number of micro-batches and one kind of copies, in turn
    mpirun test_processes bytes T       allocated bytes, also of a device whose collectives are staged through the host;
                                        sent bytes against the formulas of the ZeRO and sequence-parallelism papers
    mpirun test_processes files T       a checkpoint of one rank is loaded and saved again with -tp T and every -z
    mpirun test_processes replicas R ...
                                        the trainer, without evaluation; all copies of the parameters are compared after
                                        each update. Rank R's parameters change after update 2; -1: none do
    mpirun test_processes fault R FIRST LAST X ...
                                        the trainer, without evaluation; on rank R the calls FIRST to LAST of layer 1's
                                        attention, counted from 1, write X into an element of their output
    mpirun test_processes weight R ...  the trainer, without evaluation; on rank R element 3 of wte is NaN
    mpirun test_processes train ...     the trainer with these flags; in bf16 if this program is built for bf16
    test_processes same A B PREFIX      the .safetensors files A and B have the same tensors with this prefix
TEST_OPTIMIZER=muon in the environment trains these models with Muon; `train` takes --optimizer.
dev/test/test_processes*.sh run these commands and the trainer.
*/
#ifndef TESTING
#define TESTING
#endif
static double test_timeout(void);
#define COMM_TIMEOUT test_timeout()
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../train_gpt2.cu"
#pragma GCC diagnostic pop
#include "late_comm.h"
#include "late_copies.h"
#include "replicas.h"
#include "faulty.h"
#include "run_open.h"
#include "slice_copy.h"
#include "testing.h"

// Seconds without an answer before a run ends. TEST_TIMEOUT=SECONDS,FILE in the environment: SECONDS once FILE exists.
// The file is made when a rank is stopped: no timeout meets a rank that is slow on a busy machine.
static double test_timeout(void) {
    const char *value = getenv("TEST_TIMEOUT"), *file = value ? strchr(value, ',') : NULL;
    return value && (!file || access(file + 1, F_OK) == 0) ? atof(value) : 600;
}

enum { L = 5, B = 2, T = 11, MICRO_STEPS = 3, ROWS = B * T };
static const GPT2Config config = {13, 300, 384, L, 3, 24};

// ---- a device that counts allocated bytes

typedef struct {
    size_t now, most;
} Allocated;

static Allocated *allocated(void) {
    static Allocated bytes;
    return &bytes;
}

enum { COUNTED = 256 };  // bytes before each allocation, which hold the allocation's size

static void *counting_allocate(size_t bytes) {
    char *block = (char *)host_allocate(bytes + COUNTED);
    Allocated *a = allocated();
    memcpy(block, &bytes, sizeof bytes);
    a->now += bytes;
    if (a->now > a->most) { a->most = a->now; }
    return block + COUNTED;
}

static void counting_release(void *p) {
    size_t bytes;
    memcpy(&bytes, (char *)p - COUNTED, sizeof bytes);
    allocated()->now -= bytes;
    free((char *)p - COUNTED);
}

static const Device *counting_device(void) {
    static Device device;
    device = cpu_device;
    device.allocate = counting_allocate;
    device.release = counting_release;
    return &device;
}

static const Backend *counting_backend(void) {
    static Backend backend;
    backend = cpu_backend;
    backend.device = counting_device();
    return &backend;
}

// ---- models

// r: -r. Segments of -r 4 have two or three blocks, so that the next bucket is in the other buffer or in the same.
static ModelOptions options_for(int stage, int r, int micro_steps, const Groups *groups) {
    ModelOptions p = {.backend = counting_backend(), .B = B, .T = T, .micro_steps = micro_steps, .training = true};
    p.recompute.level = r;
    p.recompute.every = r < RECOMPUTE_BLOCK ? 1 : micro_steps > 1 ? 2 : 3;
    p.recompute.layers = micro_steps > 1 ? L - 1 : L;
    p.remainders = r != 2;
    p.moments = moment_types[r / 2];
    p.gradients = micro_steps > 1 ? DT_REAL : DT_FLOATX;
    p.classifier_rows = 5;  // of 22: several chunks, the last one shorter
    p.fuse_gelu = micro_steps > 1;
    p.sharding.dp_size = groups->dp->size;
    p.sharding.dp_rank = groups->dp->rank;
    p.sharding.stage = groups->dp->size > 1 ? stage : 0;
    p.sharding.tp_size = groups->tp->size;
    p.sharding.tp_rank = groups->tp->rank;
    const char *optimizer = getenv("TEST_OPTIMIZER");
    p.sharding.optimizer = optimizer && strcmp(optimizer, "muon") == 0 ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
    return p;
}

// The model allocates exactly the plan.
static GPT2 *model_make_of(GPT2Config c, ModelOptions p, Groups groups) {
    GPT2 *m = (GPT2 *)xmalloc(sizeof *m);
    size_t before = allocated()->now, planned = gpt2_plan_bytes(&c, &p);
    gpt2_build(m, c, p, groups);
    gpt2_init(m, 7);
    CHECK(allocated()->now - before == planned, "-z %d: allocated %zu bytes, planned %zu", p.sharding.stage,
          allocated()->now - before, planned);
    return m;
}

static GPT2 *model_make(ModelOptions p, Groups groups) { return model_make_of(config, p, groups); }

static void model_free(GPT2 *m) {
    gpt2_free(m);
    free(m);
}

// inputs and targets of micro-batch n of update `step`
static void draw_batch(int *tokens, int step, int n) {
    for (int i = 0; i < 2 * ROWS; i++) {
        tokens[i] = (int)(rng_bits(5, 1000 * (uint64_t)step + (uint64_t)n, (uint64_t)i) % (uint64_t)config.vocab_size);
    }
}

// Loss, gradients and norm of update `step`, before AdamW. ranks > 1: one rank takes the batches of that many ranks.
static void make_gradients(GPT2 *m, int step, int ranks) {
    int tokens[2 * ROWS], rank = ranks == 1 ? m->groups.dp->rank : 0, size = m->groups.dp->size;
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    for (int micro = 0; micro < m->options.micro_steps; micro++) {
        draw_batch(tokens, step, micro * size + rank);
        gpt2_stage_batch(m, tokens, tokens + ROWS, not_packed);
        gpt2_micro_step(m, micro);
    }
    gpt2_norm(m);
}

static void change_params(GPT2 *m, int step) {
    StepHyper hyper = {(real)1e-3, (real)0.9, (real)0.95, (real)1e-8, (real)0.1, 1, step + 1, 11, (real)0.95};
    gpt2_update(m, &hyper);
}

static void update(GPT2 *m, int step) {
    make_gradients(m, step, 1);
    change_params(m, step);
}

static double own_gradient(const GPT2 *m, int bucket, size_t i) {
    Gradient g = zero_owned_grads(&m->zero, bucket);
    CHECK(g.at, "there are no gradients");
    return (double)gradient_value(g, i);
}

// This rank's slice of a tensor's gradient on one rank, whose gradients are `real`. *norm: the whole tensor's, squared.
static real *expected_gradient(const GPT2 *m, const GPT2 *alone, ParamId p, int layer, double *norm) {
    const real *whole = (const real *)grad(alone, p, layer).at;
    CHECK(whole, "there are no gradients");
    real *slice = (real *)xmalloc(param_count(&m->layout, p) * sizeof *slice);
    slice_extract(slice, whole, &m->layout.slice[p], sizeof *slice);
    *norm = 0;
    for (size_t i = 0; i < param_count(&alone->layout, p); i++) { *norm += (double)whole[i] * (double)whole[i]; }
    return slice;
}

// This rank's shard of a tensor's gradient agrees with one rank, up to `limit` of the tensor's norm. The gradient of
// padding is 0.
static void check_gradient(const GPT2 *m, const GPT2 *alone, ParamId p, int layer, double limit) {
    int bucket = param_bucket_of(&m->layout, p, layer);
    ParamRange own = param_owned_range(&m->layout, p, layer, param_count(&m->layout, p));
    size_t in_chunk = param_offset(&m->layout, p, layer) - param_bucket(&m->layout, bucket).owned_offset;
    size_t C = (size_t)config.channels, most = C * (4 * C + (size_t)config.padded_vocab_size);
    double norm, difference = 0;
    real *expected = expected_gradient(m, alone, p, layer, &norm);
    unsigned char *ones = (unsigned char *)xmalloc(most);
    unsigned char *is_used = (unsigned char *)xmalloc(param_count(&m->layout, p));  // 0: padding
    memset(ones, 1, most);
    slice_extract(is_used, ones, &m->layout.slice[p], 1);
    for (size_t i = own.offset; i < own.offset + own.count; i++) {
        double got = own_gradient(m, bucket, in_chunk + i), error = got - (double)expected[i];
        difference += error * error;
        CHECK(is_used[i] || got == 0, "padding element %zu of %s has a gradient", i, param_specs[p].name);
    }
    CHECK(difference <= limit * limit * norm, "-tp %d -z %d -r %d -ra %d: the gradient of %s, layer %d, is off by %.2g",
          m->local.tp_size, m->options.sharding.stage, m->options.recompute.level, m->options.gather_again,
          param_specs[p].name, layer, sqrt(difference / norm));
    free(is_used);
    free(ones);
    free(expected);
}

static void check_gradients(const GPT2 *m, const GPT2 *alone, double limit) {
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, &config); layer++) {
            check_gradient(m, alone, (ParamId)id, layer, limit);
        }
    }
}

static void check_number(const char *name, double got, double expected, double limit, const GPT2 *m) {
    CHECK(fabs(got - expected) <= limit * fabs(expected),
          "-tp %d -z %d -r %d, %d micro-batches: %s is %.9g, expected %.9g", m->local.tp_size,
          m->options.sharding.stage, m->options.recompute.level, m->options.micro_steps, name, got, expected);
}

// This rank's shard has the same bits in both models: parameters and optimizer state.
static void check_same_bits(const GPT2 *m, const GPT2 *first) {
    const OptimizerState *a = &m->tensors.optimizer, *b = &first->tensors.optimizer;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        size_t used = param_count(&m->layout, p);
        for (int layer = 0; layer < param_layers(p, &config); layer++) {
            ParamRange x = param_owned_range(&m->layout, p, layer, used);
            ParamRange y = param_owned_range(&first->layout, p, layer, used);
            size_t v = updated_by_muon(&m->layout, p) ? 0 : x.count;
            size_t x_v = v > 0 ? second_moment_at(&m->layout, p, layer, x) : 0;
            size_t y_v = v > 0 ? second_moment_at(&first->layout, p, layer, y) : 0;
            OptimizerState of_x = state_at(a, a->params + x.params, x.state, x_v);
            OptimizerState of_y = state_at(b, b->params + y.params, y.state, y_v);
            const size_t of_part[] = {x.count, x.count, v};
            bool same = true;
            for (int i = 0; i < NUM_STATE_ARRAYS; i++) {
                const StateArray array = state_array(i, a->remainder, a->moments);
                size_t bytes = state_elements(&array, of_part[array.part]) * dtype_size(array.dtype);
                same &= !array.exists || memcmp(of_x.array[i], of_y.array[i], bytes) == 0;
            }
            CHECK(same, "-z %d -r %d: %s of layer %d has other bits than at -z 0", m->options.sharding.stage,
                  m->options.recompute.level, param_specs[id].name, layer);
        }
    }
}

// a hash of the state that is equal on all ranks of the tensor-parallel group, or of the data-parallel group
static uint64_t hash_replica(GPT2 *m, bool tensor_parallel) {
    replicas_wait(&m->zero, m->groups.world);
    return tensor_parallel ? hash_replicated_tensors(&m->zero, &m->tensors.optimizer)
                           : hash_data_parallel(&m->zero, &m->tensors.optimizer);
}

// All ranks of a group compute with the same parameters.
static void check_replicas_agree(GPT2 *m) {
    const Groups *g = &m->groups;
    for (int slices = 0; slices < 2; slices++) {
        Comm *group = slices ? g->tp : g->dp;
        long long hash = (long long)(hash_replica(m, slices) >> 1);
        CHECK(comm_max(hash, group) == -comm_max(-hash, group), "-tp %d -z %d: the ranks' parameters differ",
              m->local.tp_size, m->options.sharding.stage);
    }
}

static const double limit = DT_FLOATX == DT_BF16 ? 3e-2 : 1e-5;

// a model on one rank, with the gradients of the batches of `ranks` ranks
static GPT2 *model_alone(int r, int micro_steps, int ranks, Comm *single) {
    Groups groups = {single, single, single};
    ModelOptions p = options_for(0, r, micro_steps * ranks, &groups);
    p.gradients = DT_REAL;
    GPT2 *alone = model_make(p, groups);
    make_gradients(alone, 0, ranks);
    return alone;
}

// the mean loss of a micro-batch of each rank
static double evaluate_once(GPT2 *m) {
    int tokens[2 * ROWS];
    draw_batch(tokens, 99, m->groups.dp->rank);
    return sum_over_ranks(m, (double)gpt2_loss(m, tokens, tokens + ROWS)) / m->groups.dp->size;
}

static uint64_t hash_own_gradients(const GPT2 *m) {
    uint64_t hash = 0;
    for (int b = 0; b < num_buckets(&m->layout); b++) {
        Gradient own = zero_owned_grads(&m->zero, b);
        CHECK(own.at, "there are no gradients");
        hash = hash_bytes(hash, own.at, param_bucket(&m->layout, b).chunk * dtype_size(own.dtype));
    }
    return hash;
}

// Compares a step with that of one rank, and makes two updates. Returns the hash of this rank's gradients.
static uint64_t check_updates(GPT2 *m, const GPT2 *alone) {
    make_gradients(m, 0, 1);
    uint64_t hash = hash_own_gradients(m);
    check_gradients(m, alone, limit);
    check_number("the loss", (double)*m->loss, (double)*alone->loss, limit, m);
    check_number("the norm", (double)*m->norm_squared, (double)*alone->norm_squared, limit, m);
    for (int step = 0; step < 2; step++) { update(m, step); }
    check_replicas_agree(m);
    return hash;
}

// every -z with one -r and one number of micro-batches
static void check_layouts(int r, int micro_steps, Comm *dp) {
    Comm *single = comm_single(&cpu_device);
    Groups groups = {dp, dp, single};
    double evaluated = 0;
    GPT2 *alone = model_alone(r, micro_steps, dp->size, single), *first = NULL;
    for (int stage = 0; stage <= 3; stage++) {
        GPT2 *m = model_make(options_for(stage, r, micro_steps, &groups), groups);
        check_updates(m, alone);
        if (first && micro_steps == 1) { check_same_bits(m, first); }
        double loss = evaluate_once(m);
        if (stage == 0) { evaluated = loss; }
        check_number("the loss after it", loss, evaluated, micro_steps == 1 ? 0 : limit, m);
        if (stage == 0) {
            first = m;
        } else {
            model_free(m);
        }
    }
    if (first) { model_free(first); }
    model_free(alone);
    comm_close(single);
}

static int run_layouts(void) {
    Comm *world = comm_open();
    const int levels[] = {0, 2, 4};
    for (int i = 0; i < 3; i++) {
        check_layouts(levels[i], 1, world);
        check_layouts(levels[i], MICRO_STEPS, world);
    }
    if (world->rank == 0) { printf("every layout agrees\n"); }
    comm_close(world);
    return 0;
}

// ---- tensor parallelism

// -r and -ra do not change a bit of the gradients; with one micro-batch -z does not either.
static void check_slices_at(int micro_steps, const Groups *groups) {
    Comm *single = comm_single(&cpu_device);
    GPT2 *alone = model_alone(0, micro_steps, groups->dp->size, single);
    uint64_t first = 0;
    for (int k = 0; k < 4 * 3 * 2; k++) {
        int stage = k / 6, r = k / 2 % 3 * 2, again = k % 2;
        if (stage > 0 && groups->dp->size == 1) { break; }
        ModelOptions p = options_for(stage, r, micro_steps, groups);
        p.gather_again = again;
        p.remainders = true;
        GPT2 *m = model_make(p, *groups);
        uint64_t hash = check_updates(m, alone);
        model_free(m);
        if (k == 0 || (micro_steps > 1 && r == 0 && again == 0)) { first = hash; }
        CHECK(hash == first, "-tp %d -z %d -r %d -ra %d, %d micro-batches: the gradients have other bits",
              groups->tp->size, stage, r, again, micro_steps);
    }
    model_free(alone);
    comm_close(single);
}

// Decodes a prompt longer than a rank's rows and one more token. The logits agree with one rank.
static void check_decoding(GPT2 *m, GPT2 *alone) {
    static const int prompt[] = {5, 290, 131, 7, 250, 64, 3, 3, 180, 17, 99, 299, 0};
    float got[300], expected[300];
    for (int from = 0; from < 13; from = from == 0 ? 12 : 13) {
        int n = from == 0 ? 12 : 1;
        gpt2_prefill(m, prompt + from, from, n, got);
        gpt2_prefill(alone, prompt + from, from, n, expected);
        double difference = 0, norm = 0;
        for (int v = 0; v < config.vocab_size; v++) {
            difference += pow((double)got[v] - (double)expected[v], 2);
            norm += pow((double)expected[v], 2);
        }
        CHECK(difference <= limit * limit * norm, "-tp %d: logits after %d tokens are off by %.2g", m->local.tp_size,
              from + n, sqrt(difference / norm));
    }
}

// Whether the first element of a state is zero, but for 8-bit moments; second: it has a second moment.
static bool state_is_zero(OptimizerState o, bool second) {
    static const unsigned char zeros[sizeof(real)];
    for (int i = 0; i < NUM_STATE_ARRAYS; i++) {
        const StateArray a = state_array(i, o.remainder, o.moments);
        bool checked = a.exists && (a.part == OF_WEIGHTS || o.moments != DT_U8) && (a.part != OF_V || second);
        if (checked && memcmp(o.array[i], zeros, dtype_size(a.dtype)) != 0) { return false; }
    }
    return true;
}

// Checks that a tensor's padding and the state of the padding are zero. Returns the number of padding elements.
static size_t check_padding_of(const GPT2 *m, ParamId id) {
    const Slice *s = &m->layout.slice[id];
    size_t count = s->rows * s->cols, all = s->global_rows * s->global_cols, padding = 0;
    unsigned char *ones = (unsigned char *)xmalloc(all), *is_used = (unsigned char *)xmalloc(count);
    memset(ones, 1, all);
    slice_extract(is_used, ones, s, 1);
    for (int layer = 0; layer < param_layers(id, &config); layer++) {
        size_t offset = param_offset(&m->layout, id, layer);
        for (size_t i = 0; i < count; i++) {
            if (is_used[i]) { continue; }
            double value = (double)to_real(m->tensors.optimizer.params[offset + i]);
            CHECK(value == 0, "padding element %zu of %s is %g, expected 0", i, param_specs[id].name, value);
            ParamRange element = {i, 1, offset + i, offset + i};
            bool second = !updated_by_muon(&m->layout, id);
            size_t v = second ? second_moment_at(&m->layout, id, layer, element) : 0;
            const OptimizerState *o = &m->tensors.optimizer;
            CHECK(state_is_zero(state_at(o, o->params + offset + i, offset + i, v), second),
                  "padding element %zu of %s has optimizer state", i, param_specs[id].name);
            padding++;
        }
    }
    free(is_used);
    free(ones);
    return padding;
}

// Padding heads, MLP channels and ids are exactly zero after 50 updates, and so is their state. The loss agrees with
// one rank.
static void check_padding(const Groups *groups, bool remainders, DType moments) {
    enum { UPDATES = 50 };
    Comm *single = comm_single(&cpu_device);
    Groups alone = {single, single, single};
    ModelOptions p = options_for(0, 0, 1, &alone);
    p.remainders = remainders;
    p.moments = moments;
    p.decode_positions = config.max_seq_len;
    GPT2 *whole = model_make(p, alone);
    p.sharding = options_for(0, 0, 1, groups).sharding;
    GPT2 *m = model_make(p, *groups);
    check_decoding(m, whole);
    for (int step = 0; step < UPDATES; step++) {
        update(whole, step);
        update(m, step);
        if (DT_FLOATX == DT_REAL && moments == DT_REAL) {
            check_number("the loss", (double)*m->loss, (double)*whole->loss, 1e-4, m);
        }
    }
    size_t padding = 0;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        size_t of_tensor = check_padding_of(m, (ParamId)id);
        padding += id == WTE ? 0 : of_tensor;  // padding of heads and MLP channels, not of the vocabulary
    }
    CHECK(comm_max((long long)padding, groups->tp) > 0 || config.num_heads % groups->tp->size == 0,
          "there is no padding");
    model_free(m);
    model_free(whole);
    comm_close(single);
}

static void check_padding_of_all_states(const Groups *groups) {
    check_padding(groups, true, DT_REAL);
    check_padding(groups, false, DT_BF16);
    check_padding(groups, true, DT_U8);
}

// ---- late collectives

static uint64_t hash_number(uint64_t hash, double x) { return hash_bytes(hash, &x, sizeof x); }

static uint64_t hash_logits(uint64_t hash, GPT2 *m) {
    static const int prompt[] = {5, 290, 131, 7};
    float logits[300];
    gpt2_prefill(m, prompt, 0, 4, logits);
    return hash_bytes(hash, logits, (size_t)config.vocab_size * sizeof logits[0]);
}

// a hash of all results of this rank in two updates, with a validation and decoding between them
static uint64_t hash_updates(GPT2 *m) {
    uint64_t hash = 0;
    for (int step = 0; step < 2; step++) {
        make_gradients(m, step, 1);
        hash = hash_number(hash, (double)*m->loss);
        hash = hash_number(hash, (double)*m->norm_squared);
        hash ^= hash_own_gradients(m);
        change_params(m, step);
        if (step > 0) { break; }
        hash = hash_number(hash, evaluate_once(m));
        hash = hash_logits(hash, m);
    }
    return hash;
}

static uint64_t hash_state(uint64_t hash, const GPT2 *m) {
    return hash_all_optimizer(hash, &m->tensors.optimizer, m->device, &m->layout);
}

// hash_updates, and all state of this rank
static uint64_t hash_training(GPT2 *m) {
    uint64_t hash = hash_updates(m);
    for (int slices = 0; slices < 2; slices++) {
        uint64_t params = hash_replica(m, slices);
        hash = hash_bytes(hash, &params, sizeof params);
    }
    return hash_state(hash, m);
}

static uint64_t hash_usual_training(ModelOptions p, const Groups *groups) {
    GPT2 *m = model_make(p, *groups);
    uint64_t hash = hash_training(m);
    model_free(m);
    return hash;
}

static uint64_t hash_late_training(ModelOptions p, const Groups *groups, LateKind kind) {
    Groups late;
    late.world = late_comm(groups->world, kind);
    late.dp = late_comm(groups->dp, kind);
    late.tp = late_comm(groups->tp, kind);
    GPT2 *m = model_make(p, late);
    uint64_t hash = hash_training(m);
    Comm *const all[] = {late.tp, late.dp, late.world};
    for (int i = 0; i < 3; i++) {
        late_finish(all[i], &m->exec);
        late_close(all[i]);
    }
    model_free(m);
    return hash;
}

// every -z with one micro-batch and three; -r and -ra in turn
static void check_late(const Groups *groups) {
    static const char *const kinds[] = {"with late results", "with late calls"};
    for (int k = 0; k < 4 * 3; k++) {
        int stage = k / 3, r = (k + stage) % 3 * 2, again = (k + stage) % 2;
        if (stage > 0 && groups->dp->size == 1) { break; }
        ModelOptions p = options_for(stage, r, k % 3 == 0 ? 1 : MICRO_STEPS, groups);
        p.gather_again = again;
        p.decode_positions = config.max_seq_len;
        uint64_t expected = hash_usual_training(p, groups);
        for (int kind = LATE_RESULTS; kind <= LATE_CALLS; kind++) {
            CHECK(hash_late_training(p, groups, (LateKind)kind) == expected,
                  "-tp %d -z %d -r %d -ra %d, %d micro-batches: other bits %s", groups->tp->size, stage, r, again,
                  p.micro_steps, kinds[kind]);
        }
    }
}

// ---- --offload

// Matmuls and buckets of the update count as work beside copies.
static void count_work(const OpCall *call, Exec *ex) {
    static const char *const counted[] = {"matmul_forward", "matmul_backward", "adamw_update", "muon_momentum",
                                          "muon_weights"};
    (void)ex;
    for (size_t i = 0; i < LEN(counted); i++) { late_copies()->work += strcmp(call->op, counted[i]) == 0; }
}

static void count_nothing(const OpCall *call, Exec *ex) { (void)call, (void)ex; }

// Every copy that a micro-step or an update begins is waited for in it, as a CUDA graph demands.
static void check_waited(const GPT2 *m, const char *work) {
    CHECK(late_copies()->num_pending == 0, "--offload %d -z %d: %d copies of the %s are not waited for",
          m->options.sharding.offload, m->options.sharding.stage, late_copies()->num_pending, work);
}

// Copies run while work does, one layer or update bucket ahead. At most `most` copies overlap no work, at the ends of a
// micro-step or update; the number of layers does not matter. With -z, the last micro-step reduces before it stores.
static void check_ahead(const GPT2 *m, const char *work, int most) {
    int exposed = (int)late_copies()->exposed;
    late_copies()->exposed = 0;
    CHECK(m->groups.dp->size > 1 || exposed <= most,
          "--offload %d -r %d -rk %d: %d copies of the %s run without work beside them, expected at most %d",
          m->options.sharding.offload, m->options.recompute.level, m->options.recompute.every, exposed, work, most);
}

// the parameters that this rank owns, where it stores them
static uint64_t hash_own_params(uint64_t hash, const GPT2 *m) {
    for (int b = 0; b < num_buckets(&m->layout); b++) {
        hash = hash_bytes(hash, zero_owned_params(&m->zero, b), param_bucket(&m->layout, b).chunk * sizeof(floatX));
    }
    return hash;
}

// One more update waits for its copies.
static void check_moved(GPT2 *m) {
    late_copies()->exposed = 0;
    make_gradients(m, 2, 1);
    check_ahead(m, "micro-steps", 6 * m->options.micro_steps);
    check_waited(m, "micro-steps");
    change_params(m, 2);
    check_waited(m, "update");
    check_ahead(m, "update", 2);
}

// a hash of two updates and of this rank's state after them
static uint64_t hash_offloaded(ModelOptions p, Groups groups, int offload, CopyKind kind) {
    static Device device;
    static Backend backend;
    static const OpHooks hooks = {&cpu_ops, count_work, count_nothing, NULL};
    Comm *const comms[] = {groups.world, groups.dp, groups.tp};
    device = late_device(kind);
    backend = cpu_backend;
    backend.device = &device;
    backend.ops = &hooked_ops;
    p.backend = &backend;
    p.sharding.offload = offload;
    p.recompute.offload_inputs = offload >= OFFLOAD_INPUTS;
    for (int i = 0; i < 3; i++) { comms[i]->device = &device; }
    GPT2 *m = (GPT2 *)xmalloc(sizeof *m);
    gpt2_build(m, config, p, groups);
    m->exec.hooks = (OpHooks *)&hooks;
    gpt2_init(m, 7);
    Plan plan = gpt2_plan(&config, &p);
    CHECK((size_t)(late_copies()->host_end - late_copies()->host) == plan_bytes(&plan, HOST),
          "--offload %d: %zu bytes of pinned host memory, planned %zu", offload,
          (size_t)(late_copies()->host_end - late_copies()->host), plan_bytes(&plan, HOST));
    plan_free(&plan);
    uint64_t hash = hash_updates(m);
    check_waited(m, "two updates");
    hash = hash_state(hash_own_params(hash, m), m);
    check_replicas_agree(m);
    check_moved(m);
    for (int i = 0; i < 3; i++) { comms[i]->device = &cpu_device; }
    model_free(m);
    return hash;
}

// every -z with -r 0, 2 and 4, one micro-batch and three, every kind of copies; or, of these two, one in turn
static void check_offload(const Groups *groups, bool whole) {
    static const char *const kinds[NUM_COPY_KINDS] = {"", " with late results of copies", " with late copies"};
    Comm *const comms[] = {groups->world, groups->dp, groups->tp};
    for (int i = 0; i < 3; i++) { comm_with_late_copies(comms[i]); }
    for (int k = 0; k < 4 * 3 * 2; k++) {
        int stage = k / 6, r = k / 2 % 3 * 2, micro_steps = k % 2 == 0 ? 1 : MICRO_STEPS;
        if (stage > 0 && groups->dp->size == 1) { break; }
        if (!whole && (stage + r / 2 + k) % 2 == 0) { continue; }
        ModelOptions p = options_for(stage, r, micro_steps, groups);
        p.gather_again = k % 4 < 2;
        p.decode_positions = config.max_seq_len;
        uint64_t expected = hash_offloaded(p, *groups, 0, EARLY_COPIES);
        for (int i = 0; i < 4 * NUM_COPY_KINDS; i++) {
            int offload = 1 + i / NUM_COPY_KINDS, kind = i % NUM_COPY_KINDS;
            if (!whole && kind != (k + offload) % NUM_COPY_KINDS) { continue; }
            CHECK(hash_offloaded(p, *groups, offload, (CopyKind)kind) == expected,
                  "--offload %d -tp %d -z %d -r %d, %d micro-batches: other bits than --offload 0%s", offload,
                  groups->tp->size, stage, r, micro_steps, kinds[kind]);
        }
    }
}

// ---- bytes

// The model allocates only the plan on the device, and the staging communicators allocate nothing there.
static void check_device_bytes(int t, Comm *launched) {
#ifdef HAVE_MPI
    const Device *device = counting_device();
    Groups groups;
    groups.world = comm_mpi_for_device(launched, device);
    groups.tp = comm_split(groups.world, groups.world->rank / t, groups.world->rank);
    groups.dp = comm_split(groups.world, groups.world->rank % t, groups.world->rank);
    for (int stage = 0; stage <= (groups.dp->size > 1 ? 3 : 0); stage++) {
        ModelOptions p = options_for(stage, 2 * (stage % 3), 1 + stage % 2, &groups);
        p.gather_again = true;
        allocated()->most = 0;
        GPT2 *m = model_make(p, groups);
        update(m, 0);
        update(m, 1);
        check_replicas_agree(m);
        model_free(m);
        CHECK(allocated()->most == gpt2_plan_bytes(&config, &p), "-tp %d -z %d: %zu bytes allocated, planned %zu", t,
              stage, allocated()->most, gpt2_plan_bytes(&config, &p));
        CHECK(allocated()->now == 0, "-tp %d -z %d: %zu bytes are not released", t, stage, allocated()->now);
    }
    comm_close(groups.dp);
    comm_close(groups.tp);
    comm_close(groups.world);
#endif
    (void)t;
    (void)launched;
}

// A shape without gaps in the flat buffer, for two shards and for two slices.
enum { VOLUME_L = 6, VOLUME_C = 256, VOLUME_V = 256, VOLUME_T = 16, VOLUME_MICRO_STEPS = 2 };
static const GPT2Config volume_config = {VOLUME_T, VOLUME_V, VOLUME_V, VOLUME_L, 4, VOLUME_C};

// bytes sent by the second update, per group
typedef struct {
    uint64_t dp, tp, world;
} Sent;

static Sent sent_by_update(ModelOptions p, const Groups *groups) {
    int tokens[2 * VOLUME_T];
    GPT2 *m = model_make_of(volume_config, p, *groups);
    Sent sent = {0, 0, 0};
    for (int step = 0; step < 2; step++) {
        Sent before = {groups->dp->sent_bytes, groups->tp->sent_bytes, groups->world->sent_bytes};
        for (int micro = 0; micro < p.micro_steps; micro++) {
            for (int i = 0; i < 2 * VOLUME_T; i++) { tokens[i] = (i * 7 + micro) % VOLUME_V; }
            gpt2_stage_batch(m, tokens, tokens + VOLUME_T, not_packed);
            gpt2_micro_step(m, micro);
        }
        gpt2_norm(m);
        change_params(m, step);
        sent.dp = groups->dp->sent_bytes - before.dp;
        sent.tp = groups->tp->sent_bytes - before.tp;
        sent.world = groups->world->sent_bytes - before.world;
    }
    model_free(m);
    return sent;
}

static void check_volume(const char *name, uint64_t got, uint64_t expected) {
    CHECK(got == expected, "%s: %zu bytes sent, expected %zu", name, (size_t)got, (size_t)expected);
}

static ModelOptions volume_options(int stage, int level, const Groups *groups) {
    ModelOptions p = options_for(stage, 0, VOLUME_MICRO_STEPS, groups);
    Recompute recompute = {level, 3, VOLUME_L, false};  // -r 4: two checkpoint segments
    p.B = 1;
    p.T = VOLUME_T;
    p.recompute = recompute;
    p.sharding.optimizer = OPTIMIZER_ADAMW;
    return p;
}

// A rank sends (N - 1) / N of these elements per update, with P parameters and G micro-batches (Rajbhandari et al.
// 2020):
//     -z 0 and 1   2 P        -z 1: half gradients, half parameters
//     -z 2         (G + 1) P
//     -z 3         3 G P      less 2 layers per micro-batch that the backward finds in the two buffers, and less the
//                             embeddings and lnf, all-gathered once per update instead of twice per micro-batch.
//                             -r 4: it finds one, and gathers the first of each of 2 segments twice
//     Muon         2 M more, with the matrices M
static void check_volume_of_stages(const Groups *groups) {
    const uint64_t G = VOLUME_MICRO_STEPS, C = VOLUME_C, layer = 12 * C * C + 13 * C;
    const uint64_t rest = (VOLUME_V + VOLUME_T + 2) * C, P = VOLUME_L * layer + rest;
    const uint64_t whole = 2 * G * P - (2 * G - 1) * rest;  // every layer, in each forward and backward
    const struct {
        int stage, level;
        OptimizerKind optimizer;
        uint64_t gradients, params;
    } cases[] = {{0, 0, OPTIMIZER_ADAMW, 2 * P, 0},
                 {1, 0, OPTIMIZER_ADAMW, P, P},
                 {2, 0, OPTIMIZER_ADAMW, G * P, P},
                 {3, 0, OPTIMIZER_ADAMW, G * P, whole - 2 * G * layer},
                 {3, 4, OPTIMIZER_ADAMW, G * P, whole + G * layer},
                 {1, 0, OPTIMIZER_MUON, P, P + 2 * VOLUME_L * 12 * C * C}};
    for (size_t i = 0; i < LEN(cases); i++) {
        char name[48];
        ModelOptions p = volume_options(cases[i].stage, cases[i].level, groups);
        p.sharding.optimizer = cases[i].optimizer;
        Sent sent = sent_by_update(p, groups);
        snprintf(name, sizeof name, "case %zu, -z %d -r %d on 2 ranks", i, cases[i].stage, cases[i].level);
        check_volume(name, sent.dp, (cases[i].gradients * sizeof(real) + cases[i].params * sizeof(floatX)) / 2);
        check_volume("loss and norm", sent.world, 2 * sizeof(real));
    }
}

// Sequence parallelism (Korthikanti et al. 2022). A collective of rows sends (t - 1) / t of B*T*C elements.
//     a layer's forward    2 all-gathers, 2 reduce-scatters
//     a layer's backward   2 all-gathers, 2 reduce-scatters; two more all-gathers with -ra 1, or where layernorms are
//                          recomputed
//     -r 4                 2 all-gathers, 2 reduce-scatters again; of the last block of a segment one of each
//     outside of layers    a reduce-scatter of the embeddings and an all-gather of lnf, and the same in the backward;
//                          an all-gather of 3 statistics per row of logits
// Once per update the gradients of replicated tensors are all-reduced: 6 C per layer, wpe and lnf.
static void check_volume_of_slices(const Groups *groups) {
    const uint64_t C = VOLUME_C, T = VOLUME_T, replicated = (6 * VOLUME_L + T + 2) * C;
    const struct {
        int level;
        bool again;
        uint64_t collectives;  // of all layers
    } cases[] = {{0, false, VOLUME_L * (4 + 4)},
                 {0, true, VOLUME_L * (4 + 6)},
                 {2, false, VOLUME_L * (4 + 6)},
                 {4, true, VOLUME_L * (4 + 6 + 4) - 2 * 2}};
    for (size_t i = 0; i < LEN(cases); i++) {
        char name[32];
        ModelOptions p = volume_options(0, cases[i].level, groups);
        p.gather_again = cases[i].again;
        uint64_t rows = (cases[i].collectives + 4) * T * C / 2 * sizeof(floatX);
        uint64_t micro = rows + 3 * T * sizeof(real);
        Sent sent = sent_by_update(p, groups);
        snprintf(name, sizeof name, "-tp 2 -ra %d -r %d", cases[i].again, cases[i].level);
        check_volume(name, sent.tp, VOLUME_MICRO_STEPS * micro + replicated * sizeof(real));
        check_volume("loss and norm", sent.world, 2 * sizeof(real));
    }
}

static void check_volumes(Comm *world) {
    Comm *pair = comm_split(world, 0, world->rank), *single = comm_single(&cpu_device);
    Groups stages = {world, pair, single}, slices = {world, single, pair};
    check_volume_of_stages(&stages);
    check_volume_of_slices(&slices);
    comm_close(single);
    comm_close(pair);
}

// ---- checkpoints of slices

static void save_in(const char *folder, GPT2 *m, Comm *world) {
    cJSON *nothing = cJSON_CreateObject();
    ModelState state = gpt2_state(m);
    if (world->rank == 0) { mkdir(folder, 0777); }
    comm_barrier(world);
    state.world = m->groups.world;
    uint32_t crcs[2];
    checkpoint_save(folder, "step_00000001", &state, nothing, true, crcs);
    cJSON_Delete(nothing);
}

// the model of a checkpoint
static GPT2 *model_from(const char *folder, ModelOptions p, const Groups *groups) {
    char path[PATH_LENGTH];
    GPT2 *m = model_make(p, *groups);
    checkpoint_path(path, folder, 1);
    ModelFile file = model_open(path);
    ModelState state = gpt2_state(m);
    checkpoint_load(path, &file, &state);
    zero_params_changed(&m->zero);
    model_close(&file);
    return m;
}

static void check_same_file(const char *a, const char *b, const char *name, const GPT2 *m) {
    char command[PATH_LENGTH];
    format_path(command, "cmp %s/step_00000001/%s %s/step_00000001/%s", a, name, b, name);
    CHECK(system(command) == 0, "-tp %d -z %d, moments %s: %s differs", m->local.tp_size, m->options.sharding.stage,
          dtype_name(m->options.moments), name);
}

// Loads a checkpoint of one rank, saves, loads and saves it again: the files are equal. 8-bit moments are an exception:
// the first save with other slices rounds them again, the second does not.
static void check_files(ModelOptions p, const Groups *groups, int which) {
    char from[32], first[32], second[32];
    Comm *world = groups->world, *single = comm_single(&cpu_device);
    Groups alone = {single, single, single};
    snprintf(from, sizeof from, "alone_%d", which);
    snprintf(first, sizeof first, "first_%d", which);
    snprintf(second, sizeof second, "second_%d", which);
    if (world->rank == 0) {
        ModelOptions whole = p;
        whole.sharding = options_for(0, 0, 1, &alone).sharding;
        GPT2 *m = model_make(whole, alone);
        update(m, 0);
        save_in(from, m, single);
        model_free(m);
    }
    comm_barrier(world);
    GPT2 *m = model_from(from, p, groups);
    save_in(first, m, world);
    GPT2 *again = model_from(first, p, groups);
    save_in(second, again, world);
    bool codes = p.moments == DT_U8 && groups->tp->size > 1;
    if (world->rank == 0) { check_same_file(first, from, "model.safetensors", m); }
    if (world->rank == 0) { check_same_file(first, codes ? second : from, "optimizer.safetensors", m); }
    model_free(again);
    model_free(m);
    comm_close(single);
}

static void check_all_files(const Groups *groups) {
    for (int k = 0; k < 4 * 3; k++) {
        int stage = k / 3, r = k % 3 * 2;
        if (stage > 0 && groups->dp->size == 1) { break; }
        ModelOptions p = options_for(stage, r, 1, groups);
        p.moments = moment_types[(k + 2) % 3];  // 8-bit moments with -w split
        check_files(p, groups, k);
    }
}

static int run_groups(int t, const char *command) {
    Groups groups;
    groups.world = comm_open();
    groups.tp = comm_split(groups.world, groups.world->rank / t, groups.world->rank);
    groups.dp = comm_split(groups.world, groups.world->rank % t, groups.world->rank);
    if (strcmp(command, "files") == 0) {
        check_all_files(&groups);
    } else if (strcmp(command, "late") == 0) {
        check_late(&groups);
    } else if (strcmp(command, "offload") == 0 || strcmp(command, "sample") == 0) {
        check_offload(&groups, strcmp(command, "offload") == 0);
    } else if (strcmp(command, "bytes") == 0) {
        check_device_bytes(t, groups.world);
        if (t == 1 && groups.world->size == 2) { check_volumes(groups.world); }
    } else {
        if (groups.dp->size == 1) { check_padding_of_all_states(&groups); }
        check_slices_at(1, &groups);
        check_slices_at(MICRO_STEPS, &groups);
    }
    if (groups.world->rank == 0) { printf("every layout agrees\n"); }
    comm_close(groups.dp);
    comm_close(groups.tp);
    comm_close(groups.world);
    return 0;
}

// ---- a rank that goes wrong

// like the trainer's main, but a resumed run's saved flags are not read
static TrainArgs trainer_args(int argc, char **argv, Comm *launched) {
    TrainArgs args = default_args;
    flags_parse(flag_table, NUM_FLAGS, &args, argc, argv);
    args_set_ranks(&args, launched);
    share_machine(&args, launched);
    require_consistent_flags(&args);
    return args;
}

// The commands replicas, weight and fault, whose arguments begin with the rank that goes wrong.
static int run_wrong(const char *command, char **arguments, int argc, char **argv) {
    Comm *launched = comm_open();
    TrainArgs args = trainer_args(argc, argv, launched);
    bool replicas = strcmp(command, "replicas") == 0, weight = strcmp(command, "weight") == 0;
    bool is_wrong = launched->rank == atoi(arguments[0]);
    Run run;
    run_open(&run, &args, launched);
    GPT2 *m = &run.model;
    Ops faulty;
    if (weight && is_wrong) { m->tensors.optimizer.params[3] = to_floatX((real)NAN); }  // wte comes first
    if (!replicas && !weight && is_wrong) {
        insert_fault(m, &faulty, atoi(arguments[1]), atoi(arguments[2]), (real)atof(arguments[3]));
    }
    while (run.step < run.max_steps) {
        if (replicas) {
            start_step(&run);
            finish_step(&run);
        } else {
            advance(&run);
        }
        if (weight) { break; }
        if (replicas && run.step == 2 && is_wrong) {
            floatX *param = m->tensors.optimizer.params + param_updated_range(&m->layout, LN1W, 0, 1).params;
            *param = to_floatX(to_real(*param) * (real)1.01);
        }
        check_replicas_agree(m);
        if (replicas && launched->rank == 0) { fprintf(stderr, "the replicas of step %lld agree\n", run.step); }
        if (!replicas && is_due(run.step, args.checkpoint_every, false)) { save_step(&run, true); }
        require_updates(&run.outliers, &run.log, run.step >= run.max_steps);
    }
    run_close(&run);
    comm_close(launched);
    return 0;
}

// ---- the trainer and its files

static int run_trainer(int argc, char **argv) {
    Comm *launched = comm_open();
    TrainArgs args = trainer_args(argc, argv, launched);
    train(&args, launched);
    comm_close(launched);
    return 0;
}

// Stops at the first tensor with this prefix that differs, or if no tensor has the prefix.
static int run_same(const char *a_path, const char *b_path, const char *prefix) {
    SafeTensors a = safetensors_open(a_path), b = safetensors_open(b_path);
    int found = 0;
    for (int i = 0; i < a.num_tensors; i++) {
        const SafeTensor *x = &a.tensors[i], *y = safetensors_find(&b, x->name);
        if (strncmp(x->name, prefix, strlen(prefix)) != 0) { continue; }
        size_t bytes = (size_t)(x->end - x->begin);
        CHECK(y && y->end - y->begin == bytes, "%s has no tensor %s of %zu bytes", b_path, x->name, bytes);
        char *in_a = (char *)xmalloc(bytes), *in_b = (char *)xmalloc(bytes);
        safetensors_read(&a, x, 0, in_a, bytes);
        safetensors_read(&b, y, 0, in_b, bytes);
        CHECK(memcmp(in_a, in_b, bytes) == 0, "tensor %s differs in %s and %s", x->name, a_path, b_path);
        free(in_a);
        free(in_b);
        found++;
    }
    CHECK(found > 0, "%s has no tensor %s...", a_path, prefix);
    safetensors_close(&a);
    safetensors_close(&b);
    return 0;
}

// ---- one rank

TEST(test_one_rank) {
    Comm *single = comm_single(&cpu_device);
    check_layouts(0, 1, single);
    check_layouts(4, 2, single);
    assert_int_equal(single->sent_bytes, 0);
    comm_close(single);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "layouts") == 0) { return run_layouts(); }
    if (argc == 3) { return run_groups(atoi(argv[2]), argv[1]); }
    bool one = argc > 2 && (strcmp(argv[1], "replicas") == 0 || strcmp(argv[1], "weight") == 0);
    if (one) { return run_wrong(argv[1], argv + 2, argc - 2, argv + 2); }
    if (argc > 5 && strcmp(argv[1], "fault") == 0) { return run_wrong(argv[1], argv + 2, argc - 5, argv + 5); }
    if (argc > 2 && strcmp(argv[1], "train") == 0) { return run_trainer(argc - 1, argv + 1); }
    if (argc == 5 && strcmp(argv[1], "same") == 0) { return run_same(argv[2], argv[3], argv[4]); }
    return run_all_tests("processes");
}
