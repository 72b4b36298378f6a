// The model of a new or resumed run: the shape or weights of -e, or with -y 1 the newest checkpoint in -o.
#pragma once
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/hash.h"
#include "llmc/common/range.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/params.h"
#include "llmc/shapes/slices.h"

typedef struct {
    GPT2Config config;
    bool has_weights;              // else gpt2_load draws them from --seed
    ModelFile weights;             // opened if has_weights; the caller closes it
    char checkpoint[PATH_LENGTH];  // the resumed checkpoint; "" for a new run
    long long step;                // of the checkpoint, by the name of its folder; -1 for a new run
} ModelSource;

// Returns the step of the checkpoint that -y 1 resumes, and sets its folder. If the run starts anew they are -1 and "".
static inline long long resumed_checkpoint(char *folder, const TrainArgs *a) {
    *folder = 0;
    return a->resume && a->run_dir && !a->generate && !a->eval ? checkpoint_newest(folder, a->run_dir) : -1;
}

// Finds the file or folder of a model. In a run directory, that is the newest checkpoint. Stops at a folder without a
// model, and at a damaged checkpoint.
static inline void find_model(char *model, const char *word) {
    char weights[PATH_LENGTH], folder[PATH_LENGTH];
    if (checkpoint_newest(model, word) < 0) { format_path(model, "%s", word); }
    bool is_file = has_ending(model, "/model.safetensors") || strcmp(model, "model.safetensors") == 0;
    format_path(folder, "%s", model);
    if (is_file) { folder_of(folder, model); }
    require_whole_checkpoint(folder, word, false);
    model_weights_path(weights, model);
    if (access(weights, F_OK) == 0) { return; }
    input_error("-e %s is a folder without model.safetensors, its index or checkpoints (a run saves them with -n); "
                "give llm.c's model_*.bin itself, or a folder that transformers' save_pretrained writes; doc/files.md "
                "converts PyTorch's files",
                word);
}

// Sets *config to the shape of -e. If -e names weights, opens them as *file and returns true. A shape without a
// vocabulary and max_seq_len of its own gets data_vocab and positions.
static inline bool resolve_model(const TrainArgs *a, int data_vocab, int positions, GPT2Config *config,
                                 ModelFile *file) {
    const char *word = a->model ? a->model : "d12";
    char text[PATH_LENGTH];
    if (config_from_descriptor(config, word, data_vocab, positions)) {
        snprintf(text, sizeof text, "-e %s", word);
        require_valid_shape(config, text);
        return false;
    }
    if (access(word, F_OK) != 0) {
        input_error("-e %s is neither a shape (d6 d12 d24 d36 d48 d60 d72 d84, gpt3:c768 and the like, l4h4c128) nor "
                    "an existing file or folder; scripts/get_data.sh gpt2 fetches GPT-2 as models/gpt2",
                    word);
    }
    find_model(text, word);
    *file = model_open(text);
    *config = file->config;
    return true;
}

// Stops if -e on the command line names another shape than the checkpoint. The -e in config.json is not compared: the
// weights that a run started from may be gone.
static inline void require_same_shape(const TrainArgs *a, int data_vocab, const GPT2Config *saved, const char *folder) {
    GPT2Config given;
    ModelFile file;
    if (!a->model || a->saved_model) { return; }
    memset(&given, 0, sizeof given);
    if (resolve_model(a, data_vocab, saved->max_seq_len, &given, &file)) { model_close(&file); }
    if (memcmp(&given, saved, sizeof given) == 0) { return; }
    input_error("'%s' holds a model of another shape than -e %s; leave out -e to resume the checkpoint", folder,
                a->model);
}

// Returns the model of -e, or that of the newest checkpoint if -y 1 resumes one. data_vocab: as in resolve_model
static inline ModelSource model_source(const TrainArgs *a, int data_vocab) {
    ModelSource source;
    memset(&source, 0, sizeof source);
    source.step = resumed_checkpoint(source.checkpoint, a);
    if (source.step < 0) {
        source.has_weights = resolve_model(a, data_vocab, a->T, &source.config, &source.weights);
        return source;
    }
    source.weights = model_open(source.checkpoint);
    source.has_weights = true;
    source.config = source.weights.config;
    require_same_shape(a, data_vocab, &source.config, source.checkpoint);
    return source;
}

// adds the files of a model's weights to a hash
static inline uint64_t hash_weights(uint64_t hash, const SafeTensors *file) {
    hash = hash_file(hash, "-e", file->path);
    for (int i = 0; i < file->num_shards; i++) { hash = hash_file(hash, "-e", file->shards[i].path); }
    return hash;
}

// Stops unless -e names weights, which `flag` needs.
static inline void require_weights(const ModelSource *source, const char *flag, const TrainArgs *a) {
    if (source->has_weights) { return; }
    input_error("%s needs trained weights, but -e %s only describes a shape; give a folder or a file with weights",
                flag, a->model);
}

static inline void require_length(const TrainArgs *a, const GPT2Config *c) {
    if (a->T > c->max_seq_len) {
        input_error("-t %d is longer than the model's %d positions; give -t %d or less", a->T, c->max_seq_len,
                    c->max_seq_len);
    }
}

// With -tp, the rows of a micro-batch are divided into t chunks of N / t, rounded up. Stops if that leaves none for the
// last rank, whose matmuls need a row.
static inline void require_rows(const TrainArgs *a) {
    int t = a->tensor_parallel, rows = a->B * a->T;
    if (row_range(rows, t, t - 1).count > 0) { return; }
    input_error("-tp %d divides the %d rows of a micro-batch into chunks of %d, which leaves none for the last rank; "
                "give a smaller -tp, or a larger -b or -t",
                t, rows, (int)chunk_size((size_t)rows, t));
}
