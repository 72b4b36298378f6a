/*
Tests of the emulator (dev/emulator/simt.h, cuda_runtime.h) and of the device functions in cuda_common.cuh.
The first group also holds on a GPU. The emulator runs it three times, with different warp orders, mma roundings and
completions of cp.async. The second group covers the emulator alone: the race check, aborts on misuse, and the errors of
the runtime.
*/
#include "testing.h"
#include "device_array.h"
#include "llmc/common/device.cuh"
#include "llmc/common/rng.h"
#include <set>
#include <string>

static float normal(uint64_t index) { return (float)rng_normal(7, 1, index); }

static std::vector<float> normals(size_t n) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; i++) { x[i] = normal(i); }
    return x;
}

// ---- an error. First, since a child cannot use CUDA after its parent has

static void check_failing_call(void *unused) {
    (void)unused;
    CUDA_CHECK(cudaSetDevice(1000));
}

TEST(test_cuda_check) {
    assert_stops(EXIT_RUN_FAILED, "cudaSetDevice(1000): invalid device ordinal", check_failing_call, nullptr);
}

// ---- shared memory, warp operations

// Transposes 32 x 32 numbers through a static and through a dynamic array, with 8 warps.
template <class T> static __global__ void transpose(T *out_static, T *out_dynamic, const T *in) {
    wait_for_previous_kernel();
    SHARED_ARRAY(T, tile, 32 * 33);
    DYNAMIC_SHARED(T, dynamic);
    for (int i = (int)threadIdx.x; i < 1024; i += (int)blockDim.x) {
        T x = __ldg(in + i);
        tile[i / 32 * 33 + i % 32] = x;
        dynamic[i] = x;
    }
    __syncthreads();  // the tiles are complete before a thread reads them
    for (int i = (int)threadIdx.x; i < 1024; i += (int)blockDim.x) {
        out_static[i] = tile[i % 32 * 33 + i / 32];
        __stcs(out_dynamic + i, (T)dynamic[i % 32 * 32 + i / 32]);
    }
}

template <class T> static void check_transpose(T (*number)(int)) {
    std::vector<T> in(1024);
    for (int i = 0; i < 1024; i++) { in[i] = number(i); }
    DeviceArray<T> from(in), by_static(1024), by_dynamic(1024);
    LAUNCH((transpose<T>), 1, 256, 1024 * sizeof(T), nullptr, by_static.at, by_dynamic.at, from.at);
    std::vector<T> a = by_static.host(), b = by_dynamic.host();
    for (int i = 0; i < 1024; i++) {
        assert_memory_equal(&a[i], &in[i % 32 * 32 + i / 32], sizeof(T));
        assert_memory_equal(&b[i], &in[i % 32 * 32 + i / 32], sizeof(T));
    }
}

static uint16_t short_number(int i) { return (uint16_t)(i * 59); }
static float float_number(int i) { return (float)i; }
static float4 float4_number(int i) { return make_float4((float)i, (float)-i, 0.5f, (float)(i * i)); }

TEST(test_shared_arrays) {
    check_transpose<uint16_t>(short_number);  // two lanes sharing four bytes do not race
    check_transpose<float>(float_number);
    check_transpose<float4>(float4_number);
}

enum { NUM_SHUFFLES = 4 };
static __global__ void warp_operations(int *shuffled, unsigned *voted) {
    wait_for_previous_kernel();
    int lane = lane_id(), *s = shuffled + threadIdx.x * NUM_SHUFFLES;
    s[0] = __shfl_up_sync(0xffffffffu, lane, 2);
    s[1] = __shfl_up_sync(0xffffffffu, lane, 1, 4);
    s[2] = __shfl_xor_sync(0xffffffffu, lane, 6);
    if (lane == 1) { __syncwarp(2); }  // lane 1 alone, while other lanes of the next mask already wait
    s[3] = lane < 16 ? __shfl_xor_sync(0x0000ffffu, lane, 1) : -1;
    voted[threadIdx.x] = __ballot_sync(0xffffffffu, lane % 3 == 0);
}

TEST(test_warp_operations) {
    DeviceArray<int> shuffled(64 * NUM_SHUFFLES);
    DeviceArray<unsigned> voted(64);
    LAUNCH(warp_operations, 1, 64, 0, nullptr, shuffled.at, voted.at);
    std::vector<int> s = shuffled.host();
    for (unsigned vote : voted.host()) { assert_int_equal(vote, 0x49249249u); }
    for (int thread = 0; thread < 64; thread++) {
        int l = thread % 32;
        int expected[NUM_SHUFFLES] = {l < 2 ? l : l - 2, l % 4 == 0 ? l : l - 1, l ^ 6, l < 16 ? l ^ 1 : -1};
        assert_memory_equal(&s[thread * NUM_SHUFFLES], expected, sizeof expected);
    }
}

// ---- reductions

template <int THREADS> static __global__ void reduce_twice(float *out, const float *in) {
    wait_for_previous_kernel();
    float x = in[blockIdx.x * THREADS + threadIdx.x];
    float *o = out + (blockIdx.x * THREADS + threadIdx.x) * 4;
    o[0] = block_sum<THREADS>(x);
    o[2] = block_sum<THREADS>(2 * x);  // reuses the shared array at once
    o[1] = block_max<THREADS>(x);
    o[3] = warp_max(-x);
}

template <int THREADS> static void check_reductions(void) {
    int blocks = 3;
    std::vector<float> x = normals((size_t)blocks * THREADS);
    for (float &value : x) { value -= 10; }  // a maximum that started at 0 would be wrong
    DeviceArray<float> in(x), out(x.size() * 4);
    LAUNCH((reduce_twice<THREADS>), blocks, THREADS, 0, nullptr, out.at, in.at);
    std::vector<float> got = out.host();
    for (int block = 0; block < blocks; block++) {
        const float *mine = &x[(size_t)block * THREADS], *first = &got[(size_t)block * THREADS * 4];
        double sum = 0;
        float largest = -INFINITY;
        for (int i = 0; i < THREADS; i++) { sum += mine[i], largest = fmaxf(largest, mine[i]); }
        assert_true(fabs(first[0] - sum) <= 1e-6 * fabs(sum));
        assert_true(first[1] == largest && first[2] == 2 * first[0]);
        for (int i = 0; i < THREADS; i++) {
            float smallest = INFINITY;
            for (int j = i / 32 * 32; j < i / 32 * 32 + 32; j++) { smallest = fminf(smallest, mine[j]); }
            assert_memory_equal(first + 4 * i, first, 3 * sizeof(float));  // the same bits in every thread
            assert_true(first[4 * i + 3] == -smallest);
        }
    }
}

TEST(test_reductions) {
    check_reductions<32>();
    check_reductions<96>();
    check_reductions<256>();
    check_reductions<1024>();
}

// ---- rounding

static __global__ void convert(uint32_t *pairs, float *unpacked, float *powers, const float *x, int n) {
    wait_for_previous_kernel();
    for (int i = (int)threadIdx.x; i < n / 2; i += (int)blockDim.x) {
        pairs[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
        float2 two = unpack_bf16(pairs[i]);
        unpacked[2 * i] = two.x;
        unpacked[2 * i + 1] = two.y;
    }
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) { powers[i] = exp2_fast(x[i]); }
}

