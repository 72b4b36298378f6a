/*
The communicator between GPUs (comm_nccl.cuh), tested on one GPU or several.
    test_nccl               NCCL in a group of one: collectives, comm_wait, CUDA graphs, split groups
    mpirun test_nccl ranks  through NCCL if each rank has a GPU, else through MPI and host memory
    mpirun test_nccl ranks pause    the ranks pause for 12 seconds, longer than SIMT_COMM_SECONDS
    test_nccl ranks FAULT SIZE RANK   without MPI; the last rank swaps two calls (swaps), or ends early (leaves)
    test_nccl backends      the backends of this build
Without a GPU the tests are skipped. build/emulated/test_nccl is the same on emulated GPUs: SIMT_GPUS=4 for `ranks`.
*/
#include "testing.h"
#include "llmc/parallel/comm_open.h"
#include "llmc/common/device.cuh"
#include <limits.h>

// every collective on integers, which all types sum exactly
static int check_ranks(int argc, char **argv) {
    enum { N = 1000 };
    Exec exec = {};
    float in[4 * N], out[4 * N];
    Comm *launched = comm_open();
    Comm *world = argc > 4 ? comm_open_by_file(&cuda_device, atoi(argv[3]), atoi(argv[4]), 4, "shared")
                           : comm_open_for(&cuda_device, launched);
    const char *fault = argc > 4 && world->rank == world->size - 1 ? argv[2] : "";
    int size = world->size, rank = world->rank;
    if (size > 4) { run_error("started with %d ranks; at most 4", size); }
    cuda_exec_open(&exec, NULL, 0);
    float *x = static_cast<float *>(cuda_allocate(sizeof in)), *y = static_cast<float *>(cuda_allocate(sizeof out));
    for (int i = 0; i < size * N; i++) { in[i] = static_cast<float>((rank + 1) * i); }
    cuda_copy(x, in, sizeof in);
    if (strcmp(fault, "swaps") == 0) { comm_all_reduce(x, 1, DT_F32, world, &exec); }
    comm_reduce_scatter(y + rank * N, x, N, DT_F32, world, &exec);
    CommWork last = comm_all_gather(y, y + rank * N, N, DT_F32, world, &exec);
    comm_wait(last, world, &exec);
    cuda_enqueue_copy(x, y, sizeof in, &exec);
    comm_wait(comm_all_reduce(x, static_cast<size_t>(size) * N, DT_F32, world, &exec), world, &exec);
    comm_wait(comm_broadcast(x, 1, DT_F32, size - 1, world, &exec), world, &exec);
    cuda_event_record(0, &exec);
    comm_event_synchronize(0, world, &exec);
    cuda_copy(out, x, sizeof out);
    for (int i = 0; i < size * N; i++) {
        float expected = static_cast<float>(size * i * (size * (size + 1) / 2));
        if (out[i] != expected) { run_error("sum %d is %g, expected %g", i, out[i], expected); }
    }
    comm_watch(world);
    if (comm_max(rank, world) != size - 1) { run_error("comm_max did not give the last rank"); }
    if (rank == 0) { printf("%d ranks agree, through %s\n[  PASSED  ] 1 test(s).\n", size, world->backend->name); }
    if (argc == 3) { sleep(12); }
    cuda_release(x);
    cuda_release(y);
    if (strcmp(fault, "leaves") == 0) { _exit(0); }
    if (world != launched) { comm_close(world); }
    cuda_exec_close(&exec);
    comm_close(launched);
    return 0;
}

#ifdef COMM_HAS_NCCL
enum { COUNT = 1003, MANY = 60 };

