/*
Saves checkpoints beside training. A save copies the state of the model, and a thread of low priority writes the copy
in small pieces while the next steps run.
  saver_save    begins a save; without memory for a copy, or with --save-sync, it writes the checkpoint at once
  saver_wait    the device waits for the copy before AdamW changes the state
  saver_poll    after each step: starts the thread when the copy is complete, and ends a save that is written; the step
                after a save is thus slower by the copy alone, and the later steps by the writing
  saver_finish  completes the pending save, if there is one
A killed run loses a checkpoint that is still being written, and the next start deletes the unfinished folder. A single
rank that stops with an error completes its pending save first, on a GPU only a save that the thread already writes.
After a failed save the run goes on, and the next save comes as usual. With --strict-save the run stops.
defines: Saver, saver_open, saver_save, saver_wait, saver_poll, saver_finish, saver_complete_at_errors,
         saver_close
*/
#pragma once
#include "llmc/files/checkpoint_save.h"
#include "llmc/run/logger.h"
#include "llmc/run/train_args.h"
#include <assert.h>
#include <pthread.h>

typedef enum { SAVER_IDLE, SAVER_COPIES, SAVER_WRITES } SaverPhase;

typedef struct {
    const TrainArgs *args;
    const Logger *log;
    Comm *world;
    Exec *ex;
    OptimizerState copy;  // in host memory; params NULL: the plan has no copy
    SaverPhase phase;
    CheckpointSave save;
    cJSON *state;
    long long step;       // of the pending save
    long long saved;      // step of the last checkpoint that this run has saved or resumed; -1: none
    double begun;         // time of the last save, at first of saver_open
    double rests;         // seconds that the thread may rest in all
    double paused;        // seconds in which training waited for the save
    bool done;            // DONE_ is created with the checkpoint
    CopyWork copying;     // the last copy of a tensor; 0: none runs
    long long copied;     // finished steps after which the copy is complete; -1: saver_wait was not called yet
    pthread_t thread;     // in SAVER_WRITES
    bool thread_ended;    // written by the thread
    bool on_gpu;          // training leaves the thread a CPU core
    bool hurry;           // the thread does not rest: training waits for it, or on_gpu
    StopHook other_hook;  // that of mpirun, also for one rank
} Saver;

// copy: the tensors of the plan for a copy of the state. *log, *ex and *world stay until the last saver_finish.
static inline Saver saver_open(const TrainArgs *a, const Logger *log, Comm *world, Exec *ex, OptimizerState copy) {
    Saver saver;
    memset(&saver, 0, sizeof saver);
    saver.args = a;
    saver.log = log;
    saver.world = world;
    saver.ex = ex;
    saver.copy = copy;
    saver.saved = -1;
    saver.begun = now_seconds();
    return saver;
}

// ---- the copy

// Begins the copy of all arrays of a state. Returns the last copy: copies of one stream run in order.
static inline CopyWork copy_state_begin(const OptimizerState *to, const ModelState *from, Exec *ex) {
    ParamLayout layout = param_layout_sharded(from->config, from->sharding);
    const OptimizerState *o = &from->optimizer;
    size_t params = shards_params(&layout.sharding) ? layout.shard : layout.total;
    size_t count = layout.sharding.stage < 1 ? layout.total : layout.shard, scales = moment_blocks(count);
    const struct {
        void *to;
        const void *from;
        size_t bytes;
    } arrays[] = {
        {to->params, o->params, params * sizeof(floatX)},       {to->master, o->master, count * sizeof(real)},
        {to->remainder, o->remainder, count * sizeof(int16_t)}, {to->m, o->m, count * dtype_size(o->moments)},
        {to->v, o->v, count * dtype_size(o->moments)},          {to->m_scales, o->m_scales, scales * sizeof(float)},
        {to->v_scales, o->v_scales, scales * sizeof(float)}};
    CopyWork last = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (!arrays[i].from) { continue; }
        last = from->device->download_begin(COPY_PARAMS, arrays[i].to, arrays[i].from, arrays[i].bytes, ex);
    }
    return last;
}

// ---- the end of a save

// Gives the written checkpoint its name, then deletes those that -nk does not keep. The logs reach the disk first: a
// power cut leaves no checkpoint whose steps are missing in metrics.jsonl.
static inline void saver_name(Saver *saver) {
    const TrainArgs *a = saver->args;
    logger_sync(saver->log);
    checkpoint_save_publish(&saver->save);
    if (saver->save.error || saver->world->rank > 0) { return; }
    checkpoint_prune(a->run_dir, a->keep_checkpoints, a->major_every);
}

// All ranks end a save that every rank has written. stops: a failure ends the run.
static inline void saver_publish(Saver *saver, bool stops) {
    const TrainArgs *a = saver->args;
    CheckpointSave *save = &saver->save;
    double begin = now_seconds();
    saver->phase = SAVER_IDLE;
    if (save->model.world) { saver_name(saver); }
    cJSON_Delete(saver->state);
    if (save->error) {
        checkpoint_save_failed(save, stops);
        return;
    }
    saver->saved = saver->step;
    if (saver->done) { checkpoint_mark_done(a->run_dir, saver->step, saver->world, stops); }
    saver->paused += now_seconds() - begin;
    logger_saved(saver->log, saver->step, save->folder, 1000 * saver->paused, save->sums[0].crc, save->sums[1].crc);
}

