/*
Plans of matmul.cuh's products: each is described and its algorithm chosen once, and kept; a call then only sets
pointers. An epilogue may be fused wholly, partly or not at all: cuBLASLt does not have every epilogue for every shape,
and a fused one may be slower, since not all algorithms that split k have it.
Every way is timed, rest included, on the product it is for, just before that runs for the first time. These runs write
to the product's own outputs, which it overwrites afterwards; an output that it adds to is put back from a copy, and
sums go to scratch. Picks are kept in a file, so that later runs of the program choose the same: with the same picks,
the same bits. Shapes that seldom come again (Exec.rare_shapes) get what cuBLASLt holds to be best, untimed.
Where several processes compute alike, the first one times and has the file, and all others take what it picks: they
meet the same products in the same order.
defines: lt_plan, cuda_matmuls_create, cuda_matmuls_share, cuda_matmuls_free
*/
#pragma once
#include "llmc/matmul_kernels.cuh"

// ---- the choice of an algorithm

enum {
    LT_HEURISTICS = 16,
    LT_SPLIT_BASES = 4,
    LT_SPLITS = 7,
    LT_CANDIDATES = LT_HEURISTICS + LT_SPLIT_BASES * LT_SPLITS
};
enum { LT_FEW_TILES = 256, LT_TILE_AREA = 128 * 128, LT_LEAST_DEPTH = 128, LT_REPEATS = 4 };
static const float LT_HOPELESS = 1.3f;  // a run that takes so many times as long as the best is the algorithm's last

static inline bool lt_fits(const CudaMatmuls *mm, const LtPlan *plan, const cublasLtMatmulAlgo_t *algo) {
    cublasLtMatmulHeuristicResult_t r = {};
    return cublasLtMatmulAlgoCheck(mm->handle, plan->desc, plan->a, plan->b, plan->d, plan->d, algo, &r) ==
               CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= mm->workspace_bytes;
}

// An output of few tiles leaves most of the GPU idle unless k is split as well: weight gradients are such. Adds split
// variants of the first `count` algorithms to the list and returns its new length. Parts are summed in fp32.
static inline int lt_add_splits(const CudaMatmuls *mm, const LtPlan *plan, cublasLtMatmulAlgo_t *list, int count) {
    static const int32_t splits[LT_SPLITS] = {2, 3, 4, 6, 8, 12, 16};
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int bases = min(count, (int)LT_SPLIT_BASES);
    if ((int64_t)plan->key.m * plan->key.n > (int64_t)LT_FEW_TILES * LT_TILE_AREA) { return count; }
    for (int i = 0; i < bases * LT_SPLITS; i++) {
        int32_t parts = splits[i % LT_SPLITS];
        cublasLtMatmulAlgo_t *algo = &list[count];
        *algo = list[i / LT_SPLITS];
        if (plan->key.k < parts * LT_LEAST_DEPTH) { continue; }
        bool set = cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts) ==
                       CUBLAS_STATUS_SUCCESS &&
                   cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                        sizeof scheme) == CUBLAS_STATUS_SUCCESS;
        if (set && lt_fits(mm, plan, algo)) { count++; }
    }
    return count;
}

// The algorithms worth timing, what cuBLASLt holds to be the best first. Returns how many; 0 if it can't do this.
static inline int lt_candidates(const CudaMatmuls *mm, const LtPlan *plan, cublasLtMatmulAlgo_t *list) {
    cublasLtMatmulHeuristicResult_t found[LT_HEURISTICS];
    cublasLtMatmulPreference_t wish;
    uint64_t bytes = mm->workspace_bytes;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int returned = 0, count = 0;
    LT_CALL(mm, plan, cublasLtMatmulPreferenceCreate, &wish);
    LT_CALL(mm, plan, cublasLtMatmulPreferenceSetAttribute, wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
            sizeof bytes);
    LT_CALL(mm, plan, cublasLtMatmulPreferenceSetAttribute, wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme,
            sizeof scheme);
    static const cublasLtMatmulPreferenceAttributes_t alignment[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++) {
        uint32_t multiple = (uint32_t)plan->key.aligned[i];
        LT_CALL(mm, plan, cublasLtMatmulPreferenceSetAttribute, wish, alignment[i], &multiple, sizeof multiple);
    }
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(mm->handle, plan->desc, plan->a, plan->b, plan->d, plan->d,
                                                           wish, LT_HEURISTICS, found, &returned);
    cublasLtMatmulPreferenceDestroy(wish);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) { return 0; }
    lt_check(mm, plan, status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < returned; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) { list[count++] = found[i].algo; }
    }
    return lt_add_splits(mm, plan, list, count);
}

