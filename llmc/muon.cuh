/*
Muon on the GPU, in adamw.cuh's groups of four elements. The formulas are in muon.h; momentum and weights
have the bits of the reference implementation.
  muon_momentum_kernel    a warp updates a block of moments: m, and u in floatX
  muon_normalise_kernel   divides a matrix by its norm, which it reads on the GPU
  muon_polynomial_kernel  a I + b A + c A^2, over A^2
  muon_weights_kernel     weights from the orthogonalised update
Bytes       as in muon.h. The norm and the normalised matrix move 3 elements for each of the matrix, a polynomial 3 for
            each of A: little next to the matmuls.
*/
#pragma once
#include "llmc/adamw.cuh"
#include "llmc/adamw.h"
#include "llmc/common/cuda_common.cuh"
#include "llmc/common/device.cuh"
#include "llmc/common/floatx.h"
#include "llmc/common/ptx.cuh"
#include "llmc/moments.h"
#include "llmc/muon.h"
#include "llmc/ops.h"

enum { MUON_BLOCKS = 4 };  // of ADAMW_THREADS, on a multiprocessor

static inline int muon_blocks(const Exec *ex) { return MUON_BLOCKS * ex->cuda->multiprocessors; }

// ---- momentum

template <class M, class G>
static __global__ void __launch_bounds__(ADAMW_THREADS, MUON_BLOCKS)
    muon_momentum_kernel(OptimizerState state, floatX *update, const G *grads, const float *norm_squared,
                         const UpdateRange *ranges, StepScales s) {
    wait_for_previous_kernel();
    if (!isfinite(*norm_squared)) { return; }
    const float grad_scale = adamw_grad_scale(s.clip, *norm_squared);
    update_sweep(ranges, 1, [&]<bool WHOLE>(const UpdateRange &range, size_t i, int count) {
        float m[ADAMW_GROUP];
        G g[ADAMW_GROUP];
        floatX u[ADAMW_GROUP];
        load_moment<WHOLE, M>(m, state, false, i, count);
        load_group<WHOLE>(g, grads + i, count);
        UNROLL
        for (int k = 0; k < ADAMW_GROUP; k++) {
            u[k] = to_floatX(muon_moment(&m[k], stored_float(g[k]) * grad_scale, s.momentum));
        }
        store_moment<WHOLE, M>(state, false, m, i, count, range, s);
        store_group<WHOLE, true>(update + i - range.offset, u, count);
    });
}

static inline void cuda_muon_momentum(floatX *update, const OptimizerState *state, Gradient grads,
                                      const real *norm_squared, const UpdateRange *range, size_t n,
                                      const StepHyper *hyper, Exec *ex) {
    (void)n;
    with_type(grads.dtype, grads.at, [&]<class G>(const G *g) {
        auto kernel = state->moments == DT_U8     ? muon_momentum_kernel<uint8_t, G>
                      : state->moments == DT_BF16 ? muon_momentum_kernel<bf16, G>
                                                  : muon_momentum_kernel<float, G>;
        LAUNCH(kernel, muon_blocks(ex), ADAMW_THREADS, 0, stream_of(ex), *state, update, g, norm_squared, range,
               step_scales(hyper));
    });
}

// ---- Newton-Schulz, between the matmuls

static __global__ void __launch_bounds__(ADAMW_THREADS)
    muon_normalise_kernel(floatX *out, const floatX *in, const float *norm_squared, size_t n) {
    wait_for_previous_kernel();
    const float squared = *norm_squared;
    size_t stride = static_cast<size_t>(gridDim.x) * ADAMW_THREADS;
    for (size_t i = blockIdx.x * ADAMW_THREADS + threadIdx.x; i < n; i += stride) {
        out[i] = to_floatX(muon_normal(to_real(in[i]), squared));
    }
}

static __global__ void __launch_bounds__(ADAMW_THREADS) muon_polynomial_kernel(floatX *b, const floatX *a, uint32_t m) {
    wait_for_previous_kernel();
    size_t stride = static_cast<size_t>(gridDim.x) * ADAMW_THREADS, n = static_cast<size_t>(m) * m;
    for (size_t i = blockIdx.x * ADAMW_THREADS + threadIdx.x; i < n; i += stride) {
        b[i] = to_floatX(muon_polynomial_term(to_real(a[i]), to_real(b[i]), i % (m + 1) == 0));
    }
}

static inline void cuda_muon_normalise(floatX *out, const floatX *in, const real *norm_squared, size_t n, Exec *ex) {
    LAUNCH(muon_normalise_kernel, muon_blocks(ex), ADAMW_THREADS, 0, stream_of(ex), out, in, norm_squared, n);
}

static inline void cuda_muon_polynomial(floatX *b, const floatX *a, int m, Exec *ex) {
    LAUNCH(muon_polynomial_kernel, muon_blocks(ex), ADAMW_THREADS, 0, stream_of(ex), b, a, static_cast<uint32_t>(m));
}

// ---- weights

template <bool REMAINDERS>
static __global__ void __launch_bounds__(ADAMW_THREADS, MUON_BLOCKS)
    muon_weights_kernel(OptimizerState state, const floatX *update, const float *norm_squared,
                        const UpdateRange *ranges, float step, StepScales s) {
    wait_for_previous_kernel();
    if (!isfinite(*norm_squared)) { return; }
    update_sweep(ranges, 1, [&]<bool WHOLE>(const UpdateRange &range, size_t i, int count) {
        WeightGroup<REMAINDERS> weights;
        floatX x[ADAMW_GROUP];
        weights.template load<WHOLE>(state, i, count);
        load_group<WHOLE>(x, update + i - range.offset, count);
        UNROLL
        for (int k = 0; k < ADAMW_GROUP; k++) {
            weights.set(k, muon_weight(weights.get(k), to_real(x[k]), s.keep, step));
        }
        weights.template store<WHOLE>(state, i, count, range, s);
    });
}

static inline void cuda_muon_weights(const OptimizerState *state, const floatX *update, const real *norm_squared,
                                     const UpdateRange *range, size_t n, real scale, const StepHyper *hyper, Exec *ex) {
    (void)n;
    auto kernel = state->remainder ? muon_weights_kernel<true> : muon_weights_kernel<false>;
    LAUNCH(kernel, muon_blocks(ex), ADAMW_THREADS, 0, stream_of(ex), *state, update, norm_squared, range,
           hyper->learning_rate * scale, step_scales(hyper));
}
