/*
An update as a list of buckets, which run one after another.
AdamW       Without --offload an update bucket is all parameters at -z 0, and this rank's chunk of a parameter bucket
            (layout.h) from -z 1 on. With --offload it is at most MAX_UPDATE_BUCKET elements of that, so that a small
            double buffer on the device can hold its state. With Muon a bucket holds the tensors between two matrices.
Muon        The tensors QKVW, ATTPROJW, FCW and FCPROJW of layers. Data-parallel rank r of N orthogonalises those of
            layers r, r + N, r + 2 N, ... A round takes one of the four tensors from N layers. It has the buckets
              clear            zeros in the scratch, of which this rank writes its own elements; not on one rank
              momentum         the update of this rank's elements
              orthogonalise    each rank orthogonalises its layer's tensor (parallel/orthogonalise.h)
              weights          the step of this rank's elements
            With --offload a tensor may have several buckets of momentum and of weights.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/muon.h"
#include "llmc/ops.h"
#include "llmc/shapes/layout.h"

// with --offload: copies of 4 MiB and more reach the rate of a PCIe link
enum { MAX_UPDATE_BUCKET = 1 << 22, MIN_UPDATE_BUCKETS = 16 };

// Maximum elements of an update bucket with --offload: a multiple of MOMENT_BLOCK. A small model has MIN_UPDATE_BUCKETS
// buckets, so that the double buffer takes little memory.
static inline size_t update_bucket_elements(const ParamLayout *layout) {
    size_t updated = layout->sharding.stage == 0 ? layout->total : layout->shard;
    size_t elements = param_align((updated + MIN_UPDATE_BUCKETS - 1) / MIN_UPDATE_BUCKETS);
    return elements < MAX_UPDATE_BUCKET ? elements : (size_t)MAX_UPDATE_BUCKET;
}

// ---- Muon's matrices

static const ParamId muon_tensors[] = {QKVW, ATTPROJW, FCW, FCPROJW};
enum { NUM_MUON_TENSORS = 4 };
enum { NEWTON_SCHULZ_NORM = 8 };  // elements of scratch that hold the norm, so that the next array is aligned

// the matrices of a tensor
typedef struct {
    int count;        // 3 in QKVW, one after another; else 1
    int rows, cols;   // of this rank's slice of a matrix
    bool split_rows;  // -tp splits rows, and A is X^T X; else columns, and A is X X^T. The same on one rank
    real scale;       // muon_scale of the whole matrix
} MuonMatrix;

static inline MuonMatrix muon_matrix(const ParamLayout *layout, ParamId id) {
    const Slice *s = &layout->slice[id];
    int count = id == QKVW ? 3 : 1;
    MuonMatrix m = {count, (int)s->rows / count, (int)s->cols, param_specs[id].split == SPLIT_ROWS,
                    muon_scale((int)s->global_rows / count, (int)s->global_cols)};
    return m;
}

// scratch elements of one tensor of a round
static inline size_t muon_chunk(const ParamLayout *layout, ParamId id) { return param_align(param_count(layout, id)); }

// Elements of scratch of an update: the tensors of a round, and newton_schulz's
static inline size_t muon_scratch_elements(const ParamLayout *layout) {
    size_t qkvw = muon_chunk(layout, QKVW), fcw = muon_chunk(layout, FCW), C = layout->slice[FCW].cols;
    if (layout->sharding.optimizer != OPTIMIZER_MUON) { return 0; }
    return ((size_t)layout->sharding.dp_size + 1) * (qkvw > fcw ? qkvw : fcw) + 2 * C * C + NEWTON_SCHULZ_NORM;
}

// ---- the list

typedef enum { UPDATE_ADAMW, UPDATE_CLEAR, UPDATE_MOMENTUM, UPDATE_ORTHOGONALISE, UPDATE_WEIGHTS } UpdateKind;

typedef struct {
    UpdateKind kind;
    int param_bucket;             // holds the elements from stage 1 on
    size_t offset, count;         // elements of the flat buffer at stage 0, of param_bucket's owned chunk at 1 to 3
    size_t v;                     // AdamW: offset of the first element in v
    int first_range, num_ranges;  // of UpdateList.ranges, whose offsets begin at the bucket
    ParamId id;                   // Muon: the tensor
    int layer;                    // Muon: its layer; in clear and orthogonalise, the round's first
} UpdateBucket;

typedef struct {
    UpdateBucket *buckets;
    UpdateRange *ranges;
    int num_buckets, num_ranges;
} UpdateList;

// The maximum number of update ranges of any rank: one a tensor, and one more for each cut. Muon's tensors have two,
// for momentum and for weights.
static inline size_t max_update_ranges(const ParamLayout *layout) {
    size_t updated = layout->sharding.stage < 1 ? layout->total : layout->shard;
    size_t cuts = layout->sharding.offload > 0 ? updated / update_bucket_elements(layout) : 0;
    return (layout->sharding.optimizer == OPTIMIZER_MUON ? 2 : 1) *
           ((size_t)num_param_tensors(layout->num_layers) + cuts);
}

static inline UpdateBucket *update_list_add(UpdateList *list, UpdateBucket bucket) {
    size_t count = (size_t)list->num_buckets + 1;
    list->buckets = (UpdateBucket *)xrealloc(list->buckets, count * sizeof bucket);
    bucket.first_range = list->num_ranges;
    list->buckets[list->num_buckets] = bucket;
    return &list->buckets[list->num_buckets++];
}

// The bucket for the element at which `next` begins: the last one if AdamW can update both in one call, else `next`.
static inline UpdateBucket *update_list_bucket(UpdateList *list, UpdateBucket next, size_t max) {
    if (next.kind == UPDATE_ADAMW && list->num_buckets > 0) {
        UpdateBucket *last = &list->buckets[list->num_buckets - 1];
        size_t distance = next.offset - last->offset;
        bool follows = next.param_bucket == last->param_bucket && next.v - last->v == distance;
        if (follows && distance < max) { return last; }
    }
    return update_list_add(list, next);
}

// Adds a range whose first element is that of `bucket`, in buckets of at most `max` elements.
static inline void update_list_range(UpdateList *list, UpdateBucket bucket, UpdateRange range, size_t max) {
    for (size_t n; range.count > 0; range.count -= n) {
        UpdateBucket *b = update_list_bucket(list, bucket, max);
        size_t at = bucket.offset - b->offset, room = max - at;
        n = range.count < room ? range.count : room;
        UpdateRange *added = &list->ranges[list->num_ranges++];
        *added = range;
        added->offset = at;
        added->count = n;
        b->count = at + n;
        b->num_ranges++;
        bucket.offset += n;
        bucket.v += n;
        range.tensor_offset += n;
    }
}

// Appends this rank's part of parameter buckets [first, end): of one Muon tensor (bucket.id), or of everything that
// AdamW updates.
static inline void update_list_tensors(UpdateList *list, const ParamLayout *layout, UpdateBucket bucket, int first,
                                       int end) {
    size_t max = layout->sharding.offload > 0 ? update_bucket_elements(layout) : SIZE_MAX;
    bool adamw = bucket.kind == UPDATE_ADAMW;
    for (int b = first; b < end; b++) {
        UpdateRange ranges[LAYER_PARAMS];
        int num_ranges = bucket_update_ranges(ranges, layout, b);
        bucket.param_bucket = layout->sharding.stage < 1 ? 0 : b;
        for (int r = 0; r < num_ranges; r++) {
            ParamId id = (ParamId)(ranges[r].tensor % NUM_PARAM_TENSORS);
            if (adamw ? updated_by_muon(layout, id) : id != bucket.id) { continue; }
            bucket.layer = ranges[r].tensor / NUM_PARAM_TENSORS;
            bucket.offset = ranges[r].offset;
            ParamRange range = param_updated_range(layout, id, bucket.layer, param_count(layout, id));
            bucket.v = adamw ? second_moment_at(layout, id, bucket.layer, range) : 0;
            update_list_range(list, bucket, ranges[r], max);
        }
    }
}

// Adds the round of a tensor that begins with `layer`.
static inline void update_list_round(UpdateList *list, const ParamLayout *layout, ParamId id, int layer) {
    UpdateBucket bucket = {.kind = UPDATE_CLEAR, .id = id, .layer = layer};
    int ranks = layout->sharding.dp_size, left = layout->num_layers - layer, first = layer_bucket(layer);
    int end = first + (ranks < left ? ranks : left);
    if (ranks > 1) { update_list_add(list, bucket); }
    bucket.kind = UPDATE_MOMENTUM;
    update_list_tensors(list, layout, bucket, first, end);
    bucket.kind = UPDATE_ORTHOGONALISE;
    update_list_add(list, bucket);
    bucket.kind = UPDATE_WEIGHTS;
    update_list_tensors(list, layout, bucket, first, end);
}

// The update of one rank. Free buckets and ranges.
static inline UpdateList update_list(const ParamLayout *layout) {
    UpdateList list = {NULL, (UpdateRange *)xmalloc(max_update_ranges(layout) * sizeof(UpdateRange)), 0, 0};
    UpdateBucket adamw = {.kind = UPDATE_ADAMW};
    int muon = layout->sharding.optimizer == OPTIMIZER_MUON ? NUM_MUON_TENSORS : 0;
    update_list_tensors(&list, layout, adamw, 0, num_buckets(layout));
    for (int i = 0; i < muon; i++) {
        for (int layer = 0; layer < layout->num_layers; layer += layout->sharding.dp_size) {
            update_list_round(&list, layout, muon_tensors[i], layer);
        }
    }
    return list;
}
