/*
A checkpoint is a folder RUN/step_00000100 with
  model.safetensors                 the weights, as Hugging Face's GPT-2 reads them (model_file.h)
  config.json, vocab.json, ...      the shape of the model, and its tokenizer (hugging_face.h)
  optimizer.safetensors             m.<name>, v.<name> if AdamW updates the tensor, m_scales.<name> and v_scales.<name>
                                    of 8-bit moments, and master.<name> where weights are rounded (model_state.h)
  state.json                        the step, the data position, the outlier detectors: the rest of an exact resume
  manifest.json                     the size and the CRC32C of each file (manifest.h)
RUN/best is the checkpoint with the lowest validation loss, which is "val_loss" in its state.json
(llmc/run/run_dir.h).
A checkpoint is written as step_00000100.tmp, synced and renamed: it exists whole or not at all. While RUN/best is
replaced, the old one is called best.old.tmp. All ranks write to a checkpoint and read from it, so RUN must be one
folder that every rank sees.
RUN/DONE_00000100 is an empty file, as in llm.c: it is created after the checkpoint of its step and deleted before it.
DONE_ of a run's last step is created after the last evaluation: a script that waits for the file restarts a killed run.
*/
#pragma once
#include "llmc/checkpoint/hugging_face.h"
#include "llmc/checkpoint/manifest.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/checkpoint/model_state.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/floatx.h"
#include "llmc/common/json_file.h"
#include "llmc/ops.h"
#include "llmc/parallel/comm.h"
#include "llmc/shapes/layout.h"
#include "llmc/shapes/params.h"
#include <fcntl.h>
#include <fnmatch.h>
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

