/*
Times the GEMMs of a training step in gemm() of llmc/gemm.h, and compares them with FMAs in registers and with oneDNN.
    bench_matmul [THREADS [ROUNDS]]      (default: all threads, 5 rounds)
The programs take turns in each round. A rate is the GFLOP/s of the fastest call, since the median call may wait many
times as long for a core as it computes if a neighbour is busy.
Prints lines of JSON: first the build, then for each model and type of inputs a line for each GEMM and a total ("gemm":
"all"). In the total a GEMM counts as often as in a step, and fma is the median. A program that is missing has null.
  fma           independent multiply-adds of vectors in registers, in all threads: the most that a GEMM can reach. With
                bf16 inputs a multiply-add has pairs of bf16 (AVX512-BF16)
  ours          gemm(): operands are fp32 in memory; bf16 inputs are rounded in the call
  ours_cold     the same with copies of A, B and C in rotation: operands come from memory, as most do in a step
  onednn        B in the layout that oneDNN prefers, as in oneDNN's own benchmark. With bf16 inputs A and B are bf16
  onednn_plain  B as the trainer stores it
*/
#include "llmc/common/device.h"
#include "llmc/gemm.h"
#include <unistd.h>
#ifdef HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

enum { FMA, OURS, OURS_COLD, ONEDNN, ONEDNN_PLAIN, NUM_PROGRAMS };
enum { MIN_CALLS = 3 };
enum { COLD_BYTES = 128 << 20 };  // of the copies: more than the L3 cache of most CPUs
static const char *const program_names[] = {"fma", "ours", "ours_cold", "onednn", "onednn_plain"};
enum { PAUSE_MICROSECONDS = 50000 };  // idle threads of OpenMP spin for a while
static const double TURN_SECONDS = 0.02;

typedef struct {
    const char *name;
    size_t layers, rows, channels, vocabulary;
} Model;
static const Model models[] = {{"4L 4H 128C", 4, 12 * 64, 128, 256}, {"124M", 12, 4 * 64, 768, 50304}};

typedef struct {
    const char *name;
    size_t in, out;  // in channels; out 0: the vocabulary
} Linear;
enum { NUM_LINEARS = 5 };
static const Linear linears[NUM_LINEARS] = {
    {"qkv", 1, 3}, {"attproj", 1, 1}, {"fc", 1, 4}, {"fcproj", 4, 1}, {"classifier", 1, 0}};

enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, NUM_KINDS };
static const char *const kind_names[] = {"forward", "input gradient", "weight gradient"};

#ifdef HAVE_ONEDNN
enum { HAS_ONEDNN = 1 };
typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
} Onednn;
#else
enum { HAS_ONEDNN = 0 };
typedef struct {
    int none;
} Onednn;
#endif

// C (M,N) = A (M,K) B (K,N). In memory a transposed A is (K,M), a transposed B (N,K).
typedef struct {
    size_t M, N, K, per_step;
    bool a_transposed, b_transposed, bf16_inputs;
    float *a, *b, *c;
    size_t copies;          // of a, b and c, back to back
    Onednn blocked, plain;  // of ONEDNN and ONEDNN_PLAIN
} Case;

// values of 0.5 to 1 in fp32 and in bf16: the power and so the clock of some CPUs depend on the data
static void fill(void *data, size_t bytes) {
    for (size_t i = 0; i < bytes / 2; i++) {
        uint16_t value = (uint16_t)(0x3f00 + i * 7919 % 128);
        memcpy((char *)data + 2 * i, &value, 2);
    }
}

static float *filled(size_t count) {
    float *data = (float *)xmalloc(count * sizeof(float));
    fill(data, count * sizeof(float));
    return data;
}

// ---- the programs

enum { FMA_CHAINS = GEMM_VECTORS == 4 ? 16 : 12, FMA_STEPS = 100000 };  // half of the registers, or most of them
#ifdef __aarch64__
#define IN_REGISTER(x) __asm__ volatile("" : "+w"(x))
#else
#define IN_REGISTER(x) __asm__ volatile("" : "+v"(x))
#endif

