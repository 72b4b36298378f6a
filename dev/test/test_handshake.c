/*
The handshake of a rendezvous by TCP: which clients rank 0 accepts, and which it drops with a line. The file of the
secret, and the files of a rendezvous by files.
    test_handshake
Rank 0 runs in a child, and this process calls it: as a rank, or as a stranger with messages of its own.
*/
#include "testing.h"
#include "testing_tcp.h"
static double handshake_seconds = 60;
#define HANDSHAKE_SECONDS handshake_seconds
#include "llmc/parallel/comm_wire.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char payload_text[] = "the payload of rank 0";
static const Secret secret = {"a secret of all ranks", 21}, other_secret = {"another secret, alas", 20};

// a rendezvous of this rank; payload: sizeof payload_text bytes
static Rendezvous rendezvous_of(int rank, int size, char *payload) {
    return (Rendezvous){rank, size, "job", 60, payload, sizeof payload_text, &secret, "--secret-file"};
}

// ---- rank 0 in a child

typedef struct {
    int size;
    int descriptors;           // limit of open files; 0: none
    char server[32];           // 127.0.0.1:PORT
    char output[PATH_LENGTH];  // file of its stderr
    pid_t child;
} RankZero;

static void run_rank_zero(const RankZero *z) {
    char payload[sizeof payload_text];
    memcpy(payload, payload_text, sizeof payload);
    const Rendezvous r = rendezvous_of(0, z->size, payload);
    const struct rlimit limit = {(rlim_t)z->descriptors, (rlim_t)z->descriptors};
    if (z->descriptors) { setrlimit(RLIMIT_NOFILE, &limit); }
    rendezvous_tcp(&r, z->server, (int *)xcalloc((size_t)z->size, sizeof(int)));
}

static RankZero start_rank_zero(int size, int descriptors) {
    RankZero z;
    memset(&z, 0, sizeof z);
    z.size = size;
    z.descriptors = descriptors;
    snprintf(z.server, sizeof z.server, "%s", free_address());
    snprintf(z.output, sizeof z.output, "%s", temp_path("rank_zero"));
    fflush(NULL);
    z.child = fork();
    if (z.child == 0) {
        if (!freopen(z.output, "w", stderr)) { _exit(9); }
        run_rank_zero(&z);
        fflush(NULL);
        _exit(0);
    }
    return z;
}

// connects to rank 0, which may not listen yet
static int call(const RankZero *z) {
    struct addrinfo *address = address_resolve(z->server);
    int peer = -1;
    for (double end = now_seconds() + 60; peer < 0 && now_seconds() < end;) {
        peer = socket_connect(address, end);
        if (peer < 0) { rendezvous_pause(); }
    }
    freeaddrinfo(address);
    assert_true(peer >= 0);
    return peer;
}

// whether rank 0 closes a connection; a reply before the end is skipped
static bool is_dropped(int peer) {
    char byte;
    while (socket_receive(peer, &byte, 1, now_seconds() + 60)) {}
    return handshake_closed(peer);
}

// calls as a rank; the connection stays open in *peer
static HandshakeAnswer enter(const RankZero *z, const Rendezvous *r, int *peer) {
    *peer = call(z);
    return handshake_try(r, *peer, now_seconds() + 60);
}

// the remaining ranks join; output (size) = the stderr of rank 0
static void end_rank_zero(const RankZero *z, int first, char *output, size_t size) {
    int peers[8], status;
    for (int rank = first; rank < z->size; rank++) {
        char payload[sizeof payload_text] = "";
        const Rendezvous r = rendezvous_of(rank, z->size, payload);
        rendezvous_connect(&r, z->server, HANDSHAKE_SECONDS, &peers[rank]);
        assert_string_equal(payload, payload_text);
    }
    waitpid(z->child, &status, 0);
    assert_int_equal(status, 0);
    for (int rank = first; rank < z->size; rank++) { close(peers[rank]); }
    FILE *file = fopen(z->output, "r");
    assert_non_null(file);
    output[fread(output, 1, size - 1, file)] = 0;
    fclose(file);
}

