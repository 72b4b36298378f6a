/*
--fit: the fastest way to train that fits into a number of bytes, among combinations of every micro-batch that divides
the update, every -r with the fewest blocks (-rn) that fit, -r 4 also with the segment (-rk) that needs least, -lc as
given and 64, every -w, -om and -gd. Each is planned, which counts its bytes exactly, and its time estimated.
The estimate, in seconds an update of n tokens, of t slices (-tp):
  n (6 N + 6 L C T + rebuilt) / t / (rate of products) + (bytes moved) / (rate of memory)
  + (bytes sent) / (rate of links) + (launches) (time of one)
    N          parameters that are multiplied with;  T/2 positions are attended to on average
    rebuilt    FLOPs a token: 8 C^2 a block from level 3 on, 8 C^2 + 2 C T more at level 4, 8 C^2 more inside a segment
    bytes      activations 108 C a block and token (forward and backward, each tensor read and written where it is),
               16 C more for a rebuilt GELU, 4 C for each rebuilt layernorm, 20 C for a replayed block, of which
               a slice has 1/t; weights read and gradients written or added to in every micro-batch, and the
               optimizer's state once an update, of what the process has of them
    sent       to other processes, as if no work hid it (gpt2_sent_bytes)
  Products of few rows are slower: of R rows they reach R / (R + FIT_HALF_RATE) of the rate.
What loses precision is taken only for a gain: an update counts as slower by FIT_LOSS with bf16 moments, or with
bf16 gradients of fp32 weights, of several micro-batches or of many chunks of logits, by three times that with 8-bit
moments, by ten without a master copy.
Only ratios between choices matter; the rates are those of the backend (backend.h), rounded.
defines: FitFree, Fit, fit_seconds, fit_choose, FIT_PARTS, fit_take, fit_part_text, fit_flags_text
*/
#pragma once
#include "llmc/run/flags.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/parallel/traffic.h"

// which of a options's fields may be chosen; the others stay as they are
typedef struct {
    bool micro_batch, recompute, every, layers, classifier, master, moments, gradients;
} FitFree;

// a options, what it takes and how long an update is estimated to take
typedef struct {
    ModelOptions options;
    size_t bytes;
    double seconds, weighed;  // weighed: with what rounded states count for
} Fit;

#define FIT_HALF_RATE 512.0
#define FIT_LOSS 0.03

// FLOPs a token that are done again in the backward
static inline double fit_recomputed_flops(const GPT2Config *c, const ModelOptions *p) {
    const Recompute *r = &p->recompute;
    double C = c->channels, flops = 0;
    for (int l = 0; l < c->num_layers; l++) {
        int level = layer_level(r, l);
        if (level >= RECOMPUTE_UP_PROJECTION) { flops += 8 * C * C; }
        if (level >= RECOMPUTE_BLOCK) { flops += 8 * C * C + 2 * C * p->T; }
        if (level >= RECOMPUTE_BLOCK && segment_end(r, l) != l) { flops += 8 * C * C; }
    }
    return flops;
}

// bytes of activations a token that are read and written
static inline double fit_activation_bytes(const GPT2Config *c, const ModelOptions *p) {
    double C = c->channels, elements = 0;
    for (int l = 0; l < c->num_layers; l++) {
        int level = layer_level(&p->recompute, l);
        elements += 54 * C;
        if (level >= RECOMPUTE_GELU) { elements += 8 * C; }
        if (level >= RECOMPUTE_LAYERNORMS) { elements += 4 * C; }
        if (level >= RECOMPUTE_BLOCK) { elements += 10 * C; }
    }
    return elements * (double)sizeof(floatX) / options_local_shape(c, p).tp_size;
}

// bytes of weights and gradients that a micro-batch reads and writes
static inline double fit_weight_bytes(const GPT2Config *c, const ModelOptions *p) {
    ParamLayout layout = param_layout_sharded(c, p->sharding);
    double total = (double)layout.total, grad = (double)dtype_size(p->gradients);
    double classifier = (double)options_local_shape(c, p).vocab * c->channels;
    double chunks = ceil((double)p->B * p->T / logits_chunk(c, p));
    double writes = p->micro_steps > 1 ? 2 : 1;
    return total * (2 * sizeof(floatX) + writes * grad) + (chunks - 1) * classifier * (2 * sizeof(floatX) + 2 * grad);
}

// bytes of an update: gradients twice (the norm reads them as well), weights, master, moments
static inline double fit_update_bytes(const GPT2Config *c, const ModelOptions *p) {
    double master = p->master == MASTER_FP32 ? 8 : p->master == MASTER_SPLIT ? 4 : 0;
    double moments = 4 * (double)dtype_size(p->moments), grads = 2 * (double)dtype_size(p->gradients);
    ParamLayout layout = param_layout_sharded(c, p->sharding);
    double updated = (double)(p->sharding.stage < 1 ? layout.total : layout.shard);
    return updated * (2 * sizeof(floatX) + master + moments + grads);
}

