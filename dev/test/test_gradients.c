/*
Every backward against central differences of its forward, in double: the textbook's, then the CPU backend's.
The objective is sum(out * dout), so a backward's output is the objective's gradient. Small arrays are checked element
by element, large ones at a few elements and along a few random directions that move every element.
  test_gradients [TESTS]   only tests with a matching name, for example *layernorm*
*/
#include "problems.h"
#include "testing.h"

enum { EVERY_ELEMENT = 256, SAMPLES = 2, DIRECTIONS = 2 };
static const double step = 3e-4;       // error: step^4 / 30 times a fifth derivative, and 1e-16 |f| / step of rounding
static const double tolerance = 1e-7;  // relative to the element or the array's root mean square, whichever is larger
static const double rounding = 1e-9;   // absolute, for a gradient of zero

static const Ops *ops;  // under test

// forward's `out` times dout; unless `before` is NULL, its `out` is forward's `in`
typedef struct {
    Problem *before, *forward;
    const char *out;
    const double *dout;
    Exec *ex;
} Objective;

static double objective(const Objective *f) {
    if (f->before) {
        problem_run(f->before, ops, f->ex);
        const Array *in = find_array(f->forward, "in");
        memcpy(in->data, x_of(f->before, "out"), in->n * sizeof(double));
    }
    problem_run(f->forward, ops, f->ex);
    const Array *out = find_array(f->forward, f->out);
    double sum = 0;
    for (size_t i = 0; i < out->n; i++) { sum += ((const double *)out->data)[i] * f->dout[i]; }
    return sum;
}

// the objective with x moved by `distance` along `direction`, or in element i if `direction` is NULL
static double objective_at(const Objective *f, double *x, size_t n, const double *direction, size_t i,
                           double distance) {
    size_t begin = direction ? 0 : i, end = direction ? n : i + 1;
    double *old = (double *)xmalloc((end - begin) * sizeof(double));
    memcpy(old, x + begin, (end - begin) * sizeof(double));
    for (size_t j = begin; j < end; j++) { x[j] += distance * (direction ? direction[j] : 1); }
    double value = objective(f);
    memcpy(x + begin, old, (end - begin) * sizeof(double));
    free(old);
    return value;
}

static void check_slope(const char *title, const Objective *f, double *x, size_t n, const double *direction, size_t i,
                        double expected, double size) {
    double near = objective_at(f, x, n, direction, i, step) - objective_at(f, x, n, direction, i, -step);
    double far = objective_at(f, x, n, direction, i, 2 * step) - objective_at(f, x, n, direction, i, -2 * step);
    double slope = (8 * near - far) / (12 * step);
    if (!(fabs(slope - expected) <= tolerance * fmax(fabs(expected), size) + rounding)) {
        fail_msg("%s, %s %zu: the gradient is %.12g, differences give %.12g", title,
                 direction ? "direction" : "element", i, expected, slope);
    }
}

// checks `gradient` (n) of the objective with respect to its input x (n)
static void check_gradient(const char *title, const Objective *f, double *x, const double *gradient, size_t n) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) { squares += gradient[i] * gradient[i]; }
    double rms = sqrt(squares / (double)n);
    size_t samples = n <= EVERY_ELEMENT ? n : SAMPLES;
    for (size_t s = 0; s < samples; s++) {
        size_t i = n <= EVERY_ELEMENT ? s : rng_bits(3, n, s) % n;
        check_slope(title, f, x, n, NULL, i, gradient[i], rms);
    }
    double *direction = (double *)xmalloc(n * sizeof(double));
    for (size_t d = 0; n > EVERY_ELEMENT && d < DIRECTIONS; d++) {
        double expected = 0;
        for (size_t i = 0; i < n; i++) {
            direction[i] = rng_normal(4, d, i);
            expected += direction[i] * gradient[i];
        }
        check_slope(title, f, x, n, direction, d, expected, sqrt(squares));
    }
    free(direction);
}

// checks array `gradient` of `backward`, less its start if the backward adds to it
static void check_array(const Problem *backward, const char *gradient, const Objective *f, const Array *x) {
    const Array *a = find_array(backward, gradient);
    assert_true(a->n >= x->n);  // wpe has the positions of the batch, dwpe all
    double *own = (double *)xmalloc(x->n * sizeof(double));
    for (size_t i = 0; i < x->n; i++) {
        own[i] = ((const double *)a->data)[i] - (a->role == INOUT ? ((const double *)a->start)[i] : 0);
    }
    char title[256];
    snprintf(title, sizeof title, "%s, %s", problem_title(backward), gradient);
    check_gradient(title, f, (double *)x->data, own, x->n);
    free(own);
}

enum { MAX_PAIRS = 3 };

// an operation and its backward; in each pair `gradient` of the backward is the gradient of x
typedef struct {
    const char *forward, *backward;
    int forward_variant, backward_variants;
    struct {
        const char *x, *gradient;
    } pairs[MAX_PAIRS];
} GradientCase;

