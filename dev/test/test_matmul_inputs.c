/*
-f auto and -f 2: the choice of matmul inputs by simulated times, the file of times, several ranks, and resumed runs. No
test reads a clock to decide.
*/
#include "testing.h"
#include "llmc/run/matmul_inputs.h"
#include <pthread.h>

// ---- a machine whose passes take given times

typedef struct {
    double fp32, bf16;  // milliseconds of a pass
    int passes;
    bool last;  // inputs of the last pass
} Machine;

static double simulated_pass(void *of, bool bf16_inputs) {
    Machine *m = (Machine *)of;
    double slow_turn = m->passes / 2 % 7 == 0 ? 5 : 1;  // the first turn is cold; another program delays others
    if (m->passes > 0) { assert_true(bf16_inputs != m->last); }
    m->last = bf16_inputs;
    m->passes++;
    return slow_turn * (bf16_inputs ? m->bf16 : m->fp32);
}

static InputTrial trial_of(Machine *m, const char *cache) {
    InputTrial trial = {true, cache, "this machine", simulated_pass, m};
    return trial;
}

typedef struct {
    TrainArgs args;
    ModelOptions options;
    char text[512];  // printed
} Choice;

// the choice for -f `precision`; before: CHOSEN_MATMUL_PRECISION, or 0
static Choice choose_on(const InputTrial *trial, int precision, int before, Comm *world) {
    static const GPT2Config config = {16, 256, 256, 1, 1, 16};
    char *text = NULL;
    size_t size;
    Choice c;
    c.args = default_args;
    c.args.matmul_precision = precision;
    c.args.chosen = before;
    c.options = model_options(&c.args, &config, &cpu_backend);
    c.options.round_matmul_inputs = precision == 2 && trial->possible;  // also in a build without bf16 inputs
    FILE *out = open_memstream(&text, &size);
    choose_by_trial(out, &c.args, &c.options, trial, world);
    fclose(out);
    snprintf(c.text, sizeof c.text, "%s", text);
    free(text);
    return c;
}

static Choice choose(Machine m, int precision) {
    Comm *world = comm_single(&cpu_device);
    InputTrial trial = trial_of(&m, NULL);
    Choice c = choose_on(&trial, precision, 0, world);
    comm_close(world);
    return c;
}

static void assert_choice(Choice c, int precision, bool chosen, const char *text) {
    assert_int_equal(c.args.matmul_precision, precision);
    assert_int_equal(c.options.round_matmul_inputs, precision == 2);
    assert_int_equal(c.args.chosen, chosen ? CHOSEN_MATMUL_PRECISION : 0);
    assert_string_equal(c.text, text);
}

static Machine machine(double fp32, double bf16) {
    Machine m = {fp32, bf16, 0, false};
    return m;
}

// ---- one rank

static void test_auto_takes_the_faster_inputs(void **state) {
    (void)state;
    assert_choice(choose(machine(10.2, 7.13), MATMUL_AUTO), 2, true,
                  "matmuls   bf16 inputs: a block's matmuls take 7.13 ms, fp32 10.2 (-f auto)\n");
    assert_choice(choose(machine(7.13, 10.2), MATMUL_AUTO), 1, true,
                  "matmuls   fp32 inputs: a block's matmuls take 7.13 ms, bf16 10.2 (-f auto)\n");
}

static void test_auto_needs_a_gain(void **state) {
    (void)state;
    assert_int_equal(choose(machine(100, 94), MATMUL_AUTO).args.matmul_precision, 2);
    assert_int_equal(choose(machine(100, 96), MATMUL_AUTO).args.matmul_precision, 1);
}

static void test_2_stays_and_says_when_it_is_slower(void **state) {
    (void)state;
    assert_choice(choose(machine(7, 10), 2), 2, false,
                  "note      -f 2 is slower here: a block's matmuls take 10 ms with bf16 inputs, 7 with fp32; use -f 1 "
                  "or -f auto\n");
    assert_choice(choose(machine(10, 7), 2), 2, false,
                  "matmuls   bf16 inputs: a block's matmuls take 7 ms, fp32 10 (-f 2)\n");
    assert_true(strstr(choose(machine(100, 106), 2).text, "slower"));
    assert_null(strstr(choose(machine(100, 104), 2).text, "slower"));
}

static void test_0_and_1_measure_nothing(void **state) {
    (void)state;
    Comm *world = comm_single(&cpu_device);
    for (int precision = 0; precision < 2; precision++) {
        Machine m = machine(10, 1);
        InputTrial trial = trial_of(&m, NULL);
        assert_choice(choose_on(&trial, precision, 0, world), precision, false, "");
        assert_int_equal(m.passes, 0);
    }
    comm_close(world);
}

