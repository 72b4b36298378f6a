/*
Signals that end a run with a checkpoint: SIGINT, SIGTERM, SIGHUP (an ssh connection ends) and SIGUSR1. mpirun forwards
SIGUSR1 and kills no rank. A second signal ends the program at once.
defines: catch_signals, received_signal, agreed_signal
*/
#pragma once
#include "llmc/parallel/comm.h"
#include <signal.h>

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
