/*
Text from a model, token by token: --generate, the samples of -s, and the context of --chat.
defines: Generator, SAMPLE_STREAM, Context, context_open, context_append, context_drop, context_draw, context_free,
         generate, generate_samples

Context   The model has read `position` tokens into its key-value cache; the last `unread` tokens of the text follow.
          When the context is full, its second half is read again from position 0: position embeddings are learned and
          cannot slide.
Random    Token i of a text is drawn with random number i of its stream. Sample i of --samples has SAMPLE_STREAM + i,
          and the sample of training step n SAMPLE_STREAM + n.
*/
#pragma once
#include "llmc/common/rng.h"
#include "llmc/run/sampler.h"
#include "llmc/run/signals.h"
#include "llmc/run/text.h"

#define SAMPLE_STREAM 0x73616D706C65u

typedef struct {
    void *model;
    // Appends n tokens, at positions [from, from + n), to the key-value cache. logits (V): of the last token.
    void (*prefill)(void *model, const int *tokens, int from, int n, float *logits);
    int vocab_size, positions;   // V, and the positions of the key-value cache
    const Tokenizer *tokenizer;  // NULL: tokens are printed as numbers
    const TrainArgs *args;       // --temperature, --top-k, --top-p, --seed
    Comm *world;                 // a signal on any rank ends the text
} Generator;

typedef struct {
    int *tokens;  // the text
    size_t length, room;
    size_t unread;
    int position;
    uint64_t stream, drawn;  // of the random numbers: their stream, and how many were taken
    float *logits;           // (V)
} Context;

static inline void context_append(Context *c, const int *tokens, size_t count) {
    if (c->length + count > c->room) {
        c->room = 2 * (c->length + count);
        c->tokens = (int *)xrealloc(c->tokens, c->room * sizeof *c->tokens);
    }
    memcpy(c->tokens + c->length, tokens, count * sizeof *tokens);
    c->length += count;
    c->unread += count;
}

// a text that begins with `tokens` (count > 0), which the model has not read; free with context_free
static inline Context context_open(const Generator *g, const int *tokens, size_t count, uint64_t stream) {
    Context c;
    memset(&c, 0, sizeof c);
    c.stream = stream;
    c.room = 2 * count;
    c.tokens = (int *)xmalloc(c.room * sizeof *c.tokens);
    c.logits = (float *)xmalloc((size_t)g->vocab_size * sizeof *c.logits);
    context_append(&c, tokens, count);
    return c;
}

static inline void context_free(Context *c) {
    free(c->tokens);
    free(c->logits);
}

// If the unread tokens do not fit behind the others, only the last half of the context stays, or the last `least`
// tokens if that is more.
static inline void context_drop(const Generator *g, Context *c, size_t least) {
    size_t half = ((size_t)g->positions + 1) / 2;
    if ((size_t)c->position + c->unread <= (size_t)g->positions) { return; }
    c->unread = least > half ? least : half;
    c->position = 0;
}

// The model reads the unread tokens. Returns the next token, which is not yet a part of the text.
static inline int context_draw(const Generator *g, Context *c) {
    const TrainArgs *a = g->args;
    context_drop(g, c, 0);
    g->prefill(g->model, c->tokens + c->length - c->unread, c->position, (int)c->unread, c->logits);
    c->position += (int)c->unread;
    c->unread = 0;
    double random = rng_uniform((uint64_t)a->seed, c->stream, c->drawn++);
    return sample_token(c->logits, g->vocab_size, a->temperature, a->top_k, a->top_p, random);
}

// Prints the prompt's text and at most `count` more tokens as they come. The token `end` ends the text and is not
// printed; -1: no token does.
static inline void generate(const Generator *g, const int *prompt, size_t prompt_length, int count, int end,
                            uint64_t stream) {
    Context c = context_open(g, prompt, prompt_length, stream);
    for (size_t i = 0; i < prompt_length; i++) { print_token(g->tokenizer, prompt[i]); }
    for (int i = 0; i < count && !agreed_signal(g->world); i++) {
        int token = context_draw(g, &c);
        if (token == end) { break; }
        context_append(&c, &token, 1);
        print_token(g->tokenizer, token);
        fflush(stdout);
    }
    putchar('\n');
    context_free(&c);
}

// --generate: as many continuations of the prompt as --samples says, with a line --- between two
static inline void generate_samples(const Generator *g, const int *prompt, size_t prompt_length) {
    const TrainArgs *a = g->args;
    int end = a->past_end ? -1 : document_end(g->tokenizer, g->vocab_size);
    for (int i = 0; i < a->samples; i++) {
        if (i > 0) { puts("---"); }
        generate(g, prompt, prompt_length, a->generate, end, SAMPLE_STREAM + (uint64_t)i);
    }
}
