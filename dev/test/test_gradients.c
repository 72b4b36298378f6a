/*
Every backward against central differences of its forward, in double: the reference's, then the CPU backend's.
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
    double allowed = tolerance * fmax(fabs(expected), size) + rounding;
    if (!(fabs(slope - expected) <= allowed)) {
        fail_msg("%s, %s %zu: the gradient is %.12g, differences give %.12g, at most %.2g is allowed between them; the "
                 "backward is not that of this forward, or reads an array after it was overwritten, or the function "
                 "has a kink within %g of an input",
                 title, direction ? "direction" : "element", i, expected, slope, allowed, 2 * step);
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

// Moves inputs out of the reach of `step`: at 0 the slope of many an activation is not smooth.
static void keep_from_zero(const Array *a) {
    double *x = (double *)a->data;
    for (size_t i = 0; i < a->n; i++) { x[i] += x[i] < 0 ? -20 * step : 20 * step; }
}

// matmul_backward with an activation: dinp is the gradient of the activation's input, one layer before the matmul
TEST(test_matmul_of_activation) {
    Exec ex = {0};
    const OpShape *s;
    for (int i = 0; (s = op_shape(op_case("matmul_forward"), i)); i++) {
        Problem activation = problem_make(op_case("activation_forward"), s, 0);
        Problem forward = problem_make(op_case("matmul_forward"), s, 0);
        Problem backward = problem_make(op_case("matmul_backward"), s, WITH_ACTIVATION);
        const Array *pre = find_array(&activation, "in");
        keep_from_zero(pre);
        memcpy(x_of(&backward, "activation.pre"), pre->data, pre->n * sizeof(double));
        problem_run(&backward, ops, &ex);
        Objective f = {&activation, &forward, "out", x_of(&backward, "dout"), &ex};
        check_array(&backward, "dinp", &f, pre);
        problem_free(&activation);
        problem_free(&forward);
        problem_free(&backward);
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
    int failed = run_all("gradients of the reference");
    ops = &cpu_ops;
    return run_all("gradients on the CPU") + failed;
}
