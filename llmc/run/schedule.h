/*
The learning rate of a step: linear warmup, then one of four schedules.
  s step (0-based), W warmup steps, N steps of the run, f final fraction, P = (s - begin) / (N - begin), at most 1
  s < W        lr (s + 1) / W                                   for every schedule; step 0 already learns
  cosine       lr (f + (1 - f) (1 + cos(pi P)) / 2)             begin = W
  linear       lr (f + (1 - f) (1 - P))                         begin = W
  constant     lr
  wsd          lr (f + (1 - f) (1 - sqrt(P)))                   begin = max(W, floor(0.8 N)), lr before it
A schedule that decays is constant at lr f from step max(W, N) on.
Sources: cosine, Loshchilov and Hutter 2017; warmup-stable-decay and its 1 - sqrt tail, Hagele et al. 2024.
defines: ScheduleKind, SCHEDULE_CHOICES, schedule_lr
*/
#pragma once
#include <math.h>
#include <stdint.h>

typedef enum { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } ScheduleKind;
#define SCHEDULE_CHOICES "cosine linear constant wsd"  // in the enum's order

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
