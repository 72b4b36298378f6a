// slices.h: every element of every tensor is held by the ranks that should hold it, whatever t, heads and widths are.
#include "testing.h"
#include "slice_copy.h"
#include "llmc/parallel/slices.h"

enum { MOST_RANKS = 8, SEED = 42 };

// heads, channels, ids: GPT-2's heads cut small, and some that nothing divides
static const GPT2Config configs[] = {
    {5, 300, 384, 2, 3, 12},    {4, 130, 256, 2, 5, 15}, {3, 257, 384, 3, 12, 24},
    {2, 1000, 1024, 2, 25, 50}, {7, 5, 128, 1, 1, 7},    {3, 1100, 1152, 2, 16, 32},
};
enum { NUM_CONFIGS = sizeof configs / sizeof configs[0] };

typedef void TensorCheck(ParamId id, const GPT2Config *c, int t);

// every tensor of every model, for every t
static void for_each_tensor(TensorCheck *check) {
    for (int i = 0; i < NUM_CONFIGS; i++) {
        for (int t = 1; t <= MOST_RANKS; t++) {
            for (int id = 0; id < NUM_PARAM_TENSORS; id++) { check((ParamId)id, &configs[i], t); }
        }
    }
}

static const char *title(ParamId id, const GPT2Config *c, int t) {
    static char text[96];
    snprintf(text, sizeof text, "%s, %d heads, %d channels, %d ranks", param_specs[id].name, c->num_heads, c->channels,
             t);
    return text;
}

static size_t global_count(ParamId id, const GPT2Config *c) { return param_used_rows(id, c) * param_cols(id, c); }

// 1, 2, 3, ...
static float *numbered(size_t n) {
    float *x = (float *)xmalloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) { x[i] = (float)(i + 1); }
    return x;
}

static float *not_a_number(size_t n) {
    float *x = (float *)xmalloc(n * sizeof *x);
    memset(x, 0xFF, n * sizeof *x);
    return x;
}

// ---- checks of one tensor

static void check_round_trip(ParamId id, const GPT2Config *c, int t) {
    size_t n = global_count(id, c);
    float *global = numbered(n), *gathered = not_a_number(n);
    for (int r = 0; r < t; r++) {
        Slice s = param_slice(id, c, t, r);
        float *local = not_a_number(s.rows * s.cols);
        slice_extract(local, global, &s, sizeof *local);
        slice_insert(gathered, local, &s, sizeof *local);
        free(local);
    }
    if (memcmp(gathered, global, n * sizeof *global) != 0) {
        fail_msg("%s: other elements come back", title(id, c, t));
    }
    free(global);
    free(gathered);
}

// a split tensor's elements have one holder, the others' all ranks; a run goes on as long as it could
static void check_holders(ParamId id, const GPT2Config *c, int t) {
    size_t n = global_count(id, c);
    int *holders = (int *)xcalloc(n, sizeof *holders);
    for (int r = 0; r < t; r++) {
        Slice s = param_slice(id, c, t, r);
        SliceRange last = {0, 0, 0};
        for (size_t i = 0; i < slice_num_ranges(&s); i++) {
            SliceRange run = slice_range(&s, i);
            bool goes_on = run.local == last.local + last.count && run.global == last.global + last.count;
            if (run.count == 0 || (i > 0 && (goes_on || run.local < last.local + last.count))) {
                fail_msg("%s: run %zu of rank %d is none", title(id, c, t), i, r);
            }
            assert_true(run.local + run.count <= s.rows * s.cols && run.global + run.count <= n);
            for (size_t j = 0; j < run.count; j++) { holders[run.global + j]++; }
            last = run;
        }
    }
    int wanted = param_split(id) == SPLIT_NONE ? t : 1;
    for (size_t i = 0; i < n; i++) {
        if (holders[i] != wanted) { fail_msg("%s: element %zu is held by %d", title(id, c, t), i, holders[i]); }
    }
    free(holders);
}

// what was extracted is there, and all else is zero
static void check_inert(ParamId id, const GPT2Config *c, int t) {
    float *global = numbered(global_count(id, c));
    for (int r = 0; r < t; r++) {
        Slice s = param_slice(id, c, t, r);
        size_t count = s.rows * s.cols, held = 0;
        float *local = not_a_number(count);
        slice_extract(local, global, &s, sizeof *local);
        for (size_t i = 0; i < slice_num_ranges(&s); i++) {
            SliceRange run = slice_range(&s, i);
            held += run.count;
            for (size_t j = 0; j < run.count; j++) {
                assert_true(local[run.local + j] == global[run.global + j]);
                local[run.local + j] = 0;
            }
        }
        for (size_t i = 0; i < count; i++) { assert_true(local[i] == 0); }
        assert_true(held <= count);
        free(local);
    }
    free(global);
}

