/*
The CPU backend (cpu_*) against the reference implementations (reference_*). Compiled for fp32 with the vectors of this
CPU, of AVX2 and of SSE, and for bf16.
Each case of cases.h starts with outputs of NaN and runs with one thread and with two, which must give the same bits.
Then its outputs are compared with the reference's. Tests of single properties follow.
  test_reference [TESTS]   only tests with a matching name, for example *layernorm*
*/
#include "problems.h"
#include "testing.h"
#include <omp.h>

// ---- every case

// asserts that every output is the reference's, within `slack` times the row's tolerance
static void assert_expected(const Problem *p, double slack) {
    Problem wanted = problem_make(p->op, &p->shape, p->variant);
    for (int i = 0; i < p->num_arrays; i++) {
        memcpy(wanted.array[i].start, p->array[i].start, array_bytes(&p->array[i]));
    }
    problem_reset(&wanted);
    problem_run(&wanted, &reference_ops, NULL);
    for (int i = 0; i < p->num_arrays; i++) {
        const Array *a = &p->array[i];
        if (a->role == INPUT) { continue; }
        double *values = array_doubles(a, wanted.array[i].data);
        const char *difference = array_difference(p, a, values, slack);
        if (difference) { fail_msg("%s", difference); }
        free(values);
    }
    problem_free(&wanted);
}

static void run_on(Problem *p, int threads, Exec *ex) {
    problem_reset(p);
    omp_set_num_threads(threads);
    problem_run(p, &cpu_ops, ex);
}

static void check_case(const OpCase *op, const OpShape *shape, int variant, Exec *ex) {
    Problem one = problem_make(op, shape, variant), two = problem_make(op, shape, variant);
    run_on(&one, 1, ex);
    run_on(&two, 2, ex);
    for (int i = 0; i < one.num_arrays; i++) {
        const Array *a = &one.array[i], *b = &two.array[i];
        size_t bytes = a->n * dtype_size(a->dtype);
        if (a->role == INPUT && memcmp(a->data, a->start, bytes) != 0) {
            fail_msg("%s wrote its input %s", problem_title(&one), a->name);
        }
        if (memcmp(a->data, b->data, bytes) != 0) {
            fail_msg("%s: %s has other bits with two threads than with one", problem_title(&one), a->name);
        }
    }
    assert_expected(&one, 1);
    problem_free(&one);
    problem_free(&two);
}

static void test_operation(void **state) {
    const OpCase *op = (const OpCase *)*state;
    Exec ex = {0};
    const OpShape *s;
    for (int i = 0; (s = op_shape(op, i)); i++) {
        for (int variant = 0; variant < op->num_variants; variant++) { check_case(op, s, op->variants[variant], &ex); }
    }
}

// ---- single properties

// calls `check` with every shape of the operation `name`
static void for_each_shape(const char *name, void (*check)(const OpShape *s)) {
    const OpShape *s;
    for (int i = 0; (s = op_shape(op_case(name), i)); i++) { check(s); }
}

static void assert_same_bits(const Array *a, const Array *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->data, b->data, a->n * dtype_size(a->dtype));
}

static void check_from_statistics_bits(const OpShape *s) {
    Problem forward = problem_make(op_case("layernorm_forward"), s, 0);
    Problem again = problem_make(op_case("layernorm_from_statistics"), s, 0);
    problem_run(&forward, &cpu_ops, NULL);
    problem_run(&again, &cpu_ops, NULL);
    assert_same_bits(find_array(&again, "out"), find_array(&forward, "out"));
    problem_free(&forward);
    problem_free(&again);
}

TEST(test_layernorm_from_statistics) { for_each_shape("layernorm_forward", check_from_statistics_bits); }

static void check_loss_alone(const OpShape *s) {
    Problem both = problem_make(op_case("classifier"), s, 0);
    Problem loss = problem_make(op_case("classifier"), s, WITHOUT_GRADIENT);
    problem_run(&both, &cpu_ops, NULL);
    problem_run(&loss, &cpu_ops, NULL);
    const Array *logits = find_array(&loss, "logits"), *dlogits = find_array(&both, "logits");
    assert_memory_equal(logits->data, logits->start, logits->n * dtype_size(logits->dtype));
    assert_same_bits(find_array(&loss, "losses"), find_array(&both, "losses"));
    for (size_t i = 0; i < dlogits->n; i++) {
        if ((int)(i % (size_t)s->Vp) >= s->V) { assert_true(array_value(dlogits, i) == 0); }
    }
    problem_free(&both);
    problem_free(&loss);
}

