/*
Every operation as a case that can be run on any table of operations: which arrays it takes, what they hold, how it is
called. Tests of the twins and of kernels, and benchmarks, loop over op_cases and their shapes.
defines: OpShape, op_shapes, next_shape, Array, Problem, OpCase, op_cases, op_case, problem_make, problem_reset,
         problem_run, problem_free, problem_title, find_array, x_of, real_of, int_of, array_value, array_set,
         problem_tolerance, assert_array

  for each row c of op_cases, shape s = next_shape(c->room, ..), variant v < c->variants:
      Problem p = problem_make(c, s, v);      inputs are normal values, the same for the same name; outputs are NaN
      problem_run(&p, &cpu_ops, &ex);
      ... look at p.array[..]; problem_reset(&p) makes everything as it was; problem_free(&p)
*/
#pragma once
#include "testing.h"
#include "../../llmc/cpu_ops.h"
#include "../../llmc/rng.h"

// ---- shapes: a room's operations share them. The first is GPT-2's cut small, then odd ones, then tiny ones

typedef struct {
    const char *room;
    int B, T, maxT, C, NH, HS, OC, V, Vp;  // 0 where the room does not use it; attention's C is NH*HS
} OpShape;

// clang-format off
static const OpShape op_shapes[] = {
    // room         B    T  maxT     C  NH  HS    OC      V     Vp
    {"embedding",   2,  64,  128,  768,  0,  0,    0,   500,   512},
    {"embedding",   3,   7,   11,  130,  0,  0,    0,    13,    16},
    {"embedding",   2,   3,    3,    1,  0,  0,    0,     2,     2},
    {"embedding",   1,   1,    2,    5,  0,  0,    0,     1,     3},
    {"layernorm",   2,  32,    0,  768,  0,  0,    0,     0,     0},
    {"layernorm",   3,   7,    0,   67,  0,  0,    0,     0,     0},
    {"layernorm",   1,   1,    0,   33,  0,  0,    0,     0,     0},
    {"layernorm",   2,   3,    0,    1,  0,  0,    0,     0,     0},
    {"gelu",        2,  16,    0, 3072,  0,  0,    0,     0,     0},
    {"gelu",        3,   7,    0,   67,  0,  0,    0,     0,     0},
    {"gelu",        1,   1,    0,    1,  0,  0,    0,     0,     0},
    {"matmul",      2,  12,    0,  192,  0,  0,  768,     0,     0},
    {"matmul",      3,  33,    0,  259,  0,  0,  266,     0,     0},  // more than a block of gemm.h each way
    {"matmul",      3,   7,    0,   67,  0,  0,   37,     0,     0},
    {"matmul",      1,   1,    0,   19,  0,  0,   23,     0,     0},
    {"matmul",      2,   1,    0,    1,  0,  0,    3,     0,     0},
    {"matmul",      1,   3,    0,    5,  0,  0,    1,     0,     0},
    {"attention",   2, 128,    0,    0,  3, 64,    0,     0,     0},
    {"attention",   1,  67,    0,    0,  3, 80,    0,     0,     0},
    {"attention",   2,  37,    0,    0,  1, 33,    0,     0,     0},
    {"attention",   1,  33,    0,    0,  1, 16,    0,     0,     0},
    {"attention",   1,  19,    0,    0,  3,  5,    0,     0,     0},
    {"attention",   3,   5,    0,    0,  2,  1,    0,     0,     0},
    {"attention",   1,   1,    0,    0,  1,  1,    0,     0,     0},
    {"classifier",  1,   4,    0,    0,  0,  0,    0, 50257, 50304},
    {"classifier",  3,   5,    0,    0,  0,  0,    0,    67,    71},
    {"classifier",  2,   3,    0,    0,  0,  0,    0,     5,     8},
    {"classifier",  1,   1,    0,    0,  0,  0,    0,     1,     3},
    {"update",      2,  64,    0,  768,  0,  0,    0,     0,     0},  // flat arrays of B*T*C
    {"update",      3,   7,    0,   67,  0,  0,    0,     0,     0},
    {"update",      1,   1,    0,    1,  0,  0,    0,     0,     0},
};
// clang-format on
enum { NUM_OP_SHAPES = sizeof op_shapes / sizeof op_shapes[0] };