// The shortest of a few runs, in microseconds; infinite if the algorithm does not run after all. So far the best took
// `so_far`: what is much slower is run no more.
static inline float lt_time(const CudaMatmuls *mm, const LtPlan *plan, const LtProduct *p,
                            const cublasLtMatmulAlgo_t *algo, float so_far, cudaEvent_t begin, cudaEvent_t end) {
    float best = INFINITY;
    for (int i = 0; i <= LT_REPEATS; i++) {
        if (i > 1 && best > LT_HOPELESS * so_far) { break; }
        CUDA_CHECK(cudaEventRecord(begin, mm->stream));
        if (lt_run(mm, plan, p, algo) != CUBLAS_STATUS_SUCCESS) { return INFINITY; }
        lt_run_rest(mm, plan, p);
        CUDA_CHECK(cudaEventRecord(end, mm->stream));
        CUDA_CHECK(cudaEventSynchronize(end));
        float milliseconds;
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
        if (i > 0) { best = fminf(best, 1000 * milliseconds); }  // the first run loads the kernel
    }
    return best;
}

static inline void lt_refuse_capture(const CudaMatmuls *mm, const LtKey *key) {
    char words[LT_WORDS];
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(cudaStreamIsCapturing(mm->stream, &capture));
    if (capture == cudaStreamCaptureStatusNone) { return; }
    lt_words(words, sizeof words, mm, key);
    run_error(
        "matrix product (%s) came first while a CUDA graph was recorded, when it cannot be timed; run it once before",
        words);
}

// Puts the plan's fastest algorithm into plan->algo and returns its microseconds: infinite if none runs or is faster
// than `so_far`; 0 with the one that cuBLASLt holds to be best, if it is not to be timed (plan->provisional) or there
// is no memory to. Outputs hold anything afterwards, but those that the product adds to are as they were.
static inline float lt_fastest(const CudaMatmuls *mm, LtPlan *plan, const LtProduct *p, float so_far) {
    cublasLtMatmulAlgo_t list[LT_CANDIDATES];
    int count = lt_candidates(mm, plan, list);
    if (count == 0) { return INFINITY; }
    plan->algo = list[0];
    if (plan->provisional) { return 0; }
    lt_refuse_capture(mm, &p->key);
    LtProduct trial = *p;
    trial.sums.at = mm->trial_sums;
    size_t bytes = p->c == p->d ? (size_t)p->key.m * p->key.n * dtype_size((DType)p->key.out) : 0;
    void *saved = NULL;
    cudaEvent_t begin, end;
    if (bytes && cudaMalloc(&saved, bytes) != cudaSuccess) {
        cudaGetLastError();
        fprintf(stderr, "train_gpt2: a matrix product is not tuned, as its %zu bytes of output found no room\n", bytes);
        return 0;
    }
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    if (saved) { CUDA_CHECK(cudaMemcpyAsync(saved, p->d, bytes, cudaMemcpyDeviceToDevice, mm->stream)); }
    float best = INFINITY;
    for (int i = 0; i < count; i++) {
        float microseconds = lt_time(mm, plan, &trial, &list[i], so_far, begin, end);
        if (microseconds >= so_far) { continue; }
        best = so_far = microseconds;
        plan->algo = list[i];
    }
    if (saved) { CUDA_CHECK(cudaMemcpyAsync(p->d, saved, bytes, cudaMemcpyDeviceToDevice, mm->stream)); }
    CUDA_CHECK(cudaStreamSynchronize(mm->stream));
    CUDA_CHECK(cudaFree(saved));
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return best;
}

