/*
Linear layers on the GPU (matmul*.cuh) against the C reference implementations, on the emulated runtime and cuBLASLt.
Covers every operation and epilogue, missing epilogues, the choice of algorithms, the autotune cache, and capture.
Costs are emulated: a test that wants one algorithm or epilogue to be the fastest sets the slowdown of the others.
*/
#include "testing.h"
#include "llmc/matmul_cpu.h"
#include "llmc/pdl.cuh"
#include "llmc/common/rng.h"
#include <string>
#include <vector>

// ---- a GPU, and arrays on it

enum { WORKSPACE_BYTES = LT_SCRATCH_BYTES + (8 << 20) };

struct Gpu {
    Exec exec = {};
    CudaExec cuda = {};
    CudaMatmuls *matmuls = nullptr;
    cudaStream_t stream = nullptr;
    void *workspace = nullptr;
    explicit Gpu(const char *cache_path = nullptr, bool tf32 = false) {
        CUDA_CHECK(cudaStreamCreate(&stream));
        CUDA_CHECK(cudaMalloc(&workspace, (size_t)WORKSPACE_BYTES));
        matmuls = cuda_matmuls_create(stream, workspace, WORKSPACE_BYTES, "a GPU", tf32, cache_path);
        cuda.stream = stream, cuda.matmuls = matmuls, exec.cuda = &cuda;
    }
    Gpu(const Gpu &) = delete;
    Gpu &operator=(const Gpu &) = delete;
    ~Gpu() {
        cuda_matmuls_free(matmuls);
        cudaFree(workspace);
        cudaStreamDestroy(stream);
    }
    Exec *ex() { return &exec; }
};

// device memory, which the host reads as well; starts `skip` elements after a multiple of 256 bytes
template <class T> struct DeviceArray {
    T *memory = nullptr, *at;
    size_t n;
    explicit DeviceArray(size_t n_, size_t skip) : n(n_) {
        CUDA_CHECK(cudaMalloc(&memory, (n + skip) * sizeof(T)));
        at = memory + skip;
    }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray &operator=(const DeviceArray &) = delete;
    ~DeviceArray() { cudaFree(memory); }
    void fill(const char *name) {
        for (size_t i = 0; i < n; i++) {
            double x = rng_normal(1, (uint64_t)(name[0] + 256 * name[1] + 65536 * name[2]), i);
            if constexpr (std::is_same_v<T, bf16>) {
                at[i] = float_to_bf16((float)x);
            } else {
                at[i] = (T)x;
            }
        }
    }
    void poison() { memset((void *)at, 0xff, n * sizeof(T)); }
};

template <class T> static double value(T x) {
    if constexpr (std::is_same_v<T, bf16>) {
        return bf16_to_float(x);
    } else {
        return x;
    }
}

// a parameter gradient in fp32 and in bf16
struct GradientArray {
    DeviceArray<real> wide;
    DeviceArray<bf16> narrow;
    explicit GradientArray(size_t n, size_t skip) : wide(n, skip), narrow(n, skip) {}
    void fill(const char *name) {
        narrow.fill(name);
        for (size_t i = 0; i < narrow.n; i++) { wide.at[i] = bf16_to_float(narrow.at[i]); }
    }
    void poison() { wide.poison(), narrow.poison(); }
    // the fp32 or the bf16 array; NULL if not wanted
    Gradient given(bool wanted, bool rounded) const {
        void *at = rounded ? (void *)narrow.at : (void *)wide.at;
        return {wanted ? at : NULL, rounded ? DT_BF16 : DT_REAL};
    }
};

template <class T, class W>
static void assert_close(const char *what, const DeviceArray<T> &got, const DeviceArray<W> &wanted, double tolerance) {
    std::vector<double> a(got.n), b(got.n);
    for (size_t i = 0; i < got.n; i++) { a[i] = value(got.at[i]), b[i] = value(wanted.at[i]); }
    double error = relative_error(a.data(), b.data(), got.n);
    if (!(error <= tolerance)) { fail_msg("%s: relative error %.3g, tolerance %.3g", what, error, tolerance); }
}

// ---- a layer, computed by the kernels and by the reference implementation

// twice the largest error seen; 1 ulp for bf16 results
static const double REAL_TOLERANCE = 2e-6;
static const double BF16_TOLERANCE = 0x1p-8, FLOATX_TOLERANCE = DT_FLOATX == DT_BF16 ? BF16_TOLERANCE : 2e-6;

struct Results {
    DeviceArray<floatX> out, pre, dinp;
    GradientArray dweight, dbias, dpre_bias;
    Results(size_t N, size_t C, size_t OC, size_t skip)
        : out(N * OC, skip), pre(N * OC, skip), dinp(N * C, skip), dweight(OC * C, skip), dbias(OC, skip),
          dpre_bias(C, skip) {}
    // Outputs hold NaN before they are set, and numbers before they are added to.
    void reset(GradMode mode) {
        out.poison(), pre.poison(), dinp.poison();
        if (mode == GRAD_ADD) {
            dweight.fill("dweight"), dbias.fill("dbias"), dpre_bias.fill("dpre_bias");
        } else {
            dweight.poison(), dbias.poison(), dpre_bias.poison();
        }
    }
};

struct Layer {
    int N, C, OC;
    DeviceArray<floatX> in, weight, bias, residual, dout, pre;
    Results got, wanted;
    std::string title;
    explicit Layer(int N_, int C_, int OC_, size_t skip = 0)
        : N(N_), C(C_), OC(OC_), in((size_t)N * C, skip), weight((size_t)OC * C, skip), bias((size_t)OC, skip),
          residual((size_t)N * OC, skip), dout((size_t)N * OC, skip), pre((size_t)N * C, skip),
          got((size_t)N, (size_t)C, (size_t)OC, skip), wanted((size_t)N, (size_t)C, (size_t)OC, 0) {
        in.fill("in"), weight.fill("weight"), bias.fill("bias"), residual.fill("residual"), dout.fill("dout");
        pre.fill("pre");
        title =
            std::to_string(N) + "x" + std::to_string(C) + "x" + std::to_string(OC) + " skip " + std::to_string(skip);
    }
};

static std::string case_title(const Layer &l, const char *what, int which) {
    return l.title + " " + what + " case " + std::to_string(which);
}

static void check_forward(Gpu *gpu, Layer *l, int which) {
    const floatX *bias = which & 1 ? l->bias.at : NULL, *residual = which & 2 ? l->residual.at : NULL;
    Exec ex = {};
    l->got.reset(GRAD_SET);
    cuda_matmul_forward(l->got.out.at, l->in.at, l->weight.at, bias, residual, no_activation, l->N, l->C, l->OC,
                        gpu->ex());
    cpu_matmul_forward(l->wanted.out.at, l->in.at, l->weight.at, bias, residual, no_activation, l->N, l->C, l->OC, &ex);
    assert_close(case_title(*l, "forward", which).c_str(), l->got.out, l->wanted.out, FLOATX_TOLERANCE);
}