static void test_a_machine_without_bf16(void **state) {
    (void)state;
    Comm *world = comm_single(&cpu_device);
    Machine m = machine(10, 1);
    InputTrial trial = trial_of(&m, NULL);
    trial.possible = false;
    assert_choice(choose_on(&trial, MATMUL_AUTO, 0, world), 1, true,
                  "matmuls   fp32 inputs (-f auto: no bf16 instructions here)\n");
    Choice c = choose_on(&trial, 2, 0, world);  // print_machine_lines says that -f 2 does nothing
    assert_int_equal(c.args.matmul_precision, 2);
    assert_false(c.options.round_matmul_inputs);
    assert_string_equal(c.text, "");
    c = choose_on(&trial, 2, CHOSEN_MATMUL_PRECISION, world);  // a run that began elsewhere
    assert_int_equal(c.args.matmul_precision, 2);
    assert_string_equal(c.text, "");
    assert_int_equal(m.passes, 0);
    comm_close(world);
}

// the best of all turns, and few turns of long passes
static void test_turns(void **state) {
    (void)state;
    Comm *world = comm_single(&cpu_device);
    const double ms[] = {0.1, 50, 3000};
    const int turns[] = {INPUT_TURNS, 3, INPUT_LEAST_TURNS};  // 50: the cold turn takes 500 ms
    for (int i = 0; i < 3; i++) {
        Machine m = machine(ms[i], ms[i] / 2);
        InputTrial trial = trial_of(&m, NULL);
        InputTimes times = time_inputs(&trial, world);
        assert_true(fabs(times.fp32 - ms[i]) < 1e-5 && fabs(times.bf16 - ms[i] / 2) < 1e-5);
        assert_int_equal(m.passes, 2 * turns[i]);
    }
    Machine m = machine(20, 10);
    InputTrial trial = trial_of(&m, NULL);
    time_inputs(&trial, world);
    assert_int_equal(m.passes, 2 * 9);  // 150 ms, 6 turns of 30 ms, 150 ms, 30 ms
    comm_close(world);
}

// ---- the file of times

static void test_the_file_decides_the_next_choice(void **state) {
    (void)state;
    Comm *world = comm_single(&cpu_device);
    const char *path = temp_path("times.json");
    for (int start = 0; start < 3; start++) {
        Machine m = start == 0 ? machine(10, 5) : machine(5, 10);
        InputTrial trial = trial_of(&m, path);
        if (start == 2) { strcpy(trial.key, "another CPU"); }
        assert_int_equal(choose_on(&trial, MATMUL_AUTO, 0, world).args.matmul_precision, start < 2 ? 2 : 1);
        assert_int_equal(m.passes > 0, start != 1);
    }
    InputTimes known = recall_times(path, "this machine"), other = recall_times(path, "another CPU");
    assert_true(known.fp32 == 10 && known.bf16 == 5 && other.fp32 == 5 && other.bf16 == 10);
    assert_true(access(temp_path("times.json.part"), F_OK) != 0);
    comm_close(world);
}

static void test_a_damaged_file_is_written_again(void **state) {
    (void)state;
    const char *const texts[] = {
        "",
        "not JSON",
        "[]",
        "{",
        "{\"this machine\":[10,5]",
        "{\"this machine\":10}",
        "{\"this machine\":[10]}",
        "{\"this machine\":[]}",
        "{\"this machine\":[10,null]}",
        "{\"this machine\":[\"10\",\"5\"]}",
        "{\"this machine\":[0,5]}",
        "{\"this machine\":[10,-5]}",
        "{\"this machine\":[10,1e999]}",
        "{\"this machine\":[0,0],\"this machine\":[10,5]}",
        "{\"this machine\":{\"fp32\":10,\"bf16\":5}}",
    };
    Comm *world = comm_single(&cpu_device);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        Machine m = machine(5, 10);
        const char *path = write_file("damaged.json", texts[i], strlen(texts[i]));
        InputTrial trial = trial_of(&m, path);
        if (choose_on(&trial, MATMUL_AUTO, 0, world).args.matmul_precision != 1 || m.passes == 0) {
            fail_msg("'%s' is used", texts[i]);
        }
        InputTimes times = recall_times(path, "this machine");
        if (times.fp32 != 5 || times.bf16 != 10) { fail_msg("'%s' is not written again", texts[i]); }
    }
    comm_close(world);
}

