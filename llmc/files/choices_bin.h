/*
llm.c's eval format: multiple-choice examples of tokens, as llm.c's scripts write them for HellaSwag and MMLU.
defines: choices_is_bin, choices_read_bin

File        little-endian. A header of 256 int32: magic 20240522, version 1, number of examples, bytes of the longest
            example, 0... Then the examples, each of uint16 words:
              0  65535, which is no token
              1  bytes of the example, words 0 to the last
              2  index of the example in the file, from 0
              3  label: the index of the true completion
              4  number of completions, 2 to 1000; HellaSwag and MMLU have 4
              5  lists, the context and the completions in order: a count, then that many token ids
*/
#pragma once
#include "llmc/files/choices.h"
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHOICES_BIN_HEADER_INTS = 256,
    CHOICES_BIN_HEADER_BYTES = 1024,
    CHOICES_BIN_MAGIC = 20240522,
    CHOICES_BIN_VERSION = 1,
    CHOICES_BIN_START = 65535,
    CHOICES_BIN_MAX_EXAMPLES = 65536,  // an index is one word
    CHOICES_BIN_MAX_BYTES = 65535,     // of an example
    CHOICES_BIN_WORDS_BEFORE_LISTS = 5,
};

// a file that is read
typedef struct {
    const char *flag, *path;
    uint32_t header[CHOICES_BIN_HEADER_INTS];
    uint16_t *words;  // the examples
    size_t num_bytes;
    int vocab_size;
    int *ids;  // of one row
} ChoicesBin;

// Whether a file begins with the magic number of llm.c's eval format.
static inline bool choices_is_bin(const char *path) {
    int32_t magic = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // without O_NONBLOCK the open of a pipe hangs
    if (fd < 0) { return false; }
    bool found = read(fd, &magic, sizeof magic) == (ssize_t)sizeof magic && magic == CHOICES_BIN_MAGIC;
    close(fd);
    return found;
}

// stops at an error in one example
__attribute__((noreturn, format(printf, 3, 4))) static inline void
choices_bin_refuse(const ChoicesBin *file, int example, const char *format, ...) {
    char reason[256];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    input_error("%s: example %d of %s %s; copy or make the file again", file->flag, example, file->path, reason);
}

// stops unless the header is of this format and the file is no longer than the header allows
static inline void choices_bin_check_header(const ChoicesBin *file, uint64_t file_bytes) {
    static const char *const name[2] = {"magic number", "version"};
    static const uint32_t expected[2] = {CHOICES_BIN_MAGIC, CHOICES_BIN_VERSION};
    for (int i = 0; i < 2; i++) {
        if (file->header[i] != expected[i]) {
            input_error("%s: %s has %s %" PRIu32 ", expected %" PRIu32
                        " as in llm.c's eval format; copy or make the file again",
                        file->flag, file->path, name[i], file->header[i], expected[i]);
        }
    }
    uint32_t examples = file->header[2], longest = file->header[3];
    uint64_t most = CHOICES_BIN_HEADER_BYTES + (uint64_t)examples * longest;
    if (examples < 1 || examples > CHOICES_BIN_MAX_EXAMPLES || longest > CHOICES_BIN_MAX_BYTES || file_bytes > most) {
        input_error("%s: %s has %" PRIu64 " bytes, but its header says %" PRIu32
                    " examples (1 to %d) of at most %" PRIu32 " bytes (at most %d); copy or make the file again",
                    file->flag, file->path, file_bytes, examples, CHOICES_BIN_MAX_EXAMPLES, longest,
                    CHOICES_BIN_MAX_BYTES);
    }
}

// Reads header and words; stops at a wrong header.
static inline void choices_bin_open(ChoicesBin *file) {
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        input_error("%s: could not open %s: %s; name a file that can be read", file->flag, file->path, strerror(errno));
    }
    FILE *stream = S_ISREG(info.st_mode) ? fdopen(fd, "rb") : NULL;
    if (!stream) { input_error("%s: %s is not a file; name a file that can be read", file->flag, file->path); }
    uint64_t bytes = (uint64_t)info.st_size;
    if (bytes < CHOICES_BIN_HEADER_BYTES || fread(file->header, CHOICES_BIN_HEADER_BYTES, 1, stream) < 1) {
        input_error("%s: %s has %" PRIu64 " bytes, too few for the %d-byte header of llm.c's eval format; copy or make "
                    "the file again",
                    file->flag, file->path, bytes, CHOICES_BIN_HEADER_BYTES);
    }
    choices_bin_check_header(file, bytes);
    size_t left = (size_t)bytes - CHOICES_BIN_HEADER_BYTES;
    file->words = (uint16_t *)xmalloc(left);
    file->num_bytes = fread(file->words, 1, left, stream);
    if (ferror(stream)) { run_error("%s: could not read %s: %s", file->flag, file->path, strerror(errno)); }
    fclose(stream);
}

