/*
--verify-step: runs forward and backward of a step twice from the same weights and data. Loss, gradient norm and the
gradients that each rank stores must have the same bits both times (doc/numerics.md). A difference means that hardware
is faulty, or that operations race. The fault may be older: steps since the previous check may have gone wrong, too.
defines: StepResult, step_result_read, step_result_free, result_difference, check_same_results
*/
#pragma once
#include "llmc/parallel/replicas.h"
#include "llmc/run/rank_text.h"

// the results of a step before its update, on this rank
typedef struct {
    real loss, norm_squared;  // of all ranks
    uint64_t *gradients;      // (NUM_PARAM_TENSORS * layers) hashes of the elements that this rank stores
} StepResult;

static inline int verified_layers(const ParamLayout *layout) { return num_buckets(layout) - 2; }

// hash of the reduced gradients of one tensor; 0 if another rank stores them
static inline uint64_t hash_gradient(const Zero *z, ParamId id, int layer) {
    const ParamLayout *layout = &z->layout;
    int bucket = param_bucket_of(layout, id, layer);
    ParamRange range = param_updated_range(layout, id, layer, param_count(layout, id));
    if (range.count == 0) { return 0; }
    Bucket b = param_bucket(layout, bucket);
    size_t first = layout->sharding.stage == 0 ? b.offset : b.owned_offset;
    size_t in_bucket = param_offset(layout, id, layer) + range.offset - first;
    Gradient g = gradient_at(zero_stored_grads(z, bucket), in_bucket);
    return hash_device(0, z->device, g.at, range.count * dtype_size(g.dtype));
}

// After the norm of a step, when the device is idle. results (2): loss and squared norm, on the device. Free with
// step_result_free.
static inline StepResult step_result_read(const Zero *z, const real *results) {
    int layers = verified_layers(&z->layout);
    StepResult r;
    real host[2];
    z->device->download(host, results, sizeof host);
    r.loss = host[0];
    r.norm_squared = host[1];
    r.gradients = (uint64_t *)xcalloc(NUM_PARAM_TENSORS * (size_t)layers, sizeof *r.gradients);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int l = 0; l < (param_is_layered((ParamId)id) ? layers : 1); l++) {
            r.gradients[id * layers + l] = hash_gradient(z, (ParamId)id, l);
        }
    }
    return r;
}

static inline void step_result_free(StepResult *r) { free(r->gradients); }

static inline bool same_bits(real a, real b) { return float_to_bits((float)a) == float_to_bits((float)b); }

// Whether the gradients of a tensor differ. If they do, text names the tensor.
static inline bool gradients_differ(char *text, size_t size, const StepResult *a, const StepResult *b, int layers,
                                    ParamId id, int layer) {
    char name[NAME_LENGTH];
    int i = (int)id * layers + layer;
    if (a->gradients[i] == b->gradients[i]) { return false; }
    param_name(name, sizeof name, id, layer);
    snprintf(text, size, "two gradients of %s, with norms %.9g and %.9g of all gradients", name,
             sqrt((double)a->norm_squared), sqrt((double)b->norm_squared));
    return true;
}

// text = the first difference of two results, or "". Numbers are compared bit by bit: NaN is equal to NaN. Gradients
// are compared in the order of the backward: the first difference is the closest to the fault.
static inline void result_difference(char *text, size_t size, const StepResult *a, const StepResult *b,
                                     const ParamLayout *layout) {
    int layers = verified_layers(layout);
    *text = 0;
    if (!same_bits(a->loss, b->loss)) {
        snprintf(text, size, "losses %.9g and %.9g", (double)a->loss, (double)b->loss);
        return;
    }
    bool differ = false;
    for (int id = NUM_PARAM_TENSORS - 1; id > LAST_LAYER_PARAM && !differ; id--) {
        differ = gradients_differ(text, size, a, b, layers, (ParamId)id, 0);
    }
    for (int layer = layers - 1; layer >= 0; layer--) {
        for (int id = LAST_LAYER_PARAM; id >= FIRST_LAYER_PARAM && !differ; id--) {
            differ = gradients_differ(text, size, a, b, layers, (ParamId)id, layer);
        }
    }
    for (int id = FIRST_LAYER_PARAM - 1; id >= 0 && !differ; id--) {
        differ = gradients_differ(text, size, a, b, layers, (ParamId)id, 0);
    }
    if (differ || same_bits(a->norm_squared, b->norm_squared)) { return; }
    snprintf(text, size, "gradient norms %.9g and %.9g", sqrt((double)a->norm_squared), sqrt((double)b->norm_squared));
}

// Stops the run if a rank has two different results of a step. All ranks call it.
static inline void check_same_results(const StepResult *a, const StepResult *b, const ParamLayout *layout,
                                      long long step, Comm *world) {
    char text[256];
    result_difference(text, sizeof text, a, b, layout);
    int rank = text_of_lowest(text, sizeof text, *text ? 0 : NOTHING_TO_SAY, world);
    if (rank < 0) { return; }
    run_error("step %lld ran twice from the same weights and data, and the results differ: rank %d has %s; the memory "
              "or the processor of a machine is faulty, or this program has a race: resume with -y 1 on other machines",
              step, rank, text);
}
