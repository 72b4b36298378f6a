/*
The tokenizer: pre-tokens, merges against a plain reference, both kinds of file, broken files, and GPT-2's ids with the
first 2500 merges, which are in the tree, and with the whole file if it is at VOCAB. Runs in the root of the repository.
*/
#include "testing.h"
#include "llmc/common/rng.h"
#include "llmc/data/tokenizer_files.h"

static const char *const VOCAB = "../shared/data/vocab.bpe";
static const char *const GOLDEN = "dev/test/golden/bpe.txt";
static const char *const CUT_VOCAB = "dev/test/golden/gpt2_2500.bpe";
static const char *const CUT_GOLDEN = "dev/test/golden/bpe_2500.txt";

// ids 256.. : ab, abc, de, abcde, aa, " a" (the character U+0120 stands for a space), aaaa, U+00E9
static const char SMALL_MERGES[] = "#version: 0.2\na b\nab c\nd e\nabc de\na a\n\xC4\xA0 a\naa aa\n\xC3\x83 \xC2\xA9\n";
enum { NUM_SMALL_MERGES = 8, SMALL_VOCAB = 256 + NUM_SMALL_MERGES + 1 };
static const char *const SMALL_TOKENS[] = {"ab", "abc", "de", "abcde", "aa", " a", "aaaa", "\xC3\xA9", "<|endoftext|>"};

static Tokenizer small_tokenizer(void) {
    return tokenizer_load(write_file("small.bpe", SMALL_MERGES, strlen(SMALL_MERGES)));
}

static void assert_decodes(const Tokenizer *t, int token, const char *expected, size_t expected_bytes) {
    size_t bytes;
    const char *text = tokenizer_decode(t, token, &bytes);
    assert_int_equal(bytes, expected_bytes);
    assert_memory_equal(text, expected, bytes);
}

// tokenizer_encode for a training text
static size_t encode_text(const Tokenizer *t, const char *text, size_t bytes, int **tokens) {
    TokenizerEncoder e = {0};
    *tokens = (int *)xmalloc(bytes * sizeof **tokens);
    size_t count = tokenizer_encode_with(t, &e, text, bytes, *tokens);
    tokenizer_free_encoder(&e);
    return count;
}

static void assert_encodes(const Tokenizer *t, const char *text, size_t bytes, const int *expected, size_t count) {
    int *tokens;
    assert_int_equal(encode_text(t, text, bytes, &tokens), count);
    assert_memory_equal(tokens, expected, count * sizeof *tokens);
    free(tokens);
}

// the decoded tokens, joined, are the text
static void assert_round_trip(const Tokenizer *t, const char *text, size_t bytes) {
    int *tokens;
    size_t count = encode_text(t, text, bytes, &tokens), at = 0, length;
    for (size_t i = 0; i < count; i++, at += length) {
        const char *part = tokenizer_decode(t, tokens[i], &length);
        assert_true(length > 0 && at + length <= bytes);
        assert_memory_equal(part, text + at, length);
    }
    assert_int_equal(at, bytes);
    free(tokens);
}

// ---------------------------------------------------------------------------------------------------------------------

TEST(test_bytes) {
    Tokenizer t = tokenizer_bytes();
    assert_int_equal(t.vocab_size, 256);
    assert_int_equal(t.end_of_text, '\n');
    const int expected[] = {0, 'a', 255, '\n', 0x80};
    assert_encodes(&t, "\0a\xFF\n\x80", 5, expected, 5);
    assert_decodes(&t, 0, "\0", 1);
    assert_decodes(&t, 255, "\xFF", 1);
    assert_decodes(&t, 256, "", 0);
    assert_decodes(&t, -1, "", 0);
    assert_encodes(&t, "", 0, expected, 0);
    tokenizer_free(&t);
}

// a text, its bytes beyond ASCII in octal, and the lengths of its pre-tokens, 0 after the last
static const struct {
    const char *text;
    size_t lengths[8];
} PRETOKENS[] = {
    {"Hello world", {5, 6}},
    {"a  b", {1, 1, 2}},
    {"a   ", {1, 3}},
    {"  a", {1, 2}},
    {" \n a", {2, 2}},
    {"\n\n\na", {2, 1, 1}},
    {"\na", {1, 1}},
    {"a\r\n\tb", {1, 2, 1, 1}},
    {"  1a!", {1, 2, 1, 1}},
    {"x12 34", {1, 2, 3}},
    {"we'll've", {2, 3, 3}},
    {"'s't're've'm'll'd", {2, 2, 3, 3, 2, 3, 2}},
    {"'S", {1, 1}},
    {"'l", {1, 1}},
    {"'", {1}},
    {"'r", {1, 1}},
    {" 's", {2, 1}},
    {"''s", {2, 1}},
    {"!'s", {2, 1}},
    {"?! <|a|>", {2, 3, 1, 2}},
    {"\303\251\344\275\240 \344\275\240", {5, 4}},     // U+00E9 U+4F60: letters
    {"e\314\201e", {1, 2, 1}},                         // U+0301 combines: neither letter nor space
    {"\302\275\342\205\247a", {5, 1}},                 // U+00BD U+2167: numbers
    {"a\302\205b", {1, 2, 1}},                         // U+0085: white space
    {"a\302\240\343\200\200b", {1, 2, 3, 1}},          // U+00A0 U+3000: white space, the last apart
    {" \302\240", {3}},                                // at the end: together
    {"a\341\240\216b\357\273\277c", {1, 3, 1, 3, 1}},  // U+180E U+FEFF: not white space
    {" \360\237\230\200!", {6}},                       // U+1F600
    {"a\034b", {1, 1, 1}},                             // a control character: not white space
    {"a\377\303!b", {1, 3, 1}},                        // bytes that are not UTF-8: as punctuation
    {"a\303", {1, 1}},                                 // cut short at the end
    {" \344\275a", {3, 1}},                            // cut short before a letter
    {"\301\201a", {2, 1}},                             // overlong A
    {"\340\201\201a", {3, 1}},                         // overlong A
    {"\355\240\200a", {3, 1}},                         // a surrogate
    {"\364\220\200\200\370a", {5, 1}},                 // above U+10FFFF, and a lead byte of five
    {"\360\240\200\200a", {5}},                        // U+20000, a letter
};

