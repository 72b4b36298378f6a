/*
Every operation's CUDA kernels against its reference implementation: every row of cases.h, every shape and variant.
Outputs start as NaN, arrays have their exact sizes, and inputs must not change. A second call must give the same bits,
and so must a CUDA graph of the call. Emulated, each of the three has another order of the warps, and no call may wait
for the device or copy pageable memory. A GPU also runs GPT-2's own size. With SIMT_HARDWARE=1 arithmetic and streams
are as unkind as a GPU's may be, and every error stays below its tolerance / MARGIN.
  test_ops [--quick] [ROWS]   only rows with a matching name, for example attention_*
  test_ops --list             the rows' names
--quick leaves out shapes above LARGE, GPT-2's own size and the autotuning, which compute-sanitizer slows to minutes.
*/
#include "problems.h"
#include "testing.h"
#include "llmc/run/backends.h"
#include "llmc/self_check/self_check.h"
#include <vector>

// factor by which every error stays below its tolerance in the emulator's hardware mode
static const double MARGIN = 1.5;
static bool hardware_mode(void) {
#ifdef __CUDACC__
    return false;
#else
    return simt::settings().hardware != 0;
#endif
}

// The sanitizers take minutes: shapes above SMALL run once, shapes above LARGE not at all.
#ifdef __SANITIZE_ADDRESS__
static const bool SANITIZED = true;
#else
static const bool SANITIZED = false;
#endif
enum { SMALL = 50000, LARGE = 8000000 };  // bytes

// The order of the emulated warps: 0 one after another, 1 in reverse, above 1 the seed of a random order.
static void set_warp_order(int order) {
#ifdef __CUDACC__
    (void)order;
#else
    simt::settings().warp_order = order;
#endif
}

static void device_reset(Problem *device) {
    for (int i = 0; i < device->num_arrays; i++) {
        Array *a = &device->array[i];
        cuda_copy(a->data, a->start, array_bytes(a));
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
        cuda_copy(bytes.back().data(), a->data, array_bytes(a));
    }
    return bytes;
}

static Bytes run_directly(Problem *device, Exec *ex) {
    device_reset(device);
    problem_run(device, &cuda_ops, ex);
    return device_read(device);
}

static Bytes run_as_graph(Problem *device, Exec *ex) {
    device_reset(device);
    cuda_capture_begin(ex);
    problem_run(device, &cuda_ops, ex);
    DeviceGraph *graph = cuda_capture_end(ex);
    Bytes bytes = device_read(device);
    cuda_graph_destroy(graph);
    return bytes;
}

// ---- checks

// These operations must match bit for bit: they add nothing in an order of their own, and stochastic rounding may turn
// the least difference into a unit in the last place.
static bool same_bits_wanted(const OpCase *op) {
    static const char *const names[] = {"adamw_update", "muon_momentum", "muon_weights"};
    for (const char *name : names) {
        if (strcmp(op->name, name) == 0) { return true; }
    }
    return false;
}

// the largest error / tolerance of the present row, and its array
static struct Worst {
    double share;
    char where[256];
} worst;

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
            fail_msg("%s: %s has other bits than the reference's", problem_title(p), a->name);
        }
        double *wanted = array_doubles(a, a->data);
        Array result = *a;
        result.data = (void *)got[i].data();
        double slack = kernel_slack(p, a) / (hardware_mode() ? MARGIN : 1);
        double share = array_share(p, &result, wanted, slack);
        const char *difference = array_difference(p, &result, wanted, slack);
        free(wanted);
        if (share > worst.share) {
            worst.share = share;
            snprintf(worst.where, sizeof worst.where, "%s, %s", problem_title(p), a->name);
        }
        if (difference) { fail_msg("%s", difference); }
    }
}

static void assert_same(const Problem *p, const Bytes &a, const Bytes &b, const char *what) {
    for (int i = 0; i < p->num_arrays; i++) {
        if (a[i] != b[i]) { fail_msg("%s: %s differs %s", problem_title(p), p->array[i].name, what); }
    }
}

#ifndef __CUDACC__
// g++'s and nvcc's kernels give the same bits, except where a compiler may form an FMA, or log differs.
static void check_bits_of_ptx(Problem *device, Exec *ex, const Bytes &first) {
    for (const char *prefix : {"attention", "classifier", "layernorm_backward"}) {
        if (strncmp(device->op->name, prefix, strlen(prefix)) == 0) { return; }
    }
    const char *ptx = simt::settings().ptx;
    simt::settings().ptx = NULL;
    Bytes compiled_by_gcc = run_directly(device, ex);
    simt::settings().ptx = ptx;
    assert_same(device, compiled_by_gcc, first, "as nvcc compiled it and as g++ did");
}
#endif

