/*
Every operation of llmc/ops.h as a row that runs on any table of operations: shapes, arrays and their values, tolerance,
bytes moved, FLOPs, and the call. The self-check, tests and benchmarks (dev/test/problems.h) loop over the rows.
The call says everything about its arrays: problem_describe makes it with names in the place of arrays, and hooks that
note the operands of ops.h instead of an operation.
defines: OpShape, Array, Problem, OpCase, op_cases, op_case, op_shape, problem_describe, problem_make, problem_memory,
         problem_run, problem_free, find_array, x_of, real_of, int_of, gradient_of, array_value, array_set,
         array_bytes, array_doubles, kernel_slack, array_share

  for each row op of op_cases, shape s = op_shape(op, i), variant v < op->variants:
      Problem p = problem_make(op, s, v);
      problem_run(&p, ops, &ex);
      op_call_bytes(&p.call), p.call.flops; array_share(..) of every output
      problem_free(&p);

To add an operation: shapes, unless a neighbour's fit; a CALL; a fill_ function if normal values will not do; and a row
in the table at the end.
*/
#pragma once
#include "llmc/classifier.h"
#include "llmc/common/range.h"
#include "llmc/common/rng.h"
#include "llmc/cpu_ops.h"
#include "llmc/moments.h"
#include "llmc/muon.h"
#include "llmc/op_call.h"
#include "llmc/ops.h"
#include "llmc/parallel/comm.h"

// ---- shapes

// sizes that an operation does not use are 0; attention's C is NH*HS
typedef struct {
    int B, T, maxT, C, NH, HS, OC, V, Vp;
    int ranks, rank;  // of a tensor-parallel group: a rank has Vp ids of the vocabulary, or a chunk of the B*T rows
    size_t n;         // the elements of a flat array
    double slack;     // factor on the row's tolerance, if not 1
} OpShape;

// GPT-2 124M's shape, without B and T; then the tests' shapes: GPT-2's with few rows, odd ones, tiny ones
static const OpShape embedding_shapes[] = {
    {.maxT = 1024, .C = 768, .V = 50257, .Vp = 50304},
    {.B = 2, .T = 64, .maxT = 128, .C = 768, .V = 500, .Vp = 512},
    {.B = 3, .T = 7, .maxT = 11, .C = 130, .V = 13, .Vp = 16},  // more tokens than ids, so some come twice
    {.B = 2, .T = 3, .maxT = 3, .C = 1, .V = 2, .Vp = 2},
    {.B = 1, .T = 1, .maxT = 2, .C = 5, .V = 1, .Vp = 3},
    // more rows than one block sorts on a GPU; tokens with many rows, so long sums; tokens of two digits
    {.B = 5, .T = 460, .maxT = 460, .C = 8, .V = 3, .Vp = 4, .slack = 2},
    {.B = 5, .T = 460, .maxT = 460, .C = 8, .V = 300, .Vp = 304},
};

// slices of the vocabulary: rank r has ids [r*Vp, r*Vp + Vp)
static const OpShape part_shapes[] = {
    {.maxT = 1024, .C = 768, .V = 50257, .Vp = 25216, .ranks = 2},
    {.B = 2, .T = 64, .maxT = 128, .C = 768, .V = 500, .Vp = 256, .ranks = 2, .rank = 1},
    {.B = 3, .T = 7, .maxT = 11, .C = 130, .V = 13, .Vp = 4, .ranks = 4, .rank = 2},  // from within a sequence
    {.B = 2, .T = 3, .maxT = 3, .C = 1, .V = 2, .Vp = 1, .ranks = 2, .rank = 1},
    {.B = 1, .T = 5, .maxT = 6, .C = 5, .V = 1, .Vp = 3, .ranks = 3, .rank = 2},  // one row, no token
    // as above: long runs next to another rank's ids, and ids below and above this rank's
    {.B = 5, .T = 460, .maxT = 460, .C = 8, .V = 3, .Vp = 2, .ranks = 2, .slack = 2},
    {.B = 5, .T = 460, .maxT = 460, .C = 8, .V = 300, .Vp = 100, .ranks = 3, .rank = 1},
};

static const OpShape layernorm_shapes[] = {
    {.C = 768},
    {.B = 2, .T = 32, .C = 768},
    {.B = 3, .T = 7, .C = 67},
    {.B = 1, .T = 3, .C = 3208},  // wider than a warp's row on a GPU, in packs
    {.B = 2, .T = 2, .C = 401},   // and in single elements
    {.B = 1, .T = 1, .C = 33},
    {.B = 7, .T = 331, .C = 264},             // more rows than all blocks of a GPU's backward take at once
    {.B = 1, .T = 250, .C = 65},              // the same for single elements
    {.B = 1, .T = 2, .C = 1600},              // GPT-2 1558M's; with 2560 and 768, every number of packs a thread
    {.B = 1, .T = 2, .C = 2560, .slack = 2},  // a mean of 0.003
    {.B = 1, .T = 5, .C = 9000, .slack = 2},  // sums of 9000, one by one if the compiler does not vectorise
    {.B = 2, .T = 3, .C = 1, .slack = 20},    // rstd is 316 and multiplies a rounding error
};

static const OpShape gelu_shapes[] = {
    {.C = 3072},
    {.B = 2, .T = 16, .C = 3072},
    {.B = 3, .T = 7, .C = 67},
    {.B = 1, .T = 1, .C = 1},
};

// the MLP's fc; a benchmark of the other matmuls sets C and OC itself
static const OpShape matmul_shapes[] = {
    {.C = 768, .OC = 3072},
    {.B = 2, .T = 12, .C = 96, .OC = 384},
    {.B = 3, .T = 33, .C = 391, .OC = 266},  // more than a block of gemm.h in C and OC
    {.B = 3, .T = 7, .C = 67, .OC = 37},
    {.B = 1, .T = 1, .C = 19, .OC = 23},
    {.B = 2, .T = 1, .C = 1, .OC = 3},
    {.B = 1, .T = 3, .C = 5, .OC = 1},
};

