// The banner before the first step, --plan and --version. --plan needs neither data nor a device.
#pragma once
#include "llmc/checkpoint/model_file.h"
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/examples.h"
#include "llmc/data/hellaswag.h"
#include "llmc/memory/backend.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/memory/plan.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/run/backends.h"
#include "llmc/run/data.h"
#include "llmc/run/fit.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/flags.h"
#include "llmc/run/model_source.h"
#include "llmc/run/resolve.h"
#include "llmc/run/text.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/layout.h"
#include "llmc/shapes/params.h"

static inline void print_example_notes(const Examples *e, const char *flag, const char *pattern, int T) {
    if (e->num_cut + e->num_left_out > 0) {
        printf(
            "note      %s %s: of %d examples, %d are longer than -t %d and cut, %d have no target in it and are left "
            "out\n",
            flag, pattern, e->num_read, e->num_cut, T, e->num_left_out);
    }
}

// Prints notes on data that training leaves out or cuts.
static inline void print_data_notes(const RunData *d, const TrainArgs *a) {
    const TokenFiles *sets[] = {&d->train_files, &d->val_files};
    for (int i = 0; i < 2 && !d->has_examples; i++) {
        uint64_t count = 0, skipped = token_files_total(sets[i]) - token_files_used(sets[i], a->T);
        for (int f = 0; f < sets[i]->num_files; f++) { count += !token_file_sequences(&sets[i]->files[f], a->T); }
        if (count == 0 || (i == 1 && a->val_every == 0)) { continue; }
        printf("note      %s: %" PRIu64 " of %d files%s (%" PRIu64
               " tokens) are shorter than a sequence of -t %d and are not read; join them with cat, or give a smaller "
               "-t\n",
               sets[i]->flag, count, sets[i]->num_files, sets[i]->use, skipped, a->T);
    }
    print_example_notes(&d->examples, "-i", a->train_data, a->T);
    print_example_notes(&d->val_examples, "-j", a->val_data, a->T);
}

static inline void print_model_lines(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o,
                                     const RunData *data, long long max_steps) {
    Plan plan = gpt2_plan(c, o);
    char size[32];
    printf("model     %d layers, %d heads, %d channels, %d positions, %d tokens: %s\n", c->num_layers, c->num_heads,
           c->channels, c->max_seq_len, c->vocab_size, parameters_text(size, c));
    printf("memory    %.1f MiB: state %.1f, saved activations %.1f, scratch %.1f\n",
           mebibytes(plan_device_bytes(&plan)), mebibytes(plan_bytes(&plan, STATE)),
           mebibytes(plan_bytes(&plan, SAVED)), mebibytes(plan_bytes(&plan, SCRATCH)));
    plan_free(&plan);
    printf("data      ");
    if (data->has_examples) {
        const PackedExamples *train = &data->train_packed;
        printf("%d examples in %d sequences of %d tokens, %" PRIu64 " targets; for validation %d sequences; ",
               train->count, train->num_sequences, a->T, packed_targets(train), data->val_packed.num_sequences);
    } else {
        printf("%" PRIu64 " training tokens, %" PRIu64 " validation tokens, ",
               token_files_used(&data->train_files, a->T), token_files_used(&data->val_files, a->T));
    }
    printf("%lld step%s of %lld tokens\n", max_steps, plural_s((uint64_t)max_steps), tokens_of_update(a));
    hellaswag_print_cut(&data->hellaswag, "note      HellaSwag: ");
}

static inline void print_machine_lines(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o,
                                       const Comm *world) {
    char machine[256];
    o->backend->describe(machine, sizeof machine);
    const char *inputs = o->round_matmul_inputs     ? ", bf16 inputs"
                         : a->matmul_precision == 2 ? ", fp32 inputs (-f 2 needs AVX512-BF16 of the CPU and the build)"
                                                    : "";
    printf("machine   %s%s\n", machine, inputs);
    if (num_ranks(a) > 1) {
        printf("ranks     %d through %s,", num_ranks(a), world->backend->name);
        if (a->tensor_parallel > 1) { printf(" -tp %d,", a->tensor_parallel); }
        printf(" -z %d\n", o->sharding.stage);
    }
    if (o->sharding.offload > 0) {
        printf("offload   --offload %d: %.1f MiB of pinned host memory\n", o->sharding.offload,
               mebibytes(gpt2_plan_both(c, o).host));
    }
}

