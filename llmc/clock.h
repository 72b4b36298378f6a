/*
The time on this machine, for what takes how long.
defines: now_seconds
*/
#pragma once
#include <time.h>

// seconds since some moment in the past, at which no clock is set
static inline double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
