// corpus.h and shard_writer.h: the ends of documents, pieces of long texts, JSON lines, and shards of any size.
#include "testing.h"
#include "llmc/common/rng.h"
#include "llmc/data/corpus.h"
#include "llmc/data/shard_writer.h"

// ---- the documents of a file, each followed by '|'; a piece that ends no document by '+'

typedef struct {
    char *text;
    size_t bytes;
} Listing;

static void list(Listing *l, const char *text, size_t bytes) {
    l->text = (char *)xrealloc(l->text, l->bytes + bytes + 1);
    if (text) { memcpy(l->text + l->bytes, text, bytes); }
    l->bytes += bytes;
    l->text[l->bytes] = 0;
}

// the caller frees .text
static Listing list_corpus(const char *path, const char *field) {
    Corpus corpus = corpus_open("-i", path, field);
    CorpusPiece piece;
    Listing l = {NULL, 0};
    list(&l, "", 0);
    for (uint64_t before = 0; corpus_next(&corpus, &piece); before = corpus.bytes_read) {
        list(&l, piece.text, piece.bytes);
        list(&l, piece.ends_document ? "|" : "+", 1);
        assert_true(corpus.bytes_read > before);
    }
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(corpus.bytes_read, info.st_size);
    corpus_close(&corpus);
    return l;
}

static void list_path(void *path) { free(list_corpus((const char *)path, NULL).text); }

static void assert_refused(const char *text, const char *words) {
    assert_stops(EXIT_BAD_INPUT, words, list_path, (void *)write_file("a.jsonl", text, strlen(text)));
}

static void assert_lists(const char *name, const char *text, const char *expected) {
    Listing found = list_corpus(write_file(name, text, strlen(text)), NULL);
    // a piece without bytes outside of a document lists as '+'
    char *to = found.text;
    for (const char *from = found.text; *from; from++) {
        if (*from != '+') { *to++ = *from; }
    }
    *to = 0;
    assert_string_equal(found.text, expected);
    free(found.text);
}

#define END "<|endoftext|>"

TEST(test_text) {
    static const char *const cases[][2] = {
        {"one\ntwo\n", "one\ntwo\n|"},
        {"", ""},
        {"one\n" END "\ntwo", "one\n|two|"},
        {"one\r\n" END "\r\ntwo\n" END "\n", "one\r\n|two\n|"},
        {END "\n" END "\none\n" END "\n" END "\n\n" END, "one\n|\n|"},
        {"a " END " b\n" END "=\n" END " \n " END "\nx" END, "a " END " b\n" END "=\n" END " \n " END "\nx" END "|"},
        {"a\n" END, "a\n|"},
    };
    for (size_t i = 0; i < LEN(cases); i++) { assert_lists("a.txt", cases[i][0], cases[i][1]); }
}

// A separator near the end of a piece, behind text with and without places to cut.
TEST(test_separator_at_a_cut) {
    static const char *const fillers[] = {"word ", "\xE4\xBD\xA0", "x\n\n"};
    enum { BYTES = CORPUS_PIECE + 100 };
    char *text = (char *)xmalloc(BYTES + 64), *expected = (char *)xmalloc(BYTES + 64);
    for (int f = 0; f < 3; f++) {
        for (int before = CORPUS_PIECE - 24; before < CORPUS_PIECE + 24; before++) {
            int width = (int)strlen(fillers[f]), at = 0;
            while (at + width <= before) {
                memcpy(text + at, fillers[f], (size_t)width);
                at += width;
            }
            while (at < before) { text[at++] = '.'; }
            text[at] = 0;
            snprintf(expected, BYTES + 64, "%s\n|after|", text);
            strcat(text, "\n" END "\nafter");
            assert_lists("a.txt", text, expected);
        }
    }
    free(text);
    free(expected);
}

// The pieces of a long text are about 64 KiB long and give the text again.
static void assert_pieces(const char *path, const char *text, size_t bytes, size_t longest) {
    Corpus corpus = corpus_open("-i", path, NULL);
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

TEST(test_pieces) {
    enum { BYTES = 2 * CORPUS_WINDOW + 12345 };
    char *text = (char *)xmalloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) { text[i] = "abc de\n"[rng_bits(1, 0, i) % 7]; }
    assert_pieces(write_file("words.txt", text, BYTES), text, BYTES, CORPUS_PIECE);
    memset(text, 'a', BYTES);  // a pre-token of 8 MB
    assert_pieces(write_file("run.txt", text, BYTES), text, BYTES, TOKENIZER_MAX_PRETOKEN + CORPUS_PIECE);
    for (size_t i = FILE_HEAD; i < BYTES; i++) { text[i] = (char)rng_bits(2, 0, i); }  // a NUL before is refused
    assert_pieces(write_file("noise.txt", text, BYTES), text, BYTES, CORPUS_PIECE + 100);
    free(text);
}

// ---- JSON lines