TEST(test_pretokens) {
    for (size_t i = 0; i < LEN(PRETOKENS); i++) {
        size_t at = 0, bytes = strlen(PRETOKENS[i].text);
        for (const size_t *length = PRETOKENS[i].lengths; at < bytes; length++) {
            size_t found = tokenizer_pretoken_length(PRETOKENS[i].text + at, bytes - at);
            if (found != *length) {
                fail_msg("'%s' at %zu: pre-token of %zu, expected %zu", PRETOKENS[i].text, at, found, *length);
            }
            at += found;
        }
    }
    assert_int_equal(tokenizer_pretoken_length("\xE4\xBD\xA0", 3), 3);
    assert_int_equal(tokenizer_pretoken_length("a\xC3\xA9", 2), 1);  // bytes after the text are not read
    assert_int_equal(tokenizer_pretoken_length("'ll", 2), 1);
    assert_int_equal(tokenizer_pretoken_length(" a", 1), 1);
}

TEST(test_unicode_classes) {
    size_t counts[4] = {0, 0, 0, 0};
    for (uint32_t code = 0; code < 0x110000; code++) { counts[unicode_class(code)]++; }
    assert_int_equal(counts[UNICODE_SPACE], 25);  // White_Space has 25 code points
    assert_true(counts[UNICODE_LETTER] > 130000 && counts[UNICODE_NUMBER] > 1800);
    for (uint32_t code = 0; code < 128; code++) {
        int letter = (code | 32) >= 'a' && (code | 32) <= 'z', number = code >= '0' && code <= '9';
        int space = code == ' ' || (code >= 9 && code <= 13);
        int expected = letter ? UNICODE_LETTER : number ? UNICODE_NUMBER : space ? UNICODE_SPACE : UNICODE_OTHER;
        assert_int_equal(unicode_class(code), expected);
        size_t length = 0;
        char c = (char)code;
        assert_int_equal(tokenizer_class(&c, 1, &length), expected);
        assert_int_equal(length, 1);
    }
    // the bisection finds each range, and nothing outside of them
    static const struct {
        const uint32_t *ranges;
        size_t numbers;
    } tables[] = {{unicode_letters, LEN(unicode_letters)},
                  {unicode_numbers, LEN(unicode_numbers)},
                  {unicode_spaces, LEN(unicode_spaces)}};
    for (int kind = UNICODE_LETTER; kind <= UNICODE_SPACE; kind++) {
        size_t in_ranges = 0;
        for (size_t i = 0; i < tables[kind - 1].numbers; i += 2) {
            uint32_t first = tables[kind - 1].ranges[i], count = tables[kind - 1].ranges[i + 1];
            assert_int_equal(unicode_class(first), kind);
            assert_int_equal(unicode_class(first + count - 1), kind);
            in_ranges += count;
        }
        assert_int_equal(counts[kind], in_ranges);
    }
    assert_int_equal(unicode_class(0x1C89), UNICODE_LETTER);  // of Unicode 16
    assert_int_equal(unicode_class(0x88F), UNICODE_OTHER);    // a letter of Unicode 17
    assert_int_equal(unicode_class(0x110000), UNICODE_OTHER);
    assert_int_equal(unicode_class(UINT32_MAX), UNICODE_OTHER);
}

// ---------------------------------------------------------------------------------------------------------------------

static void assert_is_small(const Tokenizer *t) {
    assert_int_equal(t->vocab_size, SMALL_VOCAB);
    assert_int_equal(t->end_of_text, SMALL_VOCAB - 1);
    for (int i = 0; i <= NUM_SMALL_MERGES; i++) {
        assert_decodes(t, 256 + i, SMALL_TOKENS[i], strlen(SMALL_TOKENS[i]));
    }
    assert_decodes(t, 0, "!", 1);  // byte ids: the printable ones first, then the rest
    assert_decodes(t, 187, "\xFF", 1);
    assert_decodes(t, 188, "\0", 1);
    assert_decodes(t, 220, " ", 1);
    assert_decodes(t, 255, "\xAD", 1);
    assert_decodes(t, SMALL_VOCAB, "", 0);
    assert_decodes(t, INT32_MIN, "", 0);
    assert_decodes(t, INT32_MAX, "", 0);
    const int abcde[] = {259, 261, 256}, run[] = {262, 260, 'a' - 33}, split[] = {'b' - 33, 'c' - 33, 258};
    assert_encodes(t, "abcde ab", 8, (const int[]){259, 220, 256}, 3);  // "a b" comes before "U+0120 a"
    assert_encodes(t, "abcde a", 7, abcde, 2);
    assert_encodes(t, "aaaaaaa", 7, run, 3);
    assert_encodes(t, "bcde", 4, split, 3);
    assert_encodes(t, "ab\0ab\xC3\xA9", 7, (const int[]){256, 188, 256, 263}, 4);
    assert_encodes(t, "", 0, abcde, 0);
}

TEST(test_merges_file) {
    Tokenizer t = small_tokenizer();
    assert_is_small(&t);
    tokenizer_free(&t);
    const char *headless = strchr(SMALL_MERGES, '\n') + 1;  // the version line may be absent
    t = tokenizer_load(write_file("headless.bpe", headless, strlen(headless)));
    assert_is_small(&t);
    tokenizer_free(&t);
}

// gpt2_tokenizer.bin of a tokenizer; returns its length. data: 1 KiB + 256 bytes a token at least.
static size_t make_bin(const Tokenizer *t, int version, char *data) {
    int32_t header[TOKENIZER_BIN_HEADER] = {20240328, version, t->vocab_size, version > 1 ? t->end_of_text : 0};
    memcpy(data, header, sizeof header);
    size_t at = sizeof header;
    for (int id = 0; id < t->vocab_size; id++) {
        size_t bytes;
        const char *token = tokenizer_decode(t, id, &bytes);
        data[at++] = (char)bytes;
        memcpy(data + at, token, bytes);
        at += bytes;
    }
    return at;
}

