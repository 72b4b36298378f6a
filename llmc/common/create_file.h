/*
Creating files and folders: never writable by others, whatever the umask, and in a run directory never through a
symbolic link.
defines: FILE_MODE, FOLDER_MODE, create_file, open_written
A run directory may come from someone else, and a link in it may lead anywhere. Reading follows links, since the cache
of Hugging Face consists of links. A file that the user names may be a link too.
*/
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MODE = 0644, FOLDER_MODE = 0755 };  // less the umask

// fopen for writing with the flags of open and FILE_MODE
static inline FILE *open_written(const char *path, int flags, const char *mode) {
    int fd = open(path, flags | O_CLOEXEC, FILE_MODE);
    FILE *file = fd < 0 ? NULL : fdopen(fd, mode);
    if (fd >= 0 && !file) { close(fd); }
    return file;
}

// Opens a new, empty file for writing. An existing file or link of that name is removed; the target of a link stays.
// NULL and errno on failure.
static inline FILE *create_file(const char *path) {
    if (unlink(path) != 0 && errno != ENOENT) { return NULL; }
    return open_written(path, O_WRONLY | O_CREAT | O_EXCL, "wb");
}
