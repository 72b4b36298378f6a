/*
The memory plan of a GPU, in bf16 and with the CUDA backend's scratch: the figures that doc/memory.md promises, the
activations that each -r saves, and the options that --fit and -r auto choose.
*/
#include "llmc/run/fit.h"
#include "llmc/run/ranks.h"
#include "plan_bytes.h"
#include "testing.h"

// ---- a GPU that is too old. First, since the child that it forks would lack OpenMP's threads

static void choose_backend(void *choice) {
    simt::settings().capability = DT_FLOATX == DT_BF16 ? 75 : 70;
    backend_choose(*static_cast<const DeviceChoice *>(choice), true);
}

// a GPU that this build has no kernels for: refused, unless the run is on the CPU or only plans
TEST(test_gpu_is_too_old) {
    DeviceChoice choice = DEVICE_AUTO;
    const char *sentence =
        DT_FLOATX == DT_BF16 ? "capability 7.5, and this bf16 build needs 8.0; build with make PRECISION=fp32, or give"
                             : "capability 7.0, and this fp32 build needs 7.5; give --device cpu";
    assert_stops(2, sentence, choose_backend, &choice);
    choice = DEVICE_CUDA;
    assert_stops(2, "give --device cpu", choose_backend, &choice);
    simt::Settings before = simt::settings();
    simt::settings().capability = 70;
    assert_ptr_equal(backend_choose(DEVICE_CPU, true), &cpu_backend);
    assert_ptr_equal(backend_choose(DEVICE_AUTO, false), &cuda_backend);
    simt::settings() = before;
    assert_ptr_equal(backend_choose(DEVICE_AUTO, true), &cuda_backend);
}

// ---- figures

static const GPT2Config gpt2_124m = {1024, 50257, 50304, 12, 12, 768};
static const GPT2Config gpt2_1558m = {1024, 50257, 50304, 48, 25, 1600};

static ModelOptions training(int B, int level, int every) {
    ModelOptions p = {.backend = &cuda_backend, .B = B, .T = 1024, .micro_steps = 1, .training = true};
    p.recompute = {level, every, 48, false};
    p.capability = 90;
    p.remainders = true;
    p.moments = DT_BF16;
    p.gradients = DT_BF16;
    return p;
}

// MiB of one lifetime, or of the device (NUM_LIFETIMES)
static double planned(const GPT2Config *c, ModelOptions p, Lifetime lifetime) {
    if (p.recompute.layers > c->num_layers) { p.recompute.layers = c->num_layers; }
    if (p.recompute.every == 0) { p.recompute.every = best_segment(c, p); }
    Plan plan = gpt2_plan(c, &p);
    double mib = mebibytes(lifetime == NUM_LIFETIMES ? plan_device_bytes(&plan) : plan_bytes(&plan, lifetime));
    plan_free(&plan);
    return mib;
}

static double activations(const GPT2Config *c, ModelOptions p) { return planned(c, p, SAVED) + planned(c, p, SCRATCH); }

static void assert_under(const char *name, double mib, double limit) {
    printf("    %-52s %9.1f MiB of %9.1f\n", name, mib, limit);
    if (!(mib < limit)) { fail_msg("%s: %.1f MiB, expected less than %.1f", name, mib, limit); }
}

TEST(test_figures) {
    assert_under("124M, B 4, -r 1, activations and scratch", activations(&gpt2_124m, training(4, 1, 1)), 1010);
    assert_under("124M, B 4, -r 2", activations(&gpt2_124m, training(4, 2, 1)), 870);
    assert_under("124M, B 4, -r 4", activations(&gpt2_124m, training(4, 4, 1)), 270);
    assert_under("1558M, B 32, -r 4 -rk 1", activations(&gpt2_1558m, training(32, 4, 1)), 6.5 * 1024);
    assert_under("1558M, B 32, -r 4 -rk 0", activations(&gpt2_1558m, training(32, 4, 0)), 5.5 * 1024);
    double saved = activations(&gpt2_1558m, training(32, 1, 1)) - activations(&gpt2_1558m, training(32, 2, 1));
    printf("    1558M, B 32: -r 2 needs %.1f MiB less than -r 1\n", saved);
    assert_in_range((int)saved, 9600 - 100, 9600);
    ModelOptions whole = training(4, 4, 1), small = whole;
    small.moments = DT_U8;
    assert_under("1558M whole, B 4, -r 4 -w split -om bf16", planned(&gpt2_1558m, whole, NUM_LIFETIMES), 16 * 1024);
    assert_under("1558M whole, B 4, -r 4 -w split -om 8bit", planned(&gpt2_1558m, small, NUM_LIFETIMES), 13 * 1024);
}

