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
#include <assert.h>
#include <cjson/cJSON.h>
#include <inttypes.h>

// the list of files; the caller deletes it
static inline cJSON *shard_list(const TokenFiles *files) {
    assert(files->num_files > 0);
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

static inline const char *shard_entry_name(const cJSON *entry) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "file"));
}

static inline bool shard_is_listed(const cJSON *list, const char *name) {
    const cJSON *entry = list->child;
    while (entry && (!shard_entry_name(entry) || strcmp(shard_entry_name(entry), name) != 0)) { entry = entry->next; }
    return entry != NULL;
}

// True if two entries have the same item `key`.
static inline bool shard_same(const cJSON *a, const cJSON *b, const char *key) {
    return cJSON_Compare(cJSON_GetObjectItemCaseSensitive(a, key), cJSON_GetObjectItemCaseSensitive(b, key), true);
}

// text (size bytes) = the first difference of the files from a checkpoint's, for example "x.bin has 100 bytes,
// expected 200". False if they agree. In order: two files may have one name, in two folders.
static inline bool shard_list_difference(char *text, size_t size, const cJSON *saved, const cJSON *now) {
    const cJSON *was = saved->child, *is = now->child;
    while (was && is && shard_same(was, is, "file") && shard_same(was, is, "bytes")) { was = was->next, is = is->next; }
    if (!was && !is) {
        for (was = saved->child, is = now->child; was; was = was->next, is = is->next) {
            if (!cJSON_HasObjectItem(was, "hash") || shard_same(was, is, "hash")) { continue; }
            snprintf(text, size, "the content of %.100s has changed", shard_entry_name(was));
            return true;
        }
        return false;
    }
    const char *name = shard_entry_name(was), *name_now = shard_entry_name(is);
    if (name && name_now && strcmp(name, name_now) == 0) {
        snprintf(text, size, "%.100s has %.0f bytes, expected %.0f", name,
                 cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(is, "bytes")),
                 cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(was, "bytes")));
    } else if (name && !shard_is_listed(now, name)) {
        snprintf(text, size, "%.100s is missing", name);
    } else if (name_now && !shard_is_listed(saved, name_now)) {
        snprintf(text, size, "%.100s is new", name_now);
    } else {
        snprintf(text, size, "the list of files differs from %.100s on", name ? name : name_now ? name_now : "its end");
    }
    return true;
}
