/*
The evaluations of a run, as metrics.jsonl has them: which steps have one, and the lowest validation loss, for
--keep-best and --patience.
defines: Evaluations, evaluations_read, evaluations_add, logged_loss, hellaswag_due, evaluation_due,
         evaluations_check_patience

A loss counts as the number that metrics.jsonl has, so that a resumed run compares as the uninterrupted one. A loss that
is not finite does not count.
*/
#pragma once
#include "llmc/common/json_file.h"
#include "llmc/run/logger.h"
#include "llmc/run/train_args.h"
#include <float.h>

typedef struct {
    bool scores_hellaswag;     // -h 1, and its file is there
    long long val, hellaswag;  // the last steps with a result; -1: none
    double lowest;             // of all validation losses; DBL_MAX: there is none
    long long lowest_step;
    int since;                      // validations after lowest_step
    double best;                    // validation loss of the checkpoint RUN/best; DBL_MAX: there is none
    char patience_over[FLAG_TEXT];  // "" or why --patience ends the run
} Evaluations;

// x as logger_val writes it
static inline double logged_loss(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.9g", x);
    return strtod(text, NULL);
}

// Sets patience_over.
static inline void evaluations_check_patience(Evaluations *e, int patience) {
    if (patience == 0 || e->since < patience) { return; }
    snprintf(e->patience_over, FLAG_TEXT,
             "%d validations without a loss below the %.4f of step %lld; a larger --patience goes on", e->since,
             e->lowest, e->lowest_step);
}

// counts the validation after `step`
static inline void evaluations_add(Evaluations *e, long long step, double loss) {
    e->val = step;
    if (!isfinite(loss)) { return; }
    e->since++;
    if (logged_loss(loss) >= e->lowest) { return; }
    e->lowest = logged_loss(loss);
    e->lowest_step = step;
    e->since = 0;
}

// counts the evaluations in a file of metrics up to `step`
static inline void evaluations_read_metrics(Evaluations *e, const char *path, long long step) {
    static const char val_loss[] = "\"val_loss\":";
    FILE *file = log_file_read(path);
    char *line = NULL;
    size_t room = 0;
    while (log_file_next_line(file, &line, &room, path) > 0) {
        long long at = logger_line_step(line);
        const char *value = strstr(line, val_loss);
        if (at < 0 || at > step) { continue; }
        if (value) {
            evaluations_add(e, at, strncmp(value += strlen(val_loss), "null", 4) ? strtod(value, NULL) : NAN);
        }
        if (strstr(line, "\"hellaswag\":")) { e->hellaswag = at; }
    }
    free(line);
    if (file) { fclose(file); }
}

// the validation loss of RUN/best: in its state.json, or of older versions in best.json; DBL_MAX: there is none
static inline double best_val_loss(const char *run_dir) {
    static const char *const names[] = {"state.json", "best.json"};
    double best = DBL_MAX;
    for (int i = 0; i < 2; i++) {
        char path[PATH_LENGTH];
        format_path(path, "%s/best/%s", run_dir, names[i]);
        cJSON *json = try_read_json(path);
        const cJSON *loss = cJSON_GetObjectItemCaseSensitive(json, "val_loss");
        if (cJSON_IsNumber(loss)) { best = loss->valuedouble; }
        cJSON_Delete(json);
    }
    return best;
}

// The evaluations of a run that resumes after `step`; 0 is a new run. A kill or a signal may have prevented those of
// this step. hellaswag: HellaSwag's file, or NULL. All ranks call it; rank 0 reads.
static inline Evaluations evaluations_read(const TrainArgs *a, const char *hellaswag, long long step, Comm *world) {
    Evaluations e = {hellaswag != NULL, -1, -1, DBL_MAX, 0, 0, DBL_MAX, ""};
    char path[PATH_LENGTH];
    if (a->run_dir && step > 0 && world->rank == 0) {
        format_path(path, "%s/metrics.jsonl", a->run_dir);
        evaluations_read_metrics(&e, path, step);
        e.best = best_val_loss(a->run_dir);
    }
    evaluations_check_patience(&e, a->patience);
    comm_broadcast_host(&e, sizeof e, 0, world);
    return e;
}

// whether HellaSwag's score of this step is to come; the untrained model has none
static inline bool hellaswag_due(const Evaluations *e, long long step) {
    return e->scores_hellaswag && step > 0 && e->hellaswag < step;
}

// whether an evaluation of this step is to come; unlike samples and checkpoints, one is due at step 0 too
static inline bool evaluation_due(const Evaluations *e, const TrainArgs *a, long long step, bool last) {
    bool due = a->val_every > 0 && (last || step % a->val_every == 0);
    return due && (e->val < step || hellaswag_due(e, step));
}
