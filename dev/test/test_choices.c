/*
Multiple-choice examples: good and bad files in llm.c's eval format and in JSON lines, rows of tokens, the choice of an
ending, and the texts of lm-eval.
*/
#include "testing.h"
#include "llmc/files/choices_bin.h"
#include "llmc/files/choices_json.h"
#include <sys/stat.h>

enum { MAX_WORDS = 4096, VOCABULARY = 1000 };

// the contents of a file: header and words
typedef struct {
    uint32_t header[CHOICES_BIN_HEADER_INTS];
    uint16_t words[MAX_WORDS];
    size_t num_words;
} EvalFile;

static void add_list(EvalFile *file, int length, int first_token) {
    file->words[file->num_words++] = (uint16_t)length;
    for (int i = 0; i < length; i++) { file->words[file->num_words++] = (uint16_t)(first_token + i); }
}

// adds example e with the context 10, 11, .. and the completions i: 100(i + 1) + e, 100(i + 1) + e + 1, ..
static void add_example(EvalFile *file, int label, int context, const int completions[4]) {
    int e = (int)file->header[2]++;
    size_t start = file->num_words;
    const uint16_t words[] = {65535, 0, (uint16_t)e, (uint16_t)label, 4};
    memcpy(file->words + start, words, sizeof words);
    file->num_words += 5;
    add_list(file, context, 10);
    for (int i = 0; i < 4; i++) { add_list(file, completions[i], 100 * (i + 1) + e); }
    size_t bytes = 2 * (file->num_words - start);
    file->words[start + 1] = (uint16_t)bytes;
    if (bytes > file->header[3]) { file->header[3] = (uint32_t)bytes; }
}

static EvalFile new_file(void) {
    EvalFile file;
    memset(&file, 0, sizeof file);
    file.header[0] = 20240522;
    file.header[1] = 1;
    return file;
}

static const int SHORT[4] = {1, 1, 1, 1}, MIXED[4] = {3, 1, 2, 4};

// three examples; the longest row is 5 + 4 - 1 positions
static EvalFile three_examples(void) {
    EvalFile file = new_file();
    add_example(&file, 3, 2, SHORT);
    add_example(&file, 0, 5, MIXED);
    add_example(&file, 2, 1, MIXED);
    return file;
}

static const char *save_bytes(const EvalFile *file, size_t bytes) {
    static uint8_t all[1024 + 2 * MAX_WORDS];
    memcpy(all, file->header, 1024);
    memcpy(all + 1024, file->words, 2 * MAX_WORDS);
    return write_file("eval.bin", all, bytes);
}

static const char *save(const EvalFile *file) { return save_bytes(file, 1024 + 2 * file->num_words); }

static Choices open_three(int T) {
    EvalFile file = three_examples();
    return choices_read_bin("-h 1", save(&file), T, VOCABULARY);
}

static void assert_row(const Choices *set, int r, int scored, const int *expected, int length) {
    const ChoiceRow *row = &set->rows[r];
    assert_int_equal(row->scored, scored);
    assert_int_equal(row->length, length);
    for (int i = 0; i < length; i++) { assert_int_equal(set->tokens[row->start + (size_t)i], expected[i]); }
}

// ---- rows of llm.c's format

static void test_rows(void **state) {
    (void)state;
    for (int T = 8; T <= 9; T++) {
        Choices set = open_three(T);
        assert_int_equal(set.num_examples, 3);
        assert_int_equal(set.num_rows, 12);
        assert_int_equal(set.num_cut, 0);
        assert_row(&set, 3, 1, (const int[]){10, 11, 400}, 3);
        assert_row(&set, 4, 3, (const int[]){10, 11, 12, 13, 14, 101, 102, 103}, 8);
        assert_row(&set, 5, 1, (const int[]){10, 11, 12, 13, 14, 201}, 6);
        assert_row(&set, 7, 4, (const int[]){10, 11, 12, 13, 14, 401, 402, 403, 404}, 9);
        assert_int_equal(set.examples[2].first, 8);
        assert_int_equal(set.examples[2].first_whole, -1);
        assert_int_equal(set.examples[2].label, 2);
        choices_close(&set);
    }
}

// a context is cut at the left, and T inputs predict the last T tokens
static void test_long_contexts(void **state) {
    (void)state;
    Choices set = open_three(4);
    assert_int_equal(set.num_cut, 1);
    assert_row(&set, 4, 3, (const int[]){13, 14, 101, 102, 103}, 5);
    assert_row(&set, 5, 1, (const int[]){11, 12, 13, 14, 201}, 5);
    assert_row(&set, 7, 4, (const int[]){14, 401, 402, 403, 404}, 5);
    char words[160];
    choices_cut_words(&set, words, sizeof words);
    assert_string_equal(words, "1 of 3 examples are longer than 4 tokens: their contexts are cut at the left");
    choices_close(&set);
}

