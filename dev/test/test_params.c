// params.h and layout.h: model shapes, parameter counts, the flat buffer, AdamW's ranges, shards, initial values.
#include "testing.h"
#include "slice_copy.h"
#include "llmc/adamw.h"
#include "llmc/shapes/layout.h"

enum { DATA_VOCAB = 300, DATA_T = 77 };

static GPT2Config described(const char *word) {
    GPT2Config c;
    if (!config_from_descriptor(&c, word, DATA_VOCAB, DATA_T)) { fail_msg("'%s': expected a descriptor", word); }
    return c;
}

static void check_word(void *word) {
    GPT2Config c = described((const char *)word);
    require_valid_shape(&c, (const char *)word);
}

// ---- shapes

TEST(test_known_models) {
    static const struct {
        const char *word;
        int L, NH, C, maxT;
    } cases[] = {
        {"d6", 6, 6, 384, 1024},
        {"d12", 12, 12, 768, 1024},
        {"gpt2:d12", 12, 12, 768, 1024},
        {"d24", 24, 16, 1024, 1024},
        {"d36", 36, 20, 1280, 1024},
        {"d48", 48, 25, 1600, 1024},
        {"gpt2:d48", 48, 25, 1600, 1024},
        {"d60", 60, 30, 1920, 1024},
        {"d72", 72, 30, 2880, 1024},
        {"d84", 84, 36, 3456, 1024},
        {"gpt3:c384", 6, 6, 384, 2048},
        {"gpt3:c768", 12, 12, 768, 2048},
        {"gpt3:c1024", 24, 16, 1024, 2048},
        {"gpt3:c1536", 24, 16, 1536, 2048},
        {"gpt3:c2048", 24, 16, 2048, 2048},
        {"gpt3:c2560", 32, 32, 2560, 2048},
        {"gpt3:c4096", 32, 32, 4096, 2048},
        {"gpt3:c5120", 40, 40, 5120, 2048},
        {"gpt3:c12288", 96, 96, 12288, 2048},
    };
    for (size_t i = 0; i < LEN(cases); i++) {
        GPT2Config c = described(cases[i].word);
        require_valid_shape(&c, cases[i].word);
        assert_int_equal(c.num_layers, cases[i].L);
        assert_int_equal(c.num_heads, cases[i].NH);
        assert_int_equal(c.channels, cases[i].C);
        assert_int_equal(c.max_seq_len, cases[i].maxT);
        assert_int_equal(c.vocab_size, 50257);
        assert_int_equal(c.padded_vocab_size, 50304);
    }
}

TEST(test_shape_descriptor) {
    GPT2Config c = described("l4h2c128");
    assert_int_equal(c.num_layers, 4);
    assert_int_equal(c.num_heads, 2);
    assert_int_equal(c.channels, 128);
    assert_int_equal(config_head_size(&c), 64);
    assert_int_equal(c.max_seq_len, DATA_T);
    assert_int_equal(c.vocab_size, DATA_VOCAB);
    assert_int_equal(c.padded_vocab_size, 384);
    config_set_vocab(&c, 256);
    assert_int_equal(c.padded_vocab_size, 256);
    config_set_vocab(&c, 1);
    assert_int_equal(c.padded_vocab_size, 128);
}

// any other word may be a path
TEST(test_no_descriptors) {
    static const char *const words[] = {
        "",      "d13",       "d12x",      "D12",      "d",       "gpt2:",      "gpt2:d13",  "gpt3:c769",   "l4h4",
        "l4h4c", "l4h4c128x", "l4h4c128/", "l4c128h4", "4h4c128", "l4h4c128.5", "l4,h4c128", "l9999999h1c1"};
    for (size_t i = 0; i < LEN(words); i++) {
        GPT2Config c;
        if (config_from_descriptor(&c, words[i], DATA_VOCAB, DATA_T)) { fail_msg("'%s' is no descriptor", words[i]); }
    }
}

