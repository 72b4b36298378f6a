/*
gemm() against three plain loops: every order of rows and columns of A and B, every epilogue, every type, sizes
around the blocks, and the same bits with any number of threads.
*/
#include "llmc/gemm.h"
#include "llmc/common/rng.h"
#include "testing.h"

enum { LARGEST = (GEMM_AREA_N + GEMM_COLS) * (GEMM_K + 5), MAX_THREADS = 5 };

// the arrays of a GEMM, of n elements each, in one block behind the struct; a and b are rounded to bf16 in a_bf16 and
// b_bf16
typedef struct {
    size_t n, bytes;  // bytes of the block
    real *a, *b, *c;
    floatX *bias, *residual, *pre, *activated;
    bf16 *a_bf16, *b_bf16, *c_bf16;
} Arrays;

static void *block_of(const Arrays *arrays) { return (void *)(arrays + 1); }

static Arrays *arrays_of(size_t n) {
    size_t bytes = n * (3 * sizeof(real) + 4 * sizeof(floatX) + 3 * sizeof(bf16));
    Arrays *arrays = (Arrays *)xmalloc(sizeof *arrays + bytes);
    real *reals = (real *)block_of(arrays);
    floatX *halves = (floatX *)(reals + 3 * n);
    bf16 *rounded = (bf16 *)(halves + 4 * n);
    *arrays = (Arrays){n,          bytes,          reals,          reals + n, reals + 2 * n, halves,
                       halves + n, halves + 2 * n, halves + 3 * n, rounded,   rounded + n,   rounded + 2 * n};
    return arrays;
}

static Arrays *arrays_make(void) {
    Arrays *arrays = arrays_of(LARGEST);
    for (size_t i = 0; i < LARGEST; i++) {
        arrays->a[i] = (real)rng_normal(7, 1, i);
        arrays->b[i] = (real)rng_normal(7, 2, i);
        arrays->c[i] = (real)rng_normal(7, 3, i);
        arrays->a_bf16[i] = float_to_bf16((float)arrays->a[i]);
        arrays->b_bf16[i] = float_to_bf16((float)arrays->b[i]);
        arrays->c_bf16[i] = float_to_bf16((float)arrays->c[i]);
        arrays->bias[i] = to_floatX((real)rng_normal(7, 4, i));
        arrays->residual[i] = to_floatX((real)rng_normal(7, 5, i));
        arrays->pre[i] = to_floatX((real)rng_normal(7, 6, i));
        arrays->activated[i] = to_floatX(0);
    }
    return arrays;
}

// the first n elements of each array
static Arrays *arrays_copy(const Arrays *from, size_t n) {
    Arrays *to = arrays_of(n);
    real *const reals[][2] = {{to->a, from->a}, {to->b, from->b}, {to->c, from->c}};
    floatX *const halves[][2] = {
        {to->bias, from->bias}, {to->residual, from->residual}, {to->pre, from->pre}, {to->activated, from->activated}};
    bf16 *const rounded[][2] = {{to->a_bf16, from->a_bf16}, {to->b_bf16, from->b_bf16}, {to->c_bf16, from->c_bf16}};
    for (size_t i = 0; i < 3; i++) { memcpy(reals[i][0], reals[i][1], n * sizeof(real)); }
    for (size_t i = 0; i < 4; i++) { memcpy(halves[i][0], halves[i][1], n * sizeof(floatX)); }
    for (size_t i = 0; i < 3; i++) { memcpy(rounded[i][0], rounded[i][1], n * sizeof(bf16)); }
    return to;
}

typedef struct {
    size_t M, N, K;
} Sizes;

// one row, column and depth; odd sizes; sizes around the tile, and more than one block in M, N and K
static const Sizes sizes[] = {
    {1, 1, 1},
    {1, 7, 3},
    {9, 1, 5},
    {5, 3, 1},
    {75, 39, 21},
    {GEMM_ROWS, GEMM_COLS, 2 * VECTOR_LANES},
    {GEMM_ROWS, GEMM_COLS, 2 * VECTOR_LANES - 1},  // the last pair of a whole vector has one element
    {GEMM_M + 5, GEMM_COLS + 1, 33},
    {2 * GEMM_M, 2 * GEMM_COLS, 64},
    {GEMM_SUMS_M + 7, 16, 48},
    {20, GEMM_AREA_N + GEMM_COLS, 100},    // two areas of C
    {20, GEMM_N + GEMM_COLS, GEMM_K},      // two blocks of columns
    {20, GEMM_N + GEMM_COLS, GEMM_K + 5},  // of two blocks of K, which have different widths
    {13, GEMM_COLS, 4 * GEMM_K + 3},       // with pairs, three blocks of K
    {7, 3, 2 * GEMM_K},
    {2 * GEMM_M, GEMM_AREA_N, GEMM_K},                // A packed in tiles that fill their buffer
    {GEMM_M + 5, GEMM_AREA_N, GEMM_K + 5},            // the same with two blocks of K and odd ends
    {2 * GEMM_M + 5, GEMM_COLS + 3, 2 * GEMM_K + 7},  // sums of several rows of blocks, and of blocks of K, in a buffer
};

