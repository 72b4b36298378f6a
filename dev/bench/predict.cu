/*
Predicts a training step on a GPU, without the GPU.
    predict [--gpu NAME] [--json] [flags of train_gpt2]      make predict GPU=h200 ARGS='-e d12 -b 64 -r 1'
NAME: h200 h100 h100-pcie a100 a100-40gb 4090 4070 4060 3060 5090 t4, or sm_CAPABILITY,MULTIPROCESSORS,TFLOPS,GB/S,GIB
as in sm_90,132,989,4800,139.8. build/bench/predict is the bf16 build; build/bench/predict_fp32 is the fp32 build, which
a T4 runs, having no bf16.
-r auto, the default, chooses for that GPU's memory.
--plan prints the trainer's plan for that GPU instead: make plan GPU=4060 ARGS='-e d48 -b 4 -r 4 -om 8bit'
--json prints counts instead, for dev/test/test_predict.sh: a line for each call, and a last line with the totals. A
plan that is larger than the GPU is counted too.

The trainer itself records the step: this program is the trainer with another main, compiled for the emulator.
In the emulator's dry run nothing is computed and no device memory exists, so a model of any size takes milliseconds.
  launches    kernels, copies and fills in the CUDA graph of each micro-step, of the norm and of the update
  bytes       and FLOPs: of every call of an operation, as ops.h describes it
  fused       cuBLASLt is taken to have every epilogue that matmul.cuh asks for
  seconds     roofline.h: expected, and from pessimistic to optimistic assumptions; floor: at the published rates
An update has different micro-steps: the first sets gradients, later ones add.

With --offload, a second table has a row for each PCIe link. The trainer's operations, copies and waits are recorded in
the order of its calls, and link.h simulates the link. For the slow-down, the same flags are recorded at --offload 0
too; that plan may be larger than the GPU. The times of the first table contain no waits for the link.
*/
#define WITHOUT_MAIN
#include "../../train_gpt2.cu"
#include "roofline.h"

typedef enum {
    BLOCK_MATMULS,
    HEAD_MATMULS,
    ATTENTION_FORWARDS,
    ATTENTION_BACKWARDS,
    LAYERNORMS,
    ACTIVATIONS,
    CLASSIFIERS,
    EMBEDDINGS,
    NEWTON_SCHULZ,
    UPDATES,
    COPIES,
    GROUPS
} Group;

static const char *const group_names[GROUPS] = {
    "block matmuls", "head matmuls", "attention forward", "attention backward", "layernorm",    "activation",
    "classifier",    "embedding",    "Newton-Schulz",     "norm, optimizer",    "copies, fills"};

// the first row whose word begins the operation's name
static const struct {
    const char *word;
    Group group;
} group_words[] = {{"matmul", BLOCK_MATMULS},
                   {"attention_forward", ATTENTION_FORWARDS},
                   {"attention_backward", ATTENTION_BACKWARDS},
                   {"layernorm", LAYERNORMS},
                   {"activation", ACTIVATIONS},
                   {"classifier", CLASSIFIERS},
                   {"loss_sum", CLASSIFIERS},
                   {"embedding", EMBEDDINGS},
                   {"muon_normalise", NEWTON_SCHULZ},
                   {"muon_polynomial", NEWTON_SCHULZ},
                   {"", UPDATES}};

// the same call, `times` in an update
typedef struct {
    OpCall call;  // of a copy or a fill: the name alone
    Group group;
    bool in_micro_step, from_host;
    Recorded kernels;
    double bytes, flops, times;  // bytes: of device memory, and of copies from_host over the link
} Call;

// On one GPU the micro-steps after the first are alike.
typedef enum { FIRST_STEP, LATER_STEP, UPDATE, PARTS } Part;

typedef struct {
    GPT2 model;
    OpHooks hooks;
    Call *calls;
    int num_calls;
    Part part;            // of the work that is recorded now
    double times[PARTS];  // in an update
    Timeline timeline[PARTS];
    size_t claimed;  // nodes of the current capture that belong to a call
} Recorder;

static bool is_copy(const Call *c) { return strcmp(c->call.op, "copy") == 0; }

// ---- calls of operations and copies

// the Recorder whose model has this Exec
static Recorder *recorder_of(Exec *ex) {
    return (Recorder *)((char *)ex - offsetof(GPT2, exec) - offsetof(Recorder, model));
}