TEST(test_bin_file) {
    Tokenizer t = small_tokenizer();
    static char data[1024 + 256 * SMALL_VOCAB];
    for (int version = 1; version <= 2; version++) {
        Tokenizer loaded = tokenizer_load(write_file("small.bin", data, make_bin(&t, version, data)));
        assert_is_small(&loaded);
        tokenizer_free(&loaded);
    }
    tokenizer_free(&t);
}

// ---------------------------------------------------------------------------------------------------------------------

// The merge loop of the paper: find the pair that merges into the lowest id, merge the first such pair, repeat.
static size_t plain_encode(const Tokenizer *t, const char *text, size_t bytes, int *tokens) {
    size_t count = bytes, first;
    for (size_t i = 0; i < bytes; i++) { tokens[i] = t->byte_token[(uint8_t)text[i]]; }
    do {
        int best = t->end_of_text;
        for (size_t i = first = 0, at = 0; i + 1 < count; i++) {
            size_t left = t->start[tokens[i] + 1] - t->start[tokens[i]];
            size_t both = left + t->start[tokens[i + 1] + 1] - t->start[tokens[i + 1]];
            for (int id = 256; id < best; id++) {
                int same =
                    t->start[id + 1] - t->start[id] == both && memcmp(t->bytes + t->start[id], text + at, both) == 0;
                if (same) {
                    best = id;
                    first = i + 1;
                }
            }
            at += left;
        }
        if (first) {
            tokens[first - 1] = best;
            memmove(tokens + first, tokens + first + 1, (count - first - 1) * sizeof *tokens);
            count--;
        }
    } while (first);
    return count;
}

TEST(test_merging_against_plain_reference) {
    Tokenizer t = small_tokenizer();
    for (uint64_t trial = 0; trial < 2000; trial++) {
        char text[48];
        int expected[48];
        size_t bytes = 1 + rng_bits(1, trial, 0) % sizeof text;
        for (size_t i = 0; i < bytes; i++) {
            text[i] = "aaaabbcde"[rng_bits(2, trial, i) % 9];
        }  // letters: one pre-token
        size_t count = plain_encode(&t, text, bytes, expected);
        assert_encodes(&t, text, bytes, expected, count);
    }
    tokenizer_free(&t);
}

static void round_trips(const Tokenizer *t) {
    enum { BYTES = 3000 };
    static const char mixed[] = "aab 'sll\n\xC3\xA9\xE4\xBD\xA0\xFF";
    char text[BYTES];
    for (uint64_t trial = 0; trial < 30; trial++) {
        for (size_t i = 0; i < BYTES; i++) {
            uint64_t bits = rng_bits(3, trial, i);
            text[i] = trial % 2 ? (char)bits : mixed[bits % (sizeof mixed - 1)];
        }
        assert_round_trip(t, text, BYTES - trial);
    }
    assert_round_trip(t, "<|endoftext|>", 13);
}

TEST(test_round_trip) {
    Tokenizer bytes = tokenizer_bytes(), small = small_tokenizer();
    round_trips(&bytes);
    round_trips(&small);
    int *tokens;
    size_t count = encode_text(&small, "<|endoftext|>", 13, &tokens);
    for (size_t i = 0; i < count; i++) { assert_int_not_equal(tokens[i], small.end_of_text); }  // text, not end-of-text
    free(tokens);
    tokenizer_free(&bytes);
    tokenizer_free(&small);
}

// A text of every kind of boundary. A cut looks at no more than its last MAX_PRETOKEN + 8 bytes.
static size_t text_with_boundaries(char *text, size_t bytes, uint64_t seed) {
    static const char *const parts[] = {"ab",   " ",     "\n",  "  ",  "\xC2\xA0", "\xE3\x80\x80",
                                        "'s",   "1",     "?!.", "\t",  "\xC3\xA9", "\xE4\xBD\xA0",
                                        "\xFF", "don't", "'",   "\r\n"};
    size_t at = 0;
    for (uint64_t i = 0; at + 8 < bytes; i++) {
        const char *part = parts[rng_bits(4, seed, i) % (seed % 2 ? 16 : 4)];
        memcpy(text + at, part, strlen(part));
        at += strlen(part);
    }
    return at;
}

// starts[i] = whether a pre-token of the text (bytes) starts at i
static void find_pretokens(const char *text, size_t bytes, char *starts) {
    memset(starts, 0, bytes);
    for (size_t at = 0; at < bytes; at += tokenizer_pretoken_length(text + at, bytes - at)) { starts[at] = 1; }
}

TEST(test_safe_cut) {
    enum { BYTES = TOKENIZER_MAX_PRETOKEN + 20000, CUT_BYTES = BYTES - TOKENIZER_MAX_PRETOKEN - 8 };
    char *text = (char *)malloc(BYTES), *whole = (char *)malloc(BYTES), *parts = (char *)malloc(BYTES);
    for (uint64_t seed = 0; seed < 6; seed++) {
        size_t bytes = text_with_boundaries(text, BYTES, seed), at = 0;
        find_pretokens(text, bytes, whole);
        for (size_t most = 1; at + 400 < CUT_BYTES; most = most % 300 + 1) {
            size_t length = tokenizer_safe_cut(NULL, text + at, bytes - at, most);
            assert_true(length > 0 && length < most + 600);
            find_pretokens(text + at, length, parts + at);
            at += length;
        }
        assert_true(at > 15000);
        assert_memory_equal(whole, parts, at);
    }
    free(text);
    free(whole);
    free(parts);
}

