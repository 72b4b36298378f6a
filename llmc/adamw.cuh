/*
AdamW on the GPU: all tensors in one launch. The formulas are in adamw.h and moments.h.
The arithmetic is adamw_weight in adamw.h; this file loads, rounds and stores.
  adamw_kernel  a lane updates 4 neighbours, a warp 128: load, update, round, store
  update_sweep  a block updates one interval of the flat arrays; as many blocks as the GPU holds at once
Width       128 neighbours are 512 bytes in a row of an fp32 array and 128 bytes of 8-bit codes. One 64-bit random
            number rounds 4 neighbours. Intervals and ranges begin at multiples of 128: a warp has whole blocks
            of moments, and the scale of a block is a maximum over its lanes. A lane has fewer than 4 only at the end of
            a range.
Ranges      A block finds the first range of its interval by binary search: 11 reads for 1200 ranges.
Templates   over storage: weights with remainders, or alone; moments in fp32, bf16, 8 bits; gradients in fp32, bf16.
Bits        An element depends on itself and the scale of its block alone: the same bits for any grid. They are the
            reference's bits, since nvcc rounds division and square root correctly by default.
Norm        The norm of the gradients is read on the GPU: the host waits for nothing. The step's other numbers are
            arguments.
Bytes       as in adamw.h. An H200 does 7 instructions in the time of one byte. Per parameter, on the shortest path
            through the sm_90 code:
              bf16 moments, remainder     18 bytes = 126 instructions; the kernel has 88
              8-bit moments, remainder    14 bytes =  98 instructions; the kernel has 141, the time of 20 bytes
            With fp32 moments and bf16 params alone, rounded stochastically, the kernel has 64. So memory is the limit,
            except with 8-bit moments.
*/
#pragma once
#include "llmc/adamw.h"
#include "llmc/common/device.cuh"
#include "llmc/common/rng.h"
#include "llmc/moments.h"
#include "llmc/ops.h"

enum { ADAMW_THREADS = 256, ADAMW_GROUP = 4 };
enum { ADAMW_SWEEP = ADAMW_THREADS * ADAMW_GROUP };  // elements that a block updates at a time
static_assert(32 * ADAMW_GROUP == MOMENT_BLOCK, "a warp updates one block of moments at a time");

// blocks per multiprocessor: with remainders or rounded moments the registers do not suffice for four
static constexpr int adamw_blocks(bool remainders, bool moments_are_rounded) {
    return remainders || moments_are_rounded ? 3 : 4;
}

// ---- a lane's elements in their storage types

// four of T in one access
template <class T>
using GroupWords = std::conditional_t<sizeof(T) == 4, uint4, std::conditional_t<sizeof(T) == 2, uint2, uint32_t>>;

// the first `count` of four elements, zeros after them; WHOLE: all four, in one access
template <bool WHOLE, class T>
static __device__ __forceinline__ void load_group(T (&x)[ADAMW_GROUP], const T *from, int count) {
    if constexpr (WHOLE) {
        GroupWords<T> words = __ldcs(reinterpret_cast<const GroupWords<T> *>(from));
        memcpy(&x, &words, sizeof x);
    } else {
        UNROLL
        for (int k = 0; k < ADAMW_GROUP; k++) { x[k] = k < count ? from[k] : T{}; }
    }
}

// KEEP_IN_L2: for params, which the next forward reads. The other arrays are used once a step.
template <bool WHOLE, bool KEEP_IN_L2 = false, class T>
static __device__ __forceinline__ void store_group(T *to, const T (&x)[ADAMW_GROUP], int count) {
    if constexpr (WHOLE) {
        GroupWords<T> words;
        memcpy(&words, &x, sizeof x);
        if constexpr (KEEP_IN_L2) {
            __stcg(reinterpret_cast<GroupWords<T> *>(to), words);
        } else {
            __stcs(reinterpret_cast<GroupWords<T> *>(to), words);
        }
    } else {
        UNROLL
        for (int k = 0; k < ADAMW_GROUP; k++) {
            if (k < count) { to[k] = x[k]; }
        }
    }
}

// 64 random bits for the four elements of a range from element i of the flat arrays on. In a slice the four may belong
// to several groups: at the ends of rows, and in rows that begin within a group.
static __device__ __forceinline__ uint64_t adamw_random_bits(const UpdateRange &range, const StepScales &s,
                                                             Rounded what, size_t i) {
    uint64_t tensor = static_cast<uint64_t>(range.tensor), random_bits = 0;
    size_t first = range.tensor_offset + i - range.offset;
    if (range.view_cols == 0) { return group_rounding_bits(s.seed, s.step, tensor, what, first / ADAMW_GROUP); }
    size_t element = view_element(&range, first);
    bool together = view_element(&range, first + ADAMW_GROUP - 1) == element + ADAMW_GROUP - 1;
    if (element % ADAMW_GROUP == 0 && together) {
        return group_rounding_bits(s.seed, s.step, tensor, what, element / ADAMW_GROUP);
    }
    NO_UNROLL
    for (int k = 0; k < ADAMW_GROUP; k++) {
        element = view_element(&range, first + k);
        uint64_t of_group = group_rounding_bits(s.seed, s.step, tensor, what, element / ADAMW_GROUP);
        random_bits |= static_cast<uint64_t>(element_rounding_bits(of_group, element % ADAMW_GROUP)) << (16 * k);
    }
    return random_bits;
}

