/*
Makes CUDA's language C++, so that tests can run kernels on the CPU, with one fiber per CUDA thread. It needs x86-64
Linux and C++20.

An OS thread runs blocks one after another; with OpenMP several OS threads share the blocks of a grid.
  Fibers     Every CUDA thread has its own stack and runs until it waits for other threads. Then it switches to the
             scheduler in 16 instructions of assembly.
  Scheduler  It is greedy: a warp runs until all its lanes wait at a block barrier or have returned, and only then does
             the next warp start. This distance between warps exposes missing barriers. The order of warps is forward,
             reverse, or drawn from a seed.
  Warp operations (shuffle, vote, __syncwarp, ldmatrix, mma)  Each lane stores its operands and waits. When every lane
             of the mask has arrived, the scheduler executes the operation once for all lanes.
  Shared memory  A shadow record per two bytes holds the latest writer and readers and their time. Two accesses without
             a barrier between them, one of them a write, are a race in every schedule.
  cp.async   The destination holds NaN until the thread waits for the copy: the latest moment that the memory model
             allows. Eager mode copies at once: the earliest moment.
Misuse aborts the program with one sentence that names the kernel, the block and the thread.

Not emulated: clusters, grid-wide barriers, blocks that wait for each other, wgmma, TMA, and races on global memory.
A __syncwarp of part of a warp waits for its lanes, but orders no memory in the race check.
*/
#pragma once
#include "dev/emulator/block.h"
#include "dev/emulator/shared.h"

// ---- CUDA's keywords. __shared__ is left out: SHARED_ARRAY and DYNAMIC_SHARED check bounds and races

#define __global__ __attribute__((unused))
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace simt {

// notes that the thread waited; kernels run one after another here
inline void wait_for_previous_kernel() { block().threads[block().current].waited = true; }

// ---- warp operations

template <class Operands> Operands &operands_of(Block &b, int warp, int lane) {
    return *static_cast<Operands *>(b.threads[warp * WARP + lane].operands);
}

inline int current_lane() { return block().current % WARP; }

struct ShuffleOperands {
    uint64_t given, received;
    int source;
};

inline void do_shuffle(Block &b, int warp, uint32_t mask) {
    for (int lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1)) { continue; }
        ShuffleOperands &own = operands_of<ShuffleOperands>(b, warp, lane);
        if (!(mask >> own.source & 1)) {
            refuse(warp * WARP + lane, "shuffles from lane %d, which is not in the mask %08x", own.source, mask);
        }
        own.received = operands_of<ShuffleOperands>(b, warp, own.source).given;
    }
}

template <class T> T shuffle(uint32_t mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    ShuffleOperands own = {0, 0, source};
    std::memcpy(&own.given, &value, sizeof value);
    wait_for_warp(mask, do_shuffle, &own);
    std::memcpy(&value, &own.received, sizeof value);
    return value;
}

struct VoteOperands {
    bool given;
    uint32_t received;
};

inline void do_vote(Block &b, int warp, uint32_t mask) {
    uint32_t ballot = 0;
    for (int lane = 0; lane < WARP; lane++) {
        if ((mask >> lane & 1) && operands_of<VoteOperands>(b, warp, lane).given) { ballot |= 1u << lane; }
    }
    for (int lane = 0; lane < WARP; lane++) {
        if (mask >> lane & 1) { operands_of<VoteOperands>(b, warp, lane).received = ballot; }
    }
}

inline uint32_t vote(uint32_t mask, bool predicate) {
    VoteOperands own = {predicate, 0};
    wait_for_warp(mask, do_vote, &own);
    return own.received;
}

inline void do_warp_barrier(Block &b, int warp, uint32_t mask) {
    int lanes = std::min<int>(WARP, b.num_threads - warp * WARP);
    if (mask == 0xffffffffu >> (WARP - lanes)) { b.warp_barrier[warp] = ++b.time; }
}

// ldmatrix.m8n8.x4.b16: lanes 8i .. 8i+7 hold the row addresses of matrix i. Of each matrix, lane l receives
// elements (l/4, 2*(l%4)) and (l/4, 2*(l%4) + 1); with .trans row and column are swapped.
struct LdmatrixOperands {
    uint32_t address, received[4];
    bool transposed;
};

inline void read_matrix(Block &b, int warp, int m, uint16_t (&element)[8][8]) {
    for (int row = 0; row < 8; row++) {
        int lane = m * 8 + row, thread = warp * WARP + lane;
        uint32_t address = operands_of<LdmatrixOperands>(b, warp, lane).address;
        std::memcpy(element[row], shared_bytes_at(address, 16, thread), 16);
        check_access<READ>(address, 16, thread);
    }
}

