/*
The trainer's flags. One table drives parsing, --help, the banner and config.json. In this order: the struct, the
defaults, the table, values derived from flags, the checks of several flags together, and reading flags from the command
line and from a run's config.json.
defines: RECOMPUTE_AUTO, FuseGelu, MATMUL_AUTO, EvalTask, ALL_POSITIONS, HELLASWAG_JSON, ExportFormat, ExportType,
         EXPORT_TYPE_CHOICES, ChosenFlag, TrainArgs, default_args, flag_table, NUM_FLAGS, num_ranks, data_ranks,
         accumulation_steps, tokens_of_update, keeps_best, saves_checkpoints, args_check, args_set_ranks,
         chosen_to_json, read_flags, Usage, usages, NUM_USAGES, print_help
*/
#pragma once
#include "llmc/run/backends.h"
#include "llmc/files/json_file.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/run/flags.h"
#include "llmc/run/schedule.h"
#include <ctype.h>

// -r: a level of llmc/memory/activations.h, or auto
#define RECOMPUTE_CHOICES "0 1 2 3 4 auto"
enum { RECOMPUTE_AUTO = 5 };

// -ge
typedef enum { FUSE_GELU_OFF, FUSE_GELU_ON, FUSE_GELU_AUTO } FuseGelu;  // in the order of FUSE_GELU_CHOICES
#define FUSE_GELU_CHOICES "0 1|2 auto"

// -f: 0 rounds no matmul inputs, 1 to TF32, 2 also to bf16
#define MATMUL_PRECISION_CHOICES "0 1 2 auto"
enum { MATMUL_AUTO = 3 };

// --eval-task
typedef enum { EVAL_AUTO, EVAL_TEXT, EVAL_CHOICES, EVAL_LAMBADA } EvalTask;  // in the order of EVAL_TASKS
#define EVAL_TASKS "auto text choices lambada"

enum { ALL_POSITIONS = 1048576 };  // -t of --eval where none is given: the model's positions

// --export and --type
typedef enum { EXPORT_NONE, EXPORT_GGUF, EXPORT_LLMC } ExportFormat;  // in the order of EXPORT_CHOICES
#define EXPORT_CHOICES "none gguf llmc"
typedef enum { EXPORT_AUTO, EXPORT_F32, EXPORT_F16, EXPORT_BF16, EXPORT_Q8_0 } ExportType;  // as EXPORT_TYPE_CHOICES
#define EXPORT_TYPE_CHOICES "auto f32 f16 bf16 q8_0"

// tokens of an answer of --chat without --generate
enum { CHAT_TOKENS = 256 };

// flags that -r auto sets, and -f, which -f auto sets; bits of TrainArgs.chosen, in the order of chosen_flags
typedef enum {
    CHOSEN_RECOMPUTE = 1,
    CHOSEN_FUSE_GELU = 2,
    CHOSEN_CLASSIFIER_ROWS = 4,
    CHOSEN_MATMUL_PRECISION = 8
} ChosenFlag;
static const char *const chosen_flags[] = {"recompute", "fuse-gelu", "classifier-rows", "matmul-precision"};
enum { NUM_CHOSEN_FLAGS = sizeof chosen_flags / sizeof chosen_flags[0] };

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
    int eval_task, stride;
    int sample_every, sample_tokens;
    const char *prompt;
    double temperature, top_p;
    int top_k, generate, samples;
    const char *prompt_file, *past_end, *chat;
    const char *tokenizer;
    // --tokenize
    const char *tokenize, *field, *separator;
    int64_t shard_tokens;
    double val_share;
    int train_bpe;
    // --export
    int export_format, export_type;
    // checkpoints
    int checkpoint_every, keep_checkpoints, major_every, resume;
    const char *keep_best;
    int save_sync, strict_save;
    // memory
    const char *fit;
    double link;
    int recompute, recompute_every, recompute_layers, offload, offload_pageable, classifier_rows;
    int master, moments, gradients;
    // optimizer
    double weight_decay, beta1, beta2, epsilon, clip, skip_loss, skip_norm;
    int max_skips, nan_check, verify_step, overfit;
    // machine
    int device, threads, graph, fuse_gelu, matmul_precision;
    // the machine's state and times
    int gpu_log, profile;
    // parallel
    int zero, tensor_parallel, gather_again;
    int init_method, num_processes, rank, gpus_per_node;
    const char *server, *shared_folder, *secret_file;
    double comm_timeout;
    int check_replicas;
    // information
    const char *plan, *help, *manual, *version, *self_check;
    // no flags
    double host_link, gpu_flops;  // GB/s of copies between host and device; FLOPs per second, 0: unknown (host_link.h)
    int chosen;                   // the set of ChosenFlag that -r auto and -f auto have set
    bool saved_model;             // a resumed run has the -e of its config.json
    bool link_is_measured;        // no --link: host_link is that of the GPU
} TrainArgs;

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
    .shard_tokens = 100000000,
    .val_share = 0.01,
    .recompute = RECOMPUTE_AUTO,
    .recompute_every = 1,
    .recompute_layers = -1,
    .master = MASTER_SPLIT,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .epsilon = 1e-8,
    .clip = 1.0,
    .max_skips = 20,
    .graph = 1,
    .fuse_gelu = FUSE_GELU_AUTO,
    .matmul_precision = 1,
    .gpu_log = -1,
    .tensor_parallel = 1,
    .gather_again = 1,
    .gpus_per_node = 8,
    .comm_timeout = COMM_TIMEOUT,
};

