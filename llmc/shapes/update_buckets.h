/*
The buckets of an update, which AdamW runs through one by one. Without --offload an update bucket is all parameters at
-z 0, and this rank's chunk of a parameter bucket (layout.h) from -z 1 on. With --offload it is at most
MAX_UPDATE_BUCKET elements of that, so that a small double buffer on the device can hold its state.
defines: MAX_UPDATE_BUCKET, update_bucket_elements, UpdateBucket, update_buckets, num_update_ranges, set_update_ranges
*/
#pragma once
#include "llmc/ops.h"
#include "llmc/shapes/layout.h"

// with --offload: copies of 4 MiB and more reach the rate of a PCIe link
enum { MAX_UPDATE_BUCKET = 1 << 22, MIN_UPDATE_BUCKETS = 16 };

// Maximum elements of an update bucket with --offload: a multiple of MOMENT_BLOCK. A small model has MIN_UPDATE_BUCKETS
// buckets, so that the double buffer takes little memory.
static inline size_t update_bucket_elements(const ParamLayout *layout) {
    size_t updated = layout->sharding.stage == 0 ? layout->total : layout->shard;
    size_t elements = param_align((updated + MIN_UPDATE_BUCKETS - 1) / MIN_UPDATE_BUCKETS);
    return elements < MAX_UPDATE_BUCKET ? elements : (size_t)MAX_UPDATE_BUCKET;
}

typedef struct {
    int param_bucket;             // holds the elements from stage 1 on
    size_t offset, count;         // elements of the flat buffer at stage 0, of param_bucket's owned chunk at 1 to 3
    int first_range, num_ranges;  // in the array that set_update_ranges fills
} UpdateBucket;

// Cuts the updated elements into buckets. buckets: NULL, or room for them. Returns their number.
static inline int update_buckets(UpdateBucket *buckets, const ParamLayout *layout) {
    bool whole = layout->sharding.stage == 0;
    size_t max = layout->sharding.offload > 0 ? update_bucket_elements(layout) : SIZE_MAX;
    int count = 0;
    for (int b = 0; b < (whole ? 1 : num_buckets(layout)); b++) {
        size_t elements = whole ? layout->total : param_bucket(layout, b).chunk;
        for (size_t done = 0, n; done < elements; done += n) {
            n = elements - done < max ? elements - done : max;
            UpdateBucket bucket = {b, done, n, 0, 0};
            if (buckets) { buckets[count] = bucket; }
            count++;
        }
    }
    return count;
}

// The maximum number of update ranges: one a tensor, and one more for each cut.
static inline size_t num_update_ranges(const ParamLayout *layout) {
    return (size_t)num_param_tensors(layout->num_layers) + (size_t)update_buckets(NULL, layout);
}

// Writes the update ranges of parameter bucket b that are in an update bucket, with offsets from the update bucket's
// first element. Returns their number.
static inline int update_ranges_within(UpdateRange *ranges, const ParamLayout *layout, const UpdateBucket *bucket,
                                       int b) {
    UpdateRange all[LAYER_PARAMS];
    int num_all = bucket_update_ranges(all, layout, b), count = 0;
    const Range wanted = {bucket->offset, bucket->count};
    for (int i = 0; i < num_all; i++) {
        Range range = {all[i].offset, all[i].count}, both = range_intersect(range, wanted);
        if (both.count == 0) { continue; }
        ranges[count] = all[i];
        ranges[count].tensor_offset += both.offset - range.offset;
        ranges[count].offset = both.offset - wanted.offset;
        ranges[count++].count = both.count;
    }
    return count;
}

// Writes the update ranges of all buckets to `ranges`, (num_update_ranges), and sets each bucket's first_range and
// num_ranges. Returns the number of ranges.
static inline int set_update_ranges(UpdateRange *ranges, UpdateBucket *buckets, const ParamLayout *layout) {
    bool whole = layout->sharding.stage == 0;
    int count = 0, num = update_buckets(NULL, layout);
    for (int i = 0; i < num; i++) {
        UpdateBucket *bucket = &buckets[i];
        int first = whole ? 0 : bucket->param_bucket, end = whole ? num_buckets(layout) : first + 1;
        bucket->first_range = count;
        for (int b = first; b < end; b++) { count += update_ranges_within(ranges + count, layout, bucket, b); }
        bucket->num_ranges = count - bucket->first_range;
    }
    return count;
}