// the room's shape after `previous`, its first where that is NULL; NULL after the last
static inline const OpShape *next_shape(const char *room, const OpShape *previous) {
    const OpShape *end = op_shapes + NUM_OP_SHAPES;
    for (const OpShape *s = previous ? previous + 1 : op_shapes; s < end; s++) {
        if (strcmp(s->room, room) == 0) { return s; }
    }
    return NULL;
}

// ---- what an operation is given

// INPUT is only read; OUTPUT is written with = and so starts as NaN; INOUT starts with values: += or in place
typedef enum { INPUT, OUTPUT, INOUT } ArrayRole;

typedef struct {
    const char *name;
    DType dtype;
    ArrayRole role;
    size_t n;
    void *data;   // what the operation is given
    void *start;  // what data holds before a run
} Array;

enum { MAX_ARRAYS = 12, MAX_SPANS = 3 };

typedef struct OpCase OpCase;

typedef struct {
    const OpCase *op;
    const OpShape *shape;
    Array array[MAX_ARRAYS];
    int num_arrays;
    // the arguments that are not arrays
    GradMode mode;
    real scale;  // classifier's dloss, loss_sum's scale
    int chunk;   // positions attention_decode is fed at a time
    AdamW adamw;
    TensorSpan spans[MAX_SPANS];
} Problem;

struct OpCase {
    const char *name, *room;
    int variants;
    void (*declare)(Problem *p, int variant);
    void (*run)(Problem *p, const Ops *ops, Exec *ex);
};

static inline const Array *find_array(const Problem *p, const char *name) {
    for (int i = 0; i < p->num_arrays; i++) {
        if (strcmp(p->array[i].name, name) == 0) { return &p->array[i]; }
    }
    return NULL;
}

static inline void *data_of(const Problem *p, const char *name, DType dtype) {
    const Array *a = find_array(p, name);
    if (a && a->dtype != dtype) { fail_msg("%s is %s", name, dtype_name(a->dtype)); }
    return a ? a->data : NULL;
}

// the array of that name, NULL where the problem has none
static inline floatX *x_of(const Problem *p, const char *name) { return (floatX *)data_of(p, name, DT_FLOATX); }
static inline real *real_of(const Problem *p, const char *name) { return (real *)data_of(p, name, DT_REAL); }
static inline int *int_of(const Problem *p, const char *name) { return (int *)data_of(p, name, DT_I32); }

// ---- filling and reading arrays of any type

static inline double array_value(const Array *a, size_t i) {
    switch (a->dtype) {
    case DT_BF16: return bf16_to_float(((const bf16 *)a->data)[i]);
    case DT_F64: return ((const double *)a->data)[i];
    case DT_I32: return ((const int *)a->data)[i];
    default: return ((const float *)a->data)[i];
    }
}

static inline void array_set(const Array *a, size_t i, double value) {
    switch (a->dtype) {
    case DT_BF16: ((bf16 *)a->data)[i] = float_to_bf16((float)value); break;
    case DT_F64: ((double *)a->data)[i] = value; break;
    case DT_I32: ((int *)a->data)[i] = (int)value; break;
    default: ((float *)a->data)[i] = (float)value;
    }
}

static inline uint64_t name_key(const char *name) {
    uint64_t key = 0;
    for (; *name; name++) { key = rng_mix(key ^ (uint64_t)(unsigned char)*name); }
    return key;
}

