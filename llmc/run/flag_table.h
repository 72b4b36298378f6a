/*
The trainer's flags: one table drives parsing, --help, the banner and config.json. Defaults, the table, checks of
several flags together, and reading flags from the command line and from a run's config.json.
defines: default_args, text_defaults, set_by_length, HELLASWAG_JSON, ARG, MAX_SEED, flag_table, NUM_FLAGS, args_check,
         args_set_ranks, flag_was_auto, read_flags, print_help
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/json_file.h"
#include "llmc/data/dataloader.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/run/backends.h"
#include "llmc/run/flags.h"
#include "llmc/run/model_source.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/layout.h"
#include <limits.h>

// fields that are not listed are 0 or NULL
static const TrainArgs default_args = {
    .B = 4,
    .T = 1024,
    .batch_tokens = -1,
    .max_steps = -1,
    .seed = 42,
    .lr = 3e-4,
    .final_fraction = 1.0,
    .val_every = 20,
    .val_batches = 20,
    .sample_every = 20,
    .sample_tokens = 64,
    .prompt = "",
    .temperature = 1.0,
    .top_p = 1.0,
    .samples = 1,
    .val_share = 0.01,
    .recompute = RECOMPUTE_AUTO,
    .recompute_every = 1,
    .recompute_layers = -1,
    .master = MASTER_SPLIT,
    .momentum = 0.95,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .epsilon = 1e-8,
    .clip = 1.0,
    .graph = 1,
    .fuse_gelu = FUSE_GELU_AUTO,
    .matmul_precision = 1,
    .gpu_log = -1,
    .tensor_parallel = 1,
    .gather_again = 1,
    .gpus_per_node = 8,
};

// The defaults of training on a text without -e, where GPT-2 124M would take days: 0.8M parameters learn words within a
// minute. BY_LENGTH, which no flag takes, stands for a value that set_by_length sets.
enum { BY_LENGTH = -2, MIN_STEPS = 2000 };
static const char *const text_defaults[] = {"",   "-e",  "l4h4c128", "-b",  "12", "-t",  "64",  "-l", "1e-3",
                                            "-q", "0.1", "-c",       "0.1", "-g", "200", "-nk", "1"};

// Sets the flags that are a share of the run. epoch: its steps
static inline void set_by_length(TrainArgs *a, int64_t epoch) {
    int *const flags[] = {&a->warmup, &a->val_every, &a->checkpoint_every, &a->sample_every};
    const int shares[] = {40, 16, 16, 4};
    if (a->max_steps == BY_LENGTH) { a->max_steps = epoch < MIN_STEPS ? MIN_STEPS : -1; }
    int64_t steps = a->max_steps > 0 ? a->max_steps : epoch;
    for (int i = 0; i < 4; i++) {
        if (*flags[i] == BY_LENGTH) { *flags[i] = steps < INT_MAX ? (int)steps / shares[i] + 1 : INT_MAX; }
    }
}

#define HELLASWAG_JSON "dev/data/hellaswag/hellaswag_val.jsonl"
#define ARG(field) offsetof(TrainArgs, field)
#define MAX_SEED 999999999999999.0  // cJSON writes 15 digits exactly
// clang-format off
#define ARG_ROW(letter, name, type, field, ...) {letter, name, type, ARG(field), __VA_ARGS__}
#define INT(letter, name, field, min, max, ...) ARG_ROW(letter, name, FLAG_INT, field, min, max, NULL, __VA_ARGS__)
#define INT64(letter, name, field, min, max, ...) ARG_ROW(letter, name, FLAG_INT64, field, min, max, NULL, __VA_ARGS__)
#define REAL(letter, name, field, min, max, ...) ARG_ROW(letter, name, FLAG_REAL, field, min, max, NULL, __VA_ARGS__)
#define COUNT(letter, name, field, ...) INT(letter, name, field, 0, INT_MAX, "N", __VA_ARGS__)
#define SWITCH(letter, name, field, ...) INT(letter, name, field, 0, 1, "0|1", __VA_ARGS__)
#define STRING(letter, name, field, ...) ARG_ROW(letter, name, FLAG_STRING, field, 0, 0, NULL, __VA_ARGS__)
#define CHOICE(letter, name, field, ...) ARG_ROW(letter, name, FLAG_CHOICE, field, 0, 0, __VA_ARGS__)
#define OPTION(name, field, ...) ARG_ROW(NULL, name, FLAG_OPTION, field, __VA_ARGS__)
static const Flag flag_table[] = {
    FLAG_HEADING("Data, model and output"),
    STRING("i", "train-data", train_data, "GLOB",
     "training data: token shards, examples as JSON lines, or text as bytes"),
    STRING("j", "val-data", val_data, "GLOB", "validation data (default: the last tenth of each -i file)"),
    STRING("e", "model", model, "MODEL",
     "shape (d12, l4h4c128), or weights (default d12; text: l4h4c128)"),
    STRING("o", "output", run_dir, "DIR", "run directory for metrics and checkpoints (default: no files written)"),

    FLAG_HEADING("Batch and length of training"),
    INT("b", "micro-batch", B, 1, 1048576, "N", "sequences per micro-batch (default %s)"),
    INT("t", "sequence-length", T, 1, 1048576, "N", "tokens per sequence (default %s)"),
    INT64("d", "batch-tokens", batch_tokens, -1, 1e12, "N",
     "tokens per update, accumulating gradients (default %s: b x t x ranks)"),
    INT64("x", "max-steps", max_steps, -1, 1e12, "N", "number of updates (default %s: one epoch)"),
    REAL(NULL, "time-limit", time_limit, 0, 1e9, "X",
     "train for X seconds, then save, validate, sample (default %s: no limit)", NOT_RESUMED),
    COUNT(NULL, "patience", patience, "stop after N validations without improvement (default %s: never)"),
    INT64(NULL, "seed", seed, 0, MAX_SEED, "N", "seed of initial weights, data order and sampling (default %s)"),

    FLAG_HEADING("Learning rate"),
    REAL("l", "learning-rate", lr, 0, 1e3, "X", "peak learning rate (default %s)"),
    COUNT("u", "warmup", warmup, "linear warmup, in steps (default %s)"),
    CHOICE("k", "schedule", schedule, SCHEDULE_CHOICES, "NAME",
     "schedule after warmup: cosine, linear, constant or wsd (default %s)"),
    REAL("q", "final-fraction", final_fraction, 0, 1, "X",
     "final learning rate as a fraction of the peak, 0 to 1 (default %s)"),

    FLAG_HEADING("Evaluation"),
    COUNT("v", "val-every", val_every, "validate every N steps and at the end (default %s; 0 disables)"),
    INT("m", "val-batches", val_batches, -1, INT_MAX, "N",
     "micro-batches per validation, shared by all ranks (default %s; -1: all)"),
    SWITCH("h", "hellaswag", hellaswag, "score HellaSwag at each validation (default %s: off)"),
    STRING(NULL, "eval", eval, "GLOB",
     "score a text, shards or HellaSwag with the weights in -e; no training", NOT_RESUMED),

    FLAG_HEADING("Sampling and text"),
    COUNT("s", "sample-every", sample_every, "print a sample every N steps and at the end (default %s; 0 disables)"),
    INT("g", "sample-tokens", sample_tokens, 1, 1048576, "N", "tokens per sample (default %s)"),
    STRING(NULL, "prompt", prompt, "TEXT", "text that samples continue, or @FILE (default: the start of a document)"),
    REAL(NULL, "temperature", temperature, 0, 100, "X",
     "sampling temperature (default %s; 0 always takes the likeliest token)"),
    COUNT(NULL, "top-k", top_k, "sample among the N likeliest tokens (default %s: all)"),
    REAL(NULL, "top-p", top_p, 0, 1, "X", "nucleus sampling with a total probability of X (default %s: all)"),
    INT(NULL, "generate", generate, 1, INT_MAX, "N",
     "continue --prompt by up to N tokens with the model in -e; no training", NOT_RESUMED),
    INT(NULL, "samples", samples, 1, INT_MAX, "N",
     "with --generate, number of continuations of the prompt (default %s)", NOT_RESUMED),
    STRING(NULL, "tokenizer", tokenizer, "FILE",
     "BPE tokenizer: merges.txt, vocab.bpe, tokenizer.json or llm.c's .bin"),

    FLAG_HEADING("Token shards"),
    STRING(NULL, "tokenize", tokenize, "OUT",
     "write the text in -i as token shards OUT_*.bin; no training", NOT_RESUMED),
    STRING(NULL, "field", field, "NAME", "field of the text in JSON lines (default: text)", NOT_RESUMED),
    COUNT(NULL, "skip-bad", skip_bad, "leave out up to N bad lines of JSON (default %s: stop at the first)"),
    REAL(NULL, "val-share", val_share, 0, 0.5, "X",
     "with --tokenize, share of validation tokens (default %s)", NOT_RESUMED),
    INT(NULL, "train-bpe", train_bpe, 257, 65536, "N",
     "learn a vocabulary of N tokens from -i, write vocab.json, merges.txt", NOT_RESUMED),

    FLAG_HEADING("Export"),
    CHOICE(NULL, "export", export_format, EXPORT_CHOICES, "FORMAT",
     "write the model in -e to -o: gguf for llama.cpp, llmc for llm.c", NOT_RESUMED),

    FLAG_HEADING("Checkpoints"),
    COUNT("n", "checkpoint-every", checkpoint_every,
     "save a checkpoint every N steps and at the end (default %s: never)"),
    COUNT("nk", "keep", keep_checkpoints, "keep the last N checkpoints (default %s: all)"),
    COUNT("nm", "major-every", major_every, "never delete checkpoints of steps divisible by N (default %s: none)"),
    OPTION("keep-best", keep_best, 0, 0, "0 1", "0|1",
     "keep the checkpoint with the lowest validation loss as DIR/best"),
    SWITCH("y", "resume", resume, "resume from the newest checkpoint in -o (default %s: off)", NOT_RESUMED),

    FLAG_HEADING("Memory"),
    OPTION("fit", fit, 0.001, 1e6, NULL, "GIB",
     "choose -r, -z, -om, --offload to fit GIB of memory, or the free memory", NOT_RESUMED),
    CHOICE("r", "recompute", recompute, RECOMPUTE_CHOICES, "LEVEL",
     "recompute activations: 0 none, 1 GELU, ... 4 blocks (default %s)"),
    COUNT("rk", "recompute-every", recompute_every,
     "with -r 4, save the input of every N-th block (default %s; 0 automatic)"),
    INT("rn", "recompute-layers", recompute_layers, -1, 1048576, "N",
     "blocks at level -r, the others one level lower (default %s: all)"),
    INT(NULL, "offload", offload, 0, 4, "0..4",
     "host memory: 1 optimizer, 2 gradients, 3 weights, 4 inputs (default %s)"),
    CHOICE("w", "master", master, MASTER_CHOICES, "TYPE",
     "fp32 master copy of bf16 weights: none, fp32 or split (default %s)"),
    CHOICE("om", "moments", moments, MOMENT_CHOICES, "TYPE",
     "type of the optimizer's moments: fp32, bf16 or 8bit (default %s)"),
    CHOICE("gd", "gradients", gradients, GRADIENT_CHOICES, "TYPE",
     "type of gradients: auto, fp32 or bf16 (default %s)"),

    FLAG_HEADING("Optimizer"),
    CHOICE(NULL, "optimizer", optimizer, OPTIMIZER_CHOICES, "NAME",
     "adamw, or muon for the matrices of blocks (default %s)"),
    REAL(NULL, "muon-momentum", momentum, 0, 0.999999, "X", "decay rate of Muon's momentum (default %s)"),
    REAL("c", "weight-decay", weight_decay, 0, 1e3, "X", "weight decay of tensors with two dimensions (default %s)"),
    REAL(NULL, "beta1", beta1, 0, 0.999999, "X", "decay rate of AdamW's first moment (default %s)"),
    REAL(NULL, "beta2", beta2, 0, 0.999999, "X", "decay rate of AdamW's second moment (default %s)"),
    // at least 1e-30: an epsilon of 0 makes 0/0 of the padding
    REAL(NULL, "epsilon", epsilon, 1e-30, 1, "X", "AdamW's epsilon, in the denominator of the update (default %s)"),
    REAL(NULL, "grad-clip", clip, 0, 1e6, "X", "clip the gradient's global norm to X (default %s; 0 disables)"),
    REAL("sl", "skip-loss", skip_loss, 0, 1e6, "Z", "skip an update at a loss z-score above Z (default %s: never)"),
    REAL("sg", "skip-norm", skip_norm, 0, 1e6, "Z",
     "skip an update at a gradient-norm z-score above Z (default %s: never)"),
    SWITCH(NULL, "nan-check", nan_check, "find the operation that produces a NaN or infinity (default %s: off)"),
    SWITCH("a", "overfit", overfit, "train on the first batch only, as a check (default %s: off)"),

    FLAG_HEADING("Machine"),
    CHOICE(NULL, "device", device, DEVICE_CHOICES, "NAME",
     "auto, cpu, cuda, or reference, the textbook code (default %s)"),
    INT(NULL, "threads", threads, 0, 1024, "N", "CPU threads (default %s: OMP_NUM_THREADS, or at most one per core)"),
    SWITCH(NULL, "graph", graph, "launch each micro-step on a GPU as one CUDA graph (default %s: on)"),
    CHOICE("f", "matmul-precision", matmul_precision, MATMUL_PRECISION_CHOICES, "N",
     "round fp32 matmul inputs: 0 no, 1 TF32, 2 bf16 (CPU), auto (default %s)"),
    CHOICE("ge", "fuse-gelu", fuse_gelu, FUSE_GELU_CHOICES, "0|1",
     "fuse GELU into the forward matmul before it: 0 off, 1 on (default %s)"),
    INT("lg", "gpu-log", gpu_log, -1, INT_MAX, "N",
     "ignored; llm.c's scripts pass it (nvidia-smi -l 1 logs a GPU)", NOT_RESUMED),
    INT(NULL, "profile", profile, 0, 10000, "N",
     "write a trace of N steps to profile.json in -o (default %s: none)", NOT_RESUMED),

    FLAG_HEADING("Parallel"),
    INT("z", "zero-stage", zero, 0, 3, "0..3",
     "ZeRO shards: 1 optimizer, 2 also gradients, 3 also weights (default %s)"),
    INT("tp", "tensor-parallel", tensor_parallel, 1, 65536, "N", "ranks per tensor-parallel group (default %s)"),
    SWITCH("ra", "gather-again", gather_again, "with -tp, all-gather matmul inputs again in the backward (default %s)"),
    CHOICE("pi", "init-method", init_method, COMM_INITS, "NAME",
     "how ranks find each other: mpi, or fs: a file in -pf (default %s)", NOT_RESUMED),
    INT("pn", "processes", num_processes, 0, 65536, "N",
     "number of ranks, for fs and --plan (default %s: as in mpirun)", NOT_RESUMED),
    INT("pr", "process-rank", rank, 0, 65535, "R",
     "rank of this process, 0 to -pn - 1, for fs (default %s)", NOT_RESUMED),
    INT("pg", "gpus-per-node", gpus_per_node, 1, 65536, "N", "ranks per machine, for fs (default %s)", NOT_RESUMED),
    STRING("pf", "shared-folder", shared_folder, "DIR",
     "folder that all ranks can write to, for fs (default: none)", NOT_RESUMED),

    FLAG_HEADING("Information"),
    OPTION("plan", plan, 0, 0, "json", "json",
     "print the memory plan (-r all: each level) and exit; needs no data", NOT_RESUMED),
    OPTION("help", help, 0, 0, NULL, NULL, "print this list, and exit", NOT_RESUMED),
    OPTION("self-check", self_check, 0, 0, NULL, NULL, "check every operation on this device, and exit", NOT_RESUMED),
    OPTION("version", version, 0, 0, NULL, NULL, "print the version and the build's options, and exit", NOT_RESUMED),
};
// clang-format on
enum { NUM_FLAGS = sizeof flag_table / sizeof flag_table[0] };

// ---- checks of several flags together

static inline void args_check_batch(const TrainArgs *a) {
    long long micro = (long long)a->B * a->T, step = micro * data_ranks(a), found = a->batch_tokens;
    if (micro > INT_MAX) {
        input_error("-b %d x -t %d is a micro-batch of %lld tokens, more than the maximum of %d: give a smaller -b and "
                    "accumulate with -d",
                    a->B, a->T, micro, INT_MAX);
    }
    if (found != -1 && (found < step || found % step != 0)) {
        input_error("-d %lld is not a multiple of %lld = -b %d x -t %d x %d data-parallel ranks; give %lld", found,
                    step, a->B, a->T, data_ranks(a), found < step ? step : found / step * step);
    }
    if (found / step > INT_MAX) {
        input_error("-d %lld is %lld micro-batches of %lld tokens, more than the maximum of %d; give a larger -b",
                    found, found / step, step, INT_MAX);
    }
}

// The flags that the modes without training obey, besides those of the machine; doc/flags.md describes them.
static const struct {
    const char *mode, *obeys;
} modes[] = {
    {"generate", "model output train-data tokenizer prompt temperature top-k top-p samples seed graph "
                 "matmul-precision fuse-gelu offload"},
    {"eval", "model output tokenizer field skip-bad micro-batch sequence-length graph matmul-precision fuse-gelu "
             "offload"},
    {"export", "model output train-data tokenizer"},
    {"tokenize", "train-data tokenizer field skip-bad val-share"},
    {"train-bpe", "train-data output field skip-bad"},
    {"self-check", ""},
};
enum { NUM_MODES = sizeof modes / sizeof modes[0] };
#define MACHINE_FLAGS "device threads gpu-log processes init-method"

// the row of modes of the first one given, or -1
static inline int mode_without_training(const TrainArgs *a) {
    const bool given[NUM_MODES] = {a->generate > 0,     a->eval != NULL,  a->export_format != EXPORT_NONE,
                                   a->tokenize != NULL, a->train_bpe > 0, a->self_check != NULL};
    for (int i = 0; i < NUM_MODES; i++) {
        if (given[i]) { return i; }
    }
    return -1;
}

// Stops at a flag that a mode without training does not obey, and at a second mode.
static inline void args_check_mode(const TrainArgs *a) {
    int mode = mode_without_training(a);
    TrainArgs usual = default_args;
    if (a->generate || a->eval) { usual.T = ALL_POSITIONS; }      // read_flags
    for (int i = NUM_FLAGS; mode >= 0 && !a->plan && i-- > 0;) {  // from the last: a second mode before its own flags
        const Flag *flag = &flag_table[i];
        char text[FLAG_TEXT];
        bool same = !flag_changed_text(flag, a, &usual, text) || strcmp(flag->name, modes[mode].mode) == 0;
        if (same || flag_choice_index(modes[mode].obeys, flag->name) >= 0) { continue; }
        if (flag_choice_index(MACHINE_FLAGS, flag->name) >= 0) { continue; }
        input_error("--%s does not use --%s%s%s: leave it out, or give it in a command of its own", modes[mode].mode,
                    flag->name, flag->letter ? ", -" : "", flag->letter ? flag->letter : "");
    }
}

static inline void args_check_ranks(const TrainArgs *a) {
    int ranks = num_ranks(a);
    if (ranks % a->tensor_parallel != 0) {
        input_error(
            "-tp %d must divide the number of ranks, found %d: start another number of ranks, or give another -tp",
            a->tensor_parallel, ranks);
    }
    int mode = mode_without_training(a);
    if (ranks > 1 && mode >= 0 && !a->plan) {
        input_error("--%s runs on one rank, found %d: start it without mpirun", modes[mode].mode, ranks);
    }
    if (a->init_method == COMM_INIT_MPI || a->plan) { return; }
    if (a->rank >= ranks) { input_error("-pr %d is not a rank: -pn %d has ranks 0 to %d", a->rank, ranks, ranks - 1); }
    if (!a->shared_folder) { input_error("-pi fs needs a folder that all ranks can write to: give it with -pf DIR"); }
}

// Stops at a flag that lacks another one, or that cannot have an effect.
static inline void args_check_needs(const TrainArgs *a) {
    bool trains = mode_without_training(a) < 0;
    bool needs_model = !a->model && !a->plan, chooses = a->recompute == RECOMPUTE_AUTO && !a->fit && trains;
    const struct {
        bool found;
        const char *sentence;
    } mistakes[] = {
        {a->val_batches == 0, "-m takes -1 (all) or at least 1 micro-batch; found 0 (-v 0 turns validation off)"},
        {a->max_steps == 0, "-x takes -1 (one epoch) or at least 1 step; found 0"},
        {(saves_checkpoints(a) || a->profile > 0) && !a->run_dir && !a->text_alone,
         "-n, --keep-best and --profile write files, but no -o is given: add -o DIR"},
        {a->resume && !a->run_dir, "-y 1 resumes a run, but no -o is given: add its run directory with -o DIR"},
        {(keeps_best(a) || a->patience > 0 || a->hellaswag) && a->val_every == 0,
         "--keep-best, --patience and -h 1 act at each validation, but -v 0 turns it off: give -v N"},
        {a->tokenize && (!a->train_data || !a->tokenizer),
         "--tokenize writes the text in -i with the tokens of --tokenizer: give both"},
        {a->train_bpe && !a->train_data, "--train-bpe learns from the text in -i: give a file or a pattern with -i"},
        {a->export_format && (!a->run_dir || needs_model) && !a->plan,
         "--export reads the model in -e and writes the file -o: give both"},
        {chooses && a->recompute_every != default_args.recompute_every,
         "-rk applies to -r 4, but -r is auto, which sets -rk by itself: give -r 4 as well, or leave -rk out"},
        {chooses && a->recompute_layers != default_args.recompute_layers,
         "-rn applies to one level, but -r is auto, which recomputes all blocks alike: give -r N as well, or leave -rn "
         "out"},
        {a->recompute == RECOMPUTE_ALL && (!a->plan || *a->plan || a->fit || !trains),
         "-r all works only with --plan, not --plan=json, --fit or --generate: it prints a line for each level of "
         "training; give one level with -r N"},
        {a->fit && !trains, "--fit chooses flags of training: leave it out"},
        {(a->eval || a->generate) && needs_model,
         "--eval and --generate need a trained model: give its folder or .safetensors file with -e"},
        {trains && !a->plan && (a->field || a->val_share != default_args.val_share),
         "--field and --val-share are for --tokenize, --train-bpe and --eval: training reads \"text\", and validates "
         "on -j"},
        {a->samples > 1 && !a->generate, "--samples applies to --generate: add it, or leave --samples out"},
        {strcmp(a->prompt, "@-") == 0 && !a->generate,
         "--prompt @- reads the prompt of --generate from stdin: give the samples of training a file or a text"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        if (mistakes[i].found) { input_error("%s", mistakes[i].sentence); }
    }
}

static inline void args_check(const TrainArgs *a) {
    args_check_ranks(a);
    args_check_mode(a);
    args_check_batch(a);
    args_check_needs(a);
}

// ---- from the command line and config.json

#ifdef HAVE_MPI
#define LAUNCHER_ADVICE ": start them with the mpirun of the MPI in --version, or with -pi fs (doc/parallel.md)"
#else
#define LAUNCHER_ADVICE                                                                                                \
    ", because this program was built without MPI: install Open MPI (libopenmpi-dev) and run make again"
#endif

// Sets the number of ranks and this rank, from mpirun (host: its ranks) or from -pn and -pr. -pn 1: one on purpose
static inline void args_set_ranks(TrainArgs *a, const Comm *host) {
    if (a->init_method != COMM_INIT_MPI) {
        if (host->size == 1) { return; }
        input_error("-pi fs is for ranks that mpirun did not start: leave it out, or start without mpirun");
    }
    bool other_number = a->num_processes > 1 && a->num_processes != host->size;
    if (other_number && !(a->plan && host->size == 1)) {
        input_error("-pn %d, but %d started: start %d ranks with mpirun -np %d, or give -pi fs", a->num_processes,
                    host->size, a->num_processes, a->num_processes);
    }
    bool alone_on_purpose = a->num_processes == 1 || a->plan || a->help || a->version;
    if (host->size == 1 && host->launcher && !alone_on_purpose) {
        input_error("%s means several ranks, but this process found one" LAUNCHER_ADVICE
                    ", or give -pn 1 to run it alone",
                    host->launcher);
    }
    if (host->size > 1) { a->num_processes = host->size; }
    a->rank = host->rank;
}

// True if a run's config.json has the value that an older version chose for `auto`. Such flags are listed there.
static inline bool flag_was_auto(const cJSON *config, const char *flag) {
    const cJSON *name, *chosen = json_get(config, "chosen");
    cJSON_ArrayForEach(name, chosen) {
        if (cJSON_IsString(name) && strcmp(name->valuestring, flag) == 0) { return true; }
    }
    return false;
}

// Reads the command line; the defaults of a resumed run are the flags in its config.json. Returns that JSON, or NULL.
// Strings in *args point into it: delete it after the last use of *args.
static inline cJSON *read_flags(TrainArgs *args, int argc, char **argv) {
    *args = default_args;
    flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    if (args->eval || (args->generate && !args->plan)) {  // without -t, all positions of the model
        *args = default_args;
        args->T = ALL_POSITIONS;
        flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    }
    cJSON *json = NULL;
    bool trains = mode_without_training(args) < 0;
    char path[PATH_LENGTH] = "";
    if (args->resume && args->run_dir && trains) {
        format_path(path, "%s/config.json", args->run_dir);
        json = try_read_json(path);
        if (!json && access(path, F_OK) == 0) {
            input_error("'%s' is not a JSON object, so the run's flags are not known: delete it, and give all of them",
                        path);
        }
    }
    bool text_alone = trains && !json && resumed_checkpoint(path, args) < 0 && !args->model && args->train_data &&
                      !token_files_match_shards(args->train_data) && kind_of_first(args->train_data) == FILE_OTHER;
    if (!json && !text_alone) { return NULL; }
    *args = default_args;
    args->text_alone = text_alone;
    if (text_alone) {
        flags_parse(flag_table, NUM_FLAGS, args, sizeof text_defaults / sizeof *text_defaults, (char **)text_defaults);
        args->max_steps = args->warmup = args->val_every = args->checkpoint_every = args->sample_every = BY_LENGTH;
    }
    flags_from_json(flag_table, NUM_FLAGS, args, json, path);
    if (flag_was_auto(json, "recompute")) { args->recompute = RECOMPUTE_AUTO; }
    if (flag_was_auto(json, "fuse-gelu")) { args->fuse_gelu = FUSE_GELU_AUTO; }
    TrainArgs before = *args;
    flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    if (json && args->matmul_precision == MATMUL_AUTO) { args->matmul_precision = before.matmul_precision; }
    args->saved_model = json && args->model && before.model && strcmp(args->model, before.model) == 0;
    args->saved_train_data = json && args->train_data && args->train_data == before.train_data;
    args->saved_val_data = json && args->val_data && args->val_data == before.val_data;
    return json;
}

static inline void print_help(void) {
    const char *usage =
        "usage: train_gpt2 -i DATA [-e MODEL] [-o DIR] [flags]           train\n"
        "       train_gpt2 -o DIR -y 1 [flags]                           resume\n"
        "       train_gpt2 --generate N -e DIR [--prompt TEXT] [flags]   generate text\n"
        "       train_gpt2 --eval FILE -e DIR [flags]                    score a text, shards or HellaSwag\n"
        "       train_gpt2 --export FORMAT -e DIR -o FILE [flags]        write a model for llama.cpp or llm.c\n"
        "       train_gpt2 --plan [flags]                                print the memory plan\n"
        "       train_gpt2 --self-check                                  check this device";
    flags_print_help(stdout, usage, flag_table, NUM_FLAGS, &default_args);
}
