// Fuzzes the files in the user's cache: the autotune cache and the machines that passed the self-check.
// Neither stops the program: what cannot be used is ignored.
#include "dev/fuzz/fuzz.h"
#include "llmc/common/autotune_line.h"
#include "llmc/self_check/self_check.h"

static void read_autotune_cache(FuzzBytes input) {
    FILE *file = fopen(fuzz_write("picks.txt", input), "r");
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) > 0) {
        unsigned char algo[64];
        int fused;
        float microseconds;
        if (!autotune_line_parse(line, &fused, algo, sizeof algo, &microseconds)) { continue; }
        fuzz_require(fused >= 0 && microseconds >= 0, "a number of parts and a time");
    }
    free(line);
    fclose(file);
}

static void read_self_check(FuzzBytes input) {
    FallbackKernels fallback;
    memset(&fallback, 0, sizeof fallback);
    bool found = self_check_recall(fuzz_write("self_check.txt", input), "GPU", &fallback);
    for (int i = 0; i < NUM_FALLBACKS && found; i++) {
        fuzz_require(fallback.level[i] >= 0 && fallback.level[i] < FALLBACK_LEVELS, "a level of kernels");
    }
}

static void read_caches(FuzzBytes input) {
    if (fuzz_choice(&input, 2) == 0) {
        read_autotune_cache(input);
    } else {
        read_self_check(input);
    }
}

FUZZ_TARGET(caches, read_caches)