static void gelu_forward(Gpu *gpu, Layer *l, const Results &r, const floatX *bias) {
    Activation gelu = {GELU, r.pre.at, no_gradient};
    cuda_matmul_forward(r.out.at, l->in.at, l->weight.at, bias, NULL, gelu, l->N, l->C, l->OC, gpu->ex());
}

static void check_gelu_forward(Gpu *gpu, Layer *l, int which) {
    const floatX *bias = which & 1 ? l->bias.at : NULL;
    Activation gelu = {GELU, l->wanted.pre.at, no_gradient};
    Exec ex = {};
    l->got.reset(GRAD_SET);
    gelu_forward(gpu, l, l->got, bias);
    cpu_matmul_forward(l->wanted.out.at, l->in.at, l->weight.at, bias, NULL, gelu, l->N, l->C, l->OC, &ex);
    assert_close(case_title(*l, "gelu's input", which).c_str(), l->got.pre, l->wanted.pre, FLOATX_TOLERANCE);
    assert_close(case_title(*l, "gelu", which).c_str(), l->got.out, l->wanted.out, FLOATX_TOLERANCE);
}

// bits of a backward case. ROUNDED: gradients are bf16. IN_PLACE: dinp aliases in. TRAINING: everything a step needs.
enum {
    ADD = 1,
    WITH_DINP = 2,
    WITH_DWEIGHT = 4,
    WITH_DBIAS = 8,
    WITH_GELU = 16,
    WITH_PRE_BIAS = 32,
    ROUNDED = 64,
    IN_PLACE = 128,
    TRAINING = WITH_DINP | WITH_DWEIGHT | WITH_DBIAS | WITH_GELU | WITH_PRE_BIAS
};

static void run_backward(Gpu *gpu, Layer *l, int which) {
    Results *r = &l->got;
    bool rounded = which & ROUNDED;
    if (which & IN_PLACE) { r->dinp.fill("in"); }
    Gradient dpre_bias = r->dpre_bias.given(which & WITH_PRE_BIAS, rounded);
    Activation gelu = {GELU, l->pre.at, dpre_bias};
    cuda_matmul_backward(
        which & WITH_DINP ? r->dinp.at : NULL, r->dweight.given(which & WITH_DWEIGHT, rounded),
        r->dbias.given(which & WITH_DBIAS, rounded), l->dout.at, which & IN_PLACE ? r->dinp.at : l->in.at, l->weight.at,
        which & WITH_GELU ? gelu : no_activation, which & ADD ? GRAD_ADD : GRAD_SET, l->N, l->C, l->OC, gpu->ex());
}

// The reference gradients are fp32: bf16 gradients may differ by one rounding.
static void run_reference_backward(Layer *l, int which) {
    Exec ex = {};
    Results *r = &l->wanted;
    Activation gelu = {GELU, l->pre.at, r->dpre_bias.given(true, false)};
    cpu_matmul_backward(r->dinp.at, r->dweight.given(true, false), r->dbias.given(true, false), l->dout.at, l->in.at,
                        l->weight.at, which & WITH_GELU ? gelu : no_activation, which & ADD ? GRAD_ADD : GRAD_SET, l->N,
                        l->C, l->OC, &ex);
}

// Asserts that an output which was not requested is unchanged.
template <class T> static void assert_untouched(const DeviceArray<T> &x, GradMode mode) {
    DeviceArray<T> before(x.n, 0);
    before.poison();
    if (mode == GRAD_ADD) {
        GradientArray values(x.n, 0);
        values.fill("dbias");
        if constexpr (std::is_same_v<T, bf16>) {
            memcpy((void *)before.at, values.narrow.at, x.n * sizeof(T));
        } else {
            memcpy((void *)before.at, values.wide.at, x.n * sizeof(T));
        }
    }
    assert_memory_equal(x.at, before.at, x.n * sizeof(T));
}

// tolerance: of the sums, before they are rounded to bf16
static void assert_gradient_close(const std::string &what, const GradientArray &got, const GradientArray &wanted,
                                  bool rounded, double tolerance) {
    if (rounded) {
        assert_close(what.c_str(), got.narrow, wanted.wide, tolerance + BF16_TOLERANCE);
    } else {
        assert_close(what.c_str(), got.wide, wanted.wide, tolerance);
    }
}

static void check_backward(Gpu *gpu, Layer *l, int which) {
    GradMode mode = which & ADD ? GRAD_ADD : GRAD_SET;
    bool rounded = which & ROUNDED;
    std::string title = case_title(*l, "backward", which);
    l->got.reset(mode), l->wanted.reset(mode);
    run_backward(gpu, l, which);
    run_reference_backward(l, which);
    if (which & WITH_DINP) { assert_close((title + " dinp").c_str(), l->got.dinp, l->wanted.dinp, FLOATX_TOLERANCE); }
    if (which & WITH_DWEIGHT) {
        assert_gradient_close(title + " dweight", l->got.dweight, l->wanted.dweight, rounded, REAL_TOLERANCE);
    }
    if (which & WITH_DBIAS) {
        assert_gradient_close(title + " dbias", l->got.dbias, l->wanted.dbias, rounded, REAL_TOLERANCE);
    }
    if (rounded || !(which & WITH_DBIAS)) { assert_untouched(l->got.dbias.wide, mode); }
    if (!rounded || !(which & WITH_DBIAS)) { assert_untouched(l->got.dbias.narrow, mode); }
    if (which & WITH_PRE_BIAS) {  // column sums of dinp, which is rounded first
        assert_gradient_close(title + " dpre_bias", l->got.dpre_bias, l->wanted.dpre_bias, rounded, FLOATX_TOLERANCE);
    }
}

// a whole training step, then subsets, then in-place and bf16 variants
static const int BACKWARD_CASES[] = {TRAINING,
                                     TRAINING & ~WITH_PRE_BIAS,
                                     WITH_DINP | WITH_DWEIGHT | WITH_DBIAS,
                                     WITH_DINP,
                                     WITH_DWEIGHT,
                                     WITH_DBIAS,
                                     TRAINING | IN_PLACE,
                                     TRAINING | ROUNDED | IN_PLACE,
                                     WITH_DWEIGHT | ROUNDED,
                                     WITH_DBIAS | ROUNDED};

static void check_all(Gpu *gpu, Layer *l) {
    for (int which = 0; which < 4; which++) { check_forward(gpu, l, which); }
    for (int which = 0; which < 2; which++) { check_gelu_forward(gpu, l, which); }
    for (int which : BACKWARD_CASES) {
        check_backward(gpu, l, which);
        check_backward(gpu, l, which | ADD);
    }
}

