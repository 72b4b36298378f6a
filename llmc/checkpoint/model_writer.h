/*
Writes a model's tensors for other programs: one tensor, for GGUF, or llm.c's model file (llmc_file.h).
defines: write_tensor, llmc_write_model
*/
#pragma once
#include "llmc/checkpoint/llmc_file.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/checkpoint/model_state.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/floatx.h"
#include "llmc/shapes/layout.h"
#include "llmc/shapes/params.h"

// out = x (count) as F32, F16 or BF16. Exact for numbers that were read from that type or from a narrower one.
static inline void numbers_encode(unsigned char *out, DType dtype, const real *x, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float f = (float)x[i];
        uint16_t half = dtype == DT_F16 ? float_to_f16(f) : float_to_bf16(f).bits;
        if (dtype == DT_F32) {
            memcpy(out + i * sizeof f, &f, sizeof f);
        } else {
            memcpy(out + i * sizeof half, &half, sizeof half);
        }
    }
}

// Stops at a number that is not finite, and deletes the unfinished file. numbers: the rows of a tensor from first_row
// on. The error counts elements in the order of the model's file.
static inline void check_finite(PartFile *out, const StoredTensor *t, const real *numbers, size_t count,
                                size_t first_row) {
    size_t i = 0, rows = param_used_rows(t->id, &t->file->config), cols = param_cols(t->id, &t->file->config);
    while (i < count && isfinite((float)numbers[i])) { i++; }
    if (i == count) { return; }
    const SafeTensors *file = &t->file->file;
    size_t row = first_row + i / cols, col = i % cols;
    part_discard(out);
    input_error("-e: tensor %s of '%s', element %zu, is %g as F32, expected a finite number; give another model",
                t->tensor->name, file->num_shards > 0 ? file->shards[t->tensor->shard].path : file->path,
                t->transposed ? col * rows + row : row * cols + col, (double)numbers[i]);
}

// Writes a tensor in (out, in) order, some rows at a time. Stops at a number that is not finite. layout: of one rank
static inline void write_tensor(PartFile *out, const ModelFile *model, ParamId id, int layer, const ParamLayout *layout,
                                DType dtype) {
    StoredTensor stored = stored_tensor(model, "", id, layer);
    size_t rows = param_used_rows(id, &model->config), cols = param_cols(id, &model->config);
    size_t max_rows = 4 * CHUNK_ELEMENTS / cols + 1, n;  // fewer rows of a transposed tensor would make short reads
    for (size_t row = 0; row < rows && !out->error; row += n) {
        n = rows - row < max_rows ? rows - row : max_rows;
        ParamRange range = {row * cols, n * cols, 0, 0};
        real *numbers = (real *)read_range(&stored, range, &layout->slice[id]);
        check_finite(out, &stored, numbers, range.count, row);
        unsigned char *bytes = (unsigned char *)xmalloc(range.count * dtype_size(dtype));
        numbers_encode(bytes, dtype, numbers, range.count);
        part_put(out, bytes, range.count * dtype_size(dtype));
        free(bytes);
        free(numbers);
    }
}

// Writes an open model as llm.c's model file: version 3 if dtype is DT_F32, version 5 if it is DT_BF16. Some rows of a
// tensor are in memory at a time.
static inline void llmc_write_model(PartFile *out, const ModelFile *model, DType dtype) {
    const GPT2Config *c = &model->config;
    ParamLayout layout = param_layout(c);
    const int32_t header[LLMC_HEADER_INTS] = {LLMC_MAGIC,     dtype == DT_BF16 ? LLMC_BF16 : LLMC_FP32,
                                              c->max_seq_len, c->vocab_size,
                                              c->num_layers,  c->num_heads,
                                              c->channels,    c->padded_vocab_size};
    part_put(out, header, sizeof header);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, c); layer++) {
            write_tensor(out, model, (ParamId)id, layer, &layout, dtype);
        }
        if (id != WTE) { continue; }
        size_t padding = (size_t)(c->padded_vocab_size - c->vocab_size) * (size_t)c->channels * dtype_size(dtype);
        void *zeros = xcalloc(padding, 1);
        part_put(out, zeros, padding);
        free(zeros);
    }
}
