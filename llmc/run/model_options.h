/*
From flags to the options that a model is built with. run/fit.h chooses flags that fit into memory.
defines: sharding_of, takes_bf16_inputs, choose_matmul_inputs, model_options, print_offload_note
*/
#pragma once
#include "llmc/memory/gpt2_plan.h"
#include "llmc/run/backends.h"
#include "llmc/run/train_args.h"

// -r -rk -rn for a model of L blocks. -r auto is level 0 until choose_options sets the level.
static inline Recompute recompute_of(const TrainArgs *a, int L) {
    Recompute r = {a->recompute == RECOMPUTE_AUTO ? 0 : a->recompute, a->recompute_every > 0 ? a->recompute_every : 1,
                   a->recompute_layers, false};
    if (r.layers < 0 || r.layers > L) { r.layers = L; }
    return r;
}

// -gd auto: accumulating micro-batches in bf16 would lose precision. From -z 2 on they are accumulated in shards, which
// are fp32 whatever type is communicated.
static inline DType gradients_of(const TrainArgs *a) {
    bool accumulates = accumulation_steps(a) > 1 && a->zero < 2;
    const DType types[] = {accumulates ? DT_REAL : DT_FLOATX, DT_REAL, DT_BF16};
    return types[a->gradients];
}

// Neighbouring ranks of the world hold the slices of one model. Rank 3 of 4 at -tp 2 has dp_rank 1 and tp_rank 1. On a
// CPU the device's memory is the host's, and --offload does nothing.
static inline Sharding sharding_of(const TrainArgs *a, const Backend *backend, int rank) {
    int t = a->tensor_parallel;
    Sharding s = {
        .dp_size = data_ranks(a),
        .dp_rank = rank / t,
        .stage = data_ranks(a) > 1 ? a->zero : 0,
        .tp_size = t,
        .tp_rank = rank % t,
        .offload = is_gpu(backend) ? a->offload : 0,
    };
    return s;
}

// whether fp32 matmuls of this build can round their inputs to bf16: on a CPU with AVX512-BF16
static inline bool takes_bf16_inputs(const Backend *backend) {
    return backend == &cpu_backend && GEMM_HAS_BF16 && DT_FLOATX == DT_F32;
}

// -f auto of a run: config.json gets the choice, so that a resumed run makes the same one. All ranks choose alike.
static inline void choose_matmul_inputs(TrainArgs *a, const Backend *backend, Comm *world) {
    if (a->matmul_precision != MATMUL_AUTO) { return; }
    a->matmul_precision = comm_max(!takes_bf16_inputs(backend), world) ? 1 : 2;
}

static inline ModelOptions model_options(const TrainArgs *a, const GPT2Config *c, const Backend *backend) {
    ModelOptions o;
    memset(&o, 0, sizeof o);
    o.backend = backend;
    o.capability = backend->capability();
    o.training = !a->generate && !a->eval;
    o.B = a->generate ? 1 : a->B;
    o.T = a->generate ? 64 : a->T;
    o.micro_steps = o.training ? accumulation_steps(a) : 1;
    o.decode_positions = (o.training && a->sample_every > 0) || a->generate ? c->max_seq_len : 0;
    o.sharding = sharding_of(a, backend, a->rank);
    o.gather_again = a->gather_again != 0;
    o.round_matmul_inputs = a->matmul_precision >= 2 && takes_bf16_inputs(backend);
    o.tf32 = a->matmul_precision > 0;
    o.graph = o.training && a->graph != 0;
    o.fuse_gelu = a->fuse_gelu == FUSE_GELU_ON;
    o.recompute = o.training ? recompute_of(a, c->num_layers) : forward_only(c->num_layers);
    options_set_offload(&o, o.sharding.offload);
    o.master = (MasterKind)a->master;
    o.moments = moment_types[a->moments];
    o.gradients = gradients_of(a);
    if (a->recompute_every == 0) { o.recompute.every = best_segment(c, o); }
    return o;
}

// notes: --offload on a CPU, and below 3 without training
static inline void print_offload_note(FILE *out, const TrainArgs *a, const Backend *backend) {
    bool trains = !a->generate && !a->eval;
    if (a->offload == 0) { return; }
    if (!is_gpu(backend)) {
        fprintf(out, "note      --offload %d does nothing on a CPU: the model is already in host memory\n", a->offload);
    } else if (!trains && a->offload < 3) {
        fprintf(out, "note      --offload %d moves nothing of --generate and --eval: 3 moves the weights\n",
                a->offload);
    }
}
