/*
The logger: the line of a step, metrics.jsonl, main.log, the lines that a resumed run deletes, and a full disk: no
line is lost, and the file never holds half a line.
*/
#include "testing.h"
#include "llmc/run/logger.h"

static StepReport report_of(long long step, long long max_steps, const char *skipped) {
    StepReport r = {step, max_steps, 10.98765, 123.4567, 0.0006, 1234.56, 524288, 0, 4321, 0, skipped, "", 0};
    return r;
}

// runs FUNCTION with stdout redirected to a file; returns the path
static const char *stdout_of(void (*function)(void)) {
    const char *path = temp_path("stdout.txt");
    int kept = redirect(STDOUT_FILENO, path, NEW_FILE);
    function();
    restore(STDOUT_FILENO, kept);
    return path;
}

static Logger shown;
static void show(void) { logger_show(&shown); }

static const char *line_of(StepReport r, double rate) {
    shown.last = r;
    shown.smoothed_rate = rate;
    return read_file(stdout_of(show), NULL);
}

TEST(test_the_line_of_a_step) {
    StepReport r = report_of(1234567, 7654321, "loss is an outlier");
    assert_string_equal(line_of(r, 43210.4),
                        "step 1234567/7654321 | loss 10.9877 | norm 123.457 | lr 6.00e-04 | 1234.6 ms | 43210 tok/s | "
                        "1:12:01 left | skipped: loss is an outlier\n");
    r.skipped = "";
    r.peak_rate = 100000;
    assert_string_equal(line_of(r, 43210),
                        "step 1234567/7654321 | loss 10.9877 | norm 123.457 | lr 6.00e-04 | 1234.6 ms | 43210 tok/s | "
                        "43.2% MFU | 1:12:01 left\n");
}

// The first step of several ranks says what a rank sends.
static uint64_t sent;
static void log_two_steps(void) {
    Logger log = logger_open(NULL, 0, false, false);
    for (int step = 1; step <= 2; step++) {
        StepReport r = report_of(step, 2, "");
        r.sent = sent;
        logger_step(&log, r);
    }
    logger_close(&log);
}

TEST(test_sent_bytes) {
    static const char line[] = "\nsent      1.50 MiB an update, from rank 0 to the others\n";
    sent = 3 << 19;
    const char *printed = read_file(stdout_of(log_two_steps), NULL), *found = strstr(printed, line);
    assert_true(found && !strstr(found + strlen(line), "sent"));
    sent = 0;
    assert_null(strstr(read_file(stdout_of(log_two_steps), NULL), "sent"));
}

// ---- metrics.jsonl

static StepReport quarter_second(long long step, double loss, double norm) {
    StepReport r = {step, 3, loss, norm, 0.0006, 250, 1000, 0, INFINITY, 0, "", "", 0};
    return r;
}

static void log_three_steps(void) {
    Logger log = logger_open(temp_dir(), 0, false, false);
    logger_step(&log, quarter_second(1, 5.5, 1.25));
    log.last_line = now_seconds() + 1000;  // the second step comes too soon after it, on a busy machine too
    logger_step(&log, quarter_second(2, NAN, INFINITY));
    logger_val(&log, 2, 4.0625, 1.5, 1234567);
    logger_step(&log, quarter_second(3, 1.0 / 3, -INFINITY));
    logger_close(&log);
}

