/*
--nan-check finds the operation that made the first number that is not finite. A step whose loss or gradient norm is not
finite changes nothing, so the trainer runs it again from the same weights and data, and checks the inputs and outputs
of each operation. Every rank makes all calls of the step, so collectives match. The first element that is not finite,
and the cause:
  in a weight                        was not finite before the step
  in an output of an operation       the operation: all its inputs were finite
  in an input of an operation        a collective, a copy or faulty hardware, since no operation wrote the element
  none; loss or norm is not finite   a sum over the ranks
  none; loss and norm are finite     faulty hardware or a race: the same step had another result
*/
#pragma once
#include "llmc/op_call.h"
#include "llmc/parallel/zero.h"
#include <limits.h>

enum { NAN_CHUNK = 1 << 18, NAN_TEXT = 400 };  // elements downloaded at once; bytes of a finding

typedef struct {
    OpHooks hooks;
    const Device *device;
    const Zero *zero;
    unsigned char *chunk;  // (NAN_CHUNK) elements
    long long calls;       // of operations in the step
    // the first finding. key: its order among the findings of all ranks, by the calls before it; outputs sort before
    // inputs, since a collective may have carried their numbers to another rank. LLONG_MAX: none
    long long key;
    char text[NAN_TEXT];
} NanCheck;

static inline bool is_float(DType dtype) { return dtype == DT_BF16 || dtype == DT_F32 || dtype == DT_F64; }

static inline double nan_value(const void *values, size_t i, DType dtype) {
    if (dtype == DT_BF16) { return (double)bf16_to_float(((const bf16 *)values)[i]); }
    return dtype == DT_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

// Returns the index of the first of n elements that is not finite, and *value; n if there is none. Waits for all work.
static inline size_t nan_find(NanCheck *c, const void *at, size_t n, DType dtype, double *value) {
    size_t size = dtype_size(dtype);
    for (size_t begin = 0; begin < n; begin += NAN_CHUNK) {
        size_t count = n - begin < NAN_CHUNK ? n - begin : (size_t)NAN_CHUNK;
        c->device->download(c->chunk, (const char *)at + begin * size, count * size);
        for (size_t i = 0; i < count; i++) {
            *value = nan_value(c->chunk, i, dtype);
            if (!isfinite(*value)) { return begin + i; }
        }
    }
    return n;
}

// "NaN", "inf" or "-inf"
static inline const char *nan_name(double value) { return isnan(value) ? "NaN" : value > 0 ? "inf" : "-inf"; }

// Checks the arrays that a call reads, or those that it writes, as `use` says. Keeps the first finding of the step.
static inline void nan_look(const OpCall *call, int use, Exec *ex) {
    NanCheck *c = (NanCheck *)ex->hooks->ctx;
    const Operand *weight = find_operand(call, "weight");
    char layer[32] = "", name[NAME_LENGTH] = "";
    double value = 0;
    for (const Operand *o = call->operand; o->name && c->key == LLONG_MAX; o++) {
        if (!o->at || !(o->use & use) || !is_float(o->dtype)) { continue; }
        // an embedding reads or writes some rows of wte or of its gradient: all are checked
        bool wte = strcmp(o->name, "wte") == 0 || strcmp(o->name, "dwte") == 0;
        size_t n = wte ? param_count(&c->zero->layout, WTE) : o->rows * o->cols;
        size_t index = nan_find(c, o->at, n, o->dtype, &value);
        if (index == n) { continue; }
        c->key = c->calls + (use == READ ? 1LL << 40 : 0);
        if (use == READ) { zero_param_name(name, sizeof name, c->zero, ex->layer, o->at); }
        if (*name) {
            snprintf(c->text, sizeof c->text, "%s was not finite before the step: %s in element %zu", name,
                     nan_name(value), index);
            continue;
        }
        if (ex->layer != NO_LAYER) { snprintf(layer, sizeof layer, " of layer %d", ex->layer); }
        if (weight) { zero_param_name(name, sizeof name, c->zero, ex->layer, weight->at); }
        snprintf(c->text, sizeof c->text, "%s%s%s%s%s %s the first non-finite number, %s in element %zu of %s, %s",
                 call->op, layer, *name ? " (" : "", name, *name ? ")" : "", use == READ ? "read" : "made",
                 nan_name(value), index, o->name, use == READ ? "which no operation wrote" : "from finite inputs");
    }
}

static inline void nan_before(const OpCall *call, Exec *ex) {
    ((NanCheck *)ex->hooks->ctx)->calls++;
    nan_look(call, READ, ex);
}
static inline void nan_after(const OpCall *call, Exec *ex) { nan_look(call, WRITTEN, ex); }

// ops: the operations themselves. *c must not move before nan_check_result. The step then runs with hooked_ops, and
// with &c->hooks as Exec.hooks.
static inline void nan_check_open(NanCheck *c, const Ops *ops, const Zero *zero) {
    const OpHooks hooks = {ops, nan_before, nan_after, c};
    memset(c, 0, sizeof *c);
    c->hooks = hooks;
    c->device = zero->device;
    c->zero = zero;
    c->key = LLONG_MAX;
    c->chunk = (unsigned char *)xmalloc(NAN_CHUNK * sizeof(double));
}

// Describes in text what made the loss or the norm not finite, and on which rank. `finite` tells whether the step that
// ran again has a finite loss and norm. All ranks call it and get the same text. Frees *c.
static inline void nan_check_result(NanCheck *c, bool finite, char *text, size_t size, Comm *world) {
    long long lowest = -comm_max(-c->key, world);
    int rank = world->size - (int)comm_max(c->key == lowest ? world->size - world->rank : 0, world);
    free(c->chunk);
    if (lowest < LLONG_MAX) {
        char where[32] = "";
        if (world->size > 1) { snprintf(where, sizeof where, ", on rank %d", rank); }
        comm_broadcast_host(c->text, sizeof c->text, rank, world);
        snprintf(text, size, "%s%s", c->text, where);
    } else if (finite) {
        snprintf(text, size, "the same step, run again, is finite: the hardware is faulty, or there is a race");
    } else {
        snprintf(text, size, "every operation made finite numbers: a sum over the ranks is beyond the range of fp32");
    }
}
