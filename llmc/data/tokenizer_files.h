/*
The files of a byte-level BPE tokenizer as Hugging Face and GPT-2 name them.
defines: tokenizer_symbol, tokenizer_merges_by_id, tokenizer_write_merges, tokenizer_write_vocab,
         tokenizer_json_is_known, tokenizer_open

merges.txt       "#version: 0.2", then a line for each merge, in the order of the ids: two symbols with a space between
vocab.json       {"!":0, ..., "<|endoftext|>":50256}: the symbol of each id
tokenizer.json   {"model":{"type":"BPE","vocab":{"!":0, ...},"merges":["\u0120 t", ...] or [["\u0120","t"], ...]}, ...}
A symbol is a token with its bytes written as characters, as tokenizer.h describes.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/json_file.h"
#include "llmc/data/tokenizer.h"

// symbol (2 * TOKENIZER_MAX_TOKEN_BYTES) = a token as a symbol, without a NUL. Returns its bytes.
static inline size_t tokenizer_symbol(const Tokenizer *t, int token, char *symbol) {
    size_t bytes, length = 0;
    const char *text = tokenizer_decode(t, token, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        int byte = (uint8_t)text[i], code = byte;
        if (!tokenizer_byte_is_plain(byte)) {
            code = 256;
            for (int other = 0; other < byte; other++) { code += !tokenizer_byte_is_plain(other); }
        }
        if (code >= 128) { symbol[length++] = (char)(0xC0 | code >> 6); }
        symbol[length++] = (char)(code < 128 ? code : 0x80 | (code & 0x3F));
    }
    return length;
}

// (vocab_size, caller frees) the merge that makes each token, as in Tokenizer.merges; 0: a byte or end-of-text
static inline uint64_t *tokenizer_merges_by_id(const Tokenizer *t) {
    uint64_t *of_id = (uint64_t *)xcalloc((size_t)t->vocab_size, sizeof *of_id);
    for (int slot = 0; slot < TOKENIZER_MERGE_SLOTS; slot++) {
        if (t->merges[slot]) { of_id[(uint32_t)t->merges[slot]] = t->merges[slot]; }
    }
    return of_id;
}

// line (4 * TOKENIZER_MAX_TOKEN_BYTES + 1) = the two symbols of a merge, without a NUL. Returns its bytes.
static inline size_t tokenizer_merge_line(const Tokenizer *t, uint64_t merge, char *line) {
    size_t length = tokenizer_symbol(t, (int)(merge >> 48), line);
    line[length++] = ' ';
    return length + tokenizer_symbol(t, (int)(merge >> 32 & 0xFFFF), line + length);
}

// Writes merges.txt, under its final name when it is whole; returns 0 or an errno. t has merges.
static inline int tokenizer_write_merges(const Tokenizer *t, const char *path) {
    char line[4 * TOKENIZER_MAX_TOKEN_BYTES + 1];
    PartFile file = part_open(path);
    uint64_t *of_id = tokenizer_merges_by_id(t);
    part_put(&file, "#version: 0.2\n", 14);
    for (int id = 256; id < t->end_of_text; id++) {
        part_put(&file, line, tokenizer_merge_line(t, of_id[id], line));
        part_put(&file, "\n", 1);
    }
    free(of_id);
    return part_finish(&file);
}

// Writes vocab.json, under its final name when it is whole; returns 0 or an errno. t has merges.
static inline int tokenizer_write_vocab(const Tokenizer *t, const char *path) {
    char symbol[2 * TOKENIZER_MAX_TOKEN_BYTES];
    PartFile file = part_open(path);
    if (!file.file) { return file.error; }
    for (int id = 0; id < t->end_of_text; id++) {
        size_t length = tokenizer_symbol(t, id, symbol);
        fputs(id ? ",\"" : "{\"", file.file);
        for (size_t i = 0; i < length; i++) {
            if (symbol[i] == '"' || symbol[i] == '\\') { fputc('\\', file.file); }
            fputc(symbol[i], file.file);
        }
        fprintf(file.file, "\":%d", id);
    }
    fprintf(file.file, ",\"%s\":%d}\n", TOKENIZER_END_OF_TEXT, t->end_of_text);
    return part_finish(&file);
}

// ---- reading tokenizer.json

// True if the JSON describes GPT-2's way from text to tokens: no normalizer, a byte-level pre-tokenizer with GPT-2's
// pattern, a BPE.
static inline bool tokenizer_json_is_gpt2(const cJSON *json) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    const cJSON *splitter = cJSON_GetObjectItemCaseSensitive(json, "pre_tokenizer");
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(model, "type"));
    const char *split = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(splitter, "type"));
    return (!type || strcmp(type, "BPE") == 0) && cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(model, "vocab")) &&
           cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(model, "merges")) &&
           !cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(json, "normalizer")) && split &&
           strcmp(split, "ByteLevel") == 0 && !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(splitter, "use_regex")) &&
           !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(splitter, "add_prefix_space"));
}

// True if a model has the tokens "<0x00>".."<0xFF>", with the bytes as ids, and no merges.
static inline bool tokenizer_json_is_bytes(const cJSON *json) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab"), *id = vocab ? vocab->child : NULL;
    bool bytes = cJSON_IsObject(vocab) && !cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(model, "merges"));
    for (int byte = 0; byte < 256 && bytes; byte++, id = id ? id->next : NULL) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        bytes = id && cJSON_IsNumber(id) && id->valueint == byte && strcmp(id->string, name) == 0;
    }
    return bytes && !id;
}

// True if tokenizer_open can load a tokenizer.json.
static inline bool tokenizer_json_is_known(const char *path) {
    cJSON *json = try_read_json(path);
    bool known = json && (tokenizer_json_is_gpt2(json) || tokenizer_json_is_bytes(json));
    cJSON_Delete(json);
    return known;
}

// Loads a tokenizer.json: a BPE whose ids are in GPT-2's order, or bytes (hugging_face.h). Stops at any other one.
static inline Tokenizer tokenizer_load_json(const char *path) {
    cJSON *json = read_json(path), *item;
    if (!json) { input_error("%s: there is no such file; check the path", path); }
    if (tokenizer_json_is_bytes(json)) {
        cJSON_Delete(json);
        return tokenizer_bytes();
    }
    if (!tokenizer_json_is_gpt2(json)) {
        input_error(
            "%s: expected a BPE with vocab and merges, without a normalizer, and ByteLevel with GPT-2's pattern and "
            "without a prefix space, as in GPT-2's tokenizer.json; beside a vocab.json, give the merges.txt",
            path);
    }
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    char *text = NULL, expected[2 * TOKENIZER_MAX_TOKEN_BYTES + 1];
    size_t bytes;
    int number = 0;
    FILE *lines = open_memstream(&text, &bytes);  // as in merges.txt
    if (!lines) { run_error("out of memory while reading %s", path); }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(model, "merges")) {
        const char *line = cJSON_GetStringValue(item);
        const char *left = cJSON_GetStringValue(cJSON_GetArrayItem(item, 0));
        const char *right = cJSON_GetStringValue(cJSON_GetArrayItem(item, 1));
        number++;
        if (!line && (!left || !right)) {
            input_error("%s: merge %d is neither a string nor a pair of strings; copy the file again", path, number);
        }
        fprintf(lines, "%s%s%s\n", line ? line : left, line ? "" : " ", line ? "" : right);
    }
    fclose(lines);
    Tokenizer t = tokenizer_parse_merges(path, text, bytes);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(model, "vocab")) {
        int id = cJSON_IsNumber(item) ? item->valueint : -1;
        expected[tokenizer_symbol(&t, id, expected)] = 0;
        bool is_end = id == t.end_of_text && strcmp(item->string, TOKENIZER_END_OF_TEXT) == 0;
        if (is_end || (*expected && strcmp(item->string, expected) == 0)) { continue; }
        input_error("%s: the token '%.60s' has the id %d, which is another token in GPT-2's order of ids (bytes, "
                    "merges, end-of-text); give a tokenizer in that order",
                    path, item->string, id);
    }
    free(text);
    cJSON_Delete(json);
    return t;
}

// Loads a merges file, gpt2_tokenizer.bin or, if the name ends in .json, tokenizer.json. Free with tokenizer_free.
static inline Tokenizer tokenizer_open(const char *path) {
    return has_ending(path, ".json") ? tokenizer_load_json(path) : tokenizer_load(path);
}
