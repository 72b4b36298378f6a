/*
Causal attention on the GPU (FlashAttention-2: Dao 2023). The formulas are in attention.h.
  attention_decode_kernel   generation: one query over cached keys and values; scores, softmax, weighted sum
  attention_forward_kernel  tiles of queries visit tiles of keys and values: scores, online softmax, accumulate, write
  attention_dq_kernel       tiles of queries and dout visit tiles of keys and values; delta = dout . out of each row
  attention_dkv_kernel      tiles of keys and values visit tiles of queries and dout; scores are transposed, S^T = K Q^T
The forward saves lse alone, and both backward kernels recompute the scores from lse. The backward therefore runs 7
GEMMs instead of 5. Each sum then has one owner and one order: no atomics, the same bits in every run. No array has
T x T elements. Tiles wholly above the diagonal are neither loaded nor computed.
The tile kernels are templates over the layout of a tile and the two GEMMs on it. Read them with PlainTiles first.
  PlainTiles   the plain path: fp32 or bf16 on CUDA cores, any head size up to 256, any alignment
  TensorTiles  the fast path: bf16 on tensor cores, head sizes 32, 64, 80 and 128, arrays aligned to 16 bytes
Shapes      qkv, dqkv (B,T,3,NH,HS) and out, dout (B,T,NH,HS) floatX;  lse (B,NH,T) float. Outputs: =
Bytes       A thread block reads its own rows once, OWN of them, and the other side's rows up to the diagonal. The other
            side is read T / (2 OWN) times per head, from L2, since the blocks of a head run at about the same time.
            Outputs are written once, 16 bytes a thread. dQ reads its rows of dout twice, the second time from L2.
*/
#pragma once
#include "llmc/common/device.cuh"

struct AttentionShape {
    int T, NH, HS;
    bool packs;   // head size and addresses are multiples of 16 bytes
    float scale;  // log2(e) / sqrt(HS): scaled scores are exponents of 2
};

// ---- decode

enum { ATTENTION_DECODE_THREADS = 256, ATTENTION_MAX_HS = 256, ATTENTION_MAX_BLOCKS = 65535 };

// Row i of the keys or values of one head. Rows [0, num_cached) are in the cache (rows,C), the rest in qkv, at `fresh`:
// other blocks of the same launch are still appending the rest to the cache.
static __device__ __forceinline__ const floatX *attention_cached_row(const floatX *cached, const floatX *fresh,
                                                                     int num_cached, int i, size_t C) {
    return i < num_cached ? cached + i * C : fresh + (i - num_cached) * 3 * C;
}

// query (HS, in shared memory) . key (HS), W elements at a time
template <int W>
static __device__ __forceinline__ float attention_dot(SharedPtr<float> query, const floatX *key, int HS) {
    float sum = 0, x[W];
    for (int d = 0; d < HS; d += W) {
        load_floats(x, key + d);
        UNROLL
        for (int i = 0; i < W; i++) { sum += query[d + i] * x[i]; }
    }
    return sum;
}

// One query of one head per block. grid: (NH, n).
// Keys are processed THREADS at a time. For the scores a thread has one key. For the values a thread has W columns of
// every groups-th key. The order of sums depends only on the number of visible keys. Any split of a text into calls
// gives the same bits.
template <int W>
static __global__ void __launch_bounds__(ATTENTION_DECODE_THREADS, 1)
    attention_decode_kernel(floatX *out, floatX *keys, floatX *values, const floatX *qkv, int pos, int NH, int HS,
                            float scale) {
    wait_for_previous_kernel();
    constexpr int THREADS = ATTENTION_DECODE_THREADS, GROUP_SUMS = W * THREADS;
    SHARED_ARRAY(float, query, ATTENTION_MAX_HS);
    SHARED_ARRAY(float, weight, THREADS);       // exp(score - top) of the current keys
    SHARED_ARRAY(float, of_group, GROUP_SUMS);  // (groups, HS)
    size_t C = (size_t)NH * HS, head = (size_t)blockIdx.x * HS;
    int thread = (int)threadIdx.x, num_keys = pos + (int)blockIdx.y + 1;
    int columns = HS / W, group = thread / columns, groups = THREADS / columns, column = thread % columns * W;
    const floatX *own = qkv + blockIdx.y * 3 * C + head;
    auto key = [&](int i) { return attention_cached_row(keys + head, qkv + C + head, pos, i, C); };
    auto value = [&](int i) { return attention_cached_row(values + head, qkv + 2 * C + head, pos, i, C); };

    // load the query; append the new key and value to the cache
    for (int d = thread; d < HS; d += THREADS) {
        query[d] = to_real(own[d]);
        keys[(num_keys - 1) * C + head + d] = own[C + d];
        values[(num_keys - 1) * C + head + d] = own[2 * C + d];
    }
    __syncthreads();  // the query is complete

    float top = -INFINITY, sum = 0, sums[W] = {}, x[W];
    for (int first = 0; first < num_keys; first += THREADS) {
        int count = min(THREADS, num_keys - first);
        // scores
        float score = thread < count ? scale * attention_dot<W>(query, key(first + thread), HS) : -INFINITY;
        // online softmax: earlier sums shrink when the largest score grows
        float largest = fmaxf(top, block_max<THREADS>(score)), shrink = exp2_fast(top - largest);
        top = largest;
        weight[thread] = exp2_fast(score - top);
        sum = sum * shrink + block_sum<THREADS>(weight[thread]);  // the barriers of block_sum complete `weight`
        // weighted sum of values
        UNROLL
        for (int i = 0; i < W; i++) { sums[i] *= shrink; }
        for (int k = group; k < count; k += groups) {
            load_floats(x, value(first + k) + column);
            UNROLL
            for (int i = 0; i < W; i++) { sums[i] += weight[k] * x[i]; }
        }
        // the next block_max has barriers between these reads of `weight` and the next writes
    }

    // add up the groups; threads beyond the last whole group have sums that nobody reads
    UNROLL
    for (int i = 0; i < W; i++) { of_group[thread * W + i] = sums[i]; }
    __syncthreads();  // the sums of all groups are complete
    float scale_out = 1.0f / sum;
    for (int d = thread; d < HS; d += THREADS) {
        float total = 0;
        for (int g = 0; g < groups; g++) { total += of_group[g * HS + d]; }
        out[blockIdx.y * C + head + d] = to_floatX(total * scale_out);
    }
}

// ---- one head of the packed arrays. grid of the tile kernels: (tiles, NH, B)

