/*
A model on its device, and its tensors on their way to files and back. Of several processes each writes the elements
that it owns (layout.h), and reads those that it keeps and no others: the files know nothing of their number, -z and
-tp, but for scales.
defines: ModelState, is_first_rank, Fault, agreed_fault, TensorFamily, families_save, block_load, weights_store,
         weights_load, Moments, moments_store, moments_load
Masters     are F32, also those that a run keeps as 16 bits beside the weights.
Moments     are as the run has them: F32, BF16, or codes (moments.h) in U8 with m_scales.<name> and v_scales.<name>
            beside them, a scale in F32 for each 128 elements, counted in (out, in) order. These are neighbours in a
            process's own slice: with -tp t the scales of a tensor that is split are (t, scales of a slice), and a run
            with another t rounds its moments to 8 bits again.
What a run finds otherwise than it keeps it is converted.
*/
#pragma once
#include "llmc/parallel/comm.h"
#include "llmc/common/device.h"
#include "llmc/parallel/layout.h"
#include "llmc/files/model_file.h"
#include "llmc/moments.h"

// a model on its device: blocks laid out by param_layout_sharded
typedef struct {
    const GPT2Config *config;
    const Device *device;
    OptimizerState optimizer;
    Sharding sharding;  // of several processes, which this is and what it keeps
    Comm *world;        // all that save together; NULL: a process alone
} ModelState;

static inline bool is_first_rank(const ModelState *s) { return !s->world || s->world->rank == 0; }

// what went wrong, the same on every rank: an errno, 0 where nothing did, and a rank that has it
typedef struct {
    int error, rank;
} Fault;

// Of the ranks' errors one: what one could not do none has done. NULL: a process alone.
static inline Fault agreed_fault(int error, Comm *world) {
    int rank = world ? world->rank : 0;
    long long worst = error ? (long long)error << 32 | rank : 0;
    if (world) { worst = comm_max(worst, world); }
    Fault fault = {(int)(worst >> 32), (int)(worst & 0x7FFFFFFF)};
    return fault;
}

// how many slices have scales of their own in a checkpoint of a model in t slices, and how many scales each has
static inline int scale_slices(ParamId id, int t) { return param_split(id) == SPLIT_NONE ? 1 : t; }
static inline size_t slice_scales(ParamId id, const GPT2Config *c, int t) {
    Slice s = param_slice(id, c, t, 0);
    return moment_blocks(scale_slices(id, t) == 1 ? param_used_rows(id, c) * param_cols(id, c) : s.rows * s.cols);
}

// ---- a range of a tensor

// elements that are in host memory at once
enum { CHUNK_ELEMENTS = 1 << 18 };

// The chunk of a range after *chunk, whose count is 0 before the first; false where there is none. A tensor that is
// transposed in the file is one chunk: smaller ones would be there and here shorter rows.
static inline bool next_chunk(ParamRange *chunk, ParamRange range, ParamId id) {
    size_t before = chunk->offset + chunk->count - range.offset, left = range.count - before;
    size_t most = param_specs[id].transposed ? left : (size_t)CHUNK_ELEMENTS;
    chunk->offset = range.offset + before, chunk->count = left < most ? left : most;
    chunk->params = range.params + before, chunk->state = range.state + before;
    return left > 0;
}

// What a range has of a column of one of its slice's rectangles. Where a file has the tensor transposed, they are
// neighbours.
typedef struct {
    size_t first;          // of the range's elements; the next one is a row further
    size_t stored;         // the place of the first in the file, in elements
    size_t count, before;  // elements, and those of the columns before it
} ColumnRange;

// how many elements before `element` of a tensor with so many columns are in column `col`
static inline size_t rows_before(size_t element, size_t col, size_t cols) {
    return element > col ? (element - col + cols - 1) / cols : 0;
}

