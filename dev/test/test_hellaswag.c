/*
HellaSwag: rows of tokens from llm.c's .bin and from the published .jsonl, damaged files, the choice of an ending.
*/
#include "testing.h"
#include "llmc/data/hellaswag.h"

enum { MAX_WORDS = 4096, VOCABULARY = 1000 };

// the contents of a .bin file: header and words
typedef struct {
    uint32_t header[HELLASWAG_HEADER_INTS];
    uint16_t words[MAX_WORDS];
    size_t num_words;
} BinFile;

static void add_list(BinFile *file, int length, int first_token) {
    file->words[file->num_words++] = (uint16_t)length;
    for (int i = 0; i < length; i++) { file->words[file->num_words++] = (uint16_t)(first_token + i); }
}

// adds example e with the context 10, 11, .. and the endings i: 100(i + 1) + e, 100(i + 1) + e + 1, ..
static void add_example(BinFile *file, int label, int context, const int endings[4]) {
    int e = (int)file->header[2]++;
    size_t start = file->num_words;
    const uint16_t words[] = {65535, 0, (uint16_t)e, (uint16_t)label, 4};
    memcpy(file->words + start, words, sizeof words);
    file->num_words += 5;
    add_list(file, context, 10);
    for (int i = 0; i < 4; i++) { add_list(file, endings[i], 100 * (i + 1) + e); }
    file->words[start + 1] = (uint16_t)(2 * (file->num_words - start));
}

// three examples; the longest row is 5 + 4 tokens
static BinFile three_examples(void) {
    static const int one[4] = {1, 1, 1, 1}, mixed[4] = {3, 1, 2, 4};
    BinFile file = {0};
    file.header[0] = 20240522;
    file.header[1] = 1;
    add_example(&file, 3, 2, one);
    add_example(&file, 0, 5, mixed);
    add_example(&file, 2, 1, mixed);
    return file;
}

static const char *save_bytes(const BinFile *file, size_t bytes) {
    static uint8_t all[1024 + 2 * MAX_WORDS];
    memcpy(all, file->header, 1024);
    memcpy(all + 1024, file->words, 2 * MAX_WORDS);
    return write_file("eval.bin", all, bytes);
}

static const char *save(const BinFile *file) { return save_bytes(file, 1024 + 2 * file->num_words); }

static HellaSwag open_three(int T) {
    BinFile file = three_examples();
    return hellaswag_read_bin("-h 1", save(&file), T, VOCABULARY);
}

static void assert_row(const HellaSwag *set, int r, int scored, const int *expected, int length) {
    const HellaSwagRow *row = &set->rows[r];
    assert_int_equal(row->scored, scored);
    assert_int_equal(row->length, length);
    assert_memory_equal(set->tokens + row->start, expected, (size_t)length * sizeof *expected);
}

// ---- llm.c's .bin

TEST(test_rows) {
    for (int T = 8; T <= 9; T++) {
        HellaSwag set = open_three(T);
        assert_int_equal(hellaswag_examples(&set), 3);
        assert_int_equal(set.num_cut, 0);
        assert_row(&set, 3, 1, (const int[]){10, 11, 400}, 3);
        assert_row(&set, 4, 3, (const int[]){10, 11, 12, 13, 14, 101, 102, 103}, 8);
        assert_row(&set, 5, 1, (const int[]){10, 11, 12, 13, 14, 201}, 6);
        assert_row(&set, 7, 4, (const int[]){10, 11, 12, 13, 14, 401, 402, 403, 404}, 9);
        for (int r = 0; r < 12; r++) { assert_int_equal(set.rows[r].is_true, r == 3 || r == 4 || r == 10); }
        hellaswag_close(&set);
    }
    // a context is cut at the left, and T inputs predict the last T tokens
    HellaSwag set = open_three(4);
    assert_int_equal(set.num_cut, 1);
    assert_row(&set, 4, 3, (const int[]){13, 14, 101, 102, 103}, 5);
    assert_row(&set, 7, 4, (const int[]){14, 401, 402, 403, 404}, 5);
    hellaswag_close(&set);
}

typedef struct {
    const char *path;
    int T, vocab_size;
} BinCall;

static void read_bin(void *argument) {
    const BinCall *call = (const BinCall *)argument;
    hellaswag_read_bin("-h 1", call->path, call->T, call->vocab_size);
}

static void assert_bin_refused(const char *path, int T, int vocab_size, const char *words) {
    BinCall call = {path, T, vocab_size};
    assert_stops(EXIT_BAD_INPUT, words, read_bin, &call);
}

