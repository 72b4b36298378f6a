/*
--profile sees every operation and copy of a step: one that is forgotten would be missing from traces.
*/
#include "testing.h"
#include "llmc/run/backends.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/profile.h"

TEST(test_operations_are_hooked_and_copies_wrapped) {
    Profile p;
    TrainArgs a = default_args;
    a.profile = 1;
    const Backend *backend = profile_backend(&p, &a, &cpu_backend, 3);
    assert_ptr_equal(backend->ops, &hooked_ops);
    assert_ptr_equal(p.hooks.ops, &cpu_ops);
    const Device *device = backend->device;
    assert_true(device->enqueue_fill != cpu_device.enqueue_fill);
    assert_true(device->enqueue_upload != cpu_device.enqueue_upload);
    assert_true(device->enqueue_download != cpu_device.enqueue_download);
    assert_true(device->enqueue_copy != cpu_device.enqueue_copy);
    assert_true(device->upload == cpu_device.upload && device->free_bytes == cpu_device.free_bytes);
}

TEST(test_without_the_flag_the_backend_is_the_same) {
    Profile p;
    assert_ptr_equal(profile_backend(&p, &default_args, &cpu_backend, 1), &cpu_backend);
    Exec ex = {0};
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

TEST(test_a_run_that_ends_too_soon) {
    int four = 4, one = 1, five = 5;
    assert_stops(EXIT_BAD_INPUT, "only 4 steps are left", ask_for_three, &four);
    assert_stops(EXIT_BAD_INPUT, "only 1 step is left", ask_for_three, &one);
    ask_for_three(&five);
}

int main(void) { return run_all_tests("profile"); }
