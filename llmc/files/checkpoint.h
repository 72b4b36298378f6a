/*
A checkpoint is a folder RUN/step_00000100 with
  model.safetensors                 the weights, as Hugging Face's GPT-2 reads them (model_file.h)
  config.json, vocab.json, ...      the shape of the model, and its tokenizer (hugging_face.h)
  optimizer.safetensors             m.<name>, v.<name>, and master.<name> where weights are rounded (model_state.h)
  state.json                        the step, the data position, the outlier detectors: the rest of an exact resume
  manifest.json                     the size and the CRC32C of each file (manifest.h)
A checkpoint is written as step_00000100.tmp, synced and renamed: it exists whole or not at all (checkpoint_save.h). All
ranks write to it and read from it, so RUN must be one folder that every rank sees.
RUN/best is a symbolic link to the checkpoint with the lowest validation loss (llmc/run/best.h): step_00000100, or the
folder best_a or best_b if the checkpoint is none of -n. Pruning spares it.
RUN/DONE_00000100 is an empty file, as in llm.c: it is created after the checkpoint of its step and deleted before it.
DONE_ of a run's last step is created after the last evaluation: a script that waits for the file restarts a killed run.
defines: remove_checkpoint, sync_folder, check_shared_folder, remove_unfinished, checkpoint_best, checkpoint_best_file,
         checkpoint_path, create_done_file, save_advice, checkpoint_bytes, checkpoint_list_or_stop,
         checkpoint_latest, checkpoint_of_run, checkpoint_sync_done, checkpoint_prune, checkpoint_load,
         checkpoint_load_state
*/
#pragma once
#include "llmc/files/hugging_face.h"
#include "llmc/files/model_state.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// ---- folders

// Deletes a flat folder and the files in it. Of a symbolic link to a folder, only the link is deleted.
static inline void remove_folder(const char *path) {
    char target;
    if (readlink(path, &target, 1) >= 0) {
        unlink(path);
        return;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) { return; }
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) { unlinkat(fd, entry->d_name, 0); }
    closedir(dir);
    rmdir(path);
}

// Deletes a checkpoint. Half a checkpoint never has the name of a whole one.
static inline void remove_checkpoint(const char *path) {
    char aside[PATH_LENGTH];
    format_path(aside, "%s.tmp", path);
    if (rename(path, aside) == 0) { remove_folder(aside); }
}

static inline int sync_folder(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) { return errno; }
    int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error;
}

// Lets the rank that failed print the error first: its exit ends the other ranks. With NCCL but without MPI no rank
// ends another, so each prints the error after the prefix `who`, "rank 3: ".
static inline void await_failed_rank(char who[32], int failed_rank, const Comm *world) {
    who[0] = 0;
    if (!world || world->rank == failed_rank) { return; }
    sleep(2);
    snprintf(who, 32, "rank %d: ", failed_rank);
}

// Opens every folder above `path`. NFS remembers for a minute that a name did not exist, and asks the server again when
// the folder above is opened.
static inline void open_folders_above(const char *path) {
    char folder[PATH_LENGTH];
    format_path(folder, *path == '/' ? "/" : ".");
    for (const char *slash = path; slash;) {
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) { close(fd); }
        slash = strchr(slash + 1, '/');
        format_path(folder, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
    }
}

// 0 or an errno
static inline int create_empty_file(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
    if (fd < 0) { return errno; }
    close(fd);
    return 0;
}

// Stops with an input error unless every rank sees the run's folder, which rank 0 has made, and may write there. All
// ranks call it before the first step: otherwise the first checkpoint would fail, after hours.
static inline void check_shared_folder(const char *run_dir, Comm *world) {
    char mark[PATH_LENGTH], who[32];
    struct timespec now;
    int failed_rank;
    if (world->size == 1) { return; }
    clock_gettime(CLOCK_REALTIME, &now);
    bool first = world->rank == 0;
    long long number = comm_max(first ? (long long)now.tv_sec * 1000000000 + now.tv_nsec : 0, world);
    format_path(mark, "%s/mark_%llx.tmp", run_dir, number);
    int error = agree_on_error(first ? create_empty_file(mark) : 0, world, &failed_rank);
    if (!error) {
        open_folders_above(run_dir);
        bool shared = access(mark, F_OK) == 0 && access(run_dir, W_OK) == 0;
        error = agree_on_error(shared ? 0 : errno, world, &failed_rank);
    }
    if (first) { unlink(mark); }
    comm_barrier(world);  // the exit of another rank must not end rank 0 before the unlink
    if (!error) { return; }
    await_failed_rank(who, failed_rank, world);
    input_error(
        "%s-o %s is not a folder that this rank shares with rank 0 and may write: %s; give one folder that all ranks "
        "see and may write",
        who, run_dir, strerror(error));
}

// ---- names

static inline void checkpoint_path(char *path, const char *run_dir, long long step) {
    format_path(path, "%s/step_%08lld", run_dir, step);
}

