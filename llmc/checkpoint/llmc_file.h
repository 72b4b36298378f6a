/*
Reads llm.c's model files: gpt2_124M.bin, gpt2_124M_bf16.bin, and model_00000100.bin in a run directory of llm.c.
defines: LLMC_HEADER_INTS, LLMC_FP32, LLMC_BF16, llmc_open, llmc_latest
The file, little-endian:
  256 int32    20240326, version, maxT, V, L, NH, C, Vp, zeros. Version 3: all tensors are F32; 5: BF16
  the rest     the tensors in the order of ParamId, each with all its layers: wte (Vp,C), wpe (maxT,C), ln1w (L,C), ...
Vp is V rounded up; the extra rows of wte are zeros. Matmul weights are (out, in), as in memory. model_writer.h writes
such a file.
*/
#pragma once
#include "llmc/checkpoint/safetensors.h"
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/shapes/params.h"
#include <dirent.h>

enum { LLMC_HEADER_INTS = 256, LLMC_FP32 = 3, LLMC_BF16 = 5 };

// stops unless the header is of a GPT-2; returns its Vp and in *c the other sizes
static inline int llmc_check_header(GPT2Config *c, const int32_t header[LLMC_HEADER_INTS], const char *path) {
    static const char *const names[] = {"positions", "tokens", "layers", "heads", "channels", "padded tokens"};
    if (header[1] != LLMC_FP32 && header[1] != LLMC_BF16) {
        input_error("'%s' is an llm.c model of version %d, expected %d (fp32) or %d (bf16); write it again with "
                    "today's llm.c",
                    path, header[1], LLMC_FP32, LLMC_BF16);
    }
    for (int i = 2; i < 8; i++) {
        if (header[i] < 1 || header[i] > MAX_CONFIG_NUMBER) {
            input_error("'%s' has %d %s in its header, expected 1 to %d; copy or make the file again", path, header[i],
                        names[i - 2], MAX_CONFIG_NUMBER);
        }
    }
    const GPT2Config found = {header[2], 0, 0, header[4], header[5], header[6]};
    *c = found;
    config_set_vocab(c, header[3]);
    config_check(c, path);
    if (header[7] < header[3]) {
        input_error(
            "'%s' has %d rows of token embeddings for %d tokens, expected at least as many rows as tokens; copy "
            "or make the file again",
            path, header[7], header[3]);
    }
    return header[7];
}

// elements of all layers of a parameter in the file
static inline uint64_t llmc_elements(ParamId id, const GPT2Config *c, int Vp) {
    size_t rows = id == WTE ? (size_t)Vp : param_rows(id, c);
    return (uint64_t)param_layers(id, c) * rows * param_cols(id, c);
}

// Adds the tensors of a parameter, one for each layer, that begin at byte `begin` of the data. The rows of wte's
// padding belong to no tensor.
static inline void llmc_add(SafeTensors *st, ParamId id, const GPT2Config *c, DType dtype, uint64_t begin) {
    size_t rows = param_used_rows(id, c), cols = param_cols(id, c), size = dtype_size(dtype);
    for (int layer = 0; layer < param_layers(id, c); layer++) {
        char name[NAME_LENGTH];
        SafeTensor *t = &st->tensors[st->num_tensors++];
        param_name(name, sizeof name, id, layer);
        t->name = xstrdup(name);
        t->dtype = dtype;
        t->num_dims = 2;
        t->shape[0] = rows;
        t->shape[1] = cols;
        t->begin = begin;
        t->end = begin + rows * cols * size;
        begin = t->end;
    }
}

// Opens a model file of llm.c as a table of tensors, and fills *c. Stops unless the file has the length that its header
// says. Close with safetensors_close.
static inline SafeTensors llmc_open(const char *path, GPT2Config *c) {
    SafeTensors st;
    struct stat info;
    int32_t header[LLMC_HEADER_INTS];
    memset(&st, 0, sizeof st);
    st.path = xstrdup(path);
    st.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (st.fd < 0 || fstat(st.fd, &info) != 0) { input_error("'%s' could not be opened: %s", path, strerror(errno)); }
    int error = read_exact(st.fd, header, sizeof header, 0);
    if (error) {
        input_error("'%s' is %lld bytes long, expected the %zu bytes of an llm.c model's header (%s); copy it again",
                    path, (long long)info.st_size, sizeof header, read_error(error));
    }
    int Vp = llmc_check_header(c, header, path);
    DType dtype = header[1] == LLMC_BF16 ? DT_BF16 : DT_F32;
    st.data_start = sizeof header;
    uint64_t elements = 0, size = dtype_size(dtype);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) { elements += llmc_elements((ParamId)id, c, Vp); }
    uint64_t expected = sizeof header + elements * size;
    if ((uint64_t)info.st_size != expected) {
        input_error("'%s' is %lld bytes long, expected %" PRIu64 " for its %d layers, %d channels, %d positions and %d "
                    "padded tokens in %s; copy or make the file again",
                    path, (long long)info.st_size, expected, c->num_layers, c->channels, c->max_seq_len, Vp,
                    dtype_name(dtype));
    }
    st.tensors = (SafeTensor *)xcalloc((size_t)num_param_tensors(c), sizeof *st.tensors);
    elements = 0;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        llmc_add(&st, (ParamId)id, c, dtype, elements * size);
        elements += llmc_elements((ParamId)id, c, Vp);
    }
    st_sort_by_name(&st);
    return st;
}

// The last step that a run directory of llm.c has as model_00000100.bin, with the empty DONE_00000100 that llm.c writes
// after it; -1: none.
static inline long long llmc_latest(const char *folder) {
    long long latest = -1;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        long long step;
        int end = 0;
        char path[PATH_LENGTH];
        if (sscanf(entry->d_name, "DONE_%18lld%n", &step, &end) != 1 || entry->d_name[end] || step <= latest) {
            continue;
        }
        format_path(path, "%s/model_%08lld.bin", folder, step);
        if (access(path, F_OK) == 0) { latest = step; }
    }
    if (dir) { closedir(dir); }
    return latest;
}
