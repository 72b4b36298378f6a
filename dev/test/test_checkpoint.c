// checkpoint.h: a saved model loads bit for bit; a failed save harms nothing; bad folders are refused. Files are read
// through counted_pread. The ranks of a world write and read one after another, in this process.
#include "testing.h"
#include "optimizer_fixture.h"
#include "slice_copy.h"
static size_t bytes_read;
static ssize_t counted_pread(int fd, void *out, size_t bytes, off_t offset) {
    ssize_t got = pread(fd, out, bytes, offset);
    if (got > 0) { bytes_read += (size_t)got; }
    return got;
}
#define pread counted_pread
#include "llmc/checkpoint/checkpoint.h"
#include <omp.h>

enum { L = 2, NH = 2, C = 8, MAX_T = 16, V = 65 };

static const char *const checkpoint_files[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                               "state.json"};
enum { NUM_FILES = 4 };

// ---- models

static GPT2Config small_config(void) {
    GPT2Config c = {MAX_T, 0, 0, L, NH, C};
    config_set_vocab(&c, V);
    return c;
}

// the types of a run's weights and moments, and its optimizer
typedef struct {
    bool remainders;
    DType moments;
    OptimizerKind optimizer;
} Kind;

// the default: remainders if weights are rounded
static Kind usual_kind(void) {
    Kind kind = {DT_FLOATX != DT_REAL, DT_REAL, OPTIMIZER_ADAMW};
    return kind;
}

// the state of one rank, all zero as in a new arena
static ModelState empty_shard(const GPT2Config *c, Kind kind, Sharding sharding) {
    ParamLayout layout = param_layout_sharded(c, sharding);
    size_t n = sharding.stage < 1 ? layout.total : layout.shard;
    ModelState s = {c, &cpu_device, {0}, sharding, NULL, NULL};
    s.optimizer = state_make(kind.remainders, kind.moments, sharding.stage < 3 ? layout.total : layout.shard, n);
    return s;
}

static ModelState empty_model(const GPT2Config *c, Kind kind) {
    const Sharding alone = {.optimizer = kind.optimizer};
    return empty_shard(c, kind, alone);
}

static void free_model(const ModelState *s) { state_free(&s->optimizer); }

// random numbers in every tensor, after six numbers that a wrong conversion changes; the caller frees them
static real *random_block(const GPT2Config *c, uint64_t seed) {
    static const float odd[] = {-0.0f, 1e-45f, -3.38e38f, 1.0000001f, 3e38f, 1.00390625f};  // the last: a tie in bf16
    ParamLayout layout = param_layout(c);
    real *block = (real *)xcalloc(layout.total, sizeof(real));
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        size_t count = param_used_rows(p, c) * param_cols(p, c);
        for (int layer = 0; layer < param_layers(p, c); layer++) {
            size_t at = param_offset(&layout, p, layer);
            for (size_t i = 0; i < count; i++) { block[at + i] = i < 6 ? (real)odd[i] : (real)rng_normal(seed, at, i); }
        }
    }
    return block;
}

// the same seed gives the same weights and, in one type, the same moments
static ModelState random_kind(const GPT2Config *c, uint64_t seed, Kind kind) {
    ModelState s = empty_model(c, kind);
    OptimizerState *o = &s.optimizer;
    size_t n = param_layout(c).total;
    real *weights = random_block(c, seed), *m = random_block(c, seed + 1), *v = random_block(c, seed + 2);
    const ParamRange all = {0, n, 0, 0};
    for (size_t i = 0; i < n; i++) { v[i] = REAL_MATH(fabs)(v[i]); }
    weights_store(o, weights, all, s.device);
    moments_store(o, false, m, 0, n, s.device);
    moments_store(o, true, v, 0, n, s.device);
    free(weights);
    free(m);
    free(v);
    return s;
}

static ModelState random_model(const GPT2Config *c, uint64_t seed) { return random_kind(c, seed, usual_kind()); }

// saves RUN/step_NNNNNNNN, as the last checkpoint of a run
static void save_model(const char *run, long long step, const ModelState *s, const cJSON *state) {
    char name[32];
    uint32_t crcs[2];
    cJSON *nothing = cJSON_CreateObject();
    snprintf(name, sizeof name, "step_%08lld", step);
    checkpoint_save(run, name, s, state ? state : nothing, true, crcs);
    cJSON_Delete(nothing);
}

// RUN/step_0000000N of a random model; returns that folder, whose name outlives those of `joined`
static const char *save_kind(const char *run, long long step, const char *note, Kind kind) {
    static char folders[128][256];
    static int next;
    assert_in_range(next, 0, 127);
    char *folder = folders[next++];
    snprintf(folder, sizeof folders[0], "%s/step_%08lld", run, step);
    GPT2Config c = small_config();
    ModelState s = random_kind(&c, (uint64_t)step, kind);
    cJSON *state = cJSON_CreateObject();
    cJSON_AddNumberToObject(state, "step", (double)step);
    cJSON_AddStringToObject(state, "note", note);
    save_model(run, step, &s, state);
    cJSON_Delete(state);
    free_model(&s);
    return folder;
}

static const char *save_step(const char *run, long long step, const char *note) {
    return save_kind(run, step, note, usual_kind());
}

// a checkpoint loaded into a run of a kind
static ModelState load_kind(const char *folder, const GPT2Config *c, Kind kind) {
    ModelState loaded = empty_model(c, kind);
    ModelFile file = model_open(folder);
    assert_memory_equal(&file.config, c, sizeof *c);
    checkpoint_load(folder, &file, &loaded);
    model_close(&file);
    return loaded;
}

static void assert_holds(const char *folder, long long step) {
    GPT2Config c = small_config();
    ModelState expected = random_model(&c, (uint64_t)step), loaded = load_kind(folder, &c, usual_kind());
    size_t n = param_layout(&c).total;
    assert_same_state(&loaded.optimizer, &expected.optimizer, n);
    cJSON *state = checkpoint_load_state(folder);
    assert_int_equal(json_whole(state, "step", 0, 1e9, folder), step);
    cJSON_Delete(state);
    free_model(&expected);
    free_model(&loaded);
}

static void load_checkpoint(void *folder) {
    GPT2Config c = small_config();
    load_kind((const char *)folder, &c, usual_kind());
}

// ---- saving

TEST(test_round_trip) {
    const char *folder = save_step(new_folder("round"), 3, "");
    for (int i = 0; i < NUM_FILES; i++) { assert_true(exists(folder, checkpoint_files[i])); }
    assert_holds(folder, 3);
    cJSON *json = read_json(joined(folder, "config.json"));
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "model_type")), "gpt2");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "activation_function")),
                        activation_names[MLP_ACTIVATION][1]);
    cJSON_Delete(json);
}

