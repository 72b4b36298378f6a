/*
Writes a checkpoint in three parts. Only checkpoint_save_write takes long:
  checkpoint_save_open     makes RUN/NAME.tmp and its files of tensors; all ranks call it together
  checkpoint_save_write    writes and syncs the files; communicates with no rank, so a thread can run it (run/saver.h)
  checkpoint_save_publish  writes manifest.json, then renames the folder; all ranks call it together
After a failure RUN/NAME.tmp is deleted, and the earlier checkpoints are whole.
defines: CheckpointSave, checkpoint_save_open, checkpoint_save_write, checkpoint_save_publish, checkpoint_save_failed,
         checkpoint_save_as, checkpoint_save, checkpoint_mark_done
*/
#pragma once
#include "llmc/files/checkpoint.h"
#include "llmc/files/manifest.h"

enum { MODEL_FAMILIES = 1, OPTIMIZER_FAMILIES = 5, NUM_FAMILIES = MODEL_FAMILIES + OPTIMIZER_FAMILIES };

static const char *const tensor_files[] = {"model.safetensors", "optimizer.safetensors"};

typedef struct {
    char run_dir[PATH_LENGTH], folder[PATH_LENGTH], aside[PATH_LENGTH];  // RUN, RUN/NAME, RUN/NAME.tmp
    ModelState model;
    const cJSON *state;          // of state.json
    SafeTensorsWriter files[2];  // of tensor_files
    FileSum sums[2];             // of tensor_files, after checkpoint_save_publish
    int error, failed_rank;      // 0 or the errno of a failure; the rank that has it, where all ranks agreed
} CheckpointSave;

// families of model.safetensors, then of optimizer.safetensors
static inline void checkpoint_families(TensorFamily families[NUM_FAMILIES], const ModelState *s) {
    const OptimizerState *o = &s->optimizer;
    const void *masters = o->remainder ? (const void *)o->params : o->master;
    const TensorFamily all[NUM_FAMILIES] = {
        {"", o->params, NULL, DT_FLOATX, false},        {"m.", o->m, NULL, o->moments, false},
        {"v.", o->v, NULL, o->moments, false},          {"m_scales.", o->m_scales, NULL, DT_F32, true},
        {"v_scales.", o->v_scales, NULL, DT_F32, true}, {"master.", masters, o->remainder, DT_REAL, false}};
    memcpy(families, all, sizeof all);
}

// Begins RUN/name, which must not exist. *model and *state stay until checkpoint_save_publish; the tensors may be given
// another place in save->model before checkpoint_save_write. Sets save->error, the same on all ranks.
static inline void checkpoint_save_open(CheckpointSave *save, const char *run_dir, const char *name,
                                        const ModelState *model, const cJSON *state) {
    bool first = is_first_rank(model);
    TensorFamily families[NUM_FAMILIES];
    char path[PATH_LENGTH];
    memset(save, 0, sizeof *save);
    save->model = *model;
    save->state = state;
    format_path(save->run_dir, "%s", run_dir);
    format_path(save->folder, "%s/%s", run_dir, name);
    format_path(save->aside, "%s.tmp", save->folder);
    checkpoint_families(families, model);
    for (int i = 0; i < 2; i++) {  // checkpoint_save_write also closes files that were not opened
        save->files[i].fd = -1;
        save->files[i].error = ECANCELED;
    }
    if (first) { remove_unfinished(run_dir); }
    int error = first && mkdir(save->aside, FOLDER_MODE) != 0 ? errno : 0;
    save->error = agree_on_error(error, model->world, &save->failed_rank);
    for (int i = 0; i < 2 && !save->error; i++) {
        format_path(path, "%s/%s", save->aside, tensor_files[i]);
        save->error = families_open(&save->files[i], path, families + i * MODEL_FAMILIES,
                                    i ? (int)OPTIMIZER_FAMILIES : (int)MODEL_FAMILIES, model, &save->failed_rank);
    }
}

// writes all files but those of tensors and the manifest; returns 0 or an errno
static inline int checkpoint_write_json(const char *folder, const ModelState *s, const cJSON *state) {
    char path[PATH_LENGTH];
    int error = hugging_face_write(folder, s->config, s->tokenizer);
    if (error) { return error; }
    format_path(path, "%s/state.json", folder);
    return write_json(path, state);
}

// Writes this rank's elements, and on rank 0 the small files. Sets save->error on the rank that fails.
static inline void checkpoint_save_write(CheckpointSave *save) {
    TensorFamily families[NUM_FAMILIES];
    checkpoint_families(families, &save->model);
    if (!save->error) {
        families_write(&save->files[0], families, MODEL_FAMILIES, &save->model);
        families_write(&save->files[1], families + MODEL_FAMILIES, OPTIMIZER_FAMILIES, &save->model);
    }
    if (!save->error && is_first_rank(&save->model)) {
        save->error = checkpoint_write_json(save->aside, &save->model, save->state);
    }
    for (int i = 0; i < 2; i++) {
        const Crc32cSum own = save->files[i].sum;
        int error = safetensors_finish(&save->files[i]);
        if (!save->error) { save->error = error; }
        save->sums[i].bytes = own.bytes;
        save->sums[i].crc = own.sum;  // not yet of the whole file
    }
}