static std::vector<SimtGraphNode> *captured_nodes(const Exec *ex) {
    return stream_of(ex)->capture ? &stream_of(ex)->capture->nodes : NULL;
}

static bool same_call(const Call *a, const Call *b) {
    return memcmp(&a->call, &b->call, sizeof a->call) == 0 && a->bytes == b->bytes &&
           a->in_micro_step == b->in_micro_step && a->from_host == b->from_host &&
           memcmp(&a->kernels, &b->kernels, sizeof a->kernels) == 0;
}

// link_bytes: read from host memory by the operation itself
static void add_call(Recorder *r, Call *call, double link_bytes) {
    int at = 0;
    call->in_micro_step = r->part != UPDATE;
    while (at < r->num_calls && !same_call(&r->calls[at], call)) { at++; }
    if (at == r->num_calls) {
        r->calls = (Call *)xrealloc(r->calls, (size_t)(r->num_calls + 1) * sizeof *r->calls);
        r->calls[r->num_calls++] = *call;
    }
    r->calls[at].times += r->times[r->part];
    timeline_add(&r->timeline[r->part], link_bytes > 0 ? LINK_READ : LINK_WORK, at, link_bytes, 0);
}

// the nodes that were captured since the last call
static Recorded new_nodes(Recorder *r, Exec *ex) {
    Recorded found = {};
    std::vector<SimtGraphNode> &nodes = *captured_nodes(ex);
    for (; r->claimed < nodes.size(); r->claimed++) { record_node(&found, &nodes[r->claimed]); }
    return found;
}

// every node belongs to a call; a kernel launched outside of the operations would be missed
static void check_claimed(const Recorder *r, const Exec *ex) {
    size_t nodes = captured_nodes(ex)->size();
    if (nodes != r->claimed) {
        run_error("%zu captured nodes belong to no operation: launch kernels in operations alone", nodes - r->claimed);
    }
}

static void record_copy(Exec *ex, size_t bytes, double moved, bool from_host) {
    Recorder *r = recorder_of(ex);
    Call call;
    memset(&call, 0, sizeof call);
    call.call.op = "copy";
    call.group = COPIES;
    call.bytes = moved * (double)bytes;
    call.from_host = from_host;
    call.kernels.others = 1;
    if (captured_nodes(ex)) { r->claimed = captured_nodes(ex)->size(); }
    add_call(r, &call, 0);
}

static void start_call(Exec *ex) { check_claimed(recorder_of(ex), ex); }

// ---- the operations: hooks of hooked_ops

static Group group_of(const OpCall *call, const Recorder *r) {
    const GPT2 *m = &r->model;
    const Operand *out = find_operand(call, "out"), *dout = find_operand(call, "dout");
    int i = 0;
    while (strncmp(call->op, group_words[i].word, strlen(group_words[i].word)) != 0) { i++; }
    Group group = group_words[i].group;
    if (group == BLOCK_MATMULS && r->part == UPDATE) { return NEWTON_SCHULZ; }
    return group == BLOCK_MATMULS && (out ? out : dout)->cols == (size_t)m->local.vocab ? HEAD_MATMULS : group;
}

static void before_operation(const OpCall *call, Exec *ex) {
    (void)call;
    start_call(ex);
}

static void after_operation(const OpCall *op, Exec *ex) {
    Recorder *r = recorder_of(ex);
    Call call;
    double host_bytes = 0;
    memset(&call, 0, sizeof call);
    call.call = *op;
    for (Operand *o = call.call.operand; o->name; o++) {
        size_t bytes = dtype_size(o->dtype) * o->rows * o->cols;
        // --offload 2: the norm reads gradients over the link
        if (o->at && simt::memory_kind(o->at, bytes) == simt::PINNED) { host_bytes += (double)bytes; }
        o->at = o->at ? o->name : NULL;  // calls of other arrays with the same shapes are the same
    }
    call.group = group_of(op, r);
    call.bytes = op_call_bytes(op) - host_bytes;
    call.flops = op->flops;
    call.from_host = host_bytes > 0;
    call.kernels = new_nodes(r, ex);
    add_call(r, &call, host_bytes);
}

// ---- copies and fills outside of the operations

static void record_fill(void *p, int byte, size_t bytes, Exec *ex) {
    cuda_device.enqueue_fill(p, byte, bytes, ex);
    record_copy(ex, bytes, 1, false);
}

