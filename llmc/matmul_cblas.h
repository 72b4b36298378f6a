/*
GEMMs through CBLAS, if found at build time (HAVE_CBLAS): OpenBLAS, or Apple's Accelerate (HAVE_ACCELERATE). fp32 only.
A GEMM of other types is done by matmul_portable.h.
Threads divide a GEMM as in matmul_onednn.h. Each thread calls CBLAS for its part of C, and OpenBLAS computes a call in
the calling thread. So the same number of threads gives the same bits.
CBLAS has no bias and no residual: a thread writes their sum to C, and the GEMM is added to C.
defines: cblas_open, cblas_multiply, cblas_version
*/
#pragma once
#include <limits.h>
#include "llmc/common/check.h"
#include "llmc/matmul_portable.h"

#if defined(HAVE_CBLAS) && !defined(PRECISION_FP64)
#include <omp.h>
#ifdef HAVE_ACCELERATE
#include <Accelerate/Accelerate.h>

static inline const char *cblas_version(void) { return "Accelerate"; }
static inline void cblas_open(void) {}
#else
#include <cblas.h>

// "OpenBLAS 0.3.21": the first two words of the library's own description
static inline const char *cblas_version(void) {
    static char text[64];
    const char *config = openblas_get_config();
    int name = (int)strcspn(config, " "), version = (int)strcspn(config + name + (config[name] == ' '), " ");
    snprintf(text, sizeof text, "%.*s", name + 1 + version, config);
    return text;
}

// Called before a parallel region. OpenBLAS with threads of its own must not start them. OpenBLAS with OpenMP starts
// none inside a parallel region, and its set_num_threads would also change the trainer's number of threads.
static inline void cblas_open(void) {
    if (openblas_get_parallel() == OPENBLAS_THREAD && openblas_get_num_threads() != 1) { openblas_set_num_threads(1); }
}
#endif

// a matrix (rows,cols) as CBLAS takes it: rows lie `leading` elements apart, or columns if it is transposed
typedef struct {
    const float *data;
    bool transposed;
    size_t leading;  // 0: CBLAS cannot take the matrix
} CblasMatrix;

static inline CblasMatrix cblas_matrix(Matrix m, size_t rows, size_t cols) {
    bool by_rows = m.col == 1 && m.row >= cols, by_columns = m.row == 1 && m.col >= rows;
    size_t leading = by_rows ? m.row : by_columns ? m.col : 0;
    CblasMatrix taken = {(const float *)m.data, !by_rows, m.dtype == DT_F32 && leading <= INT_MAX ? leading : 0};
    return taken;
}

static inline bool cblas_supports(const Matmul *p) {
    bool sizes = p->M <= INT_MAX && p->N <= INT_MAX && p->K <= INT_MAX && DT_FLOATX == DT_F32;
    return sizes && cblas_matrix(p->a, p->M, p->K).leading && cblas_matrix(p->b, p->K, p->N).leading &&
           !cblas_matrix(p->c, p->M, p->N).transposed && cblas_matrix(p->c, p->M, p->N).leading;
}

// C = or += bias + residual. The residual may be C.
static inline void cblas_begin(const Matmul *p) {
    for (size_t i = 0; i < p->M; i++) {
        float *c = (float *)p->c.data + i * p->c.row;
        for (size_t j = 0; j < p->N; j++) {
            float sum = p->accumulate ? c[j] : 0;
            if (p->bias) { sum += (float)to_real(p->bias[j]); }
            if (p->residual) { sum += (float)to_real(p->residual[i * p->c.row + j]); }
            c[j] = sum;
        }
    }
}

// one thread's part of C
static inline void cblas_part(const Matmul *p) {
    CblasMatrix a = cblas_matrix(p->a, p->M, p->K), b = cblas_matrix(p->b, p->K, p->N);
    bool begun = p->bias || p->residual;
    if (begun) { cblas_begin(p); }
    cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
                (int)p->M, (int)p->N, (int)p->K, 1.0f, a.data, (int)a.leading, b.data, (int)b.leading,
                begun || p->accumulate ? 1.0f : 0.0f, (float *)p->c.data, (int)p->c.row);
}

// Like gemm(), called by all threads of a parallel region. If CBLAS does not support the case: returns false and
// computes nothing.
static inline bool cblas_multiply(const Matmul *whole) {
    if (!cblas_supports(whole)) { return false; }
    size_t threads = (size_t)matmul_parts(omp_get_num_threads());
#pragma omp for schedule(static, 1)
    for (size_t t = 0; t < threads; t++) {
        Matmul part = matmul_of_thread(whole, threads, t);
        if (part.M && part.N) { cblas_part(&part); }
    }
    return true;
}

#else
static inline const char *cblas_version(void) { return NULL; }
static inline void cblas_open(void) {}
static inline bool cblas_multiply(const Matmul *whole) {
    (void)whole;
    return false;
}
#endif