// ---- the choice of an ending

static void test_norms(void **state) {
    (void)state;
    static const int lengths[4] = {3, 1, 2, 4}, characters[4] = {1, 9, 9, 12};
    EvalFile file = new_file();
    add_example(&file, 3, 2, lengths);
    Choices set = choices_read_bin("-h 1", save(&file), 6, VOCABULARY);
    const ChoiceExample *x = &set.examples[0];
    for (int i = 0; i < 4; i++) { set.rows[i].characters = characters[i]; }
    // by sum 1 is lowest; by token 3: 1, 1.5, 1.25, 0.9; by character 1: 3, 0.17, 0.28, 0.3
    double sums[4] = {3, 1.5, 2.5, 3.6};
    assert_false(choices_correct(&set, x, 0, sums, CHOICE_SUM));
    assert_true(choices_correct(&set, x, 0, sums, CHOICE_PER_TOKEN));
    assert_false(choices_correct(&set, x, 0, sums, CHOICE_PER_CHARACTER));
    sums[3] = 4.1;  // per token 1.025: now ending 0
    assert_false(choices_correct(&set, x, 0, sums, CHOICE_PER_TOKEN));
    sums[3] = 1.2;  // per character 0.1
    assert_true(choices_correct(&set, x, 0, sums, CHOICE_PER_CHARACTER));
    set.rows[3].characters = 0;  // an empty ending is never the lowest
    assert_false(choices_correct(&set, x, 0, sums, CHOICE_PER_CHARACTER));
    choices_close(&set);
}

static void test_equal_and_undefined_losses(void **state) {
    (void)state;
    static const int labels[3] = {0, 1, 3};
    EvalFile file = new_file();
    for (int e = 0; e < 3; e++) { add_example(&file, labels[e], 2, SHORT); }
    Choices set = choices_read_bin("-h 1", save(&file), 6, VOCABULARY);
    double equal[4] = {7, 7, 8, 8}, none[4] = {NAN, NAN, NAN, NAN}, last[4] = {NAN, NAN, NAN, 7};
    for (int e = 0; e < 3; e++) {
        assert_int_equal(choices_correct(&set, &set.examples[e], 0, equal, CHOICE_PER_TOKEN), labels[e] == 0);
        assert_int_equal(choices_correct(&set, &set.examples[e], 0, none, CHOICE_PER_TOKEN), 0);
        assert_int_equal(choices_correct(&set, &set.examples[e], 0, last, CHOICE_PER_TOKEN), labels[e] == 3);
    }
    choices_close(&set);
}

// ---- refusals

typedef struct {
    const char *path;
    int T, vocab_size;
} OpenCall;

static void stop_at_open(void *argument) {
    const OpenCall *call = (const OpenCall *)argument;
    choices_read_bin("-h 1", call->path, call->T, call->vocab_size);
}

static void assert_open_refused(const char *path, int T, int vocab_size, const char *words) {
    OpenCall call = {path, T, vocab_size};
    assert_stops(EXIT_BAD_INPUT, words, stop_at_open, &call);
}

static void assert_refused(const EvalFile *file, const char *words) {
    assert_open_refused(save(file), 8, VOCABULARY, words);
}

static void test_models_that_are_too_small(void **state) {
    (void)state;
    EvalFile file = three_examples();
    const char *path = save(&file);
    assert_open_refused(path, 3, VOCABULARY, "example 1 of");
    assert_open_refused(path, 3, VOCABULARY, "has a completion of 4 tokens, but the context is 3; give a larger -t");
    assert_open_refused(path, 8, 405, "has token id 405, but the vocabulary has ids 0 to 404");
    assert_open_refused(path, 8, 404, "example 1 of");
    Choices set = choices_read_bin("-h 1", path, 8, 406);
    choices_close(&set);
}

static void test_what_is_not_a_file(void **state) {
    (void)state;
    assert_int_equal(mkdir(temp_path("folder.bin"), 0700), 0);
    assert_int_equal(mkfifo(temp_path("fifo.bin"), 0600), 0);
    assert_open_refused(temp_path("missing.bin"), 8, VOCABULARY,
                        "missing.bin: No such file or directory; name a file that can be read");
    assert_open_refused(temp_path("folder.bin"), 8, VOCABULARY, "folder.bin is not a file");
    assert_open_refused(temp_path("fifo.bin"), 8, VOCABULARY, "fifo.bin is not a file");
    assert_open_refused("/dev/zero", 8, VOCABULARY, "/dev/zero is not a file");
}

