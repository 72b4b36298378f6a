/*
Multiple-choice examples as rows of tokens: a context, and endings of which one is true.
defines: ChoiceRow, ChoiceExample, Choices, ChoiceNorm, choices_add_example, choices_add_row, choices_share_rows,
         choices_cut_words, choices_correct, choices_close

Row         the context, then one ending. The tokens of the ending are scored, each given the tokens before it.
Length      a row has at most T + 1 tokens, since T inputs predict T tokens. A longer context is cut at the left.
Forms       an example has one row for each ending, or two: llm.c and lm-eval encode differently (choices_json.h).
            Both forms have the same row where the tokens are the same.
Choice      the ending of lowest loss, the first of equal ones; NaN is never the lowest. The loss of an ending is the
            sum over its tokens (lm-eval's acc), this sum divided by the number of characters (lm-eval's acc_norm), or
            the mean over its tokens (llm.c). The accuracy is the share of examples whose choice is the label.
*/
#pragma once
#include "llmc/common/check.h"
#include <assert.h>
#include <math.h>
#include <stdbool.h>

typedef struct {
    size_t start;    // of the row in Choices.tokens
    int length;      // tokens
    int scored;      // the last tokens of the row
    int characters;  // code points of the ending; 0: unknown
} ChoiceRow;

typedef struct {
    int label, num_endings;
    int first;        // row of the first ending in llm.c's form; -1: none
    int first_whole;  // row of the first ending in lm-eval's form; -1: none
} ChoiceExample;

typedef struct {
    int T;  // a row has at most T + 1 tokens
    uint16_t *tokens;
    size_t num_tokens, max_tokens;
    ChoiceRow *rows;
    int num_rows, max_rows;
    ChoiceExample *examples;
    int num_examples, max_examples;
    int num_cut;  // examples with a context that was cut
} Choices;

// the loss of an ending, from the sum over its tokens
typedef enum { CHOICE_SUM, CHOICE_PER_CHARACTER, CHOICE_PER_TOKEN } ChoiceNorm;

static inline void choices_close(Choices *set) {
    free(set->tokens);
    free(set->rows);
    free(set->examples);
    memset(set, 0, sizeof *set);
}

// Adds an example without rows. The caller sets first and first_whole.
static inline ChoiceExample *choices_add_example(Choices *set, int label, int num_endings) {
    if (set->num_examples == set->max_examples) {
        set->max_examples = 2 * set->max_examples + 1024;
        set->examples = (ChoiceExample *)xrealloc(set->examples, (size_t)set->max_examples * sizeof *set->examples);
    }
    ChoiceExample *example = &set->examples[set->num_examples++];
    example->label = label;
    example->num_endings = num_endings;
    example->first = example->first_whole = -1;
    return example;
}

// Adds the row of `context` tokens and `ending` tokens, at ids one after the other. At least one token of the context
// stays. Returns whether the context was cut. context >= 1, 1 <= ending <= T.
static inline bool choices_add_row(Choices *set, const int *ids, size_t context, size_t ending, int characters) {
    size_t length = context + ending, most = (size_t)set->T + 1, cut = length > most ? length - most : 0;
    if (set->num_rows == set->max_rows) {
        set->max_rows = 2 * set->max_rows + 4096;
        set->rows = (ChoiceRow *)xrealloc(set->rows, (size_t)set->max_rows * sizeof *set->rows);
    }
    length -= cut;
    if (set->num_tokens + length > set->max_tokens) {
        set->max_tokens = 2 * set->max_tokens + length;
        set->tokens = (uint16_t *)xrealloc(set->tokens, set->max_tokens * sizeof *set->tokens);
    }
    ChoiceRow row = {set->num_tokens, (int)length, (int)ending, characters};
    for (size_t i = 0; i < length; i++) { set->tokens[set->num_tokens++] = (uint16_t)ids[cut + i]; }
    set->rows[set->num_rows++] = row;
    return cut > 0;
}

// The last example has the rows of both forms. Removes the rows of lm-eval's form if they are those of llm.c's.
static inline void choices_share_rows(Choices *set) {
    ChoiceExample *example = &set->examples[set->num_examples - 1];
    assert(set->rows);
    for (int i = 0; i < example->num_endings; i++) {
        const ChoiceRow *a = &set->rows[example->first + i], *b = &set->rows[example->first_whole + i];
        bool same = a->length == b->length && a->scored == b->scored && a->characters == b->characters;
        size_t bytes = (size_t)a->length * sizeof *set->tokens;
        if (!same || memcmp(set->tokens + a->start, set->tokens + b->start, bytes) != 0) { return; }
    }
    set->num_rows = example->first_whole;
    set->num_tokens = set->rows[example->first_whole].start;
    example->first_whole = example->first;
}

// "2 of 5 examples ...", for a note; "" if no context was cut
static inline void choices_cut_words(const Choices *set, char *text, size_t size) {
    *text = 0;
    if (set->num_cut == 0) { return; }
    snprintf(text, size, "%d of %d examples are longer than %d tokens: their contexts are cut at the left",
             set->num_cut, set->num_examples, set->T);
}

// the loss of a row whose tokens have the losses' sum `sum`
static inline double choices_loss(const ChoiceRow *row, double sum, ChoiceNorm norm) {
    if (norm == CHOICE_PER_CHARACTER) { return row->characters > 0 ? sum / row->characters : INFINITY; }
    return norm == CHOICE_PER_TOKEN ? sum / row->scored : sum;
}

// Whether the model chooses the label of an example. sums (num_rows): the sum of the losses of each row's scored
// tokens. first: the row of the first ending.
static inline bool choices_correct(const Choices *set, const ChoiceExample *example, int first, const double *sums,
                                   ChoiceNorm norm) {
    double lowest = INFINITY;
    int choice = -1;
    for (int i = 0; i < example->num_endings; i++) {
        double loss = choices_loss(&set->rows[first + i], sums[first + i], norm);
        if (loss < lowest) {
            lowest = loss;
            choice = i;
        }
    }
    return choice == example->label;
}
