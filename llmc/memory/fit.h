/*
--fit and -r auto: ModelOptions whose memory plan fits into a number of bytes.
-r auto takes the first level of -r that fits, for all blocks, and then the largest logits chunk that fits. -r 0 fuses
GELU where can_fuse_gelu.
--fit takes the fastest candidate. The candidates are combinations of
  -b          every micro-batch that divides the update
  -r, -rn     every level, with the fewest blocks that fit
  -rk         at -r 4 also the segment that needs the fewest bytes
  -ge         1 with -r 0 where can_fuse_gelu
  -lc         the given value and 64; on a GPU also the chunks of -r auto
  -w -om -gd  every type
  --offload   1 to 4 on a GPU, if nothing fits at the given stage and the host has room
The memory plan of a candidate gives its exact bytes. The time of an update of n tokens with -tp t is an estimate:
  seconds = n (FLOPs per token) / t / (matmul rate) + (bytes moved) / (memory rate)
          + (bytes sent) / (link rate) + (launches) (time of a launch)
    FLOPs       those of flops.h, recomputation included
    activations 108 C bytes per block and token in bf16: forward and backward read and write each tensor once.
                16 C more to recompute GELU, 8 C the layernorms, 20 C a block. 8 C less with the fused GELU. Tensor
                parallelism divides them by t
    parameters  every micro-batch reads the weights and writes or adds to the gradients; every update reads and writes
                the optimizer state that this rank stores
    sent        bytes to other ranks (gpt2_sent_bytes), as if no computation overlapped them
  With --offload, copies run beside the computation: a micro-step takes the longest of its computation, its copies to
  the device and its copies to the host, and so does the update (traffic.h).
  A matmul of R rows reaches R / (R + FIT_HALF_RATE) of the matmul rate.
A lower precision must pay for itself. The weighted time is longer by FIT_LOSS with bf16 moments, 3 FIT_LOSS with 8-bit
moments, 10 FIT_LOSS without a master copy, and FIT_LOSS with bf16 gradients of fp32 weights, of several micro-batches
or of more than 16 logits chunks.
Only ratios of times matter. The rates are rounded figures of the backend (backend.h).
defines: FitFree, on_gpu, can_fuse_gelu, largest_chunk, least_recomputation, Fit, fit_seconds, fit_of, fit_fits,
         fit_choose, FIT_PARTS, fit_take
*/
#pragma once
#include "llmc/memory/flops.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/memory/traffic.h"
#include <limits.h>

// the fields of ModelOptions that --fit may change, while the other fields stay as they are; and the bytes of host
// memory that --offload may take
typedef struct {
    bool micro_batch, recompute, every, layers, fuse_gelu, classifier, master, moments, gradients, offload;
    size_t host;
} FitFree;

// ---- -r auto

static inline bool on_gpu(const ModelOptions *o) { return o->backend->device != &cpu_device; }

// True where fusing GELU pays: cuBLASLt's is accurate enough for bf16, and faster on sm_90, sm_100 and sm_103. Before
// sm_90 cuBLASLt has no such kernel in bf16 (llm.c's pull requests 338 and 591), and a second kernel applies GELU with
// more traffic than gelu_forward. On sm_120 the epilogue takes 20 % longer than both (SGLang's pull request 34350).
static inline bool can_fuse_gelu(const ModelOptions *o) {
    return DT_FLOATX == DT_BF16 && (o->capability == 90 || o->capability == 100 || o->capability == 103);
}

// Fewest logits chunks of at most MAX_CHUNK rows. Fewer chunks read and write wte and its gradient less often. More
// rows than MAX_CHUNK save little: the logits of 16384 rows already take 1.5 GiB.
static inline int64_t fewest_chunks(const ModelOptions *o) {
    enum { MAX_CHUNK = 16384 };
    return ((int64_t)o->B * o->T + MAX_CHUNK - 1) / MAX_CHUNK;
}

// -lc of the largest logits chunk that fits: an equal part of the micro-batch. 0: none that fits is larger than the
// chunk without -lc. A CPU keeps that chunk: larger ones are not measured there.
static inline int largest_chunk(const GPT2Config *c, ModelOptions o, size_t budget) {
    int64_t rows = (int64_t)o.B * o.T;
    o.classifier_rows = 0;
    int usual = logits_chunk(c, &o);
    for (int64_t chunks = fewest_chunks(&o); on_gpu(&o) && equal_chunk(rows, chunks) > usual; chunks *= 2) {
        o.classifier_rows = (int)equal_chunk(rows, chunks);
        if (gpt2_plan_bytes(c, &o) <= budget) { return o.classifier_rows; }
    }
    return 0;
}

