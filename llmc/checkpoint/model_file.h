/*
A GPT-2 in files. Hugging Face's: the tensors in model.safetensors, or in several files that
model.safetensors.index.json names; the shape of the model in config.json. llm.c's: one .bin file.

Tensors have the names of param_specs, in many files after a prefix: "transformer.", torch.compile's "_orig_mod.",
"module." of data-parallel PyTorch. Conv1D weights are (in, out) in Hugging Face's files and (out, in) here:
`transposed`. The Linear weights of nanoGPT are (out, in). Vectors have one dimension. The vocabulary has no padding.
lm_head.weight may stand for wte.weight or repeat it: they are one matrix. Other tensors, such as the causal mask
attn.bias, are ignored, unless they change the output of the model.
llm.c's file (gpt2_124M.bin, gpt2_124M_bf16.bin, or model_00000100.bin), little-endian:
  256 int32    20240326, version, maxT, V, L, NH, C, Vp, zeros. Version 3: all tensors are F32; 5: BF16
  the rest     the tensors in the order of ParamId, each with all its layers: wte (Vp,C), wpe (maxT,C), ln1w (L,C), ...
Vp is V rounded up; the extra rows of wte are zeros. Matmul weights are (out, in), as in memory. model_state.h writes
such a file.
*/
#pragma once
#include "llmc/activation.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/json_file.h"
#include "llmc/ops.h"
#include "llmc/shapes/params.h"

// Stops unless this trainer computes GELU: a llm.c or GGUF file has no place for another activation's name.
static inline void require_gelu(const char *path) {
    if (MLP_ACTIVATION != GELU) {
        input_error("'%s' means a model with GELU to every program, and this trainer computes %s; use a folder in "
                    "Hugging Face's form, whose config.json names the activation",
                    path, activation_names[MLP_ACTIVATION][1]);
    }
}

// ---- llm.c's model file

enum { LLMC_HEADER_INTS = 256, LLMC_FP32 = 3, LLMC_BF16 = 5 };

// stops unless the header is of a GPT-2; returns its Vp and in *c the other sizes
static inline int require_llmc_header(GPT2Config *c, const int32_t header[LLMC_HEADER_INTS], const char *path) {
    static const char *const names[] = {"positions", "tokens", "layers", "heads", "channels", "padded tokens"};
    require_gelu(path);
    if (header[1] != LLMC_FP32 && header[1] != LLMC_BF16) {
        input_error("'%s' is an llm.c model of version %d, expected %d (fp32) or %d (bf16); write it again with "
                    "today's llm.c",
                    path, header[1], LLMC_FP32, LLMC_BF16);
    }
    for (int i = 2; i < 8; i++) {
        int min = i == 7 ? header[3] : 1;
        if (header[i] < min || header[i] > MAX_CONFIG_NUMBER) {
            input_error("'%s' has %d %s in its header, expected %d to %d; copy or make the file again", path, header[i],
                        names[i - 2], min, MAX_CONFIG_NUMBER);
        }
    }
    const GPT2Config found = {header[2], 0, 0, header[4], header[5], header[6]};
    *c = found;
    config_set_vocab(c, header[3]);
    require_valid_shape(c, path);
    return header[7];
}

// Opens a model file of llm.c as a table of tensors, and fills *c. Stops unless it has the length that its header says.
static inline SafeTensors llmc_open(const char *path, GPT2Config *c) {
    SafeTensors st;
    struct stat info;
    int32_t header[LLMC_HEADER_INTS];
    memset(&st, 0, sizeof st);
    st.path = xstrdup(path);
    st.fd = open_regular(path, &info);
    int error = st.fd < 0 ? errno : read_exact(st.fd, header, sizeof header, 0);
    if (error) { input_error("'%s' could not be read: %s; copy it again", path, read_error(error)); }
    int Vp = require_llmc_header(c, header, path);
    DType dtype = header[1] == LLMC_BF16 ? DT_BF16 : DT_F32;
    st.data_start = sizeof header;
    uint64_t size = dtype_size(dtype), padding = (uint64_t)(Vp - c->vocab_size) * (uint64_t)c->channels, at = 0;
    uint64_t expected = sizeof header + (num_parameters(c) + padding) * size;
    if ((uint64_t)info.st_size != expected) {
        input_error("'%s' is %lld bytes long, expected %" PRIu64 " for its %d layers, %d channels, %d positions and %d "
                    "padded tokens in %s; copy or make the file again",
                    path, (long long)info.st_size, expected, c->num_layers, c->channels, c->max_seq_len, Vp,
                    dtype_name(dtype));
    }
    st.tensors = (SafeTensor *)xcalloc((size_t)num_param_tensors(c->num_layers), sizeof *st.tensors);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        for (int layer = 0; layer < param_layers(id, c); layer++) {
            char name[NAME_LENGTH];
            SafeTensor *t = &st.tensors[st.num_tensors++];
            param_name(name, sizeof name, id, layer);
            t->name = xstrdup(name);
            t->dtype = dtype;
            t->num_dims = 2;
            t->shape[0] = param_used_rows(id, c);
            t->shape[1] = param_cols(id, c);
            t->begin = at;
            at = t->end = at + t->shape[0] * t->shape[1] * size;
        }
        if (id == WTE) { at += padding * size; }  // belongs to no tensor
    }
    st_sort_by_name(&st);
    return st;
}

