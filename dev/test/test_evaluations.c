/*
The evaluations of a run: those of a resumed step in metrics.jsonl, and the lowest validation loss. The checkpoint of
--keep-best is tested by test_best.sh, with killed runs; DONE_ of killed runs by test_llmc.sh.
*/
#include "testing.h"
#include "llmc/run/run_dir.h"

// A loss that is equal to the lowest, or not finite, is no new lowest. Numbers are those of metrics.jsonl, 9 digits.
TEST(test_counting) {
    Evaluations e = {false, -1, -1, 1, 0, DBL_MAX, 0, 0, DBL_MAX};
    static const struct {
        double loss;
        int lowest_step, since;
    } rows[] = {{NAN, 0, 0}, {2.0000000012, 1, 0}, {2.0000000009, 1, 1}, {INFINITY, 1, 1}, {2.00000001, 1, 2},
                {1.5, 5, 0}, {1.5, 5, 1},          {NAN, 5, 1},          {1.6, 5, 2}};
    for (int i = 0; i < 9; i++) {
        evaluations_add(&e, i, rows[i].loss);
        assert_int_equal(e.val, i);
        assert_int_equal(e.lowest_step, rows[i].lowest_step);
        assert_int_equal(e.since, rows[i].since);
        Evaluations copy = e;
        evaluations_apply_patience(&copy, 0);
        assert_int_equal(*copy.patience_over, 0);
        evaluations_apply_patience(&copy, 2);
        assert_int_equal(*copy.patience_over != 0, rows[i].since >= 2);
    }
    evaluations_apply_patience(&e, 1);
    assert_string_equal(e.patience_over,
                        "2 validations without a loss below the 1.5000 of step 5; a larger --patience goes on");
}

// Of a run that resumes after a step, lines of later steps and half a line do not count; step 0 is a new run.
TEST(test_resumed) {
    static const char metrics[] = "{\"step\":0,\"val_loss\":5.5}\n{\"step\":1,\"loss\":0.1,\"grad_norm\":1}\n"
                                  "{\"step\":2,\"val_loss\":2.25}\n{\"step\":2,\"hellaswag\":0.25}\n"
                                  "{\"step\":4,\"val_loss\":null}\n{\"step\":6,\"val_loss\":3.5}\n"
                                  "{\"step\":8,\"val_loss\":1.5}\n{\"step\":9,\"val_loss\":0.5";
    static const struct {
        long long resumed;
        bool scores, last, due, hellaswag;  // -v 2: what is to come
        double lowest;
        int lowest_step, since;
    } rows[] = {{0, false, false, true, false, DBL_MAX, 0, 0}, {0, true, false, true, false, DBL_MAX, 0, 0},
                {1, false, false, false, false, 5.5, 0, 0},    {1, false, true, true, false, 5.5, 0, 0},
                {2, true, true, false, false, 2.25, 2, 0},     {4, false, true, false, false, 2.25, 2, 0},
                {4, true, true, true, true, 2.25, 2, 0},       {7, true, false, false, true, 2.25, 2, 1},
                {9, false, true, true, false, 1.5, 8, 0},      {10, true, false, true, true, 1.5, 8, 0}};
    write_file("metrics.jsonl", metrics, sizeof metrics - 1);
    TrainArgs a;
    memset(&a, 0, sizeof a);
    a.run_dir = temp_path("");
    Comm *world = comm_open();
    for (size_t i = 0; i < LEN(rows); i++) {
        long long step = rows[i].resumed;
        Evaluations e = evaluations_read(&a, rows[i].scores ? "hellaswag_val.bin" : NULL, 64, step, world);
        a.val_every = 2;
        assert_int_equal(evaluation_due(&e, &a, step, rows[i].last), rows[i].due);
        assert_int_equal(hellaswag_due(&e, step), rows[i].hellaswag);
        a.val_every = 0;
        assert_false(evaluation_due(&e, &a, step, rows[i].last));
        assert_true(e.lowest == rows[i].lowest && e.best == DBL_MAX);
        assert_int_equal(e.lowest_step, rows[i].lowest_step);
        assert_int_equal(e.since, rows[i].since);
    }
    comm_close(world);
}

