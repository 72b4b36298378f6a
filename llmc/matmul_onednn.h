/*
GEMMs through oneDNN (versions 2 and 3), if found at build time (HAVE_ONEDNN) and if oneDNN supports the case.
A primitive is created once per shape and kind, which takes up to a millisecond, and stored in Exec.
Threads divide a GEMM here, not inside oneDNN. A thread computes its own rows of C: a row of activations stays with one
thread, and in its cache, from operation to operation. Where B is so large that repacking it in every thread costs more,
a thread computes columns of C. Each thread has its own primitives, since their arguments are set per call.
oneDNN has a bf16 C for bf16 inputs only, and rounds C once, with += too. A bf16 C of fp32 inputs is done by
matmul_portable.h.
defines: onednn_open, onednn_multiply, onednn_free, onednn_version
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/device.h"
#include "llmc/matmul_portable.h"

#if defined(HAVE_ONEDNN) && !defined(PRECISION_FP64)
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#define ONEDNN_TEXT(major, minor) ONEDNN_STRING(major, minor)
#define ONEDNN_STRING(major, minor) "oneDNN " #major "." #minor
// the version at build time
static inline const char *onednn_version(void) { return ONEDNN_TEXT(DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR); }

enum {
    MATMUL_OPERANDS = 5  // A, B, bias, residual, C
};

typedef struct PreparedMatmul {
    Matmul shape;                // sizes, layouts and types of its GEMMs; the pointers are those of the first GEMM
    dnnl_primitive_t primitive;  // NULL: oneDNN does not support the case
    dnnl_memory_t memory[MATMUL_OPERANDS];
    struct PreparedMatmul *next;
} PreparedMatmul;

// one thread's primitives
typedef struct {
    dnnl_stream_t stream;
    PreparedMatmul *first;    // a list of all
    PreparedMatmul *current;  // of the GEMM under way; NULL if this thread has no part of C
} MatmulThread;

struct PreparedMatmuls {
    dnnl_engine_t engine;
    int num_threads;  // the parts of a matmul
    MatmulThread *threads;
};

static inline void onednn_check(dnnl_status_t status, const char *call) {
    if (status != dnnl_success) { run_error("oneDNN's %s failed with status %d", call, (int)status); }
}

static inline dnnl_data_type_t onednn_type(DType dtype) { return dtype == DT_BF16 ? dnnl_bf16 : dnnl_f32; }

// Memory descriptors are values in version 2 and handles in version 3.
#if DNNL_VERSION_MAJOR >= 3
static inline dnnl_memory_desc_t onednn_desc(size_t rows, size_t cols, DType dtype, size_t row, size_t col) {
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols}, strides = {(dnnl_dim_t)row, (dnnl_dim_t)col};
    dnnl_memory_desc_t desc;
    onednn_check(dnnl_memory_desc_create_with_strides(&desc, 2, dims, onednn_type(dtype), strides),
                 "memory descriptor");
    return desc;
}
static inline void onednn_desc_free(dnnl_memory_desc_t *desc) { dnnl_memory_desc_destroy(*desc); }
static inline dnnl_memory_t onednn_memory(dnnl_memory_desc_t *desc, dnnl_engine_t engine) {
    dnnl_memory_t memory;
    onednn_check(dnnl_memory_create(&memory, *desc, engine, DNNL_MEMORY_NONE), "memory");
    return memory;
}
static inline dnnl_status_t onednn_append(dnnl_post_ops_t ops, const Matmul *p, dnnl_memory_desc_t *residual) {
    if (p->accumulate) { return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef); }
    return p->residual ? dnnl_post_ops_append_binary(ops, dnnl_binary_add, *residual) : dnnl_success;
}
static inline dnnl_status_t onednn_describe(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, dnnl_memory_desc_t *desc,
                                            bool bias, dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(pd, engine, desc[0], desc[1], bias ? desc[2] : NULL, desc[4], attr);
}
#else
static inline dnnl_memory_desc_t onednn_desc(size_t rows, size_t cols, DType dtype, size_t row, size_t col) {
    dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols}, strides = {(dnnl_dim_t)row, (dnnl_dim_t)col};
    dnnl_memory_desc_t desc;
    onednn_check(dnnl_memory_desc_init_by_strides(&desc, 2, dims, onednn_type(dtype), strides), "memory descriptor");
    return desc;
}
static inline void onednn_desc_free(dnnl_memory_desc_t *desc) { (void)desc; }
static inline dnnl_memory_t onednn_memory(dnnl_memory_desc_t *desc, dnnl_engine_t engine) {
    dnnl_memory_t memory;
    onednn_check(dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_NONE), "memory");
    return memory;
}
static inline dnnl_status_t onednn_append(dnnl_post_ops_t ops, const Matmul *p, dnnl_memory_desc_t *residual) {
    if (p->accumulate) { return dnnl_post_ops_append_sum(ops, 1.0f); }
    return p->residual ? dnnl_post_ops_append_binary(ops, dnnl_binary_add, residual) : dnnl_success;
}
static inline dnnl_status_t onednn_describe(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, dnnl_memory_desc_t *desc,
                                            bool bias, dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &desc[0], &desc[1], bias ? &desc[2] : NULL, &desc[4]);
    return status == dnnl_success ? dnnl_primitive_desc_create(pd, &matmul, attr, engine, NULL) : status;
}
#endif

// Creates the primitive for GEMMs like *p.
static inline PreparedMatmul *onednn_prepare(MatmulThread *thread, dnnl_engine_t engine, const Matmul *p) {
    PreparedMatmul *prepared = (PreparedMatmul *)xcalloc(1, sizeof *prepared);
    prepared->shape = *p;
    dnnl_memory_desc_t desc[MATMUL_OPERANDS] = {
        onednn_desc(p->M, p->K, p->a.dtype, p->a.row, p->a.col),
        onednn_desc(p->K, p->N, p->b.dtype, p->b.row, p->b.col),
        onednn_desc(1, p->N, DT_FLOATX, p->N, 1),
        onednn_desc(p->M, p->N, DT_FLOATX, p->c.row, 1),
        onednn_desc(p->M, p->N, p->c.dtype, p->c.row, 1),
    };
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    dnnl_primitive_desc_t pd;
    onednn_check(dnnl_primitive_attr_create(&attr), "attributes");
    onednn_check(dnnl_post_ops_create(&ops), "post-ops");
    onednn_check(onednn_append(ops, p, &desc[3]), "post-op");
    onednn_check(dnnl_primitive_attr_set_post_ops(attr, ops), "attributes");
    if (onednn_describe(&pd, engine, desc, p->bias != NULL, attr) == dnnl_success) {
        onednn_check(dnnl_primitive_create(&prepared->primitive, pd), "primitive");
        dnnl_primitive_desc_destroy(pd);
    }
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < MATMUL_OPERANDS; i++) {
        prepared->memory[i] = onednn_memory(&desc[i], engine);
        onednn_desc_free(&desc[i]);
    }
    prepared->next = thread->first;
    thread->first = prepared;
    return prepared;
}

static inline bool same_layout(Matrix x, Matrix y) { return x.dtype == y.dtype && x.row == y.row && x.col == y.col; }

// whether two GEMMs differ in their pointers only
static inline bool same_matmul(const Matmul *p, const Matmul *q) {
    return p->M == q->M && p->N == q->N && p->K == q->K && same_layout(p->a, q->a) && same_layout(p->b, q->b) &&
           same_layout(p->c, q->c) && !p->bias == !q->bias && !p->residual == !q->residual &&
           p->accumulate == q->accumulate;
}

static inline PreparedMatmul *onednn_find(MatmulThread *thread, dnnl_engine_t engine, const Matmul *p) {
    for (PreparedMatmul *prepared = thread->first; prepared; prepared = prepared->next) {
        if (same_matmul(&prepared->shape, p)) { return prepared; }
    }
    return onednn_prepare(thread, engine, p);
}

static inline void onednn_free(Exec *ex) {
    if (!ex->matmuls) { return; }
    for (int t = 0; t < ex->matmuls->num_threads; t++) {
        for (PreparedMatmul *p = ex->matmuls->threads[t].first, *next; p; p = next) {
            next = p->next;
            for (int i = 0; i < MATMUL_OPERANDS; i++) { dnnl_memory_destroy(p->memory[i]); }
            if (p->primitive) { dnnl_primitive_destroy(p->primitive); }
            free(p);
        }
        dnnl_stream_destroy(ex->matmuls->threads[t].stream);
    }
    dnnl_engine_destroy(ex->matmuls->engine);
    free(ex->matmuls->threads);
    free(ex->matmuls);
    ex->matmuls = NULL;
}

// Called before a parallel region: gives each part of a matmul its own stream and primitives.
static inline void onednn_open(Exec *ex) {
    int threads = matmul_parts(omp_get_max_threads());
    if (ex->matmuls && ex->matmuls->num_threads == threads) { return; }
    onednn_free(ex);
    struct PreparedMatmuls *prepared = (struct PreparedMatmuls *)xcalloc(1, sizeof *prepared);
    onednn_check(dnnl_engine_create(&prepared->engine, dnnl_cpu, 0), "engine");
    prepared->num_threads = threads;
    prepared->threads = (MatmulThread *)xcalloc((size_t)threads, sizeof(MatmulThread));
    for (int t = 0; t < threads; t++) {
        onednn_check(dnnl_stream_create(&prepared->threads[t].stream, prepared->engine, dnnl_stream_default_flags),
                     "stream");
    }
    ex->matmuls = prepared;
}

static inline void onednn_execute(const PreparedMatmul *prepared, dnnl_stream_t stream, const Matmul *p) {
    const void *data[MATMUL_OPERANDS] = {p->a.data, p->b.data, p->bias, p->residual, p->c.data};
    static const int roles[MATMUL_OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS,
                                               DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, DNNL_ARG_DST};
    dnnl_exec_arg_t args[MATMUL_OPERANDS];
    int count = 0;
    for (int i = 0; i < MATMUL_OPERANDS; i++) {
        if (!data[i]) { continue; }
        onednn_check(dnnl_memory_set_data_handle(prepared->memory[i], (void *)data[i]), "data handle");
        args[count].arg = roles[i];
        args[count++].memory = prepared->memory[i];
    }
    onednn_check(dnnl_primitive_execute(prepared->primitive, stream, count, args), "matmul");
}

// whether oneDNN supports the part of every thread: either all threads compute, or none
static inline bool onednn_supports(const struct PreparedMatmuls *prepared) {
    for (int t = 0; t < prepared->num_threads; t++) {
        const PreparedMatmul *current = prepared->threads[t].current;
        if (current && !current->primitive) { return false; }
    }
    return true;
}

// Like gemm(), called by all threads of a parallel region. If oneDNN does not support the case: returns false and
// computes nothing.
static inline bool onednn_multiply(Exec *ex, const Matmul *whole) {
    struct PreparedMatmuls *prepared = ex->matmuls;
    size_t threads = (size_t)prepared->num_threads;
#pragma omp for schedule(static, 1)
    for (size_t t = 0; t < threads; t++) {
        Matmul part = matmul_of_thread(whole, threads, t);
        MatmulThread *thread = &prepared->threads[t];
        thread->current = part.M && part.N ? onednn_find(thread, prepared->engine, &part) : NULL;
    }
    if (!onednn_supports(prepared)) { return false; }
#pragma omp for schedule(static, 1)
    for (size_t t = 0; t < threads; t++) {
        Matmul part = matmul_of_thread(whole, threads, t);
        MatmulThread *thread = &prepared->threads[t];
        if (thread->current) { onednn_execute(thread->current, thread->stream, &part); }
    }
    return true;
}

#else
static inline const char *onednn_version(void) { return NULL; }
static inline bool onednn_multiply(Exec *ex, const Matmul *whole) {
    (void)ex, (void)whole;
    return false;
}
static inline void onednn_open(Exec *ex) { (void)ex; }
static inline void onednn_free(Exec *ex) { (void)ex; }
#endif
