/*
The evaluations of a run in metrics.jsonl: the steps that have one, and the lowest validation loss, for --keep-best and
--patience.
defines: Evaluated, hellaswag_due, evaluation_due, evaluated_read, BestLoss, best_loss_read, best_loss_add,
         best_loss_impatience, best_checkpoint_save

RUN/best               a symbolic link to a checkpoint: step_00000100, or best_a or best_b if -n saved none of that step
RUN/best/best.json     {"step":100,"val_loss":1.2345}. A killed run may leave an older best.json in another checkpoint.
The link is replaced when the new checkpoint is whole, so RUN/best always exists whole. A new best_a is written while
the link names best_b.
metrics.jsonl holds the validations before a resumed step. A loss counts as the number that metrics.jsonl has, so that a
resumed run compares as the uninterrupted one. A loss that is not finite does not count.
*/
#pragma once
#include "llmc/files/checkpoint_save.h"
#include "llmc/run/logger.h"
#include "llmc/run/train_args.h"
#include <float.h>

// the last steps whose results metrics.jsonl has; -1: none
typedef struct {
    bool scores_hellaswag;  // -h 1, and its file is there
    long long val, hellaswag;
} Evaluated;

// whether HellaSwag's score of this step is to come; the untrained model has none
static inline bool hellaswag_due(const Evaluated *e, long long step) {
    return e->scores_hellaswag && step > 0 && e->hellaswag < step;
}

// whether an evaluation of this step is to come; unlike samples and checkpoints, one is due at step 0 too
static inline bool evaluation_due(const Evaluated *e, const TrainArgs *a, long long step, bool last) {
    bool due = a->val_every > 0 && (last || step % a->val_every == 0);
    return due && (e->val < step || hellaswag_due(e, step));
}

// The evaluations after `step`, where a run resumes; 0 is a new run. A kill or a signal may have prevented them. All
// ranks call it; rank 0 reads. hellaswag: HellaSwag's file, or NULL.
static inline Evaluated evaluated_read(const TrainArgs *a, const char *hellaswag, long long step, Comm *world) {
    bool val = false, scored = false;
    if (a->run_dir && step > 0 && world->rank == 0) { logger_results(a->run_dir, step, &val, &scored); }
    Evaluated evaluated = {hellaswag != NULL, val ? step : -1, scored ? step : -1};
    comm_broadcast_host(&evaluated, sizeof evaluated, 0, world);
    return evaluated;
}

typedef struct {
    double lowest;   // of all validations; DBL_MAX: there was none
    long long step;  // of the lowest
    int since;       // validations after it
    double kept;     // loss of the checkpoint RUN/best; DBL_MAX: there is none
} BestLoss;

// x as logger_val writes it
static inline double best_loss_logged(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.9g", x);
    return strtod(text, NULL);
}

// counts the validation after `step`
static inline void best_loss_add(BestLoss *best, long long step, double loss) {
    if (!isfinite(loss)) { return; }
    best->since++;
    if (best_loss_logged(loss) >= best->lowest) { return; }
    best->lowest = best_loss_logged(loss);
    best->step = step;
    best->since = 0;
}

// counts the validations in a file of metrics up to `step`
static inline void best_loss_read_metrics(BestLoss *best, const char *path, long long step) {
    FILE *file = log_file_read(path);
    char *line = NULL;
    size_t room = 0;
    long long at;
    while (log_file_next_line(file, &line, &room, path) > 0) {
        const char *value = strstr(line, "\"val_loss\":");
        if (!value || sscanf(line, "{\"step\":%lld", &at) != 1 || at > step) { continue; }
        value += strlen("\"val_loss\":");
        if (strncmp(value, "null", 4) != 0) { best_loss_add(best, at, strtod(value, NULL)); }
    }
    free(line);
    if (file) { fclose(file); }
}

// The validations of a run that resumes after `step`; 0 is a new run. All ranks call it; rank 0 reads.
static inline BestLoss best_loss_read(const TrainArgs *a, long long step, Comm *world) {
    BestLoss best = {DBL_MAX, 0, 0, DBL_MAX};
    char path[PATH_LENGTH];
    if (a->run_dir && step > 0 && world->rank == 0) {
        format_path(path, "%s/metrics.jsonl", a->run_dir);
        best_loss_read_metrics(&best, path, step);
        bool has_best = checkpoint_best_file(path, a->run_dir, "best.json");
        cJSON *kept = has_best ? try_read_json(path) : NULL;
        const cJSON *loss = cJSON_GetObjectItemCaseSensitive(kept, "val_loss");
        if (cJSON_IsNumber(loss)) {
            best.kept = loss->valuedouble;
        } else if (has_best && keeps_best(a)) {
            fprintf(stderr,
                    "train_gpt2: warning: '%s' has no val_loss: it was cut short or damaged, so the next validation "
                    "replaces RUN/best\n",
                    path);
        }
        cJSON_Delete(kept);
    }
    comm_broadcast_host(&best, sizeof best, 0, world);
    return best;
}

