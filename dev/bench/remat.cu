/*
Time and memory of every level of recomputation, as a Markdown table.
    remat [-e MODEL] [-b B] [-t T] [other flags of train_gpt2]       default: -e l4h4c128 -b 12 -t 64
The levels take turns. A round builds a model for each level, warms it up, and times updates of random tokens for a
quarter of a second; the level's time is their median. The table has the median, lowest and highest time of all rounds,
and the median ratio to `-r 0`. Both times of a ratio are from one round, so a busy neighbour slows down both.
Memory: saved activations and scratch.
*/
#define WITHOUT_MAIN
#include "../../train_gpt2.cu"

enum { ROUNDS = 15, WARM_UP = 3, MOST_RUNS = 1000 };
static const double ROUND_SECONDS = 0.25;

typedef struct {
    const char *flags, *recomputed;
    int level, every, half;  // half: only L/2 blocks
} Level;

static const Level levels[] = {
    {"-r 0", "nothing", 0, 1, 0},
    {"-r 1", "GELU", 1, 1, 0},
    {"-r 2", "also layernorms", 2, 1, 0},
    {"-r 3", "also the up-projection", 3, 1, 0},
    {"-r 4", "blocks", 4, 1, 0},
    {"-r 4 -rn L/2", "half of the blocks", 4, 1, 1},
    {"-r 4 -rk 2", "pairs of blocks", 4, 2, 0},
};
enum { NUM_LEVELS = sizeof levels / sizeof levels[0] };

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// sorts x
static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

static void one_update(GPT2 *m, const int *tokens, const StepHyper *hyper) {
    real results[2];
    m->device->enqueue_fill(m->loss, 0, sizeof(real), &m->exec);
    for (int micro = 0; micro < m->options.micro_steps; micro++) {
        gpt2_stage_batch(m, tokens, tokens + 1, not_packed);
        gpt2_micro_step(m, micro);
    }
    gpt2_norm(m);
    gpt2_update(m, hyper);
    m->device->download(results, m->loss, sizeof results);  // waits
}

// Returns the median milliseconds of an update. *mib: saved activations and scratch.
static double time_level(const TrainArgs *a, const GPT2Config *c, const Level *level, const int *tokens, double *mib) {
    static double ms[MOST_RUNS];
    TrainArgs args = *a;
    args.recompute = level->level;
    args.recompute_every = level->every;
    args.recompute_layers = level->half ? c->num_layers / 2 : -1;
    GPT2 m;
    const Backend *backend = backend_choose((DeviceChoice)a->device, true);
    Comm *alone = comm_single(backend->device);
    Groups groups = {alone, alone, alone};
    gpt2_build(&m, *c, model_options(&args, c, backend), groups);
    gpt2_init(&m, 1);
    *mib = mebibytes(plan_bytes(&m.plan, SAVED) + plan_bytes(&m.plan, SCRATCH));
    StepHyper hyper = {(real)1e-4, (real)0.9, (real)0.95, (real)1e-8, 0, 1, 1, 1};
    int runs = 0;
    double start = 0;
    for (int i = -WARM_UP; runs < MOST_RUNS && (i <= 0 || now_seconds() - start < ROUND_SECONDS); i++) {
        double before = now_seconds();
        if (i == 0) { start = before; }
        one_update(&m, tokens, &hyper);
        if (i >= 0) { ms[runs++] = (now_seconds() - before) * 1000; }
    }
    gpt2_free(&m);
    comm_close(alone);
    return median(ms, runs);
}

static int *random_tokens(size_t count, int vocab_size) {
    int *tokens = (int *)xmalloc(count * sizeof(int));
    for (size_t i = 0; i < count; i++) { tokens[i] = (int)(rng_uniform(1, 1, i) * vocab_size); }
    return tokens;
}

int main(int argc, char **argv) {
    TrainArgs args = default_args;
    args.model = "l4h4c128";
    args.B = 12;
    args.T = 64;
    args.sample_every = 0;
    flags_parse(flag_table, NUM_FLAGS, &args, argc, argv);
    args_check(&args);
    if (args.threads > 0) { omp_set_num_threads(args.threads); }
    GPT2Config config = model_source(&args, BYTE_VOCABULARY).config;
    int *tokens = random_tokens((size_t)args.B * (size_t)args.T + 1, config.vocab_size);
    static double of_round[NUM_LEVELS][ROUNDS], ratio[NUM_LEVELS][ROUNDS], mib[NUM_LEVELS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < NUM_LEVELS; i++) {
            of_round[i][round] = time_level(&args, &config, &levels[i], tokens, &mib[i]);
            ratio[i][round] = of_round[i][round] / of_round[0][round];
        }
    }
    printf("%s, -b %d -t %d, %s\n\n", args.model, args.B, args.T, dtype_name(DT_FLOATX));
    printf("| flags | recomputed | activations, MiB | less memory | an update, ms | more time |\n");
    printf("|---|---|---|---|---|---|\n");
    for (int i = 0; i < NUM_LEVELS; i++) {
        double ms = median(of_round[i], ROUNDS), low = of_round[i][0], high = of_round[i][ROUNDS - 1];
        printf("| `%s` | %s | %.1f | %.0f %% | %.2f (%.2f to %.2f) | %+.1f %% |\n", levels[i].flags,
               levels[i].recomputed, mib[i], 100 * (1 - mib[i] / mib[0]), ms, low, high,
               100 * (median(ratio[i], ROUNDS) - 1));
    }
    free(tokens);
    return 0;
}