// adds an array of normal values times `scale` (an OUTPUT: of NaN), which depend on the name only
static inline const Array *add_array(Problem *p, const char *name, ArrayRole role, DType dtype, size_t n,
                                     double scale) {
    assert_true(p->num_arrays < MAX_ARRAYS);
    Array *a = &p->array[p->num_arrays++];
    a->name = name, a->role = role, a->dtype = dtype, a->n = n;
    a->data = xmalloc(n * dtype_size(dtype));
    a->start = xmalloc(n * dtype_size(dtype));
    memset(a->data, 0xFF, n * dtype_size(dtype));  // a NaN in every floating point type
    for (size_t i = 0; role != OUTPUT && i < n; i++) { array_set(a, i, scale * rng_normal(1, name_key(name), i)); }
    return a;
}

// adds indices in [0, end)
static inline void add_indices(Problem *p, const char *name, size_t n, int end) {
    const Array *a = add_array(p, name, INPUT, DT_I32, n, 1);
    for (size_t i = 0; i < n; i++) { array_set(a, i, (double)(rng_bits(2, name_key(name), i) % (uint64_t)end)); }
}

// adds a parameter gradient: written or added to, as p->mode says
static inline void add_gradient(Problem *p, const char *name, size_t n) {
    add_array(p, name, p->mode == GRAD_ADD ? INOUT : OUTPUT, DT_REAL, n, 1);
}

static inline size_t shape_rows(const OpShape *s) { return (size_t)s->B * s->T; }
static inline size_t shape_elements(const OpShape *s) { return shape_rows(s) * s->C; }

// ---- the operations, each as two functions: declare its arrays, call it

static inline void declare_embedding_forward(Problem *p, int variant) {
    (void)variant;
    const OpShape *s = p->shape;
    add_indices(p, "tokens", shape_rows(s), s->V);
    add_array(p, "wte", INPUT, DT_FLOATX, (size_t)s->Vp * s->C, 1);
    add_array(p, "wpe", INPUT, DT_FLOATX, (size_t)s->maxT * s->C, 1);
    add_array(p, "out", OUTPUT, DT_FLOATX, shape_elements(s), 1);
}

static inline void run_embedding_forward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->embedding_forward(x_of(p, "out"), int_of(p, "tokens"), x_of(p, "wte"), x_of(p, "wpe"), s->B, s->T, s->C, ex);
}

// variants: GRAD_SET, GRAD_ADD
static inline void declare_embedding_backward(Problem *p, int variant) {
    const OpShape *s = p->shape;
    p->mode = variant ? GRAD_ADD : GRAD_SET;
    add_indices(p, "tokens", shape_rows(s), s->V);
    add_array(p, "dout", INPUT, DT_FLOATX, shape_elements(s), 1);
    add_array(p, "dwte", INOUT, DT_REAL, (size_t)s->Vp * s->C, 1);
    add_gradient(p, "dwpe", (size_t)s->maxT * s->C);
}

static inline void run_embedding_backward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->embedding_backward(real_of(p, "dwte"), real_of(p, "dwpe"), x_of(p, "dout"), int_of(p, "tokens"), p->mode, s->B,
                            s->T, s->maxT, s->C, ex);
}

static inline void declare_layernorm_forward(Problem *p, int variant) {
    (void)variant;
    const OpShape *s = p->shape;
    add_array(p, "in", INPUT, DT_FLOATX, shape_elements(s), 1);
    add_array(p, "weight", INPUT, DT_FLOATX, (size_t)s->C, 1);
    add_array(p, "bias", INPUT, DT_FLOATX, (size_t)s->C, 1);
    add_array(p, "mean", OUTPUT, DT_REAL, shape_rows(s), 1);
    add_array(p, "rstd", OUTPUT, DT_REAL, shape_rows(s), 1);
    add_array(p, "out", OUTPUT, DT_FLOATX, shape_elements(s), 1);
}

static inline void run_layernorm_forward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->layernorm_forward(x_of(p, "out"), real_of(p, "mean"), real_of(p, "rstd"), x_of(p, "in"), x_of(p, "weight"),
                           x_of(p, "bias"), s->B * s->T, s->C, ex);
}