// ---- a model in either form

// an open model
typedef struct {
    GPT2Config config;
    SafeTensors file;
    bool out_in;   // the file's matmul weights are (out, in), as in llm.c's and nanoGPT's
    int bos, eos;  // bos_token_id and eos_token_id of config.json; -1: none is given
} ModelFile;

static inline const SafeTensor *model_find(const ModelFile *model, const char *prefix, const char *name) {
    char full[2 * NAME_LENGTH];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return safetensors_find(&model->file, full);
}

// True if the file's table of a parameter is (in, out).
static inline bool model_transposed(const ModelFile *model, ParamId id) {
    return param_specs[id].transposed && !model->out_in;
}

// Stops unless config.json names the activation that this trainer computes. Without the key it means transformers'
// default.
static inline void require_same_activation(const cJSON *json, const char *path) {
    const cJSON *item = json_get(json, "activation_function");
    const char *const *names = activation_names[MLP_ACTIVATION], *found = item ? item->valuestring : "gelu_new";
    for (int i = 1; found && i < MAX_ACTIVATION_NAMES && names[i]; i++) {
        if (strcmp(found, names[i]) == 0) { return; }
    }
    char *value = cJSON_PrintUnformatted(item);
    input_error("'%s' has %.60s as \"activation_function\", expected \"%s\", which this trainer computes; give such a "
                "model with -e",
                path, value ? value : "no value", names[1]);
}

// Stops at another architecture, or at a variant of GPT-2 that config.json can describe and this trainer lacks. A
// missing key means GPT-2's value.
static inline void require_supported_variant(const cJSON *json, const char *path) {
    enum { MAX_VALUES = 2 };
    char hidden[32];
    snprintf(hidden, sizeof hidden, "%.0f", 4 * cJSON_GetNumberValue(json_get(json, "n_embd")));
    const char *const facts[][1 + MAX_VALUES] = {{"model_type", "\"gpt2\""},
                                                 {"layer_norm_epsilon", "1e-05"},
                                                 {"n_inner", "null", hidden},
                                                 {"scale_attn_weights", "true"},
                                                 {"scale_attn_by_inverse_layer_idx", "false"},
                                                 {"add_cross_attention", "false"},
                                                 {"tie_word_embeddings", "true"}};
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        char *found = cJSON_PrintUnformatted(json_get(json, facts[i][0]));
        bool same = !found;
        for (int k = 1; k <= MAX_VALUES && facts[i][k]; k++) { same = same || strcmp(found, facts[i][k]) == 0; }
        if (!same) {
            input_error("'%s' has %.60s as \"%s\", expected GPT-2's own, %s; this trainer knows no other architecture, "
                        "so give a GPT-2 with -e",
                        path, found, facts[i][0], facts[i][1]);
        }
        cJSON_free(found);
    }
    require_same_activation(json, path);
}

// The shape of a tensor in a file, a vector as one row. transposed: the file has it as (in, out).
static inline void param_file_shape(size_t shape[2], ParamId id, const GPT2Config *c, bool transposed) {
    size_t rows = param_used_rows(id, c), cols = param_cols(id, c);
    shape[0] = transposed ? cols : rows;
    shape[1] = transposed ? rows : cols;
}

