/*
LayerNorm on the GPU. Rows stay in registers, so memory sees each element once:
  forward      reads in, writes out: 2NC floatX. With the residual 4NC: reads in and residual, writes sum and out
  normalise    the forward without its two reductions: 2NC
  backward     reads dout, in and dinp, writes dinp: 4NC, and both column sums come from the same visit
Weight and bias are read by every row, but out of L1. All three are bound by copy bandwidth.

Forward, normalise: one kernel, so that their bits agree. A warp has a row while that is at most LAYERNORM_PIECES packs
a lane (3072 channels of bf16): no barrier, and shuffles alone for the sums. Beyond that a block has a row. A thread
loads all of its part of the row at once, then sums, subtracts the mean, sums squares, and writes.
Backward: a thread has the same columns of every row it meets, so that dweight and dbias are sums in its registers; a
block has all columns, and every gridDim.x-th batch of rows. A row's two sums cross the block's warps through shared
memory: one barrier a batch, since batches alternate between two buffers. Up to 2048 channels of bf16 a batch is 2 rows,
loaded at once: 3 arrays, 2 rows and 16 bytes of some 560 threads keep 50 KB a multiprocessor of an H200 under way.
Wider rows, and rows that are not whole packs, go one at a time and are read a second time, out of the cache. There are
as many blocks as make LAYERNORM_THREADS threads, which an A100 and whatever is larger hold at once. Each writes its
column sums to scratch, 5 MB in all, and a second kernel adds these up in order. N and C alone decide who adds what.
defines: cuda_layernorm_forward, cuda_residual_layernorm_forward, cuda_layernorm_normalise, cuda_layernorm_backward,
         layernorm_partials, LAYERNORM_MAX_CHANNELS
*/
#pragma once
#include "llmc/common/device.cuh"
#include "llmc/gradient.cuh"
#include "llmc/layernorm.h"

static constexpr int LAYERNORM_MAX_CHANNELS = 12288;

// ---- a piece: neighbours in a row as they are stored, a pack or, where rows are not whole packs, one element

template <int WIDTH> using LayernormPiece = std::conditional_t<WIDTH == 1, floatX, Pack<floatX>>;

template <int WIDTH> static __device__ __forceinline__ LayernormPiece<WIDTH> layernorm_load(const floatX *from) {
    if constexpr (WIDTH == 1) {
        return *from;
    } else {
        return load128(from);
    }
}

template <int WIDTH> static __device__ __forceinline__ LayernormPiece<WIDTH> layernorm_load_last(const floatX *from) {
    if constexpr (WIDTH == 1) {
        return *from;
    } else {
        return load128_streaming(from);
    }
}

template <int WIDTH> static __device__ __forceinline__ void layernorm_store(floatX *to, LayernormPiece<WIDTH> piece) {
    if constexpr (WIDTH == 1) {
        *to = piece;
    } else {
        store128(to, piece);
    }
}

template <int WIDTH>
static __device__ __forceinline__ LayernormPiece<WIDTH> layernorm_piece(const float (&value)[WIDTH]) {
    if constexpr (WIDTH == 1) {
        return to_floatX(value[0]);
    } else {
        return Pack<floatX>::of(value);
    }
}

static __device__ __forceinline__ float layernorm_element(floatX piece, int) { return to_real(piece); }
static __device__ __forceinline__ float layernorm_element(Pack<floatX> piece, int i) { return piece[i]; }

// ---- forward and normalise

enum LayernormKind { LAYERNORM_PLAIN, LAYERNORM_RESIDUAL, LAYERNORM_NORMALISE };
static constexpr int LAYERNORM_PIECES = 12;  // that a thread holds at the most
static constexpr int LAYERNORM_WARP = 32, LAYERNORM_ROWS_OF_BLOCK = 8;

// threads that share a row which is too much for a warp
template <int WIDTH>
static constexpr int layernorm_block = LAYERNORM_MAX_CHANNELS / LAYERNORM_PIECES / (WIDTH == 1 ? 1 : 4);

// over the THREADS of a row
template <int THREADS> static __device__ __forceinline__ float layernorm_row_sum(float x) {
    if constexpr (THREADS == LAYERNORM_WARP) {
        return warp_sum(x);
    } else {
        return block_sum<THREADS>(x);
    }
}

struct LayernormArrays {
    floatX *sum, *out;  // sum, in_bias (or NULL) and residual: with LAYERNORM_RESIDUAL
    real *mean, *rstd;  // read by LAYERNORM_NORMALISE, written by the others
    const floatX *in, *in_bias, *residual, *weight, *bias;
};

