/*
Checkpoints: a folder RUN/step_00000100 with
  model.safetensors + config.json   what Hugging Face's GPT-2 reads (model_file.h)
  optimizer.safetensors             m.<name>, v.<name>, and master.<name> where weights are rounded from masters
                                    (model_state.h)
  state.json                        the step, the data position, the guards: what else a bit-exact resume needs
It is written aside as step_00000100.tmp, synced and renamed: it exists whole or not at all. All ranks of a run write
into it and read it, so RUN is one folder that all of them see.
defines: check_shared_folder, remove_unfinished, checkpoint_path, checkpoint_save, checkpoint_bytes, checkpoint_latest,
         checkpoint_prune, checkpoint_load, checkpoint_load_state
*/
#pragma once
#include "llmc/files/model_state.h"
#include <dirent.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

// ---- folders

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

// Writes "rank 3: " for those that do not have the fault, which let the one that has it say why all end. Where no rank
// ends another, as by NCCL without MPI, each says it.
static inline void after_the_culprit(char who[32], Fault fault, const Comm *world) {
    who[0] = 0;
    if (!world || world->rank == fault.rank) { return; }
    sleep(2);
    snprintf(who, 32, "rank %d: ", fault.rank);
}

// A file system of several machines may remember for a minute that a name was not there (NFS does). It asks again when
// the folder above is opened.
static inline void open_folders_above(const char *path) {
    char part[PATH_LENGTH];
    format_path(part, *path == '/' ? "/" : ".");
    for (const char *slash = path; slash;) {
        int fd = open(part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) { close(fd); }
        slash = strchr(slash + 1, '/');
        format_path(part, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
    }
}

static inline int make_mark(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) { return errno; }
    close(fd);
    return 0;
}

// All ranks of a run call it before the first step: an input error where one does not see the run's folder, which the
// first rank has made, or may not write there. Else the first checkpoint would fail, after hours.
static inline void check_shared_folder(const char *run_dir, Comm *world) {
    char mark[PATH_LENGTH], who[32];
    struct timespec now;
    if (world->size == 1) { return; }
    clock_gettime(CLOCK_REALTIME, &now);
    bool first = world->rank == 0;
    long long number = comm_max(first ? (long long)now.tv_sec * 1000000000 + now.tv_nsec : 0, world);
    format_path(mark, "%s/mark_%llx.tmp", run_dir, number);
    Fault fault = agreed_fault(first ? make_mark(mark) : 0, world);
    if (!fault.error) {
        open_folders_above(run_dir);
        bool shared = access(mark, F_OK) == 0 && access(run_dir, W_OK) == 0;
        fault = agreed_fault(shared ? 0 : errno, world);
    }
    if (first) { unlink(mark); }
    comm_barrier(world);  // nobody ends the others before it is removed
    if (!fault.error) { return; }
    after_the_culprit(who, fault, world);
    input_error(
        "%s-o %s is not a folder that is rank 0's too and may be written: %s; give one folder that all ranks see "
        "and may write",
        who, run_dir, strerror(fault.error));
}

// ---- saving

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

// the four files of a checkpoint into `folder`
static inline Fault checkpoint_write_files(const char *folder, const ModelState *s, const cJSON *state) {
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
    Fault fault = families_save(path, &model, 1, s);
    if (fault.error) { return fault; }
    format_path(path, "%s/optimizer.safetensors", folder);
    fault = families_save(path, optimizer, 5, s);
    if (fault.error) { return fault; }
    return agreed_fault(is_first_rank(s) ? checkpoint_write_json(folder, s, state) : 0, s->world);
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

// what helps against an errno of a save
static inline const char *save_advice(int error) {
    switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "make room";
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS: return "-o must be one folder that all ranks see and may write: mend that";
    default: return "mend that";
    }
}

// Saves RUN/step_NNNNNNNN, which must not be there yet: a run saves a step once. All ranks of a run call it. A failure
// (a full disk, say) removes the half-written folder and stops with exit 1; the checkpoints before it are untouched.
static inline void checkpoint_save(const char *run_dir, long long step, const ModelState *s, const cJSON *state) {
    char folder[PATH_LENGTH], aside[PATH_LENGTH], who[32];
    bool first = is_first_rank(s);
    checkpoint_path(folder, run_dir, step);
    format_path(aside, "%s.tmp", folder);
    if (first) { remove_unfinished(run_dir); }
    Fault fault = agreed_fault(first && mkdir(aside, 0777) != 0 ? errno : 0, s->world);
    if (!fault.error) { fault = checkpoint_write_files(aside, s, state); }
    if (!fault.error) { fault = agreed_fault(first && rename(aside, folder) != 0 ? errno : 0, s->world); }
    if (fault.error) {
        if (first) { remove_folder(aside); }
        agreed_fault(0, s->world);  // nobody ends the others before it is removed
        after_the_culprit(who, fault, s->world);
        run_error("%scould not save checkpoint '%s': %s; the checkpoints before it are whole: %s, then go on with -y 1",
                  who, folder, strerror(fault.error), save_advice(fault.error));
    }
    if (first) { sync_folder(run_dir); }  // without it a power cut could still undo the rename
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

// ---- loading

// says on stdout what of the optimizer's state is not as it was saved
static inline void note_conversions(const ModelFile *optimizer, const ModelState *s, bool masters_missing) {
    const OptimizerState *o = &s->optimizer;
    const SafeTensor *m = model_find(optimizer, "m.", "wte.weight");
    const SafeTensor *scales = model_find(optimizer, "m_scales.", "wte.weight");
    int t = s->sharding.tp_size > 1 ? s->sharding.tp_size : 1,
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
    ParamLayout layout = param_layout_sharded(s->config, s->sharding);
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
