/*
Text in and out of a model: the tokenizer for a model's vocabulary, prompts and printed tokens.
defines: given_tokenizer, folder_beside, find_tokenizer, tokenizer_advice, prompt_text, document_start, document_end,
         prompt_tokens, print_bytes, print_token
*/
#pragma once
#include "llmc/files/checkpoint.h"
#include "llmc/files/dataloader.h"
#include "llmc/files/manifest.h"
#include "llmc/files/tokenizer_files.h"
#include "llmc/run/train_args.h"
#include <ctype.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

// --tokenizer, or NULL. An empty path is none: a run resumes with it without the --tokenizer of its config.json.
static inline const char *given_tokenizer(const TrainArgs *a) {
    return a->tokenizer && *a->tokenizer ? a->tokenizer : NULL;
}

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

// the names of a tokenizer's file, in the order of the search
static const char *const tokenizer_names[] = {"merges.txt", "vocab.bpe", "tokenizer.json"};
enum { TOKENIZER_NAMES = 3 };

// path = the tokenizer's file in a folder, or "". folder: NULL has none. A tokenizer.json of another kind is skipped.
static inline void find_tokenizer_in(char *path, const char *folder) {
    *path = 0;
    for (int i = 0; i < TOKENIZER_NAMES && folder && *folder && !*path; i++) {
        format_path(path, "%s/%s", folder, tokenizer_names[i]);
        if (access(path, R_OK) != 0 || (i == 2 && !tokenizer_json_is_known(path))) { *path = 0; }
    }
}

// folder = the checkpoint of a step. Returns whether its tokenizer is as its manifest says.
static inline bool tokenizer_is_whole(char *folder, const char *run_dir, long long step) {
    bool whole = true;
    checkpoint_path(folder, run_dir, step);
    for (int i = 0; i < TOKENIZER_NAMES; i++) { whole &= manifest_agrees(folder, tokenizer_names[i]); }
    return whole;
}

// path = the tokenizer's file in the last checkpoint with a whole tokenizer, or in RUN/best if there is no checkpoint;
// or ""
static inline void find_tokenizer_of_run(char *path, const char *run_dir) {
    char folder[PATH_LENGTH] = "";
    long long *steps;
    int count = checkpoint_list_or_stop(run_dir, &steps), last = count - 1;
    while (last >= 0 && !tokenizer_is_whole(folder, run_dir, steps[last])) { last--; }
    free(steps);
    if (count == 0) { checkpoint_of_run(folder, run_dir); }
    find_tokenizer_in(path, count > 0 && last < 0 ? NULL : folder);
}

// folder = the folder that holds a file or folder
static inline void folder_beside(char *folder, const char *path) {
    const char *slash = strrchr(path, '/');
    int length = slash && slash > path ? (int)(slash - path) : 1;  // 1: "/" or "."
    format_path(folder, "%.*s", length, slash ? path : ".");
}

// Whether a path is a file in the format of Hugging Face, which has a folder of its own. llm.c's .bin has none.
static inline bool is_safetensors_file(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) { return false; }
    return has_ending(path, ".safetensors") || has_ending(path, ".safetensors.index.json");
}

// path = the tokenizer's file in the folder -e, in the folder of the safetensors file -e, or in a checkpoint of the run
// directory -e; or ""
static inline void find_tokenizer_of_model(char *path, const TrainArgs *a) {
    char folder[PATH_LENGTH] = "";
    *path = 0;
    if (!a->model || access(a->model, F_OK) != 0) { return; }
    find_tokenizer_in(path, a->model);
    if (*path) { return; }
    if (is_safetensors_file(a->model)) {
        folder_beside(folder, a->model);
        find_tokenizer_in(path, folder);
    } else {
        find_tokenizer_of_run(path, a->model);
    }
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
    format_path(path, "%s", given_tokenizer(a) ? a->tokenizer : "");
    if (*path) { return; }
    find_tokenizer_of_model(path, a);
    if (a->model && access(a->model, F_OK) == 0) { folder_beside(beside, a->model); }
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

// whether a file holds the tokens of `tokenizer`, with the same ids
static inline bool tokenizer_file_is(const Tokenizer *tokenizer, const char *path) {
    Tokenizer other = tokenizer_open(path);
    bool same = tokenizer_fingerprint(&other) == tokenizer_fingerprint(tokenizer);
    tokenizer_free(&other);
    return same;
}

// Stops if the shards of -i, --eval or -j have other tokens than `tokenizer`, of the file `path` that
// find_tokenizer_file found in -e, or else beside the shards of -i. A file beside -e or in -o need not belong to the
// model: it is not compared.
static inline void check_shards(const Tokenizer *tokenizer, const char *path, const TrainArgs *a) {
    char own[PATH_LENGTH], of_data[PATH_LENGTH], other[PATH_LENGTH];
    const char *const flags[] = {a->eval ? "--eval" : "-i", "-j"};
    const char *const shards[] = {a->eval ? a->eval : a->train_data, a->eval ? NULL : a->val_data};
    find_tokenizer_of_model(own, a);
    find_merges_of_shards(of_data, shards[0]);
    if (strcmp(path, own) != 0 && strcmp(path, of_data) != 0) { return; }
    for (int i = 0; i < 2; i++) {
        *other = 0;
        if (shards[i] && token_path_is_shard(shards[i])) { find_merges_of_shards(other, shards[i]); }
        if (!*other || strcmp(other, path) == 0 || tokenizer_file_is(tokenizer, other)) { continue; }
        input_error("%s %s has the tokens of '%s', and %s %s has those of '%s': an id is another token there; make "
                    "shards with --tokenizer %s, or say with --tokenizer which of the two counts",
                    flags[i], shards[i], other, *own ? "-e" : flags[0], *own ? a->model : shards[0], path, path);
    }
}

// *tokenizer = the tokenizer of a file, or the byte tokenizer if the vocabulary is 256. Returns false if there is none:
// text is then printed as numbers. Stops if the tokenizer has more tokens than the model, or is the byte tokenizer and
// the model has more tokens. See check_shards.
static inline bool find_tokenizer(Tokenizer *tokenizer, const TrainArgs *a, int vocab_size) {
    char path[PATH_LENGTH];
    find_tokenizer_file(path, a);
    if (!given_tokenizer(a) && vocab_size == BYTE_VOCABULARY) {
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
    if (!given_tokenizer(a)) { check_shards(tokenizer, path, a); }
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