// A failed assertion leaves its test by longjmp, past the destructors of Gpu and Layer. Therefore each test starts on
// an empty device with default settings.
static int reset_device(void **state) {
    (void)state;
    simt::reset_runtime();
    simt::settings() = simt::Settings();
    simt::lt_settings() = simt::LtSettings();
    simt::lt_counts() = simt::LtCounts();
    unsetenv("TRAIN_GPT2_AUTOTUNE");
    return 0;
}

// after each test
static int check_leaks(void **state) {
    (void)state;
    assert_int_equal(simt::lt_counts().objects, 0);
    assert_int_equal(simt::runtime().device_bytes_used, 0);
    return 0;
}

static std::string contents(const char *path) { return read_file(path, nullptr); }

// Runs `work` and returns the text that it writes to stderr.
template <class Work> static std::string stderr_of(Work work) {
    const char *path = temp_path("stderr");
    int saved = redirect(STDERR_FILENO, path, NEW_FILE);
    work();
    restore(STDERR_FILENO, saved);
    return contents(path);
}

static bool contains(const std::string &text, const char *words) { return text.find(words) != std::string::npos; }

// ---- errors. First, since a child that is forked would lack OpenMP's threads

static void run_layer(Gpu *gpu, Layer *l, int which) {
    Results *r = &l->got;
    gelu_forward(gpu, l, *r, l->bias.at);
    cuda_matmul_forward(r->out.at, l->in.at, l->weight.at, l->bias.at, l->residual.at, no_activation, l->N, l->C, l->OC,
                        gpu->ex());
    run_backward(gpu, l, TRAINING | which);
}

static void first_run(void *gpu) {
    Layer l(48, 64, 96);
    check_forward((Gpu *)gpu, &l, 1);
}

// An algorithm that crashes ends the run at each start, unless nothing is timed.
TEST(test_crash_in_a_trial_names_the_way_out) {
    for (int late : {0, 1}) {
        Gpu gpu;
        simt::settings().late_streams = late;
        simt::lt_settings().crashing_algorithm = 1;
        assert_stops(EXIT_RUN_FAILED,
                     "aligned=16,16,16,16,16,16): an illegal memory access was encountered while cuBLASLt's algorithms "
                     "were timed; TRAIN_GPT2_AUTOTUNE=0 ",
                     first_run, &gpu);
    }
    simt::settings().late_streams = 0;
    setenv("TRAIN_GPT2_AUTOTUNE", "0", 1);
    Gpu gpu;
    first_run(&gpu);
}

static void first_in_capture(void *argument) {
    Gpu *gpu = (Gpu *)argument;
    Layer layer(48, 64, 96);
    CUDA_CHECK(cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeGlobal));
    run_layer(gpu, &layer, 0);
}

TEST(test_first_in_capture_is_refused) {
    Gpu gpu;
    assert_stops(EXIT_RUN_FAILED, "during the capture of a CUDA graph", first_in_capture, &gpu);
}

// ---- bias gradients by our own kernels

// several rounds of a block with rows left over; single elements; less than a round; one row
static const int SUMS[][2] = {{17000, 8}, {600, 1057}, {29, 264}, {1, 40}};

static void check_column_sums(Gpu *gpu, int rows, int cols, GradMode mode) {
    DeviceArray<floatX> x((size_t)rows * cols, 0);
    DeviceArray<real> sums((size_t)cols, 0);
    DeviceArray<double> wanted((size_t)cols, 0);
    x.fill("terms"), sums.fill("sums");
    for (int col = 0; col < cols; col++) { wanted.at[col] = mode == GRAD_ADD ? sums.at[col] : 0; }
    for (size_t i = 0; i < x.n; i++) { wanted.at[i % (size_t)cols] += value(x.at[i]); }
    matmul_launch_column_sums(gpu->matmuls, Gradient{sums.at, DT_REAL}, x.at, rows, cols, mode);
    assert_close("column sums", sums, wanted, REAL_TOLERANCE);
}

TEST(test_column_sums) {
    Gpu gpu;
    for (const int *shape : SUMS) {
        for (GradMode mode : {GRAD_SET, GRAD_ADD}) { check_column_sums(&gpu, shape[0], shape[1], mode); }
    }
}

// ---- results, with and without cuBLASLt

static const int SHAPES[][3] = {{48, 64, 96}, {272, 64, 32}, {16, 136, 72}, {33, 67, 37}, {70, 66, 34},
                                {1, 64, 128}, {1, 19, 23},   {2, 1, 3},     {3, 5, 1}};

// Aligned, with pointers at odd elements (no bf16 algorithm supports them, and 16-byte loads are impossible), and
// without cuBLASLt.
TEST(test_results) {
    for (int how = 0; how < 3; how++) {
        int before = simt::lt_counts().matmuls;
        simt::lt_settings().no_algorithms = how == 2;
        for (const int *shape : SHAPES) {
            Gpu gpu;
            Layer layer(shape[0], shape[1], shape[2], how == 1);
            check_all(&gpu, &layer);
        }
        assert_int_equal(simt::lt_counts().matmuls == before, how == 2 || (how == 1 && DT_FLOATX == DT_BF16));
    }
}

// Without the epilogues in `bits`, which `missing` needs, the plans fuse the other parts of LT_BIAS and LT_SLOPE.
static void check_without(uint32_t bits, int missing, Layer *layer) {
    simt::lt_settings().epilogues_off = bits;
    simt::lt_settings().slow_epilogues = {CUBLASLT_EPILOGUE_DEFAULT};
    Gpu gpu;
    check_all(&gpu, layer);
    for (int i = 0; i < gpu.matmuls->num_algorithms; i++) {
        const LtAlgorithm *plan = &gpu.matmuls->algorithms[i];
        int wanted = plan->key.parts, rest = lt_fusible(&plan->key) & (LT_BIAS | LT_SLOPE) & ~missing;
        if (plan->desc && (wanted & missing)) { assert_int_equal(plan->fused, rest); }
    }
}

TEST(test_missing_epilogues) {
    Layer layer(48, 64, 96), odd(33, 67, 37), unaligned(33, 64, 72, 1);
    check_without(CUBLASLT_EPILOGUE_BIAS, LT_BIAS, &layer);
    check_without(32, LT_ACTIVATION, &layer);
    check_without(64, LT_SLOPE | LT_SUM_D, &layer);
    check_without(16, LT_SUM_D, &layer);
    check_without(CUBLASLT_EPILOGUE_BGRADB, LT_SUM_B, &layer);
    check_without(~1u, ~0, &layer);
    check_without(~1u, ~0, &odd);
    check_without(~1u, ~0, &unaligned);
}

