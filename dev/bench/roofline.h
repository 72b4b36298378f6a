/*
Predicts the time of an operation on a GPU with a roofline, and assumes what share of the published rates kernels reach.

Bytes and FLOPs are those of ops.h. The kernels are those of the operation's CUDA graph (recorded.h).
  matmul     Tiles of 128 x 256, 256 x 128 or 128 x 128 over the multiprocessors, k in steps of 64, k split as
             matmul_autotune.cuh may; the fastest counts. A wave takes as long as one tile, and a matmul at least as
             long as its bytes. The start and the end of a tile cost as much as TILE_STEPS steps. If the epilogue also
             reads or writes a residual or an activation's input, that is hidden in part. Weight gradients in bf16 are
             slower.
  attention  FLOPs of the tiles that are computed, at mma.sync's rate, times the tensor cores' busy share
             (attention_kernels), times attention_reach. The backward is slower.
  others     Bytes over a share of the bandwidth.
  fp32       In an fp32 build, GEMMs take TF32 at half the bf16 rate, but CUDA cores with -f 0 or before sm_80.
             Attention takes CUDA cores.
  kernels    Every kernel of an operation also takes START, to fill the GPU and to drain.
The gap before each launch of a graph is not part of an operation: launch_gaps.
The floor is the larger of the times of FLOPs and bytes at the published rates, without anything else.
*/
#pragma once
#include "llmc/cuda_ops.cuh"
#include "llmc/run/gpus.h"
#include "llmc/op_call.h"
#include "link.h"
#include "recorded.h"

// ---- assumptions. Only the copy and the 8192^3 GEMM of an H200 are measured: 4.3 of 4.8 TB/s, 790 of 989 TFLOP/s

typedef struct {
    const char *op;        // begin of an operation's name
    double share[LEVELS];  // of the published bandwidth
} BandwidthShare;

static const BandwidthShare bandwidth_shares[] = {
    {"layernorm_forward", {0.75, 0.80, 0.82}},   // one read, one write, a row a warp: near a copy's 0.90
    {"layernorm_from", {0.75, 0.80, 0.82}},      // the same
    {"activation_forward", {0.75, 0.80, 0.82}},  // the same, with 12 FLOPs an element
    {"layernorm_backward", {0.65, 0.70, 0.75}},  // four streams and two phases a block, which do not fully overlap
    {"classifier", {0.60, 0.70, 0.75}},          // the same; sm_80 and sm_120 read a row twice, mostly from L2
    {"embedding", {0.50, 0.65, 0.75}},           // rows of 1.5 to 3 KB in any order
    {"adamw", {0.73, 0.77, 0.80}},               // five to seven streams
    {"muon", {0.73, 0.77, 0.80}},                // assumed the same; between the matmuls three streams
    {"global_norm", {0.75, 0.79, 0.82}},         // reads alone
    {"", {0.70, 0.75, 0.80}},                    // column sums, epilogues, copies and fills
};

// A long GEMM's share of the published tensor rate by compute capability: 8192^3 on an H200; elsewhere assumed, from
// power limits. Large cards are bound by power, RTX cards reach their clock, a T4 has 70 W.
typedef struct {
    int capability;
    double gemm;             // expected share
    double mma;              // mma.sync's rate: 2/3 of wgmma's on sm_90; sm_100's is not published, A100's is assumed
    double weight_gradient;  // the share of other GEMMs' rate that weight gradients in bf16 reach; below
} TensorShare;

static const TensorShare tensor_shares[] = {{75, 0.55, 1, 0.78}, {80, 0.87, 1, 0.85},       {86, 0.92, 1, 0.78},
                                            {89, 0.92, 1, 0.78}, {90, 0.80, 2.0 / 3, 0.78}, {100, 0.75, 0.25, 0.78},
                                            {120, 0.92, 1, 0.78}};

