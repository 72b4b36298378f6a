// The kinds of files, by their first bytes: one table for all readers. Only JSON goes by its ending too.
#pragma once
#include "llmc/common/check.h"
#include <fnmatch.h>
#include <glob.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LLMC_MAGIC = 20240326, TOKENIZER_BIN_MAGIC = 20240328, TOKEN_MAGIC = 20240520, HELLASWAG_MAGIC = 20240522 };

// FILE_OTHER: text, or unknown. FILE_BINARY: unknown, and no text. FILE_FOREIGN: no reader takes it.
enum { FILE_OTHER, FILE_BINARY, FILE_FOREIGN, FILE_JSON, FILE_TOKENS, FILE_HELLASWAG };
enum { FILE_GGUF = FILE_HELLASWAG + 1, FILE_LLMC_MODEL, FILE_SAFETENSORS };
enum { FILE_HEAD = 4096 };  // bytes that tell a file's kind

// *found = the files that match a glob pattern, sorted by name. If a file has the pattern itself as its name, that file
// alone matches: n[1] is not n1. Returns false, with nothing to free, if no file matches. Free with globfree.
static inline bool find_files(glob_t *found, const char *pattern) {
    char name[2 * PATH_LENGTH] = "", *end = name;
    bool literal = strlen(pattern) < PATH_LENGTH && access(pattern, F_OK) == 0;
    for (const char *c = pattern; literal && *c; c++) {
        if (strchr("*?[\\", *c)) { *end++ = '\\'; }
        *end++ = *c;
    }
    return glob(literal ? name : pattern, 0, NULL, found) == 0;
}

// find_files; stops if there is none
static inline glob_t require_files(const char *flag, const char *pattern) {
    glob_t found;
    if (find_files(&found, pattern)) { return found; }
    input_error("%s: no file matches '%s'; give a path, or a quoted pattern such as 'corpus/*.txt'", flag, pattern);
}

// ---- kinds that no fixed bytes tell

static inline size_t skip_space(const char *head, size_t bytes, size_t at) {
    while (at < bytes && strchr(" \t\r\n", head[at]) && head[at]) { at++; }
    return at;
}

// True for {"key": and ["text", "text" with white space anywhere, and for either in an array.
static inline bool head_is_json(const char *head, size_t bytes) {
    size_t mark = bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0 ? 3 : 0, arrays = 0;
    size_t at = skip_space(head, bytes, mark);
    for (; at < bytes && head[at] == '['; at = skip_space(head, bytes, at + 1)) { arrays++; }
    bool object = at < bytes && head[at] == '{';
    if (object) { at = skip_space(head, bytes, at + 1); }
    if (at >= bytes || head[at] != '"' || (!object && !arrays)) { return false; }
    for (at++; at < bytes && head[at] != '"' && head[at] != '\n'; at++) { at += head[at] == '\\'; }
    at = skip_space(head, bytes, at + 1);
    if (at >= bytes || head[at] != (object ? ':' : ',')) { return false; }
    at = skip_space(head, bytes, at + 1);
    return object || at >= bytes || strchr("\"{[", head[at]);  // ["Oh", she said
}

// True for a pickle of protocol 2 to 5: then comes a frame, a container, a class, a string or PyTorch's magic number.
static inline bool head_is_pickle(const char *head, size_t bytes) {
    return bytes > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5 && head[2] &&
           strchr("\x95\x8c\x8a]}(cXK", head[2]);
}

// the length of a header in 8 bytes, then JSON
static inline bool head_is_safetensors(const char *head, size_t bytes) {
    return bytes > 8 && memcmp(head + 4, "\0\0\0\0{", 5) == 0;
}

static inline bool head_is_sqlite(const char *head, size_t bytes) {
    static const char first[16] = "SQLite format 3";  // and a NUL, which a text has not
    return bytes >= sizeof first && memcmp(head, first, sizeof first) == 0;
}

// Neither UTF-8 nor a legacy encoding has a NUL; UTF-16 and nearly all binary files do.
static inline bool head_has_nul(const char *head, size_t bytes) { return memchr(head, 0, bytes) != NULL; }

