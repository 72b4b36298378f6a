/*
cuBLASLt for matmul.cuh: the description of one GEMM, in our types and in cuBLASLt's, and the call that runs it.
cuBLASLt applies the epilogue parts of LtAlgorithm.fused, which may be none. The kernels of matmul_kernels.cuh apply the
rest, and do the whole GEMM where cuBLASLt cannot (LtAlgorithm.desc is NULL).
*/
#pragma once
#include "llmc/activation.h"
#include "llmc/common/device.cuh"
#include "llmc/ops.h"
#include <cublasLt.h>

// ---- a GEMM: D (m,n) = epilogue(op(A) (m,k) op(B) (k,n)), all column-major and dense

// parts of an epilogue
enum { LT_BIAS = 1, LT_ACTIVATION = 2, LT_SLOPE = 4, LT_SUM_D = 8, LT_SUM_B = 16, LT_SUMS = LT_SUM_D | LT_SUM_B };
enum { LT_SET, LT_ADD_C, LT_ADD_IN_PLACE };  // D = op(A) op(B);  D = C + op(A) op(B);  D += op(A) op(B)
enum { LT_POINTERS = 6, LT_ALIGNMENT = 16 };

// Identifies a GEMM: equal keys share an algorithm. Ints only, so that two keys can be compared as bytes.
typedef struct {
    int m, n, k, transpose_a, transpose_b;
    int out;                   // DType of C and D, real or bf16; A, B, bias and aux are floatX
    int parts, add;            // LT_BIAS |..; LT_SET ..
    int function;              // ActivationFunction of LT_ACTIVATION and LT_SLOPE
    int aligned[LT_POINTERS];  // alignment in bytes, at most 16, of A, B, C, D, bias or sums, and aux
} LtKey;

typedef struct {
    LtKey key;
    const floatX *a, *b, *bias;
    const void *c;  // NULL: nothing is added
    void *d;
    floatX *aux;    // the activation's input: written with LT_ACTIVATION, read with LT_SLOPE
    Gradient sums;  // (m) of LT_SUM_D or (n) of LT_SUM_B, = or +=
    GradMode sums_mode;
} LtMatmul;

// the algorithm of a GEMM
typedef struct {
    LtKey key;
    int fused;                  // epilogue parts that cuBLASLt applies
    cublasLtMatmulDesc_t desc;  // NULL: cuBLASLt has no kernel for this GEMM
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    bool untimed;     // chosen without trials: the shape rarely repeats
    int next_choice;  // the candidate that lt_choose_untimed takes if cuBLASLt refuses this one
} LtAlgorithm;

struct CudaMatmuls {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    cublasComputeType_t compute;
    void *workspace;  // cuBLASLt's workspace; the LT_SCRATCH_BYTES after it are scratch and trial_sums
    size_t workspace_bytes;
    float *scratch, *trial_sums;     // column sums of a GEMM; column sums of a timed trial
    char *device_name, *cache_path;  // cache_path: the autotune cache, NULL for none
    LtAlgorithm *algorithms;
    int num_algorithms;
    // sends rank 0's bytes to all ranks; NULL with one rank
    void (*broadcast)(void *bytes, size_t count, void *context);
    void *broadcast_context;
    bool is_root;   // rank 0
    bool autotune;  // false: TRAIN_GPT2_AUTOTUNE=0
    int fallback;   // FallbackKernels.level[FALLBACK_MATMUL]
};

enum { LT_SCRATCH_BYTES = 4 << 20, LT_SUMS_BYTES = LT_SCRATCH_BYTES / 2 };

enum { LT_KEY_TEXT = 256 };  // bytes

// The key as text, for errors and for the autotune cache: "m=96 n=48 k=64 TN BF16->BF16 bias aligned=16,16,16,16,16,16"
static inline const char *lt_key_text(char text[LT_KEY_TEXT], const CudaMatmuls *mm, const LtKey *k) {
    static const char *const part[] = {" bias", " ", " d", " sum_d", " sum_b"}, *const add[] = {"", "+c", "+="};
    const char *in = DT_FLOATX == DT_BF16 ? "BF16" : mm->compute == CUBLAS_COMPUTE_32F ? "F32" : "TF32";
    int used = snprintf(text, LT_KEY_TEXT, "m=%d n=%d k=%d %c%c %s->%s%s", k->m, k->n, k->k, k->transpose_a ? 'T' : 'N',
                        k->transpose_b ? 'T' : 'N', in, dtype_name((DType)k->out), add[k->add]);
    for (int i = 0; i < 5; i++) {
        const char *name = 1 << i & (LT_ACTIVATION | LT_SLOPE) ? activation_names[k->function][0] : "";
        if (k->parts >> i & 1) { used += snprintf(text + used, LT_KEY_TEXT - (size_t)used, "%s%s", part[i], name); }
    }
    for (int i = 0; i < LT_POINTERS; i++) {
        used += snprintf(text + used, LT_KEY_TEXT - (size_t)used, "%s%d", i ? "," : " aligned=", k->aligned[i]);
    }
    return text;
}

static inline void lt_check(const CudaMatmuls *mm, const LtAlgorithm *alg, cublasStatus_t status, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    char text[LT_KEY_TEXT];
    run_error("matmul (%s): %s failed: %s", alg ? lt_key_text(text, mm, &alg->key) : "any", call,
              cublasLtGetStatusString(status));
}
#define LT_CALL(mm, alg, function, ...) lt_check(mm, alg, function(__VA_ARGS__), #function)