// ---- the pick file, a line a product, with tabs between: GPU, cuBLASLt's version, product, the parts that are fused
// (LT_BIAS .. as a number), the algorithm's bytes in hex, microseconds: 0 where it could not be timed. Of two lines for
// the same product the latter counts.

// Takes a line apart, which it changes; pick->name points into it. False if it is not one of ours.
static inline bool lt_parse_pick(LtPick *pick, char *line) {
    char *field[3], *end;  // from the last: microseconds, algorithm, fused
    for (int i = 0; i < 3; i++) {
        field[i] = strrchr(line, '\t');
        if (!field[i]) { return false; }
        *field[i]++ = 0;
    }
    const char *time = field[0], *hex = field[1], *fused = field[2];
    pick->microseconds = strtof(time, &end);
    if (end == time || *end != '\n' || !(pick->microseconds >= 0)) { return false; }
    pick->fused = (int)strtol(fused, &end, 10);
    if (end == fused || *end) { return false; }
    if (strspn(hex, "0123456789abcdef") != 2 * sizeof pick->algo || hex[2 * sizeof pick->algo]) { return false; }
    for (size_t i = 0; i < sizeof pick->algo; i++) { sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&pick->algo + i); }
    char *version = strchr(line, '\t');
    if (!version || !strchr(version + 1, '\t')) { return false; }
    pick->name = line;
    return true;
}

// a new pick of that name, otherwise empty
static inline LtPick *lt_add_pick(CudaMatmuls *mm, const char *name) {
    mm->picks = (LtPick *)xrealloc(mm->picks, (size_t)(mm->num_picks + 1) * sizeof *mm->picks);
    LtPick *pick = &mm->picks[mm->num_picks++];
    *pick = LtPick{};
    pick->name = xstrdup(name);
    return pick;
}

static inline LtPick *lt_find_pick(const CudaMatmuls *mm, const char *name) {
    for (int i = 0; i < mm->num_picks; i++) {
        if (strcmp(mm->picks[i].name, name) == 0) { return &mm->picks[i]; }
    }
    return NULL;
}

// adds the file's picks to those known; first: says which lines are none
static inline void lt_load_picks(CudaMatmuls *mm, bool first) {
    FILE *file = mm->pick_path ? fopen(mm->pick_path, "r") : NULL;
    if (!file) { return; }  // the first run has none
    char *line = NULL;
    size_t room = 0;
    for (int number = 1; getline(&line, &room, file) > 0; number++) {
        LtPick pick;
        if (lt_parse_pick(&pick, line)) {
            LtPick *known = lt_find_pick(mm, pick.name);
            if (!known) { known = lt_add_pick(mm, pick.name); }
            pick.name = known->name;
            *known = pick;
        } else if (first) {
            fprintf(stderr, "train_gpt2: %s:%d is not a line of picks and is left out\n", mm->pick_path, number);
        }
    }
    free(line);
    fclose(file);
}

// Adds a line to the file: at once, so that a run that is killed and resumed computes the same bits, and with one
// write, so that processes do not mix theirs. Trouble is just said, once.
static inline void lt_save_pick(CudaMatmuls *mm, const LtPick *pick) {
    if (!mm->pick_path) { return; }
    FILE *file = fopen(mm->pick_path, "a");
    if (file) {
        fprintf(file, "%s\t%d\t", pick->name, pick->fused);
        const unsigned char *byte = (const unsigned char *)&pick->algo;
        for (size_t i = 0; i < sizeof pick->algo; i++) { fprintf(file, "%02x", byte[i]); }
        fprintf(file, "\t%.2f\n", (double)pick->microseconds);
    }
    if (!file || fclose(file) != 0) {
        fprintf(stderr, "train_gpt2: could not write %s: %s; the next run will time its products again\n",
                mm->pick_path, strerror(errno));
        free(mm->pick_path);
        mm->pick_path = NULL;
    }
}

// ---- plans

