// The values of the trainer's flags, and what follows from them alone. run/flag_table.def has a row for each.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// -k, in the order of SCHEDULE_CHOICES
typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;
#define SCHEDULE_CHOICES "cosine linear constant wsd"

#define RECOMPUTE_CHOICES "0 1 2 3 4 auto"  // -r, in the order of the levels in llmc/shapes/activations.h

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
#define FLAG(ctype, letter, name, type, field, ...) ctype field;
#define HEADING(text)
#include "llmc/run/flag_table.def"
    // no flags
    bool saved_model;    // a resumed run has the -e of its config.json
    bool text_alone;     // trains on a text without -e: the defaults are text_defaults
    char named_dir[96];  // the -o that such a run takes if none is given; else ""
} TrainArgs;

// ranks of the world; valid after args_set_ranks
static inline int num_ranks(const TrainArgs *a) { return a->num_processes > 1 ? a->num_processes : 1; }

// size of the data-parallel group; require_ranks stops unless -tp divides the ranks
static inline int data_ranks(const TrainArgs *a) { return num_ranks(a) / a->tensor_parallel; }

// micro-batches per update on each rank
static inline int accumulation_steps(const TrainArgs *a) {
    return a->batch_tokens == -1 ? 1 : (int)(a->batch_tokens / ((int64_t)a->B * a->T * data_ranks(a)));
}

static inline long long tokens_of_update(const TrainArgs *a) {
    return (long long)accumulation_steps(a) * a->B * a->T * data_ranks(a);
}

// --keep-best, unless --keep-best=0 ends that of a resumed run
static inline bool keeps_best(const TrainArgs *a) { return a->keep_best && strcmp(a->keep_best, "0") != 0; }

static inline bool saves_checkpoints(const TrainArgs *a) { return a->checkpoint_every > 0 || keeps_best(a); }