// a GPU, a group of one rank and device memory
struct Bench {
    Exec exec = {}, other = {};
    Comm *world;
    CommWork first_work = 0;
    float *in, *out;
    float input[COUNT], got[COUNT];
    Bench() {
        cuda_exec_open(&exec, NULL, 0);
        cuda_exec_open(&other, NULL, 0);
        world = comm_nccl_open(nccl_unique_id(), 0, 1, 0, NULL, NULL);
        in = static_cast<float *>(cuda_allocate(sizeof input));
        out = static_cast<float *>(cuda_allocate(sizeof input));
        fill(0);
    }
    Bench(const Bench &) = delete;
    Bench &operator=(const Bench &) = delete;
    ~Bench() {
        comm_close(world);
        cuda_release(in);
        cuda_release(out);
        cuda_exec_close(&exec);
        cuda_exec_close(&other);
    }
    // new values in `in`, poison in `out`
    void fill(int from) {
        for (int i = 0; i < COUNT; i++) { input[i] = static_cast<float>(from + i); }
        cuda_copy(in, input, sizeof input);
        cuda_fill(out, 0xAA, sizeof input);
    }
    void wait(Exec *ex) {
        cuda_event_record(0, ex);
        comm_event_synchronize(0, world, ex);
    }
    void finish(CommWork work) { comm_wait(work, world, &exec); }
    // checks device memory after all work enqueued on ex
    void assert_holds(const float *memory, Exec *ex) {
        wait(ex);
        cuda_copy(got, memory, sizeof got);
        assert_memory_equal(got, input, sizeof got);
    }
};

// ---- in children, so before this process uses the GPU

static void fail_in_a_call(void *unused) {
    (void)unused;
    Bench b;
    run_error("step 20: the loss is NaN");
}

TEST(test_names_the_rank) { assert_stops(1, "rank 0: step 20: the loss is NaN", fail_in_a_call, NULL); }

static void fail_in_nccl(void *unused) {
    (void)unused;
    nccl_check(ncclUnhandledCudaError, "ncclAllReduce(...)");
}

TEST(test_names_the_memory) {
    assert_stops(1, "; if memory ran out, give a smaller -b, or --fit; NCCL_DEBUG=WARN says more", fail_in_nccl, NULL);
}

#ifdef SIMT  // there COMM_TIMEOUT is SIMT_COMM_SECONDS
static void block_in_a_launch(void *unused) {
    (void)unused;
    Bench b;
    comm_watch(b.world);
    sleep(60);
}

static void pause_between_calls(void *unused) {
    (void)unused;
    Bench b;
    sleep(2);
    comm_watch(b.world);
    b.wait(&b.exec);
    sleep(2);
    run_error("no rank was missed");
}

TEST(test_watches_launches) {
    setenv("SIMT_COMM_SECONDS", "1", 1);
    assert_stops(1, "a rank has not answered for 1 s (of 1 ranks, in NCCL)", block_in_a_launch, NULL);
    assert_stops(1, "no rank was missed", pause_between_calls, NULL);
    unsetenv("SIMT_COMM_SECONDS");
}
#endif

// ---- in this process

TEST(test_calls) {
    Bench b;
    const DType dtypes[] = {DT_F32, DT_BF16, DT_U8};
    for (DType dtype : dtypes) {
        size_t count = sizeof b.input / dtype_size(dtype);
        b.fill(7);
        b.finish(comm_all_gather(b.out, b.in, count, dtype, b.world, &b.exec));
        b.assert_holds(b.out, &b.exec);
        b.finish(comm_all_gather(b.out, b.out, count, dtype, b.world, &b.exec));
        b.finish(comm_broadcast(b.out, count, dtype, 0, b.world, &b.exec));
        b.assert_holds(b.out, &b.exec);
        if (dtype == DT_U8) { continue; }
        b.fill(8);
        b.finish(comm_reduce_scatter(b.out, b.in, count, dtype, b.world, &b.exec));
        b.assert_holds(b.out, &b.exec);
        b.finish(comm_reduce_scatter(b.out, b.out, count, dtype, b.world, &b.exec));
        b.finish(comm_all_reduce(b.out, count, dtype, b.world, &b.exec));
        b.assert_holds(b.out, &b.exec);
    }
    assert_int_equal(b.world->sent_bytes, 0);
    assert_int_equal(b.world->size, 1);
}

