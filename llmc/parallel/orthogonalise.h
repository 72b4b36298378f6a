/*
A round of Muon (shapes/update_buckets.h) over the ranks. Newton-Schulz needs whole matrices, and ranks hold parts.
  -z 0         every rank has the whole update
  -z 1 to 3    a rank has the elements in its shard, between zeros. A reduce-scatter of the round's matrices gives each
               rank the matrix that it owns: the other terms of a sum are zeros, so no bit depends on their order
  -tp t        a rank has slices. The t ranks of the owner's tensor-parallel group all-gather their slices of the
               matrix, and all of them orthogonalise it: t times the work, but no second exchange
Then the results are all-gathered, and each rank updates its elements. The matrix does not depend on the layout, so the
result has the same bits at each.
defines: Muon, muon_update, muon_clear, muon_orthogonalise
*/
#pragma once
#include "llmc/muon.h"
#include "llmc/parallel/zero.h"
#include "llmc/shapes/update_buckets.h"

typedef struct {
    const Zero *zero;
    const GPT2Config *config;
    Comm *tp;
    floatX *scratch;  // (muon_scratch_elements), during an update
} Muon;

// the elements of matrix i in the current round, from element `offset` of the slice on
static inline floatX *muon_update(const Muon *m, int i, size_t offset) {
    const ParamLayout *layout = &m->zero->layout;
    return m->scratch + (size_t)(i % layout->sharding.dp_size) * muon_slice(layout) + offset;
}

static inline void muon_clear(const Muon *m) {
    const ParamLayout *layout = &m->zero->layout;
    size_t bytes = (size_t)layout->sharding.dp_size * muon_slice(layout) * sizeof(floatX);
    m->zero->device->enqueue_fill(m->scratch, 0, bytes, m->zero->ex);
}

// Copies a slice into its place in the whole matrix, or back.
static inline void muon_copy_slice(const Zero *z, floatX *whole, floatX *slice, const Slice *s, bool back) {
    const size_t row = s->cols * sizeof(floatX), global_row = s->global_cols * sizeof(floatX);
    for (int i = 0; i < s->num_rectangles; i++) {
        floatX *in_slice = slice + rectangle_local(s, i), *in_whole = whole + rectangle_global(s, i);
        z->device->enqueue_copy_rows(back ? in_slice : in_whole, back ? row : global_row, back ? in_whole : in_slice,
                                     back ? global_row : row, s->rectangle_cols * sizeof(floatX), s->rectangle_rows,
                                     z->ex);
    }
}

// Orthogonalises a matrix of this rank. slice: its slice; with one tensor-parallel rank the matrix
static inline void muon_orthogonalise_own(const Muon *m, MuonMatrix matrix, floatX *slice) {
    const Zero *z = m->zero;
    const ParamLayout *layout = &z->layout;
    int t = layout->sharding.tp_size;
    size_t elements = param_count(layout, matrix.id), of_one = (size_t)matrix.rows * (size_t)matrix.cols;
    size_t of_all = layout->slice[matrix.id].global_rows * layout->slice[matrix.id].global_cols;
    floatX *gathered = m->scratch + (size_t)layout->sharding.dp_size * muon_slice(layout), *scratch = gathered;
    floatX *whole = slice;
    if (t > 1) {
        whole = gathered + (size_t)t * muon_slice(layout);
        scratch = whole + param_align(of_all);
        CommWork work = comm_all_gather(gathered, slice, elements, DT_FLOATX, m->tp, z->ex);
        comm_wait(work, m->tp, z->ex);
        for (int rank = 0; rank < t; rank++) {
            Slice s = param_slice(matrix.id, m->config, t, rank);
            muon_copy_slice(z, whole, gathered + (size_t)rank * elements, &s, false);
        }
    }
    for (size_t at = 0; at < of_all; at += of_one) {
        newton_schulz(z->ops, whole + at, scratch, matrix.rows, matrix.cols, z->ex);
    }
    if (t > 1) { muon_copy_slice(z, whole, slice, &layout->slice[matrix.id], true); }
}

// Orthogonalises the matrices of the round that begins with matrix `first`, from the elements of all ranks.
static inline void muon_orthogonalise(const Muon *m, int first) {
    const Zero *z = m->zero;
    const ParamLayout *layout = &z->layout;
    const Sharding *s = &layout->sharding;
    int own = first + s->dp_rank;
    size_t chunk = muon_slice(layout);
    floatX *slice = muon_update(m, own, 0);
    if (s->stage > 0) {
        CommWork work = comm_reduce_scatter(slice, m->scratch, chunk, DT_FLOATX, z->dp, z->ex);
        comm_wait(work, z->dp, z->ex);
    }
    if (own < num_muon_matrices(layout)) { muon_orthogonalise_own(m, muon_matrix(layout, own), slice); }
    if (s->dp_size > 1) {
        CommWork work = comm_all_gather(m->scratch, slice, chunk, DT_FLOATX, z->dp, z->ex);
        comm_wait(work, z->dp, z->ex);
    }
}