static void choose_without_a_folder(void *cache) {
    Machine m = machine(10, 5);
    InputTrial trial = trial_of(&m, (const char *)cache);
    Choice c = choose_on(&trial, MATMUL_AUTO, 0, comm_single(&cpu_device));
    exit(c.args.matmul_precision);
}

// as in a home that cannot be written: the choice counts
static void test_a_file_that_cannot_be_written(void **state) {
    (void)state;
    write_file("file", "", 0);
    assert_stops(2, "the next run will time its matmuls again", choose_without_a_folder,
                 (void *)temp_path("file/times.json"));
}

// ---- resumed runs

static void test_a_resumed_run_keeps_its_choice(void **state) {
    (void)state;
    Comm *world = comm_single(&cpu_device);
    for (int precision = 0; precision <= 2; precision++) {
        Machine m = precision == 2 ? machine(5, 10) : machine(10, 5);
        InputTrial trial = trial_of(&m, NULL);
        Choice c = choose_on(&trial, precision, CHOSEN_MATMUL_PRECISION, world);
        assert_choice(c, precision, true,
                      precision == 2 ? "matmuls   bf16 inputs, as when the run began\n"
                                     : "matmuls   fp32 inputs, as when the run began\n");
        assert_int_equal(m.passes, 0);
    }
    comm_close(world);
}

// -f and "chosen" of a resumed run, whose config.json has `saved`, for -f `given`; NULL: without -f
static void assert_resumed(const char *saved, const char *given, int precision, int chosen) {
    char json[128];
    char *arguments[] = {(char *)"train_gpt2", (char *)"-y", (char *)"1",          (char *)"-o",
                         (char *)temp_dir(),   (char *)"-f", (char *)(void *)given};
    TrainArgs a;
    snprintf(json, sizeof json, "{%s}", saved);
    write_file("config.json", json, strlen(json));
    cJSON *read = read_flags(&a, given ? 7 : 5, arguments);
    assert_non_null(read);
    if (a.matmul_precision != precision || a.chosen != chosen) {
        fail_msg("%s and -f %s: -f %d, chosen %d", saved, given ? given : "absent", a.matmul_precision, a.chosen);
    }
    cJSON_Delete(read);
}

static void test_flags_of_a_resumed_run(void **state) {
    (void)state;
    const char *chosen_2 = "\"matmul-precision\":2,\"chosen\":[\"recompute\",\"matmul-precision\"]";
    const char *chosen_1 = "\"matmul-precision\":1,\"chosen\":[\"matmul-precision\"]";
    const int both = CHOSEN_RECOMPUTE | CHOSEN_MATMUL_PRECISION;
    assert_resumed(chosen_2, NULL, 2, both);
    assert_resumed(chosen_2, "auto", 2, both);
    assert_resumed(chosen_2, "1", 1, CHOSEN_RECOMPUTE);
    assert_resumed(chosen_1, NULL, 1, CHOSEN_MATMUL_PRECISION);
    assert_resumed(chosen_1, "auto", 1, CHOSEN_MATMUL_PRECISION);
    assert_resumed(chosen_1, "2", 2, 0);
    // of versions without -f auto
    assert_resumed("\"matmul-precision\":2", NULL, 2, 0);
    assert_resumed("\"matmul-precision\":0", NULL, 0, 0);
    assert_resumed("\"matmul-precision\":2", "auto", 2, CHOSEN_MATMUL_PRECISION);
    assert_resumed("\"seed\":1", NULL, 1, 0);
    assert_resumed("\"seed\":1", "auto", 1, CHOSEN_MATMUL_PRECISION);
    // edited by hand
    assert_resumed("\"matmul-precision\":\"auto\"", NULL, MATMUL_AUTO, 0);
    assert_resumed("\"matmul-precision\":3", NULL, 1, 0);
}

// a new run with -y 1, as in a script that starts a run again until it is done
static void test_auto_of_a_run_without_a_config(void **state) {
    (void)state;
    char *arguments[] = {(char *)"train_gpt2",      (char *)"-y", (char *)"1",   (char *)"-o",
                         (char *)temp_path("none"), (char *)"-f", (char *)"auto"};
    TrainArgs a;
    assert_null(read_flags(&a, 7, arguments));
    assert_true(a.matmul_precision == MATMUL_AUTO && a.chosen == 0);
}