TEST(test_json) {
    assert_lists("a.jsonl",
                 "{\"text\":\"one\"}\n\n  \r\n{\"id\":[{\"text\":1}],\"text\":\"two\\n\\u00e9\\ud83d\\ude00\"}\r\n",
                 "one|two\n\xC3\xA9\xF0\x9F\x98\x80|");
    assert_lists("a.jsonl", "{\"text\":\"no newline\"} ", "no newline|");
    assert_lists("a.jsonl", "{\"text\":\"a\\u0000b\\\\u0000\\\"\"}\n", "ab\\u0000\"|");
    assert_lists("a.jsonl", "", "");
    // what Python writes and JSON forbids; a lone surrogate is U+FFFD
    assert_lists("a.jsonl", "{\"x\":NaN,\"text\":\"NaN\",\"y\":[-Infinity,{\"z\":Infinity}]}\n", "NaN|");
    assert_lists("a.jsonl", "{\"x\":\"\\udc00\\ud83d\",\"text\":\"a\\ud83db\\ude00\\\\ud83d\"}\n",
                 "a\xEF\xBF\xBD"
                 "b\xEF\xBF\xBD\\ud83d|");
    assert_lists("a.jsonl", "{\"text\":\"\\ud83d\\ud83d\\ude00\"}\n", "\xEF\xBF\xBD\xF0\x9F\x98\x80|");
    assert_lists("a.jsonl", "\xEF\xBB\xBF{\"text\":\"marked\"}\n", "marked|");
    static const char *const broken[] = {
        "{\"text\":\"a\"", "{\"text\":\"a\"} x",     "plain",        "{'text':1}",
        "{\"x\":Na}",      "{\"text\":\"\\u+000\"}", "{\"x\":-NaN}", "{\"text\":\"a\"\\u0000}"};
    for (size_t i = 0; i < LEN(broken); i++) { assert_refused(broken[i], "line 1 is not a JSON object: found"); }
    assert_refused("[1]", "line 1 is an array: found '[1]'; jq -c '.[]' FILE writes one object per line");
    static const char nul[] = "{\"text\":\"a\0b\"}";
    assert_stops(EXIT_BAD_INPUT, "line 1 has a NUL byte, which JSON cannot hold: found '{\"text\":\"a'; tr -d",
                 list_path, (void *)write_file("a.jsonl", nul, sizeof nul - 1));
    static const char *const other[] = {"{\"texts\":\"a\"}", "{\"text\":1}", "{\"Text\":\"a\"}", "{}"};
    for (size_t i = 0; i < LEN(other); i++) {
        assert_refused(other[i], "line 1 has no string in the field text: found");
    }
    Listing found = list_corpus(write_file("b.jsonl", "{\"text\":\"a\",\"body\":\"b\"}\n", 24), "body");
    assert_string_equal(found.text, "b|");
    free(found.text);
}

// a document beside arrays in arrays, `depth` levels with the object; in a string, brackets are no levels
static void nested_line(char *line, int depth) {
    int at = sprintf(line, "{\"text\":\"[[{\\\"[\",\"x\":");
    for (int i = 1; i < depth; i++) { line[at++] = '['; }
    for (int i = 1; i < depth; i++) { line[at++] = ']'; }
    strcpy(line + at, "}\n");
}

TEST(test_nested_lines) {
    char line[2 * CJSON_NESTING_LIMIT + 64];
    nested_line(line, CJSON_NESTING_LIMIT);
    assert_lists("a.jsonl", line, "[[{\"[|");
    nested_line(line, CJSON_NESTING_LIMIT + 1);
    assert_refused(line, "line 1 is not a JSON object: found '{\"text\"");
}

// as in Python
TEST(test_the_last_of_equal_keys) {
    assert_lists("a.jsonl", "{\"text\":\"a\",\"text\":\"b\",\"Text\":\"c\"}\n", "b|");
    assert_refused("{\"text\":\"a\",\"text\":1}", "has no string in the field");
    cJSON *json = json_of("{'a':1,'b':2,'a':3}");
    assert_int_equal(json_whole(json, "a", 0, 9, "a file"), 3);
    assert_int_equal(json_whole(json, "b", 0, 9, "a file"), 2);
    assert_null(json_get(json, "c"));
    assert_null(json_get(NULL, "a"));
    cJSON_Delete(json);
}

TEST(test_long_line) {
    enum { BYTES = 3 * CORPUS_WINDOW };
    char *text = (char *)xmalloc(BYTES + 64);
    int at = sprintf(text, "{\"text\":\"");
    memset(text + at, 'a', BYTES);
    strcpy(text + at + BYTES, "\"}\n{\"text\":\"next\"}\n");
    Listing found = list_corpus(write_file("long.jsonl", text, strlen(text)), NULL);
    assert_int_equal(found.bytes, BYTES + 6);
    assert_string_equal(found.text + BYTES, "|next|");
    free(found.text);
    free(text);
}

// ---- shards

static uint16_t shard_token(size_t i) { return (uint16_t)rng_bits(4, 0, i); }