// Muon saves the second moments of the matrices, and scales of 8 bits, and needs no other memory.
TEST(test_muon_has_one_moment) {
    const double matrices = 12.0 * 48 * 1600 * 1600 / 1048576;
    const struct {
        DType moments;
        double bytes;
    } cases[] = {{DT_F32, 4}, {DT_BF16, 2}, {DT_U8, 1 + 4.0 / 128}};
    for (const auto &k : cases) {
        ModelOptions adamw = training(4, 4, 1), muon;
        adamw.moments = k.moments;
        muon = adamw;
        muon.sharding.optimizer = OPTIMIZER_MUON;
        double saved = planned(&gpt2_1558m, adamw, NUM_LIFETIMES) - planned(&gpt2_1558m, muon, NUM_LIFETIMES);
        assert_true(fabs(saved - k.bytes * matrices) < 1);
    }
    ModelOptions bf16_moments = training(4, 4, 1), codes = bf16_moments;
    bf16_moments.sharding.optimizer = codes.sharding.optimizer = OPTIMIZER_MUON;
    codes.moments = DT_U8;
    assert_under("1558M, B 4, -r 4 -om bf16, Muon", planned(&gpt2_1558m, bf16_moments, NUM_LIFETIMES), 12.65 * 1024);
    assert_under("1558M, B 4, -r 4 -om 8bit, Muon", planned(&gpt2_1558m, codes, NUM_LIFETIMES), 11.2 * 1024);
    // doc/parallel.md
    ModelOptions sharded = training(4, 4, 1);
    sharded.moments = DT_F32;
    sharded.sharding.dp_size = 64;
    sharded.sharding.stage = 1;
    assert_under("1558M, B 4, -r 4 -z 1 -pn 64, AdamW", planned(&gpt2_1558m, sharded, NUM_LIFETIMES), 6.95 * 1024);
    sharded.sharding.optimizer = OPTIMIZER_MUON;
    assert_under("1558M, B 4, -r 4 -z 1 -pn 64, Muon", planned(&gpt2_1558m, sharded, NUM_LIFETIMES), 8.05 * 1024);
}

// bytes of state per parameter; the few bytes of update_ranges do not matter
TEST(test_bytes_per_parameter) {
    const struct {
        bool remainders;
        DType moments, gradients;
        double bytes;
    } cases[] = {{true, DT_F32, DT_BF16, 14},
                 {true, DT_BF16, DT_BF16, 10},
                 {false, DT_BF16, DT_BF16, 8},
                 {true, DT_U8, DT_BF16, 8 + 8.0 / 128},
                 {true, DT_BF16, DT_F32, 12}};
    for (size_t i = 0; i < LEN(cases); i++) {
        ModelOptions p = training(4, 1, 1);
        p.remainders = cases[i].remainders;
        p.moments = cases[i].moments;
        p.gradients = cases[i].gradients;
        double bytes = planned(&gpt2_1558m, p, STATE) * 1048576 / (double)param_layout(&gpt2_1558m).total;
        printf("    %.4f bytes per parameter\n", bytes);
        assert_true(fabs(bytes - cases[i].bytes) < 1e-4);
    }
}

// Bytes of state per parameter on each of 8 ranks with -z. A rank also has buffers for the buckets of two layers, the
// embeddings and lnf: of gradients from -z 2 on, of parameters at -z 3.
TEST(test_bytes_per_parameter_of_shards) {
    const double N = 8, total = (double)param_layout(&gpt2_1558m).total;
    const double layer = 12.0 * 1600 * 1600, outside = 1600.0 * (50304 + 1024);
    const double buffers = 2 * layer + outside, stored[] = {10, 4 + 6 / N, 2 + 8 / N, 10 / N};
    for (int stage = 0; stage <= 3; stage++) {
        ModelOptions p = training(4, 1, 1);
        p.sharding.dp_size = (int)N;
        p.sharding.stage = stage;
        double buffered = stage < 2 ? 0 : stage < 3 ? 2 * buffers : 4 * buffers;
        double bytes = planned(&gpt2_1558m, p, STATE) * 1048576, expected = stored[stage] * total + buffered;
        printf("    -z %d: %.2f bytes per parameter, of which buffers %.2f\n", stage, bytes / total, buffered / total);
        assert_true(fabs(bytes - expected) < 1e-3 * expected);
    }
}

// tensors that -tp does not divide: three buffers for the rows of all ranks, and tensors of the same size for any -tp
static bool is_whole(const char *name) {
    const char *const whole[] = {"tokens",       "targets",        "losses",   "statistics",        "results",
                                 "norm_scratch", "hidden_scratch", "partials", "gathered_gradient", "matmul_workspace"};
    for (size_t i = 0; i < LEN(whole); i++) {
        if (strcmp(name, whole[i]) == 0) { return true; }
    }
    return false;
}

