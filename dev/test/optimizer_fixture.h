/*
An optimizer state in host memory: made, compared and read element by element.
*/
#pragma once
#include "testing.h"
#include "llmc/adamw.h"
#include "llmc/common/check.h"
#include "llmc/memory/gpt2_plan.h"

// n elements, and `params` weights, all zero as in a new arena. Without remainders params are the only copy.
static inline OptimizerState state_make(bool remainders, DType moments, size_t params, size_t n) {
    OptimizerState o = {.moments = moments};
    for (int i = 0; i < NUM_STATE_ARRAYS; i++) {  // NOLINT(clang-analyzer-unix.Malloc): it loses a union's members
        const StateArray a = state_array(i, remainders, moments);
        size_t elements = state_elements(&a, i == STATE_PARAMS ? params : n);
        if (a.exists) { o.array[i] = xcalloc(elements, dtype_size(a.dtype)); }
    }
    return o;
}

static inline void state_free(const OptimizerState *o) {
    for (int i = 0; i < NUM_STATE_ARRAYS; i++) { free(o->array[i]); }
}

// the first array that has other bits in two states of n elements; NULL: none
static inline const char *state_difference(const OptimizerState *a, const OptimizerState *b, size_t n) {
    assert_int_equal(a->moments, b->moments);
    for (int i = 0; i < NUM_STATE_ARRAYS; i++) {
        const StateArray array = state_array(i, true, a->moments);
        size_t bytes = state_elements(&array, n) * dtype_size(array.dtype);
        if (!a->array[i] != !b->array[i]) { return array.name; }
        if (a->array[i] && memcmp(a->array[i], b->array[i], bytes) != 0) { return array.name; }
    }
    return NULL;
}

static inline void assert_same_state(const OptimizerState *a, const OptimizerState *b, size_t n) {
    const char *name = state_difference(a, b, n);
    if (name) { fail_msg("%s differs", name); }
}

static inline double moment_value(const OptimizerState *o, bool is_v, size_t i) {
    real value;
    reference_moment(&value, o, is_v, i, 1);
    return (double)value;
}
