/*
The state of a model on its device, written to files and read back.
defines: ModelState, is_first_rank, agree_on_error, StoredTensor, TensorFamily, families_save, stored_tensor,
         read_range, weights_store, weights_load, moments_store, moments_load

A file holds whole tensors at every -z and -tp. Each rank writes the elements that it owns and reads the elements that
it updates (layout.h), so any number of ranks can resume from a file.
Masters     are stored as F32, also in a run that holds bf16 weights and 16-bit remainders.
Moments     are stored in the type of the run: F32, BF16, or 8-bit codes (moments.h) as U8. The scales of the codes are
            m_scales.<name> and v_scales.<name>: F32, one for each 128 elements, counted in (out, in) order.
Scales      are the only tensors that depend on the number of ranks, since a block of 128 elements is within one slice.
            With -tp t a split tensor has scales of shape (t, scales of a slice). A run with another t decodes the
            moments and rounds them to 8 bits again.
Conversion  A tensor whose type differs from the type of the run is converted while it is read.
*/
#pragma once
#include "llmc/checkpoint/model_file.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/common/crc32c.h"
#include "llmc/common/device.h"
#include "llmc/data/tokenizer.h"
#include "llmc/moments.h"
#include "llmc/parallel/comm.h"
#include "llmc/shapes/layout.h"

// a model on its device; its flat buffers are laid out by param_layout_sharded
typedef struct {
    const GPT2Config *config;
    const Device *device;
    OptimizerState optimizer;
    Sharding sharding;
    Comm *world;                 // all ranks that save together; NULL: one rank
    const Tokenizer *tokenizer;  // saved with the model; NULL: none
} ModelState;

static inline bool is_first_rank(const ModelState *s) { return !s->world || s->world->rank == 0; }

// Agrees on one error: if any rank failed, the operation failed on all. Each rank gives 0 or an errno; all get the
// largest, and in *failed_rank a rank that gave it. world may be NULL.
static inline int agree_on_error(int error, Comm *world, int *failed_rank) {
    int rank = world ? world->rank : 0;
    long long worst = error ? (long long)error << 32 | rank : 0;
    if (world) { worst = comm_max(worst, world); }
    *failed_rank = (int)(worst & 0x7FFFFFFF);
    return (int)(worst >> 32);
}

// scale_slices: slices of a tensor that have scales of their own in a file of -tp t. slice_scales: scales of one such
// slice. A replicated tensor has one set.
static inline int scale_slices(ParamId id, int t) { return param_split(id) == SPLIT_NONE ? 1 : t; }
static inline size_t slice_scales(ParamId id, const GPT2Config *c, int t) {
    Slice s = param_slice(id, c, t, 0);
    return moment_blocks(scale_slices(id, t) == 1 ? param_used_rows(id, c) * param_cols(id, c) : s.rows * s.cols);
}

enum { CHUNK_ELEMENTS = 1 << 18 };  // of a tensor in host memory at a time

// The next chunk of a range, after `done` elements. A tensor that is transposed in the file is one chunk: smaller
// chunks would make short reads and writes.
static inline ParamRange range_chunk(ParamRange range, size_t done, bool transposed) {
    size_t left = range.count - done;
    bool whole = transposed || left < CHUNK_ELEMENTS;
    ParamRange chunk = {range.offset + done, whole ? left : (size_t)CHUNK_ELEMENTS, range.params + done,
                        range.state + done};
    return chunk;
}

// ---- between a file and host memory

// One tensor of a file: of `writer` if it is set, else of the open `file`.
typedef struct {
    ParamId id;
    bool transposed;  // the file has (in, out), memory (out, in)
    size_t size;      // bytes of an element in host memory
    SafeTensorsWriter *writer;
    int index;  // of the tensor in *writer
    const ModelFile *file;
    const SafeTensor *tensor;
    // moments of 8 bits are read as codes; else scales is NULL, and elements are converted to `real`
    const SafeTensor *scales;  // of `slices` slices, one after another
    int slices;
} StoredTensor;

// elements [first, first + count) in the order of the file
static inline void move_elements(const StoredTensor *t, size_t first, unsigned char *host, size_t count) {
    if (t->writer) {
        safetensors_write(t->writer, t->index, first * t->size, host, count * t->size);
    } else if (t->scales) {
        safetensors_read(&t->file->file, t->tensor, first, host, count);
    } else {
        safetensors_read_real(&t->file->file, t->tensor, first, (real *)(void *)host, count);
    }
}

