/*
Files: created so that nobody else can write to them, given their name when they are whole, and read exactly.
A run directory may come from someone else, and a link in it may lead anywhere: writing never follows a symbolic link
there. Reading follows links, since the cache of Hugging Face consists of links. A file that the user names may be a
link too.
*/
#pragma once
#include "llmc/common/check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MODE = 0644, FOLDER_MODE = 0755 };  // less the umask

// folder = the folder that holds a file or folder; "." and "/" hold themselves
static inline void folder_of(char *folder, const char *path) {
    const char *slash = strrchr(path, '/');
    int length = slash && slash > path ? (int)(slash - path) : 1;
    format_path(folder, "%.*s", length, slash ? path : ".");
}

// fopen for writing with the flags of open and FILE_MODE
static inline FILE *open_written(const char *path, int flags, const char *mode) {
    int fd = open(path, flags | O_CLOEXEC, FILE_MODE);
    FILE *file = fd < 0 ? NULL : fdopen(fd, mode);
    if (fd >= 0 && !file) { close(fd); }
    return file;
}

// Opens a new, empty file for writing in place of a file or link. NULL and errno on failure.
static inline FILE *create_file(const char *path) {
    if (unlink(path) != 0 && errno != ENOENT) { return NULL; }
    return open_written(path, O_WRONLY | O_CREAT | O_EXCL, "wb");
}

// ---- atomic write: the file is PATH.part until it is whole.
// After the first failure later calls do nothing, and part_finish returns the errno.

typedef struct {
    char path[PATH_LENGTH], part[PATH_LENGTH];
    FILE *file;         // NULL: closed
    int error;          // errno of the first failure, 0 while there is none
    uint64_t position;  // bytes written
} PartFile;

// If fd is -1, creates PATH.part. Otherwise fd is an open PATH.part: empties it, and closes it with the file.
static inline PartFile part_of_fd(const char *path, int fd) {
    PartFile f = {""};
    format_path(f.path, "%s", path);
    format_path(f.part, "%s.part", path);
    f.file = fd < 0 ? create_file(f.part) : ftruncate(fd, 0) == 0 ? fdopen(fd, "wb") : NULL;
    if (!f.file) { f.error = errno; }
    return f;
}

static inline PartFile part_open(const char *path) { return part_of_fd(path, -1); }

static inline void part_put(PartFile *f, const void *data, size_t bytes) {
    if (f->error) { return; }
    errno = 0;
    if (bytes > 0 && fwrite(data, 1, bytes, f->file) != bytes) { f->error = errno ? errno : EIO; }
    f->position += bytes;
}

// part_put at an offset, which is at most the position
static inline void part_put_at(PartFile *f, uint64_t offset, const void *data, size_t bytes) {
    uint64_t end = f->position > offset + bytes ? f->position : offset + bytes;
    if (!f->error && fseeko(f->file, (off_t)offset, SEEK_SET) != 0) { f->error = errno; }
    part_put(f, data, bytes);
    if (!f->error && fseeko(f->file, (off_t)end, SEEK_SET) != 0) { f->error = errno; }
    f->position = end;
}

// Closes and deletes the unfinished file; part_finish then returns ECANCELED, or the errno of an earlier failure.
static inline void part_discard(PartFile *f) {
    if (f->file) {
        fclose(f->file);
        unlink(f->part);
    }
    f->file = NULL;
    if (!f->error) { f->error = ECANCELED; }
}

// Syncs and closes PATH.part, which is whole. Returns 0 or the errno of the first failure: the file is then deleted.
static inline int part_close(PartFile *f) {
    if (f->error || !f->file) {
        part_discard(f);
        return f->error;
    }
    bool written = !ferror(f->file) && fflush(f->file) == 0 && fsync(fileno(f->file)) == 0;
    f->error = written ? 0 : errno ? errno : EIO;
    if (fclose(f->file) != 0 && written) { f->error = errno; }
    f->file = NULL;
    if (f->error) { unlink(f->part); }
    return f->error;
}

// part_close, then renames. After a power cut the folder may still hold the older file, until the folder is synced.
static inline int part_finish(PartFile *f) {
    if (part_close(f) == 0 && rename(f->part, f->path) != 0) {
        f->error = errno;
        unlink(f->part);
    }
    return f->error;
}

// ---- reading

// the reason in words for an error of open_regular or read_exact
static inline const char *read_error(int error) {
    if (error == EINVAL) { return "it is a folder, a device or a pipe"; }
    return error == ENODATA ? "the file ends too early" : strerror(error);
}

// Opens a regular file to read, and fills *info. -1 and errno on failure, EINVAL if it is no regular file.
static inline int open_regular(const char *path, struct stat *info) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // without O_NONBLOCK the open of a pipe hangs
    if (fd >= 0 && (fstat(fd, info) != 0 || !S_ISREG(info->st_mode))) {
        close(fd);
        errno = EINVAL;
        fd = -1;
    }
    return fd;
}

// pread of exactly `bytes` bytes. Returns 0 or an errno, ENODATA at the end of the file.
static inline int read_exact(int fd, void *out, size_t bytes, uint64_t offset) {
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got == 0) { return ENODATA; }
        if (got > 0) { done += (size_t)got; }
        if (got < 0 && errno != EINTR) { return errno; }
    }
    return 0;
}

// Reads a whole file or pipe; a NUL follows its *bytes. The caller frees it. NULL and errno, EFBIG above `max`.
static inline char *read_whole_file(const char *path, size_t max, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) { return NULL; }
    enum { CHUNK = 1 << 16 };
    char *data = NULL;
    *bytes = 0;
    for (size_t got = 1; got > 0 && *bytes <= max; *bytes += got) {
        data = (char *)xrealloc(data, *bytes + CHUNK + 1);
        got = fread(data + *bytes, 1, CHUNK, file);
    }
    int error = *bytes > max ? EFBIG : ferror(file) ? errno : 0;
    data[*bytes] = 0;
    fclose(file);
    if (!error) { return data; }
    free(data);
    *bytes = 0;
    errno = error;
    return NULL;
}