// bits of `kind`
enum {
    A_TRANSPOSED = 1,
    B_TRANSPOSED = 2,
    WITH_BIAS = 4,
    WITH_RESIDUAL = 8,
    ACCUMULATES = 16,
    WITH_ACTIVATION = 32,
    WITH_SLOPE = 64,
    BF16_OPERANDS = 128,  // A and B
    BF16_C = 256,
    BF16_INPUTS = 512,
    NUM_KINDS = 1024
};

static bool kernel_exists(int kind) {
    bool takes_activation = kind & (WITH_ACTIVATION | WITH_SLOPE),
         c_is_floatX = DT_FLOATX == (kind & BF16_C ? DT_BF16 : DT_REAL);
    return !(takes_activation && !c_is_floatX) && !(kind & ACCUMULATES && kind & (WITH_BIAS | WITH_RESIDUAL)) &&
           (GEMM_HAS_BF16 || !(kind & BF16_INPUTS));
}

static Matmul gemm_of(Arrays *arrays, Sizes s, int kind) {
    bool rounded = kind & BF16_OPERANDS;
    DType type = rounded ? DT_BF16 : DT_REAL;
    const void *a_data = rounded ? (void *)arrays->a_bf16 : (void *)arrays->a;
    const void *b_data = rounded ? (void *)arrays->b_bf16 : (void *)arrays->b;
    Matmul p;
    memset(&p, 0, sizeof p);
    p.a = kind & A_TRANSPOSED ? matrix(a_data, type, 1, s.M) : matrix(a_data, type, s.K, 1);
    p.b = kind & B_TRANSPOSED ? matrix(b_data, type, 1, s.K) : matrix(b_data, type, s.N, 1);
    p.c = kind & BF16_C ? matrix(arrays->c_bf16, DT_BF16, s.N, 1) : matrix(arrays->c, DT_REAL, s.N, 1);
    p.bias = kind & WITH_BIAS ? arrays->bias : NULL;
    p.residual = kind & WITH_RESIDUAL ? arrays->residual : NULL;
    p.function = GELU;
    p.activated = kind & WITH_ACTIVATION ? arrays->activated : NULL;
    p.pre = kind & WITH_SLOPE ? arrays->pre : NULL;
    p.accumulate = kind & ACCUMULATES;
    p.bf16_inputs = kind & BF16_INPUTS;
    p.M = s.M;
    p.N = s.N;
    p.K = s.K;
    return p;
}

static void run(const Matmul *p, int threads) {
    omp_set_num_threads(threads);
#pragma omp parallel
    gemm(p);
}

static real input(const Matmul *p, Matrix m, size_t i, size_t j) {
    real x = matrix_element(m, i, j);
    return p->bf16_inputs ? bf16_to_float(bf16_input(x)) : x;
}

// one element of C at a time, with gemm's epilogue
static void run_plain(const Matmul *p) {
    for (size_t i = 0; i < p->M; i++) {
        for (size_t j = 0; j < p->N; j++) {
            real sum = 0;
            for (size_t k = 0; k < p->K; k++) { sum += input(p, p->a, i, k) * input(p, p->b, k, j); }
            gemm_store(p, &sum, i, j, 1);
            gemm_activation(p, i, j, 1);
        }
    }
}

// Both sums have K products of normal numbers, in another order: errors of sqrt(K) roundings of sums of size sqrt(K).
// A bf16 result is rounded once more, and may fall on either side of a tie.
static void assert_close(real got, real wanted, Sizes s, int kind, int threads, size_t i) {
    double room = 2e-7 * (double)(s.K + 8) + (kind & BF16_C ? fabs((double)wanted) / 128 : 0);
    double allowed = i < s.M * s.N ? (kind & WITH_SLOPE ? 2 : 1) * room + 1e-6 : 0;
    if (!(fabs((double)(got - wanted)) <= allowed)) {
        fail_msg("M %zu N %zu K %zu, kind %d, %d threads: element %zu is %g, expected %g", s.M, s.N, s.K, kind, threads,
                 i, (double)got, (double)wanted);
    }
}

