/*
manifest.json of a checkpoint: the size and the CRC32C of each of its files.
  {"files":{"config.json":{"bytes":711,"crc32c":"0a1b2c3d"},...},"crc32c":"5e6f7081"}
The last number is the CRC32C of all bytes before the last comma. The bytes from this comma on are always the same but
for the number, so any changed byte of the manifest is detected.
defines: MANIFEST, FileSum, manifest_write, ManifestCheck, manifest_agrees, manifest_check
*/
#pragma once
#include "llmc/common/crc32c.h"
#include "llmc/files/json_file.h"
#include "llmc/files/safetensors.h"
#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

#define MANIFEST "manifest.json"

// ---- one file

typedef struct {
    uint64_t bytes;
    uint32_t crc;
} FileSum;

// The size and the CRC32C of a file, read by all threads. Returns 0 or an errno; ENODATA: the file became shorter.
static inline int file_sum(const char *path, FileSum *file) {
    enum { PART = 1 << 22 };
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = 0;  // without O_NONBLOCK the open of a pipe hangs
    if (fd < 0) { return errno; }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return EINVAL;
    }
    uint64_t bytes = (uint64_t)info.st_size;
    uint32_t sum = 0;
#pragma omp parallel for schedule(dynamic) reduction(^ : sum) reduction(max : error) if (bytes > 2 * PART)
    for (uint64_t at = 0; at < bytes; at += PART) {
        size_t n = bytes - at < PART ? (size_t)(bytes - at) : (size_t)PART;
        void *part = xmalloc(n);
        Crc32cSum own = {0, bytes};
        int failed = read_exact(fd, part, n, at);
        if (!failed) { crc32c_add(&own, at, part, n); }
        if (failed > error) { error = failed; }
        sum ^= own.sum;
        free(part);
    }
    close(fd);
    const Crc32cSum whole = {sum, bytes};
    file->bytes = bytes;
    file->crc = crc32c_total(&whole);
    return error;
}

// ---- the text

// tail = the end of a manifest after text (length). Returns its length, which is always the same.
static inline int manifest_tail(char tail[32], const char *text, size_t length) {
    return snprintf(tail, 32, ",\n\t\"crc32c\":\t\"%08x\"\n}\n", crc32c(0, text, length));
}

// The text of a manifest, which the caller frees. files: "files" of the manifest, which stays the caller's.
static inline char *manifest_text(cJSON *files) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemReferenceToObject(json, "files", files);
    char *printed = cJSON_Print(json);
    if (!printed) { run_error("out of host memory: could not build %s", MANIFEST); }
    cJSON_Delete(json);
    size_t length = strlen(printed) - 1;  // without the last brace and the end of the line before it
    while (printed[length - 1] == '\n') { length--; }
    char *text = (char *)xmalloc(length + 32);
    memcpy(text, printed, length);
    manifest_tail(text + length, text, length);
    cJSON_free(printed);
    return text;
}

static inline void manifest_add(cJSON *files, const char *name, FileSum file) {
    char crc[16];
    snprintf(crc, sizeof crc, "%08x", file.crc);
    cJSON *entry = cJSON_AddObjectToObject(files, name);
    cJSON_AddNumberToObject(entry, "bytes", (double)file.bytes);
    cJSON_AddStringToObject(entry, "crc32c", crc);
}

// ---- writing

// Adds the files of a folder whose sums are not known, sorted by name. Returns 0 or an errno.
static inline int manifest_add_folder(cJSON *files, const char *folder) {
    char path[PATH_LENGTH];
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort), error = count < 0 ? errno : 0;
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        FileSum file = {0, 0};
        format_path(path, "%s/%s", folder, name);
        bool is_known = name[0] == '.' || strcmp(name, MANIFEST) == 0 || cJSON_GetObjectItemCaseSensitive(files, name);
        if (!error && !is_known) {
            error = file_sum(path, &file);
            if (!error) { manifest_add(files, name, file); }
        }
        free(entries[i]);
    }
    if (count >= 0) { free(entries); }
    return error;
}

// Writes the manifest of a folder's files, which are all on the disk. known (count): the sums of names (count), files
// that are not read again. Returns 0 or an errno.
static inline int manifest_write(const char *folder, const char *const *names, const FileSum *known, int count) {
    char path[PATH_LENGTH];
    cJSON *files = cJSON_CreateObject();
    for (int i = 0; i < count; i++) { manifest_add(files, names[i], known[i]); }
    int error = manifest_add_folder(files, folder);
    if (!error) {
        char *text = manifest_text(files);
        format_path(path, "%s/" MANIFEST, folder);
        PartFile file = part_open(path);
        part_put(&file, text, strlen(text));
        free(text);
        error = part_finish(&file);
    }
    cJSON_Delete(files);
    return error;
}

// ---- checking

typedef enum {
    MANIFEST_GOOD,       // every file is as the manifest says
    MANIFEST_MISSING,    // of a model that is no checkpoint, or of a checkpoint of an older version
    MANIFEST_DAMAGED,    // a file is not as the manifest says
    MANIFEST_INVALID,    // a byte of the manifest is wrong, or it is of another program
    MANIFEST_UNREADABLE  // permissions, descriptors or the like: the files may be good
} ManifestCheck;