// Two numbers of a query in the backward: p = 2^(scaled score - lse), and the score's gradient is p (dout . V - delta).
// dQ computes delta, and writes the pairs for dK and dV to a scratch buffer (B,NH,attention_pair_rows(T)). The even
// number of rows lets cp.async copy two pairs, 16 bytes, at a time.
struct alignas(8) AttentionPair {
    float lse, delta;  // lse in base 2; delta = dout . out
};
enum { ATTENTION_PAIR_BYTES = sizeof(AttentionPair) };

static inline HOST_DEVICE int attention_pair_rows(int T) { return T + T % 2; }

// the head's first row in (B,NH,rows): rows is T for lse, attention_pair_rows(T) for the pairs
static __device__ __forceinline__ size_t attention_row_offset(const AttentionShape &s, int rows) {
    return ((size_t)blockIdx.z * s.NH + blockIdx.y) * rows;
}
// the head's first element in (B,T,NH,HS)
static __device__ __forceinline__ size_t attention_head_offset(const AttentionShape &s) {
    return (size_t)blockIdx.z * s.T * s.NH * s.HS + blockIdx.y * s.HS;
}
// the head's first query in (B,T,3,NH,HS); its first key is C = NH HS elements further, and its first value 2C
static __device__ __forceinline__ size_t attention_query_offset(const AttentionShape &s) {
    return (size_t)blockIdx.z * s.T * 3 * s.NH * s.HS + blockIdx.y * s.HS;
}

// ---- tiles
// A tile is a number of rows of one head in shared memory, known by its address. A block has tiles of OWN rows for its
// own side and visits the other side in tiles of OTHER rows. Rows from T on are zeros and need no mask: such a key is
// above the diagonal of every stored query, and such a query has dout = 0 and delta = 0.
// A matrix with one row per own row is in registers, spread over the threads: x[r][c] of a thread is the element at
// row(r) and column(c). LANES neighbouring lanes have the same rows. A warp's rows are among the WARP_ROWS rows from
// first_row() on.
// Both structs have the same members:
//   load<NUM>(tile, from, stride, first, s)    copies rows [first, first + NUM) to the tile
//   in_registers(tile, s), in_shared(tile, s)  own rows as the left factor of a GEMM; registers are faster
//   add_scores(x, own, tile, first)            x (own, N) += own (own, HS) tile[first..]^T: scores, or dout . V
//   accumulate(sums, x, tile, first, scratch)  sums (own, HS) += x (own, N) tile[first..]
//   part_of_dot(x, y, s)                       a lane's part of x (HS) . y (HS), one row of two arrays in global memory
//   store(to, stride, tile, first, s, sums, scale)   own rows [first, first + OWN) of `to` = scale (own) sums (own, HS)

// A lane's part of x (HS) . y (HS): W elements of every LANES * W. The loop is unrolled for WIDTH >= HS.
template <int WIDTH, int LANES, int W>
static __device__ __forceinline__ float attention_part_of_dot(const floatX *x, const floatX *y, int HS) {
    float sum = 0;
    UNROLL
    for (int i = 0; i < WIDTH; i += LANES * W) {
        int d = i + lane_id() % LANES * W;
        float a[W] = {}, b[W] = {};
        if (d < HS) {
            load_floats(a, x + d);
            load_floats(b, y + d);
        }
        UNROLL
        for (int w = 0; w < W; w++) { sum += a[w] * b[w]; }
    }
    return sum;
}

