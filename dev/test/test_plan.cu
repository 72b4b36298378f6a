/*
The memory plan of a GPU, in bf16 and with the CUDA backend's scratch: the figures that doc/memory.md promises, the
activations that each -r saves, and the options that --fit and -r auto choose.
*/
#include "llmc/run/model_options.h"
#include "llmc/run/ranks.h"
#include "plan_bytes.h"
#include "testing.h"

static const GPT2Config gpt2_124m = {1024, 50257, 50304, 12, 12, 768};
static const GPT2Config gpt2_1558m = {1024, 50257, 50304, 48, 25, 1600};

static ModelOptions training(int B, int level, int every) {
    ModelOptions p;
    memset(&p, 0, sizeof p);
    p.backend = &cuda_backend;
    p.capability = 90;
    p.B = B;
    p.T = 1024;
    p.micro_steps = 1;
    p.training = true;
    p.recompute.level = level;
    p.recompute.every = every;
    p.recompute.layers = 48;
    p.master = MASTER_SPLIT;
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

static void test_figures(void **state) {
    (void)state;
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

// bytes of state per parameter; the few bytes of update_ranges do not matter
static void test_bytes_per_parameter(void **state) {
    (void)state;
    const struct {
        MasterKind master;
        DType moments, gradients;
        double bytes;
    } cases[] = {{MASTER_FP32, DT_F32, DT_BF16, 16},
                 {MASTER_SPLIT, DT_F32, DT_BF16, 14},
                 {MASTER_SPLIT, DT_BF16, DT_BF16, 10},
                 {MASTER_NONE, DT_BF16, DT_BF16, 8},
                 {MASTER_SPLIT, DT_U8, DT_BF16, 8 + 8.0 / 128},
                 {MASTER_SPLIT, DT_BF16, DT_F32, 12}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ModelOptions p = training(4, 1, 1);
        p.master = cases[i].master;
        p.moments = cases[i].moments;
        p.gradients = cases[i].gradients;
        double bytes = planned(&gpt2_1558m, p, STATE) * 1048576 / (double)param_layout(&gpt2_1558m).total;
        printf("    %.4f bytes per parameter\n", bytes);
        assert_true(fabs(bytes - cases[i].bytes) < 1e-4);
    }
}

// Bytes of state per parameter on each of 8 ranks with -z. A rank also has buffers for the buckets of two layers, the
// embeddings and lnf: of gradients from -z 2 on, of parameters at -z 3.
static void test_bytes_per_parameter_of_shards(void **state) {
    (void)state;
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
    const char *const whole[] = {"tokens", "targets", "losses",   "statistics",        "results",
                                 "normed", "narrow",  "partials", "gathered_gradient", "matmul_workspace"};
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
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
    size_t same = alone - divided_alone - 2 * buffer;       // normed and narrow; gathered_gradient is the third
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
        bool by_head = width == WIDTH_HEADS || width == WIDTH_ATTENTION || width == WIDTH_QKV;
        size_t here = plan_tensor_bytes(&plan, name), there = plan_tensor_bytes(&whole, name);
        assert_int_equal(here * (size_t)t * (by_head ? (size_t)c->num_heads : 1), there * (by_head ? heads : 1));
    }
    assert_int_equal(plan_tensor_bytes(&plan, "normed"), buffer);
    assert_int_equal(plan_tensor_bytes(&plan, "narrow"), buffer);
    assert_int_equal(plan_tensor_bytes(&plan, "gathered_gradient"), buffer);
    plan_free(&plan);
    plan_free(&whole);
}

// With -tp t a rank needs 1/t of the activations and scratch of one rank, and three buffers, for any number of layers.
static void test_tensor_parallel_activations(void **state) {
    (void)state;
    for (int k = 0; k < 5 * 3; k++) {
        check_tensor_parallel_activations(&gpt2_124m, k / 3, 2 << k % 3);
        check_tensor_parallel_activations(&gpt2_1558m, k / 3, 2 << k % 3);
    }
}

// All ranks have the same plan and the same estimate, so --fit chooses the same options on all ranks.
static void test_all_ranks_have_the_same_plan(void **state) {
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        ModelOptions p = training(4, 1, 1);
        p.sharding.dp_size = 3;
        p.sharding.tp_size = 2;
        p.sharding.stage = stage;
        size_t bytes = gpt2_plan_bytes(&gpt2_1558m, &p);
        double seconds = fit_seconds(&gpt2_1558m, &p);
        for (int i = 0; i < 6; i++) {
            p.sharding.dp_rank = i / 2;
            p.sharding.tp_rank = i % 2;
            assert_int_equal(gpt2_plan_bytes(&gpt2_1558m, &p), bytes);
            assert_true(fit_seconds(&gpt2_1558m, &p) == seconds);
        }
    }
}

