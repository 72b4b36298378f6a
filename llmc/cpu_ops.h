// The operations on the CPU: the fast ones and the reference's. A signature that differs from ops.h does not compile.
#pragma once
#include "llmc/activation_cpu.h"   // IWYU pragma: export
#include "llmc/adamw_cpu.h"        // IWYU pragma: export
#include "llmc/attention_cpu.h"    // IWYU pragma: export
#include "llmc/classifier_cpu.h"   // IWYU pragma: export
#include "llmc/embedding_cpu.h"    // IWYU pragma: export
#include "llmc/global_norm_cpu.h"  // IWYU pragma: export
#include "llmc/gradient_cpu.h"     // IWYU pragma: export
#include "llmc/layernorm_cpu.h"    // IWYU pragma: export
#include "llmc/matmul_cpu.h"       // IWYU pragma: export
#include "llmc/muon_cpu.h"         // IWYU pragma: export
#include "llmc/ops.h"
#include "llmc/residual_cpu.h"  // IWYU pragma: export

#define CPU_OP(op, ...) .op = cpu_##op,
#define REFERENCE_OP(op, ...) .op = reference_##op,
static const Ops cpu_ops = {OPS(CPU_OP)};
static const Ops reference_ops = {OPS(REFERENCE_OP)};