#define HELLASWAG_JSON "dev/data/hellaswag/hellaswag_val.jsonl"
#define ARG(field) offsetof(TrainArgs, field)
#define ANY_COUNT 0, 2147483647
#define MAX_SEED 999999999999999.0  // cJSON writes 15 digits exactly
static const Flag flag_table[] = {
    FLAG_HEADING("Data, model and output"),
    {"i", "train-data", FLAG_STRING, ARG(train_data), 0, 0, NULL, "GLOB", NULL,
     "training data: .bin token shards, .jsonl examples, or text as bytes",
     "GLOB is a file or a quoted pattern. Files ending in .bin are token shards, as llm.c and --tokenize write them. "
     "Files ending in .jsonl hold an example a line: {\"prompt\":...,\"completion\":...}, {\"messages\":[...]} or "
     "{\"text\":...}; the loss covers completions and answers alone. Any other file is read as bytes, a vocabulary of "
     "256 tokens. One pattern cannot mix kinds. The order of the data depends only on --seed and the position, so it "
     "is the same with any number of ranks. --plan and --generate need no -i. Without -i, training takes "
     "llm.c's defaults, if they exist: tiny_shakespeare_train.bin and _val.bin in dev/data/tinyshakespeare, and for -e "
     "gpt2_124M_bf16.bin.",
     "./train_gpt2 -i 'data/*_train_*.bin' -j 'data/*_val_*.bin' -e d12", "-j, -e, --tokenize; doc/training.md"},
    {"j", "val-data", FLAG_STRING, ARG(val_data), 0, 0, NULL, "GLOB", NULL,
     "validation data (default: the last tenth of each -i file)",
     "GLOB is a file or a quoted pattern, of the same kind as -i: token shards, examples or bytes. Without -j the last "
     "tenth of each -i file, or of the examples, is validation data, and is not trained on. A resumed run must keep "
     "this choice.",
     "./train_gpt2 -i train.txt -j val.txt -e l6h6c384 -t 256", "-i, -v, -m; doc/training.md"},
    {"e", "model", FLAG_STRING, ARG(model), 0, 0, NULL, "MODEL", NULL,
     "shape (d12, gpt3:c768, l4h4c128), or weights (default d12)",
     "d12, d24, d36 and d48 are GPT-2 124M, 350M, 774M and 1558M, with GPT-2's vocabulary; d6, d60, d72 and d84 are "
     "llm.c's other depths. gpt3:c768 is the GPT-3 model of 768 channels, with 2048 positions. l4h4c128 is 4 layers, "
     "4 heads and 128 channels, with the vocabulary of the data and -t positions. A folder holds config.json and "
     "model.safetensors, or several files and model.safetensors.index.json, as Hugging Face writes them. A single "
     ".safetensors file and llm.c's .bin model files are read too. A run directory, ours or llm.c's, means its last "
     "checkpoint.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256", "-o, -y, --generate; doc/training.md"},
    {"o", "output", FLAG_STRING, ARG(run_dir), 0, 0, NULL, "DIR", NULL,
     "run directory for metrics and checkpoints (default: no files written)",
     "metrics.jsonl gets one line per update and per validation, main.log the same lines in llm.c's format, "
     "config.json the flags, and step_00000100/ a checkpoint. A new run needs a directory without another run in it; "
     "missing directories are created. One run at a time can use a directory. Without -o the run writes no files. With "
     "--export, -o is the file to write.",
     "./train_gpt2 -i my.txt -o runs/mine -n 500 -nk 3", "-n, -y; doc/files.md"},

    FLAG_HEADING("Batch and length of training"),
    {"b", "micro-batch", FLAG_INT, ARG(B), 1, 1048576, NULL, "N", "sequences", "sequences per micro-batch (default %s)",
     "One forward and backward computes a micro-batch of b x t tokens on each data-parallel rank. A larger micro-batch "
     "is usually faster and takes more memory for activations. Give -d for a larger update with the same memory.",
     "./train_gpt2 -i my.txt -e d12 -b 16 -t 1024", "-t, -d, --fit; doc/training.md"},
    {"t", "sequence-length", FLAG_INT, ARG(T), 1, 1048576, NULL, "N", "tokens", "tokens per sequence (default %s)",
     "At most the model's number of positions: 1024 for d12 to d48. For a shape such as l4h4c128, -t is the number of "
     "positions. A resumed run keeps its -t.",
     "./train_gpt2 -i my.txt -e l6h6c384 -b 16 -t 256", "-b, -e; doc/training.md"},
    {"d", "batch-tokens", FLAG_INT64, ARG(batch_tokens), -1, 1e12, NULL, "N", "tokens",
     "tokens per update, accumulating gradients (default %s: b x t x ranks)",
     "N must be a multiple of b x t x data-parallel ranks. The quotient is the number of micro-batches that each rank "
     "accumulates per update. -1 is one micro-batch per data-parallel rank. The loss of an update does not depend on "
     "how -b divides it, except for the order of sums.",
     "./train_gpt2 -i my.txt -e d12 -b 4 -t 1024 -d 524288", "-b, -t, -gd; doc/training.md"},
    {"x", "max-steps", FLAG_INT64, ARG(max_steps), -1, 1e12, NULL, "N", "updates",
     "number of updates (default %s: one epoch)",
     "The learning-rate schedule ends at this step. Resuming with another -x changes the schedule, and the trainer "
     "says so. One epoch is the number of training tokens over -d, rounded down. Data beyond one epoch is shuffled "
     "again.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -x 5000", "-d, -k, --time-limit; doc/training.md"},
    {NULL, "time-limit", FLAG_REAL, ARG(time_limit), 0, 1e9, NULL, "X", "seconds",
     "train for X seconds, then save, validate, sample (default %s: no limit)",
     "The run ends as after its last step: with a checkpoint if -n is given, a validation and a sample. The limit "
     "covers this start only: a resumed run needs its own. The exit status is 0.",
     "./train_gpt2 -i my.txt -o runs/mine -n 500 --time-limit 3600", "-x, -n, -y; doc/training.md"},
    {NULL, "patience", FLAG_INT, ARG(patience), ANY_COUNT, NULL, "N", "validations",
     "end after N validations without a new lowest loss (default %s: never)",
     "The run ends as after its last step: with a checkpoint if -n is given, and a sample. The exit status is 0. Needs "
     "-v. A resumed run goes on counting, from the validations in metrics.jsonl.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -v 250 --patience 4 -o runs/mine --keep-best",
     "-v, -j, --keep-best; doc/training.md"},
    {NULL, "seed", FLAG_INT64, ARG(seed), 0, MAX_SEED, NULL, "N", NULL,
     "seed of initial weights, data order and sampling (default %s)",
     "The same command with the same seed gives the same bits, with any number of threads. Only -f auto may "
     "differ, since its choice depends on measured times. Random numbers are keyed by seed, step, tensor and element, "
     "so they do not depend on "
     "the number of ranks. A resumed run keeps its seed.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 --seed 1", "--threads, --generate; doc/numerics.md"},

    FLAG_HEADING("Learning rate"),
    {"l", "learning-rate", FLAG_REAL, ARG(lr), 0, 1e3, NULL, "X", NULL, "peak learning rate (default %s)",
     "The learning rate rises to X over -u steps, then follows -k down to X times -q at step -x. "
     "scripts/run_gpt2_124M.sh trains d12 with -l 6e-4 and -u 700.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -l 6e-4 -u 200 -q 0.1", "-u, -k, -q; doc/training.md"},
    {"u", "warmup", FLAG_INT, ARG(warmup), ANY_COUNT, NULL, "N", "steps", "linear warmup, in steps (default %s)",
     "In step s, counted from 0, the learning rate is l (s + 1) / u. Warmup counts as part of -x.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -u 200", "-l, -k; doc/training.md"},
    {"k", "schedule", FLAG_CHOICE, ARG(schedule), 0, 0, SCHEDULE_CHOICES, "NAME", NULL,
     "schedule after warmup: cosine, linear, constant or wsd (default %s)",
     "cosine and linear decay from the peak to -q times the peak at step -x. wsd stays at the peak for 80 % of the "
     "steps, then decays with 1 - sqrt. constant stays at the peak. With -q 1, the default, every schedule is "
     "constant.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -k wsd -q 0", "-l, -u, -q; doc/training.md"},
    {"q", "final-fraction", FLAG_REAL, ARG(final_fraction), 0, 1, NULL, "X", NULL,
     "final learning rate as a fraction of the peak, 0 to 1 (default %s)",
     "The learning rate at step -x is X times -l. The default keeps the learning rate constant after warmup; 0.1 and "
     "0 are common. -k constant ignores -q.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -l 6e-4 -q 0.1", "-k, -l; doc/training.md"},

    FLAG_HEADING("Evaluation"),
    {"v", "val-every", FLAG_INT, ARG(val_every), ANY_COUNT, NULL, "N", "steps",
     "validate every N steps and at the end (default %s; 0 disables)",
     "The validation loss is the mean over each rank's -m micro-batches, always the same ones. A new run "
     "also validates before its first step. metrics.jsonl gets {\"step\":...,\"val_loss\":...}.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -v 250 -m 50", "-j, -m, -h; doc/training.md"},
    {"m", "val-batches", FLAG_INT, ARG(val_batches), -1, 2147483647, NULL, "N", "micro-batches",
     "micro-batches of each rank per validation (default %s; -1 for all)",
     "A micro-batch is -b sequences of -t tokens. N data-parallel ranks validate on N times -m micro-batches together, "
     "and on each at most once. -1 takes all full micro-batches of the validation data. 0 is an error: -v 0 disables "
     "validation.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -v 250 -m -1", "-v, -j; doc/training.md"},
    {"h", "hellaswag", FLAG_INT, ARG(hellaswag), 0, 1, NULL, "0|1", NULL,
     "score HellaSwag at each validation (default %s: off)",
     "HellaSwag's accuracy is the share of examples with the lowest mean loss of the true ending's tokens. The file "
     "is " HELLASWAG_JSON
     ", as published, encoded with the run's tokenizer, or else llm.c's hellaswag_val.bin beside it. "
     "scripts/get_data.sh hellaswag fetches the first. The untrained model is not scored.",
     "./train_gpt2 -i 'data/*.bin' -e d12 -v 250 -h 1", "-v, --eval; doc/evaluation.md"},
    {NULL, "eval", FLAG_STRING, ARG(eval), 0, 0, NULL, "FILE", NULL,
     "score a text, shards or examples with the weights in -e; no training",
     "FILE is a file, a quoted pattern, or - for stdin. Prints loss, perplexity and bits per byte of a text, of the "
     "texts in JSON lines (.jsonl), or of token shards (.bin); the accuracy where the lines have endings to choose "
     "from, as HellaSwag's have. -t is the context (default: the model's positions), -b the number of sequences at "
     "once. Runs on one rank: start it without mpirun.",
     "./train_gpt2 --eval my.txt -e runs/mine", "-e, --eval-task, --stride, --tokenizer; doc/evaluation.md"},
    {NULL, "eval-task", FLAG_CHOICE, ARG(eval_task), 0, 0, EVAL_TASKS, "NAME", NULL,
     "with --eval: auto, text, choices or lambada (default %s: by the file)",
     "auto takes JSON lines with endings, and .bin files in llm.c's eval format, as choices, and anything else as "
     "text. lambada predicts the last word of each text in JSON lines: accuracy and perplexity. text and lambada read "
     "the field --field.",
     "./train_gpt2 --eval lambada.jsonl --eval-task lambada -e models/gpt2", "--eval, --field; doc/evaluation.md"},
    {NULL, "stride", FLAG_INT, ARG(stride), ANY_COUNT, NULL, "N", "tokens",
     "with --eval, tokens that each window of -t scores (default %s: all -t)",
     "The first window of a text scores -t tokens. Every later window scores N more, with -t - N + 1 tokens before "
     "them as context. Each token is scored once. A smaller N gives each token more context, and takes -t / N times "
     "as long.",
     "./train_gpt2 --eval my.txt -e runs/mine -t 256 --stride 128", "--eval, -t; doc/evaluation.md"},

    FLAG_HEADING("Sampling and text"),
    {"s", "sample-every", FLAG_INT, ARG(sample_every), ANY_COUNT, NULL, "N", "steps",
     "print a sample every N steps and at the end (default %s; 0 disables)",
     "A sample is -g tokens after --prompt. Without a tokenizer the tokens are printed as numbers. Sampling takes "
     "memory for a key-value cache; -s 0 saves it.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -s 500 -g 200", "-g, --prompt, --tokenizer; doc/training.md"},
    {"g", "sample-tokens", FLAG_INT, ARG(sample_tokens), 1, 1048576, NULL, "N", "tokens",
     "tokens per sample (default %s)",
     "The length of the samples that -s prints, without the prompt. --generate has its own length.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -s 500 -g 200", "-s, --generate; doc/training.md"},
    {NULL, "prompt", FLAG_STRING, ARG(prompt), 0, 0, NULL, "TEXT", NULL,
     "text that samples continue (default: the start of a document)",
     "Byte models take any text. A model with GPT-2's vocabulary needs --tokenizer for a prompt. The output "
     "repeats the prompt. An empty prompt stands for one end-of-text token, or for a newline in byte models.",
     "./train_gpt2 --generate 200 -e runs/mine --prompt 'Once upon a time'",
     "-s, --generate, --prompt-file; doc/training.md"},
    {NULL, "temperature", FLAG_REAL, ARG(temperature), 0, 100, NULL, "X", NULL,
     "sampling temperature (default %s; 0 always takes the likeliest token)",
     "Logits are divided by X before the softmax: below 1 samples are more predictable, above 1 more varied. Applies "
     "to -s, --generate and --chat.",
     "./train_gpt2 --generate 200 -e runs/mine --temperature 0.8 --top-k 40", "--top-k, --seed; doc/training.md"},
    {NULL, "top-k", FLAG_INT, ARG(top_k), ANY_COUNT, NULL, "N", "tokens",
     "sample among the N likeliest tokens (default %s: all)",
     "Only the N tokens with the highest logits can be drawn. 1 is the same as --temperature 0. Applies to -s, "
     "--generate and --chat.",
     "./train_gpt2 --generate 200 -e runs/mine --temperature 0.8 --top-k 40",
     "--temperature, --top-p; doc/training.md"},
    {NULL, "top-p", FLAG_REAL, ARG(top_p), 0, 1, NULL, "X", NULL,
     "sample among the likeliest tokens of probability X (default %s: all)",
     "Only the fewest of the likeliest tokens whose probabilities add up to X or more can be drawn. The probabilities "
     "are those after --temperature and --top-k. 0 always takes the likeliest token. Applies to -s, --generate and "
     "--chat.",
     "./train_gpt2 --generate 200 -e runs/mine --top-p 0.95", "--temperature, --top-k; doc/training.md"},
    {NULL, "generate", FLAG_INT, ARG(generate), 1, 2147483647, NULL, "N", "tokens",
     "continue --prompt by up to N tokens with the model in -e; no training",
     "Prints the prompt and N new tokens, and exits. An end-of-text token ends the text and is not printed; a byte "
     "model has none. -e is a checkpoint, a run directory (its last checkpoint) or a file with weights. Runs on one "
     "rank: start it without mpirun.",
     "./train_gpt2 --generate 200 -e runs/mine --prompt Once",
     "-e, --prompt, --samples, --past-end, --temperature; doc/training.md"},
    {NULL, "prompt-file", FLAG_STRING, ARG(prompt_file), 0, 0, NULL, "FILE", NULL,
     "with --generate and --chat, read the prompt from FILE (- for stdin)",
     "The prompt is the whole file without one newline at its end. A prompt longer than the model's context is printed "
     "whole, and the model reads its end.",
     "./train_gpt2 --generate 200 -e runs/mine --prompt-file my.txt", "--prompt, --generate; doc/training.md"},
    {NULL, "samples", FLAG_INT, ARG(samples), 1, 2147483647, NULL, "N", "texts",
     "with --generate, number of continuations of the prompt (default %s)",
     "A line --- stands between two of them. Each has its own random numbers: the first ones do not depend on N.",
     "./train_gpt2 --generate 200 -e runs/mine --prompt Once --samples 5", "--generate, --seed; doc/training.md"},
    {NULL, "past-end", FLAG_OPTION, ARG(past_end), 0, 0, NULL, NULL, NULL,
     "with --generate, go on after an end-of-text token",
     "The text has all N tokens of --generate, for benchmarks and comparisons.",
     "./train_gpt2 --generate 200 -e runs/mine --past-end", "--generate; doc/training.md"},
    {NULL, "chat", FLAG_OPTION, ARG(chat), 0, 0, NULL, NULL, NULL,
     "answer each line of stdin with the model in -e; no training",
     "Each line is a turn of the user. An answer ends at an end-of-text token, in a byte model at a newline, or "
     "after the N tokens of --generate (256 without it). --prompt is a system message. The conversation stays in the "
     "context; when the context is full, its oldest half is dropped. Expects a model trained on conversations.",
     "./train_gpt2 --chat -e runs/mine --temperature 0.7 --top-p 0.9", "--generate, --prompt; doc/training.md"},
    {NULL, "tokenizer", FLAG_STRING, ARG(tokenizer), 0, 0, NULL, "FILE", NULL,
     "BPE tokenizer: merges.txt, vocab.bpe, tokenizer.json or llm.c's .bin",
     "Reads and writes text for models that are no byte models. Without the flag the trainer looks for merges.txt, "
     "vocab.bpe, then tokenizer.json: in -e or its last checkpoint, beside -e, in -o or its last checkpoint. Then it "
     "looks for the merges that --tokenize wrote beside the shards, then for llm.c's gpt2_tokenizer.bin in the current "
     "folder. The tokens must be those of the model's training.",
     "./train_gpt2 --generate 50 -e models/gpt2 --tokenizer vocab.bpe --prompt Hello",
     "--tokenize, --prompt; doc/training.md"},

    FLAG_HEADING("Token shards"),
    {NULL, "tokenize", FLAG_STRING, ARG(tokenize), 0, 0, NULL, "OUT", NULL,
     "write the text in -i as token shards OUT_*.bin; no training",
     "-i is files of text, files of JSON lines (.jsonl), or - for stdin. Writes OUT_train_000001.bin and so on, and "
     "OUT_val_000000.bin. An end-of-text token follows each document. Runs on all --threads, reads the text once, "
     "and takes the same memory for any size. The same command goes on where it was broken off. Needs --tokenizer.",
     "./train_gpt2 -i 'corpus/*.txt' --tokenizer vocab.bpe --tokenize data/mine",
     "-i, --tokenizer, --field, --separator, --val-share; doc/files.md"},
    {NULL, "field", FLAG_STRING, ARG(field), 0, 0, NULL, "NAME", NULL,
     "field of the text in JSON lines (default: text)",
     "For --tokenize and --eval. Files that end in .jsonl hold an object in each line. The document is the string in "
     "the field NAME. With "
     "the flag, stdin is JSON lines too. NUL characters in the text are left out.",
     "zcat my.gz | ./train_gpt2 -i - --field body --tokenizer vocab.bpe --tokenize data/my",
     "--tokenize; doc/files.md"},
    {NULL, "separator", FLAG_STRING, ARG(separator), 0, 0, NULL, "LINE", NULL,
     "line that separates documents (default: none)",
     "For --tokenize and --eval. Without the flag, each file of text is one document. The separator is no text: an "
     "end-of-text token stands in "
     "its place.",
     "./train_gpt2 -i my.txt --separator '<|endoftext|>' --tokenizer vocab.bpe --tokenize my",
     "--tokenize; doc/files.md"},
    {NULL, "shard-tokens", FLAG_INT64, ARG(shard_tokens), 1000, 2147483647, NULL, "N", "tokens",
     "with --tokenize, tokens in a training shard (default %s)",
     "Every training shard but the last holds N tokens, 2 bytes each. A document may begin in one shard and end in the "
     "next.",
     "./train_gpt2 -i my.txt --tokenizer vocab.bpe --tokenize my --shard-tokens 10000000", "--tokenize; doc/files.md"},
    {NULL, "val-share", FLAG_REAL, ARG(val_share), 0, 0.5, NULL, "X", NULL,
     "with --tokenize, share of validation tokens (default %s)",
     "Whole pieces go to OUT_val_000000.bin, from all over the corpus, as often as the share asks for. A piece is a "
     "document, or about 64 KiB of a longer one. The first piece always trains and the second validates. A corpus of "
     "few pieces therefore holds out more than X; a single piece holds out nothing. 0 writes no validation shard.",
     "./train_gpt2 -i my.txt --tokenizer vocab.bpe --tokenize my --val-share 0.1", "--tokenize; doc/files.md"},

    {NULL, "train-bpe", FLAG_INT, ARG(train_bpe), 257, 65536, NULL, "N", "tokens",
     "learn a vocabulary of N tokens from -i, write vocab.json, merges.txt",
     "Learns a byte-level BPE: 256 bytes, N - 257 merges and end-of-text. -i, --field and --separator are those of "
     "--tokenize. The files go to the folder -o, or to the current folder. --tokenizer reads merges.txt. The distinct "
     "words of the text must fit in memory; some 100 MB of text are enough.",
     "./train_gpt2 --train-bpe 4096 -i my.txt -o data/my", "--tokenize, --tokenizer; doc/files.md"},

    FLAG_HEADING("Export"),
    {NULL, "export", FLAG_CHOICE, ARG(export_format), 0, 0, EXPORT_CHOICES, "FORMAT", NULL,
     "write the model in -e to -o: gguf for llama.cpp, llmc for llm.c",
     "A gguf file has the tokenizer in it. llmc is llm.c's .bin, version 3 (f32) or 5 (bf16). -e is a checkpoint, a "
     "run directory (its last checkpoint) or a model's file. -o names the file to write; only a file of the same "
     "format is replaced. Byte models need no tokenizer; for other models --tokenizer is found as for --generate. "
     "The memory does not grow with the model.",
     "./train_gpt2 --export gguf -e runs/mine -o model.gguf", "--type, -e, --tokenizer; doc/files.md"},
    {NULL, "type", FLAG_CHOICE, ARG(export_type), 0, 0, EXPORT_TYPE_CHOICES, "TYPE", NULL,
     "type of exported weights (default %s: as stored)",
     "auto is bf16 for BF16 weights, f16 for F16 weights, and f32 for others. An llmc file takes f32 and bf16 only; "
     "auto writes F16 weights as f32 there. q8_0 takes 34 bytes for 32 weights. In a gguf file, vectors and the "
     "position embedding stay f32. f16 holds numbers up to 65504.",
     "./train_gpt2 --export gguf -e runs/mine -o model.gguf --type q8_0", "--export; doc/files.md"},

    FLAG_HEADING("Checkpoints"),
    {"n", "checkpoint-every", FLAG_INT, ARG(checkpoint_every), ANY_COUNT, NULL, "N", "steps",
     "save a checkpoint every N steps and at the end (default %s: never)",
     "A checkpoint is a folder step_00000500/ in -o, written under another name and renamed: it exists whole or not "
     "at all. model.safetensors and config.json load in Hugging Face transformers; optimizer.safetensors and "
     "state.json let -y resume bit for bit. An empty file DONE_00000500 says that the checkpoint is there. Ctrl-C and "
     "SIGTERM also save a checkpoint if -n is given.",
     "./train_gpt2 -i my.txt -o runs/mine -n 500 -nk 3", "-o, -nk, -nm, -y; doc/files.md"},
    {"nk", "keep", FLAG_INT, ARG(keep_checkpoints), ANY_COUNT, NULL, "N", "checkpoints",
     "keep the last N checkpoints (default %s: all)",
     "After each save, older checkpoints are deleted. Checkpoints of -nm are not counted and stay.",
     "./train_gpt2 -i my.txt -o runs/mine -n 500 -nk 3 -nm 5000", "-n, -nm; doc/files.md"},
    {"nm", "major-every", FLAG_INT, ARG(major_every), ANY_COUNT, NULL, "N", "steps",
     "never delete checkpoints of steps divisible by N (default %s: none)",
     "-nk deletes old checkpoints; these stay. N is usually a multiple of -n.",
     "./train_gpt2 -i my.txt -o runs/mine -n 500 -nk 3 -nm 5000", "-n, -nk; doc/files.md"},
    {NULL, "keep-best", FLAG_OPTION, ARG(keep_best), 0, 0, "0 1", "0|1", NULL,
     "keep the checkpoint with the lowest validation loss as DIR/best",
     "After a validation with a new lowest loss, best in -o becomes a link to a checkpoint of that step: one of -n, "
     "which -nk then spares, or else a folder best_a/ or best_b/, which the next one replaces. best.json in it has "
     "the step and the loss. Needs -o and -v, but not -n. -y resumes from the last checkpoint of -n, not from best.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -v 250 -o runs/mine -n 500 -nk 1 --keep-best",
     "-v, -n, -nk, --patience; doc/training.md"},
    {NULL, "save-sync", FLAG_INT, ARG(save_sync), 0, 1, NULL, "0|1", NULL,
     "write each checkpoint before the next step begins (default %s: off)",
     "By default a save copies the state to host memory, and a thread writes the copy while training goes on. --plan "
     "lists the copy. 1 needs no copy. A save at the end of the run, with --offload, or without memory for the copy "
     "writes at once too.",
     "./train_gpt2 -i my.txt -o runs/mine -n 500 --save-sync 1", "-n, --plan; doc/files.md"},
    {NULL, "strict-save", FLAG_INT, ARG(strict_save), 0, 1, NULL, "0|1", NULL,
     "stop if a checkpoint cannot be saved (default %s: go on)",
     "By default a failed save, for example on a full disk, is a warning: training goes on, and the next save tries "
     "again. A save at the end of the run always stops with an error.",
     "./train_gpt2 -i my.txt -o runs/mine -n 500 --strict-save 1", "-n; doc/files.md"},
    {"y", "resume", FLAG_INT, ARG(resume), 0, 1, NULL, "0|1", NULL,
     "resume from the last checkpoint in -o (default %s: off)",
     "Flags that are not given are those of the run, from config.json in -o; flags that differ are printed. With the "
     "same flags the run continues bit for bit, with any number of threads. The number of ranks, -z, -tp, -r, -w and "
     "-om may change; the data, -t and --seed may not. Without a checkpoint in -o the run starts anew.",
     "./train_gpt2 -o runs/mine -y 1", "-o, -n; doc/files.md"},

    FLAG_HEADING("Memory"),
    {NULL, "fit", FLAG_OPTION, ARG(fit), 0.001, 1e6, NULL, "GIB", "GiB",
     "choose memory flags: the fastest that fit in GIB, or in free memory",
     "Chooses -b (with the same -d), -r, -rk, -rn, -ge, -lc, -w, -om and -gd. A flag stays if it is "
     "given with a value other than its default. Every combination is planned exactly and its time is estimated. A "
     "choice that loses precision counts as 3 to 30 % slower. If nothing fits on a GPU, --fit also chooses --offload, "
     "and its time follows --link. Prints each choice with its bytes and its time. With --plan and without a GPU, "
     "give GIB.",
     "./train_gpt2 --plan -e d48 -t 1024 --fit=16", "--plan, -r, -om, --offload; doc/memory.md"},
    {"r", "recompute", FLAG_CHOICE, ARG(recompute), 0, 0, RECOMPUTE_CHOICES, "LEVEL", NULL,
     "recompute activations: 0 none, 1 GELU, ... 4 blocks (default %s)",
     "The backward recomputes activations that the forward did not save, with the same operations: losses and "
     "gradients are those of -r 0, bit for bit (except with -ge 1). 0 saves everything. 1 recomputes GELU. 2 also "
     "recomputes both layernorms. 3 also recomputes the MLP's first matmul. 4 recomputes whole blocks. With C "
     "channels, a block saves 16C, 12C, 10C, 6C or C elements per token. auto takes the lowest level that fits in "
     "the device's whole memory, then sets -ge and -lc unless they are given. A resumed run keeps the choice.",
     "./train_gpt2 --plan -e d48 -b 4 -r 3", "-rk, -rn, --fit; doc/memory.md"},
    {"rk", "recompute-every", FLAG_INT, ARG(recompute_every), ANY_COUNT, NULL, "N", "blocks",
     "with -r 4, save the input of every N-th block (default %s; 0 automatic)",
     "A segment of N blocks is recomputed from its input before the backward of its last block. 0 takes the N that "
     "needs the least memory. Below -r 4 the flag does nothing.",
     "./train_gpt2 --plan -e d48 -b 32 -r 4 -rk 0", "-r, -rn; doc/memory.md"},
    {"rn", "recompute-layers", FLAG_INT, ARG(recompute_layers), -1, 1048576, NULL, "N", "blocks",
     "first blocks at -r; the others are one level lower (default %s: all)",
     "Blocks 0 to N - 1 recompute at level -r, the others at the level below. The flag sets memory in steps of one "
     "block, between two levels of -r.",
     "./train_gpt2 --plan -e d48 -b 4 -r 4 -rn 24", "-r, -rk; doc/memory.md"},
    {NULL, "offload", FLAG_INT, ARG(offload), 0, 4, NULL, "0..4", NULL,
     "host memory: 1 optimizer, 2 gradients, 3 weights, 4 inputs (default %s)",
     "Pinned host memory holds AdamW's moments and masters (1), also the gradients (2), also the weights (3), also the "
     "inputs of blocks that -r saves (4). Copies run beside the GPU's work. From 2 on the GPU holds the embeddings and "
     "two layers of what is offloaded. The bits are those of stage 0. --plan prints the bytes that an update moves. "
     "With -z, a rank offloads its shard; 3 and 4 shard the weights at -z 1 and 2 too, as -z 3 does. --generate and "
     "--eval stream the weights at 3 and 4. On a CPU the flag does nothing.",
     "./train_gpt2 --plan --device cuda -e d48 -b 4 -r 4 -om bf16 --offload 4", "-r, -z, --link; doc/memory.md"},
    {NULL, "offload-pageable", FLAG_INT, ARG(offload_pageable), 0, 1, NULL, "N", NULL,
     "keep offloaded tensors in pageable memory: slower (default %s)",
     "1 is for a machine that refuses to pin as much host memory as --offload needs. CUDA's managed memory then holds "
     "the tensors on the host: the bits are the same, copies are slower. WSL has no such memory. Without --offload and "
     "on a CPU the flag does nothing.",
     "./train_gpt2 -i my.txt -e d12 --offload 4 --offload-pageable 1", "--offload; doc/memory.md"},
    {NULL, "link", FLAG_REAL, ARG(link), 0, 10000, NULL, "X", "GB/s",
     "rate of copies between host and GPU (default %s: measure)",
     "GB (10^9 bytes) per second in one direction, for the estimates of --offload and --fit; the run is the same at "
     "any rate. A PCIe x16 link has about 12 GB/s at version 3, 25 at 4 and 50 at 5; x8 has half. --plan "
     "takes 25.",
     "./train_gpt2 --plan --device cuda -e d48 -b 4 -r 4 --offload 4 --link 12", "--offload, --fit; doc/memory.md"},
    {"lc", "classifier-rows", FLAG_INT, ARG(classifier_rows), ANY_COUNT, NULL, "N", "rows",
     "rows of logits computed at once (default %s: automatic)",
     "Logits never exist whole: a chunk of N rows goes through matmul, loss and gradient before the next. 0 takes "
     "about as many rows as fit in scratch memory that the MLP needs anyway, and at least 256. With -r auto on a GPU, "
     "0 takes up to 16384 rows if they fit. Another N sums in another order, a relative difference of 1e-6.",
     "./train_gpt2 --plan -e d12 -b 4 -lc 64", "-r, --fit; doc/memory.md"},
    {"w", "master", FLAG_CHOICE, ARG(master), 0, 0, MASTER_CHOICES, "TYPE", NULL,
     "fp32 master copy of bf16 weights: none, fp32 or split (default %s)",
     "split stores the 16 bits that a bf16 weight lacks: the same bits as fp32 in half the memory. none has no master "
     "copy: weights are rounded to bf16 stochastically after each update. 0, 1 and 2 are other names of none, fp32 "
     "and split. A build with fp32 weights needs no master copy and ignores the flag.",
     "./train_gpt2 --plan -e d48 -b 4 -w none -om 8bit", "-om, -gd; doc/memory.md"},
    {"om", "moments", FLAG_CHOICE, ARG(moments), 0, 0, MOMENT_CHOICES, "TYPE", NULL,
     "type of AdamW's moments: fp32, bf16 or 8bit (default %s)",
     "bf16 and 8bit moments are rounded stochastically. 8bit has one scale per 128 elements. A resumed run may change "
     "the type: the trainer converts the moments and says so.",
     "./train_gpt2 --plan -e d48 -b 4 -om 8bit", "-w, -gd; doc/memory.md"},
    {"gd", "gradients", FLAG_CHOICE, ARG(gradients), 0, 0, GRADIENT_CHOICES, "TYPE", NULL,
     "type of gradients: auto, fp32 or bf16 (default %s)",
     "auto is the type of the weights, and fp32 where several micro-batches accumulate. From -z 2 on, accumulation is "
     "in fp32 whatever the type.",
     "./train_gpt2 --plan -e d48 -b 4 -d 524288 -gd bf16", "-d, -w, -om; doc/memory.md"},

    FLAG_HEADING("Optimizer"),
    {"c", "weight-decay", FLAG_REAL, ARG(weight_decay), 0, 1e3, NULL, "X", NULL,
     "AdamW weight decay of tensors with two dimensions (default %s)",
     "Decoupled weight decay: each update subtracts learning rate x X x weight. Biases and layernorm parameters, "
     "which have one dimension, do not decay.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -c 0.1", "-l, --beta1, --beta2; doc/training.md"},
    {NULL, "beta1", FLAG_REAL, ARG(beta1), 0, 0.999999, NULL, "X", NULL,
     "decay rate of AdamW's first moment (default %s)",
     "The first moment is X times its last value plus 1 - X times the gradient.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 --beta1 0.9 --beta2 0.99", "--beta2, -om; doc/training.md"},
    {NULL, "beta2", FLAG_REAL, ARG(beta2), 0, 0.999999, NULL, "X", NULL,
     "decay rate of AdamW's second moment (default %s)",
     "The second moment is X times its last value plus 1 - X times the gradient's square.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 --beta1 0.9 --beta2 0.99", "--beta1, -om; doc/training.md"},
    // at least 1e-30: an epsilon of 0 makes 0/0 of the padding
    {NULL, "epsilon", FLAG_REAL, ARG(epsilon), 1e-30, 1, NULL, "X", NULL,
     "AdamW's epsilon, in the denominator of the update (default %s)",
     "Keeps the update finite where the second moment is close to 0.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 --epsilon 1e-6", "--beta2; doc/training.md"},
    {NULL, "grad-clip", FLAG_REAL, ARG(clip), 0, 1e6, NULL, "X", NULL,
     "clip the gradient's global norm to X (default %s; 0 disables)",
     "If the norm of the gradient of all parameters exceeds X, the gradient is scaled down to norm X. metrics.jsonl "
     "holds the norm before clipping.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 --grad-clip 0.5", "-sg, -l; doc/training.md"},
    {"sl", "skip-loss", FLAG_REAL, ARG(skip_loss), 0, 1e6, NULL, "Z", "standard deviations",
     "skip an update at a loss z-score above Z (default %s: never)",
     "The z-score compares a loss with the last 128 losses, itself included; the first 128 finite losses are "
     "never skipped. The largest possible z-score is 11.27. A loss that is not finite is always skipped. The flag "
     "makes the host wait for the loss before AdamW.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -sl 6 -sg 6", "-sg; doc/training.md"},
    {"sg", "skip-norm", FLAG_REAL, ARG(skip_norm), 0, 1e6, NULL, "Z", "standard deviations",
     "skip an update at a gradient-norm z-score above Z (default %s: never)",
     "The z-score compares a gradient norm with the last 128 norms, itself included; the first 128 finite "
     "norms are never skipped. The largest possible z-score is 11.27. A norm that is not finite is always skipped. The "
     "flag makes the host wait for the norm before AdamW.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -sl 6 -sg 6", "-sl, --grad-clip; doc/training.md"},
    {NULL, "max-skips", FLAG_INT, ARG(max_skips), ANY_COUNT, NULL, "N", "updates",
     "end the run after N skipped updates in a row (default %s; 0: never)",
     "An update whose loss or gradient norm is not finite, or is an outlier (-sl, -sg), is skipped on all ranks: "
     "weights and moments stay as they are. skipped.jsonl in -o has the step, the reason and the place of its data. "
     "After N of them in a row the run saves a checkpoint if -n is given, and ends with exit status 1. A resumed run "
     "counts from 0.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -o runs/mine --max-skips 5", "-sl, -sg, --nan-check; doc/numerics.md"},
    {NULL, "nan-check", FLAG_INT, ARG(nan_check), 0, 1, NULL, "0|1", NULL,
     "name the operation that made a NaN or infinity (default %s: off)",
     "A step whose loss or gradient norm is not finite runs again from the same weights and data. The inputs and "
     "outputs of each operation are checked: the first NaN or infinity is printed, and written to skipped.jsonl, "
     "with its operation, layer, tensor, element and rank. The host waits for each step before its update.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -o runs/mine --nan-check 1", "--max-skips; doc/numerics.md"},
    {NULL, "verify-step", FLAG_INT, ARG(verify_step), ANY_COUNT, NULL, "N", "steps",
     "run every N-th step twice and compare the bits (default %s: never)",
     "Forward and backward of the step run again from the same weights and data. Loss, gradient norm and the gradients "
     "of each rank must have the same bits. A difference ends the run with exit status 1 and names the step, the rank "
     "and the losses or the first gradient that differs: hardware is faulty. Faults of AdamW are not seen. Costs one "
     "more forward and backward, and hashing the gradients, every N steps.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 --verify-step 100", "--check-replicas; doc/numerics.md"},
    {"a", "overfit", FLAG_INT, ARG(overfit), 0, 1, NULL, "0|1", NULL,
     "train on the first batch only, as a check (default %s: off)",
     "Every update takes the same -d tokens. The loss must fall towards 0; otherwise model or flags are at fault.",
     "./train_gpt2 -i my.txt -e l4h4c128 -t 64 -a 1 -x 200 -l 1e-3", "-d; doc/training.md"},

    FLAG_HEADING("Machine"),
    {NULL, "device", FLAG_CHOICE, ARG(device), 0, 0, DEVICE_CHOICES, "NAME", NULL,
     "device: auto, cpu or cuda (default %s)",
     "auto takes a GPU if the program was built with CUDA and finds one, else the CPU, and says so. With --plan, cuda "
     "plans for a GPU without one. --version lists the devices that are built in.",
     "./train_gpt2 --plan -e d12 --device cpu", "--threads, --graph; doc/gpu.md"},
    {NULL, "threads", FLAG_INT, ARG(threads), 0, 1024, NULL, "N", "threads",
     "CPU threads (default %s: OMP_NUM_THREADS, or at most one per core)",
     "Ranks on one machine divide its cores among them. Without this flag and OMP_NUM_THREADS, a run of one rank uses "
     "fewer threads while other programs slow it down. The bits of results do not depend on the number of threads, "
     "but -f auto may choose other inputs for another number of threads.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 --threads 8", "--device, --seed; doc/training.md"},
    {NULL, "graph", FLAG_INT, ARG(graph), 0, 1, NULL, "0|1", NULL,
     "launch each micro-step on a GPU as one CUDA graph (default %s: on)",
     "A CUDA graph saves the time of launching each kernel. 0 launches each kernel by itself, for profiling. The bits "
     "are the same. On a CPU the flag does nothing.",
     "./train_gpt2 -i my.txt -e d12 --graph 0", "--device; doc/gpu.md"},
    {"f", "matmul-precision", FLAG_CHOICE, ARG(matmul_precision), 0, 0, MATMUL_PRECISION_CHOICES, "N", NULL,
     "round fp32 matmul inputs: 0 no, 1 TF32, 2 bf16 (CPU), auto (default %s)",
     "1 rounds inputs to TF32 on a GPU, in fp32 builds. 2 also rounds them to bf16 on a CPU with AVX512-BF16. Sums "
     "stay fp32. auto is 2 if bf16 inputs are at least 5 % faster on this CPU, else 1. Training times both before its "
     "first step, and remembers the times. A resumed run keeps the choice. Without training, auto is 1.",
     "./train_gpt2 -i my.txt -e l6h6c384 -t 256 -f auto", "--device; doc/training.md, doc/numerics.md"},
    {"ge", "fuse-gelu", FLAG_CHOICE, ARG(fuse_gelu), 0, 0, FUSE_GELU_CHOICES, "0|1", NULL,
     "fuse GELU into the forward matmul before it: 0 off, 1 on (default %s)",
     "Faster in bf16 on compute capability 9.0 and 10.x. cuBLASLt's own GELU may round differently, so the levels of "
     "-r may then differ in the last bit. auto is 1 on such a GPU where -r auto takes level 0, else 0. 2 means the "
     "same as 1. The backward always fuses GELU.",
     "./train_gpt2 -i my.txt -e d12 -ge 1", "-r; doc/gpu.md"},
    {"lg", "gpu-log", FLAG_INT, ARG(gpu_log), -1, 2147483647, NULL, "N", "steps",
     "log the GPU's state every N steps (default %s: once a second; 0: off)",
     "Memory in use, clock, power and temperature, as NVML reports them for the GPU of rank 0. They are in the line of "
     "a step, and in metrics.jsonl as gpu_memory_mib, gpu_clock_mhz, gpu_power_w and gpu_temperature_c. Without a GPU "
     "or libnvidia-ml.so.1 there are none. In llm.c -1 means never.",
     "./train_gpt2 -i my.txt -e d12 -o runs/mine -lg 10", "-o, --profile; doc/gpu.md"},
    {NULL, "profile", FLAG_INT, ARG(profile), 0, 10000, NULL, "N", "steps",
     "write a trace of N steps to profile.json in -o (default %s: none)",
     "ui.perfetto.dev and chrome://tracing show the trace: the time, the bytes and the FLOPs of each operation, copy "
     "and collective. The first two steps of a start are not in it. Profiled steps have the same bits, but are slower: "
     "no CUDA graphs, and nothing overlaps. Several ranks write profile_0.json, profile_1.json, ...",
     "./train_gpt2 -i my.txt -e d12 -o runs/mine -x 20 --profile 3", "-o, --graph; doc/training.md"},

    FLAG_HEADING("Parallel"),
    {"z", "zero-stage", FLAG_INT, ARG(zero), 0, 3, NULL, "0..3", NULL,
     "ZeRO shards: 1 optimizer, 2 also gradients, 3 also weights (default %s)",
     "Data-parallel ranks own one shard each of the optimizer state (1), also of the gradients (2), also of the "
     "weights (3). At stage 3 weights are all-gathered one layer ahead. Sizes need not divide evenly. Without data "
     "parallelism the flag does nothing.",
     "mpirun -np 8 --bind-to none ./train_gpt2 -i 'data/*.bin' -e d48 -z 1", "-tp, --plan; doc/parallel.md"},
    {"tp", "tensor-parallel", FLAG_INT, ARG(tensor_parallel), 1, 65536, NULL, "N", "ranks",
     "ranks per tensor-parallel group (default %s)",
     "N neighbouring ranks hold slices of one model: attention heads, MLP columns, vocabulary rows. N must divide the "
     "number of ranks; the groups are data-parallel. Padding heads make any number of heads work. A rank computes "
     "layernorms and residuals for 1/N of the rows.",
     "mpirun -np 8 --bind-to none ./train_gpt2 -i 'data/*.bin' -e d48 -tp 2 -z 1", "-z, -ra; doc/parallel.md"},
    {"ra", "gather-again", FLAG_INT, ARG(gather_again), 0, 1, NULL, "0|1", NULL,
     "with -tp, all-gather matmul inputs again in the backward (default %s)",
     "0 saves the all-gathered layernorm outputs of the forward: more memory, less communication. The flag does "
     "nothing without -tp, and nothing from -r 2 on, where layernorms are recomputed.",
     "mpirun -np 2 --bind-to none ./train_gpt2 -i my.txt -e d12 -tp 2 -ra 0", "-tp, -r; doc/parallel.md"},
    {"pi", "init-method", FLAG_CHOICE, ARG(init_method), 0, 0, COMM_INITS, "NAME", NULL,
     "rendezvous of ranks: mpi, fs (shared folder) or tcp (default %s)",
     "mpi: mpirun started the ranks. fs and tcp connect ranks with a GPU each, through NCCL and without MPI; they "
     "need -pn and -pr, and -pf or -ps with --secret-file. Ranks prove by HMAC-SHA256 that they belong to the run; any "
     "other connection is closed and reported.",
     "./train_gpt2 -i 'data/*.bin' -pi fs -pf /shared -pn 8 -pr 0", "-pn, -pr, -pg, -ps, -pf; doc/parallel.md"},
    {"pn", "processes", FLAG_INT, ARG(num_processes), 0, 65536, NULL, "N", "ranks",
     "number of ranks, for fs, tcp and --plan (default %s: as in mpirun)",
     "mpirun sets the number; -pn must be the same or be left out. --plan -pn N plans for N ranks without starting "
     "them.",
     "./train_gpt2 --plan -e d48 -b 16 -d 1048576 -z 3 -tp 2 -pn 8", "-pi, -pr; doc/parallel.md"},
    {"pr", "process-rank", FLAG_INT, ARG(rank), 0, 65535, NULL, "R", NULL,
     "rank of this process, 0 to -pn - 1, for fs and tcp (default %s)",
     "Every process needs a rank of its own. Rank 0 prints and writes metrics. mpirun sets the rank by itself.",
     "./train_gpt2 -i my.txt -pi tcp -ps node1 -pn 16 -pr 3 --secret-file secret", "-pi, -pn; doc/parallel.md"},
    {"pg", "gpus-per-node", FLAG_INT, ARG(gpus_per_node), 1, 65536, NULL, "N", "ranks",
     "ranks per machine, for fs and tcp (default %s)",
     "Rank r takes GPU r mod N of its machine. mpirun knows the number by itself.",
     "./train_gpt2 -i my.txt -pi tcp -ps node1 -pn 8 -pr 3 -pg 4 --secret-file secret", "-pi, -pn; doc/parallel.md"},
    {"ps", "server", FLAG_STRING, ARG(server), 0, 0, NULL, "HOST:PORT", NULL,
     "address of rank 0, for tcp (default: none; without :PORT, port 12345)",
     "Rank 0 listens at PORT on the addresses of HOST and on no others; localhost is for ranks of one machine. The "
     "other ranks connect to HOST. An IPv6 address takes brackets: [::1]:29500. Without :PORT the port is llm.c's, "
     "12345. The traffic is not encrypted.",
     "./train_gpt2 -i my.txt -pi tcp -ps node1:29500 -pn 16 -pr 3 --secret-file secret",
     "-pi, --secret-file; doc/parallel.md"},
    {NULL, "secret-file", FLAG_STRING, ARG(secret_file), 0, 0, NULL, "FILE", NULL,
     "secret that all ranks share, for tcp (default: none)",
     "The same 16 to 4096 bytes on every rank, in a file that is yours and closed to all others (mode 0600). Make it "
     "with " SECRET_COMMAND " and copy it to each machine. Newlines at its end do not count. The secret itself is "
     "never sent.",
     "./train_gpt2 -i my.txt -pi tcp -ps node1 -pn 8 -pr 3 --secret-file secret", "-pi, -ps; doc/parallel.md"},
    {"pf", "shared-folder", FLAG_STRING, ARG(shared_folder), 0, 0, NULL, "DIR", NULL,
     "folder that all ranks can write to, for fs (default: none)",
     "Ranks leave small files in DIR to find rank 0, and remove them. Only you can read the files, so all ranks are "
     "yours. Files that an earlier run left behind do no harm.",
     "./train_gpt2 -i 'data/*.bin' -pi fs -pf /shared -pn 16 -pr 3", "-pi, --comm-timeout; doc/parallel.md"},
    {NULL, "comm-timeout", FLAG_REAL, ARG(comm_timeout), 1, 1e9, NULL, "X", "seconds",
     "end the run if a rank is silent for X seconds (default %s)",
     "All ranks stop with exit status 1. With MPI, one sentence names the silent ranks. Give a longer time if one "
     "rank can be busy for long while the others wait. A rank whose GPU hangs in the self-check is silent for minutes.",
     "mpirun -np 8 --bind-to none ./train_gpt2 -i my.txt --comm-timeout 60", "-pi, --check-replicas; doc/parallel.md"},
    {NULL, "check-replicas", FLAG_INT, ARG(check_replicas), ANY_COUNT, NULL, "N", "steps",
     "compare the ranks' parameters every N steps (default %s: never)",
     "Ranks compare hashes of the parameters that should be equal on all of them, also before each checkpoint: a "
     "checkpoint is saved only if they are equal. A difference stops the run and, of three ranks or more, names the "
     "rank: memory or arithmetic on its machine is at fault.",
     "mpirun -np 8 --bind-to none ./train_gpt2 -i my.txt --check-replicas 1000", "-z, -tp; doc/parallel.md"},

    FLAG_HEADING("Information"),
    {NULL, "plan", FLAG_OPTION, ARG(plan), 0, 0, "json", "json", NULL, "print the memory plan and exit; needs no data",
     "Lists every tensor with its lifetime and bytes, beside the total of llm.c's layout. Training allocates exactly "
     "this. The plan depends on the build: make DEVICE=cuda plans for a GPU, with --device cuda also without one.",
     "./train_gpt2 --plan -e d48 -b 4 -r 4 -om 8bit", "--fit, -r, -pn; doc/memory.md"},
    {NULL, "help", FLAG_TOPIC, ARG(help), 0, 0, NULL, "FLAG", NULL, "print this list, or one flag at length, and exit",
     "FLAG is a letter or a name, with or without dashes: r, -r, recompute or --recompute. A flag with dashes must be "
     "the last argument, or be joined: --help=-r.",
     "./train_gpt2 --help recompute", "doc/training.md"},
    {NULL, "self-check", FLAG_OPTION, ARG(self_check), 0, 0, NULL, NULL, NULL,
     "check every operation on this device, and exit",
     "Compares every operation with its reference implementation. Prints the kernel, the error as a share of the "
     "tolerance, the time and the rate of each operation. On a GPU the pass is remembered. Training and --generate "
     "begin with the same check on a GPU without a remembered pass. An operation that fails is replaced by a plainer "
     "kernel where there is one.",
     "./train_gpt2 --self-check", "--device; doc/gpu.md"},
    {NULL, "manual", FLAG_OPTION, ARG(manual), 0, 0, "bash zsh", "bash|zsh", NULL,
     "print the man page, or a shell's completion, and exit",
     "Alone the flag prints the man page in roff, for `man -l`. =bash and =zsh print the file that completes flags, "
     "their values and paths in that shell. `make install` puts all three in their places.",
     "./train_gpt2 --manual=bash", "--help; doc/install.md"},
    {NULL, "version", FLAG_OPTION, ARG(version), 0, 0, NULL, NULL, NULL,
     "print the version and the build's options, and exit",
     "Prints one line: the version, the type of the weights, the devices, the matmul library and the communication "
     "libraries that "
     "are built in.",
     "./train_gpt2 --version", "--device; doc/gpu.md"},
};
enum { NUM_FLAGS = sizeof flag_table / sizeof flag_table[0] };

