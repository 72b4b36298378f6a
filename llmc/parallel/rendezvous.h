/*
Rendezvous of ranks that were started without MPI, through files: every rank gets a few bytes from rank 0, such as
NCCL's id. handshake.h does the same through TCP.
defines: Rendezvous, RENDEZVOUS_BYTES, rendezvous_file, rendezvous_job, rendezvous_check_size,
         rendezvous_check_deadline, rendezvous_pause
  In a shared folder, rank r writes a request with a random number to JOB.ask.r. Rank 0 copies the number into its
  reply, JOB.answer.r. Rank r accepts only a reply to its own number, and removes both files. Requests and replies of an
  earlier run are therefore ignored.
Files are written under another name and renamed, so they are always complete. Only their owner can read and write the
files (mode 0600), so all ranks belong to one user. Another user who may write to the folder can keep ranks from
meeting, but can neither read a reply nor forge one, since a reply needs the number of the request. After `timeout`
seconds a rank stops with a sentence that names the missing ranks.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/secret.h"
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

enum { RENDEZVOUS_BYTES = 320 };  // maximum payload

typedef struct {
    int rank, size;
    const char *job;  // the same on all ranks, different in other jobs on the same folder or port
    double timeout;   // seconds
    void *payload;    // input on rank 0, output on the other ranks; NULL if `bytes` is 0
    size_t bytes;
    const Secret *secret;     // of handshake.h: the same on all ranks
    const char *secret_flag;  // the origin of the secret, for errors
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
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) { return false; }
    bool whole = read(fd, data, bytes) == (ssize_t)bytes;
    close(fd);
    return whole;
}

// O_EXCL: a file or link of another user is neither written to nor followed.
static inline void rendezvous_write(const char *path, const void *data, size_t bytes) {
    char part[PATH_LENGTH];
    format_path(part, "%s.part", path);
    unlink(part);  // of a killed run
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    ssize_t put = fd < 0 ? -1 : write(fd, data, bytes);
    int error = put == (ssize_t)bytes ? 0 : put < 0 ? errno : ENOSPC;
    if (fd >= 0 && close(fd) != 0 && !error) { error = errno; }
    if (!error && rename(part, path) != 0) { error = errno; }
    if (!error) { return; }
    unlink(part);  // it may hold a secret
    input_error("%s: could not be written (%s); give a folder that all ranks can write to", path, strerror(error));
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
    while (number == 0) { secret_random(&number, sizeof number); }
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
