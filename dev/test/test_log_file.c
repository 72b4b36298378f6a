/* LogFile: on a full disk no line is lost, and the file never holds half a line. */
#include "dev/test/testing.h"
#include "llmc/run/log_file.h"
#include <signal.h>
#include <sys/resource.h>

// files may grow to `bytes`; a write beyond that fails with EFBIG
static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void put_line(LogFile *log, int number) {
    fprintf(log->text, "line %d", number);
    log_file_end_line(log);
}

static const char *whole_file(const char *path) {
    static char text[4096];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

static void test_full_disk(void **state) {
    (void)state;
    char path[PATH_LENGTH], expected[4096] = "";
    format_path(path, "%s", temp_path("full"));
    LogFile *log = log_file_open(path, true);
    limit_files(10);  // a line and three bytes of the next
    for (int i = 0; i < 5; i++) {
        put_line(log, i);
        assert_string_equal(whole_file(path), "line 0\n");
        assert_int_equal(log->failing, i > 0);
    }
    limit_files(RLIM_INFINITY);
    put_line(log, 5);
    assert_false(log->failing);
    for (int i = 0; i < 6; i++) { snprintf(expected + strlen(expected), 16, "line %d\n", i); }
    assert_string_equal(whole_file(path), expected);
    put_line(log, 6);
    log_file_close(log);
    snprintf(expected + strlen(expected), 16, "line 6\n");
    assert_string_equal(whole_file(path), expected);
}

static void test_continues_a_file(void **state) {
    (void)state;
    char path[PATH_LENGTH];
    format_path(path, "%s", temp_path("continued"));
    for (int i = 0; i < 3; i++) {
        LogFile *log = log_file_open(path, i == 0);
        put_line(log, i);
        log_file_close(log);
    }
    assert_string_equal(whole_file(path), "line 0\nline 1\nline 2\n");
    log_file_close(log_file_open(path, true));
    assert_string_equal(whole_file(path), "");
}

static void open_again(void *path) { log_file_open((const char *)path, false); }

// a link in a run directory may lead anywhere
// a file that appears with its first line, as soon as it can be created
static void test_appears_with_its_first_line(void **state) {
    (void)state;
    char path[PATH_LENGTH];
    format_path(path, "%s/file", temp_path("later"));
    LogFile *log = log_file_new(path);
    put_line(log, 0);  // there is no folder
    assert_true(log->failing);
    mkdir(temp_path("later"), 0777);
    put_line(log, 1);
    assert_string_equal(whole_file(path), "line 0\nline 1\n");
    log_file_close(log);
    log = log_file_new(path);
    put_line(log, 2);
    log_file_close(log);
    assert_string_equal(whole_file(path), "line 0\nline 1\nline 2\n");
    unlink(path);
    log_file_close(log_file_new(path));  // without a line
    assert_int_equal(access(path, F_OK), -1);
    rmdir(temp_path("later"));
}

static void test_links_are_not_followed(void **state) {
    (void)state;
    const char *victim = write_file("victim", "precious\n", 9), *path = temp_path("link");
    assert_int_equal(symlink(victim, path), 0);
    assert_stops(EXIT_RUN_FAILED, "it is a symbolic link, expected a file", open_again, (void *)path);
    mode_t before = umask(0);
    LogFile *log = log_file_open(path, true);
    umask(before);
    put_line(log, 1);
    log_file_close(log);
    assert_string_equal(whole_file(path), "line 1\n");
    assert_string_equal(whole_file(victim), "precious\n");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0644);
}

static void close_full(void *path) {
    LogFile *log = log_file_open((const char *)path, true);
    fputs("a line\n", log->text);
    limit_files(0);
    log_file_close(log);
}

static void test_stops_with_lines_left(void **state) {
    (void)state;
    assert_stops(EXIT_RUN_FAILED, "the lines are lost", close_full, (void *)temp_path("left"));
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_continues_a_file),
        cmocka_unit_test(test_appears_with_its_first_line),
        cmocka_unit_test(test_links_are_not_followed),
        cmocka_unit_test(test_stops_with_lines_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
