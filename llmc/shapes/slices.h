/*
Tensor parallelism: the slice of each parameter tensor that rank r of t holds.

  tensor                 split along                         slice                             gradient
  wte (Vp,C)             rows, vocabulary                    (vocab, C)                        the rank's own
  qkvw (3C,C), qkvb      rows, by head inside Q, K and V     (3 heads HS, C), (3 heads HS)     the rank's own
  attprojw (C,C)         columns, by head                    (C, heads HS)                     the rank's own
  fcw (4C,C), fcb        rows                                (d_ff, C), (d_ff)                 the rank's own
  fcprojw (C,4C)         columns                             (C, d_ff)                         the rank's own
  all others             replicated                          the whole tensor                  all-reduced
The biases qkvb and fcb, (1,3C) and (1,4C) in memory, are split by columns.
No size has to be divisible by t. Rank r has heads [r*heads, r*heads + heads), and MLP channels and vocabulary ids
likewise. Heads, channels and ids past the last one are padding: zeros with zero gradients, so they stay zeros. The last
ranks may hold only padding. Outputs of column-parallel layers have attn_dim or d_ff channels; all other activations
have C channels. A slice is at most three rectangles of the whole tensor. Initial values and stochastic rounding are
keyed by an element's offset in the whole tensor, so they do not depend on t.
*/
#pragma once
#include "llmc/common/range.h"   // IWYU pragma: export
#include "llmc/shapes/params.h"  // IWYU pragma: export

// the sizes of one tensor-parallel rank
typedef struct {
    int tp_rank, tp_size;
    int head_size;  // HS
    int heads;      // NH / t, rounded up
    int attn_dim;   // heads * HS
    int d_ff;       // channels inside the MLP: 4C / t, rounded up to D_FF_PADDING if t does not divide 4C
    int vocab;      // vocabulary ids: V rounded up to t * VOCAB_PADDING, / t; the first id is tp_rank * vocab
} LocalShape;

enum { D_FF_PADDING = 8 };  // rows of d_ff channels are aligned to 16 bytes in bf16

static inline LocalShape local_shape(const GPT2Config *c, int t, int r) {
    LocalShape s;
    int d_ff = 4 * c->channels, vocab_multiple = t * VOCAB_PADDING;
    s.tp_rank = r;
    s.tp_size = t;
    s.heads = (c->num_heads + t - 1) / t;
    s.head_size = config_head_size(c);
    s.attn_dim = s.heads * s.head_size;
    s.d_ff = d_ff % t == 0 ? d_ff / t : (d_ff / t / D_FF_PADDING + 1) * D_FF_PADDING;
    s.vocab = (c->vocab_size + vocab_multiple - 1) / vocab_multiple * VOCAB_PADDING;
    return s;
}

// Of N rows, those that rank r holds in layernorms and the residual stream (Megatron's sequence parallelism). Gathered
// rows are t chunks of chunk_size(N, t) rows, of which the first N are used.
static inline Range row_range(int N, int t, int r) { return chunk_range((size_t)N, chunk_size((size_t)N, t), r); }

// At most three rectangles of the whole tensor, of equal size and at equal distances. Rectangle i begins at element
// i * local_stride of the slice and at element global_offset + i * global_stride of the whole tensor. The row stride is
// `cols` in the slice and `global_cols` in the whole tensor.
typedef struct {
    size_t rows, cols;                // of the slice, padding included
    size_t global_rows, global_cols;  // of the whole tensor, without the vocabulary's padding
    int num_rectangles;
    size_t rectangle_rows, rectangle_cols;
    size_t local_stride, global_stride, global_offset;
    size_t ranges_per_rectangle;  // a range a row, or one range where rows are adjacent in both tensors
} Slice;

// A tensor's split axis is made of groups of *group_size elements: Q, K and V are three groups. A slice has *slice_size
// elements of each group, padding included. Returns the number of groups. For QKVW of d12 at t = 2 these are 3 groups
// of 768, in slices of 384.
static inline int split_sizes(size_t *group_size, size_t *slice_size, ParamId id, const GPT2Config *c,
                              const LocalShape *s) {
    bool by_head = id == QKVW || id == QKVB || id == ATTPROJW;
    int groups = id == QKVW || id == QKVB ? 3 : 1;
    *group_size = id == WTE ? (size_t)c->vocab_size : (by_head ? 1 : 4) * (size_t)c->channels;
    *slice_size = (size_t)(id == WTE ? s->vocab : by_head ? s->attn_dim : s->d_ff);
    if (*slice_size != *group_size) { return groups; }
    *group_size = *slice_size = (size_t)groups * *group_size;  // not split: one group, one rectangle
    return 1;
}