inline void do_ldmatrix(Block &b, int warp, uint32_t) {
    for (int m = 0; m < 4; m++) {
        uint16_t element[8][8];
        read_matrix(b, warp, m, element);
        for (int lane = 0; lane < WARP; lane++) {
            LdmatrixOperands &own = operands_of<LdmatrixOperands>(b, warp, lane);
            int i = lane / 4, j = lane % 4 * 2;
            uint32_t low = own.transposed ? element[j][i] : element[i][j];
            uint32_t high = own.transposed ? element[j + 1][i] : element[i][j + 1];
            own.received[m] = high << 16 | low;
        }
    }
}

inline void ldmatrix(uint32_t (&received)[4], uint32_t address, bool transposed) {
    LdmatrixOperands own = {address, {0, 0, 0, 0}, transposed};
    wait_for_warp(0xffffffffu, do_ldmatrix, &own);
    std::memcpy(received, own.received, sizeof received);
}

// mma.m16n8k16, bf16 inputs, fp32 accumulator. With g = lane/4 and t = 2*(lane%4):
//   register i of A      row g + 8*(i%2), columns t + 8*(i/2) and t + 8*(i/2) + 1
//   register i of B      rows t + 8*i and t + 8*i + 1, column g
//   element i of C and D row g + 8*(i/2), column t + i%2
struct MmaOperands {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};

inline float low_bf16(uint32_t pair) { return bf16_to_float(bf16{static_cast<uint16_t>(pair)}); }
inline float high_bf16(uint32_t pair) { return bf16_to_float(bf16{static_cast<uint16_t>(pair >> 16)}); }

// ---- arithmetic as a GPU may do it

// y with a relative error of at most `bound`, always the same for the same x: a special function unit
inline float off_by(double y, float x, double bound) {
    uint64_t bits = rng_bits(0x5349'4d54, 0, float_to_bits(x));
    double error = static_cast<double>(static_cast<int64_t>(bits >> 11)) * 0x1p-52 - 1;  // in [-1, 1)
    return static_cast<float>(y * (1 + error * bound));
}
inline float approximated(double y, float x, double bound) {
    return settings().approximate ? off_by(y, x, bound) : static_cast<float>(y);
}

// special functions of ptx.cuh, with NVIDIA's documented errors
inline float exp2_fast(float x) {
    float y = x == floorf(x) ? exp2f(x) : approximated(exp2((double)x), x, 0x1p-22);
    return y < 0x1p-126f ? 0.0f : y;
}
inline float reciprocal_fast(float x) {
    float y = fabsf(x) < 0x1p-126f ? copysignf(INFINITY, x) : approximated(1 / (double)x, x, 0x1p-23);
    return fabsf(y) < 0x1p-126f ? copysignf(0.0f, y) : y;
}
inline float rsqrt_device(float x) { return approximated(1 / sqrt((double)x), x, 0x1p-22); }
inline float log_device(float x) { return approximated(log((double)x), x, 0x1p-23); }
inline float log2_device(float x) { return approximated(log2((double)x), x, 0x1p-23); }

// rounds to fp32 towards zero
inline float round_to_zero(double x) {
    float f = static_cast<float>(x);
    bool away = std::isfinite(f) && std::fabs(static_cast<double>(f)) > std::fabs(x);
    return away ? std::nextafterf(f, 0.0f) : f;
}

// c + the sum of `count` <= 16 products a[k] b[k] as an A100's tensor cores add them: every addend is truncated at one
// bit below the last bit of the largest, the sum to fp32 (Fasi, Higham, Mikaitis, Pranesh 2021).
inline float tensor_core_sum(float c, const float *a, const float *b, int count) {
    double term[17], largest = std::fabs(static_cast<double>(c));
    for (int k = 0; k < count; k++) {
        term[k] = static_cast<double>(a[k]) * b[k];
        largest = std::max(largest, std::fabs(term[k]));
        if (!(std::fabs(term[k]) < 1e300)) { largest = INFINITY; }  // also a NaN, which no comparison finds
    }
    if (!(largest > 0 && largest < 1e30)) {
        double sum = c;
        for (int k = 0; k < count; k++) { sum += term[k]; }
        return static_cast<float>(sum);
    }
    double unit = std::ldexp(1.0, std::ilogb(largest) - 24), units = 1 / unit;
    int64_t sum = static_cast<int64_t>(c * units);
    for (int k = 0; k < count; k++) { sum += static_cast<int64_t>(term[k] * units); }
    return round_to_zero(static_cast<double>(sum) * unit);
}

// c += a b for one row of A and C, rounded as settings().mma_rounding selects
inline void multiply_add(float (&c)[8], const float (&a)[16], const float (&b)[16][8]) {
    for (int j = 0; j < 8; j++) {
        float column[16];
        for (int k = 0; k < 16; k++) { column[k] = b[k][j]; }
        if (settings().mma_rounding == 0) {
            for (int k = 0; k < 16; k++) { c[j] += a[k] * column[k]; }
        } else {
            for (int half = 0; half < 16; half += 8) { c[j] = tensor_core_sum(c[j], a + half, column + half, 8); }
        }
    }
}

// d += a b, from and to the lanes' registers
inline void multiply_fragments(float (&d)[WARP][4], const uint32_t (&a_of)[WARP][4], const uint32_t (&b_of)[WARP][2]) {
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < WARP; lane++) {
        int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            a[g + i % 2 * 8][t + i / 2 * 8] = low_bf16(a_of[lane][i]);
            a[g + i % 2 * 8][t + i / 2 * 8 + 1] = high_bf16(a_of[lane][i]);
            c[g + i / 2 * 8][t + i % 2] = d[lane][i];
        }
        for (int i = 0; i < 2; i++) {
            b[t + i * 8][g] = low_bf16(b_of[lane][i]);
            b[t + i * 8 + 1][g] = high_bf16(b_of[lane][i]);
        }
    }
    for (int i = 0; i < 16; i++) { multiply_add(c[i], a[i], b); }
    for (int lane = 0; lane < WARP; lane++) {
        for (int i = 0; i < 4; i++) { d[lane][i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]; }
    }
}

