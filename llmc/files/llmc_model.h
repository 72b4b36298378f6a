/*
Writes a model as llm.c's model file, whose format is in llmc_file.h.
defines: llmc_write_model
*/
#pragma once
#include "llmc/files/model_state.h"

static inline void llmc_write_header(PartFile *out, const GPT2Config *c, DType dtype) {
    int32_t header[LLMC_HEADER_INTS] = {LLMC_MAGIC,     dtype == DT_BF16 ? LLMC_BF16 : LLMC_FP32,
                                        c->max_seq_len, c->vocab_size,
                                        c->num_layers,  c->num_heads,
                                        c->channels,    c->padded_vocab_size};
    part_put(out, header, sizeof header);
}

// writes numbers (count) as F32, or as BF16 rounded to nearest even
static inline void llmc_write_numbers(PartFile *out, const real *numbers, size_t count, DType dtype) {
    size_t size = dtype_size(dtype);
    unsigned char *bytes = (unsigned char *)xmalloc(count * size);
    for (size_t i = 0; i < count; i++) {
        float f = (float)numbers[i];
        bf16 rounded = float_to_bf16(f);
        memcpy(bytes + i * size, dtype == DT_BF16 ? (const void *)&rounded : &f, size);
    }
    part_put(out, bytes, count * size);
    free(bytes);
}

// writes a tensor of a model in (out, in) order; layout: of one rank
static inline void llmc_write_tensor(PartFile *out, const ModelFile *model, ParamId id, int layer,
                                     const ParamLayout *layout, DType dtype) {
    StoredTensor stored = stored_tensor(model, "", id, layer);
    ParamRange range = {0, param_used(layout, id), 0, 0}, chunk;
    for (size_t done = 0; done < range.count && !out->error; done += chunk.count) {
        chunk = range_chunk(range, done, model_transposed(model, id));
        real *numbers = (real *)read_range(&stored, chunk, &layout->slice[id]);
        llmc_write_numbers(out, numbers, chunk.count, dtype);
        free(numbers);
    }
}

// writes the vocabulary's padding: rows of zeros after those of wte
static inline void llmc_write_padding(PartFile *out, const GPT2Config *c, DType dtype) {
    size_t bytes = (size_t)(c->padded_vocab_size - c->vocab_size) * (size_t)c->channels * dtype_size(dtype);
    void *zeros = xcalloc(bytes, 1);
    part_put(out, zeros, bytes);
    free(zeros);
}

// Writes an open model as llm.c's model file: of version 3 if dtype is DT_F32, of version 5 if dtype is DT_BF16. One
// tensor is in memory at a time. part_finish returns the errno of a failed write.
static inline void llmc_write_model(PartFile *out, const ModelFile *model, DType dtype) {
    const GPT2Config *c = &model->config;
    ParamLayout layout = param_layout(c);
    assert(dtype == DT_F32 || dtype == DT_BF16);
    llmc_write_header(out, c, dtype);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, c); layer++) {
            llmc_write_tensor(out, model, (ParamId)id, layer, &layout, dtype);
        }
        if (id == WTE) { llmc_write_padding(out, c, dtype); }
    }
}