static void check_problem(const Problem *p, Exec *ex, bool once) {
    Problem device = problem_on_device(p, &cuda_device);
    set_warp_order(once ? 1 : 0);
    Bytes first = run_directly(&device, ex);  // the first matmul of a shape may try algorithms
    check_results(p, first);
#ifndef __CUDACC__
    if (simt::settings().ptx) { check_bits_of_ptx(&device, ex, first); }
#endif
    if (!once) {
        set_warp_order(1);
        device_reset(&device);
#ifndef __CUDACC__
        uint64_t waits = simt::runtime().host_synchronisations, copies = simt::runtime().pageable_copies;
#endif
        problem_run(&device, &cuda_ops, ex);
#ifndef __CUDACC__
        assert_int_equal(simt::runtime().host_synchronisations, waits);
        assert_int_equal(simt::runtime().pageable_copies, copies);
#endif
        assert_same(p, device_read(&device), first, "when it is run again");
        set_warp_order(7);
        assert_same(p, run_as_graph(&device, ex), first, "when it runs as a CUDA graph");
    }
    device_free(&device);
}

static void check_shape(const OpCase *op, const OpShape *s, int variant, Exec *ex, const Ops *oracle) {
    Problem p = problem_make(op, s, variant);
    Exec cpu;
    memset(&cpu, 0, sizeof cpu);
    problem_run(&p, oracle, &cpu);
    check_problem(&p, ex, SANITIZED && problem_memory(op, s, variant) > SMALL);
    problem_free(&p);
}

// One test: a row of cases.h, on a GPU with its real size unless quick. nvcc 13.0 aborts at a vector of a typedef of an
// unnamed struct.
struct Row {
    const OpCase *op;
    bool quick;
};

static void check_row(const Row *row) {
    const OpCase *op = row->op;
    Exec ex;
    void *scratch = check_open(&ex, &cuda_backend, FallbackKernels());
    ex.skip_autotune = SANITIZED || row->quick;  // test_matmul covers the autotuner
    for (int i = 0; op_shape(op, i); i++) {
        for (int v = 0; v < op->num_variants; v++) {
            int variant = op->variants[v];
            bool large = problem_memory(op, op_shape(op, i), variant) > LARGE;
            if (large && (SANITIZED || row->quick)) { continue; }
            check_shape(op, op_shape(op, i), variant, &ex, &reference_ops);
        }
    }
    check_close(&ex, &cuda_backend, scratch);
}

#ifdef __CUDACC__
// GPT-2 124M's own shape with 2048 rows, against the CPU backend: the reference would take minutes. AdamW's variants
// have 124 million parameters each, so only three of them run.
static void check_real_size(const OpCase *op) {
    const int updates[] = {0, WITH_REMAINDER, WITH_REMAINDER | MOMENTS_8BIT | GRADIENT_BF16};
    bool update = strcmp(op->name, "adamw_update") == 0;
    OpShape s = op_shape_gpt2(op, 2, 1024);
    Exec ex;
    void *scratch = check_open(&ex, &cuda_backend, FallbackKernels());
    ex.skip_autotune = false;
    for (int i = 0; i < (update ? 3 : op->num_variants); i++) {
        check_shape(op, &s, update ? updates[i] : op->variants[i], &ex, &cpu_ops);
    }
    check_close(&ex, &cuda_backend, scratch);
}
#endif

// The classifier's kernel with rows in shared memory and the kernel for GPUs without room for rows give the same bits.
static void test_held_rows(void **state) {
    (void)state;
    Exec ex;
    void *scratch = check_open(&ex, &cuda_backend, FallbackKernels());
    ex.skip_autotune = false;
    const OpCase *op = op_case("classifier");
    Problem p = problem_make(op, op_shape(op, 0), 0), device = problem_on_device(&p, &cuda_device);
    Bytes first = run_directly(&device, &ex);
#ifndef __CUDACC__
    uint64_t copies = simt::counts().async_copies;
    assert_int_equal(copies > 0, DT_FLOATX == DT_BF16);  // two rows of fp32 have no room
#endif
    ex.cuda->shared_bytes = 164 << 10;  // of sm_80
    assert_same(&p, run_directly(&device, &ex), first, "without rows in shared memory");
#ifndef __CUDACC__
    assert_int_equal(simt::counts().async_copies, copies);
#endif
    device_free(&device);
    problem_free(&p);
    check_close(&ex, &cuda_backend, scratch);
}

static void test_row(void **state) {
    const Row *row = (const Row *)*state;
    worst = Worst();
    check_row(row);
#ifdef __CUDACC__
    if (!row->quick) { check_real_size(row->op); }
#endif
    print_message("    worst error / tolerance%s: %.2f (%s)\n", hardware_mode() ? " with its margin" : "", worst.share,
                  worst.where);
}

static int list_rows(void) {
    for (const OpCase &op : op_cases) { puts(op.name); }
    return 0;
}