// A choice that cuBLASLt refuses with `status` is replaced by the next one, whatever the status: after an error of the
// GPU itself, the next call of CUDA ends the run.
static inline void lt_note(const CudaMatmuls *mm, const LtAlgorithm *alg, cublasStatus_t status, const char *call) {
    char text[LT_KEY_TEXT];
    fprintf(stderr, "train_gpt2: matmul (%s): %s: %s; another kernel is used, perhaps a slower one\n",
            lt_key_text(text, mm, &alg->key), call, cublasLtGetStatusString(status));
}

// ---- the GEMM in cuBLASLt's terms

static inline cudaDataType_t lt_type(DType type) { return type == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F; }

static inline cublasLtEpilogue_t lt_epilogue(int fused) {
    switch (fused) {
    case LT_BIAS: return CUBLASLT_EPILOGUE_BIAS;
    case LT_ACTIVATION: return CUBLASLT_EPILOGUE_GELU_AUX;
    case LT_ACTIVATION | LT_BIAS: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case LT_SLOPE: return CUBLASLT_EPILOGUE_DGELU;
    case LT_SLOPE | LT_SUM_D: return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case LT_SUM_B: return CUBLASLT_EPILOGUE_BGRADB;
    default: return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

// Returns where cuBLASLt writes its sums: the gradient if that is = and has D's type, else scratch. It cannot add to
// sums, and writes them in D's type. bf16 sums are only requested where they can go straight to the gradient.
static inline void *lt_sums(const CudaMatmuls *mm, const LtMatmul *p) {
    return p->sums_mode == GRAD_SET && p->key.out == (int)p->sums.dtype ? p->sums.at : (void *)mm->scratch;
}

#define LT_ATTRIBUTE(alg, name, value)                                                                                 \
    (cublasLtMatmulDescSetAttribute((alg)->desc, CUBLASLT_MATMUL_DESC_##name, &(value), sizeof(value)) ==              \
     CUBLAS_STATUS_SUCCESS)

static inline bool lt_set_pointers(const CudaMatmuls *mm, const LtAlgorithm *alg, const LtMatmul *p) {
    const void *bias = alg->fused & LT_SUMS ? lt_sums(mm, p) : p->bias;
    return (!(alg->fused & (LT_BIAS | LT_SUMS)) || LT_ATTRIBUTE(alg, BIAS_POINTER, bias)) &&
           (!(alg->fused & (LT_ACTIVATION | LT_SLOPE)) || LT_ATTRIBUTE(alg, EPILOGUE_AUX_POINTER, p->aux));
}

static inline void lt_destroy_descriptors(LtAlgorithm *alg) {
    if (!alg->desc) { return; }
    cublasLtMatmulDescDestroy(alg->desc);
    cublasLtMatrixLayoutDestroy(alg->a);
    cublasLtMatrixLayoutDestroy(alg->b);
    cublasLtMatrixLayoutDestroy(alg->d);
    alg->desc = NULL;
}

// alg->desc stays NULL if cuBLASLt refuses an attribute, as this version may an epilogue's.
static inline void lt_create_descriptors(const CudaMatmuls *mm, LtAlgorithm *alg, const LtMatmul *p) {
    const LtKey *k = &alg->key;
    cudaDataType_t in = lt_type(DT_FLOATX), out = lt_type((DType)k->out);
    cublasOperation_t op_a = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                      op_b = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = lt_epilogue(alg->fused);
    int64_t aux_ld = k->m;
    LT_CALL(mm, alg, cublasLtMatmulDescCreate, &alg->desc, mm->compute, CUDA_R_32F);
    uint64_t m = (uint64_t)k->m, n = (uint64_t)k->n, depth = (uint64_t)k->k;
    uint64_t a_rows = k->transpose_a ? depth : m, b_rows = k->transpose_b ? n : depth;
    LT_CALL(mm, alg, cublasLtMatrixLayoutCreate, &alg->a, in, a_rows, m * depth / a_rows, (int64_t)a_rows);
    LT_CALL(mm, alg, cublasLtMatrixLayoutCreate, &alg->b, in, b_rows, n * depth / b_rows, (int64_t)b_rows);
    LT_CALL(mm, alg, cublasLtMatrixLayoutCreate, &alg->d, out, m, n, (int64_t)m);
    bool set = LT_ATTRIBUTE(alg, TRANSA, op_a) && LT_ATTRIBUTE(alg, TRANSB, op_b) &&
               LT_ATTRIBUTE(alg, EPILOGUE, epilogue) &&
               (!(alg->fused & (LT_ACTIVATION | LT_SLOPE)) || LT_ATTRIBUTE(alg, EPILOGUE_AUX_LD, aux_ld)) &&
               lt_set_pointers(mm, alg, p);  // the heuristic reads their alignment
    if (!set) { lt_destroy_descriptors(alg); }
}

static inline cublasStatus_t lt_run(const CudaMatmuls *mm, const LtAlgorithm *alg, const LtMatmul *p,
                                    const cublasLtMatmulAlgo_t *algo) {
    float one = 1, beta = alg->key.add == LT_SET ? 0.0f : 1.0f;
    return cublasLtMatmul(mm->handle, alg->desc, &one, p->a, alg->a, p->b, alg->b, &beta, p->c ? p->c : p->d, alg->d,
                          p->d, alg->d, algo, mm->workspace, mm->workspace_bytes, mm->stream);
}
