/*
What every unit test needs beside cmocka: a folder of its own, files in it, and a way to watch a function stop the
program.
defines: temp_dir, temp_path, write_file, run_in_child, is_one_line, assert_stops
*/
#pragma once
#include "compare.h"
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
extern "C" {  // cmocka does not say so itself
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif

// a folder for this test program in $TMPDIR or /tmp, made on first use; scripts/run_tests.sh removes its $TMPDIR
static inline const char *temp_dir(void) {
    static char dir[128];
    if (!dir[0]) {
        const char *parent = getenv("TMPDIR");
        snprintf(dir, sizeof dir, "%s/train_gpt2_test_XXXXXX", parent ? parent : "/tmp");
        if (!mkdtemp(dir)) { fail_msg("could not make a temporary folder"); }
    }
    return dir;
}

// the path of NAME in temp_dir(); valid until the eighth call after it
static inline const char *temp_path(const char *name) {
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", temp_dir(), name);
    return path;
}

// writes BYTES bytes to NAME in temp_dir() and returns the path
static inline const char *write_file(const char *name, const void *data, size_t bytes) {
    const char *path = temp_path(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

// Runs FUNCTION(ARGUMENT) in a child: what it said on stderr, into SAID of SIZE bytes, and its wait status.
static inline int run_in_child(char *said, size_t size, void (*function)(void *), void *argument) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        function(argument);
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    ssize_t got;
    while ((got = read(ends[0], said + length, size - 1 - length)) > 0) { length += (size_t)got; }
    said[length] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    return status;
}

static inline bool is_one_line(const char *said) { return *said && strchr(said, '\n') == said + strlen(said) - 1; }

// Asserts that FUNCTION(ARGUMENT) exits with STATUS after one sentence that contains WORDS.
static inline void assert_stops(int status, const char *words, void (*function)(void *), void *argument) {
    char said[4096];
    int wait_status = run_in_child(said, sizeof said, function, argument);
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != status) {
        fail_msg("expected exit %d, got wait status %d; it said: %s", status, wait_status, said);
    }
    if (!strstr(said, words)) { fail_msg("expected a sentence with '%s'; it said: %s", words, said); }
    if (!is_one_line(said)) { fail_msg("expected one line; it said: %s", said); }
}