// the rows of a rectangle, counted in the slice, of which the range has elements
static inline Range rows_of_range(ParamRange range, const Slice *s, int rectangle) {
    size_t first = range.offset / s->cols, end = (range.offset + range.count + s->cols - 1) / s->cols;
    Range in_range = {first, end - first}, in_rectangle = {rectangle_local(s, rectangle) / s->cols, s->rectangle_rows};
    return range_intersect(in_range, in_rectangle);
}

// The elements of column c of a rectangle that are in a range of the slice. They are adjacent in a transposed file, and
// in a buffer (rectangle_cols, rows.count), whose offsets are the `local` ones here. rows: rows_of_range
static inline SliceRange column_of_range(ParamRange range, Range rows, const Slice *s, int rectangle, size_t c) {
    size_t local = rectangle_local(s, rectangle), global = rectangle_global(s, rectangle), cols = s->cols;
    size_t col = local % cols + c;
    // element (row, col) is in the range if range.offset <= row * cols + col < range.offset + range.count
    size_t first = (range.offset + cols - 1 - col) / cols, end = (range.offset + range.count + cols - 1 - col) / cols;
    Range in_range = {first, end - first}, of_column = range_intersect(in_range, rows);
    SliceRange column = {0, 0, of_column.count};
    if (of_column.count == 0) { return column; }
    size_t global_row = global / s->global_cols + of_column.offset - local / cols;
    column.local = c * rows.count + of_column.offset - rows.offset;
    column.global = (global % s->global_cols + c) * s->global_rows + global_row;
    return column;
}

// to_columns: the buffer `columns` = elements (range.count), transposed. Else the inverse.
static inline void transpose_range(unsigned char *columns, unsigned char *elements, bool to_columns, ParamRange range,
                                   const Slice *s, int rectangle, size_t size) {
    Range rows = rows_of_range(range, s, rectangle);
#pragma omp parallel for schedule(static)
    for (size_t c = 0; c < s->rectangle_cols; c++) {
        SliceRange column = column_of_range(range, rows, s, rectangle, c);
        size_t row = rows.offset + column.local - c * rows.count;
        for (size_t i = 0; i < column.count; i++) {
            size_t element = (row + i) * s->cols + rectangle_local(s, rectangle) % s->cols + c;
            unsigned char *in_column = columns + (column.local + i) * size;
            unsigned char *in_range = elements + (element - range.offset) * size;
            memcpy(to_columns ? in_column : in_range, to_columns ? in_range : in_column, size);
        }
    }
}

// Moves the elements of a range that are in a rectangle of the slice, for a transposed file. Columns that are adjacent
// in the file, all of a whole tensor, are moved together.
static inline void move_columns(const StoredTensor *t, unsigned char *elements, ParamRange range, const Slice *s,
                                int rectangle) {
    Range rows = rows_of_range(range, s, rectangle);
    if (rows.count == 0) { return; }
    unsigned char *columns = (unsigned char *)xmalloc(s->rectangle_cols * rows.count * t->size);
    SliceRange run = {0, 0, 0};
    if (t->writer) { transpose_range(columns, elements, true, range, s, rectangle, t->size); }
    for (size_t c = 0; c <= s->rectangle_cols; c++) {
        SliceRange next = {0, 0, 0};
        if (c < s->rectangle_cols) { next = column_of_range(range, rows, s, rectangle, c); }
        if (next.count > 0 && next.local == run.local + run.count && next.global == run.global + run.count) {
            run.count += next.count;
            continue;
        }
        if (run.count > 0) { move_elements(t, run.global, columns + run.local * t->size, run.count); }
        run = next;
    }
    if (!t->writer) { transpose_range(columns, elements, false, range, s, rectangle, t->size); }
    free(columns);
}

// Moves a range of a tensor between the file and elements (range.count) in (out, in) order. Padding is not moved.
static inline void move_range(const StoredTensor *t, unsigned char *elements, ParamRange range, const Slice *s) {
    if (range.count == 0) { return; }
    for (int i = 0; t->transposed && i < s->num_rectangles; i++) { move_columns(t, elements, range, s, i); }
    for (size_t i = 0; !t->transposed && i < slice_num_ranges(s); i++) {
        SliceRange within = slice_range_within(slice_range(s, i), range.offset, range.count);
        if (within.count == 0) { continue; }
        move_elements(t, within.global, elements + (within.local - range.offset) * t->size, within.count);
    }
}

