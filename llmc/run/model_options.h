/*
From flags to the options that a model is built with; --fit; -r auto; and whether the result fits into the memory of the
device, and of the host with --offload.
defines: sharding_of, takes_bf16_inputs, choose_matmul_inputs, model_options, fit_part_text, fit_flags_text,
         choose_what_fits, choose_recomputation, check_memory, note_pinning
*/
#pragma once
#include "llmc/memory/fit.h"
#include "llmc/run/backends.h"
#include "llmc/run/host_link.h"
#include "llmc/run/train_args.h"

// -r -rk -rn for a model of L blocks. -r auto is level 0 until choose_recomputation sets the level.
static inline Recompute recompute_of(const TrainArgs *a, int L) {
    Recompute r = {a->recompute == RECOMPUTE_AUTO ? 0 : a->recompute, a->recompute_every > 0 ? a->recompute_every : 1,
                   a->recompute_layers, false};
    if (r.layers < 0 || r.layers > L) { r.layers = L; }
    return r;
}

// -gd auto: accumulating micro-batches in bf16 would lose precision. From -z 2 on they are accumulated in shards, which
// are fp32 whatever type is communicated.
static inline DType auto_gradients(int micro_steps, int stage) {
    return micro_steps > 1 && stage < 2 ? DT_REAL : DT_FLOATX;
}

static inline DType gradients_of(const TrainArgs *a) {
    const DType types[] = {auto_gradients(accumulation_steps(a), a->zero), DT_REAL, DT_BF16};
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
        .offload = backend->device == &cpu_device ? 0 : a->offload,
    };
    return s;
}

// Bytes per second between host and device on the time scale of --fit, whose rates are those of a typical machine: a
// GPU with half the FLOPs needs half the link for the same ratio of copies to computation. A GPU reaches about half of
// its peak.
static inline double relative_link(const TrainArgs *a, const Backend *backend) {
    double rate = 1e9 * (a->host_link > 0 ? a->host_link : a->link > 0 ? a->link : HOST_LINK_ASSUMED);
    return a->gpu_flops > 0 ? rate * backend->flop_rate / (a->gpu_flops / 2) : rate;
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
    o.host_link = relative_link(a, backend);
    o.pageable_host = a->offload_pageable != 0 && o.sharding.offload > 0;
    o.classifier_rows = a->classifier_rows;
    o.master = (MasterKind)a->master;
    o.moments = moment_types[a->moments];
    o.gradients = gradients_of(a);
    if (a->recompute_every == 0) { o.recompute.every = best_segment(c, o); }
    return o;
}

// ---- --fit

// the index of `type` in a flag's choices
static inline int type_index(const DType *types, DType type) {
    int i = 0;
    while (types[i] != type) { i++; }
    return i;
}

// The flags of one part, for example "-r 2 -rn 40". text has FLAG_TEXT bytes.
static inline void fit_part_text(char *text, int part, const ModelOptions *p, const GPT2Config *c) {
    const Recompute *r = &p->recompute;
    char word[FLAG_TEXT], more[FLAG_TEXT] = "";
    text[0] = 0;
    switch (part) {
    case FIT_MICRO_BATCH:
        snprintf(text, FLAG_TEXT, "-b %d -d %lld", p->B, (long long)p->B * p->T * p->micro_steps);
        return;
    case FIT_RECOMPUTE:
        if (r->level == RECOMPUTE_BLOCK && r->every > 1) { snprintf(more, sizeof more, " -rk %d", r->every); }
        if (r->level > 0 && r->layers < c->num_layers) {
            snprintf(more + strlen(more), sizeof more - strlen(more), " -rn %d", r->layers);
        }
        snprintf(text, FLAG_TEXT, "-r %d%.99s", r->level, more);
        return;
    case FIT_FUSE_GELU: snprintf(text, FLAG_TEXT, "-ge %d", p->fuse_gelu); return;
    case FIT_CLASSIFIER: snprintf(text, FLAG_TEXT, "-lc %d", p->classifier_rows); return;
    case FIT_MASTER:
        flag_choice_text(MASTER_CHOICES, (int)p->master, word);
        snprintf(text, FLAG_TEXT, "-w %.99s", word);
        return;
    case FIT_MOMENTS:
        flag_choice_text(MOMENT_CHOICES, type_index(moment_types, p->moments), word);
        snprintf(text, FLAG_TEXT, "-om %.99s", word);
        return;
    case FIT_GRADIENTS: snprintf(text, FLAG_TEXT, "-gd %s", p->gradients == DT_BF16 ? "bf16" : "fp32"); return;
    case FIT_OFFLOAD: snprintf(text, FLAG_TEXT, "--offload %d", p->sharding.offload); return;
    }
}

