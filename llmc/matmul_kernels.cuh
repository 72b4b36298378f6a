/*
Our own GEMM kernel, and the kernels for the epilogue parts that cuBLASLt did not fuse.
  matmul_plain_kernel        D (m,n) = epilogue(op(A) op(B)) for any shape, type and alignment. For GEMMs that cuBLASLt
                             lacks, such as bf16 weight gradients of fp32 inputs
  matmul_epilogue_kernel     D (m,n) in place: bias, activation or its slope; 16 bytes a thread
  matmul_column_sums_kernel  bias gradients, stage 1: partial (slices,cols) = column sums of slices of x (rows,cols).
                             gradient_fold is stage 2
  matmul_sample_kernel       elements of a result from first to last, by which two algorithms are compared
  matmul_dot_kernel          the same elements of D from plain dot products, for the check of cuBLASLt's first choice
No atomics: each sum has one owner and one order. Bytes: the epilogue reads and writes D once and reads or writes aux
once; column sums read x once.
*/
#pragma once
#include "llmc/activation.cuh"
#include "llmc/activation.h"
#include "llmc/common/cuda_common.cuh"
#include "llmc/common/floatx.h"
#include "llmc/common/ptx.cuh"
#include "llmc/common/rng.h"
#include "llmc/gradient.cuh"
#include "llmc/matmul_cublaslt.cuh"
#include "llmc/ops.h"

enum {
    MATMUL_THREADS = 256,
    MATMUL_WARPS = MATMUL_THREADS / 32,
    MATMUL_TILE = 64,
    MATMUL_DEPTH = 16,
    MATMUL_STEP = 16,
    // column sums: about 4 blocks per multiprocessor of an H100, 4 loads of 16 bytes in flight a thread, together 64 KB
    MATMUL_SUMS_BLOCKS = 528,
    MATMUL_SUMS_ROWS = 4,
    MATMUL_SUMS_STEP = MATMUL_SUMS_ROWS * MATMUL_WARPS  // rows of a block at once
};

// The elementwise parts of an epilogue on WIDTH neighbours of a column of D. Rounds where the reference rounds.
template <int WIDTH>
static __device__ __forceinline__ void matmul_epilogue(float (&x)[WIDTH], int parts, ActivationFunction function,
                                                       const floatX *bias, floatX *aux) {
    float y[WIDTH];
    if (parts & LT_BIAS) {
        load_floats(y, bias);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[i] += y[i]; }
    }
    if (parts & LT_ACTIVATION) {
        store_floats(aux, x);
        UNROLL
        for (int i = 0; i < WIDTH; i++) {
            float pre = to_real(to_floatX(x[i]));
            x[i] = activation_value(function, pre, gelu_sigmoid_device(pre));
        }
    }
    if (parts & LT_SLOPE) {
        load_floats(y, aux);
        UNROLL
        for (int i = 0; i < WIDTH; i++) {
            x[i] = to_real(to_floatX(x[i])) * activation_slope(function, y[i], gelu_sigmoid_device(y[i]));
        }
    }
}

// The plain GEMM. A block computes 64 x 64 of D over k in steps of 16, through shared memory. A thread has 4 x 4 sums,
// 16 rows and columns apart. T is D's type. Not fast.
template <class T>
static __global__ void matmul_plain_kernel(T *d, const floatX *a, const floatX *b, const T *c, const floatX *bias,
                                           floatX *aux, LtKey key) {
    wait_for_previous_kernel();
    SHARED_ARRAY(float, a_tile, MATMUL_DEPTH *MATMUL_TILE);
    SHARED_ARRAY(float, b_tile, MATMUL_DEPTH *MATMUL_TILE);
    size_t m = (size_t)key.m, n = (size_t)key.n, k = (size_t)key.k;
    size_t i0 = (size_t)blockIdx.x * MATMUL_TILE, j0 = (size_t)blockIdx.y * MATMUL_TILE;
    int row = (int)threadIdx.x % MATMUL_STEP, column = (int)threadIdx.x / MATMUL_STEP;
    float sum[4][4] = {};
    for (size_t p0 = 0; p0 < k; p0 += MATMUL_DEPTH) {
        // load a tile of op(A) and one of op(B), zeros beyond the edge
        for (int at = (int)threadIdx.x; at < MATMUL_DEPTH * MATMUL_TILE; at += MATMUL_THREADS) {
            size_t i = i0 + at % MATMUL_TILE, j = j0 + at % MATMUL_TILE, p = p0 + at / MATMUL_TILE;
            a_tile[at] = i < m && p < k ? to_real(a[key.transpose_a ? i * k + p : p * m + i]) : 0.0f;
            b_tile[at] = j < n && p < k ? to_real(b[key.transpose_b ? p * n + j : j * k + p]) : 0.0f;
        }
        __syncthreads();  // the tiles are complete
        // accumulate
        for (int p = 0; p < MATMUL_DEPTH; p++) {
            float x[4], y[4];
            UNROLL
            for (int u = 0; u < 4; u++) {
                x[u] = a_tile[p * MATMUL_TILE + row + u * MATMUL_STEP];
                y[u] = b_tile[p * MATMUL_TILE + column + u * MATMUL_STEP];
            }
            UNROLL
            for (int u = 0; u < 4; u++) {
                UNROLL
                for (int v = 0; v < 4; v++) { sum[u][v] += x[u] * y[v]; }
            }
        }
        __syncthreads();  // all threads have read the tiles before they change
    }
    // add C, apply the epilogue, write D
    UNROLL
    for (int u = 0; u < 4; u++) {
        UNROLL
        for (int v = 0; v < 4; v++) {
            size_t i = i0 + row + u * MATMUL_STEP, j = j0 + column + v * MATMUL_STEP, at = j * m + i;
            if (i >= m || j >= n) { continue; }
            float x[1] = {sum[u][v]};
            if (key.add != LT_SET) { x[0] += load_float(c + at); }
            matmul_epilogue(x, key.parts, (ActivationFunction)key.function, bias + i, aux + at);
            store_float(d + at, x[0]);
        }
    }
}

