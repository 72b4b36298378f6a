/*
The data of a run: the token files or examples of -i and -j, their loaders, HellaSwag's examples, and the data in
state.json.
defines: RunData, data_are_examples, data_are_bytes, args_for_examples, data_vocab, data_open, check_text_fits,
         data_find_tokenizer, data_open_loaders, data_check_ids, data_open_hellaswag, check_same_data, data_close,
         data_last_step, data_epoch_rest, data_val_tokens, data_state_add, data_state_check, data_state_seek
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/floatx.h"
#include "llmc/common/hash.h"
#include "llmc/common/json_file.h"
#include "llmc/data/corpus.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/examples.h"
#include "llmc/data/hellaswag.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/model_source.h"
#include "llmc/run/ranks.h"
#include "llmc/run/text.h"
#include "llmc/run/train_args.h"

#define HELLASWAG_BIN "dev/data/hellaswag/hellaswag_val.bin"

typedef struct {
    TokenFiles files, train_files, val_files;  // of -i; its part to train on; validation
    bool by_default;                           // -i was not given: llm.c's default files
    bool default_model;                        // -i and -e were not given: llm.c's default model
    char fingerprint[17];                      // of train_files; for examples, also of their tokenizer
    char val_fingerprint[17];                  // of val_files
    uint64_t tokenizer_fingerprint;            // for examples, else 0
    bool has_examples;  // -i names .jsonl files: the loaders read train_rows and val_rows; files gives the fingerprint
    Examples examples, val_examples;  // of -i, and of -j
    ExampleRows train_rows, val_rows;
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

// token_files_open; also stops at a binary file
static inline TokenFiles data_open_files(const char *flag, const char *pattern) {
    TokenFiles files = token_files_open(flag, pattern);
    for (int f = 0; f < files.num_files && token_files_are_text(&files); f++) {
        refuse_binary(flag, files.files[f].path);
    }
    return files;
}

// The notes on text that is read as bytes, of its first 64 MiB: on bytes that are not UTF-8, and on <|endoftext|>.
static inline void print_byte_notes(const char *flag, const char *pattern) {
    Corpus corpus = corpus_open(flag, pattern, NULL, 0);
    CorpusPiece piece;
    while (corpus.bytes_read < 64 << 20 && corpus_read(&corpus, &piece)) {}
    print_bad_bytes(stdout, &corpus);
    uint64_t found = corpus.specials + corpus.separators;
    if (found) {
        printf("note      %s %s: %" PRIu64
               " <|endoftext|> are read as 13 bytes each; --tokenize ends a document there\n",
               flag, pattern, found);
    }
    corpus_close(&corpus);
}

// True if -i is text that is read as bytes.
static inline bool data_are_bytes(const RunData *d) { return token_files_are_text(&d->files) && !d->has_examples; }

// Makes -gd auto fp32 for examples, and stops at -gd bf16: each example would round the position embeddings' gradient.
static inline void args_for_examples(TrainArgs *a, bool examples) {
    if (examples && DT_FLOATX == DT_BF16 && a->gradients == GRADIENTS_AUTO) { a->gradients = GRADIENTS_FP32; }
    if (examples && a->gradients == GRADIENTS_BF16) {
        input_error("-gd bf16 would round wpe's gradient for each example in -i; give -gd auto, fp32 for examples");
    }
}

// The vocabulary of the files of -i; for examples, that of the tokenizer that encodes them.
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

// Without -i, takes llm.c's default data and, without -e, llm.c's default model, if these files exist.
static inline void use_defaults(RunData *d, TrainArgs *a) {
    static const char train[] = "dev/data/tinyshakespeare/tiny_shakespeare_train.bin";
    static const char val[] = "dev/data/tinyshakespeare/tiny_shakespeare_val.bin";
    static const char model[] = "gpt2_124M_bf16.bin";  // in the current folder
    d->by_default = !a->train_data && access(train, F_OK) == 0 && (a->val_data || access(val, F_OK) == 0);
    d->default_model = d->by_default && !a->model && access(model, F_OK) == 0;
    if (d->by_default) { a->train_data = train; }
    if (d->by_default && !a->val_data) { a->val_data = val; }
    if (d->default_model) { a->model = model; }
}

static inline const char *data_kind(const TokenFiles *files) {
    return data_are_examples(files) ? "examples as JSON lines" : token_files_kind(files);
}

// Stops unless -i and -j are data of one kind.
static inline void data_check_same_kind(const RunData *d, const TrainArgs *a) {
    const char *train = data_kind(&d->train_files), *val = data_kind(&d->val_files);
    if (strcmp(train, val) != 0) {
        input_error("-i %s is %s, but -j %s is %s; give files of one kind", a->train_data, train, a->val_data, val);
    }
    if (!d->has_examples && d->train_files.vocab_size != d->val_files.vocab_size) {
        input_error("-i %s has a vocabulary of %d tokens, but -j %s has %d; give shards of one tokenizer",
                    a->train_data, d->train_files.vocab_size, a->val_data, d->val_files.vocab_size);
    }
}

// text = token_files_fingerprint in digits; with examples, which a tokenizer encodes, of its fingerprint too (else 0)
static inline void data_fingerprint(char text[17], const TokenFiles *files, bool named, uint64_t tokenizer) {
    hash_text(text, token_files_fingerprint(files, named));
    if (tokenizer) { hash_text(text, hash_bytes(tokenizer, text, strlen(text))); }
}

// Opens -i and -j. Without -j the last tenth of each file, or of the examples, is validation data.
static inline void data_open(RunData *d, TrainArgs *a) {
    char checkpoint[PATH_LENGTH];
    if (resumed_checkpoint(checkpoint, a) < 0) { use_defaults(d, a); }  // else config.json names the data
    if (!a->train_data && a->resume) {
        input_error("'%s/config.json' of -y 1 is missing or names no data; give all flags of the first start",
                    a->run_dir);
    }
    if (!a->train_data) {
        input_error("-i is missing: give the data to train on, a text file or llm.c token shards (--help lists all "
                    "flags)");
    }
    d->files = data_open_files(train_data_flag(a), a->train_data);
    d->has_examples = data_are_examples(&d->files);
    args_for_examples(a, d->has_examples);
    d->files.vocab_size = data_vocab(&d->files, a);
    if (a->val_data) {
        d->train_files = token_files_copy(&d->files, "");
        d->val_files = data_open_files(a->saved_val_data ? "-j in config.json" : "-j", a->val_data);
        data_check_same_kind(d, a);
    } else {
        token_files_split(&d->files, 0.1, &d->train_files, &d->val_files);
    }
    set_by_length(a, (int64_t)token_files_used(&d->train_files, a->T) / tokens_of_update(a));
    data_fingerprint(d->fingerprint, &d->train_files, false, 0);
    data_fingerprint(d->val_fingerprint, &d->val_files, false, 0);
}

// Stops if weights trained on tokens would read text as bytes: the ids of bytes are other tokens.
static inline void check_text_fits(const RunData *d, const TrainArgs *a, const ModelSource *source) {
    bool given_weights = source->has_weights && !*source->checkpoint;
    if (given_weights && data_are_bytes(d) && source->config.vocab_size != BYTE_VOCABULARY) {
        input_error("-i %s is text, which is read as bytes, but -e %s has %d tokens; first make a token shard of it: "
                    "train_gpt2 -i %s --tokenizer vocab.bpe --tokenize data/mine",
                    a->train_data, a->model, source->config.vocab_size, a->train_data);
    }
}

// *tokenizer = the tokenizer of the run's data. False if it is unknown, or if a model of another vocabulary reads text
// as bytes.
static inline bool data_find_tokenizer(Tokenizer *tokenizer, const RunData *d, const TrainArgs *a, int vocab_size) {
    if (!data_are_bytes(d)) { return find_tokenizer(tokenizer, a, vocab_size); }
    *tokenizer = given_tokenizer(a) ? tokenizer_open(a->tokenizer) : tokenizer_bytes();
    if (tokenizer->merges) {
        input_error("-i %s is text, which is read as bytes and not with --tokenizer %s; first make token shards of it "
                    "with --tokenize, or leave out --tokenizer (--tokenizer '' in a resumed run)",
                    a->train_data, a->tokenizer);
    }
    if (vocab_size == BYTE_VOCABULARY) { return true; }
    tokenizer_free(tokenizer);
    if (*a->prompt) {  // no --tokenizer would help
        input_error(
            "--prompt needs a tokenizer, and -i %s is read as bytes by a model of %d tokens; give a shape with "
            "the data's vocabulary, such as -e l6h6c384, make token shards with --tokenize, or give --prompt ''",
            a->train_data, vocab_size);
    }
    return false;
}

// Loads and packs the examples of -i and -j.
static inline void data_open_examples(RunData *d, const TrainArgs *a, const Tokenizer *tokenizer) {
    if (!tokenizer) {
        input_error("-i %s holds text, but the model's tokenizer is not known: give it with --tokenizer",
                    a->train_data);
    }
    d->tokenizer_fingerprint = tokenizer_fingerprint(tokenizer);
    data_fingerprint(d->fingerprint, &d->train_files, false, d->tokenizer_fingerprint);
    d->examples = examples_load("-i", a->train_data, tokenizer, a->T, a->skip_bad);
    int count = d->examples.count, held_out = a->val_data ? 0 : count / 10;
    if (!a->val_data && held_out == 0 && a->val_every > 0) {
        input_error("-i %s holds %d examples, too few to hold out a tenth for validation; give -j, or -v 0",
                    a->train_data, count);
    }
    d->train_rows = example_rows_pack(&d->examples, 0, count - held_out);
    if (a->val_data) {
        d->val_examples = examples_load("-j", a->val_data, tokenizer, a->T, a->skip_bad);
        d->val_rows = example_rows_pack(&d->val_examples, 0, d->val_examples.count);
    } else if (held_out > 0) {
        d->val_rows = example_rows_pack(&d->examples, count - held_out, count);
    }
}

// V: the model's vocabulary; tokenizer: NULL if unknown; dp: the ranks that read different batches
static inline void data_open_loaders(RunData *d, const TrainArgs *a, int V, const Tokenizer *tokenizer,
                                     const Comm *dp) {
    uint64_t seed = (uint64_t)a->seed;
    if (d->has_examples) {
        data_open_examples(d, a, tokenizer);
        dataloader_open_examples(&d->train_loader, &d->train_rows, a->B, false, seed, dp->rank, dp->size);
        if (a->val_every == 0) { return; }
        dataloader_open_examples(&d->val_loader, &d->val_rows, a->B, true, 0, dp->rank, dp->size);
    } else {
        dataloader_open(&d->train_loader, &d->train_files, a->B, a->T, true, seed, dp->rank, dp->size, V);
        if (a->val_every == 0) { return; }
        dataloader_open(&d->val_loader, &d->val_files, a->B, a->T, false, 0, dp->rank, dp->size, V);
        dataloader_check_ids(&d->val_loader, INFINITY);
    }
}

// Stops at a bad token id in the data of the next `steps` updates. A start checks all steps, a longer resume once more.
static inline void data_check_ids(RunData *d, const TrainArgs *a, long long steps) {
    double end = (double)d->train_loader.position + (double)steps * (double)tokens_of_update(a) / a->T;
    if (!d->has_examples) { dataloader_check_ids(&d->train_loader, end); }
}

// -h 1: reads HellaSwag for contexts of -t tokens: the published JSON lines if there is a tokenizer, else llm.c's eval
// file. Without either file the run goes on without the score, as llm.c's does.
static inline void data_open_hellaswag(RunData *d, const TrainArgs *a, const Tokenizer *tokenizer, int V) {
    if (!a->hellaswag) { return; }
    bool has_json = access(HELLASWAG_JSON, R_OK) == 0, has_bin = access(HELLASWAG_BIN, R_OK) == 0;
    if (has_json && !tokenizer && !has_bin) {
        input_error("-h 1: " HELLASWAG_JSON " is text, and a model of %d tokens needs a tokenizer: %s", V,
                    tokenizer_advice(V));
    }
    if (!has_json && !has_bin) { return; }
    bool json = has_json && tokenizer;
    d->hellaswag_path = json ? HELLASWAG_JSON : HELLASWAG_BIN;
    d->hellaswag = json ? hellaswag_read_json("-h 1", HELLASWAG_JSON, tokenizer, a->T)
                        : hellaswag_read_bin("-h 1", HELLASWAG_BIN, a->T, V);
}

// Stops unless every rank reads the same files.
static inline void check_same_data(const RunData *d, Comm *world) {
    cJSON *data = cJSON_CreateObject();
    cJSON_AddStringToObject(data, "training set", d->fingerprint);
    cJSON_AddStringToObject(data, "validation set", d->val_fingerprint);
    if (d->hellaswag_path) { add_hash(data, d->hellaswag_path, hash_file(0, "-h", d->hellaswag_path)); }
    check_all_have(world, data, "all ranks need the same -i, -j and HellaSwag files");
}

static inline void data_close(RunData *d, const TrainArgs *a) {
    dataloader_close(&d->train_loader);
    if (a->val_every > 0) { dataloader_close(&d->val_loader); }
    hellaswag_close(&d->hellaswag);
    if (d->has_examples) {
        example_rows_free(&d->train_rows);
        example_rows_free(&d->val_rows);
        examples_free(&d->examples);
        examples_free(&d->val_examples);
    }
    token_files_close(&d->val_files);
    token_files_close(&d->train_files);
    token_files_close(&d->files);
}

// The tokens of one epoch. A file ends with less than a sequence, so the last update may take its last sequences from
// the next epoch.
static inline int64_t data_epoch_tokens(const RunData *d, const TrainArgs *a) {
    return d->has_examples ? (int64_t)d->train_rows.num_rows * a->T : (int64_t)token_files_used(&d->train_files, a->T);
}

// The step at which the first epoch ends, at least 1: what is left of it at the loader's position after `step` steps,
// over the tokens of an update, rounded down as llm.c does. So a run that resumes with another -d reads the data once.
static inline long long data_last_step(const RunData *d, const TrainArgs *a, long long step) {
    int64_t update = tokens_of_update(a);
    int64_t read = a->overfit ? step * update : (int64_t)d->train_loader.position * a->T;
    int64_t left = data_epoch_tokens(d, a) - read;
    long long last = step + (left > 0 ? left / update : 0);
    return last > 0 ? last : 1;
}

// the sequences of the first epoch that a run at `step` leaves unread when it ends after `last` steps
static inline int64_t data_epoch_rest(const RunData *d, const TrainArgs *a, long long step, long long last) {
    int64_t read = (int64_t)d->train_loader.position * a->T + (last - step) * tokens_of_update(a);
    return (data_epoch_tokens(d, a) - read) / a->T;
}

// the tokens that each validation scores: those of its -m micro-batches, or of all
static inline uint64_t data_val_tokens(const RunData *d, const TrainArgs *a) {
    const DataLoader *l = &d->val_loader;
    if (a->val_every == 0) { return 0; }
    uint64_t all = l->sequences_per_epoch, asked = (uint64_t)a->val_batches * (uint64_t)a->B;
    return dataloader_targets(l, 0, a->val_batches < 0 || asked > all ? all : asked);
}

// ---- the data in state.json: the position, and the settings and files that give the position its tokens

static inline void data_state_add(cJSON *state, const RunData *d, const TrainArgs *a) {
    cJSON_AddNumberToObject(state, "position", (double)d->train_loader.position);
    cJSON_AddNumberToObject(state, "sequence_length", a->T);
    cJSON_AddNumberToObject(state, "seed", (double)a->seed);
    cJSON_AddStringToObject(state, "training_data", d->fingerprint);
    cJSON_AddNumberToObject(state, "training_tokens", (double)token_files_total(&d->train_files));
    if (a->val_data) { cJSON_AddStringToObject(state, "validation_data", d->val_fingerprint); }
    cJSON_AddBoolToObject(state, "validation_held_out", !a->val_data);
}

// True if the files are those of a fingerprint in state.json. Versions up to 1.0 counted the names of the files too.
static inline bool same_fingerprint(const char *saved, const char *now, const TokenFiles *files, uint64_t tokenizer) {
    char named[17];
    if (!saved || strcmp(saved, now) == 0) { return saved != NULL; }
    data_fingerprint(named, files, true, tokenizer);
    return strcmp(saved, named) == 0;
}

// Stops if a resumed run would read other data, or in another order. file: the path of state.json, for messages.
static inline void data_state_check(const cJSON *state, const RunData *d, const TrainArgs *a, const char *file) {
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
