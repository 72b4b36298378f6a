/*
What is due after a step: evaluation, a sample, a checkpoint, a check, the end.
defines: due, pauses_after, verifies_step, update_waits
*/
#pragma once
#include "llmc/run/train_args.h"

// whether something of every `every` steps is due after `step` steps; 0: never
static inline bool due(long long step, int every, bool last) {
    return every > 0 && (last || (step > 0 && step % every == 0));
}

// whether evaluation, a sample, a checkpoint, a replica check or the end is due after `step` steps
static inline bool pauses_after(const TrainArgs *a, long long step, long long max_steps) {
    return step >= max_steps || due(step, a->val_every, false) || due(step, a->sample_every, false) ||
           due(step, a->checkpoint_every, false) || due(step, a->check_replicas, false);
}

// whether --verify-step runs the step after `step` steps twice
static inline bool verifies_step(const TrainArgs *a, long long step) { return due(step + 1, a->verify_step, false); }

// whether the host reads loss and norm of the step after `step` steps before its update
static inline bool update_waits(const TrainArgs *a, long long step) {
    return a->skip_loss > 0 || a->skip_norm > 0 || a->nan_check || verifies_step(a, step);
}