// x + bias + residual, or without a bias where that is NULL
template <int WIDTH>
static __device__ __forceinline__ LayernormPiece<WIDTH> layernorm_add(LayernormPiece<WIDTH> x, const floatX *bias,
                                                                      LayernormPiece<WIDTH> residual) {
    float sum[WIDTH];
    UNROLL
    for (int i = 0; i < WIDTH; i++) { sum[i] = layernorm_element(x, i); }
    if (bias) {
        LayernormPiece<WIDTH> b = layernorm_load<WIDTH>(bias);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { sum[i] += layernorm_element(b, i); }
    }
    UNROLL
    for (int i = 0; i < WIDTH; i++) { sum[i] += layernorm_element(residual, i); }
    return layernorm_piece<WIDTH>(sum);
}

// out of one piece. fmaf, so that no compiler chooses to round the product here and not there
template <int WIDTH>
static __device__ __forceinline__ LayernormPiece<WIDTH> layernorm_normalised(LayernormPiece<WIDTH> x, float mean,
                                                                             float rstd, LayernormPiece<WIDTH> weight,
                                                                             LayernormPiece<WIDTH> bias) {
    float y[WIDTH];
    UNROLL
    for (int i = 0; i < WIDTH; i++) {
        float normed = (layernorm_element(x, i) - mean) * rstd;
        y[i] = fmaf(normed, layernorm_element(weight, i), layernorm_element(bias, i));
    }
    return layernorm_piece<WIDTH>(y);
}

// The thread's rectangles of the row that begins at element `at`: of in, or of in + in_bias + residual
template <int STRIDE, int PIECES, int WIDTH, LayernormKind KIND>
static __device__ __forceinline__ void layernorm_load_row(LayernormPiece<WIDTH> (&x)[PIECES],
                                                          const LayernormArrays &arrays, size_t at, int begin, int C) {
    LayernormPiece<WIDTH> residual[PIECES];
    UNROLL
    for (int p = 0; p < PIECES; p++) {
        int c = begin + p * STRIDE;
        if (c >= C) { break; }
        x[p] = layernorm_load<WIDTH>(arrays.in + at + c);
        if constexpr (KIND == LAYERNORM_RESIDUAL) { residual[p] = layernorm_load<WIDTH>(arrays.residual + at + c); }
    }
    UNROLL
    for (int p = 0; p < PIECES; p++) {
        int c = begin + p * STRIDE;
        if (KIND != LAYERNORM_RESIDUAL || c >= C) { break; }
        x[p] = layernorm_add<WIDTH>(x[p], arrays.in_bias ? arrays.in_bias + c : NULL, residual[p]);
    }
}

template <int THREADS, int PIECES, int WIDTH>
static __device__ __forceinline__ void
layernorm_find_statistics(float &mean, float &rstd, const LayernormPiece<WIDTH> (&x)[PIECES], int begin, int C) {
    float sum = 0, squares = 0;
    UNROLL
    for (int p = 0; p < PIECES; p++) {
        if (begin + p * THREADS * WIDTH >= C) { break; }
        UNROLL
        for (int i = 0; i < WIDTH; i++) { sum += layernorm_element(x[p], i); }
    }
    mean = layernorm_row_sum<THREADS>(sum) / (float)C;
    UNROLL
    for (int p = 0; p < PIECES; p++) {
        if (begin + p * THREADS * WIDTH >= C) { break; }
        UNROLL
        for (int i = 0; i < WIDTH; i++) {
            float centred = layernorm_element(x[p], i) - mean;
            squares += centred * centred;
        }
    }
    rstd = rsqrtf(layernorm_row_sum<THREADS>(squares) / (float)C + LAYERNORM_EPSILON);
}