static const double gemm_levels[LEVELS] = {0.93, 1, 1.06};  // clocks of the day, the algorithms that cuBLASLt has
// The same for weight gradients in bf16, times weight_gradient. Their k is the number of tokens. A block's have 36 to
// 144 tiles, fp32 outputs, += and split k: 450 to 570 TFLOP/s on an H100, where its other GEMMs reach 650; 225 of 265
// on an A100, whose tensor cores wait less for the outputs. Read off the shapes, not measured. Other GPUs are taken to
// be as an H100.
static const double weight_gradient_levels[LEVELS] = {0.69 / 0.78, 1, 0.88 / 0.78};
static const double FP32_GEMM = 0.80;                        // of the fp32 rate of CUDA cores
static const double SMALL_TILE = 0.92;                       // 128 x 128 reads more of its operands per FLOP
static const double TILE_STEPS = 3;                          // of 64 in k
static const double EXPOSED = 0.45;                          // of an epilogue's further matrix; the GEMM hides the rest
static const double START[LEVELS] = {2.5e-6, 1.5e-6, 1e-6};  // seconds
static const double GAP[LEVELS] = {2e-6, 1.3e-6, 1e-6};      // seconds between two kernels of a CUDA graph
// the same if the second is one of our kernels on sm_90 or newer, whose blocks are there before the first one ends
static const double EARLY_GAP[LEVELS] = {1e-6, 0.5e-6, 0.2e-6};
static const double PCIE = 25e9;  // bytes per second from the host
// Attention on a GPU that was not simulated: on tensor cores, and the plain path on CUDA cores, as shares of the rate
static const double UNKNOWN_BUSY = 0.45, PLAIN_SHARE = 0.25;

// The share of the simulated rate that blocks reach. n: tiles of the other side that a block visits on average. Begin
// and end of blocks, masks and unequal blocks take the rest. Fitted to FlashAttention-2 on an H100, published over
// simulated by the same method: 0.74 at T 1024 (causal, n 9), 0.93 at T 16384.
// backward: the simulation leaves out the bandwidth of shared memory, which a step of dK/dV keeps as busy as the tensor
// cores: 800 cycles for two blocks of four warps. Without the factor the two kernels, with 7 GEMMs, would take the time
// that FlashAttention-2 has published for 5.
static inline double attention_reach(double n, bool backward, Level level) {
    static const double factor[2][LEVELS] = {{0.78, 1, 1.12}, {0.62, 0.73, 0.88}};
    return 0.93 * n / (n + 2.3) * factor[backward][level];
}

// ---- a GPU and its attention kernels

enum { ATTENTION_FORWARD, ATTENTION_DKV, ATTENTION_DQ, ATTENTION_KERNELS };

typedef struct {
    int own, other, blocks;  // rows of a block's tile and of the other side's; blocks on a multiprocessor
    double busy;             // share of the time in which the tensor cores work; 0: unknown
} AttentionBusy;

// Head size 64: simulated cycle by cycle from the machine code that nvcc 13.0 makes of llmc/attention.cuh, by
// dev/bench/sass.py of commit 14da99a. `scripts/gpu_check.sh speed` measures the kernels.
static const struct {
    int capability;
    AttentionBusy kernel[ATTENTION_KERNELS];
} attention_kernels[] = {
    {80, {{128, 64, 2, 0.667}, {128, 64, 2, 0.784}, {128, 64, 2, 0.809}}},
    {89, {{128, 64, 2, 0.952}, {128, 64, 1, 0.892}, {128, 64, 1, 0.936}}},
    {90, {{128, 64, 2, 0.574}, {128, 64, 2, 0.684}, {128, 64, 2, 0.740}}},
    {100, {{128, 64, 2, 0.686}, {128, 64, 2, 0.815}, {128, 64, 2, 0.820}}},
    {120, {{128, 64, 2, 0.949}, {128, 64, 1, 0.908}, {128, 64, 1, 0.916}}},
};

typedef struct {
    GpuModel gpu;
    TensorShare tensor;
    AttentionBusy attention[ATTENTION_KERNELS];
    double workspace;  // bytes of cuBLASLt's workspace
    double peak;       // published FLOPs per second of GEMMs in this build's arithmetic
    double gemm_rate;  // of a long GEMM
} Roofline;

