/*
The documents of a corpus: separators, pieces of long texts, JSON lines, pipes, and positions to go on from.
*/
#include "testing.h"
#include "llmc/common/rng.h"
#include "llmc/files/corpus.h"

// ---- the documents of a file, each followed by '|'; a piece that ends no document by '+'

typedef struct {
    char *text;
    size_t bytes;
} Listing;

static void list(Listing *l, const char *text, size_t bytes) {
    l->text = (char *)xrealloc(l->text, l->bytes + bytes + 1);
    memcpy(l->text + l->bytes, text, bytes);
    l->bytes += bytes;
    l->text[l->bytes] = 0;
}

static void list_document(Listing *l, const CorpusPiece *piece, const char *field) {
    char *line = (char *)xmalloc(piece->bytes + 1);
    cJSON *json;
    const char *trouble;
    memcpy(line, piece->text, piece->bytes);
    const char *text = corpus_document(line, piece->bytes, field, &json, &trouble);
    if (!text) { text = trouble; }
    list(l, text, strlen(text));
    cJSON_Delete(json);
    free(line);
}

// the caller frees .text
static Listing list_corpus(const char *path, const char *field, const char *separator) {
    Corpus corpus = corpus_open(path, field, separator);
    CorpusPiece piece;
    Listing l = {NULL, 0};
    list(&l, "", 0);
    while (corpus_next(&corpus, &piece)) {
        if (piece.is_json) {
            list_document(&l, &piece, corpus.field);
        } else {
            list(&l, piece.text, piece.bytes);
        }
        list(&l, piece.ends_document ? "|" : "+", 1);
    }
    corpus_close(&corpus);
    return l;
}

static void assert_lists(const char *name, const char *text, const char *expected) {
    Listing found = list_corpus(write_file(name, text, strlen(text)), NULL, strchr(name, '=') ? "==" : NULL);
    // a piece without bytes outside of a document lists as '+'
    char *to = found.text;
    for (const char *from = found.text; *from; from++) {
        if (*from != '+') { *to++ = *from; }
    }
    *to = 0;
    assert_string_equal(found.text, expected);
    free(found.text);
}

static void test_text(void **state) {
    (void)state;
    assert_lists("a.txt", "one\ntwo\n", "one\ntwo\n|");
    assert_lists("a.txt", "", "");
    assert_lists("=.txt", "", "");
    assert_lists("=.txt", "one\n==\ntwo", "one\n|two|");
    assert_lists("=.txt", "one\r\n==\r\ntwo\n==\n", "one\r\n|two\n|");
    assert_lists("=.txt", "==\n==\none\n==\n==\n\n==", "one\n|\n|");
    assert_lists("=.txt", "a == b\n===\n== \n ==\nx==", "a == b\n===\n== \n ==\nx==|");
    assert_lists("=.txt", "a\n==", "a\n|");
}

// A separator near the end of a piece, behind text with and without places to cut.
static void test_separator_at_a_cut(void **state) {
    (void)state;
    static const char *const fillers[] = {"word ", "\xE4\xBD\xA0", "x\n\n"};
    enum { BYTES = CORPUS_PIECE + 100 };
    char *text = (char *)xmalloc(BYTES + 64), *expected = (char *)xmalloc(BYTES + 64);
    for (int f = 0; f < 3; f++) {
        for (int before = CORPUS_PIECE - 12; before < CORPUS_PIECE + 12; before++) {
            int width = (int)strlen(fillers[f]), at = 0;
            while (at + width <= before) {
                memcpy(text + at, fillers[f], (size_t)width);
                at += width;
            }
            while (at < before) { text[at++] = '.'; }
            text[at] = 0;
            snprintf(expected, BYTES + 64, "%s\n|after|", text);
            strcat(text, "\n==\nafter");
            assert_lists("=.txt", text, expected);
        }
    }
    free(text);
    free(expected);
}

// The pieces of a long text are about 64 KiB long and give the text again.
static void assert_pieces(const char *path, const char *text, size_t bytes, size_t longest) {
    Corpus corpus = corpus_open(path, NULL, NULL);
    CorpusPiece piece;
    size_t at = 0;
    bool ended = false;
    while (corpus_next(&corpus, &piece)) {
        assert_false(ended);
        assert_true(piece.bytes > 0 && piece.bytes <= longest);
        assert_memory_equal(piece.text, text + at, piece.bytes);
        at += piece.bytes;
        ended = piece.ends_document;
    }
    assert_true(ended);
    assert_int_equal(at, bytes);
    corpus_close(&corpus);
}

static void test_pieces(void **state) {
    (void)state;
    enum { BYTES = 2 * CORPUS_WINDOW + 12345 };
    char *text = (char *)xmalloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) { text[i] = "abc de\n"[rng_bits(1, 0, i) % 7]; }
    assert_pieces(write_file("words.txt", text, BYTES), text, BYTES, CORPUS_PIECE);
    memset(text, 'a', BYTES);  // a pre-token of 8 MB
    assert_pieces(write_file("run.txt", text, BYTES), text, BYTES, TOKENIZER_MAX_PRETOKEN + CORPUS_PIECE);
    for (size_t i = 0; i < BYTES; i++) { text[i] = (char)rng_bits(2, 0, i); }
    assert_pieces(write_file("noise.txt", text, BYTES), text, BYTES, CORPUS_PIECE + 100);
    free(text);
}

