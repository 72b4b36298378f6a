/*
The work of a step from the flags alone: its FLOPs, and the bytes that a rank sends to other ranks.
FLOPs per token, of matmuls and attention, two a multiply-add:
  6 M + 6 L C (T + 1)      M = 12 L C^2 + Vp C weights of matmuls
A token attends to (T + 1) / 2 positions on average. Forward and backward of attention are 2 and 4 GEMMs over the pairs
of a query and a key. MFU is the share of the GPU's peak that the model's FLOPs take: recomputation does not raise it.
Bytes that a rank sends to other ranks for one update. Comm.sent_bytes counts the same while training.
  ZeRO (zero.h), with P parameters and G micro-batches, times (N - 1) / N of N data-parallel ranks:
    -z 0   2 P gradients                       all-reduce
    -z 1   P gradients + P parameters          reduce-scatter, all-gather
    -z 2   G P gradients + P parameters        a reduce-scatter after every backward
    -z 3   G P gradients + about 2 G P parameters: layers are all-gathered for every forward and backward
  Tensor parallelism (tensor_parallel.h): rows of activations, statistics of logits, gradients of replicated tensors
  Loss and squared norm: one all-reduce of two numbers
  Muon (orthogonalise.h): 2 M, or M at -z 0, times (N - 1) / N. M: the elements of the matrices, with the layers rounded
  up to a multiple of N. With -tp, all-reduces of (C,C) too
defines: attention_flops_per_token, model_flops_per_token, newton_schulz_share, zero_layer_gathers, zero_sent_bytes,
         gpt2_sent_bytes
*/
#pragma once
#include "llmc/common/floatx.h"
#include "llmc/common/range.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/muon.h"
#include "llmc/shapes/activations.h"
#include "llmc/shapes/layout.h"
#include "llmc/shapes/params.h"
#include "llmc/shapes/update_buckets.h"

// of one GEMM of all heads over the pairs of a query and a key, in one block
static inline double attention_flops_per_token(const GPT2Config *c, int T) { return c->channels * (T + 1.0); }

static inline double model_flops_per_token(const GPT2Config *c, int T) {
    double C = c->channels, L = c->num_layers;
    double weights = 12 * L * C * C + (double)c->padded_vocab_size * C;
    return 6 * weights + 6 * L * attention_flops_per_token(c, T);
}

// FLOPs of Newton-Schulz in an update of `tokens`, as a share of the model's, on the rank with the most layers. A layer
// has four (C,C) and two (4C,C) matrices.
static inline double newton_schulz_share(const GPT2Config *c, const Sharding *s, int T, double tokens) {
    double C = c->channels, layers = (double)chunk_size((size_t)c->num_layers, s->dp_size);
    double of_layer = 4 * newton_schulz_flops(C, C, s->tp_size) + 2 * newton_schulz_flops(C, 4 * C, s->tp_size);
    return s->dp_size * s->tp_size * layers * of_layer / (tokens * model_flops_per_token(c, T));
}

// All-gathers of layers in a micro-step at stage 3. The forward reads every layer; the backward of block l reads layers
// recompute_from(l) to l. A layer in neither of the two buffers is all-gathered before the read.
static inline int zero_layer_gathers(const Recompute *r, int L) {
    int buffered[2] = {-1, -1}, gathers = 0;
    for (int l = 0; l < L; l++) {
        gathers += buffered[l % 2] != l;
        buffered[l % 2] = l;
    }
    for (int l = L - 1; l >= 0; l--) {
        int from = recompute_from(r, l);
        for (int read = from < l ? from : l; read <= l; read++) {
            gathers += buffered[read % 2] != read;
            buffered[read % 2] = read;
        }
    }
    return gathers;
}

