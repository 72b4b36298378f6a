// Fuzzes HellaSwag: llm.c's binary format and the published JSON lines.
#include "dev/fuzz/fuzz.h"
#include "llmc/data/hellaswag.h"

enum { HELLASWAG_T = 64 };

static void read_hellaswag(FuzzBytes input) {
    bool is_bin = fuzz_choice(&input, 2) == 0;
    const char *path = fuzz_write(is_bin ? "hellaswag.bin" : "hellaswag.jsonl", input);
    Tokenizer t = tokenizer_bytes();
    hellaswag_is_json(path);
    HellaSwag set = is_bin ? hellaswag_read_bin("--eval", path, HELLASWAG_T, 50257)
                           : hellaswag_read_json("--eval", path, &t, HELLASWAG_T);
    double *sums = (double *)xcalloc((size_t)set.num_rows, sizeof *sums);
    for (int r = 0; r < set.num_rows; r++) {
        const HellaSwagRow *row = &set.rows[r];
        bool inside = row->start + (size_t)row->length <= set.num_tokens && row->length <= HELLASWAG_T + 1;
        fuzz_require(inside && row->scored >= 1 && row->scored < row->length, "rows of at most T + 1 tokens");
    }
    fuzz_require(set.num_rows % HELLASWAG_ENDINGS == 0, "four rows for each example");
    for (int e = 0; e < hellaswag_examples(&set); e++) { hellaswag_chooses_true(&set, e, sums); }
    free(sums);
    hellaswag_close(&set);
    tokenizer_free(&t);
}

FUZZ_TARGET(hellaswag, read_hellaswag)
