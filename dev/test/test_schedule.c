/*
The schedules against other closed forms (half-angle cosine, interpolation between end points), and at the edges, where
a division by zero or a jump would show.
*/
#include "testing.h"
#include "llmc/run/schedule.h"

// cmocka's assert_float_equal compares in single precision
#define assert_near(a, b, tolerance) assert_true(fabs((double)(a) - (double)(b)) <= (tolerance))

#define LR 6e-4

static double mix(double from, double to, double how_far) { return from * (1 - how_far) + to * how_far; }

// the same curve from other identities; ordinary cases only: warmup < 0.8 steps, step < steps
static double expected_lr(ScheduleKind kind, int64_t warmup, int64_t steps, double fraction, int64_t step) {
    if (step < warmup) { return mix(0, LR, (double)(step + 1) / (double)warmup); }
    double x = (double)(step - warmup) / (double)(steps - warmup);
    double tail = (double)step - floor(0.8 * (double)steps);
    switch (kind) {
    case SCHEDULE_COSINE: return mix(LR, fraction * LR, pow(sin(M_PI_2 * x), 2));
    case SCHEDULE_LINEAR: return mix(LR, fraction * LR, x);
    case SCHEDULE_WSD:
        return tail < 0 ? LR : mix(LR, fraction * LR, sqrt(tail / ((double)steps - floor(0.8 * (double)steps))));
    case SCHEDULE_CONSTANT: break;
    }
    return LR;
}

TEST(test_closed_forms) {
    const int64_t lengths[] = {10, 97, 1000}, warmups[] = {0, 1, 7};
    const double fractions[] = {0, 0.1, 1};
    int checked = 0;
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        for (int c = 0; c < 27; c++) {
            int64_t steps = lengths[c % 3], warmup = warmups[c / 3 % 3];
            double fraction = fractions[c / 9];
            for (int64_t step = 0; step < steps; step++, checked++) {
                double got = schedule_lr((ScheduleKind)kind, LR, warmup, steps, fraction, step);
                assert_near(got, expected_lr((ScheduleKind)kind, warmup, steps, fraction, step), 1e-12 * LR);
            }
        }
    }
    assert_int_equal(checked, 4 * 9 * (10 + 97 + 1000));
}

// computed by hand, in case both forms have the same error
TEST(test_known_values) {
    assert_near(schedule_lr(SCHEDULE_COSINE, 1, 10, 110, 0, 0), 0.1, 1e-15);
    assert_near(schedule_lr(SCHEDULE_COSINE, 1, 10, 110, 0, 9), 1, 1e-15);
    assert_near(schedule_lr(SCHEDULE_COSINE, 1, 10, 110, 0, 10), 1, 1e-15);
    assert_near(schedule_lr(SCHEDULE_COSINE, 1, 10, 110, 0.2, 60), 0.6, 1e-15);
    assert_near(schedule_lr(SCHEDULE_LINEAR, 1, 10, 110, 0.2, 35), 0.8, 1e-15);
    assert_near(schedule_lr(SCHEDULE_WSD, 1, 0, 100, 0, 79), 1, 0);
    assert_near(schedule_lr(SCHEDULE_WSD, 1, 0, 100, 0, 80), 1, 0);
    assert_near(schedule_lr(SCHEDULE_WSD, 1, 0, 100, 0.5, 85), 0.75, 1e-15);  // sqrt(5/20) = 1/2
    assert_near(schedule_lr(SCHEDULE_CONSTANT, 1, 4, 100, 0.5, 99), 1, 0);
}

TEST(test_edges) {
    for (int k = SCHEDULE_COSINE; k <= SCHEDULE_WSD; k++) {
        ScheduleKind kind = (ScheduleKind)k;
        double end = kind == SCHEDULE_CONSTANT ? LR : 0.1 * LR;
        // past the end; far past it
        assert_near(schedule_lr(kind, LR, 5, 100, 0.1, 100), end, 1e-18);
        assert_near(schedule_lr(kind, LR, 5, 100, 0.1, INT64_MAX), end, 1e-18);
        // one step, with and without warmup
        assert_near(schedule_lr(kind, LR, 0, 1, 0.1, 0), LR, 1e-18);
        assert_near(schedule_lr(kind, LR, 1, 1, 0.1, 0), LR, 1e-18);
        assert_near(schedule_lr(kind, LR, 4, 1, 0.1, 0), LR / 4, 1e-18);
        // a warmup as long as the run or longer continues past the last step, then the final rate
        assert_near(schedule_lr(kind, LR, 20, 10, 0.1, 9), LR / 2, 1e-18);
        assert_near(schedule_lr(kind, LR, 20, 10, 0.1, 19), LR, 1e-18);
        assert_near(schedule_lr(kind, LR, 10, 10, 0.1, 10), end, 1e-18);
        // the longest possible run
        assert_near(schedule_lr(kind, LR, 0, INT64_MAX, 0.1, 0), LR, 1e-18);
        assert_near(schedule_lr(kind, LR, 0, INT64_MAX, 0.1, INT64_MAX - 1), end, 1e-12);
    }
}

// after the warmup the rate never rises and stays in [final, peak], also for a warmup that ends in wsd's last 20 %
TEST(test_falls_steadily) {
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        for (int64_t warmup = 0; warmup <= 50; warmup++) {
            double before = LR;
            for (int64_t step = warmup; step < 60; step++) {
                double lr = schedule_lr((ScheduleKind)kind, LR, warmup, 50, 0.1, step);
                assert_true(lr <= before * (1 + 1e-15) && lr >= 0.1 * LR * (1 - 1e-12));
                if (step == warmup && warmup < 50) { assert_near(lr, LR, 1e-18); }
                before = lr;
            }
        }
    }
}

TEST(test_choices_name_the_kinds) {
    const char *names[] = {"cosine", "linear", "constant", "wsd"};
    const ScheduleKind kinds[] = {SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD};
    char words[] = SCHEDULE_CHOICES;
    char *word = strtok(words, " ");
    for (int i = 0; i < 4; i++, word = strtok(NULL, " ")) {
        assert_string_equal(word, names[i]);
        assert_int_equal(kinds[i], i);
    }
    assert_null(word);
}

int main(void) { return run_all_tests("schedule"); }