// The flags of all parts that differ between *p and *from, for example "-b 8 -d 8192 -r 2", or "". -r is there whenever
// `may` sets it, because auto could choose another level. text has FLAG_TEXT bytes.
static inline void fit_flags_text(char *text, const ModelOptions *p, const ModelOptions *from, const FitFree *may,
                                  const GPT2Config *c) {
    char part[FLAG_TEXT], was[FLAG_TEXT];
    text[0] = 0;
    for (int i = 0; i < FIT_PARTS; i++) {
        fit_part_text(part, i, p, c);
        fit_part_text(was, i, from, c);
        size_t length = strlen(text);
        bool shown = strcmp(part, was) != 0 || (i == FIT_RECOMPUTE && may->recompute);
        if (shown) { snprintf(text + length, FLAG_TEXT - length, "%s%.99s", length ? " " : "", part); }
    }
}

// --fit may change a flag left at its default, or set by -r auto.
static inline FitFree fit_free(const TrainArgs *a) {
    const TrainArgs *d = &default_args;
    FitFree may;
    may.micro_batch = a->B == d->B;
    may.recompute = a->recompute == d->recompute || a->chosen & CHOSEN_RECOMPUTE;
    may.every = a->recompute_every == d->recompute_every || a->recompute_every == 0;
    may.layers = a->recompute_layers == d->recompute_layers;
    may.fuse_gelu = a->fuse_gelu == d->fuse_gelu || a->chosen & CHOSEN_FUSE_GELU;
    may.classifier = a->classifier_rows == d->classifier_rows || a->chosen & CHOSEN_CLASSIFIER_ROWS;
    may.master = a->master == d->master;
    may.moments = a->moments == d->moments;
    may.gradients = a->gradients == d->gradients;
    may.offload = a->offload == d->offload;
    may.host = 0;
    return may;
}

// every flag, but --offload and its host memory as given
static inline FitFree fit_all(const FitFree *given) {
    const FitFree all = {true, true, true, true, true, true, true, true, true, given->offload, given->host};
    return all;
}

// Sets the flags to the options that --fit chose.
static inline void fit_apply(TrainArgs *a, const ModelOptions *o, int L) {
    const Recompute *r = &o->recompute;
    a->batch_tokens = (int64_t)o->B * o->T * o->micro_steps * data_ranks(a);
    a->B = o->B;
    a->recompute = r->level;
    a->recompute_every = r->every;
    a->recompute_layers = r->level == 0 || r->layers == L ? -1 : r->layers;
    a->fuse_gelu = o->fuse_gelu ? FUSE_GELU_ON : FUSE_GELU_OFF;
    a->classifier_rows = o->classifier_rows;
    a->master = (int)o->master;
    a->moments = type_index(moment_types, o->moments);
    a->gradients = o->gradients == DT_REAL ? 1 : 2;
    if (on_gpu(o)) { a->offload = o->sharding.offload; }
    a->chosen = 0;
}

// Prints a line for each choice that differs from `wanted`: bytes and time of this choice alone.
static inline void print_fit(FILE *out, const Fit *fit, const ModelOptions *wanted, const GPT2Config *c) {
    const char *bf16_gradients = fit->options.gradients == DT_BF16 ? "; the gradients lose precision" : "";
    const char *const precision[FIT_PARTS] = {
        "", "", "", "", "; the weights lose precision", "; the moments lose precision", bf16_gradients, ""};
    for (int i = 0; i < FIT_PARTS; i++) {
        char text[FLAG_TEXT], before[FLAG_TEXT];
        fit_part_text(text, i, &fit->options, c);
        fit_part_text(before, i, wanted, c);
        if (strcmp(text, before) == 0) { continue; }
        ModelOptions without = fit->options;
        fit_take(&without, wanted, i);
        double more = (double)fit->bytes - (double)gpt2_plan_bytes(c, &without);
        double slower = 100 * (fit->seconds / fit_seconds(c, &without) - 1);
        if (fabs(slower) < 0.05) { slower = 0; }  // not -0.0
        fprintf(out, "fit       %s instead of %s: %+.2f GiB, %+.1f %% time%s\n", text, before, more / (1 << 30), slower,
                precision[i]);
    }
}