// FOLDER/NAME: families of tensors, written by all ranks one after another
static void save_families(const char *folder, const char *name, const TensorFamily *families, int count,
                          const ModelState *s) {
    uint32_t crc;
    int failed_rank;
    assert_int_equal(families_save(joined(folder, name), families, count, s, &crc, &failed_rank), 0);
}

// the same of any precision
static void write_families(const char *folder, const char *name, const TensorFamily *families, int count) {
    GPT2Config c = small_config();
    ModelState s = {&c, &cpu_device, {0}, {0}, NULL, NULL};
    save_families(folder, name, families, count, &s);
}

// a checkpoint to load in a child, with stdout sent to stderr
typedef struct {
    const char *folder;
    Kind kind;
} Loading;

static void load_aloud(void *argument) {
    const Loading *l = (const Loading *)argument;
    GPT2Config c = small_config();
    dup2(2, 1);
    load_kind(l->folder, &c, l->kind);
    fflush(stdout);
}

static void assert_says(const char *folder, Kind kind, const char *words) {
    char said[4096];
    Loading l = {folder, kind};
    assert_int_equal(run_in_child(said, sizeof said, load_aloud, &l), 0);
    if (strcmp(said, words) != 0) { fail_msg("expected '%s', it said '%s'", words, said); }
}

// A checkpoint of a build of the other precision. Exact weights are in the weights of an fp32 file, and in the masters
// of a bf16 file.
TEST(test_other_precision) {
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *folder = save_step(new_folder("other"), 3, "");
    ModelState s = random_model(&c, 3);
    bool other_rounds = DT_FLOATX != DT_BF16;
    const OptimizerState *o = &s.optimizer;
    real *weights = (real *)xmalloc(n * sizeof *weights);
    bf16 *rounded = (bf16 *)xmalloc(n * sizeof *rounded);
    for (size_t i = 0; i < n; i++) {
        weights[i] = reference_weight(o, i);
        rounded[i] = split_weight((float)weights[i]);
    }
    const TensorFamily model = {"", other_rounds ? (void *)rounded : (void *)weights, NULL,
                                other_rounds ? DT_BF16 : DT_REAL, false};
    const TensorFamily optimizer[] = {{"m.", o->m, NULL, DT_REAL, false},
                                      {"v.", o->v, NULL, DT_REAL, false},
                                      {"master.", weights, NULL, DT_REAL, false}};
    write_families(folder, "model.safetensors", &model, 1);
    write_families(folder, "optimizer.safetensors", optimizer, other_rounds ? 3 : 2);
    assert_holds(folder, 3);
    assert_says(folder, usual_kind(),
                other_rounds
                    ? "note      weights were BF16, are now F32 in this build: losses differ; a PRECISION=bf16 build "
                      "goes on as before\n"
                    : "note      weights were F32, are now BF16 in this build: losses differ; a PRECISION=fp32 build "
                      "goes on as before\n");
    free(weights);
    free(rounded);
    free_model(&s);
}

// ---- conversions

enum { WEIGHT_KINDS = 2, MOMENT_KINDS = 3 };

static Kind kind_of(bool remainders, int moments) {
    Kind kind = {remainders, moment_types[moments], OPTIMIZER_ADAMW};
    return kind;
}

// Weights with remainders are stored as fp32 masters.
TEST(test_masters_are_stored_in_fp32) {
    const char *folder = save_kind(new_folder("masters"), 1, "", kind_of(true, 0));
    SafeTensors file = safetensors_open(joined(folder, "optimizer.safetensors"));
    const SafeTensor *master = safetensors_find(&file, "master.wte.weight");
    assert_true(master && master->dtype == DT_REAL && master->shape[0] == V && master->shape[1] == C);
    assert_int_equal(file.num_tensors, 3 * num_param_tensors(L));
    safetensors_close(&file);
}

// A run without remainders saves no masters. Where remainders find none, they start as 0, and a note says so.
TEST(test_masters_from_rounded_weights) {
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *folder = save_kind(new_folder("none"), 1, "", kind_of(0, 0));
    SafeTensors file = safetensors_open(joined(folder, "optimizer.safetensors"));
    assert_null(safetensors_find(&file, "master.wte.weight"));
    safetensors_close(&file);
    const char *note = "note      the checkpoint has no master weights: they start as its rounded weights\n";
    for (int weights = 0; weights < WEIGHT_KINDS; weights++) {
        ModelState saved = random_kind(&c, 1, kind_of(0, 0)), loaded = load_kind(folder, &c, kind_of(weights, 0));
        const OptimizerState *o = &loaded.optimizer;
        assert_memory_equal(o->params, saved.optimizer.params, n * sizeof(floatX));
        for (size_t i = 0; i < n; i++) { assert_true(!o->remainder || o->remainder[i] == 0); }
        assert_says(folder, kind_of(weights, 0), weights > 0 && DT_FLOATX == DT_BF16 ? note : "");
        free_model(&loaded);
        free_model(&saved);
    }
}

// a run without remainders rounds the masters of the file to nearest even
TEST(test_masters_not_wanted) {
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *folder = save_kind(new_folder("unwanted"), 1, "", kind_of(1, 0));
    ModelState saved = random_kind(&c, 1, kind_of(1, 0)), loaded = load_kind(folder, &c, kind_of(0, 0));
    for (size_t i = 0; i < n; i++) {
        floatX expected = to_floatX(reference_weight(&saved.optimizer, i));
        assert_memory_equal(&loaded.optimizer.params[i], &expected, sizeof expected);
    }
    free_model(&loaded);
    free_model(&saved);
}

// moments of one size: m around 1e-4, v its square, in whatever type
static void set_moments(OptimizerState *o, const GPT2Config *c) {
    size_t n = param_layout(c).total;
    real *numbers = random_block(c, 3);
    for (size_t i = 0; i < n; i++) {
        numbers[i] = (real)(fabs((double)numbers[i]) < 100 ? 1e-4 * (double)numbers[i] : 0);
    }
    moments_store(o, false, numbers, 0, n, &cpu_device);
    for (size_t i = 0; i < n; i++) { numbers[i] *= numbers[i]; }
    moments_store(o, true, numbers, 0, n, &cpu_device);
    free(numbers);
}

