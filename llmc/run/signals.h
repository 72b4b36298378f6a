/*
Signals that end a run with a checkpoint: SIGINT, SIGTERM, SIGHUP (an ssh connection ends) and SIGUSR1 (mpirun passes it
on without killing its ranks a second later). A second signal ends the program at once.
defines: catch_signals, received_signal, agreed_signal
*/
#pragma once
#include "llmc/parallel/comm.h"
#include <omp.h>
#include <pthread.h>
#include <signal.h>

// set by the handler, which takes no argument
static volatile sig_atomic_t received_signal;  // 0: none
static volatile double received_at;            // seconds

// Two signals within a moment count as one: `timeout` sends its signal to the program and to the program's group.
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

// A signal that the program was started to ignore, as nohup and scripts do, stays ignored. The handler has its own
// stack, and OpenMP's other threads block these signals: in some matmuls of oneDNN 2.6 the stack pointer is inside an
// array, which a handler would overwrite.
static inline void catch_signals(void) {
    static char handler_stack[1 << 16];
    const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1}, count = sizeof signals / sizeof signals[0];
    sigset_t caught;
    sigemptyset(&caught);
    for (int i = 0; i < count; i++) { sigaddset(&caught, signals[i]); }
#pragma omp parallel
    if (omp_get_thread_num() > 0) { pthread_sigmask(SIG_BLOCK, &caught, NULL); }
    stack_t stack;
    memset(&stack, 0, sizeof stack);
    stack.ss_sp = handler_stack;
    stack.ss_size = sizeof handler_stack;
    sigaltstack(&stack, NULL);
    for (int i = 0; i < count; i++) {
        struct sigaction action, before;
        memset(&action, 0, sizeof action);
        action.sa_handler = handle_signal;
        action.sa_flags = SA_RESTART | SA_NODEFER | SA_ONSTACK;
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) { continue; }
        sigaction(signals[i], &action, NULL);
    }
}

// A signal that any rank received, 0 for none. All ranks call it together.
static inline int agreed_signal(Comm *world) { return (int)comm_max(received_signal, world); }