// a lane's weights: params, with remainders or alone
template <bool REMAINDERS> struct WeightGroup {
    floatX w[ADAMW_GROUP];
    float exact[ADAMW_GROUP];  // of params alone: the new weights, which store() rounds
    int16_t remainder[ADAMW_GROUP];

    // elements [i, i + count) of the flat arrays, zeros after them
    template <bool WHOLE> __device__ __forceinline__ void load(const OptimizerState &state, size_t i, int count) {
        load_group<WHOLE>(w, state.params + i, count);
        if constexpr (REMAINDERS) { load_group<WHOLE>(remainder, state.remainder + i, count); }
    }

    template <bool WHOLE>
    __device__ __forceinline__ void store(const OptimizerState &state, size_t i, int count, const UpdateRange &range,
                                          const StepScales &s) {
        if constexpr (!REMAINDERS) {
            uint64_t random_bits = adamw_random_bits(range, s, ROUND_WEIGHT, i);
            UNROLL
            for (int k = 0; k < ADAMW_GROUP; k++) {
                w[k] = to_floatX_stochastic(exact[k], element_rounding_bits(random_bits, k));
            }
        }
        if constexpr (REMAINDERS) { store_group<WHOLE>(state.remainder + i, remainder, count); }
        store_group<WHOLE, true>(state.params + i, w, count);
    }

    __device__ __forceinline__ float get(int k) const {
        if constexpr (REMAINDERS) {
            return joined_real(w[k], remainder[k]);
        } else {
            return to_real(w[k]);
        }
    }

    __device__ __forceinline__ void set(int k, float weight) {
        w[k] = to_floatX_half_up(weight);
        exact[k] = weight;
        remainder[k] = remainder_of(weight);
    }
};

// ---- moments between their storage type and float. 8-bit codes share a scale with the other lanes of the warp: all
// lanes must call

static __device__ __forceinline__ float stored_float(float x) { return x; }
static __device__ __forceinline__ float stored_float(bf16 x) { return bf16_to_float(x); }

// x = elements [i, i + count) of m or v, zeros after them
template <bool WHOLE, class M>
static __device__ __forceinline__ void load_moment(float (&x)[ADAMW_GROUP], const OptimizerState &state, bool is_v,
                                                   size_t i, int count) {
    M stored[ADAMW_GROUP];
    load_group<WHOLE>(stored, static_cast<const M *>(is_v ? state.v : state.m) + i, count);
    if constexpr (std::is_same_v<M, uint8_t>) {
        float scale = moment_scales(&state, is_v)[i / MOMENT_BLOCK];
        UNROLL
        for (int k = 0; k < ADAMW_GROUP; k++) {
            x[k] = is_v ? v_of_code(stored[k], scale) : m_of_code(stored[k], scale);
        }
    } else {
        UNROLL
        for (int k = 0; k < ADAMW_GROUP; k++) { x[k] = stored_float(stored[k]); }
    }
}

// returns the scale, the same in every lane
static __device__ __forceinline__ float moment_encode(uint8_t (&codes)[ADAMW_GROUP], bool is_v,
                                                      const float (&x)[ADAMW_GROUP], uint64_t random_bits) {
    float number[ADAMW_GROUP], largest = 0;
    UNROLL
    for (int k = 0; k < ADAMW_GROUP; k++) {
        number[k] = is_v ? sqrtf(x[k]) : x[k];
        largest = fmaxf(largest, fabsf(number[k]));
    }
    largest = warp_max(largest);
    float scale = is_v ? v_scale(largest) : m_scale(largest), inverse = inverse_scale(scale);
    UNROLL
    for (int k = 0; k < ADAMW_GROUP; k++) {
        uint32_t bits = element_rounding_bits(random_bits, k);
        codes[k] = is_v ? v_code(number[k], inverse, bits) : m_code(number[k], inverse, bits);
    }
    return scale;
}

// elements [i, i + count) of m or v = x, rounded to their storage type
template <bool WHOLE, class M>
static __device__ __forceinline__ void store_moment(const OptimizerState &state, bool is_v,
                                                    const float (&x)[ADAMW_GROUP], size_t i, int count,
                                                    const UpdateRange &range, const StepScales &s) {
    M stored[ADAMW_GROUP];
    if constexpr (std::is_same_v<M, float>) {
        memcpy(&stored, &x, sizeof stored);
    } else {
        uint64_t random_bits = adamw_random_bits(range, s, is_v ? ROUND_V : ROUND_M, i);
        if constexpr (std::is_same_v<M, uint8_t>) {
            // warp_max in it waits for all lanes: all have read the old scale before lane 0 writes the new one
            float scale = moment_encode(stored, is_v, x, random_bits);
            if (lane_id() == 0) { moment_scales(&state, is_v)[i / MOMENT_BLOCK] = scale; }
        } else {
            UNROLL
            for (int k = 0; k < ADAMW_GROUP; k++) {
                stored[k] = bf16_round_stochastic(x[k], element_rounding_bits(random_bits, k));
            }
        }
    }
    store_group<WHOLE>(static_cast<M *>(is_v ? state.v : state.m) + i, stored, count);
}

