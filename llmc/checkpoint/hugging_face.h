/*
The small files of a model's folder, as Hugging Face's transformers and the programs built on it look for them.
defines: hugging_face_write

config.json              the shape of the model, and the ids of its special tokens
generation_config.json   the ids with which transformers' generate begins and ends
tokenizer_config.json    the class of the tokenizer, its special tokens, the longest input, the text of a conversation
vocab.json, merges.txt   a BPE tokenizer (tokenizer_files.h)
tokenizer.json           a tokenizer of bytes: a BPE without merges, whose ids 0..255 are the bytes "<0x00>".."<0xFF>"

A text of a BPE model begins and ends with end-of-text. A text of a byte model begins with a newline, and no byte ends
it: a newline as transformers' end token would cut every answer after its first line, and transformers leaves special
tokens out of decoded text. Programs that need an end token and a padding token get the byte 255, which never occurs in
UTF-8. split_special_tokens: the text "<0xFF>" is six bytes.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/json_file.h"
#include "llmc/data/examples.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/shapes/params.h"

// Adds a token id; -1 is written as null.
static inline void json_add_token_id(cJSON *json, const char *key, int id) {
    cJSON_AddItemToObject(json, key, id < 0 ? cJSON_CreateNull() : cJSON_CreateNumber(id));
}

// Adds the ids with which a text begins and ends. tokenizer NULL: end-of-text is GPT-2's, or the last token.
static inline void add_special_ids(cJSON *json, const Tokenizer *tokenizer, int vocab_size) {
    int last = (int)(vocab_size > GPT2_VOCAB ? GPT2_VOCAB : vocab_size) - 1;
    int end_of_text = tokenizer ? tokenizer->end_of_text : last;
    bool bytes = tokenizer && !tokenizer->merges;
    json_add_token_id(json, "bos_token_id", end_of_text);
    json_add_token_id(json, "eos_token_id", bytes ? -1 : end_of_text);
}

static inline cJSON *config_json(const GPT2Config *c, const Tokenizer *tokenizer) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model_type", "gpt2");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(json, "architectures"), cJSON_CreateString("GPT2LMHeadModel"));
    const struct {
        const char *key;
        int value;
    } numbers[] = {{"vocab_size", c->vocab_size}, {"n_positions", c->max_seq_len}, {"n_ctx", c->max_seq_len},
                   {"n_embd", c->channels},       {"n_layer", c->num_layers},      {"n_head", c->num_heads}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        cJSON_AddNumberToObject(json, numbers[i].key, numbers[i].value);
    }
    add_special_ids(json, tokenizer, c->vocab_size);
    cJSON_AddStringToObject(json, "activation_function", "gelu_new");
    cJSON_AddNumberToObject(json, "layer_norm_epsilon", 1e-5);
    const char *const no_dropout[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
    for (int i = 0; i < 3; i++) { cJSON_AddNumberToObject(json, no_dropout[i], 0); }
    cJSON_AddStringToObject(json, "torch_dtype", DT_FLOATX == DT_BF16 ? "bfloat16" : "float32");
    return json;
}

static inline cJSON *generation_config_json(const GPT2Config *c, const Tokenizer *tokenizer) {
    cJSON *json = cJSON_CreateObject();
    add_special_ids(json, tokenizer, c->vocab_size);
    return json;
}

static inline cJSON *tokenizer_config_json(const GPT2Config *c, const Tokenizer *tokenizer) {
    cJSON *json = cJSON_CreateObject();
    const char *const special[] = {"bos_token", "eos_token", "unk_token"};
    bool bytes = !tokenizer->merges;
    cJSON_AddStringToObject(json, "tokenizer_class", bytes ? "PreTrainedTokenizerFast" : "GPT2Tokenizer");
    cJSON_AddNumberToObject(json, "model_max_length", c->max_seq_len);
    cJSON_AddStringToObject(json, "chat_template", bytes ? CHAT_TEMPLATE_OF_BYTES : CHAT_TEMPLATE);
    cJSON_AddFalseToObject(json, "clean_up_tokenization_spaces");  // would remove the space before a full stop
    if (bytes) {
        cJSON_AddStringToObject(json, "eos_token", "<0xFF>");
        cJSON_AddStringToObject(json, "pad_token", "<0xFF>");
        cJSON_AddTrueToObject(json, "split_special_tokens");
        return json;
    }
    cJSON_AddFalseToObject(json, "add_prefix_space");
    for (int i = 0; i < 3; i++) { cJSON_AddStringToObject(json, special[i], TOKENIZER_END_OF_TEXT); }
    return json;
}

// tokenizer.json of the tokenizer of bytes
static inline cJSON *byte_tokenizer_json(void) {
    cJSON *json = cJSON_CreateObject(), *decoders = cJSON_CreateArray();
    cJSON_AddStringToObject(json, "version", "1.0");
    cJSON_AddArrayToObject(json, "added_tokens");
    cJSON *decoder = cJSON_AddObjectToObject(json, "decoder");
    cJSON_AddStringToObject(decoder, "type", "Sequence");
    cJSON_AddItemToObject(decoder, "decoders", decoders);
    const char *const types[] = {"ByteFallback", "Fuse"};
    for (int i = 0; i < 2; i++) {
        cJSON *type = cJSON_CreateObject();
        cJSON_AddStringToObject(type, "type", types[i]);
        cJSON_AddItemToArray(decoders, type);
    }
    cJSON *model = cJSON_AddObjectToObject(json, "model");
    cJSON_AddStringToObject(model, "type", "BPE");
    cJSON_AddTrueToObject(model, "byte_fallback");
    cJSON *vocab = cJSON_AddObjectToObject(model, "vocab");
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        cJSON_AddNumberToObject(vocab, name, byte);
    }
    cJSON_AddArrayToObject(model, "merges");
    return json;
}

// Writes and deletes a JSON object; returns 0 or an errno.
static inline int write_and_delete(const char *folder, const char *name, cJSON *json) {
    char path[PATH_LENGTH];
    format_path(path, "%s/%s", folder, name);
    int error = write_json(path, json);
    cJSON_Delete(json);
    return error;
}

static inline int write_bpe_files(const char *folder, const Tokenizer *tokenizer) {
    char path[PATH_LENGTH];
    format_path(path, "%s/vocab.json", folder);
    int error = tokenizer_write_vocab(tokenizer, path);
    if (error) { return error; }
    format_path(path, "%s/merges.txt", folder);
    return tokenizer_write_merges(tokenizer, path);
}

// Writes the small files of a model into its folder, without those of a tokenizer if tokenizer is NULL. Returns 0 or an
// errno.
static inline int hugging_face_write(const char *folder, const GPT2Config *c, const Tokenizer *tokenizer) {
    int error = write_and_delete(folder, "config.json", config_json(c, tokenizer));
    if (!error) { error = write_and_delete(folder, "generation_config.json", generation_config_json(c, tokenizer)); }
    if (error || !tokenizer) { return error; }
    error = write_and_delete(folder, "tokenizer_config.json", tokenizer_config_json(c, tokenizer));
    if (error) { return error; }
    if (tokenizer->merges) { return write_bpe_files(folder, tokenizer); }
    return write_and_delete(folder, "tokenizer.json", byte_tokenizer_json());
}
