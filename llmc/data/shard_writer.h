/*
Writes token shards: OUT_train_000001.bin, OUT_train_000002.bin, ... and OUT_val_000000.bin.

Every shard is named OUT_*.bin.part until the corpus ends, so no program takes half a corpus for the whole. Training
shard 1 gets its name last. Its unfinished file is locked as long as the command runs.
dataloader.h describes the format. A shard starts where the last one ended, perhaps within a document.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/data/dataloader.h"
#include "llmc/shapes/params.h"
#include <sys/file.h>

enum { SHARD_VAL, SHARD_TRAIN, SHARD_TOKENS = 100000000 };

typedef struct {
    const char *out;
    int vocab_size;
    uint64_t shard_tokens;  // in a training shard; there is one validation shard
    PartFile open[2];       // of SHARD_VAL and SHARD_TRAIN
    uint64_t tokens[2];     // in the open shards
    uint64_t written[2];    // tokens in total
    int num_train;          // training shards, with the open one
    int lock;               // a file descriptor of training shard 1
} ShardWriter;

// number: of a training shard, from 1; 0: the validation shard. end: ".bin", or ".bin.part" of an unfinished one
static inline void shard_path(char *path, const char *out, int number, const char *end) {
    format_path(path, "%s_%s_%06d%s", out, number ? "train" : "val", number, end);
}

// deletes the unfinished shards of an earlier command but training shard 1; returns their number
static inline int shards_delete_unfinished(const char *out) {
    char part[PATH_LENGTH];
    shard_path(part, out, 0, ".bin.part");
    int deleted = unlink(part) == 0;
    for (int number = 2;; number++, deleted++) {
        shard_path(part, out, number, ".bin.part");
        if (unlink(part) != 0) { return deleted; }
    }
}

static inline void require_written(const ShardWriter *w, int kind) {
    const PartFile *file = &w->open[kind];
    if (file->error) {
        run_error("could not write '%s': %s; make room, then give the same command again", file->part,
                  strerror(file->error));
    }
}

static inline void shard_put_header(ShardWriter *w, int kind) {
    uint32_t vocab = w->vocab_size == GPT2_VOCAB ? 0 : (uint32_t)w->vocab_size;
    const uint32_t header[TOKEN_HEADER_INTS] = {TOKEN_MAGIC, TOKEN_VERSION, (uint32_t)w->tokens[kind], vocab};
    part_put_at(&w->open[kind], 0, header, sizeof header);
}

static inline void shard_begin(ShardWriter *w, int kind) {
    char path[PATH_LENGTH];
    shard_path(path, w->out, kind == SHARD_TRAIN ? ++w->num_train : 0, ".bin");
    bool locked = kind == SHARD_TRAIN && w->num_train == 1;
    w->open[kind] = locked ? part_of_fd(path, dup(w->lock)) : part_open(path);
    w->tokens[kind] = 0;
    shard_put_header(w, kind);
    require_written(w, kind);
}

// Creates unfinished training shard 1, or opens an earlier command's, and locks it. Returns its file descriptor.
static inline int shard_lock(const char *out) {
    char part[PATH_LENGTH], target[1];
    struct stat locked, named;
    shard_path(part, out, 1, ".bin.part");
    if (readlink(part, target, sizeof target) >= 0) { unlink(part); }  // a link: its target stays as it is
    int lock = open(part, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, FILE_MODE);
    if (lock < 0) {
        input_error("could not write '%s': %s; give a name in a folder that exists and can be written", part,
                    strerror(errno));
    }
    bool taken = flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;  // a file system may lack locks
    // a command that has just ended may have renamed or removed the file between open and flock
    bool same = fstat(lock, &locked) == 0 && stat(part, &named) == 0 && locked.st_ino == named.st_ino;
    if (taken || !same) {
        input_error("--tokenize: another command is writing '%s'; wait for its end, or give another name", part);
    }
    return lock;
}

// Stops if shards of this name exist or are being written. Deletes unfinished ones, and begins training shard 1.
static inline ShardWriter shard_writer_open(const char *out, int vocab_size, uint64_t shard_tokens) {
    ShardWriter w = {out, vocab_size, shard_tokens};
    char path[PATH_LENGTH], part[PATH_LENGTH];
    w.lock = shard_lock(out);
    bool stale = lseek(w.lock, 0, SEEK_END) > 0;
    for (int number = 0; number < 2; number++) {
        shard_path(path, out, number, ".bin");
        shard_path(part, out, 1, ".bin.part");
        if (access(path, F_OK) != 0) { continue; }
        if (!stale) { unlink(part); }
        input_error("--tokenize: '%s' exists already; give another name, or delete the files %s_*.bin", path, out);
    }
    int deleted = shards_delete_unfinished(out) + stale;
    if (deleted) { printf("note      starts over: deleted unfinished shards of an earlier command: %d\n", deleted); }
    shard_begin(&w, SHARD_TRAIN);
    return w;
}

// Writes the number of tokens into the header, and everything to the disk.
static inline void shard_end(ShardWriter *w, int kind) {
    if (!w->open[kind].file) { return; }
    shard_put_header(w, kind);
    part_close(&w->open[kind]);
    require_written(w, kind);
}

// kind: SHARD_TRAIN or SHARD_VAL
static inline void shard_writer_append(ShardWriter *w, int kind, const uint16_t *tokens, size_t count) {
    uint64_t limit = kind == SHARD_TRAIN ? w->shard_tokens : INT32_MAX;
    while (count > 0) {
        if (!w->open[kind].file) { shard_begin(w, kind); }
        uint64_t room = limit - w->tokens[kind];
        size_t now = count < room ? count : (size_t)room;
        if (kind == SHARD_VAL && now < count) {
            run_error("%s_val_000000.bin: more than the %d tokens of a token shard; give a smaller --val-share", w->out,
                      INT32_MAX);
        }
        part_put(&w->open[kind], tokens, now * sizeof *tokens);
        require_written(w, kind);
        w->tokens[kind] += now;
        w->written[kind] += now;
        tokens += now;
        count -= now;
        if (kind == SHARD_TRAIN && w->tokens[kind] == limit) {
            shard_end(w, kind);
            printf("training shard %d is written\n", w->num_train);
            fflush(stdout);
        }
    }
}

// Ends the open shards and gives all shards their names, training shard 1 last: no kill leaves a set that looks whole.
static inline void shard_writer_close(ShardWriter *w) {
    char path[PATH_LENGTH], part[PATH_LENGTH];
    shard_end(w, SHARD_VAL);
    shard_end(w, SHARD_TRAIN);
    for (int i = w->written[SHARD_VAL] ? 0 : 1; i <= w->num_train; i++) {
        int number = i == 0 ? 0 : w->num_train + 1 - i;
        shard_path(path, w->out, number, ".bin");
        shard_path(part, w->out, number, ".bin.part");
        if (rename(part, path) != 0) { run_error("could not rename '%s': %s; tokenize again", part, strerror(errno)); }
    }
    close(w->lock);
}
