// model_file.h, safetensors.h and model_state.h: a model loads to the same bits from every form of
// file, llm.c's files are written as an independent loop writes them, and bad files are refused in one sentence.
#include "llmc/activation.h"
#define MLP_ACTIVATION GELU  // the files here are GPT-2's, whatever the trainer computes
#include "testing.h"
#include "optimizer_fixture.h"
#include "llmc/checkpoint/model_state.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/model_source.h"
#include <omp.h>

enum { L = 2, NH = 2, C = 8, MAX_T = 16, V = 65, NUM_TENSORS = 4 + 12 * L, MANY_BYTES = 1 << 16 };

static GPT2Config small_config(void) {
    GPT2Config c = {MAX_T, 0, 0, L, NH, C};
    config_set_vocab(&c, V);
    return c;
}

// ---- a model of numbers that depend on the tensor and the element, in (out, in) order

// any finite F32, subnormal numbers too
static float value_f32(ParamId id, int layer, size_t i) {
    uint32_t bits = (uint32_t)rng_bits(7, (uint64_t)id * 100 + (uint64_t)layer, i);
    if (i % 16 == 3) { bits &= 0x807FFFFFu; }
    if (i % 16 == 5) { bits = 0x3F808000u | (bits & 0x10000u); }  // halfway between two BF16 numbers
    if ((bits & 0x7F800000u) == 0x7F800000u) { bits &= 0xBFFFFFFFu; }
    return bits_to_float(bits);
}

static uint16_t value_16(DType dtype, ParamId id, int layer, size_t i) {
    uint16_t bits = (uint16_t)rng_bits(9, (uint64_t)id * 100 + (uint64_t)layer, i);
    uint16_t infinite = dtype == DT_F16 ? 0x7C00 : 0x7F80;
    return (bits & infinite) == infinite ? bits & 0xBFFF : bits;
}

static float value(DType dtype, ParamId id, int layer, size_t i) {
    if (dtype == DT_F32) { return value_f32(id, layer, i); }
    uint16_t bits = value_16(dtype, id, layer, i);
    const bf16 brain = {bits};
    return dtype == DT_F16 ? f16_to_float(bits) : bf16_to_float(brain);
}

// out = the bytes of a tensor as Hugging Face stores it; returns their number
static size_t hugging_face_bytes(unsigned char *out, DType dtype, ParamId id, int layer, const GPT2Config *c) {
    size_t rows = param_used_rows(id, c), cols = param_cols(id, c), size = dtype_size(dtype);
    for (size_t i = 0; i < rows * cols; i++) {
        size_t place = param_specs[id].transposed ? i % cols * rows + i / cols : i;
        float f = value_f32(id, layer, i);
        uint16_t bits = value_16(dtype, id, layer, i);
        memcpy(out + place * size, dtype == DT_F32 ? (const void *)&f : &bits, size);
    }
    return rows * cols * size;
}

// the weights of a file, of one rank's shard and slice; free them with state_free
static OptimizerState load_weights(const ModelFile *file, Sharding sharding) {
    ParamLayout layout = param_layout_sharded(&file->config, sharding);
    ModelState s = {&file->config, &cpu_device, state_make(true, DT_REAL, layout.shard, layout.shard),
                    sharding,      NULL,        NULL};
    state_load(file, "", &s);
    return s.optimizer;
}

static void assert_same_numbers(const ModelFile *file, DType dtype, bool rounded) {
    const Sharding alone = {1, 0, 3, 1, 0, 0};
    ParamLayout layout = param_layout(&file->config);
    OptimizerState loaded = load_weights(file, alone);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        size_t count = param_used_rows((ParamId)id, &file->config) * param_cols((ParamId)id, &file->config);
        for (int layer = 0; layer < param_layers((ParamId)id, &file->config); layer++) {
            size_t at = param_offset(&layout, (ParamId)id, layer);
            for (size_t i = 0; i < count; i++) {
                float expected = value(dtype, (ParamId)id, layer, i);
                if (rounded) { expected = bf16_to_float(float_to_bf16(expected)); }
                assert_int_equal(float_to_bits((float)reference_weight(&loaded, at + i)), float_to_bits(expected));
            }
        }
    }
    state_free(&loaded);
}

static void assert_opens(const char *path, DType dtype, bool rounded) {
    GPT2Config c = small_config();
    ModelFile file = model_open(path);
    assert_memory_equal(&file.config, &c, sizeof c);
    assert_same_numbers(&file, dtype, rounded);
    model_close(&file);
}

