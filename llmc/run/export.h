/*
--export: writes the model in -e as one file for another program.
defines: export_model

gguf      for llama.cpp: architecture gpt2, with the tokenizer in the file. llama.cpp reuses token_embd.weight as the
          classifier, so the file has no output.weight. Weights are (out, in). Matrices have the type of --type; the
          position embedding and vectors stay f32, as in files of llama.cpp's converter. A matrix whose rows are no
          multiple of 32 is f16 in a q8_0 file.
llmc      llm.c's model file, fp32 or bf16 (llmc_model.h); it has no tokenizer.
Tokens    A token's name is its symbol in vocab.json. Ids beyond the tokenizer are named [PAD50257] and unused.
Bytes     A byte model has the 256 symbols of bytes, in the order of the bytes, and no merges: llama.cpp then maps each
          byte of a text in UTF-8 to its id. A text begins with a newline, as in --generate. llama.cpp stops at the
          end-of-text token, which is byte 0: a newline would stop every text after one line.
*/
#pragma once
#include "llmc/files/llmc_model.h"
#include "llmc/files/tokenizer_files.h"
#include "llmc/run/model_source.h"
#include "llmc/run/text.h"

static const char *const gguf_tensor_names[NUM_PARAM_TENSORS] = {
    "token_embd.weight", "position_embd.weight", "attn_norm.weight",   "attn_norm.bias",
    "attn_qkv.weight",   "attn_qkv.bias",        "attn_output.weight", "attn_output.bias",
    "ffn_norm.weight",   "ffn_norm.bias",        "ffn_up.weight",      "ffn_up.bias",
    "ffn_down.weight",   "ffn_down.bias",        "output_norm.weight", "output_norm.bias"};

// in the order of ExportType: the type of matrices, and llama.cpp's number of such a file
static const struct {
    GgufType type;
    uint32_t file_type;
} gguf_file_types[] = {{GGUF_F32, 0}, {GGUF_F32, 0}, {GGUF_F16, 1}, {GGUF_BF16, 32}, {GGUF_Q8_0, 7}};

// --type. auto is the type of the weights; llm.c's file has no f16, so that F16 weights become f32.
static inline ExportType export_type(const TrainArgs *a, const ModelFile *model) {
    DType stored = model_tensor(model, "", WTE, 0)->dtype;
    if (a->export_type != EXPORT_AUTO) { return (ExportType)a->export_type; }
    if (stored == DT_BF16) { return EXPORT_BF16; }
    return stored == DT_F16 && a->export_format == EXPORT_GGUF ? EXPORT_F16 : EXPORT_F32;
}

// the type of one tensor in a file of type `type`
static inline GgufType export_tensor_type(ParamId id, const GPT2Config *c, GgufType type) {
    if (id == WPE || param_specs[id].rows == DIM_ONE) { return GGUF_F32; }
    return type == GGUF_Q8_0 && param_cols(id, c) % GGUF_BLOCK != 0 ? GGUF_F16 : type;
}

// ---- keys

