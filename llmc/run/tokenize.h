/*
--tokenize: writes the documents of a corpus as token shards, on all threads.
defines: tokenize_corpus

Blocks      A thread reads a block of about 1 MiB, encodes it, waits for its turn and writes it. Reading and writing are
            in the order of the corpus, so the shards do not depend on the number of threads.
Validation  A piece goes to the validation shard while that holds less than its share of the tokens so far. A piece is a
            document, or 64 KiB of a longer one.
Going on    OUT_tokenize.json holds the place in the corpus and in the open shards. It is written after each shard and
            each 256 MiB, and deleted at the end. The same command goes on from there; another command is refused.
Bad input   A JSON line that is no document, before the first shard or 256 MiB, deletes the files that the run made. A
            line above CORPUS_MAX_LINE leaves them.
Tokenizer   OUT_merges.txt, where training on the shards finds it. A file of this name with the same tokens stays as it
            is. One with other tokens is refused.
Memory      a block and its tokens for each thread, and the window of corpus.h
*/
#pragma once
#include "llmc/files/corpus.h"
#include "llmc/files/json_file.h"
#include "llmc/files/shard_writer.h"
#include "llmc/files/tokenizer_files.h"
#include "llmc/run/logger.h"
#include "llmc/run/train_args.h"
#include <omp.h>

enum { TOKENIZE_BLOCK = 1 << 20, TOKENIZE_SAVE = 256 << 20 };  // bytes

// a piece of the corpus in a block
typedef struct {
    size_t begin, bytes, count;  // of text; tokens
    bool is_json, ends_document;
    int file;
    uint64_t line;
} TokenizePiece;

typedef struct {
    char *text;
    size_t bytes, capacity;
    TokenizePiece *pieces;
    int num_pieces, max_pieces;
    uint16_t *tokens;  // of all pieces, one after the other
    int *ids;          // of one piece
    size_t num_tokens;
    CorpusPosition after;  // the end of the block
    const char *trouble;   // NULL, or why the piece `bad` is no document
    int bad;
} TokenizeBlock;

typedef struct {
    const TrainArgs *args;
    const Tokenizer *tokenizer;
    Corpus corpus;
    ShardWriter writer;
    pthread_mutex_t reading, writing;
    pthread_cond_t turn;
    uint64_t blocks_read, blocks_written;
    // progress
    char state_path[PATH_LENGTH], fingerprint[17];
    uint64_t documents;
    uint64_t first_byte, saved_byte;  // of the corpus: where this run began, and where the place was last saved
    int saved_shards;
    bool made_merges;  // this run wrote OUT_merges.txt
    double started, last_line;
    bool terminal;
} TokenizeJob;

// ---- one block

static inline void block_add(TokenizeBlock *b, const CorpusPiece *from) {
    if (b->num_pieces == b->max_pieces) {
        b->max_pieces = 2 * b->max_pieces + 64;
        b->pieces = (TokenizePiece *)xrealloc(b->pieces, (size_t)b->max_pieces * sizeof *b->pieces);
    }
    if (b->bytes + from->bytes + 1 > b->capacity) {
        b->capacity = b->bytes + from->bytes + 1 + TOKENIZE_BLOCK;
        b->text = (char *)xrealloc(b->text, b->capacity);
    }
    TokenizePiece piece = {b->bytes, from->bytes, 0, from->is_json, from->ends_document, from->file, from->line};
    b->pieces[b->num_pieces++] = piece;
    memcpy(b->text + b->bytes, from->text, from->bytes);
    b->bytes += from->bytes + 1;  // room for the NUL of corpus_document
}

// false: the corpus has ended
static inline bool block_read(TokenizeBlock *b, Corpus *corpus) {
    CorpusPiece piece;
    b->bytes = 0;
    b->num_pieces = 0;
    while (b->bytes < TOKENIZE_BLOCK && corpus_next(corpus, &piece)) { block_add(b, &piece); }
    b->after = corpus_position(corpus);
    return b->num_pieces > 0;
}

static inline void block_encode_text(const TokenizeJob *job, TokenizeBlock *b, TokenizerEncoder *encoder,
                                     TokenizePiece *piece, const char *text, size_t bytes) {
    size_t count = tokenizer_encode_with(job->tokenizer, encoder, text, bytes, b->ids);
    uint16_t *tokens = b->tokens + b->num_tokens;
    for (size_t i = 0; i < count; i++) { tokens[i] = (uint16_t)b->ids[i]; }
    if (piece->ends_document) { tokens[count++] = (uint16_t)job->tokenizer->end_of_text; }
    piece->count = count;
    b->num_tokens += count;
}

