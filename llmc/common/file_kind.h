/*
The kinds of files, by their first bytes: one table for all readers.
defines: FileKindId, FileKind, file_kind, refuse_kind, refuse_binary
*/
#pragma once
#include "llmc/common/check.h"
#include <sys/stat.h>

enum { LLMC_MAGIC = 20240326, TOKENIZER_BIN_MAGIC = 20240328, TOKEN_MAGIC = 20240520, HELLASWAG_MAGIC = 20240522 };

// FILE_FOREIGN: no reader takes the kind. FILE_OTHER: text, or no kind of the table.
typedef enum {
    FILE_OTHER,
    FILE_FOREIGN,
    FILE_GGUF,
    FILE_HELLASWAG,
    FILE_LLMC_MODEL,
    FILE_SAFETENSORS,
    FILE_TOKENS
} FileKindId;

typedef struct {
    FileKindId id;
    const char *first;  // bytes of the file; NULL: the int32 `number`, as in llm.c's files
    uint32_t number;
    const char *what, *advice;  // "is WHAT", and what to do with the file
} FileKind;

// Words alone do not make a kind: a text may begin with "GGUF" or "BZh".
static const FileKind file_kinds[] = {
    {FILE_SAFETENSORS, NULL, 0, "a safetensors model", "give it with -e"},
    {FILE_GGUF, "GGUF\3", 0, "a GGUF model", "this trainer only writes them: give Hugging Face's or llm.c's form"},
    {FILE_GGUF, "GGUF\2", 0, "a GGUF model", "this trainer only writes them: give Hugging Face's or llm.c's form"},
    {FILE_LLMC_MODEL, NULL, LLMC_MAGIC, "an llm.c model", "give it with -e"},
    {FILE_TOKENS, NULL, TOKEN_MAGIC, "a token shard", "give it with -i or -j, named *.bin"},
    {FILE_FOREIGN, NULL, TOKENIZER_BIN_MAGIC, "llm.c's tokenizer", "give it with --tokenizer"},
    {FILE_FOREIGN, NULL, 20240327, "llm.c's debug state", "give the model's .bin file"},
    {FILE_HELLASWAG, NULL, HELLASWAG_MAGIC, "an evaluation set of llm.c", "give it with --eval"},
    {FILE_FOREIGN, NULL, 20240527, "llm.c's optimizer state", "give the model_*.bin beside it"},
    {FILE_FOREIGN, NULL, 20240801, "a token shard of Llama 3", "this trainer knows GPT-2 only"},
    {FILE_FOREIGN, NULL, 20240803, "llm.c's Llama 3", "this trainer knows GPT-2 only"},
    {FILE_FOREIGN, "PK\3\4", 0, "a zip archive or a file of PyTorch",
     "unpack it, or save the model with transformers' save_pretrained and give the folder"},
    {FILE_FOREIGN, "\x80\2\x8A\n", 0, "a file of PyTorch",
     "save the model with transformers' save_pretrained and give the folder"},
    {FILE_FOREIGN, "\xff\xfe", 0, "text in UTF-16", "convert it with iconv"},
    {FILE_FOREIGN, "\xfe\xff", 0, "text in UTF-16", "convert it with iconv"},
    {FILE_FOREIGN, "\x1f\x8b", 0, "compressed with gzip", "unpack it"},
    {FILE_FOREIGN, "BZh91AY&SY", 0, "compressed with bzip2", "unpack it"},
    {FILE_FOREIGN, "\xfd\x37zXZ", 0, "compressed with xz", "unpack it"},
    {FILE_FOREIGN, "\x28\xb5\x2f\xfd", 0, "compressed with zstd", "unpack it"},
    {FILE_FOREIGN, "PAR1\x15", 0, "a Parquet table", "write its text as JSON lines"},
    {FILE_FOREIGN, "%PDF-", 0, "a PDF document", "extract its text"},
    {FILE_FOREIGN, "\x89PNG", 0, "a PNG picture", "give text"},
    {FILE_FOREIGN, "\x7f\x45LF", 0, "a program", "give text"},
    {FILE_OTHER, "", 0, "no file of a known kind", "check the path"},
};

// the row of a file; the last one if it cannot be read or is no regular file
static inline const FileKind *file_kind(const char *path) {
    char head[16] = "";
    struct stat info;
    bool regular = stat(path, &info) == 0 && S_ISREG(info.st_mode);  // the open of a pipe would hang
    FILE *file = regular ? fopen(path, "rb") : NULL;
    size_t bytes = file ? fread(head, 1, sizeof head, file) : 0;
    if (file) { fclose(file); }
    uint32_t number;
    memcpy(&number, head, sizeof number);
    const FileKind *kind = file_kinds;
    // the length of a header in 8 bytes, below 2^32, then JSON
    if (bytes > 8 && memcmp(head + 4, "\0\0\0\0{", 5) == 0) { return kind; }
    for (kind++; kind->id != FILE_OTHER; kind++) {
        bool same = kind->first ? strncmp(head, kind->first, strlen(kind->first)) == 0 : number == kind->number;
        if (same) { break; }
    }
    return kind;
}

// Stops at a file of a kind that is not `expected`, in words.
__attribute__((noreturn)) static inline void refuse_kind(const char *flag, const char *path, const char *expected) {
    const FileKind *kind = file_kind(path);
    input_error("%s: %s is %s, expected %s; %s", flag, path, kind->what, expected, kind->advice);
}

// stops if a file that should be text is of a binary kind
static inline void refuse_binary(const char *flag, const char *path) {
    if (file_kind(path)->id != FILE_OTHER) { refuse_kind(flag, path, "text in UTF-8"); }
}