static void run_fused(Gpu *gpu, Layer *l) {
    Results *r = &l->got;
    simt::lt_settings().slow_epilogues = {CUBLASLT_EPILOGUE_DEFAULT};
    cuda_matmul_forward(r->out.at, l->in.at, l->weight.at, l->bias.at, l->residual.at, no_activation, l->N, l->C, l->OC,
                        gpu->ex());
    if (DT_FLOATX == DT_BF16) {
        simt::lt_settings().slow_epilogues = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                              CUBLASLT_EPILOGUE_DGELU};
    }
    gelu_forward(gpu, l, *r, l->bias.at);
    if (DT_FLOATX == DT_BF16) { simt::lt_settings().slow_epilogues = {CUBLASLT_EPILOGUE_DEFAULT}; }
    run_backward(gpu, l, TRAINING);
    run_backward(gpu, l, ADD | WITH_DWEIGHT | WITH_DBIAS);
}

// The fused epilogue is used where it is faster: one product, plus one of our kernels to accumulate sums. cuBLASLt does
// not compute the column sums of bf16 products in fp32: these take two of our kernels. In fp32 cuBLASLt's GELU is
// inaccurate, and is never used, nor is its gradient with the column sums: these take four of our kernels.
TEST(test_everything_is_fused) {
    Gpu gpu;
    Layer l(48, 64, 96);
    l.got.reset(GRAD_SET);
    run_fused(&gpu, &l);
    uint64_t launches = simt::runtime().launches;
    run_fused(&gpu, &l);
    assert_int_equal(simt::runtime().launches - launches, DT_FLOATX == DT_BF16 ? 3 : 5);
    const int gelu = DT_FLOATX == DT_BF16 ? LT_BIAS | LT_ACTIVATION : LT_BIAS;
    const int dgelu = DT_FLOATX == DT_BF16 ? LT_SLOPE : 0;
    const int parts[] = {LT_BIAS, gelu, LT_SUM_B, dgelu, LT_SUM_B};
    assert_int_equal(gpu.matmuls->num_algorithms, 5);
    for (int i = 0; i < 5; i++) { assert_int_equal(gpu.matmuls->algorithms[i].fused, parts[i]); }
}

#ifdef PRECISION_BF16
// cuBLASLt computes bf16 gradients that are set. Column sums that are added to a bf16 gradient come from two of our
// kernels: sums from cuBLASLt would be rounded twice.
TEST(test_bf16_gradients_are_fused) {
    Gpu gpu;
    Layer l(48, 64, 96);
    const int cases[] = {TRAINING | ROUNDED, ADD | ROUNDED | WITH_DWEIGHT | WITH_DBIAS, ADD | ROUNDED | TRAINING};
    const int launched[] = {0, 2, 4};
    for (int i = 0; i < 3; i++) {
        bool sums = !(cases[i] & ADD);
        simt::lt_settings().slow_epilogues = {CUBLASLT_EPILOGUE_DEFAULT};
        if (sums) { simt::lt_settings().slow_epilogues.push_back(CUBLASLT_EPILOGUE_DGELU); }
        l.got.reset(cases[i] & ADD ? GRAD_ADD : GRAD_SET);
        run_backward(&gpu, &l, cases[i]);
        uint64_t launches = simt::runtime().launches;
        run_backward(&gpu, &l, cases[i]);
        assert_int_equal(simt::runtime().launches - launches, launched[i]);
    }
}
#endif

// An fp32 bias gradient is the fp32 sum of the stored dinp, whichever algorithm and epilogue are fastest.
TEST(test_precision_does_not_depend_on_time) {
    const std::vector<uint32_t> slow[] = {{CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DGELU},
                                          {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DGELU_BGRAD},
                                          {CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD}};
    for (const std::vector<uint32_t> &epilogues : slow) {
        simt::lt_settings().slow_epilogues = epilogues;
        Gpu gpu;
        Layer l(48, 64, 96);
        l.got.reset(GRAD_SET);
        run_backward(&gpu, &l, TRAINING);
        DeviceArray<real> sums((size_t)l.C, 0);
        for (int c = 0; c < l.C; c++) {
            double sum = 0;
            for (int n = 0; n < l.N; n++) { sum += value(l.got.dinp.at[n * l.C + c]); }
            sums.at[c] = (real)sum;
        }
        assert_close("dpre_bias", l.got.dpre_bias.wide, sums, REAL_TOLERANCE);
    }
}

static void set_fast(int number, int splits) {
    simt::lt_settings().fast_algorithm = number, simt::lt_settings().fast_splits = splits;
}

// ---- bf16 gradients equal the fp32 sum, old value included, rounded once

static void assert_rounded(const char *what, const GradientArray &got, const DeviceArray<bf16> *old,
                           const GradientArray &set) {
    for (size_t i = 0; i < got.narrow.n; i++) {
        float sum = set.wide.at[i] + (old ? bf16_to_float(old->at[i]) : 0.0f);
        if (got.narrow.at[i].bits != float_to_bf16(sum).bits) {
            fail_msg("%s[%zu] is %.9g, to be rounded from %.9g", what, i, value(got.narrow.at[i]), (double)sum);
        }
    }
}

static void check_rounded_once(int which) {
    Gpu gpu;
    Layer set(48, 64, 96), l(48, 64, 96), old(48, 64, 96);
    GradMode mode = which & ADD ? GRAD_ADD : GRAD_SET;
    set.got.reset(GRAD_SET), l.got.reset(mode), old.got.reset(GRAD_ADD);
    run_backward(&gpu, &set, TRAINING);
    run_backward(&gpu, &l, TRAINING | ROUNDED | which);
    bool add = which & ADD;
    assert_rounded("dweight", l.got.dweight, add ? &old.got.dweight.narrow : NULL, set.got.dweight);
    assert_rounded("dbias", l.got.dbias, add ? &old.got.dbias.narrow : NULL, set.got.dbias);
    if (simt::lt_settings().no_algorithms) {  // with cuBLASLt the sums may be of unrounded products
        assert_rounded("dpre_bias", l.got.dpre_bias, add ? &old.got.dpre_bias.narrow : NULL, set.got.dpre_bias);
    }
}

TEST(test_bf16_gradients_are_rounded_once) {
    set_fast(0, 1);  // one algorithm for both layers: the same order of sums
    if (DT_FLOATX == DT_BF16) { check_rounded_once(0), check_rounded_once(ADD); }
    simt::lt_settings().no_algorithms = true;  // fp32 products with bf16 gradients have no algorithm
    check_rounded_once(0), check_rounded_once(ADD);
}

