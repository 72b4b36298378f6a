/*
Learns the merges of a byte-level BPE tokenizer from text (Sennrich et al. 2016, arXiv 1508.07909).

Words     the pre-tokens of tokenizer.h, each with the number of times it occurs. A word starts as its bytes.
Merge     The adjacent pair of tokens that occurs most often becomes a new token, in every word; among equals the pair
          of the lowest ids. This repeats until the vocabulary is full or no pair occurs twice. The ids are those of the
          BPE trainer of Hugging Face's tokenizers with a ByteLevel pre-tokenizer and a minimum frequency of 2.
Counts    of pairs are kept up to date: a merge changes only the adjacent pairs. "aaa" counts as two pairs (a, a).
Length    A pair whose bytes exceed TOKENIZER_MAX_TOKEN_BYTES is not merged.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/hash.h"
#include "llmc/common/rng.h"
#include "llmc/common/progress.h"
#include "llmc/data/tokenizer.h"

typedef struct {
    size_t start;   // in bytes while counting, in tokens while learning
    uint32_t size;  // likewise; 0: a free slot
    int64_t count;  // occurrences
} BpeWord;

typedef struct {
    uint32_t left_right;  // left id << 16 | right id
    int64_t count;        // occurrences in all words
    uint32_t *words;      // (num_words) indices of words that hold the pair, or held it
    uint32_t num_words;   // 0: a free slot
} BpePair;

// Zeroed is empty. Free with bpe_free.
typedef struct {
    // words, a hash table by their bytes
    BpeWord *words;
    size_t num_words, word_slots;  // slots: a power of two
    char *bytes;                   // of all words
    size_t num_bytes;
    uint16_t *tokens;  // of all words
    // pairs, a hash table
    BpePair *pairs;
    size_t num_pairs, pair_slots;
    HeapEntry *heap;  // candidate pairs. key: ~count of the pair when it was pushed, the highest count first;
                      // value: left_right
    size_t heap_size;
    uint32_t *created;  // pairs of the current merge
    size_t num_created;
} BpeTrainer;

static inline void bpe_free(BpeTrainer *b) {
    for (size_t i = 0; i < b->pair_slots; i++) { free(b->pairs[i].words); }
    free(b->words);
    free(b->bytes);
    free(b->tokens);
    free(b->pairs);
    free(b->heap);
    free(b->created);
}

// ---- counting words

// the slot of a word, or the free slot for it
static inline BpeWord *bpe_word_slot(const BpeTrainer *b, const char *text, size_t length) {
    size_t slot = hash_bytes(0, text, length) & (b->word_slots - 1);
    while (b->words[slot].size) {
        const BpeWord *w = &b->words[slot];
        if (w->size == length && memcmp(b->bytes + w->start, text, length) == 0) { break; }
        slot = (slot + 1) & (b->word_slots - 1);
    }
    return &b->words[slot];
}

static inline void bpe_grow_words(BpeTrainer *b) {
    BpeWord *old = b->words;
    size_t slots = b->word_slots;
    b->word_slots = slots ? 2 * slots : 1 << 16;
    b->words = (BpeWord *)xcalloc(b->word_slots, sizeof *b->words);
    for (size_t i = 0; i < slots; i++) {
        if (old[i].size) { *bpe_word_slot(b, b->bytes + old[i].start, old[i].size) = old[i]; }
    }
    free(old);
}

static inline void bpe_count(BpeTrainer *b, const char *text, size_t bytes) {
    for (size_t at = 0, length; at < bytes; at += length) {
        length = tokenizer_pretoken_length(text + at, bytes - at);
        if (2 * b->num_words >= b->word_slots) { bpe_grow_words(b); }
        BpeWord *w = bpe_word_slot(b, text + at, length);
        w->count++;
        if (w->size) { continue; }
        w->start = b->num_bytes;
        w->size = (uint32_t)length;
        b->num_words++;
        for (size_t i = 0; i < length; i++) {
            b->bytes = (char *)xgrow(b->bytes, b->num_bytes, 1);
            b->bytes[b->num_bytes++] = text[at + i];
        }
    }
}

// ---- pairs

static inline BpePair *bpe_pair_slot(const BpeTrainer *b, uint32_t left_right) {
    size_t slot = rng_mix(left_right) & (b->pair_slots - 1);
    while (b->pairs[slot].num_words && b->pairs[slot].left_right != left_right) {
        slot = (slot + 1) & (b->pair_slots - 1);
    }
    return &b->pairs[slot];
}

static inline void bpe_grow_pairs(BpeTrainer *b) {
    BpePair *old = b->pairs;
    size_t slots = b->pair_slots;
    b->pair_slots = slots ? 2 * slots : 1 << 16;
    b->pairs = (BpePair *)xcalloc(b->pair_slots, sizeof *b->pairs);
    for (size_t i = 0; i < slots; i++) {
        if (old[i].num_words) { *bpe_pair_slot(b, old[i].left_right) = old[i]; }
    }
    free(old);
}

static inline void bpe_push(BpeTrainer *b, int64_t count, uint32_t left_right) {
    b->heap = (HeapEntry *)xgrow(b->heap, b->heap_size, sizeof *b->heap);
    heap_push(b->heap, &b->heap_size, ~(uint64_t)count, left_right);
}

// Adds `change` occurrences of (left, right) in a word. A positive change notes the word, and a new pair for the heap:
// only pairs with the token of the current merge become more, and that merge has created them.
static inline void bpe_change(BpeTrainer *b, int left, int right, uint32_t word, int64_t change) {
    if (2 * b->num_pairs >= b->pair_slots) { bpe_grow_pairs(b); }
    BpePair *pair = bpe_pair_slot(b, (uint32_t)left << 16 | (uint32_t)right);
    pair->count += change;
    if (change < 0 || (pair->num_words && pair->words[pair->num_words - 1] == word)) { return; }
    if (!pair->num_words) {
        pair->left_right = (uint32_t)left << 16 | (uint32_t)right;
        b->num_pairs++;
        b->created = (uint32_t *)xgrow(b->created, b->num_created, sizeof *b->created);
        b->created[b->num_created++] = pair->left_right;
    }
    pair->words = (uint32_t *)xgrow(pair->words, pair->num_words, sizeof *pair->words);
    pair->words[pair->num_words++] = word;
}

static inline void bpe_push_created(BpeTrainer *b) {
    for (size_t i = 0; i < b->num_created; i++) {
        int64_t count = bpe_pair_slot(b, b->created[i])->count;
        if (count > 0) { bpe_push(b, count, b->created[i]); }
    }
    b->num_created = 0;
}

// ---- learning

// merges (left, right) in a word, from the left
static inline void bpe_merge_word(BpeTrainer *b, uint32_t word, int left, int right, int merged) {
    BpeWord *w = &b->words[word];
    uint16_t *tokens = b->tokens + w->start;
    for (uint32_t i = 0; i + 1 < w->size; i++) {
        if (tokens[i] != left || tokens[i + 1] != right) { continue; }
        tokens[i] = (uint16_t)merged;
        memmove(tokens + i + 1, tokens + i + 2, (w->size - i - 2) * sizeof *tokens);
        w->size--;
        if (i > 0) {
            bpe_change(b, tokens[i - 1], left, word, -w->count);
            bpe_change(b, tokens[i - 1], merged, word, w->count);
        }
        if (i + 1 < w->size) {
            bpe_change(b, right, tokens[i + 1], word, -w->count);
            bpe_change(b, merged, tokens[i + 1], word, w->count);
        }
    }
}

// Learns a tokenizer of vocab_size tokens (257 to TOKENIZER_MAX_VOCAB), or of fewer if no pair is left to merge.
static inline Tokenizer bpe_learn(BpeTrainer *b, int vocab_size) {
    Tokenizer t = tokenizer_alloc((size_t)vocab_size * TOKENIZER_MAX_TOKEN_BYTES, vocab_size, 1);
    tokenizer_append_gpt2_bytes(&t);
    b->tokens = (uint16_t *)xmalloc(b->num_bytes * sizeof *b->tokens);
    for (size_t i = 0; i < b->num_bytes; i++) { b->tokens[i] = t.byte_token[(uint8_t)b->bytes[i]]; }
    for (uint32_t i = 0; i < b->word_slots; i++) {
        const BpeWord *w = &b->words[i];
        const uint16_t *tokens = b->tokens + w->start;
        for (uint32_t k = 0; k + 1 < w->size; k++) { bpe_change(b, tokens[k], tokens[k + 1], i, w->count); }
    }
    bpe_push_created(b);
    while (t.vocab_size < vocab_size - 1 && b->heap_size > 0) {
        HeapEntry best = heap_pop(b->heap, &b->heap_size);
        uint32_t left_right = (uint32_t)best.value;
        BpePair pair = *bpe_pair_slot(b, left_right);
        if (pair.count != (int64_t)~best.key) {
            if (pair.count > 0) { bpe_push(b, pair.count, left_right); }
            continue;
        }
        if (pair.count < 2) { break; }
        int left = (int)(left_right >> 16), right = (int)(left_right & 0xFFFF), merged = t.vocab_size;
        if (!tokenizer_append_pair(&t, left, right)) { continue; }
        for (uint32_t i = 0; i < pair.num_words; i++) { bpe_merge_word(b, pair.words[i], left, right, merged); }
        bpe_push_created(b);
        progress_show("--train-bpe, merging", t.vocab_size, vocab_size);
    }
    progress_show("--train-bpe, merging", -1, 0);
    tokenizer_append_end_of_text(&t);
    return t;
}