TEST(test_impossible_shapes) {
    static const struct {
        const char *word, *error;
    } cases[] = {
        {"l0h1c8", "at least one layer"},
        {"l1h0c8", "at least one layer"},
        {"l1h1c0", "at least one layer"},
        {"l-1h1c8", "at least one layer"},
        {"l2h3c8", "3 heads do not divide 8 channels"},
        {"l2h16c8", "16 heads do not divide 8 channels"},
        {"l1h1c257", "a head of 257 channels"},
        {"l999999h999999c999999", "parameters is more than"},
    };
    for (size_t i = 0; i < LEN(cases); i++) {
        assert_stops(2, cases[i].error, check_word, (void *)cases[i].word);
        assert_stops(2, cases[i].word, check_word, (void *)cases[i].word);
    }
    check_word((void *)"l1h1c1");
    check_word((void *)"l1h1c256");
}

TEST(test_parameter_counts) {
    static const struct {
        const char *word;
        size_t count;
    } cases[] = {{"d12", 124439808}, {"d24", 354823168}, {"d36", 774030080}, {"d48", 1557611200}};
    for (size_t i = 0; i < LEN(cases); i++) {
        GPT2Config c = described(cases[i].word);
        assert_int_equal(num_parameters(&c), cases[i].count);
    }
}

// ---- names and layout

// Hugging Face's names, in the order of the flat buffer
static const char *const names_of_layer_3[NUM_PARAM_TENSORS] = {
    "wte.weight",
    "wpe.weight",
    "h.3.ln_1.weight",
    "h.3.ln_1.bias",
    "h.3.attn.c_attn.weight",
    "h.3.attn.c_attn.bias",
    "h.3.attn.c_proj.weight",
    "h.3.attn.c_proj.bias",
    "h.3.ln_2.weight",
    "h.3.ln_2.bias",
    "h.3.mlp.c_fc.weight",
    "h.3.mlp.c_fc.bias",
    "h.3.mlp.c_proj.weight",
    "h.3.mlp.c_proj.bias",
    "ln_f.weight",
    "ln_f.bias",
};

TEST(test_names) {
    char name[64];
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        param_name(name, sizeof name, (ParamId)id, 3);
        assert_string_equal(name, names_of_layer_3[id]);
        assert_int_equal(param_is_layered((ParamId)id), name[0] == 'h');
    }
}

TEST(test_shapes) {
    GPT2Config c = described("l4h2c6");
    const size_t rows[] = {384, DATA_T, 1, 1, 18, 1, 6, 1, 1, 1, 24, 1, 6, 1, 1, 1};
    const size_t cols[] = {6, 6, 6, 6, 6, 18, 6, 6, 6, 6, 6, 24, 24, 6, 6, 6};
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        assert_int_equal(param_rows((ParamId)id, &c), rows[id]);
        assert_int_equal(param_cols((ParamId)id, &c), cols[id]);
        assert_int_equal(param_used_rows((ParamId)id, &c), id == WTE ? DATA_VOCAB : rows[id]);
    }
}

// Every tensor starts at the first aligned element after the tensor before it. So tensors are disjoint, a layer is
// contiguous, and the buffer ends with the last tensor.
TEST(test_layout) {
    static const char *const words[] = {"l1h1c1", "l3h2c6", "l2h4c64", "d12", "gpt3:c12288"};
    for (size_t i = 0; i < LEN(words); i++) {
        GPT2Config c = described(words[i]);
        ParamLayout layout = param_layout(&c);
        size_t at = 0;
        for (int group = -1; group <= c.num_layers; group++) {
            int first = group < 0 ? WTE : group < c.num_layers ? LN1W : LNFW;
            int last = group < 0 ? WPE : group < c.num_layers ? FCPROJB : LNFB;
            for (int id = first; id <= last; id++) {
                at = (at + 127) / 128 * 128;
                assert_int_equal(param_offset(&layout, (ParamId)id, group < 0 ? 0 : group), at);
                at += param_rows((ParamId)id, &c) * param_cols((ParamId)id, &c);
            }
        }
        assert_int_equal(layout.total, (at + 127) / 128 * 128);
    }
}

