// checkpoint.h: a saved model loads bit for bit; a failed save harms nothing; bad folders are refused. Files are read
// through counted_pread. The ranks of a world write and read one after another, in this process.
#include "testing.h"
#include "slice_copy.h"
static size_t bytes_read;
static ssize_t counted_pread(int fd, void *out, size_t bytes, off_t offset) {
    ssize_t got = pread(fd, out, bytes, offset);
    if (got > 0) { bytes_read += (size_t)got; }
    return got;
}
#define pread counted_pread
#include "llmc/checkpoint/checkpoint.h"
#include "dev/test/block_load.h"
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

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

// the types of a run's weights and moments
typedef struct {
    enum { ALONE, MASTER, SPLIT } weights;
    DType moments;
} Kind;

// the default: masters if weights are rounded
static Kind usual_kind(void) {
    Kind kind = {DT_FLOATX == DT_REAL ? ALONE : MASTER, DT_REAL};
    return kind;
}

// the state of one rank, all zero as in a new arena
static ModelState empty_shard(const GPT2Config *c, Kind kind, Sharding sharding) {
    ParamLayout layout = param_layout_sharded(c, sharding);
    size_t n = sharding.stage < 1 ? layout.total : layout.shard;
    ModelState s = {c, &cpu_device, {0}, sharding, NULL, NULL};
    OptimizerState *o = &s.optimizer;
    o->params = (floatX *)xcalloc(sharding.stage < 3 ? layout.total : layout.shard, sizeof(floatX));
    if (kind.weights == MASTER) { o->master = (real *)xcalloc(n, sizeof(real)); }
    if (kind.weights == SPLIT) { o->remainder = (int16_t *)xcalloc(n, sizeof(int16_t)); }
    o->moments = kind.moments;
    o->m = xcalloc(n, dtype_size(kind.moments));
    o->v = xcalloc(n, dtype_size(kind.moments));
    if (kind.moments == DT_U8) {
        o->m_scales = (float *)xcalloc(n / MOMENT_BLOCK, sizeof(float));
        o->v_scales = (float *)xcalloc(n / MOMENT_BLOCK, sizeof(float));
    }
    return s;
}

static ModelState empty_model(const GPT2Config *c, Kind kind) {
    const Sharding alone = {0};
    return empty_shard(c, kind, alone);
}

static void free_model(ModelState *s) {
    OptimizerState *o = &s->optimizer;
    free(o->params);
    free(o->master);
    free(o->remainder);
    free(o->m);
    free(o->v);
    free(o->m_scales);
    free(o->v_scales);
}

// random numbers in every tensor, after six numbers that a wrong conversion changes
static void fill_block(real *block, const GPT2Config *c, uint64_t seed) {
    static const float odd[] = {-0.0f, 1e-45f, -3.4e38f, 1.0000001f, INFINITY, 1.00390625f};  // the last: a tie in bf16
    ParamLayout layout = param_layout(c);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        size_t count = param_used_rows(p, c) * param_cols(p, c);
        for (int layer = 0; layer < param_layers(p, c); layer++) {
            size_t at = param_offset(&layout, p, layer);
            for (size_t i = 0; i < count; i++) { block[at + i] = i < 6 ? (real)odd[i] : (real)rng_normal(seed, at, i); }
        }
    }
}

// codes and scales in every tensor
static void fill_codes(uint8_t *codes, float *scales, const GPT2Config *c, uint64_t seed) {
    ParamLayout layout = param_layout(c);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        size_t count = param_used_rows(p, c) * param_cols(p, c);
        for (int layer = 0; layer < param_layers(p, c); layer++) {
            size_t at = param_offset(&layout, p, layer);
            for (size_t i = 0; i < count; i++) { codes[at + i] = (uint8_t)rng_bits(seed, at, i); }
            for (size_t i = 0; i < count; i += MOMENT_BLOCK) {
                scales[(at + i) / MOMENT_BLOCK] = (float)rng_uniform(seed, at, i);
            }
        }
    }
}

static void fill_moments(void *block, DType dtype, float *scales, const GPT2Config *c, uint64_t seed) {
    size_t n = param_layout(c).total;
    if (dtype == DT_U8) {
        fill_codes((uint8_t *)block, scales, c, seed);
        return;
    }
    real *numbers = (real *)xcalloc(n, sizeof(real));
    fill_block(numbers, c, seed);
    for (size_t i = 0; i < n; i++) {
        if (dtype == DT_REAL) {
            ((real *)block)[i] = numbers[i];
        } else {
            ((bf16 *)block)[i] = float_to_bf16((float)numbers[i]);
        }
    }
    free(numbers);
}

// the same seed gives the same weights and, in one type, the same moments
static ModelState random_kind(const GPT2Config *c, uint64_t seed, Kind kind) {
    ModelState s = empty_model(c, kind);
    OptimizerState *o = &s.optimizer;
    size_t n = param_layout(c).total;
    real *weights = (real *)xcalloc(n, sizeof(real));
    fill_block(weights, c, seed);
    const ParamRange all = {0, n, 0, 0};
    weights_store(o, weights, all, s.device);
    fill_moments(o->m, kind.moments, o->m_scales, c, seed + 1);
    fill_moments(o->v, kind.moments, o->v_scales, c, seed + 2);
    free(weights);
    return s;
}

static ModelState random_model(const GPT2Config *c, uint64_t seed) { return random_kind(c, seed, usual_kind()); }

static void assert_same_bytes(const void *a, const void *b, size_t bytes) {
    assert_true(!a == !b);
    if (a) { assert_memory_equal(a, b, bytes); }
}

static void assert_same_weights(const OptimizerState *a, const OptimizerState *b, size_t n) {
    assert_same_bytes(a->params, b->params, n * sizeof(floatX));
    assert_same_bytes(a->master, b->master, n * sizeof(real));
    assert_same_bytes(a->remainder, b->remainder, n * sizeof(int16_t));
}

static void assert_same_moments(const OptimizerState *a, const OptimizerState *b, size_t n) {
    assert_int_equal(a->moments, b->moments);
    assert_same_bytes(a->m, b->m, n * dtype_size(a->moments));
    assert_same_bytes(a->v, b->v, n * dtype_size(a->moments));
    assert_same_bytes(a->m_scales, b->m_scales, n / MOMENT_BLOCK * sizeof(float));
    assert_same_bytes(a->v_scales, b->v_scales, n / MOMENT_BLOCK * sizeof(float));
}

