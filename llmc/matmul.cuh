/*
Linear layers on the GPU: the operations of matmul.h through cuBLASLt, with all fused that it can fuse.
cuBLASLt's matrices are column-major. A row-major (R,S) array is, without a byte moved, a column-major (S,R) one, below
written x', so every product is asked for transposed: D (m,n) = op(A) (m,k) op(B) (k,n), all dense.
  product                  as D = op(A) op(B)         m   n   k    fused into it
  out = in weight^T        out' = weight'^T in'       OC  N   C    bias, a value a row of D; residual as C; gelu, whose
                                                                   input is kept as cuBLASLt's "aux" matrix
  dinp = dout weight       dinp' = weight' dout'      C   N   OC   gelu'(aux); sums over the rows of D (DGELU_BGRAD)
  dweight (+)= dout^T in   dw' (+)= in' dout'^T       C   OC  N    += as C = D; sums of op(B) over k (BGRADB)
What of this cuBLASLt has no kernel for is done by those of matmul_kernels.cuh; matmul_autotune.cuh chooses who does what.
defines: cuda_matmul_forward, cuda_matmul_gelu_forward, cuda_matmul_backward
*/
#pragma once
#include "llmc/matmul_autotune.cuh"

// ---- a product, whoever does what of it

static inline void lt_multiply(const Exec *ex, LtProduct *p) {
    CudaMatmuls *mm = ex->cuda->matmuls;
    const LtPlan *plan = lt_plan(mm, p, !ex->rare_shapes);
    const LtKey *k = &p->key;
    if (plan->desc) {
        lt_set_pointers(mm, plan, p);
        lt_check(mm, plan, lt_run(mm, plan, p, &plan->algo), "cublasLtMatmul");
    } else if (k->out == DT_BF16) {
        lt_launch_tiles<bf16>(mm, p);
    } else {
        lt_launch_tiles<real>(mm, p);
    }
    lt_run_rest(mm, plan, p);
}

// D (m,n) = op(A) (m,k) op(B) (k,n), as yet without an epilogue
static inline LtProduct lt_product(void *d, DType out, const floatX *a, bool transpose_a, const floatX *b,
                                   bool transpose_b, int m, int n, int k) {
    LtProduct p = {};
    p.key.m = m, p.key.n = n, p.key.k = k;
    p.key.transpose_a = transpose_a, p.key.transpose_b = transpose_b, p.key.out = out;
    p.a = a, p.b = b, p.d = d;
    return p;
}

static inline void cuda_matmul_forward(floatX *out, const floatX *in, const floatX *weight, const floatX *bias,
                                       const floatX *residual, int N, int C, int OC, Exec *ex) {
    LtProduct p = lt_product(out, DT_FLOATX, weight, true, in, false, OC, N, C);
    if (bias) { p.bias = bias, p.key.parts = LT_BIAS; }
    if (residual) { p.c = residual, p.key.add = LT_ADD_C; }
    lt_multiply(ex, &p);
}

static inline void cuda_matmul_gelu_forward(floatX *out, floatX *pre, const floatX *in, const floatX *weight,
                                            const floatX *bias, int N, int C, int OC, Exec *ex) {
    LtProduct p = lt_product(out, DT_FLOATX, weight, true, in, false, OC, N, C);
    p.aux = pre, p.bias = bias;
    p.key.parts = bias ? LT_GELU | LT_BIAS : LT_GELU;
    lt_multiply(ex, &p);
}

// Weight and bias gradients first, since dinp may be in. dgelu_bias (C) (+)= column sums of dinp with gelu'(gelu_pre)
// in it, the bias gradient of the layer below. It is left alone where gelu_pre or dinp is NULL.
// cuBLASLt's sums have D's type, so where that is bf16 they are only taken for a bf16 gradient that is set: added to
// one they would be rounded twice, and how precise an fp32 one is must not depend on what was fastest.
static inline void cuda_matmul_backward(floatX *dinp, Gradient dweight, Gradient dbias, Gradient dgelu_bias,
                                        const floatX *dout, const floatX *in, const floatX *weight,
                                        const floatX *gelu_pre, GradMode mode, int N, int C, int OC, Exec *ex) {
    CudaMatmuls *mm = ex->cuda->matmuls;
    bool fuse_dbias =
        dweight.at && dbias.at && (dweight.dtype == DT_REAL || (dbias.dtype == DT_BF16 && mode == GRAD_SET));
    if (dweight.at) {
        LtProduct p = lt_product(dweight.at, dweight.dtype, in, false, dout, true, C, OC, N);
        if (mode == GRAD_ADD) { p.c = dweight.at, p.key.add = LT_ADD_IN_PLACE; }
        if (fuse_dbias) { p.sums = dbias, p.sums_mode = mode, p.key.parts = LT_SUM_B; }
        lt_multiply(ex, &p);
    }
    if (dbias.at && !fuse_dbias) { lt_launch_sums(mm, dbias, dout, N, OC, mode); }
    if (dinp) {
        bool sums = gelu_pre && dgelu_bias.at;
        bool fuse_sums = sums && (DT_FLOATX == DT_REAL || (dgelu_bias.dtype == DT_BF16 && mode == GRAD_SET));
        LtProduct p = lt_product(dinp, DT_FLOATX, weight, false, dout, false, C, N, OC);
        if (gelu_pre) { p.aux = (floatX *)gelu_pre, p.key.parts = LT_DGELU; }
        if (fuse_sums) { p.sums = dgelu_bias, p.sums_mode = mode, p.key.parts |= LT_SUM_D; }
        lt_multiply(ex, &p);
        if (sums && !fuse_sums) { lt_launch_sums(mm, dgelu_bias, dinp, N, C, mode); }
    }
}
