/*
A round of Muon (shapes/update_buckets.h) over the ranks. Newton-Schulz needs whole matrices, and ranks hold parts.
  -z 0         Every rank has the whole update.
  -z 1 to 3    Each rank writes the elements of its shard between zeros. A reduce-scatter adds them and gives each rank
               its tensor: all other terms are zeros, so the order of the sum does not matter.
  -tp t        A rank has a slice: some rows of q, k, v and fcw, some columns of attprojw and fcprojw. A is the sum of
               the slices' X^T X or X X^T, (C,C) either way: an all-reduce in each step. Every rank squares it.
Then the results are all-gathered, and each rank updates its elements. If N does not divide the layers, some of the N
ranks have no tensor in the last round of each kind. They orthogonalise zeros: ranks autotune matmuls together, so all
must make the same calls in the same order.
*/
#pragma once
#include <assert.h>
#include "llmc/muon.h"
#include "llmc/parallel/zero.h"
#include "llmc/shapes/update_buckets.h"

// x (n) = the sum of x over the tensor-parallel ranks
static inline void muon_sum(void *x, size_t n, DType dtype, Comm *tp, Exec *ex) {
    if (tp->size > 1) { comm_wait(comm_all_reduce(x, n, dtype, tp, ex), tp, ex); }
}

// Orthogonalises a matrix in place. x (rows,cols): this rank's slice. scratch: NEWTON_SCHULZ_NORM elements, a
// (rows,cols) and two (C,C)
static inline void newton_schulz(const Ops *ops, Comm *tp, floatX *x, floatX *scratch, const MuonMatrix *matrix,
                                 Exec *ex) {
    int rows = matrix->rows, cols = matrix->cols, C = matrix->split_rows ? cols : rows;
    size_t n = (size_t)rows * (size_t)cols, square = (size_t)C * (size_t)C;
    real *norm = (real *)(void *)scratch;
    floatX *y = scratch + NEWTON_SCHULZ_NORM, *a = y + n, *b = a + square;
    const Gradient slice = {x, DT_FLOATX}, gram = {a, DT_FLOATX};
    ops->global_norm_squared(norm, slice, GRAD_SET, n, ex);
    muon_sum(norm, 1, DT_REAL, tp, ex);
    ops->muon_normalise(y, x, norm, n, ex);
    static_assert(NEWTON_SCHULZ_STEPS % 2 == 1, "the last step writes x");
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        floatX *from = step % 2 ? x : y, *to = step % 2 ? y : x;
        if (matrix->split_rows) {  // A = X^T X, as a weight gradient
            ops->matmul_backward(NULL, gram, no_gradient, from, from, NULL, no_activation, GRAD_SET, rows, C, C, ex);
        } else {  // A = X X^T
            ops->matmul_forward(a, from, from, NULL, NULL, no_activation, C, cols, C, ex);
        }
        muon_sum(a, square, DT_FLOATX, tp, ex);
        ops->matmul_forward(b, a, a, NULL, NULL, no_activation, C, C, C, ex);  // A A^T, and A is symmetric
        ops->muon_polynomial(b, a, C, ex);
        if (matrix->split_rows) {  // X B
            ops->matmul_forward(to, from, b, NULL, NULL, no_activation, rows, C, C, ex);
        } else {  // B X, as an input gradient
            ops->matmul_backward(to, no_gradient, no_gradient, b, NULL, from, no_activation, GRAD_SET, C, cols, C, ex);
        }
    }
}

// a layer's tensor in the current round
static inline floatX *muon_update_at(const ParamLayout *layout, floatX *scratch, ParamId id, int layer) {
    return scratch + (size_t)(layer % layout->sharding.dp_size) * muon_chunk(layout, id);
}

// Orthogonalises the tensors of the round that begins with layer `first`. Each rank has written its elements. scratch:
// (muon_scratch_elements)
static inline void muon_orthogonalise(const Zero *z, Comm *tp, floatX *scratch, ParamId id, int first) {
    const Sharding *s = &z->layout.sharding;
    MuonMatrix matrix = muon_matrix(&z->layout, id);
    size_t chunk = muon_chunk(&z->layout, id);
    floatX *own = muon_update_at(&z->layout, scratch, id, first + s->dp_rank);
    floatX *rest = scratch + (size_t)s->dp_size * chunk;
    if (s->stage > 0) { comm_wait(comm_reduce_scatter(own, scratch, chunk, DT_FLOATX, z->dp, z->ex), z->dp, z->ex); }
    for (int i = 0; i < matrix.count; i++) {
        floatX *x = own + (size_t)i * (size_t)matrix.rows * (size_t)matrix.cols;
        newton_schulz(z->ops, tp, x, rest, &matrix, z->ex);
    }
    if (s->dp_size > 1) { comm_wait(comm_all_gather(scratch, own, chunk, DT_FLOATX, z->dp, z->ex), z->dp, z->ex); }
}