TEST(test_max) {
    Bench b;
    const long long values[] = {0, -7, 1, LLONG_MAX, LLONG_MIN};
    for (long long value : values) { assert_true(comm_max(value, b.world) == value); }
    comm_barrier(b.world);
}

#ifdef SIMT  // no kernel runs while the host does: a piece of work that waits
static void hold(cudaStream_t stream, const int *released) {
    SimtGraphNode node = {cudaGraphNodeTypeKernel, "hold", 1, [] {}};
    node.ready = [released] { return __atomic_load_n(released, __ATOMIC_ACQUIRE) != 0; };
    simt::submit(stream, node);
}
#else
__global__ static void hold_kernel(const volatile int *released) {
    wait_for_previous_kernel();
    while (!*released) {}
}
static void hold(cudaStream_t stream, const int *released) { LAUNCH(hold_kernel, 1, 1, 0, stream, released); }
#endif

// Runs `between` while a kernel blocks the stream of b->exec, and returns its result.
static bool held(Bench *b, bool (*between)(Bench *b)) {
    int *released = static_cast<int *>(cuda_allocate_host(sizeof *released));
    *released = 0;
    hold(stream_of(&b->exec), released);
    bool result = between(b);
    __atomic_store_n(released, 1, __ATOMIC_RELEASE);
    CUDA_CHECK(cudaDeviceSynchronize());
    cuda_release_host(released);
    return result;
}

static bool completes_soon(cudaEvent_t event) {
    for (double end = now_seconds() + 20; now_seconds() < end; usleep(1000)) {
        if (cudaEventQuery(event) == cudaSuccess) { return true; }
    }
    return false;
}

// A collective reads the result of earlier work in the compute stream, which is delayed; work after comm_wait reads the
// result of the collective.
static bool gather_delayed_input(Bench *b) {
    cuda_enqueue_copy(b->in, b->out, sizeof b->input, &b->exec);
    CommWork work = comm_all_gather(b->out, b->in, COUNT, DT_F32, b->world, &b->exec);
    comm_wait(work, b->world, &b->exec);
    cuda_event_record(1, &b->exec);
    usleep(20000);
    return cudaEventQuery(b->exec.cuda->events[1]) == cudaErrorNotReady;
}

TEST(test_waits_for_compute) {
    Bench b;
    cuda_copy(b.out, b.input, sizeof b.input);
    cuda_fill(b.in, 0, sizeof b.input);
    assert_true(held(&b, gather_delayed_input));
    b.assert_holds(b.in, &b.exec);
    b.assert_holds(b.out, &b.exec);
    assert_int_equal(cudaGetLastError(), cudaSuccess);  // though the waits have seen cudaErrorNotReady
}

// A collective reads the end of a large upload in a copy stream, which takes longer than the collective.
TEST(test_waits_for_copy) {
    Bench b;
    const size_t count = size_t{1} << 26, bytes = count * sizeof(float), at = count - COUNT;
    float *host = static_cast<float *>(cuda_allocate_host(bytes)), *device = static_cast<float *>(cuda_allocate(bytes));
    memcpy(host + at, b.input, sizeof b.input);
    cuda_fill(device, 0, bytes);
    CopyWork copy = cuda_upload_begin(COPY_PARAMS, device, host, bytes, &b.exec);
    comm_after_copy(copy, b.world, &b.exec);
    b.finish(comm_all_gather(b.out, device + at, COUNT, DT_F32, b.world, &b.exec));
    cuda_copy_wait(copy, &b.exec);
    b.assert_holds(b.out, &b.exec);
    cuda_release(device);
    cuda_release_host(host);
}