#ifdef PRECISION_FP32
static double forward_error(bool tf32) {
    Gpu gpu(nullptr, tf32);
    Layer l(33, 128, 64);
    Exec ex = {};
    cuda_matmul_forward(l.got.out.at, l.in.at, l.weight.at, NULL, NULL, no_activation, l.N, l.C, l.OC, gpu.ex());
    cpu_matmul_forward(l.wanted.out.at, l.in.at, l.weight.at, NULL, NULL, no_activation, l.N, l.C, l.OC, &ex);
    std::vector<double> a(l.got.out.at, l.got.out.at + l.got.out.n), b(l.wanted.out.at, l.wanted.out.at + l.got.out.n);
    return relative_error(a.data(), b.data(), a.size());
}

TEST(test_tf32) {
    assert_true(forward_error(false) < REAL_TOLERANCE);
    double rounded = forward_error(true);
    assert_true(rounded > 1e-5 && rounded < 1e-3);
    simt::settings().tf32_truncates = 1;  // SIMT_TF32: twice the error of an input
    assert_true(forward_error(true) > 1.5 * rounded);
}
#endif

// ---- plans and the choice of algorithms

// bits of all results
static std::string bits_of(const Layer &l) {
    std::string bits;
    auto append = [&](const auto &x) { bits.append((const char *)x.at, x.n * sizeof *x.at); };
    append(l.got.out), append(l.got.pre), append(l.got.dinp);
    for (const GradientArray *g : {&l.got.dweight, &l.got.dbias, &l.got.dpre_bias}) {
        append(g->wide), append(g->narrow);
    }
    return bits;
}

static std::string run_and_get_bits(Gpu *gpu, Layer *l, int which) {
    l->got.reset(which & ADD ? GRAD_ADD : GRAD_SET);
    run_layer(gpu, l, which);
    return bits_of(*l);
}

// A plan is made once per shape and alignment, and serves any pointers.
TEST(test_plans_are_reused) {
    Gpu gpu;
    Layer layer(48, 64, 96), elsewhere(48, 64, 96), other(48, 64, 104), unaligned(48, 64, 96, 1);
    std::string first = run_and_get_bits(&gpu, &layer, 0);
    int plans = gpu.matmuls->num_algorithms, heuristics = simt::lt_counts().heuristics,
        matmuls = simt::lt_counts().matmuls;
    assert_true(plans == 4 && first == run_and_get_bits(&gpu, &layer, 0));
    assert_int_equal(gpu.matmuls->num_algorithms, plans);
    assert_int_equal(simt::lt_counts().heuristics, heuristics);
    assert_int_equal(simt::lt_counts().matmuls - matmuls, 4);     // no algorithm is timed again
    assert_true(first == run_and_get_bits(&gpu, &elsewhere, 0));  // other pointers
    assert_int_equal(gpu.matmuls->num_algorithms, plans);
    run_layer(&gpu, &other, 0);
    assert_int_equal(gpu.matmuls->num_algorithms, 2 * plans);
    check_all(&gpu, &unaligned);  // unaligned pointers need a plan of their own
}

static void assert_latest(int number, int splits) {
    assert_int_equal(simt::lt_counts().latest.data[1], number);
    assert_int_equal(simt::lt_counts().latest.data[2], splits);
}

// The weight gradient has k = 1024, which the candidates split in up to 8 parts.
TEST(test_fastest_is_chosen) {
    const int fast[][2] = {{0, 1}, {1, 1}, {0, 2}, {1, 4}, {0, 8}};
    for (const int *f : fast) {
        Gpu gpu;
        Layer l(1024, 16, 8);
        set_fast(f[0], f[1]);
        for (int run = 0; run < 2; run++) {
            check_backward(&gpu, &l, ADD | WITH_DWEIGHT);
            assert_latest(f[0], f[1]);
        }
    }
}

// Algorithm 1 is the faster one of two runs in a row, and the slower one where other operations run in between, as in
// training.
TEST(test_times_are_those_of_a_cold_cache) {
    Gpu gpu;
    Layer l(32, 64, 48);
    set_fast(1, 1);
    simt::lt_settings().cold_algorithm = 1;
    check_forward(&gpu, &l, 0);
    assert_latest(0, 1);
}

static int forward_plans(Gpu *gpu, Layer *l, bool rare, int *matmuls) {
    int before = simt::lt_counts().matmuls;
    gpu->exec.skip_autotune = rare;
    cuda_matmul_forward(l->got.out.at, l->in.at, l->weight.at, l->bias.at, NULL, no_activation, l->N, l->C, l->OC,
                        gpu->ex());
    *matmuls = simt::lt_counts().matmuls - before;
    return gpu->matmuls->num_algorithms;
}

// With skip_autotune a shape takes the heuristic's first algorithm, untimed, and writes nothing to the autotune cache,
// until it comes without skip_autotune. A cached algorithm is used if there is one.
TEST(test_skip_autotune) {
    const char *path = temp_path("rare");
    Layer l(32, 64, 48);
    int matmuls = 0;
    set_fast(1, 1);
    {
        Gpu gpu(path);
        assert_int_equal(forward_plans(&gpu, &l, true, &matmuls), 1);
        assert_int_equal(matmuls, 1);
        assert_int_equal(simt::lt_counts().latest.data[1], 0);
        assert_int_equal(forward_plans(&gpu, &l, true, &matmuls), 1);
        assert_int_equal(matmuls, 1);
        assert_int_equal(access(path, F_OK), -1);
        assert_int_equal(forward_plans(&gpu, &l, false, &matmuls), 1);
        assert_true(matmuls > 1);
        assert_int_equal(simt::lt_counts().latest.data[1], 1);
        assert_int_equal(forward_plans(&gpu, &l, true, &matmuls), 1);
        assert_int_equal(matmuls, 1);
        assert_int_equal(simt::lt_counts().latest.data[1], 1);
    }
    Gpu gpu(path);
    set_fast(0, 1);
    forward_plans(&gpu, &l, true, &matmuls);
    assert_int_equal(matmuls, 1);
    assert_int_equal(simt::lt_counts().latest.data[1], 1);
}

// A fused epilogue is not used if it is slower than a plain product and our kernel.
TEST(test_slow_epilogues_are_not_fused) {
    const uint32_t slow[] = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU_BGRAD,
                             CUBLASLT_EPILOGUE_BGRADB};
    const int parts[] = {LT_BIAS, LT_ACTIVATION | LT_BIAS, LT_SLOPE | LT_SUM_D, LT_SUM_B};
    for (int s = 0; s < 4; s++) {
        simt::lt_settings().slow_epilogues = {slow[s]};
        Gpu gpu;
        Layer layer(32, 64, 48);
        check_all(&gpu, &layer);
        for (int i = 0; i < gpu.matmuls->num_algorithms; i++) {
            assert_int_not_equal(gpu.matmuls->algorithms[i].fused, parts[s]);
        }
    }
}

