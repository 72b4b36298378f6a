/*
The lines printed before the first step, at most 9 and the notes, more for a text without -e; --plan, the memory of a
command line, which needs no data and no device, and measures nothing; --version.
defines: print_banner, print_early_launches, print_plan, print_version
*/
#pragma once
#include "llmc/checkpoint/model_file.h"
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include "llmc/common/hash.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/examples.h"
#include "llmc/data/hellaswag.h"
#include "llmc/gemm.h"
#include "llmc/memory/backend.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/memory/plan.h"
#include "llmc/memory/traffic.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/run/backends.h"
#include "llmc/run/data.h"
#include "llmc/run/fit.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/flags.h"
#include "llmc/run/model_source.h"
#include "llmc/run/text.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/activations.h"
#include "llmc/shapes/layout.h"
#include "llmc/shapes/params.h"

static inline void print_example_notes(const Examples *e, const char *flag, const char *pattern, int T) {
    if (e->num_cut) {
        printf("note      %s %s: %d of %d examples are longer than -t %d, and are cut\n", flag, pattern, e->num_cut,
               e->num_read, T);
    }
    if (e->num_left_out) {
        printf("note      %s %s: %d of %d examples have no target within -t %d, and are left out\n", flag, pattern,
               e->num_left_out, e->num_read, T);
    }
}

// Notes on data that is counted and not trained on, or counted twice.
static inline void print_data_notes(const RunData *d, const TrainArgs *a) {
    char files[COUNT_LENGTH], tokens[COUNT_LENGTH];
    const TokenFiles *sets[] = {&d->train_files, &d->val_files};
    for (int i = 0; i < 2 && !d->has_examples; i++) {
        uint64_t count = 0, skipped = token_files_total(sets[i]) - token_files_used(sets[i], a->T);
        for (int f = 0; f < sets[i]->num_files; f++) { count += !token_file_sequences(&sets[i]->files[f], a->T); }
        if (count == 0 || (i == 1 && a->val_every == 0)) { continue; }
        printf("note      %s: %s of %d files%s (%s tokens) are shorter than a sequence of -t %d and are not read; join "
               "them with cat, or give a smaller -t\n",
               sets[i]->flag, count_text(files, count), sets[i]->num_files, sets[i]->use, count_text(tokens, skipped),
               a->T);
    }
    int num_train = d->train_files.num_files, num_files = num_train + (a->val_data ? d->val_files.num_files : 0);
    char **paths = (char **)xcalloc((size_t)num_files, sizeof *paths);
    for (int f = 0; f < num_files; f++) {
        paths[f] = f < num_train ? d->train_files.files[f].path : d->val_files.files[f - num_train].path;
    }
    print_same_files(stdout, paths, num_files, num_train);
    free(paths);
    if (data_are_bytes(d) && a->rank == 0) { print_byte_notes("-i", a->train_data); }
    if (data_are_bytes(d) && a->rank == 0 && a->val_data) { print_byte_notes("-j", a->val_data); }
    print_example_notes(&d->examples, "-i", a->train_data, a->T);
    print_example_notes(&d->val_examples, "-j", a->val_data, a->T);
}

static inline void print_model_lines(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o,
                                     const RunData *data, long long max_steps) {
    Plan plan = gpt2_plan(c, o);
    char size[COUNT_LENGTH];
    printf("model     %d layers, %d heads, %d channels, %d positions, %d tokens: %s\n", c->num_layers, c->num_heads,
           c->channels, c->max_seq_len, c->vocab_size, parameters_text(size, c));
    printf("memory    %.1f MiB: state %.1f, saved activations %.1f, scratch %.1f\n",
           mebibytes(plan_device_bytes(&plan)), mebibytes(plan_bytes(&plan, STATE)),
           mebibytes(plan_bytes(&plan, SAVED)), mebibytes(plan_bytes(&plan, SCRATCH)));
    plan_free(&plan);
    printf("data      ");
    if (data->has_examples) {
        const ExampleRows *train = &data->train_rows;
        printf("%d examples in %d sequences of %d tokens, %" PRIu64 " targets; for validation %d sequences; ",
               train->first[train->num_rows], train->num_rows, a->T, example_rows_targets(train),
               data->val_rows.num_rows);
    } else {
        printf("%" PRIu64 " training tokens, %" PRIu64 " validation tokens, ",
               token_files_used(&data->train_files, a->T), token_files_used(&data->val_files, a->T));
    }
    printf("%lld step%s of %lld tokens\n", max_steps, plural_s((uint64_t)max_steps), tokens_of_update(a));
    hellaswag_print_cut(&data->hellaswag, "note      HellaSwag: ");
}

