/*
The log of a run: metrics.jsonl for programs, main.log for programs that read llm.c's, lines on stdout for people.
defines: Logger, StepReport, logger_open, logger_truncate, logger_results, logger_step, logger_line, logger_val,
         logger_hellaswag, logger_stopped, logger_saved, logger_best, logger_clear_line, logger_sync, logger_close

metrics.jsonl  {"step":n,"loss":x,"grad_norm":x,"lr":x,"ms":x,"tokens_per_s":x,"tokens_left":x} for a training step,
               on a GPU also "mfu":x; "skipped":"reason" if the update was skipped, and "origin":"finding" of
               --nan-check. {"step":n,"val_loss":x} or
               {"step":n,"hellaswag":x} for an evaluation, the first with "bits_per_byte":x if the tokenizer is known.
               n counts finished updates. A resumed run deletes the lines of steps after its checkpoint.
main.log       llm.c's file: "s:n tel:x" for a validation loss, "s:n eval:x" for HellaSwag, "s:i trl:x lr:x norm:x" for
               a training step. i counts updates from 0, so that i is n - 1. Truncated like metrics.jsonl.
stdout         a terminal has one live line, no wider than its window. A pipe gets at most one line a second, and always
               the first and the last step.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/device.h"
#include "llmc/files/part_file.h"
#include "llmc/run/log_file.h"
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { ORIGIN_LENGTH = 512 };

typedef struct {
    long long step, max_steps;  // finished updates, and updates of the whole run
    double loss, grad_norm, lr, ms, tokens;
    double began;                // when the host began to enqueue the step, in seconds
    double seconds_left;         // until the time limit; below 0: no limit
    double peak_rate;            // tokens per second at an MFU of 1 (memory/flops.h); 0: unknown, on a CPU
    const char *skipped;         // "" or why the update was skipped: skip_reason
    char origin[ORIGIN_LENGTH];  // "" or what --nan-check found
} StepReport;

typedef struct {
    LogFile *metrics;      // NULL: no metrics.jsonl
    LogFile *main_log;     // NULL: no main.log
    bool terminal;         // stdout is a terminal
    double last_line;      // time of the last line of a step, in seconds
    double smoothed_rate;  // tokens per second, exponentially averaged
    int steps_seen;
    StepReport last;  // the last step
    bool shown;       // stdout has the line of the last step
} Logger;

// The number of finished updates at which a line of metrics.jsonl or main.log was written; -1 for any other line.
static inline long long logger_line_step(const char *line) {
    long long step;
    char kind[4];
    if (sscanf(line, "{\"step\":%18lld", &step) == 1) { return step; }
    if (sscanf(line, "s:%18lld %3[a-z]", &step, kind) == 2) { return strcmp(kind, "trl") == 0 ? step + 1 : step; }
    return -1;
}

// Whether a resumed run keeps a line. val, hellaswag: metrics.jsonl has these evaluations of `step`. A run that is
// killed between its two logs evaluates again, and main.log gets the line then.
static inline bool logger_keeps(const char *line, long long step, bool val, bool hellaswag) {
    long long line_step = logger_line_step(line);
    bool whole = strchr(line, '\n') != NULL;  // a killed run may leave half a line
    if (!whole || line_step < 0 || line_step > step) { return false; }
    if (line_step < step || *line != 's') { return true; }
    return (val || !strstr(line, " tel:")) && (hellaswag || !strstr(line, " eval:"));
}

// Rewrites the file at `path`, metrics.jsonl or main.log, without the lines of steps after `step`, and of main.log also
// without the evaluations of `step` that metrics.jsonl does not have.
static inline void logger_truncate(const char *path, long long step, bool val, bool hellaswag) {
    FILE *old = log_file_read(path);
    if (!old) { return; }
    PartFile rewritten = part_open(path);
    char *line = NULL;
    size_t room = 0;
    for (size_t length; (length = log_file_next_line(old, &line, &room, path)) > 0;) {
        if (logger_keeps(line, step, val, hellaswag)) { part_put(&rewritten, line, length); }
    }
    free(line);
    fclose(old);
    int error = part_finish(&rewritten);
    if (error) {
        run_error("could not rewrite '%s': %s; the old file is unchanged, so make room and try again", path,
                  strerror(error));
    }
}

// *val, *hellaswag = whether metrics.jsonl of the run has these results of `step`
static inline void logger_results(const char *run_dir, long long step, bool *val, bool *hellaswag) {
    char path[PATH_LENGTH], *line = NULL;
    size_t room = 0;
    format_path(path, "%s/metrics.jsonl", run_dir);
    FILE *file = log_file_read(path);
    *val = *hellaswag = false;
    while (log_file_next_line(file, &line, &room, path) > 0) {
        if (logger_line_step(line) != step) { continue; }
        *val |= strstr(line, "\"val_loss\":") != NULL;
        *hellaswag |= strstr(line, "\"hellaswag\":") != NULL;
    }
    free(line);
    if (file) { fclose(file); }
}

// opens a log of the run directory, without the lines of steps after `resumed_step`; 0 empties the file
static inline LogFile *logger_open_file(const char *run_dir, const char *name, long long resumed_step) {
    char path[PATH_LENGTH];
    bool val, hellaswag;
    format_path(path, "%s/%s", run_dir, name);
    if (resumed_step > 0) {
        logger_results(run_dir, resumed_step, &val, &hellaswag);
        logger_truncate(path, resumed_step, val, hellaswag);
    }
    return log_file_open(path, resumed_step == 0);
}

// run_dir: NULL writes no files. resumed_step: 0 for a new run. may_be_live: false if isatty(stdout) means
// nothing, since mpirun gives its processes a terminal even when it writes to a file. Close with logger_close.
static inline Logger logger_open(const char *run_dir, long long resumed_step, bool may_be_live) {
    Logger log;
    memset(&log, 0, sizeof log);
    log.terminal = may_be_live && isatty(STDOUT_FILENO);
    if (!run_dir) { return log; }
    log.metrics = logger_open_file(run_dir, "metrics.jsonl", resumed_step);
    log.main_log = logger_open_file(run_dir, "main.log", resumed_step);
    return log;
}

// prints a member of a JSON object; nan and inf become null
static inline void logger_number(FILE *out, const char *name, double x) {
    if (isfinite(x)) {
        fprintf(out, ",\"%s\":%.9g", name, x);
    } else {
        fprintf(out, ",\"%s\":null", name);
    }
}

// ends a line of metrics.jsonl
static inline void logger_end_line(Logger *log) {
    fputc('}', log->metrics->text);
    log_file_end_line(log->metrics);
}

// writes a line to main.log
__attribute__((format(printf, 2, 3))) static inline void logger_main_log(Logger *log, const char *format, ...) {
    va_list values;
    if (!log->main_log) { return; }
    va_start(values, format);
    vfprintf(log->main_log->text, format, values);
    va_end(values);
    log_file_end_line(log->main_log);
}

// Moves the lines of both logs to the disk.
static inline void logger_sync(const Logger *log) {
    if (log->metrics) { log_file_sync(log->metrics); }
    if (log->main_log) { log_file_sync(log->main_log); }
}

// clears the live line of a terminal before something else is printed
static inline void logger_clear_line(const Logger *log) {
    if (log->terminal) { fputs("\r\033[K", stdout); }
}

// a number of tokens: "812", "43k", "2.15M", "9.90B", "1.20T"
static inline void logger_tokens(char *text, size_t size, double tokens) {
    if (tokens < 9999.5) {
        snprintf(text, size, "%.0f", tokens);
    } else if (tokens < 999500) {
        snprintf(text, size, "%.0fk", tokens / 1e3);
    } else if (tokens < 999.5e6) {
        snprintf(text, size, "%.2fM", tokens / 1e6);
    } else if (tokens < 999.5e9) {
        snprintf(text, size, "%.2fB", tokens / 1e9);
    } else {
        snprintf(text, size, "%.2fT", tokens / 1e12);
    }
}

// "9:05 left", or from one hour on "11:03:58 left"
static inline void logger_left(char *text, size_t size, double seconds) {
    long s = (long)seconds;
    if (s < 3600) {
        snprintf(text, size, "%ld:%02ld left", s / 60, s % 60);
    } else {
        snprintf(text, size, "%ld:%02ld:%02ld left", s / 3600, s / 60 % 60, s % 60);
    }
}

enum { LINE_LENGTH = 512 };

// tokens from this step to the end of the run
static inline double tokens_left(const StepReport *r) { return (double)(r->max_steps - r->step) * r->tokens; }

// The line of a step at `rate` tokens per second. Width 0 is a pipe: all fields are printed. On a terminal the line has
// at most width - 1 columns, since a full line may wrap. Fields that do not fit are dropped, the least important first;
// if the rest does not fit either, the line is cut.
static inline void logger_line(char line[LINE_LENGTH], const StepReport *r, double rate, int width) {
    enum { STEP, LOSS, NORM, LR, MS, RATE, MFU, TOKENS, LEFT, NOTE, FIELDS };
    static const int least_important[] = {LR, NORM, TOKENS, MS, MFU, LEFT, RATE};
    const int droppable = width > 0 ? (int)(sizeof least_important / sizeof least_important[0]) : 0;
    const size_t room = width > 0 ? (size_t)width - 1 : LINE_LENGTH - 1;
    char field[FIELDS][64];
    const size_t size = sizeof field[0];
    snprintf(field[STEP], size, "step %lld/%lld", r->step, r->max_steps);
    snprintf(field[LOSS], size, " | loss %.4f", r->loss);
    snprintf(field[NORM], size, " | norm %.3f", r->grad_norm);
    snprintf(field[LR], size, " | lr %.2e", r->lr);
    snprintf(field[MS], size, " | %.1f ms", r->ms);
    snprintf(field[RATE], size, " | %.0f tok/s", rate);
    if (width > 0) {
        logger_tokens(field[RATE] + 3, size - 3, rate);
        strcat(field[RATE], " tok/s");
    }
    field[MFU][0] = 0;
    if (r->peak_rate > 0) { snprintf(field[MFU], size, " | %.1f%% MFU", 100 * rate / r->peak_rate); }
    snprintf(field[TOKENS], size, " | ");
    logger_tokens(field[TOKENS] + 3, size - 3, tokens_left(r));
    strcat(field[TOKENS], " tokens left");
    snprintf(field[LEFT], size, " | ");
    logger_left(field[LEFT] + 3, size - 3, r->seconds_left);
    snprintf(field[NOTE], size, "%s%s", *r->skipped ? " | skipped: " : "", r->skipped);
    size_t columns = 0;
    for (int f = 0; f < FIELDS; f++) { columns += strlen(field[f]); }
    for (int i = 0; i < droppable && columns > room; i++) {
        columns -= strlen(field[least_important[i]]);
        field[least_important[i]][0] = 0;
    }
    line[0] = 0;
    for (int f = 0; f < FIELDS; f++) { strncat(line, field[f], room - strlen(line)); }
}

// The current columns of the terminal at stdout, whose window may be resized; 80 if it does not report them.
static inline int terminal_width(void) {
    struct winsize window;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
}

static inline void logger_show(const Logger *log, const StepReport *r) {
    char line[LINE_LENGTH];
    logger_line(line, r, log->smoothed_rate, log->terminal ? terminal_width() : 0);
    logger_clear_line(log);
    fputs(line, stdout);
    if (!log->terminal) { putchar('\n'); }
    fflush(stdout);
}

static inline void logger_step(Logger *log, StepReport r) {
    double rate = r.tokens / (r.ms / 1000), now = now_seconds();
    log->steps_seen++;
    // the first step includes preparations, so the average starts at the second
    log->smoothed_rate = log->steps_seen <= 2 ? rate : 0.95 * log->smoothed_rate + 0.05 * rate;
    if (log->metrics) {
        FILE *metrics = log->metrics->text;
        fprintf(metrics, "{\"step\":%lld", r.step);
        logger_number(metrics, "loss", r.loss);
        logger_number(metrics, "grad_norm", r.grad_norm);
        logger_number(metrics, "lr", r.lr);
        logger_number(metrics, "ms", r.ms);
        logger_number(metrics, "tokens_per_s", rate);
        logger_number(metrics, "tokens_left", tokens_left(&r));
        if (r.peak_rate > 0) { logger_number(metrics, "mfu", rate / r.peak_rate); }
        if (*r.skipped) { fprintf(metrics, ",\"skipped\":\"%s\"", r.skipped); }
        if (*r.origin) { fprintf(metrics, ",\"origin\":\"%s\"", r.origin); }
        logger_end_line(log);
    }
    logger_main_log(log, "s:%lld trl:%.4f lr:%.6f norm:%.2f", r.step - 1, r.loss, r.lr, r.grad_norm);
    double wait = log->terminal ? 0.1 : 1.0;
    double by_steps = tokens_left(&r) / log->smoothed_rate;
    if (r.seconds_left < 0 || by_steps < r.seconds_left) { r.seconds_left = by_steps; }
    bool due = now - log->last_line >= wait || log->steps_seen == 1 || r.step == r.max_steps || *r.skipped;
    log->last = r;
    log->shown = due;
    if (!due) { return; }
    log->last_line = now;
    logger_show(log, &r);
    if (*r.origin) {
        logger_clear_line(log);
        printf("step %lld | %s\n", r.step, r.origin);
    }
}

// prints and logs an evaluation, as `words` on stdout and `key` in metrics.jsonl. bits_per_byte: NAN is left out.
static inline void logger_evaluation(Logger *log, long long step, const char *words, const char *key, double value,
                                     double bits_per_byte) {
    logger_clear_line(log);
    printf("step %lld | %s %.4f", step, words, value);
    if (!isnan(bits_per_byte)) { printf(" | bits per byte %.4f", bits_per_byte); }
    putchar('\n');
    fflush(stdout);
    if (!log->metrics) { return; }
    fprintf(log->metrics->text, "{\"step\":%lld", step);
    logger_number(log->metrics->text, key, value);
    if (!isnan(bits_per_byte)) { logger_number(log->metrics->text, "bits_per_byte", bits_per_byte); }
    logger_end_line(log);
}

static inline void logger_val(Logger *log, long long step, double val_loss, double bits_per_byte) {
    logger_main_log(log, "s:%lld tel:%.4f", step, val_loss);
    logger_evaluation(log, step, "validation loss", "val_loss", val_loss, bits_per_byte);
}

static inline void logger_hellaswag(Logger *log, long long step, double accuracy) {
    logger_main_log(log, "s:%lld eval:%.4f", step, accuracy);
    logger_evaluation(log, step, "HellaSwag accuracy", "hellaswag", accuracy, NAN);
}

// prints the last step, and why the run ends before max_steps
static inline void logger_stopped(Logger *log, long long step, long long max_steps, const char *why) {
    if (log->steps_seen > 0 && !log->shown) { logger_show(log, &log->last); }
    log->shown = true;
    if (log->terminal && log->steps_seen > 0) { putchar('\n'); }  // the live line stays
    printf("stopped at step %lld of %lld: %s\n", step, max_steps, why);
    fflush(stdout);
}

// Prints the folder of a checkpoint, the milliseconds that training waited for the save, and the CRC32C of its two
// files of tensors. Different numbers of two runs show different bits of the weights or of the optimizer state. Equal
// numbers of different bits have a chance of 2^-32. metrics.jsonl has no line for a checkpoint.
static inline void logger_saved(const Logger *log, long long step, const char *folder, double paused, uint32_t weights,
                                uint32_t optimizer) {
    logger_clear_line(log);
    printf("step %lld | saved %s | paused %.1f ms | weights %08x, optimizer %08x\n", step, folder, paused, weights,
           optimizer);
    fflush(stdout);
}

// prints that RUN/best is now the checkpoint of this step
static inline void logger_best(const Logger *log, long long step, const char *run_dir) {
    logger_clear_line(log);
    printf("step %lld | lowest validation loss: %s/best is its checkpoint\n", step, run_dir);
    fflush(stdout);
}

static inline void logger_close(Logger *log) {
    if (log->terminal) { putchar('\n'); }
    if (log->main_log) { log_file_write(log->main_log); }  // before log_file_close, which may stop
    if (log->metrics) { log_file_close(log->metrics); }
    if (log->main_log) { log_file_close(log->main_log); }
}
