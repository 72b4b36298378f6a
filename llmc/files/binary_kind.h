/*
Binary formats by the first bytes of a file, so that a model or an archive is not read as text.
defines: binary_refuse
*/
#pragma once
#include "llmc/common/check.h"

// The format of a file that begins with `head` (bytes), in words that follow "is"; NULL: none of those known here. A
// safetensors file begins with a length of 8 bytes, whose last ones are 0, and JSON. Letters alone do not count: a text
// may begin with "GGUF" or "BZh".
static inline const char *binary_kind(const char *head, size_t bytes) {
    static const struct {
        const char *magic;
        size_t length;
        const char *kind;
    } kinds[] = {{"GGUF\3\0\0\0", 8, "a GGUF model"},
                 {"GGUF\2\0\0\0", 8, "a GGUF model"},
                 {"PK\3\4", 4, "a zip archive"},
                 {"\xff\xfe", 2, "text in UTF-16"},
                 {"\xfe\xff", 2, "text in UTF-16"},
                 {"\x1f\x8b", 2, "compressed with gzip"},
                 {"BZh91AY&SY", 10, "compressed with bzip2"},
                 {"\xfd"
                  "7zXZ",
                  5, "compressed with xz"},
                 {"\x28\xb5\x2f\xfd", 4, "compressed with zstd"},
                 {"PAR1\x15", 5, "a Parquet table"},
                 {"%PDF-", 5, "a PDF document"},
                 {"\x89PNG", 4, "a PNG picture"},
                 {"\x7f"
                  "ELF",
                  4, "a program"}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (bytes >= kinds[i].length && memcmp(head, kinds[i].magic, kinds[i].length) == 0) { return kinds[i].kind; }
    }
    if (bytes > 8 && memcmp(head + 5, "\0\0\0{", 4) == 0) { return "a safetensors model"; }
    return NULL;
}

// Stops if a regular file that should be text begins as a known binary format. flag: the flag that gave the file; the
// message names it. A file that cannot be read passes.
static inline void binary_refuse(const char *flag, const char *path) {
    char head[16];
    FILE *file = fopen(path, "rb");
    size_t bytes = file ? fread(head, 1, sizeof head, file) : 0;
    if (file) { fclose(file); }
    const char *kind = binary_kind(head, bytes);
    if (kind) { input_error("%s: %s is %s; expected text in UTF-8", flag, path, kind); }
}