static inline void print_machine_lines(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o,
                                       const Comm *world) {
    static const char *const offloaded[] = {"optimizer state", ", gradients", ", weights", ", inputs of blocks"};
    char machine[256];
    o->backend->describe(machine, sizeof machine);
    const char *inputs = o->round_matmul_inputs     ? ", bf16 inputs"
                         : a->matmul_precision == 2 ? ", fp32 inputs (-f 2 needs AVX512-BF16 of the CPU and the build)"
                                                    : "";
    printf("machine   %s%s\n", machine, inputs);
    if (num_ranks(a) > 1) {
        printf("ranks     %d through %s,", num_ranks(a), world->backend->name);
        if (a->tensor_parallel > 1) { printf(" -tp %d,", a->tensor_parallel); }
        printf(" -z %d: each sends %.2f MiB an update\n", o->sharding.stage, mebibytes(gpt2_sent_bytes(c, o)));
    }
    if (o->sharding.offload == 0) { return; }
    printf("offload   ");
    for (int i = 0; i < o->sharding.offload; i++) { printf("%s", offloaded[i]); }
    printf(": %.1f MiB of pinned host memory\n", mebibytes(gpt2_plan_both(c, o).host));
}

#define OFFLOAD_ON_CPU "--offload does nothing on a CPU: the model is already in host memory"
#define ZERO_ON_ONE_RANK "-z does nothing on one data-parallel rank"

// Notes on defaults, on a run that saves nothing and on flags without effect; then the step of a resumed run.
static inline void print_notes(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o, const RunData *data,
                               long long step, long long max_steps) {
    GPT2Config shape;
    int V = data->files.vocab_size;
    bool is_shape = config_from_descriptor(&shape, a->model ? a->model : "d12", V, a->T);
    const char *no_gpu = why_no_gpu((DeviceChoice)a->device);
    double newton_schulz = newton_schulz_share(c, &o->sharding, a->T, (double)tokens_of_update(a));
    char share[64];
    snprintf(share, sizeof share, "%.0f %% to the model's FLOPs: a larger -d lowers that", 100 * newton_schulz);
    const struct {
        bool shown;
        const char *text, *value;
    } notes[] = {
        {data->by_default, "-i is not given: llm.c's default, ", a->train_data},
        {data->default_model, "-e is not given: llm.c's default, ", a->model},
        {a->hellaswag && !data->hellaswag_path, "no HellaSwag score: fetch " HELLASWAG_JSON,
         " with scripts/get_data.sh hellaswag"},
        {step == 0 && is_shape && !data->has_examples && c->vocab_size > V,
         "the model has more tokens than the data: a shape such as -e l6h6c384 has the data's", ""},
        {!is_shape && vocab_differs(c->vocab_size, V), VOCAB_NOTE, ""},
        {*no_gpu != 0, "this program can use a GPU, but finds none: ", no_gpu},
        {a->warmup >= max_steps, "the learning rate never reaches its peak: -u is not shorter than the run", ""},
        {a->schedule != SCHEDULE_CONSTANT && a->final_fraction == 1,
         "the learning rate never decays: -q 0.1 lets it fall to a tenth, and -k constant silences this note", ""},
        {a->optimizer == OPTIMIZER_MUON && newton_schulz > 0.15, "Newton-Schulz adds ", share},
        {a->optimizer == OPTIMIZER_MUON && step == 0 && !is_shape,
         "Muon is reported to fine-tune worse than AdamW if AdamW trained the weights (arXiv 2605.10468)", ""},
        {step > 0 && !is_shape && a->model && !a->saved_model,
         "the weights are those of the checkpoint: a resumed run does not read -e ", a->model},
        {!a->run_dir, "nothing will be saved: -o is not given", ""},
        {a->run_dir && a->checkpoint_every == 0, "without -n ",
         keeps_best(a) ? "only best/ is saved, and -y 1 goes back to it" : "no checkpoint is saved to resume from"},
        {a->offload > 0 && o->sharding.offload == 0, OFFLOAD_ON_CPU, ""},
        {a->zero > 0 && o->sharding.stage == 0, ZERO_ON_ONE_RANK, ""},
        {!o->gather_again && (a->tensor_parallel == 1 || o->recompute.level >= RECOMPUTE_LAYERNORMS),
         "-ra 0 does nothing without -tp, and nothing at a -r that saves no layernorms", ""},
    };
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        if (notes[i].shown) { printf("note      %s%s\n", notes[i].text, notes[i].value); }
    }
    print_data_notes(data, a);
    int64_t rest = data_epoch_rest(data, a, step, max_steps);
    if (data->has_examples && a->max_steps <= 0 && rest > 0) {
        printf("note      -i: %lld of %d sequences do not fill an update and are left out; -x %lld reads them too\n",
               (long long)rest, data->train_rows.num_rows, max_steps + 1);
    }
    char checkpoint[PATH_LENGTH];
    if (resumed_checkpoint(checkpoint, a) < 0 && a->resume) {
        printf("resumed   nothing: %s holds no checkpoint yet, so the run begins\n", a->run_dir);
    } else if (a->resume) {
        printf(has_ending(checkpoint, "/best") ? "resumed   at step %lld from %s, the newest checkpoint\n"
                                               : "resumed   at step %lld\n",
               step, checkpoint);
    }
}

