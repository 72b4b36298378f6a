/*
--nan-check of each operation: a NaN in the last element of each input and of each output is found, with the name of the
operation, of the layer and of the array. The operations themselves are replaced: they write one NaN, or nothing.
*/
#include "llmc/run/nan_check.h"
#include "testing.h"

enum { B = 2, T = 3, N = B * T, NH = 2, HS = 4, C = NH * HS, OC = 5, MAX_T = 4, ROWS = 3, VOCAB = 7, PADDED = 128 };
enum { RANKS = 2, COUNT = 11, MOST_ARRAYS = 8 };

// GRAD: read under GRAD_ADD
enum { IN = NAN_READ, OUT = NAN_WRITTEN, INOUT = NAN_READ | NAN_WRITTEN, GRAD = 4 };

static real *made;  // the element that an operation writes; NULL: none
static void write_nan(void) {
    if (made) { *made = (real)NAN; }
}

// All operations as write_nan, which reads no argument.
static Ops replaced_ops(void) {
    Ops ops;
    void (*replacement)(void) = write_nan;
    for (size_t at = 0; at < sizeof ops; at += sizeof replacement) {
        memcpy((char *)&ops + at, &replacement, sizeof replacement);
    }
    return ops;
}

static Gradient gradient(real *at) { return (Gradient){at, DT_REAL}; }

// ---- the calls: x holds the arrays in the order of `operations` below

#define CALL(op, ...)                                                                                                  \
    static void call_##op(const Ops *ops, real **x, GradMode mode, Exec *ex) {                                         \
        (void)mode;                                                                                                    \
        ops->op(__VA_ARGS__, ex);                                                                                      \
    }
CALL(embedding_forward, x[0], NULL, x[1], x[2], B, T, C)
CALL(token_embedding_forward, x[0], NULL, x[1], 1, ROWS, N, C)
CALL(position_embedding_forward, x[0], x[1], 1, N, T, C)
CALL(layernorm_forward, x[0], x[1], x[2], x[3], x[4], x[5], N, C)
CALL(layernorm_from_statistics, x[0], x[1], x[2], x[3], x[4], x[5], N, C)
CALL(matmul_forward, x[0], x[1], x[2], x[3], x[4], N, C, OC)
CALL(matmul_gelu_forward, x[0], x[1], x[2], x[3], x[4], N, C, OC)
CALL(residual_forward, x[0], x[1], x[2], x[3], N, C)
CALL(gelu_forward, x[0], x[1], COUNT)
CALL(attention_forward, x[0], x[1], x[2], B, T, NH, HS)
CALL(classifier, x[0], x[1], NULL, 1, N, VOCAB, PADDED)
CALL(classifier_statistics, x[0], x[1], NULL, 1, N, VOCAB, ROWS)
CALL(classifier_from_statistics, x[0], x[1], x[2], NULL, 1, RANKS, 1, N, VOCAB, ROWS)
CALL(loss_sum, x[0], x[1], 1, N)
CALL(matmul_backward, x[0], gradient(x[1]), gradient(x[2]), gradient(x[3]), x[4], x[5], x[6], x[7], mode, N, C, OC)
CALL(layernorm_backward, x[0], gradient(x[1]), gradient(x[2]), x[3], x[4], x[5], x[6], x[7], mode, N, C)
CALL(attention_backward, x[0], x[1], x[2], x[3], x[4], B, T, NH, HS)
CALL(embedding_backward, gradient(x[0]), gradient(x[1]), x[2], NULL, mode, B, T, MAX_T, C)
CALL(token_embedding_backward, gradient(x[0]), x[1], NULL, 1, ROWS, N, C)
CALL(position_embedding_backward, gradient(x[0]), x[1], mode, 1, N, T, MAX_T, C)
CALL(gradient_accumulate, x[0], gradient(x[1]), mode, COUNT)
CALL(global_norm_squared, x[0], gradient(x[1]), mode, COUNT)

typedef struct {
    const char *name;
    size_t n;  // elements
    int use;
} Array;