static void record_upload(void *device, const void *host, size_t bytes, Exec *ex) {
    cuda_device.enqueue_upload(device, host, bytes, ex);
    record_copy(ex, bytes, 1, true);
}

static void record_download(void *host, const void *device, size_t bytes, Exec *ex) {
    cuda_device.enqueue_download(host, device, bytes, ex);
    record_copy(ex, bytes, 1, true);
}

static void record_device_copy(void *to, const void *from, size_t bytes, Exec *ex) {
    cuda_device.enqueue_copy(to, from, bytes, ex);
    record_copy(ex, bytes, 2, false);
}

// ---- copies of --offload, beside the operations

static void record_copy_begin(Exec *ex, LinkEventKind kind, int stream, size_t bytes, CopyWork copy) {
    Recorder *r = recorder_of(ex);
    new_nodes(r, ex);  // the copy
    timeline_add(&r->timeline[r->part], kind, stream, (double)bytes, copy);
}

static CopyWork record_upload_begin(int stream, void *device, const void *host, size_t bytes, Exec *ex) {
    start_call(ex);
    CopyWork copy = cuda_device.upload_begin(stream, device, host, bytes, ex);
    record_copy_begin(ex, LINK_UP, stream, bytes, copy);
    return copy;
}

static CopyWork record_download_begin(int stream, void *host, const void *device, size_t bytes, Exec *ex) {
    start_call(ex);
    CopyWork copy = cuda_device.download_begin(stream, host, device, bytes, ex);
    record_copy_begin(ex, LINK_DOWN, stream, bytes, copy);
    return copy;
}

static void record_copy_wait(CopyWork copy, Exec *ex) {
    Recorder *r = recorder_of(ex);
    Timeline *timeline = &r->timeline[r->part];
    int at = copy ? timeline_find(timeline, copy) : -1;
    cuda_device.copy_wait(copy, ex);
    if (at >= 0) { timeline_add(timeline, LINK_WAIT, at, 0, 0); }
}

// cuda_allocate_host without its memset: the dry run reserves address space, whose pages are zero when they are touched
static void *reserve_host(size_t bytes) {
    void *p = NULL;
    CUDA_CHECK(cudaMallocHost(&p, bytes ? bytes : 256));
    return p;
}

static Device recording_device(void) {
    Device device = cuda_device;
    device.allocate_host = reserve_host;
    device.enqueue_fill = record_fill;
    device.enqueue_upload = record_upload;
    device.enqueue_download = record_download;
    device.enqueue_copy = record_device_copy;
    device.upload_begin = record_upload_begin;
    device.download_begin = record_download_begin;
    device.copy_wait = record_copy_wait;
    return device;
}

// ---- one update

static void begin_recording(Recorder *r) {
    r->claimed = 0;
    cuda_device.capture_begin(&r->model.exec);
}

static void end_recording(Recorder *r) {
    Exec *ex = &r->model.exec;
    check_claimed(r, ex);
    cuda_device.graph_destroy(cuda_device.capture_end(ex));
}

static void record_micro_steps(Recorder *r) {
    GPT2 *m = &r->model;
    int *tokens = (int *)xcalloc((size_t)m->B * (size_t)m->T, sizeof(int));
    for (int micro = 0; micro < m->options.micro_steps && micro < 2; micro++) {
        r->part = micro == 0 ? FIRST_STEP : LATER_STEP;
        gpt2_stage_batch(m, tokens, tokens, not_packed);
        begin_recording(r);
        gpt2_micro_step(m, micro);
        end_recording(r);
    }
    free(tokens);
}

static void record_update(Recorder *r) {
    GPT2 *m = &r->model;
    static const StepHyper hyper = {(real)1e-4, (real)0.9, (real)0.95, (real)1e-8, 0, 1, 1, 1};
    r->times[FIRST_STEP] = r->times[UPDATE] = 1;
    r->times[LATER_STEP] = m->options.micro_steps - 1;
    record_micro_steps(r);
    r->part = UPDATE;
    begin_recording(r);
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    gpt2_norm(m);
    gpt2_update(m, &hyper);
    end_recording(r);
}

// ---- the prediction

typedef struct {
    double seconds[LEVELS], floor, bytes, flops, launches;
} Sums;

typedef struct {
    Sums group[GROUPS], all;
    double gaps[LEVELS], micro_step[LEVELS], update[LEVELS];  // micro_step: the mean of the update's micro-steps
} Prediction;

