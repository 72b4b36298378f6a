// Fuzzes messages of other processes to the rendezvous and the wire: the bytes of connections, and the files of a
// shared folder. Each socket is one end of a socket pair, and the other end has sent the input. So the target needs no
// network, and knows no form of a message. The execution stops if a reader waits, or asks for connections again and
// again.
// In kinds 0, 1 and 6, bit i of the second byte makes the i-th checked tag right, since no fuzzer guesses a tag. The
// connections follow, with "~~~" between them.
#include "dev/fuzz/fuzz.h"
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

enum { FUZZ_MOST_CALLS = 40 };

// The input of an execution's connections. calls: connections and pauses so far; knows: a bit for each checked tag, 1:
// the tag is right; listens: the reader is rank 0, and its clients may stay silent.
typedef struct {
    FuzzBytes bytes;
    int calls, knows, tags, right_tags;
    bool listens;
} FuzzPeer;

static FuzzPeer *fuzz_peer(void) {
    static FuzzPeer peer;
    return &peer;
}

// whether the next tag is right
static bool fuzz_tag(void) {
    FuzzPeer *peer = fuzz_peer();
    bool right = peer->knows >> peer->tags++ % 8 & 1;
    peer->right_tags += right;
    return right;
}

static void fuzz_pause(void) {
    if (++fuzz_peer()->calls > FUZZ_MOST_CALLS || !fuzz_peer()->bytes.size) { input_error("nothing more comes"); }
}

// One end of a socket pair. The other end has sent the next connection's bytes and is closed for writing. If the reader
// is rank 0, the first byte is not sent: it says whether the other end is closed. No bytes: descriptors have run out.
static int fuzz_open_peer(void) {
    int ends[2];
    FuzzPeer *peer = fuzz_peer();
    if (++peer->calls > FUZZ_MOST_CALLS) { input_error("there is no other connection"); }
    errno = peer->bytes.size ? EMFILE : EAGAIN;
    FuzzBytes sent = fuzz_part(&peer->bytes);
    if (sent.size == 0) { return -1; }
    bool stays = peer->listens && fuzz_choice(&sent, 2) == 1;
    fuzz_require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a socket pair");
    fuzz_require(send(ends[1], sent.data, sent.size, MSG_NOSIGNAL) == (ssize_t)sent.size, "room in a socket");
    if (!stays) { shutdown(ends[1], SHUT_WR); }
    return ends[0];
}
static int fuzz_accept(int listener, struct sockaddr *address, socklen_t *length, int flags) {
    (void)listener, (void)flags;
    if (address) { memset(address, 0, *length); }
    return fuzz_open_peer();
}
static int fuzz_connect(int peer, const void *address, socklen_t length) {
    (void)peer, (void)address, (void)length;
    return 0;
}
static int fuzz_socket(int family, int type, int protocol) {
    (void)family, (void)type, (void)protocol;
    return fuzz_open_peer();
}
// a message comes in several parts
static ssize_t fuzz_recv(int peer, void *data, size_t bytes, int flags) {
    return recv(peer, data, bytes - bytes / 3, flags);
}
static int fuzz_resolve(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static struct addrinfo address;
    (void)host, (void)service;
    address = *hints;
    *found = &address;
    return 0;
}
static void fuzz_free_address(struct addrinfo *address) { (void)address; }

#define accept4 fuzz_accept
#define connect fuzz_connect
#define recv fuzz_recv
#define socket(family, type, protocol) fuzz_socket(family, type, protocol)
#define getaddrinfo fuzz_resolve
#define freeaddrinfo fuzz_free_address
// random numbers are always the same
#include "llmc/parallel/secret.h"
#define secret_tag(tag, secret, data, bytes) ((void)(secret), (void)(data), memset(tag, 1, SECRET_TAG))
#define secret_equal(a, b) ((void)(a), (void)(b), fuzz_tag())
#define secret_random(data, bytes) memset(data, 2, bytes)
#define usleep(microseconds) fuzz_pause()
#include "llmc/parallel/comm_wire.h"
#undef accept4
#undef connect
#undef recv
#undef socket
#undef getaddrinfo
#undef freeaddrinfo
#undef usleep