// Each type of moments loads into each other. Rounding to nearest errs by at most half the distance of two codes: 2^-4
// of an m, 2^-5 of the root of a v, and so 2^-4 of a v.
TEST(test_moments_are_converted) {
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *run = new_folder("converted");
    static const double error[MOMENT_KINDS] = {0, 0x1p-8, 0x1p-4};
    for (int from = 0; from < MOMENT_KINDS; from++) {
        ModelState saved = random_kind(&c, 1, kind_of(0, from));
        set_moments(&saved.optimizer, &c);
        save_model(run, 1 + from, &saved, NULL);
        char folder[PATH_LENGTH], note[128];
        checkpoint_path(folder, run, 1 + from);
        for (int to = 0; to < MOMENT_KINDS; to++) {
            ModelState loaded = load_kind(folder, &c, kind_of(0, to));
            for (size_t i = 0; i < n; i++) {
                for (int is_v = 0; is_v < 2; is_v++) {
                    double was = moment_value(&saved.optimizer, is_v, i), is = moment_value(&loaded.optimizer, is_v, i);
                    // below number 1, which is 4e-4 / 30720 here, codes are equidistant
                    double least = to == 2 ? (is_v ? 0 : 2e-8) : 0, limit = error[from == to ? 0 : to];
                    assert_true(fabs(is - was) <= 1.02 * limit * fmax(fabs(was), least) || (is_v && was < 2e-16));
                    assert_true(was == 0 || !is_v || is > 0);
                }
            }
            snprintf(note, sizeof note, "note      moments were %s, are now %s\n", dtype_name(moment_types[from]),
                     dtype_name(moment_types[to]));
            assert_says(folder, kind_of(0, to), from == to ? "" : note);
            free_model(&loaded);
        }
        free_model(&saved);
    }
}

// ---- ranks of several processes

// the other ranks' values in comm_max, call by call
static const long long *said_by_others;

static long long max_with_others(long long value, Comm *comm) {
    (void)comm;
    long long other = said_by_others ? *said_by_others++ : 0;
    return value > other ? value : other;
}

// a rank of `size` ranks; the others do not exist
static Comm *lone_rank(int rank, int size) {
    static CommBackend backend = {.name = "lone", .max = max_with_others};
    static Comm comm;
    comm.backend = &backend;
    comm.rank = rank;
    comm.size = size;
    return &comm;
}

enum { MOST_RANKS = 3, MOST_SLICES = 3 };

// every combination of data-parallel ranks, slices and ZeRO stages
static Sharding next_sharding(int i) {
    Sharding s;
    s.dp_size = 1 + i % MOST_RANKS;
    s.tp_size = 1 + i / MOST_RANKS % MOST_SLICES;
    s.stage = i / (MOST_RANKS * MOST_SLICES);
    s.dp_rank = s.tp_rank = 0;
    return s;
}
enum { NUM_SHARDINGS = MOST_RANKS * MOST_SLICES * 4 };

static int sharding_size(Sharding s) { return s.dp_size * s.tp_size; }
static Sharding sharding_of(Sharding s, int rank) {
    s.dp_rank = rank / s.tp_size;
    s.tp_rank = rank % s.tp_size;
    return s;
}

// block, from element `at` on, is a range of a slice of the whole tensor; elements of `size` bytes
static void assert_is_range(const void *block, size_t at, const void *whole, const Slice *slice, ParamRange range,
                            size_t size) {
    char *expected = (char *)xmalloc(slice->rows * slice->cols * size);
    slice_extract(expected, whole, slice, size);
    assert_memory_equal((const char *)block + at * size, expected + range.offset * size, range.count * size);
    free(expected);
}

// elements of a range without padding
static size_t live_elements(const Slice *slice, ParamRange range) {
    size_t count = 0;
    for (size_t i = 0; i < slice_num_ranges(slice); i++) {
        count += slice_range_within(slice_range(slice, i), range.offset, range.count).count;
    }
    return count;
}

// a rank's state is its ranges of the whole model; returns the bytes of these ranges in the files
static size_t check_ranges(const ModelState *s, const ModelState *whole) {
    const GPT2Config *c = s->config;
    const OptimizerState *o = &s->optimizer, *all = &whole->optimizer;
    ParamLayout layout = param_layout_sharded(c, s->sharding), alone = param_layout(c);
    size_t bytes = 0;
    bool rounded_again = o->moments == DT_U8 && s->sharding.tp_size > 1;
    for (int k = 0; k < num_param_tensors(c->num_layers); k++) {
        int id = k < NUM_PARAM_TENSORS ? k : FIRST_LAYER_PARAM + (k - NUM_PARAM_TENSORS) % LAYER_PARAMS;
        int layer = k < NUM_PARAM_TENSORS ? 0 : 1 + (k - NUM_PARAM_TENSORS) / LAYER_PARAMS;
        const Slice *slice = &layout.slice[id];
        ParamRange range = param_updated_range(&layout, (ParamId)id, layer, param_used(&layout, (ParamId)id));
        size_t at = param_offset(&alone, (ParamId)id, layer), live = live_elements(slice, range);
        bytes += live * (o->remainder ? sizeof(real) : sizeof(floatX));
        for (int i = 0; i < NUM_STATE_ARRAYS; i++) {
            const StateArray a = state_array(i, o->remainder, o->moments);
            if (!a.exists || (a.part != OF_WEIGHTS && rounded_again)) { continue; }
            const char *mine = (const char *)o->array[i], *whole_array = (const char *)all->array[i];
            size_t size = dtype_size(a.dtype), first = i == STATE_PARAMS ? range.params : range.state;
            size_t stored = a.per > 1 ? state_elements(&a, range.count) : live;
            if (a.per > 1) {
                assert_memory_equal(mine + first / a.per * size, whole_array + (at + range.offset) / a.per * size,
                                    stored * size);
            } else {
                assert_is_range(mine, first, whole_array + at * size, slice, range, size);
            }
            if (a.part != OF_WEIGHTS) { bytes += stored * size; }
        }
    }
    return bytes;
}

static void load_into(const char *folder, ModelState *s) {
    ModelFile file = model_open(folder);
    checkpoint_load(folder, &file, s);
    model_close(&file);
}

// Every rank has loaded its ranges and read no other bytes, beside the headers.
static void check_ranks(const char *folder, const ModelState *whole, Kind kind, Sharding sharding) {
    bytes_read = 0;
    ModelFile file = model_open(folder);
    SafeTensors optimizer = safetensors_open(joined(folder, "optimizer.safetensors"));
    size_t headers = bytes_read;
    safetensors_close(&optimizer);
    model_close(&file);
    for (int rank = 0; rank < sharding_size(sharding); rank++) {
        ModelState s = empty_shard(whole->config, kind, sharding_of(sharding, rank));
        bytes_read = 0;
        load_into(folder, &s);
        size_t found = bytes_read - headers, bytes = check_ranges(&s, whole);
        if (kind.moments != DT_U8 || sharding.tp_size == 1) { assert_int_equal(found, bytes); }
        free_model(&s);
    }
}