static double call_seconds(const Roofline *r, const Call *c, Level level) {
    if (is_copy(c)) { return copy_seconds(r, c->bytes, c->from_host, level); }
    if (c->from_host) { return c->kernels.kernels * START[level]; }  // and its bytes over the link: link.h
    return roofline_seconds(r, &c->call, &c->kernels, level) + c->kernels.others * copy_seconds(r, 0, false, level);
}

static double call_floor(const Roofline *r, const Call *c) {
    bool copy = is_copy(c);
    if (!copy && !c->from_host) { return roofline_floor(r, &c->call); }
    return c->bytes / (copy && c->from_host ? PCIE : r->gpu.bandwidth);
}

static void add_sums(Sums *sums, const Roofline *r, const Call *c) {
    for (int level = 0; level < LEVELS; level++) {
        sums->seconds[level] += c->times * call_seconds(r, c, (Level)level);
    }
    sums->floor += c->times * call_floor(r, c);
    sums->bytes += c->times * c->bytes;
    sums->flops += c->times * c->flops;
    sums->launches += c->times * (c->kernels.kernels + c->kernels.others);
}

static Prediction predict(const Recorder *recorder, const Roofline *r) {
    Prediction p;
    memset(&p, 0, sizeof p);
    for (int i = 0; i < recorder->num_calls; i++) {
        const Call *c = &recorder->calls[i];
        add_sums(&p.group[c->group], r, c);
        add_sums(&p.all, r, c);
        for (int level = 0; level < LEVELS; level++) {
            double gaps = launch_gaps(r, &c->call, &c->kernels, (Level)level);
            double *part = c->in_micro_step ? p.micro_step : p.update;
            part[level] += c->times * (gaps + call_seconds(r, c, (Level)level));
            p.gaps[level] += c->times * gaps;
        }
    }
    for (int level = 0; level < LEVELS; level++) {
        p.all.seconds[level] += p.gaps[level];
        p.micro_step[level] /= recorder->model.options.micro_steps;
    }
    return p;
}

// ---- the link

// an update on one link
typedef struct {
    Link link;
    double seconds[LEVELS], slowdown;  // slowdown: expected, against --offload 0
} LinkPrediction;

// the seconds of work in the timelines
static void time_parts(Recorder *recorder, const Roofline *r) {
    for (int part = 0; part < PARTS; part++) {
        Timeline *t = &recorder->timeline[part];
        for (int i = 0; i < t->count; i++) {
            if (t->events[i].kind != LINK_WORK && t->events[i].kind != LINK_READ) { continue; }
            const Call *c = &recorder->calls[t->events[i].at];
            for (int level = 0; level < LEVELS; level++) {
                t->events[i].seconds[level] =
                    call_seconds(r, c, (Level)level) + launch_gaps(r, &c->call, &c->kernels, (Level)level);
            }
        }
    }
}

// Each part waits for all of its copies, so the parts run one after another.
static double link_update_seconds(const Recorder *r, const Link *link, Level level) {
    double seconds = 0;
    for (int part = 0; part < PARTS; part++) {
        seconds += r->times[part] * timeline_seconds(&r->timeline[part], link, level);
    }
    return seconds;
}

// the bytes of an update over the link
static double link_update_bytes(const Recorder *r, bool up) {
    double bytes = 0;
    for (int part = 0; part < PARTS; part++) { bytes += r->times[part] * timeline_bytes(&r->timeline[part], up); }
    return bytes;
}

// Predicts the rows of the table. without: the same flags at --offload 0
static void predict_links(LinkPrediction rows[NUM_LINKS], const Recorder *r, const Recorder *without) {
    Link links[NUM_LINKS];
    known_links(links);
    for (int i = 0; i < NUM_LINKS; i++) {
        rows[i].link = links[i];
        for (int level = 0; level < LEVELS; level++) {
            rows[i].seconds[level] = link_update_seconds(r, &links[i], (Level)level);
        }
        rows[i].slowdown = rows[i].seconds[EXPECTED] / link_update_seconds(without, &links[i], EXPECTED);
    }
}

// ---- output

static double update_tokens(const GPT2 *m) { return (double)m->B * m->T * m->options.micro_steps; }

static bool offloads(const GPT2 *m) { return m->options.sharding.offload > 0; }

static double mfu(const GPT2 *m, const Roofline *r, double seconds) {
    return update_tokens(m) * model_flops_per_token(&m->config, m->T) / seconds / r->peak;
}

