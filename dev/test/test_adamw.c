/*
AdamW's storage and rounding: bf16 weights and their remainders, moments in bf16 and in 8 bits. fp32 builds do not round
weights, so there the statements about weights are trivial.
*/
#include "testing.h"
#include "optimizer_fixture.h"
#include "llmc/adamw_cpu.h"
#include "llmc/common/device.h"
#include <omp.h>

// The split of fp32 numbers is the same code in every build: one build tests every bit pattern, the others every 257th.
#if defined(__SANITIZE_ADDRESS__) || defined(PRECISION_BF16)
enum { STRIDE = 257 };
#else
enum { STRIDE = 1 };
#endif

enum { NUM_TENSORS = 3 };

// an optimizer state with its own memory; tensors may end within a block of moments
typedef struct {
    OptimizerState state;
    UpdateRange ranges[NUM_TENSORS];
    size_t n;
    real *grads;
} Model;

static Model model_make(bool remainders, DType moments, const size_t counts[NUM_TENSORS]) {
    Model m = {0};
    for (int t = 0; t < NUM_TENSORS; t++) {
        UpdateRange range = {m.n, counts[t], 0, t != 1, t, 0, 0, 0};
        m.ranges[t] = range;
        m.n += (counts[t] + MOMENT_BLOCK - 1) / MOMENT_BLOCK * MOMENT_BLOCK;
    }
    m.state = state_make(remainders, moments, m.n, m.n);
    m.grads = (real *)calloc(m.n, sizeof(real));
    return m;
}

static void model_free(Model *m) {
    state_free(&m->state);
    free(m->grads);
}

static void set_weight(const OptimizerState *s, size_t i, real w) {
    s->params[i] = s->remainder ? to_floatX_half_up(w) : to_floatX(w);
    if (s->remainder) { s->remainder[i] = remainder_of(w); }
}

// element i of a and element k of b: weight and moments
static void assert_same_element(const OptimizerState *a, size_t i, const OptimizerState *b, size_t k) {
    assert_true(reference_weight(a, i) == reference_weight(b, k));
    for (int is_v = 0; is_v < 2; is_v++) { assert_true(moment_value(a, is_v, i) == moment_value(b, is_v, k)); }
}

static void step_of_norm(Model *m, StepHyper hyper, real norm_squared) {
    Exec ex;
    Gradient grads = {m->grads, DT_REAL};
    memset(&ex, 0, sizeof ex);
    cpu_adamw_update(&m->state, grads, &norm_squared, m->ranges, NUM_TENSORS, m->n, &hyper, &ex);
}

// one step with the model's gradients, without clipping
static void step(Model *m, StepHyper hyper) { step_of_norm(m, hyper, 1); }

static StepHyper usual_hyper(int step_number) {
    StepHyper hyper = {(real)1e-3, (real)0.9, (real)0.95, (real)1e-8, (real)0.1, 0, step_number, 42};
    return hyper;
}

// one step for elements [begin, end) of the first tensor, as the beginning of arrays of their own
static void step_of_range(Model *m, size_t begin, size_t end, int step_number) {
    OptimizerState part = state_at(&m->state, m->state.params + begin, begin, begin);
    Exec ex;
    Gradient grads = {m->grads + begin, DT_REAL};
    UpdateRange range = {0, end - begin, begin, m->ranges[0].decay, m->ranges[0].tensor, 0, 0, 0};
    StepHyper hyper = usual_hyper(step_number);
    real norm_squared = 1;
    memset(&ex, 0, sizeof ex);
    cpu_adamw_update(&part, grads, &norm_squared, &range, 1, end - begin, &hyper, &ex);
}

// ---- weights and remainders

// Weight and remainder restore every bit pattern. The weight is rounded to nearest even, except for ties and NaNs.
TEST(test_every_pattern_is_split_and_joined) {
    int64_t lost = 0, not_nearest = 0;
#pragma omp parallel for schedule(static) reduction(+ : lost, not_nearest)
    for (int64_t upper = 0; upper < 65536; upper++) {
        for (uint32_t lower = (uint32_t)(upper % STRIDE); lower < 65536; lower += STRIDE) {
            uint32_t bits = (uint32_t)upper << 16 | lower;
            float f = bits_to_float(bits);
            bf16 weight = split_weight(f);
            lost += float_to_bits(split_join(weight, split_remainder(f))) != bits;
            bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
            not_nearest += !nan && lower != 0x8000 && weight.bits != float_to_bf16(f).bits;
        }
    }
    assert_int_equal(lost, 0);
    assert_int_equal(not_nearest, 0);
}