// ---- values derived from flags

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

// --keep-best, unless --keep-best=0 ends that of a resumed run
static inline bool keeps_best(const TrainArgs *a) { return a->keep_best && strcmp(a->keep_best, "0") != 0; }

static inline bool saves_checkpoints(const TrainArgs *a) { return a->checkpoint_every > 0 || keeps_best(a); }

// ---- checks of several flags together

// -d must be a multiple of the tokens of one micro-batch on all data-parallel ranks
static inline void args_check_batch(const TrainArgs *a) {
    int64_t micro = (int64_t)a->B * a->T, together = micro * data_ranks(a);
    char ranks[64] = "", number[64] = "";
    if (data_ranks(a) > 1) {
        snprintf(ranks, sizeof ranks, a->tensor_parallel > 1 ? " x ranks / -tp" : " x ranks");
        snprintf(number, sizeof number, " x %d", data_ranks(a));
    }
    bool any_micro_batch = a->fit && a->B == default_args.B;  // --fit chooses a -b that divides -d
    int64_t sequences = (int64_t)a->T * data_ranks(a);
    if (any_micro_batch && a->batch_tokens != -1 && (a->batch_tokens <= 0 || a->batch_tokens % sequences != 0)) {
        input_error("-d %lld is not a multiple of -t%s = %d%s", (long long)a->batch_tokens, ranks, a->T, number);
    }
    if (!any_micro_batch && a->batch_tokens != -1 && (a->batch_tokens < together || a->batch_tokens % together != 0)) {
        bool below = a->batch_tokens < together;
        input_error("-d %lld is not a multiple of -b x -t%s = %d x %d%s = %lld; the %s is %lld",
                    (long long)a->batch_tokens, ranks, a->B, a->T, number, (long long)together,
                    below ? "least" : "nearest below",
                    (long long)(below ? together : a->batch_tokens / together * together));
    }
    if (a->batch_tokens / together > INT_MAX) {
        input_error("-d %lld is %lld micro-batches of -b x -t%s = %lld tokens, more than the maximum of %d; give a "
                    "larger -b",
                    (long long)a->batch_tokens, (long long)(a->batch_tokens / together), ranks, (long long)together,
                    INT_MAX);
    }
}

