/*
Tests of the emulator (dev/emulator/simt.h, cuda_runtime.h): what would pass in silence if it did not work. These are
the race check, the aborts on misuse, the orders of warps and streams, and the settings of a harsher GPU. Other tests
fail if a kernel or a runtime call computes wrong: test_ops, test_layouts, test_matmul, test_plan and test_gpt2.
The first group also holds on a GPU.
*/
#include <sstream>  // before the macro fail() of cmocka
#include "testing.h"
#include "device_array.h"
#include "llmc/common/device.cuh"
#include "llmc/common/rng.h"
#include <set>
#include <string>

// ---- rounding

// test_adamw.c checks means and independence over steps, elements and tensors, and test_ops the bits on the device.
TEST(test_stochastic_rounding) {
    for (uint32_t nan : {0x7fffffffu, 0xffffffffu, 0x7f800001u}) {  // sums would be zeros, and cut bits infinity
        assert_true(isnan(bf16_to_float(bf16_round_stochastic(bits_to_float(nan), 0xffff))));
        assert_true(isnan(bf16_to_float(float_to_bf16(bits_to_float(nan)))));
    }
    assert_true(group_rounding_bits(1, 2, 3, ROUND_M, 2) != group_rounding_bits(9, 2, 3, ROUND_M, 2));  // other seeds
}

// ---- streams, events and graphs

static __global__ void append(char *text, char letter) {
    wait_for_previous_kernel();
    if (threadIdx.x == 0) {
        text[0]++;  // the length
        text[(int)text[0]] = letter;
    }
}

// Streams, events, and a text in device memory to which kernels append letters.
struct Letters {
    enum { STREAMS = 3, ROOM = 64 };
    cudaStream_t streams[STREAMS];
    cudaEvent_t events[STREAMS];
    cudaGraph_t graph = nullptr;
    std::vector<cudaGraphExec_t> execs;
    char *text;
    Letters() {
        for (cudaStream_t &stream : streams) { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
        for (cudaEvent_t &event : events) { CUDA_CHECK(cudaEventCreate(&event)); }
        CUDA_CHECK(cudaMalloc(&text, ROOM));
        CUDA_CHECK(cudaMemset(text, 0, ROOM));
        CUDA_CHECK(cudaDeviceSynchronize());
    }
    Letters(const Letters &) = delete;
    Letters &operator=(const Letters &) = delete;
    ~Letters() {
        cudaFree(text);
        if (graph) { cudaGraphDestroy(graph); }
        for (cudaGraphExec_t exec : execs) { cudaGraphExecDestroy(exec); }
        for (cudaEvent_t event : events) { cudaEventDestroy(event); }
        for (cudaStream_t stream : streams) { cudaStreamDestroy(stream); }
    }
    // the text so far, which runs nothing; emulated alone
    std::string so_far() const { return std::string(text + 1, (size_t)text[0]); }
    std::string all() const {
        char host[ROOM];
        CUDA_CHECK(cudaDeviceSynchronize());
        CUDA_CHECK(cudaMemcpy(host, text, ROOM, cudaMemcpyDeviceToHost));
        return std::string(host + 1, (size_t)host[0]);
    }
    cudaError_t end_capture(cudaStream_t stream) {
        if (graph) { cudaGraphDestroy(graph); }
        return cudaStreamEndCapture(stream, &graph);
    }
    cudaError_t launch_graph(cudaStream_t stream) {
        cudaGraphExec_t exec;
        CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
        execs.push_back(exec);
        return cudaGraphLaunch(exec, stream);
    }

    // Runs commands, each a stream (0 to 2, or d: the default stream) and what it does:
    //   0ab  kernels append a and b    0!1  records event 1    0?1  waits for event 1    0*  launches the graph
    //   0(   begins a capture          0)   ends it: the graph
    //   d=1  the host waits for event 1, d~1 queries it, d. does nothing; all three add the text so far to the result
    // Each text and each error's number ends with a /.
    std::string step(const char *script) {
        std::istringstream words(script);
        std::string word, said;
        while (words >> word) {
            cudaStream_t stream = word[0] == 'd' ? nullptr : streams[word[0] - '0'];
            cudaEvent_t event = strchr("!?=~", word[1]) ? events[word[2] - '0'] : nullptr;
            cudaError_t error = cudaSuccess;
            switch (word[1]) {
            case '!': error = cudaEventRecord(event, stream); break;
            case '?': error = cudaStreamWaitEvent(stream, event, 0); break;
            case '=': error = cudaEventSynchronize(event); break;
            case '~': error = cudaEventQuery(event); break;
            case '(': error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal); break;
            case ')': error = end_capture(stream); break;
            case '*': error = launch_graph(stream); break;
            case '.': break;
            default:
                for (char letter : word.substr(1)) { LAUNCH(append, 1, 32, 0, stream, text, letter); }
            }
            if (strchr("=~.", word[1])) { said += so_far() + "/"; }
            if (error != cudaSuccess) { said += std::to_string((int)error) + "/"; }
            cudaGetLastError();
        }
        return said;
    }
    // the result, then the text after all work
    std::string run(const char *script) {
        std::string said = step(script);
        return said + all();
    }
};

