/*
--plan: the memory of a command line. --version: the version and the features of the build. Both need no data and no
device. --plan measures nothing.
defines: print_plan, print_version
*/
#pragma once
#include "llmc/memory/traffic.h"
#include "llmc/run/fit.h"
#include "llmc/run/model_source.h"

#define TRAIN_GPT2_VERSION "1.0.0"  // as in CITATION.cff and CHANGELOG.md

// {"recompute":0,"fuse_gelu":false,"logits_chunk":256,"ranks":[...]}: the flags that -r auto may set, if the model
// trains; the plan of each rank, and the bytes that it sends for one update
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

static inline void print_plan_table(const TrainArgs *a, const GPT2Config *c, const ModelOptions *o, size_t llmc) {
    Plan plan = gpt2_plan(c, o);
    const char *name = o->recompute.level > 2 ? "llm.c's layout at -r 2, its last level" : "llm.c's layout";
    plan_print(stdout, &plan);
    if (num_ranks(a) > 1) {
        char text[96];
        snprintf(text, sizeof text, "each of %d ranks holds this, and sends per update", num_ranks(a));
        printf("%-60s %12.2f\n", text, mebibytes(gpt2_sent_bytes(c, o)));
    }
    if (llmc) { printf("%-60s %12.2f\n", name, mebibytes(llmc)); }
    plan_free(&plan);
}

// The options to plan for. Without a GPU on this machine, -r auto plans -r 0 for a GPU.
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
    int vocab_size = BYTE_VOCABULARY;
    if (a->train_data) {
        TokenFiles files = token_files_open("-i", a->train_data);
        vocab_size = data_vocab(&files, a);
        args_for_examples(a, data_are_examples(&files));
        token_files_close(&files);
    }
    ModelSource source = model_source(a, vocab_size);
    const GPT2Config *c = &source.config;
    if (source.has_weights) { model_close(&source.weights); }
    default_length(a, c);
    if (!a->generate) { check_length(a, c); }
    const Backend *backend = backend_choose((DeviceChoice)a->device, false);
    bool json = strcmp(a->plan, "json") == 0;
    print_offload_note(json ? stderr : stdout, a, backend);
    ModelOptions options = planned_options(json ? stderr : stdout, a, c, backend, host);
    if (!a->generate) { check_rows(a, a->B * a->T, "a micro-batch"); }
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
