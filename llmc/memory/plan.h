/*
The memory plan: a list of every tensor on the device and in pinned host memory, made before anything is allocated; and
the arenas, which allocate exactly that list.
Lifetimes
  state     parameters, gradients, optimizer state: as long as the run
  saved     written by the forward, read by the backward of the same micro-step
  scratch   named buffers that are acquired and released within a step
  host      pinned host memory: micro-batches and results on their way, and tensors of --offload
Every tensor starts at a multiple of PLAN_ALIGN bytes, and its bytes are rounded up to that. The sums of the list are
the sizes of the arenas, byte for byte: `host` of the arena in host memory, the others of the arena on the device. Each
entry names a member of a struct of pointers (GPT2Tensors); arena_bind sets the member.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/device.h"
#include "llmc/common/floatx.h"
#include <cjson/cJSON.h>
#include <stdbool.h>

typedef enum { STATE, SAVED, SCRATCH, HOST, NUM_LIFETIMES } Lifetime;

enum { PLAN_MAX_DIMS = 4, PLAN_ALIGN = 256 };

static const char *const lifetime_names[NUM_LIFETIMES] = {"state", "saved", "scratch", "host"};

typedef struct {
    const char *name;
    Lifetime lifetime;
    DType dtype;
    int num_dims;
    size_t shape[PLAN_MAX_DIMS];
    size_t bytes;   // rounded up to PLAN_ALIGN
    size_t offset;  // in the arena on the device, or of `host`
    size_t member;  // offset of the tensor's pointer in the struct that arena_bind sets
} PlanTensor;

typedef struct {
    PlanTensor *tensors;
    int count;
} Plan;

// NULL if the plan has no tensor of that name
static inline const PlanTensor *plan_find(const Plan *plan, const char *name) {
    for (int i = 0; i < plan->count; i++) {
        if (strcmp(plan->tensors[i].name, name) == 0) { return &plan->tensors[i]; }
    }
    return NULL;
}

// bytes from one index of the first dimension to the next, such as from slot to slot
static inline size_t plan_slot_bytes(const PlanTensor *t) {
    size_t bytes = dtype_size(t->dtype);
    for (int i = 1; i < t->num_dims; i++) { bytes *= t->shape[i]; }
    return bytes;
}

// bytes of one lifetime
static inline size_t plan_bytes(const Plan *plan, Lifetime lifetime) {
    size_t bytes = 0;
    for (int i = 0; i < plan->count; i++) {
        if (plan->tensors[i].lifetime == lifetime) { bytes += plan->tensors[i].bytes; }
    }
    return bytes;
}

static inline size_t plan_device_bytes(const Plan *plan) {
    return plan_bytes(plan, STATE) + plan_bytes(plan, SAVED) + plan_bytes(plan, SCRATCH);
}

// Appends a tensor of `num_dims` dimensions, in `shape`; stops if the sum exceeds the address space. `name` must
// outlive the plan. member: the offset of the tensor's pointer in the struct that arena_bind sets.
static inline void plan_add(Plan *plan, size_t member, const char *name, Lifetime lifetime, DType dtype, int num_dims,
                            const size_t *shape) {
    if (num_dims > PLAN_MAX_DIMS) { run_error("%s has %d dimensions: a bug in the memory plan", name, num_dims); }
    plan->tensors = (PlanTensor *)xrealloc(plan->tensors, (size_t)(plan->count + 1) * sizeof(PlanTensor));
    PlanTensor *t = &plan->tensors[plan->count];
    memset(t, 0, sizeof *t);
    t->name = name;
    t->lifetime = lifetime;
    t->dtype = dtype;
    t->num_dims = num_dims;
    t->member = member;
    size_t bytes = dtype_size(dtype), end;
    bool fits = true;
    for (int i = 0; i < num_dims; i++) {
        t->shape[i] = shape[i];
        fits &= !__builtin_mul_overflow(bytes, shape[i], &bytes);
    }
    t->offset = lifetime == HOST ? plan_bytes(plan, HOST) : plan_device_bytes(plan);
    fits &= !__builtin_add_overflow(t->offset, bytes, &end) && end <= PTRDIFF_MAX - PLAN_ALIGN;
    if (!fits) { input_error("%s would take more memory than can be addressed; give a smaller model, -b or -t", name); }
    t->bytes = (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    plan->count++;
}

// plan_add for a member of the struct `type`; the tensor has the member's name. The dimensions come last.
#define PLAN_ADD_MEMBER(plan, type, member, lifetime, dtype, ...)                                                      \
    do {                                                                                                               \
        const size_t dims[] = {__VA_ARGS__};                                                                           \
        plan_add(plan, offsetof(type, member), #member, lifetime, dtype, (int)(sizeof dims / sizeof dims[0]), dims);   \
    } while (0)

static inline double mebibytes(size_t bytes) { return (double)bytes / (1 << 20); }

// the rows of one lifetime
static inline void plan_print_lifetime(FILE *out, const Plan *plan, Lifetime lifetime) {
    const char *name = lifetime_names[lifetime];
    for (int i = 0; i < plan->count; i++) {
        const PlanTensor *t = &plan->tensors[i];
        if (t->lifetime != lifetime) { continue; }
        char shape[96] = "";
        for (int d = 0, at = 0; d < t->num_dims; d++) {
            at += snprintf(shape + at, sizeof shape - (size_t)at, d ? " x %zu" : "%zu", t->shape[d]);
        }
        fprintf(out, "%-8s %-22s %-22s %-5s %12.2f\n", name, t->name, shape, dtype_name(t->dtype), mebibytes(t->bytes));
    }
}

// the table that --plan shows, in MiB
static inline void plan_print(FILE *out, const Plan *plan) {
    fprintf(out, "%-8s %-22s %-22s %-5s %12s\n", "lifetime", "tensor", "shape", "type", "MiB");
    for (int l = 0; l < HOST; l++) {
        plan_print_lifetime(out, plan, (Lifetime)l);
        fprintf(out, "%-8s %-51s %12.2f\n", lifetime_names[l], "in all", mebibytes(plan_bytes(plan, (Lifetime)l)));
    }
    fprintf(out, "%-60s %12.2f\n", "total on the device", mebibytes(plan_device_bytes(plan)));
    plan_print_lifetime(out, plan, HOST);
    fprintf(out, "%-60s %12.2f\n", "total in pinned host memory", mebibytes(plan_bytes(plan, HOST)));
}

// {"rank":0,"state":bytes,...,"host":bytes,"total":bytes,"tensors":[{"name","lifetime","shape","dtype","bytes"}]};
// total counts the device alone. The caller deletes it.
static inline cJSON *plan_json(const Plan *plan, int rank) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "rank", rank);
    for (int l = 0; l < NUM_LIFETIMES; l++) {
        cJSON_AddNumberToObject(json, lifetime_names[l], (double)plan_bytes(plan, (Lifetime)l));
    }
    cJSON_AddNumberToObject(json, "total", (double)plan_device_bytes(plan));
    cJSON *tensors = cJSON_AddArrayToObject(json, "tensors");
    for (int i = 0; i < plan->count; i++) {
        const PlanTensor *t = &plan->tensors[i];
        cJSON *tensor = cJSON_CreateObject();
        cJSON_AddStringToObject(tensor, "name", t->name);
        cJSON_AddStringToObject(tensor, "lifetime", lifetime_names[t->lifetime]);
        cJSON *shape = cJSON_AddArrayToObject(tensor, "shape");
        for (int d = 0; d < t->num_dims; d++) { cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[d])); }
        cJSON_AddStringToObject(tensor, "dtype", dtype_name(t->dtype));
        cJSON_AddNumberToObject(tensor, "bytes", (double)t->bytes);
        cJSON_AddItemToArray(tensors, tensor);
    }
    return json;
}

static inline void plan_free(Plan *plan) { free(plan->tensors); }

// the memory of a plan: one allocation on the device and one of the host
typedef struct {
    unsigned char *device, *host;
} Arena;

// Allocates the plan, zeroed. Free with arena_release.
static inline Arena arena_create(const Plan *plan, const Device *device) {
    size_t bytes = plan_device_bytes(plan);
    Arena arena = {(unsigned char *)device->allocate(bytes),
                   (unsigned char *)device->allocate_host(plan_bytes(plan, HOST))};
    device->fill(arena.device, 0, bytes);
    return arena;
}

static inline void arena_release(Arena arena, const Device *device) {
    device->release(arena.device);
    device->release_host(arena.host);
}

// Sets the pointer to each planned tensor in *tensors, a zeroed struct; pointers of tensors outside the plan stay NULL.
static inline void arena_bind(Arena arena, const Plan *plan, void *tensors) {
    for (int i = 0; i < plan->count; i++) {
        bool host = plan->tensors[i].lifetime == HOST;
        void *tensor = (host ? arena.host : arena.device) + plan->tensors[i].offset;
        memcpy((char *)tensors + plan->tensors[i].member, &tensor, sizeof tensor);
    }
}

// a scratch buffer: memory with at most one owner at a time, the tensor between acquire and release
typedef struct {
    void *memory;
    size_t bytes;
    const char *owner;  // name of the tensor; NULL: free
    const Device *device;
    Exec *ex;  // of the work that uses the buffer
} Scratch;

// The scratch buffer `name` of the plan. Without memory if the plan has no such tensor.
static inline Scratch scratch_open(Arena arena, const Plan *plan, const char *name, const Device *device, Exec *ex) {
    const PlanTensor *t = plan_find(plan, name);
    Scratch scratch = {t ? arena.device + t->offset : NULL, t ? t->bytes : 0, NULL, device, ex};
    return scratch;
}

// The buffer's memory for a tensor of `elements`. Stops if the buffer is in use or too small.
static inline floatX *scratch_acquire(Scratch *scratch, const char *owner, size_t elements) {
    size_t needed = elements * sizeof(floatX);
    if (scratch->owner) { run_error("scratch for %s is in use by %s: a bug in the trainer", owner, scratch->owner); }
    if (needed > scratch->bytes) {
        run_error("scratch has %zu bytes, %s needs %zu: a bug in the memory plan", scratch->bytes, owner, needed);
    }
    scratch->owner = owner;
    return (floatX *)scratch->memory;
}

static inline void scratch_release(Scratch *scratch) {
    scratch->owner = NULL;
    device_poison(scratch->device, scratch->memory, scratch->bytes, scratch->ex);
}
