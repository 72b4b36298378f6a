/*
Rendezvous by TCP, with a handshake that authenticates both ends by a shared secret. rendezvous.h is the rendezvous by
files.
Rank 0 listens and accepts every other rank once. The connections stay open (comm_wire.h).
defines: rendezvous_tcp, rendezvous_serve, rendezvous_connect
  rank 0 -> rank r   HandshakeChallenge: a nonce of 32 random bytes
  rank r -> rank 0   HandshakeRequest: job, rank, size, a nonce of its own, and a tag
  rank 0 -> rank r   HandshakeReply: an answer, the payload and a tag
  rank r -> rank 0   a tag: rank r has accepted the reply
A tag is HMAC-SHA256, keyed with the secret, of a HandshakeTranscript: the kind of the message, both nonces, job, rank,
size, and the answer and the payload of a reply. A message that is replayed from another connection, or sent back to its
sender, has the wrong tag. The payload is encrypted: an XOR with tags of the kind "mask". Rank 0 answers a wrong tag
with HANDSHAKE_WRONG_SECRET and without a tag: anyone could send such an answer.
Rank 0 serves all clients at a time. A client has HANDSHAKE_SECONDS for the whole handshake. When HANDSHAKE_CLIENTS more
clients than ranks are connected, rank 0 drops the oldest client, and a client with a right tag only as a last resort.
Rank 0 prints a line for each of the first HANDSHAKE_LINES clients that it drops, and in the end the number of the
others.
After the rendezvous the connections are neither encrypted nor authenticated.
*/
#pragma once
#include "llmc/parallel/rendezvous.h"
#include "llmc/parallel/sockets.h"

#ifndef HANDSHAKE_SECONDS  // a test sets a shorter time
#define HANDSHAKE_SECONDS 10.0
#endif
enum { HANDSHAKE_CLIENTS = 64, HANDSHAKE_LINES = 10, HANDSHAKE_LISTENERS = 8 };

// HANDSHAKE_NONE: no answer of rank 0
typedef enum {
    HANDSHAKE_NONE,
    HANDSHAKE_ACCEPTED,
    HANDSHAKE_WRONG_SECRET,
    HANDSHAKE_WRONG_JOB,
    HANDSHAKE_WRONG_SIZE,
    HANDSHAKE_DUPLICATE
} HandshakeAnswer;

typedef struct {
    unsigned char nonce[32];
} HandshakeChallenge;

typedef struct {
    RendezvousMessage who;  // number and payload are 0
    unsigned char nonce[32], tag[SECRET_TAG];
} HandshakeRequest;

typedef struct {
    uint64_t answer;
    unsigned char payload[RENDEZVOUS_BYTES], tag[SECRET_TAG];
} HandshakeReply;

typedef struct {
    char kind[8];
    HandshakeChallenge challenge;
    unsigned char nonce[32];
    RendezvousMessage who;
    uint64_t answer;
    unsigned char payload[RENDEZVOUS_BYTES];
} HandshakeTranscript;

// tag = the tag of a message of this kind after a challenge and a request; reply: NULL for none
static inline void handshake_tag(unsigned char *tag, const Rendezvous *r, const char *kind,
                                 const HandshakeChallenge *challenge, const HandshakeRequest *request,
                                 const HandshakeReply *reply) {
    HandshakeTranscript t;
    memset(&t, 0, sizeof t);
    snprintf(t.kind, sizeof t.kind, "%s", kind);
    t.challenge = *challenge;
    memcpy(t.nonce, request->nonce, sizeof t.nonce);
    t.who = request->who;
    if (reply) {
        t.answer = reply->answer;
        memcpy(t.payload, reply->payload, sizeof t.payload);
    }
    secret_tag(tag, r->secret, &t, sizeof t);
}

// whether a message has the tag of its kind
static inline bool handshake_has_tag(const unsigned char *tag, const Rendezvous *r, const char *kind,
                                     const HandshakeChallenge *challenge, const HandshakeRequest *request,
                                     const HandshakeReply *reply) {
    unsigned char expected[SECRET_TAG];
    handshake_tag(expected, r, kind, challenge, request, reply);
    return secret_equal(tag, expected);
}

