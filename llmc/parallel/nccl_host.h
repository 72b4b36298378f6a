/*
The host's side of comm_nccl.cuh, without CUDA: the file that carries NCCL's unique id, and the watchdog.

Id file    For ranks that were started without MPI (-pi fs): a file in a folder that all ranks see. Rank 0 writes the id
           under another name and renames it, touches the file until all ranks have connected, and removes it. The other
           ranks wait until the file appears, is replaced or is touched. Nobody touches the file of a killed run, so no
           rank takes the old id. Whoever has the id can join the run, so the file is private (mode 0600), and a rank
           refuses the file of another user.
Watchdog   A thread that runs a check while the main thread is inside a library call, such as one of NCCL that never
           returns because another rank has ended. From watch_enter to watch_leave it calls `check` every WATCH_SECONDS,
           with the seconds since watch_enter. `check` returns, or stops the program. watch_leave waits for a running
           `check`, so `check` never overlaps the main thread's own code, and may use libraries for one thread at a
           time, such as MPI with MPI_THREAD_SERIALIZED. watch_stay watches the code between the calls too, which must
           then use no such library.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/parallel/comm.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- the id file

// Slurm's job id keeps jobs apart that share a folder.
static inline void id_file_path(char *path, const char *folder) {
    const char *job = getenv("SLURM_JOB_ID");
    if (access(folder, W_OK) != 0) {
        input_error("-pf %s: %s; give a folder that all ranks can write to", folder, strerror(errno));
    }
    format_path(path, "%s/nccl_id%s%s", folder, job ? "_" : "", job ? job : "");
}

static inline void id_file_write(const char *path, const void *id, size_t bytes) {
    mode_t before = umask(077);  // private from its creation on: nobody else can open it first and read it later
    PartFile file = part_open(path);
    umask(before);
    part_put(&file, id, bytes);
    int error = part_finish(&file);
    if (error) { input_error("%s could not be written (%s); give -pf another folder", path, strerror(error)); }
}

static inline void id_file_touch(const char *path) { utimensat(AT_FDCWD, path, NULL, 0); }

// Reads the id. Returns the file's time of modification in nanoseconds, or 0 without a file.
static inline int64_t id_file_read(const char *path, void *id, size_t bytes) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool foreign = fd < 0 && errno == EACCES, whole = false;
    if (fd >= 0) {
        whole = fstat(fd, &info) == 0 && read(fd, id, bytes) == (ssize_t)bytes;
        foreign = whole && (info.st_uid != geteuid() || info.st_mode & 077);
        close(fd);
    }
    if (foreign) {
        input_error("%s is no private file of this rank's user (mode 0600): give -pf a folder of your own", path);
    }
    if (!whole) { return 0; }
    return info.st_mtim.tv_sec * INT64_C(1000000000) + info.st_mtim.tv_nsec;
}

// Waits for the id of a rank 0 that is running.
static inline void id_file_wait(const char *path, void *id, size_t bytes, int rank, int size) {
    AwakeClock clock = {0, 0};
    int64_t left_behind = id_file_read(path, id, bytes), now = left_behind;
    while (now == 0 || now == left_behind) {
        if (awake_seconds(&clock) > COMM_TIMEOUT) {
            run_error("rank %d of %d: rank 0 has not written %s for %g s; are all ranks running, with the same -pf?",
                      rank, size, path, COMM_TIMEOUT);
        }
        usleep(20000);
        now = id_file_read(path, id, bytes);
    }
}

// ---- watchdog

#define WATCH_SECONDS 0.05

typedef struct {
    void (*check)(void *ctx, double waited);
    void *ctx;
    pthread_t thread;
    bool stays;            // set by watch_stay; the main thread's
    pthread_mutex_t lock;  // guards the fields below
    AwakeClock clock;
    double since;  // start of the call; negative: nothing is watched
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

static inline void watch_set(Watch *w, bool watches) {
    pthread_mutex_lock(&w->lock);
    w->since = watches ? awake_seconds(&w->clock) : -1;
    pthread_mutex_unlock(&w->lock);
}
static inline void watch_enter(Watch *w) { watch_set(w, true); }
static inline void watch_leave(Watch *w) { watch_set(w, w->stays); }

// From now on the code between calls is watched too, or no longer. Each call restarts the seconds.
static inline void watch_stay(Watch *w, bool stays) { watch_set(w, w->stays = stays); }

static inline void watch_close(Watch *w) {
    pthread_mutex_lock(&w->lock);
    w->over = true;
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
}
