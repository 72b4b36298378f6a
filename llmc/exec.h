/*
Exec: where an operation runs and what it may use there. A field of the model, zero at first, handed to every operation;
what the operations keep in it is freed by onednn_free.
defines: Exec, RoundedCopies
*/
#pragma once
#include "ops.h"

struct PreparedMatmuls;  // matmul_onednn.h: oneDNN's engine and one primitive a shape
struct CudaExec;         // device.cuh: the stream, and scratch for sums

// -f 2: matmul inputs rounded to bf16. The buffers belong to the plan; params mirrors the whole parameter block.
typedef struct {
    bf16 *in, *dout, *params;
    const floatX *source;  // the parameter block that params mirrors
    size_t count;          // its elements
} RoundedCopies;

struct Exec {
    struct PreparedMatmuls *matmuls;
    RoundedCopies rounded;  // all NULL: matmuls take their inputs as they are stored
    struct CudaExec *cuda;  // NULL on a CPU
    bool rare_shapes;  // what comes next has shapes that seldom come again: it is not worth choosing algorithms for
};
