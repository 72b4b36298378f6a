/*
The trainer's flags: the rows of flag_table.def as defaults and as a table, checks of several flags together, and
reading flags from the command line and from a run's config.json.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/json_file.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/run/backends.h"
#include "llmc/run/flags.h"
#include "llmc/run/model_source.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/activations.h"
#include "llmc/shapes/layout.h"
#include <limits.h>

// Defaults for training on a text without -e: GPT-2 124M would take days there, while 0.8M parameters learn words
// within a minute. BY_LENGTH is no value that a flag takes: resolve_flags replaces it by a share of the run.
enum { BY_LENGTH = -2, MIN_STEPS = 2000 };
static const char *const text_defaults[] = {"",   "-e",  "l4h4c128", "-b",  "12", "-t",  "64",  "-l", "1e-3",
                                            "-q", "0.1", "-c",       "0.1", "-g", "200", "-nk", "1"};

#define HELLASWAG_JSON "dev/data/hellaswag/hellaswag_val.jsonl"
#define ARG(field) offsetof(TrainArgs, field)
#define MAX_SEED 999999999999999.0  // cJSON writes 15 digits exactly

// the values without a command line
static const TrainArgs default_args = {
#define FLAG(ctype, letter, name, type, field, usual, ...) usual,
#define HEADING(text)
#include "llmc/run/flag_table.def"
    false, false, ""};

static const Flag flag_table[] = {
#define FLAG(ctype, letter, name, type, field, usual, ...) {letter, name, type, ARG(field), __VA_ARGS__},
#define HEADING(text) FLAG_HEADING(text),
#include "llmc/run/flag_table.def"
};
enum { NUM_FLAGS = sizeof flag_table / sizeof flag_table[0] };

// ---- checks of several flags together

static inline void require_batch(const TrainArgs *a) {
    long long micro = (long long)a->B * a->T, step = micro * data_ranks(a), found = a->batch_tokens;
    if (micro > INT_MAX) {
        input_error("-b %d x -t %d is a micro-batch of %lld tokens, more than the maximum of %d: give a smaller -b and "
                    "accumulate with -d",
                    a->B, a->T, micro, INT_MAX);
    }
    if (found == -1 && step > INT_MAX) {
        input_error("-b %d x -t %d x %d data-parallel ranks is an update of %lld tokens, more than the maximum of %d: "
                    "give a smaller -b",
                    a->B, a->T, data_ranks(a), step, INT_MAX);
    }
    if (found != -1 && (found < step || found % step != 0)) {
        input_error("-d %lld is not a multiple of %lld = -b %d x -t %d x %d data-parallel ranks; give %lld", found,
                    step, a->B, a->T, data_ranks(a), found < step ? step : found / step * step);
    }
}

// The modes. The program runs the first mode whose flag is given; without such a flag it runs the last one, which
// trains. A row has the flag, the mode's function in the trainer, the flags that the mode obeys besides MACHINE_FLAGS
// (NULL: all), and the flags without which it cannot start.
// clang-format off
#define MODES(MODE)                                                                                                    \
    MODE("help", print_help, NULL, "")                                                                                 \
    MODE("version", print_version, NULL, "")                                                                           \
    MODE("plan", plan_memory, NULL, "")                                                                                \
    MODE("generate", use_trained, "model output train-data tokenizer prompt temperature top-k top-p samples seed "     \
         "graph matmul-precision fuse-gelu offload", "model")                                                          \
    MODE("eval", use_trained, "model output tokenizer field micro-batch sequence-length graph "                        \
         "matmul-precision fuse-gelu offload", "model")                                                                \
    MODE("export", export_model, "model output train-data tokenizer", "model output")                                  \
    MODE("tokenize", tokenize_corpus, "train-data tokenizer field val-share", "train-data tokenizer")                  \
    MODE("train-bpe", train_bpe, "train-data output field", "train-data")                                              \
    MODE("self-check", self_check_device, "", "")                                                                      \
    MODE(NULL, train, NULL, "")
// clang-format on
#define MACHINE_FLAGS "device gpu-log processes init-method"

#define MODE_ROW(flag, main, obeys, needs) {flag, obeys, needs},
static const struct { const char *flag, *obeys, *needs; } modes[] = {MODES(MODE_ROW)};
enum { TRAINING = sizeof modes / sizeof modes[0] - 1 };

// True if the flag differs from its default in *usual.
static inline bool flag_is_changed(const char *name, const TrainArgs *a, const TrainArgs *usual) {
    char text[FLAG_TEXT];
    return flag_changed_text(flag_find(flag_table, NUM_FLAGS, name, strlen(name), false), a, usual, text) != NULL;
}

// the row of modes
static inline int mode_of(const TrainArgs *a) {
    int mode = 0;
    while (mode < TRAINING && !flag_is_changed(modes[mode].flag, a, &default_args)) { mode++; }
    return mode;
}

// True if these flags train or, with --plan, plan a training run.
static inline bool trains(const TrainArgs *a) {
    TrainArgs args = *a;
    args.plan = NULL;
    return mode_of(&args) == TRAINING;
}

// Stops at a flag that the mode does not obey, such as another mode's, or if a flag that it needs is missing.
static inline void require_mode_flags(const TrainArgs *a) {
    int mode = mode_of(a);
    TrainArgs usual = default_args;
    if (a->generate || a->eval) { usual.T = ALL_POSITIONS; }  // read_flags
    for (int i = NUM_FLAGS; i-- > 0;) {                       // from the last: a second mode before its own flags
        const char *name = flag_table[i].name, *letter = flag_table[i].letter ? flag_table[i].letter : "";
        if (!name) { continue; }
        bool given = flag_is_changed(name, a, &usual);
        bool obeyed = !modes[mode].obeys || flag_choice_index(modes[mode].obeys, name) >= 0 ||
                      flag_choice_index(MACHINE_FLAGS, name) >= 0 || strcmp(name, modes[mode].flag) == 0;
        if (given && !obeyed) {
            input_error("--%s does not use --%s%s%s: leave it out, or give it in a command of its own",
                        modes[mode].flag, name, *letter ? ", -" : "", letter);
        }
        if (!given && flag_choice_index(modes[mode].needs, name) >= 0) {
            input_error("--%s needs --%s%s%s: add it", modes[mode].flag, name, *letter ? ", -" : "", letter);
        }
    }
}

static inline void require_ranks(const TrainArgs *a) {
    int ranks = num_ranks(a);
    if (ranks % a->tensor_parallel != 0) {
        input_error(
            "-tp %d must divide the number of ranks, found %d: start another number of ranks, or give another -tp",
            a->tensor_parallel, ranks);
    }
    if (ranks > 1 && !trains(a) && !a->plan) {
        input_error("--%s runs on one rank, found %d: start it without mpirun", modes[mode_of(a)].flag, ranks);
    }
    if (a->init_method == COMM_INIT_MPI || a->plan) { return; }
    if (a->rank >= ranks) { input_error("-pr %d is not a rank: -pn %d has ranks 0 to %d", a->rank, ranks, ranks - 1); }
    if (!a->shared_folder) { input_error("-pi fs needs a folder that all ranks can write to: give it with -pf DIR"); }
}

// Stops at a flag that needs another one, or that cannot have an effect.
static inline void require_needed_flags(const TrainArgs *a) {
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
        {a->fit && !trains(a), "--fit chooses flags of training: leave it out"},
        {a->samples > 1 && !a->generate, "--samples applies to --generate: add it, or leave --samples out"},
        {trains(a) && !a->plan && (a->field || a->val_share != default_args.val_share),
         "--field and --val-share are for --tokenize, --train-bpe and --eval: training reads \"text\", and validates "
         "on -j"},
        {strcmp(a->prompt, "@-") == 0 && !a->generate,
         "--prompt @- reads the prompt of --generate from stdin: give the samples of training a file or a text"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        if (mistakes[i].found) { input_error("%s", mistakes[i].sentence); }
    }
}

// Stops at values that cannot stand together. --help and --version print in any case.
static inline void require_consistent_flags(const TrainArgs *a) {
    if (a->help || a->version) { return; }
    require_ranks(a);
    require_mode_flags(a);
    require_batch(a);
    require_needed_flags(a);
}

// ---- from the command line and config.json

// Sets the number of ranks and this rank, from mpirun (`launched`) or -pn and -pr. With -pn 1, one rank is no error.
static inline void args_set_ranks(TrainArgs *a, const Comm *launched) {
    if (a->init_method != COMM_INIT_MPI) {
        if (launched->size == 1) { return; }
        input_error("-pi fs is for ranks that mpirun did not start: leave it out, or start without mpirun");
    }
    bool other_number = a->num_processes > 1 && a->num_processes != launched->size;
    if (other_number && !(a->plan && launched->size == 1)) {
        input_error("-pn %d, but %d started: start %d ranks with mpirun -np %d, or give -pi fs", a->num_processes,
                    launched->size, a->num_processes, a->num_processes);
    }
    bool alone_on_purpose = a->num_processes == 1 || a->plan || a->help || a->version;
    if (launched->size == 1 && launched->launcher && !alone_on_purpose) {
        input_error("%s means several ranks, but this process found one: see --version for the program's MPI and "
                    "doc/parallel.md for other reasons, or give -pn 1 to run it alone",
                    launched->launcher);
    }
    if (launched->size > 1) { a->num_processes = launched->size; }
    a->rank = launched->rank;
}

// Reads the command line; the defaults of a resumed run are the flags in its config.json. Returns that JSON, or NULL.
// Strings in *args point into it: delete it after the last use of *args.
static inline cJSON *read_flags(TrainArgs *args, int argc, char **argv) {
    TrainArgs given = default_args;  // by the command line alone, which decides what the defaults are
    flags_parse(flag_table, NUM_FLAGS, &given, argc, argv);
    cJSON *json = NULL;
    char path[PATH_LENGTH] = "", folder[PATH_LENGTH];
    if (given.resume && given.run_dir && trains(&given)) {
        format_path(path, "%s/config.json", given.run_dir);
        json = try_read_json(path);
        if (!json && access(path, F_OK) == 0) {
            input_error("'%s' is not a JSON object, so the run's flags are not known: delete it, and give all of them",
                        path);
        }
    }
    *args = default_args;
    if (given.eval || (given.generate && !given.plan)) { args->T = ALL_POSITIONS; }
    args->text_alone = trains(&given) && !json && resumed_checkpoint(folder, &given) < 0 && !given.model &&
                       given.train_data && kind_of_first(given.train_data) == FILE_OTHER;
    if (args->text_alone) {
        flags_parse(flag_table, NUM_FLAGS, args, sizeof text_defaults / sizeof *text_defaults, (char **)text_defaults);
        args->max_steps = args->warmup = args->val_every = args->checkpoint_every = args->sample_every = BY_LENGTH;
    }
    flags_from_json(flag_table, NUM_FLAGS, args, json, path);
    TrainArgs before = *args;
    flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    if (json && args->matmul_precision == MATMUL_AUTO) { args->matmul_precision = before.matmul_precision; }
    args->saved_model = json && args->model && before.model && strcmp(args->model, before.model) == 0;
    return json;
}

static inline void print_help(TrainArgs *a, Comm *launched) {
    (void)a, (void)launched;
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
