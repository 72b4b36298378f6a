/*
The kinds of files, by their first bytes: one table for all readers. Only JSON goes by its ending too.
defines: TOKEN_MAGIC, FILE_TOKENS, FILE_HEAD, find_files, kind_of_bytes, file_kind, kind_of_first, row_of_name,
         NAMED_KINDS, refuse_bytes, refuse_kind, refuse_binary
*/
#pragma once
#include "llmc/common/check.h"
#include <fnmatch.h>
#include <glob.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LLMC_MAGIC = 20240326, TOKENIZER_BIN_MAGIC = 20240328, TOKEN_MAGIC = 20240520, HELLASWAG_MAGIC = 20240522 };

// FILE_FOREIGN: no reader takes it. FILE_PACKED: the same, but the file's name may say more. FILE_RAW_TOKENS: token ids
// without a header. FILE_OTHER: text, or unknown.
enum { FILE_OTHER, FILE_FOREIGN, FILE_PACKED, FILE_JSON, FILE_RAW_TOKENS, FILE_TOKENS, FILE_HELLASWAG };
enum { FILE_GGUF = FILE_HELLASWAG + 1, FILE_LLMC_MODEL, FILE_SAFETENSORS };
enum { FILE_HEAD = 4096 };  // bytes that tell a file's kind

// *found = the files that match a glob pattern, sorted by name; of a pattern that is the name of a file, that file, so
// n[1] is not n1. False, and nothing to free, if there is none. Free with globfree.
static inline bool find_files(glob_t *found, const char *pattern) {
    char name[2 * PATH_LENGTH] = "", *end = name;
    bool literal = strlen(pattern) < PATH_LENGTH && access(pattern, F_OK) == 0;
    for (const char *c = pattern; literal && *c; c++) {
        if (strchr("*?[\\", *c)) { *end++ = '\\'; }
        *end++ = *c;
    }
    return glob(literal ? name : pattern, 0, NULL, found) == 0;
}

// ---- kinds without first bytes of their own

static inline size_t skip_space(const char *head, size_t bytes, size_t at) {
    while (at < bytes && strchr(" \t\r\n", head[at]) && head[at]) { at++; }
    return at;
}