// ---- epilogue parts. WIDTH is a pack where all rows and pointers are aligned to packs, else 1

template <int WIDTH>
static __global__ void matmul_epilogue_kernel(floatX *d, int parts, ActivationFunction function, const floatX *bias,
                                              floatX *aux, size_t count, int m) {
    wait_for_previous_kernel();
    size_t at = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * WIDTH;
    if (at >= count) { return; }
    float x[WIDTH];
    load_floats(x, d + at);
    matmul_epilogue(x, parts, function, bias + at % m, aux + at);
    store_floats(d + at, x);
}

// sum += ROWS rows at `from`; all rows are loaded before the first is added
template <int ROWS, int WIDTH>
static __device__ __forceinline__ void matmul_add_rows(float (&sum)[WIDTH], const floatX *from, size_t stride) {
    float y[ROWS][WIDTH];
    UNROLL
    for (int r = 0; r < ROWS; r++) { load_floats(y[r], from + r * stride); }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        UNROLL
        for (int i = 0; i < WIDTH; i++) { sum[i] += y[r][i]; }
    }
}

// x is row-major. A block has 32 WIDTH columns of one slice of rows; a warp adds every 8th row of the slice.
template <int WIDTH>
static __global__ void __launch_bounds__(MATMUL_THREADS, 4)
    matmul_column_sums_kernel(float *partial, const floatX *x, int rows, int cols, int rows_of_slice) {
    wait_for_previous_kernel();
    SHARED_ARRAY(float, of_warp, MATMUL_THREADS *WIDTH);
    int first = (int)blockIdx.x * 32 * WIDTH, col = first + lane_id() * WIDTH;
    int begin = (int)blockIdx.y * rows_of_slice, end = min(begin + rows_of_slice, rows);
    int row = col < cols ? begin + warp_id() : end;
    size_t stride = (size_t)MATMUL_WARPS * cols;
    float sum[WIDTH] = {};
    const floatX *from = x + (size_t)row * cols + col;
    for (; row + MATMUL_SUMS_STEP - MATMUL_WARPS < end; row += MATMUL_SUMS_STEP) {
        matmul_add_rows<MATMUL_SUMS_ROWS>(sum, from, stride);
        from += MATMUL_SUMS_ROWS * stride;
    }
    for (; row < end; row += MATMUL_WARPS, from += stride) { matmul_add_rows<1>(sum, from, stride); }
    for (int i = 0; i < WIDTH; i++) { of_warp[(int)threadIdx.x * WIDTH + i] = sum[i]; }
    __syncthreads();  // the sums of all warps are complete
    if ((int)threadIdx.x >= 32 * WIDTH || first + (int)threadIdx.x >= cols) { return; }
    float total = 0;
    for (int warp = 0; warp < MATMUL_WARPS; warp++) { total += of_warp[warp * 32 * WIDTH + (int)threadIdx.x]; }
    partial[(size_t)blockIdx.y * cols + first + threadIdx.x] = total;
}

// The element that is sample i: a random one from the i-th of `samples` equal ranges of `count` elements.
static __device__ __forceinline__ size_t matmul_sample_at(size_t i, size_t count, size_t samples) {
    return i * count / samples + rng_bits(1, 0, i) % (count / samples);
}

// element i of an array of bf16 or float
static __device__ __forceinline__ float matmul_element(const void *x, bool is_bf16, size_t i) {
    return is_bf16 ? load_float((const bf16 *)x + i) : load_float((const float *)x + i);
}

// out (samples) from x (count); samples <= count
static __global__ void matmul_sample_kernel(float *out, const void *x, bool is_bf16, size_t count, size_t samples) {
    wait_for_previous_kernel();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < samples) { out[i] = matmul_element(x, is_bf16, matmul_sample_at(i, count, samples)); }
}

