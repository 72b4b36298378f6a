/*
Writes GGUF files, which llama.cpp reads: keys with values, then tensors.

The file, version 3, little-endian:
  header    "GGUF", u32 3, u64 number of tensors, u64 number of keys
  keys      name, u32 type of the value, the value. An array is u32 type, u64 count, the elements
  tensors   name, u32 number of dimensions, u64 each size with the columns first, u32 type, u64 offset
  data      each tensor starts at a multiple of 32 bytes; zeros fill the gaps; offsets count from the first tensor
A string is a u64 length and its bytes in UTF-8, without a NUL.
Source: docs/gguf.md of github.com/ggml-org/ggml, and llama.cpp's gguf.cpp.
*/
#pragma once
#include "llmc/common/create_file.h"
#include "llmc/common/floatx.h"
#include <assert.h>

enum {  // types of values
    GGUF_VALUE_U32 = 4,
    GGUF_VALUE_I32 = 5,
    GGUF_VALUE_F32 = 6,
    GGUF_VALUE_BOOL = 7,
    GGUF_VALUE_STRING = 8,
    GGUF_VALUE_ARRAY = 9
};

// GGUF_MAGIC: "GGUF" as a little-endian int32
enum { GGUF_MAGIC = 0x46554747, GGUF_VERSION = 3, GGUF_ALIGN = 32 };

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "gguf.h copies little-endian numbers as they are"
#endif

// ---- create, the keys, declare every tensor, begin, part_put and end for each tensor in the order of declaration,
// finish. After the first failure later calls do nothing, and finish returns the errno.

typedef struct {
    PartFile out;
    uint64_t num_tensors, num_keys;
    uint64_t data_bytes;  // of the declared tensors and the gaps after them
    uint64_t data_start;  // in bytes, from the start of the file; 0 before gguf_begin
} GgufWriter;

static inline void gguf_put_u32(GgufWriter *w, uint32_t number) { part_put(&w->out, &number, sizeof number); }
static inline void gguf_put_u64(GgufWriter *w, uint64_t number) { part_put(&w->out, &number, sizeof number); }

static inline void gguf_put_string(GgufWriter *w, const char *text, size_t bytes) {
    gguf_put_u64(w, bytes);
    part_put(&w->out, text, bytes);
}

static inline uint64_t gguf_align(uint64_t bytes) { return (bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN; }

// fills the gap after a tensor with zeros
static inline void gguf_end_tensor(GgufWriter *w) {
    static const char zeros[GGUF_ALIGN] = {0};
    part_put(&w->out, zeros, (size_t)(gguf_align(w->out.position) - w->out.position));
}

static inline void gguf_put_header(GgufWriter *w) {
    const struct {
        uint32_t magic, version;
        uint64_t num_tensors, num_keys;
    } header = {GGUF_MAGIC, GGUF_VERSION, w->num_tensors, w->num_keys};
    part_put_at(&w->out, 0, &header, sizeof header);
}

// out: an open, empty file
static inline GgufWriter gguf_create(PartFile out) {
    GgufWriter w = {out, 0, 0, 0, 0};
    gguf_put_header(&w);
    return w;
}

// Begins a key; the caller puts its value.
static inline void gguf_put_key(GgufWriter *w, const char *name, uint32_t type) {
    gguf_put_string(w, name, strlen(name));
    gguf_put_u32(w, type);
    w->num_keys++;
}

static inline void gguf_key_u32(GgufWriter *w, const char *name, uint32_t value) {
    gguf_put_key(w, name, GGUF_VALUE_U32);
    gguf_put_u32(w, value);
}

static inline void gguf_key_string(GgufWriter *w, const char *name, const char *value) {
    gguf_put_key(w, name, GGUF_VALUE_STRING);
    gguf_put_string(w, value, strlen(value));
}

// Begins an array; the caller puts its `count` elements.
static inline void gguf_key_array(GgufWriter *w, const char *name, uint32_t type, uint64_t count) {
    gguf_put_key(w, name, GGUF_VALUE_ARRAY);
    gguf_put_u32(w, type);
    gguf_put_u64(w, count);
}

// Adds a tensor of (rows, cols), or with num_dims 1 of (cols). dtype: DT_F32, DT_F16 or DT_BF16
static inline void gguf_declare(GgufWriter *w, const char *name, DType dtype, int num_dims, size_t rows, size_t cols) {
    gguf_put_string(w, name, strlen(name));
    gguf_put_u32(w, (uint32_t)num_dims);
    gguf_put_u64(w, cols);
    if (num_dims == 2) { gguf_put_u64(w, rows); }
    gguf_put_u32(w, dtype == DT_F32 ? 0 : dtype == DT_F16 ? 1 : 30);  // ggml's numbers of its types
    gguf_put_u64(w, w->data_bytes);
    w->data_bytes += gguf_align(rows * cols * dtype_size(dtype));
    w->num_tensors++;
}

// Ends the declarations: writes the numbers of tensors and keys into the header.
static inline void gguf_begin(GgufWriter *w) {
    gguf_put_header(w);
    gguf_end_tensor(w);
    w->data_start = w->out.position;
}

// Returns 0 when the file is on the disk under its name, or the first errno: the unfinished file is then deleted.
static inline int gguf_finish(GgufWriter *w) {
    assert(w->out.error || w->out.position == w->data_start + w->data_bytes);
    return part_finish(&w->out);
}