#define TEXT_ALONE "a text without -e trains a small model; -e d12 is GPT-2 124M"

// The lines before the model is built. chosen: of choose_options
static inline void print_banner(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o, const char *chosen,
                                const RunData *data, const Comm *world, long long step, long long max_steps) {
    if (a->text_alone) { puts("flags     " TEXT_ALONE); }
    if (step == 0) { flags_print_banner(stdout, flag_table, NUM_FLAGS, a, &default_args, a->text_alone); }
    if (*chosen) { printf("chosen    %s\n", chosen); }
    print_model_lines(a, c, o, data, max_steps);
    print_machine_lines(a, c, o, world);
    print_notes(a, c, o, data, step, max_steps);
    if (step >= max_steps) {
        printf("finished  all %lld steps are done: a larger -x continues and stretches the schedule\n", max_steps);
    }
    fflush(stdout);
}

// The last line of the banner on a GPU: the trial of early launches is part of building the model.
static inline void print_early_launches(void) {
#ifdef HAVE_CUDA
    printf("launches  early launches are %s\n", early_launches ? "on" : "off");
#endif
}

// ---- --plan and --version

#define TRAIN_GPT2_VERSION "1.0.0"  // as in CITATION.cff and CHANGELOG.md

// {"recompute":0,"fuse_gelu":false,"logits_chunk":256,"ranks":[...]}: the flags that -r auto may set, if the model
// trains; then each rank's plan, and the bytes that it sends per update
static inline void print_plan_json(const TrainArgs *a, const GPT2Config *c, ModelOptions options, size_t llmc) {
    cJSON *json = cJSON_CreateObject();
    if (options.training) {
        cJSON_AddNumberToObject(json, "recompute", options.recompute.level);
        cJSON_AddBoolToObject(json, "fuse_gelu", options.fuse_gelu);
        cJSON_AddNumberToObject(json, "logits_chunk", logits_chunk(c, &options));
    }
    cJSON *ranks = cJSON_AddArrayToObject(json, "ranks");
    for (int r = 0; r < num_ranks(a); r++) {
        options.sharding = sharding_of(a, options.backend, r);
        Plan plan = gpt2_plan(c, &options);
        cJSON *rank = plan_json(&plan, r);
        cJSON_AddItemToArray(ranks, rank);
        if (num_ranks(a) > 1) { cJSON_AddNumberToObject(rank, "sent", (double)gpt2_sent_bytes(c, &options)); }
        if (llmc) { cJSON_AddNumberToObject(rank, "llmc_total", (double)llmc); }
        plan_free(&plan);
    }
    char *text = cJSON_Print(json);
    puts(text);
    cJSON_free(text);
    cJSON_Delete(json);
}

// -r all: the memory at each level, in MiB
static inline void print_plan_levels(TrainArgs *a, const GPT2Config *c, const Backend *backend) {
    printf("%-5s %12s %12s %18s %12s\n", "-r", "total, MiB", "state", "saved activations", "scratch");
    for (int level = 0; level <= RECOMPUTE_BLOCK; level++) {
        a->recompute = level;
        ModelOptions options = model_options(a, c, backend);
        Plan plan = gpt2_plan(c, &options);
        printf("%-5d %12.2f %12.2f %18.2f %12.2f\n", level, mebibytes(plan_device_bytes(&plan)),
               mebibytes(plan_bytes(&plan, STATE)), mebibytes(plan_bytes(&plan, SAVED)),
               mebibytes(plan_bytes(&plan, SCRATCH)));
        plan_free(&plan);
    }
}

