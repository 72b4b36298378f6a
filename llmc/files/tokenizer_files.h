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
#include "llmc/files/json_file.h"
#include "llmc/files/part_file.h"
#include "llmc/files/tokenizer.h"

// the character that stands for a byte
static inline uint32_t tokenizer_byte_character(int byte) {
    uint32_t code = 256;
    if (tokenizer_byte_is_plain(byte)) { return (uint32_t)byte; }
    for (int other = 0; other < byte; other++) { code += !tokenizer_byte_is_plain(other); }
    return code;
}

// symbol (2 * TOKENIZER_MAX_TOKEN_BYTES) = a token as a symbol, without a NUL. Returns its bytes.
static inline size_t tokenizer_symbol(const Tokenizer *t, int token, char *symbol) {
    size_t bytes, length = 0;
    const char *text = tokenizer_decode(t, token, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        uint32_t code = tokenizer_byte_character((uint8_t)text[i]);
        if (code >= 128) { symbol[length++] = (char)(0xC0 | code >> 6); }
        symbol[length++] = (char)(code < 128 ? code : 0x80 | (code & 0x3F));
    }
    return length;
}

// Writes a token as a symbol. In JSON, a quote and a backslash take a backslash.
static inline void tokenizer_write_symbol(const Tokenizer *t, int token, bool json, FILE *file) {
    char symbol[2 * TOKENIZER_MAX_TOKEN_BYTES];
    size_t length = tokenizer_symbol(t, token, symbol);
    for (size_t i = 0; i < length; i++) {
        if (json && (symbol[i] == '"' || symbol[i] == '\\')) { fputc('\\', file); }
        fputc(symbol[i], file);
    }
}

// (vocab_size) the merge that makes each token, as in Tokenizer.merges; 0 for a byte and for end-of-text. t has merges;
// the caller frees it.
static inline uint64_t *tokenizer_merges_by_id(const Tokenizer *t) {
    uint64_t *of_id = (uint64_t *)xcalloc((size_t)t->vocab_size, sizeof *of_id);
    for (int slot = 0; slot < TOKENIZER_MERGE_SLOTS; slot++) {
        if (t->merges[slot]) { of_id[(uint32_t)t->merges[slot]] = t->merges[slot]; }
    }
    return of_id;
}

// Writes merges.txt, under its final name when it is whole; returns 0 or an errno. t has merges.
static inline int tokenizer_write_merges(const Tokenizer *t, const char *path) {
    PartFile part = part_open(path);
    FILE *file = part.file;
    if (!file) { return part.error; }
    uint64_t *of_id = tokenizer_merges_by_id(t);
    fputs("#version: 0.2\n", file);
    for (int id = 256; id < t->end_of_text; id++) {
        tokenizer_write_symbol(t, (int)(of_id[id] >> 48), false, file);
        fputc(' ', file);
        tokenizer_write_symbol(t, (int)(of_id[id] >> 32 & 0xFFFF), false, file);
        fputc('\n', file);
    }
    free(of_id);
    return part_finish(&part);
}

// Writes vocab.json, under its final name when it is whole; returns 0 or an errno. t has merges.
static inline int tokenizer_write_vocab(const Tokenizer *t, const char *path) {
    PartFile part = part_open(path);
    FILE *file = part.file;
    if (!file) { return part.error; }
    for (int id = 0; id < t->end_of_text; id++) {
        fputs(id ? ",\"" : "{\"", file);
        tokenizer_write_symbol(t, id, true, file);
        fprintf(file, "\":%d", id);
    }
    fprintf(file, ",\"%s\":%d}\n", TOKENIZER_END_OF_TEXT, t->end_of_text);
    return part_finish(&part);
}

// ---- reading tokenizer.json

static inline const char *json_type(const cJSON *object, const char *otherwise) {
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "type"));
    return type ? type : otherwise;
}

// trouble = "" if the JSON describes GPT-2's way from text to tokens: no normalizer, a byte-level pre-tokenizer with
// GPT-2's pattern, a BPE. Otherwise the difference, in words that follow "found".
static inline void tokenizer_json_trouble(char trouble[256], const cJSON *json) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    const cJSON *splitter = cJSON_GetObjectItemCaseSensitive(json, "pre_tokenizer");
    const cJSON *normalizer = cJSON_GetObjectItemCaseSensitive(json, "normalizer");
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(splitter, "use_regex");
    const cJSON *prefix = cJSON_GetObjectItemCaseSensitive(splitter, "add_prefix_space");
    *trouble = 0;
    if (strcmp(json_type(model, "BPE"), "BPE") != 0) {
        snprintf(trouble, 256, "a model of the type %.60s; expected BPE", json_type(model, ""));
    } else if (!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(model, "vocab")) ||
               !cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(model, "merges"))) {
        snprintf(trouble, 256, "no model with a vocab and merges; expected both");
    } else if (cJSON_IsObject(normalizer)) {
        snprintf(trouble, 256, "the normalizer %.60s; expected none", json_type(normalizer, "without a type"));
    } else if (strcmp(json_type(splitter, ""), "ByteLevel") != 0) {
        snprintf(trouble, 256, "the pre_tokenizer %.60s; expected ByteLevel", json_type(splitter, "null"));
    } else if (cJSON_IsFalse(pattern) || cJSON_IsTrue(prefix)) {
        snprintf(trouble, 256, "a ByteLevel pre_tokenizer %s; expected GPT-2's",
                 cJSON_IsTrue(prefix) ? "with a prefix space" : "without its pattern");
    }
}