// ties round up in magnitude; a carry goes into the exponent, to infinity and through the sign
TEST(test_the_split_of_special_numbers) {
    static const struct {
        uint32_t bits, weight;
        int remainder;
    } cases[] = {
        {0x00000000, 0x0000, 0},      {0x80000000, 0x8000, 0},       {0x3F808000, 0x3F81, -0x8000},
        {0x3F807FFF, 0x3F80, 0x7FFF}, {0x3F818000, 0x3F82, -0x8000}, {0x3FFFFFFF, 0x4000, -1},
        {0x7F7FFFFF, 0x7F80, -1},     {0x7F800000, 0x7F80, 0},       {0xFF800000, 0xFF80, 0},
        {0x7FC00000, 0x7FC0, 0},      {0x7FFFFFFF, 0x8000, -1},      {0xFFFFFFFF, 0x0000, -1},
        {0x00000001, 0x0000, 1},      {0x80008000, 0x8001, -0x8000}, {0xBF808000, 0xBF81, -0x8000},
    };
    for (size_t i = 0; i < LEN(cases); i++) {
        float f = bits_to_float(cases[i].bits);
        assert_int_equal(split_weight(f).bits, cases[i].weight);
        assert_int_equal(split_remainder(f), cases[i].remainder);
    }
}

static const size_t small_counts[NUM_TENSORS] = {300, 128, 77};

static void set_random_weights(Model *m) {
    for (size_t i = 0; i < m->n; i++) { set_weight(&m->state, i, (real)(0.02 * rng_normal(1, 1, i))); }
}

// gradients of a step, some of them 0 or very small
static void set_random_grads(Model *m, uint64_t step_number) {
    for (size_t i = 0; i < m->n; i++) {
        real scale = i % 7 == 0 ? 0 : i % 5 == 0 ? (real)1e-12 : (real)1e-3;
        m->grads[i] = scale * (real)rng_normal(2, step_number, i);
    }
}

// A thousand steps with remainders are those of fp32 weights, bit for bit.
TEST(test_remainders_make_fp32_weights) {
    for (int type = 0; type < 3; type++) {
        Model m = model_make(true, moment_types[type], small_counts);
        real *weights = (real *)xmalloc(m.n * sizeof *weights);
        set_random_weights(&m);
        for (size_t i = 0; i < m.n; i++) { weights[i] = reference_weight(&m.state, i); }
        for (int s = 1; s <= 1000; s++) {
            StepHyper hyper = usual_hyper(s);
            set_random_grads(&m, (uint64_t)s);
            for (int t = 0; t < NUM_TENSORS; t++) {
                for (size_t i = m.ranges[t].offset; i < m.ranges[t].offset + m.ranges[t].count; i++) {
                    real first = (real)moment_value(&m.state, false, i), second = (real)moment_value(&m.state, true, i);
                    weights[i] =
                        reference_adamw_weight(weights[i], &first, &second, m.grads[i], m.ranges[t].decay, &hyper);
                }
            }
            step(&m, hyper);
        }
        size_t moved = 0;
        for (size_t i = 0; i < m.n; i++) {
            real weight = reference_weight(&m.state, i);
            floatX rounded = to_floatX_half_up(weights[i]);
            assert_memory_equal(&weight, &weights[i], sizeof weight);
            assert_memory_equal(&m.state.params[i], &rounded, sizeof rounded);
            moved += weight != (real)(0.02 * rng_normal(1, 1, i));
        }
        assert_true(moved > 300);
        free(weights);
        model_free(&m);
    }
}