// THREADS a row: a warp, or the block
template <int THREADS, int PIECES, int WIDTH, LayernormKind KIND>
static __global__ void __launch_bounds__(THREADS == LAYERNORM_WARP ? LAYERNORM_WARP * LAYERNORM_ROWS_OF_BLOCK : THREADS,
                                         1) layernorm_kernel(LayernormArrays arrays, int N, int C) {
    constexpr int STRIDE = THREADS * WIDTH;
    int row = (int)(blockIdx.x * (blockDim.x / THREADS) + threadIdx.x / THREADS);
    int begin = (int)threadIdx.x % THREADS * WIDTH;
    if (row >= N) { return; }
    size_t at = (size_t)row * C;
    LayernormPiece<WIDTH> x[PIECES];
    layernorm_load_row<STRIDE, PIECES, WIDTH, KIND>(x, arrays, at, begin, C);
    float mean, rstd;
    if constexpr (KIND == LAYERNORM_NORMALISE) {
        mean = arrays.mean[row], rstd = arrays.rstd[row];
    } else {
        layernorm_find_statistics<THREADS, PIECES, WIDTH>(mean, rstd, x, begin, C);
        if (begin == 0 && arrays.out) { arrays.mean[row] = mean, arrays.rstd[row] = rstd; }
    }
    UNROLL
    for (int p = 0; p < PIECES; p++) {
        int c = begin + p * STRIDE;
        if (c >= C) { break; }
        if constexpr (KIND == LAYERNORM_RESIDUAL) {
            layernorm_store<WIDTH>(arrays.sum + at + c, x[p]);
            if (!arrays.out) { continue; }
        }
        LayernormPiece<WIDTH> weight = layernorm_load<WIDTH>(arrays.weight + c);
        LayernormPiece<WIDTH> bias = layernorm_load<WIDTH>(arrays.bias + c);
        layernorm_store<WIDTH>(arrays.out + at + c, layernorm_normalised<WIDTH>(x[p], mean, rstd, weight, bias));
    }
}

static inline void layernorm_check_channels(int C) {
    if (C > LAYERNORM_MAX_CHANNELS) {
        run_error("layernorm of %d channels: the kernels take up to %d", C, LAYERNORM_MAX_CHANNELS);
    }
}

// with the fewest rectangles a thread that hold the row
template <int THREADS, int WIDTH, LayernormKind KIND>
static inline void layernorm_launch_pieces(LayernormArrays arrays, int N, int C, cudaStream_t stream) {
    constexpr int ROWS = THREADS == LAYERNORM_WARP ? LAYERNORM_ROWS_OF_BLOCK : 1;
    int blocks = ceil_div(N, ROWS), rectangles = ceil_div(C, THREADS * WIDTH);
    if (rectangles <= 4) {
        LAUNCH((layernorm_kernel<THREADS, 4, WIDTH, KIND>), blocks, THREADS * ROWS, 0, stream, arrays, N, C);
    } else if (rectangles <= 8) {
        LAUNCH((layernorm_kernel<THREADS, 8, WIDTH, KIND>), blocks, THREADS * ROWS, 0, stream, arrays, N, C);
    } else {
        LAUNCH((layernorm_kernel<THREADS, 12, WIDTH, KIND>), blocks, THREADS * ROWS, 0, stream, arrays, N, C);
    }
}

template <int WIDTH, LayernormKind KIND>
static inline void layernorm_launch_width(LayernormArrays arrays, int N, int C, cudaStream_t stream) {
    if (C <= LAYERNORM_WARP * LAYERNORM_PIECES * WIDTH) {
        layernorm_launch_pieces<LAYERNORM_WARP, WIDTH, KIND>(arrays, N, C, stream);
    } else {
        layernorm_launch_pieces<layernorm_block<WIDTH>, WIDTH, KIND>(arrays, N, C, stream);
    }
}

template <LayernormKind KIND>
static inline void layernorm_launch(LayernormArrays arrays, int N, int C, cudaStream_t stream) {
    constexpr int PACK = Pack<floatX>::SIZE;
    bool aligned = C % PACK == 0 && aligned_to_pack(arrays.sum, arrays.out, arrays.in, arrays.in_bias, arrays.residual,
                                                    arrays.weight, arrays.bias);
    layernorm_check_channels(C);
    if (aligned) {
        layernorm_launch_width<PACK, KIND>(arrays, N, C, stream);
    } else {
        layernorm_launch_width<1, KIND>(arrays, N, C, stream);
    }
}

static inline void cuda_layernorm_forward(floatX *out, real *mean, real *rstd, const floatX *in, const floatX *weight,
                                          const floatX *bias, int N, int C, Exec *ex) {
    LayernormArrays arrays = {NULL, out, mean, rstd, in, NULL, NULL, weight, bias};
    layernorm_launch<LAYERNORM_PLAIN>(arrays, N, C, stream_of(ex));
}

