/*
Writes GGUF files, which llama.cpp reads: keys with values, then tensors.
defines: GGUF_MAGIC, GgufType, GgufValue, GgufWriter, gguf_create, gguf_put_string, gguf_key_u32, gguf_key_f32,
         gguf_key_bool, gguf_key_string, gguf_key_array, gguf_put, gguf_declare, gguf_begin, gguf_end_tensor,
         gguf_finish, gguf_bytes, gguf_type_name, gguf_find_unheld, gguf_encode, float_to_f16,
         GGUF_BLOCK

The file, version 3, little-endian:
  header    "GGUF", u32 3, u64 number of tensors, u64 number of keys
  keys      name, u32 type of the value, the value. An array is u32 type, u64 count, the elements
  tensors   name, u32 number of dimensions, u64 each size with the columns first, u32 GgufType, u64 offset
  data      each tensor starts at a multiple of 32 bytes; zeros fill the gaps; offsets count from the first tensor
A string is a u64 length and its bytes in UTF-8, without a NUL.
q8_0: a block is 32 numbers x of a row: an f16 scale d = max|x| / 127, then 32 int8 of x / d, rounded.
Source: docs/gguf.md of github.com/ggml-org/ggml, and llama.cpp's gguf.cpp and ggml-quants.c.
*/
#pragma once
#include "llmc/common/floatx.h"
#include "llmc/files/part_file.h"
#include <assert.h>

// numbers of ggml's tensor types and of GGUF's value types
typedef enum { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q8_0 = 8, GGUF_BF16 = 30 } GgufType;
typedef enum {
    GGUF_VALUE_U32 = 4,
    GGUF_VALUE_I32 = 5,
    GGUF_VALUE_F32 = 6,
    GGUF_VALUE_BOOL = 7,
    GGUF_VALUE_STRING = 8,
    GGUF_VALUE_ARRAY = 9
} GgufValue;

// GGUF_MAGIC: "GGUF" as a little-endian int32
enum { GGUF_MAGIC = 0x46554747, GGUF_VERSION = 3, GGUF_ALIGN = 32, GGUF_BLOCK = 32, GGUF_BLOCK_BYTES = 2 + GGUF_BLOCK };

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "gguf.h copies little-endian numbers as they are"
#endif

// ---- numbers

// round to nearest, ties to even, in IEEE half precision; infinite from 65520 on
static inline uint16_t float_to_f16(float f) {
    uint32_t sign = float_to_bits(f) >> 16 & 0x8000u, magnitude = float_to_bits(f) & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) { return (uint16_t)(sign | 0x7E00u); }   // NaN
    if (magnitude >= 0x47800000u) { return (uint16_t)(sign | 0x7C00u); }  // 2^16 and above
    if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, the last bit of a float between 0.5 and 1
        return (uint16_t)(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - float_to_bits(0.5f)));
    }
    uint32_t rounded = magnitude + 0xFFFu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);  // the exponent's bias is 15 instead of 127
}

// bytes of `count` numbers, a multiple of GGUF_BLOCK for q8_0
static inline size_t gguf_bytes(GgufType type, size_t count) {
    switch (type) {
    case GGUF_F32: return count * sizeof(float);
    case GGUF_Q8_0: return count / GGUF_BLOCK * GGUF_BLOCK_BYTES;
    default: return count * sizeof(uint16_t);
    }
}

static inline const char *gguf_type_name(GgufType type) {
    switch (type) {
    case GGUF_F32: return "f32";
    case GGUF_F16: return "f16";
    case GGUF_BF16: return "bf16";
    default: return "q8_0";
    }
}

static inline bool f16_is_finite(uint16_t half) { return (half & 0x7C00u) != 0x7C00u; }

// Whether a type can hold a number: neither NaN nor infinite, and no overflow. q8_0 holds it in a block of its own.
static inline bool gguf_holds(GgufType type, float f) {
    switch (type) {
    case GGUF_F16: return f16_is_finite(float_to_f16(f));
    case GGUF_Q8_0: return f16_is_finite(float_to_f16(f / 127));
    case GGUF_BF16: return isfinite(bf16_to_float(float_to_bf16(f)));
    default: return isfinite(f);
    }
}

// the index of the first of x (count) that the type cannot hold; count: the type holds all
static inline size_t gguf_find_unheld(GgufType type, const real *x, size_t count) {
    size_t i = 0;
    while (i < count && gguf_holds(type, (float)x[i])) { i++; }
    return i;
}

// out (GGUF_BLOCK_BYTES) = x (GGUF_BLOCK) as q8_0
static inline void gguf_encode_block(unsigned char *out, const real *x) {
    float most = 0;
    for (int i = 0; i < GGUF_BLOCK; i++) { most = fmaxf(most, fabsf((float)x[i])); }
    float scale = most / 127;
    uint16_t half = float_to_f16(scale);
    float inverse = half ? 1 / scale : 0;  // a block of tiny numbers is zero
    memcpy(out, &half, sizeof half);
    for (int i = 0; i < GGUF_BLOCK; i++) { out[2 + i] = (unsigned char)(int8_t)roundf((float)x[i] * inverse); }
}

// out = one number, or one block of q8_0
static inline void gguf_encode_unit(unsigned char *out, GgufType type, const real *x) {
    float f = (float)*x;
    if (type == GGUF_F32) {
        memcpy(out, &f, sizeof f);
    } else if (type == GGUF_F16) {
        uint16_t half = float_to_f16(f);
        memcpy(out, &half, sizeof half);
    } else if (type == GGUF_BF16) {
        bf16 rounded = float_to_bf16(f);
        memcpy(out, &rounded, sizeof rounded);
    } else {
        gguf_encode_block(out, x);
    }
}