static inline void print_plan_table(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o, size_t llmc) {
    Plan plan = gpt2_plan(c, o);
    const char *name = o->recompute.level > 2 ? "llm.c's layout at -r 2, its last level" : "llm.c's layout";
    plan_print(stdout, &plan);
    if (num_ranks(a) > 1) {
        printf("each of %d ranks holds this, and sends %.2f MiB per update\n", num_ranks(a),
               mebibytes(gpt2_sent_bytes(c, o)));
    }
    if (llmc) { printf("%-60s %12.2f\n", name, mebibytes(llmc)); }
    if (o->training && a->optimizer == OPTIMIZER_MUON) {
        printf("Newton-Schulz adds %.2f %% to the model's FLOPs for an update of %lld tokens\n",
               100 * newton_schulz_share(c, &o->sharding, a->T, (double)tokens_of_update(a)), tokens_of_update(a));
    }
    plan_free(&plan);
}

// The options to plan for. -r auto needs the memory of a GPU; without one here, the plan is for -r 0.
static inline ModelOptions planned_options(FILE *out, TrainArgs *a, const GPT2Config *c, const Backend *backend,
                                           Comm *host) {
    char chosen[FLAG_TEXT];
    if (a->generate || a->eval) { return model_options(a, c, backend); }
    if (a->fit && !*a->fit && !is_on_this_machine(backend)) {
        input_error("--fit without a number needs a GPU; give GiB, as in --fit=80");
    }
    if (a->fit) { choose_what_fits(out, a, c, backend, host); }
    if (a->recompute == RECOMPUTE_AUTO && !is_on_this_machine(backend)) {
        fprintf(out,
                "note      -r auto depends on a GPU's memory, and this machine has no GPU: the plan is for -r 0\n");
        a->recompute = 0;
    }
    ModelOptions options = choose_options(chosen, a, c, backend, host);
    if (*chosen) { fprintf(out, "chosen    %s\n", chosen); }
    return options;
}

static inline void print_plan(TrainArgs *a, Comm *host) {
    bool json = a->plan && strcmp(a->plan, "json") == 0;
    int vocab_size = BYTE_VOCABULARY;
    if (a->train_data) {
        TokenFiles files = token_files_open(train_data_flag(a), a->train_data);
        vocab_size = data_vocab(&files, a);
        args_for_examples(a, data_are_examples(&files));
        token_files_close(&files);
    }
    set_by_length(a, 1);  // a plan does not depend on the length
    ModelSource source = model_source(a, vocab_size);
    const GPT2Config *c = &source.config;
    if (source.has_weights) { model_close(&source.weights); }
    if (!a->generate || a->T != default_args.T) { check_length(a, c); }
    const Backend *backend = backend_choose((DeviceChoice)a->device, false);
    FILE *notes = json ? stderr : stdout;
    fprintf(notes, "plan      on a %s in %s\n", COUNTED_FOR(backend));
    if (a->text_alone) { fprintf(notes, "note      " TEXT_ALONE "\n"); }
    if (a->offload > 0 && !is_gpu(backend)) { fprintf(notes, "note      " OFFLOAD_ON_CPU "\n"); }
    if (a->zero > 0 && data_ranks(a) == 1) { fprintf(notes, "note      " ZERO_ON_ONE_RANK "\n"); }
    if (!a->generate) { check_rows(a); }
    if (a->recompute == RECOMPUTE_ALL) {
        print_plan_levels(a, c, backend);
        return;
    }
    ModelOptions options = planned_options(notes, a, c, backend, host);
    size_t llmc = options.training ? llmc_bytes(c, &options) : 0;
    if (json) {
        print_plan_json(a, c, options, llmc);
    } else {
        print_plan_table(a, c, &options, llmc);
    }
}

static inline void print_version(void) {
    char backends[512];
    comm_backends(backends, sizeof backends);
    printf("train_gpt2 " TRAIN_GPT2_VERSION ": weights %s, arithmetic %s, devices %s%s%s, communicators %s\n",
           dtype_name(DT_FLOATX), dtype_name(DT_REAL), DEVICES_BUILT_IN, CPU_LEVEL,
           GEMM_HAS_BF16 ? " (-f 2: bf16 inputs)" : "", backends);
}