// The options with the least recomputation that fits in `budget` bytes; -r 4 if none fits. Recomputation of GELU
// differs from the fused GELU in the last bit, so only -r 0 fuses.
static inline ModelOptions least_recomputation(const GPT2Config *c, ModelOptions o, const FitFree *may, size_t budget) {
    Recompute r = {0, 1, c->num_layers, o.recompute.offload_inputs};
    for (o.recompute = r; o.recompute.level < RECOMPUTE_BLOCK; o.recompute.level++) {
        if (gpt2_plan_bytes(c, &o) <= budget) { break; }
    }
    if (may->fuse_gelu) { o.fuse_gelu = o.recompute.level == 0 && can_fuse_gelu(&o); }
    if (may->classifier) { o.classifier_rows = largest_chunk(c, o, budget); }
    return o;
}

// ---- the estimate of --fit

typedef struct {
    ModelOptions options;
    size_t bytes;              // of the memory plan, on the device
    size_t host;               // of --offload in host memory
    double seconds, weighted;  // estimated time of an update; weighted by the loss of precision
} Fit;

#define FIT_HALF_RATE 512.0
#define FIT_LOSS 0.03

// bytes of activations read and written per token
static inline double fit_activation_bytes(const GPT2Config *c, const ModelOptions *p) {
    double C = c->channels, elements = 0;
    for (int l = 0; l < c->num_layers; l++) {
        int level = layer_level(&p->recompute, l);
        elements += 54 * C;
        if (p->fuse_gelu && can_fuse_gelu(p)) { elements -= 4 * C; }  // fch is not read again
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

// seconds of a micro-step without copies
static inline double fit_micro_step_seconds(const GPT2Config *c, const ModelOptions *p) {
    const double launches_of_block = 30;
    const Backend *backend = p->backend;
    double rows = (double)p->B * p->T, flops = rows * step_flops_per_token(c, &p->recompute, p->T);
    double bytes = rows * fit_activation_bytes(c, p) + fit_weight_bytes(c, p);
    double matmuls = flops / options_local_shape(c, p).tp_size / backend->flop_rate * (rows + FIT_HALF_RATE) / rows;
    return matmuls + bytes / backend->memory_rate + launches_of_block * c->num_layers * backend->launch_seconds;
}

// estimated seconds of an update
static inline double fit_seconds(const GPT2Config *c, const ModelOptions *p) {
    double micro_step = fit_micro_step_seconds(c, p), update = fit_update_bytes(c, p) / p->backend->memory_rate;
    double sent = fit_sent_bytes(c, *p) / p->backend->link_rate;
    if (p->sharding.offload == 0) { return p->micro_steps * micro_step + update + sent; }
    double seconds = sent + fmax(update, link_seconds(update_link_bytes(c, p), p->host_link));
    for (int kind = 0; kind < MICRO_STEP_KINDS; kind++) {
        MicroSteps alike = micro_steps_alike(kind, p->micro_steps);
        LinkBytes copies = micro_step_link_bytes(c, p, alike.micro);
        seconds += alike.times * fmax(micro_step, link_seconds(copies, p->host_link));
    }
    return seconds;
}

static inline Fit fit_of(const GPT2Config *c, const ModelOptions *p) {
    PlanBytes bytes = gpt2_plan_both(c, p);
    Fit fit = {*p, bytes.device, bytes.host, fit_seconds(c, p), 0};
    int64_t chunks = ((int64_t)p->B * p->T - 1) / logits_chunk(c, p) + 1;  // wte's gradient is a sum over the chunks
    bool sums_round = p->gradients == DT_BF16 &&
                      ((p->micro_steps > 1 && p->sharding.stage < 2) || chunks > 16 || DT_FLOATX != DT_BF16);
    int lost = (p->moments == DT_BF16) + 3 * (p->moments == DT_U8) + sums_round;
    bool weights_round = DT_FLOATX == DT_BF16 && p->master == MASTER_NONE;
    fit.weighted = fit.seconds * (1 + FIT_LOSS * (lost + 10 * weights_round));
    return fit;
}

static inline bool fit_fits(const Fit *fit, const FitFree *may, size_t budget) {
    return fit->bytes <= budget && fit->host <= may->host;
}

// *best = the faster of two candidates that fit; while none fits, the smaller one on the device. The host must have
// room for a candidate.
static inline void fit_consider(Fit *best, const GPT2Config *c, const ModelOptions *p, const FitFree *may,
                                size_t budget) {
    Fit fit = fit_of(c, p);
    bool fits = fit_fits(&fit, may, budget), best_fits = fit_fits(best, may, budget);
    if (fit.host > may->host) { return; }
    bool smaller = fit.bytes < best->bytes || best->host > may->host;
    if (fits != best_fits ? fits : fits ? fit.weighted < best->weighted : smaller) { *best = fit; }
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

// every -r, -rk and -rn
static inline void fit_levels(Fit *best, const GPT2Config *c, ModelOptions p, const FitFree *may, size_t budget) {
    int first = may->recompute ? 0 : p.recompute.level, last = may->recompute ? (int)RECOMPUTE_BLOCK : first;
    Recompute given = p.recompute;
    for (p.recompute.level = first; p.recompute.level <= last; p.recompute.level++) {
        p.recompute.every = given.every;
        p.recompute.layers = given.layers;
        if (may->fuse_gelu) { p.fuse_gelu = p.recompute.level == 0 && can_fuse_gelu(&p); }
        if (may->layers) { p.recompute.layers = fit_layers(c, p, budget); }
        fit_consider(best, c, &p, may, budget);
        if (!may->every || p.recompute.level < RECOMPUTE_BLOCK) { continue; }
        p.recompute.layers = may->layers ? c->num_layers : given.layers;
        p.recompute.every = best_segment(c, p);
        fit_consider(best, c, &p, may, budget);
    }
}

// every -lc, -r, -rk and -rn
static inline void fit_chunks(Fit *best, const GPT2Config *c, ModelOptions p, const FitFree *may, size_t budget) {
    int64_t rows = (int64_t)p.B * p.T;
    int usual = logits_chunk(c, &p);
    fit_levels(best, c, p, may, budget);
    if (!may->classifier) { return; }
    p.classifier_rows = 64;
    fit_levels(best, c, p, may, budget);
    for (int64_t chunks = fewest_chunks(&p); on_gpu(&p) && equal_chunk(rows, chunks) > usual; chunks *= 2) {
        p.classifier_rows = (int)equal_chunk(rows, chunks);
        fit_levels(best, c, p, may, budget);
    }
}

static inline void fit_states(Fit *best, const GPT2Config *c, ModelOptions p, const FitFree *may, size_t budget) {
    const DType moments[] = {p.moments, DT_BF16, DT_U8}, gradients[] = {p.gradients, DT_BF16};
    const MasterKind masters[] = {p.master, MASTER_SPLIT, MASTER_NONE};
    int num_masters = may->master && DT_FLOATX == DT_BF16 ? 3 : 1;
    for (int i = 0; i < num_masters * 3 * 2; i++) {
        int master = i % num_masters, moment = i / num_masters % 3, gradient = i / num_masters / 3;
        if ((moment && !may->moments) || (gradient && !may->gradients)) { continue; }
        p.master = masters[master];
        p.moments = moments[moment];
        p.gradients = gradients[gradient];
        fit_chunks(best, c, p, may, budget);
    }
}

// every -b and all of the above
static inline void fit_batches(Fit *best, const GPT2Config *c, ModelOptions wanted, const FitFree *may, size_t budget,
                               DType (*gradients_of)(int micro_steps, int stage)) {
    int64_t sequences = (int64_t)wanted.B * wanted.micro_steps, most = INT_MAX / wanted.T;
    for (int64_t B = 1; B <= sequences && B <= most; B++) {
        ModelOptions p = wanted;
        if (sequences % B != 0 || sequences / B > INT_MAX || (!may->micro_batch && B != wanted.B)) { continue; }
        p.B = (int)B;
        p.micro_steps = (int)(sequences / B);
        if (may->gradients) { p.gradients = gradients_of(p.micro_steps, p.sharding.stage); }
        fit_states(best, c, p, may, budget);
    }
}

// The fastest options for wanted.B x wanted.micro_steps sequences per update in at most `budget` bytes. If none fit,
// the smallest options. gradients_of: the type of gradients without -gd.
static inline Fit fit_choose(const GPT2Config *c, ModelOptions wanted, const FitFree *may, size_t budget,
                             DType (*gradients_of)(int micro_steps, int stage)) {
    Fit best = fit_of(c, &wanted);
    fit_batches(&best, c, wanted, may, budget, gradients_of);
    if (!may->offload || !on_gpu(&wanted) || fit_fits(&best, may, budget)) { return best; }
    for (int stage = wanted.sharding.offload + 1; stage <= OFFLOAD_INPUTS; stage++) {
        options_set_offload(&wanted, stage);
        fit_batches(&best, c, wanted, may, budget, gradients_of);
    }
    return best;
}

// ---- parts of a choice

// parts of ModelOptions; --fit chooses the flags of a part together
enum {
    FIT_MICRO_BATCH,
    FIT_RECOMPUTE,
    FIT_FUSE_GELU,
    FIT_CLASSIFIER,
    FIT_MASTER,
    FIT_MOMENTS,
    FIT_GRADIENTS,
    FIT_OFFLOAD,
    FIT_PARTS
};

// copies one part from *from to *to
static inline void fit_take(ModelOptions *to, const ModelOptions *from, int part) {
    switch (part) {
    case FIT_MICRO_BATCH:
        to->B = from->B;
        to->micro_steps = from->micro_steps;
        return;
    case FIT_RECOMPUTE:
        to->recompute = from->recompute;
        options_set_offload(to, to->sharding.offload);
        return;
    case FIT_FUSE_GELU: to->fuse_gelu = from->fuse_gelu; return;
    case FIT_CLASSIFIER: to->classifier_rows = from->classifier_rows; return;
    case FIT_MASTER: to->master = from->master; return;
    case FIT_MOMENTS: to->moments = from->moments; return;
    case FIT_GRADIENTS: to->gradients = from->gradients; return;
    case FIT_OFFLOAD: options_set_offload(to, from->sharding.offload); return;
    }
}