// CUDA cores: any dtype, head sizes up to WIDTH (a multiple of 32). 64 threads, TILE rows on either side, fp32 in
// shared memory. A thread multiplies TILE / 8 rows by as many. Thread i has rows i/8, i/8 + 8, ..; of scores the
// columns i%8, i%8 + 8, ..; of sums 4 of every 32 columns.
template <int WIDTH_, int TILE> struct PlainTiles {
    static constexpr int OWN = TILE, OTHER = TILE, STEP = TILE, THREADS = 64, WIDTH = WIDTH_;
    static constexpr int WARP_ROWS = TILE, ROWS = TILE / 8, LANES = 8, BUFFERS = 1;
    static constexpr int MIN_BLOCKS = 1;  // per multiprocessor; with more, ptxas spills registers
    // Padding against bank conflicts: 16 bytes a row, as 8 lanes read 16 bytes each of 8 rows; 32 bytes a row of
    // scores, as 32 lanes write 4 rows of 8.
    static constexpr int ROW_BYTES = WIDTH * 4 + 16, SCORE_BYTES = TILE * 4 + 32, SCRATCH_BYTES = TILE * SCORE_BYTES;

    static __device__ __forceinline__ int first_row() { return 0; }
    static __device__ __forceinline__ int row(int r) { return (int)threadIdx.x / 8 + 8 * r; }
    static __device__ __forceinline__ int column(int c) { return (int)threadIdx.x % 8 + 8 * c; }

    // columns from HS on are zeros
    template <int NUM>
    static __device__ __forceinline__ void load(uint32_t tile, const floatX *from, int stride, int first,
                                                const AttentionShape &s) {
        if (s.packs) {
            load_packs<Pack<floatX>::SIZE, NUM>(tile, from, stride, first, s);
        } else {
            load_packs<1, NUM>(tile, from, stride, first, s);
        }
    }
    template <int W, int NUM>
    static __device__ __forceinline__ void load_packs(uint32_t tile, const floatX *from, int stride, int first,
                                                      const AttentionShape &s) {
        for (int at = (int)threadIdx.x * W; at < NUM * WIDTH; at += THREADS * W) {
            int r = at / WIDTH, d = at % WIDTH;
            float x[W] = {};
            if (first + r < s.T && d < s.HS) { load_floats(x, from + (size_t)(first + r) * stride + d); }
            uint32_t to = tile + r * ROW_BYTES + d * 4;
            if constexpr (W == 1) {
                store_shared(to, x[0]);
            } else {
                UNROLL
                for (int i = 0; i < W; i += 4) {
                    store_shared(to + i * 4, make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]));
                }
            }
        }
    }

    // fp32 rows are too wide for registers: left factors always stay in shared memory
    struct InShared {
        uint32_t tile;
        int HS;
    };
    static __device__ __forceinline__ InShared in_shared(uint32_t tile, const AttentionShape &s) {
        return {tile, s.HS};
    }
    static __device__ __forceinline__ InShared in_registers(uint32_t tile, const AttentionShape &s) {
        return {tile, s.HS};
    }

    template <int N>
    static __device__ __forceinline__ void add_scores(float (&x)[ROWS][N], const InShared &own, uint32_t tile,
                                                      int first) {
        for (int d = 0; d < own.HS; d += 4) {
            float4 b[N];
            UNROLL
            for (int c = 0; c < N; c++) { b[c] = load_shared<float4>(tile + (first + column(c)) * ROW_BYTES + d * 4); }
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                float4 a = load_shared<float4>(own.tile + row(r) * ROW_BYTES + d * 4);
                UNROLL
                for (int c = 0; c < N; c++) { x[r][c] += a.x * b[c].x + a.y * b[c].y + a.z * b[c].z + a.w * b[c].w; }
            }
        }
    }

    // Threads that share a row are in one warp. They exchange x through rows of `scratch` that only this warp uses.
    template <int N>
    static __device__ __forceinline__ void accumulate(float (&sums)[ROWS][WIDTH / 8], const float (&x)[ROWS][N],
                                                      uint32_t tile, int first, uint32_t scratch) {
        __syncwarp();  // the warp has read the previous x
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int c = 0; c < N; c++) { store_shared(scratch + row(r) * SCORE_BYTES + column(c) * 4, x[r][c]); }
        }
        __syncwarp();  // x is complete
        for (int j = 0; j < N * 8; j += 4) {
            float a[ROWS][4];
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                float4 four = load_shared<float4>(scratch + row(r) * SCORE_BYTES + j * 4);
                a[r][0] = four.x;
                a[r][1] = four.y;
                a[r][2] = four.z;
                a[r][3] = four.w;
            }
            UNROLL
            for (int i = 0; i < 4; i++) { add_row(sums, a, i, tile + (first + j + i) * ROW_BYTES); }
        }
    }

    // sums += a[..][i] times one row of a tile
    static __device__ __forceinline__ void add_row(float (&sums)[ROWS][WIDTH / 8], const float (&a)[ROWS][4], int i,
                                                   uint32_t tile_row) {
        UNROLL
        for (int n = 0; n < WIDTH / 32; n++) {
            float4 b = load_shared<float4>(tile_row + n * 128 + threadIdx.x % 8 * 16);
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                sums[r][4 * n] += a[r][i] * b.x;
                sums[r][4 * n + 1] += a[r][i] * b.y;
                sums[r][4 * n + 2] += a[r][i] * b.z;
                sums[r][4 * n + 3] += a[r][i] * b.w;
            }
        }
    }

    static __device__ __forceinline__ float part_of_dot(const floatX *x, const floatX *y, const AttentionShape &s) {
        return s.packs ? attention_part_of_dot<WIDTH, LANES, Pack<floatX>::SIZE>(x, y, s.HS)
                       : attention_part_of_dot<WIDTH, LANES, 1>(x, y, s.HS);
    }

    static __device__ __forceinline__ void store(floatX *to, int stride, uint32_t, int first, const AttentionShape &s,
                                                 const float (&sums)[ROWS][WIDTH / 8], const float (&scale)[ROWS]) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            if (first + row(r) >= s.T) { continue; }
            floatX *to_row = to + (size_t)(first + row(r)) * stride;
            UNROLL
            for (int n = 0; n < WIDTH / 32; n++) {
                int d = n * 32 + (int)threadIdx.x % 8 * 4;
                float x[4];
                UNROLL
                for (int i = 0; i < 4; i++) { x[i] = sums[r][4 * n + i] * scale[r]; }
                store_four(to_row + d, x, s.HS - d, s.packs);
            }
        }
    }

    // the first `valid` of four neighbours; with packs, fp32 has all four or none
    template <class T>
    static __device__ __forceinline__ void store_four(T *to, const float (&x)[4], int valid, bool packs) {
        if constexpr (Pack<T>::SIZE == 4) {
            if (packs && valid > 0) { store128(to, Pack<T>::of(x)); }
            if (packs) { return; }
        }
        UNROLL
        for (int i = 0; i < 4; i++) {
            if (i < valid) { to[i] = to_floatX(x[i]); }
        }
    }
};

// ---- stages of the tile kernels

// Waits for tile j of the other side. With two buffers the copy of tile j + 1 is started too, and overlaps with the use
// of tile j. load(j) copies tile j into buffer j % BUFFERS.
template <class Tiles, class Load>
static __device__ __forceinline__ void attention_next_tile(int j, int end, Load load) {
    if constexpr (Tiles::BUFFERS == 1) {
        __syncthreads();  // all threads are done with tile j - 1, which tile j replaces
        load(j);
        cp_async_commit();
    }
    cp_async_wait<0>();
    __syncthreads();  // tile j is complete, and all threads are done with tile j - 1: its buffer is filled next
    if constexpr (Tiles::BUFFERS == 2) {
        if (j + 1 < end) {
            load(j + 1);
            cp_async_commit();
        }
    }
}

// Scores above the diagonal become -inf. Rows are queries from `query` on and columns keys from `key` on; with
// ROWS_ARE_KEYS the reverse.
template <class Tiles, bool ROWS_ARE_KEYS, int N>
static __device__ __forceinline__ void attention_mask(float (&x)[Tiles::ROWS][N], int query, int key) {
    UNROLL
    for (int r = 0; r < Tiles::ROWS; r++) {
        UNROLL
        for (int c = 0; c < N; c++) {
            int row = Tiles::row(r), column = Tiles::column(c);
            int after = ROWS_ARE_KEYS ? key + row - query - column : key + column - query - row;
            if (after > 0) { x[r][c] = -INFINITY; }
        }
    }
}

// over the lanes that share a row
template <class Tiles> static __device__ __forceinline__ float attention_row_max(float x) {
    UNROLL
    for (int lanes = Tiles::LANES / 2; lanes > 0; lanes /= 2) { x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lanes)); }
    return x;
}
template <class Tiles> static __device__ __forceinline__ float attention_row_sum(float x) {
    UNROLL
    for (int lanes = Tiles::LANES / 2; lanes > 0; lanes /= 2) { x += __shfl_xor_sync(0xffffffffu, x, lanes); }
    return x;
}

