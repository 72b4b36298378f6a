/*
--export: writes the model in -e as one file for another program. Weights keep their type.

gguf      for llama.cpp: architecture gpt2, with the tokenizer in the file. llama.cpp reuses token_embd.weight as the
          classifier, so the file has no output.weight. Weights are (out, in). The position embedding and vectors are
          F32, as in files of llama.cpp's converter, and so are weights stored as F64.
llmc      llm.c's model file: BF16 if all weights are, else F32. It has no tokenizer.
Tokens    A token's name is its symbol in vocab.json. Ids without a token are named [PAD50257] and unused. The end token
          is the eos_token_id of the model's config.json, if it has one.
Bytes     A byte model has the 256 symbols of bytes, in the order of the bytes, and no merges: llama.cpp then maps each
          byte of a text in UTF-8 to its id. A text begins with a newline, as in --generate. llama.cpp stops at the
          end-of-text token, which is byte 0: a newline would stop every text after one line.
*/
#pragma once
#include "llmc/checkpoint/gguf.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/checkpoint/model_state.h"
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/floatx.h"
#include "llmc/common/progress.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/model_source.h"
#include "llmc/run/text.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/layout.h"
#include "llmc/shapes/params.h"

static const char *const gguf_tensor_names[NUM_PARAM_TENSORS] = {
    "token_embd.weight", "position_embd.weight", "attn_norm.weight",   "attn_norm.bias",
    "attn_qkv.weight",   "attn_qkv.bias",        "attn_output.weight", "attn_output.bias",
    "ffn_norm.weight",   "ffn_norm.bias",        "ffn_up.weight",      "ffn_up.bias",
    "ffn_down.weight",   "ffn_down.bias",        "output_norm.weight", "output_norm.bias"};

static inline DType gguf_dtype(const ModelFile *model, ParamId id, int layer) {
    DType stored = model_tensor(model, "", id, layer)->dtype;
    bool keeps = id != WPE && param_specs[id].rows != DIM_ONE && (stored == DT_BF16 || stored == DT_F16);
    return keeps ? stored : DT_F32;
}

// ---- keys

static inline void export_gguf_keys(GgufWriter *w, const TrainArgs *a, const ModelFile *model) {
    const GPT2Config *c = &model->config;
    const char *slash = strrchr(a->model, '/');
    const float epsilon = 1e-5f;
    DType dtype = gguf_dtype(model, WTE, 0);
    gguf_key_string(w, "general.architecture", "gpt2");
    gguf_key_string(w, "general.type", "model");
    gguf_key_string(w, "general.name", slash && slash[1] ? slash + 1 : a->model);
    gguf_key_u32(w, "gpt2.block_count", (uint32_t)c->num_layers);
    gguf_key_u32(w, "gpt2.context_length", (uint32_t)c->max_seq_len);
    gguf_key_u32(w, "gpt2.embedding_length", (uint32_t)c->channels);
    gguf_key_u32(w, "gpt2.feed_forward_length", 4 * (uint32_t)c->channels);
    gguf_key_u32(w, "gpt2.attention.head_count", (uint32_t)c->num_heads);
    gguf_put_key(w, "gpt2.attention.layer_norm_epsilon", GGUF_VALUE_F32);
    part_put(&w->out, &epsilon, sizeof epsilon);
    gguf_key_u32(w, "general.file_type", dtype == DT_F32 ? 0 : dtype == DT_F16 ? 1 : 32);  // llama.cpp's numbers
    gguf_key_u32(w, "general.quantization_version", 2);
}

static inline void export_gguf_tokens(GgufWriter *w, const Tokenizer *t, int vocab_size) {
    enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };  // llama.cpp's token types
    char symbol[2 * TOKENIZER_MAX_TOKEN_BYTES];
    gguf_key_array(w, "tokenizer.ggml.tokens", GGUF_VALUE_STRING, (uint64_t)vocab_size);
    for (int id = 0; id < vocab_size; id++) {
        size_t length = tokenizer_symbol(t, id, symbol);
        if (length == 0) { length = (size_t)snprintf(symbol, sizeof symbol, "[PAD%d]", id); }
        gguf_put_string(w, symbol, length);
    }
    gguf_key_array(w, "tokenizer.ggml.token_type", GGUF_VALUE_I32, (uint64_t)vocab_size);
    for (int id = 0; id < vocab_size; id++) {
        int kind = id < t->vocab_size ? t->kind[id] : 0;
        bool unused = id >= t->vocab_size || t->start[id + 1] == t->start[id];
        gguf_put_u32(w, unused ? UNUSED : kind & TOKEN_SPECIAL ? CONTROL : kind ? USER_DEFINED : NORMAL);
    }
}

