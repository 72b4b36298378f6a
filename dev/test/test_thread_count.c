/*
The choice of the number of threads, on simulated machines: the time of a step is a function of the number of threads
and of the other busy programs.
*/
#include "llmc/run/thread_count.h"
#include "testing.h"

// a step on `cores` cores beside `others` programs: a thread that shares its core takes twice as long, and all wait
static double simulated_ms(int threads, int cores, int others, double noise) {
    bool shares = threads + others > cores;
    return (18.0 / threads + 0.1) * (shares ? 2 : 1) * (1 + noise);
}

typedef struct {
    ThreadCount t;
    int cores, step;
} Machine;

static Machine machine_make(int cores) {
    Machine m = {thread_count_open(cores), cores, 0};
    return m;
}

// the mean ms of `steps` steps beside other programs
static double run_steps(Machine *m, int steps, int others) {
    double sum = 0;
    for (int i = 0; i < steps; i++) {
        double noise = 0.05 * ((m->step++ * 7919 % 13) / 13.0), ms = simulated_ms(m->t.now, m->cores, others, noise);
        sum += ms;
        thread_count_add(&m->t, ms);
        assert_in_range(m->t.now, 1, m->t.most);
    }
    return sum / steps;
}

static double least_ms(int cores, int others) {
    double least = 1e9;
    for (int n = 1; n <= cores; n++) {
        double ms = simulated_ms(n, cores, others, 0.025);
        if (ms < least) { least = ms; }
    }
    return least;
}

// trials cost little: 5 steps in a hundred at the start of a run on two cores, then 1 in a hundred
static void test_an_idle_machine_keeps_all_threads(void **state) {
    (void)state;
    for (int cores = 1; cores <= 64; cores *= 2) {
        Machine m = machine_make(cores);
        double possible = least_ms(cores, 0), first = run_steps(&m, 100, 0), rest = run_steps(&m, 5000, 0);
        if (first > 1.05 * possible || rest > 1.01 * possible) {
            fail_msg("%d cores: %.3f ms, then %.3f, possible %.3f", cores, first, rest, possible);
        }
        assert_int_equal(m.t.best, cores);
        assert_int_equal(m.t.changes, 0);
    }
}

// A run that starts beside other programs finds the best number of threads in its first steps.
static void test_a_machine_busy_from_the_start(void **state) {
    (void)state;
    for (int cores = 2; cores <= 64; cores *= 2) {
        for (int others = 1; others < cores && others <= 4; others++) {
            Machine m = machine_make(cores);
            run_steps(&m, 60, others);
            double ms = run_steps(&m, 200, others);
            if (ms > 1.1 * least_ms(cores, others)) {
                fail_msg("%d cores, %d others: %.2f ms, possible %.2f", cores, others, ms, least_ms(cores, others));
            }
        }
    }
}

// steps cost at most 1.1 times those of the best number, which is found again when the programs end
static void test_a_busy_machine(void **state) {
    (void)state;
    for (int cores = 2; cores <= 16; cores *= 2) {
        for (int others = 1; others < cores && others <= 4; others++) {
            Machine m = machine_make(cores);
            run_steps(&m, 50, 0);
            run_steps(&m, 100, others);  // the trials
            double ms = run_steps(&m, 1000, others);
            if (ms > 1.1 * least_ms(cores, others)) {
                fail_msg("%d cores, %d others: %.2f ms, possible %.2f", cores, others, ms, least_ms(cores, others));
            }
            run_steps(&m, 1000, 0);
            ms = run_steps(&m, 100, 0);
            if (ms > 1.1 * least_ms(cores, 0)) {
                fail_msg("%d cores after %d others: %.2f ms, possible %.2f", cores, others, ms, least_ms(cores, 0));
            }
            assert_in_range(m.t.best, cores - cores / 8, cores);  // the last of 16 threads gains less than a trial must
        }
    }
}

// A run that becomes slower for good, as by a lower clock, soon stops trying.
static void test_a_slower_clock(void **state) {
    (void)state;
    Machine m = machine_make(2);
    run_steps(&m, 50, 0);
    int trials = 0;
    for (int i = 0; i < 4000; i++) {
        trials += m.t.now == 1;
        thread_count_add(&m.t, 1.5 * simulated_ms(m.t.now, 2, 0, 0));
    }
    assert_in_range(trials, 1, 30);  // one step of 256, more of them at first
    assert_int_equal(m.t.best, 2);
}

// one long step, as after an evaluation or a save, changes nothing
static void test_a_single_long_step(void **state) {
    (void)state;
    Machine m = machine_make(2);
    for (int i = 0; i < 200; i++) {
        run_steps(&m, 9, 0);
        thread_count_add(&m.t, 500);
    }
    assert_int_equal(m.t.changes, 0);
    assert_int_equal(m.t.best, 2);
}

// a run on 2 threads whose step takes 10 ms and from step 20 on `ms`, and one_ms on 1 thread: steps on 1 thread of the
// 60 steps from step 20 on
static int steps_on_one(double ms, double one_ms) {
    ThreadCount t = thread_count_open(2);
    int count = 0;
    for (int i = 0; i < 80; i++) {
        bool later = i >= 20;
        count += later && t.now == 1;
        thread_count_add(&t, !later ? (t.now == 1 ? 20 : 10) : t.now == 1 ? one_ms : ms);
    }
    return count;
}