inline void do_mma(Block &block, int warp, uint32_t) {
    float d[WARP][4];
    uint32_t a[WARP][4], b[WARP][2];
    for (int lane = 0; lane < WARP; lane++) {
        const MmaOperands &own = operands_of<MmaOperands>(block, warp, lane);
        std::memcpy(d[lane], own.d, sizeof d[lane]);
        std::memcpy(a[lane], own.a, sizeof a[lane]);
        std::memcpy(b[lane], own.b, sizeof b[lane]);
    }
    multiply_fragments(d, a, b);
    for (int lane = 0; lane < WARP; lane++) {
        std::memcpy(operands_of<MmaOperands>(block, warp, lane).d, d[lane], sizeof d[lane]);
    }
}

inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    MmaOperands own = {d, a, {b0, b1}};
    require_capability(80, "mma of bf16");
    wait_for_warp(0xffffffffu, do_mma, &own);
}

// ---- global memory: each access is one transaction of sizeof(T) bytes and must be aligned to sizeof(T)

template <class T> void check_global(const T *address) {
    if (reinterpret_cast<uintptr_t>(address) % sizeof(T)) {
        refuse(block().current, "misaligned global address %p for %zu bytes", static_cast<const void *>(address),
               sizeof(T));
    }
}

template <class T> T load_global(const T *address) {  // memcpy: a pack may alias another type
    check_global(address);
    T value;
    std::memcpy(static_cast<void *>(&value), address, sizeof value);
    return value;
}

template <class T> void store_global(T *address, T value) {
    check_global(address);
    std::memcpy(static_cast<void *>(address), &value, sizeof value);
}

template <class T> T update_global(T *address, T (*update)(T, T), T operand) {
    check_global(address);
    T old, updated;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do {
        updated = update(old, operand);
    } while (!__atomic_compare_exchange(address, &old, &updated, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

template <class T> T sum_of(T a, T b) { return a + b; }

}  // namespace simt

// ---- CUDA's built-in variables and functions

#define threadIdx (simt::block().threads[simt::block().current].index)
#define blockIdx (simt::block().index)
#define blockDim (simt::block().dim)
#define gridDim (simt::block().grid)
using std::max;
using std::min;

inline void __syncthreads(int line = __builtin_LINE()) { simt::wait_for_block(line); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) { simt::wait_for_warp(mask, simt::do_warp_barrier, nullptr); }

template <class T> T __shfl_up_sync(uint32_t mask, T value, unsigned delta) {
    int lane = simt::current_lane(), source = lane - static_cast<int>(delta);
    return simt::shuffle(mask, value, source < 0 ? lane : source);
}
template <class T> T __shfl_xor_sync(uint32_t mask, T value, int lanes) {
    return simt::shuffle(mask, value, simt::current_lane() ^ lanes);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate) { return simt::vote(mask, predicate != 0); }

template <class T> T __ldg(const T *p) { return simt::load_global(p); }
template <class T> T __ldcs(const T *p) { return simt::load_global(p); }
template <class T> void __stcs(T *p, std::type_identity_t<T> value) { simt::store_global<T>(p, value); }
template <class T> void __stcg(T *p, std::type_identity_t<T> value) { simt::store_global<T>(p, value); }

template <class T> T atomicAdd(T *p, std::type_identity_t<T> x) { return simt::update_global(p, simt::sum_of<T>, x); }
template <class T> T atomicAdd(SharedPtr<T> p, std::type_identity_t<T> x) {
    return simt::update_shared<T>(p.address, simt::sum_of<T>, x);
}

inline float __uint_as_float(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}
inline uint32_t __float_as_uint(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits;
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