// rank 0 lets all ranks in, and has printed one line, with `words`; none for NULL
static void assert_drops(const RankZero *z, int first, const char *words) {
    char output[8192];
    end_rank_zero(z, first, output, sizeof output);
    if (!words) {
        assert_string_equal(output, "");
        return;
    }
    if (!is_one_line(output)) { fail_msg("expected one line; stderr: %s", output); }
    if (strncmp(output, "train_gpt2: rank 0 dropped a connection from 127.0.0.1:", 55) != 0 || !strstr(output, words)) {
        fail_msg("expected a line with '%s'; stderr: %s", words, output);
    }
}

static HandshakeRequest new_request(const Rendezvous *r, const HandshakeChallenge *challenge) {
    HandshakeRequest request;
    memset(&request, 0, sizeof request);
    request.who = rendezvous_request(r, r->rank, 0);
    secret_random(request.nonce, sizeof request.nonce);
    handshake_tag(request.tag, r, "request", challenge, &request, NULL);
    return request;
}

static void read_challenge(int peer, HandshakeChallenge *challenge) {
    assert_true(socket_receive(peer, challenge, sizeof *challenge, now_seconds() + 60));
}

// ---- HMAC

static void test_tag(void **state) {
    (void)state;
    needs_libcrypto();
    const Secret jefe = {"Jefe", 4};  // RFC 4231, test case 2
    const unsigned char expected[] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24,
                                      0x26, 0x08, 0x95, 0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27,
                                      0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
    unsigned char tag[SECRET_TAG];
    secret_tag(tag, &jefe, "what do ya want for nothing?", 28);
    assert_memory_equal(tag, expected, sizeof tag);
    assert_true(secret_equal(tag, expected));
    tag[31] ^= 1;
    assert_false(secret_equal(tag, expected));
}

// ---- ranks

static void test_enters(void **state) {
    (void)state;
    needs_libcrypto();
    RankZero z = start_rank_zero(4, 0);
    assert_drops(&z, 1, NULL);
}

// the payload is not sent as it is, and its mask differs from one connection to the next
static void test_payload_is_masked(void **state) {
    (void)state;
    needs_libcrypto();
    RankZero z = start_rank_zero(2, 0);
    HandshakeReply replies[2];
    for (int i = 0; i < 2; i++) {
        HandshakeChallenge challenge;
        char payload[sizeof payload_text];
        const Rendezvous r = rendezvous_of(1, 2, payload);
        int peer = call(&z);
        read_challenge(peer, &challenge);
        HandshakeRequest request = new_request(&r, &challenge);
        assert_true(socket_send(peer, &request, sizeof request));
        assert_true(socket_receive(peer, &replies[i], sizeof replies[i], now_seconds() + 60));
        assert_null(memmem(&replies[i], sizeof replies[i], payload_text, sizeof payload_text - 1));
        close(peer);
    }
    assert_memory_not_equal(replies[0].payload, replies[1].payload, RENDEZVOUS_BYTES);
    char output[8192];
    end_rank_zero(&z, 1, output, sizeof output);
    assert_non_null(strstr(output, "it closed the connection after 0 of the 32 bytes of an acknowledgement"));
}

static void connect_with(void *rendezvous) {
    int peer;
    const Rendezvous *r = (const Rendezvous *)rendezvous;
    rendezvous_connect(r, r->payload ? (const char *)r->payload : "", HANDSHAKE_SECONDS, &peer);
}

// the sentence of a rank that rank 0 does not accept; its payload is the address
static void assert_rank_stops(RankZero *z, Rendezvous r, const char *words) {
    r.payload = z->server;
    r.bytes = 0;
    assert_stops(2, words, connect_with, &r);
}

static void test_wrong_secret(void **state) {
    (void)state;
    needs_libcrypto();
    RankZero z = start_rank_zero(2, 0);
    Rendezvous r = rendezvous_of(1, 2, NULL);
    r.secret = &other_secret;
    assert_rank_stops(&z, r, "do not share a secret: give all ranks the same --secret-file");
    assert_drops(&z, 1, "as rank 1 it has another secret than --secret-file; give all ranks the same");
}

