/*
The files of a byte-level BPE tokenizer as Hugging Face and GPT-2 name them.

merges.txt       "#version: 0.2", then a line for each merge: two symbols with a space between
vocab.json       {"!":0, ..., "<|endoftext|>":50256}: the id of each symbol. Next to a merges.txt (of vocab.bpe it is
                 encoder.json) it decides the ids; without it they are in GPT-2's order (tokenizer.h)
tokenizer.json   {"model":{"type":"BPE","vocab":{"!":0, ...},"merges":["\u0120 t", ...] or [["\u0120","t"], ...]},
                 "added_tokens":[{"id":50256,"content":"<|endoftext|>","special":true, ...}], ...}: both, and what is
                 done before and after. Steps that GPT-2's tokenizer lacks are refused by name.
tokenizer_config.json, added_tokens.json, special_tokens_map.json   next to them: added and special tokens
A symbol is a token with its bytes written as characters, as tokenizer.h describes; an added token is written as it is.
End-of-text is <|endoftext|>; without it eos_token, then </s>. A vocabulary without any gets <|endoftext|> as its next
id, as in transformers.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/json_file.h"
#include "llmc/data/tokenizer.h"
#include <sys/stat.h>

// symbol (2 * TOKENIZER_MAX_TOKEN_BYTES) = a token as a symbol, without a NUL. Returns its bytes.
static inline size_t tokenizer_symbol(const Tokenizer *t, int token, char *symbol) {
    size_t bytes, length = 0;
    const char *text = tokenizer_decode(t, token, &bytes);
    bool added = token >= 0 && token < t->vocab_size && t->kind[token];
    if (added) { memcpy(symbol, text, bytes); }
    for (size_t i = 0; i < (added ? 0 : bytes); i++) {
        int code = tokenizer_character((uint8_t)text[i]);
        if (code >= 128) { symbol[length++] = (char)(0xC0 | code >> 6); }
        symbol[length++] = (char)(code < 128 ? code : 0x80 | (code & 0x3F));
    }
    return added ? bytes : length;
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
    uint64_t *by_rank = tokenizer_merges_by_rank(t);
    part_put(&file, "#version: 0.2\n", 14);
    for (int rank = 0; rank < t->num_merges; rank++) {
        part_put(&file, line, tokenizer_merge_line(t, by_rank[rank], line));
        part_put(&file, "\n", 1);
    }
    free(by_rank);
    return part_finish(&file);
}

// Adds the tokens of a vocabulary to an object: {"symbol":id,...}.
static inline void tokenizer_add_vocab(cJSON *json, const Tokenizer *t) {
    char symbol[2 * TOKENIZER_MAX_TOKEN_BYTES + 1];
    for (int id = 0; id < t->vocab_size; id++) {
        symbol[tokenizer_symbol(t, id, symbol)] = 0;
        if (*symbol) { cJSON_AddNumberToObject(json, symbol, id); }
    }
}

// Writes vocab.json, under its final name when it is whole; returns 0 or an errno. t has merges.
static inline int tokenizer_write_vocab(const Tokenizer *t, const char *path) {
    cJSON *json = cJSON_CreateObject();
    tokenizer_add_vocab(json, t);
    int error = write_json(path, json);
    cJSON_Delete(json);
    return error;
}

// Writes tokenizer.json, under its final name when it is whole; returns 0 or an errno. t has merges. alone: no
// tokenizer_config.json names end-of-text, so the file does, in a key of our own, of which transformers warns.
static inline int tokenizer_write_json(const Tokenizer *t, const char *path, bool alone) {
    char text[4 * TOKENIZER_MAX_TOKEN_BYTES + 2];
    cJSON *json =
        json_of("{'version':'1.0','added_tokens':[],'decoder':{'type':'ByteLevel','add_prefix_space':true,"
                "'trim_offsets':true,'use_regex':true},'pre_tokenizer':{'type':'ByteLevel','add_prefix_space'"
                ":false,'trim_offsets':true,'use_regex':true},'model':{'type':'BPE','vocab':{},'merges':[]}}");
    cJSON *model = cJSON_GetObjectItem(json, "model"), *merges = cJSON_GetObjectItem(model, "merges");
    tokenizer_add_vocab(cJSON_GetObjectItem(model, "vocab"), t);
    for (int i = 0; i < t->num_added; i++) {
        int id = t->added[i], kind = t->kind[id];
        text[tokenizer_symbol(t, id, text)] = 0;
        cJSON *added = json_of("{'id':%d,'single_word':false,'normalized':false}", id);
        cJSON_AddStringToObject(added, "content", text);
        cJSON_AddBoolToObject(added, "lstrip", (kind & TOKEN_STRIPS_LEFT) != 0);
        cJSON_AddBoolToObject(added, "rstrip", (kind & TOKEN_STRIPS_RIGHT) != 0);
        cJSON_AddBoolToObject(added, "special", (kind & TOKEN_SPECIAL) != 0);
        if (alone && id == t->end_of_text) { cJSON_AddBoolToObject(added, "end_of_text", true); }
        cJSON_AddItemToArray(cJSON_GetObjectItem(json, "added_tokens"), added);
    }
    uint64_t *by_rank = tokenizer_merges_by_rank(t);
    for (int rank = 0; rank < t->num_merges; rank++) {
        text[tokenizer_merge_line(t, by_rank[rank], text)] = 0;
        cJSON_AddItemToArray(merges, cJSON_CreateString(text));
    }
    free(by_rank);
    int error = write_json(path, json);
    cJSON_Delete(json);
    return error;
}

// ---- names and ids as the files have them

// By id; it lives as long as the JSON that holds the names.
typedef struct {
    const char *path;    // of the vocabulary, for messages
    const char **names;  // (TOKENIZER_MAX_VOCAB) NULL: no token
    uint8_t *kinds;      // (TOKENIZER_MAX_VOCAB) as Tokenizer.kind
    int count;           // the highest id + 1
    int end_of_text;     // named by a tokenizer.json of this trainer; -1: none
} VocabNames;

static inline void vocab_put(VocabNames *v, const char *name, double number, int kind) {
    int id = number >= 0 && number < (double)TOKENIZER_MAX_VOCAB ? (int)number : -1;
    if (id < 0 || id != number) {
        input_error("%s: the token '%.60s' has the id %.15g; expected whole ids from 0 to %d, which fit a token shard",
                    v->path, name, number, TOKENIZER_MAX_VOCAB - 1);
    }
    bool replaces = kind && !v->kinds[id];  // an added token has its name as it is
    if (v->names[id] && strcmp(v->names[id], name) != 0 && !replaces) {
        input_error("%s: the tokens '%.60s' and '%.60s' have one id, %d; copy the tokenizer's files from one place",
                    v->path, v->names[id], name, id);
    }
    v->names[id] = name;
    if (kind) { v->kinds[id] = (uint8_t)kind; }
    if (id >= v->count) { v->count = id + 1; }
}

// the added token of an entry: {"content":"<s>","special":true,...}
static inline void vocab_put_added(VocabNames *v, const cJSON *entry, double id) {
    const char *content = json_string(entry, "content");
    if (!content || !*content) { input_error("%s: an added token has no content; copy the file again", v->path); }
    if (json_true(entry, "single_word")) {
        input_error(
            "%s: the added token '%.60s' is a token as a whole word only (single_word), which this trainer does "
            "not do; set it to false, or give another tokenizer",
            v->path, content);
    }
    int kind = TOKEN_ADDED | TOKEN_SPECIAL * json_true(entry, "special") |
               TOKEN_STRIPS_LEFT * json_true(entry, "lstrip") | TOKEN_STRIPS_RIGHT * json_true(entry, "rstrip");
    vocab_put(v, content, id, kind);
    if (json_true(entry, "end_of_text")) { v->end_of_text = (int)id; }
}

// the JSON object FOLDER/name, which the caller deletes; NULL: there is none
static inline cJSON *json_in(const char *folder, const char *name) {
    char path[PATH_LENGTH];
    format_path(path, "%s/%s", folder, name);
    return try_read_json(path);
}

// a tokenizer with the tokens of a vocabulary, without merges
static inline Tokenizer tokenizer_of_names(const VocabNames *v) {
    size_t bytes = 1 + strlen(TOKENIZER_END_OF_TEXT);
    for (int id = 0; id < v->count; id++) { bytes += v->names[id] ? strlen(v->names[id]) : 0; }
    Tokenizer t = tokenizer_alloc(bytes, TOKENIZER_MAX_VOCAB, true);
    for (int id = 0; id < v->count; id++) {
        char decoded[TOKENIZER_MAX_TOKEN_BYTES];
        const char *name = v->names[id] ? v->names[id] : "";
        size_t length = strlen(name);
        int count = v->kinds[id] ? -1 : tokenizer_symbol_bytes(name, length, decoded, sizeof decoded);
        if (count < 0 && length > TOKENIZER_MAX_TOKEN_BYTES) {
            input_error("%s: the token '%.60s...' has more than %d bytes; give another tokenizer", v->path, name,
                        TOKENIZER_MAX_TOKEN_BYTES);
        }
        tokenizer_add_token(&t, count < 0 ? name : decoded, count < 0 ? length : (size_t)count, v->kinds[id]);
    }
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        int id = tokenizer_find(&t, &c, 1);
        if (id < 0) {
            input_error(
                "%s: no token is the byte 0x%02X, so some texts have no tokens; give a byte-level vocabulary with "
                "all 256 bytes, as GPT-2's",
                v->path, (unsigned)byte);
        }
        t.byte_token[byte] = (uint16_t)id;
    }
    return t;
}

// Makes the tokens special that a JSON object names: {"bos_token":"<s>","pad_token":{"content":"<pad>"},
// "additional_special_tokens":["<x>"],...}. Returns the id of eos_token; -1: none.
static inline int tokenizer_find_special(Tokenizer *t, const cJSON *json) {
    int eos = -1;
    const cJSON *item;
    cJSON_ArrayForEach(item, json) {
        bool is_list = has_ending(item->string, "special_tokens");
        if (!is_list && !has_ending(item->string, "_token")) { continue; }
        for (const cJSON *token = is_list ? item->child : item; token; token = is_list ? token->next : NULL) {
            const char *name = cJSON_IsObject(token) ? json_string(token, "content") : cJSON_GetStringValue(token);
            int id = name ? tokenizer_find(t, name, strlen(name)) : -1;
            if (id >= 0) { tokenizer_mark_added(t, id, TOKEN_ADDED | TOKEN_SPECIAL); }
            if (strcmp(item->string, "eos_token") == 0) { eos = id; }
        }
    }
    return eos;
}

// Sets end_of_text to `end` or, if that is -1, to the first one found. folder: holds the other files; NULL: none
static inline void tokenizer_find_end(Tokenizer *t, int end, const char *folder) {
    static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json"};
    if (end < 0) { end = tokenizer_find(t, TOKENIZER_END_OF_TEXT, strlen(TOKENIZER_END_OF_TEXT)); }
    for (int i = 0; folder && i < 2; i++) {
        cJSON *json = json_in(folder, files[i]);
        int eos = tokenizer_find_special(t, json);
        if (end < 0) { end = eos; }
        cJSON_Delete(json);
    }
    if (end < 0) { end = tokenizer_find(t, "</s>", 4); }
    if (end < 0 && t->vocab_size == TOKENIZER_MAX_VOCAB) {
        input_error("the tokenizer has %d tokens and none for end-of-text; name one as eos_token", t->vocab_size);
    }
    if (end < 0) {
        tokenizer_append_end_of_text(t);
    } else {
        t->end_of_text = end;
        tokenizer_mark_added(t, end, TOKEN_ADDED | TOKEN_SPECIAL);
    }
}

// ---- what GPT-2's tokenizer does not do

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static inline bool json_is(const cJSON *json, const char *key, const char *text) {
    const char *value = json_string(json, key);
    return value && strcmp(value, text) == 0;
}

// True if a pre_tokenizer splits as GPT-2: ByteLevel with its own pattern, or that pattern and then ByteLevel.
static inline bool json_splits_as_gpt2(const cJSON *json) {
    const cJSON *steps = json_get(json, "pretokenizers"), *split = cJSON_GetArrayItem(steps, 0);
    bool sequence = json_is(json, "type", "Sequence");
    if (sequence) {
        bool same = cJSON_GetArraySize(steps) == 2 && json_is(split, "behavior", "Isolated") &&
                    json_is(json_get(split, "pattern"), "Regex", GPT2_PATTERN);
        if (!same) { return false; }
        json = split->next;
    }
    bool own_pattern = !cJSON_IsFalse(json_get(json, "use_regex"));
    return json_is(json, "type", "ByteLevel") && own_pattern != sequence && !json_true(json, "add_prefix_space");
}

// True if a post_processor, or one of a sequence, may add tokens to a text.
static inline bool json_adds_tokens(const cJSON *json) {
    bool adds = false, sequence = json_is(json, "type", "Sequence");
    const cJSON *step = sequence ? cJSON_GetArrayItem(json_get(json, "processors"), 0) : json, *part;
    for (; step; step = sequence ? step->next : NULL) {
        bool known = json_is(step, "type", "ByteLevel") || json_is(step, "type", "TemplateProcessing");
        adds = adds || (json_string(step, "type") && !known);
        cJSON_ArrayForEach(part, json_get(step, "single")) { adds = adds || json_get(part, "SpecialToken") != NULL; }
    }
    return adds;
}

// text (PATH_LENGTH) = the first item of tokenizer.json that GPT-2's tokenizer lacks, or "".
static inline void json_find_foreign(char *text, const cJSON *json) {
    const cJSON *model = json_get(json, "model");
    const struct {
        const cJSON *in;
        const char *key;
        bool foreign;
    } items[] = {
        {model, "type", json_string(model, "type") && !json_is(model, "type", "BPE")},
        {model, "vocab", !cJSON_IsObject(json_get(model, "vocab"))},
        {model, "merges", !cJSON_IsArray(json_get(model, "merges"))},
        {json, "normalizer", cJSON_IsObject(json_get(json, "normalizer")) != 0},
        {json, "pre_tokenizer", !json_splits_as_gpt2(json_get(json, "pre_tokenizer"))},
        {json, "post_processor", json_adds_tokens(json_get(json, "post_processor"))},
        {model, "end_of_word_suffix", json_is_set(model, "end_of_word_suffix")},
        {model, "continuing_subword_prefix", json_is_set(model, "continuing_subword_prefix")},
        {model, "dropout", json_is_set(model, "dropout")},
        {model, "ignore_merges", json_is_set(model, "ignore_merges")},
    };
    *text = 0;
    for (size_t i = 0; i < sizeof items / sizeof items[0] && !*text; i++) {
        if (items[i].foreign) { json_show(text, items[i].in, items[i].key); }
    }
}

// Stops if tokenizer_config.json asks for more than its tokenizer does.
static inline void require_supported_tokenizer(const cJSON *config, const char *folder) {
    static const char *const keys[] = {"add_bos_token", "add_eos_token", "add_prefix_space"};
    static const char *const classes[] = {"GPT2Tokenizer", "CodeGenTokenizer", "PreTrainedTokenizer",
                                          "TokenizersBackend"};  // transformers 5 writes the last one
    const char *kind = json_string(config, "tokenizer_class"), *foreign = NULL;
    bool known = !kind || !*kind;
    for (int i = 0; i < 4; i++) { known = known || strncmp(kind, classes[i], strlen(classes[i])) == 0; }
    if (!known) { foreign = "tokenizer_class"; }
    for (int i = 0; i < 3; i++) { foreign = json_true(config, keys[i]) ? keys[i] : foreign; }
    if (foreign) {
        char item[PATH_LENGTH];
        json_show(item, config, foreign);
        input_error(
            "'%s/tokenizer_config.json' has %s, so a text may get other tokens than here; give the tokenizer of "
            "a GPT-2, or set it to false if the model was trained without",
            folder, item);
    }
}

// True if a model has the tokens "<0x00>".."<0xFF>", with the bytes as ids, and no merges.
static inline bool tokenizer_json_is_bytes(const cJSON *json) {
    const cJSON *model = json_get(json, "model");
    const cJSON *vocab = json_get(model, "vocab"), *id = vocab ? vocab->child : NULL;
    bool bytes = cJSON_IsObject(vocab) && !cJSON_GetArraySize(json_get(model, "merges"));
    for (int byte = 0; byte < 256 && bytes; byte++, id = id ? id->next : NULL) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        bytes = id && cJSON_IsNumber(id) && id->valueint == byte && strcmp(id->string, name) == 0;
    }
    return bytes && !id;
}

// False, with a note, for a tokenizer.json that tokenizer_open refuses.
static inline bool tokenizer_json_is_known(const char *path) {
    cJSON *json = try_read_json(path);
    char why[PATH_LENGTH] = "no JSON object in it";
    if (json) { json_find_foreign(why, json); }
    if (json && tokenizer_json_is_bytes(json)) { *why = 0; }
    cJSON_Delete(json);
    if (*why) { fprintf(stderr, "note      '%s' is not used: it has %s, unlike GPT-2's\n", path, why); }
    return !*why;
}

// ---- reading

// The merges of tokenizer.json as the text of a merges file, which the caller frees.
static inline char *json_merges_text(const cJSON *json, const char *path, size_t *bytes) {
    const cJSON *item, *model = json_get(json, "model");
    char *text = NULL;
    int number = 0;
    FILE *lines = open_memstream(&text, bytes);
    if (!lines) { run_error("out of memory while reading %s", path); }
    cJSON_ArrayForEach(item, json_get(model, "merges")) {
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
    return text;
}

// The tokenizer of a vocabulary and of merges in text form, with the added tokens of tokenizer.json (NULL: none). path:
// of the merges; if it is named as Hugging Face's programs expect, the other files in its folder count too.
static inline Tokenizer tokenizer_build(const cJSON *vocab, const cJSON *added, const char *vocab_path,
                                        const char *path, const char *merges, size_t bytes) {
    VocabNames v = {vocab_path, (const char **)xcalloc(TOKENIZER_MAX_VOCAB, sizeof(char *)),
                    (uint8_t *)xcalloc(TOKENIZER_MAX_VOCAB, 1), 0, -1};
    char folder_path[PATH_LENGTH];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *folder = NULL;
    const cJSON *item;
    folder_of(folder_path, path);
    if (strcmp(name, "merges.txt") == 0 || strcmp(name, "tokenizer.json") == 0) { folder = folder_path; }
    cJSON *config = folder ? json_in(folder, "tokenizer_config.json") : NULL;
    cJSON *added_tokens = folder && !added ? json_in(folder, "added_tokens.json") : NULL;
    if (folder) { require_supported_tokenizer(config, folder); }
    cJSON_ArrayForEach(item, vocab) { vocab_put(&v, item->string, cJSON_GetNumberValue(item), 0); }
    cJSON_ArrayForEach(item, added) { vocab_put_added(&v, item, cJSON_GetNumberValue(json_get(item, "id"))); }
    const cJSON *decoder = json_get(config, "added_tokens_decoder");
    if (!cJSON_IsObject(decoder)) { decoder = NULL; }
    cJSON_ArrayForEach(item, decoder) {
        vocab_put_added(&v, item, isdigit((uint8_t)*item->string) ? strtod(item->string, NULL) : -1);
    }
    cJSON_ArrayForEach(item, added_tokens) {
        bool known = item->valueint >= 0 && item->valueint < v.count && v.kinds[item->valueint];
        if (!known) { vocab_put(&v, item->string, cJSON_GetNumberValue(item), TOKEN_ADDED); }
    }
    Tokenizer t = tokenizer_of_names(&v);
    tokenizer_read_merges(&t, path, merges, bytes, true);
    tokenizer_find_end(&t, v.end_of_text, folder);
    cJSON_Delete(config);
    cJSON_Delete(added_tokens);
    free(v.names);
    free(v.kinds);
    return t;
}

// other (PATH_LENGTH) = path with another ending, if it has this one; else ""
static inline void path_with_ending(char *other, const char *path, const char *ending, const char *new_ending) {
    *other = 0;
    if (!has_ending(path, ending)) { return; }
    format_path(other, "%.*s%s", (int)(strlen(path) - strlen(ending)), path, new_ending);
}

static inline Tokenizer tokenizer_load_json(const char *path, const cJSON *json) {
    char foreign[PATH_LENGTH];
    size_t bytes;
    if (tokenizer_json_is_bytes(json)) { return tokenizer_bytes(); }
    json_find_foreign(foreign, json);
    if (*foreign) {
        input_error("%s has %s, unlike GPT-2's; give a tokenizer that works as GPT-2's, or make the token shards with "
                    "the model's own program",
                    path, foreign);
    }
    char *merges = json_merges_text(json, path, &bytes);
    const cJSON *vocab = json_get(json_get(json, "model"), "vocab"), *added = json_get(json, "added_tokens");
    Tokenizer t = tokenizer_build(vocab, added, path, path, merges, bytes);
    free(merges);
    return t;
}

static inline Tokenizer tokenizer_load_with_vocab(const char *path, const char *vocab_path) {
    size_t bytes = 0;
    char *merges = read_whole_file(path, TOKENIZER_MAX_FILE, &bytes);
    cJSON *vocab = read_json(vocab_path);
    if (!merges) { input_error("%s: could not read the merges: %s; copy the file again", path, strerror(errno)); }
    Tokenizer t = tokenizer_build(vocab, NULL, vocab_path, path, merges, bytes);
    cJSON_Delete(vocab);
    free(merges);
    return t;
}

// path (PATH_LENGTH) = the tokenizer's file in a folder: tokenizer.json, or else merges.txt or vocab.bpe; "": none
static inline void tokenizer_in_folder(char *path, const char *folder) {
    static const char *const names[] = {"tokenizer.json", "merges.txt", "vocab.bpe"};
    for (int i = 0; i < 3; i++) {
        format_path(path, "%s/%s", folder, names[i]);
        if (access(path, F_OK) == 0) { return; }
    }
    *path = 0;
}

// Loads a tokenizer: tokenizer.json, merges.txt and vocab.json (give either), merges alone, gpt2_tokenizer.bin, or a
// folder with a tokenizer.json, merges.txt or vocab.bpe. Stops at one unlike GPT-2's. Free with tokenizer_free.
static inline Tokenizer tokenizer_open(const char *path) {
    char in_folder[PATH_LENGTH], other[PATH_LENGTH];
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        tokenizer_in_folder(in_folder, path);
        if (!*in_folder) {
            input_error("%s: the folder has no tokenizer.json, merges.txt or vocab.bpe; give the tokenizer's file",
                        path);
        }
        path = in_folder;
    }
    if (!has_ending(path, ".json")) {
        path_with_ending(other, path, "merges.txt", "vocab.json");
        if (!*other) { path_with_ending(other, path, "vocab.bpe", "encoder.json"); }
        return *other && access(other, F_OK) == 0 ? tokenizer_load_with_vocab(path, other) : tokenizer_load(path);
    }
    cJSON *json = read_json(path);
    if (!json) { input_error("%s: there is no such file; check the path", path); }
    path_with_ending(other, path, "vocab.json", "merges.txt");
    bool is_vocab = *other && !json_get(json, "model");
    if (is_vocab && access(other, F_OK) != 0) {
        input_error("%s is a vocabulary without '%s' next to it; put the merges of the same tokenizer there", path,
                    other);
    }
    Tokenizer t = is_vocab ? tokenizer_load_with_vocab(other, path) : tokenizer_load_json(path, json);
    cJSON_Delete(json);
    return t;
}
