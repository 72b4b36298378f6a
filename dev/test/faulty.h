/*
An attention_forward that goes wrong in layer 1: in calls [first, last], counted from 1, it writes `value` into element
3 of its output. Include it after train_gpt2.cu.
*/
#pragma once

typedef struct {
    const Ops *inner;
    const Device *device;
    int calls, first, last;
    real value;
} Fault;

static inline Fault *fault(void) {
    static Fault f;
    return &f;
}

static inline void faulty_attention_forward(floatX *out, real *lse, const floatX *qkv, int B, int T, int NH, int HS,
                                            Exec *ex) {
    Fault *f = fault();
    const floatX value = to_floatX(f->value);
    f->inner->attention_forward(out, lse, qkv, B, T, NH, HS, ex);
    if (ex->layer != 1) { return; }
    f->calls++;
    if (f->calls >= f->first && f->calls <= f->last) { f->device->upload(out + 3, &value, sizeof value); }
}

// The model gets the faulty operation, in `ops`.
static inline void insert_fault(GPT2 *m, Ops *ops, int first, int last, real value) {
    Fault f = {m->ops, m->device, 0, first, last, value};
    *fault() = f;
    *ops = *m->ops;
    ops->attention_forward = faulty_attention_forward;
    m->ops = ops;
}
