/*
Runs the executions of a fuzz target in one process, one after another, although a reader that refuses its input stops
the program.

Stop        The stop hook of common/check.h jumps back to fuzz_run. The frames between are left without their clean-up.
Memory      The sanitizer reports each allocation and each free of the process, also those of cJSON and libc. fuzz_run
            frees the allocations that a stopped reader leaves.
Files       fopen, fdopen, open_memstream and fclose are wrapped, since libc lists open streams: a stopped reader's
            streams are closed before its memory is freed. Other descriptors are closed by number.
Threads     A target joins the threads of its reader, also after a stop: fuzz_on_stop. The allocations of
            pthread_create are not the execution's, since libc keeps them for the next thread.
Leaks       A reader that returns must have freed and closed all it took; otherwise fuzz_run aborts.
Input       A file is written to $TMPDIR, or /tmp, under the name that its kind needs. The line "~~~" separates the
            files of an input.
Output      FUZZ_VERBOSE=1 prints the sentence of a reader that stops.
*/
#pragma once
#include "llmc/common/check.h"
#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <unistd.h>

// of the sanitizer's library; gcc's packages lack its header sanitizer/allocator_interface.h
#ifdef __cplusplus
extern "C"
#endif
    int
    __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void *, size_t),
                                              void (*freed)(const volatile void *));

// bytes of an allocation. The largest constant of a reader is the window of a corpus, 4 MiB; inputs have 64 KiB. Unlike
// libFuzzer's -malloc_limit_mb, the limit holds in replay.c too.
enum { FUZZ_MOST_BYTES = 8 << 20 };
enum { FUZZ_SLOTS = 1 << 19, FUZZ_MOST_ALLOCATIONS = FUZZ_SLOTS / 2, FUZZ_MOST_STREAMS = 16 };

typedef struct {
    FILE *stream;           // NULL: a free entry
    char *text, **text_to;  // of open_memstream; text_to NULL: another kind of stream
    size_t size, *size_to;
} FuzzStream;

typedef struct {
    jmp_buf before;                 // where a stopped reader continues
    const void *slots[FUZZ_SLOTS];  // a hash table of live allocations; a freed one stays until the end of the run
    bool live[FUZZ_SLOTS];
    int used[FUZZ_MOST_ALLOCATIONS];  // the slots of this execution
    int num_used, first_fd;           // descriptors from first_fd on belong to the execution
    FuzzStream streams[FUZZ_MOST_STREAMS];
    void (*on_stop)(void);  // or NULL
    locale_t utf8;
    char folder[256];
} FuzzState;

// A hook of the sanitizer has no argument, so the state is a global.
static inline FuzzState *fuzz_state(void) {
    static FuzzState state;
    return &state;
}

// whether this thread's allocations belong to the execution
static inline bool *fuzz_records(void) {
    static __thread bool records;
    return &records;
}

// Aborts with a sentence unless `holds`: a finding.
static inline void fuzz_require(bool holds, const char *expected) {
    if (holds) { return; }
    fprintf(stderr, "fuzz: expected %s\n", expected);
    abort();
}

// ---- memory

// the slot of an allocation, or the free slot for it
static inline int fuzz_slot(const FuzzState *s, const void *p) {
    int slot = (int)((uintptr_t)p / 16 * 0x9E3779B97F4A7C15ull >> 45);
    while (s->slots[slot] && s->slots[slot] != p) { slot = (slot + 1) % FUZZ_SLOTS; }
    return slot;
}

static inline void fuzz_allocated(const volatile void *p, size_t bytes) {
    FuzzState *s = fuzz_state();
    if (!*fuzz_records() || !p) { return; }
    *fuzz_records() = false;
    fuzz_require(bytes <= FUZZ_MOST_BYTES, "no allocation of more than 8 MiB for so short an input");
    int slot = fuzz_slot(s, (const void *)p);
    if (!s->slots[slot]) {
        fuzz_require(s->num_used < FUZZ_MOST_ALLOCATIONS, "fewer allocations for so short an input");
        s->used[s->num_used++] = slot;
    }
    s->slots[slot] = (const void *)p;
    s->live[slot] = true;
    *fuzz_records() = true;
}

