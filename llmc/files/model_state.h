/*
The state of a model on its device, written to files and read back.
defines: ModelState, is_first_rank, agree_on_error, TensorFamily, families_open, families_write, weights_store,
         weights_load, moments_store, moments_load

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
#include "llmc/common/device.h"
#include "llmc/files/model_file.h"
#include "llmc/files/tokenizer.h"
#include "llmc/moments.h"
#include "llmc/parallel/comm.h"
#include "llmc/parallel/layout.h"

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

// ---- transposed tensors: a column of the slice is adjacent in the file

// the rows of a slice that both a range and a rectangle of the slice reach
static inline Range range_rows(ParamRange range, const Slice *slice, int rectangle) {
    size_t first = range.offset / slice->cols, end = (range.offset + range.count + slice->cols - 1) / slice->cols;
    Range reached = {first, end - first};
    Range rows = {rectangle_local(slice, rectangle) / slice->cols, slice->rectangle_rows};
    return range_intersect(reached, rows);
}

// Column c of a rectangle, cut to the range: elements [global, global + count) of the tensor in the file, and [local,
// local + count) of a buffer (rectangle_cols, range_rows) that holds the transposed rectangle. range_rows is not
// empty.
static inline SliceRange column_range(ParamRange range, const Slice *slice, int rectangle, size_t c) {
    Range rows = range_rows(range, slice, rectangle);
    size_t local = rectangle_local(slice, rectangle), global = rectangle_global(slice, rectangle);
    size_t first = rows.offset, end = rows.offset + rows.count, col = local % slice->cols + c;
    if (first * slice->cols + col < range.offset) { first++; }
    if ((end - 1) * slice->cols + col >= range.offset + range.count) { end--; }
    size_t global_row = global / slice->global_cols + first - local / slice->cols;
    size_t global_col = global % slice->global_cols + c;
    SliceRange column = {c * rows.count + first - rows.offset, global_col * slice->global_rows + global_row,
                         end - first};
    return column;
}

// The column c of a rectangle and the columns after it that are adjacent in the file, as one range. Of a whole tensor
// that is all columns. Returns the column after them.
static inline size_t adjacent_columns(SliceRange *adjacent, ParamRange range, const Slice *slice, int rectangle,
                                      size_t c) {
    *adjacent = column_range(range, slice, rectangle, c);
    for (c++; c < slice->rectangle_cols; c++) {
        SliceRange next = column_range(range, slice, rectangle, c);
        if (next.global != adjacent->global + adjacent->count) { break; }
        adjacent->count += next.count;
    }
    return c;
}

// to_columns: columns (rectangle_cols, range_rows) = the transposed rectangle of elements (range.count). Else the
// inverse.
static inline void transpose_range(unsigned char *columns, unsigned char *elements, bool to_columns, ParamRange range,
                                   const Slice *slice, int rectangle, size_t size) {
    Range rows = range_rows(range, slice, rectangle);
#pragma omp parallel for schedule(static)
    for (size_t c = 0; c < slice->rectangle_cols; c++) {
        SliceRange column = column_range(range, slice, rectangle, c);
        size_t row = rows.offset + column.local - c * rows.count;
        size_t col = rectangle_local(slice, rectangle) % slice->cols + c;
        for (size_t i = 0; i < column.count; i++) {
            unsigned char *in_column = columns + (column.local + i) * size;
            unsigned char *in_range = elements + ((row + i) * slice->cols + col - range.offset) * size;
            memcpy(to_columns ? in_column : in_range, to_columns ? in_range : in_column, size);
        }
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

// writes the elements of a range, host (range.count), that are in a rectangle of the slice
static inline void write_transposed(SafeTensorsWriter *w, int index, unsigned char *host, ParamRange range,
                                    const Slice *slice, int rectangle, size_t size) {
    Range rows = range_rows(range, slice, rectangle);
    if (rows.count == 0) { return; }
    unsigned char *columns = (unsigned char *)xmalloc(slice->rectangle_cols * rows.count * size);
    transpose_range(columns, host, true, range, slice, rectangle, size);
    for (size_t c = 0; c < slice->rectangle_cols;) {
        SliceRange adjacent;
        c = adjacent_columns(&adjacent, range, slice, rectangle, c);
        safetensors_write(w, index, adjacent.global * size, columns + adjacent.local * size, adjacent.count * size);
    }
    free(columns);
}

// writes a range of a tensor, host (range.count), without padding
static inline void write_range(SafeTensorsWriter *w, int index, unsigned char *host, ParamRange range,
                               const Slice *slice, bool transposed, size_t size) {
    for (int i = 0; transposed && i < slice->num_rectangles; i++) {
        write_transposed(w, index, host, range, slice, i, size);
    }
    for (size_t i = 0; !transposed && i < slice_num_ranges(slice); i++) {
        SliceRange within = slice_range_within(slice_range(slice, i), range.offset, range.count);
        if (within.count == 0) { continue; }
        safetensors_write(w, index, within.global * size, host + (within.local - range.offset) * size,
                          within.count * size);
    }
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
            write_range(w, index, host, chunk, &layout->slice[id], param_specs[id].transposed, size);
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

// Opens *w for the families that have a buffer, in one file. All ranks call it: rank 0 creates the file, then the other
// ranks open it. Returns 0 or an errno of rank 0, the same on all ranks, and in *failed_rank a rank that has the error.
static inline int families_open(SafeTensorsWriter *w, const char *path, const TensorFamily *families, int count,
                                const ModelState *s, int *failed_rank) {
    memset(w, 0, sizeof *w);
    if (is_first_rank(s)) {
        *w = safetensors_create(path);
        w->shared = s->world && s->world->size > 1;
        families_begin(w, families, count, s);
    }
    int error = agree_on_error(w->error, s->world, failed_rank);
    if (!is_first_rank(s)) {
        *w = safetensors_join(path);
        families_begin(w, families, count, s);
    }
    return error;
}

// Writes the elements that this rank owns, of families opened with families_open. Communicates with no rank. Call
// safetensors_finish after it.
static inline void families_write(SafeTensorsWriter *w, const TensorFamily *families, int count, const ModelState *s) {
    for (int i = 0, index = 0; i < count; i++) {
        if (!families[i].buffer) { continue; }
        family_write(w, &families[i], s, index);
        index += num_param_tensors(s->config);
    }
}

// ---- reading

// one tensor of a file
typedef struct {
    const ModelFile *file;
    const SafeTensor *tensor;
    ParamId id;
    bool codes;                // elements are read as 8-bit codes, else converted to `real`
    const SafeTensor *scales;  // of the codes; of `slices` slices, one after another
    int slices;
} StoredTensor;

static inline StoredTensor stored_tensor(const ModelFile *file, const char *prefix, ParamId id, int layer) {
    StoredTensor stored = {file, model_tensor(file, prefix, id, layer), id, false, NULL, 1};
    return stored;
}

// out (count) = elements [first, first + count), in the order of the file
static inline void read_elements(const StoredTensor *t, size_t first, void *out, size_t count) {
    if (t->codes) {
        safetensors_read(&t->file->file, t->tensor, first, out, count);
    } else {
        safetensors_read_real(&t->file->file, t->tensor, first, (real *)out, count);
    }
}

// the mirror of write_transposed: fills the elements of out (range.count) that are in a rectangle of the slice
static inline void read_transposed(const StoredTensor *t, unsigned char *out, ParamRange range, const Slice *slice,
                                   int rectangle, size_t size) {
    Range rows = range_rows(range, slice, rectangle);
    if (rows.count == 0) { return; }
    unsigned char *columns = (unsigned char *)xmalloc(slice->rectangle_cols * rows.count * size);
    for (size_t c = 0; c < slice->rectangle_cols;) {
        SliceRange adjacent;
        c = adjacent_columns(&adjacent, range, slice, rectangle, c);
        read_elements(t, adjacent.global, columns + adjacent.local * size, adjacent.count);
    }
    transpose_range(columns, out, false, range, slice, rectangle, size);
    free(columns);
}

// A range of a tensor in (out, in) order, with zeros as padding; the caller frees it. Reads no other bytes of the file.
static inline void *read_range(const StoredTensor *t, ParamRange range, const Slice *slice) {
    size_t size = t->codes ? 1 : sizeof(real);
    bool transposed = model_transposed(t->file, t->id);
    unsigned char *out = (unsigned char *)xcalloc(range.count, size);
    for (int i = 0; transposed && i < slice->num_rectangles; i++) { read_transposed(t, out, range, slice, i, size); }
    for (size_t i = 0; !transposed && i < slice_num_ranges(slice); i++) {
        SliceRange within = slice_range_within(slice_range(slice, i), range.offset, range.count);
        if (within.count > 0) {
            read_elements(t, within.global, out + (within.local - range.offset) * size, within.count);
        }
    }
    return out;
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

// fills params and masters or remainders, of the elements that this rank updates, from the tensors prefix + name
static inline void weights_load(const ModelFile *file, const char *prefix, const ModelState *s) {
    ParamLayout layout = param_layout_sharded(&file->config, s->sharding);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        for (int layer = 0; layer < param_layers(id, &file->config); layer++) {
            StoredTensor stored = stored_tensor(file, prefix, id, layer);
            ParamRange range = param_updated_range(&layout, id, layer, param_used(&layout, id)), chunk;
            for (size_t done = 0; done < range.count; done += chunk.count) {
                chunk = range_chunk(range, done, model_transposed(file, id));
                real *numbers = (real *)read_range(&stored, chunk, &layout.slice[id]);
                weights_store(&s->optimizer, numbers, chunk, s->device);
                free(numbers);
            }
        }
    }
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

// finds the scales of a tensor of codes and the number of slices they are of; stops unless they are whole
static inline void find_scales(StoredTensor *t, const char *prefix, int layer) {
    char scales_prefix[16], name[NAME_LENGTH];
    snprintf(scales_prefix, sizeof scales_prefix, "%c_scales.", prefix[0]);
    param_name(name, sizeof name, t->id, layer);
    const SafeTensor *scales = model_find(t->file, scales_prefix, name);
    int dims = scales ? scales->num_dims : 0;
    size_t rows = dims == 2 ? scales->shape[0] : 1;
    bool split = rows > 1 && rows <= MAX_CONFIG_NUMBER;
    t->scales = scales;
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

// decodes a chunk of codes and stores the numbers in the type of the run; scales: all of the tensor
static inline void codes_convert(const StoredTensor *t, const uint8_t *codes, const float *scales, ParamRange chunk,
                                 const Slice *slice, const OptimizerState *o, bool is_v, const Device *device) {
    real *numbers = (real *)xcalloc(chunk.count, sizeof *numbers);
    for (size_t i = 0; i < slice_num_ranges(slice); i++) {
        SliceRange within = slice_range_within(slice_range(slice, i), chunk.offset, chunk.count);
        if (within.count == 0) { continue; }
        size_t at = within.local - chunk.offset;
        codes_decode(numbers + at, codes + at, within.global, within.count, t, scales, is_v);
    }
    moments_store(o, is_v, numbers, chunk.state, chunk.count, device);
    free(numbers);
}

// stores a chunk of codes as they are, with their scales, which belong to slice `slice` of the file
static inline void codes_copy(const StoredTensor *t, const uint8_t *codes, ParamRange chunk, int slice,
                              const OptimizerState *o, bool is_v, const Device *device) {
    size_t first = (size_t)slice * slice_scales(t->id, &t->file->config, t->slices) + chunk.offset / MOMENT_BLOCK;
    float *scales = read_scales(t, first, moment_blocks(chunk.count));
    codes_store(o, is_v, codes, scales, chunk.state, chunk.count, device);
    free(scales);
}

// Fills the elements of one tensor of m or v that this rank updates. Codes are copied bit for bit into a run of 8-bit
// moments with as many slices, else converted.
static inline void moments_load_tensor(const StoredTensor *t, ParamRange range, const OptimizerState *o, bool is_v,
                                       const ParamLayout *layout, const Device *device) {
    const Slice *slice = &layout->slice[t->id];
    int slices = scale_slices(t->id, layout->sharding.tp_size);
    bool copy = t->codes && o->moments == DT_U8 && t->slices == slices, convert = t->codes && !copy;
    size_t num_scales = (size_t)t->slices * slice_scales(t->id, &t->file->config, t->slices);
    float *scales = convert ? read_scales(t, 0, num_scales) : NULL;
    ParamRange chunk;
    for (size_t done = 0; done < range.count; done += chunk.count) {
        chunk = range_chunk(range, done, model_transposed(t->file, t->id));
        void *elements = read_range(t, chunk, slice);
        if (copy) {
            codes_copy(t, (uint8_t *)elements, chunk, slices > 1 ? layout->sharding.tp_rank : 0, o, is_v, device);
        } else if (convert) {
            codes_convert(t, (uint8_t *)elements, scales, chunk, slice, o, is_v, device);
        } else {
            moments_store(o, is_v, (real *)elements, chunk.state, chunk.count, device);
        }
        free(elements);
    }
    free(scales);
}

// fills the elements of m or v that this rank updates from the tensors m.<name> or v.<name>
static inline void moments_load(const ModelFile *file, bool is_v, const ModelState *s) {
    const char *prefix = is_v ? "v." : "m.";
    ParamLayout layout = param_layout_sharded(&file->config, s->sharding);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        for (int layer = 0; layer < param_layers(id, &file->config); layer++) {
            StoredTensor stored = stored_tensor(file, prefix, id, layer);
            stored.codes = stored.tensor->dtype == DT_U8;
            if (stored.codes) { find_scales(&stored, prefix, layer); }
            ParamRange range = param_updated_range(&layout, id, layer, param_used(&layout, id));
            moments_load_tensor(&stored, range, &s->optimizer, is_v, &layout, s->device);
        }
    }
}