// a capture runs nothing, and each launch runs the captured work
TEST(test_graph) {
    Letters x;
    assert_string_equal(x.run("0( 0a 0!0 1?0 1b 1!1 0?1 0c 0)").c_str(), "");
    assert_string_equal(x.run("0* 0*").c_str(), "abcabc");
}

#ifndef __CUDACC__

// ---- the scheduler and settings of the emulator

static const int ORDERS[] = {0, 1, 77};

static __global__ void record_warps(int *out, int *next) {
    wait_for_previous_kernel();
    if (lane_id() == 0) { out[atomicAdd(next, 1)] = warp_id(); }
}

TEST(test_warp_orders) {
    std::vector<std::vector<int>> seen;
    for (int order : ORDERS) {
        simt::settings().warp_order = order;
        DeviceArray<int> out(8), next(std::vector<int>(1, 0));
        LAUNCH(record_warps, 1, 256, 0, nullptr, out.at, next.at);
        seen.push_back(out.host());
    }
    for (int i = 0; i < 8; i++) { assert_true(seen[0][i] == i && seen[1][i] == 7 - i); }
    assert_true(seen[2] != seen[0] && seen[2] != seen[1]);
    std::sort(seen[2].begin(), seen[2].end());
    assert_true(seen[2] == seen[0]);  // each warp runs once
}

// out = 1 + 1.5 * 2^-24 * 1, by an mma of which lane 0 holds the small factor
static __global__ void multiply_small(float *out) {
    wait_for_previous_kernel();
    float d[4] = {1, 1, 1, 1};
    const uint32_t ones = pack_bf16(1, 1), a[4] = {lane_id() == 0 ? pack_bf16(1.5f * 0x1p-24f, 0) : 0, 0, 0, 0};
    mma_bf16(d, a, ones, ones);
    if (lane_id() == 0) { *out = d[0]; }
}

// SIMT_MMA: every addend loses its bits below 2^-24 of the largest.
TEST(test_tensor_core_sum) {
    for (int truncated = 0; truncated < 2; truncated++) {
        simt::settings().mma_rounding = truncated;
        DeviceArray<float> out(1);
        LAUNCH(multiply_small, 1, 32, 0, nullptr, out.at);
        assert_true(out.host()[0] == (truncated ? 1 : 1 + 0x1p-23f));
    }
}

// SIMT_APPROX: errors of at most NVIDIA's bounds, and of more than half of them somewhere; equal inputs, equal results.
// Off: the correctly rounded value.
TEST(test_approximate) {
    const struct {
        const char *name;
        float (*f)(float);
        double (*exact)(double);
        double bound;
    } functions[] = {{"ex2", exp2_fast, exp2, 0x1p-22},
                     {"rcp", reciprocal_fast, [](double x) { return 1 / x; }, 0x1p-23},
                     {"rsqrt", rsqrt_device, [](double x) { return 1 / sqrt(x); }, 0x1p-22},
                     {"log", log_device, log, 0x1p-23},
                     {"log2", log2_device, log2, 0x1p-23}};
    for (int i = 0; i < 2 * (int)LEN(functions); i++) {
        const auto &c = functions[i / 2];
        double largest = 0, bound = i % 2 ? c.bound : 0;
        simt::settings().approximate = i % 2;
        for (float x = 0.37f; x < 12; x += 0.00313f) {
            double y = c.exact((double)x);
            largest = fmax(largest, fabs((double)c.f(x) - y) / fabs(y));
            assert_true(c.f(x) == c.f(x));
        }
        if (!(largest >= bound / 2 && largest <= bound + 0x1p-24)) {
            fail_msg("%s: the largest error is %g, expected %g to %g", c.name, largest, bound / 2, bound);
        }
    }
    simt::settings().approximate = 1;
    assert_true(exp2_fast(-3) == 0.125f && exp2_fast(0) == 1);  // whole exponents are exact on a GPU
}

