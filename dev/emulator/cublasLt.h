/*
Emulates cuBLASLt on the host. It has the functions that matmul_cublaslt.cuh and matmul_autotune.cuh call, and runs them
on the streams of cuda_runtime.h.
  D = epilogue(alpha op(A) op(B) + beta C)
As in the library: matrices are column-major with a leading dimension; sums are fp32; a bias has one element per row of
  D; the size of an attribute is checked; mismatched arguments give CUBLAS_STATUS_INVALID_VALUE, a missing kernel gives
  CUBLAS_STATUS_NOT_SUPPORTED; an aux matrix needs a leading dimension divisible by 8; biases and bias gradients have
  D's type; GELU has the tanh form and reads the unrounded sum; an address outside device memory is an error.
Stricter: bf16 needs addresses and leading dimensions that are multiples of 16 bytes, but not with SIMT_PRODUCTS; no
  operand may overlap the workspace.
Invented: the algorithms. Their sums differ in the last bits, so that a test can tell which algorithm ran. Algorithm 0
  adds in order; algorithm 1 adds odd and even terms apart. Both can split k; the partial sums lie in the workspace.
  With SIMT_PRODUCTS each shape and algorithm adds in an order of its own: in turn, in 2 or 4 interleaved parts, or in
  halves. A third of the shapes then lacks an epilogue.
Settings of block.h: SIMT_MMA says how bf16 and TF32 products are summed, SIMT_TF32 how TF32 inputs are rounded.
  With SIMT_APPROX, GELU's tanh has the error of tanh.approx, 2^-11, which cuBLASLt 13's kernels use for every type.
Cost: a product advances the emulated clock of cuda_runtime.h by its FLOPs. A test chooses the fastest algorithm or
  epilogue with lt_settings(), whose slowdown is added to the cost of all others. The slowdown is no real delay.
*/
#pragma once
#include "dev/emulator/cuda_runtime.h"

// ---- cuBLASLt's types and constants, with its values

enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU_AUX = 32 | 128,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 128 | 4,
    CUBLASLT_EPILOGUE_DGELU = 64 | 128,
    CUBLASLT_EPILOGUE_DGELU_BGRAD = 64 | 128 | 16,
    CUBLASLT_EPILOGUE_BGRADB = 512
};
enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12
};
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
};
enum cublasLtMatmulAlgoConfigAttributes_t {
    CUBLASLT_ALGO_CONFIG_ID = 0,
    CUBLASLT_ALGO_CONFIG_SPLITK_NUM = 2,
    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3
};
enum { CUBLASLT_REDUCTION_SCHEME_NONE = 0, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };

struct SimtLtHandle {};
struct SimtLtDesc {
    cublasComputeType_t compute;
    int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
};
struct SimtLtLayout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct SimtLtPreference {
    uint64_t workspace_bytes = 0;
    uint32_t reduction_schemes = 7, alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};
typedef SimtLtHandle *cublasLtHandle_t;
typedef SimtLtDesc *cublasLtMatmulDesc_t;
typedef SimtLtLayout *cublasLtMatrixLayout_t;
typedef SimtLtPreference *cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
};  // LT_MAGIC, algorithm, splits of k, reduction scheme
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
};

