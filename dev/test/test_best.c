/*
The lowest validation loss of a run: counting, and the validations in metrics.jsonl up to a resumed step. The checkpoint
of --keep-best is tested by test_best.sh.
*/
#include "testing.h"
#include "llmc/run/best.h"

// A loss that is equal to the lowest, or not finite, is no new lowest. Numbers are those of metrics.jsonl, 9 digits.
static void test_counting(void **state) {
    (void)state;
    BestLoss best = {DBL_MAX, 0, 0, DBL_MAX};
    const double losses[] = {NAN, 2.0000000012, 2.0000000009, INFINITY, 2.00000001, 1.5, 1.5, NAN, 1.6};
    const long long steps[] = {0, 1, 1, 1, 1, 5, 5, 5, 5};
    const int since[] = {0, 0, 1, 1, 2, 0, 1, 1, 2};
    char text[FLAG_TEXT];
    for (int i = 0; i < 9; i++) {
        best_loss_add(&best, i, losses[i]);
        assert_int_equal(best.step, steps[i]);
        assert_int_equal(best.since, since[i]);
        best_loss_impatience(&best, 2, text);
        assert_int_equal(*text != 0, since[i] >= 2);
        best_loss_impatience(&best, 0, text);
        assert_int_equal(*text, 0);
    }
    assert_string_equal((best_loss_impatience(&best, 1, text), text),
                        "2 validations without a loss below the 1.5000 of step 5; a larger --patience goes on");
}

// Lines of other kinds, of later steps and cut short do not count.
static void test_metrics(void **state) {
    (void)state;
    static const char metrics[] = "{\"step\":0,\"val_loss\":5.5}\n{\"step\":1,\"loss\":0.1,\"grad_norm\":1}\n"
                                  "{\"step\":2,\"val_loss\":2.25}\n{\"step\":2,\"hellaswag\":0.25}\n"
                                  "{\"step\":4,\"val_loss\":null}\n{\"step\":6,\"val_loss\":3.5}\n"
                                  "{\"step\":8,\"val_loss\":1.5}\n{\"step\":10,\"val_l";
    const char *path = write_file("metrics.jsonl", metrics, sizeof metrics - 1);
    const long long steps[] = {0, 2, 2, 2, 8}, resumed[] = {0, 2, 5, 7, 100};
    const double lowest[] = {5.5, 2.25, 2.25, 2.25, 1.5};
    const int since[] = {0, 0, 0, 1, 0};
    for (int i = 0; i < 5; i++) {
        BestLoss best = {DBL_MAX, 0, 0, DBL_MAX};
        best_loss_read_metrics(&best, path, resumed[i]);
        assert_int_equal(best.step, steps[i]);
        assert_int_equal(best.since, since[i]);
        assert_true(best.lowest == lowest[i]);
    }
    BestLoss none = {DBL_MAX, 0, 0, DBL_MAX};
    best_loss_read_metrics(&none, temp_path("missing"), 9);
    assert_int_equal(none.since, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counting), cmocka_unit_test(test_metrics)};
    return cmocka_run_group_tests_name("best", tests, NULL, NULL);
}