static void test_wrong_rank(void **state) {
    (void)state;
    needs_libcrypto();
    const int ranks[][2] = {{0, 3}, {3, 3}, {1, 4}, {70000, 3}};
    for (int i = 0; i < 4; i++) {
        char words[100];
        RankZero z = start_rank_zero(3, 0);
        assert_rank_stops(&z, rendezvous_of(ranks[i][0], ranks[i][1], NULL), "give all ranks the same -pn");
        snprintf(words, sizeof words, "it is rank %d of %d, expected ranks 1 to 2", ranks[i][0], ranks[i][1]);
        assert_drops(&z, 1, words);
    }
}

// a rank of another job tries again until its own time is over
static void test_wrong_job(void **state) {
    (void)state;
    needs_libcrypto();
    RankZero z = start_rank_zero(2, 0);
    char payload[sizeof payload_text] = "";
    Rendezvous r = rendezvous_of(1, 2, payload);
    int peer;
    r.job = "other";
    assert_int_equal(enter(&z, &r, &peer), HANDSHAKE_WRONG_JOB);
    assert_true(is_dropped(peer));
    close(peer);
    assert_drops(&z, 1, "rank 1 is of another job than 'job'");
}

static void test_duplicate_rank(void **state) {
    (void)state;
    needs_libcrypto();
    RankZero z = start_rank_zero(3, 0);
    char payload[sizeof payload_text] = "";
    const Rendezvous r = rendezvous_of(1, 3, payload);
    int first, again;
    assert_int_equal(enter(&z, &r, &first), HANDSHAKE_ACCEPTED);
    assert_rank_stops(&z, r, "another process is connected to rank 0 at");
    assert_drops(&z, 2, "rank 1 is connected already; give each rank its own -pr");
    close(first);
    // a rank that has ended may come again
    z = start_rank_zero(3, 0);
    assert_int_equal(enter(&z, &r, &first), HANDSHAKE_ACCEPTED);
    close(first);
    assert_int_equal(enter(&z, &r, &again), HANDSHAKE_ACCEPTED);
    assert_drops(&z, 2, NULL);
    close(again);
}

// two connections of one rank are accepted before either acknowledges: only one acknowledgement counts
static void test_duplicate_acknowledgement(void **state) {
    (void)state;
    needs_libcrypto();
    RankZero z = start_rank_zero(3, 0);
    const Rendezvous r = rendezvous_of(1, 3, NULL);
    HandshakeChallenge challenges[2];
    HandshakeRequest requests[2];
    HandshakeReply reply;
    int peers[2];
    for (int i = 0; i < 2; i++) {
        peers[i] = call(&z);
        read_challenge(peers[i], &challenges[i]);
        requests[i] = new_request(&r, &challenges[i]);
        assert_true(socket_send(peers[i], &requests[i], sizeof requests[i]));
        assert_true(socket_receive(peers[i], &reply, sizeof reply, now_seconds() + 60));
        assert_int_equal(reply.answer, HANDSHAKE_ACCEPTED);
    }
    for (int i = 0; i < 2; i++) {
        unsigned char tag[SECRET_TAG];
        handshake_tag(tag, &r, "accept", &challenges[i], &requests[i], NULL);
        assert_true(socket_send(peers[i], tag, sizeof tag));
    }
    struct pollfd ready[2] = {{peers[0], POLLIN, 0}, {peers[1], POLLIN, 0}};
    assert_int_equal(poll(ready, 2, 60000), 1);
    int dropped = ready[1].revents != 0;
    assert_true(is_dropped(peers[dropped]));
    assert_false(handshake_closed(peers[!dropped]));
    assert_drops(&z, 2, "rank 1 is connected already");
    close(peers[0]);
    close(peers[1]);
}

// ---- strangers

