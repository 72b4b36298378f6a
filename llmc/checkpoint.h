/*
Checkpoints: a folder RUN/step_00000100 with
  model.safetensors + config.json   what Hugging Face's GPT-2 reads (Conv1D weights are (in, out) there, (out, in) here)
  optimizer.safetensors             m.<name>, v.<name>, and master.<name> where weights are rounded from masters
  state.json                        the step, the data position, the guards: what else a bit-exact resume needs
Masters are F32, also those that a run keeps as 16 bits beside the weights. Moments are as the run has them: F32, BF16,
or codes (moments.h) in U8 with m_scales.<name> and v_scales.<name> beside them, a scale in F32 for each 128 elements,
counted in (out, in) order. What a run finds otherwise than it keeps it is converted.
It is written aside as step_00000100.tmp, synced and renamed: it exists whole or not at all.
Of several processes each writes the elements that it owns (layout.h), and reads what it keeps: the files are the same
whatever their number, -z and -tp. Only scales are those of 128 neighbours in a process's own slice: with -tp t those of
a tensor that is split are (t, scales of a slice), and a run with another t rounds its moments to 8 bits again.
defines: ModelState, checkpoint_save, checkpoint_bytes, checkpoint_latest, checkpoint_prune, ModelFile, model_open,
         block_load, weights_load, weights_store, model_close, checkpoint_load, checkpoint_load_state, json_whole,
         read_json, try_read_json, write_json
*/
#pragma once
#include "check.h"
#include "comm.h"
#include "device.h"
#include "moments.h"
#include "layout.h"
#include "safetensors.h"
#include <cjson/cJSON.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_LENGTH = 128, MAX_CONFIG_NUMBER = 1 << 24 };

// a model on its device: blocks laid out by param_layout_among
typedef struct {
    const GPT2Config *config;
    const Device *device;
    OptimizerState optimizer;
    Shards shards;  // of several processes, which this is and what it keeps
    Comm *world;    // all that save together; NULL: a process alone
} ModelState;

// the largest of all ranks' errors: what one could not do none has done
static inline int agreed_error(int error, const ModelState *s) {
    return s->world ? (int)comm_max(error, s->world) : error;
}

static inline bool is_first_rank(const ModelState *s) { return !s->world || s->world->rank == 0; }

// how many slices have scales of their own in a checkpoint of a model in t slices, and how many scales each has
static inline int scale_slices(ParamId id, int t) { return param_split(id) == SPLIT_NONE ? 1 : t; }
static inline size_t slice_scales(ParamId id, const GPT2Config *c, int t) {
    Slice s = param_slice(id, c, t, 0);
    return moment_blocks(scale_slices(id, t) == 1 ? param_used_rows(id, c) * param_cols(id, c) : s.rows * s.cols);
}

// one family of tensors in a file: "m." and its block. Without a prefix it is the parameters'
typedef struct {
    const char *prefix;
    const void *block;         // NULL: this model does not have it
    const int16_t *remainder;  // NULL, or what the block, params, lacks of the masters that go to the file
    DType dtype;               // in the file
    bool of_blocks;            // a number for each MOMENT_BLOCK elements of a tensor, not for each element
} TensorFamily;

// out (cols,rows) = transpose of in (rows,cols), elements of `size` bytes
static inline void transpose_bytes(unsigned char *out, const unsigned char *in, size_t rows, size_t cols, size_t size) {
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) { memcpy(out + (c * rows + r) * size, in + (r * cols + c) * size, size); }
    }
}

// ---- writing

