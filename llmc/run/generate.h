/*
Text from a model, token by token: --generate and the samples of -s.
defines: sample_token, Generator, SAMPLE_STREAM, generate, generate_samples

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
Speed     The k-th highest logit is found by radix selection on its bits, four passes of 256 bins, without scratch
          memory. 50257 logits take seven passes over 200 KB, the last one partial, and at most two exponentials for
          each of the top_k tokens. The nucleus is found the same way, with bins of weights: five more passes.
Source    of the nucleus: Holtzman et al. 2020. Temperature, top-k and top-p apply in the order of Hugging Face
          transformers.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/rng.h"
#include "llmc/data/tokenizer.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/ranks.h"
#include "llmc/run/text.h"
#include "llmc/run/train_args.h"

// ---- one token

// an integer that orders the logits; -0 equals +0, and NaN is 0, below all others
static inline uint32_t sampler_key(float logit) {
    if (isnan(logit)) { return 0; }
    if (logit == 0) { logit = 0; }
    uint32_t bits;
    memcpy(&bits, &logit, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline int sampler_argmax(const float *logits, int vocab_size) {
    int best = 0;
    for (int i = 1; i < vocab_size; i++) {
        if (sampler_key(logits[i]) > sampler_key(logits[best])) { best = i; }
    }
    return best;
}

// The key of the k-th highest logit, 1 <= k <= vocab_size. The top k are all logits with a higher key and the first
// *ties with that key. Each pass finds one byte, the highest first: `bins` counts the next byte of all logits that
// share the bytes found so far.
static inline uint32_t sampler_kth_key(const float *logits, int vocab_size, int k, int *ties) {
    uint32_t kth = 0, known = 0;  // known: a mask of the bytes found so far
    for (int shift = 24; shift >= 0; shift -= 8) {
        int bins[256] = {0}, bin = 255;
        for (int i = 0; i < vocab_size; i++) {
            uint32_t key = sampler_key(logits[i]);
            if ((key & known) == kth) { bins[key >> shift & 255]++; }
        }
        while (bins[bin] < k) { k -= bins[bin--]; }
        kth |= (uint32_t)bin << shift;
        known |= 255u << shift;
    }
    *ties = k;
    return kth;
}

// a token's probability before division by the sum; 1 for the highest logit
static inline double sampler_weight(float logit, float highest, double temperature) {
    // equality first: the difference of two infinities is a NaN
    return logit == highest ? 1 : exp(((double)logit - (double)highest) / temperature);
}

// Narrows the top k to the nucleus: the fewest of the likeliest tokens whose weights add up to `target`. Returns the
// key of the last one; *ties as in sampler_kth_key.
static inline uint32_t sampler_nucleus_key(const float *logits, int vocab_size, double temperature, float highest,
                                           uint32_t kth_key, int *ties, double target) {
    uint32_t last = 0, known = 0;  // known: a mask of the bytes found so far
    double above = 0;              // weight of the tokens with a higher key than `last`
    // The bins also count logits below the top k, ties beyond the first *ties and NaN. The search comes to them last.
    for (int shift = 24; shift >= 0; shift -= 8) {
        double bins[256] = {0};
        int bin = 255;
        for (int i = 0; i < vocab_size; i++) {
            uint32_t key = sampler_key(logits[i]);
            if ((key & known) == last) { bins[key >> shift & 255] += sampler_weight(logits[i], highest, temperature); }
        }
        while (bin > 0 && above + bins[bin] < target) { above += bins[bin--]; }
        last |= (uint32_t)bin << shift;
        known |= 255u << shift;
    }
    if (last < kth_key) { return kth_key; }  // summed in this order, the top k may stay below the target
    int count = 0, limit = last == kth_key ? *ties : vocab_size;
    for (int i = 0; i < vocab_size && count < limit && above < target; i++) {
        if (sampler_key(logits[i]) != last) { continue; }
        above += sampler_weight(logits[i], highest, temperature);
        count++;
    }
    *ties = count;
    return last;
}

// Adds the weights of the top tokens in the order of ids until *sum exceeds `target`. Returns the last token added.
static inline int sampler_walk(const float *logits, int vocab_size, double temperature, float highest, uint32_t kth_key,
                               int ties, double target, double *sum) {
    int last = 0;
    *sum = 0;
    for (int i = 0; i < vocab_size && *sum <= target; i++) {
        uint32_t key = sampler_key(logits[i]);
        if (isnan(logits[i]) || key < kth_key || (key == kth_key && ties-- <= 0)) { continue; }
        *sum += sampler_weight(logits[i], highest, temperature);
        last = i;
    }
    return last;
}

// logits (vocab_size), without padding; top_k: 0 is all tokens; top_p: from 1 on all of the top k; random: uniform in
// [0, 1)
static inline int sample_token(const float *logits, int vocab_size, double temperature, int top_k, double top_p,
                               double random) {
    int best = sampler_argmax(logits, vocab_size), ties;
    if (!(temperature > 0)) { return best; }
    int k = top_k > 0 && top_k < vocab_size ? top_k : vocab_size;
    uint32_t kth_key = sampler_kth_key(logits, vocab_size, k, &ties);
    double total, reached;
    sampler_walk(logits, vocab_size, temperature, logits[best], kth_key, ties, (double)INFINITY, &total);
    if (top_p < 1) {
        double target = fmax(top_p * total, 1);  // the likeliest token's weight is 1, so the nucleus is never empty
        kth_key = sampler_nucleus_key(logits, vocab_size, temperature, logits[best], kth_key, &ties, target);
        sampler_walk(logits, vocab_size, temperature, logits[best], kth_key, ties, (double)INFINITY, &total);
    }
    return sampler_walk(logits, vocab_size, temperature, logits[best], kth_key, ties, random * total, &reached);
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

// Prints the prompt (prompt_length > 0) and up to `count` more tokens as they come. The token `end` ends the text and
// is not printed; -1: none does.
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

// --generate: --samples continuations of the prompt, separated by a line ---. End-of-text ends one.
static inline void generate_samples(const Generator *g, const int *prompt, size_t prompt_length) {
    bool is_bytes = g->tokenizer && !g->tokenizer->merges;  // its start of a document, a newline, is also in the text
    int end = is_bytes ? -1 : document_start(g->tokenizer, g->vocab_size);
    for (int i = 0; i < g->args->samples; i++) {
        if (i > 0) { puts("---"); }
        generate(g, prompt, prompt_length, g->args->generate, end, SAMPLE_STREAM + (uint64_t)i);
    }
}