// sum (N,C) = in + in_bias (C) + residual, rounded once to floatX;  out (N,C), mean, rstd (N) are its layernorm.
// sum may be in or residual, in_bias may be NULL, and so may out: then there is no layernorm
static inline void cuda_residual_layernorm_forward(floatX *sum, floatX *out, real *mean, real *rstd, const floatX *in,
                                                   const floatX *in_bias, const floatX *residual, const floatX *weight,
                                                   const floatX *bias, int N, int C, Exec *ex) {
    LayernormArrays arrays = {sum, out, mean, rstd, in, in_bias, residual, weight, bias};
    layernorm_launch<LAYERNORM_RESIDUAL>(arrays, N, C, stream_of(ex));
}

static inline void cuda_layernorm_normalise(floatX *out, const floatX *in, const real *mean, const real *rstd,
                                            const floatX *weight, const floatX *bias, int N, int C, Exec *ex) {
    LayernormArrays arrays = {NULL, out, (real *)mean, (real *)rstd, in, NULL, NULL, weight, bias};
    layernorm_launch<LAYERNORM_NORMALISE>(arrays, N, C, stream_of(ex));
}

// ---- backward

// how the rows of a shape are divided, which N and C alone decide
static constexpr int LAYERNORM_THREADS = 73728;
static constexpr int LAYERNORM_BATCH = 2, LAYERNORM_BATCH_THREADS = 256;      // rows loaded at once; in a block
static constexpr int LAYERNORM_COLUMNS = 24, LAYERNORM_SINGLE_THREADS = 512;  // of a thread, where rows go one by one

template <int ROWS>
static constexpr int layernorm_max_threads = ROWS == 1 ? LAYERNORM_SINGLE_THREADS : LAYERNORM_BATCH_THREADS;

// the first column of the thread's p-th piece; the block has fewer threads only if one piece is enough
template <int ROWS, int WIDTH> static __device__ __forceinline__ int layernorm_column(int p) {
    return ((int)threadIdx.x + p * layernorm_max_threads<ROWS>)*WIDTH;
}

// ROWS rows, of each the PIECES rectangles that a thread has
template <int ROWS, int PIECES, int WIDTH> struct LayernormBatch {
    LayernormPiece<WIDTH> dout[ROWS][PIECES], in[ROWS][PIECES], dinp[ROWS][PIECES];
    float mean[ROWS], rstd[ROWS];
    float sum_g[ROWS], sum_gn[ROWS];  // of a thread, then of the row
    int first, rows;                  // rows < ROWS: the batch is the last one

    __device__ __forceinline__ float normed(int r, int p, int i) const {
        return (layernorm_element(in[r][p], i) - mean[r]) * rstd[r];
    }
};

struct LayernormGradients {
    floatX *dinp;
    const floatX *dout, *in, *weight;
    const real *mean, *rstd;
};

template <int ROWS, int PIECES, int WIDTH>
static __device__ __forceinline__ void layernorm_load_pieces(LayernormBatch<ROWS, PIECES, WIDTH> &batch,
                                                             const LayernormGradients &a, int r, int p, size_t at) {
    batch.dout[r][p] = layernorm_load_last<WIDTH>(a.dout + at);
    batch.in[r][p] = layernorm_load_last<WIDTH>(a.in + at);
    batch.dinp[r][p] = layernorm_load<WIDTH>(a.dinp + at);
}

// A single row is wide: it is not loaded here but where it is used, the second time out of the cache
template <int ROWS, int PIECES, int WIDTH>
static __device__ __forceinline__ void layernorm_load_batch(LayernormBatch<ROWS, PIECES, WIDTH> &batch,
                                                            const LayernormGradients &a, int first, int N, int C) {
    batch.first = first, batch.rows = ROWS == 1 ? 1 : min(ROWS, N - first);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        if (r >= batch.rows) { break; }
        batch.mean[r] = a.mean[first + r], batch.rstd[r] = a.rstd[first + r];
        UNROLL
        for (int p = 0; p < PIECES; p++) {
            int c = layernorm_column<ROWS, WIDTH>(p);
            size_t at = (size_t)(first + r) * C + c;
            if (ROWS > 1 && c < C) { layernorm_load_pieces(batch, a, r, p, at); }
        }
    }
}

