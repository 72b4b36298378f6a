// Fuzzes manifest.json of a checkpoint; an input may be its "files" alone. The folder has two files of the input, a
// folder and a pipe. No name in the manifest opens a file outside the folder.
#include "dev/fuzz/fuzz.h"
#include <stdarg.h>

// whether open() checks that a file is in the folder of this process
static bool *fuzz_open_checks(void) {
    static bool checks;
    return &checks;
}

static void stop_open_checks(void) { *fuzz_open_checks() = false; }

static void fuzz_require_inside(int fd) {
    char link[64], path[PATH_LENGTH], inside[PATH_LENGTH];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    fuzz_require(length > 0, "/proc");
    path[length] = 0;
    fuzz_require(realpath(fuzz_state()->folder, inside) != NULL, "the folder of this process");
    size_t n = strlen(inside);
    fuzz_require(strncmp(path, inside, n) == 0 && (path[n] == '/' || !path[n]), "no open file outside the folder");
}

static int fuzz_open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    int fd = open(path, flags, flags & O_CREAT ? va_arg(args, int) : 0);
    va_end(args);
    if (fd >= 0 && *fuzz_open_checks()) { fuzz_require_inside(fd); }
    return fd;
}

#define open(...) fuzz_open(__VA_ARGS__)
#include "llmc/checkpoint/manifest.h"
#undef open

static const char *const fuzz_names[] = {"a.bin", "b.txt"};

// Writes manifest.json of the folder from the text of "files".
static void write_manifest(FuzzBytes part) {
    char *files = fuzz_text(part), *text = (char *)xmalloc(part.size + 16);
    int length = sprintf(text, "{\"files\":%s}", files);
    fuzz_write(MANIFEST, (FuzzBytes){(const uint8_t *)text, (size_t)length});
    free(files);
    free(text);
}

// A folder that agrees with its manifest has each file of it.
static void check_good(const FuzzBytes *content) {
    cJSON *json = try_read_json(fuzz_path(MANIFEST)), *entry;
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files");
    fuzz_require(cJSON_IsObject(files), "the manifest of a good folder");
    cJSON_ArrayForEach(entry, files) {
        int i = strcmp(entry->string, fuzz_names[1]) == 0;
        char crc[16];
        snprintf(crc, sizeof crc, "%08x",
                 crc32c_whole(crc32c_part(content[i].data, content[i].size, 0), content[i].size));
        const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(entry, "bytes");
        const char *sum = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "crc32c"));
        fuzz_require(strcmp(entry->string, fuzz_names[i]) == 0, "the name of a regular file");
        fuzz_require(bytes && bytes->valuedouble == (double)content[i].size, "the size of the file");
        fuzz_require(sum && strcmp(sum, crc) == 0, "the CRC32C of the file");
    }
    cJSON_Delete(json);
}

// libgomp keeps the memory of its first parallel region for the next ones
static void enter_first_region(const char *path) {
    static bool entered;
    uint64_t bytes;
    uint32_t crc;
    *fuzz_records() = false;
    if (!entered) { file_crc(path, &bytes, &crc); }
    *fuzz_records() = true;
    entered = true;
}

static void read_manifest(FuzzBytes input) {
    char why[128];
    int kind = fuzz_choice(&input, 2);
    FuzzBytes manifest = fuzz_part(&input), content[2] = {fuzz_part(&input), input};
    for (int i = 0; i < 2; i++) { fuzz_write(fuzz_names[i], content[i]); }
    enter_first_region(fuzz_path(fuzz_names[0]));
    mkdir(fuzz_path("folder"), 0777);
    mkfifo(fuzz_path("pipe"), 0666);
    kind == 0 ? (void)fuzz_write(MANIFEST, manifest) : write_manifest(manifest);
    memset(why, 1, sizeof why);
    *fuzz_open_checks() = true;
    fuzz_on_stop(stop_open_checks);
    bool agrees = manifest_check(fuzz_state()->folder, NULL, why, sizeof why) == 0;
    stop_open_checks();
    if (agrees) {
        check_good(content);
    } else {
        fuzz_require(memchr(why, 0, sizeof why) && *why, "a reason");
    }
}

FUZZ_TARGET(manifest, read_manifest)
