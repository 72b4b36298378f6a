/*
cuBLASLt for matmul.cuh: what a product is, in our words and in cuBLASLt's, and how it is run. Of a product's epilogue
cuBLASLt does the parts that a plan has `fused`, which may be none; matmul_kernels.cuh does the rest, and the product
itself where a plan has no descriptor, because cuBLASLt cannot.
defines: CudaMatmuls, LtKey, LtProduct, LtPlan, LtPick, lt_describe, lt_undescribe, lt_set_pointers, lt_run, lt_sums,
         lt_check, lt_words
*/
#pragma once
#include "llmc/common/device.cuh"
#ifdef __CUDACC__
#include <cublasLt.h>
#else
#include "llmc/emulator/cublaslt.h"
#endif

// ---- what is to be multiplied

// the parts of an epilogue
enum { LT_BIAS = 1, LT_GELU = 2, LT_DGELU = 4, LT_SUM_D = 8, LT_SUM_B = 16, LT_SUMS = LT_SUM_D | LT_SUM_B };
enum { LT_SET, LT_ADD_C, LT_ADD_IN_PLACE };  // D = .., C + .., D + ..
enum { LT_POINTERS = 6, LT_ALIGNMENT = 16 };

// everything that tells one plan from another; ints only, so that two can be compared as bytes
typedef struct {
    int m, n, k, transpose_a, transpose_b;
    int out;                   // DType of C and D, real or bf16; A, B, bias and aux are floatX
    int parts, add;            // LT_BIAS |..; LT_SET ..
    int aligned[LT_POINTERS];  // A, B, C, D, bias or sums, and aux are at multiples of so many bytes; 16 at most
} LtKey;

typedef struct {
    LtKey key;
    const floatX *a, *b, *bias;
    const void *c;  // NULL: nothing is added
    void *d;
    floatX *aux;    // gelu's input: written with LT_GELU, read with LT_DGELU
    Gradient sums;  // (m) of LT_SUM_D or (n) of LT_SUM_B, written or added to
    GradMode sums_mode;
} LtProduct;

typedef struct {
    LtKey key;
    int fused;                  // the parts that the product's kernel does itself
    cublasLtMatmulDesc_t desc;  // NULL: cuBLASLt cannot do it
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    bool provisional;  // it was made untimed, for a shape that was not expected again
} LtPlan;

// a line of the pick file
typedef struct {
    char *name;  // "GPU<tab>version<tab>product"
    int fused;   // as in LtPlan
    cublasLtMatmulAlgo_t algo;
    float microseconds;
} LtPick;

struct CudaMatmuls {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    cublasComputeType_t compute;
    void *workspace;  // cuBLASLt's, then LT_SCRATCH_BYTES of our own: sums on their way, then those of trials
    size_t workspace_bytes;
    float *scratch, *trial_sums;
    char *device_name, *pick_path;  // pick_path: NULL for none
    LtPick *picks;
    LtPlan *plans;
    int num_picks, num_plans;
    // where several processes compute alike: gives the first one's bytes to all; NULL in a process alone
    void (*tell)(void *bytes, size_t count, void *of);
    void *tell_of;
    bool is_first;
};

enum { LT_SCRATCH_BYTES = 4 << 20, LT_SUMS_BYTES = LT_SCRATCH_BYTES / 2 };

// what the product is, in words: for people, and as a pick's name
static inline void lt_words(char *words, size_t bytes, const CudaMatmuls *mm, const LtKey *k) {
    static const char *const part[] = {" bias", " gelu", " dgelu", " sum_d", " sum_b"}, *const add[] = {"", "+c", "+="};
    const char *in = DT_FLOATX == DT_BF16 ? "BF16" : mm->compute == CUBLAS_COMPUTE_32F ? "F32" : "TF32";
    int used = snprintf(words, bytes, "m=%d n=%d k=%d %c%c %s->%s%s", k->m, k->n, k->k, k->transpose_a ? 'T' : 'N',
                        k->transpose_b ? 'T' : 'N', in, dtype_name((DType)k->out), add[k->add]);
    for (int i = 0; i < 5; i++) {
        if (k->parts >> i & 1) { used += snprintf(words + used, bytes - (size_t)used, "%s", part[i]); }
    }
    for (int i = 0; i < LT_POINTERS; i++) {
        used += snprintf(words + used, bytes - (size_t)used, "%s%d", i ? "," : " aligned=", k->aligned[i]);
    }
}

enum { LT_WORDS = 256 };

