/*
Times every operation at GPT-2's shapes, and reports it as a share of the machine's bandwidth or GEMM rate.
    bench_ops [-e d12|d48] [-b B] [-t T] [-o WORD] [--device auto|cpu|cuda] [--small]     prints a table in Markdown
    bench_ops --products ...     on a GPU, without timing: the kernels of a training step's matmuls
One source, like the trainer: C for a CPU, CUDA with nvcc, C++20 with -Idev/emulator
for the emulator (its times mean nothing).

Shapes    They are 124M's, or with -e d48 1558M's. The optimizer and the norm always take 124M's arrays, since their
          rates do not depend on the size.
Ceilings  Measured first, and again at the end: a difference means that something else was running. The 10th
          percentile of their times counts. Copy bandwidth: a block larger than the caches, bytes read plus bytes
          written; on a GPU by cudaMemcpyAsync or by 128-bit loads and stores, the better. GEMM rate: matmul_forward
          of a large square shape.
Time      After a warm-up, the operation runs 20 to 50 times, fewer than 50 once 0.3 s are measured. The table has
          the median, with the 10th and 90th percentile in parentheses. Before every run, untimed, arrays that the
          operation changes get their old values back, and the caches are filled with other data. That data is only
          read, so that nothing waits to be written back. A run starts with cold caches. On a GPU, CUDA events around
          the operation take the time. The operation is enqueued while the caches are still being filled, so the first
          launch costs time of the host, not of the device. Gaps between the launches of one operation count.
Kernels   On a GPU, a CUDA graph counts the kernels of an operation and, after a +, its copies and fills.
Predicted On a GPU, roofline.h expects this time at the GPU's published rates. make predict adds these to a step.
Products  Each matmul with the epilogue of training, after the algorithms were chosen. `fused`: one kernel does matmul
          and epilogue. Otherwise all kernels are named: splitKreduce after a split k, and lt_... of
          llmc/matmul_kernels.cuh, for epilogues that cuBLASLt lacks or does slower.
Share     At copy bandwidth the bytes moved (ops.h) take one time, and at the GEMM rate the FLOPs take another. The
          share is the larger of the two over the measured time, and `bound` names it.
*/
#include "llmc/run/backends.h"
#include "llmc/run/flags.h"
#include "llmc/memory/gpt2_plan.h"
#include "llmc/run/logger.h"
#include "dev/test/problems.h"
#include <time.h>
#include <unistd.h>
#ifdef HAVE_CUDA
#include "roofline.h"
#endif

enum { WARM_UP = 3, MIN_RUNS = 20, MAX_RUNS = 50 };
static const double ENOUGH_SECONDS = 0.3;

#define MODEL_CHOICES "d12 d48"
static const GPT2Config models[] = {{1024, 50257, 50304, 12, 12, 768}, {1024, 50257, 50304, 48, 25, 1600}};

// a shape and variant of an operation; operations without such rows are measured at their own shape and first variant
typedef struct {
    const char *op, *what;
    int variant;
    Dim C, OC;   // OWN: the operation's own
    bool chunk;  // one logits chunk instead of all rows
} BenchRow;
#define OWN DIM_ONE