// the XOR of a number of every rank
static inline uint32_t xor_over_ranks(uint32_t number, Comm *world) {
    uint32_t all = world ? 0 : number;
    for (int rank = 0; world && rank < world->size; rank++) {
        all ^= (uint32_t)comm_max(rank == world->rank ? (long long)number : 0, world);
    }
    return all;
}

// rank 0: manifest.json, then the folder gets its name; returns 0 or an errno
static inline int checkpoint_rename(const CheckpointSave *save) {
    int error = manifest_write(save->aside, tensor_files, save->sums, 2);
    if (!error) { error = sync_folder(save->aside); }
    if (error) { return error; }
    if (rename(save->aside, save->folder) != 0) { return errno; }
    error = sync_folder(save->run_dir);
    // a power cut could undo the rename, and older checkpoints would be pruned by then
    if (error && rename(save->folder, save->aside) != 0) { return errno; }
    return error;
}

// Gives the checkpoint its name when every rank has written it. Returns save->error, the same on all ranks.
static inline int checkpoint_save_publish(CheckpointSave *save) {
    Comm *world = save->model.world;
    bool first = is_first_rank(&save->model);
    save->error = agree_on_error(save->error, world, &save->failed_rank);
    for (int i = 0; i < 2 && !save->error; i++) {
        const Crc32cSum file = {xor_over_ranks(save->sums[i].crc, world), save->sums[i].bytes};
        save->sums[i].crc = crc32c_total(&file);
    }
    if (!save->error) { save->error = agree_on_error(first ? checkpoint_rename(save) : 0, world, &save->failed_rank); }
    if (save->error && first) { remove_folder(save->aside); }
    if (save->error && world) { comm_barrier(world); }  // the exit of a rank must not end rank 0 before the deletion
    return save->error;
}

// Reports a save that failed with save->error: stops, or prints a warning that training goes on.
static inline void checkpoint_save_failed(const CheckpointSave *save, bool stops) {
    char who[32] = "";
    if (stops) {
        await_failed_rank(who, save->failed_rank, save->model.world);
        run_error("%scould not save checkpoint '%s': %s; the checkpoints before it are whole: %s, then resume with "
                  "-y 1",
                  who, save->folder, strerror(save->error), save_advice(save->error));
    }
    if (!is_first_rank(&save->model)) { return; }
    const Comm *world = save->model.world;
    if (world && world->size > 1) { snprintf(who, sizeof who, "rank %d ", save->failed_rank); }
    fflush(stdout);
    fprintf(stderr,
            "train_gpt2: warning: %scould not save checkpoint '%s': %s; the checkpoints before it are whole, and the "
            "run goes on: %s before the next save\n",
            who, save->folder, strerror(save->error), save_advice(save->error));
}

// Saves RUN/name, which must not exist. All ranks call it. crcs: output, the CRC32C of the weights and of the optimizer
// state, or NULL. After a failure, a full disk for example, the run stops with exit 1 if `stops`. Returns 0 or an
// errno.
static inline int checkpoint_save_as(const char *run_dir, const char *name, const ModelState *s, const cJSON *state,
                                     bool stops, uint32_t *crcs) {
    CheckpointSave save;
    checkpoint_save_open(&save, run_dir, name, s, state);
    checkpoint_save_write(&save);
    int error = checkpoint_save_publish(&save);
    if (error) { checkpoint_save_failed(&save, stops); }
    for (int i = 0; crcs && i < 2; i++) { crcs[i] = save.sums[i].crc; }
    return error;
}

// checkpoint_save_as RUN/step_NNNNNNNN, which stops after a failure: a run saves a step once
static inline void checkpoint_save(const char *run_dir, long long step, const ModelState *s, const cJSON *state) {
    char name[32];
    snprintf(name, sizeof name, "step_%08lld", step);
    checkpoint_save_as(run_dir, name, s, state, true, NULL);
}

// Creates DONE_NNNNNNNN for a checkpoint that is whole. All ranks call it; rank 0 creates the file. A failure stops the
// run with exit 1 if `stops`, else it is a warning. world may be NULL.
static inline void checkpoint_mark_done(const char *run_dir, long long step, Comm *world, bool stops) {
    bool first = !world || world->rank == 0;
    char path[PATH_LENGTH], who[32];
    int failed_rank, error = agree_on_error(first ? create_done_file(run_dir, step) : 0, world, &failed_rank);
    if (!error) { return; }
    done_path(path, run_dir, step);
    if (stops) {
        await_failed_rank(who, failed_rank, world);
        run_error("%scould not create '%s': %s; the checkpoint of that step is whole: %s, then resume with -y 1", who,
                  path, strerror(error), save_advice(error));
    }
    if (first) {
        fprintf(stderr, "train_gpt2: warning: could not create '%s': %s; the checkpoint of that step is whole\n", path,
                strerror(error));
    }
}
