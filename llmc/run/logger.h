/*
The log of a run: metrics.jsonl for programs, main.log for the tools of llm.c, lines on stdout for people.

metrics.jsonl  {"step":n,"loss":x,"grad_norm":x,"lr":x,"ms":x,"tokens_per_s":x} for a training step, on a GPU also
               "mfu":x; "skipped":"reason" if the update was skipped, "origin":"operation" from --nan-check.
               {"step":n,"val_loss":x,"val_tokens":n} or {"step":n,"hellaswag":x} for an evaluation, with
               "bits_per_byte":x if the tokenizer is known. n counts finished updates. A number that is not finite is
               null.
main.log       "s:n tel:x" for a validation loss, "s:n eval:x" for HellaSwag, "s:i trl:x lr:x norm:x" for a training
               step, where i = n - 1 counts updates from 0
stdout         at most one line a second, and always the first, the last and each skipped step

A resumed run deletes the lines of steps after its checkpoint. When the disk is full, lines wait in memory, and each new
line tries to write all of them again. A failed write takes back its half of a line; a resume drops the half that a kill
left.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/device.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

// ---- a file that survives a full disk

typedef struct {
    int fd;         // -1: no file
    off_t written;  // bytes in the file
    char *pending;  // lines that are not in the file yet
    size_t length;  // of pending
    bool failing;   // the last write failed
    char path[PATH_LENGTH];
} LogFile;

// Opens or creates a log, but never through a link. If `empty`, starts a new file and renames an old one to PATH.old.
static inline LogFile log_file_open(const char *path, bool empty) {
    LogFile f = {-1, 0, NULL, 0, false, ""};
    char old[PATH_LENGTH];
    format_path(f.path, "%s", path);
    format_path(old, "%s.old", path);
    for (int n = 2; empty && access(old, F_OK) == 0; n++) { format_path(old, "%s.old%d", path, n); }
    bool ready = !empty || rename(path, old) == 0 || errno == ENOENT;
    if (ready) { f.fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE); }
    if (f.fd < 0) {
        run_error("could not open '%s': %s; make it a file in a writable folder, or give another -o", path,
                  errno == ELOOP ? "it is a symbolic link" : strerror(errno));
    }
    f.written = lseek(f.fd, 0, SEEK_END);
    return f;
}

// Writes the pending lines, all or none. Returns 0 or an errno.
static inline int log_file_write(LogFile *f) {
    for (size_t done = 0; done < f->length;) {
        ssize_t put = pwrite(f->fd, f->pending + done, f->length - done, f->written + (off_t)done);
        if (put < 0 && errno == EINTR) { continue; }
        if (put <= 0) {
            int error = put < 0 ? errno : EIO, cut = ftruncate(f->fd, f->written);
            (void)cut;  // if it fails, the next write overwrites the half line
            return error;
        }
        done += (size_t)put;
    }
    f->written += (off_t)f->length;
    f->length = 0;
    return 0;
}

static inline void log_file_warn(const LogFile *f, const char *action, int error, const char *consequence) {
    fflush(stdout);
    fprintf(stderr, "train_gpt2: warning: could not %s '%s': %s; %s\n", action, f->path, strerror(error), consequence);
}

// Writes a line at once, so that a killed run loses none. `format` ends with a newline. The first failure is a warning.
__attribute__((format(printf, 2, 3))) static inline void log_file_line(LogFile *f, const char *format, ...) {
    va_list values;
    char *line = NULL;
    if (f->fd < 0) { return; }
    va_start(values, format);
    int length = vasprintf(&line, format, values);
    va_end(values);
    if (length < 0) { run_error("out of host memory: a line of '%s'", f->path); }
    f->pending = (char *)xrealloc(f->pending, f->length + (size_t)length);
    memcpy(f->pending + f->length, line, (size_t)length);
    f->length += (size_t)length;
    free(line);
    int error = log_file_write(f);
    if (error && !f->failing) {
        log_file_warn(f, "write", error, "its lines stay in memory and are written when there is room");
    }
    f->failing = error != 0;
}

// Stops if lines are left that cannot be written. A quota or a network file system may report a failed write only at
// fsync or close.
static inline void log_file_close(LogFile *f) {
    if (f->fd < 0) { return; }
    int error = log_file_write(f);
    if (!error && fsync(f->fd) != 0) { error = errno; }
    if (close(f->fd) != 0 && !error) { error = errno; }
    free(f->pending);
    if (error) {
        run_error("could not write the last lines of '%s': %s; the checkpoints are whole, and the lines are lost",
                  f->path, strerror(error));
    }
}

// ---- the logs of a resumed run

// Returns the number of finished updates at which a line was written. A line in another format gives -1, and so does
// half a line, which a killed run may leave.
static inline long long logger_line_step(const char *line) {
    long long step;
    char kind[4];
    if (!strchr(line, '\n')) { return -1; }
    if (sscanf(line, "{\"step\":%18lld", &step) == 1) { return step; }
    if (sscanf(line, "s:%18lld %3[a-z]", &step, kind) == 2) { return strcmp(kind, "trl") == 0 ? step + 1 : step; }
    return -1;
}

typedef struct {
    FILE *file;
    char *line;  // the line that was read last
    size_t room;
    long long step;  // of the line: logger_line_step
} LogReader;

// Reads the next line of a log; *r is zero before the first one. False at the end, or if there is no file.
static inline bool log_next(LogReader *r, const char *path) {
    if (!r->file) { r->file = fopen(path, "r"); }
    bool read = r->file && getline(&r->line, &r->room, r->file) >= 0;
    if (!read && !(r->file ? feof(r->file) : errno == ENOENT)) {
        run_error("could not read '%s': %s; make it readable, then resume again", path, strerror(errno));
    }
    if (read) {
        r->step = logger_line_step(r->line);
        return true;
    }
    free(r->line);
    if (r->file) { fclose(r->file); }
    return false;
}

// Rewrites a log without the lines of steps after `step` or in another format. val, hellaswag: metrics.jsonl has this
// result of `step`. If not, main.log loses it too: a run killed between its two logs evaluates again.
static inline void logger_truncate(const char *path, long long step, bool val, bool hellaswag) {
    if (access(path, F_OK) != 0) { return; }
    LogReader old = {NULL, NULL, 0, 0};
    PartFile rewritten = part_open(path);
    while (log_next(&old, path)) {
        const char *line = old.line;
        bool missing = *line == 's' && ((!val && strstr(line, "tel:")) || (!hellaswag && strstr(line, "eval:")));
        bool stays = old.step >= 0 && old.step <= step && !(missing && old.step == step);
        if (stays) { part_put(&rewritten, line, strlen(line)); }
    }
    int error = part_finish(&rewritten);
    if (error) {
        run_error("could not rewrite '%s': %s; the old file is unchanged, so make room and try again", path,
                  strerror(error));
    }
}

// ---- the log of a run

enum { ORIGIN_LENGTH = 512, LINE_LENGTH = 512 };

typedef struct {
    long long step, max_steps;  // finished updates, and updates of the whole run
    double loss, grad_norm, lr, ms, tokens;
    double start_time;           // when the host started to enqueue the step, in seconds
    double seconds_left;         // until the time limit, below 0 after it; INFINITY: no limit
    double peak_rate;            // tokens per second at an MFU of 1; 0: unknown, on a CPU
    const char *skipped;         // "" or why the update was skipped: skip_reason
    char origin[ORIGIN_LENGTH];  // "" or what --nan-check found
    uint64_t sent;               // bytes from this rank to the others, without the collectives of a replayed CUDA graph
} StepReport;

typedef struct {
    LogFile metrics, main_log;
    double last_line;      // when a step was shown, in seconds
    double smoothed_rate;  // tokens per second, exponentially averaged
    int steps_seen;
    StepReport last;  // the last step
    bool shown;       // stdout has its line
} Logger;

// If run_dir is NULL, no files are written. resumed_step is 0 for a new run. val, hellaswag: as in logger_truncate
static inline Logger logger_open(const char *run_dir, long long resumed_step, bool val, bool hellaswag) {
    static const char *const names[] = {"metrics.jsonl", "main.log"};
    Logger log;
    char path[PATH_LENGTH];
    memset(&log, 0, sizeof log);
    LogFile *files[] = {&log.metrics, &log.main_log};
    log.metrics.fd = log.main_log.fd = -1;
    for (int i = 0; i < 2 && run_dir; i++) {
        format_path(path, "%s/%s", run_dir, names[i]);
        if (resumed_step > 0) { logger_truncate(path, resumed_step, val, hellaswag); }
        *files[i] = log_file_open(path, resumed_step == 0);
    }
    return log;
}

// fsyncs both logs.
static inline void logger_sync(const Logger *log) {
    const LogFile *files[] = {&log->metrics, &log->main_log};
    for (int i = 0; i < 2; i++) {
        if (files[i]->fd < 0 || fsync(files[i]->fd) == 0) { continue; }
        log_file_warn(files[i], "sync", errno, "a power cut may lose its last lines");
    }
}

static inline void logger_close(Logger *log) {
    log_file_write(&log->main_log);  // before log_file_close, which may stop
    log_file_close(&log->metrics);
    log_file_close(&log->main_log);
}

// Prints "step N | ..." on stdout.
__attribute__((format(printf, 2, 3))) static inline void logger_print(long long step, const char *format, ...) {
    va_list values;
    printf("step %lld | ", step);
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    putchar('\n');
    fflush(stdout);
}

// ---- a step

// "9:05 left", or from one hour on "11:03:58 left"
static inline void logger_left(char *text, size_t size, double seconds) {
    long s = (long)seconds;
    int hours = s < 3600 ? 0 : snprintf(text, size, "%ld:", s / 3600);
    snprintf(text + hours, size - (size_t)hours, hours ? "%02ld:%02ld left" : "%ld:%02ld left", s / 60 % 60, s % 60);
}

// Prints the line of the last step.
static inline void logger_show(Logger *log) {
    const StepReport *r = &log->last;
    double rate = log->smoothed_rate;
    char mfu[32] = "", left[32];
    if (r->peak_rate > 0) { snprintf(mfu, sizeof mfu, " | %.1f%% MFU", 100 * rate / r->peak_rate); }
    logger_left(left, sizeof left, r->seconds_left);
    printf("step %lld/%lld | loss %.4f | norm %.3f | lr %.2e | %.1f ms | %.0f tok/s%s | %s%s%s\n", r->step,
           r->max_steps, r->loss, r->grad_norm, r->lr, r->ms, rate, mfu, left, *r->skipped ? " | skipped: " : "",
           r->skipped);
    fflush(stdout);
    log->last_line = now_seconds();
    log->shown = true;
}

// appends a member to a JSON object; a number that is not finite is null
static inline void logger_number(char line[LINE_LENGTH], const char *name, double x) {
    size_t length = strlen(line);
    snprintf(line + length, LINE_LENGTH - length, isfinite(x) ? ",\"%s\":%.9g" : ",\"%s\":null", name, x);
}

static inline void logger_step_metrics(Logger *log, const StepReport *r, double rate) {
    char line[LINE_LENGTH] = "";
    logger_number(line, "loss", r->loss);
    logger_number(line, "grad_norm", r->grad_norm);
    logger_number(line, "lr", r->lr);
    logger_number(line, "ms", r->ms);
    logger_number(line, "tokens_per_s", rate);
    if (r->peak_rate > 0) { logger_number(line, "mfu", rate / r->peak_rate); }
    log_file_line(&log->metrics, "{\"step\":%lld%s%s%s%s%s%s%s}\n", r->step, line, *r->skipped ? ",\"skipped\":\"" : "",
                  r->skipped, *r->skipped ? "\"" : "", *r->origin ? ",\"origin\":\"" : "", r->origin,
                  *r->origin ? "\"" : "");
    log_file_line(&log->main_log, "s:%lld trl:%.4f lr:%.6f norm:%.2f\n", r->step - 1, r->loss, r->lr, r->grad_norm);
}

static inline void logger_step(Logger *log, StepReport r) {
    double rate = r.tokens / (r.ms / 1000);
    log->steps_seen++;
    // the first step includes preparations, so the average starts at the second
    log->smoothed_rate = log->steps_seen <= 2 ? rate : 0.95 * log->smoothed_rate + 0.05 * rate;
    logger_step_metrics(log, &r, rate);
    double by_steps = (double)(r.max_steps - r.step) * r.tokens / log->smoothed_rate;
    r.seconds_left = fmax(0, fmin(r.seconds_left, by_steps));
    log->last = r;
    log->shown = false;
    bool due = now_seconds() - log->last_line >= 1;
    if (due || log->steps_seen == 1 || r.step == r.max_steps || *r.skipped) { logger_show(log); }
    if (*r.origin) { logger_print(r.step, "%s", r.origin); }
    if (log->steps_seen == 1 && r.sent > 0) {
        printf("sent      %.2f MiB an update, from rank 0 to the others\n", (double)r.sent / (1 << 20));
    }
}

// Prints the last step, and the reason why the run ends before max_steps.
static inline void logger_stopped(Logger *log, long long step, long long max_steps, const char *why) {
    if (log->steps_seen > 0 && !log->shown) { logger_show(log); }
    printf("stopped at step %lld of %lld: %s\n", step, max_steps, why);
    fflush(stdout);
}

// ---- evaluations

// bits_per_byte: NAN without a tokenizer
static inline void logger_val(Logger *log, long long step, double val_loss, double bits_per_byte, uint64_t tokens) {
    char bits[64] = "", line[LINE_LENGTH] = "";
    logger_number(line, "val_loss", val_loss);
    if (!isnan(bits_per_byte)) {
        snprintf(bits, sizeof bits, " | bits per byte %.4f", bits_per_byte);
        logger_number(line, "bits_per_byte", bits_per_byte);
    }
    logger_number(line, "val_tokens", (double)tokens);
    log_file_line(&log->main_log, "s:%lld tel:%.4f\n", step, val_loss);
    logger_print(step, "validation loss %.4f (%" PRIu64 " tokens)%s", val_loss, tokens, bits);
    log_file_line(&log->metrics, "{\"step\":%lld%s}\n", step, line);
}

static inline void logger_hellaswag(Logger *log, long long step, double accuracy) {
    log_file_line(&log->main_log, "s:%lld eval:%.4f\n", step, accuracy);
    logger_print(step, "HellaSwag accuracy %.4f", accuracy);
    log_file_line(&log->metrics, "{\"step\":%lld,\"hellaswag\":%.9g}\n", step, accuracy);
}