// every column's, and an empty one after the last; to be freed
static inline ColumnRange *column_ranges(ParamRange range, const Slice *slice, const Rectangle *rectangle) {
    ColumnRange *runs = (ColumnRange *)xcalloc(rectangle->cols + 1, sizeof *runs);
    size_t row = rectangle->local / slice->cols, end = row + rectangle->rows, before = 0;
    size_t file_col = rectangle->global / slice->global_cols, file_row = rectangle->global % slice->global_cols;
    for (size_t c = 0; c < rectangle->cols; c++) {
        size_t col = rectangle->local % slice->cols + c;
        size_t from = rows_before(range.offset, col, slice->cols);
        size_t to = rows_before(range.offset + range.count, col, slice->cols);
        from = from > row ? from : row, to = to < end ? to : end;
        if (from < to) {
            runs[c].first = from * slice->cols + col - range.offset;
            runs[c].stored = (file_row + c) * slice->global_rows + file_col + from - row;
            runs[c].count = to - from;
        }
        runs[c].before = before;
        before += runs[c].count;
    }
    runs[rectangle->cols].before = before;
    return runs;
}

// the column after those from c on that follow each other in the file, as all do where the range is the whole tensor
static inline size_t columns_end(const ColumnRange *runs, size_t c, size_t cols) {
    size_t end = c + 1;
    while (end < cols && runs[end].stored == runs[c].stored + runs[end].before - runs[c].before) { end++; }
    return end;
}

// ---- writing

// one family of tensors in a file: "m." and its block. Without a prefix it is the parameters'
typedef struct {
    const char *prefix;
    const void *block;         // NULL: this model does not have it
    const int16_t *remainder;  // NULL, or what the block, params, lacks of the masters that go to the file
    DType dtype;               // in the file
    bool of_blocks;            // a number for each MOMENT_BLOCK elements of a tensor, not for each element
} TensorFamily;

static inline void family_declare(SafeTensorsWriter *w, const TensorFamily *family, const ModelState *s) {
    const GPT2Config *config = s->config;
    char name[NAME_LENGTH], full[2 * NAME_LENGTH];
    int t = s->sharding.tp_size > 1 ? s->sharding.tp_size : 1;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        size_t rows = param_used_rows(p, config), cols = param_cols(p, config), scales = slice_scales(p, config, t);
        bool flip = param_specs[id].transposed, vector = param_specs[id].rows == DIM_ONE;
        size_t shape[2] = {flip ? cols : rows, flip ? rows : cols};
        if (vector) { shape[0] = cols; }
        if (family->of_blocks) {
            vector = scale_slices(p, t) == 1;
            shape[0] = vector ? scales : (size_t)t, shape[1] = scales;
        }
        for (int layer = 0; layer < param_layers(p, config); layer++) {
            param_name(name, sizeof name, p, layer);
            snprintf(full, sizeof full, "%s%s", family->prefix, name);
            safetensors_declare(w, full, family->dtype, vector ? 1 : 2, shape);
        }
    }
}

// host (range.count, or a number for each block of those) = the family's numbers of a range, as the file has them
static inline void family_fetch(void *host, const TensorFamily *family, ParamRange range, const Device *device) {
    size_t size = dtype_size(family->dtype), count = range.count;
    if (!family->remainder) {
        size_t at = *family->prefix ? range.state : range.params;
        if (family->of_blocks) { at /= MOMENT_BLOCK, count = moment_blocks(count); }
        device->download(host, (const unsigned char *)family->block + at * size, count * size);
        return;
    }
    floatX *weights = (floatX *)xmalloc(count * sizeof *weights);
    int16_t *remainder = (int16_t *)xmalloc(count * sizeof *remainder);
    device->download(weights, (const floatX *)family->block + range.params, count * sizeof *weights);
    device->download(remainder, family->remainder + range.state, count * sizeof *remainder);
    for (size_t i = 0; i < count; i++) { ((real *)host)[i] = joined_real(weights[i], remainder[i]); }
    free(weights);
    free(remainder);
}