static const OpShape attention_shapes[] = {
    {.NH = 12, .HS = 64},
    {.B = 2, .T = 128, .NH = 3, .HS = 64},
    {.B = 1, .T = 300, .NH = 1, .HS = 64},
    {.B = 1, .T = 130, .NH = 1, .HS = 128},
    {.B = 1, .T = 67, .NH = 3, .HS = 80},
    {.B = 1, .T = 130, .NH = 1, .HS = 32},
    {.B = 1, .T = 37, .NH = 2, .HS = 160},
    {.B = 2, .T = 37, .NH = 1, .HS = 33},
    {.B = 1, .T = 33, .NH = 1, .HS = 16},
    {.B = 1, .T = 19, .NH = 3, .HS = 5},
    {.B = 3, .T = 5, .NH = 2, .HS = 1},
    {.B = 1, .T = 1, .NH = 1, .HS = 1},
};

static const OpShape classifier_shapes[] = {
    {.V = 50257, .Vp = 50304},                  // GPT-2's
    {.B = 1, .T = 4, .V = 50257, .Vp = 50304},  // with few rows
    {.B = 3, .T = 5, .V = 67, .Vp = 71},        // rows are not whole packs
    {.B = 2, .T = 3, .V = 5, .Vp = 8},          // a row is one pack of bf16
    {.B = 1, .T = 1, .V = 1, .Vp = 3},
};

static const OpShape part_classifier_shapes[] = {
    {.V = 50257, .Vp = 25216, .ranks = 2},
    {.B = 1, .T = 4, .V = 50257, .Vp = 25216, .ranks = 2, .rank = 1},
    {.B = 3, .T = 5, .V = 67, .Vp = 18, .ranks = 4, .rank = 3},
    {.B = 3, .T = 5, .V = 67, .Vp = 24, .ranks = 3},
    {.B = 2, .T = 3, .V = 5, .Vp = 8, .ranks = 2, .rank = 1},  // padding alone
    {.B = 1, .T = 1, .V = 1, .Vp = 3, .ranks = 1},
};

static const OpShape loss_shapes[] = {
    {.B = 0},
    {.B = 64, .T = 1536},
    {.B = 3, .T = 469},
    {.B = 1, .T = 1},
};

static const OpShape norm_shapes[] = {
    {.n = 124475904},  // the parameters
    {.n = 98304},      // whole packs
    {.n = 1407},       // and single elements
    {.n = 1},          // one element alone
    {.n = 5000000},    // every block of a GPU has two rounds
};

static const OpShape update_shapes[] = {
    {.n = 124475904},
    {.n = 98304},
    {.n = 1407},
    {.n = 1, .slack = 2},  // stochastic rounding is off by up to a unit, not half
};

static inline size_t shape_rows(const OpShape *s) { return (size_t)s->B * s->T; }
static inline size_t shape_elements(const OpShape *s) { return shape_rows(s) * s->C; }

// of a rank: first id, number of ids below V; first row, number of rows
static inline int part_first_id(const OpShape *s) { return s->rank * s->Vp; }
static inline int part_ids(const OpShape *s) { return classifier_columns(part_first_id(s), s->V, s->Vp); }
static inline size_t part_first_row(const OpShape *s) { return s->rank * chunk_size(shape_rows(s), s->ranks); }
static inline size_t part_rows(const OpShape *s) {
    return chunk_range(shape_rows(s), chunk_size(shape_rows(s), s->ranks), s->rank).count;
}

// ---- an operation's arguments

// INPUT is read; OUTPUT is written with = and starts as NaN; INOUT starts with values: += or in place
enum { INPUT = READ, OUTPUT = WRITTEN, INOUT = READ | WRITTEN };

typedef struct {
    const char *name;
    DType dtype;
    int role;
    size_t n;
    double scale;      // of the normal values that fill the array
    int end;           // of int32: the array is filled with indices in [0, end)
    bool sums_stored;  // a sum over values that were rounded to floatX
    void *data;        // the operation's argument; NULL until problem_make
    void *start;       // the values of data before a run
} Array;

enum { MAX_ARRAYS = 12, NUM_RANGES = 3 };

typedef struct OpCase OpCase;

typedef struct {
    const OpCase *op;
    OpShape shape;
    int variant;
    Array array[MAX_ARRAYS];
    int num_arrays;
    OpCall call;      // rows and FLOPs of several calls are added
    bool describing;  // arrays stand for their names
    // arguments that are not arrays
    GradMode mode;
    DType gradients;  // type of parameter gradients
    real scale;       // classifier's dloss, loss_sum's scale
    StepHyper hyper;
} Problem;

struct OpCase {
    const char *name;
    const OpShape *shapes;  // GPT-2's, then num_tests for tests
    int num_tests, variants;
    int kernel_roundings;      // bf16: of a kernel's intermediates and result, one after another
    double tolerance;          // of fp32 results: ||got - wanted|| / ||wanted||
    void (*fill)(Problem *p);  // sets values that are not normal; NULL if all are
    void (*run)(Problem *p, const Ops *ops, Exec *ex);  // calls the operation
};

static inline const Array *find_array(const Problem *p, const char *name) {
    for (int i = 0; i < p->num_arrays; i++) {
        if (strcmp(p->array[i].name, name) == 0) { return &p->array[i]; }
    }
    return NULL;
}

static inline void *data_of(const Problem *p, const char *name, DType dtype) {
    if (p->describing) { return (void *)name; }
    const Array *a = find_array(p, name);
    if (a && a->dtype != dtype) { run_error("array %s is %s, not %s", name, dtype_name(a->dtype), dtype_name(dtype)); }
    return a ? a->data : NULL;
}