ALWAYS_INLINE void run_fmas(bool pairs) {
    vec x[FMA_CHAINS] = {{0}}, a = x[0] + 0.5f;
    for (int step = 0; step < FMA_STEPS; step++) {
        UNROLL_ALL
        for (int i = 0; i < FMA_CHAINS; i++) {
            IN_REGISTER(a);  // or the product of constants leaves the loop, and sums are timed
            x[i] = multiply_add(x[i], 0.5f, a, pairs);
            IN_REGISTER(x[i]);
        }
    }
}

static void run_ours(const Case *k, size_t copy) {
    const float *a_data = k->a + copy * k->M * k->K, *b_data = k->b + copy * k->K * k->N;
    Matrix a = k->a_transposed ? matrix(a_data, DT_F32, 1, k->M) : matrix(a_data, DT_F32, k->K, 1);
    Matrix b = k->b_transposed ? matrix(b_data, DT_F32, 1, k->K) : matrix(b_data, DT_F32, k->N, 1);
    Matmul p = {.c = matrix(k->c + copy * k->M * k->N, DT_F32, k->N, 1),
                .a = a,
                .b = b,
                .bf16_inputs = k->bf16_inputs,
                .M = k->M,
                .N = k->N,
                .K = k->K};
#pragma omp parallel
    gemm(&p);
}

#ifdef HAVE_ONEDNN
static void check_onednn(dnnl_status_t status) {
    if (status != dnnl_success) { run_error("oneDNN failed with status %d", (int)status); }
}

// Memory descriptors are structs in version 2 and handles in version 3.
#if DNNL_VERSION_MAJOR < 3
typedef const dnnl_memory_desc_t *OnednnDesc;

static void onednn_describe(dnnl_memory_desc_t *desc, size_t rows, size_t cols, bool bf16, dnnl_format_tag_t tag) {
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    check_onednn(dnnl_memory_desc_init_by_tag(desc, 2, dims, bf16 ? dnnl_bf16 : dnnl_f32, tag));
}

static void onednn_matmul(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, dnnl_memory_desc_t *md) {
    dnnl_matmul_desc_t desc;
    check_onednn(dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]));
    check_onednn(dnnl_primitive_desc_create(pd, &desc, NULL, engine, NULL));
}
#else
typedef const_dnnl_memory_desc_t OnednnDesc;

static void onednn_describe(dnnl_memory_desc_t *desc, size_t rows, size_t cols, bool bf16, dnnl_format_tag_t tag) {
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};
    check_onednn(dnnl_memory_desc_create_with_tag(desc, 2, dims, bf16 ? dnnl_bf16 : dnnl_f32, tag));
}

static void onednn_matmul(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, dnnl_memory_desc_t *md) {
    check_onednn(dnnl_matmul_primitive_desc_create(pd, engine, md[0], md[1], NULL, md[2], NULL));
    for (int i = 0; i < 3; i++) { check_onednn(dnnl_memory_desc_destroy(md[i])); }
}
#endif

static Onednn onednn_open(const Case *k, bool plain) {
    Onednn o;
    check_onednn(dnnl_engine_create(&o.engine, dnnl_cpu, 0));
    check_onednn(dnnl_stream_create(&o.stream, o.engine, dnnl_stream_default_flags));
    dnnl_memory_desc_t md[3];
    onednn_describe(&md[0], k->M, k->K, k->bf16_inputs, k->a_transposed ? dnnl_ba : dnnl_ab);
    dnnl_format_tag_t plain_b = k->b_transposed ? dnnl_ba : dnnl_ab;
    onednn_describe(&md[1], k->K, k->N, k->bf16_inputs, plain ? plain_b : dnnl_format_tag_any);
    onednn_describe(&md[2], k->M, k->N, false, dnnl_ab);
    dnnl_primitive_desc_t pd;
    onednn_matmul(&pd, o.engine, md);
    check_onednn(dnnl_primitive_create(&o.primitive, pd));
    const dnnl_query_t queries[3] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md};
    const int args[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    for (int i = 0; i < 3; i++) {
        OnednnDesc desc = dnnl_primitive_desc_query_md(pd, queries[i], 0);
        void *data;
        o.args[i].arg = args[i];
        check_onednn(dnnl_memory_create(&o.args[i].memory, desc, o.engine, DNNL_MEMORY_ALLOCATE));
        check_onednn(dnnl_memory_get_data_handle(o.args[i].memory, &data));
        fill(data, dnnl_memory_desc_get_size(desc));
    }
    check_onednn(dnnl_primitive_desc_destroy(pd));
    return o;
}

