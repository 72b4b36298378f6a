/*
Writes a model as llm.c's model file, whose format is in llmc_file.h.
defines: export_llmc
*/
#pragma once
#include "llmc/files/model_state.h"

static inline bool llmc_write_header(FILE *file, const GPT2Config *c, DType dtype) {
    int32_t header[LLMC_HEADER_INTS] = {LLMC_MAGIC,     dtype == DT_BF16 ? LLMC_BF16 : LLMC_FP32,
                                        c->max_seq_len, c->vocab_size,
                                        c->num_layers,  c->num_heads,
                                        c->channels,    c->padded_vocab_size};
    return fwrite(header, sizeof header, 1, file) == 1;
}

// writes numbers (count) as F32, or as BF16 rounded to nearest even
static inline bool llmc_write_numbers(FILE *file, const real *numbers, size_t count, DType dtype) {
    size_t size = dtype_size(dtype);
    unsigned char *out = (unsigned char *)xmalloc(count * size);
    for (size_t i = 0; i < count; i++) {
        float f = (float)numbers[i];
        bf16 rounded = float_to_bf16(f);
        memcpy(out + i * size, dtype == DT_BF16 ? (const void *)&rounded : &f, size);
    }
    bool written = fwrite(out, size, count, file) == count;
    free(out);
    return written;
}

// writes a tensor of a model in (out, in) order; layout: of one rank
static inline bool llmc_write_tensor(FILE *file, const ModelFile *model, ParamId id, int layer,
                                     const ParamLayout *layout, DType dtype) {
    StoredTensor stored = stored_tensor(model, "", id, layer);
    ParamRange range = {0, param_used(layout, id), 0, 0}, chunk;
    bool written = true;
    for (size_t done = 0; done < range.count && written; done += chunk.count) {
        chunk = range_chunk(range, done, model_transposed(model, id));
        real *numbers = (real *)read_range(&stored, chunk, &layout->slice[id]);
        written = llmc_write_numbers(file, numbers, chunk.count, dtype);
        free(numbers);
    }
    return written;
}

// writes the vocabulary's padding: rows of zeros after those of wte
static inline bool llmc_write_padding(FILE *file, const GPT2Config *c, DType dtype) {
    size_t count = (size_t)(c->padded_vocab_size - c->vocab_size) * (size_t)c->channels;
    real *zeros = (real *)xcalloc(count, sizeof *zeros);
    bool written = llmc_write_numbers(file, zeros, count, dtype);
    free(zeros);
    return written;
}

static inline bool llmc_write(FILE *file, const ModelFile *model, DType dtype) {
    const GPT2Config *c = &model->config;
    ParamLayout layout = param_layout(c);
    bool written = llmc_write_header(file, c, dtype);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, c) && written; layer++) {
            written = llmc_write_tensor(file, model, (ParamId)id, layer, &layout, dtype);
        }
        if (id == WTE && written) { written = llmc_write_padding(file, c, dtype); }
    }
    return written && fflush(file) == 0 && fsync(fileno(file)) == 0;
}

// Writes an open model as llm.c's model file: of version 3 if dtype is DT_F32, of version 5 if dtype is DT_BF16. One
// tensor is in memory at a time. The file is PATH.part until it is whole; a failure deletes it and stops with exit 1.
static inline void export_llmc(const ModelFile *model, const char *path, DType dtype) {
    char part[PATH_LENGTH];
    assert(dtype == DT_F32 || dtype == DT_BF16);
    format_path(part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    int error = file && llmc_write(file, model, dtype) ? 0 : errno;
    if (file && fclose(file) != 0 && !error) { error = errno; }
    if (!error && rename(part, path) != 0) { error = errno; }
    if (!error) { return; }
    unlink(part);
    run_error("could not write '%s': %s; give a path in a folder that you may write and that has room", path,
              strerror(error));
}