// the last component of a path, which loses the slashes at its end
static inline const char *last_component(char *path) {
    for (size_t end = strlen(path); end > 1 && path[end - 1] == '/'; end--) { path[end - 1] = 0; }
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// whether files or folders of every model have this name
static inline bool is_usual_name(const char *name) {
    static const char *const usual[] = {".", "best", "model.safetensors", "model.safetensors.index.json"};
    bool found = checkpoint_step(name, "") >= 0;
    for (int i = 0; i < 4; i++) { found = found || strcmp(name, usual[i]) == 0; }
    return found;
}

// name (PATH_LENGTH) = the last component of the path -e that is the model's own: "mine" of runs/mine, of
// mine/model.safetensors and of runs/mine/step_00000500
static inline void export_model_name(char *name, const char *path) {
    char at[PATH_LENGTH], here[PATH_LENGTH];
    bool relative = *path != '/' && getcwd(here, sizeof here);
    format_path(at, "%s%s%s", relative ? here : "", relative ? "/" : "", path);
    const char *last = last_component(at);
    while (is_usual_name(last) && last > at + 1) {
        at[last - at - 1] = 0;
        last = last_component(at);
    }
    format_path(name, "%s", last);
}

static inline void export_gguf_keys(GgufWriter *w, const TrainArgs *a, const GPT2Config *c, ExportType type) {
    char name[PATH_LENGTH];
    export_model_name(name, a->model);
    gguf_key_string(w, "general.architecture", "gpt2");
    gguf_key_string(w, "general.type", "model");
    gguf_key_string(w, "general.name", name);
    gguf_key_u32(w, "gpt2.block_count", (uint32_t)c->num_layers);
    gguf_key_u32(w, "gpt2.context_length", (uint32_t)c->max_seq_len);
    gguf_key_u32(w, "gpt2.embedding_length", (uint32_t)c->channels);
    gguf_key_u32(w, "gpt2.feed_forward_length", 4 * (uint32_t)c->channels);
    gguf_key_u32(w, "gpt2.attention.head_count", (uint32_t)c->num_heads);
    gguf_key_f32(w, "gpt2.attention.layer_norm_epsilon", 1e-5f);
    gguf_key_u32(w, "general.file_type", gguf_file_types[type].file_type);
    gguf_key_u32(w, "general.quantization_version", 2);
}

static inline void export_gguf_tokens(GgufWriter *w, const Tokenizer *t, int vocab_size) {
    enum { NORMAL = 1, CONTROL = 3, UNUSED = 5 };  // llama.cpp's token types
    char symbol[2 * TOKENIZER_MAX_TOKEN_BYTES];
    gguf_key_array(w, "tokenizer.ggml.tokens", GGUF_VALUE_STRING, (uint64_t)vocab_size);
    for (int id = 0; id < vocab_size; id++) {
        bool padding = id >= tokenizer_vocab_size(t);
        size_t length =
            padding ? (size_t)snprintf(symbol, sizeof symbol, "[PAD%d]", id) : tokenizer_symbol(t, id, symbol);
        gguf_put_string(w, symbol, length);
    }
    gguf_key_array(w, "tokenizer.ggml.token_type", GGUF_VALUE_I32, (uint64_t)vocab_size);
    for (int id = 0; id < vocab_size; id++) {
        bool end_of_text = t->merges && id == t->end_of_text;
        int32_t type = id >= tokenizer_vocab_size(t) ? UNUSED : end_of_text ? CONTROL : NORMAL;
        gguf_put(w, &type, sizeof type);
    }
}

// an array of "left right" in the order of the ids; empty for bytes
static inline void export_gguf_merges(GgufWriter *w, const Tokenizer *t) {
    char line[4 * TOKENIZER_MAX_TOKEN_BYTES + 1];
    int end = t->merges ? t->end_of_text : 256;
    uint64_t *of_id = t->merges ? tokenizer_merges_by_id(t) : NULL;
    gguf_key_array(w, "tokenizer.ggml.merges", GGUF_VALUE_STRING, (uint64_t)end - 256);
    for (int id = 256; id < end; id++) {
        size_t length = tokenizer_symbol(t, (int)(of_id[id] >> 48), line);
        line[length++] = ' ';
        length += tokenizer_symbol(t, (int)(of_id[id] >> 32 & 0xFFFF), line + length);
        gguf_put_string(w, line, length);
    }
    free(of_id);
}

static inline void export_gguf_tokenizer(GgufWriter *w, const Tokenizer *t, int vocab_size) {
    gguf_key_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_key_string(w, "tokenizer.ggml.pre", "gpt-2");
    export_gguf_tokens(w, t, vocab_size);
    export_gguf_merges(w, t);
    gguf_key_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)t->end_of_text);
    gguf_key_u32(w, "tokenizer.ggml.eos_token_id", t->merges ? (uint32_t)t->end_of_text : 0);
    gguf_key_bool(w, "tokenizer.ggml.add_bos_token", false);
}

// ---- tensors

static inline void export_gguf_declare(GgufWriter *w, const GPT2Config *c, ParamId id, int layer, GgufType type) {
    char name[NAME_LENGTH], block[32] = "";
    if (param_is_layered(id)) { snprintf(block, sizeof block, "blk.%d.", layer); }
    snprintf(name, sizeof name, "%s%s", block, gguf_tensor_names[id]);
    gguf_declare(w, name, export_tensor_type(id, c, type), param_specs[id].rows == DIM_ONE ? 1 : 2,
                 param_used_rows(id, c), param_cols(id, c));
}

static inline void export_gguf_tensors(GgufWriter *w, const ModelFile *model, GgufType type) {
    const GPT2Config *c = &model->config;
    ParamLayout layout = param_layout(c);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        for (int layer = 0; layer < param_layers(id, c); layer++) { export_gguf_declare(w, c, id, layer, type); }
    }
    gguf_begin(w);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        GgufType in_file = export_tensor_type(id, c, type);
        for (int layer = 0; layer < param_layers(id, c); layer++) {
            write_tensor(&w->out, model, id, layer, &layout, in_file);
            gguf_end_tensor(w);
        }
    }
}

// ---- the mode