// the step of a folder named "step_00000100" + suffix; -1 for any other name
static inline long long checkpoint_step(const char *name, const char *suffix) {
    long long step;
    char same[32];
    if (sscanf(name, "step_%18lld", &step) != 1 || step < 0) { return -1; }
    snprintf(same, sizeof same, "step_%08lld%s", step, suffix);
    return strcmp(name, same) == 0 ? step : -1;
}

static inline void done_path(char *path, const char *run_dir, long long step) {
    format_path(path, "%s/DONE_%08lld", run_dir, step);
}

// Deletes the folders step_NNNNNNNN.tmp and best_?.tmp, which a killed save or prune leaves behind, and the files of
// check_shared_folder.
static inline void remove_unfinished(const char *run_dir) {
    DIR *dir = opendir(run_dir);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        char path[PATH_LENGTH];
        bool best = strcmp(entry->d_name, "best_a.tmp") == 0 || strcmp(entry->d_name, "best_b.tmp") == 0;
        bool mark = strncmp(entry->d_name, "mark_", 5) == 0 && strstr(entry->d_name, ".tmp");
        if (!best && !mark && checkpoint_step(entry->d_name, ".tmp") < 0) { continue; }
        format_path(path, "%s/%s", run_dir, entry->d_name);
        if (mark) {
            unlink(path);
        } else {
            remove_folder(path);
        }
    }
    if (dir) { closedir(dir); }
}

// a remedy for the errno of a save
static inline const char *save_advice(int error) {
    switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "make room";
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS: return "make -o one folder that all ranks see and may write";
    default: return "fix that";
    }
}

// Creates DONE_NNNNNNNN for a checkpoint that is whole. Returns 0 or an errno.
static inline int create_done_file(const char *run_dir, long long step) {
    char path[PATH_LENGTH];
    done_path(path, run_dir, step);
    int error = sync_folder(run_dir);  // otherwise a power cut can undo the checkpoint's rename and leave DONE_NNNNNNNN
    if (!error) { error = create_empty_file(path); }
    return error == EEXIST ? 0 : error;
}

// Bytes of a checkpoint's tensors on disk. The headers and the JSON files come on top: KiB, or up to a few MB with a
// BPE tokenizer. has_master: the run has masters or remainders
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

// The steps of all checkpoints of a run, ascending, and their number; 0 if there is no such folder; -1 and errno if the
// folder cannot be read. The caller frees *steps.
static inline int checkpoint_list(const char *run_dir, long long **steps) {
    int count = 0;
    *steps = NULL;
    DIR *dir = opendir(run_dir);
    if (!dir) { return errno == ENOENT || errno == ENOTDIR ? 0 : -1; }
    errno = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL; errno = 0) {
        long long step = checkpoint_step(entry->d_name, "");
        if (step < 0) { continue; }
        *steps = (long long *)xrealloc(*steps, (size_t)(count + 1) * sizeof **steps);
        (*steps)[count++] = step;
    }
    int error = errno;
    closedir(dir);
    errno = error;
    if (error) { return -1; }
    if (count > 1) { qsort(*steps, (size_t)count, sizeof **steps, compare_steps); }
    return count;
}

// checkpoint_list, which stops if the folder cannot be read
static inline int checkpoint_list_or_stop(const char *run_dir, long long **steps) {
    int count = checkpoint_list(run_dir, steps);
    if (count < 0) {
        input_error("could not read the folder '%s': %s; make it readable, then try again", run_dir, strerror(errno));
    }
    return count;
}

// the highest step of a run's checkpoints; -1: no checkpoint
static inline long long checkpoint_latest(const char *run_dir) {
    long long *steps, latest = -1;
    int count = checkpoint_list_or_stop(run_dir, &steps);
    if (count > 0) { latest = steps[count - 1]; }
    free(steps);
    return latest;
}

// name = the target of the link RUN/best: step_NNNNNNNN, best_a or best_b. "" if there is no link, or if the link leads
// elsewhere: a run directory of someone else's must not have files read, written or deleted there.
static inline void checkpoint_best(char name[32], const char *run_dir) {
    char link[PATH_LENGTH];
    format_path(link, "%s/best", run_dir);
    ssize_t length = readlink(link, name, 31);
    name[length > 0 ? length : 0] = 0;
    bool inside = checkpoint_step(name, "") >= 0 || strcmp(name, "best_a") == 0 || strcmp(name, "best_b") == 0;
    if (!inside) { *name = 0; }
}

// path = RUN/best/FILE, unless RUN/best is a link that leads elsewhere. Returns whether the file is there. In a copy of
// a run, RUN/best may be a folder.
static inline bool checkpoint_best_file(char *path, const char *run_dir, const char *file) {
    char best[32], link[PATH_LENGTH], target;
    format_path(link, "%s/best", run_dir);
    checkpoint_best(best, run_dir);
    format_path(path, "%s/%s", link, file);
    return (*best || readlink(link, &target, 1) < 0) && access(path, F_OK) == 0;
}

// folder = the last checkpoint of a run, or without any the one with the lowest validation loss, or "". Returns whether
// there is one.
static inline bool checkpoint_of_run(char *folder, const char *run_dir) {
    char weights[PATH_LENGTH];
    long long latest = checkpoint_latest(run_dir);
    *folder = 0;
    if (latest >= 0) {
        checkpoint_path(folder, run_dir, latest);
    } else if (checkpoint_best_file(weights, run_dir, "model.safetensors")) {
        format_path(folder, "%s/best", run_dir);
    }
    return *folder != 0;
}

