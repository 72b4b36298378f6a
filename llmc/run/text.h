/*
Text in and out of a model: the tokenizer for a model's vocabulary, prompts and printed tokens.
defines: find_tokenizer, tokenizer_advice, prompt_text, document_start, document_end, prompt_tokens, print_bytes,
         print_token
*/
#pragma once
#include "llmc/files/checkpoint.h"
#include "llmc/files/dataloader.h"
#include "llmc/files/tokenizer_files.h"
#include "llmc/run/train_args.h"
#include <ctype.h>
#include <glob.h>
#include <unistd.h>

// path = the merges that --tokenize wrote beside shards, or "": data/my_merges.txt of data/my_train_*.bin
static inline void find_merges_of_shards(char *path, const char *shards) {
    const char *name = NULL;  // the last "_train_", or else the last "_val_"
    for (const char *at = shards; at && (at = strstr(at, "_val_")); at++) { name = at; }
    for (const char *at = shards; at && (at = strstr(at, "_train_")); at++) { name = at; }
    *path = 0;
    if (!name) { return; }
    char pattern[PATH_LENGTH];
    glob_t found;
    format_path(pattern, "%.*s_merges.txt", (int)(name - shards), shards);
    if (glob(pattern, 0, NULL, &found) != 0) { return; }
    format_path(path, "%s", found.gl_pathv[0]);
    globfree(&found);
}

// path = the tokenizer's file in a folder, or "". folder: NULL has none. A tokenizer.json of another kind is
// passed over.
static inline void find_tokenizer_in(char *path, const char *folder) {
    static const char *const names[] = {"merges.txt", "vocab.bpe", "tokenizer.json"};
    *path = 0;
    for (int i = 0; i < 3 && folder && *folder && !*path; i++) {
        format_path(path, "%s/%s", folder, names[i]);
        if (access(path, R_OK) != 0 || (i == 2 && !tokenizer_json_is_known(path))) { *path = 0; }
    }
}

// path = the tokenizer's file in the folder -e, or else in the last checkpoint of the run directory -e; or ""
static inline void find_tokenizer_of_model(char *path, const TrainArgs *a) {
    char checkpoint[PATH_LENGTH] = "";
    *path = 0;
    if (!a->model || access(a->model, F_OK) != 0) { return; }
    find_tokenizer_in(path, a->model);
    if (*path) { return; }
    checkpoint_of_run(checkpoint, a->model);
    find_tokenizer_in(path, checkpoint);
}

// path = --tokenizer. Without --tokenizer, the first readable file of this search, or "":
//   1. merges.txt, vocab.bpe, then tokenizer.json, in the folder -e
//   2. the same names in the last checkpoint of the run directory -e
//   3. the same names in the folder that holds -e
//   4. the same names in -o, then in its last checkpoint
//   5. the merges beside the shards of -i, or of --eval
// find_tokenizer then looks for llm.c's gpt2_tokenizer.bin.
static inline void find_tokenizer_file(char *path, const TrainArgs *a) {
    char beside[PATH_LENGTH] = "", of_run[PATH_LENGTH] = "";
    format_path(path, "%s", a->tokenizer ? a->tokenizer : "");
    if (*path) { return; }
    find_tokenizer_of_model(path, a);
    if (a->model && access(a->model, F_OK) == 0) {
        const char *slash = strrchr(a->model, '/');
        int length = slash && slash > a->model ? (int)(slash - a->model) : 1;  // 1: "/" or "."
        format_path(beside, "%.*s", length, slash ? a->model : ".");
    }
    if (a->run_dir) { checkpoint_of_run(of_run, a->run_dir); }
    const char *const folders[] = {beside, a->run_dir, of_run};
    for (int i = 0; i < 3 && !*path; i++) { find_tokenizer_in(path, folders[i]); }
    if (!*path) { find_merges_of_shards(path, a->eval ? a->eval : a->train_data); }
}

#define LLMC_TOKENIZER "gpt2_tokenizer.bin"  // in the current folder

// whether llm.c's tokenizer file is there and has the model's vocabulary
static inline bool llmc_tokenizer_fits(int vocab_size) {
    int32_t header[3];  // magic, version, vocabulary
    FILE *file = fopen(LLMC_TOKENIZER, "rb");
    bool read = file && fread(header, sizeof header, 1, file) == 1;
    if (file) { fclose(file); }
    return read && header[0] == TOKENIZER_BIN_MAGIC && header[2] == vocab_size;
}

static inline uint64_t tokenizer_file_fingerprint(const char *path) {
    Tokenizer tokenizer = tokenizer_open(path);
    uint64_t hash = tokenizer_fingerprint(&tokenizer);
    tokenizer_free(&tokenizer);
    return hash;
}

// The tokenizer in -e should be that of the data. Shards of another tokenizer stop the program; with --tokenizer, which
// may be another one on purpose, there is a note on stderr.
static inline void check_tokenizer_of_model(const TrainArgs *a) {
    char own[PATH_LENGTH], other[PATH_LENGTH] = "";
    const char *flag = a->eval ? "--eval" : "-i", *data = a->eval ? a->eval : a->train_data;
    find_tokenizer_of_model(own, a);
    if (a->tokenizer) {
        format_path(other, "%s", a->tokenizer);
    } else if (data && token_path_is_shard(data)) {
        find_merges_of_shards(other, data);
    }
    if (!*own || !*other || tokenizer_file_fingerprint(own) == tokenizer_file_fingerprint(other)) { return; }
    if (!a->tokenizer) {
        input_error("%s %s has the tokens of '%s', and -e %s has those of '%s': an id is another token there; make "
                    "shards with --tokenizer %s, or give --tokenizer %s to go on all the same",
                    flag, data, other, a->model, own, own, other);
    }
    if (a->rank == 0) {
        fprintf(stderr, "note      --tokenizer %s has other tokens than '%s', the tokenizer of -e %s\n", other, own,
                a->model);
    }
}