TEST(test_damaged_bin) {
    // place: below 0 in the header, else in example 1: 65535, 50 bytes, index, label, 4, then 5 tokens, 3, 1, 2 and 4
    static const struct {
        int place;
        uint32_t value;
        const char *words;
    } damages[] = {
        {-1, 20240520, "has no header of llm.c's eval format (magic 20240522, version 1, number of examples)"},
        {-2, 2, "has no header"},
        {-3, 0, "has no header"},
        {-3, 0xFFFFFFFFu, "has no header"},
        {-3, 2, "goes on after its 2 examples"},
        {-3, 4, "example 3 of"},
        {-3, 4, "is damaged; copy or make the file again"},
        {0, 65534, "example 1 of"},
        {0, 65534, "is damaged"},
        {1, 0, "is damaged"},
        {1, 48, "is damaged"},
        {1, 49, "is damaged"},
        {1, 51, "is damaged"},
        {1, 65534, "is damaged"},
        {2, 0, "is damaged"},
        {2, 2, "is damaged"},
        {3, 4, "is damaged"},
        {4, 3, "is damaged"},
        {4, 5, "is damaged"},
        {5, 0, "is damaged"},
        {5, 65535, "is damaged"},
        {5, 19, "is damaged"},
        {6, VOCABULARY, "has token id 1000, but the vocabulary has ids 0 to 999; take a model with the vocabulary"},
        {11, 0, "is damaged"},
        {20, 0, "is damaged"},
        {20, 5, "is damaged"},
        {20, 3, "is damaged"},
        {24, 65535, "has token id 65535"},
    };
    BinFile good = three_examples();
    size_t start = good.words[1] / 2, whole = 1024 + 2 * good.num_words;
    for (size_t i = 0; i < LEN(damages); i++) {
        BinFile file = good;
        if (damages[i].place < 0) {
            file.header[-1 - damages[i].place] = damages[i].value;
        } else {
            file.words[start + (size_t)damages[i].place] = (uint16_t)damages[i].value;
        }
        assert_bin_refused(save(&file), 8, VOCABULARY, damages[i].words);
    }
    // cut anywhere, or with a byte too many, the file is refused
    for (size_t bytes = 0; bytes < whole; bytes++) {
        assert_bin_refused(save_bytes(&good, bytes), 8, VOCABULARY,
                           bytes < 1024 ? "has no header" : "is damaged; copy or make the file again");
    }
    assert_bin_refused(save_bytes(&good, whole + 1), 8, VOCABULARY, "goes on after its 3 examples");
    assert_bin_refused(save_bytes(&good, whole + 2), 8, VOCABULARY, "goes on after its 3 examples");
    assert_bin_refused(temp_path("missing.bin"), 8, VOCABULARY, "has no header");
    assert_bin_refused(temp_dir(), 8, VOCABULARY, "has no header");
    // a model that is too small
    const char *path = save(&good);
    assert_bin_refused(path, 3, VOCABULARY, "example 1 of");
    assert_bin_refused(path, 3, VOCABULARY, "has an ending of 4 tokens, but the context is 3; give a larger -t");
    assert_bin_refused(path, 8, 405, "has token id 405, but the vocabulary has ids 0 to 404");
    HellaSwag set = hellaswag_read_bin("-h 1", path, 8, 406);
    hellaswag_close(&set);
}

// ---- the choice of an ending

TEST(test_losses) {
    HellaSwag set = open_three(8);  // example 0 is true at 3; its endings have 1 token each
    for (int i = 0; i < 4; i++) { set.rows[i].scored = (const int[]){3, 1, 2, 4}[i]; }
    double sums[12] = {3, 1.5, 2.5, 3.6};  // per token 1, 1.5, 1.25, 0.9
    assert_true(hellaswag_chooses_true(&set, 0, sums));
    sums[3] = 4.1;  // per token 1.025: now ending 0
    assert_false(hellaswag_chooses_true(&set, 0, sums));
    for (int r = 0; r < 12; r++) { set.rows[r].scored = 1; }
    // the first of equal losses; NaN is never the lowest. Examples 0, 1 and 2 are true at 3, 0 and 2
    static const double equal[4] = {7, 7, 8, 8}, none[4] = {NAN, NAN, NAN, NAN}, last[4] = {NAN, NAN, NAN, 7};
    for (int e = 0; e < 3; e++) {
        double all[3][12];
        memset(all, 0, sizeof all);
        memcpy(&all[0][4 * e], equal, sizeof equal);
        memcpy(&all[1][4 * e], none, sizeof none);
        memcpy(&all[2][4 * e], last, sizeof last);
        assert_int_equal(hellaswag_chooses_true(&set, e, all[0]), e == 1);
        assert_false(hellaswag_chooses_true(&set, e, all[1]));
        assert_int_equal(hellaswag_chooses_true(&set, e, all[2]), e == 0);
    }
    hellaswag_close(&set);
}

// ---- the published .jsonl

static HellaSwag read_lines(const char *lines, const Tokenizer *t, int T) {
    return hellaswag_read_json("--eval", write_file("lines.jsonl", lines, strlen(lines)), t, T);
}