TEST(test_conversions) {
    std::vector<float> x = normals(1000);
    for (float &value : x) { value *= 10; }
    x[0] = -INFINITY, x[1] = 0, x[2] = 1 + 0x1p-8f, x[3] = 1 + 3 * 0x1p-8f, x[4] = -149, x[5] = 3.4e38f;
    DeviceArray<float> in(x), unpacked(x.size()), powers(x.size());
    DeviceArray<uint32_t> pairs(x.size() / 2);
    LAUNCH(convert, 1, 64, 0, nullptr, pairs.at, unpacked.at, powers.at, in.at, (int)x.size());
    std::vector<uint32_t> p = pairs.host();
    std::vector<float> u = unpacked.host(), e = powers.host();
    for (size_t i = 0; i < x.size(); i++) {
        uint16_t expected = float_to_bf16(x[i]).bits;
        assert_int_equal((uint16_t)(p[i / 2] >> (16 * (i % 2))), expected);
        assert_true(u[i] == bf16_to_float(bf16{expected}));
        assert_true(i == 5 || fabs(e[i] - exp2((double)x[i])) <= 5e-7 * exp2((double)x[i]) || i == 4);
    }
    assert_true(e[0] == 0 && e[1] == 1 && e[4] == 0 && isinf(e[5]));
}

// random bits of one element of a weight tensor
static HOST_DEVICE uint32_t rounding_bits(uint64_t seed, uint64_t step, uint64_t tensor, uint64_t index) {
    return element_rounding_bits(group_rounding_bits(seed, step, tensor, ROUND_WEIGHT, index / 4), index % 4);
}

static __global__ void round_stochastic(bf16 *out, const float *x, uint64_t step, int draws) {
    wait_for_previous_kernel();
    for (int i = (int)threadIdx.x; i < draws; i += (int)blockDim.x) {
        uint64_t key = blockIdx.x * (uint64_t)draws + (uint64_t)i;
        out[key] = bf16_round_stochastic(x[blockIdx.x], rounding_bits(42, step, 3, key));
    }
}

TEST(test_stochastic_rounding) {
    enum { DRAWS = 65536, EXACT = 4 };
    std::vector<float> x = {1.0f, -0.375f, 0.0f, INFINITY, 1.001f, -1.0051f, 3e-5f, 1e30f, 0x1.0001p0f};
    DeviceArray<float> in(x);
    DeviceArray<bf16> out(x.size() * DRAWS), again(x.size() * DRAWS), next(x.size() * DRAWS);
    LAUNCH(round_stochastic, (unsigned)x.size(), 128, 0, nullptr, out.at, in.at, 5, DRAWS);
    LAUNCH(round_stochastic, (unsigned)x.size(), 64, 0, nullptr, again.at, in.at, 5, DRAWS);
    LAUNCH(round_stochastic, (unsigned)x.size(), 128, 0, nullptr, next.at, in.at, 6, DRAWS);
    std::vector<bf16> got = out.host(), same = again.host(), other = next.host();
    assert_memory_equal(got.data(), same.data(), got.size() * sizeof(bf16));  // bits depend on the key alone
    assert_memory_not_equal(&got[EXACT * DRAWS], &other[EXACT * DRAWS], DRAWS * sizeof(bf16));
    for (size_t i = 0; i < x.size(); i++) {
        double mean = 0, ulp = i < EXACT ? 0 : ldexp(1, ilogb(x[i]) - 7);
        for (size_t k = 0; k < DRAWS; k++) {
            float value = bf16_to_float(got[i * DRAWS + k]);
            assert_true(i < EXACT ? value == x[i] : fabs((double)value - x[i]) < ulp);
            mean += value;
        }
        // a Bernoulli variable with variance of at most 1/4 ulp^2: 5 standard deviations of the mean are below 0.01 ulp
        if (i >= EXACT) { assert_true(fabs(mean / (double)DRAWS - x[i]) < 0.01 * ulp); }
    }
    float negative_nan = -NAN;
    assert_true(isnan(bf16_to_float(bf16_round_stochastic(NAN, 0xffff))));
    memset(&negative_nan, 0xff, sizeof negative_nan);
    assert_true(isnan(bf16_to_float(bf16_round_stochastic(negative_nan, 0xffff))));
}

TEST(test_rounding_bits) {
    double mean = 0;
    int equal_neighbours = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        uint32_t bits = rounding_bits(1, 2, 3, i);
        assert_true(bits < 65536);
        mean += bits / 100000.0;
        equal_neighbours += bits == rounding_bits(1, 2, 3, i + 1);
    }
    assert_true(fabs(mean - 32767.5) < 300);  // five standard deviations
    assert_true(equal_neighbours < 10);       // 1.5 expected
    assert_int_not_equal(rounding_bits(1, 2, 3, 8), rounding_bits(1, 2, 4, 8));
    assert_int_not_equal(rounding_bits(1, 2, 3, 8), rounding_bits(9, 2, 3, 8));
    assert_int_not_equal(rounding_bits(1, (1 << 20) + 1, 2, 8), rounding_bits(1, 1, 3, 8));  // many steps
    uint64_t weight = group_rounding_bits(1, 2, 3, ROUND_WEIGHT, 2), of_m = group_rounding_bits(1, 2, 3, ROUND_M, 2);
    uint64_t of_v = group_rounding_bits(1, 2, 3, ROUND_V, 2);
    assert_true(weight != of_m && weight != of_v && of_m != of_v);
    assert_int_equal(ceil_div(7, 4), 2);
    assert_int_equal(ceil_div((size_t)8, (size_t)4), 2);
}

// ---- cp.async

// Three groups of copies in flight. A lane reads its own data of group 0, and the data of lane 31 - lane of groups 1
// and 2. In group 1 only lanes 0 to 19 copy valid data.
static __global__ void copy_in_groups(uint32_t *out, const uint32_t *in) {
    wait_for_previous_kernel();
    constexpr int WORDS = 4, GROUP = 32 * WORDS;
    DYNAMIC_SHARED(uint32_t, buffer);
    int lane = (int)threadIdx.x, mirror = 31 - lane;
    for (int g = 0; g < 3; g++) {
        int at = g * GROUP + lane * WORDS;
        cp_async(shared_address(buffer + at), in + at, g != 1 || lane < 20);
        cp_async_commit();
    }
    cp_async_wait<2>();  // group 0 is visible to the lane that copied it
    for (int i = 0; i < WORDS; i++) { out[lane * WORDS + i] = buffer[lane * WORDS + i]; }
    cp_async_wait<0>();
    __syncwarp();  // all groups are visible to all lanes
    for (int i = 0; i < 2 * WORDS; i++) {
        int at = (1 + i / WORDS) * GROUP + mirror * WORDS + i % WORDS;
        out[at] = buffer[at];
    }
}

TEST(test_cp_async) {
    enum { WORDS = 32 * 4 };
    std::vector<uint32_t> in(3 * WORDS);
    for (int i = 0; i < 3 * WORDS; i++) { in[i] = (uint32_t)i + 1; }
    DeviceArray<uint32_t> from(in), to(3 * WORDS);
    LAUNCH(copy_in_groups, 1, 32, 3 * WORDS * 4, nullptr, to.at, from.at);
    std::vector<uint32_t> out = to.host();
    for (int i = 0; i < 3 * WORDS; i++) {
        bool valid = i / WORDS != 1 || i % WORDS / 4 < 20;
        assert_int_equal(out[i], valid ? in[i] : 0);
    }
}

// ---- CUDA graphs: captured work runs at cudaGraphLaunch, with the arguments of the capture

static __global__ void add(float *x, float value, int n) {
    wait_for_previous_kernel();
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) { x[i] += value; }
}