// `room` bytes of device memory for each rank: the smallest number that any rank finds. ranks_here ranks of a machine
// divide its host memory, and ranks that share a GPU the GPU's.
static inline size_t least_room(size_t room, int ranks_here, const Backend *backend, Comm *world) {
    const size_t most = (size_t)LLONG_MAX;
    int sharing = backend->device == &cpu_device ? ranks_here : world->gpu_ranks;
    if (room != SIZE_MAX) { room /= (size_t)sharing; }
    return (size_t)-comm_max(-(long long)(room < most ? room : most), world);
}

static inline size_t room_for_each(const Backend *backend, Comm *world) {
    int ranks_here = (int)comm_max(world->local_rank, world) + 1;
    return least_room(backend->device->free_bytes(), ranks_here, backend, world);
}

// ranks of this machine; --plan takes all ranks to be on it
static inline int ranks_of_machine(const TrainArgs *a, Comm *world) {
    return a->plan ? num_ranks(a) : (int)comm_max(world->local_rank, world) + 1;
}

// Memory of the whole device for each rank, independent of other programs.
static inline size_t whole_for_each(const TrainArgs *a, const Backend *backend, Comm *world) {
    return least_room(backend->device->whole_bytes(), ranks_of_machine(a, world), backend, world);
}

// Free memory of the host for each rank.
static inline size_t host_for_each(const TrainArgs *a, Comm *world) {
    return least_room(host_free_bytes(), ranks_of_machine(a, world), &cpu_backend, world);
}

// The best fit if --fit may change every flag. *stage3: nothing fits at the given -z; the fit is at -z 3.
static inline Fit fit_any(const GPT2Config *c, ModelOptions o, const FitFree *given, size_t budget, bool *stage3) {
    const FitFree all = fit_all(given);
    Fit fit = fit_choose(c, o, &all, budget, auto_gradients);
    *stage3 = fit.bytes > budget && o.training && o.sharding.dp_size > 1 && o.sharding.stage < 3;
    if (!*stage3) { return fit; }
    o.sharding.stage = 3;
    return fit_choose(c, o, &all, budget, auto_gradients);
}

// text = the highest lower stage of --offload that fits on both sides; if none does, -om 8bit at the highest stage
static inline void host_advice(char *text, size_t size, const GPT2Config *c, ModelOptions o, size_t device_room,
                               size_t room) {
    int given = o.sharding.offload, types = o.training && o.moments != DT_U8 ? 2 : 1;
    for (int i = 0; i < types * (given + 1); i++) {
        int stage = given - i % (given + 1);
        bool narrow = i > given;
        char flag[32] = "";
        options_set_offload(&o, stage);
        if (narrow) { o.moments = DT_U8; }
        PlanBytes bytes = gpt2_plan_both(c, &o);
        if (bytes.device > device_room || bytes.host > room) { continue; }
        if (stage < given) { snprintf(flag, sizeof flag, "--offload %d ", stage); }
        snprintf(text, size, "%s%sfits", flag, narrow ? "-om 8bit " : "");
        return;
    }
    snprintf(text, size, "give a smaller -e");
}

// Stops if the host has too little memory for the tensors of --offload. room: for each rank.
static inline void check_host_memory(const GPT2Config *c, const ModelOptions *o, size_t device_room, size_t room,
                                     int ranks) {
    PlanBytes bytes = gpt2_plan_both(c, o);
    char each[64] = "", advice[96];
    if (bytes.host <= room) { return; }
    host_advice(advice, sizeof advice, c, *o, device_room, room);
    if (ranks > 1) { snprintf(each, sizeof each, " for each of %d ranks", ranks); }
    input_error("--offload %d needs %.1f MiB of host memory%s, and %.1f are free: %.1f too few; %s",
                o->sharding.offload, mebibytes(bytes.host), each, mebibytes(room), mebibytes(bytes.host - room),
                advice);
}