// The online softmax (Milakov, Gimelshein 2018) in base 2: x becomes 2^(scale x - top), where top is the row's largest
// scale x so far. sum and out, accumulated under a smaller top, shrink. sum covers this thread's columns only. top is
// finite: key 0 is in the first tile and visible to every query.
template <class Tiles, int N, int W>
static __device__ __forceinline__ void attention_softmax(float (&x)[Tiles::ROWS][N], float (&top)[Tiles::ROWS],
                                                         float (&sum)[Tiles::ROWS], float (&out)[Tiles::ROWS][W],
                                                         float scale) {
    UNROLL
    for (int r = 0; r < Tiles::ROWS; r++) {
        float largest = x[r][0];
        UNROLL
        for (int c = 1; c < N; c++) { largest = fmaxf(largest, x[r][c]); }
        largest = fmaxf(top[r], attention_row_max<Tiles>(largest) * scale);
        float shrink = exp2_fast(top[r] - largest);
        top[r] = largest;
        sum[r] *= shrink;
        UNROLL
        for (int c = 0; c < N; c++) {
            x[r][c] = exp2_fast(fmaf(x[r][c], scale, -largest));
            sum[r] += x[r][c];
        }
        UNROLL
        for (int w = 0; w < W; w++) { out[r][w] *= shrink; }
    }
}

// ---- forward: a block owns OWN queries and visits keys and values

template <class Tiles> static constexpr int attention_forward_shared() {
    return (Tiles::OWN + 2 * Tiles::BUFFERS * Tiles::OTHER) * Tiles::ROW_BYTES + Tiles::SCRATCH_BYTES;
}

template <class Tiles>
static __global__ void __launch_bounds__(Tiles::THREADS, Tiles::MIN_BLOCKS)
    attention_forward_kernel(floatX *out, float *lse, const floatX *qkv, AttentionShape s) {
    wait_for_previous_kernel();
    constexpr int ROWS = Tiles::ROWS, OWN = Tiles::OWN, OTHER = Tiles::OTHER;
    constexpr uint32_t TILE = OTHER * Tiles::ROW_BYTES;
    DYNAMIC_SHARED(float, shared);
    uint32_t queries = shared_address(shared), keys = queries + OWN * Tiles::ROW_BYTES;
    uint32_t values = keys + Tiles::BUFFERS * TILE, scratch = values + Tiles::BUFFERS * TILE;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * OWN;  // the blocks with most keys start first
    int warp_first = first + Tiles::first_row(), end = ceil_div(min(first + OWN, s.T), OTHER);
    int C = s.NH * s.HS;
    const floatX *from = qkv + attention_query_offset(s);
    auto load = [&](int j) {
        uint32_t buffer = j % Tiles::BUFFERS * TILE;
        Tiles::template load<OTHER>(keys + buffer, from + C, 3 * C, j * OTHER, s);
        Tiles::template load<OTHER>(values + buffer, from + 2 * C, 3 * C, j * OTHER, s);
    };

    // load the queries, and start the copy of the first tile
    Tiles::template load<OWN>(queries, from, 3 * C, first, s);
    cp_async_commit();
    if (Tiles::BUFFERS == 2) { load(0); }
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();  // the queries are complete
    auto query = Tiles::in_registers(queries, s);
    float sums[ROWS][Tiles::WIDTH / Tiles::LANES] = {}, top[ROWS], sum[ROWS] = {};
    UNROLL
    for (int r = 0; r < ROWS; r++) { top[r] = -INFINITY; }

    for (int j = 0; j < end; j++) {
        attention_next_tile<Tiles>(j, end, load);
        int key = j * OTHER;
        uint32_t buffer = j % Tiles::BUFFERS * TILE;
        if (key >= warp_first + Tiles::WARP_ROWS || warp_first >= s.T) { continue; }  // wholly above the diagonal
        // scores
        float x[ROWS][OTHER / Tiles::LANES] = {};
        Tiles::add_scores(x, query, keys + buffer, 0);
        if (key + OTHER - 1 > warp_first) { attention_mask<Tiles, false>(x, first, key); }
        // online softmax
        attention_softmax<Tiles>(x, top, sum, sums, s.scale);
        // accumulate the values
        Tiles::accumulate(sums, x, values + buffer, 0, scratch);
    }

    // write lse and out
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        float total = attention_row_sum<Tiles>(sum[r]);
        int t = first + Tiles::row(r);
        if (lane_id() % Tiles::LANES == 0 && t < s.T) {
            lse[attention_row_offset(s, s.T) + t] = top[r] * LN_2 + log_device(total);
        }
        sum[r] = 1.0f / total;
    }
    Tiles::store(out + attention_head_offset(s), C, queries, first, s, sums, sum);
}

// ---- backward

// The pairs of the own queries, to registers and to memory. Rows from T on read row T - 1: without a branch, the loads
// of all rows are in flight at once. Their pairs become zeros, since another row's lse could make p infinite.
template <class Tiles>
static __device__ __forceinline__ void attention_make_pairs(AttentionPair (&own)[Tiles::ROWS], AttentionPair *pairs,
                                                            const floatX *dout, const floatX *out, const float *lse,
                                                            int first, const AttentionShape &s) {
    float part[Tiles::ROWS];
    UNROLL
    for (int r = 0; r < Tiles::ROWS; r++) {
        int t = min(first + Tiles::row(r), s.T - 1);
        int64_t row = (int64_t)t * s.NH * s.HS;
        part[r] = Tiles::part_of_dot(dout + row, out + row, s);
        own[r].lse = LOG2_E * lse[t];
    }
    UNROLL
    for (int r = 0; r < Tiles::ROWS; r++) {
        int t = first + Tiles::row(r);
        own[r].delta = attention_row_sum<Tiles>(part[r]);
        if (t >= s.T) { own[r] = {0.0f, 0.0f}; }
        if (lane_id() % Tiles::LANES == 0 && t < attention_pair_rows(s.T)) { pairs[t] = own[r]; }
    }
}

// Uses a tile of the other side, STEP rows at a time: step(masked, i) has rows [i, i + STEP). A tile wholly below the
// diagonal needs no mask. Its loop stands apart: without a branch between the GEMMs, the tensor cores wait less.
// Other tiles are used from row `begin` to `end`, with a mask.
template <class Tiles, class Step>
static __device__ __forceinline__ void attention_steps(bool below, int begin, int end, Step step) {
    // unrolled, the loops would spill registers
    if (below) {
        NO_UNROLL
        for (int i = 0; i < Tiles::OTHER; i += Tiles::STEP) { step(std::false_type(), i); }
    } else {
        NO_UNROLL
        for (int i = begin; i < end; i += Tiles::STEP) { step(std::true_type(), i); }
    }
}

template <class Tiles> static constexpr int attention_dq_shared() {
    return 2 * (Tiles::OWN + Tiles::BUFFERS * Tiles::OTHER) * Tiles::ROW_BYTES + Tiles::SCRATCH_BYTES;
}