// an argument: the data of an array, NULL if the problem has no such array
static inline floatX *x_of(const Problem *p, const char *name) { return (floatX *)data_of(p, name, DT_FLOATX); }
static inline real *real_of(const Problem *p, const char *name) { return (real *)data_of(p, name, DT_REAL); }
static inline int *int_of(const Problem *p, const char *name) { return (int *)data_of(p, name, DT_I32); }
static inline Gradient gradient_of(const Problem *p, const char *name) {
    const Array *a = find_array(p, name);
    Gradient g = {p->describing ? (void *)name : a ? a->data : NULL, a ? a->dtype : p->gradients};
    return g;
}

// ---- values of arrays of any type

static inline double array_value(const Array *a, size_t i) {
    switch (a->dtype) {
    case DT_BF16: return bf16_to_float(((const bf16 *)a->data)[i]);
    case DT_F64: return ((const double *)a->data)[i];
    case DT_I32: return ((const int *)a->data)[i];
    case DT_I16: return ((const int16_t *)a->data)[i];
    case DT_U8: return ((const uint8_t *)a->data)[i];
    default: return ((const float *)a->data)[i];
    }
}

static inline void array_set(const Array *a, size_t i, double value) {
    switch (a->dtype) {
    case DT_BF16: ((bf16 *)a->data)[i] = float_to_bf16((float)value); break;
    case DT_F64: ((double *)a->data)[i] = value; break;
    case DT_I32: ((int *)a->data)[i] = (int)value; break;
    case DT_I16: ((int16_t *)a->data)[i] = (int16_t)value; break;
    case DT_U8: ((uint8_t *)a->data)[i] = (uint8_t)fabs(value); break;
    default: ((float *)a->data)[i] = (float)value;
    }
}

static inline uint64_t name_key(const char *name) {
    uint64_t key = 0;
    for (; *name; name++) { key = rng_mix(key ^ (uint64_t)(unsigned char)*name); }
    return key;
}

// Values that depend on the name alone. They repeat after FILL_PERIOD elements, a prime: filling a benchmark's billions
// is then quick.
enum { FILL_PERIOD = 1000003 };

static inline void array_fill(const Array *a) {
    uint64_t key = name_key(a->name);
    size_t size = dtype_size(a->dtype), period = a->n < FILL_PERIOD ? a->n : (size_t)FILL_PERIOD;
    memset(a->data, 0xFF, a->n * size);  // a NaN in every floating point type
    if (a->role == OUTPUT) { return; }
    for (size_t i = 0; i < period; i++) {
        bool index = a->dtype == DT_I32;
        array_set(a, i, index ? (double)(rng_bits(2, key, i) % (uint64_t)a->end) : a->scale * rng_normal(1, key, i));
    }
    for (size_t i = period; i < a->n; i += period) {
        size_t count = a->n - i < period ? a->n - i : period;
        memcpy((char *)a->data + i * size, a->data, count * size);
    }
}

// ---- the operations: call, fill special values

// run_<op>, for operations that take arrays and sizes of the shape s. set(p) sets the other arguments.
#define CALL(op, set, ...)                                                                                             \
    static inline void run_##op(Problem *p, const Ops *ops, Exec *ex) {                                                \
        const OpShape *s = &p->shape;                                                                                  \
        const int N = (int)shape_rows(s);                                                                              \
        (void)N;                                                                                                       \
        set(p);                                                                                                        \
        ops->op(__VA_ARGS__, ex);                                                                                      \
    }
#define X(name) x_of(p, #name)
#define R(name) real_of(p, #name)
#define IDS(name) int_of(p, #name)
#define G(name) gradient_of(p, #name)

static inline void set_nothing(Problem *p) { (void)p; }

// variants of a backward: GRAD_SET, GRAD_ADD, and the same two with gradients in bf16
enum { GRADIENT_BF16 = 2, GRADIENT_BF16_ADD, GRADIENT_VARIANTS };

static inline void set_gradients(Problem *p) {
    p->mode = p->variant % 2 ? GRAD_ADD : GRAD_SET;
    p->gradients = p->variant < GRADIENT_BF16 ? DT_REAL : DT_BF16;
}

// of a backward that always adds
static inline void set_sums(Problem *p) {
    p->mode = GRAD_ADD;
    p->gradients = p->variant ? DT_BF16 : DT_REAL;
}

enum { CLASSIFIER_GRADIENT, CLASSIFIER_LOSS, CLASSIFIER_VARIANTS };

static inline void set_dloss(Problem *p) { p->scale = p->variant == CLASSIFIER_GRADIENT ? (real)0.25 : 0; }
static inline void set_scale(Problem *p) { p->scale = (real)0.37; }

enum { MATMUL_WITH_BIAS = 1, MATMUL_WITH_RESIDUAL = 2, MATMUL_WITH_BOTH = 3, MATMUL_FORWARD_VARIANTS };

// variants, a sum of bits: no bias; out is in, or out is residual, instead of a separate array
enum { RESIDUAL_WITHOUT_BIAS = 1, RESIDUAL_OVER_IN = 2, RESIDUAL_OVER_RESIDUAL = 4, RESIDUAL_VARIANTS = 6 };

// the array that the variant writes
static inline const char *residual_output(const Problem *p) {
    return p->variant & RESIDUAL_OVER_IN ? "in" : p->variant & RESIDUAL_OVER_RESIDUAL ? "residual" : "out";
}