// ---- writing

// One tensor for each parameter: named prefix + the parameter's name, its elements in `buffer`.
typedef struct {
    const char *prefix;        // "" for the weights, "m.", "v.", "m_scales.", "v_scales." or "master."
    const void *buffer;        // on the device; NULL: this model has no such tensors
    const int16_t *remainder;  // if set, master = join(buffer, remainder) goes to the file
    DType dtype;               // in the file
    bool scales;               // an element for each MOMENT_BLOCK elements of the parameter
} TensorFamily;

// the shape of a family's tensor in the file; returns its number of dimensions
static inline int family_shape(size_t shape[2], const TensorFamily *family, ParamId id, const ModelState *s) {
    int t = s->sharding.tp_size > 1 ? s->sharding.tp_size : 1;
    if (family->scales) {
        bool split = scale_slices(id, t) > 1;
        shape[1] = slice_scales(id, s->config, t);
        shape[0] = split ? (size_t)t : shape[1];
        return split ? 2 : 1;
    }
    param_file_shape(shape, id, s->config, param_specs[id].transposed);
    if (param_specs[id].rows != DIM_ONE) { return 2; }
    shape[0] = shape[1];
    return 1;
}

static inline void family_declare(SafeTensorsWriter *w, const TensorFamily *family, const ModelState *s) {
    char name[NAME_LENGTH], full[2 * NAME_LENGTH];
    size_t shape[2];
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        int num_dims = family_shape(shape, family, (ParamId)id, s);
        for (int layer = 0; layer < param_layers((ParamId)id, s->config); layer++) {
            param_name(name, sizeof name, (ParamId)id, layer);
            snprintf(full, sizeof full, "%s%s", family->prefix, name);
            safetensors_declare(w, full, family->dtype, num_dims, shape);
        }
    }
}

// masters (range.count) = weights and remainders of a range, joined
static inline void masters_fetch(real *masters, const TensorFamily *family, ParamRange range, const Device *device) {
    floatX *weights = (floatX *)xmalloc(range.count * sizeof *weights);
    int16_t *remainder = (int16_t *)xmalloc(range.count * sizeof *remainder);
    device->download(weights, (const floatX *)family->buffer + range.params, range.count * sizeof *weights);
    device->download(remainder, family->remainder + range.state, range.count * sizeof *remainder);
    for (size_t i = 0; i < range.count; i++) { masters[i] = joined_real(weights[i], remainder[i]); }
    free(weights);
    free(remainder);
}

// host = a family's elements of a range, in the type of the file: range.count, or moment_blocks(range.count) scales
static inline void family_fetch(void *host, const TensorFamily *family, ParamRange range, const Device *device) {
    size_t size = dtype_size(family->dtype), offset = *family->prefix ? range.state : range.params;
    size_t count = range.count;
    if (family->remainder) {
        masters_fetch((real *)host, family, range, device);
        return;
    }
    if (family->scales) {
        offset /= MOMENT_BLOCK;
        count = moment_blocks(count);
    }
    device->download(host, (const unsigned char *)family->buffer + offset * size, count * size);
}

// Writes the elements of a family's tensor that this rank owns. Tensor-parallel rank 0 writes a replicated tensor.
static inline void family_write_tensor(SafeTensorsWriter *w, int index, const TensorFamily *family, const ModelState *s,
                                       const ParamLayout *layout, ParamId id, int layer) {
    bool split = param_split(id) != SPLIT_NONE && s->sharding.tp_size > 1;
    if (!split && s->sharding.tp_rank > 0) { return; }
    size_t size = dtype_size(family->dtype), used = param_used(layout, id), first_scale = 0;
    if (family->scales && split) {
        used = param_count(layout, id);
        first_scale = (size_t)s->sharding.tp_rank * moment_blocks(used);
    }
    ParamRange range = param_owned_range(layout, id, layer, used), chunk;
    for (size_t done = 0; done < range.count; done += chunk.count) {
        chunk = range_chunk(range, done, param_specs[id].transposed);
        unsigned char *host = (unsigned char *)xmalloc(chunk.count * size);
        family_fetch(host, family, chunk, s->device);
        if (family->scales) {
            size_t first = first_scale + chunk.offset / MOMENT_BLOCK;
            safetensors_write(w, index, first * size, host, moment_blocks(chunk.count) * size);
        } else {
            const StoredTensor t = {id, param_specs[id].transposed, size, w, index, NULL, NULL, NULL, 1};
            move_range(&t, host, chunk, &layout->slice[id]);
        }
        free(host);
    }
}

