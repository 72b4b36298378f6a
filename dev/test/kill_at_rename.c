/*
A rename that kills the program, preloaded by tests of killed runs. It sends KILL_SIGNAL, by default SIGKILL, to one
process once: before it renames a path that ends with KILL_AT, or after it has renamed one that ends with KILL_AFTER,
while the file KILL_ONCE exists. Files within a folder that is renamed later do not count.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ends_with(const char *path, const char *end) {
    size_t length = strlen(path), tail = strlen(end);
    return length >= tail && strcmp(path + length - tail, end) == 0;
}

static void kill_at(const char *place, const char *path) {
    const char *end = getenv(place), *once = getenv("KILL_ONCE"), *number = getenv("KILL_SIGNAL");
    if (end && once && ends_with(path, end) && unlink(once) == 0) { raise(number ? atoi(number) : SIGKILL); }
}

int rename(const char *from, const char *to) {
    kill_at("KILL_AT", from);
    int status = ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
    kill_at("KILL_AFTER", from);
    return status;
}
