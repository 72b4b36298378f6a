/*
Hashes of contents, to compare what ranks hold and read.
defines: hash_word, hash_bytes, hash_file, hash_whole_file
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/rng.h"
#include <fcntl.h>
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
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        input_error("%s: could not open %s: %s; leave the file alone until the run ends", flag, path, strerror(errno));
    }
    off_t last = info.st_size > FINGERPRINT_BYTES ? info.st_size - FINGERPRINT_BYTES : 0;
    hash = hash_word(hash, (uint64_t)info.st_size);
    const off_t begin[3] = {0, last / 2, last};
    for (int i = 0; i < 3; i++) {
        ssize_t got = pread(fd, bytes, sizeof bytes, begin[i]);
        if (got < 0) {
            input_error("%s: could not read %s: %s; give a file that can be read", flag, path, strerror(errno));
        }
        hash = hash_bytes(hash, bytes, (size_t)got);
    }
    close(fd);
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