CALL(embedding_forward, set_nothing, X(out), IDS(tokens), X(wte), X(wpe), s->B, s->T, s->C)
CALL(token_embedding_forward, set_nothing, X(out), IDS(tokens), X(wte), part_first_id(s), s->Vp, N, s->C)
CALL(position_embedding_forward, set_nothing, X(x), X(wpe), (int)part_first_row(s), (int)part_rows(s), s->T, s->C)
CALL(layernorm_forward, set_nothing, X(out), R(mean), R(rstd), X(in), X(weight), X(bias), N, s->C)
CALL(layernorm_from_statistics, set_nothing, X(out), X(in), R(mean), R(rstd), X(weight), X(bias), N, s->C)
CALL(matmul_forward, set_nothing, X(out), X(in), X(weight), (p->variant & MATMUL_WITH_BIAS) ? X(bias) : NULL,
     (p->variant & MATMUL_WITH_RESIDUAL) ? X(residual) : NULL, N, s->C, s->OC)
CALL(matmul_gelu_forward, set_nothing, X(out), X(pre), X(in), X(weight), X(bias), N, s->C, s->OC)
CALL(residual_forward, set_nothing, x_of(p, residual_output(p)), X(in),
     (p->variant & RESIDUAL_WITHOUT_BIAS) ? NULL : X(bias), X(residual), N, s->C)
CALL(gelu_forward, set_nothing, X(out), X(in), shape_elements(s))
CALL(attention_forward, set_nothing, X(out), R(lse), X(qkv), s->B, s->T, s->NH, s->HS)
CALL(classifier, set_dloss, R(losses), X(logits), IDS(targets), p->scale, N, s->V, s->Vp)
CALL(classifier_statistics, set_nothing, R(statistics), X(logits), IDS(targets), part_first_id(s), N, s->V, s->Vp)
CALL(classifier_from_statistics, set_dloss, R(losses), X(logits), R(statistics), IDS(targets), p->scale, s->ranks,
     part_first_id(s), N, s->V, s->Vp)
CALL(loss_sum, set_scale, R(total), R(losses), p->scale, N)
CALL(layernorm_backward, set_gradients, X(dinp), G(dweight), G(dbias), X(dout), X(in), X(weight), R(mean), R(rstd),
     p->mode, N, s->C)
CALL(attention_backward, set_nothing, X(dqkv), X(dout), X(qkv), X(out), R(lse), s->B, s->T, s->NH, s->HS)
CALL(embedding_backward, set_gradients, G(dwte), G(dwpe), X(dout), IDS(tokens), p->mode, s->B, s->T, s->maxT, s->C)
CALL(token_embedding_backward, set_sums, G(dwte), X(dout), IDS(tokens), part_first_id(s), s->Vp, N, s->C)
CALL(position_embedding_backward, set_gradients, G(dwpe), X(dout), p->mode, (int)part_first_row(s), (int)part_rows(s),
     s->T, s->maxT, s->C)
CALL(gradient_accumulate, set_gradients, R(sum), G(x), p->mode, s->n)
CALL(global_norm_squared, set_gradients, R(out), G(x), p->mode, s->n)

// One sequence. Variants: all positions in one call, one a call, three a call. Each call reads the cache.
static inline void run_attention_decode(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = &p->shape;
    size_t C = p->describing ? 0 : (size_t)s->NH * s->HS;
    int chunk = p->variant == 0 ? s->T : p->variant == 1 ? 1 : 3;
    for (int pos = 0; pos < s->T; pos += chunk) {
        int n = s->T - pos < chunk ? s->T - pos : chunk;
        ops->attention_decode(X(out) + pos * C, X(keys), X(values), X(qkv) + 3 * pos * C, pos, n, s->NH, s->HS, ex);
    }
}

// Variants of matmul_backward, as bits: the arrays that are not NULL, with dgelu_bias where gelu_pre is; += instead of
// =; dinp is in; gradients are bf16.
enum {
    WITH_DINP = 1,
    WITH_DWEIGHT = 2,
    WITH_DBIAS = 4,
    WITH_ALL = 7,
    WITH_GELU = 8,
    WITH_ADD = 16,
    WITH_IN_PLACE = 32,
    WITH_BF16 = 64
};
#define MATMUL_BACKWARD(V)                                                                                             \
    V(MATMUL_SET, WITH_ALL)                                                                                            \
    V(MATMUL_ADD, WITH_ALL | WITH_ADD)                                                                                 \
    V(MATMUL_GELU, WITH_ALL | WITH_GELU)                                                                               \
    V(MATMUL_GELU_ADD, WITH_ALL | WITH_GELU | WITH_ADD)                                                                \
    V(MATMUL_DINP, WITH_DINP)                                                                                          \
    V(MATMUL_DWEIGHT, WITH_DWEIGHT)                                                                                    \
    V(MATMUL_DBIAS, WITH_DBIAS | WITH_ADD)                                                                             \
    V(MATMUL_IN_PLACE, WITH_ALL | WITH_GELU | WITH_IN_PLACE)                                                           \
    V(MATMUL_BF16, WITH_ALL | WITH_BF16)                                                                               \
    V(MATMUL_BF16_ADD, WITH_ALL | WITH_GELU | WITH_ADD | WITH_IN_PLACE | WITH_BF16)                                    \
    V(MATMUL_BF16_GELU, WITH_ALL | WITH_GELU | WITH_BF16)                                                              \
    V(MATMUL_BF16_DBIAS, WITH_DBIAS | WITH_ADD | WITH_BF16)
#define VARIANT_NAME(name, bits) name,
#define VARIANT_BITS(name, bits) bits,
enum { MATMUL_BACKWARD(VARIANT_NAME) MATMUL_BACKWARD_VARIANTS };
static const int matmul_backward_variants[] = {MATMUL_BACKWARD(VARIANT_BITS)};

