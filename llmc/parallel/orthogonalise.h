/*
A round of Muon (shapes/update_buckets.h) over the ranks. Newton-Schulz needs whole matrices, and ranks hold parts:
each matrix is gathered on the rank that owns it, orthogonalised there, and returned.
  -z 0         every rank has the whole update; the owner broadcasts the orthogonalised one
  -z 1 to 3    a rank sends the part in its shard to the owner, and receives its part of the result
  -tp t        a rank holds slices. The t ranks of the owner's tensor-parallel group gather the matrix from their
               slices, and all of them orthogonalise it: t times the work, but no second exchange
The matrix does not depend on the layout, so the result has the same bits at each.
defines: Muon, muon_open, muon_part, muon_orthogonalise, muon_receive
*/
#pragma once
#include "llmc/parallel/zero.h"
#include "llmc/shapes/update_buckets.h"

typedef struct {
    const Zero *zero;
    const GPT2Config *config;
    Comm *tp;
    MuonScratch at;
    floatX *scratch;  // (at.end), during an update
} Muon;

static inline Muon muon_open(const Zero *zero, const GPT2Config *config, Comm *tp) {
    Muon m = {zero, config, tp, muon_scratch(&zero->layout), NULL};
    return m;
}

// This rank's part of matrix i of the current round: the elements that it updates, as one range.
static inline floatX *muon_part(const Muon *m, int i) {
    const Sharding *s = &m->zero->layout.sharding;
    bool owns = i % s->dp_size == s->dp_rank;
    if (s->stage < 1) { return m->scratch + (owns ? m->at.slice : m->at.parts); }
    return m->scratch + (s->dp_size == 1 ? m->at.slice : m->at.parts + (size_t)(i % s->dp_size) * m->at.part);
}

// -z 1 to 3: moves the parts of matrices [first, end) to their owners, or back.
static inline void muon_exchange(const Muon *m, int first, int end, bool back) {
    const Zero *z = m->zero;
    int ranks = z->dp->size, count = 0;
    CommBlock *blocks = (CommBlock *)xmalloc((size_t)(end - first) * (size_t)ranks * sizeof *blocks);
    for (int i = first; i < end; i++) {
        MuonMatrix matrix = muon_matrix(&z->layout, i);
        ParamLayout layout = z->layout;
        for (int rank = 0; rank < ranks; rank++) {
            layout.sharding.dp_rank = rank;
            ParamRange range = param_owned_range(&layout, matrix.id, matrix.layer, param_count(&layout, matrix.id));
            floatX *part = muon_part(m, i), *in_slice = m->scratch + m->at.slice + range.offset;
            if (range.count == 0) { continue; }
            if (rank != matrix.owner) {
                CommBlock block = {rank, matrix.owner, rank == z->dp->rank ? part : in_slice, range.count};
                if (back) {
                    block.from = matrix.owner;
                    block.to = rank;
                }
                blocks[count++] = block;
            } else if (rank == z->dp->rank) {
                z->device->enqueue_copy(back ? part : in_slice, back ? in_slice : part, range.count * sizeof(floatX),
                                        z->ex);
            }
        }
    }
    CommWork work = comm_exchange(blocks, count, DT_FLOATX, z->dp, z->ex);
    comm_wait(work, z->dp, z->ex);
    free(blocks);
}

// Copies a slice into its place in the whole matrix, or back.
static inline void muon_copy_slice(const Muon *m, floatX *whole, floatX *slice, const Slice *s, bool back) {
    const size_t row = s->cols * sizeof(floatX), global_row = s->global_cols * sizeof(floatX);
    for (int i = 0; i < s->num_rectangles; i++) {
        floatX *in_slice = slice + rectangle_local(s, i), *in_whole = whole + rectangle_global(s, i);
        m->zero->device->enqueue_copy_rows(back ? in_slice : in_whole, back ? row : global_row,
                                           back ? in_whole : in_slice, back ? global_row : row,
                                           s->rectangle_cols * sizeof(floatX), s->rectangle_rows, m->zero->ex);
    }
}

// Orthogonalises matrix i, of which this rank has a slice, or with one tensor-parallel rank all.
static inline void muon_orthogonalise_own(const Muon *m, int i) {
    const Zero *z = m->zero;
    const ParamLayout *layout = &z->layout;
    ParamId id = muon_matrix(layout, i).id;
    int t = layout->sharding.tp_size, rows = muon_rows(layout, id), cols = muon_cols(layout, id);
    size_t elements = param_count(layout, id), matrices = layout->slice[id].global_rows / (size_t)rows;
    floatX *slice = m->scratch + m->at.slice, *gathered = m->scratch + m->at.gathered, *whole = slice;
    if (t > 1) {
        whole = m->scratch + m->at.whole;
        CommWork work = comm_all_gather(gathered, slice, elements, DT_FLOATX, m->tp, z->ex);
        comm_wait(work, m->tp, z->ex);
        for (int rank = 0; rank < t; rank++) {
            Slice s = param_slice(id, m->config, t, rank);
            muon_copy_slice(m, whole, gathered + (size_t)rank * elements, &s, false);
        }
    }
    for (size_t k = 0; k < matrices; k++) {
        z->ops->muon_newton_schulz(whole + k * (size_t)rows * (size_t)cols, m->scratch + m->at.newton_schulz, rows,
                                   cols, z->ex);
    }
    if (t > 1) { muon_copy_slice(m, whole, slice, &layout->slice[id], true); }
}

// Orthogonalises the matrices of the round that begins with matrix `first`, from the parts of all ranks. From -z 1 on,
// the parts hold the result; at -z 0 muon_receive fetches it.
static inline void muon_orthogonalise(const Muon *m, int first) {
    const Sharding *s = &m->zero->layout.sharding;
    int all = num_muon_matrices(&m->zero->layout), end = first + s->dp_size < all ? first + s->dp_size : all;
    bool exchanges = s->stage > 0 && s->dp_size > 1;
    if (exchanges) { muon_exchange(m, first, end, false); }
    if (first + s->dp_rank < end) { muon_orthogonalise_own(m, first + s->dp_rank); }
    if (exchanges) { muon_exchange(m, first, end, true); }
}

// Work enqueued from now on may read the result of matrix i in muon_part.
static inline void muon_receive(const Muon *m, int i) {
    const Zero *z = m->zero;
    MuonMatrix matrix = muon_matrix(&z->layout, i);
    if (z->layout.sharding.stage > 0 || z->dp->size == 1) { return; }
    CommWork work =
        comm_broadcast(muon_part(m, i), param_count(&z->layout, matrix.id), DT_FLOATX, matrix.owner, z->dp, z->ex);
    comm_wait(work, z->dp, z->ex);
}