// Writes the elements of a family that this rank owns. Its tensors were declared from index `index` on.
static inline void family_write(SafeTensorsWriter *w, const TensorFamily *family, const ModelState *s, int index) {
    ParamLayout layout = param_layout_sharded(s->config, s->sharding);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, s->config); layer++) {
            family_write_tensor(w, index++, family, s, &layout, (ParamId)id, layer);
        }
    }
}

static inline void families_begin(SafeTensorsWriter *w, const TensorFamily *families, int count, const ModelState *s) {
    for (int i = 0; i < count; i++) {
        if (families[i].buffer) { family_declare(w, &families[i], s); }
    }
    safetensors_begin(w);
}

// the XOR of a number of every rank
static inline uint32_t xor_over_ranks(uint32_t number, Comm *world) {
    uint32_t all = world ? 0 : number;
    for (int rank = 0; world && rank < world->size; rank++) {
        all ^= (uint32_t)comm_max(rank == world->rank ? (long long)number : 0, world);
    }
    return all;
}

// Writes a file of the families that have a buffer. All ranks call it: rank 0 creates the file, and each rank writes
// the elements that it owns. *sum: output, of the whole file. Returns 0 or an errno, the same on all ranks, and in
// *failed_rank a rank that has it.
static inline int families_save(const char *path, const TensorFamily *families, int count, const ModelState *s,
                                Crc32cSum *sum, int *failed_rank) {
    SafeTensorsWriter w;
    bool first = is_first_rank(s);
    memset(&w, 0, sizeof w);
    if (first) {
        w = safetensors_create(path);
        w.shared = s->world && s->world->size > 1;
        families_begin(&w, families, count, s);
    }
    int error = agree_on_error(w.error, s->world, failed_rank);
    if (!first) {
        w = safetensors_join(path);
        families_begin(&w, families, count, s);
    }
    for (int i = 0, index = 0; i < count && !error; i++) {
        if (!families[i].buffer) { continue; }
        family_write(&w, &families[i], s, index);
        index += num_param_tensors(s->config);
    }
    *sum = w.sum;
    int own = safetensors_finish(&w);
    if (!error) { error = agree_on_error(own, s->world, failed_rank); }
    if (!error) { sum->sum = xor_over_ranks(sum->sum, s->world); }
    return error;
}

// ---- reading

static inline StoredTensor stored_tensor(const ModelFile *file, const char *prefix, ParamId id, int layer) {
    const SafeTensor *tensor = model_tensor(file, prefix, id, layer);
    StoredTensor t = {id, model_transposed(file, id), sizeof(real), NULL, 0, file, tensor, NULL, 1};
    return t;
}

// A range of a tensor in (out, in) order, with zeros as padding; the caller frees it. Reads no other bytes of the file.
static inline void *read_range(const StoredTensor *t, ParamRange range, const Slice *slice) {
    unsigned char *elements = (unsigned char *)xcalloc(range.count, t->size);
    move_range(t, elements, range, slice);
    return elements;
}

// Stores the weights of a range, numbers (range.count), on the device. With a master or a remainder params are rounded
// half up, else to nearest even.
static inline void weights_store(const OptimizerState *o, const real *numbers, ParamRange range, const Device *device) {
    bool exact = o->master || o->remainder;
    size_t count = range.count;
    floatX *weights = (floatX *)xmalloc(count * sizeof *weights);
    for (size_t i = 0; i < count; i++) { weights[i] = exact ? to_floatX_half_up(numbers[i]) : to_floatX(numbers[i]); }
    device->upload(o->params + range.params, weights, count * sizeof *weights);
    free(weights);
    if (o->master) { device->upload(o->master + range.state, numbers, count * sizeof *numbers); }
    if (!o->remainder) { return; }
    int16_t *remainder = (int16_t *)xmalloc(count * sizeof *remainder);
    for (size_t i = 0; i < count; i++) { remainder[i] = remainder_of(numbers[i]); }
    device->upload(o->remainder + range.state, remainder, count * sizeof *remainder);
    free(remainder);
}

