/*
Hashes of contents, to compare what ranks hold and read.
defines: hash_word, hash_bytes, hash_file, hash_whole_file, print_same_files
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

// hashes all bytes of a file; a file that cannot be read counts as empty
static inline uint64_t hash_whole_file(uint64_t hash, const char *path) {
    static uint8_t bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    size_t got;
    while (file && (got = fread(bytes, 1, sizeof bytes, file)) > 0) { hash = hash_bytes(hash, bytes, got); }
    if (file) { fclose(file); }
    return hash;
}

// Prints a note on the first two of the files (n) with the same content. The first num_train are for training.
static inline void print_same_files(FILE *out, char *const *paths, int n, int num_train) {
    uint64_t *hashes = (uint64_t *)xcalloc((size_t)n, sizeof *hashes);
    for (int k = 0, i; k < n && strcmp(paths[k], "-") != 0; k++) {
        hashes[k] = hash_file(0, k < num_train ? "-i" : "-j", paths[k]);
        for (i = 0; i < k; i++) {
            if (hashes[i] == hashes[k] && hash_whole_file(0, paths[i]) == hash_whole_file(0, paths[k])) { break; }
        }
        if (i == k) { continue; }
        bool crosses = i < num_train && k >= num_train;
        fprintf(out, "note      %s %s has the same content as %s %s: %s\n", k < num_train ? "-i" : "-j", paths[k],
                i < num_train ? "-i" : "-j", paths[i],
                crosses ? "the validation loss is that of training data" : "its data is read twice");
        break;
    }
    free(hashes);
}
