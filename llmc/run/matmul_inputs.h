/*
-f auto and -f 2 on a CPU: whether fp32 matmuls are faster with inputs rounded to bf16, by measurement.
The matmuls of one transformer block, with the shapes of this rank, run in turns with both types of inputs: forward and
backward, in memory that is freed before the model is built. The bits of training depend on the times only through the
choice. All ranks measure at once. The times of a pass are those of the slowest rank, so all ranks choose alike.
The times are remembered in a JSON file: {"KEY":[fp32,bf16],...} in milliseconds. KEY names version, compiler, CPU,
threads, ranks and shapes. With the same file the same command makes the same choice. A resumed run keeps the -f of its
config.json.
defines: InputTimes, InputTrial, INPUT_GAIN, recall_times, remember_times, time_inputs, choose_by_trial,
         choose_matmul_inputs
*/
#pragma once
#include "llmc/run/model_options.h"
#include "llmc/run/version.h"

enum { INPUT_TURNS = 50, INPUT_LEAST_TURNS = 3 };
#define INPUT_MS 500.0   // later no turn starts, except the first INPUT_LEAST_TURNS
#define INPUT_GAIN 0.95  // bf16 inputs, which lose precision, are chosen if they take at most this share of the time

// milliseconds of a pass, the best of all turns; 0: unknown
typedef struct {
    double fp32, bf16;
} InputTimes;

typedef struct {
    bool possible;                               // the build and the machine have bf16 inputs
    const char *cache;                           // the file of times; NULL: none
    char key[512];                               // in the file
    double (*pass)(void *of, bool bf16_inputs);  // runs the matmuls once and returns milliseconds
    void *of;
} InputTrial;

// ---- the cache

// The times in the file, or {0, 0}. A file that is missing, damaged or of another version is the same as an empty one.
static inline InputTimes recall_times(const char *path, const char *key) {
    cJSON *cache = path ? try_read_json(path) : NULL;
    const cJSON *item = cache ? cJSON_GetObjectItemCaseSensitive(cache, key) : NULL;
    double ms[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        const cJSON *number = cJSON_GetArrayItem(item, i);
        if (number) { ms[i] = number->valuedouble; }  // 0 if it is no number
    }
    bool valid = cJSON_IsArray(item) && isfinite(ms[0]) && isfinite(ms[1]) && ms[0] > 0 && ms[1] > 0;
    cJSON_Delete(cache);
    InputTimes times = {valid ? ms[0] : 0, valid ? ms[1] : 0};
    return times;
}

// Adds the times to the file, which is replaced atomically. A failure does not stop the run.
static inline void remember_times(const char *path, const char *key, InputTimes times) {
    cJSON *cache = path ? try_read_json(path) : NULL;
    const double ms[2] = {times.fp32, times.bf16};
    if (!path) { return; }
    if (!cache) { cache = cJSON_CreateObject(); }
    while (cJSON_GetObjectItemCaseSensitive(cache, key)) { cJSON_DeleteItemFromObjectCaseSensitive(cache, key); }
    cJSON_AddItemToObject(cache, key, cJSON_CreateDoubleArray(ms, 2));
    int error = write_json(path, cache);
    cJSON_Delete(cache);
    if (error) {
        fprintf(stderr,
                "train_gpt2: could not write %s: %s; the next run will time its matmuls again (TRAIN_GPT2_PICKS names "
                "another file)\n",
                path, strerror(error));
    }
}

// ---- the measurement

// the milliseconds of the slowest rank; the ranks begin the next pass together
static inline double slowest_pass(const InputTrial *trial, bool bf16_inputs, Comm *world) {
    return (double)comm_max(llround(trial->pass(trial->of, bf16_inputs) * 1e6), world) / 1e6;
}

// The best times of passes in turns. Other programs that run for a while slow down both.
static inline InputTimes time_inputs(const InputTrial *trial, Comm *world) {
    InputTimes best = {INFINITY, INFINITY};
    double total = 0;
    comm_barrier(world);
    for (int i = 0; i < INPUT_TURNS && (i < INPUT_LEAST_TURNS || total < INPUT_MS); i++) {
        double fp32 = slowest_pass(trial, false, world);
        double bf16 = slowest_pass(trial, true, world);
        best.fp32 = fmin(best.fp32, fp32);
        best.bf16 = fmin(best.bf16, bf16);
        total += fp32 + bf16;
    }
    return best;
}

