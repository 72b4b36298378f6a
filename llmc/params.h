/*
The model's shape and its parameters: one table row a tensor, one flat block laid out layer by layer; and who keeps which
part of it, where several processes train one model.
defines: GPT2Config, config_head_size, config_check, config_from_descriptor, ParamId, ParamSpec, param_specs, Shards,
         ParamLayout, param_layout, param_layout_among, param_offset, param_rows, param_cols, param_name,
         param_init_tensor, num_param_tensors, num_parameters, Bucket, num_buckets, param_bucket, layer_bucket,
         bucket_buffer, bucket_buffers, ParamPiece, param_own_piece, param_kept_piece, bucket_spans

Layout      wte, wpe, then the 12 tensors of layer 0, of layer 1, ..., then lnf: a layer is one contiguous run. Every
            tensor starts at a multiple of PARAM_ALIGN elements; the gaps are zero and stay zero.
Buckets     wte and wpe, each layer, and lnf are a bucket each: what is sent at once. Among N ranks a bucket is N chunks
            of equal size, a multiple of PARAM_ALIGN, so it ends with a gap where N does not divide it. Rank r owns its
            chunk r. A rank that keeps only what it owns (Shards) has these chunks one after another: its shard.
Names       Hugging Face's (h.3.attn.c_attn.weight). Its four matmul weights are stored there as (in, out), here as
            (out, in).
Init        normal 0.02; residual projections 0.02 / sqrt(2L); biases 0; layernorm weights 1 (Radford et al. 2019). A
            value depends on the seed, the tensor and the element alone, so neither threads nor a sharding change it.
*/
#pragma once
#include "check.h"
#include "floatx.h"
#include "ops.h"
#include "rng.h"

typedef struct {
    int max_seq_len;        // maxT: positions that wpe has
    int vocab_size;         // V
    int padded_vocab_size;  // Vp: V rounded up to VOCAB_PADDING
    int num_layers;         // L
    int num_heads;          // NH
    int channels;           // C
} GPT2Config;

enum { VOCAB_PADDING = 128, GPT2_VOCAB = 50257, PARAM_ALIGN = MOMENT_BLOCK, MAX_HEAD_SIZE = 256 };
#define MAX_PARAMETERS 0x1p40  // a size whose bytes still fit every product below

static inline int config_head_size(const GPT2Config *c) { return c->channels / c->num_heads; }

static inline void config_set_vocab(GPT2Config *c, int vocab_size) {
    c->vocab_size = vocab_size;
    c->padded_vocab_size = (vocab_size + VOCAB_PADDING - 1) / VOCAB_PADDING * VOCAB_PADDING;
}

// stops unless the shape can be built; `where` names the flag or file it came from
static inline void config_check(const GPT2Config *c, const char *where) {
    if (c->num_layers < 1 || c->num_heads < 1 || c->channels < 1 || c->max_seq_len < 1 || c->vocab_size < 1) {
        input_error(
            "%s: a model needs at least one layer, head, channel, position and token; found %d, %d, %d, %d and %d",
            where, c->num_layers, c->num_heads, c->channels, c->max_seq_len, c->vocab_size);
    }
    if (c->channels % c->num_heads != 0) {
        input_error("%s: %d heads do not divide %d channels; choose channels that are a multiple of the heads", where,
                    c->num_heads, c->channels);
    }
    if (config_head_size(c) > MAX_HEAD_SIZE) {
        input_error("%s: a head of %d channels is more than the %d supported; use more heads", where,
                    config_head_size(c), MAX_HEAD_SIZE);
    }
    double C = c->channels, parameters = 12 * C * C * c->num_layers + C * ((double)c->vocab_size + c->max_seq_len);
    if (parameters > MAX_PARAMETERS) {
        input_error("%s: a model of %.2g parameters is more than the %.2g supported; use fewer layers or channels",
                    where, parameters, MAX_PARAMETERS);
    }
}