static real result(const Arrays *arrays, int kind, size_t i) {
    return kind & BF16_C ? bf16_to_float(arrays->c_bf16[i]) : arrays->c[i];
}

// The arrays of this size with NaN after the last elements of A and B, which reach C if they are read, even as factors
// of 0.
static Arrays *arrays_spoiled(const Arrays *from, Sizes s) {
    enum { SPOILED = 4096 };
    size_t a_end = s.M * s.K, b_end = s.K * s.N, c_end = s.M * s.N, last = a_end > b_end ? a_end : b_end;
    size_t n = (last > c_end ? last : c_end) + SPOILED;
    Arrays *arrays = arrays_copy(from, n < LARGEST ? n : LARGEST);
    for (size_t i = 0; i < SPOILED; i++) {
        size_t a = a_end + i, b = b_end + i;
        if (a < arrays->n) { arrays->a[a] = NAN, arrays->a_bf16[a] = float_to_bf16(NAN); }
        if (b < arrays->n) { arrays->b[b] = NAN, arrays->b_bf16[b] = float_to_bf16(NAN); }
    }
    return arrays;
}

static void check_kind(const Arrays *from, Sizes s, int kind) {
    Arrays *start = arrays_spoiled(from, s), *one = arrays_copy(start, start->n);
    Arrays *many = arrays_copy(start, start->n), *wanted = arrays_copy(start, start->n);
    Matmul p = gemm_of(one, s, kind), plain = gemm_of(wanted, s, kind);
    run(&p, 1);
    run_plain(&plain);
    for (size_t i = 0; i < s.M * s.N + 100 && i < start->n; i++) {
        assert_close(result(one, kind, i), result(wanted, kind, i), s, kind, 1, i);
        assert_close(to_real(one->activated[i]), to_real(wanted->activated[i]), s, kind, 1, i);
    }
    for (int threads = 2; threads <= MAX_THREADS; threads++) {
        Matmul q = gemm_of(many, s, kind);
        memcpy(block_of(many), block_of(start), start->bytes);
        run(&q, threads);
        // cmocka's comparison takes most of the test's time
        assert_true(memcmp(block_of(many), block_of(one), one->bytes) == 0);
    }
    free(start), free(one), free(many), free(wanted);
}

TEST(test_every_kind) {
    Arrays *start = arrays_make();
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        for (int s = 0; kernel_exists(kind) && s < 5; s++) { check_kind(start, sizes[s], kind); }
    }
    free(start);
}

// every size with each single property, and a few together
TEST(test_every_size) {
    static const int kinds[] = {0,
                                A_TRANSPOSED,
                                B_TRANSPOSED,
                                B_TRANSPOSED | WITH_BIAS | WITH_RESIDUAL,
                                A_TRANSPOSED | ACCUMULATES,
                                A_TRANSPOSED | ACCUMULATES | BF16_C,
                                B_TRANSPOSED | WITH_BIAS | WITH_ACTIVATION,
                                WITH_SLOPE,
                                BF16_OPERANDS | BF16_C | WITH_BIAS,
                                BF16_INPUTS,
                                BF16_INPUTS | A_TRANSPOSED,
                                BF16_INPUTS | B_TRANSPOSED};
    Arrays *start = arrays_make();
    for (size_t s = 0; s < LEN(sizes); s++) {
        assert_true(sizes[s].M * sizes[s].N <= LARGEST && sizes[s].M * sizes[s].K <= LARGEST);
        assert_true(sizes[s].K * sizes[s].N <= LARGEST);
        for (size_t k = 0; k < LEN(kinds); k++) {
            if (kernel_exists(kinds[k])) { check_kind(start, sizes[s], kinds[k]); }
        }
    }
    free(start);
}

// A's last tile has fewer rows than the others. AddressSanitizer stops a read of the rows that it lacks.
TEST(test_nothing_beyond_a_is_read) {
    Sizes s = {GEMM_ROWS + 2, GEMM_AREA_N, 64};
    Arrays *arrays = arrays_make();
    real *a = (real *)xmalloc(s.M * s.K * sizeof(real));
    memcpy(a, arrays->a, s.M * s.K * sizeof(real));
    Matmul p = gemm_of(arrays, s, 0);
    run(&p, 1);
    real first = arrays->c[0];
    p.a.data = a;
    run(&p, 1);
    assert_true(arrays->c[0] == first);
    free(a), free(arrays);
}

