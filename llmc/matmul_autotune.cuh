/*
Autotuning of matmul.cuh's GEMMs: lt_algorithm returns the algorithm of a GEMM, chosen at its first call.
Candidates are timed with the whole epilogue fused, with the parts that cuBLASLt fuses most often, and with none. The
time includes our kernels for the unfused parts. cuBLASLt lacks some epilogues for some shapes, and a fused epilogue may
be slower: not all algorithms that split k have it.
An algorithm is only kept if its results agree with a reference: cuBLASLt's first choice without a fused epilogue. A
sample of the reference's elements is compared with plain dot products. If they differ, the next candidate is the
reference: cuBLAS 12.8 and 13.1 have first choices that leave out the end of k where k is not a multiple of their tile
(facebookexperimental/triton, pull request 2767).
Trials run on the GEMM's own operands, just before its first run, which overwrites their output. An output with += is
restored from a copy, and sums go to scratch.
The autotune cache is a file of choices: with the same cache, every run has the same algorithms and the same bits.
Shapes that rarely repeat (Exec.skip_autotune) get cuBLASLt's first choice, untimed. With TRAIN_GPT2_AUTOTUNE=0 all
shapes do, and there is no cache: the way out if a candidate crashes.
With several ranks, rank 0 times and owns the cache. The other ranks receive each choice by broadcast: all ranks run the
same GEMMs in the same order.
*/
#pragma once
#include "llmc/common/cache_file.h"
#include "llmc/common/check.h"
#include "llmc/common/cuda_common.cuh"
#include "llmc/common/device.cuh"
#include "llmc/common/device.h"
#include "llmc/common/floatx.h"
#include "llmc/matmul_cublaslt.cuh"
#include "llmc/matmul_kernels.cuh"
#include "llmc/ops.h"

// ---- candidates

enum {
    LT_HEURISTICS = 16,
    LT_SPLIT_BASES = 4,
    LT_SPLITS = 12,
    LT_CANDIDATES = LT_HEURISTICS + LT_SPLIT_BASES * LT_SPLITS
};
enum { LT_FEW_TILES = 256, LT_TILE_AREA = 128 * 128, LT_LEAST_DEPTH = 128 };
static const int32_t lt_splits[LT_SPLITS] = {2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 16};
static const float LT_HOPELESS = 1.3f;  // an algorithm this many times slower than the best is not timed again

static inline bool lt_supports(const CudaMatmuls *mm, const LtAlgorithm *alg, const cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulHeuristicResult_t r = {};
    return alg->desc &&
           cublasLtMatmulAlgoCheck(mm->handle, alg->desc, alg->a, alg->b, alg->d, alg->d, algo, &r) ==
               CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= mm->workspace_bytes;
}

// Appends split-k variants of the first algorithms of the list; returns the new length. An output of few tiles, such as
// a weight gradient, leaves most of the GPU idle unless k is split too. Partial sums are added in fp32.
static inline int lt_add_split_k(const CudaMatmuls *mm, const LtAlgorithm *alg, cublasLtMatmulAlgo_t *list, int count) {
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int bases = min(count, (int)LT_SPLIT_BASES);
    if ((int64_t)alg->key.m * alg->key.n > (int64_t)LT_FEW_TILES * LT_TILE_AREA) { return count; }
    for (int i = 0; i < bases * LT_SPLITS; i++) {
        int32_t parts = lt_splits[i % LT_SPLITS];
        cublasLtMatmulAlgo_t *algo = &list[count];
        *algo = list[i / LT_SPLITS];
        if (alg->key.k < parts * LT_LEAST_DEPTH) { continue; }
        bool set = cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts) ==
                       CUBLAS_STATUS_SUCCESS &&
                   cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                        sizeof scheme) == CUBLAS_STATUS_SUCCESS;
        if (set && lt_supports(mm, alg, algo)) { count++; }
    }
    return count;
}