// ---- folders

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
                                          {"tie_word_embeddings", "true"},
                                          {"add_cross_attention", "false"}};
    int at = snprintf(text, sizeof text, "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"]");
    for (size_t i = 0; i < LEN(good); i++) {
        const char *chosen = strcmp(key, good[i][0]) == 0 ? value : good[i][1];
        at += snprintf(text + at, sizeof text - (size_t)at, ",\"%s\":%s", good[i][0], chosen);
    }
    snprintf(text + at, sizeof text - (size_t)at, "}");
    return text;
}

static void write_config(const char *folder, const char *key, const char *value) {
    write_text(joined(folder, "config.json"), config_with(key, value));
}

typedef struct {
    DType dtype;
    const char *prefix;  // of every name
    int shards;          // 1: model.safetensors; else as many files, and an index
    bool mask;           // h.0.attn.bias is stored, as in old files
    bool head;           // lm_head.weight is stored too
    int without;         // a parameter that the last layer lacks; -1: none
    int reshaped;        // a parameter with one row too many; -1: none
} Layout;

static Layout layout_of(DType dtype, const char *prefix, int shards, bool head, bool mask) {
    Layout l = {dtype, prefix, shards, mask, head, -1, -1};
    return l;
}

static Layout usual(void) { return layout_of(DT_F32, "", 1, false, false); }

static void shard_name(char name[64], int shard, int shards) {
    snprintf(name, 64, shards == 1 ? "model.safetensors" : "model-%05d-of-%05d.safetensors", shard + 1, shards);
}

// adds a tensor to a file in pass 0, writes it in pass 1
static void put_tensor(SafeTensorsWriter *w, int pass, int index, const char *name, DType dtype, int dims,
                       const size_t *shape, const unsigned char *bytes) {
    size_t count = dtype_size(dtype);
    for (int i = 0; i < dims; i++) { count *= shape[i]; }
    if (pass == 0) { assert_int_equal(safetensors_declare(w, name, dtype, dims, shape), index); }
    if (pass == 1) { safetensors_write(w, index, 0, bytes, count); }
}

// writes the tensors number shard, shard + shards, ... of a model
static void write_shard(const char *folder, const Layout *l, int shard, cJSON *weight_map) {
    GPT2Config c = small_config();
    static unsigned char bytes[MANY_BYTES];
    char file[64], name[NAME_LENGTH], full[2 * NAME_LENGTH];
    shard_name(file, shard, l->shards);
    SafeTensorsWriter w = safetensors_create(joined(folder, file), false);
    for (int pass = 0; pass < 2; pass++) {
        int index = 0, number = 0;
        for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
            int layers = param_layers((ParamId)id, &c);
            for (int layer = 0; layer < layers; layer++, number++) {
                if (number % l->shards != shard || (id == l->without && layer == layers - 1)) { continue; }
                size_t shape[2];
                hugging_face_bytes(bytes, l->dtype, (ParamId)id, layer, &c);
                param_file_shape(shape, (ParamId)id, &c, param_specs[id].transposed);
                shape[0] += id == l->reshaped;
                bool vector = shape[0] == 1;
                param_name(name, sizeof name, (ParamId)id, layer);
                snprintf(full, sizeof full, "%s%s", l->prefix, name);
                put_tensor(&w, pass, index++, full, l->dtype, 2 - vector, shape + vector, bytes);
                if (pass == 0) { cJSON_AddStringToObject(weight_map, full, file); }
            }
        }
        if (l->head && shard == l->shards - 1) {
            const size_t shape[2] = {V, C};
            hugging_face_bytes(bytes, l->dtype, WTE, 0, &c);
            put_tensor(&w, pass, index++, "lm_head.weight", l->dtype, 2, shape, bytes);
            if (pass == 0) { cJSON_AddStringToObject(weight_map, "lm_head.weight", file); }
        }
        if (l->mask && shard == 0) {
            const size_t shape[4] = {1, 1, MAX_T, MAX_T};
            snprintf(full, sizeof full, "%sh.0.attn.bias", l->prefix);
            put_tensor(&w, pass, index++, full, DT_U8, 4, shape, bytes);
            if (pass == 0) { cJSON_AddStringToObject(weight_map, full, file); }
        }
        if (pass == 0) { safetensors_begin(&w); }
    }
    assert_int_equal(safetensors_finish(&w), 0);
}

