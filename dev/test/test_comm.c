/*
Communicators.
    test_comm                 a group of one; chunk sizes; rendezvous, TCP connections and watchdog
    test_comm backends        the backends of this build
    mpirun test_comm ranks    every collective on every group of this world against a serial sum, bit for bit
    mpirun test_comm FAULT R  rank R fails, leaves or hangs; dev/test/test_comm.sh checks the error and the exit status
*/
#include "testing.h"
#include "testing_tcp.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/parallel/comm_watch.h"
#include "llmc/common/rng.h"
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/stat.h>

// ---- one process

static void test_chunks(void **state) {
    (void)state;
    for (int size = 1; size <= 9; size++) {
        for (size_t count = 0; count <= 40; count++) {
            size_t chunk = chunk_size(count, size), sum = 0;
            uint64_t sent = 0;
            for (int rank = 0; rank < size; rank++) {
                size_t part = chunk_range(count, chunk, rank).count;
                assert_true(part <= chunk);
                assert_true(part == chunk || sum + part == count);  // only the last chunks are short
                sum += part;
                sent += all_reduce_bytes(count, DT_F32, rank, size);
            }
            assert_int_equal(sum, count);
            assert_int_equal(sent, 2 * (size_t)(size - 1) * count * 4);
        }
    }
}

static void test_single(void **state) {
    (void)state;
    Comm *comm = comm_single(&cpu_device), *part = comm_split(comm, 3, 5);
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    comm_all_reduce(x, 4, DT_F32, part, NULL);
    comm_broadcast(x, 4, DT_F32, 0, part, NULL);
    comm_reduce_scatter(x, x, 4, DT_F32, part, NULL);
    comm_all_gather(y, x, 4, DT_F32, part, NULL);
    const float expected[4] = {1, 2, 3, 4};
    assert_memory_equal(x, expected, sizeof x);
    assert_memory_equal(y, expected, sizeof y);
    memset(y, 0, sizeof y);
    CommWork work = comm_reduce_scatter(y, x, 4, DT_F32, part, NULL);
    assert_int_equal(work, 5);
    comm_wait(work, part, NULL);
    comm_event_synchronize(0, part, NULL);
    comm_barrier(part);
    assert_memory_equal(y, expected, sizeof y);
    assert_int_equal(comm_max(-7, part), -7);
    assert_int_equal(part->sent_bytes, 0);
    assert_int_equal(part->size, 1);
    comm_close(part);
    comm_close(comm);
}

static void sum_bytes(void *comm) {
    char x[4] = {0};
    comm_all_reduce(x, 4, DT_U8, (Comm *)comm, NULL);
}

static void gather_halves(void *comm) {
    char x[8] = {0};
    comm_all_gather(x, x, 4, DT_F16, (Comm *)comm, NULL);
}

static void overlap(void *comm) {
    float x[8] = {0};
    comm_all_gather(x, x + 1, 4, DT_F32, (Comm *)comm, NULL);
}

static void broadcast_from_nobody(void *comm) {
    float x = 0;
    comm_broadcast(&x, 1, DT_F32, 1, (Comm *)comm, NULL);
}

static void test_refusals(void **state) {
    (void)state;
    Comm *comm = comm_single(&cpu_device);
    assert_stops(1, "all_reduce of type U8", sum_bytes, comm);
    assert_stops(1, "all_gather of type F16", gather_halves, comm);
    assert_stops(1, "overlaps", overlap, comm);
    assert_stops(1, "broadcast from rank 1 of 1", broadcast_from_nobody, comm);
    comm_close(comm);
}

static void cpus_through_a_file(void *host) {
    const CommOptions options = {COMM_INIT_FILE, 2, 0, 1, NULL, "/tmp", "job", 1, NULL};
    comm_open_for(&cpu_device, &options, (Comm *)host);
}

static void test_open(void **state) {
    (void)state;
    const CommOptions options = {COMM_INIT_MPI, 1, 0, 1, NULL, NULL, "job", 5, NULL};
    Comm *host = comm_open();
    assert_int_equal(host->size, 1);
    assert_ptr_equal(comm_open_for(&cpu_device, &options, host), host);
    assert_true(host->timeout == 5);
    assert_stops(2, secret_library() ? "but this run is on CPUs" : "install libssl-dev", cpus_through_a_file, host);
    comm_close(host);
    char backends[512];
    comm_backends(backends, sizeof backends);
    assert_int_equal(strncmp(backends, "single", 6), 0);
#ifdef HAVE_MPI
    assert_non_null(strstr(backends, ", MPI ("));
#endif
}

// ---- rendezvous, one process per rank; a rank without the payload of rank 0 exits with 1

static const char payload_text[] = "the payload of rank 0";
static const Secret secret = {"a secret of all ranks", 21};

typedef struct {
    int rank, size;
    const char *job, *folder, *server;
    double timeout, delay;
} TestRank;

static void run_rendezvous(void *self) {
    const TestRank *g = (const TestRank *)self;
    char answer[sizeof payload_text] = "";
    Rendezvous rendezvous = {g->rank, g->size, g->job, g->timeout, answer, sizeof answer, &secret, "--secret-file"};
    if (g->rank == 0) { memcpy(answer, payload_text, sizeof answer); }
    usleep((useconds_t)(g->delay * 1e6));
    if (g->folder) {
        rendezvous_file(&rendezvous, g->folder);
    } else {
        int *peers = (int *)xcalloc((size_t)g->size, sizeof *peers);
        rendezvous_tcp(&rendezvous, g->server, peers);
        for (int i = g->rank == 0; i < (g->rank == 0 ? g->size : 1); i++) { close(peers[i]); }
        free(peers);
    }
    if (memcmp(answer, payload_text, sizeof answer) != 0) { run_error("rank %d got '%s'", g->rank, answer); }
}