TEST(test_classifier_loss_leaves_logits) { for_each_shape("classifier", check_loss_alone); }

// multiplies array `name` by a factor, also after a reset
static void scale_start(Problem *p, const char *name, double factor) {
    const Array *a = find_array(p, name);
    for (size_t i = 0; i < a->n; i++) { array_set(a, i, factor * array_value(a, i)); }
    memcpy(a->start, a->data, a->n * dtype_size(a->dtype));
}

// The exponentials of these inputs overflow unless the maximum is subtracted first. Scores of hundreds carry their
// rounding, an absolute error, into the exponential. In bf16 the rounding of the values themselves is larger.
enum { LARGE_SLACK = DT_FLOATX == DT_BF16 ? 1 : 16 };

static void check_large(const char *op, const OpShape *s, const char *input, double factor) {
    Problem p = problem_make(op_case(op), s, 0);
    scale_start(&p, input, factor);
    problem_run(&p, &cpu_ops, NULL);
    assert_expected(&p, LARGE_SLACK);
    problem_free(&p);
}

static void check_large_attention(const OpShape *s) {
    check_large("attention_forward", s, "qkv", 10);
    check_large("attention_decode", s, "qkv", 10);
}

static void check_large_logits(const OpShape *s) { check_large("classifier", s, "logits", 100); }
static void check_large_part(const OpShape *s) { check_large("classifier_statistics", s, "logits", 100); }

TEST(test_attention_of_large_scores) { for_each_shape("attention_forward", check_large_attention); }

TEST(test_classifier_of_large_logits) {
    for_each_shape("classifier", check_large_logits);
    for_each_shape("classifier_statistics", check_large_part);
}

// ---- operations over several ranks

// columns [first, first + width) of logits (N,Vp)
static floatX *columns_of(const floatX *logits, int first, int width, int N, int Vp) {
    floatX *part = (floatX *)xmalloc((size_t)N * (size_t)width * sizeof *part);
    for (int n = 0; n < N; n++) {
        memcpy(part + (size_t)n * width, logits + (size_t)n * Vp + first, (size_t)width * sizeof *part);
    }
    return part;
}

// the classifier's problem p on `ranks` ranks, with slices of Vp / ranks columns
static void classify_over_ranks(const Problem *p, real *losses, floatX *dlogits, int ranks) {
    int N = p->shape.B * p->shape.T, V = p->shape.V, Vp = p->shape.Vp, width = Vp / ranks;
    const floatX *logits = (const floatX *)find_array(p, "logits")->start;
    const int *targets = int_of(p, "targets");
    real *statistics = (real *)xmalloc((size_t)ranks * N * 3 * sizeof *statistics);
    for (int r = 0; r < ranks; r++) {
        floatX *part = columns_of(logits, r * width, width, N, Vp);
        cpu_ops.classifier_statistics(statistics + 3 * (size_t)r * N, part, targets, r * width, N, V, width, NULL);
        free(part);
    }
    for (int r = 0; r < ranks; r++) {
        floatX *part = columns_of(logits, r * width, width, N, Vp);
        cpu_ops.classifier_from_statistics(losses, part, statistics, targets, CASE_DLOSS, ranks, r * width, N, V, width,
                                           NULL);
        for (int n = 0; n < N; n++) {
            memcpy(dlogits + (size_t)n * Vp + r * width, part + (size_t)n * width, (size_t)width * sizeof *part);
        }
        free(part);
    }
    free(statistics);
}

// with a rank for every column, some ranks have padding alone
static void check_classifier_over_ranks(const OpShape *s) {
    const int counts[] = {1, 3, s->Vp};
    for (int i = 0; i < 6; i++) {
        int ranks = counts[i / 2];
        if (s->Vp % ranks || ranks > 100) { continue; }
        Problem p = problem_make(op_case("classifier"), s, 0);
        if (i % 2) { scale_start(&p, "logits", 100); }  // exponentials overflow
        classify_over_ranks(&p, real_of(&p, "losses"), x_of(&p, "logits"), ranks);
        assert_expected(&p, i % 2 ? LARGE_SLACK : 1);
        problem_free(&p);
    }
}

TEST(test_classifier_over_ranks) {
    const OpShape shape = {.B = 3, .T = 5, .V = 67, .Vp = 72};
    for_each_shape("classifier", check_classifier_over_ranks);
    check_classifier_over_ranks(&shape);
}

