/*
Every operation of llmc/ops.h as a row that runs on any table of operations: shapes, arrays and their values, tolerance,
bytes moved and FLOPs. The self-check, tests and benchmarks (dev/test/problems.h) loop over the rows.
The calls are those of OPS, which say everything about their arrays: problem_describe makes one with names in the place
of arrays, and hooks that note the operands instead of an operation.

  for each row op of op_cases, shape s = op_shape(op, i), v of op->variants:
      Problem p = problem_make(op, s, v);
      problem_run(&p, ops, &ex);
      op_call_bytes(&p.call), p.call.flops; array_share(..) of every output
      problem_free(&p);

To add an operation: shapes, unless a neighbour's fit; a fill_ function if normal values will not do; and a row in the
table at the end. An argument with a new name has a line in call_operation.
*/
#pragma once
#include "llmc/activation.h"
#include "llmc/classifier.h"
#include "llmc/common/range.h"
#include "llmc/common/rng.h"
#include "llmc/cpu_ops.h"
#include "llmc/moments.h"
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
    {.B = 1, .T = 3, .C = 5000},  // wider than a warp's row on a GPU, in packs
    {.B = 2, .T = 2, .C = 401},   // and in single elements
    {.B = 1, .T = 1, .C = 33},
    {.B = 7, .T = 397, .C = 264},  // more rows than all blocks of a GPU's backward take at once
    {.B = 1, .T = 550, .C = 65},   // the same for single elements
    {.B = 1, .T = 2, .C = 1600},   // GPT-2 1558M's; with 2560, 1280 and 768, every number of packs a thread
    {.B = 1, .T = 2, .C = 1280},
    {.B = 1, .T = 2, .C = 2560, .slack = 2},  // a mean of 0.003
    {.B = 1, .T = 5, .C = 9000, .slack = 2},  // sums of 9000, one by one if the compiler does not vectorise
    {.B = 2, .T = 3, .C = 1, .slack = 20},    // rstd is 316 and multiplies a rounding error
};