TEST(test_metrics) {
    const char *path = stdout_of(log_three_steps);
    assert_string_equal(
        read_file(temp_path("metrics.jsonl"), NULL),
        "{\"step\":1,\"loss\":5.5,\"grad_norm\":1.25,\"lr\":0.0006,\"ms\":250,\"tokens_per_s\":4000}\n"
        "{\"step\":2,\"loss\":null,\"grad_norm\":null,\"lr\":0.0006,\"ms\":250,\"tokens_per_s\":4000}\n"
        "{\"step\":2,\"val_loss\":4.0625,\"bits_per_byte\":1.5,\"val_tokens\":1234567}\n"
        "{\"step\":3,\"loss\":0.333333333,\"grad_norm\":null,\"lr\":0.0006,\"ms\":250,\"tokens_per_s\":4000}\n");
    // llm.c counts the updates from 0, and an evaluation at the number of finished updates
    assert_string_equal(read_file(temp_path("main.log"), NULL), "s:0 trl:5.5000 lr:0.000600 norm:1.25\n"
                                                                "s:1 trl:nan lr:0.000600 norm:inf\n"
                                                                "s:2 tel:4.0625\n"
                                                                "s:2 trl:0.3333 lr:0.000600 norm:-inf\n");
    // the first step and the last; the second came too soon
    assert_string_equal(read_file(path, NULL),
                        "step 1/3 | loss 5.5000 | norm 1.250 | lr 6.00e-04 | 250.0 ms | 4000 tok/s | 0:00 left\n"
                        "step 2 | validation loss 4.0625 (1234567 tokens) | bits per byte 1.5000\n"
                        "step 3/3 | loss 0.3333 | norm -inf | lr 6.00e-04 | 250.0 ms | 4000 tok/s | 0:00 left\n");
}

static void log_a_second_later(void) {
    Logger log = logger_open(temp_dir(), 0, false, false);
    logger_step(&log, quarter_second(1, 5.5, 1.25));
    log.last_line = now_seconds() - 1;
    logger_step(&log, quarter_second(2, 4.5, 1.25));
    logger_close(&log);
}

TEST(test_a_step_is_shown_a_second_later) {
    assert_non_null(strstr(read_file(stdout_of(log_a_second_later), NULL), "\nstep 2/3 | loss 4.5000"));
}

// the second step is not due for a line of its own
static void stop_after_two(void) {
    Logger log = logger_open(NULL, 0, false, false);
    logger_step(&log, quarter_second(1, 5.5, 1.25));
    log.last_line = now_seconds() + 1000;
    logger_step(&log, quarter_second(2, 4.5, 1.25));
    logger_stopped(&log, 2, 3, "interrupted");
    logger_close(&log);
}

TEST(test_a_stopped_run_shows_its_last_step) {
    const char *shown = read_file(stdout_of(stop_after_two), NULL);
    const char *last = strstr(shown, "\nstep 2/3 | loss 4.5000"), *stopped = strstr(shown, "\nstopped at step 2 of 3");
    assert_non_null(last);
    assert_true(stopped > last);
    assert_null(strstr(last + 1, "\nstep 2/3"));
}

static void log_changing_rates(void) {
    Logger log = logger_open(temp_dir(), 0, false, false);
    const double ms[] = {1000, 250, 500, 250}, limit[] = {INFINITY, 9999, 60, -0.1};
    for (int i = 0; i < 4; i++) {
        StepReport r = quarter_second(i + 1, 5.5, 1.25);
        r.max_steps = 1003, r.ms = ms[i], r.seconds_left = limit[i], r.peak_rate = 16000;
        r.skipped = "loss is an outlier";  // shown, however soon after the last line
        logger_step(&log, r);
    }
    logger_close(&log);
}

// The first step includes preparations, so the average begins with the second: 0.95 x 4000 + 0.05 x 2000.
TEST(test_rates) {
    const char *printed = read_file(stdout_of(log_changing_rates), NULL);
    assert_non_null(strstr(printed, "| 1000 tok/s | 6.2% MFU | 16:42 left | skipped: loss is an outlier\n"));
    assert_non_null(strstr(printed, "| 4000 tok/s | 25.0% MFU | 4:10 left | "));
    assert_non_null(strstr(printed, "| 3900 tok/s | 24.4% MFU | 1:00 left | "));
    assert_non_null(strstr(printed, "| 3905 tok/s | 24.4% MFU | 0:00 left | "));
    const char *metrics = read_file(temp_path("metrics.jsonl"), NULL);
    assert_non_null(
        strstr(metrics, "\"ms\":500,\"tokens_per_s\":2000,\"mfu\":0.125,\"skipped\":\"loss is an outlier\"}\n"));
}

