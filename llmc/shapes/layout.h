/*
One flat buffer of parameters, laid out layer by layer, and how ZeRO, tensor parallelism and --offload divide it.

Flat buffer wte, wpe, then the 12 tensors of layer 0, of layer 1, ..., then lnf: a layer is contiguous. Every tensor
            starts at a multiple of PARAM_ALIGN elements; the gaps are zero and stay zero. With tensor parallelism the
            flat buffer holds this rank's slices (slices.h), which have the same size on all ranks.
Bucket      wte and wpe, each layer, and lnf are a bucket each: the unit of communication. Over N data-parallel ranks a
            bucket is N chunks of equal size, a multiple of PARAM_ALIGN, so it ends with a gap where N does not divide
            it. Rank r owns chunk r.
Shard       The chunks that a rank owns, one after another: the rank's part of the state that -z divides.
Owned       Owned elements are this rank's shard. A rank updates the elements that it owns, and stores their optimizer
            state; at stage 0 it updates all elements.
Ranges      Range: {offset, count}.  ParamRange: of one tensor of this rank, with offsets in parameters and state.
            SliceRange: of a slice and of the whole tensor.  UpdateRange: elements of the flat buffers to update.
Follow it   plan gpt2_plan; initial values gpt2_load; pointer zero_param (zero.h); all-gather zero_gather; wait
            zero_params_wait; gradient zero_grads_reduce; update bucket_update_ranges; file families_save

One element at its five addresses: d12 on 4 ranks with -tp 2 and -z 3, so 2 slices of 2 shards each. The element is row
1221, column 10 of layer 3's QKVW. Rows 768..1535 are K, with 64 rows a head: 1221 = 768 + 7 * 64 + 5, so the element
belongs to head 7 of K. test_params.c computes the same numbers.

  whole tensor   (2304,768)  [1221][10]   1221 * 768 + 10 = 937738
       |         Tensor-parallel rank 1 holds heads 6..11: 384 rows of Q, then 384 of K, then 384 of V.
       |         In the slice, K begins at row 384, and its first head is 6: the element is in row
       |         384 + (7 - 6) * 64 + 5 = 453.
  slice          (1152,768)  [453][10]    453 * 768 + 10 = 347914
       |         QKVW of layer 3 begins at param_offset = 30792960, after wte, wpe, layers 0..2, ln1w and ln1b.
  flat buffer    (62710272)               30792960 + 347914 = 31140874
       |         Layer 3's bucket begins at 30791424 and has 2 chunks of 1773184 elements. The element is number
       |         31140874 - 30791424 = 349450 of the bucket, so it is in chunk 0: data-parallel rank 0 owns it.
  shard          (31355136)               15395712 + 349450 = 15745162
       |         The earlier buckets' chunks come first: 30791424 / 2 = 15395712 elements. At -z 3 this copy is the
       |         only one; before layer 3 is used, its bucket is all-gathered into one of two buffers.
  file           (768,2304)  [10][1221]   10 * 2304 + 1221 = 24261
                 h.3.attn.c_attn.weight in model.safetensors, transposed as in Hugging Face's files.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/ops.h"
#include "llmc/shapes/slices.h"  // IWYU pragma: export

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_MUON } OptimizerKind;  // in the order of OPTIMIZER_CHOICES
#define OPTIMIZER_CHOICES "adamw muon"

// How -z, -tp and --offload divide the state of a model, and which rank this is. 0 as a size means 1.
typedef struct {
    int dp_size, dp_rank;     // data-parallel group: the ranks that train on different data
    int stage;                // ZeRO stage: 0 nothing is sharded, 1 optimizer state, 2 gradients too, 3 parameters too
    int tp_size, tp_rank;     // tensor-parallel group: the ranks that hold the slices of one model
    int offload;              // stage of --offload: 0, or the last of the list below that is in pinned host memory
    OptimizerKind optimizer;  // Muon's matrices have no second moments
} Sharding;

enum { OFFLOAD_OPTIMIZER = 1, OFFLOAD_GRADIENTS, OFFLOAD_PARAMS, OFFLOAD_INPUTS };

// Whether a rank stores its shard alone. Parameters in host memory are uploaded for each use, so every rank uploads its
// shard, and the ranks all-gather the bucket.
static inline bool shards_gradients(const Sharding *s) { return s->stage >= 2; }
static inline bool shards_params(const Sharding *s) {
    return s->stage >= 3 || (s->stage >= 1 && s->offload >= OFFLOAD_PARAMS);
}

// True if operations find gradients, or parameters, in buffers that the buckets share.
static inline bool buffers_gradients(const Sharding *s) { return s->stage >= 2 || s->offload >= OFFLOAD_GRADIENTS; }
static inline bool buffers_params(const Sharding *s) { return s->stage >= 3 || s->offload >= OFFLOAD_PARAMS; }

enum { EMBEDDINGS_BUCKET, LAYER_BUCKET, FINAL_BUCKET, BUCKET_KINDS };

// the first parameter of each kind of bucket; the last entry is the end
static const int bucket_first_param[] = {0, FIRST_LAYER_PARAM, LAST_LAYER_PARAM + 1, NUM_PARAM_TENSORS};

// in elements
typedef struct {
    Sharding sharding;  // both sizes at least 1
    int num_layers;
    Slice slice[NUM_PARAM_TENSORS];
    size_t offset[NUM_PARAM_TENSORS];  // of each tensor in the flat buffer; of layer 0 where layered
    size_t layer_stride;               // from a layer to the next
    size_t chunk[BUCKET_KINDS];        // of a bucket of each kind
    size_t total;                      // the flat buffer, gaps included
    size_t shard;                      // a rank's shard: total / dp_size
    size_t second[NUM_PARAM_TENSORS];  // Muon: offset of each tensor's second moments within its layer's
    size_t second_stride;              // from a layer's second moments to the next
} ParamLayout;

static inline size_t param_align(size_t count) { return (count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN; }

static inline bool updated_by_muon(const ParamLayout *layout, ParamId id) {
    return layout->sharding.optimizer == OPTIMIZER_MUON && param_is_layered(id) && param_specs[id].rows != DIM_ONE;
}

static inline ParamLayout param_layout_sharded(const GPT2Config *c, Sharding sharding) {
    ParamLayout layout;
    layout.sharding = sharding;
    if (sharding.dp_size < 1) { layout.sharding.dp_size = 1; }
    if (sharding.tp_size < 1) { layout.sharding.tp_size = 1; }
    layout.num_layers = c->num_layers;
    layout.total = layout.shard = 0;
    size_t ranks = (size_t)layout.sharding.dp_size;
    for (int kind = 0; kind < BUCKET_KINDS; kind++) {
        size_t size = 0, second = 0, buckets = kind == LAYER_BUCKET ? (size_t)c->num_layers : 1;
        for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
            layout.slice[id] = param_slice((ParamId)id, c, layout.sharding.tp_size, sharding.tp_rank);
            layout.offset[id] = layout.total + size;
            layout.second[id] = second;
            size_t count = param_align(layout.slice[id].rows * layout.slice[id].cols);
            size += count;
            second += updated_by_muon(&layout, (ParamId)id) ? 0 : count;
        }
        if (kind == LAYER_BUCKET) { layout.second_stride = second; }
        layout.chunk[kind] = param_align((size + ranks - 1) / ranks);
        layout.shard += layout.chunk[kind] * buckets;
        layout.total += layout.chunk[kind] * ranks * buckets;
    }
    layout.layer_stride = layout.chunk[LAYER_BUCKET] * ranks;
    return layout;
}

// the layout without sharding
static inline ParamLayout param_layout(const GPT2Config *c) {
    const Sharding single = {1, 0, 0, 1, 0, 0, OPTIMIZER_ADAMW};
    return param_layout_sharded(c, single);
}

static inline size_t param_offset(const ParamLayout *layout, ParamId id, int layer) {
    return layout->offset[id] + (param_is_layered(id) ? layout->layer_stride * (size_t)layer : 0);
}

// elements of this rank's slice of a tensor, padding included
static inline size_t param_count(const ParamLayout *layout, ParamId id) {
    return layout->slice[id].rows * layout->slice[id].cols;
}

// elements of this rank's slice without the vocabulary's padding
static inline size_t param_used(const ParamLayout *layout, ParamId id) {
    const Slice *s = &layout->slice[id];
    return id != WTE ? param_count(layout, id) : s->rectangle_rows * s->cols;
}

// ---- buckets: 0 holds the embeddings, 1..L the layers, L + 1 lnf

// in elements
typedef struct {
    size_t offset;        // in the flat buffer
    size_t chunk;         // of each data-parallel rank
    size_t size;          // dp_size chunks
    size_t owned_offset;  // of this rank's chunk, in the flat buffer
    size_t shard_offset;  // of this rank's chunk, in its shard
} Bucket;

enum { NO_BUCKET = -1 };

static inline int num_buckets(const ParamLayout *layout) { return layout->num_layers + 2; }
static inline int embeddings_bucket(void) { return 0; }
static inline int layer_bucket(int layer) { return layer + 1; }
static inline int final_bucket(const ParamLayout *layout) { return layout->num_layers + 1; }

static inline int bucket_kind(const ParamLayout *layout, int bucket) {
    return bucket == 0 ? EMBEDDINGS_BUCKET : bucket <= layout->num_layers ? LAYER_BUCKET : FINAL_BUCKET;
}

static inline Bucket param_bucket(const ParamLayout *layout, int bucket) {
    const size_t *chunk = layout->chunk, ranks = (size_t)layout->sharding.dp_size;
    size_t layers_before = bucket == 0 ? 0 : (size_t)bucket - 1;
    Bucket b;
    b.chunk = chunk[bucket_kind(layout, bucket)];
    b.size = b.chunk * ranks;
    b.shard_offset = bucket == 0 ? 0 : chunk[EMBEDDINGS_BUCKET] + layers_before * chunk[LAYER_BUCKET];
    b.offset = b.shard_offset * ranks;
    b.owned_offset = b.offset + b.chunk * (size_t)layout->sharding.dp_rank;
    return b;
}

// which of the two buffers of layers a layer's bucket uses
static inline int layer_buffer(int bucket) { return (bucket + 1) % 2; }

// number of a bucket's buffer: 0 the embeddings, 1 and 2 the layers in turn, 3 lnf
enum { BUCKET_BUFFERS = 4 };
static inline int buffer_of_bucket(const ParamLayout *layout, int bucket) {
    int kind = bucket_kind(layout, bucket);
    return kind == LAYER_BUCKET ? 1 + layer_buffer(bucket) : kind == EMBEDDINGS_BUCKET ? 0 : 3;
}

// Offset of a bucket in the buffers of buckets, for state that the device of a rank does not hold whole.
static inline size_t bucket_buffer(const ParamLayout *layout, int bucket) {
    size_t ranks = (size_t)layout->sharding.dp_size, layer_buffers = layout->num_layers < 2 ? 1 : 2;
    switch (bucket_kind(layout, bucket)) {
    case EMBEDDINGS_BUCKET: return 0;
    case LAYER_BUCKET: return ranks * (layout->chunk[0] + (size_t)layer_buffer(bucket) * layout->chunk[LAYER_BUCKET]);
    default: return ranks * (layout->chunk[0] + layer_buffers * layout->chunk[LAYER_BUCKET]);
    }
}

// elements of the buffers of buckets
static inline size_t bucket_buffers(const ParamLayout *layout) {
    return bucket_buffer(layout, final_bucket(layout)) + layout->chunk[FINAL_BUCKET] * (size_t)layout->sharding.dp_size;
}

static inline int param_bucket_of(const ParamLayout *layout, ParamId id, int layer) {
    if (param_is_layered(id)) { return layer_bucket(layer); }
    return id < FIRST_LAYER_PARAM ? embeddings_bucket() : final_bucket(layout);
}

// ---- ranges of tensors

// elements [offset, offset + count) of this rank's slice of a tensor
typedef struct {
    size_t offset, count;
    size_t params, state;  // offsets of the first of them in this rank's stored parameters and in its optimizer state
} ParamRange;

// the elements that this rank owns of a tensor's first `used` elements; count may be 0
static inline ParamRange param_owned_range(const ParamLayout *layout, ParamId id, int layer, size_t used) {
    Bucket b = param_bucket(layout, param_bucket_of(layout, id, layer));
    Range tensor = {param_offset(layout, id, layer), used}, chunk = {b.owned_offset, b.chunk};
    Range owned = range_intersect(tensor, chunk);
    ParamRange range = {0, 0, 0, 0};
    if (owned.count == 0) { return range; }
    size_t in_shard = b.shard_offset + owned.offset - b.owned_offset;
    range.offset = owned.offset - tensor.offset;
    range.count = owned.count;
    range.params = shards_params(&layout->sharding) ? in_shard : owned.offset;
    range.state = layout->sharding.stage < 1 ? owned.offset : in_shard;
    return range;
}

// the elements whose optimizer state this rank stores and updates: all at stage 0, the owned ones at 1 to 3
static inline ParamRange param_updated_range(const ParamLayout *layout, ParamId id, int layer, size_t used) {
    size_t offset = param_offset(layout, id, layer);
    ParamRange whole = {0, used, offset, offset};
    return layout->sharding.stage < 1 ? whole : param_owned_range(layout, id, layer, used);
}

// ---- second moments. With Muon the matrices of a layer have none. The second moments of the other tensors are packed
// one after another, with room for whole tensors at every -z: they are small, and all ranks have the same offsets.

// Where a rank stores the second moments of a range that AdamW updates.
static inline size_t second_moment_at(const ParamLayout *layout, ParamId id, int layer, ParamRange range) {
    size_t ranks = layout->sharding.stage < 1 ? (size_t)layout->sharding.dp_size : 1;
    size_t embeddings = layout->chunk[EMBEDDINGS_BUCKET] * ranks, layers = (size_t)layout->num_layers;
    if (layout->sharding.optimizer == OPTIMIZER_ADAMW || id < FIRST_LAYER_PARAM) { return range.state; }
    if (param_is_layered(id)) {
        return embeddings + (size_t)layer * layout->second_stride + layout->second[id] + range.offset;
    }
    return range.state + layers * layout->second_stride - layers * layout->chunk[LAYER_BUCKET] * ranks;
}

// second moments that a rank stores
static inline size_t num_second_moments(const ParamLayout *layout) {
    ParamRange end = {0, 0, 0, layout->sharding.stage < 1 ? layout->total : layout->shard};
    return second_moment_at(layout, LNFW, 0, end);
}

// ---- ranges of a bucket

// Ranges of a bucket's split (or replicated) tensors: owned elements, or with owned = false updated ones. Offsets begin
// at this rank's chunk; with owned = false at stage 0, at the bucket. Adjacent tensors, and the gap between them, are
// one range. Writes at most LAYER_PARAMS ranges and returns their number.
static inline int bucket_ranges(Range *ranges, const ParamLayout *layout, int bucket, bool split, bool owned) {
    Bucket b = param_bucket(layout, bucket);
    int kind = bucket_kind(layout, bucket), layer = kind == LAYER_BUCKET ? bucket - 1 : 0, count = 0, last = -1;
    size_t begin = owned || layout->sharding.stage > 0 ? b.owned_offset : b.offset;
    for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
        ParamId p = (ParamId)id;
        size_t elements = param_count(layout, p);
        ParamRange range =
            owned ? param_owned_range(layout, p, layer, elements) : param_updated_range(layout, p, layer, elements);
        if (range.count == 0 || (param_split(p) != SPLIT_NONE) != split) { continue; }
        size_t offset = param_offset(layout, p, layer) + range.offset - begin;
        if (count == 0 || last != id - 1) { ranges[count++].offset = offset; }
        ranges[count - 1].count = offset + range.count - ranges[count - 1].offset;
        last = id;
    }
    return count;
}

// elements of a bucket's replicated tensors whose gradients this rank stores
static inline size_t bucket_replicated(const ParamLayout *layout, int bucket) {
    Range ranges[LAYER_PARAMS];
    int n = bucket_ranges(ranges, layout, bucket, false, false);
    size_t count = 0;
    for (int i = 0; i < n; i++) { count += ranges[i].count; }
    return count;
}

// elements of all replicated tensors whose gradients this rank stores
static inline size_t num_replicated(const ParamLayout *layout) {
    size_t count = 0;
    for (int b = 0; b < num_buckets(layout); b++) { count += bucket_replicated(layout, b); }
    return count;
}

// the largest num_replicated of any rank, so that all ranks have the same memory plan
static inline size_t max_replicated(const ParamLayout *layout) {
    ParamLayout unsharded = *layout;
    unsharded.sharding.stage = 0;
    size_t count = 0;
    for (int b = 0; b < num_buckets(layout); b++) {
        size_t all = bucket_replicated(&unsharded, b), chunk = param_bucket(layout, b).chunk;
        count += layout->sharding.stage > 0 && chunk < all ? chunk : all;
    }
    return count;
}

// Sets a range's strided view of the whole tensor. With several rectangles each rectangle is one row of the view: QKVW
// of d12 at -tp 2 has 3 rows of 384 * 768 elements.
static inline void set_view(UpdateRange *range, const ParamLayout *layout, ParamId id) {
    const Slice *s = &layout->slice[id];
    if (layout->sharding.tp_size == 1 || param_split(id) == SPLIT_NONE || s->num_rectangles == 0) { return; }
    if (s->global_rows * s->global_cols > UINT32_MAX) {
        input_error("-tp %d: a tensor of 2^32 or more elements cannot be split; give a smaller model",
                    layout->sharding.tp_size);
    }
    bool several = s->num_rectangles > 1;
    range->view_offset = (uint32_t)s->global_offset;
    range->view_cols = (uint32_t)(several ? s->local_stride : s->cols);
    range->view_stride = (uint32_t)(several ? s->global_stride : s->global_cols);
}

// The ranges of a bucket that this rank updates, one a tensor, in the order of the layout. They are offsets in the flat
// buffer at stage 0, and in this rank's chunk of the bucket at 1 to 3. Writes at most LAYER_PARAMS ranges and returns
// their number.
static inline int bucket_update_ranges(UpdateRange *ranges, const ParamLayout *layout, int bucket) {
    int kind = bucket_kind(layout, bucket), layer = kind == LAYER_BUCKET ? bucket - 1 : 0, count = 0;
    size_t base = layout->sharding.stage < 1 ? 0 : param_bucket(layout, bucket).shard_offset;
    for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
        ParamId p = (ParamId)id;
        ParamRange range = param_updated_range(layout, p, layer, param_count(layout, p));
        if (range.count == 0) { continue; }
        UpdateRange update = {
            .offset = range.state - base,
            .count = range.count,
            .tensor_offset = range.offset,
            .decay = param_specs[id].decay,
            .tensor = layer * NUM_PARAM_TENSORS + id,
        };
        set_view(&update, layout, p);
        ranges[count++] = update;
    }
    return count;
}