static pid_t start(const TestRank *self) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run_rendezvous((void *)self);
        _exit(0);
    }
    return child;
}

// starts `size` ranks, rank 0 first or last; every rank gets the payload
static void assert_rendezvous(TestRank like, bool rank_0_last) {
    pid_t children[8];
    for (int rank = 0; rank < like.size; rank++) {
        TestRank self = like;
        self.rank = rank;
        self.delay = rank_0_last == (rank == 0) ? 0.1 : 0;
        children[rank] = start(&self);
    }
    for (int rank = 0; rank < like.size; rank++) {
        int status;
        assert_int_equal(waitpid(children[rank], &status, 0), children[rank]);
        if (status != 0) { fail_msg("rank %d of %d ended with wait status %d", rank, like.size, status); }
    }
}

static void assert_empty_folder(const char *folder) { assert_int_equal(rmdir(folder), 0); }

static const char *new_folder(const char *name) {
    const char *folder = temp_path(name);
    assert_int_equal(mkdir(folder, 0777), 0);
    return folder;
}

static void test_file(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) {
        const char *folder = new_folder("rendezvous");
        TestRank self = {0, size, "job", folder, NULL, 20, 0};
        assert_rendezvous(self, true);
        assert_rendezvous(self, false);  // again, as if the job is restarted
        assert_empty_folder(folder);
    }
}

// a killed run left requests and replies of the same job: no rank may accept them
static void test_file_ignores_what_is_left(void **state) {
    (void)state;
    for (int late = 0; late < 2; late++) {
        const char *folder = new_folder("left");
        char stale[sizeof payload_text] = "an old payload", path[PATH_LENGTH];
        Rendezvous old = {0, 3, "job", 1, stale, sizeof stale, NULL, NULL};
        for (int rank = 1; rank < 3; rank++) {
            RendezvousMessage request = rendezvous_request(&old, rank, 42), reply = rendezvous_reply(&old, request);
            rendezvous_path(path, &old, folder, "ask", rank);
            rendezvous_write(path, &request, sizeof request);
            rendezvous_path(path, &old, folder, "answer", rank);
            rendezvous_write(path, &reply, sizeof reply);
        }
        TestRank self = {0, 3, "job", folder, NULL, 20, 0};
        assert_rendezvous(self, late);
        assert_empty_folder(folder);
    }
}

static void test_file_keeps_jobs_apart(void **state) {
    (void)state;
    const char *folder = new_folder("jobs");
    TestRank one = {1, 2, "one", folder, NULL, 20, 0}, other = {0, 2, "other", folder, NULL, 0.3, 0};
    pid_t waiting = start(&one);
    assert_stops(1, "job 'other', rank 0 of 2: rank 1 did not connect", run_rendezvous, &other);
    one.rank = 0;
    run_rendezvous(&one);
    int status;
    waitpid(waiting, &status, 0);
    assert_int_equal(status, 0);
    assert_empty_folder(folder);
}

static void test_file_timeout(void **state) {
    (void)state;
    TestRank self = {2, 4, "job", new_folder("alone"), NULL, 0.2, 0};
    assert_stops(1, "job 'job', rank 2 of 4: rank 0 did not connect", run_rendezvous, &self);
    self.rank = 0;
    assert_stops(1, "ranks 1, 2, 3 did not connect", run_rendezvous, &self);  // rank 2 sent a request and ended
    TestRank nowhere = {1, 2, "job", "/nonexistent/folder", NULL, 0.2, 0};
    assert_stops(2, "could not be written (No such file", run_rendezvous, &nowhere);
}

static void test_tcp(void **state) {
    (void)state;
    needs_libcrypto();
    for (int size = 1; size <= 4; size++) {
        TestRank self = {0, size, "job", NULL, free_address(), 20, 0};
        assert_rendezvous(self, true);
        assert_rendezvous(self, false);
    }
}

