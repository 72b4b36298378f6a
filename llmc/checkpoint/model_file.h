/*
A GPT-2 in files. Hugging Face's: the tensors in model.safetensors, or in several files that
model.safetensors.index.json names; the shape of the model in config.json. llm.c's: one .bin file (llmc_file.h).
defines: ModelFile, model_find, model_transposed, param_file_shape, model_tensor, model_weights_path, model_open,
         model_close

Tensors have the names of param_specs, in some files after "transformer.". Conv1D weights are (in, out) in Hugging
Face's files and (out, in) here: `transposed`. Vectors have one dimension. The vocabulary has no padding.
*/
#pragma once
#include "llmc/checkpoint/llmc_file.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/common/check.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/json_file.h"
#include "llmc/shapes/params.h"

// an open model
typedef struct {
    GPT2Config config;
    SafeTensors file;
    const char *prefix;  // "" or "transformer."
    bool out_in;         // the file's matmul weights are (out, in), as in llm.c's
} ModelFile;

static inline const SafeTensor *model_find(const ModelFile *model, const char *prefix, const char *name) {
    char full[2 * NAME_LENGTH];
    snprintf(full, sizeof full, "%s%s%s", prefix, model->prefix, name);
    return safetensors_find(&model->file, full);
}

// True if the file's table of a parameter is (in, out).
static inline bool model_transposed(const ModelFile *model, ParamId id) {
    return param_specs[id].transposed && !model->out_in;
}

// Stops at a config.json of another architecture. A missing key means GPT-2.
static inline void model_check_architecture(const cJSON *json, const char *path) {
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "model_type"));
    bool known = !type || strcmp(type, "gpt2") == 0;
    const cJSON *name;
    cJSON_ArrayForEach(name, cJSON_GetObjectItemCaseSensitive(json, "architectures")) {
        if (!known || !cJSON_IsString(name)) { continue; }
        type = name->valuestring;
        known = strncmp(type, "GPT2", 4) == 0;
    }
    if (!known) {
        input_error("'%s' describes a model of type %.60s, expected gpt2; this trainer knows no other architecture, so "
                    "give a GPT-2 with -e",
                    path, type);
    }
}

// Stops at a variant of GPT-2 that config.json can describe and this trainer lacks. A missing key means GPT-2's value.
// The five activations are transformers' names of one function, GELU approximated by tanh.
static inline void model_check_variant(const GPT2Config *c, const cJSON *json, const char *path) {
    enum { MOST_VALUES = 5 };
    char hidden[32];
    snprintf(hidden, sizeof hidden, "%lld", 4LL * c->channels);
    const char *const facts[][1 + MOST_VALUES] = {{"activation_function", "\"gelu_new\"", "\"gelu_pytorch_tanh\"",
                                                   "\"gelu_fast\"", "\"gelu_accurate\"", "\"gelu_python_tanh\""},
                                                  {"layer_norm_epsilon", "1e-05"},
                                                  {"n_inner", "null", hidden},
                                                  {"scale_attn_weights", "true"},
                                                  {"scale_attn_by_inverse_layer_idx", "false"},
                                                  {"add_cross_attention", "false"},
                                                  {"tie_word_embeddings", "true"}};
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, facts[i][0]);
        char *found = cJSON_PrintUnformatted(item);
        bool same = !found;
        for (int k = 1; k <= MOST_VALUES && facts[i][k]; k++) { same = same || strcmp(found, facts[i][k]) == 0; }
        if (!same) {
            input_error("'%s' has %.60s as \"%s\", expected GPT-2's own, %s; this trainer knows no other variant of "
                        "GPT-2, so give another model with -e",
                        path, found, facts[i][0], facts[i][1]);
        }
        cJSON_free(found);
    }
}

static inline void model_config_from_json(GPT2Config *c, const cJSON *json, const char *path) {
    const struct {
        const char *key;
        int *value;
    } numbers[] = {{"n_layer", &c->num_layers},
                   {"n_head", &c->num_heads},
                   {"n_embd", &c->channels},
                   {"n_positions", &c->max_seq_len},
                   {"vocab_size", &c->vocab_size}};
    model_check_architecture(json, path);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        *numbers[i].value = (int)json_whole(json, numbers[i].key, 1, MAX_CONFIG_NUMBER, path);
    }
    config_set_vocab(c, c->vocab_size);
    model_check_variant(c, json, path);
}

// The shape of a tensor in a file, a vector as one row. transposed: the file has it as (in, out).
static inline void param_file_shape(size_t shape[2], ParamId id, const GPT2Config *c, bool transposed) {
    size_t rows = param_used_rows(id, c), cols = param_cols(id, c);
    shape[0] = transposed ? cols : rows;
    shape[1] = transposed ? rows : cols;
}

