/*
Reads and writes .safetensors files, a range of a tensor at a time: no whole tensor has to fit in memory.
The file:
  8 bytes      N, the length of the header, little-endian
  N bytes      JSON, {"__metadata__":{string:string},"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...},
               then spaces; offsets count from the first byte after the header
  the rest     the tensors, row-major and little-endian, covering every byte exactly once
An open file has passed every check, so a reader can trust each size and offset. A written header is padded to 8 bytes.
Written tensors are sorted by element size, largest first, then by name, so that each is aligned to its own type.
Source: the format's description and reference implementation, github.com/huggingface/safetensors. Parser: cJSON.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/crc32c.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/floatx.h"
#include "llmc/common/json_file.h"
#include <assert.h>
#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#define ST_MAX_DIMS 8
#define ST_MAX_HEADER 100000000u  // the reference implementation's limit

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors.h copies little-endian numbers as they are"
#endif

typedef struct {
    char *name;
    DType dtype;   // NUM_DTYPES: a type of the format that DType lacks (BOOL, I8, ...), readable as bytes only
    int num_dims;  // 0: one element
    size_t shape[ST_MAX_DIMS];
    uint64_t begin, end;  // in bytes, from the start of the data
    int shard;            // the file that holds the tensor: an index into SafeTensors.shards, if there are any
} SafeTensor;

typedef struct SafeTensors {
    char *path;
    int fd;               // -1: the tensors are in the shards
    uint64_t data_start;  // in bytes, from the start of the file
    int num_tensors;
    SafeTensor *tensors;  // sorted by name
    int num_shards;       // 0: one file
    struct SafeTensors *shards;
} SafeTensors;

// ---- opening a file: each check stops at an error

__attribute__((noreturn, format(printf, 2, 3))) static inline void st_refuse(const SafeTensors *st, const char *format,
                                                                             ...) {
    char reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    input_error("safetensors file '%s' %s; give a whole .safetensors file, or copy or export it again", st->path,
                reason);
}

// the size of a tensor in bytes; false: it does not fit 64 bits
static inline bool st_tensor_bytes(size_t element_size, int num_dims, const size_t *shape, uint64_t *bytes) {
    *bytes = element_size;
    for (int i = 0; i < num_dims; i++) {
        if (__builtin_mul_overflow(*bytes, shape[i], bytes)) { return false; }
    }
    return true;
}

// the size of an element of the dtype called `name`, in bytes; 0: the format has no such dtype
static inline size_t st_find_dtype(const char *name, DType *dtype) {
    static const struct {
        const char *name;
        size_t size;
    } unused[] = {{"BOOL", 1}, {"I8", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"U32", 4}, {"U64", 8}};
    for (int i = 0; i < NUM_DTYPES; i++) {
        *dtype = (DType)i;
        if (strcmp(name, dtype_name(*dtype)) == 0) { return dtype_size(*dtype); }
    }
    *dtype = NUM_DTYPES;
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
        if (strcmp(name, unused[i].name) == 0) { return unused[i].size; }
    }
    return 0;
}

// values (max) = the integers of a JSON array, exact below 2^53. Returns their number; -1: anything else.
static inline int st_integers(const cJSON *array, int max, uint64_t *values) {
    int count = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        double number = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (count == max || !(number >= 0 && number < 0x1p53) || number != floor(number)) { return -1; }
        values[count++] = (uint64_t)number;
    }
    return cJSON_IsArray(array) ? count : -1;
}

static inline void st_parse_tensor(const SafeTensors *st, SafeTensor *t, const cJSON *entry) {
    const char *dtype = cJSON_GetStringValue(json_get(entry, "dtype"));
    size_t element_size = dtype ? st_find_dtype(dtype, &t->dtype) : 0;
    uint64_t shape[ST_MAX_DIMS], offsets[2], bytes;
    t->num_dims = st_integers(json_get(entry, "shape"), ST_MAX_DIMS, shape);
    int num_offsets = st_integers(json_get(entry, "data_offsets"), 2, offsets);
    bool good = element_size && t->num_dims >= 0 && num_offsets == 2 && cJSON_GetArraySize(entry) == 3;
    for (int i = 0; good && i < t->num_dims; i++) { t->shape[i] = (size_t)shape[i]; }
    good = good && st_tensor_bytes(element_size, t->num_dims, t->shape, &bytes) && offsets[0] <= offsets[1] &&
           offsets[1] - offsets[0] == bytes;
    if (!good) {
        st_refuse(st,
                  "has tensor '%.100s' with a bad dtype, shape or data_offsets, expected {\"dtype\":\"F32\",\"shape\":"
                  "[...],\"data_offsets\":[begin,end]}, at most %d sizes, and the bytes that the shape takes",
                  t->name, ST_MAX_DIMS);
    }
    t->begin = offsets[0];
    t->end = offsets[1];
}

static inline int st_compare_offsets(const void *a, const void *b) {
    const SafeTensor *x = (const SafeTensor *)a, *y = (const SafeTensor *)b;
    if (x->begin != y->begin) { return x->begin < y->begin ? -1 : 1; }
    return (x->end > y->end) - (x->end < y->end);  // an empty tensor comes before one of the same begin
}

static inline int st_compare_names(const void *a, const void *b) {
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

// Sorts the tensors by name. Stops if two have one name.
static inline void st_sort_by_name(SafeTensors *st) {
    qsort(st->tensors, (size_t)st->num_tensors, sizeof *st->tensors, st_compare_names);
    for (int i = 1; i < st->num_tensors; i++) {
        const char *name = st->tensors[i].name;
        if (strcmp(st->tensors[i - 1].name, name) == 0) { st_refuse(st, "has tensor '%.100s' twice", name); }
    }
}

// Reads the entries of the header. Stops unless the tensors cover data_bytes exactly once.
static inline void st_parse_header(SafeTensors *st, const cJSON *header, uint64_t data_bytes) {
    const cJSON *entry;
    uint64_t covered = 0;
    st->tensors = (SafeTensor *)xcalloc((size_t)cJSON_GetArraySize(header), sizeof *st->tensors);
    cJSON_ArrayForEach(entry, header) {
        if (strcmp(entry->string, "__metadata__") == 0) { continue; }
        SafeTensor *t = &st->tensors[st->num_tensors++];
        t->name = xstrdup(entry->string);
        st_parse_tensor(st, t, entry);
    }
    qsort(st->tensors, (size_t)st->num_tensors, sizeof *st->tensors, st_compare_offsets);
    for (int i = 0; i < st->num_tensors; i++) {
        const SafeTensor *t = &st->tensors[i];
        if (t->begin != covered) {
            st_refuse(st, "has tensor '%.100s' at byte %" PRIu64 " of the data, expected %" PRIu64 " (%s)", t->name,
                      t->begin, covered, t->begin > covered ? "a hole" : "an overlap");
        }
        covered = t->end;
    }
    if (covered != data_bytes) {
        st_refuse(st, "has %" PRIu64 " bytes of data, expected %" PRIu64, data_bytes, covered);
    }
    st_sort_by_name(st);
}

// The header as JSON, which the caller deletes. Sets st->data_start.
static inline cJSON *st_read_header(SafeTensors *st, uint64_t file_size) {
    uint64_t length = 0;
    int error = read_exact(st->fd, &length, sizeof length, 0);
    if (!error && (length > ST_MAX_HEADER || length > file_size - sizeof length)) {
        st_refuse(st, "is %" PRIu64 " bytes long and says that its header has %" PRIu64 ", expected at most %u",
                  file_size, length, ST_MAX_HEADER);
    }
    char *header = (char *)xcalloc((size_t)length + 1, 1);  // with a NUL, which cJSON before 1.7.18 may read
    if (!error) { error = read_exact(st->fd, header, (size_t)length, sizeof length); }
    if (error) { st_refuse(st, "could not be read: %s", read_error(error)); }
    const char *end = header;
    cJSON *json = NULL;
    // a NUL would shorten a name
    if (header[0] == '{' && strlen(header) == length && !strstr(header, "\\u0000")) {
        json = cJSON_ParseWithLengthOpts(header, length, &end, false);
    }
    if (!json || end[strspn(end, " ")]) { st_refuse(st, "has a header that is no JSON object and spaces"); }
    free(header);
    st->data_start = sizeof length + length;
    return json;
}

#define EXPECTED_MODEL "a GPT-2 in Hugging Face's or llm.c's format"

// Opens a file and checks the whole header. Stops at an error. Close with safetensors_close.
static inline SafeTensors safetensors_open(const char *path) {
    SafeTensors st;
    struct stat info;
    memset(&st, 0, sizeof st);
    st.path = xstrdup(path);
    st.fd = open_regular(path, &info);
    if (st.fd < 0) { st_refuse(&st, "could not be opened: %s", read_error(errno)); }
    int kind = file_kind(path);
    bool unknown = (kind == FILE_OTHER || kind == FILE_BINARY || kind == FILE_JSON) && !name_is_pytorch(path);
    if (kind != FILE_SAFETENSORS && !unknown) { refuse_kind("-e", path, EXPECTED_MODEL); }
    if (info.st_size < 8) { st_refuse(&st, info.st_size ? "is too short for a header" : "is empty"); }
    cJSON *json = st_read_header(&st, (uint64_t)info.st_size);
    st_parse_header(&st, json, (uint64_t)info.st_size - st.data_start);
    cJSON_Delete(json);
    return st;
}

// ---- reading

static inline void st_close_file(SafeTensors *st) {
    for (int i = 0; i < st->num_tensors; i++) { free(st->tensors[i].name); }
    free(st->tensors);
    free(st->path);
    if (st->fd >= 0) { close(st->fd); }
}

static inline void safetensors_close(SafeTensors *st) {
    for (int i = 0; i < st->num_shards; i++) { st_close_file(&st->shards[i]); }
    free(st->shards);
    st_close_file(st);
    memset(st, 0, sizeof *st);
    st->fd = -1;
}

// the tensor called `name`; NULL: the file has none
static inline const SafeTensor *safetensors_find(const SafeTensors *st, const char *name) {
    const SafeTensor key = {(char *)name, NUM_DTYPES, 0, {0}, 0, 0, 0};
    return (const SafeTensor *)bsearch(&key, st->tensors, (size_t)st->num_tensors, sizeof key, st_compare_names);
}

// out = bytes [byte_offset, byte_offset + bytes) of a tensor, as in the file. Several threads may read at once.
static inline void safetensors_read(const SafeTensors *st, const SafeTensor *t, uint64_t byte_offset, void *out,
                                    size_t bytes) {
    assert(byte_offset <= t->end - t->begin && bytes <= t->end - t->begin - byte_offset);
    const SafeTensors *file = st->num_shards > 0 ? &st->shards[t->shard] : st;
    int failure = read_exact(file->fd, out, bytes, file->data_start + t->begin + byte_offset);
    if (failure) {
        run_error(
            "could not read tensor '%s' of '%s': %s; the file was whole when it was opened, so check the disk, and "
            "leave the file alone during a run",
            t->name, file->path, failure == ENODATA ? "the file has become shorter" : strerror(failure));
    }
}

// IEEE half precision, exactly: 1 sign, 5 exponent and 10 fraction bits
static inline float f16_to_float(uint16_t half) {
    uint32_t exponent = (half >> 10) & 31u, fraction = half & 1023u;
    float f = (float)fraction * 0x1p-24f;  // zero or subnormal
    if (exponent) {
        uint32_t bits = (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
        memcpy(&f, &bits, sizeof f);
    }
    return half >> 15 ? -f : f;
}

// the inverse of f16_to_float
static inline uint16_t float_to_f16(float f) {
    uint32_t bits = float_to_bits(f), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= 0x7F800000u) { return (uint16_t)(sign | 0x7C00u | (magnitude >> 13 & 0x3FFu)); }
    if (magnitude < 0x38800000u) { return (uint16_t)(sign | (uint32_t)(fabsf(f) * 0x1p24f)); }  // zero or subnormal
    return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);  // the exponent's bias is 15 instead of 127
}

// stops unless a tensor holds F64, F32, BF16 or F16
static inline void require_real(const SafeTensors *st, const SafeTensor *t) {
    DType dtype = t->dtype;
    if (dtype != DT_F64 && dtype != DT_F32 && dtype != DT_BF16 && dtype != DT_F16) {
        input_error("tensor '%s' of '%s' holds %s, expected F32, F64, BF16 or F16; export the model as one of these",
                    t->name, st->path, dtype == NUM_DTYPES ? "another type" : dtype_name(dtype));
    }
}

// out (count) = elements [first_element, first_element + count) of a tensor of F64, F32, BF16 or F16, converted. F64
// read as float is rounded, all else is exact. Stops at another type.
static inline void safetensors_read_real(const SafeTensors *st, const SafeTensor *t, uint64_t first_element, real *out,
                                         size_t count) {
    union {
        unsigned char bytes[16384];
        double f64[2048];
        float f32[4096];
        bf16 b16[8192];
        uint16_t f16[8192];
    } block;
    require_real(st, t);
    size_t element_size = dtype_size(t->dtype), max = sizeof block / element_size;
    for (size_t done = 0, n; done < count; done += n) {
        n = count - done < max ? count - done : max;
        safetensors_read(st, t, (first_element + done) * element_size, block.bytes, n * element_size);
        for (size_t i = 0; i < n; i++) {
            switch (t->dtype) {
            case DT_F64: out[done + i] = (real)block.f64[i]; break;
            case DT_F32: out[done + i] = (real)block.f32[i]; break;
            case DT_BF16: out[done + i] = (real)bf16_to_float(block.b16[i]); break;
            default: out[done + i] = (real)f16_to_float(block.f16[i]); break;
            }
        }
    }
}

// ---- several files as one, through the index that Hugging Face writes with them
//   model.safetensors.index.json   {"metadata":{"total_size":548105171},
//                                   "weight_map":{"wte.weight":"model-00001-of-00002.safetensors",...}}
// The files are in the folder of the index. Tensors that the index leaves out are ignored, as in transformers, and so
// are names that no file has: of tied weights, an index may name both.

// Adds the tensor of an entry of weight_map, and its file if that is new.
static inline void index_add(SafeTensors *st, const cJSON *entry) {
    char path[PATH_LENGTH];
    const char *name = cJSON_GetStringValue(entry), *slash = strrchr(st->path, '/');
    if (!name || !*name || strchr(name, '/') || strcmp(name, "..") == 0) {
        input_error("'%s' has '%.200s' for tensor %.100s, expected a file in the folder of the index; get the index "
                    "again from where the model is from",
                    st->path, name ? name : "no string", entry->string);
    }
    format_path(path, "%.*s%s", slash ? (int)(slash - st->path) + 1 : 0, st->path, name);
    int shard = 0;
    while (shard < st->num_shards && strcmp(st->shards[shard].path, path) != 0) { shard++; }
    if (shard == st->num_shards) {
        st->shards = (SafeTensors *)xrealloc(st->shards, (size_t)(shard + 1) * sizeof *st->shards);
        st->shards[st->num_shards++] = safetensors_open(path);
    }
    const SafeTensor *found = safetensors_find(&st->shards[shard], entry->string);
    if (!found) { return; }
    SafeTensor *t = &st->tensors[st->num_tensors++];
    *t = *found;
    t->name = xstrdup(found->name);
    t->shard = shard;
}

// Opens an index and its files. Close with safetensors_close.
static inline SafeTensors safetensors_open_index(const char *path) {
    SafeTensors st;
    memset(&st, 0, sizeof st);
    st.fd = -1;
    st.path = xstrdup(path);
    cJSON *json = read_json(path);
    const cJSON *map = json_get(json, "weight_map"), *entry;
    if (!cJSON_IsObject(map) || !map->child) {
        input_error("'%s' has no \"weight_map\", expected the index of a model in several files; give the folder of "
                    "the model, or its model.safetensors",
                    path);
    }
    st.tensors = (SafeTensor *)xcalloc((size_t)cJSON_GetArraySize(map), sizeof *st.tensors);
    cJSON_ArrayForEach(entry, map) { index_add(&st, entry); }
    st_sort_by_name(&st);
    cJSON_Delete(json);
    return st;
}

// ---- writing: create, declare every tensor, begin, write every byte in any order, finish.
// After the first failure later calls do nothing, and finish returns the errno: the caller deletes its folder.

typedef struct {
    int fd;
    int error;            // errno of the first failure, 0 while there is none
    uint64_t data_start;  // in bytes, from the start of the file; 0 before safetensors_begin
    int num_tensors;
    SafeTensor *tensors;  // in the order of declaration
    uint64_t bytes;       // of the whole file
    uint32_t crc_parts;   // XOR of crc32c_part of every range that this rank has written
    bool joined;          // another rank has created the file and writes the header
} SafeTensorsWriter;

static inline void st_pwrite(SafeTensorsWriter *w, const void *data, size_t bytes, uint64_t offset) {
    const char *from = (const char *)data;
    for (size_t done = 0; done < bytes && !w->error;) {
        ssize_t put = pwrite(w->fd, from + done, bytes - done, (off_t)(offset + done));
        if (put > 0) {
            w->crc_parts ^= crc32c_part(from + done, (size_t)put, w->bytes - offset - done - (size_t)put);
            done += (size_t)put;
        }
        if (put == 0) { w->error = EIO; }
        if (put < 0 && errno != EINTR) { w->error = errno; }
    }
}

// Creates a file, or truncates an existing one. joins: another rank has created and begun it. This rank declares the
// same tensors, and begin writes no header.
static inline SafeTensorsWriter safetensors_create(const char *path, bool joins) {
    SafeTensorsWriter w;
    memset(&w, 0, sizeof w);
    w.joined = joins;
    w.fd = open(path, O_WRONLY | O_CLOEXEC | (joins ? 0 : O_CREAT | O_TRUNC), FILE_MODE);
    if (w.fd < 0) { w.error = errno; }
    return w;
}

// Adds a tensor of shape (num_dims) and returns its index. Names are distinct.
static inline int safetensors_declare(SafeTensorsWriter *w, const char *name, DType dtype, int num_dims,
                                      const size_t *shape) {
    assert(!w->data_start && num_dims >= 0 && num_dims <= ST_MAX_DIMS);
    w->tensors = (SafeTensor *)xrealloc(w->tensors, (size_t)(w->num_tensors + 1) * sizeof *w->tensors);
    SafeTensor *t = &w->tensors[w->num_tensors];
    memset(t, 0, sizeof *t);
    t->name = xstrdup(name);
    t->dtype = dtype;
    t->num_dims = num_dims;
    for (int i = 0; i < num_dims; i++) { t->shape[i] = shape[i]; }
    return w->num_tensors++;
}

static inline int st_compare_layout(const void *a, const void *b) {
    const SafeTensor *x = *(SafeTensor *const *)a, *y = *(SafeTensor *const *)b;
    size_t x_size = dtype_size(x->dtype), y_size = dtype_size(y->dtype);
    if (x_size != y_size) { return x_size > y_size ? -1 : 1; }
    return strcmp(x->name, y->name);
}

// Lays out the tensors and writes the header. Tensors are declared before it and written after it.
static inline void safetensors_begin(SafeTensorsWriter *w) {
    if (w->error) { return; }
    size_t count = (size_t)w->num_tensors;
    uint64_t end = 0, bytes;
    SafeTensor **order = (SafeTensor **)xmalloc(count * sizeof *order);
    cJSON *header = cJSON_CreateObject();
    cJSON_AddStringToObject(cJSON_AddObjectToObject(header, "__metadata__"), "format", "pt");
    for (size_t i = 0; i < count; i++) { order[i] = &w->tensors[i]; }
    qsort(order, count, sizeof *order, st_compare_layout);
    for (size_t i = 0; i < count; i++) {
        SafeTensor *t = order[i];
        t->begin = end;
        bool fits = st_tensor_bytes(dtype_size(t->dtype), t->num_dims, t->shape, &bytes) &&
                    !__builtin_add_overflow(end, bytes, &end);
        if (!fits) { w->error = EOVERFLOW; }
        t->end = end;
        cJSON *entry = cJSON_AddObjectToObject(header, t->name);
        cJSON_AddStringToObject(entry, "dtype", dtype_name(t->dtype));
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape"), *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        for (int d = 0; d < t->num_dims; d++) { cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[d])); }
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)t->begin));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)t->end));
    }
    char *text = cJSON_PrintUnformatted(header);
    if (!text) { run_error("out of host memory: could not build a safetensors header"); }
    uint64_t length = strlen(text), header_bytes = (length + 7) / 8 * 8;
    w->data_start = sizeof header_bytes + header_bytes;
    w->bytes = w->data_start + end;
    if (!w->joined) {
        st_pwrite(w, &header_bytes, sizeof header_bytes, 0);
        st_pwrite(w, text, length, sizeof header_bytes);
        st_pwrite(w, "       ", header_bytes - length, sizeof header_bytes + length);
    }
    cJSON_free(text);
    cJSON_Delete(header);
    free(order);
}

// Writes bytes [byte_offset, byte_offset + bytes) of a tensor. Each byte of a tensor must be written once.
static inline void safetensors_write(SafeTensorsWriter *w, int index, uint64_t byte_offset, const void *data,
                                     size_t bytes) {
    if (w->error) { return; }
    assert(w->data_start && index >= 0 && index < w->num_tensors);
    const SafeTensor *t = &w->tensors[index];
    assert(byte_offset <= t->end - t->begin && bytes <= t->end - t->begin - byte_offset);
    st_pwrite(w, data, bytes, w->data_start + t->begin + byte_offset);
}

// Syncs, closes and frees. Returns 0 when the file is on the disk, or the errno of the first failure.
static inline int safetensors_finish(SafeTensorsWriter *w) {
    for (int i = 0; i < w->num_tensors; i++) { free(w->tensors[i].name); }
    free(w->tensors);
    if (!w->error && fsync(w->fd) != 0) { w->error = errno; }
    if (w->fd >= 0 && close(w->fd) != 0 && !w->error) { w->error = errno; }
    int error = w->error;
    memset(w, 0, sizeof *w);
    w->fd = -1;
    return error;
}