static void test_tcp_refusals(void **state) {
    (void)state;
    needs_libcrypto();
    TestRank self = {0, 3, "job", NULL, free_address(), 0.2, 0};
    assert_stops(1, "ranks 1, 2 did not connect", run_rendezvous, &self);
    self.rank = 1;
    assert_stops(1, "rank 1 of 3: rank 0 did not connect", run_rendezvous, &self);
    const char *const nowhere[] = {"", ":80", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:http"};
    for (int i = 0; i < 5; i++) {
        self.server = nowhere[i];
        assert_stops(2, "as the address of rank 0, expected HOST:PORT", run_rendezvous, &self);
    }
    const char *const bare[] = {"fe80::2", "::1", "fe80::2:29500", "fe80::2]:29500"};
    for (int i = 0; i < 4; i++) {
        self.server = bare[i];
        assert_stops(2, "an IPv6 address takes brackets: [fe80::2] or [fe80::2]:12345", run_rendezvous, &self);
    }
}

// addresses are tried in turn: no process listens at the first
static void test_tcp_next_address(void **state) {
    (void)state;
    needs_libcrypto();
    char closed[32];
    snprintf(closed, sizeof closed, "%s", free_address());
    struct addrinfo *first = address_resolve(closed);
    TestRank self = {0, 2, "job", NULL, free_address(), 20, 0};
    pid_t host = start(&self);
    struct addrinfo *second = address_resolve(self.server);
    Rendezvous rendezvous = {1, 2, "job", 20, NULL, 0, &secret, "--secret-file"};
    int peer = -1, status;
    for (double end = now_seconds() + 10; peer < 0 && now_seconds() < end; rendezvous_pause()) {
        assert_int_equal(handshake_try_any(&rendezvous, first, HANDSHAKE_SECONDS, end, &peer), HANDSHAKE_NONE);
        first->ai_next = second;
        handshake_try_any(&rendezvous, first, HANDSHAKE_SECONDS, end, &peer);
        first->ai_next = NULL;
    }
    assert_true(peer >= 0);
    close(peer);
    waitpid(host, &status, 0);
    assert_int_equal(status, 0);
    freeaddrinfo(first);
    freeaddrinfo(second);
}

// one socket listens on IPv4 and IPv6
static void test_tcp_families(void **state) {
    (void)state;
    char host[256];
    assert_int_equal(address_parse(host, "10.0.1.220"), 12345);
    assert_string_equal(host, "10.0.1.220");
    assert_int_equal(address_parse(host, "[fe80::2]"), 12345);
    assert_string_equal(host, "fe80::2");
    assert_int_equal(address_parse(host, "[::1]:29500"), 29500);
    assert_string_equal(host, "::1");
    struct sockaddr_in6 own;
    memset(&own, 0, sizeof own);
    own.sin6_family = AF_INET6;
    own.sin6_addr = in6addr_loopback;
    int port, listener = socket_listen_any_port(&port), probe = socket(AF_INET6, SOCK_STREAM, 0);
    bool has_six = probe >= 0 && bind(probe, (struct sockaddr *)&own, sizeof own) == 0;
    const char *const servers[] = {"127.0.0.1", "[::1]"};
    for (int i = 0; i < 1 + has_six; i++) {
        char server[32];
        snprintf(server, sizeof server, "%s:%d", servers[i], port);
        struct addrinfo *address = address_resolve(server);
        int peer = socket_connect(address, now_seconds() + 5);
        assert_true(peer >= 0);
        close(peer);
        freeaddrinfo(address);
    }
    if (probe >= 0) { close(probe); }
    close(listener);
}

// A host that does not answer, as behind a firewall, delays a rank no longer than its timeout. Here the listener's
// queue is full, so the kernel drops new connections.
static void test_tcp_no_answer(void **state) {
    (void)state;
    TestRank self = {1, 2, "job", NULL, free_address(), 0.5, 0};
    struct addrinfo *address = address_resolve(self.server);
    int listener = socket(AF_INET, SOCK_STREAM, 0), clients[4];
    assert_int_equal(bind(listener, address->ai_addr, address->ai_addrlen), 0);
    assert_int_equal(listen(listener, 0), 0);
    // the first connection fits the queue; the other attempts run into their deadline
    for (int i = 0; i < 4; i++) { clients[i] = socket_connect(address, now_seconds() + (i == 0 ? 20 : 0.1)); }
    assert_true(clients[0] >= 0);
    assert_int_equal(clients[3], -1);
    double start = now_seconds();
    assert_stops(1, "rank 1 of 2: rank 0 did not connect", run_rendezvous, &self);
    assert_true(now_seconds() - start < 60);  // connect alone takes two minutes
    for (int i = 0; i < 4; i++) {
        if (clients[i] >= 0) { close(clients[i]); }
    }
    close(listener);
    freeaddrinfo(address);
}

static void test_job_name(void **state) {
    (void)state;
    char name[64];
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_STEP_ID");
    unsetenv("SLURM_STEPID");
    rendezvous_job(name, sizeof name);
    assert_string_equal(name, "train_gpt2");
    setenv("SLURM_JOB_ID", "42", 1);
    rendezvous_job(name, sizeof name);
    assert_string_equal(name, "42");
    setenv("SLURM_STEPID", "7", 1);
    rendezvous_job(name, sizeof name);
    assert_string_equal(name, "42.7");
    setenv("SLURM_STEP_ID", "3", 1);
    rendezvous_job(name, sizeof name);
    assert_string_equal(name, "42.3");
    unsetenv("SLURM_JOB_ID");
    unsetenv("SLURM_STEP_ID");
    unsetenv("SLURM_STEPID");
}

// ---- TCP connections, one process per rank

typedef struct {
    int rank, size;
    const char *server, *folder;  // one of the two
    const char *fault;            // "": none, "leaves", "hangs"
    int culprit;
} WireRank;

static Wire *new_wire(const WireRank *g) {
    char answer[sizeof payload_text] = "";
    if (g->rank == 0) { memcpy(answer, payload_text, sizeof answer); }
    Rendezvous rendezvous = {g->rank, g->size, "job", 20, answer, sizeof answer, &secret, "--secret-file"};
    Wire *w = g->folder ? wire_by_file(&rendezvous, g->folder) : wire_by_tcp(&rendezvous, g->server);
    if (memcmp(answer, payload_text, sizeof answer) != 0) { run_error("rank %d got '%s'", g->rank, answer); }
    return w;
}

static void use_wire(void *self) {
    const WireRank *g = (const WireRank *)self;
    Wire *w = new_wire(g);
    for (int best = 0; best < g->size; best++) {
        bool mine = best == g->rank;
        long long most = wire_max(mine ? LLONG_MAX - best : LLONG_MIN + g->rank, w);
        if (most != LLONG_MAX - best) { run_error("rank %d received %lld", g->rank, most); }
        most = wire_max(mine ? -1 : -2 - g->rank, w);
        if (most != -1) { run_error("rank %d received %lld", g->rank, most); }
    }
    wire_check(w);  // every rank is connected: each is at the next wire_max or before
    wire_max(0, w);
    if (strcmp(g->fault, "hangs") == 0) { w->timeout = 2; }  // from here on only the culprit is slow
    if (g->rank == g->culprit && strcmp(g->fault, "leaves") == 0) { _exit(0); }
    if (g->rank == g->culprit && strcmp(g->fault, "hangs") == 0) { sleep(60); }
    for (int i = 0; *g->fault && i < 2; i++) { wire_max(0, w); }
    wire_close(w);
}

// starts every rank except `self`, the caller
static void start_wires(pid_t *children, WireRank like, int self) {
    for (int rank = 0; rank < like.size; rank++) {
        like.rank = rank;
        fflush(NULL);
        children[rank] = rank == self ? 0 : fork();
        if (rank == self || children[rank] > 0) { continue; }
        if (!freopen("/dev/null", "w", stderr)) { _exit(9); }  // only the caller's error is checked
        use_wire(&like);
        _exit(0);
    }
}

static void test_wire(void **state) {
    (void)state;
    needs_libcrypto();
    for (int i = 0; i < 6; i++) {
        int size = 2 + i / 2;
        const char *folder = i % 2 ? new_folder("wire") : NULL;
        WireRank self = {0, size, free_address(), folder, "", 0};
        pid_t children[4];
        start_wires(children, self, -1);
        for (int rank = 0; rank < size; rank++) {
            int status;
            waitpid(children[rank], &status, 0);
            if (status != 0) { fail_msg("rank %d of %d ended with wait status %d", rank, size, status); }
        }
        if (folder) { assert_empty_folder(folder); }
    }
}

// the error of rank `self` of three if the culprit has this fault
static void assert_wire_says(const char *sentence, int self, const char *fault, int culprit) {
    WireRank rank_self = {self, 3, free_address(), NULL, fault, culprit};
    pid_t children[3];
    start_wires(children, rank_self, self);
    assert_stops(1, sentence, use_wire, &rank_self);
    for (int rank = 0; rank < 3; rank++) {
        if (rank == self) { continue; }
        kill(children[rank], SIGKILL);
        waitpid(children[rank], NULL, 0);
    }
}

static void test_wire_faults(void **state) {
    (void)state;
    needs_libcrypto();
    assert_wire_says("rank 2 has ended: see the last message of that rank", 0, "leaves", 2);
    assert_wire_says("rank 0 has ended: see the last message of that rank", 1, "leaves", 0);
    assert_wire_says("rank 1 has not answered for 2 s; if nothing hangs there", 0, "hangs", 1);
    assert_wire_says("rank 0 has ended: see the last message of that rank", 1, "hangs", 2);  // rank 0 names rank 2
}

static void check_lost_wire(void *wire) { wire_check((const Wire *)wire); }

static void test_wire_check(void **state) {
    (void)state;
    int ends[2], *peers = (int *)xcalloc(2, sizeof *peers);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    peers[0] = peers[1] = ends[0];
    Wire *w = wire_open(0, 2, 1, peers);
    wire_check(w);
    wire_send(ends[1], 0, 42);
    wire_check(w);
    long long value = 0;
    AwakeClock clock = {0, 0};
    assert_true(wire_receive(ends[0], 1, &value, &clock, 0));
    assert_int_equal(value, 42);  // wire_check received nothing
    assert_false(wire_receive(ends[0], 1, &value, &clock, 0));
    close(ends[1]);
    assert_stops(1, "rank 1 has ended", check_lost_wire, w);
    wire_close(w);
}

static void note_signal(int number) { (void)number; }

static void receive_from_lost(void *wire) {
    long long value;
    AwakeClock clock = {0, 0};
    errno = EINTR;  // as after a signal
    wire_receive(((const Wire *)wire)->peers[1], 1, &value, &clock, 20);
}

// A caught signal does not end a wait: a run that receives SIGTERM still waits for the other ranks. The signal's errno
// does not hide a closed connection.
static void test_wire_signal(void **state) {
    (void)state;
    int ends[2], *peers = (int *)xcalloc(2, sizeof *peers);
    long long value = 0;
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, &before);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    peers[0] = peers[1] = ends[0];
    Wire *w = wire_open(0, 2, 1, peers);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 5; i++) {
            usleep(20000);
            kill(getppid(), SIGUSR1);
        }
        wire_send(ends[1], 0, 42);
        _exit(0);
    }
    close(ends[1]);
    AwakeClock clock = {0, 0};
    assert_true(wire_receive(ends[0], 1, &value, &clock, 20));
    assert_int_equal(value, 42);
    waitpid(child, NULL, 0);
    assert_stops(1, "rank 1 has ended", receive_from_lost, w);
    wire_close(w);
    sigaction(SIGUSR1, &before, NULL);
}