static void print_row(const char *name, const Sums *s, double all) {
    printf("| %s | %.0f | %.1f | %.1f | %.2f | %.2f | %.1f %% |\n", name, s->launches, s->bytes / 1e9, s->flops / 1e12,
           1e3 * s->seconds[EXPECTED], 1e3 * s->floor, 100 * s->seconds[EXPECTED] / all);
}

static void print_table(const Recorder *recorder, const Roofline *r, const char *flags) {
    const GPT2 *m = &recorder->model;
    Prediction p = predict(recorder, r);
    double all = p.all.seconds[EXPECTED], tokens = update_tokens(m);
    printf("%s%sin %s on one %s: %.2f of %.1f GiB", flags, *flags ? " " : "", DT_FLOATX == DT_BF16 ? "bf16" : "fp32",
           r->gpu.name, (double)plan_device_bytes(&m->plan) / GPU_GIB, r->gpu.memory / GPU_GIB);
    if (offloads(m)) { printf(", %.2f GiB of pinned host memory", (double)plan_bytes(&m->plan, HOST) / GPU_GIB); }
    printf("\n\n");
    printf("| group | launches | GB | TFLOP | ms | floor, ms | share |\n|---|---|---|---|---|---|---|\n");
    for (int g = 0; g < GROUPS; g++) {
        if (p.group[g].launches > 0) { print_row(group_names[g], &p.group[g], all); }
    }
    printf("| gaps between launches | | | | %.2f | 0 | %.1f %% |\n", 1e3 * p.gaps[EXPECTED],
           100 * p.gaps[EXPECTED] / all);
    print_row("**sum**", &p.all, all);
    int digits = tokens / all < 10e3 ? 2 : tokens / all < 100e3 ? 1 : 0;
    printf("\n%s%.*fK tokens/s (%.*fK to %.*fK), floor %.*fK; MFU %.1f %% (%.1f to %.1f)\n",
           offloads(m) ? "without waits for the link: " : "", digits, tokens / all / 1e3, digits,
           tokens / p.all.seconds[PESSIMISTIC] / 1e3, digits, tokens / p.all.seconds[OPTIMISTIC] / 1e3, digits,
           tokens / p.all.floor / 1e3, 100 * mfu(m, r, all), 100 * mfu(m, r, p.all.seconds[PESSIMISTIC]),
           100 * mfu(m, r, p.all.seconds[OPTIMISTIC]));
    printf("step %.1f ms (%.1f to %.1f): %d micro-step%s of %.2f ms and an update of %.2f ms\n", 1e3 * all,
           1e3 * p.all.seconds[OPTIMISTIC], 1e3 * p.all.seconds[PESSIMISTIC], m->options.micro_steps,
           m->options.micro_steps == 1 ? "" : "s", 1e3 * p.micro_step[EXPECTED], 1e3 * p.update[EXPECTED]);
}

// the line and the table of --offload
static void print_links(const Recorder *recorder, const Recorder *without) {
    const GPT2 *m = &recorder->model;
    LinkPrediction rows[NUM_LINKS];
    predict_links(rows, recorder, without);
    printf("\n--offload %d moves %.2f GB up and %.2f GB down an update; a step at --offload 0 takes %.1f ms\n\n",
           m->options.sharding.offload, link_update_bytes(recorder, true) / 1e9,
           link_update_bytes(recorder, false) / 1e9, 1e3 * link_update_seconds(without, &rows[0].link, EXPECTED));
    printf("| link | GB/s | step, ms | range, ms | K tokens/s | slow-down |\n|---|---|---|---|---|---|\n");
    for (int i = 0; i < NUM_LINKS; i++) {
        const LinkPrediction *p = &rows[i];
        double seconds = p->seconds[EXPECTED];
        printf("| %s | %.1f | %.1f | %.1f to %.1f | %.2f | %.2fx |\n", p->link.name, p->link.rate[EXPECTED] / 1e9,
               1e3 * seconds, 1e3 * p->seconds[OPTIMISTIC], 1e3 * p->seconds[PESSIMISTIC],
               update_tokens(m) / seconds / 1e3, p->slowdown);
    }
}

