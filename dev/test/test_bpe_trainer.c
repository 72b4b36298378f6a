/*
Learning merges: against a plain version that counts every pair anew for each merge, and through merges.txt and back.
*/
#include "testing.h"
#include "llmc/common/rng.h"
#include "llmc/data/bpe_trainer.h"
#include "llmc/data/tokenizer_files.h"

enum { MAX_TEXT = 4000, MAX_TOKENS = 320 };

// a text as tokens; -1 stands between two pre-tokens
static int plain_words(const Tokenizer *t, const char *text, size_t bytes, int *tokens) {
    int count = 0;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = tokenizer_pretoken_length(text + at, bytes - at);
        for (size_t i = 0; i < length; i++) { tokens[count++] = t->byte_token[(uint8_t)text[at + i]]; }
        tokens[count++] = -1;
    }
    return count;
}

// the pair that occurs most often, the lowest ids among equals; returns how often
static int plain_best(const int *tokens, int count, int *left, int *right) {
    static int counts[MAX_TOKENS][MAX_TOKENS];
    int best = 0;
    memset(counts, 0, sizeof counts);
    for (int i = 0; i + 1 < count; i++) {
        if (tokens[i] >= 0 && tokens[i + 1] >= 0) { counts[tokens[i]][tokens[i + 1]]++; }
    }
    for (int a = 0; a < MAX_TOKENS; a++) {
        for (int b = 0; b < MAX_TOKENS; b++) {
            if (counts[a][b] > best) {
                best = counts[a][b];
                *left = a;
                *right = b;
            }
        }
    }
    return best;
}

static int plain_merge(int *tokens, int count, int left, int right, int merged) {
    int to = 0;
    for (int i = 0; i < count; i++, to++) {
        bool pair = i + 1 < count && tokens[i] == left && tokens[i + 1] == right;
        tokens[to] = pair ? merged : tokens[i];
        i += pair;
    }
    return to;
}

static void assert_learns(const char *text, size_t bytes, int vocab_size) {
    static int tokens[2 * MAX_TEXT];
    BpeTrainer trainer = {0};
    bpe_count(&trainer, text, bytes / 2);
    // the second half is counted apart, and so are its words
    bpe_count(&trainer, text + bytes / 2, bytes - bytes / 2);
    Tokenizer t = bpe_learn(&trainer, vocab_size);
    int count = plain_words(&t, text, bytes / 2, tokens), left = 0, right = 0, id = 256;
    count += plain_words(&t, text + bytes / 2, bytes - bytes / 2, tokens + count);
    for (; id < vocab_size - 1 && plain_best(tokens, count, &left, &right) >= 2; id++) {
        assert_true(id < t.end_of_text);
        assert_int_equal(*tokenizer_merge_slot(&t, left, right) & 0xFFFF, id);
        count = plain_merge(tokens, count, left, right, id);
    }
    assert_int_equal(t.end_of_text, id);
    tokenizer_free(&t);
    bpe_free(&trainer);
}

// Runs of one letter are left out: there, overlapping pairs are counted differently (test_runs).
TEST(test_against_plain_version) {
    char text[MAX_TEXT];
    for (uint64_t seed = 0; seed < 6; seed++) {
        for (uint64_t i = 0; i < MAX_TEXT; i++) { text[i] = "abcdefg "[rng_bits(seed, 1, i) % (seed % 2 ? 8 : 4)]; }
        for (size_t i = 1; i < MAX_TEXT; i++) { text[i] = text[i] == text[i - 1] ? ' ' : text[i]; }
        for (size_t i = 1; i < MAX_TEXT; i++) { text[i] = text[i] == text[i - 1] ? 'x' : text[i]; }
        assert_learns(text, MAX_TEXT, 300);
    }
    assert_learns("ab", 2, 300);
    assert_learns("ab ab", 5, 300);
}

// "aaaa" holds (a, a) three times. Once merged, "aa aa" is one pair, and no (a, a) is left.
TEST(test_runs) {
    BpeTrainer trainer = {0};
    bpe_count(&trainer, "aaaa aaaa\naaaaa", 15);
    Tokenizer t = bpe_learn(&trainer, 260);
    const char *const expected[] = {"aa", "aaaa", " aaaa"};
    for (int i = 0; i < 2; i++) {
        size_t bytes;
        const char *text = tokenizer_decode(&t, 256 + i, &bytes);
        assert_int_equal(bytes, strlen(expected[i]));
        assert_memory_equal(text, expected[i], bytes);
    }
    tokenizer_free(&t);
    bpe_free(&trainer);
}

// the longest token has 255 bytes
TEST(test_longest_token) {
    char *text = (char *)malloc(5000);
    BpeTrainer trainer = {0};
    memset(text, 'a', 5000);
    bpe_count(&trainer, text, 5000);
    Tokenizer t = bpe_learn(&trainer, 400);
    size_t longest = 0, bytes;
    for (int id = 256; id < t.end_of_text; id++) {
        tokenizer_decode(&t, id, &bytes);
        longest = bytes > longest ? bytes : longest;
    }
    assert_true(longest >= 128 && longest <= TOKENIZER_MAX_TOKEN_BYTES);
    tokenizer_free(&t);
    bpe_free(&trainer);
    free(text);
}

TEST(test_files) {
    static const char text[] =
        "the \"quoted\" and the \\ back, the \xC3\xA9t\xC3\xA9 and the \xFF\xFE \x00\x00 the and";
    BpeTrainer trainer = {0};
    bpe_count(&trainer, text, sizeof text - 1);
    Tokenizer t = bpe_learn(&trainer, 300);
    assert_true(t.vocab_size > 260);
    assert_int_equal(tokenizer_write_merges(&t, temp_path("merges.txt")), 0);
    Tokenizer loaded = tokenizer_load(temp_path("merges.txt"));
    assert_int_equal(loaded.vocab_size, t.vocab_size);
    assert_true(tokenizer_fingerprint(&loaded) == tokenizer_fingerprint(&t));
    // no room: nothing is left, and a file of the final name stays
    limit_files(20);
    int no_vocab = tokenizer_write_vocab(&t, temp_path("vocab.json"));
    int no_merges = tokenizer_write_merges(&t, temp_path("merges.txt"));
    limit_files(RLIM_INFINITY);
    assert_int_equal(no_vocab, EFBIG);
    assert_int_equal(no_merges, EFBIG);
    assert_int_not_equal(access(temp_path("vocab.json"), F_OK), 0);
    assert_int_not_equal(unlink(temp_path("vocab.json.part")), 0);
    assert_int_not_equal(unlink(temp_path("merges.txt.part")), 0);
    tokenizer_free(&loaded);
    loaded = tokenizer_load(temp_path("merges.txt"));
    assert_int_equal(loaded.vocab_size, t.vocab_size);
    assert_int_equal(tokenizer_write_merges(&t, temp_path("absent/merges.txt")), ENOENT);
    tokenizer_free(&loaded);
    tokenizer_free(&t);
    bpe_free(&trainer);
}

int main(void) { return run_all_tests("bpe_trainer"); }