// workspace_bytes: Backend.matmul_workspace_bytes. tf32: an fp32 build may round GEMM inputs to TF32
static inline Roofline roofline_open(const GpuModel *gpu, size_t workspace_bytes, bool tf32) {
    Roofline r;
    memset(&r, 0, sizeof r);
    r.gpu = *gpu;
    r.workspace = (double)workspace_bytes - (int)LT_SCRATCH_BYTES;
    int at = sizeof tensor_shares / sizeof tensor_shares[0] - 1;
    while (at > 0 && tensor_shares[at].capability > gpu->capability) { at--; }
    r.tensor = tensor_shares[at];
    bool tensor_cores = DT_FLOATX == DT_BF16 || (tf32 && gpu->capability >= 80);
    r.peak = tensor_cores ? gpu->matmul_flops / (DT_FLOATX == DT_BF16 ? 1 : 2) : gpu->fp32_flops;
    r.gemm_rate = r.peak * (tensor_cores ? r.tensor.gemm : FP32_GEMM);
    for (size_t i = 0; i < sizeof attention_kernels / sizeof attention_kernels[0]; i++) {
        if (attention_kernels[i].capability == gpu->capability) {
            memcpy(r.attention, attention_kernels[i].kernel, sizeof r.attention);
        }
    }
    if (DT_FLOATX == DT_BF16 && r.attention[ATTENTION_FORWARD].busy == 0) {
        fprintf(stderr,
                "note: attention's time is a rough guess: its kernels were not simulated for sm_%d, and their tensor "
                "cores are taken to be busy for %.2f of the time\n",
                gpu->capability, UNKNOWN_BUSY);
    }
    return r;
}

// ---- bytes

static inline double stream_seconds(const Roofline *r, const char *op, double bytes, Level level) {
    const BandwidthShare *s = bandwidth_shares;
    while (strncmp(op, s->op, strlen(s->op)) != 0) { s++; }  // the last row fits all
    return bytes / (r->gpu.bandwidth * s->share[level]);
}

static inline double copy_seconds(const Roofline *r, double bytes, bool from_host, Level level) {
    return START[level] + (from_host ? bytes / PCIE : stream_seconds(r, "", bytes, level));
}

// ---- GEMMs

typedef struct {
    double m, n, k, size;  // D is (m,n) in elements of `size` bytes
    bool weight_gradient;
} Gemm;

static inline double waves_of(const Roofline *r, double tiles) { return ceil(tiles / r->gpu.multiprocessors); }

// with tiles of rows x cols and k in `splits` parts, whose fp32 sums a second kernel adds
static inline double gemm_tiled(const Roofline *r, const Gemm *g, double rows, double cols, int splits, Level level) {
    double tiles = ceil(g->m / rows) * ceil(g->n / cols) * splits, steps = ceil(g->k / splits / 64) + TILE_STEPS;
    bool slower = g->weight_gradient && DT_FLOATX == DT_BF16;
    double share = slower ? r->tensor.weight_gradient * weight_gradient_levels[level] : gemm_levels[level];
    double rate = r->gemm_rate * share / r->gpu.multiprocessors;
    if (rows * cols < 128 * 256) { rate *= SMALL_TILE; }
    double seconds = waves_of(r, tiles) * 2 * rows * cols * 64 * steps / rate;
    if (splits == 1) { return seconds; }
    return seconds + GAP[level] + START[level] + stream_seconds(r, "", 2 * 4 * splits * g->m * g->n, level);
}

static inline bool may_split(const Roofline *r, const Gemm *g, int splits) {
    const double few = (double)LT_FEW_TILES * (int)LT_TILE_AREA;
    return g->m * g->n <= few && g->k >= splits * (int)LT_LEAST_DEPTH && 4 * splits * g->m * g->n <= r->workspace;
}