// out (samples): the same elements of C + op(A) op(B), in fp32. A warp computes one dot product.
static __global__ void matmul_dot_kernel(float *out, const floatX *a, const floatX *b, const void *c, LtKey key,
                                         size_t samples) {
    wait_for_previous_kernel();
    size_t m = (size_t)key.m, n = (size_t)key.n, k = (size_t)key.k;
    size_t sample = (size_t)blockIdx.x * MATMUL_WARPS + warp_id();
    if (sample >= samples) { return; }
    size_t at = matmul_sample_at(sample, m * n, samples), i = at % m, j = at / m;
    float sum = 0;
    for (size_t p = lane_id(); p < k; p += 32) {
        sum +=
            to_real(a[key.transpose_a ? i * k + p : p * m + i]) * to_real(b[key.transpose_b ? p * n + j : j * k + p]);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) { out[sample] = key.add == LT_SET ? sum : sum + matmul_element(c, key.out == DT_BF16, at); }
}

// ---- launchers

static inline unsigned matmul_blocks(size_t count, size_t per_block) { return (unsigned)ceil_div(count, per_block); }

static inline void matmul_launch_plain(const CudaMatmuls *mm, const LtMatmul *p) {
    dim3 grid(matmul_blocks(p->key.m, MATMUL_TILE), matmul_blocks(p->key.n, MATMUL_TILE));
    with_type((DType)p->key.out, p->d, [&]<class T>(T *d) {
        LAUNCH((matmul_plain_kernel<T>), grid, MATMUL_THREADS, 0, mm->stream, d, p->a, p->b, (const T *)p->c, p->bias,
               p->aux, p->key);
    });
}

static inline void matmul_launch_epilogue(const CudaMatmuls *mm, const LtMatmul *p, int parts) {
    constexpr int PACK = Pack<floatX>::SIZE;
    floatX *d = (floatX *)p->d;
    size_t count = (size_t)p->key.m * p->key.n;
    bool packed = p->key.m % PACK == 0 && aligned_to_pack(d, p->bias, p->aux);
    LAUNCH((packed ? matmul_epilogue_kernel<PACK> : matmul_epilogue_kernel<1>),
           matmul_blocks(count, MATMUL_THREADS * (packed ? PACK : 1)), MATMUL_THREADS, 0, mm->stream, d, parts,
           (ActivationFunction)p->key.function, p->bias, p->aux, count, p->key.m);
}

static inline void matmul_launch_sample(const CudaMatmuls *mm, float *out, void *x, DType type, size_t count,
                                        size_t samples) {
    LAUNCH(matmul_sample_kernel, matmul_blocks(samples, MATMUL_THREADS), MATMUL_THREADS, 0, mm->stream, out, x,
           type == DT_BF16, count, samples);
}

// before p runs: an output with += still holds C
static inline void matmul_launch_dots(const CudaMatmuls *mm, float *out, const LtMatmul *p, size_t samples) {
    LAUNCH(matmul_dot_kernel, matmul_blocks(samples, MATMUL_WARPS), MATMUL_THREADS, 0, mm->stream, out, p->a, p->b,
           p->c, p->key, samples);
}

// out (cols) = or += column sums of x (rows,cols), row-major
static inline void matmul_launch_column_sums(const CudaMatmuls *mm, Gradient out, const floatX *x, int rows, int cols,
                                             GradMode mode) {
    constexpr int PACK = Pack<floatX>::SIZE;
    bool packed = cols % PACK == 0 && aligned_to_pack(x);
    int groups = ceil_div(cols, packed ? 32 * PACK : 32), step = MATMUL_SUMS_STEP;
    int fit = (int)((size_t)LT_SUMS_BYTES / sizeof(float) / (size_t)cols);
    int slices = max(1, min(fit, ceil_div((int)MATMUL_SUMS_BLOCKS, groups)));
    int rows_of_slice = ceil_div(ceil_div(rows, slices), step) * step;  // whole steps of the loop
    slices = ceil_div(rows, rows_of_slice);
    LAUNCH((packed ? matmul_column_sums_kernel<PACK> : matmul_column_sums_kernel<1>), dim3(groups, slices),
           MATMUL_THREADS, 0, mm->stream, mm->scratch, x, rows, cols, rows_of_slice);
    gradient_fold(out, out, mm->scratch, mode, slices, cols, cols, mm->stream);
}

// epilogue parts that cuBLASLt did not fuse, and sums that cuBLASLt left in scratch
static inline void matmul_launch_unfused(const CudaMatmuls *mm, const LtAlgorithm *alg, const LtMatmul *p) {
    const LtKey *k = &p->key;
    int left = k->parts & ~alg->fused;
    if (left & ~LT_SUMS) { matmul_launch_epilogue(mm, p, left & ~LT_SUMS); }
    if (left & LT_SUM_D) { matmul_launch_column_sums(mm, p->sums, (const floatX *)p->d, k->n, k->m, p->sums_mode); }
    if (left & LT_SUM_B) { matmul_launch_column_sums(mm, p->sums, p->b, k->k, k->n, p->sums_mode); }
    if ((alg->fused & LT_SUMS) && lt_sums(mm, p) != p->sums.at) {
        int cols = alg->fused & LT_SUM_D ? k->m : k->n;
        gradient_fold(p->sums, p->sums, mm->scratch, p->sums_mode, 1, cols, cols, mm->stream);
    }
}
