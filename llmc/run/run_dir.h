/*
The run directory (-o): checks before a run, its lock, room for a checkpoint, config.json, and a resumed run's
evaluations.
defines: check_run_dir, make_run_dir, lock_run_dir, check_last_checkpoint, check_disk, save_run_config,
         print_changed_flags, print_changed_schedule, evaluations_read
*/
#pragma once
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/logger.h"
#include "llmc/run/schedule.h"
#include <fnmatch.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

// name = the first file in a folder that matches `pattern`; "" if there is none
static inline void find_in_folder(char name[256], const char *folder, const char *pattern) {
    DIR *dir = opendir(folder);
    *name = 0;
    for (struct dirent *entry; dir && !*name && (entry = readdir(dir)) != NULL;) {
        if (fnmatch(pattern, entry->d_name, 0) == 0) { snprintf(name, 256, "%s", entry->d_name); }
    }
    if (dir) { closedir(dir); }
}

// Stops if a directory without a checkpoint of train_gpt2 holds a run of llm.c: a new run would empty main.log and
// delete the DONE_ files. Every run of train_gpt2 has a config.json.
static inline void check_no_llmc_run(const char *run_dir) {
    char name[256], config[PATH_LENGTH];
    find_in_folder(name, run_dir, "model_[0-9]*[0-9].bin");
    if (*name) {
        input_error("-o %s holds a checkpoint of llm.c, %s, which cannot be resumed here; give a new folder", run_dir,
                    name);
    }
    format_path(config, "%s/config.json", run_dir);
    if (access(config, F_OK) == 0) { return; }
    find_in_folder(name, run_dir, "main.log");
    if (!*name) { find_in_folder(name, run_dir, "DONE_[0-9]*[0-9]"); }
    if (*name) {
        input_error("-o %s holds %s and no config.json: it is a run of llm.c, which cannot be resumed here; give a new "
                    "folder",
                    run_dir, name);
    }
}

// Stops a new run in a directory that holds another one.
static inline void check_run_dir(const TrainArgs *a) {
    const int longest = PATH_LENGTH - 64;  // leaves room for the names of files in it
    struct stat info;
    if (!a->run_dir) { return; }
    if (strlen(a->run_dir) > (size_t)longest) {
        input_error("-o is %zu characters long; at most %d leave room for the names of files in it: give a shorter one",
                    strlen(a->run_dir), longest);
    }
    if (stat(a->run_dir, &info) == 0 && !S_ISDIR(info.st_mode)) {
        input_error("-o %s is a file; give a folder, which need not exist", a->run_dir);
    }
    if (access(a->run_dir, F_OK) == 0 && access(a->run_dir, W_OK | X_OK) != 0) {
        input_error("-o %s cannot be written (%s); give another folder, or change its permissions", a->run_dir,
                    strerror(errno));
    }
    bool used = checkpoint_latest(a->run_dir) >= 0;
    if (!used) { check_no_llmc_run(a->run_dir); }
    if (a->resume) { return; }
    const char *const traces[] = {"metrics.jsonl", "config.json", "main.log"};
    for (int i = 0; i < 3; i++) {
        char path[PATH_LENGTH];
        format_path(path, "%s/%s", a->run_dir, traces[i]);
        used |= access(path, F_OK) == 0;
    }
    if (used) { input_error("-o %s holds another run; give a new folder, or -y 1 to resume that run", a->run_dir); }
}

// Makes the folder and its parents.
static inline void make_run_dir(const char *path) {
    char folder[PATH_LENGTH];
    for (const char *slash = path; slash;) {
        slash = strchr(slash + 1, '/');
        format_path(folder, "%.*s", slash ? (int)(slash - path) : (int)strlen(path), path);
        bool made = mkdir(folder, FOLDER_MODE) == 0;
        if (!made && errno != EEXIST) {
            input_error("-o %s: could not make the folder '%s' (%s); give a folder that can be written", path, folder,
                        strerror(errno));
        }
        if (made) {  // otherwise a power cut can undo the new folder, with its checkpoints
            char *end = strrchr(folder, '/');
            if (end) { end[end == folder] = 0; }
            sync_folder(end ? folder : ".");
        }
    }
}

// Two runs in one directory would delete each other's files, so the first run locks the directory. Returns a file
// descriptor, or -1 if there is no folder yet; close() releases the lock.
static inline int lock_run_dir(const char *folder) {
    int lock = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0) {
        input_error("-o %s is in use by another process; wait for its end, or give another folder", folder);
    }
    return lock;
}

// -y 1: stops if the last checkpoint is damaged. All ranks call it; rank 0 reads the checkpoint, before any rank opens
// it.
static inline void check_last_checkpoint(const TrainArgs *a, Comm *world) {
    char folder[PATH_LENGTH];
    long long last = a->resume && world->rank == 0 ? checkpoint_latest(a->run_dir) : -1;
    if (last >= 0) {
        checkpoint_path(folder, a->run_dir, last);
        checkpoint_check(folder, a->run_dir, true);
    }
    comm_barrier(world);
}

// folder = `path`, or the nearest parent of `path` that exists
static inline void nearest_folder(char *folder, const char *path) {
    format_path(folder, "%s", path);
    for (char *slash; access(folder, F_OK) != 0 && (slash = strrchr(folder, '/'));) {
        slash[slash == folder] = 0;
        if (strcmp(folder, "/") == 0) { return; }
    }
    if (access(folder, F_OK) != 0) { format_path(folder, "."); }
}