// bytes of activations and scratch that -tp divides
static size_t divided_bytes(const Plan *plan) {
    size_t bytes = 0;
    for (int i = 0; i < plan->count; i++) {
        const PlanTensor *t = &plan->tensors[i];
        if (t->lifetime != STATE && !is_whole(t->name)) { bytes += t->bytes; }
    }
    return bytes;
}

static void check_tensor_parallel_activations(const GPT2Config *c, int level, int t) {
    ModelOptions p = training(4, level, 1);
    p.recompute.layers = c->num_layers;
    p.gather_again = true;
    size_t buffer = (size_t)p.B * (size_t)p.T * (size_t)c->channels * sizeof(floatX);
    Plan whole = gpt2_plan(c, &p);
    size_t alone = plan_bytes(&whole, SAVED) + plan_bytes(&whole, SCRATCH), divided_alone = divided_bytes(&whole);
    size_t same =
        alone - divided_alone - 2 * buffer;  // norm_scratch and hidden_scratch; gathered_gradient is the third
    same -= plan_tensor_bytes(&whole, "matmul_workspace");  // it follows the largest weight gradient that is split
    p.sharding.tp_size = t;
    Plan plan = gpt2_plan(c, &p);
    size_t bytes = plan_bytes(&plan, SAVED) + plan_bytes(&plan, SCRATCH), divided = divided_bytes(&plan);
    size_t heads = (size_t)local_shape(c, t, 0).heads * (size_t)t;  // padding heads too
    printf("    -tp %d -r %d, %2d layers: %7.1f MiB instead of %7.1f; three buffers of %.1f\n", t, level, c->num_layers,
           mebibytes(bytes), mebibytes(alone), mebibytes(buffer));
    // a logits chunk is a whole number of tiles, which depends on the slice of the vocabulary
    assert_true((double)(divided * (size_t)t) <= 1.01 * (double)divided_alone * (double)heads / c->num_heads);
    same += plan_tensor_bytes(&plan, "statistics") + plan_tensor_bytes(&plan, "matmul_workspace");
    assert_true(bytes <= divided + 3 * buffer + same);
    for (int id = 0; id < NUM_ACTIVATIONS; id++) {
        const char *name = activation_specs[id].name;
        if (id == LOSSES || plan_tensor_bytes(&plan, name) == 0) { continue; }
        Width width = activation_specs[id].width;
        bool by_head = width == WIDTH_HEADS || width == WIDTH_ATTN || width == WIDTH_QKV;
        size_t here = plan_tensor_bytes(&plan, name), there = plan_tensor_bytes(&whole, name);
        assert_int_equal(here * (size_t)t * (by_head ? (size_t)c->num_heads : 1), there * (by_head ? heads : 1));
    }
    assert_int_equal(plan_tensor_bytes(&plan, "norm_scratch"), buffer);
    assert_int_equal(plan_tensor_bytes(&plan, "hidden_scratch"), buffer);
    assert_int_equal(plan_tensor_bytes(&plan, "gathered_gradient"), buffer);
    plan_free(&plan);
    plan_free(&whole);
}

// With -tp t a rank needs 1/t of the activations and scratch of one rank, and three buffers, for any number of layers.
TEST(test_tensor_parallel_activations) {
    for (int k = 0; k < 5 * 3; k++) {
        check_tensor_parallel_activations(&gpt2_124m, k / 3, 2 << k % 3);
        check_tensor_parallel_activations(&gpt2_1558m, k / 3, 2 << k % 3);
    }
}

// All ranks have the same plan, so --fit and -r auto choose the same flags on all ranks.
TEST(test_all_ranks_have_the_same_plan) {
    for (int stage = 0; stage <= 3; stage++) {
        ModelOptions p = training(4, 1, 1);
        p.sharding.dp_size = 3;
        p.sharding.tp_size = 2;
        p.sharding.stage = stage;
        size_t bytes = gpt2_plan_bytes(&gpt2_1558m, &p);
        for (int i = 0; i < 6; i++) {
            p.sharding.dp_rank = i / 2;
            p.sharding.tp_rank = i % 2;
            assert_int_equal(gpt2_plan_bytes(&gpt2_1558m, &p), bytes);
        }
    }
}

// saved activations of a block, in channels per token, by the slots of activations.h
TEST(test_saved_channels_of_every_level) {
    enum { L = 7 };
    const int expected[] = {16, 12, 10, 6, 1};
    for (int level = 0; level <= RECOMPUTE_BLOCK; level++) {
        Recompute r = {level, 1, L, false};
        int saved = 0;
        for (int id = LN1; id <= RESIDUAL3; id++) {
            const int channels[] = {0, 0, 1, 1, 3, 4};  // by Width
            for (int l = 0; l < L && !activation_specs[id].statistic; l++) {
                saved += activation_is_saved(&r, (ActivationId)id, l) ? channels[activation_specs[id].width] : 0;
            }
        }
        assert_int_equal(saved, L * expected[level]);
    }
}