// *tokenizer = the tokenizer of a file, or the byte tokenizer if the vocabulary is 256. Returns false if there is none:
// text is then printed as numbers. Stops if the tokenizer has more tokens than the model, or is the byte tokenizer and
// the model has more tokens. See check_tokenizer_of_model.
static inline bool find_tokenizer(Tokenizer *tokenizer, const TrainArgs *a, int vocab_size) {
    char path[PATH_LENGTH];
    find_tokenizer_file(path, a);
    if (!a->tokenizer && vocab_size == BYTE_VOCABULARY) {
        *tokenizer = tokenizer_bytes();
        return true;
    }
    if (!*path && llmc_tokenizer_fits(vocab_size)) { format_path(path, LLMC_TOKENIZER); }
    if (!*path) { return false; }
    *tokenizer = tokenizer_open(path);
    if (tokenizer_vocab_size(tokenizer) > vocab_size) {
        input_error("the tokenizer '%s' has %d tokens and the model only %d; give the model's own tokenizer with "
                    "--tokenizer",
                    path, tokenizer_vocab_size(tokenizer), vocab_size);
    }
    if (!tokenizer->merges && vocab_size != BYTE_VOCABULARY) {
        input_error("the tokenizer '%s' is that of bytes and the model has %d tokens; give the model's own tokenizer "
                    "with --tokenizer",
                    path, vocab_size);
    }
    check_tokenizer_of_model(a);
    return true;
}

// the remedy for a model without a tokenizer, for messages
static inline const char *tokenizer_advice(int vocab_size) {
    return vocab_size == GPT2_VOCAB ? "give GPT-2's vocab.bpe with --tokenizer; scripts/get_data.sh merges fetches it"
                                    : "give the merges.txt or tokenizer.json of its vocabulary with --tokenizer";
}

// Reads --prompt-file, a path or - for stdin, without one newline at its end.
static inline char *read_prompt_file(const char *path, size_t *bytes) {
    enum { MOST = 16 << 20 };
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "rb");
    if (!file) { input_error("--prompt-file %s: could not be opened (%s); check the path", path, strerror(errno)); }
    char *text = (char *)xmalloc(MOST + 1);
    *bytes = fread(text, 1, MOST + 1, file);
    if (ferror(file)) {
        input_error("--prompt-file %s: could not be read (%s); give a file of text", path, strerror(errno));
    }
    if (*bytes > MOST) {
        input_error("--prompt-file %s: larger than %d MiB; a model reads only the end of a prompt that is longer than "
                    "its context, so cut the file",
                    path, MOST >> 20);
    }
    if (!is_stdin) { fclose(file); }
    if (*bytes > 0 && text[*bytes - 1] == '\n') { --*bytes; }
    text[*bytes] = 0;
    return (char *)xrealloc(text, *bytes + 1);
}

// The text of --prompt or --prompt-file, *bytes and a NUL; the caller frees it.
static inline char *prompt_text(const TrainArgs *a, size_t *bytes) {
    if (a->prompt_file) { return read_prompt_file(a->prompt_file, bytes); }
    *bytes = strlen(a->prompt);
    return xstrdup(a->prompt);
}

// the token before each document: end-of-text, for bytes a newline, without a tokenizer (NULL) the last token of the
// vocabulary
static inline int document_start(const Tokenizer *tokenizer, int vocab_size) {
    return tokenizer ? tokenizer->end_of_text : vocab_size - 1;
}

// The token after each document; -1 for bytes: a newline starts a document, but also stands inside of it.
static inline int document_end(const Tokenizer *tokenizer, int vocab_size) {
    return tokenizer && !tokenizer->merges ? -1 : document_start(tokenizer, vocab_size);
}

// *tokens (malloced) = the prompt, the text (bytes). Returns the number of tokens. An empty prompt becomes one token,
// document_start.
static inline size_t prompt_tokens(const Tokenizer *tokenizer, const char *text, size_t bytes, int vocab_size,
                                   int **tokens) {
    if (bytes && !tokenizer) {
        input_error("--prompt is text, but a model of %d tokens needs a tokenizer: %s", vocab_size,
                    tokenizer_advice(vocab_size));
    }
    if (bytes) { return tokenizer_encode(tokenizer, text, bytes, tokens); }
    *tokens = (int *)xmalloc(sizeof(int));
    (*tokens)[0] = document_start(tokenizer, vocab_size);
    return 1;
}

// Prints bytes of text. Control characters do not reach a terminal. one_line: newlines become spaces.
static inline void print_bytes(const char *text, size_t bytes, bool one_line) {
    bool terminal = isatty(STDOUT_FILENO);
    for (size_t i = 0; i < bytes; i++) {
        bool control = iscntrl((unsigned char)text[i]) && text[i] != '\n' && text[i] != '\t';
        putchar(terminal && control ? '?' : one_line && text[i] == '\n' ? ' ' : text[i]);
    }
}

// prints one token as text, or as a number if tokenizer is NULL
static inline void print_token(const Tokenizer *tokenizer, int token) {
    if (!tokenizer) {
        printf("%d ", token);
        return;
    }
    size_t bytes;
    const char *text = tokenizer_decode(tokenizer, token, &bytes);
    print_bytes(text, bytes, false);
}
