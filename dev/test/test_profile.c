/*
--profile wraps every operation and copy of a step: one that is forgotten would be missing from traces.
*/
#include "testing.h"
#include "llmc/run/profile.h"

typedef void (*Function)(void);

// indices of the functions that two tables share
static int shared_functions(int *index, const void *a, const void *b, size_t bytes) {
    int count = 0;
    for (size_t i = 0; i < bytes / sizeof(Function); i++) {
        if (memcmp((const char *)a + i * sizeof(Function), (const char *)b + i * sizeof(Function), sizeof(Function)) !=
            0) {
            continue;
        }
        index[count++] = (int)i;
    }
    return count;
}

// No step calls attention_decode, of generation.
static void test_every_operation_of_a_step_is_wrapped(void **state) {
    (void)state;
    int index[sizeof(Ops) / sizeof(Function)];
    Ops ops = profiled_ops(&cpu_ops);
    assert_int_equal(shared_functions(index, &ops, &cpu_ops, sizeof ops), 1);
    assert_int_equal(index[0], offsetof(Ops, attention_decode) / sizeof(Function));
}

static void test_every_copy_of_a_step_is_wrapped(void **state) {
    (void)state;
    Profile p;
    TrainArgs a = default_args;
    a.profile = 1;
    const Backend *backend = profile_backend(&p, &a, &cpu_backend, 3);
    assert_ptr_not_equal(backend->ops, &cpu_ops);
    const Device *device = backend->device;
    assert_true(device->enqueue_fill != cpu_device.enqueue_fill);
    assert_true(device->enqueue_upload != cpu_device.enqueue_upload);
    assert_true(device->enqueue_download != cpu_device.enqueue_download);
    assert_true(device->enqueue_copy != cpu_device.enqueue_copy);
    assert_true(device->upload == cpu_device.upload && device->free_bytes == cpu_device.free_bytes);
}

static void test_without_the_flag_the_backend_is_the_same(void **state) {
    (void)state;
    Profile p;
    assert_ptr_equal(profile_backend(&p, &default_args, &cpu_backend, 1), &cpu_backend);
    Exec ex;
    memset(&ex, 0, sizeof ex);
    profile_step_begin(&p, 7, &ex);
    profile_step_end(&p, true, &ex);
    profile_close(&p);
    assert_null(ex.profile);
}

static TrainArgs profiling(int steps) {
    TrainArgs a = default_args;
    a.profile = steps;
    return a;
}

static void ask_for_three(void *steps_left) {
    Profile p;
    TrainArgs a = profiling(3);
    profile_backend(&p, &a, &cpu_backend, *(const int *)steps_left);
}

static void test_a_run_that_ends_too_soon(void **state) {
    (void)state;
    int four = 4, one = 1, five = 5;
    assert_stops(EXIT_BAD_INPUT, "only 4 steps are left", ask_for_three, &four);
    assert_stops(EXIT_BAD_INPUT, "only 1 step is left", ask_for_three, &one);
    ask_for_three(&five);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_of_a_step_is_wrapped),
        cmocka_unit_test(test_every_copy_of_a_step_is_wrapped),
        cmocka_unit_test(test_without_the_flag_the_backend_is_the_same),
        cmocka_unit_test(test_a_run_that_ends_too_soon),
    };
    return cmocka_run_group_tests_name("profile", tests, NULL, NULL);
}