// Encodes all pieces, or those before the first piece that is no document; b->trouble then says why.
static inline void block_encode(const TokenizeJob *job, TokenizeBlock *b, TokenizerEncoder *encoder) {
    size_t longest = 0;
    for (int p = 0; p < b->num_pieces; p++) { longest = b->pieces[p].bytes > longest ? b->pieces[p].bytes : longest; }
    b->ids = (int *)xrealloc(b->ids, longest * sizeof *b->ids);
    b->tokens = (uint16_t *)xrealloc(b->tokens, (b->bytes + (size_t)b->num_pieces) * sizeof *b->tokens);
    b->num_tokens = 0;
    b->trouble = NULL;
    for (b->bad = 0; b->bad < b->num_pieces; b->bad++) {
        TokenizePiece *piece = &b->pieces[b->bad];
        char *text = b->text + piece->begin;
        cJSON *json = NULL;
        const char *document = text;
        if (piece->is_json) { document = corpus_document(text, piece->bytes, job->corpus.field, &json, &b->trouble); }
        if (!document) {
            cJSON_Delete(json);
            return;
        }
        block_encode_text(job, b, encoder, piece, document, piece->is_json ? strlen(document) : piece->bytes);
        cJSON_Delete(json);
    }
    b->trouble = NULL;
}

static inline void block_free(TokenizeBlock *b) {
    free(b->text);
    free(b->pieces);
    free(b->tokens);
    free(b->ids);
}

// ---- the place where a later run goes on

static inline void tokenize_save_place(TokenizeJob *job, CorpusPosition at) {
    ShardWriter *w = &job->writer;
    shard_writer_sync(w);
    cJSON *state = cJSON_CreateObject();
    cJSON_AddStringToObject(state, "command", job->fingerprint);
    cJSON_AddNumberToObject(state, "file", at.file);
    cJSON_AddNumberToObject(state, "offset", (double)at.offset);
    cJSON_AddNumberToObject(state, "line", (double)at.line);
    cJSON_AddNumberToObject(state, "starts_line", at.starts_line);
    cJSON_AddNumberToObject(state, "in_document", at.in_document);
    cJSON_AddNumberToObject(state, "documents", (double)job->documents);
    cJSON_AddNumberToObject(state, "shards", w->finished);
    cJSON_AddNumberToObject(state, "train_tokens", (double)w->open[SHARD_TRAIN].tokens);
    cJSON_AddNumberToObject(state, "val_tokens", (double)w->open[SHARD_VAL].tokens);
    int error = write_json(job->state_path, state);
    cJSON_Delete(state);
    if (error) {
        run_error("could not write '%s': %s; make room, then give the same command again: it goes on where it stopped",
                  job->state_path, strerror(error));
    }
    job->saved_byte = corpus_bytes_read(&job->corpus, at);
    job->saved_shards = w->finished;
}

// Stops unless the state is that of a run with the same input and flags. Such a run may still be going on.
static inline void tokenize_check_same_run(const TokenizeJob *job, const cJSON *state) {
    const char *command = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(state, "command"));
    if (command && strcmp(command, job->fingerprint) == 0) { return; }
    input_error(
        "'%s' is of a run with other files in -i or other flags; give the command of that run again, or another "
        "name; if that run has ended, you can also delete '%s' and the files %s_*.bin*",
        job->state_path, job->state_path, job->writer.out);
}

// After bad input: if no place after the first was saved, deletes the files that this run made, so that another command
// can start.
static inline void tokenize_remove_beginning(const TokenizeJob *job) {
    char path[PATH_LENGTH];
    if (job->saved_byte > 0 || job->writer.finished > 0) { return; }
    for (int number = 0; number < 2; number++) {
        shard_path(path, job->writer.out, number, ".part");
        unlink(path);
    }
    format_path(path, "%s_merges.txt", job->writer.out);
    if (job->made_merges) { unlink(path); }
    unlink(job->state_path);
}

static inline void tokenize_refuse_existing(const ShardWriter *w) {
    const int numbers[] = {0, 1};
    const char *const endings[] = {"", ".part"};
    char path[PATH_LENGTH];
    for (int i = 0; i < 4; i++) {
        shard_path(path, w->out, numbers[i / 2], endings[i % 2]);
        if (access(path, F_OK) == 0) {
            input_error("--tokenize: '%s' exists already; give another name, or delete the files %s_*.bin*", path,
                        w->out);
        }
    }
}

