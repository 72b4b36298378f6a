/*
The run directory (-o): checks before a run, its lock, room for a checkpoint, config.json, and the evaluations that a
resumed run has already made.
*/
#pragma once
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/floatx.h"
#include "llmc/common/json_file.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/flags.h"
#include "llmc/run/logger.h"
#include "llmc/run/model_source.h"
#include "llmc/run/schedule.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/params.h"
#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <sys/file.h>
#include <sys/statvfs.h>

// True if the run in this folder ended before its first checkpoint was due: -y 1 starts such a run again.
static inline bool ended_early(const char *run_dir) {
    char path[PATH_LENGTH];
    double due = number_in(run_dir, "config.json", "checkpoint-every");
    bool early = due >= 0;
    format_path(path, "%s/metrics.jsonl", run_dir);
    LogReader log = {NULL, NULL, 0, 0};
    while (log_next(&log, path)) { early &= (double)log.step <= due; }
    return early;
}

// name (PATH_LENGTH) = a file or folder of another run or model, or "". If `early`, logs and config.json do not count.
static inline void find_other_run(char *name, const char *run_dir, bool early) {
    static const char *const patterns[] = {"metrics.jsonl", "main.log", "config.json",  "step_*[0-9]", "DONE_*[0-9]",
                                           "best",          "best_*",   "checkpoint-*", "*model*.bin", "*gpt2*.bin",
                                           "*.safetensors", "*.pt",     "*.pth",        "*.ckpt",      "*.gguf"};
    DIR *dir = opendir(run_dir);
    *name = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        for (size_t i = early ? 3 : 0; i < sizeof patterns / sizeof *patterns; i++) {
            if (fnmatch(patterns[i], entry->d_name, 0) == 0) { format_path(name, "%s", entry->d_name); }
        }
    }
    if (dir) { closedir(dir); }
}

// Stops if -o cannot be used, or if the run would begin in a folder that holds another run or a model. resume: of -y
static inline void require_run_dir(const TrainArgs *a, bool resume) {
    char path[PATH_LENGTH], name[PATH_LENGTH] = "";
    if (!a->run_dir) { return; }
    format_path(path, "%s/%64s", a->run_dir, "");  // stops if the names of its files would not fit PATH_LENGTH
    format_path(path, "%s/.", a->run_dir);
    if (access(path, R_OK | W_OK | X_OK) != 0 && errno != ENOENT) {
        input_error("-o %s cannot be written (%s); give a folder, which need not exist, or change its permissions",
                    a->run_dir, strerror(errno));
    }
    bool resumes = resume && resumed_checkpoint(path, a) >= 0;
    if (!resumes) { find_other_run(name, a->run_dir, resume && ended_early(a->run_dir)); }
    if (resumes || !*name) { return; }
    if (resume) {
        input_error("-y 1: '%s' holds %s, but no whole checkpoint, step_ folder or best/, to resume from; give a new "
                    "folder with -o",
                    a->run_dir, name);
    }
    input_error("-o %s holds another run or a model, with %s; give a new folder, or -y 1 to resume a run", a->run_dir,
                name);
}

// Makes the folder and its parents, and syncs the folder above each: otherwise a power cut could undo a new folder,
// with its checkpoints.
static inline void make_run_dir(const char *path) {
    char folder[PATH_LENGTH], above[PATH_LENGTH];
    for (const char *slash = path; slash;) {
        slash = strchr(slash + 1, '/');
        format_path(folder, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
        if (mkdir(folder, FOLDER_MODE) == 0) {
            folder_of(above, folder);
            sync_folder(above);
        } else if (errno != EEXIST) {
            input_error("could not make the folder '%s': %s; give a path that can be written", folder, strerror(errno));
        }
    }
}

// Locks the directory, since two runs in one would delete each other's files. Returns a file descriptor, or -1 if there
// is no folder yet. Closing it releases the lock.
static inline int lock_run_dir(const char *folder) {
    int lock = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (folder && lock < 0 && errno == EIO) {
        input_error("could not read the folder '%s': %s; make it readable, then try again", folder, strerror(EIO));
    }
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0) {
        input_error("-o %s is in use by another process; wait for its end, or give another folder", folder);
    }
    return lock;
}

// Locks the run directory. Stops if the run cannot use it, or if the checkpoint to resume is damaged. A resume first
// undoes what a killed save left. Returns the lock, as lock_run_dir does.
static inline int claim_run_dir(const TrainArgs *a) {
    char folder[PATH_LENGTH];
    int lock = lock_run_dir(a->run_dir);
    bool resumes = a->resume && lock >= 0;
    if (resumes) { restore_best(a->run_dir); }
    require_run_dir(a, a->resume);
    if (resumes) { remove_unfinished(a->run_dir); }
    if (resumed_checkpoint(folder, a) >= 0) { require_whole_checkpoint(folder, a->run_dir, true); }
    return lock;
}