// saves step_00000001 of a new run and returns the saved model
static ModelState save_whole(char folder[PATH_LENGTH], const char *name, const GPT2Config *c, Kind kind) {
    const char *run = new_folder(name);
    ModelState whole = random_kind(c, 1, kind);
    checkpoint_path(folder, run, 1);
    save_model(run, 1, &whole, NULL);
    return whole;
}

// One rank is among them: a run with the same flags resumes with the same bits, for every kind.
TEST(test_ranks_read_their_ranges) {
    GPT2Config c = small_config();
    for (int k = 0; k < WEIGHT_KINDS * MOMENT_KINDS; k++) {
        char name[32], folder[PATH_LENGTH];
        snprintf(name, sizeof name, "ranges%d", k);
        Kind kind = kind_of(k % WEIGHT_KINDS, k / WEIGHT_KINDS);
        ModelState whole = save_whole(folder, name, &c, kind);
        for (int i = 0; i < NUM_SHARDINGS; i++) { check_ranks(folder, &whole, kind, next_sharding(i)); }
        free_model(&whole);
    }
}

// tensors of more than one chunk
TEST(test_large_tensors) {
    GPT2Config c = {4, 0, 0, 1, 1, 4};
    config_set_vocab(&c, 2 * CHUNK_ELEMENTS / 4 + 5);
    for (int k = 0; k < MOMENT_KINDS; k++) {
        char name[32], folder[PATH_LENGTH];
        snprintf(name, sizeof name, "large%d", k);
        Kind kind = kind_of(0, k);
        ModelState whole = save_whole(folder, name, &c, kind);
        for (int stage = 0; stage < 4; stage += 3) {
            Sharding sharding = {2, 0, stage, 1, 0, 0};
            check_ranks(folder, &whole, kind, sharding);
        }
        free_model(&whole);
    }
}

// FOLDER/optimizer.safetensors: m, v and their scales, written by all ranks
static void save_moments(const char *folder, ModelState *ranks, int size) {
    for (int rank = 0; rank < size; rank++) {
        const OptimizerState *o = &ranks[rank].optimizer;
        const TensorFamily families[] = {{"m.", o->m, NULL, o->moments, false},
                                         {"v.", o->v, NULL, o->moments, false},
                                         {"m_scales.", o->m_scales, NULL, DT_F32, true},
                                         {"v_scales.", o->v_scales, NULL, DT_F32, true}};
        ranks[rank].world = lone_rank(rank, size);
        save_families(folder, "optimizer.safetensors", families, 4, &ranks[rank]);
    }
}

// a rank's decoded moments equal the moments of one rank alone
static void assert_same_numbers(const ModelState *rank, const ModelState *alone) {
    const GPT2Config *c = rank->config;
    ParamLayout layout = param_layout_sharded(c, rank->sharding), whole = param_layout(c);
    real *expected = (real *)xmalloc(layout.total * sizeof(real));
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        size_t at = param_offset(&whole, (ParamId)id, 0);
        ParamRange range = param_updated_range(&layout, (ParamId)id, 0, param_used(&layout, (ParamId)id));
        for (int is_v = 0; is_v < 2; is_v++) {
            const real *block = (const real *)(is_v ? alone->optimizer.v : alone->optimizer.m);
            slice_extract(expected, block + at, &layout.slice[id], sizeof(real));
            for (size_t i = 0; i < range.count; i++) {
                assert_true(moment_value(&rank->optimizer, is_v, range.state + i) ==
                            (double)expected[range.offset + i]);
            }
        }
    }
    free(expected);
}

// Codes saved with -tp t load bit for bit with the same t and any number of ranks. Other runs load the decoded numbers.
TEST(test_codes_of_slices) {
    GPT2Config c = {MAX_T, 0, 0, 1, 3, 96};  // a slice of some tensors has many scales
    config_set_vocab(&c, 300);
    char folder[PATH_LENGTH];
    ModelState whole = save_whole(folder, "slices", &c, kind_of(0, 2));
    for (int slices = 2; slices <= MOST_SLICES; slices++) {
        ModelState ranks[2 * MOST_SLICES];
        Sharding sharding = {2, 0, 3, slices, 0, 0};
        const char *of_slices = new_folder(slices == 2 ? "of2" : "of3");
        for (int rank = 0; rank < sharding_size(sharding); rank++) {
            ranks[rank] = empty_shard(&c, kind_of(0, 2), sharding_of(sharding, rank));
            load_into(folder, &ranks[rank]);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(link(joined(folder, checkpoint_files[2 * i]), joined(of_slices, checkpoint_files[2 * i])),
                             0);
        }
        save_moments(of_slices, ranks, sharding_size(sharding));
        ModelState numbers = load_kind(of_slices, &c, kind_of(0, 0));
        for (int rank = 0; rank < sharding_size(sharding); rank++) {
            ModelState again = empty_shard(&c, kind_of(0, 2), sharding_of(sharding, rank));
            load_into(of_slices, &again);
            assert_same_state(&again.optimizer, &ranks[rank].optimizer, param_layout_sharded(&c, sharding).shard);
            assert_same_numbers(&again, &numbers);
            free_model(&again);
            free_model(&ranks[rank]);
        }
        free_model(&numbers);
    }
    free_model(&whole);
}

// ---- bad moments, contents of files

// FOLDER/optimizer.safetensors: codes of a small model, and scales of one with another vocabulary
static void write_scales_of_another(const char *folder, const uint8_t *zeros) {
    GPT2Config c = small_config(), other = small_config();
    config_set_vocab(&other, 2 * V);
    const TensorFamily m = {"m.", zeros, NULL, DT_U8, false}, scales = {"m_scales.", zeros, NULL, DT_F32, true};
    ModelState s = {&c, &cpu_device, {0}, {0}, NULL, NULL}, s_other = {&other, &cpu_device, {0}, {0}, NULL, NULL};
    SafeTensorsWriter w = safetensors_create(joined(folder, "optimizer.safetensors"), false);
    family_declare(&w, &m, &s);
    family_declare(&w, &scales, &s_other);
    safetensors_begin(&w);
    family_write(&w, &m, &s, 0);
    family_write(&w, &scales, &s_other, num_param_tensors(c.num_layers));
    assert_int_equal(safetensors_finish(&w), 0);
}