// the thread's sums over its part of each row, and over its columns
template <int ROWS, int PIECES, int WIDTH>
static __device__ __forceinline__ void
layernorm_add_sums(LayernormBatch<ROWS, PIECES, WIDTH> &batch, float (&dweight)[PIECES][WIDTH],
                   float (&dbias)[PIECES][WIDTH], const LayernormGradients &a, int C) {
    UNROLL
    for (int r = 0; r < ROWS; r++) { batch.sum_g[r] = batch.sum_gn[r] = 0; }
    UNROLL
    for (int p = 0; p < PIECES; p++) {
        int c = layernorm_column<ROWS, WIDTH>(p);
        if (c >= C) { break; }
        LayernormPiece<WIDTH> w = layernorm_load<WIDTH>(a.weight + c);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (r >= batch.rows) { break; }
            if constexpr (ROWS == 1) { layernorm_load_pieces(batch, a, r, p, (size_t)batch.first * C + c); }
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                float dy = layernorm_element(batch.dout[r][p], i), normed = batch.normed(r, p, i);
                float g = dy * layernorm_element(w, i);
                batch.sum_g[r] += g;
                batch.sum_gn[r] += g * normed;
                dweight[p][i] += dy * normed;
                dbias[p][i] += dy;
            }
        }
    }
}

// the threads' sums become those of the rows
template <int ROWS, int PIECES, int WIDTH>
static __device__ __forceinline__ void layernorm_share_sums(LayernormBatch<ROWS, PIECES, WIDTH> &batch,
                                                            SharedPtr<float> of_warp) {
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        float g = warp_sum(batch.sum_g[r]), gn = warp_sum(batch.sum_gn[r]);
        int at = (warp_id() * ROWS + r) * 2;
        if (lane_id() == 0) { of_warp[at] = g, of_warp[at + 1] = gn; }
        batch.sum_g[r] = batch.sum_gn[r] = 0;
    }
    __syncthreads();  // every warp's sums are there; and all have read the other buffer, which is written next
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            batch.sum_g[r] += of_warp[(warp * ROWS + r) * 2];
            batch.sum_gn[r] += of_warp[(warp * ROWS + r) * 2 + 1];
        }
    }
}

template <int ROWS, int PIECES, int WIDTH>
static __device__ __forceinline__ void layernorm_add_dinp(LayernormBatch<ROWS, PIECES, WIDTH> &batch,
                                                          const LayernormGradients &a, int C) {
    float share = 1 / (float)C;
    UNROLL
    for (int p = 0; p < PIECES; p++) {
        int c = layernorm_column<ROWS, WIDTH>(p);
        if (c >= C) { break; }
        LayernormPiece<WIDTH> w = layernorm_load<WIDTH>(a.weight + c);
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (r >= batch.rows) { break; }
            size_t at = (size_t)(batch.first + r) * C + c;
            if constexpr (ROWS == 1) { layernorm_load_pieces(batch, a, r, p, at); }
            float mean_g = batch.sum_g[r] * share, mean_gn = batch.sum_gn[r] * share, dx[WIDTH];
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                float g = layernorm_element(batch.dout[r][p], i) * layernorm_element(w, i);
                float through = batch.rstd[r] * (g - mean_g - batch.normed(r, p, i) * mean_gn);
                dx[i] = layernorm_element(batch.dinp[r][p], i) + through;
            }
            layernorm_store<WIDTH>(a.dinp + at, layernorm_piece<WIDTH>(dx));
        }
    }
}

template <int WIDTH> static __device__ __forceinline__ void layernorm_store_sums(float *to, const float (&sum)[WIDTH]) {
    if constexpr (WIDTH == 1) {
        *to = sum[0];
    } else {
        UNROLL
        for (int i = 0; i < WIDTH; i += 4) {
            store128(to + i, Pack<float>::of({sum[i], sum[i + 1], sum[i + 2], sum[i + 3]}));
        }
    }
}

// partial (blocks,2,C) = the blocks' column sums, for dweight and for dbias
template <int ROWS, int PIECES, int WIDTH>
static __global__ void __launch_bounds__(layernorm_max_threads<ROWS>, ROWS == 1 ? 1 : 3)
    layernorm_backward_kernel(LayernormGradients arrays, float *partial, int N, int C) {
    constexpr int BUFFER = layernorm_max_threads<ROWS> / 32 * 2 * ROWS;
    SHARED_ARRAY(float, of_warp, 2 * BUFFER);
    float dweight[PIECES][WIDTH] = {}, dbias[PIECES][WIDTH] = {};
    int buffer = 0;
    for (int first = (int)blockIdx.x * ROWS; first < N; first += (int)gridDim.x * ROWS, buffer ^= 1) {
        LayernormBatch<ROWS, PIECES, WIDTH> batch;
        layernorm_load_batch(batch, arrays, first, N, C);
        layernorm_add_sums(batch, dweight, dbias, arrays, C);
        layernorm_share_sums(batch, of_warp + buffer * BUFFER);
        layernorm_add_dinp(batch, arrays, C);
    }
    UNROLL
    for (int p = 0; p < PIECES; p++) {
        int c = layernorm_column<ROWS, WIDTH>(p);
        float *to = partial + (size_t)blockIdx.x * 2 * C + c;
        if (c >= C) { break; }
        layernorm_store_sums(to, dweight[p]);
        layernorm_store_sums(to + C, dbias[p]);
    }
}