// Token rows from slices of the vocabulary, summed, then positions: the bits of embedding_forward.
static void check_embedding_over_ranks(const OpShape *s) {
    enum { RANKS = 3 };
    int N = s->B * s->T, C = s->C, rows = (s->Vp + RANKS - 1) / RANKS, half = N / 2;
    Problem p = problem_make(op_case("embedding_forward"), s, 0);
    floatX *wte = (floatX *)xcalloc((size_t)RANKS * rows * C, sizeof *wte);
    floatX *sum = (floatX *)xcalloc((size_t)N * C, sizeof *sum),
           *part = (floatX *)xmalloc((size_t)N * C * sizeof *part);
    memcpy(wte, x_of(&p, "wte"), (size_t)s->Vp * C * sizeof *wte);
    problem_run(&p, &cpu_ops, NULL);
    for (int r = 0; r < RANKS; r++) {
        cpu_ops.token_embedding_forward(part, int_of(&p, "tokens"), wte + (size_t)r * rows * C, r * rows, rows, N, C,
                                        NULL);
        for (int i = 0; i < N * C; i++) { sum[i] = to_floatX(to_real(sum[i]) + to_real(part[i])); }
    }
    cpu_ops.position_embedding_forward(sum, x_of(&p, "wpe"), 0, half, s->T, C, NULL);
    cpu_ops.position_embedding_forward(sum + (size_t)half * C, x_of(&p, "wpe"), half, N - half, s->T, C, NULL);
    assert_memory_equal(sum, x_of(&p, "out"), (size_t)N * C * sizeof *sum);
    free(wte);
    free(sum);
    free(part);
    problem_free(&p);
}

TEST(test_embedding_over_ranks_has_the_same_bits) { for_each_shape("embedding_forward", check_embedding_over_ranks); }

// ---- the table of cases

TEST(test_every_operation_has_a_row) {
    assert_int_equal(NUM_OP_CASES, sizeof(Ops) / sizeof cpu_ops.activation_forward);
}

// A row without outputs would pass with any operation.
TEST(test_every_row_has_outputs) {
    for (int c = 0; c < NUM_OP_CASES; c++) {
        assert_non_null(op_shape(&op_cases[c], 2));
        for (int v = 0; v < op_cases[c].num_variants; v++) {
            Problem p = problem_describe(&op_cases[c], op_shape(&op_cases[c], 0), op_cases[c].variants[v]);
            int outputs = 0;
            for (int i = 0; i < p.num_arrays; i++) { outputs += p.array[i].role != INPUT; }
            assert_true(outputs > 0);
        }
    }
}

// A row of OPS that has its arguments in another order than its parameters passes arrays under other names.
TEST(test_every_array_has_its_parameters_name) {
    for (int c = 0; c < NUM_OP_CASES; c++) {
        for (int v = 0; v < op_cases[c].num_variants; v++) {
            Problem p = problem_describe(&op_cases[c], op_shape(&op_cases[c], 0), op_cases[c].variants[v]);
            bool in_place = p.variant & (OVER_IN | OVER_RESIDUAL);
            for (const Operand *o = p.call.operand; o->name; o++) {
                if (o->at && !in_place) { assert_string_equal((const char *)o->at, o->name); }
            }
        }
    }
}

// An arithmetic mistake of a kernel shows as one wrong number, an unwritten number, or a NaN.
TEST(test_a_difference_is_noticed) {
    Problem p = problem_make(op_case("activation_forward"), op_shape(op_case("activation_forward"), 1), 0);
    const Array *out = find_array(&p, "out");
    double *wanted = (double *)xcalloc(out->n, sizeof(double));
    assert_non_null(array_difference(&p, out, wanted, 1e30));  // not written: NaN
    for (size_t i = 0; i < out->n; i++) { array_set(out, i, wanted[i] = 1); }
    assert_null(array_difference(&p, out, wanted, 0));
    array_set(out, 5, 1.5);
    assert_non_null(strstr(array_difference(&p, out, wanted, 1), "out is off by 0.0133"));
    assert_non_null(strstr(array_difference(&p, out, wanted, 1), "element 5 is 1.5, not 1"));
    assert_null(array_difference(&p, out, wanted, 1e6));
    array_set(out, out->n - 1, NAN);
    assert_non_null(array_difference(&p, out, wanted, 1e30));
    free(wanted);
    problem_free(&p);
}