// -r N ends the choices of -r auto, and not that of -f
static void test_another_r_keeps_the_choice(void **state) {
    (void)state;
    const char json[] = "{\"recompute\":2,\"matmul-precision\":2,\"chosen\":[\"recompute\",\"matmul-precision\"]}";
    char *arguments[] = {(char *)"train_gpt2", (char *)"-y", (char *)"1", (char *)"-o",
                         (char *)temp_dir(),   (char *)"-r", (char *)"0"};
    TrainArgs a;
    write_file("config.json", json, strlen(json));
    cJSON_Delete(read_flags(&a, 7, arguments));
    assert_int_equal(a.chosen, CHOSEN_MATMUL_PRECISION);
}

// nor do -r auto and --fit, which choose other flags
static void test_other_choices_keep_the_choice(void **state) {
    (void)state;
    const GPT2Config config = {16, 256, 256, 1, 1, 16};
    char text[FLAG_TEXT];
    Comm *world = comm_single(&cpu_device);
    TrainArgs a = default_args;
    a.T = 16;
    a.chosen = CHOSEN_MATMUL_PRECISION;
    choose_recomputation(text, &a, &config, &cpu_backend, world);
    assert_int_equal(a.chosen, CHOSEN_RECOMPUTE | CHOSEN_FUSE_GELU | CHOSEN_CLASSIFIER_ROWS | CHOSEN_MATMUL_PRECISION);
    ModelOptions o = model_options(&a, &config, &cpu_backend);
    fit_apply(&a, &o, config.num_layers);
    assert_int_equal(a.chosen, CHOSEN_MATMUL_PRECISION);
    comm_close(world);
}

// ---- several ranks, as threads

enum { RANKS = 3 };

typedef struct {
    pthread_barrier_t barrier;
    long long values[RANKS];
} Ranks;

static Ranks ranks;

static long long ranks_max(long long value, Comm *comm) {
    ranks.values[comm->rank] = value;
    pthread_barrier_wait(&ranks.barrier);
    for (int i = 0; i < RANKS; i++) { value = ranks.values[i] > value ? ranks.values[i] : value; }
    pthread_barrier_wait(&ranks.barrier);
    return value;
}

typedef struct {
    Machine machine;
    bool possible;
    const char *cache;
    int rank;
    Choice choice;
} Rank;

static void *run_rank(void *of) {
    static const CommBackend backend = {.name = "threads", .max = ranks_max};
    Rank *r = (Rank *)of;
    Comm world;
    memset(&world, 0, sizeof world);
    world.backend = &backend;
    world.rank = r->rank;
    world.size = RANKS;
    InputTrial trial = trial_of(&r->machine, r->cache);
    trial.possible = r->possible;
    r->choice = choose_on(&trial, MATMUL_AUTO, 0, &world);
    return NULL;
}