// dQ: a block owns OWN queries and their dout, and visits keys and values. A tile is used STEP keys at a time.
template <class Tiles>
static __global__ void __launch_bounds__(Tiles::THREADS, Tiles::MIN_BLOCKS)
    attention_dq_kernel(floatX *dqkv, AttentionPair *pairs, const floatX *dout, const floatX *qkv, const floatX *out,
                        const float *lse, AttentionShape s) {
    wait_for_previous_kernel();
    constexpr int ROWS = Tiles::ROWS, OWN = Tiles::OWN, OTHER = Tiles::OTHER, STEP = Tiles::STEP;
    constexpr int N = STEP / Tiles::LANES;
    constexpr uint32_t TILE = OTHER * Tiles::ROW_BYTES;
    DYNAMIC_SHARED(float, shared);
    uint32_t queries = shared_address(shared), douts = queries + OWN * Tiles::ROW_BYTES;
    uint32_t keys = douts + OWN * Tiles::ROW_BYTES, values = keys + Tiles::BUFFERS * TILE;
    uint32_t scratch = values + Tiles::BUFFERS * TILE;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * OWN;  // the blocks with most keys start first
    int warp_first = first + Tiles::first_row(), end = ceil_div(min(first + OWN, s.T), OTHER);
    // keys from warp_end on are above the diagonal of all of the warp's queries; a warp beyond T visits no keys
    int warp_end = warp_first < s.T ? warp_first + Tiles::WARP_ROWS : 0;
    int C = s.NH * s.HS;
    const floatX *from = qkv + attention_query_offset(s);
    size_t head = attention_head_offset(s);
    auto load = [&](int j) {
        uint32_t buffer = j % Tiles::BUFFERS * TILE;
        Tiles::template load<OTHER>(keys + buffer, from + C, 3 * C, j * OTHER, s);
        Tiles::template load<OTHER>(values + buffer, from + 2 * C, 3 * C, j * OTHER, s);
    };

    // load queries and dout, and start the copy of the first tile
    Tiles::template load<OWN>(queries, from, 3 * C, first, s);
    Tiles::template load<OWN>(douts, dout + head, C, first, s);
    cp_async_commit();
    if (Tiles::BUFFERS == 2) { load(0); }
    cp_async_commit();
    AttentionPair own[ROWS];
    attention_make_pairs<Tiles>(own, pairs + attention_row_offset(s, attention_pair_rows(s.T)), dout + head, out + head,
                                lse + attention_row_offset(s, s.T), first, s);
    cp_async_wait<1>();
    __syncthreads();  // queries and dout are complete
    auto query = Tiles::in_registers(queries, s);
    auto own_dout = Tiles::in_registers(douts, s);
    float dq[ROWS][Tiles::WIDTH / Tiles::LANES] = {};

    for (int j = 0; j < end; j++) {
        attention_next_tile<Tiles>(j, end, load);
        uint32_t buffer = j % Tiles::BUFFERS * TILE;
        auto step = [&](auto masked, int i) {
            // scores and dout . V
            float p[ROWS][N] = {}, ds[ROWS][N] = {};
            Tiles::add_scores(p, query, keys + buffer, i);
            Tiles::add_scores(ds, own_dout, values + buffer, i);
            if constexpr (decltype(masked)::value) { attention_mask<Tiles, false>(p, first, j * OTHER + i); }
            // the gradient of the scores, with probabilities from lse
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                UNROLL
                for (int c = 0; c < N; c++) {
                    ds[r][c] = exp2_fast(fmaf(p[r][c], s.scale, -own[r].lse)) * (ds[r][c] - own[r].delta);
                }
            }
            // accumulate
            Tiles::accumulate(dq, ds, keys + buffer, i, scratch);
        };
        bool below = (j + 1) * OTHER - 1 <= warp_first && warp_first < s.T;
        attention_steps<Tiles>(below, 0, min(OTHER, warp_end - j * OTHER), step);
    }

    // write dQ
    float scale[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) { scale[r] = s.scale * LN_2; }
    Tiles::store(dqkv + attention_query_offset(s), 3 * C, queries, first, s, dq, scale);
}

template <class Tiles> static constexpr int attention_dkv_shared() {
    return attention_dq_shared<Tiles>() + Tiles::BUFFERS * Tiles::OTHER * ATTENTION_PAIR_BYTES;
}

