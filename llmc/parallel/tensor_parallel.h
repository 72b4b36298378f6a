/*
Tensor parallelism (Megatron-LM: Shoeybi et al. 2019) with sequence parallelism (Korthikanti et al. 2022): each of t
ranks holds a slice of every linear layer and of wte. A rank has all rows of the micro-batch inside attention and the
MLP, and 1/t of the rows in layernorms and the residual stream.
  column-parallel linear   the rank holds rows of weight and computes some columns of out.  All-gathers the rows of in
  row-parallel linear      the rank holds columns of weight; out is a sum over the ranks.  Reduce-scatters its rows
  embedding, classifier    the rank holds rows of wte: some vocabulary ids
One rank communicates nothing: each function is then one operation, or one for each packed sequence. Shapes: N rows of
the micro-batch; C channels; K and OC are this rank's attn_dim or d_ff. With t ranks the buffers for all rows have
t * chunk_size(N, t) rows.
In the backward a collective begins when its input is ready. The wait comes where the output is read. Compute between
begin and wait overlaps the collective. The forward has no such compute and waits at once.
The forward of a column-parallel linear is matmul_forward: its input is all-gathered already.
*/
#pragma once
#include "llmc/memory/plan.h"
#include "llmc/parallel/zero.h"

typedef struct {
    const Ops *ops;
    const Device *device;
    Exec *ex;
    Comm *comm;        // the t ranks
    int vocab;         // rows of wte that this rank holds; the first is id comm->rank * vocab
    Scratch *partial;  // (rows of all ranks,C): this rank's term of a sum over the ranks
    real *statistics;  // (t,rows of a logits chunk,3)
    // ---- of the current micro-batch (N,C), set by tp_set_rows
    bool splits_rows;          // else every rank has all rows: one rank, or decoding
    int own_rows;              // this rank's rows of N
    size_t first_row;          // index of its first row
    size_t own_offset;         // first_row * C
    size_t chunk;              // elements of one rank's chunk of rows
    size_t all_elements;       // t * chunk: of a buffer for the rows of all ranks
    const floatX *pending[2];  // outputs of the collectives that have begun; NULL: none
    CommWork works[2];
} TensorParallel;

// comm: the t ranks. The other arguments are the fields of TensorParallel. Call tp_set_rows before the first operation.
static inline void tp_open(TensorParallel *tp, const Ops *ops, const Device *device, Exec *ex, Comm *comm, int vocab,
                           Scratch *partial, real *statistics) {
    memset(tp, 0, sizeof *tp);
    tp->ops = ops;
    tp->device = device;
    tp->ex = ex;
    tp->comm = comm;
    tp->vocab = vocab;
    tp->partial = partial;
    tp->statistics = statistics;
}

// ---- rows of the layernorms and of the residual stream

// Sets the number of rows. When decoding, every rank has all rows: nothing is all-gathered, and sums are all-reduced.
static inline void tp_set_rows(TensorParallel *tp, int N, int C, bool decoding) {
    tp->splits_rows = tp->comm->size > 1 && !decoding;
    int ranks = tp->splits_rows ? tp->comm->size : 1, rank = tp->splits_rows ? tp->comm->rank : 0;
    Range own = row_range(N, ranks, rank);
    tp->own_rows = (int)own.count;
    tp->first_row = own.offset;
    tp->own_offset = own.offset * (size_t)C;
    tp->chunk = chunk_size((size_t)N, ranks) * (size_t)C;
    tp->all_elements = tp->chunk * (size_t)ranks;
}

static inline void rows_begin(TensorParallel *tp, const floatX *rows, CommWork work) {
    int i = tp->pending[0] ? 1 : 0;
    if (tp->pending[i]) { run_error("three collectives of tensor parallelism at once: a bug in the trainer"); }
    tp->pending[i] = rows;
    tp->works[i] = work;
}

// Begins to all-gather this rank's rows, `own`, into `all`, of which they may be a part. `all` can be read after
// rows_wait. On one rank `all` is `own`, so there is nothing to do.
static inline void rows_all_gather(TensorParallel *tp, floatX *all, const floatX *own) {
    if (!tp->splits_rows) { return; }
    rows_begin(tp, all, comm_all_gather(all, own, tp->chunk, DT_FLOATX, tp->comm, tp->ex));
}