// limits for the heuristic: workspace, fp32 reductions, the alignment of the operands
static inline cublasLtMatmulPreference_t lt_preference(const CudaMatmuls *mm, const LtAlgorithm *alg) {
    cublasLtMatmulPreference_t wish;
    uint64_t bytes = mm->workspace_bytes;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    LT_CALL(mm, alg, cublasLtMatmulPreferenceCreate, &wish);
    LT_CALL(mm, alg, cublasLtMatmulPreferenceSetAttribute, wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
            sizeof bytes);
    LT_CALL(mm, alg, cublasLtMatmulPreferenceSetAttribute, wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme,
            sizeof scheme);
    static const cublasLtMatmulPreferenceAttributes_t alignment[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++) {
        uint32_t multiple = (uint32_t)alg->key.aligned[i];
        LT_CALL(mm, alg, cublasLtMatmulPreferenceSetAttribute, wish, alignment[i], &multiple, sizeof multiple);
    }
    return wish;
}

// Fills the list with algorithms to time, cuBLASLt's first choice first. Returns their number: 0 if cuBLASLt has none.
static inline int lt_candidates(const CudaMatmuls *mm, const LtAlgorithm *alg, cublasLtMatmulAlgo_t *list) {
    if (!alg->desc) { return 0; }
    cublasLtMatmulHeuristicResult_t found[LT_HEURISTICS];
    cublasLtMatmulPreference_t wish = lt_preference(mm, alg);
    int returned = 0, count = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(mm->handle, alg->desc, alg->a, alg->b, alg->d, alg->d, wish,
                                                           LT_HEURISTICS, found, &returned);
    cublasLtMatmulPreferenceDestroy(wish);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) { return 0; }
    if (status != CUBLAS_STATUS_SUCCESS) {
        lt_note(mm, alg, status, "cublasLtMatmulAlgoGetHeuristic");
        return 0;
    }
    for (int i = 0; i < returned; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) { list[count++] = found[i].algo; }
    }
    return lt_add_split_k(mm, alg, list, count);
}

// ---- results of a trial, as a sample of elements on the host

enum { LT_SAMPLES = 65536, LT_RESULTS = 3 };  // of each of D, the activation's input and the column sums
enum { LT_DOTS = 1024 };  // plain dot products. At k = 65536 they read 4 GB, 32 bytes for an element of an operand

// The relative L2 difference that two right algorithms may have; lt_difference has the rule for a single element. bf16
// results differ by up to three roundings (unfused product, activation's input and output), together sqrt(3) 2^-8 =
// 0.007. TF32 products differ by roundings of 2^-10. Sums of 10^5 products differ by 2^-24 sqrt(10^5) = 2e-5, and by
// 10^5 / 8 2^-24 = 7e-4 if tensor cores truncate them.
// Plain dot products are nearer to exact sums than any algorithm: no TF32, no rounding to bf16, k / 32 products a lane.
// The same bounds hold for them. A GEMM without the last t of k products is off by sqrt(t / k): 0.022 for 32 of 65,568.
static inline double lt_tolerance(const CudaMatmuls *mm, const LtKey *key) {
    if (key->out == DT_BF16) { return 0.01; }
    return DT_FLOATX == DT_BF16 ? 1e-3 : mm->compute == CUBLAS_COMPUTE_32F ? 1e-4 : 2e-3;
}

// The larger of the relative L2 difference and a tenth of the largest difference of an element, relative to the element
// plus the root mean square of all: one wrong tile has few of the samples, and hardly changes the L2 difference.
// Infinite if only one of the two has a NaN or an infinity.
static inline double lt_result_difference(const float *got, const float *wanted, size_t count) {
    double difference = 0, norm = 0, largest = 0;
    for (size_t k = 0; k < count; k++) {
        double x = (double)got[k], y = (double)wanted[k];
        if (x == y || (isnan(x) && isnan(y))) { continue; }
        if (!isfinite(x) || !isfinite(y)) { return INFINITY; }
        difference += (x - y) * (x - y);
    }
    for (size_t k = 0; k < count; k++) { norm += isfinite(wanted[k]) ? (double)wanted[k] * (double)wanted[k] : 0; }
    if (difference == 0) { return 0; }
    double mean = sqrt(norm / (double)count);
    for (size_t k = 0; k < count; k++) {
        double x = (double)got[k], y = (double)wanted[k];
        if (x != y && isfinite(x)) { largest = fmax(largest, fabs(x - y) / (fabs(y) + mean)); }
    }
    return fmax(norm > 0 ? sqrt(difference / norm) : INFINITY, largest / 10);
}

// ---- trials