// The cache tells apart pre-tokens that differ in length, in a NUL or behind the text's end.
TEST(test_cache) {
    static const char text[] =
        "a a\0 aa aaaaaaa aaaaaaaa aaaaaaaaa abcdeabcdeabcde abcdeabcdeabcdea abcdeabcdeabcdeab a\0\0 a";
    Tokenizer t = small_tokenizer();
    TokenizerEncoder encoder = {0};
    int found[sizeof text], *expected;
    for (int pass = 0; pass < 3; pass++) {
        for (size_t begin = 0; begin < sizeof text; begin++) {
            for (size_t bytes = 1; bytes <= sizeof text - begin; bytes++) {
                size_t count = encode_text(&t, text + begin, bytes, &expected);
                assert_int_equal(tokenizer_encode_with(&t, &encoder, text + begin, bytes, found), count);
                assert_memory_equal(found, expected, count * sizeof *found);
                free(expected);
            }
        }
    }
    for (uint64_t i = 0; i < 4000; i++) {  // of equal halves, many share an entry
        char word[16];
        for (uint64_t j = 0; j < 16; j++) { word[j] = j / 8 == i % 2 ? 'a' : "abcde"[rng_bits(5, i, j) % 5]; }
        size_t count = encode_text(&t, word, 16, &expected);
        assert_int_equal(tokenizer_encode_with(&t, &encoder, word, 16, found), count);
        assert_memory_equal(found, expected, count * sizeof *found);
        free(expected);
    }
    tokenizer_free_encoder(&encoder);
    tokenizer_free(&t);
}

TEST(test_longest_pretoken) {
    enum { BYTES = TOKENIZER_MAX_PRETOKEN + 100 };
    char *text = (char *)malloc(BYTES);
    memset(text, 'a', BYTES);
    assert_int_equal(tokenizer_pretoken_length(text, BYTES), TOKENIZER_MAX_PRETOKEN);
    memset(text, '\n', BYTES);
    assert_true(tokenizer_pretoken_length(text, BYTES) <= TOKENIZER_MAX_PRETOKEN);
    free(text);
}

// a long pre-token takes n log n; n^2 would take seconds
TEST(test_long_run) {
    enum { BYTES = 1 << 20 };
    char *text = (char *)malloc(BYTES);
    memset(text, 'a', BYTES);
    Tokenizer t = small_tokenizer();
    int *tokens;
    assert_int_equal(encode_text(&t, text, BYTES, &tokens), BYTES / 4);
    free(tokens);
    tokenizer_free(&t);
    free(text);
}

// ---------------------------------------------------------------------------------------------------------------------

static void load(void *path) {
    Tokenizer t = tokenizer_load((const char *)path);
    tokenizer_free(&t);
}

static void assert_refused(const char *words, const char *data, size_t bytes) {
    assert_stops(EXIT_BAD_INPUT, words, load, (void *)write_file("broken", data, bytes));
}

static const struct {
    const char *text, *words;
} BROKEN_MERGES[] = {
    {"", "no merges"},
    {"#version: 0.2\n", "no merges"},
    {"#version: 0.2\na b\nab", "line 3: 'ab' joins no two"},
    {"#version: 0.2\na b\nabc\n", "line 3: 'abc' joins no two"},
    {"a b\n\nc d\n", "line 2: '' joins no two"},
    {"a b c\n", "line 1: 'a b c' joins no two"},
    {"a  b\n", "line 1: 'a  b' joins no two"},
    {" a\n", "line 1: ' a' joins no two"},
    {" a b\n", "line 1: ' a b' joins no two"},
    {"a \n", "line 1: 'a ' joins no two"},
    {"a b\r\r\n", "line 1: 'a b?' joins no two"},
    {"a b\n\r\n", "line 2: '' joins no two"},
    {"a b\r", "line 1: 'a b?' joins no two"},
    {"a b\nb c</w>\n", "line 2: 'b c</w>' joins no two"},
    {"a \xC2\xAD\n", "joins no two"},  // U+00AD is written as U+0143
    {"a \xC5\x84\n", "joins no two"},  // U+0144: one past the last
    {"a \xFF\n", "joins no two"},      // not UTF-8
    {"a b\n#version: 0.2\n", "line 2: '#version: 0.2' joins no two"},
    {"a b\na b\n", "line 2: 'a b' joins no two"},               // twice
    {"a b\nb c\na bc\nab c\n", "line 4: 'ab c' joins no two"},  // "abc" is there already
    {"ab c\na b\n", "line 1: 'ab c' joins no two"},             // before its half
};

TEST(test_broken_merges) {
    for (size_t i = 0; i < LEN(BROKEN_MERGES); i++) {
        assert_refused(BROKEN_MERGES[i].words, BROKEN_MERGES[i].text, strlen(BROKEN_MERGES[i].text));
    }
    assert_refused("is no file of a known kind", "a b\n\0 c\n", 7);
    assert_stops(EXIT_BAD_INPUT, "could not read", load, (void *)temp_path("absent"));
    assert_stops(EXIT_BAD_INPUT, "could not read", load, (void *)temp_dir());
    assert_stops(EXIT_BAD_INPUT, "could not read the tokenizer's file (File too large)", load, (void *)"/dev/zero");
}

// tokens of 2, 4, .., 256 bytes: the last is one byte too long
TEST(test_too_long_token) {
    char text[2048];
    size_t at = 0;
    for (size_t half = 1; half <= 128; half *= 2) {
        memset(text + at, 'a', 2 * half + 1);
        text[at + half] = ' ';
        at += 2 * half + 1;
        text[at++] = '\n';
    }
    assert_refused("line 8: ", text, at);
    Tokenizer t = tokenizer_load(write_file("long.bpe", text, at - 258));  // without the last line
    assert_int_equal(t.vocab_size, 256 + 7 + 1);
    tokenizer_free(&t);
}