static void load_codes(void *folder) {
    GPT2Config c = small_config();
    load_kind((const char *)folder, &c, kind_of(0, 2));
}

// codes without scales, with scales of another type or number; moments of a type that holds no numbers
TEST(test_broken_moments) {
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *folder = save_kind(new_folder("moments"), 1, "", kind_of(0, 2));
    uint8_t *zeros = (uint8_t *)xcalloc(2 * n, sizeof(double));
    const struct {
        TensorFamily m, scales;
        const char *says;
    } cases[] = {
        {{"m.", zeros, NULL, DT_U8, false}, {"x.", zeros, NULL, DT_U8, true}, "has no tensor m_scales.wte.weight"},
        {{"m.", zeros, NULL, DT_U8, false},
         {"m_scales.", zeros, NULL, DT_BF16, true},
         "another tensor m_scales.wte.weight, expected 5 numbers in F32"},
        {{"m.", zeros, NULL, DT_U8, false},
         {"m_scales.", zeros, NULL, DT_F32, false},
         "another tensor m_scales.wpe.weight, expected 1 numbers in F32"},
        {{"m.", zeros, NULL, DT_I32, false}, {"x.", zeros, NULL, DT_U8, true}, "holds I32, expected"},
        {{"m.", zeros, NULL, DT_U8, true}, {"x.", zeros, NULL, DT_U8, true}, "tensor m.wte.weight has another shape"},
    };
    for (size_t i = 0; i < LEN(cases); i++) {
        const TensorFamily families[] = {cases[i].m, cases[i].scales};
        write_families(folder, "optimizer.safetensors", families, 2);
        assert_stops(2, cases[i].says, load_codes, (void *)folder);
    }
    write_scales_of_another(folder, zeros);
    assert_stops(2, "another tensor m_scales.wte.weight, expected 5 numbers in F32", load_codes, (void *)folder);
    free(zeros);
}

// saves a checkpoint with a tokenizer; returns its folder
static const char *save_with(const char *run, const Tokenizer *tokenizer) {
    GPT2Config c = small_config();
    ModelState s = random_model(&c, 1);
    s.tokenizer = tokenizer;
    save_model(run, 1, &s, NULL);
    free_model(&s);
    return joined(run, "step_00000001");
}

// asserts the special ids in config.json and generation_config.json; eos < 0: null
static void assert_special_ids(const char *folder, int bos, int eos) {
    const char *const names[] = {"config.json", "generation_config.json"};
    for (int i = 0; i < 2; i++) {
        const char *path = joined(folder, names[i]);
        cJSON *json = read_json(path);
        const cJSON *end = cJSON_GetObjectItem(json, "eos_token_id");
        assert_int_equal(json_whole(json, "bos_token_id", 0, 99999, path), bos);
        assert_true(eos < 0 ? cJSON_IsNull(end) : cJSON_IsNumber(end) && end->valueint == eos);
        cJSON_Delete(json);
    }
}

// A checkpoint holds its model's tokenizer, and the ids that begin and end a text.
TEST(test_tokenizer_saved) {
    static const char merges[] = "a b\nab c\n";
    write_text(temp_path("two.bpe"), merges);
    Tokenizer bpe = tokenizer_load(temp_path("two.bpe")), bytes = tokenizer_bytes();
    const char *folder = save_with(new_folder("with_bpe"), &bpe);
    Tokenizer loaded = tokenizer_open(joined(folder, "merges.txt"));
    assert_true(tokenizer_fingerprint(&loaded) == tokenizer_fingerprint(&bpe));
    assert_true(exists(folder, "vocab.json") && exists(folder, "tokenizer_config.json"));
    assert_false(exists(folder, "tokenizer.json"));
    assert_special_ids(folder, 258, 258);

    folder = save_with(new_folder("with_bytes"), &bytes);
    assert_true(exists(folder, "tokenizer.json") && exists(folder, "tokenizer_config.json"));
    assert_false(exists(folder, "merges.txt"));
    assert_special_ids(folder, '\n', -1);
    Tokenizer read = tokenizer_open(joined(folder, "tokenizer.json"));
    assert_true(tokenizer_fingerprint(&read) == tokenizer_fingerprint(&bytes) && !read.merges);
    tokenizer_free(&read);

    folder = save_with(new_folder("with_none"), NULL);
    assert_false(exists(folder, "tokenizer_config.json"));
    assert_special_ids(folder, V - 1, V - 1);
    tokenizer_free(&loaded);
    tokenizer_free(&bpe);
    tokenizer_free(&bytes);
}

// bytes of a file's tensors, without its header
static size_t data_bytes(const char *path) {
    SafeTensors file = safetensors_open(path);
    size_t bytes = 0;
    for (int i = 0; i < file.num_tensors; i++) { bytes += (size_t)(file.tensors[i].end - file.tensors[i].begin); }
    safetensors_close(&file);
    return bytes;
}

TEST(test_bytes_promised) {
    GPT2Config c = small_config();
    const char *run = new_folder("bytes");
    for (int k = 0; k < 2 * WEIGHT_KINDS * MOMENT_KINDS; k++) {
        Kind kind = kind_of(k % WEIGHT_KINDS, k / WEIGHT_KINDS % MOMENT_KINDS);
        kind.optimizer = k < WEIGHT_KINDS * MOMENT_KINDS ? OPTIMIZER_ADAMW : OPTIMIZER_MUON;
        const char *folder = save_kind(run, k + 1, "", kind);
        size_t promised = checkpoint_bytes(&c, kind.remainders, kind.moments, kind.optimizer);
        size_t bytes =
            data_bytes(joined(folder, checkpoint_files[0])) + data_bytes(joined(folder, checkpoint_files[1]));
        size_t partial_blocks = kind.moments == DT_U8 ? 2 * sizeof(float) * (size_t)num_param_tensors(c.num_layers) : 0;
        assert_in_range(bytes, promised, promised + partial_blocks);
    }
}

// RUN/NAME with files in it
static void make_folder(const char *run, const char *name) {
    assert_int_equal(mkdir(joined(run, name), 0777), 0);
    write_text(joined(joined(run, name), "model.safetensors"), "half");
    write_text(joined(joined(run, name), "junk"), "junk");
}