static inline void require_disk_space(const TrainArgs *a, const GPT2Config *c) {
    struct statvfs disk;
    char folder[PATH_LENGTH], above[PATH_LENGTH];
    if (!saves_checkpoints(a)) { return; }
    format_path(folder, "%s", a->run_dir);
    while (statvfs(folder, &disk) != 0) {  // the folder does not exist yet: try the one above
        folder_of(above, folder);
        if (strcmp(above, folder) == 0) { return; }
        format_path(folder, "%s", above);
    }
    bool has_masters = DT_FLOATX != DT_REAL && a->master != MASTER_NONE;
    double room = (double)disk.f_bavail * (double)disk.f_frsize;
    double tokenizer = 32.0 * c->vocab_size;  // vocab.json and merges.txt take about 32 bytes a token
    double tensors = (double)checkpoint_bytes(c, has_masters, moment_types[a->moments], (OptimizerKind)a->optimizer);
    double needed = tensors + tokenizer;
    if (room < needed) {
        input_error(
            "-o %s has %.1f MiB free, and one checkpoint of this model takes %.1f MiB; make room or give another "
            "folder",
            a->run_dir, room / (1 << 20), needed / (1 << 20));
    }
}

// ---- config.json

// Prints what a resumed run cannot take from its config.json: names that are not flags, such as those of another
// version, or everything if the file is missing.
static inline void print_config_notes(const TrainArgs *a) {
    char path[PATH_LENGTH];
    format_path(path, "%s/config.json", a->run_dir);
    cJSON *before = try_read_json(path), *item;
    if (!before) { puts("note      config.json is missing: flags that are not given have their defaults"); }
    cJSON_ArrayForEach(item, before) {
        if (flag_find(flag_table, NUM_FLAGS, item->string, strlen(item->string), false)) { continue; }
        printf("note      config.json has a name that is no flag, and is ignored: %s\n", item->string);
    }
    cJSON_Delete(before);
}

// Rank 0 makes the folder, locks it unless *lock is open already, and writes config.json. planned_steps is the resumed
// run's, or 0 for a new run.
static inline void open_run_dir(int *lock, const TrainArgs *a, long long planned_steps, long long max_steps,
                                Comm *world) {
    bool writes = a->run_dir && world->rank == 0;
    char path[PATH_LENGTH];
    if (writes) { make_run_dir(a->run_dir); }
    if (writes && *lock < 0) {
        *lock = lock_run_dir(a->run_dir);
        require_run_dir(a, false);  // another run may have begun in the new folder
    }
    bool shared = a->run_dir && (saves_checkpoints(a) || a->resume || a->profile > 0);
    if (shared) { require_shared_folder(a->run_dir, world); }
    if (!writes) { return; }
    if (planned_steps > 0) { print_config_notes(a); }
    if (planned_steps > 0 && planned_steps != max_steps) {
        bool decays = a->final_fraction < 1 && a->schedule != SCHEDULE_CONSTANT;
        printf("note      the schedule was for %lld steps and is now for %lld%s\n", planned_steps, max_steps,
               decays ? ": the learning rate differs" : "");
    }
    format_path(path, "%s/config.json", a->run_dir);
    TrainArgs args = *a;
    args.batch_tokens = tokens_of_update(a);  // -1 depends on the number of ranks
    args.num_processes = num_ranks(a);
    cJSON *config = flags_to_json(flag_table, NUM_FLAGS, &args);
    int error = write_json(path, config);
    if (error) { run_error("could not write '%s': %s", path, strerror(error)); }
    cJSON_Delete(config);
}

// ---- a run that resumes, or fails

// Returns the step in a checkpoint's state.json, whose path is `file`. Stops unless it is `named`, its folder's step.
static inline long long resumed_step(const cJSON *state, const TrainArgs *a, long long named, const char *file) {
    long long step = json_whole(state, "step", 0, INT_MAX - 1, file);
    if (step != named) {
        input_error("'%s' says step %lld, and its folder is named for another; restore the file or the folder's name",
                    file, step);
    }
    if (a->max_steps > 0 && step > a->max_steps) {
        input_error("-x %lld: '%s' has already made %lld steps; give a larger -x to resume it", (long long)a->max_steps,
                    file, step);
    }
    return step;
}

// Stops the run after MAX_SKIPS skipped updates in a row. Also stops it if it is ending without a single update and its
// last loss or norm was not finite.
static inline void require_updates(const Outliers *outliers, const Logger *log, bool ending) {
    bool all = outliers->skipped > 0 && outliers->skipped == log->steps_seen;
    bool finite = isfinite(log->last.loss) && isfinite(log->last.grad_norm);
    if (outliers->skipped < MAX_SKIPS && !(ending && all && !finite)) { return; }
    const char *advice = "find the operation with --nan-check 1, lower -l or give a longer -u";
    if (all) {
        advice = "no update since the start was good: find the operation with --nan-check 1; if the weights are too "
                 "large, move the checkpoints with them out of -o and resume, or give other weights with -e";
    }
    run_error("%d update%s in a row %s skipped, the last at step %lld: %s; %s", outliers->skipped,
              plural_s((uint64_t)outliers->skipped), outliers->skipped == 1 ? "was" : "were", log->last.step,
              log->last.skipped, advice);
}

