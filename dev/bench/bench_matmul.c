/*
The trainer's matmul beside the fastest matmul of oneDNN: the same GEMM with the weights in the layout that oneDNN
prefers, like oneDNN's own benchmark. The two take turns in one run.
    bench_matmul M K N [threads]      prints one line of JSON: medians in GFLOP/s and their ratio
Without oneDNN 2 (version 3 has another API) only the trainer's matmul is measured; the other two numbers are null.
*/
#include "llmc/cpu_ops.h"
#include "llmc/run/logger.h"
#include <omp.h>

enum { ROUNDS = 31, CALLS = 10 };

#if defined(HAVE_ONEDNN) && DNNL_VERSION_MAJOR < 3
enum { HAVE_BARE_MATMUL = 1 };

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
} BareMatmul;

static dnnl_memory_t bare_memory(dnnl_engine_t engine, const dnnl_memory_desc_t *desc) {
    dnnl_memory_t memory;
    onednn_check(dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_ALLOCATE), "memory");
    void *data;
    dnnl_memory_get_data_handle(memory, &data);
    memset(data, 0, dnnl_memory_desc_get_size(desc));
    return memory;
}

// out (M,N) = in (M,K) weights (K,N), weights in oneDNN's preferred layout
static BareMatmul bare_matmul(int M, int K, int N) {
    BareMatmul bare;
    dnnl_memory_desc_t in, weights, out;
    dnnl_dims_t in_dims = {M, K}, weight_dims = {K, N}, out_dims = {M, N};
    onednn_check(dnnl_engine_create(&bare.engine, dnnl_cpu, 0), "engine");
    onednn_check(dnnl_stream_create(&bare.stream, bare.engine, dnnl_stream_default_flags), "stream");
    dnnl_memory_desc_init_by_tag(&in, 2, in_dims, dnnl_f32, dnnl_ab);
    dnnl_memory_desc_init_by_tag(&weights, 2, weight_dims, dnnl_f32, dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&out, 2, out_dims, dnnl_f32, dnnl_ab);
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    onednn_check(dnnl_matmul_desc_init(&desc, &in, &weights, NULL, &out), "matmul descriptor");
    onednn_check(dnnl_primitive_desc_create(&pd, &desc, NULL, bare.engine, NULL), "primitive descriptor");
    onednn_check(dnnl_primitive_create(&bare.primitive, pd), "primitive");
    const dnnl_memory_desc_t *chosen = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    const dnnl_exec_arg_t args[3] = {{DNNL_ARG_SRC, bare_memory(bare.engine, &in)},
                                     {DNNL_ARG_WEIGHTS, bare_memory(bare.engine, chosen)},
                                     {DNNL_ARG_DST, bare_memory(bare.engine, &out)}};
    memcpy(bare.args, args, sizeof args);
    dnnl_primitive_desc_destroy(pd);
    return bare;
}

static void bare_execute(const BareMatmul *bare) {
    onednn_check(dnnl_primitive_execute(bare->primitive, bare->stream, 3, bare->args), "matmul");
}
#else
enum { HAVE_BARE_MATMUL = 0 };

typedef struct {
    int none;
} BareMatmul;

static BareMatmul bare_matmul(int M, int K, int N) {
    (void)M, (void)K, (void)N;
    return (BareMatmul){0};
}

static void bare_execute(const BareMatmul *bare) { (void)bare; }
#endif

static int compare_seconds(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc < 4) { input_error("expected: bench_matmul M K N [threads]"); }
    int M = atoi(argv[1]), K = atoi(argv[2]), N = atoi(argv[3]);
    if (argc > 4) { omp_set_num_threads(atoi(argv[4])); }
    floatX *in = (floatX *)xcalloc((size_t)M * K, sizeof(floatX)),
           *weight = (floatX *)xcalloc((size_t)N * K, sizeof(floatX));
    floatX *out = (floatX *)xcalloc((size_t)M * N, sizeof(floatX)),
           *bias = (floatX *)xcalloc((size_t)N, sizeof(floatX));
    BareMatmul bare = bare_matmul(M, K, N);
    Exec ex;
    memset(&ex, 0, sizeof ex);
    double ours[ROUNDS], theirs[ROUNDS];
    for (int round = -3; round < ROUNDS; round++) {  // the first three warm up
        double start = now_seconds();
        for (int i = 0; i < CALLS; i++) { cpu_matmul_forward(out, in, weight, bias, NULL, M, K, N, &ex); }
        double middle = now_seconds();
        for (int i = 0; i < CALLS; i++) { bare_execute(&bare); }
        double end = now_seconds();
        if (round < 0) { continue; }
        ours[round] = middle - start;
        theirs[round] = end - middle;
    }
    qsort(ours, ROUNDS, sizeof *ours, compare_seconds);
    qsort(theirs, ROUNDS, sizeof *theirs, compare_seconds);
    double flops = 2.0 * M * K * N * CALLS / 1e9, our_time = ours[ROUNDS / 2], their_time = theirs[ROUNDS / 2];
    printf("{\"M\":%d,\"K\":%d,\"N\":%d,\"threads\":%d,\"ours_gflops\":%.1f,", M, K, N, omp_get_max_threads(),
           flops / our_time);
    if (HAVE_BARE_MATMUL) {
        printf("\"onednn_gflops\":%.1f,\"share\":%.3f}\n", flops / their_time, their_time / our_time);
    } else {
        printf("\"onednn_gflops\":null,\"share\":null}\n");
    }
    return 0;
}
