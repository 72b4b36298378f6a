/*
The documents of a corpus, read once and in order: files of text, files of JSON lines, or stdin.
defines: CorpusPosition, CorpusPiece, Corpus, corpus_open, corpus_open_for, corpus_next, corpus_seek, corpus_position,
         corpus_bytes, corpus_bytes_read, corpus_fingerprint, corpus_object, corpus_document, corpus_close

Text        A file is one document. With a separator, a line equal to the separator ends a document, and is no text.
JSON lines  files that end in .jsonl, or stdin if a field is given. A line is an object; its document is the string in
            the field. Blank lines are skipped.
Piece       a document, or about 64 KiB of a longer text, cut where both parts encode to the tokens of the whole
Memory      4 MiB, or twice the longest line of JSON, which is at most 64 MiB long
*/
#pragma once
#include "llmc/common/hash.h"
#include "llmc/files/binary_kind.h"
#include "llmc/files/tokenizer.h"
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

// the place between two pieces
typedef struct {
    int file;
    uint64_t offset, line;  // in the file: bytes and lines before the place; lines are counted in JSON only
    // of text: a separator may follow; the current document has bytes before the place
    bool starts_line, in_document;
} CorpusPosition;

// Bytes of text, or a line of JSON. `text` is valid until the next call of corpus_next.
typedef struct {
    const char *text;
    size_t bytes;
    bool is_json, ends_document;
    int file;
    uint64_t line;  // of JSON, counted from 1
} CorpusPiece;

typedef struct {
    char *path;
    uint64_t bytes;  // 0: not a regular file, so the size is unknown
    bool is_json;
} CorpusFile;

typedef struct {
    CorpusFile *files;
    int num_files;
    const char *flag;               // gave the pattern; error messages name it
    const char *field, *separator;  // separator NULL: none
    CorpusPosition at;
    int fd;  // of files[at.file]; -1: not open
    char *window;
    size_t begin, end, capacity;  // window[begin, end) follows `at`
    bool whole;                   // the file has no bytes after the window
} Corpus;

// ---- the files

static inline bool corpus_is_json(const char *path) { return has_ending(path, ".jsonl"); }

static inline void corpus_add_file(Corpus *c, const char *path, bool is_json) {
    CorpusFile *file = &c->files[c->num_files++];
    struct stat info;
    bool is_stdin = strcmp(path, "-") == 0;
    if ((is_stdin ? fstat(STDIN_FILENO, &info) : stat(path, &info)) != 0) {
        input_error("%s: could not find %s: %s; name files that can be read", c->flag, path, strerror(errno));
    }
    if (S_ISDIR(info.st_mode)) {
        input_error("%s: %s is a folder; name its files, for example with '%s/*.txt'", c->flag, path, path);
    }
    if (!is_stdin && access(path, R_OK) != 0) {
        input_error("%s: could not open %s: %s; name files that can be read", c->flag, path, strerror(errno));
    }
    if (S_ISREG(info.st_mode) && !is_stdin && !is_json) { binary_refuse(c->flag, path); }
    file->path = xstrdup(path);
    file->bytes = S_ISREG(info.st_mode) ? (uint64_t)info.st_size : 0;
    file->is_json = is_json;
}

// The corpus of a glob pattern, or "-" for stdin. Files are sorted by name. flag: the flag that gave the pattern; error
// messages name it. The pointer is kept. field: of JSON lines; NULL: CORPUS_FIELD, and stdin is text. separator: NULL,
// or text that starts with a visible character. Stops unless every file can be read. Close with corpus_close.
static inline Corpus corpus_open_for(const char *flag, const char *pattern, const char *field, const char *separator) {
    Corpus c;
    memset(&c, 0, sizeof c);
    c.flag = flag;
    c.field = field ? field : CORPUS_FIELD;
    c.separator = separator;
    c.fd = -1;
    c.at.starts_line = true;
    c.capacity = CORPUS_WINDOW;
    c.window = (char *)xmalloc(c.capacity);
    if (strcmp(pattern, "-") == 0) {
        c.files = (CorpusFile *)xcalloc(1, sizeof *c.files);
        corpus_add_file(&c, pattern, field != NULL);
        return c;
    }
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0) {
        input_error("%s: no file matches '%s'; give a path, a quoted pattern such as 'corpus/*.txt', or - for stdin",
                    flag, pattern);
    }
    c.files = (CorpusFile *)xcalloc(found.gl_pathc, sizeof *c.files);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        corpus_add_file(&c, found.gl_pathv[i], corpus_is_json(found.gl_pathv[i]));
    }
    globfree(&found);
    return c;
}

// corpus_open_for the pattern of -i
static inline Corpus corpus_open(const char *pattern, const char *field, const char *separator) {
    return corpus_open_for("-i", pattern, field, separator);
}