static inline void args_check_ranks(const TrainArgs *a) {
    int ranks = num_ranks(a);
    if (ranks % a->tensor_parallel != 0) {
        input_error(
            "-tp %d must divide the number of ranks, found %d: start another number of ranks, or give another -tp",
            a->tensor_parallel, ranks);
    }
    const char *alone = a->chat            ? "--chat"
                        : a->generate      ? "--generate"
                        : a->eval          ? "--eval"
                        : a->export_format ? "--export"
                        : a->tokenize      ? "--tokenize"
                        : a->train_bpe     ? "--train-bpe"
                                           : NULL;
    if (ranks > 1 && alone && !a->plan) {
        input_error("%s runs on one rank, found %d: start it without mpirun", alone, ranks);
    }
    if (a->init_method == COMM_INIT_MPI || a->plan) { return; }
    if (a->rank >= ranks) { input_error("-pr %d is not a rank: -pn %d has ranks 0 to %d", a->rank, ranks, ranks - 1); }
    if (a->init_method == COMM_INIT_FILE && !a->shared_folder) {
        input_error("-pi fs needs a folder that all ranks can write to: give it with -pf DIR");
    }
    if (a->init_method == COMM_INIT_TCP && !a->server) {
        input_error("-pi tcp needs the address of rank 0: give it with -ps HOST:PORT");
    }
    if (a->init_method == COMM_INIT_TCP && ranks > 1 && !a->secret_file) {
        input_error("-pi tcp needs a secret that all ranks share: make one with %s and give --secret-file secret on "
                    "every rank",
                    SECRET_COMMAND);
    }
}