// ---- the kernel

// the first range that ends after `position`; num_ranges if there is none
static __device__ __forceinline__ int adamw_range_at(const UpdateRange *ranges, int num_ranges, size_t position) {
    int low = 0, high = num_ranges;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ranges[middle].offset + ranges[middle].count <= position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Calls group.operator()<WHOLE>(range, i, count) for the elements [i, i + count) of a lane, a block of moments a warp.
// WHOLE: count is ADAMW_GROUP. All lanes of a warp call; at the end of a range some have fewer elements, or none.
template <class Group>
static __device__ __forceinline__ void update_sweep(const UpdateRange *ranges, int num_ranges, Group &&group) {
    size_t first = ranges[0].offset, last = ranges[num_ranges - 1].offset + ranges[num_ranges - 1].count;
    size_t sweeps = ceil_div(last - first, static_cast<size_t>(ADAMW_SWEEP));
    size_t interval = ceil_div(sweeps, static_cast<size_t>(gridDim.x)) * ADAMW_SWEEP;
    size_t begin = first + blockIdx.x * interval, end = min(begin + interval, last);
    int r = adamw_range_at(ranges, num_ranges, begin);
    for (; r < num_ranges && ranges[r].offset < end; r++) {
        UpdateRange range = ranges[r];
        size_t from = max(begin, range.offset), to = min(end, range.offset + range.count);
        for (size_t at = from + warp_id() * MOMENT_BLOCK; at < to; at += ADAMW_SWEEP) {
            size_t i = at + lane_id() * ADAMW_GROUP;
            if (at + MOMENT_BLOCK <= to) {
                group.template operator()<true>(range, i, ADAMW_GROUP);
            } else {
                int count = i < to ? static_cast<int>(min(to - i, static_cast<size_t>(ADAMW_GROUP))) : 0;
                group.template operator()<false>(range, i, count);
            }
        }
    }
}

// M: the storage type of moments, G: of gradients
template <bool REMAINDERS, class M, class G>
static __global__ void __launch_bounds__(ADAMW_THREADS, adamw_blocks(REMAINDERS, !std::is_same_v<M, float>))
    adamw_kernel(OptimizerState state, const void *grads, const float *norm_squared, const UpdateRange *ranges,
                 int num_ranges, StepScales s) {
    wait_for_previous_kernel();
    if (!isfinite(*norm_squared)) { return; }
    float grad_scale = adamw_grad_scale(s.clip, *norm_squared);
    update_sweep(ranges, num_ranges, [&]<bool WHOLE>(const UpdateRange &range, size_t i, int count) {
        WeightGroup<REMAINDERS> weights;
        float m[ADAMW_GROUP], v[ADAMW_GROUP];
        G g[ADAMW_GROUP];
        weights.template load<WHOLE>(state, i, count);
        load_moment<WHOLE, M>(m, state, false, i, count);
        load_moment<WHOLE, M>(v, state, true, i, count);
        load_group<WHOLE>(g, static_cast<const G *>(grads) + i, count);
        UNROLL
        for (int k = 0; k < ADAMW_GROUP; k++) {
            float scaled = stored_float(g[k]) * grad_scale;
            weights.set(k, adamw_weight(weights.get(k), &m[k], &v[k], scaled, range.decay, s));
        }
        weights.template store<WHOLE>(state, i, count, range, s);  // first: rounding the moments needs its registers
        store_moment<WHOLE, M>(state, false, m, i, count, range, s);
        store_moment<WHOLE, M>(state, true, v, i, count, range, s);
    });
}

// ---- launcher

template <class M, class G> static inline auto adamw_kernel_of(bool remainders) {
    return remainders ? adamw_kernel<true, M, G> : adamw_kernel<false, M, G>;
}

template <class G> static inline auto adamw_kernel_of(bool remainders, DType moments) {
    return moments == DT_U8     ? adamw_kernel_of<uint8_t, G>(remainders)
           : moments == DT_BF16 ? adamw_kernel_of<bf16, G>(remainders)
                                : adamw_kernel_of<float, G>(remainders);
}

static inline void cuda_adamw_update(const OptimizerState *state, Gradient grads, const real *norm_squared,
                                     const UpdateRange *ranges, int num_ranges, size_t n, const StepHyper *hyper,
                                     Exec *ex) {
    (void)n;
    if (num_ranges == 0) { return; }
    bool remainders = state->remainder != nullptr;
    auto kernel = grads.dtype == DT_BF16 ? adamw_kernel_of<bf16>(remainders, state->moments)
                                         : adamw_kernel_of<float>(remainders, state->moments);
    int blocks = ex->cuda->multiprocessors * adamw_blocks(remainders, state->moments != DT_REAL);
    LAUNCH(kernel, blocks, ADAMW_THREADS, 0, stream_of(ex), *state, grads.at, norm_squared, ranges, num_ranges,
           step_scales(hyper));
}