// A process that is stopped for longer than the timeout receives a value that comes after it goes on.
static void test_wire_stopped(void **state) {
    (void)state;
    enum { TIMEOUT = 3 };
    int ends[2], status;
    long long value = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        AwakeClock clock = {0, 0};
        _exit(wire_receive(ends[0], 1, &value, &clock, TIMEOUT) && value == 42 ? 0 : 1);
    }
    usleep(300000);
    kill(child, SIGSTOP);
    sleep(TIMEOUT + 1);
    kill(child, SIGCONT);
    usleep(300000);
    wire_send(ends[1], 0, 42);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    close(ends[0]);
    close(ends[1]);
}

static void test_awake_clock(void **state) {
    (void)state;
    AwakeClock clock = {0, 0};
    assert_true(awake_seconds(&clock) == 0);
    for (double end = now_seconds() + 20; awake_seconds(&clock) < 0.1 && now_seconds() < end;) { usleep(1000); }
    double before = awake_seconds(&clock);
    assert_true(before >= 0.1);
    clock.read -= 1000;  // as if the process had been stopped
    assert_true(awake_seconds(&clock) == before);
}

// ---- watchdog

static void note_check(void *most, double waited) {
    double last;
    __atomic_load((double *)most, &last, __ATOMIC_RELAXED);
    if (waited > last) { __atomic_store((double *)most, &waited, __ATOMIC_RELAXED); }
}

// Waits until a check has reported more than `seconds`: a busy machine runs the watchdog's thread late.
static void wait_for_check(double *most, double seconds) {
    double seen = 0;
    for (double end = now_seconds() + 20; seen <= seconds && now_seconds() < end; usleep(10000)) {
        __atomic_load(most, &seen, __ATOMIC_RELAXED);
    }
}

