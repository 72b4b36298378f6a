/*
Multiple-choice examples and LAMBADA's texts from JSON lines, encoded as llm.c and as lm-eval encode them.
defines: CHOICES_LLMC, CHOICES_LM_EVAL, choices_is_example, choices_read_json, choices_read_last_words

Fields      the context: "ctx", "context" or "query". The endings: "endings" or "choices", 2 to 1000 strings. The index
            of the true ending: "label" or "gold", a number or a string of digits. HellaSwag's lines have these fields.
llm.c       A row is the tokens of the context, and the tokens of a space and the ending, encoded apart.
lm-eval     White space at the end of the context moves to the ending. The two are encoded together. The context has as
            many tokens as the context has alone, and the ending has the rest.
            HellaSwag's lines, those with "activity_label", "ctx_a" and "ctx_b", have other texts there. The context is
            the label, ": ", ctx_a, a space, and ctx_b with a capital letter and the rest in lower case. Context and
            endings take hellaswag_clean.
LAMBADA     The context is the text up to its last space; the ending is the rest. Encoded as in lm-eval.
Both        A context without tokens is end-of-text, or a newline for bytes.
*/
#pragma once
#include "llmc/files/choices.h"
#include "llmc/files/clean_text.h"
#include "llmc/files/corpus.h"

enum { CHOICES_LLMC = 1, CHOICES_LM_EVAL = 2 };  // forms, a set of bits
enum { CHOICES_MOST_ENDINGS = 1000 };            // as in llm.c's format

// a file of JSON lines that is read
typedef struct {
    Corpus corpus;
    CorpusPiece piece;  // the current line
    const Tokenizer *tokenizer;
    TokenizerEncoder encoder;
    char *line, *text;           // a copy of the line; a context and an ending
    int *ids;                    // of `text`
    size_t line_room, capacity;  // bytes of the line; bytes of `text`, and number of ids
    locale_t utf8;
} ChoicesJson;

// stops at a line; `words` follow the line's number
__attribute__((noreturn)) static inline void choices_stop_at(const ChoicesJson *j, const char *words) {
    int shown = (int)(j->piece.bytes < 60 ? j->piece.bytes : 60);
    input_error("%s %s line %" PRIu64 " %s: found '%.*s'", j->corpus.flag, j->corpus.files[j->piece.file].path,
                j->piece.line, words, shown, j->piece.text);
}

// ---- fields

// the first of three fields that is there; NULL: none
static inline const cJSON *choices_field(const cJSON *json, const char *a, const char *b, const char *c) {
    const char *const names[] = {a, b, c};
    for (int i = 0; i < 3; i++) {
        const cJSON *item = names[i] ? cJSON_GetObjectItemCaseSensitive(json, names[i]) : NULL;
        if (item) { return item; }
    }
    return NULL;
}
static inline const char *choices_string(const cJSON *json, const char *name) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));
}
static inline const cJSON *choices_endings(const cJSON *json) {
    return choices_field(json, "endings", "choices", NULL);
}

// the index of the true ending; -1: not a whole number from 0 to INT_MAX, or its digits in a string
static inline int choices_label(const cJSON *json) {
    const cJSON *item = choices_field(json, "label", "gold", NULL);
    double x = -1;
    const char *text = cJSON_GetStringValue(item);
    if (cJSON_IsNumber(item)) { x = item->valuedouble; }
    if (text && *text && strlen(text) < 9 && !text[strspn(text, "0123456789")]) { x = atof(text); }
    return x >= 0 && x < 2147483647.0 && x == floor(x) ? (int)x : -1;
}

// The context of a line in lm-eval; the caller frees it. *clean: the line is HellaSwag's, and the endings take
// hellaswag_clean.
static inline char *choices_lm_eval_context(const ChoicesJson *j, const cJSON *json, const char *context, bool *clean) {
    const char *label = choices_string(json, "activity_label"), *a = choices_string(json, "ctx_a"),
               *b = choices_string(json, "ctx_b");
    *clean = label && a && b;
    if (!*clean) { return xstrdup(context); }
    size_t size = strlen(label) + strlen(a) + 2 * strlen(b) + 4;
    char *text = (char *)xmalloc(size);
    int length = snprintf(text, size, "%s: %s ", label, a);
    text_capitalize(text + length, b, j->utf8);
    hellaswag_clean(text);
    return text;
}