// The merges as the lines of merges.txt; the caller frees them. Stops at a merge that is not two strings.
static inline char *tokenizer_merge_lines(const char *path, const cJSON *merges, size_t *bytes) {
    char *text = NULL;
    FILE *lines = open_memstream(&text, bytes);
    if (!lines) { run_error("out of memory while reading %s", path); }
    int number = 0;
    const cJSON *merge;
    cJSON_ArrayForEach(merge, merges) {
        const char *line = cJSON_GetStringValue(merge);
        const char *left = cJSON_GetStringValue(cJSON_GetArrayItem(merge, 0));
        const char *right = cJSON_GetStringValue(cJSON_GetArrayItem(merge, 1));
        number++;
        if (!line && (!left || !right)) {
            input_error("%s: merge %d is neither a string nor a pair of strings; copy the file again", path, number);
        }
        fprintf(lines, "%s%s%s\n", line ? line : left, line ? "" : " ", line ? "" : right);
    }
    fclose(lines);
    return text;
}

// Stops unless `symbol` names the token `id` of t.
static inline void tokenizer_check_symbol(const char *path, const Tokenizer *t, const char *symbol, const cJSON *id) {
    char expected[TOKENIZER_MAX_TOKEN_BYTES];
    size_t bytes, count = 0, step, length = strlen(symbol);
    int token = cJSON_IsNumber(id) ? id->valueint : -1;
    const char *text = tokenizer_decode(t, token, &bytes);
    if (token >= 0 && token == t->end_of_text && strcmp(symbol, TOKENIZER_END_OF_TEXT) == 0) { return; }
    bool same = bytes > 0;
    for (size_t i = 0; i < length && same; i += step) {
        int byte = tokenizer_symbol_byte(t, tokenizer_code_point(symbol + i, length - i, &step));
        same = byte >= 0 && count < sizeof expected;
        if (same) { expected[count++] = (char)byte; }
    }
    if (same && count == bytes && memcmp(text, expected, bytes) == 0) { return; }
    input_error("%s: the token '%.60s' has the id %d, which is another token in GPT-2's order of ids (bytes, merges, "
                "end-of-text); give a tokenizer in that order",
                path, symbol, token);
}

// whether a model has the tokens "<0x00>".."<0xFF>", with the bytes as ids, and no merges
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

// whether a tokenizer.json can be read and is of the kinds that tokenizer_open loads
static inline bool tokenizer_json_is_known(const char *path) {
    char trouble[256];
    cJSON *json = try_read_json(path);
    tokenizer_json_trouble(trouble, json);
    bool known = json && (!*trouble || tokenizer_json_is_bytes(json));
    cJSON_Delete(json);
    return known;
}

// Loads a tokenizer.json: a BPE whose ids are in GPT-2's order, or bytes (hugging_face.h). Stops at any other one.
static inline Tokenizer tokenizer_load_json(const char *path) {
    char trouble[256];
    cJSON *json = read_json(path), *symbol;
    if (!json) { input_error("%s: there is no such file; check the path", path); }
    if (tokenizer_json_is_bytes(json)) {
        cJSON_Delete(json);
        return tokenizer_bytes();
    }
    if (cJSON_IsNumber(json->child)) {
        input_error("%s: found ids of tokens without merges, as in vocab.json; give the merges.txt beside it", path);
    }
    tokenizer_json_trouble(trouble, json);
    if (*trouble) { input_error("%s: found %s, as in GPT-2's tokenizer.json", path, trouble); }
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    size_t bytes;
    char *lines = tokenizer_merge_lines(path, cJSON_GetObjectItemCaseSensitive(model, "merges"), &bytes);
    Tokenizer t = tokenizer_parse_merges(path, lines, bytes);
    cJSON_ArrayForEach(symbol, cJSON_GetObjectItemCaseSensitive(model, "vocab")) {
        tokenizer_check_symbol(path, &t, symbol->string, symbol);
    }
    free(lines);
    cJSON_Delete(json);
    return t;
}

// Loads a tokenizer from a merges file, gpt2_tokenizer.bin or, if the name ends in .json, tokenizer.json. Stops at a
// malformed file. Free with tokenizer_free.
static inline Tokenizer tokenizer_open(const char *path) {
    return has_ending(path, ".json") ? tokenizer_load_json(path) : tokenizer_load(path);
}