// a request that rank 0 has accepted is worth nothing on another connection
static void test_replay(void **state) {
    (void)state;
    needs_libcrypto();
    RankZero z = start_rank_zero(2, 0);
    const Rendezvous r = rendezvous_of(1, 2, NULL);
    HandshakeChallenge challenge, other;
    HandshakeReply reply;
    int rank = call(&z), thief = call(&z);
    read_challenge(rank, &challenge);
    read_challenge(thief, &other);
    assert_memory_not_equal(&challenge, &other, sizeof other);
    const HandshakeRequest request = new_request(&r, &challenge);
    assert_true(socket_send(thief, &request, sizeof request));
    assert_true(socket_receive(thief, &reply, sizeof reply, now_seconds() + 60));
    assert_int_equal(reply.answer, HANDSHAKE_WRONG_SECRET);
    const unsigned char zeros[sizeof reply.payload] = {0};
    assert_memory_equal(reply.payload, zeros, sizeof zeros);
    assert_memory_equal(reply.tag, zeros, sizeof reply.tag);
    assert_true(is_dropped(thief));
    assert_true(socket_send(rank, &request, sizeof request));  // the rank's own connection takes it
    assert_true(socket_receive(rank, &reply, sizeof reply, now_seconds() + 60));
    assert_int_equal(reply.answer, HANDSHAKE_ACCEPTED);
    close(thief);
    unsigned char tag[SECRET_TAG];
    handshake_tag(tag, &r, "accept", &challenge, &request, NULL);
    assert_true(socket_send(rank, tag, sizeof tag));
    assert_drops(&z, 2, "as rank 1 it has another secret than --secret-file");
    close(rank);
}

// the tags of earlier messages do not pass as an acknowledgement
static void test_reflection(void **state) {
    (void)state;
    needs_libcrypto();
    for (int of_reply = 0; of_reply < 2; of_reply++) {
        RankZero z = start_rank_zero(2, 0);
        const Rendezvous r = rendezvous_of(1, 2, NULL);
        HandshakeChallenge challenge;
        HandshakeReply reply;
        int peer = call(&z);
        read_challenge(peer, &challenge);
        const HandshakeRequest request = new_request(&r, &challenge);
        assert_true(socket_send(peer, &request, sizeof request));
        assert_true(socket_receive(peer, &reply, sizeof reply, now_seconds() + 60));
        assert_true(socket_send(peer, of_reply ? reply.tag : request.tag, SECRET_TAG));
        assert_true(is_dropped(peer));
        close(peer);
        assert_drops(&z, 1, "as rank 1 its acknowledgement shows that it does not know the secret");
    }
}

// A rank believes a reply only with its tag: not its own tag, no tag, and no reply to another connection. An answer of
// another version is none.
static void test_false_rank_zero(void **state) {
    (void)state;
    needs_libcrypto();
    char payload[sizeof payload_text] = "";
    const Rendezvous r = rendezvous_of(1, 2, payload);
    HandshakeReply old;
    memset(&old, 0, sizeof old);
    const HandshakeAnswer expected[] = {HANDSHAKE_WRONG_SECRET, HANDSHAKE_WRONG_SECRET, HANDSHAKE_ACCEPTED,
                                        HANDSHAKE_WRONG_SECRET, HANDSHAKE_NONE};
    for (int i = 0; i < 5; i++) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        fflush(NULL);
        int told[2];
        assert_int_equal(pipe(told), 0);
        pid_t child = fork();
        if (child == 0) {
            HandshakeChallenge challenge = {{7}};
            HandshakeRequest request;
            HandshakeReply reply = old;
            reply.answer = i == 4 ? (1ull << 32) + HANDSHAKE_ACCEPTED : HANDSHAKE_ACCEPTED;
            bool done = socket_send(ends[0], &challenge, sizeof challenge) &&
                        socket_receive(ends[0], &request, sizeof request, now_seconds() + 60);
            if (i == 1) { memcpy(reply.tag, request.tag, sizeof reply.tag); }
            // rank 0 knows the secret
            if (i == 2 || i == 4) { handshake_tag(reply.tag, &r, "reply", &challenge, &request, &reply); }
            if (i == 2) { done = done && write(told[1], &reply, sizeof reply) == sizeof reply; }
            done = done && socket_send(ends[0], &reply, sizeof reply);
            _exit(done ? 0 : 1);
        }
        int status;
        assert_int_equal(handshake_try(&r, ends[1], now_seconds() + 60), expected[i]);
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
        if (i == 2) { assert_int_equal(read(told[0], &old, sizeof old), sizeof old); }  // sent again when i is 3
        for (int end = 0; end < 2; end++) {
            close(ends[end]);
            close(told[end]);
        }
    }
}

