// Fuzzes the files in the user's cache: the autotune cache and the machines that passed the self-check.
// Neither stops the program: what cannot be used is ignored.
#include "dev/fuzz/fuzz.h"
#include "llmc/self_check/self_check.h"

static void read_caches(FuzzBytes input) {
    FallbackKernels fallback;
    unsigned char algo[64];
    int fused;
    char value[192] = "";
    bool autotune = fuzz_choice(&input, 2) == 0;
    const char *path = fuzz_write("cache", input);
    memset(&fallback, 0, sizeof fallback);
    if (autotune) {
        if (cache_find(path, "GPU", value, sizeof value)) { parse_number_and_hex(value, &fused, algo, sizeof algo); }
        fuzz_require(!strchr(value, '\n'), "a value of one line");
    } else if (self_check_recall(path, "GPU", &fallback)) {
        for (int i = 0; i < NUM_FALLBACKS; i++) {
            fuzz_require(fallback.level[i] >= 0 && fallback.level[i] < FALLBACK_LEVELS, "a level of kernels");
        }
    }
}

FUZZ_TARGET(caches, read_caches)
