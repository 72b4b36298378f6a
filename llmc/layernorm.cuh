/*
LayerNorm on the GPU.
  layernorm_kernel                  y, with mean and rstd computed or given: 2NC floatX. A row is in registers
  layernorm_backward_kernel         reads each row twice, the second time out of the cache
  layernorm_backward_packed_kernel  reads dout, in and dinp once and writes dinp: 4NC floatX. L2 fetches the next rows
                                    while the present ones are used
Packs are accesses of 16 bytes: C is a multiple of Pack<floatX>::SIZE and all arrays are aligned to 16 bytes. Other
shapes go one element at a time.
Weight and bias are read by every row, out of L1. All operations are bound by copy bandwidth.

layernorm_forward and layernorm_from_statistics share their kernel, so that y has the same bits. A warp handles a
row of up to LAYERNORM_PER_LANE packs (or elements) per lane, 3072 channels of bf16: no barrier, and sums by shuffles. A
wider row takes a whole block.
Backward: a thread has the same columns of every row of its block, so that dweight and dbias are sums in registers. A
block has all columns, and every gridDim.x-th batch of rows. An A100 or larger holds all blocks at once, and each block
has the same number of batches, except the last few blocks. Each block writes its column sums to scratch, 5.3 MB up to
2048 channels of bf16, and gradient_fold adds the blocks in order. N, C and the alignment of the arrays to 16 bytes
alone decide the order of every sum.
*/
#pragma once
#include "llmc/common/device.cuh"
#include "llmc/gradient.cuh"
#include "llmc/layernorm.h"
#include "llmc/ops.h"

static constexpr int LAYERNORM_MAX_CHANNELS = 12288;

// ---- layernorm_forward; with SAVED_STATISTICS, layernorm_from_statistics

static constexpr int LAYERNORM_PER_LANE = 12;                        // packs or elements a lane, at most
static constexpr int LAYERNORM_WARP = 32, LAYERNORM_BLOCK_ROWS = 8;  // rows of a block of warps
// threads of a block that has one row, too wide for a warp
static constexpr int LAYERNORM_BLOCK_THREADS = 1024, LAYERNORM_PACKED_BLOCK_THREADS = 256;
template <int THREADS> static constexpr int layernorm_rows = THREADS == LAYERNORM_WARP ? LAYERNORM_BLOCK_ROWS : 1;

// sum over the THREADS of a row
template <int THREADS> static __device__ __forceinline__ float layernorm_row_sum(float x) {
    if constexpr (THREADS == LAYERNORM_WARP) {
        return warp_sum(x);
    } else {
        return block_sum<THREADS>(x);
    }
}

// THREADS threads, a warp or a block, handle a row, with its elements in registers: one read of memory, and all
// of a thread's loads under way before the first is used. WIDTH is a pack, of which a thread has up to PACKS, or 1 if
// rows are not whole packs or an array is not aligned. mean and rstd are outputs, or with SAVED_STATISTICS inputs.
// fmaf: no compiler may choose to round the product with one WIDTH and not with the other.
template <int THREADS, int WIDTH, int PACKS, bool SAVED_STATISTICS>
static __global__ void __launch_bounds__(THREADS *layernorm_rows<THREADS>, 1)
    layernorm_kernel(floatX *out, real *means, real *rstds, const floatX *in, const floatX *weight, const floatX *bias,
                     int N, int C) {
    wait_for_previous_kernel();
    constexpr int STRIDE = THREADS * WIDTH;
    int row = (int)(blockIdx.x * layernorm_rows<THREADS> + threadIdx.x / THREADS);
    int first = (int)threadIdx.x % THREADS * WIDTH;
    if (row >= N) { return; }
    size_t at = (size_t)row * C;
    std::conditional_t<WIDTH == 1, float[1], Pack<floatX>> x[PACKS];
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        int c = first + p * STRIDE;
        if (c >= C) { break; }
        if constexpr (WIDTH == 1) {
            x[p][0] = to_real(in[at + c]);
        } else {
            x[p] = load128(in + at + c);
        }
    }

    // statistics
    float mean, rstd;
    if constexpr (SAVED_STATISTICS) {
        mean = means[row];
        rstd = rstds[row];
    } else {
        float sum = 0, squares = 0;
        UNROLL
        for (int p = 0; p < PACKS; p++) {
            if (first + p * STRIDE >= C) { break; }
            UNROLL
            for (int i = 0; i < WIDTH; i++) { sum += x[p][i]; }
        }
        mean = layernorm_row_sum<THREADS>(sum) / (float)C;
        UNROLL
        for (int p = 0; p < PACKS; p++) {
            if (first + p * STRIDE >= C) { break; }
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                float centred = x[p][i] - mean;
                squares = fmaf(centred, centred, squares);
            }
        }
        rstd = rsqrt_device(layernorm_row_sum<THREADS>(squares) / (float)C + LAYERNORM_EPSILON);
        if (first == 0) {
            means[row] = mean;
            rstds[row] = rstd;
        }
    }

    // output
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        int c = first + p * STRIDE;
        if (c >= C) { break; }
        float w[WIDTH], b[WIDTH], y[WIDTH];
        load_floats(w, weight + c);
        load_floats(b, bias + c);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { y[i] = fmaf((x[p][i] - mean) * rstd, w[i], b[i]); }
        store_floats(out + at + c, y);
    }
}