// writes what a range, host (range.count), has of a rectangle of its slice
static inline void write_transposed(SafeTensorsWriter *w, int index, const unsigned char *host, ParamRange range,
                                    const Slice *slice, const Rectangle *rectangle, size_t size) {
    size_t cols = rectangle->cols;
    ColumnRange *runs = column_ranges(range, slice, rectangle);
    unsigned char *columns = (unsigned char *)xmalloc(runs[cols].before * size);
#pragma omp parallel for schedule(static)
    for (size_t c = 0; c < cols; c++) {
        for (size_t i = 0; i < runs[c].count; i++) {
            memcpy(columns + (runs[c].before + i) * size, host + (runs[c].first + i * slice->cols) * size, size);
        }
    }
    for (size_t c = 0, end; c < cols; c = end) {
        end = columns_end(runs, c, cols);
        safetensors_write(w, index, runs[c].stored * size, columns + runs[c].before * size,
                          (runs[end].before - runs[c].before) * size);
    }
    free(columns);
    free(runs);
}

// writes a range of a tensor, host (range.count)
static inline void write_piece(SafeTensorsWriter *w, int index, const unsigned char *host, ParamRange range,
                               const Slice *slice, bool transposed, size_t size) {
    for (int i = 0; transposed && i < slice->num_rectangles; i++) {
        write_transposed(w, index, host, range, slice, &slice->rectangles[i], size);
    }
    for (size_t i = 0; !transposed && i < slice_num_ranges(slice); i++) {
        SliceRange in_slice = slice_range_within(slice_range(slice, i), range.offset, range.count);
        if (in_slice.count == 0) { continue; }
        safetensors_write(w, index, in_slice.global * size, host + (in_slice.local - range.offset) * size,
                          in_slice.count * size);
    }
}

// Writes this rank's chunk of the family's tensors, whose first index is `index`, in the order they were declared. What
// every slice has is written by the first.
static inline void family_write(SafeTensorsWriter *w, const TensorFamily *family, const ModelState *s, int index) {
    ParamLayout layout = param_layout_sharded(s->config, s->sharding);
    size_t size = dtype_size(family->dtype);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        bool split = param_split(p) != SPLIT_NONE && s->sharding.tp_size > 1,
             others = !split && s->sharding.tp_rank > 0;
        size_t used = family->of_blocks && split ? param_count(&layout, p) : param_used(&layout, p);
        size_t scales_before = split ? (size_t)s->sharding.tp_rank * moment_blocks(used) : 0;
        for (int layer = 0; layer < param_layers(p, s->config); layer++, index++) {
            ParamRange range = param_owned_range(&layout, p, layer, used), chunk = {range.offset, 0, 0, 0};
            while (!others && next_chunk(&chunk, range, p)) {
                unsigned char *host = (unsigned char *)xmalloc(chunk.count * size);
                family_fetch(host, family, chunk, s->device);
                if (family->of_blocks) {
                    size_t first = scales_before + chunk.offset / MOMENT_BLOCK;
                    safetensors_write(w, index, first * size, host, moment_blocks(chunk.count) * size);
                } else {
                    write_piece(w, index, host, chunk, &layout.slice[id], param_specs[id].transposed, size);
                }
                free(host);
            }
        }
    }
}

static inline void families_begin(SafeTensorsWriter *w, const TensorFamily *families, int count, const ModelState *s) {
    for (int i = 0; i < count; i++) {
        if (families[i].block) { family_declare(w, &families[i], s); }
    }
    safetensors_begin(w);
}

// Opens the file on every rank: the first makes it, the others come when it is there.
static inline SafeTensorsWriter families_open(const char *path, const TensorFamily *families, int count,
                                              const ModelState *s, Fault *fault) {
    SafeTensorsWriter w;
    memset(&w, 0, sizeof w);
    if (is_first_rank(s)) {
        w = safetensors_create(path);
        w.shared = s->world && s->world->size > 1;
        families_begin(&w, families, count, s);
    }
    *fault = agreed_fault(w.error, s->world);
    if (!is_first_rank(s)) {
        w = safetensors_join(path);
        families_begin(&w, families, count, s);
    }
    return w;
}

