/*
GEMMs through CBLAS beside gemm() of matmul_portable.h: every order of rows and columns of A and B, bias, residual,
+=, several threads, the same bits twice, and cases that CBLAS cannot take.
*/
#include "llmc/matmul.h"
#include "llmc/common/rng.h"
#include "testing.h"

#if defined(HAVE_CBLAS) && !defined(PRECISION_FP64)
#include <omp.h>

enum { LARGEST = 200 * 300, MAX_THREADS = 5 };

// the arrays of a GEMM, with room for the largest
typedef struct {
    float a[LARGEST], b[LARGEST], c[LARGEST], bias[LARGEST], residual[LARGEST];
} Arrays;

static Arrays *arrays_copy(const Arrays *from) {
    Arrays *arrays = (Arrays *)xmalloc(sizeof *arrays);
    memcpy(arrays, from, sizeof *arrays);
    return arrays;
}

static Arrays *arrays_make(void) {
    Arrays *arrays = (Arrays *)xmalloc(sizeof *arrays);
    float *values = arrays->a;
    for (size_t i = 0; i < sizeof *arrays / sizeof(float); i++) { values[i] = (float)rng_normal(7, 1, i); }
    return arrays;
}

typedef struct {
    size_t M, N, K;
} Sizes;

// rows, columns and depths of 1; sizes that threads do not divide; a B above MATMUL_SHARED_BYTES is in test_reference
static const Sizes sizes[] = {{1, 1, 1}, {1, 7, 3}, {9, 1, 5}, {5, 3, 1}, {75, 39, 21}, {64, 200, 33}, {200, 17, 300}};

// bits of `kind`
enum { A_TRANSPOSED = 1, B_TRANSPOSED = 2, WITH_BIAS = 4, WITH_RESIDUAL = 8, ACCUMULATES = 16, NUM_KINDS = 32 };

static Matmul gemm_of(Arrays *arrays, Sizes s, int kind) {
    Matrix a = matrix(arrays->a, DT_F32, s.K, 1), b = matrix(arrays->b, DT_F32, s.N, 1);
    if (kind & A_TRANSPOSED) { a = matrix(arrays->a, DT_F32, 1, s.M); }
    if (kind & B_TRANSPOSED) { b = matrix(arrays->b, DT_F32, 1, s.K); }
    Matmul p = {matrix(arrays->c, DT_F32, s.N, 1), a, b, NULL, NULL, (kind & ACCUMULATES) != 0, s.M, s.N, s.K};
    if (kind & WITH_BIAS) { p.bias = (floatX *)arrays->bias; }
    if (kind & WITH_RESIDUAL) { p.residual = (floatX *)arrays->residual; }
    return p;
}

// whether CBLAS, rather than the portable kernels, computed the GEMM
static bool run_cblas(const Matmul *p) {
    bool done = true;
    cblas_open();
#pragma omp parallel reduction(&& : done)
    done = cblas_multiply(p);
    return done;
}

static void run_portable(const Matmul *p) {
#pragma omp parallel
    gemm(p);
}

static void check_kind(const Arrays *start, Sizes s, int kind, int threads) {
    Arrays *got = arrays_copy(start), *again = arrays_copy(start), *wanted = arrays_copy(start);
    Matmul p = gemm_of(got, s, kind), q = gemm_of(again, s, kind), r = gemm_of(wanted, s, kind);
    omp_set_num_threads(threads);
    assert_true(run_cblas(&p));
    assert_true(run_cblas(&q));
    run_portable(&r);
    assert_memory_equal(got, again, sizeof *got);
    for (size_t i = 0; i < LARGEST; i++) {
        bool inside = i < s.M * s.N;
        double error = fabs((double)(got->c[i] - wanted->c[i]));
        if (error > (inside ? 1e-5 * sqrt((double)s.K) : 0)) {
            fail_msg("M %zu N %zu K %zu, kind %d, %d threads: element %zu is %g, expected %g", s.M, s.N, s.K, kind,
                     threads, i, (double)got->c[i], (double)wanted->c[i]);
        }
    }
    free(got), free(again), free(wanted);
}

static void test_every_kind(void **state) {
    (void)state;
    Arrays *start = arrays_make();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int kind = 0; kind < NUM_KINDS; kind++) {
            for (int threads = 1; threads <= MAX_THREADS; threads += 2) { check_kind(start, sizes[s], kind, threads); }
        }
    }
    free(start);
}

// a residual that is C itself, as in x += ...
static void test_residual_may_be_c(void **state) {
    (void)state;
    Sizes s = {75, 39, 21};
    Arrays *got = arrays_make(), *wanted = arrays_make();
    Matmul p = gemm_of(got, s, WITH_BIAS), r = gemm_of(wanted, s, WITH_BIAS);
    p.residual = (floatX *)got->c;
    r.residual = (floatX *)wanted->c;
    omp_set_num_threads(3);
    assert_true(run_cblas(&p));
    run_portable(&r);
    for (size_t i = 0; i < s.M * s.N; i++) { assert_true(fabs((double)(got->c[i] - wanted->c[i])) <= 1e-4); }
    free(got), free(wanted);
}

// other types, rows that overlap, and a transposed C are refused as a whole, and C keeps its bits
static void test_refused(void **state) {
    (void)state;
    Sizes s = {75, 39, 21};
    Arrays *arrays = arrays_make(), *before = arrays_make();
    Matmul p[4];
    for (int i = 0; i < 4; i++) { p[i] = gemm_of(arrays, s, 0); }
    p[0].a.dtype = DT_BF16;
    p[1].c.dtype = DT_BF16;
    p[2].b.row = s.N - 1;
    p[3].c = matrix(arrays->c, DT_F32, 1, s.M);
    omp_set_num_threads(3);
    for (int i = 0; i < 4; i++) { assert_false(run_cblas(&p[i])); }
    assert_memory_equal(arrays, before, sizeof *arrays);
    free(arrays), free(before);
}

// OpenBLAS must neither start threads of its own nor change the trainer's number of threads
static void test_threads(void **state) {
    (void)state;
    Arrays *arrays = arrays_make();
    Sizes s = {200, 17, 300};
    Matmul p = gemm_of(arrays, s, 0);
    omp_set_num_threads(3);
    assert_true(run_cblas(&p));
    assert_int_equal(omp_get_max_threads(), 3);
#ifndef HAVE_ACCELERATE
    if (openblas_get_parallel() == OPENBLAS_THREAD) { assert_int_equal(openblas_get_num_threads(), 1); }
    assert_memory_equal(matmul_library(), "OpenBLAS ", 9);
#endif
    free(arrays);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_residual_may_be_c),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests_name("GEMMs through CBLAS", tests, NULL, NULL);
}

#else

static void test_without_cblas(void **state) {
    (void)state;
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_cblas)};
    return cmocka_run_group_tests_name("GEMMs through CBLAS", tests, NULL, NULL);
}

#endif
