/*
Processes that were started apart meet and get a few bytes from rank 0: NCCL's id, where there is no MPI to send it.
defines: Meeting, rendezvous_file, rendezvous_tcp
  file   in a folder that all see. Rank r leaves a random number in JOB.ask.r; rank 0 puts it before its answer, in
         JOB.answer.r; r takes an answer to its own number only, and removes both files. So nothing that an earlier
         run left behind is taken for an answer, nor an earlier question for one that is still asked.
  tcp    rank 0 listens at `server`; every other connects, gives the job's name and its rank, gets the answer, and
         thanks for it: whoever hangs up before has yet to come.
Files appear whole, by renaming. Whoever waits longer than `timeout` stops with a sentence that names the ranks missing.
Neither is encrypted: whoever can write the folder or reach the port can take part.
*/
#pragma once
#include "check.h"
#include "comm.h"
#include <netdb.h>
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
    void *answer;     // given by rank 0, filled in the others
    size_t bytes;
} Meeting;

// one process's question, and what precedes an answer to it. A name that is cut is cut in the same place everywhere.
typedef struct {
    char job[120];
    uint64_t rank, number;
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
    question.number = number;
    return question;
}

static inline Answer meeting_answer(const Meeting *m, Question to) {
    Answer answer;
    memset(&answer, 0, sizeof answer);
    answer.to = to;
    memcpy(answer.bytes, m->answer, m->bytes);
    return answer;
}

// takes an answer that is to this question
static inline bool meeting_take(const Meeting *m, const Question *question, const Answer *answer) {
    if (memcmp(question, &answer->to, sizeof *question) != 0) { return false; }
    memcpy(m->answer, answer->bytes, m->bytes);
    return true;
}

// stops if the time is up; met[rank] says who has come (NULL: it is rank 0 that is missing)
static inline void meeting_check(const Meeting *m, double deadline, const bool *met, const char *where) {
    if (comm_seconds() < deadline) { return; }
    char who[128] = "rank 0";
    int length = 0, missing = 0;
    for (int rank = 1; met && rank < m->size; rank++) {
        if (met[rank] || missing++ >= 8) { continue; }
        length += snprintf(who + length, sizeof who - (size_t)length, "%srank %d", length ? ", " : "", rank);
    }
    run_error("job '%s', rank %d of %d: %s%s did not come to %s within %g s; are all processes running, with the same "
              "job, number of processes and place to meet?",
              m->job, m->rank, m->size, who, missing > 8 ? ", ..." : "", where, m->timeout);
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
    if (question.number != answered->number) {
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
    double deadline = comm_seconds() + m->timeout;
    meeting_begin(m);
    if (m->rank > 0) {
        meeting_ask_file(m, folder, deadline);
        return;
    }
    Question *answered = (Question *)xcalloc((size_t)m->size, sizeof *answered);
    bool *met = (bool *)xcalloc((size_t)m->size, sizeof *met);
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

// "host:port" to the addresses of both; the caller frees them. To listen, on any address of this machine.
static inline struct addrinfo *meeting_addresses(const char *server, bool listens) {
    char host[256];
    const char *colon = strrchr(server, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (port < 1 || port > 65535 || *end || colon == server || (size_t)(colon - server) >= sizeof host) {
        input_error("found '%s' as the place to meet, expected HOST:PORT", server);
    }
    snprintf(host, sizeof host, "%.*s", (int)(colon - server), server);
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_family = AF_INET;
    hints.ai_flags = listens ? AI_PASSIVE : 0;
    int error = getaddrinfo(listens ? NULL : host, colon + 1, &hints, &found);
    if (error != 0) { input_error("the place to meet, %s, is unknown: %s", server, gai_strerror(error)); }
    return found;
}

static inline bool meeting_ready(int socket, short events, int milliseconds) {
    struct pollfd ready = {socket, events, 0};
    return poll(&ready, 1, milliseconds) > 0;
}

// all bytes, or false if the other end goes away or is silent for two seconds
static inline bool meeting_receive(int socket, void *data, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t n = meeting_ready(socket, POLLIN, 2000) ? recv(socket, (char *)data + got, bytes - got, 0) : -1;
        if (n <= 0) { return false; }
        got += (size_t)n;
    }
    return true;
}

// these few bytes fit a socket's buffer
static inline bool meeting_send(int socket, const void *data, size_t bytes) {
    return send(socket, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

static inline int meeting_listen(const char *server) {
    struct addrinfo *address = meeting_addresses(server, true);
    int one = 1, listener = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, address->ai_addr, address->ai_addrlen) != 0 || listen(listener, SOMAXCONN) != 0) {
        input_error("rank 0 cannot listen at %s (%s); choose another port", server, strerror(errno));
    }
    freeaddrinfo(address);
    return listener;
}

// Answers whoever connects next, if it belongs to this job; returns its rank, or 0.
static inline int meeting_serve_tcp(const Meeting *m, int listener) {
    Question question;
    int peer = accept(listener, NULL, NULL), rank = 0;
    if (peer < 0) { return 0; }
    if (meeting_receive(peer, &question, sizeof question) && question.rank > 0 && question.rank < (uint64_t)m->size) {
        Question expected = meeting_question(m, (int)question.rank, question.number);
        Answer answer = meeting_answer(m, question);
        char thanks;
        if (memcmp(&question, &expected, sizeof question) == 0 && meeting_send(peer, &answer, sizeof answer) &&
            meeting_receive(peer, &thanks, 1)) {
            rank = (int)question.rank;
        }
    }
    close(peer);
    return rank;
}

// one attempt: rank 0 may not be there yet
static inline bool meeting_ask_tcp(const Meeting *m, const struct addrinfo *address) {
    Question question = meeting_question(m, m->rank, 1);
    Answer answer;
    int peer = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, 0);
    bool taken = peer >= 0 && connect(peer, address->ai_addr, address->ai_addrlen) == 0 &&
                 meeting_send(peer, &question, sizeof question) && meeting_receive(peer, &answer, sizeof answer) &&
                 meeting_take(m, &question, &answer) && meeting_send(peer, "", 1);
    if (peer >= 0) { close(peer); }
    return taken;
}

// Gives m->answer of rank 0, which is on the host of `server` ("HOST:PORT"), to every rank.
static inline void rendezvous_tcp(const Meeting *m, const char *server) {
    double deadline = comm_seconds() + m->timeout;
    meeting_begin(m);
    if (m->rank > 0) {
        struct addrinfo *address = meeting_addresses(server, false);
        while (!meeting_ask_tcp(m, address)) {
            meeting_check(m, deadline, NULL, server);
            meeting_pause();
        }
        freeaddrinfo(address);
        return;
    }
    int listener = meeting_listen(server);
    bool *met = (bool *)xcalloc((size_t)m->size, sizeof *met);
    for (int missing = m->size - 1; missing > 0;) {
        int rank = meeting_ready(listener, POLLIN, 100) ? meeting_serve_tcp(m, listener) : 0;
        if (rank > 0 && !met[rank]) {
            met[rank] = true;
            missing--;
        }
        if (missing > 0) { meeting_check(m, deadline, met, server); }
    }
    close(listener);
    free(met);
}