static inline void family_declare(SafeTensorsWriter *w, const TensorFamily *family, const ModelState *s) {
    const GPT2Config *config = s->config;
    char name[NAME_LENGTH], full[2 * NAME_LENGTH];
    int t = s->shards.slices > 1 ? s->shards.slices : 1;
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

// host (piece.count, or a number for each block of those) = the family's numbers of a piece, as the file has them
static inline void family_fetch(void *host, const TensorFamily *family, ParamPiece piece, const Device *device) {
    size_t size = dtype_size(family->dtype), count = piece.count;
    if (!family->remainder) {
        size_t at = *family->prefix ? piece.state : piece.params;
        if (family->of_blocks) { at /= MOMENT_BLOCK, count = moment_blocks(count); }
        device->download(host, (const unsigned char *)family->block + at * size, count * size);
        return;
    }
    floatX *weights = (floatX *)xmalloc(count * sizeof *weights);
    int16_t *remainder = (int16_t *)xmalloc(count * sizeof *remainder);
    device->download(weights, (const floatX *)family->block + piece.params, count * sizeof *weights);
    device->download(remainder, family->remainder + piece.state, count * sizeof *remainder);
    for (size_t i = 0; i < count; i++) { ((real *)host)[i] = joined_real(weights[i], remainder[i]); }
    free(weights);
    free(remainder);
}

// how many elements before `element` of a tensor with so many columns are in column `col`
static inline size_t rows_before(size_t element, size_t col, size_t cols) {
    return element > col ? (element - col + cols - 1) / cols : 0;
}

// those rows of column `col` of a slice's rectangle, counted from its first, that lie in a piece of the tensor
typedef struct {
    size_t first, count;
} ColumnRows;

static inline ColumnRows column_rows(const Slice *slice, const SlicePiece *rectangle, ParamPiece piece, size_t col) {
    size_t row = rectangle->local / slice->cols, c = rectangle->local % slice->cols + col, end = row + rectangle->rows;
    size_t from = rows_before(piece.first, c, slice->cols);
    size_t to = rows_before(piece.first + piece.count, c, slice->cols);
    from = from > row ? from : row, to = to < end ? to : end;
    ColumnRows rows = {from - row, from < to ? to - from : 0};
    return rows;
}

// Writes what a piece of a tensor, host (piece.count), has of a rectangle of the slice, where the file has the tensor
// the other way round: a column is a run there. Columns that follow each other, as all do where the piece is the whole
// tensor, are written at once.
static inline void write_transposed(SafeTensorsWriter *w, int index, const unsigned char *host, ParamPiece piece,
                                    const Slice *slice, const SlicePiece *rectangle, size_t size) {
    size_t cols = rectangle->cols, global_rows = slice->global_rows;
    size_t row = rectangle->global / slice->global_cols, col = rectangle->global % slice->global_cols;
    size_t *begins = (size_t *)xmalloc((cols + 1) * sizeof *begins);  // of the columns, among the elements written
    unsigned char *flipped = (unsigned char *)xmalloc(piece.count * size);
    begins[0] = 0;
    for (size_t c = 0; c < cols; c++) { begins[c + 1] = begins[c] + column_rows(slice, rectangle, piece, c).count; }
#pragma omp parallel for schedule(static)
    for (size_t c = 0; c < cols; c++) {
        ColumnRows rows = column_rows(slice, rectangle, piece, c);
        const unsigned char *from = host + (rectangle->local + rows.first * slice->cols + c - piece.first) * size;
        for (size_t i = 0; i < rows.count; i++) {
            memcpy(flipped + (begins[c] + i) * size, from + i * slice->cols * size, size);
        }
    }
    for (size_t c = 0, next; c < cols; c = next) {
        ColumnRows rows = column_rows(slice, rectangle, piece, c);
        for (next = c + 1; next < cols && rows.first == 0 && begins[next] - begins[c] == (next - c) * global_rows &&
                           column_rows(slice, rectangle, piece, next).first == 0;) {
            next++;
        }
        safetensors_write(w, index, ((col + c) * global_rows + row + rows.first) * size, flipped + begins[c] * size,
                          (begins[next] - begins[c]) * size);
    }
    free(flipped);
    free(begins);
}

// Writes a piece of a tensor, host (piece.count).
static inline void write_piece(SafeTensorsWriter *w, int index, const unsigned char *host, ParamPiece piece,
                               const Slice *slice, bool transposed, size_t size) {
    for (int i = 0; transposed && i < slice->num_pieces; i++) {
        write_transposed(w, index, host, piece, slice, &slice->pieces[i], size);
    }
    for (size_t i = 0; !transposed && i < slice_num_runs(slice); i++) {
        SliceRun run = slice_run_within(slice_run(slice, i), piece.first, piece.count);
        if (run.count == 0) { continue; }
        safetensors_write(w, index, run.global * size, host + (run.local - piece.first) * size, run.count * size);
    }
}

// Writes this rank's part of the family's tensors, whose first index is `index`, in the order they were declared. What
// every slice has is written by the first.
static inline void family_write(SafeTensorsWriter *w, const TensorFamily *family, const ModelState *s, int index) {
    ParamLayout layout = param_layout_among(s->config, s->shards);
    size_t size = dtype_size(family->dtype);
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        bool split = param_split(p) != SPLIT_NONE && s->shards.slices > 1, others = !split && s->shards.slice > 0;
        size_t used = family->of_blocks && split ? param_count(&layout, p) : param_used(&layout, p);
        size_t scales_before = split ? (size_t)s->shards.slice * moment_blocks(used) : 0;
        unsigned char *host = (unsigned char *)xmalloc(used * size);
        for (int layer = 0; layer < param_layers(p, s->config); layer++, index++) {
            ParamPiece piece = param_own_piece(&layout, p, layer, used);
            if (piece.count == 0 || others) { continue; }
            family_fetch(host, family, piece, s->device);
            if (family->of_blocks) {
                size_t first = scales_before + piece.first / MOMENT_BLOCK;
                safetensors_write(w, index, first * size, host, moment_blocks(piece.count) * size);
            } else {
                write_piece(w, index, host, piece, &layout.slice[id], param_specs[id].transposed, size);
            }
        }
        free(host);
    }
}

static inline void families_begin(SafeTensorsWriter *w, const TensorFamily *families, int count, const ModelState *s) {
    for (int i = 0; i < count; i++) {
        if (families[i].block) { family_declare(w, &families[i], s); }
    }
    safetensors_begin(w);
}

// Opens the file on every rank: the first makes it, the others come when it is there. *error: 0 or an errno, agreed.
static inline SafeTensorsWriter families_open(const char *path, const TensorFamily *families, int count,
                                              const ModelState *s, int *error) {
    SafeTensorsWriter w;
    memset(&w, 0, sizeof w);
    if (is_first_rank(s)) {
        w = safetensors_create(path);
        w.shared = s->world && s->world->size > 1;
        families_begin(&w, families, count, s);
    }
    *error = agreed_error(w.error, s);
    if (!is_first_rank(s)) {
        w = safetensors_join(path);
        families_begin(&w, families, count, s);
    }
    return w;
}

// writes the families that the model has into one file; 0 or an errno, the same on every rank
static inline int families_save(const char *path, const TensorFamily *families, int count, const ModelState *s) {
    int error;
    SafeTensorsWriter w = families_open(path, families, count, s, &error);
    for (int i = 0, index = 0; i < count; i++) {
        if (!families[i].block) { continue; }
        if (!error) { family_write(&w, &families[i], s, index); }
        index += num_param_tensors(s->config);
    }
    int finished = safetensors_finish(&w);
    return agreed_error(error ? error : finished, s);
}