// A tensor updated range by range, each range in arrays of its own, equals the whole tensor, bit for bit.
TEST(test_ranges_are_the_whole) {
    static const size_t counts[NUM_TENSORS] = {700, 0, 0}, cuts[] = {0, 256, 384, 700};
    for (int k = 0; k < 2 * 3; k++) {
        Model whole = model_make(k % 2, moment_types[k / 2], counts);
        Model parts = model_make(k % 2, moment_types[k / 2], counts);
        Model *both[] = {&whole, &parts};
        for (int i = 0; i < 2; i++) {
            set_random_weights(both[i]);
            set_random_grads(both[i], 1);
        }
        for (int i = 1; i <= 3; i++) {
            step(&whole, usual_hyper(i));
            for (int c = 0; c < 3; c++) { step_of_range(&parts, cuts[c], cuts[c + 1], i); }
        }
        assert_same_state(&whole.state, &parts.state, whole.n);
        model_free(&whole);
        model_free(&parts);
    }
}

// A slice of columns, as with tensor parallelism, is rounded like the whole tensor, bit for bit. 8-bit moments are left
// out: their scales depend on the neighbours.
TEST(test_columns_are_rounded_as_the_whole) {
    enum { ROWS = 60, COLS = 30 };
    static const size_t first[] = {0, 7, 8, 17}, cols[] = {30, 11, 4, 13};
    for (int k = 0; k < 4 * 2 * 2; k++) {
        size_t origin = first[k % 4], width = cols[k % 4];
        const size_t all[NUM_TENSORS] = {ROWS * COLS, 0, 0}, some[NUM_TENSORS] = {ROWS * width, 0, 0};
        Model whole = model_make(k / 4 % 2, moment_types[k / 8], all);
        Model part = model_make(k / 4 % 2, moment_types[k / 8], some);
        part.ranges[0].view_offset = origin;
        part.ranges[0].view_cols = width;
        part.ranges[0].view_stride = COLS;
        set_random_weights(&whole);
        set_random_grads(&whole, 1);
        for (size_t i = 0; i < some[0]; i++) {
            size_t there = origin + i / width * COLS + i % width;
            set_weight(&part.state, i, reference_weight(&whole.state, there));
            part.grads[i] = whole.grads[there];
        }
        for (int i = 1; i <= 3; i++) {
            step(&whole, usual_hyper(i));
            step(&part, usual_hyper(i));
        }
        for (size_t i = 0; i < some[0]; i++) {
            assert_same_element(&whole.state, origin + i / width * COLS + i % width, &part.state, i);
        }
        model_free(&whole);
        model_free(&part);
    }
}

// a norm that is not finite changes nothing, with any storage
TEST(test_nothing_changes_without_a_norm) {
    static const real norms[] = {INFINITY, NAN};
    for (int k = 0; k < 6 * 2; k++) {
        Model m = model_make(k % 2, moment_types[k / 2 % 3], small_counts);
        Model before = model_make(k % 2, moment_types[k / 2 % 3], small_counts);
        Model *both[] = {&m, &before};
        for (int i = 0; i < 2; i++) {
            set_random_weights(both[i]);
            set_random_grads(both[i], 1);
            step(both[i], usual_hyper(1));
        }
        step_of_norm(&m, usual_hyper(2), norms[k / 6]);
        assert_same_state(&m.state, &before.state, m.n);
        model_free(&m);
        model_free(&before);
    }
}

// ---- stochastic rounding, across steps

// All steps begin at the same state, so each stores one of the two neighbours of the exact value. From step 1000 on the
// bias corrections are 1: the exact value is the same in every step.
enum { FIRST_STEP = 1000, STEPS = 4096, ROUNDED = 3 };  // the weight, m, v or its root

typedef struct {
    size_t n;
    double exact[ROUNDED][512];
    float *stored[ROUNDED];  // (STEPS,n)
    double low[ROUNDED][512], high[ROUNDED][512];
} Rounding;

static void start_again(Model *m) {
    OptimizerState *s = &m->state;
    set_random_weights(m);
    memset(s->m, 0, m->n * dtype_size(s->moments));
    memset(s->v, 0, m->n * dtype_size(s->moments));
    for (size_t i = 0; i < m->n; i++) { m->grads[i] = (real)(0.3 + rng_uniform(3, 3, i)); }
}

