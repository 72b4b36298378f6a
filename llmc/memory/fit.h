/*
--fit: the fastest ModelOptions whose memory plan fits into a number of bytes. The candidates are combinations of
  -b          every micro-batch that divides the update
  -r, -rn     every level, with the fewest blocks that fit
  -rk         at -r 4 also the segment that needs the fewest bytes
  -lc         the given value and 64
  -w -om -gd  every type
The memory plan of a candidate gives its exact bytes. The time of an update of n tokens with -tp t is an estimate:
  seconds = n (6 N + 6 L C T + recomputed) / t / (matmul rate) + (bytes moved) / (memory rate)
          + (bytes sent) / (link rate) + (launches) (time of a launch)
    N           parameters of matmuls; a token attends to T/2 positions on average
    recomputed  FLOPs per token: 8 C^2 per block from -r 3 on, 8 C^2 + 2 C T more at -r 4, 8 C^2 more inside a segment
    activations 108 C bytes per block and token in bf16: forward and backward read and write each tensor once.
                16 C more to recompute GELU, 8 C the layernorms, 20 C a block. Tensor parallelism divides them by t
    parameters  every micro-batch reads the weights and writes or adds to the gradients; every update reads and writes
                the optimizer state that this rank stores
    sent        bytes to other ranks (gpt2_sent_bytes), as if no computation overlapped them
  A matmul of R rows reaches R / (R + FIT_HALF_RATE) of the matmul rate.
A lower precision must pay for itself. The weighted time is longer by FIT_LOSS with bf16 moments, 3 FIT_LOSS with 8-bit
moments, 10 FIT_LOSS without a master copy, and FIT_LOSS with bf16 gradients of fp32 weights, of several micro-batches
or of more than 16 logits chunks.
Only ratios of times matter. The rates are rounded figures of the backend (backend.h).
defines: FitFree, Fit, fit_seconds, fit_choose, FIT_PARTS, fit_take
*/
#pragma once
#include "llmc/memory/gpt2_plan.h"
#include "llmc/memory/traffic.h"

// the fields of ModelOptions that --fit may change; the other fields stay as they are
typedef struct {
    bool micro_batch, recompute, every, layers, classifier, master, moments, gradients;
} FitFree;

typedef struct {
    ModelOptions options;
    size_t bytes;              // of the memory plan
    double seconds, weighted;  // estimated time of an update; weighted by the loss of precision
} Fit;

#define FIT_HALF_RATE 512.0
#define FIT_LOSS 0.03

// FLOPs per token that the backward recomputes
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

// bytes of activations read and written per token
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

// bytes of weights and gradients read and written per micro-batch
static inline double fit_weight_bytes(const GPT2Config *c, const ModelOptions *p) {
    ParamLayout layout = param_layout_sharded(c, p->sharding);
    double total = (double)layout.total, grad = (double)dtype_size(p->gradients);
    double classifier = (double)options_local_shape(c, p).vocab * c->channels;
    double chunks = ceil((double)p->B * p->T / logits_chunk(c, p));
    double writes = p->micro_steps > 1 ? 2 : 1;
    return total * (2 * sizeof(floatX) + writes * grad) + (chunks - 1) * classifier * (2 * sizeof(floatX) + 2 * grad);
}

// bytes read and written by the norm and AdamW: gradients twice, weights, master, moments
static inline double fit_update_bytes(const GPT2Config *c, const ModelOptions *p) {
    double master = p->master == MASTER_FP32 ? 8 : p->master == MASTER_SPLIT ? 4 : 0;
    double moments = 4 * (double)dtype_size(p->moments), grads = 2 * (double)dtype_size(p->gradients);
    ParamLayout layout = param_layout_sharded(c, p->sharding);
    double updated = (double)(p->sharding.stage < 1 ? layout.total : layout.shard);
    return updated * (2 * sizeof(floatX) + master + moments + grads);
}

// Bytes that rank 0 sends per update. Every rank uses rank 0's number, so all ranks make the same choice.
static inline double fit_sent_bytes(const GPT2Config *c, ModelOptions p) {
    p.sharding.dp_rank = 0;
    p.sharding.tp_rank = 0;
    return (double)gpt2_sent_bytes(c, &p);
}

