/*
Bias and residual on the GPU: a warp has a row, a lane WIDTH neighbouring columns of it at a time. WIDTH is a pack of
16 bytes, or 1 if rows are not whole packs or an array is not aligned to them.
Bytes       3NC floatX and one or two additions an element: bound by copy bandwidth. 64 warps a multiprocessor have
            64 KB of loads in flight. Every row reads the bias, from L1.
*/
#pragma once
#include "llmc/common/device.cuh"
#include "llmc/residual.h"

static constexpr int RESIDUAL_ROWS = 8;  // of a block, a warp each

template <int WIDTH>
static __global__ void __launch_bounds__(RESIDUAL_ROWS * 32)
    residual_forward_kernel(floatX *out, const floatX *in, const floatX *bias, const floatX *residual, int N, int C) {
    wait_for_previous_kernel();
    int row = (int)blockIdx.x * RESIDUAL_ROWS + warp_id();
    if (row >= N) { return; }
    for (int c = lane_id() * WIDTH; c < C; c += 32 * WIDTH) {
        size_t at = (size_t)row * C + c;
        float x[WIDTH], b[WIDTH] = {}, r[WIDTH];
        load_floats(x, in + at);
        load_floats(r, residual + at);
        if (bias) { load_floats(b, bias + c); }
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[i] = (bias ? x[i] + b[i] : x[i]) + r[i]; }
        store_floats(out + at, x);
    }
}

static inline void cuda_residual_forward(floatX *out, const floatX *in, const floatX *bias, const floatX *residual,
                                         int N, int C, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    bool packed = C % PACK == 0 && aligned_to_pack(out, in, bias, residual);
    LAUNCH((packed ? residual_forward_kernel<PACK> : residual_forward_kernel<1>), ceil_div(N, RESIDUAL_ROWS),
           RESIDUAL_ROWS * 32, 0, stream_of(ex), out, in, bias, residual, N, C);
}
