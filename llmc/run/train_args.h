/*
The trainer's flags: one table drives parsing, --help, the banner and config.json; checks that involve several flags
stand behind it.
defines: TrainArgs, default_args, flag_table, NUM_FLAGS, num_ranks, data_ranks, args_check, accumulation_steps,
         tokens_of_update, args_meet, read_flags
*/
#pragma once
#include "llmc/backends.h"
#include "llmc/files/hellaswag.h"
#include "llmc/files/json_file.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/run/flags.h"
#include "llmc/run/schedule.h"

typedef struct {
    const char *train_data, *val_data, *model, *tokenizer, *tokenize;
    const char *run_dir;
    int checkpoint_every, keep_checkpoints, major_every, resume;
    int B, T;
    int64_t batch_tokens, max_steps;
    double time_limit;
    int schedule, warmup;
    double lr, final_fraction, weight_decay, beta1, beta2, epsilon, clip;
    double loss_guard, norm_guard;
    int val_every, val_batches, hellaswag, sample_every, sample_tokens, generate, top_k;
    double temperature;
    const char *prompt;
    int overfit, matmul_precision, threads, device, graph;
    int recompute, recompute_every, recompute_layers, classifier_rows, fuse_gelu;
    int master, moments, gradients;
    int zero, tensor_parallel, gather_again, num_processes, rank, gpus_per_node, init_method, check_replicas;
    const char *server, *shared_folder;
    double comm_timeout;
    int64_t seed;
    const char *fit, *plan, *help, *version;
} TrainArgs;

static const TrainArgs default_args = {
    .checkpoint_every = 0,
    .B = 4,
    .T = 1024,
    .batch_tokens = -1,
    .max_steps = -1,
    .lr = 3e-4,
    .final_fraction = 1.0,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .epsilon = 1e-8,
    .clip = 1.0,
    .val_every = 20,
    .val_batches = 20,
    .sample_every = 20,
    .sample_tokens = 64,
    .temperature = 1.0,
    .prompt = "",
    .matmul_precision = 1,
    .graph = 1,
    .recompute = 1,
    .recompute_every = 1,
    .recompute_layers = -1,
    .master = MASTER_SPLIT,
    .tensor_parallel = 1,
    .gather_again = 1,
    .gpus_per_node = 8,
    .comm_timeout = COMM_TIMEOUT,
    .seed = 42,
};