// Stops if only the host's memory is too small: the sentence names the choice of a larger host.
static inline void check_larger_host(const GPT2Config *c, const ModelOptions *wanted, FitFree may, size_t budget) {
    const double gib = 1 << 30;
    double room = (double)may.host / gib;
    char flags[FLAG_TEXT];
    bool stage3;
    may.host = SIZE_MAX;
    Fit fit = fit_any(c, *wanted, &may, budget, &stage3);
    if (fit.bytes > budget) { return; }
    fit_flags_text(flags, &fit.options, wanted, &may, c);
    const Sharding *s = &wanted->sharding;
    input_error(
        "--fit: nothing fits in %.2f GiB; %s%s would take %.2f GiB of the GPU and %.1f GiB of host memory%s, and "
        "%.1f are free; free more of it, or give a smaller -e",
        (double)budget / gib, stage3 ? "-z 3 " : "", *flags ? flags : "the given flags", (double)fit.bytes / gib,
        (double)fit.host / gib, s->dp_size * s->tp_size > 1 ? " for each rank" : "", room);
}

// Stops: nothing fits with the flags that --fit may change. `smallest` needs the fewest bytes among these choices.
static inline void nothing_fits(const GPT2Config *c, ModelOptions wanted, const Fit *smallest, FitFree may,
                                size_t budget) {
    const double gib = 1 << 30;
    char flags[FLAG_TEXT];
    bool stage3;
    may.offload = true;
    Fit any = fit_any(c, wanted, &may, budget, &stage3);
    if (any.bytes > budget && on_gpu(&wanted)) { check_larger_host(c, &wanted, may, budget); }
    fit_flags_text(flags, &any.options, &wanted, &may, c);
    input_error("--fit: nothing fits in %.2f GiB%s%s%s takes %.2f GiB; %s", (double)budget / gib,
                any.bytes < smallest->bytes ? " with the given flags; " : "; the smallest choice, ",
                stage3 ? "-z 3 " : "", flags, (double)any.bytes / gib,
                any.bytes <= budget ? "remove your flags that differ from the printed ones"
                                    : "give more memory, or a smaller -e, -t or -d");
}

// Sets the flags that --fit may choose, and prints the choices to `out`. Stops if nothing fits.
static inline void choose_what_fits(FILE *out, TrainArgs *a, const GPT2Config *c, const Backend *backend, Comm *world) {
    size_t budget = *a->fit ? (size_t)(strtod(a->fit, NULL) * (1 << 30)) : room_for_each(backend, world);
    double gib = (double)budget / (1 << 30);
    FitFree may = fit_free(a);
    may.host = host_for_each(a, world);
    if (backend->device != &cpu_device && (may.offload || a->offload > 0)) { find_host_link(a, backend, world); }
    int64_t sequences = a->batch_tokens / a->T / data_ranks(a);
    if (may.micro_batch && a->batch_tokens != -1 && sequences % a->B != 0) { a->B = 1; }  // 1 divides every -d
    ModelOptions wanted = model_options(a, c, backend);
    Fit fit = fit_choose(c, wanted, &may, budget, auto_gradients);
    char flags[FLAG_TEXT];
    if (fit.bytes > budget) { nothing_fits(c, wanted, &fit, may, budget); }
    check_host_memory(c, &fit.options, budget, may.host, ranks_of_machine(a, world));
    fit_flags_text(flags, &fit.options, &wanted, &may, c);
    fprintf(out, "fit       %.2f of %.2f GiB: %s\n", (double)fit.bytes / (1 << 30), gib, *flags ? flags : "no change");
    if (fit.host > 0) {
        fprintf(out, "fit       %.2f of %.2f GiB of host memory\n", (double)fit.host / (1 << 30),
                (double)may.host / (1 << 30));
    }
    print_fit(out, &fit, &wanted, c);
    fit_apply(a, &fit.options, c->num_layers);
}

// ---- -r auto

// text = the flags that -r auto sets, for example "-r 0 -ge 1 -lc 16384: ", and `more`
static inline void chosen_text(char text[FLAG_TEXT], const TrainArgs *a, const char *more) {
    char rows[32] = "";
    if (a->classifier_rows > 0) { snprintf(rows, sizeof rows, " -lc %d", a->classifier_rows); }
    snprintf(text, FLAG_TEXT, "-r %d%s%s%s", a->recompute, a->fuse_gelu == FUSE_GELU_ON ? " -ge 1" : "", rows, more);
}

