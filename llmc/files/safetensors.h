/*
.safetensors files, read and written a piece at a time: no tensor, let alone a file, has to fit in memory.
defines: SafeTensor, SafeTensors, safetensors_try_open, safetensors_open, safetensors_find, safetensors_read,
         safetensors_read_real, safetensors_close, SafeTensorsWriter, safetensors_create, safetensors_join,
         safetensors_declare, safetensors_begin, safetensors_write, safetensors_finish, f16_to_float
The file:
  8 bytes      N, the header's length, little-endian
  N bytes      JSON, {"__metadata__":{string:string},"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...},
               then spaces; the offsets count from the first byte after the header
  the rest     the tensors, row-major and little-endian, covering every byte exactly once
What is opened has passed every check, so that a reader can trust each size and offset. What is written has its header
padded to 8 bytes and its tensors sorted by element size, largest first, then by name: each is aligned to its own type.
Source: the format's description and reference implementation, github.com/huggingface/safetensors. Parser: cJSON.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"
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
    DType dtype;   // NUM_DTYPES: a type of the format that has no use here (BOOL, I8, ...), readable as bytes only
    int num_dims;  // 0: one element
    size_t shape[ST_MAX_DIMS];
    uint64_t begin, end;  // bytes, from the start of the data
} SafeTensor;

typedef struct {
    char *path;
    int fd;
    uint64_t data_start;  // bytes, from the start of the file
    int num_tensors;
    SafeTensor *tensors;  // sorted by name
} SafeTensors;

// ---- reading: the checks. Each returns false, having said why, or true.

typedef struct {
    const char *path;
    char *text;
    size_t size;
} StError;

// Writes the reason into error->text, on one line whatever the file's names contain; returns false.
__attribute__((format(printf, 2, 3))) static inline bool st_refuse(StError *error, const char *format, ...) {
    int prefix = snprintf(error->text, error->size, "safetensors file '%s' ", error->path);
    if (prefix > 0 && (size_t)prefix < error->size) {
        va_list args;
        va_start(args, format);
        vsnprintf(error->text + prefix, error->size - (size_t)prefix, format, args);
        va_end(args);
    }
    for (char *c = error->text; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127) { *c = '?'; }
    }
    return false;
}

// pread of exactly BYTES bytes; returns 0, or the errno, or ENODATA where the file ends before them
static inline int st_pread(int fd, void *out, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got == 0) { return ENODATA; }
        if (got > 0) { done += (size_t)got; }
        if (got < 0 && errno != EINTR) { return errno; }
    }
    return 0;
}

// bytes of a tensor; false where they do not fit 64 bits
static inline bool st_tensor_bytes(size_t element_size, int num_dims, const size_t *shape, uint64_t *bytes) {
    *bytes = element_size;
    for (int i = 0; i < num_dims; i++) {
        if (__builtin_mul_overflow(*bytes, shape[i], bytes)) { return false; }
    }
    return true;
}

// Size in bytes of an element of the type called NAME, 0 if the format has no such type.
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

// cJSON keeps numbers as doubles: 2^53 itself could be 2^53 + 1 rounded, what is below is exact
static inline bool st_integer(const cJSON *item, uint64_t *value) {
    double number = cJSON_IsNumber(item) ? item->valuedouble : -1;
    bool good = number >= 0 && number < 0x1p53 && number == floor(number);
    *value = good ? (uint64_t)number : 0;
    return good;
}

// The count of integers in a JSON array, written to values (room for max); -1 if it is no such array.
static inline int st_integers(const cJSON *array, int max, uint64_t *values) {
    int count = 0;
    if (!cJSON_IsArray(array)) { return -1; }
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        if (count == max || !st_integer(item, &values[count])) { return -1; }
        count++;
    }
    return count;
}

static inline bool st_parse_tensor(SafeTensor *t, const cJSON *entry, StError *error) {
    const char *name = t->name;
    if (!cJSON_IsObject(entry) || cJSON_GetArraySize(entry) != 3) {
        return st_refuse(error, "describes tensor '%.100s' by something else than dtype, shape and data_offsets", name);
    }
    const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));
    size_t element_size = dtype ? st_find_dtype(dtype, &t->dtype) : 0;
    if (!element_size) {
        return st_refuse(error,
                         "has tensor '%.100s' of dtype '%.20s', expected a dtype of the format such as F32 or BF16",
                         name, dtype ? dtype : "(none)");
    }
    uint64_t shape[ST_MAX_DIMS], offsets[2], bytes;
    t->num_dims = st_integers(cJSON_GetObjectItemCaseSensitive(entry, "shape"), ST_MAX_DIMS, shape);
    if (t->num_dims < 0) {
        return st_refuse(error, "has tensor '%.100s' with a bad shape, expected an array of at most %d sizes", name,
                         ST_MAX_DIMS);
    }
    for (int i = 0; i < t->num_dims; i++) { t->shape[i] = (size_t)shape[i]; }
    if (st_integers(cJSON_GetObjectItemCaseSensitive(entry, "data_offsets"), 2, offsets) != 2 ||
        offsets[0] > offsets[1]) {
        return st_refuse(error, "has tensor '%.100s' with bad data_offsets, expected [begin, end] with begin <= end",
                         name);
    }
    t->begin = offsets[0];
    t->end = offsets[1];
    if (!st_tensor_bytes(element_size, t->num_dims, t->shape, &bytes)) {
        return st_refuse(error, "has tensor '%.100s' with a shape of more than 2^64 bytes", name);
    }
    if (t->end - t->begin != bytes) {
        return st_refuse(error, "gives tensor '%.100s' %" PRIu64 " bytes, expected %" PRIu64 " for its shape in %s",
                         name, t->end - t->begin, bytes, dtype);
    }
    return true;
}

static inline bool st_check_metadata(const cJSON *metadata, StError *error) {
    bool good = cJSON_IsObject(metadata);
    const cJSON *item;
    cJSON_ArrayForEach(item, metadata) { good = good && cJSON_IsString(item); }
    return good || st_refuse(error, "has a __metadata__ that is not a map from strings to strings");
}

static inline bool st_parse_entries(SafeTensors *st, const cJSON *header, StError *error) {
    bool metadata_seen = false;
    st->tensors = (SafeTensor *)xcalloc((size_t)cJSON_GetArraySize(header), sizeof *st->tensors);
    const cJSON *entry;
    cJSON_ArrayForEach(entry, header) {
        if (strcmp(entry->string, "__metadata__") == 0) {
            if (metadata_seen) { return st_refuse(error, "has __metadata__ twice"); }
            metadata_seen = true;
            if (!st_check_metadata(entry, error)) { return false; }
        } else {
            SafeTensor *t = &st->tensors[st->num_tensors++];
            t->name = xstrdup(entry->string);
            if (!st_parse_tensor(t, entry, error)) { return false; }
        }
    }
    return true;
}

static inline int st_compare_offsets(const void *a, const void *b) {
    const SafeTensor *x = (const SafeTensor *)a, *y = (const SafeTensor *)b;
    if (x->begin != y->begin) { return x->begin < y->begin ? -1 : 1; }
    return (x->end > y->end) - (x->end < y->end);  // an empty tensor stands before the one that begins where it does
}

static inline int st_compare_names(const void *a, const void *b) {
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

// The tensors cover data_bytes exactly and no two share a name. Leaves them sorted by name.
static inline bool st_check_layout(SafeTensors *st, uint64_t data_bytes, StError *error) {
    uint64_t covered = 0;
    qsort(st->tensors, (size_t)st->num_tensors, sizeof *st->tensors, st_compare_offsets);
    for (int i = 0; i < st->num_tensors; i++) {
        const SafeTensor *t = &st->tensors[i];
        if (t->begin != covered) {
            return st_refuse(error, "has tensor '%.100s' at byte %" PRIu64 " of the data, expected %" PRIu64 " (%s)",
                             t->name, t->begin, covered, t->begin > covered ? "a hole" : "an overlap");
        }
        covered = t->end;
    }
    if (covered != data_bytes) {
        return st_refuse(error, "has %" PRIu64 " bytes of data, expected %" PRIu64, data_bytes, covered);
    }
    qsort(st->tensors, (size_t)st->num_tensors, sizeof *st->tensors, st_compare_names);
    for (int i = 1; i < st->num_tensors; i++) {
        if (st_compare_names(&st->tensors[i - 1], &st->tensors[i]) == 0) {
            return st_refuse(error, "has tensor '%.100s' twice", st->tensors[i].name);
        }
    }
    return true;
}

// The header's text with a NUL after it, to be freed; NULL, having said why. Sets st->data_start.
static inline char *st_read_header(SafeTensors *st, uint64_t file_size, StError *error) {
    uint64_t length = 0;
    if (file_size < sizeof length) {
        st_refuse(error, "is %" PRIu64 " bytes long, expected at least 8", file_size);
        return NULL;
    }
    int failure = st_pread(st->fd, &length, sizeof length, 0);
    if (!failure && length > ST_MAX_HEADER) {
        st_refuse(error, "says its header is %" PRIu64 " bytes long, expected at most %u", length, ST_MAX_HEADER);
        return NULL;
    }
    if (!failure && length > file_size - sizeof length) {
        st_refuse(error, "is %" PRIu64 " bytes long, expected at least %" PRIu64 " for its header", file_size,
                  sizeof length + length);
        return NULL;
    }
    char *header = (char *)xcalloc((size_t)length + 1, 1);
    if (!failure) { failure = st_pread(st->fd, header, (size_t)length, sizeof length); }
    if (failure) {
        st_refuse(error, "could not be read: %s", strerror(failure));
        free(header);
        return NULL;
    }
    st->data_start = sizeof length + length;
    return header;
}

// To be deleted by the caller; NULL, having said why. header[length] is 0: cJSON before 1.7.18 may look at that byte.
static inline cJSON *st_parse_json(const char *header, size_t length, StError *error) {
    if (header[0] != '{') {
        st_refuse(error, "has a header that is not a JSON object, expected '{' as its first byte");
        return NULL;
    }
    if (strlen(header) != length || strstr(header, "\\u0000")) {  // either would silently shorten a name
        st_refuse(error, "has a NUL in its header, expected text");
        return NULL;
    }
    const char *end = header;
    cJSON *json = cJSON_ParseWithLengthOpts(header, length, &end, false);
    if (!json) {
        st_refuse(error, "has a header that is not valid JSON at byte %zu", (size_t)(end - header));
    } else if (end[strspn(end, " ")]) {
        st_refuse(error, "has text after the JSON object in its header, expected nothing but spaces");
        cJSON_Delete(json);
        json = NULL;
    }
    return json;
}

static inline bool st_load(SafeTensors *st, StError *error) {
    struct stat info;
    if (st->fd < 0 || fstat(st->fd, &info) != 0) {
        return st_refuse(error, "could not be opened: %s", strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return st_refuse(error, "is a %s, expected a regular file",
                         S_ISDIR(info.st_mode) ? "folder" : "device or pipe");
    }
    uint64_t file_size = (uint64_t)info.st_size;
    char *header = st_read_header(st, file_size, error);
    if (!header) { return false; }
    cJSON *json = st_parse_json(header, (size_t)st->data_start - sizeof(uint64_t), error);
    free(header);
    bool good = json && st_parse_entries(st, json, error) && st_check_layout(st, file_size - st->data_start, error);
    cJSON_Delete(json);
    return good;
}

// ---- reading

static inline void safetensors_close(SafeTensors *st) {
    for (int i = 0; i < st->num_tensors; i++) { free(st->tensors[i].name); }
    free(st->tensors);
    free(st->path);
    if (st->fd >= 0) { close(st->fd); }
    memset(st, 0, sizeof *st);
    st->fd = -1;
}

// Opens and checks the whole header. False: nothing stays open, and error (size bytes) holds one line that says why.
static inline bool safetensors_try_open(const char *path, SafeTensors *st, char *error, size_t size) {
    StError refusal = {path, error, size};
    memset(st, 0, sizeof *st);
    st->path = xstrdup(path);
    st->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // without O_NONBLOCK a pipe's name would hang here
    bool good = st_load(st, &refusal);
    if (!good) { safetensors_close(st); }
    return good;
}

// The same; a bad file is an input error. Close with safetensors_close.
static inline SafeTensors safetensors_open(const char *path) {
    SafeTensors st;
    char error[8192];
    if (!safetensors_try_open(path, &st, error, sizeof error)) {
        input_error("%s; give a whole .safetensors file, copied or exported again", error);
    }
    return st;
}

// NULL if the file has no tensor of that name
static inline const SafeTensor *safetensors_find(const SafeTensors *st, const char *name) {
    for (int low = 0, high = st->num_tensors; low < high;) {
        int middle = low + (high - low) / 2, order = strcmp(name, st->tensors[middle].name);
        if (order == 0) { return &st->tensors[middle]; }
        if (order < 0) { high = middle; }
        if (order > 0) { low = middle + 1; }
    }
    return NULL;
}

// out = BYTES bytes of tensor t from its byte_offset on, as they are in the file. Threads may read at once.
static inline void safetensors_read(const SafeTensors *st, const SafeTensor *t, uint64_t byte_offset, void *out,
                                    size_t bytes) {
    assert(byte_offset <= t->end - t->begin && bytes <= t->end - t->begin - byte_offset);
    int failure = st_pread(st->fd, out, bytes, st->data_start + t->begin + byte_offset);
    if (failure) {
        run_error("could not read tensor '%s' of '%s': %s; the file was whole when it was opened", t->name, st->path,
                  failure == ENODATA ? "the file has become shorter" : strerror(failure));
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

typedef union {  // 64 KiB of a tensor
    double f64[8192];
    float f32[16384];
    bf16 b16[32768];
    uint16_t f16[32768];
} StBlock;

static inline real st_element(const StBlock *block, DType dtype, size_t i) {
    if (dtype == DT_F64) { return (real)block->f64[i]; }
    if (dtype == DT_F32) { return (real)block->f32[i]; }
    if (dtype == DT_BF16) { return (real)bf16_to_float(block->b16[i]); }
    return (real)f16_to_float(block->f16[i]);
}

// out = COUNT numbers of tensor t (F64, F32, BF16 or F16, else an input error) from first_element on, converted:
// exactly but for F64 read as float, which is rounded.
static inline void safetensors_read_real(const SafeTensors *st, const SafeTensor *t, uint64_t first_element, real *out,
                                         size_t count) {
    StBlock block;
    DType dtype = t->dtype;
    if (dtype != DT_F64 && dtype != DT_F32 && dtype != DT_BF16 && dtype != DT_F16) {
        input_error("tensor '%s' of '%s' holds %s, expected F32, F64, BF16 or F16; export the model as one of these",
                    t->name, st->path, dtype == NUM_DTYPES ? "a type that is not used here" : dtype_name(dtype));
    }
    size_t element_size = dtype_size(dtype), most = sizeof block / element_size;
    for (size_t done = 0, n; done < count; done += n) {
        n = count - done < most ? count - done : most;
        safetensors_read(st, t, (first_element + done) * element_size, &block, n * element_size);
        for (size_t i = 0; i < n; i++) { out[done + i] = st_element(&block, dtype, i); }
    }
}

// ---- writing: create, declare every tensor, begin, write every byte in any order, finish.
// The first failure is kept, later calls do nothing, and finish returns it: the caller has a folder to clean up first.

typedef struct {
    int fd;
    int error;            // errno of the first failure, 0 while there is none
    uint64_t data_start;  // bytes, from the start of the file; 0 before safetensors_begin
    int num_tensors;
    SafeTensor *tensors;  // in the order of their declaration
    uint64_t *written;    // bytes written so far of each tensor
    bool shared, joined;  // other processes write parts of it as well; one of them has made it
} SafeTensorsWriter;

static inline void st_pwrite(SafeTensorsWriter *w, const void *data, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes && !w->error;) {
        ssize_t put = pwrite(w->fd, (const char *)data + done, bytes - done, (off_t)(offset + done));
        if (put > 0) { done += (size_t)put; }
        if (put == 0) { w->error = EIO; }
        if (put < 0 && errno != EINTR) { w->error = errno; }
    }
}

// Makes the file at PATH, or empties the one that is there.
static inline SafeTensorsWriter safetensors_create(const char *path) {
    SafeTensorsWriter w;
    memset(&w, 0, sizeof w);
    w.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w.fd < 0) { w.error = errno; }
    return w;
}

// Opens the file at PATH, which another process has made and begun, to write a part of it: the same tensors are
// declared, begin writes nothing, and whether all of every tensor is written is not this process's to know.
static inline SafeTensorsWriter safetensors_join(const char *path) {
    SafeTensorsWriter w;
    memset(&w, 0, sizeof w);
    w.shared = w.joined = true;
    w.fd = open(path, O_WRONLY | O_CLOEXEC);
    if (w.fd < 0) { w.error = errno; }
    return w;
}

static inline bool st_declared(const SafeTensorsWriter *w, const char *name) {
    bool found = false;
    for (int i = 0; i < w->num_tensors; i++) { found |= strcmp(w->tensors[i].name, name) == 0; }
    return found;
}

// Adds a tensor and returns its index. Names are distinct; shape has num_dims sizes.
static inline int safetensors_declare(SafeTensorsWriter *w, const char *name, DType dtype, int num_dims,
                                      const size_t *shape) {
    assert(!w->data_start && !st_declared(w, name) && num_dims >= 0 && num_dims <= ST_MAX_DIMS);
    w->tensors = (SafeTensor *)xrealloc(w->tensors, (size_t)(w->num_tensors + 1) * sizeof *w->tensors);
    w->written = (uint64_t *)xrealloc(w->written, (size_t)(w->num_tensors + 1) * sizeof *w->written);
    w->written[w->num_tensors] = 0;
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

// gives each tensor its place, in the order the file has; that order is to be freed
static inline SafeTensor **st_lay_out(SafeTensorsWriter *w) {
    size_t count = (size_t)w->num_tensors;
    SafeTensor **order = (SafeTensor **)xmalloc(count * sizeof *order);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) { order[i] = &w->tensors[i]; }
    qsort(order, count, sizeof *order, st_compare_layout);
    for (size_t i = 0; i < count; i++) {
        SafeTensor *t = order[i];
        uint64_t bytes;
        if (!st_tensor_bytes(dtype_size(t->dtype), t->num_dims, t->shape, &bytes)) { w->error = EOVERFLOW; }
        t->begin = end;
        if (__builtin_add_overflow(end, bytes, &end)) { w->error = EOVERFLOW; }
        t->end = end;
    }
    return order;
}

static inline void st_print_tensor(FILE *out, const SafeTensor *t) {
    cJSON *name = cJSON_CreateStringReference(t->name);
    char *quoted = cJSON_PrintUnformatted(name);
    if (!quoted) { run_error("out of host memory: could not build a safetensors header"); }
    fprintf(out, ",%s:{\"dtype\":\"%s\",\"shape\":[", quoted, dtype_name(t->dtype));
    for (int i = 0; i < t->num_dims; i++) { fprintf(out, "%s%zu", i ? "," : "", t->shape[i]); }
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->end);
    cJSON_free(quoted);
    cJSON_Delete(name);
}

// Writes the header: after it no tensor can be declared, and data can be written.
static inline void safetensors_begin(SafeTensorsWriter *w) {
    if (w->error) { return; }
    char *text = NULL;
    size_t length = 0;
    SafeTensor **order = st_lay_out(w);
    FILE *out = open_memstream(&text, &length);
    if (!out) { run_error("out of host memory: could not build a safetensors header"); }
    fprintf(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < w->num_tensors; i++) { st_print_tensor(out, order[i]); }
    fputc('}', out);
    while (ftello(out) % 8) { fputc(' ', out); }
    if (fclose(out) != 0) { run_error("out of host memory: could not build a safetensors header"); }
    uint64_t header_bytes = length;
    w->data_start = sizeof header_bytes + header_bytes;
    if (!w->joined) {
        st_pwrite(w, &header_bytes, sizeof header_bytes, 0);
        st_pwrite(w, text, length, sizeof header_bytes);
    }
    free(text);
    free(order);
}

// Writes BYTES bytes into tensor INDEX from its byte_offset on; each byte of a tensor is to be written once.
static inline void safetensors_write(SafeTensorsWriter *w, int index, uint64_t byte_offset, const void *data,
                                     size_t bytes) {
    if (w->error) { return; }
    assert(w->data_start && index >= 0 && index < w->num_tensors);
    const SafeTensor *t = &w->tensors[index];
    assert(byte_offset <= t->end - t->begin && bytes <= t->end - t->begin - byte_offset);
    st_pwrite(w, data, bytes, w->data_start + t->begin + byte_offset);
    w->written[index] += bytes;
}

// Syncs, closes and frees. Returns 0: the whole file is on the disk; or the errno of the first failure, ENODATA where
// a tensor was not written in full, by a process that writes alone.
static inline int safetensors_finish(SafeTensorsWriter *w) {
    for (int i = 0; i < w->num_tensors; i++) {
        bool whole = w->written[i] == w->tensors[i].end - w->tensors[i].begin;
        if (!w->error && !whole && !w->shared) { w->error = ENODATA; }
        free(w->tensors[i].name);
    }
    if (!w->error && !w->data_start) { w->error = ENODATA; }
    free(w->tensors);
    free(w->written);
    if (!w->error && fsync(w->fd) != 0) { w->error = errno; }
    if (w->fd >= 0 && close(w->fd) != 0 && !w->error) { w->error = errno; }
    int error = w->error;
    memset(w, 0, sizeof *w);
    w->fd = -1;
    return error;
}