// ---- shards and slices

// The drawing at the top of layout.h: row 1221, column 10 of layer 3's QKVW of d12 on 4 ranks, -tp 2 -z 3.
TEST(test_one_element_at_its_five_addresses) {
    enum { LAYER = 3, ROW = 1221, COL = 10 };
    const GPT2Config c = {1024, 50257, 50304, 12, 12, 768};
    // whole tensor
    assert_int_equal(param_rows(QKVW, &c), 2304);
    assert_int_equal(param_cols(QKVW, &c), 768);
    size_t element = ROW * param_cols(QKVW, &c) + COL;
    assert_int_equal(element, 937738);
    // slice
    Range in_slice;
    int tp_rank = slice_of(&in_slice, QKVW, &c, 2, element);
    assert_int_equal(tp_rank, 1);
    assert_int_equal(in_slice.offset, 347914);
    assert_int_equal(in_slice.offset, 453 * 768 + COL);
    Slice slice = param_slice(QKVW, &c, 2, tp_rank);
    assert_true(slice.rows == 1152 && slice.cols == 768 && slice_num_ranges(&slice) == 3);
    SliceRange k = slice_range(&slice, 1);
    assert_true(k.local == 384 * 768 && k.global == (768 + 384) * 768 && k.count == 384 * 768);
    assert_int_equal(k.local + element - k.global, in_slice.offset);
    // flat buffer
    Sharding sharding = {2, 0, 3, 2, tp_rank, 0};
    ParamLayout layout = param_layout_sharded(&c, sharding);
    assert_int_equal(layout.total, 62710272);
    assert_int_equal(param_offset(&layout, QKVW, LAYER), 30792960);
    size_t in_block = param_offset(&layout, QKVW, LAYER) + in_slice.offset;
    assert_int_equal(in_block, 31140874);
    // bucket and shard
    Bucket bucket = param_bucket(&layout, layer_bucket(LAYER));
    assert_int_equal(bucket.offset, 30791424);
    assert_true(bucket.chunk == 1773184 && bucket.size == 2 * bucket.chunk);
    assert_int_equal(in_block - bucket.offset, 349450);
    assert_int_equal((in_block - bucket.offset) / bucket.chunk, sharding.dp_rank);
    assert_int_equal(layout.shard, 31355136);
    assert_int_equal(bucket.shard_offset, 15395712);
    ParamRange owned = param_owned_range(&layout, QKVW, LAYER, param_count(&layout, QKVW));
    assert_true(in_slice.offset >= owned.offset && in_slice.offset - owned.offset < owned.count);
    assert_int_equal(owned.params + in_slice.offset - owned.offset, 15745162);
    assert_int_equal(bucket.shard_offset + in_block - bucket.offset, 15745162);
    // the other data-parallel rank does not own the element
    sharding.dp_rank = 1;
    layout = param_layout_sharded(&c, sharding);
    owned = param_owned_range(&layout, QKVW, LAYER, param_count(&layout, QKVW));
    assert_true(in_slice.offset < owned.offset || in_slice.offset - owned.offset >= owned.count);
    // file
    assert_true(param_specs[QKVW].transposed);
    assert_int_equal(COL * param_rows(QKVW, &c) + ROW, 24261);
}

// Buckets are adjacent, chunks of a bucket have one size, and the shards of all ranks make up the flat buffer.
static void check_buckets(const ParamLayout *layout) {
    size_t at = 0, shard = 0, ranks = (size_t)layout->sharding.dp_size, rank = (size_t)layout->sharding.dp_rank;
    for (int i = 0; i < num_buckets(layout); i++) {
        Bucket b = param_bucket(layout, i);
        assert_int_equal(b.offset, at);
        assert_int_equal(b.size, b.chunk * ranks);
        assert_int_equal(b.owned_offset, b.offset + rank * b.chunk);
        assert_int_equal(b.shard_offset, shard);
        assert_int_equal(b.chunk % MOMENT_BLOCK, 0);
        at += b.size;
        shard += b.chunk;
    }
    assert_int_equal(at, layout->total);
    assert_int_equal(shard, layout->shard);
}

