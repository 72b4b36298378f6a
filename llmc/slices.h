/*
Tensor parallelism: what rank r of t holds of each parameter tensor.
defines: LocalShape, local_shape, RowShare, row_share, SplitAxis, param_split, SlicePiece, Slice, param_slice, SliceRun,
         slice_num_runs, slice_run, slice_run_within, SlicePlace, slice_place, slice_extract, slice_insert,
         slice_init_tensor

  tensor                 split along                         a rank's                          gradient over the ranks
  wte (Vp,C)             rows, vocabulary                    (vocab, C)                        its own
  qkvw (3C,C), qkvb      rows, by head inside Q, K and V     (3 heads HS, C), (3 heads HS)     its own
  attprojw (C,C)         columns, by head                    (C, heads HS)                     its own
  fcw (4C,C), fcb        rows                                (units, C), (units)               its own
  fcprojw (C,4C)         columns                             (C, units)                        its own
  all others             not: every rank has all             as it is                          the sum of all ranks'
Nothing has to divide by anything. Rank r has heads [r*heads, r*heads + heads), units and ids likewise; those past the
last one are inert: zeros, whose gradients are exactly zero, so that they stay zeros. The last ranks may have nothing
but inert ones. Activations have all C channels, and heads*HS or units where a split tensor made them.
A slice is at most three rectangles of the whole tensor. Its elements are dealt with in runs, which are neighbours here
and there. What depends on an element's place, its first value and its rounding, is keyed by its place in the whole.
*/
#pragma once
#include "comm.h"
#include "params.h"

typedef struct {
    int rank, ranks;
    int heads;      // of NH / t, rounded up
    int attention;  // channels of these heads
    int units;      // of the MLP's 4C / t: where that is not whole, a multiple of UNIT_PADDING
    int vocab;      // ids of Vp / t, where V is rounded up to t * VOCAB_PADDING; the first is rank * vocab
} LocalShape;

enum { UNIT_PADDING = 8 };  // so that rows of units are aligned to 16 bytes

static inline LocalShape local_shape(const GPT2Config *c, int t, int r) {
    LocalShape s;
    int units = 4 * c->channels, whole = t * VOCAB_PADDING;
    s.rank = r, s.ranks = t;
    s.heads = (c->num_heads + t - 1) / t;
    s.attention = s.heads * config_head_size(c);
    s.units = units % t == 0 ? units / t : (units / t / UNIT_PADDING + 1) * UNIT_PADDING;
    s.vocab = (c->vocab_size + whole - 1) / whole * VOCAB_PADDING;
    return s;
}

// which rows of N a rank has, where they are split too: layernorms and the residual stream
typedef struct {
    int chunk;       // N / t, rounded up: the ranks' rows, gathered, are t * chunk, of which N mean something
    int first, own;  // of the N; own is less than chunk in the last ranks
} RowShare;

static inline RowShare row_share(int N, int t, int r) {
    RowShare s;
    s.chunk = (int)comm_chunk((size_t)N, t);
    s.first = r * s.chunk;
    s.own = (int)comm_part((size_t)N, (size_t)s.chunk, r);
    return s;
}

typedef enum { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLS } SplitAxis;

// a bias is one row of its outputs, so where they are split it is by columns
static inline SplitAxis param_split(ParamId id) {
    switch (id) {
    case WTE:
    case QKVW:
    case FCW: return SPLIT_ROWS;
    case QKVB:
    case ATTPROJW:
    case FCB:
    case FCPROJW: return SPLIT_COLS;
    default: return SPLIT_NONE;
    }
}

// A rectangle: the element it begins with here and in the whole tensor, and its extent. Rows lie as far apart as here,
// and there, a row is long
typedef struct {
    size_t local, global, rows, cols;
} SlicePiece;

enum { MAX_SLICE_PIECES = 3 };

typedef struct {
    size_t rows, cols;                // of the rank's tensor, inert elements included
    size_t global_rows, global_cols;  // of the whole one, without the vocabulary's padding
    int num_pieces;
    SlicePiece pieces[MAX_SLICE_PIECES];  // of one shape
    size_t runs_of_piece;                 // each row is a run, or, where rows follow on each other, all are one
} Slice;

// the split axis: `groups` times `whole` elements, of each group `size` for a rank, of which `used` are not inert
typedef struct {
    int groups;
    size_t whole, size, used;
} SplitRange;

static inline SplitRange split_range(ParamId id, const GPT2Config *c, const LocalShape *s) {
    bool heads = id == QKVW || id == QKVB || id == ATTPROJW;
    SplitRange range;
    range.groups = id == QKVW || id == QKVB ? 3 : 1;
    range.whole = id == WTE ? (size_t)c->vocab_size : (heads ? 1 : 4) * (size_t)c->channels;
    range.size = (size_t)(id == WTE ? s->vocab : heads ? s->attention : s->units);
    range.used = comm_part(range.whole, range.size, s->rank);
    if (range.used == range.whole && range.size == range.whole) {  // one group, so that its run is whole
        range.whole = range.size = range.used = (size_t)range.groups * range.whole;
        range.groups = 1;
    }
    return range;
}