// -r auto: sets -r, and -ge and -lc unless they are given, by least_recomputation. The choice depends on the flags, the
// model and the whole memory of the devices, so that the same command gives the same bits. A resumed run keeps the
// choice of config.json. text = the choice in words for the banner; "" with -r N.
static inline void choose_recomputation(char text[FLAG_TEXT], TrainArgs *a, const GPT2Config *c, const Backend *backend,
                                        Comm *world) {
    char more[96];
    text[0] = 0;
    if (a->recompute != RECOMPUTE_AUTO) {
        if (a->chosen & CHOSEN_RECOMPUTE) { chosen_text(text, a, ", when the run began"); }
        return;
    }
    FitFree may = fit_free(a);
    size_t whole = whole_for_each(a, backend, world);
    ModelOptions given = model_options(a, c, backend), o = least_recomputation(c, given, &may, whole);
    a->recompute = o.recompute.level;
    a->fuse_gelu = o.fuse_gelu ? FUSE_GELU_ON : FUSE_GELU_OFF;
    a->classifier_rows = o.classifier_rows;
    a->chosen |=
        CHOSEN_RECOMPUTE | (may.fuse_gelu ? CHOSEN_FUSE_GELU : 0) | (may.classifier ? CHOSEN_CLASSIFIER_ROWS : 0);
    size_t bytes = gpt2_plan_bytes(c, &o);
    snprintf(more, sizeof more, ": %.2f of %.2f GiB%s", (double)bytes / (1 << 30), (double)whole / (1 << 30),
             bytes > whole ? ", does not fit" : "");
    chosen_text(text, a, more);
}

// the options without the flags that -r auto set
static inline ModelOptions without_choice(const TrainArgs *a, ModelOptions o) {
    if (a->chosen & CHOSEN_FUSE_GELU) { o.fuse_gelu = false; }
    if (a->chosen & CHOSEN_CLASSIFIER_ROWS) { o.classifier_rows = 0; }
    return o;
}

// text = the flags with which the model fits into `room` bytes of the device
static inline void memory_advice(char *text, size_t size, const TrainArgs *a, const GPT2Config *c, ModelOptions o,
                                 const FitFree *may, size_t room) {
    char flags[FLAG_TEXT];
    bool stage3 = false;
    if (!o.training) {
        ModelOptions streamed = o;
        options_set_offload(&streamed, OFFLOAD_PARAMS);
        PlanBytes bytes = gpt2_plan_both(c, &streamed);
        bool fits = on_gpu(&o) && bytes.device <= room && bytes.host <= may->host;
        snprintf(text, size, "%s%s", fits ? "it fits with --offload 3" : "no flags make it fit: give a smaller -e",
                 !fits && a->eval ? ", -b or -t" : "");
        return;
    }
    Fit fit = fit_of(c, &o);
    for (int i = 0; i < 4 && !fit_fits(&fit, may, room); i++) {  // --offload last
        FitFree tried = *may;
        if (i == 2 && !may->offload) { continue; }  // the same search as the first
        stage3 = false;
        tried.offload = i == 3 || (i == 2 && may->offload);
        fit = i % 2 ? fit_any(c, o, &tried, room, &stage3) : fit_choose(c, o, &tried, room, auto_gradients);
    }
    ModelOptions given = without_choice(a, o);
    fit_flags_text(flags, &fit.options, &given, may, c);
    if (fit_fits(&fit, may, room)) {
        snprintf(text, size, "it fits with %s%s", stage3 ? "-z 3 " : "", flags);
    } else {
        snprintf(text, size, "no flags make it fit: give a smaller -e or -t");
    }
}

// Stops if the model needs more memory than is free, and names flags with which it fits.
static inline void check_memory(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o, Comm *world) {
    size_t bytes = gpt2_plan_bytes(c, o), room = room_for_each(o->backend, world), host = host_for_each(a, world);
    char advice[2 * FLAG_TEXT];
    if (bytes <= room) {
        check_host_memory(c, o, room, host, ranks_of_machine(a, world));
        return;
    }
    FitFree may = fit_free(a);
    may.micro_batch = true;  // costs no precision
    may.host = host;
    memory_advice(advice, sizeof advice, a, c, *o, &may, room);
    input_error("the model needs %.1f MiB, and %.1f are free: %.1f too few; %s", mebibytes(bytes), mebibytes(room),
                mebibytes(bytes - room), advice);
}

// Pinning takes seconds. The results of --generate and --eval alone go to stdout.
static inline void note_pinning(const GPT2Config *c, const ModelOptions *o) {
    size_t bytes = gpt2_plan_both(c, o).host;
    FILE *out = o->training ? stdout : stderr;
    if (!on_gpu(o) || o->pageable_host || bytes < (size_t)1 << 30) { return; }
    fprintf(out, "note      pinning %.1f GiB of host memory ...\n", (double)bytes / (1 << 30));
    fflush(out);
}