// ---- encoding

static inline void choices_reserve(ChoicesJson *j, size_t bytes) {
    if (bytes <= j->capacity) { return; }
    j->capacity = 2 * bytes;
    j->text = (char *)xrealloc(j->text, j->capacity);
    j->ids = (int *)xrealloc(j->ids, j->capacity * sizeof *j->ids);
}

// Adds the row of a context (bytes) and " ending" in one form. Stops at an ending of more than T tokens. Returns
// whether the context was cut.
static inline bool choices_encode_row(ChoicesJson *j, Choices *set, const char *context, const char *ending, int form) {
    size_t before = strlen(context), after = 1 + strlen(ending), characters = 0;
    choices_reserve(j, before + after + 2);
    memcpy(j->text, context, before);
    j->text[before] = ' ';
    memcpy(j->text + before + 1, ending, after);
    if (form == CHOICES_LM_EVAL) { before = text_trimmed(context, before); }
    size_t all = strlen(context) + after;
    int *ids = j->ids + 1;  // room for end-of-text
    size_t tokens = tokenizer_encode_with(j->tokenizer, &j->encoder, j->text, before, ids), total;
    if (form == CHOICES_LM_EVAL) {
        total = tokenizer_encode_with(j->tokenizer, &j->encoder, j->text, all, ids);
    } else {
        total = tokens + tokenizer_encode_with(j->tokenizer, &j->encoder, j->text + before, all - before, ids + tokens);
    }
    for (const char *c = ending; *c; c++) { characters += ((uint8_t)*c & 0xC0) != 0x80; }
    if (tokens == 0) {
        *--ids = j->tokenizer->end_of_text;
        tokens = 1;
        total++;
    }
    if (total - tokens > (size_t)set->T) {
        char words[160];
        snprintf(words, sizeof words,
                 "has an ending of %zu tokens, but the context is %d; give a larger -t, or a model with more positions",
                 total - tokens, set->T);
        choices_stop_at(j, words);
    }
    return choices_add_row(set, ids, tokens, total - tokens, (int)characters);
}

// Adds the rows of one example; `forms` is a set of CHOICES_LLMC and CHOICES_LM_EVAL.
static inline void choices_encode_example(ChoicesJson *j, Choices *set, const cJSON *json, int forms) {
    const cJSON *endings = choices_endings(json), *ending;
    const char *context = cJSON_GetStringValue(choices_field(json, "ctx", "context", "query"));
    int count = cJSON_IsArray(endings) ? cJSON_GetArraySize(endings) : 0, label = choices_label(json);
    cJSON_ArrayForEach(ending, endings) {
        if (!cJSON_IsString(ending)) { count = 0; }
    }
    // a row for each ending repeats the context
    if (count < 2 || count > CHOICES_MOST_ENDINGS) {
        choices_stop_at(j, "has no list of 2 to 1000 strings named \"endings\" or \"choices\"");
    }
    if (!context) { choices_stop_at(j, "has no string named \"ctx\", \"context\" or \"query\""); }
    if (label < 0 || label >= count) {
        choices_stop_at(j, "has no \"label\" or \"gold\" that is the index of an ending, counted from 0");
    }
    ChoiceExample *example = choices_add_example(set, label, count);
    bool cut = false, clean;
    if (forms & CHOICES_LLMC) {
        example->first = set->num_rows;
        cJSON_ArrayForEach(ending, endings) {
            cut |= choices_encode_row(j, set, context, ending->valuestring, CHOICES_LLMC);
        }
    }
    if (forms & CHOICES_LM_EVAL) {
        char *other = choices_lm_eval_context(j, json, context, &clean);
        example->first_whole = set->num_rows;
        cJSON_ArrayForEach(ending, endings) {
            if (clean) { hellaswag_clean(ending->valuestring); }
            cut |= choices_encode_row(j, set, other, ending->valuestring, CHOICES_LM_EVAL);
        }
        free(other);
        if (forms & CHOICES_LLMC) { choices_share_rows(set); }
    }
    set->num_cut += cut;
}