// "files" of a manifest, which the caller deletes; NULL: a byte of the manifest is wrong
static inline cJSON *manifest_files(const char *path) {
    char tail[32];
    struct stat info;  // the open of a pipe hangs
    bool regular = stat(path, &info) == 0 && S_ISREG(info.st_mode);
    char *text = regular ? read_text_file(path) : NULL;
    size_t length = text ? strlen(text) : 0, end = (size_t)manifest_tail(tail, "", 0);
    bool whole = text && length > end;
    if (whole) { manifest_tail(tail, text, length - end); }
    cJSON *json = whole && memcmp(text + length - end, tail, end) == 0 ? cJSON_Parse(text) : NULL;
    cJSON *files = cJSON_DetachItemFromObjectCaseSensitive(json, "files");
    cJSON_Delete(json);
    free(text);
    if (cJSON_IsObject(files)) { return files; }
    cJSON_Delete(files);
    return NULL;
}

// whether an errno of a read says that the bytes are wrong
static inline bool is_damage(int error) {
    return error == ENOENT || error == ENOTDIR || error == ENODATA || error == EINVAL || error == EIO;
}

// whether a name is that of a file in the folder itself, and can be printed. manifest_write adds no hidden file.
static inline bool manifest_is_name(const char *name) {
    size_t length = strlen(name);
    for (const char *c = name; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127 || *c == '/') { return false; }
    }
    return length > 0 && length <= NAME_MAX && name[0] != '.';
}

// whether a text is a CRC32C as manifest_write prints it
static inline bool manifest_is_crc(const char *text) {
    return strlen(text) == 8 && strspn(text, "0123456789abcdef") == 8;
}

// Compares a file with its entry. `why` says what was found.
static inline ManifestCheck manifest_check_file(const char *folder, const cJSON *entry, char *why, size_t size) {
    char path[PATH_LENGTH], crc[16];
    FileSum file = {0, 0};
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(entry, "bytes");
    const char *sum = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "crc32c"));
    if (!manifest_is_name(entry->string) || !cJSON_IsNumber(bytes) || !sum || !manifest_is_crc(sum)) {
        snprintf(why, size, "%s has an entry of another program", MANIFEST);
        return MANIFEST_INVALID;
    }
    format_path(path, "%s/%s", folder, entry->string);
    int error = file_sum(path, &file);
    if (error) {
        snprintf(why, size, "%.100s could not be read: %s", entry->string, strerror(error));
        return is_damage(error) ? MANIFEST_DAMAGED : MANIFEST_UNREADABLE;
    }
    snprintf(crc, sizeof crc, "%08x", file.crc);
    if ((double)file.bytes != bytes->valuedouble) {
        snprintf(why, size, "%.100s has %llu bytes, expected %.0f", entry->string, (unsigned long long)file.bytes,
                 bytes->valuedouble);
    } else if (strcmp(crc, sum) != 0) {
        snprintf(why, size, "%.100s has CRC32C %s, expected %s", entry->string, crc, sum);
    } else {
        return MANIFEST_GOOD;
    }
    return MANIFEST_DAMAGED;
}

// whether a file of a folder is as the manifest says; a folder without a manifest, or a manifest without the file, says
// nothing
static inline bool manifest_agrees(const char *folder, const char *name) {
    char path[PATH_LENGTH], why[256];
    format_path(path, "%s/" MANIFEST, folder);
    if (access(path, F_OK) != 0) { return true; }
    cJSON *files = manifest_files(path), *entry = cJSON_GetObjectItemCaseSensitive(files, name);
    bool agrees = files && (!entry || manifest_check_file(folder, entry, why, sizeof why) == MANIFEST_GOOD);
    cJSON_Delete(files);
    return agrees;
}

// Compares the files of a folder with its manifest. except: a file that is not read, or NULL. why (size bytes): what is
// damaged or cannot be read, in words that follow the name of the folder.
static inline ManifestCheck manifest_check(const char *folder, const char *except, char *why, size_t size) {
    char path[PATH_LENGTH];
    format_path(path, "%s/" MANIFEST, folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = fd < 0 ? errno : 0;
    if (fd >= 0) { close(fd); }
    if (error == ENOENT) { return MANIFEST_MISSING; }
    if (error) {
        snprintf(why, size, "%s could not be read: %s", MANIFEST, strerror(error));
        return is_damage(error) ? MANIFEST_INVALID : MANIFEST_UNREADABLE;
    }
    cJSON *files = manifest_files(path), *entry;
    ManifestCheck check = files ? MANIFEST_GOOD : MANIFEST_INVALID;
    if (!files) { snprintf(why, size, "%s has a wrong byte", MANIFEST); }
    cJSON_ArrayForEach(entry, files) {
        if (check != MANIFEST_GOOD || (except && strcmp(entry->string, except) == 0)) { continue; }
        check = manifest_check_file(folder, entry, why, size);
    }
    cJSON_Delete(files);
    return check;
}
