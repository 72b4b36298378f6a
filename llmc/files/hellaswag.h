/*
HellaSwag (Zellers et al. 2019): the model chooses one of four completions of a text.
defines: HELLASWAG_PATH, HellaSwag, hellaswag_open, hellaswag_batches, hellaswag_next_batch, hellaswag_score,
         hellaswag_rewind, hellaswag_close

File        llm.c's eval format, little-endian, made by dev/data/hellaswag.py. A header of 256 int32: magic 20240522,
            version 1, number of examples, bytes of the longest example, 0... Then the examples, each of uint16 words:
              0  65535, which is no token
              1  bytes of the example, words 0 to the last
              2  index of the example in the file, from 0
              3  label: the index of the true completion, 0 to 3
              4  number of completions: 4
              5  five lists, the context and the completions in order: a count, then that many token ids
Rows        An example takes four rows of a micro-batch (B,T): row i is the context followed by completion i. Inputs are
            all tokens but the last, targets all tokens but the first. A batch holds B / 4 examples. Positions after the
            end of a row are token 0, and their losses are not used.
Score       of a completion: the mean loss of its tokens. The last position of the context predicts the completion's
            first token. The lowest score is the model's choice, the earlier of two equal scores; NaN is never the
            lowest. The accuracy is the fraction of examples whose choice is the label: about 0.25 for an untrained
            model.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#define HELLASWAG_PATH "dev/data/hellaswag/hellaswag_val.bin"

enum {
    HELLASWAG_HEADER_INTS = 256,
    HELLASWAG_HEADER_BYTES = 1024,
    HELLASWAG_MAGIC = 20240522,
    HELLASWAG_VERSION = 1,
    HELLASWAG_CHOICES = 4,
    HELLASWAG_START = 65535,
    HELLASWAG_MAX_EXAMPLES = 65536,  // an index is one word
    HELLASWAG_MAX_BYTES = 65535,     // of an example
    HELLASWAG_WORDS_BEFORE_LISTS = 5,
};

typedef struct {
    int *inputs, *targets;  // (B,T) each: the batch
    int B, T;
    const char *path;
    uint32_t max_bytes;  // of an example, from the header
    int vocab_size;
    int num_examples;
    int longest;         // positions of the longest row
    uint16_t *words;     // the examples as in the file
    size_t *starts;      // (num_examples) index of each example's word 0
    int *first, *count;  // (B) the positions of a row that predict its completion: [first, first + count)
    int begin, end;      // examples begin..end-1 are in the batch
    int scored, correct;
} HellaSwag;

// ---- reading the file

// stops at an error in one example
__attribute__((noreturn, format(printf, 3, 4))) static inline void hellaswag_refuse(const HellaSwag *set, int example,
                                                                                    const char *format, ...) {
    char reason[256];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    input_error("-h 1: example %d of %s %s; make the file again with dev/data/hellaswag.py", example, set->path,
                reason);
}

static inline FILE *hellaswag_open_file(const char *path, uint64_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // without O_NONBLOCK the open of a pipe hangs
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        input_error("-h 1: could not open %s: %s; make it with dev/data/hellaswag.py, or give -h 0", path,
                    strerror(errno));
    }
    FILE *file = S_ISREG(info.st_mode) ? fdopen(fd, "rb") : NULL;
    if (!file) { input_error("-h 1: %s is not a file; make it with dev/data/hellaswag.py, or give -h 0", path); }
    *bytes = (uint64_t)info.st_size;
    return file;
}

// stops unless the header is of this format and the file is no longer than the header allows
static inline void hellaswag_check_header(const char *path, const uint32_t *header, uint64_t file_bytes) {
    static const char *const name[2] = {"magic number", "version"};
    static const uint32_t expected[2] = {HELLASWAG_MAGIC, HELLASWAG_VERSION};
    for (int i = 0; i < 2; i++) {
        if (header[i] != expected[i]) {
            input_error("-h 1: %s has %s %" PRIu32 ", expected %" PRIu32
                        " as in llm.c's eval format; make the file again with dev/data/hellaswag.py",
                        path, name[i], header[i], expected[i]);
        }
    }
    uint32_t examples = header[2], longest = header[3];
    uint64_t most = HELLASWAG_HEADER_BYTES + (uint64_t)examples * longest;
    if (examples < 1 || examples > HELLASWAG_MAX_EXAMPLES || longest > HELLASWAG_MAX_BYTES || file_bytes > most) {
        input_error("-h 1: %s has %" PRIu64 " bytes, but its header says %" PRIu32
                    " examples (1 to %d) of at most %" PRIu32
                    " bytes (at most %d); make the file again with dev/data/hellaswag.py",
                    path, file_bytes, examples, HELLASWAG_MAX_EXAMPLES, longest, HELLASWAG_MAX_BYTES);
    }
}

// The bytes after the header, *num_bytes of them; stops at a wrong header. The caller frees them.
static inline uint16_t *hellaswag_read(const char *path, uint32_t *header, size_t *num_bytes) {
    uint64_t file_bytes;
    FILE *file = hellaswag_open_file(path, &file_bytes);
    if (file_bytes < HELLASWAG_HEADER_BYTES || fread(header, HELLASWAG_HEADER_BYTES, 1, file) < 1) {
        input_error("-h 1: %s has %" PRIu64
                    " bytes, too few for the %d-byte header of llm.c's eval format; make the file again "
                    "with dev/data/hellaswag.py",
                    path, file_bytes, HELLASWAG_HEADER_BYTES);
    }
    hellaswag_check_header(path, header, file_bytes);
    size_t bytes_left = (size_t)file_bytes - HELLASWAG_HEADER_BYTES;
    uint16_t *words = (uint16_t *)xmalloc(bytes_left);
    *num_bytes = fread(words, 1, bytes_left, file);
    if (ferror(file)) {
        input_error("-h 1: could not read %s: %s; make it again with dev/data/hellaswag.py, or give -h 0", path,
                    strerror(errno));
    }
    fclose(file);
    return words;
}

// stops unless the words of example e before its lists are sound; the file ends `left` bytes after its start
static inline void hellaswag_check_start(const HellaSwag *set, int e, const uint16_t *x, size_t left) {
    size_t least = sizeof *x * (HELLASWAG_WORDS_BEFORE_LISTS + 2 * (1 + HELLASWAG_CHOICES));
    if (left < least) { hellaswag_refuse(set, e, "is cut short: the file ends after %zu bytes of it", left); }
    if (x[0] != HELLASWAG_START) { hellaswag_refuse(set, e, "begins with %d, expected %d", x[0], HELLASWAG_START); }
    if (x[1] < least || x[1] > set->max_bytes || x[1] % 2 != 0) {
        hellaswag_refuse(set, e, "says it has %d bytes, expected an even number from %zu to the longest, %" PRIu32,
                         x[1], least, set->max_bytes);
    }
    if (x[1] > left) { hellaswag_refuse(set, e, "is cut short: the file ends after %zu of its %d bytes", left, x[1]); }
    if (x[2] != e) { hellaswag_refuse(set, e, "says it is example %d", x[2]); }
    if (x[3] >= HELLASWAG_CHOICES) { hellaswag_refuse(set, e, "has label %d, expected 0 to 3", x[3]); }
    if (x[4] != HELLASWAG_CHOICES) { hellaswag_refuse(set, e, "has %d completions, expected 4", x[4]); }
}

// the length of the list at word `at` of example e, x; stops unless the list is not empty, ends within e and has good
// ids
static inline int hellaswag_check_list(const HellaSwag *set, int e, const uint16_t *x, size_t at, const char *name) {
    size_t words = x[1] / 2u;
    if (at >= words || x[at] == 0 || x[at] >= words - at) {
        hellaswag_refuse(set, e, "has a %s that is empty or runs past its %d bytes", name, x[1]);
    }
    const uint16_t *tokens = x + at + 1;
    for (int i = 0; i < x[at]; i++) {
        if (tokens[i] >= set->vocab_size) {
            input_error(
                "-h 1: example %d of %s has token id %d, but the vocabulary has ids 0 to %d; train a model with "
                "GPT-2's vocabulary, or give -h 0",
                e, set->path, tokens[i], set->vocab_size - 1);
        }
    }
    return x[at];
}

// stops unless example e is whole and sound; returns the positions of its longest row
static inline int hellaswag_check_example(const HellaSwag *set, int e, const uint16_t *x, size_t left) {
    hellaswag_check_start(set, e, x, left);
    size_t words = x[1] / 2u, at = HELLASWAG_WORDS_BEFORE_LISTS;
    int context = hellaswag_check_list(set, e, x, at, "context"), longest = 0;
    at += 1 + (size_t)context;
    for (int i = 0; i < HELLASWAG_CHOICES; i++) {
        int completion = hellaswag_check_list(set, e, x, at, "completion");
        longest = completion > longest ? completion : longest;
        at += 1 + (size_t)completion;
    }
    if (at != words) { hellaswag_refuse(set, e, "has %zu bytes after its last completion", 2 * (words - at)); }
    return context + longest - 1;
}

// checks every example and sets starts and longest
static inline void hellaswag_index(HellaSwag *set, size_t num_bytes) {
    size_t at = 0;
    set->longest = 1;
    for (int e = 0; e < set->num_examples; e++) {
        int row = hellaswag_check_example(set, e, set->words + at, num_bytes - at * sizeof *set->words);
        set->longest = row > set->longest ? row : set->longest;
        set->starts[e] = at;
        at += set->words[at + 1] / 2u;
    }
    size_t used = at * sizeof *set->words;
    if (used != num_bytes) {
        input_error("-h 1: %s has %zu bytes after the last of its %d examples; make the file again with "
                    "dev/data/hellaswag.py",
                    set->path, num_bytes - used, set->num_examples);
    }
}

// ---- batches

// The examples of a file, for micro-batches (B,T) of a model with vocab_size tokens. Stops unless the file is sound,
// every id is below vocab_size, and every row fits. `path` is not copied. Close with hellaswag_close.
static inline HellaSwag hellaswag_open(const char *path, int B, int T, int vocab_size) {
    if (B < HELLASWAG_CHOICES) {
        input_error("-h 1: an example of HellaSwag takes 4 sequences at once, but -b is %d; give -b 4 or more, or -h 0",
                    B);
    }
    HellaSwag set;
    memset(&set, 0, sizeof set);
    uint32_t header[HELLASWAG_HEADER_INTS];
    size_t num_bytes, positions = (size_t)B * (size_t)T;
    set.B = B;
    set.T = T;
    set.path = path;
    set.vocab_size = vocab_size;
    set.words = hellaswag_read(path, header, &num_bytes);
    set.num_examples = (int)header[2];
    set.starts = (size_t *)xcalloc((size_t)set.num_examples, sizeof(size_t));
    set.max_bytes = header[3];
    hellaswag_index(&set, num_bytes);
    if (set.longest > T) {
        input_error(
            "-h 1: the longest example of %s takes sequences of %d tokens, but -t is %d; give -t %d or more, or "
            "-h 0",
            path, set.longest, T, set.longest);
    }
    set.inputs = (int *)xcalloc(positions, sizeof(int));
    set.targets = (int *)xcalloc(positions, sizeof(int));
    set.first = (int *)xcalloc((size_t)B, sizeof(int));
    set.count = (int *)xcalloc((size_t)B, sizeof(int));
    return set;
}

static inline void hellaswag_close(HellaSwag *set) {
    free(set->count);
    free(set->first);
    free(set->targets);
    free(set->inputs);
    free(set->starts);
    free(set->words);
}

static inline int hellaswag_examples_per_batch(const HellaSwag *set) { return set->B / HELLASWAG_CHOICES; }

// the number of batches that hold all examples
static inline int hellaswag_batches(const HellaSwag *set) {
    int each = hellaswag_examples_per_batch(set);
    return (set->num_examples + each - 1) / each;
}

// goes back to before the first batch, with nothing scored
static inline void hellaswag_rewind(HellaSwag *set) { set->begin = set->end = set->scored = set->correct = 0; }

// the lists of example e
static inline const uint16_t *hellaswag_lists(const HellaSwag *set, int e) {
    return set->words + set->starts[e] + HELLASWAG_WORDS_BEFORE_LISTS;
}

// row `row` of the batch = the context and one completion, each a list: a count, then the tokens
static inline void hellaswag_fill_row(HellaSwag *set, int row, const uint16_t *context, const uint16_t *completion) {
    int *inputs = set->inputs + (size_t)row * (size_t)set->T, *targets = set->targets + (size_t)row * (size_t)set->T;
    int before = context[0], after = completion[0];
    for (int i = 0; i < before + after; i++) {
        int token = i < before ? context[1 + i] : completion[1 + i - before];
        if (i > 0) { targets[i - 1] = token; }
        if (i < before + after - 1) { inputs[i] = token; }
    }
    set->first[row] = before - 1;
    set->count[row] = after;
}

// inputs and targets (B,T) = the next batch; after the last batch, zeros
static inline void hellaswag_next_batch(HellaSwag *set) {
    size_t bytes = (size_t)set->B * (size_t)set->T * sizeof(int);
    int left = set->num_examples - set->end, each = hellaswag_examples_per_batch(set);
    memset(set->inputs, 0, bytes);
    memset(set->targets, 0, bytes);
    set->begin = set->end;
    set->end += left < each ? left : each;
    for (int e = set->begin, row = 0; e < set->end; e++) {
        const uint16_t *context = hellaswag_lists(set, e), *completion = context + 1 + context[0];
        for (int i = 0; i < HELLASWAG_CHOICES; i++, row++) {
            hellaswag_fill_row(set, row, context, completion);
            completion += 1 + completion[0];
        }
    }
}

// ---- scores

// the completion of lowest mean loss of the four rows from `row` on; -1: all are NaN
static inline int hellaswag_choice(const HellaSwag *set, const real *losses, int row) {
    double lowest = INFINITY;
    int choice = -1;
    for (int i = 0; i < HELLASWAG_CHOICES; i++) {
        const real *loss = losses + (size_t)(row + i) * (size_t)set->T + set->first[row + i];
        double sum = 0;
        for (int t = 0; t < set->count[row + i]; t++) { sum += (double)loss[t]; }
        if (sum / set->count[row + i] < lowest) {
            lowest = sum / set->count[row + i];
            choice = i;
        }
    }
    return choice;
}

// Scores the examples of the batch; called once for each batch. losses (B,T), on the host: the loss at each position.
static inline void hellaswag_score(HellaSwag *set, const real *losses) {
    for (int e = set->begin, row = 0; e < set->end; e++, row += HELLASWAG_CHOICES) {
        int label = set->words[set->starts[e] + 3];
        set->correct += hellaswag_choice(set, losses, row) == label;
        set->scored++;
    }
}