static inline void corpus_close(Corpus *c) {
    if (c->fd > STDIN_FILENO) { close(c->fd); }
    for (int f = 0; f < c->num_files; f++) { free(c->files[f].path); }
    free(c->files);
    free(c->window);
}

// the bytes of all files; a pipe counts as 0
static inline uint64_t corpus_bytes(const Corpus *c) {
    uint64_t bytes = 0;
    for (int f = 0; f < c->num_files; f++) { bytes += c->files[f].bytes; }
    return bytes;
}

// the bytes of all files before a position
static inline uint64_t corpus_bytes_read(const Corpus *c, CorpusPosition at) {
    uint64_t bytes = at.offset;
    for (int f = 0; f < at.file && f < c->num_files; f++) { bytes += c->files[f].bytes; }
    return bytes;
}

// 64 bits that identify the names and sizes of the files, the field and the separator
static inline uint64_t corpus_fingerprint(const Corpus *c) {
    uint64_t hash = hash_bytes(0, c->field, strlen(c->field));
    if (c->separator) { hash = hash_bytes(hash, c->separator, strlen(c->separator)); }
    for (int f = 0; f < c->num_files; f++) {
        const CorpusFile *file = &c->files[f];
        bool is_stdin = strcmp(file->path, "-") == 0;  // a pipe or a file
        hash = hash_bytes(hash, file->path, strlen(file->path));
        hash = hash_word(hash_word(hash, is_stdin ? 0 : file->bytes), (uint64_t)file->is_json);
    }
    return hash;
}

// ---- reading

static inline CorpusPosition corpus_position(const Corpus *c) { return c->at; }

static inline void corpus_open_file(Corpus *c) {
    const char *path = c->files[c->at.file].path;
    c->fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (c->fd < 0) { run_error("%s: could not open %s: %s", c->flag, path, strerror(errno)); }
    c->begin = c->end = 0;
    c->whole = false;
}

// Reads until the window holds `least` bytes, or all bytes that the file has.
static inline void corpus_fill(Corpus *c, size_t least) {
    if (c->whole || c->end - c->begin >= least) { return; }
    memmove(c->window, c->window + c->begin, c->end - c->begin);
    c->end -= c->begin;
    c->begin = 0;
    if (least > c->capacity) {
        c->capacity = 2 * least;
        c->window = (char *)xrealloc(c->window, c->capacity);
    }
    while (c->end < c->capacity) {
        ssize_t got = read(c->fd, c->window + c->end, c->capacity - c->end);
        if (got < 0 && errno == EINTR) { continue; }
        if (got < 0) { run_error("%s: could not read %s: %s", c->flag, c->files[c->at.file].path, strerror(errno)); }
        c->whole = got == 0;
        if (got == 0) { return; }
        c->end += (size_t)got;
    }
}

// Stops: the input ends `missing` bytes before a position.
__attribute__((noreturn)) static inline void corpus_too_short(const Corpus *c, CorpusPosition at, uint64_t missing) {
    const char *path = c->files[at.file < c->num_files ? at.file : c->num_files - 1].path;
    input_error("%s: %s ends %" PRIu64 " bytes before the place where the last run stopped; give the same input again",
                c->flag, path, missing);
}

// Starts at a position of corpus_position, in the same files. Bytes before it are read again where the file is a pipe.
// Stops at a position beyond the end.
static inline void corpus_seek(Corpus *c, CorpusPosition at) {
    c->at = at;
    if (at.offset == 0) { return; }
    if (at.file >= c->num_files) { corpus_too_short(c, at, at.offset); }
    corpus_open_file(c);
    if (lseek(c->fd, (off_t)at.offset, SEEK_SET) >= 0) {
        uint64_t bytes = c->files[at.file].bytes;
        if (at.offset > bytes) { corpus_too_short(c, at, at.offset - bytes); }
        return;
    }
    for (uint64_t left = at.offset; left > 0;) {
        corpus_fill(c, 1);
        size_t here = c->end - c->begin < left ? c->end - c->begin : (size_t)left;
        if (here == 0) { corpus_too_short(c, at, left); }
        c->begin += here;
        left -= here;
    }
}

static inline void corpus_advance(Corpus *c, size_t bytes) {
    c->begin += bytes;
    c->at.offset += bytes;
}

// Looks in the first `most` bytes of the window for a line that is the separator. Returns where it starts, or `most`;
// *length = its bytes with the end of the line.
static inline size_t corpus_find_separator(const Corpus *c, size_t most, size_t *length) {
    const char *text = c->window + c->begin;
    size_t bytes = c->end - c->begin, width = strlen(c->separator);
    for (size_t at = 0; at < most; at++) {
        const char *found = (const char *)memmem(text + at, bytes - at, c->separator, width);
        if (!found || (size_t)(found - text) >= most) { return most; }
        at = (size_t)(found - text);
        bool starts = at > 0 ? text[at - 1] == '\n' : c->at.starts_line;
        size_t end = at + width;
        if (end < bytes && text[end] == '\r') { end++; }
        if (starts && (end >= bytes || text[end] == '\n')) {
            *length = (end < bytes ? end + 1 : bytes) - at;
            return at;
        }
    }
    return most;
}