// ---- flags in effect

static TrainArgs args_of(int B) {
    TrainArgs a = default_args;
    a.B = B;
    a.sample_every = 0;
    return a;
}

// -z divides among data-parallel ranks. On one of them it must not change a tensor of the plan: not the type of the
// gradients, and no rung of --fit.
TEST(test_stage_without_data_parallelism) {
    const int ranks[] = {1, 2, 8};  // all of a tensor-parallel group
    const PlanBytes room = {(size_t)2 << 30, SIZE_MAX};
    for (int i = 0; i < 3; i++) {
        TrainArgs a = args_of(4);
        a.num_processes = a.tensor_parallel = ranks[i];
        a.batch_tokens = 524288;
        const size_t unsharded = plan_of(&a, &gpt2_124m, &cuda_backend).device;
        for (a.zero = 1; a.zero <= 3; a.zero++) {
            ModelOptions o = model_options(&a, &gpt2_124m, &cuda_backend);
            assert_true(o.sharding.stage == 0 && o.gradients == DT_REAL);
            assert_int_equal(gpt2_plan_bytes(&gpt2_124m, &o), unsharded);
        }
        a.zero = 0;
        climb(&a, true, 0, NUM_RUNGS, &gpt2_124m, &cuda_backend, room);
        assert_int_equal(a.zero, 0);
    }
    TrainArgs a = args_of(4);
    a.num_processes = 4;
    a.tensor_parallel = 2;
    a.batch_tokens = 524288;
    a.zero = 2;
    ModelOptions o = model_options(&a, &gpt2_124m, &cuda_backend);
    assert_true(o.sharding.stage == 2 && o.gradients == DT_BF16 && stored_gradients(&o) == DT_REAL);
}

typedef struct {
    const char *name;
    int micro_steps, ranks, zero, offload;
    bool gpu, refused;  // -gd bf16 is refused
    DType automatic;    // -gd auto
} GradientRow;

static void choose_gradients(void *row) {
    const GradientRow *r = (const GradientRow *)row;
    const Backend *on = r->gpu ? &cuda_backend : &cpu_backend;
    TrainArgs a = args_of(4);
    a.num_processes = r->ranks;
    a.zero = r->zero;
    a.offload = r->offload;
    a.batch_tokens = (int64_t)r->micro_steps * r->ranks * 4 * 1024;
    assert_int_equal(model_options(&a, &gpt2_124m, on).gradients, r->automatic);
    a.gradients = GRADIENTS_BF16;
    assert_int_equal(model_options(&a, &gpt2_124m, on).gradients, DT_BF16);
}

// A micro-batch of 4 x 1024 rows has 16 logits chunks, and rounds the gradient of wte as often. n GPUs add n - 1.
TEST(test_sums_in_bf16) {
    const GradientRow rows[] = {{"one micro-batch", 1, 1, 0, 0, true, false, DT_BF16},
                                {"8 micro-batches", 8, 1, 0, 0, true, false, DT_REAL},
                                {"9 micro-batches", 9, 1, 0, 0, true, true, DT_REAL},
                                {"their sum in host memory", 9, 1, 0, 4, true, true, DT_REAL},
                                {"a shard of the optimizer state", 9, 8, 1, 0, true, true, DT_REAL},
                                {"fp32 shards of gradients", 1024, 8, 2, 0, true, false, DT_BF16},
                                {"offloaded fp32 shards", 1024, 8, 3, 4, true, false, DT_BF16},
                                {"113 GPUs", 1, 113, 1, 0, true, false, DT_BF16},
                                {"114 GPUs", 1, 114, 1, 0, true, false, DT_REAL},
                                {"114 GPUs, sums of each micro-batch", 2, 114, 2, 0, true, false, DT_REAL},
                                {"MPI adds in fp32", 1, 114, 1, 0, false, false, DT_BF16}};
    for (size_t i = 0; i < LEN(rows); i++) {
        printf("    %s\n", rows[i].name);
        GradientRow row = rows[i];
        if (row.refused) {
            assert_stops(2, "times the norm is off by over 1 %; give -gd auto, which adds in fp32\n", choose_gradients,
                         &row);
        } else {
            choose_gradients(&row);
        }
    }
    const GPT2Config narrow = {1024, 50257, 50304, 2, 2, 64};  // 196 chunks of 64 x 1024 rows
    TrainArgs a = args_of(64);
    assert_int_equal(model_options(&a, &narrow, &cuda_backend).gradients, DT_REAL);
}