// The plan of the file's pick, if there is one that this cuBLASLt can run.
static inline bool lt_plan_from_pick(const CudaMatmuls *mm, LtPlan *plan, const LtProduct *p, const LtPick *pick) {
    if (!pick || (pick->fused & ~p->key.parts)) { return false; }
    plan->fused = pick->fused;
    plan->algo = pick->algo;
    lt_describe(mm, plan, p);
    if (lt_fits(mm, plan, &plan->algo)) { return true; }
    lt_undescribe(plan);
    return false;
}

// Tries the whole epilogue, then the parts that are easiest to have, then none, and keeps the fastest as *plan. Returns
// its microseconds: infinite, with a plan that has no descriptor, if cuBLASLt has nothing; 0 if nothing was timed.
static inline float lt_plan_by_timing(const CudaMatmuls *mm, LtPlan *plan, const LtProduct *p) {
    const int whole = p->key.parts, ways[] = {whole, whole & (LT_BIAS | LT_DGELU), 0};
    float best = INFINITY;
    plan->fused = whole & ~LT_SUMS;  // lt_tile_kernel's
    for (int i = 0; i < 3 && best > 0; i++) {
        if (i > 0 && ways[i] == ways[i - 1]) { continue; }
        LtPlan way = {};
        way.key = p->key;
        way.provisional = plan->provisional;
        way.fused = ways[i];
        lt_describe(mm, &way, p);
        float microseconds = lt_fastest(mm, &way, p, best);
        if (microseconds < best) {
            lt_undescribe(plan);
            *plan = way;
            best = microseconds;
        } else {
            lt_undescribe(&way);
        }
    }
    return best;
}

// this process's own choice
static inline LtPlan lt_choose_plan(CudaMatmuls *mm, const LtProduct *p, bool timed) {
    LtPlan plan = {};
    plan.key = p->key;
    char words[LT_WORDS], name[LT_WORDS + 320];
    lt_words(words, sizeof words, mm, &plan.key);
    snprintf(name, sizeof name, "%s\t%zu\t%s", mm->device_name, cublasLtGetVersion(), words);
    LtPick *known = lt_find_pick(mm, name);
    if (!known) {
        lt_load_picks(mm, false);  // another model or process may have found it meanwhile
        known = lt_find_pick(mm, name);
    }
    if (lt_plan_from_pick(mm, &plan, p, known)) { return plan; }
    plan.provisional = !timed;
    float microseconds = lt_plan_by_timing(mm, &plan, p);
    if (!timed || isinf(microseconds)) { return plan; }
    if (!known) { known = lt_add_pick(mm, name); }
    known->fused = plan.fused, known->algo = plan.algo, known->microseconds = microseconds;
    lt_save_pick(mm, known);
    return plan;
}

// what the first process tells the others of its plan
typedef struct {
    LtKey key;
    int fused, described, provisional;  // described: cuBLASLt can do it
    cublasLtMatmulAlgo_t algo;
} LtNews;

// The first process's choice, or, where this GPU or library cannot run it, its own; either is made again when that is.
static inline LtPlan lt_make_plan(CudaMatmuls *mm, const LtProduct *p, bool timed) {
    if (!mm->tell) { return lt_choose_plan(mm, p, timed); }
    LtPlan plan = {};
    LtNews news = {};
    if (timed) { lt_refuse_capture(mm, &p->key); }
    if (mm->is_first) {
        plan = lt_choose_plan(mm, p, timed);
        news.key = plan.key, news.algo = plan.algo;
        news.fused = plan.fused, news.described = plan.desc != NULL, news.provisional = plan.provisional;
    }
    mm->tell(&news, sizeof news, mm->tell_of);
    if (mm->is_first) { return plan; }
    plan.key = p->key;
    plan.fused = news.fused;
    LtPick pick = {};
    pick.fused = news.fused, pick.algo = news.algo;
    bool same = memcmp(&news.key, &p->key, sizeof news.key) == 0;
    if (same && news.described && !lt_plan_from_pick(mm, &plan, p, &pick)) { same = false; }
    if (!same) { plan = lt_choose_plan(mm, p, timed); }
    plan.provisional = news.provisional;
    return plan;
}