TEST(test_graph) {
    enum { N = 100 };
    DeviceArray<float> x(std::vector<float>(N, 7.0f)), y(std::vector<float>(N, 7.0f));
    float *pinned, value = 0.5f;
    cudaStream_t stream, side;
    cudaEvent_t fork_event, join_event;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaMallocHost(&pinned, N * sizeof(float)));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming));
    for (int i = 0; i < N; i++) { pinned[i] = 1; }

    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA_CHECK(cudaMemcpyAsync(x.at, pinned, N * sizeof(float), cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaEventRecord(fork_event, stream));
    CUDA_CHECK(cudaStreamWaitEvent(side, fork_event, 0));
    CUDA_CHECK(cudaMemsetAsync(y.at, 0, N * sizeof(float), side));
    LAUNCH(add, 2, 64, 0, side, y.at, value, N);
    CUDA_CHECK(cudaEventRecord(join_event, side));
    LAUNCH(add, 2, 64, 0, stream, x.at, value, N);
    CUDA_CHECK(cudaStreamWaitEvent(stream, join_event, 0));
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    assert_true(x.host()[0] == 7 && y.host()[0] == 7);  // a capture runs nothing
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));

    value = 100;  // no effect: arguments were captured by value
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < N; i++) { pinned[i] = (float)(i * round); }  // a copy reads its source at the launch
        CUDA_CHECK(cudaGraphLaunch(exec, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        std::vector<float> got_x = x.host(), got_y = y.host();
        for (int i = 0; i < N; i++) { assert_true(got_x[i] == (float)(i * round) + 0.5f && got_y[i] == 0.5f); }
    }
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaEventDestroy(fork_event));
    CUDA_CHECK(cudaEventDestroy(join_event));
    CUDA_CHECK(cudaStreamDestroy(side));
    CUDA_CHECK(cudaStreamDestroy(stream));
    CUDA_CHECK(cudaFreeHost(pinned));
}

TEST(test_events) {
    cudaEvent_t start, end;
    float milliseconds = -1;
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreate(&end));
    assert_int_not_equal(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);  // not recorded
    cudaGetLastError();
    CUDA_CHECK(cudaEventRecord(start, nullptr));
    CUDA_CHECK(cudaEventRecord(end, nullptr));
    CUDA_CHECK(cudaEventSynchronize(end));
    CUDA_CHECK(cudaEventQuery(end));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, end));
    assert_true(milliseconds >= 0 && milliseconds < 1e4f);
    CUDA_CHECK(cudaEventDestroy(start));
    CUDA_CHECK(cudaEventDestroy(end));
}

#ifndef __CUDACC__

static int num_portable;  // tests so far
__attribute__((constructor(1000 + __LINE__))) static void count_portable(void) { num_portable = test_list()->count; }

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

// 1 + 1.5 * 2^-24 rounds to 1 + 2^-23 and truncates to 1
TEST(test_mma_rounding) {
    for (int truncated = 0; truncated < 2; truncated++) {
        simt::settings().mma_rounding = truncated;
        DeviceArray<float> out(1);
        LAUNCH(multiply_small, 1, 32, 0, nullptr, out.at);
        assert_true(out.host()[0] == (truncated ? 1 : 1 + 0x1p-23f));
    }
}

// One tensor-core sum: every addend loses its bits below 2^-24 of the largest, and the sum is cut to fp32.
TEST(test_tensor_core_sum) {
    const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float x[8];
    for (float &v : x) { v = 0x1p-25f; }
    assert_true(simt::tensor_core_sum(1, x, ones, 8) == 1);  // in fp32, each one rounds to 1 too; their sum is 2^-22
    for (float &v : x) { v = 1.5f * 0x1p-24f; }
    assert_true(simt::tensor_core_sum(1, x, ones, 8) == 1 + 0x1p-21f);    // 8 times 2^-24
    assert_true(simt::tensor_core_sum(-1, x, ones, 8) == -1 + 0x1p-21f);  // cut towards zero on either side
    assert_true(simt::tensor_core_sum(1, x, ones, 1) == 1);               // 2^-24 is kept and then cut off
    assert_true(simt::tensor_core_sum(0x1p-20f, x, ones, 8) == 0x1p-20f + 12 * 0x1p-24f);  // nothing to cut
    const float order[8] = {1, 0x1p-25f, 0x1p-25f, 0x1p-25f, 0x1p-25f, -1, 0, 0},
                other[8] = {0x1p-25f, 0x1p-25f, 1, 0, -1, 0x1p-25f, 0x1p-25f};
    assert_true(simt::tensor_core_sum(0, order, ones, 8) == simt::tensor_core_sum(0, other, ones, 8));
    x[3] = INFINITY;
    assert_true(simt::tensor_core_sum(1, x, ones, 8) == INFINITY);
    x[4] = -INFINITY;
    assert_true(isnan(simt::tensor_core_sum(1, x, ones, 8)));
}

// SIMT_APPROX: an error of at most NVIDIA's bound, and of more than half of it somewhere; equal inputs, equal results.
// Off: the correctly rounded value.
static void assert_approximate(const char *name, float (*f)(float), double (*exact)(double), double bound) {
    for (int on = 0; on < 2; on++) {
        double largest = 0;
        simt::settings().approximate = on;
        for (int i = 0; i < 4000; i++) {
            float x = 0.37f + (float)i * 0.00313f;
            double y = exact((double)x), error = fabs((double)f(x) - y) / fabs(y);
            largest = error > largest ? error : largest;
            assert_true(f(x) == f(x));
        }
        double least = on ? bound / 2 : 0, most = (on ? bound : 0) + 0x1p-24;
        if (!(largest >= least && largest <= most)) {
            fail_msg("%s: the largest error is %g, expected %g to %g", name, largest, least, most);
        }
    }
}

TEST(test_approximate) {
    assert_approximate("ex2", exp2_fast, exp2, 0x1p-22);
    assert_approximate(
        "rcp", reciprocal_fast, [](double x) { return 1 / x; }, 0x1p-23);
    assert_approximate(
        "rsqrt", rsqrt_device, [](double x) { return 1 / sqrt(x); }, 0x1p-22);
    assert_approximate("log", log_device, log, 0x1p-23);
    assert_approximate("log2", log2_device, log2, 0x1p-23);
    simt::settings().approximate = 1;
    assert_true(exp2_fast(-3) == 0.125f && exp2_fast(0) == 1);  // whole exponents are exact on a GPU
}

// Reads the destination of a copy before the wait.
static __global__ void look_early(float *out, const float *in) {
    wait_for_previous_kernel();
    SHARED_ARRAY(float, x, 128);
    int at = 4 * lane_id();
    x[at] = 1;
    cp_async(shared_address(x + at), in + at, true);
    cp_async_commit();
    out[lane_id()] = x[at];
    cp_async_wait<0>();
}

TEST(test_copy_in_flight_is_poisoned) {
    DeviceArray<float> in(std::vector<float>(128, 2.0f)), out(32);
    simt::settings().only_count_races = true;
    for (int eager = 0; eager < 2; eager++) {
        simt::settings().eager_async = eager;
        LAUNCH(look_early, 1, 32, 0, nullptr, out.at, in.at);
        for (float x : out.host()) { assert_true(eager ? x == 2 : isnan(x)); }
    }
}

// ---- the race check: each case with and without the barrier, wait or write that prevents the race