static const char *index_path(const char *folder) { return joined(folder, "model.safetensors.index.json"); }

// writes a model, and an index if it has several files; returns the index, which the caller deletes
static cJSON *write_model(const char *folder, const Layout *l) {
    cJSON *index = cJSON_CreateObject(), *map = cJSON_AddObjectToObject(index, "weight_map");
    for (int shard = 0; shard < l->shards; shard++) { write_shard(folder, l, shard, map); }
    if (l->shards > 1) { assert_int_equal(write_json(index_path(folder), index), 0); }
    return index;
}

static const char *model_folder(const char *name, Layout l) {
    const char *folder = new_folder(name);
    write_config(folder, "", "");
    cJSON_Delete(write_model(folder, &l));
    return folder;
}

static void open_model(void *path) { model_open((const char *)path); }

static void assert_refused(const char *path, const char *words) { assert_stops(2, words, open_model, (void *)path); }

// ---- Hugging Face's files

TEST(test_one_file) {
    static const DType dtypes[] = {DT_F32, DT_F16, DT_BF16};
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "one%d", i);
        const char *folder = model_folder(name, layout_of(dtypes[i], i == 1 ? "transformer." : "", 1, i > 0, i > 0));
        assert_opens(folder, dtypes[i], false);
        assert_opens(joined(folder, "model.safetensors"), dtypes[i], false);
    }
}

// an index and its files, whatever the number of files, the names and the type
TEST(test_several_files) {
    const Layout layouts[] = {layout_of(DT_F32, "", 2, false, false), layout_of(DT_F32, "transformer.", 5, true, true),
                              layout_of(DT_F16, "transformer.", 3, true, true),
                              layout_of(DT_BF16, "", NUM_TENSORS, false, true)};
    for (size_t i = 0; i < LEN(layouts); i++) {
        char name[32], here[256];
        snprintf(name, sizeof name, "several%zu", i);
        const char *folder = model_folder(name, layouts[i]);
        assert_opens(folder, layouts[i].dtype, false);
        assert_opens(index_path(folder), layouts[i].dtype, false);
        ModelFile file = model_open(folder);
        assert_int_equal(file.file.num_shards, layouts[i].shards);  // each file is opened once
        model_close(&file);
        assert_non_null(getcwd(here, sizeof here));
        assert_int_equal(chdir(folder), 0);
        assert_opens("model.safetensors.index.json", layouts[i].dtype, false);
        assert_int_equal(chdir(here), 0);
    }
}

// transformers, too, prefers model.safetensors
TEST(test_one_file_comes_first) {
    const char *folder = model_folder("both", usual());
    write_text(index_path(folder), "{}");
    assert_opens(folder, DT_F32, false);
    assert_refused(index_path(folder), "has no \"weight_map\"");
}

// an entry of weight_map is changed, or for value NULL its tensor left out
static void write_index_with(const char *folder, const cJSON *index, const char *key, const char *value) {
    cJSON *copy = cJSON_Duplicate(index, true), *map = cJSON_GetObjectItem(copy, "weight_map");
    cJSON_DeleteItemFromObjectCaseSensitive(map, key);
    if (value) { cJSON_AddItemToObject(map, key, cJSON_Parse(value)); }
    assert_int_equal(write_json(index_path(folder), copy), 0);
    cJSON_Delete(copy);
}

// an entry of a JSON object with another value, and words of the error
typedef struct {
    const char *key, *value, *says;
} BadEntry;

