/*
Adds to cmocka what the unit tests need. A test registers itself, each test program gets a temporary folder for its
files, and a test can call a function that stops the program.
*/
#pragma once
#include "llmc/common/floatx.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {  // cmocka.h does not declare it
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

typedef struct TestList {
    struct CMUnitTest tests[128];
    int count;
} TestList;

static inline TestList *test_list(void) {
    static TestList list;
    return &list;
}

static inline void add_test(const char *name, CMUnitTestFunction function) {
    TestList *list = test_list();
    assert_true(list->count < 128);
    list->tests[list->count].name = name;
    list->tests[list->count++].test_func = function;
}

// TEST(test_sums) { ... } is a test of this program: it registers itself before main, in the order of the lines.
#define TEST(name)                                                                                                     \
    static void name(void **state);                                                                                    \
    __attribute__((constructor(1000 + __LINE__))) static void add_##name(void) { add_test(#name, name); }              \
    static void name(void **state __attribute__((unused)))

// Runs every TEST. Returns the number of failures.
static inline int run_all_tests(const char *name) {
    return cmocka_run_group_tests_name(name, test_list()->tests, NULL, NULL);
}

#define LEN(array) (sizeof(array) / sizeof((array)[0]))

// ---- files

// The folder of this test program, created on first use in $TMPDIR or /tmp. scripts/run_tests.sh removes its $TMPDIR.
static inline const char *temp_dir(void) {
    static char dir[128];
    if (!dir[0]) {
        const char *parent = getenv("TMPDIR");
        snprintf(dir, sizeof dir, "%s/train_gpt2_test_XXXXXX", parent ? parent : "/tmp");
        if (!mkdtemp(dir)) { fail_msg("could not create a temporary folder"); }
    }
    return dir;
}

// The path of `name` in temp_dir(). Eight calls later another path overwrites it.
static inline const char *temp_path(const char *name) {
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", temp_dir(), name);
    return path;
}

// FOLDER/NAME. Sixteen calls later another path overwrites it.
static inline const char *joined(const char *folder, const char *name) {
    static char paths[16][4096];
    static int next;
    char whole[4096], *path = paths[next++ % 16];
    if (snprintf(whole, sizeof whole, "%s/%s", folder, name) >= (int)sizeof whole) { fail_msg("too long a path"); }
    strcpy(path, whole);
    return path;
}

static inline bool exists(const char *folder, const char *name) { return access(joined(folder, name), F_OK) == 0; }

static inline void write_bytes(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text) { write_bytes(path, text, strlen(text)); }

// Writes a file in temp_dir() and returns its path.
static inline const char *write_file(const char *name, const void *data, size_t bytes) {
    const char *path = temp_path(name);
    write_bytes(path, data, bytes);
    return path;
}

// bytes of a file from `offset` on = data
static inline void overwrite(const char *path, long offset, const void *data, size_t bytes) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

// A new folder NAME in temp_dir(). Its path stays valid.
static inline const char *new_folder(const char *name) {
    static char folders[128][256];
    static int next;
    assert_true(next < 128);
    char *folder = folders[next++];
    snprintf(folder, sizeof folders[0], "%s/%s", temp_dir(), name);
    assert_int_equal(mkdir(folder, 0777), 0);
    return folder;
}

// The contents of a file of at most 128 KiB, and a zero after them. The next call overwrites them.
static inline const char *read_file(const char *path, size_t *bytes) {
    static char data[(128 << 10) + 1];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t length = fread(data, 1, sizeof data, file);
    assert_true(length < sizeof data);
    data[length] = 0;
    fclose(file);
    if (bytes) { *bytes = length; }
    return data;
}

// From now on a file that grows beyond `bytes` fails with EFBIG. RLIM_INFINITY: no limit.
static inline void limit_files(rlim_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

enum { NEW_FILE = O_WRONLY | O_CREAT | O_TRUNC };

// From now on `descriptor`, one of the standard streams, is the file at `path`, until restore(descriptor, result). No
// assertion may fail in between.
static inline int redirect(int descriptor, const char *path, int flags) {
    fflush(NULL);
    int saved = dup(descriptor), file = open(path, flags, 0666);
    assert_true(file >= 0);
    dup2(file, descriptor);
    close(file);
    return saved;
}

static inline void restore(int descriptor, int saved) {
    fflush(NULL);
    dup2(saved, descriptor);
    close(saved);
}

// ---- functions that stop the program

// Ends a child without exit's handlers: those of a parent's CUDA context, which a child cannot use, may hang.
static inline void leave_now(int status, void *unused) {
    (void)unused;
    fflush(NULL);
    _exit(status);
}

// Runs function(argument) in a child process. output (size bytes) = its stderr. Returns its wait status.
static inline int run_in_child(char *output, size_t size, void (*function)(void *), void *argument) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        on_exit(leave_now, NULL);  // the last handler that is registered runs first
        function(argument);
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    ssize_t got;
    while ((got = read(ends[0], output + length, size - 1 - length)) > 0) { length += (size_t)got; }
    output[length] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

static inline bool is_one_line(const char *text) { return *text && strchr(text, '\n') == text + strlen(text) - 1; }

// for ranks, whose process ends with the sentence
#define CHECK(holds, ...)                                                                                              \
    do {                                                                                                               \
        if (!(holds)) { run_error(__VA_ARGS__); }                                                                      \
    } while (0)

// Asserts that function(argument) exits with `status` after one sentence on stderr that contains `words`.
static inline void assert_stops(int status, const char *words, void (*function)(void *), void *argument) {
    char output[4096];
    int wait_status = run_in_child(output, sizeof output, function, argument);
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != status) {
        fail_msg("found wait status %d, expected exit status %d; stderr: %s", wait_status, status, output);
    }
    if (!strstr(output, words)) { fail_msg("expected a sentence with '%s'; stderr: %s", words, output); }
    if (!is_one_line(output)) { fail_msg("expected one line; stderr: %s", output); }
}

// Asserts that function(argument) aborts after one sentence on stderr that contains both strings.
static inline void assert_aborts(const char *words, const char *more_words, void (*function)(void *), void *argument) {
    char said[4096];
    int status = run_in_child(said, sizeof said, function, argument);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !is_one_line(said)) {
        fail_msg("expected an abort with '%s', got wait status %d: %s", more_words, status, said);
    }
    if (!strstr(said, words) || !strstr(said, more_words)) {
        fail_msg("expected '%s' and '%s'; it said: %s", words, more_words, said);
    }
}