// GPT-2 124M, B = 4, T = 512: floatX, real and bf16 elements, ints, and FLOPs, worked out by hand
TEST(test_bytes_and_flops) {
    const double N = 2048, C = 768, C4 = 3072, Vp = 50304, pairs = 4 * 12 * 512 * 513 / 2.0, n = 124475904;
    const double updated = 41491968 + 31118976 + 24895104;  // a third, a quarter, a fifth: whole blocks of moments
    const struct {
        const char *op;
        int variant;
        double x, real, bf16, ints, flops;
    } expected[] = {
        {"embedding_forward", 0, N * C + N * C + 512 * C, 0, 0, N, 0},
        {"embedding_backward", GRAD_SET, N * C, 2 * N * C + 1024 * C, 0, N, 0},
        {"embedding_backward", GRAD_ADD, N * C, 2 * N * C + 2 * 1024 * C, 0, N, 0},
        {"embedding_backward", GRADIENT_BF16, N * C, 0, 2 * N * C + 1024 * C, N, 0},
        {"token_embedding_forward", 0, 2 * N * C, 0, 0, N, 0},
        {"token_embedding_backward", 0, N * C, 2 * N * C, 0, N, 0},
        {"token_embedding_backward", GRADIENT_BF16, N * C, 0, 2 * N * C, N, 0},
        {"position_embedding_forward", 0, N * C + 512 * C, 0, 0, 0, 0},  // half of the rows
        {"position_embedding_backward", GRAD_SET, N / 2 * C, 1024 * C, 0, 0, 0},
        {"position_embedding_backward", GRAD_ADD, N / 2 * C, 2 * 1024 * C, 0, 0, 0},
        {"classifier_statistics", 0, N * 25216, 3 * N, 0, N, 0},
        {"classifier_from_statistics", 0, 2 * N * 25216, N + 6 * N, 0, N, 0},
        {"classifier_from_statistics", WITHOUT_GRADIENT, N * 25216, N + 6 * N, 0, N, 0},
        {"layernorm_forward", 0, 2 * N * C + 2 * C, 2 * N, 0, 0, 0},
        {"layernorm_from_statistics", 0, 2 * N * C + 2 * C, 2 * N, 0, 0, 0},
        {"layernorm_backward", GRAD_SET, 4 * N * C + C, 2 * N + 2 * C, 0, 0, 0},
        {"layernorm_backward", GRADIENT_BF16 | ADDED, 4 * N * C + C, 2 * N, 2 * 2 * C, 0, 0},
        {"matmul_forward", PRODUCT_ALONE, N * C + C * C4 + N * C4, 0, 0, 0, 2 * N * C * C4},
        {"matmul_forward", 0, N * C + C * C4 + 2 * N * C4 + C4, 0, 0, 0, 2 * N * C * C4},
        {"matmul_forward", WITH_ACTIVATION | WITHOUT_RESIDUAL, N * C + C * C4 + 2 * N * C4 + C4, 0, 0, 0,
         2 * N * C * C4},
        {"matmul_backward", 0, 2 * N * C + C * C4 + N * C4, C * C4 + C4, 0, 0, 4 * N * C * C4},
        {"matmul_backward", ADDED, 2 * N * C + C * C4 + N * C4, 2 * (C * C4 + C4), 0, 0, 4 * N * C * C4},
        {"matmul_backward", DINP_ALONE, N * C + C * C4 + N * C4, 0, 0, 0, 2 * N * C * C4},
        {"matmul_backward", DWEIGHT_ALONE, N * C + N * C4, C * C4, 0, 0, 2 * N * C * C4},
        {"matmul_backward", DBIAS_ALONE | ADDED, N * C4, 2 * C4, 0, 0, 0},
        {"matmul_backward", GRADIENT_BF16, 2 * N * C + C * C4 + N * C4, 0, C * C4 + C4, 0, 4 * N * C * C4},
        {"matmul_backward", GRADIENT_BF16 | DBIAS_ALONE | ADDED, N * C4, 0, 2 * C4, 0, 0},
        {"residual_forward", 0, 3 * N * C + C, 0, 0, 0, 0},
        {"residual_forward", WITHOUT_BIAS, 3 * N * C, 0, 0, 0, 0},
        {"residual_forward", OVER_IN, 3 * N * C + C, 0, 0, 0, 0},
        {"residual_forward", OVER_RESIDUAL, 3 * N * C + C, 0, 0, 0, 0},
        {"activation_forward", 0, 2 * N * C4, 0, 0, 0, 0},
        {"attention_forward", 0, 4 * N * C, 12 * N, 0, 0, 4 * pairs * 64},
        {"attention_backward", 0, 8 * N * C, 12 * N, 0, 0, 10 * pairs * 64},
        {"attention_decode", 0, 6 * 512 * C, 0, 0, 0, pairs * 64},
        {"attention_decode", 1, 6 * 512 * C + 2 * C * 512 * 511 / 2, 0, 0, 0, pairs * 64},
        {"classifier", 0, 2 * N * Vp, N, 0, N, 0},
        {"classifier", WITHOUT_GRADIENT, N * Vp, N, 0, N, 0},
        {"loss_sum", 0, 0, N + 2, 0, 0, 0},
        {"global_norm_squared", 0, 0, n + 1, 0, 0, 0},
        {"global_norm_squared", GRADIENT_BF16, 0, 1, n, 0, 0},
        {"gradient_accumulate", GRAD_SET, 0, 2 * n, 0, 0, 0},
        {"gradient_accumulate", GRADIENT_BF16 | ADDED, 0, 2 * n, n, 0, 0},
        {"adamw_update", 0, 2 * updated, 5 * updated + 1, 0, 0, 0},
        {"adamw_update", WITH_REMAINDER, 2 * updated, 5 * updated + 1, 2 * updated, 0, 0},
        {"adamw_update", WITH_REMAINDER | MOMENTS_BF16 | GRADIENT_BF16, 2 * updated, 1, 0, 14 * updated / 4, 0},
        {"adamw_update", WITH_REMAINDER | MOMENTS_8BIT | GRADIENT_BF16, 2 * updated, 1 + updated / 32, 0,
         10 * updated / 4, 0},
    };
    for (size_t i = 0; i < LEN(expected); i++) {
        OpShape s = op_shape_gpt2(op_case(expected[i].op), 4, 512);
        Problem p = problem_describe(op_case(expected[i].op), &s, expected[i].variant);
        double bytes = expected[i].x * sizeof(floatX) + expected[i].real * sizeof(real) +
                       expected[i].bf16 * sizeof(bf16) + expected[i].ints * sizeof(int);
        if (op_call_bytes(&p.call) != bytes || p.call.flops != expected[i].flops) {
            fail_msg("%s: %.0f bytes and %.0f FLOPs, expected %.0f and %.0f", problem_title(&p), op_call_bytes(&p.call),
                     p.call.flops, bytes, expected[i].flops);
        }
    }
}