// gradients: the type that the backward writes
static inline uint64_t zero_sent_bytes(const ParamLayout *layout, DType gradients, int micro_steps,
                                       const Recompute *r) {
    int ranks = layout->sharding.dp_size, rank = layout->sharding.dp_rank, stage = layout->sharding.stage;
    uint64_t sent = 0, reductions = stage < 2 ? 1 : (uint64_t)micro_steps;
    for (int i = 0; i < num_buckets(layout); i++) {
        Bucket b = param_bucket(layout, i);
        bool by_layer = buffers_params(&layout->sharding) && bucket_kind(layout, i) == LAYER_BUCKET;
        sent += stage == 0 ? all_reduce_bytes(b.size, gradients, rank, ranks)
                           : reductions * all_gather_bytes(b.chunk, gradients, ranks);
        if (stage > 0 && !by_layer) { sent += all_gather_bytes(b.chunk, DT_FLOATX, ranks); }
    }
    if (!buffers_params(&layout->sharding) || stage == 0) { return sent; }
    uint64_t gathers = (uint64_t)micro_steps * (uint64_t)zero_layer_gathers(r, layout->num_layers);
    return sent + gathers * all_gather_bytes(layout->chunk[LAYER_BUCKET], DT_FLOATX, ranks);
}

// All-gathers and reduce-scatters of rows in a micro-step with tensor parallelism:
//   forward of a block                                        4
//   backward of a block                                       4
//   -ra 1, or a recomputed layernorm: each of ln1 and ln2     1
//   -r 4: recomputation of a block                            4; of the last block of a checkpoint segment 2
//   outside of the blocks                                     4
static inline int row_collectives(const Recompute *r, int L, bool gather_again) {
    int count = 4;
    for (int l = 0; l < L; l++) {
        count += 8;
        count += gather_again || !activation_is_saved(r, LN1, l);
        count += gather_again || !activation_is_saved(r, LN2, l);
        count += activation_is_saved(r, QKV, l) ? 0 : 2;
        count += activation_is_saved(r, RESIDUAL3, l) ? 0 : 2;
    }
    return count;
}

static inline uint64_t tensor_parallel_sent_bytes(const GPT2Config *c, const ModelOptions *o,
                                                  const ParamLayout *layout) {
    int t = layout->sharding.tp_size;
    size_t N = (size_t)o->B * (size_t)o->T, rows = (size_t)logits_chunk(c, o);
    uint64_t chunk = all_gather_bytes(chunk_size(N, t) * (size_t)c->channels, DT_FLOATX, t);
    uint64_t sent = (uint64_t)row_collectives(&o->recompute, c->num_layers, o->gather_again) * chunk;
    for (size_t row = 0; row < N; row += rows) {
        sent += all_gather_bytes(3 * (N - row < rows ? N - row : rows), DT_REAL, t);
    }
    return sent * (uint64_t)o->micro_steps +
           all_reduce_bytes(num_replicated(layout), stored_gradients(o), o->sharding.tp_rank, t);
}

// the rounds of Muon (parallel/orthogonalise.h)
static inline uint64_t muon_sent_bytes(const ParamLayout *layout) {
    const Sharding *s = &layout->sharding;
    size_t C = layout->slice[FCW].cols, rounds = chunk_size((size_t)layout->num_layers, s->dp_size);
    uint64_t of_matrix = all_reduce_bytes(1, DT_REAL, s->tp_rank, s->tp_size), sent = 0;
    of_matrix += NEWTON_SCHULZ_STEPS * all_reduce_bytes(C * C, DT_FLOATX, s->tp_rank, s->tp_size);
    for (int i = 0; s->optimizer == OPTIMIZER_MUON && i < NUM_MUON_TENSORS; i++) {
        sent += rounds * (s->stage > 0 ? 2 : 1) *
                all_gather_bytes(muon_chunk(layout, muon_tensors[i]), DT_FLOATX, s->dp_size);
        sent += rounds * (uint64_t)muon_matrix(layout, muon_tensors[i]).count * of_matrix;
    }
    return sent;
}

static inline uint64_t gpt2_sent_bytes(const GPT2Config *c, const ModelOptions *o) {
    ParamLayout layout = param_layout_sharded(c, o->sharding);
    const Sharding *s = &layout.sharding;
    uint64_t bytes = zero_sent_bytes(&layout, o->gradients, o->micro_steps, &o->recompute);
    bytes += all_reduce_bytes(2, DT_REAL, s->dp_rank * s->tp_size + s->tp_rank, s->dp_size * s->tp_size);
    if (s->tp_size > 1) { bytes += tensor_parallel_sent_bytes(c, o, &layout); }
    return bytes + muon_sent_bytes(&layout);
}
