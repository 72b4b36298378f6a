/*
One flat block of parameters, laid out layer by layer; and who keeps which part of it, where several processes train one
model.
defines: Shards, ParamLayout, param_layout, param_layout_among, param_offset, param_count, param_used, Bucket,
         num_buckets, param_bucket, layer_bucket, bucket_buffer, bucket_buffers, ParamPiece, param_own_piece,
         param_kept_piece, Stretch, bucket_stretches, num_replicated, most_replicated,
         bucket_spans

Layout      wte, wpe, then the 12 tensors of layer 0, of layer 1, ..., then lnf: a layer is one contiguous run. Every
            tensor starts at a multiple of PARAM_ALIGN elements; the gaps are zero and stay zero. With tensor
            parallelism the block is that of this process's slices (slices.h), which are as large in all of them.
Buckets     wte and wpe, each layer, and lnf are a bucket each: what is sent at once. Among N ranks a bucket is N chunks
            of equal size, a multiple of PARAM_ALIGN, so it ends with a gap where N does not divide it. Rank r owns its
            chunk r. A rank that keeps only what it owns (Shards) has these chunks one after another: its shard.
*/
#pragma once
#include "slices.h"

// -z and -tp: what a process keeps of the state of a model
typedef struct {
    int ranks, rank;  // those whose data differ; 0 ranks are 1: a process alone
    int stage;        // 0: everything. Else what it owns of: 1 the optimizer's state; 2 gradients too; 3 parameters too
    int slices, slice;  // the part of each tensor that the stage is about; 0 slices are 1: all of it
} Shards;

enum { EMBEDDINGS_BUCKET, LAYER_BUCKET, FINAL_BUCKET, BUCKET_KINDS };

// of each kind of bucket, and past the last
static const int bucket_first_param[] = {0, FIRST_LAYER_PARAM, LAST_LAYER_PARAM + 1, NUM_PARAM_TENSORS};