// ---- the evaluations of a resumed run

// Records the evaluations in metrics.jsonl up to `step`. If the last validation scored another number of tokens, its
// loss cannot be compared with this run's: returns that number, else 0. Older versions wrote no val_tokens.
static inline uint64_t evaluations_read_metrics(Evaluations *e, const char *path, long long step) {
    LogReader log = {NULL, NULL, 0, 0};
    uint64_t other = 0;
    while (log_next(&log, path)) {
        if (log.step < 0 || log.step > step) { continue; }
        cJSON *line = cJSON_Parse(log.line);
        const cJSON *loss = json_get(line, "val_loss"), *tokens = json_get(line, "val_tokens");
        bool comparable = !tokens || tokens->valuedouble == (double)e->tokens;
        if (json_get(line, "hellaswag")) { e->hellaswag = log.step; }
        if (loss) {
            evaluations_add(e, log.step, comparable ? cJSON_GetNumberValue(loss) : NAN);
            other = comparable ? 0 : (uint64_t)tokens->valuedouble;
        }
        cJSON_Delete(line);
    }
    return other;
}

// Reads the validation loss of RUN/best from its state.json, or from the best.json of older versions. If it scored
// another number of tokens, returns that number and ignores the loss, else returns 0.
static inline uint64_t evaluations_read_best(Evaluations *e, const char *run_dir) {
    double tokens = number_in(run_dir, "best/state.json", "val_tokens");
    if (tokens >= 0 && tokens != (double)e->tokens) { return (uint64_t)tokens; }
    double loss = number_in(run_dir, "best/state.json", "val_loss");
    if (loss < 0) { loss = number_in(run_dir, "best/best.json", "val_loss"); }
    if (loss >= 0) { e->best = loss; }
    return 0;
}

// Returns the evaluations of a run that resumes after `step`, or of a new run if that is 0. A kill may have prevented
// some. hellaswag: HellaSwag's file, or NULL. val_tokens: those of a validation. All ranks call it; rank 0 reads.
static inline Evaluations evaluations_read(const TrainArgs *a, const char *hellaswag, uint64_t val_tokens,
                                           long long step, Comm *world) {
    Evaluations e = {
        .scores_hellaswag = hellaswag != NULL,
        .val = -1,
        .hellaswag = -1,
        .every = a->val_every > 0 ? a->val_every : 1,
        .tokens = val_tokens,
        .lowest = DBL_MAX,
        .best = DBL_MAX,
    };
    char path[PATH_LENGTH];
    if (a->run_dir && step > 0 && world->rank == 0) {
        format_path(path, "%s/metrics.jsonl", a->run_dir);
        uint64_t other = evaluations_read_metrics(&e, path, step), of_best = evaluations_read_best(&e, a->run_dir);
        bool compares = (a->patience > 0 && other) || (keeps_best(a) && of_best);
        if (a->val_every > 0 && compares) {
            printf("note      a validation scored %" PRIu64 " tokens, now %" PRIu64
                   ": --patience and --keep-best start over%s\n",
                   of_best ? of_best : other, val_tokens, of_best ? ", and best/ is kept as best_ with its step" : "");
        }
    }
    evaluations_apply_patience(&e, a->patience);
    comm_broadcast_host(&e, sizeof e, 0, world);
    return e;
}

// ---- the end of a start

// Stops a run whose --time-limit ended before its first update: started again and again, it would never get anywhere.
static inline void require_progress(const TrainArgs *a, int steps_seen, const char *reason) {
    if (steps_seen > 0 || strncmp(reason, "--time-limit", 12) != 0) { return; }
    run_error("--time-limit %g ended before one update of %lld tokens was finished, so nothing was trained; give a "
              "longer one, or fewer tokens with -b and -d",
              a->time_limit, tokens_of_update(a));
}

// Prints the command that resumes the run, or begins it again if its first checkpoint was not due yet.
static inline void print_resume_command(const TrainArgs *a) {
    char folder[PATH_LENGTH];
    if (!a->run_dir || (checkpoint_newest(folder, a->run_dir) < 0 && a->checkpoint_every == 0)) { return; }
    printf("resume    ");
    if (num_ranks(a) > 1) {
        printf(a->init_method == COMM_INIT_MPI ? "mpirun -np %d " : "on %d ranks: ", num_ranks(a));
    }
    const char *quote = strpbrk(a->run_dir, " \t\"`$&;|<>()*?[]#~") ? "'" : "";  // a shell reads it as one word
    printf("%s -o %s%s%s -y 1\n", program_invocation_name, quote, a->run_dir, quote);
    fflush(stdout);
}