static void run_onednn(const Onednn *o) { check_onednn(dnnl_primitive_execute(o->primitive, o->stream, 3, o->args)); }

static void onednn_close(Onednn *o) {
    for (int i = 0; i < 3; i++) { check_onednn(dnnl_memory_destroy(o->args[i].memory)); }
    check_onednn(dnnl_primitive_destroy(o->primitive));
    check_onednn(dnnl_stream_destroy(o->stream));
    check_onednn(dnnl_engine_destroy(o->engine));
}

static void print_onednn(void) {
    const dnnl_version_t *v = dnnl_version();
    printf("\"onednn\": \"%d.%d.%d\"", v->major, v->minor, v->patch);
}
#else
static Onednn onednn_open(const Case *k, bool plain) { return (void)k, (void)plain, (Onednn){0}; }
static void run_onednn(const Onednn *o) { (void)o; }
static void onednn_close(Onednn *o) { (void)o; }
static void print_onednn(void) { printf("\"onednn\": null"); }
#endif

static bool has_program(int program) { return HAS_ONEDNN || (program != ONEDNN && program != ONEDNN_PLAIN); }

static void run(int program, const Case *k) {
    static size_t calls;
    switch (program) {
    case OURS: run_ours(k, 0); break;
    case OURS_COLD: run_ours(k, calls++ % k->copies); break;
    case ONEDNN: run_onednn(&k->blocked); break;
    case ONEDNN_PLAIN: run_onednn(&k->plain); break;
    default:
#pragma omp parallel
    {
        if (k->bf16_inputs) {
            run_fmas(true);
        } else {
            run_fmas(false);
        }
    }
    }
}

// ---- measurements

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[count / 2];
}

// GFLOP/s of the fastest call of a turn, without the first, which warms up
static double turn_rate(int program, const Case *k, int threads) {
    double fastest = INFINITY, flops = 2.0 * (double)k->M * (double)k->N * (double)k->K;
    size_t fmas = (size_t)FMA_CHAINS * FMA_STEPS * VECTOR_LANES * (size_t)threads;
    if (program == FMA) { flops = (k->bf16_inputs ? 4 : 2) * (double)fmas; }
    if (program == FMA) { usleep(PAUSE_MICROSECONDS); }
    run(program, k);
    double now = now_seconds(), end = now + TURN_SECONDS;
    for (int calls = 0; calls < MIN_CALLS || now < end; calls++) {
        double start = now;
        run(program, k);
        now = now_seconds();
        fastest = fmin(fastest, now - start);
    }
    return flops / fastest / 1e9;
}

// 0 for a missing program
static void measure(double *rates, const Case *k, int threads, int rounds) {
    memset(rates, 0, NUM_PROGRAMS * sizeof *rates);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < NUM_PROGRAMS; i++) {
            if (has_program(i)) { rates[i] = fmax(rates[i], turn_rate(i, k, threads)); }
        }
    }
}

