/*
Token plus position embedding on the GPU.
  embedding_forward_kernel    a warp has a row; at most 3NC floatX, since repeated rows of wte are cached. With -tp or
                              packed sequences one launch writes the rows of wte, and another adds those of wpe
  embedding_positions_kernel  dwpe: a thread adds the sequences in order; NC floatX + TC of dwpe
  embedding_pairs_kernel      dwte 1: pairs (token, row), and counts of the lowest digit
  embedding_sort_kernel       dwte 2: one radix pass; equal tokens become neighbours
  embedding_runs_kernel       dwte 3: sums equal tokens by chunks of pairs, so that a frequent token does not burden one
                              block
  embedding_fold_kernel       dwte 4: adds the partial sums of runs that span chunks
Atomic float adds would give other bits in every run, so a sort brings equal tokens together. dwte takes NC floatX, 2C
of dwte for each different token, and at most 4C real for each EMBEDDING_CHUNK rows.
Kernels are templates of WIDTH, the neighbouring columns of a thread: a pack, or 1 if rows are not whole packs or an
array is not aligned to them.
*/
#pragma once
#include "llmc/common/device.cuh"
#include "llmc/embedding.h"
#include "llmc/gradient.cuh"
#include "llmc/ops.h"

// x += WIDTH elements of an array
template <int WIDTH, class T> static __device__ __forceinline__ void embedding_add(float (&x)[WIDTH], const T *from) {
    float old[WIDTH];
    load_floats(old, from);
    UNROLL
    for (int i = 0; i < WIDTH; i++) { x[i] += old[i]; }
}

// ---- forward

static constexpr int EMBEDDING_ROWS = 8;  // of a block of the forward, a warp each

// out (N,C) = wte[tokens] + wpe. TOKENS alone: out = wte[tokens]; POSITIONS alone: out += wpe. A token outside
// [first_token, first_token + rows) counts as a row of zeros. Row 0 of out is at position first_position.
template <int WIDTH, bool TOKENS, bool POSITIONS>
static __global__ void __launch_bounds__(EMBEDDING_ROWS * 32)
    embedding_forward_kernel(floatX *out, const int *tokens, const floatX *wte, int first_token, int rows,
                             const floatX *wpe, int first_position, int N, int T, int C) {
    wait_for_previous_kernel();
    int row = (int)blockIdx.x * EMBEDDING_ROWS + warp_id();
    if (row >= N) { return; }
    int token = TOKENS ? tokens[row] - first_token : 0, position = POSITIONS ? (first_position + row) % T : 0;
    for (int c = lane_id() * WIDTH; c < C; c += 32 * WIDTH) {
        floatX *to = out + (size_t)row * C + c;
        float x[WIDTH] = {};
        if constexpr (!TOKENS) {
            load_floats(x, to);
        } else if (token >= 0 && token < rows) {
            load_floats(x, wte + (size_t)token * C + c);
        }
        if constexpr (POSITIONS) { embedding_add(x, wpe + (size_t)position * C + c); }
        store_floats(to, x);
    }
}

template <bool TOKENS, bool POSITIONS>
static inline void embedding_launch_forward(floatX *out, const int *tokens, const floatX *wte, int first_token,
                                            int rows, const floatX *wpe, int first_position, int N, int T, int C,
                                            Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    bool packed = C % PACK == 0 && aligned_to_pack(out, wte, wpe);
    LAUNCH(
        (packed ? embedding_forward_kernel<PACK, TOKENS, POSITIONS> : embedding_forward_kernel<1, TOKENS, POSITIONS>),
        ceil_div(N, EMBEDDING_ROWS), EMBEDDING_ROWS * 32, 0, stream_of(ex), out, tokens, wte, first_token, rows, wpe,
        first_position, N, T, C);
}

