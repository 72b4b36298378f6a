/*
Rendezvous of ranks that were started without MPI: every rank gets a few bytes from rank 0, such as NCCL's id.
defines: Rendezvous, rendezvous_file, rendezvous_tcp, rendezvous_job, rendezvous_serve_all, rendezvous_connect,
         socket_ready, socket_send, socket_listen_any_port
  file   in a shared folder. Rank r writes a request with a random number to JOB.ask.r. Rank 0 copies the number into
         its reply, JOB.answer.r. Rank r accepts only a reply to its own number, and removes both files. Requests and
         replies of an earlier run are therefore ignored.
  tcp    rank 0 listens at `server`. Every other rank connects, sends a request with job and rank, receives the reply
         and acknowledges it with one byte. A rank that closes the connection earlier counts as missing. The connections
         stay open (comm_wire.h).
Files are written under another name and renamed, so they are always complete. After `timeout` seconds a rank stops with
a sentence that names the missing ranks.
Neither way is encrypted. Anyone who can write to the folder or reach the port can take part.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/parallel/comm.h"
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RENDEZVOUS_BYTES = 256 };  // maximum payload

typedef struct {
    int rank, size;
    const char *job;  // the same on all ranks, different in other jobs on the same folder or port
    double timeout;   // seconds
    void *payload;    // input on rank 0, output on the other ranks; NULL if `bytes` is 0
    size_t bytes;
} Rendezvous;

// A rank's request; rank 0 sends the message back with the payload. A job name of 120 or more characters is cut at the
// same place on every rank.
typedef struct {
    char job[120];
    uint64_t rank, size, number;
    char payload[RENDEZVOUS_BYTES];  // zeros in a request
} RendezvousMessage;

static inline RendezvousMessage rendezvous_request(const Rendezvous *r, int rank, uint64_t number) {
    RendezvousMessage request;
    memset(&request, 0, sizeof request);
    snprintf(request.job, sizeof request.job, "%s", r->job);
    request.rank = (uint64_t)rank;
    request.size = (uint64_t)r->size;
    request.number = number;
    return request;
}

static inline RendezvousMessage rendezvous_reply(const Rendezvous *r, RendezvousMessage message) {
    if (r->bytes > 0) { memcpy(message.payload, r->payload, r->bytes); }
    return message;
}

// copies the payload of a reply to this request; false if the reply is to another request
static inline bool rendezvous_accept(const Rendezvous *r, const RendezvousMessage *request,
                                     const RendezvousMessage *reply) {
    if (memcmp(request, reply, offsetof(RendezvousMessage, payload)) != 0) { return false; }
    if (r->bytes > 0) { memcpy(r->payload, reply->payload, r->bytes); }
    return true;
}

// Stops after the deadline. present[rank]: the ranks that are connected; NULL: only rank 0 is missing.
static inline void rendezvous_check_deadline(const Rendezvous *r, double deadline, const bool *present,
                                             const char *where) {
    if (now_seconds() < deadline) { return; }
    char who[128] = "rank 0";
    if (present) { comm_name_missing(who, sizeof who, present, r->size); }
    run_error(
        "job '%s', rank %d of %d: %s did not connect through %s within %g s; are all ranks running, with the same "
        "job, number of ranks, and folder or address?",
        r->job, r->rank, r->size, who, where, r->timeout);
}

// Slurm's name of the ranks that started together: job and job step, since two steps may run at a time.
static inline void rendezvous_job(char *name, size_t room) {
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    if (!step) { step = getenv("SLURM_STEPID"); }
    snprintf(name, room, "%s%s%s", job ? job : "train_gpt2", job && step ? "." : "", job && step ? step : "");
}

static inline void rendezvous_check_size(const Rendezvous *r) {
    if (r->bytes > RENDEZVOUS_BYTES) { run_error("a rendezvous payload of %zu bytes is too long: a bug", r->bytes); }
}

static inline void rendezvous_pause(void) { usleep(10000); }

// ---- by files

static inline void rendezvous_path(char *path, const Rendezvous *r, const char *folder, const char *what, int rank) {
    format_path(path, "%s/%s.%s.%d", folder, r->job, what, rank);
}

static inline bool rendezvous_read(const char *path, void *data, size_t bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) { return false; }
    bool whole = fread(data, 1, bytes, file) == bytes;
    fclose(file);
    return whole;
}

static inline void rendezvous_write(const char *path, const void *data, size_t bytes) {
    char part[PATH_LENGTH];
    format_path(part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    bool written = file && fwrite(data, 1, bytes, file) == bytes;
    if (!file || fclose(file) != 0 || !written || rename(part, path) != 0) {
        input_error("%s: could not be written (%s); give a folder that all ranks can write to", path, strerror(errno));
    }
}

// Answers a new request of `rank`. *answered is the number of the last answered request, or 0. True if the rank has
// removed the request after accepting the reply.
static inline bool rendezvous_serve_file(const Rendezvous *r, const char *folder, int rank, uint64_t *answered) {
    char request_path[PATH_LENGTH], reply_path[PATH_LENGTH];
    RendezvousMessage request;
    rendezvous_path(request_path, r, folder, "ask", rank);
    rendezvous_path(reply_path, r, folder, "answer", rank);
    if (!rendezvous_read(request_path, &request, sizeof request)) {
        return *answered != 0 && access(request_path, F_OK) != 0;
    }
    RendezvousMessage expected = rendezvous_request(r, rank, request.number);
    if (memcmp(&request, &expected, sizeof request) == 0 && request.number != *answered) {
        RendezvousMessage reply = rendezvous_reply(r, request);
        rendezvous_write(reply_path, &reply, sizeof reply);
        *answered = request.number;
    }
    return false;
}

static inline void rendezvous_request_by_file(const Rendezvous *r, const char *folder, double deadline) {
    char request_path[PATH_LENGTH], reply_path[PATH_LENGTH];
    uint64_t number = 0;
    RendezvousMessage reply;
    while (number == 0) {
        if (getrandom(&number, sizeof number, 0) != sizeof number) { number = 0; }
    }
    RendezvousMessage request = rendezvous_request(r, r->rank, number);
    rendezvous_path(request_path, r, folder, "ask", r->rank);
    rendezvous_path(reply_path, r, folder, "answer", r->rank);
    rendezvous_write(request_path, &request, sizeof request);
    while (!rendezvous_read(reply_path, &reply, sizeof reply) || !rendezvous_accept(r, &request, &reply)) {
        rendezvous_check_deadline(r, deadline, NULL, folder);
        rendezvous_pause();
    }
    remove(reply_path);
    remove(request_path);  // last, because rank 0 takes a missing request for accepted
}

// Copies r->payload from rank 0 to every rank; rank 0 returns after the last rank has accepted the payload.
static inline void rendezvous_file(const Rendezvous *r, const char *folder) {
    double deadline = now_seconds() + r->timeout;
    rendezvous_check_size(r);
    if (r->rank > 0) {
        rendezvous_request_by_file(r, folder, deadline);
        return;
    }
    uint64_t *answered = (uint64_t *)xcalloc((size_t)r->size, sizeof *answered);
    bool *present = (bool *)xcalloc((size_t)r->size, sizeof *present);
    present[0] = true;
    for (int missing = r->size - 1; missing > 0; rendezvous_pause()) {
        for (int rank = 1; rank < r->size; rank++) {
            if (!present[rank] && rendezvous_serve_file(r, folder, rank, &answered[rank])) {
                present[rank] = true;
                missing--;
            }
        }
        if (missing > 0) { rendezvous_check_deadline(r, deadline, present, folder); }
    }
    free(answered);
    free(present);
}

// ---- by TCP

#define CONNECT_SECONDS 3.0  // per address, so that an address without an answer does not delay the next one

#define LLMC_PORT 12345  // the port if -ps gives none, as in llm.c

// Parses "HOST:PORT", "[HOST]:PORT", "HOST" or "[HOST]": fills host[256] and returns the port. An IPv6 address needs
// brackets.
static inline int address_parse(char *host, const char *server) {
    if (server[0] != '[' && strchr(server, ':') != strrchr(server, ':')) {
        input_error(
            "found '%s' as the address of rank 0, expected HOST:PORT; an IPv6 address takes brackets: [fe80::2] "
            "or [fe80::2]:%d",
            server, LLMC_PORT);
    }
    const char *bracket = strrchr(server, ']'), *colon = strrchr(bracket ? bracket : server, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : LLMC_PORT;
    size_t length = colon ? (size_t)(colon - server) : strlen(server);
    if (port < 1 || port > 65535 || (end && *end) || length == 0 || length >= 256) {
        input_error("found '%s' as the address of rank 0, expected HOST:PORT, or HOST for port %d", server, LLMC_PORT);
    }
    bool bracketed = server[0] == '[' && server[length - 1] == ']';
    snprintf(host, 256, "%.*s", (int)(bracketed ? length - 2 : length), server + bracketed);
    return (int)port;
}

// all addresses of "HOST:PORT" or "HOST"; the caller frees them with freeaddrinfo
static inline struct addrinfo *address_resolve(const char *server) {
    char host[256], service[16];
    snprintf(service, sizeof service, "%d", address_parse(host, server));
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_family = AF_UNSPEC;
    int error = getaddrinfo(host, service, &hints, &found);
    if (error != 0) { input_error("the address of rank 0, %s, cannot be resolved: %s", server, gai_strerror(error)); }
    return found;
}

// Waits until the socket is readable or writable; false after the timeout. A signal ends poll but not this wait.
static inline bool socket_ready(int socket, short events, int milliseconds) {
    struct pollfd ready = {socket, events, 0};
    double end = now_seconds() + 1e-3 * milliseconds;
    int count;
    while ((count = poll(&ready, 1, milliseconds)) < 0 && errno == EINTR) {
        double left = end - now_seconds();
        milliseconds = left > 0 ? (int)(left * 1e3) + 1 : 0;
    }
    return count > 0;
}

// receives all bytes; false if the other end closes the connection or is silent for two seconds
static inline bool socket_receive(int socket, void *data, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t n = socket_ready(socket, POLLIN, 2000) ? recv(socket, (char *)data + got, bytes - got, 0) : 0;
        if (n == 0 || (n < 0 && errno != EINTR)) { return false; }
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

// for few bytes, which fit the socket's buffer
static inline bool socket_send(int socket, const void *data, size_t bytes) {
    return send(socket, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

// Listens on all addresses of one family; an IPv6 socket accepts IPv4 too. Port 0 takes a free port. -1 on failure.
static inline int socket_listen_family(int family, int port) {
    int one = 1, zero = 0, listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    memset(&six, 0, sizeof six);
    memset(&four, 0, sizeof four);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons((uint16_t)port);
    six.sin6_addr = in6addr_any;
    four.sin_family = AF_INET;
    four.sin_port = htons((uint16_t)port);
    four.sin_addr.s_addr = htonl(INADDR_ANY);
    bool is_six = family == AF_INET6;
    if (listener < 0) { return -1; }
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (is_six) { setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero); }
    if (bind(listener, is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four,
             is_six ? sizeof six : sizeof four) == 0 &&
        listen(listener, SOMAXCONN) == 0) {
        return listener;
    }
    int error = errno;
    close(listener);
    errno = error;
    return -1;
}

static inline int socket_listen(int port) {
    int listener = socket_listen_family(AF_INET6, port);
    if (listener < 0) { listener = socket_listen_family(AF_INET, port); }
    if (listener < 0) {
        input_error("rank 0 cannot listen on port %d (%s); choose another port", port, strerror(errno));
    }
    return listener;
}

// Listens on a free port and stores its number.
static inline int socket_listen_any_port(int *port) {
    int listener = socket_listen(0);
    struct sockaddr_in6 own;  // sin6_port is at the offset of sin_port
    socklen_t length = sizeof own;
    getsockname(listener, (struct sockaddr *)&own, &length);
    *port = ntohs(own.sin6_port);
    return listener;
}

// Answers the next connection. Returns its rank and stores the connection; 0 if it is not of this job.
static inline int rendezvous_serve_tcp(const Rendezvous *r, int listener, int *connection) {
    RendezvousMessage request;
    int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0) { return 0; }
    if (socket_receive(peer, &request, sizeof request) && request.rank > 0 && request.rank < (uint64_t)r->size) {
        RendezvousMessage expected = rendezvous_request(r, (int)request.rank, request.number);
        RendezvousMessage reply = rendezvous_reply(r, request);
        char acknowledgement;
        if (memcmp(&request, &expected, sizeof request) == 0 && socket_send(peer, &reply, sizeof reply) &&
            socket_receive(peer, &acknowledgement, 1)) {
            *connection = peer;
            return (int)request.rank;
        }
    }
    close(peer);
    return 0;
}

// Connects to an address; -1 if no process listens there, or none answers before the deadline.
static inline int socket_connect(const struct addrinfo *address, double deadline) {
    int peer = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    if (peer < 0) { return -1; }
    socklen_t length = sizeof error;
    double left = deadline - now_seconds();
    if (left > CONNECT_SECONDS) { left = CONNECT_SECONDS; }
    bool connected = connect(peer, address->ai_addr, address->ai_addrlen) == 0;
    if (!connected && errno == EINPROGRESS && socket_ready(peer, POLLOUT, left > 0 ? (int)(left * 1e3) + 1 : 0)) {
        connected = getsockopt(peer, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
    }
    if (connected && fcntl(peer, F_SETFL, 0) == 0) { return peer; }
    close(peer);
    return -1;
}

// One attempt at one address, because rank 0 may not listen yet. Returns the connection, or -1.
static inline int rendezvous_request_by_tcp(const Rendezvous *r, const struct addrinfo *address, double deadline) {
    RendezvousMessage request = rendezvous_request(r, r->rank, 1);
    RendezvousMessage reply;
    int peer = socket_connect(address, deadline);
    if (peer >= 0 && socket_send(peer, &request, sizeof request) && socket_receive(peer, &reply, sizeof reply) &&
        rendezvous_accept(r, &request, &reply) && socket_send(peer, "", 1)) {
        return peer;
    }
    if (peer >= 0) { close(peer); }
    return -1;
}

// one attempt at each address in turn
static inline int rendezvous_request_by_any(const Rendezvous *r, const struct addrinfo *addresses, double deadline) {
    int peer = -1;
    for (const struct addrinfo *a = addresses; a && peer < 0; a = a->ai_next) {
        peer = rendezvous_request_by_tcp(r, a, deadline);
    }
    return peer;
}

// Sends each message at once: messages are short, and each is waited for.
static inline void socket_no_delay(int peer) {
    int one = 1;
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// Rank 0 answers all other ranks and closes the listener. where: its address, for errors. peers: as in rendezvous_tcp.
static inline void rendezvous_serve_all(const Rendezvous *r, int listener, const char *where, int *peers) {
    double deadline = now_seconds() + r->timeout;
    bool *present = (bool *)xcalloc((size_t)r->size, sizeof *present);
    present[0] = true;
    for (int missing = r->size - 1; missing > 0;) {
        int peer, rank = socket_ready(listener, POLLIN, 100) ? rendezvous_serve_tcp(r, listener, &peer) : 0;
        if (rank > 0) {
            socket_no_delay(peer);
            if (present[rank]) { close(peers[rank]); }  // the rank connected again
            missing -= !present[rank];
            present[rank] = true;
            peers[rank] = peer;
        }
        if (missing > 0) { rendezvous_check_deadline(r, deadline, present, where); }
    }
    close(listener);
    free(present);
}

// Another rank connects to rank 0 at any address of `server`, retrying until rank 0 listens.
static inline void rendezvous_connect(const Rendezvous *r, const char *server, int *peers) {
    double deadline = now_seconds() + r->timeout;
    struct addrinfo *addresses = address_resolve(server);
    int peer;
    while ((peer = rendezvous_request_by_any(r, addresses, deadline)) < 0) {
        rendezvous_check_deadline(r, deadline, NULL, server);
        rendezvous_pause();
    }
    socket_no_delay(peer);
    peers[0] = peer;
    freeaddrinfo(addresses);
}

// Copies r->payload from rank 0, at `server` (address_parse), to every rank. The connections stay open in peers
// (size): on rank 0, peers[r] to rank r; on the others, peers[0] to rank 0.
static inline void rendezvous_tcp(const Rendezvous *r, const char *server, int *peers) {
    char host[256];
    int port = address_parse(host, server);
    rendezvous_check_size(r);
    if (r->rank > 0) {
        rendezvous_connect(r, server, peers);
    } else {
        rendezvous_serve_all(r, socket_listen(port), server, peers);
    }
}