// writes the families that the model has into one file, all ranks together
static inline Fault families_save(const char *path, const TensorFamily *families, int count, const ModelState *s) {
    Fault fault;
    SafeTensorsWriter w = families_open(path, families, count, s, &fault);
    for (int i = 0, index = 0; i < count; i++) {
        if (!families[i].block) { continue; }
        if (!fault.error) { family_write(&w, &families[i], s, index); }
        index += num_param_tensors(s->config);
    }
    int finished = safetensors_finish(&w);
    return fault.error ? fault : agreed_fault(finished, s->world);
}

// ---- reading

// a tensor of a file, whose elements are read as numbers of `real`, or as the codes that they are
typedef struct {
    const SafeTensors *file;
    const SafeTensor *tensor;
    bool codes, transposed;
} StoredTensor;

static inline StoredTensor stored_tensor(const ModelFile *model, const char *prefix, ParamId id, int layer) {
    const SafeTensor *t = model_tensor(model, prefix, id, layer);
    StoredTensor stored = {&model->file, t, false, param_specs[id].transposed};
    return stored;
}

static inline size_t stored_size(const StoredTensor *t) { return t->codes ? 1 : sizeof(real); }

// out (count) = elements first.. in the file's order
static inline void read_stored(const StoredTensor *t, size_t first, void *out, size_t count) {
    if (t->codes) {
        safetensors_read(t->file, t->tensor, first, out, count);
    } else {
        safetensors_read_real(t->file, t->tensor, first, (real *)out, count);
    }
}

// The mirror of write_transposed: out (range.count) gets what is in the rectangle.
static inline void read_transposed(const StoredTensor *t, unsigned char *out, ParamRange range, const Slice *slice,
                                   const Rectangle *rectangle) {
    size_t cols = rectangle->cols, size = stored_size(t);
    ColumnRange *runs = column_ranges(range, slice, rectangle);
    unsigned char *columns = (unsigned char *)xmalloc(runs[cols].before * size);
    for (size_t c = 0, end; c < cols; c = end) {
        end = columns_end(runs, c, cols);
        read_stored(t, runs[c].stored, columns + runs[c].before * size, runs[end].before - runs[c].before);
    }
#pragma omp parallel for schedule(static)
    for (size_t c = 0; c < cols; c++) {
        for (size_t i = 0; i < runs[c].count; i++) {
            memcpy(out + (runs[c].first + i * slice->cols) * size, columns + (runs[c].before + i) * size, size);
        }
    }
    free(columns);
    free(runs);
}

// A range of a tensor in our orientation, zeros where it is inert; to be freed. No other bytes of the file are read.
static inline void *read_piece(const StoredTensor *t, ParamRange range, const Slice *slice) {
    size_t size = stored_size(t);
    unsigned char *out = (unsigned char *)xcalloc(range.count, size);
    for (int i = 0; t->transposed && i < slice->num_rectangles; i++) {
        read_transposed(t, out, range, slice, &slice->rectangles[i]);
    }
    for (size_t i = 0; !t->transposed && i < slice_num_ranges(slice); i++) {
        SliceRange in_slice = slice_range_within(slice_range(slice, i), range.offset, range.count);
        if (in_slice.count > 0) {
            read_stored(t, in_slice.global, out + (in_slice.local - range.offset) * size, in_slice.count);
        }
    }
    return out;
}

// what is done with a chunk of what this rank keeps of a tensor, for the blocks of `to`
typedef void (*TensorSink)(void *to, const real *numbers, ParamRange chunk, const Device *device);