static double rounded_value(const OptimizerState *s, int what, size_t i) {
    if (what == ROUND_WEIGHT) { return (double)reference_weight(s, i); }
    double moment = moment_value(s, what == ROUND_V, i);
    return what == ROUND_V && s->moments == DT_U8 ? sqrt(moment) : moment;
}

// the three tensors have equal sizes, so that their elements can be compared
static Rounding rounding_watch(DType moments) {
    static const size_t counts[NUM_TENSORS] = {128, 128, 128};
    Rounding r;
    Model exact = model_make(true, DT_REAL, counts), m = model_make(false, moments, counts);
    memset(&r, 0, sizeof r);
    r.n = m.n;
    start_again(&exact);
    for (size_t i = 0; i < m.n; i++) {  // the same start as the rounded weights
        set_weight(&exact.state, i, to_real(to_floatX(reference_weight(&exact.state, i))));
    }
    step(&exact, usual_hyper(FIRST_STEP));
    for (int what = 0; what < ROUNDED; what++) {
        r.stored[what] = (float *)malloc(STEPS * r.n * sizeof(float));
        for (size_t i = 0; i < r.n; i++) {
            double value = rounded_value(&exact.state, what, i);
            r.exact[what][i] = what == ROUND_V && moments == DT_U8 ? sqrt(value) : value;
            r.low[what][i] = INFINITY;
            r.high[what][i] = -INFINITY;
        }
    }
    for (int s = 0; s < STEPS; s++) {
        start_again(&m);
        step(&m, usual_hyper(FIRST_STEP + s));
        for (int what = 0; what < ROUNDED; what++) {
            for (size_t i = 0; i < r.n; i++) {
                double value = rounded_value(&m.state, what, i);
                r.stored[what][(size_t)s * r.n + i] = (float)value;
                r.low[what][i] = fmin(r.low[what][i], value);
                r.high[what][i] = fmax(r.high[what][i], value);
            }
        }
    }
    model_free(&exact);
    model_free(&m);
    return r;
}

static void rounding_free(Rounding *r) {
    for (int what = 0; what < ROUNDED; what++) { free(r->stored[what]); }
}

// the probability of the upper neighbour; 0 if it is below 0.02 or above 0.98, where steps say little
static double chance_of(const Rounding *r, int what, size_t i) {
    double low = r->low[what][i], high = r->high[what][i];
    double chance = high > low ? (r->exact[what][i] - low) / (high - low) : 0;
    return chance > 0.02 && chance < 0.98 ? chance : 0;
}

// (rounded up or not - mean) / standard deviation of one step; 0 where chance_of is 0
static double deviation(const Rounding *r, int what, int s, size_t i) {
    double chance = chance_of(r, what, i);
    if (chance == 0) { return 0; }
    bool up = (double)r->stored[what][(size_t)s * r->n + i] == (double)(float)r->high[what][i];
    return ((up ? 1 : 0) - chance) / sqrt(chance * (1 - chance));
}

// Over many steps each element is rounded up with the right frequency: the sum of its deviations is normal. Of 1000
// elements the largest is about 3.3. The variance over all elements is 1, neither larger nor smaller.
static void check_unbiased(const Rounding *r, int what, size_t least) {
    double largest = 0, squares = 0;
    size_t elements = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (chance_of(r, what, i) == 0) { continue; }
        double sum = 0;
        for (int s = 0; s < STEPS; s++) { sum += deviation(r, what, s, i); }
        double z = sum / sqrt(STEPS);
        largest = fmax(largest, fabs(z));
        squares += z * z;
        elements++;
    }
    assert_true(elements >= least);
    assert_true(largest < 4.5);
    assert_true(fabs(squares / (double)elements - 1) < 5 * sqrt(2.0 / (double)elements));
}

