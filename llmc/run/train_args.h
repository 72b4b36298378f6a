/*
The values of the trainer's flags, and what follows from them alone. run/flag_table.h has the table that fills them.
defines: ScheduleKind, RECOMPUTE_AUTO, RECOMPUTE_ALL, FuseGelu, MATMUL_AUTO, ALL_POSITIONS, ExportFormat, TrainArgs,
         num_ranks, data_ranks, accumulation_steps, tokens_of_update, train_data_flag, keeps_best, saves_checkpoints
*/
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// -k, in the order of SCHEDULE_CHOICES
typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;
#define SCHEDULE_CHOICES "cosine linear constant wsd"

// -r: a level of llmc/shapes/activations.h, or auto; with --plan also all levels, a line each
#define RECOMPUTE_CHOICES "0 1 2 3 4 auto all"
enum { RECOMPUTE_AUTO = 5, RECOMPUTE_ALL };

// -ge
typedef enum { FUSE_GELU_OFF, FUSE_GELU_ON, FUSE_GELU_AUTO } FuseGelu;  // in the order of FUSE_GELU_CHOICES
#define FUSE_GELU_CHOICES "0 1|2 auto"

// -f: 0 rounds no matmul inputs, 1 to TF32, 2 also to bf16
#define MATMUL_PRECISION_CHOICES "0 1 2 auto"
enum { MATMUL_AUTO = 3 };

enum { ALL_POSITIONS = 1048576 };  // -t of --eval and --generate where none is given: the model's positions

// --export
typedef enum { EXPORT_NONE, EXPORT_GGUF, EXPORT_LLMC } ExportFormat;  // in the order of EXPORT_CHOICES
#define EXPORT_CHOICES "none gguf llmc"

typedef struct {
    // data, model, output
    const char *train_data, *val_data, *model, *run_dir;
    // batch and length of training
    int B, T;
    int64_t batch_tokens, max_steps;
    double time_limit;
    int64_t seed;
    // learning rate
    double lr;
    int warmup, schedule;
    double final_fraction;
    // evaluation, sampling and text
    int val_every, val_batches, hellaswag, patience;
    const char *eval;
    int sample_every, sample_tokens;
    const char *prompt;
    double temperature, top_p;
    int top_k, generate, samples;
    const char *tokenizer;
    // --tokenize
    const char *tokenize, *field;
    double val_share;
    int train_bpe, skip_bad;
    // --export
    int export_format;
    // checkpoints
    int checkpoint_every, keep_checkpoints, major_every, resume;
    const char *keep_best;
    // memory
    const char *fit;
    int recompute, recompute_every, recompute_layers, offload;
    int master, moments, gradients;
    // optimizer
    int optimizer;
    double momentum, weight_decay, beta1, beta2, epsilon, clip, skip_loss, skip_norm;
    int nan_check, overfit;
    // machine
    int device, threads, graph, fuse_gelu, matmul_precision, gpu_log, profile;
    // parallel
    int zero, tensor_parallel, gather_again;
    int init_method, num_processes, rank, gpus_per_node;
    const char *shared_folder;
    // information
    const char *plan, *help, *version, *self_check;
    // no flags
    bool saved_model, saved_train_data, saved_val_data;  // a resumed run has the -e, -i or -j of its config.json
    bool text_alone;                                     // trains on a text without -e: the defaults are text_defaults
    char named_dir[96];                                  // the -o that such a run takes if none is given; else ""
} TrainArgs;

// ranks of the world; valid after args_set_ranks
static inline int num_ranks(const TrainArgs *a) { return a->num_processes > 1 ? a->num_processes : 1; }

// size of the data-parallel group; args_check_ranks stops unless -tp divides the ranks
static inline int data_ranks(const TrainArgs *a) { return num_ranks(a) / a->tensor_parallel; }

// micro-batches per update on each rank
static inline int accumulation_steps(const TrainArgs *a) {
    return a->batch_tokens == -1 ? 1 : (int)(a->batch_tokens / ((int64_t)a->B * a->T * data_ranks(a)));
}

static inline long long tokens_of_update(const TrainArgs *a) {
    return (long long)accumulation_steps(a) * a->B * a->T * data_ranks(a);
}

// -i in messages
static inline const char *train_data_flag(const TrainArgs *a) {
    return a->saved_train_data ? "-i in config.json" : "-i";
}

// --keep-best, unless --keep-best=0 ends that of a resumed run
static inline bool keeps_best(const TrainArgs *a) { return a->keep_best && strcmp(a->keep_best, "0") != 0; }

static inline bool saves_checkpoints(const TrainArgs *a) { return a->checkpoint_every > 0 || keeps_best(a); }
