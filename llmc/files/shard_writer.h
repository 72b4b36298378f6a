/*
Writes token shards: OUT_train_000001.bin, OUT_train_000002.bin, ... and OUT_val_000000.bin.
defines: ShardWriter, shard_path, shard_writer_append, shard_writer_sync, shard_writer_close,
         shard_writer_continue

A shard under its final name is whole: until then it is OUT_train_000001.bin.part, with 0 as its number of tokens.
dataloader.h describes the format. A shard starts where the last one ended, perhaps within a document.
*/
#pragma once
#include "llmc/common/create_file.h"
#include "llmc/files/dataloader.h"

enum { SHARD_VAL, SHARD_TRAIN };  // index of ShardWriter.open

typedef struct {
    FILE *file;       // NULL: none is open
    uint64_t tokens;  // written to it
} OpenShard;

typedef struct {
    const char *out;
    int vocab_size;
    uint64_t shard_tokens;  // in a training shard; the validation shard has no limit below 2^31 - 1
    OpenShard open[2];
    int finished;         // training shards under their final names
    uint64_t written[2];  // tokens in all
} ShardWriter;

// path = the name of training shard `number`, from 1 on, or of the validation shard, 0; ending: "" or ".part"
static inline void shard_path(char *path, const char *out, int number, const char *ending) {
    format_path(path, "%s_%s_%06d.bin%s", out, number ? "train" : "val", number, ending);
}

static inline int shard_number(const ShardWriter *w, int kind) { return kind == SHARD_TRAIN ? w->finished + 1 : 0; }

__attribute__((noreturn)) static inline void shard_failed(const ShardWriter *w, int kind, const char *what) {
    char path[PATH_LENGTH];
    int error = errno;
    shard_path(path, w->out, shard_number(w, kind), ".part");
    run_error("could not %s '%s': %s; make room, then give the same command again: it goes on where it stopped", what,
              path, strerror(error));
}

static inline void shard_write_header(ShardWriter *w, int kind, uint64_t tokens) {
    uint32_t vocab = w->vocab_size == GPT2_VOCAB ? 0 : (uint32_t)w->vocab_size;
    uint32_t header[TOKEN_HEADER_INTS] = {TOKEN_MAGIC, TOKEN_VERSION, (uint32_t)tokens, vocab};
    FILE *file = w->open[kind].file;
    if (fseeko(file, 0, SEEK_SET) != 0 || fwrite(header, sizeof header, 1, file) != 1) {
        shard_failed(w, kind, "write");
    }
}

// Opens the current shard. tokens > 0: an earlier run wrote this number of tokens, and perhaps more, which are written
// again.
static inline void shard_open(ShardWriter *w, int kind, uint64_t tokens) {
    char path[PATH_LENGTH];
    OpenShard *shard = &w->open[kind];
    shard_path(path, w->out, shard_number(w, kind), ".part");
    shard->file = tokens ? fopen(path, "r+b") : create_file(path);
    shard->tokens = tokens;
    if (!shard->file) { shard_failed(w, kind, "open"); }
    if (!tokens) { shard_write_header(w, kind, 0); }
    off_t bytes = (off_t)(TOKEN_HEADER_INTS * sizeof(uint32_t) + tokens * sizeof(uint16_t));
    if (fseeko(shard->file, 0, SEEK_END) != 0 || ftello(shard->file) < bytes) {
        input_error("'%s' is shorter than when the last run saved its place; delete the files of this output and start "
                    "again",
                    path);
    }
    if (fseeko(shard->file, bytes, SEEK_SET) != 0) { shard_failed(w, kind, "write"); }
}

// Writes all tokens to the disk, so that a machine that loses its power keeps them.
static inline void shard_writer_sync(ShardWriter *w) {
    for (int kind = 0; kind < 2; kind++) {
        FILE *file = w->open[kind].file;
        if (file && (fflush(file) != 0 || fsync(fileno(file)) != 0)) { shard_failed(w, kind, "write"); }
    }
}

// gives the open shard its final name
static inline void shard_finish(ShardWriter *w, int kind) {
    char part[PATH_LENGTH], path[PATH_LENGTH];
    OpenShard *shard = &w->open[kind];
    if (!shard->file) { return; }
    shard_write_header(w, kind, shard->tokens);
    shard_writer_sync(w);
    if (fclose(shard->file) != 0) { shard_failed(w, kind, "write"); }
    shard_path(part, w->out, shard_number(w, kind), ".part");
    shard_path(path, w->out, shard_number(w, kind), "");
    if (rename(part, path) != 0) { shard_failed(w, kind, "rename"); }
    shard->file = NULL;
    shard->tokens = 0;
    w->finished += kind == SHARD_TRAIN;
}

// kind: SHARD_TRAIN or SHARD_VAL. Finishes each training shard that is full.
static inline void shard_writer_append(ShardWriter *w, int kind, const uint16_t *tokens, size_t count) {
    OpenShard *shard = &w->open[kind];
    uint64_t limit = kind == SHARD_TRAIN ? w->shard_tokens : INT32_MAX;
    while (count > 0) {
        if (!shard->file) { shard_open(w, kind, 0); }
        if (kind == SHARD_VAL && shard->tokens + count > limit) {
            run_error("%s_val_000000.bin: more than the %d tokens of a token shard; give a smaller --val-share", w->out,
                      INT32_MAX);
        }
        uint64_t room = limit - shard->tokens;
        size_t now = count < room ? count : (size_t)room;
        if (fwrite(tokens, sizeof *tokens, now, shard->file) != now) { shard_failed(w, kind, "write"); }
        shard->tokens += now;
        w->written[kind] += now;
        tokens += now;
        count -= now;
        if (kind == SHARD_TRAIN && shard->tokens == limit) { shard_finish(w, kind); }
    }
}

// finishes the shards that are open
static inline void shard_writer_close(ShardWriter *w) {
    shard_finish(w, SHARD_VAL);
    shard_finish(w, SHARD_TRAIN);
}

// The open shard of an earlier run may have been finished later: gives it the name ending in .part again.
static inline void shard_reopen(const ShardWriter *w, int kind) {
    char part[PATH_LENGTH], path[PATH_LENGTH];
    shard_path(part, w->out, shard_number(w, kind), ".part");
    shard_path(path, w->out, shard_number(w, kind), "");
    if (rename(path, part) != 0 && errno != ENOENT) { shard_failed(w, kind, "rename"); }
}

// Continues after `finished` whole training shards, open[kind] tokens of the open ones. Deletes the training shards
// that an earlier run wrote after these.
static inline void shard_writer_continue(ShardWriter *w, int finished, const uint64_t open[2]) {
    char path[PATH_LENGTH];
    w->finished = finished;
    for (int kind = 0; kind < 2; kind++) {
        shard_reopen(w, kind);
        if (open[kind]) { shard_open(w, kind, open[kind]); }
        w->written[kind] = open[kind];
    }
    w->written[SHARD_TRAIN] += (uint64_t)finished * w->shard_tokens;
    for (int n = finished + 2, any = true; any; n++) {
        shard_path(path, w->out, n, ".part");
        any = unlink(path) == 0;
        shard_path(path, w->out, n, "");
        any |= unlink(path) == 0;
    }
}
