/*
The data of a run: the token files of -i and -j, their loaders, and HellaSwag's examples.
defines: RunData, data_open, data_open_loaders, data_open_hellaswag, data_close, data_steps_per_epoch, check_text_fits
*/
#pragma once
#include "llmc/files/choices_bin.h"
#include "llmc/files/choices_json.h"
#include "llmc/files/dataloader.h"
#include "llmc/run/model_source.h"

#define HELLASWAG_BIN "dev/data/hellaswag/hellaswag_val.bin"

typedef struct {
    TokenFiles files, train_files, val_files;
    char fingerprint[17];  // hash of train_files' contents; independent of paths
    DataLoader train_loader, val_loader;
    Choices hellaswag;
    const char *hellaswag_path;  // NULL without -h 1
} RunData;

// Opens -i and -j. Without -j the last tenth of each file is validation data.
static inline void data_open(RunData *d, const TrainArgs *a) {
    if (!a->train_data && a->resume) {
        input_error(
            "-y 1: found no flags in '%s/config.json': the file is missing or is not JSON; give the folder of a "
            "run with -o, or the data with -i",
            a->run_dir);
    }
    if (!a->train_data) {
        input_error("-i is missing: give the data to train on, a text file or llm.c token shards (--help lists all "
                    "flags)");
    }
    d->files = token_files_open("-i", a->train_data);
    if (a->val_data) {
        d->train_files = token_files_copy(&d->files, "");
        d->val_files = token_files_open("-j", a->val_data);
        if (token_files_are_text(&d->train_files) != token_files_are_text(&d->val_files)) {
            input_error("-i %s is %s, but -j %s is %s; give two text files or two token shards", a->train_data,
                        token_files_kind(&d->train_files), a->val_data, token_files_kind(&d->val_files));
        }
        if (d->train_files.vocab_size != d->val_files.vocab_size) {
            input_error("-i %s has a vocabulary of %d tokens, but -j %s has %d; give shards of one tokenizer",
                        a->train_data, d->train_files.vocab_size, a->val_data, d->val_files.vocab_size);
        }
    } else {
        token_files_split(&d->files, 0.1, &d->train_files, &d->val_files);
    }
    snprintf(d->fingerprint, sizeof d->fingerprint, "%016" PRIx64, token_files_fingerprint(&d->train_files));
}

// Weights trained on tokens cannot read text as bytes: byte ids are other tokens.
static inline void check_text_fits(const RunData *d, const TrainArgs *a, const ModelSource *source) {
    bool given_weights = source->has_weights && !*source->checkpoint;
    if (given_weights && token_files_are_text(&d->files) && source->config.vocab_size != BYTE_VOCABULARY) {
        input_error("-i %s is text, which is read as bytes, but -e %s has %d tokens; first make a token shard of it: "
                    "train_gpt2 -i %s --tokenizer vocab.bpe --tokenize data/mine",
                    a->train_data, a->model, source->config.vocab_size, a->train_data);
    }
}

// V: the model's vocabulary; dp: ranks that read different batches
static inline void data_open_loaders(RunData *d, const TrainArgs *a, int V, const Comm *dp) {
    token_files_check_ids(&d->train_files, V);
    token_files_check_ids(&d->val_files, V);
    dataloader_open(&d->train_loader, &d->train_files, a->B, a->T, true, (uint64_t)a->seed, dp->rank, dp->size, V);
    if (a->val_every > 0) {
        dataloader_open(&d->val_loader, &d->val_files, a->B, a->T, false, 0, dp->rank, dp->size, V);
    }
}

// -h 1: reads HellaSwag for contexts of -t tokens. The published JSON lines are encoded with the tokenizer; without the
// file or a tokenizer (NULL), llm.c's eval file is read.
static inline void data_open_hellaswag(RunData *d, const TrainArgs *a, const Tokenizer *tokenizer, int V) {
    if (!a->hellaswag) { return; }
    bool has_json = access(HELLASWAG_JSON, R_OK) == 0, has_bin = access(HELLASWAG_BIN, R_OK) == 0;
    if (has_json && !tokenizer && !has_bin) {
        input_error("-h 1: " HELLASWAG_JSON " is text, and a model of %d tokens needs a tokenizer: give GPT-2's merges "
                    "with --tokenizer",
                    V);
    }
    if (!has_json && !has_bin) {
        input_error("-h 1: could not open " HELLASWAG_JSON ": %s; fetch it with scripts/get_data.sh hellaswag, or give "
                    "-h 0",
                    strerror(errno));
    }
    d->hellaswag_path = has_json && tokenizer ? HELLASWAG_JSON : HELLASWAG_BIN;
    if (has_json && tokenizer) {
        d->hellaswag = choices_read_json("-h 1", d->hellaswag_path, CHOICES_LLMC, tokenizer, a->T);
    } else {
        d->hellaswag = choices_read_bin("-h 1", d->hellaswag_path, a->T, V);
    }
}

static inline void data_close(RunData *d, const TrainArgs *a) {
    dataloader_close(&d->train_loader);
    if (a->val_every > 0) { dataloader_close(&d->val_loader); }
    choices_close(&d->hellaswag);
    token_files_close(&d->val_files);
    token_files_close(&d->train_files);
    token_files_close(&d->files);
}

// updates in one epoch, at least 1
static inline int64_t data_steps_per_epoch(const RunData *d, const TrainArgs *a) {
    int64_t steps = (int64_t)dataloader_sequences_per_epoch(&d->train_loader) / (tokens_of_update(a) / a->T);
    return steps > 0 ? steps : 1;
}