TEST(test_bad_index) {
    static const BadEntry cases[] = {
        {"h.1.ln_2.bias", "\"model-00004-of-00003.safetensors\"", "could not be opened: No such file"},
        {"h.1.ln_2.bias", "\"\"", "has '' for tensor h.1.ln_2.bias, expected a file in the folder of the index"},
        {"h.1.ln_2.bias", "\"../stolen.safetensors\"", "expected a file in the folder of the index"},
        {"h.1.ln_2.bias", "\"/etc/passwd\"", "expected a file in the folder of the index"},
        {"h.1.ln_2.bias", "\"..\"", "expected a file in the folder of the index"},
        {"h.1.ln_2.bias", "\".\"", "could not be opened: it is a folder"},
        {"h.1.ln_2.bias", "\"config.json\"", "config.json' "},
        {"h.1.ln_2.bias", "7", "has 'no string' for tensor h.1.ln_2.bias"},
        {"h.1.ln_2.bias", NULL, "has no tensor h.1.ln_2.bias"},
        {"h.1.ln_2.bias", "\"model-00001-of-00003.safetensors\"", "no tensor h.1.ln_2.bias in the files that it"},
    };
    const Layout l = layout_of(DT_F32, "", 3, false, false);
    const char *folder = new_folder("index");
    write_config(folder, "", "");
    cJSON *index = write_model(folder, &l);
    for (size_t i = 0; i < LEN(cases); i++) {
        write_index_with(folder, index, cases[i].key, cases[i].value);
        assert_refused(folder, cases[i].says);
    }
    static const char *const texts[] = {"{}", "{\"weight_map\":{}}", "{\"weight_map\":[\"a\"]}", "{\"weight_map\":2}"};
    for (int i = 0; i < 4; i++) {
        write_text(index_path(folder), texts[i]);
        assert_refused(folder, "has no \"weight_map\"");
    }
    write_text(index_path(folder), "{\"weight_map\":{");
    assert_refused(folder, "not a JSON object");
    char twice[256];
    const char *file = "model-00001-of-00003.safetensors";
    snprintf(twice, sizeof twice, "{\"weight_map\":{\"wte.weight\":\"%s\",\"wte.weight\":\"%s\"}}", file, file);
    write_text(index_path(folder), twice);
    assert_refused(folder, "has tensor 'wte.weight' twice");
    cJSON_Delete(index);
}

TEST(test_broken_shard) {
    const char *folder = model_folder("broken", layout_of(DT_F32, "", 3, false, false)),
               *path = joined(folder, "model-00002-of-00003.safetensors");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    assert_refused(folder, "model-00002-of-00003.safetensors' has");
    unlink(path);
    assert_refused(folder, "model-00002-of-00003.safetensors' could not be opened: No such file");
    assert_refused(joined(folder, "model-00001-of-00003.safetensors"), "or the folder, if the model is in");
}

TEST(test_integer_weights) {
    const char *says = "holds I16, expected F32, F64, BF16 or F16";
    assert_refused(model_folder("integers1", layout_of(DT_I16, "", 1, false, false)), says);
    assert_refused(model_folder("integers2", layout_of(DT_I16, "", 2, false, false)), says);
}

TEST(test_missing_and_reshaped_tensors) {
    const char *folder = model_folder("tensors", usual());
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        char name[NAME_LENGTH];
        param_name(name, sizeof name, (ParamId)id, L - 1);
        Layout without = usual(), reshaped = usual();
        without.without = reshaped.reshaped = id;
        cJSON_Delete(write_model(folder, &without));
        assert_refused(folder, name);
        cJSON_Delete(write_model(folder, &reshaped));
        assert_refused(folder, "has another shape");
    }
}