static void print_json(const Recorder *recorder, const Roofline *r) {
    const GPT2 *m = &recorder->model;
    Sums all = predict(recorder, r).all;
    for (int i = 0; i < recorder->num_calls; i++) {
        const Call *c = &recorder->calls[i];
        printf("{\"operation\":\"%s\",\"group\":\"%s\",\"times\":%.0f,\"kernels\":%d,\"others\":%d,\"flops\":%.0f}\n",
               c->call.op, group_names[c->group], c->times, c->kernels.kernels, c->kernels.others, c->flops);
    }
    printf("{\"launches\":%.0f,\"flops\":%.0f,\"model_flops_per_token\":%.0f,\"bytes_up\":%.0f,\"bytes_down\":%.0f}\n",
           all.launches, all.flops, model_flops_per_token(&m->config, m->T), link_update_bytes(recorder, true),
           link_update_bytes(recorder, false));
}

// ---- the command line

static GpuModel gpu_of_word(const char *word) {
    GpuModel gpu;
    double tflops, gigabytes_per_second, gibibytes;
    char rest;
    memset(&gpu, 0, sizeof gpu);
    for (int i = 0; i < NUM_GPUS; i++) {
        if (strcasecmp(word, known_gpus[i].name) == 0) { return known_gpus[i]; }
    }
    int found = sscanf(word, "sm_%d,%d,%lf,%lf,%lf%c", &gpu.capability, &gpu.multiprocessors, &tflops,
                       &gigabytes_per_second, &gibibytes, &rest);
    if (found != 5 || gpu.multiprocessors < 1 || !(tflops > 0 && gigabytes_per_second > 0 && gibibytes > 0)) {
        char names[128] = "";
        for (int i = 0; i < NUM_GPUS; i++) {
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s, ", known_gpus[i].name);
        }
        input_error("--gpu %s: expected %sor sm_CAPABILITY,MULTIPROCESSORS,TFLOPS,GB/S,GIB as in "
                    "sm_90,132,989,4800,139.8 (TFLOPS of tensor cores: dense, 16-bit inputs, fp32 sums)",
                    word, names);
    }
    snprintf(gpu.name, sizeof gpu.name, "%.31s", word);
    gpu.matmul_flops = 1e12 * tflops;
    gpu.fp32_flops = gpu.matmul_flops / (gpu.capability < 80 ? 8 : 16);
    gpu.bandwidth = 1e9 * gigabytes_per_second;
    gpu.memory = GPU_GIB * gibibytes;
    return gpu;
}

// Takes --gpu and --json out of the arguments. Returns how many are left.
static int own_flags(int argc, char **argv, const char **gpu, bool *json) {
    int left = 1;
    for (int at = 1; at < argc; at++) {
        if (strcmp(argv[at], "--json") == 0) {
            *json = true;
        } else if (strcmp(argv[at], "--gpu") == 0) {
            if (at + 1 == argc) { input_error("--gpu takes a GPU's name, and none follows; give --gpu h200"); }
            *gpu = argv[++at];
        } else {
            argv[left++] = argv[at];
        }
    }
    return left;
}

static void check_arithmetic(const GpuModel *gpu) {
    if (gpu->capability < 75) {
        input_error("--gpu %s has compute capability %d.%d, and the program needs 7.5", gpu->name, gpu->capability / 10,
                    gpu->capability % 10);
    }
    if (DT_FLOATX == DT_BF16 && gpu->capability < 80) {
        input_error(
            "--gpu %s has no bf16; build/bench/predict_fp32, which make predict GPU=%s builds and runs, predicts "
            "the fp32 build",
            gpu->name, gpu->name);
    }
}

static void check_one_gpu(const TrainArgs *a) {
    if (num_ranks(a) > 1) { input_error("a prediction is for one GPU, found %d ranks; leave out -pn", num_ranks(a)); }
    if (a->fit) {
        input_error("--fit is not predicted: make plan with --fit=GIB prints flags, which can be given here");
    }
    if (a->generate > 0 || a->self_check) {
        input_error("a prediction is of a training step; leave out --generate and --self-check");
    }
}

static void check_fits(const GPT2 *m, const GpuModel *gpu) {
    double bytes = (double)plan_device_bytes(&m->plan);
    if (bytes <= gpu->memory) { return; }
    input_error("the plan takes %.1f GiB, but --gpu %s has %.1f GiB; give a smaller -b, a larger -r, -om "
                "bf16 or --offload",
                bytes / GPU_GIB, gpu->name, gpu->memory / GPU_GIB);
}

