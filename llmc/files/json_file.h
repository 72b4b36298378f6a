/*
Small JSON files, read and written whole.
defines: close_synced, write_json, try_read_json, read_json, json_whole
*/
#pragma once
#include "llmc/common/check.h"
#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <unistd.h>

// Syncs and closes a file that is written whole; returns 0 or the errno of a failed write.
static inline int close_synced(FILE *file) {
    int error = ferror(file) || fflush(file) != 0 || fsync(fileno(file)) != 0 ? errno : 0;
    if (fclose(file) != 0 && !error) { error = errno; }
    return error;
}

// writes and syncs a small text file; returns 0 or an errno
static inline int write_text_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file) { return errno; }
    fprintf(file, "%s\n", text);
    return close_synced(file);
}

// Writes a small JSON file under another name, syncs and renames it: `path` holds the old file or the whole new one.
// Returns 0 or an errno.
static inline int write_json(const char *path, const cJSON *json) {
    char aside[PATH_LENGTH], *text = cJSON_Print(json);
    if (!text) { return ENOMEM; }
    format_path(aside, "%s.tmp", path);
    int error = write_text_file(aside, text);
    if (!error && rename(aside, path) != 0) { error = errno; }
    if (error) { unlink(aside); }
    free(text);
    return error;
}

// the text of a whole file and a NUL, which the caller frees; NULL: the file cannot be opened
static inline char *read_text_file(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) { return NULL; }
    size_t length = 0, capacity = 65536, got;
    char *text = (char *)xmalloc(capacity + 1);
    while ((got = fread(text + length, 1, capacity - length, file)) > 0) {
        length += got;
        if (length < capacity) { continue; }
        capacity *= 2;
        text = (char *)xrealloc(text, capacity + 1);
    }
    fclose(file);
    text[length] = 0;
    return text;
}

// the JSON object in a file; NULL: the file is missing, cannot be read or holds no JSON object
static inline cJSON *try_read_json(const char *path) {
    char *text = read_text_file(path);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    free(text);
    if (!cJSON_IsObject(json)) {
        cJSON_Delete(json);
        return NULL;
    }
    return json;
}

// the JSON object in a file; NULL: there is no such file. Stops if the file holds no JSON object.
static inline cJSON *read_json(const char *path) {
    if (access(path, F_OK) != 0) { return NULL; }
    cJSON *json = try_read_json(path);
    if (!json) { input_error("'%s' is not a JSON object; it may have been cut short, so copy or make it again", path); }
    return json;
}

// The integer called `key`. Stops unless it is there and in min..max, which are within 2^53: a double holds it exactly.
static inline int64_t json_whole(const cJSON *json, const char *key, double min, double max, const char *path) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!cJSON_IsNumber(item)) {
        input_error("'%s' has no number named \"%s\", expected as in every GPT-2 checkpoint; copy the file again", path,
                    key);
    }
    double x = item->valuedouble;
    if (!(x >= min && x <= max) || x != floor(x)) {
        input_error("'%s' has %g as \"%s\", expected a whole number from %.0f to %.0f", path, x, key, min, max);
    }
    return (int64_t)x;
}
