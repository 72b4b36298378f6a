/*
Resolves the flags that leave a choice to the program, once ranks, data and model are known. No flag changes after that.
Only `-r auto` stays, since config.json keeps it for the next start: choose_options finds its level.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
#include "llmc/data/dataloader.h"
#include "llmc/memory/backend.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/backends.h"
#include "llmc/run/data.h"
#include "llmc/run/fit.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/activations.h"
#include "llmc/shapes/params.h"
#include <ctype.h>
#include <limits.h>

// Names the -o of a run on a text without -e: the first of runs/NAME-1, runs/NAME-2, ... that does not exist.
static inline void name_run_dir(TrainArgs *a, Comm *world) {
    const char *slash = strrchr(a->train_data, '/');
    char name[64];
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : a->train_data);
    name[strcspn(name, ".")] = 0;
    if (!*name || strchr(name, '*')) { snprintf(name, sizeof name, "text"); }
    for (char *c = name; *c; c++) { *c = isalnum((unsigned char)*c) || *c == '-' ? *c : '_'; }
    for (int i = 1; i == 1 || access(a->named_dir, F_OK) == 0; i++) {
        snprintf(a->named_dir, sizeof a->named_dir, "runs/%s-%d", name, i);
    }
    comm_broadcast_host(a->named_dir, sizeof a->named_dir, 0, world);
    a->run_dir = a->named_dir;
}

// On a text without -e, some flags default to a share of the run. Sets them, given the steps of an epoch.
static inline void set_by_length(TrainArgs *a, int64_t epoch) {
    int *const flags[] = {&a->warmup, &a->val_every, &a->checkpoint_every, &a->sample_every};
    const int shares[] = {40, 16, 16, 4};
    if (a->max_steps == BY_LENGTH) { a->max_steps = epoch < MIN_STEPS ? MIN_STEPS : -1; }
    int64_t steps = a->max_steps > 0 ? a->max_steps : epoch;
    for (int i = 0; i < 4; i++) {
        if (*flags[i] == BY_LENGTH) { *flags[i] = steps < INT_MAX ? (int)steps / shares[i] + 1 : INT_MAX; }
    }
}

// A collective of `world`, so that all ranks choose alike. train: the files to train on, or NULL; c: the model's shape;
// out: gets a line about --fit, and notes.
static inline void resolve_flags(TrainArgs *a, const TokenFiles *train, const GPT2Config *c, const Backend *backend,
                                 Comm *world, FILE *out) {
    bool plans_elsewhere = a->plan && is_gpu(backend) && *why_no_gpu();
    int64_t tokens = train ? (int64_t)token_files_used(train, a->T) : 0;
    if (a->text_alone && !a->run_dir) { name_run_dir(a, world); }
    if (a->matmul_precision == MATMUL_AUTO) {
        a->matmul_precision = comm_max(!backend->takes_bf16_inputs, world) ? 1 : 2;
    }
    if (train && data_are_examples(train)) {  // in bf16 each example would round the gradient of position embeddings
        if (DT_FLOATX == DT_BF16 && a->gradients == GRADIENTS_AUTO) { a->gradients = GRADIENTS_FP32; }
        if (a->gradients == GRADIENTS_BF16) {
            input_error("-gd bf16 would round wpe's gradient for each example in -i; give -gd auto, fp32 for examples");
        }
    }
    set_by_length(a, tokens / tokens_of_update(a));
    if (a->T == ALL_POSITIONS) { a->T = c->max_seq_len; }
    if (a->fit && !*a->fit && plans_elsewhere) {
        input_error("--fit without a number needs a GPU; give GiB, as in --fit=80");
    }
    if (a->fit) { choose_what_fits(out, a, c, backend, world); }
    if (a->recompute == RECOMPUTE_AUTO && plans_elsewhere && trains(a)) {
        fprintf(out,
                "note      -r auto depends on a GPU's memory, and this machine has no GPU: the plan is for -r 0\n");
        a->recompute = 0;
    }
}
