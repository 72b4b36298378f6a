/*
Whole tensors and slices in host memory, for tests.
*/
#pragma once
#include "llmc/shapes/slices.h"

// out (count) = the initial values of elements [first, first + count) of one tensor (param_used_rows,cols)
static inline void param_init_tensor(real *out, ParamId id, int layer, size_t first, size_t count, const GPT2Config *c,
                                     uint64_t seed) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i++) { out[i] = param_init_value(id, layer, first + i, c, seed); }
}

// ---- between a slice (rows,cols) and the whole tensor (global_rows,global_cols), elements of `size` bytes each

// local = the slice of global, with zeros as padding
static inline void slice_extract(void *local, const void *global, const Slice *s, size_t size) {
    memset(local, 0, s->rows * s->cols * size);
    for (size_t i = 0; i < slice_num_ranges(s); i++) {
        SliceRange range = slice_range(s, i);
        memcpy((char *)local + range.local * size, (const char *)global + range.global * size, range.count * size);
    }
}