// Validations between two multiples of -v are those that the end of a start made. --patience does not count them.
TEST(test_only_multiples_count) {
    Evaluations e = {false, -1, -1, 4, 0, DBL_MAX, 0, 0, DBL_MAX};
    static const struct {
        long long step;
        double loss;
        int lowest_step, since;
    } rows[] = {{0, 5, 0, 0}, {3, 1, 0, 0}, {4, 4, 4, 0}, {6, 9, 4, 0}, {8, 4.5, 4, 1}, {9, 3, 4, 1}, {12, 3.5, 12, 0}};
    for (size_t i = 0; i < LEN(rows); i++) {
        evaluations_add(&e, rows[i].step, rows[i].loss);
        assert_int_equal(e.val, rows[i].step);
        assert_int_equal(e.lowest_step, rows[i].lowest_step);
        assert_int_equal(e.since, rows[i].since);
    }
}

// Losses of other validation tokens are not compared. Lines of older versions have no count.
TEST(test_other_validation_tokens) {
    static const char metrics[] = "{\"step\":1,\"val_loss\":3}\n{\"step\":2,\"val_loss\":2,\"val_tokens\":32}\n"
                                  "{\"step\":3,\"val_loss\":2.5,\"val_tokens\":64}\n";
    char path[PATH_LENGTH];
    format_path(path, "%s", temp_path("metrics.jsonl"));
    write_file("metrics.jsonl", metrics, sizeof metrics - 1);
    static const struct {
        uint64_t tokens, other;
        double lowest;
    } rows[] = {{64, 0, 2.5}, {32, 64, 2}, {16, 64, 3}};
    for (size_t i = 0; i < LEN(rows); i++) {
        Evaluations e = {false, -1, -1, 1, rows[i].tokens, DBL_MAX, 0, 0, DBL_MAX};
        assert_int_equal(evaluations_read_metrics(&e, path, 9), rows[i].other);
        assert_int_equal(e.val, 3);
        assert_true(e.lowest == rows[i].lowest);
    }
}

// RUN/best of this version has the loss in state.json, of an older version in best.json.
TEST(test_read_best) {
    static const struct {
        const char *name, *text;
        double best;
        uint64_t other;
    } rows[] = {{"run/best/state.json", "{\"step\":3}", DBL_MAX, 0},
                {"run/best/best.json", "{\"step\":3,\"val_loss\":2.5}", 2.5, 0},
                {"run/best/state.json", "{\"step\":3,\"val_loss\":1.5}", 1.5, 0},
                {"run/best/state.json", "{\"step\":3,\"val_loss\":1.5,\"val_tokens\":64}", 1.5, 0},
                {"run/best/state.json", "{\"step\":3,\"val_loss\":\"1.5\",\"val_tokens\":64}", DBL_MAX, 0},
                {"run/best/state.json", "{\"step\":3,\"val_loss\":1.5,\"val_tokens\":32}", DBL_MAX, 32}};
    assert_int_equal(mkdir(temp_path("run"), 0777), 0);
    assert_int_equal(mkdir(temp_path("run/best"), 0777), 0);
    for (size_t i = 0; i < LEN(rows); i++) {
        Evaluations e = {false, -1, -1, 1, 64, DBL_MAX, 0, 0, DBL_MAX};
        write_file(rows[i].name, rows[i].text, strlen(rows[i].text));
        assert_int_equal(evaluations_read_best(&e, temp_path("run")), rows[i].other);
        assert_true(e.best == rows[i].best);
        if (i == 1) { unlink(temp_path(rows[i].name)); }
    }
}

int main(void) { return run_all_tests("evaluations"); }