static void resume_after_two(void) {
    Logger log = logger_open(temp_dir(), 2, true, true);
    logger_val(&log, 3, 0.5, NAN, 999);
    logger_hellaswag(&log, 3, 0.25);
    logger_close(&log);
}

TEST(test_a_resumed_run_goes_on) {
    static const char lines[] =
        "{\"step\":1,\"loss\":5}\n{\"step\":2,\"val_loss\":8}\n{\"step\":3,\"loss\":3}\n{\"step\":4,";
    static const char main_log[] = "s:0 tel:9.0\ns:0 trl:5.0\ns:1 trl:4.0\ns:2 tel:8.0\ns:2 trl:3.0\ns:3 trl:2";
    write_file("metrics.jsonl", lines, sizeof lines - 1);
    write_file("main.log", main_log, sizeof main_log - 1);
    stdout_of(resume_after_two);
    assert_string_equal(read_file(temp_path("metrics.jsonl"), NULL),
                        "{\"step\":1,\"loss\":5}\n{\"step\":2,\"val_loss\":8}\n"
                        "{\"step\":3,\"val_loss\":0.5,\"val_tokens\":999}\n"
                        "{\"step\":3,\"hellaswag\":0.25}\n");
    // the update of s:2 is the third, after the checkpoint
    assert_string_equal(read_file(temp_path("main.log"), NULL), "s:0 tel:9.0\ns:0 trl:5.0\ns:1 trl:4.0\ns:2 tel:8.0\n"
                                                                "s:3 tel:0.5000\ns:3 eval:0.2500\n");
    stdout_of(log_three_steps);  // a new run starts the log anew
    assert_null(strstr(read_file(temp_path("metrics.jsonl"), NULL), "val_loss\":0.5"));
}

static void assert_truncated(const char *before, long long step, const char *after) {
    const char *path = write_file("truncated.jsonl", before, strlen(before));
    logger_truncate(path, step, true, true);
    assert_string_equal(read_file(path, NULL), after);
    assert_int_not_equal(access(temp_path("truncated.jsonl.part"), F_OK), 0);
}

