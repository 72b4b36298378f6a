/*
A wire from rank 0 to every other process that was started without MPI: the connections over which they met
(rendezvous.h), kept open. Numbers go over it that only hosts need; and where one end goes away, the other knows.
defines: Wire, wire_open, wire_by_tcp, wire_by_file, wire_close, wire_max, wire_check
*/
#pragma once
#include "llmc/parallel/rendezvous.h"

// seconds that the others wait longer than rank 0, which knows who is missing and is to speak first
#define WIRE_GRACE 5.0

typedef struct {
    int rank, size;
    double timeout;  // seconds
    int *peers;      // sockets: rank 0's to rank r, the others' [0] to rank 0
} Wire;

// takes over the sockets, of rendezvous_tcp, and `peers`
static inline Wire *wire_open(int rank, int size, double timeout, int *peers) {
    Wire *w = (Wire *)xcalloc(1, sizeof *w);
    w->rank = rank, w->size = size, w->timeout = timeout, w->peers = peers;
    return w;
}

// Gives m->answer of rank 0 to every rank, as rendezvous_tcp does, and keeps the connections.
static inline Wire *wire_by_tcp(const Meeting *m, const char *server) {
    int *peers = (int *)xcalloc((size_t)m->size, sizeof *peers);
    rendezvous_tcp(m, server, peers);
    return wire_open(m->rank, m->size, m->timeout, peers);
}

// what rank 0 tells the others by files
typedef struct {
    char answer[RENDEZVOUS_BYTES - 104], host[100];
    int port;  // the wire begins at that of the host
} WireGreeting;

// The same as rendezvous_file does; the files also say where the wire begins.
static inline Wire *wire_by_file(const Meeting *m, const char *folder) {
    WireGreeting hello;
    char here[sizeof hello.host] = "", server[sizeof hello.host + 16];
    memset(&hello, 0, sizeof hello);
    if (m->bytes > sizeof hello.answer) { run_error("an answer of %zu bytes to a rendezvous: a bug", m->bytes); }
    int *peers = (int *)xcalloc((size_t)m->size, sizeof *peers);
    int listener = m->rank == 0 ? meeting_open_port(&hello.port) : -1;
    gethostname(here, sizeof here - 1);
    memcpy(hello.host, here, sizeof here);
    memcpy(hello.answer, m->answer, m->bytes);
    Meeting files = *m, wire = *m;
    files.answer = &hello, files.bytes = sizeof hello;
    wire.answer = NULL, wire.bytes = 0;
    rendezvous_file(&files, folder);
    memcpy(m->answer, hello.answer, m->bytes);
    // a machine that meets itself need not be able to look up its own name
    snprintf(server, sizeof server, "%s:%d", strcmp(hello.host, here) == 0 ? "localhost" : hello.host, hello.port);
    if (m->rank == 0) {
        meeting_gather(&wire, listener, server, peers);
    } else {
        meeting_visit(&wire, server, peers);
    }
    return wire_open(m->rank, m->size, m->timeout, peers);
}

static inline void wire_close(Wire *w) {
    int first = w->rank == 0, end = w->rank == 0 ? w->size : 1;
    for (int i = first; i < end; i++) { close(w->peers[i]); }
    free(w->peers);
    free(w);
}

__attribute__((noreturn)) static inline void wire_lost(int rank) {
    run_error("rank %d has ended: what it last said tells why", rank);
}

// a number from the peer, which is of rank `rank`; false if none has come until the deadline
static inline bool wire_receive(int peer, int rank, long long *value, double deadline) {
    for (size_t got = 0; got < sizeof *value;) {
        double left = deadline - now_seconds();
        if (!meeting_ready(peer, POLLIN, left > 0 ? (int)(left * 1e3) + 1 : 0)) { return false; }
        ssize_t n = recv(peer, (char *)value + got, sizeof *value - got, 0);
        if (n == 0 || (n < 0 && errno != EINTR)) { wire_lost(rank); }
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static inline void wire_send(int peer, int rank, long long value) {
    if (!meeting_send(peer, &value, sizeof value)) { wire_lost(rank); }
}

// rank 0's part of wire_max: asks all and tells all
static inline long long wire_gather(long long value, Wire *w) {
    double deadline = now_seconds() + w->timeout;
    bool *came = (bool *)xcalloc((size_t)w->size, sizeof *came);
    came[0] = true;
    int missing = 0;
    for (int rank = 1; rank < w->size; rank++) {
        long long other;
        came[rank] = wire_receive(w->peers[rank], rank, &other, deadline);
        missing += !came[rank];
        if (came[rank] && other > value) { value = other; }
    }
    if (missing > 0) {
        char who[128];
        comm_name_missing(who, sizeof who, came, w->size);
        run_error("%s ha%s not answered for %g s; if nothing hangs there, give a longer --comm-timeout", who,
                  missing > 1 ? "ve" : "s", w->timeout);
    }
    for (int rank = 1; rank < w->size; rank++) { wire_send(w->peers[rank], rank, value); }
    free(came);
    return value;
}

// The largest of the values that all ranks give. Stops the program where a rank has ended, or does not answer.
static inline long long wire_max(long long value, Wire *w) {
    if (w->rank == 0) { return wire_gather(value, w); }
    long long most;
    wire_send(w->peers[0], 0, value);
    if (!wire_receive(w->peers[0], 0, &most, now_seconds() + w->timeout + WIRE_GRACE)) {
        run_error("rank 0 has not answered for %g s; if nothing hangs there, give a longer --comm-timeout",
                  w->timeout + WIRE_GRACE);
    }
    return most;
}

// Stops the program if the other end of a wire has gone; what it has sent stays there to be received.
static inline void wire_check(const Wire *w) {
    int first = w->rank == 0, end = w->rank == 0 ? w->size : 1;
    for (int i = first; i < end; i++) {
        char byte;
        ssize_t n = recv(w->peers[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) { wire_lost(i); }
    }
}