static void test_header_defects(void **state) {
    (void)state;
    static const struct {
        int place;
        uint32_t value;
        const char *words;
    } defects[] = {
        {0, 20240520, "has magic number 20240520, expected 20240522"},
        {1, 2, "has version 2, expected 1"},
        {2, 0, "says 0 examples (1 to 65536)"},
        {2, 2, "has 1148 bytes, but its header says 2 examples (1 to 65536) of at most 50 bytes"},
        {2, 4, "example 3 of"},
        {2, 4, "is cut short: the file ends after 0 bytes of it"},
        {2, 65537, "says 65537 examples"},
        {2, 0xFFFFFFFFu, "says 4294967295 examples"},
        {3, 0, "of at most 0 bytes"},
        {3, 1, "of at most 1 bytes"},
        {3, 48, "example 1 of"},
        {3, 48, "says it has 50 bytes, expected an even number from 22 to the longest, 48"},
        {3, 65536, "of at most 65536 bytes (at most 65535)"},
    };
    for (size_t i = 0; i < sizeof defects / sizeof defects[0]; i++) {
        EvalFile file = three_examples();
        file.header[defects[i].place] = defects[i].value;
        assert_refused(&file, defects[i].words);
        assert_refused(&file, temp_path("eval.bin"));
    }
}

static void test_example_defects(void **state) {
    (void)state;
    // words of example 1: 65535 bytes index label 4, 5 (context), 3 (..), 1 (.), 2 (..), 4 (....)
    static const struct {
        int place;
        uint16_t value;
        const char *words;
    } defects[] = {
        {0, 65534, "begins with 65534, expected 65535"},
        {1, 0, "says it has 0 bytes, expected an even number from 22"},
        {1, 49, "says it has 49 bytes"},
        {1, 20, "says it has 20 bytes"},
        {1, 48, "has a completion that is empty or runs past its 48 bytes"},
        {1, 65534, "says it has 65534 bytes"},
        {2, 0, "says it is example 0"},
        {2, 2, "says it is example 2"},
        {3, 4, "has label 4, expected 0 to 3"},
        {4, 1, "has 1 completions, expected 2 to 1000"},
        {4, 3, "has 10 bytes after its last completion"},
        {4, 5, "has a completion that is empty or runs past its 50 bytes"},
        {5, 0, "has a context that is empty or runs past"},
        {5, 65535, "has a context that is empty or runs past"},
        {5, 19, "has a completion that is empty or runs past"},
        {6, VOCABULARY, "has token id 1000, but the vocabulary has ids 0 to 999"},
        {11, 0, "has a completion that is empty or runs past"},
        {20, 0, "has a completion that is empty or runs past"},
        {20, 5, "has a completion that is empty or runs past its 50 bytes"},
        {20, 3, "has 2 bytes after its last completion"},
        {24, 65535, "has token id 65535"},
    };
    EvalFile good = three_examples();
    size_t start = good.words[1] / 2;
    assert_int_equal(good.words[start + 1], 50);
    for (size_t i = 0; i < sizeof defects / sizeof defects[0]; i++) {
        EvalFile file = good;
        file.words[start + (size_t)defects[i].place] = defects[i].value;
        assert_refused(&file, defects[i].words);
        assert_refused(&file, "example 1 of");
    }
}

// cut anywhere, or with a byte too many, the file is refused
static void test_wrong_sizes(void **state) {
    (void)state;
    EvalFile file = three_examples();
    size_t whole = 1024 + 2 * file.num_words;
    assert_open_refused(save_bytes(&file, 0), 8, VOCABULARY, "has 0 bytes, too few for the 1024-byte header");
    assert_open_refused(save_bytes(&file, 1023), 8, VOCABULARY, "has 1023 bytes, too few");
    for (size_t bytes = 1024; bytes < whole; bytes++) {
        assert_open_refused(save_bytes(&file, bytes), 8, VOCABULARY, "is cut short: the file ends after ");
    }
    assert_open_refused(save_bytes(&file, whole + 1), 8, VOCABULARY, "has 1 bytes after the last of its 3 examples");
    assert_open_refused(save_bytes(&file, whole + 100), 8, VOCABULARY, "says 3 examples (1 to 65536) of at most 50");
    EvalFile empty = new_file();
    assert_refused(&empty, "has 1024 bytes, but its header says 0 examples");
}

