/*
An update as a list of buckets, which run one after another.
AdamW       Without --offload an update bucket is all parameters at -z 0, and this rank's chunk of a parameter bucket
            (layout.h) from -z 1 on. With --offload it is at most MAX_UPDATE_BUCKET elements of that, so that a small
            double buffer on the device can hold its state. With Muon the matrices of layers are left out.
Muon        A matrix is qkvw, fcw, fcprojw or attprojw of a layer; they are numbered in this order, from the most
            expensive to the cheapest. Data-parallel rank i % dp_size owns matrix i and orthogonalises it. A round is
            dp_size matrices, one for each rank, so the ranks share the work equally. For each round the list has
              momentum         of this rank's elements of the matrices
              orthogonalise    the rank's own matrix, gathered from all ranks
              weights          of this rank's elements of the matrices
            With --offload a matrix may have several buckets of momentum and of weights.
defines: MAX_UPDATE_BUCKET, update_bucket_elements, MuonMatrix, num_muon_matrices, muon_matrix, muon_rows, muon_cols,
         MuonScratch, muon_scratch, UpdateKind, UpdateBucket, UpdateList, max_update_ranges, update_list,
         update_list_free
*/
#pragma once
#include "llmc/common/check.h"
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
    int owner;  // data-parallel rank
} MuonMatrix;

enum { MATRICES_OF_LAYER = 4 };

static inline int num_muon_matrices(const ParamLayout *layout) {
    return layout->sharding.optimizer == OPTIMIZER_MUON ? MATRICES_OF_LAYER * layout->num_layers : 0;
}

// qkvw is three matrices (C,C), and costs as much as fcw or fcprojw; attprojw costs a third
static inline MuonMatrix muon_matrix(const ParamLayout *layout, int i) {
    static const ParamId by_cost[MATRICES_OF_LAYER] = {QKVW, FCW, FCPROJW, ATTPROJW};
    MuonMatrix matrix = {by_cost[i / layout->num_layers], i % layout->num_layers, i % layout->sharding.dp_size};
    return matrix;
}

// rows of one matrix: qkvw is three
static inline int muon_rows(const ParamLayout *layout, ParamId id) {
    return (int)layout->slice[id].global_rows / (id == QKVW ? 3 : 1);
}
static inline int muon_cols(const ParamLayout *layout, ParamId id) { return (int)layout->slice[id].global_cols; }

// Where the buffers of a round begin in scratch memory, in elements; `end` is their total size. On one rank, slice is
// the whole matrix, and the buffers before it are empty.
typedef struct {
    size_t parts;          // this rank's part of each matrix of the round; at stage 0 one matrix of another rank
    size_t part;           // elements from one part to the next
    size_t gathered;       // -tp: slices of all tensor-parallel ranks
    size_t whole;          // -tp: the matrix that the slices make
    size_t slice;          // of the rank's own matrix
    size_t newton_schulz;  // scratch of the operation
    size_t end;
} MuonScratch;

static inline MuonScratch muon_scratch(const ParamLayout *layout) {
    const Sharding *s = &layout->sharding;
    size_t slice = 0, whole = 0, scratch = 0, chunk = layout->chunk[LAYER_BUCKET];
    for (int i = 0; i < num_muon_matrices(layout); i += layout->num_layers) {
        ParamId id = muon_matrix(layout, i).id;
        int rows = muon_rows(layout, id), cols = muon_cols(layout, id);
        size_t of_slice = param_align(param_count(layout, id)), of_whole = layout->slice[id].global_rows * (size_t)cols;
        size_t of_scratch = newton_schulz_scratch(rows, cols);
        slice = of_slice > slice ? of_slice : slice;
        whole = of_whole > whole ? of_whole : whole;
        scratch = of_scratch > scratch ? of_scratch : scratch;
    }
    size_t parts = s->dp_size == 1 ? 0 : s->stage < 1 ? 1 : (size_t)s->dp_size, t = (size_t)s->tp_size;
    MuonScratch m = {.part = s->stage < 1 || slice < chunk ? slice : chunk};
    m.gathered = m.parts + parts * m.part;
    m.whole = m.gathered + (t > 1 ? t * slice : 0);
    m.slice = m.whole + (t > 1 ? param_align(whole) : 0);
    m.newton_schulz = m.slice + slice;
    m.end = m.newton_schulz + scratch;
    return m;
}

// ---- the list

typedef enum { UPDATE_ADAMW, UPDATE_MOMENTUM, UPDATE_ORTHOGONALISE, UPDATE_WEIGHTS } UpdateKind;

