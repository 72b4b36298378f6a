/*
Counts a program's parallel regions and barriers, and the time until all threads of a region have begun.
    cc -O2 -shared -fPIC dev/bench/parallel_regions.c -o regions.so && LD_PRELOAD=./regions.so PROGRAM
The program must use gcc's OpenMP. It writes one line of JSON to standard error at its end:
  regions     calls of GOMP_parallel
  barriers    barriers within regions; a region's end is no barrier
  wake_ms     sum over the regions of the time from the call to the begin of the last thread
*/
#define _GNU_SOURCE 1
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

typedef struct {
    void (*run)(void *);
    void *data;
    long long start, latest;  // nanoseconds: when the region was called, and when its last thread began
} Region;

static long long regions, barriers, wake_ns;
static void (*next_parallel)(void (*)(void *), void *, unsigned, unsigned);
static void (*next_barrier)(void);
static int (*thread_number)(void);

__attribute__((constructor)) static void find_functions(void) {
    *(void **)&next_parallel = dlsym(RTLD_NEXT, "GOMP_parallel");
    *(void **)&next_barrier = dlsym(RTLD_NEXT, "GOMP_barrier");
    *(void **)&thread_number = dlsym(RTLD_NEXT, "omp_get_thread_num");
}

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void begin_thread(void *data) {
    Region *region = data;
    long long now = now_ns(), latest = __atomic_load_n(&region->latest, __ATOMIC_RELAXED);
    while (latest < now &&
           !__atomic_compare_exchange_n(&region->latest, &latest, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    region->run(region->data);
}

void GOMP_parallel(void (*run)(void *), void *data, unsigned threads, unsigned flags) {
    Region region = {run, data, now_ns(), 0};
    next_parallel(begin_thread, &region, threads, flags);
    __atomic_add_fetch(&wake_ns, region.latest - region.start, __ATOMIC_RELAXED);
    __atomic_add_fetch(&regions, 1, __ATOMIC_RELAXED);
}

// counted once, by thread 0
void GOMP_barrier(void) {
    if (thread_number() == 0) { __atomic_add_fetch(&barriers, 1, __ATOMIC_RELAXED); }
    next_barrier();
}

__attribute__((destructor)) static void print(void) {
    fprintf(stderr, "{\"regions\": %lld, \"barriers\": %lld, \"wake_ms\": %.6f}\n", regions, barriers,
            (double)wake_ns / 1e6);
}