// ---- the table

// clang-format off
#define GIVE_TEXT "give text, or text as JSON lines"
#define JSON_LINES "write its text as JSON lines"
#define TESTED(KIND, TEST, WHAT, ADVICE) {KIND, NULL, 0, TEST, WHAT, ADVICE}
#define LLMC(KIND, NUMBER, WHAT, ADVICE) {KIND, NULL, NUMBER, NULL, WHAT, ADVICE}
#define STARTS(KIND, FIRST, WHAT, ADVICE) {KIND, FIRST, 0, NULL, WHAT, ADVICE}
#define FOREIGN(FIRST, WHAT, ADVICE) STARTS(FILE_FOREIGN, FIRST, WHAT, ADVICE)
// The first row that fits counts. A row of letters has more than the words GGUF, BZh and PAR1, which may begin a text.
static const struct {
    int kind;
    const char *first;  // the first bytes; NULL: the int32 `number`, as in llm.c's files, or what `test` says
    uint32_t number;
    bool (*test)(const char *head, size_t bytes);
    const char *what, *advice;  // "is WHAT", and what to do with the file
} file_kinds[] = {
    TESTED(FILE_SAFETENSORS, head_is_safetensors, "a safetensors model", "give it with -e"),
    TESTED(FILE_JSON, head_is_json, "JSON", GIVE_TEXT),
    TESTED(FILE_FOREIGN, head_is_pickle, "a Python pickle", GIVE_TEXT),
    STARTS(FILE_GGUF, "GGUF\3", "a GGUF model",
           "this trainer only writes them: give Hugging Face's or llm.c's form"),
    LLMC(FILE_LLMC_MODEL, LLMC_MAGIC, "an llm.c model", "give it with -e"),
    LLMC(FILE_TOKENS, TOKEN_MAGIC, "a token shard", "give it with -i or -j"),
    LLMC(FILE_FOREIGN, TOKENIZER_BIN_MAGIC, "llm.c's tokenizer", "give it with --tokenizer"),
    LLMC(FILE_HELLASWAG, HELLASWAG_MAGIC, "an evaluation set of llm.c", "give it with --eval"),
    FOREIGN("#version: 0.2\n", "a tokenizer's merges file", "give it with --tokenizer"),
    FOREIGN("\x93NUMPY", "a NumPy array", "write token ids as a shard (doc/files.md), or text"),
    FOREIGN("PAR1\x15", "a Parquet table", JSON_LINES),
    FOREIGN("ARROW1", "an Arrow table", JSON_LINES),
    FOREIGN("\xff\xff\xff\xff", "an Arrow stream of Hugging Face's datasets", JSON_LINES),
    TESTED(FILE_FOREIGN, head_is_sqlite, "an SQLite database", JSON_LINES),
    FOREIGN("%PDF-", "a PDF document", "extract its text: pdftotext"),
    FOREIGN("PK\3\4", "a zip archive", "unpack it: unzip"),
    FOREIGN("\x1f\x8b", "compressed with gzip", "unpack it: gunzip"),
    FOREIGN("BZh91AY&SY", "compressed with bzip2", "unpack it: bunzip2"),
    FOREIGN("\xfd\x37zXZ", "compressed with xz", "unpack it: unxz"),
    FOREIGN("\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it: unzstd"),
    FOREIGN("\x89PNG", "a PNG image", GIVE_TEXT),
    FOREIGN("\xff\xd8\xff", "a JPEG image", GIVE_TEXT),
    TESTED(FILE_BINARY, head_has_nul, "no file of a known kind: it holds NULs",
           "doc/files.md says what files are read, and iconv -f UTF-16 -t UTF-8 converts a text in UTF-16"),
    STARTS(FILE_OTHER, "", "no file of a known kind", "doc/files.md says what files are read"),
};
// clang-format on

// PyTorch's files are zip archives or pickles, and the index of several is JSON: their names say more.
static const char *const pytorch_names[] = {"*.pt", "*.pth", "*pytorch_model*.bin", "*.bin.index.json"};
enum { PYTORCH_NAMES = 4 };