static inline void fuzz_freed(const volatile void *p) {
    FuzzState *s = fuzz_state();
    if (*fuzz_records() && p) { s->live[fuzz_slot(s, (const void *)p)] = false; }
}

// Frees the live allocations and forgets all. Returns the number of live ones.
static inline int fuzz_free_all(FuzzState *s) {
    int left = 0;
    for (int i = 0; i < s->num_used; i++) {
        int slot = s->used[i];
        if (s->live[slot]) { free((void *)s->slots[slot]); }
        left += s->live[slot];
        s->live[slot] = false;
        s->slots[slot] = NULL;
    }
    s->num_used = 0;
    return left;
}

// ---- streams

static inline FILE *fuzz_stream(FILE *stream, char **text_to, size_t *size_to) {
    FuzzState *s = fuzz_state();
    int i = 0;
    while (i < FUZZ_MOST_STREAMS && s->streams[i].stream) { i++; }
    fuzz_require(i < FUZZ_MOST_STREAMS, "fewer open streams");
    FuzzStream *entry = &s->streams[i];
    // libc writes the text of a memory stream through a pointer that must outlive the reader's frame
    entry->stream = text_to ? open_memstream(&entry->text, &entry->size) : stream;
    entry->text_to = text_to;
    entry->size_to = size_to;
    return entry->stream;
}

static inline FILE *fuzz_fopen(const char *path, const char *mode) {
    return fuzz_stream(fopen(path, mode), NULL, NULL);
}
static inline FILE *fuzz_fdopen(int fd, const char *mode) { return fuzz_stream(fdopen(fd, mode), NULL, NULL); }
static inline FILE *fuzz_open_memstream(char **text, size_t *size) { return fuzz_stream(NULL, text, size); }

static inline int fuzz_fclose(FILE *stream) {
    FuzzState *s = fuzz_state();
    int i = 0;
    while (i < FUZZ_MOST_STREAMS && s->streams[i].stream != stream) { i++; }
    int status = fclose(stream);
    if (i == FUZZ_MOST_STREAMS) { return status; }
    s->streams[i].stream = NULL;
    if (s->streams[i].text_to) {
        *s->streams[i].text_to = s->streams[i].text;
        *s->streams[i].size_to = s->streams[i].size;
    }
    return status;
}

static inline int fuzz_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                                      void *argument) {
    bool records = *fuzz_records();
    *fuzz_records() = false;
    int status = pthread_create(thread, attributes, body, argument);
    *fuzz_records() = records;
    return status;
}

#define pthread_create fuzz_pthread_create
#define fopen fuzz_fopen
#define fdopen fuzz_fdopen
#define open_memstream fuzz_open_memstream
#define fclose fuzz_fclose

// ---- the files of an input

typedef struct {
    const uint8_t *data;
    size_t size;
} FuzzBytes;

// the bytes before the next line "~~~", which are taken from *rest with the line; without such a line, all of them
static inline FuzzBytes fuzz_part(FuzzBytes *rest) {
    static const char separator[] = "\n~~~\n";
    FuzzBytes part = *rest;
    const uint8_t *found =
        rest->size ? (const uint8_t *)memmem(rest->data, rest->size, separator, strlen(separator)) : NULL;
    size_t taken = found ? (size_t)(found - rest->data) + strlen(separator) : rest->size;
    if (found) { part.size = (size_t)(found - rest->data); }
    rest->data += taken;
    rest->size -= taken;
    return part;
}

// The first byte, which is taken from *rest, as a number below n; the character '0' is 0 if 48 is a multiple of n.
static inline int fuzz_choice(FuzzBytes *rest, int n) {
    if (rest->size == 0) { return 0; }
    rest->size--;
    return *rest->data++ % n;
}

// a copy with a NUL, which the caller frees
static inline char *fuzz_text(FuzzBytes part) {
    char *text = (char *)xmalloc(part.size + 1);
    memcpy(text, part.data, part.size);
    text[part.size] = 0;
    return text;
}

// The path of `name` in the folder of this process. Eight calls later another path overwrites it.
static inline const char *fuzz_path(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_state()->folder, name);
    return path;
}

