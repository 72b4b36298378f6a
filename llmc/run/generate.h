/*
Text from a model, token by token: --generate and the samples of -s.
defines: Generator, SAMPLE_STREAM, generate, generate_samples

Context   When the model's positions are full, the last half of the context is read again from position 0: position
          embeddings are learned and cannot slide.
Random    Token i of a text is drawn with random number i of its stream. Sample i of --samples has SAMPLE_STREAM + i,
          and the sample of training step n SAMPLE_STREAM + n.
*/
#pragma once
#include "llmc/common/rng.h"
#include "llmc/run/sampler.h"
#include "llmc/run/schedule.h"
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

// Prints the prompt's text (prompt_length > 0) and at most `count` more tokens as they come. The token `end` ends the
// text and is not printed; -1: no token does.
static inline void generate(const Generator *g, const int *prompt, size_t prompt_length, int count, int end,
                            uint64_t stream) {
    const TrainArgs *a = g->args;
    size_t length = prompt_length, half = ((size_t)g->positions + 1) / 2;
    int *context = (int *)xmalloc((prompt_length + (size_t)g->positions + 1) * sizeof *context);
    float *logits = (float *)xmalloc((size_t)g->vocab_size * sizeof *logits);
    int cached = 0;  // tokens of the context in the key-value cache
    memcpy(context, prompt, prompt_length * sizeof *context);
    for (size_t i = 0; i < prompt_length; i++) { print_token(g->tokenizer, prompt[i]); }
    for (int i = 0; i < count && !agreed_signal(g->world); i++) {
        if (length > (size_t)g->positions) {
            memmove(context, context + length - half, half * sizeof *context);
            length = half;
            cached = 0;
        }
        g->prefill(g->model, context + cached, cached, (int)length - cached, logits);
        cached = (int)length;
        double random = rng_uniform((uint64_t)a->seed, stream, (uint64_t)i);
        int token = sample_token(logits, g->vocab_size, a->temperature, a->top_k, a->top_p, random);
        if (token == end) { break; }
        context[length++] = token;
        print_token(g->tokenizer, token);
        fflush(stdout);
    }
    putchar('\n');
    free(context);
    free(logits);
}

// --generate: as many continuations of the prompt as --samples says, with a line --- between two. End-of-text ends one.
static inline void generate_samples(const Generator *g, const int *prompt, size_t prompt_length) {
    bool of_bytes = g->tokenizer && !g->tokenizer->merges;  // a newline starts a document, but also stands inside of it
    int end = of_bytes ? -1 : document_start(g->tokenizer, g->vocab_size);
    for (int i = 0; i < g->args->samples; i++) {
        if (i > 0) { puts("---"); }
        generate(g, prompt, prompt_length, g->args->generate, end, SAMPLE_STREAM + (uint64_t)i);
    }
}