// Begins to sum `partial`, the rows of all ranks, over the ranks, in place. Returns this rank's rows of the sum,
// readable after rows_wait. This is a reduce-scatter, an all-reduce when decoding, and on one rank nothing.
static inline floatX *rows_reduce_scatter(TensorParallel *tp, floatX *partial) {
    floatX *own = partial + tp->own_offset;
    if (tp->splits_rows) {
        rows_begin(tp, own, comm_reduce_scatter(own, partial, tp->chunk, DT_FLOATX, tp->comm, tp->ex));
    } else if (tp->comm->size > 1) {
        rows_begin(tp, own, comm_all_reduce(partial, tp->chunk, DT_FLOATX, tp->comm, tp->ex));
    }
    return own;
}

// Work enqueued from now on may read `rows`, the output of a collective.
static inline void rows_wait(TensorParallel *tp, const floatX *rows) {
    for (int i = 0; i < 2; i++) {
        if (tp->pending[i] != rows) { continue; }
        comm_wait(tp->works[i], tp->comm, tp->ex);
        tp->pending[i] = NULL;
    }
}

// ---- linear layers

// out = in (N,K) weight (C,K)^T, reduce-scattered, + bias (C) + residual. out and residual are this rank's rows. With t
// ranks the matmul writes to tp->partial.
static inline void row_parallel_forward(TensorParallel *tp, floatX *out, const floatX *in, const floatX *weight,
                                        const floatX *bias, const floatX *residual, int N, int K, int C) {
    if (tp->comm->size == 1) {
        tp->ops->matmul_forward(out, in, weight, bias, residual, no_activation, N, K, C, tp->ex);
        return;
    }
    floatX *partial = scratch_acquire(tp->partial, "partial", tp->all_elements);
    tp->ops->matmul_forward(partial, in, weight, NULL, NULL, no_activation, N, K, C, tp->ex);
    floatX *sum = rows_reduce_scatter(tp, partial);
    rows_wait(tp, sum);
    tp->ops->residual_forward(out, sum, bias, residual, tp->own_rows, C, tp->ex);
    scratch_release(tp->partial);
}

// The backward of row_parallel_forward without its residual. The all-gather of dout (N,C) has begun.
//   din (N,K) = dout weight (C,K), times the activation's slope;  din may alias in
//   dweight (C,K), dbias (C), activation.dbias (K) (+)= as in matmul_backward. Every rank has the whole bias: dbias
//   (+)= the sum over this rank's rows, all-reduced later with the other replicated tensors.
static inline void row_parallel_backward(TensorParallel *tp, floatX *din, Gradient dweight, Gradient dbias,
                                         const floatX *dout, const floatX *in, const floatX *weight,
                                         Activation activation, GradMode mode, int N, int K, int C) {
    rows_wait(tp, dout);
    if (tp->splits_rows) {  // dbias alone, over this rank's rows
        tp->ops->matmul_backward(NULL, no_gradient, dbias, dout + tp->own_offset, NULL, NULL, no_activation, mode,
                                 tp->own_rows, 0, C, tp->ex);
        dbias = no_gradient;
    }
    tp->ops->matmul_backward(din, dweight, dbias, dout, in, weight, activation, mode, N, K, C, tp->ex);
}

// The backward of a column-parallel linear. The all-gather of in (N,C) has begun. Returns this rank's rows of
//   din (N,C) = dout (N,OC) weight (OC,C), summed over the ranks;  din is a buffer for the rows of all ranks
//   dweight (OC,C), dbias (OC) (+)= as in matmul_backward
// With t ranks, din's matmul comes first: its reduce-scatter runs while dweight's matmul does.
static inline const floatX *column_parallel_backward(TensorParallel *tp, floatX *din, Gradient dweight, Gradient dbias,
                                                     const floatX *dout, const floatX *in, const floatX *weight,
                                                     GradMode mode, int N, int C, int OC) {
    const Ops *ops = tp->ops;
    Exec *ex = tp->ex;
    if (!tp->splits_rows) {
        ops->matmul_backward(din, dweight, dbias, dout, in, weight, no_activation, mode, N, C, OC, ex);
        return din;
    }
    ops->matmul_backward(din, no_gradient, no_gradient, dout, NULL, weight, no_activation, mode, N, C, OC, ex);
    const floatX *sum = rows_reduce_scatter(tp, din);
    rows_wait(tp, in);
    ops->matmul_backward(NULL, dweight, dbias, dout, in, NULL, no_activation, mode, N, C, OC, ex);
    rows_wait(tp, sum);
    return sum;
}

