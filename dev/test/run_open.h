// A run of the trainer, opened as `train` does it, without its signals and its banner.
// defines: run_open
#pragma once

static void run_open(Run *run, TrainArgs *a, Comm *host) { run_build(run, run_check(run, a, host)); }