// Timing a product that adds to its output needs a copy of the output. Without memory for the copy, the first algorithm
// runs untimed and does not go into the autotune cache. A later run with enough memory finds the fastest.
TEST(test_no_room_to_time) {
    const char *path = temp_path("room");
    Gpu gpu(path);
    Layer l(1024, 16, 8);
    l.got.reset(GRAD_ADD), l.wanted.reset(GRAD_ADD);
    size_t room = simt::runtime().device_bytes;
    simt::runtime().device_bytes = simt::runtime().device_bytes_used;
    run_backward(&gpu, &l, ADD | WITH_DWEIGHT);
    simt::runtime().device_bytes = room;
    run_reference_backward(&l, ADD);
    assert_close("dweight", l.got.dweight.wide, l.wanted.dweight.wide, REAL_TOLERANCE);
    Gpu later(path);
    set_fast(1, 1);
    assert_int_equal(access(path, F_OK), -1);
    run_backward(&later, &l, ADD | WITH_DWEIGHT);
    assert_latest(1, 1);
}

// An algorithm or an epilogue with wrong results is not used, however fast it is, and no trace of it is in the results.
TEST(test_wrong_algorithms_are_not_used) {
    for (int how = 0; how < 3; how++) {  // wrong numbers, NaN, nothing written
        Gpu gpu(temp_path(how == 0 ? "wrong" : how == 1 ? "nan" : "silent"));
        Layer l(48, 64, 96);
        set_fast(1, 1);
        simt::lt_settings().broken_algorithm = how < 2 ? 1 : -1;
        simt::lt_settings().broken_to_nan = how == 1;
        simt::lt_settings().silent_algorithm = how == 2 ? 1 : -1;
        std::string said = stderr_of([&] { check_all(&gpu, &l); });
        assert_true(contains(said, "an algorithm of cuBLASLt is off by "));
        for (int i = 0; i < gpu.matmuls->num_algorithms; i++) {
            assert_int_equal(gpu.matmuls->algorithms[i].algo.data[1], 0);
        }
    }
    const uint32_t epilogues[] = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BGRADB, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                  CUBLASLT_EPILOGUE_DGELU};
    const int fused[] = {LT_BIAS, LT_SUM_B, LT_BIAS | LT_ACTIVATION, LT_SLOPE};
    for (int e = 0; e < 4; e++) {
        Gpu gpu;
        Layer l(48, 64, 96);
        simt::lt_settings() = simt::LtSettings();
        simt::lt_settings().slow_epilogues = {CUBLASLT_EPILOGUE_DEFAULT};
        simt::lt_settings().broken_epilogue = epilogues[e];
        stderr_of([&] { check_all(&gpu, &l); });
        for (int i = 0; i < gpu.matmuls->num_algorithms; i++) {
            assert_int_not_equal(gpu.matmuls->algorithms[i].fused, fused[e]);
        }
    }
}

// One wrong element among 65536 is seen, as of a tile that has few samples; right roundings are not.
TEST(test_one_wrong_element_is_seen) {
    std::vector<float> wanted(65536), got;
    for (size_t i = 0; i < wanted.size(); i++) { wanted[i] = (float)rng_normal(1, 2, i); }
    wanted[7] = 0.8f;
    auto difference = [&] { return lt_result_difference(got.data(), wanted.data(), got.size()); };
    got = wanted;
    assert_true(difference() == 0);
    for (float &x : got) { x *= 1 + 0x1p-8f; }
    assert_true(difference() < 0.005);
    got = wanted;
    for (float wrong : {wanted[7] + 1, 0.0f, NAN, INFINITY}) {
        got[7] = wrong;
        assert_true(difference() > 0.01);
    }
    got = wanted, got[7] = wanted[7] = NAN;
    assert_true(difference() == 0);
}

// ---- a library that crashes, refuses what it offers, or is wrong

// The library refuses the algorithms, the epilogues and the heuristics for epilogues of these bits, or one attribute of
// the descriptor. A forward GEMM is then our own, or the library's with `fused`.
static const struct Refusal {
    uint32_t algorithms = 0, epilogues = 0, heuristics = 0;
    int attribute = -1;
    bool only_new = false;  // algorithms in use stay
    bool own = false;
    int fused = LT_BIAS;
} REFUSALS[] = {{.algorithms = 1},
                {.algorithms = 3, .own = true},
                {.epilogues = ~1u, .fused = 0},
                {.heuristics = ~1u, .only_new = true, .fused = 0},
                {.heuristics = ~0u, .only_new = true, .own = true},
                {.attribute = CUBLASLT_MATMUL_DESC_TRANSA, .only_new = true, .own = true},
                {.attribute = CUBLASLT_MATMUL_DESC_EPILOGUE, .only_new = true, .own = true},
                {.attribute = CUBLASLT_MATMUL_DESC_BIAS_POINTER, .fused = 0},
                // fp32 does not fuse GELU
                {.attribute = CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, .only_new = DT_FLOATX == DT_F32},
                {.attribute = CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, .only_new = true}};

// the heuristic answers the first where there is no algorithm; that is no error, and nothing is printed
static const cublasStatus_t STATUSES[] = {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_ALLOC_FAILED,
                                          CUBLAS_STATUS_EXECUTION_FAILED, CUBLAS_STATUS_INTERNAL_ERROR};

static void refuse(const Refusal &r) {
    simt::LtSettings &s = simt::lt_settings();
    s.refused_algorithms = r.algorithms, s.refused_epilogues = r.epilogues, s.refused_heuristics = r.heuristics;
    s.refused_attribute = r.attribute;
}

static void assert_replaced(const Gpu &gpu, const Refusal &r, bool later) {
    const Refusal &expected = later && r.only_new ? Refusal{} : r;
    for (int i = 0; i < gpu.matmuls->num_algorithms; i++) {
        assert_int_equal(gpu.matmuls->algorithms[i].desc == NULL, expected.own);
    }
    assert_int_equal(gpu.matmuls->algorithms[0].fused, expected.fused);
}

static void check_some(Gpu *gpu, Layer *l) {
    check_forward(gpu, l, 1);
    check_gelu_forward(gpu, l, 1);
    check_backward(gpu, l, TRAINING);
}

// The library refuses from the start, or later, after a choice was made.
TEST(test_refused_choices_are_replaced) {
    for (const Refusal &r : REFUSALS) {
        for (int how = 0; how < 4 * (int)std::size(STATUSES); how++) {
            bool later = how & 1, timed = how & 2;
            Gpu gpu;
            Layer l(48, 64, 96);
            gpu.exec.skip_autotune = !timed;
            simt::lt_settings().refusal = STATUSES[how / 4];
            simt::lt_counts().refused = 0;
            refuse({});
            std::string said = stderr_of([&] {
                if (later) { check_some(&gpu, &l); }
                refuse(r);
                check_some(&gpu, &l);
            });
            assert_replaced(gpu, r, later);
            assert_true(!later || r.only_new || contains(said, "matmul (m=96 n=48 k=64 TN "));
            assert_int_equal(contains(said, ": cublasLtMatmulAlgoGetHeuristic: "), r.heuristics && !later && how >= 4);
            assert_int_equal(contains(said, "no algorithm of cuBLASLt gives right results"),
                             r.algorithms && r.own && timed && !later);
            simt::LtCounts before = simt::lt_counts();
            assert_int_equal(before.refused > 0, r.algorithms || r.epilogues);
            check_some(&gpu, &l);  // the new choice is remembered
            assert_int_equal(simt::lt_counts().refused, before.refused);
            assert_int_equal(simt::lt_counts().heuristics, before.heuristics);
        }
    }
}