// Scores near -100 and an odd T: the results are the reference's. A tile's last row is then beyond T:
// with another row's lse, exp(0 - lse) is infinite.
static void test_attention_low_scores(void **state) {
    (void)state;
    Exec ex;
    void *scratch = check_open(&ex, &cuda_backend, FallbackKernels());
    ex.skip_autotune = false;
    for (int HS : {5, 64}) {
        OpShape s = {.B = 1, .T = 3, .NH = 2, .HS = HS};
        Problem p = problem_make(op_case("attention_backward"), &s, 0);
        const Array *qkv = find_array(&p, "qkv");
        for (size_t i = 0; i < qkv->n; i++) {
            size_t part = i / (size_t)(s.NH * HS) % 3;  // q, k or v
            if (part < 2) { array_set(qkv, i, (part == 0 ? 1 : -1) * sqrt(100 / sqrt(HS))); }
        }
        p.op->fill(&p);
        for (int i = 0; i < p.num_arrays; i++) { memcpy(p.array[i].start, p.array[i].data, array_bytes(&p.array[i])); }
        problem_run(&p, &reference_ops, NULL);
        Problem device = problem_on_device(&p, &cuda_device);
        check_results(&p, run_directly(&device, &ex));
        device_free(&device);
        problem_free(&p);
    }
    check_close(&ex, &cuda_backend, scratch);
}

#ifndef __CUDACC__
// Enqueues a call.
static void launch_only(const OpCase *op, const OpShape *shape, int variant, Exec *ex) {
    Problem p = problem_describe(op, shape, variant);
    uint64_t submitted = simt::runtime().submitted;
    for (int i = 0; i < p.num_arrays; i++) { p.array[i].data = cuda_allocate(array_bytes(&p.array[i])); }
    problem_run(&p, &cuda_ops, ex);
    assert_true(simt::runtime().submitted > submitted);
    device_free(&p);
}

// launches of the autotuner, and of an epilogue with and without packs
static void launch_matmul_kernels(const CudaMatmuls *mm) {
    for (int m : {3, 8}) {
        LtMatmul p = {};
        p.key.m = p.key.n = p.key.k = m;
        p.key.function = MLP_ACTIVATION;
        matmul_launch_epilogue(mm, &p, LT_ACTIVATION);
        matmul_launch_sample(mm, mm->scratch, mm->scratch, DT_REAL, 9, 9);
        matmul_launch_dots(mm, mm->scratch, &p, 9);
    }
}

// All kernels, the plainer ones too: every launch is accepted, and the partial sums fit. No kernel runs.
// dev/test/test_launches.sh reads the launches.
static void test_plainer_kernels(void **state) {
    (void)state;
    simt::runtime().dry_run = true;
    for (int level = 0; level < FALLBACK_LEVELS; level++) {
        Exec ex;
        void *scratch = check_open(&ex, &cuda_backend, FallbackKernels{{level, level, level}});
        int held = 1 << 20;  // columns of the widest row of the classifier that is held
        while (!classifier_holds_rows((size_t)held * sizeof(floatX), &ex)) { held -= Pack<floatX>::SIZE; }
        for (const OpCase &op : op_cases) {
            for (int v = 0; v < op.num_variants; v++) {
                for (int i = 0; op_shape(&op, i); i++) { launch_only(&op, op_shape(&op, i), op.variants[v], &ex); }
            }
        }
        OpShape widest = {.B = 1, .T = 2, .V = held, .Vp = held};
        launch_only(op_case("classifier"), &widest, 0, &ex);
        launch_matmul_kernels(ex.cuda->matmuls);
        check_close(&ex, &cuda_backend, scratch);
    }
    simt::runtime().dry_run = false;
}
#endif

int main(int argc, char **argv) {
    const char *why;
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    if (argc > 1 && strcmp(argv[1], "--list") == 0) { return list_rows(); }
    if (cuda_device_count(&why) == 0) {
        printf("test_ops: there is no GPU that this program can use (%s)\n", why);
        return 2;
    }
    setenv("TRAIN_GPT2_AUTOTUNE_CACHE", temp_path("autotune.txt"), 1);
    if (argc > 1 + quick) { cmocka_set_test_filter(argv[1 + quick]); }
    std::vector<CMUnitTest> tests = {CMUnitTest{"classifier_held_rows", test_held_rows, NULL, NULL, NULL}};
    std::vector<Row> rows;
    for (const OpCase &op : op_cases) { rows.push_back({&op, quick}); }
    for (Row &row : rows) { tests.push_back(CMUnitTest{row.op->name, test_row, NULL, NULL, &row}); }
    tests.push_back(CMUnitTest{"attention_low_scores", test_attention_low_scores, NULL, NULL, NULL});
#ifndef __CUDACC__
    tests.push_back(CMUnitTest{"plainer_kernels", test_plainer_kernels, NULL, NULL, NULL});
#endif
    return _cmocka_run_group_tests("ops", tests.data(), tests.size(), NULL, NULL);
}