#define ARG(field) offsetof(TrainArgs, field)
#define ANY_COUNT 0, 2147483647
#define MAX_SEED 999999999999999.0  // the digits that cJSON writes
static const Flag flag_table[] = {
    FLAG_HEADING("data and model"),
    {"i", "train-data", FLAG_STRING, ARG(train_data), 0, 0, NULL, "GLOB",
     "what to train on: llm.c .bin token sharding, or any other file as bytes"},
    {"j", "val-data", FLAG_STRING, ARG(val_data), 0, 0, NULL, "GLOB",
     "what to validate on; without it the last tenth of each -i file"},
    {"e", "model", FLAG_STRING, ARG(model), 0, 0, NULL, "MODEL",
     "d12 d24 d36 d48, gpt3:c768, l4h4c128, or a folder or .safetensors file, or a run's folder; without it d12"},
    {NULL, "tokenizer", FLAG_STRING, ARG(tokenizer), 0, 0, NULL, "FILE",
     "GPT-2's merges (vocab.bpe, merges.txt) or llm.c's gpt2_tokenizer.bin, to read and write text"},
    {NULL, "tokenize", FLAG_STRING, ARG(tokenize), 0, 0, NULL, "FILE",
     "do not train: write the text -i as a token shard, by --tokenizer"},
    {NULL, "seed", FLAG_INT64, ARG(seed), 0, MAX_SEED, NULL, "N",
     "of the initial weights, the data's order and the samples"},
    FLAG_HEADING("run directory"),
    {"o", "output", FLAG_STRING, ARG(run_dir), 0, 0, NULL, "DIR",
     "where metrics.jsonl, config.json and checkpoints go; without it nothing is written"},
    {"n", "checkpoint-every", FLAG_INT, ARG(checkpoint_every), ANY_COUNT, NULL, "steps",
     "save a checkpoint every so many steps and at the end; 0: never"},
    {"nk", "keep", FLAG_INT, ARG(keep_checkpoints), ANY_COUNT, NULL, "N", "keep only the last N checkpoints; 0: all"},
    {"nm", "major-every", FLAG_INT, ARG(major_every), ANY_COUNT, NULL, "steps",
     "never delete the checkpoints of these steps; 0: none"},
    {"y", "resume", FLAG_INT, ARG(resume), 0, 1, NULL, "0|1", "go on from the last checkpoint in -o"},
    FLAG_HEADING("batch"),
    {"b", "micro-batch", FLAG_INT, ARG(B), 1, 1048576, NULL, "sequences", "sequences that are computed at once"},
    {"t", "sequence-length", FLAG_INT, ARG(T), 1, 1048576, NULL, "tokens", "tokens in a sequence"},
    {"d", "batch-tokens", FLAG_INT64, ARG(batch_tokens), -1, 1e12, NULL, "tokens",
     "tokens of one update, by accumulation; a multiple of b x t x processes; -1: that product"},
    FLAG_HEADING("memory"),
    {"r", "recompute", FLAG_INT, ARG(recompute), 0, 4, NULL, "0..4",
     "what the backward makes again: 1 GELU, 2 and layernorms, 3 and the MLP's first product, 4 whole blocks"},
    {"rk", "recompute-every", FLAG_INT, ARG(recompute_every), ANY_COUNT, NULL, "blocks",
     "-r 4 keeps the input of every so many; 0: as many as take least memory"},
    {"rn", "recompute-layers", FLAG_INT, ARG(recompute_layers), -1, 1048576, NULL, "blocks",
     "the first so many are at -r, the others a level below; -1: all"},
    {"lc", "classifier-rows", FLAG_INT, ARG(classifier_rows), ANY_COUNT, NULL, "rows",
     "logits that exist at once; 0: as many as take no memory of their own, but at least 256"},
    {"w", "master", FLAG_CHOICE, ARG(master), 0, 0, MASTER_CHOICES, "NAME",
     "fp32 copy of bf16 weights: none (they are rounded stochastically), whole, or split: the same bits in half of it"},
    {"om", "moments", FLAG_CHOICE, ARG(moments), 0, 0, MOMENT_CHOICES, "TYPE",
     "AdamW's moments, those that are no fp32 rounded stochastically"},
    {"gd", "gradients", FLAG_CHOICE, ARG(gradients), 0, 0, GRADIENT_CHOICES, "TYPE",
     "of the parameters; auto: as the weights, but fp32 where micro-batches add up"},
    {NULL, "fit", FLAG_OPTION, ARG(fit), 0.001, 1e6, NULL, "GIB",
     "choose the fastest that fits in so much, or in what is free: -b (of the same -d) -r -rk -rn -lc -w -om -gd, as "
     "far as they are at their defaults"},
    FLAG_HEADING("optimisation"),
    {"x", "max-steps", FLAG_INT64, ARG(max_steps), -1, 1e12, NULL, "steps", "updates; -1: one epoch"},
    {NULL, "time-limit", FLAG_REAL, ARG(time_limit), 0, 1e9, NULL, "seconds",
     "stop training after so long, then save, validate and sample as at the end; 0: none"},
    {"k", "schedule", FLAG_CHOICE, ARG(schedule), 0, 0, SCHEDULE_CHOICES, "NAME", "the learning rate's way down"},
    {"l", "learning-rate", FLAG_REAL, ARG(lr), 0, 1e3, NULL, "X", "its peak"},
    {"u", "warmup", FLAG_INT, ARG(warmup), ANY_COUNT, NULL, "steps", "its linear way up"},
    {"q", "final-fraction", FLAG_REAL, ARG(final_fraction), 0, 1, NULL, "X", "its end, as a fraction of the peak"},
    {"c", "weight-decay", FLAG_REAL, ARG(weight_decay), 0, 1e3, NULL, "X", "on tensors with two dimensions"},
    {NULL, "beta1", FLAG_REAL, ARG(beta1), 0, 0.999999, NULL, "X", "AdamW's first moment"},
    {NULL, "beta2", FLAG_REAL, ARG(beta2), 0, 0.999999, NULL, "X", "AdamW's second moment"},
    {NULL, "epsilon", FLAG_REAL, ARG(epsilon), 1e-30, 1, NULL, "X", "AdamW's"},  // 0 would make 0/0 of the padding
    {NULL, "grad-clip", FLAG_REAL, ARG(clip), 0, 1e6, NULL, "X", "largest global norm of the gradient; 0: no clipping"},
    {"sl", "skip-loss", FLAG_REAL, ARG(loss_guard), 0, 1e6, NULL, "z",
     "skip an update whose loss is so many standard deviations off the last 128; 0: never"},
    {"sg", "skip-norm", FLAG_REAL, ARG(norm_guard), 0, 1e6, NULL, "z", "the same for the gradient's norm"},
    {"a", "overfit", FLAG_INT, ARG(overfit), 0, 1, NULL, "0|1",
     "train on the first batch alone, to see that the loss goes to 0"},
    FLAG_HEADING("evaluation and text"),
    {"v", "val-every", FLAG_INT, ARG(val_every), ANY_COUNT, NULL, "steps",
     "validate every so many steps and at the end; 0: never"},
    {"m", "val-batches", FLAG_INT, ARG(val_batches), -1, 2147483647, NULL, "N",
     "micro-batches of a validation; -1: all that are full"},
    {"h", "hellaswag", FLAG_INT, ARG(hellaswag), 0, 1, NULL, "0|1",
     "score HellaSwag at every validation, from " HELLASWAG_PATH},
    {"s", "sample-every", FLAG_INT, ARG(sample_every), ANY_COUNT, NULL, "steps",
     "write a sample every so many steps and at the end; 0: never"},
    {"g", "sample-tokens", FLAG_INT, ARG(sample_tokens), 1, 1048576, NULL, "tokens", "length of a sample"},
    {NULL, "generate", FLAG_INT, ARG(generate), 1, 2147483647, NULL, "tokens",
     "do not train: load -e and continue --prompt by so many tokens"},
    {NULL, "prompt", FLAG_STRING, ARG(prompt), 0, 0, NULL, "TEXT", "what samples begin with"},
    {NULL, "temperature", FLAG_REAL, ARG(temperature), 0, 100, NULL, "X", "of sampling; 0: always the likeliest token"},
    {NULL, "top-k", FLAG_INT, ARG(top_k), ANY_COUNT, NULL, "N", "sample among the N likeliest tokens; 0: all"},
    FLAG_HEADING("machine"),
    {NULL, "device", FLAG_CHOICE, ARG(device), 0, 0, DEVICE_CHOICES, "NAME", "where to compute"},
    {NULL, "graph", FLAG_INT, ARG(graph), 0, 1, NULL, "0|1", "on a GPU, give it a micro-step as one recorded graph"},
    {NULL, "threads", FLAG_INT, ARG(threads), 0, 1024, NULL, "N", "CPU threads; 0: one a core, or OMP_NUM_THREADS"},
    {"ge", "fuse-gelu", FLAG_INT, ARG(fuse_gelu), 0, 2, NULL, "0|1|2",
     "GELU within the product before it, in the forward too: faster on a GPU, but -r 0 and the other levels may then "
     "differ in the last bit; 2 is 1"},
    {"f", "matmul-precision", FLAG_INT, ARG(matmul_precision), 0, 2, NULL, "0|1|2",
     "rounding of fp32 matmul inputs: 1 to TF32 on a GPU, 2 to bf16 where the CPU multiplies it faster; sums stay "
     "fp32"},
    FLAG_HEADING("processes"),
    {"z", "zero-stage", FLAG_INT, ARG(zero), 0, 3, NULL, "0..3",
     "what is divided among the processes: 1 the optimizer's state, 2 also gradients, 3 also parameters"},
    {"tp", "tensor-parallel", FLAG_INT, ARG(tensor_parallel), 1, 65536, NULL, "N",
     "so many neighbouring processes share each tensor and each micro-batch; the others train on other data"},
    {"ra", "gather-again", FLAG_INT, ARG(gather_again), 0, 1, NULL, "0|1",
     "with -tp, the backward gathers inputs of products again; 0 keeps them, at -r 0 and 1: more memory, less sent"},
    {"pi", "init-method", FLAG_CHOICE, ARG(init_method), 0, 0, COMM_INITS, "NAME",
     "how processes find each other: mpi, if mpirun started them; fs or tcp, where each has its GPU"},
    {"pn", "processes", FLAG_INT, ARG(num_processes), 0, 65536, NULL, "N",
     "how many there are, for fs, tcp and --plan; 0: as many as mpirun started"},
    {"pr", "process-rank", FLAG_INT, ARG(rank), 0, 65535, NULL, "R", "which of them this is, for fs and tcp"},
    {"pg", "gpus-per-node", FLAG_INT, ARG(gpus_per_node), 1, 65536, NULL, "N",
     "processes on a machine, for fs and tcp"},
    {"ps", "server", FLAG_STRING, ARG(server), 0, 0, NULL, "HOST:PORT", "of rank 0, for tcp"},
    {"pf", "shared-folder", FLAG_STRING, ARG(shared_folder), 0, 0, NULL, "DIR", "one that all processes see, for fs"},
    {NULL, "comm-timeout", FLAG_REAL, ARG(comm_timeout), 1, 1e9, NULL, "seconds",
     "the silence after which a process is given up, and the run with it"},
    {NULL, "check-replicas", FLAG_INT, ARG(check_replicas), ANY_COUNT, NULL, "steps",
     "compare every so many steps what all processes have of the parameters; 0: never"},
    FLAG_HEADING("information"),
    {NULL, "plan", FLAG_OPTION, ARG(plan), 0, 0, "json", "FORMAT",
     "print the memory this command line takes, and exit; needs no data"},
    {NULL, "help", FLAG_OPTION, ARG(help), 0, 0, NULL, NULL, "print this, and exit"},
    {NULL, "version", FLAG_OPTION, ARG(version), 0, 0, NULL, NULL, "print what is built in, and exit"},
    // llm.c's letters that are not here yet
    FLAG_LLMC("lg", "log the GPU's state every so many steps"),
};
enum { NUM_FLAGS = sizeof flag_table / sizeof flag_table[0] };