// A step takes 20 ms at the first trial, then 10, then 13: the pause ends early, since the least time since the last
// trial counts.
static void test_a_slow_start(void **state) {
    (void)state;
    ThreadCount t = thread_count_open(2);
    int trials = 0;
    for (int i = 0; i < 30; i++) {
        trials += i >= 20 && t.now == 1;
        thread_count_add(&t, i < 10 ? 20 : i < 20 ? 10 : 13);
    }
    assert_true(trials > 0);
}

static void test_limits_of_a_trial(void **state) {
    (void)state;
    assert_in_range(steps_on_one(11, 5), 30, 40);                                 // 10 % slower: only the pause ends
    assert_true(steps_on_one(13, 10) > 50);                                       // 30 % slower, and 1 thread is faster
    assert_in_range(steps_on_one(13, 12.7), 2 * THREAD_TRIAL, 2 * THREAD_TRIAL);  // a gain of 2 %: trials fail
    assert_in_range(steps_on_one(13, 30), 2, 2);                                  // a trial ends after a step
}

typedef struct {
    int threads, steps;
} Stretch;

// compares the numbers of threads of a run on 8 with `expected`; ms[n]: a step on n threads
static void check_trials(const double ms[9], const Stretch *expected, int count) {
    ThreadCount t = thread_count_open(8);
    for (int i = 0; i < count; i++) {
        for (int step = 0; step < expected[i].steps; step++) {
            if (t.now != expected[i].threads) {
                fail_msg("stretch %d, step %d: %d threads, expected %d", i, step, t.now, expected[i].threads);
            }
            thread_count_add(&t, ms[t.now]);
        }
    }
}

// 1, 2, 3 and 4 threads fewer, then a pause of 32 steps, and later of 64. A median needs 5 steps.
static void test_a_series_that_fails(void **state) {
    (void)state;
    const double ms[9] = {0, 10, 10, 10, 10, 10, 10, 10, 10};
    const Stretch expected[] = {{8, 5}, {7, 3}, {8, 5}, {6, 3}, {8, 5},   {5, 3},   {8, 5},   {4, 3},  {8, 37},
                                {7, 3}, {8, 5}, {6, 3}, {8, 5}, {5, 3},   {8, 5},   {4, 3},   {8, 69}, {7, 3},
                                {8, 5}, {6, 3}, {8, 5}, {5, 3}, {8, 5},   {4, 3},   {8, 133}, {7, 3},  {8, 5},
                                {6, 3}, {8, 5}, {5, 3}, {8, 5}, {4, 3},   {8, 261}, {7, 3},   {8, 5},  {6, 3},
                                {8, 5}, {5, 3}, {8, 5}, {4, 3}, {8, 261}, {7, 3}};
    check_trials(ms, expected, sizeof expected / sizeof *expected);
}

// 6 threads are best. From there a trial of one more alternates with series of fewer, down to half of 6.
static void test_a_series_that_succeeds(void **state) {
    (void)state;
    const double ms[9] = {0, 12, 12, 12, 11, 9, 8, 9, 10};
    const Stretch expected[] = {{8, 5},  {7, 3}, {7, 5}, {8, 3}, {7, 37}, {6, 3}, {6, 5},  {7, 3},
                                {6, 37}, {5, 3}, {6, 5}, {4, 1}, {6, 5},  {3, 1}, {6, 69}, {7, 3}};
    check_trials(ms, expected, sizeof expected / sizeof *expected);
}

// A change for good is told once, after the step that ends its trial; failed trials are not told.
static void test_changes_are_told(void **state) {
    (void)state;
    ThreadCount t = thread_count_open(2);
    char told[2][sizeof t.change] = {"", ""};
    int changes = 0;
    for (int i = 0; i < 200; i++) {
        bool busy = i >= 20 && i < 100;
        int best = t.best;
        thread_count_add(&t, t.now == 1 ? 16 : busy ? 24 : 10);
        assert_int_equal(*t.change != 0, t.best != best);
        if (*t.change && changes < 2) { strcpy(told[changes], t.change); }
        changes += *t.change != 0;
    }
    assert_int_equal(changes, 2);
    assert_string_equal(told[0], "threads: now 1, at most 2, 16.0 ms a step instead of 24.0");
    assert_string_equal(told[1], "threads: now 2, at most 2, 10.0 ms a step instead of 16.0");
}

// programs that come and go all the time do not fill the log
static void test_few_changes_are_told(void **state) {
    (void)state;
    ThreadCount t = thread_count_open(2);
    int told = 0, changes = 0;
    for (int i = 0; i < 20000; i++) {
        int best = t.best;
        thread_count_add(&t, t.now == 1 ? 16 : i / 500 % 2 ? 24 : 10);
        changes += t.best != best;
        told += *t.change != 0;
    }
    assert_true(changes > 2 * THREAD_CHANGES);
    assert_int_equal(told, THREAD_CHANGES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_idle_machine_keeps_all_threads),
        cmocka_unit_test(test_a_machine_busy_from_the_start),
        cmocka_unit_test(test_limits_of_a_trial),
        cmocka_unit_test(test_a_slow_start),
        cmocka_unit_test(test_a_busy_machine),
        cmocka_unit_test(test_a_slower_clock),
        cmocka_unit_test(test_a_single_long_step),
        cmocka_unit_test(test_a_series_that_fails),
        cmocka_unit_test(test_a_series_that_succeeds),
        cmocka_unit_test(test_changes_are_told),
        cmocka_unit_test(test_few_changes_are_told),
    };
    return cmocka_run_group_tests_name("thread count", tests, NULL, NULL);
}