// Stops if there is no room for a single checkpoint.
static inline void check_disk(const TrainArgs *a, const GPT2Config *c) {
    struct statvfs disk;
    char folder[PATH_LENGTH];
    if (a->resume) { remove_unfinished(a->run_dir); }  // a killed save may have left files
    if (!saves_checkpoints(a)) { return; }
    nearest_folder(folder, a->run_dir);
    if (statvfs(folder, &disk) != 0) { return; }
    bool has_masters = DT_FLOATX != DT_REAL && a->master != MASTER_NONE;
    double room = (double)disk.f_bavail * (double)disk.f_frsize;
    double tokenizer = 32.0 * c->vocab_size;  // vocab.json and merges.txt take about 32 bytes a token
    double needed = (double)checkpoint_bytes(c, has_masters, moment_types[a->moments]) + tokenizer;
    if (room < needed) {
        input_error(
            "-o %s has %.1f MiB free, and one checkpoint of this model takes %.1f MiB; make room or give another "
            "folder",
            a->run_dir, room / (1 << 20), needed / (1 << 20));
    }
}

// ---- config.json

// The flags of a run as JSON. -d is saved in tokens: -1 would depend on the number of ranks.
static inline cJSON *run_config(const TrainArgs *a) {
    TrainArgs args = *a;
    args.batch_tokens = tokens_of_update(a);
    args.num_processes = num_ranks(a);
    return flags_to_json(flag_table, NUM_FLAGS, &args);
}

static inline void save_run_config(const TrainArgs *a) {
    char path[PATH_LENGTH];
    format_path(path, "%s/config.json", a->run_dir);
    cJSON *json = run_config(a);
    int error = write_json(path, json);
    if (error) { run_error("could not write '%s': %s", path, strerror(error)); }
    cJSON_Delete(json);
}

// Prints each flag that differs from the resumed run's. Without a readable config.json, prints nothing.
static inline void print_changed_flags(const TrainArgs *a) {
    char path[PATH_LENGTH];
    format_path(path, "%s/config.json", a->run_dir);
    cJSON *before = try_read_json(path), *now = run_config(a), *item;
    cJSON_ArrayForEach(item, now) {
        const cJSON *old = before ? cJSON_GetObjectItemCaseSensitive(before, item->string) : NULL;
        if (!old || flag_choice_index("resume output", item->string) >= 0) { continue; }
        char *old_value = cJSON_PrintUnformatted(old), *value = cJSON_PrintUnformatted(item);
        if (strcmp(old_value, value) != 0) {
            printf("note      --%s was %s, is now %s\n", item->string, old_value, value);
        }
        cJSON_free(old_value);
        cJSON_free(value);
    }
    cJSON_Delete(before);
    cJSON_Delete(now);
}

// Prints the number of steps of a resumed run if another -x changes it.
static inline void print_changed_schedule(const TrainArgs *a, long long before, long long now) {
    bool decays = a->final_fraction < 1 && a->schedule != SCHEDULE_CONSTANT;
    if (before == now) { return; }
    printf("note      the schedule was for %lld steps and is now for %lld%s\n", before, now,
           decays ? ": the learning rate differs" : "");
}

// ---- the evaluations of a resumed run

// counts the evaluations in a file of metrics up to `step`
static inline void evaluations_read_metrics(Evaluations *e, const char *path, long long step) {
    static const char val_loss[] = "\"val_loss\":";
    FILE *file = logger_open_old(path);
    char *line = NULL;
    size_t room = 0;
    while (logger_next_line(file, &line, &room, path) > 0) {
        long long at = logger_line_step(line);
        const char *value = strstr(line, val_loss);
        if (at < 0 || at > step) { continue; }
        if (value) {
            evaluations_add(e, at, strncmp(value += strlen(val_loss), "null", 4) ? strtod(value, NULL) : NAN);
        }
        if (strstr(line, "\"hellaswag\":")) { e->hellaswag = at; }
    }
    free(line);
    if (file) { fclose(file); }
}

// the validation loss of RUN/best: in its state.json, or of older versions in best.json; DBL_MAX: there is none
static inline double best_val_loss(const char *run_dir) {
    static const char *const names[] = {"state.json", "best.json"};
    double best = DBL_MAX;
    for (int i = 0; i < 2; i++) {
        char path[PATH_LENGTH];
        format_path(path, "%s/best/%s", run_dir, names[i]);
        cJSON *json = try_read_json(path);
        const cJSON *loss = cJSON_GetObjectItemCaseSensitive(json, "val_loss");
        if (cJSON_IsNumber(loss)) { best = loss->valuedouble; }
        cJSON_Delete(json);
    }
    return best;
}

// The evaluations of a run that resumes after `step`; 0 is a new run. A kill or a signal may have prevented those of
// this step. hellaswag: HellaSwag's file, or NULL. All ranks call it; rank 0 reads.
static inline Evaluations evaluations_read(const TrainArgs *a, const char *hellaswag, long long step, Comm *world) {
    Evaluations e = {hellaswag != NULL, -1, -1, DBL_MAX, 0, 0, DBL_MAX, ""};
    char path[PATH_LENGTH];
    if (a->run_dir && step > 0 && world->rank == 0) {
        format_path(path, "%s/metrics.jsonl", a->run_dir);
        evaluations_read_metrics(&e, path, step);
        e.best = best_val_loss(a->run_dir);
    }
    evaluations_check_patience(&e, a->patience);
    comm_broadcast_host(&e, sizeof e, 0, world);
    return e;
}