// ---- moments: three types in the file, three types in the run

// Codes and scales (moment_blocks(count)) of `count` numbers. Rounds to nearest, since a conversion happens once.
static inline void codes_encode(uint8_t *codes, float *scales, const real *numbers, size_t count, bool is_v) {
    uint16_t nearest[MOMENT_BLOCK];
    for (int i = 0; i < MOMENT_BLOCK; i++) { nearest[i] = NEAREST_BITS; }
    for (size_t i = 0; i < count; i += MOMENT_BLOCK) {
        size_t n = count - i < MOMENT_BLOCK ? count - i : (size_t)MOMENT_BLOCK;
        scales[i / MOMENT_BLOCK] = is_v ? v_encode_block(codes + i, numbers + i, n, nearest)
                                        : m_encode_block(codes + i, numbers + i, n, nearest);
    }
}

// Stores codes (count) and their scales at element `offset` of m or v, a multiple of MOMENT_BLOCK.
static inline void codes_store(const OptimizerState *o, bool is_v, const uint8_t *codes, const float *scales,
                               size_t offset, size_t count, const Device *device) {
    device->upload((uint8_t *)(is_v ? o->v : o->m) + offset, codes, count);
    device->upload((is_v ? o->v_scales : o->m_scales) + offset / MOMENT_BLOCK, scales,
                   moment_blocks(count) * sizeof *scales);
}

// stores numbers (count) at element `offset` of m or v, in the type of the run
static inline void moments_store(const OptimizerState *o, bool is_v, const real *numbers, size_t offset, size_t count,
                                 const Device *device) {
    void *buffer = is_v ? o->v : o->m;
    if (o->moments == DT_U8) {
        uint8_t *codes = (uint8_t *)xmalloc(count);
        float *scales = (float *)xmalloc(moment_blocks(count) * sizeof *scales);
        codes_encode(codes, scales, numbers, count, is_v);
        codes_store(o, is_v, codes, scales, offset, count, device);
        free(scales);
        free(codes);
    } else if (o->moments == DT_BF16) {
        bf16 *rounded = (bf16 *)xmalloc(count * sizeof *rounded);
        for (size_t i = 0; i < count; i++) { rounded[i] = float_to_bf16((float)numbers[i]); }
        device->upload((bf16 *)buffer + offset, rounded, count * sizeof *rounded);
        free(rounded);
    } else {
        device->upload((real *)buffer + offset, numbers, count * sizeof *numbers);
    }
}

// Finds the scales of a tensor of codes, and the number of slices that have scales. Stops unless they are whole.
static inline void find_scales(StoredTensor *t, const char *prefix, int layer) {
    char scales_prefix[16], name[NAME_LENGTH];
    snprintf(scales_prefix, sizeof scales_prefix, "%c_scales.", prefix[0]);
    param_name(name, sizeof name, t->id, layer);
    const SafeTensor *scales = model_find(t->file, scales_prefix, name);
    int dims = scales ? scales->num_dims : 0;
    size_t rows = dims == 2 ? scales->shape[0] : 1;
    bool split = rows > 1 && rows <= MAX_CONFIG_NUMBER;
    t->scales = scales;
    t->size = 1;
    t->slices = split ? (int)rows : 1;
    size_t expected = slice_scales(t->id, &t->file->config, t->slices);
    bool whole = scales && scales->dtype == DT_F32 && dims == (split ? 2 : 1) && scales->shape[dims - 1] == expected;
    if (!whole || scale_slices(t->id, t->slices) != t->slices) {
        input_error("'%s' has %s %s%s, expected %zu numbers in F32, the scales of the 8-bit codes in %s%s; resume "
                    "from the checkpoint before it",
                    t->file->file.path, scales ? "another tensor" : "no tensor", scales_prefix, name, expected, prefix,
                    name);
    }
}

// scales [first, first + count) of a tensor of codes; the caller frees them
static inline float *read_scales(const StoredTensor *t, size_t first, size_t count) {
    float *scales = (float *)xmalloc(count * sizeof *scales);
    safetensors_read(&t->file->file, t->scales, first * sizeof *scales, scales, count * sizeof *scales);
    return scales;
}

