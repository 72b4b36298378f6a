/*
A file that gets its name when it is whole: until then its name is PATH.part.
defines: PartFile, part_open, part_put, part_discard, part_finish
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include <stdbool.h>
#include <unistd.h>

// Syncs and closes a file that is written whole; returns 0 or the errno of a failed write.
static inline int close_synced(FILE *file) {
    bool written = !ferror(file) && fflush(file) == 0 && fsync(fileno(file)) == 0;
    int error = written ? 0 : errno ? errno : EIO;
    if (fclose(file) != 0 && !error) { error = errno; }
    return error;
}

// After the first failure later calls do nothing, and part_finish returns the errno.
typedef struct {
    char path[PATH_LENGTH], part[PATH_LENGTH];
    FILE *file;         // NULL: closed
    int error;          // errno of the first failure, 0 while there is none
    uint64_t position;  // bytes written
} PartFile;

// opens PATH.part
static inline PartFile part_open(const char *path) {
    PartFile f;
    memset(&f, 0, sizeof f);
    format_path(f.path, "%s", path);
    format_path(f.part, "%s.part", path);
    f.file = create_file(f.part);
    if (!f.file) { f.error = errno; }
    return f;
}

static inline void part_put(PartFile *f, const void *data, size_t bytes) {
    if (f->error) { return; }
    errno = 0;
    if (bytes > 0 && fwrite(data, 1, bytes, f->file) != bytes) { f->error = errno ? errno : EIO; }
    f->position += bytes;
}

// Closes and deletes the unfinished file; part_finish then returns ECANCELED, or the errno of an earlier failure.
static inline void part_discard(PartFile *f) {
    if (!f->file) { return; }
    fclose(f->file);
    unlink(f->part);
    f->file = NULL;
    if (!f->error) { f->error = ECANCELED; }
}

// Syncs, closes and renames. Returns 0, or the errno of the first failure: the unfinished file is then deleted. After a
// power cut the folder may still hold the older file, until the folder is synced.
static inline int part_finish(PartFile *f) {
    if (f->error || !f->file) {
        part_discard(f);
        return f->error;
    }
    f->error = close_synced(f->file);
    f->file = NULL;
    if (!f->error && rename(f->part, f->path) != 0) { f->error = errno; }
    if (f->error) { unlink(f->part); }
    return f->error;
}
