// A run of the trainer as `train` opens it, but without signals and banner; initial weights; the loss of a micro-batch.
#pragma once

static void run_open(Run *run, TrainArgs *a, Comm *launched) {
    open_ranks(run, a, launched);
    open_data(run, a);
    build_model(run, choose_memory(run));
    open_files(run);
}

static void gpt2_init(GPT2 *m, uint64_t seed) {
    ModelSource none;
    memset(&none, 0, sizeof none);
    gpt2_load(m, &none, seed);
}

// the mean loss of a micro-batch, without gradients
static real gpt2_loss(GPT2 *m, const int *inputs, const int *targets) {
    return gpt2_losses(m, m->B, m->T, inputs, targets, not_packed, NULL);
}