// ---- gradients in bf16

// Asserts that a bf16 gradient is the fp32 gradient `set`, plus its old value under GRAD_ADD, rounded once.
static void assert_rounded_once(const Problem *p, const Array *a, const real *set) {
    for (size_t i = 0; i < a->n; i++) {
        real sum = set[i] + (a->role == INOUT ? bf16_to_float(((const bf16 *)a->start)[i]) : 0);
        double got = array_value(a, i);
        if (got != (double)bf16_to_float(float_to_bf16((float)sum))) {
            fail_msg("%s: %s[%zu] is %.9g, to be rounded from %.9g", problem_title(p), a->name, i, got, (double)sum);
        }
    }
}

// `variant` writes the gradients of `set_variant` in bf16 instead of fp32
static void check_rounded_once(const char *op, const OpShape *s, int set_variant, int variant) {
    Problem set = problem_make(op_case(op), s, set_variant), p = problem_make(op_case(op), s, variant);
    Exec ex = {0};
    const Array *dwte = find_array(&set, "dwte");
    if (dwte) { memset(dwte->data, 0, array_bytes(dwte)); }  // always +=
    problem_run(&set, &cpu_ops, &ex);
    problem_run(&p, &cpu_ops, &ex);
    for (int i = 0; i < p.num_arrays; i++) {
        const Array *a = &p.array[i], *wide = find_array(&set, a->name);
        if (a->role == INPUT || a->dtype != DT_BF16 || wide->dtype != DT_REAL) { continue; }
        assert_rounded_once(&p, a, (const real *)wide->data);
    }
    problem_free(&set);
    problem_free(&p);
}

static void check_embedding_rounded_once(const OpShape *s) {
    check_rounded_once("embedding_backward", s, GRAD_SET, GRADIENT_BF16);
    check_rounded_once("embedding_backward", s, GRAD_SET, GRADIENT_BF16 | ADDED);
}