// the deviations of two series are independent: the sum of their products is normal
static void check_independent(const Rounding *r, int a, int b, size_t elements_apart, int steps_apart) {
    double sum = 0, count = 0;
    for (int s = 0; s + steps_apart < STEPS; s++) {
        for (size_t i = 0; i + elements_apart < r->n; i++) {
            double product = deviation(r, a, s, i) * deviation(r, b, s + steps_apart, i + elements_apart);
            sum += product;
            count += product != 0;
        }
    }
    assert_true(count > STEPS);
    if (!(fabs(sum) < 5 * sqrt(count))) {
        fail_msg("arrays %d and %d, %zu elements and %d steps apart: z = %.1f", a, b, elements_apart, steps_apart,
                 sum / sqrt(count));
    }
}

static void check_rounding(DType moments) {
    Rounding r = rounding_watch(moments);
    int first = DT_FLOATX == DT_BF16 ? ROUND_WEIGHT : ROUND_M;
    for (int a = first; a < ROUNDED; a++) {
        check_unbiased(&r, a, 300);
        for (int b = first; b < ROUNDED; b++) {
            if (a < b) { check_independent(&r, a, b, 0, 0); }
        }
        check_independent(&r, a, a, 1, 0);
        check_independent(&r, a, a, 4, 0);
        check_independent(&r, a, a, 128, 0);  // the same element of the next tensor
        check_independent(&r, a, a, 256, 0);
        check_independent(&r, a, a, 0, 1);
    }
    rounding_free(&r);
}

TEST(test_rounding_to_bf16) { check_rounding(DT_BF16); }
TEST(test_rounding_to_codes) { check_rounding(DT_U8); }

// ---- the second moment decays

static const size_t large_counts[NUM_TENSORS] = {4096, 3000, 100};

static void check_decay(DType moments, double limit) {
    Model m = model_make(false, moments, large_counts), exact = model_make(false, DT_REAL, large_counts);
    StepHyper first = usual_hyper(1);
    Model *both[] = {&m, &exact};
    for (int k = 0; k < 2; k++) {  // a first step sets v to values between 1 and 4
        for (size_t i = 0; i < m.n; i++) { both[k]->grads[i] = (real)(1 + rng_uniform(5, 5, i)); }
        first.beta2 = 0;
        step(both[k], first);
        memset(both[k]->grads, 0, m.n * sizeof(real));
    }
    double sum = 0, wanted = 0;
    for (int i = 2; i <= 1001; i++) {
        StepHyper hyper = usual_hyper(i);
        hyper.beta2 = (real)0.999;
        step(&m, hyper);
        step(&exact, hyper);
    }
    for (int t = 0; t < NUM_TENSORS; t++) {
        for (size_t i = m.ranges[t].offset; i < m.ranges[t].offset + m.ranges[t].count; i++) {
            sum += moment_value(&m.state, true, i);
            wanted += moment_value(&exact.state, true, i);
        }
    }
    if (!(fabs(sum / wanted - 1) < limit)) { fail_msg("v decayed to %.4f of the exact v", sum / wanted); }
    model_free(&m);
    model_free(&exact);
}

// 1000 steps with beta2 = 0.999. The error of one element is then 7 % in bf16 and 4 % in 8 bits; 7196 are averaged.
TEST(test_v_decays) {
    check_decay(DT_BF16, 0.005);
    check_decay(DT_U8, 0.005);
}

// v with normal gradients, averaged over the elements and the second half of the steps
static double level_of_v(DType moments, double beta2, int steps) {
    enum { NORMALS = 65536 };
    static real normals[NORMALS];
    Model m = model_make(false, moments, large_counts);
    double sum = 0, count = 0;
    for (uint64_t i = 0; i < NORMALS; i++) { normals[i] = (real)rng_normal(3, 3, i); }
    for (int i = 1; i <= steps; i++) {
        StepHyper hyper = usual_hyper(i);
        hyper.beta2 = (real)beta2;
        for (size_t k = 0; k < m.n; k++) { m.grads[k] = normals[rng_bits(4, (uint64_t)i, k) % NORMALS]; }
        step(&m, hyper);
        for (size_t k = 0; i > steps / 2 && i % 50 == 0 && k < 4096; k++, count++) {
            sum += moment_value(&m.state, true, k);
        }
    }
    model_free(&m);
    return sum / count;
}

