/*
--check-replicas: ranks that should hold the same bits are compared by hashes, and the rank that differs is named.
  data-parallel group     parameters (at -z 3, and at --offload 3 with -z 1 and 2, without the layers); at -z 0 also
                          masters and moments
  tensor-parallel group   this rank's shard of the replicated tensors, their masters and moments
defines: replicas_wait, hash_device, check_replicas
*/
#pragma once
#include "llmc/common/hash.h"
#include "llmc/parallel/zero.h"

// Waits until the host may read all state: parameters are all-gathered and enqueued work is done.
static inline void replicas_wait(Zero *z, Comm *world) {
    zero_all_params_wait(z);
    world->device->event_record(0, z->ex);
    comm_event_synchronize(0, world, z->ex);
}

static inline uint64_t hash_device(uint64_t hash, const Device *device, const void *memory, size_t bytes) {
    void *host = xmalloc(bytes);
    device->download(host, memory, bytes);
    hash = hash_bytes(hash, host, bytes);
    free(host);
    return hash;
}

// masters and moments of elements [offset, offset + count) of the optimizer state
static inline uint64_t hash_optimizer(uint64_t hash, const OptimizerState *o, const Device *device, size_t offset,
                                      size_t count) {
    size_t size = dtype_size(o->moments);
    if (o->master) { hash = hash_device(hash, device, o->master + offset, count * sizeof *o->master); }
    if (o->remainder) { hash = hash_device(hash, device, o->remainder + offset, count * sizeof *o->remainder); }
    hash = hash_device(hash, device, (const char *)o->m + offset * size, count * size);
    return hash_device(hash, device, (const char *)o->v + offset * size, count * size);
}

// the state that all ranks of a data-parallel group hold, after replicas_wait
static inline uint64_t hash_data_parallel(const Zero *z, const OptimizerState *o) {
    const Device *device = z->device;
    uint64_t hash = 0;
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        bool stored = z->layout.sharding.stage == 0;
        if (zero_gathers_layers(z, b) && !stored) { continue; }
        const floatX *params = stored ? zero_stored_params(z, b) : zero_params(z, b);
        hash = hash_device(hash, device, params, param_bucket(&z->layout, b).size * sizeof(floatX));
    }
    return z->layout.sharding.stage > 0 ? hash : hash_optimizer(hash, o, device, 0, z->layout.total);
}

// the state that all ranks of a tensor-parallel group hold, after replicas_wait
static inline uint64_t hash_replicated_tensors(const Zero *z, const OptimizerState *o) {
    const Device *device = z->device;
    bool whole = z->layout.sharding.stage == 0;
    uint64_t hash = 0;
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        Bucket bucket = param_bucket(&z->layout, b);
        const floatX *params = zero_stored_params(z, b);
        Range ranges[LAYER_PARAMS];
        int count = bucket_ranges(ranges, &z->layout, b, false, false);
        for (int i = 0; i < count; i++) {
            size_t offset = (whole ? bucket.offset : bucket.shard_offset) + ranges[i].offset;
            hash = hash_device(hash, device, params + ranges[i].offset, ranges[i].count * sizeof(floatX));
            hash = hash_optimizer(hash, o, device, offset, ranges[i].count);
        }
    }
    return hash;
}

// Stops the run if the hashes of a group differ, and names the first rank that differs from the majority. World rank
// first + stride * r is the group's rank r.
static inline void compare_replicas(uint64_t hash, Comm *group, int first, int stride, long long step) {
    long long mine = (long long)(hash >> 1);
    if (comm_max(mine, group) == -comm_max(-mine, group)) { return; }
    long long *hashes = (long long *)xmalloc((size_t)group->size * sizeof *hashes);
    int usual = 0, most = 0, other = 0;
    for (int r = 0; r < group->size; r++) { hashes[r] = comm_max(r == group->rank ? mine : -1, group); }
    for (int r = 0; r < group->size; r++) {
        int same = 0;
        for (int s = 0; s < group->size; s++) { same += hashes[s] == hashes[r]; }
        if (same > most) {
            usual = r;
            most = same;
        }
    }
    while (hashes[other] == hashes[usual]) { other++; }
    if (2 * most <= group->size) {
        run_error("after step %lld the parameters of ranks %d and %d differ, and no majority says which are right: "
                  "memory or arithmetic is at fault on one of the two machines; resume with -y 1 on other machines",
                  step, first + stride * usual, first + stride * other);
    }
    run_error(
        "after step %lld the parameters of rank %d differ from those of rank %d, which %d of %d ranks have: memory "
        "or arithmetic is at fault on rank %d's machine; resume with -y 1 without that machine",
        step, first + stride * other, first + stride * usual, most, group->size, first + stride * other);
}

// Compares the state of both groups after update `step`.
static inline void check_replicas(Zero *z, const OptimizerState *o, Comm *world, Comm *tp, long long step) {
    Comm *dp = z->dp;
    replicas_wait(z, world);
    if (dp->size > 1) { compare_replicas(hash_data_parallel(z, o), dp, tp->rank, tp->size, step); }
    if (tp->size > 1) { compare_replicas(hash_replicated_tensors(z, o), tp, dp->rank * tp->size, 1, step); }
}
