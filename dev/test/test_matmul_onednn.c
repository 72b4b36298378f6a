/*
GEMMs that oneDNN does not support: matmul_portable.h computes them, whole and once. oneDNN is limited to SSE4.1, where
it has no bf16. The limit must be set before the first call of oneDNN and lasts for the process: hence a separate
program.
*/
#include "llmc/matmul.h"
#include "llmc/common/rng.h"
#include "testing.h"

#if defined(HAVE_ONEDNN) && !defined(PRECISION_FP64)

enum { M = 75, N = 39, K = 21, THREADS = 3 };  // the threads have 32, 32 and 11 rows

// the operands of a GEMM and two results: of team_multiply(), and of gemm()
typedef struct {
    Matrix a, b;
    real got[M * N], wanted[M * N];
} Case;

static void *normal_values(DType dtype, size_t n, uint64_t key) {
    char *values = (char *)xmalloc(n * dtype_size(dtype));
    for (size_t i = 0; i < n; i++) {
        float value = (float)rng_normal(1, key, i);
        bf16 rounded = float_to_bf16(value);
        memcpy(values + i * dtype_size(dtype), dtype == DT_BF16 ? (void *)&rounded : (void *)&value, dtype_size(dtype));
    }
    return values;
}

// C += A B, with ones in C
static Case case_make(DType inputs) {
    Case c = {.a = matrix(normal_values(inputs, M * K, 1), inputs, K, 1),
              .b = matrix(normal_values(inputs, K * N, 2), inputs, N, 1)};
    for (int i = 0; i < M * N; i++) { c.got[i] = c.wanted[i] = 1; }
    return c;
}

static void case_run(Case *c, Exec *ex) {
    Matmul got = {matrix(c->got, DT_REAL, N, 1), c->a, c->b, NULL, NULL, true, M, N, K}, wanted = got;
    wanted.c.data = c->wanted;
    onednn_open(ex);
#pragma omp parallel
    {
        team_multiply(ex, &got);
        gemm(&wanted);
    }
}

static void case_free(Case *c) {
    free((void *)c->a.data);
    free((void *)c->b.data);
}

// oneDNN supports `supported` of the threads' `all` parts
static void assert_supported(const Exec *ex, int supported, int all) {
    for (int t = 0; t < ex->matmuls->num_threads; t++) {
        for (const PreparedMatmul *p = ex->matmuls->threads[t].first; p; p = p->next) {
            supported -= p->primitive != NULL;
            all--;
        }
    }
    assert_int_equal(supported, 0);
    assert_int_equal(all, 0);
}

static void test_unsupported_gemms_are_portable(void **state) {
    if (!*state) { skip(); }  // only x86-64 CPUs can be limited
    Case c = case_make(DT_BF16);
    Exec ex = {0};
    case_run(&c, &ex);
    assert_supported(&ex, 0, THREADS);
    assert_memory_equal(c.got, c.wanted, sizeof c.got);
    onednn_free(&ex);
    case_free(&c);
}

// fp32 is supported, so the test above fails for bf16 alone
static void test_fp32_is_supported(void **state) {
    (void)state;
    Case c = case_make(DT_F32);
    Exec ex = {0};
    case_run(&c, &ex);
    assert_supported(&ex, THREADS, THREADS);
    for (int i = 0; i < M * N; i++) { assert_true(fabs((double)(c.got[i] - c.wanted[i])) <= 1e-5); }
    onednn_free(&ex);
    case_free(&c);
}

// The threads' parts differ in size alone, and oneDNN supports every size. So one part is made unsupported by hand. If
// the other parts were computed nevertheless, their rows would be added twice.
static void test_one_unsupported_part_is_enough(void **state) {
    (void)state;
    for (int thread = 0; thread < THREADS; thread++) {
        Case first = case_make(DT_F32), c = first;
        Exec ex = {0};
        case_run(&first, &ex);
        PreparedMatmul *part = ex.matmuls->threads[thread].first;
        dnnl_primitive_destroy(part->primitive);
        part->primitive = NULL;
        case_run(&c, &ex);
        assert_supported(&ex, THREADS - 1, THREADS);
        assert_memory_equal(c.got, c.wanted, sizeof c.got);
        onednn_free(&ex);
        case_free(&c);
    }
}

// the tests' state: not NULL if oneDNN accepts the limit
static int limit_onednn(void **state) {
    static bool limited;
    limited = dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41) == dnnl_success;
    *state = limited ? &limited : NULL;
    omp_set_num_threads(THREADS);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unsupported_gemms_are_portable),
        cmocka_unit_test(test_fp32_is_supported),
        cmocka_unit_test(test_one_unsupported_part_is_enough),
    };
    return cmocka_run_group_tests_name("unsupported GEMMs", tests, limit_onednn, NULL);
}

#else

static void test_without_onednn(void **state) {
    (void)state;
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_onednn)};
    return cmocka_run_group_tests_name("unsupported GEMMs", tests, NULL, NULL);
}

#endif