static void test_watch(void **state) {
    (void)state;
    Watch *watch = (Watch *)xmalloc(sizeof *watch);  // clang's ThreadSanitizer does not follow it on the stack
    double most = 0;
    watch_open(watch, note_check, &most);
    usleep(150000);
    assert_true(most == 0);  // no check outside watch_enter and watch_leave
    for (int i = 0; i < 100; i++) {
        watch_enter(watch);
        watch_leave(watch);
    }
    watch_enter(watch);
    wait_for_check(&most, 0.1);
    watch_leave(watch);
    assert_true(most > 0.1);
    most = 0;
    usleep(150000);
    assert_true(most == 0);
    watch_close(watch);
    free(watch);
}

static void check_too_long(void *of, double waited) {
    (void)of;
    if (waited > 0.1) { run_error("it has waited too long"); }
}

static void wait_for_ever(void *of) {
    Watch watch;
    watch_open(&watch, check_too_long, of);
    watch_enter(&watch);
    sleep(60);
    watch_leave(&watch);
}

static void test_watch_stops(void **state) {
    (void)state;
    assert_stops(1, "it has waited too long", wait_for_ever, NULL);
}

static void test_same_gpu(void **state) {
    (void)state;
    RankGpu gpus[4] = {{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}};
    int one, other;
    assert_false(comm_same_card(gpus, 4, &one, &other));
    gpus[3].card = 2;  // a MIG instance of the card of rank 1: memory of its own, but no NCCL
    assert_false(comm_same_card(gpus, 3, &one, &other));
    assert_true(comm_same_card(gpus, 4, &one, &other));
    assert_int_equal(one, 1);
    assert_int_equal(other, 3);
    assert_int_equal(comm_gpu_ranks(gpus, 4, 3), 1);
    gpus[3] = gpus[0] = gpus[1];
    assert_int_equal(comm_gpu_ranks(gpus, 4, 3), 3);
    assert_int_equal(comm_gpu_ranks(gpus, 4, 2), 1);
}

// ---- several ranks

#define CHECK(holds, ...)                                                                                              \
    do {                                                                                                               \
        if (!(holds)) { run_error(__VA_ARGS__); }                                                                      \
    } while (0)

#ifdef HAVE_MPI
// Device memory that the host cannot read: addresses outside the process, so an access crashes.
static const ptrdiff_t FAR_AWAY = (ptrdiff_t)1 << 62;

static void *far_host(const void *p) { return (char *)p - FAR_AWAY; }
static void *far_allocate(size_t bytes) { return (char *)host_allocate(bytes) + FAR_AWAY; }
static void far_release(void *p) { free(far_host(p)); }
static void far_fill(void *p, int byte, size_t bytes) { memset(far_host(p), byte, bytes); }
static void far_upload(void *device, const void *host, size_t bytes) { memcpy(far_host(device), host, bytes); }
static void far_download(void *host, const void *device, size_t bytes) { memcpy(host, far_host(device), bytes); }
static void far_copy(void *to, const void *from, size_t bytes, Exec *ex) {
    (void)ex;
    memcpy(far_host(to), far_host(from), bytes);
}

static Device far_device(void) {
    Device device = cpu_device;
    device.allocate = far_allocate;
    device.release = far_release;
    device.fill = far_fill;
    device.upload = far_upload;
    device.download = far_download;
    device.enqueue_copy = far_copy;
    return device;
}
#endif

// EDGE: bytes past a buffer that no collective may write; PIECES: elements of two pieces in bf16
enum { EDGE = 64, PIECES = 2200013 };

// state of the checks of one world
typedef struct {
    const int *members;  // the group's world ranks, in its order
    Comm *comm;
    char *in, *out;           // device memory
    char *input, *got, *sum;  // host memory
    uint64_t checks;
} Bench;

static const size_t counts[] = {1, 7, 1000003, PIECES};

// element i of a rank's input in this check; magnitudes differ, so that a sum depends on its order
static float input_value(uint64_t check, int world_rank, size_t i) {
    uint64_t bits = rng_mix((check * 8 + (uint64_t)world_rank) << 32 | i);
    if (i % 64 == 6) { return -0.0f; }  // on every rank, and so the sum is -0
    float value = (float)(int32_t)(uint32_t)bits * 0x1p-31f;
    return value * (float)(1 << (bits >> 32) % 8);
}

static void put(void *to, size_t i, float value, DType dtype) {
    if (dtype == DT_F32) {
        ((float *)to)[i] = value;
    } else if (dtype == DT_BF16) {
        ((bf16 *)to)[i] = float_to_bf16(value);
    } else {
        ((uint8_t *)to)[i] = (uint8_t)float_to_bits(value);
    }
}

static float stored(float value, DType dtype) { return dtype == DT_F32 ? value : bf16_to_float(float_to_bf16(value)); }

// serial sum in the order of the group's ranks, in fp32, rounded once
static void serial_sum(void *to, size_t first, size_t count, DType dtype, const Bench *b) {
    for (size_t i = 0; i < count; i++) {
        float sum = stored(input_value(b->checks, b->members[0], first + i), dtype);
        for (int r = 1; r < b->comm->size; r++) {
            sum += stored(input_value(b->checks, b->members[r], first + i), dtype);
        }
        put(to, i, sum, dtype);
    }
}

static void fill_input(char *to, size_t first, size_t count, DType dtype, int world_rank, const Bench *b) {
    for (size_t i = 0; i < count; i++) { put(to, i, input_value(b->checks, world_rank, first + i), dtype); }
}

// Delays one rank of the group, a different one in each check: the sums must not change.
static void delay_one_rank(const Bench *b) {
    if (b->checks % (uint64_t)b->comm->size == (uint64_t)b->comm->rank) { usleep(b->checks % 7 ? 1000 : 30000); }
}

// fills device memory with `input`, or poison if NULL, and a poisoned edge
static void lay_out(char *memory, const void *input, size_t bytes, Bench *b) {
    if (input) {
        b->comm->device->upload(memory, input, bytes);
    } else {
        b->comm->device->fill(memory, 0xAA, bytes);
    }
    b->comm->device->fill(memory + bytes, 0xAA, EDGE);
}

