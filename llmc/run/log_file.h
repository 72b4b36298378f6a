/*
A log that survives a full disk: lines that cannot be written stay in memory, and each new line tries to write all of
them again. log_file_close stops the run if lines are left. After a failed write the file is cut to whole lines.
defines: LogFile, log_file_new, log_file_open, log_file_write, log_file_end_line, log_file_sync, log_file_close,
         log_file_read, log_file_next_line
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"

typedef struct {
    FILE *text;  // lines that the file does not have yet; NULL: closed
    char *bytes;
    size_t length;  // of `text` after fflush
    int fd;         // -1: not open yet
    off_t written;  // bytes of the file
    bool failing;   // the last write failed
    char path[PATH_LENGTH];
} LogFile;

// Opens or creates the file. Returns 0 or an errno; ELOOP: it is a symbolic link.
static inline int log_file_create(LogFile *log) {
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    if (log->fd < 0) { return errno; }
    log->written = lseek(log->fd, 0, SEEK_END);
    return 0;
}

// A log. The first line creates the file.
static inline LogFile *log_file_new(const char *path) {
    LogFile *log = (LogFile *)xcalloc(1, sizeof *log);
    format_path(log->path, "%s", path);
    log->fd = -1;
    log->text = open_memstream(&log->bytes, &log->length);
    if (!log->text) { run_error("out of host memory: could not begin '%s'", path); }
    return log;
}

// Opens a log and creates its file. empty: deletes an existing file. Stops at a symbolic link.
static inline LogFile *log_file_open(const char *path, bool empty) {
    LogFile *log = log_file_new(path);
    int error = empty && unlink(path) != 0 && errno != ENOENT ? errno : log_file_create(log);
    if (error == ELOOP) {
        run_error("could not open '%s': it is a symbolic link, expected a file; replace it by the file", path);
    }
    if (error) {
        run_error("could not open '%s': %s; make its folder writable, or give another -o", path, strerror(error));
    }
    return log;
}

// Writes all lines of log->text to the file. Returns 0 or an errno.
static inline int log_file_write(LogFile *log) {
    if (fflush(log->text) != 0) { return ENOMEM; }
    int failed = log->fd < 0 && log->length > 0 ? log_file_create(log) : 0;
    if (failed) { return failed; }
    for (size_t done = 0; done < log->length;) {
        ssize_t put = pwrite(log->fd, log->bytes + done, log->length - done, log->written + (off_t)done);
        if (put < 0 && errno == EINTR) { continue; }
        if (put <= 0) {
            int error = put < 0 ? errno : EIO, cut = ftruncate(log->fd, log->written);
            (void)cut;  // half a line would stay until the next write, which begins at `written` too
            return error;
        }
        done += (size_t)put;
    }
    log->written += (off_t)log->length;
    rewind(log->text);
    return 0;
}

// Ends a line that was printed to log->text and writes it: a killed run loses no line. The first failure is a warning.
static inline void log_file_end_line(LogFile *log) {
    fputc('\n', log->text);
    int error = log_file_write(log);
    if (error && !log->failing) {
        fflush(stdout);
        fprintf(stderr,
                "train_gpt2: warning: could not write '%s': %s; its lines stay in memory and are written when there is "
                "room\n",
                log->path, strerror(error));
    }
    log->failing = error != 0;
}

// Moves the written lines to the disk. Another thread may write lines meanwhile. A failure is a warning.
static inline void log_file_sync(const LogFile *log) {
    if (log->fd < 0 || fsync(log->fd) == 0) { return; }
    fflush(stdout);
    fprintf(stderr, "train_gpt2: warning: could not sync '%s': %s; a power cut may lose its last lines\n", log->path,
            strerror(errno));
}

// Stops if lines are left that cannot be written. A quota or a network file system may report a failed write only at
// fsync or close.
static inline void log_file_close(LogFile *log) {
    int error = log_file_write(log);
    if (!error && log->fd >= 0 && fsync(log->fd) != 0) { error = errno; }
    if (log->fd >= 0 && close(log->fd) != 0 && !error) { error = errno; }
    if (error) {
        run_error("could not write the last lines of '%s': %s; the checkpoints are whole, and the lines are lost",
                  log->path, strerror(error));
    }
    fclose(log->text);
    free(log->bytes);
    free(log);
}

// ---- reading, when a run resumes

// Opens a log for reading. NULL: there is none. Stops at one that cannot be opened: its lines would be lost.
static inline FILE *log_file_read(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file && errno != ENOENT) {
        run_error("could not open '%s': %s; make it readable, then resume again", path, strerror(errno));
    }
    return file;
}

// Reads a line, with its newline, into *line (*room bytes), which the caller frees. Returns its length, 0 at the end;
// file NULL: 0. Stops if the file cannot be read.
static inline size_t log_file_next_line(FILE *file, char **line, size_t *room, const char *path) {
    ssize_t length = file ? getline(line, room, file) : 0;
    if (length < 0 && ferror(file)) {
        run_error("could not read '%s': %s; make it readable, then resume again", path, strerror(errno));
    }
    return length > 0 ? (size_t)length : 0;
}