// tokens appended `step` at a time are those of the shards, which have their names only when all are whole
static void assert_shards(size_t count, size_t step, const char *name) {
    enum { SHARD = 1000 };
    char out[256], pattern[300], first[300];
    snprintf(out, sizeof out, "%s", temp_path(name));
    snprintf(first, sizeof first, "%s_train_000001.bin", out);
    snprintf(pattern, sizeof pattern, "%s_train_*.bin", out);
    ShardWriter w = shard_writer_open(out, 65536, SHARD);
    uint16_t *tokens = (uint16_t *)xmalloc(step * sizeof *tokens);
    for (size_t at = 0, n; at < count; at += n) {
        n = count - at < step ? count - at : step;
        for (size_t i = 0; i < n; i++) { tokens[i] = shard_token(at + i); }
        shard_writer_append(&w, SHARD_TRAIN, tokens, n);
        assert_int_equal(access(first, F_OK), -1);
    }
    free(tokens);
    shard_writer_close(&w);
    TokenFiles files = token_files_open("-i", pattern);
    assert_int_equal(files.num_files, (count + SHARD - 1) / SHARD);
    assert_int_equal(files.vocab_size, 65536);
    TokenReader reader = token_reader_open(&files, SHARD, 65536);
    int ids[SHARD];
    for (int f = 0; f < files.num_files; f++) {
        size_t n = count - (size_t)f * SHARD < SHARD ? count - (size_t)f * SHARD : SHARD;
        assert_int_equal(files.files[f].num_tokens, n);
        assert_true(token_reader_read(&reader, ids, f, 0, n));
        for (size_t i = 0; i < n; i++) { assert_int_equal(ids[i], shard_token((size_t)f * SHARD + i)); }
    }
    token_reader_close(&reader);
    token_files_close(&files);
}

TEST(test_shards) {
    assert_shards(1, 1, "one");
    assert_shards(1000, 1000, "full");
    assert_shards(3001, 7, "small_steps");
    assert_shards(5000, 2500, "large_steps");
}

static void open_shards(void *out) { shard_writer_open((const char *)out, 300, 1000); }

// three training shards, the second of which cannot get its name
static void close_blocked(void *out) {
    static const uint16_t tokens[6];
    char blocked[300];
    ShardWriter w = shard_writer_open((const char *)out, 300, 2);
    shard_writer_append(&w, SHARD_TRAIN, tokens, 6);
    snprintf(blocked, sizeof blocked, "%s_train_000002.bin", (const char *)out);
    assert_int_equal(mkdir(blocked, 0700), 0);
    shard_writer_close(&w);
}

TEST(test_existing_shards) {
    write_file("left_train_000001.bin.part", "a", 1);
    write_file("left_train_000002.bin.part", "a", 1);
    write_file("left_val_000000.bin.part", "a", 1);
    write_file("there_val_000000.bin", "a", 1);
    const uint16_t token = 1;
    char left[256];
    snprintf(left, sizeof left, "%s", temp_path("left"));
    ShardWriter w = shard_writer_open(left, 300, 1000);
    assert_stops(EXIT_BAD_INPUT, "left_train_000001.bin.part'; wait for its end", open_shards, left);
    assert_int_equal(access(temp_path("left_train_000002.bin.part"), F_OK), -1);
    assert_int_equal(access(temp_path("left_val_000000.bin.part"), F_OK), -1);
    shard_writer_append(&w, SHARD_TRAIN, &token, 1);
    shard_writer_close(&w);
    assert_stops(EXIT_BAD_INPUT, "there_val_000000.bin' exists already", open_shards, (void *)temp_path("there"));
    assert_stops(EXIT_BAD_INPUT, "give a name in a folder that exists", open_shards, (void *)temp_path("no/x"));
    assert_stops(EXIT_RUN_FAILED, "train_000002.bin.part': Is a directory", close_blocked,
                 (void *)temp_path("blocked"));
    assert_int_equal(access(temp_path("blocked_train_000003.bin"), F_OK), 0);
    assert_int_equal(access(temp_path("blocked_train_000001.bin"), F_OK), -1);
}

// ---- errors

static void open_corpus(void *pattern) {
    Corpus corpus = corpus_open("-i", (const char *)pattern, NULL);
    corpus_close(&corpus);
}

// a name with * ? [ or a backslash is that file, if it exists
TEST(test_names_that_are_patterns) {
    static const char *const names[] = {"n[1].txt", "n?.txt", "n\\1.txt", "n1.txt", "n2.txt"};
    for (size_t i = 0; i < LEN(names); i++) {
        char expected[32];
        snprintf(expected, sizeof expected, "%s|", names[i]);
        assert_lists(names[i], names[i], expected);
    }
    glob_t found;
    assert_true(find_files(&found, temp_path("n[12].txt")));  // no file of that name
    assert_int_equal(found.gl_pathc, 2);
    globfree(&found);
    assert_false(find_files(&found, temp_path("n[3].txt")));
}

TEST(test_errors) {
    assert_stops(EXIT_BAD_INPUT, "no file matches", open_corpus, (void *)temp_path("absent*"));
    assert_stops(EXIT_BAD_INPUT, "Is a directory; name files", open_corpus, (void *)temp_dir());
}

int main(void) { return run_all_tests("corpus"); }