// the processes that train together; args_meet has set them
static inline int num_ranks(const TrainArgs *a) { return a->num_processes > 1 ? a->num_processes : 1; }

// groups of them that have their own part of the data each; args_check_processes sees that -tp divides
static inline int data_ranks(const TrainArgs *a) { return num_ranks(a) / a->tensor_parallel; }

// what no single flag can check of -d
static inline void args_check_batch(const TrainArgs *a) {
    int64_t micro = (int64_t)a->B * a->T, together = micro * data_ranks(a);
    char processes[64] = "", number[64] = "";
    if (data_ranks(a) > 1) {
        snprintf(processes, sizeof processes, a->tensor_parallel > 1 ? " x processes / -tp" : " x processes");
        snprintf(number, sizeof number, " x %d", data_ranks(a));
    }
    bool any_micro_batch = a->fit && a->B == default_args.B;  // --fit will choose one that divides it
    int64_t sequences = (int64_t)a->T * data_ranks(a);
    if (any_micro_batch && a->batch_tokens != -1 && (a->batch_tokens <= 0 || a->batch_tokens % sequences != 0)) {
        input_error("-d %lld is not a multiple of -t%s %d%s", (long long)a->batch_tokens, processes, a->T, number);
    }
    if (!any_micro_batch && a->batch_tokens != -1 && (a->batch_tokens < together || a->batch_tokens % together != 0)) {
        bool below = a->batch_tokens < together;
        input_error("-d %lld is not a multiple of -b x -t%s = %d x %d%s = %lld; the %s is %lld",
                    (long long)a->batch_tokens, processes, a->B, a->T, number, (long long)together,
                    below ? "least" : "nearest below",
                    (long long)(below ? together : a->batch_tokens / together * together));
    }
    if (a->batch_tokens / together > INT_MAX) {
        input_error("-d %lld is %lld micro-batches of -b x -t%s = %lld, more than the %d possible; give a larger -b",
                    (long long)a->batch_tokens, (long long)(a->batch_tokens / together), processes, (long long)together,
                    INT_MAX);
    }
}