static void check_positions_rounded_once(const OpShape *s) {
    check_rounded_once("position_embedding_backward", s, GRAD_SET, GRADIENT_BF16);
    check_rounded_once("position_embedding_backward", s, GRAD_SET, GRADIENT_BF16 | ADDED);
}

static void check_layernorm_rounded_once(const OpShape *s) {
    check_rounded_once("layernorm_backward", s, GRAD_SET, GRADIENT_BF16);
    check_rounded_once("layernorm_backward", s, GRAD_SET, GRADIENT_BF16 | ADDED);
}

static void check_matmul_rounded_once(const OpShape *s) {
    check_rounded_once("matmul_backward", s, 0, GRADIENT_BF16);
    check_rounded_once("matmul_backward", s, WITH_ACTIVATION, WITH_ACTIVATION | GRADIENT_BF16 | ADDED | OVER_IN);
    check_rounded_once("matmul_backward", s, WITH_ACTIVATION, WITH_ACTIVATION | GRADIENT_BF16);
    check_rounded_once("matmul_backward", s, 0, GRADIENT_BF16 | DBIAS_ALONE | ADDED);
}

TEST(test_bf16_gradients_of_embedding) {
    for_each_shape("embedding_backward", check_embedding_rounded_once);
    for_each_shape("position_embedding_backward", check_positions_rounded_once);
}

TEST(test_bf16_gradients_of_layernorm) { for_each_shape("layernorm_backward", check_layernorm_rounded_once); }
TEST(test_bf16_gradients_of_matmul) { for_each_shape("matmul_backward", check_matmul_rounded_once); }

TEST(test_gradient_at) {
    float numbers[4];
    const Gradient wide = {numbers, DT_F32}, narrow = {numbers, DT_BF16}, none = {NULL, DT_BF16};
    assert_ptr_equal(gradient_at(wide, 3).at, numbers + 3);
    assert_ptr_equal(gradient_at(narrow, 6).at, numbers + 3);
    assert_int_equal(gradient_at(narrow, 6).dtype, DT_BF16);
    assert_null(gradient_at(none, 3).at);
}

// ---- -f 2: matmuls of inputs rounded to bf16

// rounds the array's values before the run for the formula; the operation has run on the unrounded values
static void round_start(const Problem *p, const char *name) {
    const Array *a = find_array(p, name);
    if (!a) { return; }
    Array start = *a;
    start.data = a->start;
    for (size_t i = 0; i < a->n; i++) {
        array_set(&start, i, bf16_to_float(float_to_bf16((float)array_value(&start, i))));
    }
}

// one variant of a matmul
static void check_rounded(const char *op, const OpShape *s, int variant) {
    Problem p = problem_make(op_case(op), s, variant);
    Exec ex = {0};
    ex.bf16_inputs = GEMM_HAS_BF16;
    problem_run(&p, &cpu_ops, &ex);
    bool one_row = shape_rows(s) == 1 && find_array(&p, "out");  // a decode step's matmul does not round its inputs
    if (ex.bf16_inputs && !one_row) {
        round_start(&p, "in");
        round_start(&p, "weight");
        round_start(&p, "dout");
    }
    const Array *dbias = find_array(&p, "dbias");  // sums of unrounded dout, which other tests check
    if (dbias) { p.array[dbias - p.array].role = INPUT; }
    assert_expected(&p, 1);
    problem_free(&p);
}

static void check_rounded_shape(const OpShape *s) {
    check_rounded("matmul_forward", s, PRODUCT_ALONE);
    check_rounded("matmul_forward", s, 0);
    check_rounded("matmul_backward", s, DINP_ALONE);
    check_rounded("matmul_backward", s, DWEIGHT_ALONE);
    check_rounded("matmul_backward", s, WITH_ACTIVATION | OVER_IN);
    check_rounded("matmul_backward", s, GRADIENT_BF16);
    check_rounded("matmul_backward", s, WITH_ACTIVATION | GRADIENT_BF16 | ADDED | OVER_IN);  // in place too
}

TEST(test_matmuls_of_rounded_inputs) { for_each_shape("matmul_forward", check_rounded_shape); }

// ---- the norm, GELU and exp