// Goes on where an earlier run stopped. Stops if that run had other input or other flags.
static inline void tokenize_continue(TokenizeJob *job) {
    const char *path = job->state_path;
    cJSON *state = read_json(path);
    if (!state) { return; }
    tokenize_check_same_run(job, state);
    const double most = 9e15;
    CorpusPosition at;
    memset(&at, 0, sizeof at);
    at.file = (int)json_whole(state, "file", 0, job->corpus.num_files, path);
    at.offset = (uint64_t)json_whole(state, "offset", 0, most, path);
    at.line = (uint64_t)json_whole(state, "line", 0, most, path);
    at.starts_line = json_whole(state, "starts_line", 0, 1, path);
    at.in_document = json_whole(state, "in_document", 0, 1, path);
    job->documents = (uint64_t)json_whole(state, "documents", 0, most, path);
    uint64_t open[2];
    open[SHARD_TRAIN] = (uint64_t)json_whole(state, "train_tokens", 0, (double)job->writer.shard_tokens - 1, path);
    open[SHARD_VAL] = (uint64_t)json_whole(state, "val_tokens", 0, INT32_MAX, path);
    int finished = (int)json_whole(state, "shards", 0, 999999, path);
    cJSON_Delete(state);
    corpus_seek(&job->corpus, at);  // before shards change: it may stop
    shard_writer_continue(&job->writer, finished, open);
    job->first_byte = corpus_bytes_read(&job->corpus, at);
    printf("goes on after %.1f MB, %" PRIu64 " document%s\n", (double)job->first_byte / 1e6, job->documents,
           plural_s(job->documents));
}

// ---- all blocks

// One line on a terminal, rewritten each second; a line for each saved place in a pipe.
static inline void tokenize_progress(TokenizeJob *job, CorpusPosition at, bool saved) {
    double now = now_seconds();
    if (job->terminal ? now - job->last_line < 1 : !saved) { return; }
    job->last_line = now;
    uint64_t done = corpus_bytes_read(&job->corpus, at), total = corpus_bytes(&job->corpus);
    double rate = (double)(done - job->first_byte) / (now - job->started + 1e-9);
    char left[64] = "";
    if (total > done) {
        snprintf(left, sizeof left, " of %.1f MB, ", (double)total / 1e6);
        logger_left(left + strlen(left), sizeof left - strlen(left), (double)(total - done) / rate);
    }
    printf("%s%.1f MB%s, %.1f MB/s, %.1fM tokens%s", job->terminal ? "\r\033[K" : "", (double)done / 1e6, left,
           rate / 1e6, (double)(job->writer.written[0] + job->writer.written[1]) / 1e6, job->terminal ? "" : "\n");
    fflush(stdout);
}

static inline void block_write(TokenizeJob *job, const TokenizeBlock *b) {
    ShardWriter *w = &job->writer;
    const uint16_t *tokens = b->tokens;
    for (int p = 0; p < b->bad; p++) {
        const TokenizePiece *piece = &b->pieces[p];
        double all = (double)(w->written[SHARD_TRAIN] + w->written[SHARD_VAL]);
        bool val = (double)w->written[SHARD_VAL] < job->args->val_share * all;
        shard_writer_append(w, val ? SHARD_VAL : SHARD_TRAIN, tokens, piece->count);
        tokens += piece->count;
        job->documents += piece->ends_document;
    }
    if (b->trouble) {
        const TokenizePiece *piece = &b->pieces[b->bad];
        tokenize_remove_beginning(job);
        run_error("-i %s line %" PRIu64 " %s: found '%.60s'", job->corpus.files[piece->file].path, piece->line,
                  b->trouble, b->text + piece->begin);
    }
    bool save =
        w->finished > job->saved_shards || corpus_bytes_read(&job->corpus, b->after) - job->saved_byte >= TOKENIZE_SAVE;
    if (save) { tokenize_save_place(job, b->after); }
    tokenize_progress(job, b->after, save);
}

static inline void *tokenize_thread(void *argument) {
    TokenizeJob *job = (TokenizeJob *)argument;
    TokenizerEncoder encoder;
    TokenizeBlock block;
    memset(&encoder, 0, sizeof encoder);
    memset(&block, 0, sizeof block);
    for (;;) {
        pthread_mutex_lock(&job->reading);
        bool any = block_read(&block, &job->corpus);
        uint64_t number = job->blocks_read++;
        pthread_mutex_unlock(&job->reading);
        if (!any) { break; }
        block_encode(job, &block, &encoder);
        pthread_mutex_lock(&job->writing);
        while (job->blocks_written != number) { pthread_cond_wait(&job->turn, &job->writing); }
        block_write(job, &block);
        job->blocks_written++;
        pthread_cond_broadcast(&job->turn);
        pthread_mutex_unlock(&job->writing);
    }
    tokenizer_free_encoder(&encoder);
    block_free(&block);
    return NULL;
}

