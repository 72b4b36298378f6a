/*
Errors: one sentence on stderr and an exit status.
  input_error  wrong usage or input: exit 2. The program checks all input before it overwrites a file.
  run_error    failure while running: exit 1. Files that are already written stay whole.
A sentence names the file, flag or rank, says what was found and what was expected, and tells what to do.
*/
#pragma once
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_RUN_FAILED = 1, EXIT_BAD_INPUT = 2 };

// With several ranks, an error prints one sentence and stops all ranks: comm_mpi.h sets the hook, or comm_nccl.cuh
// without MPI. The hook is a global, because an error can arise anywhere. The only other globals that outlive a call
// belong to signals (received_signal in parallel/comm.h, two in run/ranks.h), to the thread that stops the program
// (below), to the progress line (common/progress.h), and pdl_enabled in common/ptx.cuh.
typedef struct {
    void (*stop)(void *ctx, int status, const char *sentence);  // does not return; NULL: the program just exits
    void *ctx;
} StopHook;

static inline StopHook *stop_hook(void) {
    static StopHook hook;
    return &hook;
}

__attribute__((noreturn)) static inline void stop_with(int status, const char *format, va_list args) {
    char sentence[8192];
    vsnprintf(sentence, sizeof sentence, format, args);
    for (char *c = sentence; *c; c++) {
        if ((unsigned char)*c < ' ') { *c = '?'; }  // a message is one line, but a file name may contain a newline
    }
    static unsigned long stopping;  // the thread that stops the program; another one's error is a consequence
    unsigned long self = (unsigned long)pthread_self(), first = __sync_val_compare_and_swap(&stopping, 0, self);
    if (first && first != self) {
        for (;;) { pause(); }
    }
    fflush(stdout);
    StopHook hook = *stop_hook();
    stop_hook()->stop = NULL;  // a second error, raised while stopping, stops this rank only
    if (hook.stop) { hook.stop(hook.ctx, status, sentence); }
    fprintf(stderr, "train_gpt2: %s\n", sentence);
    exit(status);
}

// printf-style sentence without a newline; does not return
__attribute__((noreturn, format(printf, 1, 2))) static inline void input_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    stop_with(EXIT_BAD_INPUT, format, args);
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void run_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    stop_with(EXIT_RUN_FAILED, format, args);
}

// Stops if anything written to stdout was lost.
static inline void require_stdout(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) { return; }
    run_error("could not write to stdout: its reader is gone, or its disk is full; other files are whole");
}

// ---- memory: these never return NULL, also for 0 bytes

static inline void *xcheck(void *p, size_t bytes) {
    if (!p) {
        run_error("out of host memory: could not allocate %zu bytes; a smaller -b, -t or model needs less (see --plan)",
                  bytes);
    }
    return p;
}
static inline void *xmalloc(size_t bytes) { return xcheck(malloc(bytes ? bytes : 1), bytes); }
static inline void *xcalloc(size_t count, size_t size) {
    return xcheck(calloc(count ? count : 1, size ? size : 1), count * size);
}
static inline void *xrealloc(void *old, size_t bytes) { return xcheck(realloc(old, bytes ? bytes : 1), bytes); }

// aligned memory, for free; alignment: a power of two
static inline void *xaligned(size_t alignment, size_t bytes) {
    void *p = NULL;
    return xcheck(posix_memalign(&p, alignment, bytes ? bytes : 1) == 0 ? p : NULL, bytes);
}

// Makes room for one more element in an array of `count`. Only this function may grow it: its room is a power of two.
static inline void *xgrow(void *old, size_t count, size_t size) {
    bool full = (count & (count - 1)) == 0;
    return full ? xrealloc(old, (count ? 2 * count : 1) * size) : old;
}

static inline char *xstrdup(const char *s) { return (char *)xcheck(strdup(s), strlen(s) + 1); }

enum { PATH_LENGTH = 4096 };

// printf-style path into a buffer of PATH_LENGTH; a longer one is an input error
__attribute__((format(printf, 2, 3))) static inline void format_path(char *path, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = vsnprintf(path, PATH_LENGTH, format, args);
    va_end(args);
    if (length >= PATH_LENGTH) {
        input_error("the path '%.60s...' is longer than %d characters", path, PATH_LENGTH - 1);
    }
}

static inline bool has_ending(const char *name, const char *ending) {
    size_t length = strlen(name), last = strlen(ending);
    return length >= last && strcmp(name + length - last, ending) == 0;
}

// the ending of a noun after its number
static inline const char *plural_s(uint64_t count) { return count == 1 ? "" : "s"; }
