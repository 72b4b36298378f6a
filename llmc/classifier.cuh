/*
Softmax cross entropy on the GPU, one row a block.
  pass 1    Each thread reads every THREADS-th pack of the row once. It keeps the maximum so far and the sum of
            exp(logit - maximum), which it rescales when the maximum changes (online softmax). Then the block reduces
            the maximum, every thread rescales its sum to it, and the sums are added in a fixed order. The loss follows.
  pass 2    Each thread reads its packs again and writes the gradient over them, from the last pack to the first: the
            packs read last are most likely still in a cache. A row is 100 KB in bf16 and the rows under way on a GPU
            40 MB, so the second read is served by L2, or by L1.
With HELD, pass 1 copies the row to shared memory and pass 2 reads the copy: L2 moves each logit twice instead of three
times. A multiprocessor has to hold two rows, so that one is read while the other is written. With 228 KB (sm_90,
sm_100) two rows of bf16 fit; with 164 KB (sm_80) or 100 KB (sm_120) one. The bits are the same either way.
Blocks take the rows from the last to the first, because the matmul before wrote the last rows last.
exp(l - max) is 2^(l log2(e) - shift): one multiply-add and one instruction of the special function unit. shift is
max log2(e), rounded. The loss uses the same shift, so that its rounding cancels.
Bytes       NV floatX read; NVp written for a gradient. About 13 instructions an element and 2.1 of the special function
            unit take half as long as the memory: several rows at a time hide one behind the other.
With tensor parallelism the two passes are two kernels. Every thread combines the statistics of all ranks, 12 bytes a
row and rank, in the same order.
*/
#pragma once
#include "llmc/classifier.h"
#include "llmc/common/device.cuh"
#include "llmc/ops.h"

// A row of at least CLASSIFIER_BLOCK_COLUMNS columns has a block of CLASSIFIER_THREADS. Every other row has a warp: a
// narrow one (a byte vocabulary), or one that is not a whole number of packs, which no padded row of a model is.
enum { CLASSIFIER_THREADS = 512, CLASSIFIER_BLOCK_COLUMNS = 4096, LOSS_THREADS = 1024 };

// minimum blocks per multiprocessor, for __launch_bounds__
template <int THREADS>
static constexpr int classifier_blocks = THREADS == CLASSIFIER_THREADS ? MULTIPROCESSOR_THREADS / THREADS : 1;

// HELD: rows of a multiprocessor; packs that a thread has under way, 64 KB a block
enum { CLASSIFIER_HELD_ROWS = 2, CLASSIFIER_AHEAD = 8 };

// sum of 2^(logit log2(e) - shift) over some logits; shift is log2(e) times their maximum, rounded
typedef struct {
    float max, shift, sum;
} OnlineSum;

static __device__ __forceinline__ float logit_exp(float logit, float shift) {
    return exp2_fast(fmaf(logit, LOG2_E, -shift));
}

// adds WIDTH logits
template <int WIDTH> static __device__ __forceinline__ void online_add(OnlineSum &s, const float (&x)[WIDTH]) {
    float max = s.max, sum = 0;
    UNROLL
    for (int i = 0; i < WIDTH; i++) { max = fmaxf(max, x[i]); }
    float shift = max * LOG2_E;
    UNROLL
    for (int i = 0; i < WIDTH; i++) { sum += logit_exp(x[i], shift); }
    s.sum = fmaf(s.sum, exp2_fast(s.shift - shift), sum);
    s.max = max;
    s.shift = shift;
}

// begins the copy of pack p to `held`, a shared address, as a group of its own; an empty group beyond the row
static __device__ __forceinline__ void hold_pack(uint32_t held, const floatX *row, int p, int packs) {
    constexpr int BYTES = sizeof(Pack<floatX>);
    if (p < packs) { cp_async(held + p * BYTES, row + p * Pack<floatX>::SIZE, true); }
    cp_async_commit();
}