// Returns the tensor prefix + name of the file. Stops if it is missing or its shape does not fit the model's config.
static inline const SafeTensor *model_tensor(const ModelFile *model, const char *prefix, ParamId id, int layer) {
    char name[NAME_LENGTH];
    size_t shape[2];
    param_name(name, sizeof name, id, layer);
    param_file_shape(shape, id, &model->config, model_transposed(model, id));
    const SafeTensor *t = model_find(model, prefix, name);
    if (!t) {
        input_error("'%s' has no tensor %s%s%s, which a model of %d layers needs; give a whole model and the "
                    "config.json that belongs to it, or the folder, if the model is in several files; a model "
                    "without biases needs zeros in their place",
                    model->file.path, prefix, name, model->file.num_shards ? " in the files that it names" : "",
                    model->config.num_layers);
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

// Stops at a tensor that the model's layers lack, as of an adapter or a further layer: it would change the output.
static inline void refuse_more_in_layers(const SafeTensors *file, int num_layers) {
    for (int i = 0; i < file->num_tensors; i++) {
        char name[NAME_LENGTH];
        const char *found = file->tensors[i].name;
        bool known =
            strncmp(found, "h.", 2) != 0 || has_ending(found, ".attn.bias") || has_ending(found, "masked_bias");
        for (int id = 0; !known && id < NUM_PARAM_TENSORS; id++) {
            int layer = atoi(found + 2);
            param_name(name, sizeof name, (ParamId)id, layer);
            known = layer < num_layers && strcmp(name, found) == 0;
        }
        if (known) { continue; }
        input_error("'%s' has a tensor %.100s, which a GPT-2 of the %d layers in config.json lacks; give the "
                    "config.json that belongs to the file, or merge an adapter into the weights first "
                    "(merge_and_unload)",
                    file->path, found, num_layers);
    }
}

// stops unless the file has every tensor of the model's layers as numbers, and no further layer
static inline void require_tensors(const ModelFile *model) {
    const GPT2Config *c = &model->config;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, c); layer++) {
            require_real(&model->file, model_tensor(model, "", (ParamId)id, layer));
        }
    }
    refuse_more_in_layers(&model->file, c->num_layers);
}

// weights (PATH_LENGTH) = path; in a folder its model.safetensors, or else its model.safetensors.index.json
static inline void model_weights_path(char *weights, const char *path) {
    char index[PATH_LENGTH];
    struct stat info;
    format_path(weights, "%s", path);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) { return; }
    format_path(weights, "%s/model.safetensors", path);
    format_path(index, "%s/model.safetensors.index.json", path);
    if (access(weights, F_OK) != 0 && access(index, F_OK) == 0) { format_path(weights, "%s", index); }
}

// Returns a token id of config.json, the first if there are several, or -1 if that is not within the vocabulary.
static inline int config_token_id(const cJSON *json, const char *key, int vocab_size) {
    const cJSON *item = json_get(json, key);
    if (cJSON_IsArray(item)) { item = cJSON_GetArrayItem(item, 0); }
    return cJSON_IsNumber(item) && item->valueint >= 0 && item->valueint < vocab_size ? item->valueint : -1;
}

// Returns the tensor called `name`, with or without a prefix, or NULL. Stops if there are several.
static inline const SafeTensor *find_after_prefix(const SafeTensors *file, const char *name) {
    char ending[NAME_LENGTH];
    const SafeTensor *found = safetensors_find(file, name);
    snprintf(ending, sizeof ending, ".%s", name);
    for (int i = 0; i < file->num_tensors; i++) {
        if (!has_ending(file->tensors[i].name, ending)) { continue; }
        if (found) {
            input_error("'%s' holds several models: it has %.100s and %.100s; give a file with one of them", file->path,
                        found->name, file->tensors[i].name);
        }
        found = &file->tensors[i];
    }
    return found;
}

// Stops if lm_head.weight differs from wte.weight, with which GPT-2 ties it.
static inline void require_tied_head(const SafeTensors *file, const SafeTensor *wte, const SafeTensor *head) {
    char table[1 << 14], output[sizeof table];
    uint64_t bytes = wte->end - wte->begin;
    bool same = head->dtype == wte->dtype && head->end - head->begin == bytes;
    for (uint64_t at = 0; same && at < bytes; at += sizeof table) {
        size_t count = bytes - at < sizeof table ? (size_t)(bytes - at) : sizeof table;
        safetensors_read(file, wte, at, table, count);
        safetensors_read(file, head, at, output, count);
        same = memcmp(table, output, count) == 0;
    }
    if (!same) {
        input_error("'%s': %.100s differs from %.100s, and GPT-2 ties the two; give a model with tied embeddings",
                    file->path, head->name, wte->name);
    }
}