// writes and syncs a small text file; 0 or an errno
static inline int write_text_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file) { return errno; }
    bool written = fputs(text, file) >= 0 && fputc('\n', file) >= 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    int error = written ? 0 : errno;
    if (fclose(file) != 0 && !error) { error = errno; }
    return error;
}

// Writes a small JSON file: aside, synced, renamed, so that PATH holds all of it or what it held before. 0 or an errno.
static inline int write_json(const char *path, const cJSON *json) {
    char aside[PATH_LENGTH], *text = cJSON_Print(json);
    if (!text) { return ENOMEM; }
    format_path(aside, "%s.tmp", path);
    int error = write_text_file(aside, text);
    if (!error && rename(aside, path) != 0) { error = errno; }
    if (error) { unlink(aside); }
    free(text);
    return error;
}

// the config.json that Hugging Face's GPT2LMHeadModel reads
static inline cJSON *model_config_json(const GPT2Config *c) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model_type", "gpt2");
    cJSON_AddItemToObject(json, "architectures", cJSON_CreateArray());
    cJSON_AddItemToArray(cJSON_GetObjectItem(json, "architectures"), cJSON_CreateString("GPT2LMHeadModel"));
    const struct {
        const char *key;
        int value;
    } numbers[] = {{"vocab_size", c->vocab_size},       {"n_positions", c->max_seq_len},
                   {"n_ctx", c->max_seq_len},           {"n_embd", c->channels},
                   {"n_layer", c->num_layers},          {"n_head", c->num_heads},
                   {"bos_token_id", c->vocab_size - 1}, {"eos_token_id", c->vocab_size - 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        cJSON_AddNumberToObject(json, numbers[i].key, numbers[i].value);
    }
    cJSON_AddStringToObject(json, "activation_function", "gelu_new");
    cJSON_AddNumberToObject(json, "layer_norm_epsilon", 1e-5);
    const char *const no_dropout[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
    for (int i = 0; i < 3; i++) { cJSON_AddNumberToObject(json, no_dropout[i], 0); }
    cJSON_AddStringToObject(json, "torch_dtype", DT_FLOATX == DT_BF16 ? "bfloat16" : "float32");
    return json;
}

// deletes a flat folder and the files in it
static inline void remove_folder(const char *path) {
    DIR *dir = opendir(path);
    if (!dir) { return; }
    char file[PATH_LENGTH];
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) { continue; }
        format_path(file, "%s/%s", path, entry->d_name);
        unlink(file);
    }
    closedir(dir);
    rmdir(path);
}

static inline int sync_folder(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) { return errno; }
    int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error;
}

// config.json and state.json; 0 or an errno
static inline int checkpoint_write_json(const char *folder, const ModelState *s, const cJSON *state) {
    char path[PATH_LENGTH];
    cJSON *config = model_config_json(s->config);
    format_path(path, "%s/config.json", folder);
    int error = write_json(path, config);
    cJSON_Delete(config);
    if (error) { return error; }
    format_path(path, "%s/state.json", folder);
    error = write_json(path, state);
    return error ? error : sync_folder(folder);
}

// the four files of a checkpoint into `folder`; 0 or an errno, the same on every rank
static inline int checkpoint_write_files(const char *folder, const ModelState *s, const cJSON *state) {
    char path[PATH_LENGTH];
    const OptimizerState *o = &s->optimizer;
    const TensorFamily model = {"", o->params, NULL, DT_FLOATX, false};
    const void *masters = o->remainder ? (const void *)o->params : o->master;
    const TensorFamily optimizer[] = {{"m.", o->m, NULL, o->moments, false},
                                      {"v.", o->v, NULL, o->moments, false},
                                      {"m_scales.", o->m_scales, NULL, DT_F32, true},
                                      {"v_scales.", o->v_scales, NULL, DT_F32, true},
                                      {"master.", masters, o->remainder, DT_REAL, false}};
    format_path(path, "%s/model.safetensors", folder);
    int error = families_save(path, &model, 1, s);
    if (error) { return error; }
    format_path(path, "%s/optimizer.safetensors", folder);
    error = families_save(path, optimizer, 5, s);
    if (error) { return error; }
    return agreed_error(is_first_rank(s) ? checkpoint_write_json(folder, s, state) : 0, s);
}

static inline void checkpoint_path(char *path, const char *run_dir, long long step) {
    format_path(path, "%s/step_%08lld", run_dir, step);
}

// the step of "step_00000100" with `suffix` after it, -1 for any other name
static inline long long checkpoint_step(const char *name, const char *suffix) {
    long long step;
    char same[32];
    if (sscanf(name, "step_%18lld", &step) != 1 || step < 0) { return -1; }
    snprintf(same, sizeof same, "step_%08lld%s", step, suffix);
    return strcmp(name, same) == 0 ? step : -1;
}

// deletes what saves and prunes that were killed have left: the folders step_NNNNNNNN.tmp
static inline void remove_unfinished(const char *run_dir) {
    DIR *dir = opendir(run_dir);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char path[PATH_LENGTH];
        if (checkpoint_step(entry->d_name, ".tmp") < 0) { continue; }
        format_path(path, "%s/%s", run_dir, entry->d_name);
        remove_folder(path);
    }
    if (dir) { closedir(dir); }
}