// Thread i of 64, and an array x of 64 packs, whose first numbers are read and written. Unless `correct`, barriers and
// waits do nothing.
struct Racer {
    SharedPtr<float> x;
    float *global;
    bool correct;
    int i, other_warp, other_lane;
    void barrier() { correct ? __syncthreads() : (void)0; }
    void warp_barrier() { correct ? __syncwarp() : (void)0; }
    void wait() { correct ? cp_async_wait<0>() : (void)0; }
    void copy(int to) { cp_async(shared_address(x + 4 * to), global + 64 + 4 * to, true), cp_async_commit(); }
    void set(int at, float value) { x[4 * at] = value; }
    void read(int at) { global[i] = x[4 * at]; }
    void write(int at, int by) { i == by ? set(at, 1) : (void)0; }
    void add() { atomicAdd(&x[0], 1.0f); }
};

enum { READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, READ_UNWRITTEN };  // rows of races
static const struct {
    const char *name;
    void (*run)(Racer &t);
} races[] = {
    {"read after write", [](Racer &t) { t.write(0, 0), t.barrier(), t.read(0); }},
    {"write after read", [](Racer &t) { t.read(0), t.barrier(), t.write(0, 40); }},
    {"write after write", [](Racer &t) { t.set(t.i, 1), t.barrier(), t.set(t.other_warp, 2); }},
    {"read of what nobody wrote", [](Racer &t) { t.read(t.i); }},
    {"write by the last reader", [](Racer &t) { t.read(0), t.barrier(), t.write(0, 63); }},
    {"read after write in a warp", [](Racer &t) { t.set(t.i, 1), t.warp_barrier(), t.read(t.other_lane); }},
    {"write after read in a warp", [](Racer &t) { t.read(t.other_lane), t.warp_barrier(), t.set(t.i, 1); }},
    {"a warp's barrier between warps",
     [](Racer &t) {
         if (t.i < 32) { t.set(t.i, 1); }
         __syncwarp();
         t.barrier();
         if (t.i >= 32) { t.read(t.other_warp); }
     }},
    {"read before the wait", [](Racer &t) { t.copy(t.i), t.wait(), t.read(t.i), cp_async_wait<0>(); }},
    {"read of another thread's copy",
     [](Racer &t) { t.copy(t.i), cp_async_wait<0>(), t.barrier(), t.read(t.other_warp); }},
    {"copy after read",
     [](Racer &t) {
         t.read(0), t.barrier();
         if (t.i == 40) { t.copy(0), cp_async_wait<0>(); }
     }},
    {"write during a copy", [](Racer &t) { t.copy(t.i), t.wait(), t.set(t.i, 3), cp_async_wait<0>(); }},
    {"update after write", [](Racer &t) { t.write(0, 0), t.barrier(), t.add(); }},
    {"read after update",
     [](Racer &t) {
         t.add(), t.barrier();
         if (t.i == 63) { t.read(0); }
     }},
    {"write after update", [](Racer &t) { t.add(), t.barrier(), t.write(0, 40); }},
};

static __global__ void race(int which, bool correct, bool dynamic, float *global) {
    wait_for_previous_kernel();
    DYNAMIC_SHARED(float, dynamic_array);
    SHARED_ARRAY(float, static_array, 256);
    int i = (int)threadIdx.x;
    Racer t = {dynamic ? dynamic_array : static_array, global, correct, i, 63 - i, i ^ 1};
    if (which != READ_UNWRITTEN || correct) { t.set(i, (float)i); }
    __syncthreads();  // orders the initial writes before the case
    races[which].run(t);
}

static uint64_t races_of(int which, bool correct, bool dynamic) {
    uint64_t before = simt::counts().races;
    DeviceArray<float> global(std::vector<float>(320, 1.0f));
    LAUNCH(race, 1, 64, 1024, nullptr, which, correct, dynamic, global.at);
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

static const struct {
    const char *sentence;
    void (*make)(Scene &s);
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
    {"array big: more than 48 KB of static shared memory",
     [](Scene &) {
         SHARED_ARRAY(float, big, 12288);
         big[0] = 1;
     }},
};

static __global__ void mistake(int which, float *global) {
    wait_for_previous_kernel();
    DYNAMIC_SHARED(float, x);
    SHARED_ARRAY(float, small, 8);
    Scene s = {x, small, shared_address(x), lane_id(), global, 0, {}, {}};
    mistakes[which].make(s);
}

static void make_mistake(void *argument) {
    int which = *(const int *)argument;
    float *global;
    simt::settings().check_races = 0;  // misuse comes before the race check
    CUDA_CHECK(cudaMalloc(&global, 256 * sizeof(float)));
    LAUNCH(mistake, 1, 64, 512, nullptr, which, global);
}

TEST(test_refusals) {
    for (int which = 0; which < (int)LEN(mistakes); which++) {
        assert_aborts("simt: kernel mistake: block (0,0,0) thread ", mistakes[which].sentence, make_mistake, which);
    }
}

// an instruction that sm_75 does not have, or more shared memory
enum { SM_75_SHARED = 56 * 1024, NUM_BEYOND_SM_75 = 3 };
static const char *const beyond_sm_75_sentences[NUM_BEYOND_SM_75] = {
    "mma of bf16 needs sm_80, and this GPU is sm_75", "cp.async needs sm_80, and this GPU is sm_75",
    "more than 48 KB of static shared memory, or 64 KB of both kinds"};

static __global__ void beyond_sm_75(int which, const float *global) {
    wait_for_previous_kernel();
    DYNAMIC_SHARED(float, x);
    float d[4] = {};
    const uint32_t a[4] = {};
    if (which == 0) { mma_bf16(d, a, 0, 0); }
    if (which == 1) { simt::start_copy(shared_address(x), global, 4, true); }
    if (which == 2) {
        SHARED_ARRAY(float, more, 3000);
        more[0] = 1;
    }
}

static void use_beyond_sm_75(void *argument) {
    float *global;
    simt::settings().capability = 75;
    CUDA_CHECK(cudaMalloc(&global, sizeof(float)));
    CUDA_CHECK(cudaFuncSetAttribute(beyond_sm_75, cudaFuncAttributeMaxDynamicSharedMemorySize, SM_75_SHARED));
    LAUNCH(beyond_sm_75, 1, 32, SM_75_SHARED, nullptr, *static_cast<const int *>(argument), global);
}

// SIMT_CAPABILITY=75: a T4
TEST(test_sm_75) {
    cudaDeviceProp properties;
    int value = 0;
    simt::settings().capability = 75;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    assert_true(properties.major == 7 && properties.minor == 5);
    assert_int_equal(cuda_capability(), 75);
    CUDA_CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    assert_int_equal(value, 64 * 1024);
    CUDA_CHECK(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, value));
    assert_int_equal(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, value + 4),
                     cudaErrorInvalidValue);
    cudaGetLastError();
    uint64_t copies = simt::counts().async_copies;
    test_cp_async(state);
    assert_int_equal(simt::counts().async_copies, copies);
    for (int which = 0; which < NUM_BEYOND_SM_75; which++) {
        assert_aborts("simt: kernel beyond_sm_75: block (0,0,0) thread ", beyond_sm_75_sentences[which],
                      use_beyond_sm_75, which);
    }
}

// A kernel that does not begin with wait_for_previous_kernel() could start before its inputs are there.
static __global__ void does_not_wait(float *x, bool some) {
    if (some && threadIdx.x < 5) { wait_for_previous_kernel(); }
    x[threadIdx.x] = 1;
}

static void launch_without_wait(void *argument) {
    float *x;
    CUDA_CHECK(cudaMalloc(&x, 32 * sizeof(float)));
    LAUNCH(does_not_wait, 1, 32, 0, nullptr, x, *static_cast<const int *>(argument) == 1);
}