// a changed payload does not pass either
static void test_changed_payload(void **state) {
    (void)state;
    needs_libcrypto();
    const Rendezvous r = rendezvous_of(1, 2, NULL);
    const HandshakeChallenge challenge = {{1}};
    const HandshakeRequest request = new_request(&r, &challenge);
    HandshakeReply reply;
    memset(&reply, 0, sizeof reply);
    reply.answer = HANDSHAKE_ACCEPTED;
    handshake_tag(reply.tag, &r, "reply", &challenge, &request, &reply);
    assert_true(handshake_has_tag(reply.tag, &r, "reply", &challenge, &request, &reply));
    reply.payload[RENDEZVOUS_BYTES - 1] = 1;
    assert_false(handshake_has_tag(reply.tag, &r, "reply", &challenge, &request, &reply));
    reply.payload[RENDEZVOUS_BYTES - 1] = 0;
    reply.answer = HANDSHAKE_DUPLICATE;
    assert_false(handshake_has_tag(reply.tag, &r, "reply", &challenge, &request, &reply));
}

// nor a changed job, rank or size of a request on its way
static void test_changed_request(void **state) {
    (void)state;
    needs_libcrypto();
    const Rendezvous r = rendezvous_of(1, 2, NULL);
    const HandshakeChallenge challenge = {{1}};
    for (int i = 0; i < 4; i++) {
        HandshakeRequest request = new_request(&r, &challenge);
        assert_true(handshake_has_tag(request.tag, &r, "request", &challenge, &request, NULL));
        request.who.job[0] ^= i == 0;
        request.who.rank ^= i == 1;
        request.who.size ^= i == 2;
        request.nonce[0] ^= i == 3;
        assert_false(handshake_has_tag(request.tag, &r, "request", &challenge, &request, NULL));
    }
}

static void test_silent_and_closed(void **state) {
    (void)state;
    needs_libcrypto();
    handshake_seconds = 2;
    RankZero z = start_rank_zero(2, 0);
    int silent = call(&z);
    assert_true(is_dropped(silent));
    close(silent);
    assert_drops(&z, 1, "it sent 0 of the 528 bytes of a request within 2 s");
    handshake_seconds = 60;
    z = start_rank_zero(2, 0);
    close(call(&z));
    assert_drops(&z, 1, "it closed the connection after 0 of the 528 bytes of a request");
}

// a client that sends a byte now and then has no more time than a silent one
static void test_dripping(void **state) {
    (void)state;
    needs_libcrypto();
    handshake_seconds = 2;
    RankZero z = start_rank_zero(2, 0);
    int dripping = call(&z), sent = 0;
    for (; sent < 500 && send(dripping, "x", 1, MSG_NOSIGNAL) == 1; sent++) { usleep(20000); }
    assert_true(sent < 500);
    close(dripping);
    assert_drops(&z, 1, "of the 528 bytes of a request within 2 s");
    handshake_seconds = 60;
}

static void test_cut_and_too_long(void **state) {
    (void)state;
    needs_libcrypto();
    for (int too_long = 0; too_long < 2; too_long++) {
        RankZero z = start_rank_zero(2, 0);
        const Rendezvous r = rendezvous_of(1, 2, NULL);
        HandshakeChallenge challenge;
        char message[4096] = {0};
        int peer = call(&z);
        read_challenge(peer, &challenge);
        const HandshakeRequest request = new_request(&r, &challenge);
        memcpy(message, &request, sizeof request);
        assert_true(socket_send(peer, message, too_long ? sizeof message : sizeof request - 1));
        if (!too_long) { shutdown(peer, SHUT_WR); }
        is_dropped(peer);
        close(peer);
        assert_drops(&z, 1,
                     too_long ? "its acknowledgement shows that it does not know the secret"
                              : "it closed the connection after 527 of the 528 bytes");
    }
}