// Saves RUN/step_NNNNNNNN, which must not be there yet: a run saves a step once. All ranks of a run call it. A failure
// (a full disk, say) removes the half-written folder and stops with exit 1; the checkpoints before it are untouched.
static inline void checkpoint_save(const char *run_dir, long long step, const ModelState *s, const cJSON *state) {
    char folder[PATH_LENGTH], aside[PATH_LENGTH];
    bool first = is_first_rank(s);
    checkpoint_path(folder, run_dir, step);
    format_path(aside, "%s.tmp", folder);
    if (first) { remove_unfinished(run_dir); }
    int error = agreed_error(first && mkdir(aside, 0777) != 0 ? errno : 0, s);
    if (!error) { error = checkpoint_write_files(aside, s, state); }
    if (!error) { error = agreed_error(first && rename(aside, folder) != 0 ? errno : 0, s); }
    if (error && first) { remove_folder(aside); }
    if (error) {
        agreed_error(error, s);  // nobody ends the others before it is removed
        run_error(
            "could not save checkpoint '%s': %s; the checkpoints before it are whole: make room, then go on with -y 1",
            folder, strerror(error));
    }
    if (first) { sync_folder(run_dir); }
}

// what one checkpoint takes on disk, within a few KiB; has_master: masters or remainders
static inline size_t checkpoint_bytes(const GPT2Config *config, bool has_master, DType moments) {
    size_t count = num_parameters(config), master = has_master ? sizeof(real) : 0;
    size_t scales = moments == DT_U8 ? 2 * sizeof(float) * (count / MOMENT_BLOCK) : 0;
    return count * (sizeof(floatX) + 2 * dtype_size(moments) + master) + scales;
}

// ---- the checkpoints of a run

static inline int compare_steps(const void *a, const void *b) {
    long long x = *(const long long *)a, y = *(const long long *)b;
    return (x > y) - (x < y);
}

// the steps of all checkpoints of a run, ascending; mallocs *steps, returns their number
static inline int checkpoint_list(const char *run_dir, long long **steps) {
    int count = 0;
    *steps = NULL;
    DIR *dir = opendir(run_dir);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        long long step = checkpoint_step(entry->d_name, "");
        if (step < 0) { continue; }
        *steps = (long long *)xrealloc(*steps, (size_t)(count + 1) * sizeof **steps);
        (*steps)[count++] = step;
    }
    if (dir) { closedir(dir); }
    if (count > 1) { qsort(*steps, (size_t)count, sizeof **steps, compare_steps); }
    return count;
}

// the highest step saved, -1 if there is none
static inline long long checkpoint_latest(const char *run_dir) {
    long long *steps, latest = -1;
    int count = checkpoint_list(run_dir, &steps);
    if (count > 0) { latest = steps[count - 1]; }
    free(steps);
    return latest;
}

// deletes all but the last `keep` checkpoints (0: keep all); multiples of major_every (0: none) are never deleted
static inline void checkpoint_prune(const char *run_dir, int keep, int major_every) {
    long long *steps;
    int count = checkpoint_list(run_dir, &steps), minor = 0;
    for (int i = count - 1; i >= 0 && keep > 0; i--) {
        if (major_every > 0 && steps[i] % major_every == 0) { continue; }
        if (minor++ < keep) { continue; }
        char path[PATH_LENGTH], aside[PATH_LENGTH];
        checkpoint_path(path, run_dir, steps[i]);
        format_path(aside, "%s.tmp", path);
        if (rename(path, aside) == 0) { remove_folder(aside); }  // no half of it is ever seen under its name
    }
    free(steps);
}

// ---- reading

// the text of a whole file with a NUL after it, malloced; NULL if it cannot be read
static inline char *read_text_file(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) { return NULL; }
    size_t length = 0, room = 65536, got;
    char *text = (char *)xmalloc(room + 1);
    while ((got = fread(text + length, 1, room - length, file)) > 0) {
        length += got;
        if (length == room) { text = (char *)xrealloc(text, (room *= 2) + 1); }
    }
    fclose(file);
    text[length] = 0;
    return text;
}

// the JSON object of a whole file; NULL if there is no such file, or it cannot be read, or it holds none
static inline cJSON *try_read_json(const char *path) {
    char *text = read_text_file(path);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    free(text);
    if (!cJSON_IsObject(json)) {
        cJSON_Delete(json);
        return NULL;
    }
    return json;
}

// the JSON object of a whole file, NULL if there is no such file; input_error if it holds none
static inline cJSON *read_json(const char *path) {
    if (access(path, F_OK) != 0) { return NULL; }
    cJSON *json = try_read_json(path);
    if (!json) { input_error("'%s' is not a JSON object; it may have been cut short", path); }
    return json;
}

// a whole number of min..max (within 2^53, which a double holds exactly) that must be there
static inline int64_t json_whole(const cJSON *json, const char *key, double min, double max, const char *path) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!cJSON_IsNumber(item)) {
        input_error("'%s' has no number named \"%s\", which a GPT-2 checkpoint has", path, key);
    }
    double x = item->valuedouble;
    if (!(x >= min && x <= max) || x != floor(x)) {
        input_error("'%s' has %g as \"%s\", expected a whole number from %.0f to %.0f", path, x, key, min, max);
    }
    return (int64_t)x;
}

// an opened model: its shape, and the file its weights are in
typedef struct {
    GPT2Config config;
    SafeTensors file;
    const char *prefix;  // "" or "transformer."
} ModelFile;

