/*
Muon on the GPU: momentum and weights in adamw.cuh's groups of four elements, and Newton-Schulz from cuBLASLt's matmuls.
The formulas are in muon.h.
  muon_momentum_kernel    a warp updates a block of moments: m, and u in floatX
  muon_normalise_kernel   y = x / |x|, from the squared norm on the device
  muon_polynomial_kernel  a I + b A + c A^2, over A^2
  muon_weights_kernel     weights from the orthogonalised update
Bits        momentum and weights have the textbook's
Bytes       as in muon.h. A (rows,cols) of bf16 is read and written once by the norm and the normalisation, 6 bytes an
            element; the polynomial moves 6 bytes an element of (m,m) a step. Matmuls take the rest of the time.
defines: cuda_muon_momentum, cuda_muon_newton_schulz, cuda_muon_weights
*/
#pragma once
#include "llmc/adamw.cuh"
#include "llmc/adamw.h"
#include "llmc/common/cuda_common.cuh"
#include "llmc/common/device.cuh"
#include "llmc/common/floatx.h"
#include "llmc/common/ptx.cuh"
#include "llmc/common/rng.h"
#include "llmc/global_norm.cuh"
#include "llmc/matmul.cuh"
#include "llmc/moments.h"
#include "llmc/muon.h"
#include "llmc/ops.h"

enum { MUON_THREADS = 256, MUON_BLOCKS = 4 };  // blocks per multiprocessor

// blocks of MUON_THREADS threads for `count` elements, at most as many as the GPU holds at once
static inline int muon_blocks(size_t count, const Exec *ex) {
    size_t needed = ceil_div(count, static_cast<size_t>(ADAMW_SWEEP));
    size_t most = static_cast<size_t>(MUON_BLOCKS) * static_cast<size_t>(ex->cuda->multiprocessors);
    return static_cast<int>(needed < most ? needed : most);
}

// ---- momentum

// elements [e, e + count) of the range, in the warp's block of moments; WHOLE: count is ADAMW_GROUP
template <bool WHOLE, class M, class G>
static __device__ __forceinline__ void
muon_momentum_group(const OptimizerState &state, floatX *update, const void *grads, size_t e, int count,
                    const UpdateRange &range, float grad_scale, const AdamWScales &s) {
    constexpr bool CODES = std::is_same_v<M, uint8_t>;
    size_t i = range.offset + e, block = (i - lane_id() * ADAMW_GROUP) / MOMENT_BLOCK;
    uint64_t first = range.tensor_offset + e;
    M stored[ADAMW_GROUP];
    G g[ADAMW_GROUP];
    floatX u[ADAMW_GROUP];
    float m[ADAMW_GROUP], old_scale = 0;
    load_group<WHOLE>(stored, static_cast<const M *>(state.m) + i, count);
    load_group<WHOLE>(g, static_cast<const G *>(grads) + i, count);
    if constexpr (CODES) { old_scale = state.m_scales[block]; }
    UNROLL
    for (int k = 0; k < ADAMW_GROUP; k++) {
        if constexpr (CODES) {
            m[k] = m_of_code(stored[k], old_scale);
        } else {
            m[k] = stored_float(stored[k]);
        }
        u[k] = to_floatX(muon_moment(&m[k], stored_float(g[k]) * grad_scale, s.momentum));
    }
    if constexpr (CODES) {
        // warp_max in m_encode waits for all lanes: all have read the old scale before lane 0 writes the new one
        float scale = m_encode(stored, m, adamw_random_bits(range, s, ROUND_M, first));
        if (lane_id() == 0) { state.m_scales[block] = scale; }
    } else {
        moments_store(stored, m, range, s, ROUND_M, first);
    }
    store_group<WHOLE>(static_cast<M *>(state.m) + i, stored, count);
    store_group<WHOLE, true>(update + e, u, count);
}

template <class M, class G>
static __global__ void __launch_bounds__(MUON_THREADS, MUON_BLOCKS)
    muon_momentum_kernel(OptimizerState state, floatX *update, const void *grads, const float *norm_squared,
                         UpdateRange range, AdamWScales scales) {
    wait_for_previous_kernel();
    if (!isfinite(*norm_squared)) { return; }
    float grad_scale = adamw_grad_scale(scales.clip, *norm_squared);
    size_t stride = static_cast<size_t>(gridDim.x) * ADAMW_SWEEP;
    for (size_t at = blockIdx.x * ADAMW_SWEEP + warp_id() * MOMENT_BLOCK; at < range.count; at += stride) {
        size_t e = at + lane_id() * ADAMW_GROUP;
        // the last block of moments may end within a group; all its lanes compute, since they share a scale
        if (at + MOMENT_BLOCK <= range.count) {
            muon_momentum_group<true, M, G>(state, update, grads, e, ADAMW_GROUP, range, grad_scale, scales);
        } else {
            int count = e < range.count ? static_cast<int>(min(range.count - e, static_cast<size_t>(ADAMW_GROUP))) : 0;
            muon_momentum_group<false, M, G>(state, update, grads, e, count, range, grad_scale, scales);
        }
    }
}