// row r is the tokens of `context`, then those of `ending`
static void assert_texts(const HellaSwag *set, const Tokenizer *t, int r, const char *context, const char *ending) {
    int *before, *after, all[256];
    size_t num_before = tokenizer_encode(t, context, strlen(context), &before);
    size_t num_after = tokenizer_encode(t, ending, strlen(ending), &after);
    memcpy(all, before, num_before * sizeof *all);
    memcpy(all + num_before, after, num_after * sizeof *all);
    assert_row(set, r, (int)num_after, all, (int)(num_before + num_after));
    free(before);
    free(after);
}

static const char LINES[] =
    "{\"ind\": 24, \"ctx\": \"A man is on a roof. he\", \"label\": 3, \"endings\": [\"is using wrap.\", "
    "\" a [b] c[d\", \"x [title] y  z\", \"\\u4f60\"]}\n\n"
    "{\"ctx\": \"42  \", \"label\": \"0\", \"endings\": [\"\", \"b\", \"c\", \"d\"]}\r\n"
    "{\"ctx\": \"\", \"label\": 1, \"endings\": [\"a\", \"b\", \"c\", \"d\"]}";

TEST(test_json) {
    Tokenizer t = tokenizer_load("dev/test/golden/gpt2_2500.bpe");
    HellaSwag set = read_lines(LINES, &t, 100);
    assert_int_equal(hellaswag_examples(&set), 3);
    assert_texts(&set, &t, 0, "A man is on a roof. he", " is using wrap.");
    assert_texts(&set, &t, 1, "A man is on a roof. he", "  a [b] c[d");
    assert_texts(&set, &t, 4, "42  ", " ");
    assert_texts(&set, &t, 5, "42  ", " b");
    for (int r = 0; r < 12; r++) { assert_int_equal(set.rows[r].is_true, r == 3 || r == 4 || r == 9); }
    int *b;
    assert_int_equal(tokenizer_encode(&t, " b", 2, &b), 1);
    assert_row(&set, 9, 1, (const int[]){t.end_of_text, b[0]}, 2);  // without a context: end-of-text
    free(b);
    hellaswag_close(&set);

    tokenizer_free(&t);

    t = tokenizer_bytes();
    set = read_lines(LINES, &t, 20);
    assert_int_equal(set.num_cut, 1);
    assert_texts(&set, &t, 0, "of. he", " is using wrap.");
    hellaswag_close(&set);
    tokenizer_free(&t);
}

static void read_bad_lines(void *lines) {
    Tokenizer t = tokenizer_bytes();
    read_lines((const char *)lines, &t, 8);
}

TEST(test_bad_lines) {
    static const char *const bad[] = {
        "\"ctx\": \"a\", \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": 4, \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": -1, \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": 1e99, \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": 0.5, \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": \"\", \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": \"4\", \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": \"01\", \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", \"c\", \"d\"]",
        "\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", \"c\", \"d\", 1]",
        "\"ctx\": \"a\", \"label\": 0, \"endings\": \"bcde\"",
        "\"ctx\": \"a\", \"label\": 0",
        "\"ctx\": 5, \"label\": 0, \"endings\": [\"b\", \"c\", \"d\", \"e\"]",
        "\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", \"c\", \"d\", \"e\", \"f\"]",
    };
    char lines[1024];
    for (size_t i = 0; i < LEN(bad); i++) {
        snprintf(lines, sizeof lines, "\n{%s}\n", bad[i]);
        assert_stops(EXIT_BAD_INPUT, "lines.jsonl line 2 is no example of HellaSwag, an object with \"ctx\"",
                     read_bad_lines, lines);
    }
    assert_stops(EXIT_BAD_INPUT, "line 1 is no example of HellaSwag", read_bad_lines, (void *)"[]");
    assert_stops(EXIT_BAD_INPUT, "found 'not JSON'", read_bad_lines, (void *)"not JSON");
    assert_stops(EXIT_BAD_INPUT, "holds no examples", read_bad_lines, (void *)"\n");
    assert_stops(EXIT_BAD_INPUT, "example 0 of", read_bad_lines, (void *)LINES);
    assert_stops(EXIT_BAD_INPUT, "has an ending of 15 tokens, but the context is 8", read_bad_lines, (void *)LINES);
}

TEST(test_kinds) {
    BinFile file = three_examples();
    assert_true(file_kind(save(&file)) == FILE_HELLASWAG);
    file.header[0] = 20240520;
    assert_false(file_kind(save(&file)) == FILE_HELLASWAG);
    assert_false(file_kind(temp_path("missing.bin")) == FILE_HELLASWAG);
    assert_false(file_kind(temp_dir()) == FILE_HELLASWAG);
    assert_true(hellaswag_is_json(write_file("a.jsonl", LINES, strlen(LINES))));
    assert_true(hellaswag_is_json(write_file("a.txt", LINES, strlen(LINES))));
    static const char quoted[] = "{\"text\": \"{\\\"endings\\\": 1}\"}";
    assert_false(hellaswag_is_json(write_file("b.jsonl", quoted, strlen(quoted))));
    assert_false(hellaswag_is_json(temp_path("missing.jsonl")));
}

int main(void) { return run_all_tests("hellaswag"); }
