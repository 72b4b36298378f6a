/*
The CPU backend: the reference implementation of every operation, in one table. A signature that differs from ops.h does
not compile.
defines: cpu_ops
*/
#pragma once
#include "llmc/adamw.h"
#include "llmc/attention.h"
#include "llmc/classifier.h"
#include "llmc/embedding.h"
#include "llmc/gelu.h"
#include "llmc/global_norm.h"
#include "llmc/gradient.h"
#include "llmc/layernorm.h"
#include "llmc/matmul.h"
#include "llmc/residual.h"

static const Ops cpu_ops = {
    .embedding_forward = cpu_embedding_forward,
    .token_embedding_forward = cpu_token_embedding_forward,
    .position_embedding_forward = cpu_position_embedding_forward,
    .layernorm_forward = cpu_layernorm_forward,
    .layernorm_from_statistics = cpu_layernorm_from_statistics,
    .matmul_forward = cpu_matmul_forward,
    .matmul_gelu_forward = cpu_matmul_gelu_forward,
    .residual_forward = cpu_residual_forward,
    .gelu_forward = cpu_gelu_forward,
    .attention_forward = cpu_attention_forward,
    .attention_decode = cpu_attention_decode,
    .classifier = cpu_classifier,
    .classifier_statistics = cpu_classifier_statistics,
    .classifier_from_statistics = cpu_classifier_from_statistics,
    .loss_sum = cpu_loss_sum,
    .matmul_backward = cpu_matmul_backward,
    .layernorm_backward = cpu_layernorm_backward,
    .attention_backward = cpu_attention_backward,
    .embedding_backward = cpu_embedding_backward,
    .token_embedding_backward = cpu_token_embedding_backward,
    .position_embedding_backward = cpu_position_embedding_backward,
    .gradient_accumulate = cpu_gradient_accumulate,
    .global_norm_squared = cpu_global_norm_squared,
    .adamw_update = cpu_adamw_update,
};