static inline void cuda_embedding_forward(floatX *out, const int *tokens, const floatX *wte, const floatX *wpe, int B,
                                          int T, int C, Exec *ex) {
    embedding_launch_forward<true, true>(out, tokens, wte, 0, INT_MAX, wpe, 0, B * T, T, C, ex);
}

static inline void cuda_token_embedding_forward(floatX *out, const int *tokens, const floatX *wte, int first, int rows,
                                                int N, int C, Exec *ex) {
    embedding_launch_forward<true, false>(out, tokens, wte, first, rows, NULL, 0, N, 1, C, ex);
}

static inline void cuda_position_embedding_forward(floatX *out, const floatX *wpe, int first, int N, int T, int C,
                                                   Exec *ex) {
    embedding_launch_forward<false, true>(out, NULL, NULL, 0, 0, wpe, first, N, T, C, ex);
}

// ---- backward: dwpe

static constexpr int EMBEDDING_AT_ONCE = 4;    // rows that a thread has under way, to hide the memory's latency
static constexpr int EMBEDDING_THREADS = 128;  // most threads of a block; each has WIDTH columns

// threads of a block, if a row takes row_threads
static inline int embedding_threads(int row_threads) { return min(ceil_div(row_threads, 32) * 32, EMBEDDING_THREADS); }

// dwpe[t] (+)= sum of the rows of dout (N,C) at position t, in order; row 0 is at position `first`. The sum of a
// position without rows is 0. Block x is the position, y a range of columns.
template <int WIDTH, class T>
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_positions_kernel(T *dwpe, const floatX *dout, GradMode mode, int first, int N, int positions, int C) {
    wait_for_previous_kernel();
    int t = (int)blockIdx.x, c = (int)(blockIdx.y * blockDim.x + threadIdx.x) * WIDTH;
    if (c >= C) { return; }
    int begin = t < positions ? t - first + (t < first ? positions : 0) : N;
    float sum[WIDTH] = {}, row[EMBEDDING_AT_ONCE][WIDTH];
    for (int n = begin; n < N; n += EMBEDDING_AT_ONCE * positions) {
        UNROLL
        for (int j = 0; j < EMBEDDING_AT_ONCE; j++) {
            if (n + j * positions < N) { load_floats(row[j], dout + (size_t)(n + j * positions) * C + c); }
        }
        UNROLL
        for (int j = 0; j < EMBEDDING_AT_ONCE; j++) {
            UNROLL
            for (int i = 0; n + j * positions < N && i < WIDTH; i++) { sum[i] += row[j][i]; }
        }
    }
    T *to = dwpe + (size_t)t * C + c;
    if (mode == GRAD_ADD) { embedding_add(sum, to); }
    store_floats(to, sum);
}

static inline void cuda_position_embedding_backward(Gradient dwpe, const floatX *dout, GradMode mode, int first, int N,
                                                    int T, int maxT, int C, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    bool packed = C % PACK == 0 && aligned_to_pack(dwpe.at, dout);
    int row_threads = packed ? C / PACK : C, threads = embedding_threads(row_threads);
    dim3 grid((unsigned)(mode == GRAD_SET ? maxT : T), (unsigned)ceil_div(row_threads, threads));
    with_type(dwpe.dtype, dwpe.at, [&]<class W>(W *to) {
        LAUNCH((packed ? embedding_positions_kernel<PACK, W> : embedding_positions_kernel<1, W>), grid, threads, 0,
               stream_of(ex), to, dout, mode, first % T, N, T, C);
    });
}

// ---- backward: the sort
// The sort runs on the device, so that a step stays one CUDA graph. The sort is stable, so that a token's rows stay in
// order: a radix sort of pairs (token, row) by 8 bits of the token, lowest first, one kernel a pass. The radix sort
// needs no bound on tokens. A kernel places a digit by the number of occurrences of each digit in each tile, which the
// kernel before counted. These counters are the only atomics: integers, whose sum does not depend on the order. 65536
// tokens take four kernels of 32 blocks. By estimate, not measured: 15 us on an H200, against 60 us for the rows.

