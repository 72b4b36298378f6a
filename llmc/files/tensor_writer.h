/*
Writes the tensors of a model in another type, for GGUF and for llm.c's file.
defines: write_tensor
*/
#pragma once
#include "llmc/files/gguf.h"
#include "llmc/files/model_state.h"

// Stops at a number that the type cannot hold, and deletes the unfinished file. numbers: the rows of_rows of the tensor
// (rows, cols). The error counts the elements in the order of the model's file.
static inline void check_numbers(PartFile *out, const StoredTensor *t, GgufType type, const real *numbers,
                                 Range of_rows, size_t rows, size_t cols) {
    size_t count = of_rows.count * cols, i = gguf_find_unheld(type, numbers, count);
    if (i == count) { return; }
    const SafeTensors *file = &t->file->file;
    size_t row = of_rows.offset + i / cols, col = i % cols;
    size_t element = model_transposed(t->file, t->id) ? col * rows + row : row * cols + col;
    part_discard(out);
    input_error("-e: tensor %s of '%s', element %zu, is %g, which %s cannot hold; give %s", t->tensor->name,
                file->num_shards > 0 ? file->shards[t->tensor->shard].path : file->path, element, (double)numbers[i],
                gguf_type_name(type), isfinite((float)numbers[i]) ? "--type f32" : "another model");
}

// Writes a tensor in (out, in) order, some rows at a time. Stops at a number that the type cannot hold, and deletes the
// unfinished file. layout: of one rank. For q8_0, the columns are a multiple of GGUF_BLOCK.
static inline void write_tensor(PartFile *out, const ModelFile *model, ParamId id, int layer, const ParamLayout *layout,
                                GgufType type) {
    StoredTensor stored = stored_tensor(model, "", id, layer);
    size_t rows = param_used_rows(id, &model->config), cols = param_cols(id, &model->config);
    size_t most = 4 * CHUNK_ELEMENTS / cols + 1, n;  // fewer rows of a transposed tensor would make short reads
    for (size_t row = 0; row < rows && !out->error; row += n) {
        n = rows - row < most ? rows - row : most;
        Range of_rows = {row, n};
        ParamRange range = {row * cols, n * cols, 0, 0};
        real *numbers = (real *)read_range(&stored, range, &layout->slice[id]);
        check_numbers(out, &stored, type, numbers, of_rows, rows, cols);
        unsigned char *bytes = (unsigned char *)xmalloc(gguf_bytes(type, range.count));
        gguf_encode(bytes, type, numbers, range.count);
        part_put(out, bytes, gguf_bytes(type, range.count));
        free(bytes);
        free(numbers);
    }
}
