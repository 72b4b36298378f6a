/*
Linear layers on the GPU: the operations of matmul.h as GEMMs of cuBLASLt, with every epilogue fused that cuBLASLt has.
cuBLASLt's matrices are column-major. A row-major (R,S) array x is the same bytes as a column-major (S,R) array, written
x' below. So each GEMM is transposed: D (m,n) = op(A) (m,k) op(B) (k,n), all dense.
  GEMM                     as D = op(A) op(B)         m   n   k    fused
  out = in weight^T        out' = weight'^T in'       OC  N   C    bias, one value a row of D; residual as C; GELU, with
                                                                   its input as cuBLASLt's "aux" matrix
  dinp = dout weight       dinp' = weight' dout'      C   N   OC   GELU'(aux); sums over the rows of D (DGELU_BGRAD)
  dweight (+)= dout^T in   dw' (+)= in' dout'^T       C   OC  N    += as C = D; sums of op(B) over k (BGRADB)
Fast path: cuBLASLt. Plain path: matmul_plain_kernel in matmul_kernels.cuh, for any shape. A fused epilogue saves one
read and one write of D. Kernels of matmul_kernels.cuh do the parts that are not fused. matmul_autotune.cuh chooses the
fastest algorithm and epilogue.
Shapes      in, dinp (N,C), out, dout (N,OC), weight (OC,C), bias (OC) floatX; gradients bf16 or fp32. FLOPs: 2 N C OC a
            GEMM. Bytes: each operand is read once, D is written once.
*/
#pragma once
#include "llmc/common/floatx.h"
#include "llmc/matmul_autotune.cuh"
#include "llmc/matmul_cublaslt.cuh"
#include "llmc/matmul_kernels.cuh"
#include "llmc/ops.h"

// a GEMM without an epilogue yet: D (m,n) = op(A) (m,k) op(B) (k,n)
static inline LtMatmul lt_gemm(void *d, DType out, const floatX *a, bool transpose_a, const floatX *b, bool transpose_b,
                               int m, int n, int k) {
    LtMatmul p = {};
    p.key = {m, n, k, transpose_a, transpose_b, out};
    p.a = a;
    p.b = b;
    p.d = d;
    return p;
}

// The GEMM and the fused parts of its epilogue. After an error of cuBLASLt nothing is launched.
static inline cublasStatus_t lt_launch(const CudaMatmuls *mm, const LtAlgorithm *alg, const LtMatmul *p) {
    if (alg->desc) {
        return lt_set_pointers(mm, alg, p) ? lt_run(mm, alg, p, &alg->algo) : CUBLAS_STATUS_INVALID_VALUE;
    }
    matmul_launch_plain(mm, p);
    return CUBLAS_STATUS_SUCCESS;
}

// The GEMM and its epilogue, by cuBLASLt and our kernels. If cuBLASLt refuses a choice, the next one replaces it for
// the rest of the run; our own GEMM comes last. Ranks may differ then: no broadcast depends on it.
static inline void lt_execute(const Exec *ex, LtMatmul *p) {
    CudaMatmuls *mm = ex->cuda->matmuls;
    LtAlgorithm *alg = lt_algorithm(mm, p, mm->autotune && !ex->skip_autotune);
    cublasStatus_t status;
    for (bool noted = false; (status = lt_launch(mm, alg, p)) != CUBLAS_STATUS_SUCCESS; noted = true) {
        if (!noted) { lt_note(mm, alg, status, "cublasLtMatmul"); }
        lt_destroy_descriptors(alg);
        lt_choose_untimed(mm, alg, p);
    }
    matmul_launch_unfused(mm, alg, p);
}

static inline void cuda_matmul_forward(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                                       const floatX *residual, Activation activation, int N, int C, int OC, Exec *ex) {
    LtMatmul p = lt_gemm(out, DT_FLOATX, weight, true, in, false, OC, N, C);
    p.bias = bias;
    p.aux = activation.pre;
    p.c = residual;
    p.key.function = activation.function;
    p.key.parts = (bias ? LT_BIAS : 0) | (activation.pre ? LT_ACTIVATION : 0);
    p.key.add = residual ? LT_ADD_C : LT_SET;
    lt_execute(ex, &p);
}

// dweight = or += dout^T in, and dbias = or += column sums of dout
static inline void lt_weight_gradient(Gradient dweight, Gradient dbias, const floatX *dout, const floatX *in,
                                      GradMode mode, int N, int C, int OC, Exec *ex) {
    bool fuse = dweight.at && dbias.at && (dweight.dtype == DT_REAL || (dbias.dtype == DT_BF16 && mode == GRAD_SET));
    if (dweight.at) {
        LtMatmul p = lt_gemm(dweight.at, dweight.dtype, in, false, dout, true, C, OC, N);
        if (mode == GRAD_ADD) {
            p.c = dweight.at;
            p.key.add = LT_ADD_IN_PLACE;
        }
        if (fuse) {
            p.sums = dbias;
            p.sums_mode = mode;
            p.key.parts = LT_SUM_B;
        }
        lt_execute(ex, &p);
    }
    if (dbias.at && !fuse) { matmul_launch_column_sums(ex->cuda->matmuls, dbias, dout, N, OC, mode); }
}

// dinp = dout weight, times an activation's slope; the activation's dbias = or += column sums of dinp
static inline void lt_input_gradient(floatX *dinp, const floatX *dout, const floatX *weight, Activation activation,
                                     GradMode mode, int N, int C, int OC, Exec *ex) {
    Gradient dbias = activation.dbias;
    bool fuse = dbias.at && (DT_FLOATX == DT_REAL || (dbias.dtype == DT_BF16 && mode == GRAD_SET));
    LtMatmul p = lt_gemm(dinp, DT_FLOATX, weight, false, dout, false, C, N, OC);
    if (activation.pre) {
        p.aux = activation.pre;
        p.key.function = activation.function;
        p.key.parts = LT_SLOPE;
    }
    if (fuse) {
        p.sums = dbias;
        p.sums_mode = mode;
        p.key.parts |= LT_SUM_D;
    }
    lt_execute(ex, &p);
    if (dbias.at && !fuse) { matmul_launch_column_sums(ex->cuda->matmuls, dbias, dinp, N, C, mode); }
}

// Weight and bias gradients first, since dinp may be in.
// cuBLASLt's sums have D's type. bf16 sums are fused for a bf16 gradient with = only: += would round twice, and the
// precision of an fp32 gradient must not depend on the fastest algorithm.
static inline void cuda_matmul_backward(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout,
                                        const floatX *in, const floatX *weight, Activation activation, GradMode mode,
                                        int N, int C, int OC, Exec *ex) {
    lt_weight_gradient(dweight, dbias, dout, in, mode, N, C, OC, ex);
    if (dinp) { lt_input_gradient(dinp, dout, weight, activation, mode, N, C, OC, ex); }
}