static inline void require_channels(int C) {
    if (C > LAYERNORM_MAX_CHANNELS) {
        run_error("layernorm of %d channels: the kernels take up to %d", C, LAYERNORM_MAX_CHANNELS);
    }
}

// launches the kernel with the fewest packs per thread that cover the row
template <bool SAVED_STATISTICS, int THREADS, int WIDTH>
static inline void layernorm_launch_row(floatX *out, real *mean, real *rstd, const floatX *in, const floatX *weight,
                                        const floatX *bias, int N, int C, cudaStream_t stream) {
    constexpr int ROWS = layernorm_rows<THREADS>;
    // A thread holds up to 12 packs. Eight suffice where they cover every row: for a block's threads in bf16.
    constexpr int MOST = THREADS * WIDTH * 8 < LAYERNORM_MAX_CHANNELS ? LAYERNORM_PER_LANE : 8;
    int packs = ceil_div(C, THREADS * WIDTH);
    auto layernorm = layernorm_kernel<THREADS, WIDTH, MOST, SAVED_STATISTICS>;
    if constexpr (WIDTH > 1) {  // narrow rows need fewer registers
        if (packs <= 8) { layernorm = layernorm_kernel<THREADS, WIDTH, 8, SAVED_STATISTICS>; }
        if (packs <= 4) { layernorm = layernorm_kernel<THREADS, WIDTH, 4, SAVED_STATISTICS>; }
    }
    LAUNCH(layernorm, ceil_div(N, ROWS), THREADS * ROWS, 0, stream, out, mean, rstd, in, weight, bias, N, C);
}

template <bool SAVED_STATISTICS>
static inline void layernorm_launch(floatX *out, real *mean, real *rstd, const floatX *in, const floatX *weight,
                                    const floatX *bias, int N, int C, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE, WARP = LAYERNORM_WARP;
    bool packed = C % PACK == 0 && aligned_to_pack(out, in, weight, bias);
    bool by_warps = C <= WARP * LAYERNORM_PER_LANE * (packed ? PACK : 1);
    require_channels(C);
    auto launch = layernorm_launch_row<SAVED_STATISTICS, LAYERNORM_BLOCK_THREADS, 1>;
    if (packed) { launch = layernorm_launch_row<SAVED_STATISTICS, LAYERNORM_PACKED_BLOCK_THREADS, PACK>; }
    if (by_warps) { launch = layernorm_launch_row<SAVED_STATISTICS, WARP, 1>; }
    if (by_warps && packed) { launch = layernorm_launch_row<SAVED_STATISTICS, WARP, PACK>; }
    launch(out, mean, rstd, in, weight, bias, N, C, stream_of(ex));
}