// pack p of the row, or of its copy
template <int WIDTH, bool HELD>
static __device__ __forceinline__ void load_logits(float (&x)[WIDTH], const floatX *row, uint32_t held, int p) {
    if constexpr (HELD) {
        Pack<floatX> pack = pack_of_words<floatX>(load_shared<uint4>(held + p * static_cast<int>(sizeof(uint4))));
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[i] = pack[i]; }
    } else {
        load_floats(x, row + p * WIDTH);
    }
}

// over the row's V logits, by the whole block; every thread receives the same sum. A thread reads the packs of `held`
// that it copied itself, here and in gradient_row.
template <int WIDTH, int THREADS, bool HELD>
static __device__ __forceinline__ OnlineSum online_row(const floatX *row, uint32_t held, int V) {
    int packs = V / WIDTH, thread = static_cast<int>(threadIdx.x);
    OnlineSum s = {CLASSIFIER_LEAST, CLASSIFIER_LEAST * LOG2_E, 0};
    float x[WIDTH];
    for (int i = 0; HELD && i < CLASSIFIER_AHEAD; i++) { hold_pack(held, row, thread + i * THREADS, packs); }
    for (int p = thread; p < packs; p += THREADS) {
        if constexpr (HELD) {
            hold_pack(held, row, p + CLASSIFIER_AHEAD * THREADS, packs);
            cp_async_wait<CLASSIFIER_AHEAD>();  // pack p is complete
        }
        load_logits<WIDTH, HELD>(x, row, held, p);
        online_add(s, x);
    }
    if (packs * WIDTH + thread < V) {
        float rest[1] = {to_real(row[packs * WIDTH + thread])};
        online_add(s, rest);
    }
    float max = block_max<THREADS>(s.max), shift = max * LOG2_E;
    return {max, shift, block_sum<THREADS>(s.sum * exp2_fast(s.shift - shift))};
}

// Writes the gradient over the row's logits, and 0 over the padding. scale is dloss / sum. target is outside [0, V) if
// another rank has it.
template <int WIDTH, int THREADS, bool HELD>
static __device__ __forceinline__ void gradient_row(floatX *row, uint32_t held, int target, float shift, float scale,
                                                    float dloss, int V, int Vp) {
    int packs = V / WIDTH, thread = static_cast<int>(threadIdx.x);
    for (int v = packs * WIDTH + thread; v < Vp; v += THREADS) {
        float softmax = v < V ? logit_exp(to_real(row[v]), shift) * scale : 0;
        row[v] = to_floatX(v == target ? softmax - dloss : softmax);
    }
    for (int p = packs / THREADS * THREADS + thread; p >= 0; p -= THREADS) {
        if (p >= packs) { continue; }
        float x[WIDTH];
        load_logits<WIDTH, HELD>(x, row, held, p);
        UNROLL
        for (int i = 0; i < WIDTH; i++) { x[i] = logit_exp(x[i], shift) * scale; }
        if (p == target / WIDTH) {
            UNROLL
            for (int i = 0; i < WIDTH; i++) { x[i] -= i == target % WIDTH ? dloss : 0; }
        }
        if constexpr (WIDTH == 1) {
            row[p] = to_floatX(x[0]);
        } else {
            store128_streaming(row + p * WIDTH, Pack<floatX>::of(x));
        }
    }
}

