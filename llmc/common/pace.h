/*
A thread that works beside training works in small pieces and rests between them, so that it delays no step by much.
A low priority is not enough: Linux lets a thread run for some milliseconds before another one takes its core.
defines: Pace, PACE_PIECE, pace_rest
*/
#pragma once
#include <stdbool.h>
#include <time.h>

typedef struct {
    double worked;      // CPU seconds of the thread at the end of its last rest
    double rests;       // seconds that it may still rest
    const bool *hurry;  // true: training waits for the thread, so it does not rest
} Pace;

#define PACE_PIECE ((size_t)1 << 18)  // bytes to write between two rests: about 0.2 ms of work
#define PACE_RESTS 19.0               // seconds of rest for each second of work

static inline double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Rests after a piece of work; looks at pace->hurry every 2 ms. pace NULL: no rest.
static inline void pace_rest(Pace *pace) {
    if (!pace) { return; }
    double rest = PACE_RESTS * (thread_seconds() - pace->worked);
    if (rest < 0.001) { return; }  // too short a piece to delay a step: it adds up with the next one
    if (rest > pace->rests) { rest = pace->rests; }
    pace->rests -= rest;
    for (; rest > 0 && !__atomic_load_n(pace->hurry, __ATOMIC_RELAXED); rest -= 0.002) {
        const struct timespec most = {0, 2000000}, last = {0, (long)(1e9 * rest)};
        nanosleep(rest < 0.002 ? &last : &most, NULL);
    }
    pace->worked = thread_seconds();
}