// checks device memory and the poison after it; `alike`: every rank must hold the same bytes
static void check_memory(const char *memory, const void *expected, size_t bytes, bool alike, const char *call,
                         DType dtype, Bench *b) {
    b->comm->device->download(b->got, memory, bytes + EDGE);
    for (size_t i = 0; i < bytes; i++) {
        CHECK(b->got[i] == ((const char *)expected)[i],
              "%s of %zu bytes of %s in a group of %d: byte %zu is %02x, expected %02x", call, bytes, dtype_name(dtype),
              b->comm->size, i, (uint8_t)b->got[i], ((const uint8_t *)expected)[i]);
    }
    for (size_t i = bytes; i < bytes + EDGE; i++) {
        CHECK((uint8_t)b->got[i] == 0xAA, "%s wrote past its end, at %zu of %zu bytes", call, i, bytes);
    }
    if (!alike) { return; }
    uint64_t hash = 0, hashes[8];
    for (size_t i = 0; i < bytes; i++) { hash = (hash ^ (uint8_t)b->got[i]) * 0x100000001B3u; }
    char *place = b->out + (2 << 20);  // the result was downloaded above
    b->comm->device->upload(place + (size_t)b->comm->rank * sizeof hash, &hash, sizeof hash);
    comm_all_gather(place, place + (size_t)b->comm->rank * sizeof hash, sizeof hash, DT_U8, b->comm, NULL);
    b->comm->device->download(hashes, place, (size_t)b->comm->size * sizeof hash);
    for (int r = 0; r < b->comm->size; r++) { CHECK(hashes[r] == hash, "%s: rank %d has other bits", call, r); }
}

static void check_sent(uint64_t before, uint64_t expected, const char *call, const Bench *b) {
    uint64_t sent = b->comm->sent_bytes - before;
    CHECK(sent == expected, "%s sent %lu bytes, expected %lu", call, (unsigned long)sent, (unsigned long)expected);
}

// In a broadcast tree ranks send different numbers of bytes; their sum is one buffer per receiving rank.
static void check_all_sent(uint64_t before, uint64_t expected, const Bench *b) {
    long long sent = 0, mine = (long long)(b->comm->sent_bytes - before);
    for (int r = 0; r < b->comm->size; r++) { sent += comm_max(r == b->comm->rank ? mine : -1, b->comm); }
    CHECK(sent == (long long)expected, "broadcast: the ranks sent %lld bytes, expected %lu", sent,
          (unsigned long)expected);
}

static void check_all_reduce(size_t count, DType dtype, Bench *b) {
    size_t bytes = count * dtype_size(dtype);
    fill_input(b->input, 0, count, dtype, b->members[b->comm->rank], b);
    serial_sum(b->sum, 0, count, dtype, b);
    lay_out(b->out, b->input, bytes, b);
    delay_one_rank(b);
    uint64_t before = b->comm->sent_bytes;
    comm_wait(comm_all_reduce(b->out, count, dtype, b->comm, NULL), b->comm, NULL);
    check_sent(before, all_reduce_bytes(count, dtype, b->comm->rank, b->comm->size), "all_reduce", b);
    check_memory(b->out, b->sum, bytes, true, "all_reduce", dtype, b);
}

static void check_reduce_scatter(size_t count, DType dtype, bool in_place, Bench *b) {
    int size = b->comm->size, rank = b->comm->rank;
    size_t chunk = chunk_size(count, size), bytes = chunk * dtype_size(dtype), own = (size_t)rank * bytes;
    fill_input(b->input, 0, (size_t)size * chunk, dtype, b->members[rank], b);
    serial_sum(b->sum, (size_t)rank * chunk, chunk, dtype, b);
    lay_out(b->in, b->input, (size_t)size * bytes, b);
    lay_out(b->out, NULL, bytes, b);
    delay_one_rank(b);
    uint64_t before = b->comm->sent_bytes;
    comm_reduce_scatter(in_place ? b->in + own : b->out, b->in, chunk, dtype, b->comm, NULL);
    check_sent(before, all_gather_bytes(chunk, dtype, size), "reduce_scatter", b);
    if (in_place) {
        memcpy(b->input + own, b->sum, bytes);
    } else {
        check_memory(b->out, b->sum, bytes, false, "reduce_scatter", dtype, b);
    }
    check_memory(b->in, b->input, (size_t)size * bytes, false, "reduce_scatter, its input", dtype, b);
}

static void check_all_gather(size_t count, DType dtype, bool in_place, Bench *b) {
    int size = b->comm->size, rank = b->comm->rank;
    size_t chunk = chunk_size(count, size), bytes = chunk * dtype_size(dtype);
    for (int r = 0; r < size; r++) { fill_input(b->sum + (size_t)r * bytes, 0, chunk, dtype, b->members[r], b); }
    lay_out(b->out, NULL, (size_t)size * bytes, b);
    char *own = in_place ? b->out + (size_t)rank * bytes : b->in;
    b->comm->device->upload(own, b->sum + (size_t)rank * bytes, bytes);
    delay_one_rank(b);
    uint64_t before = b->comm->sent_bytes;
    comm_all_gather(b->out, own, chunk, dtype, b->comm, NULL);
    check_sent(before, all_gather_bytes(chunk, dtype, size), "all_gather", b);
    check_memory(b->out, b->sum, (size_t)size * bytes, true, "all_gather", dtype, b);
}

static void check_broadcast(size_t count, DType dtype, int root, Bench *b) {
    size_t bytes = count * dtype_size(dtype);
    fill_input(b->sum, 0, count, dtype, b->members[root], b);
    lay_out(b->out, b->comm->rank == root ? b->sum : NULL, bytes, b);
    delay_one_rank(b);
    uint64_t before = b->comm->sent_bytes;
    comm_broadcast(b->out, count, dtype, root, b->comm, NULL);
    check_all_sent(before, (uint64_t)(b->comm->size - 1) * bytes, b);
    check_memory(b->out, b->sum, bytes, true, "broadcast", dtype, b);
}

