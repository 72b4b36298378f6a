/*
What happens when: the learning rate of a step, what is due after it, and the signals that end a run with a checkpoint.
The learning rate rises linearly, then follows one of four schedules.
  s step (0-based), W warmup steps, N steps of the run, f final fraction, P = (s - begin) / (N - begin), at most 1
  s < W        lr (s + 1) / W                                   for every schedule; step 0 already learns
  cosine       lr (f + (1 - f) (1 + cos(pi P)) / 2)             begin = W
  linear       lr (f + (1 - f) (1 - P))                         begin = W
  constant     lr
  wsd          lr (f + (1 - f) (1 - sqrt(P)))                   begin = max(W, floor(0.8 N)), lr before it
A schedule that decays is constant at lr f from step max(W, N) on.
Sources: cosine, Loshchilov and Hutter 2017; warmup-stable-decay and its 1 - sqrt tail, Hagele et al. 2024.
The signals: SIGINT, SIGTERM, SIGHUP (an ssh connection ends) and SIGUSR1. mpirun forwards SIGUSR1 and kills no rank. A
second signal ends the program at once.
defines: schedule_lr, step_hyper, due, pauses_after, update_waits, catch_signals, received_signal, agreed_signal
*/
#pragma once
#include "llmc/ops.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/train_args.h"
#include <math.h>
#include <signal.h>

// decay from 1 at progress 0 to 0 at progress 1; a constant schedule stays at 1
static inline double schedule_decay(ScheduleKind kind, double progress) {
    switch (kind) {
    case SCHEDULE_COSINE: return 0.5 * (1 + cos(3.14159265358979323846 * progress));
    case SCHEDULE_LINEAR: return 1 - progress;
    case SCHEDULE_WSD: return 1 - sqrt(progress);
    case SCHEDULE_CONSTANT: break;
    }
    return 1;
}

// step >= 0 counts from 0; warmup >= 0; max_steps >= 1
static inline double schedule_lr(ScheduleKind kind, double lr, int64_t warmup, int64_t max_steps, double final_fraction,
                                 int64_t step) {
    if (step < warmup) { return lr * (double)(step + 1) / (double)warmup; }
    int64_t stable = max_steps / 5 * 4 + max_steps % 5 * 4 / 5;  // floor(0.8 N), without overflow
    int64_t begin = kind == SCHEDULE_WSD && stable > warmup ? stable : warmup;
    double progress = 0;
    if (step >= max_steps) {
        progress = 1;
    } else if (step > begin) {
        progress = (double)(step - begin) / (double)(max_steps - begin);
    }
    return lr * (final_fraction + (1 - final_fraction) * schedule_decay(kind, progress));
}

// step: finished steps before it; max_steps: of the whole run
static inline AdamW step_hyper(const TrainArgs *a, long long max_steps, long long step) {
    AdamW hyper;
    hyper.learning_rate =
        (real)schedule_lr((ScheduleKind)a->schedule, a->lr, a->warmup, max_steps, a->final_fraction, step);
    hyper.beta1 = (real)a->beta1;
    hyper.beta2 = (real)a->beta2;
    hyper.epsilon = (real)a->epsilon;
    hyper.weight_decay = (real)a->weight_decay;
    hyper.clip = (real)a->clip;
    hyper.step = (int)step + 1;
    hyper.seed = (uint64_t)a->seed;
    return hyper;
}

// ---- what is due

// True at each multiple of `every`, and at the end; 0: never.
static inline bool due(long long step, int every, bool last) {
    return every > 0 && (last || (step > 0 && step % every == 0));
}

// whether an evaluation, a sample, a checkpoint or the end is due after `step` steps
static inline bool pauses_after(const TrainArgs *a, long long step, long long max_steps) {
    return step >= max_steps || due(step, a->val_every, false) || due(step, a->sample_every, false) ||
           due(step, a->checkpoint_every, false);
}

// whether the host reads loss and norm of a step before its update
static inline bool update_waits(const TrainArgs *a) { return a->skip_loss > 0 || a->skip_norm > 0 || a->nan_check; }

// ---- signals

// Globals: a signal handler has no argument.
static volatile sig_atomic_t received_signal;  // 0: none
static volatile double received_at;            // seconds

// Two signals within 0.2 s count as one: `timeout` sends a signal to the program and to the program's group.
static inline void handle_signal(int signal_number) {
    const double one_signal = 0.2;  // seconds
    if (!received_signal) {
        received_at = now_seconds();
        received_signal = signal_number;
    } else if (now_seconds() - received_at > one_signal) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
}

// A signal that is ignored at the start, as under nohup and in scripts, stays ignored.
static inline void catch_signals(void) {
    const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1}, count = sizeof signals / sizeof signals[0];
    for (int i = 0; i < count; i++) {
        struct sigaction action, before;
        memset(&action, 0, sizeof action);
        action.sa_handler = handle_signal;
        action.sa_flags = SA_RESTART | SA_NODEFER;
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) { continue; }
        sigaction(signals[i], &action, NULL);
    }
}

// A signal that any rank received, 0 for none. Collective: every rank calls agreed_signal.
static inline int agreed_signal(Comm *world) { return (int)comm_max(received_signal, world); }