// Opens every folder above `path`: NFS remembers for a minute that a name did not exist, unless its folder is opened.
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
static inline void require_shared_folder(const char *run_dir, Comm *world) {
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

// the number in a name of the form "step_00000100" + suffix; -1 for any other name
static inline long long step_of_name(const char *name, const char *suffix) {
    long long step;
    char same[64];
    if (sscanf(name, "step_%18lld", &step) != 1 || step < 0) { return -1; }
    snprintf(same, sizeof same, "step_%08lld%s", step, suffix);
    return strcmp(name, same) == 0 ? step : -1;
}

static inline void done_path(char *path, const char *run_dir, long long step) {
    format_path(path, "%s/DONE_%08lld", run_dir, step);
}

// a number in the JSON file RUN/name; -1: none
static inline double number_in(const char *run_dir, const char *name, const char *key) {
    char path[PATH_LENGTH];
    format_path(path, "%s/%s", run_dir, name);
    cJSON *json = try_read_json(path);
    const cJSON *item = json_get(json, key);
    double number = cJSON_IsNumber(item) ? item->valuedouble : -1;
    cJSON_Delete(json);
    return number;
}

// Brings back RUN/best, whose replacement was killed between two renames.
static inline void restore_best(const char *run_dir) {
    char path[PATH_LENGTH], best[PATH_LENGTH];
    format_path(best, "%s/best", run_dir);
    format_path(path, "%s/best.old.tmp", run_dir);
    bool gone = access(best, F_OK) != 0 && access(path, F_OK) == 0;
    if (gone) { rename(path, best); }  // after a failure best.old.tmp stays, until the next call
}

// Deletes best.old.tmp beside RUN/best, or names it best_<step> if its loss is of other validation tokens.
static inline void drop_old_best(const char *run_dir) {
    char path[PATH_LENGTH], kept[PATH_LENGTH];
    format_path(path, "%s/best.old.tmp", run_dir);
    format_path(kept, "%s/best_%08.0f", run_dir, number_in(run_dir, "best.old.tmp/state.json", "step"));
    double tokens = number_in(run_dir, "best.old.tmp/state.json", "val_tokens");
    bool other = tokens >= 0 && tokens != number_in(run_dir, "best/state.json", "val_tokens");
    if (!other || rename(path, kept) != 0) { remove_folder(path); }
}

// Deletes what a killed run left: unfinished checkpoints, files of require_shared_folder.
static inline void remove_unfinished(const char *run_dir) {
    char path[PATH_LENGTH];
    restore_best(run_dir);
    format_path(path, "%s/best", run_dir);
    if (access(path, F_OK) == 0) { drop_old_best(run_dir); }
    DIR *dir = opendir(run_dir);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        const char *name = entry->d_name;
        format_path(path, "%s/%s", run_dir, name);
        if (fnmatch("mark_*.tmp", name, 0) == 0) { unlink(path); }
        if (step_of_name(name, ".tmp") >= 0 || strcmp(name, "best.tmp") == 0) { remove_folder(path); }
    }
    if (dir) { closedir(dir); }
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
// BPE tokenizer. has_master: the run has remainders
static inline size_t checkpoint_bytes(const GPT2Config *config, bool has_master, DType moments,
                                      OptimizerKind optimizer) {
    size_t count = num_parameters(config), master = has_master ? sizeof(real) : 0;
    size_t C = (size_t)config->channels, matrices = 12 * C * C * (size_t)config->num_layers;
    size_t num_moments = 2 * count - (optimizer == OPTIMIZER_MUON ? matrices : 0);
    size_t scales = moments == DT_U8 ? sizeof(float) * (num_moments / MOMENT_BLOCK) : 0;
    return count * (sizeof(floatX) + master) + num_moments * dtype_size(moments) + scales;
}

// ---- the checkpoints of a run

// *steps (caller frees) = the steps of a run's checkpoints, ascending. Returns how many (0: no folder); -1 and errno.
static inline int checkpoint_list(const char *run_dir, long long **steps) {
    struct dirent **entries;
    int found = scandir(run_dir, &entries, NULL, versionsort), count = 0;
    *steps = NULL;
    if (found < 0) { return errno == ENOENT || errno == ENOTDIR ? 0 : -1; }
    *steps = (long long *)xmalloc((size_t)found * sizeof **steps);
    for (int i = 0; i < found; i++) {
        long long step = step_of_name(entries[i]->d_name, "");
        if (step >= 0) { (*steps)[count++] = step; }
        free(entries[i]);
    }
    free(entries);
    return count;
}

// Returns the highest step of a run's checkpoints, or -1 if there are none. Stops if the folder cannot be read.
static inline long long checkpoint_latest(const char *run_dir) {
    long long *steps, latest = -1;
    int count = checkpoint_list(run_dir, &steps);
    if (count < 0) {
        input_error("could not read the folder '%s': %s; make it readable, then try again", run_dir, strerror(errno));
    }
    if (count > 0) { latest = steps[count - 1]; }
    free(steps);
    return latest;
}

// Returns the step of RUN/best, or -1 if there is no such checkpoint. Stops if its state.json is damaged, because a run
// that went on would replace it.
static inline long long checkpoint_best(const char *run_dir) {
    char path[PATH_LENGTH];
    format_path(path, "%s/best/state.json", run_dir);
    long long best = (long long)number_in(run_dir, "best/state.json", "step");
    if (best < 0 && access(path, F_OK) == 0) {
        input_error("'%s' has no step: it was cut short or edited; move the folder '%s/best' away, then try again",
                    path, run_dir);
    }
    return best;
}

// Returns the step of a run's newest checkpoint, RUN/best included, and sets its folder; -1 and "" if there is none.
static inline long long checkpoint_newest(char *folder, const char *run_dir) {
    long long latest = checkpoint_latest(run_dir), best = checkpoint_best(run_dir);
    *folder = 0;
    if (latest >= 0) { checkpoint_path(folder, run_dir, latest); }
    if (best > latest) { format_path(folder, "%s/best", run_dir); }
    return best > latest ? best : latest;
}

// Reports that a file of the run could not be written. `survivors` says what is not lost: "the checkpoints before it
// are", for example. The `last` file of a run gets no retry, so the run stops. Otherwise rank 0 warns.
static inline void report_failure(const char *what, const char *path, const char *survivors, int error, int failed_rank,
                                  Comm *world, bool last) {
    const char *remedy = error == ENOTEMPTY || error == EEXIST
                             ? "move that folder"
                             : "make room, or make -o one folder that all ranks see and may write";
    char who[32] = "";
    if (last) {
        await_failed_rank(who, failed_rank, world);
        run_error("%scould not %s '%s': %s; %s whole: %s, then resume with -y 1", who, what, path, strerror(error),
                  survivors, remedy);
    }
    if (world && world->rank > 0) { return; }
    if (world && world->size > 1) { snprintf(who, sizeof who, "rank %d ", failed_rank); }
    fflush(stdout);
    fprintf(stderr, "train_gpt2: warning: %scould not %s '%s': %s; %s whole, and the run goes on: %s\n", who, what,
            path, strerror(error), survivors, remedy);
}

// Creates DONE_NNNNNNNN for a checkpoint that is whole. All ranks call it, and rank 0 creates the file. A failure is a
// warning, or an error if this is the `last` file of the run.
static inline void checkpoint_mark_done(const char *run_dir, long long step, Comm *world, bool last) {
    char path[PATH_LENGTH];
    bool first = !world || world->rank == 0;
    int failed_rank, error = agree_on_error(first ? create_done_file(run_dir, step) : 0, world, &failed_rank);
    done_path(path, run_dir, step);
    if (error) { report_failure("create", path, "the checkpoint of that step is", error, failed_rank, world, last); }
}

// Creates DONE_NNNNNNNN of a run's last checkpoint, in case a kill came between the checkpoint and the file. Leaves out
// the step `pending` (-1: none), whose file checkpoint_mark_done will create.
static inline void checkpoint_sync_done(const char *run_dir, long long pending) {
    long long step = checkpoint_latest(run_dir);
    if (step >= 0 && step != pending) { checkpoint_mark_done(run_dir, step, NULL, true); }
}

// Deletes all but the last `keep` checkpoints; 0 keeps all. Multiples of major_every (0: none) always stay, and do not
// count. In a run that an older version began, RUN/best may be a link to a checkpoint, which stays too.
static inline void checkpoint_prune(const char *run_dir, int keep, int major_every) {
    char path[PATH_LENGTH];
    struct stat best, info;
    long long *steps;
    format_path(path, "%s/best", run_dir);
    if (stat(path, &best) != 0) { best.st_ino = 0; }
    int count = checkpoint_list(run_dir, &steps), minor = 0;
    for (int i = count - 1; i >= 0 && keep > 0; i--) {
        if (major_every > 0 && steps[i] % major_every == 0) { continue; }
        checkpoint_path(path, run_dir, steps[i]);
        if (minor++ < keep || (stat(path, &info) == 0 && info.st_ino == best.st_ino)) { continue; }
        done_path(path, run_dir, steps[i]);
        unlink(path);
        checkpoint_path(path, run_dir, steps[i]);
        remove_checkpoint(path);
    }
    free(steps);
}

// ---- saving

static const char *const tensor_files[] = {"model.safetensors", "optimizer.safetensors"};

// Writes a checkpoint into a new folder. crcs: output, the CRC32C of tensor_files. Returns 0 or an errno, the same on
// all ranks.
static inline int checkpoint_write(const char *folder, const ModelState *s, const cJSON *state, uint32_t crcs[2],
                                   int *failed_rank) {
    const OptimizerState *o = &s->optimizer;
    const TensorFamily weights[] = {{"", o->params, NULL, DT_FLOATX, false}};
    const TensorFamily optimizer[] = {{"m.", o->m, NULL, o->moments, false},
                                      {"v.", o->v, NULL, o->moments, false},
                                      {"m_scales.", o->m_scales, NULL, DT_F32, true},
                                      {"v_scales.", o->v_scales, NULL, DT_F32, true},
                                      {"master.", o->remainder ? o->params : NULL, o->remainder, DT_REAL, false}};
    bool first = is_first_rank(s);
    char path[PATH_LENGTH];
    int error = agree_on_error(first && mkdir(folder, FOLDER_MODE) != 0 ? errno : 0, s->world, failed_rank);
    format_path(path, "%s/%s", folder, tensor_files[0]);
    if (!error) { error = families_save(path, weights, 1, s, &crcs[0], failed_rank); }
    format_path(path, "%s/%s", folder, tensor_files[1]);
    if (!error) { error = families_save(path, optimizer, 5, s, &crcs[1], failed_rank); }
    if (error) { return error; }
    if (first) { error = hugging_face_write(folder, s->config, s->tokenizer); }
    format_path(path, "%s/state.json", folder);
    if (first && !error) { error = write_json(path, state); }
    if (first && !error) { error = manifest_write(folder, tensor_files, crcs, 2); }
    if (first && !error) { error = sync_folder(folder); }
    return agree_on_error(error, s->world, failed_rank);
}

// Renames the whole checkpoint `aside` to `folder`, in RUN. Meanwhile an existing RUN/best is called best.old.tmp, and
// a failure gives it its name back. Returns 0 or an errno.
static inline int checkpoint_rename(const char *aside, const char *folder, const char *run_dir) {
    char old[PATH_LENGTH], target;
    format_path(old, "%s/best.old.tmp", run_dir);
    // a RUN/best without a loss was not made by --keep-best, and stays, unless it is a link, as in older versions
    bool replaces = has_ending(folder, "/best") &&
                    (number_in(run_dir, "best/state.json", "val_loss") >= 0 || readlink(folder, &target, 1) >= 0);
    replaces = replaces && rename(folder, old) == 0;
    int error = rename(aside, folder) == 0 ? 0 : errno;
    if (!error) {
        error = sync_folder(run_dir);
        // a power cut could undo the rename, and older checkpoints would be pruned by then
        if (error && rename(folder, aside) != 0) { return errno; }
    }
    if (error && replaces && rename(old, folder) != 0) { return errno; }
    if (!error && replaces) { drop_old_best(run_dir); }
    return error;
}

// Saves RUN/name. All ranks call it. crcs = the CRC32C of tensor_files. After a failure the earlier checkpoints are
// whole: rank 0 prints a warning and all return false or, if this is the `last` save, the run stops with exit 1.
static inline bool checkpoint_save(const char *run_dir, const char *name, const ModelState *s, const cJSON *state,
                                   bool last, uint32_t crcs[2]) {
    char folder[PATH_LENGTH], aside[PATH_LENGTH];
    int failed_rank;
    bool first = is_first_rank(s);
    format_path(folder, "%s/%s", run_dir, name);
    format_path(aside, "%s.tmp", folder);
    if (first) { remove_unfinished(run_dir); }
    int error = checkpoint_write(aside, s, state, crcs, &failed_rank);
    if (!error) {
        error = agree_on_error(first ? checkpoint_rename(aside, folder, run_dir) : 0, s->world, &failed_rank);
    }
    if (error && first) { remove_folder(aside); }
    if (error && s->world) { comm_barrier(s->world); }  // the exit of a rank must not end rank 0 before the deletion
    if (error) {
        report_failure("save checkpoint", folder, "the checkpoints before it are", error, failed_rank, s->world, last);
    }
    return !error;
}

// ---- loading

// before = the newest checkpoint of the run that is older than `folder`, or best/ even if it has the same step, or "".
static inline void checkpoint_before(char *before, const char *folder) {
    char run[PATH_LENGTH];
    folder_of(run, folder);
    long long *steps, latest = -1, best = checkpoint_best(run);
    bool is_best = has_ending(folder, "/best");
    const char *slash = strrchr(folder, '/');
    long long step = is_best ? best : step_of_name(slash ? slash + 1 : folder, "");
    int count = checkpoint_list(run, &steps);
    for (int i = 0; i < count && steps[i] < step; i++) { latest = steps[i]; }
    free(steps);
    *before = 0;
    if (latest >= 0) { checkpoint_path(before, run, latest); }
    if (!is_best && best > latest && best <= step) { format_path(before, "%s/best", run); }
}

// Stops at a checkpoint that disagrees with its manifest, and names the newest older one. If `resumes`, the command is
// a -y 1 of the run in run_dir. Otherwise only weights are loaded: we do not check the optimizer's state, and a folder
// without state.json is no checkpoint.
static inline void require_whole_checkpoint(const char *folder, const char *run_dir, bool resumes) {
    char state[PATH_LENGTH], before[PATH_LENGTH], why[512];
    format_path(state, "%s/state.json", folder);
    if (!resumes && access(state, F_OK) != 0) { return; }
    int error = manifest_check(folder, resumes ? NULL : tensor_files[1], why, sizeof why);
    if (!error) { return; }
    bool damaged =
        error == EBADMSG || error == ENOENT || error == ENOTDIR || error == ENODATA || error == EINVAL || error == EIO;
    if (!damaged) {  // a file that cannot be read now
        input_error("checkpoint '%s' cannot be checked: %s; make it readable, then try again", folder, why);
    }
    checkpoint_before(before, folder);
    char remedy[4 * PATH_LENGTH] = "there is no other one: restore a copy, or begin a new run from other weights with "
                                   "-e and another -o";
    if (*before && resumes) {
        snprintf(remedy, sizeof remedy,
                 "`mv %s %s.damaged && ./train_gpt2 -o %s -y 1` resumes from '%s', the newest one left", folder, folder,
                 run_dir, before);
    } else if (*before) {
        snprintf(remedy, sizeof remedy, "give -e %s, the newest one left", before);
    }
    input_error("%scheckpoint '%s' is damaged: %s; %s; or delete %s/" MANIFEST " if you changed the file",
                resumes ? "" : "-e: ", folder, why, remedy, folder);
}

// Stops unless the checkpoint has the state of this optimizer.
static inline void require_same_optimizer(const ModelFile *file, OptimizerKind wanted) {
    static const char *const names[] = {"adamw", "muon"};
    bool has_second = model_find(file, "v.", "h.0.attn.c_attn.weight") != NULL;
    OptimizerKind saved = has_second ? OPTIMIZER_ADAMW : OPTIMIZER_MUON;
    if (saved == wanted || !model_find(file, "v.", "wte.weight")) { return; }
    input_error("'%s' has the state of --optimizer %s, but this run has --optimizer %s: resume with --optimizer %s, or "
                "begin a new run from its weights with -e and another -o",
                file->file.path, names[saved], names[wanted], names[saved]);
}

// Fills this rank's state from a checkpoint folder; `model` is the open model.safetensors. Where the file has rounded
// weights and masters, the weights come from the masters: a build of any precision resumes exactly.
static inline void checkpoint_load(const char *folder, const ModelFile *model, const ModelState *s) {
    char path[PATH_LENGTH];
    format_path(path, "%s/optimizer.safetensors", folder);
    ModelFile optimizer = {model->config, safetensors_open(path), false};
    DType saved = model_find(model, "", "wte.weight")->dtype;
    bool rounded = dtype_size(saved) < dtype_size(DT_F32);
    bool has_masters = model_find(&optimizer, "master.", "wte.weight") != NULL;
    require_same_optimizer(&optimizer, s->sharding.optimizer);
    state_load(&optimizer, "m.", s);
    state_load(&optimizer, "v.", s);
    if (rounded && has_masters) {
        state_load(&optimizer, "master.", s);
    } else {
        state_load(model, "", s);
    }
    const OptimizerState *o = &s->optimizer;
    const SafeTensor *m = model_find(&optimizer, "m.", "wte.weight");
    if (m->dtype != o->moments) {
        printf("note      moments were %s, are now %s\n", dtype_name(m->dtype), dtype_name(o->moments));
    }
    if (saved != DT_FLOATX) {
        printf("note      weights were %s, are now %s in this build: losses differ; a PRECISION=%s build goes on as "
               "before\n",
               dtype_name(saved), dtype_name(DT_FLOATX), rounded ? "bf16" : "fp32");
    }
    if (rounded && !has_masters && o->remainder) {
        printf("note      the checkpoint has no master weights: they start as its rounded weights\n");
    }
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