// Hundreds of silent clients, with any amount of time, neither keep the ranks out nor fill the log.
static void test_many_silent(void **state) {
    (void)state;
    needs_libcrypto();
    enum { CLIENTS = 300 };
    handshake_seconds = 1000;
    for (int few_descriptors = 0; few_descriptors < 2; few_descriptors++) {
        RankZero z = start_rank_zero(3, few_descriptors ? 40 : 0);
        int clients[CLIENTS], lines = 0;
        char output[8192];
        for (int i = 0; i < CLIENTS; i++) {
            clients[i] = call(&z);
            if (i % 10 == 0) { send(clients[i], "x", 1, MSG_NOSIGNAL); }
        }
        end_rank_zero(&z, 1, output, sizeof output);
        for (const char *c = output; *c; c++) { lines += *c == '\n'; }
        assert_int_equal(lines, HANDSHAKE_LINES + 1);
        assert_non_null(strstr(output, "train_gpt2: rank 0 dropped "));
        assert_non_null(strstr(output, " more connections\n"));
        for (int i = 0; i < CLIENTS; i++) { close(clients[i]); }
    }
    handshake_seconds = 60;
}

// A rank that rank 0 has answered keeps its place among them: it does not try again.
static void test_answered_keeps_its_place(void **state) {
    (void)state;
    needs_libcrypto();
    enum { CLIENTS = 100 };
    handshake_seconds = 1000;
    RankZero z = start_rank_zero(3, 0);
    const Rendezvous r = rendezvous_of(1, 3, NULL);
    HandshakeChallenge challenge;
    HandshakeReply reply;
    unsigned char tag[SECRET_TAG];
    char output[8192];
    int clients[CLIENTS], peer = call(&z);
    read_challenge(peer, &challenge);
    const HandshakeRequest request = new_request(&r, &challenge);
    assert_true(socket_send(peer, &request, sizeof request));
    assert_true(socket_receive(peer, &reply, sizeof reply, now_seconds() + 60));
    for (int i = 0; i < CLIENTS; i++) { clients[i] = call(&z); }
    assert_true(is_dropped(clients[1]));
    handshake_tag(tag, &r, "accept", &challenge, &request, NULL);
    assert_true(socket_send(peer, tag, sizeof tag));
    end_rank_zero(&z, 2, output, sizeof output);
    assert_non_null(strstr(output, "train_gpt2: rank 0 dropped "));
    for (int i = 0; i < CLIENTS; i++) { close(clients[i]); }
    close(peer);
    handshake_seconds = 60;
}

// ---- where rank 0 listens

// A connection that is reset before rank 0 accepts it must not block rank 0.
static void test_listener_does_not_block(void **state) {
    (void)state;
    int port, listener = socket_listen_any_port(&port);
    assert_true(listener >= 0);
    assert_int_equal(accept(listener, NULL, NULL), -1);
    assert_int_equal(errno, EAGAIN);
    close(listener);
}

static void test_listens_at_its_address_only(void **state) {
    (void)state;
    needs_libcrypto();
    RankZero z = start_rank_zero(2, 0);
    close(call(&z));  // from here on rank 0 listens
    char elsewhere[64];
    snprintf(elsewhere, sizeof elsewhere, "127.0.0.2%s", strchr(z.server, ':'));
    struct addrinfo *address = address_resolve(elsewhere);
    assert_int_equal(socket_connect(address, now_seconds() + 5), -1);
    freeaddrinfo(address);
    assert_drops(&z, 1, "it closed the connection after 0 of");
}

static void serve_at(void *server) {
    char payload[sizeof payload_text] = "";
    const Rendezvous r = rendezvous_of(0, 2, payload);
    int peers[2];
    rendezvous_tcp(&r, (const char *)server, peers);
}