// What the first rank sends for an update. All ranks estimate the same, so that all choose the same.
static inline double fit_sent_bytes(const GPT2Config *c, ModelOptions p) {
    p.sharding.dp_rank = 0;
    p.sharding.tp_rank = 0;
    return (double)gpt2_sent_bytes(c, &p);
}

// an estimate of the seconds of an update
static inline double fit_seconds(const GPT2Config *c, const ModelOptions *p) {
    const double launches_of_block = 30;
    const Backend *backend = p->backend;
    double rows = (double)p->B * p->T, tokens = rows * p->micro_steps, C = c->channels;
    double multiplied = (double)num_parameters(c) - (double)c->max_seq_len * C;
    double flops = 6 * multiplied + 6 * C * c->num_layers * p->T + fit_recomputed_flops(c, p);
    double bytes =
        tokens * fit_activation_bytes(c, p) + p->micro_steps * fit_weight_bytes(c, p) + fit_update_bytes(c, p);
    double launches = (double)p->micro_steps * launches_of_block * c->num_layers;
    double products =
        tokens * flops / options_local_shape(c, p).tp_size / backend->flop_rate * (rows + FIT_HALF_RATE) / rows;
    return products + bytes / backend->memory_rate + fit_sent_bytes(c, *p) / backend->link_rate +
           launches * backend->launch_seconds;
}

static inline Fit fit_of(const GPT2Config *c, const ModelOptions *p) {
    Fit fit = {*p, gpt2_plan_bytes(c, p), fit_seconds(c, p), 0};
    int64_t chunks = ((int64_t)p->B * p->T - 1) / logits_chunk(c, p) + 1;  // whose sums are wte's gradient
    bool sums_round = p->gradients == DT_BF16 &&
                      ((p->micro_steps > 1 && p->sharding.stage < 2) || chunks > 16 || DT_FLOATX != DT_BF16);
    int lost = (p->moments == DT_BF16) + 3 * (p->moments == DT_U8) + sums_round;
    bool weights_round = DT_FLOATX == DT_BF16 && p->master == MASTER_NONE;
    fit.weighed = fit.seconds * (1 + FIT_LOSS * (lost + 10 * weights_round));
    return fit;
}

// keeps in *best the faster one that fits, or while none does the smallest
static inline void fit_consider(Fit *best, const GPT2Config *c, const ModelOptions *p, size_t budget) {
    Fit fit = fit_of(c, p);
    bool fits = fit.bytes <= budget, best_fits = best->bytes <= budget;
    if (fits != best_fits ? fits : fits ? fit.weighed < best->weighed : fit.bytes < best->bytes) { *best = fit; }
}

// the fewest blocks at this level that fit: each more costs time and saves bytes
static inline int fit_layers(const GPT2Config *c, ModelOptions p, size_t budget) {
    int low = 0, high = c->num_layers;
    while (low < high) {
        p.recompute.layers = (low + high) / 2;
        if (gpt2_plan_bytes(c, &p) <= budget) {
            high = p.recompute.layers;
        } else {
            low = p.recompute.layers + 1;
        }
    }
    return low;
}

static inline void fit_levels(Fit *best, const GPT2Config *c, ModelOptions p, const FitFree *may, size_t budget) {
    int first = may->recompute ? 0 : p.recompute.level, last = may->recompute ? (int)RECOMPUTE_BLOCK : first;
    Recompute given = p.recompute;
    for (p.recompute.level = first; p.recompute.level <= last; p.recompute.level++) {
        p.recompute.every = given.every, p.recompute.layers = given.layers;
        if (may->layers) { p.recompute.layers = fit_layers(c, p, budget); }
        fit_consider(best, c, &p, budget);
        if (!may->every || p.recompute.level < RECOMPUTE_BLOCK) { continue; }
        p.recompute.layers = may->layers ? c->num_layers : given.layers;
        p.recompute.every = best_segment(c, p);
        fit_consider(best, c, &p, budget);
    }
}

static inline void fit_states(Fit *best, const GPT2Config *c, ModelOptions p, const FitFree *may, size_t budget) {
    const DType moments[] = {p.moments, DT_BF16, DT_U8}, gradients[] = {p.gradients, DT_BF16};
    const MasterKind masters[] = {p.master, MASTER_SPLIT, MASTER_NONE};
    const int classifier[] = {p.classifier_rows, 64};
    int num_masters = may->master && DT_FLOATX == DT_BF16 ? 3 : 1;
    for (int i = 0; i < num_masters * 3 * 2 * 2; i++) {
        int master = i % num_masters, moment = i / num_masters % 3, rest = i / num_masters / 3;
        if ((moment && !may->moments) || (rest % 2 && !may->gradients) || (rest / 2 && !may->classifier)) { continue; }
        p.master = masters[master], p.moments = moments[moment];
        p.gradients = gradients[rest % 2], p.classifier_rows = classifier[rest / 2];
        fit_levels(best, c, p, may, budget);
    }
}

