/*
The evaluations of a run: those of a resumed step in metrics.jsonl, and the lowest validation loss. The checkpoint of
--keep-best is tested by test_best.sh, with killed runs; DONE_ of killed runs by test_llmc.sh.
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

// The evaluations of the resumed step alone count, even if the loss is not finite. Step 0 has no score of HellaSwag.
static void test_evaluated(void **state) {
    (void)state;
    static const char metrics[] = "{\"step\":0,\"val_loss\":5.5}\n{\"step\":5,\"loss\":0.1}\n"
                                  "{\"step\":10,\"val_loss\":5}\n{\"step\":10,\"hellaswag\":0.25}\n"
                                  "{\"step\":15,\"val_loss\":null}\n{\"step\":20,\"loss\":4}\n";
    const long long steps[] = {0, 0, 5, 5, 10, 15, 15, 20, 20, 20};
    const bool scores[] = {false, true, false, false, true, false, true, false, true, false};
    const bool last[] = {false, false, false, true, true, true, true, false, false, true};
    const bool due[] = {true, true, false, true, false, false, true, true, true, true};
    write_file("metrics.jsonl", metrics, sizeof metrics - 1);
    TrainArgs a;
    memset(&a, 0, sizeof a);
    a.run_dir = temp_path("");
    Comm *world = comm_open();
    for (int i = 0; i < 10; i++) {
        Evaluated e = evaluated_read(&a, scores[i] ? "hellaswag_val.bin" : NULL, steps[i], world);
        a.val_every = 10;
        assert_int_equal(evaluation_due(&e, &a, steps[i], last[i]), due[i]);
        assert_int_equal(hellaswag_due(&e, steps[i]), scores[i] && steps[i] > 0 && steps[i] != 10);
        a.val_every = 0;
        assert_false(evaluation_due(&e, &a, steps[i], last[i]));
    }
    comm_close(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counting), cmocka_unit_test(test_metrics),
                                       cmocka_unit_test(test_evaluated)};
    return cmocka_run_group_tests_name("best", tests, NULL, NULL);
}