// -r auto chooses among whole levels
static inline void args_check_recompute(const TrainArgs *a) {
    bool trains = !a->generate && !a->eval && !a->export_format && !a->tokenize && !a->train_bpe;
    if (a->recompute != RECOMPUTE_AUTO || a->fit || !trains) { return; }
    if (a->recompute_every != default_args.recompute_every) {
        input_error("-rk %d applies to -r 4, but -r is auto, which sets -rk by itself: give -r 4 as well, or leave "
                    "-rk out",
                    a->recompute_every);
    }
    if (a->recompute_layers != default_args.recompute_layers) {
        input_error("-rn %d applies to one level, but -r is auto, which recomputes all blocks alike: give -r N as "
                    "well, or leave -rn out",
                    a->recompute_layers);
    }
}

// flags that train, generate or tokenize without another flag they need
static inline void args_check_needs(const TrainArgs *a) {
    if (a->checkpoint_every > 0 && !a->run_dir) {
        input_error("-n %d saves checkpoints, but there is no -o: give a run directory with -o DIR",
                    a->checkpoint_every);
    }
    if (a->resume && !a->run_dir) {
        input_error("-y 1 resumes from the last checkpoint in -o, but no -o is given: give the run directory with -o "
                    "DIR");
    }
    if (keeps_best(a) && !a->run_dir) {
        input_error("--keep-best saves a checkpoint, but there is no -o: give a run directory with -o DIR");
    }
    if ((keeps_best(a) || a->patience > 0) && a->val_every == 0) {
        input_error("%s goes by the validation loss, but -v 0 turns validation off: give -v N",
                    keeps_best(a) ? "--keep-best" : "--patience");
    }
    if (a->profile > 0 && !a->run_dir) {
        input_error("--profile %d writes profile.json, but there is no -o: give a run directory with -o DIR",
                    a->profile);
    }
    if (a->hellaswag && a->val_every == 0) {
        input_error("-h 1 scores HellaSwag at each validation, but -v 0 turns validation off: give -v N");
    }
    if (a->tokenize && (!a->train_data || !a->tokenizer)) {
        input_error("--tokenize %s writes the text in -i with the tokens of --tokenizer: give both", a->tokenize);
    }
    if (a->train_bpe && !a->train_data) {
        input_error("--train-bpe %d learns from the text in -i: give a file or a pattern with -i", a->train_bpe);
    }
    if (a->separator && (!*a->separator || isspace((unsigned char)*a->separator) || strchr(a->separator, '\n'))) {
        input_error("--separator '%s': expected one line that begins with a visible character", a->separator);
    }
    if (a->export_format && (!a->model || !a->run_dir) && !a->plan) {
        input_error("--export reads the model in -e and writes the file -o: give both");
    }
    if (a->export_type != EXPORT_AUTO && !a->export_format) {
        input_error("--type is the type of the weights in an exported file: give --export as well");
    }
    if (a->fit && a->generate) {
        input_error("--fit chooses flags of training and does not apply to --generate: leave it out");
    }
    if (a->fit && a->eval) {
        input_error("--fit chooses flags of training and does not apply to --eval: leave it out");
    }
    if (a->eval && !a->model && !a->plan) {
        input_error("--eval needs a trained model: give its folder or .safetensors file with -e");
    }
    if ((a->eval_task != EVAL_AUTO || a->stride > 0) && !a->eval) {
        input_error("--eval-task and --stride apply to --eval: give the file to score with --eval FILE");
    }
    if (a->generate && !a->model && !a->plan) {
        input_error("--%s needs a trained model: give its folder or .safetensors file with -e",
                    a->chat ? "chat" : "generate");
    }
}

