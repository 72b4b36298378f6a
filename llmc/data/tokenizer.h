/*
Text to token ids and back: bytes, or GPT-2's byte-level BPE (Radford et al. 2019; Sennrich et al. 2016).

Encoding    1. GPT-2's pattern splits the text into pre-tokens. The first alternative that matches is taken, as long as
               it can be:
               's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
            2. A pre-token starts as its bytes. The adjacent pair that is earliest in the list of merges is merged,
               leftmost first, until no pair merges. A heap of candidate pairs makes that O(n log n) for n bytes. Most
               pre-tokens of a long text occur again: a cache holds the tokens of short ones.
            A pre-token of more than 1 MiB is encoded in pieces of 1 MiB, to bound the memory.
Bytes       Any bytes encode, and decode to themselves. A byte outside of valid UTF-8 is a character of its own: neither
            letter, number nor space.
Added       Tokens that no merge makes. They are found in a text before it is split, the longest of those that start
            first. A special one, such as <|endoftext|>, is a token in a prompt. In a training text it stays text, as in
            tiktoken's encode_ordinary.
Ids         as in vocab.json (tokenizer_files.h). Without one, in GPT-2's order: 0..255 are the bytes, then one token
            for each merge in the order of the merges, then end-of-text. Without merges, a newline is end-of-text.
Files       merges file (vocab.bpe, Hugging Face's merges.txt): an optional line "#version...", then a line for each
            merge: two symbols with a space between. Lines end in \n or \r\n, the last one perhaps in nothing, and the
            file may begin with a byte order mark. The characters of a symbol stand for bytes: 33..126, 161..172 and
            174..255 for themselves, and 256, 257, .. for the other bytes in rising order. So do byte ids.
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
#include <ctype.h>
#include <stdbool.h>

enum {
    TOKENIZER_MAX_VOCAB = 65536,       // a token is two bytes in a data shard
    TOKENIZER_MAX_MERGES = 65535,      // a rank is two bytes of a slot
    TOKENIZER_MAX_TOKEN_BYTES = 255,   // one length byte in gpt2_tokenizer.bin
    TOKENIZER_MAX_FILE = 32 << 20,     // bytes; no file within the two limits above is larger
    TOKENIZER_MERGE_SLOTS = 1 << 17,   // a power of two, at least twice the number of merges, and of tokens
    TOKENIZER_MAX_PRETOKEN = 1 << 20,  // bytes
    TOKENIZER_BIN_HEADER = 256,        // int32s
    TOKENIZER_CACHE_BITS = 15,
    TOKENIZER_CACHED_BYTES = 16,
    TOKENIZER_CACHED_TOKENS = 7,
};
#define TOKENIZER_END_OF_TEXT "<|endoftext|>"

// what an added token is: bits of Tokenizer.kind. The last two remove the white space before and after it.
enum { TOKEN_ADDED = 1, TOKEN_SPECIAL = 2, TOKEN_STRIPS_LEFT = 4, TOKEN_STRIPS_RIGHT = 8 };

typedef struct {
    int vocab_size;            // 256, or of a BPE the highest id + 1: 50257 for GPT-2
    int end_of_text;           // the token before each text; of bytes, a newline
    uint16_t byte_token[256];  // id of each byte
    char *bytes;               // token i is bytes[start[i]..start[i + 1] - 1]; an id that no token has is empty
    uint32_t *start;           // (vocab_size + 1)
    uint64_t *merges;          // (TOKENIZER_MERGE_SLOTS) left id << 48 | right id << 32 | rank + 1 << 16 | merged id, a
                               // hash table with open addressing; 0: a free slot. NULL: no merges
    int num_merges;
    uint32_t *ids;  // (TOKENIZER_MERGE_SLOTS) id + 1 of tokens by their bytes, such a table too; NULL: no merges
    uint8_t *kind;  // (TOKENIZER_MAX_VOCAB) of each token; 0: a byte or made by a merge
    int *added;     // (num_added) ids of the added tokens
    int num_added;
    bool starts_added[256];  // by byte: whether an added token starts with it
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

// a token of the pre-token that is merged, at the index of its first byte in a linked list
typedef struct {
    int token;  // -1: merged into the token before it
    size_t previous, next;
} TokenizerLink;

// The scratch memory and the cache of one thread, for one tokenizer. Zeroed is empty. Free with tokenizer_free_encoder.
typedef struct {
    TokenizerLink *links;
    HeapEntry *heap;  // candidate pairs. key: tokenizer_merge_at; value: the index of the left token
    size_t heap_size, capacity;
    TokenizerCached *cache;     // (1 << TOKENIZER_CACHE_BITS) an entry's index is the hash of its key
    bool takes_special;         // special tokens in a text are tokens, as in a prompt
    uint64_t specials_as_text;  // those that stayed text
} TokenizerEncoder;

static const size_t TOKENIZER_NO_INDEX = SIZE_MAX;  // before the first token, after the last

// the merge of the token at index i and the next token: rank + 1 << 16 | merged id; 0: none
static inline uint32_t tokenizer_merge_at(const Tokenizer *t, const TokenizerEncoder *m, size_t i) {
    const TokenizerLink *left = &m->links[i];
    if (left->token < 0 || left->next == TOKENIZER_NO_INDEX) { return 0; }
    return (uint32_t)*tokenizer_merge_slot(t, left->token, m->links[left->next].token);
}

// pushes the pair at index i if it merges
static inline void tokenizer_push_pair(const Tokenizer *t, TokenizerEncoder *m, size_t i) {
    uint32_t merge = i == TOKENIZER_NO_INDEX ? 0 : tokenizer_merge_at(t, m, i);
    if (merge) { heap_push(m->heap, &m->heap_size, merge, i); }
}

// Encodes one pre-token into at most `bytes` tokens and returns their number.
static inline size_t tokenizer_encode_pretoken(const Tokenizer *t, TokenizerEncoder *m, const char *text, size_t bytes,
                                               int *tokens) {
    if (bytes > m->capacity) {
        m->capacity = bytes;
        m->links = (TokenizerLink *)xrealloc(m->links, bytes * sizeof *m->links);
        // n - 1 pairs at first; each of at most n - 1 merges pops one and pushes at most two
        m->heap = (HeapEntry *)xrealloc(m->heap, 2 * bytes * sizeof *m->heap);
    }
    m->heap_size = 0;
    for (size_t i = 0; i < bytes; i++) {
        TokenizerLink link = {t->byte_token[(uint8_t)text[i]], i ? i - 1 : TOKENIZER_NO_INDEX,
                              i + 1 < bytes ? i + 1 : TOKENIZER_NO_INDEX};
        m->links[i] = link;
    }
    for (size_t i = 0; i + 1 < bytes; i++) { tokenizer_push_pair(t, m, i); }
    while (m->heap_size) {
        HeapEntry entry = heap_pop(m->heap, &m->heap_size);
        size_t left = entry.value;
        if (tokenizer_merge_at(t, m, left) != entry.key) { continue; }  // one of the two has merged otherwise since
        TokenizerLink *merged = &m->links[left], *right = &m->links[merged->next];
        merged->token = (int)(entry.key & 0xFFFF);
        merged->next = right->next;
        right->token = -1;
        if (right->next != TOKENIZER_NO_INDEX) { m->links[right->next].previous = left; }
        tokenizer_push_pair(t, m, merged->previous);
        tokenizer_push_pair(t, m, left);
    }
    size_t count = 0;
    for (size_t i = 0; i < bytes; i = m->links[i].next) { tokens[count++] = m->links[i].token; }
    return count;
}

static inline void tokenizer_free_encoder(TokenizerEncoder *e) {
    free(e->links);
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

// The code point at the start of the text (bytes > 0) and its length. A stray byte, an overlong form, a surrogate, a
// value above 0x10FFFF or a sequence cut short gives NOT_UTF8 and length 1.
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
    bool surrogate = code >= 0xD800 && code < 0xE000;
    if (code < smallest[n] || code > 0x10FFFF || surrogate) { return TOKENIZER_NOT_UTF8; }
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

static inline Tokenizer tokenizer_alloc(size_t token_bytes, int max_vocab, bool merges) {
    Tokenizer t = {0};
    t.bytes = (char *)xmalloc(token_bytes);
    t.start = (uint32_t *)xcalloc((size_t)max_vocab + 1, sizeof *t.start);
    t.kind = (uint8_t *)xcalloc((size_t)max_vocab, 1);
    if (!merges) { return t; }
    t.merges = (uint64_t *)xcalloc(TOKENIZER_MERGE_SLOTS, sizeof *t.merges);
    t.ids = (uint32_t *)xcalloc(TOKENIZER_MERGE_SLOTS, sizeof *t.ids);
    return t;
}

static inline void tokenizer_free(Tokenizer *t) {
    free(t->bytes);
    free(t->start);
    free(t->merges);
    free(t->ids);
    free(t->kind);
    free(t->added);
    memset(t, 0, sizeof *t);
}

// the slot of the token with these bytes, or the free slot for it
static inline uint32_t *tokenizer_id_slot(const Tokenizer *t, const char *bytes, size_t length) {
    size_t slot = hash_bytes(0, bytes, length) % TOKENIZER_MERGE_SLOTS;
    for (; t->ids[slot]; slot = (slot + 1) % TOKENIZER_MERGE_SLOTS) {
        uint32_t id = t->ids[slot] - 1, begin = t->start[id];
        if (t->start[id + 1] - begin == length && memcmp(t->bytes + begin, bytes, length) == 0) { break; }
    }
    return &t->ids[slot];
}

// Returns the id of the token with these bytes, or -1. If two have them, it is the one that is not added. t has merges.
static inline int tokenizer_find(const Tokenizer *t, const char *bytes, size_t length) {
    return (int)*tokenizer_id_slot(t, bytes, length) - 1;
}

// Adds bits to the kind of a token, which is an added one from now on.
static inline void tokenizer_mark_added(Tokenizer *t, int id, int kind) {
    if (!t->kind[id]) {
        t->added = (int *)xgrow(t->added, (size_t)t->num_added, sizeof *t->added);
        t->added[t->num_added++] = id;
        t->starts_added[(uint8_t)t->bytes[t->start[id]]] = true;
    }
    t->kind[id] |= (uint8_t)kind;
}

// Appends the token with the next id. kind: 0, or the bits of an added token. t->bytes has room. No bytes: no token.
static inline void tokenizer_add_token(Tokenizer *t, const char *bytes, size_t length, int kind) {
    int id = t->vocab_size++;
    memcpy(t->bytes + t->start[id], bytes, length);
    t->start[id + 1] = t->start[id] + (uint32_t)length;
    if (kind) { tokenizer_mark_added(t, id, kind); }
    if (!t->ids || length == 0) { return; }
    uint32_t *slot = tokenizer_id_slot(t, bytes, length);
    if (!*slot || t->kind[*slot - 1]) { *slot = (uint32_t)id + 1; }
}

static inline void tokenizer_append_byte(Tokenizer *t, int byte) {
    char c = (char)byte;
    t->byte_token[byte] = (uint16_t)t->vocab_size;
    tokenizer_add_token(t, &c, 1, 0);
}

static inline void tokenizer_add_merge(Tokenizer *t, int left, int right, int merged) {
    uint64_t rank = (uint64_t)++t->num_merges;
    *tokenizer_merge_slot(t, left, right) =
        (uint64_t)left << 48 | (uint64_t)right << 32 | rank << 16 | (uint64_t)merged;
}

// Appends the token that two tokens merge into. False: it is longer than TOKENIZER_MAX_TOKEN_BYTES.
static inline bool tokenizer_append_pair(Tokenizer *t, int left, int right) {
    char joined[2 * TOKENIZER_MAX_TOKEN_BYTES];
    size_t first = t->start[left + 1] - t->start[left], second = t->start[right + 1] - t->start[right];
    if (first + second > TOKENIZER_MAX_TOKEN_BYTES) { return false; }
    memcpy(joined, t->bytes + t->start[left], first);
    memcpy(joined + first, t->bytes + t->start[right], second);
    tokenizer_add_merge(t, left, right, t->vocab_size);
    tokenizer_add_token(t, joined, first + second, 0);
    return true;
}

static inline void tokenizer_append_end_of_text(Tokenizer *t) {
    t->end_of_text = t->vocab_size;
    tokenizer_add_token(t, TOKENIZER_END_OF_TEXT, strlen(TOKENIZER_END_OF_TEXT), TOKEN_ADDED | TOKEN_SPECIAL);
}

enum { TOKENIZER_CHARACTERS = 256 + 68 };  // end of the characters that stand for bytes

// The character of a merges file that stands for a byte.
static inline int tokenizer_character(int byte) {
    bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return plain ? byte : byte < 33 ? 256 + byte : byte < 161 ? 162 + byte : 323;
}

// the byte that a character stands for; -1: none
static inline int tokenizer_character_byte(uint32_t character) {
    if (character >= TOKENIZER_CHARACTERS) { return -1; }
    int code = (int)character, byte = code < 256 ? code : code < 289 ? code - 256 : code < 323 ? code - 162 : 173;
    return tokenizer_character(byte) == code ? byte : -1;
}

// 256 byte tokens in GPT-2's order, that of the characters
static inline void tokenizer_append_gpt2_bytes(Tokenizer *t) {
    for (uint32_t character = 0; character < TOKENIZER_CHARACTERS; character++) {
        int byte = tokenizer_character_byte(character);
        if (byte >= 0) { tokenizer_append_byte(t, byte); }
    }
}

// bytes (max) = the bytes of a symbol (length). Returns their number; -1: too many, or a character that is no byte.
static inline int tokenizer_symbol_bytes(const char *symbol, size_t length, char *bytes, int max) {
    int count = 0;
    size_t step;
    for (size_t i = 0; i < length; i += step) {
        int byte = tokenizer_character_byte(tokenizer_code_point(symbol + i, length - i, &step));
        if (byte < 0 || count == max) { return -1; }
        bytes[count++] = (char)byte;
    }
    return count;
}

// Adds the merge of a line. has_vocab: its three tokens exist; else it appends a new token. False: malformed.
static inline bool tokenizer_read_merge(Tokenizer *t, const char *line, size_t length, bool has_vocab) {
    char joined[TOKENIZER_MAX_TOKEN_BYTES];
    const char *space = (const char *)memchr(line, ' ', length);
    bool full = t->num_merges == TOKENIZER_MAX_MERGES || (!has_vocab && t->vocab_size == TOKENIZER_MAX_VOCAB - 1);
    if (!space || full) { return false; }
    size_t first = (size_t)(space - line);
    int split = tokenizer_symbol_bytes(line, first, joined, sizeof joined);
    if (split <= 0) { return false; }
    int rest = tokenizer_symbol_bytes(space + 1, length - first - 1, joined + split, (int)sizeof joined - split);
    if (rest <= 0) { return false; }
    int left = tokenizer_find(t, joined, (size_t)split), right = tokenizer_find(t, joined + split, (size_t)rest);
    int merged = tokenizer_find(t, joined, (size_t)split + (size_t)rest);
    if (left < 0 || right < 0 || (merged >= 0) != has_vocab || *tokenizer_merge_slot(t, left, right)) { return false; }
    if (!has_vocab) { return tokenizer_append_pair(t, left, right); }
    tokenizer_add_merge(t, left, right, merged);
    return true;
}

// Adds the merges of the text of a merges file, and without has_vocab their tokens. Stops at a malformed line.
static inline void tokenizer_read_merges(Tokenizer *t, const char *path, const char *text, size_t bytes,
                                         bool has_vocab) {
    size_t number = 1, mark = bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (const char *line = text + mark, *end; line < text + bytes; line = end + 1, number++) {
        end = (const char *)memchr(line, '\n', (size_t)(text + bytes - line));
        if (!end) { end = text + bytes; }
        size_t length = (size_t)(end - line);
        if (length > 0 && line[length - 1] == '\r' && end < text + bytes) { length--; }
        if (number == 1 && strncmp(line, "#version", 8) == 0) { continue; }
        if (!tokenizer_read_merge(t, line, length, has_vocab)) {
            input_error(
                "%s line %zu: '%.*s' joins no two known tokens, with one space between them, into another one of "
                "at most 255 bytes, repeats a merge, or is beyond %d tokens; copy the file again, from a GPT-2's "
                "tokenizer",
                path, number, length < 60 ? (int)length : 60, line, TOKENIZER_MAX_VOCAB);
        }
    }
    if (t->num_merges == 0) { input_error("%s: found no merges; expected GPT-2's vocab.bpe or merges.txt", path); }
}

// the tokenizer of a merges file alone, with ids in GPT-2's order
static inline Tokenizer tokenizer_parse_merges(const char *path, const char *text, size_t bytes) {
    // a line of the file is two bytes longer than its token, the last one perhaps one byte
    Tokenizer t = tokenizer_alloc(257 + bytes + sizeof TOKENIZER_END_OF_TEXT, TOKENIZER_MAX_VOCAB, true);
    tokenizer_append_gpt2_bytes(&t);
    tokenizer_read_merges(&t, path, text, bytes, false);
    tokenizer_append_end_of_text(&t);
    return t;
}

// llm.c's file. Encoded with the tokens before it, a token must give two, its halves: they are its merge.
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
    Tokenizer t = tokenizer_alloc(bytes + sizeof TOKENIZER_END_OF_TEXT, vocab, true);
    TokenizerEncoder m = {NULL};
    int halves[TOKENIZER_MAX_TOKEN_BYTES];
    size_t at = TOKENIZER_BIN_HEADER * sizeof(int32_t), length;
    for (int id = 0; id < vocab; id++, at += 1 + length) {
        const char *token = data + at + 1;
        length = at < bytes ? (uint8_t)data[at] : 0;
        bool good = at < bytes && length <= bytes - at - 1;
        if (good && id < 256) {
            good = length == 1 && !memchr(t.bytes, *token, (size_t)id);
            if (good) { tokenizer_append_byte(&t, (uint8_t)*token); }
        } else if (good && id < vocab - 1) {
            good = tokenizer_encode_pretoken(&t, &m, token, length, halves) == 2 &&
                   tokenizer_append_pair(&t, halves[0], halves[1]);
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
    Tokenizer t = tokenizer_alloc(256, 256, false);
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

// (num_merges, caller frees) the merges by rank, as in Tokenizer.merges
static inline uint64_t *tokenizer_merges_by_rank(const Tokenizer *t) {
    uint64_t *by_rank = (uint64_t *)xcalloc((size_t)t->num_merges, sizeof *by_rank);
    for (int slot = 0; slot < TOKENIZER_MERGE_SLOTS; slot++) {
        if (t->merges[slot]) { by_rank[((t->merges[slot] >> 16) & 0xFFFF) - 1] = t->merges[slot]; }
    }
    return by_rank;
}

// True if a merges file alone gives these ids.
static inline bool tokenizer_is_gpt2_order(const Tokenizer *t) {
    bool same = t->vocab_size == 257 + t->num_merges && t->num_added == 1 && t->end_of_text == t->vocab_size - 1 &&
                tokenizer_find(t, TOKENIZER_END_OF_TEXT, strlen(TOKENIZER_END_OF_TEXT)) == t->end_of_text;
    int id = 0;
    for (uint32_t character = 0; character < TOKENIZER_CHARACTERS; character++) {
        int byte = tokenizer_character_byte(character);
        same = same && (byte < 0 || t->byte_token[byte] == id++);
    }
    for (int slot = 0; same && slot < TOKENIZER_MERGE_SLOTS; slot++) {
        uint64_t merge = t->merges[slot];
        same = !merge || (merge & 0xFFFF) == ((merge >> 16) & 0xFFFF) + 255;
    }
    return same;
}

// 64 bits that identify the tokens, their ids and the merges
static inline uint64_t tokenizer_fingerprint(const Tokenizer *t) {
    uint64_t hash = hash_bytes(0, t->start, ((size_t)t->vocab_size + 1) * sizeof *t->start);
    hash = hash_bytes(hash, t->bytes, t->start[t->vocab_size]);
    if (!t->merges || tokenizer_is_gpt2_order(t)) { return hash; }  // the ids give the merges
    uint64_t *by_rank = tokenizer_merges_by_rank(t);
    hash = hash_bytes(hash, by_rank, (size_t)t->num_merges * sizeof *by_rank);
    free(by_rank);
    return hash_bytes(hash_word(hash, (uint64_t)t->end_of_text), t->kind, (size_t)t->vocab_size);
}

// Returns where the first added token starts, and in *token the longest one there. If there is none, returns `bytes`.
static inline size_t tokenizer_find_added(const Tokenizer *t, TokenizerEncoder *e, const char *text, size_t bytes,
                                          int *token) {
    for (size_t at = 0; at < bytes; at++) {
        if (!t->starts_added[(uint8_t)text[at]]) { continue; }
        size_t longest = 0;
        bool special = false;
        for (int i = 0; i < t->num_added; i++) {
            int id = t->added[i];
            size_t length = t->start[id + 1] - t->start[id];
            if (length <= longest || length > bytes - at) { continue; }
            if (memcmp(text + at, t->bytes + t->start[id], length) != 0) { continue; }
            bool stays = (t->kind[id] & TOKEN_SPECIAL) && !e->takes_special;
            special |= stays;
            if (stays) { continue; }
            longest = length;
            *token = id;
        }
        if (longest) { return at; }
        e->specials_as_text += special;
    }
    return bytes;
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
    for (size_t at = 0; at < bytes;) {
        int token = -1;
        size_t found = at + tokenizer_find_added(t, e, text + at, bytes - at, &token), end = found;
        int kind = token < 0 ? 0 : t->kind[token];
        while ((kind & TOKEN_STRIPS_LEFT) && end > at && isspace((uint8_t)text[end - 1])) { end--; }
        for (size_t length; at < end; at += length) {
            length = tokenizer_pretoken_length(text + at, end - at);
            count += tokenizer_encode_cached(t, e, text + at, length, tokens + count);
        }
        at = found;
        if (token < 0) { continue; }
        tokens[count++] = token;
        at += t->start[token + 1] - t->start[token];
        while ((kind & TOKEN_STRIPS_RIGHT) && at < bytes && isspace((uint8_t)text[at])) { at++; }
    }
    return count;
}

// Encodes a prompt (bytes), where special tokens are tokens. The caller frees *tokens. Returns their number.
static inline size_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int **tokens) {
    TokenizerEncoder e = {NULL};
    e.takes_special = true;
    int *ids = (int *)xmalloc(bytes * sizeof *ids);
    size_t count = tokenizer_encode_with(t, &e, text, bytes, ids);
    tokenizer_free_encoder(&e);
    *tokens = (int *)xrealloc(ids, count * sizeof *ids);
    return count;
}

// True if an added token goes across a place in a text (bytes).
static inline bool tokenizer_cuts_added(const Tokenizer *t, const char *text, size_t bytes, size_t at) {
    for (int i = 0; i < t->num_added; i++) {
        uint32_t begin = t->start[t->added[i]], length = t->start[t->added[i] + 1] - begin;
        for (size_t from = at < length ? 0 : at - length + 1; from < at && from + length <= bytes; from++) {
            if (memcmp(text + from, t->bytes + begin, length) == 0) { return true; }
        }
    }
    return false;
}

// Returns a place where a text (bytes) that goes on can be cut so that both parts have the pre-tokens of the whole. It
// is at least 1, and at most `max` or the end of the pre-token that crosses `max`. bytes is at least max +
// TOKENIZER_MAX_PRETOKEN + 8. t is NULL if there are no added tokens.
static inline size_t tokenizer_safe_cut(const Tokenizer *t, const char *text, size_t bytes, size_t max) {
    // no pre-token crosses from a visible character to white space; ASCII needs no decoding
    for (size_t at = max; at > 1 && at + 4096 > max; at--) {
        uint8_t before = (uint8_t)text[at - 1];
        if ((text[at] != ' ' && text[at] != '\n') || before <= ' ' || before >= 127) { continue; }
        if (!t || !tokenizer_cuts_added(t, text, bytes, at)) { return at; }
    }
    // else we cut after the first pre-token, or after a later one that is not white space: white space is one pre-token
    // at the end of a text, but two before a letter
    size_t at = tokenizer_pretoken_length(text, bytes), cut = at, last;
    while (at < max) {
        size_t length = tokenizer_pretoken_length(text + at, bytes - at);
        bool space = tokenizer_class_length(UNICODE_SPACE, text + at, length, &last) == length;
        at += length;
        if (!space && !(t && tokenizer_cuts_added(t, text, bytes, at))) { cut = at; }
    }
    return cut;
}

// The bytes of a token, not ended by a NUL; *bytes is 0 for an id outside the vocabulary. The tokenizer owns them.
static inline const char *tokenizer_decode(const Tokenizer *t, int token, size_t *bytes) {
    int known = token >= 0 && token < t->vocab_size;
    *bytes = known ? t->start[token + 1] - t->start[token] : 0;
    return known ? t->bytes + t->start[token] : "";
}