TEST(test_configs) {
    static const char *const good[][2] = {
        {"", ""},
        {"n_inner", "32"},
        {"n_inner", "32.0"},
        {"layer_norm_epsilon", "0.00001"},
        {"reorder_and_upcast_attn", "true"},
        {"activation_function", "\"gelu_pytorch_tanh\""},
        {"activation_function", "\"gelu_fast\""},
        {"activation_function", "\"gelu_accurate\""},
        {"activation_function", "\"gelu_python_tanh\""},
    };
    static const BadEntry bad[] = {
        {"n_layer", "1", "which a GPT-2 of the 1 layers in config.json lacks"},
        {"n_layer", "3", "has no tensor h.2.ln_1.weight"},
        {"n_layer", "16777216", "has no tensor h.2.ln_1.weight"},
        {"n_layer", "0", "expected a whole number"},
        {"n_layer", "-2", "expected a whole number"},
        {"n_layer", "2.5", "expected a whole number"},
        {"n_layer", "1e300", "expected a whole number"},
        {"n_layer", "1e999", "expected a whole number"},
        {"n_layer", "4294967298", "expected a whole number"},  // 2 once cut to 32 bits
        {"n_layer", "\"2\"", "has \"2\" as \"n_layer\", expected a whole number from 1 to"},
        {"n_layer", "null", "has null as \"n_layer\""},
        {"n_layer", "NaN", "not a JSON object"},
        {"n_head", "3", "3 heads do not divide 8 channels"},
        {"n_head", "0", "expected a whole number"},
        {"n_embd", "16", "tensor wte.weight has another shape than the model's 65 x 16"},
        {"n_embd", "16777216", "a head of 8388608 channels"},
        {"n_positions", "17", "tensor wpe.weight has another shape than the model's 17 x 8"},
        {"n_positions", "[16]", "has [16] as \"n_positions\""},
        {"vocab_size", "64", "tensor wte.weight has another shape than the model's 64 x 8"},
        {"vocab_size", "128", "tensor wte.weight has another shape than the model's 128 x 8"},
        {"vocab_size", "16777217", "expected a whole number"},
        {"activation_function", "\"gelu\"", "has \"gelu\" as \"activation_function\", expected \"gelu_new\", which"},
        {"activation_function", "\"relu\"", "has \"relu\" as \"activation_function\""},
        {"activation_function", "\"\"", "has \"\" as \"activation_function\""},
        {"activation_function", "null", "has null as \"activation_function\""},
        {"layer_norm_epsilon", "1e-6", "has 1e-06 as \"layer_norm_epsilon\", expected GPT-2's own, 1e-05"},
        {"layer_norm_epsilon", "0", "has 0 as \"layer_norm_epsilon\""},
        {"layer_norm_epsilon", "\"1e-05\"", "as \"layer_norm_epsilon\""},
        {"n_inner", "8", "has 8 as \"n_inner\""},
        {"n_inner", "33", "has 33 as \"n_inner\""},
        {"scale_attn_weights", "false", "has false as \"scale_attn_weights\""},
        {"scale_attn_by_inverse_layer_idx", "true", "has true as \"scale_attn_by_inverse_layer_idx\""},
        {"tie_word_embeddings", "false", "has false as \"tie_word_embeddings\""},
        {"add_cross_attention", "true", "has true as \"add_cross_attention\""},
    };
    static const char *const others[][2] = {
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":2}", "has \"llama\" as \"model_type\", expected GPT-2's own"},
        {"{\"model_type\":null}", "has null as \"model_type\""},
        {"{}", "has nothing as \"n_layer\", expected a whole number from 1 to 16777216"},
        {"", "not a JSON object"},
        {"model", "not a JSON object"},
        {"[]", "not a JSON object"},
        {"2", "not a JSON object"},
        {"{\"n_layer\":2,", "not a JSON object"},
        {"{\"n_layer\" 2}", "not a JSON object"},
    };
    const char *folder = model_folder("configs", usual()), *config = joined(folder, "config.json");
    for (size_t i = 0; i < LEN(good); i++) {
        write_config(folder, good[i][0], good[i][1]);
        assert_opens(folder, DT_F32, false);
    }
    for (size_t i = 0; i < LEN(bad); i++) {
        write_config(folder, bad[i].key, bad[i].value);
        assert_refused(folder, bad[i].says);
    }
    for (size_t i = 0; i < LEN(others); i++) {
        write_text(joined(folder, "config.json"), others[i][0]);
        assert_refused(folder, others[i][1]);
    }
    unlink(config);
    assert_refused(folder, "put a config.json with n_head there");
    unlink(joined(folder, "model.safetensors"));
    assert_refused(folder, "No such file");
    assert_refused(temp_path("no_such_folder"), "No such file");
}

// ---- llm.c's files

// Writes an llm.c model file: a header with Vp rows of wte, then every tensor by a loop of its own. The padding is not
// zero. Returns the bytes.
static size_t write_llmc(const char *path, int32_t version, int Vp) {
    GPT2Config c = small_config();
    static unsigned char bytes[MANY_BYTES];
    int32_t header[256] = {20240326, version, MAX_T, V, L, NH, C, Vp};
    memcpy(bytes, header, sizeof header);
    size_t at = sizeof header, size = version == 5 ? 2 : 4;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        size_t rows = id == WTE ? (size_t)Vp : param_rows((ParamId)id, &c), cols = param_cols((ParamId)id, &c);
        for (int layer = 0; layer < param_layers((ParamId)id, &c); layer++) {
            for (size_t i = 0; i < rows * cols; i++, at += size) {
                float f = value_f32((ParamId)id, layer, i);
                uint16_t half = value_16(DT_BF16, (ParamId)id, layer, i);
                memcpy(bytes + at, version == 5 ? (const void *)&half : &f, size);
            }
        }
    }
    assert_in_range(at, 1, sizeof bytes);
    write_bytes(path, bytes, at);
    return at;
}