// ---- JSON lines

static void test_json(void **state) {
    (void)state;
    assert_lists("a.jsonl",
                 "{\"text\":\"one\"}\n\n  \r\n{\"id\":[{\"text\":1}],\"text\":\"two\\n\\u00e9\\ud83d\\ude00\"}\r\n",
                 "one|two\n\xC3\xA9\xF0\x9F\x98\x80|");
    assert_lists("a.jsonl", "{\"text\":\"no newline\"} ", "no newline|");
    assert_lists("a.jsonl", "{\"text\":\"a\\u0000b\\\\u0000\\\"\"}\n", "ab\\u0000\"|");
    assert_lists("a.jsonl", "", "");
    static const char *const broken[] = {"{\"text\":\"a\"",        "[1]",       "{\"text\":\"a\"} x", "plain",
                                         "{\"text\":\"\\ud800\"}", "{'text':1}"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        assert_lists("a.jsonl", broken[i], "is no JSON object; expected an object a line|");
    }
    static const char *const other[] = {"{\"texts\":\"a\"}", "{\"text\":1}", "{\"Text\":\"a\"}", "{}"};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        assert_lists("a.jsonl", other[i], "has no string in the field; name the field of the text with --field|");
    }
    Listing found = list_corpus(write_file("b.jsonl", "{\"text\":\"a\",\"body\":\"b\"}\n", 24), "body", NULL);
    assert_string_equal(found.text, "b|");
    free(found.text);
}

static void test_long_line(void **state) {
    (void)state;
    enum { BYTES = 3 * CORPUS_WINDOW };
    char *text = (char *)xmalloc(BYTES + 64);
    int at = sprintf(text, "{\"text\":\"");
    memset(text + at, 'a', BYTES);
    strcpy(text + at + BYTES, "\"}\n{\"text\":\"next\"}\n");
    Listing found = list_corpus(write_file("long.jsonl", text, strlen(text)), NULL, NULL);
    assert_int_equal(found.bytes, BYTES + 6);
    assert_string_equal(found.text + BYTES, "|next|");
    free(found.text);
    free(text);
}

// ---- positions

// From every place between two pieces, a second reader finds the rest.
static void assert_goes_on(const char *pattern, const char *separator) {
    Corpus corpus = corpus_open(pattern, NULL, separator);
    CorpusPiece piece;
    Listing all = list_corpus(pattern, NULL, separator);
    size_t listed = 0;
    int places = 0;
    do {
        CorpusPosition at = corpus_position(&corpus);
        Corpus later = corpus_open(pattern, NULL, separator);
        CorpusPiece rest;
        Listing l = {NULL, 0};
        list(&l, "", 0);
        corpus_seek(&later, at);
        while (corpus_next(&later, &rest)) {
            if (rest.is_json) {
                list_document(&l, &rest, CORPUS_FIELD);
            } else {
                list(&l, rest.text, rest.bytes);
            }
            list(&l, rest.ends_document ? "|" : "+", 1);
        }
        assert_true(l.bytes <= all.bytes);
        assert_string_equal(l.text, all.text + (all.bytes - l.bytes));
        assert_true(places == 0 ? l.bytes == all.bytes : l.bytes < listed);
        listed = l.bytes;
        places++;
        free(l.text);
        corpus_close(&later);
    } while (corpus_next(&corpus, &piece));
    assert_true(places > 4);
    free(all.text);
    corpus_close(&corpus);
}

static void test_positions(void **state) {
    (void)state;
    char *text = (char *)xmalloc(300000);
    for (size_t i = 0; i < 300000; i++) { text[i] = "abc de\n"[rng_bits(3, 0, i) % 7]; }
    for (size_t i = 5000; i < 300000; i += 40000) { memcpy(text + i, "\n==\n", 4); }
    write_file("p1.txt", text, 300000);
    write_file("p2.jsonl", "{\"text\":\"x\"}\n{\"text\":\"y\"}\n", 26);
    write_file("p3.txt", "", 0);
    write_file("p4.txt", text, 70000);
    char pattern[256];
    snprintf(pattern, sizeof pattern, "%s/p?.*", temp_dir());
    assert_goes_on(pattern, "==");
    assert_goes_on(pattern, NULL);
    free(text);
}

// ---- errors

static void open_corpus(void *pattern) {
    Corpus corpus = corpus_open((const char *)pattern, NULL, NULL);
    corpus_close(&corpus);
}

static void test_errors(void **state) {
    (void)state;
    assert_stops(EXIT_BAD_INPUT, "no file matches", open_corpus, (void *)temp_path("absent*"));
    assert_stops(EXIT_BAD_INPUT, "is a folder; name its files", open_corpus, (void *)temp_dir());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),   cmocka_unit_test(test_separator_at_a_cut), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_json),   cmocka_unit_test(test_long_line),          cmocka_unit_test(test_positions),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