// out (gguf_bytes(type, count)) = x (count) in a type of the file, which holds them all: gguf_find_unheld
static inline void gguf_encode(unsigned char *out, GgufType type, const real *x, size_t count) {
    size_t unit = type == GGUF_Q8_0 ? (size_t)GGUF_BLOCK : 1, bytes = gguf_bytes(type, unit);
    for (size_t i = 0; i < count / unit; i++) { gguf_encode_unit(out + i * bytes, type, x + i * unit); }
}

// ---- writing: create, the keys, declare every tensor, begin, the tensors in the order of declaration, finish.
// After the first failure later calls do nothing, and finish returns the errno.

typedef struct {
    PartFile out;
    uint64_t num_tensors, num_keys;
    uint64_t data_bytes;  // of the declared tensors and the gaps after them
    uint64_t data_start;  // in bytes, from the start of the file; 0 before gguf_begin
} GgufWriter;

static inline void gguf_put(GgufWriter *w, const void *data, size_t bytes) { part_put(&w->out, data, bytes); }
static inline void gguf_put_u32(GgufWriter *w, uint32_t number) { gguf_put(w, &number, sizeof number); }
static inline void gguf_put_u64(GgufWriter *w, uint64_t number) { gguf_put(w, &number, sizeof number); }

static inline void gguf_put_string(GgufWriter *w, const char *text, size_t bytes) {
    gguf_put_u64(w, bytes);
    gguf_put(w, text, bytes);
}

static inline uint64_t gguf_align(uint64_t bytes) { return (bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN; }

static inline void gguf_pad(GgufWriter *w) {
    static const char zeros[GGUF_ALIGN] = {0};
    gguf_put(w, zeros, (size_t)(gguf_align(w->out.position) - w->out.position));
}

static inline void gguf_put_header(GgufWriter *w) {
    int32_t magic = GGUF_MAGIC;
    gguf_put(w, &magic, sizeof magic);
    gguf_put_u32(w, GGUF_VERSION);
    gguf_put_u64(w, w->num_tensors);
    gguf_put_u64(w, w->num_keys);
}

// out: an open, empty file
static inline GgufWriter gguf_create(PartFile out) {
    GgufWriter w;
    memset(&w, 0, sizeof w);
    w.out = out;
    gguf_put_header(&w);
    return w;
}

static inline void gguf_put_key(GgufWriter *w, const char *name, GgufValue type) {
    assert(w->num_tensors == 0);
    gguf_put_string(w, name, strlen(name));
    gguf_put_u32(w, (uint32_t)type);
    w->num_keys++;
}

static inline void gguf_key_u32(GgufWriter *w, const char *name, uint32_t value) {
    gguf_put_key(w, name, GGUF_VALUE_U32);
    gguf_put_u32(w, value);
}

static inline void gguf_key_f32(GgufWriter *w, const char *name, float value) {
    gguf_put_key(w, name, GGUF_VALUE_F32);
    gguf_put(w, &value, sizeof value);
}

static inline void gguf_key_bool(GgufWriter *w, const char *name, bool value) {
    uint8_t byte = value;
    gguf_put_key(w, name, GGUF_VALUE_BOOL);
    gguf_put(w, &byte, sizeof byte);
}

static inline void gguf_key_string(GgufWriter *w, const char *name, const char *value) {
    gguf_put_key(w, name, GGUF_VALUE_STRING);
    gguf_put_string(w, value, strlen(value));
}

// Begins an array; gguf_put or gguf_put_string follows for each of `count` elements.
static inline void gguf_key_array(GgufWriter *w, const char *name, GgufValue type, uint64_t count) {
    gguf_put_key(w, name, GGUF_VALUE_ARRAY);
    gguf_put_u32(w, (uint32_t)type);
    gguf_put_u64(w, count);
}

// Adds a tensor of (rows, cols), or with num_dims 1 of (cols). For q8_0, cols is a multiple of GGUF_BLOCK.
static inline void gguf_declare(GgufWriter *w, const char *name, GgufType type, int num_dims, size_t rows,
                                size_t cols) {
    assert(!w->data_start && (num_dims == 1 ? rows == 1 : num_dims == 2));
    assert(type != GGUF_Q8_0 || cols % GGUF_BLOCK == 0);
    gguf_put_string(w, name, strlen(name));
    gguf_put_u32(w, (uint32_t)num_dims);
    gguf_put_u64(w, cols);
    if (num_dims == 2) { gguf_put_u64(w, rows); }
    gguf_put_u32(w, (uint32_t)type);
    gguf_put_u64(w, w->data_bytes);
    w->data_bytes += gguf_align(gguf_bytes(type, rows * cols));
    w->num_tensors++;
}

// Ends the declarations: writes the numbers of tensors and keys into the header. gguf_put writes the tensors, with
// gguf_end_tensor after each.
static inline void gguf_begin(GgufWriter *w) {
    PartFile *out = &w->out;
    gguf_pad(w);
    w->data_start = out->position;
    if (!out->error && fseeko(out->file, 0, SEEK_SET) != 0) { out->error = errno; }
    gguf_put_header(w);
    if (!out->error && fseeko(out->file, (off_t)w->data_start, SEEK_SET) != 0) { out->error = errno; }
    out->position = w->data_start;
}

static inline void gguf_end_tensor(GgufWriter *w) { gguf_pad(w); }

// Returns 0 when the file is on the disk under its name, or the errno of the first failure: the unfinished file is then
// deleted.
static inline int gguf_finish(GgufWriter *w) {
    assert(w->out.error || (w->data_start && w->out.position == w->data_start + w->data_bytes));
    return part_finish(&w->out);
}