static const BenchRow bench_rows[] = {
    {"matmul_forward", "qkv", WITHOUT_RESIDUAL, DIM_C, DIM_3C, false},
    {"matmul_forward", "attproj + residual", 0, DIM_C, DIM_C, false},
    {"matmul_forward", "fcproj + residual", 0, DIM_4C, DIM_C, false},
    {"matmul_forward", "logits", PRODUCT_ALONE, DIM_C, DIM_VP, true},
    {"matmul_forward", "fc and activation", WITHOUT_RESIDUAL | WITH_ACTIVATION, DIM_C, DIM_4C, false},
    {"attention_decode", "at once", 0, OWN, OWN, false},
    {"attention_decode", "one by one", 1, OWN, OWN, false},
    {"classifier", "loss and gradient", 0, OWN, OWN, true},
    {"classifier", "loss", WITHOUT_GRADIENT, OWN, OWN, true},
    {"classifier_statistics", "of 2 ranks", 0, OWN, OWN, true},
    {"classifier_from_statistics", "of 2 ranks, loss and gradient", 0, OWN, OWN, true},
    {"matmul_backward", "logits, dinp", DINP_ALONE, DIM_C, DIM_VP, true},
    {"matmul_backward", "logits, dweight", DWEIGHT_ALONE, DIM_C, DIM_VP, true},
    {"matmul_backward", "fcproj and slope", WITH_ACTIVATION, DIM_4C, DIM_C, false},  // with fc's dbias
    {"matmul_backward", "fc, dinp", DINP_ALONE, DIM_C, DIM_4C, false},
    {"matmul_backward", "fc, dweight", DWEIGHT_ALONE, DIM_C, DIM_4C, false},
    {"matmul_backward", "attproj", 0, DIM_C, DIM_C, false},
    {"matmul_backward", "qkv", 0, DIM_C, DIM_3C, false},
    {"matmul_backward", "qkv, +=", ADDED, DIM_C, DIM_3C, false},
    {"matmul_backward", "qkv, += dbias", DBIAS_ALONE | ADDED, DIM_C, DIM_3C, false},
    {"matmul_backward", "qkv, bf16", GRADIENT_BF16, DIM_C, DIM_3C, false},
    {"layernorm_backward", "", GRAD_SET, OWN, OWN, false},
    {"layernorm_backward", "+= bf16", GRADIENT_BF16 | ADDED, OWN, OWN, false},
    {"embedding_backward", "", GRAD_SET, OWN, OWN, false},
    {"embedding_backward", "+= bf16", GRADIENT_BF16 | ADDED, OWN, OWN, false},
    {"adamw_update", "params alone", 0, OWN, OWN, false},
#ifdef PRECISION_BF16
    {"adamw_update", "split", WITH_REMAINDER, OWN, OWN, false},
    {"adamw_update", "split, bf16 moments", WITH_REMAINDER | MOMENTS_BF16 | GRADIENT_BF16, OWN, OWN, false},
    {"adamw_update", "split, 8-bit moments", WITH_REMAINDER | MOMENTS_8BIT | GRADIENT_BF16, OWN, OWN, false},
#endif
    {"adamw_update", "alone, bf16 moments", MOMENTS_BF16 | GRADIENT_BF16, OWN, OWN, false},
    {"adamw_update", "alone, 8-bit moments", MOMENTS_8BIT | GRADIENT_BF16, OWN, OWN, false},
};
enum { NUM_BENCH_ROWS = sizeof bench_rows / sizeof bench_rows[0] };

// one matmul of a training step, with an epilogue, on the arrays of the operation's variant
enum { DINP = 1, DWEIGHT = 2, DBIAS = 4, SLOPE = 8, PRE_BIAS = 16 };
typedef struct {
    BenchRow row;
    const char *epilogue;
    int parts;  // of a backward: the outputs, DINP | ...
} BenchProduct;