static void check_first_values(ParamId id, const GPT2Config *c, int t) {
    size_t n = global_count(id, c);
    real *global = (real *)xmalloc(n * sizeof *global);
    int layer = param_layers(id, c) - 1;
    param_init_tensor(global, id, layer, 0, n, c, SEED);
    for (int r = 0; r < t; r++) {
        Slice s = param_slice(id, c, t, r);
        size_t count = s.rows * s.cols;
        real *wanted = (real *)xmalloc(count * sizeof *wanted), *got = (real *)xmalloc(count * sizeof *got);
        memset(got, 0xFF, count * sizeof *got);
        slice_extract(wanted, global, &s, sizeof *wanted);
        slice_init_tensor(got, &s, id, layer, 0, s.rows * s.cols, c, SEED);
        if (memcmp(got, wanted, count * sizeof *got) != 0) { fail_msg("%s: other values", title(id, c, t)); }
        free(wanted);
        free(got);
    }
    free(global);
}

// a rank's tensor has the shape that its activations have
static void check_shape(ParamId id, const GPT2Config *c, int t) {
    for (int r = 0; r < t; r++) {
        LocalShape shape = local_shape(c, t, r);
        Slice s = param_slice(id, c, t, r);
        size_t C = (size_t)c->channels, attention = (size_t)shape.attention, units = (size_t)shape.units;
        size_t rows = id == WTE || id == QKVW || id == FCW ? s.rows : s.global_rows, cols = s.global_cols;
        if (id == WTE) { rows = t == 1 ? s.rows : (size_t)shape.vocab; }
        if (id == QKVW) { rows = 3 * attention; }
        if (id == QKVB) { cols = 3 * attention; }
        if (id == ATTPROJW) { rows = C, cols = attention; }
        if (id == FCW) { rows = units; }
        if (id == FCB) { cols = units; }
        if (id == FCPROJW) { rows = C, cols = units; }
        if (s.rows != rows || s.cols != cols) { fail_msg("%s: (%zu,%zu)", title(id, c, t), s.rows, s.cols); }
        if (t == 1) { assert_int_equal(s.rows * s.cols, param_rows(id, c) * param_cols(id, c)); }
    }
}

static void test_slices_gather_to_the_whole(void **state) { (void)state, for_each_tensor(check_round_trip); }
static void test_every_element_is_held_once(void **state) { (void)state, for_each_tensor(check_holders); }
static void test_inert_elements_are_zero(void **state) { (void)state, for_each_tensor(check_inert); }
static void test_first_values_are_the_wholes(void **state) { (void)state, for_each_tensor(check_first_values); }
static void test_shapes(void **state) { (void)state, for_each_tensor(check_shape); }

// ---- known numbers

static GPT2Config described(const char *model) {
    GPT2Config c = {0};
    if (!config_from_descriptor(&c, model, 0, 0)) { fail_msg("%s is no model", model); }
    return c;
}

static void assert_local(const char *model, int t, int r, int heads, int attention, int units, int vocab) {
    GPT2Config c = described(model);
    LocalShape s = local_shape(&c, t, r);
    assert_int_equal(s.heads, heads);
    assert_int_equal(s.attention, attention);
    assert_int_equal(s.units, units);
    assert_int_equal(s.vocab, vocab);
}

static void test_known_shapes(void **state) {
    (void)state;
    assert_local("d12", 1, 0, 12, 768, 3072, 50304);
    assert_local("d12", 4, 3, 3, 192, 768, 12672);  // 99 * 512 = 50688
    assert_local("d48", 2, 0, 13, 832, 3200, 25216);
    assert_local("d48", 8, 7, 4, 256, 800, 6400);
    assert_local("d24", 3, 0, 6, 384, 1368, 16768);  // 4096 / 3 = 1365.3
}

// rows of Q, K and V of heads 13.. of 25, and columns for them
static void test_heads_of_1558M_on_two(void **state) {
    (void)state;
    GPT2Config c = described("d48");
    Slice qkvw = param_slice(QKVW, &c, 2, 1), attprojw = param_slice(ATTPROJW, &c, 2, 1);
    assert_int_equal(slice_num_ranges(&qkvw), 3);
    for (size_t i = 0; i < 3; i++) {
        SliceRange run = slice_range(&qkvw, i);
        assert_int_equal(run.local, i * 832 * 1600);
        assert_int_equal(run.global, (i * 1600 + 832) * 1600);
        assert_int_equal(run.count, 768 * 1600);
    }
    assert_int_equal(slice_num_ranges(&attprojw), 1600);
    SliceRange row = slice_range(&attprojw, 7);
    assert_int_equal(row.local, 7 * 832);
    assert_int_equal(row.global, 7 * 1600 + 832);
    assert_int_equal(row.count, 768);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_gather_to_the_whole),
        cmocka_unit_test(test_every_element_is_held_once),
        cmocka_unit_test(test_inert_elements_are_zero),
        cmocka_unit_test(test_first_values_are_the_wholes),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_known_shapes),
        cmocka_unit_test(test_heads_of_1558M_on_two),
    };
    return cmocka_run_group_tests_name("slices", tests, NULL, NULL);
}