// every pair of two characters out of 188 and more: as many merges as there are ids, and one more
TEST(test_too_many_merges) {
    enum { LIMIT = 65536 - 256 - 1 };
    char *text = (char *)malloc(8 * (LIMIT + 1)), *end = text;
    size_t last_line = 0;
    for (int i = 0; i <= LIMIT; i++) {
        int pair[2] = {256 + i / 256, 256 + i % 256};  // characters: the 68 from 256 on, else the plain bytes
        last_line = (size_t)(end - text);
        for (int k = 0; k < 2; k++) {
            int code = tokenizer_character(pair[k] - 256);
            if (code >= 128) { *end++ = (char)(0xC0 | code >> 6); }
            *end++ = (char)(code >= 128 ? 0x80 | (code & 63) : code);
            *end++ = k ? '\n' : ' ';
        }
    }
    assert_refused("line 65280: '", text, (size_t)(end - text));
    Tokenizer t = tokenizer_load(write_file("full.bpe", text, last_line));
    assert_int_equal(t.vocab_size, 65536);
    assert_decodes(&t, 65535, "<|endoftext|>", 13);
    assert_decodes(&t, 256 + 256 * 'a' + 'b', "ab", 2);
    round_trips(&t);
    tokenizer_free(&t);
    free(text);
}

TEST(test_broken_bin) {
    Tokenizer t = small_tokenizer();
    static char good[1024 + 256 * SMALL_VOCAB], bad[sizeof good];
    size_t bytes = make_bin(&t, 2, good);
    const struct {
        int word, value;
        const char *words;
    } headers[] = {
        {0, 20240327,
         "is no file of a known kind: it holds NULs, expected GPT-2's vocab.bpe, merges.txt or gpt2_tokenizer.bin"},
        {0, 20240520, "is a token shard, expected GPT-2's vocab.bpe"},
        {1, 0, "found version 0, 265 tokens and 264 as end-of-text in"},
        {1, 3, "found version 3"},
        {2, -1, "-1 tokens"},
        {2, 256, "256 tokens"},
        {2, 65537, "65537 tokens"},
        {3, 0, "0 as end-of-text"},
        {3, -1, "-1 as end-of-text"},
    };
    for (size_t i = 0; i < LEN(headers); i++) {
        memcpy(bad, good, bytes);
        memcpy(bad + 4 * headers[i].word, &headers[i].value, 4);
        assert_refused(headers[i].words, bad, bytes);
    }
    assert_refused("found version 2, 0 tokens", good, 8);
    const size_t cuts[] = {1023, 1024, 1025, 1024 + 2 * 100, 1024 + 2 * 256 + 1, bytes - 14, bytes - 1};
    for (size_t i = 0; i < LEN(cuts); i++) {
        assert_refused(i ? "is cut short, or neither a new byte nor joins two" : "found version 2", good, cuts[i]);
    }
    good[bytes] = 0;
    assert_refused("found 1 bytes after the last token", good, bytes + 1);
    const struct {
        size_t at;
        char value;
        const char *words;
    } tokens[] = {
        {1024 + 1, '"', "token 1 of 265 is cut short, or"},    // byte 0 written as byte 1 is
        {1024 + 2 * 255, 0, "token 255 of 265 is"},            // an empty token
        {1024 + 2 * 256, 0, "token 256 of 265 is"},            // an empty token
        {1024 + 2 * 256 + 3 + 1, 'x', "token 257 of 265 is"},  // "xbc": three tokens
        {1024 + 2 * 256 + 3, 2, "token 257 of 265 is"},        // "ab": there already
    };
    for (size_t i = 0; i < LEN(tokens); i++) {
        memcpy(bad, good, bytes);
        bad[tokens[i].at] = tokens[i].value;
        assert_refused(tokens[i].words, bad, bytes);
    }
    tokenizer_free(&t);
}

// ---------------------------------------------------------------------------------------------------------------------
// With GPT-2's own file

// one line of the golden file: a text in hexadecimal, "-" if empty, and its ids
static void assert_golden_line(const Tokenizer *t, const char *line) {
    char text[1024];
    int expected[1024], consumed;
    unsigned byte;
    size_t bytes = 0, count = 0;
    for (; sscanf(line, "%2x", &byte) == 1 && *line != ' '; line += 2) { text[bytes++] = (char)byte; }
    line += *line == '-';
    for (; sscanf(line, "%d%n", &expected[count], &consumed) == 1; line += consumed) { count++; }
    assert_encodes(t, text, bytes, expected, count);
    assert_round_trip(t, text, bytes);
}

// the golden ids, round trips of any bytes, and the same tokenizer from gpt2_tokenizer.bin
static void assert_is_real(const Tokenizer *t, const char *golden_path) {
    FILE *golden = fopen(golden_path, "r");
    assert_non_null(golden);
    char line[8192];
    int lines = 0;
    for (; fgets(line, sizeof line, golden); lines++) { assert_golden_line(t, line); }
    fclose(golden);
    assert_true(lines >= 50);
    round_trips(t);

    char *data = (char *)malloc(1024 + 256 * (size_t)t->vocab_size);
    Tokenizer bin = tokenizer_load(write_file("gpt2.bin", data, make_bin(t, 2, data)));
    assert_int_equal(bin.vocab_size, t->vocab_size);
    assert_int_equal(bin.end_of_text, t->end_of_text);
    assert_memory_equal(bin.start, t->start, ((size_t)t->vocab_size + 1) * sizeof *t->start);
    assert_memory_equal(bin.bytes, t->bytes, t->start[t->vocab_size]);
    assert_memory_equal(bin.merges, t->merges, TOKENIZER_MERGE_SLOTS * sizeof *t->merges);
    free(data);
    tokenizer_free(&bin);
}

TEST(test_gpt2_first_merges) {
    Tokenizer t = tokenizer_load(CUT_VOCAB);
    assert_int_equal(t.vocab_size, 256 + 2500 + 1);
    assert_int_equal(t.end_of_text, 2756);
    assert_decodes(&t, 2756, "<|endoftext|>", 13);
    assert_encodes(&t, " the", 4, (const int[]){262}, 1);
    assert_is_real(&t, CUT_GOLDEN);
    tokenizer_free(&t);
}

