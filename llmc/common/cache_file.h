/*
A cache: a text file with a line for each entry, the key, a tab and the value. The last line of a key counts. Lines of
another version or a damaged file are never found, or have a value that the reader refuses.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"

// Returns the environment variable's value, or NULL if that is empty. If it is not set, creates the folders of
// ~/.cache/train_gpt2/NAME and returns that path. Returns "" if HOME is not set, or if the file is another user's or
// others can write to it, since caches choose kernels.
static inline const char *cache_path(char *path, const char *variable, const char *name) {
    const char *given = getenv(variable), *home = getenv("HOME");
    if (given) { return *given ? given : NULL; }
    if (!home || !*home) { return ""; }
    format_path(path, "%s/.cache", home);
    mkdir(path, FOLDER_MODE);
    format_path(path, "%s/.cache/train_gpt2", home);
    mkdir(path, FOLDER_MODE);
    format_path(path, "%s/.cache/train_gpt2/%s", home, name);
    struct stat info;
    if (stat(path, &info) == 0 && (info.st_uid != geteuid() || (info.st_mode & S_IWOTH))) {
        fprintf(stderr, "train_gpt2: %s is another user's, or others can write to it, and is not used: remove it\n",
                path);
        return "";
    }
    return path;
}

// Returns false, with value unchanged, if there is no entry. A last line without a newline was cut short: we skip it.
static inline bool cache_find(const char *path, const char *key, char *value, size_t room) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t size = 0, length = strlen(key);
    bool found = false;
    while (file && getline(&line, &size, file) > 0) {
        size_t end = strcspn(line, "\n");
        if (strncmp(line, key, length) != 0 || line[length] != '\t' || line[end] != '\n') { continue; }
        snprintf(value, room, "%.*s", (int)(end - length - 1), line + length + 1);
        found = true;
    }
    free(line);
    if (file) { fclose(file); }
    return found;
}

// Appends a line in one write: lines of several processes do not mix. Returns 0 or errno.
static inline int cache_add(const char *path, const char *key, const char *value) {
    FILE *file = open_written(path, O_WRONLY | O_CREAT | O_APPEND, "a");
    if (!file) { return errno; }
    fprintf(file, "%s\t%s\n", key, value);
    return fclose(file) == 0 ? 0 : errno;
}

// Parses a number, a tab and exactly 2 * n hex digits; other text may follow. Returns false if text has another form.
static inline bool parse_number_and_hex(const char *text, int *number, void *bytes, size_t n) {
    unsigned char *byte = (unsigned char *)bytes;
    char *hex;
    *number = (int)strtol(text, &hex, 10);
    if (hex == text || *hex++ != '\t' || strspn(hex, "0123456789abcdef") != 2 * n) { return false; }
    for (size_t i = 0; i < n; i++) { sscanf(hex + 2 * i, "%2hhx", &byte[i]); }
    return true;
}