// numbers (count) = the decoded codes of elements [first, first + count) of the whole tensor; scales: all of the tensor
static inline void codes_decode(real *numbers, const uint8_t *codes, size_t first, size_t count, const StoredTensor *t,
                                const float *scales, bool is_v) {
    size_t per_slice = slice_scales(t->id, &t->file->config, t->slices);
    for (size_t done = 0, n; done < count; done += n) {
        Range local;
        int slice = slice_of(&local, t->id, &t->file->config, t->slices, first + done);
        float scale = scales[(size_t)slice * per_slice + local.offset / MOMENT_BLOCK];
        size_t left_in_block = MOMENT_BLOCK - local.offset % MOMENT_BLOCK;
        n = local.count < left_in_block ? local.count : left_in_block;
        n = count - done < n ? count - done : n;
        if (is_v) {
            v_decode_block(numbers + done, codes + done, n, scale);
        } else {
            m_decode_block(numbers + done, codes + done, n, scale);
        }
    }
}

// Stores a chunk of codes: as they are into a run of 8-bit moments with as many slices, else decoded and converted.
static inline void codes_load(const StoredTensor *t, const uint8_t *codes, ParamRange chunk, const ParamLayout *layout,
                              const ModelState *s, bool is_v) {
    const Slice *slice = &layout->slice[t->id];
    int slices = scale_slices(t->id, layout->sharding.tp_size), rank = slices > 1 ? layout->sharding.tp_rank : 0;
    size_t per_slice = slice_scales(t->id, &t->file->config, t->slices);
    if (s->optimizer.moments == DT_U8 && t->slices == slices) {
        size_t first = (size_t)rank * per_slice + chunk.offset / MOMENT_BLOCK;
        float *scales = read_scales(t, first, moment_blocks(chunk.count));
        codes_store(&s->optimizer, is_v, codes, scales, chunk.state, chunk.count, s->device);
        free(scales);
        return;
    }
    float *scales = read_scales(t, 0, (size_t)t->slices * per_slice);
    real *numbers = (real *)xcalloc(chunk.count, sizeof *numbers);
    for (size_t i = 0; i < slice_num_ranges(slice); i++) {
        SliceRange within = slice_range_within(slice_range(slice, i), chunk.offset, chunk.count);
        if (within.count == 0) { continue; }
        size_t at = within.local - chunk.offset;
        codes_decode(numbers + at, codes + at, within.global, within.count, t, scales, is_v);
    }
    moments_store(&s->optimizer, is_v, numbers, chunk.state, chunk.count, s->device);
    free(numbers);
    free(scales);
}

// ---- loading

typedef enum { LOAD_WEIGHTS, LOAD_M, LOAD_V } LoadKind;

// fills the elements that this rank updates from the tensors prefix + name
static inline void state_load(const ModelFile *file, const char *prefix, LoadKind kind, const ModelState *s) {
    ParamLayout layout = param_layout_sharded(&file->config, s->sharding);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        for (int layer = 0; layer < param_layers(id, &file->config); layer++) {
            StoredTensor t = stored_tensor(file, prefix, id, layer);
            if (kind != LOAD_WEIGHTS && t.tensor->dtype == DT_U8) { find_scales(&t, prefix, layer); }
            ParamRange range = param_updated_range(&layout, id, layer, param_used(&layout, id)), chunk;
            for (size_t done = 0; done < range.count; done += chunk.count) {
                chunk = range_chunk(range, done, t.transposed);
                void *elements = read_range(&t, chunk, &layout.slice[id]);
                if (kind == LOAD_WEIGHTS) {
                    weights_store(&s->optimizer, (real *)elements, chunk, s->device);
                } else if (t.scales) {
                    codes_load(&t, (uint8_t *)elements, chunk, &layout, s, kind == LOAD_V);
                } else {
                    moments_store(&s->optimizer, kind == LOAD_V, (real *)elements, chunk.state, chunk.count, s->device);
                }
                free(elements);
            }
        }
    }
}

// params and masters or remainders, from the tensors prefix + name
static inline void weights_load(const ModelFile *file, const char *prefix, const ModelState *s) {
    state_load(file, prefix, LOAD_WEIGHTS, s);
}

// the moments m and v, from the tensors m.<name> and v.<name>
static inline void moments_load(const ModelFile *file, const ModelState *s) {
    state_load(file, "m.", LOAD_M, s);
    state_load(file, "v.", LOAD_V, s);
}
