/*
A line on stderr that says how far long work is, if stderr is a terminal: "--tokenize: 42 %, 12 s left".
defines: Progress, progress_begin, progress_show, progress_end
*/
#pragma once
#include "llmc/common/device.h"
#include <unistd.h>

typedef struct {
    const char *what;
    double started, shown;  // seconds; shown 0: the line was not shown yet
} Progress;

static inline Progress progress_begin(const char *what) {
    Progress p = {what, now_seconds(), 0};
    return p;
}

// Shows the line after two seconds, at most four times a second. done, total: of one unit; total 0: done is in bytes
static inline void progress_show(Progress *p, double done, double total) {
    double now = now_seconds(), spent = now - p->started;
    if (spent < 2 || now - p->shown < 0.25 || done <= 0 || !isatty(STDERR_FILENO)) { return; }
    p->shown = now;
    if (total > 0) {
        fprintf(stderr, "\r%s: %.0f %%, %.0f s left\033[K", p->what, 100 * done / total, spent * (total / done - 1));
    } else {
        fprintf(stderr, "\r%s: %.1f MB, %.0f s\033[K", p->what, done / 1e6, spent);
    }
}

// removes the line
static inline void progress_end(const Progress *p) {
    if (p->shown > 0) { fprintf(stderr, "\r\033[K"); }
}