// a save deletes what killed runs left, brings back RUN/best whose replacement was killed, and nothing else
TEST(test_leftovers) {
    const char *run = new_folder("leftovers");
    static const char *const stale[] = {"step_00000004.tmp", "step_00000005.tmp", "step_99999999.tmp", "best.tmp",
                                        "best.old.tmp"};
    static const char *const kept[] = {"step_00000004",     "step_5.tmp", "mine.tmp",
                                       "step_00000005.txt", "best_b.tmp", "best.old"};
    for (size_t i = 0; i < LEN(stale); i++) { make_folder(run, stale[i]); }
    for (size_t i = 0; i < LEN(kept); i++) { make_folder(run, kept[i]); }
    write_text(joined(run, "mark_1f.tmp"), "");
    assert_int_equal(checkpoint_latest(run), 4);
    for (size_t i = 0; i < LEN(stale); i++) { assert_true(exists(run, stale[i])); }  // reading changes nothing
    const char *folder = save_step(run, 5, "");
    assert_holds(folder, 5);
    assert_false(exists(folder, "junk") || exists(run, "mark_1f.tmp"));
    for (size_t i = 0; i < LEN(stale); i++) { assert_false(exists(run, stale[i])); }
    for (size_t i = 0; i < LEN(kept); i++) { assert_true(exists(joined(run, kept[i]), "junk")); }
    assert_true(exists(joined(run, "best"), "junk"));
    // best.old.tmp stays while another file is called best
    const char *best = joined(run, "best");
    assert_int_equal(rename(best, joined(run, "best.old.tmp")), 0);
    assert_int_equal(symlink("nowhere", best), 0);
    remove_unfinished(run);
    assert_true(exists(joined(run, "best.old.tmp"), "junk"));
    assert_int_equal(unlink(best), 0);
    remove_unfinished(run);
    assert_true(exists(best, "junk"));
}

// saves RUN/best with a "val_loss", as the last checkpoint of a run
static void save_best(void *run) {
    GPT2Config c = small_config();
    ModelState s = random_model(&c, 1);
    uint32_t crcs[2];
    cJSON *state = cJSON_CreateObject();
    cJSON_AddNumberToObject(state, "val_loss", 2);
    checkpoint_save((const char *)run, "best", &s, state, true, crcs);
    cJSON_Delete(state);
    free_model(&s);
}

// RUN/best is replaced where --keep-best made it, in an older version as a link. A folder of the user stays, and so
// does a copy of a checkpoint.
TEST(test_replaced) {
    const char *run = new_folder("twice"), *folder = save_step(run, 1, "");
    char best[PATH_LENGTH];
    format_path(best, "%s/best", run);
    assert_int_equal(symlink("step_00000001", best), 0);
    write_text(joined(best, "before"), "");
    for (int i = 0; i < 2; i++) {
        save_best((void *)run);
        assert_false(exists(best, "before") || exists(run, "best.tmp") || exists(run, "best.old.tmp"));
        write_text(joined(best, "before"), "");
    }
    assert_true(exists(folder, "before"));         // where the link led
    write_text(joined(best, "state.json"), "{}");  // as of a step; then damaged
    for (int i = 0; i < 3; i++) {
        write_text(joined(best, "mine"), "");
        assert_stops(1, "best': Directory not empty; the checkpoints before it are whole: move that folder, then",
                     save_best, (void *)run);
        assert_true(exists(best, "mine"));
        if (i == 0) { write_text(joined(best, "state.json"), "{"); }
        if (i == 1) { unlink(joined(best, "state.json")); }
    }
    assert_false(exists(run, "best.tmp") || exists(run, "best.old.tmp"));
}

static void check_to_resume(void *folder) { require_whole_checkpoint((const char *)folder, "RUN", true); }
static void check_weights(void *folder) { require_whole_checkpoint((const char *)folder, "RUN", false); }

static void check_without_files(void *folder) {
    const struct rlimit none = {3, 3};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    check_to_resume(folder);
}

// The error names the file, the newest other checkpoint, and the command that resumes from it. A file that cannot be
// read now is not damaged.
TEST(test_damaged) {
    const char *run = new_folder("damaged"), *before = save_step(run, 3, ""), *folder = save_step(run, 7, "");
    char words[2048];
    check_to_resume((void *)folder);
    snprintf(words, sizeof words,
             "checkpoint '%s' cannot be checked: manifest.json could not be read: Too many open files; make it "
             "readable, then try again\n",
             folder);
    assert_stops(2, words, check_without_files, (void *)folder);
    write_text(joined(folder, "optimizer.safetensors"), "cut");
    check_weights((void *)folder);
    snprintf(words, sizeof words,
             "; `mv %s %s.damaged && ./train_gpt2 -o RUN -y 1` resumes from '%s', the newest one left; or delete "
             "%s/manifest.json if you changed the file\n",
             folder, folder, before, folder);
    assert_stops(2, words, check_to_resume, (void *)folder);
    assert_stops(2, "is damaged: optimizer.safetensors has 3 bytes and CRC32C ", check_to_resume, (void *)folder);
    unlink(joined(folder, "config.json"));
    snprintf(words, sizeof words,
             "-e: checkpoint '%s' is damaged: config.json could not be read: No such file or "
             "directory; give -e %s, the newest one left; or delete %s/manifest.json if you changed the file\n",
             folder, before, folder);
    assert_stops(2, words, check_weights, (void *)folder);
    unlink(joined(before, "model.safetensors"));
    snprintf(words, sizeof words,
             "; there is no other one: restore a copy, or begin a new run from other weights with -e and "
             "another -o; or "
             "delete %s/manifest.json if you changed the file\n",
             before);
    assert_stops(2, words, check_to_resume, (void *)before);
    assert_stops(2, words, check_weights, (void *)before);
    unlink(joined(folder, "state.json"));
    check_weights((void *)folder);  // of a folder that is no checkpoint
    assert_stops(2, "is damaged: ", check_to_resume, (void *)folder);
}

// ---- JSON files

static void assert_json_x(const char *path, double x) {
    cJSON *json = try_read_json(path);
    const cJSON *item = cJSON_GetObjectItem(json, "x");
    assert_true(cJSON_IsNumber(item) && item->valuedouble == x);
    cJSON_Delete(json);
}

// a failed write leaves the old file as it is
TEST(test_json_is_whole_or_as_before) {
    const char *folder = new_folder("json"), *path = joined(folder, "config.json");
    cJSON *first = cJSON_Parse("{\"x\":1}"), *second = cJSON_Parse("{\"x\":2}");
    assert_int_equal(write_json(path, first), 0);
    assert_json_x(path, 1);
    limit_files(3);
    int error = write_json(path, second);
    limit_files(RLIM_INFINITY);
    assert_int_equal(error, EFBIG);
    assert_json_x(path, 1);
    assert_false(exists(folder, "config.json.part"));
    assert_int_equal(write_json(path, second), 0);
    assert_json_x(path, 2);
    assert_false(exists(folder, "config.json.part"));
    assert_int_equal(write_json(joined(folder, "nowhere/config.json"), first), ENOENT);
    make_folder(folder, "occupied");
    assert_int_equal(write_json(joined(folder, "occupied"), first), EISDIR);
    assert_false(exists(folder, "occupied.part"));
    cJSON_Delete(first);
    cJSON_Delete(second);
}

