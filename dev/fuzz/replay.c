// Runs inputs through the fuzz targets without libFuzzer:   build/sanitize/replay [-d COPIES] FILE...
// The folder of a file is the name of its target: dev/fuzz/found/flags/ab12 goes to fuzz_flags.c. -d also runs damaged
// copies of each file, which depend on the file alone.
#define FUZZ_REPLAY
// NOLINTBEGIN(bugprone-suspicious-include)
#include "dev/fuzz/fuzz_manifest.c"  // first: it replaces open()
#include "dev/fuzz/fuzz_caches.c"
#include "dev/fuzz/fuzz_corpus.c"
#include "dev/fuzz/fuzz_examples.c"
#include "dev/fuzz/fuzz_flags.c"
#include "dev/fuzz/fuzz_hellaswag.c"
#include "dev/fuzz/fuzz_llmc.c"
#include "dev/fuzz/fuzz_merges.c"
#include "dev/fuzz/fuzz_model.c"
#include "dev/fuzz/fuzz_safetensors.c"
#include "dev/fuzz/fuzz_shards.c"
#include "dev/fuzz/fuzz_state.c"
#include "dev/fuzz/fuzz_tokenizer_json.c"
// NOLINTEND(bugprone-suspicious-include)

static const struct {
    const char *name;
    int (*run)(const uint8_t *data, size_t size);
} targets[] = {{"caches", target_caches},
               {"corpus", target_corpus},
               {"examples", target_examples},
               {"flags", target_flags},
               {"hellaswag", target_hellaswag},
               {"llmc", target_llmc},
               {"manifest", target_manifest},
               {"merges", target_merges},
               {"model", target_model},
               {"safetensors", target_safetensors},
               {"shards", target_shards},
               {"state", target_state},
               {"tokenizer_json", target_tokenizer_json}};

// the target of a file; -1: its folder is none
static int find_target(const char *path) {
    char folder[PATH_LENGTH];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash) { return -1; }
    *slash = 0;
    const char *above = strrchr(folder, '/'), *name = above ? above + 1 : folder;
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        if (strcmp(targets[i].name, name) == 0) { return (int)i; }
    }
    return -1;
}

// The whole file, which the caller frees. Its allocation is exact, so that the sanitizer sees a read past its end.
static uint8_t *read_input(const char *path, size_t *size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (bytes < 0) { return NULL; }
    uint8_t *data = (uint8_t *)malloc((size_t)bytes ? (size_t)bytes : 1);
    *size = data && pread(fd, data, (size_t)bytes, 0) == bytes ? (size_t)bytes : 0;
    close(fd);
    return data;
}

static bool in_word(uint8_t c) { return isalnum(c) || c == '_' || c == '-' || c == '.'; }

// Runs copy number `copy` of an input with one damage: a part is replaced by one of `words`, repeated, removed or has a
// bit flipped, or the input ends there. The part is a word of text, or 1 to 16 bytes.
static void run_damaged(int target, const uint8_t *data, size_t size, int copy) {
    static const char *const words[] = {"0",   "-1",   "1e999", "4294967296", "18446744073709551616",
                                        "0.5", "nan",  "null",  "true",       "\"",
                                        "{}",  "\xff", "\t",    "a",          "\n"};
    enum { REPLACE, REPEAT, REMOVE, FLIP, END, DAMAGES };
    const uint64_t bits = rng_bits(hash_bytes(0, data, size), 0, (uint64_t)copy);
    size_t begin = (bits >> 32) % size, end = begin + 1 + bits % 16;
    if (bits >> 4 & 1 && in_word(data[begin])) {
        while (begin > 0 && in_word(data[begin - 1])) { begin--; }
        end = begin;
        while (end < size && in_word(data[end])) { end++; }
    }
    if (end > size) { end = size; }

    // the copy: data[0, before), word, data[after, size)
    const int damage = (int)((bits >> 8) % DAMAGES);
    const char *word = damage == REPLACE ? words[(bits >> 16) % (sizeof words / sizeof words[0])] : "";
    const size_t before = damage == REPEAT || damage == FLIP ? end : begin;
    const size_t after = damage == REPEAT ? begin : damage == END ? size : end;
    const size_t added = strlen(word), total = before + added + size - after;
    uint8_t *damaged = (uint8_t *)malloc(total ? total : 1);
    memcpy(damaged, data, before);
    memcpy(damaged + before, word, added);
    memcpy(damaged + before + added, data + after, size - after);
    if (damage == FLIP) { damaged[begin] ^= (uint8_t)(1u << (bits >> 24) % 8); }
    targets[target].run(damaged, total);
    free(damaged);
}

int main(int argc, char **argv) {
    int counts[sizeof targets / sizeof targets[0]] = {0}, copies = 0, first = 1;
    if (argc > 2 && strcmp(argv[1], "-d") == 0) {
        copies = atoi(argv[2]);
        first = 3;
    }
    for (int i = first; i < argc; i++) {
        size_t size;
        int target = find_target(argv[i]);
        uint8_t *data = read_input(argv[i], &size);
        if (target < 0 || !data) {
            free(data);
            fprintf(stderr, "replay: %s is no file in a folder with the name of a target\n", argv[i]);
            return EXIT_BAD_INPUT;
        }
        fprintf(stderr, "%s\n", argv[i]);  // a sanitizer's report follows the name of the input
        targets[target].run(data, size);
        for (int copy = 0; copy < copies && size > 0; copy++) { run_damaged(target, data, size, copy); }
        free(data);
        counts[target]++;
    }
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) { printf("%s %d\n", targets[i].name, counts[i]); }
    return 0;
}