// the tensor prefix + name of the file; stops if it is missing or its shape is not of the model's config
static inline const SafeTensor *model_tensor(const ModelFile *model, const char *prefix, ParamId id, int layer) {
    char name[NAME_LENGTH];
    size_t shape[2];
    param_name(name, sizeof name, id, layer);
    param_file_shape(shape, id, &model->config, model_transposed(model, id));
    const SafeTensor *t = model_find(model, prefix, name);
    if (!t) {
        input_error("'%s' has no tensor %s%s, which a model of %d layers needs; give a whole model and the config.json "
                    "that belongs to it, or give the folder, if the model is in several files",
                    model->file.path, prefix, name, model->config.num_layers);
    }
    bool vector = param_specs[id].rows == DIM_ONE && t->num_dims == 1 && t->shape[0] == shape[1];
    bool table = t->num_dims == 2 && t->shape[0] == shape[0] && t->shape[1] == shape[1];
    if (!vector && !table) {
        input_error("'%s': tensor %s%s has another shape than the model's %zu x %zu; give the config.json that belongs "
                    "to the file",
                    model->file.path, prefix, name, shape[0], shape[1]);
    }
    return t;
}

// stops unless the file has every tensor of the model's layers as numbers, and no further layer
static inline void model_check_tensors(const ModelFile *model) {
    const GPT2Config *c = &model->config;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, c); layer++) {
            safetensors_check_real(&model->file, model_tensor(model, "", (ParamId)id, layer));
        }
    }
    char name[NAME_LENGTH];
    param_name(name, sizeof name, FIRST_LAYER_PARAM, c->num_layers);
    if (model_find(model, "", name)) {
        input_error("'%s' has more layers than the %d of its config.json; give the config.json that belongs to it",
                    model->file.path, c->num_layers);
    }
}

static inline bool same_bytes(const SafeTensors *file, const SafeTensor *a, const SafeTensor *b) {
    unsigned char x[8192], y[sizeof x];
    uint64_t bytes = a->end - a->begin;
    bool same = a->dtype == b->dtype && bytes == b->end - b->begin;
    for (uint64_t at = 0, n; same && at < bytes; at += n) {
        n = bytes - at < sizeof x ? bytes - at : sizeof x;
        safetensors_read(file, a, at, x, n);
        safetensors_read(file, b, at, y, n);
        same = memcmp(x, y, n) == 0;
    }
    return same;
}

// Stops at a classifier that is not tied to the token embeddings. Some files store lm_head.weight as a copy of
// wte.weight.
static inline void model_check_tied(const ModelFile *model) {
    const SafeTensor *head = safetensors_find(&model->file, "lm_head.weight");
    if (head && !same_bytes(&model->file, head, model_find(model, "", "wte.weight"))) {
        input_error("'%s' has an lm_head.weight that is not its wte.weight, expected GPT-2's tied embeddings; give a "
                    "model that was trained with them",
                    model->file.path);
    }
}

// weights (PATH_LENGTH) = path. For a folder: its model.safetensors, or if that is missing, its
// model.safetensors.index.json.
static inline void model_weights_path(char *weights, const char *path) {
    char index[PATH_LENGTH];
    struct stat info;
    format_path(weights, "%s", path);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) { return; }
    format_path(weights, "%s/model.safetensors", path);
    format_path(index, "%s/model.safetensors.index.json", path);
    if (access(weights, F_OK) != 0 && access(index, F_OK) == 0) { format_path(weights, "%s", index); }
}

// opens a .safetensors file or an index, and the config.json next to it
static inline void model_open_hugging_face(ModelFile *model, const char *weights) {
    char config[PATH_LENGTH];
    const char *slash = strrchr(weights, '/');
    format_path(config, "%.*sconfig.json", slash ? (int)(slash - weights) + 1 : 0, weights);
    model->file = is_json_name(weights) ? safetensors_open_index(weights) : safetensors_open(weights);
    if (!model_find(model, "", "wte.weight")) { model->prefix = "transformer."; }
    cJSON *json = read_json(config);
    if (!json) {
        input_error("'%s' has no config.json next to it, expected the model's shape in Hugging Face's form; put a "
                    "config.json with n_head there",
                    weights);
    }
    model_config_from_json(&model->config, json, config);
    cJSON_Delete(json);
}

// Opens a folder of Hugging Face's, a .safetensors file, the index of several, or llm.c's model file. Stops unless all
// tensors of a GPT-2 are there. Close with model_close.
static inline ModelFile model_open(const char *path) {
    ModelFile model;
    char weights[PATH_LENGTH];
    memset(&model, 0, sizeof model);
    model.prefix = "";
    model_weights_path(weights, path);
    FileKindId kind = file_kind(weights)->id;
    // also a file that cannot be read: the open says why
    bool named = has_ending(weights, ".safetensors") || is_json_name(weights) || access(weights, R_OK) != 0;
    if (kind == FILE_LLMC_MODEL) {
        model.file = llmc_open(weights, &model.config);
        model.out_in = true;
    } else if (kind == FILE_SAFETENSORS || (kind == FILE_OTHER && named)) {
        model_open_hugging_face(&model, weights);
    } else {
        refuse_kind("-e", weights, "a GPT-2 in Hugging Face's or llm.c's format");
    }
    config_check(&model.config, weights);
    model_check_tensors(&model);
    model_check_tied(&model);
    return model;
}

static inline void model_close(ModelFile *model) { safetensors_close(&model->file); }
