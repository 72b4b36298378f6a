/*
--train-bpe: learns a vocabulary from the text of -i and writes vocab.json and merges.txt.
defines: train_bpe
*/
#pragma once
#include "llmc/data/bpe_trainer.h"
#include "llmc/data/corpus.h"
#include "llmc/data/tokenizer_files.h"
#include "llmc/run/logger.h"
#include "llmc/run/run_dir.h"

// Counts the words of one piece. Stops at a line that is no document.
static inline void train_bpe_count(BpeTrainer *trainer, const Corpus *corpus, CorpusPiece *piece) {
    if (!piece->is_json) {
        bpe_count(trainer, piece->text, piece->bytes);
        return;
    }
    cJSON *json;
    const char *trouble, *text = corpus_document(piece->text, piece->bytes, corpus->field, &json, &trouble);
    if (!text) { corpus_refuse(corpus, piece, trouble); }
    bpe_count(trainer, text, strlen(text));
    cJSON_Delete(json);
}

static inline void train_bpe_path(char *path, const char *folder, const char *name) {
    format_path(path, "%s/%s", folder, name);
    if (access(path, F_OK) == 0) { input_error("--train-bpe: '%s' exists already; give another folder with -o", path); }
}

static inline void train_bpe_check_written(int error, const char *path) {
    if (!error) { return; }
    run_error("could not write '%s': %s; nothing is left of the files, so make room and try again", path,
              strerror(error));
}

// Writes -o/vocab.json and -o/merges.txt for a vocabulary of --train-bpe tokens; without -o, in the current folder.
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
    train_bpe_check_written(tokenizer_write_vocab(&tokenizer, vocab), vocab);
    int error = tokenizer_write_merges(&tokenizer, merges);
    if (error) { unlink(vocab); }
    train_bpe_check_written(error, merges);
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