// ---- the race check: each case with and without the barrier, wait or write that prevents the race

// Thread i of 64, and an array x of 64 packs, whose first numbers are read and written. Unless `correct`, barriers and
// waits do nothing.
struct Racer {
    SharedPtr<float> x;
    float *global;
    bool correct;
    int i, other_warp, other_lane;
    uint32_t matrix[4];
    void barrier() { correct ? __syncthreads() : (void)0; }
    void warp_barrier() { correct ? __syncwarp() : (void)0; }
    void wait() { correct ? cp_async_wait<0>() : cp_async_wait<1>(); }
    void copy(int to) { cp_async(shared_address(x + 4 * to), global + 64 + 4 * to, true), cp_async_commit(); }
    void set(int at, float value) { x[4 * at] = value; }
    void read(int at) { global[i] = x[4 * at]; }
    void write(int at, int by) { i == by ? set(at, 1) : (void)0; }
    void add() { atomicAdd(&x[0], 1.0f); }
};

enum { READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, READ_UNWRITTEN, READ_IN_FLIGHT };  // rows of races
static const struct {
    const char *name;
    void (*run)(Racer &t);
} races[] = {
    {"read after write", [](Racer &t) { t.write(0, 0), t.barrier(), t.read(0); }},
    {"write after read", [](Racer &t) { t.read(0), t.barrier(), t.write(0, 40); }},
    {"write after write", [](Racer &t) { t.set(t.i, 1), t.barrier(), t.set(t.other_warp, 2); }},
    {"read of what nobody wrote", [](Racer &t) { t.read(t.i); }},
    {"read before the wait", [](Racer &t) { t.copy(t.i), t.wait(), t.read(t.i), cp_async_wait<0>(); }},
    {"write by the last reader", [](Racer &t) { t.read(0), t.barrier(), t.write(0, 63); }},
    {"read after write in a warp", [](Racer &t) { t.set(t.i, 1), t.warp_barrier(), t.read(t.other_lane); }},
    {"write after read in a warp", [](Racer &t) { t.read(t.other_lane), t.warp_barrier(), t.set(t.i, 1); }},
    {"a warp's barrier between warps",
     [](Racer &t) {
         t.i < 32 ? t.set(t.i, 1) : (void)0, __syncwarp(), t.barrier(), t.i < 32 ? (void)0 : t.read(t.other_warp);
     }},
    {"read of another thread's copy",
     [](Racer &t) { t.copy(t.i), cp_async_wait<0>(), t.barrier(), t.read(t.other_warp); }},
    {"copy after read",
     [](Racer &t) { t.read(0), t.barrier(), t.i == 40 ? (t.copy(0), cp_async_wait<0>()) : (void)0; }},
    {"write during a copy", [](Racer &t) { t.copy(t.i), t.wait(), t.set(t.i, 3), cp_async_wait<0>(); }},
    {"update after write", [](Racer &t) { t.write(0, 0), t.barrier(), t.add(); }},
    {"read after update", [](Racer &t) { t.add(), t.barrier(), t.i == 63 ? t.read(0) : (void)0; }},
    {"write after update", [](Racer &t) { t.add(), t.barrier(), t.write(0, 40); }},
    {"a barrier of half a warp",
     [](Racer &t) {
         t.set(t.i, 1), t.i % 32 == 1 ? __syncwarp(2) : (void)0;  // alone, while other lanes wait with another mask
         __syncwarp(t.correct ? ~0u : t.i & 16 ? ~0xffffu : 0xffffu), t.read(t.other_lane);
     }},
    {"ldmatrix after write",
     [](Racer &t) { t.set(t.i, 1), t.barrier(), ldmatrix_x4(t.matrix, shared_address(t.x + 4 * t.other_warp)); }},
};

static __global__ void race(int which, bool correct, bool dynamic, float *global) {
    wait_for_previous_kernel();
    DYNAMIC_SHARED(float, dynamic_array);
    SHARED_ARRAY(float, static_array, 256);
    int i = (int)threadIdx.x;
    Racer t = {dynamic ? dynamic_array : static_array, global, correct, i, 63 - i, i ^ 1, {}};
    for (int k = 0; k < 4 && (which != READ_UNWRITTEN || correct); k++) { t.x[4 * i + k] = (float)i; }
    __syncthreads();  // orders the initial writes before the case
    races[which].run(t);
}