TEST(test_gpt2) {
    if (access(VOCAB, R_OK) != 0) { skip(); }
    Tokenizer t = tokenizer_load(VOCAB);
    assert_int_equal(t.vocab_size, 50257);
    assert_int_equal(t.end_of_text, 50256);
    assert_decodes(&t, 50256, "<|endoftext|>", 13);
    assert_decodes(&t, 50257, "", 0);
    assert_encodes(&t, "Hello world the", 15, (const int[]){15496, 995, 262}, 3);
    assert_is_real(&t, GOLDEN);
    tokenizer_free(&t);
}

// ---- vocab.json and tokenizer.json

// The vocabulary of the small tokenizer as JSON, ids `shift` higher, and `more` entries before them.
static const char *small_vocab_json(const char *more, int shift) {
    static char json[16384];
    Tokenizer t = small_tokenizer();
    char *end = json + sprintf(json, "{%s", more);
    for (int id = 0; id < t.end_of_text; id++) {
        char symbol[2 * TOKENIZER_MAX_TOKEN_BYTES + 1];
        symbol[tokenizer_symbol(&t, id, symbol)] = 0;
        const char *escape = *symbol == '"' || *symbol == '\\' ? "\\" : "";
        end += sprintf(end, "%s\"%s%s\":%d", id ? "," : "", escape, symbol, id + shift);
    }
    strcpy(end, "}");
    tokenizer_free(&t);
    return json;
}

#define SMALL_LIST "[\"a b\",\"ab c\",\"d e\",\"abc de\",\"a a\",\"\\u0120 a\",\"aa aa\",\"\\u00c3 \\u00a9\"]"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define SPLIT(PATTERN)                                                                                                 \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" PATTERN                  \
    "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"              \
    "\"use_regex\":false}]}"
#define TEMPLATE(WORDS) "{\"type\":\"TemplateProcessing\",\"single\":[" WORDS "{\"Sequence\":{\"id\":\"A\"}}]}"

// the parts of a tokenizer.json that differ from the small tokenizer's; NULL: the same
typedef struct {
    const char *type, *pre_tokenizer, *normalizer, *merges, *tokens, *model, *processor, *added;
} JsonFile;

static const char *write_json_file(const JsonFile *f) {
    static char text[32768];
    snprintf(text, sizeof text,
             "{\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"added_tokens\":[%s],"
             "\"model\":{\"type\":\"%s\",%s\"vocab\":%s,\"merges\":%s}}",
             f->normalizer ? f->normalizer : "null", f->pre_tokenizer ? f->pre_tokenizer : BYTE_LEVEL,
             f->processor ? f->processor : "null", f->added ? f->added : "", f->type ? f->type : "BPE",
             f->model ? f->model : "", small_vocab_json(f->tokens ? f->tokens : "\"<|endoftext|>\":264,", 0),
             f->merges ? f->merges : SMALL_LIST);
    return write_file("tokenizer.json", text, strlen(text));
}

static void open_json(void *file) {
    Tokenizer t = tokenizer_open(write_json_file((const JsonFile *)file));
    tokenizer_free(&t);
}

static void open_path(void *path) {
    Tokenizer t = tokenizer_open((const char *)path);
    tokenizer_free(&t);
}

// what means the same as the merges file gives the same tokenizer; what works otherwise is refused by name
TEST(test_tokenizer_json) {
    Tokenizer small = small_tokenizer();
    const JsonFile good[] = {
        {.type = NULL},
        {.merges = "[[\"a\",\"b\"],[\"ab\",\"c\"],[\"d\",\"e\"],[\"abc\",\"de\"],[\"a\",\"a\"],[\"\\u0120\",\"a\"],"
                   "[\"aa\",\"aa\"],[\"\\u00c3\",\"\\u00a9\"]]"},
        {.model = "\"end_of_word_suffix\":\"\",\"continuing_subword_prefix\":null,\"dropout\":null,"
                  "\"ignore_merges\":false,"},
        {.pre_tokenizer = SPLIT("'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!"
                                "\\\\S)|\\\\s+")},
        {.processor = "{\"type\":\"ByteLevel\",\"trim_offsets\":false}"},
        {.processor = TEMPLATE("")},
        {.added = "{\"id\":264,\"content\":\"<|endoftext|>\",\"special\":true}"},
    };
    for (size_t i = 0; i < LEN(good); i++) {
        Tokenizer t = tokenizer_open(write_json_file(&good[i]));
        assert_true(tokenizer_fingerprint(&t) == tokenizer_fingerprint(&small));
        tokenizer_free(&t);
    }
    tokenizer_free(&small);
    const struct {
        JsonFile file;
        const char *message;
    } bad[] = {
        {{.type = "WordPiece"}, "has \"WordPiece\" as \"type\", unlike GPT-2's; give"},
        {{.type = "Unigram"}, "has \"Unigram\" as \"type\""},
        {{.pre_tokenizer = "{\"type\":\"Whitespace\"}"}, "has {\"type\":\"Whitespace\"} as \"pre_tokenizer\""},
        {{.pre_tokenizer = "null"}, "has null as \"pre_tokenizer\""},
        {{.pre_tokenizer = "{\"type\":\"ByteLevel\",\"use_regex\":false}"},
         "\"use_regex\":false} as \"pre_tokenizer\""},
        {{.pre_tokenizer = SPLIT("\\\\p{L}+")}, "has {\"type\":\"Sequence\",\"pretokenizers\":"},
        {{.pre_tokenizer = "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}"},
         "has {\"type\":\"ByteLevel\",\"add_prefix_space\":true} as"},
        {{.normalizer = "{\"type\":\"NFC\"}"}, "has {\"type\":\"NFC\"} as \"normalizer\""},
        {{.merges = "{}"}, "has {} as \"merges\""},
        {{.model = "\"end_of_word_suffix\":\"</w>\","}, "has \"</w>\" as \"end_of_word_suffix\""},
        {{.model = "\"continuing_subword_prefix\":\"##\","}, "has \"##\" as \"continuing_subword_prefix\""},
        {{.model = "\"dropout\":0.1,"}, "has 0.1 as \"dropout\""},
        {{.model = "\"ignore_merges\":true,"}, "has true as \"ignore_merges\""},
        {{.processor = TEMPLATE("{\"SpecialToken\":{\"id\":\"<s>\"}},")},
         "has {\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\""},
        {{.processor = "{\"type\":\"RobertaProcessing\"}"},
         "has {\"type\":\"RobertaProcessing\"} as \"post_processor\""},
        {{.processor = "{\"type\":\"Sequence\",\"processors\":[" TEMPLATE("{\"SpecialToken\":{\"id\":\"<s>\"}},") "]}"},
         "has {\"type\":\"Sequence\",\"processors\":"},
        {{.processor = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"Sequence\",\"processors\":[" TEMPLATE(
              "{\"SpecialToken\":{\"id\":\"<s>\"}},") "]}]}"},
         "has {\"type\":\"Sequence\",\"processors\":"},
        {{.added = "{\"id\":265,\"content\":\"x\",\"single_word\":true}"}, "is a token as a whole word only"},
        {{.added = "{\"id\":265}"}, "an added token has no content"},
        {{.merges = "[\"a b\",7]"}, "merge 2 is neither a string nor a pair of strings"},
        {{.merges = "[\"a b\",[\"a\"]]"}, "merge 2 is neither a string nor a pair of strings"},
        {{.merges = "[\"a b\",\"x y\"]"}, "line 2: 'x y' joins no two known tokens"},
        {{.merges = "[\"a b\",\"a b\"]"}, "line 2: 'a b' joins no two known tokens"},
        {{.merges = "[]"}, "found no merges"},
        {{.tokens = "\"b\":7,"}, "the tokens 'b' and '(' have one id, 7"},
        {{.tokens = "\"<|pad|>\":-1,"}, "the token '<|pad|>' has the id -1"},
        {{.tokens = "\"<|pad|>\":65536,"}, "the token '<|pad|>' has the id 65536"},
        {{.tokens = "\"<|pad|>\":300.5,"}, "the token '<|pad|>' has the id"},
    };
    for (size_t i = 0; i < LEN(bad); i++) { assert_stops(2, bad[i].message, open_json, (void *)&bad[i].file); }
    assert_stops(2, "there is no such file", open_path, (void *)temp_path("absent.json"));
    const char list[] = "{\"model\":{\"vocab\":[0,1],\"merges\":[]}}";  // items of a list have no name
    const char *path = write_file("tokenizer.json", list, strlen(list));
    assert_stops(2, "has [0,1] as \"vocab\"", open_path, (void *)path);
    unlink(path);
}