// adds the forward's input, weight and statistics
static inline void add_layernorm_saved(Problem *p) {
    const OpShape *s = p->shape;
    floatX *in = (floatX *)add_array(p, "in", INPUT, DT_FLOATX, shape_elements(s), 1)->data;
    floatX *weight = (floatX *)add_array(p, "weight", INPUT, DT_FLOATX, (size_t)s->C, 1)->data;
    real *mean = (real *)add_array(p, "mean", INPUT, DT_REAL, shape_rows(s), 1)->data;
    real *rstd = (real *)add_array(p, "rstd", INPUT, DT_REAL, shape_rows(s), 1)->data;
    floatX *out = (floatX *)xmalloc(shape_elements(s) * sizeof *out);
    cpu_layernorm_forward(out, mean, rstd, in, weight, weight, s->B * s->T, s->C, NULL);  // any bias will do
    free(out);
}

static inline void declare_layernorm_normalise(Problem *p, int variant) {
    (void)variant;
    add_layernorm_saved(p);
    add_array(p, "bias", INPUT, DT_FLOATX, (size_t)p->shape->C, 1);
    add_array(p, "out", OUTPUT, DT_FLOATX, shape_elements(p->shape), 1);
}

static inline void run_layernorm_normalise(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->layernorm_normalise(x_of(p, "out"), x_of(p, "in"), real_of(p, "mean"), real_of(p, "rstd"), x_of(p, "weight"),
                             x_of(p, "bias"), s->B * s->T, s->C, ex);
}

// variants: GRAD_SET, GRAD_ADD
static inline void declare_layernorm_backward(Problem *p, int variant) {
    const OpShape *s = p->shape;
    p->mode = variant ? GRAD_ADD : GRAD_SET;
    add_layernorm_saved(p);
    add_array(p, "dout", INPUT, DT_FLOATX, shape_elements(s), 1);
    add_array(p, "dinp", INOUT, DT_FLOATX, shape_elements(s), 1);
    add_gradient(p, "dweight", (size_t)s->C);
    add_gradient(p, "dbias", (size_t)s->C);
}

static inline void run_layernorm_backward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->layernorm_backward(x_of(p, "dinp"), real_of(p, "dweight"), real_of(p, "dbias"), x_of(p, "dout"), x_of(p, "in"),
                            x_of(p, "weight"), real_of(p, "mean"), real_of(p, "rstd"), p->mode, s->B * s->T, s->C, ex);
}

// adds (N,C) in and (OC,C) weight, scaled so that the product's elements are about 1
static inline void add_matmul_inputs(Problem *p) {
    const OpShape *s = p->shape;
    add_array(p, "in", INPUT, DT_FLOATX, shape_elements(s), 1);
    add_array(p, "weight", INPUT, DT_FLOATX, (size_t)s->OC * s->C, 1 / sqrt((double)s->C));
}

// variants: bit 0 bias, bit 1 residual
static inline void declare_matmul_forward(Problem *p, int variant) {
    size_t outputs = shape_rows(p->shape) * p->shape->OC;
    add_matmul_inputs(p);
    if (variant & 1) { add_array(p, "bias", INPUT, DT_FLOATX, (size_t)p->shape->OC, 1); }
    if (variant & 2) { add_array(p, "residual", INPUT, DT_FLOATX, outputs, 1); }
    add_array(p, "out", OUTPUT, DT_FLOATX, outputs, 1);
}
enum { MATMUL_WITH_BOTH = 3 };

static inline void run_matmul_forward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->matmul_forward(x_of(p, "out"), x_of(p, "in"), x_of(p, "weight"), x_of(p, "bias"), x_of(p, "residual"),
                        s->B * s->T, s->C, s->OC, ex);
}