static Case make_case(const Model *m, const Linear *l, int kind, bool bf16_inputs) {
    size_t in = l->in * m->channels, out = l->out ? l->out * m->channels : m->vocabulary;
    Case k = {
        .M = kind == WEIGHT_GRADIENT ? out : m->rows, .N = kind == FORWARD ? out : in, .bf16_inputs = bf16_inputs};
    k.K = kind == FORWARD ? in : kind == INPUT_GRADIENT ? out : m->rows;
    k.a_transposed = kind == WEIGHT_GRADIENT;
    k.b_transposed = kind == FORWARD;
    k.per_step = l->out ? m->layers : 1;
    k.copies = 1 + COLD_BYTES / (sizeof(float) * (k.M * k.K + k.K * k.N + k.M * k.N));
    k.a = filled(k.copies * k.M * k.K);
    k.b = filled(k.copies * k.K * k.N);
    k.c = filled(k.copies * k.M * k.N);
    k.blocked = onednn_open(&k, false);
    k.plain = onednn_open(&k, true);
    return k;
}

static void free_case(Case *k) {
    onednn_close(&k->blocked);
    onednn_close(&k->plain);
    free(k->a);
    free(k->b);
    free(k->c);
}

static void print_rates(const double *rates) {
    for (int i = 0; i < NUM_PROGRAMS; i++) {
        if (rates[i] > 0) {
            printf(", \"%s\": %.1f", program_names[i], rates[i]);
        } else {
            printf(", \"%s\": null", program_names[i]);
        }
    }
    printf("}\n");
    fflush(stdout);
}

static void measure_model(const Model *m, bool bf16_inputs, int threads, int rounds) {
    const char *inputs = bf16_inputs ? "bf16" : "fp32";
    double flops = 0, seconds[NUM_PROGRAMS] = {0}, rates[NUM_PROGRAMS];
    double fma[NUM_LINEARS * NUM_KINDS] = {0};
    for (int l = 0; l < NUM_LINEARS; l++) {
        for (int kind = 0; kind < NUM_KINDS; kind++) {
            Case k = make_case(m, &linears[l], kind, bf16_inputs);
            measure(rates, &k, threads, rounds);
            printf("{\"model\": \"%s\", \"inputs\": \"%s\", \"gemm\": \"%s, %s\", \"M\": %zu, \"N\": %zu, \"K\": %zu, "
                   "\"per_step\": %zu",
                   m->name, inputs, linears[l].name, kind_names[kind], k.M, k.N, k.K, k.per_step);
            print_rates(rates);
            double step_flops = 2e-9 * (double)k.M * (double)k.N * (double)k.K * (double)k.per_step;
            flops += step_flops;
            fma[l * NUM_KINDS + kind] = rates[FMA];
            for (int i = 0; i < NUM_PROGRAMS; i++) { seconds[i] += step_flops / rates[i]; }
            free_case(&k);
        }
    }
    for (int i = 0; i < NUM_PROGRAMS; i++) { rates[i] = flops / seconds[i]; }  // seconds of a missing program: infinite
    rates[FMA] = median(fma, NUM_LINEARS * NUM_KINDS);
    printf("{\"model\": \"%s\", \"inputs\": \"%s\", \"gemm\": \"all\"", m->name, inputs);
    print_rates(rates);
}

static void print_build(int threads) {
#ifdef __clang__
    const char *compiler = __VERSION__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    const char *registers = VECTOR_BYTES == 64 ? "AVX-512" : VECTOR_BYTES == 32 ? "AVX" : "128-bit";
#ifdef __AVX2__
    registers = VECTOR_BYTES == 32 ? "AVX2" : registers;
#endif
    printf("{\"compiler\": \"%s\", \"vectors\": \"%s%s\", \"threads\": %d, ", compiler, registers,
           GEMM_HAS_BF16 ? ", AVX512-BF16" : "", threads);
    print_onednn();
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads(), rounds = argc > 2 ? atoi(argv[2]) : 5;
    if (threads < 1 || rounds < 1) { input_error("expected: bench_matmul [THREADS [ROUNDS]]"); }
    omp_set_num_threads(threads);
    print_build(threads);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        for (int bf16_inputs = 0; bf16_inputs <= GEMM_HAS_BF16; bf16_inputs++) {
            measure_model(&models[m], bf16_inputs, threads, rounds);
        }
    }
    return 0;
}