static constexpr int EMBEDDING_DIGIT_BITS = 8, EMBEDDING_DIGITS = 1 << EMBEDDING_DIGIT_BITS;
static constexpr int EMBEDDING_PASSES = 32 / EMBEDDING_DIGIT_BITS;  // even: the last writes where the first read
static constexpr int EMBEDDING_SORT_THREADS = EMBEDDING_DIGITS, EMBEDDING_SORT_WARPS = EMBEDDING_SORT_THREADS / 32;
static constexpr int EMBEDDING_PAIRS_PER_THREAD = 8;                                        // of a tile
static constexpr int EMBEDDING_TILE = EMBEDDING_SORT_THREADS * EMBEDDING_PAIRS_PER_THREAD;  // pairs that a block sorts

// x: token minus the rank's first, unsigned, so that tokens of other ranks are `rows` or more; y: row of dout
typedef uint2 EmbeddingPair;

static __device__ __forceinline__ int embedding_digit(unsigned token, int pass) {
    return (int)(token >> (pass * EMBEDDING_DIGIT_BITS)) & (EMBEDDING_DIGITS - 1);
}

// pairs (N) of tokens and rows;  counts (tiles,DIGITS) += occurrences of the lowest digit
static __global__ void embedding_pairs_kernel(EmbeddingPair *pairs, int *counts, const int *tokens, int first, int N) {
    wait_for_previous_kernel();
    int n = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (n >= N) { return; }
    unsigned token = (unsigned)(tokens[n] - first);
    pairs[n] = make_uint2(token, (unsigned)n);
    atomicAdd(counts + n / EMBEDDING_TILE * EMBEDDING_DIGITS + embedding_digit(token, 0), 1);
}

// exclusive prefix sum over the EMBEDDING_SORT_THREADS threads of a block
static __device__ __forceinline__ int embedding_prefix(int x) {
    SHARED_ARRAY(int, of_warp, EMBEDDING_SORT_WARPS);
    int sum = x;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, (unsigned)lanes);
        if (lane_id() >= lanes) { sum += other; }
    }
    if (lane_id() == 31) { of_warp[warp_id()] = sum; }
    __syncthreads();  // every warp's sum is there
    int before = 0;
    for (int warp = 0; warp < warp_id(); warp++) { before += of_warp[warp]; }
    return before + sum - x;
}

// mask of the valid lanes with this lane's digit
static __device__ __forceinline__ unsigned embedding_peers(int digit, bool valid) {
    unsigned peers = __ballot_sync(0xffffffffu, valid);
    for (int bit = 0; bit < EMBEDDING_DIGIT_BITS; bit++) {
        bool one = digit >> bit & 1;
        unsigned ones = __ballot_sync(0xffffffffu, one);
        peers &= one ? ones : ~ones;
    }
    return peers;
}