static inline void declare_matmul_gelu_forward(Problem *p, int variant) {
    (void)variant;
    size_t outputs = shape_rows(p->shape) * p->shape->OC;
    add_matmul_inputs(p);
    add_array(p, "bias", INPUT, DT_FLOATX, (size_t)p->shape->OC, 1);
    add_array(p, "pre", OUTPUT, DT_FLOATX, outputs, 1);
    add_array(p, "out", OUTPUT, DT_FLOATX, outputs, 1);
}

static inline void run_matmul_gelu_forward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->matmul_gelu_forward(x_of(p, "out"), x_of(p, "pre"), x_of(p, "in"), x_of(p, "weight"), x_of(p, "bias"),
                             s->B * s->T, s->C, s->OC, ex);
}

typedef struct {
    GradMode mode;
    bool gelu, dinp, dweight, dbias;  // which arrays there are; the others are NULL
} MatmulBackwardVariant;

static const MatmulBackwardVariant matmul_backward_variants[] = {
    {GRAD_SET, false, true, true, true},   {GRAD_ADD, false, true, true, true},   {GRAD_SET, true, true, true, true},
    {GRAD_SET, false, true, false, false}, {GRAD_SET, false, false, true, false}, {GRAD_ADD, false, false, false, true},
};
enum { MATMUL_SET, MATMUL_ADD, MATMUL_GELU, MATMUL_DINP, MATMUL_DWEIGHT, MATMUL_DBIAS, NUM_MATMUL_BACKWARD_VARIANTS };

static inline void declare_matmul_backward(Problem *p, int variant) {
    const OpShape *s = p->shape;
    const MatmulBackwardVariant *v = &matmul_backward_variants[variant];
    p->mode = v->mode;
    add_matmul_inputs(p);
    add_array(p, "dout", INPUT, DT_FLOATX, shape_rows(s) * s->OC, 1);
    if (v->gelu) { add_array(p, "gelu_pre", INPUT, DT_FLOATX, shape_elements(s), 1); }
    if (v->dinp) { add_array(p, "dinp", OUTPUT, DT_FLOATX, shape_elements(s), 1); }
    if (v->dweight) { add_gradient(p, "dweight", (size_t)s->OC * s->C); }
    if (v->dbias) { add_gradient(p, "dbias", (size_t)s->OC); }
}

static inline void run_matmul_backward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->matmul_backward(x_of(p, "dinp"), real_of(p, "dweight"), real_of(p, "dbias"), x_of(p, "dout"), x_of(p, "in"),
                         x_of(p, "weight"), x_of(p, "gelu_pre"), p->mode, s->B * s->T, s->C, s->OC, ex);
}

static inline void declare_gelu_forward(Problem *p, int variant) {
    (void)variant;
    add_array(p, "in", INPUT, DT_FLOATX, shape_elements(p->shape), 2);
    add_array(p, "out", OUTPUT, DT_FLOATX, shape_elements(p->shape), 1);
}

static inline void run_gelu_forward(Problem *p, const Ops *ops, Exec *ex) {
    ops->gelu_forward(x_of(p, "out"), x_of(p, "in"), shape_elements(p->shape), ex);
}

// variants: dinp is an array of its own; dinp is dout
static inline void declare_gelu_backward(Problem *p, int variant) {
    size_t n = shape_elements(p->shape);
    add_array(p, "in", INPUT, DT_FLOATX, n, 2);
    add_array(p, "dout", variant ? INOUT : INPUT, DT_FLOATX, n, 1);
    if (!variant) { add_array(p, "dinp", OUTPUT, DT_FLOATX, n, 1); }
}

static inline void run_gelu_backward(Problem *p, const Ops *ops, Exec *ex) {
    floatX *dinp = x_of(p, "dinp"), *dout = x_of(p, "dout");
    ops->gelu_backward(dinp ? dinp : dout, dout, x_of(p, "in"), shape_elements(p->shape), ex);
}

static inline size_t attention_elements(const OpShape *s) { return shape_rows(s) * s->NH * s->HS; }