static inline const SafeTensor *model_find(const ModelFile *model, const char *prefix, const char *name) {
    char full[2 * NAME_LENGTH];
    snprintf(full, sizeof full, "%s%s%s", prefix, model->prefix, name);
    return safetensors_find(&model->file, full);
}

// what Hugging Face's GPT-2 can vary and this trainer has one of; what the config.json leaves out is GPT-2's own
static inline void model_check_variant(const GPT2Config *c, const cJSON *json, const char *path) {
    char hidden[32];
    snprintf(hidden, sizeof hidden, "%lld", 4LL * c->channels);
    const char *const facts[][3] = {{"activation_function", "\"gelu_new\"", ""},
                                    {"layer_norm_epsilon", "1e-05", ""},
                                    {"n_inner", "null", hidden},
                                    {"scale_attn_weights", "true", ""},
                                    {"scale_attn_by_inverse_layer_idx", "false", ""},
                                    {"tie_word_embeddings", "true", ""}};
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, facts[i][0]);
        char *found = cJSON_PrintUnformatted(item);
        if (found && strcmp(found, facts[i][1]) != 0 && strcmp(found, facts[i][2]) != 0) {
            input_error("'%s' has %.60s as \"%s\", expected GPT-2's own, %s: this trainer has no other kind of GPT-2",
                        path, found, facts[i][0], facts[i][1]);
        }
        free(found);
    }
}

static inline void model_config_from_json(GPT2Config *c, const cJSON *json, const char *path) {
    const struct {
        const char *key;
        int *value;
    } numbers[] = {{"n_layer", &c->num_layers},
                   {"n_head", &c->num_heads},
                   {"n_embd", &c->channels},
                   {"n_positions", &c->max_seq_len},
                   {"vocab_size", &c->vocab_size}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        *numbers[i].value = (int)json_whole(json, numbers[i].key, 1, MAX_CONFIG_NUMBER, path);
    }
    config_set_vocab(c, c->vocab_size);
    model_check_variant(c, json, path);
}

// without a config.json the shape is read off the tensors; heads are taken as GPT-2's, 64 channels each
static inline void model_config_from_tensors(ModelFile *model) {
    const SafeTensor *wte = model_find(model, "", "wte.weight"), *wpe = model_find(model, "", "wpe.weight");
    if (!wte || !wpe || wte->num_dims != 2 || wpe->num_dims != 2) {
        input_error("'%s' holds no GPT-2: it has no 2-D wte.weight and wpe.weight", model->file.path);
    }
    GPT2Config *c = &model->config;
    config_set_vocab(c, (int)wte->shape[0]);
    c->max_seq_len = (int)wpe->shape[0];
    c->channels = (int)wte->shape[1];
    c->num_heads = c->channels % 64 == 0 ? c->channels / 64 : 0;
    char name[NAME_LENGTH];
    for (c->num_layers = 0;; c->num_layers++) {
        param_name(name, sizeof name, LN1W, c->num_layers);
        if (!model_find(model, "", name)) { break; }
    }
    if (c->num_heads == 0) {
        input_error("'%s': its %d channels are not heads of 64; put a config.json with n_head beside it",
                    model->file.path, c->channels);
    }
}

// the tensor of the file, which must be there in the shape the model's config gives it
static inline const SafeTensor *model_tensor(const ModelFile *model, const char *prefix, ParamId id, int layer) {
    size_t rows = param_used_rows(id, &model->config), cols = param_cols(id, &model->config);
    char name[NAME_LENGTH];
    param_name(name, sizeof name, id, layer);
    const SafeTensor *t = model_find(model, prefix, name);
    if (!t) { input_error("'%s' has no tensor %s%s, which this model needs", model->file.path, prefix, name); }
    bool flip = param_specs[id].transposed;
    size_t first = flip ? cols : rows, second = flip ? rows : cols;
    bool vector = param_specs[id].rows == DIM_ONE && t->num_dims == 1 && t->shape[0] == cols;
    bool table = t->num_dims == 2 && t->shape[0] == first && t->shape[1] == second;
    if (!vector && !table) {
        input_error("'%s': tensor %s%s has another shape than the model's %zu x %zu", model->file.path, prefix, name,
                    first, second);
    }
    return t;
}

// every tensor of the model's layers is there, and no further layer
static inline void model_check_tensors(const ModelFile *model) {
    const GPT2Config *c = &model->config;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, c); layer++) {
            model_tensor(model, "", (ParamId)id, layer);
        }
    }
    char name[NAME_LENGTH];
    param_name(name, sizeof name, FIRST_LAYER_PARAM, c->num_layers);
    if (model_find(model, "", name)) {
        input_error("'%s' has more layers than the %d of its config.json; give the config.json that belongs to it",
                    model->file.path, c->num_layers);
    }
}

static inline bool same_bytes(const SafeTensors *file, const SafeTensor *a, const SafeTensor *b) {
    unsigned char x[8192], y[sizeof x];
    uint64_t bytes = a->end - a->begin;
    bool same = a->dtype == b->dtype && bytes == b->end - b->begin;
    for (uint64_t at = 0, n; same && at < bytes; at += n) {
        n = bytes - at < sizeof x ? bytes - at : sizeof x;
        safetensors_read(file, a, at, x, n);
        safetensors_read(file, b, at, y, n);
        same = memcmp(x, y, n) == 0;
    }
    return same;
}