// flags of --generate and --chat
static inline void args_check_text(const TrainArgs *a) {
    const char *of_generate = a->samples > 1 ? "--samples" : a->past_end ? "--past-end" : NULL;
    const char *of_text = of_generate ? of_generate : a->prompt_file ? "--prompt-file" : NULL;
    if (of_text && !a->generate) {
        input_error("%s applies to --generate%s: give that too, or leave %s out", of_text,
                    of_generate ? "" : " and --chat", of_text);
    }
    if (of_generate && a->chat) {
        input_error("%s applies to --generate alone, and --chat answers each line once, up to an end-of-text token: "
                    "leave %s out",
                    of_generate, of_generate);
    }
    if (a->prompt_file && *a->prompt) {
        input_error("--prompt and --prompt-file %s both give the prompt: leave one of them out", a->prompt_file);
    }
    if (a->chat && a->prompt_file && strcmp(a->prompt_file, "-") == 0) {
        input_error("--prompt-file - reads stdin, where --chat reads the conversation: give a file, or --prompt");
    }
}

static inline void args_check(const TrainArgs *a) {
    int64_t micro = (int64_t)a->B * a->T;
    if (a->val_batches == 0) {
        input_error("-m takes -1 (all) or at least 1 micro-batch; found 0 (-v 0 turns validation off)");
    }
    if (micro > INT_MAX) {
        input_error("-b %d x -t %d is a micro-batch of %lld tokens, more than the maximum of %d: give a smaller -b and "
                    "accumulate with -d",
                    a->B, a->T, (long long)micro, INT_MAX);
    }
    if (a->max_steps == 0) { input_error("-x takes -1 (one epoch) or at least 1 step; found 0"); }
    args_check_ranks(a);
    args_check_batch(a);
    args_check_recompute(a);
    args_check_needs(a);
    args_check_text(a);
}