static float first_read;  // by thread 0 of the latest race

static uint64_t races_of(int which, bool correct, bool dynamic) {
    uint64_t before = simt::counts().races;
    DeviceArray<float> global(std::vector<float>(320, 1.0f));
    LAUNCH(race, 1, 64, 1024, nullptr, which, correct, dynamic, global.at);
    first_read = global.host()[0];
    return simt::counts().races - before;
}

TEST(test_races) {
    simt::settings().only_count_races = true;
    for (int run = 0; run < 6; run++) {
        simt::settings().warp_order = ORDERS[run % 3];
        simt::settings().eager_async = run / 3;
        for (int which = 0; which < (int)LEN(races); which++) {
            for (int dynamic = 0; dynamic < 2; dynamic++) {
                if (races_of(which, true, dynamic) != 0) {
                    fail_msg("false alarm: %s, run %d", races[which].name, run);
                }
                if (races_of(which, false, dynamic) == 0) { fail_msg("missed: %s, run %d", races[which].name, run); }
            }
        }
    }
    simt::settings().check_races = 0;
    assert_int_equal(races_of(READ_AFTER_WRITE, false, true), 0);
    for (int eager = 0; eager < 2; eager++) {  // until the wait the destination of a copy holds NaN, or the copied 1
        simt::settings().eager_async = eager;
        races_of(READ_IN_FLIGHT, false, true);
        assert_true(eager ? first_read == 1 : isnan(first_read));
    }
}

// ---- misuse: each case aborts a child process with one sentence

static void assert_aborts(const char *words, const char *more_words, void (*function)(void *), int which) {
    assert_aborts(words, more_words, function, (void *)&which);
}

// A thread of a kernel with a mistake. x is dynamic shared memory, 512 bytes at address `base`; small has 8 elements.
struct Scene {
    SharedPtr<float> x, small;
    uint32_t base;
    int lane;
    float *global, value;
    float d[4];
    uint32_t r[4];
    void multiply() { mma_bf16(d, r, 0, 0); }
    void copy() { cp_async(base + (uint32_t)lane * 16, global + lane * 4, true); }
    void shuffle(uint32_t mask, int source) { value = __shfl_up_sync(mask, value, (unsigned)(lane - source)); }
};

template <int COUNT> static void use_array(Scene &) {
    SHARED_ARRAY(float, large, COUNT);
    large[0] = 1;
}

static const struct {
    const char *sentence;
    void (*make)(Scene &s);
    unsigned waiting = 64;  // threads that call wait_for_previous_kernel
    int capability = 90;    // 75: with 40 KB of dynamic shared memory
} mistakes[] = {
    {"has returned", [](Scene &) { threadIdx.x < 7 ? __syncthreads() : (void)0; }},
    {"at that of line", [](Scene &) { threadIdx.x < 32 ? __syncthreads(1) : __syncthreads(2); }},
    {"different warp operations", [](Scene &s) { s.lane < 16 ? s.multiply() : __syncwarp(); }},
    {"misaligned shared memory address 8 for 16 bytes",
     [](Scene &s) { ldmatrix_x4(s.r, s.base + (uint32_t)s.lane * 8); }},
    {"shared memory address 512 is out of range", [](Scene &s) { ldmatrix_x4(s.r, s.base + 512); }},
    {"cp.async from a misaligned global address",
     [](Scene &s) { cp_async(s.base + (uint32_t)s.lane * 16, s.global + 1, true); }},
    {"but lane 31 has returned", [](Scene &s) { s.lane < 31 ? __syncwarp() : (void)0; }},
    {"cp.async copies in flight", [](Scene &s) { s.copy(); }},
    {"cp.async copies in flight", [](Scene &s) { s.copy(), cp_async_wait<0>(); }},  // without a commit
    {"is not in its own mask 000000ff", [](Scene &s) { s.shuffle(0xffu, s.lane); }},
    {"shuffles from lane 8, which is not in the mask 000000ff",
     [](Scene &s) { s.lane < 8 ? s.shuffle(0xffu, s.lane + 2) : (void)0; }},
    {"but lane 1 has returned", [](Scene &s) { s.lane == 0 ? s.multiply() : (void)0; }},
    {"index 8 is outside a shared array", [](Scene &s) { s.small[8] = 1; }},
    {"index 128 is outside a shared array", [](Scene &s) { s.x[128] = 1; }},
    {"index -1 is outside a shared array", [](Scene &s) { s.value = s.small[-1]; }},
    {"misaligned global address", [](Scene &s) { load128(s.global + 2); }},
    {"misaligned global address", [](Scene &s) { store128_streaming(s.global + 1, Pack<float>{}); }},
    {"divergent warp operation", [](Scene &s) { s.lane < 16 ? s.shuffle(0xffffffffu, 0) : __syncthreads(); }},
    {"misaligned shared memory address 2 for 4 bytes", [](Scene &s) { store_shared(s.base + 2, 1.0f); }},
    {"array large: more than 48 KB of static shared memory", use_array<12288>},
    {"thread 0: returned without wait_for_previous_kernel()", [](Scene &) {}, 0},
    {"thread 5: returned without wait_for_previous_kernel()", [](Scene &) {}, 5},
    {"mma of bf16 needs sm_80, and this GPU is sm_75", [](Scene &s) { s.multiply(); }, 64, 75},
    {"cp.async needs sm_80, and this GPU is sm_75", [](Scene &s) { simt::start_copy(s.base, s.global, 4, true); }, 64,
     75},
    {"more than 48 KB of static shared memory, or 64 KB of both kinds", use_array<7000>, 64, 75},
};