static inline void declare_attention_forward(Problem *p, int variant) {
    (void)variant;
    const OpShape *s = p->shape;
    add_array(p, "qkv", INPUT, DT_FLOATX, 3 * attention_elements(s), 1);
    add_array(p, "out", OUTPUT, DT_FLOATX, attention_elements(s), 1);
    add_array(p, "lse", OUTPUT, DT_REAL, shape_rows(s) * s->NH, 1);
}

static inline void run_attention_forward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->attention_forward(x_of(p, "out"), real_of(p, "lse"), x_of(p, "qkv"), s->B, s->T, s->NH, s->HS, ex);
}

// one sequence, fed whole, a position at a time, or a few positions at a time
static inline void declare_attention_decode(Problem *p, int variant) {
    const OpShape *s = p->shape;
    size_t n = (size_t)s->T * s->NH * s->HS;
    p->chunk = variant == 0 ? s->T : variant == 1 ? 1 : 3;
    add_array(p, "qkv", INPUT, DT_FLOATX, 3 * n, 1);
    add_array(p, "keys", OUTPUT, DT_FLOATX, n, 1);
    add_array(p, "values", OUTPUT, DT_FLOATX, n, 1);
    add_array(p, "out", OUTPUT, DT_FLOATX, n, 1);
}

static inline void run_attention_decode(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    size_t C = (size_t)s->NH * s->HS;
    for (int pos = 0; pos < s->T; pos += p->chunk) {
        int n = s->T - pos < p->chunk ? s->T - pos : p->chunk;
        ops->attention_decode(x_of(p, "out") + pos * C, x_of(p, "keys"), x_of(p, "values"),
                              x_of(p, "qkv") + 3 * pos * C, pos, n, s->NH, s->HS, ex);
    }
}

static inline void declare_attention_backward(Problem *p, int variant) {
    (void)variant;
    const OpShape *s = p->shape;
    floatX *qkv = (floatX *)add_array(p, "qkv", INPUT, DT_FLOATX, 3 * attention_elements(s), 1)->data;
    floatX *out = (floatX *)add_array(p, "out", INPUT, DT_FLOATX, attention_elements(s), 1)->data;
    real *lse = (real *)add_array(p, "lse", INPUT, DT_REAL, shape_rows(s) * s->NH, 1)->data;
    cpu_attention_forward(out, lse, qkv, s->B, s->T, s->NH, s->HS, NULL);
    add_array(p, "dout", INPUT, DT_FLOATX, attention_elements(s), 1);
    add_array(p, "dqkv", OUTPUT, DT_FLOATX, 3 * attention_elements(s), 1);
}

static inline void run_attention_backward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->attention_backward(x_of(p, "dqkv"), x_of(p, "dout"), x_of(p, "qkv"), x_of(p, "out"), real_of(p, "lse"), s->B,
                            s->T, s->NH, s->HS, ex);
}

// variants: loss and gradient; loss alone. The padded columns hold what would spoil any sum that reads them
static inline void declare_classifier(Problem *p, int variant) {
    const OpShape *s = p->shape;
    size_t N = shape_rows(s);
    p->scale = variant ? 0 : (real)0.25;
    add_indices(p, "targets", N, s->V);
    const Array *logits = add_array(p, "logits", INOUT, DT_FLOATX, N * s->Vp, 3);
    for (size_t n = 0; n < N; n++) {
        for (int v = s->V; v < s->Vp; v++) { array_set(logits, n * s->Vp + v, 1000); }
    }
    add_array(p, "losses", OUTPUT, DT_REAL, N, 1);
}
enum { CLASSIFIER_GRADIENT, CLASSIFIER_LOSS };

static inline void run_classifier(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = p->shape;
    ops->classifier(real_of(p, "losses"), x_of(p, "logits"), int_of(p, "targets"), p->scale, s->B * s->T, s->V, s->Vp,
                    ex);
}