// more blocks than one group
TEST(test_global_norm_of_many_blocks) {
    size_t n = (size_t)NORM_BLOCK * NORM_GROUP + 5 * NORM_BLOCK + 3;
    real *x = (real *)xmalloc(n * sizeof *x), norm_squared;
    double expected = 0;
    for (size_t i = 0; i < n; i++) {
        x[i] = (real)(1 + i % 3);
        expected += x[i] * x[i];
    }
    Gradient all = {x, DT_REAL};
    cpu_ops.global_norm_squared(&norm_squared, all, GRAD_SET, n, NULL);
    assert_true(fabs(norm_squared - expected) <= 1e-6 * expected);
    free(x);
}

TEST(test_gelu_far_from_zero) {
    static const double points[] = {0, 1e-6, 3, 5.5, 8, 13, 100, 1e4};
    for (size_t i = 0; i < LEN(points); i++) {
        for (int sign = -1; sign <= 1; sign += 2) {
            double x = sign * (double)(real)points[i];
            real s = gelu_sigmoid((real)x), value = activation_value(GELU, (real)x, s);
            assert_true(fabs(value - reference_activation(GELU, x)) <= 3e-7 * fmax(1, fabs(x)));
            assert_true(fabs(activation_slope(GELU, (real)x, s) - reference_activation_slope(GELU, x)) <= 1e-6);
        }
    }
}

// matmul_backward's slope: the formula, and the same bits in place. The slope is near 0 at some x,
// so fp32 has a tolerance of its own.
static void check_activation_backward(const OpShape *s) {
    Problem p = problem_make(op_case("activation_forward"), s, 0);
    Array *dinp = &p.array[find_array(&p, "out") - p.array];
    size_t n = dinp->n;
    floatX *dout = (floatX *)xmalloc(n * sizeof *dout);
    double *wanted = (double *)xcalloc(n, sizeof *wanted);
    for (size_t i = 0; i < n; i++) {
        dout[i] = to_floatX((real)rng_normal(1, 8, i));
        wanted[i] =
            (double)to_real(dout[i]) * reference_activation_slope(MLP_ACTIVATION, array_value(find_array(&p, "in"), i));
    }
    activation_backward_row(x_of(&p, "out"), dout, x_of(&p, "in"), MLP_ACTIVATION, n);
    const char *difference = array_difference(&p, dinp, wanted, DT_FLOATX == DT_BF16 ? 1 : 1e-5 / p.op->tolerance);
    if (difference) { fail_msg("%s", difference); }
    activation_backward_row(dout, dout, x_of(&p, "in"), MLP_ACTIVATION, n);
    assert_memory_equal(dout, dinp->data, n * sizeof *dout);
    free(dout);
    free(wanted);
    problem_free(&p);
}

TEST(test_activation_backward) { for_each_shape("activation_forward", check_activation_backward); }

static void assert_exp_close(float x) {
    double exact = exp((double)x), error = fabs((double)fast_exp(x) - exact) / exact;
    if (!(error < 1.5e-7)) { fail_msg("fast_exp(%.9g) is off by %.3g relative", (double)x, error); }
}

TEST(test_fast_exp) {
    const int points = 2000003;
    for (int i = 0; i <= points; i++) { assert_exp_close((float)(-87.3 + (88.3 + 87.3) * i / points)); }
    for (int e = 0; e > -150; e--) { assert_exp_close(ldexpf(1, e)), assert_exp_close(-ldexpf(1, e)); }
    static const float too_low[] = {-87.31f, -88, -104, -1000, -1e30f, -INFINITY};
    for (size_t i = 0; i < LEN(too_low); i++) { assert_true(fast_exp(too_low[i]) == 0); }
    static const float too_high[] = {88.31f, 89, 1000, 1e30f, INFINITY};
    for (size_t i = 0; i < LEN(too_high); i++) { assert_true(fast_exp(too_high[i]) == fast_exp(88.3f)); }
    assert_true(isnan(fast_exp(NAN)));
    assert_true(fast_exp(0) == 1);
}

int main(int argc, char **argv) {
    if (argc > 1) { cmocka_set_test_filter(argv[1]); }
    struct CMUnitTest operations[NUM_OP_CASES];
    for (int i = 0; i < NUM_OP_CASES; i++) {
        struct CMUnitTest test = {op_cases[i].name, test_operation, NULL, NULL, (void *)&op_cases[i]};
        operations[i] = test;
    }
    int failed = cmocka_run_group_tests_name("reference implementations", operations, NULL, NULL);
    return run_all_tests("properties") + failed;
}