static inline void cuda_layernorm_forward(floatX *out, real *mean, real *rstd, const floatX *in, const floatX *weight,
                                          const floatX *bias, int N, int C, Exec *ex) {
    layernorm_launch<false>(out, mean, rstd, in, weight, bias, N, C, ex);
}

static inline void cuda_layernorm_from_statistics(floatX *out, const floatX *in, const real *mean, const real *rstd,
                                                  const floatX *weight, const floatX *bias, int N, int C, Exec *ex) {
    layernorm_launch<true>(out, (real *)mean, (real *)rstd, in, weight, bias, N, C, ex);
}

// ---- backward

// N, C and the alignment of the arrays decide the grid, and with it the order of every sum.
static constexpr int LAYERNORM_GRID = 108;  // multiprocessors of an A100, times the blocks of each:
static constexpr int LAYERNORM_PLAIN_BLOCKS = 1, LAYERNORM_PACKED_BLOCKS = 3;  // at least, for __launch_bounds__
// the plain kernel
static constexpr int LAYERNORM_BACKWARD_THREADS = 512;  // of a block
static constexpr int LAYERNORM_COLUMNS = 24;            // of a thread
// the packed kernel
static constexpr int LAYERNORM_BATCH_THREADS = 256;  // of a block
static constexpr int LAYERNORM_BATCH = 2;            // rows at once
static constexpr int LAYERNORM_LINE_THREADS = 8;     // threads that have 128 bytes of a row, a line of L2

struct LayernormGradients {
    floatX *dinp;
    const floatX *dout, *in, *weight;
    const real *mean, *rstd;
};

// Reduces the threads' sums of g and of g n to sums over each row. of_warp (warps,ROWS,2) is one of two buffers, which
// calls use in turns, so that one barrier a call is enough.
template <int ROWS>
static __device__ __forceinline__ void layernorm_share_sums(float (&sum_g)[ROWS], float (&sum_gn)[ROWS],
                                                            SharedPtr<float> of_warp) {
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        float g = warp_sum(sum_g[r]), gn = warp_sum(sum_gn[r]);
        int at = (warp_id() * ROWS + r) * 2;
        if (lane_id() == 0) {
            of_warp[at] = g;
            of_warp[at + 1] = gn;
        }
        sum_g[r] = sum_gn[r] = 0;
    }
    __syncthreads();  // every warp's sums are there, and all warps have read the other buffer, which is written next
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            sum_g[r] += of_warp[(warp * ROWS + r) * 2];
            sum_gn[r] += of_warp[(warp * ROWS + r) * 2 + 1];
        }
    }
}