static __global__ void mistake(int which, float *global) {
    if (threadIdx.x < mistakes[which].waiting) { wait_for_previous_kernel(); }
    DYNAMIC_SHARED(float, x);
    SHARED_ARRAY(float, small, 8);
    Scene s = {x, small, shared_address(x), lane_id(), global, 0, {}, {}};
    mistakes[which].make(s);
}

static void make_mistake(void *argument) {
    int which = *(const int *)argument;
    float *global;
    simt::settings().check_races = 0;  // misuse comes before the race check
    simt::settings().capability = mistakes[which].capability;
    CUDA_CHECK(cudaMalloc(&global, 256 * sizeof(float)));
    LAUNCH(mistake, 1, 64, mistakes[which].capability == 75 ? 40 << 10 : 512, nullptr, which, global);
}

TEST(test_refusals) {
    for (int which = 0; which < (int)LEN(mistakes); which++) {
        assert_aborts("simt: kernel mistake: block (0,0,0) thread ", mistakes[which].sentence, make_mistake, which);
    }
}

static void make_race(void *argument) {
    int which = *(const int *)argument;
    simt::settings().only_count_races = false;
    races_of(which, false, which != READ_AFTER_WRITE && which != WRITE_AFTER_WRITE);
}

TEST(test_races_are_refused) {
    assert_aborts(
        "simt: kernel race: block (0,0,0) thread 1: race on static_array, byte 0: read after write, no barrier",
        "the other access is by thread 0", make_race, READ_AFTER_WRITE);
    assert_aborts("thread 40: race on dynamic shared memory, byte 0: write after read, no barrier",
                  "the other access is by several threads", make_race, WRITE_AFTER_READ);
    assert_aborts("thread 32: race on static_array, byte 512: write after write, no barrier",
                  "the other access is by thread 31", make_race, WRITE_AFTER_WRITE);
    assert_aborts("race on dynamic shared memory, byte 0: read before any write", "the other access is by nobody",
                  make_race, READ_UNWRITTEN);
}

// ---- the runtime

static __global__ void add(float *x, float value, int n) {
    wait_for_previous_kernel();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) { x[i] += value; }
}

TEST(test_memory) {
    float *x, *pinned, host = 1;
    CUDA_CHECK(cudaMalloc(&x, 10 * sizeof(float)));
    CUDA_CHECK(cudaMallocHost(&pinned, sizeof(float)));
    assert_int_equal((uintptr_t)x % 256, 0);
    for (int i = 0; i < 10; i++) { assert_true(isnan(x[i])); }
    for (cudaError_t error :
         {cudaMemcpy(x, &host, 4, cudaMemcpyDeviceToDevice), cudaMemcpy(&host, x, 4, cudaMemcpyHostToDevice),
          cudaMemcpy(x + 9, &host, 8, cudaMemcpyHostToDevice),  // past the end
          cudaMemset(&host, 0, 4), cudaMemset(x + 9, 0, 8), cudaFree(pinned), cudaFree(x + 1), cudaGetLastError()}) {
        assert_int_equal(error, cudaErrorInvalidValue);
    }
    // copies of pageable memory wait: test_gpt2 and test_ops allow none
    uint64_t before = simt::runtime().pageable_copies;
    CUDA_CHECK(cudaMemcpyAsync(x, pinned, 4, cudaMemcpyHostToDevice, nullptr));
    assert_int_equal(simt::runtime().pageable_copies, before);
    CUDA_CHECK(cudaMemcpyAsync(x, &host, 4, cudaMemcpyHostToDevice, nullptr));
    assert_int_equal(simt::runtime().pageable_copies, before + 1);
    CUDA_CHECK(cudaFree(x));
    CUDA_CHECK(cudaFreeHost(pinned));
}

