/*
Helpers of the unit tests beside cmocka: a temporary folder for each test program, files in the folder, and functions
that stop the program.
defines: temp_dir, temp_path, write_file, run_in_child, is_one_line, assert_stops
*/
#pragma once
#include "llmc/common/compare.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {  // cmocka.h does not declare it
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

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

// Writes a file in temp_dir() and returns its path.
static inline const char *write_file(const char *name, const void *data, size_t bytes) {
    const char *path = temp_path(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

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