// Stops unless -o can be replaced: there is no such file, or it begins as a file of this format does.
static inline void export_check_path(const TrainArgs *a) {
    const int32_t magic[2] = {GGUF_MAGIC, LLMC_MAGIC};
    bool gguf = a->export_format == EXPORT_GGUF;
    int32_t found = 0;
    struct stat info;
    if (stat(a->run_dir, &info) != 0) { return; }
    FILE *file = S_ISREG(info.st_mode) ? fopen(a->run_dir, "rb") : NULL;
    bool replaces = file && fread(&found, sizeof found, 1, file) == 1 && found == magic[gguf ? 0 : 1];
    if (file) { fclose(file); }
    if (!replaces) {
        input_error("-o %s exists and is no %s, expected the name of a new file; give another name", a->run_dir,
                    gguf ? "GGUF file" : "model file of llm.c");
    }
}

static inline Tokenizer export_tokenizer(const TrainArgs *a, int vocab_size) {
    Tokenizer tokenizer;
    if (!find_tokenizer(&tokenizer, a, vocab_size)) {
        input_error("--export gguf puts the tokenizer into the file, and a model of %d tokens needs one: %s",
                    vocab_size, tokenizer_advice(vocab_size));
    }
    return tokenizer;
}

static inline void export_report(const TrainArgs *a, const GPT2Config *c, ExportType type, double bytes) {
    char word[FLAG_TEXT];
    flag_choice_text(EXPORT_TYPE_CHOICES, (int)type, word);
    printf("%s: %.1fM parameters as %s, %d tokens, %.1f MB\n", a->run_dir, (double)num_parameters(c) / 1e6, word,
           c->vocab_size, bytes / 1e6);
}

// Opens -o under the name that it has until it is whole.
static inline PartFile export_open(const TrainArgs *a) {
    PartFile file = part_open(a->run_dir);
    if (file.error) {
        input_error("-o %s could not be written: %s; give a file in a folder that exists and may be written",
                    a->run_dir, strerror(file.error));
    }
    return file;
}

// syncs the folder of -o; returns 0 or an errno
static inline int export_sync_folder(const TrainArgs *a) {
    char folder[PATH_LENGTH];
    folder_beside(folder, a->run_dir);
    return sync_folder(folder);
}

// Stops if -o is not on the disk. error: the errno of its last step.
static inline void export_close(const TrainArgs *a, int error) {
    if (error) {
        run_error("could not write '%s': %s; the unfinished file is deleted: %s, then export again", a->run_dir,
                  strerror(error), error == ENOSPC || error == EDQUOT || error == EFBIG ? "make room" : "fix that");
    }
    error = export_sync_folder(a);
    if (error && error != EACCES) {  // a folder may be writable and not readable
        run_error("'%s' is written, but its folder could not be synced: %s; check the disk, then export again",
                  a->run_dir, strerror(error));
    }
}

// -o = the model in GGUF
static inline void export_gguf(const TrainArgs *a, const ModelFile *model) {
    const GPT2Config *c = &model->config;
    Tokenizer tokenizer = export_tokenizer(a, c->vocab_size);
    ExportType type = export_type(a, model);
    GgufWriter w = gguf_create(export_open(a));
    export_gguf_keys(&w, a, c, type);
    export_gguf_tokenizer(&w, &tokenizer, c->vocab_size);
    export_gguf_tensors(&w, model, gguf_file_types[type].type);
    export_close(a, gguf_finish(&w));
    export_report(a, c, type, (double)w.out.position);
    tokenizer_free(&tokenizer);
}

// -o = the model in llm.c's format
static inline void export_to_llmc(const TrainArgs *a, const ModelFile *model) {
    ExportType type = export_type(a, model);
    if (type != EXPORT_F32 && type != EXPORT_BF16) {
        input_error("--export llmc: llm.c's model files are f32 or bf16; give --type f32 or --type bf16");
    }
    PartFile out = export_open(a);
    llmc_write_model(&out, model, type == EXPORT_F32 ? DT_F32 : DT_BF16);
    export_close(a, part_finish(&out));
    export_report(a, &model->config, type, (double)out.position);
}

// --export
static inline void export_model(const TrainArgs *a) {
    ModelSource source = model_source(a, BYTE_VOCABULARY);
    if (!source.has_weights) {
        input_error("--export needs trained weights, but -e %s only describes a shape; give a folder or a model's file",
                    a->model);
    }
    export_check_path(a);
    if (a->export_format == EXPORT_GGUF) {
        export_gguf(a, &source.weights);
    } else {
        export_to_llmc(a, &source.weights);
    }
    model_close(&source.weights);
}