// saved activations of a block, in channels per token, by the slots of activations.h
static void test_saved_channels_of_every_level(void **state) {
    (void)state;
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

// A saved activation has its own slot. Recomputed activations of one segment have different slots.
static void check_slots(const Recompute *r, int L) {
    for (int id = LN1; id <= RESIDUAL3; id++) {
        const ActivationSpec *spec = &activation_specs[id];
        for (int a = 0; a < L; a++) {
            int at = activation_slot(r, (ActivationId)id, a, L);
            bool saved = activation_is_saved(r, (ActivationId)id, a);
            if (!saved && spec->home != IN_SLOTS) { continue; }
            assert_in_range(at, 0, num_activation_slots(r, (ActivationId)id, L) - 1);
            for (int b = a + 1; b < L; b++) {
                bool other_saved = activation_is_saved(r, (ActivationId)id, b);
                bool alive_together = saved || other_saved || segment_end(r, a) == segment_end(r, b);
                if (alive_together && (other_saved || spec->home == IN_SLOTS)) {
                    assert_int_not_equal(at, activation_slot(r, (ActivationId)id, b, L));
                }
            }
        }
    }
    int recomputed = 0;
    for (int l = L - 1; l >= 0; l--) { recomputed += l + 1 - recompute_from(r, l); }
    assert_int_equal(recomputed, L);  // every block belongs to one segment
}

static void test_slots(void **state) {
    (void)state;
    for (int L = 1; L <= 6; L++) {
        for (int i = 0; i < 5 * 6 * 7; i++) {
            Recompute r = {i % 5, 1 + i / 5 % 6, i / 30, false};
            if (r.layers <= L) { check_slots(&r, L); }
        }
    }
}

// -rk 0 chooses segments of one block for 12 layers and of two for 48; below -r 4 there are no segments
static void test_best_segment(void **state) {
    (void)state;
    ModelOptions p = training(8, 4, 1);
    p.recompute.layers = 12;
    assert_int_equal(best_segment(&gpt2_124m, p), 1);
    p.recompute.layers = 48;
    assert_int_equal(best_segment(&gpt2_1558m, p), 2);
    p.recompute.level = 3;
    assert_int_equal(best_segment(&gpt2_1558m, p), 1);
}

// llm.c's bytes, counted by hand for 124M, B 4, T 1024, -r 1: rows of 768 channels, logits, statistics, and 16 bytes
// per parameter
static void test_llmc_bytes(void **state) {
    (void)state;
    const double N = 4 * 1024, parameters = (double)param_layout(&gpt2_124m).total;
    double of_block = 3 + 1 + 1 + 1 + 1 + 4 + 1;      // qkv atty residual2 residual3 ln1 fch ln2
    double rows = 12 * of_block + 1 + 1 + 4 + 4 + 1;  // encoded, lnf, gelu, two buffers
    double statistics = 12 * (4 + 12) + 2 + 1;        // layernorms, attention, losses
    double bytes = N * (2 * (768 * rows + 50304) + 4 * statistics) + 16 * parameters;
    ModelOptions p = training(4, 1, 1);
    assert_true((double)llmc_bytes(&gpt2_124m, &p) == bytes);
    p.recompute.level = 2;  // recomputes ln1 and ln2
    assert_true((double)llmc_bytes(&gpt2_124m, &p) == bytes - N * 2 * 768 * 12 * 2);
    p.recompute.level = 0;  // saves every GELU
    assert_true((double)llmc_bytes(&gpt2_124m, &p) == bytes + N * 2 * 768 * 4 * 11);
}

// Every term of --fit's estimate counts: recomputation, wider types and smaller matmuls take longer.
static void test_estimate(void **state) {
    (void)state;
    const GPT2Config *c = &gpt2_1558m;
    const double C = 1600, T = 1024;
    ModelOptions p = training(16, 0, 1);
    assert_true(recomputed_flops_per_token(c, &p.recompute, p.T) == 0);
    double before = fit_seconds(c, &p);
    for (p.recompute.level = 1; p.recompute.level <= RECOMPUTE_BLOCK; p.recompute.level++) {
        assert_true(fit_seconds(c, &p) > before);
        before = fit_seconds(c, &p);
    }
    p.recompute.level = RECOMPUTE_BLOCK;
    assert_true(recomputed_flops_per_token(c, &p.recompute, p.T) == 48 * (16 * C * C + 2 * C * (T + 1)));
    p.recompute.every = 2;  // of every pair, the first block also recomputes its output
    assert_true(recomputed_flops_per_token(c, &p.recompute, p.T) ==
                48 * (16 * C * C + 2 * C * (T + 1)) + 24 * 8 * C * C);
    p.recompute.level = RECOMPUTE_UP_PROJECTION;
    p.recompute.layers = 10;
    assert_true(recomputed_flops_per_token(c, &p.recompute, p.T) == 10 * 8 * C * C);

    ModelOptions base = training(16, 1, 1), other = base;
    other.moments = DT_F32;
    assert_true(fit_seconds(c, &other) > fit_seconds(c, &base));
    other = base;
    other.master = MASTER_FP32;
    assert_true(fit_seconds(c, &other) > fit_seconds(c, &base));
    other = base;
    other.gradients = DT_F32;
    assert_true(fit_seconds(c, &other) > fit_seconds(c, &base));
    other = base;
    other.classifier_rows = 64;
    assert_true(fit_seconds(c, &other) > fit_seconds(c, &base));
    assert_true(fit_of(c, &other).weighted > fit_of(c, &other).seconds);  // wte's gradient, rounded 256 times
    assert_true(fit_of(c, &base).weighted > fit_of(c, &base).seconds);    // bf16 moments
    other = base;
    other.sharding.tp_size = 2;  // half the work, and communication
    double half = fit_seconds(c, &base) / 2, sent = fit_sent_bytes(c, other) / base.backend->link_rate;
    assert_true(sent > 0 && fabs(fit_seconds(c, &other) / (half + sent) - 1) < 0.05);
    other.recompute.level = RECOMPUTE_BLOCK;  // repeats the forward's collectives
    assert_true(fit_sent_bytes(c, other) / base.backend->link_rate > sent);
    other = base;
    other.B = 1;
    other.micro_steps = 16;
    double matmuls = 6 * 1.5e9 * 16 * T / base.backend->flop_rate;  // 1024 rows reach two thirds of the rate
    assert_true(fit_seconds(c, &other) > fit_seconds(c, &base) + 0.4 * matmuls);
}

static DType lossless(int micro_steps, int stage) { return micro_steps > 1 && stage < 2 ? DT_F32 : DT_BF16; }

// Less memory never gives a faster choice, and the choice fits as long as any options fit.
static void test_fit(void **state) {
    (void)state;
    const FitFree all = {true, true, true, true, true, true, true, true, true};
    ModelOptions wanted = training(16, 1, 1);
    wanted.moments = DT_F32;
    wanted.recompute.layers = 48;
    double before = 0;
    bool fitted = true;
    for (int gib = 60; gib >= 8; gib -= 4) {
        size_t budget = (size_t)gib << 30;
        Fit fit = fit_choose(&gpt2_1558m, wanted, &all, budget, lossless);
        const ModelOptions *p = &fit.options;
        printf("    %3d GiB: -b %2d -r %d -rk %d -rn %2d -ge %d -lc %5d -w %d -om %s -gd %s: %6.1f GiB, %.3f s%s\n",
               gib, p->B, p->recompute.level, p->recompute.every, p->recompute.layers, p->fuse_gelu, p->classifier_rows,
               p->master, dtype_name(p->moments), dtype_name(p->gradients), (double)fit.bytes / (1 << 30), fit.seconds,
               fit.bytes > budget ? ": does not fit" : "");
        assert_int_equal(p->B * p->micro_steps, 16);
        assert_int_equal(fit.bytes, gpt2_plan_bytes(&gpt2_1558m, p));
        if (fit.bytes > budget) { fitted = false; }
        assert_int_equal(fit.bytes <= budget, fitted);  // if nothing fits, nothing fits in less memory
        if (fitted) {
            assert_true(fit.weighted >= before);
            before = fit.weighted;
        }
        if (gib == 60) { assert_true(p->recompute.level <= 1 && p->moments == DT_F32 && p->master == MASTER_SPLIT); }
    }
    assert_false(fitted);
}

// With much memory, --fit takes the fused GELU and chunks of 16384 rows, and both take less time by the estimate.
static void test_fit_fuses_gelu_and_enlarges_chunks(void **state) {
    (void)state;
    const FitFree speed = {false, true, false, false, true, true, false, false, false};
    ModelOptions wanted = training(32, 0, 1), other;
    Fit fit = fit_choose(&gpt2_1558m, wanted, &speed, (size_t)200 << 30, lossless);
    assert_true(fit.options.recompute.level == 0 && fit.options.fuse_gelu && fit.options.classifier_rows == 16384);
    other = fit.options;
    other.fuse_gelu = false;
    double read_fch = 32 * 1024.0 * 48 * 4 * 1600 * sizeof(floatX) / cuda_backend.memory_rate;
    assert_true(fabs(fit_seconds(&gpt2_1558m, &other) - fit.seconds - read_fch) < 1e-9);
    other = fit.options;
    other.classifier_rows = 2048;
    assert_true(fit_seconds(&gpt2_1558m, &other) > fit.seconds);

    other = fit.options;
    other.recompute.level = 1;  // only -r 0 fuses GELU
    fit = fit_choose(&gpt2_1558m, wanted, &speed, gpt2_plan_bytes(&gpt2_1558m, &other), lossless);
    assert_true(fit.options.recompute.level == 1 && !fit.options.fuse_gelu && fit.options.classifier_rows == 16384);
    wanted.backend = &cpu_backend;
    wanted.capability = 0;
    fit = fit_choose(&gpt2_1558m, wanted, &speed, (size_t)200 << 30, lossless);
    assert_true(fit.options.recompute.level == 0 && !fit.options.fuse_gelu && fit.options.classifier_rows == 0);
}

// -r auto and --fit fuse GELU on the GPUs whose matmuls do it fast.
static void test_gelu_is_fused_by_capability(void **state) {
    (void)state;
    const FitFree speed = {false, true, false, false, true, true, false, false, false};
    const struct {
        int capability;
        bool fuses;
    } rows[] = {{75, false}, {80, false}, {86, false}, {89, false}, {90, true}, {100, true}, {103, true}, {120, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ModelOptions wanted = training(32, 0, 1);
        wanted.capability = rows[i].capability;
        ModelOptions least = least_recomputation(&gpt2_1558m, wanted, &speed, (size_t)200 << 30);
        Fit fit = fit_choose(&gpt2_1558m, wanted, &speed, (size_t)200 << 30, lossless);
        assert_true(least.recompute.level == 0 && fit.options.recompute.level == 0);
        assert_int_equal(least.fuse_gelu, rows[i].fuses);
        assert_int_equal(fit.options.fuse_gelu, rows[i].fuses);
    }
}

// ---- -r auto

static const FitFree auto_may = {false, true, false, false, true, true, false, false, false};

// the bytes with all blocks at `level`, and with -lc
static size_t bytes_at(const GPT2Config *c, ModelOptions p, int level, int classifier_rows) {
    Recompute r = {level, 1, c->num_layers, false};
    p.recompute = r;
    p.classifier_rows = classifier_rows;
    return gpt2_plan_bytes(c, &p);
}

// The choice fits, and neither a lower level nor a larger logits chunk does.
static void check_least_recomputation(const GPT2Config *c, ModelOptions p, size_t budget) {
    ModelOptions o = least_recomputation(c, p, &auto_may, budget);
    int level = o.recompute.level, chunk = o.classifier_rows;
    size_t rows = (size_t)p.B * (size_t)p.T, fits = gpt2_plan_bytes(c, &o);
    assert_true(o.recompute.every == 1 && o.recompute.layers == c->num_layers);
    assert_int_equal(o.fuse_gelu, level == 0);
    if (level > 0) { assert_true(bytes_at(c, p, level - 1, 0) > budget); }
    assert_true(fits <= budget || (level == RECOMPUTE_BLOCK && chunk == 0));
    assert_true(chunk <= 16384 && (chunk == 0 || chunk > logits_chunk(c, &p)));
    bool larger = (size_t)chunk < rows && chunk < 16384;
    size_t twice = chunk ? 2 * (size_t)chunk : 2 * (size_t)logits_chunk(c, &p);
    if (larger && fits <= budget && twice <= rows && twice <= 16384) {
        assert_true(bytes_at(c, p, level, (int)twice) > budget);
    }
}

static void test_least_recomputation(void **state) {
    (void)state;
    int levels[RECOMPUTE_BLOCK + 1] = {0}, before = 0;
    for (size_t gib = 96; gib >= 16; gib--) {
        check_least_recomputation(&gpt2_1558m, training(16, 0, 1), gib << 30);
        check_least_recomputation(&gpt2_124m, training(64, 0, 1), gib << 28);
        ModelOptions o = least_recomputation(&gpt2_1558m, training(16, 0, 1), &auto_may, gib << 30);
        assert_true(o.recompute.level >= before);
        before = o.recompute.level;
        levels[before]++;
    }
    for (int level = 0; level <= RECOMPUTE_BLOCK; level++) { assert_true(levels[level] > 0); }
    // the bytes of the choice decide, to the last one
    size_t enough = bytes_at(&gpt2_124m, training(64, 0, 1), 0, 0);
    for (int less = 0; less < 2; less++) {
        ModelOptions o = least_recomputation(&gpt2_124m, training(64, 0, 1), &auto_may, enough - (size_t)less);
        assert_int_equal(o.recompute.level, less);
    }
}

#ifdef SIMT
// Sets the compute capability and the memory of the emulated GPU; returns the bytes for a plan.
static size_t set_device(int capability, size_t bytes) {
    simt::settings().capability = capability;
    simt::runtime().device_bytes = bytes;
    return bytes - CUDA_WHOLE_RESERVE;
}

// the flags that -r auto leaves of `a`; line: the choice in words
static TrainArgs chosen(TrainArgs a, const GPT2Config *c, char line[FLAG_TEXT]) {
    Comm *alone = comm_single(&cuda_device);
    choose_recomputation(line, &a, c, &cuda_backend, alone);
    comm_close(alone);
    printf("    %s\n", line);
    return a;
}

static TrainArgs args_of(int B) {
    TrainArgs a = default_args;
    a.B = B;
    a.sample_every = 0;
    return a;
}

// The choice depends on the whole memory of the GPU, and not on its free memory. Given flags stay.
static void test_auto(void **state) {
    (void)state;
    const GPT2Config small = {1024, 50257, 50304, 2, 2, 128};
    const size_t before = simt::runtime().device_bytes, gib = (size_t)1 << 30;
    char line[FLAG_TEXT], again[FLAG_TEXT];
    set_device(90, (size_t)(139.8 * (double)gib));  // an H200
    TrainArgs a = chosen(args_of(16), &gpt2_1558m, line);
    assert_true(a.recompute == 0 && a.fuse_gelu == FUSE_GELU_ON && a.classifier_rows == 16384);
    assert_string_equal(line, "-r 0 -ge 1 -lc 16384: 59.69 of 137.80 GiB");
    assert_int_equal(a.chosen, CHOSEN_RECOMPUTE | CHOSEN_FUSE_GELU | CHOSEN_CLASSIFIER_ROWS);
    chosen(a, &gpt2_1558m, line);  // a resumed run
    assert_string_equal(line, "-r 0 -ge 1 -lc 16384, when the run began");
    a = args_of(64);
    a.fuse_gelu = FUSE_GELU_OFF;
    a.classifier_rows = 512;
    a = chosen(a, &gpt2_124m, line);
    assert_true(a.recompute == 0 && a.fuse_gelu == FUSE_GELU_OFF && a.classifier_rows == 512);
    assert_int_equal(a.chosen, CHOSEN_RECOMPUTE);
    a.recompute = 1;
    a.chosen = 0;
    a = chosen(a, &gpt2_124m, line);  // -r 1 -ge 0 -lc 512
    assert_true(a.recompute == 1 && a.chosen == 0 && !*line);

    set_device(89, (size_t)(23.6 * (double)gib));  // the same flags on an RTX 4090
    a = chosen(args_of(16), &gpt2_1558m, line);
    assert_true(a.recompute == RECOMPUTE_BLOCK && a.fuse_gelu == FUSE_GELU_OFF);
    chosen(args_of(1), &gpt2_1558m, line);
    assert_string_equal(line, "-r 3 -lc 1024: 21.38 of 21.60 GiB");
    chosen(args_of(64), &gpt2_124m, line);
    assert_string_equal(line, "-r 0 -lc 8192: 20.93 of 21.60 GiB");
    TrainArgs fused = args_of(64);
    fused.fuse_gelu = FUSE_GELU_ON;  // a given -ge 1 stays
    chosen(fused, &gpt2_124m, line);
    assert_string_equal(line, "-r 0 -ge 1 -lc 8192: 20.93 of 21.60 GiB");

    const ModelOptions wanted = model_options(&default_args, &small, &cuda_backend);
    set_device(90, CUDA_WHOLE_RESERVE + gpt2_plan_bytes(&small, &wanted) + ((size_t)64 << 20));
    a = chosen(args_of(4), &small, line);
    void *used = cuda_allocate((size_t)32 << 20);
    a = chosen(args_of(4), &small, again);
    cuda_release(used);
    assert_string_equal(line, again);
    simt::runtime().device_bytes = before;
}

typedef struct {
    const TrainArgs *args;
    const GPT2Config *config;
} Checked;

static void check_memory_of(void *checked) {
    const Checked *c = (const Checked *)checked;
    ModelOptions o = model_options(c->args, c->config, &cuda_backend);
    check_memory(c->args, c->config, &o, comm_single(&cuda_device));
}

// NCCL's first collective takes memory: check_memory refuses a plan that fits only without it.
static int calls[4];  // of each collective
static void connect(int which) {
    if (calls[0] + calls[1] + calls[2] + calls[3] == 0) { cuda_allocate((size_t)1 << 30); }
    calls[which]++;
}
static void fake_all_reduce(void *, size_t, DType, Comm *, Exec *) { connect(0); }
static void fake_reduce_scatter(void *, const void *, size_t, DType, Comm *, Exec *) { connect(1); }
static void fake_all_gather(void *, const void *, size_t, DType, Comm *, Exec *) { connect(2); }
static void fake_broadcast(void *, size_t, DType, int, Comm *, Exec *) { connect(3); }

static void test_memory_of_collectives(void **state) {
    (void)state;
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
static void test_auto_in_a_shared_device(void **state) {
    (void)state;
    const size_t before = simt::runtime().device_bytes;
    char line[FLAG_TEXT];
    size_t whole = set_device(90, (size_t)11 << 29);
    TrainArgs a = chosen(args_of(4), &gpt2_124m, line);
    assert_true(a.recompute == 0);
    Checked checked = {&a, &gpt2_124m};
    check_memory_of(&checked);
    ModelOptions o = model_options(&a, &gpt2_124m, &cuda_backend);
    simt::runtime().device_bytes = gpt2_plan_bytes(&gpt2_124m, &o) + CUDA_RESERVE - ((size_t)1 << 20);
    assert_true(simt::runtime().device_bytes < whole + CUDA_WHOLE_RESERVE);
    assert_stops(2, "1.0 too few; it fits with -r 0 -ge 1 -lc 4096", check_memory_of, &checked);
    simt::runtime().device_bytes = before;
}
#endif

// The choice of -r, -rk and -rn is at least as fast as every -r with every -rn.
static void test_fit_is_the_best(void **state) {
    (void)state;
    const FitFree recompute_alone = {false, true, true, true, false, false, false, false, false};
    const ModelOptions wanted = training(8, 0, 1);
    for (size_t budget = (size_t)16 << 30; budget < (size_t)44 << 30; budget += (size_t)3 << 30) {
        double best = 1e9;
        for (int i = 0; i < 5 * 49; i++) {
            ModelOptions p = wanted;
            p.recompute.level = i % 5;
            p.recompute.layers = i / 5;
            if (gpt2_plan_bytes(&gpt2_1558m, &p) <= budget) { best = fmin(best, fit_of(&gpt2_1558m, &p).weighted); }
        }
        Fit fit = fit_choose(&gpt2_1558m, wanted, &recompute_alone, budget, lossless);
        assert_true(fit.bytes > budget || fit.weighted <= best * (1 + 1e-12));
    }
}

// Options that --fit may not choose stay as they are.
static void test_fit_keeps_given_options(void **state) {
    (void)state;
    const FitFree recompute_alone = {false, true, true, true, false, false, false, false, false};
    ModelOptions wanted = training(16, 0, 1);
    wanted.master = MASTER_FP32;
    wanted.moments = DT_F32;
    Fit fit = fit_choose(&gpt2_1558m, wanted, &recompute_alone, (size_t)40 << 30, lossless);
    assert_int_equal(fit.options.B, 16);
    assert_int_equal(fit.options.master, MASTER_FP32);
    assert_int_equal(fit.options.moments, DT_F32);
    assert_true(fit.bytes <= (size_t)40 << 30);
    assert_true(fit.options.recompute.level >= RECOMPUTE_UP_PROJECTION);
}

// ---- --offload

static ModelOptions offloading(int B, int stage) {
    ModelOptions p = training(B, 4, 1);
    p.host_link = 25e9;
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

static void test_offload_figures(void **state) {
    (void)state;
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
    for (int stage = 1; stage <= OFFLOAD_INPUTS; stage++) {  // every stage takes tensors off the device
        ModelOptions lower = offloading(4, stage - 1), higher = offloading(4, stage);
        PlanBytes before = gpt2_plan_both(&gpt2_1558m, &lower), after = gpt2_plan_both(&gpt2_1558m, &higher);
        assert_true(after.device < before.device && after.host > before.host);
    }
    ModelOptions none = offloading(4, 0);
    assert_int_equal(gpt2_plan_both(&gpt2_1558m, &none).host, 0);
}

// The bytes of an update are those of its micro-steps, one by one.
static void test_link_bytes_of_micro_steps(void **state) {
    (void)state;
    for (int k = 0; k < 5 * 4 * 5; k++) {
        ModelOptions p = offloading(2, k % 5);
        p.sharding.dp_size = 3;
        p.sharding.stage = k / 5 % 4;
        p.micro_steps = 1 + k / 20;
        LinkBytes all = gpt2_link_bytes(&gpt2_124m, &p), sum = update_link_bytes(&gpt2_124m, &p);
        for (int micro = 0; micro < p.micro_steps; micro++) {
            LinkBytes step = micro_step_link_bytes(&gpt2_124m, &p, micro);
            sum.up += step.up;
            sum.down += step.down;
        }
        assert_true(all.up == sum.up && all.down == sum.down && (k % 5 == 0) == (all.up == 0));
    }
}

// Without training the layers alone are copied for each forward: the embeddings and lnf stay on the device.
static void test_link_bytes_of_a_forward(void **state) {
    (void)state;
    const uint64_t C = 768, layer = 12 * C * C + 13 * C;
    ModelOptions p = offloading(2, OFFLOAD_PARAMS);
    p.training = false;
    p.recompute = forward_only(12);
    LinkBytes bytes = gpt2_link_bytes(&gpt2_124m, &p);
    assert_true(bytes.up == 12 * layer * sizeof(floatX) && bytes.down == 0);
    options_set_offload(&p, OFFLOAD_GRADIENTS);
    bytes = gpt2_link_bytes(&gpt2_124m, &p);
    assert_true(bytes.up == 0 && bytes.down == 0);
}

// Copies that take less time than the computation cost nothing; of a slow link, they are the whole time.
static void test_estimate_of_copies(void **state) {
    (void)state;
    const GPT2Config *c = &gpt2_1558m;
    ModelOptions none = offloading(4, 0);
    none.micro_steps = 16;
    double before = fit_seconds(c, &none);
    for (int stage = 1; stage <= OFFLOAD_INPUTS; stage++) {
        ModelOptions p = none;
        options_set_offload(&p, stage);
        p.host_link = 1e15;
        assert_true(fabs(fit_seconds(c, &p) / fit_seconds(c, &none) - 1) < 1e-12);
        p.host_link = 25e9;
        double seconds = fit_seconds(c, &p);
        printf("    --offload %d: %.2f s instead of %.2f\n", stage, seconds, fit_seconds(c, &none));
        assert_true(seconds > before * (1 + 1e-9) || stage == 4);  // at -r 4, inputs of blocks hide
        before = seconds;
        p.host_link = 1e6;
        double copies = link_seconds(gpt2_link_bytes(c, &p), p.host_link);
        if (stage > 1) { assert_true(fit_seconds(c, &p) >= copies * (1 - 1e-12)); }
    }
}

// --fit offloads only if nothing fits otherwise, and then the stage with the least time, within the host's memory.
static void test_fit_offloads_last(void **state) {
    (void)state;
    FitFree may = {true, true, true, true, true, true, true, true, true, true, (size_t)64 << 30}, none = may;
    ModelOptions wanted = offloading(1, 0);
    wanted.micro_steps = 64;
    none.offload = false;
    for (size_t mib = 16 << 10; mib >= 512; mib = mib * 3 / 4) {
        size_t budget = mib << 20;
        Fit fit = fit_choose(&gpt2_1558m, wanted, &may, budget, lossless);
        Fit without = fit_choose(&gpt2_1558m, wanted, &none, budget, lossless);
        int stage = fit.options.sharding.offload;
        printf("    %5zu MiB: --offload %d -b %2d -r %d -om %s: %.2f GiB, %.2f on the host, %.3f s\n", mib, stage,
               fit.options.B, fit.options.recompute.level, dtype_name(fit.options.moments),
               (double)fit.bytes / (1 << 30), (double)fit.host / (1 << 30), fit.seconds);
        assert_int_equal(stage == 0, without.bytes <= budget);
        if (stage == 0) { assert_true(fit.bytes == without.bytes && fit.seconds == without.seconds); }
        assert_true(fit.options.recompute.offload_inputs == (stage == 4));
        assert_int_equal(fit.host, gpt2_plan_both(&gpt2_1558m, &fit.options).host);
        for (int other = 1; stage > 0 && other <= OFFLOAD_INPUTS; other++) {
            options_set_offload(&wanted, other);
            Fit at = fit_choose(&gpt2_1558m, wanted, &none, budget, lossless);
            options_set_offload(&wanted, 0);
            if (at.bytes <= budget) { assert_true(fit.bytes <= budget && fit.weighted <= at.weighted); }
        }
    }
    wanted.backend = &cpu_backend;
    Fit cpu = fit_choose(&gpt2_1558m, wanted, &may, (size_t)4 << 30, lossless);
    assert_int_equal(cpu.options.sharding.offload, 0);
}

// The host's memory bounds the choice: a little less of it costs precision or time, none of it forbids --offload.
static void test_fit_in_the_memory_of_the_host(void **state) {
    (void)state;
    const size_t budget = (size_t)3 << 29;
    FitFree may = {true, true, true, true, true, true, true, true, true, true, (size_t)64 << 30};
    ModelOptions wanted = offloading(1, 0);
    wanted.moments = DT_F32;
    wanted.micro_steps = 64;
    double before = 0;
    for (Fit fit; may.host > 0; may.host = fit.host - 1) {
        fit = fit_choose(&gpt2_1558m, wanted, &may, budget, lossless);
        printf("    %.2f GiB of the host, %.3f s\n", (double)fit.host / (1 << 30), fit.weighted);
        assert_true(fit.host <= may.host);
        if (fit.bytes > budget) { break; }
        assert_true(fit.options.sharding.offload > 0 && fit.weighted >= before);
        before = fit.weighted;
    }
    assert_true(before > 0 && may.host > (size_t)4 << 30);
    may.host = 0;
    assert_int_equal(fit_choose(&gpt2_1558m, wanted, &may, budget, lossless).options.sharding.offload, 0);
    may.offload = false;  // a given stage whose host memory does not fit: the search finds types that do
    options_set_offload(&wanted, OFFLOAD_INPUTS);
    may.host = gpt2_plan_both(&gpt2_1558m, &wanted).host - 1;
    Fit fit = fit_choose(&gpt2_1558m, wanted, &may, budget, lossless);
    assert_true(fit.host <= may.host && fit.bytes <= budget);
}

// A choice is shown and taken by parts: the part of --offload keeps the inputs of blocks with the stage.
static void test_part_of_offload(void **state) {
    (void)state;
    char text[FLAG_TEXT];
    ModelOptions from = offloading(4, 4), to = offloading(4, 0);
    fit_take(&to, &from, FIT_RECOMPUTE);
    assert_true(to.sharding.offload == 0 && !to.recompute.offload_inputs);
    fit_take(&to, &from, FIT_OFFLOAD);
    assert_true(to.sharding.offload == 4 && to.recompute.offload_inputs);
    const FitFree may = {true};
    ModelOptions none = offloading(4, 0);
    fit_flags_text(text, &from, &none, &may, &gpt2_1558m);
    assert_string_equal(text, "--offload 4");
    TrainArgs a = default_args;
    fit_apply(&a, &from, 48);
    assert_int_equal(a.offload, 4);
    from.backend = &cpu_backend;
    options_set_offload(&from, 0);
    fit_apply(&a, &from, 48);
    assert_int_equal(a.offload, 4);  // a CPU ignores the flag and keeps it
}

typedef struct {
    ModelOptions options;
    size_t device, host;
    int ranks;
} HostCheck;

static void check_host_of(void *checked) {
    const HostCheck *h = (const HostCheck *)checked;
    check_host_memory(&gpt2_1558m, &h->options, h->device, h->host, h->ranks);
}

// The sentence names a stage that fits on both sides, if there is one.
static void test_host_is_refused(void **state) {
    (void)state;
    HostCheck h = {offloading(4, 4), (size_t)8 << 30, (size_t)12 << 30, 1};
    assert_stops(2,
                 "--offload 4 needs 15443.0 MiB of host memory, and 12288.0 are free: 3155.0 too few; --offload 2 "
                 "fits",
                 check_host_of, &h);
    h.ranks = 8;
    assert_stops(2, " MiB of host memory for each of 8 ranks, and ", check_host_of, &h);
    h.device = (size_t)1 << 30;
    assert_stops(2, "3155.0 too few; give a smaller -e\n", check_host_of, &h);
    h.device = (size_t)7 << 28;
    assert_stops(2, "3155.0 too few; --offload 3 -om 8bit fits\n", check_host_of, &h);
    h.host = (size_t)13 << 30;
    assert_stops(2, " too few; -om 8bit fits\n", check_host_of, &h);
    h.options.moments = DT_U8;
    h.host = (size_t)1 << 30;
    assert_stops(2, " too few; give a smaller -e", check_host_of, &h);
    options_set_offload(&h.options, 0);
    h.host = 0;
    check_host_of(&h);  // without --offload the host's memory is not checked
}

// Only the flags with which the model fits are named: -z 3 of a search that found nothing is not.
static void test_advice_without_stage3(void **state) {
    (void)state;
    char text[2 * FLAG_TEXT];
    TrainArgs a = default_args;
    ModelOptions o = offloading(4, 0);
    FitFree may = fit_free(&a);
    may.host = (size_t)64 << 30;
    o.recompute.layers = 12;
    o.sharding.dp_size = 2;
    memory_advice(text, sizeof text, &a, &gpt2_124m, o, &may, (size_t)512 << 20);
    printf("    %s\n", text);
    assert_true(may.offload && strstr(text, "it fits with ") == text);
    assert_non_null(strstr(text, "--offload "));
    assert_null(strstr(text, "-z 3"));
}

static void note_pinning_of(void *options) { note_pinning(&gpt2_1558m, static_cast<const ModelOptions *>(options)); }

// Pinning takes seconds, so a line comes first.
static void test_pinning_is_announced(void **state) {
    (void)state;
    ModelOptions o = offloading(4, 3);
    o.training = false;  // the line goes to stderr
    assert_stops(0, "note      pinning 2.9 GiB of host memory ...\n", note_pinning_of, &o);
    char output[64];
    o.pageable_host = true;
    assert_int_equal(run_in_child(output, sizeof output, note_pinning_of, &o), 0);
    assert_string_equal(output, "");
    o = offloading(4, 0);
    o.training = false;
    assert_int_equal(run_in_child(output, sizeof output, note_pinning_of, &o), 0);
    assert_string_equal(output, "");
}

// a GPU that is large enough, and a host of 1 GiB
static void choose_with_a_small_host(void *unused) {
    (void)unused;
    FitFree may = {true, true, true, true, true, true, true, true, true, true, (size_t)1 << 30};
    ModelOptions wanted = offloading(1, 0);
    size_t budget = (size_t)1 << 30;
    Fit fit = fit_choose(&gpt2_1558m, wanted, &may, budget, lossless);
    assert_true(fit.bytes > budget);
    nothing_fits(&gpt2_1558m, wanted, &fit, may, budget);
}

static void test_nothing_fits_names_the_host(void **state) {
    (void)state;
    assert_stops(2, " --offload 3 would take 1.00 GiB of the GPU and ", choose_with_a_small_host, NULL);
    assert_stops(2, " GiB of host memory, and 1.0 are free; free more of it, or give a smaller -e\n",
                 choose_with_a_small_host, NULL);
}

#ifdef SIMT
// A GPU that is too small: the error names --offload only if nothing else fits. --eval streams the weights.
static void test_advice_names_offload(void **state) {
    (void)state;
    const size_t before = simt::runtime().device_bytes;
    TrainArgs a = args_of(4);
    Checked checked = {&a, &gpt2_124m};
    a.recompute = 1;
    a.moments = 0;
    simt::runtime().device_bytes = CUDA_RESERVE + ((size_t)5 << 29);
    assert_stops(2, "it fits with -r 1 -rn 3 -lc 2048 -om bf16\n", check_memory_of, &checked);
    a.master = MASTER_FP32;
    simt::runtime().device_bytes = CUDA_RESERVE + ((size_t)1 << 30);
    assert_stops(2, "-w none -om 8bit\n", check_memory_of, &checked);  // other values of given flags
    simt::runtime().device_bytes = CUDA_RESERVE + ((size_t)600 << 20);
    assert_stops(2, " --offload ", check_memory_of, &checked);
    simt::runtime().device_bytes = CUDA_RESERVE + ((size_t)240 << 20);
    a.eval = "text";
    a.B = 1;
    assert_stops(2, "it fits with --offload 3", check_memory_of, &checked);
    simt::runtime().device_bytes = CUDA_RESERVE + ((size_t)20 << 20);
    assert_stops(2, "no flags make it fit: give a smaller -e, -b or -t", check_memory_of, &checked);
    simt::runtime().device_bytes = before;
}
#endif

static void choose_backend(void *choice) {
    const char *note;
    simt::settings().capability = DT_FLOATX == DT_BF16 ? 75 : 70;
    backend_choose(*static_cast<const DeviceChoice *>(choice), true, &note);
}

// a GPU that this build has no kernels for: refused, unless the run is on the CPU or only plans
static void test_gpu_is_too_old(void **state) {
    (void)state;
    const char *note;
    DeviceChoice choice = DEVICE_AUTO;
    const char *sentence =
        DT_FLOATX == DT_BF16 ? "capability 7.5, and this bf16 build needs 8.0; build with make PRECISION=fp32, or give"
                             : "capability 7.0, and this fp32 build needs 7.5; give --device cpu";
    assert_stops(2, sentence, choose_backend, &choice);
    choice = DEVICE_CUDA;
    assert_stops(2, "give --device cpu", choose_backend, &choice);
    simt::Settings before = simt::settings();
    simt::settings().capability = 70;
    assert_ptr_equal(backend_choose(DEVICE_CPU, true, &note), &cpu_backend);
    assert_ptr_equal(backend_choose(DEVICE_AUTO, false, &note), &cuda_backend);
    simt::settings() = before;
    assert_ptr_equal(backend_choose(DEVICE_AUTO, true, &note), &cuda_backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu_is_too_old),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_bytes_per_parameter),
        cmocka_unit_test(test_bytes_per_parameter_of_shards),
        cmocka_unit_test(test_tensor_parallel_activations),
        cmocka_unit_test(test_all_ranks_have_the_same_plan),
        cmocka_unit_test(test_saved_channels_of_every_level),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_best_segment),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_fit_keeps_given_options),
        cmocka_unit_test(test_fit_is_the_best),
        cmocka_unit_test(test_fit_fuses_gelu_and_enlarges_chunks),
        cmocka_unit_test(test_gelu_is_fused_by_capability),
        cmocka_unit_test(test_least_recomputation),
        cmocka_unit_test(test_offload_figures),
        cmocka_unit_test(test_link_bytes_of_micro_steps),
        cmocka_unit_test(test_link_bytes_of_a_forward),
        cmocka_unit_test(test_estimate_of_copies),
        cmocka_unit_test(test_fit_offloads_last),
        cmocka_unit_test(test_fit_in_the_memory_of_the_host),
        cmocka_unit_test(test_part_of_offload),
        cmocka_unit_test(test_host_is_refused),
        cmocka_unit_test(test_pinning_is_announced),
        cmocka_unit_test(test_advice_without_stage3),
        cmocka_unit_test(test_nothing_fits_names_the_host),
#ifdef SIMT
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_auto_in_a_shared_device),
        cmocka_unit_test(test_memory_of_collectives),
        cmocka_unit_test(test_advice_names_offload),
#endif
        cmocka_unit_test(test_llmc_bytes),
        cmocka_unit_test(test_estimate),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
