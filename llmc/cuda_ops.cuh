/*
The CUDA backend: the kernels of every operation, in one table. A signature that differs from ops.h does not compile.
defines: cuda_ops, CUDA_MATMUL_WORKSPACE
*/
#pragma once
#include "llmc/adamw.cuh"
#include "llmc/attention.cuh"
#include "llmc/classifier.cuh"
#include "llmc/embedding.cuh"
#include "llmc/gelu.cuh"
#include "llmc/global_norm.cuh"
#include "llmc/gradient.cuh"
#include "llmc/layernorm.cuh"
#include "llmc/matmul.cuh"
#include "llmc/residual.cuh"

#define CUDA_OP(op, ...) .op = cuda_##op,
static const Ops cuda_ops = {OPS(CUDA_OP)};

// ---- scratch, for backend.h

enum {
    CUDA_MATMUL_WORKSPACE = 64 << 20
};  // minimum of bytes: cuBLASLt's workspace, split-k included, and the sums of matmul_kernels.cuh