// Captures `work` and launches it twice, each time followed by `check`.
template <class Work, class Check> static void run_captured(Gpu *gpu, Work work, Check check) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA_CHECK(cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeGlobal));
    work();
    CUDA_CHECK(cudaStreamEndCapture(gpu->stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph));
    for (int launch = 0; launch < 2; launch++) {
        CUDA_CHECK(cudaGraphLaunch(exec, gpu->stream));
        check();
    }
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
}

TEST(test_refusal_in_capture) {
    for (const Refusal &r : REFUSALS) {
        Gpu gpu;
        Layer l(48, 64, 96);
        refuse({});
        check_forward(&gpu, &l, 1);
        refuse(r);
        l.got.reset(GRAD_SET);
        run_captured(
            &gpu,
            [&] {
                cuda_matmul_forward(l.got.out.at, l.in.at, l.weight.at, l.bias.at, NULL, no_activation, l.N, l.C, l.OC,
                                    gpu.ex());
            },
            [&] {
                assert_close("forward", l.got.out, l.wanted.out, FLOATX_TOLERANCE);
                l.got.reset(GRAD_SET);
            });
        assert_replaced(gpu, r, true);
    }
}

// Products that lack the last 8 of their k terms. If algorithm 1 is right, it becomes the reference; if none is, our
// own GEMM does the work.
TEST(test_first_choice_is_checked) {
    for (int wrong : {1, 2}) {
        Gpu gpu;
        Layer l(72, 72, 136);
        simt::lt_settings().k_tile = 64;
        simt::lt_settings().k_tile_algorithms = wrong;
        std::string said = stderr_of([&] { check_all(&gpu, &l); });
        assert_true(contains(said, "an algorithm of cuBLASLt is off by "));
        assert_int_equal(contains(said, "no algorithm of cuBLASLt gives right results"), wrong == 2);
        for (int i = 0; i < gpu.matmuls->num_algorithms; i++) {
            const LtAlgorithm *plan = &gpu.matmuls->algorithms[i];
            if (plan->desc) { assert_true(wrong == 1 && plan->algo.data[1] == 1); }
        }
    }
}

// ---- the autotune cache

// Results of a run with the cache file, while algorithm `fastest` is the fastest. *timed: number of timed products.
static std::string run_with_cache(const char *path, int fastest, int *timed) {
    Layer layer(48, 64, 96);
    Gpu gpu(path);
    set_fast(fastest, 1);
    int heuristics = simt::lt_counts().heuristics;
    std::string bits = run_and_get_bits(&gpu, &layer, 0);
    *timed = simt::lt_counts().heuristics - heuristics;
    return bits;
}

static int lines_of(const std::string &text) {
    int lines = 0;
    for (char c : text) { lines += c == '\n'; }
    return lines;
}

TEST(test_cache_is_reused) {
    const char *path = temp_path("cache");
    int timed = 0;
    std::string first = run_with_cache(path, 1, &timed), text = contents(path);
    assert_true(timed > 0);
    assert_int_equal(lines_of(text), 4);
    assert_non_null(strstr(text.c_str(), DT_FLOATX == DT_BF16
                                             ? "a GPU\t130000\tm=96 n=48 k=64 TN BF16->BF16 bias gelu "
                                             : "a GPU\t130000\tm=96 n=48 k=64 TN F32->F32 bias gelu "));
    assert_true(first == run_with_cache(path, 0, &timed));  // algorithm 1 again, although 0 is faster now
    assert_int_equal(timed, 0);
    assert_true(text == contents(path));
    assert_true(first != run_with_cache(NULL, 0, &timed));
    simt::lt_settings().version = 130001;  // another version of cuBLASLt appends its own lines
    assert_true(first != run_with_cache(path, 0, &timed));
    std::string both = contents(path);
    assert_true(both.compare(0, text.size(), text) == 0 && lines_of(both) == 8);
}

// messages from rank 0 to the other ranks, which run after rank 0 here
struct News {
    std::string bytes;
    size_t read = 0;
};

static void send_news(void *bytes, size_t count, void *news) {
    ((News *)news)->bytes.append((const char *)bytes, count);
}

static void receive_news(void *bytes, size_t count, void *news) {
    News *n = (News *)news;
    assert_true(n->read + count <= n->bytes.size());
    memcpy(bytes, n->bytes.data() + n->read, count);
    n->read += count;
}

// Every rank uses rank 0's algorithms, whatever is fastest on the rank and whatever its own cache file holds. Only rank
// 0 writes a file. A rank replaces an untimed plan by a timed one when rank 0 does.
TEST(test_algorithms_are_shared) {
    const char *const paths[] = {temp_path("shared"), temp_path("shared_rare")}, *own = temp_path("own");
    int timed = 0;
    run_with_cache(own, 0, &timed);
    std::string written = contents(own);
    for (int rare = 0; rare < 2; rare++) {
        News news;
        Layer layer(48, 64, 96), small(24, 64, 96);
        Gpu first(paths[rare]), other(own), alone;
        std::string bits[3];
        Gpu *const gpus[] = {&first, &other, &alone};
        cuda_matmuls_share(first.matmuls, true, send_news, &news);
        cuda_matmuls_share(other.matmuls, false, receive_news, &news);
        for (int i = 0; i < 3; i++) {
            int heuristics = simt::lt_counts().heuristics;
            set_fast(i == 0, 1);
            gpus[i]->exec.skip_autotune = rare;
            bits[i] = run_and_get_bits(gpus[i], &small, 0);
            gpus[i]->exec.skip_autotune = false;
            bits[i] += run_and_get_bits(gpus[i], &small, 0) + run_and_get_bits(gpus[i], &layer, 0);
            assert_true((simt::lt_counts().heuristics == heuristics) == (i == 1));
        }
        assert_int_equal(news.read, news.bytes.size());
        assert_true(bits[0] == bits[1]);
        assert_true(bits[0] != bits[2]);
    }
    assert_true(contents(own) == written);
}