// a residual that is C itself, as in x += ...
TEST(test_residual_may_be_c) {
    Sizes s = {75, GEMM_COLS + 3, 21};
    if (DT_FLOATX != DT_REAL) { skip(); }
    Arrays *got = arrays_make(), *wanted = arrays_make();
    Matmul p = gemm_of(got, s, WITH_BIAS), plain = gemm_of(wanted, s, WITH_BIAS);
    p.residual = (floatX *)(void *)got->c;
    plain.residual = (floatX *)(void *)wanted->c;
    run(&p, 3);
    run_plain(&plain);
    for (size_t i = 0; i < s.M * s.N; i++) { assert_close(got->c[i], wanted->c[i], s, 0, 3, i); }
    free(got), free(wanted);
}

// a NaN and an infinity of an input reach the result, also where inputs are rounded to bf16
TEST(test_nan_and_infinity) {
    const Sizes all[] = {{GEMM_ROWS, GEMM_COLS, 2 * VECTOR_LANES}, {75, GEMM_COLS + 3, 21}};
    for (int at = 0; at < 4; at++) {
        Sizes s = all[at % 2];
        int kind = at < 2 ? 0 : (int)BF16_INPUTS;
        for (int order = 0; kernel_exists(kind) && order < 4; order++) {
            Arrays *arrays = arrays_make();
            uint32_t low_bits = 0x7F800001;  // a NaN whose upper half is that of an infinity
            float nan;
            memcpy(&nan, &low_bits, sizeof nan);
            Matmul p = gemm_of(arrays, s, kind | order);
            ((real *)p.a.data)[2 * p.a.row + 3 * p.a.col] = (real)nan;
            ((real *)p.b.data)[4 * p.b.row + 5 * p.b.col] = INFINITY;
            run(&p, 1);
            for (size_t j = 0; j < s.N; j++) { assert_true(isnan(arrays->c[2 * s.N + j])); }
            for (size_t i = 0; i < s.M; i++) { assert_false(isfinite(arrays->c[i * s.N + 5])); }
            assert_true(isfinite(arrays->c[0]));
            free(arrays);
        }
    }
}

// With inputs rounded to bf16 a subnormal input is 0, in vectors and in the elements beside them. The largest subnormal
// would round up to a normal number.
TEST(test_subnormals_are_zero) {
    Sizes s = {75, GEMM_COLS + 3, 64};
    float subnormal = nextafterf(FLT_MIN, 0);
    for (int order = 0; kernel_exists(BF16_INPUTS) && order < 4; order++) {
        for (int swapped = 0; swapped < 2; swapped++) {
            Arrays *arrays = arrays_make();
            for (size_t i = 0; i < s.M * s.K; i++) { arrays->a[i] = (real)(swapped ? 1e30f : subnormal); }
            for (size_t i = 0; i < s.K * s.N; i++) { arrays->b[i] = (real)(swapped ? subnormal : 1e30f); }
            Matmul p = gemm_of(arrays, s, BF16_INPUTS | order);
            for (int plain = 0; plain < 2; plain++) {
                plain ? run_plain(&p) : run(&p, 2);
                for (size_t i = 0; i < s.M * s.N; i++) { assert_true(arrays->c[i] == 0); }
            }
            free(arrays);
        }
    }
}

// all parts together are C, whatever the number of threads
TEST(test_parts_cover_c) {
    Matmul few_rows = {.M = 256, .N = 3072, .K = 768}, many_rows = {.M = 768, .N = 512, .K = 128};
    assert_int_equal(gemm_part_columns(&few_rows, 2), 2);
    assert_int_equal(gemm_part_columns(&many_rows, 2), 1);
    for (size_t s = 0; s < LEN(sizes); s++) {
        for (int threads = 1; threads <= 64; threads++) {
            Matmul p = {.M = sizes[s].M * 37, .N = sizes[s].N * 11, .K = sizes[s].K};
            int cols = gemm_part_columns(&p, threads), rows = threads / cols;
            assert_int_equal(rows * cols, threads);
            assert_int_equal(gemm_part_start(p.M, GEMM_ROWS, rows, rows), p.M);
            assert_int_equal(gemm_part_start(p.N, GEMM_COLS, cols, cols), p.N);
            assert_int_equal(gemm_part_start(p.N, GEMM_COLS, 0, cols), 0);
        }
    }
}

int main(void) { return run_all_tests("GEMM"); }