// Writes a file and returns its path.
static inline const char *fuzz_write(const char *name, FuzzBytes part) {
    const char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    fuzz_require(fd >= 0 && write(fd, part.data, part.size) == (ssize_t)part.size, "room in TMPDIR");
    close(fd);
    return path;
}

// ---- an execution

typedef void (*FuzzReader)(FuzzBytes input);

// Calls `function` if this execution stops, before its memory is freed.
static inline void fuzz_on_stop(void (*function)(void)) { fuzz_state()->on_stop = function; }

// the stop hook
static inline void fuzz_stop(void *ctx, int status, const char *sentence) {
    fuzz_require(status == EXIT_BAD_INPUT || status == EXIT_RUN_FAILED, "exit status 1 or 2");
    fuzz_require(*sentence && strlen(sentence) < 8191, "an error of one sentence");
    if (getenv("FUZZ_VERBOSE")) { fprintf(stderr, "stopped: %s\n", sentence); }
    longjmp(((FuzzState *)ctx)->before, 1);
}

// deletes all files in the folder of this process
static inline void fuzz_empty_folder(void) {
    DIR *dir = opendir(fuzz_state()->folder);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) { remove(fuzz_path(entry->d_name)); }
    if (dir) { closedir(dir); }
}

static inline void fuzz_remove_folder(void) {
    fuzz_empty_folder();
    rmdir(fuzz_state()->folder);
}

static inline void fuzz_prepare(FuzzState *s) {
    const char *parent = getenv("TMPDIR");
    snprintf(s->folder, sizeof s->folder, "%s/fuzz_XXXXXX", parent ? parent : "/tmp");
    fuzz_require(mkdtemp(s->folder) != NULL, "a TMPDIR that can be written");
    atexit(fuzz_remove_folder);
    static char buffer[BUFSIZ];  // else libc allocates it in the first execution that prints
    setvbuf(stdout, buffer, _IOLBF, sizeof buffer);
    // fills the gaps between open descriptors, so that every later one is at least first_fd
    for (int i = 0; i < 64; i++) { s->first_fd = dup(STDERR_FILENO); }
    close(s->first_fd);
    // libc shares the data of a locale: the data of one in use stays, whatever the execution frees
    s->utf8 = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
    __sanitizer_install_malloc_and_free_hooks(fuzz_allocated, fuzz_freed);
}

// Closes and frees all that the execution holds. Aborts if a reader that has returned holds anything.
static inline void fuzz_clean(FuzzState *s, bool stopped) {
    if (stopped && s->on_stop) { s->on_stop(); }
    int streams = 0, next = dup(STDERR_FILENO);
    for (int i = 0; i < FUZZ_MOST_STREAMS; i++) {
        streams += s->streams[i].stream != NULL;
        if (s->streams[i].stream) { fuzz_fclose(s->streams[i].stream); }
    }
    *fuzz_records() = false;
    int allocations = fuzz_free_all(s);
    close_range((unsigned)s->first_fd, ~0u, 0);
    if (stopped || (allocations == 0 && streams == 0 && next == s->first_fd)) { return; }
    fprintf(stderr, "fuzz: a reader that returned left %d allocations, %d streams and %d descriptors\n", allocations,
            streams, next - s->first_fd);
    abort();
}

// One execution. Always returns 0, as libFuzzer wants.
static inline int fuzz_run(FuzzReader reader, const uint8_t *data, size_t size) {
    FuzzState *s = fuzz_state();
    FuzzBytes input = {data, size};
    volatile bool stopped = true;
    if (!*s->folder) { fuzz_prepare(s); }
    stop_hook()->stop = fuzz_stop;
    stop_hook()->ctx = s;
    s->on_stop = NULL;
    if (setjmp(s->before) == 0) {
        *fuzz_records() = true;
        reader(input);
        stopped = false;
    }
    fuzz_clean(s, stopped);
    return 0;
}

// FUZZ_TARGET(name, reader): the entry of libFuzzer, or in replay.c a function for each target
#ifdef FUZZ_REPLAY
#define FUZZ_TARGET(name, reader)                                                                                      \
    static int target_##name(const uint8_t *data, size_t size) { return fuzz_run(reader, data, size); }
#else
#define FUZZ_TARGET(name, reader)                                                                                      \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);                                                      \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return fuzz_run(reader, data, size); }
#endif
