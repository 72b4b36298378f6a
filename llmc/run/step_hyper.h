/*
AdamW's numbers for one step, from the flags.
defines: step_hyper
*/
#pragma once
#include "llmc/ops.h"
#include "llmc/run/train_args.h"

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