// ---- from the command line and config.json

// Sets the number of ranks and this rank: mpirun's, or -pn and -pr. host: the ranks that mpirun started.
static inline void args_set_ranks(TrainArgs *a, const Comm *host) {
    if (a->init_method != COMM_INIT_MPI) {
        if (host->size == 1) { return; }
        input_error("-pi %s is for ranks that mpirun did not start: leave it out, or start without mpirun",
                    a->init_method == COMM_INIT_TCP ? "tcp" : "fs");
    }
    bool other_number = a->num_processes > 1 && a->num_processes != host->size;
    if (other_number && !(a->plan && host->size == 1)) {
        input_error("-pn %d, but %d started: start %d ranks with mpirun -np %d, or give -pi fs or -pi tcp",
                    a->num_processes, host->size, a->num_processes, a->num_processes);
    }
    if (host->size > 1) { a->num_processes = host->size; }
    a->rank = host->rank;
}

// ["recompute", ...]: the names in a set of ChosenFlag; the caller deletes it
static inline cJSON *chosen_to_json(int chosen) {
    cJSON *names = cJSON_CreateArray();
    for (int i = 0; i < NUM_CHOSEN_FLAGS; i++) {
        if (chosen >> i & 1) { cJSON_AddItemToArray(names, cJSON_CreateString(chosen_flags[i])); }
    }
    return names;
}