// the times that rank 0 remembers, else new ones; the same on all ranks
static inline InputTimes find_times(const InputTrial *trial, Comm *world) {
    InputTimes times = recall_times(world->rank == 0 ? trial->cache : NULL, trial->key);
    comm_broadcast_host(&times, sizeof times, 0, world);
    if (times.fp32 > 0) { return times; }
    times = time_inputs(trial, world);
    if (world->rank == 0) { remember_times(trial->cache, trial->key, times); }
    return times;
}

// ---- the choice

// choose_matmul_inputs for any InputTrial; tests simulate one
static inline void choose_by_trial(FILE *out, TrainArgs *a, ModelOptions *o, const InputTrial *trial, Comm *world) {
    bool automatic = a->matmul_precision == MATMUL_AUTO, on_cpu = o->backend == &cpu_backend && DT_FLOATX == DT_F32;
    InputTimes t = {0, 0};
    if (a->chosen & CHOSEN_MATMUL_PRECISION) {
        bool bf16 = a->matmul_precision == 2, kept = o->round_matmul_inputs == bf16;
        if (on_cpu && kept) { fprintf(out, "matmuls   %s inputs, as when the run began\n", bf16 ? "bf16" : "fp32"); }
        return;
    }
    if (a->matmul_precision < 2) { return; }
    bool possible = comm_max(!trial->possible, world) == 0;
    if (possible) { t = find_times(trial, world); }
    if (automatic) {
        o->round_matmul_inputs = possible && t.bf16 <= INPUT_GAIN * t.fp32;
        a->matmul_precision = o->round_matmul_inputs ? 2 : 1;
        a->chosen |= CHOSEN_MATMUL_PRECISION;
    }
    if (!possible && automatic && on_cpu) {
        fprintf(out, "matmuls   fp32 inputs (-f auto: no bf16 instructions here)\n");
    } else if (possible && !automatic && t.bf16 * INPUT_GAIN > t.fp32) {
        fprintf(out,
                "note      -f 2 is slower here: a block's matmuls take %.3g ms with bf16 inputs, %.3g with fp32; use "
                "-f 1 or -f auto\n",
                t.bf16, t.fp32);
    } else if (possible) {
        bool bf16 = o->round_matmul_inputs;
        fprintf(out, "matmuls   %s inputs: a block's matmuls take %.3g ms, %s %.3g (-f %s)\n", bf16 ? "bf16" : "fp32",
                bf16 ? t.bf16 : t.fp32, bf16 ? "fp32" : "bf16", bf16 ? t.fp32 : t.bf16, automatic ? "auto" : "2");
    }
}

// ---- the matmuls of a block

enum { MATMULS_OF_BLOCK = 4 };

// matmul i is in (N,C[i]) -> out (N,OC[i])
typedef struct {
    int N, C[MATMULS_OF_BLOCK], OC[MATMULS_OF_BLOCK];
    floatX *memory;  // NULL before the first pass
    floatX *in[MATMULS_OF_BLOCK], *dinp[MATMULS_OF_BLOCK], *out[MATMULS_OF_BLOCK], *weight[MATMULS_OF_BLOCK];
    floatX *dweight[MATMULS_OF_BLOCK];
} BlockMatmuls;

// qkv, the attention projection, and the MLP's two matmuls, with the slices of this rank
static inline BlockMatmuls block_matmuls(const GPT2Config *c, const ModelOptions *o) {
    LocalShape local = options_local_shape(c, o);
    int C = c->channels, A = local.attention, U = local.units;
    BlockMatmuls b = {.N = o->B * o->T, .C = {C, A, C, U}, .OC = {3 * A, C, U, C}};
    return b;
}