// estimated seconds of an update
static inline double fit_seconds(const GPT2Config *c, const ModelOptions *p) {
    const double launches_of_block = 30;
    const Backend *backend = p->backend;
    double rows = (double)p->B * p->T, tokens = rows * p->micro_steps, C = c->channels;
    double multiplied = (double)num_parameters(c) - (double)c->max_seq_len * C;
    double flops = 6 * multiplied + 6 * C * c->num_layers * p->T + fit_recomputed_flops(c, p);
    double bytes =
        tokens * fit_activation_bytes(c, p) + p->micro_steps * fit_weight_bytes(c, p) + fit_update_bytes(c, p);
    double launches = (double)p->micro_steps * launches_of_block * c->num_layers;
    double matmuls =
        tokens * flops / options_local_shape(c, p).tp_size / backend->flop_rate * (rows + FIT_HALF_RATE) / rows;
    return matmuls + bytes / backend->memory_rate + fit_sent_bytes(c, *p) / backend->link_rate +
           launches * backend->launch_seconds;
}

static inline Fit fit_of(const GPT2Config *c, const ModelOptions *p) {
    Fit fit = {*p, gpt2_plan_bytes(c, p), fit_seconds(c, p), 0};
    int64_t chunks = ((int64_t)p->B * p->T - 1) / logits_chunk(c, p) + 1;  // wte's gradient is a sum over the chunks
    bool sums_round = p->gradients == DT_BF16 &&
                      ((p->micro_steps > 1 && p->sharding.stage < 2) || chunks > 16 || DT_FLOATX != DT_BF16);
    int lost = (p->moments == DT_BF16) + 3 * (p->moments == DT_U8) + sums_round;
    bool weights_round = DT_FLOATX == DT_BF16 && p->master == MASTER_NONE;
    fit.weighted = fit.seconds * (1 + FIT_LOSS * (lost + 10 * weights_round));
    return fit;
}

// *best = the faster of two candidates that fit; while none fits, the smaller one
static inline void fit_consider(Fit *best, const GPT2Config *c, const ModelOptions *p, size_t budget) {
    Fit fit = fit_of(c, p);
    bool fits = fit.bytes <= budget, best_fits = best->bytes <= budget;
    if (fits != best_fits ? fits : fits ? fit.weighted < best->weighted : fit.bytes < best->bytes) { *best = fit; }
}

// Fewest blocks to recompute so that the plan fits. Each further block costs time and saves bytes.
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
        p.recompute.every = given.every;
        p.recompute.layers = given.layers;
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
        p.master = masters[master];
        p.moments = moments[moment];
        p.gradients = gradients[rest % 2];
        p.classifier_rows = classifier[rest / 2];
        fit_levels(best, c, p, may, budget);
    }
}

// The fastest options for wanted.B x wanted.micro_steps sequences per update in at most `budget` bytes. If none fit,
// the smallest options. gradients_of: the type of gradients without -gd.
static inline Fit fit_choose(const GPT2Config *c, ModelOptions wanted, const FitFree *may, size_t budget,
                             DType (*gradients_of)(int micro_steps, int stage)) {
    Fit best = fit_of(c, &wanted);
    int64_t sequences = (int64_t)wanted.B * wanted.micro_steps, most = INT_MAX / wanted.T;
    for (int64_t B = 1; B <= sequences && B <= most; B++) {
        ModelOptions p = wanted;
        if (sequences % B != 0 || sequences / B > INT_MAX || (!may->micro_batch && B != wanted.B)) { continue; }
        p.B = (int)B;
        p.micro_steps = (int)(sequences / B);
        if (may->gradients) { p.gradients = gradients_of(p.micro_steps, p.sharding.stage); }
        fit_states(&best, c, p, may, budget);
    }
    return best;
}

// ---- parts of a choice

// parts of ModelOptions; --fit chooses the flags of a part together
enum { FIT_MICRO_BATCH, FIT_RECOMPUTE, FIT_CLASSIFIER, FIT_MASTER, FIT_MOMENTS, FIT_GRADIENTS, FIT_PARTS };

// copies one part from *from to *to
static inline void fit_take(ModelOptions *to, const ModelOptions *from, int part) {
    switch (part) {
    case FIT_MICRO_BATCH:
        to->B = from->B;
        to->micro_steps = from->micro_steps;
        return;
    case FIT_RECOMPUTE: to->recompute = from->recompute; return;
    case FIT_CLASSIFIER: to->classifier_rows = from->classifier_rows; return;
    case FIT_MASTER: to->master = from->master; return;
    case FIT_MOMENTS: to->moments = from->moments; return;
    case FIT_GRADIENTS: to->gradients = from->gradients; return;
    }
}