// Prints notes on a result that may surprise and on a run that would be lost, then the step of a resumed run.
static inline void print_notes(const TrainArgs *a, const ModelSource *source, const RunData *data, long long step,
                               long long max_steps) {
    GPT2Config shape;
    const GPT2Config *c = &source->config;
    int V = data->files.vocab_size;
    bool is_shape = config_from_descriptor(&shape, a->model ? a->model : "d12", V, a->T);
    const char *no_gpu = BUILT_WITH_CUDA && a->device == DEVICE_AUTO ? why_no_gpu() : "";
    const struct {
        bool shown;
        const char *text, *value;
    } notes[] = {
        {a->hellaswag && !data->hellaswag_path, "no HellaSwag score: fetch " HELLASWAG_JSON,
         " with scripts/get_data.sh hellaswag"},
        {step == 0 && is_shape && !data->has_examples && c->vocab_size > V,
         "the model has more tokens than the data: a shape such as -e l6h6c384 has the data's", ""},
        {!is_shape && vocab_differs(c->vocab_size, V), VOCAB_NOTE, ""},
        {*no_gpu != 0, "this program can use a GPU, but finds none: ", no_gpu},
        {a->warmup >= max_steps, "the learning rate never reaches its peak: -u is not shorter than the run", ""},
        {step > 0 && !is_shape && a->model && !a->saved_model,
         "the weights are those of the checkpoint: a resumed run does not read -e ", a->model},
        {!a->run_dir, "nothing will be saved: -o is not given", ""},
        {a->run_dir && a->checkpoint_every == 0, "without -n ",
         keeps_best(a) ? "only best/ is saved, and -y 1 goes back to it" : "no checkpoint is saved to resume from"},
    };
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        if (notes[i].shown) { printf("note      %s%s\n", notes[i].text, notes[i].value); }
    }
    print_data_notes(data, a);
    int64_t rest = data_epoch_rest(data, a, step, max_steps);
    if (data->has_examples && a->max_steps <= 0 && rest > 0) {
        printf("note      -i: %lld of %d sequences do not fill an update and are left out; -x %lld reads them too\n",
               (long long)rest, data->train_packed.num_sequences, max_steps + 1);
    }
    if (a->resume && source->step < 0) {
        printf("resumed   nothing: %s holds no checkpoint yet, so the run begins\n", a->run_dir);
    } else if (a->resume) {
        printf("resumed   at step %lld from %s\n", step, source->checkpoint);
    }
}

#define TEXT_ALONE "a text without -e trains a small model; -e d12 is GPT-2 124M"

// Prints the banner up to the build of the model, which may take a minute. chosen: from choose_options
static inline void print_banner(const TrainArgs *a, const ModelSource *source, const ModelOptions *o,
                                const char *chosen, const RunData *data, const Comm *world, long long step,
                                long long max_steps) {
    const GPT2Config *c = &source->config;
    if (a->text_alone) { puts("note      " TEXT_ALONE); }
    if (step == 0) { flags_print_banner(stdout, flag_table, NUM_FLAGS, a, &default_args); }
    if (*chosen) { printf("chosen    %s\n", chosen); }
    print_model_lines(a, c, o, data, max_steps);
    print_machine_lines(a, c, o, world);
    print_notes(a, source, data, step, max_steps);
    if (step >= max_steps) {
        printf("finished  all %lld steps are done: a larger -x continues and stretches the schedule\n", max_steps);
    }
    fflush(stdout);
}

// The last line of the banner on a GPU: the trial of PDL is part of building the model.
static inline void print_pdl(void) {
#ifdef HAVE_CUDA
    printf("launches  PDL is %s\n", pdl_enabled ? "on" : "off");
#endif
}

// ---- --plan and --version

#define TRAIN_GPT2_VERSION "1.0.0"  // as in CITATION.cff and CHANGELOG.md

// {"recompute":0,"fuse_gelu":false,"logits_chunk":256,"ranks":[...]}: what -r auto sets, if the model trains, and the
// plan of each rank.
static inline void print_plan_json(const TrainArgs *a, const GPT2Config *c, ModelOptions options) {
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
        cJSON_AddItemToArray(ranks, plan_json(&plan, r));
        plan_free(&plan);
    }
    char *text = cJSON_Print(json);
    puts(text);
    cJSON_free(text);
    cJSON_Delete(json);
}

// --plan. launched: the ranks that the launcher started, possibly fewer than -pn.
static inline void plan_memory(TrainArgs *a, Comm *launched) {
    bool json = a->plan && strcmp(a->plan, "json") == 0;
    int vocab_size = BYTE_VOCABULARY;
    char chosen[FLAG_TEXT] = "";
    TokenFiles files;
    if (a->train_data) {
        files = token_files_open("-i", a->train_data);
        vocab_size = data_vocab(&files, a);
    }
    ModelSource source = model_source(a, vocab_size);
    const GPT2Config *c = &source.config;
    if (source.has_weights) { model_close(&source.weights); }
    const Backend *backend = backend_choose((DeviceChoice)a->device, false);
    if (a->T != ALL_POSITIONS && (!a->generate || a->T != default_args.T)) { require_length(a, c); }
    FILE *notes = json ? stderr : stdout;
    fprintf(notes, "plan      on a %s in %s\n", COUNTED_FOR(backend));
    if (a->text_alone) { fprintf(notes, "note      " TEXT_ALONE "\n"); }
    resolve_flags(a, a->train_data ? &files : NULL, c, backend, launched, notes);
    if (!a->generate) { require_rows(a); }
    if (a->train_data) { token_files_close(&files); }
    ModelOptions o = trains(a) ? choose_options(chosen, a, c, backend, launched) : model_options(a, c, backend);
    if (*chosen) { fprintf(notes, "chosen    %s\n", chosen); }
    if (json) {
        print_plan_json(a, c, o);
        return;
    }
    Plan plan = gpt2_plan(c, &o);
    plan_print(stdout, &plan);
    if (num_ranks(a) > 1) { printf("each of %d ranks holds this\n", num_ranks(a)); }
    plan_free(&plan);
}

static inline void print_version(TrainArgs *a, Comm *launched) {
    (void)a, (void)launched;
    char backends[512];
    comm_backends(backends, sizeof backends);
    printf("train_gpt2 " TRAIN_GPT2_VERSION ": weights %s, arithmetic %s, devices %s%s%s, communicators %s\n",
           dtype_name(DT_FLOATX), dtype_name(DT_REAL), BUILT_WITH_CUDA ? "cpu cuda" : "cpu", CPU_LEVEL,
           cpu_backend.takes_bf16_inputs ? " (-f 2: bf16 inputs)" : "", backends);
}