// dK and dV: a block owns OWN keys and values, and visits queries and dout. A tile is used STEP queries at a time.
template <class Tiles>
static __global__ void __launch_bounds__(Tiles::THREADS, Tiles::MIN_BLOCKS)
    attention_dkv_kernel(floatX *dqkv, const floatX *dout, const floatX *qkv, const AttentionPair *pairs,
                         AttentionShape s) {
    wait_for_previous_kernel();
    constexpr int ROWS = Tiles::ROWS, OWN = Tiles::OWN, OTHER = Tiles::OTHER, STEP = Tiles::STEP;
    constexpr int N = STEP / Tiles::LANES;
    constexpr uint32_t TILE = OTHER * Tiles::ROW_BYTES, PAIRS = OTHER * ATTENTION_PAIR_BYTES;
    DYNAMIC_SHARED(float, shared);
    uint32_t keys = shared_address(shared), values = keys + OWN * Tiles::ROW_BYTES;
    uint32_t queries = values + OWN * Tiles::ROW_BYTES, douts = queries + Tiles::BUFFERS * TILE;
    uint32_t query_pairs = douts + Tiles::BUFFERS * TILE, scratch = query_pairs + Tiles::BUFFERS * PAIRS;
    int first = (int)blockIdx.x * OWN, warp_first = first + Tiles::first_row();
    int begin = first / OTHER, end = ceil_div(s.T, OTHER);  // the first blocks have most queries
    int C = s.NH * s.HS;
    const floatX *from = qkv + attention_query_offset(s);
    const floatX *from_dout = dout + attention_head_offset(s);
    const AttentionPair *from_pairs = pairs + attention_row_offset(s, attention_pair_rows(s.T));
    auto load = [&](int j) {
        uint32_t b = j % Tiles::BUFFERS;
        Tiles::template load<OTHER>(queries + b * TILE, from, 3 * C, j * OTHER, s);
        Tiles::template load<OTHER>(douts + b * TILE, from_dout, C, j * OTHER, s);
        static_assert(OTHER % 2 == 0 && OTHER <= 2 * Tiles::THREADS, "a thread copies two pairs at most");
        int i = 2 * (int)threadIdx.x, query = j * OTHER + i;
        if (i < OTHER) {
            cp_async(query_pairs + b * PAIRS + i * ATTENTION_PAIR_BYTES, from_pairs + query, query < s.T);
        }
    };

    // load keys and values, and start the copy of the first tile
    Tiles::template load<OWN>(keys, from + C, 3 * C, first, s);
    Tiles::template load<OWN>(values, from + 2 * C, 3 * C, first, s);
    cp_async_commit();
    if (Tiles::BUFFERS == 2) { load(begin); }
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();  // keys and values are complete
    auto key = Tiles::in_registers(keys, s);
    auto value = Tiles::in_shared(values, s);  // there are not enough registers for both
    float dk[ROWS][Tiles::WIDTH / Tiles::LANES] = {}, dv[ROWS][Tiles::WIDTH / Tiles::LANES] = {};

    for (int j = begin; j < end; j++) {
        attention_next_tile<Tiles>(j, end, load);
        uint32_t b = j % Tiles::BUFFERS, query_tile = queries + b * TILE, dout_tile = douts + b * TILE;
        auto step = [&](auto masked, int i) {
            // scores and dout . V, both transposed: rows are keys
            float p[ROWS][N] = {}, ds[ROWS][N] = {};
            Tiles::add_scores(p, key, query_tile, i);
            Tiles::add_scores(ds, value, dout_tile, i);
            if constexpr (decltype(masked)::value) { attention_mask<Tiles, true>(p, j * OTHER + i, first); }
            // probabilities from lse, and the gradient of the scores
            UNROLL
            for (int c = 0; c < N; c++) {
                uint32_t at = query_pairs + b * PAIRS + (i + Tiles::column(c)) * ATTENTION_PAIR_BYTES;
                AttentionPair pair = load_shared<AttentionPair>(at);
                UNROLL
                for (int r = 0; r < ROWS; r++) {
                    p[r][c] = exp2_fast(fmaf(p[r][c], s.scale, -pair.lse));
                    ds[r][c] = p[r][c] * (ds[r][c] - pair.delta);
                }
            }
            // accumulate
            Tiles::accumulate(dv, p, dout_tile, i, scratch);
            Tiles::accumulate(dk, ds, query_tile, i, scratch);
        };
        // earlier steps have queries before all of the warp's keys; later ones have queries from T on
        int begin_step = max(0, (warp_first - j * OTHER) / STEP * STEP), end_step = min(OTHER, s.T - j * OTHER);
        bool below = j * OTHER >= warp_first + Tiles::WARP_ROWS - 1 && (j + 1) * OTHER <= s.T;
        attention_steps<Tiles>(below, begin_step, end_step, step);
    }

    // write dK and dV
    float one[ROWS], scale[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        one[r] = 1;
        scale[r] = s.scale * LN_2;
    }
    floatX *to = dqkv + attention_query_offset(s);
    // dK first: the barrier in this store also ends the reads of the values' tile
    Tiles::store(to + C, 3 * C, keys, first, s, dk, scale);
    Tiles::store(to + 2 * C, 3 * C, values, first, s, dv, one);
}

// ---- tensor cores
// The same members as PlainTiles, in bf16. Three differences buy the speed:
//   mma       16x16 by 16x8 in one instruction, instead of one multiply-add a lane
//   cp.async  the next tile is copied while the current one is used: two buffers
//   ldmatrix  A warp has 32 rows of its own (16 where heads are wide), so one load from shared memory serves 2 or 4 mma
// Forward and dQ are bound by the tensor cores. dK and dV are bound by ldmatrix too. At head size 64 a step of 16
// queries has 64 mma and 24 ldmatrix. Eight of the ldmatrix load values that do not fit into registers.
// Registers hold a matrix in the layout of mma's sums. Lane l has rows l/4, l/4 + 8, ..; of every 8 columns it has
// 2(l%4) and the next.
//                         columns 0 1  2 3  4 5  6 7   8 9 ..
//                  row 0, 8, ..   l0   l1   l2   l3    l0
//                  row 1, 9, ..   l4   l5   l6   l7    l4
// The left factor of the next mma has its elements at the same lanes, in bf16: scores go from one GEMM to the next
// without leaving their lane.

