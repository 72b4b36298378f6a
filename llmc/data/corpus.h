/*
The documents of a corpus, read once and in order: files of text, files of JSON lines, or stdin.

Text        A file is one document, or several: a line that is exactly <|endoftext|>, or another special token of the
            tokenizer, ends one, and is no text.
JSON lines  files and stdin that begin like JSON, files named .json, .jsonl or .ndjson, and stdin if a field is given.
            A line is an object; its document is the string in the field. Blank lines are skipped. A NUL is
            left out; a lone surrogate is read as U+FFFD. Python's NaN and Infinity are no error, except in a field that
            is read.
Piece       a document, or about 64 KiB of a longer text, cut where both parts encode to the tokens of the whole
Memory      4 MiB, or twice the longest line of JSON, which is at most 64 MiB long, and the parsed line
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/json_file.h"
#include "llmc/data/tokenizer.h"
#include <fcntl.h>
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
    bool ends_document;
} CorpusPiece;

typedef struct {
    const char *flag;    // gave the pattern; error messages name it
    const char *field;   // of JSON lines
    bool stdin_is_json;  // whatever it begins with
    glob_t found;
    char **paths;  // (num_files) those that were found; "-" for stdin
    int num_files;
    const Tokenizer *tokenizer;  // that will encode the text; NULL: without added tokens
    uint64_t bytes, bytes_read;  // of all files, 0 for stdin; up to the next piece
    // for notes
    uint64_t replaced;              // NULs and lone surrogates of JSON
    uint64_t bad_bytes, first_bad;  // of text: NULs and bytes that are not UTF-8; where the first one is in its file
    int bad_file;
    uint64_t specials;  // special tokens within lines, which stay text
    // the current file
    int file, fd;  // fd -1: not open
    char *window;
    size_t begin, end, capacity;  // window[begin, end): bytes that are read, from the next piece on
    bool whole;                   // the file has no bytes after the window
    bool is_json;
    uint64_t offset;      // of the window's begin in the file
    uint64_t line;        // of JSON: the last one read, counted from 1
    bool starts_line;     // of text: the next piece may be a separator
    bool in_document;     // of text: the last piece did not end its document
    cJSON *json;          // the line of JSON that was read last
    char line_start[61];  // of that line, for messages
} Corpus;

// ---- the files

// Returns the size of the file. field: NULL, or given by the user
static inline uint64_t require_corpus_file(const char *flag, const char *path, const char *field) {
    struct stat info;
    int error = access(path, R_OK) != 0 || stat(path, &info) != 0 ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
    if (error) {
        input_error("%s: could not open %s: %s; name files that can be read, for example 'corpus/*.txt'", flag, path,
                    strerror(error));
    }
    refuse_binary(flag, path);
    if (field && info.st_size > 0 && file_kind(path) != FILE_JSON) {
        input_error("%s: --field is for JSON lines, and %s is text; leave the flag or the file out", flag, path);
    }
    return (uint64_t)info.st_size;
}

// Opens the corpus of a glob pattern, sorted by name, or stdin ("-"). flag is for messages, and is not copied. field is
// that of JSON lines; if it is NULL, we read CORPUS_FIELD, and stdin is JSON lines if it begins like JSON. Stops unless
// every file can be read. Close with corpus_close.
static inline Corpus corpus_open(const char *flag, const char *pattern, const char *field) {
    Corpus c = {flag, field ? field : CORPUS_FIELD, field != NULL};
    c.fd = -1;
    c.capacity = CORPUS_WINDOW;
    c.window = (char *)xmalloc(c.capacity + 1);
    bool is_stdin = strcmp(pattern, "-") == 0;
    if (!is_stdin || glob(pattern, GLOB_NOCHECK, NULL, &c.found) != 0) { c.found = require_files(flag, pattern); }
    c.paths = c.found.gl_pathv;
    c.num_files = (int)c.found.gl_pathc;
    for (int f = 0; f < c.num_files && !is_stdin; f++) { c.bytes += require_corpus_file(flag, c.paths[f], field); }
    return c;
}

static inline void corpus_close(Corpus *c) {
    if (c->fd > STDIN_FILENO) { close(c->fd); }
    globfree(&c->found);
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
    c->offset += bytes;
    c->bytes_read += bytes;
}

// Counts the NULs of a piece, the bytes that are not valid UTF-8 and, unless the tokenizer counts them, <|endoftext|>.
static inline void corpus_count_bad(Corpus *c, const char *text, size_t bytes) {
    size_t length;
    for (size_t at = 0; at < bytes; at += length) {
        length = 1;
        if ((int8_t)text[at] > 0) { continue; }
        bool bad = text[at] == 0 || tokenizer_code_point(text + at, bytes - at, &length) == TOKENIZER_NOT_UTF8;
        if (bad && c->bad_bytes++ == 0) {
            c->first_bad = c->offset + at;
            c->bad_file = c->file;
        }
    }
    const char *end = text + bytes,
               *special = c->tokenizer && c->tokenizer->merges ? NULL : text;  // its encoder counts
    while (special && (special = (const char *)memmem(special, (size_t)(end - special), TOKENIZER_END_OF_TEXT, 13))) {
        c->specials++;
        special += 13;
    }
}

static inline bool corpus_line_is_separator(const Corpus *c, const char *line, size_t length) {
    const Tokenizer *t = c->tokenizer;
    if (length == strlen(TOKENIZER_END_OF_TEXT) && memcmp(line, TOKENIZER_END_OF_TEXT, length) == 0) { return true; }
    if (!t || length == 0 || !t->starts_added[(uint8_t)line[0]]) { return false; }
    int id = tokenizer_find(t, line, length);
    return id >= 0 && (t->kind[id] & TOKEN_SPECIAL);
}

// Returns the offset of the first line in `max` bytes of the window that ends a document, and its *length; else `max`.
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

// Reads the next piece of a text file, which may have no bytes. Returns false at the end of the file.
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
    corpus_count_bad(c, piece->text, length);
    corpus_advance(c, length + separator);
    bool any = c->in_document || length > 0;
    piece->ends_document = any && (separator || (c->whole && c->begin == c->end));
    c->in_document = any && !piece->ends_document;
    c->starts_line = separator || piece->text[length - 1] == '\n';
    return true;
}

// Reads the next line of a file of JSON lines that is not blank. Returns false at the end of the file.
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
        corpus_count_bad(c, text, length);
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

// Begins the current file: decides whether it is JSON. Stops at stdin of a binary kind.
static inline void corpus_begin_file(Corpus *c) {
    const char *path = c->paths[c->file];
    bool is_stdin = strcmp(path, "-") == 0;
    c->fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (c->fd < 0) { run_error("%s: could not open %s: %s", c->flag, path, strerror(errno)); }
    c->begin = c->end = 0;
    c->whole = c->in_document = false;
    c->starts_line = true;
    c->line = c->offset = 0;
    corpus_fill(c, FILE_HEAD);
    size_t head = c->end < FILE_HEAD ? c->end : (size_t)FILE_HEAD;
    int kind = kind_of_bytes(c->window, head);
    c->is_json = kind == FILE_JSON || (is_stdin ? c->stdin_is_json : name_is_json(path));
    if (is_stdin && kind != FILE_OTHER && kind != FILE_JSON) {
        refuse_bytes(c->flag, "-", c->window, head, "text in UTF-8");
    }
    if (head >= 3 && memcmp(c->window, "\xef\xbb\xbf", 3) == 0) { corpus_advance(c, 3); }  // a byte order mark
}

// Reads the next piece as the file has it. Returns false at the end of the corpus.
static inline bool corpus_read(Corpus *c, CorpusPiece *piece) {
    piece->text = NULL;
    while (c->file < c->num_files) {
        if (c->fd < 0) { corpus_begin_file(c); }
        if (c->is_json ? corpus_next_json(c, piece) : corpus_next_text(c, piece)) { return true; }
        if (c->fd > STDIN_FILENO) { close(c->fd); }
        c->fd = -1;
        c->file++;
    }
    return false;
}

// ---- documents of JSON lines

// Stops at the line of JSON that was read last, because it is bad. error: "WHAT; ADVICE"
__attribute__((noreturn)) static inline void corpus_bad_line(const Corpus *c, const char *error) {
    int what = (int)strcspn(error, ";");
    input_error("%s %s line %" PRIu64 " %.*s: found '%s'%s", c->flag, c->paths[c->file], c->line, what, error,
                c->line_start, error + what);
}

enum { CORPUS_NO_ESCAPE = 1 << 16, CORPUS_BAD_ESCAPE };

// The number XXXX of an escape \uXXXX, or one of the above.
static inline unsigned corpus_escape(const char *text) {
    if (strncmp(text, "\\u", 2) != 0) { return CORPUS_NO_ESCAPE; }
    if (strspn(text + 2, "0123456789abcdefABCDEF") < 4) { return CORPUS_BAD_ESCAPE; }
    const char digits[5] = {text[2], text[3], text[4], text[5], 0};
    return (unsigned)strtoul(digits, NULL, 16);
}

// Replaces in a line of JSON what Python writes and cJSON does not read: NaN and Infinity by [], which no reader takes
// for a number or a text, and a lone surrogate by U+FFFD. Leaves out \u0000, where cJSON would end a string.
static inline void corpus_mend(Corpus *c, char *line) {
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    bool in_string = false;
    char *to = line;
    for (char *at = line; *at;) {
        size_t read = 1;
        in_string ^= *at == '"';
        for (int i = 0; i < 3 && !in_string && strchr("NI-", *at); i++) {
            size_t length = strlen(words[i]);
            if (strncmp(at, words[i], length) == 0) { memcpy(memset(at, ' ', length), "[]", 2); }
        }
        if (in_string && *at == '\\' && at[1]) {
            unsigned code = corpus_escape(at), next = code >= 0xD800 && code < 0xDC00 ? corpus_escape(at + 6) : 0;
            bool pair = next >= 0xDC00 && next < 0xE000, lone = !pair && code >= 0xD800 && code < 0xE000;
            read = pair ? 12 : code == 0 ? 0 : 2;
            if (code == 0) { at += 6; }
            if (lone) { memcpy(at + 2, "fffd", 4); }
            c->replaced += code == 0 || lone;
            if (code == CORPUS_BAD_ESCAPE) { at[1] = '-'; }  // an error for cJSON, which would read it as a NUL
        }
        while (read--) { *to++ = *at++; }
    }
    *to = 0;
}

// Returns the object or array in a line of JSON (caller deletes), or NULL and *error. Overwrites line[bytes].
static inline cJSON *corpus_parse(Corpus *c, char *line, size_t bytes, const char **error) {
    *error = *line == '['  ? "is not a JSON object; jq -c '.[]' FILE writes one object per line"
             : c->line > 1 ? "is not a JSON object; jq -cR 'fromjson?' FILE writes the lines that are JSON"
                           : "is not a JSON object; jq -c . FILE writes one object per line, jq -cR 'fromjson?' FILE "
                             "the lines that are JSON";
    if (memchr(line, 0, bytes)) {
        *error = "has a NUL byte, which JSON cannot hold; tr -d '\\0' <FILE >NEW removes NULs";
        return NULL;
    }
    line[bytes] = 0;
    corpus_mend(c, line);
    cJSON *json = cJSON_ParseWithOpts(line, NULL, true);
    if (cJSON_IsObject(json) || cJSON_IsArray(json)) { return json; }
    cJSON_Delete(json);
    return NULL;
}

// Returns the object or array in the line that was read last, valid until the next call. Stops at a bad line.
static inline const cJSON *corpus_value(Corpus *c, const CorpusPiece *line) {
    cJSON_Delete(c->json);
    int shown = line->bytes < sizeof c->line_start ? (int)line->bytes : (int)sizeof c->line_start - 1;
    snprintf(c->line_start, sizeof c->line_start, "%.*s", shown, line->text);  // parsing changes the line
    const char *error;
    c->json = corpus_parse(c, line->text, line->bytes, &error);
    if (!c->json) { corpus_bad_line(c, error); }
    return c->json;
}

// Replaces a line of JSON by its document, the string in the field. Stops at a line without one.
static inline void corpus_take_document(Corpus *c, CorpusPiece *line) {
    const cJSON *json = corpus_value(c, line);
    char *text = cJSON_GetStringValue(json_get(json, c->field));
    if (!text) {
        char error[160];
        snprintf(error, sizeof error, "has no string in the field %.64s; name the field of the text with --field",
                 c->field);
        corpus_bad_line(c, cJSON_IsArray(json) ? "is an array; jq -c '.[]' FILE writes one object per line" : error);
    }
    line->text = text;
    line->bytes = strlen(text);
}

// Reads the next piece as text. Returns false at the end of the corpus.
static inline bool corpus_next(Corpus *c, CorpusPiece *piece) {
    if (!corpus_read(c, piece)) { return false; }
    if (c->is_json) { corpus_take_document(c, piece); }
    return true;
}

// ---- notes

static inline void corpus_print_notes(FILE *out, const Corpus *c) {
    if (c->bad_bytes) {
        fprintf(out,
                "note      %s: %" PRIu64 " bytes are NUL or not UTF-8, the first at byte %" PRIu64
                "; they stay as they are. If the text is in another encoding, such as LATIN1, iconv -f LATIN1 -t UTF-8 "
                "converts it\n",
                c->paths[c->bad_file], c->bad_bytes, c->first_bad);
    }
    if (c->specials) {
        fprintf(out,
                "note      %" PRIu64 " special token%s, such as <|endoftext|>, inside the text: read as characters, "
                "since only a line that is the token alone ends a document\n",
                c->specials, plural_s(c->specials));
    }
    if (c->replaced) {
        fprintf(out,
                "note      %" PRIu64
                " NUL%s or lone surrogate%s in JSON: a NUL is left out, and U+FFFD replaces a surrogate\n",
                c->replaced, plural_s(c->replaced), plural_s(c->replaced));
    }
}
