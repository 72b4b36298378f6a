/*
Hashes of the state that ranks hold in common.
  data-parallel group     parameters (at -z 3, and at --offload 3 with -z 1 and 2, without the layers); at -z 0 also
                          remainders and moments
  tensor-parallel group   this rank's shard of the replicated tensors, their remainders and moments
*/
#pragma once
#include "llmc/common/hash.h"
#include "llmc/parallel/zero.h"

// Waits until the host may read all state: parameters are all-gathered and enqueued work is done.
static inline void replicas_wait(Zero *z, Comm *world) {
    zero_gather_changed(z);
    zero_wait_all(z);
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

// remainders and moments of elements `state` of the optimizer state; v: of those that have second moments
static inline uint64_t hash_optimizer(uint64_t hash, const OptimizerState *o, const Device *device, Range state,
                                      Range v) {
    const OptimizerState at = state_at(o, o->params, state.offset, v.offset);
    for (int i = STATE_PARAMS + 1; i < NUM_STATE_ARRAYS; i++) {
        const StateArray a = state_array(i, o->remainder, o->moments);
        size_t elements = state_elements(&a, a.part == OF_V ? v.count : state.count);
        if (a.exists) { hash = hash_device(hash, device, at.array[i], elements * dtype_size(a.dtype)); }
    }
    return hash;
}

// all remainders and moments of a rank
static inline uint64_t hash_all_optimizer(uint64_t hash, const OptimizerState *o, const Device *device,
                                          const ParamLayout *layout) {
    Range state = {0, layout->sharding.stage < 1 ? layout->total : layout->shard};
    Range v = {0, num_second_moments(layout)};
    return hash_optimizer(hash, o, device, state, v);
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
    return z->layout.sharding.stage > 0 ? hash : hash_all_optimizer(hash, o, device, &z->layout);
}

// the state that all ranks of a tensor-parallel group hold, after replicas_wait
static inline uint64_t hash_replicated_tensors(const Zero *z, const OptimizerState *o) {
    const Device *device = z->device;
    uint64_t hash = 0;
    for (int b = 0; b < num_buckets(&z->layout); b++) {
        int kind = bucket_kind(&z->layout, b), layer = kind == LAYER_BUCKET ? b - 1 : 0;
        for (int id = bucket_first_param[kind]; id < bucket_first_param[kind + 1]; id++) {
            ParamId p = (ParamId)id;
            ParamRange range = param_updated_range(&z->layout, p, layer, param_count(&z->layout, p));
            if (param_split(p) != SPLIT_NONE || range.count == 0) { continue; }
            Range state = {range.state, range.count}, v = {second_moment_at(&z->layout, p, layer, range), range.count};
            hash = hash_device(hash, device, z->stored_params + range.params, range.count * sizeof(floatX));
            hash = hash_optimizer(hash, o, device, state, v);
        }
    }
    return hash;
}