// One pass: `to` = `from` (N), sorted by digit `pass`; equal digits keep their order. counts (tiles,DIGITS) is of
// from's tiles; next (tiles,DIGITS) += the counts of to's tiles for the next digit. A block has a tile, and each warp
// a range of the tile. To place the digits, each thread has one digit.
static __global__ void __launch_bounds__(EMBEDDING_SORT_THREADS)
    embedding_sort_kernel(EmbeddingPair *to, int *next, const EmbeddingPair *from, const int *counts, int pass, int N) {
    wait_for_previous_kernel();
    SHARED_ARRAY(int, places, EMBEDDING_SORT_WARPS *EMBEDDING_DIGITS);  // (warps,DIGITS): of the warp's next pair
    int thread = (int)threadIdx.x, tile = (int)blockIdx.x;
    SharedPtr<int> place = places + warp_id() * EMBEDDING_DIGITS;
    for (int digit = lane_id(); digit < EMBEDDING_DIGITS; digit += 32) { place[digit] = 0; }
    __syncwarp();  // the warp's counters are 0

    // count: rank = number of the warp's pairs before the thread's with the same digit
    EmbeddingPair pair[EMBEDDING_PAIRS_PER_THREAD];
    int rank[EMBEDDING_PAIRS_PER_THREAD],
        first = tile * EMBEDDING_TILE + warp_id() * 32 * EMBEDDING_PAIRS_PER_THREAD + lane_id();
    UNROLL
    for (int round = 0; round < EMBEDDING_PAIRS_PER_THREAD; round++) {
        bool valid = first + round * 32 < N;
        pair[round] = valid ? from[first + round * 32] : make_uint2(0, 0);
        int digit = embedding_digit(pair[round].x, pass);
        unsigned peers = embedding_peers(digit, valid), before = peers & ((1u << lane_id()) - 1);
        int counted = place[digit];
        rank[round] = counted + __popc(before);
        __syncwarp();  // all lanes have read the counters
        if (valid && before == 0) { place[digit] = counted + __popc(peers); }
        __syncwarp();  // the counters are up to date for the next round
    }

    // place: in order of digit, then tile, then warp
    int everywhere = 0, earlier = 0;
    for (int t = 0; t < (int)gridDim.x; t++) {
        int count = counts[t * EMBEDDING_DIGITS + thread];
        everywhere += count;
        earlier += t < tile ? count : 0;
    }
    int at = embedding_prefix(everywhere) + earlier;  // its barrier: all warps have counted
    for (int warp = 0; warp < EMBEDDING_SORT_WARPS; warp++) {
        int count = places[warp * EMBEDDING_DIGITS + thread];
        places[warp * EMBEDDING_DIGITS + thread] = at;
        at += count;
    }
    __syncthreads();  // the places of all digits are known

    // move
    UNROLL
    for (int round = 0; round < EMBEDDING_PAIRS_PER_THREAD; round++) {
        if (first + round * 32 >= N) { break; }
        int index = place[embedding_digit(pair[round].x, pass)] + rank[round];
        to[index] = pair[round];
        if (pass + 1 < EMBEDDING_PASSES) {
            int digit = embedding_digit(pair[round].x, pass + 1);
            atomicAdd(next + index / EMBEDDING_TILE * EMBEDDING_DIGITS + digit, 1);
        }
    }
}

// ---- backward: dwte
// A block sums a chunk of EMBEDDING_CHUNK sorted pairs. A thread has a pack of columns and walks the pairs, with
// several rows under way. A run of equal tokens that lies inside one chunk is added to dwte: no other block has that
// row. A run over several chunks leaves a partial sum in each. In embedding_fold_kernel the block of the chunk where
// the run begins adds up these partial sums, eight warps side by side, and adds the total to dwte. Tokens of other
// ranks come last in the order, and their pairs are not walked.

static constexpr int EMBEDDING_CHUNK = 32;  // sorted pairs that a block walks

// true if pairs i - 1 and i have the same token
static __device__ __forceinline__ bool embedding_joined(const EmbeddingPair *pairs, int i, int N) {
    return i > 0 && i < N && pairs[i - 1].x == pairs[i].x;
}