// Some files store the output's weights too, which are the token embeddings' once more; others have trained them apart.
static inline void model_check_tied(const ModelFile *model) {
    const SafeTensor *head = safetensors_find(&model->file, "lm_head.weight");
    if (head && !same_bytes(&model->file, head, model_find(model, "", "wte.weight"))) {
        input_error("'%s' has an lm_head.weight that is not its wte.weight, expected GPT-2's tied embeddings; give a "
                    "model that was trained with them",
                    model->file.path);
    }
}

// Opens a folder with model.safetensors, or such a file; reads config.json beside it. Stops if it is no whole GPT-2.
static inline ModelFile model_open(const char *path) {
    ModelFile model;
    struct stat info;
    char weights[PATH_LENGTH], config[PATH_LENGTH];
    memset(&model, 0, sizeof model);
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char *slash = strrchr(path, '/');
    int parent = slash ? (int)(slash - path) + 1 : 0;
    format_path(weights, folder ? "%s/model.safetensors" : "%s", path);
    format_path(config, "%.*s%sconfig.json", folder ? (int)strlen(path) : parent, path, folder ? "/" : "");
    model.file = safetensors_open(weights);
    model.prefix = "";
    if (!model_find(&model, "", "wte.weight")) { model.prefix = "transformer."; }
    cJSON *json = read_json(config);
    if (json) {
        model_config_from_json(&model.config, json, config);
        cJSON_Delete(json);
    } else {
        model_config_from_tensors(&model);
    }
    config_check(&model.config, weights);
    model_check_tensors(&model);
    model_check_tied(&model);
    return model;
}

static inline void model_close(ModelFile *model) { safetensors_close(&model->file); }

// one tensor into host (rows,cols) real in our orientation
static inline void model_read_tensor(const ModelFile *model, const char *prefix, ParamId id, int layer, real *host) {
    size_t rows = param_used_rows(id, &model->config), cols = param_cols(id, &model->config);
    const SafeTensor *t = model_tensor(model, prefix, id, layer);
    if (!param_specs[id].transposed) {
        safetensors_read_real(&model->file, t, 0, host, rows * cols);
        return;
    }
    real *stored = (real *)xmalloc(rows * cols * sizeof(real));
    safetensors_read_real(&model->file, t, 0, stored, rows * cols);
    transpose_bytes((unsigned char *)host, (const unsigned char *)stored, cols, rows, sizeof(real));
    free(stored);
}

// what is done with what this rank keeps of a tensor: the piece's numbers, in our orientation, for the blocks of `to`
typedef void (*TensorSink)(void *to, const real *numbers, ParamPiece piece, const Device *device);

// every tensor named prefix + name into the sink, one after another
static inline void tensors_load(const ModelFile *model, const char *prefix, const ParamLayout *layout, TensorSink sink,
                                void *to, const Device *device) {
    const GPT2Config *c = &model->config;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        real *host = (real *)xmalloc(param_used_rows(p, c) * param_cols(p, c) * sizeof(real));
        real *part = (real *)xmalloc(param_count(layout, p) * sizeof(real));
        for (int layer = 0; layer < param_layers(p, c); layer++) {
            ParamPiece piece = param_kept_piece(layout, p, layer, param_used(layout, p));
            if (piece.count == 0) { continue; }
            model_read_tensor(model, prefix, p, layer, host);
            slice_extract(part, host, &layout->slice[id], sizeof(real));
            sink(to, part + piece.first, piece, device);
        }
        free(part);
        free(host);
    }
}

static inline void block_sink(void *to, const real *numbers, ParamPiece piece, const Device *device) {
    device->upload((real *)to + piece.state, numbers, piece.count * sizeof(real));
}

// fills a whole block of real from the tensors named prefix + name
static inline void block_load(const ModelFile *model, const char *prefix, real *block, const Device *device) {
    ParamLayout layout = param_layout(&model->config);
    tensors_load(model, prefix, &layout, block_sink, block, device);
}

// The weights (piece.count) of a piece of the state: params are rounded half up where a master or a remainder of them
// is kept, else to nearest even.
static inline void weights_store(const OptimizerState *o, const real *numbers, ParamPiece piece, const Device *device) {
    bool kept = o->master || o->remainder;
    size_t count = piece.count;
    floatX *weights = (floatX *)xmalloc(count * sizeof *weights);
    for (size_t i = 0; i < count; i++) { weights[i] = kept ? to_floatX_half_up(numbers[i]) : to_floatX(numbers[i]); }
    device->upload(o->params + piece.params, weights, count * sizeof *weights);
    free(weights);
    if (o->master) { device->upload(o->master + piece.state, numbers, count * sizeof *numbers); }
    if (!o->remainder) { return; }
    int16_t *remainder = (int16_t *)xmalloc(count * sizeof *remainder);
    for (size_t i = 0; i < count; i++) { remainder[i] = remainder_of(numbers[i]); }
    device->upload(o->remainder + piece.state, remainder, count * sizeof *remainder);
    free(remainder);
}

static inline void weights_sink(void *to, const real *numbers, ParamPiece piece, const Device *device) {
    weights_store((const OptimizerState *)to, numbers, piece, device);
}