TEST(test_truncation) {
    assert_truncated("{\"step\":9,\"loss\":1}\n{\"step\":10,\"loss\":1}\n{\"step\":11,\"loss\":1}\n", 10,
                     "{\"step\":9,\"loss\":1}\n{\"step\":10,\"loss\":1}\n");
    assert_truncated("{\"step\":1,\"loss\":1}\n{\"step\":2,\"val_loss\":1}\n", 2,
                     "{\"step\":1,\"loss\":1}\n{\"step\":2,\"val_loss\":1}\n");
    // cut in the value or in the step, as by a killed run; lines in another format
    assert_truncated("{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":0.1", 9, "{\"step\":1,\"loss\":1}\n");
    assert_truncated("{\"step\":1,\"loss\":1}\n{\"st", 9, "{\"step\":1,\"loss\":1}\n");
    assert_truncated("hello\n\n{\"step\":1,\"loss\":1}\n", 9, "{\"step\":1,\"loss\":1}\n");
    assert_truncated("s:9 eval:0.1\ns:10 eval:0.1\ns:9 trl:1\ns:10 trl:1\ns:11 tel:1\n", 10,
                     "s:9 eval:0.1\ns:10 eval:0.1\ns:9 trl:1\n");
    // numbers beyond a long long, of a damaged file
    assert_truncated("{\"step\":9223372036854775808}\ns:9223372036854775807 trl:1\ns:3 trl:1\n", 4, "s:3 trl:1\n");
    assert_int_equal(logger_line_step("s:9223372036854775807 trl:1\n"), -1);
    assert_truncated("s:-1 tel:1\ns: tel:1\ns:1\ns:1 tel:1\n", 9, "s:1 tel:1\n");
    assert_truncated("", 9, "");
    logger_truncate(temp_path("missing.jsonl"), 3, true, true);
    assert_int_not_equal(access(temp_path("missing.jsonl"), F_OK), 0);
}

// main.log has evaluations of step 4 that metrics.jsonl does not have: a resumed run makes them again
TEST(test_killed_between_two_logs) {
    static const char *const kept[] = {"s:3 trl:1\n", "s:3 trl:1\ns:4 eval:2\n", "s:3 trl:1\ns:4 tel:2\n"};
    const char *log = "s:3 trl:1\ns:4 tel:2\ns:4 eval:2\ns:5 tel:2\n";
    for (int i = 0; i < 3; i++) {
        const char *path = write_file("main.log", log, strlen(log));
        Logger logger = logger_open(temp_path(""), 4, i == 2, i == 1);
        logger_close(&logger);
        assert_string_equal(read_file(path, NULL), kept[i]);
    }
}

static void stop_at_open(void *folder) { logger_open((const char *)folder, 0, false, false); }

TEST(test_a_folder_that_is_not_there) {
    assert_stops(EXIT_RUN_FAILED, "nowhere/metrics.jsonl': No such file", stop_at_open, (void *)temp_path("nowhere"));
}

// ---- a full disk

static void put_line(LogFile *log, int number) { log_file_line(log, "line %d\n", number); }

TEST(test_full_disk) {
    char path[PATH_LENGTH], expected[4096] = "";
    format_path(path, "%s", temp_path("full"));
    LogFile log = log_file_open(path, true);
    limit_files(10);  // a line and three bytes of the next
    for (int i = 0; i < 5; i++) {
        put_line(&log, i);
        assert_string_equal(read_file(path, NULL), "line 0\n");
        assert_int_equal(log.failing, i > 0);
    }
    limit_files(RLIM_INFINITY);
    fputc('\n', stderr);  // a warning was cut, too
    put_line(&log, 5);
    assert_false(log.failing);
    for (int i = 0; i < 6; i++) { snprintf(expected + strlen(expected), 16, "line %d\n", i); }
    assert_string_equal(read_file(path, NULL), expected);
    put_line(&log, 6);
    log_file_close(&log);
    snprintf(expected + strlen(expected), 16, "line 6\n");
    assert_string_equal(read_file(path, NULL), expected);
}

TEST(test_continues_a_file) {
    char path[PATH_LENGTH];
    format_path(path, "%s", temp_path("continued"));
    for (int i = 0; i < 3; i++) {
        LogFile log = log_file_open(path, i == 0);
        put_line(&log, i);
        log_file_close(&log);
    }
    assert_string_equal(read_file(path, NULL), "line 0\nline 1\nline 2\n");
    LogFile log = log_file_open(path, true);
    log_file_close(&log);
    assert_string_equal(read_file(path, NULL), "");
}

static void open_again(void *path) { log_file_open((const char *)path, false); }

// a link in a run directory may lead anywhere
TEST(test_links_are_not_followed) {
    const char *victim = write_file("victim", "precious\n", 9), *path = temp_path("link");
    assert_int_equal(symlink(victim, path), 0);
    assert_stops(EXIT_RUN_FAILED, "it is a symbolic link", open_again, (void *)path);
    mode_t before = umask(0);
    LogFile log = log_file_open(path, true);
    umask(before);
    put_line(&log, 1);
    log_file_close(&log);
    assert_string_equal(read_file(path, NULL), "line 1\n");
    assert_string_equal(read_file(victim, NULL), "precious\n");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0644);
}

static void close_full(void *path) {
    LogFile log = log_file_open((const char *)path, true);
    limit_files(0);
    log.failing = true;  // the warning was printed
    put_line(&log, 1);
    log_file_close(&log);
}

TEST(test_stops_with_lines_left) {
    assert_stops(EXIT_RUN_FAILED, "the lines are lost", close_full, (void *)temp_path("left"));
}

int main(void) { return run_all_tests("logger"); }
