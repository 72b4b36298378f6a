/*
Products that oneDNN refuses: matmul_portable.h computes them, whole and once. oneDNN is held to what a CPU with SSE4.1 has, where
it multiplies no bf16. That is said before its first call and stays so in the process: hence a program of its own.
*/
#include "llmc/matmul.h"
#include "llmc/common/rng.h"
#include "testing.h"

#if defined(HAVE_ONEDNN) && !defined(PRECISION_FP64)

enum { M = 75, N = 39, K = 21, THREADS = 3 };  // shares of 32, 32 and 11 rows

// a product, and what it leaves in C: by whatever multiply() chooses, and by gemm()
typedef struct {
    Matrix a, b;
    MatmulEpilogue add;
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

// onto a C that holds 1
static Case case_make(DType inputs) {
    Case c = {.a = matrix(normal_values(inputs, M * K, 1), inputs, K, 1),
              .b = matrix(normal_values(inputs, K * N, 2), inputs, N, 1),
              .add = {NULL, NULL, true}};
    for (int i = 0; i < M * N; i++) { c.got[i] = c.wanted[i] = 1; }
    return c;
}

static void case_run(Case *c, Exec *ex) {
    onednn_open(ex);
#pragma omp parallel
    {
        multiply(ex, matrix(c->got, DT_REAL, N, 1), c->a, c->b, &c->add, M, N, K);
        gemm(matrix(c->wanted, DT_REAL, N, 1), c->a, c->b, &c->add, M, N, K);
    }
}

static void case_free(Case *c) {
    free((void *)c->a.data);
    free((void *)c->b.data);
}

// how many of the shares' cases oneDNN knows, of how many there are
static void assert_known(const Exec *ex, int known, int all) {
    for (int t = 0; t < ex->matmuls->num_threads; t++) {
        for (const PreparedMatmul *p = ex->matmuls->threads[t].first; p; p = p->next) {
            known -= p->primitive != NULL;
            all--;
        }
    }
    assert_int_equal(known, 0);
    assert_int_equal(all, 0);
}

static void test_refused_products_are_gemms(void **state) {
    if (!*state) { skip(); }  // only x86-64 CPUs can be held
    Case c = case_make(DT_BF16);
    Exec ex = {0};
    case_run(&c, &ex);
    assert_known(&ex, 0, THREADS);
    assert_memory_equal(c.got, c.wanted, sizeof c.got);
    onednn_free(&ex);
    case_free(&c);
}

// so what is refused above is refused for its type
static void test_others_are_onednns(void **state) {
    (void)state;
    Case c = case_make(DT_F32);
    Exec ex = {0};
    case_run(&c, &ex);
    assert_known(&ex, THREADS, THREADS);
    for (int i = 0; i < M * N; i++) { assert_true(fabs((double)(c.got[i] - c.wanted[i])) <= 1e-5); }
    onednn_free(&ex);
    case_free(&c);
}

// Shares differ in their size alone, for which oneDNN refuses none: one is made to look refused. Were the others
// computed nevertheless, their rows would be added twice.
static void test_one_refused_share_is_enough(void **state) {
    (void)state;
    for (int refused = 0; refused < THREADS; refused++) {
        Case first = case_make(DT_F32), c = first;
        Exec ex = {0};
        case_run(&first, &ex);
        PreparedMatmul *share = ex.matmuls->threads[refused].first;
        dnnl_primitive_destroy(share->primitive);
        share->primitive = NULL;
        case_run(&c, &ex);
        assert_known(&ex, THREADS - 1, THREADS);
        assert_memory_equal(c.got, c.wanted, sizeof c.got);
        onednn_free(&ex);
        case_free(&c);
    }
}

// the tests' state: not NULL if oneDNN took it
static int hold_onednn(void **state) {
    static bool held;
    held = dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41) == dnnl_success;
    *state = held ? &held : NULL;
    omp_set_num_threads(THREADS);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_products_are_gemms),
        cmocka_unit_test(test_others_are_onednns),
        cmocka_unit_test(test_one_refused_share_is_enough),
    };
    return cmocka_run_group_tests_name("refused products", tests, hold_onednn, NULL);
}

#else

static void test_without_onednn(void **state) {
    (void)state;
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_onednn)};
    return cmocka_run_group_tests_name("refused products", tests, NULL, NULL);
}

#endif
