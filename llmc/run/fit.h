/*
Turns flags into the options that a model is built with, and finds flags with which the model fits into memory.

One ladder lists the flags that save memory. We climb it until the plan fits:
  -r auto     climbs only the levels of -r. They change no bits, but for GELU, which is fused at -r 0 alone
  --fit       climbs all of it, but keeps a flag whose value is not the default
An error about too little memory climbs it too, and names the flags that would fit.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/device.h"
#include "llmc/common/floatx.h"
#include "llmc/memory/backend.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/memory/plan.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/backends.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/flags.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/activations.h"
#include "llmc/shapes/layout.h"
#include "llmc/shapes/params.h"

// ---- from flags to the options of a model

// Returns the type of gradients. fp32 may look overcautious, but a sum in bf16 is off by up to 1 % after 128 roundings,
// and after 512 equal terms the next one is less than half of the sum's last bit and adds nothing (doc/memory.md).
// wte's gradient is rounded most often: once for each logits chunk of each micro-batch. From stage 2 on, micro-batches
// accumulate in fp32 shards. -gd auto is fp32 if several micro-batches accumulate, or if too many roundings add up:
// NCCL may round once for each GPU, while MPI adds in fp32.
static inline DType gradients_of(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o) {
    enum { MAX_ROUNDINGS = 128 };
    int64_t rows = (int64_t)o->B * o->T, chunk = logits_chunk(c, o), chunks = (rows + chunk - 1) / chunk;
    int sums = shards_gradients(&o->sharding) ? 1 : o->micro_steps;
    int64_t own = chunks * sums, all = own + (is_gpu(o->backend) ? o->sharding.dp_size - 1 : 0);
    const DType types[] = {sums > 1 || all > MAX_ROUNDINGS ? DT_REAL : DT_FLOATX, DT_REAL, DT_BF16};
    if (own > MAX_ROUNDINGS && a->gradients == GRADIENTS_BF16) {
        input_error("-gd bf16 would round a gradient %lld times in an update, and after more than %d times the norm is "
                    "off by over 1 %%; give -gd auto, which adds in fp32",
                    (long long)own, (int)MAX_ROUNDINGS);
    }
    return types[a->gradients];
}

// Returns the layout of the state. -z has no effect with one data-parallel rank, nor --offload on a CPU, where the
// model is in host memory anyway. Neighbouring ranks form a group of -tp: at -tp 2, rank 3 of 4 has dp_rank 1 and
// tp_rank 1.
static inline Sharding sharding_of(const TrainArgs *a, const Backend *backend, int rank) {
    int t = a->tensor_parallel;
    Sharding s = {
        .dp_size = data_ranks(a),
        .dp_rank = rank / t,
        .stage = data_ranks(a) > 1 ? a->zero : 0,
        .tp_size = t,
        .tp_rank = rank % t,
        .offload = is_gpu(backend) ? a->offload : 0,
        .optimizer = (OptimizerKind)a->optimizer,
    };
    return s;
}

static inline ModelOptions model_options(const TrainArgs *a, const GPT2Config *c, const Backend *backend) {
    ModelOptions o;
    int L = c->num_layers, layers = a->recompute_layers;
    // -r auto is level 0 until choose_options climbs
    Recompute recompute = {a->recompute >= RECOMPUTE_AUTO ? 0 : a->recompute,
                           a->recompute_every > 0 ? a->recompute_every : 1, layers < 0 || layers > L ? L : layers,
                           false};
    memset(&o, 0, sizeof o);
    o.backend = backend;
    o.capability = backend->capability();
    o.training = !a->generate && !a->eval;
    o.B = a->generate ? 1 : a->B;
    o.T = a->generate ? 64 : a->T;  // rows of a forward: tokens of the prompt at once
    o.micro_steps = o.training ? accumulation_steps(a) : 1;
    o.decode_positions = (o.training && a->sample_every > 0) || a->generate ? c->max_seq_len : 0;
    o.sharding = sharding_of(a, backend, a->rank);
    o.gather_again = a->gather_again != 0;
    o.round_matmul_inputs = a->matmul_precision >= 2 && backend->takes_bf16_inputs;
    o.tf32 = a->matmul_precision > 0;
    o.graph = o.training && a->graph != 0;
    o.fuse_gelu = a->fuse_gelu == FUSE_GELU_ON;
    o.recompute = o.training ? recompute : forward_only(L);
    options_set_offload(&o, o.sharding.offload);
    o.remainders = a->master == MASTER_SPLIT;
    o.moments = moment_types[a->moments];
    o.gradients = gradients_of(a, c, &o);
    if (a->recompute_every == 0) { o.recompute.every = best_segment(c, o); }
    return o;
}

// ---- the ladder

// The rungs, cheapest first: flags that round nothing more, then -z 2 and rounded moments, then host memory, since a
// step may wait for its copies. A larger value of a flag takes less memory. Each comment gives the cost.
static const struct {
    size_t field;  // offset of an int in TrainArgs
    int value;
    const char *flag;
} ladder[] = {
    {ARG(zero), 1, "-z 1"},            // none with AdamW: as many bytes as -z 0. Muon has a reduce-scatter of its own
    {ARG(recompute), 0, "-r 0"},       // none: where -r auto begins, so only named and never climbed
    {ARG(recompute), 1, "-r 1"},       // recomputes GELU: one pass over memory
    {ARG(recompute), 2, "-r 2"},       // layernorms too: two more passes
    {ARG(recompute), 3, "-r 3"},       // 11 % more matmul FLOPs
    {ARG(recompute), 4, "-r 4"},       // 22 % more, and recomputes attention
    {ARG(zero), 2, "-z 2"},            // reduces gradients after each micro-batch, in bf16 with -gd auto
    {ARG(zero), 3, "-z 3"},            // all-gathers weights in each forward and backward
    {ARG(moments), 1, "-om bf16"},     // the loss is the same within the noise of seeds (doc/memory.md)
    {ARG(moments), 2, "-om 8bit"},     // as for bf16
    {ARG(offload), 1, "--offload 1"},  // copies the optimizer state once per update
    {ARG(offload), 2, "--offload 2"},  // copies gradients for each micro-batch
    {ARG(offload), 3, "--offload 3"},  // copies weights for each forward and backward
    {ARG(offload), 4, "--offload 4"},  // copies block inputs for each micro-batch
};
// the levels of -r are the rungs [FIRST_LEVEL, END_OF_LEVELS)
enum { FIRST_LEVEL = 1, END_OF_LEVELS = 6, NUM_RUNGS = sizeof ladder / sizeof ladder[0] };

// Returns the value of the rung's flag in *a.
static inline int rung_flag(const TrainArgs *a, int rung) {
    int value;
    memcpy(&value, (const char *)a + ladder[rung].field, sizeof value);
    return value;
}

// text = the flags by which *a differs from *given, such as "-r 2 -om 8bit", or "the given flags" if there are none.
static inline void rungs_text(char text[FLAG_TEXT], const TrainArgs *a, const TrainArgs *given) {
    text[0] = 0;
    for (int i = 0; i < NUM_RUNGS; i++) {
        size_t length = strlen(text);
        if (rung_flag(a, i) != ladder[i].value || rung_flag(given, i) == ladder[i].value) { continue; }
        snprintf(text + length, FLAG_TEXT - length, "%s%s", length ? " " : "", ladder[i].flag);
    }
    if (!*text) { snprintf(text, FLAG_TEXT, "the given flags"); }
}

// the arguments of "a %s in %s"
#define COUNTED_FOR(backend) (is_gpu(backend) ? "GPU" : "CPU"), (DT_FLOATX == DT_BF16 ? "bf16" : "fp32")

static inline double gibibytes(size_t bytes) { return (double)bytes / (1 << 30); }

static inline PlanBytes plan_of(const TrainArgs *a, const GPT2Config *c, const Backend *backend) {
    ModelOptions o = model_options(a, c, backend);
    return gpt2_plan_both(c, &o);
}

static inline bool fits(PlanBytes bytes, PlanBytes room) {
    return bytes.device <= room.device && bytes.host <= room.host;
}

// Climbs the rungs [from, end), starting from the flags *a, until the plan fits into `room` or no rung is left. Sets
// the flags in *a, and returns the memory of the plan. A rung that saves nothing is skipped, such as -z on one rank or
// --offload on a CPU. With keeps_given, a flag whose value is not the default does not change.
static inline PlanBytes climb(TrainArgs *a, bool keeps_given, int from, int end, const GPT2Config *c,
                              const Backend *backend, PlanBytes room) {
    const TrainArgs given = *a;
    if (a->recompute == RECOMPUTE_AUTO) { a->recompute = 0; }
    PlanBytes bytes = plan_of(a, c, backend);
    for (int i = from; i < end && !fits(bytes, room); i++) {
        bool kept = keeps_given && rung_flag(&given, i) != rung_flag(&default_args, i);
        TrainArgs next = *a;
        if (kept || rung_flag(a, i) >= ladder[i].value) { continue; }
        memcpy((char *)&next + ladder[i].field, &ladder[i].value, sizeof ladder[i].value);
        PlanBytes less = plan_of(&next, c, backend);
        bool saves = bytes.device > room.device ? less.device < bytes.device : less.host < bytes.host;
        if (!saves) { continue; }
        *a = next;
        bytes = less;
    }
    return bytes;
}

// ---- the memory of a rank

// Divides this machine's `room` bytes among the ranks that share it, and returns the minimum over all ranks. --plan
// assumes that all ranks are on one machine.
static inline size_t room_per_rank(size_t room, const TrainArgs *a, const Backend *backend, Comm *world) {
    const size_t limit = (size_t)LLONG_MAX;
    int ranks_here = a->plan ? num_ranks(a) : (int)comm_max(world->local_rank, world) + 1;
    if (room != SIZE_MAX) { room /= (size_t)(is_gpu(backend) ? world->gpu_ranks : ranks_here); }
    return (size_t)-comm_max(-(long long)(room < limit ? room : limit), world);
}

// Returns the free memory of device and host for each rank. If gib is not "", it is the GIB of --fit and replaces the
// device's, since the device may be in another machine.
static inline PlanBytes free_for_each(const TrainArgs *a, const char *gib, const Backend *backend, Comm *world) {
    PlanBytes room = {(size_t)(strtod(gib, NULL) * (1 << 30)),
                      room_per_rank(host_free_bytes(), a, &cpu_backend, world)};
    if (!*gib) { room.device = room_per_rank(backend->device->free_bytes(), a, backend, world); }
    return room;
}

// ---- -r auto

// Returns true if it is worth fusing GELU into the matmul. cuBLASLt's GELU is accurate enough for bf16, and faster on
// sm_90, sm_100 and sm_103. Before sm_90 cuBLASLt has no such kernel in bf16 (llm.c's pull requests 338 and 591) and
// runs a second one, which moves more data than activation_forward. On sm_120 the epilogue takes 20 % longer than two
// kernels (SGLang's pull request 34350).
static inline bool can_fuse_gelu(const ModelOptions *o) {
    return DT_FLOATX == DT_BF16 && (o->capability == 90 || o->capability == 100 || o->capability == 103);
}

// Returns the rows of the largest logits chunk that fits, among equal parts of the micro-batch, or 0 if the usual chunk
// is as large. With fewer chunks, wte and its gradient are read and written less often. Beyond MAX_CHUNK rows, whose
// logits take 1.5 GiB, little is left to save. A CPU keeps its chunk: we have not measured larger ones.
static inline int largest_chunk(const GPT2Config *c, ModelOptions o, size_t room) {
    enum { MAX_CHUNK = 16384 };
    int64_t rows = (int64_t)o.B * o.T;
    int usual = logits_chunk(c, &o);
    for (int64_t n = (rows + MAX_CHUNK - 1) / MAX_CHUNK; is_gpu(o.backend) && equal_chunk(rows, n) > usual; n *= 2) {
        o.classifier_rows = (int)equal_chunk(rows, n);
        if (gpt2_plan_bytes(c, &o) <= room) { return o.classifier_rows; }
    }
    return 0;
}

// Returns the options of a training run. -r auto takes the first level that fits, fuses GELU at -r 0, and takes the
// largest logits chunk. It goes by the size of the memory, not by what is free, so that the same command gives the same
// bits. chosen = the choice, for the banner, or "" with -r N.
static inline ModelOptions choose_options(char chosen[FLAG_TEXT], const TrainArgs *a, const GPT2Config *c,
                                          const Backend *backend, Comm *world) {
    chosen[0] = 0;
    if (a->recompute != RECOMPUTE_AUTO) { return model_options(a, c, backend); }
    // NCCL's buffers take 0.5 to 1.6 GB for each group; whole_bytes has left room for the world's, but not for -tp's
    size_t tp_groups = !is_gpu(backend) || a->tensor_parallel == 1 ? 0 : data_ranks(a) > 1 ? 2 : 1;
    size_t device = backend->device->whole_bytes(), reserve = tp_groups << 30;
    size_t whole = room_per_rank(device > reserve ? device - reserve : 0, a, backend, world);
    PlanBytes room = {whole, SIZE_MAX};
    TrainArgs fitting = *a;
    climb(&fitting, false, FIRST_LEVEL, END_OF_LEVELS, c, backend, room);
    ModelOptions o = model_options(&fitting, c, backend);
    // only at -r 0: a recomputed GELU differs from the fused one in the last bit
    if (a->fuse_gelu == FUSE_GELU_AUTO) { o.fuse_gelu = fitting.recompute == 0 && can_fuse_gelu(&o); }
    o.classifier_rows = largest_chunk(c, o, whole);
    size_t bytes = gpt2_plan_bytes(c, &o);
    rungs_text(chosen, &fitting, a);
    snprintf(chosen + strlen(chosen), FLAG_TEXT - strlen(chosen), "%s: %.2f of %.2f GiB%s", o.fuse_gelu ? " -ge 1" : "",
             gibibytes(bytes), gibibytes(whole), bytes > whole ? ", does not fit" : "");
    return o;
}

// ---- too little memory

// Stops if the plan does not fit into `room`, and names the flags that make it fit.
static inline void require_room(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o, PlanBytes room) {
    PlanBytes bytes = gpt2_plan_both(c, o);
    bool host = bytes.device <= room.device;  // it is the host that has too little
    if (host && bytes.host <= room.host) { return; }
    double needed = mebibytes(host ? bytes.host : bytes.device), free = mebibytes(host ? room.host : room.device);
    char what[32] = "the model", flags[FLAG_TEXT];
    if (host) { snprintf(what, sizeof what, "--offload %d", a->offload); }
    TrainArgs given = *a;
    if (!o->training) { given.recompute = 0; }  // --generate and --eval do not use -r auto
    TrainArgs fitting = given;
    if (host) { fitting.offload = 1; }  // a lower --offload moves less to the host
    bool found = fits(climb(&fitting, false, 0, NUM_RUNGS, c, o->backend, room), room);
    rungs_text(flags, &fitting, &given);
    if (!found) { snprintf(flags, sizeof flags, "%s", a->generate ? "-e" : "-e, -b or -t"); }
    input_error("on a %s in %s, %s needs %.1f MiB%s%s, and %.1f are free: %.1f too few; %s%s", COUNTED_FOR(o->backend),
                what, needed, host ? " of host memory" : "", num_ranks(a) > 1 ? " on each rank" : "", free,
                needed - free, found ? "it fits with " : "no flags make it fit: give a smaller ", flags);
}

static inline void require_memory(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o, Comm *world) {
    require_room(a, c, o, free_for_each(a, "", o->backend, world));
}

// ---- --fit

// Sets the flags of the first rung that fits, and prints them. Stops if nothing fits.
static inline void choose_what_fits(FILE *out, TrainArgs *a, const GPT2Config *c, const Backend *backend, Comm *world) {
    PlanBytes room = free_for_each(a, a->fit, backend, world);
    TrainArgs given = *a;
    PlanBytes bytes = climb(a, true, 0, NUM_RUNGS, c, backend, room);
    // if nothing fits, the error is about the given flags
    ModelOptions o = model_options(fits(bytes, room) ? a : &given, c, backend);
    char flags[FLAG_TEXT];
    require_room(&given, c, &o, room);
    bool fuses = a->fuse_gelu == FUSE_GELU_AUTO && o.recompute.level == 0 && can_fuse_gelu(&o);
    if (fuses) { a->fuse_gelu = FUSE_GELU_ON; }
    rungs_text(flags, a, &given);
    fprintf(out, "fit       on a %s in %s, %.2f of %.2f GiB: %s%s\n", COUNTED_FOR(backend), gibibytes(bytes.device),
            gibibytes(room.device), flags, fuses ? " -ge 1" : "");
    if (bytes.host > 0) {
        fprintf(out, "fit       %.2f of %.2f GiB of host memory\n", gibibytes(bytes.host), gibibytes(room.host));
    }
}