// a new folder in temp_dir()
static const char *new_run(const char *name) {
    const char *path = temp_path(name);
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

// valid until the eighth call after it
static const char *joined(const char *folder, const char *name) {
    static char paths[8][PATH_LENGTH];
    static int next;
    char *path = paths[next++ % 8];
    format_path(path, "%s/%s", folder, name);
    return path;
}

static bool exists(const char *folder, const char *name) { return access(joined(folder, name), F_OK) == 0; }

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

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
    assert_same_weights(&loaded.optimizer, &expected.optimizer, n);
    assert_same_moments(&loaded.optimizer, &expected.optimizer, n);
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

static void test_round_trip(void **state) {
    (void)state;
    const char *folder = save_step(new_run("round"), 3, "");
    for (int i = 0; i < NUM_FILES; i++) { assert_true(exists(folder, checkpoint_files[i])); }
    assert_holds(folder, 3);
}

// FOLDER/NAME: families of tensors, written by all ranks one after another
static void save_families(const char *folder, const char *name, const TensorFamily *families, int count,
                          const ModelState *s) {
    Crc32cSum sum;
    int failed_rank;
    assert_int_equal(families_save(joined(folder, name), families, count, s, &sum, &failed_rank), 0);
}

// the same of any precision
static void write_families(const char *folder, const char *name, const TensorFamily *families, int count) {
    GPT2Config c = small_config();
    ModelState s = {&c, &cpu_device, {0}, {0}, NULL, NULL};
    save_families(folder, name, families, count, &s);
}

// A checkpoint of a build of the other precision. Exact weights are in the weights of an fp32 file, and in the masters
// of a bf16 file.
static void test_other_precision(void **state) {
    (void)state;
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *folder = save_step(new_run("other"), 3, "");
    ModelState s = random_model(&c, 3);
    bool other_rounds = DT_FLOATX != DT_BF16;
    const OptimizerState *o = &s.optimizer;
    real *weights = o->master ? o->master : (real *)o->params;
    bf16 *rounded = (bf16 *)xmalloc(n * sizeof(bf16));
    for (size_t i = 0; i < n; i++) { rounded[i] = split_weight((float)weights[i]); }
    const TensorFamily model = {"", other_rounds ? (void *)rounded : (void *)weights, NULL,
                                other_rounds ? DT_BF16 : DT_REAL, false};
    const TensorFamily optimizer[] = {{"m.", o->m, NULL, DT_REAL, false},
                                      {"v.", o->v, NULL, DT_REAL, false},
                                      {"master.", weights, NULL, DT_REAL, false}};
    write_families(folder, "model.safetensors", &model, 1);
    write_families(folder, "optimizer.safetensors", optimizer, other_rounds ? 3 : 2);
    assert_holds(folder, 3);
    free(rounded);
    free_model(&s);
}

// ---- conversions

enum { WEIGHT_KINDS = 3, MOMENT_KINDS = 3 };
static const DType moment_types[MOMENT_KINDS] = {DT_REAL, DT_BF16, DT_U8};

static Kind kind_of(int weights, int moments) {
    Kind kind = usual_kind();
    kind.weights = weights == 0 ? ALONE : weights == 1 ? MASTER : SPLIT;
    kind.moments = moment_types[moments];
    return kind;
}

// a run with the same flags resumes with the same bits
static void test_every_kind_round_trips(void **state) {
    (void)state;
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *run = new_run("kinds");
    for (int i = 0; i < WEIGHT_KINDS * MOMENT_KINDS; i++) {
        Kind kind = kind_of(i % WEIGHT_KINDS, i / WEIGHT_KINDS);
        const char *folder = save_kind(run, i + 1, "", kind);
        ModelState expected = random_kind(&c, (uint64_t)i + 1, kind), loaded = load_kind(folder, &c, kind);
        assert_same_weights(&loaded.optimizer, &expected.optimizer, n);
        assert_same_moments(&loaded.optimizer, &expected.optimizer, n);
        free_model(&loaded);
        free_model(&expected);
    }
}

// The file is the same with masters and with remainders, and loads into either with the bits of a new run.
static void test_masters_become_remainders_and_back(void **state) {
    (void)state;
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *run = new_run("masters");
    for (int from = 1; from <= 2; from++) {
        Kind kind = kind_of(from, 0), other = kind_of(3 - from, 0);
        const char *folder = save_kind(run, 1 + from, "", kind);
        ModelState expected = random_kind(&c, (uint64_t)from + 1, other), loaded = load_kind(folder, &c, other);
        assert_same_weights(&loaded.optimizer, &expected.optimizer, n);
        for (size_t i = 0; loaded.optimizer.master && i < n; i++) {
            floatX weight = to_floatX_half_up(loaded.optimizer.master[i]);
            assert_memory_equal(&loaded.optimizer.params[i], &weight, sizeof weight);
        }
        SafeTensors file = safetensors_open(joined(folder, "optimizer.safetensors"));
        const SafeTensor *master = safetensors_find(&file, "master.wte.weight");
        assert_true(master && master->dtype == DT_REAL && master->shape[0] == V && master->shape[1] == C);
        assert_int_equal(file.num_tensors, 3 * num_param_tensors(&c));
        safetensors_close(&file);
        free_model(&loaded);
        free_model(&expected);
    }
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

// A run without masters saves none. A run with masters starts them as the rounded weights and prints a note.
static void test_masters_from_rounded_weights(void **state) {
    (void)state;
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *folder = save_kind(new_run("none"), 1, "", kind_of(0, 0));
    SafeTensors file = safetensors_open(joined(folder, "optimizer.safetensors"));
    assert_null(safetensors_find(&file, "master.wte.weight"));
    safetensors_close(&file);
    const char *note = "note      the checkpoint has no master weights: they start as its rounded weights\n";
    for (int weights = 0; weights < WEIGHT_KINDS; weights++) {
        ModelState saved = random_kind(&c, 1, kind_of(0, 0)), loaded = load_kind(folder, &c, kind_of(weights, 0));
        const OptimizerState *o = &loaded.optimizer;
        assert_same_bytes(o->params, saved.optimizer.params, n * sizeof(floatX));
        for (size_t i = 0; i < n; i++) {
            assert_true(!o->master || o->master[i] == to_real(o->params[i]));
            assert_true(!o->remainder || o->remainder[i] == 0);
        }
        assert_says(folder, kind_of(weights, 0), weights > 0 && DT_FLOATX == DT_BF16 ? note : "");
        free_model(&loaded);
        free_model(&saved);
    }
}

// a run without masters rounds the masters of the file to nearest even
static void test_masters_not_wanted(void **state) {
    (void)state;
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *folder = save_kind(new_run("unwanted"), 1, "", kind_of(1, 0));
    ModelState saved = random_kind(&c, 1, kind_of(1, 0)), loaded = load_kind(folder, &c, kind_of(0, 0));
    for (size_t i = 0; i < n; i++) {
        floatX expected = to_floatX(saved.optimizer.master[i]);
        assert_memory_equal(&loaded.optimizer.params[i], &expected, sizeof expected);
    }
    free_model(&loaded);
    free_model(&saved);
}

static double moment_value(const OptimizerState *o, bool is_v, size_t i) {
    const void *block = is_v ? o->v : o->m;
    if (o->moments == DT_REAL) { return (double)((const real *)block)[i]; }
    if (o->moments == DT_BF16) { return (double)bf16_to_float(((const bf16 *)block)[i]); }
    uint8_t code = ((const uint8_t *)block)[i];
    float scale = (is_v ? o->v_scales : o->m_scales)[i / MOMENT_BLOCK];
    return is_v ? (double)v_of_code(code, scale) : (double)m_of_code(code, scale);
}

// moments of a tensor: m around 1e-4, v its square, in whatever type
static void set_moments(OptimizerState *o, const GPT2Config *c) {
    ParamLayout layout = param_layout(c);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        size_t count = param_used_rows(p, c) * param_cols(p, c);
        real *numbers = (real *)xmalloc(count * sizeof(real));
        for (int layer = 0; layer < param_layers(p, c); layer++) {
            size_t at = param_offset(&layout, p, layer);
            for (size_t i = 0; i < count; i++) { numbers[i] = (real)(1e-4 * rng_normal(3, at, i)); }
            moments_store(o, false, numbers, at, count, &cpu_device);
            for (size_t i = 0; i < count; i++) { numbers[i] *= numbers[i]; }
            moments_store(o, true, numbers, at, count, &cpu_device);
        }
        free(numbers);
    }
}

// Each type of moments loads into each other. Rounding to nearest errs by at most half the distance of two codes: 2^-4
// of an m, 2^-5 of the root of a v, and so 2^-4 of a v.
static void test_moments_are_converted(void **state) {
    (void)state;
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *run = new_run("converted");
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
    if (!block) { return; }
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
    size_t moment = dtype_size(o->moments), bytes = 0;
    bool codes = o->moments == DT_U8;
    for (int k = 0; k < num_param_tensors(c); k++) {
        int id = k < NUM_PARAM_TENSORS ? k : FIRST_LAYER_PARAM + (k - NUM_PARAM_TENSORS) % LAYER_PARAMS;
        int layer = k < NUM_PARAM_TENSORS ? 0 : 1 + (k - NUM_PARAM_TENSORS) / LAYER_PARAMS;
        const Slice *slice = &layout.slice[id];
        ParamRange range = param_updated_range(&layout, (ParamId)id, layer, param_used(&layout, (ParamId)id));
        size_t at = param_offset(&alone, (ParamId)id, layer), live = live_elements(slice, range);
        assert_is_range(o->params, range.params, all->params + at, slice, range, sizeof(floatX));
        assert_is_range(o->master, range.state, all->master + at, slice, range, sizeof(real));
        assert_is_range(o->remainder, range.state, all->remainder + at, slice, range, sizeof(int16_t));
        bytes += live * (o->master || o->remainder ? sizeof(real) : sizeof(floatX));
        if (codes && s->sharding.tp_size > 1) { continue; }  // rounded to 8 bits again
        assert_is_range(o->m, range.state, (const char *)all->m + at * moment, slice, range, moment);
        assert_is_range(o->v, range.state, (const char *)all->v + at * moment, slice, range, moment);
        size_t scales = codes ? moment_blocks(range.count) * sizeof(float) : 0;
        bytes += 2 * (live * moment + scales);
        if (scales == 0) { continue; }
        size_t block = range.state / MOMENT_BLOCK, first = (at + range.offset) / MOMENT_BLOCK;
        assert_memory_equal(o->m_scales + block, all->m_scales + first, scales);
        assert_memory_equal(o->v_scales + block, all->v_scales + first, scales);
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
    const char *run = new_run(name);
    ModelState whole = random_kind(c, 1, kind);
    checkpoint_path(folder, run, 1);
    save_model(run, 1, &whole, NULL);
    return whole;
}

static void test_ranks_read_their_ranges(void **state) {
    (void)state;
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
static void test_large_tensors(void **state) {
    (void)state;
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
static void test_codes_of_slices(void **state) {
    (void)state;
    GPT2Config c = {MAX_T, 0, 0, 1, 3, 96};  // a slice of some tensors has many scales
    config_set_vocab(&c, 300);
    char folder[PATH_LENGTH];
    ModelState whole = save_whole(folder, "slices", &c, kind_of(0, 2));
    for (int slices = 2; slices <= MOST_SLICES; slices++) {
        ModelState ranks[2 * MOST_SLICES];
        Sharding sharding = {2, 0, 3, slices, 0, 0};
        const char *of_slices = new_run(slices == 2 ? "of2" : "of3");
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
            assert_same_moments(&again.optimizer, &ranks[rank].optimizer, param_layout_sharded(&c, sharding).shard);
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
    SafeTensorsWriter w = safetensors_create(joined(folder, "optimizer.safetensors"));
    family_declare(&w, &m, &s);
    family_declare(&w, &scales, &s_other);
    safetensors_begin(&w);
    family_write(&w, &m, &s, 0);
    family_write(&w, &scales, &s_other, num_param_tensors(&c));
    assert_int_equal(safetensors_finish(&w), 0);
}

static void load_codes(void *folder) {
    GPT2Config c = small_config();
    load_kind((const char *)folder, &c, kind_of(0, 2));
}

// codes without scales, with scales of another type or number; moments of a type that holds no numbers
static void test_broken_moments(void **state) {
    (void)state;
    GPT2Config c = small_config();
    size_t n = param_layout(&c).total;
    const char *folder = save_kind(new_run("moments"), 1, "", kind_of(0, 2));
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
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const TensorFamily families[] = {cases[i].m, cases[i].scales};
        write_families(folder, "optimizer.safetensors", families, 2);
        assert_stops(2, cases[i].says, load_codes, (void *)folder);
    }
    write_scales_of_another(folder, zeros);
    assert_stops(2, "another tensor m_scales.wte.weight, expected 5 numbers in F32", load_codes, (void *)folder);
    free(zeros);
}

// weights alone, from the file's own path; its config.json lies beside it
static void test_weights_only(void **state) {
    (void)state;
    const char *folder = save_step(new_run("weights"), 1, "");
    unlink(joined(folder, "state.json"));
    unlink(joined(folder, "optimizer.safetensors"));
    ModelFile file = model_open(joined(folder, "model.safetensors"));
    GPT2Config c = small_config();
    assert_memory_equal(&file.config, &c, sizeof c);
    model_close(&file);
}

// Conv1D weights are (in, out) in the file, the vocabulary has no padding, vectors have one dimension
static void test_hugging_face_layout(void **state) {
    (void)state;
    GPT2Config c = small_config();
    ModelState s = random_model(&c, 1);
    ParamLayout layout = param_layout(&c);
    const char *folder = save_step(new_run("layout"), 1, "");
    SafeTensors file = safetensors_open(joined(folder, "model.safetensors"));
    const SafeTensor *fc = safetensors_find(&file, "h.1.mlp.c_fc.weight"), *wte = safetensors_find(&file, "wte.weight");
    const SafeTensor *bias = safetensors_find(&file, "h.1.mlp.c_fc.bias");
    assert_int_equal(file.num_tensors, 4 + 12 * L);
    assert_true(fc && fc->num_dims == 2 && fc->shape[0] == C && fc->shape[1] == 4 * C && fc->dtype == DT_FLOATX);
    assert_true(wte && wte->num_dims == 2 && wte->shape[0] == V && wte->shape[1] == C);
    assert_true(bias && bias->num_dims == 1 && bias->shape[0] == 4 * C);
    floatX stored[4 * C * C];
    safetensors_read(&file, fc, 0, stored, sizeof stored);
    const floatX *ours = s.optimizer.params + param_offset(&layout, FCW, 1);
    for (size_t out = 0; out < 4 * C; out++) {
        for (size_t in = 0; in < C; in++) {
            assert_memory_equal(&stored[in * 4 * C + out], &ours[out * C + in], sizeof(floatX));
        }
    }
    safetensors_close(&file);
    free_model(&s);
}

static void test_config_written(void **state) {
    (void)state;
    const char *folder = save_step(new_run("config"), 1, "");
    const char *path = joined(folder, "config.json");
    cJSON *json = read_json(path);
    assert_int_equal(json_whole(json, "n_layer", 1, 99, path), L);
    assert_int_equal(json_whole(json, "n_head", 1, 99, path), NH);
    assert_int_equal(json_whole(json, "n_embd", 1, 99, path), C);
    assert_int_equal(json_whole(json, "n_positions", 1, 99, path), MAX_T);
    assert_int_equal(json_whole(json, "vocab_size", 1, 99, path), V);
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "model_type")), "gpt2");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "activation_function")), "gelu_new");
    cJSON_Delete(json);
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
static void test_tokenizer_saved(void **state) {
    (void)state;
    static const char merges[] = "a b\nab c\n";
    write_text(temp_path("two.bpe"), merges);
    Tokenizer bpe = tokenizer_load(temp_path("two.bpe")), bytes = tokenizer_bytes();
    const char *folder = save_with(new_run("with_bpe"), &bpe);
    Tokenizer loaded = tokenizer_open(joined(folder, "merges.txt"));
    assert_true(tokenizer_fingerprint(&loaded) == tokenizer_fingerprint(&bpe));
    assert_true(exists(folder, "vocab.json") && exists(folder, "tokenizer_config.json"));
    assert_false(exists(folder, "tokenizer.json"));
    assert_special_ids(folder, 258, 258);

    folder = save_with(new_run("with_bytes"), &bytes);
    assert_true(exists(folder, "tokenizer.json") && exists(folder, "tokenizer_config.json"));
    assert_false(exists(folder, "merges.txt"));
    assert_special_ids(folder, '\n', -1);
    Tokenizer read = tokenizer_open(joined(folder, "tokenizer.json"));
    assert_true(tokenizer_fingerprint(&read) == tokenizer_fingerprint(&bytes) && !read.merges);
    tokenizer_free(&read);

    folder = save_with(new_run("with_none"), NULL);
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

static void test_bytes_promised(void **state) {
    (void)state;
    GPT2Config c = small_config();
    const char *run = new_run("bytes");
    for (int k = 0; k < WEIGHT_KINDS * MOMENT_KINDS; k++) {
        Kind kind = kind_of(k % WEIGHT_KINDS, k / WEIGHT_KINDS);
        const char *folder = save_kind(run, k + 1, "", kind);
        size_t promised = checkpoint_bytes(&c, kind.weights != ALONE, kind.moments);
        size_t bytes =
            data_bytes(joined(folder, checkpoint_files[0])) + data_bytes(joined(folder, checkpoint_files[1]));
        size_t partial_blocks = kind.moments == DT_U8 ? 2 * sizeof(float) * (size_t)num_param_tensors(&c) : 0;
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
static void test_leftovers(void **state) {
    (void)state;
    const char *run = new_run("leftovers");
    static const char *const stale[] = {"step_00000004.tmp", "step_00000005.tmp", "step_99999999.tmp",
                                        "best.tmp",          "best_b.tmp",        "best.old"};
    static const char *const kept[] = {"step_00000004", "step_5.tmp", "mine.tmp",  "step_00000005.txt",
                                       "best_a",        "best_b",     "best_c.tmp"};
    for (int i = 0; i < 6; i++) { make_folder(run, stale[i]); }
    for (int i = 0; i < 7; i++) { make_folder(run, kept[i]); }
    assert_int_equal(checkpoint_latest(run), 4);
    for (int i = 0; i < 6; i++) { assert_true(exists(run, stale[i])); }  // reading changes nothing
    const char *folder = save_step(run, 5, "");
    assert_holds(folder, 5);
    assert_false(exists(folder, "junk"));
    for (int i = 0; i < 6; i++) { assert_false(exists(run, stale[i])); }
    for (int i = 0; i < 7; i++) { assert_true(exists(joined(run, kept[i]), "junk")); }
    assert_true(exists(joined(run, "best"), "junk"));
    write_text(joined(run, "best_a/best.json"), "{}");  // of an older version, goes where `best` is a folder
    remove_unfinished(run);
    assert_false(exists(run, "best_a"));
    assert_true(exists(run, "best_b"));
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
static void test_replaced(void **state) {
    (void)state;
    const char *run = new_run("twice"), *folder = save_step(run, 1, "");
    char best[PATH_LENGTH];
    format_path(best, "%s/best", run);
    assert_int_equal(symlink("step_00000001", best), 0);
    for (int i = 0; i < 4; i++) {
        if (i == 2) { write_text(joined(best, "state.json"), "{"); }
        if (i == 3) {
            write_text(joined(best, "state.json"), "{}");
            write_text(joined(best, "best.json"), "{}");
        }
        write_text(joined(best, "before"), "");
        save_best((void *)run);
        assert_true(is_folder(best));
        assert_false(exists(best, "before") || exists(run, "best.tmp") || exists(run, "best.old"));
    }
    assert_true(exists(folder, "before"));         // where the link led
    write_text(joined(best, "state.json"), "{}");  // as of a step
    for (int i = 0; i < 2; i++) {
        write_text(joined(best, "mine"), "");
        assert_stops(1, "best': Directory not empty; the checkpoints before it are whole: move that folder, then",
                     save_best, (void *)run);
        assert_true(exists(best, "mine"));
        unlink(joined(best, "state.json"));
    }
    assert_false(exists(run, "best.tmp") || exists(run, "best.old"));
}

static void check_to_resume(void *folder) { checkpoint_check((const char *)folder, "RUN", true); }
static void check_weights(void *folder) { checkpoint_check((const char *)folder, "RUN", false); }

static void check_without_files(void *folder) {
    const struct rlimit none = {3, 3};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    check_to_resume(folder);
}

// The error names the file, the checkpoint before it, and the command that resumes from it. A file that cannot be read
// now is not damaged.
static void test_damaged(void **state) {
    (void)state;
    const char *run = new_run("damaged"), *before = save_step(run, 3, ""), *folder = save_step(run, 7, "");
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
             "; `mv %s %s.damaged && ./train_gpt2 -o RUN -y 1` resumes from '%s', the checkpoint before it; or delete "
             "%s/manifest.json if you changed the file\n",
             folder, folder, before, folder);
    assert_stops(2, words, check_to_resume, (void *)folder);
    assert_stops(2, "is damaged: optimizer.safetensors has 3 bytes, expected", check_to_resume, (void *)folder);
    unlink(joined(folder, "config.json"));
    snprintf(words, sizeof words,
             "-e: checkpoint '%s' is damaged: config.json could not be read: No such file or "
             "directory; give -e %s, the checkpoint before it, or delete %s/manifest.json if you changed the file\n",
             folder, before, folder);
    assert_stops(2, words, check_weights, (void *)folder);
    unlink(joined(before, "model.safetensors"));
    snprintf(words, sizeof words,
             "; there is none before it: copy it again, begin a new run from other weights with -e and another -o, or "
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
static void test_json_is_whole_or_as_before(void **state) {
    (void)state;
    struct rlimit usual_limit, limit;
    const char *folder = new_run("json"), *path = joined(folder, "config.json");
    cJSON *first = cJSON_Parse("{\"x\":1}"), *second = cJSON_Parse("{\"x\":2}");
    assert_int_equal(write_json(path, first), 0);
    assert_json_x(path, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual_limit), 0);
    limit = usual_limit;
    limit.rlim_cur = 3;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int error = write_json(path, second);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual_limit), 0);
    signal(SIGXFSZ, SIG_DFL);
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

static void test_try_read_json(void **state) {
    (void)state;
    static const char *const bad[] = {"", "[]", "2", "null", "{\"x\":1", "x"};
    const char *folder = new_run("try"), *path = joined(folder, "a.json");
    assert_null(try_read_json(path));
    assert_null(try_read_json(folder));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
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
    struct rlimit limit = {disk->largest_file, disk->largest_file};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    save_step(disk->run, 2, long_note);
}

static void test_full_disk(void **state) {
    (void)state;
    memset(long_note, 'x', sizeof long_note - 1);
    GPT2Config c = small_config();
    rlim_t weights = num_parameters(&c) * sizeof(floatX);
    const rlim_t largest[] = {0, 100, weights, 2 * weights + 8192, sizeof long_note - 1};
    FullDisk disk = {new_run("full"), 0};
    const char *earlier = save_step(disk.run, 1, "");
    for (size_t i = 0; i < sizeof largest / sizeof largest[0]; i++) {
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

static bool mount_tiny_disk(const char *run) {
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tiny", run, "tmpfs", 0, "size=96k") == 0;
}

static const char *tiny_disk;

// runs as the child stops, inside its mount: a second line on stderr fails assert_stops
static void look_at_tiny_disk(void) {
    if (exists(tiny_disk, "step_00000002") || exists(tiny_disk, "step_00000002.tmp")) {
        fputs("it left something\n", stderr);
    }
    for (int i = 0; i < NUM_FILES; i++) {
        if (!exists(joined(tiny_disk, "step_00000001"), checkpoint_files[i])) {
            fputs("the earlier one is gone\n", stderr);
        }
    }
}

static void fill_tiny_disk(void *run) {
    tiny_disk = (const char *)run;
    if (!mount_tiny_disk(tiny_disk)) { _exit(77); }
    save_step(tiny_disk, 1, "");
    atexit(look_at_tiny_disk);
    memset(long_note, 'x', sizeof long_note - 1);
    save_step(tiny_disk, 2, long_note);
}

static void test_tiny_disk(void **state) {
    (void)state;
    const char *run = new_run("tiny");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) { _exit(mount_tiny_disk(run) ? 0 : 77); }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) { skip(); }  // mounting takes root, and not every root may
    assert_stops(1, "No space left on device", fill_tiny_disk, (void *)run);
}

static void save_into_nothing(void *run) { save_step((const char *)run, 1, ""); }

static void test_no_run_directory(void **state) {
    (void)state;
    assert_stops(1, "No such file or directory", save_into_nothing, (void *)temp_path("nowhere"));
    const char *run = new_run("occupied");
    write_text(joined(run, "step_00000001.tmp"), "a file where the folder goes");
    assert_stops(1, "File exists", save_into_nothing, (void *)run);
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
static void test_failed_rank_is_named(void **state) {
    (void)state;
    const char *shared = "make -o one folder that all ranks see and may write";
    const struct {
        int rank, error, culprit;
        const char *says, *advice;
    } cases[] = {{0, EFBIG, 4, "rank 4: could not", "make room"},
                 {0, EDQUOT, 0, "could not", "make room"},
                 {0, ENOSPC, 0, "could not", "make room"},
                 {0, EACCES, 0, "could not", shared},
                 {0, EROFS, 0, "could not", shared},
                 {0, ENOTDIR, 0, "could not", shared},
                 {0, EIO, 0, "could not", "fix that"},
                 {3, ENOENT, 3, "could not", shared}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char words[1024], name[32];
        snprintf(name, sizeof name, "named%zu", i);
        FailedSave save = {new_run(name), cases[i].rank, {0}};
        if (cases[i].rank == 0) { save.others[2] = (long long)cases[i].error << 32 | cases[i].culprit; }
        snprintf(words, sizeof words,
                 "train_gpt2: %s save checkpoint '%s/step_00000001': %s; the checkpoints before it are whole: %s, then "
                 "resume with -y 1\n",
                 cases[i].says, save.run, strerror(cases[i].error), cases[i].advice);
        assert_stops(1, words, save_among_others, &save);
        assert_int_equal(rmdir(save.run), 0);
    }
}

// ---- the checkpoints of a run

static void test_latest(void **state) {
    (void)state;
    const char *run = new_run("latest");
    static const char *const others[] = {"step_00000099.tmp", "step_00000099.old", "step_100",       "step_",
                                         "step_000000999",    "step_-0000999",     "step_+0000999",  "step_ 0000999",
                                         "step_00000999x",    "xstep_00000999",    "step_0000009.9", "Step_00000999"};
    assert_int_equal(checkpoint_latest(temp_path("no_such_run")), -1);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(mkdir(joined(run, others[i]), 0777), 0);
    }
    assert_int_equal(checkpoint_latest(run), -1);
    static const long long steps[] = {0, 7, 3, 99999999, 100000000, 123456789012};
    static const long long latest[] = {0, 7, 7, 99999999, 100000000, 123456789012};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
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

// DONE_NNNNNNNN is there if and only if the checkpoint is; other files stay
static void test_sync_done(void **state) {
    (void)state;
    const char *run = new_run("done");
    static const char *const stale[] = {"DONE_00000003", "DONE_00000099", "DONE_123456789012"};
    static const char *const kept[] = {"DONE_3", "DONE_", "DONE_00000003.txt", "DONE_-0000003", "done_00000003"};
    for (size_t i = 0; i < 3; i++) { write_text(joined(run, stale[i]), ""); }
    for (size_t i = 0; i < 5; i++) { write_text(joined(run, kept[i]), ""); }
    write_text(joined(run, "DONE_00000004"), "a user's notes");
    write_text(joined(run, "DONE_00000007"), "");
    assert_int_equal(mkfifo(joined(run, "DONE_00000005"), 0666), 0);
    assert_int_equal(mkdir(joined(run, "step_00000007"), 0777), 0);
    assert_int_equal(mkdir(joined(run, "step_00000012"), 0777), 0);
    assert_int_equal(mkdir(joined(run, "step_00000003.tmp"), 0777), 0);
    checkpoint_sync_done(run, 12);
    assert_false(exists(run, "DONE_00000012"));
    checkpoint_sync_done(run, -1);
    for (size_t i = 0; i < 3; i++) { assert_false(exists(run, stale[i])); }
    for (size_t i = 0; i < 5; i++) { assert_true(exists(run, kept[i])); }
    assert_true(exists(run, "DONE_00000004"));
    assert_true(exists(run, "DONE_00000005"));
    assert_true(exists(run, "DONE_00000007"));
    assert_true(exists(run, "DONE_00000012"));
    checkpoint_sync_done(temp_path("no_such_run"), -1);
}

static void mark_step_1(void *run) { checkpoint_mark_done((const char *)run, 1, NULL, true); }

// a saved checkpoint is marked once it is asked for; a failure says that the checkpoint is whole
static void test_mark_done(void **state) {
    (void)state;
    const char *run = new_run("marked"), *says = "DONE_00000001': No such file or directory; the checkpoint of that "
                                                 "step is whole: make -o one folder";
    save_step(run, 1, "");
    assert_false(exists(run, "DONE_00000001"));
    for (int i = 0; i < 2; i++) { mark_step_1((void *)run); }
    assert_true(exists(run, "DONE_00000001"));
    assert_stops(1, says, mark_step_1, (void *)temp_path("no_such_run"));
}

static void test_prune(void **state) {
    (void)state;
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
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[32], left[64] = "";
        snprintf(name, sizeof name, "prune%zu", i);
        const char *run = new_run(name);
        for (long long step = 10; step <= 60; step += 10) {
            char path[PATH_LENGTH];
            checkpoint_path(path, run, step);
            assert_int_equal(mkdir(path, 0777), 0);
            write_text(joined(path, "model.safetensors"), "weights");
        }
        checkpoint_sync_done(run, -1);
        write_text(joined(run, "step_00000010.txt"), "a user's notes");
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

static void open_model(void *path) { model_open((const char *)path); }

static void load_state(void *folder) { checkpoint_load_state((const char *)folder); }

// a config.json of the model, but for the value of `key`
static const char *config_with(const char *key, const char *value) {
    static char text[1024];
    static const char *const good[][2] = {{"n_layer", "2"},
                                          {"n_head", "2"},
                                          {"n_embd", "8"},
                                          {"n_positions", "16"},
                                          {"vocab_size", "65"},
                                          {"activation_function", "\"gelu_new\""},
                                          {"layer_norm_epsilon", "1e-05"},
                                          {"n_inner", "null"},
                                          {"scale_attn_weights", "true"},
                                          {"scale_attn_by_inverse_layer_idx", "false"},
                                          {"reorder_and_upcast_attn", "false"},
                                          {"tie_word_embeddings", "true"}};
    int at = snprintf(text, sizeof text, "{\"model_type\":\"gpt2\"");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *chosen = strcmp(key, good[i][0]) == 0 ? value : good[i][1];
        at += snprintf(text + at, sizeof text - (size_t)at, ",\"%s\":%s", good[i][0], chosen);
    }
    snprintf(text + at, sizeof text - (size_t)at, "}");
    return text;
}

static void test_lying_configs(void **state) {
    (void)state;
    static const struct {
        const char *key, *value, *says;
    } cases[] = {
        {"n_layer", "1", "has more layers than the 1"},
        {"n_layer", "3", "has no tensor h.2.ln_1.weight"},
        {"n_layer", "16777216", "has no tensor h.2.ln_1.weight"},
        {"n_layer", "0", "expected a whole number"},
        {"n_layer", "-2", "expected a whole number"},
        {"n_layer", "2.5", "expected a whole number"},
        {"n_layer", "1e300", "expected a whole number"},
        {"n_layer", "1e999", "expected a whole number"},
        {"n_layer", "4294967298", "expected a whole number"},  // 2 once cut to 32 bits
        {"n_layer", "\"2\"", "no number named \"n_layer\""},
        {"n_layer", "null", "no number named \"n_layer\""},
        {"n_layer", "NaN", "not a JSON object"},
        {"n_head", "3", "3 heads do not divide 8 channels"},
        {"n_head", "0", "expected a whole number"},
        {"n_embd", "16", "tensor wte.weight has another shape than the model's 65 x 16"},
        {"n_embd", "16777216", "a head of 8388608 channels"},
        {"n_positions", "17", "tensor wpe.weight has another shape than the model's 17 x 8"},
        {"n_positions", "[16]", "no number named \"n_positions\""},
        {"vocab_size", "64", "tensor wte.weight has another shape than the model's 64 x 8"},
        {"vocab_size", "128", "tensor wte.weight has another shape than the model's 128 x 8"},
        {"vocab_size", "16777217", "expected a whole number"},
        {"activation_function", "\"relu\"", "has \"relu\" as \"activation_function\", expected GPT-2's own"},
        {"activation_function", "null", "has null as \"activation_function\""},
        {"layer_norm_epsilon", "1e-6", "has 1e-06 as \"layer_norm_epsilon\", expected GPT-2's own, 1e-05"},
        {"layer_norm_epsilon", "0", "has 0 as \"layer_norm_epsilon\""},
        {"layer_norm_epsilon", "\"1e-05\"", "as \"layer_norm_epsilon\""},
        {"n_inner", "8", "has 8 as \"n_inner\""},
        {"n_inner", "33", "has 33 as \"n_inner\""},
        {"scale_attn_weights", "false", "has false as \"scale_attn_weights\""},
        {"scale_attn_by_inverse_layer_idx", "true", "has true as \"scale_attn_by_inverse_layer_idx\""},
        {"tie_word_embeddings", "false", "has false as \"tie_word_embeddings\""},
    };
    static const char *const same[][2] = {{"", ""},
                                          {"n_inner", "32"},
                                          {"n_inner", "32.0"},
                                          {"layer_norm_epsilon", "0.00001"},
                                          {"reorder_and_upcast_attn", "true"}};
    const char *folder = save_step(new_run("lying"), 1, ""), *path = joined(folder, "config.json");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        write_text(path, config_with(same[i][0], same[i][1]));
        assert_holds(folder, 1);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(path, config_with(cases[i].key, cases[i].value));
        assert_stops(2, cases[i].says, open_model, (void *)folder);
    }
}

static void test_broken_files(void **state) {
    (void)state;
    enum { DELETED = -1, SHORTER = -2 };  // or the bytes that are left, else `text` replaces the file
    static const struct {
        const char *file, *text;
        int left;
        void (*load)(void *folder);
        const char *says;
    } cases[] = {
        {"config.json", "", 0, open_model, "config.json' is not a JSON object"},
        {"config.json", "[]", 0, open_model, "config.json' is not a JSON object"},
        {"config.json", "2", 0, open_model, "config.json' is not a JSON object"},
        {"config.json", "{\"n_layer\":2,", 0, open_model, "config.json' is not a JSON object"},
        {"config.json", "{\"n_layer\" 2}", 0, open_model, "config.json' is not a JSON object"},
        {"config.json", "{}", 0, open_model, "no number named \"n_layer\""},
        // the shape is then read off the tensors, but 8 channels are no heads of 64
        {"config.json", NULL, DELETED, open_model, "put a config.json with n_head beside it"},
        {"model.safetensors", NULL, SHORTER, open_model, "bytes of data, expected"},
        {"model.safetensors", NULL, 2000, open_model, "model.safetensors'"},
        {"model.safetensors", NULL, 100, open_model, "model.safetensors'"},
        {"model.safetensors", NULL, 7, open_model, "model.safetensors'"},
        {"model.safetensors", NULL, 0, open_model, "model.safetensors'"},
        {"model.safetensors", NULL, DELETED, open_model, "No such file"},
        {"optimizer.safetensors", "cut", 0, load_checkpoint, "optimizer.safetensors'"},
        {"optimizer.safetensors", NULL, DELETED, load_checkpoint, "No such file"},
        {"state.json", "", 0, load_state, "state.json' is not a JSON object"},
        {"state.json", "[1]", 0, load_state, "state.json' is not a JSON object"},
        {"state.json", "{\"step\":1", 0, load_state, "state.json' is not a JSON object"},
        {"state.json", "null", 0, load_state, "state.json' is not a JSON object"},
        {"state.json", "{\"step\":1}}", 0, load_state, "state.json' is not a JSON object"},
        {"state.json", "{} 0", 0, load_state, "state.json' is not a JSON object"},
        {"state.json", NULL, DELETED, load_state, "state.json' is missing"},
    };
    const char *run = new_run("broken");
    assert_stops(2, "No such file", open_model, (void *)temp_path("no_such_folder"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *folder = save_step(run, 1, ""), *path = joined(folder, cases[i].file);
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        if (cases[i].text) {
            write_text(path, cases[i].text);
        } else if (cases[i].left == DELETED) {
            unlink(path);
        } else {
            assert_int_equal(truncate(path, cases[i].left == SHORTER ? info.st_size - 1 : cases[i].left), 0);
        }
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

static void test_json_whole(void **state) {
    (void)state;
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
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
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

static void test_broken_optimizer(void **state) {
    (void)state;
    const char *run = new_run("optimizer"), *folder = save_step(run, 1, "");
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

// ---- files of other programs

// a file of another program
typedef struct {
    const char *prefix;
    DType dtype;
    int without;        // a parameter that the last layer lacks; NUM_PARAM_TENSORS: none
    int reshaped;       // a parameter with one row too many; NUM_PARAM_TENSORS: none
    const char *extra;  // a tensor that no GPT-2 needs; NULL: none
    size_t head_rows;   // of lm_head.weight; 0: none
    int head_differs;   // index of the 16-bit word in which lm_head.weight is not wte.weight; -1: none
} Foreign;

// finite F16 numbers of every size and sign
static uint16_t foreign_bits(size_t i) { return (uint16_t)((rng_bits(5, 5, i) & 0xBFFFu) | (i % 2) << 10); }

// FOLDER/model.safetensors; element i of a tensor is foreign_bits(i) in F16, else zero
static void write_foreign(const char *folder, const GPT2Config *c, const Foreign *f) {
    uint16_t bits[65536] = {0};
    for (size_t i = 0; f->dtype == DT_F16 && i < sizeof bits / sizeof bits[0]; i++) { bits[i] = foreign_bits(i); }
    SafeTensorsWriter w = safetensors_create(joined(folder, "model.safetensors"));
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        size_t rows = param_used_rows((ParamId)id, c) + (id == f->reshaped), cols = param_cols((ParamId)id, c);
        bool flip = param_specs[id].transposed, vector = param_specs[id].rows == DIM_ONE && id != f->reshaped;
        size_t shape[2] = {flip ? cols : rows, flip ? rows : cols};
        for (int layer = 0; layer < param_layers((ParamId)id, c); layer++) {
            char name[NAME_LENGTH], full[2 * NAME_LENGTH];
            param_name(name, sizeof name, (ParamId)id, layer);
            snprintf(full, sizeof full, "%s%s", f->prefix, name);
            if (id == f->without && layer == param_layers((ParamId)id, c) - 1) { continue; }
            safetensors_declare(&w, full, f->dtype, vector ? 1 : 2, vector ? &cols : shape);
        }
    }
    size_t mask[4] = {1, 1, (size_t)c->max_seq_len, (size_t)c->max_seq_len};
    if (f->extra) { safetensors_declare(&w, f->extra, DT_U8, 4, mask); }
    const size_t head_shape[2] = {f->head_rows, (size_t)c->channels};
    int head = f->head_rows ? safetensors_declare(&w, "lm_head.weight", f->dtype, 2, head_shape) : -1;
    safetensors_begin(&w);
    for (int i = 0; i < w.num_tensors; i++) {
        if (i == head && f->head_differs >= 0) { bits[f->head_differs] ^= 1; }
        size_t bytes = (size_t)(w.tensors[i].end - w.tensors[i].begin);
        assert_in_range(bytes, 1, sizeof bits);
        safetensors_write(&w, i, 0, bits, bytes);
    }
    assert_int_equal(safetensors_finish(&w), 0);
}

static const Foreign usual = {"", DT_F32, NUM_PARAM_TENSORS, NUM_PARAM_TENSORS, NULL, 0, -1};

// half precision, a prefix before every name, a causal mask: as in some files of GPT2LMHeadModel
static void test_hugging_face_file(void **state) {
    (void)state;
    GPT2Config c = small_config();
    Foreign f = usual;
    f.prefix = "transformer.";
    f.dtype = DT_F16;
    f.extra = "transformer.h.0.attn.bias";
    const char *folder = new_run("foreign");
    write_foreign(folder, &c, &f);
    write_text(joined(folder, "config.json"), config_with("", ""));
    ModelFile file = model_open(folder);
    assert_memory_equal(&file.config, &c, sizeof c);
    ParamLayout layout = param_layout(&c);
    real *block = (real *)xcalloc(layout.total, sizeof(real));
    block_load(&file, "", block);
    model_close(&file);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        size_t rows = param_used_rows((ParamId)id, &c), cols = param_cols((ParamId)id, &c);
        for (size_t i = 0; i < rows * cols; i++) {
            size_t place = param_specs[id].transposed ? i % cols * rows + i / cols : i;
            real expected = (real)f16_to_float(foreign_bits(place));
            assert_true(block[param_offset(&layout, (ParamId)id, 0) + i] == expected);
        }
    }
    free(block);
}

// a file without config.json: heads have 64 channels, as in every GPT-2
static void test_shape_from_tensors(void **state) {
    (void)state;
    GPT2Config c = {4, 0, 0, 3, 1, 64};
    config_set_vocab(&c, 30);
    const char *folder = new_run("alone");
    write_foreign(folder, &c, &usual);
    ModelFile file = model_open(joined(folder, "model.safetensors"));
    assert_memory_equal(&file.config, &c, sizeof c);
    model_close(&file);
    Foreign no_positions = usual;
    no_positions.without = WPE;
    write_foreign(folder, &c, &no_positions);
    assert_stops(2, "holds no GPT-2", open_model, (void *)folder);
}

static void test_missing_and_reshaped_tensors(void **state) {
    (void)state;
    GPT2Config c = small_config();
    const char *folder = new_run("tensors");
    write_text(joined(folder, "config.json"), config_with("", ""));
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        char name[NAME_LENGTH];
        param_name(name, sizeof name, (ParamId)id, L - 1);
        Foreign without = usual, reshaped = usual;
        without.without = reshaped.reshaped = id;
        write_foreign(folder, &c, &without);
        assert_stops(2, name, open_model, (void *)folder);
        write_foreign(folder, &c, &reshaped);
        assert_stops(2, "has another shape", open_model, (void *)folder);
    }
}

// lm_head.weight may be stored if it equals wte.weight; here the comparison takes several reads
static void test_stored_head(void **state) {
    (void)state;
    enum { MANY = 1500 };
    GPT2Config c = small_config();
    config_set_vocab(&c, MANY);
    static const struct {
        size_t rows;
        int differs;
    } untied[] = {{MANY, 0}, {MANY, 2 * MANY * C - 1}, {MANY + 1, -1}, {MANY - 1, -1}};
    Foreign f = usual;
    f.prefix = "transformer.";
    f.head_rows = MANY;
    const char *folder = new_run("head");
    write_text(joined(folder, "config.json"), config_with("vocab_size", "1500"));
    write_foreign(folder, &c, &f);
    ModelFile file = model_open(folder);
    model_close(&file);
    for (size_t i = 0; i < sizeof untied / sizeof untied[0]; i++) {
        f.head_rows = untied[i].rows;
        f.head_differs = untied[i].differs;
        write_foreign(folder, &c, &f);
        assert_stops(2, "lm_head.weight that is not its wte.weight", open_model, (void *)folder);
    }
}

static void load_weights(void *folder) {
    GPT2Config c = small_config();
    ModelState s = empty_model(&c, usual_kind());
    ModelFile file = model_open((const char *)folder);
    weights_load(&file, "", &s);
}

static void test_integer_weights(void **state) {
    (void)state;
    GPT2Config c = small_config();
    Foreign f = usual;
    f.dtype = DT_I32;
    const char *folder = new_run("integers");
    write_text(joined(folder, "config.json"), config_with("", ""));
    write_foreign(folder, &c, &f);
    assert_stops(2, "expected F32, F64, BF16 or F16", load_weights, (void *)folder);
}

int main(void) {
    omp_set_num_threads(1);  // a forked child has none of its parent's threads
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_other_precision),
        cmocka_unit_test(test_every_kind_round_trips),
        cmocka_unit_test(test_masters_become_remainders_and_back),
        cmocka_unit_test(test_masters_from_rounded_weights),
        cmocka_unit_test(test_masters_not_wanted),
        cmocka_unit_test(test_moments_are_converted),
        cmocka_unit_test(test_ranks_read_their_ranges),
        cmocka_unit_test(test_large_tensors),
        cmocka_unit_test(test_codes_of_slices),
        cmocka_unit_test(test_broken_moments),
        cmocka_unit_test(test_weights_only),
        cmocka_unit_test(test_hugging_face_layout),
        cmocka_unit_test(test_config_written),
        cmocka_unit_test(test_tokenizer_saved),
        cmocka_unit_test(test_bytes_promised),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_json_is_whole_or_as_before),
        cmocka_unit_test(test_try_read_json),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_tiny_disk),
        cmocka_unit_test(test_no_run_directory),
        cmocka_unit_test(test_failed_rank_is_named),
        cmocka_unit_test(test_latest),
        cmocka_unit_test(test_sync_done),
        cmocka_unit_test(test_mark_done),
        cmocka_unit_test(test_prune),
        cmocka_unit_test(test_lying_configs),
        cmocka_unit_test(test_broken_files),
        cmocka_unit_test(test_json_whole),
        cmocka_unit_test(test_broken_optimizer),
        cmocka_unit_test(test_hugging_face_file),
        cmocka_unit_test(test_shape_from_tensors),
        cmocka_unit_test(test_missing_and_reshaped_tensors),
        cmocka_unit_test(test_stored_head),
        cmocka_unit_test(test_integer_weights),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