// Of the ways to train on wanted.B x wanted.micro_steps sequences an update, the fastest that takes at most `budget`
// bytes; if there is none, the smallest. gradients_of says how gradients are kept by themselves for so many
// micro-batches.
static inline Fit fit_choose(const GPT2Config *c, ModelOptions wanted, const FitFree *may, size_t budget,
                             DType (*gradients_of)(int micro_steps, int stage)) {
    Fit best = fit_of(c, &wanted);
    int64_t sequences = (int64_t)wanted.B * wanted.micro_steps, most = INT_MAX / wanted.T;
    for (int64_t B = 1; B <= sequences && B <= most; B++) {
        ModelOptions p = wanted;
        if (sequences % B != 0 || sequences / B > INT_MAX || (!may->micro_batch && B != wanted.B)) { continue; }
        p.B = (int)B, p.micro_steps = (int)(sequences / B);
        if (may->gradients) { p.gradients = gradients_of(p.micro_steps, p.sharding.stage); }
        fit_states(&best, c, p, may, budget);
    }
    return best;
}

// ---- in words

// what is chosen together
typedef enum {
    FIT_MICRO_BATCH,
    FIT_RECOMPUTE,
    FIT_CLASSIFIER,
    FIT_MASTER,
    FIT_MOMENTS,
    FIT_GRADIENTS,
    FIT_PARTS
} FitPart;

// one part of `from` into *to
static inline void fit_take(ModelOptions *to, const ModelOptions *from, FitPart part) {
    switch (part) {
    case FIT_MICRO_BATCH: to->B = from->B, to->micro_steps = from->micro_steps; return;
    case FIT_RECOMPUTE: to->recompute = from->recompute; return;
    case FIT_CLASSIFIER: to->classifier_rows = from->classifier_rows; return;
    case FIT_MASTER: to->master = from->master; return;
    case FIT_MOMENTS: to->moments = from->moments; return;
    case FIT_GRADIENTS: to->gradients = from->gradients; return;
    case FIT_PARTS: return;
    }
}

// the index of a type among those of a flag's choices
static inline int type_index(const DType *types, DType type) {
    int i = 0;
    while (types[i] != type) { i++; }
    return i;
}

// the flags of one part: "-r 2 -rn 40". `size` of the text is FLAG_TEXT
static inline void fit_part_text(char *text, FitPart part, const ModelOptions *p, const GPT2Config *c) {
    const Recompute *r = &p->recompute;
    char word[FLAG_TEXT], more[FLAG_TEXT] = "";
    text[0] = 0;
    switch (part) {
    case FIT_MICRO_BATCH:
        snprintf(text, FLAG_TEXT, "-b %d -d %lld", p->B, (long long)p->B * p->T * p->micro_steps);
        return;
    case FIT_RECOMPUTE:
        if (r->level == RECOMPUTE_BLOCK && r->every > 1) { snprintf(more, sizeof more, " -rk %d", r->every); }
        if (r->level > 0 && r->layers < c->num_layers) {
            snprintf(more + strlen(more), sizeof more - strlen(more), " -rn %d", r->layers);
        }
        snprintf(text, FLAG_TEXT, "-r %d%.99s", r->level, more);
        return;
    case FIT_CLASSIFIER: snprintf(text, FLAG_TEXT, "-lc %d", p->classifier_rows); return;
    case FIT_MASTER:
        flag_choice_text(MASTER_CHOICES, (int)p->master, word);
        snprintf(text, FLAG_TEXT, "-w %.99s", word);
        return;
    case FIT_MOMENTS:
        flag_choice_text(MOMENT_CHOICES, type_index(moment_types, p->moments), word);
        snprintf(text, FLAG_TEXT, "-om %.99s", word);
        return;
    case FIT_GRADIENTS: snprintf(text, FLAG_TEXT, "-gd %s", p->gradients == DT_BF16 ? "bf16" : "fp32"); return;
    case FIT_PARTS: return;
    }
}

// the flags of all parts in which *p differs from *from: "-b 8 -d 8192 -r 2", or ""
static inline void fit_flags_text(char *text, const ModelOptions *p, const ModelOptions *from, const GPT2Config *c) {
    char part[FLAG_TEXT], was[FLAG_TEXT];
    text[0] = 0;
    for (int i = 0; i < FIT_PARTS; i++) {
        fit_part_text(part, (FitPart)i, p, c);
        fit_part_text(was, (FitPart)i, from, c);
        size_t length = strlen(text);
        if (strcmp(part, was) != 0) { snprintf(text + length, FLAG_TEXT - length, "%s%.99s", length ? " " : "", part); }
    }
}