// the equilibrium of v: 1 with exact moments, larger in 8 bits by the percentages of moments.h
TEST(test_level_of_v) {
    double slow = level_of_v(DT_REAL, 0.999, 6000), fast = level_of_v(DT_REAL, 0.95, 1000);
    assert_true(fabs(slow - 1) < 0.03 && fabs(fast - 1) < 0.01);
    assert_true(fabs(level_of_v(DT_BF16, 0.999, 6000) / slow - 1) < 0.003);
    assert_true(fabs(level_of_v(DT_BF16, 0.95, 1000) / fast - 1) < 0.003);
    assert_true(fabs(level_of_v(DT_U8, 0.999, 6000) / slow - 1.024) < 0.008);
    assert_true(fabs(level_of_v(DT_U8, 0.95, 1000) / fast - 1.006) < 0.003);
}

// ---- training with small moments

// the distance to the minimum of a quadratic function after 600 steps with noisy gradients
static double distance_after_training(DType moments) {
    Model m = model_make(true, moments, small_counts);
    double squares = 0;
    for (int s = 1; s <= 600; s++) {
        StepHyper hyper = usual_hyper(s);
        hyper.learning_rate = (real)(0.02 * (1 - s / 600.0));
        hyper.weight_decay = 0;
        for (size_t i = 0; i < m.n; i++) {
            double noise = 0.5 * rng_normal(7, (uint64_t)s, i);
            m.grads[i] = reference_weight(&m.state, i) - (real)(rng_normal(8, 8, i) + noise);
        }
        step(&m, hyper);
    }
    for (size_t i = 0; i < small_counts[0]; i++) {
        squares += pow((double)reference_weight(&m.state, i) - rng_normal(8, 8, i), 2);
    }
    model_free(&m);
    return sqrt(squares / (double)small_counts[0]);
}

// Small moments lead as close to the minimum as exact ones.
TEST(test_training_with_small_moments) {
    double exact = distance_after_training(DT_REAL);
    assert_true(exact < 0.05);
    assert_true(distance_after_training(DT_BF16) < 1.02 * exact);
    assert_true(distance_after_training(DT_U8) < 1.02 * exact);
}

// ---- the error of 8-bit moments

typedef enum { RANDOM, TINY, SMALLEST, SUBNORMAL, HUGE_ONES, EQUAL, SINGLE, ZERO, EVERY_SIZE, NUM_FILLS } Fill;

static real fill_value(Fill fill, size_t i, uint64_t seed) {
    double x = rng_normal(seed, 9, i);
    switch (fill) {
    case RANDOM: return (real)x;
    case TINY: return (real)(1e-18 * x);
    case SMALLEST: return (real)(1e-36 * x);  // the scale would be subnormal
    case SUBNORMAL: return (real)(1e-42 * x);
    case HUGE_ONES: return (real)(1e18 * x);
    case EQUAL: return (real)-0.37;
    case SINGLE: return i % MOMENT_BLOCK == 77 ? (real)x : 0;
    case EVERY_SIZE: return (real)(x * exp(20 * rng_normal(seed, 10, i)));
    default: return 0;
    }
}

// One step with beta1 = beta2 = 0: m is the gradient and v its square, stored as codes.
static void store_codes(Model *m, Fill fill, uint64_t seed) {
    StepHyper hyper = usual_hyper((int)seed);
    hyper.beta1 = hyper.beta2 = 0;
    for (size_t i = 0; i < m->n; i++) { m->grads[i] = fill_value(fill, i, seed); }
    step(m, hyper);
}

static void check_code(double exact, double is, double step_size, double unit, const char *what) {
    if (!(fabs(is - exact) <= 1.0001 * step_size * fmax(fabs(exact), unit))) {
        fail_msg("%s %.9g is stored as %.9g; the unit of the block is %.3g", what, exact, is, unit);
    }
}

