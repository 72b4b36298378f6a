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

#define CPU_OP(op, ...) .op = cpu_##op,
static const Ops cpu_ops = {OPS(CPU_OP)};