typedef struct {
    Shards shards;  // at least 1 rank and 1 slice
    int num_layers;
    Slice slice[NUM_PARAM_TENSORS];    // what this process has of each tensor
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
    if (shards.slices < 1) { layout.shards.slices = 1; }
    layout.num_layers = c->num_layers;
    layout.total = layout.shard = 0;
    size_t ranks = (size_t)layout.shards.ranks;
    for (int kind = 0; kind < BUCKET_KINDS; kind++) {
        size_t size = 0, buckets = kind == LAYER_BUCKET ? (size_t)c->num_layers : 1;
        for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
            layout.slice[id] = param_slice((ParamId)id, c, layout.shards.slices, shards.slice);
            layout.offset[id] = layout.total + size;
            size += param_align(layout.slice[id].rows * layout.slice[id].cols);
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
    const Shards alone = {1, 0, 0, 1, 0};
    return param_layout_among(c, alone);
}

static inline size_t param_offset(const ParamLayout *layout, ParamId id, int layer) {
    return layout->offset[id] + (param_is_layered(id) ? layout->layer_stride * (size_t)layer : 0);
}

// elements that this process has of a tensor, in memory
static inline size_t param_count(const ParamLayout *layout, ParamId id) {
    return layout->slice[id].rows * layout->slice[id].cols;
}

// as far as they mean something: without the vocabulary's padding
static inline size_t param_used(const ParamLayout *layout, ParamId id) {
    const Slice *s = &layout->slice[id];
    return id != WTE ? param_count(layout, id) : s->num_pieces > 0 ? s->pieces[0].rows * s->cols : 0;
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

// elements [first, first + count) of what this process has of a tensor, and where it has them
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

// `count` elements of a bucket, the first being element `at` from where what this rank owns, or keeps, of it begins
typedef struct {
    size_t at, count;
} Stretch;

// What this rank owns, or keeps, of those tensors of a bucket that are split among the slices, or of those that every
// slice has whole; neighbours, and the gaps between them, together. Writes at most LAYER_PARAMS and returns their
// number.
static inline int bucket_stretches(Stretch *stretches, const ParamLayout *layout, int bucket, bool split, bool owned) {
    Bucket b = param_bucket(layout, bucket);
    int kind = bucket_kind(layout, bucket), layer = kind == LAYER_BUCKET ? bucket - 1 : 0, count = 0, last = -1;
    size_t begin = owned || layout->shards.stage > 0 ? b.own : b.begin;
    for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
        ParamId p = (ParamId)id;
        size_t elements = param_count(layout, p);
        ParamPiece piece =
            owned ? param_own_piece(layout, p, layer, elements) : param_kept_piece(layout, p, layer, elements);
        if (piece.count == 0 || (param_split(p) != SPLIT_NONE) != split) { continue; }
        size_t at = param_offset(layout, p, layer) + piece.first - begin;
        if (count == 0 || last != id - 1) { stretches[count++].at = at; }
        stretches[count - 1].count = at + piece.count - stretches[count - 1].at;
        last = id;
    }
    return count;
}

// what this rank keeps of a bucket's tensors that every slice has whole
static inline size_t bucket_replicated(const ParamLayout *layout, int bucket) {
    Stretch stretches[LAYER_PARAMS];
    int n = bucket_stretches(stretches, layout, bucket, false, false);
    size_t count = 0;
    for (int i = 0; i < n; i++) { count += stretches[i].count; }
    return count;
}

// and of all buckets'
static inline size_t num_replicated(const ParamLayout *layout) {
    size_t count = 0;
    for (int b = 0; b < num_buckets(layout); b++) { count += bucket_replicated(layout, b); }
    return count;
}

// as many as any rank can have of them, so that all of them make the same plan
static inline size_t most_replicated(const ParamLayout *layout) {
    ParamLayout whole = *layout;
    whole.shards.stage = 0;
    size_t count = 0;
    for (int b = 0; b < num_buckets(layout); b++) {
        size_t all = bucket_replicated(&whole, b), chunk = param_bucket(layout, b).chunk;
        count += layout->shards.stage > 0 && chunk < all ? chunk : all;
    }
    return count;
}

// Where a slice's elements are in the whole tensor. A slice of several pieces is described as rows, one a piece: all
// have one length and one distance. The last element of a whole tensor of GPT-2's largest kin is far below 2^32.
static inline SpanPlace span_place(const ParamLayout *layout, ParamId id) {
    const Slice *s = &layout->slice[id];
    SpanPlace place = {0, 0, 0};
    if (layout->shards.slices == 1 || param_split(id) == SPLIT_NONE || s->num_pieces == 0) { return place; }
    bool several = s->num_pieces > 1;
    if (s->global_rows * s->global_cols > UINT32_MAX) {
        input_error("-tp %d: a tensor of more than 2^32 elements, which cannot be split; give a smaller model",
                    layout->shards.slices);
    }
    place.origin = (uint32_t)s->pieces[0].global;
    place.cols = (uint32_t)(several ? s->pieces[1].local : s->cols);
    place.stride = (uint32_t)(several ? s->pieces[1].global - s->pieces[0].global : s->global_cols);
    return place;
}

// The optimizer's view of a bucket: a span for each tensor of which this rank keeps a piece, in the order of the
// layout. They begin in the block, or, where only what is owned is kept, in the rank's chunk of the bucket. Writes at
// most LAYER_PARAMS spans and returns their number.
static inline int bucket_spans(TensorSpan *spans, const ParamLayout *layout, int bucket) {
    int kind = bucket_kind(layout, bucket), layer = kind == LAYER_BUCKET ? bucket - 1 : 0, count = 0;
    size_t base = layout->shards.stage < 1 ? 0 : param_bucket(layout, bucket).shard;
    for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
        ParamId p = (ParamId)id;
        ParamPiece piece = param_kept_piece(layout, p, layer, param_count(layout, p));
        TensorSpan span = {
            piece.state - base,   piece.count, piece.first, param_specs[id].decay, layer * NUM_PARAM_TENSORS + id,
            span_place(layout, p)};
        if (piece.count > 0) { spans[count++] = span; }
    }
    return count;
}
