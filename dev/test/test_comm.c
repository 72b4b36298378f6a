/*
Communicators.
    test_comm                 a group of one; chunk sizes; the file of NCCL's id; watchdog
    test_comm backends        the backends of this build
    mpirun test_comm ranks    every collective on every group of this world against a serial sum, bit for bit
    mpirun test_comm FAULT R  rank R fails, leaves or hangs; dev/test/test_comm.sh checks the error and the exit status
*/
static double comm_timeout = 600;
#define COMM_TIMEOUT comm_timeout
#include "testing.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/parallel/nccl_host.h"
#include "llmc/common/rng.h"
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

// ---- one process

TEST(test_chunks) {
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

TEST(test_single) {
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

TEST(test_refusals) {
    Comm *comm = comm_single(&cpu_device);
    assert_stops(1, "all_reduce of type U8", sum_bytes, comm);
    assert_stops(1, "all_gather of type F16", gather_halves, comm);
    assert_stops(1, "overlaps", overlap, comm);
    assert_stops(1, "broadcast from rank 1 of 1", broadcast_from_nobody, comm);
    comm_close(comm);
}

static void cpus_through_a_file(void *host) {
    (void)host;
    comm_open_by_file(&cpu_device, 2, 0, 1, "/tmp");
}

TEST(test_open) {
    Comm *host = comm_open(), *world = comm_open_for(&cpu_device, host);
    assert_int_equal(host->size, 1);
    assert_int_equal(world->size, 1);
    assert_stops(2, "but this run is on CPUs: start the ranks with mpirun", cpus_through_a_file, host);
    comm_close(world);
    comm_close(host);
    char backends[512];
    comm_backends(backends, sizeof backends);
    assert_int_equal(strncmp(backends, "single", 6), 0);
#ifdef HAVE_MPI
    assert_non_null(strstr(backends, ", MPI ("));
#endif
}

// ---- the file of NCCL's id, one process per rank

enum { ID_BYTES = 128 };

typedef struct {
    const char *path;
    char id;       // rank 0 writes ID_BYTES of it
    double delay;  // seconds before rank 0 writes
    bool touches;  // rank 0 lives until the others have the id
} IdFile;

// forks rank 0, which ends with SIGKILL or with this program
static pid_t start_rank_0(const IdFile *f) {
    fflush(NULL);
    pid_t child = fork();
    if (child != 0) { return child; }
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // id_file_wait ends the program if it fails
    char id[ID_BYTES];
    memset(id, f->id, sizeof id);
    usleep((useconds_t)(f->delay * 1e6));
    id_file_write(f->path, id, sizeof id);
    while (f->touches) {
        usleep(50000);
        id_file_touch(f->path);
    }
    _exit(0);
}

static void wait_for_id(void *path) {
    char id[ID_BYTES];
    id_file_wait((const char *)path, id, sizeof id, 1, 2);
}

static void write_id(void *path) { id_file_write((const char *)path, "id", 2); }

// rank 0 comes first or last, and a killed run may have left its file, or a part of it
TEST(test_id_file) {
    char path[PATH_LENGTH], part[PATH_LENGTH];
    struct stat info;
    snprintf(path, sizeof path, "%s", temp_path("nccl_id"));
    format_path(part, "%s.part", path);
    for (int left = 0; left < 2; left++) {
        for (int late = 0; late < 2; late++) {
            if (left) {
                write_file("nccl_id.part", "x", 1);
                const IdFile old = {path, 'o', 0, false};
                waitpid(start_rank_0(&old), NULL, 0);
            }
            const IdFile f = {path, (char)('a' + late), late ? 0.3 : 0, true};
            pid_t rank_0 = start_rank_0(&f);
            if (!late) { usleep(200000); }
            char ids[2][ID_BYTES] = {"", ""};
            for (int i = 0; i < 2; i++) { id_file_wait(f.path, ids[i], ID_BYTES, 1, 2); }  // the second comes later
            int has_part = access(part, F_OK), has_file = stat(path, &info);
            kill(rank_0, SIGKILL);  // before anything can fail
            waitpid(rank_0, NULL, 0);
            for (int i = 0; i < 2 * ID_BYTES; i++) { assert_int_equal(ids[i / ID_BYTES][i % ID_BYTES], f.id); }
            assert_int_equal(has_file, 0);
            assert_int_equal(info.st_mode & 07777, 0600);
            assert_int_not_equal(has_part, 0);
            unlink(path);
        }
    }
}

TEST(test_id_file_refusals) {
    char path[PATH_LENGTH];
    snprintf(path, sizeof path, "%s", temp_path("nccl_id"));
    comm_timeout = 0.2;
    assert_stops(1, "rank 1 of 2: rank 0 has not written ", wait_for_id, path);
    const IdFile old = {path, 'o', 0, false};
    waitpid(start_rank_0(&old), NULL, 0);
    assert_stops(1, "for 0.2 s; are all ranks running, with the same -pf?", wait_for_id, path);  // left by a killed run
    assert_int_equal(chmod(path, 0644), 0);
    assert_stops(2, "is no private file of this rank's user (mode 0600): give -pf", wait_for_id, path);
    if (geteuid() == 0) {
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(chown(path, 1, 1), 0);
        assert_stops(2, "is no private file of this rank's user", wait_for_id, path);
    }
    comm_timeout = 600;
    assert_stops(2, "could not be written (No such file or directory); give -pf", write_id, (char *)"/nonexistent/id");
}

static void find_path(void *folder) {
    char path[PATH_LENGTH];
    id_file_path(path, (const char *)folder);
}

TEST(test_id_file_path) {
    char path[PATH_LENGTH];
    unsetenv("SLURM_JOB_ID");
    id_file_path(path, "/tmp");
    assert_string_equal(path, "/tmp/nccl_id");
    setenv("SLURM_JOB_ID", "42", 1);
    id_file_path(path, "/tmp");
    assert_string_equal(path, "/tmp/nccl_id_42");
    unsetenv("SLURM_JOB_ID");
    assert_stops(2, "-pf /none: No such file or directory; give a folder", find_path, (char *)"/none");
}

TEST(test_awake_clock) {
    AwakeClock clock = {0, 0};
    assert_true(awake_seconds(&clock) == 0);
    for (double end = now_seconds() + 600; awake_seconds(&clock) < 0.1 && now_seconds() < end;) { usleep(1000); }
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
    for (double end = now_seconds() + 600; seen <= seconds && now_seconds() < end; usleep(10000)) {
        __atomic_load(most, &seen, __ATOMIC_RELAXED);
    }
}

TEST(test_watch) {
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
    watch_stay(watch, true);
    watch_enter(watch);
    watch_leave(watch);
    wait_for_check(&most, 0.1);  // between calls
    watch_stay(watch, false);
    assert_true(most > 0.1);
    most = 0;
    usleep(150000);
    assert_true(most == 0);
    watch_close(watch);
    free(watch);
}

static void check_too_long(void *ctx, double waited) {
    (void)ctx;
    if (waited > 0.1) { run_error("it has waited too long"); }
}

static void wait_for_ever(void *ctx) {
    Watch watch;
    watch_open(&watch, check_too_long, ctx);
    watch_enter(&watch);
    sleep(60);
    watch_leave(&watch);
}

TEST(test_watch_stops) { assert_stops(1, "it has waited too long", wait_for_ever, NULL); }

static void stop_slowly(void *ctx, int status, const char *sentence) {
    (void)status, (void)sentence;
    __atomic_store_n((bool *)ctx, true, __ATOMIC_RELAXED);
    usleep(200000);
}

static void stop_while_the_watchdog_does(void *ctx) {
    static bool stops;
    *stop_hook() = (StopHook){stop_slowly, &stops};
    Watch watch;
    watch_open(&watch, check_too_long, ctx);
    watch_enter(&watch);
    while (!__atomic_load_n(&stops, __ATOMIC_RELAXED)) { usleep(1000); }
    run_error("a second sentence");
}

TEST(test_first_thread_stops) { assert_stops(1, "it has waited too long", stop_while_the_watchdog_does, NULL); }

TEST(test_same_gpu) {
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

static const size_t counts[] = {1, 7, 100003, PIECES};

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
static void require_memory(const char *memory, const void *expected, size_t bytes, bool alike, const char *call,
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
    require_memory(b->out, b->sum, bytes, true, "all_reduce", dtype, b);
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
        require_memory(b->out, b->sum, bytes, false, "reduce_scatter", dtype, b);
    }
    require_memory(b->in, b->input, (size_t)size * bytes, false, "reduce_scatter, its input", dtype, b);
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
    require_memory(b->out, b->sum, (size_t)size * bytes, true, "all_gather", dtype, b);
}

static void check_broadcast(size_t count, DType dtype, int root, Bench *b) {
    size_t bytes = count * dtype_size(dtype);
    fill_input(b->sum, 0, count, dtype, b->members[root], b);
    lay_out(b->out, b->comm->rank == root ? b->sum : NULL, bytes, b);
    delay_one_rank(b);
    uint64_t before = b->comm->sent_bytes;
    comm_broadcast(b->out, count, dtype, root, b->comm, NULL);
    check_all_sent(before, (uint64_t)(b->comm->size - 1) * bytes, b);
    require_memory(b->out, b->sum, bytes, true, "broadcast", dtype, b);
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
    check_group(world, members, world->size < 4 ? 4 : 3, &b);  // two pieces take seconds
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
    comm_timeout = 60;
    if (strcmp(fault, "all-refuse") == 0) { input_error("data/none.bin: no such file"); }
    int t = world->size % 2 == 0 ? 2 : 1;
    Comm *tp = comm_split(world, world->rank / t, world->rank), *dp = comm_split(world, world->rank % t, world->rank);
    for (int i = 0; i < 40; i++) {
        if (i == 20 && waits) { comm_timeout = 1; }  // only the culprit is slow now
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
    return run_all_tests("comm");
}
