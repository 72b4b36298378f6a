/*
A thread that looks after the main one while that is in calls of a library which may never return, as NCCL's do when
another process has gone.
defines: Watch, watch_open, watch_close, watch_enter, watch_leave
Between watch_enter and watch_leave `look` is called every WATCH_SECONDS, with the seconds since watch_enter; it
returns, or stops the program. It never runs beside the main thread's own code: watch_leave waits for it. So it may use
what only one thread at a time may use, such as MPI opened with MPI_THREAD_SERIALIZED.
*/
#pragma once
#include "llmc/parallel/comm.h"
#include <pthread.h>
#include <unistd.h>

#define WATCH_SECONDS 0.05

typedef struct {
    void (*look)(void *of, double waited);
    void *of;
    pthread_t thread;
    pthread_mutex_t lock;  // of what follows
    double since;          // when the call began; 0 between calls
    bool over;
} Watch;

static inline void *watch_run(void *watch) {
    Watch *w = (Watch *)watch;
    for (bool over = false; !over; usleep((useconds_t)(WATCH_SECONDS * 1e6))) {
        pthread_mutex_lock(&w->lock);
        if (w->since > 0) { w->look(w->of, now_seconds() - w->since); }
        over = w->over;
        pthread_mutex_unlock(&w->lock);
    }
    return NULL;
}

// Starts the thread. `look` and what it looks at stay as they are until watch_close.
static inline void watch_open(Watch *w, void (*look)(void *of, double waited), void *of) {
    memset(w, 0, sizeof *w);
    w->look = look, w->of = of;
    pthread_mutex_init(&w->lock, NULL);
    int error = pthread_create(&w->thread, NULL, watch_run, w);
    if (error != 0) { run_error("could not start a thread that watches the communicator: %s", strerror(error)); }
}

static inline void watch_enter(Watch *w) {
    pthread_mutex_lock(&w->lock);
    w->since = now_seconds();
    pthread_mutex_unlock(&w->lock);
}

static inline void watch_leave(Watch *w) {
    pthread_mutex_lock(&w->lock);
    w->since = 0;
    pthread_mutex_unlock(&w->lock);
}

static inline void watch_close(Watch *w) {
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
}
