// A line on stderr that says how far long work is, if stderr is a terminal: "--tokenize: 42 %".
#pragma once
#include "llmc/common/device.h"
#include <unistd.h>

// Shows a line for the work `what` once a second, and removes it when done reaches total. Called from one thread at a
// time. done and total have one unit; if total is 0 it is not known, and done is in bytes. done = -1 ends the work. The
// cursor stays at the line's start.
static inline void progress_show(const char *what, double done, double total) {
    static double since;  // the time when the line was shown last, or when the work began; 0: no work
    static bool visible;
    double now = now_seconds();
    bool ends = done < 0 || (total > 0 && done >= total);
    if (ends && visible) { fputs("\033[K", stderr); }
    if (ends || since == 0) {
        since = ends ? 0 : now;
        visible = false;
    }
    if (ends || now - since < 1 || !isatty(STDERR_FILENO)) { return; }
    since = now;
    visible = true;
    if (total > 0) {
        fprintf(stderr, "%s: %.0f %%\033[K\r", what, 100 * done / total);
    } else {
        fprintf(stderr, "%s: %.0f MB\033[K\r", what, done / 1e6);
    }
}