// every collective of a group, with the first num_counts of `counts`
static void check_group(Comm *comm, const int *members, int num_counts, Bench *b) {
    const DType dtypes[] = {DT_F32, DT_BF16, DT_U8};
    b->comm = comm;
    b->members = members;
    for (int d = 0; d < 3; d++) {
        for (int c = 0; c < num_counts; c++) {
            for (int in_place = 0; in_place < 2; in_place++) {
                if (dtypes[d] != DT_U8) {
                    b->checks++;
                    check_reduce_scatter(counts[c], dtypes[d], in_place, b);
                }
                b->checks++;
                check_all_gather(counts[c], dtypes[d], in_place, b);
            }
            b->checks += 2;
            if (dtypes[d] != DT_U8) { check_all_reduce(counts[c], dtypes[d], b); }
            check_broadcast(counts[c], dtypes[d], (int)(b->checks % (uint64_t)comm->size), b);
        }
    }
}

static void bench_allocate(Bench *b, const Device *device) {
    size_t bytes = (PIECES + 16) * sizeof(float) + EDGE;
    b->in = (char *)device->allocate(bytes);
    b->out = (char *)device->allocate(bytes);
    b->input = (char *)host_allocate(bytes);
    b->got = (char *)host_allocate(bytes);
    b->sum = (char *)host_allocate(bytes);
}

static void bench_free(Bench *b, const Device *device) {
    device->release(b->in);
    device->release(b->out);
    free(b->input);
    free(b->got);
    free(b->sum);
}