static inline void declare_loss_sum(Problem *p, int variant) {
    (void)variant;
    p->scale = (real)0.37;
    add_array(p, "losses", INPUT, DT_REAL, shape_elements(p->shape), 1);
    add_array(p, "total", INOUT, DT_REAL, 1, 1);
}

static inline void run_loss_sum(Problem *p, const Ops *ops, Exec *ex) {
    ops->loss_sum(real_of(p, "total"), real_of(p, "losses"), p->scale, (int)shape_elements(p->shape), ex);
}

static inline void declare_global_norm_squared(Problem *p, int variant) {
    (void)variant;
    add_array(p, "grads", INPUT, DT_REAL, shape_elements(p->shape), 1);
    add_array(p, "norm_squared", OUTPUT, DT_REAL, 1, 1);
}

static inline void run_global_norm_squared(Problem *p, const Ops *ops, Exec *ex) {
    ops->global_norm_squared(real_of(p, "norm_squared"), real_of(p, "grads"), shape_elements(p->shape), ex);
}

// variants: no clipping, clipped to half the norm, clip above the norm; then the same three with a master copy.
// The numbers are such that each term of the update is seen: a large learning rate, an epsilon beside sqrt(v)
static inline void declare_adamw_update(Problem *p, int variant) {
    size_t n = shape_elements(p->shape);
    real norm = (real)sqrt((double)n), clip[3] = {0, norm / 2, norm * 2};
    AdamW adamw = {(real)0.1, (real)0.9, (real)0.95, (real)0.01, (real)0.3, clip[variant % 3], 3};
    TensorSpan spans[MAX_SPANS] = {{0, n / 3, true}, {n / 3, n / 4, false}, {n - n / 5 - 1, n / 5 + 1, true}};
    p->adamw = adamw;
    memcpy(p->spans, spans, sizeof spans);  // with a gap of elements that nothing may touch
    const Array *params = add_array(p, "params", INOUT, DT_FLOATX, n, 1);
    if (variant >= 3) {
        const Array *master = add_array(p, "master", INOUT, DT_REAL, n, 1);
        for (size_t i = 0; i < n; i++) { array_set(params, i, array_value(master, i)); }
    }
    add_array(p, "m", INOUT, DT_REAL, n, 1);
    const Array *v = add_array(p, "v", INOUT, DT_REAL, n, 1);
    for (size_t i = 0; i < n; i++) { array_set(v, i, fabs(array_value(v, i))); }
    add_array(p, "grads", INPUT, DT_REAL, n, 1);
    array_set(add_array(p, "norm_squared", INPUT, DT_REAL, 1, 1), 0, (double)n);
}

static inline void run_adamw_update(Problem *p, const Ops *ops, Exec *ex) {
    ops->adamw_update(x_of(p, "params"), real_of(p, "master"), real_of(p, "m"), real_of(p, "v"), real_of(p, "grads"),
                      real_of(p, "norm_squared"), p->spans, MAX_SPANS, &p->adamw, ex);
}

// ---- the table

