/*
A line on stderr that says how far long work is, if stderr is a terminal: "--tokenize: 42 %, 12 s left".
defines: progress_show
*/
#pragma once
#include "llmc/common/device.h"
#include <unistd.h>

// Shows the line of the work `what` after two seconds, at most four times a second, and removes it at the end. Called
// from one thread at a time. done, total: in one unit; total 0: unknown, and done is in bytes; done -1: the end. The
// cursor stays at the line's begin, so that an error overwrites it.
static inline void progress_show(const char *what, double done, double total) {
    static const char *shown_for;
    static double started, shown;
    double now = now_seconds();
    bool ends = done < 0 || (total > 0 && done >= total), is_new = shown_for != what;
    if (is_new) { started = now, shown = 0, shown_for = what; }
    if (ends && shown > 0) { fprintf(stderr, "\033[K"); }
    if (ends) { shown_for = NULL; }
    if (ends || done == 0 || now - started < 2 || now - shown < 0.25 || !isatty(STDERR_FILENO)) { return; }
    shown = now;
    if (total > 0) {
        double left = (now - started) * (total / done - 1);
        fprintf(stderr, "%s: %.0f %%, %.0f s left\033[K\r", what, 100 * done / total, left);
    } else {
        fprintf(stderr, "%s: %.1f MB, %.0f s\033[K\r", what, done / 1e6, now - started);
    }
}
