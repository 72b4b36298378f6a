/*
Text to token ids and back: bytes, or GPT-2's byte-level BPE (Radford et al. 2019; Sennrich et al. 2016).
defines: Tokenizer, tokenizer_bytes, tokenizer_load, tokenizer_vocab_size, tokenizer_encode, tokenizer_decode,
         tokenizer_free

Encoding    1. GPT-2's pattern cuts the text into rectangles; the first alternative that matches is taken, at its longest:
               's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
            2. A piece starts as its bytes; the adjacent pair that merges into the lowest id does so, leftmost first,
               until no pair merges. A heap of candidate pairs makes that O(n log n) in the piece's length.
Bytes       Any bytes encode, and decode to themselves. A byte that is not part of valid UTF-8 is a character of its
            own, neither letter, number nor space. "<|endoftext|>" in a text is text: no text merges to end-of-text.
Ids         0..255 the bytes, then a token a merge, in the order of the merges, then end-of-text. Where bytes are all
            the tokens, a newline stands for end-of-text.
Files       merges file (vocab.bpe, Hugging Face's merges.txt): an optional line "#version...", then a line a merge: two
            symbols and a space between them. Lines end in \n or \r\n. A symbol's characters stand for bytes: 33..126,
            161..172 and 174..255 for themselves, and 256, 257, .. for the other bytes in rising order; byte ids follow
            the same order.
            llm.c's gpt2_tokenizer.bin: 256 int32 (magic 20240328, version 1 or 2, vocabulary; in version 2 the id of
            end-of-text), then for each id a length byte and the token's bytes. It has no merges; as ids are in the
            order of the merges, the tokens before one say which two it was merged from.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/files/unicode_classes.h"

enum {
    TOKENIZER_MAX_VOCAB = 65536,      // a token is two bytes in a data shard
    TOKENIZER_MAX_TOKEN_BYTES = 255,  // one length byte in gpt2_tokenizer.bin
    TOKENIZER_MAX_FILE = 32 << 20,    // above any merges file or gpt2_tokenizer.bin within the two limits above
    TOKENIZER_MERGE_SLOTS = 1 << 17,  // a power of two, at least twice the merges
    TOKENIZER_BIN_MAGIC = 20240328,
    TOKENIZER_BIN_HEADER = 256,  // int32s
};
#define TOKENIZER_END_OF_TEXT "<|endoftext|>"

typedef struct {
    uint32_t pair;  // left id << 16 | right id
    int32_t id;     // what they merge into; 0: a free slot
} TokenizerMerge;

typedef struct {
    int vocab_size;
    int end_of_text;          // the token that texts begin after; of bytes, a newline
    uint8_t byte_token[256];  // id of each byte
    char *bytes;              // token i is bytes[start[i]..start[i + 1] - 1]
    uint32_t *start;          // vocab_size + 1
    TokenizerMerge *merges;   // TOKENIZER_MERGE_SLOTS, open addressing; NULL: no merges
} Tokenizer;

// ---------------------------------------------------------------------------------------------------------------------
// Merging

// the slot of the pair (left, right), or the free one where it belongs
static inline TokenizerMerge *tokenizer_merge_slot(const Tokenizer *t, int left, int right) {
    uint32_t pair = (uint32_t)left << 16 | (uint32_t)right;
    uint32_t slot = (pair * 0x9E3779B1u) >> 15;  // Fibonacci hashing: the upper 17 bits
    while (t->merges[slot].id && t->merges[slot].pair != pair) { slot = (slot + 1) % TOKENIZER_MERGE_SLOTS; }
    return &t->merges[slot];
}

// A piece in the making: a linked list of tokens, one standing at its first byte's place, and a heap of pairs to merge.
typedef struct {
    int token;  // -1: merged into the one before it
    size_t previous, next;
} TokenizerSymbol;

typedef struct {
    TokenizerSymbol *symbols;
    uint64_t *heap;  // smallest first: merged id << 48 | place of the left symbol
    size_t heap_size, capacity;
} TokenizerPiece;

static const size_t TOKENIZER_NOWHERE = SIZE_MAX;  // no symbol: past the end of any piece

static inline void tokenizer_heap_push(TokenizerPiece *piece, uint64_t entry) {
    size_t child = piece->heap_size++;
    while (child > 0 && piece->heap[(child - 1) / 2] > entry) {
        piece->heap[child] = piece->heap[(child - 1) / 2];
        child = (child - 1) / 2;
    }
    piece->heap[child] = entry;
}

static inline uint64_t tokenizer_heap_pop(TokenizerPiece *piece) {
    uint64_t *heap = piece->heap, top = heap[0], entry = heap[--piece->heap_size];
    size_t parent = 0, child;
    while ((child = 2 * parent + 1) < piece->heap_size) {
        if (child + 1 < piece->heap_size && heap[child + 1] < heap[child]) { child++; }
        if (heap[child] >= entry) { break; }
        heap[parent] = heap[child];
        parent = child;
    }
    heap[parent] = entry;
    return top;
}

// the id that the symbol at `place` and the one after it merge into; 0: none
static inline int tokenizer_merged_id(const Tokenizer *t, const TokenizerPiece *piece, size_t place) {
    const TokenizerSymbol *left = &piece->symbols[place];
    if (left->token < 0 || left->next == TOKENIZER_NOWHERE) { return 0; }
    return tokenizer_merge_slot(t, left->token, piece->symbols[left->next].token)->id;
}

static inline void tokenizer_consider(const Tokenizer *t, TokenizerPiece *piece, size_t place) {
    int id = place == TOKENIZER_NOWHERE ? 0 : tokenizer_merged_id(t, piece, place);
    if (id) { tokenizer_heap_push(piece, (uint64_t)id << 48 | place); }
}

static inline void tokenizer_start_piece(const Tokenizer *t, TokenizerPiece *piece, const char *text, size_t bytes) {
    if (bytes > piece->capacity) {
        piece->capacity = 2 * bytes;
        piece->symbols = (TokenizerSymbol *)xrealloc(piece->symbols, piece->capacity * sizeof *piece->symbols);
        // n - 1 candidates at first; each of at most n - 1 merges takes one away and adds two at most
        piece->heap = (uint64_t *)xrealloc(piece->heap, 2 * piece->capacity * sizeof *piece->heap);
    }
    piece->heap_size = 0;
    for (size_t i = 0; i < bytes; i++) {
        piece->symbols[i].token = t->byte_token[(uint8_t)text[i]];
        piece->symbols[i].previous = i ? i - 1 : TOKENIZER_NOWHERE;
        piece->symbols[i].next = i + 1 < bytes ? i + 1 : TOKENIZER_NOWHERE;
    }
    for (size_t i = 0; i + 1 < bytes; i++) { tokenizer_consider(t, piece, i); }
}

// Encodes one piece into at most `bytes` tokens and returns how many.
static inline size_t tokenizer_encode_piece(const Tokenizer *t, TokenizerPiece *piece, const char *text, size_t bytes,
                                            int *tokens) {
    tokenizer_start_piece(t, piece, text, bytes);
    while (piece->heap_size) {
        uint64_t entry = tokenizer_heap_pop(piece);
        size_t place = entry & ((1ull << 48) - 1);
        int id = (int)(entry >> 48);
        if (tokenizer_merged_id(t, piece, place) != id) { continue; }  // one of the two has merged with another since
        TokenizerSymbol *left = &piece->symbols[place], *right = &piece->symbols[left->next];
        left->token = id;
        right->token = -1;
        left->next = right->next;
        if (left->next != TOKENIZER_NOWHERE) { piece->symbols[left->next].previous = place; }
        tokenizer_consider(t, piece, left->previous);
        tokenizer_consider(t, piece, place);
    }
    size_t count = 0;
    for (size_t i = 0; i < bytes; i = piece->symbols[i].next) { tokens[count++] = piece->symbols[i].token; }
    return count;
}

static inline void tokenizer_free_piece(TokenizerPiece *piece) {
    free(piece->symbols);
    free(piece->heap);
}

// ---------------------------------------------------------------------------------------------------------------------
// Cutting a text into rectangles

static const uint32_t TOKENIZER_NOT_UTF8 = UINT32_MAX;

// The code point at the start of the text (bytes > 0) and its length; NOT_UTF8 and length 1 for a stray byte, an
// overlong form or a sequence cut short. Surrogates and values above 0x10FFFF pass: like NOT_UTF8, they have no class.
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

static inline UnicodeClass tokenizer_class(const char *text, size_t bytes, size_t *length) {
    return unicode_class(tokenizer_code_point(text, bytes, length));
}

// The length of the run of characters of one class at the start of the text, and where its last character starts.
static inline size_t tokenizer_run(UnicodeClass kind, const char *text, size_t bytes, size_t *last) {
    size_t end = 0, length;
    while (end < bytes && tokenizer_class(text + end, bytes - end, &length) == kind) {
        *last = end;
        end += length;
    }
    return end;
}

// The length of the piece at the start of the text (bytes > 0).
static inline size_t tokenizer_piece_length(const char *text, size_t bytes) {
    static const char *const contractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; text[0] == '\'' && i < sizeof contractions / sizeof contractions[0]; i++) {
        size_t n = strlen(contractions[i]);
        if (n <= bytes && memcmp(text, contractions[i], n) == 0) { return n; }
    }
    size_t space = text[0] == ' ' && bytes > 1, length, last = 0;
    UnicodeClass kind = tokenizer_class(text + space, bytes - space, &length);
    if (kind != UNICODE_SPACE) { return space + tokenizer_run(kind, text + space, bytes - space, &last); }
    // white space, but for its last character when more text follows: that one may belong to the next word
    size_t end = tokenizer_run(UNICODE_SPACE, text, bytes, &last);
    return end < bytes && last > 0 ? last : end;
}

// ---------------------------------------------------------------------------------------------------------------------
// Loading

static inline Tokenizer tokenizer_alloc(size_t token_bytes, int max_vocab, int merges) {
    Tokenizer t;
    memset(&t, 0, sizeof t);
    t.bytes = (char *)xmalloc(token_bytes);
    t.start = (uint32_t *)xcalloc((size_t)max_vocab + 1, sizeof *t.start);
    if (merges) { t.merges = (TokenizerMerge *)xcalloc(TOKENIZER_MERGE_SLOTS, sizeof *t.merges); }
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

// Appends the merge that makes a token of `length` bytes, and returns the length of its left half. Encoded with the
// tokens there are, the new one must leave two. 0: it leaves one (is there already) or more (is out of reach), as
// does a single byte. So merging by lowest id is exactly merging by the list, and every token encodes to itself.
static inline size_t tokenizer_append_merge(Tokenizer *t, TokenizerPiece *piece, const char *bytes, size_t length) {
    int halves[TOKENIZER_MAX_TOKEN_BYTES];
    if (tokenizer_encode_piece(t, piece, bytes, length, halves) != 2) { return 0; }
    TokenizerMerge *slot = tokenizer_merge_slot(t, halves[0], halves[1]);
    slot->pair = (uint32_t)halves[0] << 16 | (uint32_t)halves[1];
    slot->id = t->vocab_size;
    tokenizer_append(t, bytes, length);
    return t->start[halves[0] + 1] - t->start[halves[0]];
}

static inline void tokenizer_append_end_of_text(Tokenizer *t) {
    t->end_of_text = t->vocab_size;
    tokenizer_append(t, TOKENIZER_END_OF_TEXT, strlen(TOKENIZER_END_OF_TEXT));
}

// does a merges file write this byte as the character of the same number?
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

// the byte a merges file means by the character `code`; -1: none
static inline int tokenizer_symbol_byte(const Tokenizer *t, uint32_t code) {
    enum {
        NUM_PLAIN = 188
    };  // byte 256 + k of the file is the k-th byte that is not plain, and so has id NUM_PLAIN + k
    if (code < 256) { return tokenizer_byte_is_plain((int)code) ? (int)code : -1; }
    return code < 256 + (256 - NUM_PLAIN) ? (uint8_t)t->bytes[NUM_PLAIN + (code - 256)] : -1;
}

// Reads the bytes that a line's two symbols stand for, and where the second starts: the joined length, 0 if malformed.
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
        int byte = tokenizer_symbol_byte(t, code);
        if (byte < 0 || count == TOKENIZER_MAX_TOKEN_BYTES) { return 0; }
        joined[count++] = (char)byte;
    }
    return *split > 0 && *split < count ? count : 0;
}

static inline void tokenizer_load_merge(Tokenizer *t, TokenizerPiece *piece, const char *line, size_t length,
                                        const char *path, size_t number) {
    char joined[TOKENIZER_MAX_TOKEN_BYTES];
    size_t split, bytes = tokenizer_read_merge(t, line, length, joined, &split);
    int shown = length < 60 ? (int)length : 60;
    if (bytes == 0) {
        input_error(
            "%s line %zu: '%.*s' is not two symbols with one space between them, %d bytes together at most; is it "
            "GPT-2's vocab.bpe or merges.txt?",
            path, number, shown, line, TOKENIZER_MAX_TOKEN_BYTES);
    }
    if (t->vocab_size == TOKENIZER_MAX_VOCAB - 1) {
        input_error("%s line %zu: more than the %d merges that a vocabulary of %d has room for; use a shorter list",
                    path, number, TOKENIZER_MAX_VOCAB - 257, TOKENIZER_MAX_VOCAB);
    }
    if (tokenizer_append_merge(t, piece, joined, bytes) != split) {
        input_error(
            "%s line %zu: '%.*s' does not join two tokens of the lines before it into a new one; use the file as "
            "it was published, in its order",
            path, number, shown, line);
    }
}

static inline Tokenizer tokenizer_parse_merges(const char *path, const char *text, size_t bytes) {
    if (bytes > 0 && text[bytes - 1] != '\n') {
        input_error("%s: the last line does not end; expected a whole merges file, so fetch it again", path);
    }
    // the file spends two bytes a line more than the tokens have
    Tokenizer t = tokenizer_alloc(256 + bytes + sizeof TOKENIZER_END_OF_TEXT, TOKENIZER_MAX_VOCAB, 1);
    TokenizerPiece piece = {NULL, NULL, 0, 0};
    tokenizer_append_gpt2_bytes(&t);
    size_t number = 1;
    for (const char *line = text, *end; line < text + bytes; line = end + 1, number++) {
        end = (const char *)memchr(line, '\n', (size_t)(text + bytes - line));
        size_t length = (size_t)(end - line);
        if (length > 0 && line[length - 1] == '\r') { length--; }
        int is_version = number == 1 && strncmp(line, "#version", 8) == 0;
        if (!is_version) { tokenizer_load_merge(&t, &piece, line, length, path, number); }
    }
    if (t.vocab_size == 256) { input_error("%s: found no merges; expected GPT-2's vocab.bpe or merges.txt", path); }
    tokenizer_append_end_of_text(&t);
    tokenizer_free_piece(&piece);
    return t;
}

// Reads the header and returns the vocabulary's size.
static inline int tokenizer_bin_vocab(const char *path, const char *data, size_t bytes) {
    int32_t header[TOKENIZER_BIN_HEADER];
    if (bytes < sizeof header) {
        input_error("%s: cut short at %zu bytes, inside its header of %zu; fetch it again", path, bytes, sizeof header);
    }
    memcpy(header, data, sizeof header);
    int version = header[1], vocab = header[2];
    if (version != 1 && version != 2) {
        input_error("%s: found version %d of llm.c's tokenizer file; expected 1 or 2, so write it again with llm.c",
                    path, version);
    }
    if (vocab < 257 || vocab > TOKENIZER_MAX_VOCAB) {
        input_error("%s: found a vocabulary of %d; expected 257 to %d, as in GPT-2's file (50257)", path, vocab,
                    TOKENIZER_MAX_VOCAB);
    }
    if (version == 2 && header[3] != vocab - 1) {
        input_error("%s: found %d as the id of end-of-text; expected the last one, %d, as in GPT-2's file", path,
                    header[3], vocab - 1);
    }
    return vocab;
}

static inline void tokenizer_load_bin_token(Tokenizer *t, TokenizerPiece *piece, const char *bytes, size_t length,
                                            const char *path) {
    int id = t->vocab_size, byte = (uint8_t)bytes[0];
    if (id < 256) {
        int is_new = length == 1 && !memchr(t->bytes, byte, (size_t)id);
        if (!is_new) { input_error("%s: token %d is not a byte of its own; expected GPT-2's file", path, id); }
        tokenizer_append_byte(t, byte);
    } else if (!tokenizer_append_merge(t, piece, bytes, length)) {
        input_error("%s: token %d does not join two tokens before it into a new one; expected GPT-2's file", path, id);
    }
}

static inline Tokenizer tokenizer_parse_bin(const char *path, const char *data, size_t bytes) {
    int vocab = tokenizer_bin_vocab(path, data, bytes);
    Tokenizer t = tokenizer_alloc(bytes + sizeof TOKENIZER_END_OF_TEXT, vocab, 1);
    TokenizerPiece piece = {NULL, NULL, 0, 0};
    size_t at = TOKENIZER_BIN_HEADER * sizeof(int32_t);
    for (int id = 0; id < vocab; id++) {
        size_t length = at < bytes ? (uint8_t)data[at] : 0;
        if (at >= bytes || length > bytes - at - 1) {
            input_error("%s: cut short in token %d of %d; fetch it again", path, id, vocab);
        }
        if (id < vocab - 1) { tokenizer_load_bin_token(&t, &piece, data + at + 1, length, path); }
        at += 1 + length;
    }
    if (at != bytes) { input_error("%s: found %zu bytes after the last token; expected none", path, bytes - at); }
    tokenizer_append_end_of_text(&t);
    tokenizer_free_piece(&piece);
    return t;
}

// The whole file, and a NUL that `bytes` does not count.
static inline char *tokenizer_read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) { input_error("%s: could not open the tokenizer's file (%s); check the path", path, strerror(errno)); }
    char *data = (char *)xmalloc(TOKENIZER_MAX_FILE + 1);
    *bytes = fread(data, 1, TOKENIZER_MAX_FILE + 1, file);
    if (ferror(file)) { input_error("%s: could not read the tokenizer's file (%s); check it", path, strerror(errno)); }
    if (*bytes > TOKENIZER_MAX_FILE) {
        input_error("%s: larger than %d bytes; expected GPT-2's vocab.bpe, merges.txt or gpt2_tokenizer.bin", path,
                    TOKENIZER_MAX_FILE);
    }
    fclose(file);
    data[*bytes] = 0;
    return data;
}

// ---------------------------------------------------------------------------------------------------------------------
// The interface

// a byte is a token: vocabulary 256, a newline for end-of-text
static inline Tokenizer tokenizer_bytes(void) {
    Tokenizer t = tokenizer_alloc(256, 256, 0);
    for (int byte = 0; byte < 256; byte++) { tokenizer_append_byte(&t, byte); }
    t.end_of_text = '\n';
    return t;
}

// Loads a merges file or gpt2_tokenizer.bin, told apart by the latter's magic. Stops with an input_error naming the
// file, and the line or token, if it is neither, malformed or cut short. Free with tokenizer_free.
static inline Tokenizer tokenizer_load(const char *path) {
    size_t bytes;
    char *data = tokenizer_read_file(path, &bytes);
    int32_t magic = 0;
    memcpy(&magic, data, bytes < sizeof magic ? bytes : sizeof magic);
    int is_bin = magic == TOKENIZER_BIN_MAGIC;
    if (!is_bin && memchr(data, 0, bytes)) {
        input_error("%s: neither text nor llm.c's tokenizer file (magic %d, found %d); expected GPT-2's vocab.bpe, "
                    "merges.txt or gpt2_tokenizer.bin",
                    path, TOKENIZER_BIN_MAGIC, magic);
    }
    Tokenizer t = is_bin ? tokenizer_parse_bin(path, data, bytes) : tokenizer_parse_merges(path, data, bytes);
    free(data);
    return t;
}

// 256, or 256 + merges + 1: 50257 for GPT-2
static inline int tokenizer_vocab_size(const Tokenizer *t) { return t->vocab_size; }

// Encodes `bytes` bytes, NULs and invalid UTF-8 among them, into *tokens, which the caller frees; returns how many.
static inline size_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int **tokens) {
    int *ids = (int *)xmalloc(bytes * sizeof *ids);
    size_t count = 0;
    if (!t->merges) {
        for (; count < bytes; count++) { ids[count] = t->byte_token[(uint8_t)text[count]]; }
    } else {
        TokenizerPiece piece = {NULL, NULL, 0, 0};
        for (size_t at = 0, length; at < bytes; at += length) {
            length = tokenizer_piece_length(text + at, bytes - at);
            count += tokenizer_encode_piece(t, &piece, text + at, length, ids + count);
        }
        tokenizer_free_piece(&piece);
    }
    *tokens = (int *)xrealloc(ids, count * sizeof *ids);
    return count;
}

// The token's bytes, *bytes of them, not NUL-terminated, the tokenizer's own; none for an id outside the vocabulary.
static inline const char *tokenizer_decode(const Tokenizer *t, int token, size_t *bytes) {
    int known = token >= 0 && token < t->vocab_size;
    *bytes = known ? t->start[token + 1] - t->start[token] : 0;
    return known ? t->bytes + t->start[token] : "";
}
