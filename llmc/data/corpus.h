/*
The documents of a corpus, read once and in order: files of text, files of JSON lines, or stdin.
defines: CorpusPiece, Corpus, corpus_open, corpus_next, corpus_read, corpus_value, corpus_bad_line, corpus_print_notes,
         print_bad_bytes, corpus_close

Text        A file is one document, or several: a line that is exactly <|endoftext|>, or another special token of the
            tokenizer, ends one, and is no text.
JSON lines  files and stdin that begin like JSON, files named .json, .jsonl or .ndjson, and stdin if a field is given.
            A line is an object; its document is the string in the field. Blank lines are skipped. A lone surrogate is
            read as U+FFFD. Python's NaN and Infinity are no error, except in a field that is read.
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
    bool is_json, ends_document;
    int file;
    uint64_t line;  // of JSON, counted from 1
} CorpusPiece;

typedef struct {
    char **paths;  // (num_files) "-" for stdin
    int num_files;
    bool stdin_is_json;          // whatever it begins with
    int skip_bad;                // bad lines of JSON that are left out before one is an error; -1: none may be
    const char *flag;            // gave the pattern; error messages name it
    const char *field;           // of JSON lines
    const Tokenizer *tokenizer;  // that will encode the text; NULL: without added tokens
    uint64_t bytes, bytes_read;  // of all files, 0 for stdin; up to the next piece
    // for notes
    int bad_lines;
    char bad_line[512];                   // the first one, as its error would say
    uint64_t surrogates, nuls;            // of JSON
    uint64_t bad_bytes, nul_at[2];        // of text: NULs and bytes that are not UTF-8; NULs at even and at odd places
    uint64_t first_bad, bad_piece_bytes;  // where the first one is in its file; bytes of the pieces with such bytes
    int bad_file;
    uint64_t separators, specials;  // lines that ended a document; special tokens within lines, which stay text
    // the current file
    int file, fd;  // fd -1: not open
    char *window;
    size_t begin, end, capacity;  // window[begin, end): bytes that are read, from the next piece on
    bool whole;                   // the file has no bytes after the window
    bool is_json;
    uint64_t offset;      // of the window's begin in the file
    uint64_t line;        // of JSON
    bool starts_line;     // of text: the next piece may be a separator
    bool in_document;     // of text: the last piece did not end its document
    cJSON *json;          // the line of JSON that was read last
    char line_start[61];  // of that line, for messages
} Corpus;

// ---- the files

// adds a file, or "-"
static inline void corpus_add_file(Corpus *c, const char *path) {
    c->paths = (char **)xgrow(c->paths, (size_t)c->num_files, sizeof *c->paths);
    c->paths[c->num_files++] = xstrdup(path);
}

// Returns the size of the file. field: NULL, or given by the user
static inline uint64_t corpus_check_file(const char *flag, const char *path, const char *field) {
    struct stat info;
    if (access(path, R_OK) != 0 || stat(path, &info) != 0) {
        input_error("%s: could not open %s: %s; name files that can be read", flag, path, strerror(errno));
    }
    if (S_ISDIR(info.st_mode)) {
        input_error("%s: %s is a folder; name its files, for example with '%s/*.txt'", flag, path, path);
    }
    refuse_binary(flag, path);
    if (field && info.st_size > 0 && file_kind(path) != FILE_JSON) {
        input_error("%s: --field is for JSON lines, and %s is text; leave the flag or the file out", flag, path);
    }
    return (uint64_t)info.st_size;
}

// The corpus of a glob pattern, sorted by name, or "-" for stdin. flag: for messages, not copied. field: of JSON lines;
// NULL: CORPUS_FIELD, and stdin is what it begins like. skip_bad: of --skip-bad. Stops unless every file can be read.
// Close with corpus_close.
static inline Corpus corpus_open(const char *flag, const char *pattern, const char *field, int skip_bad) {
    Corpus c;
    memset(&c, 0, sizeof c);
    c.flag = flag;
    c.skip_bad = skip_bad;
    c.field = field ? field : CORPUS_FIELD;
    c.stdin_is_json = field != NULL;
    c.fd = -1;
    c.capacity = CORPUS_WINDOW;
    c.window = (char *)xmalloc(c.capacity + 1);
    if (strcmp(pattern, "-") == 0) {
        corpus_add_file(&c, pattern);
        return c;
    }
    glob_t found;
    if (!find_files(&found, pattern)) {
        input_error("%s: no file matches '%s'; give a path, a quoted pattern such as 'corpus/*.txt', or - for stdin",
                    flag, pattern);
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        c.bytes += corpus_check_file(flag, found.gl_pathv[i], field);
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
    c->offset += bytes;
    c->bytes_read += bytes;
}

// counts the NULs of a piece, its bytes outside of UTF-8 and, where no tokenizer does, its <|endoftext|>
static inline void corpus_count_bad(Corpus *c, const char *text, size_t bytes) {
    uint64_t before = c->bad_bytes;
    size_t length;
    for (size_t at = 0; at < bytes; at += length) {
        length = 1;
        if ((int8_t)text[at] > 0) { continue; }
        bool bad = text[at] == 0 || tokenizer_code_point(text + at, bytes - at, &length) == TOKENIZER_NOT_UTF8;
        if (!bad) { continue; }
        if (text[at] == 0) { c->nul_at[(c->offset + at) % 2]++; }
        if (c->bad_bytes++ == 0) {
            c->first_bad = c->offset + at;
            c->bad_file = c->file;
        }
    }
    if (c->bad_bytes > before) { c->bad_piece_bytes += bytes; }
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
    corpus_count_bad(c, piece->text, length);
    corpus_advance(c, length + separator);
    c->separators += separator > 0;
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

// The next piece as the file has it. False: the corpus has ended.
static inline bool corpus_read(Corpus *c, CorpusPiece *piece) {
    piece->text = NULL;
    while (c->file < c->num_files) {
        if (c->fd < 0) { corpus_begin_file(c); }
        piece->file = c->file;
        piece->is_json = c->is_json;
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

// Leaves out a bad line of JSON if --skip-bad has room for it, else stops. error: "WHAT; ADVICE"
static inline void corpus_bad_line(Corpus *c, const CorpusPiece *piece, const char *error) {
    char sentence[sizeof c->bad_line];
    int what = (int)strcspn(error, ";");
    snprintf(sentence, sizeof sentence, "%s line %" PRIu64 " %.*s: found '%s'", c->paths[piece->file], piece->line,
             what, error, c->line_start);
    if (c->bad_lines >= c->skip_bad) {
        const char *skip = c->skip_bad > 0 ? "; --skip-bad has left out as many as it may" : "";
        if (c->skip_bad == 0 && piece->line > 1) { skip = "; --skip-bad N leaves out up to N such lines"; }
        input_error("%s %s%s%s", c->flag, sentence, error + what, skip);
    }
    if (c->bad_lines++ == 0) { memcpy(c->bad_line, sentence, sizeof sentence); }
}

// the four digits of \uXXXX at `text`, which has 6 bytes; 0: they are something else
static inline unsigned corpus_escape(const char *text) {
    char digits[5] = {text[2], text[3], text[4], text[5], 0}, *end;
    unsigned code = (unsigned)strtoul(digits, &end, 16);
    return text[0] == '\\' && text[1] == 'u' && end == digits + 4 ? code : 0;
}

// Copies a character or an escape of a string at line[at] to line[*length]. Returns the bytes read.
static inline size_t corpus_copy_escape(Corpus *c, char *line, size_t bytes, size_t at, size_t *length) {
    bool code_fits = bytes - at >= 6;
    unsigned code = code_fits ? corpus_escape(line + at) : 0;
    size_t read = line[at] != '\\' || bytes - at < 2 ? 1 : 2;
    if (code_fits && memcmp(line + at, "\\u0000", 6) == 0) {  // cJSON would end a string there
        c->nuls++;
        return 6;
    }
    if (code >= 0xD800 && code < 0xE000) {
        unsigned next = bytes - at >= 12 ? corpus_escape(line + at + 6) : 0;
        bool pair = code < 0xDC00 && next >= 0xDC00 && next < 0xE000;
        read = pair ? 12 : 6;
        if (!pair) {
            memcpy(line + at, "\\ufffd", 6);
            c->surrogates++;
        }
    }
    memmove(line + *length, line + at, read);
    *length += read;
    return read;
}

// The object or array of a line of JSON, which the caller deletes; NULL and *error: none. line[bytes] is overwritten.
static inline cJSON *corpus_parse(Corpus *c, char *line, size_t bytes, const char **error) {
    const char *end = line;
    size_t length = 0;
    int depth = 0, deepest = 0;
    bool in_string = false;
    *error = *line == '[' ? "is not a JSON object; jq -c '.[]' FILE writes one object per line"
                          : "is not a JSON object; jq -c . FILE writes one object per line";
    if (memchr(line, 0, bytes)) {
        *error = "has a NUL byte, which JSON cannot hold; if it is UTF-16, iconv -f UTF-16LE -t UTF-8 FILE >NEW "
                 "converts it, else tr -d '\\0' <FILE >NEW removes NULs";
        return NULL;
    }
    for (size_t i = 0; i < bytes;) {
        if (!in_string && (line[i] == 'N' || line[i] == 'I')) {  // NaN, Infinity or -Infinity
            const char *word = line[i] == 'N' ? "NaN" : "Infinity";
            size_t word_length = strlen(word);
            if (bytes - i < word_length || memcmp(line + i, word, word_length) != 0) { return NULL; }
            length -= length > 0 && line[length - 1] == '-';
            line[length++] = '[';  // an array, which no reader takes for a number or a text
            line[length++] = ']';
            i += word_length;
            continue;
        }
        in_string ^= line[i] == '"';
        depth += in_string ? 0 : (line[i] == '[' || line[i] == '{') - (line[i] == ']' || line[i] == '}');
        deepest = depth > deepest ? depth : deepest;
        i += corpus_copy_escape(c, line, bytes, i, &length);
    }
    line[length] = 0;
    cJSON *json = cJSON_ParseWithLengthOpts(line, length, &end, false);
    bool good = cJSON_IsObject(json) || cJSON_IsArray(json);
    if (good && end + strspn(end, " \t") == line + length) { return json; }
    cJSON_Delete(json);
    if (deepest > CJSON_NESTING_LIMIT) { *error = "is nested deeper than 1000 levels; flatten it, or remove the line"; }
    return NULL;
}

// The object or array of the line that was read last, valid until the next call. NULL if it is a bad line.
static inline const cJSON *corpus_value(Corpus *c, const CorpusPiece *line) {
    cJSON_Delete(c->json);
    int shown = line->bytes < sizeof c->line_start ? (int)line->bytes : (int)sizeof c->line_start - 1;
    snprintf(c->line_start, sizeof c->line_start, "%.*s", shown, line->text);  // parsing changes the line
    const char *error;
    c->json = corpus_parse(c, line->text, line->bytes, &error);
    if (!c->json) { corpus_bad_line(c, line, error); }
    return c->json;
}

// Replaces a line of JSON by its document, the string in the field. False if it is a bad line.
static inline bool corpus_take_document(Corpus *c, CorpusPiece *line) {
    const cJSON *json = corpus_value(c, line);
    char *text = cJSON_GetStringValue(json_get(json, c->field));
    bool example =
        json_get(json, "messages") || json_get(json, "completion") || json_get(json ? json->child : 0, "role");
    const char *error = example ? "is a conversation or a prompt with its completion, expected a text; -i trains on "
                                  "such examples, and -j validates on them"
                        : cJSON_IsArray(json) ? "is an array; jq -c '.[]' FILE writes one object per line"
                                              : "has no string in the field; name the field of the text with --field";
    if (json && !text) { corpus_bad_line(c, line, error); }
    line->text = text;
    line->bytes = text ? strlen(text) : 0;
    return text != NULL;
}

// The next piece as text. False: the corpus has ended.
static inline bool corpus_next(Corpus *c, CorpusPiece *piece) {
    while (corpus_read(c, piece)) {
        if (!piece->is_json || corpus_take_document(c, piece)) { return true; }
    }
    return false;
}

// ---- notes

// The note on bytes outside of UTF-8, with the command for the likely encoding: UTF-16 has NULs at every other place,
// and Latin scripts have few bytes beyond ASCII.
static inline void print_bad_bytes(FILE *out, const Corpus *c) {
    if (c->bad_bytes == 0) { return; }
    const char *path = c->paths[c->bad_file], *encoding = c->bad_bytes * 10 > c->bad_piece_bytes * 3 ? "GBK" : "LATIN1";
    bool has_nuls = (c->nul_at[0] + c->nul_at[1]) * 100 > c->bad_piece_bytes;
    if (has_nuls) { encoding = c->nul_at[1] > c->nul_at[0] ? "UTF-16LE" : "UTF-16BE"; }
    fprintf(out,
            "note      %s: %" PRIu64 " bytes are NUL or not UTF-8, the first at byte %" PRIu64
            "; they stay as they are. If the text is in another encoding, such as %s: iconv -f %s -t UTF-8 '%s' > "
            "'%s.utf8'\n",
            path, c->bad_bytes, c->first_bad, encoding, encoding, path, path);
}

static inline void corpus_print_notes(FILE *out, const Corpus *c) {
    print_bad_bytes(out, c);
    if (c->specials) {
        fprintf(out,
                "note      %" PRIu64 " special token%s, such as <|endoftext|>, inside the text: read as characters, "
                "since only a line that is the token alone ends a document\n",
                c->specials, plural_s(c->specials));
    }
    if (c->surrogates) {
        fprintf(out, "note      %" PRIu64 " lone surrogates in JSON: read as U+FFFD\n", c->surrogates);
    }
    if (c->nuls) { fprintf(out, "note      %" PRIu64 " NULs in JSON: left out\n", c->nuls); }
    if (c->bad_lines) {
        fprintf(out, "note      --skip-bad left out %d line%s of JSON; %s\n", c->bad_lines,
                plural_s((uint64_t)c->bad_lines), c->bad_line);
    }
}