// head size HS, a multiple of 16. Each of WARPS warps has 16 or 32 of the OWN rows.
template <int HS, int OWN_, int OTHER_, int WARPS> struct TensorTiles {
    static constexpr int OWN = OWN_, OTHER = OTHER_, THREADS = 32 * WARPS, WIDTH = HS;
    static constexpr int WARP_ROWS = OWN / WARPS, ROWS = WARP_ROWS / 8, LANES = 4;
    static constexpr int STEP = 16;       // rows of the other side that the backward uses at a time
    static constexpr int BUFFERS = 2;     // one tile is used while the next arrives
    static constexpr int MIN_BLOCKS = 0;  // per multiprocessor: left to ptxas
    static constexpr int ROW_BYTES = HS * 2, CHUNKS = HS / 8, SCRATCH_BYTES = 0;  // a chunk: 16 bytes, 8 columns
    static_assert(WARP_ROWS % 16 == 0 && OTHER % 16 == 0 && HS % 16 == 0, "mma takes 16 by 16");

    static __device__ __forceinline__ int first_row() { return warp_id() * WARP_ROWS; }
    static __device__ __forceinline__ int row(int r) { return first_row() + r * 8 + lane_id() / 4; }
    static __device__ __forceinline__ int column(int c) { return c / 2 * 8 + lane_id() % 4 * 2 + c % 2; }

    // The byte offset in a tile of chunk 2k + c of row r; c is 0 or 1. The 32 banks hold 8 chunks, and ldmatrix reads
    // the same chunk of 8 rows at once. SHARING of these rows begin in the same bank, so each of them permutes its
    // chunks differently: chunk i is stored where i ^ (0 .. SHARING-1) would be.
    static __device__ __forceinline__ uint32_t chunk_offset(uint32_t r, uint32_t c, uint32_t k) {
        constexpr uint32_t SHARING = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
        uint32_t low = 2 * k % SHARING, high = 2 * k - low;
        uint32_t order = r / (8 / SHARING) % SHARING;
        return r * ROW_BYTES + (c ^ order ^ low) * 16 + high * 16;
    }

    // Starts an asynchronous copy. A thread copies the same chunk of every AT_ONCE-th row; addresses from row T on are
    // never read. At head size 80 a row has 10 chunks, and the last 8 of 128 threads copy nothing.
    template <int NUM>
    static __device__ __forceinline__ void load(uint32_t tile, const floatX *from, int stride, int first,
                                                const AttentionShape &s) {
        constexpr int AT_ONCE = THREADS / CHUNKS;
        int r = (int)threadIdx.x / CHUNKS, c = (int)threadIdx.x % CHUNKS, rows_left = s.T - first - r;
        const floatX *chunk = from + (int64_t)(first + r) * stride + c * 8;
        UNROLL
        for (int i = 0; i < NUM; i += AT_ONCE) {
            bool copies = THREADS % CHUNKS == 0 || (r < AT_ONCE && i + r < NUM);
            if (copies) { cp_async(tile + chunk_offset(i + r, c % 2, c / 2), chunk, i < rows_left); }
            chunk += (int64_t)AT_ONCE * stride;
        }
    }

    // The left factor of a GEMM: fragment(a, m, k) is columns [16k, 16k + 16) of the warp's rows [16m, 16m + 16).
    struct InShared {
        uint32_t tile;
        __device__ __forceinline__ void fragment(uint32_t (&a)[4], int m, int k) const {
            uint32_t rows = tile + first_row() * ROW_BYTES;
            ldmatrix_x4(a, rows + chunk_offset(lane_id() % 16, lane_id() / 16, k) + m * 16 * ROW_BYTES);
        }
    };
    struct InRegisters {
        uint32_t all[WARP_ROWS / 16][HS / 16][4];
        __device__ __forceinline__ void fragment(uint32_t (&a)[4], int m, int k) const {
            UNROLL
            for (int i = 0; i < 4; i++) { a[i] = all[m][k][i]; }
        }
    };
    static __device__ __forceinline__ InShared in_shared(uint32_t tile, const AttentionShape &) { return {tile}; }
    static __device__ __forceinline__ InRegisters in_registers(uint32_t tile, const AttentionShape &) {
        InRegisters own;
        UNROLL
        for (int m = 0; m < WARP_ROWS / 16; m++) {
            UNROLL
            for (int k = 0; k < HS / 16; k++) { InShared{tile}.fragment(own.all[m][k], m, k); }
        }
        return own;
    }

    // The right factor of a GEMM: the 16 by 16 block at row 16i and column 16j of `rows`, or the block transposed.
    // b[0] and b[1] are the left 8 columns of the factor, b[2] and b[3] the right 8.
    static __device__ __forceinline__ void right_factor(uint32_t (&b)[4], uint32_t rows, int i, int j, int lane) {
        ldmatrix_x4_trans(b, rows + i * 16 * ROW_BYTES + chunk_offset(lane % 16, lane / 16, j));
    }
    static __device__ __forceinline__ void right_factor_transposed(uint32_t (&b)[4], uint32_t rows, int i, int j,
                                                                   int lane) {
        ldmatrix_x4(b, rows + i * 16 * ROW_BYTES + chunk_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2, j));
    }

    // 16 rows from 16m on and 8 columns from 8n on of x += a b
    template <int N>
    static __device__ __forceinline__ void multiply_mma(float (&x)[ROWS][N], int m, int n, const uint32_t (&a)[4],
                                                        uint32_t b0, uint32_t b1) {
        float *top = &x[2 * m][2 * n], *bottom = &x[2 * m + 1][2 * n];
        float d[4] = {top[0], top[1], bottom[0], bottom[1]};
        mma_bf16(d, a, b0, b1);
        top[0] = d[0];
        top[1] = d[1];
        bottom[0] = d[2];
        bottom[1] = d[3];
    }

    template <class Own, int N>
    static __device__ __forceinline__ void add_scores(float (&x)[ROWS][N], const Own &own, uint32_t tile, int first) {
        int lane = lane_id();
        uint32_t rows = tile + first * ROW_BYTES;
        UNROLL
        for (int k = 0; k < HS / 16; k++) {
            uint32_t a[WARP_ROWS / 16][4], b[4];
            UNROLL
            for (int m = 0; m < WARP_ROWS / 16; m++) { own.fragment(a[m], m, k); }
            UNROLL
            for (int n = 0; n < N / 4; n++) {  // the tile's rows are columns of the right factor
                right_factor_transposed(b, rows, n, k, lane);
                UNROLL
                for (int m = 0; m < WARP_ROWS / 16; m++) {
                    multiply_mma(x, m, 2 * n, a[m], b[0], b[1]);
                    multiply_mma(x, m, 2 * n + 1, a[m], b[2], b[3]);
                }
            }
        }
    }

    // x is rounded to bf16
    template <int N>
    static __device__ __forceinline__ void accumulate(float (&sums)[ROWS][HS / 4], const float (&x)[ROWS][N],
                                                      uint32_t tile, int first, uint32_t) {
        int lane = lane_id();
        uint32_t rows = tile + first * ROW_BYTES;
        UNROLL
        for (int k = 0; k < N / 4; k++) {
            uint32_t a[WARP_ROWS / 16][4], b[4];
            UNROLL
            for (int m = 0; m < WARP_ROWS / 16; m++) {
                UNROLL
                for (int i = 0; i < 4; i++) {
                    const float *pair = &x[2 * m + i % 2][4 * k + i / 2 * 2];
                    a[m][i] = pack_bf16(pair[0], pair[1]);
                }
            }
            UNROLL
            for (int n = 0; n < HS / 16; n++) {
                right_factor(b, rows, k, n, lane);
                UNROLL
                for (int m = 0; m < WARP_ROWS / 16; m++) {
                    multiply_mma(sums, m, 2 * n, a[m], b[0], b[1]);
                    multiply_mma(sums, m, 2 * n + 1, a[m], b[2], b[3]);
                }
            }
        }
    }

    static __device__ __forceinline__ float part_of_dot(const floatX *x, const floatX *y, const AttentionShape &) {
        return attention_part_of_dot<HS, LANES, Pack<floatX>::SIZE>(x, y, HS);
    }

    // Rows go through the warp's own rows of a tile, so that a thread stores 16 bytes at a time. No other warp touches
    // these rows, and this warp last read them before its latest barrier.
    static __device__ __forceinline__ void store(floatX *to, int stride, uint32_t tile, int first,
                                                 const AttentionShape &s, const float (&sums)[ROWS][HS / 4],
                                                 const float (&scale)[ROWS]) {
        int lane = lane_id();
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            UNROLL
            for (int n = 0; n < CHUNKS; n++) {
                uint32_t pair = pack_bf16(sums[r][2 * n] * scale[r], sums[r][2 * n + 1] * scale[r]);
                store_shared(tile + chunk_offset(row(r), n % 2, n / 2) + lane % 4 * 4, pair);
            }
        }
        __syncwarp();  // the rows are complete
        UNROLL
        for (int i = 0; i < WARP_ROWS * CHUNKS / 32; i++) {
            int chunk = i * 32 + lane, r = first_row() + chunk / CHUNKS, c = chunk % CHUNKS;
            if (first + r >= s.T) { continue; }
            uint4 words = load_shared<uint4>(tile + chunk_offset(r, c % 2, c / 2));
            // not store128: nvcc 13 makes four 4-byte stores of a pack whose words come from shared memory
            store_global(reinterpret_cast<uint4 *>(to + (size_t)(first + r) * stride + c * 8), words);
        }
    }
};

