// Fuzzes examples to fine-tune on, conversations among them, and their packing into sequences.
#include "dev/fuzz/fuzz.h"
#include "llmc/data/examples.h"

enum { EXAMPLES_T = 32 };

static void read_examples(FuzzBytes input) {
    int inputs[EXAMPLES_T], targets[EXAMPLES_T];
    Range ranges[EXAMPLES_T];
    const char *path = fuzz_write("examples.jsonl", input);
    Tokenizer t = tokenizer_bytes();
    Examples e = examples_load("-i", path, &t, EXAMPLES_T);
    PackedExamples packed = examples_pack(&e, 0, e.count);
    uint64_t learned = 0;
    for (int s = 0; s < packed.num_sequences; s++) {
        int count = packed_read(&packed, s, inputs, targets, ranges, 0);
        fuzz_require(count >= 1 && count <= EXAMPLES_T, "one to T ranges in a sequence");
        for (int i = 0; i < EXAMPLES_T; i++) { learned += targets[i] >= 0; }
    }
    fuzz_require(learned > 0 && learned == packed_targets(&packed), "as many targets as are counted");
    packed_free(&packed);
    examples_free(&e);
    tokenizer_free(&t);
}

FUZZ_TARGET(examples, read_examples)