// Sums the runs of equal tokens in chunk x, over columns of block y. A run inside the chunk is added to dwte. The sum
// of a run that began before the chunk goes to partial (chunks,2,C) [x,0], the sum of a run that begins here and goes
// on to [x,1]. Pairs of other ranks' tokens come last and end the walk.
template <int WIDTH, class T>
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_runs_kernel(T *dwte, float *partial, const floatX *dout, const EmbeddingPair *pairs, unsigned rows, int N,
                          int C) {
    wait_for_previous_kernel();
    int begin = (int)blockIdx.x * EMBEDDING_CHUNK, end = min(begin + EMBEDDING_CHUNK, N);
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x) * WIDTH;
    if (c >= C) { return; }
    bool began_before = embedding_joined(pairs, begin, N);
    float sum[WIDTH] = {}, row[EMBEDDING_AT_ONCE][WIDTH];
    for (int i = begin; i < end; i += EMBEDDING_AT_ONCE) {
        UNROLL
        for (int j = 0; j < EMBEDDING_AT_ONCE; j++) {
            bool here = i + j < end && pairs[i + j].x < rows;  // rows of other ranks' tokens are not read
            if (here) { load_floats(row[j], dout + (size_t)pairs[i + j].y * C + c); }
        }
        UNROLL
        for (int j = 0; j < EMBEDDING_AT_ONCE; j++) {
            if (i + j >= end) { break; }
            if (pairs[i + j].x >= rows) { return; }
            UNROLL
            for (int k = 0; k < WIDTH; k++) { sum[k] += row[j][k]; }
            bool goes_on = embedding_joined(pairs, i + j + 1, N);
            if (goes_on && i + j + 1 < end) { continue; }
            if (began_before || goes_on) {
                store_floats(partial + ((size_t)blockIdx.x * 2 + (began_before ? 0 : 1)) * C + c, sum);
            } else {
                T *to = dwte + (size_t)pairs[i + j].x * C + c;
                embedding_add(sum, to);
                store_floats(to, sum);
            }
            began_before = false;
            UNROLL
            for (int k = 0; k < WIDTH; k++) { sum[k] = 0; }
        }
    }
}

// the last chunk of the run that begins in `chunk` and goes on: a binary search
static __device__ __forceinline__ int embedding_last_chunk(const EmbeddingPair *pairs, int chunk, int N) {
    unsigned token = pairs[(chunk + 1) * EMBEDDING_CHUNK].x;
    int in = chunk + 1,
        out = ceil_div(N, EMBEDDING_CHUNK);  // chunk `in` begins with the token, chunk `out` with a later one
    while (out - in > 1) {
        int middle = (in + out) / 2;
        if (pairs[middle * EMBEDDING_CHUNK].x == token) {
            in = middle;
        } else {
            out = middle;
        }
    }
    return in;
}

static constexpr int EMBEDDING_FOLD_WARPS = 8;

// If a run begins in chunk x and goes on, adds its partial sums to dwte. A lane has a column, a warp every 8th chunk of
// the run.
static __global__ void __launch_bounds__(EMBEDDING_FOLD_WARPS * 32)
    embedding_fold_kernel(Gradient dwte, const float *partial, const EmbeddingPair *pairs, unsigned rows, int N,
                          int C) {
    wait_for_previous_kernel();
    SHARED_ARRAY(float, of_warp, EMBEDDING_FOLD_WARPS * 32);
    int chunk = (int)blockIdx.x, after = (chunk + 1) * EMBEDDING_CHUNK, c = (int)blockIdx.y * 32 + lane_id();
    bool begins = chunk == 0 || pairs[chunk * EMBEDDING_CHUNK - 1].x != pairs[after - 1].x;
    if (!begins || !embedding_joined(pairs, after, N) || pairs[after].x >= rows) { return; }
    int chunks = embedding_last_chunk(pairs, chunk, N) - chunk + 1;
    float sum = 0;
    for (int i = warp_id(); c < C && i < chunks; i += EMBEDDING_FOLD_WARPS) {
        sum += partial[((size_t)(chunk + i) * 2 + (i == 0 ? 1 : 0)) * C + c];
    }
    of_warp[(int)threadIdx.x] = sum;
    __syncthreads();  // every warp's sums are there
    if (warp_id() > 0 || c >= C) { return; }
    sum = 0;
    for (int warp = 0; warp < EMBEDDING_FOLD_WARPS; warp++) { sum += of_warp[warp * 32 + lane_id()]; }
    gradient_put(dwte, (size_t)pairs[after - 1].x * C + c, sum, GRAD_ADD);
}

// ---- backward: scratch and launches

// bytes of one array of pairs
static inline size_t embedding_pairs_bytes(int N) {
    return (size_t)ceil_div(N, EMBEDDING_TILE) * EMBEDDING_TILE * sizeof(EmbeddingPair);
}

