/*
The kernels of matmul.cuh for what cuBLASLt leaves: the parts of an epilogue that a plan has not fused, and whole
products where it has none (lt_tile_kernel): bf16 weight gradients of fp32 inputs, for one. No atomics.
defines: lt_run_rest, lt_launch_tiles, lt_launch_sums
*/
#pragma once
#include "llmc/gelu.cuh"
#include "llmc/gradient.cuh"
#include "llmc/matmul_cublaslt.cuh"

// ---- kernels for what cuBLASLt does not do. WIDTH is 1, or a pack where all rows and pointers are aligned to packs

// the elementwise parts of an epilogue on x, neighbours in a column of D; rounds where the twin rounds
template <int WIDTH>
static __device__ __forceinline__ void lt_finish(float (&x)[WIDTH], int parts, const floatX *bias, floatX *aux) {
    float y[WIDTH];
    if (parts & LT_BIAS) {
        load_floats(y, bias);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[i] += y[i]; }
    }
    if (parts & LT_GELU) {
        store_floats(aux, x);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[i] = gelu_value_device(to_real(to_floatX(x[i]))); }
    }
    if (parts & LT_DGELU) {
        load_floats(y, aux);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[i] = to_real(to_floatX(x[i])) * gelu_slope_device(y[i]); }
    }
}

// d (m,n) in place
template <int WIDTH>
static __global__ void lt_finish_kernel(floatX *d, int parts, const floatX *bias, floatX *aux, size_t count, int m) {
    size_t at = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * WIDTH;
    if (at >= count) { return; }
    float x[WIDTH];
    load_floats(x, d + at);
    lt_finish(x, parts, bias + at % m, aux + at);
    store_floats(d + at, x);
}

enum { LT_THREADS = 256, LT_WARPS = LT_THREADS / 32, LT_TILE = 64, LT_DEPTH = 16, LT_STEP = 16 };

// partial (slices,cols) = column sums of each slice of rows of x (rows,cols), row-major. A warp takes every 8th row
template <int WIDTH>
static __global__ void lt_sum_columns(float *partial, const floatX *x, int rows, int cols, int rows_of_slice) {
    SHARED_ARRAY(float, of_warp, LT_THREADS *WIDTH);
    int first = (int)blockIdx.x * 32 * WIDTH, col = first + lane_id() * WIDTH;
    int begin = (int)blockIdx.y * rows_of_slice, end = min(begin + rows_of_slice, rows);
    float sum[WIDTH] = {}, y[WIDTH];
    for (int row = begin + warp_id(); col < cols && row < end; row += LT_WARPS) {
        load_floats(y, x + (size_t)row * cols + col);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { sum[i] += y[i]; }
    }
    for (int i = 0; i < WIDTH; i++) { of_warp[(int)threadIdx.x * WIDTH + i] = sum[i]; }
    __syncthreads();  // all warps' sums are there
    if ((int)threadIdx.x >= 32 * WIDTH || first + (int)threadIdx.x >= cols) { return; }
    float total = 0;
    for (int warp = 0; warp < LT_WARPS; warp++) { total += of_warp[warp * 32 * WIDTH + (int)threadIdx.x]; }
    partial[(size_t)blockIdx.y * cols + first + threadIdx.x] = total;
}

// out (cols) (+)= column sums of part (num,cols)
static __global__ void lt_fold(Gradient out, const float *part, int num, int cols, GradMode mode) {
    int col = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (col >= cols) { return; }
    float sum = 0;
    for (int i = 0; i < num; i++) { sum += part[(size_t)i * cols + col]; }
    gradient_put(out, (size_t)col, sum, mode);
}

// A product of any shape with the elementwise parts of its epilogue: a block makes 64 x 64 of D, a thread 4 x 4 of
// these, 16 apart. T is D's type. Not fast.
template <class T>
static __global__ void lt_tile_kernel(T *d, const floatX *a, const floatX *b, const T *c, const floatX *bias,
                                      floatX *aux, LtKey key) {
    SHARED_ARRAY(float, a_tile, LT_DEPTH *LT_TILE);
    SHARED_ARRAY(float, b_tile, LT_DEPTH *LT_TILE);
    size_t m = (size_t)key.m, n = (size_t)key.n, k = (size_t)key.k;
    size_t i0 = (size_t)blockIdx.x * LT_TILE, j0 = (size_t)blockIdx.y * LT_TILE;
    int row = (int)threadIdx.x % LT_STEP, column = (int)threadIdx.x / LT_STEP;
    float sum[4][4] = {};
    for (size_t p0 = 0; p0 < k; p0 += LT_DEPTH) {
        for (int at = (int)threadIdx.x; at < LT_DEPTH * LT_TILE; at += LT_THREADS) {
            size_t i = i0 + at % LT_TILE, j = j0 + at % LT_TILE, p = p0 + at / LT_TILE;
            a_tile[at] = i < m && p < k ? to_real(a[key.transpose_a ? i * k + p : p * m + i]) : 0.0f;
            b_tile[at] = j < n && p < k ? to_real(b[key.transpose_b ? p * n + j : j * k + p]) : 0.0f;
        }
        __syncthreads();  // the tiles are complete
        for (int p = 0; p < LT_DEPTH; p++) {
            float x[4], y[4];
            UNROLL
            for (int u = 0; u < 4; u++) {
                x[u] = a_tile[p * LT_TILE + row + u * LT_STEP], y[u] = b_tile[p * LT_TILE + column + u * LT_STEP];
            }
            UNROLL
            for (int u = 0; u < 4; u++) {
                UNROLL
                for (int v = 0; v < 4; v++) { sum[u][v] += x[u] * y[v]; }
            }
        }
        __syncthreads();  // all have read them before they change
    }
    UNROLL
    for (int u = 0; u < 4; u++) {
        UNROLL
        for (int v = 0; v < 4; v++) {
            size_t i = i0 + row + u * LT_STEP, j = j0 + column + v * LT_STEP, at = j * m + i;
            if (i >= m || j >= n) { continue; }
            float x[1] = {sum[u][v]};
            if (key.add != LT_SET) { x[0] += load_float(c + at); }
            lt_finish(x, key.parts, bias + i, aux + at);
            store_float(d + at, x[0]);
        }
    }
}