// ---- JSON lines

static const char *const MERGES = "dev/test/golden/gpt2_2500.bpe";

static Choices read_lines(const char *lines, const Tokenizer *t, int forms, int T) {
    return choices_read_json("--eval", write_file("lines.jsonl", lines, strlen(lines)), forms, t, T);
}

// row r is the tokens of `context`, then those of `ending`
static void assert_texts(const Choices *set, const Tokenizer *t, int r, const char *context, const char *ending) {
    int *before, *after, all[256];
    size_t num_before = tokenizer_encode(t, context, strlen(context), &before);
    size_t num_after = tokenizer_encode(t, ending, strlen(ending), &after);
    memcpy(all, before, num_before * sizeof *all);
    memcpy(all + num_before, after, num_after * sizeof *all);
    assert_row(set, r, (int)num_after, all, (int)(num_before + num_after));
    free(before);
    free(after);
}

static void test_json_in_both_forms(void **state) {
    (void)state;
    Tokenizer t = tokenizer_load(MERGES);
    static const char lines[] =
        "{\"ind\": 24, \"ctx\": \"A man is sitting on a roof. he\", \"label\": 3, \"endings\": [\"is using wrap.\", "
        "\"rips tiles off.\", \"holds a rubik's cube.\", \"starts pulling up roofing on a roof.\"]}\n\n"
        "{\"gold\": \"0\", \"query\": \"[header] Caf\\u00e9s  42 \", \"choices\": [\"\\u4f60\", \"\"]}\r\n"
        "{\"label\": 1, \"context\": \"\", \"endings\": [\"a\", \"b\"]}";
    Choices set = read_lines(lines, &t, CHOICES_LLMC | CHOICES_LM_EVAL, 100);
    assert_int_equal(set.num_examples, 3);
    assert_int_equal(set.num_rows, 4 + 4 + 2);
    assert_int_equal(set.examples[0].first_whole, 0);  // both forms have the same tokens
    assert_texts(&set, &t, 0, "A man is sitting on a roof. he", " is using wrap.");
    assert_texts(&set, &t, 3, "A man is sitting on a roof. he", " starts pulling up roofing on a roof.");
    assert_int_equal(set.examples[0].label, 3);
    assert_int_equal(set.examples[1].label, 0);
    assert_int_equal(set.examples[1].first, 4);
    assert_int_equal(set.examples[1].first_whole, 6);
    assert_texts(&set, &t, 4, "[header] Caf\u00e9s  42 ", " \u4f60");  // llm.c: encoded apart
    assert_texts(&set, &t, 5, "[header] Caf\u00e9s  42 ", " ");
    assert_texts(&set, &t, 6, "[header] Caf\u00e9s  42", "  \u4f60");  // lm-eval: the space moves to the ending
    assert_texts(&set, &t, 7, "[header] Caf\u00e9s  42", "  ");
    assert_int_equal(set.rows[6].characters, 1);  // code points of the ending, without the space
    assert_int_equal(set.rows[7].characters, 0);
    int begin = t.end_of_text, *b;
    assert_int_equal(tokenizer_encode(&t, " b", 2, &b), 1);
    assert_row(&set, 9, 1, (const int[]){begin, b[0]}, 2);  // without a context: end-of-text
    free(b);
    choices_close(&set);
    set = read_lines(lines, &t, CHOICES_LLMC, 100);
    assert_int_equal(set.num_rows, 8);
    assert_int_equal(set.examples[1].first_whole, -1);
    choices_close(&set);
    tokenizer_free(&t);
}

static void test_hellaswag_as_in_lm_eval(void **state) {
    (void)state;
    Tokenizer t = tokenizer_bytes();
    Choices set = read_lines("{\"activity_label\": \"Roof\", \"ctx_a\": \"[header] How to [title] Climb  up.\", "
                             "\"ctx_b\": \"\\u00e9lan McDonald\", \"ctx\": \"raw\", \"label\": 0, "
                             "\"endings\": [\" a [b] c[d\", \"x [title] y  z\"]}\n",
                             &t, CHOICES_LLMC | CHOICES_LM_EVAL, 100);
    assert_texts(&set, &t, 0, "raw", "  a [b] c[d");
    assert_texts(&set, &t, 2, "Roof: How to. Climb up. \u00c9lan mcdonald", " a c[d");
    assert_texts(&set, &t, 3, "Roof: How to. Climb up. \u00c9lan mcdonald", " x. y z");
    assert_int_equal(set.rows[2].characters, 5);
    choices_close(&set);
    set = read_lines("{\"ctx\": \"0123456789\", \"label\": 0, \"endings\": [\"ab\", \"abc\"]}\n", &t, CHOICES_LLMC, 5);
    assert_texts(&set, &t, 0, "789", " ab");
    assert_texts(&set, &t, 1, "89", " abc");
    assert_int_equal(set.num_cut, 1);
    choices_close(&set);
    tokenizer_free(&t);
}

