/*
manifest.json of a checkpoint: the size and the CRC32C of each of its files.
  {"files":{"config.json":{"bytes":711,"crc32c":"0a1b2c3d"},...}}
A wrong byte in the manifest itself gives a wrong name, size or CRC32C. Older versions also wrote the manifest's own
"crc32c" after "files"; it is not read.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/crc32c.h"
#include "llmc/common/create_file.h"
#include "llmc/common/json_file.h"
#include <dirent.h>
#include <inttypes.h>
#include <sys/stat.h>

#define MANIFEST "manifest.json"

// The size of a file and, unless crc is NULL, its CRC32C, read by all threads. Returns 0 or an errno; ENODATA: the file
// became shorter.
static inline int file_crc(const char *path, uint64_t *size, uint32_t *crc) {
    enum { PART = 1 << 22 };
    struct stat info;
    int fd = open_regular(path, &info), error = 0;
    if (fd < 0) { return errno; }
    uint64_t bytes = (uint64_t)info.st_size, read = crc ? bytes : 0;
    uint32_t parts = 0;
#pragma omp parallel for schedule(dynamic) reduction(^ : parts) reduction(max : error) if (read > 2 * PART)
    for (uint64_t at = 0; at < read; at += PART) {
        size_t n = bytes - at < PART ? (size_t)(bytes - at) : (size_t)PART;
        void *part = xmalloc(n);
        int failed = read_exact(fd, part, n, at);
        if (!failed) { parts ^= crc32c_part(part, n, bytes - at - n); }
        if (failed > error) { error = failed; }
        free(part);
    }
    close(fd);
    *size = bytes;
    if (crc) { *crc = crc32c_whole(parts, bytes); }
    return error;
}

// Writes the manifest of a folder. crcs (count): the CRC32C of names (count), which are not read again. Returns 0 or an
// errno.
static inline int manifest_write(const char *folder, const char *const *names, const uint32_t *crcs, int count) {
    char path[PATH_LENGTH], text[16];
    struct dirent **entries;
    cJSON *json = cJSON_CreateObject(), *files = cJSON_AddObjectToObject(json, "files");
    int found = scandir(folder, &entries, NULL, alphasort), error = found < 0 ? errno : 0;
    for (int i = 0, known; i < found; i++) {
        const char *name = entries[i]->d_name;
        uint64_t bytes = 0;
        for (known = 0; known < count && strcmp(names[known], name) != 0;) { known++; }
        uint32_t crc = known < count ? crcs[known] : 0;
        format_path(path, "%s/%s", folder, name);
        if (!error && name[0] != '.') {
            error = file_crc(path, &bytes, known < count ? NULL : &crc);
            snprintf(text, sizeof text, "%08x", crc);
            cJSON *entry = cJSON_AddObjectToObject(files, name);
            cJSON_AddNumberToObject(entry, "bytes", (double)bytes);
            cJSON_AddStringToObject(entry, "crc32c", text);
        }
        free(entries[i]);
    }
    if (found >= 0) { free(entries); }
    format_path(path, "%s/" MANIFEST, folder);
    if (!error) { error = write_json(path, json); }
    cJSON_Delete(json);
    return error;
}

// Compares a file with its entry. Returns 0, EBADMSG for a difference, or the errno of a file that could not be read.
// why (size bytes): what is wrong, in words that follow the name of the folder.
static inline int manifest_compare(const char *folder, const cJSON *entry, char *why, size_t size) {
    char path[PATH_LENGTH], text[16];
    uint64_t own_bytes = 0;
    uint32_t crc = 0;
    const char *name = entry->string, *sum = cJSON_GetStringValue(json_get(entry, "crc32c"));
    const cJSON *bytes = json_get(entry, "bytes");
    if (name[0] == '.' || strchr(name, '/') || !cJSON_IsNumber(bytes) || !sum) {  // no name leads out of the folder
        snprintf(why, size, MANIFEST " has an entry of another program, '%.100s'", name);
        return EBADMSG;
    }
    format_path(path, "%s/%.300s", folder, name);
    int error = file_crc(path, &own_bytes, &crc);
    if (error) {
        snprintf(why, size, "%.100s could not be read: %s", name, read_error(error));
        return error;
    }
    snprintf(text, sizeof text, "%08x", crc);
    if ((double)own_bytes == bytes->valuedouble && strcmp(text, sum) == 0) { return 0; }
    snprintf(why, size, "%.100s has %" PRIu64 " bytes and CRC32C %s, expected %.0f and %.8s", name, own_bytes, text,
             bytes->valuedouble, sum);
    return EBADMSG;
}

// Compares the files of a folder with its manifest, if it has one, but not the file `except` (may be NULL). Returns the
// result and `why` of manifest_compare for the first file that differs.
static inline int manifest_check(const char *folder, const char *except, char *why, size_t size) {
    char path[PATH_LENGTH];
    uint64_t bytes;
    uint32_t crc;
    format_path(path, "%s/" MANIFEST, folder);
    int error = file_crc(path, &bytes, &crc);
    if (error == ENOENT) { return 0; }
    cJSON *json = error ? NULL : try_read_json(path), *entry;
    const cJSON *files = json_get(json, "files");
    if (!cJSON_IsObject(files)) {
        snprintf(why, size, MANIFEST " could not be read: %s", error ? read_error(error) : "it lists no files");
        error = error ? error : EBADMSG;
    }
    cJSON_ArrayForEach(entry, files) {
        if (!error && (!except || strcmp(entry->string, except) != 0)) {
            error = manifest_compare(folder, entry, why, size);
        }
    }
    cJSON_Delete(json);
    return error;
}
