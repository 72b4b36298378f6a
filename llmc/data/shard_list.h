/*
The data files of a run in its state.json, so that a resumed run can name the file that is missing, cut or changed.
  [{"file":"fineweb_train_000001.bin","bytes":200001024,"hash":"d3f2ccba6f448fd4"},...]
"file" has no folder: the data may move. "hash" is of 4 KiB at the start, in the middle and at the end of the file.
Older versions wrote a "crc32c" instead, which is not read.
defines: shard_list, shard_list_difference
*/
#pragma once
#include "llmc/common/hash.h"
#include "llmc/data/dataloader.h"
#include <cjson/cJSON.h>
#include <inttypes.h>

// the list of files; the caller deletes it
static inline cJSON *shard_list(const TokenFiles *files) {
    cJSON *list = cJSON_CreateArray();
    for (int f = 0; f < files->num_files; f++) {
        const TokenFile *file = &files->files[f];
        char hash[17];
        snprintf(hash, sizeof hash, "%016" PRIx64, hash_file(0, files->flag, file->path));
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddStringToObject(entry, "file", token_file_name(file));
        cJSON_AddNumberToObject(entry, "bytes", (double)file->bytes);
        cJSON_AddStringToObject(entry, "hash", hash);
        cJSON_AddItemToArray(list, entry);
    }
    return list;
}

// text (size bytes) = an entry in words
static inline void shard_describe(char *text, size_t size, const cJSON *entry) {
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "file"));
    const char *hash = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "hash"));
    double bytes = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(entry, "bytes"));
    snprintf(text, size, entry ? "%.60s of %.0f bytes (hash %.16s)" : "no further file", name ? name : "an entry",
             bytes, hash ? hash : "unknown");
}

// True if two entries have the same item `key`.
static inline bool shard_same(const cJSON *a, const cJSON *b, const char *key) {
    return cJSON_Compare(cJSON_GetObjectItemCaseSensitive(a, key), cJSON_GetObjectItemCaseSensitive(b, key), true);
}

// text (size bytes) = the first difference of the files from a checkpoint's. False if they agree. In order: two files
// may have one name, in two folders.
static inline bool shard_list_difference(char *text, size_t size, const cJSON *saved, const cJSON *now) {
    const cJSON *was = saved->child, *is = now->child;
    while (was && is && shard_same(was, is, "file") && shard_same(was, is, "bytes") &&
           (!cJSON_HasObjectItem(was, "hash") || shard_same(was, is, "hash"))) {
        was = was->next;
        is = is->next;
    }
    if (!was && !is) { return false; }
    char found[120], expected[120];
    shard_describe(found, sizeof found, is);
    shard_describe(expected, sizeof expected, was);
    snprintf(text, size, "found %s, expected %s", found, expected);
    return true;
}