// Fills merges.txt and vocab.json, with the files of `more`: pairs of a name and a text, NULL at the end. Returns the
// path of merges.txt.
static const char *write_vocab_files(const char *tokens, int shift, const char *const *more) {
    const char *vocab = small_vocab_json(tokens, shift);
    write_file("vocab.json", vocab, strlen(vocab));
    for (; *more; more += 2) { write_file(more[0], more[1], strlen(more[1])); }
    return write_file("merges.txt", SMALL_MERGES, strlen(SMALL_MERGES));
}

static void remove_vocab_files(void) {
    static const char *const names[] = {"vocab.json",  "merges.txt",     "tokenizer_config.json",  "added_tokens.json",
                                        "config.json", "tokenizer.json", "special_tokens_map.json"};
    for (size_t i = 0; i < LEN(names); i++) { unlink(temp_path(names[i])); }
}

#define ROBERTA "\"<s>\":0,\"<pad>\":1,\"</s>\":2,\"<unk>\":3,\"<mask>\":4,"

// vocab.json decides the ids; the end of a text is <|endoftext|>, eos_token, eos_token_id, </s>, or a new token
TEST(test_vocab_json) {
    const struct {
        const char *tokens;
        int shift;
        const char *file, *text;  // one more file
        int end;
    } rows[] = {
        {ROBERTA, 5, NULL, NULL, 2},
        {ROBERTA "\"<|endoftext|>\":269,", 5, "config.json", "{\"eos_token_id\":2}", 269},
        {"\"</s>\":264,", 0, NULL, NULL, 264},  // GPT-2's order but for the name
        {ROBERTA, 5, "tokenizer_config.json", "{\"eos_token\":\"<unk>\"}", 3},
        {ROBERTA, 5, "special_tokens_map.json", "{\"eos_token\":{\"content\":\"<pad>\"}}", 1},
        {"", 5, NULL, NULL, 269},
        {"\"<|endoftext|>\":400,", 0, NULL, NULL, 400},  // ids without a token between
    };
    for (size_t i = 0; i < LEN(rows); i++) {
        const char *more[] = {rows[i].file, rows[i].text, NULL};
        const char *path = write_vocab_files(rows[i].tokens, rows[i].shift, more);
        Tokenizer t = tokenizer_open(i % 2 ? temp_path("vocab.json") : path), small = small_tokenizer();
        int *ids, *small_ids;
        size_t count = tokenizer_encode(&t, "abcde aaaa \xC3\xA9", 13, &ids);
        assert_int_equal(tokenizer_encode(&small, "abcde aaaa \xC3\xA9", 13, &small_ids), count);
        for (size_t k = 0; k < count; k++) { assert_int_equal(ids[k], small_ids[k] + rows[i].shift); }
        assert_int_equal(t.end_of_text, rows[i].end);
        round_trips(&t);
        // written as tokenizer.json and read again
        assert_int_equal(tokenizer_write_json(&t, temp_path("again.json"), true), 0);
        Tokenizer again = tokenizer_open(temp_path("again.json"));
        assert_true(tokenizer_fingerprint(&again) == tokenizer_fingerprint(&t));
        assert_true(tokenizer_fingerprint(&again) != tokenizer_fingerprint(&small));
        tokenizer_free(&again);
        tokenizer_free(&t);
        tokenizer_free(&small);
        free(ids);
        free(small_ids);
        remove_vocab_files();
    }
}

