/*
Text from a model, token by token: --generate and the samples of -s.

Context   When the model's positions are full, the last half of the context is read again from position 0: position
          embeddings are learned and cannot slide.
Random    Token i of a text is drawn with random number i of its stream. Sample i of --samples has SAMPLE_STREAM + i,
          and the sample of training step n SAMPLE_STREAM + n.
Token     p(i) = exp((logit(i) - max) / temperature) / sum, over the top_k highest logits, lower ids first among equals.
          With top_p below 1, of these only the nucleus: the fewest of the likeliest tokens whose probability reaches
          top_p. Then the first token, in the order of ids, whose cumulative probability exceeds the random number.
          Temperature 0 or less: the highest logit, the lowest id among equals.
          A NaN counts as below -inf: it is drawn only if all logits are NaN. If the highest logit is +inf, only +inf is
          drawn.
Speed     A heap pops the likeliest tokens one by one. Only --top-k and --top-p need it.
Source    of the nucleus: Holtzman et al. 2020. Temperature, top-k and top-p apply in the order of Hugging Face
          transformers.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/rng.h"
#include "llmc/data/tokenizer.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/text.h"
#include "llmc/run/train_args.h"

// ---- one token

// A token in the order of the heap: the highest logit first, lower ids first among equals. -0 equals +0, and NaN is
// last.
static inline HeapEntry sampler_entry(const float *logits, int id) {
    float logit = logits[id] == 0 ? 0 : logits[id];
    uint32_t bits;
    memcpy(&bits, &logit, sizeof bits);
    uint32_t rising = isnan(logit) ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    HeapEntry entry = {UINT32_MAX - rising, (uint64_t)id};
    return entry;
}

static inline int sampler_argmax(const float *logits, int vocab_size) {
    int best = 0;
    for (int i = 1; i < vocab_size; i++) {
        if (heap_before(sampler_entry(logits, i), sampler_entry(logits, best))) { best = i; }
    }
    return best;
}

// a token's probability before division by the sum; 1 for the highest logit
static inline double sampler_weight(float logit, float highest, double temperature) {
    // equality first: the difference of two infinities is a NaN
    return logit == highest ? 1 : exp(((double)logit - (double)highest) / temperature);
}

// Returns the last of the likeliest tokens: the k-th, or an earlier one if the weights up to it add up to `target`.
static inline HeapEntry sampler_last(const float *logits, int vocab_size, double temperature, float highest, int k,
                                     double target) {
    HeapEntry *heap = (HeapEntry *)xmalloc((size_t)vocab_size * sizeof *heap), last = {0, 0};
    size_t size = 0;
    double sum = 0;
    for (int i = 0; i < vocab_size; i++) {
        HeapEntry entry = sampler_entry(logits, i);
        heap_push(heap, &size, entry.key, entry.value);
    }
    for (int n = 0; n < k && sum < target; n++) {
        last = heap_pop(heap, &size);
        sum += sampler_weight(logits[last.value], highest, temperature);
    }
    free(heap);
    return last;
}

// Adds the weights of the tokens up to `last`, in the order of ids, until *sum exceeds `target`. Returns the last one
// added.
static inline int sampler_walk(const float *logits, int vocab_size, double temperature, float highest, HeapEntry last,
                               double target, double *sum) {
    int token = 0;
    *sum = 0;
    for (int i = 0; i < vocab_size && *sum <= target; i++) {
        if (isnan(logits[i]) || heap_before(last, sampler_entry(logits, i))) { continue; }
        *sum += sampler_weight(logits[i], highest, temperature);
        token = i;
    }
    return token;
}

// Draws a token from logits (vocab_size), which have no padding. A top_k of 0 keeps all tokens, and a top_p of 1 or
// more all of the top k. random is uniform in [0, 1).
static inline int sample_token(const float *logits, int vocab_size, double temperature, int top_k, double top_p,
                               double random) {
    int best = sampler_argmax(logits, vocab_size), k = top_k > 0 && top_k < vocab_size ? top_k : vocab_size;
    float highest = logits[best];
    if (!(temperature > 0)) { return best; }
    HeapEntry last = {UINT64_MAX, 0};  // after all tokens
    double total, reached;
    if (k < vocab_size) { last = sampler_last(logits, vocab_size, temperature, highest, k, (double)INFINITY); }
    sampler_walk(logits, vocab_size, temperature, highest, last, (double)INFINITY, &total);
    if (top_p < 1) {
        double target = fmax(top_p * total, 1);  // the likeliest token's weight is 1, so the nucleus is never empty
        last = sampler_last(logits, vocab_size, temperature, highest, k, target);
        sampler_walk(logits, vocab_size, temperature, highest, last, (double)INFINITY, &total);
    }
    return sampler_walk(logits, vocab_size, temperature, highest, last, random * total, &reached);
}

// ---- a text

#define SAMPLE_STREAM 0x73616D706C65u

typedef struct {
    void *model;
    // Appends n tokens, at positions [from, from + n), to the key-value cache; logits (V) of the last token
    void (*prefill)(void *model, const int *tokens, int from, int n, float *logits);
    int vocab_size, positions;   // V, and the positions of the key-value cache
    const Tokenizer *tokenizer;  // NULL: tokens are printed as numbers
    const TrainArgs *args;       // --temperature, --top-k, --top-p, --seed
    Comm *world;                 // a signal on any rank ends the text
} Generator;

// Prints the prompt (prompt_length > 0) and up to `count` more tokens as they come. Unless `end` is -1, that token ends
// the text and is not printed.
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

// For --generate, prints --samples continuations of the prompt, with a line --- between them. The token `end` ends one.
// If `end` is -1, end-of-text does, except in a byte model.
static inline void generate_samples(const Generator *g, const int *prompt, size_t prompt_length, int end) {
    // A byte model's documents start with a newline. Newlines also occur inside, so one cannot end the text.
    bool is_bytes = g->tokenizer && !g->tokenizer->merges;
    if (end < 0 && !is_bytes) { end = document_start(g->tokenizer, g->vocab_size); }
    for (int i = 0; i < g->args->samples; i++) {
        if (i > 0) { puts("---"); }
        generate(g, prompt, prompt_length, g->args->generate, end, SAMPLE_STREAM + (uint64_t)i);
    }
}
