/*
Processes that were started apart meet and get a few bytes from rank 0: NCCL's id, where there is no MPI to send it.
defines: Meeting, rendezvous_file, rendezvous_tcp, meeting_job, meeting_open_port, meeting_gather, meeting_visit
  file   in a folder that all see. Rank r leaves a random number in JOB.ask.r; rank 0 puts it before its answer, in
         JOB.answer.r; r takes an answer to its own number only, and removes both files. So nothing that an earlier
         run left behind is taken for an answer, nor an earlier question for one that is still asked.
  tcp    rank 0 listens at `server`; every other connects, gives the job's name and its rank, gets the answer, and
         thanks for it: whoever hangs up before has yet to come. The connections may be kept (comm_wire.h).
Files appear whole, by renaming. Whoever waits longer than `timeout` stops with a sentence that names the ranks missing.
Neither is encrypted: whoever can write the folder or reach the port can take part.
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
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RENDEZVOUS_BYTES = 256 };  // that an answer may have

typedef struct {
    int rank, size;
    const char *job;  // the same in all processes, another in other jobs that use the folder or port at the same time
    double timeout;   // seconds
    void *answer;     // given by rank 0, filled in the others; NULL where `bytes` is 0
    size_t bytes;
} Meeting;

// one process's question, and what precedes an answer to it. A name that is cut is cut in the same place everywhere.
typedef struct {
    char job[120];
    uint64_t rank, size, number;
} Question;

typedef struct {
    Question to;
    char bytes[RENDEZVOUS_BYTES];
} Answer;

static inline Question meeting_question(const Meeting *m, int rank, uint64_t number) {
    Question question;
    memset(&question, 0, sizeof question);
    snprintf(question.job, sizeof question.job, "%s", m->job);
    question.rank = (uint64_t)rank;
    question.size = (uint64_t)m->size;
    question.number = number;
    return question;
}

static inline Answer meeting_answer(const Meeting *m, Question to) {
    Answer answer;
    memset(&answer, 0, sizeof answer);
    answer.to = to;
    if (m->bytes > 0) { memcpy(answer.bytes, m->answer, m->bytes); }
    return answer;
}

// takes an answer that is to this question
static inline bool meeting_take(const Meeting *m, const Question *question, const Answer *answer) {
    if (memcmp(question, &answer->to, sizeof *question) != 0) { return false; }
    if (m->bytes > 0) { memcpy(m->answer, answer->bytes, m->bytes); }
    return true;
}

// stops if the time is up; met[rank] says who has come (NULL: it is rank 0 that is missing)
static inline void meeting_check(const Meeting *m, double deadline, const bool *met, const char *where) {
    if (now_seconds() < deadline) { return; }
    char who[128] = "rank 0";
    if (met) { comm_name_missing(who, sizeof who, met, m->size); }
    run_error("job '%s', rank %d of %d: %s did not come to %s within %g s; are all processes running, with the same "
              "job, number of processes and place to meet?",
              m->job, m->rank, m->size, who, where, m->timeout);
}

// What Slurm calls the processes that were started together: its job, and the step of it, as two may run at a time.
static inline void meeting_job(char *name, size_t room) {
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    if (!step) { step = getenv("SLURM_STEPID"); }
    snprintf(name, room, "%s%s%s", job ? job : "train_gpt2", job && step ? "." : "", job && step ? step : "");
}

static inline void meeting_begin(const Meeting *m) {
    if (m->bytes > RENDEZVOUS_BYTES) { run_error("an answer of %zu bytes to a rendezvous: a bug", m->bytes); }
}

static inline void meeting_pause(void) { usleep(10000); }

// ---- by files

static inline void meeting_path(char *path, const Meeting *m, const char *folder, const char *what, int rank) {
    format_path(path, "%s/%s.%s.%d", folder, m->job, what, rank);
}

static inline bool meeting_read(const char *path, void *data, size_t bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) { return false; }
    bool whole = fread(data, 1, bytes, file) == bytes;
    fclose(file);
    return whole;
}

static inline void meeting_write(const char *path, const void *data, size_t bytes) {
    char part[PATH_LENGTH];
    format_path(part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    bool written = file && fwrite(data, 1, bytes, file) == bytes;
    if (!file || fclose(file) != 0 || !written || rename(part, path) != 0) {
        input_error("%s: could not be written (%s); the processes meet in a folder that all of them can write", path,
                    strerror(errno));
    }
}

// Rank 0 has answered the latest question of this rank and its file is gone: it has been taken.
static inline bool meeting_serve_file(const Meeting *m, const char *folder, int rank, Question *answered) {
    char ask[PATH_LENGTH], reply[PATH_LENGTH];
    Question question;
    meeting_path(ask, m, folder, "ask", rank);
    meeting_path(reply, m, folder, "answer", rank);
    if (!meeting_read(ask, &question, sizeof question)) { return answered->number != 0 && access(ask, F_OK) != 0; }
    Question expected = meeting_question(m, rank, question.number);
    if (memcmp(&question, &expected, sizeof question) == 0 && question.number != answered->number) {
        Answer answer = meeting_answer(m, question);
        meeting_write(reply, &answer, sizeof answer);
        *answered = question;
    }
    return false;
}

static inline void meeting_ask_file(const Meeting *m, const char *folder, double deadline) {
    char ask[PATH_LENGTH], reply[PATH_LENGTH];
    uint64_t number = 0;
    Answer answer;
    while (number == 0) {
        if (getrandom(&number, sizeof number, 0) != sizeof number) { number = 0; }
    }
    Question question = meeting_question(m, m->rank, number);
    meeting_path(ask, m, folder, "ask", m->rank);
    meeting_path(reply, m, folder, "answer", m->rank);
    meeting_write(ask, &question, sizeof question);
    while (!meeting_read(reply, &answer, sizeof answer) || !meeting_take(m, &question, &answer)) {
        meeting_check(m, deadline, NULL, folder);
        meeting_pause();
    }
    remove(reply);
    remove(ask);  // last: it tells rank 0 that this is over
}

// Gives m->answer of rank 0 to every rank; rank 0 returns when all have it.
static inline void rendezvous_file(const Meeting *m, const char *folder) {
    double deadline = now_seconds() + m->timeout;
    meeting_begin(m);
    if (m->rank > 0) {
        meeting_ask_file(m, folder, deadline);
        return;
    }
    Question *answered = (Question *)xcalloc((size_t)m->size, sizeof *answered);
    bool *met = (bool *)xcalloc((size_t)m->size, sizeof *met);
    met[0] = true;
    for (int missing = m->size - 1; missing > 0; meeting_pause()) {
        for (int rank = 1; rank < m->size; rank++) {
            if (!met[rank] && meeting_serve_file(m, folder, rank, &answered[rank])) {
                met[rank] = true;
                missing--;
            }
        }
        if (missing > 0) { meeting_check(m, deadline, met, folder); }
    }
    free(answered);
    free(met);
}

// ---- by TCP

#define MEETING_TRY_SECONDS 3.0  // for one address: one that nobody answers at keeps nobody from the next

// "HOST:PORT", "[HOST]:PORT": the host, of 256 bytes, and the port
static inline int meeting_place(char *host, const char *server) {
    const char *colon = strrchr(server, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    size_t length = colon ? (size_t)(colon - server) : 0;
    if (port < 1 || port > 65535 || *end || length == 0 || length >= 256) {
        input_error("found '%s' as the place to meet, expected HOST:PORT", server);
    }
    bool bracketed = server[0] == '[' && server[length - 1] == ']';
    snprintf(host, 256, "%.*s", (int)(bracketed ? length - 2 : length), server + bracketed);
    return (int)port;
}

// every address of "HOST:PORT"; the caller frees them
static inline struct addrinfo *meeting_addresses(const char *server) {
    char host[256], service[16];
    snprintf(service, sizeof service, "%d", meeting_place(host, server));
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_family = AF_UNSPEC;
    int error = getaddrinfo(host, service, &hints, &found);
    if (error != 0) { input_error("the place to meet, %s, is unknown: %s", server, gai_strerror(error)); }
    return found;
}

// Can it be read, or written, within so many milliseconds? A signal, which ends poll, does not end the wait.
static inline bool meeting_ready(int socket, short events, int milliseconds) {
    struct pollfd ready = {socket, events, 0};
    double end = now_seconds() + 1e-3 * milliseconds;
    int count;
    while ((count = poll(&ready, 1, milliseconds)) < 0 && errno == EINTR) {
        double left = end - now_seconds();
        milliseconds = left > 0 ? (int)(left * 1e3) + 1 : 0;
    }
    return count > 0;
}

// all bytes, or false if the other end goes away or is silent for two seconds
static inline bool meeting_receive(int socket, void *data, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t n = meeting_ready(socket, POLLIN, 2000) ? recv(socket, (char *)data + got, bytes - got, 0) : 0;
        if (n == 0 || (n < 0 && errno != EINTR)) { return false; }
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

// these few bytes fit a socket's buffer
static inline bool meeting_send(int socket, const void *data, size_t bytes) {
    return send(socket, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

// Listens on every address of one family, and as IPv6 on those of IPv4 too; port 0: one that is free. -1 if that fails.
static inline int meeting_listen_as(int family, int port) {
    int one = 1, zero = 0, listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    memset(&six, 0, sizeof six), memset(&four, 0, sizeof four);
    six.sin6_family = AF_INET6, six.sin6_port = htons((uint16_t)port), six.sin6_addr = in6addr_any;
    four.sin_family = AF_INET, four.sin_port = htons((uint16_t)port), four.sin_addr.s_addr = htonl(INADDR_ANY);
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

static inline int meeting_listen(int port) {
    int listener = meeting_listen_as(AF_INET6, port);
    if (listener < 0) { listener = meeting_listen_as(AF_INET, port); }
    if (listener < 0) {
        input_error("rank 0 cannot listen at port %d (%s); choose another port", port, strerror(errno));
    }
    return listener;
}

// Listens at a port that is free, and says which.
static inline int meeting_open_port(int *port) {
    int listener = meeting_listen(0);
    struct sockaddr_in6 own;  // its port is where that of sockaddr_in is
    socklen_t length = sizeof own;
    getsockname(listener, (struct sockaddr *)&own, &length);
    *port = ntohs(own.sin6_port);
    return listener;
}

// Answers whoever connects next; returns its rank and the connection, or 0 if it does not belong to this job.
static inline int meeting_serve_tcp(const Meeting *m, int listener, int *connection) {
    Question question;
    int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (peer < 0) { return 0; }
    if (meeting_receive(peer, &question, sizeof question) && question.rank > 0 && question.rank < (uint64_t)m->size) {
        Question expected = meeting_question(m, (int)question.rank, question.number);
        Answer answer = meeting_answer(m, question);
        char thanks;
        if (memcmp(&question, &expected, sizeof question) == 0 && meeting_send(peer, &answer, sizeof answer) &&
            meeting_receive(peer, &thanks, 1)) {
            *connection = peer;
            return (int)question.rank;
        }
    }
    close(peer);
    return 0;
}

// A connection to the address, or -1: nobody listens there, or nobody answers until the deadline.
static inline int meeting_connect(const struct addrinfo *address, double deadline) {
    int peer = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    if (peer < 0) { return -1; }
    socklen_t length = sizeof error;
    double left = deadline - now_seconds();
    if (left > MEETING_TRY_SECONDS) { left = MEETING_TRY_SECONDS; }
    bool connected = connect(peer, address->ai_addr, address->ai_addrlen) == 0;
    if (!connected && errno == EINPROGRESS && meeting_ready(peer, POLLOUT, left > 0 ? (int)(left * 1e3) + 1 : 0)) {
        connected = getsockopt(peer, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
    }
    if (connected && fcntl(peer, F_SETFL, 0) == 0) { return peer; }
    close(peer);
    return -1;
}

// one attempt at one address: rank 0 may not be there yet. The connection, or -1.
static inline int meeting_ask_tcp(const Meeting *m, const struct addrinfo *address, double deadline) {
    Question question = meeting_question(m, m->rank, 1);
    Answer answer;
    int peer = meeting_connect(address, deadline);
    if (peer >= 0 && meeting_send(peer, &question, sizeof question) && meeting_receive(peer, &answer, sizeof answer) &&
        meeting_take(m, &question, &answer) && meeting_send(peer, "", 1)) {
        return peer;
    }
    if (peer >= 0) { close(peer); }
    return -1;
}

// one attempt at each address in turn
static inline int meeting_ask_any(const Meeting *m, const struct addrinfo *addresses, double deadline) {
    int peer = -1;
    for (const struct addrinfo *a = addresses; a && peer < 0; a = a->ai_next) {
        peer = meeting_ask_tcp(m, a, deadline);
    }
    return peer;
}

// what becomes of the connection to `rank`: it is kept there, or closed
static inline void meeting_keep(int *peers, int rank, int peer) {
    int one = 1;
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);  // a few bytes at a time, each waited for
    if (peers) {
        peers[rank] = peer;
    } else {
        close(peer);
    }
}

// Rank 0 answers all others; closes the listener. where: words for it. peers: as in rendezvous_tcp.
static inline void meeting_gather(const Meeting *m, int listener, const char *where, int *peers) {
    double deadline = now_seconds() + m->timeout;
    bool *met = (bool *)xcalloc((size_t)m->size, sizeof *met);
    met[0] = true;
    for (int missing = m->size - 1; missing > 0;) {
        int peer, rank = meeting_ready(listener, POLLIN, 100) ? meeting_serve_tcp(m, listener, &peer) : 0;
        if (rank > 0 && met[rank] && peers) { close(peers[rank]); }  // it has come anew
        if (rank > 0) { meeting_keep(peers, rank, peer); }
        if (rank > 0 && !met[rank]) {
            met[rank] = true;
            missing--;
        }
        if (missing > 0) { meeting_check(m, deadline, met, where); }
    }
    close(listener);
    free(met);
}

// Another rank asks rank 0, which listens or is going to at one of the addresses of `server`.
static inline void meeting_visit(const Meeting *m, const char *server, int *peers) {
    double deadline = now_seconds() + m->timeout;
    struct addrinfo *addresses = meeting_addresses(server);
    int peer;
    while ((peer = meeting_ask_any(m, addresses, deadline)) < 0) {
        meeting_check(m, deadline, NULL, server);
        meeting_pause();
    }
    meeting_keep(peers, 0, peer);
    freeaddrinfo(addresses);
}

// Gives m->answer of rank 0, which is on the host of `server` ("HOST:PORT"), to every rank. peers: NULL, or where the
// connections stay: rank 0's to rank r in peers[r], another's to rank 0 in peers[0].
static inline void rendezvous_tcp(const Meeting *m, const char *server, int *peers) {
    char host[256];
    int port = meeting_place(host, server);
    meeting_begin(m);
    if (m->rank > 0) {
        meeting_visit(m, server, peers);
    } else {
        meeting_gather(m, meeting_listen(port), server, peers);
    }
}