static inline void lt_check(const CudaMatmuls *mm, const LtPlan *plan, cublasStatus_t status, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    char words[LT_WORDS] = "any";
    if (plan) { lt_words(words, sizeof words, mm, &plan->key); }
    run_error("matrix product (%s): %s failed: %s", words, call, cublasLtGetStatusString(status));
}
#define LT_CALL(mm, plan, function, ...) lt_check(mm, plan, function(__VA_ARGS__), #function)
#define LT_ATTRIBUTE(mm, plan, name, value)                                                                            \
    LT_CALL(mm, plan, cublasLtMatmulDescSetAttribute, (plan)->desc, CUBLASLT_MATMUL_DESC_##name, &(value),             \
            sizeof(value))

// ---- a product in cuBLASLt's terms

static inline cudaDataType_t lt_type(DType type) { return type == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F; }

static inline cublasLtEpilogue_t lt_epilogue(int fused) {
    switch (fused) {
    case LT_BIAS: return CUBLASLT_EPILOGUE_BIAS;
    case LT_GELU: return CUBLASLT_EPILOGUE_GELU_AUX;
    case LT_GELU | LT_BIAS: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case LT_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    case LT_DGELU | LT_SUM_D: return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case LT_SUM_B: return CUBLASLT_EPILOGUE_BGRADB;
    default: return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

// Where cuBLASLt writes its sums, which it can only with = and in D's type: bf16 ones are asked for only where they can
// go straight to their gradient
static inline void *lt_sums(const CudaMatmuls *mm, const LtProduct *p) {
    return p->sums_mode == GRAD_SET && p->key.out == (int)p->sums.dtype ? p->sums.at : (void *)mm->scratch;
}

static inline void lt_set_pointers(const CudaMatmuls *mm, const LtPlan *plan, const LtProduct *p) {
    const void *bias = plan->fused & LT_SUMS ? lt_sums(mm, p) : p->bias;
    if (plan->fused & (LT_BIAS | LT_SUMS)) { LT_ATTRIBUTE(mm, plan, BIAS_POINTER, bias); }
    if (plan->fused & (LT_GELU | LT_DGELU)) { LT_ATTRIBUTE(mm, plan, EPILOGUE_AUX_POINTER, p->aux); }
}

static inline void lt_describe(const CudaMatmuls *mm, LtPlan *plan, const LtProduct *p) {
    const LtKey *k = &plan->key;
    cudaDataType_t in = lt_type(DT_FLOATX), out = lt_type((DType)k->out);
    cublasOperation_t op_a = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                      op_b = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = lt_epilogue(plan->fused);
    int64_t aux_ld = k->m;
    LT_CALL(mm, plan, cublasLtMatmulDescCreate, &plan->desc, mm->compute, CUDA_R_32F);
    LT_ATTRIBUTE(mm, plan, TRANSA, op_a);
    LT_ATTRIBUTE(mm, plan, TRANSB, op_b);
    LT_ATTRIBUTE(mm, plan, EPILOGUE, epilogue);
    if (plan->fused & (LT_GELU | LT_DGELU)) { LT_ATTRIBUTE(mm, plan, EPILOGUE_AUX_LD, aux_ld); }
    lt_set_pointers(mm, plan, p);  // the heuristic looks at their alignment
    uint64_t m = (uint64_t)k->m, n = (uint64_t)k->n, depth = (uint64_t)k->k;
    uint64_t a_rows = k->transpose_a ? depth : m, b_rows = k->transpose_b ? n : depth;
    LT_CALL(mm, plan, cublasLtMatrixLayoutCreate, &plan->a, in, a_rows, m * depth / a_rows, (int64_t)a_rows);
    LT_CALL(mm, plan, cublasLtMatrixLayoutCreate, &plan->b, in, b_rows, n * depth / b_rows, (int64_t)b_rows);
    LT_CALL(mm, plan, cublasLtMatrixLayoutCreate, &plan->d, out, m, n, (int64_t)m);
}

static inline void lt_undescribe(LtPlan *plan) {
    if (!plan->desc) { return; }
    cublasLtMatmulDescDestroy(plan->desc);
    cublasLtMatrixLayoutDestroy(plan->a);
    cublasLtMatrixLayoutDestroy(plan->b);
    cublasLtMatrixLayoutDestroy(plan->d);
    plan->desc = NULL;
}

static inline cublasStatus_t lt_run(const CudaMatmuls *mm, const LtPlan *plan, const LtProduct *p,
                                    const cublasLtMatmulAlgo_t *algo) {
    float one = 1, beta = plan->key.add == LT_SET ? 0.0f : 1.0f;
    return cublasLtMatmul(mm->handle, plan->desc, &one, p->a, plan->a, p->b, plan->b, &beta, p->c ? p->c : p->d,
                          plan->d, p->d, plan->d, algo, mm->workspace, mm->workspace_bytes, mm->stream);
}
