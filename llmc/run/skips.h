/*
Skipped updates: a loss or gradient norm that is not finite, or an outlier (-sl, -sg), changes neither weights nor
moments. The step counts, and its data is passed over. All ranks have the same loss and norm, so they skip alike.
RUN/skipped.jsonl   a line for each skipped update, which names the data: {"step":n,"reason":"...","loss":x,
                    "grad_norm":x,"origin":"...","sequences":[...]}. n counts as in metrics.jsonl; sequences has the
                    sequences of all ranks (files/sequence_source.h), in the first 1000 lines of a start; origin is the
                    finding of --nan-check. null stands for a number that is not finite. A resumed run deletes the lines
                    of steps after its checkpoint.
--max-skips N       ends a run after N skipped updates in a row.
AdamW on the device itself skips a step whose loss or norm is not finite, so a GPU need not wait for the host.
defines: ORIGIN_LENGTH, Skips, skip_reason, skips_open, skips_begin, skips_sync, skips_count, skips_end,
         skips_close
*/
#pragma once
#include "llmc/files/sequence_source.h"
#include "llmc/run/logger.h"
#include "llmc/run/outlier_detector.h"
#include "llmc/run/train_args.h"

enum { ORIGIN_LENGTH = 512, SKIPS_WITH_SEQUENCES = 1000 };

typedef struct {
    LogFile *file;                  // skipped.jsonl; NULL: this rank writes none
    int lines;                      // that this start has written
    uint64_t first_sequence[2];     // of the steps on the device, step n at n % 2
    char origin[2][ORIGIN_LENGTH];  // of the same steps: "" or what --nan-check found
    int in_a_row;                   // skipped updates up to the latest finished step, of this start
    char ended[ORIGIN_LENGTH];      // "" or why --max-skips ends the run
} Skips;

// Why an update is skipped, or "". The detectors store finite numbers alone.
static inline const char *skip_reason(const TrainArgs *a, OutlierDetector *losses, OutlierDetector *norms, double loss,
                                      double norm) {
    if (!isfinite(loss)) { return "loss is not finite"; }
    if (!isfinite(norm)) { return "gradient norm is not finite"; }
    double z_loss = outlier_zscore(losses, loss), z_norm = outlier_zscore(norms, norm);
    if (a->skip_loss > 0 && z_loss > a->skip_loss) { return "loss is an outlier"; }
    if (a->skip_norm > 0 && z_norm > a->skip_norm) { return "gradient norm is an outlier"; }
    return "";
}

// run_dir: NULL for a rank that writes no files. resumed_step: 0 for a new run.
static inline void skips_open(Skips *s, const char *run_dir, long long resumed_step) {
    char path[PATH_LENGTH];
    memset(s, 0, sizeof *s);
    if (!run_dir) { return; }
    format_path(path, "%s/skipped.jsonl", run_dir);
    if (resumed_step > 0) {
        logger_truncate(path, resumed_step, true, true);
    } else {
        unlink(path);  // of a run without a checkpoint, which begins anew
    }
    s->file = log_file_new(path);
}

// Before step n, counted from 0, which begins with sequence `first`.
static inline void skips_begin(Skips *s, long long n, uint64_t first) {
    s->first_sequence[n % 2] = first;
    *s->origin[n % 2] = 0;
}

static inline cJSON *skip_line(const Skips *s, const StepReport *r, const DataLoader *loader, const TokenFiles *files) {
    int slot = (int)((r->step - 1) % 2);
    uint64_t first = s->first_sequence[slot], count = (uint64_t)r->tokens / (uint64_t)loader->T;
    cJSON *line = cJSON_CreateObject();
    cJSON_AddNumberToObject(line, "step", (double)r->step);
    cJSON_AddStringToObject(line, "reason", r->note);
    cJSON_AddNumberToObject(line, "loss", r->loss);
    cJSON_AddNumberToObject(line, "grad_norm", r->grad_norm);
    if (*s->origin[slot]) { cJSON_AddStringToObject(line, "origin", s->origin[slot]); }
    if (s->lines >= SKIPS_WITH_SEQUENCES) { return line; }
    cJSON *sequences = cJSON_AddArrayToObject(line, "sequences");
    for (uint64_t i = first; i < first + count; i++) { add_sequence_source(sequences, loader, files, i); }
    return line;
}

static inline void skips_write(Skips *s, const cJSON *line) {
    char *text = cJSON_PrintUnformatted(line);
    if (!text) { run_error("out of host memory: skipped.jsonl"); }
    fputs(text, s->file->text);
    log_file_end_line(s->file);
    s->lines++;
    cJSON_free(text);
}

// Moves the lines of skipped.jsonl to the disk, before the checkpoint of a later step.
static inline void skips_sync(const Skips *s) {
    if (s->file) { log_file_sync(s->file); }
}

static inline void skips_close(Skips *s) {
    if (s->file) { log_file_close(s->file); }
}

// Counts a finished step. If the step was skipped, prints its origin and writes its line. Sets s->ended after
// --max-skips skipped updates in a row.
static inline void skips_count(Skips *s, const TrainArgs *a, const StepReport *r, const DataLoader *loader,
                               const TokenFiles *files, const Logger *log) {
    s->in_a_row = *r->note ? s->in_a_row + 1 : 0;
    if (!*r->note) { return; }
    const char *origin = s->origin[(r->step - 1) % 2];
    if (*origin) {
        logger_clear_line(log);
        printf("step %lld | %s\n", r->step, origin);
    }
    if (s->file) {
        cJSON *line = skip_line(s, r, loader, files);
        skips_write(s, line);
        cJSON_Delete(line);
    }
    if (a->max_skips == 0 || s->in_a_row < a->max_skips || *s->ended) { return; }
    snprintf(s->ended, sizeof s->ended, "%d update%s in a row %s skipped, the last at step %lld: %s, loss %g, norm %g",
             s->in_a_row, plural_s((uint64_t)s->in_a_row), s->in_a_row == 1 ? "was" : "were", r->step, r->note, r->loss,
             r->grad_norm);
}

// Ends the run after `step` if --max-skips does. saved: the step of the last checkpoint; -1: there is none.
static inline void skips_end(const Skips *s, const TrainArgs *a, long long step, long long saved) {
    char look[PATH_LENGTH + 64] = "", kept[PATH_LENGTH + 64] = "no checkpoint was saved, since -n is not given";
    if (!*s->ended) { return; }
    if (saved >= 0) {
        snprintf(kept, sizeof kept, "'%s/step_%08lld' %s", a->run_dir, saved,
                 saved == step ? "has the weights of the last update" : "is the last checkpoint");
    }
    if (a->run_dir) { snprintf(look, sizeof look, "look at the data in '%s/skipped.jsonl', ", a->run_dir); }
    if (strstr(s->origin[(step - 1) % 2], "before the step")) {  // the finding of nan_check_params
        run_error(
            "%s (--max-skips %d); %s; the weights are not finite: move the checkpoints with such weights out of the "
            "run, then resume with -y 1, or give other weights with -e",
            s->ended, a->max_skips, kept);
    }
    run_error("%s (--max-skips %d); %s; %s%slower -l or give a longer -u", s->ended, a->max_skips, kept, look,
              a->nan_check ? "" : "find the operation with --nan-check 1, ");
}
