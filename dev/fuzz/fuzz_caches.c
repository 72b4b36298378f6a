// Fuzzes the files in the user's cache: the autotune cache, the machines that passed the self-check, and the times of
// -f auto. None of them stops the program: what cannot be used is ignored.
#include "dev/fuzz/fuzz.h"
#include "llmc/common/autotune_line.h"
#include "llmc/run/matmul_inputs.h"
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
    PlainKernels plain;
    memset(&plain, 0, sizeof plain);
    bool found = self_check_recall(fuzz_write("self_check.txt", input), "GPU", &plain);
    for (int i = 0; i < NUM_PLAIN && found; i++) {
        fuzz_require(plain.level[i] >= 0 && plain.level[i] < PLAIN_LEVELS, "a level of kernels");
    }
}

// The times are added to whatever the file holds.
static void read_times(FuzzBytes input) {
    const char *path = fuzz_write("inputs.json", input);
    const InputTimes times = {3, 2};
    InputTimes known = recall_times(path, "CPU");
    fuzz_require((known.fp32 > 0 && known.bf16 > 0) || (known.fp32 == 0 && known.bf16 == 0), "two times, or none");
    remember_times(path, "CPU", times);
    known = recall_times(path, "CPU");
    fuzz_require(known.fp32 == 3 && known.bf16 == 2, "the times that were written");
}

static void read_caches(FuzzBytes input) {
    switch (fuzz_choice(&input, 3)) {
    case 0: read_autotune_cache(input); break;
    case 1: read_self_check(input); break;
    default: read_times(input);
    }
}

FUZZ_TARGET(caches, read_caches)