// In the order of a step. As in the trainer, gradients are bf16, or fp32 under gradient accumulation.
static const BenchProduct bench_products[] = {
    {{"matmul_forward", "qkv", WITHOUT_RESIDUAL, DIM_C, DIM_3C, false}, "bias", 0},
    {{"matmul_forward", "attproj", 0, DIM_C, DIM_C, false}, "bias + residual", 0},
    {{"matmul_forward", "fc", WITHOUT_RESIDUAL, DIM_C, DIM_4C, false}, "bias", 0},
    {{"matmul_forward", "fc", WITHOUT_RESIDUAL | WITH_ACTIVATION, DIM_C, DIM_4C, false}, "bias, activation", 0},
    {{"matmul_forward", "fcproj", 0, DIM_4C, DIM_C, false}, "bias + residual", 0},
    {{"matmul_forward", "logits", PRODUCT_ALONE, DIM_C, DIM_VP, true}, "none", 0},
    {{"matmul_backward", "logits", GRADIENT_BF16, DIM_C, DIM_VP, true}, "dinp", DINP},
    {{"matmul_backward", "logits", GRADIENT_BF16, DIM_C, DIM_VP, true}, "dweight", DWEIGHT},
    {{"matmul_backward", "logits", GRADIENT_BF16 | ADDED | OVER_IN, DIM_C, DIM_VP, true}, "dweight +=", DWEIGHT},
    {{"matmul_backward", "logits", ADDED, DIM_C, DIM_VP, true}, "dweight +=, fp32", DWEIGHT},
    {{"matmul_backward", "fcproj", WITH_ACTIVATION | GRADIENT_BF16, DIM_4C, DIM_C, false}, "dinp", DINP},
    {{"matmul_backward", "fcproj", WITH_ACTIVATION | GRADIENT_BF16, DIM_4C, DIM_C, false}, "dinp, slope", DINP | SLOPE},
    {{"matmul_backward", "fcproj", WITH_ACTIVATION | GRADIENT_BF16, DIM_4C, DIM_C, false},
     "dinp, slope, dbias of fc",
     DINP | SLOPE | PRE_BIAS},
    {{"matmul_backward", "fcproj", WITH_ACTIVATION | GRADIENT_BF16, DIM_4C, DIM_C, false}, "dweight", DWEIGHT},
    {{"matmul_backward", "fcproj", WITH_ACTIVATION | GRADIENT_BF16, DIM_4C, DIM_C, false},
     "dweight, dbias",
     DWEIGHT | DBIAS},
    {{"matmul_backward", "fcproj", WITH_ACTIVATION | ADDED, DIM_4C, DIM_C, false},
     "dinp, slope, dbias of fc +=, fp32",
     DINP | SLOPE | PRE_BIAS},
    {{"matmul_backward", "fcproj", WITH_ACTIVATION | ADDED, DIM_4C, DIM_C, false},
     "dweight +=, dbias +=, fp32",
     DWEIGHT | DBIAS},
    {{"matmul_backward", "fc", GRADIENT_BF16, DIM_C, DIM_4C, false}, "dinp", DINP},
    {{"matmul_backward", "fc", GRADIENT_BF16, DIM_C, DIM_4C, false}, "dweight", DWEIGHT},
    {{"matmul_backward", "fc", ADDED, DIM_C, DIM_4C, false}, "dweight +=, fp32", DWEIGHT},
    {{"matmul_backward", "attproj", GRADIENT_BF16, DIM_C, DIM_C, false}, "dinp", DINP},
    {{"matmul_backward", "attproj", GRADIENT_BF16, DIM_C, DIM_C, false}, "dweight, dbias", DWEIGHT | DBIAS},
    {{"matmul_backward", "attproj", ADDED, DIM_C, DIM_C, false}, "dweight +=, dbias +=, fp32", DWEIGHT | DBIAS},
    {{"matmul_backward", "qkv", GRADIENT_BF16, DIM_C, DIM_3C, false}, "dinp", DINP},
    {{"matmul_backward", "qkv", GRADIENT_BF16, DIM_C, DIM_3C, false}, "dweight, dbias", DWEIGHT | DBIAS},
    {{"matmul_backward", "qkv", ADDED, DIM_C, DIM_3C, false}, "dweight +=, dbias +=, fp32", DWEIGHT | DBIAS},
};
enum { NUM_BENCH_PRODUCTS = sizeof bench_products / sizeof bench_products[0] };

typedef struct {
    int model, B, T, device;
    const char *only, *small, *products;
} Options;