template <class G> static inline auto muon_momentum_kernel_of(DType moments) {
    return moments == DT_U8     ? muon_momentum_kernel<uint8_t, G>
           : moments == DT_BF16 ? muon_momentum_kernel<bf16, G>
                                : muon_momentum_kernel<float, G>;
}

static inline void cuda_muon_momentum(floatX *update, const OptimizerState *state, Gradient grads,
                                      const real *norm_squared, const UpdateRange *range, const StepHyper *hyper,
                                      Exec *ex) {
    auto kernel = grads.dtype == DT_BF16 ? muon_momentum_kernel_of<bf16>(state->moments)
                                         : muon_momentum_kernel_of<float>(state->moments);
    if (range->count == 0) { return; }
    LAUNCH(kernel, muon_blocks(range->count, ex), MUON_THREADS, 0, stream_of(ex), *state, update, grads.at,
           norm_squared, *range, adamw_scales(hyper));
}

// ---- Newton-Schulz

// y (n) = x / (sqrt(*norm_squared) + epsilon); WIDTH is a pack, or 1 if x or y is not aligned to packs
template <int WIDTH>
static __global__ void __launch_bounds__(MUON_THREADS)
    muon_normalise_kernel(floatX *y, const floatX *x, const float *norm_squared, size_t n) {
    wait_for_previous_kernel();
    float norm = sqrtf(*norm_squared) + MUON_EPSILON;
    size_t stride = static_cast<size_t>(gridDim.x) * MUON_THREADS * WIDTH, packs_end = n - n % WIDTH;
    for (size_t i = (blockIdx.x * MUON_THREADS + threadIdx.x) * WIDTH; i < packs_end; i += stride) {
        float value[WIDTH];
        load_floats(value, x + i);
        UNROLL
        for (int k = 0; k < WIDTH; k++) { value[k] = value[k] / norm; }
        store_floats(y + i, value);
    }
    size_t rest = packs_end + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) { y[rest] = to_floatX(to_real(x[rest]) / norm); }
}

// poly (m,m), which holds A^2, = a I + b A + c A^2; the same WIDTH for all rows: it divides m
template <int WIDTH>
static __global__ void __launch_bounds__(MUON_THREADS)
    muon_polynomial_kernel(floatX *poly, const floatX *a, uint32_t m) {
    wait_for_previous_kernel();
    size_t stride = static_cast<size_t>(gridDim.x) * MUON_THREADS * WIDTH, n = static_cast<size_t>(m) * m;
    for (size_t i = (blockIdx.x * MUON_THREADS + threadIdx.x) * WIDTH; i < n; i += stride) {
        float value[WIDTH], of_a[WIDTH];
        uint32_t row = static_cast<uint32_t>(i / m), col = static_cast<uint32_t>(i % m);
        load_floats(value, poly + i);
        load_floats(of_a, a + i);
        UNROLL
        for (int k = 0; k < WIDTH; k++) { value[k] = newton_schulz_polynomial(of_a[k], value[k], col + k == row); }
        store_floats(poly + i, value);
    }
}

static inline void muon_launch_normalise(floatX *y, real *norm_squared, const floatX *x, size_t n, Exec *ex) {
    constexpr int WIDTH = Pack<floatX>::SIZE;
    cuda_global_norm_squared(norm_squared, {const_cast<floatX *>(x), DT_FLOATX}, GRAD_SET, n, ex);
    auto kernel = aligned_to_pack(x) && aligned_to_pack(y) ? muon_normalise_kernel<WIDTH> : muon_normalise_kernel<1>;
    LAUNCH(kernel, muon_blocks(n, ex), MUON_THREADS, 0, stream_of(ex), y, x, norm_squared, n);
}

