/*
The data in state.json: the position in the data, and the settings and files that give the position its tokens.
defines: data_state_add, data_state_check, data_state_seek
  position              sequences given to all ranks (dataloader.h)
  sequence_length, seed -t and --seed
  training_data         a hash of names, sizes, samples and the tokenizer of examples; independent of folders
  training_tokens       the number of tokens
  shards                the files (shard_list.h); checkpoints of older versions have none
  validation_shards     the files of -j: validation losses before and after a resume are of the same text
  validation_held_out   there is no -j: the last tenth of each file is not trained on
*/
#pragma once
#include "llmc/run/data.h"

static inline void data_state_add(cJSON *state, const RunData *d, const TrainArgs *a) {
    cJSON_AddNumberToObject(state, "position", (double)dataloader_position(&d->train_loader));
    cJSON_AddNumberToObject(state, "sequence_length", a->T);
    cJSON_AddNumberToObject(state, "seed", (double)a->seed);
    cJSON_AddStringToObject(state, "training_data", d->fingerprint);
    cJSON_AddNumberToObject(state, "training_tokens", (double)token_files_total(&d->train_files));
    if (d->shards) { cJSON_AddItemToObject(state, "shards", cJSON_Duplicate(d->shards, true)); }
    if (d->val_shards) { cJSON_AddItemToObject(state, "validation_shards", cJSON_Duplicate(d->val_shards, true)); }
    cJSON_AddBoolToObject(state, "validation_held_out", !a->val_data);
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
    bool held_out = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, "validation_held_out"));
    if (held_out != !a->val_data) {
        input_error("'%s' was trained with%s -j and this run has %s: the training data differs; %s", file,
                    held_out ? "out" : "", held_out ? "one" : "none", held_out ? "leave out -j" : "give the same -j");
    }
    const cJSON *shards = cJSON_GetObjectItemCaseSensitive(state, "shards");
    char difference[256];
    if (shards && d->shards && shard_list_difference(difference, sizeof difference, shards, d->shards)) {
        input_error("the run of '%s' was trained on other data than -i %s: %s; give the files it was trained on", file,
                    a->train_data, difference);
    }
    const cJSON *val_shards = cJSON_GetObjectItemCaseSensitive(state, "validation_shards");
    if (val_shards && d->val_shards &&
        shard_list_difference(difference, sizeof difference, val_shards, d->val_shards)) {
        input_error("the run of '%s' was validated on other data than -j %s: %s; give the files it was validated on, "
                    "or begin a new run from the checkpoint with -e and another -o",
                    file, a->val_data, difference);
    }
    const char *fingerprint = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(state, "training_data"));
    if (!fingerprint || strcmp(fingerprint, d->fingerprint) != 0) {
        input_error("'%s' was trained on %" PRId64 " tokens of other files, or with another tokenizer, than "
                    "-i %s, which gives %" PRIu64 "; give the files it was trained on",
                    file, json_whole(state, "training_tokens", 0, 0x1p53, file), a->train_data,
                    token_files_total(&d->train_files));
    }
}

// Continues at the position of a checkpoint.
static inline void data_state_seek(const cJSON *state, RunData *d, const char *file) {
    dataloader_seek(&d->train_loader, (uint64_t)json_whole(state, "position", 0, 0x1p53, file));
}