static inline double gemm_seconds(const Roofline *r, const Gemm *g, double bytes, Level level) {
    static const double tile[3][2] = {{128, 256}, {256, 128}, {128, 128}};
    double best = INFINITY;
    for (int i = 0; i < 3 * (1 + LT_SPLITS); i++) {
        int splits = i < 3 ? 1 : lt_splits[i / 3 - 1];
        if (splits > 1 && !may_split(r, g, splits)) { continue; }
        best = fmin(best, gemm_tiled(r, g, tile[i % 3][0], tile[i % 3][1], splits, level));
    }
    return fmax(best, stream_seconds(r, "", bytes, level)) + START[level];
}

// The GEMMs of an operation of matmul.cuh; returns their number.
static inline int gemms_of(const OpCall *call, Gemm gemm[2]) {
    const Operand *out = find_operand(call, "out"), *in = find_operand(call, "in");
    const Operand *dweight = find_operand(call, "dweight"), *dinp = find_operand(call, "dinp");
    const double size = sizeof(floatX);
    int count = 0;
    if (out) {
        gemm[count++] = Gemm{(double)out->cols, (double)out->rows, (double)in->cols, size, false};
        return count;
    }
    const Operand *dout = find_operand(call, "dout");
    if (dweight) {
        gemm[count++] = Gemm{(double)dweight->cols, (double)dweight->rows, (double)dout->rows,
                             (double)dtype_size(dweight->dtype), true};
    }
    if (dinp) { gemm[count++] = Gemm{(double)dinp->cols, (double)dinp->rows, (double)dout->cols, size, false}; }
    return count;
}

// seconds before the operation's kernels and copies; cuBLASLt's kernels are not launched early
static inline double launch_gaps(const Roofline *r, const OpCall *call, const Recorded *kernels, Level level) {
    Gemm gemm[2];
    int gemms = strncmp(call->op, "matmul_", 7) == 0 ? gemms_of(call, gemm) : 0;
    int early = r->gpu.capability >= 90 && kernels->kernels > gemms ? kernels->kernels - gemms : 0;
    return early * EARLY_GAP[level] + (kernels->kernels + kernels->others - early) * GAP[level];
}

static inline bool kernel_is(const char *name, const char *words) { return strstr(name, words) != NULL; }

// bytes of a fused epilogue's further matrices
static inline double epilogue_bytes(const OpCall *call) {
    static const char *const names[] = {"residual", "activation.pre"};
    double bytes = 0;
    for (int i = 0; i < 2; i++) {
        const Operand *o = find_operand(call, names[i]);
        if (o) { bytes += (double)dtype_size(o->dtype) * (double)o->rows * (double)o->cols; }
    }
    return bytes;
}

// bytes of our own kernels beside the GEMMs: column sums read a matrix again, epilogues read and write it
static inline double unfused_bytes(const OpCall *call, const Recorded *kernels) {
    const Operand *out = find_operand(call, "out") ? find_operand(call, "out") : find_operand(call, "dout");
    double bytes = 0;
    int before = 0, gemms = 0;  // of the GEMMs, those before the kernel
    Gemm gemm[2];
    int count = gemms_of(call, gemm);
    bool backward = strcmp(call->op, "matmul_backward") == 0 && count > 0 && !gemm[count - 1].weight_gradient;
    for (int i = 0; i < kernels->kernels && i < RECORDED_NAMES; i++) {
        bool sums = kernel_is(kernels->name[i], "matmul_column_sums"),
             epilogue = kernel_is(kernels->name[i], "matmul_epi");
        bool fold = kernel_is(kernels->name[i], "gradient_fold");
        gemms += !sums && !epilogue && !fold;
        before = gemms < count ? gemms : count;
        double width = backward && before == count ? gemm[count - 1].m : (double)out->cols;
        bytes += sizeof(floatX) * (double)out->rows * width * (sums ? 1 : epilogue ? 3 : 0);
    }
    return bytes;
}