// Masks the payload of a reply, or unmasks it.
static inline void handshake_mask(HandshakeReply *reply, const Rendezvous *r, const HandshakeChallenge *challenge,
                                  const HandshakeRequest *request) {
    unsigned char mask[SECRET_TAG];
    HandshakeReply block;
    memset(&block, 0, sizeof block);
    for (int i = 0; i < RENDEZVOUS_BYTES; i++) {
        if (i % SECRET_TAG == 0) {
            block.answer = (uint64_t)i;
            handshake_tag(mask, r, "mask", challenge, request, &block);
        }
        reply->payload[i] ^= mask[i % SECRET_TAG];
    }
}

// ---- rank 0

typedef struct {
    int socket;
    char from[80];  // its address
    double deadline;
    bool answered;  // the reply is sent: the next message is the acknowledgement
    size_t got;     // bytes of the present message
    HandshakeChallenge challenge;
    HandshakeRequest request;
    unsigned char acknowledgement[SECRET_TAG];
} HandshakeClient;

typedef struct {
    const Rendezvous *rendezvous;
    int *peers;     // (size) output: the connection of each rank
    bool *present;  // (size) ranks that are connected
    int missing, dropped;
    int listeners[HANDSHAKE_LISTENERS], num_listeners;
    HandshakeClient *clients;
    int num_clients, max_clients;
} HandshakeServer;

// Listens at the addresses of `server` that this machine has, and at no other.
static inline void handshake_listen(HandshakeServer *s, const char *server) {
    struct addrinfo *addresses = address_resolve(server);
    int error = 0;
    for (const struct addrinfo *a = addresses; a && s->num_listeners < HANDSHAKE_LISTENERS; a = a->ai_next) {
        int listener = socket_listen_at(a, false);
        if (listener >= 0) { s->listeners[s->num_listeners++] = listener; }
        if (listener < 0 && (!error || errno != EADDRNOTAVAIL)) { error = errno; }
    }
    freeaddrinfo(addresses);
    if (s->num_listeners == 0 && error == EADDRNOTAVAIL) {
        input_error("-ps %s is not an address of this machine: give an address of the machine of rank 0", server);
    }
    if (s->num_listeners == 0) {
        input_error("rank 0 cannot listen at -ps %s (%s); choose another port or address", server, strerror(error));
    }
}

// whether a name other than localhost has only an IPv4 loopback address
static inline bool handshake_is_loopback(const char *host, const struct addrinfo *addresses) {
    if (strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0) { return false; }
    if (addresses->ai_next || addresses->ai_family != AF_INET) { return false; }
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)addresses->ai_addr;
    return ntohl(four->sin_addr.s_addr) >> 24 == 127;
}

// /etc/hosts may give a machine's own name a loopback address, as Debian's installer does.
static inline void handshake_note_loopback(const char *server) {
    char host[256];
    struct addrinfo *addresses = address_resolve(server);
    address_parse(host, server);
    if (handshake_is_loopback(host, addresses)) {
        fprintf(stderr,
                "train_gpt2: -ps %s is a loopback address on this machine, which other machines cannot reach: for "
                "ranks on several machines, give the address of a network\n",
                server);
    }
    freeaddrinfo(addresses);
}

// Closes the connection of client i and prints the reason, printf-style.
__attribute__((format(printf, 3, 4))) static inline void handshake_drop(HandshakeServer *s, int i, const char *format,
                                                                        ...) {
    char why[256];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (s->dropped++ < HANDSHAKE_LINES) {
        fprintf(stderr, "train_gpt2: rank 0 dropped a connection from %s: %s\n", s->clients[i].from, why);
    }
    close(s->clients[i].socket);
    s->clients[i] = s->clients[--s->num_clients];
}