// every tensor named prefix + name into the sink, one after another
static inline void tensors_load(const ModelFile *model, const char *prefix, const ParamLayout *layout, TensorSink sink,
                                void *to, const Device *device) {
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        for (int layer = 0; layer < param_layers(p, &model->config); layer++) {
            StoredTensor stored = stored_tensor(model, prefix, p, layer);
            ParamRange range = param_updated_range(layout, p, layer, param_used(layout, p)),
                       chunk = {range.offset, 0, 0, 0};
            while (next_chunk(&chunk, range, p)) {
                real *numbers = (real *)read_piece(&stored, chunk, &layout->slice[id]);
                sink(to, numbers, chunk, device);
                free(numbers);
            }
        }
    }
}

static inline void block_sink(void *to, const real *numbers, ParamRange chunk, const Device *device) {
    device->upload((real *)to + chunk.state, numbers, chunk.count * sizeof(real));
}

// fills a whole block of real from the tensors named prefix + name
static inline void block_load(const ModelFile *model, const char *prefix, real *block, const Device *device) {
    ParamLayout layout = param_layout(&model->config);
    tensors_load(model, prefix, &layout, block_sink, block, device);
}

// The weights (range.count) of a range of the state: params are rounded half up where a master or a remainder of them
// is kept, else to nearest even.
static inline void weights_store(const OptimizerState *o, const real *numbers, ParamRange range, const Device *device) {
    bool kept = o->master || o->remainder;
    size_t count = range.count;
    floatX *weights = (floatX *)xmalloc(count * sizeof *weights);
    for (size_t i = 0; i < count; i++) { weights[i] = kept ? to_floatX_half_up(numbers[i]) : to_floatX(numbers[i]); }
    device->upload(o->params + range.params, weights, count * sizeof *weights);
    free(weights);
    if (o->master) { device->upload(o->master + range.state, numbers, count * sizeof *numbers); }
    if (!o->remainder) { return; }
    int16_t *remainder = (int16_t *)xmalloc(count * sizeof *remainder);
    for (size_t i = 0; i < count; i++) { remainder[i] = remainder_of(numbers[i]); }
    device->upload(o->remainder + range.state, remainder, count * sizeof *remainder);
    free(remainder);
}

static inline void weights_sink(void *to, const real *numbers, ParamRange chunk, const Device *device) {
    weights_store((const OptimizerState *)to, numbers, chunk, device);
}

// fills what this rank keeps of params, and of their masters or remainders, from the tensors named prefix + name
static inline void weights_load(const ModelFile *model, const char *prefix, const ModelState *to) {
    ParamLayout layout = param_layout_sharded(&model->config, to->sharding);
    tensors_load(model, prefix, &layout, weights_sink, (void *)&to->optimizer, to->device);
}

// ---- moments, in three types in the file and three in the run

// m or v of a run
typedef struct {
    void *block;
    DType dtype;
    float *scales;  // of DT_U8
    bool is_v;
} Moments;

// to nearest, as a conversion is made once; scales (moment_blocks(count))
static inline void codes_encode(uint8_t *codes, float *scales, const real *numbers, size_t count, bool is_v) {
    uint16_t nearest[MOMENT_BLOCK];
    for (int i = 0; i < MOMENT_BLOCK; i++) { nearest[i] = NEAREST_BITS; }
    for (size_t i = 0; i < count; i += MOMENT_BLOCK) {
        size_t n = count - i < MOMENT_BLOCK ? count - i : (size_t)MOMENT_BLOCK;
        scales[i / MOMENT_BLOCK] = is_v ? v_encode_block(codes + i, numbers + i, n, nearest)
                                        : m_encode_block(codes + i, numbers + i, n, nearest);
    }
}

// codes to element `at` of the block, and their scales; `at` is a multiple of MOMENT_BLOCK
static inline void codes_upload(const uint8_t *codes, const float *scales, const Moments *to, size_t at, size_t count,
                                const Device *device) {
    device->upload((uint8_t *)to->block + at, codes, count);
    device->upload(to->scales + at / MOMENT_BLOCK, scales, moment_blocks(count) * sizeof *scales);
}