// added tokens: the longest first, special ones in a prompt only, white space around them
TEST(test_added_tokens) {
    static const char config[] = "{\"added_tokens_decoder\":{\"273\":{\"content\":\"<mask>\",\"special\":true,"
                                 "\"lstrip\":true,\"rstrip\":true}}}";
    const char *more[] = {"added_tokens.json", "{\"<|im|>\":270,\"  \":271,\"    \":272}", "tokenizer_config.json",
                          config, NULL};
    const char *path = write_vocab_files("\"<|endoftext|>\":264,", 0, more);
    Tokenizer t = tokenizer_open(path);
    const int a = t.byte_token['a'], space = t.byte_token[' '];
    const char text[] = "a       a<|im|>a<|endoftext|>a <mask>  a";
    int *prompt;
    const int expected_prompt[] = {a, 272, 271, 261, 270, a, 264, a, 273, a};
    assert_int_equal(tokenizer_encode(&t, text, strlen(text), &prompt), LEN(expected_prompt));
    assert_memory_equal(prompt, expected_prompt, sizeof expected_prompt);
    free(prompt);
    TokenizerEncoder e = {0};
    int found[64], expected[64];
    size_t count = tokenizer_encode_with(&t, &e, "a  <|im|><mask>", 15, found);
    assert_int_equal(e.specials_as_text, 1);  // <|im|> is added, and not special
    assert_int_equal(count, 3 + 6);
    assert_int_equal(found[1], 271);
    assert_int_equal(found[2], 270);
    for (size_t i = 3; i < count; i++) { assert_int_not_equal(found[i], 273); }
    assert_int_equal(tokenizer_encode_with(&t, &e, "a<|im|a |>", 10, expected), 10);
    assert_int_equal(expected[9], t.byte_token['>']);
    assert_int_equal(e.specials_as_text, 1);
    assert_decodes(&t, 271, "  ", 2);
    assert_decodes(&t, 270, "<|im|>", 6);
    assert_decodes(&t, 269, "", 0);
    assert_int_equal(found[0], a);
    assert_true(space != 271);
    tokenizer_free_encoder(&e);
    // a text is cut neither within an added token nor before its first byte
    const char *spaced[] = {"added_tokens.json", "{\"b a\":270}", NULL};
    Tokenizer cuts = tokenizer_open(write_vocab_files("\"<|endoftext|>\":264,", 0, spaced));
    enum { BYTES = 4000 };
    char *long_text = (char *)xcalloc(BYTES + TOKENIZER_MAX_PRETOKEN + 16, 1);
    for (int i = 0; i < BYTES; i += 4) { memcpy(long_text + i, "b a ", 4); }
    for (size_t max = 100; max < 108; max++) {
        size_t cut = tokenizer_safe_cut(&cuts, long_text, BYTES, max);
        assert_int_equal(cut % 4, 3);
    }
    free(long_text);
    tokenizer_free(&cuts);
    tokenizer_free(&t);
    remove_vocab_files();
}

// tokenizer_config.json can ask for what this trainer does not do
TEST(test_tokenizer_config) {
    static const char *const rows[][2] = {
        {"{\"add_bos_token\":true}", "has true as \"add_bos_token\", so a text may get other tokens than here"},
        {"{\"add_eos_token\":true}", "has true as \"add_eos_token\""},
        {"{\"add_prefix_space\":true}", "has true as \"add_prefix_space\""},
        {"{\"tokenizer_class\":\"RobertaTokenizer\"}", "has \"RobertaTokenizer\" as \"tokenizer_class\""},
        {"{\"tokenizer_class\":\"Qwen2Tokenizer\"}", "has \"Qwen2Tokenizer\" as \"tokenizer_class\""},
        {"{\"added_tokens_decoder\":{\"0\":{\"content\":\"<s>\",\"single_word\":true}}}", "as a whole word only"},
        {"{\"added_tokens_decoder\":[{\"content\":\"<s>\"}],\"add_bos_token\":true}", "has true as \"add_bos_token\""},
    };
    for (size_t i = 0; i < LEN(rows); i++) {
        const char *more[] = {"tokenizer_config.json", rows[i][0], NULL};
        assert_stops(2, rows[i][1], open_path, (void *)write_vocab_files(ROBERTA, 5, more));
        remove_vocab_files();
    }
    write_text(temp_path("merges.txt"), SMALL_MERGES);
    write_text(temp_path("vocab.json"), "{\"a\":0,\"b\":1,\"ab\":2}");
    assert_stops(2, "no token is the byte 0x00", open_path, (void *)temp_path("merges.txt"));
    remove_vocab_files();
}

// a folder: tokenizer.json first; a byte order mark and Windows' line ends do not matter
TEST(test_tokenizer_folder) {
    const char *none[] = {NULL};
    Tokenizer small = small_tokenizer();
    assert_stops(2, "the folder has no tokenizer.json, merges.txt or vocab.bpe", open_path, (void *)temp_dir());
    static const char marked[] =
        "\xEF\xBB\xBF#version: 0.2\r\na b\r\nab c\r\nd e\r\nabc de\r\na a\r\n\xC4\xA0 a\r\naa aa\r\n"
        "\xC3\x83 \xC2\xA9";
    write_file("merges.txt", marked, strlen(marked));
    Tokenizer t = tokenizer_open(temp_dir());
    assert_true(tokenizer_fingerprint(&t) == tokenizer_fingerprint(&small));
    tokenizer_free(&t);
    write_vocab_files(ROBERTA, 5, none);
    write_json_file(&(JsonFile){.type = NULL});
    t = tokenizer_open(temp_dir());
    assert_true(tokenizer_fingerprint(&t) == tokenizer_fingerprint(&small));
    tokenizer_free(&t);
    write_json_file(&(JsonFile){.type = "Unigram"});  // merges.txt does not stand in for it
    assert_stops(2, "tokenizer.json has \"Unigram\" as \"type\"", open_path, (void *)temp_dir());
    tokenizer_free(&small);
    remove_vocab_files();
}

int main(void) { return run_all_tests("tokenizer"); }