TEST(test_llmc_file) {
    static const int padded[] = {V, V + 1, 128, 200};
    for (int i = 0; i < 4; i++) {
        const char *path = temp_path("padded.bin");
        write_llmc(path, 3, padded[i]);
        assert_opens(path, DT_F32, false);
        write_llmc(path, 5, padded[i]);
        assert_opens(path, DT_BF16, false);
    }
    const char *other_name = temp_path("checkpoint_of_llmc");
    write_llmc(other_name, 3, 128);
    assert_opens(other_name, DT_F32, false);
}

// the same for every rank of every layout: a tensor-parallel rank reads its slice
TEST(test_llmc_slices) {
    const char *path = temp_path("slices.bin");
    const char *folder = model_folder("slices", usual());
    write_llmc(path, 3, 128);
    ModelFile a = model_open(path), b = model_open(folder);
    for (int rank = 0; rank < 4; rank++) {
        const Sharding sharding = {2, rank / 2, 3, 2, rank % 2, 0};
        OptimizerState of_a = load_weights(&a, sharding), of_b = load_weights(&b, sharding);
        assert_same_state(&of_a, &of_b, param_layout_sharded(&a.config, sharding).shard);
        state_free(&of_a);
        state_free(&of_b);
    }
    model_close(&a);
    model_close(&b);
}

// returns 0 or an errno
static int try_export(const char *from, const char *to, DType dtype) {
    ModelFile model = model_open(from);
    PartFile out = part_open(to);
    llmc_write_model(&out, &model, dtype);
    model_close(&model);
    return part_finish(&out);
}

static void export_path(const char *from, const char *to, DType dtype) {
    assert_int_equal(try_export(from, to, dtype), 0);
}

// The exported file has these tensors at these places, zeros as padding, and loads to the bits of its source.
TEST(test_export) {
    const Layout sources[] = {usual(), layout_of(DT_F16, "transformer.", 3, true, true),
                              layout_of(DT_BF16, "", 2, false, false)};
    static unsigned char first[MANY_BYTES];
    const size_t elements = 128 * C + MAX_T * C + L * (12 * C * C + 13 * C) + 2 * C;
    for (int i = 0; i < 3; i++) {
        char name[32];
        size_t count;
        snprintf(name, sizeof name, "export%d", i);
        const char *folder = model_folder(name, sources[i]), *v3 = joined(folder, "v3.bin"),
                   *v5 = joined(folder, "v5.bin"), *again = joined(folder, "again.bin");
        export_path(folder, v3, DT_F32);
        export_path(folder, v5, DT_BF16);
        assert_int_equal(access(joined(folder, "v3.bin.part"), F_OK), -1);
        assert_opens(v3, sources[i].dtype, false);
        assert_opens(v5, sources[i].dtype, true);
        const int32_t *header = (const int32_t *)(const void *)read_file(v5, &count);
        const int32_t expected[9] = {20240326, 5, MAX_T, V, L, NH, C, 128, 0};
        assert_memory_equal(header, expected, sizeof expected);
        assert_int_equal(count, 1024 + 2 * elements);
        const char *bytes = read_file(v3, &count);
        assert_int_equal(((const int32_t *)(const void *)bytes)[1], 3);
        assert_int_equal(count, 1024 + 4 * elements);
        for (size_t k = 1024 + 4 * V * C; k < 1024 + 4 * 128 * C; k++) { assert_int_equal(bytes[k], 0); }
        memcpy(first, bytes, count);
        export_path(v3, again, DT_F32);
        size_t same = count;
        assert_memory_equal(read_file(again, &count), first, same);
        assert_int_equal(count, same);
    }
}

// a vocabulary of 65536: wte is read and written in several chunks
TEST(test_export_in_chunks) {
    const int32_t header[256] = {20240326, 3, MAX_T, 65536, L, NH, C, 65536};
    const size_t bytes = sizeof header + 4 * (65536 * C + MAX_T * C + L * (12 * C * C + 13 * C) + 2 * C);
    assert_true(65536 * C > CHUNK_ELEMENTS);
    uint32_t *file = (uint32_t *)xcalloc(2, bytes), *copy = file + bytes / 4;
    memcpy(file, header, sizeof header);
    for (size_t i = 256; i < bytes / 4; i++) { file[i] = (uint32_t)rng_bits(3, 3, i) & 0xBFFFFFFFu; }
    const char *path = write_file("large.bin", file, bytes), *out = temp_path("large_out.bin");
    export_path(path, out, DT_F32);
    FILE *in = fopen(out, "rb");
    assert_non_null(in);
    assert_int_equal(fread(copy, 1, bytes, in), bytes);
    assert_int_equal(fgetc(in), EOF);
    fclose(in);
    assert_memory_equal(copy, file, bytes);
    free(file);
}