// one known model: descriptor, layers, heads, channels, positions
typedef struct {
    const char *name;
    int num_layers, num_heads, channels, max_seq_len;
} KnownModel;

// d12 24 36 48 are GPT-2's sizes, 124M 350M 774M 1558M; the other depths are llm.c's; gpt3 is table 2.1 of Brown et al.
// 2020
static const KnownModel known_models[] = {
    {"d6", 6, 6, 384, 1024},
    {"d12", 12, 12, 768, 1024},
    {"d24", 24, 16, 1024, 1024},
    {"d36", 36, 20, 1280, 1024},
    {"d48", 48, 25, 1600, 1024},
    {"d60", 60, 30, 1920, 1024},
    {"d72", 72, 30, 2880, 1024},
    {"d84", 84, 36, 3456, 1024},
    {"gpt3:c384", 6, 6, 384, 2048},
    {"gpt3:c768", 12, 12, 768, 2048},
    {"gpt3:c1024", 24, 16, 1024, 2048},
    {"gpt3:c1536", 24, 16, 1536, 2048},
    {"gpt3:c2048", 24, 16, 2048, 2048},
    {"gpt3:c2560", 32, 32, 2560, 2048},
    {"gpt3:c4096", 32, 32, 4096, 2048},
    {"gpt3:c5120", 40, 40, 5120, 2048},
    {"gpt3:c12288", 96, 96, 12288, 2048},
};
enum { NUM_KNOWN_MODELS = sizeof known_models / sizeof known_models[0] };

// Fills *c from "d12", "gpt2:d12", "gpt3:c768" (GPT-2's vocabulary) or "l4h4c128" (data_vocab tokens, max_seq_len
// positions). Returns false where the word is no descriptor, so that it may be a path.
static inline bool config_from_descriptor(GPT2Config *c, const char *word, int data_vocab, int max_seq_len) {
    const char *name = strncmp(word, "gpt2:", 5) == 0 ? word + 5 : word;
    for (int i = 0; i < NUM_KNOWN_MODELS; i++) {
        const KnownModel *m = &known_models[i];
        if (strcmp(name, m->name) != 0) { continue; }
        c->num_layers = m->num_layers, c->num_heads = m->num_heads, c->channels = m->channels;
        c->max_seq_len = m->max_seq_len;
        config_set_vocab(c, GPT2_VOCAB);
        return true;
    }
    int layers, heads, channels, end = 0;
    if (sscanf(word, "l%6dh%6dc%6d%n", &layers, &heads, &channels, &end) != 3 || word[end]) { return false; }
    c->num_layers = layers, c->num_heads = heads, c->channels = channels, c->max_seq_len = max_seq_len;
    config_set_vocab(c, data_vocab);
    return true;
}

typedef enum {
    WTE,
    WPE,
    LN1W,
    LN1B,
    QKVW,
    QKVB,
    ATTPROJW,
    ATTPROJB,
    LN2W,
    LN2B,
    FCW,
    FCB,
    FCPROJW,
    FCPROJB,
    LNFW,
    LNFB,
    NUM_PARAM_TENSORS,
    FIRST_LAYER_PARAM = LN1W,
    LAST_LAYER_PARAM = FCPROJB
} ParamId;

// what a dimension of a tensor is counted in
typedef enum { DIM_ONE, DIM_VP, DIM_MAXT, DIM_C, DIM_3C, DIM_4C } Dim;
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_NORMAL_RESIDUAL } Init;

typedef struct {
    const char *name;  // Hugging Face's, without the layer's prefix
    Dim rows, cols;
    Init init;
    bool decay;       // weight decay: 2-D tensors
    bool transposed;  // stored the other way round in Hugging Face's files
} ParamSpec;

