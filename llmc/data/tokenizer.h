/*
Text to token ids and back: bytes, or GPT-2's byte-level BPE (Radford et al. 2019; Sennrich et al. 2016).
defines: Tokenizer, HeapEntry, heap_before, heap_push, heap_pop, TokenizerEncoder, tokenizer_bytes,
         tokenizer_load, tokenizer_fingerprint, tokenizer_encode, tokenizer_encode_with, tokenizer_safe_cut,
         tokenizer_decode, tokenizer_free, tokenizer_free_encoder

Encoding    1. GPT-2's pattern splits the text into pre-tokens. The first alternative that matches is taken, as long as
               it can be:
               's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
            2. A pre-token starts as its bytes. The adjacent pair that merges into the lowest id is merged, leftmost
               first, until no pair merges. A heap of candidate pairs makes that O(n log n) for n bytes. Most
               pre-tokens of a long text occur again: a cache holds the tokens of short ones.
            A pre-token of more than 1 MiB is encoded in pieces of 1 MiB, to bound the memory.
Bytes       Any bytes encode, and decode to themselves. A byte outside of valid UTF-8 is a character of its own: neither
            letter, number nor space. "<|endoftext|>" in a text is text: no text merges to end-of-text.
Ids         0..255 are the bytes, then one token for each merge in the order of the merges, then end-of-text. Without
            merges a newline stands for end-of-text.
Files       merges file (vocab.bpe, Hugging Face's merges.txt): an optional line "#version...", then a line for each
            merge: two symbols with a space between. Lines end in \n or \r\n. The characters of a symbol stand for
            bytes: 33..126, 161..172 and 174..255 for themselves, and 256, 257, .. for the other bytes in rising order.
            Byte ids follow the same order.
            llm.c's gpt2_tokenizer.bin: 256 int32 (magic 20240328, version 1 or 2, vocabulary; in version 2 the id of
            end-of-text), then for each id a length byte and the token's bytes. It lists no merges. Ids are in the order
            of the merges, so encoding a token with the tokens before it gives the two tokens that merge into it.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/hash.h"
#include "llmc/data/unicode_classes.h"
#include <stdbool.h>

enum {
    TOKENIZER_MAX_VOCAB = 65536,       // a token is two bytes in a data shard
    TOKENIZER_MAX_TOKEN_BYTES = 255,   // one length byte in gpt2_tokenizer.bin
    TOKENIZER_MAX_FILE = 32 << 20,     // bytes; no file within the two limits above is larger
    TOKENIZER_MERGE_SLOTS = 1 << 17,   // a power of two, at least twice the number of merges
    TOKENIZER_MAX_PRETOKEN = 1 << 20,  // bytes
    TOKENIZER_NUM_PLAIN = 188,         // bytes that tokenizer_byte_is_plain: ids 0 to 187
    TOKENIZER_BIN_HEADER = 256,        // int32s
    TOKENIZER_CACHE_BITS = 15,
    TOKENIZER_CACHED_BYTES = 16,
    TOKENIZER_CACHED_TOKENS = 7,
};
#define TOKENIZER_END_OF_TEXT "<|endoftext|>"

typedef struct {
    int vocab_size;           // 256, or 256 + merges + 1: 50257 for GPT-2
    int end_of_text;          // the token before each text; of bytes, a newline
    uint8_t byte_token[256];  // id of each byte
    char *bytes;              // token i is bytes[start[i]..start[i + 1] - 1]
    uint32_t *start;          // (vocab_size + 1)
    uint64_t *merges;         // (TOKENIZER_MERGE_SLOTS) left id << 48 | right id << 32 | merged id, a hash table with
                              // open addressing; 0: a free slot. NULL: no merges
} Tokenizer;

// ---- merging

// the slot of the pair (left, right), or the free slot for it
static inline uint64_t *tokenizer_merge_slot(const Tokenizer *t, int left, int right) {
    uint32_t pair = (uint32_t)left << 16 | (uint32_t)right;
    uint32_t slot = (pair * 0x9E3779B1u) >> 15;  // Fibonacci hashing: the upper 17 bits
    while (t->merges[slot] && t->merges[slot] >> 32 != pair) { slot = (slot + 1) % TOKENIZER_MERGE_SLOTS; }
    return &t->merges[slot];
}

typedef struct {
    uint64_t key, value;
} HeapEntry;

// True if a goes before b: the smallest key first, among equals the smallest value.
static inline bool heap_before(HeapEntry a, HeapEntry b) { return a.key != b.key ? a.key < b.key : a.value < b.value; }

// Adds an entry to a heap (*size), which has room for it.
static inline void heap_push(HeapEntry *heap, size_t *size, uint64_t key, uint64_t value) {
    const HeapEntry entry = {key, value};
    size_t child = (*size)++;
    for (; child > 0 && heap_before(entry, heap[(child - 1) / 2]); child = (child - 1) / 2) {
        heap[child] = heap[(child - 1) / 2];
    }
    heap[child] = entry;
}

static inline HeapEntry heap_pop(HeapEntry *heap, size_t *size) {
    HeapEntry top = heap[0], last = heap[--*size];
    size_t parent = 0, child;
    while ((child = 2 * parent + 1) < *size) {
        if (child + 1 < *size && heap_before(heap[child + 1], heap[child])) { child++; }
        if (!heap_before(heap[child], last)) { break; }
        heap[parent] = heap[child];
        parent = child;
    }
    heap[parent] = last;
    return top;
}

// a pre-token of at most 16 bytes and 7 tokens, in the cache
typedef struct {
    uint64_t key[2];  // the bytes, then zeros
    uint8_t length;   // in bytes; 0: a free entry
    uint8_t count;    // of tokens
    uint16_t tokens[TOKENIZER_CACHED_TOKENS];
} TokenizerCached;

// The scratch memory and the cache of one thread, for one tokenizer. Zeroed is empty. Free with tokenizer_free_encoder.
typedef struct {
    // the pre-token that is merged: a linked list of tokens, each at the index of its first byte
    int *token;  // -1: merged into the token before it
    size_t *previous, *next;
    HeapEntry *heap;  // candidate pairs. key: the merged id; value: the index of the left token
    size_t heap_size, capacity;
    TokenizerCached *cache;  // (1 << TOKENIZER_CACHE_BITS) an entry's index is the hash of its key
} TokenizerEncoder;

static const size_t TOKENIZER_NO_INDEX = SIZE_MAX;  // before the first token, after the last

// the id that the token at index i and the next token merge into; 0: none
static inline int tokenizer_merged_id(const Tokenizer *t, const TokenizerEncoder *m, size_t i) {
    if (m->token[i] < 0 || m->next[i] == TOKENIZER_NO_INDEX) { return 0; }
    return (int)(uint32_t)*tokenizer_merge_slot(t, m->token[i], m->token[m->next[i]]);
}

// pushes the pair at index i if it merges
static inline void tokenizer_push_pair(const Tokenizer *t, TokenizerEncoder *m, size_t i) {
    int id = i == TOKENIZER_NO_INDEX ? 0 : tokenizer_merged_id(t, m, i);
    if (id) { heap_push(m->heap, &m->heap_size, (uint64_t)id, i); }
}

// Encodes one pre-token into at most `bytes` tokens and returns their number.
static inline size_t tokenizer_encode_pretoken(const Tokenizer *t, TokenizerEncoder *m, const char *text, size_t bytes,
                                               int *tokens) {
    if (bytes > m->capacity) {
        m->capacity = bytes;
        m->token = (int *)xrealloc(m->token, m->capacity * sizeof *m->token);
        m->previous = (size_t *)xrealloc(m->previous, m->capacity * sizeof *m->previous);
        m->next = (size_t *)xrealloc(m->next, m->capacity * sizeof *m->next);
        // n - 1 pairs at first; each of at most n - 1 merges pops one and pushes at most two
        m->heap = (HeapEntry *)xrealloc(m->heap, 2 * m->capacity * sizeof *m->heap);
    }
    m->heap_size = 0;
    for (size_t i = 0; i < bytes; i++) {
        m->token[i] = t->byte_token[(uint8_t)text[i]];
        m->previous[i] = i ? i - 1 : TOKENIZER_NO_INDEX;
        m->next[i] = i + 1 < bytes ? i + 1 : TOKENIZER_NO_INDEX;
    }
    for (size_t i = 0; i + 1 < bytes; i++) { tokenizer_push_pair(t, m, i); }
    while (m->heap_size) {
        HeapEntry entry = heap_pop(m->heap, &m->heap_size);
        size_t left = entry.value;
        int id = (int)entry.key;
        if (tokenizer_merged_id(t, m, left) != id) { continue; }  // one of the two has merged with another token since
        size_t right = m->next[left], after = m->next[right];
        m->token[left] = id;
        m->token[right] = -1;
        m->next[left] = after;
        if (after != TOKENIZER_NO_INDEX) { m->previous[after] = left; }
        tokenizer_push_pair(t, m, m->previous[left]);
        tokenizer_push_pair(t, m, left);
    }
    size_t count = 0;
    for (size_t i = 0; i < bytes; i = m->next[i]) { tokens[count++] = m->token[i]; }
    return count;
}

static inline void tokenizer_free_encoder(TokenizerEncoder *e) {
    free(e->token);
    free(e->previous);
    free(e->next);
    free(e->heap);
    free(e->cache);
    memset(e, 0, sizeof *e);
}

// Encodes a pre-token through the cache. Returns the number of tokens.
static inline size_t tokenizer_encode_cached(const Tokenizer *t, TokenizerEncoder *e, const char *text, size_t length,
                                             int *tokens) {
    if (length > TOKENIZER_CACHED_BYTES) { return tokenizer_encode_pretoken(t, e, text, length, tokens); }
    uint64_t key[2] = {0, 0};
    memcpy(key, text, length);
    uint64_t hash = (key[0] ^ key[1] * 0xFF51AFD7ED558CCDull) * 0x9E3779B97F4A7C15ull;
    TokenizerCached *entry = &e->cache[hash >> (64 - TOKENIZER_CACHE_BITS)];
    if (entry->length == length && entry->key[0] == key[0] && entry->key[1] == key[1]) {
        for (int i = 0; i < entry->count; i++) { tokens[i] = entry->tokens[i]; }
        return entry->count;
    }
    size_t count = tokenizer_encode_pretoken(t, e, text, length, tokens);
    if (count > TOKENIZER_CACHED_TOKENS) { return count; }
    memcpy(entry->key, key, sizeof entry->key);
    entry->length = (uint8_t)length;
    entry->count = (uint8_t)count;
    for (size_t i = 0; i < count; i++) { entry->tokens[i] = (uint16_t)tokens[i]; }
    return count;
}

// ---- splitting a text into pre-tokens

static const uint32_t TOKENIZER_NOT_UTF8 = UINT32_MAX;

// The code point at the start of the text (bytes > 0) and its length. A stray byte, an overlong form or a sequence cut
// short gives NOT_UTF8 and length 1. Surrogates and values above 0x10FFFF pass: like NOT_UTF8, they have no class.
static inline uint32_t tokenizer_code_point(const char *text, size_t bytes, size_t *length) {
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};  // by length
    uint8_t lead = (uint8_t)text[0];
    size_t n = lead < 0x80 ? 1 : lead < 0xC0 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF8 ? 4 : 0;
    *length = 1;
    if (n == 1) { return lead; }
    if (n == 0 || n > bytes) { return TOKENIZER_NOT_UTF8; }
    uint32_t code = lead & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if (((uint8_t)text[i] & 0xC0) != 0x80) { return TOKENIZER_NOT_UTF8; }
        code = code << 6 | ((uint8_t)text[i] & 0x3Fu);
    }
    if (code < smallest[n]) { return TOKENIZER_NOT_UTF8; }
    *length = n;
    return code;
}

// the class of the character at the start of the text (bytes > 0), and the character's length
static inline UnicodeClass tokenizer_class(const char *text, size_t bytes, size_t *length) {
    uint8_t c = (uint8_t)text[0];
    if (c < 128) {  // no bisection for ASCII, the bulk of a text
        bool letter = (uint8_t)((c | 32) - 'a') < 26, number = (uint8_t)(c - '0') < 10;
        bool space = c == ' ' || (uint8_t)(c - '\t') < 5;
        *length = 1;
        return letter ? UNICODE_LETTER : number ? UNICODE_NUMBER : space ? UNICODE_SPACE : UNICODE_OTHER;
    }
    return unicode_class(tokenizer_code_point(text, bytes, length));
}

// The bytes of the leading characters of class `kind`, and where the last of them starts.
static inline size_t tokenizer_class_length(UnicodeClass kind, const char *text, size_t bytes, size_t *last) {
    size_t end = 0, length;
    if (bytes > TOKENIZER_MAX_PRETOKEN) { bytes = TOKENIZER_MAX_PRETOKEN; }
    while (end < bytes && tokenizer_class(text + end, bytes - end, &length) == kind) {
        *last = end;
        end += length;
    }
    return end;
}

// the length in bytes of the pre-token at the start of the text (bytes > 0)
static inline size_t tokenizer_pretoken_length(const char *text, size_t bytes) {
    static const char *const contractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; text[0] == '\'' && i < sizeof contractions / sizeof contractions[0]; i++) {
        size_t n = strlen(contractions[i]);
        if (n <= bytes && memcmp(text, contractions[i], n) == 0) { return n; }
    }
    size_t space = text[0] == ' ' && bytes > 1, length, last = 0;
    UnicodeClass kind = tokenizer_class(text + space, bytes - space, &length);
    if (kind != UNICODE_SPACE) { return space + tokenizer_class_length(kind, text + space, bytes - space, &last); }
    // white space; when text follows, without the last character, which may belong to the next pre-token
    size_t end = tokenizer_class_length(UNICODE_SPACE, text, bytes, &last);
    return end < bytes && last > 0 ? last : end;
}

// ---- loading

static inline Tokenizer tokenizer_alloc(size_t token_bytes, int max_vocab, int merges) {
    uint32_t *start = (uint32_t *)xcalloc((size_t)max_vocab + 1, sizeof *start);
    uint64_t *slots = merges ? (uint64_t *)xcalloc(TOKENIZER_MERGE_SLOTS, sizeof *slots) : NULL;
    Tokenizer t = {0, 0, {0}, (char *)xmalloc(token_bytes), start, slots};
    return t;
}

static inline void tokenizer_free(Tokenizer *t) {
    free(t->bytes);
    free(t->start);
    free(t->merges);
    memset(t, 0, sizeof *t);
}

static inline void tokenizer_append(Tokenizer *t, const char *bytes, size_t length) {
    memcpy(t->bytes + t->start[t->vocab_size], bytes, length);
    t->start[t->vocab_size + 1] = t->start[t->vocab_size] + (uint32_t)length;
    t->vocab_size++;
}

static inline void tokenizer_append_byte(Tokenizer *t, int byte) {
    char c = (char)byte;
    t->byte_token[byte] = (uint8_t)t->vocab_size;
    tokenizer_append(t, &c, 1);
}

// Appends the token that two tokens merge into. False: it is longer than TOKENIZER_MAX_TOKEN_BYTES.
static inline bool tokenizer_append_pair(Tokenizer *t, int left, int right) {
    char joined[2 * TOKENIZER_MAX_TOKEN_BYTES];
    size_t first = t->start[left + 1] - t->start[left], second = t->start[right + 1] - t->start[right];
    if (first + second > TOKENIZER_MAX_TOKEN_BYTES) { return false; }
    memcpy(joined, t->bytes + t->start[left], first);
    memcpy(joined + first, t->bytes + t->start[right], second);
    *tokenizer_merge_slot(t, left, right) = (uint64_t)left << 48 | (uint64_t)right << 32 | (uint64_t)t->vocab_size;
    tokenizer_append(t, joined, first + second);
    return true;
}

// Appends a token of `length` bytes and its merge, and returns the length of the left half. Encoded with the tokens so
// far, the bytes must give two tokens: so merging by lowest id is merging by the list, and every token encodes to
// itself. Returns 0 for one token (it exists already) or more than two (no merge reaches it).
static inline size_t tokenizer_append_merge(Tokenizer *t, TokenizerEncoder *m, const char *bytes, size_t length) {
    int halves[TOKENIZER_MAX_TOKEN_BYTES];
    if (tokenizer_encode_pretoken(t, m, bytes, length, halves) != 2) { return 0; }
    tokenizer_append_pair(t, halves[0], halves[1]);
    return t->start[halves[0] + 1] - t->start[halves[0]];
}

static inline void tokenizer_append_end_of_text(Tokenizer *t) {
    t->end_of_text = t->vocab_size;
    tokenizer_append(t, TOKENIZER_END_OF_TEXT, strlen(TOKENIZER_END_OF_TEXT));
}

// True if a merges file writes this byte as the character of the same number.
static inline int tokenizer_byte_is_plain(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// 256 byte tokens in GPT-2's order
static inline void tokenizer_append_gpt2_bytes(Tokenizer *t) {
    for (int plain = 1; plain >= 0; plain--) {
        for (int byte = 0; byte < 256; byte++) {
            if (tokenizer_byte_is_plain(byte) == plain) { tokenizer_append_byte(t, byte); }
        }
    }
}

// joined = the bytes of the two symbols of a line, the second from *split on. Returns their number; 0: malformed.
static inline size_t tokenizer_read_merge(const Tokenizer *t, const char *line, size_t length, char *joined,
                                          size_t *split) {
    size_t count = 0, step;
    *split = 0;
    for (size_t i = 0; i < length; i += step) {
        uint32_t code = tokenizer_code_point(line + i, length - i, &step);
        if (code == ' ' && *split == 0 && count > 0) {
            *split = count;
            continue;
        }
        // character 256 + k is the k-th byte that is not plain
        uint32_t id = code < 256 ? 256 : TOKENIZER_NUM_PLAIN + (code - 256);
        int byte = id < 256 ? (uint8_t)t->bytes[id] : code < 256 && tokenizer_byte_is_plain((int)code) ? (int)code : -1;
        if (byte < 0 || count == TOKENIZER_MAX_TOKEN_BYTES) { return 0; }
        joined[count++] = (char)byte;
    }
    return *split > 0 && *split < count ? count : 0;
}

static inline Tokenizer tokenizer_parse_merges(const char *path, const char *text, size_t bytes) {
    if (bytes > 0 && text[bytes - 1] != '\n') {
        input_error("%s: the last line does not end; expected a whole merges file, so download it again", path);
    }
    // a line of the file is two bytes longer than its token
    Tokenizer t = tokenizer_alloc(256 + bytes + sizeof TOKENIZER_END_OF_TEXT, TOKENIZER_MAX_VOCAB, 1);
    TokenizerEncoder m = {NULL, NULL, NULL, NULL, 0, 0, NULL};
    tokenizer_append_gpt2_bytes(&t);
    size_t number = 1, split;
    for (const char *line = text, *end; line < text + bytes; line = end + 1, number++) {
        char joined[TOKENIZER_MAX_TOKEN_BYTES];
        end = (const char *)memchr(line, '\n', (size_t)(text + bytes - line));
        size_t length = (size_t)(end - line);
        if (length > 0 && line[length - 1] == '\r') { length--; }
        if (number == 1 && strncmp(line, "#version", 8) == 0) { continue; }
        int shown = length < 60 ? (int)length : 60;
        size_t joined_bytes = tokenizer_read_merge(&t, line, length, joined, &split);
        if (t.vocab_size == TOKENIZER_MAX_VOCAB - 1) {
            input_error("%s line %zu: more than the %d merges that a vocabulary of %d has room for; use a shorter "
                        "list",
                        path, number, TOKENIZER_MAX_VOCAB - 257, TOKENIZER_MAX_VOCAB);
        }
        if (joined_bytes == 0 || tokenizer_append_merge(&t, &m, joined, joined_bytes) != split) {
            input_error(
                "%s line %zu: '%.*s' joins no two tokens of the lines before it, with one space between them, into "
                "a new one of at most %d bytes; give GPT-2's vocab.bpe or merges.txt, as it was published",
                path, number, shown, line, TOKENIZER_MAX_TOKEN_BYTES);
        }
    }
    if (t.vocab_size == 256) { input_error("%s: found no merges; expected GPT-2's vocab.bpe or merges.txt", path); }
    tokenizer_append_end_of_text(&t);
    tokenizer_free_encoder(&m);
    return t;
}

static inline Tokenizer tokenizer_parse_bin(const char *path, const char *data, size_t bytes) {
    int32_t header[TOKENIZER_BIN_HEADER] = {0};
    memcpy(header, data, bytes < sizeof header ? bytes : sizeof header);
    int version = header[1], vocab = header[2];
    bool sound =
        vocab > 256 && vocab <= TOKENIZER_MAX_VOCAB && (version == 1 || (version == 2 && header[3] == vocab - 1));
    if (bytes < sizeof header || !sound) {
        input_error("%s: found version %d, %d tokens and %d as end-of-text in %zu bytes; expected llm.c's tokenizer "
                    "file, of version 1 or 2, 257 to %d tokens, end-of-text the last; download it again",
                    path, version, vocab, header[3], bytes, TOKENIZER_MAX_VOCAB);
    }
    Tokenizer t = tokenizer_alloc(bytes + sizeof TOKENIZER_END_OF_TEXT, vocab, 1);
    TokenizerEncoder m = {NULL, NULL, NULL, NULL, 0, 0, NULL};
    size_t at = TOKENIZER_BIN_HEADER * sizeof(int32_t), length;
    for (int id = 0; id < vocab; id++, at += 1 + length) {
        const char *token = data + at + 1;
        length = at < bytes ? (uint8_t)data[at] : 0;
        bool good = at < bytes && length <= bytes - at - 1;
        if (good && id < 256) {
            good = length == 1 && !memchr(t.bytes, *token, (size_t)id);
            if (good) { tokenizer_append_byte(&t, (uint8_t)*token); }
        } else if (good && id < vocab - 1) {
            good = tokenizer_append_merge(&t, &m, token, length) > 0;
        }
        if (!good) {
            input_error(
                "%s: token %d of %d is cut short, or neither a new byte nor joins two tokens before it; expected "
                "GPT-2's file, so download it again",
                path, id, vocab);
        }
    }
    if (at != bytes) { input_error("%s: found %zu bytes after the last token; expected none", path, bytes - at); }
    tokenizer_append_end_of_text(&t);
    tokenizer_free_encoder(&m);
    return t;
}

// ---- the interface

// each byte is a token: vocabulary 256, a newline for end-of-text
static inline Tokenizer tokenizer_bytes(void) {
    Tokenizer t = tokenizer_alloc(256, 256, 0);
    for (int byte = 0; byte < 256; byte++) { tokenizer_append_byte(&t, byte); }
    t.end_of_text = '\n';
    return t;
}

// Loads a merges file or gpt2_tokenizer.bin. Stops at a malformed line or token. Free with tokenizer_free.
static inline Tokenizer tokenizer_load(const char *path) {
    size_t bytes;
    char *data = read_whole_file(path, TOKENIZER_MAX_FILE, &bytes);
    if (!data) {
        input_error("%s: could not read the tokenizer's file (%s); expected GPT-2's vocab.bpe, merges.txt or "
                    "gpt2_tokenizer.bin, of at most %d bytes",
                    path, strerror(errno), TOKENIZER_MAX_FILE);
    }
    int32_t magic = 0;
    memcpy(&magic, data, bytes < sizeof magic ? bytes : sizeof magic);
    if (magic != TOKENIZER_BIN_MAGIC && memchr(data, 0, bytes)) {
        refuse_kind("--tokenizer", path, "GPT-2's vocab.bpe, merges.txt or gpt2_tokenizer.bin");
    }
    Tokenizer t = magic == TOKENIZER_BIN_MAGIC ? tokenizer_parse_bin(path, data, bytes)
                                               : tokenizer_parse_merges(path, data, bytes);
    free(data);
    return t;
}

// 64 bits that identify the tokens and their ids
static inline uint64_t tokenizer_fingerprint(const Tokenizer *t) {
    uint64_t hash = hash_bytes(0, t->start, ((size_t)t->vocab_size + 1) * sizeof *t->start);
    return hash_bytes(hash, t->bytes, t->start[t->vocab_size]);
}

// tokens (at least `bytes`) = the tokens of a text (bytes), of any bytes. Returns their number.
static inline size_t tokenizer_encode_with(const Tokenizer *t, TokenizerEncoder *e, const char *text, size_t bytes,
                                           int *tokens) {
    size_t count = 0;
    if (!t->merges) {
        for (; count < bytes; count++) { tokens[count] = t->byte_token[(uint8_t)text[count]]; }
        return count;
    }
    if (!e->cache) { e->cache = (TokenizerCached *)xcalloc((size_t)1 << TOKENIZER_CACHE_BITS, sizeof *e->cache); }
    for (size_t at = 0, length; at < bytes; at += length) {
        length = tokenizer_pretoken_length(text + at, bytes - at);
        count += tokenizer_encode_cached(t, e, text + at, length, tokens + count);
    }
    return count;
}

// *tokens = the tokens of a text (bytes), as tokenizer_encode_with; returns their number. The caller frees *tokens.
static inline size_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int **tokens) {
    TokenizerEncoder e;
    memset(&e, 0, sizeof e);
    int *ids = (int *)xmalloc(bytes * sizeof *ids);
    size_t count = tokenizer_encode_with(t, &e, text, bytes, ids);
    tokenizer_free_encoder(&e);
    *tokens = (int *)xrealloc(ids, count * sizeof *ids);
    return count;
}

// A place where a text (bytes) that goes on can be cut: both parts have the pre-tokens of the whole. The place is at
// least 1, and at most `max` or the end of the pre-token that crosses `max`. bytes: at least max +
// TOKENIZER_MAX_PRETOKEN + 8.
static inline size_t tokenizer_safe_cut(const char *text, size_t bytes, size_t max) {
    enum { SEARCHED = 4096 };
    // no pre-token crosses from a visible character to white space; ASCII needs no decoding
    for (size_t at = max; at > 1 && at + SEARCHED > max; at--) {
        uint8_t before = (uint8_t)text[at - 1];
        if ((text[at] == ' ' || text[at] == '\n') && before > ' ' && before < 127) { return at; }
    }
    // else after the first pre-token, or a later one that is no white space: at the end of a text, white space is one
    // pre-token, and before a letter two
    size_t at = tokenizer_pretoken_length(text, bytes), cut = at, last;
    while (at < max) {
        size_t length = tokenizer_pretoken_length(text + at, bytes - at);
        bool space = tokenizer_class_length(UNICODE_SPACE, text + at, length, &last) == length;
        at += length;
        if (!space) { cut = at; }
    }
    return cut;
}

// The bytes of a token, not ended by a NUL; *bytes is 0 for an id outside the vocabulary. The tokenizer owns them.
static inline const char *tokenizer_decode(const Tokenizer *t, int token, size_t *bytes) {
    int known = token >= 0 && token < t->vocab_size;
    *bytes = known ? t->start[token + 1] - t->start[token] : 0;
    return known ? t->bytes + t->start[token] : "";
}
