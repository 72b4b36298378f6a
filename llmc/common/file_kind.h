/*
The kinds of files, by their first bytes: one table for all readers.
defines: TOKEN_MAGIC, FILE_TOKENS, file_kind, refuse_kind, refuse_binary
*/
#pragma once
#include "llmc/common/check.h"
#include <sys/stat.h>

enum { LLMC_MAGIC = 20240326, TOKENIZER_BIN_MAGIC = 20240328, TOKEN_MAGIC = 20240520, HELLASWAG_MAGIC = 20240522 };

// FILE_FOREIGN: no reader takes the kind. FILE_OTHER: text, or no kind of the table.
enum { FILE_OTHER, FILE_FOREIGN, FILE_GGUF, FILE_HELLASWAG, FILE_LLMC_MODEL, FILE_SAFETENSORS, FILE_TOKENS };

// The rows have more than the words GGUF, BZh and PAR1, with which a text may begin.
static const struct {
    int kind;
    const char *first;  // bytes of the file; NULL: the int32 `number`, as in llm.c's files
    uint32_t number;
    const char *what, *advice;  // "is WHAT", and what to do with the file
} file_kinds[] = {
    {FILE_SAFETENSORS, NULL, 0, "a safetensors model", "give it with -e"},
    {FILE_GGUF, "GGUF\3", 0, "a GGUF model", "this trainer only writes them: give Hugging Face's or llm.c's form"},
    {FILE_LLMC_MODEL, NULL, LLMC_MAGIC, "an llm.c model", "give it with -e"},
    {FILE_TOKENS, NULL, TOKEN_MAGIC, "a token shard", "give it with -i or -j, named *.bin"},
    {FILE_FOREIGN, NULL, TOKENIZER_BIN_MAGIC, "llm.c's tokenizer", "give it with --tokenizer"},
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

// the row of a file in file_kinds; the last one if it cannot be read or is no regular file
static inline size_t file_kind_row(const char *path) {
    char head[16] = "";
    struct stat info;
    bool regular = stat(path, &info) == 0 && S_ISREG(info.st_mode);  // the open of a pipe would hang
    FILE *file = regular ? fopen(path, "rb") : NULL;
    size_t bytes = file ? fread(head, 1, sizeof head, file) : 0, row = 1;
    if (file) { fclose(file); }
    uint32_t number;
    memcpy(&number, head, sizeof number);
    // the length of a header in 8 bytes, below 2^32, then JSON
    if (bytes > 8 && memcmp(head + 4, "\0\0\0\0{", 5) == 0) { return 0; }
    for (; file_kinds[row].kind != FILE_OTHER; row++) {
        const char *first = file_kinds[row].first;
        if (first ? strncmp(head, first, strlen(first)) == 0 : number == file_kinds[row].number) { break; }
    }
    return row;
}

// FILE_GGUF, FILE_TOKENS and so on; FILE_OTHER if the file cannot be read
static inline int file_kind(const char *path) { return file_kinds[file_kind_row(path)].kind; }

// Stops at a file of a kind that is not `expected`, in words.
__attribute__((noreturn)) static inline void refuse_kind(const char *flag, const char *path, const char *expected) {
    size_t row = file_kind_row(path);
    input_error("%s: %s is %s, expected %s; %s", flag, path, file_kinds[row].what, expected, file_kinds[row].advice);
}

// stops if a file that should be text is of a binary kind
static inline void refuse_binary(const char *flag, const char *path) {
    if (file_kind(path) != FILE_OTHER) { refuse_kind(flag, path, "text in UTF-8"); }
}