// Two neighbouring layers have different buffers, and so have the other buckets.
static void check_buffers(const ParamLayout *layout) {
    for (int i = 0; i < num_buckets(layout); i++) {
        size_t from = bucket_buffer(layout, i), end = from + param_bucket(layout, i).size;
        assert_true(end <= bucket_buffers(layout));
        for (int k = 0; k < i; k++) {
            size_t other = bucket_buffer(layout, k), other_end = other + param_bucket(layout, k).size;
            bool same =
                bucket_kind(layout, i) == LAYER_BUCKET && bucket_kind(layout, k) == LAYER_BUCKET && (i - k) % 2 == 0;
            assert_true(same ? from == other : from >= other_end || end <= other);
        }
    }
}

// The view of an update range gives the offset of each element in the whole tensor, for any shard of the slice.
static void check_views(const ParamLayout *layout) {
    UpdateRange ranges[LAYER_PARAMS];
    for (int i = 0; i < num_buckets(layout); i++) {
        int count = bucket_update_ranges(ranges, layout, i);
        for (int k = 0; k < count; k++) {
            const Slice *slice = &layout->slice[ranges[k].tensor % NUM_PARAM_TENSORS];
            for (size_t r = 0; r < slice_num_ranges(slice); r++) {
                SliceRange range = slice_range_within(slice_range(slice, r), ranges[k].tensor_offset, ranges[k].count);
                for (size_t e = 0; e < range.count; e++) {
                    assert_int_equal(view_element(&ranges[k], range.local + e), range.global + e);
                }
            }
        }
    }
}

TEST(test_views_of_the_whole_tensor) {
    static const char *const words[] = {"l1h1c1", "l2h3c24", "l1h5c15", "l1h4c64"};
    static const int slices[] = {1, 2, 3, 4, 8};
    for (int k = 0; k < 4 * 5 * 2; k++) {
        GPT2Config c = described(words[k % 4]);
        int t = slices[k / 4 % 5], ranks = 1 + 2 * (k / 20);
        for (int r = 0; r < t * ranks; r++) {
            Sharding sharding = {ranks, r / t, k / 20, t, r % t, 0};
            ParamLayout layout = param_layout_sharded(&c, sharding);
            check_views(&layout);
        }
    }
}

// Counts in `owners` (layout.total) the elements of every tensor that this rank owns. The update ranges agree with
// param_owned_range and param_updated_range, and have the tensor's weight decay.
static void count_owned(signed char *owners, const ParamLayout *layout, const GPT2Config *c) {
    UpdateRange ranges[LAYER_PARAMS];
    for (int i = 0; i < num_buckets(layout); i++) {
        Bucket b = param_bucket(layout, i);
        int count = bucket_update_ranges(ranges, layout, i);
        for (int s = 0; s < count; s++) {
            ParamId id = (ParamId)(ranges[s].tensor % NUM_PARAM_TENSORS);
            int layer = ranges[s].tensor / NUM_PARAM_TENSORS, stage = layout->sharding.stage;
            size_t used = param_rows(id, c) * param_cols(id, c), tensor = param_offset(layout, id, layer);
            ParamRange owned = param_owned_range(layout, id, layer, used),
                       updated = param_updated_range(layout, id, layer, used);
            const char *name = names_of_layer_3[id];
            assert_int_equal(ranges[s].decay, strstr(name, "weight") && !strstr(name, "ln_"));
            assert_int_equal(ranges[s].tensor_offset % MOMENT_BLOCK, 0);
            assert_int_equal(ranges[s].offset % MOMENT_BLOCK, 0);
            assert_int_equal(ranges[s].tensor_offset, updated.offset);
            assert_int_equal(ranges[s].count, updated.count);
            assert_int_equal(updated.count, stage == 0 ? used : owned.count);
            assert_int_equal(updated.state, ranges[s].offset + (stage == 0 ? 0 : b.shard_offset));
            assert_int_equal(updated.params, stage < 3 ? tensor + updated.offset : updated.state);
            if (stage == 0) { assert_int_equal(updated.state, updated.params); }
            for (size_t e = owned.offset; e < owned.offset + owned.count; e++) { owners[tensor + e]++; }
        }
    }
}