TEST(test_try_read_json) {
    static const char *const bad[] = {"", "[]", "2", "null", "{\"x\":1", "{\"x\":1}}", "{} 0", "x"};
    const char *folder = new_folder("try"), *path = joined(folder, "a.json");
    assert_null(try_read_json(path));
    assert_null(try_read_json(folder));
    for (size_t i = 0; i < LEN(bad); i++) {
        write_text(path, bad[i]);
        assert_null(try_read_json(path));
    }
    write_text(path, "{\"x\":1}\n");
    assert_json_x(path, 1);
}

// ---- a disk that is full

typedef struct {
    const char *run;
    rlim_t largest_file;
} FullDisk;

// Makes state.json the largest file, so that each file but config.json can be the first that does not fit.
static char long_note[65536];

static void save_on_full_disk(void *argument) {
    const FullDisk *disk = (const FullDisk *)argument;
    limit_files(disk->largest_file);
    save_step(disk->run, 2, long_note);
}

TEST(test_full_disk) {
    memset(long_note, 'x', sizeof long_note - 1);
    GPT2Config c = small_config();
    rlim_t weights = num_parameters(&c) * sizeof(floatX);
    const rlim_t largest[] = {0, 100, weights, 2 * weights + 8192, sizeof long_note - 1};
    FullDisk disk = {new_folder("full"), 0};
    const char *earlier = save_step(disk.run, 1, "");
    for (size_t i = 0; i < LEN(largest); i++) {
        disk.largest_file = largest[i];
        assert_stops(1, "step_00000002': File too large; the checkpoints before it are whole", save_on_full_disk,
                     &disk);
        assert_false(exists(disk.run, "step_00000002"));
        assert_false(exists(disk.run, "step_00000002.tmp"));
        assert_false(exists(disk.run, "DONE_00000002"));
        assert_holds(earlier, 1);
    }
    save_step(disk.run, 2, long_note);  // the same where there is room
    assert_int_equal(checkpoint_latest(disk.run), 2);
}

static void save_into_nothing(void *run) { save_step((const char *)run, 1, ""); }

TEST(test_no_run_directory) {
    assert_stops(1, "No such file or directory", save_into_nothing, (void *)temp_path("nowhere"));
    const char *run = new_folder("occupied");
    write_text(joined(run, "step_00000001.tmp"), "a file where the folder goes");
    assert_stops(1, "File exists; the checkpoints before it are whole: move that folder", save_into_nothing,
                 (void *)run);
}

// ---- a save that fails on one of several ranks

// others: the other ranks' values in each agree_on_error of a save
typedef struct {
    const char *run;
    int rank;
    long long others[16];
} FailedSave;

static void save_among_others(void *argument) {
    const FailedSave *save = (const FailedSave *)argument;
    GPT2Config c = small_config();
    ModelState s = random_model(&c, 1);
    s.world = lone_rank(save->rank, 5);
    said_by_others = save->others;
    save_model(save->run, 1, &s, NULL);
}

// The error names the failed rank and a remedy, and no folder is left.
TEST(test_failed_rank_is_named) {
    const struct {
        int rank, error, culprit;
        const char *says;
    } cases[] = {{0, EFBIG, 4, "rank 4: could not"}, {0, EIO, 0, "could not"}, {3, ENOENT, 3, "could not"}};
    for (size_t i = 0; i < LEN(cases); i++) {
        char words[1024], name[32];
        snprintf(name, sizeof name, "named%zu", i);
        FailedSave save = {new_folder(name), cases[i].rank, {0}};
        if (cases[i].rank == 0) { save.others[2] = (long long)cases[i].error << 32 | cases[i].culprit; }
        snprintf(words, sizeof words,
                 "train_gpt2: %s save checkpoint '%s/step_00000001': %s; the checkpoints before it are whole: make "
                 "room, or make -o one folder that all ranks see and may write, then resume with -y 1\n",
                 cases[i].says, save.run, strerror(cases[i].error));
        assert_stops(1, words, save_among_others, &save);
        assert_int_equal(rmdir(save.run), 0);
    }
}

// ---- the checkpoints of a run

TEST(test_latest) {
    const char *run = new_folder("latest");
    static const char *const others[] = {"step_00000099.tmp", "step_00000099.old", "step_100",       "step_",
                                         "step_000000999",    "step_-0000999",     "step_+0000999",  "step_ 0000999",
                                         "step_00000999x",    "xstep_00000999",    "step_0000009.9", "Step_00000999"};
    assert_int_equal(checkpoint_latest(temp_path("no_such_run")), -1);
    for (size_t i = 0; i < LEN(others); i++) { assert_int_equal(mkdir(joined(run, others[i]), 0777), 0); }
    assert_int_equal(checkpoint_latest(run), -1);
    static const long long steps[] = {0, 7, 3, 99999999, 100000000, 123456789012};
    static const long long latest[] = {0, 7, 7, 99999999, 100000000, 123456789012};
    for (size_t i = 0; i < LEN(steps); i++) {
        char path[PATH_LENGTH];
        checkpoint_path(path, run, steps[i]);
        assert_int_equal(mkdir(path, 0777), 0);
        assert_int_equal(checkpoint_latest(run), latest[i]);
    }
}

static int done_files(const char *run) {
    int count = 0;
    DIR *dir = opendir(run);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) { count += strncmp(entry->d_name, "DONE_", 5) == 0; }
    closedir(dir);
    return count;
}

// a kill can come between a checkpoint and its DONE_NNNNNNNN
TEST(test_sync_done) {
    const char *run = new_folder("done");
    assert_int_equal(mkdir(joined(run, "step_00000007"), 0777), 0);
    assert_int_equal(mkdir(joined(run, "step_00000012"), 0777), 0);
    assert_int_equal(mkdir(joined(run, "step_00000013.tmp"), 0777), 0);
    checkpoint_sync_done(run, 12);
    assert_int_equal(done_files(run), 0);
    for (int i = 0; i < 2; i++) { checkpoint_sync_done(run, -1); }
    assert_int_equal(done_files(run), 1);
    assert_true(exists(run, "DONE_00000012"));
    checkpoint_sync_done(temp_path("no_such_run"), -1);
}

