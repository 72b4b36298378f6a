// The CUDA backend: the kernels of every operation, in one table. A signature that differs from ops.h does not compile.
#pragma once
#include "llmc/activation.cuh"   // IWYU pragma: export
#include "llmc/adamw.cuh"        // IWYU pragma: export
#include "llmc/attention.cuh"    // IWYU pragma: export
#include "llmc/classifier.cuh"   // IWYU pragma: export
#include "llmc/embedding.cuh"    // IWYU pragma: export
#include "llmc/global_norm.cuh"  // IWYU pragma: export
#include "llmc/gradient.cuh"     // IWYU pragma: export
#include "llmc/layernorm.cuh"    // IWYU pragma: export
#include "llmc/matmul.cuh"       // IWYU pragma: export
#include "llmc/muon.cuh"         // IWYU pragma: export
#include "llmc/ops.h"
#include "llmc/residual.cuh"  // IWYU pragma: export

#define CUDA_OP(op, ...) .op = cuda_##op,
static const Ops cuda_ops = {OPS(CUDA_OP)};

// ---- scratch, for backend.h

// minimum, in bytes: cuBLASLt's workspace, split-k included, and the sums of matmul_kernels.cuh
enum { CUDA_MATMUL_WORKSPACE = 64 << 20 };