static inline unsigned lt_blocks(size_t count, size_t of) { return (unsigned)ceil_div(count, of); }

static inline void lt_launch_finish(const CudaMatmuls *mm, const LtProduct *p, int parts) {
    constexpr int PACK = Pack<floatX>::SIZE;
    floatX *d = (floatX *)p->d;
    size_t count = (size_t)p->key.m * p->key.n;
    if (p->key.m % PACK == 0 && aligned_to_pack(d, p->bias, p->aux)) {
        LAUNCH((lt_finish_kernel<PACK>), lt_blocks(count, LT_THREADS * PACK), LT_THREADS, 0, mm->stream, d, parts,
               p->bias, p->aux, count, p->key.m);
    } else {
        LAUNCH((lt_finish_kernel<1>), lt_blocks(count, LT_THREADS), LT_THREADS, 0, mm->stream, d, parts, p->bias,
               p->aux, count, p->key.m);
    }
}

enum { LT_MAX_SLICES = 64, LT_ROWS_OF_SLICE = 64 };

// out (cols) (+)= column sums of x (rows,cols), in two stages: slices of rows, then over the slices
static inline void lt_launch_sums(const CudaMatmuls *mm, Gradient out, const floatX *x, int rows, int cols,
                                  GradMode mode) {
    constexpr int PACK = Pack<floatX>::SIZE;
    int fit = (int)((size_t)LT_SUMS_BYTES / sizeof(float) / (size_t)cols);
    int rows_of_slice = max(ceil_div(rows, max(1, min(fit, (int)LT_MAX_SLICES))), (int)LT_ROWS_OF_SLICE);
    int slices = ceil_div(rows, rows_of_slice);
    if (cols % PACK == 0 && aligned_to_pack(x)) {
        LAUNCH((lt_sum_columns<PACK>), dim3(lt_blocks(cols, 32 * PACK), slices), LT_THREADS, 0, mm->stream, mm->scratch,
               x, rows, cols, rows_of_slice);
    } else {
        LAUNCH((lt_sum_columns<1>), dim3(lt_blocks(cols, 32), slices), LT_THREADS, 0, mm->stream, mm->scratch, x, rows,
               cols, rows_of_slice);
    }
    LAUNCH(lt_fold, lt_blocks(cols, LT_THREADS), LT_THREADS, 0, mm->stream, out, mm->scratch, slices, cols, mode);
}

// adds to the product's sums, or writes, what cuBLASLt left in scratch, which is fp32
static inline void lt_launch_add_sums(const CudaMatmuls *mm, const LtProduct *p, int cols) {
    LAUNCH(lt_fold, lt_blocks(cols, LT_THREADS), LT_THREADS, 0, mm->stream, p->sums, mm->scratch, 1, cols,
           p->sums_mode);
}

template <class T> static inline void lt_launch_tiles(const CudaMatmuls *mm, const LtProduct *p) {
    dim3 grid(lt_blocks(p->key.m, LT_TILE), lt_blocks(p->key.n, LT_TILE));
    LAUNCH((lt_tile_kernel<T>), grid, LT_THREADS, 0, mm->stream, (T *)p->d, p->a, p->b, (const T *)p->c, p->bias,
           p->aux, p->key);
}

static inline void lt_run_rest(const CudaMatmuls *mm, const LtPlan *plan, const LtProduct *p) {
    const LtKey *k = &p->key;
    int left = k->parts & ~plan->fused;
    if (left & ~LT_SUMS) { lt_launch_finish(mm, p, left & ~LT_SUMS); }
    if (left & LT_SUM_D) { lt_launch_sums(mm, p->sums, (const floatX *)p->d, k->n, k->m, p->sums_mode); }
    if (left & LT_SUM_B) { lt_launch_sums(mm, p->sums, p->b, k->k, k->n, p->sums_mode); }
    if ((plan->fused & LT_SUMS) && lt_sums(mm, p) != p->sums.at) {
        lt_launch_add_sums(mm, p, plan->fused & LT_SUM_D ? k->m : k->n);
    }
}