// `count` moments at element `at` of the block, as the run has them
static inline void moments_store(const Moments *to, const real *numbers, size_t at, size_t count,
                                 const Device *device) {
    if (to->dtype == DT_U8) {
        uint8_t *codes = (uint8_t *)xmalloc(count);
        float *scales = (float *)xmalloc(moment_blocks(count) * sizeof *scales);
        codes_encode(codes, scales, numbers, count, to->is_v);
        codes_upload(codes, scales, to, at, count, device);
        free(scales);
        free(codes);
    } else if (to->dtype == DT_BF16) {
        bf16 *rounded = (bf16 *)xmalloc(count * sizeof *rounded);
        for (size_t i = 0; i < count; i++) { rounded[i] = float_to_bf16((float)numbers[i]); }
        device->upload((bf16 *)to->block + at, rounded, count * sizeof *rounded);
        free(rounded);
    } else {
        device->upload((real *)to->block + at, numbers, count * sizeof *numbers);
    }
}

enum { SCALES_AT_ONCE = 64 };

// the scales of a tensor's codes, of one slice after the other; those of [first, first + count) were read
typedef struct {
    const SafeTensor *tensor;
    int slices;
    size_t of_slice;  // scales
    size_t first, count;
    float read[SCALES_AT_ONCE];
} StoredScales;

static inline StoredScales stored_scales(const ModelFile *file, const char *prefix, ParamId id, int layer) {
    char scales_prefix[16], name[NAME_LENGTH];
    snprintf(scales_prefix, sizeof scales_prefix, "%c_scales.", prefix[0]);
    param_name(name, sizeof name, id, layer);
    const SafeTensor *t = model_find(file, scales_prefix, name);
    int dims = t ? t->num_dims : 0;
    size_t rows = t && dims == 2 ? t->shape[0] : 1;
    bool split = rows > 1 && rows <= MAX_CONFIG_NUMBER;
    StoredScales scales;
    memset(&scales, 0, sizeof scales);
    scales.tensor = t;
    scales.slices = split ? (int)rows : 1;
    scales.of_slice = slice_scales(id, &file->config, scales.slices);
    if (!t || t->dtype != DT_F32 || dims != (split ? 2 : 1) || scale_slices(id, scales.slices) != scales.slices ||
        t->shape[dims - 1] != scales.of_slice) {
        input_error("'%s' has %s tensor %s%s, expected %zu numbers in F32, the scales of the codes in %s%s; take the "
                    "checkpoint before it",
                    file->file.path, t ? "another" : "no", scales_prefix, name, scales.of_slice, prefix, name);
    }
    return scales;
}

// one tensor of moments in a file
typedef struct {
    const ModelFile *file;
    ParamId id;
    StoredTensor stored;
    StoredScales scales;  // of codes
} StoredMoments;

// the scale of element `local` of a slice
static inline float scale_of(StoredMoments *t, int slice, size_t local) {
    StoredScales *s = &t->scales;
    size_t i = (size_t)slice * s->of_slice + local / MOMENT_BLOCK;
    if (i < s->first || i >= s->first + s->count) {
        size_t left = (size_t)s->slices * s->of_slice - i;
        s->first = i, s->count = left < SCALES_AT_ONCE ? left : (size_t)SCALES_AT_ONCE;
        safetensors_read(&t->file->file, s->tensor, i * sizeof(float), s->read, s->count * sizeof(float));
    }
    return s->read[i - s->first];
}

