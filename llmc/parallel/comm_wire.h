/*
TCP connections between rank 0 and every other rank, for ranks that were started without MPI: the connections of the
rendezvous (handshake.h), kept open. The connections carry comm_max between hosts. The end of a connection shows a rank
that the other rank has ended.
defines: Wire, wire_open, wire_by_tcp, wire_by_file, wire_close, wire_max, wire_check
*/
#pragma once
#include "llmc/parallel/handshake.h"

// The other ranks wait this many seconds longer than rank 0, because only rank 0 can name the missing ranks.
#define WIRE_GRACE 5.0

typedef struct {
    int rank, size;
    double timeout;  // seconds
    int *peers;      // sockets: on rank 0, peers[r] to rank r; on the others, peers[0] to rank 0
} Wire;

// rank 0's message in the files of wire_by_file
typedef struct {
    char payload[RENDEZVOUS_BYTES - 136], host[100];
    int port;
    unsigned char secret[32];
} WireHello;

// takes ownership of `peers` and its sockets, as made by rendezvous_tcp
static inline Wire *wire_open(int rank, int size, double timeout, int *peers) {
    Wire *w = (Wire *)xcalloc(1, sizeof *w);
    w->rank = rank;
    w->size = size;
    w->timeout = timeout;
    w->peers = peers;
    return w;
}

// rendezvous_tcp, keeping the connections
static inline Wire *wire_by_tcp(const Rendezvous *r, const char *server) {
    int *peers = (int *)xcalloc((size_t)r->size, sizeof *peers);
    rendezvous_tcp(r, server, peers);
    return wire_open(r->rank, r->size, r->timeout, peers);
}

// rendezvous_file, followed by TCP connections to a port of rank 0's host. The route of the other ranks to that host is
// not known, so rank 0 listens on all addresses. The files of the rendezvous hold the port and a new secret.
static inline Wire *wire_by_file(const Rendezvous *r, const char *folder) {
    WireHello hello;
    char here[sizeof hello.host] = "", server[sizeof hello.host + 16];
    memset(&hello, 0, sizeof hello);
    if (r->bytes > sizeof hello.payload) {
        run_error("a rendezvous payload of %zu bytes is too long: a bug", r->bytes);
    }
    int *peers = (int *)xcalloc((size_t)r->size, sizeof *peers);
    int listener = r->rank == 0 ? socket_listen_any_port(&hello.port) : -1;
    gethostname(here, sizeof here - 1);
    memcpy(hello.host, here, sizeof here);
    memcpy(hello.payload, r->payload, r->bytes);
    secret_random(hello.secret, sizeof hello.secret);
    Rendezvous by_file = *r, by_tcp = *r;
    by_file.payload = &hello;
    by_file.bytes = sizeof hello;
    rendezvous_file(&by_file, folder);
    hello.host[sizeof hello.host - 1] = 0;  // of a file that another program wrote
    memcpy(r->payload, hello.payload, r->bytes);
    Secret secret;
    secret.length = sizeof hello.secret;
    memcpy(secret.bytes, hello.secret, sizeof hello.secret);
    by_tcp.payload = NULL;
    by_tcp.bytes = 0;
    by_tcp.secret = &secret;
    by_tcp.secret_flag = "-pf";
    // localhost on rank 0's own machine, which may be unable to resolve its own name
    snprintf(server, sizeof server, "%s:%d", strcmp(hello.host, here) == 0 ? "localhost" : hello.host, hello.port);
    if (r->rank == 0) {
        rendezvous_serve(&by_tcp, listener, server, peers);
    } else {
        rendezvous_connect(&by_tcp, server, r->timeout, peers);  // rank 0 answers when all ranks have its files
    }
    explicit_bzero(&secret, sizeof secret);
    explicit_bzero(&hello, sizeof hello);
    return wire_open(r->rank, r->size, r->timeout, peers);
}

static inline void wire_close(Wire *w) {
    int first = w->rank == 0, end = w->rank == 0 ? w->size : 1;
    for (int i = first; i < end; i++) { close(w->peers[i]); }
    free(w->peers);
    free(w);
}

__attribute__((noreturn)) static inline void wire_lost(int rank) {
    run_error("rank %d has ended: see the last message of that rank", rank);
}

// receives a number from rank `rank`; false if none arrives within `timeout` seconds of the clock
static inline bool wire_receive(int peer, int rank, long long *value, AwakeClock *clock, double timeout) {
    for (size_t got = 0; got < sizeof *value;) {
        bool late = awake_seconds(clock) > timeout;
        if (!socket_ready(peer, POLLIN, late ? 0 : 100)) {
            if (late) { return false; }
            continue;
        }
        ssize_t n = recv(peer, (char *)value + got, sizeof *value - got, 0);
        if (n == 0 || (n < 0 && errno != EINTR)) { wire_lost(rank); }
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static inline void wire_send(int peer, int rank, long long value) {
    if (!socket_send(peer, &value, sizeof value)) { wire_lost(rank); }
}

// wire_max on rank 0: receives every rank's value and sends the maximum back
static inline long long wire_max_root(long long value, Wire *w) {
    AwakeClock clock = {0, 0};  // one for all ranks
    bool *received = (bool *)xcalloc((size_t)w->size, sizeof *received);
    received[0] = true;
    int missing = 0;
    for (int rank = 1; rank < w->size; rank++) {
        long long other;
        received[rank] = wire_receive(w->peers[rank], rank, &other, &clock, w->timeout);
        missing += !received[rank];
        if (received[rank] && other > value) { value = other; }
    }
    if (missing > 0) {
        char who[128];
        comm_name_missing(who, sizeof who, received, w->size);
        run_error("%s ha%s not answered for %g s; if nothing hangs there, give a longer --comm-timeout", who,
                  missing > 1 ? "ve" : "s", w->timeout);
    }
    for (int rank = 1; rank < w->size; rank++) { wire_send(w->peers[rank], rank, value); }
    free(received);
    return value;
}

// The maximum over all ranks. Stops the program if a rank has ended or does not answer.
static inline long long wire_max(long long value, Wire *w) {
    if (w->rank == 0) { return wire_max_root(value, w); }
    long long most;
    AwakeClock clock = {0, 0};
    wire_send(w->peers[0], 0, value);
    if (!wire_receive(w->peers[0], 0, &most, &clock, w->timeout + WIRE_GRACE)) {
        run_error("rank 0 has not answered for %g s; if nothing hangs there, give a longer --comm-timeout",
                  w->timeout + WIRE_GRACE);
    }
    return most;
}

// Stops the program if a connection's other end is closed. Data already received stays in the socket.
static inline void wire_check(const Wire *w) {
    int first = w->rank == 0, end = w->rank == 0 ? w->size : 1;
    for (int i = first; i < end; i++) {
        char byte;
        ssize_t n = recv(w->peers[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) { wire_lost(i); }
    }
}