static void mark_step_1(void *run) { checkpoint_mark_done((const char *)run, 1, NULL, true); }

// a saved checkpoint is marked once it is asked for; a failure says that the checkpoint is whole
TEST(test_mark_done) {
    const char *run = new_folder("marked"), *says = "DONE_00000001': No such file or directory; the checkpoint of that "
                                                    "step is whole: make room, or make -o one folder";
    save_step(run, 1, "");
    assert_false(exists(run, "DONE_00000001"));
    for (int i = 0; i < 2; i++) { mark_step_1((void *)run); }
    assert_true(exists(run, "DONE_00000001"));
    assert_stops(1, says, mark_step_1, (void *)temp_path("no_such_run"));
}

TEST(test_prune) {
    static const struct {
        int keep, major_every;
        const char *left;  // of steps 10, 20, .. 60
    } cases[] = {
        {0, 0, "10 20 30 40 50 60 "},
        {0, 30, "10 20 30 40 50 60 "},
        {1, 0, "60 "},
        {2, 0, "50 60 "},
        {6, 0, "10 20 30 40 50 60 "},
        {100, 0, "10 20 30 40 50 60 "},
        {1, 30, "30 50 60 "},
        {2, 20, "20 30 40 50 60 "},
        {1, 20, "20 40 50 60 "},
        {1, 10, "10 20 30 40 50 60 "},
        {3, 40, "30 40 50 60 "},
        {1, 7, "60 "},
        {1, 0, "20 60 "},  // RUN/best is a link to step 20
    };
    for (size_t i = 0; i < LEN(cases); i++) {
        char name[32], left[64] = "";
        snprintf(name, sizeof name, "prune%zu", i);
        const char *run = new_folder(name);
        for (long long step = 10; step <= 60; step += 10) {
            char path[PATH_LENGTH];
            checkpoint_path(path, run, step);
            assert_int_equal(mkdir(path, 0777), 0);
            write_text(joined(path, "model.safetensors"), "weights");
            assert_int_equal(create_done_file(run, step), 0);
        }
        write_text(joined(run, "step_00000010.txt"), "a user's notes");
        if (i == LEN(cases) - 1) { assert_int_equal(symlink("step_00000020", joined(run, "best")), 0); }
        checkpoint_prune(run, cases[i].keep, cases[i].major_every);
        assert_true(exists(run, "step_00000010.txt"));
        assert_false(exists(run, "step_00000010.tmp"));
        long long *steps;
        int count = checkpoint_list(run, &steps);
        assert_int_equal(done_files(run), count);
        for (int k = 0; k < count; k++) {
            char done[PATH_LENGTH];
            done_path(done, run, steps[k]);
            assert_int_equal(access(done, F_OK), 0);
            snprintf(left + strlen(left), sizeof left - strlen(left), "%lld ", steps[k]);
        }
        free(steps);
        assert_string_equal(left, cases[i].left);
    }
}

// ---- bad folders

static void load_state(void *folder) { checkpoint_load_state((const char *)folder); }

TEST(test_broken_files) {
    static const struct {
        const char *file, *text;  // NULL: deleted
        void (*load)(void *folder);
        const char *says;
    } cases[] = {
        {"optimizer.safetensors", "cut", load_checkpoint, "optimizer.safetensors'"},
        {"optimizer.safetensors", NULL, load_checkpoint, "No such file"},
        {"state.json", "", load_state, "state.json' is not a JSON object"},
        {"state.json", NULL, load_state, "state.json' is missing"},
    };
    const char *run = new_folder("broken");
    for (size_t i = 0; i < LEN(cases); i++) {
        const char *folder = save_step(run, 1, ""), *path = joined(folder, cases[i].file);
        unlink(path);
        if (cases[i].text) { write_text(path, cases[i].text); }
        assert_stops(2, cases[i].says, cases[i].load, (void *)folder);
        remove_checkpoint(folder);
    }
}

typedef struct {
    const char *text;
    double min, max;
    cJSON *json;
} WholeCase;

static void read_whole(void *argument) {
    const WholeCase *c = (const WholeCase *)argument;
    json_whole(c->json, "step", c->min, c->max, "state.json");
}

TEST(test_json_whole) {
    WholeCase bad[] = {
        {"{}", 0, 9, NULL},
        {"{\"Step\":1}", 0, 9, NULL},
        {"{\"step\":\"1\"}", 0, 9, NULL},
        {"{\"step\":true}", 0, 9, NULL},
        {"{\"step\":1.5}", 0, 9, NULL},
        {"{\"step\":10}", 0, 9, NULL},
        {"{\"step\":-1}", 0, 9, NULL},
        {"{\"step\":1e999}", 0, 0x1p53, NULL},
        {"{\"step\":0}", 1, 9, NULL},
        {"{\"step\":[1]}", 0, 9, NULL},
        {"{\"step\":-1e999}", 0, 0x1p53, NULL},
    };
    for (size_t i = 0; i < LEN(bad); i++) {
        bad[i].json = cJSON_Parse(bad[i].text);
        assert_non_null(bad[i].json);
        assert_stops(2, "'state.json' has", read_whole, &bad[i]);
        cJSON_Delete(bad[i].json);
    }
    cJSON *json = cJSON_Parse("{\"step\":9007199254740992,\"zero\":0}");
    assert_true(json_whole(json, "step", 0, 0x1p53, "") == 9007199254740992);
    assert_true(json_whole(json, "zero", 0, 0, "") == 0);
    cJSON_Delete(json);
}

TEST(test_broken_optimizer) {
    const char *run = new_folder("optimizer"), *folder = save_step(run, 1, "");
    const char *path = joined(folder, "optimizer.safetensors");
    GPT2Config other = small_config();
    config_set_vocab(&other, V + 1);
    ModelState s = random_model(&other, 1);
    save_model(run, 2, &s, NULL);
    assert_int_equal(rename(joined(joined(run, "step_00000002"), "optimizer.safetensors"), path), 0);
    assert_stops(2, "tensor m.wte.weight has another shape", load_checkpoint, (void *)folder);
    unlink(path);
    assert_int_equal(link(joined(folder, "model.safetensors"), path), 0);
    assert_stops(2, "has no tensor m.wte.weight", load_checkpoint, (void *)folder);
    free_model(&s);
}

int main(void) {
    omp_set_num_threads(1);  // a forked child has none of its parent's threads
    return run_all_tests("checkpoint");
}