static void test_last_words(void **state) {
    (void)state;
    Tokenizer t = tokenizer_bytes();
    static const char lines[] = "{\"text\": \"one two  three\"}\n{\"text\": \"word\"}\n{\"text\": \"ends \"}\n";
    Choices set = choices_read_last_words("--eval", write_file("last.jsonl", lines, strlen(lines)), NULL, &t, 100);
    assert_int_equal(set.num_rows, 3);
    assert_texts(&set, &t, 0, "one two", "  three");
    assert_texts(&set, &t, 1, "\n", " word");
    assert_texts(&set, &t, 2, "ends", " ");
    choices_close(&set);
    tokenizer_free(&t);
}

static void test_wikitext(void **state) {
    (void)state;
    char page[] =
        " \n = Title = \n = = Part = = \n He said \" well \" ( or 'so ' ) ; 1 @,@ 000 @-@ fold , the boys ' N 5 \u00b0 "
        "C [ x ] { y } it 's . ( open\n";
    wikitext_clean(page);
    // these are lm-eval 0.4.13's
    assert_string_equal(page, "\n= Title =\n== Part ==\nHe said \"well\" (or'so'); 1,000-fold, the boys'N 5\u00b0C "
                              "[x] {y} it's. ( open\n");
}

static void stop_at_line(void *argument) {
    Tokenizer t = tokenizer_bytes();
    read_lines((const char *)argument, &t, CHOICES_LLMC | CHOICES_LM_EVAL, 8);
}

static void test_bad_lines(void **state) {
    (void)state;
    static const char good[] = "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", \"c\"]}\n";
    static const struct {
        const char *line, *words;
    } bad[] = {
        {"not JSON", "lines.jsonl line 3 is no JSON object; expected an object a line: found 'not JSON'"},
        {"[]", "is no JSON object"},
        {"{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"]}", "line 3 has no \"label\" or \"gold\" that is the index"},
        {"{\"ctx\": \"a\", \"label\": 2, \"endings\": [\"b\", \"c\"]}", "has no \"label\" or \"gold\""},
        {"{\"ctx\": \"a\", \"label\": \"\", \"endings\": [\"b\", \"c\"]}", "has no \"label\" or \"gold\""},
        {"{\"ctx\": \"a\", \"label\": 0.5, \"endings\": [\"b\", \"c\"]}", "has no \"label\" or \"gold\""},
        {"{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\"]}", "has no list of 2 to 1000 strings named"},
        {"{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", 1]}", "has no list of 2 to 1000 strings named"},
        {"{\"ctx\": \"a\", \"label\": 0}", "has no list of 2 to 1000 strings named"},
        {"{\"ctx\": 5, \"label\": 0, \"endings\": [\"b\", \"c\"]}", "has no string named \"ctx\""},
        {"{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", \"12345678\"]}",
         "has an ending of 9 tokens, but the context is 8; give a larger -t"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char lines[512];
        snprintf(lines, sizeof lines, "%s\n%s\n", good, bad[i].line);
        assert_stops(EXIT_BAD_INPUT, bad[i].words, stop_at_line, lines);
    }
    char many[4096] = "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"\"";
    for (int i = 1; i <= 1000; i++) { strcat(many, ",\"\""); }
    strcat(many, "]}\n");
    assert_stops(EXIT_BAD_INPUT, "has no list of 2 to 1000 strings named", stop_at_line, many);
    char empty[] = "\n";
    assert_stops(EXIT_BAD_INPUT, "holds no examples", stop_at_line, empty);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_long_contexts),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_equal_and_undefined_losses),
        cmocka_unit_test(test_models_that_are_too_small),
        cmocka_unit_test(test_what_is_not_a_file),
        cmocka_unit_test(test_header_defects),
        cmocka_unit_test(test_example_defects),
        cmocka_unit_test(test_wrong_sizes),
        cmocka_unit_test(test_json_in_both_forms),
        cmocka_unit_test(test_hellaswag_as_in_lm_eval),
        cmocka_unit_test(test_last_words),
        cmocka_unit_test(test_wikitext),
        cmocka_unit_test(test_bad_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
