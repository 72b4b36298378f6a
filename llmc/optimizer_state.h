/*
The optimizer's state and the list of its arrays. The memory plan, --offload, the descriptions of calls and the tests
loop over the list: an array is a member of the struct and a row of the list.
*/
#pragma once
#include "llmc/common/floatx.h"
#include <stdbool.h>
#include <stddef.h>

enum { MOMENT_BLOCK = 128 };  // elements that share a scale of 8-bit moments

enum { STATE_PARAMS, STATE_REMAINDER, STATE_M, STATE_V, STATE_M_SCALES, STATE_V_SCALES, NUM_STATE_ARRAYS };

// Flat buffers with the same elements in the same order, aligned to 16 bytes. Elements that Muon updates have no v
// (layout.h). An array that is not planned is NULL.
typedef struct {
    DType moments;  // DT_REAL, DT_BF16, or DT_U8: codes (moments.h)
    union {
        void *array[NUM_STATE_ARRAYS];
        struct {
            floatX *params;
            int16_t *remainder;          // fp32 weights minus params (floatx.h); NULL if params are the only copy
            void *m, *v;                 // moments
            float *m_scales, *v_scales;  // of codes: element i has scale i / MOMENT_BLOCK
        };
    };
} OptimizerState;

typedef enum { OF_WEIGHTS, OF_M, OF_V } StatePart;

typedef struct {
    const char *name, *slot_name;  // in the memory plan: of the rank's array, and of its two slots with --offload
    StatePart part;
    DType dtype;
    size_t per;   // elements of the part that share one of the array
    bool exists;  // in a state of this kind
} StateArray;

// Row i of the list, for a state that has remainders or not, and moments of a type.
static inline StateArray state_array(int i, bool remainders, DType moments) {
    const StateArray arrays[NUM_STATE_ARRAYS] = {
        {"params", "slot_params", OF_WEIGHTS, DT_FLOATX, 1, true},
        {"remainder", "slot_remainder", OF_WEIGHTS, DT_I16, 1, remainders},
        {"m", "slot_m", OF_M, moments, 1, true},
        {"v", "slot_v", OF_V, moments, 1, true},
        {"m_scales", "slot_m_scales", OF_M, DT_F32, MOMENT_BLOCK, moments == DT_U8},
        {"v_scales", "slot_v_scales", OF_V, DT_F32, MOMENT_BLOCK, moments == DT_U8},
    };
    return arrays[i];
}

// elements of an array for n elements of its part
static inline size_t state_elements(const StateArray *a, size_t n) { return (n + a->per - 1) / a->per; }

// the state from element `offset` on; params and second moments may be at another offset
static inline OptimizerState state_at(const OptimizerState *o, floatX *params, size_t offset, size_t v) {
    OptimizerState at = *o;
    for (int i = 0; i < NUM_STATE_ARRAYS; i++) {
        const StateArray a = state_array(i, true, o->moments);
        size_t first = (a.part == OF_V ? v : offset) / a.per;
        if (at.array[i]) { at.array[i] = (char *)at.array[i] + first * dtype_size(a.dtype); }
    }
    at.params = params;
    return at;
}