static const OpShape activation_shapes[] = {
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
    {.B = 1, .T = 67, .NH = 1, .HS = 96},
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
    {.B = 1, .T = 2, .V = 5000, .Vp = 5008},    // a GPU holds rows in shared memory, in fp32 too
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

// of a rank: first id, number of ids below V
static inline int part_first_id(const OpShape *s) { return s->rank * s->Vp; }
static inline int part_ids(const OpShape *s) { return classifier_columns(part_first_id(s), s->V, s->Vp); }

// ---- variants of a call, as bits: 0 has all arrays, sets its outputs, and has gradients in real

// clang-format off
enum {
    ADDED = 1,  // GRAD_ADD
    GRADIENT_BF16 = 2,
    WITHOUT_BIAS = 4, WITHOUT_RESIDUAL = 8, WITHOUT_DINP = 16, WITHOUT_DWEIGHT = 32, WITHOUT_DBIAS = 64,
    WITH_ACTIVATION = 128,  // MLP_ACTIVATION
    OVER_IN = 256, OVER_RESIDUAL = 512,  // in place: out or dinp is in; out is residual
    WITHOUT_GRADIENT = 1024,  // dloss is 0
    WITH_REMAINDER = 2048, MOMENTS_BF16 = 4096, MOMENTS_8BIT = 8192,  // of an OptimizerState
    PRODUCT_ALONE = WITHOUT_BIAS | WITHOUT_RESIDUAL,
    DINP_ALONE = WITHOUT_DWEIGHT | WITHOUT_DBIAS,
    DWEIGHT_ALONE = WITHOUT_DINP | WITHOUT_DBIAS,
    DBIAS_ALONE = WITHOUT_DINP | WITHOUT_DWEIGHT
};
// clang-format on
#define CASE_DLOSS ((real)0.25)  // the classifier's, unless WITHOUT_GRADIENT

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

enum { MAX_ARRAYS = 12, MAX_VARIANTS = 12, NUM_RANGES = 3 };

typedef struct OpCase OpCase;

typedef struct {
    const OpCase *op;
    OpShape shape;
    int variant;
    Array array[MAX_ARRAYS];
    int num_arrays;
    OpCall call;      // rows and FLOPs of several calls are added
    bool describing;  // the arguments of a call point at the names of their arrays, which describe_array reads back
} Problem;

#define OP_ID(op, ...) OP_##op,
typedef enum { OPS(OP_ID) } OpId;
#undef OP_ID

struct OpCase {
    const char *name;
    OpId id;
    const OpShape *shapes;  // GPT-2's, then num_tests for tests
    int num_tests;
    int kernel_roundings;      // bf16: of a kernel's intermediates and result, one after another
    double tolerance;          // of fp32 results: ||got - wanted|| / ||wanted||
    void (*fill)(Problem *p);  // sets values that are not normal; NULL if all are
    void (*run)(Problem *p, const Ops *ops, Exec *ex);
    int num_variants, variants[MAX_VARIANTS];
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
    void *data = p->describing ? (void *)name : a ? a->data : NULL;
    Gradient g = {data, p->variant & GRADIENT_BF16 ? DT_BF16 : DT_REAL};
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

// ---- the calls

// A tensor, a slice of another, and a whole one again, after a gap of elements that must not change. The last two end
// inside a block of moments. Returns the number of elements.
static inline size_t adamw_ranges(UpdateRange *ranges, size_t n) {
    const size_t first = n / 3 / MOMENT_BLOCK * MOMENT_BLOCK;
    const size_t third = (n - n / 5 - 1 + MOMENT_BLOCK - 1) / MOMENT_BLOCK * MOMENT_BLOCK;
    memset(ranges, 0, NUM_RANGES * sizeof *ranges);  // padding bytes are compared too
    ranges[0].count = ranges[1].offset = first;
    ranges[1].count = n / 4;
    ranges[1].tensor_offset = 5 * MOMENT_BLOCK;
    ranges[1].tensor = 7;
    ranges[2].offset = third;
    ranges[2].count = n - third;
    ranges[2].tensor = 2;
    ranges[0].decay = ranges[2].decay = true;
    ranges[1].view_offset = 5;
    ranges[1].view_cols = n < 1 << 20 ? 13 : 0;  // a benchmark's tensors are whole
    ranges[1].view_stride = 40;
    return ranges[0].count + ranges[1].count + ranges[2].count;
}

// The variant modulo 3 chooses the clip: none, above the norm, or half of it. With AdamW each kind of weights, moments
// and gradients meets all three, since a bit of the variant is 1 or 2 modulo 3. A large learning rate and an epsilon of
// sqrt(v)'s order make each term of the update visible.
static inline StepHyper update_numbers(const Problem *p) {
    real norm = (real)sqrt((double)p->shape.n), clips[] = {0, norm * 2, norm / 2}, clip = clips[p->variant % 3];
    StepHyper hyper = {(real)0.1, (real)0.9, (real)0.95, (real)0.01, (real)0.3, clip, 3, 42, (real)0.95};
    return hyper;
}

static inline OptimizerState update_state(const Problem *p) {
    const int v = p->variant;
    const DType moments = v & MOMENTS_8BIT ? DT_U8 : v & MOMENTS_BF16 ? DT_BF16 : DT_REAL;
    OptimizerState state = {.moments = moments};
    for (int i = 0; i < NUM_STATE_ARRAYS; i++) {
        const StateArray a = state_array(i, v & WITH_REMAINDER, moments);
        if (a.exists) { state.array[i] = data_of(p, a.name, a.dtype); }
    }
    return state;
}

// Calls any operation with the arguments that OPS names; here each name has its value. An array that the operation does
// not take is NULL.
static inline void call_operation(Problem *p, const Ops *ops, Exec *ex) {
#define X(name) name = x_of(p, #name)
#define R(name) name = real_of(p, #name)
#define G(name) name = gradient_of(p, #name)
    floatX *X(out), *X(in), *X(wte), *X(wpe), *X(weight), *X(bias), *X(residual), *X(qkv);
    floatX *X(keys), *X(values), *X(logits), *X(dout), *X(dinp), *X(dqkv), *X(update), *X(a), *X(b);
    real *R(mean), *R(rstd), *R(lse), *R(statistics), *R(losses), *R(total), *R(sum), *R(norm_squared);
    Gradient G(dweight), G(dbias), G(dwte), G(dwpe), G(grads), G(x);
#undef X
#undef R
#undef G
    const int *tokens = int_of(p, "tokens"), *targets = int_of(p, "targets");
    const OptimizerState of_update = update_state(p), *state = &of_update;
    const StepHyper numbers = update_numbers(p), *hyper = &numbers;
    const UpdateRange *ranges = (const UpdateRange *)data_of(p, "ranges", DT_U8), *range = ranges;
    UpdateRange updated[NUM_RANGES];
    const OpShape *s = &p->shape;
    const int B = s->B, T = s->T, maxT = s->maxT, C = s->C, NH = s->NH, HS = s->HS, OC = s->OC, V = s->V, Vp = s->Vp;
    const int rows = s->Vp, Vl = s->Vp, ranks = s->ranks, m = s->C, pos = 0, num_ranges = NUM_RANGES, v = p->variant;
    const real dloss = v & WITHOUT_GRADIENT ? 0 : CASE_DLOSS, scale = (real)0.37;
    const GradMode mode = v & ADDED ? GRAD_ADD : GRAD_SET;
    const ActivationFunction function = MLP_ACTIVATION;
    Activation activation = {function, x_of(p, "activation.pre"), gradient_of(p, "activation.dbias")};
    const OpId id = p->op->id;
    int N = B * T, first = part_first_id(s);
    size_t n = s->n ? s->n : s->NH ? (size_t)T : shape_elements(s);
    if (id == OP_position_embedding_forward || id == OP_position_embedding_backward) {
        const Range part = chunk_range(shape_rows(s), chunk_size(shape_rows(s), s->ranks), s->rank);
        first = (int)part.offset;
        N = (int)part.count;
    }
    if (id == OP_adamw_update) { n = adamw_ranges(updated, s->n); }
    if (v & WITHOUT_BIAS) { bias = NULL; }
    if (v & WITHOUT_RESIDUAL) { residual = NULL; }
    if (v & WITHOUT_DINP) { dinp = NULL; }
    if (v & WITHOUT_DWEIGHT) { dweight = no_gradient; }
    if (v & WITHOUT_DBIAS) { dbias = no_gradient; }
    if (!(v & WITH_ACTIVATION)) { activation = no_activation; }
    if (v & OVER_IN) { out = dinp = in; }
    if (v & OVER_RESIDUAL) { out = residual; }
#define CALL(op, parameters, arguments, ...)                                                                           \
    case OP_##op: ops->op arguments; break;
    switch (id) { OPS(CALL) }
#undef CALL
}

// One sequence. The variant is the number of positions a call; 0: all. Each call reads the cache.
static inline void run_attention_decode(Problem *p, const Ops *ops, Exec *ex) {
    const OpShape *s = &p->shape;
    const size_t C = p->describing ? 0 : (size_t)s->NH * s->HS;
    const int chunk = p->variant;
    if (chunk == 0) { call_operation(p, ops, ex); }
    for (int pos = 0; chunk > 0 && pos < s->T; pos += chunk) {
        int n = s->T - pos < chunk ? s->T - pos : chunk;
        ops->attention_decode(x_of(p, "out") + pos * C, x_of(p, "keys"), x_of(p, "values"),
                              x_of(p, "qkv") + 3 * pos * C, pos, n, s->NH, s->HS, ex);
    }
}

// ---- values that are not normal

// mean and rstd are the forward's
static inline void fill_statistics(Problem *p) {
    const OpShape *s = &p->shape;
    floatX *out = (floatX *)xmalloc(shape_elements(s) * sizeof *out), *weight = x_of(p, "weight");
    // weight and bias do not matter
    cpu_layernorm_forward(out, real_of(p, "mean"), real_of(p, "rstd"), x_of(p, "in"), weight, weight,
                          (int)shape_rows(s), s->C, NULL);
    free(out);
}

// out and lse are the forward's
static inline void fill_softmax(Problem *p) {
    const OpShape *s = &p->shape;
    cpu_attention_forward(x_of(p, "out"), real_of(p, "lse"), x_of(p, "qkv"), s->B, s->T, s->NH, s->HS, NULL);
}

// Every fifth row has no target. Columns that are padding, of the rank if it has a slice, would spoil any sum.
static inline void fill_padding(Problem *p) {
    const Array *logits = find_array(p, "logits");
    for (size_t n = 0; n < shape_rows(&p->shape); n++) {
        if (n % 5 == 4) { int_of(p, "targets")[n] = -1; }
        for (int v = part_ids(&p->shape); v < p->shape.Vp; v++) { array_set(logits, n * p->shape.Vp + v, 1000); }
    }
}

// The rank's own statistics are computed from its logits. The other ranks' have plausible values.
static inline void fill_rank_statistics(Problem *p) {
    const OpShape *s = &p->shape;
    size_t N = shape_rows(s);
    real *statistics = real_of(p, "statistics");
    fill_padding(p);
    for (int r = 0; r < s->ranks; r++) {
        int first = r * s->Vp, columns = classifier_columns(first, s->V, s->Vp);
        for (size_t n = 0; n < N; n++) {
            real *of_row = statistics + 3 * ((size_t)r * N + n), below = (real)fabs((double)of_row[2]);
            int target = int_of(p, "targets")[n] - first;
            of_row[0] = columns ? 9 + of_row[0] : CLASSIFIER_LEAST;
            of_row[1] = columns ? 1 + (real)0.01 * (real)columns : 0;
            of_row[2] = target >= 0 && target < columns ? of_row[0] - below : 0;
        }
    }
    cpu_classifier_statistics(statistics + 3 * (size_t)s->rank * N, x_of(p, "logits"), int_of(p, "targets"),
                              part_first_id(s), (int)N, s->V, s->Vp, NULL);
}

// any code may occur; these scales keep the moments as small as those of the other types
static inline void fill_codes(Problem *p, const char *codes, const char *scales, double last_number) {
    const Array *a = find_array(p, codes), *s = find_array(p, scales);
    for (size_t i = 0; i < a->n; i++) { array_set(a, i, (double)(rng_bits(6, name_key(codes), i) & 0xFF)); }
    for (size_t i = 0; i < s->n; i++) { array_set(s, i, fabs(array_value(s, i)) / last_number); }
}

// remainders are those of weights near params; v is not negative; the norm is that of gradients of 1
static inline void fill_update(Problem *p) {
    const Array *v = find_array(p, "v");
    floatX *params = x_of(p, "params");
    int16_t *remainder = (int16_t *)data_of(p, "remainder", DT_I16);
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

// a norm is not negative
static inline void fill_norm(Problem *p) { *real_of(p, "norm_squared") = 4; }

// one range of all elements, which are a slice
static inline void fill_muon(Problem *p) {
    fill_update(p);
    UpdateRange *range = (UpdateRange *)find_array(p, "ranges")->data;
    *range = range[1];
    range->offset = 0;
    range->count = p->shape.n;
}

// ---- the table
// A tolerance is about twice the CPU backend's worst error against the reference in double, over 20 random fills on
// AVX-512, SSE2 and scalar builds (scalar sums are longest; its classifier can exceed this). Comments say where the
// error is largest. Roundings of a kernel in bf16: a matmul's product before our epilogue kernel,
// attention's probabilities and their gradient before the next product; and the result.

// clang-format off
#define GRADIENTS 0, ADDED, GRADIENT_BF16, GRADIENT_BF16 | ADDED
#define MOMENTS(v) (v), (v) | MOMENTS_BF16, (v) | MOMENTS_8BIT
#define STATE(v) MOMENTS(v), MOMENTS((v) | WITH_REMAINDER)
#define RUN_ROW(run, tolerance, kernel_roundings, shapes, name, fill, ...)                                             \
    {#name, OP_##name, shapes##_shapes, (int)(sizeof shapes##_shapes / sizeof(OpShape)) - 1, kernel_roundings,         \
     tolerance, fill, run, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)), {__VA_ARGS__}}
#define ROW(...) RUN_ROW(call_operation, __VA_ARGS__)
static const OpCase op_cases[] = {
    //  fp32  bf16 shapes         operation                    fill, variants
    ROW(1e-7, 1, embedding,       embedding_forward,           NULL, 0),  // one rounding
    ROW(0,    1, part,            token_embedding_forward,     NULL, 0),  // a copy
    ROW(1e-7, 1, part,            position_embedding_forward,  NULL, 0),  // one rounding
    ROW(5e-6, 1, layernorm,       layernorm_forward,           NULL, 0),  // a mean near 0
    ROW(4e-7, 1, layernorm,       layernorm_from_statistics,   fill_statistics, 0),  // three roundings
    ROW(6e-7, 2, matmul,          matmul_forward,              NULL, PRODUCT_ALONE, WITHOUT_RESIDUAL,
        WITHOUT_BIAS, 0, WITH_ACTIVATION | WITHOUT_RESIDUAL),  // sums of 259
    ROW(2e-7, 1, layernorm,       residual_forward,            NULL, 0, WITHOUT_BIAS, OVER_IN, OVER_IN | WITHOUT_BIAS,
        OVER_RESIDUAL, OVER_RESIDUAL | WITHOUT_BIAS),  // two roundings
    ROW(7e-7, 1, activation,      activation_forward,          NULL, 0),  // 1 + tanh(x) near 0
    ROW(5e-7, 2, attention,       attention_forward,           NULL, 0),  // exp of sums of 80
    RUN_ROW(run_attention_decode, 5e-7, 1, attention, attention_decode, NULL, 0, 1, 3),  // exp of sums of 80
    ROW(1e-5, 1, classifier,      classifier,                  fill_padding, 0, WITHOUT_GRADIENT),  // sums of 50257
    ROW(3e-5, 1, part_classifier, classifier_statistics,       fill_padding, 0),  // sums of 25041
    ROW(1e-5, 1, part_classifier, classifier_from_statistics,  fill_rank_statistics, 0, WITHOUT_GRADIENT),  // the same
    ROW(3e-6, 1, loss,            loss_sum,                    NULL, 0),  // a total near 0
    ROW(5e-6, 2, matmul,          matmul_backward,             NULL, 0, ADDED, WITH_ACTIVATION, WITH_ACTIVATION | ADDED,
        DINP_ALONE, DWEIGHT_ALONE, DBIAS_ALONE | ADDED, WITH_ACTIVATION | OVER_IN, GRADIENT_BF16,
        WITH_ACTIVATION | GRADIENT_BF16 | ADDED | OVER_IN, WITH_ACTIVATION | GRADIENT_BF16,
        GRADIENT_BF16 | DBIAS_ALONE | ADDED),  // a slope near 0
    ROW(4e-6, 1, layernorm,       layernorm_backward,          fill_statistics, GRADIENTS),  // one channel
    ROW(7e-7, 3, attention,       attention_backward,          fill_softmax, 0),  // exp of sums of 80
    ROW(3e-7, 1, embedding,       embedding_backward,          NULL, GRADIENTS),  // sums of rows
    ROW(3e-7, 1, part,            token_embedding_backward,    NULL, 0, GRADIENT_BF16),  // sums of rows
    ROW(3e-7, 1, part,            position_embedding_backward, NULL, GRADIENTS),  // sums of rows
    ROW(1e-7, 1, norm,            gradient_accumulate,         NULL, GRADIENTS),  // one rounding
    ROW(4e-6, 1, norm,            global_norm_squared,         NULL, GRADIENTS),  // sums of blocks
    ROW(1e-6, 1, update,          adamw_update,                fill_update, STATE(0), STATE(GRADIENT_BF16)),  // near 0
    ROW(1e-6, 1, update,          muon_momentum,               fill_muon, MOMENTS(0),
        MOMENTS(GRADIENT_BF16)),  // one rounding
    ROW(2e-7, 1, update,          muon_normalise,              fill_norm, 0),  // two roundings
    ROW(3e-7, 1, matmul,          muon_polynomial,             NULL, 0),  // a result near 0
    ROW(1e-6, 1, update,          muon_weights,                fill_muon, 0, WITH_REMAINDER),  // near 0
};
// clang-format on
#undef GRADIENTS
#undef MOMENTS
#undef STATE
#undef RUN_ROW
#undef ROW
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
    Array *a = (Array *)find_array(p, name);
    if (!a && p->num_arrays == MAX_ARRAYS) { run_error("%s has more than %d arrays", p->op->name, MAX_ARRAYS); }
    if (!a) { a = &p->array[p->num_arrays++]; }
    a->name = name;
    a->dtype = o->dtype;
    a->role |= o->use & INOUT;
    a->n = o->rows * o->cols;
    if (o->use & SOME_ROWS) { a->n = s->Vp ? (size_t)s->Vp * s->C : (size_t)s->T * o->cols; }  // wte, or a KV cache
    bool of_matmul = s->OC > 0 && strcmp(name, "weight") == 0, activation = p->op->id == OP_activation_forward;
    a->scale = strcmp(name, "logits") == 0 ? 3
               : activation                ? 2
               : of_matmul                 ? 1 / sqrt((double)s->C)
                                           : 1;  // outputs of 1
    a->end = s->V;
    a->sums_stored = strcmp(name, "activation.dbias") == 0;
}