static const Flag flags[] = {
    {"e", NULL, FLAG_CHOICE, offsetof(Options, model), 0, 0, MODEL_CHOICES, NULL, "the model: 124M or 1558M"},
    {"b", NULL, FLAG_INT, offsetof(Options, B), 0, 1 << 16, NULL, "B", "micro-batch (0: 64 on a GPU, 4 on a CPU)"},
    {"t", NULL, FLAG_INT, offsetof(Options, T), 0, 1024, NULL, "T", "sequence length (0: 1024 on a GPU, 64 on a CPU)"},
    {"o", "only", FLAG_STRING, offsetof(Options, only), 0, 0, NULL, "WORD", "only operations with WORD in their name"},
    {NULL, "device", FLAG_CHOICE, offsetof(Options, device), 0, 0, DEVICE_CHOICES, NULL, "where to run"},
    {NULL, "small", FLAG_OPTION, offsetof(Options, small), 0, 0, NULL, NULL,
     "the tests' first shapes and two runs, to see that all of it works"},
    {NULL, "products", FLAG_OPTION, offsetof(Options, products), 0, 0, NULL, NULL,
     "on a GPU, list the kernels of a training step's matmuls instead of timing"},
};
enum { NUM_FLAGS = sizeof flags / sizeof flags[0] };

// ---- the machine

typedef struct {
    Options options;
    const GPT2Config *model;
    const Backend *backend;
    Exec exec;
    void *partials, *matmul_workspace;
    float *cold;  // zeros that fill the caches
    size_t cold_count;
    double bytes_per_second, flops_per_second;  // the ceilings
#ifdef HAVE_CUDA
    Roofline roofline;
#endif
} Bench;

static bool on_gpu(const Exec *ex) { return ex->cuda != NULL; }

static size_t cache_bytes(const Exec *ex) {
#ifdef HAVE_CUDA
    int l2 = 0;
    if (on_gpu(ex)) {
        CUDA_CHECK(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0));
        return (size_t)l2;
    }
#endif
    (void)ex;
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), least = 32 << 20;  // 0 if unknown
    return (size_t)(l3 > least ? l3 : least);
}

static void bench_open(Bench *b) {
    const Device *device = b->backend->device;
    bool gpu = b->backend != &cpu_backend;
    b->model = &models[b->options.model];
    int B = gpu ? 64 : 4, T = gpu ? 1024 : 64;
    if (b->options.B == 0 || b->options.small) { b->options.B = B; }
    if (b->options.T == 0 || b->options.small) { b->options.T = T; }
    LocalShape whole = local_shape(b->model, 1, 0);
    size_t partials_bytes = b->backend->partials_bytes(b->model, &whole, b->options.B, b->options.T);
    b->partials = device->allocate(partials_bytes);
    size_t workspace_bytes = b->backend->matmul_workspace_bytes(b->model, &whole, b->options.B, b->options.T);
    b->matmul_workspace = device->allocate(workspace_bytes);
    b->backend->open(&b->exec, b->partials, partials_bytes, b->matmul_workspace, workspace_bytes, false);
    b->cold_count = (gpu ? 4 : 2) * cache_bytes(&b->exec) / sizeof(float);
    b->cold = (float *)device->allocate(b->cold_count * sizeof(float));
    device->fill(b->cold, 0, b->cold_count * sizeof(float));
#ifdef HAVE_CUDA
    if (gpu) {
        GpuModel here = cuda_gpu();
        b->roofline = roofline_open(&here, workspace_bytes, false);
    }
#endif
}

static void bench_close(Bench *b) {
    b->backend->close(&b->exec);
    b->backend->device->release(b->cold);
    b->backend->device->release(b->partials);
    b->backend->device->release(b->matmul_workspace);
}

// ---- copies, which measure bandwidth, and cold caches

#ifdef HAVE_CUDA
static int bench_blocks(const Exec *ex) { return ex->cuda->multiprocessors * 8; }

static __global__ void copy_kernel(float *to, const float *from, size_t n) {
    wait_for_previous_kernel();
    size_t step = (size_t)gridDim.x * blockDim.x * 4;
    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += step) {
        store128_streaming(to + i, load128_streaming(from + i));
    }
}

static __global__ void read_kernel(float *x, size_t n) {
    wait_for_previous_kernel();
    float sum = 0;
    size_t step = (size_t)gridDim.x * blockDim.x * 4;
    for (size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < n; i += step) {
        Pack<float> pack = load128(x + i);
        sum += pack[0] + pack[1] + pack[2] + pack[3];
    }
    if (sum != 0) { *x = sum; }  // never, but the compiler does not know
}
#endif

