/*
The data of a run: the token files or examples of -i and -j, their loaders, HellaSwag's examples, and the data in
state.json.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/hash.h"
#include "llmc/common/json_file.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/examples.h"
#include "llmc/data/hellaswag.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/model_source.h"
#include "llmc/run/ranks.h"
#include "llmc/run/text.h"
#include "llmc/run/train_args.h"

#define HELLASWAG_BIN "dev/data/hellaswag/hellaswag_val.bin"

typedef struct {
    TokenFiles files, train_files, val_files;  // of -i, its part to train on, and the validation data
    char fingerprint[17];                      // of train_files; for examples, also of their tokenizer
    char val_fingerprint[17];                  // of val_files
    uint64_t tokenizer_fingerprint;            // for examples, else 0
    bool has_examples;  // -i names .jsonl files: the loaders read examples, and `files` gives the fingerprint
    Examples examples, val_examples;  // of -i, and of -j
    PackedExamples train_packed, val_packed;
    DataLoader train_loader, val_loader;
    HellaSwag hellaswag;
    const char *hellaswag_path;  // NULL without -h 1
} RunData;

static inline bool data_are_examples(const TokenFiles *files) {
    int json = 0;
    for (int f = 0; f < files->num_files; f++) { json += file_kind(files->files[f].path) == FILE_JSON; }
    if (json > 0 && json < files->num_files) {
        input_error("%s matches both JSON lines and other files; give a pattern that matches one kind", files->flag);
    }
    return json > 0;
}

// As token_files_open, but refuses binary files.
static inline TokenFiles data_open_files(const char *flag, const char *pattern) {
    TokenFiles files = token_files_open(flag, pattern);
    for (int f = 0; f < files.num_files && token_files_are_text(&files); f++) {
        refuse_binary(flag, files.files[f].path);
    }
    return files;
}

// True if -i is text that is read as bytes.
static inline bool data_are_bytes(const RunData *d) { return token_files_are_text(&d->files) && !d->has_examples; }

// Returns the vocabulary size of -i. For examples it is that of the tokenizer that encodes them.
static inline int data_vocab(const TokenFiles *files, const TrainArgs *a) {
    char path[PATH_LENGTH];
    if (!data_are_examples(files)) { return files->vocab_size; }
    find_tokenizer_file(path, a);
    if (!*path) { return BYTE_VOCABULARY; }
    Tokenizer tokenizer = tokenizer_open(path);
    int vocab_size = tokenizer.vocab_size;
    tokenizer_free(&tokenizer);
    return vocab_size;
}

static inline const char *data_kind(const TokenFiles *files) {
    if (data_are_examples(files)) { return "examples as JSON lines"; }
    return token_files_are_text(files) ? "text" : "token shards";
}

// Stops unless -i and -j are data of one kind.
static inline void require_same_kind(const RunData *d, const TrainArgs *a) {
    const char *train = data_kind(&d->train_files), *val = data_kind(&d->val_files);
    if (strcmp(train, val) != 0) {
        input_error("-i %s is %s, but -j %s is %s; give files of one kind", a->train_data, train, a->val_data, val);
    }
    if (!d->has_examples && d->train_files.vocab_size != d->val_files.vocab_size) {
        input_error("-i %s has a vocabulary of %d tokens, but -j %s has %d; give shards of one tokenizer",
                    a->train_data, d->train_files.vocab_size, a->val_data, d->val_files.vocab_size);
    }
}

// Prints the files' fingerprint into text. `tokenizer` is that of the tokenizer that encodes examples, 0 without one.
static inline void data_fingerprint(char text[17], const TokenFiles *files, bool named, uint64_t tokenizer) {
    hash_text(text, token_files_fingerprint(files, named));
    if (tokenizer) { hash_text(text, hash_bytes(tokenizer, text, strlen(text))); }
}

// Opens -i and -j. Without -j the last tenth of each file, or of the examples, is validation data.
static inline void data_open(RunData *d, const TrainArgs *a) {
    if (!a->train_data && a->resume) {
        input_error("'%s/config.json' of -y 1 is missing or names no data; give all flags of the first start",
                    a->run_dir);
    }
    if (!a->train_data) { input_error("-i is missing; give the text, token shards or examples to train on"); }
    d->files = data_open_files("-i", a->train_data);
    d->has_examples = data_are_examples(&d->files);
    d->files.vocab_size = data_vocab(&d->files, a);
    if (a->val_data) {
        d->train_files = token_files_copy(&d->files, "");
        d->val_files = data_open_files("-j", a->val_data);
        require_same_kind(d, a);
    } else {
        token_files_split(&d->files, 0.1, &d->train_files, &d->val_files);
    }
    data_fingerprint(d->fingerprint, &d->train_files, false, 0);
    data_fingerprint(d->val_fingerprint, &d->val_files, false, 0);
}

// Stops if weights trained on tokens would be given text as bytes: to them, the ids of bytes are other tokens.
static inline void require_fitting_text(const RunData *d, const TrainArgs *a, const ModelSource *source) {
    bool given_weights = source->has_weights && !*source->checkpoint;
    if (given_weights && data_are_bytes(d) && source->config.vocab_size != BYTE_VOCABULARY) {
        input_error("-i %s is text, which is read as bytes, but -e %s has %d tokens; first make a token shard of it: "
                    "train_gpt2 -i %s --tokenizer vocab.bpe --tokenize data/mine",
                    a->train_data, a->model, source->config.vocab_size, a->train_data);
    }
}

// Sets *tokenizer to that of the run's data. Returns false if it is unknown, or if the data are bytes and the model has
// another vocabulary.
static inline bool data_find_tokenizer(Tokenizer *tokenizer, const RunData *d, const TrainArgs *a, int vocab_size) {
    if (!data_are_bytes(d)) { return find_tokenizer(tokenizer, a, vocab_size); }
    *tokenizer = given_tokenizer(a) ? tokenizer_open(a->tokenizer) : tokenizer_bytes();
    if (tokenizer->merges) {
        input_error("-i %s is text, which is read as bytes and not with --tokenizer %s; first make token shards of it "
                    "with --tokenize, or leave out --tokenizer (--tokenizer '' in a resumed run)",
                    a->train_data, a->tokenizer);
    }
    if (vocab_size != BYTE_VOCABULARY) { tokenizer_free(tokenizer); }
    return vocab_size == BYTE_VOCABULARY;
}

static inline void data_open_examples(RunData *d, const TrainArgs *a, int V, const Tokenizer *tokenizer) {
    require_tokenizer(tokenizer, "-i", a->train_data, V);
    d->tokenizer_fingerprint = tokenizer_fingerprint(tokenizer);
    data_fingerprint(d->fingerprint, &d->train_files, false, d->tokenizer_fingerprint);
    d->examples = examples_load("-i", a->train_data, tokenizer, a->T);
    int count = d->examples.count, held_out = a->val_data ? 0 : count / 10;
    if (!a->val_data && held_out == 0 && a->val_every > 0) {
        input_error("-i %s holds %d examples, too few to hold out a tenth for validation; give -j, or -v 0",
                    a->train_data, count);
    }
    d->train_packed = examples_pack(&d->examples, 0, count - held_out);
    if (a->val_data) {
        d->val_examples = examples_load("-j", a->val_data, tokenizer, a->T);
        d->val_packed = examples_pack(&d->val_examples, 0, d->val_examples.count);
    } else if (held_out > 0) {
        d->val_packed = examples_pack(&d->examples, count - held_out, count);
    }
}

// V: the model's vocabulary; tokenizer: NULL if unknown; dp: the ranks that read different batches
static inline void data_open_loaders(RunData *d, const TrainArgs *a, int V, const Tokenizer *tokenizer,
                                     const Comm *dp) {
    uint64_t seed = (uint64_t)a->seed;
    if (d->has_examples) {
        data_open_examples(d, a, V, tokenizer);
        dataloader_open_examples(&d->train_loader, &d->train_packed, a->B, false, seed, dp->rank, dp->size);
        if (a->val_every == 0) { return; }
        dataloader_open_examples(&d->val_loader, &d->val_packed, a->B, true, 0, dp->rank, dp->size);
    } else {
        dataloader_open(&d->train_loader, &d->train_files, a->B, a->T, true, seed, dp->rank, dp->size, V);
        if (a->val_every == 0) { return; }
        dataloader_open(&d->val_loader, &d->val_files, a->B, a->T, false, 0, dp->rank, dp->size, V);
        require_ids(&d->val_loader, INFINITY);
    }
}

// Stops at a bad token id in the data of the next `steps` updates. A start checks all steps, and a resume with a larger
// -x checks again.
static inline void require_data_ids(RunData *d, const TrainArgs *a, long long steps) {
    double end = (double)d->train_loader.position + (double)steps * (double)tokens_of_update(a) / a->T;
    if (!d->has_examples) { require_ids(&d->train_loader, end); }
}

// With -h 1, reads HellaSwag for contexts of -t tokens. If there is a tokenizer we take the published JSON lines, else
// llm.c's eval file. Without either file the run goes on without the score, as llm.c's does.
static inline void data_open_hellaswag(RunData *d, const TrainArgs *a, const Tokenizer *tokenizer, int V) {
    bool has_json = access(HELLASWAG_JSON, R_OK) == 0, has_bin = access(HELLASWAG_BIN, R_OK) == 0;
    if (!a->hellaswag || (!has_json && !has_bin)) { return; }
    if (has_json && (tokenizer || !has_bin)) {
        require_tokenizer(tokenizer, "-h 1:", HELLASWAG_JSON, V);
        d->hellaswag_path = HELLASWAG_JSON;
        d->hellaswag = hellaswag_read_json("-h 1", HELLASWAG_JSON, tokenizer, a->T);
    } else {
        d->hellaswag_path = HELLASWAG_BIN;
        d->hellaswag = hellaswag_read_bin("-h 1", HELLASWAG_BIN, a->T, V);
    }
}

// Stops unless every rank reads the same model and data. `state` holds what else must be equal, and is deleted.
static inline void require_same_input(cJSON *state, const RunData *d, const ModelSource *source, Comm *world) {
    const char *advice = "all ranks need the same files at -e, -o, -i, -j and for HellaSwag";
    cJSON *input = cJSON_CreateObject();
    uint64_t model = hash_bytes(0, &source->config, sizeof source->config);
    if (source->has_weights) { model = hash_weights(model, &source->weights.file); }
    add_hash(input, "model", model);
    cJSON_AddStringToObject(input, "training set", d->fingerprint);
    cJSON_AddStringToObject(input, "validation set", d->val_fingerprint);
    if (d->hellaswag_path) { add_hash(input, d->hellaswag_path, hash_file(0, "-h", d->hellaswag_path)); }
    require_same_items(world, input, advice);
    require_same_items(world, state, advice);
}

static inline void data_close(RunData *d, const TrainArgs *a) {
    dataloader_close(&d->train_loader);
    if (a->val_every > 0) { dataloader_close(&d->val_loader); }
    hellaswag_close(&d->hellaswag);
    packed_free(&d->train_packed);
    packed_free(&d->val_packed);
    examples_free(&d->examples);
    examples_free(&d->val_examples);
    token_files_close(&d->val_files);
    token_files_close(&d->train_files);
    token_files_close(&d->files);
}

// Returns the tokens of one epoch. For files this includes the unused tokens after a file's last whole sequence, so the
// last update may take a few sequences from the next epoch.
static inline int64_t data_epoch_tokens(const RunData *d, const TrainArgs *a) {
    return d->has_examples ? (int64_t)d->train_packed.num_sequences * a->T
                           : (int64_t)token_files_used(&d->train_files, a->T);
}

// Returns the step at which the first epoch ends, at least 1: `step`, plus what is left of it at the loader's position
// over the tokens of an update, rounded down as in llm.c. So a run that resumes with another -d reads the data once.
static inline long long data_last_step(const RunData *d, const TrainArgs *a, long long step) {
    int64_t update = tokens_of_update(a);
    int64_t read = a->overfit ? step * update : (int64_t)d->train_loader.position * a->T;
    int64_t left = data_epoch_tokens(d, a) - read;
    long long last = step + (left > 0 ? left / update : 0);
    return last > 0 ? last : 1;
}

// Returns how many sequences of the first epoch stay unread if a run that is now at `step` ends after `last` steps.
static inline int64_t data_epoch_rest(const RunData *d, const TrainArgs *a, long long step, long long last) {
    int64_t read = (int64_t)d->train_loader.position * a->T + (last - step) * tokens_of_update(a);
    return (data_epoch_tokens(d, a) - read) / a->T;
}

// Returns how many tokens one validation scores: those of -m micro-batches, or all.
static inline uint64_t data_val_tokens(const RunData *d, const TrainArgs *a) {
    const DataLoader *l = &d->val_loader;
    if (a->val_every == 0) { return 0; }
    uint64_t all = l->sequences_per_epoch, asked = (uint64_t)a->val_batches * (uint64_t)a->B;
    return dataloader_targets(l, 0, a->val_batches < 0 || asked > all ? all : asked);
}

// ---- the data in state.json: the position, and the settings and files that decide which tokens are there

static inline void data_state_add(cJSON *state, const RunData *d, const TrainArgs *a) {
    cJSON_AddNumberToObject(state, "position", (double)d->train_loader.position);
    cJSON_AddNumberToObject(state, "sequence_length", a->T);
    cJSON_AddNumberToObject(state, "seed", (double)a->seed);
    cJSON_AddStringToObject(state, "training_data", d->fingerprint);
    cJSON_AddNumberToObject(state, "training_tokens", (double)token_files_total(&d->train_files));
    if (a->val_data) { cJSON_AddStringToObject(state, "validation_data", d->val_fingerprint); }
    cJSON_AddBoolToObject(state, "validation_held_out", !a->val_data);
}

// True if `saved`, of state.json, is the fingerprint of these files. Versions up to 1.0 hashed their names too.
static inline bool same_fingerprint(const char *saved, const char *now, const TokenFiles *files, uint64_t tokenizer) {
    char named[17];
    if (!saved || strcmp(saved, now) == 0) { return saved != NULL; }
    data_fingerprint(named, files, true, tokenizer);
    return strcmp(saved, named) == 0;
}

// Stops if a resumed run would read other data, or in another order. `file` is the path of state.json, for messages.
static inline void require_same_data_state(const cJSON *state, const RunData *d, const TrainArgs *a, const char *file) {
    int T = (int)json_whole(state, "sequence_length", 1, INT_MAX, file);
    int64_t seed = json_whole(state, "seed", 0, MAX_SEED, file);
    if (T != a->T || seed != a->seed) {
        input_error(
            "'%s' was trained with -t %d --seed %lld, which decide its position in the data; found -t %d --seed "
            "%lld: give the same",
            file, T, (long long)seed, a->T, (long long)a->seed);
    }
    bool held_out = json_true(state, "validation_held_out");
    if (held_out != !a->val_data) {
        input_error("'%s' was trained with%s -j and this run has %s: the training data differs; %s", file,
                    held_out ? "out" : "", held_out ? "one" : "none", held_out ? "leave out -j" : "give the same -j");
    }
    const char *train = json_string(state, "training_data");
    const char *val = json_string(state, "validation_data");
    if (!same_fingerprint(train, d->fingerprint, &d->train_files, d->tokenizer_fingerprint)) {
        input_error("the run of '%s' was trained on %" PRId64 " tokens of other files, or with another tokenizer, than "
                    "-i %s, which gives %" PRIu64 "; give the files it was trained on, or start a new run from the "
                    "checkpoint with -e and another -o",
                    file, json_whole(state, "training_tokens", 0, 0x1p53, file), a->train_data,
                    token_files_total(&d->train_files));
    }
    if (val && a->val_data &&
        !same_fingerprint(val, d->val_fingerprint, &d->val_files, 0)) {  // older versions wrote none
        input_error("the run of '%s' was validated on other data than -j %s; give the files it was validated on, or "
                    "start a new run from the checkpoint with -e and another -o",
                    file, a->val_data);
    }
}

// Continues at the position of a checkpoint.
static inline void data_state_seek(const cJSON *state, RunData *d, const char *file) {
    dataloader_seek(&d->train_loader, (uint64_t)json_whole(state, "position", 0, 0x1p53, file));
}
