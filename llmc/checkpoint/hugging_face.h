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

// Adds the ids with which a text begins and ends. tokenizer NULL: end-of-text is GPT-2's, or the last token.
static inline void add_special_ids(cJSON *json, const Tokenizer *tokenizer, int vocab_size) {
    int last = (int)(vocab_size > GPT2_VOCAB ? GPT2_VOCAB : vocab_size) - 1;
    int end_of_text = tokenizer ? tokenizer->end_of_text : last;
    bool bytes = tokenizer && !tokenizer->merges;
    cJSON_AddNumberToObject(json, "bos_token_id", end_of_text);
    cJSON_AddItemToObject(json, "eos_token_id", bytes ? cJSON_CreateNull() : cJSON_CreateNumber(end_of_text));
}

static inline cJSON *config_json(const GPT2Config *c, const Tokenizer *tokenizer) {
    cJSON *json = cJSON_Parse("{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"]}");
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
    cJSON *json = cJSON_Parse(
        "{\"version\":\"1.0\",\"added_tokens\":[],"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
        "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{},\"merges\":[]}}");
    cJSON *vocab = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "model"), "vocab");
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        cJSON_AddNumberToObject(vocab, name, byte);
    }
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

// Writes a model's small files, with those of its tokenizer unless it is NULL. Returns 0 or an errno.
static inline int hugging_face_write(const char *folder, const GPT2Config *c, const Tokenizer *tokenizer) {
    char path[PATH_LENGTH];
    cJSON *generation = cJSON_CreateObject();
    add_special_ids(generation, tokenizer, c->vocab_size);
    int error = write_and_delete(folder, "generation_config.json", generation);
    if (!error) { error = write_and_delete(folder, "config.json", config_json(c, tokenizer)); }
    if (error || !tokenizer) { return error; }
    error = write_and_delete(folder, "tokenizer_config.json", tokenizer_config_json(c, tokenizer));
    if (error) { return error; }
    if (!tokenizer->merges) { return write_and_delete(folder, "tokenizer.json", byte_tokenizer_json()); }
    format_path(path, "%s/vocab.json", folder);
    error = tokenizer_write_vocab(tokenizer, path);
    format_path(path, "%s/merges.txt", folder);
    return error ? error : tokenizer_write_merges(tokenizer, path);
}