static inline void tokenize_on_threads(TokenizeJob *job) {
    int count = job->args->threads > 0 ? job->args->threads : omp_get_max_threads();
    pthread_t *threads = (pthread_t *)xmalloc((size_t)count * sizeof *threads);
    pthread_mutex_init(&job->reading, NULL);
    pthread_mutex_init(&job->writing, NULL);
    pthread_cond_init(&job->turn, NULL);
    for (int i = 0; i < count; i++) {
        int status = pthread_create(&threads[i], NULL, tokenize_thread, job);
        if (status != 0) { run_error("--tokenize: could not start a thread: %s", strerror(status)); }
    }
    for (int i = 0; i < count; i++) { pthread_join(threads[i], NULL); }
    pthread_cond_destroy(&job->turn);
    pthread_mutex_destroy(&job->writing);
    pthread_mutex_destroy(&job->reading);
    free(threads);
}

static inline void tokenize_print_end(const TokenizeJob *job, CorpusPosition at) {
    const ShardWriter *w = &job->writer;
    double seconds = now_seconds() - job->started, bytes = (double)corpus_bytes_read(&job->corpus, at);
    printf("%s%s_train_*.bin: %d shard%s, %" PRIu64 " tokens; validation: %" PRIu64 " tokens\n",
           job->terminal ? "\r\033[K" : "", w->out, w->finished, plural_s((uint64_t)w->finished),
           w->written[SHARD_TRAIN], w->written[SHARD_VAL]);
    printf("%" PRIu64 " document%s, %.1f MB in %.1f s: %.1f MB/s\n", job->documents, plural_s(job->documents),
           bytes / 1e6, seconds, (bytes - (double)job->first_byte) / 1e6 / seconds);
    if (job->args->val_share > 0 && w->written[SHARD_VAL] == 0) {
        printf("note      there is no validation shard: the text is one document of at most 64 KiB\n");
    }
}

// Stops if OUT_merges.txt exists with other tokens.
static inline void tokenize_check_merges(const TokenizeJob *job, const char *path) {
    Tokenizer found = tokenizer_open(path);
    bool same = tokenizer_fingerprint(&found) == tokenizer_fingerprint(job->tokenizer);
    tokenizer_free(&found);
    if (same) { return; }
    input_error(
        "--tokenize: '%s' exists already, with other tokens than --tokenizer %s; give another name, or move the "
        "file away",
        path, job->args->tokenizer);
}

// Writes OUT_merges.txt, unless the file exists.
static inline void tokenize_save_merges(TokenizeJob *job) {
    char path[PATH_LENGTH];
    format_path(path, "%s_merges.txt", job->writer.out);
    if (access(path, F_OK) == 0) {
        tokenize_check_merges(job, path);
        return;
    }
    int error = tokenizer_write_merges(job->tokenizer, path);
    if (error == ENOENT || error == ENOTDIR || error == EACCES) {
        input_error("could not write '%s': %s; give a name in a folder that exists and can be written", path,
                    strerror(error));
    }
    if (error) {
        run_error("could not write '%s': %s; make room, then give the same command again", path, strerror(error));
    }
    job->made_merges = true;
}

// Writes the corpus -i as token shards --tokenize, with the tokens of tokenizer. Goes on where the same command was
// broken off. Stops if tokenizer has no merges.
static inline void tokenize_corpus(const TrainArgs *a, const Tokenizer *tokenizer) {
    TokenizeJob job;
    memset(&job, 0, sizeof job);
    if (!tokenizer->merges) {
        input_error("--tokenize: --tokenizer %s is that of bytes, and text needs no shards then: train with -i %s; for "
                    "shards give vocab.bpe or merges.txt",
                    a->tokenizer, a->train_data);
    }
    job.args = a;
    job.tokenizer = tokenizer;
    job.corpus = corpus_open(a->train_data, a->field, a->separator);
    job.writer.out = a->tokenize;
    job.writer.vocab_size = tokenizer_vocab_size(tokenizer);
    job.writer.shard_tokens = (uint64_t)a->shard_tokens;
    uint64_t hash = hash_word(corpus_fingerprint(&job.corpus), tokenizer_fingerprint(tokenizer));
    hash = hash_word(hash_bytes(hash, &a->val_share, sizeof a->val_share), (uint64_t)a->shard_tokens);
    snprintf(job.fingerprint, sizeof job.fingerprint, "%016" PRIx64, hash);
    format_path(job.state_path, "%s_tokenize.json", a->tokenize);
    if (access(job.state_path, F_OK) != 0) { tokenize_refuse_existing(&job.writer); }
    job.terminal = isatty(STDOUT_FILENO);
    tokenize_continue(&job);
    job.started = now_seconds();
    tokenize_save_merges(&job);
    tokenize_save_place(&job, corpus_position(&job.corpus));
    tokenize_on_threads(&job);
    if (job.writer.written[SHARD_TRAIN] == 0) {
        tokenize_remove_beginning(&job);
        input_error("-i %s holds no text", a->train_data);
    }
    CorpusPosition end = corpus_position(&job.corpus);
    shard_writer_close(&job.writer);
    tokenize_print_end(&job, end);
    unlink(job.state_path);
    corpus_close(&job.corpus);
}
