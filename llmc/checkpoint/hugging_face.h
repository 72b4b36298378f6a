/*
The small files of a model's folder, as Hugging Face's transformers and the programs built on it look for them.

config.json              the shape of the model, and the ids of its special tokens
generation_config.json   the ids with which transformers' generate begins and ends
tokenizer_config.json    the class of the tokenizer, its special tokens, the longest input, the text of a conversation
vocab.json, merges.txt   a BPE tokenizer with ids in GPT-2's order (tokenizer_files.h)
tokenizer.json           any other BPE tokenizer, or that of bytes: a BPE without merges, whose ids 0..255 are the bytes
                         "<0x00>".."<0xFF>"

A text of a BPE model begins and ends with end-of-text. A text of a byte model begins with a newline, and no byte ends
it: a newline as transformers' end token would cut every answer after its first line, and transformers leaves special
tokens out of decoded text. Programs that need an end token and a padding token get the byte 255, which never occurs in
UTF-8. split_special_tokens: the text "<0xFF>" is six bytes.
*/
#pragma once
#include "llmc/activation.h"
#include "llmc/common/check.h"
#include "llmc/common/json_file.h"
#include "llmc/data/examples.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/shapes/params.h"

static inline cJSON *tokenizer_config_json(const GPT2Config *c, const Tokenizer *t) {
    bool bytes = !t->merges;
    char end[2 * TOKENIZER_MAX_TOKEN_BYTES + 1];
    end[tokenizer_symbol(t, t->end_of_text, end)] = 0;
    // clean_up_tokenization_spaces would remove the space before a full stop
    cJSON *json = bytes ? json_of("{'tokenizer_class':'PreTrainedTokenizerFast','clean_up_tokenization_spaces':false,"
                                  "'eos_token':'<0xFF>','pad_token':'<0xFF>','split_special_tokens':true}")
                        : json_of("{'tokenizer_class':'GPT2Tokenizer','clean_up_tokenization_spaces':false,"
                                  "'add_prefix_space':false,'bos_token':'%s','eos_token':'%s','unk_token':'%s'}",
                                  end, end, end);
    cJSON_AddNumberToObject(json, "model_max_length", c->max_seq_len);
    cJSON_AddStringToObject(json, "chat_template", bytes ? CHAT_TEMPLATE_OF_BYTES : CHAT_TEMPLATE);
    return json;
}

// tokenizer.json of the tokenizer of bytes
static inline cJSON *byte_tokenizer_json(void) {
    cJSON *json = json_of("{'version':'1.0','added_tokens':[],"
                          "'decoder':{'type':'Sequence','decoders':[{'type':'ByteFallback'},{'type':'Fuse'}]},"
                          "'model':{'type':'BPE','byte_fallback':true,'vocab':{},'merges':[]}}");
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

// Writes a model's small files, with those of its tokenizer unless it is NULL: then end-of-text is GPT-2's, or the last
// token. Returns 0 or an errno.
static inline int hugging_face_write(const char *folder, const GPT2Config *c, const Tokenizer *tokenizer) {
    char path[PATH_LENGTH], eos[16] = "null";
    bool bytes = tokenizer && !tokenizer->merges;
    int last = (int)(c->vocab_size > GPT2_VOCAB ? GPT2_VOCAB : c->vocab_size) - 1;
    int bos = tokenizer ? tokenizer->end_of_text : last;
    if (!bytes) { snprintf(eos, sizeof eos, "%d", bos); }
    int error =
        write_and_delete(folder, "generation_config.json", json_of("{'bos_token_id':%d,'eos_token_id':%s}", bos, eos));
    if (!error) {
        error = write_and_delete(
            folder, "config.json",
            json_of("{'model_type':'gpt2','architectures':['GPT2LMHeadModel'],'vocab_size':%d,'n_positions':%d,"
                    "'n_ctx':%d,'n_embd':%d,'n_layer':%d,'n_head':%d,'bos_token_id':%d,'eos_token_id':%s,"
                    "'activation_function':'%s','layer_norm_epsilon':1e-5,'attn_pdrop':0,'embd_pdrop':0,"
                    "'resid_pdrop':0,'torch_dtype':'%s'}",
                    c->vocab_size, c->max_seq_len, c->max_seq_len, c->channels, c->num_layers, c->num_heads, bos, eos,
                    activation_names[MLP_ACTIVATION][1], DT_FLOATX == DT_BF16 ? "bfloat16" : "float32"));
    }
    if (error || !tokenizer) { return error; }
    error = write_and_delete(folder, "tokenizer_config.json", tokenizer_config_json(c, tokenizer));
    if (error) { return error; }
    if (bytes) { return write_and_delete(folder, "tokenizer.json", byte_tokenizer_json()); }
    format_path(path, "%s/tokenizer.json", folder);
    if (!tokenizer_is_gpt2_order(tokenizer)) { return tokenizer_write_json(tokenizer, path, false); }
    format_path(path, "%s/vocab.json", folder);
    error = tokenizer_write_vocab(tokenizer, path);
    format_path(path, "%s/merges.txt", folder);
    return error ? error : tokenizer_write_merges(tokenizer, path);
}