TEST(test_kernels_wait) {
    const char *const words = "returned without wait_for_previous_kernel()";
    assert_aborts("simt: kernel does_not_wait: block (0,0,0) thread 0", words, launch_without_wait, 0);
    assert_aborts("simt: kernel does_not_wait: block (0,0,0) thread 5", words, launch_without_wait, 1);
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

TEST(test_memory) {
    simt::Runtime &r = simt::runtime();
    size_t free_before, free_after, total;
    float *x, *pinned, host = 1;
    CUDA_CHECK(cudaMemGetInfo(&free_before, &total));
    CUDA_CHECK(cudaMalloc(&x, 10 * sizeof(float)));
    CUDA_CHECK(cudaMallocHost(&pinned, sizeof(float)));
    CUDA_CHECK(cudaMemGetInfo(&free_after, &total));
    assert_int_equal(free_before - free_after, 10 * sizeof(float));
    assert_int_equal((uintptr_t)x % 256, 0);
    for (int i = 0; i < 10; i++) { assert_true(isnan(x[i])); }
    assert_int_equal(cudaMemcpy(x, &host, 4, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(&host, x, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(x + 9, &host, 8, cudaMemcpyHostToDevice), cudaErrorInvalidValue);  // past the end
    assert_int_equal(cudaMemset(&host, 0, 4), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(x + 9, 0, 8), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(pinned), cudaErrorInvalidValue);
    assert_int_equal(cudaFree(x + 1), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    CUDA_CHECK(cudaFree(x));
    CUDA_CHECK(cudaFreeHost(pinned));
    CUDA_CHECK(cudaFree(nullptr));
    r.pinned_bytes = r.pinned_bytes_used + 100;
    assert_int_equal(cudaMallocHost(&pinned, 101), cudaErrorMemoryAllocation);
    CUDA_CHECK(cudaMallocHost(&pinned, 100));
    CUDA_CHECK(cudaFreeHost(pinned));
    r.device_bytes = r.device_bytes_used + 100;
    assert_int_equal(cudaMalloc(&x, 101), cudaErrorMemoryAllocation);
    assert_string_equal(cudaGetErrorString(cudaGetLastError()), "out of memory");
    CUDA_CHECK(cudaMalloc(&x, 100));
    CUDA_CHECK(cudaFree(x));
}

// cudaMemcpyDefault between pinned host memory, and pinned memory of a dry run: address space that the host may access.
TEST(test_pinned_memory) {
    const size_t bytes = (size_t{1} << 40) + 4096;  // not 2^40: clang 19 would merge the stores to both ends
    float *x, *y;
    cudaStream_t stream;
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaMallocHost(&x, sizeof *x));
    CUDA_CHECK(cudaMallocHost(&y, sizeof *y));
    *x = 3;
    CUDA_CHECK(cudaMemcpyAsync(y, x, sizeof *x, cudaMemcpyDefault, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    assert_true(*y == 3);
    *x = 4;
    CUDA_CHECK(cudaMemcpy(y, x, sizeof *x, cudaMemcpyDefault));
    assert_true(*y == 4);
    assert_int_equal(simt::runtime().pageable_copies, 0);
    CUDA_CHECK(cudaFreeHost(x));
    simt::runtime().dry_run = true;
    CUDA_CHECK(cudaMallocHost(&x, bytes));
    assert_int_equal(simt::memory_kind(x, bytes), simt::PINNED);
    x[0] = x[bytes / sizeof *x - 1] = 5;
    CUDA_CHECK(cudaMemcpy(y, x, sizeof *x, cudaMemcpyDefault));  // checked alone
    assert_true(x[0] == 5 && *y == 4);
    assert_int_equal(simt::runtime().device_bytes_used, 0);
    CUDA_CHECK(cudaFreeHost(x));
    CUDA_CHECK(cudaFreeHost(y));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

TEST(test_counters) {
    DeviceArray<float> x(4);
    cudaStream_t stream;
    cudaEvent_t event;
    float *pinned, host[4] = {0};
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaEventCreate(&event));
    CUDA_CHECK(cudaMallocHost(&pinned, 16));
    simt::Runtime before = simt::runtime();
    CUDA_CHECK(cudaMemsetAsync(x.at, 0, 16, stream));
    CUDA_CHECK(cudaMemcpyAsync(pinned, x.at, 16, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaMemcpyAsync(x.at, pinned, 16, cudaMemcpyHostToDevice, stream));
    CUDA_CHECK(cudaEventRecord(event, stream));
    CUDA_CHECK(cudaStreamWaitEvent(stream, event, 0));
    CUDA_CHECK(cudaEventQuery(event));
    LAUNCH(add, 1, 32, 0, stream, x.at, 1.0f, 4);
    assert_int_equal(simt::runtime().host_synchronisations, before.host_synchronisations);  // no host wait so far
    assert_int_equal(simt::runtime().pageable_copies, before.pageable_copies);
    assert_int_equal(simt::runtime().launches, before.launches + 1);
    CUDA_CHECK(cudaMemcpyAsync(host, x.at, 16, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaMemcpyAsync(x.at, host, 16, cudaMemcpyHostToDevice, stream));
    assert_int_equal(simt::runtime().pageable_copies, before.pageable_copies + 2);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaEventSynchronize(event));
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(host, x.at, 16, cudaMemcpyDeviceToHost));
    assert_int_equal(simt::runtime().host_synchronisations, before.host_synchronisations + 4);
    assert_true(host[3] == 1);
    CUDA_CHECK(cudaFreeHost(pinned));
    CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// cost of `work` on stream `stream`, by two events around it
template <class Work> static float milliseconds_of(cudaStream_t stream, Work work) {
    cudaEvent_t start, end;
    float milliseconds = -1;
    CUDA_CHECK(cudaEventCreate(&start));
    CUDA_CHECK(cudaEventCreate(&end));
    CUDA_CHECK(cudaEventRecord(start, stream));
    work();
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start, end));
    CUDA_CHECK(cudaEventDestroy(start));
    CUDA_CHECK(cudaEventDestroy(end));
    return milliseconds;
}

// Elapsed time depends on the work alone: equal work takes equal time, and host time is not counted.
TEST(test_clock) {
    enum { BLOCKS = 300, THREADS = 64, BYTES = 4 * BLOCKS * THREADS };
    DeviceArray<float> x(BLOCKS * THREADS);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamCreate(&stream));
    auto kernel = [&] { LAUNCH(add, BLOCKS, THREADS, 0, stream, x.at, 1.0f, BLOCKS * THREADS); };
    auto fill = [&] { CUDA_CHECK(cudaMemsetAsync(x.at, 0, BYTES, stream)); };
    float kernel_ms = 1e-6f * (float)simt::kernel_nanoseconds(BLOCKS * THREADS);
    float fill_ms = 1e-6f * (float)simt::copy_nanoseconds(BYTES);
    assert_true(milliseconds_of(stream, [] { usleep(1000); }) == 0);
    float first = milliseconds_of(stream, kernel);
    assert_float_equal(first, kernel_ms, 1e-9);
    for (int i = 0; i < 100; i++) { assert_true(milliseconds_of(stream, kernel) == first); }
    assert_float_equal(milliseconds_of(stream, fill), fill_ms, 1e-9);
    assert_true(simt::kernel_nanoseconds(2 * THREADS) > simt::kernel_nanoseconds(THREADS));

    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    uint64_t before = simt::runtime().nanoseconds;
    kernel(), fill();
    assert_int_equal(simt::runtime().nanoseconds, before);  // a capture runs nothing
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph));
    auto launch = [&] { CUDA_CHECK(cudaGraphLaunch(exec, stream)); };
    assert_float_equal(milliseconds_of(stream, launch), kernel_ms + fill_ms, 1e-9);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaStreamDestroy(stream));
}

