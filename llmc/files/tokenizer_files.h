/*
Writes the files of a byte-level BPE tokenizer as Hugging Face and GPT-2 name them.
defines: tokenizer_write_merges, tokenizer_write_vocab

merges.txt   "#version: 0.2", then a line for each merge, in the order of the ids: two symbols with a space between
vocab.json   {"!":0, ..., "<|endoftext|>":50256}: the symbol of each id
A symbol is a token with its bytes written as characters, as tokenizer.h describes.
*/
#pragma once
#include "llmc/files/tokenizer.h"

// the character that stands for a byte
static inline uint32_t tokenizer_byte_character(const Tokenizer *t, int byte) {
    return tokenizer_byte_is_plain(byte) ? (uint32_t)byte : 256 + (uint32_t)(t->byte_token[byte] - TOKENIZER_NUM_PLAIN);
}

// Writes a token as a symbol. In JSON, a quote and a backslash take a backslash.
static inline void tokenizer_write_symbol(const Tokenizer *t, int token, bool json, FILE *file) {
    size_t bytes;
    const char *text = tokenizer_decode(t, token, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        uint32_t code = tokenizer_byte_character(t, (uint8_t)text[i]);
        if (json && (code == '"' || code == '\\')) { fputc('\\', file); }
        if (code >= 128) { fputc((int)(0xC0 | code >> 6), file); }
        fputc((int)(code < 128 ? code : 0x80 | (code & 0x3F)), file);
    }
}

// The result of a file that is complete: 0 or an errno.
static inline int tokenizer_close_file(FILE *file) {
    int error = ferror(file) || fflush(file) != 0 || fsync(fileno(file)) != 0 ? errno : 0;
    if (fclose(file) != 0 && !error) { error = errno; }
    return error;
}

// Writes merges.txt; returns 0 or an errno. t has merges.
static inline int tokenizer_write_merges(const Tokenizer *t, const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) { return errno; }
    uint64_t *of_id = (uint64_t *)xcalloc((size_t)t->vocab_size, sizeof *of_id);
    for (int slot = 0; slot < TOKENIZER_MERGE_SLOTS; slot++) {
        if (t->merges[slot]) { of_id[(uint32_t)t->merges[slot]] = t->merges[slot]; }
    }
    fputs("#version: 0.2\n", file);
    for (int id = 256; id < t->end_of_text; id++) {
        tokenizer_write_symbol(t, (int)(of_id[id] >> 48), false, file);
        fputc(' ', file);
        tokenizer_write_symbol(t, (int)(of_id[id] >> 32 & 0xFFFF), false, file);
        fputc('\n', file);
    }
    free(of_id);
    return tokenizer_close_file(file);
}

// Writes vocab.json; returns 0 or an errno. t has merges.
static inline int tokenizer_write_vocab(const Tokenizer *t, const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) { return errno; }
    for (int id = 0; id < t->end_of_text; id++) {
        fputs(id ? ",\"" : "{\"", file);
        tokenizer_write_symbol(t, id, true, file);
        fprintf(file, "\":%d", id);
    }
    fprintf(file, ",\"%s\":%d}\n", TOKENIZER_END_OF_TEXT, t->end_of_text);
    return tokenizer_close_file(file);
}