typedef struct {
    UpdateKind kind;
    int param_bucket;             // holds the elements from stage 1 on
    size_t offset, count;         // elements of the flat buffer at stage 0, of param_bucket's owned chunk at 1 to 3
    size_t v;                     // AdamW: where this rank stores the first second moment
    int first_range, num_ranges;  // of UpdateList.ranges; offsets begin at the bucket
    int matrix;                   // Muon: its number; of a round: the first one
    size_t in_range;              // Muon: the first element, in this rank's range of the matrix
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

// Appends a bucket, and the elements of `ranges` that are in it.
static inline void update_list_add(UpdateList *list, UpdateBucket bucket, const UpdateRange *ranges, int num_ranges) {
    const Range wanted = {bucket.offset, bucket.count};
    bucket.first_range = list->num_ranges;
    list->buckets = (UpdateBucket *)xrealloc(list->buckets, ((size_t)list->num_buckets + 1) * sizeof bucket);
    list->ranges = (UpdateRange *)xrealloc(list->ranges, (size_t)(list->num_ranges + num_ranges + 1) * sizeof *ranges);
    for (int i = 0; i < num_ranges; i++) {
        Range range = {ranges[i].offset, ranges[i].count}, both = range_intersect(range, wanted);
        if (both.count == 0) { continue; }
        UpdateRange *added = &list->ranges[list->num_ranges++];
        *added = ranges[i];
        added->tensor_offset += both.offset - range.offset;
        added->offset = both.offset - wanted.offset;
        added->count = both.count;
    }
    bucket.num_ranges = list->num_ranges - bucket.first_range;
    list->buckets[list->num_buckets++] = bucket;
}

// Appends the elements of adjacent ranges, which end with the last of them, in buckets of at most `max` elements.
static inline void update_list_cut(UpdateList *list, UpdateBucket bucket, const UpdateRange *ranges, int num_ranges,
                                   size_t max) {
    const UpdateRange *last = &ranges[num_ranges - 1];
    size_t begin = ranges[0].offset, elements = last->offset + last->count - begin, v = bucket.v;
    for (size_t done = 0; done < elements; done += bucket.count) {
        bucket.offset = begin + done;
        bucket.count = elements - done < max ? elements - done : max;
        bucket.v = v + done;
        bucket.in_range = done;
        update_list_add(list, bucket, ranges, num_ranges);
    }
}

// Appends the tensors of `ranges` that AdamW updates: adjacent ones together.
static inline void update_list_adamw(UpdateList *list, const ParamLayout *layout, int bucket_of,
                                     const UpdateRange *ranges, int num_ranges, size_t max) {
    size_t shard = layout->sharding.stage < 1 ? 0 : param_bucket(layout, bucket_of).shard_offset;
    for (int i = 0, end; i < num_ranges; i = end) {
        ParamId id = (ParamId)(ranges[i].tensor % NUM_PARAM_TENSORS);
        int layer = ranges[i].tensor / NUM_PARAM_TENSORS;
        end = i + 1;
        if (updated_by_muon(layout, id)) { continue; }
        while (end < num_ranges && !updated_by_muon(layout, (ParamId)(ranges[end].tensor % NUM_PARAM_TENSORS))) {
            end++;
        }
        UpdateBucket bucket = {.kind = UPDATE_ADAMW, .param_bucket = bucket_of};
        bucket.v = second_moment_at(layout, id, layer, shard + ranges[i].offset);
        update_list_cut(list, bucket, ranges + i, end - i, max);
    }
}

// Appends the elements of matrix i that this rank updates.
static inline void update_list_matrix(UpdateList *list, const ParamLayout *layout, UpdateKind kind, int i, size_t max) {
    MuonMatrix matrix = muon_matrix(layout, i);
    UpdateRange ranges[LAYER_PARAMS];
    bool whole = layout->sharding.stage < 1;
    int num_ranges = bucket_update_ranges(ranges, layout, layer_bucket(matrix.layer));
    UpdateBucket bucket = {.kind = kind, .param_bucket = whole ? 0 : layer_bucket(matrix.layer), .matrix = i};
    for (int r = 0; r < num_ranges; r++) {
        if (ranges[r].tensor % NUM_PARAM_TENSORS == (int)matrix.id) {
            update_list_cut(list, bucket, &ranges[r], 1, max);
        }
    }
}

// The update of one rank. Free with update_list_free.
static inline UpdateList update_list(const ParamLayout *layout) {
    bool whole = layout->sharding.stage < 1, by_bucket = !whole || layout->sharding.optimizer == OPTIMIZER_MUON;
    size_t max = layout->sharding.offload > 0 ? update_bucket_elements(layout) : SIZE_MAX;
    int matrices = num_muon_matrices(layout), round = layout->sharding.dp_size, count = 0;
    UpdateRange *ranges = (UpdateRange *)xmalloc((size_t)num_param_tensors(layout->num_layers) * sizeof *ranges);
    UpdateList list = {NULL, NULL, 0, 0};
    for (int b = 0; b < num_buckets(layout); b++) {
        count += bucket_update_ranges(ranges + count, layout, b);
        if (!by_bucket && b < num_buckets(layout) - 1) { continue; }
        update_list_adamw(&list, layout, whole ? 0 : b, ranges, count, max);
        count = 0;
    }
    free(ranges);
    for (int first = 0; first < matrices; first += round) {
        int end = first + round < matrices ? first + round : matrices;
        UpdateBucket orthogonalise = {.kind = UPDATE_ORTHOGONALISE, .matrix = first};
        for (int i = first; i < end; i++) { update_list_matrix(&list, layout, UPDATE_MOMENTUM, i, max); }
        update_list_add(&list, orthogonalise, NULL, 0);
        for (int i = first; i < end; i++) { update_list_matrix(&list, layout, UPDATE_WEIGHTS, i, max); }
    }
    return list;
}

static inline void update_list_free(UpdateList *list) {
    free(list->buckets);
    free(list->ranges);
}