// what no single flag can check of the processes
static inline void args_check_processes(const TrainArgs *a) {
    bool alone = num_ranks(a) == 1;
    if (num_ranks(a) % a->tensor_parallel != 0) {
        input_error("-tp %d takes a number of processes that is a multiple of it; found %d: start others, or give "
                    "another -tp",
                    a->tensor_parallel, num_ranks(a));
    }
    if (!alone && (a->generate || a->tokenize) && !a->plan) {
        input_error("%s is the work of one process; found %d: start it without mpirun",
                    a->generate ? "--generate" : "--tokenize", num_ranks(a));
    }
    if (a->init_method == COMM_INIT_MPI || a->plan) { return; }
    if (a->rank >= num_ranks(a)) {
        input_error("-pr %d: of the %d processes of -pn the ranks are 0 to %d", a->rank, num_ranks(a),
                    num_ranks(a) - 1);
    }
    if (a->init_method == COMM_INIT_FILE && !a->shared_folder) {
        input_error("-pi fs meets in a folder that all processes see: give it with -pf");
    }
    if (a->init_method == COMM_INIT_TCP && !a->server) {
        input_error("-pi tcp meets at rank 0: give its address with -ps HOST:PORT");
    }
}

// what no single flag can check
static inline void args_check(const TrainArgs *a) {
    if (a->val_batches == 0) {
        input_error("-m takes -1 (all) or at least 1 micro-batch; found 0 (-v 0 turns validation off)");
    }
    int64_t micro = (int64_t)a->B * a->T;
    if (micro > INT_MAX) {
        input_error(
            "-b %d x -t %d is %lld tokens at once, more than the %d possible; give a smaller -b and accumulate with -d",
            a->B, a->T, (long long)micro, INT_MAX);
    }
    args_check_processes(a);
    args_check_batch(a);
    if (a->checkpoint_every > 0 && !a->run_dir) {
        input_error("-n %d saves checkpoints, but there is no -o to save them in", a->checkpoint_every);
    }
    if (a->resume && !a->run_dir) { input_error("-y 1 goes on from the last checkpoint in -o, but no -o is given"); }
    if (a->hellaswag && a->val_every == 0) {
        input_error("-h 1 scores HellaSwag at every validation, but -v 0 turns validation off; give -v");
    }
    if (a->max_steps == 0) { input_error("-x takes -1 (one epoch) or at least 1 step; found 0"); }
    if (a->tokenize && (!a->train_data || !a->tokenizer)) {
        input_error("--tokenize %s writes the text of -i in the tokens of --tokenizer; give both", a->tokenize);
    }
    if (a->fit && a->generate) {
        input_error("--fit chooses how to train; with --generate there is nothing to choose");
    }
    if (a->generate && !a->model && !a->plan) {
        input_error("--generate needs a trained model: give its folder or .safetensors file with -e");
    }
}