static const struct {
    const char *name;
    void (*call)(const Ops *ops, real **x, GradMode mode, Exec *ex);
    Array arrays[MOST_ARRAYS];
} operations[] = {
#define OP(op) #op, call_##op
    {OP(embedding_forward), {{"out", N *C, OUT}, {"wte", PADDED *C, IN}, {"wpe", T *C, IN}}},
    {OP(token_embedding_forward), {{"out", N *C, OUT}, {"wte", ROWS *C, IN}}},
    {OP(position_embedding_forward), {{"x", N *C, INOUT}, {"wpe", T *C, IN}}},
    {OP(layernorm_forward),
     {{"out", N *C, OUT}, {"mean", N, OUT}, {"rstd", N, OUT}, {"in", N *C, IN}, {"weight", C, IN}, {"bias", C, IN}}},
    {OP(layernorm_from_statistics),
     {{"out", N *C, OUT}, {"in", N *C, IN}, {"mean", N, IN}, {"rstd", N, IN}, {"weight", C, IN}, {"bias", C, IN}}},
    {OP(matmul_forward),
     {{"out", N *OC, OUT}, {"in", N *C, IN}, {"weight", OC *C, IN}, {"bias", OC, IN}, {"residual", N *OC, IN}}},
    {OP(matmul_gelu_forward),
     {{"out", N *OC, OUT}, {"pre", N *OC, OUT}, {"in", N *C, IN}, {"weight", OC *C, IN}, {"bias", OC, IN}}},
    {OP(residual_forward), {{"out", N *C, OUT}, {"in", N *C, IN}, {"bias", C, IN}, {"residual", N *C, IN}}},
    {OP(gelu_forward), {{"out", COUNT, OUT}, {"in", COUNT, IN}}},
    {OP(attention_forward), {{"out", N *C, OUT}, {"lse", N *NH, OUT}, {"qkv", 3 * N *C, IN}}},
    {OP(classifier), {{"losses", N, OUT}, {"logits", N *PADDED, INOUT}}},
    {OP(classifier_statistics), {{"statistics", 3 * N, OUT}, {"logits", N *ROWS, IN}}},
    {OP(classifier_from_statistics),
     {{"losses", N, OUT}, {"logits", N *ROWS, INOUT}, {"statistics", 3 * N *RANKS, IN}}},
    {OP(loss_sum), {{"total", 1, INOUT}, {"losses", N, IN}}},
    {OP(matmul_backward),
     {{"dinp", N *C, OUT},
      {"dweight", OC *C, GRAD},
      {"dbias", OC, GRAD},
      {"dgelu_bias", C, GRAD},
      {"dout", N *OC, IN},
      {"in", N *C, IN},
      {"weight", OC *C, IN},
      {"gelu_pre", N *C, IN}}},
    {OP(layernorm_backward),
     {{"dinp", N *C, INOUT},
      {"dweight", C, GRAD},
      {"dbias", C, GRAD},
      {"dout", N *C, IN},
      {"in", N *C, IN},
      {"weight", C, IN},
      {"mean", N, IN},
      {"rstd", N, IN}}},
    {OP(attention_backward),
     {{"dqkv", 3 * N *C, OUT}, {"dout", N *C, IN}, {"qkv", 3 * N *C, IN}, {"out", N *C, IN}, {"lse", N *NH, IN}}},
    {OP(embedding_backward), {{"dwte", PADDED *C, INOUT}, {"dwpe", MAX_T *C, GRAD}, {"dout", N *C, IN}}},
    {OP(token_embedding_backward), {{"dwte", ROWS *C, INOUT}, {"dout", N *C, IN}}},
    {OP(position_embedding_backward), {{"dwpe", MAX_T *C, GRAD}, {"dout", N *C, IN}}},
    {OP(gradient_accumulate), {{"sum", COUNT, GRAD}, {"x", COUNT, IN}}},
    {OP(global_norm_squared), {{"out", 1, GRAD}, {"x", COUNT, IN}}},
};
enum { NUM_OPERATIONS = sizeof operations / sizeof operations[0] };

// Calls an operation in layer 5 through --nan-check. expected: its finding; "": all numbers are finite.
static void check_call(int op, real **x, GradMode mode, const char *expected) {
    const GPT2Config config = {MAX_T, VOCAB, PADDED, 6, NH, C};
    const Ops replaced = replaced_ops();
    NanCheck check;
    Zero zero;
    Exec ex;
    memset(&zero, 0, sizeof zero);
    memset(&ex, 0, sizeof ex);
    zero.device = &cpu_device;
    zero.layout = param_layout(&config);
    nan_check_open(&check, &replaced, &zero);
    ex.nan_check = &check;
    ex.layer = 5;
    operations[op].call(&check.checking_ops, x, mode, &ex);
    assert_int_equal(check.calls, 1);
    assert_string_equal(check.found ? check.text : "", expected);
    free(check.chunk);
}

static void check_operation(int op, GradMode mode) {
    const Array *arrays = operations[op].arrays;
    real *x[MOST_ARRAYS];
    char expected[NAN_TEXT];
    int count = 0;
    for (; count < MOST_ARRAYS && arrays[count].name; count++) {
        x[count] = (real *)xmalloc(arrays[count].n * sizeof(real));
        for (size_t i = 0; i < arrays[count].n; i++) { x[count][i] = 1; }
    }
    check_call(op, x, mode, "");
    for (int a = 0; a < count; a++) {
        int use = arrays[a].use != GRAD ? arrays[a].use : mode == GRAD_ADD ? (int)INOUT : (int)OUT;
        real *last = x[a] + arrays[a].n - 1;
        if (use & NAN_READ) {
            *last = (real)NAN;
            snprintf(
                expected, sizeof expected,
                "%s of layer 5 read the first non-finite number, NaN in element %zu of %s, which no operation wrote",
                operations[op].name, arrays[a].n - 1, arrays[a].name);
            check_call(op, x, mode, expected);
            *last = 1;
        }
        if (use & NAN_WRITTEN) {
            made = last;
            snprintf(expected, sizeof expected,
                     "%s of layer 5 made the first non-finite number, NaN in element %zu of %s, from finite inputs",
                     operations[op].name, arrays[a].n - 1, arrays[a].name);
            check_call(op, x, mode, expected);
            made = NULL;
            *last = 1;
        }
    }
    for (int a = 0; a < count; a++) { free(x[a]); }
}

static void test_operations(void **state) {
    (void)state;
    for (int op = 0; op < NUM_OPERATIONS; op++) {
        check_operation(op, GRAD_SET);
        check_operation(op, GRAD_ADD);
    }
}

// attention_decode and adamw_update are not part of a step's forward and backward
static void test_every_operation_is_checked(void **state) {
    (void)state;
    const Ops replaced = replaced_ops(), checking = nan_checking_ops(&replaced);
    int checked = 0, all = (int)(sizeof replaced / sizeof(void (*)(void)));
    for (int i = 0; i < all; i++) {
        size_t at = (size_t)i * sizeof(void (*)(void));
        checked += memcmp((const char *)&replaced + at, (const char *)&checking + at, sizeof(void (*)(void))) != 0;
    }
    assert_int_equal(checked, NUM_OPERATIONS);
    assert_int_equal(checked, all - 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_every_operation_is_checked),
    };
    return cmocka_run_group_tests_name("nan_check", tests, NULL, NULL);
}