// Builds the model in address space alone and records an update.
static void record_training(Recorder *r, const GPT2Config *config, ModelOptions options, Comm *alone) {
    options.graph = false;  // begin_recording captures
    Groups groups = {alone, alone, alone};
    gpt2_build(&r->model, *config, options, groups);
    r->hooks = OpHooks{&cuda_ops, before_operation, after_operation, NULL};
    r->model.exec.hooks = &r->hooks;
    r->model.exec.skip_autotune = true;  // cuBLASLt's first choice, with all epilogues: nothing is timed
    record_update(r);
}

// The same options at --offload 0.
static Recorder *record_without_offload(const GPT2 *m, Comm *alone) {
    Recorder *r = (Recorder *)xcalloc(1, sizeof *r);
    ModelOptions options = m->options;
    options_set_offload(&options, 0);
    record_training(r, &m->config, options, alone);
    return r;
}

static void recorder_free(Recorder *r) {
    gpt2_free(&r->model);
    for (int part = 0; part < PARTS; part++) { free(r->timeline[part].events); }
    free(r->calls);
    free(r);
}

// --plan: what the trainer prints on a machine with this GPU
static void plan_on(const GpuModel *gpu, int argc, char **argv) {
    TrainArgs args;
    cJSON *run_flags = read_flags(&args, argc, argv);
    if (args.device == DEVICE_AUTO) { args.device = DEVICE_CUDA; }
    Comm *alone = comm_single(&cpu_device);
    simt::runtime().device_bytes = (size_t)gpu->memory;  // for -r auto and --fit without a number
    args_set_ranks(&args, alone);
    require_consistent_flags(&args);
    plan_memory(&args, alone);
    cJSON_Delete(run_flags);
    comm_close(alone);
}

int main(int argc, char **argv) {
    const char *gpu_word = "h200";
    bool json = false;
    char flags[512] = "";
    argc = own_flags(argc, argv, &gpu_word, &json);
    GpuModel gpu = gpu_of_word(gpu_word);
    check_arithmetic(&gpu);
    simt::settings().capability = gpu.capability;
    TrainArgs args = default_args;
    flags_parse(flag_table, NUM_FLAGS, &args, argc, argv);
    if (args.help || args.version) {
        printf("%s [--gpu NAME] [--json] [flags of train_gpt2]\n%s", argv[0],
               "predicts a training step; dev/bench/predict.cu explains, doc/gpu.md has examples\n");
        return 0;
    }
    if (args.plan) {
        plan_on(&gpu, argc, argv);
        return 0;
    }
    require_consistent_flags(&args);
    check_one_gpu(&args);
    for (int i = 1; i < argc; i++) {
        snprintf(flags + strlen(flags), sizeof flags - strlen(flags), "%s%s", *flags ? " " : "", argv[i]);
    }
    setenv("TRAIN_GPT2_AUTOTUNE_CACHE", "", 1);  // no autotune cache
    simt::runtime().dry_run = true;
    Device device = recording_device();
    Backend backend = cuda_backend;
    backend.ops = &hooked_ops;
    backend.device = &device;
    Comm *alone = comm_single(&device);
    Recorder *recorder = (Recorder *)xcalloc(1, sizeof *recorder);
    char chosen[FLAG_TEXT];
    GPT2Config config = model_source(&args, GPT2_VOCAB).config;
    require_length(&args, &config);
    simt::runtime().device_bytes = (size_t)gpu.memory;  // for -r auto
    ModelOptions options = choose_options(chosen, &args, &config, &backend, alone);
    simt::runtime().device_bytes = (size_t)1 << 50;  // check_fits knows the GPU's
    record_training(recorder, &config, options, alone);
    if (!json) { check_fits(&recorder->model, &gpu); }
    if (*chosen) { snprintf(flags + strlen(flags), sizeof flags - strlen(flags), " (%s)", chosen); }
    const GPT2 *m = &recorder->model;
    Roofline roofline =
        roofline_open(&gpu, backend.matmul_workspace_bytes(&m->config, &m->local, m->B, m->T), m->options.tf32);
    if (json) {
        print_json(recorder, &roofline);
    } else {
        print_table(recorder, &roofline, flags);
        if (offloads(m)) {
            Recorder *without = record_without_offload(m, alone);
            time_parts(recorder, &roofline);
            time_parts(without, &roofline);
            print_links(recorder, without);
            recorder_free(without);
        }
    }
    recorder_free(recorder);
    comm_close(alone);
    return 0;
}