// micro-batches of an update that each process makes
static inline int accumulation_steps(const TrainArgs *a) {
    return a->batch_tokens == -1 ? 1 : (int)(a->batch_tokens / ((int64_t)a->B * a->T * data_ranks(a)));
}

static inline long long tokens_of_update(const TrainArgs *a) {
    return (long long)accumulation_steps(a) * a->B * a->T * data_ranks(a);
}

// Which processes there are: mpirun says so, or the flags.
static inline void args_meet(TrainArgs *a, const Comm *host) {
    bool by_mpi = a->init_method == COMM_INIT_MPI, others = a->num_processes > 1 && a->num_processes != host->size;
    if (!by_mpi && host->size > 1) {
        input_error("-pi %s is for processes that mpirun did not start; leave it out",
                    a->init_method == COMM_INIT_TCP ? "tcp" : "fs");
    }
    if (by_mpi && others && !(a->plan && host->size == 1)) {
        input_error("-pn %d, but %d started; start as many with mpirun -np %d, or give -pi fs or tcp", a->num_processes,
                    host->size, a->num_processes);
    }
    if (by_mpi && host->size > 1) { a->num_processes = host->size, a->rank = host->rank; }
    if (by_mpi && host->size == 1) { a->rank = 0; }
}

// The flags, the defaults of a resumed run being those it had: its config.json, which the strings in *args then point
// into. Delete what is returned, which may be NULL, when they are no longer needed.
static inline cJSON *read_flags(TrainArgs *args, int argc, char **argv) {
    *args = default_args;
    flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    if (!args->resume || !args->run_dir || args->generate) { return NULL; }
    char path[PATH_LENGTH];
    format_path(path, "%s/config.json", args->run_dir);
    cJSON *json = try_read_json(path);
    *args = default_args;
    flags_from_json(flag_table, NUM_FLAGS, args, json,
                    "resume time-limit generate tokenize fit plan help version init-method processes process-rank "
                    "gpus-per-node server shared-folder");
    flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    return json;
}