// ---- the ladder

// Each rung is taken where the one before it lacks a byte. After the last one nothing fits.
static void check_rungs(const TrainArgs *a, const GPT2Config *c, const Backend *backend, const char *const *rungs) {
    PlanBytes room = {SIZE_MAX, SIZE_MAX};
    TrainArgs fitting = *a;
    PlanBytes bytes = climb(&fitting, false, 0, NUM_RUNGS, c, backend, room);
    for (; *rungs; rungs++) {
        char text[FLAG_TEXT];
        rungs_text(text, &fitting, a);
        printf("    %6.2f GiB, %5.2f on the host: %s\n", gibibytes(bytes.device), gibibytes(bytes.host), text);
        assert_true(fits(bytes, room));
        assert_string_equal(text, *rungs);
        ModelOptions o = model_options(&fitting, c, backend);
        assert_int_equal(bytes.device, gpt2_plan_bytes(c, &o));
        room.device = bytes.device - 1;
        fitting = *a;
        bytes = climb(&fitting, false, 0, NUM_RUNGS, c, backend, room);
    }
    assert_false(fits(bytes, room));
}

TEST(test_ladder) {
    const char *const gpu[] = {"-r 0",
                               "-r 1",
                               "-r 2",
                               "-r 3",
                               "-r 4",
                               "-r 4 -om bf16",
                               "-r 4 -om 8bit",
                               "-r 4 -om 8bit --offload 1",
                               "-r 4 -om 8bit --offload 2",
                               "-r 4 -om 8bit --offload 3",
                               "-r 4 -om 8bit --offload 4",
                               NULL};
    TrainArgs a = args_of(4);
    check_rungs(&a, &gpt2_1558m, &cuda_backend, gpu);

    const char *const eight_gpus[] = {"-r 0",
                                      "-z 1 -r 0",
                                      "-z 1 -r 1",
                                      "-z 1 -r 2",
                                      "-z 1 -r 3",
                                      "-z 1 -r 4",
                                      "-r 4 -z 2",
                                      "-r 4 -z 3",
                                      "-r 4 -z 3 -om bf16",
                                      "-r 4 -z 3 -om 8bit",
                                      "-r 4 -z 3 -om 8bit --offload 1",
                                      "-r 4 -z 3 -om 8bit --offload 2",
                                      "-r 4 -z 3 -om 8bit --offload 3",
                                      "-r 4 -z 3 -om 8bit --offload 4",
                                      NULL};
    a.num_processes = 8;
    check_rungs(&a, &gpt2_1558m, &cuda_backend, eight_gpus);
}

// -rk 0 chooses segments of one block for 12 layers and of two for 48; below -r 4 there are no segments
TEST(test_best_segment) {
    ModelOptions p = training(8, 4, 1);
    p.recompute.layers = 12;
    assert_int_equal(best_segment(&gpt2_124m, p), 1);
    p.recompute.layers = 48;
    assert_int_equal(best_segment(&gpt2_1558m, p), 2);
    p.recompute.level = 3;
    assert_int_equal(best_segment(&gpt2_1558m, p), 1);
}

TEST(test_fit_keeps_given_flags) {
    TrainArgs a = args_of(4);
    PlanBytes room = {0, SIZE_MAX};
    char text[FLAG_TEXT];
    a.recompute = 2;
    a.moments = 1;
    TrainArgs fitting = a;
    climb(&fitting, true, 0, NUM_RUNGS, &gpt2_1558m, &cuda_backend, room);
    rungs_text(text, &fitting, &a);
    assert_string_equal(text, "--offload 4");
}

// Rungs that save nothing, and those below a given flag, are left out.
TEST(test_rungs_are_left_out) {
    const char *const cpu[] = {"-r 0", "-r 1", "-r 2", "-r 3", "-r 4", "-r 4 -om bf16", "-r 4 -om 8bit", NULL};
    const char *const given[] = {"the given flags", "-om 8bit", NULL};
    TrainArgs a = args_of(4);
    check_rungs(&a, &gpt2_124m, &cpu_backend, cpu);  // 12 layers: -rk 0 is -rk 1
    a.recompute = 4;
    a.recompute_every = 0;
    a.moments = 1;
    a.offload = 4;
    check_rungs(&a, &gpt2_1558m, &cuda_backend, given);
    a.generate = 1;
    a.offload = 0;
    const char *const generating[] = {"the given flags", "--offload 3", NULL};
    check_rungs(&a, &gpt2_1558m, &cuda_backend, generating);
}