// bytes of the counters of all passes
static inline size_t embedding_counts_bytes(int N) {
    return (size_t)ceil_div(N, EMBEDDING_TILE) * EMBEDDING_PASSES * EMBEDDING_DIGITS * sizeof(int);
}

// the backward's scratch in bytes: two arrays of pairs, the counters, and two partial sums of rows a chunk
static inline size_t embedding_partials(int B, int T, int C) {
    size_t sums_bytes = (size_t)ceil_div(B * T, EMBEDDING_CHUNK) * 2 * (size_t)C * sizeof(float);
    return 2 * embedding_pairs_bytes(B * T) + embedding_counts_bytes(B * T) + sums_bytes;
}

// pairs = (token, row), sorted by token. Passes alternate between `pairs` and `other`; counts is for all passes.
static inline void embedding_sort(EmbeddingPair *pairs, EmbeddingPair *other, int *counts, const int *tokens, int first,
                                  int N, cudaStream_t stream) {
    int tiles = ceil_div(N, EMBEDDING_TILE);
    CUDA_CHECK(cudaMemsetAsync(counts, 0, embedding_counts_bytes(N), stream));
    LAUNCH(embedding_pairs_kernel, ceil_div(N, 256), 256, 0, stream, pairs, counts, tokens, first, N);
    for (int pass = 0; pass < EMBEDDING_PASSES; pass++) {
        int *next = counts + (size_t)tiles * EMBEDDING_DIGITS;
        LAUNCH(embedding_sort_kernel, tiles, EMBEDDING_SORT_THREADS, 0, stream, pass % 2 ? pairs : other, next,
               pass % 2 ? other : pairs, counts, pass, N);
        counts = next;
    }
}

static inline void cuda_token_embedding_backward(Gradient dwte, const floatX *dout, const int *tokens, int first,
                                                 int rows, int N, int C, Exec *ex) {
    constexpr int PACK = Pack<floatX>::SIZE;
    char *scratch = partials_of<char>(ex, embedding_partials(1, N, C), "token_embedding_backward");
    size_t pairs_bytes = embedding_pairs_bytes(N);
    EmbeddingPair *pairs = (EmbeddingPair *)scratch, *other = (EmbeddingPair *)(scratch + pairs_bytes);
    int *counts = (int *)(scratch + 2 * pairs_bytes);
    float *partial = (float *)(scratch + 2 * pairs_bytes + embedding_counts_bytes(N));
    embedding_sort(pairs, other, counts, tokens, first, N, stream_of(ex));
    bool packed = C % PACK == 0 && aligned_to_pack(dwte.at, dout);
    int row_threads = packed ? C / PACK : C, threads = embedding_threads(row_threads),
        chunks = ceil_div(N, EMBEDDING_CHUNK);
    with_type(dwte.dtype, dwte.at, [&]<class W>(W *to) {
        LAUNCH((packed ? embedding_runs_kernel<PACK, W> : embedding_runs_kernel<1, W>),
               dim3(chunks, ceil_div(row_threads, threads)), threads, 0, stream_of(ex), to, partial, dout, pairs,
               (unsigned)rows, N, C);
    });
    LAUNCH(embedding_fold_kernel, dim3(chunks, ceil_div(C, 32)), EMBEDDING_FOLD_WARPS * 32, 0, stream_of(ex), dwte,
           partial, pairs, (unsigned)rows, N, C);
}

static inline void cuda_embedding_backward(Gradient dwte, Gradient dwpe, const floatX *dout, const int *tokens,
                                           GradMode mode, int B, int T, int maxT, int C, Exec *ex) {
    cuda_position_embedding_backward(dwpe, dout, mode, 0, B * T, T, maxT, C, ex);
    cuda_token_embedding_backward(dwte, dout, tokens, 0, INT_MAX, B * T, C, ex);
}