// fills what this rank keeps of params, and of their masters or remainders, from the tensors named prefix + name
static inline void weights_load(const ModelFile *model, const char *prefix, const ModelState *to) {
    ParamLayout layout = param_layout_among(&model->config, to->shards);
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

// the codes of one tensor in our orientation, and their scales
typedef struct {
    uint8_t *codes;
    float *scales;
    size_t count;
} Codes;

static inline Codes codes_make(size_t count) {
    Codes c = {(uint8_t *)xmalloc(count), (float *)xmalloc(moment_blocks(count) * sizeof(float)), count};
    return c;
}

static inline void codes_free(Codes *c) {
    free(c->codes);
    free(c->scales);
}

// the end of the block of codes that begins at i
static inline size_t codes_end(const Codes *c, size_t i) {
    return c->count - i < MOMENT_BLOCK ? c->count : i + MOMENT_BLOCK;
}

static inline void codes_decode(const Codes *c, bool is_v, real *numbers) {
    for (size_t i = 0; i < c->count; i += MOMENT_BLOCK) {
        size_t n = codes_end(c, i) - i;
        float scale = c->scales[i / MOMENT_BLOCK];
        if (is_v) {
            v_decode_block(numbers + i, c->codes + i, n, scale);
        } else {
            m_decode_block(numbers + i, c->codes + i, n, scale);
        }
    }
}

// to nearest, as a conversion is made once
static inline void codes_encode(Codes *c, bool is_v, const real *numbers) {
    uint16_t nearest[MOMENT_BLOCK];
    for (int i = 0; i < MOMENT_BLOCK; i++) { nearest[i] = NEAREST_BITS; }
    for (size_t i = 0; i < c->count; i += MOMENT_BLOCK) {
        size_t n = codes_end(c, i) - i;
        c->scales[i / MOMENT_BLOCK] = is_v ? v_encode_block(c->codes + i, numbers + i, n, nearest)
                                           : m_encode_block(c->codes + i, numbers + i, n, nearest);
    }
}

// Of a checkpoint: the codes of a whole tensor, and the scales of the `slices` it was in, one after the other.
static inline Codes codes_read(const ModelFile *file, const char *prefix, ParamId id, int layer, int *slices) {
    const GPT2Config *config = &file->config;
    const SafeTensor *t = model_tensor(file, prefix, id, layer);
    char scales_prefix[16], name[NAME_LENGTH];
    snprintf(scales_prefix, sizeof scales_prefix, "%c_scales.", prefix[0]);
    param_name(name, sizeof name, id, layer);
    const SafeTensor *scales = model_find(file, scales_prefix, name);
    size_t rows = param_used_rows(id, config), cols = param_cols(id, config), dims = scales ? scales->num_dims : 0;
    bool split = dims == 2 && scales->shape[0] > 1 && scales->shape[0] <= MAX_CONFIG_NUMBER;
    *slices = scales && split ? (int)scales->shape[0] : 1;
    size_t count = slice_scales(id, config, *slices);
    if (!scales || scales->dtype != DT_F32 || dims != (split ? 2 : 1) || scale_slices(id, *slices) != *slices ||
        scales->shape[dims - 1] != count) {
        input_error("'%s' has %s tensor %s%s, expected %zu numbers in F32, the scales of the codes in %s%s; take the "
                    "checkpoint before it",
                    file->file.path, scales ? "another" : "no", scales_prefix, name, count, prefix, name);
    }
    Codes c = {(uint8_t *)xmalloc(rows * cols), (float *)xmalloc((size_t)*slices * count * sizeof(float)), rows * cols};
    safetensors_read(&file->file, scales, 0, c.scales, (size_t)*slices * count * sizeof *c.scales);
    uint8_t *stored = (uint8_t *)xmalloc(c.count);
    safetensors_read(&file->file, t, 0, stored, c.count);
    if (param_specs[id].transposed) {
        transpose_bytes(c.codes, stored, cols, rows, 1);
    } else {
        memcpy(c.codes, stored, c.count);
    }
    free(stored);
    return c;
}

// those of slice r
static inline Codes codes_of_slice(const Codes *whole, ParamId id, const GPT2Config *config, int slices, int r) {
    Slice s = param_slice(id, config, slices, r);
    size_t scales = slice_scales(id, config, slices);
    Codes part = codes_make(s.rows * s.cols);
    slice_extract(part.codes, whole->codes, &s, 1);
    memcpy(part.scales, whole->scales + (size_t)r * scales, scales * sizeof *part.scales);
    if (slices == 1) { part.count = whole->count; }  // without the vocabulary's padding
    return part;
}

// `count` codes from `first` on, a multiple of MOMENT_BLOCK, to element `at` of the block
static inline void codes_upload(const Codes *c, size_t first, size_t count, const Moments *to, size_t at,
                                const Device *device) {
    device->upload((uint8_t *)to->block + at, c->codes + first, count);
    device->upload(to->scales + at / MOMENT_BLOCK, c->scales + first / MOMENT_BLOCK,
                   moment_blocks(count) * sizeof *c->scales);
}

// `count` moments at element `at` of the block, as the run has them
static inline void moments_store(const Moments *to, const real *numbers, size_t at, size_t count,
                                 const Device *device) {
    if (to->dtype == DT_U8) {
        Codes codes = codes_make(count);
        codes_encode(&codes, to->is_v, numbers);
        codes_upload(&codes, 0, count, to, at, device);
        codes_free(&codes);
    } else if (to->dtype == DT_BF16) {
        bf16 *rounded = (bf16 *)xmalloc(count * sizeof *rounded);
        for (size_t i = 0; i < count; i++) { rounded[i] = float_to_bf16((float)numbers[i]); }
        device->upload((bf16 *)to->block + at, rounded, count * sizeof *rounded);
        free(rounded);
    } else {
        device->upload((real *)to->block + at, numbers, count * sizeof *numbers);
    }
}

// numbers = what the codes of all slices stand for, in the whole tensor
static inline void codes_join(const Codes *whole, ParamId id, const GPT2Config *config, int slices, bool is_v,
                              real *numbers) {
    for (int r = 0; r < slices; r++) {
        Slice s = param_slice(id, config, slices, r);
        Codes part = codes_of_slice(whole, id, config, slices, r);
        real *of_part = (real *)xmalloc(s.rows * s.cols * sizeof *of_part);
        codes_decode(&part, is_v, of_part);
        slice_insert(numbers, of_part, &s, sizeof *numbers);
        free(of_part);
        codes_free(&part);
    }
}

// What is kept of one tensor of moments. Codes stay the codes they are, if that is what the run has, in as many slices:
// they are its bits.
static inline void moments_load_tensor(const ModelFile *file, const char *prefix, ParamId id, int layer,
                                       const Moments *to, const ParamLayout *layout, const Device *device) {
    const GPT2Config *config = &file->config;
    const Shards *shards = &layout->shards;
    size_t count = param_used_rows(id, config) * param_cols(id, config);
    bool coded = model_tensor(file, prefix, id, layer)->dtype == DT_U8;
    int slices = 1;
    ParamPiece piece = param_kept_piece(layout, id, layer, param_used(layout, id));
    if (piece.count == 0) { return; }
    Codes codes = {NULL, NULL, 0};
    if (coded) { codes = codes_read(file, prefix, id, layer, &slices); }
    if (coded && to->dtype == DT_U8 && slices == scale_slices(id, shards->slices)) {
        Codes part = codes_of_slice(&codes, id, config, slices, slices > 1 ? shards->slice : 0);
        codes_upload(&part, piece.first, piece.count, to, piece.state, device);
        codes_free(&part);
        codes_free(&codes);
        return;
    }
    real *numbers = (real *)xmalloc(count * sizeof *numbers);
    real *part = (real *)xmalloc(param_count(layout, id) * sizeof *part);
    if (coded) {
        codes_join(&codes, id, config, slices, to->is_v, numbers);
    } else {
        model_read_tensor(file, prefix, id, layer, numbers);
    }
    slice_extract(part, numbers, &layout->slice[id], sizeof *part);
    moments_store(to, part + piece.first, piece.state, piece.count, device);
    codes_free(&codes);
    free(part);
    free(numbers);
}

static inline void moments_load(const ModelFile *file, const char *prefix, const Moments *to, const ParamLayout *layout,
                                const Device *device) {
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        for (int layer = 0; layer < param_layers((ParamId)id, &file->config); layer++) {
            moments_load_tensor(file, prefix, (ParamId)id, layer, to, layout, device);
        }
    }
}