// The ranges of an update are no operand. AdamW's call counts the elements of the ranges; the arrays also have those of
// the gap, which keep their values.
static inline void describe_ranges(Problem *p) {
    const OpId id = p->op->id;
    if (id != OP_adamw_update && id != OP_muon_momentum && id != OP_muon_weights) { return; }
    for (int i = 0; id == OP_adamw_update && i < p->num_arrays; i++) {
        Array *a = &p->array[i];
        if (strcmp(a->name, "norm_squared") == 0) { continue; }
        a->n = strstr(a->name, "_scales") ? moment_blocks(p->shape.n) : p->shape.n;
        if (a->role == OUTPUT) { a->role = INOUT; }
    }
    Array ranges = {"ranges", DT_U8, INPUT, NUM_RANGES * sizeof(UpdateRange), 1, 0, false, NULL, NULL};
    p->array[p->num_arrays++] = ranges;
}

static inline void describe_call(const OpCall *call, Exec *ex) {
    Problem *p = (Problem *)ex->hooks->ctx;
    const OpCall earlier = p->call;
    p->call = *call;
    p->call.flops += earlier.flops;
    for (int i = 0; call->operand[i].name; i++) { p->call.operand[i].rows += earlier.operand[i].rows; }
    p->num_arrays = 0;
    memset(p->array, 0, sizeof p->array);
    for (const Operand *o = p->call.operand; o->name; o++) {
        if (o->at && o->rows > 0) { describe_array(p, o); }
    }
}

