// Text in and out of a model: the tokenizer for a model's vocabulary, prompts and printed tokens.
#pragma once
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/json_file.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/params.h"
#include <ctype.h>
#include <unistd.h>

// must not move
typedef struct {
    Tokenizer file;
    const Tokenizer *tokenizer;  // &file; NULL: unknown
    int *prompt;                 // tokens of --prompt
    size_t prompt_length;
} RunText;

static inline void text_close(RunText *text) {
    if (text->tokenizer) { tokenizer_free(&text->file); }
    free(text->prompt);
}

// --tokenizer, or NULL. An empty path counts as none, so that a run can resume without the one in its config.json.
static inline const char *given_tokenizer(const TrainArgs *a) {
    return a->tokenizer && *a->tokenizer ? a->tokenizer : NULL;
}

// Finds the tokenizer that --tokenize wrote with these shards, or "". For data/my_train_*.bin that is
// data/my_tokenizer.json or data/my_merges.txt.
static inline void find_merges_of_shards(char *path, const char *shards) {
    const char *name = NULL;  // the last "_train_", or else the last "_val_"
    for (const char *at = shards; at && (at = strstr(at, "_val_")); at++) { name = at; }
    for (const char *at = shards; at && (at = strstr(at, "_train_")); at++) { name = at; }
    *path = 0;
    if (!name) { return; }
    char pattern[PATH_LENGTH];
    glob_t found;
    static const char *const names[] = {"tokenizer.json", "merges.txt"};
    for (int i = 0; i < 2 && !*path; i++) {
        format_path(pattern, "%.*s_%s", (int)(name - shards), shards, names[i]);
        if (!find_files(&found, pattern)) { continue; }
        format_path(path, "%s", found.gl_pathv[0]);
        globfree(&found);
    }
}

// Finds the tokenizer's file in a folder, or in the newest checkpoint of a run directory. path is "" if there is none,
// and also, with a note, if tokenizer_open would refuse it.
static inline void find_tokenizer_in(char *path, const char *folder) {
    char checkpoint[PATH_LENGTH];
    *path = 0;
    if (!folder || access(folder, F_OK) != 0) { return; }
    tokenizer_in_folder(path, folder);
    if (!*path && checkpoint_newest(checkpoint, folder) >= 0) { tokenizer_in_folder(path, checkpoint); }
    if (has_ending(path, ".json") && !tokenizer_json_is_known(path)) { *path = 0; }
}

// path = --tokenizer if it is given; else the first tokenizer.json, merges.txt or vocab.bpe in -e, in the folder that
// holds -e, or in -o, each with its newest checkpoint; else the tokenizer of the shards of -i or --eval; else "".
static inline void find_tokenizer_file(char *path, const TrainArgs *a) {
    char parent[PATH_LENGTH] = "";
    format_path(path, "%s", given_tokenizer(a) ? a->tokenizer : "");
    if (a->model && access(a->model, F_OK) == 0) { folder_of(parent, a->model); }
    const char *const folders[] = {a->model, parent, a->run_dir};
    for (int i = 0; i < 3 && !*path; i++) { find_tokenizer_in(path, folders[i]); }
    if (!*path) { find_merges_of_shards(path, a->eval ? a->eval : a->train_data); }
}

#define LLMC_TOKENIZER "gpt2_tokenizer.bin"  // in the current folder

// True if llm.c's tokenizer file is there and has the model's vocabulary.
static inline bool llmc_tokenizer_fits(int vocab_size) {
    int32_t header[3];  // magic, version, vocabulary
    FILE *file = fopen(LLMC_TOKENIZER, "rb");
    bool read = file && fread(header, sizeof header, 1, file) == 1;
    if (file) { fclose(file); }
    return read && header[0] == TOKENIZER_BIN_MAGIC && header[2] == vocab_size;
}

// Stops if the shards of a flag were made with another tokenizer than that of the file `path`.
static inline void require_same_tokenizer(const Tokenizer *tokenizer, const char *path, const char *flag,
                                          const char *shards) {
    char merges[PATH_LENGTH];
    if (!shards) { return; }
    find_merges_of_shards(merges, shards);
    if (!*merges || kind_of_first(shards) != FILE_TOKENS) { return; }
    Tokenizer other = tokenizer_open(merges);
    if (tokenizer_fingerprint(&other) != tokenizer_fingerprint(tokenizer)) {
        input_error("%s %s has the tokens of '%s', and the tokenizer is '%s': an id is another token there; make "
                    "shards with --tokenizer %s, or say with --tokenizer which of the two counts",
                    flag, shards, merges, path, path);
    }
    tokenizer_free(&other);
}

// Drops added tokens that the model has no row for: adding [PAD] to a tokenizer does not resize the model.
static inline void drop_added_tokens(Tokenizer *t, int vocab_size) {
    int kept = 0, before = t->vocab_size;
    while (t->vocab_size > vocab_size && t->vocab_size - 1 != t->end_of_text && t->kind[t->vocab_size - 1]) {
        t->vocab_size--;
    }
    for (int i = 0; i < t->num_added; i++) {
        if (t->added[i] < t->vocab_size) { t->added[kept++] = t->added[i]; }
    }
    t->num_added = kept;
    if (t->vocab_size == before) { return; }
    fprintf(stderr,
            "note      the model has no embeddings from id %d on: %d of the tokenizer's added tokens are not used\n",
            t->vocab_size, before - t->vocab_size);
}