// Places the tensors in memory, or returns their number of elements if memory is NULL.
static inline size_t block_matmuls_place(BlockMatmuls *b, floatX *memory) {
    size_t at = 0;
    for (int i = 0; i < MATMULS_OF_BLOCK; i++) {
        const size_t rows = (size_t)b->N, in = (size_t)b->C[i], out = (size_t)b->OC[i];
        const size_t elements[] = {rows * in, rows * in, rows * out, in * out, in * out};
        floatX **const tensors[] = {&b->in[i], &b->dinp[i], &b->out[i], &b->weight[i], &b->dweight[i]};
        for (int k = 0; k < 5; k++) {
            if (memory) { *tensors[k] = memory + at; }
            at += elements[k];
        }
    }
    return at;
}

// the first pass allocates the memory; numbers between -1 and 1, since untouched memory is one page of zeros
static inline void block_matmuls_open(BlockMatmuls *b) {
    size_t elements = block_matmuls_place(b, NULL);
    b->memory = (floatX *)xmalloc(elements * sizeof(floatX));
    block_matmuls_place(b, b->memory);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < elements; i++) { b->memory[i] = to_floatX((real)(i % 31) / 16 - 1); }
}

// InputTrial.pass of a BlockMatmuls
static inline double block_matmuls_pass(void *of, bool bf16_inputs) {
    BlockMatmuls *b = (BlockMatmuls *)of;
    Exec ex;
    memset(&ex, 0, sizeof ex);
    ex.bf16_inputs = bf16_inputs;
    if (!b->memory) { block_matmuls_open(b); }
    double start = now_seconds();
    for (int i = 0; i < MATMULS_OF_BLOCK; i++) {
        cpu_matmul_forward(b->out[i], b->in[i], b->weight[i], NULL, NULL, b->N, b->C[i], b->OC[i], &ex);
    }
    for (int i = MATMULS_OF_BLOCK - 1; i >= 0; i--) {
        const Gradient dweight = {b->dweight[i], DT_FLOATX};
        cpu_matmul_backward(b->dinp[i], dweight, no_gradient, no_gradient, b->out[i], b->in[i], b->weight[i], NULL,
                            GRAD_SET, b->N, b->C[i], b->OC[i], &ex);
    }
    return (now_seconds() - start) * 1000;
}

// name = the CPU's, as in /proc/cpuinfo; on x86 with family and model, as two generations may share a name
static inline void cpu_name(char name[192]) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256], model_name[128] = "unknown CPU";
    int family = 0, model = 0;
    while (file && fgets(line, sizeof line, file) && *line != '\n') {  // an empty line ends the first CPU
        sscanf(line, "model name : %127[^\n]", model_name);
        sscanf(line, "cpu family : %d", &family);
        sscanf(line, "model : %d", &model);
    }
    if (file) { fclose(file); }
    snprintf(name, 192, "%s, family %d model %d", model_name, family, model);
}

// Another version of the program, or of the compiler, measures again.
static inline void block_matmuls_key(char *key, size_t size, const BlockMatmuls *b, const Comm *world) {
    char cpu[192];
    cpu_name(cpu);
    snprintf(key, size, "train_gpt2 %s%s, %s, %s, %d threads, %d ranks, %d rows", TRAIN_GPT2_VERSION, CPU_LEVEL,
             __VERSION__, cpu, omp_get_max_threads(), world->size, b->N);
    for (int i = 0; i < MATMULS_OF_BLOCK; i++) {
        snprintf(key + strlen(key), size - strlen(key), ", %dx%d", b->OC[i], b->C[i]);
    }
}

// -f auto: sets -f to 2 if bf16 inputs are faster, else to 1, and prints the choice and its times. -f 2 stays, and a
// note says that it is slower. A resumed run keeps the choice of its first start. All ranks call this together.
static inline void choose_matmul_inputs(FILE *out, TrainArgs *a, const GPT2Config *c, ModelOptions *o, Comm *world) {
    char path[2 * PATH_LENGTH];
    BlockMatmuls b = block_matmuls(c, o);
    InputTrial trial = {takes_bf16_inputs(o->backend), NULL, "", block_matmuls_pass, &b};
    if (a->matmul_precision >= 2 && trial.possible) {
        trial.cache = autotune_cache_path(path, "matmul_inputs.json", ".inputs");
    }
    block_matmuls_key(trial.key, sizeof trial.key, &b, world);
    choose_by_trial(out, a, o, &trial, world);
    free(b.memory);
}