// a thread's range is large enough for non-temporal stores; on a GPU the copy is enqueued
static void copy_bytes(void *to, const void *from, size_t bytes, const Exec *ex) {
#ifdef HAVE_CUDA
    if (on_gpu(ex)) {
        CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(ex)));
        return;
    }
#endif
    (void)ex;
    size_t range = bytes / (size_t)omp_get_max_threads() / 4096 * 4096 + 4096;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i += range) {
        memcpy((char *)to + i, (const char *)from + i, bytes - i < range ? bytes - i : range);
    }
}

static void empty_caches(Bench *b) {
#ifdef HAVE_CUDA
    if (on_gpu(&b->exec)) {
        LAUNCH(read_kernel, bench_blocks(&b->exec), 256, 0, stream_of(&b->exec), b->cold, b->cold_count);
        return;
    }
#endif
    float sum = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
    for (size_t i = 0; i < b->cold_count; i++) { sum += b->cold[i]; }
    if (sum != 0) { run_error("an operation wrote to the zeros that fill the caches"); }
}

static void run_copy(Problem *p, const Ops *ops, Exec *ex) {
    (void)ops;
    if (p->describing) {
        const OpCall call = {"copy",
                             0,
                             {make_operand("to", real_of(p, "to"), DT_REAL, WRITTEN, p->shape.n, 1),
                              make_operand("from", real_of(p, "from"), DT_REAL, READ, p->shape.n, 1)}};
        ex->hooks->before(&call, ex);
        return;
    }
#ifdef HAVE_CUDA
    if (p->variant == 1) {
        LAUNCH(copy_kernel, bench_blocks(ex), 256, 0, stream_of(ex), real_of(p, "to"), real_of(p, "from"), p->shape.n);
        return;
    }
#endif
    copy_bytes(real_of(p, "to"), real_of(p, "from"), p->shape.n * sizeof(real), ex);
}

// ---- a problem on the machine: the same arrays, in its memory

static void *move_to(const Device *device, void *host, size_t bytes) {
    void *p = device->allocate(bytes);
    device->upload(p, host, bytes);
    free(host);
    return p;
}

// `start` stays only for arrays that the operation changes
static Problem problem_place(const Device *device, const OpCase *op, const OpShape *s, int variant) {
    Problem p = problem_make(op, s, variant);
    for (int i = 0; i < p.num_arrays; i++) {
        Array *a = &p.array[i];
        a->data = move_to(device, a->data, array_bytes(a));
        if (a->role == INOUT) {
            a->start = move_to(device, a->start, array_bytes(a));
        } else {
            free(a->start);
            a->start = NULL;
        }
    }
    return p;
}

static void problem_restart(Problem *p, const Exec *ex) {
    for (int i = 0; i < p->num_arrays; i++) {
        if (p->array[i].start) { copy_bytes(p->array[i].data, p->array[i].start, array_bytes(&p->array[i]), ex); }
    }
}

static void problem_release(const Device *device, Problem *p) {
    for (int i = 0; i < p->num_arrays; i++) {
        device->release(p->array[i].data);
        if (p->array[i].start) { device->release(p->array[i].start); }
    }
}

// ---- timing

typedef struct {
    double median, p10, p90;  // seconds
} Times;

static double seconds_of(Bench *b, Problem *p) {
    const Ops *ops = b->backend->ops;
    problem_restart(p, &b->exec);
    empty_caches(b);
#ifdef HAVE_CUDA
    if (on_gpu(&b->exec)) {
        cudaEvent_t event[2];
        float milliseconds = 0;
        for (int i = 0; i < 2; i++) { CUDA_CHECK(cudaEventCreate(&event[i])); }
        CUDA_CHECK(cudaEventRecord(event[0], stream_of(&b->exec)));
        problem_run(p, ops, &b->exec);
        CUDA_CHECK(cudaEventRecord(event[1], stream_of(&b->exec)));
        CUDA_CHECK(cudaEventSynchronize(event[1]));
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event[0], event[1]));
        for (int i = 0; i < 2; i++) { CUDA_CHECK(cudaEventDestroy(event[i])); }
        return 1e-3 * milliseconds;
    }