// numbers (count) = what the codes of elements first.. of the whole tensor stand for
static inline void codes_decode(real *numbers, const uint8_t *codes, size_t first, size_t count, StoredMoments *t,
                                bool is_v) {
    for (size_t done = 0, n; done < count; done += n) {
        Range local;
        int slice = slice_of(&local, t->id, &t->file->config, t->scales.slices, first + done);
        size_t of_block = MOMENT_BLOCK - local.offset % MOMENT_BLOCK;
        float scale = scale_of(t, slice, local.offset);
        n = count - done < of_block ? count - done : of_block;
        n = n < local.count ? n : local.count;
        if (is_v) {
            v_decode_block(numbers + done, codes + done, n, scale);
        } else {
            m_decode_block(numbers + done, codes + done, n, scale);
        }
    }
}

// a chunk's codes become numbers, and those what the run has
static inline void codes_convert(const uint8_t *codes, ParamRange chunk, StoredMoments *t, const Slice *slice,
                                 const Moments *to, const Device *device) {
    real *numbers = (real *)xcalloc(chunk.count, sizeof *numbers);
    for (size_t i = 0; i < slice_num_ranges(slice); i++) {
        SliceRange in_slice = slice_range_within(slice_range(slice, i), chunk.offset, chunk.count);
        size_t at = in_slice.local - chunk.offset;
        if (in_slice.count > 0) {
            codes_decode(numbers + at, codes + at, in_slice.global, in_slice.count, t, to->is_v);
        }
    }
    moments_store(to, numbers, chunk.state, chunk.count, device);
    free(numbers);
}

// a chunk's codes stay what they are: so do their scales, which are those of slice `slice`
static inline void codes_keep(const uint8_t *codes, ParamRange chunk, const StoredMoments *t, int slice,
                              const Moments *to, const Device *device) {
    size_t first = (size_t)slice * t->scales.of_slice + chunk.offset / MOMENT_BLOCK, count = moment_blocks(chunk.count);
    float *scales = (float *)xmalloc(count * sizeof *scales);
    safetensors_read(&t->file->file, t->scales.tensor, first * sizeof *scales, scales, count * sizeof *scales);
    codes_upload(codes, scales, to, chunk.state, chunk.count, device);
    free(scales);
}

// What is kept of one tensor of moments. Codes stay the codes they are, if that is what the run has, in as many slices:
// they are its bits.
static inline void moments_load_tensor(StoredMoments *t, ParamRange range, const Moments *to, const ParamLayout *layout,
                                       const Device *device) {
    const Slice *slice = &layout->slice[t->id];
    int slices = scale_slices(t->id, layout->sharding.tp_size);
    bool coded = t->stored.codes, kept = coded && to->dtype == DT_U8 && t->scales.slices == slices;
    ParamRange chunk = {range.offset, 0, 0, 0};
    while (next_chunk(&chunk, range, t->id)) {
        void *elements = read_piece(&t->stored, chunk, slice);
        if (kept) {
            codes_keep((const uint8_t *)elements, chunk, t, slices > 1 ? layout->sharding.tp_rank : 0, to, device);
        } else if (coded) {
            codes_convert((const uint8_t *)elements, chunk, t, slice, to, device);
        } else {
            moments_store(to, (const real *)elements, chunk.state, chunk.count, device);
        }
        free(elements);
    }
}

// fills what this rank keeps of m or v from the tensors named prefix + name
static inline void moments_load(const ModelFile *file, const char *prefix, const Moments *to, const ParamLayout *layout,
                                const Device *device) {
    StoredMoments t;
    memset(&t, 0, sizeof t);
    t.file = file;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        t.id = (ParamId)id;
        for (int layer = 0; layer < param_layers(t.id, &file->config); layer++) {
            t.stored = stored_tensor(file, prefix, t.id, layer);
            t.stored.codes = t.stored.tensor->dtype == DT_U8;
            if (t.stored.codes) { t.scales = stored_scales(file, prefix, t.id, layer); }
            moments_load_tensor(&t, param_updated_range(layout, t.id, layer, param_used(layout, t.id)), to, layout,
                                device);
        }
    }
}