// Both passes. WIDTH is a pack, or 1 if rows are not whole packs or logits are not aligned to them.
template <int WIDTH, int THREADS, bool HELD>
static __global__ void __launch_bounds__(THREADS, HELD ? CLASSIFIER_HELD_ROWS : classifier_blocks<THREADS>)
    classifier_kernel(float *losses, floatX *logits, const int *targets, float dloss, int V, int Vp) {
    wait_for_previous_kernel();
    DYNAMIC_SHARED(floatX, copy);  // of the row's packs, with HELD
    uint32_t held = shared_address(copy);
    unsigned n = gridDim.x - 1 - blockIdx.x;
    floatX *row = logits + static_cast<size_t>(n) * Vp;
    int target = targets[n];
    bool counts = target >= 0;
    // the logit is read before block_max's barrier: afterwards another thread overwrites it
    float logit = to_real(row[counts ? target : 0]), row_dloss = counts ? dloss : 0;
    OnlineSum s = online_row<WIDTH, THREADS, HELD>(row, held, V);
    if (threadIdx.x == 0) { losses[n] = counts ? LN_2 * (log2_device(s.sum) - fmaf(logit, LOG2_E, -s.shift)) : 0; }
    if (dloss != 0) {
        gradient_row<WIDTH, THREADS, HELD>(row, held, target, s.shift, row_dloss / s.sum, row_dloss, V, Vp);
    }
}

// A block has the row, 1 KB that CUDA reserves, and block_max's and block_sum's arrays in 1 KB.
static inline bool classifier_holds_rows(size_t bytes, const Exec *ex) {
    return CLASSIFIER_HELD_ROWS * (bytes + (2 << 10)) <= static_cast<size_t>(ex->cuda->shared_bytes);
}

static inline void cuda_classifier(real *losses, floatX *logits, const int *targets, real dloss, int N, int V, int Vp,
                                   Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    bool packed = Vp % PACK == 0 && aligned_to_pack(logits), wide = packed && V >= CLASSIFIER_BLOCK_COLUMNS;
    size_t bytes = static_cast<size_t>(Vp) * sizeof(floatX);
    bool held = wide && dloss != 0 && classifier_holds_rows(bytes, ex);  // without dloss there is no pass 2
    auto kernel = packed ? classifier_kernel<PACK, 32, false> : classifier_kernel<1, 32, false>;
    if (wide) { kernel = classifier_kernel<PACK, CLASSIFIER_THREADS, false>; }
    if (held) {
        int most = static_cast<int>(bytes), percent = 100;
        kernel = classifier_kernel<PACK, CLASSIFIER_THREADS, true>;
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent));
    }
    LAUNCH(kernel, N, wide ? CLASSIFIER_THREADS : 32, held ? bytes : 0, stream_of(ex), losses, logits, targets, dloss,
           V, Vp);
}

// pass 1 over the rank's columns
template <int WIDTH, int THREADS>
static __global__ void __launch_bounds__(THREADS, classifier_blocks<THREADS>)
    classifier_statistics_kernel(float *statistics, const floatX *logits, const int *targets, int first, int columns,
                                 int Vl) {
    wait_for_previous_kernel();
    unsigned n = gridDim.x - 1 - blockIdx.x;
    const floatX *row = logits + static_cast<size_t>(n) * Vl;
    OnlineSum s = online_row<WIDTH, THREADS, false>(row, 0, columns);
    if (threadIdx.x > 0) { return; }
    int target = targets[n] - first;
    float *to = statistics + 3 * static_cast<size_t>(n);
    to[0] = s.max;
    to[1] = s.sum;
    to[2] = target >= 0 && target < columns ? to_real(row[target]) : 0;
}

static inline void cuda_classifier_statistics(real *statistics, const floatX *logits, const int *targets, int first,
                                              int N, int V, int Vl, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    bool packed = Vl % PACK == 0 && aligned_to_pack(logits), wide = packed && Vl >= CLASSIFIER_BLOCK_COLUMNS;
    auto kernel = packed ? classifier_statistics_kernel<PACK, 32> : classifier_statistics_kernel<1, 32>;
    if (wide) { kernel = classifier_statistics_kernel<PACK, CLASSIFIER_THREADS>; }
    LAUNCH(kernel, N, wide ? CLASSIFIER_THREADS : 32, 0, stream_of(ex), statistics, logits, targets, first,
           classifier_columns(first, V, Vl), Vl);
}