// the -f that all ranks choose
static int choose_together(Rank r[RANKS]) {
    pthread_t threads[RANKS];
    pthread_barrier_init(&ranks.barrier, NULL, RANKS);
    alarm(60);  // ranks that call comm_max a different number of times wait forever
    for (int i = 0; i < RANKS; i++) {
        r[i].rank = i;
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &r[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) { pthread_join(threads[i], NULL); }
    pthread_barrier_destroy(&ranks.barrier);
    alarm(0);
    for (int i = 1; i < RANKS; i++) {
        assert_int_equal(r[i].choice.args.matmul_precision, r[0].choice.args.matmul_precision);
        assert_int_equal(r[i].machine.passes, r[0].machine.passes);
    }
    return r[0].choice.args.matmul_precision;
}

static void test_the_slowest_rank_decides(void **state) {
    (void)state;
    Rank slow_bf16[RANKS] = {{.machine = {10, 5, 0, false}, .possible = true},
                             {.machine = {10, 20, 0, false}, .possible = true},
                             {.machine = {10, 5, 0, false}, .possible = true}};
    assert_int_equal(choose_together(slow_bf16), 1);
    Rank slow_fp32[RANKS] = {{.machine = {10, 12, 0, false}, .possible = true},
                             {.machine = {5, 6, 0, false}, .possible = true},
                             {.machine = {20, 1, 0, false}, .possible = true}};
    assert_int_equal(choose_together(slow_fp32), 2);
    assert_string_equal(slow_fp32[1].choice.text,
                        "matmuls   bf16 inputs: a block's matmuls take 12 ms, fp32 20 (-f auto)\n");
}

static void test_one_rank_without_bf16(void **state) {
    (void)state;
    Rank r[RANKS] = {{.machine = {10, 5, 0, false}, .possible = true},
                     {.machine = {10, 5, 0, false}, .possible = true},
                     {.machine = {10, 5, 0, false}, .possible = false}};
    assert_int_equal(choose_together(r), 1);
    assert_int_equal(r[0].machine.passes, 0);
}

static void test_the_file_of_rank_0(void **state) {
    (void)state;
    const char *path = temp_path("rank_0.json"), *others = temp_path("rank_1.json");
    const InputTimes slow = {5, 10};
    remember_times(others, "this machine", slow);
    for (int start = 0; start < 2; start++) {
        double bf16 = start == 0 ? 5 : 20;  // the second start reads the file
        Rank r[RANKS] = {{.machine = {10, bf16, 0, false}, .possible = true, .cache = path},
                         {.machine = {10, bf16, 0, false}, .possible = true, .cache = others},
                         {.machine = {10, bf16, 0, false}, .possible = true, .cache = others}};
        assert_int_equal(choose_together(r), 2);
        assert_int_equal(r[0].machine.passes > 0, start == 0);
    }
    assert_true(recall_times(others, "this machine").fp32 == 5);  // rank 0 alone writes
}

// ---- the matmuls

// the shapes of a slice of -tp 2, in a pass of both types of inputs
static void test_the_matmuls_of_a_block(void **state) {
    (void)state;
    const GPT2Config config = {16, 256, 256, 2, 3, 48};
    TrainArgs a = default_args;
    a.B = 2;
    a.T = 16;
    a.num_processes = a.tensor_parallel = 2;
    ModelOptions o = model_options(&a, &config, &cpu_backend);
    BlockMatmuls b = block_matmuls(&config, &o);
    const int C[] = {48, 32, 48, 96}, OC[] = {96, 48, 96, 48};  // 2 of 4 heads, one of them padding
    assert_int_equal(b.N, 32);
    for (int i = 0; i < MATMULS_OF_BLOCK; i++) {
        assert_int_equal(b.C[i], C[i]);
        assert_int_equal(b.OC[i], OC[i]);
    }
    for (int bf16_inputs = 0; bf16_inputs <= GEMM_HAS_BF16; bf16_inputs++) {
        double ms = block_matmuls_pass(&b, bf16_inputs);
        assert_true(ms > 0 && isfinite(ms));
    }
    for (int i = 0; i < MATMULS_OF_BLOCK; i++) {
        for (int n = 0; n < b.N * OC[i]; n++) { assert_true(isfinite(b.out[i][n])); }
        for (int n = 0; n < C[i] * OC[i]; n++) { assert_true(isfinite(b.dweight[i][n])); }
        for (int n = 0; n < b.N * C[i]; n++) { assert_true(isfinite(b.dinp[i][n])); }
    }
    free(b.memory);
}

// the key of one more thread, rank, row or channel is another
static void test_keys(void **state) {
    (void)state;
    char keys[5][512];
    int threads = omp_get_max_threads();
    for (int i = 0; i < 5; i++) {
        Comm world = {.size = i == 1 ? 2 : 1};
        BlockMatmuls b = {.N = i == 2 ? 65 : 64, .C = {16, 16, 16, 64}, .OC = {48, 16, i == 3 ? 65 : 64, 16}};
        if (i == 4) { omp_set_num_threads(threads + 1); }
        block_matmuls_key(keys[i], sizeof keys[i], &b, &world);
        for (int k = 0; k < i; k++) { assert_string_not_equal(keys[i], keys[k]); }
    }
    omp_set_num_threads(threads);
    char name[192];
    cpu_name(name);
    assert_non_null(strstr(keys[0], name));
    assert_non_null(strstr(keys[0], TRAIN_GPT2_VERSION));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_takes_the_faster_inputs),
        cmocka_unit_test(test_auto_needs_a_gain),
        cmocka_unit_test(test_2_stays_and_says_when_it_is_slower),
        cmocka_unit_test(test_0_and_1_measure_nothing),
        cmocka_unit_test(test_a_machine_without_bf16),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_the_file_decides_the_next_choice),
        cmocka_unit_test(test_a_damaged_file_is_written_again),
        cmocka_unit_test(test_a_file_that_cannot_be_written),
        cmocka_unit_test(test_a_resumed_run_keeps_its_choice),
        cmocka_unit_test(test_flags_of_a_resumed_run),
        cmocka_unit_test(test_auto_of_a_run_without_a_config),
        cmocka_unit_test(test_another_r_keeps_the_choice),
        cmocka_unit_test(test_other_choices_keep_the_choice),
        cmocka_unit_test(test_the_slowest_rank_decides),
        cmocka_unit_test(test_one_rank_without_bf16),
        cmocka_unit_test(test_the_file_of_rank_0),
        cmocka_unit_test(test_the_matmuls_of_a_block),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests_name("matmul inputs", tests, NULL, NULL);
}