// A test that fails leaves a capture, a stream and memory behind. The next test finds none of these.
TEST(test_reset) {
    float *x;
    cudaStream_t stream;
    CUDA_CHECK(cudaMalloc(&x, 100));
    CUDA_CHECK(cudaStreamCreate(&stream));
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_int_equal(cudaMalloc(&x, 100), cudaErrorStreamCaptureUnsupported);
    simt::runtime().device_bytes = 100;
    simt::reset_runtime();
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(simt::runtime().device_bytes_used, 0);
    assert_true(simt::runtime().streams.empty() && simt::runtime().allocations.empty());
    CUDA_CHECK(cudaMalloc(&x, 1000));
    CUDA_CHECK(cudaFree(x));
}

TEST(test_launch_limits) {
    const int kib = 1024, most = 227 * kib;
    const struct {
        dim3 grid, block;
        int allowed, shared_bytes;
        cudaError_t expected;
    } launches[] = {{1, 1024, 0, 48 * kib, cudaSuccess},
                    {1, 1025, 0, 0, cudaErrorInvalidConfiguration},
                    {0, 32, 0, 0, cudaErrorInvalidConfiguration},
                    {dim3(1, 65536), 32, 0, 0, cudaErrorInvalidConfiguration},
                    {1, 32, 0, 48 * kib + 4, cudaErrorInvalidValue},
                    {1, 32, 100 * kib, 100 * kib, cudaSuccess},
                    {1, 32, 100 * kib, 100 * kib + 4, cudaErrorInvalidValue},
                    {1, 32, most + 4, 0, cudaErrorInvalidValue}};
    for (const auto &l : launches) {
        if (l.allowed) { cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, l.allowed); }
        simt::launch("add", add, l.grid, l.block, (size_t)l.shared_bytes, nullptr, nullptr, 0.0f, 0);
        assert_int_equal(cudaGetLastError(), l.expected);
    }
}

// x[0] after `add` of 1 to zeros in a block of 64 threads; `error`: of the launch
static float broken_sum(const char *mode, cudaError_t error) {
    DeviceArray<float> x(std::vector<float>(64, 0.0f));
    simt::settings().broken_kernel = mode;
    simt::launch("add", add, 1, 64, 0, nullptr, x.at, 1.0f, 64);
    assert_int_equal(cudaGetLastError(), error);
    CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<float> sums = x.host();
    for (int i = 1; i < 64; i++) { assert_true(sums[i] == sums[1]); }
    return sums[0];
}

static void launch_broken(void *mode) { broken_sum(static_cast<const char *>(mode), cudaSuccess); }

// SIMT_BREAK
TEST(test_broken_kernels) {
    const char *unknown = "add:64:slow", *crash = "add:crash";
    assert_true(broken_sum("other", cudaSuccess) == 1);
    assert_true(broken_sum("add:32:nothing", cudaSuccess) == 1);
    assert_true(broken_sum("add", cudaSuccess) > 1000);
    assert_true(isnan(broken_sum("add:64:nan", cudaSuccess)));
    assert_true(broken_sum("add:nothing", cudaSuccess) == 0);
    assert_true(broken_sum("add:64:error", cudaErrorInvalidConfiguration) == 0);
    char output[256];
    assert_true(WIFSIGNALED(run_in_child(output, sizeof output, launch_broken, (void *)crash)));
    assert_non_null(strstr(output, "simt: a kernel of SIMT_BREAK crashes"));
    assert_true(WIFSIGNALED(run_in_child(output, sizeof output, launch_broken, (void *)unknown)));
    assert_non_null(strstr(output, "SIMT_BREAK=add:64:slow has an unknown mode"));
}

// ---- SIMT_STREAMS

// the oldest stream first, the youngest first, and seeds of random orders
enum { FIRST_STREAM_ORDER = 1, LAST_STREAM_ORDER = 10 };

static __global__ void double_plus_one(float *out, const float *in) {
    wait_for_previous_kernel();
    if (threadIdx.x == 0) { *out = 2 * *in + 1; }
}

// Parameters in pinned host memory that a device with two buffers of one parameter updates: an upload fills an input
// buffer while a kernel reads the other, and a download drains an output buffer while a kernel fills the other.
struct Offload {
    enum { PARAMETERS = 5, STEPS = 3 };
    enum { COMPUTE, UPLOAD, DOWNLOAD, STREAMS };
    cudaStream_t streams[STREAMS];
    cudaEvent_t start, end, done[STREAMS][PARAMETERS];
    float *host, *in, *out;
    int waits = 0, left_out;  // waits of the step so far, and the number of the wait that is left out, or -1
    cudaError_t error = cudaSuccess;