// the first byte behind a byte order mark and white space
static inline size_t skip_mark(const char *head, size_t bytes) {
    return skip_space(head, bytes, bytes >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
}

// True for {"key": and ["text", "text" with white space anywhere, and for either in an array.
static inline bool head_is_json(const char *head, size_t bytes) {
    size_t at = skip_mark(head, bytes), arrays = 0;
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

// True for a pickle of protocol 2 to 5: then comes a frame, a container, a class or a string.
static inline bool head_is_pickle(const char *head, size_t bytes) {
    return bytes > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5 && head[2] &&
           strchr("\x95\x8c]}(cXK", head[2]);
}

// The type, as in Python's array, if the bytes read as 'H' uint16, 'I' uint32 or 'Q' uint64 are token ids below GPT-2's
// vocabulary rather than text: some are numbers of control characters, which neither UTF-8 nor UTF-16 text has. 0: not.
static inline char head_token_type(const char *head, size_t bytes) {
    size_t count = bytes / 2, controls = 0, odd = 0, third = 0;
    for (size_t i = 0; i < count; i++) {
        unsigned id = (uint8_t)head[2 * i] | (unsigned)(uint8_t)head[2 * i + 1] << 8;
        if (id >= 50304) { return 0; }  // as nanoGPT pads it
        controls += id > 0 && id < 32 && id != '\t' && id != '\n' && id != '\r';
        odd += i % 2 && id;
        third += i % 4 == 2 && id;
    }
    size_t ids = odd ? count : third ? count / 2 : count / 4;
    return ids < 16 || controls * 200 < ids ? 0 : odd ? 'H' : third ? 'I' : 'Q';
}

// the length of a header in 8 bytes, then JSON
static inline bool head_is_safetensors(const char *head, size_t bytes) {
    return bytes > 8 && memcmp(head + 4, "\0\0\0\0{", 5) == 0;
}

static inline bool head_is_token_ids(const char *head, size_t bytes) { return head_token_type(head, bytes) != 0; }

// ---- the table

// clang-format off
#define UNPACK(COMMAND) "unpack it: " COMMAND
#define GIVE_TEXT "give text, or text as JSON lines"
#define AT(PLACE, FIRST, WITHIN, WHAT, ADVICE)                                                                         \
    { FILE_FOREIGN, PLACE, sizeof(FIRST) - 1, FIRST, WITHIN, 0, WHAT, ADVICE, NULL }
#define FOREIGN(FIRST, WHAT, ADVICE) AT(0, FIRST, NULL, WHAT, ADVICE)
#define WITH(FIRST, WITHIN, WHAT, ADVICE) AT(0, FIRST, WITHIN, WHAT, ADVICE)
#define LLMC(KIND, NUMBER, WHAT, ADVICE)                                                                               \
    { KIND, 0, 4, NULL, NULL, NUMBER, WHAT, ADVICE, NULL }
#define TESTED(KIND, TEST, WHAT, ADVICE)                                                                               \
    { KIND, 0, 0, "", NULL, 0, WHAT, ADVICE, TEST }
#define JSON_LINES "write its text as JSON lines"
#define WRITES_GGUF "this trainer only writes them: give Hugging Face's or llm.c's form"
#define OLD_TRANSFORMERS                                                                                               \
    "give the folder that transformers 4 writes: from_pretrained(..., from_tf=True or from_flax=True), save_pretrained"
#define SAVE_PRETRAINED                                                                                                \
    "give the folder that transformers' save_pretrained writes of it; doc/files.md converts nanoGPT's checkpoints"
// The rows have more than the words GGUF, BZh and PAR1, with which a text may begin. The first one that fits counts.
static const struct {
    int kind, at;        // `first` is at this byte
    size_t length;       // of `first`
    const char *first;   // bytes of the file; NULL: the int32 `number`, as in llm.c's files
    const char *within;  // bytes that follow somewhere in the first FILE_HEAD; NULL: any
    uint32_t number;
    const char *what, *advice;  // "is WHAT", and what to do with the file
    bool (*test)(const char *head, size_t bytes);  // of the first bytes too; NULL: none
} file_kinds[] = {
    TESTED(FILE_SAFETENSORS, head_is_safetensors, "a safetensors model", "give it with -e"),
    TESTED(FILE_JSON, head_is_json, "JSON", GIVE_TEXT),
    TESTED(FILE_PACKED, head_is_pickle, "a Python pickle", GIVE_TEXT),
    {FILE_GGUF, 0, 5, "GGUF\3", NULL, 0, "a GGUF model", WRITES_GGUF, NULL},
    LLMC(FILE_LLMC_MODEL, LLMC_MAGIC, "an llm.c model", "give it with -e"),
    LLMC(FILE_TOKENS, TOKEN_MAGIC, "a token shard", "give it with -i or -j"),
    LLMC(FILE_FOREIGN, TOKENIZER_BIN_MAGIC, "llm.c's tokenizer", "give it with --tokenizer"),
    LLMC(FILE_HELLASWAG, HELLASWAG_MAGIC, "an evaluation set of llm.c", "give it with --eval"),
    LLMC(FILE_FOREIGN, 20240527, "llm.c's optimizer state", "give the model_*.bin beside it"),
    FOREIGN("#version: 0.2\n", "a tokenizer's merges file", "give it with --tokenizer"),
    FOREIGN("version https://git-lfs", "a Git-LFS pointer", "fetch the file: git lfs pull"),
    // models and arrays of Python
    WITH("PK\3\4", "data.pkl", "a file of PyTorch", SAVE_PRETRAINED),
    FOREIGN("\x80\2\x8A\n", "a file of PyTorch", SAVE_PRETRAINED),
    FOREIGN("\x93NUMPY", "a NumPy array", "write token ids as a shard (doc/files.md), or text"),
    // tables and databases
    WITH("PAR1", "\x15", "a Parquet table", JSON_LINES),
    FOREIGN("ARROW1", "an Arrow table", JSON_LINES),
    WITH("\xff\xff\xff\xff", "\x10", "an Arrow stream of Hugging Face's datasets",
     "write its text as JSON lines: dataset.to_json(\"my.jsonl\")"),
    FOREIGN("SQLite format 3\0", "an SQLite database", JSON_LINES),
    // documents and images
    FOREIGN("%PDF-", "a PDF document", "extract its text: pdftotext"),
    FOREIGN("\xd0\xcf\x11\xe0", "an Office document", "save it as text"),
    WITH("<html", "<head", "an HTML page", "download the file itself, or extract its text"),
    FOREIGN("<!DOCTYPE html", "an HTML page", "download the file itself, or extract its text"),
    FOREIGN("<!doctype html", "an HTML page", "download the file itself, or extract its text"),
    FOREIGN("\xff\xfe\0\0", "text in UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"),
    FOREIGN("\xff\xfe", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    FOREIGN("\xfe\xff", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    // archives
    {FILE_PACKED, 0, 4, "PK\3\4", NULL, 0, "a zip archive", UNPACK("unzip"), NULL},
    AT(257, "ustar", NULL, "a tar archive", UNPACK("tar xf")),
    FOREIGN("7z\xbc\xaf", "a 7z archive", UNPACK("7z x")),
    FOREIGN("\x1f\x8b", "compressed with gzip", UNPACK("gunzip")),
    WITH("BZh", "1AY&SY", "compressed with bzip2", UNPACK("bunzip2")),
    FOREIGN("\xfd\x37zXZ", "compressed with xz", UNPACK("unxz")),
    FOREIGN("\x28\xb5\x2f\xfd", "compressed with zstd", UNPACK("unzstd")),
    FOREIGN("\x7f\x45LF", "a program", GIVE_TEXT),
    FOREIGN("\x89PNG", "a PNG image", GIVE_TEXT),
    FOREIGN("\xff\xd8\xff", "a JPEG image", GIVE_TEXT),
    TESTED(FILE_RAW_TOKENS, head_is_token_ids, "a file of token ids without a header, as nanoGPT's train.bin", ""),
    TESTED(FILE_OTHER, NULL, "no file of a known kind", "doc/files.md says what files are read"),
};
// files that are told by their names where their bytes do not tell
static const struct {
    const char *pattern, *what, *advice;
} named_kinds[] = {
    {"*.pt", "a file of PyTorch", SAVE_PRETRAINED},
    {"*.pth", "a file of PyTorch", SAVE_PRETRAINED},
    {"*pytorch_model*.bin", "a file of PyTorch", SAVE_PRETRAINED},
    {"*.bin.index.json", "the index of a model in files of PyTorch", SAVE_PRETRAINED},
    {"*.h5", "a file of TensorFlow", OLD_TRANSFORMERS},
    {"*.gguf", "a GGUF model", WRITES_GGUF},
    {"*.msgpack", "a file of Flax", OLD_TRANSFORMERS},
};
enum { NAMED_KINDS = sizeof named_kinds / sizeof named_kinds[0] };
// clang-format on

// ---- the kind of a file

// True if the name ends in .json, .jsonl or .ndjson, in upper or lower case.
static inline bool name_is_json(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot && (strcasecmp(dot, ".json") == 0 || strcasecmp(dot, ".jsonl") == 0 || strcasecmp(dot, ".ndjson") == 0);
}

// the row of file_kinds of a file that begins with these bytes, at most FILE_HEAD
static inline size_t row_of_bytes(const char *head, size_t bytes) {
    uint32_t number = 0;
    size_t row = 0;
    memcpy(&number, head, bytes < 4 ? bytes : 4);
    for (; file_kinds[row].kind != FILE_OTHER; row++) {
        const char *first = file_kinds[row].first, *within = file_kinds[row].within;
        size_t at = (size_t)file_kinds[row].at, length = file_kinds[row].length;
        if (bytes < at + length || (file_kinds[row].test && !file_kinds[row].test(head, bytes))) { continue; }
        bool same = first ? memcmp(head + at, first, length) == 0 : number == file_kinds[row].number;
        if (same && (!within || memmem(head, bytes, within, strlen(within)))) { break; }
    }
    return row;
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

// the kind of the first file that matches a glob pattern
static inline int kind_of_first(const char *pattern) {
    glob_t found;
    if (!find_files(&found, pattern)) { return FILE_OTHER; }
    int kind = file_kind(found.gl_pathv[0]);
    globfree(&found);
    return kind;
}

// the row of named_kinds, or NAMED_KINDS
static inline size_t row_of_name(const char *path) {
    size_t row = 0;
    while (row < NAMED_KINDS && fnmatch(named_kinds[row].pattern, path, 0) != 0) { row++; }
    return row;
}

// Stops at bytes of a kind that is not `expected`, in words. name: of the file
__attribute__((noreturn)) static inline void refuse_bytes(const char *flag, const char *name, const char *head,
                                                          size_t bytes, const char *expected) {
    // writes NAME_0000.shard.bin and so on, each of at most a billion tokens: a header's count is an int32
    static const char convert[] =
        "make token shards of it, and of the others of its tokenizer in the same command: python3 -c \"import array,"
        "struct,sys; A=array.array; C=lambda f:iter(lambda o=open(f,'rb'):A('H',A('%c',o.read(8*10**8))),A('H')); "
        "v=max(max(d) for f in sys.argv[1:] for d in C(f)); [open('%%s_%%04d.shard.bin'%%(f,i),'wb').write("
        "struct.pack('<4i1008x',20240520,1,len(d),0 if v>40000 else v+1)+d.tobytes()) for f in sys.argv[1:] "
        "for i,d in enumerate(C(f))]\" '%s'";
    char command[sizeof convert + PATH_LENGTH];
    size_t row = row_of_bytes(head, bytes), named = row_of_name(name);
    int kind = file_kinds[row].kind;
    const char *what = file_kinds[row].what, *advice = file_kinds[row].advice;
    if (named < NAMED_KINDS && (kind == FILE_OTHER || kind == FILE_JSON || kind == FILE_PACKED)) {
        what = named_kinds[named].what;
        advice = named_kinds[named].advice;
    }
    if (kind == FILE_RAW_TOKENS) {
        snprintf(command, sizeof command, convert, head_token_type(head, bytes), name);
        advice = command;
    }
    input_error("%s: %s is %s, expected %s; %s", flag, name, what, expected, advice);
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