static void test_address_of_another_machine(void **state) {
    (void)state;
    char elsewhere[] = "192.0.2.1:29500", taken[32];  // RFC 5737: an address of documentation
    assert_stops(2, "-ps 192.0.2.1:29500 is not an address of this machine", serve_at, elsewhere);
    snprintf(taken, sizeof taken, "%s", free_address());
    struct addrinfo *address = address_resolve(taken);
    int listener = socket_listen_at(address, false);
    assert_true(listener >= 0);
    assert_stops(2, "(Address already in use); choose another port or address", serve_at, taken);
    close(listener);
    freeaddrinfo(address);
}

static void test_hidden_name(void **state) {
    (void)state;
    struct addrinfo *loopback = address_resolve("127.0.1.1"), *network = address_resolve("192.0.2.1");
    assert_true(handshake_is_loopback("node1", loopback));
    assert_false(handshake_is_loopback("localhost", loopback));
    assert_false(handshake_is_loopback("127.0.1.1", loopback));
    assert_false(handshake_is_loopback("node1", network));
    loopback->ai_next = network;
    assert_false(handshake_is_loopback("node1", loopback));
    loopback->ai_next = NULL;
    freeaddrinfo(loopback);
    freeaddrinfo(network);
}

// ---- the file of the secret

static void read_secret(void *path) {
    Secret s;
    secret_read(&s, (const char *)path);
}

static void assert_secret_refused(const char *path, const char *words) {
    assert_stops(2, words, read_secret, (void *)path);
}

static void test_secret_file(void **state) {
    (void)state;
    Secret s;
    const char *path = write_file("secret", "0123456789abcdef\r\n\n", 19);
    chmod(path, 0600);
    secret_read(&s, path);
    assert_int_equal(s.length, 16);
    assert_memory_equal(s.bytes, "0123456789abcdef", 16);
    const int modes[] = {0640, 0604, 0620, 0602, 0610, 0601, 0644};
    for (int i = 0; i < 7; i++) {
        chmod(path, (mode_t)modes[i]);
        assert_secret_refused(path, "so other users may know the secret: make a new one with: (umask 077; head");
    }
    path = write_file("short", "0123456789abcde\n\n\n\n", 19);
    chmod(path, 0600);
    assert_secret_refused(path, "has 15 bytes, expected 16 to 4096; make one with: (umask 077; head -c 32");
    static const char zeros[SECRET_MOST + 1];
    path = write_file("long", zeros, sizeof zeros);
    chmod(path, 0600);
    assert_secret_refused(path, "has more than 4096 bytes, expected 16 to 4096");
    assert_secret_refused("/nonexistent", "cannot be read (No such file or directory); make one with: (umask 077");
    assert_secret_refused("/tmp", "is not a regular file");
    path = temp_path("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_secret_refused(path, "is not a regular file");
    if (geteuid() == 0) {
        path = write_file("foreign", zeros, 32);
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(chown(path, 12345, 12345), 0);
        assert_secret_refused(path, "belongs to user 12345, expected user 0, who runs this rank");
    }
}

// ---- by files

static void test_files_are_private(void **state) {
    (void)state;
    const char *path = temp_path("job.ask.1"), *part = temp_path("job.ask.1.part");
    const char *victim = write_file("victim", "unharmed", 8);
    char link[256];
    struct stat info;
    snprintf(link, sizeof link, "%s", temp_path("link"));
    mode_t before = umask(0);
    assert_int_equal(symlink(victim, part), 0);  // what another user may have put into the folder
    rendezvous_write(path, "a secret", 8);
    umask(before);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISREG(info.st_mode));
    assert_int_equal(info.st_mode & 07777, 0600);
    char read_back[8];
    assert_true(rendezvous_read(victim, read_back, 8));
    assert_memory_equal(read_back, "unharmed", 8);
    assert_true(rendezvous_read(path, read_back, 8));
    assert_memory_equal(read_back, "a secret", 8);
    assert_int_equal(symlink(path, link), 0);
    assert_false(rendezvous_read(link, read_back, 8));
    unlink(path);
}