static const ParamSpec param_specs[NUM_PARAM_TENSORS] = {
    {"wte.weight", DIM_VP, DIM_C, INIT_NORMAL, true, false},
    {"wpe.weight", DIM_MAXT, DIM_C, INIT_NORMAL, true, false},
    {"ln_1.weight", DIM_ONE, DIM_C, INIT_ONE, false, false},
    {"ln_1.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false},
    {"attn.c_attn.weight", DIM_3C, DIM_C, INIT_NORMAL, true, true},
    {"attn.c_attn.bias", DIM_ONE, DIM_3C, INIT_ZERO, false, false},
    {"attn.c_proj.weight", DIM_C, DIM_C, INIT_NORMAL_RESIDUAL, true, true},
    {"attn.c_proj.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false},
    {"ln_2.weight", DIM_ONE, DIM_C, INIT_ONE, false, false},
    {"ln_2.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false},
    {"mlp.c_fc.weight", DIM_4C, DIM_C, INIT_NORMAL, true, true},
    {"mlp.c_fc.bias", DIM_ONE, DIM_4C, INIT_ZERO, false, false},
    {"mlp.c_proj.weight", DIM_C, DIM_4C, INIT_NORMAL_RESIDUAL, true, true},
    {"mlp.c_proj.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false},
    {"ln_f.weight", DIM_ONE, DIM_C, INIT_ONE, false, false},
    {"ln_f.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false},
};

static inline bool param_is_layered(ParamId id) { return id >= FIRST_LAYER_PARAM && id <= LAST_LAYER_PARAM; }

// how many tensors `id` stands for
static inline int param_layers(ParamId id, const GPT2Config *c) { return param_is_layered(id) ? c->num_layers : 1; }

static inline size_t dim_size(Dim dim, const GPT2Config *c) {
    switch (dim) {
    case DIM_VP: return (size_t)c->padded_vocab_size;
    case DIM_MAXT: return (size_t)c->max_seq_len;
    case DIM_C: return (size_t)c->channels;
    case DIM_3C: return 3 * (size_t)c->channels;
    case DIM_4C: return 4 * (size_t)c->channels;
    default: return 1;
    }
}

// shape in memory, padding included
static inline size_t param_rows(ParamId id, const GPT2Config *c) { return dim_size(param_specs[id].rows, c); }
static inline size_t param_cols(ParamId id, const GPT2Config *c) { return dim_size(param_specs[id].cols, c); }

// rows that mean something: all but the vocabulary's padding
static inline size_t param_used_rows(ParamId id, const GPT2Config *c) {
    return id == WTE ? (size_t)c->vocab_size : param_rows(id, c);
}

// "h.3.ln_1.weight" or "wte.weight" into name
static inline void param_name(char *name, size_t size, ParamId id, int layer) {
    if (param_is_layered(id)) {
        snprintf(name, size, "h.%d.%s", layer, param_specs[id].name);
    } else {
        snprintf(name, size, "%s", param_specs[id].name);
    }
}

// -z: what a rank keeps of the state of a model that `ranks` processes train, each on other data
typedef struct {
    int ranks, rank;  // 0 ranks are 1: a process alone
    int stage;        // 0: everything. Else what it owns of: 1 the optimizer's state; 2 gradients too; 3 parameters too
} Shards;

enum { EMBEDDINGS_BUCKET, LAYER_BUCKET, FINAL_BUCKET, BUCKET_KINDS };

// of each kind of bucket, and past the last
static const int bucket_first_param[] = {0, FIRST_LAYER_PARAM, LAST_LAYER_PARAM + 1, NUM_PARAM_TENSORS};

typedef struct {
    Shards shards;  // at least 1 rank
    int num_layers;
    size_t offset[NUM_PARAM_TENSORS];  // in elements, of layer 0 where layered
    size_t layer_stride;               // elements from a layer to the next
    size_t chunk[BUCKET_KINDS];        // of a bucket of each kind
    size_t total;                      // elements of the block, gaps included
    size_t shard;                      // elements of a rank's shard: total / ranks
} ParamLayout;

static inline size_t param_align(size_t count) { return (count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN; }

static inline ParamLayout param_layout_among(const GPT2Config *c, Shards shards) {
    ParamLayout layout;
    layout.shards = shards;
    if (shards.ranks < 1) { layout.shards.ranks = 1; }
    layout.num_layers = c->num_layers;
    layout.total = layout.shard = 0;
    size_t ranks = (size_t)layout.shards.ranks;
    for (int kind = 0; kind < BUCKET_KINDS; kind++) {
        size_t size = 0, buckets = kind == LAYER_BUCKET ? (size_t)c->num_layers : 1;
        for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
            layout.offset[id] = layout.total + size;
            size += param_align(param_rows((ParamId)id, c) * param_cols((ParamId)id, c));
        }
        layout.chunk[kind] = param_align((size + ranks - 1) / ranks);
        layout.shard += layout.chunk[kind] * buckets;
        layout.total += layout.chunk[kind] * ranks * buckets;
    }
    layout.layer_stride = layout.chunk[LAYER_BUCKET] * ranks;
    return layout;
}

// of a process alone
static inline ParamLayout param_layout(const GPT2Config *c) {
    const Shards alone = {1, 0, 0};
    return param_layout_among(c, alone);
}

static inline size_t param_offset(const ParamLayout *layout, ParamId id, int layer) {
    return layout->offset[id] + (param_is_layered(id) ? layout->layer_stride * (size_t)layer : 0);
}

// parameters that are trained: without the vocabulary's padding and the gaps
static inline size_t num_parameters(const GPT2Config *c) {
    size_t count = 0;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        count += param_used_rows(p, c) * param_cols(p, c) * (size_t)param_layers(p, c);
    }
    return count;
}

// GPT-2's initial value of element i of a tensor
static inline real param_init_value(ParamId id, int layer, size_t i, const GPT2Config *c, uint64_t seed) {
    switch (param_specs[id].init) {
    case INIT_ONE: return 1;
    case INIT_NORMAL: return (real)(0.02 * rng_normal(seed, (uint64_t)layer * NUM_PARAM_TENSORS + (uint64_t)id, i));
    case INIT_NORMAL_RESIDUAL:
        return (real)(0.02 / sqrt(2.0 * c->num_layers) *
                      rng_normal(seed, (uint64_t)layer * NUM_PARAM_TENSORS + (uint64_t)id, i));
    default: return 0;
    }
}

// out (count) = the initial values of elements first.. of one tensor, (param_used_rows,cols)
static inline void param_init_tensor(real *out, ParamId id, int layer, size_t first, size_t count, const GPT2Config *c,
                                     uint64_t seed) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i++) { out[i] = param_init_value(id, layer, first + i, c, seed); }
}

enum { LAYER_PARAMS = LAST_LAYER_PARAM - FIRST_LAYER_PARAM + 1 };

static inline int num_param_tensors(const GPT2Config *c) {
    return NUM_PARAM_TENSORS + (c->num_layers - 1) * LAYER_PARAMS;
}

// ---- buckets: 0 is the embeddings', then each layer's, then lnf's

// elements, in the block
typedef struct {
    size_t begin, chunk;
    size_t size;   // of all ranks' chunks
    size_t own;    // where this rank's chunk begins
    size_t shard;  // where that is in its shard
} Bucket;

static inline int num_buckets(const ParamLayout *layout) { return layout->num_layers + 2; }
static inline int layer_bucket(int layer) { return layer + 1; }

static inline int bucket_kind(const ParamLayout *layout, int bucket) {
    return bucket == 0 ? EMBEDDINGS_BUCKET : bucket <= layout->num_layers ? LAYER_BUCKET : FINAL_BUCKET;
}

static inline Bucket param_bucket(const ParamLayout *layout, int bucket) {
    const size_t *chunk = layout->chunk, ranks = (size_t)layout->shards.ranks;
    int kind = bucket_kind(layout, bucket);
    size_t layers = bucket == 0 ? 0 : (size_t)bucket - 1;  // in the buckets before it
    Bucket b;
    b.chunk = chunk[kind];
    b.size = b.chunk * ranks;
    b.shard = bucket == 0 ? 0 : chunk[EMBEDDINGS_BUCKET] + layers * chunk[LAYER_BUCKET];
    b.begin = b.shard * ranks;
    b.own = b.begin + b.chunk * (size_t)layout->shards.rank;
    return b;
}

// Buffers for buckets that are not kept: one for the embeddings', two that layers take in turn, one for lnf's. Where a
// bucket's begins, from the first.
static inline size_t bucket_buffer(const ParamLayout *layout, int bucket) {
    size_t ranks = (size_t)layout->shards.ranks, pair = layout->num_layers < 2 ? 1 : 2;
    switch (bucket_kind(layout, bucket)) {
    case EMBEDDINGS_BUCKET: return 0;
    case LAYER_BUCKET: return ranks * (layout->chunk[0] + (size_t)(bucket - 1) % 2 * layout->chunk[LAYER_BUCKET]);
    default: return ranks * (layout->chunk[0] + pair * layout->chunk[LAYER_BUCKET]);
    }
}

// elements of all these buffers
static inline size_t bucket_buffers(const ParamLayout *layout) {
    return bucket_buffer(layout, layout->num_layers + 1) + layout->chunk[FINAL_BUCKET] * (size_t)layout->shards.ranks;
}

// the bucket of a tensor
static inline int param_bucket_of(const ParamLayout *layout, ParamId id, int layer) {
    return param_is_layered(id) ? layer_bucket(layer) : id < FIRST_LAYER_PARAM ? 0 : layout->num_layers + 1;
}

// ---- pieces

// elements [first, first + count) of a tensor, and where a rank has them
typedef struct {
    size_t first, count;
    size_t params, state;  // the first of them, in its parameters and in its optimizer's state
} ParamPiece;

// what this rank owns of a tensor's first `used` elements; count may be 0
static inline ParamPiece param_own_piece(const ParamLayout *layout, ParamId id, int layer, size_t used) {
    Bucket b = param_bucket(layout, param_bucket_of(layout, id, layer));
    size_t tensor = param_offset(layout, id, layer), end = tensor + used, own_end = b.own + b.chunk;
    size_t from = tensor > b.own ? tensor : b.own, to = end < own_end ? end : own_end;
    ParamPiece piece = {0, 0, 0, 0};
    if (from >= to) { return piece; }
    size_t in_shard = b.shard + from - b.own;
    piece.first = from - tensor, piece.count = to - from;
    piece.params = layout->shards.stage < 3 ? from : in_shard;
    piece.state = layout->shards.stage < 1 ? from : in_shard;
    return piece;
}

// what this rank's optimizer updates of it: all, or what it owns
static inline ParamPiece param_kept_piece(const ParamLayout *layout, ParamId id, int layer, size_t used) {
    size_t tensor = param_offset(layout, id, layer);
    ParamPiece whole = {0, used, tensor, tensor};
    return layout->shards.stage < 1 ? whole : param_own_piece(layout, id, layer, used);
}

// The optimizer's view of a bucket: a span for each tensor of which this rank keeps a piece, in the order of the layout.
// They begin in the block, or, where only what is owned is kept, in the rank's chunk of the bucket. Writes at most
// LAYER_PARAMS spans and returns their number.
static inline int bucket_spans(TensorSpan *spans, const ParamLayout *layout, int bucket, const GPT2Config *c) {
    int kind = bucket_kind(layout, bucket), layer = kind == LAYER_BUCKET ? bucket - 1 : 0, count = 0;
    size_t base = layout->shards.stage < 1 ? 0 : param_bucket(layout, bucket).shard;
    for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
        ParamId p = (ParamId)id;
        ParamPiece piece = param_kept_piece(layout, p, layer, param_rows(p, c) * param_cols(p, c));
        TensorSpan span = {piece.state - base, piece.count, piece.first, param_specs[id].decay,
                           layer * NUM_PARAM_TENSORS + id};
        if (piece.count > 0) { spans[count++] = span; }
    }
    return count;
}