// True if the data's ids may be other tokens to the model, which may be padded to a multiple of 64, as nanoGPT's is.
static inline bool vocab_differs(int model_vocab, int data_vocab) {
    return model_vocab != data_vocab && model_vocab != (data_vocab + 63) / 64 * 64;
}
#define VOCAB_NOTE "the vocabulary of the data is not the model's: an id may be another token there"

// Sets *tokenizer to a file's or, without --tokenizer and with a vocabulary of 256, to the byte tokenizer. Returns
// false if there is none: text is then printed as numbers. Stops if it does not fit the model or the shards.
static inline bool find_tokenizer(Tokenizer *tokenizer, const TrainArgs *a, int vocab_size) {
    char path[PATH_LENGTH];
    if (!given_tokenizer(a) && vocab_size == BYTE_VOCABULARY) {
        *tokenizer = tokenizer_bytes();
        return true;
    }
    find_tokenizer_file(path, a);
    if (!*path && llmc_tokenizer_fits(vocab_size)) { format_path(path, LLMC_TOKENIZER); }
    if (!*path) { return false; }
    *tokenizer = tokenizer_open(path);
    if (!given_tokenizer(a)) {  // before tokens are dropped
        require_same_tokenizer(tokenizer, path, a->eval ? "--eval" : "-i", a->eval ? a->eval : a->train_data);
        require_same_tokenizer(tokenizer, path, "-j", a->eval ? NULL : a->val_data);
    }
    drop_added_tokens(tokenizer, vocab_size);
    bool wrong_bytes = !tokenizer->merges && vocab_size != BYTE_VOCABULARY;
    if (tokenizer->vocab_size > vocab_size || wrong_bytes) {
        input_error(
            "the tokenizer '%s' has %d tokens and the model %d; give the model's own tokenizer with --tokenizer", path,
            tokenizer->vocab_size, vocab_size);
    }
    return true;
}

// If no tokenizer is known, stops at the flag whose `value` needs one.
static inline void require_tokenizer(bool known, const char *flag, const char *value, int vocab_size) {
    const char *file = vocab_size == GPT2_VOCAB ? "GPT-2's vocab.bpe (scripts/get_data.sh merges fetches it)"
                                                : "the merges.txt or tokenizer.json of its vocabulary";
    if (known) { return; }
    input_error("%s %s: a model of %d tokens needs a tokenizer; give %s with --tokenizer", flag, value, vocab_size,
                file);
}

// The text of --prompt; the caller frees it. @FILE reads a file and @- reads stdin, without the last newline; @@TEXT is
// @TEXT.
static inline char *prompt_text(const char *prompt) {
    if (prompt[0] != '@' || prompt[1] == '@') { return xstrdup(prompt + (prompt[0] == '@')); }
    char *text = read_text_file(strcmp(prompt, "@-") == 0 ? "/dev/stdin" : prompt + 1);
    if (!text) {
        input_error("--prompt %s: could not read '%s' as a text; give a file of text, or write @@ for a prompt that "
                    "begins with @",
                    prompt, prompt + 1);
    }
    size_t bytes = strlen(text);
    if (bytes > 0 && text[bytes - 1] == '\n') { text[bytes - 1] = 0; }
    return text;
}

// the token before each document: end-of-text, a newline for bytes, or without a tokenizer (NULL) the last token
static inline int document_start(const Tokenizer *tokenizer, int vocab_size) {
    return tokenizer ? tokenizer->end_of_text : vocab_size - 1;
}

// Encodes --prompt into *tokens, which the caller frees, and returns their number. An empty prompt becomes
// document_start. If generate() cannot read the whole prompt, says so in `notes`, unless that is NULL.
static inline size_t prompt_tokens(const Tokenizer *tokenizer, const char *prompt, const GPT2Config *c, FILE *notes,
                                   int **tokens) {
    char *text = prompt_text(prompt);
    if (*text) { require_tokenizer(tokenizer, "--prompt", prompt, c->vocab_size); }
    size_t count = *text ? tokenizer_encode(tokenizer, text, strlen(text), tokens) : 1;
    if (!*text) {
        *tokens = (int *)xmalloc(sizeof(int));
        **tokens = document_start(tokenizer, c->vocab_size);
    }
    if (notes && count > (size_t)c->max_seq_len) {
        fprintf(notes, "note      --prompt has %zu tokens, and the model %d positions: it reads the last %d tokens\n",
                count, c->max_seq_len, (c->max_seq_len + 1) / 2);
    }
    free(text);
    return count;
}

// Prints one token as text, or as a number without a tokenizer (NULL). Control characters do not reach a terminal.
static inline void print_token(const Tokenizer *tokenizer, int token) {
    if (!tokenizer) {
        printf("%d ", token);
        return;
    }
    size_t bytes;
    const char *text = tokenizer_decode(tokenizer, token, &bytes);
    bool terminal = isatty(STDOUT_FILENO);
    for (size_t i = 0; i < bytes; i++) {
        bool control = iscntrl((unsigned char)text[i]) && text[i] != '\n' && text[i] != '\t';
        putchar(terminal && control ? '?' : text[i]);
    }
}
