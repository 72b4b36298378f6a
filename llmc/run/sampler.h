/*
Draws the next token from a row of logits.
  p(i) = exp((logit(i) - max) / temperature) / sum, over the top_k highest logits, lower ids first among equals
  top_p below 1: of these, only the nucleus, the fewest of the likeliest tokens with a probability of top_p or more
  token: the first, in the order of ids, whose cumulative probability exceeds the random number
  temperature 0 or less: the highest logit, the lowest id among equals
A NaN counts as below -inf: it is drawn only if all logits are NaN. If the highest logit is +inf, only +inf is drawn.
The k-th highest logit is found by radix selection on its bits, four passes of 256 bins, without scratch memory. 50257
logits take seven passes over 200 KB, the last one partial, and at most two exponentials for each of the top_k tokens.
The nucleus is found the same way, with bins of weights: five more passes.
Source of the nucleus: Holtzman et al. 2020. The order temperature, top-k, top-p is that of Hugging Face transformers.
defines: sample_token
*/
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

// an integer key in the order of the logits; -0 equals +0, NaN has key 0, below all others
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

// The key of the k-th highest logit, 1 <= k <= vocab_size. The top k are all logits of a higher key and the first *ties
// of that key. Each pass finds one byte of the key, the highest first: `bins` count the next byte of all logits that
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

// probability of a token, times the sum of all weights; 1 for the highest logit
static inline double sampler_weight(float logit, float highest, double temperature) {
    // equality first: the difference of two infinities is a NaN
    return logit == highest ? 1 : exp(((double)logit - (double)highest) / temperature);
}

// Narrows the top tokens, as sampler_kth_key gives them, to the fewest of the likeliest that have a weight of `target`.
// Returns the key of the last one; *ties as in sampler_kth_key.
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
    if (last < kth_key) { return kth_key; }  // the weights of the top k may add up to less in this order
    int count = 0, most = last == kth_key ? *ties : vocab_size;
    for (int i = 0; i < vocab_size && count < most && above < target; i++) {
        if (sampler_key(logits[i]) != last) { continue; }
        above += sampler_weight(logits[i], highest, temperature);
        count++;
    }
    *ties = count;
    return last;
}

// Adds the weights of the top tokens, as sampler_kth_key gives them, in the order of ids until *sum exceeds `target`.
// Returns the last token added.
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

// logits (vocab_size), without padding; top_k: 0, or vocab_size and more, is all tokens; top_p: 1 or more is all of the
// top k; random: uniform in [0, 1)
static inline int sample_token(const float *logits, int vocab_size, double temperature, int top_k, double top_p,
                               double random) {
    int best = sampler_argmax(logits, vocab_size), ties;
    if (!(temperature > 0)) { return best; }
    int k = top_k > 0 && top_k < vocab_size ? top_k : vocab_size;
    uint32_t kth_key = sampler_kth_key(logits, vocab_size, k, &ties);
    double total, reached;
    sampler_walk(logits, vocab_size, temperature, logits[best], kth_key, ties, (double)INFINITY, &total);
    if (top_p < 1) {
        double target = fmax(top_p * total, 1);  // the weight of the likeliest token is 1, so the nucleus has a token
        kth_key = sampler_nucleus_key(logits, vocab_size, temperature, logits[best], kth_key, &ties, target);
        sampler_walk(logits, vocab_size, temperature, logits[best], kth_key, ties, (double)INFINITY, &total);
    }
    return sampler_walk(logits, vocab_size, temperature, logits[best], kth_key, ties, random * total, &reached);
}
