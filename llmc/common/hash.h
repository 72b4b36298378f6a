/*
Hashes of contents, to compare what ranks hold and read.
defines: hash_word, hash_bytes, hash_file, print_same_files, hash_whole_file
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/rng.h"
#include <sys/stat.h>
#include <unistd.h>

static inline uint64_t hash_word(uint64_t hash, uint64_t word) { return rng_mix(hash ^ word); }

// Hashes bytes (n) and their number, so that "ab", "c" and "a", "bc" differ. Any byte order gives the same hash.
static inline uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n) {
    hash = hash_word(hash, n);
    uint64_t word = 0;
    for (size_t i = 0; i < n; i++) {
        word = word << 8 | ((const uint8_t *)bytes)[i];
        if (i % 8 == 7 || i == n - 1) {
            hash = hash_word(hash, word);
            word = 0;
        }
    }
    return hash;
}

enum { FINGERPRINT_BYTES = 4096 };

// hashes the size of a file, and 4 KiB of it at the start, in the middle and at the end
static inline uint64_t hash_file(uint64_t hash, const char *flag, const char *path) {
    uint8_t bytes[FINGERPRINT_BYTES];
    struct stat info;
    int fd = open_regular(path, &info), error = fd < 0 ? errno : 0;
    if (!error) {
        uint64_t size = (uint64_t)info.st_size, n = size < sizeof bytes ? size : sizeof bytes, last = size - n;
        const uint64_t begin[3] = {0, last / 2, last};
        hash = hash_word(hash, size);
        for (int i = 0; i < 3 && !error; i++) {
            error = read_exact(fd, bytes, n, begin[i]);
            hash = hash_bytes(hash, bytes, n);
        }
        close(fd);
    }
    if (error) {
        input_error("%s: could not read %s: %s; leave the file alone until the run ends", flag, path,
                    read_error(error));
    }
    return hash;
}

// Prints a note if two of the files (n) of a flag are the same by hash_file, or with `other_flag` if one of them is
// also one of its files (m): the first pair.
static inline void print_same_files(FILE *out, const char *flag, char *const *files, int n, const char *other_flag,
                                    char *const *others, int m) {
    int total = n + m, found = 0;
    uint64_t *hashes = (uint64_t *)xcalloc((size_t)total, sizeof *hashes);
    for (int i = 0; i < total; i++) {
        const char *path = others && i >= n ? others[i - n] : files[i];
        hashes[i] = strcmp(path, "-") == 0 ? 0 : hash_file(0, i < n ? flag : other_flag, path);
    }
    for (int i = 0; i < n && !found; i++) {
        for (int k = other_flag ? n : i + 1; k < total && !found; k++) {
            found = hashes[i] && hashes[i] == hashes[k];
            if (!found) { continue; }
            const char *second = others && k >= n ? others[k - n] : files[k];
            fprintf(out, "note      %s is the same file as %s: %s\n", second, files[i],
                    other_flag ? "the validation loss is that of training data" : "its data is read twice");
        }
    }
    free(hashes);
}

// hashes all bytes of a file; a file that cannot be read counts as empty
static inline uint64_t hash_whole_file(uint64_t hash, const char *path) {
    static uint8_t bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    size_t got;
    while (file && (got = fread(bytes, 1, sizeof bytes, file)) > 0) { hash = hash_bytes(hash, bytes, got); }
    if (file) { fclose(file); }
    return hash;
}
