// A run of the trainer as `train` opens it, but without signals and banner.
// defines: run_open
#pragma once

static void run_open(Run *run, TrainArgs *a, Comm *host) {
    open_ranks(run, a, host);
    open_data(run, a);
    build_model(run, choose_memory(run, a));
    open_files(run);
}