// an array of "left right", the first merge first; empty for bytes
static inline void export_gguf_merges(GgufWriter *w, const Tokenizer *t) {
    char line[4 * TOKENIZER_MAX_TOKEN_BYTES + 1];
    uint64_t *by_rank = t->merges ? tokenizer_merges_by_rank(t) : NULL;
    gguf_key_array(w, "tokenizer.ggml.merges", GGUF_VALUE_STRING, (uint64_t)t->num_merges);
    for (int r = 0; r < t->num_merges; r++) { gguf_put_string(w, line, tokenizer_merge_line(t, by_rank[r], line)); }
    free(by_rank);
}

static inline void export_gguf_tokenizer(GgufWriter *w, const Tokenizer *t, const ModelFile *model) {
    int vocab_size = model->config.vocab_size, bos = t->end_of_text, eos = t->merges ? bos : 0;
    if (t->merges && model->bos >= 0 && model->bos < t->vocab_size) { bos = model->bos; }
    if (t->merges && model->eos >= 0 && model->eos < t->vocab_size) { eos = model->eos; }
    gguf_key_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_key_string(w, "tokenizer.ggml.pre", "gpt-2");
    export_gguf_tokens(w, t, vocab_size);
    export_gguf_merges(w, t);
    gguf_key_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
    gguf_key_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    gguf_put_key(w, "tokenizer.ggml.add_bos_token", GGUF_VALUE_BOOL);
    part_put(&w->out, "\0", 1);
}

// ---- tensors

static inline void export_gguf_tensors(GgufWriter *w, const ModelFile *model) {
    const GPT2Config *c = &model->config;
    ParamLayout layout = param_layout(c);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        for (int layer = 0; layer < param_layers(id, c); layer++) {
            char name[NAME_LENGTH], block[32] = "";
            if (param_is_layered(id)) { snprintf(block, sizeof block, "blk.%d.", layer); }
            snprintf(name, sizeof name, "%s%s", block, gguf_tensor_names[id]);
            gguf_declare(w, name, gguf_dtype(model, id, layer), param_specs[id].rows == DIM_ONE ? 1 : 2,
                         param_used_rows(id, c), param_cols(id, c));
        }
    }
    gguf_begin(w);
    int written = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        for (int layer = 0; layer < param_layers(id, c); layer++) {
            write_tensor(&w->out, model, id, layer, &layout, gguf_dtype(model, id, layer));
            gguf_end_tensor(w);
            progress_show("--export", ++written, num_param_tensors(c->num_layers));
        }
    }
}

// ---- the mode

// Opens -o.part, which gets the name -o when it is whole. -o may be new, or a file of the same format.
static inline PartFile export_open(const TrainArgs *a, int kind) {
    require_gelu(a->run_dir);
    if (access(a->run_dir, F_OK) == 0 && file_kind(a->run_dir) != kind) {
        input_error("-o %s exists and is no %s, expected the name of a new file; give another name", a->run_dir,
                    kind == FILE_GGUF ? "GGUF file" : "model file of llm.c");
    }
    PartFile file = part_open(a->run_dir);
    if (file.error) {
        input_error("-o %s could not be written: %s; give a file in a folder that exists and may be written",
                    a->run_dir, strerror(file.error));
    }
    return file;
}

// Both return 0, or the errno of a failed write.
static inline int export_gguf(const TrainArgs *a, const ModelFile *model) {
    const GPT2Config *c = &model->config;
    Tokenizer tokenizer;
    require_tokenizer(find_tokenizer(&tokenizer, a, c->vocab_size), "--export", "gguf", c->vocab_size);
    GgufWriter w = gguf_create(export_open(a, FILE_GGUF));
    export_gguf_keys(&w, a, model);
    export_gguf_tokenizer(&w, &tokenizer, model);
    export_gguf_tensors(&w, model);
    tokenizer_free(&tokenizer);
    return gguf_finish(&w);
}

static inline int export_llmc(const TrainArgs *a, const ModelFile *model) {
    DType dtype = DT_BF16;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, &model->config); layer++) {
            if (model_tensor(model, "", (ParamId)id, layer)->dtype != DT_BF16) { dtype = DT_F32; }
        }
    }
    PartFile out = export_open(a, FILE_LLMC_MODEL);
    llmc_write_model(&out, model, dtype);
    return part_finish(&out);
}

static inline void export_model(TrainArgs *a, Comm *launched) {
    (void)launched;
    ModelSource source = model_source(a, BYTE_VOCABULARY);
    require_weights(&source, "--export", a);
    const ModelFile *model = &source.weights;
    struct stat info;
    int error = a->export_format == EXPORT_GGUF ? export_gguf(a, model) : export_llmc(a, model);
    if (error) {
        run_error("could not write '%s': %s; make room or check the disk, then export again", a->run_dir,
                  strerror(error));
    }
    double bytes = stat(a->run_dir, &info) == 0 ? (double)info.st_size : 0;
    char size[32];
    printf("%s: %s, %d tokens, %.1f MB\n", a->run_dir, parameters_text(size, &model->config), model->config.vocab_size,
           bytes / 1e6);
    model_close(&source.weights);
}