// The next piece of a text file, which may have no bytes. False: the file has ended.
static inline bool corpus_next_text(Corpus *c, CorpusPiece *piece) {
    corpus_fill(c, CORPUS_AHEAD);
    size_t bytes = c->end - c->begin, separator = 0;
    if (bytes == 0) { return false; }
    size_t most = bytes < CORPUS_PIECE ? bytes : (size_t)CORPUS_PIECE, length = most;
    if (c->separator) { length = corpus_find_separator(c, most, &separator); }
    // a cut behind `most` cuts no separator: no pre-token joins the end of a line and what follows
    if (!separator && (bytes > most || !c->whole)) { length = tokenizer_safe_cut(c->window + c->begin, bytes, most); }
    piece->text = c->window + c->begin;
    piece->bytes = length;
    corpus_advance(c, length + separator);
    bool any = c->at.in_document || length > 0;
    piece->ends_document = any && (separator || (c->whole && c->begin == c->end));
    c->at.in_document = any && !piece->ends_document;
    c->at.starts_line = separator || piece->text[length - 1] == '\n';
    return true;
}

// The next line of a file of JSON lines that is not blank. False: the file has ended.
static inline bool corpus_next_json(Corpus *c, CorpusPiece *piece) {
    for (size_t searched = 0;;) {
        corpus_fill(c, searched + 1);
        const char *text = c->window + c->begin;
        size_t bytes = c->end - c->begin;
        const char *newline = (const char *)memchr(text + searched, '\n', bytes - searched);
        if (!newline && bytes > CORPUS_MAX_LINE) {
            run_error("%s %s line %" PRIu64 ": longer than %d bytes; expected one document a line", c->flag,
                      c->files[c->at.file].path, c->at.line + 1, CORPUS_MAX_LINE);
        }
        if (!newline && !c->whole) {
            searched = bytes;
            continue;
        }
        if (bytes == 0) { return false; }
        size_t length = newline ? (size_t)(newline - text) : bytes;
        corpus_advance(c, length + (newline != NULL));
        c->at.line++;
        searched = 0;
        while (length > 0 && strchr(" \t\r", text[length - 1])) { length--; }
        if (length == 0) { continue; }
        piece->text = text;
        piece->bytes = length;
        piece->ends_document = true;
        return true;
    }
}

// The next piece. False: the corpus has ended.
static inline bool corpus_next(Corpus *c, CorpusPiece *piece) {
    while (c->at.file < c->num_files) {
        if (c->fd < 0) { corpus_open_file(c); }
        piece->file = c->at.file;
        piece->is_json = c->files[c->at.file].is_json;
        if (piece->is_json ? corpus_next_json(c, piece) : corpus_next_text(c, piece)) {
            piece->line = c->at.line;
            return true;
        }
        if (c->fd > STDIN_FILENO) { close(c->fd); }
        c->fd = -1;
        CorpusPosition next = {c->at.file + 1, 0, 0, true, false};
        c->at = next;
    }
    return false;
}

// ---- documents of JSON lines

// Removes the escape \u0000 from a line: cJSON ends a string there. Returns the new length.
static inline size_t corpus_remove_nul(char *line, size_t bytes) {
    size_t to = 0;
    for (size_t from = 0; from < bytes;) {
        if (line[from] != '\\') {
            line[to++] = line[from++];
        } else if (bytes - from >= 6 && memcmp(line + from, "\\u0000", 6) == 0) {
            from += 6;
        } else {
            for (int i = 0; i < 2 && from < bytes; i++) { line[to++] = line[from++]; }
        }
    }
    line[to] = 0;
    return to;
}

// The object of a line of JSON, whose line[bytes] the function may overwrite; the caller deletes it. NULL: the line
// holds no object and nothing else.
static inline cJSON *corpus_object(char *line, size_t bytes) {
    const char *end = line;
    if (memchr(line, 0, bytes)) { return NULL; }
    bytes = corpus_remove_nul(line, bytes);
    cJSON *json = cJSON_ParseWithLengthOpts(line, bytes, &end, false);
    if (json && cJSON_IsObject(json) && end + strspn(end, " \t") == line + bytes) { return json; }
    cJSON_Delete(json);
    return NULL;
}

// The document of a line of JSON, whose line[bytes] the function may overwrite. *json holds the result; the caller
// deletes it. NULL: *trouble says why, in words that follow the line's number.
static inline const char *corpus_document(char *line, size_t bytes, const char *field, cJSON **json,
                                          const char **trouble) {
    *json = corpus_object(line, bytes);
    *trouble = *json ? "has no string in the field; name the field of the text with --field"
                     : "is no JSON object; expected an object a line";
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(*json, field));
}