namespace simt {

enum : uint64_t { LT_MAGIC = 0x5349'4d54'4c54 };
enum { LT_ALGORITHMS = 2, LT_MAX_SPLITS = 32 };

// settings of a test
struct LtSettings {
    bool no_algorithms = false;                // no product has an algorithm
    uint32_t epilogues_off = 0;                // epilogues with one of these bits have no algorithm
    uint64_t slowdown = 2'000'000;             // emulated nanoseconds
    int fast_algorithm = -1, fast_splits = 1;  // if >= 0: every other algorithm costs the slowdown more
    std::vector<uint32_t> slow_epilogues;      // products with one of these epilogues cost the slowdown more
    int broken_algorithm = -1;                 // if >= 0: the last column of its products is wrong ..
    bool broken_to_nan = false;                // .. or NaN
    int silent_algorithm = -1;                 // if >= 0: it writes nothing
    uint32_t broken_epilogue = 0;              // its products, or its column sums, are wrong in the last column
    uint32_t refused_algorithms = 0;           // bit n: algorithm n is refused at run, although it is offered
    uint32_t refused_epilogues = 0;            // epilogues with one of these bits are refused at run ..
    uint32_t refused_heuristics = 0;           // .. or when algorithms are asked for
    int refused_attribute = -1;                // of a descriptor: it cannot be set
    cublasStatus_t refusal = CUBLAS_STATUS_NOT_SUPPORTED;  // of the four settings above
    int crashing_algorithm = -1;                           // if >= 0: it accesses memory that is not its own
    size_t k_tile = 1;          // products leave out the last k % k_tile terms of their sums ..
    int k_tile_algorithms = 1;  // .. with the algorithms below this number
    int cold_algorithm = -1;    // if >= 0: it costs two slowdowns more while L2 holds other data
    size_t version = 130000;
};
struct LtCounts {
    int objects = 0;  // live handles, descriptors, layouts and preferences
    int heuristics = 0, matmuls = 0, refused = 0;
    uint64_t finished = 0;             // emulated clock after the latest product
    cublasLtMatmulAlgo_t latest = {};  // algorithm of the latest product
};
inline LtSettings &lt_settings() {
    static LtSettings all;
    return all;
}
inline LtCounts &lt_counts() {
    static LtCounts all;
    return all;
}

template <class T, class... A> cublasStatus_t lt_create(T **object, A... fields) {
    *object = new T{fields...};
    lt_counts().objects++;
    return CUBLAS_STATUS_SUCCESS;
}
template <class T> cublasStatus_t lt_destroy(T *object) {
    if (object) { lt_counts().objects--; }
    delete object;
    return CUBLAS_STATUS_SUCCESS;
}
template <class T> cublasStatus_t lt_set(T *field, const void *value, size_t bytes) {
    if (!value || bytes != sizeof *field) { return CUBLAS_STATUS_INVALID_VALUE; }
    std::memcpy(field, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

// ---- one product

// a column-major matrix; a vector has one column
struct LtMatrix {
    void *data;
    cudaDataType_t type;
    size_t rows, cols, ld;
    size_t bytes_of_element() const { return type == CUDA_R_16BF ? 2 : 4; }
    float get(size_t i, size_t j) const {
        size_t at = i + j * ld;
        return type == CUDA_R_16BF ? bf16_to_float(static_cast<bf16 *>(data)[at]) : static_cast<float *>(data)[at];
    }
    void set(size_t i, size_t j, float x) const {
        size_t at = i + j * ld;
        if (type == CUDA_R_16BF) {
            static_cast<bf16 *>(data)[at] = float_to_bf16(x);
        } else {
            static_cast<float *>(data)[at] = x;
        }
    }
    bool begins_in(const void *other, size_t bytes) const {
        return reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(other) < bytes;
    }
    bool on_device() const { return memory_kind(data, ((cols - 1) * ld + rows) * bytes_of_element()) == DEVICE; }
    bool aligned_to(size_t bytes) const {
        return reinterpret_cast<uintptr_t>(data) % bytes == 0 && ld * bytes_of_element() % bytes == 0;
    }
};

struct LtProduct {
    SimtLtDesc desc;
    LtMatrix a, b, c, d, aux, bias;
    size_t k;
    float alpha, beta;
    cublasLtMatmulAlgo_t algo;
    float *workspace;
};

// fp32 to the 10 mantissa bits of TF32
inline float to_tf32(float x) {
    uint32_t rounding = settings().tf32_truncates ? 0 : 0x1000u;
    return __uint_as_float((__float_as_uint(x) + rounding) & 0xffffe000u);
}

// op(x) as (k, count), row-major
inline std::vector<float> lt_operand(const LtMatrix &x, bool k_is_row, size_t count, size_t k, bool tf32) {
    std::vector<float> operand(count * k);
    for (size_t p = 0; p < k; p++) {
        for (size_t i = 0; i < count; i++) {
            float factor = k_is_row ? x.get(p, i) : x.get(i, p);
            operand[p * count + i] = tf32 ? to_tf32(factor) : factor;
        }
    }
    return operand;
}

// An algorithm's order of sums: the number of partial sums, and whether a partial sum takes every n-th step of k or a
// range of k.
struct LtOrder {
    size_t parts;
    bool in_turn;
};
inline LtOrder lt_order(const LtProduct &w) {
    uint64_t number = w.algo.data[1], shape = (w.d.rows * 1000003 + w.d.cols) * 1000003 + w.k;
    uint64_t seed = static_cast<uint64_t>(settings().product_orders);
    if (seed == 0) { return {number == 1 ? size_t{2} : size_t{1}, true}; }
    const LtOrder orders[4] = {{1, true}, {2, true}, {4, true}, {2, false}};
    return orders[rng_bits(seed, number, shape) % 4];
}

// part (m) += up to 8 steps of k from `at` on, as tensor cores do
inline void lt_tensor_step(float *part, const std::vector<float> &a, const std::vector<float> &b, size_t m, size_t n,
                           size_t j, size_t at, size_t count) {
    float x[8], y[8];
    for (size_t p = 0; p < count; p++) { y[p] = b[(at + p) * n + j]; }
    for (size_t i = 0; i < m; i++) {
        for (size_t p = 0; p < count; p++) { x[p] = a[(at + p) * m + i]; }
        part[i] = tensor_core_sum(part[i], x, y, static_cast<int>(count));
    }
}

// out (m) = column j of op(A) op(B), summed over k in [begin, end); tensor cores take 8 steps of k at once
inline void lt_column(float *out, const LtProduct &w, const std::vector<float> &a, const std::vector<float> &b,
                      size_t j, size_t begin, size_t end) {
    size_t m = w.d.rows, n = w.d.cols;
    bool tf32 = w.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    bool tensor_cores = settings().mma_rounding && (tf32 || w.a.type == CUDA_R_16BF);
    LtOrder order = lt_order(w);
    std::vector<float> sum(4 * m);
    size_t step = tensor_cores ? 8 : 1, steps = (end - begin + step - 1) / step;
    for (size_t s = 0; s < steps; s++) {
        size_t at = begin + s * step;
        float *part = &sum[(order.in_turn ? s % order.parts : s * order.parts / steps) * m], factor = b[at * n + j];
        if (tensor_cores) {
            lt_tensor_step(part, a, b, m, n, j, at, std::min(step, end - at));
        } else {
            for (size_t i = 0; i < m; i++) { part[i] += a[at * m + i] * factor; }
        }
    }
    for (size_t i = 0; i < m; i++) { out[i] = (sum[i] + sum[m + i]) + (sum[2 * m + i] + sum[3 * m + i]); }
}

inline double lt_gelu_inner(double x) { return 0.7978845608028654 * (x + 0.044715 * x * x * x); }
inline double lt_tanh(double u) {
    return settings().approximate ? off_by(std::tanh(u), static_cast<float>(u), 0x1p-11) : std::tanh(u);
}
inline float lt_gelu(double x) { return static_cast<float>(0.5 * x * (1 + lt_tanh(lt_gelu_inner(x)))); }
inline float lt_gelu_slope(double x) {
    double t = lt_tanh(lt_gelu_inner(x)), inner_slope = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
    return static_cast<float>(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner_slope);
}

// the epilogue of element (i, j), whose sum is x
inline float lt_epilogue(const LtProduct &w, size_t i, size_t j, float x) {
    uint32_t epilogue = w.desc.epilogue;
    if (epilogue & 4) { x += w.bias.get(i, 0); }
    if (epilogue & 32) {
        w.aux.set(i, j, x);
        x = lt_gelu(x);
    }
    if (epilogue & 64) { x *= lt_gelu_slope(w.aux.get(i, j)); }
    return x;
}

enum : uint64_t { LT_FLOPS_PER_NANOSECOND = 1000 };

// cost of a product on the emulated clock
inline uint64_t lt_nanoseconds(const LtProduct &w) {
    const LtSettings &s = lt_settings();
    bool fast =
        s.fast_algorithm == static_cast<int>(w.algo.data[1]) && s.fast_splits == static_cast<int>(w.algo.data[2]);
    bool slow_epilogue =
        std::find(s.slow_epilogues.begin(), s.slow_epilogues.end(), w.desc.epilogue) != s.slow_epilogues.end();
    bool slow = (s.fast_algorithm >= 0 && !fast) || slow_epilogue;
    // other work since the latest product that lasts as long as a memset of L2 replaces what L2 holds
    bool cold = s.cold_algorithm == static_cast<int>(w.algo.data[1]) &&
                runtime().nanoseconds - lt_counts().finished >= copy_nanoseconds(DEVICE_L2_BYTES);
    uint64_t flops = uint64_t{2} * w.d.rows * w.d.cols * w.k;
    return LAUNCH_NANOSECONDS + flops / LT_FLOPS_PER_NANOSECOND + ((slow ? 1 : 0) + (cold ? 2 : 0)) * s.slowdown;
}

// Loads the module of a product's kernel at its first use. False if the device has no memory for it.
inline bool lt_load_module(const SimtLtDesc &desc, cudaDataType_t out, const cublasLtMatmulAlgo_t &algo) {
    uint64_t transposed = static_cast<uint64_t>(desc.transpose_a + 2 * desc.transpose_b), splits = algo.data[2] > 1;
    uint64_t module = ((desc.epilogue * 16 + out) * 4 + transposed) * 4 + algo.data[1] * 2 + splits;
    bool loaded = runtime().modules.contains(module);
    if (!loaded && is_full(DEVICE, static_cast<size_t>(settings().module_mib) << 20)) { return false; }
    runtime().modules.insert(module);
    return true;
}

inline void lt_multiply(const LtProduct &w, Break how) {
    const LtSettings &s = lt_settings();
    int number = static_cast<int>(w.algo.data[1]);
    if (s.crashing_algorithm == number) { runtime().context_error = cudaErrorIllegalAddress; }
    if (replaced_by(how) || s.silent_algorithm == number || s.crashing_algorithm == number) { return; }
    size_t m = w.d.rows, n = w.d.cols, splits = w.algo.data[2];
    size_t k = number < s.k_tile_algorithms ? w.k / s.k_tile * s.k_tile : w.k;
    bool tf32 = w.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<float> a = lt_operand(w.a, w.desc.transpose_a, m, w.k, tf32), result(m * n);
    std::vector<float> b = lt_operand(w.b, !w.desc.transpose_b, n, w.k, tf32);
    float *sums = splits > 1 ? w.workspace : result.data();
    for (size_t at = 0; at < splits * n; at++) {
        size_t part = at / n;
        lt_column(sums + at * m, w, a, b, at % n, k * part / splits, k * (part + 1) / splits);
    }
    for (size_t at = 0; at < m * n; at++) {
        float sum = sums[at];
        for (size_t part = 1; part < splits; part++) { sum += sums[part * m * n + at]; }
        float x = w.alpha * sum + (w.beta == 0 ? 0 : w.beta * w.c.get(at % m, at / m));
        result[at] = lt_epilogue(w, at % m, at / m, x);
        w.d.set(at % m, at / m, result[at]);
    }
    bool broken = s.broken_algorithm == number || s.broken_epilogue == w.desc.epilogue || how != WORKS;
    float wrong = how == GIVES_NAN || s.broken_to_nan ? NAN : 2;
    bool sums_only = w.desc.epilogue & (16 | 512);
    for (size_t i = 0; broken && !sums_only && i < m; i++) { w.d.set(i, n - 1, wrong * result[(n - 1) * m + i] + 1); }
    for (size_t i = 0; w.desc.epilogue & 16 && i < m; i++) {
        float sum = 0;
        for (size_t j = 0; j < n; j++) { sum += result[i + j * m]; }
        w.bias.set(i, 0, sum);
    }
    for (size_t j = 0; w.desc.epilogue & 512 && j < n; j++) {
        float sum = 0;
        for (size_t p = 0; p < w.k; p++) { sum += w.desc.transpose_b ? w.b.get(j, p) : w.b.get(p, j); }
        w.bias.set(j, 0, sum);
    }
    if (broken && sums_only) { w.bias.set(w.bias.rows - 1, 0, wrong * w.bias.get(w.bias.rows - 1, 0) + 1); }
}

// ---- validation

inline bool lt_known_epilogue(uint32_t epilogue) {
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
    }
}

inline cublasStatus_t lt_check_shapes(const SimtLtDesc &desc, const SimtLtLayout &a, const SimtLtLayout &b,
                                      const SimtLtLayout &c, const SimtLtLayout &d) {
    for (const SimtLtLayout *x : {&a, &b, &c, &d}) {
        if (x->rows == 0 || x->cols == 0 || x->ld < static_cast<int64_t>(x->rows)) {
            return CUBLAS_STATUS_INVALID_VALUE;
        }
    }
    uint64_t m = desc.transpose_a ? a.cols : a.rows, k = desc.transpose_a ? a.rows : a.cols;
    uint64_t n = desc.transpose_b ? b.rows : b.cols, k_of_b = desc.transpose_b ? b.cols : b.rows;
    bool fits = k == k_of_b && d.rows == m && d.cols == n && c.rows == m && c.cols == n && c.type == d.type;
    return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// With SIMT_PRODUCTS, about a third of the shapes has no kernel with this epilogue.
inline bool lt_lacks_epilogue(uint32_t epilogue, const SimtLtLayout &d) {
    uint64_t seed = static_cast<uint64_t>(settings().product_orders);
    return seed && epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
           rng_bits(seed, epilogue, d.rows * 1000003 + d.cols) % 3 == 0;
}

// conditions of the epilogue
inline cublasStatus_t lt_check_epilogue(const SimtLtDesc &desc, const SimtLtLayout &d) {
    bool bias = desc.epilogue & (4 | 16 | 512), aux = desc.epilogue & 128;
    if (!lt_known_epilogue(desc.epilogue) || (desc.epilogue & lt_settings().epilogues_off) ||
        lt_lacks_epilogue(desc.epilogue, d)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if ((bias && !desc.bias) || (aux && (!desc.aux || desc.aux_ld < static_cast<int64_t>(d.rows)))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return !aux || desc.aux_ld % 8 == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

inline cublasStatus_t lt_check(const SimtLtDesc &desc, const SimtLtLayout &a, const SimtLtLayout &b,
                               const SimtLtLayout &c, const SimtLtLayout &d) {
    cublasStatus_t status = lt_check_shapes(desc, a, b, c, d);
    if (status == CUBLAS_STATUS_SUCCESS) { status = lt_check_epilogue(desc, d); }
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    bool bf16_in = a.type == CUDA_R_16BF, tf32 = desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (tf32 && settings().capability < 80) { return CUBLAS_STATUS_ARCH_MISMATCH; }
    bool types = a.type == b.type && (bf16_in ? !tf32 : d.type == CUDA_R_32F);
    return types && !lt_settings().no_algorithms ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// bf16 tensor cores load 16 bytes at a time. cuBLASLt also has kernels for less.
inline bool lt_aligned(const SimtLtLayout &x, size_t alignment) {
    return settings().product_orders || x.type != CUDA_R_16BF || (alignment % 16 == 0 && x.ld % 8 == 0);
}

// Checks that the algorithm is known and supports the product. *workspace: the bytes it needs.
inline cublasStatus_t lt_check_algorithm(const SimtLtDesc &desc, const SimtLtLayout &a, const SimtLtLayout &d,
                                         const cublasLtMatmulAlgo_t &algo, size_t *workspace) {
    uint64_t splits = algo.data[2], scheme = algo.data[3], k = desc.transpose_a ? a.rows : a.cols;
    if (algo.data[0] != LT_MAGIC || algo.data[1] >= LT_ALGORITHMS || splits < 1) { return CUBLAS_STATUS_INVALID_VALUE; }
    *workspace = splits > 1 ? splits * d.rows * d.cols * sizeof(float) : 0;
    bool split_as_it_should = splits == 1 || (scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE &&
                                              splits <= LT_MAX_SPLITS && splits <= k && !(desc.epilogue & 16));
    return split_as_it_should ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // namespace simt

// ---- functions of the library

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) { return simt::lt_create(handle); }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return simt::lt_destroy(handle); }
inline size_t cublasLtGetVersion() { return simt::lt_settings().version; }
inline const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the GPU program failed to execute";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "an internal operation failed";
    default: return "the functionality requested is not supported";
    }
}

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                               cudaDataType_t) {
    return simt::lt_create(desc, compute);
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return simt::lt_destroy(desc); }
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                     cublasLtMatmulDescAttributes_t attribute, const void *value,
                                                     size_t bytes) {
    if (attribute == simt::lt_settings().refused_attribute) { return simt::lt_settings().refusal; }
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return simt::lt_set(&desc->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return simt::lt_set(&desc->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return simt::lt_set(&desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return simt::lt_set(&desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return simt::lt_set(&desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return simt::lt_set(&desc->aux_ld, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                                 uint64_t cols, int64_t ld) {
    return simt::lt_create(layout, type, rows, cols, ld);
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return simt::lt_destroy(layout); }

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    return simt::lt_create(preference);
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return simt::lt_destroy(preference);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void *value, size_t bytes) {
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return simt::lt_set(&preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return simt::lt_set(&preference->reduction_schemes, value, bytes);
    default: return simt::lt_set(&preference->alignment[attribute - 5], value, bytes);
    }
}

inline cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algo,
                                                           cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                           const void *value, size_t bytes) {
    uint32_t number = 0;
    if (attribute == CUBLASLT_ALGO_CONFIG_ID || bytes != sizeof number) { return CUBLAS_STATUS_INVALID_VALUE; }
    std::memcpy(&number, value, bytes);
    algo->data[attribute] = number;
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                              cublasLtMatmulHeuristicResult_t *result) {
    cublasStatus_t status = simt::lt_check(*desc, *a, *b, *c, *d);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    return simt::lt_check_algorithm(*desc, *a, *d, *algo, &result->workspaceSize);
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int requested,
                                                     cublasLtMatmulHeuristicResult_t results[], int *returned) {
    simt::lt_counts().heuristics++;
    *returned = 0;
    if (simt::lt_settings().refused_heuristics & desc->epilogue) { return simt::lt_settings().refusal; }
    cublasStatus_t status = simt::lt_check(*desc, *a, *b, *c, *d);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    const SimtLtLayout *layouts[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        if (!simt::lt_aligned(*layouts[i], preference->alignment[i])) { return CUBLAS_STATUS_NOT_SUPPORTED; }
    }
    const uint64_t offered[3][2] = {{0, 1}, {1, 1}, {0, 2}};  // algorithm, splits of k
    for (const auto &[number, splits] : offered) {
        uint32_t scheme = splits > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
        cublasLtMatmulHeuristicResult_t result = {};
        result.algo = {{simt::LT_MAGIC, number, splits, scheme, 0, 0, 0, 0}};
        if (*returned == requested || (scheme & preference->reduction_schemes) != scheme) { continue; }
        result.state = cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, &result.algo, &result);
        if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > preference->workspace_bytes) { continue; }
        results[(*returned)++] = result;
    }
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                                     const void *A, cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b,
                                     const void *beta, const void *C, cublasLtMatrixLayout_t c, void *D,
                                     cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo, void *workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
    auto matrix = [](const void *data, const SimtLtLayout &x) {
        return simt::LtMatrix{const_cast<void *>(data), x.type, x.rows, x.cols, static_cast<size_t>(x.ld)};
    };
    cublasLtMatmulHeuristicResult_t checked = {};
    cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, algo, &checked);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    const simt::LtSettings &s = simt::lt_settings();
    if ((s.refused_algorithms >> algo->data[1] & 1) || (s.refused_epilogues & desc->epilogue)) {
        simt::lt_counts().refused++;
        return s.refusal;
    }
    if (checked.workspaceSize > workspace_bytes || reinterpret_cast<uintptr_t>(workspace) % 256) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }

    size_t bias_rows = desc->epilogue & 512 ? d->cols : d->rows, k = desc->transpose_a ? a->rows : a->cols;
    simt::LtProduct product = {*desc,
                               matrix(A, *a),
                               matrix(B, *b),
                               matrix(C, *c),
                               matrix(D, *d),
                               {},
                               {},
                               k,
                               0,
                               0,
                               *algo,
                               static_cast<float *>(workspace)};
    product.aux = {desc->aux, d->type, d->rows, d->cols, static_cast<size_t>(desc->aux_ld)};
    product.bias = {desc->bias, d->type, bias_rows, 1, bias_rows};
    std::memcpy(&product.alpha, alpha, sizeof product.alpha);
    std::memcpy(&product.beta, beta, sizeof product.beta);
    for (const simt::LtMatrix *x : {&product.a, &product.b, &product.c, &product.d}) {
        if (x->type == CUDA_R_16BF && !x->aligned_to(simt::settings().product_orders ? 2 : 16)) {
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
        if (!x->on_device()) { return CUBLAS_STATUS_EXECUTION_FAILED; }
    }
    bool vectors = (!(desc->epilogue & 128) || product.aux.on_device()) &&
                   (!(desc->epilogue & (4 | 16 | 512)) || product.bias.on_device());
    if (!vectors) { return CUBLAS_STATUS_EXECUTION_FAILED; }
    for (const simt::LtMatrix *x : {&product.a, &product.b, &product.d, &product.aux, &product.bias}) {
        if (x->begins_in(workspace, workspace_bytes)) { return CUBLAS_STATUS_EXECUTION_FAILED; }
    }
    simt::Break how = simt::break_of("cublasLtMatmul", desc->epilogue);
    if (how == simt::RETURNS_ERROR) { return CUBLAS_STATUS_EXECUTION_FAILED; }
    if (!simt::lt_load_module(*desc, d->type, *algo)) { return CUBLAS_STATUS_ALLOC_FAILED; }
    simt::lt_counts().matmuls++;
    simt::lt_counts().latest = *algo;
    auto multiply = [=] { simt::lt_multiply(product, how); };
    bool submitted = simt::submit(stream, {cudaGraphNodeTypeKernel, "cublasLtMatmul", simt::lt_nanoseconds(product),
                                           multiply}) == cudaSuccess;
    simt::lt_counts().finished = simt::runtime().nanoseconds;
    return submitted ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