// The plain kernel: a row at a time, of any width. The first pass over the row adds up dweight, dbias and the row's
// sums, the second writes dinp. partial (blocks,2,C) = the blocks' column sums, for dweight and for dbias.
// WIDTH is a pack, or 1 if rows are not whole packs or an array is not aligned.
template <int WIDTH>
static __global__ void __launch_bounds__(LAYERNORM_BACKWARD_THREADS, LAYERNORM_PLAIN_BLOCKS)
    layernorm_backward_kernel(LayernormGradients a, float *partial, int N, int C) {
    wait_for_previous_kernel();
    constexpr int PACKS = LAYERNORM_COLUMNS / WIDTH, BUFFER = LAYERNORM_BACKWARD_THREADS / 32 * 2;
    SHARED_ARRAY(float, of_warp, 2 * BUFFER);
    float dweight[PACKS][WIDTH] = {}, dbias[PACKS][WIDTH] = {};
    int first = (int)threadIdx.x * WIDTH, stride = (int)blockDim.x * WIDTH, buffer = 0;
    for (int row = (int)blockIdx.x; row < N; row += (int)gridDim.x, buffer ^= 1) {
        size_t at = (size_t)row * C;
        float mean = a.mean[row], rstd = a.rstd[row], sum_g[1] = {0}, sum_gn[1] = {0};
        UNROLL
        for (int p = 0; p < PACKS; p++) {
            int c = first + p * stride;
            if (c >= C) { break; }
            float dy[WIDTH], x[WIDTH], w[WIDTH];
            load_floats(dy, a.dout + at + c);
            load_floats(x, a.in + at + c);
            load_floats(w, a.weight + c);
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                float normed = (x[i] - mean) * rstd, g = dy[i] * w[i];
                sum_g[0] += g;
                sum_gn[0] = fmaf(g, normed, sum_gn[0]);
                dweight[p][i] = fmaf(dy[i], normed, dweight[p][i]);
                dbias[p][i] += dy[i];
            }
        }
        layernorm_share_sums(sum_g, sum_gn, of_warp + buffer * BUFFER);
        float inverse_C = 1 / (float)C, mean_g = sum_g[0] * inverse_C, mean_gn = sum_gn[0] * inverse_C;
        for (int c = first; c < C; c += stride) {
            float dy[WIDTH], x[WIDTH], w[WIDTH], dx[WIDTH];
            load_floats(dy, a.dout + at + c);
            load_floats(x, a.in + at + c);
            load_floats(w, a.weight + c);
            load_floats(dx, a.dinp + at + c);
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                float normed = (x[i] - mean) * rstd, g = dy[i] * w[i];
                float through = rstd * (g - mean_g - normed * mean_gn);
                dx[i] += through;
            }
            store_floats(a.dinp + at + c, dx);
        }
    }
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        int c = first + p * stride;
        float *to = partial + (size_t)blockIdx.x * 2 * C + c;
        if (c >= C) { break; }
        store_floats(to, dweight[p]);
        store_floats(to + C, dbias[p]);
    }
}

// brings a batch of rows into L2, by one thread a line
static __device__ __forceinline__ void layernorm_prefetch(const LayernormGradients &a, int first, int c, int N, int C) {
    if (c >= C || threadIdx.x % LAYERNORM_LINE_THREADS) { return; }
    UNROLL
    for (int r = 0; r < LAYERNORM_BATCH; r++) {
        size_t at = (size_t)(first + r) * C + c;
        if (first + r >= N) { break; }
        prefetch_l2(a.dout + at);
        prefetch_l2(a.in + at);
        prefetch_l2(a.dinp + at);
    }
}

// The same for rows of one pack a thread: up to 2048 channels of bf16. A batch is 2 rows, kept in registers until
// dinp is written: each element is read once. Three arrays of 2 rows are 60 KB per multiprocessor of an H100 (630
// threads, 16 bytes each): in flight from memory to L2 while the threads compute, from L2 while the threads wait.
static __global__ void __launch_bounds__(LAYERNORM_BATCH_THREADS, LAYERNORM_PACKED_BLOCKS)
    layernorm_backward_packed_kernel(LayernormGradients a, float *partial, int N, int C) {
    wait_for_previous_kernel();
    constexpr int WIDTH = Pack<floatX>::SIZE, ROWS = LAYERNORM_BATCH, BUFFER = LAYERNORM_BATCH_THREADS / 32 * 2 * ROWS;
    SHARED_ARRAY(float, of_warp, 2 * BUFFER);
    float dweight[WIDTH] = {}, dbias[WIDTH] = {};
    int c = (int)threadIdx.x * WIDTH, stride = (int)gridDim.x * ROWS, buffer = 0;
    for (int first = (int)blockIdx.x * ROWS; first < N; first += stride, buffer ^= 1) {
        int rows = c < C ? min(ROWS, N - first) : 0;  // of this thread: a thread beyond the row has none
        size_t at = (size_t)first * C + c;
        Pack<floatX> dout[ROWS], in[ROWS], dinp[ROWS];
        float mean[ROWS], rstd[ROWS], sum_g[ROWS] = {}, sum_gn[ROWS] = {};
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) { break; }
            mean[r] = a.mean[first + r];
            rstd[r] = a.rstd[first + r];
            dout[r] = load128_streaming(a.dout + at + (size_t)r * C);
            in[r] = load128_streaming(a.in + at + (size_t)r * C);
            dinp[r] = load128(a.dinp + at + (size_t)r * C);
        }
        layernorm_prefetch(a, first + stride, c, N, C);

        // the row's sums and the columns' sums
        Pack<floatX> weight;
        if (rows > 0) { weight = load128(a.weight + c); }
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) { break; }
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                float dy = dout[r][i], normed = (in[r][i] - mean[r]) * rstd[r], g = dy * weight[i];
                sum_g[r] += g;
                sum_gn[r] = fmaf(g, normed, sum_gn[r]);
                dweight[i] = fmaf(dy, normed, dweight[i]);
                dbias[i] += dy;
            }
        }
        layernorm_share_sums(sum_g, sum_gn, of_warp + buffer * BUFFER);

        // dinp
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) { break; }
            float inverse_C = 1 / (float)C, mean_g = sum_g[r] * inverse_C, mean_gn = sum_gn[r] * inverse_C, dx[WIDTH];
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                float normed = (in[r][i] - mean[r]) * rstd[r], g = dout[r][i] * weight[i];
                float through = rstd[r] * (g - mean_g - normed * mean_gn);
                dx[i] = dinp[r][i] + through;
            }
            store128(a.dinp + at + (size_t)r * C, Pack<floatX>::of(dx));
        }
    }
    if (c >= C) { return; }
    store_floats(partial + (size_t)blockIdx.x * 2 * C + c, dweight);
    store_floats(partial + (size_t)blockIdx.x * 2 * C + C + c, dbias);
}

