/*
A conversation as text, for training on conversations.
defines: ChatRole, chat_role, chat_turn_text, CHAT_ANSWER_CUE, CHAT_TEMPLATE, CHAT_TEMPLATE_OF_BYTES

  start token                      once, before the first turn: end-of-text; of byte models a newline
  System: CONTENT\n                a system turn
  User: CONTENT\n                  a user turn
  Assistant: CONTENT<end token>    an assistant turn. The end token is Tokenizer.end_of_text: end-of-text; of byte
                                   models a newline
No part is a special token but the start and the end token. Each turn is encoded on its own. An assistant turn is
encoded in two parts: the cue "Assistant:", which the model is given, and " CONTENT", which the model writes and learns,
with the end token.
A newline ends an answer of a byte model: the content of each of its turns is one line (`one_line`).
*/
#pragma once
#include "llmc/common/check.h"
#include <stdbool.h>

#define CHAT_ANSWER_CUE "Assistant:"
typedef enum { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT } ChatRole;

// The format as a Jinja template, which transformers applies: of a tokenizer with end-of-text, and of bytes.
// transformers encodes the text as a whole: where a turn's content ends with white space, BPE tokens can differ from
// the trainer's.
#define CHAT_TEMPLATE_WITH(END, CONTENT)                                                                               \
    "{{ '" END "' }}{% for m in messages %}{% if m['role'] == 'assistant' %}" CHAT_ANSWER_CUE " {{ " CONTENT           \
    " }}{{ '" END "' }}{% else %}{{ m['role'] | capitalize }}: {{ " CONTENT " }}{{ '\\n' }}{% endif %}{% endfor %}"    \
    "{% if add_generation_prompt %}" CHAT_ANSWER_CUE "{% endif %}"
#define CHAT_TEMPLATE CHAT_TEMPLATE_WITH("<|endoftext|>", "m['content']")
#define CHAT_TEMPLATE_OF_BYTES CHAT_TEMPLATE_WITH("\\n", "m['content'] | replace('\\n', ' ')")

// the role of a name in a file of conversations: "system", "user" or "assistant"; -1: none of them
static inline int chat_role(const char *name) {
    static const char *const names[] = {"system", "user", "assistant"};
    for (int role = CHAT_SYSTEM; role <= CHAT_ASSISTANT; role++) {
        if (strcmp(name, names[role]) == 0) { return role; }
    }
    return -1;
}

// The text of a turn, *length bytes and a NUL, which the caller frees. content (bytes). The text of an assistant turn
// is " CONTENT", without the cue and the end token. one_line: newlines in the content become spaces.
static inline char *chat_turn_text(ChatRole role, const char *content, size_t bytes, bool one_line, size_t *length) {
    const char *before = role == CHAT_SYSTEM ? "System: " : role == CHAT_USER ? "User: " : " ";
    const size_t start = strlen(before);
    char *text = (char *)xmalloc(start + bytes + 2);
    memcpy(text, before, start);
    memcpy(text + start, content, bytes);
    for (size_t i = start; one_line && i < start + bytes; i++) {
        if (text[i] == '\n') { text[i] = ' '; }
    }
    *length = start + bytes;
    if (role != CHAT_ASSISTANT) { text[(*length)++] = '\n'; }
    text[*length] = 0;
    return text;
}