static inline double matmul_seconds(const Roofline *r, const OpCall *call, const Recorded *kernels, Level level) {
    Gemm gemm[2];
    int count = gemms_of(call, gemm);
    double unfused = unfused_bytes(call, kernels);
    double seconds = stream_seconds(r, "", EXPOSED * epilogue_bytes(call), level);
    for (int i = 0; i < count; i++) { seconds += gemm_seconds(r, &gemm[i], op_call_bytes(call) / count, level); }
    int own = kernels->kernels > count ? kernels->kernels - count : 0;
    if (count == 0) { unfused = op_call_bytes(call); }
    return seconds + stream_seconds(r, "", unfused, level) + (unfused > 0 || count == 0 ? own * START[level] : 0);
}

// ---- attention

typedef struct {
    double heads, T, HS;  // heads: of all sequences, B * NH
} AttentionSize;

static inline AttentionSize attention_size(const OpCall *call) {
    const Operand *lse = find_operand(call, "lse"), *qkv = find_operand(call, "qkv");
    AttentionSize s = {(double)lse->rows, (double)lse->cols, 0};
    s.HS = (double)qkv->rows * (double)qkv->cols / 3 / s.heads / s.T;
    return s;
}

// one tile kernel of `products` GEMMs over the pairs
static inline double tile_kernel_seconds(const Roofline *r, const AttentionSize *s, int which, int products,
                                         Level level) {
    const AttentionBusy *a = &r->attention[which];
    double own = a->busy > 0 ? a->own : 128, other = a->busy > 0 ? a->other : 64, T = s->T;
    double busy = a->busy > 0 ? a->busy : UNKNOWN_BUSY;
    double blocks = ceil(T / own) * s->heads, pairs = T * (T + own) / 2;
    double flops = 2.0 * products * s->heads * s->HS * pairs;
    double reach = attention_reach((T + own) / 2 / other, which != ATTENTION_FORWARD, level);
    double slots = (double)r->gpu.multiprocessors * (a->busy > 0 ? a->blocks : 2);
    double filled = blocks < slots ? blocks / slots : 1;
    return flops / (r->gpu.matmul_flops * r->tensor.mma * busy * reach * filled) + START[level];
}

static inline bool head_has_tensor_tiles(int HS) { return HS == 32 || HS == 64 || HS == 80 || HS == 128; }

static inline double attention_seconds(const Roofline *r, const OpCall *call, const Recorded *kernels, Level level) {
    const AttentionSize s = attention_size(call);
    if (DT_FLOATX != DT_BF16 || !head_has_tensor_tiles((int)s.HS)) {
        return call->flops / (r->gpu.fp32_flops * PLAIN_SHARE) + kernels->kernels * START[level];
    }
    if (!find_operand(call, "dqkv")) { return tile_kernel_seconds(r, &s, ATTENTION_FORWARD, 2, level); }
    // dQ first reads its rows of out, for delta, and finds those of dout in L2
    return tile_kernel_seconds(r, &s, ATTENTION_DKV, 4, level) + tile_kernel_seconds(r, &s, ATTENTION_DQ, 3, level) +
           stream_seconds(r, "", (double)sizeof(floatX) * s.heads * s.T * s.HS, level);
}

// ---- an operation

static inline bool is_attention(const OpCall *call) {
    return strcmp(call->op, "attention_forward") == 0 || strcmp(call->op, "attention_backward") == 0;
}

static inline double roofline_seconds(const Roofline *r, const OpCall *call, const Recorded *kernels, Level level) {
    if (strncmp(call->op, "matmul_", 7) == 0) { return matmul_seconds(r, call, kernels, level); }
    if (is_attention(call)) { return attention_seconds(r, call, kernels, level); }
    return stream_seconds(r, call->op, op_call_bytes(call), level) + kernels->kernels * START[level];
}

static inline double roofline_floor(const Roofline *r, const OpCall *call) {
    double rate = DT_FLOATX == DT_BF16 || !is_attention(call) ? r->peak : r->gpu.fp32_flops;
    return fmax(call->flops / rate, op_call_bytes(call) / r->gpu.bandwidth);
}
