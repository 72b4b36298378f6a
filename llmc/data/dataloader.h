/*
Files of tokens, and a loader that reads the next batch in a thread while the current step runs.

Files       A token shard of llm.c, under any name (a name in .bin must be one): 256 int32 {20240520, 1, number of
            tokens, vocabulary, 0...}, then the tokens as uint16, little-endian. A vocabulary of 0, as in llm.c's
            shards, is GPT-2's: 50257. Any other file is text: each byte is a token, the vocabulary is 256.
Sequence    j of a file is its tokens jT .. jT+T, both included. Inputs are the first T, targets the last T. A file of n
            tokens holds (n - 1) / T sequences, perhaps none. Tokens after the last whole sequence are not used.
Order       sequence number s of a run is a pure function of (seed, s), so a position is the whole state of a loader:
              epoch e = s / sequences_per_epoch,  k = s % sequences_per_epoch
              not shuffled  the k-th sequence, files in sorted order
              shuffled      files permuted by (seed, e), the sequences of a file by (seed, e, file): reading stays
                            within one file at a time
            Rank r of R reads s = position + rB + b for b < B, and the position advances by RB. The micro-batches of the
            R ranks are together the same for every R.
Examples    Examples packed into sequences of T tokens (examples.h) are permuted by (seed, e).
Validation  A loader of one epoch has sequences without targets after it, so each sequence is scored once.
Reading     A thread reads one micro-batch ahead. An error in a batch, a bad id or a failed read, is reported by
            require_next_batch, or by the dataloader_next that would return the batch.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/hash.h"
#include "llmc/common/progress.h"
#include "llmc/common/range.h"
#include "llmc/common/rng.h"
#include "llmc/data/examples.h"
#include "llmc/shapes/params.h"
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- files of tokens

enum { TOKEN_HEADER_INTS = 256, TOKEN_VERSION = 1, BYTE_VOCABULARY = 256 };

typedef struct {
    char *path;
    uint64_t first_token, num_tokens;  // the tokens of the file that are used
    uint64_t bytes;                    // of the whole file, when it was opened
    struct timespec modified;          // time of modification when it was opened
} TokenFile;

typedef struct {
    TokenFile *files;
    int num_files;
    int token_bytes;   // text: 1; shards of llm.c, which have a header: 2
    int vocab_size;    // text: 256; shards: 50257, or as in the header
    const char *flag;  // that named the files, for messages
    const char *use;   // for messages: "", " to train on" or " held out for validation"
} TokenFiles;

// the number of tokens in a shard's header, and *vocab_size; stops unless the size of the file agrees
static inline uint64_t token_header_read(const char *flag, const char *path, int fd, uint64_t file_bytes,
                                         int *vocab_size) {
    uint32_t header[TOKEN_HEADER_INTS];
    if (file_kind(path) != FILE_TOKENS) {
        refuse_kind(flag, path, "a token shard of llm.c or --tokenize (a text needs another name than .bin)");
    }
    int error = read_exact(fd, header, sizeof header, 0);
    if (error) { input_error("%s: could not read the header of %s: %s; copy it again", flag, path, read_error(error)); }
    uint64_t expected_bytes = sizeof header + 2 * (uint64_t)header[2];
    if (header[1] != TOKEN_VERSION || header[3] > 65536 || header[3] == 1 || expected_bytes != file_bytes) {
        input_error("%s: %s has %" PRIu64 " bytes, version %" PRIu32 " and a vocabulary of %" PRIu32
                    ", expected %" PRIu64 " bytes for its %" PRIu32
                    " tokens, version 1 and 0 (GPT-2's vocabulary) or 2 to 65536; the file is "
                    "damaged or unfinished: copy it, or make it again with --tokenize",
                    flag, path, file_bytes, header[1], header[3], expected_bytes, header[2]);
    }
    *vocab_size = header[3] ? (int)header[3] : (int)GPT2_VOCAB;
    return header[2];
}

// Fills *vocab_size and *file, except path and first token. Stops unless the file is regular, readable and not empty.
static inline void token_file_open(TokenFile *file, const char *flag, const char *path, bool shard, int *vocab_size) {
    struct stat info;
    int fd = open_regular(path, &info);
    if (fd < 0) {
        input_error("%s: could not open %s: %s; name files of text or tokens", flag, path, read_error(errno));
    }
    file->bytes = (uint64_t)info.st_size;
    file->modified = info.st_mtim;
    *vocab_size = BYTE_VOCABULARY;
    bool header = shard && file->bytes > 0;
    file->num_tokens = header ? token_header_read(flag, path, fd, file->bytes, vocab_size) : file->bytes;
    if (file->num_tokens == 0) { input_error("%s: %s is empty; name files that hold text or tokens", flag, path); }
    close(fd);
}

// The files that match a glob pattern, sorted by name. `flag` is the flag of the pattern, for messages; it is not
// copied. Stops unless at least one file matches and all are whole and of one kind. Close with token_files_close.
static inline TokenFiles token_files_open(const char *flag, const char *pattern) {
    glob_t found = require_files(flag, pattern);
    bool shard = kind_of_data(found.gl_pathv[0]) == FILE_TOKENS;
    TokenFile *all = (TokenFile *)xcalloc(found.gl_pathc, sizeof *all);
    TokenFiles files = {all, (int)found.gl_pathc, shard ? 2 : 1, 0, flag, ""};
    for (int f = 0; f < files.num_files; f++) {
        const char *path = found.gl_pathv[f];
        if ((kind_of_data(path) == FILE_TOKENS) != shard) {
            input_error("%s: '%s' matches token shards and text alike (%s, %s); give a pattern that matches one kind",
                        flag, pattern, found.gl_pathv[0], path);
        }
        files.files[f].path = xstrdup(path);
        int vocab_size;
        token_file_open(&files.files[f], flag, path, shard, &vocab_size);
        if (f > 0 && vocab_size != files.vocab_size) {
            input_error("%s: %s has a vocabulary of %d tokens, and %s has %d; give shards of one tokenizer", flag, path,
                        vocab_size, found.gl_pathv[0], files.vocab_size);
        }
        files.vocab_size = vocab_size;
    }
    globfree(&found);
    return files;
}

static inline void token_files_close(TokenFiles *files) {
    for (int f = 0; f < files->num_files; f++) { free(files->files[f].path); }
    free(files->files);
}

static inline uint64_t token_files_total(const TokenFiles *files) {
    uint64_t total = 0;
    for (int f = 0; f < files->num_files; f++) { total += files->files[f].num_tokens; }
    return total;
}

static inline uint64_t token_file_sequences(const TokenFile *file, int T) {
    return file->num_tokens ? (file->num_tokens - 1) / (uint64_t)T : 0;
}

// Returns the tokens of those files that hold at least one sequence of length T.
static inline uint64_t token_files_used(const TokenFiles *files, int T) {
    uint64_t total = 0;
    for (int f = 0; f < files->num_files; f++) {
        if (token_file_sequences(&files->files[f], T) > 0) { total += files->files[f].num_tokens; }
    }
    return total;
}

// text, whose tokens are bytes; else shards, whose tokens are uint16
static inline bool token_files_are_text(const TokenFiles *files) { return files->token_bytes == 1; }

static inline TokenFiles token_files_copy(const TokenFiles *files, const char *use) {
    TokenFiles copy = *files;
    copy.use = use;
    copy.files = (TokenFile *)xcalloc((size_t)files->num_files, sizeof(TokenFile));
    for (int f = 0; f < files->num_files; f++) {
        copy.files[f] = files->files[f];
        copy.files[f].path = xstrdup(files->files[f].path);
    }
    return copy;
}

// Splits every file: val gets the last fraction held_out of its tokens, rounded down. The caller closes all three.
static inline void token_files_split(const TokenFiles *files, double held_out, TokenFiles *train, TokenFiles *val) {
    *train = token_files_copy(files, " to train on");
    *val = token_files_copy(files, " held out for validation");
    for (int f = 0; f < files->num_files; f++) {
        uint64_t n = (uint64_t)((double)files->files[f].num_tokens * held_out);
        train->files[f].num_tokens -= n;
        val->files[f].first_token += train->files[f].num_tokens;
        val->files[f].num_tokens = n;
    }
}

// Returns 64 bits that identify the data, in whatever folder it is: each file's size, 12 KiB of its content, and its
// tokens in use. If `named`, each file's name counts too, as in checkpoints of versions up to 1.0.
static inline uint64_t token_files_fingerprint(const TokenFiles *files, bool named) {
    uint64_t hash = hash_word(0, (uint64_t)files->num_files);
    for (int f = 0; f < files->num_files; f++) {
        const TokenFile *file = &files->files[f];
        const char *slash = strrchr(file->path, '/'), *name = slash ? slash + 1 : file->path;
        if (named) { hash = hash_bytes(hash, name, strlen(name)); }
        hash = hash_file(hash, files->flag, file->path);
        hash = hash_word(hash_word(hash, file->first_token), file->num_tokens);
    }
    return hash;
}

// ---- reading tokens

// Reads ranges of tokens. The file of the last range stays open.
typedef struct {
    const TokenFiles *files;
    int vocab_size;
    int fd, file;  // of the open file, -1: none
    uint8_t *raw;
    int exit_status;                // of the error; 0: none
    char error[PATH_LENGTH + 512];  // reported later, by a thread that may stop the program
} TokenReader;

static inline TokenReader token_reader_open(const TokenFiles *files, size_t max_tokens, int vocab_size) {
    uint8_t *raw = (uint8_t *)xmalloc(max_tokens * (size_t)files->token_bytes);
    TokenReader reader = {files, vocab_size, -1, -1, raw, 0, ""};
    return reader;
}

static inline void token_reader_close(TokenReader *reader) {
    if (reader->fd >= 0) { close(reader->fd); }
    free(reader->raw);
}

__attribute__((noreturn)) static inline void token_reader_stop(const TokenReader *reader) {
    if (reader->exit_status == EXIT_RUN_FAILED) { run_error("%s", reader->error); }
    input_error("%s", reader->error);
}

// Keeps an error of file f for token_reader_stop; what, why: in words that follow its name. Returns false.
static inline bool token_reader_fail(TokenReader *reader, int f, const char *what, const char *why) {
    snprintf(reader->error, sizeof reader->error,
             "%s: %s %s%s; restore the file and start again (a run with -o resumes with -y 1)", reader->files->flag,
             reader->files->files[f].path, what, why);
    reader->exit_status = EXIT_RUN_FAILED;
    return false;
}

// Opens file f. Fails if it has changed since the run began: other data would be trained on without a word.
static inline bool token_reader_select(TokenReader *reader, int f) {
    const TokenFile *file = &reader->files->files[f];
    struct stat now;
    if (reader->file != f) {
        if (reader->fd >= 0) { close(reader->fd); }
        reader->fd = open(file->path, O_RDONLY | O_CLOEXEC);
        reader->file = f;
    }
    if (reader->fd < 0 || fstat(reader->fd, &now) != 0) {
        reader->file = -1;
        return token_reader_fail(reader, f, "could not be opened: ", strerror(errno));
    }
    bool same = (uint64_t)now.st_size == file->bytes && now.st_mtim.tv_sec == file->modified.tv_sec &&
                now.st_mtim.tv_nsec == file->modified.tv_nsec;
    return same || token_reader_fail(reader, f, "was written after the run began", "");
}

// ids (count) = tokens [first, first + count) of file f, counted from the start of the file. count is at most the
// max_tokens of token_reader_open. False: an error for token_reader_stop.
static inline bool token_reader_read(TokenReader *reader, int *ids, int f, uint64_t first, size_t count) {
    const TokenFiles *files = reader->files;
    const uint8_t *raw = reader->raw;
    size_t width = (size_t)files->token_bytes, header = width == 1 ? 0 : TOKEN_HEADER_INTS * sizeof(uint32_t);
    if (!token_reader_select(reader, f)) { return false; }
    int error = read_exact(reader->fd, reader->raw, count * width, header + first * width);
    if (error) { return token_reader_fail(reader, f, "could not be read: ", read_error(error)); }
    int largest = 0;
    for (size_t i = 0; i < count; i++) {
        ids[i] = width == 1 ? raw[i] : raw[2 * i] | raw[2 * i + 1] << 8;
        largest = ids[i] > largest ? ids[i] : largest;
    }
    if (largest < reader->vocab_size) { return true; }
    size_t bad = 0;
    while (ids[bad] < reader->vocab_size) { bad++; }
    snprintf(reader->error, sizeof reader->error,
             "%s: token %" PRIu64 " of %s is id %d, but the vocabulary has ids 0 to %d; use data made with the model's "
             "tokenizer, or a model with a larger vocabulary",
             files->flag, first + bad, files->files[f].path, ids[bad], reader->vocab_size - 1);
    reader->exit_status = EXIT_BAD_INPUT;
    return false;
}

// ---- the loader

enum { BATCH_WANTED, BATCH_READY, BATCH_QUIT };

// inputs, targets and packed are the caller's. While state is BATCH_WANTED, the fields that no lock guards belong to
// the thread, otherwise to the caller: each side waits for its turn.
typedef struct {
    const int *inputs, *targets;  // (B,T) each, valid until the next dataloader_next
    PackedSequences packed;       // of examples; valid as long
    int state;                    // BATCH_WANTED, BATCH_READY or BATCH_QUIT
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    // the batch that is read ahead
    int reading;  // index of the batch in `batches`
    PackedSequences read_packed;
    // source
    TokenFiles files;
    const PackedExamples *examples;  // NULL: token files
    bool one_epoch;                  // blank sequences follow the first epoch
    int B, T, rank, num_ranks;
    bool shuffle;
    uint64_t seed, sequences_per_epoch;
    uint64_t position;  // sequences given to all ranks so far, over all epochs, without the batch that is read ahead
    // the file that was read last
    uint64_t epoch, file_begin;  // its epoch, and the number of its first sequence
    int file_number;             // its number in the epoch
    // destination
    TokenReader tokens;
    int *ids;          // (T+1)
    int *batches[2];   // (2,B,T) each, inputs and targets: one is with the caller, the other is filled
    Range *ranges[2];  // (B,T) each, of examples: PackedSequences.ranges
} DataLoader;

enum { EPOCH_STREAM = 0x65706F63 };  // separates the random bits of shuffles from other uses of the seed

static inline uint64_t loader_epoch_key(const DataLoader *l, uint64_t epoch) {
    return rng_bits(l->seed, EPOCH_STREAM, epoch);
}

// the index of the file that is number i in an epoch
static inline int loader_file(const DataLoader *l, uint64_t epoch_key, int i) {
    return l->shuffle ? (int)rng_permute(epoch_key, (uint64_t)i, (uint64_t)l->files.num_files) : i;
}

// Reads sequence number s into l->ids. The search for its file starts at the last one, so that an epoch costs one pass.
static inline bool loader_sequence(DataLoader *l, uint64_t s) {
    uint64_t epoch = s / l->sequences_per_epoch, key = loader_epoch_key(l, epoch), n;
    if (epoch != l->epoch || s < l->file_begin) {
        l->epoch = epoch;
        l->file_number = 0;
        l->file_begin = epoch * l->sequences_per_epoch;
    }
    int f = loader_file(l, key, l->file_number);
    while (s - l->file_begin >= (n = token_file_sequences(&l->files.files[f], l->T))) {
        l->file_begin += n;
        f = loader_file(l, key, ++l->file_number);
    }
    uint64_t j = s - l->file_begin;
    if (l->shuffle) { j = rng_permute(rng_bits(key, EPOCH_STREAM, (uint64_t)f), j, n); }
    uint64_t first = l->files.files[f].first_token + j * (uint64_t)l->T;
    return token_reader_read(&l->tokens, l->ids, f, first, (size_t)l->T + 1);
}

// Returns the sequence of packed examples that is number s of the run.
static inline int loader_packed(const DataLoader *l, uint64_t s) {
    uint64_t n = l->sequences_per_epoch;
    return (int)rng_permute(loader_epoch_key(l, s / n), s % n, n);
}

// reads the batch at the position
static inline void loader_read(DataLoader *l) {
    size_t T = (size_t)l->T;
    int *inputs = l->batches[l->reading], *targets = inputs + (size_t)l->B * T;
    Range *ranges = l->ranges[l->reading];
    uint64_t first = l->position + (uint64_t)l->rank * (uint64_t)l->B;
    int count = 0;
    l->tokens.exit_status = 0;
    for (size_t b = 0; b < (size_t)l->B; b++) {
        bool blank = l->one_epoch && first + b >= l->sequences_per_epoch;
        if (l->examples) {
            int s = blank ? -1 : loader_packed(l, first + b);
            count += packed_read(l->examples, s, inputs + b * T, targets + b * T, ranges + count, b * T);
            continue;
        }
        if (blank) {
            for (size_t t = b * T; t < (b + 1) * T; t++) { inputs[t] = 0, targets[t] = -1; }
            continue;
        }
        if (!loader_sequence(l, first + b)) { return; }
        memcpy(inputs + b * T, l->ids, T * sizeof(int));
        memcpy(targets + b * T, l->ids + 1, T * sizeof(int));
    }
    l->read_packed.ranges = ranges;
    l->read_packed.count = count;
}

static inline void *loader_main(void *loader) {
    DataLoader *l = (DataLoader *)loader;
    pthread_mutex_lock(&l->lock);
    while (l->state != BATCH_QUIT) {
        if (l->state == BATCH_READY) {
            pthread_cond_wait(&l->turn, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        loader_read(l);
        pthread_mutex_lock(&l->lock);
        l->state = BATCH_READY;
        pthread_cond_signal(&l->turn);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

// waits until the batch at the position is read
static inline void loader_wait(DataLoader *l) {
    pthread_mutex_lock(&l->lock);
    while (l->state == BATCH_WANTED) { pthread_cond_wait(&l->turn, &l->lock); }
    pthread_mutex_unlock(&l->lock);
}

// hands the turn to the thread, which must be waiting
static inline void loader_ask(DataLoader *l, int state, uint64_t position) {
    pthread_mutex_lock(&l->lock);
    l->position = position;
    l->state = state;
    pthread_cond_signal(&l->turn);
    pthread_mutex_unlock(&l->lock);
}

// Makes the next batch start at sequence number `position`, and starts to read it. The batch that was read ahead is
// dropped, with its errors.
static inline void dataloader_seek(DataLoader *l, uint64_t position) {
    loader_wait(l);
    loader_ask(l, BATCH_WANTED, position);
}

// Prepares a loader without a source. Its thread does not run yet.
static inline void loader_init(DataLoader *l, int B, int T, bool shuffle, uint64_t seed, int rank, int num_ranks) {
    memset(l, 0, sizeof *l);
    l->B = B;
    l->T = T;
    l->rank = rank;
    l->num_ranks = num_ranks;
    l->shuffle = shuffle;
    l->seed = seed;
    for (int i = 0; i < 2; i++) { l->batches[i] = (int *)xcalloc(2 * (size_t)B * (size_t)T, sizeof(int)); }
    l->state = BATCH_WANTED;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->turn, NULL);
}

// starts the thread, which reads the batch at position 0
static inline void loader_start_thread(DataLoader *l) {
    int error = pthread_create(&l->thread, NULL, loader_main, l);
    if (error) {
        run_error("could not start the thread that reads the data: %s; allow more threads (ulimit -u)",
                  strerror(error));
    }
}

// Opens a loader of micro-batches (B,T) for one of num_ranks data-parallel ranks, at position 0. It shuffles, to train,
// or reads one epoch in order, to validate. It copies `files`. Stops if no file is as long as a sequence;
// dataloader_next stops at an id that is not below vocab_size. The thread reads *l, which must not move. Close with
// dataloader_close.
static inline void dataloader_open(DataLoader *l, const TokenFiles *files, int B, int T, bool shuffle, uint64_t seed,
                                   int rank, int num_ranks, int vocab_size) {
    const TokenFile *longest = &files->files[0];
    loader_init(l, B, T, shuffle, seed, rank, num_ranks);
    l->one_epoch = !shuffle;
    for (int f = 0; f < files->num_files; f++) {
        l->sequences_per_epoch += token_file_sequences(&files->files[f], T);
        if (files->files[f].num_tokens > longest->num_tokens) { longest = &files->files[f]; }
    }
    if (l->sequences_per_epoch == 0) {
        input_error("%s: a sequence of length %d takes %" PRIu64 " tokens, but the longest file, %s, has %" PRIu64
                    "%s; give longer files or shorter sequences (-t)",
                    files->flag, T, (uint64_t)T + 1, longest->path, longest->num_tokens, files->use);
    }
    l->files = token_files_copy(files, files->use);
    l->tokens = token_reader_open(&l->files, (size_t)T + 1, vocab_size);
    l->ids = (int *)xcalloc((size_t)T + 1, sizeof(int));
    loader_start_thread(l);
}

// dataloader_open for packed examples, in random order. They must outlive the loader. one_epoch: for validation.
static inline void dataloader_open_examples(DataLoader *l, const PackedExamples *examples, int B, bool one_epoch,
                                            uint64_t seed, int rank, int num_ranks) {
    int T = examples->examples->T;
    loader_init(l, B, T, true, seed, rank, num_ranks);
    l->one_epoch = one_epoch;
    l->examples = examples;
    l->sequences_per_epoch = (uint64_t)examples->num_sequences;
    l->tokens.fd = -1;
    for (int i = 0; i < 2; i++) { l->ranges[i] = (Range *)xcalloc((size_t)B * (size_t)T, sizeof(Range)); }
    loader_start_thread(l);
}

// Stops at an error in the data of the next batch.
static inline void require_next_batch(DataLoader *l) {
    loader_wait(l);
    if (l->tokens.exit_status != 0) { token_reader_stop(&l->tokens); }
}

// Stops at an error in the first batch, or at a bad id in any file that holds one of the first `count` sequences: now
// rather than after days of training. Ranks take the files in turn. A `count` beyond the first epoch covers all files.
static inline void require_ids(DataLoader *l, double count) {
    const size_t T = (size_t)l->T;
    bool all_fit = l->tokens.vocab_size >= (token_files_are_text(&l->files) ? 1 << 8 : 1 << 16);
    require_next_batch(l);
    double checked = 0;
    for (int i = 0; !all_fit && i < l->files.num_files && (i == 0 || checked < count); i++) {
        int f = loader_file(l, loader_epoch_key(l, 0), i);
        uint64_t first = l->files.files[f].first_token, sequences = token_file_sequences(&l->files.files[f], l->T);
        for (uint64_t j = 0; i % l->num_ranks == l->rank && j < sequences; j++) {
            if (!token_reader_read(&l->tokens, l->ids, f, first + j * T, T + 1)) { token_reader_stop(&l->tokens); }
        }
        checked += (double)sequences;
        progress_show("checking token ids", i + 1, l->files.num_files);
    }
    progress_show("checking token ids", -1, 0);
}

// Makes l->inputs and l->targets this rank's next micro-batch. Stops at an error in the data of the batch.
static inline void dataloader_next(DataLoader *l) {
    require_next_batch(l);
    l->inputs = l->batches[l->reading];
    l->targets = l->inputs + (size_t)l->B * (size_t)l->T;
    l->packed = l->read_packed;
    l->reading = 1 - l->reading;
    dataloader_seek(l, l->position + (uint64_t)l->B * (uint64_t)l->num_ranks);
}

// the micro-batches that hold an epoch
static inline uint64_t dataloader_batches(const DataLoader *l) {
    return (l->sequences_per_epoch + (uint64_t)l->B - 1) / (uint64_t)l->B;
}

// the targets in sequences [first, first + count), of all ranks
static inline uint64_t dataloader_targets(const DataLoader *l, uint64_t first, uint64_t count) {
    if (!l->examples) { return count * (uint64_t)l->T; }
    uint64_t sum = 0;
    for (uint64_t s = first; s < first + count; s++) { sum += (uint64_t)l->examples->targets[loader_packed(l, s)]; }
    return sum;
}

static inline void dataloader_close(DataLoader *l) {
    loader_wait(l);
    loader_ask(l, BATCH_QUIT, 0);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->turn);
    pthread_mutex_destroy(&l->lock);
    token_reader_close(&l->tokens);
    token_files_close(&l->files);
    for (int i = 0; i < 2; i++) {
        free(l->batches[i]);
        free(l->ranges[i]);
    }
    free(l->ids);
}