static constexpr int LAYERNORM_FOLD_WARPS = 32;

// dweight, dbias (C) (+)= sums over the blocks of partial (blocks,2,C). A lane has a column, a warp every 32nd block
static __global__ void __launch_bounds__(LAYERNORM_FOLD_WARPS * 32)
    layernorm_fold_kernel(Gradient dweight, Gradient dbias, const float *partial, GradMode mode, int blocks, int C) {
    SHARED_ARRAY(float, of_warp, LAYERNORM_FOLD_WARPS * 32);
    int column = (int)blockIdx.x * 32 + lane_id();
    float sum = 0;
    for (int b = warp_id(); column < 2 * C && b < blocks; b += LAYERNORM_FOLD_WARPS) {
        sum += partial[(size_t)b * 2 * C + column];
    }
    of_warp[(int)threadIdx.x] = sum;
    __syncthreads();  // every warp's sums are there
    if (warp_id() > 0 || column >= 2 * C) { return; }
    sum = 0;
    for (int warp = 0; warp < LAYERNORM_FOLD_WARPS; warp++) { sum += of_warp[warp * 32 + lane_id()]; }
    if (column < C) {
        gradient_put(dweight, (size_t)column, sum, mode);
    } else {
        gradient_put(dbias, (size_t)(column - C), sum, mode);
    }
}

typedef struct {
    int threads, blocks;
} LayernormGrid;

// for rows of `rectangles` rectangles in `batches` batches
static inline LayernormGrid layernorm_grid(int rectangles, int max_threads, int batches) {
    LayernormGrid grid;
    grid.threads = min(ceil_div(rectangles, 32) * 32, max_threads);
    grid.blocks = min(LAYERNORM_THREADS / grid.threads, batches);
    return grid;
}

template <int ROWS, int PIECES, int WIDTH>
static inline int layernorm_launch_backward(const LayernormGradients &arrays, float *partial, int N, int C,
                                            cudaStream_t stream) {
    LayernormGrid grid = layernorm_grid(ceil_div(C, WIDTH), layernorm_max_threads<ROWS>, ceil_div(N, ROWS));
    LAUNCH((layernorm_backward_kernel<ROWS, PIECES, WIDTH>), grid.blocks, grid.threads, 0, stream, arrays, partial, N,
           C);
    return grid.blocks;
}

// the bytes of scratch that the backward takes at the most, which is with packs: 2C sums of each block
static inline size_t layernorm_partials(int N, int C) {
    LayernormGrid most = layernorm_grid(ceil_div(C, Pack<floatX>::SIZE), LAYERNORM_BATCH_THREADS, N);
    return (size_t)most.blocks * 2 * (size_t)C * sizeof(float);
}

static inline void cuda_layernorm_backward(floatX *dinp, Gradient dweight, Gradient dbias, const floatX *dout,
                                           const floatX *in, const floatX *weight, const real *mean, const real *rstd,
                                           GradMode mode, int N, int C, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    LayernormGradients arrays = {dinp, dout, in, weight, mean, rstd};
    bool aligned = C % PACK == 0 && aligned_to_pack(dinp, dout, in, weight);
    float *partial = partials_of<float>(ex, layernorm_partials(N, C) / sizeof(float), "layernorm_backward");
    int blocks;
    layernorm_check_channels(C);
    if (aligned && C <= LAYERNORM_BATCH_THREADS * PACK) {
        blocks = layernorm_launch_backward<LAYERNORM_BATCH, 1, PACK>(arrays, partial, N, C, stream_of(ex));
    } else if (aligned) {
        blocks = layernorm_launch_backward<1, LAYERNORM_COLUMNS / PACK, PACK>(arrays, partial, N, C, stream_of(ex));
    } else {
        blocks = layernorm_launch_backward<1, LAYERNORM_COLUMNS, 1>(arrays, partial, N, C, stream_of(ex));
    }
    LAUNCH(layernorm_fold_kernel, ceil_div(2 * C, 32), LAYERNORM_FOLD_WARPS * 32, 0, stream_of(ex), dweight, dbias,
           partial, mode, blocks, C);
}