// ---- embedding and classifier

// Adds the position embeddings to this rank's rows x (own_rows,C). A packed sequence has positions of its own.
static inline void add_positions(TensorParallel *tp, floatX *x, const floatX *wpe, PackedSequences packed, int T,
                                 int C) {
    if (!packed.ranges) {
        tp->ops->position_embedding_forward(x, wpe, (int)tp->first_row, tp->own_rows, T, C, tp->ex);
        return;
    }
    const Range own = {tp->first_row, (size_t)tp->own_rows};
    for (int i = 0; i < packed.count; i++) {
        Range sequence = packed.ranges[i], rows = range_intersect(sequence, own);
        if (rows.count == 0) { continue; }
        tp->ops->position_embedding_forward(x + (rows.offset - own.offset) * (size_t)C, wpe,
                                            (int)(rows.offset - sequence.offset), (int)rows.count, (int)sequence.count,
                                            C, tp->ex);
    }
}

// dwpe (maxT,C) (+)= the gradient of add_positions; dout (own_rows,C)
static inline void add_positions_backward(TensorParallel *tp, Gradient dwpe, const floatX *dout, PackedSequences packed,
                                          GradMode mode, int T, int maxT, int C) {
    if (!packed.ranges || tp->own_rows == 0) {  // a rank without rows still sets dwpe, to 0
        tp->ops->position_embedding_backward(dwpe, dout, mode, (int)tp->first_row, tp->own_rows, T, maxT, C, tp->ex);
        return;
    }
    const Range own = {tp->first_row, (size_t)tp->own_rows};
    for (int i = 0; i < packed.count; i++) {
        Range sequence = packed.ranges[i], rows = range_intersect(sequence, own);
        if (rows.count == 0) { continue; }
        tp->ops->position_embedding_backward(dwpe, dout + (rows.offset - own.offset) * (size_t)C, mode,
                                             (int)(rows.offset - sequence.offset), (int)rows.count, (int)sequence.count,
                                             maxT, C, tp->ex);
        mode = GRAD_ADD;
    }
}

// out = wte[tokens] + wpe. tokens are (B,T), wpe starts at the first position, and out is this rank's rows of (B*T,C).
// One rank holds a token's embedding, and the other ranks add zeros.
static inline void vocab_parallel_embedding_forward(TensorParallel *tp, floatX *out, const int *tokens,
                                                    const floatX *wte, const floatX *wpe, PackedSequences packed, int B,
                                                    int T, int C) {
    int N = B * T, first_id = tp->comm->rank * tp->vocab;
    if (tp->comm->size == 1 && !packed.ranges) {
        tp->ops->embedding_forward(out, tokens, wte, wpe, B, T, C, tp->ex);
        return;
    }
    if (tp->comm->size == 1) {
        tp->ops->token_embedding_forward(out, tokens, wte, 0, tp->vocab, N, C, tp->ex);
        add_positions(tp, out, wpe, packed, T, C);
        return;
    }
    floatX *partial = scratch_acquire(tp->partial, "partial", tp->all_elements);
    tp->ops->token_embedding_forward(partial, tokens, wte, first_id, tp->vocab, N, C, tp->ex);
    const floatX *sum = rows_reduce_scatter(tp, partial);
    rows_wait(tp, sum);
    tp->device->enqueue_copy(out, sum, (size_t)tp->own_rows * (size_t)C * sizeof(floatX), tp->ex);
    add_positions(tp, out, wpe, packed, T, C);
    scratch_release(tp->partial);
}

