// slices.h: every element of every tensor is in the slices of the right ranks, for any t, heads and channels.
#include "testing.h"
#include "slice_copy.h"
#include "llmc/shapes/slices.h"

enum { MOST_RANKS = 8, SEED = 42 };

// GPT-2's heads with few channels, and sizes that no t divides
static const GPT2Config configs[] = {
    {5, 300, 384, 2, 3, 12},    {4, 130, 256, 2, 5, 15}, {3, 257, 384, 3, 12, 24},
    {2, 1000, 1024, 2, 25, 50}, {7, 5, 128, 1, 1, 7},    {3, 1100, 1152, 2, 16, 32},
};
enum { NUM_CONFIGS = LEN(configs) };

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

// ---- checks of one tensor

// An element of a split tensor is in one slice, of a replicated tensor in all. Ranges ascend and cannot be merged.
static void check_holders(ParamId id, const GPT2Config *c, int t) {
    size_t n = global_count(id, c);
    int *holders = (int *)xcalloc(n, sizeof *holders);
    for (int r = 0; r < t; r++) {
        Slice s = param_slice(id, c, t, r);
        SliceRange last = {0, 0, 0};
        for (size_t i = 0; i < slice_num_ranges(&s); i++) {
            SliceRange range = slice_range(&s, i);
            bool adjacent = range.local == last.local + last.count && range.global == last.global + last.count;
            if (range.count == 0 || (i > 0 && (adjacent || range.local < last.local + last.count))) {
                fail_msg("%s: range %zu of rank %d is empty, not ascending or adjacent to the range before it",
                         title(id, c, t), i, r);
            }
            assert_true(range.local + range.count <= s.rows * s.cols && range.global + range.count <= n);
            for (size_t j = 0; j < range.count; j++) { holders[range.global + j]++; }
            last = range;
        }
    }
    int wanted = param_split(id) == SPLIT_NONE ? t : 1;
    for (size_t i = 0; i < n; i++) {
        if (holders[i] != wanted) {
            fail_msg("%s: element %zu is in %d slices, expected %d", title(id, c, t), i, holders[i], wanted);
        }
    }
    free(holders);
}

// slice_init_tensor gives the initial values of the whole tensor.
static void check_initial_values(ParamId id, const GPT2Config *c, int t) {
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
        if (memcmp(got, wanted, count * sizeof *got) != 0) {
            fail_msg("%s: rank %d has other initial values than the whole tensor", title(id, c, t), r);
        }
        free(wanted);
        free(got);
    }
    free(global);
}

// The shape of a slice follows from this rank's heads, d_ff and vocabulary.
static void check_shape(ParamId id, const GPT2Config *c, int t) {
    for (int r = 0; r < t; r++) {
        LocalShape shape = local_shape(c, t, r);
        Slice s = param_slice(id, c, t, r);
        size_t C = (size_t)c->channels, attn_dim = (size_t)shape.attn_dim, d_ff = (size_t)shape.d_ff;
        size_t rows = id == WTE || id == QKVW || id == FCW ? s.rows : s.global_rows, cols = s.global_cols;
        if (id == WTE) { rows = t == 1 ? s.rows : (size_t)shape.vocab; }
        if (id == QKVW) { rows = 3 * attn_dim; }
        if (id == QKVB) { cols = 3 * attn_dim; }
        if (id == ATTPROJW || id == FCPROJW) { rows = C; }
        if (id == ATTPROJW) { cols = attn_dim; }
        if (id == FCW) { rows = d_ff; }
        if (id == FCB) { cols = d_ff; }
        if (id == FCPROJW) { cols = d_ff; }
        if (s.rows != rows || s.cols != cols) {
            fail_msg("%s: found (%zu,%zu), expected (%zu,%zu)", title(id, c, t), s.rows, s.cols, rows, cols);
        }
        if (t == 1) { assert_int_equal(s.rows * s.cols, param_rows(id, c) * param_cols(id, c)); }
    }
}

TEST(test_every_element_is_in_the_right_slices) { for_each_tensor(check_holders); }
TEST(test_initial_values_do_not_depend_on_t) { for_each_tensor(check_initial_values); }
TEST(test_shapes) { for_each_tensor(check_shape); }

// ---- known numbers

static GPT2Config described(const char *model) {
    GPT2Config c = {0};
    if (!config_from_descriptor(&c, model, 0, 0)) { fail_msg("%s: expected a descriptor", model); }
    return c;
}

static void assert_local(const char *model, int t, int r, int heads, int attn_dim, int d_ff, int vocab) {
    GPT2Config c = described(model);
    LocalShape s = local_shape(&c, t, r);
    assert_int_equal(s.heads, heads);
    assert_int_equal(s.attn_dim, attn_dim);
    assert_int_equal(s.d_ff, d_ff);
    assert_int_equal(s.vocab, vocab);
}

TEST(test_known_shapes) {
    assert_local("d12", 1, 0, 12, 768, 3072, 50304);
    assert_local("d12", 4, 3, 3, 192, 768, 12672);  // 99 * 512 = 50688
    assert_local("d48", 2, 0, 13, 832, 3200, 25216);
    assert_local("d48", 8, 7, 4, 256, 800, 6400);
    assert_local("d24", 3, 0, 6, 384, 1368, 16768);  // 4096 / 3 = 1365.3
}

// d48 has 25 heads: rank 1 of 2 has heads 13..24 and a padding head, as rows of QKVW and columns of ATTPROJW
TEST(test_heads_of_1558M_on_two) {
    GPT2Config c = described("d48");
    Slice qkvw = param_slice(QKVW, &c, 2, 1), attprojw = param_slice(ATTPROJW, &c, 2, 1);
    assert_int_equal(slice_num_ranges(&qkvw), 3);
    for (size_t i = 0; i < 3; i++) {
        SliceRange range = slice_range(&qkvw, i);
        assert_int_equal(range.local, i * 832 * 1600);
        assert_int_equal(range.global, (i * 1600 + 832) * 1600);
        assert_int_equal(range.count, 768 * 1600);
    }
    assert_int_equal(slice_num_ranges(&attprojw), 1600);
    SliceRange row = slice_range(&attprojw, 7);
    assert_int_equal(row.local, 7 * 832);
    assert_int_equal(row.global, 7 * 1600 + 832);
    assert_int_equal(row.count, 768);
}

int main(void) { return run_all_tests("slices"); }
