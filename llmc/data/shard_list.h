/*
The data files of a run in its state.json, so that a resumed run can name the file that is missing, cut or changed.
  [{"file":"fineweb_train_000001.bin","bytes":200001024,"crc32c":"0a1b2c3d"},...]
"file" has no folder: the data may move. The CRC32C is of the whole file if all files have at most 256 MiB together.
Otherwise the CRC32C is of blocks of 64 KiB at equal distances, with the first and the last block of the file: about
256 MiB in all files together, and at least two blocks per file.
defines: shard_list, shard_list_difference
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/crc32c.h"
#include "llmc/common/create_file.h"
#include "llmc/data/dataloader.h"
#include <assert.h>
#include <cjson/cJSON.h>

enum { SHARD_BLOCK = 64 << 10, SHARD_LIST_BYTES = 256 << 20 };

// the CRC32C of a file of `bytes` bytes, or of `blocks` blocks of it if these are fewer
static inline uint32_t shard_crc(const char *flag, const char *path, uint64_t bytes, uint64_t blocks) {
    static uint8_t block[SHARD_BLOCK];
    uint64_t all = (bytes + SHARD_BLOCK - 1) / SHARD_BLOCK, count = blocks < all ? blocks : all;
    uint32_t crc = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { input_error("%s: could not open %s: %s; give files that can be read", flag, path, strerror(errno)); }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = count == all ? i * SHARD_BLOCK : i * (bytes - SHARD_BLOCK) / (count - 1);
        size_t n = bytes - at < SHARD_BLOCK ? (size_t)(bytes - at) : (size_t)SHARD_BLOCK;
        int error = read_exact(fd, block, n, at);
        if (error) {
            input_error("%s: could not read %s: %s; give files that can be read", flag, path, read_error(error));
        }
        crc = crc32c(crc, block, n);
    }
    close(fd);
    return crc;
}

// the list of files; the caller deletes it
static inline cJSON *shard_list(const TokenFiles *files) {
    assert(files->num_files > 0);
    cJSON *list = cJSON_CreateArray();
    uint64_t total = 0, blocks = SHARD_LIST_BYTES / SHARD_BLOCK / (uint64_t)files->num_files;
    for (int f = 0; f < files->num_files; f++) { total += files->files[f].bytes; }
    if (total <= SHARD_LIST_BYTES) { blocks = UINT64_MAX; }
    for (int f = 0; f < files->num_files; f++) {
        const TokenFile *file = &files->files[f];
        char crc[16];
        snprintf(crc, sizeof crc, "%08x", shard_crc(files->flag, file->path, file->bytes, blocks < 2 ? 2 : blocks));
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddStringToObject(entry, "file", token_file_name(file));
        cJSON_AddNumberToObject(entry, "bytes", (double)file->bytes);
        cJSON_AddStringToObject(entry, "crc32c", crc);
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
// expected 200". False if they agree. In order: two files may have one name, in two folders. Names and sizes
// come first: the blocks of a CRC32C depend on them.
static inline bool shard_list_difference(char *text, size_t size, const cJSON *saved, const cJSON *now) {
    const cJSON *was = saved->child, *is = now->child;
    while (was && is && shard_same(was, is, "file") && shard_same(was, is, "bytes")) { was = was->next, is = is->next; }
    if (!was && !is) {
        for (was = saved->child, is = now->child; was && shard_same(was, is, "crc32c");
             was = was->next, is = is->next) {}
        if (was) { snprintf(text, size, "the content of %.100s has changed", shard_entry_name(was)); }
        return was != NULL;
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
