/*
--chat: a conversation on stdin and stdout, in the text of llmc/files/chat_format.h.
defines: chat_opening, chat

stdin     each line is a turn of the user; the end of the file ends the conversation
stdout    the answers, token by token. On a terminal "> " asks for a line. Otherwise each line of stdin has one line of
          stdout: newlines in an answer become spaces, and a line without an answer has an empty line.
The key-value cache goes on from turn to turn. When the context is full, its oldest half is dropped.
*/
#pragma once
#include "llmc/files/chat_format.h"
#include "llmc/run/generate.h"

static inline bool chat_of_bytes(const Tokenizer *tokenizer) { return !tokenizer->merges; }

// *tokens (malloced) = the start token and, if text (bytes) is not empty, a system turn. Returns the number of tokens.
// Stops if the model has no tokenizer or fewer positions.
static inline size_t chat_opening(const Tokenizer *tokenizer, const char *text, size_t bytes, int vocab_size,
                                  int positions, int **tokens) {
    if (!tokenizer) {
        input_error("--chat reads and writes text, and a model of %d tokens needs a tokenizer: %s", vocab_size,
                    tokenizer_advice(vocab_size));
    }
    int *turn = NULL;
    size_t length, count = 0;
    if (bytes) {
        char *system = chat_turn_text(CHAT_SYSTEM, text, bytes, chat_of_bytes(tokenizer), &length);
        count = tokenizer_encode(tokenizer, system, length, &turn);
        free(system);
    }
    if (count + 1 > (size_t)positions) {
        input_error("--prompt is a system message of %zu tokens, more than the model's context of %d; give a shorter "
                    "one",
                    count, positions);
    }
    *tokens = (int *)xrealloc(turn, (count + 1) * sizeof **tokens);
    memmove(*tokens + 1, *tokens, count * sizeof **tokens);
    (*tokens)[0] = tokenizer->end_of_text;
    return count + 1;
}

// Appends a turn of the user, line (bytes), and the cue for the answer. Returns false, and says so, if they are longer
// than the context.
static inline bool chat_ask(const Generator *g, Context *c, const char *line, size_t bytes, long long number) {
    int *turn, *cue;
    size_t length;
    char *text = chat_turn_text(CHAT_USER, line, bytes, chat_of_bytes(g->tokenizer), &length);
    size_t count = tokenizer_encode(g->tokenizer, text, length, &turn);
    size_t cue_count = tokenizer_encode(g->tokenizer, CHAT_ANSWER_CUE, strlen(CHAT_ANSWER_CUE), &cue);
    bool fits = count + cue_count <= (size_t)g->positions;
    if (fits) {
        context_append(c, turn, count);
        context_append(c, cue, cue_count);
        context_drop(g, c, count + cue_count);
    } else {
        fprintf(stderr, "line %lld is a turn of %zu tokens, more than the model's context of %d: it is left out\n",
                number, count + cue_count, g->positions);
    }
    free(text);
    free(turn);
    free(cue);
    return fits;
}

// Prints an answer of at most --generate tokens, without the space after the cue. The end token follows in the context
// also where the answer was cut off.
static inline void chat_answer(const Generator *g, Context *c, bool one_line) {
    const int end = g->tokenizer->end_of_text;
    for (int i = 0; i < g->args->generate; i++) {
        int token = context_draw(g, c);
        if (token == end) { break; }
        context_append(c, &token, 1);
        size_t bytes;
        const char *text = tokenizer_decode(g->tokenizer, token, &bytes);
        size_t skipped = i == 0 && bytes > 0 && *text == ' ';
        print_bytes(text + skipped, bytes - skipped, one_line);
        fflush(stdout);
    }
    context_append(c, &end, 1);
}

// The next line of stdin, *bytes without its end; false: the end of the file.
static inline bool chat_read(char **line, size_t *room, size_t *bytes, bool terminal) {
    if (terminal) {
        fputs("> ", stdout);
        fflush(stdout);
    }
    ssize_t length = getline(line, room, stdin);
    if (length < 0 && ferror(stdin)) { run_error("could not read stdin (%s); --chat ends here", strerror(errno)); }
    for (int i = 0; i < 2 && length > 0 && (*line)[length - 1] == "\n\r"[i]; i++) { length--; }
    *bytes = length > 0 ? (size_t)length : 0;
    return length >= 0;
}

// opening (count): of chat_opening
static inline void chat(const Generator *g, const int *opening, size_t count) {
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    char *line = NULL;
    size_t room = 0, bytes;
    Context c = context_open(g, opening, count, SAMPLE_STREAM);
    for (long long number = 1; chat_read(&line, &room, &bytes, terminal); number++) {
        bool asked = bytes > 0 && chat_ask(g, &c, line, bytes, number);
        if (asked) { chat_answer(g, &c, !terminal); }
        if (asked || !terminal) { putchar('\n'); }
        fflush(stdout);
    }
    if (terminal) { putchar('\n'); }
    free(line);
    context_free(&c);
}
