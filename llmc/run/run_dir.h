/*
The run directory (-o): checks before a run, its lock, room for a checkpoint, config.json, and the evaluations that a
resumed run has already made.
defines: name_run_dir, check_run_dir, make_run_dir, lock_run_dir, check_last_checkpoint, check_disk, resumed_step,
         open_run_dir, check_skips, evaluations_read, check_time_limit, print_resume_command
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
#include <sys/file.h>
#include <sys/statvfs.h>

// The -o of a text without -e, if none is given: the first of runs/NAME-1, runs/NAME-2, ... that does not exist.
static inline void name_run_dir(TrainArgs *a, Comm *world) {
    if (!a->text_alone || a->run_dir) { return; }
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

// True if the folder is of a run that ended before its first checkpoint was due, which -y 1 begins again.
static inline bool ended_early(const char *run_dir) {
    char path[PATH_LENGTH], *line = NULL;
    size_t room = 0;
    format_path(path, "%s/config.json", run_dir);
    cJSON *config = try_read_json(path);
    const cJSON *every = json_get(config, "checkpoint-every");
    bool early = cJSON_IsNumber(every);
    double due = early ? every->valuedouble : 0;
    cJSON_Delete(config);
    format_path(path, "%s/metrics.jsonl", run_dir);
    FILE *file = logger_open_old(path);
    while (logger_next_line(file, &line, &room, path) > 0) { early &= (double)logger_line_step(line) <= due; }
    free(line);
    if (file) { fclose(file); }
    return early;
}

// name (PATH_LENGTH) = a file or folder of another run or a model; "": none. early: skips the logs and config.json
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
static inline void check_run_dir(const TrainArgs *a, bool resume) {
    const int longest = PATH_LENGTH - 64;  // leaves room for the names of files
    char path[PATH_LENGTH], name[PATH_LENGTH] = "";
    if (!a->run_dir) { return; }
    if (strlen(a->run_dir) > (size_t)longest) {
        input_error("-o is %zu characters long, and the maximum is %d; give a shorter one", strlen(a->run_dir),
                    longest);
    }
    format_path(path, "%s/.", a->run_dir);
    if (access(path, R_OK | W_OK | X_OK) != 0 && errno != ENOENT) {
        input_error("-o %s cannot be written (%s); give a folder, which need not exist, or change its permissions",
                    a->run_dir, strerror(errno));
    }
    if (resume) { restore_best(a->run_dir); }
    bool resumes = resume && resumed_checkpoint(path, a) >= 0;
    if (!resumes) { find_other_run(name, a->run_dir, resume && ended_early(a->run_dir)); }
    if (resumes || !*name) {
        if (resume) { remove_unfinished(a->run_dir); }  // of a killed save
        return;
    }
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

// Locks the directory, since two runs in one would delete each other's files. Returns a file descriptor, whose close
// releases the lock, or -1 if there is no folder yet.
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

// -y 1: stops if the checkpoint to resume is damaged. All ranks call it: rank 0 reads the checkpoint before any rank
// opens it.
static inline void check_last_checkpoint(const TrainArgs *a, Comm *world) {
    char folder[PATH_LENGTH];
    if (world->rank == 0 && resumed_checkpoint(folder, a) >= 0) { checkpoint_check(folder, a->run_dir, true); }
    comm_barrier(world);
}

// Stops if there is no room for one checkpoint.
static inline void check_disk(const TrainArgs *a, const GPT2Config *c) {
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

// The flags of a run as JSON. -d is saved in tokens, since -1 depends on the number of ranks.
static inline cJSON *run_config(const TrainArgs *a) {
    TrainArgs args = *a;
    args.batch_tokens = tokens_of_update(a);
    args.num_processes = num_ranks(a);
    return flags_to_json(flag_table, NUM_FLAGS, &args);
}

// Prints the names in a resumed run's config.json that are no flags, such as those of another version.
static inline void print_unknown_flags(const cJSON *config) {
    const cJSON *item;
    int found = 0;
    cJSON_ArrayForEach(item, config) {
        char name[FLAG_TEXT];
        snprintf(name, sizeof name, "--%s", item->string);
        if (flag_find(flag_table, NUM_FLAGS, name, strlen(name)) || strcmp(item->string, "chosen") == 0) { continue; }
        printf("%s%s", found++ ? ", " : "note      config.json has unknown names, which are ignored: ", item->string);
    }
    if (found) { putchar('\n'); }
}

// Prints each flag that differs from the resumed run's, if config.json can be read.
static inline void print_changed_flags(const TrainArgs *a) {
    char path[PATH_LENGTH];
    format_path(path, "%s/config.json", a->run_dir);
    cJSON *before = try_read_json(path), *now = run_config(a), *item;
    print_unknown_flags(before);
    if (!before) { puts("note      config.json is missing: flags that are not given have their defaults"); }
    cJSON_ArrayForEach(item, now) {
        const cJSON *old = json_get(before, item->string);
        bool hidden = flag_choice_index("resume output gpu-log time-limit", item->string) >= 0;
        bool still_auto =
            flag_was_auto(before, item->string) && cJSON_IsString(item) && !strcmp(item->valuestring, "auto");
        if (!old || hidden || still_auto) { continue; }
        char *old_value = cJSON_PrintUnformatted(old), *value = cJSON_PrintUnformatted(item);
        if (strcmp(old_value, value) != 0) {
            printf("note      --%s was %s, is now %s\n", item->string, old_value, value);
        }
        cJSON_free(old_value);
        cJSON_free(value);
    }
    cJSON_Delete(before);
    cJSON_Delete(now);
}

// Rank 0 makes the folder and locks it, unless *lock is open already, prints the flags that a resumed run changes, and
// writes config.json. planned_steps: of the resumed run, 0 for a new run.
static inline void open_run_dir(int *lock, const TrainArgs *a, long long planned_steps, long long max_steps,
                                Comm *world) {
    bool writes = a->run_dir && world->rank == 0;
    char path[PATH_LENGTH];
    if (writes) { make_run_dir(a->run_dir); }
    if (writes && *lock < 0) {
        *lock = lock_run_dir(a->run_dir);
        check_run_dir(a, false);  // another run may have begun in the new folder
    }
    bool shared = a->run_dir && (saves_checkpoints(a) || a->resume || a->profile > 0);
    if (shared) { check_shared_folder(a->run_dir, world); }
    if (!writes) { return; }
    if (planned_steps > 0) { print_changed_flags(a); }
    if (planned_steps > 0 && planned_steps != max_steps) {
        bool decays = a->final_fraction < 1 && a->schedule != SCHEDULE_CONSTANT;
        printf("note      the schedule was for %lld steps and is now for %lld%s\n", planned_steps, max_steps,
               decays ? ": the learning rate differs" : "");
    }
    format_path(path, "%s/config.json", a->run_dir);
    cJSON *config = run_config(a);
    int error = write_json(path, config);
    if (error) { run_error("could not write '%s': %s", path, strerror(error)); }
    cJSON_Delete(config);
}

// ---- a run that resumes, or fails

// The step of the checkpoint in `folder`, from its state.json.
static inline long long resumed_step(const cJSON *state, const TrainArgs *a, const char *folder) {
    char file[PATH_LENGTH];
    format_path(file, "%s/state.json", folder);
    long long step = json_whole(state, "step", 0, INT_MAX - 1, file);
    char newest[PATH_LENGTH];
    if (step != resumed_checkpoint(newest, a)) {
        input_error("'%s' says step %lld, and its folder is named for another; restore the file or the folder's name",
                    file, step);
    }
    if (a->max_steps > 0 && step > a->max_steps) {
        input_error("-x %lld: '%s' has already made %lld steps; give a larger -x to resume it", (long long)a->max_steps,
                    folder, step);
    }
    return step;
}

// Stops a run in which MAX_SKIPS updates in a row were skipped, or that ends without an update because no loss or norm
// was finite.
static inline void check_skips(const TrainArgs *a, const Outliers *outliers, const Logger *log, bool ending) {
    bool all = outliers->skipped > 0 && outliers->skipped == log->steps_seen;
    bool finite = isfinite(log->last.loss) && isfinite(log->last.grad_norm);
    if (outliers->skipped < MAX_SKIPS && !(ending && all && !finite)) { return; }
    char folder[PATH_LENGTH], checkpoint[2 * PATH_LENGTH] = "no checkpoint was saved, since -n is not given";
    if (a->run_dir && checkpoint_newest(folder, a->run_dir) >= 0) {
        snprintf(checkpoint, sizeof checkpoint, "the last checkpoint is '%s'", folder);
    }
    const char *advice = "find the operation with --nan-check 1, lower -l or give a longer -u";
    if (all) {
        advice = "no update since the start was good: find the operation with --nan-check 1; if the weights are too "
                 "large, move the checkpoints with them out of -o and resume, or give other weights with -e";
    }
    run_error("%d update%s in a row %s skipped, the last at step %lld: %s; %s; %s", outliers->skipped,
              plural_s((uint64_t)outliers->skipped), outliers->skipped == 1 ? "was" : "were", log->last.step,
              log->last.skipped, checkpoint, advice);
}

// ---- the evaluations of a resumed run

// the number after "key": in a line of metrics.jsonl; NAN for null, `missing` without the key
static inline double line_number(const char *line, const char *key, double missing) {
    const char *value = strstr(line, key);
    if (!value) { return missing; }
    return strncmp(value += strlen(key), "null", 4) ? strtod(value, NULL) : NAN;
}

// Records the evaluations in metrics.jsonl up to `step`. Returns the tokens of the last validation if its loss cannot
// be compared with those of this run, else 0. Older versions wrote no val_tokens.
static inline uint64_t evaluations_read_metrics(Evaluations *e, const char *path, long long step) {
    FILE *file = logger_open_old(path);
    char *line = NULL;
    size_t room = 0;
    uint64_t other = 0;
    while (logger_next_line(file, &line, &room, path) > 0) {
        long long at = logger_line_step(line);
        if (at < 0 || at > step) { continue; }
        if (strstr(line, "\"hellaswag\":")) { e->hellaswag = at; }
        if (!strstr(line, "\"val_loss\":")) { continue; }
        uint64_t tokens = (uint64_t)line_number(line, "\"val_tokens\":", (double)e->tokens);
        other = tokens != e->tokens ? tokens : 0;
        evaluations_add(e, at, tokens == e->tokens ? line_number(line, "\"val_loss\":", NAN) : NAN);
    }
    free(line);
    if (file) { fclose(file); }
    return other;
}

// Reads the validation loss of RUN/best, in its state.json or, written by older versions, best.json. Returns its tokens
// if it cannot be compared, else 0.
static inline uint64_t evaluations_read_best(Evaluations *e, const char *run_dir) {
    double tokens = number_in(run_dir, "best/state.json", "val_tokens");
    if (tokens >= 0 && tokens != (double)e->tokens) { return (uint64_t)tokens; }
    double loss = number_in(run_dir, "best/state.json", "val_loss");
    if (loss < 0) { loss = number_in(run_dir, "best/best.json", "val_loss"); }
    if (loss >= 0) { e->best = loss; }
    return 0;
}

// The evaluations of a run that resumes after `step`, where a kill may have prevented some; 0: a new run. hellaswag:
// HellaSwag's file, or NULL. val_tokens: of a validation. All ranks call it; rank 0 reads.
static inline Evaluations evaluations_read(const TrainArgs *a, const char *hellaswag, uint64_t val_tokens,
                                           long long step, Comm *world) {
    Evaluations e = {hellaswag != NULL, -1, -1, 1, val_tokens, DBL_MAX, 0, 0, DBL_MAX, ""};
    if (a->val_every > 0) { e.every = a->val_every; }
    char path[PATH_LENGTH], before[COUNT_LENGTH], now[COUNT_LENGTH];
    if (a->run_dir && step > 0 && world->rank == 0) {
        format_path(path, "%s/metrics.jsonl", a->run_dir);
        uint64_t other = evaluations_read_metrics(&e, path, step), of_best = evaluations_read_best(&e, a->run_dir);
        bool compares = (a->patience > 0 && other) || (keeps_best(a) && of_best);
        if (a->val_every > 0 && compares) {
            printf("note      a validation scored %s tokens, now %s: --patience and --keep-best start over%s\n",
                   count_text(before, of_best ? of_best : other), count_text(now, val_tokens),
                   of_best ? ", and best/ is kept as best_ with its step" : "");
        }
    }
    evaluations_check_patience(&e, a->patience);
    comm_broadcast_host(&e, sizeof e, 0, world);
    return e;
}

// ---- the end of a start

// Stops a run whose --time-limit ended before its first update: started again and again, it would never get anywhere.
static inline void check_time_limit(const TrainArgs *a, int steps_seen, const char *reason) {
    if (steps_seen > 0 || strncmp(reason, "--time-limit", 12) != 0) { return; }
    run_error("--time-limit %g ended before one update of %lld tokens was finished, so nothing was trained; give a "
              "longer one, or fewer tokens with -b and -d",
              a->time_limit, tokens_of_update(a));
}

// Prints the command that resumes the run, or begins it again if its first checkpoint was not due yet.
static inline void print_resume_command(const TrainArgs *a) {
    char program[2 * PATH_LENGTH], folder[2 * PATH_LENGTH];
    if (!a->run_dir || (checkpoint_newest(folder, a->run_dir) < 0 && a->checkpoint_every == 0)) { return; }
    printf("resume    ");
    if (num_ranks(a) > 1) {
        printf(a->init_method == COMM_INIT_MPI ? "mpirun -np %d " : "on %d ranks: ", num_ranks(a));
    }
    printf("%s -o %s -y 1\n", shell_word(program, sizeof program, program_invocation_name),
           shell_word(folder, sizeof folder, a->run_dir));
    fflush(stdout);
}
