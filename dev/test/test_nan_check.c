/*
--nan-check of each operation: a NaN in the last element of each array that it reads, and of each that it writes, is
found, with the name of the operation, of the layer and of the array. The operations themselves are replaced: they write
one NaN, or nothing. Arrays and their sizes are those of cases.h.
*/
#include "llmc/run/nan_check.h"
#include "problems.h"
#include "testing.h"

static const Array *made;  // an operation writes a NaN at its end; NULL: it writes nothing
static void write_nan(void) {
    if (made) { array_set(made, made->n - 1, NAN); }
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

// Calls the operation in layer 5 through --nan-check. verb: "read" or "made", the last element of a; NULL: all numbers
// are finite. An output that is written over an input has a name of its own.
static void check_call(Problem *p, const char *verb, const Array *a) {
    const OpShape *s = &p->shape;
    const GPT2Config config = {s->maxT, s->V, s->Vp, 6, 1, s->C};
    const Ops replaced = replaced_ops();
    NanCheck check;
    Zero zero;
    Exec ex;
    memset(&zero, 0, sizeof zero);
    memset(&ex, 0, sizeof ex);
    zero.device = &cpu_device;
    zero.layout = param_layout(&config);
    zero.layout.slice[WTE].rows = (size_t)s->Vp;  // without padding
    zero.params = (floatX *)&zero;                // no weight is there
    nan_check_open(&check, &replaced, &zero);
    ex.hooks = &check.hooks;
    ex.layer = 5;
    problem_run(p, &hooked_ops, &ex);
    assert_int_equal(check.calls, 1);
    assert_int_equal(check.key < LLONG_MAX, verb != NULL);
    if (verb) {
        char begin[NAN_TEXT], end[NAN_TEXT];
        bool read = *verb == 'r';
        snprintf(begin, sizeof begin, "%s of layer 5 %s the first non-finite number, NaN in element %zu of %s",
                 p->op->name, verb, a->n - 1, a->role == INOUT && !read ? "" : a->name);
        snprintf(end, sizeof end, ", %s", read ? "which no operation wrote" : "from finite inputs");
        if (strncmp(check.text, begin, strlen(begin)) != 0 || !strstr(check.text, end)) {
            fail_msg("%s: found '%s', expected '%s%s'", problem_title(p), check.text, begin, end);
        }
    }
    free(check.chunk);
}

static void check_problem(const OpCase *op, const OpShape *shape, int variant) {
    Problem p = problem_make(op, shape, variant);
    for (int i = 0; i < p.num_arrays; i++) { memset(p.array[i].data, 0, array_bytes(&p.array[i])); }
    check_call(&p, NULL, NULL);
    for (int i = 0; i < p.num_arrays; i++) {
        const Array *a = &p.array[i];
        if (!is_float(a->dtype)) { continue; }
        if (a->role != OUTPUT) {
            array_set(a, a->n - 1, NAN);
            check_call(&p, "read", a);
            array_set(a, a->n - 1, 0);
        }
        if (a->role != INPUT) {
            made = a;
            check_call(&p, "made", a);
            made = NULL;
            array_set(a, a->n - 1, 0);
        }
    }
    problem_free(&p);
}

// A step's forward and backward have neither attention_decode nor an optimizer.
TEST(test_operations) {
    for (int i = 0; i < NUM_OP_CASES; i++) {
        const OpCase *op = &op_cases[i];
        const OpShape *shape;
        bool updates = strcmp(op->name, "adamw_update") == 0 || strncmp(op->name, "muon_", 5) == 0;
        if (updates || strcmp(op->name, "attention_decode") == 0) { continue; }
        for (int s = 0; (shape = op_shape(op, s)); s++) {
            for (int v = 0; v < op->num_variants && problem_memory(op, shape, op->variants[0]) < 20000; v++) {
                check_problem(op, shape, op->variants[v]);
            }
        }
    }
}

int main(void) { return run_all_tests("nan_check"); }