    explicit Offload(int left_out_) : left_out(left_out_) {
        for (cudaStream_t &stream : streams) { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
        for (cudaEvent_t *event : events()) { CUDA_CHECK(cudaEventCreateWithFlags(event, cudaEventDisableTiming)); }
        CUDA_CHECK(cudaMallocHost(&host, PARAMETERS * sizeof(float)));
        CUDA_CHECK(cudaMalloc(&in, 2 * sizeof(float)));
        CUDA_CHECK(cudaMalloc(&out, 2 * sizeof(float)));
        for (int i = 0; i < PARAMETERS; i++) { host[i] = 100 * (float)i; }
    }
    Offload(const Offload &) = delete;
    Offload &operator=(const Offload &) = delete;
    ~Offload() {
        cudaFree(in);
        cudaFree(out);
        cudaFreeHost(host);
        for (cudaEvent_t *event : events()) { cudaEventDestroy(*event); }
        for (cudaStream_t stream : streams) { cudaStreamDestroy(stream); }
    }
    std::vector<cudaEvent_t *> events() {
        std::vector<cudaEvent_t *> all = {&start, &end};
        for (auto &of_stream : done) {
            for (cudaEvent_t &event : of_stream) { all.push_back(&event); }
        }
        return all;
    }
    void check(cudaError_t result) { error = error == cudaSuccess ? result : error; }
    void wait(int stream, cudaEvent_t event) {
        if (waits++ != left_out) { check(cudaStreamWaitEvent(streams[stream], event, 0)); }
    }
    void copy(int stream, float *to, const float *from) {
        check(cudaMemcpyAsync(to, from, sizeof(float), cudaMemcpyDefault, streams[stream]));
    }
    void step() {
        waits = 0;
        check(cudaEventRecord(start, streams[COMPUTE]));
        wait(UPLOAD, start);
        for (int i = 0; i < PARAMETERS; i++) {
            if (i >= 2) { wait(UPLOAD, done[COMPUTE][i - 2]); }
            copy(UPLOAD, in + i % 2, host + i);
            check(cudaEventRecord(done[UPLOAD][i], streams[UPLOAD]));
            wait(COMPUTE, done[UPLOAD][i]);
            if (i >= 2) { wait(COMPUTE, done[DOWNLOAD][i - 2]); }
            if (error != cudaSuccess) { return; }  // a missing wait made the capture invalid
            LAUNCH(double_plus_one, 1, 32, 0, streams[COMPUTE], out + i % 2, in + i % 2);
            check(cudaEventRecord(done[COMPUTE][i], streams[COMPUTE]));
            wait(DOWNLOAD, done[COMPUTE][i]);
            copy(DOWNLOAD, host + i, out + i % 2);
            check(cudaEventRecord(done[DOWNLOAD][i], streams[DOWNLOAD]));
        }
        wait(COMPUTE, done[DOWNLOAD][PARAMETERS - 1]);
    }
    void launch_steps() {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        check(cudaStreamBeginCapture(streams[COMPUTE], cudaStreamCaptureModeGlobal));
        step();
        check(cudaStreamEndCapture(streams[COMPUTE], &graph));
        if (error != cudaSuccess) {
            if (graph) { cudaGraphDestroy(graph); }
            return;
        }
        check(cudaGraphInstantiate(&exec, graph));
        for (int i = 0; i < STEPS; i++) { check(cudaGraphLaunch(exec, streams[COMPUTE])); }
        check(cudaGraphExecDestroy(exec));
        check(cudaGraphDestroy(graph));
    }
    // True if all steps succeed and the host finds the updated parameters once the last event is complete.
    bool works(bool captured) {
        for (int i = 0; i < STEPS && !captured; i++) { step(); }
        if (captured) { launch_steps(); }
        if (error == cudaSuccess) {
            check(cudaEventRecord(end, streams[COMPUTE]));
            check(cudaEventSynchronize(end));
        }
        bool right = error == cudaSuccess;
        for (int i = 0; i < PARAMETERS; i++) { right &= host[i] == 100 * (float)i * (1 << STEPS) + (1 << STEPS) - 1; }
        cudaGetLastError();
        return right;
    }
};

// With all waits every order gives the right parameters. With one wait left out, one of the orders does not. Orders 1
// and 2 find most missing waits: both run the upload of parameter 2 before the download that its kernel waits for.
TEST(test_stream_orders) {
    enum { WAITS = 4 * Offload::PARAMETERS - 2 };
    for (int captured = 0; captured < 2; captured++) {
        for (int left_out = -1; left_out < WAITS; left_out++) {
            bool works = true;
            for (int order = FIRST_STREAM_ORDER; order <= LAST_STREAM_ORDER; order++) {
                simt::settings().stream_order = order;
                Offload offload(left_out);
                works &= offload.works(captured);
                assert_true(offload.error != cudaSuccess || offload.waits == WAITS);
            }
            if (works != (left_out < 0)) {
                fail_msg("captured %d, wait %d left out: all orders work: %d", captured, left_out, works);
            }
        }
    }
}

static __global__ void append(char *text, char letter) {
    wait_for_previous_kernel();
    if (threadIdx.x == 0) {
        text[0]++;  // the length
        text[(int)text[0]] = letter;
    }
}

// Streams whose kernels append a letter to a text in device memory.
struct Letters {
    enum { STREAMS = 3, ROOM = 64 };
    cudaStream_t streams[STREAMS];
    cudaEvent_t events[STREAMS];
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
        for (cudaEvent_t event : events) { cudaEventDestroy(event); }
        for (cudaStream_t stream : streams) { cudaStreamDestroy(stream); }
    }
    void write(int stream, const std::string &letters) {
        for (char letter : letters) { LAUNCH(append, 1, 32, 0, streams[stream], text, letter); }
    }
    void record(int event, int stream) { CUDA_CHECK(cudaEventRecord(events[event], streams[stream])); }
    void wait(int stream, int event) { CUDA_CHECK(cudaStreamWaitEvent(streams[stream], events[event], 0)); }
    // the text so far, which runs nothing
    std::string so_far() const { return std::string(text + 1, (size_t)text[0]); }
    std::string all() const {
        CUDA_CHECK(cudaDeviceSynchronize());
        return so_far();
    }
};

static std::string three_streams_and_the_default(int order) {
    simt::settings().stream_order = order;
    Letters x;
    for (const char *letters : {"akx", "bly"}) {
        for (int stream = 0; stream < 3; stream++) { x.write(stream, std::string(1, letters[stream])); }
    }
    LAUNCH(append, 1, 32, 0, nullptr, x.text, 'n');
    assert_true(x.so_far().empty());
    return x.all();
}

TEST(test_order_of_streams) {
    simt::settings().late_streams = 1;
    assert_string_equal(three_streams_and_the_default(0).c_str(), "akxblyn");
    assert_string_equal(three_streams_and_the_default(1).c_str(), "nabklxy");
    assert_string_equal(three_streams_and_the_default(2).c_str(), "xyklabn");
    std::set<std::string> random;
    for (int seed = 3; seed <= LAST_STREAM_ORDER; seed++) {
        simt::reset_runtime();
        std::string text = three_streams_and_the_default(seed);
        simt::reset_runtime();
        assert_string_equal(three_streams_and_the_default(seed).c_str(), text.c_str());
        for (const char *letters : {"ab", "kl", "xy"}) { assert_true(text.find(letters[0]) < text.find(letters[1])); }
        random.insert(text);
    }
    assert_true(random.size() > 4);
}

// Nodes of a graph run on the streams of the capture: after earlier work of the launching stream, before its later
// work, and in any order with other work of the streams of the capture.
static std::string graph_beside_streams(int order) {
    simt::settings().stream_order = order;
    Letters x;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(x.streams[0], cudaStreamCaptureModeGlobal));
    x.write(0, "xyz");  // the next capture does not wait for nodes of this one
    CUDA_CHECK(cudaStreamEndCapture(x.streams[0], &graph));
    CUDA_CHECK(cudaGraphDestroy(graph));
    CUDA_CHECK(cudaStreamBeginCapture(x.streams[0], cudaStreamCaptureModeGlobal));
    x.write(0, "2");
    x.record(0, 0), x.wait(1, 0);
    x.write(1, "34");
    x.record(1, 1);
    x.write(0, "5");
    x.wait(0, 1);
    CUDA_CHECK(cudaStreamEndCapture(x.streams[0], &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph));
    x.write(2, "1");
    x.write(1, "b");  // beside the graph
    CUDA_CHECK(cudaGraphLaunch(exec, x.streams[2]));
    x.write(2, "6");
    x.record(2, 2), x.wait(0, 2);
    x.write(0, "7");
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return x.all();
}

TEST(test_graph_beside_streams) {
    assert_string_equal(graph_beside_streams(1).c_str(), "b1253467");
    assert_string_equal(graph_beside_streams(2).c_str(), "1b234567");
    bool after_the_graph = false;
    for (int seed = 3; seed < 40; seed++) {
        std::string text = graph_beside_streams(seed);
        after_the_graph |= text.find('b') > text.find('4');
        text.erase(text.find('b'), 1);
        assert_true(text == "1234567" || text == "1235467" || text == "1253467");
    }
    assert_true(after_the_graph);
}

// An event is complete after the work that its stream waited for before the record, and waits for nothing later.
static std::string chain_of_events(int order, bool waits_before_record) {
    simt::settings().stream_order = order;
    Letters x;
    x.write(1, "p");
    x.record(1, 1);
    if (waits_before_record) { x.wait(0, 1); }
    x.record(0, 0);
    if (!waits_before_record) { x.wait(0, 1); }
    x.wait(2, 0);
    x.write(2, "q");
    return x.all();
}

// A wait is for the latest record before the wait.
static std::string event_recorded_again(int order) {
    simt::settings().stream_order = order;
    Letters x;
    x.write(1, "p");
    x.record(1, 1);
    x.wait(2, 1);
    x.write(1, "r");
    x.record(1, 1);
    x.write(2, "q");
    return x.all();
}

TEST(test_waits_of_events) {
    for (int order = FIRST_STREAM_ORDER; order <= LAST_STREAM_ORDER; order++) {
        assert_string_equal(chain_of_events(order, true).c_str(), "pq");
        assert_true(event_recorded_again(order)[0] == 'p');
    }
    assert_string_equal(chain_of_events(2, false).c_str(), "qp");
    assert_string_equal(event_recorded_again(1).c_str(), "prq");
    assert_string_equal(event_recorded_again(2).c_str(), "pqr");
}