static inline int chosen_from_json(const cJSON *names) {
    int chosen = 0;
    const cJSON *name;
    cJSON_ArrayForEach(name, names) {
        for (int i = 0; i < NUM_CHOSEN_FLAGS; i++) {
            if (cJSON_IsString(name) && strcmp(name->valuestring, chosen_flags[i]) == 0) { chosen |= 1 << i; }
        }
    }
    return chosen;
}

// In a resumed run, flags of the command line override what -r auto and -f auto chose. Another -r also ends the choice
// of -ge and -lc, so that -r N means the same as in a new run. -f auto keeps the -f of the run, chosen or not: the bits
// are those of the uninterrupted run. before: the flags of config.json.
static inline void args_end_choice(TrainArgs *a, const TrainArgs *before) {
    if (a->fuse_gelu != before->fuse_gelu) { a->chosen &= ~CHOSEN_FUSE_GELU; }
    if (a->classifier_rows != before->classifier_rows) { a->chosen &= ~CHOSEN_CLASSIFIER_ROWS; }
    if (a->matmul_precision == MATMUL_AUTO && before->matmul_precision != MATMUL_AUTO) {
        a->matmul_precision = before->matmul_precision;
        a->chosen |= CHOSEN_MATMUL_PRECISION;
    } else if (a->matmul_precision != before->matmul_precision) {
        a->chosen &= ~CHOSEN_MATMUL_PRECISION;
    }
    if (a->recompute == before->recompute) { return; }
    if (a->chosen & CHOSEN_FUSE_GELU) { a->fuse_gelu = FUSE_GELU_AUTO; }
    if (a->chosen & CHOSEN_CLASSIFIER_ROWS) { a->classifier_rows = 0; }
    a->chosen &= CHOSEN_MATMUL_PRECISION;
}

// Reads the command line. In a resumed run, the defaults are the flags in the run's config.json. Returns that JSON, or
// NULL: strings in *args point into it, so delete it after the last use of *args.
static inline cJSON *read_flags(TrainArgs *args, int argc, char **argv) {
    *args = default_args;
    flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    if (args->eval) {  // without -t, all positions of the model
        *args = default_args;
        args->T = ALL_POSITIONS;
        flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    }
    if (args->chat && !args->generate) { args->generate = CHAT_TOKENS; }
    if (!args->resume || !args->run_dir || args->generate || args->eval) { return NULL; }
    char path[PATH_LENGTH];
    format_path(path, "%s/config.json", args->run_dir);
    cJSON *json = try_read_json(path);
    *args = default_args;
    flags_from_json(flag_table, NUM_FLAGS, args, json,
                    "resume time-limit generate eval eval-task stride prompt-file samples past-end chat tokenize field "
                    "separator shard-tokens val-share "
                    "train-bpe fit plan help manual export type version self-check profile init-method "
                    "processes process-rank gpus-per-node server shared-folder secret-file link");
    args->chosen = chosen_from_json(cJSON_GetObjectItemCaseSensitive(json, "chosen"));
    TrainArgs before = *args;
    flags_parse(flag_table, NUM_FLAGS, args, argc, argv);
    if (json) { args_end_choice(args, &before); }
    args->saved_model = args->model && before.model && strcmp(args->model, before.model) == 0;
    return json;
}

typedef struct {
    const char *arguments, *meaning;
} Usage;

static const Usage usages[] = {
    {"-i DATA [-e MODEL] [-o DIR] [flags]", "train"},
    {"-o DIR -y 1 [flags]", "resume"},
    {"--generate N -e DIR [--prompt TEXT] [flags]", "generate text"},
    {"--eval FILE -e DIR [flags]", "score a text or examples"},
    {"--chat -e DIR [flags]", "answer the lines of stdin"},
    {"--export FORMAT -e DIR -o FILE [flags]", "write a model for llama.cpp or llm.c"},
    {"--plan [flags]", "print the memory plan"},
    {"--self-check", "check this device"},
    {"--help FLAG", "describe one flag"},
};
enum { NUM_USAGES = sizeof usages / sizeof usages[0] };

// --help: all flags, or one flag at length
static inline void print_help(const TrainArgs *a) {
    if (*a->help) {
        flag_print_details(stdout, flags_find_topic(flag_table, NUM_FLAGS, a->help), &default_args);
        return;
    }
    char usage[NUM_USAGES * 100] = "";
    for (int i = 0; i < NUM_USAGES; i++) {
        size_t length = strlen(usage);
        snprintf(usage + length, sizeof usage - length, "%s train_gpt2 %-45s %s", i == 0 ? "usage:" : "\n      ",
                 usages[i].arguments, usages[i].meaning);
    }
    flags_print_help(stdout, usage, flag_table, NUM_FLAGS, &default_args);
}
