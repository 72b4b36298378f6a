/*
The model of a new or resumed run: the shape or weights of -e, or with -y 1 the last checkpoint in -o.
defines: ModelSource, model_source, hash_weights, check_trained, default_length, check_length, check_rows
*/
#pragma once
#include "llmc/common/hash.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/run/flag_table.h"

typedef struct {
    GPT2Config config;
    bool has_weights;              // else gpt2_init draws them from --seed
    ModelFile weights;             // opened if has_weights; the caller closes it
    char checkpoint[PATH_LENGTH];  // the resumed checkpoint; "" for a new run
} ModelSource;

// Stops at a word that names neither a shape nor a file.
__attribute__((noreturn)) static inline void no_such_model(const char *word) {
    static const char *const fetched[] = {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"};
    const char *slash = strrchr(word, '/'), *name = slash ? slash + 1 : word;
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, fetched[i]) != 0) { continue; }
        input_error("-e %s: there is no such folder; scripts/get_data.sh %s fetches the model, then give -e models/%s",
                    word, name, name);
    }
    input_error("-e %s is neither a shape (d6 d12 d24 d36 d48 d60 d72 d84, gpt3:c768 and the like, l4h4c128) nor an "
                "existing file or folder",
                word);
}

// Stops at a folder without a model.
__attribute__((noreturn)) static inline void no_model(const char *word) {
    char pickle[PATH_LENGTH], index[PATH_LENGTH];
    format_path(pickle, "%s/pytorch_model.bin", word);
    format_path(index, "%s/pytorch_model.bin.index.json", word);
    if (access(pickle, F_OK) == 0 || access(index, F_OK) == 0) {
        input_error("-e %s is a folder with pytorch_model.bin and without model.safetensors; load it in transformers "
                    "and give the folder that save_pretrained writes",
                    word);
    }
    input_error("-e %s is a folder without model.safetensors, without its index, without checkpoints, and without "
                "llm.c's model_*.bin and DONE_*; give a folder with one of them, or a file",
                word);
}

// model = the file or folder of a model. A run directory stands for its last checkpoint, and so does a run directory of
// llm.c. Stops if a folder has no model, or is a damaged checkpoint.
static inline void find_model(char *model, const char *word) {
    char weights[PATH_LENGTH], folder[PATH_LENGTH];
    if (!checkpoint_of_run(model, word)) { format_path(model, "%s", word); }
    format_path(folder, "%s", strcmp(model, "model.safetensors") == 0 ? "." : model);
    if (has_ending(folder, "/model.safetensors")) { *strrchr(folder, '/') = 0; }
    checkpoint_check(folder, word, false);
    model_weights_path(weights, model);
    if (access(weights, F_OK) == 0) { return; }
    long long latest = llmc_latest(word);
    if (latest < 0) { no_model(word); }
    format_path(model, "%s/model_%08lld.bin", word, latest);
}

// *config = the shape of -e; `positions` is max_seq_len where -e names none. Returns whether -e names weights, which
// *file opens.
static inline bool resolve_model(const TrainArgs *a, int data_vocab, int positions, GPT2Config *config,
                                 ModelFile *file) {
    const char *word = a->model ? a->model : "d12";
    char text[PATH_LENGTH];
    if (config_from_descriptor(config, word, data_vocab, positions)) {
        snprintf(text, sizeof text, "-e %s", word);
        config_check(config, text);
        return false;
    }
    if (access(word, F_OK) != 0) { no_such_model(word); }
    find_model(text, word);
    *file = model_open(text);
    *config = file->config;
    return true;
}

// Stops if -e of the command line names a different shape than the checkpoint. The weights that a run started from may
// be gone when it resumes.
static inline void check_same_shape(const TrainArgs *a, int data_vocab, const GPT2Config *saved, const char *folder) {
    GPT2Config given;
    ModelFile file;
    if (!a->model || a->saved_model) { return; }
    memset(&given, 0, sizeof given);
    if (resolve_model(a, data_vocab, saved->max_seq_len, &given, &file)) { model_close(&file); }
    if (memcmp(&given, saved, sizeof given) == 0) { return; }
    input_error("'%s' holds a model of %d layers, %d heads, %d channels, %d positions and %d tokens, but -e %s has %d, "
                "%d, %d, %d and %d; leave out -e to resume the checkpoint",
                folder, saved->num_layers, saved->num_heads, saved->channels, saved->max_seq_len, saved->vocab_size,
                a->model, given.num_layers, given.num_heads, given.channels, given.max_seq_len, given.vocab_size);
}

// data_vocab: the vocabulary of the data, for shapes without one
static inline ModelSource model_source(const TrainArgs *a, int data_vocab) {
    ModelSource source;
    memset(&source, 0, sizeof source);
    long long step = a->resume && !a->generate && !a->eval ? checkpoint_latest(a->run_dir) : -1;
    if (step < 0) {
        source.has_weights = resolve_model(a, data_vocab, a->T, &source.config, &source.weights);
        return source;
    }
    checkpoint_path(source.checkpoint, a->run_dir, step);
    source.weights = model_open(source.checkpoint);
    source.has_weights = true;
    source.config = source.weights.config;
    check_same_shape(a, data_vocab, &source.config, source.checkpoint);
    return source;
}

// hashes the files of a model's weights
static inline uint64_t hash_weights(uint64_t hash, const SafeTensors *file) {
    hash = hash_file(hash, "-e", file->path);
    for (int i = 0; i < file->num_shards; i++) { hash = hash_file(hash, "-e", file->shards[i].path); }
    return hash;
}

// Stops unless -e names weights; `flag` needs them.
static inline void check_trained(const ModelSource *source, const char *flag, const TrainArgs *a) {
    if (source->has_weights) { return; }
    input_error("%s needs trained weights, but -e %s only describes a shape; give a folder or a file with weights",
                flag, a->model);
}

// --eval without -t: the model's positions
static inline void default_length(TrainArgs *a, const GPT2Config *c) {
    if (a->eval && a->T == ALL_POSITIONS) { a->T = c->max_seq_len; }
}

static inline void check_length(const TrainArgs *a, const GPT2Config *c) {
    if (a->T > c->max_seq_len) {
        input_error("-t %d is longer than the model's %d positions; give -t %d or less", a->T, c->max_seq_len,
                    c->max_seq_len);
    }
}

// With -tp, rows are divided into t chunks of N / t, rounded up. Stops if the last rank would have none: a matmul
// needs at least one row.
static inline void check_rows(const TrainArgs *a, int rows, const char *of_what) {
    int t = a->tensor_parallel;
    if (row_range(rows, t, t - 1).count > 0) { return; }
    input_error(
        "-tp %d divides the %d rows of %s into chunks of %d, which leaves none for the last rank; give a smaller "
        "-tp, or a larger -b or -t",
        t, rows, of_what, (int)chunk_size((size_t)rows, t));
}