static inline void run_matmul_backward(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = &p->shape;
    int with = matmul_backward_variants[p->variant];
    p->mode = with & WITH_ADD ? GRAD_ADD : GRAD_SET;
    p->gradients = with & WITH_BF16 ? DT_BF16 : DT_REAL;
    floatX *dinp = !(with & WITH_DINP) ? NULL : with & WITH_IN_PLACE ? X(in) : X(dinp);
    ops->matmul_backward(dinp, with & WITH_DWEIGHT ? G(dweight) : no_gradient,
                         with & WITH_DBIAS ? G(dbias) : no_gradient, with & WITH_GELU ? G(dgelu_bias) : no_gradient,
                         X(dout), X(in), X(weight), with & WITH_GELU ? X(gelu_pre) : NULL, p->mode, (int)shape_rows(s),
                         s->C, s->OC, ex);
}

// mean and rstd are the forward's
static inline void fill_statistics(Problem *p) {
    const OpShape *s = &p->shape;
    floatX *out = (floatX *)xmalloc(shape_elements(s) * sizeof *out), *weight = X(weight);
    // weight and bias do not matter
    cpu_layernorm_forward(out, R(mean), R(rstd), X(in), weight, weight, (int)shape_rows(s), s->C, NULL);
    free(out);
}

// out and lse are the forward's
static inline void fill_softmax(Problem *p) { run_attention_forward(p, &cpu_ops, NULL); }

// Every fifth row has no target. Columns that are padding, of the rank if it has a slice, would spoil any sum.
static inline void fill_padding(Problem *p) {
    const Array *logits = find_array(p, "logits");
    for (size_t n = 0; n < shape_rows(&p->shape); n++) {
        if (n % 5 == 4) { IDS(targets)[n] = -1; }
        for (int v = part_ids(&p->shape); v < p->shape.Vp; v++) { array_set(logits, n * p->shape.Vp + v, 1000); }
    }
}

// The rank's own statistics are computed from its logits. The other ranks' have plausible values.
static inline void fill_rank_statistics(Problem *p) {
    const OpShape *s = &p->shape;
    size_t N = shape_rows(s);
    real *statistics = R(statistics);
    fill_padding(p);
    for (int r = 0; r < s->ranks; r++) {
        int first = r * s->Vp, columns = classifier_columns(first, s->V, s->Vp);
        for (size_t n = 0; n < N; n++) {
            real *of_row = statistics + 3 * ((size_t)r * N + n), below = (real)fabs((double)of_row[2]);
            int target = IDS(targets)[n] - first;
            of_row[0] = columns ? 9 + of_row[0] : CLASSIFIER_LEAST;
            of_row[1] = columns ? 1 + (real)0.01 * (real)columns : 0;
            of_row[2] = target >= 0 && target < columns ? of_row[0] - below : 0;
        }
    }
    cpu_classifier_statistics(statistics + 3 * (size_t)s->rank * N, X(logits), IDS(targets), part_first_id(s), (int)N,
                              s->V, s->Vp, NULL);
}

// adamw_update's variants: params alone, with a master, or with a remainder; moments real, bf16 or 8-bit codes;
// gradients real or bf16
enum { ADAMW_ALONE, ADAMW_MASTER, ADAMW_SPLIT };
enum { ADAMW_REAL, ADAMW_BF16, ADAMW_BYTES };
enum { ADAMW_KINDS = 3, ADAMW_VARIANTS = 18 };
#define ADAMW_VARIANT(weights, moments, grads) ((int)(weights) + 3 * (int)(moments) + 9 * (int)(grads))

static inline int adamw_weights(int variant) { return variant % ADAMW_KINDS; }
static inline int adamw_moments(int variant) { return variant / ADAMW_KINDS % ADAMW_KINDS; }
static inline int adamw_grads(int variant) { return variant / ADAMW_KINDS / ADAMW_KINDS; }

// A tensor, a slice of another, and a whole one again, after a gap of elements that must not change. The last two end
// inside a block of moments. Returns the number of elements.
static inline size_t adamw_ranges(UpdateRange *ranges, size_t n) {
    const size_t first = n / 3 / MOMENT_BLOCK * MOMENT_BLOCK;
    const size_t third = (n - n / 5 - 1 + MOMENT_BLOCK - 1) / MOMENT_BLOCK * MOMENT_BLOCK;
    const size_t begin[NUM_RANGES] = {0, first, third}, count[NUM_RANGES] = {first, n / 4, n - third};
    const int tensor[NUM_RANGES] = {0, 7, 2};
    const size_t of_tensor[NUM_RANGES] = {0, 5 * MOMENT_BLOCK, 0};
    memset(ranges, 0, NUM_RANGES * sizeof *ranges);  // padding bytes are compared too
    for (int i = 0; i < NUM_RANGES; i++) {
        ranges[i].offset = begin[i];
        ranges[i].count = count[i];
        ranges[i].tensor_offset = of_tensor[i];
        ranges[i].decay = i != 1;
        ranges[i].tensor = tensor[i];
    }
    if (n < 1 << 20) {  // a benchmark's tensors are whole
        ranges[1].view_offset = 5;
        ranges[1].view_cols = 13;
        ranges[1].view_stride = 40;
    }
    return count[0] + count[1] + count[2];
}

// any code may occur; these scales keep the moments as small as those of the other types
static inline void fill_codes(Problem *p, const char *codes, const char *scales, double last_number) {
    const Array *a = find_array(p, codes), *of_blocks = find_array(p, scales);
    for (size_t i = 0; i < a->n; i++) { array_set(a, i, (double)(rng_bits(6, name_key(codes), i) & 0xFF)); }
    for (size_t i = 0; i < of_blocks->n; i++) {
        array_set(of_blocks, i, fabs(array_value(of_blocks, i)) / last_number);
    }
}