// all collectives of the world, on host or device memory
static void check_world(Comm *world) {
    Bench b = {0};
    const int members[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    bench_allocate(&b, world->device);
    check_group(world, members, 4, &b);
    bench_free(&b, world->device);
}

// dp x t with tp fastest; negative keys reverse the order of dp
static void check_split(Comm *world, int t) {
    Bench b = {0};
    int members[8], last = world->size - t + world->rank % t;
    Comm *tp = comm_split(world, world->rank / t, world->rank), *dp = comm_split(world, world->rank % t, -world->rank);
    CHECK(tp->size == t && tp->rank == world->rank % t, "tp: rank %d of %d", tp->rank, tp->size);
    CHECK(dp->size == world->size / t && dp->rank == (last - world->rank) / t, "dp: rank %d of %d", dp->rank, dp->size);
    bench_allocate(&b, world->device);
    for (int r = 0; r < t; r++) { members[r] = world->rank / t * t + r; }
    check_group(tp, members, t > 1 ? 3 : 0, &b);
    for (int r = 0; r < dp->size; r++) { members[r] = last - r * t; }
    check_group(dp, members, dp->size > 1 ? 3 : 0, &b);
    bench_free(&b, world->device);
    comm_close(tp);
    comm_close(dp);
}

// thousands of small collectives on overlapping groups without a barrier: none may receive another's message
static void check_many(Comm *world) {
    int t = world->size % 2 == 0 ? 2 : 1, round;
    Comm *tp = comm_split(world, world->rank / t, world->rank), *dp = comm_split(world, world->rank % t, world->rank);
    for (round = 0; round < 2000; round++) {
        float x = (float)(world->rank + 1), y[8];
        comm_all_reduce(&x, 1, DT_F32, tp, NULL);
        comm_all_reduce(&x, 1, DT_F32, dp, NULL);
        CHECK(2 * x == (float)(world->size * (world->size + 1)), "round %d: the sum is %g", round, (double)x);
        x = (float)(round * 8 + tp->rank);
        comm_all_gather(y, &x, 1, DT_F32, tp, NULL);
        for (int r = 0; r < t; r++) { CHECK(y[r] == (float)(round * 8 + r), "round %d, rank %d", round, r); }
        if (round % 100 == 99) { comm_barrier(round % 200 == 99 ? tp : dp); }
    }
    comm_close(tp);
    comm_close(dp);
}

// No rank leaves a barrier before the last rank enters.
static void check_barrier(Comm *world) {
    for (int last = 0; last < world->size; last++) {
        double entered[8] = {0};
        if (world->rank == last) { usleep(50000); }
        entered[world->rank] = now_seconds();
        comm_barrier(world);
        double left = now_seconds();
        comm_all_gather(entered, &entered[world->rank], sizeof left, DT_U8, world, NULL);
        for (int r = 0; r < world->size; r++) {
            CHECK(left >= entered[r], "a rank left a barrier %g s before rank %d entered", entered[r] - left, r);
        }
    }
}

// Maxima of both signs and all magnitudes, with the maximum on each rank in turn; sent_bytes does not change.
static void check_max(Comm *world) {
    uint64_t sent = world->sent_bytes;
    for (int best = 0; best < world->size; best++) {
        bool mine = best == world->rank;
        CHECK(comm_max(mine ? -1 : LLONG_MIN, world) == -1, "comm_max of rank %d's -1", best);
        CHECK(comm_max(mine, world) == 1, "comm_max of rank %d's 1", best);
        CHECK(comm_max(mine ? LLONG_MAX : world->rank, world) == LLONG_MAX, "comm_max of rank %d's LLONG_MAX", best);
        CHECK(comm_max(LLONG_MAX - best - world->rank, world) == LLONG_MAX - best, "comm_max of large values");
    }
    CHECK(world->sent_bytes == sent, "comm_max counted as a collective");
}

static void check_broadcast_host(Comm *world) {
    for (size_t count = 0; count <= 30; count++) {
        unsigned char bytes[32];
        memset(bytes, 0x5A, sizeof bytes);
        for (size_t i = 0; i < count; i++) { bytes[i] = (unsigned char)(world->rank == 0 ? 255 - i : 17); }
        comm_broadcast_host(bytes, count, 0, world);
        for (size_t i = 0; i < sizeof bytes; i++) {
            CHECK(bytes[i] == (i < count ? 255 - i : 0x5A), "byte %zu of %zu broadcast by rank 0", i, count);
        }
    }
}

// comm_wait late, out of order, twice or never, in two groups: every collective writes its own output.
static void check_works(Comm *world) {
    float in[2][8 * 3], out[2][3], gathered[8] = {0}, own = (float)world->rank;
    CommWork works[2], first = world->calls;
    Comm *same = comm_split(world, 0, world->rank);
    for (int layer = 0; layer < 2; layer++) {
        for (int i = 0; i < world->size * 3; i++) { in[layer][i] = (float)(100 * layer + i); }
        works[layer] = comm_reduce_scatter(out[layer], in[layer], 3, DT_F32, world, NULL);
    }
    CommWork gather = comm_all_gather(gathered, &own, 1, DT_F32, same, NULL);
    CHECK(works[0] > first && works[1] == works[0] + 1 && gather == 1, "works are not counted by group");
    comm_wait(gather, same, NULL);
    comm_wait(works[1], world, NULL);
    comm_wait(works[0], world, NULL);
    comm_wait(works[1], world, NULL);
    for (int i = 0; i < 3; i++) {
        float expected = (float)(world->size * (world->rank * 3 + i)), more = (float)(world->size * 100);
        CHECK(out[0][i] == expected, "layer 0: %g, expected %g", (double)out[0][i], (double)expected);
        CHECK(out[1][i] == expected + more, "layer 1: %g, expected %g", (double)out[1][i], (double)(expected + more));
    }
    for (int r = 0; r < world->size; r++) { CHECK(gathered[r] == (float)r, "gathered from rank %d", r); }
    comm_close(same);
}

static void check_device(Comm *world) {
#ifdef HAVE_MPI
    const Device far_memory = far_device();
    Comm *staged = comm_mpi_for_device(world, &far_memory);
    check_world(staged);
    comm_close(staged);
#endif
    (void)world;
}

static int run_ranks(void) {
    Comm *world = comm_open();
    check_world(world);
    for (int t = 1; t < world->size; t++) {
        if (world->size % t == 0) { check_split(world, t); }
    }
    check_many(world);
    check_barrier(world);
    check_max(world);
    check_broadcast_host(world);
    check_works(world);
    check_device(world);
    if (world->rank == 0) { printf("every rank agrees\n"); }
    comm_close(world);
    return 0;
}

// ---- faults

// one step: an all-reduce in each group
static void step(Comm *tp, Comm *dp) {
    float x = 1;
    comm_all_reduce(&x, 1, DT_F32, tp, NULL);
    comm_all_reduce(&x, 1, DT_F32, dp, NULL);
}

static void commit(const char *fault, Comm *world) {
    float x = 1, y[8];
    if (strcmp(fault, "killed") == 0) { raise(SIGKILL); }
    if (strcmp(fault, "stopped") == 0) { raise(SIGSTOP); }
    if (strcmp(fault, "leaves") == 0) { exit(0); }
    if (strcmp(fault, "fails") == 0) { run_error("step 20: the loss is NaN"); }
    if (strcmp(fault, "refuses") == 0) { input_error("shard 3 is cut short"); }
    if (strcmp(fault, "confuses") == 0) { comm_all_gather(y, &x, 1, DT_F32, world, NULL); }
}

// every rank prints its process id first, so that the shell test can look for processes left behind
static int run_fault(const char *fault, int culprit) {
    Comm *world = comm_open();
    bool waits = strcmp(fault, "stopped") == 0 || strcmp(fault, "confuses") == 0;
    printf("process %d\n", (int)getpid());
    fflush(stdout);
    comm_barrier(world);
    world->timeout = 60;
    if (strcmp(fault, "all-refuse") == 0) { input_error("data/none.bin: no such file"); }
    int t = world->size % 2 == 0 ? 2 : 1;
    Comm *tp = comm_split(world, world->rank / t, world->rank), *dp = comm_split(world, world->rank % t, world->rank);
    for (int i = 0; i < 40; i++) {
        if (i == 20 && waits) { tp->timeout = dp->timeout = world->timeout = 1; }  // only the culprit is slow now
        if (i == 20 && world->rank == culprit) { commit(fault, world); }
        step(tp, dp);
    }
    float x = 1;
    comm_all_reduce(&x, 1, DT_F32, world, NULL);
    comm_close(dp);
    comm_close(tp);
    comm_close(world);
    return 0;
}

static int say_backends(void) {
    char backends[512];
    comm_backends(backends, sizeof backends);
    return puts(backends) == EOF;
}

int main(int argc, char **argv) {
    if (argc == 2) { return strcmp(argv[1], "backends") == 0 ? say_backends() : run_ranks(); }
    if (argc == 3) { return run_fault(argv[1], atoi(argv[2])); }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_single),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_ignores_what_is_left),
        cmocka_unit_test(test_file_keeps_jobs_apart),
        cmocka_unit_test(test_file_timeout),
        cmocka_unit_test(test_tcp),
        cmocka_unit_test(test_tcp_refusals),
        cmocka_unit_test(test_tcp_next_address),
        cmocka_unit_test(test_tcp_families),
        cmocka_unit_test(test_tcp_no_answer),
        cmocka_unit_test(test_job_name),
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_wire_faults),
        cmocka_unit_test(test_wire_check),
        cmocka_unit_test(test_wire_signal),
        cmocka_unit_test(test_wire_stopped),
        cmocka_unit_test(test_awake_clock),
        cmocka_unit_test(test_watch),
        cmocka_unit_test(test_watch_stops),
        cmocka_unit_test(test_same_gpu),
    };
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