// the slice that rank r of t holds of a tensor of the model *global; the same for each layer
static inline Slice param_slice(ParamId id, const GPT2Config *global, int t, int r) {
    Slice s;
    LocalShape shape = local_shape(global, t, r);
    SplitAxis axis = param_split(id);
    memset(&s, 0, sizeof s);
    s.rows = s.global_rows = s.rectangle_rows = param_used_rows(id, global);
    s.cols = s.global_cols = s.rectangle_cols = param_cols(id, global);
    s.num_rectangles = 1;
    s.ranges_per_rectangle = 1;
    if (axis == SPLIT_NONE) { return s; }
    size_t group_size, slice_size, step = axis == SPLIT_ROWS ? s.cols : 1;
    int groups = split_sizes(&group_size, &slice_size, id, global, &shape);
    size_t used = chunk_range(group_size, slice_size, r).count;  // of slice_size; the others are padding
    if (axis == SPLIT_ROWS) {
        s.rows = (size_t)groups * slice_size;
        s.rectangle_rows = used;
    } else {
        s.cols = (size_t)groups * slice_size;
        s.rectangle_cols = used;
    }
    s.num_rectangles = used > 0 ? groups : 0;
    s.local_stride = slice_size * step;
    s.global_stride = group_size * step;
    s.global_offset = (size_t)r * slice_size * step;
    bool adjacent_rows = s.rectangle_cols == s.cols && s.rectangle_cols == s.global_cols;
    s.ranges_per_rectangle = adjacent_rows ? 1 : s.rectangle_rows;
    return s;
}

// the first element of a rectangle in the slice, and in the whole tensor
static inline size_t rectangle_local(const Slice *s, int rectangle) { return (size_t)rectangle * s->local_stride; }
static inline size_t rectangle_global(const Slice *s, int rectangle) {
    return s->global_offset + (size_t)rectangle * s->global_stride;
}

// ---- ranges of a slice

// elements [local, local + count) of the slice are [global, global + count) of the whole tensor
typedef struct {
    size_t local, global, count;
} SliceRange;

static inline size_t slice_num_ranges(const Slice *s) { return (size_t)s->num_rectangles * s->ranges_per_rectangle; }

// the i-th range of a slice, in ascending order. Elements in no range are padding.
static inline SliceRange slice_range(const Slice *s, size_t i) {
    int rectangle = (int)(i / s->ranges_per_rectangle);
    size_t row = i % s->ranges_per_rectangle, count = s->rectangle_rows * s->rectangle_cols / s->ranges_per_rectangle;
    SliceRange range = {rectangle_local(s, rectangle) + row * s->cols,
                        rectangle_global(s, rectangle) + row * s->global_cols, count};
    return range;
}

// the part of a slice range in elements [offset, offset + count) of the slice; count is 0 if they do not overlap
static inline SliceRange slice_range_within(SliceRange range, size_t offset, size_t count) {
    Range local = {range.local, range.count}, wanted = {offset, count}, both = range_intersect(local, wanted);
    SliceRange within = {both.offset, range.global + both.offset - range.local, both.count};
    return within;
}

// Returns which of t slices holds an element of the whole tensor, 0 for a replicated tensor. *local is the longest
// range of that slice that begins with this element and whose elements are adjacent in the whole tensor too.
static inline int slice_of(Range *local, ParamId id, const GPT2Config *c, int t, size_t element) {
    SplitAxis axis = param_split(id);
    local->offset = element;
    local->count = SIZE_MAX;
    if (axis == SPLIT_NONE || t == 1) { return 0; }
    LocalShape shape = local_shape(c, t, 0);
    size_t group_size, slice_size;
    int groups = split_sizes(&group_size, &slice_size, id, c, &shape);
    size_t cols = param_cols(id, c), row = element / cols, col = element % cols, along = axis == SPLIT_ROWS ? row : col;
    size_t group = along / group_size, in_group = along % group_size;
    size_t local_along = group * slice_size + in_group % slice_size;
    if (axis == SPLIT_ROWS) {
        local->offset = local_along * cols + col;
        local->count = cols - col;
    } else {
        size_t left_in_slice = slice_size - in_group % slice_size;
        size_t left_in_group = group_size - in_group;
        local->offset = row * (size_t)groups * slice_size + local_along;
        local->count = left_in_slice < left_in_group ? left_in_slice : left_in_group;
    }
    return (int)(in_group / slice_size);
}

// ---- initial values

// out (count) = the initial values of elements [offset, offset + count) of a slice, zeros where they are padding
static inline void slice_init_tensor(real *out, const Slice *s, ParamId id, int layer, size_t offset, size_t count,
                                     const GPT2Config *global, uint64_t seed) {
    size_t num_ranges = slice_num_ranges(s);
    memset(out, 0, count * sizeof *out);
#pragma omp parallel
    for (size_t i = 0; i < num_ranges; i++) {
        SliceRange range = slice_range_within(slice_range(s, i), offset, count);
#pragma omp for schedule(static) nowait
        for (size_t j = 0; j < range.count; j++) {
            out[range.local - offset + j] = param_init_value(id, layer, range.global + j, global, seed);
        }
    }
}