// params are the master rounded, or remainders hold the master minus params; v is not negative; the norm is that of
// gradients of 1
static inline void fill_update(Problem *p) {
    const Array *master = find_array(p, "master"), *v = find_array(p, "v");
    floatX *params = x_of(p, "params");
    int16_t *remainder = (int16_t *)data_of(p, "remainder", DT_I16);
    for (size_t i = 0; master && i < master->n; i++) { params[i] = to_floatX_half_up((real)array_value(master, i)); }
    for (size_t i = 0; remainder && i < p->shape.n; i++) {
        real weight = (real)(to_real(params[i]) * (1 + 0.003 * rng_normal(1, 7, i)));
        params[i] = to_floatX_half_up(weight);
        remainder[i] = remainder_of(weight);
    }
    for (size_t i = 0; v && v->dtype != DT_U8 && i < v->n; i++) { array_set(v, i, fabs(array_value(v, i))); }
    if (find_array(p, "m_scales")) { fill_codes(p, "m", "m_scales", 30720); }
    if (find_array(p, "v_scales")) { fill_codes(p, "v", "v_scales", 31744); }
    array_set(find_array(p, "norm_squared"), 0, (double)p->shape.n);
    adamw_ranges((UpdateRange *)find_array(p, "ranges")->data, p->shape.n);
}

// Each kind occurs without clipping, clipped to half the norm, and with a clip above the norm. A large learning rate
// and an epsilon of sqrt(v)'s order make each term of the update visible.
static inline StepHyper update_numbers(const Problem *p, int variant) {
    real norm = (real)sqrt((double)p->shape.n), clip[ADAMW_KINDS] = {0, norm / 2, norm * 2};
    int which_clip = (adamw_weights(variant) + adamw_moments(variant) + adamw_grads(variant)) % ADAMW_KINDS;
    StepHyper hyper = {(real)0.1, (real)0.9, (real)0.95, (real)0.01, (real)0.3, clip[which_clip], 3, 42, (real)0.95};
    return hyper;
}

static inline void describe_ranges(Problem *p) {
    Array ranges = {"ranges", DT_U8, INPUT, NUM_RANGES * sizeof(UpdateRange), 1, 0, false, NULL, NULL};
    p->array[p->num_arrays++] = ranges;
}

// The call counts the elements of the ranges. The arrays also have those of the gap, which keep their values.
static inline void describe_adamw_arrays(Problem *p) {
    for (int i = 0; i < p->num_arrays; i++) {
        Array *a = &p->array[i];
        if (strstr(a->name, "_scales")) {
            a->n = moment_blocks(p->shape.n);
        } else if (strcmp(a->name, "norm_squared") != 0) {
            a->n = p->shape.n;
        }
        if (a->role == OUTPUT) { a->role = INOUT; }
    }
    describe_ranges(p);
}

// the optimizer's state for a variant of adamw_update, and the problem's other arguments
static inline OptimizerState set_update(Problem *p, int variant) {
    static const DType types[ADAMW_KINDS] = {DT_REAL, DT_BF16, DT_U8};
    int weights = adamw_weights(variant), moments = adamw_moments(variant);
    OptimizerState state;
    memset(&state, 0, sizeof state);
    state.params = x_of(p, "params");
    if (weights == ADAMW_MASTER) { state.master = real_of(p, "master"); }
    if (weights == ADAMW_SPLIT) { state.remainder = (int16_t *)data_of(p, "remainder", DT_I16); }
    state.moments = types[moments];
    state.m = data_of(p, "m", state.moments);
    state.v = data_of(p, "v", state.moments);
    if (moments == ADAMW_BYTES) {
        state.m_scales = (float *)data_of(p, "m_scales", DT_F32);
        state.v_scales = (float *)data_of(p, "v_scales", DT_F32);
    }
    p->gradients = types[adamw_grads(variant)];
    p->hyper = update_numbers(p, variant);
    return state;
}

static inline void run_adamw_update(Problem *p, const Ops *ops, Exec *ex) {
    UpdateRange ranges[NUM_RANGES];
    OptimizerState state = set_update(p, p->variant);
    ops->adamw_update(&state, gradient_of(p, "grads"), real_of(p, "norm_squared"),
                      (const UpdateRange *)data_of(p, "ranges", DT_U8), NUM_RANGES, adamw_ranges(ranges, p->shape.n),
                      &p->hyper, ex);
    if (p->describing) { describe_adamw_arrays(p); }
}

// variants of muon_momentum: types of moments and gradients; of muon_weights: params alone, with a master, or with a
// remainder
enum { MUON_MOMENTUM_VARIANTS = ADAMW_VARIANTS / ADAMW_KINDS, MUON_WEIGHTS_VARIANTS = ADAMW_KINDS };

static inline void run_muon_momentum(Problem *p, const Ops *ops, Exec *ex) {
    OptimizerState state = set_update(p, p->variant * ADAMW_KINDS);
    ops->muon_momentum(x_of(p, "update"), &state, gradient_of(p, "grads"), real_of(p, "norm_squared"),
                       (const UpdateRange *)data_of(p, "ranges", DT_U8), p->shape.n, &p->hyper, ex);
    if (p->describing) { describe_ranges(p); }
}

static inline void run_muon_weights(Problem *p, const Ops *ops, Exec *ex) {
    OptimizerState state = set_update(p, p->variant);
    ops->muon_weights(&state, x_of(p, "update"), real_of(p, "norm_squared"),
                      (const UpdateRange *)data_of(p, "ranges", DT_U8), p->shape.n, muon_scale(4, 9), &p->hyper, ex);
    if (p->describing) { describe_ranges(p); }
}

CALL(muon_normalise, set_nothing, X(out), X(in), R(norm_squared), s->n)
CALL(muon_polynomial, set_nothing, X(b), X(a), s->C)

// a norm is not negative
static inline void fill_norm(Problem *p) { *R(norm_squared) = 4; }

