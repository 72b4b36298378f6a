/*
Choose the next token from a row of logits.
  p(i) = exp((logit(i) - max) / temperature) / sum, over the top_k highest logits, lower ids first among equals; the
  token is the first, in the order of ids, whose cumulative probability exceeds the coin
  temperature 0 (or less): the highest logit, the lowest id among equals
A NaN counts as below -inf and is never drawn while another logit can be; where the highest is +inf only +inf is drawn.
The k-th highest logit is found by radix selection on the bits, four passes of 256 bins, so there is no scratch memory:
for 50257 logits six passes over 200 KB and two exponentials a kept token.
defines: sample_token
*/
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

// a number that orders as the logits do: -0 equals +0, a NaN is 0, below all others
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

// which tokens may be drawn: those with a higher key than `key`, and the first `ties` of those that equal it
typedef struct {
    uint32_t key;
    int ties;
} SamplerCut;

// The cut that keeps the k highest, 1 <= k <= vocab_size. Fixes the k-th key a byte at a time, from the top: the bin
// that holds the k-th of those that share the bytes fixed so far, with k reduced by what lies above it.
static inline SamplerCut sampler_cut(const float *logits, int vocab_size, int k) {
    SamplerCut cut = {0, k};
    uint32_t fixed = 0;  // mask of the bytes known
    for (int shift = 24; shift >= 0; shift -= 8) {
        int bins[256] = {0};
        for (int i = 0; i < vocab_size; i++) {
            uint32_t key = sampler_key(logits[i]);
            if ((key & fixed) == cut.key) { bins[key >> shift & 255]++; }
        }
        int bin = 255;
        while (bins[bin] < cut.ties) { cut.ties -= bins[bin--]; }
        cut.key |= (uint32_t)bin << shift;
        fixed |= 255u << shift;
    }
    return cut;
}

// Adds the kept tokens' weights in the order of ids until *sum exceeds `target`. Returns the last one added.
static inline int sampler_walk(const float *logits, int vocab_size, double temperature, float highest, SamplerCut cut,
                               double target, double *sum) {
    int last = 0;
    *sum = 0;
    for (int i = 0; i < vocab_size && *sum <= target; i++) {
        uint32_t key = sampler_key(logits[i]);
        if (isnan(logits[i]) || key < cut.key || (key == cut.key && cut.ties-- <= 0)) { continue; }
        // equality first: the difference of two infinities is a NaN
        double weight = logits[i] == highest ? 1 : exp(((double)logits[i] - (double)highest) / temperature);
        *sum += weight;
        last = i;
    }
    return last;
}

// logits (vocab_size), without padding; top_k 0, or vocab_size and more: all; coin uniform in [0, 1)
static inline int sample_token(const float *logits, int vocab_size, double temperature, int top_k, double coin) {
    int best = sampler_argmax(logits, vocab_size);
    if (!(temperature > 0)) { return best; }
    int kept = top_k > 0 && top_k < vocab_size ? top_k : vocab_size;
    SamplerCut cut = sampler_cut(logits, vocab_size, kept);
    double total, reached;
    sampler_walk(logits, vocab_size, temperature, logits[best], cut, (double)INFINITY, &total);
    return sampler_walk(logits, vocab_size, temperature, logits[best], cut, coin * total, &reached);
}