// ---- a checkpoint

// says on stdout what of the optimizer's state is not as it was saved
static inline void note_conversions(const ModelFile *optimizer, const ModelState *s, bool masters_missing) {
    const OptimizerState *o = &s->optimizer;
    const SafeTensor *m = model_find(optimizer, "m.", "wte.weight");
    const SafeTensor *scales = model_find(optimizer, "m_scales.", "wte.weight");
    int t = s->shards.slices > 1 ? s->shards.slices : 1,
        slices = scales && scales->num_dims == 2 ? (int)scales->shape[0] : 1;
    if (scales && o->moments == DT_U8 && slices != t) {
        printf("note      moments were in %d slices, are now in %d: they were rounded to 8 bits again\n", slices, t);
    }
    if (m->dtype != o->moments) {
        printf("note      moments were %s, are now %s\n", dtype_name(m->dtype), dtype_name(o->moments));
    }
    if (masters_missing && (o->master || o->remainder)) {
        printf("note      the checkpoint has no master weights: they begin as the rounded weights that it has\n");
    }
}

// Fills what this rank keeps of the state from a checkpoint folder, whose model.safetensors is opened already. The
// weights are exact whatever the two builds' precisions: where they were stored rounded, masters are read if there are
// any.
static inline void checkpoint_load(const char *folder, const ModelFile *model, const ModelState *s) {
    char path[PATH_LENGTH];
    const OptimizerState *o = &s->optimizer;
    format_path(path, "%s/optimizer.safetensors", folder);
    ModelFile optimizer = {model->config, safetensors_open(path), ""};
    bool rounded = dtype_size(model_find(model, "", "wte.weight")->dtype) < dtype_size(DT_F32);
    bool has_masters = model_find(&optimizer, "master.", "wte.weight") != NULL;
    const Moments m = {o->m, o->moments, o->m_scales, false}, v = {o->v, o->moments, o->v_scales, true};
    ParamLayout layout = param_layout_among(s->config, s->shards);
    moments_load(&optimizer, "m.", &m, &layout, s->device);
    moments_load(&optimizer, "v.", &v, &layout, s->device);
    bool masters = rounded && has_masters;
    weights_load(masters ? &optimizer : model, masters ? "master." : "", s);
    note_conversions(&optimizer, s, rounded && !has_masters);
    model_close(&optimizer);
}

// state.json of a checkpoint folder; the caller deletes it
static inline cJSON *checkpoint_load_state(const char *folder) {
    char path[PATH_LENGTH];
    format_path(path, "%s/state.json", folder);
    cJSON *state = read_json(path);
    if (!state) {
        input_error("'%s' is missing: the folder is no checkpoint of a run, so -y 1 cannot go on from it", path);
    }
    return state;
}