// text = why --patience ends the run, or ""
static inline void best_loss_impatience(const BestLoss *best, int patience, char text[FLAG_TEXT]) {
    *text = 0;
    if (patience == 0 || best->since < patience) { return; }
    snprintf(text, FLAG_TEXT, "%d validations without a loss below the %.4f of step %lld; a larger --patience goes on",
             best->since, best->lowest, best->step);
}

// ---- RUN/best

// Writes best.json into the checkpoint RUN/name, then makes RUN/best a link to it. If the link fails, best.json is
// deleted again. old: the target of the link so far, or "". Returns 0 or an errno.
static inline int best_link(const char *run_dir, const char *old, const char *name, long long step, double loss) {
    char path[PATH_LENGTH], aside[PATH_LENGTH], note[PATH_LENGTH];
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "step", (double)step);
    cJSON_AddNumberToObject(json, "val_loss", loss);
    format_path(note, "%s/%s/best.json", run_dir, name);
    int error = write_json(note, json);
    cJSON_Delete(json);
    if (error) { return error; }
    format_path(path, "%s/best", run_dir);
    format_path(aside, "%s/best.tmp", run_dir);
    unlink(aside);  // of a killed run
    if (symlink(name, aside) != 0 || rename(aside, path) != 0) {
        error = errno;
        unlink(aside);
        if (strcmp(old, name) != 0) { unlink(note); }
        return error;
    }
    return sync_folder(run_dir);
}

// deletes best_a and best_b, except the target of RUN/best
static inline void best_remove_others(const char *run_dir) {
    char best[32], path[PATH_LENGTH];
    checkpoint_best(best, run_dir);
    for (int i = 0; i < 2; i++) {
        const char *const name = i ? "best_b" : "best_a";
        format_path(path, "%s/%s", run_dir, name);
        if (strcmp(best, name) != 0) { remove_checkpoint(path); }
    }
}

// After RUN/best went from the checkpoint `old` to `name`: deletes the best.json in `old`, a checkpoint of -n. old: ""
// for none.
static inline void best_forget(const char *run_dir, const char *old, const char *name) {
    char path[PATH_LENGTH];
    if (!*old || strcmp(old, name) == 0) { return; }
    format_path(path, "%s/%s/best.json", run_dir, old);
    unlink(path);
}

// Reports a link that could not be made: stops, or rank 0 prints a warning.
static inline void best_link_failed(const TrainArgs *a, const char *name, int error, bool first, bool stops) {
    const char *const advice = "make room, and make -o a folder where links can be made, or leave out --keep-best";
    if (stops) {
        run_error("could not make the link '%s/best' to %s: %s; %s", a->run_dir, name, strerror(error), advice);
    }
    if (first) {
        fprintf(stderr, "train_gpt2: warning: could not make the link '%s/best' to %s: %s; %s\n", a->run_dir, name,
                strerror(error), advice);
    }
}

// Makes RUN/best the checkpoint of `step`, the present step, if its validation loss is lower than that of RUN/best.
// saved: -n has saved this step; else the checkpoint is saved as best_a or best_b, with a line on stdout. All ranks
// call it with the same loss. A failure leaves the old RUN/best, and stops the run if `stops`. Returns whether there is
// a new RUN/best.
static inline bool best_checkpoint_save(const TrainArgs *a, BestLoss *best, long long step, double loss, bool saved,
                                        const ModelState *s, const cJSON *state, bool stops, const Logger *log) {
    char old[32] = "", name[32], folder[PATH_LENGTH];
    int failed_rank, use_b = 0;
    uint32_t crcs[2];
    double begin = now_seconds();
    const bool first = is_first_rank(s);
    if (!(best_loss_logged(loss) < best->kept)) { return false; }
    if (first) {
        best_remove_others(a->run_dir);  // of a killed run
        checkpoint_best(old, a->run_dir);
        use_b = strcmp(old, "best_a") == 0;
    }
    if (s->world) { comm_broadcast_host(&use_b, sizeof use_b, 0, s->world); }
    snprintf(name, sizeof name, use_b ? "best_b" : "best_a");
    if (saved) {
        snprintf(name, sizeof name, "step_%08lld", step);
    } else {
        format_path(folder, "%s/%s", a->run_dir, name);
        if (checkpoint_save_as(a->run_dir, name, s, state, stops, crcs)) { return false; }
        logger_saved(log, step, folder, 1000 * (now_seconds() - begin), crcs[0], crcs[1]);
    }
    double kept = best_loss_logged(loss);
    int error = agree_on_error(first ? best_link(a->run_dir, old, name, step, kept) : 0, s->world, &failed_rank);
    if (error) {
        best_link_failed(a, name, error, first, stops);
        return false;
    }
    best->kept = kept;
    if (first) {
        best_forget(a->run_dir, old, name);
        best_remove_others(a->run_dir);
        checkpoint_prune(a->run_dir, a->keep_checkpoints, a->major_every);
    }
    return true;
}
