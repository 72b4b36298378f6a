/*
--tokenize: writes the documents of a corpus as token shards. --train-bpe: learns a vocabulary from a corpus.
defines: tokenize_corpus, train_bpe

Blocks      A thread reads a block of about 1 MiB, encodes it, waits for its turn and writes it. Reading and writing are
            in the order of the corpus, so the shards do not depend on the number of threads.
Validation  A piece goes to the validation shard while that holds less than its share of the tokens so far. A piece is a
            document, or 64 KiB of a longer one.
Tokenizer   OUT_merges.txt, where training on the shards finds it
Memory      a block and its tokens for each thread, and the window of corpus.h
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/device.h"
#include "llmc/data/bpe_trainer.h"
#include "llmc/data/corpus.h"
#include "llmc/data/shard_writer.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/run/logger.h"
#include "llmc/run/run_dir.h"
#include "llmc/run/train_args.h"
#include <omp.h>

enum { TOKENIZE_BLOCK = 1 << 20 };  // bytes

typedef struct {
    CorpusPiece source;
    size_t start, count;  // its first byte in the block; its tokens
} TokenizePiece;

typedef struct {
    char *text;
    size_t bytes, capacity;
    TokenizePiece *pieces;
    int num_pieces, max_pieces;
    TokenizerEncoder encoder;
    int *ids;          // of one piece
    uint16_t *tokens;  // of all pieces
    size_t num_tokens;
    uint64_t bytes_read;  // of the corpus, up to the end of the block
    int encoded;          // pieces with tokens
    const char *error;    // why the next piece is not a document; NULL: all are encoded
} TokenizeBlock;

typedef struct {
    const TrainArgs *args;
    const Tokenizer *tokenizer;
    Corpus corpus;
    ShardWriter writer;
    uint64_t documents;
    double started, last_line;  // times
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
    TokenizePiece piece = {*from, b->bytes, 0};
    b->pieces[b->num_pieces++] = piece;
    memcpy(b->text + b->bytes, from->text, from->bytes);
    b->bytes += from->bytes + 1;  // room for the NUL of corpus_document
}

// Reads the next block. It has no pieces at the end of the corpus.
static inline void block_read(TokenizeBlock *b, Corpus *corpus) {
    CorpusPiece piece;
    b->bytes = 0;
    b->num_pieces = 0;
    while (b->bytes < TOKENIZE_BLOCK && corpus_next(corpus, &piece)) { block_add(b, &piece); }
    b->bytes_read = corpus->bytes_read;
}

static inline void block_encode_text(const Tokenizer *t, TokenizeBlock *b, TokenizePiece *piece, const char *text,
                                     size_t bytes) {
    size_t count = tokenizer_encode_with(t, &b->encoder, text, bytes, b->ids);
    uint16_t *tokens = b->tokens + b->num_tokens;
    for (size_t i = 0; i < count; i++) { tokens[i] = (uint16_t)b->ids[i]; }
    if (piece->source.ends_document) { tokens[count++] = (uint16_t)t->end_of_text; }
    piece->count = count;
    b->num_tokens += count;
}

// Encodes the pieces, up to the first that is not a document.
static inline void block_encode(const TokenizeJob *job, TokenizeBlock *b) {
    b->ids = (int *)xrealloc(b->ids, b->bytes * sizeof *b->ids);
    b->tokens = (uint16_t *)xrealloc(b->tokens, (b->bytes + (size_t)b->num_pieces) * sizeof *b->tokens);
    b->num_tokens = 0;
    b->error = NULL;
    for (b->encoded = 0; b->encoded < b->num_pieces && !b->error; b->encoded += !b->error) {
        TokenizePiece *piece = &b->pieces[b->encoded];
        char *text = b->text + piece->start;
        if (!piece->source.is_json) {
            block_encode_text(job->tokenizer, b, piece, text, piece->source.bytes);
            continue;
        }
        cJSON *json;
        const char *document = corpus_document(text, piece->source.bytes, job->corpus.field, &json, &b->error);
        if (document) { block_encode_text(job->tokenizer, b, piece, document, strlen(document)); }
        cJSON_Delete(json);
    }
}

static inline void block_write(TokenizeJob *job, const TokenizeBlock *b) {
    ShardWriter *w = &job->writer;
    const uint16_t *tokens = b->tokens;
    for (int p = 0; p < b->encoded; p++) {
        const TokenizePiece *piece = &b->pieces[p];
        double all = (double)(w->written[SHARD_TRAIN] + w->written[SHARD_VAL]);
        bool val = (double)w->written[SHARD_VAL] < job->args->val_share * all;
        shard_writer_append(w, val ? SHARD_VAL : SHARD_TRAIN, tokens, piece->count);
        tokens += piece->count;
        job->documents += piece->source.ends_document;
    }
    if (b->error) {
        CorpusPiece bad = b->pieces[b->encoded].source;
        bad.text = b->text + b->pieces[b->encoded].start;
        shards_delete_unfinished(w->out);
        corpus_refuse(&job->corpus, &bad, b->error);
    }
}

static inline void block_free(TokenizeBlock *b) {
    tokenizer_free_encoder(&b->encoder);
    free(b->text);
    free(b->pieces);
    free(b->tokens);
    free(b->ids);
}

// ---- all blocks

// Prints the progress: each second on one line of a terminal, each minute in a pipe.
static inline void tokenize_progress(TokenizeJob *job, uint64_t done) {
    double now = now_seconds();
    if (now - job->last_line < (job->terminal ? 1 : 60)) { return; }
    job->last_line = now;
    uint64_t total = job->corpus.bytes;
    double rate = (double)done / (now - job->started);
    char left[64] = "";
    if (total > done) {
        snprintf(left, sizeof left, " of %.1f MB, ", (double)total / 1e6);
        logger_left(left + strlen(left), sizeof left - strlen(left), (double)(total - done) / rate);
    }
    printf("%s%.1f MB%s, %.1f MB/s, %.1fM tokens%s", job->terminal ? "\r\033[K" : "", (double)done / 1e6, left,
           rate / 1e6, (double)(job->writer.written[0] + job->writer.written[1]) / 1e6, job->terminal ? "" : "\n");
    fflush(stdout);
}

static inline void tokenize_blocks(TokenizeJob *job) {
    uint64_t blocks_read = 0, blocks_written = 0;
#pragma omp parallel num_threads(job->args->threads > 0 ? job->args->threads : omp_get_max_threads())
    {
        TokenizeBlock block;
        memset(&block, 0, sizeof block);
        do {
            uint64_t number;
#pragma omp critical
            {
                block_read(&block, &job->corpus);
                number = blocks_read++;
            }
            block_encode(job, &block);
            while (__atomic_load_n(&blocks_written, __ATOMIC_ACQUIRE) != number) { usleep(100); }
            block_write(job, &block);
            tokenize_progress(job, block.bytes_read);
            __atomic_store_n(&blocks_written, number + 1, __ATOMIC_RELEASE);
        } while (block.num_pieces > 0);
        block_free(&block);
    }
}

static inline void tokenize_print_end(const TokenizeJob *job) {
    const ShardWriter *w = &job->writer;
    double seconds = now_seconds() - job->started, bytes = (double)job->corpus.bytes_read;
    printf("%s%s_train_*.bin: %d shard%s, %" PRIu64 " tokens; validation: %" PRIu64 " tokens\n",
           job->terminal ? "\r\033[K" : "", w->out, w->num_train, plural_s((uint64_t)w->num_train),
           w->written[SHARD_TRAIN], w->written[SHARD_VAL]);
    printf("%" PRIu64 " document%s, %.1f MB in %.1f s: %.1f MB/s\n", job->documents, plural_s(job->documents),
           bytes / 1e6, seconds, bytes / 1e6 / seconds);
    if (job->args->val_share > 0 && w->written[SHARD_VAL] == 0) {
        printf("note      there is no validation shard: the text is one document of at most 64 KiB\n");
    }
}

// path = OUT_merges.txt. Stops if the file exists with other tokens.
static inline void tokenize_merges_path(char *path, const TokenizeJob *job) {
    format_path(path, "%s_merges.txt", job->args->tokenize);
    if (access(path, F_OK) != 0) { return; }
    Tokenizer found = tokenizer_open(path);
    if (tokenizer_fingerprint(&found) != tokenizer_fingerprint(job->tokenizer)) {
        input_error("--tokenize: '%s' exists already, with other tokens than --tokenizer %s; give another name, or "
                    "move the file away",
                    path, job->args->tokenizer);
    }
    tokenizer_free(&found);
}

// Writes the text in -i as token shards.
static inline void tokenize_corpus(const TrainArgs *a) {
    TokenizeJob job;
    char merges[PATH_LENGTH];
    Tokenizer tokenizer = tokenizer_open(a->tokenizer);
    memset(&job, 0, sizeof job);
    if (!tokenizer.merges) {
        input_error("--tokenize: --tokenizer %s is that of bytes, and text needs no shards then: train with -i %s; for "
                    "shards give vocab.bpe or merges.txt",
                    a->tokenizer, a->train_data);
    }
    job.args = a;
    job.tokenizer = &tokenizer;
    job.corpus = corpus_open("-i", a->train_data, a->field);
    tokenize_merges_path(merges, &job);
    job.writer = shard_writer_open(a->tokenize, tokenizer.vocab_size, SHARD_TOKENS);
    job.terminal = isatty(STDOUT_FILENO);
    job.started = job.last_line = now_seconds();
    tokenize_blocks(&job);
    if (job.writer.written[SHARD_TRAIN] == 0) {
        shards_delete_unfinished(job.writer.out);
        input_error("-i %s holds no text", a->train_data);
    }
    int error = access(merges, F_OK) == 0 ? 0 : tokenizer_write_merges(&tokenizer, merges);
    if (error) {
        run_error("could not write '%s': %s; make room, then give the same command again", merges, strerror(error));
    }
    shard_writer_close(&job.writer);
    tokenize_print_end(&job);
    corpus_close(&job.corpus);
    tokenizer_free(&tokenizer);
}

// ---- --train-bpe

// Counts the words of a piece. Stops at a line that is not a document.
static inline void train_bpe_count(BpeTrainer *trainer, const Corpus *corpus, CorpusPiece *piece) {
    if (!piece->is_json) {
        bpe_count(trainer, piece->text, piece->bytes);
        return;
    }
    cJSON *json;
    const char *error, *text = corpus_document(piece->text, piece->bytes, corpus->field, &json, &error);
    if (!text) { corpus_refuse(corpus, piece, error); }
    bpe_count(trainer, text, strlen(text));
    cJSON_Delete(json);
}

static inline void train_bpe_path(char *path, const char *folder, const char *name) {
    format_path(path, "%s/%s", folder, name);
    if (access(path, F_OK) == 0) { input_error("--train-bpe: '%s' exists already; give another folder with -o", path); }
}

// Writes vocab.json and merges.txt, with --train-bpe tokens, to -o or to the current folder.
static inline void train_bpe(const TrainArgs *a) {
    char vocab[PATH_LENGTH], merges[PATH_LENGTH];
    const char *folder = a->run_dir ? a->run_dir : ".";
    train_bpe_path(vocab, folder, "vocab.json");
    train_bpe_path(merges, folder, "merges.txt");
    Corpus corpus = corpus_open("-i", a->train_data, a->field);
    BpeTrainer trainer;
    CorpusPiece piece;
    memset(&trainer, 0, sizeof trainer);
    double started = now_seconds();
    while (corpus_next(&corpus, &piece)) { train_bpe_count(&trainer, &corpus, &piece); }
    if (trainer.num_words == 0) { input_error("-i %s holds no text", a->train_data); }
    size_t words = trainer.num_words;
    Tokenizer tokenizer = bpe_learn(&trainer, a->train_bpe);
    if (tokenizer.vocab_size == 257) {
        input_error("-i %s holds no pair of bytes twice; give more text", a->train_data);
    }
    make_run_dir(folder);
    const char *path = vocab;
    int error = tokenizer_write_vocab(&tokenizer, path);
    if (!error) { error = tokenizer_write_merges(&tokenizer, path = merges); }
    if (error) {
        unlink(vocab);
        run_error("could not write '%s': %s; neither file is left, so make room and try again", path, strerror(error));
    }
    printf("%s and %s: %d tokens from %zu different word%s, %.1f s\n", vocab, merges, tokenizer.vocab_size, words,
           plural_s(words), now_seconds() - started);
    if (tokenizer.vocab_size < a->train_bpe) {
        printf("note      no pair occurs twice any more: %d tokens instead of %d\n", tokenizer.vocab_size,
               a->train_bpe);
    }
    tokenizer_free(&tokenizer);
    bpe_free(&trainer);
    corpus_close(&corpus);
}