// row n's sum over all ranks;  *target = the target's logit
static __device__ __forceinline__ OnlineSum online_combine(float *target, const float *statistics, int ranks, int N,
                                                           unsigned n) {
    const float *of_row = statistics + 3 * static_cast<size_t>(n);
    size_t stride = 3 * static_cast<size_t>(N);
    float max = CLASSIFIER_LEAST, sum = 0;
    for (int r = 0; r < ranks; r++) { max = fmaxf(max, of_row[r * stride]); }
    float shift = max * LOG2_E;
    *target = 0;
    for (int r = 0; r < ranks; r++) {
        float own_shift = of_row[r * stride] * LOG2_E;  // shift of the rank's sum
        sum = fmaf(of_row[r * stride + 1], exp2_fast(own_shift - shift), sum);
        *target += of_row[r * stride + 2];
    }
    return {max, shift, sum};
}

// pass 2 over the rank's columns
template <int WIDTH, int THREADS>
static __global__ void __launch_bounds__(THREADS, classifier_blocks<THREADS>)
    classifier_from_statistics_kernel(float *losses, floatX *logits, const float *statistics, const int *targets,
                                      float dloss, int ranks, int first, int N, int columns, int Vl) {
    wait_for_previous_kernel();
    unsigned n = gridDim.x - 1 - blockIdx.x;
    float logit, row_dloss = targets[n] >= 0 ? dloss : 0;
    OnlineSum s = online_combine(&logit, statistics, ranks, N, n);
    if (threadIdx.x == 0) {
        losses[n] = targets[n] >= 0 ? LN_2 * (log2_device(s.sum) - fmaf(logit, LOG2_E, -s.shift)) : 0;
    }
    if (dloss == 0) { return; }
    gradient_row<WIDTH, THREADS, false>(logits + static_cast<size_t>(n) * Vl, 0, targets[n] - first, s.shift,
                                        row_dloss / s.sum, row_dloss, columns, Vl);
}

static inline void cuda_classifier_from_statistics(real *losses, floatX *logits, const real *statistics,
                                                   const int *targets, real dloss, int ranks, int first, int N, int V,
                                                   int Vl, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    bool packed = Vl % PACK == 0 && aligned_to_pack(logits), wide = packed && Vl >= CLASSIFIER_BLOCK_COLUMNS;
    auto kernel = packed ? classifier_from_statistics_kernel<PACK, 32> : classifier_from_statistics_kernel<1, 32>;
    if (wide) { kernel = classifier_from_statistics_kernel<PACK, CLASSIFIER_THREADS>; }
    LAUNCH(kernel, N, wide ? CLASSIFIER_THREADS : 32, 0, stream_of(ex), losses, logits, statistics, targets, dloss,
           ranks, first, N, classifier_columns(first, V, Vl), Vl);
}

// adds x to *sum; *lost is the rounding error so far, subtracted from the next x (Kahan 1965)
static __device__ __forceinline__ void add_compensated(float *sum, float *lost, float x) {
    float term = x - *lost, total = *sum + term;
    *lost = (total - *sum) - term;
    *sum = total;
}

// one block: N is at most the number of tokens of a micro-batch
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_sum_kernel(float *total, const float *losses, float scale, int N) {
    wait_for_previous_kernel();
    float sum = 0, lost = 0;
    for (int n = static_cast<int>(threadIdx.x); n < N; n += LOSS_THREADS) { add_compensated(&sum, &lost, losses[n]); }
    sum = block_sum<LOSS_THREADS>(sum);
    if (threadIdx.x == 0) { *total = fmaf(scale, sum, *total); }
}

static inline void cuda_loss_sum(real *total, const real *losses, real scale, int N, Exec *ex) {
    LAUNCH(loss_sum_kernel, 1, LOSS_THREADS, 0, stream_of(ex), total, losses, scale, N);
}