// The connections that follow a rendezvous by files need the secret of these files, another one each time.
static void test_wire_by_file_secret(void **state) {
    (void)state;
    needs_libcrypto();
    WireHello hellos[2];
    memset(hellos, 0, sizeof hellos);
    for (int i = 0; i < 2; i++) {
        const char *folder = temp_path(i ? "wire_1" : "wire_0");
        assert_int_equal(mkdir(folder, 0700), 0);
        char payload[sizeof payload_text] = "";
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            memcpy(payload, payload_text, sizeof payload);
            const Rendezvous zero = rendezvous_of(0, 2, payload);
            if (!freopen("/dev/null", "w", stderr)) { _exit(9); }
            wire_by_file(&zero, folder);
            _exit(0);
        }
        const Rendezvous by_file = {1, 2, "job", 60, &hellos[i], sizeof hellos[i], NULL, NULL};
        rendezvous_file(&by_file, folder);
        assert_string_equal(hellos[i].payload, payload_text);
        RankZero z;
        memset(&z, 0, sizeof z);
        snprintf(z.server, sizeof z.server, "127.0.0.1:%d", hellos[i].port);
        Secret wrong = {{0}, 32}, right = {{0}, 32};
        memcpy(right.bytes, hellos[i].secret, 32);
        Rendezvous r = {1, 2, "job", 60, NULL, 0, &wrong, "-pf"};
        int stranger, rank, status;
        assert_int_equal(enter(&z, &r, &stranger), HANDSHAKE_WRONG_SECRET);
        r.secret = &right;
        assert_int_equal(enter(&z, &r, &rank), HANDSHAKE_ACCEPTED);
        waitpid(child, &status, 0);
        assert_int_equal(status, 0);
        close(stranger);
        close(rank);
    }
    assert_memory_not_equal(hellos[0].secret, hellos[1].secret, 32);
}

// Ranks that have rank 0's files early wait for it quietly, until the last rank has them.
static void test_wire_by_file_late_rank(void **state) {
    (void)state;
    needs_libcrypto();
    const char *folder = temp_path("late");
    const char *output = temp_path("late_output");
    pid_t children[3];
    assert_int_equal(mkdir(folder, 0700), 0);
    handshake_seconds = 5;
    for (int rank = 0; rank < 3; rank++) {
        fflush(NULL);
        children[rank] = fork();
        if (children[rank] == 0) {
            char payload[sizeof payload_text] = "";
            const Rendezvous r = rendezvous_of(rank, 3, payload);
            if (rank == 0 && !freopen(output, "w", stderr)) { _exit(9); }
            if (rank == 2) { sleep(6); }
            wire_close(wire_by_file(&r, folder));
            fflush(NULL);
            _exit(0);
        }
    }
    handshake_seconds = 60;
    for (int rank = 0; rank < 3; rank++) {
        int status;
        waitpid(children[rank], &status, 0);
        assert_int_equal(status, 0);
    }
    struct stat written;
    assert_int_equal(stat(output, &written), 0);
    assert_int_equal(written.st_size, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tag),
        cmocka_unit_test(test_enters),
        cmocka_unit_test(test_payload_is_masked),
        cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_wrong_rank),
        cmocka_unit_test(test_wrong_job),
        cmocka_unit_test(test_duplicate_rank),
        cmocka_unit_test(test_duplicate_acknowledgement),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_reflection),
        cmocka_unit_test(test_false_rank_zero),
        cmocka_unit_test(test_changed_payload),
        cmocka_unit_test(test_changed_request),
        cmocka_unit_test(test_silent_and_closed),
        cmocka_unit_test(test_dripping),
        cmocka_unit_test(test_cut_and_too_long),
        cmocka_unit_test(test_many_silent),
        cmocka_unit_test(test_answered_keeps_its_place),
        cmocka_unit_test(test_listener_does_not_block),
        cmocka_unit_test(test_listens_at_its_address_only),
        cmocka_unit_test(test_address_of_another_machine),
        cmocka_unit_test(test_hidden_name),
        cmocka_unit_test(test_secret_file),
        cmocka_unit_test(test_files_are_private),
        cmocka_unit_test(test_wire_by_file_secret),
        cmocka_unit_test(test_wire_by_file_late_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
