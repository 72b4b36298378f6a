/*
--verify-step and --nan-check: checks of a step before its update, by running the step again. The checks change neither
weights nor moments nor the position in the data.
defines: CheckedStep, step_checks
*/
#pragma once
#include "llmc/parallel/tensor_parallel.h"
#include "llmc/run/due.h"
#include "llmc/run/nan_check.h"
#include "llmc/run/verify_step.h"

// the model and how to run the step again; the device is idle
typedef struct {
    void *run;
    uint64_t first;                            // sequence of the step's data
    void (*again)(void *run, uint64_t first);  // forward, backward and norm; returns when they are done
    const Ops **ops;                           // the model's table of operations
    bool *graph;                               // whether micro-steps are CUDA graphs
    TensorParallel *tp;
    Zero *zero;
    const real *results;  // (2): loss and squared norm
    Comm *world;
} CheckedStep;

static inline void set_ops(const CheckedStep *s, const Ops *ops) { *s->ops = s->tp->ops = s->zero->ops = ops; }

static inline void verify_step(const CheckedStep *s, long long step) {
    StepResult once = step_result_read(s->zero, s->results);
    s->again(s->run, s->first);
    StepResult twice = step_result_read(s->zero, s->results);
    check_same_results(&once, &twice, &s->zero->layout, step, s->world);
    step_result_free(&once);
    step_result_free(&twice);
}

// origin (size bytes) = the operation that made the loss or the norm of the step not finite
static inline void find_origin(const CheckedStep *s, char *origin, size_t size) {
    const Ops *ops = *s->ops;
    bool graph = *s->graph;
    NanCheck check;
    real results[2];
    nan_check_open(&check, ops, s->zero);
    nan_check_params(&check);
    set_ops(s, &check.checking_ops);
    s->zero->ex->nan_check = &check;
    *s->graph = false;
    s->again(s->run, s->first);
    set_ops(s, ops);
    s->zero->ex->nan_check = NULL;
    *s->graph = graph;
    s->zero->device->download(results, s->results, sizeof results);
    nan_check_result(&check, isfinite(results[0]) && isfinite(results[1]), origin, size, s->world);
}

// step: finished steps before it. finite: its loss and norm are. origin: as find_origin, if --nan-check looks.
static inline void step_checks(const CheckedStep *s, const TrainArgs *a, long long step, bool finite, char *origin,
                               size_t size) {
    if (verifies_step(a, step)) { verify_step(s, step + 1); }
    if (a->nan_check && !finite) { find_origin(s, origin, size); }
}