// dwte (vocab,C) += dout, dwpe (maxT,C) (+)= dout. The all-gather of dout (N,C) has begun.
static inline void vocab_parallel_embedding_backward(TensorParallel *tp, Gradient dwte, Gradient dwpe,
                                                     const floatX *dout, const int *tokens, PackedSequences packed,
                                                     GradMode mode, int B, int T, int maxT, int C) {
    int N = B * T, first_id = tp->comm->rank * tp->vocab;
    if (tp->comm->size == 1 && !packed.ranges) {
        tp->ops->embedding_backward(dwte, dwpe, dout, tokens, mode, B, T, maxT, C, tp->ex);
        return;
    }
    rows_wait(tp, dout);
    add_positions_backward(tp, dwpe, dout + tp->own_offset, packed, mode, T, maxT, C);
    tp->ops->token_embedding_backward(dwte, dout, tokens, first_id, tp->vocab, N, C, tp->ex);
}

// The classifier on logits (rows,vocab), this rank's columns of V: losses (rows) = cross-entropy, and the logits become
// their gradient times dloss, in place, unless dloss is 0. The ranks all-gather three statistics per row.
static inline void vocab_parallel_classifier(TensorParallel *tp, real *losses, floatX *logits, const int *targets,
                                             real dloss, int rows, int V) {
    Comm *comm = tp->comm;
    int vocab = tp->vocab, first_id = comm->rank * vocab;
    if (comm->size == 1) {
        tp->ops->classifier(losses, logits, targets, dloss, rows, V, vocab, tp->ex);
        return;
    }
    size_t count = 3 * (size_t)rows;
    real *own = tp->statistics + (size_t)comm->rank * count;
    tp->ops->classifier_statistics(own, logits, targets, first_id, rows, V, vocab, tp->ex);
    CommWork work = comm_all_gather(tp->statistics, own, count, DT_REAL, comm, tp->ex);
    comm_wait(work, comm, tp->ex);
    tp->ops->classifier_from_statistics(losses, logits, tp->statistics, targets, dloss, comm->size, first_id, rows, V,
                                        vocab, tp->ex);
}

// ---- gradients of replicated tensors: every rank has summed them over its own rows

// Copies the gradients of replicated tensors from their buckets to `buffer`, or back. Returns their number of elements.
static inline size_t replicated_grads_copy(TensorParallel *tp, const Zero *z, void *buffer, bool to_buffer) {
    size_t count = 0;
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        Range ranges[LAYER_PARAMS];
        Gradient grads = zero_stored_grads(z, b), packed = {buffer, grads.dtype};
        int num_ranges = bucket_ranges(ranges, &z->layout, b, false, false);
        for (int i = 0; i < num_ranges; i++) {
            void *in_bucket = gradient_at(grads, ranges[i].offset).at, *in_buffer = gradient_at(packed, count).at;
            size_t bytes = ranges[i].count * dtype_size(grads.dtype);
            tp->device->enqueue_copy(to_buffer ? in_buffer : in_bucket, to_buffer ? in_bucket : in_buffer, bytes,
                                     tp->ex);
            count += ranges[i].count;
        }
    }
    return count;
}

// All-reduces the gradients of replicated tensors in one call. buffer: (max_replicated) of stored_gradients.
static inline void replicated_grads_all_reduce(TensorParallel *tp, Zero *z, void *buffer) {
    if (tp->comm->size == 1) { return; }
    size_t count = replicated_grads_copy(tp, z, buffer, true);
    DType dtype = zero_stored_grads(z, 0).dtype;
    CommWork work = comm_all_reduce(buffer, count, dtype, tp->comm, tp->ex);
    comm_wait(work, tp->comm, tp->ex);
    // Unless backend->ordered, each tensor-parallel group may add in another order. A broadcast makes the replicas
    // equal.
    if (z->layout.sharding.stage == 0 && !tp->comm->backend->ordered) {
        work = comm_broadcast(buffer, count, dtype, 0, z->dp, tp->ex);
        comm_wait(work, z->dp, tp->ex);
    }
    replicated_grads_copy(tp, z, buffer, false);
}
