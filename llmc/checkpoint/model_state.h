/*
The state of a model on its device, written to files and read back.

A file holds whole tensors at every -z and -tp. Each rank writes the elements that it owns and reads the elements that
it updates (layout.h), so any number of ranks can resume from a file.
Masters     are bf16 weights and their 16-bit remainders, stored as F32.
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
#include "llmc/common/check.h"
#include "llmc/common/crc32c.h"
#include "llmc/common/create_file.h"
#include "llmc/common/device.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/progress.h"
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

// How many slices of a tensor have own scales in a file of -tp t, and how many each has. A replicated tensor has one.
static inline int scale_slices(ParamId id, int t) { return param_split(id) == SPLIT_NONE ? 1 : t; }
static inline size_t slice_scales(ParamId id, const GPT2Config *c, int t) {
    Slice s = param_slice(id, c, t, 0);
    return moment_blocks(scale_slices(id, t) == 1 ? param_used_rows(id, c) * param_cols(id, c) : s.rows * s.cols);
}

enum { CHUNK_ELEMENTS = 1 << 18 };  // of a tensor in host memory at a time

// The next chunk of a range, after `done` elements. A tensor that the file stores transposed is a single chunk: smaller
// ones would mean many short reads.
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

// the rows of a rectangle whose element in column c comes before element `end` of the slice
static inline size_t rows_before(const Slice *s, int rectangle, size_t c, size_t end) {
    size_t begin = rectangle_local(s, rectangle) + c, rows = end > begin ? (end - begin + s->cols - 1) / s->cols : 0;
    return rows < s->rectangle_rows ? rows : s->rectangle_rows;
}

// the rows of a rectangle whose element in column c is in the range
static inline Range column_rows(const Slice *s, int rectangle, size_t c, ParamRange range) {
    size_t first = rows_before(s, rectangle, c, range.offset);
    Range rows = {first, rows_before(s, rectangle, c, range.offset + range.count) - first};
    return rows;
}

// Copies the elements that a range shares with a rectangle to their transpose `columns` (rectangle_cols, all.count), or
// back. `all` are the rows that the range has in any column.
static inline void transpose_range(unsigned char *columns, unsigned char *elements, bool to_columns, Range all,
                                   ParamRange range, const Slice *s, int rectangle, size_t size) {
#pragma omp parallel for schedule(static)
    for (size_t c = 0; c < s->rectangle_cols; c++) {
        Range rows = column_rows(s, rectangle, c, range);
        for (size_t row = rows.offset; row < rows.offset + rows.count; row++) {
            size_t local = rectangle_local(s, rectangle) + row * s->cols + c;
            unsigned char *in_column = columns + (c * all.count + row - all.offset) * size;
            unsigned char *in_range = elements + (local - range.offset) * size;
            memcpy(to_columns ? in_column : in_range, to_columns ? in_range : in_column, size);
        }
    }
}

// For a transposed file, moves the elements that a range shares with a rectangle of the slice: whole columns at once.
static inline void move_columns(const StoredTensor *t, unsigned char *elements, ParamRange range, const Slice *s,
                                int rectangle) {
    const size_t cols = s->rectangle_cols, global = rectangle_global(s, rectangle);
    // in row-major order the last column reaches the range first, and the first column leaves it last
    size_t first_row = rows_before(s, rectangle, cols - 1, range.offset);
    const Range all = {first_row, rows_before(s, rectangle, 0, range.offset + range.count) - first_row};
    unsigned char *columns = (unsigned char *)xmalloc(cols * all.count * t->size);
    if (t->writer) { transpose_range(columns, elements, true, all, range, s, rectangle, t->size); }
    for (size_t c = 0, n; c < cols; c += n) {
        Range rows = column_rows(s, rectangle, c, range);
        bool whole = rows.count == s->global_rows;
        for (n = 1; whole && c + n < cols && column_rows(s, rectangle, c + n, range).count == rows.count;) { n++; }
        if (rows.count == 0) { continue; }
        size_t column = (global % s->global_cols + c) * s->global_rows + global / s->global_cols;  // in the file
        unsigned char *host = columns + (c * all.count + rows.offset - all.offset) * t->size;
        move_elements(t, column + rows.offset, host, n * rows.count);
    }
    if (!t->writer) { transpose_range(columns, elements, false, all, range, s, rectangle, t->size); }
    free(columns);
}

// Moves a range of a tensor between the file and elements (range.count) in (out, in) order. Padding is not moved.
static inline void move_range(const StoredTensor *t, unsigned char *elements, ParamRange range, const Slice *s) {
    for (int i = 0; t->transposed && i < s->num_rectangles; i++) { move_columns(t, elements, range, s, i); }
    for (size_t i = 0; !t->transposed && i < slice_num_ranges(s); i++) {
        SliceRange within = slice_range_within(slice_range(s, i), range.offset, range.count);
        if (within.count == 0) { continue; }
        move_elements(t, within.global, elements + (within.local - range.offset) * t->size, within.count);
    }
}

// ---- writing

// One tensor for each parameter: named prefix + the parameter's name, its elements in `buffer`. Muon's matrices have no
// second moments.
typedef struct {
    const char *prefix;        // "" for the weights, "m.", "v.", "m_scales.", "v_scales." or "master."
    const void *buffer;        // on the device; NULL: this model has no such tensors
    const int16_t *remainder;  // if set, master = join(buffer, remainder) goes to the file
    DType dtype;               // in the file
    bool scales;               // an element for each MOMENT_BLOCK elements of the parameter
} TensorFamily;

static inline bool prefix_is_second(const char *prefix) { return prefix[0] == 'v'; }
static inline bool family_lacks(const char *prefix, ParamId id, const ParamLayout *layout) {
    return prefix_is_second(prefix) && updated_by_muon(layout, id);
}

static inline void family_declare(SafeTensorsWriter *w, const TensorFamily *family, const ModelState *s) {
    char name[NAME_LENGTH], full[2 * NAME_LENGTH];
    ParamLayout layout = param_layout_sharded(s->config, s->sharding);
    int t = layout.sharding.tp_size;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        if (family_lacks(family->prefix, id, &layout)) { continue; }
        size_t shape[2] = {(size_t)t, slice_scales(id, s->config, t)};
        bool vector = family->scales ? scale_slices(id, t) == 1 : param_specs[id].rows == DIM_ONE;
        if (!family->scales) { param_file_shape(shape, id, s->config, param_specs[id].transposed); }
        for (int layer = 0; layer < param_layers(id, s->config); layer++) {
            param_name(name, sizeof name, id, layer);
            snprintf(full, sizeof full, "%s%s", family->prefix, name);
            safetensors_declare(w, full, family->dtype, vector ? 1 : 2, shape + vector);
        }
    }
}

// host = a family's elements of a range, in the type of the file: range.count, or moment_blocks(range.count) scales
static inline void family_fetch(void *host, const TensorFamily *family, ParamRange range, const Device *device) {
    size_t size = dtype_size(family->dtype), offset = *family->prefix ? range.state : range.params;
    size_t count = range.count;
    if (family->scales) {
        offset /= MOMENT_BLOCK;
        count = moment_blocks(count);
    }
    if (!family->remainder) {
        device->download(host, (const unsigned char *)family->buffer + offset * size, count * size);
        return;
    }
    floatX *weights = (floatX *)xmalloc(count * sizeof *weights);
    int16_t *remainder = (int16_t *)xmalloc(count * sizeof *remainder);
    device->download(weights, (const floatX *)family->buffer + range.params, count * sizeof *weights);
    device->download(remainder, family->remainder + range.state, count * sizeof *remainder);
    for (size_t i = 0; i < count; i++) { ((real *)host)[i] = joined_real(weights[i], remainder[i]); }
    free(weights);
    free(remainder);
}

// Writes the elements of a family that this rank owns. Its tensors were declared from `index` on; returns the next
// family's index. Tensor-parallel rank 0 writes a replicated tensor.
static inline int family_write(SafeTensorsWriter *w, const TensorFamily *family, const ModelState *s, int index) {
    ParamLayout layout = param_layout_sharded(s->config, s->sharding);
    size_t size = dtype_size(family->dtype);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        bool transposed = param_specs[id].transposed;
        bool split = param_split(id) != SPLIT_NONE && s->sharding.tp_size > 1,
             writes = split || s->sharding.tp_rank == 0;
        size_t used = family->scales && split ? param_count(&layout, id) : param_used(&layout, id);
        size_t first_scale = split ? (size_t)s->sharding.tp_rank * moment_blocks(used) : 0;
        if (family_lacks(family->prefix, id, &layout)) { continue; }
        for (int layer = 0; layer < param_layers(id, s->config); layer++, index++) {
            ParamRange range = param_owned_range(&layout, id, layer, used), chunk;
            if (prefix_is_second(family->prefix)) { range.state = second_moment_at(&layout, id, layer, range); }
            for (size_t done = 0; writes && done < range.count; done += chunk.count) {
                chunk = range_chunk(range, done, transposed);
                unsigned char *host = (unsigned char *)xmalloc(chunk.count * size);
                family_fetch(host, family, chunk, s->device);
                if (family->scales) {
                    size_t first = first_scale + chunk.offset / MOMENT_BLOCK;
                    safetensors_write(w, index, first * size, host, moment_blocks(chunk.count) * size);
                } else {
                    const StoredTensor t = {id, transposed, size, w, index, NULL, NULL, NULL, 1};
                    move_range(&t, host, chunk, &layout.slice[id]);
                }
                free(host);
            }
        }
    }
    return index;
}

static inline void families_begin(SafeTensorsWriter *w, const TensorFamily *families, int count, const ModelState *s) {
    for (int i = 0; i < count; i++) {
        if (families[i].buffer) { family_declare(w, &families[i], s); }
    }
    safetensors_begin(w);
}

// Writes the families that have a buffer to one file. All ranks call it: rank 0 creates the file, and each rank writes
// the elements that it owns. *crc = the CRC32C of the whole file. All ranks return 0, or one errno and in *failed_rank
// a rank that has it.
static inline int families_save(const char *path, const TensorFamily *families, int count, const ModelState *s,
                                uint32_t *crc, int *failed_rank) {
    SafeTensorsWriter w;
    bool first = is_first_rank(s);
    memset(&w, 0, sizeof w);
    if (first) {
        w = safetensors_create(path, false);
        families_begin(&w, families, count, s);
    }
    int error = agree_on_error(w.error, s->world, failed_rank);
    if (!first) {
        w = safetensors_create(path, true);
        families_begin(&w, families, count, s);
    }
    for (int i = 0, index = 0; i < count && !error; i++) {
        if (families[i].buffer) { index = family_write(&w, &families[i], s, index); }
    }
    const long long own_parts = w.crc_parts;
    const uint64_t bytes = w.bytes;
    int own = safetensors_finish(&w);
    if (!error) { error = agree_on_error(own, s->world, failed_rank); }
    uint32_t parts = s->world ? 0 : (uint32_t)own_parts;
    for (int rank = 0; !error && s->world && rank < s->world->size; rank++) {
        parts ^= (uint32_t)comm_max(rank == s->world->rank ? own_parts : 0, s->world);
    }
    *crc = crc32c_whole(parts, bytes);
    return error;
}

// ---- reading

// If a number is not finite, deletes *out (may be NULL) and stops, since no step or text would be right.
static inline void require_finite(const StoredTensor *t, const real *numbers, size_t count, PartFile *out) {
    const SafeTensors *file = &t->file->file;
    size_t finite = 0;
    for (size_t i = 0; i < count; i++) { finite += isfinite(numbers[i]) != 0; }
    if (finite == count) { return; }
    if (out) { part_discard(out); }
    input_error("'%s' has NaN or infinite values in tensor %s, expected finite numbers; give other weights with -e, or "
                "to resume from the checkpoint before it, move this one out of -o",
                file->num_shards > 0 ? file->shards[t->tensor->shard].path : file->path, t->tensor->name);
}

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

// Stores weights (range.count) on the device. Params with a remainder round half up, else to nearest even.
static inline void weights_store(const OptimizerState *o, const real *numbers, ParamRange range, const Device *device) {
    size_t count = range.count;
    floatX *weights = (floatX *)xmalloc(count * sizeof *weights);
    for (size_t i = 0; i < count; i++) {
        weights[i] = o->remainder ? to_floatX_half_up(numbers[i]) : to_floatX(numbers[i]);
    }
    device->upload(o->params + range.params, weights, count * sizeof *weights);
    free(weights);
    if (!o->remainder) { return; }
    int16_t *remainder = (int16_t *)xmalloc(count * sizeof *remainder);
    for (size_t i = 0; i < count; i++) { remainder[i] = remainder_of(numbers[i]); }
    device->upload(o->remainder + range.state, remainder, count * sizeof *remainder);
    free(remainder);
}

// GPT-2's initial weights, drawn tensor by tensor
static inline void weights_init(const ModelState *s, uint64_t seed) {
    ParamLayout layout = param_layout_sharded(s->config, s->sharding);
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        size_t used = param_used(&layout, id);
        real *init = (real *)xmalloc(used * sizeof *init);
        for (int layer = 0; layer < param_layers(id, s->config); layer++) {
            ParamRange range = param_updated_range(&layout, id, layer, used);
            if (range.count == 0) { continue; }  // another rank owns the tensor
            slice_init_tensor(init, &layout.slice[id], id, layer, range.offset, range.count, s->config, seed);
            weights_store(&s->optimizer, init, range, s->device);
        }
        free(init);
    }
}

// ---- moments: three types in the file, three types in the run

// Stores codes (count) and their scales at element `offset` of m or v, a multiple of MOMENT_BLOCK.
static inline void codes_store(const OptimizerState *o, bool is_v, const uint8_t *codes, const float *scales,
                               size_t offset, size_t count, const Device *device) {
    device->upload((uint8_t *)(is_v ? o->v : o->m) + offset, codes, count);
    device->upload(moment_scales(o, is_v) + offset / MOMENT_BLOCK, scales, moment_blocks(count) * sizeof *scales);
}

// Stores numbers (count) at element `offset` of m or v. 8-bit codes round to nearest: a conversion happens once.
static inline void moments_store(const OptimizerState *o, bool is_v, const real *numbers, size_t offset, size_t count,
                                 const Device *device) {
    void *buffer = is_v ? o->v : o->m;
    if (o->moments == DT_U8) {
        uint8_t *codes = (uint8_t *)xmalloc(count);
        float *scales = (float *)xmalloc(moment_blocks(count) * sizeof *scales);
        uint16_t nearest[MOMENT_BLOCK];
        for (int i = 0; i < MOMENT_BLOCK; i++) { nearest[i] = NEAREST_BITS; }
        for (size_t i = 0; i < count; i += MOMENT_BLOCK) {
            size_t n = count - i < MOMENT_BLOCK ? count - i : (size_t)MOMENT_BLOCK;
            scales[i / MOMENT_BLOCK] = moment_encode_block(is_v, codes + i, numbers + i, n, nearest);
        }
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
        moment_decode_block(is_v, numbers + done, codes + done, n, scale);
    }
}

// Stores a chunk of codes as they are if the run has 8-bit moments and as many slices; else decodes and converts them.
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

// Fills the elements that this rank updates from the tensors prefix + name: the moments of "m." or "v.", else params
// and remainders.
static inline void state_load(const ModelFile *file, const char *prefix, const ModelState *s) {
    bool is_v = prefix_is_second(prefix), is_weights = !is_v && strcmp(prefix, "m.") != 0;
    ParamLayout layout = param_layout_sharded(&file->config, s->sharding);
    int read = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        ParamId id = (ParamId)i;
        if (family_lacks(prefix, id, &layout)) { continue; }
        for (int layer = 0; layer < param_layers(id, &file->config); layer++) {
            StoredTensor t = stored_tensor(file, prefix, id, layer);
            if (!is_weights && t.tensor->dtype == DT_U8) { find_scales(&t, prefix, layer); }
            ParamRange range = param_updated_range(&layout, id, layer, param_used(&layout, id)), chunk;
            if (is_v) { range.state = second_moment_at(&layout, id, layer, range); }
            for (size_t done = 0; done < range.count; done += chunk.count) {
                chunk = range_chunk(range, done, t.transposed);
                void *elements = read_range(&t, chunk, &layout.slice[id]);
                if (is_weights) {
                    require_finite(&t, (real *)elements, chunk.count, NULL);
                    weights_store(&s->optimizer, (real *)elements, chunk, s->device);
                } else if (t.scales) {
                    codes_load(&t, (uint8_t *)elements, chunk, &layout, s, is_v);
                } else {
                    moments_store(&s->optimizer, is_v, (real *)elements, chunk.state, chunk.count, s->device);
                }
                free(elements);
            }
            progress_show("reading the model", ++read, num_param_tensors(file->config.num_layers));
        }
    }
}

// ---- a model's tensors for other programs: GGUF's, or those of llm.c's file

// Writes a tensor in (out, in) order as F32, F16 or BF16. This is exact for numbers of that type or a narrower one. If
// a number is not finite, deletes the file and stops. `layout` is that of one rank.
static inline void write_tensor(PartFile *out, const ModelFile *model, ParamId id, int layer, const ParamLayout *layout,
                                DType dtype) {
    enum { MAX_ELEMENTS = 4 * CHUNK_ELEMENTS };  // fewer of a transposed tensor would make short reads
    const StoredTensor stored = stored_tensor(model, "", id, layer);
    size_t count = param_used_rows(id, &model->config) * param_cols(id, &model->config), size = dtype_size(dtype), n;
    for (size_t done = 0; done < count && !out->error; done += n) {
        n = count - done < MAX_ELEMENTS ? count - done : (size_t)MAX_ELEMENTS;
        const ParamRange range = {done, n, 0, 0};
        real *numbers = (real *)read_range(&stored, range, &layout->slice[id]);
        require_finite(&stored, numbers, n, out);
        unsigned char *bytes = (unsigned char *)xmalloc(n * size);
        for (size_t i = 0; i < n; i++) {
            float f = (float)numbers[i];
            uint16_t half = dtype == DT_F16 ? float_to_f16(f) : float_to_bf16(f).bits;
            memcpy(bytes + i * size, dtype == DT_F32 ? (const void *)&f : &half, size);
        }
        part_put(out, bytes, n * size);
        free(bytes);
        free(numbers);
    }
}

// Writes an open model as llm.c's model file, of version 3 for DT_F32 or 5 for DT_BF16.
static inline void llmc_write_model(PartFile *out, const ModelFile *model, DType dtype) {
    const GPT2Config *c = &model->config;
    ParamLayout layout = param_layout(c);
    const int32_t header[LLMC_HEADER_INTS] = {LLMC_MAGIC,     dtype == DT_BF16 ? LLMC_BF16 : LLMC_FP32,
                                              c->max_seq_len, c->vocab_size,
                                              c->num_layers,  c->num_heads,
                                              c->channels,    c->padded_vocab_size};
    part_put(out, header, sizeof header);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, c); layer++) {
            write_tensor(out, model, (ParamId)id, layer, &layout, dtype);
        }
        if (id != WTE) { continue; }
        size_t padding = (size_t)(c->padded_vocab_size - c->vocab_size) * (size_t)c->channels * dtype_size(dtype);
        void *zeros = xcalloc(padding, 1);
        part_put(out, zeros, padding);
        free(zeros);
    }
}
