/*
The number of CPU threads of the next step, chosen by the times of earlier steps. Beside other busy programs a step on
all cores waits at every barrier for the thread that shares its core, and fewer threads are faster. The bits of a step
do not depend on the number of threads.
A trial runs a few steps with another number of threads. A series of trials tries 1 thread fewer, then 2, 3, 4, 6, 9 and
so on down to half, since the number of busy programs is unknown. A run with fewer threads than cores alternates such
series with a trial of one thread more. The first series follows the first steps of a run, and the pauses between failed
series grow. Trials begin again when steps take longer than at the last trial.
defines: ThreadCount, thread_count_open, thread_count_add
*/
#pragma once
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    THREAD_WINDOW = 5,  // steps of a median
    THREAD_TRIAL = 3,   // steps of a trial; one step that takes 1.25 times the time ends it
    THREAD_PAUSE = 32,  // steps after a failed series of trials; each further failure doubles them
    THREAD_LONGEST_PAUSE = 256,
    THREAD_CHANGES = 5  // changes of a run that are logged
};
#define THREAD_SLOW 1.2   // a median this many times usual_ms ends a pause
#define THREAD_END 1.25   // a step of a trial this many times as long ends the trial
#define THREAD_GAIN 0.95  // a trial must take at most this share of the time

typedef struct {
    int most;  // threads; 1: the number never changes
    int best;  // the number to which a failed trial returns
    int now;   // threads of the next step: best, or those of a trial
    double ms[THREAD_WINDOW];
    int steps;         // with `now` threads
    double best_ms;    // the last median of steps with `best` threads
    double usual_ms;   // the least median with `best` threads since the last trial began
    int wait, pause;   // steps until the next trial, and after the next failed series
    int fewer;         // the next trial of fewer threads has this many fewer
    bool upwards;      // the last trial was of more threads
    int changes;       // of `best`
    char change[128];  // "" or the change of `best` after the last step, in words
} ThreadCount;

// most: 1 or more
static inline ThreadCount thread_count_open(int most) {
    ThreadCount t;
    memset(&t, 0, sizeof t);
    t.most = t.best = t.now = most;
    t.fewer = 1;
    t.pause = THREAD_PAUSE;
    t.usual_ms = INFINITY;
    return t;
}

// the median of the last steps with `now` threads
static inline double thread_count_median(const ThreadCount *t) {
    int count = t->steps < THREAD_WINDOW ? t->steps : (int)THREAD_WINDOW;
    for (int i = 0; i < count; i++) {
        int below = 0, equal = 0;
        for (int j = 0; j < count; j++) {
            below += t->ms[j] < t->ms[i];
            equal += t->ms[j] == t->ms[i];
        }
        if (below <= count / 2 && below + equal > count / 2) { return t->ms[i]; }
    }
    return 0;
}

static inline void thread_count_set(ThreadCount *t, int threads) {
    t->now = threads;
    t->steps = 0;
}

static inline void thread_count_pause(ThreadCount *t) {
    t->fewer = 1;
    t->wait = t->pause;
    t->pause = 2 * t->pause < THREAD_LONGEST_PAUSE ? 2 * t->pause : (int)THREAD_LONGEST_PAUSE;
}

// the end of a trial
static inline void thread_count_judge(ThreadCount *t) {
    double ms = thread_count_median(t);
    if (ms <= THREAD_GAIN * t->best_ms) {
        if (t->changes++ < THREAD_CHANGES) {
            snprintf(t->change, sizeof t->change, "threads: now %d, at most %d, %.1f ms a step instead of %.1f", t->now,
                     t->most, ms, t->best_ms);
        }
        t->best = t->now;
        t->pause = THREAD_PAUSE;
        t->fewer = 1;
    } else if (t->now > t->best) {
        thread_count_pause(t);
    } else {
        t->fewer += t->fewer < 4 ? 1 : t->fewer / 2;
        if (2 * t->fewer > t->best) { thread_count_pause(t); }
    }
    thread_count_set(t, t->best);
}

static inline void thread_count_try(ThreadCount *t) {
    bool fewer_next = t->fewer > 1 || t->upwards;  // a series goes on, or follows a trial of one more
    t->upwards = t->best == 1 || (t->best < t->most && !fewer_next);
    t->usual_ms = t->best_ms;
    thread_count_set(t, t->upwards ? t->best + 1 : t->best - t->fewer);
}

// Adds the time of a step with `now` threads, and chooses `now` for the next step.
static inline void thread_count_add(ThreadCount *t, double ms) {
    t->change[0] = 0;
    if (t->most == 1) { return; }
    t->ms[t->steps++ % THREAD_WINDOW] = ms;
    if (t->now != t->best) {
        if (t->steps >= THREAD_TRIAL || ms > THREAD_END * t->best_ms) { thread_count_judge(t); }
        return;
    }
    if (t->steps < THREAD_WINDOW) { return; }
    t->best_ms = thread_count_median(t);
    if (t->best_ms > THREAD_SLOW * t->usual_ms) {
        t->wait = 0;
        t->pause = THREAD_PAUSE;
    }
    if (t->best_ms < t->usual_ms) { t->usual_ms = t->best_ms; }
    if (t->wait > 0) {
        t->wait--;
    } else {
        thread_count_try(t);
    }
}