static inline void muon_launch_polynomial(floatX *poly, const floatX *a, int m, Exec *ex) {
    constexpr int WIDTH = Pack<floatX>::SIZE;
    bool packs = m % WIDTH == 0 && aligned_to_pack(poly) && aligned_to_pack(a);
    auto kernel = packs ? muon_polynomial_kernel<WIDTH> : muon_polynomial_kernel<1>;
    size_t n = static_cast<size_t>(m) * static_cast<size_t>(m);
    LAUNCH(kernel, muon_blocks(n, ex), MUON_THREADS, 0, stream_of(ex), poly, a, static_cast<uint32_t>(m));
}

static inline void cuda_muon_newton_schulz(floatX *x, floatX *scratch, int rows, int cols, Exec *ex) {
    NewtonSchulz ns = newton_schulz_open(x, scratch, rows, cols);
    Gradient a = {ns.a, DT_FLOATX};
    int m = ns.m;
    muon_launch_normalise(ns.x[0], ns.norm, x, static_cast<size_t>(rows) * static_cast<size_t>(cols), ex);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        const floatX *from = ns.x[step % 2];
        floatX *to = ns.x[(step + 1) % 2];
        if (ns.tall) {  // X^T X
            cuda_matmul_backward(NULL, a, no_gradient, no_gradient, from, from, NULL, NULL, GRAD_SET, rows, m, m, ex);
        } else {  // X X^T
            cuda_matmul_forward(ns.a, from, from, NULL, NULL, m, cols, m, ex);
        }
        cuda_matmul_forward(ns.poly, ns.a, ns.a, NULL, NULL, m, m, m, ex);  // A is symmetric: A A^T is A^2
        muon_launch_polynomial(ns.poly, ns.a, m, ex);
        if (ns.tall) {  // X poly
            cuda_matmul_forward(to, from, ns.poly, NULL, NULL, rows, m, m, ex);
        } else {  // poly X
            cuda_matmul_backward(to, no_gradient, no_gradient, no_gradient, ns.poly, NULL, from, NULL, GRAD_SET, m,
                                 cols, m, ex);
        }
    }
}

// ---- weights

template <bool WHOLE, int WEIGHTS>
static __device__ __forceinline__ void muon_weights_group(const OptimizerState &state, const floatX *update, size_t e,
                                                          int count, const UpdateRange &range, float step,
                                                          const AdamWScales &s) {
    WeightGroup<WEIGHTS> weights;
    floatX x[ADAMW_GROUP];
    weights.template load<WHOLE>(state, range.offset + e, count);
    load_group<WHOLE>(x, update + e, count);
    uint64_t random_bits = 0;
    if constexpr (WEIGHTS == WEIGHTS_ALONE) {
        random_bits = adamw_random_bits(range, s, ROUND_WEIGHT, range.tensor_offset + e);
    }
    UNROLL
    for (int k = 0; k < ADAMW_GROUP; k++) {
        weights.set(k, muon_weight(weights.get(k), to_real(x[k]), s.keep, step), random_bits);
    }
    weights.template store<WHOLE>(state, range.offset + e, count);
}

template <int WEIGHTS>
static __global__ void __launch_bounds__(MUON_THREADS, MUON_BLOCKS)
    muon_weights_kernel(OptimizerState state, const floatX *update, const float *norm_squared, UpdateRange range,
                        float step, AdamWScales scales) {
    wait_for_previous_kernel();
    if (!isfinite(*norm_squared)) { return; }
    size_t stride = static_cast<size_t>(gridDim.x) * ADAMW_SWEEP;
    size_t e = (static_cast<size_t>(blockIdx.x) * MUON_THREADS + threadIdx.x) * ADAMW_GROUP;
    for (; e + ADAMW_GROUP <= range.count; e += stride) {
        muon_weights_group<true, WEIGHTS>(state, update, e, ADAMW_GROUP, range, step, scales);
    }
    if (e < range.count) {
        muon_weights_group<false, WEIGHTS>(state, update, e, static_cast<int>(range.count - e), range, step, scales);
    }
}

static inline void cuda_muon_weights(const OptimizerState *state, const floatX *update, const real *norm_squared,
                                     const UpdateRange *range, real scale, const StepHyper *hyper, Exec *ex) {
    auto kernel = state->master      ? muon_weights_kernel<WEIGHTS_WITH_MASTER>
                  : state->remainder ? muon_weights_kernel<WEIGHTS_WITH_REMAINDER>
                                     : muon_weights_kernel<WEIGHTS_ALONE>;
    if (range->count == 0) { return; }
    LAUNCH(kernel, muon_blocks(range->count, ex), MUON_THREADS, 0, stream_of(ex), *state, update, norm_squared, *range,
           hyper->learning_rate * scale, adamw_scales(hyper));
}