// Writes the files. A single rank also ends the checkpoint.
static inline void saver_write(Saver *saver) {
    checkpoint_save_write(&saver->save);
    if (!saver->save.model.world) { saver_name(saver); }
}

// Linux has a priority for each thread: the step's threads take precedence.
static inline void *saver_thread(void *argument) {
    Saver *saver = (Saver *)argument;
    Pace pace = {thread_seconds(), saver->rests, &saver->hurry};
    if (nice(10) < 0) { errno = 0; }
    omp_set_num_threads(1);
    for (int i = 0; i < 2; i++) { saver->save.files[i].pace = &pace; }
    saver_write(saver);
    __atomic_store_n(&saver->thread_ended, true, __ATOMIC_RELEASE);
    return NULL;
}

static inline void saver_start_thread(Saver *saver) {
    saver->thread_ended = false;
    saver->hurry = saver->on_gpu;
    saver->phase = SAVER_WRITES;
    if (pthread_create(&saver->thread, NULL, saver_thread, saver) != 0) {
        saver->phase = SAVER_COPIES;  // saver_finish writes the copy
    }
}

// ---- what the training loop calls

// Begins to save the checkpoint of `step`. The device's work is done, and an earlier save has ended. state: of
// state.json; the saver deletes it. done: with DONE_. last: no save follows, so a failure stops the run.
static inline void saver_save(Saver *saver, long long step, const ModelState *model, cJSON *state, bool done,
                              bool last) {
    char name[32];
    double begin = now_seconds();
    saver->step = step;
    saver->rests = (begin - saver->begun) / 4;  // so that the save ends before the next one
    saver->begun = begin;
    saver->paused = 0;
    saver->state = state;
    saver->done = done;
    snprintf(name, sizeof name, "step_%08lld", step);
    checkpoint_save_open(&saver->save, saver->args->run_dir, name, model, state);
    if (saver->world->size == 1) { saver->save.model.world = NULL; }  // the thread shares no communicator
    bool waits = last || !saver->copy.params || saver->save.error;
    if (waits) {
        saver_write(saver);
        saver->paused = now_seconds() - begin;
        saver_publish(saver, last || saver->args->strict_save);
        return;
    }
    saver->copying = copy_state_begin(&saver->copy, model, saver->ex);
    saver->copied = saver->copying ? -1 : step;
    saver->on_gpu = model->device->steps_ahead > 0;
    saver->save.model.optimizer = saver->copy;
    saver->save.model.device = &cpu_device;
    saver->phase = SAVER_COPIES;
    saver->paused = now_seconds() - begin;
}

// Work enqueued from now on runs after the copy. steps: enqueued steps, with the present one.
static inline void saver_wait(Saver *saver, const Device *device, long long steps) {
    if (!saver->copying) { return; }
    device->copy_wait(saver->copying, saver->ex);
    saver->copying = 0;
    saver->copied = steps;
}

// steps: finished steps. All ranks call it after the same step.
static inline void saver_poll(Saver *saver, long long steps) {
    if (saver->phase == SAVER_COPIES && saver->copied >= 0 && steps >= saver->copied) { saver_start_thread(saver); }
    if (saver->phase == SAVER_IDLE) { return; }
    bool ended = saver->phase == SAVER_WRITES && __atomic_load_n(&saver->thread_ended, __ATOMIC_ACQUIRE);
    if (comm_max(!ended, saver->world)) { return; }
    pthread_join(saver->thread, NULL);
    saver_publish(saver, saver->args->strict_save);
}

// saver_finish; stops: a failure ends the run
static inline void saver_complete(Saver *saver, bool stops) {
    if (saver->phase == SAVER_IDLE) { return; }
    double begin = now_seconds();
    saver->copying = 0;
    if (saver->phase == SAVER_WRITES) {
        __atomic_store_n(&saver->hurry, true, __ATOMIC_RELAXED);
        pthread_join(saver->thread, NULL);
    } else {
        saver_write(saver);
    }
    saver->paused += now_seconds() - begin;
    saver_publish(saver, stops);
}

// Completes the pending save. The device's work is done, and so is the copy. All ranks call it. A failed save leaves
// saver->saved as it was.
static inline void saver_finish(Saver *saver) { saver_complete(saver, saver->args->strict_save); }

// ---- a single rank that stops with an error

// The stop hook: writes the pending checkpoint if its copy is complete, then stops as before.
static inline void saver_stop(void *of, int status, const char *sentence) {
    Saver *saver = (Saver *)of;
    bool writes = saver->phase == SAVER_WRITES && !pthread_equal(pthread_self(), saver->thread);
    bool copied = saver->phase == SAVER_COPIES && saver->copied >= 0 && !saver->on_gpu;
    if (writes || copied) { saver_complete(saver, false); }
    if (saver->other_hook.stop) { saver->other_hook.stop(saver->other_hook.of, status, sentence); }
    fprintf(stderr, "train_gpt2: %s\n", sentence);
    exit(status);
}

// From now on, an error of a single rank completes the pending save before the program stops. *saver stays until
// saver_close.
static inline void saver_complete_at_errors(Saver *saver) {
    const StopHook hook = {saver_stop, saver};
    saver->other_hook = *stop_hook();
    if (saver->world->size == 1) { *stop_hook() = hook; }
}

// Of two savers, the one opened last closes first, or the hook of a closed saver stays.
static inline void saver_close(Saver *saver) {
    if (saver->world->size > 1) { return; }
    assert(stop_hook()->of == saver);
    *stop_hook() = saver->other_hook;
}