// elements [begin, end) share a scale
static void check_block(const Model *model, size_t begin, size_t end) {
    double largest_m = 0, largest_root = 0;
    for (size_t i = begin; i < end; i++) {
        largest_m = fmax(largest_m, fabs((double)model->grads[i]));
        largest_root = fmax(largest_root, sqrt((double)(model->grads[i] * model->grads[i])));
    }
    double m_unit = fmax(largest_m / 30720, 0x1p-126), root_unit = fmax(largest_root / 31744, 0x1p-126);
    for (size_t i = begin; i < end; i++) {
        double m = (double)model->grads[i], root = sqrt((double)(model->grads[i] * model->grads[i]));
        uint8_t root_code = ((const uint8_t *)model->state.v)[i];
        double root_is = code_number(root_code, V_MANTISSA) * model->state.v_scales[i / MOMENT_BLOCK];
        check_code(m, moment_value(&model->state, false, i), 0x1p-3, m_unit, "m");
        check_code(root, root_is, 0x1p-4, root_unit, "a root of v");
        assert_true((root > 0) == (root_code > 0));
        if (m == largest_m && m > 1e-33) {
            check_code(m, moment_value(&model->state, false, i), 1e-6, 0, "the largest m");
        }
        if (root == largest_root) { check_code(root, root_is, 1e-6, 0, "the largest root of v"); }
    }
    if (largest_m == 0) { assert_true(model->state.m_scales[begin / MOMENT_BLOCK] == 0); }
    if (largest_root == 0) { assert_true(model->state.v_scales[begin / MOMENT_BLOCK] == 0); }
}

TEST(test_error_of_codes) {
    Model m = model_make(false, DT_U8, small_counts);
    for (int fill = 0; fill < NUM_FILLS; fill++) {
        for (uint64_t seed = 1; seed <= 200; seed++) {
            store_codes(&m, (Fill)fill, seed);
            for (int t = 0; t < NUM_TENSORS; t++) {
                size_t end = m.ranges[t].offset + m.ranges[t].count;
                for (size_t i = m.ranges[t].offset; i < end; i += MOMENT_BLOCK) {
                    check_block(&m, i, i + MOMENT_BLOCK < end ? i + MOMENT_BLOCK : end);
                }
            }
        }
    }
    model_free(&m);
}

// every code is the code of its number, and larger codes have larger numbers
TEST(test_codes_and_numbers) {
    for (int mantissa = M_MANTISSA; mantissa <= V_MANTISSA; mantissa++) {
        uint32_t last = mantissa == M_MANTISSA ? 0x7F : 0xFF;
        assert_true(code_number(0, mantissa) == 0 && code_number(1u << mantissa, mantissa) == 1);
        assert_true(code_number(last, mantissa) == (mantissa == M_MANTISSA ? 30720 : 31744));
        for (uint32_t code = 0; code <= last; code++) {
            float number = code_number(code, mantissa);
            assert_true(code == 0 || number > code_number(code - 1, mantissa));
            assert_int_equal(number_code(number, mantissa, 0), code);
            assert_int_equal(number_code(number, mantissa, (1u << (23 - mantissa)) - 1), code);
        }
    }
}

// an infinite moment is stored as the largest number and decodes to a finite one
TEST(test_infinite_moments) {
    float m = m_scale(INFINITY), root = v_scale(INFINITY);
    float inverse_m = inverse_scale(m), inverse_root = inverse_scale(root);
    for (uint32_t random_bits = 0; random_bits < 65536; random_bits += 4369) {
        assert_int_equal(m_code(INFINITY, inverse_m, random_bits), 0x7F);
        assert_int_equal(m_code(-INFINITY, inverse_m, random_bits), 0xFF);
        assert_int_equal(v_code(INFINITY, inverse_root, random_bits), 0xFF);
        assert_int_equal(v_code(1e-22f, inverse_root, random_bits), 1);
    }
    assert_true(m_of_code(0x7F, m) > 3.3e38f && isfinite(m_of_code(0x7F, m)));
    assert_true(m_of_code(0xFF, m) == -m_of_code(0x7F, m));
    assert_true(v_of_code(0xFF, root) > 3.3e38f && isfinite(v_of_code(0xFF, root)));
    assert_true(isfinite(m_of_code(0x7F, m_scale(3.4028235e38f))));
    assert_true(isfinite(v_of_code(0xFF, v_scale(sqrtf(3.4028235e38f)))));
}

int main(void) { return run_all_tests("adamw"); }
