/*
A watchdog thread that runs a check while the main thread is inside a library call. A call of NCCL, for example, may
never return if another rank has ended.
defines: Watch, watch_open, watch_close, watch_enter, watch_leave
Between watch_enter and watch_leave the thread calls `check` every WATCH_SECONDS, with the seconds since watch_enter.
`check` returns, or stops the program. watch_leave waits for a running `check`, so `check` never overlaps the main
thread's own code. `check` may therefore use libraries for one thread at a time, such as MPI with MPI_THREAD_SERIALIZED.
*/
#pragma once
#include "llmc/parallel/comm.h"
#include <pthread.h>
#include <unistd.h>

#define WATCH_SECONDS 0.05

typedef struct {
    void (*check)(void *ctx, double waited);
    void *ctx;
    pthread_t thread;
    pthread_mutex_t lock;  // guards the fields below
    AwakeClock clock;
    double since;  // start of the call; negative between calls
    bool over;
} Watch;

static inline void *watch_run(void *watch) {
    Watch *w = (Watch *)watch;
    for (bool over = false; !over; usleep((useconds_t)(WATCH_SECONDS * 1e6))) {
        pthread_mutex_lock(&w->lock);
        double now = awake_seconds(&w->clock);
        if (w->since >= 0) { w->check(w->ctx, now - w->since); }
        over = w->over;
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

// Starts the thread. `ctx` stays valid until watch_close.
static inline void watch_open(Watch *w, void (*check)(void *ctx, double waited), void *ctx) {
    memset(w, 0, sizeof *w);
    w->check = check;
    w->since = -1;
    w->ctx = ctx;
    pthread_mutex_init(&w->lock, NULL);
    int error = pthread_create(&w->thread, NULL, watch_run, w);
    if (error != 0) { run_error("could not start the communicator's watchdog thread: %s", strerror(error)); }
}

static inline void watch_enter(Watch *w) {
    pthread_mutex_lock(&w->lock);
    w->since = awake_seconds(&w->clock);
    pthread_mutex_unlock(&w->lock);
}

static inline void watch_leave(Watch *w) {
    pthread_mutex_lock(&w->lock);
    w->since = -1;
    pthread_mutex_unlock(&w->lock);
}

static inline void watch_close(Watch *w) {
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
}