#endif
    double start = now_seconds();
    problem_run(p, ops, &b->exec);
    return now_seconds() - start;
}

static int compare_doubles(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static Times measure(Bench *b, Problem *p) {
    static double seconds[MAX_RUNS];
    int least = b->options.small ? 2 : MIN_RUNS, most = b->options.small ? 2 : MAX_RUNS, runs = 0;
    double total = 0;
    for (int i = 0; i < WARM_UP; i++) { seconds_of(b, p); }
    for (; runs < least || (runs < most && total < ENOUGH_SECONDS); runs++) {
        total += seconds[runs] = seconds_of(b, p);
    }
    qsort(seconds, (size_t)runs, sizeof(double), compare_doubles);
    Times times = {seconds[runs / 2], seconds[runs / 10], seconds[runs - 1 - runs / 10]};
    return times;
}

static Times measure_case(Bench *b, const OpCase *op, const OpShape *s, int variant, Problem *what) {
    *what = problem_place(b->backend->device, op, s, variant);
    Times times = measure(b, what);
    problem_release(b->backend->device, what);
    return times;
}

// measures and prints them
static void measure_ceilings(Bench *b, const char *when) {
    const OpCase copy = {.name = "copy", .run = run_copy, .num_variants = on_gpu(&b->exec) ? 2 : 1, .variants = {0, 1}};
    const OpCase *matmul = op_case("matmul_forward");
    bool large = on_gpu(&b->exec) && !b->options.small;
    int side = b->options.small ? 64 : large ? 8192 : 2048;
    OpShape block = op_shape_gpt2(op_case("adamw_update"), 0, 0), square = op_shape_gpt2(matmul, 1, side);
    Problem p;
    block.n = large ? (size_t)1 << 28 : b->options.small ? 4096 : 8 * cache_bytes(&b->exec) / sizeof(real);
    square.C = square.OC = side;
    b->bytes_per_second = 0;
    for (int variant = 0; variant < copy.num_variants; variant++) {
        double seconds = measure_case(b, &copy, &block, variant, &p).p10, rate = op_call_bytes(&p.call) / seconds;
        if (rate > b->bytes_per_second) { b->bytes_per_second = rate; }
    }
    double seconds = measure_case(b, matmul, &square, PRODUCT_ALONE, &p).p10;
    b->flops_per_second = p.call.flops / seconds;
    printf("Ceilings%s: copy %.1f GB/s, matmul of %d cubed %.3f TFLOP/s.\n", when, b->bytes_per_second / 1e9, side,
           b->flops_per_second / 1e12);
    fflush(stdout);
}

// ---- the table

static void print_header(const Bench *b) {
    char machine[512], date[32];
    time_t now = time(NULL);
    b->backend->describe(machine, sizeof machine);
    strftime(date, sizeof date, "%Y-%m-%d", localtime(&now));
    printf("%s; %s; %s.\n", machine, date, dtype_name(DT_FLOATX));
}

static void print_times(const Bench *b, const Problem *p, const char *name, const Times *t) {
    double moving = op_call_bytes(&p->call) / b->bytes_per_second, computing = p->call.flops / b->flops_per_second;
    bool memory = moving >= computing;
    char rate[32] = "";
    if (p->call.flops > 0) { snprintf(rate, sizeof rate, "%.3f", p->call.flops / t->median / 1e12); }
    const char *shape = strchr(strstr(problem_title(p), "variant ") + strlen("variant "), ' ') + 1;
    printf("| %s | %s | %.1f (%.1f to %.1f) | %.1f | %s | %s | %.0f%% |", name, shape, 1e6 * t->median, 1e6 * t->p10,
           1e6 * t->p90, op_call_bytes(&p->call) / t->median / 1e9, rate, memory ? "memory" : "compute",
           100 * (memory ? moving : computing) / t->median);
}

static OpShape shape_of(const Bench *b, const OpCase *op, const BenchRow *row) {
    OpShape s = op_shape_gpt2(op, b->options.B, b->options.T);
    if (b->options.small) { return *op_shape(op, 0); }
    s.C = s.C / models[0].channels * b->model->channels;  // the rows of cases.h are 124M's
    s.OC = s.OC / models[0].channels * b->model->channels;
    s.NH = s.NH ? b->model->num_heads : 0;
    if (row->C != OWN) {
        s.C = (int)dim_size(row->C, b->model);
        s.OC = (int)dim_size(row->OC, b->model);
    }
    if (row->chunk) {
        ModelOptions options;
        memset(&options, 0, sizeof options);
        options.B = s.B;
        options.T = s.T;
        s.B = 1;
        s.T = logits_chunk(b->model, &options);
    }
    return s;
}

// ---- kernels, in builds for a GPU

#ifdef HAVE_CUDA
// microseconds. The measured time begins after the gap before the first launch.
static double predicted_us(const Bench *b, const Problem *p, const Recorded *r) {
    int launches = r->kernels + r->others;
    double gaps = launch_gaps(&b->roofline, &p->call, r, EXPECTED) * (launches > 0 ? 1 - 1.0 / launches : 0);
    return 1e6 * (roofline_seconds(&b->roofline, &p->call, r, EXPECTED) + gaps);
}
#endif

// the number of kernels and the predicted time, as cells of the table
static void print_kernels(const Bench *b, Problem *p) {
#ifdef HAVE_CUDA
    if (on_gpu(&b->exec)) {
        record_start(&b->exec);
        problem_run(p, b->backend->ops, (Exec *)&b->exec);
        Recorded r = record_stop(&b->exec);
        printf(r.others ? " %d + %d |" : " %d |", r.kernels, r.others);
        printf(" %.1f |", predicted_us(b, p, &r));
    }
#endif
    (void)b, (void)p;
}

#ifdef HAVE_CUDA
static void run_product(const BenchProduct *w, Problem *p, const Ops *ops, Exec *ex) {
    int parts = w->parts;
    if (parts == 0) {
        problem_run(p, ops, ex);
        return;
    }
    Activation activation = {parts & SLOPE ? MLP_ACTIVATION : NO_ACTIVATION,
                             parts & SLOPE ? x_of(p, "activation.pre") : NULL,
                             parts & PRE_BIAS ? gradient_of(p, "activation.dbias") : no_gradient};
    ops->matmul_backward(
        parts & DINP ? x_of(p, "dinp") : NULL, parts & DWEIGHT ? gradient_of(p, "dweight") : no_gradient,
        parts & DBIAS ? gradient_of(p, "dbias") : no_gradient, x_of(p, "dout"), x_of(p, "in"), x_of(p, "weight"),
        activation, p->variant & ADDED ? GRAD_ADD : GRAD_SET, p->shape.B * p->shape.T, p->shape.C, p->shape.OC, ex);
}

static bool same_arrays(const BenchRow *x, const BenchRow *y) {
    return strcmp(x->op, y->op) == 0 && x->variant == y->variant && x->C == y->C && x->OC == y->OC;
}

// prints a line of the list; true if one kernel does matmul and epilogue
static bool list_product(Bench *b, const BenchProduct *w, Problem *p) {
    const OpShape s = p->shape;
    run_product(w, p, b->backend->ops, &b->exec);  // chooses the algorithm
    record_start(&b->exec);
    run_product(w, p, b->backend->ops, &b->exec);
    Recorded r = record_stop(&b->exec);
    bool fused = r.kernels == 1;
    char many[48] = "fused";
    if (!fused) { snprintf(many, sizeof many, "not fused: %d kernels", r.kernels); }
    printf("| %s %d x %d x %d | %s | %s |", w->row.what, s.B * s.T, s.C, s.OC, w->epilogue, many);
    for (int i = 0; i < r.kernels && i < RECORDED_NAMES; i++) { printf("%s `%s`", i ? "," : "", r.name[i]); }
    if (r.others) { printf(" and %d copies or fills", r.others); }
    printf(" |\n");
    fflush(stdout);
    return fused;
}
#endif

static void list_products(Bench *b) {
    int fused = 0;
    if (!on_gpu(&b->exec)) { input_error("--products: there are no kernels on a CPU; give --device cuda"); }
    printf("\n| product | epilogue | fused | kernels |\n|---|---|---|---|\n");
#ifdef HAVE_CUDA
    Problem p;
    for (int i = 0; i < NUM_BENCH_PRODUCTS; i++) {
        const BenchProduct *w = &bench_products[i];
        const OpCase *op = op_case(w->row.op);
        OpShape s = shape_of(b, op, &w->row);
        bool same = i > 0 && same_arrays(&w->row, &w[-1].row);
        if (!same && i > 0) { problem_release(b->backend->device, &p); }
        if (!same) { p = problem_place(b->backend->device, op, &s, w->row.variant); }
        fused += list_product(b, w, &p);
    }
    problem_release(b->backend->device, &p);
#endif
    printf("\nProducts fused: %d of %d.\n", fused, (int)NUM_BENCH_PRODUCTS);
}

// ---- an operation

static void bench_row(Bench *b, const OpCase *op, const BenchRow *row) {
    OpShape s = shape_of(b, op, row);
    Problem p = problem_place(b->backend->device, op, &s, row->variant);
    char name[128];
    snprintf(name, sizeof name, "%s%s%s", op->name, *row->what ? ": " : "", row->what);
    Times times = measure(b, &p);
    print_times(b, &p, name, &times);
    print_kernels(b, &p);
    printf("\n");
    fflush(stdout);
    problem_release(b->backend->device, &p);
}

static bool op_chosen(const Bench *b, const OpCase *op) {
    return (!b->options.only || strstr(op->name, b->options.only));
}

static void bench_operation(Bench *b, const OpCase *op) {
    const BenchRow plain = {op->name, "", op->variants[0], OWN, OWN, false};
    int rows = 0;
    for (int i = 0; i < NUM_BENCH_ROWS; i++) {
        if (strcmp(bench_rows[i].op, op->name) != 0) { continue; }
        bench_row(b, op, &bench_rows[i]);
        rows++;
    }
    if (rows == 0) { bench_row(b, op, &plain); }
}

static void bench_operations(Bench *b) {
    bool gpu = on_gpu(&b->exec);
    measure_ceilings(b, "");
    printf("\n| operation | shape | us (p10 to p90) | GB/s | TFLOP/s | bound | share "
           "|%s\n|---|---|---|---|---|---|---|%s\n",
           gpu ? " kernels | predicted, us |" : "", gpu ? "---|---|" : "");
    for (int i = 0; i < NUM_OP_CASES; i++) {
        if (op_chosen(b, &op_cases[i])) { bench_operation(b, &op_cases[i]); }
    }
    printf("\n");
    measure_ceilings(b, " at the end");
}

int main(int argc, char **argv) {
    Bench b;
    int chosen = 0;
    memset(&b, 0, sizeof b);
    flags_parse(flags, NUM_FLAGS, &b.options, argc, argv);
    b.backend = backend_choose((DeviceChoice)b.options.device, true);
    const char *note = BUILT_WITH_CUDA && b.options.device == DEVICE_AUTO ? why_no_gpu() : "";
    if (*note) { fprintf(stderr, "bench_ops: on the CPU, since %s\n", note); }
    for (int i = 0; i < NUM_OP_CASES; i++) { chosen += op_chosen(&b, &op_cases[i]); }
    if (!chosen) { input_error("-o %s: no operation has that in its name", b.options.only); }
    bench_open(&b);
    print_header(&b);
    if (b.options.products) {
        list_products(&b);
    } else {
        bench_operations(&b);
    }
    bench_close(&b);
    return 0;
}