// one range of all elements, which are a slice
static inline void fill_muon(Problem *p) {
    fill_update(p);
    UpdateRange *range = (UpdateRange *)find_array(p, "ranges")->data;
    *range = range[1];
    range->offset = 0;
    range->count = p->shape.n;
}

// ---- the table
// A tolerance is about twice the CPU backend's worst error against the textbook in double, over 20 fills and builds for
// AVX-512, for SSE2 and without vectors. A build without vectors has the longest sums: with some fills its classifier
// exceeds the tolerance. Comments say where the error is largest.
// Roundings of a kernel in bf16: a matmul's product before our epilogue kernel, the pre-activation of GELU, attention's
// probabilities and their gradient before the next product; and the result.

// clang-format off
#define ROW(tolerance, kernel_roundings, shapes, name, variants, fill)                                                 \
    {#name, shapes##_shapes, (int)(sizeof shapes##_shapes / sizeof(OpShape)) - 1, variants, kernel_roundings,          \
     tolerance, fill, run_##name}
static const OpCase op_cases[] = {
    //  fp32  bf16 shapes         operation                    variants, fill
    ROW(1e-7, 1, embedding,       embedding_forward,           1, NULL),  // one rounding
    ROW(0,    1, part,            token_embedding_forward,     1, NULL),  // a copy
    ROW(1e-7, 1, part,            position_embedding_forward,  1, NULL),  // one rounding
    ROW(5e-6, 1, layernorm,       layernorm_forward,           1, NULL),  // a mean near 0
    ROW(4e-7, 1, layernorm,       layernorm_from_statistics,   1, fill_statistics),  // three roundings
    ROW(6e-7, 2, matmul,          matmul_forward,              MATMUL_FORWARD_VARIANTS, NULL),  // sums of 259
    ROW(5e-7, 3, matmul,          matmul_gelu_forward,         1, NULL),  // sums of 259
    ROW(2e-7, 1, layernorm,       residual_forward,            RESIDUAL_VARIANTS, NULL),  // two roundings
    ROW(7e-7, 1, gelu,            gelu_forward,                1, NULL),  // 1 + tanh(x) near 0
    ROW(5e-7, 2, attention,       attention_forward,           1, NULL),  // exp of sums of 80
    ROW(5e-7, 1, attention,       attention_decode,            3, NULL),  // exp of sums of 80
    ROW(1e-5, 1, classifier,      classifier,                  CLASSIFIER_VARIANTS, fill_padding),  // sums of 50257
    ROW(3e-5, 1, part_classifier, classifier_statistics,       1, fill_padding),  // sums of 25041
    ROW(1e-5, 1, part_classifier, classifier_from_statistics,  CLASSIFIER_VARIANTS, fill_rank_statistics),  // the same
    ROW(3e-6, 1, loss,            loss_sum,                    1, NULL),  // a total near 0
    ROW(5e-6, 2, matmul,          matmul_backward,             MATMUL_BACKWARD_VARIANTS, NULL),  // a GELU slope near 0
    ROW(4e-6, 1, layernorm,       layernorm_backward,          GRADIENT_VARIANTS, fill_statistics),  // one channel
    ROW(7e-7, 3, attention,       attention_backward,          1, fill_softmax),  // exp of sums of 80
    ROW(3e-7, 1, embedding,       embedding_backward,          GRADIENT_VARIANTS, NULL),  // sums of rows
    ROW(3e-7, 1, part,            token_embedding_backward,    2, NULL),  // sums of rows
    ROW(3e-7, 1, part,            position_embedding_backward, GRADIENT_VARIANTS, NULL),  // sums of rows
    ROW(1e-7, 1, norm,            gradient_accumulate,         GRADIENT_VARIANTS, NULL),  // one rounding
    ROW(4e-6, 1, norm,            global_norm_squared,         GRADIENT_VARIANTS, NULL),  // sums of blocks
    ROW(1e-6, 1, update,          adamw_update,                ADAMW_VARIANTS, fill_update),  // a weight near 0
    ROW(1e-6, 1, update,          muon_momentum,               MUON_MOMENTUM_VARIANTS, fill_muon),  // one rounding
    ROW(2e-7, 1, update,          muon_normalise,              1, fill_norm),  // two roundings
    ROW(3e-7, 1, matmul,          muon_polynomial,             1, NULL),  // a result near 0
    ROW(1e-6, 1, update,          muon_weights,                MUON_WEIGHTS_VARIANTS, fill_muon),  // a weight near 0
};
// clang-format on
#undef ROW
#undef CALL
#undef X
#undef R
#undef IDS
#undef G
enum { NUM_OP_CASES = sizeof op_cases / sizeof op_cases[0] };

static inline const OpCase *op_case(const char *name) {
    for (int i = 0; i < NUM_OP_CASES; i++) {
        if (strcmp(op_cases[i].name, name) == 0) { return &op_cases[i]; }
    }
    run_error("no case is named %s", name);
}

// the operation's i-th shape for tests; NULL after the last
static inline const OpShape *op_shape(const OpCase *op, int i) { return i < op->num_tests ? &op->shapes[1 + i] : NULL; }

// ---- running one

// An operand whose name is o->at: the array, or another use of an array that has this name.
static inline void describe_array(Problem *p, const Operand *o) {
    const OpShape *s = &p->shape;
    const char *name = (const char *)o->at;
    int i = 0;
    while (i < p->num_arrays && strcmp(p->array[i].name, name) != 0) { i++; }
    if (i == MAX_ARRAYS) { run_error("%s has more than %d arrays", p->op->name, MAX_ARRAYS); }
    Array *a = &p->array[i];
    if (i == p->num_arrays) { p->num_arrays++; }
    a->name = name;
    a->dtype = o->dtype;
    a->role |= o->use & INOUT;
    a->n = o->rows * o->cols;
    if (o->use & SOME_ROWS) { a->n = s->Vp ? (size_t)s->Vp * s->C : (size_t)s->T * o->cols; }  // wte, or a KV cache
    bool of_matmul = s->OC > 0 && strcmp(name, "weight") == 0, of_gelu = strcmp(p->op->name, "gelu_forward") == 0;
    a->scale = strcmp(name, "logits") == 0 ? 3 : of_gelu ? 2 : of_matmul ? 1 / sqrt((double)s->C) : 1;  // outputs of 1
    a->end = s->V;
    a->sums_stored = strcmp(name, "dgelu_bias") == 0;
}

static inline void describe_call(const OpCall *call, Exec *ex) {
    Problem *p = (Problem *)ex->hooks->ctx;
    if (!p->call.op) {
        p->call = *call;
    } else {
        p->call.flops += call->flops;
        for (int i = 0; call->operand[i].name; i++) { p->call.operand[i].rows += call->operand[i].rows; }
    }
    p->num_arrays = 0;
    memset(p->array, 0, sizeof p->array);
    for (const Operand *o = p->call.operand; o->name; o++) {
        if (o->at && o->rows > 0) { describe_array(p, o); }
    }
}

// the problem without memory: bytes moved, FLOPs, and sizes of the arrays
static inline Problem problem_describe(const OpCase *op, const OpShape *shape, int variant) {
    Problem p;
    Exec ex;
    OpHooks hooks = {NULL, describe_call, NULL, &p};
    memset(&ex, 0, sizeof ex);
    memset(&p, 0, sizeof p);
    p.op = op;
    p.shape = *shape;
    p.variant = variant;
    p.describing = true;
    ex.hooks = &hooks;
    op->run(&p, &hooked_ops, &ex);
    p.describing = false;
    return p;
}

static inline size_t array_bytes(const Array *a) { return a->n * dtype_size(a->dtype); }

// bytes of all arrays
static inline size_t problem_memory(const OpCase *op, const OpShape *shape, int variant) {
    Problem p = problem_describe(op, shape, variant);
    size_t bytes = 0;
    for (int i = 0; i < p.num_arrays; i++) { bytes += array_bytes(&p.array[i]); }
    return bytes;
}

// a problem with filled memory; the same arguments give the same values
static inline Problem problem_make(const OpCase *op, const OpShape *shape, int variant) {
    Problem p = problem_describe(op, shape, variant);
    for (int i = 0; i < p.num_arrays; i++) {
        p.array[i].data = xmalloc(array_bytes(&p.array[i]));
        p.array[i].start = xmalloc(array_bytes(&p.array[i]));
        array_fill(&p.array[i]);
    }
    if (op->fill) { op->fill(&p); }
    for (int i = 0; i < p.num_arrays; i++) { memcpy(p.array[i].start, p.array[i].data, array_bytes(&p.array[i])); }
    return p;
}

static inline void problem_run(Problem *p, const Ops *ops, Exec *ex) { p->op->run(p, ops, ex); }

static inline void problem_free(Problem *p) {
    for (int i = 0; i < p->num_arrays; i++) {
        free(p->array[i].data);
        free(p->array[i].start);
    }
}

// ---- judging the result

// The largest allowed ||got - wanted|| / ||wanted||. In bf16 it is half a unit in the last place, the error of one
// rounding. Over 20 fills an operation's arrays were off by 0.0013 to 0.0019 with one rounding, by 0.0025 with two (a
// matmul before its GELU). A bf16 sum of rounded values may be a unit off.
static inline double array_tolerance(const Problem *p, const Array *a) {
    double slack = p->shape.slack > 0 ? p->shape.slack : 1;
    int roundings = (a->dtype == DT_BF16) + (a->sums_stored && DT_FLOATX == DT_BF16);
    return slack * (roundings ? roundings * 0x1p-8 : p->op->tolerance);
}

// the values of `bytes`, laid out like the array's data or start; the caller frees them
static inline double *array_doubles(const Array *a, const void *bytes) {
    Array view = *a;
    view.data = (void *)bytes;
    double *values = (double *)xcalloc(a->n, sizeof(double));
    for (size_t i = 0; i < a->n; i++) { values[i] = array_value(&view, i); }
    return values;
}

// A kernel's tolerance against the textbook, as a factor on array_tolerance.
//   fp32   A kernel sums in another order and takes exponentials from the special function unit: 1e-5. Tensor cores
//          also truncate each sum of 8 products: 2^-24 of the sum on average, always towards zero, so rows / 8 of them
//          add up to rows / 8 x 2^-24 in a weight gradient of `rows` rows. The tolerance is twice that.
//   bf16   Roundings are independent: their squares add up. Fewer than 64 elements do not average: a value that is
//          rounded the other way is a whole unit off, twice array_tolerance.
static inline double kernel_slack(const Problem *p, const Array *a) {
    double own = array_tolerance(p, a), rows = (double)shape_rows(&p->shape);
    bool rounded = a->dtype == DT_BF16 || (a->sums_stored && DT_FLOATX == DT_BF16);
    if (rounded) { return sqrt((double)p->op->kernel_roundings) * (a->n < 64 ? 2 : 1); }
    if (a->dtype != DT_F32 || own == 0) { return 1; }
    bool truncates = DT_FLOATX == DT_BF16 && strcmp(p->op->name, "matmul_backward") == 0;
    return fmax(1, fmax(1e-5, truncates ? rows / 4 * 0x1p-24 : 0) / own);
}

// the array's error as a share of `slack` times the row's tolerance; infinite if the row allows no error and there is
// one
static inline double array_share(const Problem *p, const Array *a, const double *wanted, double slack) {
    double *got = array_doubles(a, a->data), error = relative_error(got, wanted, a->n);
    free(got);
    return error == 0 ? 0 : error / (slack * array_tolerance(p, a));
}
