/*
--tokenize: writes the documents of a corpus as token shards. --train-bpe: learns a vocabulary from a corpus.

Blocks      A thread reads a block of about 1 MiB, encodes it, waits for its turn and writes it. Reading and writing are
            in the order of the corpus, so the shards do not depend on the number of threads.
Validation  A piece goes to the validation shard while that holds less than its share of the tokens so far. A piece is a
            document, or 64 KiB of a longer one.
Tokenizer   OUT_merges.txt, or OUT_tokenizer.json if its ids are not in GPT-2's order: training on the shards finds it
Memory      a block and its tokens for each thread, and the window of corpus.h
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/device.h"
#include "llmc/common/progress.h"
#include "llmc/data/bpe_trainer.h"
#include "llmc/data/corpus.h"
#include "llmc/data/shard_writer.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/run_dir.h"
#include "llmc/run/train_args.h"

enum { TOKENIZE_BLOCK = 1 << 20 };  // bytes

typedef struct {
    size_t start, bytes, count;  // its first byte in the block, its bytes and its tokens
    bool ends_document;
} TokenizePiece;

typedef struct {
    char *text;
    size_t bytes, capacity;
    TokenizePiece *pieces;
    int num_pieces;
    TokenizerEncoder encoder;
    int *ids;          // of one piece
    uint16_t *tokens;  // of all pieces
} TokenizeBlock;

typedef struct {
    const TrainArgs *args;
    const Tokenizer *tokenizer;
    Corpus corpus;
    ShardWriter writer;
    uint64_t documents;
} TokenizeJob;

// ---- one block

// Reads the next block. It has no pieces at the end of the corpus.
static inline void block_read(TokenizeBlock *b, Corpus *corpus) {
    CorpusPiece from;
    b->bytes = 0;
    b->num_pieces = 0;
    while (b->bytes < TOKENIZE_BLOCK && corpus_next(corpus, &from)) {
        if (b->bytes + from.bytes >= b->capacity) {  // also for a block of empty documents: text is not NULL
            b->capacity = b->bytes + from.bytes + TOKENIZE_BLOCK;
            b->text = (char *)xrealloc(b->text, b->capacity);
        }
        TokenizePiece piece = {b->bytes, from.bytes, 0, from.ends_document};
        b->pieces = (TokenizePiece *)xgrow(b->pieces, (size_t)b->num_pieces, sizeof *b->pieces);
        b->pieces[b->num_pieces++] = piece;
        memcpy(b->text + b->bytes, from.text, from.bytes);
        b->bytes += from.bytes;
    }
}

static inline void block_encode(const Tokenizer *t, TokenizeBlock *b) {
    b->ids = (int *)xrealloc(b->ids, (b->bytes + 1) * sizeof *b->ids);
    b->tokens = (uint16_t *)xrealloc(b->tokens, (b->bytes + (size_t)b->num_pieces + 1) * sizeof *b->tokens);
    uint16_t *tokens = b->tokens;
    for (int p = 0; p < b->num_pieces; p++) {
        TokenizePiece *piece = &b->pieces[p];
        piece->count = tokenizer_encode_with(t, &b->encoder, b->text + piece->start, piece->bytes, b->ids);
        for (size_t i = 0; i < piece->count; i++) { tokens[i] = (uint16_t)b->ids[i]; }
        if (piece->ends_document) { tokens[piece->count++] = (uint16_t)t->end_of_text; }
        tokens += piece->count;
    }
}

static inline void block_write(TokenizeJob *job, const TokenizeBlock *b) {
    ShardWriter *w = &job->writer;
    const uint16_t *tokens = b->tokens;
    for (int p = 0; p < b->num_pieces; p++) {
        double all = (double)(w->written[SHARD_TRAIN] + w->written[SHARD_VAL]);
        bool val = (double)w->written[SHARD_VAL] < job->args->val_share * all;
        shard_writer_append(w, val ? SHARD_VAL : SHARD_TRAIN, tokens, b->pieces[p].count);
        tokens += b->pieces[p].count;
        job->documents += b->pieces[p].ends_document;
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

static inline void tokenize_blocks(TokenizeJob *job) {
    uint64_t blocks_read = 0, blocks_written = 0;
#pragma omp parallel
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
            block_encode(job->tokenizer, &block);
            while (__atomic_load_n(&blocks_written, __ATOMIC_ACQUIRE) != number) { usleep(100); }
            block_write(job, &block);
            progress_show("--tokenize", (double)job->corpus.bytes_read, (double)job->corpus.bytes);
            __atomic_store_n(&blocks_written, number + 1, __ATOMIC_RELEASE);
        } while (block.num_pieces > 0);
        __atomic_add_fetch(&job->corpus.specials, block.encoder.specials_as_text, __ATOMIC_RELAXED);
        block_free(&block);
    }
}

static inline void tokenize_print_end(const TokenizeJob *job, double seconds) {
    const ShardWriter *w = &job->writer;
    double bytes = (double)job->corpus.bytes_read;
    printf("%s_train_*.bin: %d shard%s, %" PRIu64 " tokens; validation: %" PRIu64 " tokens\n", w->out, w->num_train,
           plural_s((uint64_t)w->num_train), w->written[SHARD_TRAIN], w->written[SHARD_VAL]);
    printf("%" PRIu64 " document%s, %.1f MB in %.1f s: %.1f MB/s\n", job->documents, plural_s(job->documents),
           bytes / 1e6, seconds, bytes / 1e6 / seconds);
    corpus_print_notes(stdout, &job->corpus);
}

// path = the tokenizer's file of the shards. Stops if it exists with other tokens.
static inline void tokenize_tokenizer_path(char *path, const TokenizeJob *job) {
    bool plain = tokenizer_is_gpt2_order(job->tokenizer);
    format_path(path, "%s_%s", job->args->tokenize, plain ? "merges.txt" : "tokenizer.json");
    if (access(path, F_OK) != 0) { return; }
    Tokenizer found = tokenizer_open(path);
    if (tokenizer_fingerprint(&found) != tokenizer_fingerprint(job->tokenizer)) {
        input_error("--tokenize: '%s' exists already, with other tokens than --tokenizer %s; give another name, or "
                    "move the file away",
                    path, job->args->tokenizer);
    }
    tokenizer_free(&found);
}

static inline void tokenize_corpus(TrainArgs *a, Comm *launched) {
    (void)launched;
    TokenizeJob job;
    char path[PATH_LENGTH];
    double started = now_seconds();
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
    job.corpus.tokenizer = &tokenizer;
    tokenize_tokenizer_path(path, &job);
    char folder[PATH_LENGTH];
    folder_of(folder, a->tokenize);
    make_run_dir(folder);
    job.writer = shard_writer_open(a->tokenize, tokenizer.vocab_size, SHARD_TOKENS);
    tokenize_blocks(&job);
    progress_show("--tokenize", -1, 0);
    if (job.writer.written[SHARD_TRAIN] == 0) {
        part_discard(&job.writer.open[SHARD_TRAIN]);
        input_error("-i %s holds no text", a->train_data);
    }
    int error = 0;
    if (access(path, F_OK) != 0) {
        error = has_ending(path, ".json") ? tokenizer_write_json(&tokenizer, path, true)
                                          : tokenizer_write_merges(&tokenizer, path);
    }
    if (error) {
        run_error("could not write '%s': %s; make room, then give the same command again", path, strerror(error));
    }
    shard_writer_close(&job.writer);
    tokenize_print_end(&job, now_seconds() - started);
    corpus_close(&job.corpus);
    tokenizer_free(&tokenizer);
}

// ---- --train-bpe

static inline void train_bpe_path(char *path, const char *folder, const char *name) {
    format_path(path, "%s/%s", folder, name);
    if (access(path, F_OK) == 0) { input_error("--train-bpe: '%s' exists already; give another folder with -o", path); }
}

// Writes vocab.json and merges.txt, with --train-bpe tokens, to -o or to the current folder.
static inline void train_bpe(TrainArgs *a, Comm *launched) {
    (void)launched;
    char vocab[PATH_LENGTH], merges[PATH_LENGTH];
    const char *folder = a->run_dir ? a->run_dir : ".";
    train_bpe_path(vocab, folder, "vocab.json");
    train_bpe_path(merges, folder, "merges.txt");
    Corpus corpus = corpus_open("-i", a->train_data, a->field);
    BpeTrainer trainer;
    CorpusPiece piece;
    memset(&trainer, 0, sizeof trainer);
    double started = now_seconds();
    while (corpus_next(&corpus, &piece)) {
        bpe_count(&trainer, piece.text, piece.bytes);
        progress_show("--train-bpe, counting words", (double)corpus.bytes_read, (double)corpus.bytes);
    }
    progress_show("--train-bpe, counting words", -1, 0);
    if (trainer.num_words == 0) { input_error("-i %s holds no text", a->train_data); }
    size_t words = trainer.num_words;
    Tokenizer tokenizer = bpe_learn(&trainer, a->train_bpe);
    if (tokenizer.vocab_size == 257) {
        input_error("-i %s holds no pair of bytes twice; give more text", a->train_data);
    }
    make_run_dir(folder);
    int lock = lock_run_dir(folder);  // a second command may have written the files since
    train_bpe_path(vocab, folder, "vocab.json");
    train_bpe_path(merges, folder, "merges.txt");
    const char *path = vocab;
    int error = tokenizer_write_vocab(&tokenizer, path);
    if (!error) { error = tokenizer_write_merges(&tokenizer, path = merges); }
    if (error) {
        unlink(vocab);
        run_error("could not write '%s': %s; neither file is left, so make room and try again", path, strerror(error));
    }
    close(lock);
    printf("%s and %s: %d tokens from %zu different word%s, %.1f s\n", vocab, merges, tokenizer.vocab_size, words,
           plural_s(words), now_seconds() - started);
    corpus_print_notes(stdout, &corpus);
    tokenizer_free(&tokenizer);
    bpe_free(&trainer);
    corpus_close(&corpus);
}