// Removes the prefix of wpe.weight from all names. lm_head.weight becomes wte.weight if the file has none.
static inline void model_rename_tensors(SafeTensors *file) {
    const SafeTensor *wpe = find_after_prefix(file, "wpe.weight"), *wte = find_after_prefix(file, "wte.weight");
    const SafeTensor *head = wte ? NULL : find_after_prefix(file, "lm_head.weight"), *any = wpe ? wpe : wte;
    if (head) { memcpy(head->name, "wte.weight", sizeof "wte.weight"); }
    size_t length = any ? strlen(any->name) - strlen("wpe.weight") : 0;
    char *prefix = xstrdup(any ? any->name : "");
    for (int i = 0; length > 0 && i < file->num_tensors; i++) {
        char *name = file->tensors[i].name;
        if (strncmp(name, prefix, length) == 0) { memmove(name, name + length, strlen(name + length) + 1); }
    }
    free(prefix);
    st_sort_by_name(file);
}

// opens a .safetensors file or an index, and the config.json next to it
static inline void model_open_hugging_face(ModelFile *model, const char *weights) {
    char config[PATH_LENGTH];
    const char *slash = strrchr(weights, '/');
    format_path(config, "%.*sconfig.json", slash ? (int)(slash - weights) + 1 : 0, weights);
    model->file = has_ending(weights, ".json") ? safetensors_open_index(weights) : safetensors_open(weights);
    model_rename_tensors(&model->file);
    cJSON *json = read_json(config);
    if (json) { require_supported_variant(json, config); }
    const SafeTensor *wte = model_find(model, "", "wte.weight");
    const SafeTensor *head = find_after_prefix(&model->file, "lm_head.weight");
    if (wte && head) { require_tied_head(&model->file, wte, head); }
    if (!json) {
        input_error("'%s' has no config.json next to it, expected the model's shape in Hugging Face's form; put a "
                    "config.json with n_head there",
                    weights);
    }
    GPT2Config *c = &model->config;
    const struct {
        const char *key;
        int *value;
    } numbers[] = {{"n_layer", &c->num_layers},
                   {"n_head", &c->num_heads},
                   {"n_embd", &c->channels},
                   {"n_positions", &c->max_seq_len},
                   {"vocab_size", &c->vocab_size}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        *numbers[i].value = (int)json_whole(json, numbers[i].key, 1, MAX_CONFIG_NUMBER, config);
    }
    config_set_vocab(c, c->vocab_size);
    model->bos = config_token_id(json, "bos_token_id", c->vocab_size);
    model->eos = config_token_id(json, "eos_token_id", c->vocab_size);
    cJSON_Delete(json);
    const SafeTensor *qkv = model_find(model, "", "h.0.attn.c_attn.weight");  // (C,3C), or nanoGPT's (3C,C)
    model->out_in = qkv && qkv->num_dims == 2 && qkv->shape[0] == 3 * (size_t)c->channels;
}

// Opens a folder of Hugging Face's, a .safetensors file, the index of several, or llm.c's model file. Stops unless all
// tensors of a GPT-2 are there. Close with model_close.
static inline ModelFile model_open(const char *path) {
    ModelFile model;
    char weights[PATH_LENGTH];
    memset(&model, 0, sizeof model);
    model.bos = model.eos = -1;
    model_weights_path(weights, path);
    int kind = file_kind(weights);
    // also a file that cannot be read: the open says why
    bool named = has_ending(weights, ".safetensors") || has_ending(weights, ".json") || access(weights, R_OK) != 0;
    if (kind == FILE_LLMC_MODEL) {
        model.file = llmc_open(weights, &model.config);
        model.out_in = true;
    } else if (kind == FILE_SAFETENSORS || named) {
        model_open_hugging_face(&model, weights);
    } else {
        refuse_kind("-e", weights, EXPECTED_MODEL);
    }
    require_valid_shape(&model.config, weights);
    require_tensors(&model);
    return model;
}

static inline void model_close(ModelFile *model) { safetensors_close(&model->file); }