// ---- launchers

// B (or decode's new positions) and NH are y and z of the grid, hence the limit
static inline AttentionShape attention_shape(int B, int T, int NH, int HS, bool aligned) {
    if (HS > ATTENTION_MAX_HS) { run_error("attention takes heads of at most %d, not %d", ATTENTION_MAX_HS, HS); }
    if (B > ATTENTION_MAX_BLOCKS || NH > ATTENTION_MAX_BLOCKS) {
        run_error("attention of %d sequences with %d heads: the kernels take up to %d of either", B, NH,
                  ATTENTION_MAX_BLOCKS);
    }
    AttentionShape s = {T, NH, HS, aligned && HS % Pack<floatX>::SIZE == 0, LOG2_E / sqrtf((float)HS)};
    return s;
}

// Calls run(Tiles()) for this head size. Tiles are as large as registers allow. The backward has two sums: at head size
// 128 they fill the registers, and the addresses of longer tiles would spill. plain: CUDA cores, although tensor cores
// would do. room: shared bytes that a block may have.
template <class T, bool BACKWARD, class Run>
static inline void attention_with_tiles(const AttentionShape &s, bool plain, int room, Run run) {
    if constexpr (std::is_same_v<T, bf16>) {
        if (s.packs && !plain) {
            switch (s.HS) {
            case 32: return run(TensorTiles<32, 128, 64, 4>());
            case 64: return run(TensorTiles<64, 128, 64, 4>());
            case 80: return run(TensorTiles<80, 64, 64, 4>());
            case 128: return run(TensorTiles<128, 64, (BACKWARD ? 32 : 64), 4>());
            }
        }
    }
    if (s.HS <= 32) { return run(PlainTiles<32, 32>()); }
    if (s.HS <= 64) { return run(PlainTiles<64, 32>()); }
    if constexpr (BACKWARD && std::is_same_v<T, float>) {  // sm_75 has 64 KB a block: half the rows
        bool narrow = s.HS <= 128;
        if (narrow && attention_dkv_shared<PlainTiles<128, 32>>() > room) { return run(PlainTiles<128, 16>()); }
        if (!narrow && attention_dkv_shared<PlainTiles<256, 16>>() > room) { return run(PlainTiles<256, 8>()); }
    }
    if (s.HS <= 128) { return run(PlainTiles<128, 32>()); }
    run(PlainTiles<256, 16>());
}

// shared memory above 48 KB must be requested
template <int BYTES, class Kernel> static inline void attention_allow_shared(Kernel *kernel) {
    static_assert(BYTES <= 99 << 10, "a block has no more shared memory on sm_120");
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
}

static inline void cuda_attention_forward(floatX *out, real *lse, const floatX *qkv, int B, int T, int NH, int HS,
                                          Exec *ex) {
    AttentionShape s = attention_shape(B, T, NH, HS, aligned_to_pack(out, qkv));
    bool plain = ex->fallback.level[FALLBACK_ATTENTION_FORWARD] > 0;
    attention_with_tiles<floatX, false>(s, plain, ex->cuda->block_shared_bytes, [&](auto tiles) {
        using Tiles = decltype(tiles);
        constexpr int shared = attention_forward_shared<Tiles>();
        attention_allow_shared<shared>(attention_forward_kernel<Tiles>);
        LAUNCH((attention_forward_kernel<Tiles>), dim3(ceil_div(T, Tiles::OWN), NH, B), Tiles::THREADS, shared,
               stream_of(ex), out, lse, qkv, s);
    });
}

// bytes of the pairs, the scratch buffer of the backward
static inline size_t attention_partials(int B, int T, int NH) {
    return (size_t)B * NH * attention_pair_rows(T) * ATTENTION_PAIR_BYTES;
}

static inline void cuda_attention_backward(floatX *dqkv, const floatX *dout, const floatX *qkv, const floatX *out,
                                           const real *lse, int B, int T, int NH, int HS, Exec *ex) {
    AttentionShape s = attention_shape(B, T, NH, HS, aligned_to_pack(dqkv, dout, qkv, out));
    size_t num_pairs = attention_partials(B, T, NH) / ATTENTION_PAIR_BYTES;
    AttentionPair *pairs = partials_of<AttentionPair>(ex, num_pairs, "attention_backward");
    bool plain = ex->fallback.level[FALLBACK_ATTENTION_BACKWARD] > 0;
    attention_with_tiles<floatX, true>(s, plain, ex->cuda->block_shared_bytes, [&](auto tiles) {
        using Tiles = decltype(tiles);
        constexpr int dkv_shared = attention_dkv_shared<Tiles>(), dq_shared = attention_dq_shared<Tiles>();
        dim3 grid(ceil_div(T, Tiles::OWN), NH, B);
        attention_allow_shared<dq_shared>(attention_dq_kernel<Tiles>);
        LAUNCH((attention_dq_kernel<Tiles>), grid, Tiles::THREADS, dq_shared, stream_of(ex), dqkv, pairs, dout, qkv,
               out, lse, s);
        attention_allow_shared<dkv_shared>(attention_dkv_kernel<Tiles>);
        LAUNCH((attention_dkv_kernel<Tiles>), grid, Tiles::THREADS, dkv_shared, stream_of(ex), dqkv, dout, qkv, pairs,
               s);
    });
}

static inline void cuda_attention_decode(floatX *out, floatX *keys, floatX *values, const floatX *qkv, int pos, int n,
                                         int NH, int HS, Exec *ex) {
    AttentionShape s = attention_shape(n, pos + n, NH, HS, aligned_to_pack(keys, values, qkv));
    LAUNCH((s.packs ? attention_decode_kernel<Pack<floatX>::SIZE> : attention_decode_kernel<1>), dim3(NH, n),
           ATTENTION_DECODE_THREADS, 0, stream_of(ex), out, keys, values, qkv, pos, NH, HS, s.scale);
}
