/*
A call of an operation, described by its row of ops.h: arrays, bytes and FLOPs. Hooks run before and after every call of
hooked_ops, as a PyTorch module's forward hooks do. A run without hooks uses its backend's own table, so hooks cost
nothing there.
*/
#pragma once
#include "llmc/common/device.h"
#include "llmc/ops.h"

enum { READ = 1, WRITTEN = 2, SOME_ROWS = 4, MAX_OPERANDS = 10 };

// an array of a call: a matrix (rows,cols)
typedef struct {
    const char *name;  // the parameter of the operation
    const void *at;    // NULL: not in this call
    DType dtype;
    int use;  // READ, WRITTEN or both; SOME_ROWS: of a larger matrix that begins here
    size_t rows, cols;
} Operand;

typedef struct {
    const char *op;
    double flops;
    Operand operand[MAX_OPERANDS];  // the first one without a name ends the list
} OpCall;

typedef struct OpHooks {
    const Ops *ops;  // the operations; NULL: none runs
    void (*before)(const OpCall *call, Exec *ex);
    void (*after)(const OpCall *call, Exec *ex);
    void *ctx;  // of the two functions, which find it in Exec.hooks
} OpHooks;

static inline Operand make_operand(const char *name, const void *at, DType dtype, int use, size_t rows, size_t cols) {
    Operand o = {name, at, dtype, use, rows, cols};
    return o;
}

// floatX or real
static inline DType float_of_size(size_t bytes) { return bytes == 2 ? DT_BF16 : bytes == 4 ? DT_F32 : DT_F64; }

// an array of an OptimizerState, read and written for n elements
static inline Operand state_operand(const OptimizerState *o, int array, size_t n) {
    const StateArray a = state_array(array, true, o->moments);
    return make_operand(a.name, o->array[array], a.dtype, READ | WRITTEN, state_elements(&a, n), 1);
}

// clang-format off
#define IN(x, rows, cols) make_operand(#x, (x), float_of_size(sizeof *(x)), READ, rows, cols)
#define OUT(x, rows, cols) make_operand(#x, (x), float_of_size(sizeof *(x)), WRITTEN, rows, cols)
#define INOUT(x, rows, cols) make_operand(#x, (x), float_of_size(sizeof *(x)), READ | WRITTEN, rows, cols)
#define SUM(x, rows, cols) make_operand(#x, (x), DT_REAL, mode == GRAD_ADD ? READ | WRITTEN : WRITTEN, rows, cols)
#define GRAD(g, rows, cols) make_operand(#g, (g).at, (g).dtype, mode == GRAD_ADD ? READ | WRITTEN : WRITTEN, rows, cols)
#define GRAD_IN(g, rows, cols) make_operand(#g, (g).at, (g).dtype, READ, rows, cols)
#define ROWS(x, rows, cols) make_operand(#x, (x), DT_FLOATX, READ | SOME_ROWS, rows, cols)
#define OUT_ROWS(x, rows, cols) make_operand(#x, (x), DT_FLOATX, WRITTEN | SOME_ROWS, rows, cols)
#define GRAD_ROWS(g, rows, cols) make_operand(#g, (g).at, (g).dtype, READ | WRITTEN | SOME_ROWS, rows, cols)
#define IDS(x, n) make_operand(#x, (x), DT_I32, READ, n, 1)
#define OF_STATE(array, n) state_operand(state, STATE_##array, n)

#define HOOKED_OP(op, parameters, arguments, flops, ...)                                                               \
    static inline void hooked_##op parameters {                                                                        \
        const OpCall call = {#op, flops, {__VA_ARGS__}};                                                               \
        const OpHooks *hooks = ex->hooks;                                                                              \
        hooks->before(&call, ex);                                                                                      \
        if (!hooks->ops) { return; }                                                                                   \
        hooks->ops->op arguments;                                                                                      \
        hooks->after(&call, ex);                                                                                       \
    }
OPS(HOOKED_OP)
// clang-format on

#undef IN
#undef OUT
#undef INOUT
#undef SUM
#undef GRAD
#undef GRAD_IN
#undef ROWS
#undef GRAD_ROWS
#undef IDS
#undef OF_STATE

#define HOOKED(op, ...) .op = hooked_##op,
static const Ops hooked_ops = {OPS(HOOKED)};

// lower bound of the bytes that the operation reads and writes
static inline double op_call_bytes(const OpCall *call) {
    double bytes = 0;
    for (const Operand *o = call->operand; o->name; o++) {
        int times = !o->at ? 0 : (o->use & READ ? 1 : 0) + (o->use & WRITTEN ? 1 : 0);
        bytes += times * (double)dtype_size(o->dtype) * (double)o->rows * (double)o->cols;
    }
    return bytes;
}

// NULL if the call has none
static inline const Operand *find_operand(const OpCall *call, const char *name) {
    for (const Operand *o = call->operand; o->name; o++) {
        if (o->at && strcmp(o->name, name) == 0) { return o; }
    }
    return NULL;
}
