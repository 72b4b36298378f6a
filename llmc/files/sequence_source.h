/*
The place in the data of a sequence of a DataLoader, as JSON: a user looks there at the data of a skipped update.
  token files   {"file":"data/a_000001.bin","first_token":1024,"tokens":65}: the T inputs and the last target
  examples      {"file":"talks.jsonl","line":17} for each example of the packed sequence
defines: add_sequence_source
*/
#pragma once
#include "llmc/files/dataloader.h"
#include <cjson/cJSON.h>

// s: the sequence number of loader_sequence. This function reads no field that the loader's thread changes.
static inline cJSON *token_sequence_source(const DataLoader *l, uint64_t s) {
    uint64_t epoch = s / l->sequences_per_epoch, k = s % l->sequences_per_epoch, count = 0;
    uint64_t key = rng_bits(l->seed, EPOCH_STREAM, epoch), num_files = (uint64_t)l->files.num_files;
    int f = 0;
    for (uint64_t i = 0; i < num_files; i++) {
        f = (int)(l->shuffle ? rng_permute(key, i, num_files) : i);
        count = token_file_sequences(&l->files.files[f], l->T);
        if (k < count) { break; }
        k -= count;
    }
    if (l->shuffle) { k = rng_permute(rng_bits(key, EPOCH_STREAM, (uint64_t)f), k, count); }
    cJSON *source = cJSON_CreateObject();
    cJSON_AddStringToObject(source, "file", l->files.files[f].path);
    cJSON_AddNumberToObject(source, "first_token", (double)(l->files.files[f].first_token + k * (uint64_t)l->T));
    cJSON_AddNumberToObject(source, "tokens", l->T + 1);
    return source;
}

// Appends the places of sequence number s to a JSON array. files: all files of the loader's pattern.
static inline void add_sequence_source(cJSON *array, const DataLoader *l, const TokenFiles *files, uint64_t s) {
    if (!l->rows) {
        cJSON_AddItemToArray(array, token_sequence_source(l, s));
        return;
    }
    int row = loader_row(l, s);
    for (int i = l->rows->first[row]; i < l->rows->first[row + 1]; i++) {
        ExampleSource from = l->rows->examples->sources[l->rows->members[i]];
        cJSON *source = cJSON_CreateObject();
        cJSON_AddStringToObject(source, "file", files->files[from.file].path);
        cJSON_AddNumberToObject(source, "line", (double)from.line);
        cJSON_AddItemToArray(array, source);
    }
}