#ifdef SIMT
// Sets the compute capability and the memory of the emulated GPU; returns the bytes for a plan.
static size_t set_device(int capability, size_t bytes) {
    simt::settings().capability = capability;
    simt::runtime().device_bytes = bytes;
    return bytes - CUDA_WHOLE_RESERVE;
}

// line: the choice in words
static ModelOptions chosen(TrainArgs a, const GPT2Config *c, char line[FLAG_TEXT]) {
    Comm *alone = comm_single(&cuda_device);
    ModelOptions o = choose_options(line, &a, c, &cuda_backend, alone);
    comm_close(alone);
    return o;
}

// The choice depends on the whole memory of the GPU, and not on its free memory. Given flags stay.
TEST(test_auto) {
    const GPT2Config small = {1024, 50257, 50304, 2, 2, 128};
    const size_t before = simt::runtime().device_bytes, gib = (size_t)1 << 30;
    char line[FLAG_TEXT], again[FLAG_TEXT];
    set_device(90, (size_t)(139.8 * (double)gib));  // an H200
    ModelOptions o = chosen(args_of(16), &gpt2_1558m, line);
    assert_true(o.recompute.level == 0 && o.fuse_gelu && o.classifier_rows == 16384);
    assert_string_equal(line, "-r 0 -ge 1: 59.69 of 137.80 GiB");
    TrainArgs a = args_of(64);
    a.fuse_gelu = FUSE_GELU_OFF;
    o = chosen(a, &gpt2_124m, line);
    assert_true(o.recompute.level == 0 && !o.fuse_gelu);
    a.recompute = 0;  // -r 0 fuses nothing, and has the usual logits chunk
    o = chosen(a, &gpt2_124m, line);
    assert_true(o.recompute.level == 0 && !o.fuse_gelu && o.classifier_rows == 0 && !*line);

    set_device(89, (size_t)(23.6 * (double)gib));  // the same flags on an RTX 4090
    o = chosen(args_of(16), &gpt2_1558m, line);
    assert_true(o.recompute.level == RECOMPUTE_BLOCK && !o.fuse_gelu && strstr(line, ", does not fit"));
    o = chosen(args_of(1), &gpt2_1558m, line);
    assert_string_equal(line, "-r 3: 21.38 of 21.60 GiB");
    assert_int_equal(o.classifier_rows, 1024);
    o = chosen(args_of(64), &gpt2_124m, line);
    assert_string_equal(line, "-r 0: 20.93 of 21.60 GiB");
    assert_int_equal(o.classifier_rows, 8192);
    a = args_of(64);
    a.fuse_gelu = FUSE_GELU_ON;  // a given -ge 1 stays
    chosen(a, &gpt2_124m, line);
    assert_string_equal(line, "-r 0 -ge 1: 20.93 of 21.60 GiB");
    const int groups[][3] = {{8, 1, 0}, {2, 2, 1}, {8, 2, 2}};  // ranks, -tp, GiB for NCCL's groups beside the world
    for (const int *g : groups) {
        a = args_of(4);
        a.num_processes = g[0];
        a.tensor_parallel = g[1];
        chosen(a, &gpt2_124m, line);
        assert_non_null(strstr(line, g[2] == 0 ? " of 21.60 GiB" : g[2] == 1 ? " of 20.60 GiB" : " of 19.60 GiB"));
    }

    const ModelOptions wanted = model_options(&default_args, &small, &cuda_backend);
    set_device(90, CUDA_WHOLE_RESERVE + gpt2_plan_bytes(&small, &wanted) + ((size_t)64 << 20));
    chosen(args_of(4), &small, line);
    void *used = cuda_allocate((size_t)32 << 20);
    chosen(args_of(4), &small, again);
    cuda_release(used);
    assert_string_equal(line, again);
    simt::runtime().device_bytes = before;
}

// the bytes with all blocks at `level`, and with logits chunks of so many rows
static size_t bytes_at(const GPT2Config *c, ModelOptions o, int level, int classifier_rows) {
    o.recompute.level = level;
    o.classifier_rows = classifier_rows;
    return gpt2_plan_bytes(c, &o);
}

// The choice of -r auto fits, and neither a lower level nor a larger logits chunk does. Returns the level.
static int check_auto(const GPT2Config *c, int B, size_t whole) {
    char line[FLAG_TEXT];
    set_device(90, whole + CUDA_WHOLE_RESERVE);
    ModelOptions o = chosen(args_of(B), c, line), usual = o;
    usual.classifier_rows = 0;
    int level = o.recompute.level, chunk = o.classifier_rows, rows = o.B * o.T;
    assert_true(o.recompute.every == 1 && o.recompute.layers == c->num_layers);
    assert_int_equal(o.fuse_gelu, level == 0);
    if (level > 0) { assert_true(bytes_at(c, o, level - 1, 0) > whole); }
    bool fits = gpt2_plan_bytes(c, &o) <= whole;
    assert_true(fits || (level == RECOMPUTE_BLOCK && chunk == 0));
    assert_true(chunk <= 16384 && (chunk == 0 || chunk > logits_chunk(c, &usual)));
    int twice = 2 * logits_chunk(c, &o);
    if (fits && twice <= rows && twice <= 16384) { assert_true(bytes_at(c, o, level, twice) > whole); }
    return level;
}