TEST(test_shards) {
    static const char *const words[] = {"l1h1c1", "l3h2c6", "l4h4c64"};
    for (int k = 0; k < 3 * 4 * 7; k++) {
        GPT2Config c = described(words[k % 3]);
        Sharding sharding = {1 + k / 12, 0, k / 3 % 4, 1, 0, 0};
        ParamLayout layout = param_layout_sharded(&c, sharding);
        signed char *owners = (signed char *)calloc(layout.total, 1);
        for (; sharding.dp_rank < sharding.dp_size; sharding.dp_rank++) {
            layout = param_layout_sharded(&c, sharding);
            check_buckets(&layout);
            check_buffers(&layout);
            count_owned(owners, &layout, &c);
        }
        for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
            size_t used = param_rows((ParamId)id, &c) * param_cols((ParamId)id, &c);
            for (int layer = 0; layer < param_layers((ParamId)id, &c); layer++) {
                signed char *tensor = owners + param_offset(&layout, (ParamId)id, layer);
                for (size_t e = 0; e < used; e++) { assert_int_equal(tensor[e], 1); }
                memset(tensor, 0, used);
            }
        }
        for (size_t i = 0; i < layout.total; i++) { assert_int_equal(owners[i], 0); }
        free(owners);
    }
}

// ---- initial values

static void assert_mean_and_std(const real *x, size_t n, double std) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    double tolerance = 6 * std / sqrt((double)n);
    assert_true(fabs(sum / (double)n) < tolerance);
    assert_true(fabs(sqrt(squares / (double)n) - std) < tolerance);
}

TEST(test_init) {
    GPT2Config c = described("l8h2c64");
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        const char *name = names_of_layer_3[id];
        size_t n = param_used_rows((ParamId)id, &c) * param_cols((ParamId)id, &c);
        real *tensor = (real *)xmalloc(n * sizeof *tensor);
        param_init_tensor(tensor, (ParamId)id, 3, 0, n, &c, 1);
        if (strstr(name, "bias") || strstr(name, "ln_")) {
            real expected = strstr(name, "weight") ? 1 : 0;
            for (size_t i = 0; i < n; i++) { assert_true(tensor[i] == expected); }
        } else {
            assert_mean_and_std(tensor, n, strstr(name, "c_proj") ? 0.02 / 4 : 0.02);  // sqrt(2L) = 4
        }
        free(tensor);
    }
}

// A value depends on the seed, the layer and the tensor, and not on the number of layers.
TEST(test_init_is_reproducible) {
    enum { N = 3 * 16 * 16 };
    GPT2Config c = described("l3h2c16"), deeper = described("l5h2c16");
    real layer_0[N], layer_1[N], other[N];
    param_init_tensor(layer_0, QKVW, 0, 0, N, &c, 7);
    param_init_tensor(layer_1, QKVW, 1, 0, N, &c, 7);
    assert_memory_not_equal(layer_0, layer_1, sizeof layer_0);
    param_init_tensor(other, QKVW, 0, 0, N, &c, 8);
    assert_memory_not_equal(layer_0, other, sizeof layer_0);
    param_init_tensor(other, FCW, 0, 0, N, &c, 7);
    assert_memory_not_equal(layer_0, other, sizeof layer_0);
    param_init_tensor(other, QKVW, 1, 0, N, &deeper, 7);
    assert_memory_equal(layer_1, other, sizeof layer_1);
}

int main(void) { return run_all_tests("params"); }
