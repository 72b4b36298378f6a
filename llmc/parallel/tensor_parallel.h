/*
Tensor parallelism (Megatron-LM: Shoeybi et al. 2019) with sequence parallelism (Korthikanti et al. 2022): each of t
ranks holds a slice of every linear layer and of wte. A rank has all rows of the micro-batch inside attention and the
MLP, and 1/t of the rows in layernorms and the residual stream.
  column-parallel linear   the rank holds rows of weight and computes some columns of out.  All-gathers the rows of in
  row-parallel linear      the rank holds columns of weight; out is a sum over the ranks.  Reduce-scatters its rows
  embedding, classifier    the rank holds rows of wte: some vocabulary ids
One rank communicates nothing: each function is then one operation. Shapes: N rows of the micro-batch; C channels; K and
OC are this rank's channels or units. With t ranks the buffers for all rows have t * chunk_size(N, t) rows.
In the backward a collective begins when its input is ready. The wait comes where the output is read. Compute between
begin and wait overlaps the collective. The forward has no such compute and waits at once.
defines: TensorParallel, tp_open, tp_set_rows, ParallelRows, rows_acquire, rows_release, rows_all_gather, rows_wait,
         rows_reduce_scatter, column_parallel_forward, row_parallel_forward,
         row_parallel_backward, column_parallel_backward, vocab_parallel_embedding_forward,
         vocab_parallel_embedding_backward, vocab_parallel_classifier, replicated_grads_all_reduce
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
    bool splits_rows;     // else every rank has all rows: one rank, or decoding
    int own_rows;         // this rank's rows of N
    size_t first_row;     // index of its first row
    size_t own_offset;    // first_row * C
    size_t chunk;         // elements of one rank's chunk of rows
    size_t all_elements;  // t * chunk: of a buffer for the rows of all ranks
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

// Sets the number of rows. decoding: every rank has all rows; nothing is all-gathered, and sums are all-reduced.
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

// This rank's rows of a tensor, and the rows of all ranks. With one rank both are the same memory.
typedef struct {
    floatX *own;       // inside `all` or apart from it
    floatX *all;       // complete after rows_all_gather and rows_wait
    Scratch *scratch;  // that holds `all`; NULL: neither is scratch
    CommWork work;     // of the all-gather; 0: none begun
} ParallelRows;

// `own` with a scratch buffer for the rows of all ranks. Free with rows_release.
static inline ParallelRows rows_acquire(const TensorParallel *tp, floatX *own, Scratch *scratch, const char *name) {
    ParallelRows rows = {own, own, NULL, 0};
    if (!tp->splits_rows) { return rows; }
    rows.all = scratch_acquire(scratch, name, tp->all_elements);
    rows.scratch = scratch;
    return rows;
}

static inline void rows_release(ParallelRows *rows) {
    if (rows->scratch) { scratch_release(rows->scratch); }
}

// Begins to all-gather the rows of all ranks.
static inline void rows_all_gather(const TensorParallel *tp, ParallelRows *rows) {
    if (!tp->splits_rows) { return; }
    rows->work = comm_all_gather(rows->all, rows->own, tp->chunk, DT_FLOATX, tp->comm, tp->ex);
}

// Work enqueued from now on may read the rows of all ranks, which are returned.
static inline floatX *rows_wait(const TensorParallel *tp, const ParallelRows *rows) {
    if (rows->work) { comm_wait(rows->work, tp->comm, tp->ex); }
    return rows->all;
}

// Begins the reduce-scatter of `partial`, the rows of all ranks, in place; when decoding an all-reduce. Returns this
// rank's rows of the sum, readable after rows_wait.
static inline ParallelRows rows_reduce_scatter(const TensorParallel *tp, floatX *partial) {
    floatX *own = partial + tp->own_offset;
    ParallelRows sum = {own, own, NULL, 0};
    if (tp->splits_rows) {
        sum.work = comm_reduce_scatter(own, partial, tp->chunk, DT_FLOATX, tp->comm, tp->ex);
    } else if (tp->comm->size > 1) {
        sum.work = comm_all_reduce(partial, tp->chunk, DT_FLOATX, tp->comm, tp->ex);
    }
    return sum;
}

// ---- linear layers

// All-gathers the rows of in, then out (N,OC) = in (N,C) weight (OC,C)^T + bias (OC), of all rows. gelu (N,OC) =
// gelu(out) in the same matmul, unless gelu is NULL.
static inline void column_parallel_forward(const TensorParallel *tp, floatX *out, floatX *gelu, ParallelRows in,
                                           const floatX *weight, const floatX *bias, int N, int C, int OC) {
    if (tp->splits_rows) {
        CommWork gather = comm_all_gather(in.all, in.own, tp->chunk, DT_FLOATX, tp->comm, tp->ex);
        comm_wait(gather, tp->comm, tp->ex);
    }
    if (gelu) {
        tp->ops->matmul_gelu_forward(gelu, out, in.all, weight, bias, N, C, OC, tp->ex);
    } else {
        tp->ops->matmul_forward(out, in.all, weight, bias, NULL, N, C, OC, tp->ex);
    }
}

// out = in (N,K) weight (C,K)^T, reduce-scattered, + bias (C) + residual. out and residual are this rank's rows. With t
// ranks the matmul writes to tp->partial.
static inline void row_parallel_forward(const TensorParallel *tp, floatX *out, const floatX *in, const floatX *weight,
                                        const floatX *bias, const floatX *residual, int N, int K, int C) {
    if (tp->comm->size == 1) {
        tp->ops->matmul_forward(out, in, weight, bias, residual, N, K, C, tp->ex);
        return;
    }
    floatX *partial = scratch_acquire(tp->partial, "partial", tp->all_elements);
    tp->ops->matmul_forward(partial, in, weight, NULL, NULL, N, K, C, tp->ex);
    ParallelRows sum = rows_reduce_scatter(tp, partial);
    comm_wait(sum.work, tp->comm, tp->ex);
    tp->ops->residual_forward(out, sum.own, bias, residual, tp->own_rows, C, tp->ex);
    scratch_release(tp->partial);
}

// The backward of row_parallel_forward without its residual. dout: rows_all_gather has begun.
//   din (N,K) = dout (N,C) weight (C,K), times gelu'(gelu_pre (N,K)) unless that is NULL;  din may alias in
//   dweight (C,K), dbias (C), dgelu_bias (K) (+)= as in matmul_backward. Every rank has the whole bias: dbias (+)= the
//   sum over this rank's rows, all-reduced later with the other replicated tensors.
static inline void row_parallel_backward(const TensorParallel *tp, floatX *din, Gradient dweight, Gradient dbias,
                                         Gradient dgelu_bias, const ParallelRows *dout, const floatX *in,
                                         const floatX *weight, const floatX *gelu_pre, GradMode mode, int N, int K,
                                         int C) {
    if (tp->splits_rows) {  // dbias alone, over this rank's rows
        tp->ops->matmul_backward(NULL, no_gradient, dbias, no_gradient, dout->own, NULL, NULL, NULL, mode, tp->own_rows,
                                 0, C, tp->ex);
        dbias = no_gradient;
    }
    const floatX *all = rows_wait(tp, dout);
    tp->ops->matmul_backward(din, dweight, dbias, dgelu_bias, all, in, weight, gelu_pre, mode, N, K, C, tp->ex);
}

// The backward of column_parallel_forward. in: rows_all_gather has begun. Returns this rank's rows of
//   din (N,C) = dout (N,OC) weight (OC,C), summed over the ranks;  din is a buffer for the rows of all ranks
//   dweight (OC,C), dbias (OC) (+)= as in matmul_backward
// With t ranks, din's matmul comes first: its reduce-scatter runs beside dweight's matmul.
static inline const floatX *column_parallel_backward(const TensorParallel *tp, floatX *din, Gradient dweight,
                                                     Gradient dbias, const floatX *dout, const ParallelRows *in,
                                                     const floatX *weight, GradMode mode, int N, int C, int OC) {
    const Ops *ops = tp->ops;
    Exec *ex = tp->ex;
    if (!tp->splits_rows) {
        ops->matmul_backward(din, dweight, dbias, no_gradient, dout, in->all, weight, NULL, mode, N, C, OC, ex);
        return din;
    }
    ops->matmul_backward(din, no_gradient, no_gradient, no_gradient, dout, NULL, weight, NULL, mode, N, C, OC, ex);
    ParallelRows sum = rows_reduce_scatter(tp, din);
    const floatX *all = rows_wait(tp, in);
    ops->matmul_backward(NULL, dweight, dbias, no_gradient, dout, all, NULL, NULL, mode, N, C, OC, ex);
    return rows_wait(tp, &sum);
}

// ---- embedding and classifier

// Adds the position embeddings to this rank's rows x (own_rows,C). A document has positions of its own.
static inline void add_positions(const TensorParallel *tp, floatX *x, const floatX *wpe, Documents documents, int T,
                                 int C) {
    if (!documents.ranges) {
        tp->ops->position_embedding_forward(x, wpe, (int)tp->first_row, tp->own_rows, T, C, tp->ex);
        return;
    }
    const Range own = {tp->first_row, (size_t)tp->own_rows};
    for (int d = 0; d < documents.count; d++) {
        Range document = documents.ranges[d], rows = range_intersect(document, own);
        if (rows.count == 0) { continue; }
        tp->ops->position_embedding_forward(x + (rows.offset - own.offset) * (size_t)C, wpe,
                                            (int)(rows.offset - document.offset), (int)rows.count, (int)document.count,
                                            C, tp->ex);
    }
}

// dwpe (maxT,C) (+)= the gradient of add_positions; dout (own_rows,C)
static inline void add_positions_backward(const TensorParallel *tp, Gradient dwpe, const floatX *dout,
                                          Documents documents, GradMode mode, int T, int maxT, int C) {
    if (!documents.ranges) {
        tp->ops->position_embedding_backward(dwpe, dout, mode, (int)tp->first_row, tp->own_rows, T, maxT, C, tp->ex);
        return;
    }
    const Range own = {tp->first_row, (size_t)tp->own_rows};
    for (int d = 0; d < documents.count; d++) {
        Range document = documents.ranges[d], rows = range_intersect(document, own);
        if (rows.count == 0) { continue; }
        tp->ops->position_embedding_backward(dwpe, dout + (rows.offset - own.offset) * (size_t)C, mode,
                                             (int)(rows.offset - document.offset), (int)rows.count, (int)document.count,
                                             maxT, C, tp->ex);
        mode = GRAD_ADD;
    }
}

// out = wte[tokens] + wpe; tokens (B,T), wpe of the first position, out this rank's rows of (B*T,C). One rank holds a
// token's embedding; the other ranks add zeros.
static inline void vocab_parallel_embedding_forward(const TensorParallel *tp, floatX *out, const int *tokens,
                                                    const floatX *wte, const floatX *wpe, Documents documents, int B,
                                                    int T, int C) {
    int N = B * T, first_id = tp->comm->rank * tp->vocab;
    if (tp->comm->size == 1 && !documents.ranges) {
        tp->ops->embedding_forward(out, tokens, wte, wpe, B, T, C, tp->ex);
        return;
    }
    if (tp->comm->size == 1) {
        tp->ops->token_embedding_forward(out, tokens, wte, 0, tp->vocab, N, C, tp->ex);
        add_positions(tp, out, wpe, documents, T, C);
        return;
    }
    floatX *partial = scratch_acquire(tp->partial, "partial", tp->all_elements);
    tp->ops->token_embedding_forward(partial, tokens, wte, first_id, tp->vocab, N, C, tp->ex);
    ParallelRows sum = rows_reduce_scatter(tp, partial);
    const floatX *own = rows_wait(tp, &sum);
    tp->device->enqueue_copy(out, own, (size_t)tp->own_rows * (size_t)C * sizeof(floatX), tp->ex);
    add_positions(tp, out, wpe, documents, T, C);
    scratch_release(tp->partial);
}

// dwte (vocab,C) += dout, dwpe (maxT,C) (+)= dout. dout: rows_all_gather has begun.
static inline void vocab_parallel_embedding_backward(const TensorParallel *tp, Gradient dwte, Gradient dwpe,
                                                     const ParallelRows *dout, const int *tokens, Documents documents,
                                                     GradMode mode, int B, int T, int maxT, int C) {
    int N = B * T, first_id = tp->comm->rank * tp->vocab;
    if (tp->comm->size == 1 && !documents.ranges) {
        tp->ops->embedding_backward(dwte, dwpe, dout->own, tokens, mode, B, T, maxT, C, tp->ex);
        return;
    }
    add_positions_backward(tp, dwpe, dout->own, documents, mode, T, maxT, C);
    const floatX *all = rows_wait(tp, dout);
    tp->ops->token_embedding_backward(dwte, all, tokens, first_id, tp->vocab, N, C, tp->ex);
}

// The classifier on logits (rows,vocab), this rank's columns of V: losses (rows) = cross-entropy, and the logits become
// their gradient times dloss, in place, unless dloss is 0. The ranks all-gather three statistics per row.
static inline void vocab_parallel_classifier(const TensorParallel *tp, real *losses, floatX *logits, const int *targets,
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
static inline size_t replicated_grads_copy(const TensorParallel *tp, const Zero *z, void *buffer, bool to_buffer) {
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
static inline void replicated_grads_all_reduce(const TensorParallel *tp, Zero *z, void *buffer) {
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
