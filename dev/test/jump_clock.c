/*
A clock that jumps, preloaded by dev/test/faults.sh: the time of day is hours ahead in one call and hours behind in the
next. CLOCK_MONOTONIC is left alone. JUMP_NOTE, a file, gets at the program's end the number of calls that the program
itself has made, without those of its libraries.
*/
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/time.h>
#include <time.h>

static long jumps, own_jumps;

// whether an address is in the program, not in a library; AT_PHDR is in the program's first page
static int is_own(const void *caller) {
    Dl_info found;
    return dladdr(caller, &found) && (uintptr_t)found.dli_fbase == (getauxval(AT_PHDR) & ~(uintptr_t)4095);
}

// seconds to add to the time of day: -5 to 5 hours
static time_t jump(const void *caller) {
    if (is_own(caller)) { __atomic_add_fetch(&own_jumps, 1, __ATOMIC_RELAXED); }
    long n = __atomic_add_fetch(&jumps, 1, __ATOMIC_RELAXED);
    return (time_t)(n * 7 % 11 - 5) * 3600;
}

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): glibc begins its names with __
int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) { now->tv_sec += jump(__builtin_return_address(0)); }
    return status;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (is_own(__builtin_return_address(0))) { __atomic_add_fetch(&own_jumps, 1, __ATOMIC_RELAXED); }
    if (to) { *to = now.tv_sec; }
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int status = ((int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday"))(now, zone);
    now->tv_sec += jump(__builtin_return_address(0));
    return status;
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name)

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("JUMP_NOTE");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) { return; }
    fprintf(file, "%ld\n", own_jumps);
    fclose(file);
}
