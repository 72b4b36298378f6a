/*
HellaSwag: a context and four endings, one of them true. As in llm.c, a model chooses the ending whose tokens have the
lowest mean loss.

Row         the tokens of the context, then those of one ending; example e has the rows 4e to 4e + 3. The tokens of the
            ending are scored, each given the tokens before it. A context without tokens is end-of-text.
Length      at most T + 1 tokens, since T inputs predict T tokens. A longer context is truncated on the left.
.jsonl      the published file. A line is an object with "ctx", four strings in "endings", and the true one's index in
            "label". The context is encoded, and a space with the ending.
.bin        llm.c's eval format, little-endian. A header of 256 int32: magic 20240522, version 1, number of examples,
            bytes of the longest one, 0... Then the examples, of uint16: 65535, bytes of the example, its index, the
            label, the number of endings, and five lists (context and endings), each a count and that many token ids.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/json_file.h"
#include "llmc/data/corpus.h"
#include "llmc/data/tokenizer.h"
#include <math.h>

enum { HELLASWAG_ENDINGS = 4, HELLASWAG_HEADER_INTS = 256, HELLASWAG_MAX_BIN = 256 << 20 };

typedef struct {
    size_t start;        // of the row in HellaSwag.tokens
    int length, scored;  // tokens: all of them, and those of the ending
    bool is_true;
} HellaSwagRow;

typedef struct {
    const char *flag, *path;  // for messages
    int T;                    // tokens of a context
    int *tokens;
    size_t num_tokens;
    HellaSwagRow *rows;
    int num_rows;
    int num_cut;  // examples with a truncated context
} HellaSwag;

static inline void hellaswag_close(HellaSwag *set) {
    free(set->tokens);
    free(set->rows);
}

static inline int hellaswag_examples(const HellaSwag *set) { return set->num_rows / HELLASWAG_ENDINGS; }

// Adds a row of `context` and `ending` tokens (each >= 1). Returns true if it truncated the context.
static inline bool hellaswag_add_row(HellaSwag *set, const int *ids, size_t context, size_t ending, bool is_true) {
    size_t length = context + ending, max = (size_t)set->T + 1, cut = length > max ? length - max : 0;
    if (ending > (size_t)set->T) {
        input_error("%s: example %d of %s has an ending of %zu tokens, but the context is %d; give a larger -t, or a "
                    "model with more positions",
                    set->flag, hellaswag_examples(set), set->path, ending, set->T);
    }
    length -= cut;
    HellaSwagRow row = {set->num_tokens, (int)length, (int)ending, is_true};
    set->rows = (HellaSwagRow *)xgrow(set->rows, (size_t)set->num_rows, sizeof *set->rows);
    set->rows[set->num_rows++] = row;
    set->tokens = (int *)xrealloc(set->tokens, (set->num_tokens + length) * sizeof *set->tokens);
    memcpy(set->tokens + set->num_tokens, ids + cut, length * sizeof *ids);
    set->num_tokens += length;
    return cut > 0;
}

// True if the true ending of example e has the lowest mean loss; among equals the first counts. sums (num_rows): by row
static inline bool hellaswag_chooses_true(const HellaSwag *set, int e, const double *sums) {
    double lowest = INFINITY;
    bool is_true = false;
    for (int r = HELLASWAG_ENDINGS * e; r < HELLASWAG_ENDINGS * (e + 1); r++) {
        double loss = sums[r] / set->rows[r].scored;
        if (!(loss < lowest)) { continue; }
        lowest = loss;
        is_true = set->rows[r].is_true;
    }
    return is_true;
}

// Prints a note after `before` if contexts were truncated.
static inline void hellaswag_print_cut(const HellaSwag *set, const char *before) {
    if (set->num_cut == 0) { return; }
    printf("%s%d of %d examples are longer than %d tokens: their contexts are cut at the left\n", before, set->num_cut,
           hellaswag_examples(set), set->T);
}

// ---- llm.c's .bin

// Adds the example at `words`, of which the file has `left`. ids: room for an example. Returns the example's words.
static inline size_t hellaswag_add_words(HellaSwag *set, const uint16_t *words, size_t left, int vocab_size, int *ids) {
    int e = hellaswag_examples(set);
    size_t at = 5, context = 0, size = left > at ? words[1] / sizeof *words : 0;
    bool whole = size > at && size <= left && words[0] == UINT16_MAX && words[1] % sizeof *words == 0 &&
                 words[2] == e && words[3] < HELLASWAG_ENDINGS && words[4] == HELLASWAG_ENDINGS;
    bool cut = false;
    for (int list = 0; whole && list <= HELLASWAG_ENDINGS; list++) {
        size_t count = at < size ? words[at++] : 0;
        whole = count > 0 && count <= size - at;
        for (size_t i = 0; whole && i < count; i++) {
            ids[context + i] = words[at++];
            if (ids[context + i] < vocab_size) { continue; }
            input_error("%s: example %d of %s has token id %d, but the vocabulary has ids 0 to %d; take a model with "
                        "the vocabulary of the file",
                        set->flag, e, set->path, ids[context + i], vocab_size - 1);
        }
        if (list == 0) {
            context = count;
        } else if (whole) {
            cut |= hellaswag_add_row(set, ids, context, count, list - 1 == words[3]);
        }
    }
    if (!whole || at != size) {
        input_error("%s: example %d of %s is damaged; copy or make the file again", set->flag, e, set->path);
    }
    set->num_cut += cut;
    return size;
}

// The examples of a .bin file. Stops at a damaged one. flag: named the file, for messages. Close with hellaswag_close.
static inline HellaSwag hellaswag_read_bin(const char *flag, const char *path, int T, int vocab_size) {
    HellaSwag set = {flag, path, T};
    size_t bytes = 0, at = HELLASWAG_HEADER_INTS * sizeof(int32_t) / sizeof(uint16_t);
    char *file = read_whole_file(path, HELLASWAG_MAX_BIN, &bytes);
    const int32_t *header = (const int32_t *)file;
    if (bytes < HELLASWAG_HEADER_INTS * sizeof *header || header[0] != HELLASWAG_MAGIC || header[1] != 1 ||
        header[2] < 1) {
        input_error("%s: %s has no header of llm.c's eval format (magic %d, version 1, number of examples); copy or "
                    "make the file again",
                    flag, path, HELLASWAG_MAGIC);
    }
    const uint16_t *words = (const uint16_t *)file;
    int examples = header[2], *ids = (int *)xmalloc(UINT16_MAX * sizeof *ids);
    do {
        at += hellaswag_add_words(&set, words + at, bytes / sizeof *words - at, vocab_size, ids);
    } while (hellaswag_examples(&set) < examples);
    if (at * sizeof *words != bytes) {
        input_error("%s: %s goes on after its %d examples; copy or make the file again", flag, path, examples);
    }
    free(file);
    free(ids);
    return set;
}

// ---- the published .jsonl

// True if a file begins with JSON that has endings to choose from. Quotes in a JSON string are escaped.
static inline bool hellaswag_is_json(const char *path) {
    char head[FILE_HEAD];
    size_t bytes = read_head(head, path);
    return kind_of_bytes(head, bytes) == FILE_JSON && memmem(head, bytes, "\"endings\":", 10) != NULL;
}

// Returns the index of the true ending: a number or, in Hugging Face's copy, a digit in a string. -1 if it is neither.
static inline int hellaswag_label(const cJSON *json) {
    const cJSON *label = json_get(json, "label");
    const char *text = cJSON_GetStringValue(label);
    double number = text && strlen(text) == 1 ? *text - '0' : cJSON_GetNumberValue(label);
    return number >= 0 && number < (int)HELLASWAG_ENDINGS && number == floor(number) ? (int)number : -1;
}

// Adds the example of a line. False if the line is not an example.
static inline bool hellaswag_add_json(HellaSwag *set, const Tokenizer *tokenizer, TokenizerEncoder *encoder,
                                      const cJSON *json) {
    const char *context = json_string(json, "ctx");
    const cJSON *endings = json_get(json, "endings"), *ending;
    int label = hellaswag_label(json), i = 0;
    bool cut = false;
    if (!context || label < 0 || !cJSON_IsArray(endings)) { return false; }
    cJSON_ArrayForEach(ending, endings) { i += cJSON_IsString(ending) ? 1 : HELLASWAG_ENDINGS + 1; }
    if (i != HELLASWAG_ENDINGS) { return false; }
    cJSON_ArrayForEach(ending, endings) {
        size_t before = strlen(context), size = before + strlen(ending->valuestring) + 2;
        char *text = (char *)xmalloc(size);
        int *ids = (int *)xmalloc(size * sizeof *ids);
        snprintf(text, size, "%s %s", context, ending->valuestring);
        size_t tokens = tokenizer_encode_with(tokenizer, encoder, text, before, ids);
        if (tokens == 0) { ids[tokens++] = tokenizer->end_of_text; }
        size_t more = tokenizer_encode_with(tokenizer, encoder, text + before, size - 1 - before, ids + tokens);
        cut |= hellaswag_add_row(set, ids, tokens, more, label-- == 0);
        free(text);
        free(ids);
    }
    set->num_cut += cut;
    return true;
}

// The examples of a .jsonl file. Stops at a line that is none.
static inline HellaSwag hellaswag_read_json(const char *flag, const char *path, const Tokenizer *tokenizer, int T) {
    HellaSwag set = {flag, path, T};
    TokenizerEncoder encoder = {NULL};
    CorpusPiece piece;
    Corpus corpus = corpus_open(flag, path, NULL);
    while (corpus_read(&corpus, &piece)) {
        if (!hellaswag_add_json(&set, tokenizer, &encoder, corpus_value(&corpus, &piece))) {
            corpus_bad_line(&corpus,
                            "is no example of HellaSwag, an object with \"ctx\", 4 strings in \"endings\" and the true "
                            "one's index in \"label\"");
        }
    }
    tokenizer_free_encoder(&encoder);
    corpus_close(&corpus);
    if (set.num_rows == 0) { input_error("%s: %s holds no examples", flag, path); }
    return set;
}