// ---- SIMT_STREAMS and SIMT_LATE

// the oldest stream first, the youngest first, and seeds of random orders
enum { FIRST_STREAM_ORDER = 1, LAST_STREAM_ORDER = 10 };

static std::string run_in_order(int order, const char *script) {
    simt::settings().stream_order = order;
    return Letters().run(script);
}

// Nodes of a graph run on the streams of the capture: after earlier work of the launching stream, before its later
// work, and in any order with other work of the streams of the capture. A capture does not wait for nodes of the last.
static const char graph_beside_streams[] = "0( 0xyz 0) 0( 02 0!0 1?0 134 1!1 05 0?1 0) 21 1b 2* 26 2!2 0?2 07";
static const char three_streams[] = "0a 1k 2x 0b 1l 2y dn";

// Order 0 stands for all.
static const struct {
    int order;
    const char *script, *expected;
} scripts[] = {
    {1, three_streams, "nabklxy"},
    {2, three_streams, "xyklabn"},
    {1, graph_beside_streams, "b1253467"},
    {2, graph_beside_streams, "1b234567"},
    // an event is complete after the work that its stream waited for before the record, and waits for nothing later
    {0, "1p 1!1 0?1 0!0 2?0 2q", "pq"},
    {2, "1p 1!1 0!0 0?1 2?0 2q", "qp"},
    {2, "0a 0!0 1b 1!1 2?0 2?1 2!2 d?2 dn", "ban"},
    {1, "0a 0!0 1b 1!1 2?0 2?1 2!2 d?2 dn", "abn"},
    // a wait is for the latest record before the wait
    {1, "1p 1!1 2?1 1r 1!1 2q", "prq"},
    {2, "1p 1!1 2?1 1r 1!1 2q", "pqr"},
    // a wait of the host for an event runs the work that the event waits for alone; a query runs one piece of it
    {0, "0ab 0!0 1?0 1kl 1!1 0!2 1m d. d=0 d~1 d~1 d~1 d=2", "/ab/abk/600/abkl/600/abkl/abkl/abklm"},
    // a stream that joined a capture has work after the event that the capturing stream waits for, or was not joined
    {0, "0( 0!0 1?0 1!1 1a 0?1 0)", "904/"},
    {0, "0( 0!0 1?0 2?0 1!1 0?1 2a 2!2 1?2 0) 2?2", "904/907/"},  // stream 1 is joined already
    {0, "0( 0!0 1?0 0)", "904/"},
};

TEST(test_stream_orders) {
    for (const auto &c : scripts) {
        for (int order = FIRST_STREAM_ORDER; order <= LAST_STREAM_ORDER; order++) {
            if (c.order && c.order != order) { continue; }
            std::string found = run_in_order(order, c.script);
            if (found != c.expected) { fail_msg("%d, %s: %s, not %s", order, c.script, found.c_str(), c.expected); }
        }
    }
}

// Seeds from 3 on are random orders.
TEST(test_random_orders) {
    std::set<std::string> texts;
    for (int seed = 3; seed < 100; seed++) {
        simt::reset_runtime();
        texts.insert(run_in_order(seed, three_streams));
    }
    assert_true(texts.size() > 50);
}