enum { LT_REPEATS = 2, LT_RUNS = 3 };  // the best of LT_REPEATS means, each over LT_RUNS runs

// the trials of a GEMM
typedef struct {
    LtMatmul trial;  // the GEMM, with its sums in scratch
    void *saved;     // +=: a copy of the output before the first trial; else NULL
    size_t saved_bytes;
    size_t samples;                                   // elements to compare: LT_DOTS of the reference, then LT_SAMPLES
    size_t count[LT_RESULTS];                         // elements compared; 0: the GEMM does not have this result
    float (*wanted)[LT_SAMPLES], (*got)[LT_SAMPLES];  // (LT_RESULTS,LT_SAMPLES): results of the reference; of a trial
    size_t flush_bytes;                               // of the workspace, overwritten to empty L2
    cudaEvent_t begin, end;
} LtTrials;

// results = up to t->samples elements of each result of the trial's last run; t->count = their numbers
static inline void lt_sample(const CudaMatmuls *mm, LtTrials *t, float (*results)[LT_SAMPLES]) {
    const LtMatmul *p = &t->trial;
    int parts = p->key.parts;
    size_t m = (size_t)p->key.m, n = (size_t)p->key.n, sums = parts & LT_SUM_D ? m : parts & LT_SUM_B ? n : 0;
    const size_t count[LT_RESULTS] = {m * n, parts & LT_ACTIVATION ? m * n : 0, sums};
    void *const from[LT_RESULTS] = {p->d, p->aux, p->sums.at};
    const DType type[LT_RESULTS] = {(DType)p->key.out, DT_FLOATX, p->sums.dtype};
    for (int i = 0; i < LT_RESULTS; i++) {
        t->count[i] = min(count[i], t->samples);
        if (count[i] == 0) { continue; }
        matmul_launch_sample(mm, mm->scratch, from[i], type[i], count[i], t->count[i]);
        CUDA_CHECK(
            cudaMemcpyAsync(results[i], mm->scratch, t->count[i] * sizeof(float), cudaMemcpyDeviceToHost, mm->stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(mm->stream));
}

static inline void lt_restore_output(const CudaMatmuls *mm, const LtTrials *t) {
    if (!t->saved) { return; }
    CUDA_CHECK(cudaMemcpyAsync(t->trial.d, t->saved, t->saved_bytes, cudaMemcpyDeviceToDevice, mm->stream));
}

// Stops the run if the wait for a trial failed. After an illegal access every CUDA call fails, and each start would run
// the same algorithm again.
static inline void lt_check_trial(const CudaMatmuls *mm, const LtAlgorithm *alg, cudaError_t error) {
    if (error == cudaSuccess) { return; }
    char text[LT_KEY_TEXT];
    run_error("matmul (%s): %s while cuBLASLt's algorithms were timed; TRAIN_GPT2_AUTOTUNE=0 trains without autotuning",
              lt_key_text(text, mm, &alg->key), cudaGetErrorString(error));
}

// Runs an algorithm without our kernels; false if cuBLASLt refuses it. The first run of an algorithm loads its kernel.
static inline bool lt_try(const CudaMatmuls *mm, const LtAlgorithm *alg, const LtTrials *t,
                          const cublasLtMatmulAlgo_t *algo) {
    cublasStatus_t status = lt_run(mm, alg, &t->trial, algo);
    lt_check_trial(mm, alg, cudaStreamSynchronize(mm->stream));
    return status == CUBLAS_STATUS_SUCCESS;
}

// Microseconds of a run, the best of a few means; infinite if the algorithm fails. An algorithm much slower than
// `so_far`, the best time of the others, is run no further.
// Before each run a memset of the workspace, 60 MiB or more, empties L2 or most of it, as other operations do in
// training: with operands and partial sums in L2, an algorithm that splits k looks too good. The host launches while
// the memset runs, so the time holds no launch latency.
// Each run adds to an output with +=; lt_run_afresh and lt_trials_end restore it.
static inline float lt_time(const CudaMatmuls *mm, const LtAlgorithm *alg, const LtTrials *t,
                            const cublasLtMatmulAlgo_t *algo, float so_far) {
    float best = INFINITY;
    if (!lt_try(mm, alg, t, algo)) { return INFINITY; }
    for (int i = 0; i < LT_REPEATS && (i == 0 || best <= LT_HOPELESS * so_far); i++) {
        float sum = 0, milliseconds;
        for (int run = 0; run < LT_RUNS; run++) {
            CUDA_CHECK(cudaMemsetAsync(mm->workspace, 0, t->flush_bytes, mm->stream));
            CUDA_CHECK(cudaEventRecord(t->begin, mm->stream));
            if (lt_run(mm, alg, &t->trial, algo) != CUBLAS_STATUS_SUCCESS) { return INFINITY; }
            matmul_launch_unfused(mm, alg, &t->trial);
            CUDA_CHECK(cudaEventRecord(t->end, mm->stream));
            lt_check_trial(mm, alg, cudaEventSynchronize(t->end));
            CUDA_CHECK(cudaEventElapsedTime(&milliseconds, t->begin, t->end));
            sum += milliseconds;
        }
        best = fminf(best, 1000 * sum / (float)LT_RUNS);
    }
    return best;
}

// Runs an algorithm on the operands as they were before the trials. The other outputs hold NaN before, and the sums
// zeros: an algorithm that leaves something out does not find the results of the one before it. False if it fails.
static inline bool lt_run_afresh(const CudaMatmuls *mm, const LtAlgorithm *alg, LtTrials *t,
                                 const cublasLtMatmulAlgo_t *algo, float (*results)[LT_SAMPLES]) {
    const LtMatmul *p = &t->trial;
    size_t elements = (size_t)p->key.m * (size_t)p->key.n;
    if (t->saved) {
        lt_restore_output(mm, t);
    } else {
        CUDA_CHECK(cudaMemsetAsync(p->d, 0xff, elements * dtype_size((DType)p->key.out), mm->stream));
    }
    if (p->key.parts & LT_ACTIVATION) {
        CUDA_CHECK(cudaMemsetAsync(p->aux, 0xff, elements * sizeof(floatX), mm->stream));
    }
    CUDA_CHECK(cudaMemsetAsync(mm->trial_sums, 0, LT_SUMS_BYTES, mm->stream));
    if (!lt_try(mm, alg, t, algo)) { return false; }
    matmul_launch_unfused(mm, alg, &t->trial);
    lt_sample(mm, t, results);
    return true;
}

// True if the algorithm's results agree with t->wanted; if not, prints a note.
static inline bool lt_agrees(const CudaMatmuls *mm, const LtAlgorithm *alg, LtTrials *t,
                             const cublasLtMatmulAlgo_t *algo) {
    if (!lt_run_afresh(mm, alg, t, algo, t->got)) { return false; }
    double difference = 0, tolerance = lt_tolerance(mm, &alg->key);
    for (int i = 0; i < LT_RESULTS; i++) {
        difference = fmax(difference, lt_result_difference(t->got[i], t->wanted[i], t->count[i]));
    }
    if (difference <= tolerance) { return true; }
    char text[LT_KEY_TEXT];
    fprintf(stderr,
            "train_gpt2: matmul (%s): an algorithm of cuBLASLt is off by %.2g, more than the tolerance of %.2g, and is "
            "skipped\n",
            lt_key_text(text, mm, &alg->key), difference, tolerance);
    return false;
}

static inline void lt_refuse_capture(const CudaMatmuls *mm, const LtKey *key) {
    char text[LT_KEY_TEXT];
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(cudaStreamIsCapturing(mm->stream, &capture));
    if (capture == cudaStreamCaptureStatusNone) { return; }
    run_error("matmul (%s) ran first during the capture of a CUDA graph, where it cannot be timed; run it once before",
              lt_key_text(text, mm, key));
}

// Times the candidates. Keeps the fastest one that agrees and is below `so_far` in alg->algo. Returns its time,
// infinite if there is none. All candidates write to the GEMM's output.
static inline float lt_time_all(const CudaMatmuls *mm, LtAlgorithm *alg, LtTrials *t, float so_far) {
    cublasLtMatmulAlgo_t list[LT_CANDIDATES];
    int count = lt_candidates(mm, alg, list);
    float best = INFINITY;
    for (int i = 0; i < count; i++) {
        float microseconds = lt_time(mm, alg, t, &list[i], so_far);
        if (microseconds >= so_far || !lt_agrees(mm, alg, t, &list[i])) { continue; }
        best = so_far = microseconds;
        alg->algo = list[i];
    }
    return best;
}

// *alg = candidate `number` with these parts fused, from 0; alg->desc is NULL if there are fewer. Returns their number.
static inline int lt_candidate(const CudaMatmuls *mm, LtAlgorithm *alg, const LtMatmul *p, int fused, int number) {
    cublasLtMatmulAlgo_t list[LT_CANDIDATES];
    alg->fused = fused;
    lt_create_descriptors(mm, alg, p);
    int count = lt_candidates(mm, alg, list);
    if (number < count) {
        alg->algo = list[number];
    } else {
        lt_destroy_descriptors(alg);
    }
    return count;
}

// *alg = the reference: the first candidate that runs and agrees with plain dot products, without the epilogue.
// t->wanted = its results, with the epilogue. False if there is none.
static inline bool lt_find_reference(const CudaMatmuls *mm, LtTrials *t, LtAlgorithm *alg) {
    cublasLtMatmulAlgo_t list[LT_CANDIDATES];
    int count = lt_candidates(mm, alg, list), parts = t->trial.key.parts, at = 0;
    size_t dots = min((size_t)LT_DOTS, (size_t)t->trial.key.m * (size_t)t->trial.key.n);
    t->samples = dots;
    t->trial.key.parts = 0;
    matmul_launch_dots(mm, mm->scratch, &t->trial, dots);
    CUDA_CHECK(cudaMemcpyAsync(t->wanted[0], mm->scratch, dots * sizeof(float), cudaMemcpyDeviceToHost, mm->stream));
    CUDA_CHECK(cudaStreamSynchronize(mm->stream));
    while (at < count && !lt_agrees(mm, alg, t, &list[at])) { at++; }
    t->trial.key.parts = parts;
    t->samples = LT_SAMPLES;
    if (at == count) { return false; }
    alg->algo = list[at];
    return lt_run_afresh(mm, alg, t, &alg->algo, t->wanted);
}

// Afterwards an output with = is undefined, and an output with += is unchanged.
static inline void lt_trials_end(const CudaMatmuls *mm, LtTrials *t) {
    lt_restore_output(mm, t);
    CUDA_CHECK(cudaStreamSynchronize(mm->stream));
    CUDA_CHECK(cudaFree(t->saved));
    CUDA_CHECK(cudaEventDestroy(t->begin));
    CUDA_CHECK(cudaEventDestroy(t->end));
    free(t->wanted);
}

// Prepares trials: a copy of an output with +=, and the reference, which stays in *alg. False with alg->desc NULL if
// the library has no right algorithm. False with cuBLASLt's first choice if the GPU has no memory for the copy.
static inline bool lt_trials_begin(const CudaMatmuls *mm, LtTrials *t, LtAlgorithm *alg, const LtMatmul *p) {
    int l2_bytes = 0;
    memset(t, 0, sizeof *t);
    t->trial = *p;
    t->trial.sums.at = mm->trial_sums;
    if (lt_candidate(mm, alg, p, 0, 0) == 0) { return false; }
    t->saved_bytes = p->c == p->d ? (size_t)p->key.m * p->key.n * dtype_size((DType)p->key.out) : 0;
    if (t->saved_bytes && cudaMalloc(&t->saved, t->saved_bytes) != cudaSuccess) {
        cudaGetLastError();
        fprintf(stderr, "train_gpt2: a matmul is not autotuned: no GPU memory for a copy of its output, %zu bytes\n",
                t->saved_bytes);
        return false;
    }
    if (t->saved) { CUDA_CHECK(cudaMemcpyAsync(t->saved, p->d, t->saved_bytes, cudaMemcpyDeviceToDevice, mm->stream)); }
    t->wanted = (float(*)[LT_SAMPLES])xmalloc(2 * LT_RESULTS * sizeof *t->wanted);
    t->got = t->wanted + LT_RESULTS;
    CUDA_CHECK(cudaEventCreate(&t->begin));
    CUDA_CHECK(cudaEventCreate(&t->end));
    CUDA_CHECK(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, cuda_current_device()));
    t->flush_bytes = min(mm->workspace_bytes, 2 * (size_t)l2_bytes);
    if (lt_find_reference(mm, t, alg)) { return true; }
    char text[LT_KEY_TEXT];
    fprintf(stderr,
            "train_gpt2: matmul (%s): no algorithm of cuBLASLt gives right results; the program's own kernel, which is "
            "slower, is used\n",
            lt_key_text(text, mm, &alg->key));
    lt_trials_end(mm, t);
    lt_destroy_descriptors(alg);
    return false;
}

// The parts of an epilogue that cuBLASLt may fuse. Of the activations it has GELU alone. In fp32 its GELU takes tanh
// from the special function unit, 2^-11 off: GELU and its gradient would be 6e-5 to 3e-4 off.
static inline int lt_fusible(const LtKey *key) {
    bool fuses = key->function == NO_ACTIVATION || (key->function == GELU && DT_FLOATX == DT_BF16);
    return fuses ? key->parts : key->parts & LT_BIAS;
}

enum { LT_FUSIONS = 3 };

// the epilogues to try: all parts fused, bias and the activation's slope alone, none. Returns their number.
static inline int lt_fusions(int fusions[LT_FUSIONS], const LtKey *key) {
    int all = lt_fusible(key), some = all & (LT_BIAS | LT_SLOPE), count = 0;
    if (all != some) { fusions[count++] = all; }
    if (some) { fusions[count++] = some; }
    fusions[count++] = 0;
    return count;
}

static inline void lt_choose_plain(LtAlgorithm *alg) {
    alg->fused = alg->key.parts & ~LT_SUMS;  // matmul_plain_kernel's
}

// *alg = choice alg->next_choice, untimed: cuBLASLt's candidates with the first fusion, from the library's first choice
// on, then those with the next fusion, then our own GEMM, which also does what the library cannot (alg->desc is NULL).
// FallbackKernels: with none fused, or our own GEMM. A second call takes the next choice. Runs no work and allocates
// nothing on the GPU, so it is safe during the capture of a CUDA graph.
static inline void lt_choose_untimed(const CudaMatmuls *mm, LtAlgorithm *alg, const LtMatmul *p) {
    int fusions[LT_FUSIONS], count = lt_fusions(fusions, &p->key), skip = alg->next_choice++;
    for (int i = mm->fallback == MATMUL_FASTEST ? 0 : count - 1; i < count && mm->fallback != MATMUL_PLAIN; i++) {
        int candidates = lt_candidate(mm, alg, p, fusions[i], skip);
        if (skip < candidates) { return; }
        skip -= candidates;
    }
    lt_choose_plain(alg);
}

// *alg = the fastest epilogue and algorithm that agree. Returns the microseconds; infinite if none was kept, and *alg
// is then cuBLASLt's first choice or our own GEMM.
static inline float lt_autotune(const CudaMatmuls *mm, LtAlgorithm *alg, const LtMatmul *p) {
    int fusions[LT_FUSIONS], count = lt_fusions(fusions, &p->key);
    float best = INFINITY;
    LtTrials trials;
    lt_refuse_capture(mm, &p->key);
    if (!lt_trials_begin(mm, &trials, alg, p)) {
        if (!alg->desc) { lt_choose_plain(alg); }
        return INFINITY;
    }
    for (int i = 0; i < count; i++) {
        LtAlgorithm candidate = {};
        candidate.key = p->key;
        candidate.fused = fusions[i];
        lt_create_descriptors(mm, &candidate, &trials.trial);
        float microseconds = lt_time_all(mm, &candidate, &trials, best);
        if (microseconds < best) {
            lt_destroy_descriptors(alg);
            *alg = candidate;
            best = microseconds;
        } else {
            lt_destroy_descriptors(&candidate);
        }
    }
    lt_trials_end(mm, &trials);
    return best;
}

// ---- the autotune cache
// Key: GPU, cuBLASLt's version, lt_key_text. Value: fused parts (LT_BIAS .. as a number), the algorithm's bytes in hex,
// microseconds. Tabs separate them.

#define AUTOTUNE_CACHE "TRAIN_GPT2_AUTOTUNE_CACHE"  // the environment variable that names another file

enum { AUTOTUNE_KEY = LT_KEY_TEXT + 320, AUTOTUNE_VALUE = 2 * sizeof(cublasLtMatmulAlgo_t) + 64 };  // bytes

// Adds an entry at once: a run that is killed and resumed computes the same bits. A failure is reported once and does
// not stop the run.
static inline void autotune_save(CudaMatmuls *mm, const char *key, const LtAlgorithm *alg, float microseconds) {
    if (!mm->cache_path) { return; }
    char value[AUTOTUNE_VALUE];
    int used = snprintf(value, sizeof value, "%d\t", alg->fused);
    for (size_t i = 0; i < sizeof alg->algo; i++) {
        used += snprintf(value + used, sizeof value - used, "%02x", reinterpret_cast<const uint8_t *>(&alg->algo)[i]);
    }
    snprintf(value + used, sizeof value - used, "\t%.2f", (double)microseconds);
    int error = cache_add(mm->cache_path, key, value);
    if (error) {
        fprintf(stderr,
                "train_gpt2: could not write %s: %s; the next run will time its matmuls again (" AUTOTUNE_CACHE
                " names another file)\n",
                mm->cache_path, strerror(error));
        free(mm->cache_path);
        mm->cache_path = NULL;
    }
}

// ---- the algorithm of a GEMM

// *alg from a cached or received choice; false if this cuBLASLt cannot run it
static inline bool lt_algorithm_from(const CudaMatmuls *mm, LtAlgorithm *alg, const LtMatmul *p, int fused,
                                     cublasLtMatmulAlgo_t algo) {
    if (fused & ~lt_fusible(&p->key)) { return false; }
    alg->fused = fused;
    alg->algo = algo;
    lt_create_descriptors(mm, alg, p);
    if (lt_supports(mm, alg, &alg->algo)) { return true; }
    lt_destroy_descriptors(alg);
    return false;
}

// Returns this rank's choice: cached, else untimed or timed, and then cached. Fallback kernels use no cache or timing.
static inline LtAlgorithm lt_choose(CudaMatmuls *mm, const LtMatmul *p, bool timed) {
    LtAlgorithm alg = {};
    alg.key = p->key;
    if (mm->fallback != MATMUL_FASTEST) {
        lt_choose_untimed(mm, &alg, p);
        return alg;
    }
    char text[LT_KEY_TEXT], key[AUTOTUNE_KEY], value[AUTOTUNE_VALUE];
    int fused;
    snprintf(key, sizeof key, "%s\t%zu\t%s", mm->device_name, cublasLtGetVersion(), lt_key_text(text, mm, &alg.key));
    if (mm->cache_path && cache_find(mm->cache_path, key, value, sizeof value)) {
        if (parse_number_and_hex(value, &fused, &alg.algo, sizeof alg.algo) &&
            lt_algorithm_from(mm, &alg, p, fused, alg.algo)) {
            return alg;
        }
        fprintf(stderr, "train_gpt2: %s has a damaged entry for matmul (%s), which is chosen anew\n", mm->cache_path,
                text);
    }
    alg.untimed = !timed;
    if (!timed) {
        lt_choose_untimed(mm, &alg, p);
        return alg;
    }
    float microseconds = lt_autotune(mm, &alg, p);
    if (!isinf(microseconds)) { autotune_save(mm, key, &alg, microseconds); }
    return alg;
}

// Gives rank 0's choice to all ranks. A rank whose GPU or library cannot run it chooses by itself. A later timed choice
// of rank 0 replaces either.
static inline LtAlgorithm lt_choose_together(CudaMatmuls *mm, const LtMatmul *p, bool timed) {
    if (!mm->broadcast) { return lt_choose(mm, p, timed); }
    LtAlgorithm alg = {}, choice = {};
    if (timed) { lt_refuse_capture(mm, &p->key); }
    if (mm->is_root) { choice = lt_choose(mm, p, timed); }
    mm->broadcast(&choice, sizeof choice, mm->broadcast_context);
    if (mm->is_root) { return choice; }
    alg.key = p->key;
    alg.fused = choice.fused;
    bool same = memcmp(&choice.key, &p->key, sizeof choice.key) == 0;
    bool has_kernel = choice.desc != NULL;  // rank 0's descriptors mean nothing here, but NULL says: no kernel
    if (same && has_kernel && !lt_algorithm_from(mm, &alg, p, choice.fused, choice.algo)) { same = false; }
    if (!same) { alg = lt_choose(mm, p, timed); }
    alg.untimed = choice.untimed;
    return alg;
}

// Returns this GEMM's algorithm, chosen at its first call. If `timed`, an untimed choice is made again, with timing.
static inline LtAlgorithm *lt_algorithm(CudaMatmuls *mm, LtMatmul *p, bool timed) {
    const void *pointers[LT_POINTERS] = {p->a, p->b, p->c, p->d, p->bias ? (const void *)p->bias : p->sums.at, p->aux};
    for (int i = 0; i < LT_POINTERS; i++) {
        uintptr_t bits = (uintptr_t)pointers[i] | LT_ALIGNMENT;
        p->key.aligned[i] = (int)(bits & (~bits + 1));
    }
    int at = 0;
    while (at < mm->num_algorithms && memcmp(&mm->algorithms[at].key, &p->key, sizeof p->key) != 0) { at++; }
    bool known = at < mm->num_algorithms;
    if (known && !(timed && mm->algorithms[at].untimed)) { return &mm->algorithms[at]; }
    LtAlgorithm alg = lt_choose_together(mm, p, timed);
    if (known) {
        lt_destroy_descriptors(&mm->algorithms[at]);
    } else {
        mm->algorithms = (LtAlgorithm *)xrealloc(mm->algorithms, (size_t)++mm->num_algorithms * sizeof *mm->algorithms);
    }
    mm->algorithms[at] = alg;
    return &mm->algorithms[at];
}

// workspace: device memory aligned to 256 bytes; 32 to 64 MiB above LT_SCRATCH_BYTES let cuBLASLt split k.
// device_name: the GPU's, for the autotune cache. tf32: the fp32 build may round inputs to TF32. cache_path: the
// autotune cache, NULL or "" for none. The caller keeps stream and workspace. Freed by cuda_matmuls_free.
static inline CudaMatmuls *cuda_matmuls_create(cudaStream_t stream, void *workspace, size_t workspace_bytes,
                                               const char *device_name, bool tf32, const char *cache_path) {
    CudaMatmuls *mm = (CudaMatmuls *)xcalloc(1, sizeof *mm);
    const char *autotune = getenv("TRAIN_GPT2_AUTOTUNE");
    if (workspace_bytes < (size_t)LT_SCRATCH_BYTES) {
        run_error("the matmul workspace has %zu bytes, expected %d or more", workspace_bytes, (int)LT_SCRATCH_BYTES);
    }
    mm->stream = stream;
    mm->compute = tf32 && DT_FLOATX == DT_F32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    mm->workspace = workspace;
    mm->workspace_bytes = (workspace_bytes - LT_SCRATCH_BYTES) / 256 * 256;
    mm->scratch = (float *)((char *)workspace + mm->workspace_bytes);
    mm->trial_sums = mm->scratch + LT_SUMS_BYTES / sizeof(float);
    mm->device_name = xstrdup(device_name);
    mm->autotune = !autotune || strcmp(autotune, "0") != 0;
    mm->cache_path = cache_path && *cache_path && mm->autotune ? xstrdup(cache_path) : NULL;
    LT_CALL(mm, NULL, cublasLtCreate, &mm->handle);
    return mm;
}

// From now on all ranks use rank 0's algorithms; they must run the same GEMMs in the same order. Rank 0's
// TRAIN_GPT2_AUTOTUNE counts for all: a rank on another machine may lack the variable, and would wait for broadcasts.
// broadcast(bytes, count, context) sends rank 0's bytes to all ranks. Every rank calls it equally often, and never
// during the capture of a CUDA graph.
static inline void cuda_matmuls_share(CudaMatmuls *mm, bool is_root,
                                      void (*broadcast)(void *bytes, size_t count, void *context), void *context) {
    mm->is_root = is_root;
    mm->broadcast = broadcast;
    mm->broadcast_context = context;
    broadcast(&mm->autotune, sizeof mm->autotune, context);
    if (is_root) { return; }
    free(mm->cache_path);
    mm->cache_path = NULL;
}

static inline void cuda_matmuls_free(CudaMatmuls *mm) {
    for (int i = 0; i < mm->num_algorithms; i++) { lt_destroy_descriptors(&mm->algorithms[i]); }
    cublasLtDestroy(mm->handle);
    free(mm->device_name);
    free(mm->cache_path);
    free(mm->algorithms);
    free(mm);
}