// whether the other end has closed a connection
static inline bool handshake_closed(int peer) {
    char byte;
    ssize_t n = recv(peer, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

// A rank needs milliseconds, so the oldest client is the least likely to be one. A client that has proved itself stays:
// its rank does not try again.
static inline void handshake_drop_oldest(HandshakeServer *s) {
    int oldest = 0;
    if (s->num_clients == 0) {  // the ranks themselves have all file descriptors
        rendezvous_pause();
        return;
    }
    for (int i = 1; i < s->num_clients; i++) {
        const HandshakeClient *c = &s->clients[i], *o = &s->clients[oldest];
        if (c->answered == o->answered ? c->deadline < o->deadline : o->answered) { oldest = i; }
    }
    handshake_drop(s, oldest, "it is silent, and too many clients are connected (%d)", s->num_clients);
}

// Accepts a connection and sends the challenge.
static inline void handshake_accept(HandshakeServer *s, int listener) {
    if (s->num_clients == s->max_clients) { handshake_drop_oldest(s); }
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    int peer = accept4(listener, (struct sockaddr *)&from, &length, SOCK_CLOEXEC);
    if (peer < 0) {
        if (errno == EMFILE || errno == ENFILE) { handshake_drop_oldest(s); }  // a later call succeeds
        return;
    }
    HandshakeClient *c = &s->clients[s->num_clients++];
    memset(c, 0, sizeof *c);
    c->socket = peer;
    address_name(c->from, sizeof c->from, (struct sockaddr *)&from, length);
    c->deadline = now_seconds() + HANDSHAKE_SECONDS;
    secret_random(&c->challenge, sizeof c->challenge);
    socket_send(peer, &c->challenge, sizeof c->challenge);  // a failure is seen when the request is read
}

// the answer to a request
static inline HandshakeAnswer handshake_check(const HandshakeServer *s, const HandshakeClient *c) {
    const Rendezvous *r = s->rendezvous;
    const HandshakeRequest *request = &c->request;
    const uint64_t rank = request->who.rank;
    if (!handshake_has_tag(request->tag, r, "request", &c->challenge, request, NULL)) { return HANDSHAKE_WRONG_SECRET; }
    if (rank == 0 || rank >= (uint64_t)r->size || request->who.size != (uint64_t)r->size) {
        return HANDSHAKE_WRONG_SIZE;
    }
    RendezvousMessage expected = rendezvous_request(r, (int)rank, 0);
    if (memcmp(&request->who, &expected, sizeof expected) != 0) { return HANDSHAKE_WRONG_JOB; }
    return s->present[rank] && !handshake_closed(s->peers[rank]) ? HANDSHAKE_DUPLICATE : HANDSHAKE_ACCEPTED;
}

// Sends a reply. Without the secret, the client gets one word.
static inline void handshake_reply(const HandshakeServer *s, HandshakeClient *c, HandshakeAnswer answer) {
    HandshakeReply reply;
    const Rendezvous *r = s->rendezvous;
    memset(&reply, 0, sizeof reply);
    reply.answer = (uint64_t)answer;
    if (answer == HANDSHAKE_ACCEPTED) {
        if (r->bytes > 0) { memcpy(reply.payload, r->payload, r->bytes); }
        handshake_mask(&reply, r, &c->challenge, &c->request);
    }
    if (answer != HANDSHAKE_WRONG_SECRET) { handshake_tag(reply.tag, r, "reply", &c->challenge, &c->request, &reply); }
    socket_send(c->socket, &reply, sizeof reply);
    c->answered = true;
    c->got = 0;
}

// Answers the whole request of client i, and drops all clients but an accepted one.
static inline void handshake_answer(HandshakeServer *s, int i) {
    HandshakeClient *c = &s->clients[i];
    const unsigned long long rank = c->request.who.rank, size = c->request.who.size;
    const int own_size = s->rendezvous->size;
    HandshakeAnswer answer = handshake_check(s, c);
    handshake_reply(s, c, answer);
    switch (answer) {
    case HANDSHAKE_WRONG_SECRET:
        handshake_drop(s, i, "as rank %llu it has another secret than %s; give all ranks the same", rank,
                       s->rendezvous->secret_flag);
        break;
    case HANDSHAKE_WRONG_SIZE:
        handshake_drop(s, i, "it is rank %llu of %llu, expected ranks 1 to %d", rank, size, own_size - 1);
        break;
    case HANDSHAKE_WRONG_JOB:
        handshake_drop(s, i, "rank %llu is of another job than '%s'", rank, s->rendezvous->job);
        break;
    case HANDSHAKE_DUPLICATE:
        handshake_drop(s, i, "rank %llu is connected already; give each rank its own -pr", rank);
        break;
    default: break;
    }
}

// Client i has acknowledged the reply, and becomes its rank.
static inline void handshake_admit(HandshakeServer *s, int i) {
    HandshakeClient *c = &s->clients[i];
    const int rank = (int)c->request.who.rank;
    if (!handshake_has_tag(c->acknowledgement, s->rendezvous, "accept", &c->challenge, &c->request, NULL)) {
        handshake_drop(s, i, "as rank %d its acknowledgement shows that it does not know the secret", rank);
        return;
    }
    if (s->present[rank] && !handshake_closed(s->peers[rank])) {
        handshake_drop(s, i, "rank %d is connected already; give each rank its own -pr", rank);
        return;
    }
    if (s->present[rank]) { close(s->peers[rank]); }  // the rank was started again
    s->missing -= !s->present[rank];
    s->present[rank] = true;
    s->peers[rank] = c->socket;
    socket_no_delay(c->socket);
    s->clients[i] = s->clients[--s->num_clients];
}

// Reads what client i has sent. readable: there are bytes, or the end of the connection.
static inline void handshake_receive(HandshakeServer *s, int i, bool readable) {
    HandshakeClient *c = &s->clients[i];
    unsigned char *message = c->answered ? c->acknowledgement : (unsigned char *)&c->request;
    const size_t bytes = c->answered ? sizeof c->acknowledgement : sizeof c->request;
    const char *what = c->answered ? "an acknowledgement" : "a request";
    ssize_t n = readable ? recv(c->socket, message + c->got, bytes - c->got, MSG_DONTWAIT) : -1;
    c->got += n > 0 ? (size_t)n : 0;
    if (n == 0 || (readable && n < 0 && errno != EAGAIN && errno != EINTR)) {
        handshake_drop(s, i, "it closed the connection after %zu of the %zu bytes of %s", c->got, bytes, what);
    } else if (c->got == bytes && c->answered) {
        handshake_admit(s, i);
    } else if (c->got == bytes) {
        handshake_answer(s, i);
    } else if (now_seconds() > c->deadline) {  // after reading, since rank 0 itself may be late
        handshake_drop(s, i, "it sent %zu of the %zu bytes of %s within %g s", c->got, bytes, what, HANDSHAKE_SECONDS);
    }
}

// Waits for clients and messages, and handles each that has come.
static inline void handshake_poll(HandshakeServer *s, struct pollfd *ready) {
    const int listeners = s->num_listeners, clients = s->num_clients, sockets = listeners + clients;
    for (int i = 0; i < sockets; i++) {
        int fd = i < listeners ? s->listeners[i] : s->clients[i - listeners].socket;
        ready[i] = (struct pollfd){fd, POLLIN, 0};
    }
    if (poll(ready, (nfds_t)sockets, 100) < 0) { return; }  // a signal
    for (int i = clients - 1; i >= 0; i--) {  // backwards: the last client takes the place of one that leaves
        handshake_receive(s, i, ready[listeners + i].revents != 0);
    }
    for (int i = 0; i < listeners; i++) {
        if (ready[i].revents) { handshake_accept(s, s->listeners[i]); }
    }
}

static inline void handshake_close(HandshakeServer *s) {
    for (int i = 0; i < s->num_clients; i++) { close(s->clients[i].socket); }
    for (int i = 0; i < s->num_listeners; i++) { close(s->listeners[i]); }
    if (s->dropped > HANDSHAKE_LINES) {
        fprintf(stderr, "train_gpt2: rank 0 dropped %d more connections\n", s->dropped - HANDSHAKE_LINES);
    }
    free(s->clients);
    free(s->present);
}

// Rank 0 answers all other ranks. listener: an open one, or -1 to listen at `where`. where: the address of rank 0.
// peers: as in rendezvous_tcp.
static inline void rendezvous_serve(const Rendezvous *r, int listener, const char *where, int *peers) {
    HandshakeServer s;
    double deadline = now_seconds() + r->timeout;
    memset(&s, 0, sizeof s);
    s.rendezvous = r;
    s.peers = peers;
    s.missing = r->size - 1;
    s.max_clients = r->size + HANDSHAKE_CLIENTS;
    s.clients = (HandshakeClient *)xcalloc((size_t)s.max_clients, sizeof *s.clients);
    s.present = (bool *)xcalloc((size_t)r->size, sizeof *s.present);
    s.present[0] = true;
    struct pollfd *ready = (struct pollfd *)xcalloc(HANDSHAKE_LISTENERS + (size_t)s.max_clients, sizeof *ready);
    if (listener >= 0) {
        s.listeners[s.num_listeners++] = listener;
    } else {
        handshake_listen(&s, where);
    }
    while (s.missing > 0) {
        handshake_poll(&s, ready);
        if (s.missing > 0) { rendezvous_check_deadline(r, deadline, s.present, where); }
    }
    free(ready);
    handshake_close(&s);
}

// ---- the other ranks

// Sends the request to a connected rank 0 and receives the reply; HANDSHAKE_NONE if there is none before the deadline.
static inline HandshakeAnswer handshake_try(const Rendezvous *r, int peer, double deadline) {
    HandshakeChallenge challenge;
    HandshakeRequest request;
    HandshakeReply reply;
    unsigned char acknowledgement[SECRET_TAG];
    if (!socket_receive(peer, &challenge, sizeof challenge, deadline)) { return HANDSHAKE_NONE; }
    memset(&request, 0, sizeof request);
    request.who = rendezvous_request(r, r->rank, 0);
    secret_random(request.nonce, sizeof request.nonce);
    handshake_tag(request.tag, r, "request", &challenge, &request, NULL);
    if (!socket_send(peer, &request, sizeof request)) { return HANDSHAKE_NONE; }
    if (!socket_receive(peer, &reply, sizeof reply, deadline)) { return HANDSHAKE_NONE; }
    if (!handshake_has_tag(reply.tag, r, "reply", &challenge, &request, &reply)) { return HANDSHAKE_WRONG_SECRET; }
    if (reply.answer != HANDSHAKE_ACCEPTED) {
        return reply.answer <= HANDSHAKE_DUPLICATE ? (HandshakeAnswer)reply.answer : HANDSHAKE_NONE;
    }
    handshake_mask(&reply, r, &challenge, &request);
    if (r->bytes > 0) { memcpy(r->payload, reply.payload, r->bytes); }
    handshake_tag(acknowledgement, r, "accept", &challenge, &request, NULL);
    return socket_send(peer, acknowledgement, sizeof acknowledgement) ? HANDSHAKE_ACCEPTED : HANDSHAKE_NONE;
}

// One attempt of `seconds` at each address in turn, because rank 0 may not listen yet. *peer = the connection, or -1.
// Returns the last answer.
static inline HandshakeAnswer handshake_try_any(const Rendezvous *r, const struct addrinfo *addresses, double seconds,
                                                double deadline, int *peer) {
    HandshakeAnswer last = HANDSHAKE_NONE;
    for (const struct addrinfo *a = addresses; a; a = a->ai_next) {
        *peer = socket_connect(a, deadline);
        if (*peer < 0) { continue; }
        double end = now_seconds() + seconds;
        HandshakeAnswer answer = handshake_try(r, *peer, end < deadline ? end : deadline);
        if (answer == HANDSHAKE_ACCEPTED) { return answer; }
        if (answer != HANDSHAKE_NONE) { last = answer; }
        close(*peer);
    }
    *peer = -1;
    return last;
}

// Stops if trying again is in vain. Another job may end and leave the port to this one.
static inline void handshake_check_answer(const Rendezvous *r, HandshakeAnswer answer, const char *server) {
    if (answer == HANDSHAKE_WRONG_SECRET) {
        input_error("rank %d of %d and rank 0 at %s do not share a secret: give all ranks the same %s", r->rank,
                    r->size, server, r->secret_flag);
    }
    if (answer == HANDSHAKE_WRONG_SIZE) {
        input_error("rank 0 at %s does not expect rank %d of %d: give all ranks the same -pn", server, r->rank,
                    r->size);
    }
    if (answer == HANDSHAKE_DUPLICATE) {
        input_error("another process is connected to rank 0 at %s as rank %d of %d: give each rank its own -pr", server,
                    r->rank, r->size);
    }
}

// Connects to rank 0 at any address of `server`, retrying until rank 0 listens. If an address has not answered within
// `seconds`, the next is tried.
static inline void rendezvous_connect(const Rendezvous *r, const char *server, double seconds, int *peers) {
    double deadline = now_seconds() + r->timeout;
    struct addrinfo *addresses = address_resolve(server);
    HandshakeAnswer answer;
    while ((answer = handshake_try_any(r, addresses, seconds, deadline, &peers[0])) != HANDSHAKE_ACCEPTED) {
        handshake_check_answer(r, answer, server);
        rendezvous_check_deadline(r, deadline, NULL, server);
        rendezvous_pause();
    }
    socket_no_delay(peers[0]);
    freeaddrinfo(addresses);
}

// Copies r->payload from rank 0, at `server` (address_parse), to every rank. The connections stay open in peers
// (size): on rank 0, peers[r] to rank r; on the others, peers[0] to rank 0.
static inline void rendezvous_tcp(const Rendezvous *r, const char *server, int *peers) {
    rendezvous_check_size(r);
    if (r->rank > 0) {
        rendezvous_connect(r, server, HANDSHAKE_SECONDS, peers);
        return;
    }
    handshake_note_loopback(server);
    rendezvous_serve(r, -1, server, peers);
}