static const GradientCase gradient_cases[] = {
    {"embedding_forward", "embedding_backward", 0, 2, {{"wte", "dwte"}, {"wpe", "dwpe"}}},
    {"token_embedding_forward", "token_embedding_backward", 0, 1, {{"wte", "dwte"}}},
    {"layernorm_forward", "layernorm_backward", 0, 2, {{"in", "dinp"}, {"weight", "dweight"}, {"bias", "dbias"}}},
    {"matmul_forward", "matmul_backward", 0, 2, {{"in", "dinp"}, {"weight", "dweight"}, {"bias", "dbias"}}},
    {"attention_forward", "attention_backward", 0, 1, {{"qkv", "dqkv"}}},
};

static void check_shape(const GradientCase *c, const OpShape *shape, Exec *ex) {
    Problem forward = problem_make(op_case(c->forward), shape, c->forward_variant);
    const OpCase *op = op_case(c->backward);
    for (int v = 0; v < c->backward_variants; v++) {
        Problem backward = problem_make(op, shape, op->variants[v]);
        problem_run(&backward, ops, ex);
        Objective f = {NULL, &forward, "out", x_of(&backward, "dout"), ex};
        for (int i = 0; i < MAX_PAIRS && c->pairs[i].x; i++) {
            check_array(&backward, c->pairs[i].gradient, &f, find_array(&forward, c->pairs[i].x));
        }
        problem_free(&backward);
    }
    problem_free(&forward);
}

static void test_backward(void **state) {
    const GradientCase *c = (const GradientCase *)*state;
    Exec ex = {0};
    const OpShape *s;
    for (int i = 0; (s = op_shape(op_case(c->forward), i)); i++) { check_shape(c, s, &ex); }
}

// matmul_backward with gelu_pre: dinp is the gradient of the GELU's input, one layer before the matmul
TEST(test_matmul_of_gelu) {
    Exec ex = {0};
    const OpShape *s;
    for (int i = 0; (s = op_shape(op_case("matmul_forward"), i)); i++) {
        Problem gelu = problem_make(op_case("gelu_forward"), s, 0);
        Problem forward = problem_make(op_case("matmul_forward"), s, 0);
        Problem backward = problem_make(op_case("matmul_backward"), s, 0);
        const Array *pre = find_array(&gelu, "in");
        memcpy(pre->data, x_of(&backward, "gelu_pre"), pre->n * sizeof(double));
        problem_run(&backward, ops, &ex);
        Objective f = {&gelu, &forward, "out", x_of(&backward, "dout"), &ex};
        check_array(&backward, "dinp", &f, pre);
        problem_free(&gelu);
        problem_free(&forward);
        problem_free(&backward);
    }
}

// gelu' as matmul_backward applies it on the CPU
TEST(test_gelu) {
    if (ops != &cpu_ops) { skip(); }
    Exec ex = {0};
    const OpShape *s;
    for (int i = 0; (s = op_shape(op_case("gelu_forward"), i)); i++) {
        Problem forward = problem_make(op_case("gelu_forward"), s, 0);
        size_t n = shape_elements(s);
        double *dout = (double *)xmalloc(n * sizeof(double)), *dinp = (double *)xmalloc(n * sizeof(double));
        for (size_t j = 0; j < n; j++) { dout[j] = rng_normal(1, 8, j); }
        gelu_backward_row(dinp, dout, x_of(&forward, "in"), n);
        Objective f = {NULL, &forward, "out", dout, &ex};
        check_gradient(problem_title(&forward), &f, x_of(&forward, "in"), dinp, n);
        free(dout);
        free(dinp);
        problem_free(&forward);
    }
}

// the classifier's logits become their gradient in place; the gradient of padded columns is 0
TEST(test_classifier) {
    Exec ex = {0};
    const OpShape *s;
    for (int i = 0; (s = op_shape(op_case("classifier"), i)); i++) {
        Problem loss = problem_make(op_case("classifier"), s, WITHOUT_GRADIENT);
        Problem gradient = problem_make(op_case("classifier"), s, 0);
        problem_run(&gradient, ops, &ex);
        size_t N = shape_rows(s);
        double *dlosses = (double *)xmalloc(N * sizeof(double));
        for (size_t n = 0; n < N; n++) { dlosses[n] = CASE_DLOSS; }
        Objective f = {NULL, &loss, "losses", dlosses, &ex};
        const Array *logits = find_array(&loss, "logits");
        check_gradient(problem_title(&gradient), &f, (double *)logits->data, x_of(&gradient, "logits"), logits->n);
        free(dlosses);
        problem_free(&loss);
        problem_free(&gradient);
    }
}

static int run_all(const char *title) {
    struct CMUnitTest backwards[LEN(gradient_cases)];
    for (size_t i = 0; i < LEN(gradient_cases); i++) {
        struct CMUnitTest test = {gradient_cases[i].backward, test_backward, NULL, NULL, (void *)&gradient_cases[i]};
        backwards[i] = test;
    }
    return cmocka_run_group_tests_name(title, backwards, NULL, NULL) + run_all_tests(title);
}

int main(int argc, char **argv) {
    if (argc > 1) { cmocka_set_test_filter(argv[1]); }
    ops = &reference_ops;
    int failed = run_all("gradients of the textbook");
    ops = &cpu_ops;
    return run_all("gradients on the CPU") + failed;
}
