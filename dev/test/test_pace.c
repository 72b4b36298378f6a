/* The rests of a thread that works beside training, on a clock that the test moves. */
#include "dev/test/testing.h"
#include <time.h>

static double cpu_seconds, slept;  // of the thread
static int sleeps, hurried_after;  // sleeps until somebody waits for the thread; -1: never
static bool hurry;

static int fake_clock(clockid_t clock, struct timespec *now) {
    assert_int_equal(clock, CLOCK_THREAD_CPUTIME_ID);
    now->tv_sec = (time_t)cpu_seconds;
    now->tv_nsec = (long)(1e9 * (cpu_seconds - (double)now->tv_sec));
    return 0;
}
static int fake_sleep(const struct timespec *request) {
    assert_in_range(request->tv_nsec, 0, 2000000);
    slept += (double)request->tv_sec + 1e-9 * (double)request->tv_nsec;
    hurry = ++sleeps == hurried_after;
    return 0;
}
#define clock_gettime(clock, now) fake_clock(clock, now)
#define nanosleep(request, remaining) fake_sleep(request)
#include "llmc/common/pace.h"
#undef clock_gettime
#undef nanosleep

static Pace paced(double rests) {
    Pace pace = {0, rests, &hurry};
    cpu_seconds = slept = 0;
    sleeps = 0;
    hurried_after = -1;
    hurry = false;
    return pace;
}

static void test_rests(void **state) {
    (void)state;
    Pace pace = paced(1e9);
    for (int piece = 1; piece <= 100; piece++) {
        cpu_seconds += 0.0003;
        pace_rest(&pace);
    }
    assert_float_equal(slept, PACE_RESTS * 0.03, 1e-6);
    cpu_seconds += 1e-5;  // too short a piece adds up with the next one
    pace_rest(&pace);
    assert_float_equal(slept, PACE_RESTS * 0.03, 1e-6);
    cpu_seconds += 1e-3;
    pace_rest(&pace);
    assert_float_equal(slept, PACE_RESTS * 0.03101, 1e-6);
    pace_rest(NULL);
}

static void test_rests_end(void **state) {
    (void)state;
    Pace pace = paced(0.05);
    for (int piece = 1; piece <= 100; piece++) {
        cpu_seconds += 0.0003;
        pace_rest(&pace);
    }
    assert_float_equal(slept, 0.05, 1e-6);
}

static void test_hurry(void **state) {
    (void)state;
    Pace pace = paced(1e9);
    cpu_seconds += 100;
    hurried_after = 7;
    pace_rest(&pace);
    assert_int_equal(sleeps, 7);
    cpu_seconds += 100;
    pace_rest(&pace);
    assert_int_equal(sleeps, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rests),
        cmocka_unit_test(test_rests_end),
        cmocka_unit_test(test_hurry),
    };
    return cmocka_run_group_tests_name("pace", tests, NULL, NULL);
}