// Waiting for the first work waits for no later one: MANY are pending, more than a model has buckets.
static bool wait_for_first(Bench *b) {
    for (int i = 0; i < MANY; i++) { comm_all_gather(b->in, b->out, COUNT, DT_F32, b->world, &b->exec); }
    comm_wait(b->first_work, b->world, &b->other);
    cuda_event_record(0, &b->other);
    return completes_soon(b->other.cuda->events[0]);
}

TEST(test_early_wait) {
    Bench b;
    b.first_work = comm_all_gather(b.out, b.in, COUNT, DT_F32, b.world, &b.exec);
    assert_true(held(&b, wait_for_first));
    b.assert_holds(b.out, &b.exec);
}

// waiting for the last collective waits for all earlier ones; a work older than the ring of events can be waited for
TEST(test_late_waits) {
    Bench b;
    CommWork first = comm_all_gather(b.out, b.in, COUNT, DT_F32, b.world, &b.exec), last = 0;
    for (int i = 0; i < NCCL_EVENTS + 3; i++) { last = comm_all_gather(b.in, b.out, COUNT, DT_F32, b.world, &b.exec); }
    assert_int_equal(last, first + NCCL_EVENTS + 3);
    comm_wait(last, b.world, &b.other);
    b.assert_holds(b.out, &b.other);
    comm_wait(first, b.world, &b.other);
    b.assert_holds(b.in, &b.other);
}

TEST(test_capture) {
    Bench b;
    CommWork before = b.world->calls;
    cuda_capture_begin(&b.exec);
    CommWork gather = comm_all_gather(b.out, b.in, COUNT, DT_F32, b.world, &b.exec);
    b.finish(gather);
    b.finish(comm_all_reduce(b.out, COUNT, DT_F32, b.world, &b.exec));
    DeviceGraph *graph = cuda_capture_end(&b.exec);
    for (int round = 0; round < 3; round++) {
        b.fill(100 * round);
        cuda_graph_launch(graph, &b.exec);
        b.assert_holds(b.out, &b.exec);
        b.finish(comm_all_gather(b.in, b.out, COUNT, DT_F32, b.world, &b.exec));  // outside the graph
        b.assert_holds(b.in, &b.exec);
    }
    assert_int_equal(b.world->calls - before, 5);
    cuda_graph_destroy(graph);
}

TEST(test_split) {
    Bench b;
    Comm *part = comm_split(b.world, 3, 5);
    assert_int_equal(part->size, 1);
    comm_wait(comm_all_gather(b.out, b.in, COUNT, DT_F32, part, &b.exec), part, &b.exec);
    b.assert_holds(b.out, &b.exec);
    comm_close(part);
    b.fill(5);
    b.finish(comm_all_gather(b.out, b.in, COUNT, DT_F32, b.world, &b.exec));
    b.assert_holds(b.out, &b.exec);
}

static int test_alone(void) { return run_all_tests("nccl"); }
#else
static int test_alone(void) { return puts("built without NCCL\n[  SKIPPED ] 10 test(s).") == EOF; }
#endif

int main(int argc, char **argv) {
    const char *why, *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "backends") == 0) {
        char backends[512];
        comm_backends(backends, sizeof backends);
        return puts(backends) == EOF;
    }
    if (strcmp(mode, "ranks") == 0) { return check_ranks(argc, argv); }
    if (*mode) { input_error("'%s': expected ranks or backends, as the head of test_nccl.cu says", mode); }
#ifdef SIMT
    setenv("SIMT_STREAMS", "1", 0);  // with 0 work runs inside its call, and the tests that delay work would hang
#endif
    int status = 0;
    pid_t child = fork();  // a process that has asked for GPUs cannot use them in its children
    if (child == 0) { _exit(cuda_device_count(&why) == 0); }
    waitpid(child, &status, 0);
    if (status != 0) { return puts("no GPU\n[  SKIPPED ] 10 test(s).") == EOF; }
    return test_alone();
}
