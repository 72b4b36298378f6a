/*
The machine that holds the model: allocate, zero, copy. A table like Ops, so that the trainer does not ask which it is.
defines: Device, cpu_device
*/
#pragma once
#include "check.h"
#include <stddef.h>

typedef struct {
    const char *name;
    void *(*allocate)(size_t bytes);  // 256-byte aligned; stops the program if there is no memory
    void (*release)(void *p);
    void (*zero)(void *p, size_t bytes);
    void (*upload)(void *device, const void *host, size_t bytes);
    void (*download)(void *host, const void *device, size_t bytes);
    void (*copy)(void *to, const void *from, size_t bytes);  // within the device
} Device;

static inline void *host_allocate(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes ? bytes : 256) != 0) {
        run_error("out of memory: the plan needs %.1f MiB; a smaller -b, -t or model needs less (see --plan)",
                  (double)bytes / (1 << 20));
    }
    return p;
}

static inline void host_zero(void *p, size_t bytes) { memset(p, 0, bytes); }
static inline void host_copy(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }

static const Device cpu_device = {
    .name = "cpu",
    .allocate = host_allocate,
    .release = free,
    .zero = host_zero,
    .upload = host_copy,
    .download = host_copy,
    .copy = host_copy,
};