static inline void problem_run(Problem *p, const Ops *ops, Exec *ex) { p->op->run(p, ops, ex); }

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
    describe_ranges(&p);
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

static inline void problem_free(Problem *p) {
    for (int i = 0; i < p->num_arrays; i++) {
        free(p->array[i].data);
        free(p->array[i].start);
    }
}

// ---- judging the result

// The largest allowed ||got - wanted|| / ||wanted||. In bf16 it is half a unit in the last place, the error of one
// rounding. Over 20 fills an operation's arrays were off by 0.0013 to 0.0019 with one rounding, by 0.0025 with two (a
// matmul before its activation). A bf16 sum of rounded values may be a unit off.
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

// A kernel's tolerance against the reference, as a factor on array_tolerance.
//   fp32   A kernel sums in another order and takes exponentials from the special function unit: 1e-5. Tensor cores
//          also truncate each sum of 8 products: 2^-24 of the sum on average, always towards zero, so rows / 8 of them
//          add up to rows / 8 x 2^-24 in a weight gradient of `rows` rows. The tolerance is twice that.
//   bf16   Roundings are independent: their squares add up. Fewer than 64 elements do not average: a value that is
//          rounded the other way is a whole unit off, twice array_tolerance.
static inline double kernel_slack(const Problem *p, const Array *a) {
    double own = array_tolerance(p, a), rows = (double)shape_rows(&p->shape);
    bool rounded = a->dtype == DT_BF16 || (a->sums_stored && DT_FLOATX == DT_BF16);
    const Array *pre = find_array(p, "activation.pre");
    int roundings = p->op->kernel_roundings + (pre && pre->role == OUTPUT && a != pre);  // the activation's input too
    if (rounded) { return sqrt((double)roundings) * (a->n < 64 ? 2 : 1); }
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