// ---- the kind of a file

// True if the name ends in .json, .jsonl or .ndjson, in upper or lower case.
static inline bool name_is_json(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot && (strcasecmp(dot, ".json") == 0 || strcasecmp(dot, ".jsonl") == 0 || strcasecmp(dot, ".ndjson") == 0);
}

// the row of file_kinds of a file that begins with these bytes, at most FILE_HEAD
static inline size_t row_of_bytes(const char *head, size_t bytes) {
    uint32_t number = 0;
    memcpy(&number, head, bytes < 4 ? bytes : 4);
    for (size_t row = 0;; row++) {
        const char *first = file_kinds[row].first;
        bool same = file_kinds[row].test ? file_kinds[row].test(head, bytes)
                    : first              ? bytes >= strlen(first) && memcmp(head, first, strlen(first)) == 0
                                         : number == file_kinds[row].number;
        if (same) { return row; }
    }
}

static inline int kind_of_bytes(const char *head, size_t bytes) { return file_kinds[row_of_bytes(head, bytes)].kind; }

// head (FILE_HEAD) = the first bytes of a regular file; returns their number, 0 if it cannot be read
static inline size_t read_head(char *head, const char *path) {
    struct stat info;
    bool regular = stat(path, &info) == 0 && S_ISREG(info.st_mode);  // the open of a pipe would hang
    FILE *file = regular ? fopen(path, "rb") : NULL;
    size_t bytes = file ? fread(head, 1, FILE_HEAD, file) : 0;
    if (file) { fclose(file); }
    return bytes;
}

// FILE_GGUF, FILE_TOKENS and so on; FILE_OTHER if the file cannot be read
static inline int file_kind(const char *path) {
    char head[FILE_HEAD];
    int kind = kind_of_bytes(head, read_head(head, path));
    return kind == FILE_OTHER && name_is_json(path) ? FILE_JSON : kind;
}

// file_kind of data to train on or to score, where any file named .bin should be a token shard
static inline int kind_of_data(const char *path) {
    return has_ending(path, ".bin") ? (int)FILE_TOKENS : file_kind(path);
}

// kind_of_data of the first file that matches a glob pattern
static inline int kind_of_first(const char *pattern) {
    glob_t found;
    if (!find_files(&found, pattern)) { return has_ending(pattern, ".bin") ? FILE_TOKENS : FILE_OTHER; }
    int kind = kind_of_data(found.gl_pathv[0]);
    globfree(&found);
    return kind;
}

static inline bool name_is_pytorch(const char *path) {
    bool is = false;
    for (int i = 0; i < PYTORCH_NAMES; i++) { is = is || fnmatch(pytorch_names[i], path, 0) == 0; }
    return is;
}

// Stops at bytes of a kind that is not `expected`, in words. name: of the file
__attribute__((noreturn)) static inline void refuse_bytes(const char *flag, const char *name, const char *head,
                                                          size_t bytes, const char *expected) {
    size_t row = row_of_bytes(head, bytes);
    if (name_is_pytorch(name)) {
        input_error(
            "%s: %s is a file of PyTorch, expected %s; give the folder that transformers' save_pretrained writes "
            "of it; doc/files.md converts nanoGPT's checkpoints",
            flag, name, expected);
    }
    input_error("%s: %s is %s, expected %s; %s", flag, name, file_kinds[row].what, expected, file_kinds[row].advice);
}

// Stops at a file of a kind that is not `expected`, in words.
__attribute__((noreturn)) static inline void refuse_kind(const char *flag, const char *path, const char *expected) {
    char head[FILE_HEAD];
    size_t bytes = read_head(head, path);
    refuse_bytes(flag, path, head, bytes, expected);
}

// stops if a file that should be text or JSON is of a binary kind
static inline void refuse_binary(const char *flag, const char *path) {
    int kind = file_kind(path);
    if (kind != FILE_OTHER && kind != FILE_JSON) { refuse_kind(flag, path, "text in UTF-8"); }
}
