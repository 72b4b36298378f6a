/*
An update as a list of buckets, which run one after another.
AdamW       Without --offload an update bucket is all parameters at -z 0, and this rank's chunk of a parameter bucket
            (layout.h) from -z 1 on. With --offload it is at most MAX_UPDATE_BUCKET elements of that, so that a small
            double buffer on the device can hold its state. With Muon the matrices of layers are left out.
Muon        A matrix is qkvw, fcw, fcprojw or attprojw of a layer; they are numbered in this order, from the most
            expensive to the cheapest. Data-parallel rank i % dp_size owns matrix i and orthogonalises it. A round is
            dp_size matrices, one for each rank, so the ranks share the work equally. For each round the list has
              clear            from -z 1 on: zeros, to which each rank adds its part of the matrices
              momentum         of this rank's elements of the matrices
              orthogonalise    each rank its own matrix (parallel/orthogonalise.h)
              weights          of this rank's elements
            With --offload a matrix may have several buckets of momentum and of weights.
defines: MAX_UPDATE_BUCKET, update_bucket_elements, MuonMatrix, num_muon_matrices, muon_matrix, muon_slice,
         muon_scratch_elements, UpdateKind, UpdateBucket, UpdateList, max_update_ranges, update_list, update_list_free
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

typedef struct {
    ParamId id;
    int layer;
    int rows, cols;  // of the whole matrix; qkvw is three, one after another
} MuonMatrix;

static inline int num_muon_matrices(const ParamLayout *layout) {
    return layout->sharding.optimizer == OPTIMIZER_MUON ? 4 * layout->num_layers : 0;
}

// matrix i; the cost of qkvw, fcw and fcprojw is equal, that of attprojw a third
static inline MuonMatrix muon_matrix(const ParamLayout *layout, int i) {
    static const ParamId by_cost[] = {QKVW, FCW, FCPROJW, ATTPROJW};
    ParamId id = by_cost[i / layout->num_layers];
    const Slice *s = &layout->slice[id];
    MuonMatrix m = {id, i % layout->num_layers, (int)s->global_rows / (id == QKVW ? 3 : 1), (int)s->global_cols};
    return m;
}

// elements of the largest slice of a matrix
static inline size_t muon_slice(const ParamLayout *layout) {
    size_t qkvw = param_count(layout, QKVW), fcw = param_count(layout, FCW);
    return param_align(qkvw > fcw ? qkvw : fcw);
}

// Scratch of an update: the slices of a round; scratch of Newton-Schulz; with -tp one matrix, and its slices of all
// tensor-parallel ranks.
static inline size_t muon_scratch_elements(const ParamLayout *layout) {
    MuonMatrix fcw = {FCW, 0, (int)layout->slice[FCW].global_rows, (int)layout->slice[FCW].global_cols};
    size_t t = (size_t)layout->sharding.tp_size, slices = (size_t)layout->sharding.dp_size + (t > 1 ? t : 0);
    size_t whole = param_align((size_t)fcw.rows * (size_t)fcw.cols);
    if (num_muon_matrices(layout) == 0) { return 0; }
    return slices * muon_slice(layout) + (t > 1 ? whole : 0) + newton_schulz_scratch(fcw.rows, fcw.cols);
}

// ---- the list

typedef enum { UPDATE_ADAMW, UPDATE_CLEAR, UPDATE_MOMENTUM, UPDATE_ORTHOGONALISE, UPDATE_WEIGHTS } UpdateKind;

typedef struct {
    UpdateKind kind;
    int param_bucket;             // holds the elements from stage 1 on
    size_t offset, count;         // elements of the flat buffer at stage 0, of param_bucket's owned chunk at 1 to 3
    size_t v;                     // AdamW: where this rank stores the first second moment
    int first_range, num_ranges;  // of UpdateList.ranges, whose offsets begin at the bucket
    int matrix;                   // Muon: its number; of a round: the first one
} UpdateBucket;

typedef struct {
    UpdateBucket *buckets;
    UpdateRange *ranges;
    int num_buckets, num_ranges;
} UpdateList;

// The maximum number of update ranges of any rank: one a tensor, and one more for each cut. Muon has each twice.
static inline size_t max_update_ranges(const ParamLayout *layout) {
    size_t updated = layout->sharding.stage < 1 ? layout->total : layout->shard;
    size_t cuts = layout->sharding.offload > 0 ? updated / update_bucket_elements(layout) : 0;
    return (num_muon_matrices(layout) > 0 ? 2 : 1) * ((size_t)num_param_tensors(layout->num_layers) + cuts);
}

static inline void update_list_add(UpdateList *list, UpdateBucket bucket) {
    size_t count = (size_t)list->num_buckets + 1;
    list->buckets = (UpdateBucket *)xrealloc(list->buckets, count * sizeof bucket);
    list->buckets[list->num_buckets++] = bucket;
}

// Adds the elements of adjacent ranges, in buckets of at most `max` elements.
static inline void update_list_cut(UpdateList *list, UpdateBucket bucket, const UpdateRange *ranges, int num_ranges,
                                   size_t max) {
    const UpdateRange *last = &ranges[num_ranges - 1];
    size_t begin = ranges[0].offset, elements = last->offset + last->count - begin, v = bucket.v;
    for (size_t done = 0; done < elements; done += bucket.count) {
        bucket.offset = begin + done;
        bucket.count = elements - done < max ? elements - done : max;
        bucket.v = v + done;
        bucket.first_range = list->num_ranges;
        for (int i = 0; i < num_ranges; i++) {
            const Range range = {ranges[i].offset, ranges[i].count}, wanted = {bucket.offset, bucket.count};
            Range both = range_intersect(range, wanted);
            if (both.count == 0) { continue; }
            UpdateRange *added = &list->ranges[list->num_ranges++];
            *added = ranges[i];
            added->tensor_offset += both.offset - range.offset;
            added->offset = both.offset - wanted.offset;
            added->count = both.count;
        }
        bucket.num_ranges = list->num_ranges - bucket.first_range;
        update_list_add(list, bucket);
    }
}

static inline ParamId range_tensor(const UpdateRange *range) { return (ParamId)(range->tensor % NUM_PARAM_TENSORS); }

// Adds the tensors of `ranges` that AdamW updates: adjacent ones together. `in`: the parameter bucket; 0 at stage 0
static inline void update_list_adamw(UpdateList *list, const ParamLayout *layout, int in, const UpdateRange *ranges,
                                     int num_ranges, size_t max) {
    for (int i = 0, end; i < num_ranges; i = end) {
        ParamId id = range_tensor(&ranges[i]);
        int layer = ranges[i].tensor / NUM_PARAM_TENSORS;
        end = i + 1;
        if (updated_by_muon(layout, id)) { continue; }
        while (end < num_ranges && !updated_by_muon(layout, range_tensor(&ranges[end]))) { end++; }
        UpdateBucket bucket = {.kind = UPDATE_ADAMW, .param_bucket = in};
        bucket.v = second_moment_at(layout, id, layer, param_updated_range(layout, id, layer, param_count(layout, id)));
        update_list_cut(list, bucket, ranges + i, end - i, max);
    }
}

// Adds the elements of the matrices of a round that this rank updates.
static inline void update_list_matrices(UpdateList *list, const ParamLayout *layout, UpdateKind kind, int first,
                                        size_t max) {
    for (int i = first; i < first + layout->sharding.dp_size && i < num_muon_matrices(layout); i++) {
        UpdateRange ranges[LAYER_PARAMS];
        MuonMatrix matrix = muon_matrix(layout, i);
        int in = layer_bucket(matrix.layer), num_ranges = bucket_update_ranges(ranges, layout, in);
        UpdateBucket bucket = {.kind = kind, .param_bucket = layout->sharding.stage < 1 ? 0 : in, .matrix = i};
        for (int r = 0; r < num_ranges; r++) {
            if (range_tensor(&ranges[r]) == matrix.id) { update_list_cut(list, bucket, &ranges[r], 1, max); }
        }
    }
}

// The update of one rank. Free with update_list_free.
static inline UpdateList update_list(const ParamLayout *layout) {
    bool whole = layout->sharding.stage < 1, by_bucket = !whole || num_muon_matrices(layout) > 0;
    size_t max = layout->sharding.offload > 0 ? update_bucket_elements(layout) : SIZE_MAX;
    UpdateRange *ranges = (UpdateRange *)xmalloc((size_t)num_param_tensors(layout->num_layers) * sizeof *ranges);
    UpdateList list = {NULL, (UpdateRange *)xmalloc(max_update_ranges(layout) * sizeof *ranges), 0, 0};
    for (int b = 0, count = 0; b < num_buckets(layout); b++) {
        count += bucket_update_ranges(ranges + count, layout, b);
        if (!by_bucket && b < num_buckets(layout) - 1) { continue; }
        update_list_adamw(&list, layout, whole ? 0 : b, ranges, count, max);
        count = 0;
    }
    free(ranges);
    for (int first = 0; first < num_muon_matrices(layout); first += layout->sharding.dp_size) {
        const UpdateBucket clear = {.kind = UPDATE_CLEAR},
                           orthogonalise = {.kind = UPDATE_ORTHOGONALISE, .matrix = first};
        if (!whole) { update_list_add(&list, clear); }
        update_list_matrices(&list, layout, UPDATE_MOMENTUM, first, max);
        update_list_add(&list, orthogonalise);
        update_list_matrices(&list, layout, UPDATE_WEIGHTS, first, max);
    }
    return list;
}

static inline void update_list_free(UpdateList *list) {
    free(list->buckets);
    free(list->ranges);
}
