/*
Every operation's CUDA kernels against its reference implementation: every row of cases.h, every shape and variant.
Outputs start as NaN, arrays have their exact sizes, and inputs must not change. A second call must give the same bits,
and so must a CUDA graph of the call. Emulated, all of this runs in three orders of the warps, and no call may wait for
the device or copy pageable memory. On a GPU it runs once, and then at GPT-2's own size.
  test_ops [ROWS]   only rows with a matching name, for example attention_*
*/
#include "testing.h"
#include "llmc/run/backends.h"
#include "cases.h"
#include <vector>

// A row's tolerance is that of the reference implementation against the textbook. A kernel sums in another order and
// takes exponentials from the special function unit: 1e-5 of an fp32 result, or the row's tolerance if it is larger.
static const double FP32_TOLERANCE = 1e-5;

enum { PARTIALS = 64 << 20 };

// The sanitizers take minutes: shapes above SMALL run in one order of the warps, shapes above LARGE not at all.
#ifdef __SANITIZE_ADDRESS__
static const bool SANITIZED = true;
#else
static const bool SANITIZED = false;
#endif
enum { SMALL = 50000, LARGE = 8000000 };  // bytes

typedef struct {
    Exec exec;
    void *partials, *workspace;
} Gpu;

static void gpu_open(Gpu *gpu) {
    memset(gpu, 0, sizeof *gpu);
    CUDA_CHECK(cudaMalloc(&gpu->partials, PARTIALS));
    CUDA_CHECK(cudaMalloc(&gpu->workspace, CUDA_MATMUL_WORKSPACE));
    cuda_backend.open(&gpu->exec, gpu->partials, PARTIALS, gpu->workspace, false);
}

static void gpu_close(Gpu *gpu) {
    cuda_backend.close(&gpu->exec);
    CUDA_CHECK(cudaFree(gpu->partials));
    CUDA_CHECK(cudaFree(gpu->workspace));
}

// ---- a problem on the device: the same arrays, with `data` in device memory

static Problem device_problem(const Problem *p) {
    Problem copy = *p;
    for (int i = 0; i < p->num_arrays; i++) { CUDA_CHECK(cudaMalloc(&copy.array[i].data, array_bytes(&p->array[i]))); }
    return copy;
}

static void device_reset(Problem *device) {
    for (int i = 0; i < device->num_arrays; i++) {
        Array *a = &device->array[i];
        cuda_upload(a->data, a->start, array_bytes(a));
    }
}

static void device_free(Problem *device) {
    for (int i = 0; i < device->num_arrays; i++) { CUDA_CHECK(cudaFree(device->array[i].data)); }
}

typedef std::vector<std::vector<char>> Bytes;

static Bytes device_read(const Problem *device) {
    Bytes bytes;
    for (int i = 0; i < device->num_arrays; i++) {
        const Array *a = &device->array[i];
        bytes.emplace_back(array_bytes(a));
        cuda_download(bytes.back().data(), a->data, array_bytes(a));
    }
    return bytes;
}

static Bytes run_directly(Problem *device, Gpu *gpu) {
    device_reset(device);
    problem_run(device, &cuda_ops, &gpu->exec);
    return device_read(device);
}

static Bytes run_as_graph(Problem *device, Gpu *gpu) {
    device_reset(device);
    cuda_capture_begin(&gpu->exec);
    problem_run(device, &cuda_ops, &gpu->exec);
    DeviceGraph *graph = cuda_capture_end(&gpu->exec);
    cuda_graph_launch(graph, &gpu->exec);
    Bytes bytes = device_read(device);
    cuda_graph_destroy(graph);
    return bytes;
}

// ---- checks

static double slack_of(const Problem *p, const Array *a) {
    double own = array_tolerance(p, a);
    return a->dtype == DT_F32 && own < FP32_TOLERANCE && own > 0 ? FP32_TOLERANCE / own : 1;
}

// No sum has an order of its own, and stochastic rounding may turn the least difference into a unit in the last place.
static bool same_bits_wanted(const OpCase *op) { return strcmp(op->name, "adamw_update") == 0; }

static void check_results(const Problem *p, const Bytes &got) {
    for (int i = 0; i < p->num_arrays; i++) {
        const Array *a = &p->array[i];
        if (a->role == INPUT) {
            if (memcmp(got[i].data(), a->start, array_bytes(a)) != 0) {
                fail_msg("%s: the input %s was written", problem_title(p), a->name);
            }
            continue;
        }
        if (same_bits_wanted(p->op) && memcmp(got[i].data(), a->data, array_bytes(a)) != 0) {
            fail_msg("%s: %s has other bits than the reference implementation's", problem_title(p), a->name);
        }
        double *wanted = array_doubles(a, a->data);
        Array result = *a;
        result.data = (void *)got[i].data();
        const char *difference = array_difference(p, &result, wanted, slack_of(p, a));
        free(wanted);
        if (difference) { fail_msg("%s", difference); }
    }
}