// SIMT_LATE: work waits until the host waits for it, and a wait for an event runs the work before the event alone.
TEST(test_late_streams) {
    simt::settings().late_streams = 1;
    Letters x;
    char host[4];
    x.write(0, "a"), x.record(0, 0);
    x.write(0, "b"), x.record(1, 0);
    assert_true(x.so_far().empty());
    CUDA_CHECK(cudaEventSynchronize(x.events[0]));
    assert_string_equal(x.so_far().c_str(), "a");
    assert_int_equal(cudaEventQuery(x.events[0]), cudaSuccess);
    assert_int_equal(cudaEventQuery(x.events[1]), cudaErrorNotReady);  // and runs a piece
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    assert_int_equal(cudaEventQuery(x.events[1]), cudaSuccess);
    assert_string_equal(x.so_far().c_str(), "ab");
    const std::vector<std::function<cudaError_t()>> waits = {
        [] { return cudaStreamSynchronize(nullptr); }, [] { return cudaDeviceSynchronize(); },
        [&] { return cudaMemcpy(host, x.text, 4, cudaMemcpyDeviceToHost); },
        [&] { return cudaMemcpyAsync(host, x.text, 4, cudaMemcpyDeviceToHost, nullptr); }};  // to pageable memory
    for (const auto &wait : waits) {
        size_t before = x.so_far().size();
        x.write(0, "c");
        assert_int_equal(x.so_far().size(), before);
        CUDA_CHECK(wait());
        assert_int_equal(x.so_far().size(), before + 1);
    }
}

// A wait of the host for an event runs the work that the event waits for alone; a query runs one piece of it.
TEST(test_host_waits_for_events) {
    for (int order = FIRST_STREAM_ORDER; order <= LAST_STREAM_ORDER; order++) {
        simt::settings().stream_order = order;
        Letters x;
        x.write(0, "ab"), x.record(0, 0);
        x.wait(1, 0);
        x.write(1, "kl"), x.record(1, 1);
        x.write(0, "c"), x.write(1, "m"), x.write(2, "x");
        CUDA_CHECK(cudaEventSynchronize(x.events[0]));
        assert_string_equal(x.so_far().c_str(), "ab");
        for (const char *expected : {"abk", "abkl"}) {
            assert_int_equal(cudaEventQuery(x.events[1]), cudaErrorNotReady);
            assert_string_equal(x.so_far().c_str(), expected);
        }
        cudaGetLastError();
        assert_int_equal(cudaEventQuery(x.events[1]), cudaSuccess);
        CUDA_CHECK(cudaStreamSynchronize(x.streams[2]));
        assert_int_equal(x.so_far().size(), 7);
    }
}

// SIMT_PRIVATE: host code crashes at device memory, and a kernel crashes past an allocation
static __global__ void write_one(float *x, int at) {
    wait_for_previous_kernel();
    if (threadIdx.x == 0) { x[at] = 1; }
}

static void touch_private_memory(void *argument) {
    float *x, host = 0;
    signal(SIGSEGV, SIG_DFL);  // instead of cmocka's handler
    simt::settings().private_memory = 1;
    CUDA_CHECK(cudaMalloc(&x, 64 * sizeof(float)));
    int which = *static_cast<const int *>(argument);
    LAUNCH(write_one, 1, 32, 0, nullptr, x, which == 1 ? 64 : 63);
    CUDA_CHECK(cudaMemcpy(&host, x + 63, sizeof host, cudaMemcpyDeviceToHost));
    if (host != 1) { _exit(3); }
    if (which == 2) { host = *static_cast<volatile float *>(x); }
}

TEST(test_private_memory) {
#ifdef SIMT_TSAN
    skip();  // as in assert_aborts
#endif
    char said[4096];
    for (int which = 0; which < 3; which++) {
        int status = run_in_child(said, sizeof said, touch_private_memory, &which);
        bool crashed = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
        if (crashed != (which > 0) || (!crashed && WEXITSTATUS(status) != 0)) {
            fail_msg("case %d: wait status %d: %s", which, status, said);
        }
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
    cudaStreamCaptureStatus status;
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
        {cudaErrorCapturedEvent, [&] { return x.record(0, 0), cudaEventSynchronize(x.events[0]); }},
        {unsupported, [&] { return x.record(1, 1), cudaStreamWaitEvent(stream, x.events[1], 0); }},  // not captured
    };
    assert_int_equal(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), unsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnmatched);
    for (const auto &c : calls) {
        CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
        assert_int_equal(status, cudaStreamCaptureStatusActive);
        assert_int_equal(c.call(), c.expected);
        CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
        assert_int_equal(status, cudaStreamCaptureStatusInvalidated);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
        assert_int_equal(status, cudaStreamCaptureStatusNone);
        cudaGetLastError();
    }
    CUDA_CHECK(cudaFreeHost(pinned));
}

// A stream that joined a capture has work after the event that the capturing stream waits for.
TEST(test_unjoined_capture) {
    for (int which = 0; which < 3; which++) {
        Letters x;
        cudaGraph_t graph;
        CUDA_CHECK(cudaStreamBeginCapture(x.streams[0], cudaStreamCaptureModeGlobal));
        x.record(0, 0), x.wait(1, 0);
        if (which == 1) { x.wait(2, 0); }
        if (which < 2) { x.record(1, 1); }  // at 2 the joined stream has no work
        if (which == 0) { x.write(1, "a"); }
        if (which < 2) { x.wait(0, 1); }
        if (which == 1) { x.write(2, "a"), x.record(2, 2), x.wait(1, 2); }  // stream 1 is joined already
        assert_int_equal(cudaStreamEndCapture(x.streams[0], &graph), cudaErrorStreamCaptureUnjoined);
        if (which == 1) { assert_int_equal(cudaStreamWaitEvent(x.streams[2], x.events[2], 0), cudaErrorCapturedEvent); }
        cudaGetLastError();
    }
}

// A failed assertion leaves its test by longjmp. Therefore each test starts on an empty device with the settings of its
// group.
static int reset_device(void **state) {
    simt::reset_runtime();
    simt::settings() = *static_cast<const simt::Settings *>(*state);
    return 0;
}

static int run_group(const char *name, const CMUnitTest *first, int count, simt::Settings settings) {
    std::vector<CMUnitTest> group(first, first + count);
    for (CMUnitTest &test : group) { test.setup_func = reset_device, test.initial_state = &settings; }
    return _cmocka_run_group_tests(name, group.data(), group.size(), NULL, NULL);
}

int main(void) {
    const char *const names[] = {"forward", "reverse, tensor-core rounding", "seeded, eager cp.async"};
    const simt::Settings initial = simt::settings();
    const TestList *list = test_list();
    int failures = 0;
    for (int run = 0; run < 3; run++) {
        simt::Settings settings = initial;
        settings.warp_order = ORDERS[run];
        settings.mma_rounding = run == 1;
        settings.eager_async = run == 2;
        failures += run_group(names[run], list->tests, num_portable, settings);
    }
    // These tests expect an abort or a race in the call of the launch, and read device memory, in any environment.
    simt::Settings settings;
    settings.late_streams = settings.stream_order = settings.private_memory = 0;
    return failures + run_group("emulator", list->tests + num_portable, list->count - num_portable, settings);
}
#else
int main(void) { return run_all_tests("on the device"); }
#endif