// the step of an empty file named DONE_00000100; -1 for anything else
static inline long long done_step(const char *run_dir, const char *name) {
    char as_folder[64], path[PATH_LENGTH];
    struct stat info;
    if (strncmp(name, "DONE_", 5) != 0) { return -1; }
    snprintf(as_folder, sizeof as_folder, "step_%.40s", name + 5);
    format_path(path, "%s/%s", run_dir, name);
    bool empty = stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0;
    return empty ? checkpoint_step(as_folder, "") : -1;
}

// Makes the files DONE_NNNNNNNN agree with the checkpoints of a run: a kill can come between the two, an older version
// wrote no such files, and a user may delete a checkpoint. pending: the step whose file checkpoint_mark_done will
// create; -1: none.
static inline void checkpoint_sync_done(const char *run_dir, long long pending) {
    char path[PATH_LENGTH];
    long long *steps;
    int count = checkpoint_list(run_dir, &steps);
    DIR *dir = opendir(run_dir);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        long long step = done_step(run_dir, entry->d_name);
        checkpoint_path(path, run_dir, step);
        if (step < 0 || access(path, F_OK) == 0) { continue; }
        done_path(path, run_dir, step);
        unlink(path);
    }
    if (dir) { closedir(dir); }
    for (int i = 0; i < count; i++) {
        int error = steps[i] == pending ? 0 : create_done_file(run_dir, steps[i]);
        done_path(path, run_dir, steps[i]);
        if (error) { run_error("could not create '%s': %s; make -o writable", path, strerror(error)); }
    }
    free(steps);
}

// Deletes all but the last `keep` checkpoints (0: keep all). Multiples of major_every (0: none) do not count and stay.
// The target of RUN/best stays.
static inline void checkpoint_prune(const char *run_dir, int keep, int major_every) {
    long long *steps;
    char best[32];
    checkpoint_best(best, run_dir);
    int count = checkpoint_list(run_dir, &steps), minor = 0;
    for (int i = count - 1; i >= 0 && keep > 0; i--) {
        if (major_every > 0 && steps[i] % major_every == 0) { continue; }
        if (minor++ < keep || checkpoint_step(best, "") == steps[i]) { continue; }
        char path[PATH_LENGTH];
        done_path(path, run_dir, steps[i]);
        unlink(path);
        checkpoint_path(path, run_dir, steps[i]);
        remove_checkpoint(path);
    }
    free(steps);
}

// ---- loading

// prints a note for each conversion of the optimizer state
static inline void note_conversions(const ModelFile *optimizer, const ModelState *s, bool masters_missing) {
    const OptimizerState *o = &s->optimizer;
    const SafeTensor *m = model_find(optimizer, "m.", "wte.weight");
    const SafeTensor *scales = model_find(optimizer, "m_scales.", "wte.weight");
    int t = s->sharding.tp_size > 1 ? s->sharding.tp_size : 1;
    int slices = scales && scales->num_dims == 2 ? (int)scales->shape[0] : 1;
    if (scales && o->moments == DT_U8 && slices != t) {
        printf("note      moments were in %d slices, are now in %d: they were rounded to 8 bits again\n", slices, t);
    }
    if (m->dtype != o->moments) {
        printf("note      moments were %s, are now %s\n", dtype_name(m->dtype), dtype_name(o->moments));
    }
    if (masters_missing && (o->master || o->remainder)) {
        printf("note      the checkpoint has no master weights: they start as its rounded weights\n");
    }
}

// Fills this rank's state from a checkpoint folder; `model` is the open model.safetensors. Where the file has rounded
// weights and masters, the weights come from the masters: a build of any precision resumes exactly.
static inline void checkpoint_load(const char *folder, const ModelFile *model, const ModelState *s) {
    char path[PATH_LENGTH];
    format_path(path, "%s/optimizer.safetensors", folder);
    ModelFile optimizer = {model->config, safetensors_open(path), "", false};
    bool rounded = dtype_size(model_find(model, "", "wte.weight")->dtype) < dtype_size(DT_F32);
    bool has_masters = model_find(&optimizer, "master.", "wte.weight") != NULL;
    moments_load(&optimizer, false, s);
    moments_load(&optimizer, true, s);
    if (rounded && has_masters) {
        weights_load(&optimizer, "master.", s);
    } else {
        weights_load(model, "", s);
    }
    note_conversions(&optimizer, s, rounded && !has_masters);
    model_close(&optimizer);
}

// state.json of a checkpoint folder; the caller deletes it
static inline cJSON *checkpoint_load_state(const char *folder) {
    char path[PATH_LENGTH];
    format_path(path, "%s/state.json", folder);
    cJSON *state = read_json(path);
    if (!state) {
        input_error("'%s' is missing, so the folder is no checkpoint of a run; delete the folder, then resume with -y "
                    "1 from the checkpoint before it",
                    path);
    }
    return state;
}