// ties go to the even neighbour
TEST(test_export_rounds) {
    static const uint32_t from[] = {0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7F7FFF, 0x80008000, 0x00018000};
    static const uint16_t to[] = {0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F7F, 0x8000, 0x0002};
    const char *folder = model_folder("ties", usual()), *path = joined(folder, "ties.bin");
    size_t bytes = write_llmc(path, 3, 128), count;
    overwrite(path, 1024, from, sizeof from);
    export_path(path, path, DT_BF16);  // onto itself
    assert_memory_equal(read_file(path, &count) + 1024, to, sizeof to);
    assert_int_equal(count, 1024 + (bytes - 1024) / 2);
}

// An llm.c file that is cut, or longer: the length is that of the header's sizes, whichever tensor is missing.
TEST(test_llmc_lengths) {
    GPT2Config c = small_config();
    const char *path = temp_path("cut.bin");
    size_t whole = write_llmc(path, 3, 128), end = 1024;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, &c); layer++) {
            char words[64];
            snprintf(words, sizeof words, "is %zu bytes long, expected %zu for its 2 layers", end, whole);
            write_llmc(path, 3, 128);
            assert_int_equal(truncate(path, (off_t)end), 0);
            assert_refused(path, words);
            end += (id == WTE ? 128 : param_rows((ParamId)id, &c)) * param_cols((ParamId)id, &c) * sizeof(float);
        }
    }
    assert_int_equal(end, whole);
    const struct {
        int32_t version;
        size_t bytes;
        const char *words;
    } cases[] = {{3, whole + 1, "bytes long, expected"},
                 {3, whole - 1, "bytes long, expected"},
                 {5, whole, "bytes long, expected"},
                 {3, 1023, "could not be read: the file ends too early"},
                 {3, 4, "could not be read: the file"}};
    for (size_t i = 0; i < LEN(cases); i++) {
        write_llmc(path, cases[i].version, 128);
        assert_int_equal(truncate(path, (off_t)cases[i].bytes), 0);
        assert_refused(path, cases[i].words);
    }
}

TEST(test_bad_llmc_headers) {
    static const struct {
        int at;
        int32_t value;
        const char *says;
    } cases[] = {
        {0, 0, "is no file of a known kind: it holds NULs, expected a GPT-2"},
        {0, 20240327, "is no file of a known kind: it holds NULs, expected a GPT-2"},
        {0, 20240328, "is llm.c's tokenizer, expected a GPT-2 in Hugging Face's or llm.c's format; give it with"},
        {0, 20240520, "is a token shard, expected"},
        {0, 20240522, "is an evaluation set of llm.c, expected"},
        {1, 1, "of version 1, expected 3 (fp32) or 5 (bf16)"},
        {1, 4, "of version 4, expected 3"},
        {1, -3, "of version -3, expected 3"},
        {2, 0, "has 0 positions in its header"},
        {2, 15, "bytes long, expected"},
        {3, -1, "has -1 tokens in its header"},
        {3, 129, "has 128 padded tokens in its header, expected 129"},
        {4, 0, "has 0 layers in its header"},
        {4, 1, "bytes long, expected"},
        {4, 16777216, "bytes long, expected"},
        {4, 16777217, "has 16777217 layers in its header, expected 1 to 16777216"},
        {5, 3, "3 heads do not divide 8 channels"},
        {5, 0, "has 0 heads in its header"},
        {6, 16777216, "a head of 8388608 channels"},
        {6, 16, "bytes long, expected"},
        {7, 0, "has 0 padded tokens in its header, expected 65"},
        {7, 64, "has 64 padded tokens in its header, expected 65 to"},
        {7, 129, "and 129 padded tokens in F32"},
        {7, 16777216, "bytes long, expected"},
    };
    const char *path = temp_path("header.bin");
    for (size_t i = 0; i < LEN(cases); i++) {
        write_llmc(path, 3, 128);
        overwrite(path, 4 * cases[i].at, &cases[i].value, 4);
        assert_refused(path, cases[i].says);
    }
}