// What rank r of t has of a tensor of the model *global; of a layered one, of each layer's
static inline Slice param_slice(ParamId id, const GPT2Config *global, int t, int r) {
    Slice s;
    LocalShape shape = local_shape(global, t, r);
    SplitAxis axis = param_split(id);
    s.rows = s.global_rows = param_used_rows(id, global), s.cols = s.global_cols = param_cols(id, global);
    s.num_pieces = 1, s.runs_of_piece = 1;
    s.pieces[0].local = s.pieces[0].global = 0, s.pieces[0].rows = s.rows, s.pieces[0].cols = s.cols;
    if (axis == SPLIT_NONE) { return s; }
    SplitRange range = split_range(id, global, &shape);
    size_t *along = axis == SPLIT_ROWS ? &s.rows : &s.cols;
    size_t local_step = axis == SPLIT_ROWS ? s.cols : 1, global_step = axis == SPLIT_ROWS ? s.global_cols : 1;
    *along = (size_t)range.groups * range.size;
    s.num_pieces = range.used > 0 ? range.groups : 0;
    for (int i = 0; i < s.num_pieces; i++) {
        SlicePiece *piece = &s.pieces[i];
        piece->local = (size_t)i * range.size * local_step;
        piece->global = ((size_t)i * range.whole + (size_t)r * range.size) * global_step;
        piece->rows = axis == SPLIT_ROWS ? range.used : s.global_rows;
        piece->cols = axis == SPLIT_COLS ? range.used : s.global_cols;
        s.runs_of_piece = piece->cols == s.cols && piece->cols == s.global_cols ? 1 : piece->rows;
    }
    return s;
}

// ---- runs

// elements [local, local + count) are [global, global + count) of the whole tensor
typedef struct {
    size_t local, global, count;
} SliceRun;

static inline size_t slice_num_runs(const Slice *s) { return (size_t)s->num_pieces * s->runs_of_piece; }

// the i-th of them, in ascending order; they are as long as can be. What no run has is inert
static inline SliceRun slice_run(const Slice *s, size_t i) {
    const SlicePiece *piece = &s->pieces[i / s->runs_of_piece];
    size_t row = i % s->runs_of_piece, count = piece->rows * piece->cols / s->runs_of_piece;
    SliceRun run = {piece->local + row * s->cols, piece->global + row * s->global_cols, count};
    return run;
}

// what of it lies in [first, first + count) of the rank's tensor; count is 0 where nothing does
static inline SliceRun slice_run_within(SliceRun run, size_t first, size_t count) {
    size_t from = run.local > first ? run.local : first, end = run.local + run.count;
    size_t to = end < first + count ? end : first + count;
    SliceRun part = {from, run.global + from - run.local, from < to ? to - from : 0};
    return part;
}

// Where an element of the whole tensor is if there are t slices: in which, which of that slice's it is, and how many
// from it on are neighbours there as well.
typedef struct {
    int slice;
    size_t local, count;
} SlicePlace;

static inline SlicePlace slice_place(ParamId id, const GPT2Config *c, int t, size_t element) {
    SlicePlace place = {0, element, SIZE_MAX};
    SplitAxis axis = param_split(id);
    if (axis == SPLIT_NONE || t == 1) { return place; }
    LocalShape shape = local_shape(c, t, 0);
    SplitRange range = split_range(id, c, &shape);
    size_t cols = param_cols(id, c), row = element / cols, col = element % cols, along = axis == SPLIT_ROWS ? row : col;
    size_t in_group = along % range.whole, local = along / range.whole * range.size + in_group % range.size;
    place.slice = (int)(in_group / range.size);
    if (axis == SPLIT_ROWS) {
        place.local = local * cols + col, place.count = cols - col;
    } else {
        size_t left = range.size - in_group % range.size, in_whole = range.whole - in_group;
        place.local = row * (size_t)range.groups * range.size + local;
        place.count = left < in_whole ? left : in_whole;
    }
    return place;
}

// ---- between the rank's tensor (rows,cols) and the whole one (global_rows,global_cols), elements of `size` bytes each

// local = the rank's part, and zeros where it is inert
static inline void slice_extract(void *local, const void *global, const Slice *s, size_t size) {
    size_t runs = slice_num_runs(s);
    memset(local, 0, s->rows * s->cols * size);
    for (size_t i = 0; i < runs; i++) {
        SliceRun run = slice_run(s, i);
        memcpy((char *)local + run.local * size, (const char *)global + run.global * size, run.count * size);
    }
}

// the rank's part of global = local
static inline void slice_insert(void *global, const void *local, const Slice *s, size_t size) {
    size_t runs = slice_num_runs(s);
    for (size_t i = 0; i < runs; i++) {
        SliceRun run = slice_run(s, i);
        memcpy((char *)global + run.global * size, (const char *)local + run.local * size, run.count * size);
    }
}

// out (count) = the first values of elements first.. of the rank's tensor, zeros where they are inert
static inline void slice_init_tensor(real *out, const Slice *s, ParamId id, int layer, size_t first, size_t count,
                                     const GPT2Config *global, uint64_t seed) {
    size_t runs = slice_num_runs(s);
    memset(out, 0, count * sizeof *out);
#pragma omp parallel
    for (size_t i = 0; i < runs; i++) {
        SliceRun run = slice_run_within(slice_run(s, i), first, count);
#pragma omp for schedule(static) nowait
        for (size_t j = 0; j < run.count; j++) {
            out[run.local - first + j] = param_init_value(id, layer, run.global + j, global, seed);
        }
    }
}