// threads of a block; row_threads: packs or elements of a row
static inline int layernorm_threads(int row_threads, int max_threads) {
    return min(ceil_div(row_threads, 32) * 32, max_threads);
}

// blocks of `threads` that an A100 holds at once
static inline int layernorm_limit(bool packed, int threads) {
    int most = packed ? LAYERNORM_PACKED_BLOCKS * LAYERNORM_BATCH_THREADS
                      : LAYERNORM_PLAIN_BLOCKS * LAYERNORM_BACKWARD_THREADS;
    return LAYERNORM_GRID * (most / threads);
}

// at most `limit` blocks, each with the same number of batches
static inline int layernorm_blocks(int limit, int batches) {
    return ceil_div(batches, ceil_div(batches, min(limit, batches)));
}

// the backward's scratch in bytes, at most: 2C column sums a block, with as many blocks as packs allow
static inline size_t layernorm_partials(int N, int C) {
    int threads = layernorm_threads(ceil_div(C, Pack<floatX>::SIZE), LAYERNORM_BATCH_THREADS);
    return (size_t)min(layernorm_limit(true, threads), N) * 2 * (size_t)C * sizeof(float);
}

static inline void cuda_layernorm_backward(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout,
                                           const floatX *in, const floatX *weight, const real *mean, const real *rstd,
                                           GradMode mode, int N, int C, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    LayernormGradients arrays = {dinp, dout, in, weight, mean, rstd};
    bool aligned = C % PACK == 0 && aligned_to_pack(dinp, dout, in, weight);
    bool packed = aligned && C <= LAYERNORM_BATCH_THREADS * PACK;
    float *partial = partials_of<float>(ex, layernorm_partials(N, C) / sizeof(float), "layernorm_backward");
    require_channels(C);
    auto layernorm_backward = packed    ? layernorm_backward_packed_kernel
                              : aligned ? layernorm_backward_kernel<PACK>
                                        : layernorm_backward_kernel<1>;
    int row_threads = ceil_div(C, aligned ? PACK : 1), batches = packed ? ceil_div(N, LAYERNORM_BATCH) : N;
    int threads = layernorm_threads(row_threads, packed ? LAYERNORM_BATCH_THREADS : LAYERNORM_BACKWARD_THREADS);
    int blocks = layernorm_blocks(layernorm_limit(packed, threads), batches);
    LAUNCH(layernorm_backward, blocks, threads, 0, stream_of(ex), arrays, partial, N, C);
    gradient_fold(dweight, dbias, partial, mode, blocks, 2 * C, C, stream_of(ex));
}