// Adds LAMBADA's example of a text: one ending, its last word.
static inline void choices_encode_last_word(ChoicesJson *j, Choices *set, const cJSON *json) {
    const char *text = choices_string(json, j->corpus.field);
    if (!text) { choices_stop_at(j, "has no string in the field of the text; name the field with --field"); }
    const char *space = strrchr(text, ' ');
    char *context = xstrdup(space ? text : "");
    if (space) { context[space - text] = 0; }
    ChoiceExample *example = choices_add_example(set, 0, 1);
    example->first = example->first_whole = set->num_rows;
    set->num_cut += choices_encode_row(j, set, context, space ? space + 1 : text, CHOICES_LM_EVAL);
    free(context);
}

// ---- files

// Opens JSON lines for choices_next_line. Stops unless all files end in .jsonl.
static inline ChoicesJson choices_open_json(const char *flag, const char *pattern, const char *field,
                                            const Tokenizer *tokenizer) {
    ChoicesJson j;
    memset(&j, 0, sizeof j);
    j.corpus = corpus_open_for(flag, pattern, field, NULL);
    j.tokenizer = tokenizer;
    j.utf8 = text_locale();
    for (int f = 0; f < j.corpus.num_files; f++) {
        if (strcmp(j.corpus.files[f].path, "-") == 0) { j.corpus.files[f].is_json = true; }
        if (!j.corpus.files[f].is_json) {
            input_error("%s: %s does not end in .jsonl; expected JSON lines, an example a line", flag,
                        j.corpus.files[f].path);
        }
    }
    return j;
}

static inline void choices_close_json(ChoicesJson *j) {
    corpus_close(&j->corpus);
    tokenizer_free_encoder(&j->encoder);
    freelocale(j->utf8);
    free(j->line);
    free(j->text);
    free(j->ids);
}

// The object of the next line, which the caller deletes; NULL: no lines are left. Stops at a line that is no object.
static inline cJSON *choices_next_line(ChoicesJson *j) {
    if (!corpus_next(&j->corpus, &j->piece)) { return NULL; }
    if (j->piece.bytes + 1 > j->line_room) {
        j->line_room = 2 * (j->piece.bytes + 1);
        j->line = (char *)xrealloc(j->line, j->line_room);
    }
    memcpy(j->line, j->piece.text, j->piece.bytes);
    cJSON *json = corpus_object(j->line, j->piece.bytes);
    if (!json) { choices_stop_at(j, "is no JSON object; expected an object a line"); }
    return json;
}

// Whether the first line of a file of JSON lines has endings to choose from.
static inline bool choices_is_example(const char *flag, const char *path) {
    ChoicesJson j = choices_open_json(flag, path, NULL, NULL);
    cJSON *json = choices_next_line(&j);
    bool found = choices_endings(json) != NULL;
    cJSON_Delete(json);
    choices_close_json(&j);
    return found;
}

// The examples of JSON lines for contexts of T tokens. flag: that named the files, for messages. pattern: a glob
// pattern, or "-" for stdin. forms: a set of CHOICES_LLMC and CHOICES_LM_EVAL. Stops at a line that is no example, and
// at an ending of more than T tokens. Close with choices_close.
static inline Choices choices_read_json(const char *flag, const char *pattern, int forms, const Tokenizer *tokenizer,
                                        int T) {
    Choices set;
    ChoicesJson j = choices_open_json(flag, pattern, NULL, tokenizer);
    memset(&set, 0, sizeof set);
    set.T = T;
    for (cJSON *json; (json = choices_next_line(&j)) != NULL; cJSON_Delete(json)) {
        choices_encode_example(&j, &set, json, forms);
    }
    choices_close_json(&j);
    if (set.num_examples == 0) { input_error("%s: %s holds no examples", flag, pattern); }
    return set;
}

// LAMBADA's texts as examples with one ending, the last word. field: of the text; NULL: CORPUS_FIELD. The rest is as in
// choices_read_json.
static inline Choices choices_read_last_words(const char *flag, const char *pattern, const char *field,
                                              const Tokenizer *tokenizer, int T) {
    Choices set;
    ChoicesJson j = choices_open_json(flag, pattern, field, tokenizer);
    memset(&set, 0, sizeof set);
    set.T = T;
    for (cJSON *json; (json = choices_next_line(&j)) != NULL; cJSON_Delete(json)) {
        choices_encode_last_word(&j, &set, json);
    }
    choices_close_json(&j);
    if (set.num_examples == 0) { input_error("%s: %s holds no examples", flag, pattern); }
    return set;
}