// A rank that is refused takes its next choice alone. It receives as many choices as rank 0 sends, also when the shape
// is timed later.
TEST(test_refusal_of_one_rank) {
    News news;
    Gpu first, other;
    Layer l(48, 64, 96);
    cuda_matmuls_share(first.matmuls, true, send_news, &news);
    cuda_matmuls_share(other.matmuls, false, receive_news, &news);
    for (Gpu *gpu : {&first, &other}) {
        for (bool rare : {true, true, false, false}) {
            gpu->exec.skip_autotune = rare;
            check_forward(gpu, &l, 1);
            refuse(gpu == &other ? REFUSALS[0] : Refusal{});
        }
    }
    assert_int_equal(news.read, news.bytes.size());
    assert_int_equal(first.matmuls->algorithms[0].algo.data[1], 0);
    assert_int_equal(other.matmuls->algorithms[0].algo.data[1], 1);
}

// TRAIN_GPT2_AUTOTUNE=0: nothing is timed, and the cache is neither read nor written. Rank 0 decides for all ranks.
TEST(test_autotune_off) {
    const char *path = temp_path("off");
    int timed = 0;
    run_with_cache(path, 1, &timed);
    std::string text = contents(path);
    News news;
    Layer l(48, 64, 96), other_shape(24, 64, 96);
    Gpu with_autotune;
    setenv("TRAIN_GPT2_AUTOTUNE", "0", 1);
    Gpu without(path);
    cuda_matmuls_share(without.matmuls, true, send_news, &news);
    cuda_matmuls_share(with_autotune.matmuls, false, receive_news, &news);
    for (Gpu *gpu : {&without, &with_autotune}) {
        int matmuls = simt::lt_counts().matmuls;
        for (int run = 0; run < 2; run++) { run_layer(gpu, &l, 0), run_layer(gpu, &other_shape, 0); }
        assert_int_equal(simt::lt_counts().matmuls - matmuls, 2 * 2 * 4);
        for (int i = 0; i < gpu->matmuls->num_algorithms; i++) {
            assert_int_equal(gpu->matmuls->algorithms[i].algo.data[1], 0);
        }
    }
    assert_int_equal(news.read, news.bytes.size());
    assert_true(contents(path) == text);
}

TEST(test_damaged_cache) {
    const char *path = temp_path("damaged");
    int timed = 0, none = 0;
    run_with_cache(path, 1, &timed);
    std::string whole = contents(path), line = whole.substr(0, whole.find('\n') + 1), bad;
    size_t hex = line.find("\t544c"), time = line.rfind('\t');  // first bytes of LT_MAGIC
    assert_true(hex != std::string::npos);
    std::string lines[] = {"\n",
                           "hello\n",
                           "a\tb\tc\td\te\n",
                           line.substr(0, time) + "\n",
                           line.substr(0, time) + "\t-1\n",
                           line.substr(0, hex + 1) + "xx" + line.substr(hex + 3),
                           line.substr(0, hex + 1) + line.substr(hex + 3),
                           line.substr(line.find('\t') + 1)};
    for (const std::string &l : lines) { bad += l; }
    bad += whole + line.substr(0, 40);  // a truncated line
    write_file("damaged", bad.data(), bad.size());
    std::string said = stderr_of([&] { run_with_cache(path, 1, &none); });
    assert_int_equal(lines_of(said), 0);
    assert_int_equal(none, 0);  // the valid lines were read
    // an algorithm that is damaged or unknown is replaced
    write_file("damaged", lines[5].data(), lines[5].size());
    run_with_cache(path, 1, &timed);
    assert_true(timed > none);
    std::string unknown = line;
    unknown[hex + 1] = '0';
    write_file("damaged", unknown.data(), unknown.size());
    run_with_cache(path, 1, &timed);
    assert_true(timed > none);
    assert_int_equal(lines_of(contents(path)), 5);  // the new line is appended
    run_with_cache(path, 0, &none);
    assert_int_equal(none, 0);
    assert_int_equal(lines_of(contents(path)), 5);
}

// ---- capture

static void check_capture(int which) {
    Gpu gpu;
    Layer layer(48, 64, 96);
    GradMode mode = which & ADD ? GRAD_ADD : GRAD_SET;
    std::string eager = run_and_get_bits(&gpu, &layer, which);
    layer.got.reset(mode);
    run_captured(
        &gpu,
        [&] {
            run_layer(&gpu, &layer, which);
            assert_true(eager != bits_of(layer));  // a capture runs nothing
        },
        [&] {
            assert_true(eager == bits_of(layer));
            layer.got.reset(mode);
        });
}

TEST(test_capture) {
    check_capture(0);
    check_capture(ADD);
    simt::lt_settings().epilogues_off = ~1u;
    check_capture(ADD);
    simt::lt_settings().no_algorithms = true;
    check_capture(ADD);
}

// ---- PDL

// whether the trial turns PDL on. fault: of the driver (SIMT_PDL); NULL: none
static bool pdl_with(const char *fault) {
    Exec exec = {};
    DeviceArray<char> partials(8192, 0), workspace(WORKSPACE_BYTES, 0);
    simt::settings().pdl_fault = fault;
    cuda_exec_open(&exec, partials.at, partials.n);
    CudaMatmuls *mm = cuda_matmuls_create(exec.cuda->stream, workspace.at, workspace.n, "a GPU", false, NULL);
    exec.cuda->matmuls = mm;
    pdl_try(&exec);
    cuda_matmuls_free(mm);
    cuda_exec_close(&exec);
    simt::settings().pdl_fault = nullptr;
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    return std::exchange(pdl_enabled, false);
}

static void crash_pdl(void *unused) {
    (void)unused;
    pdl_with("event:crash");
}

// The trial has every join of kernels, and counts: a kernel that is lost or repeated gives no error.
TEST(test_pdl_is_tried) {
    assert_true(pdl_with(nullptr));
    assert_stops(EXIT_RUN_FAILED, "set TRAIN_GPT2_PDL=0", crash_pdl, NULL);
    for (const char *join : {"memset", "kernel", "event", "matmul"}) {
        for (const char *mode : {"launch", "graph", "nothing", "twice"}) {
            std::string fault = std::string(join) + ":" + mode;
            if (pdl_with(fault.c_str())) { fail_msg("%s is not noticed", fault.c_str()); }
        }
    }
    simt::lt_settings().no_algorithms = true;  // without cuBLASLt's kernel
    assert_true(pdl_with(nullptr));
    assert_false(pdl_with("event:twice"));
    setenv("TRAIN_GPT2_PDL", "0", 1);
    assert_false(pdl_with(nullptr));
    unsetenv("TRAIN_GPT2_PDL");
    simt::settings().capability = 80;
    assert_false(pdl_with(nullptr));
}

int main(void) {
    for (CMUnitTest &test : test_list()->tests) { test.setup_func = reset_device, test.teardown_func = check_leaks; }
    return run_all_tests("matmul");
}
