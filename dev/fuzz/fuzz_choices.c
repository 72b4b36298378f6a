// Fuzzes multiple-choice examples: llm.c's binary format, JSON lines, LAMBADA's texts, and the cleaning of texts.
#include "dev/fuzz/fuzz.h"
#include "llmc/files/choices_bin.h"
#include "llmc/files/choices_json.h"

enum { CHOICES_T = 64 };

static void check_choices(const Choices *set) {
    for (int i = 0; i < set->num_rows; i++) {
        const ChoiceRow *row = &set->rows[i];
        bool inside = row->start + (size_t)row->length <= set->num_tokens && row->length <= CHOICES_T + 1;
        fuzz_require(inside && row->scored >= 1 && row->scored < row->length, "rows of at most T + 1 tokens");
    }
    double *sums = (double *)xcalloc((size_t)set->num_rows, sizeof *sums);
    for (int i = 0; i < set->num_examples; i++) {
        const ChoiceExample *e = &set->examples[i];
        if (e->first >= 0) { choices_correct(set, e, e->first, sums, CHOICE_PER_TOKEN); }
        if (e->first_whole >= 0) { choices_correct(set, e, e->first_whole, sums, CHOICE_PER_CHARACTER); }
    }
    free(sums);
}

static void clean_texts(FuzzBytes input) {
    char *page = fuzz_text(input), *lines = fuzz_text(input);
    wikitext_clean(page);
    hellaswag_clean(lines);
    fuzz_require(strlen(page) <= input.size && strlen(lines) <= input.size, "clean texts that are not longer");
    free(page);
    free(lines);
}

static void read_choices(FuzzBytes input) {
    int kind = fuzz_choice(&input, 4);
    if (kind == 3) {
        clean_texts(input);
        return;
    }
    const char *path = fuzz_write(kind == 0 ? "choices.bin" : "choices.jsonl", input);
    Tokenizer t = tokenizer_bytes();
    if (kind == 1 && !choices_is_bin(path)) { choices_is_example("--eval", path); }
    Choices set = kind == 0   ? choices_read_bin("--eval", path, CHOICES_T, 50257)
                  : kind == 1 ? choices_read_json("--eval", path, CHOICES_LLMC | CHOICES_LM_EVAL, &t, CHOICES_T)
                              : choices_read_last_words("--eval", path, NULL, &t, CHOICES_T);
    check_choices(&set);
    choices_close(&set);
    tokenizer_free(&t);
}

FUZZ_TARGET(choices, read_choices)
