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

static const Ops cuda_ops = {
    .embedding_forward = cuda_embedding_forward,
    .token_embedding_forward = cuda_token_embedding_forward,
    .position_embedding_forward = cuda_position_embedding_forward,
    .layernorm_forward = cuda_layernorm_forward,
    .layernorm_from_statistics = cuda_layernorm_from_statistics,
    .matmul_forward = cuda_matmul_forward,
    .matmul_gelu_forward = cuda_matmul_gelu_forward,
    .residual_forward = cuda_residual_forward,
    .gelu_forward = cuda_gelu_forward,
    .attention_forward = cuda_attention_forward,
    .attention_decode = cuda_attention_decode,
    .classifier = cuda_classifier,
    .classifier_statistics = cuda_classifier_statistics,
    .classifier_from_statistics = cuda_classifier_from_statistics,
    .loss_sum = cuda_loss_sum,
    .matmul_backward = cuda_matmul_backward,
    .layernorm_backward = cuda_layernorm_backward,
    .attention_backward = cuda_attention_backward,
    .embedding_backward = cuda_embedding_backward,
    .token_embedding_backward = cuda_token_embedding_backward,
    .position_embedding_backward = cuda_position_embedding_backward,
    .gradient_accumulate = cuda_gradient_accumulate,
    .global_norm_squared = cuda_global_norm_squared,
    .adamw_update = cuda_adamw_update,
};

// ---- scratch, for backend.h

enum {
    CUDA_MATMUL_WORKSPACE = 64 << 20
};  // bytes, at least: cuBLASLt's workspace, split-k included, and the sums of matmul_kernels.cuh