TEST(test_auto_takes_the_first_level) {
    const size_t device_bytes = simt::runtime().device_bytes;
    int levels[RECOMPUTE_BLOCK + 1] = {0}, before = 0;
    for (size_t gib = 96; gib >= 16; gib -= 2) {
        check_auto(&gpt2_124m, 64, gib << 28);
        int level = check_auto(&gpt2_1558m, 16, gib << 30);
        assert_true(level >= before);
        before = level;
        levels[level]++;
    }
    for (int level = 0; level <= RECOMPUTE_BLOCK; level++) { assert_true(levels[level] > 0); }
    simt::runtime().device_bytes = device_bytes;
}

// GELU is fused on the GPUs whose matmuls do it fast.
TEST(test_gelu_is_fused_by_capability) {
    const size_t before = simt::runtime().device_bytes;
    const struct {
        int capability;
        bool fuses;
    } rows[] = {{80, false}, {86, false}, {89, false}, {90, true}, {100, true}, {103, true}, {120, false}};
    for (size_t i = 0; i < LEN(rows); i++) {
        char line[FLAG_TEXT];
        set_device(rows[i].capability, (size_t)200 << 30);
        assert_int_equal(chosen(args_of(16), &gpt2_1558m, line).fuse_gelu, rows[i].fuses);
    }
    simt::runtime().device_bytes = before;
}

typedef struct {
    const TrainArgs *args;
    const GPT2Config *config;
} Checked;

static void check_memory_of(void *checked) {
    const Checked *c = (const Checked *)checked;
    ModelOptions o = model_options(c->args, c->config, &cuda_backend);
    require_memory(c->args, c->config, &o, comm_single(&cuda_device));
}

// NCCL's first collective takes memory: require_memory refuses a plan that fits only without it.
static int calls[4];  // of each collective
static void connect(int which) {
    if (calls[0] + calls[1] + calls[2] + calls[3] == 0) { cuda_allocate((size_t)1 << 30); }
    calls[which]++;
}
static void fake_all_reduce(void *, size_t, DType, Comm *, Exec *) { connect(0); }
static void fake_reduce_scatter(void *, const void *, size_t, DType, Comm *, Exec *) { connect(1); }
static void fake_all_gather(void *, const void *, size_t, DType, Comm *, Exec *) { connect(2); }
static void fake_broadcast(void *, size_t, DType, int, Comm *, Exec *) { connect(3); }

TEST(test_memory_of_collectives) {
    simt::reset_runtime();
    simt::runtime().dry_run = true;
    TrainArgs a = args_of(4);
    Checked checked = {&a, &gpt2_124m};
    ModelOptions o = model_options(&a, &gpt2_124m, &cuda_backend);
    simt::runtime().device_bytes = gpt2_plan_bytes(&gpt2_124m, &o) + CUDA_RESERVE + ((size_t)1023 << 20);
    check_memory_of(&checked);
    CommBackend fake = comm_single_backend;
    fake.all_reduce = fake_all_reduce;
    fake.reduce_scatter = fake_reduce_scatter;
    fake.all_gather = fake_all_gather;
    fake.broadcast = fake_broadcast;
    Comm *world = comm_new(&fake, &cuda_device);
    world->size = 2;
    Groups groups = groups_of(&a, world);
    const int each_size[] = {4, 3, 3, 3};  // and loss and norm
    assert_memory_equal(calls, each_size, sizeof calls);
    assert_stops(2, ": 1.0 too few; it fits with ", check_memory_of, &checked);
    comm_close(groups.tp);
    comm_close(world);
    simt::reset_runtime();
}

// Other programs take memory that -r auto counts on: the error names a level that fits.
TEST(test_auto_in_a_shared_device) {
    const size_t before = simt::runtime().device_bytes;
    TrainArgs a = args_of(4);
    Checked checked = {&a, &gpt2_124m};
    ModelOptions o = model_options(&a, &gpt2_124m, &cuda_backend);
    simt::runtime().device_bytes = gpt2_plan_bytes(&gpt2_124m, &o) + CUDA_RESERVE;
    check_memory_of(&checked);
    simt::runtime().device_bytes -= (size_t)1 << 20;
    assert_stops(2, "1.0 too few; it fits with -r 1\n", check_memory_of, &checked);
    simt::runtime().device_bytes = before;
}
#endif