TEST(test_other_formats) {
    static const struct {
        const char *name, *bytes, *says;
    } cases[] = {
        {"x.gguf", "GGUF\3", "x.gguf is a GGUF model, expected a GPT-2"},
        {"model.pt", "PK\3\4 and so on", "model.pt is a file of PyTorch, expected"},
        {"old.bin", "\x80\2\x8A\nl\xFC\x9C", "old.bin is a Python pickle"},
        {"text.bin", "plain text", "text.bin is no file of a known kind"},
        {"notes.txt", "plain text", "notes.txt is no file of a known kind, expected a GPT-2 in Hugging Face's"},
        {"text.safetensors", "plain text", "text.safetensors' is 10 bytes long and says that its header has"},
        {"short.bin", "ab", "short.bin is no file of a known kind"},
    };
    for (size_t i = 0; i < LEN(cases); i++) {
        assert_refused(write_file(cases[i].name, cases[i].bytes, strlen(cases[i].bytes)), cases[i].says);
    }
    assert_int_equal(mkfifo(temp_path("pipe"), 0600), 0);
    assert_refused(temp_path("pipe"), "is no file of a known kind");
    const char *parts = model_folder("parts", layout_of(DT_F32, "", 2, false, false));
    assert_refused(joined(parts, "config.json"), "has no \"weight_map\"");
}

// ---- a failed export

static void assert_export_ends(const char *folder, const char *path, rlim_t largest_file, int error) {
    limit_files(largest_file);
    int found = try_export(folder, path, DT_F32);
    limit_files(RLIM_INFINITY);
    assert_int_equal(found, error);
}

TEST(test_full_disk) {
    const char *folder = model_folder("full", usual()), *path = joined(folder, "full.bin");
    size_t whole = write_llmc(path, 3, 128), count;
    const rlim_t largest[] = {0, 1023, 1024, 5000, 12000, whole - 1};
    for (int i = 0; i < 6; i++) {
        assert_export_ends(folder, path, largest[i], EFBIG);
        assert_false(exists(folder, "full.bin.part"));
        read_file(path, &count);  // the file that was there
        assert_int_equal(count, whole);
        assert_opens(path, DT_F32, false);
    }
    assert_export_ends(folder, joined(folder, "no/where.bin"), whole, ENOENT);
    assert_export_ends(folder, path, whole, 0);
    assert_opens(path, DT_F32, false);
}

// ---- -e

static void find_source(void *word) {
    TrainArgs a = default_args;
    a.model = (const char *)word;
    model_source(&a, V);
}

static void assert_source(const char *word, const char *file) {
    TrainArgs a = default_args;
    a.model = word;
    ModelSource source = model_source(&a, V);
    assert_true(source.has_weights);
    assert_string_equal(source.weights.file.path, file);
    model_close(&source.weights);
}

TEST(test_folders) {
    const char *several = model_folder("two", layout_of(DT_F32, "", 2, false, false)), *pickled = new_folder("pickled");
    write_config(pickled, "", "");
    assert_source(several, index_path(several));
    assert_source(index_path(several), index_path(several));
    write_text(joined(pickled, "pytorch_model.bin"), "PK\3\4 and so on");
    assert_stops(2, "converts PyTorch's files", find_source, (void *)pickled);
    assert_stops(2, "is a file of PyTorch", find_source, (void *)joined(pickled, "pytorch_model.bin"));
    assert_stops(2, "is a folder without model.safetensors", find_source, (void *)new_folder("empty"));
    assert_stops(2, "neither a shape", find_source, (void *)joined(pickled, "absent.bin"));
    assert_stops(2, "scripts/get_data.sh gpt2 fetches GPT-2 as models/gpt2", find_source,
                 (void *)joined(pickled, "gpt2-xl"));
}

// ranks compare this hash
TEST(test_hash_covers_all_files) {
    const char *folder = model_folder("hashed", layout_of(DT_F32, "", 3, false, false));
    ModelFile file = model_open(folder);
    uint64_t before = hash_weights(1, &file.file);
    assert_true(hash_weights(1, &file.file) == before);
    const char *path = joined(folder, "model-00003-of-00003.safetensors");
    size_t bytes;
    const char *contents = read_file(path, &bytes), last = (char)(contents[bytes - 1] ^ 1);
    overwrite(path, (long)bytes - 1, &last, 1);
    assert_true(hash_weights(1, &file.file) != before);
    model_close(&file);
}

int main(void) {
    omp_set_num_threads(1);  // a forked child has none of its parent's threads
    return run_all_tests("model_file");
}