// The product's plan. If there is none it is made: timed, or, what only a shape that seldom comes is content with, not.
static inline const LtPlan *lt_plan(CudaMatmuls *mm, LtProduct *p, bool timed) {
    const void *pointers[LT_POINTERS] = {p->a, p->b, p->c, p->d, p->bias ? (const void *)p->bias : p->sums.at, p->aux};
    for (int i = 0; i < LT_POINTERS; i++) {
        uintptr_t bits = (uintptr_t)pointers[i] | LT_ALIGNMENT;
        p->key.aligned[i] = (int)(bits & (~bits + 1));
    }
    int at = 0;
    while (at < mm->num_plans && memcmp(&mm->plans[at].key, &p->key, sizeof p->key) != 0) { at++; }
    bool known = at < mm->num_plans;
    if (known && !(timed && mm->plans[at].provisional)) { return &mm->plans[at]; }
    LtPlan plan = lt_make_plan(mm, p, timed);
    if (known) {
        lt_undescribe(&mm->plans[at]);
    } else {
        mm->plans = (LtPlan *)xrealloc(mm->plans, (size_t)++mm->num_plans * sizeof *mm->plans);
    }
    mm->plans[at] = plan;
    return &mm->plans[at];
}

// workspace: device memory at a multiple of 256 bytes; 32 to 64 MiB above LT_SCRATCH_BYTES let cuBLASLt split k.
// device_name: the GPU's, for the pick file. tf32: whether the fp32 build may round products' inputs to TF32.
// pick_path: the pick file, NULL for none. The stream and the workspace stay the caller's; freed by cuda_matmuls_free.
static inline CudaMatmuls *cuda_matmuls_create(cudaStream_t stream, void *workspace, size_t workspace_bytes,
                                               const char *device_name, bool tf32, const char *pick_path) {
    CudaMatmuls *mm = (CudaMatmuls *)xcalloc(1, sizeof *mm);
    if (workspace_bytes < (size_t)LT_SCRATCH_BYTES) {
        run_error("the workspace of matrix products has %zu bytes; it needs %d", workspace_bytes,
                  (int)LT_SCRATCH_BYTES);
    }
    mm->stream = stream;
    mm->compute = tf32 && DT_FLOATX == DT_F32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    mm->workspace = workspace;
    mm->workspace_bytes = (workspace_bytes - LT_SCRATCH_BYTES) / 256 * 256;
    mm->scratch = (float *)((char *)workspace + mm->workspace_bytes);
    mm->trial_sums = mm->scratch + LT_SUMS_BYTES / sizeof(float);
    mm->device_name = xstrdup(device_name);
    mm->pick_path = pick_path ? xstrdup(pick_path) : NULL;
    LT_CALL(mm, NULL, cublasLtCreate, &mm->handle);
    lt_load_picks(mm, true);
    return mm;
}

static inline void lt_free_picks(CudaMatmuls *mm) {
    for (int i = 0; i < mm->num_picks; i++) { free(mm->picks[i].name); }
    free(mm->picks);
    mm->picks = NULL;
    mm->num_picks = 0;
}

// From now on all processes that meet the same products use the first one's plans. tell: gives the first one's `count`
// bytes to all, each of which calls it as often; it is not called while work is recorded.
static inline void cuda_matmuls_share(CudaMatmuls *mm, bool is_first, void (*tell)(void *bytes, size_t count, void *of),
                                      void *of) {
    mm->is_first = is_first;
    mm->tell = tell, mm->tell_of = of;
    if (is_first) { return; }
    lt_free_picks(mm);  // and no file from now on
    free(mm->pick_path);
    mm->pick_path = NULL;
}

static inline void cuda_matmuls_free(CudaMatmuls *mm) {
    for (int i = 0; i < mm->num_plans; i++) { lt_undescribe(&mm->plans[i]); }
    lt_free_picks(mm);
    cublasLtDestroy(mm->handle);
    free(mm->device_name);
    free(mm->pick_path);
    free(mm->plans);
    free(mm);
}
