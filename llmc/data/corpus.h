/*
The documents of a corpus, read once and in order: files of text, files of JSON lines, or stdin.
defines: CorpusPiece, Corpus, corpus_is_json, corpus_open, corpus_next, corpus_read, corpus_object,
         corpus_take_document, corpus_refuse, corpus_close

Text        A file is one document, or several: a line that is exactly <|endoftext|>, or another special token of the
            tokenizer, ends one, and is no text.
JSON lines  files that end in .jsonl, or stdin if a field is given. A line is an object; its document is the string in
            the field. Blank lines are skipped.
Piece       a document, or about 64 KiB of a longer text, cut where both parts encode to the tokens of the whole
Memory      4 MiB, or twice the longest line of JSON, which is at most 64 MiB long, and the parsed line
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/file_kind.h"
#include "llmc/data/tokenizer.h"
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CORPUS_PIECE = 64 << 10,  // bytes
    CORPUS_WINDOW = 4 << 20,
    CORPUS_MAX_LINE = 64 << 20,  // of JSON lines
    // bytes after a piece that decide where it can be cut
    CORPUS_AHEAD = CORPUS_PIECE + TOKENIZER_MAX_PRETOKEN + 8,
};
#define CORPUS_FIELD "text"  // of JSON lines, unless another one is given

// a document or a part of one; as corpus_read gives it, text or a line of JSON
typedef struct {
    char *text;  // valid until the next piece is read; text[bytes] may be overwritten
    size_t bytes;
    bool is_json, ends_document;
    int file;
    uint64_t line;  // of JSON, counted from 1
} CorpusPiece;

typedef struct {
    char **paths;  // (num_files) "-" for stdin
    int num_files;
    bool stdin_is_json;
    const char *flag;            // gave the pattern; error messages name it
    const char *field;           // of JSON lines
    const Tokenizer *tokenizer;  // that will encode the text; NULL: without added tokens
    uint64_t bytes_read;         // of all files, up to the next piece
    // the current file
    int file, fd;  // fd -1: not open
    char *window;
    size_t begin, end, capacity;  // window[begin, end): bytes that are read, from the next piece on
    bool whole;                   // the file has no bytes after the window
    uint64_t line;                // of JSON
    bool starts_line;             // of text: the next piece may be a separator
    bool in_document;             // of text: the last piece did not end its document
    cJSON *json;                  // the line of JSON that was read last
} Corpus;

// ---- the files

static inline bool corpus_is_json(const char *path) { return has_ending(path, ".jsonl"); }

// adds a file, or "-"
static inline void corpus_add_file(Corpus *c, const char *path) {
    c->paths = (char **)xgrow(c->paths, (size_t)c->num_files, sizeof *c->paths);
    c->paths[c->num_files++] = xstrdup(path);
}

static inline void corpus_check_file(const char *flag, const char *path) {
    struct stat info;
    if (access(path, R_OK) != 0 || stat(path, &info) != 0) {
        input_error("%s: could not open %s: %s; name files that can be read", flag, path, strerror(errno));
    }
    if (S_ISDIR(info.st_mode)) {
        input_error("%s: %s is a folder; name its files, for example with '%s/*.txt'", flag, path, path);
    }
    if (!corpus_is_json(path)) { refuse_binary(flag, path); }
}

// The corpus of a glob pattern, sorted by name, or "-" for stdin. flag: for messages, not copied. field: of JSON lines;
// NULL: CORPUS_FIELD, and stdin is text. Stops unless every file can be read. Close with corpus_close.
static inline Corpus corpus_open(const char *flag, const char *pattern, const char *field) {
    Corpus c;
    memset(&c, 0, sizeof c);
    c.flag = flag;
    c.field = field ? field : CORPUS_FIELD;
    c.fd = -1;
    c.capacity = CORPUS_WINDOW;
    c.window = (char *)xmalloc(c.capacity + 1);
    if (strcmp(pattern, "-") == 0) {
        c.stdin_is_json = field != NULL;
        corpus_add_file(&c, pattern);
        return c;
    }
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0) {
        input_error("%s: no file matches '%s'; give a path, a quoted pattern such as 'corpus/*.txt', or - for stdin",
                    flag, pattern);
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        corpus_check_file(flag, found.gl_pathv[i]);
        corpus_add_file(&c, found.gl_pathv[i]);
    }
    globfree(&found);
    return c;
}

static inline void corpus_close(Corpus *c) {
    if (c->fd > STDIN_FILENO) { close(c->fd); }
    for (int f = 0; f < c->num_files; f++) { free(c->paths[f]); }
    free(c->paths);
    free(c->window);
    cJSON_Delete(c->json);
}

// ---- reading

// Reads until the window holds `wanted` bytes, or all bytes that the file has.
static inline void corpus_fill(Corpus *c, size_t wanted) {
    if (c->whole || c->end - c->begin >= wanted) { return; }
    memmove(c->window, c->window + c->begin, c->end - c->begin);
    c->end -= c->begin;
    c->begin = 0;
    if (wanted > c->capacity) {
        c->capacity = 2 * wanted;
        c->window = (char *)xrealloc(c->window, c->capacity + 1);
    }
    while (c->end < c->capacity) {
        ssize_t got = read(c->fd, c->window + c->end, c->capacity - c->end);
        if (got < 0 && errno == EINTR) { continue; }
        if (got < 0) { run_error("%s: could not read %s: %s", c->flag, c->paths[c->file], strerror(errno)); }
        c->whole = got == 0;
        if (got == 0) { return; }
        c->end += (size_t)got;
    }
}

static inline void corpus_advance(Corpus *c, size_t bytes) {
    c->begin += bytes;
    c->bytes_read += bytes;
}

static inline bool corpus_line_is_separator(const Corpus *c, const char *line, size_t length) {
    const Tokenizer *t = c->tokenizer;
    if (length == strlen(TOKENIZER_END_OF_TEXT) && memcmp(line, TOKENIZER_END_OF_TEXT, length) == 0) { return true; }
    if (!t || length == 0 || !t->starts_added[(uint8_t)line[0]]) { return false; }
    int id = tokenizer_find(t, line, length);
    return id >= 0 && (t->kind[id] & TOKEN_SPECIAL);
}

// Looks in the first `max` bytes of the window for a line that ends a document. Returns where it starts, or `max`;
// *length = its bytes with the end of the line.
static inline size_t corpus_find_separator(const Corpus *c, size_t max, size_t *length) {
    const char *text = c->window + c->begin;
    size_t bytes = c->end - c->begin, next;
    for (size_t at = 0; at < max; at = next) {
        const char *newline = (const char *)memchr(text + at, '\n', bytes - at);
        size_t end = newline ? (size_t)(newline - text) : bytes;
        next = end + (newline != NULL);
        if (end > at && text[end - 1] == '\r') { end--; }
        if ((at > 0 || c->starts_line) && corpus_line_is_separator(c, text + at, end - at)) {
            *length = next - at;
            return at;
        }
    }
    return max;
}

// The next piece of a text file, which may have no bytes. False: the file has ended.
static inline bool corpus_next_text(Corpus *c, CorpusPiece *piece) {
    corpus_fill(c, CORPUS_AHEAD);
    size_t bytes = c->end - c->begin, separator = 0;
    if (bytes == 0) { return false; }
    size_t max = bytes < CORPUS_PIECE ? bytes : (size_t)CORPUS_PIECE;
    size_t length = corpus_find_separator(c, max, &separator);
    // a cut behind `max` cuts no separator: no pre-token joins the end of a line and what follows
    if (!separator && (bytes > max || !c->whole)) {
        length = tokenizer_safe_cut(c->tokenizer, c->window + c->begin, bytes, max);
    }
    piece->text = c->window + c->begin;
    piece->bytes = length;
    corpus_advance(c, length + separator);
    bool any = c->in_document || length > 0;
    piece->ends_document = any && (separator || (c->whole && c->begin == c->end));
    c->in_document = any && !piece->ends_document;
    c->starts_line = separator || piece->text[length - 1] == '\n';
    return true;
}

// The next line of a file of JSON lines that is not blank. False: the file has ended.
static inline bool corpus_next_json(Corpus *c, CorpusPiece *piece) {
    for (size_t searched = 0;;) {
        corpus_fill(c, searched + 1);
        char *text = c->window + c->begin;
        size_t bytes = c->end - c->begin;
        char *newline = (char *)memchr(text + searched, '\n', bytes - searched);
        if (!newline && bytes > CORPUS_MAX_LINE) {
            run_error("%s %s line %" PRIu64 ": longer than %d bytes; expected one document a line", c->flag,
                      c->paths[c->file], c->line + 1, CORPUS_MAX_LINE);
        }
        if (!newline && !c->whole) {
            searched = bytes;
            continue;
        }
        if (bytes == 0) { return false; }
        size_t length = newline ? (size_t)(newline - text) : bytes;
        corpus_advance(c, length + (newline != NULL));
        c->line++;
        searched = 0;
        while (length > 0 && strchr(" \t\r", text[length - 1])) { length--; }
        if (length == 0) { continue; }
        piece->text = text;
        piece->bytes = length;
        piece->ends_document = true;
        return true;
    }
}

// The next piece as the file has it. False: the corpus has ended.
static inline bool corpus_read(Corpus *c, CorpusPiece *piece) {
    while (c->file < c->num_files) {
        const char *path = c->paths[c->file];
        bool is_stdin = strcmp(path, "-") == 0;
        if (c->fd < 0) {
            c->fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
            if (c->fd < 0) { run_error("%s: could not open %s: %s", c->flag, path, strerror(errno)); }
            c->begin = c->end = 0;
            c->whole = c->in_document = false;
            c->starts_line = true;
            c->line = 0;
        }
        piece->file = c->file;
        piece->is_json = is_stdin ? c->stdin_is_json : corpus_is_json(path);
        if (piece->is_json ? corpus_next_json(c, piece) : corpus_next_text(c, piece)) {
            piece->line = c->line;
            return true;
        }
        if (c->fd > STDIN_FILENO) { close(c->fd); }
        c->fd = -1;
        c->file++;
    }
    return false;
}

// ---- documents of JSON lines

// Stops at a line of JSON. error: in words that follow the line's number.
__attribute__((noreturn)) static inline void corpus_refuse(const Corpus *c, const CorpusPiece *piece,
                                                           const char *error) {
    input_error("%s %s line %" PRIu64 " %s: found '%.60s'", c->flag, c->paths[piece->file], piece->line, error,
                piece->text);
}

// The object of a line of JSON; the caller deletes it. NULL: the line is something else. line[bytes] is overwritten.
static inline cJSON *corpus_parse(char *line, size_t bytes) {
    const char *end = line;
    size_t length = 0;
    if (memchr(line, 0, bytes)) { return NULL; }
    for (size_t i = 0; i < bytes;) {
        bool escape = line[i] == '\\', nul = escape && bytes - i >= 6 && memcmp(line + i, "\\u0000", 6) == 0;
        if (nul) { i += 6; }  // cJSON would end a string there
        for (int n = nul ? 0 : escape ? 2 : 1; n > 0 && i < bytes; n--) { line[length++] = line[i++]; }
    }
    line[length] = 0;
    cJSON *json = cJSON_ParseWithLengthOpts(line, length, &end, false);
    if (json && cJSON_IsObject(json) && end + strspn(end, " \t") == line + length) { return json; }
    cJSON_Delete(json);
    return NULL;
}

// The object of the line that was read last, valid until the next call. Stops at a line that is none.
static inline const cJSON *corpus_object(Corpus *c, const CorpusPiece *line) {
    cJSON_Delete(c->json);
    c->json = corpus_parse(line->text, line->bytes);
    if (!c->json) { corpus_refuse(c, line, "is no JSON object; expected an object a line"); }
    return c->json;
}

// Replaces a line of JSON by its document, the string in the field. Stops at a line without one.
static inline void corpus_take_document(Corpus *c, CorpusPiece *line) {
    char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(corpus_object(c, line), c->field));
    if (!text) { corpus_refuse(c, line, "has no string in the field; name the field of the text with --field"); }
    line->text = text;
    line->bytes = strlen(text);
}

// The next piece as text. False: the corpus has ended.
static inline bool corpus_next(Corpus *c, CorpusPiece *piece) {
    bool found = corpus_read(c, piece);
    if (found && piece->is_json) { corpus_take_document(c, piece); }
    return found;
}