// ---- --offload

static ModelOptions offloading(int B, int stage) {
    ModelOptions p = training(B, 4, 1);
    options_set_offload(&p, stage);
    return p;
}

// The plan takes less than `limit` GiB of the device, and the GiB of doc/memory.md to half a `digit`.
static void assert_device(const char *name, const GPT2Config *c, ModelOptions p, double limit, double gib,
                          double digit) {
    p.recompute.layers = c->num_layers;
    PlanBytes bytes = gpt2_plan_both(c, &p);
    double device = (double)bytes.device / (1 << 30);
    printf("    %-40s %6.3f GiB of %.1f; %.2f GiB on the host\n", name, device, limit, (double)bytes.host / (1 << 30));
    assert_true(device <= limit);
    assert_true(fabs(device - gib) <= digit / 2);
}

TEST(test_offload_figures) {
    ModelOptions small = offloading(4, 4);
    small.moments = DT_F32;
    assert_device("1558M, B 1, --offload 4 -r 4 -om bf16", &gpt2_1558m, offloading(1, 4), 1.1, 0.75, 0.01);
    assert_device("1558M, B 4, --offload 4 -r 4 -om bf16", &gpt2_1558m, offloading(4, 4), 1.4, 0.91, 0.01);
    assert_device("1558M, B 4, --offload 1 -r 4 -om bf16", &gpt2_1558m, offloading(4, 1), 7.5, 6.7, 0.1);
    assert_device("124M, B 4, --offload 4 -r 4", &gpt2_124m, small, 0.5, 0.49, 0.01);
    ModelOptions many = offloading(4, 4);  // -d 524288: sums of gradients are fp32
    many.micro_steps = 128;
    many.gradients = DT_REAL;
    assert_device("1558M, B 4, --offload 4, 524288 tokens", &gpt2_1558m, many, 1.4, 1.20, 0.01);
    assert_true(fabs((double)gpt2_plan_both(&gpt2_1558m, &many).host / (1 << 30) - 18.0) <= 0.05);
    for (int B = 4; B <= 16; B *= 4) {
        many = offloading(B, 2);
        many.micro_steps = 512 / B;
        many.gradients = DT_REAL;
        assert_device("1558M, --offload 2, 524288 tokens", &gpt2_1558m, many, 7, B == 4 ? 4.4 : 6.8, 0.1);
    }
    for (int stage = 1; stage <= OFFLOAD_INPUTS; stage++) {  // every stage takes tensors off the device
        ModelOptions lower = offloading(4, stage - 1), higher = offloading(4, stage);
        PlanBytes before = gpt2_plan_both(&gpt2_1558m, &lower), after = gpt2_plan_both(&gpt2_1558m, &higher);
        assert_true(after.device < before.device && after.host > before.host);
    }
    ModelOptions none = offloading(4, 0);
    assert_int_equal(gpt2_plan_both(&gpt2_1558m, &none).host, 0);
}

typedef struct {
    TrainArgs args;
    PlanBytes room;
} RoomCheck;

static void check_room_of(void *checked) {
    const RoomCheck *r = (const RoomCheck *)checked;
    ModelOptions o = model_options(&r->args, &gpt2_1558m, &cuda_backend);
    require_room(&r->args, &gpt2_1558m, &o, r->room);
}

// The sentence names flags that fit on both sides, if there are any: a lower --offload first.
TEST(test_host_is_refused) {
    RoomCheck r = {args_of(4), {(size_t)8 << 30, (size_t)12 << 30}};
    r.args.recompute = 4;
    r.args.moments = 1;
    r.args.offload = 4;
    assert_stops(2,
                 "on a GPU in bf16, --offload 4 needs 15443.0 MiB of host memory, and 12288.0 are free: 3155.0 too "
                 "few; it fits with "
                 "--offload 1",
                 check_room_of, &r);
    r.args.num_processes = 8;
    assert_stops(2, " MiB of host memory on each rank, and ", check_room_of, &r);
    r.args.num_processes = 1;
    r.room.device = (size_t)1 << 30;
    r.room.host = (size_t)13 << 30;
    assert_stops(2, "it fits with -om 8bit", check_room_of, &r);
    r.room.host = (size_t)1 << 30;
    assert_stops(2, " too few; no flags make it fit: give a smaller -e, -b or -t", check_room_of, &r);
    r.args.offload = 0;
    r.room.device = (size_t)16 << 30;
    r.room.host = 0;
    check_room_of(&r);  // without --offload the host's memory is not checked
}

int main(void) { return run_all_tests("plan"); }
