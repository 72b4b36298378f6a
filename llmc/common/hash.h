// Hashes of contents, to compare what ranks hold and read.
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

// hashes the size of a file, and 4 KiB of it at the start, in the middle and at the end
static inline uint64_t hash_file(uint64_t hash, const char *flag, const char *path) {
    uint8_t bytes[4096];
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