// SIMT_LATE: work waits until the host waits for it, and a wait for an event runs the work before the event alone.
TEST(test_late_streams) {
    simt::settings().late_streams = 1;
    assert_string_equal(Letters().run(three_streams).c_str(), "akxblyn");
    assert_string_equal(Letters().run("0a 0!0 1b 1!1 d. d=0 d~0 d~1 d~1").c_str(), "/a/a/ab/600/ab/ab");
    Letters x;
    char host[4], *other;
    CUDA_CHECK(cudaMalloc(&other, 1));
    const std::vector<std::function<cudaError_t()>> waits = {
        [] { return cudaStreamSynchronize(nullptr); }, [] { return cudaDeviceSynchronize(); },
        [&] { return cudaMemcpy(host, x.text, 4, cudaMemcpyDeviceToHost); },
        [&] { return cudaMemcpyAsync(host, x.text, 4, cudaMemcpyDeviceToHost, nullptr); },  // to pageable memory
        [&] { return cudaFree(other); }};
    for (const auto &wait : waits) {
        size_t before = x.so_far().size();
        x.step("0c");
        assert_int_equal(x.so_far().size(), before);
        CUDA_CHECK(wait());
        assert_int_equal(x.so_far().size(), before + 1);
    }
}

// SIMT_PRIVATE: host code crashes at device memory, and a kernel past an allocation.
static void touch_private_memory(void *which) {
    float *x, host;
    signal(SIGSEGV, SIG_DFL);  // instead of cmocka's handler
    simt::settings().private_memory = 1;
    CUDA_CHECK(cudaMalloc(&x, 64 * sizeof(float)));
    CUDA_CHECK(cudaMemset(x, 0, 64 * sizeof(float)));
    LAUNCH(add, 1, 96, 0, nullptr, x, 1, *static_cast<int *>(which) == 1 ? 65 : 64);
    CUDA_CHECK(cudaMemcpy(&host, x + 63, sizeof host, cudaMemcpyDeviceToHost));
    if (*static_cast<int *>(which) == 2) { host = *static_cast<volatile float *>(x); }
    _exit(host == 1 ? 0 : 3);
}

TEST(test_private_memory) {
    char said[4096];
    for (int which = 0; which < 3; which++) {
        int status = run_in_child(said, sizeof said, touch_private_memory, &which);
        assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), which > 0 ? SIGSEGV : 0);
    }
}

// Each of these calls fails within a capture, which becomes invalid.
TEST(test_forbidden_in_capture) {
    const cudaError_t unsupported = cudaErrorStreamCaptureUnsupported;
    Letters x;
    cudaStream_t stream = x.streams[0];
    float *pinned, host[4] = {0};
    void *memory;
    cudaGraph_t graph;
    CUDA_CHECK(cudaMallocHost(&pinned, 16));
    const struct {
        cudaError_t expected;
        std::function<cudaError_t()> call;
    } calls[] = {
        {unsupported, [&] { return cudaStreamSynchronize(stream); }},
        {unsupported, [&] { return cudaDeviceSynchronize(); }},
        {unsupported, [&] { return cudaMalloc(&memory, 16); }},
        {unsupported, [&] { return cudaFree(x.text); }},
        {unsupported, [&] { return cudaMemcpyAsync(x.text, host, 16, cudaMemcpyHostToDevice, stream); }},
        {unsupported, [&] { return cudaMemcpyAsync(host, x.text, 16, cudaMemcpyDeviceToHost, stream); }},
        {unsupported, [&] { return cudaMemcpy(x.text, pinned, 16, cudaMemcpyHostToDevice); }},
        {cudaErrorStreamCaptureImplicit, [&] { return cudaMemsetAsync(x.text, 0, 16, nullptr); }},
        {cudaErrorCapturedEvent, [&] { return x.step("0!0"), cudaEventSynchronize(x.events[0]); }},
        {unsupported, [&] { return x.step("1!1"), cudaStreamWaitEvent(stream, x.events[1], 0); }},  // not captured
    };
    assert_int_equal(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), unsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnmatched);
    for (const auto &c : calls) {
        CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        assert_int_equal(c.call(), c.expected);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        cudaGetLastError();
    }
    CUDA_CHECK(cudaFreeHost(pinned));
}

// A failed assertion leaves its test by longjmp, so each test starts on an empty device. In any environment these
// tests expect an abort or a race in the call of the launch, and read device memory.
static int reset_device(void **) {
    simt::reset_runtime();
    simt::settings() = simt::Settings();
    simt::settings().late_streams = simt::settings().stream_order = simt::settings().private_memory = 0;
    return 0;
}

int main(void) {
    for (CMUnitTest &test : test_list()->tests) { test.setup_func = reset_device; }
    return run_all_tests("emulator");
}
#else
int main(void) { return run_all_tests("on the device"); }
#endif