// a rank of a job with a payload as long as NCCL's id
static Rendezvous fuzz_rank(int rank, int size, char payload[128]) {
    static const Secret secret;
    Rendezvous r;
    memset(&r, 0, sizeof r);
    memset(payload, 'p', 128);
    r.rank = rank;
    r.size = size;
    r.job = "fuzz";
    r.timeout = 60;
    r.payload = payload;
    r.bytes = 128;
    r.secret = &secret;
    r.secret_flag = "--secret-file";
    return r;
}

// rank 0 of three, whose listener is always ready
static void serve(void) {
    char payload[128];
    int peers[3] = {-1, -1, -1}, listener[2];
    Rendezvous r = fuzz_rank(0, 3, payload);
    fuzz_peer()->listens = true;
    fuzz_require(pipe(listener) == 0 && write(listener[1], "", 1) == 1, "a pipe");
    rendezvous_serve(&r, listener[0], "here", peers);
    fuzz_require(peers[1] >= 0 && peers[2] >= 0 && peers[1] != peers[2], "a connection of each rank");
    fuzz_require(fuzz_peer()->right_tags >= 4, "a request and an acknowledgement of each rank with right tags");
    input_error("all ranks have connected");  // closes the descriptors
}

static void connect_to_rank_0(void) {
    char payload[128];
    int peers[2] = {-1, -1};
    Rendezvous r = fuzz_rank(1, 2, payload);
    rendezvous_connect(&r, "localhost:1", HANDSHAKE_SECONDS, peers);
    fuzz_require(peers[0] >= 0 && fuzz_peer()->right_tags >= 1, "a reply with a right tag");
    input_error("rank 0 has answered");
}

static void take_files(FuzzBytes input, int rank) {
    char payload[128];
    Rendezvous r = fuzz_rank(rank, 2, payload);
    fuzz_write(rank == 0 ? "fuzz.ask.1" : "fuzz.answer.1", input);
    rendezvous_file(&r, fuzz_state()->folder);
}

// the reply of rank 0 in a file, and then the connection to the address in it
static void take_file_and_connect(void) {
    char payload[128];
    Rendezvous r = fuzz_rank(1, 2, payload);
    fuzz_write("fuzz.answer.1", fuzz_part(&fuzz_peer()->bytes));
    wire_close(wire_by_file(&r, fuzz_state()->folder));
    fuzz_require(fuzz_peer()->right_tags >= 1, "a reply with a right tag");
    input_error("rank 0 of the file has answered");  // closes the other end
}

static void take_secret(FuzzBytes input) {
    Secret secret;
    const char *path = fuzz_write("secret", input);
    fuzz_require(chmod(path, 0600) == 0, "a file of this process");
    secret_read(&secret, path);
    fuzz_require(secret.length >= SECRET_LEAST && secret.length <= SECRET_MOST, "a secret of 16 to 4096 bytes");
}

static void use_wire(int rank) {
    int *peers = (int *)xcalloc(2, sizeof *peers);
    peers[1 - rank] = fuzz_open_peer();
    Wire *w = wire_open(rank, 2, 1, peers);
    wire_check(w);
    for (int i = 0; i < 4; i++) { wire_max(i, w); }
    input_error("the wire holds");
}

static void read_rendezvous(FuzzBytes input) {
    int kind = fuzz_choice(&input, 8);
    int knows = kind < 2 || kind == 6 ? fuzz_choice(&input, 256) : 0;
    *fuzz_peer() = (FuzzPeer){input, 0, knows, 0, 0, false};
    if (kind == 0) { serve(); }
    if (kind == 1) { connect_to_rank_0(); }
    if (kind == 2 || kind == 3) { take_files(input, kind - 2); }
    if (kind == 4 || kind == 5) { use_wire(kind - 4); }
    if (kind == 6) { take_file_and_connect(); }
    if (kind == 7) { take_secret(input); }
}

FUZZ_TARGET(rendezvous, read_rendezvous)
