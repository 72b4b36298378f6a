/*
Writes a model as llm.c's model file, whose format is in llmc_file.h.
defines: llmc_write_model
*/
#pragma once
#include "llmc/files/tensor_writer.h"

static inline void llmc_write_header(PartFile *out, const GPT2Config *c, DType dtype) {
    int32_t header[LLMC_HEADER_INTS] = {LLMC_MAGIC,     dtype == DT_BF16 ? LLMC_BF16 : LLMC_FP32,
                                        c->max_seq_len, c->vocab_size,
                                        c->num_layers,  c->num_heads,
                                        c->channels,    c->padded_vocab_size};
    part_put(out, header, sizeof header);
}

// writes the vocabulary's padding: rows of zeros after those of wte
static inline void llmc_write_padding(PartFile *out, const GPT2Config *c, DType dtype) {
    size_t bytes = (size_t)(c->padded_vocab_size - c->vocab_size) * (size_t)c->channels * dtype_size(dtype);
    void *zeros = xcalloc(bytes, 1);
    part_put(out, zeros, bytes);
    free(zeros);
}

// Writes an open model as llm.c's model file: of version 3 if dtype is DT_F32, of version 5 if dtype is DT_BF16. Some
// rows of a tensor are in memory at a time. part_finish returns the errno of a failed write.
static inline void llmc_write_model(PartFile *out, const ModelFile *model, DType dtype) {
    const GPT2Config *c = &model->config;
    ParamLayout layout = param_layout(c);
    GgufType type = dtype == DT_F32 ? GGUF_F32 : GGUF_BF16;  // GGUF stores these as llm.c does
    assert(dtype == DT_F32 || dtype == DT_BF16);
    llmc_write_header(out, c, dtype);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, c); layer++) {
            write_tensor(out, model, (ParamId)id, layer, &layout, type);
        }
        if (id == WTE) { llmc_write_padding(out, c, dtype); }
    }
}
