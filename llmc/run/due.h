/*
What happens after a step: evaluation, a sample, a checkpoint, the end.
defines: due, pauses_after, update_waits
*/
#pragma once
#include "llmc/run/train_args.h"

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