#define OP_CASE(room, name, variants)                                                                                  \
    { #name, room, variants, declare_##name, run_##name }
static const OpCase op_cases[] = {
    OP_CASE("embedding", embedding_forward, 1),
    OP_CASE("embedding", embedding_backward, 2),
    OP_CASE("layernorm", layernorm_forward, 1),
    OP_CASE("layernorm", layernorm_normalise, 1),
    OP_CASE("layernorm", layernorm_backward, 2),
    OP_CASE("matmul", matmul_forward, MATMUL_WITH_BOTH + 1),
    OP_CASE("matmul", matmul_gelu_forward, 1),
    OP_CASE("matmul", matmul_backward, NUM_MATMUL_BACKWARD_VARIANTS),
    OP_CASE("gelu", gelu_forward, 1),
    OP_CASE("gelu", gelu_backward, 2),
    OP_CASE("attention", attention_forward, 1),
    OP_CASE("attention", attention_decode, 3),
    OP_CASE("attention", attention_backward, 1),
    OP_CASE("classifier", classifier, 2),
    OP_CASE("update", loss_sum, 1),
    OP_CASE("update", global_norm_squared, 1),
    OP_CASE("update", adamw_update, 6),
};
#undef OP_CASE
enum { NUM_OP_CASES = sizeof op_cases / sizeof op_cases[0] };

static inline const OpCase *op_case(const char *name) {
    for (int i = 0; i < NUM_OP_CASES; i++) {
        if (strcmp(op_cases[i].name, name) == 0) { return &op_cases[i]; }
    }
    fail_msg("no case named %s", name);
    return NULL;
}

// ---- running one

static inline Problem problem_make(const OpCase *op, const OpShape *shape, int variant) {
    Problem p;
    memset(&p, 0, sizeof p);
    p.op = op, p.shape = shape;
    op->declare(&p, variant);
    for (int i = 0; i < p.num_arrays; i++) {
        memcpy(p.array[i].start, p.array[i].data, p.array[i].n * dtype_size(p.array[i].dtype));
    }
    return p;
}

static inline void problem_reset(Problem *p) {
    for (int i = 0; i < p->num_arrays; i++) {
        memcpy(p->array[i].data, p->array[i].start, p->array[i].n * dtype_size(p->array[i].dtype));
    }
}

static inline void problem_run(Problem *p, const Ops *ops, Exec *ex) { p->op->run(p, ops, ex); }

static inline void problem_free(Problem *p) {
    for (int i = 0; i < p->num_arrays; i++) {
        free(p->array[i].data);
        free(p->array[i].start);
    }
}

// "matmul_forward B=3 T=7 C=67 OC=37": where a failure is
static inline const char *problem_title(const Problem *p) {
    static char title[160];
    const OpShape *s = p->shape;
    const char *const letters[] = {"B", "T", "maxT", "C", "NH", "HS", "OC", "V", "Vp"};
    const int sizes[] = {s->B, s->T, s->maxT, s->C, s->NH, s->HS, s->OC, s->V, s->Vp};
    int length = snprintf(title, sizeof title, "%s", p->op->name);
    for (int i = 0; i < 9; i++) {
        if (sizes[i]) {
            length += snprintf(title + length, sizeof title - (size_t)length, " %s=%d", letters[i], sizes[i]);
        }
    }
    return title;
}

// ---- judging the result

// how far ||a - b|| / ||b|| may be: accumulation order in fp32, and one unit in the last place of bf16
static inline double dtype_tolerance(DType dtype) { return dtype == DT_F64 ? 1e-12 : dtype == DT_BF16 ? 0x1p-8 : 1e-5; }

// a layernorm of one channel has rstd = 316, and multiplies by that what should be exactly zero
static inline double problem_tolerance(const Problem *p, DType dtype) {
    bool one_channel = strcmp(p->op->room, "layernorm") == 0 && p->shape->C == 1;
    return (one_channel ? 10 : 1) * dtype_tolerance(dtype);
}

// asserts that the array holds what is wanted, within `tolerance`; any NaN fails
static inline void assert_array(const Problem *p, const Array *a, const double *wanted, double tolerance) {
    double *got = (double *)xmalloc(a->n * sizeof(double));
    for (size_t i = 0; i < a->n; i++) { got[i] = array_value(a, i); }
    double error = relative_error(got, wanted, a->n);
    if (!(error <= tolerance)) {
        size_t worst = 0;
        for (size_t i = 0; i < a->n && !isnan(got[worst]); i++) {
            if (!(fabs(got[i] - wanted[i]) <= fabs(got[worst] - wanted[worst]))) { worst = i; }
        }
        fail_msg("%s: %s is off by %.3g, at most %.3g is allowed; element %zu is %.9g, wanted %.9g", problem_title(p),
                 a->name, error, tolerance, worst, got[worst], wanted[worst]);
    }
    free(got);
}