static void assert_same(const Problem *p, const Bytes &a, const Bytes &b, const char *what) {
    for (int i = 0; i < p->num_arrays; i++) {
        if (a[i] != b[i]) { fail_msg("%s: %s differs %s", problem_title(p), p->array[i].name, what); }
    }
}

static void check_problem(const Problem *p, Gpu *gpu) {
    Problem device = device_problem(p);
    Bytes first = run_directly(&device, gpu);  // the first matmul of a shape may try algorithms
    check_results(p, first);
#ifndef __CUDACC__
    device_reset(&device);
    uint64_t waits = simt::runtime().host_synchronisations, copies = simt::runtime().pageable_copies;
    problem_run(&device, &cuda_ops, &gpu->exec);
    assert_int_equal(simt::runtime().host_synchronisations, waits);
    assert_int_equal(simt::runtime().pageable_copies, copies);
#endif
    assert_same(p, run_directly(&device, gpu), first, "when it is run again");
    assert_same(p, run_as_graph(&device, gpu), first, "when it runs as a CUDA graph");
    device_free(&device);
}

static size_t size_of(const OpCase *op, const OpShape *s, int variant) {
    Problem p = problem_describe(op, s, variant);
    size_t bytes = 0;
    for (int i = 0; i < p.num_arrays; i++) { bytes += array_bytes(&p.array[i]); }
    return bytes;
}

static void check_shape(const OpCase *op, const OpShape *s, int variant, Gpu *gpu, Exec *cpu) {
    Problem p = problem_make(op, s, variant);
    problem_run(&p, &cpu_ops, cpu);
    check_problem(&p, gpu);
    problem_free(&p);
}

// all shapes and variants of one row with at most most_bytes of arrays
static void check_row(const OpCase *op, size_t most_bytes) {
    Gpu gpu;
    Exec cpu;
    gpu_open(&gpu);
    memset(&cpu, 0, sizeof cpu);
    gpu.exec.rare_shapes = SANITIZED;  // test_matmul covers the autotuner
    for (int i = 0; op_shape(op, i); i++) {
        for (int variant = 0; variant < op->variants; variant++) {
            if (size_of(op, op_shape(op, i), variant) > most_bytes) { continue; }
            check_shape(op, op_shape(op, i), variant, &gpu, &cpu);
        }
    }
    onednn_free(&cpu);
    gpu_close(&gpu);
}

#ifdef __CUDACC__
// GPT-2 124M's own shape with 2048 rows, a minute on the host in all. AdamW's variants have 124 million parameters
// each, so only three of them run.
static void check_real_size(const OpCase *op) {
    const int updates[] = {ADAMW_VARIANT(ADAMW_ALONE, ADAMW_REAL, ADAMW_REAL),
                           ADAMW_VARIANT(ADAMW_MASTER, ADAMW_REAL, ADAMW_REAL),
                           ADAMW_VARIANT(ADAMW_SPLIT, ADAMW_BYTES, ADAMW_BF16)};
    bool update = strcmp(op->name, "adamw_update") == 0;
    OpShape s = op_shape_gpt2(op, 2, 1024);
    Gpu gpu;
    Exec cpu;
    gpu_open(&gpu);
    memset(&cpu, 0, sizeof cpu);
    for (int i = 0; i < (update ? 3 : op->variants); i++) { check_shape(op, &s, update ? updates[i] : i, &gpu, &cpu); }
    onednn_free(&cpu);
    gpu_close(&gpu);
}
#endif

static void test_row(void **state) {
    const OpCase *op = (const OpCase *)*state;
#ifdef __CUDACC__
    check_row(op, SIZE_MAX);
    check_real_size(op);
#else
    for (int order : {0, 1, 7}) {
        simt::settings().warp_order = order;
        check_row(op, !SANITIZED ? SIZE_MAX : order == 1 ? (size_t)LARGE : (size_t)SMALL);
    }
#endif
}

int main(int argc, char **argv) {
    const char *why;
    if (cuda_device_count(&why) == 0) {
        printf("test_ops: there is no GPU that this program can use (%s)\n", why);
        return 2;
    }
    setenv("TRAIN_GPT2_PICKS", temp_path("picks.txt"), 1);
    if (argc > 1) { cmocka_set_test_filter(argv[1]); }
    std::vector<CMUnitTest> tests;
    for (const OpCase &op : op_cases) {
        if (strcmp(op.name, "params_changed") == 0) { continue; }  // a GPU has no copy of params
        tests.push_back(CMUnitTest{op.name, test_row, NULL, NULL, (void *)&op});
    }
    return _cmocka_run_group_tests("ops", tests.data(), tests.size(), NULL, NULL);
}
