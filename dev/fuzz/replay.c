// Runs inputs through the fuzz targets without libFuzzer:   build/sanitize/replay FILE...
// The folder of a file is the name of its target: dev/fuzz/found/flags/ab12 goes to fuzz_flags.c.
#define FUZZ_REPLAY
// NOLINTBEGIN(bugprone-suspicious-include)
#include "dev/fuzz/fuzz_rendezvous.c"  // first: it replaces the socket calls of the headers that it includes
#include "dev/fuzz/fuzz_manifest.c"    // second: it replaces open()
#include "dev/fuzz/fuzz_caches.c"
#include "dev/fuzz/fuzz_choices.c"
#include "dev/fuzz/fuzz_corpus.c"
#include "dev/fuzz/fuzz_examples.c"
#include "dev/fuzz/fuzz_flags.c"
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
               {"choices", target_choices},
               {"corpus", target_corpus},
               {"examples", target_examples},
               {"flags", target_flags},
               {"llmc", target_llmc},
               {"manifest", target_manifest},
               {"merges", target_merges},
               {"model", target_model},
               {"rendezvous", target_rendezvous},
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

int main(int argc, char **argv) {
    int counts[sizeof targets / sizeof targets[0]] = {0};
    for (int i = 1; i < argc; i++) {
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
        free(data);
        counts[target]++;
    }
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) { printf("%s %d\n", targets[i].name, counts[i]); }
    return 0;
}