// stops unless the words of example e before its lists are sound; the file ends `left` bytes after its start
static inline void choices_bin_check_start(const ChoicesBin *file, int e, const uint16_t *x, size_t left) {
    size_t least = sizeof *x * (CHOICES_BIN_WORDS_BEFORE_LISTS + 2 * (1 + 2));
    uint32_t longest = file->header[3];
    if (left < least) { choices_bin_refuse(file, e, "is cut short: the file ends after %zu bytes of it", left); }
    if (x[0] != CHOICES_BIN_START) {
        choices_bin_refuse(file, e, "begins with %d, expected %d", x[0], CHOICES_BIN_START);
    }
    if (x[1] < least || x[1] > longest || x[1] % 2 != 0) {
        choices_bin_refuse(file, e, "says it has %d bytes, expected an even number from %zu to the longest, %" PRIu32,
                           x[1], least, longest);
    }
    if (x[1] > left) {
        choices_bin_refuse(file, e, "is cut short: the file ends after %zu of its %d bytes", left, x[1]);
    }
    if (x[2] != e) { choices_bin_refuse(file, e, "says it is example %d", x[2]); }
    if (x[4] < 2 || x[4] > 1000) { choices_bin_refuse(file, e, "has %d completions, expected 2 to 1000", x[4]); }
    if (x[3] >= x[4]) { choices_bin_refuse(file, e, "has label %d, expected 0 to %d", x[3], x[4] - 1); }
}

// Copies the list at word `at` of example e, x, to ids; returns its length. Stops unless the list is not empty, ends
// within e and has ids below vocab_size.
static inline int choices_bin_list(const ChoicesBin *file, int e, const uint16_t *x, size_t at, int *ids,
                                   const char *name) {
    size_t words = x[1] / 2u;
    if (at >= words || x[at] == 0 || x[at] >= words - at) {
        choices_bin_refuse(file, e, "has a %s that is empty or runs past its %d bytes", name, x[1]);
    }
    for (int i = 0; i < x[at]; i++) {
        ids[i] = x[at + 1 + (size_t)i];
        if (ids[i] < file->vocab_size) { continue; }
        input_error("%s: example %d of %s has token id %d, but the vocabulary has ids 0 to %d; take a model with the "
                    "vocabulary of the file",
                    file->flag, e, file->path, ids[i], file->vocab_size - 1);
    }
    return x[at];
}

// Adds example e, which is sound up to its lists; the ids of a row are its context and one completion.
static inline void choices_bin_add(const ChoicesBin *file, Choices *set, int e, const uint16_t *x) {
    size_t words = x[1] / 2u, at = CHOICES_BIN_WORDS_BEFORE_LISTS;
    ChoiceExample *example = choices_add_example(set, x[3], x[4]);
    example->first = set->num_rows;
    int context = choices_bin_list(file, e, x, at, file->ids, "context");
    bool cut = false;
    at += 1 + (size_t)context;
    for (int i = 0; i < example->num_endings; i++) {
        int length = choices_bin_list(file, e, x, at, file->ids + context, "completion");
        if (length > set->T) {
            input_error("%s: example %d of %s has a completion of %d tokens, but the context is %d; give a larger -t, "
                        "or a model with more positions",
                        file->flag, e, file->path, length, set->T);
        }
        cut |= choices_add_row(set, file->ids, (size_t)context, (size_t)length, 0);
        at += 1 + (size_t)length;
    }
    if (at != words) { choices_bin_refuse(file, e, "has %zu bytes after its last completion", 2 * (words - at)); }
    set->num_cut += cut;
}

// The examples of a file, in llm.c's form, for contexts of T tokens. flag: that named the file, for messages. Stops
// unless the file is sound, every id is below vocab_size, and every completion has at most T tokens. Close with
// choices_close.
static inline Choices choices_read_bin(const char *flag, const char *path, int T, int vocab_size) {
    ChoicesBin file;
    Choices set;
    memset(&file, 0, sizeof file);
    memset(&set, 0, sizeof set);
    set.T = T;
    file.flag = flag;
    file.path = path;
    file.vocab_size = vocab_size;
    choices_bin_open(&file);
    file.ids = (int *)xmalloc(CHOICES_BIN_MAX_BYTES * sizeof(int));
    size_t at = 0;
    for (int e = 0; e < (int)file.header[2]; e++) {
        const uint16_t *x = file.words + at;
        choices_bin_check_start(&file, e, x, file.num_bytes - at * sizeof *x);
        choices_bin_add(&file, &set, e, x);
        at += x[1] / 2u;
    }
    if (at * sizeof *file.words != file.num_bytes) {
        input_error("%s: %s has %zu bytes after the last of its %d examples; copy or make the file again", flag, path,
                    file.num_bytes - at * sizeof *file.words, set.num_examples);
    }
    free(file.words);
    free(file.ids);
    return set;
}
