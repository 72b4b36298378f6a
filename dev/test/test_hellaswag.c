/*
HellaSwag: good and bad files, examples in batches, losses and accuracy, and equal tokens from dev/data/hellaswag.py and
llmc/files/tokenizer.h.
*/
#include "testing.h"
#include "llmc/files/hellaswag.h"
#include "llmc/files/tokenizer.h"
#include <stdbool.h>

enum { MAX_WORDS = 4096, VOCABULARY = 1000 };

// the contents of a file: header and words
typedef struct {
    uint32_t header[HELLASWAG_HEADER_INTS];
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

static const int SHORT[4] = {1, 1, 1, 1}, MIXED[4] = {3, 1, 2, 4}, NOTHING[1] = {0};

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

static HellaSwag open_three(int B, int T) {
    EvalFile file = three_examples();
    return hellaswag_open(save(&file), B, T, VOCABULARY);
}

static void assert_row(const HellaSwag *set, const int *rows, int row, const int *expected, int length) {
    for (int t = 0; t < set->T; t++) { assert_int_equal(rows[row * set->T + t], t < length ? expected[t] : 0); }
}

// ---- batches

static void test_one_example_a_batch(void **state) {
    (void)state;
    HellaSwag set = open_three(7, 9);
    assert_int_equal(set.num_examples, 3);
    assert_int_equal(set.longest, 8);
    assert_int_equal(hellaswag_batches(&set), 3);
    hellaswag_next_batch(&set);
    hellaswag_next_batch(&set);
    assert_row(&set, set.inputs, 0, (const int[]){10, 11, 12, 13, 14, 101, 102}, 7);
    assert_row(&set, set.targets, 0, (const int[]){11, 12, 13, 14, 101, 102, 103}, 7);
    assert_row(&set, set.inputs, 1, (const int[]){10, 11, 12, 13, 14}, 5);
    assert_row(&set, set.targets, 1, (const int[]){11, 12, 13, 14, 201}, 5);
    assert_row(&set, set.targets, 2, (const int[]){11, 12, 13, 14, 301, 302}, 6);
    assert_row(&set, set.inputs, 3, (const int[]){10, 11, 12, 13, 14, 401, 402, 403}, 8);
    assert_row(&set, set.targets, 3, (const int[]){11, 12, 13, 14, 401, 402, 403, 404}, 8);
    for (int row = 4; row < 7; row++) { assert_row(&set, set.inputs, row, NOTHING, 0); }
    hellaswag_next_batch(&set);
    assert_row(&set, set.inputs, 0, (const int[]){10, 102, 103}, 3);  // nothing is left of the longer example before it
    assert_row(&set, set.targets, 1, (const int[]){202}, 1);
    hellaswag_close(&set);
}

static void test_last_batch_is_not_full(void **state) {
    (void)state;
    HellaSwag set = open_three(8, 8);
    assert_int_equal(hellaswag_batches(&set), 2);
    hellaswag_next_batch(&set);
    assert_row(&set, set.inputs, 3, (const int[]){10, 11}, 2);
    assert_row(&set, set.targets, 3, (const int[]){11, 400}, 2);
    assert_row(&set, set.inputs, 6, (const int[]){10, 11, 12, 13, 14, 301}, 6);
    hellaswag_next_batch(&set);
    assert_row(&set, set.targets, 3, (const int[]){402, 403, 404, 405}, 4);
    for (int row = 4; row < 8; row++) {
        assert_row(&set, set.inputs, row, NOTHING, 0);
        assert_row(&set, set.targets, row, NOTHING, 0);
    }
    hellaswag_rewind(&set);
    hellaswag_next_batch(&set);
    assert_row(&set, set.targets, 3, (const int[]){11, 400}, 2);
    hellaswag_close(&set);
    set = open_three(100, 8);
    assert_int_equal(hellaswag_batches(&set), 1);
    hellaswag_close(&set);
}

// ---- scores

// the fraction of scored examples whose choice is the label; NaN before the first
static inline double hellaswag_accuracy(const HellaSwag *set) { return (double)set->correct / set->scored; }

// losses in place of a model's: the loss at a position is losses[target]
static double accuracy(HellaSwag *set, const real *losses) {
    real *batch = (real *)xcalloc((size_t)set->B * (size_t)set->T, sizeof(real));
    hellaswag_rewind(set);
    for (int i = hellaswag_batches(set); i > 0; i--) {
        hellaswag_next_batch(set);
        for (int n = 0; n < set->B * set->T; n++) { batch[n] = losses[set->targets[n]]; }
        hellaswag_score(set, batch);
    }
    free(batch);
    return hellaswag_accuracy(set);
}

static void test_length_normalised(void **state) {
    (void)state;
    static const int lengths[4] = {3, 1, 2, 4};
    EvalFile file = new_file();
    add_example(&file, 3, 2, lengths);
    HellaSwag set = hellaswag_open(save(&file), 4, 6, VOCABULARY);
    real losses[VOCABULARY];
    for (int v = 0; v < VOCABULARY; v++) { losses[v] = 100; }  // of the context, which does not count
    losses[0] = 0;                                             // nor does padding
    // sums 3, 1.5, 2.5, 3.6: completion 1 is lowest; means 1, 1.5, 1.25, 0.9: completion 3 is
    static const real each[4] = {1, 1.5F, 1.25F, 0.9F};
    for (int i = 0; i < 4; i++) {
        for (int t = 0; t < lengths[i]; t++) { losses[100 * (i + 1) + t] = each[i]; }
    }
    assert_float_equal(accuracy(&set, losses), 1, 0);
    losses[403] += 0.5F;  // 4.1 / 4: now completion 0
    assert_float_equal(accuracy(&set, losses), 0, 0);
    losses[403] -= 0.5F;
    losses[100] -= 0.5F;  // 2.5 / 3: the first token, which the context's last position predicts
    assert_float_equal(accuracy(&set, losses), 0, 0);
    hellaswag_close(&set);
}

// every B gives the same accuracy, padding is ignored, and a rewound set starts at 0
static void test_accuracy(void **state) {
    (void)state;
    real losses[VOCABULARY];
    for (int v = 0; v < VOCABULARY; v++) { losses[v] = v / 100 == 3 ? 1 : 2; }  // completion 2, the label of one
    for (int B = 4; B <= 17; B++) {
        HellaSwag set = open_three(B, 8 + B % 3);
        assert_true(isnan(hellaswag_accuracy(&set)));
        for (int i = 0; i < 2; i++) { assert_float_equal(accuracy(&set, losses), 1.0 / 3, 1e-15); }
        assert_int_equal(set.scored, 3);
        hellaswag_close(&set);
    }
}

static void test_equal_and_undefined_losses(void **state) {
    (void)state;
    real losses[VOCABULARY];
    HellaSwag set = open_three(8, 8);
    for (int v = 0; v < VOCABULARY; v++) { losses[v] = v < 300 ? 7 : 8; }
    assert_float_equal(accuracy(&set, losses), 1.0 / 3, 1e-15);  // completion 0 before its equal 1; one label is 0
    for (int v = 0; v < VOCABULARY; v++) { losses[v] = NAN; }
    assert_float_equal(accuracy(&set, losses), 0, 0);
    for (int v = 400; v < 500; v++) { losses[v] = 7; }  // completion 3 alone has a number; one label is 3
    assert_float_equal(accuracy(&set, losses), 1.0 / 3, 1e-15);
    hellaswag_close(&set);
}

// ---- refusals

typedef struct {
    const char *path;
    int B, T, vocab_size;
} OpenCall;

static void stop_at_open(void *argument) {
    const OpenCall *call = (const OpenCall *)argument;
    hellaswag_open(call->path, call->B, call->T, call->vocab_size);
}

static void assert_open_refused(const char *path, int B, int T, int vocab_size, const char *words) {
    OpenCall call = {path, B, T, vocab_size};
    assert_stops(EXIT_BAD_INPUT, words, stop_at_open, &call);
}

static void assert_refused(const EvalFile *file, const char *words) {
    assert_open_refused(save(file), 4, 8, VOCABULARY, words);
}

static void test_batches_that_are_too_small(void **state) {
    (void)state;
    EvalFile file = three_examples();
    const char *path = save(&file);
    assert_open_refused(path, 3, 8, VOCABULARY, "takes 4 sequences at once, but -b is 3; give -b 4 or more, or -h 0");
    assert_open_refused(path, 4, 7, VOCABULARY, "takes sequences of 8 tokens, but -t is 7; give -t 8 or more, or -h 0");
    assert_open_refused(path, 4, 8, 405, "has token id 405, but the vocabulary has ids 0 to 404");
    assert_open_refused(path, 4, 8, 404, "example 1 of");
    HellaSwag set = hellaswag_open(path, 4, 8, 406);
    hellaswag_close(&set);
}

static void test_what_is_not_a_file(void **state) {
    (void)state;
    assert_int_equal(mkdir(temp_path("folder.bin"), 0700), 0);
    assert_int_equal(mkfifo(temp_path("fifo.bin"), 0600), 0);
    assert_open_refused(temp_path("missing.bin"), 4, 8, VOCABULARY,
                        "missing.bin: No such file or directory; make it with dev/data/hellaswag.py, or give -h 0");
    assert_open_refused(temp_path("folder.bin"), 4, 8, VOCABULARY, "folder.bin is not a file");
    assert_open_refused(temp_path("fifo.bin"), 4, 8, VOCABULARY, "fifo.bin is not a file");
    assert_open_refused("/dev/zero", 4, 8, VOCABULARY, "/dev/zero is not a file");
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
        {3, 48, "says it has 50 bytes, expected an even number from 30 to the longest, 48"},
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
        {1, 0, "says it has 0 bytes, expected an even number from 30"},
        {1, 49, "says it has 49 bytes"},
        {1, 28, "says it has 28 bytes"},
        {1, 48, "has a completion that is empty or runs past its 48 bytes"},
        {1, 65534, "says it has 65534 bytes"},
        {2, 0, "says it is example 0"},
        {2, 2, "says it is example 2"},
        {3, 4, "has label 4, expected 0 to 3"},
        {4, 3, "has 3 completions, expected 4"},
        {4, 5, "has 5 completions, expected 4"},
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
    assert_open_refused(save_bytes(&file, 0), 4, 8, VOCABULARY, "has 0 bytes, too few for the 1024-byte header");
    assert_open_refused(save_bytes(&file, 1023), 4, 8, VOCABULARY, "has 1023 bytes, too few");
    for (size_t bytes = 1024; bytes < whole; bytes++) {
        assert_open_refused(save_bytes(&file, bytes), 4, 8, VOCABULARY, "is cut short: the file ends after ");
    }
    assert_open_refused(save_bytes(&file, whole + 1), 4, 8, VOCABULARY, "has 1 bytes after the last of its 3 examples");
    assert_open_refused(save_bytes(&file, whole + 100), 4, 8, VOCABULARY, "says 3 examples (1 to 65536) of at most 50");
    EvalFile empty = new_file();
    assert_refused(&empty, "has 1024 bytes, but its header says 0 examples");
}

// ---- dev/data/hellaswag.py

static const char *const MERGES = "dev/test/golden/gpt2_2500.bpe";

// the exit status of a command, without its output
static int run_silently(const char *const *command) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr)) {
            execv(command[0], (char *const *)command);
        }
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int convert(const char *jsonl, const char *out) {
    const char *const command[] = {"/usr/bin/python3", "dev/data/hellaswag.py", MERGES, jsonl, "-o", out, NULL};
    return run_silently(command);
}

static bool python_has_regex(void) {
    const char *const command[] = {"/usr/bin/python3", "-c", "import regex", NULL};
    return run_silently(command) == 0;
}

// the targets of a row are the tokens of the context but for the first, then of the completion
static void assert_texts(const HellaSwag *set, int row, const char *context, const char *completion) {
    Tokenizer t = tokenizer_load(MERGES);
    int *before, *after;
    size_t num_before = tokenizer_encode(&t, context, strlen(context), &before);
    size_t num_after = tokenizer_encode(&t, completion, strlen(completion), &after);
    const int *inputs = set->inputs + row * set->T, *targets = set->targets + row * set->T;
    assert_int_equal(inputs[0], before[0]);
    assert_int_equal(set->count[row], num_after);
    assert_int_equal(set->first[row], num_before - 1);
    for (size_t i = 1; i < num_before; i++) { assert_int_equal(targets[i - 1], before[i]); }
    for (size_t i = 0; i < num_after; i++) { assert_int_equal(targets[num_before - 1 + i], after[i]); }
    free(before);
    free(after);
    tokenizer_free(&t);
}

static void test_made_by_the_script(void **state) {
    (void)state;
    if (!python_has_regex()) { skip(); }
    static const char text[] =
        "{\"ind\": 24, \"ctx\": \"A man is sitting on a roof. he\", \"label\": 3, \"endings\": [\"is using wrap.\", "
        "\"rips tiles off.\", \"holds a rubik's cube.\", \"starts pulling up roofing on a roof.\"]}\n"
        "{\"label\": 0, \"ctx\": \"[header] Caf\\u00e9s  42\", \"endings\": [\"\\u4f60\", \"\", \" two\", \"x\"]}\n";
    const char *out = temp_path("made.bin");
    assert_int_equal(convert(write_file("made.jsonl", text, sizeof text - 1), out), 0);
    HellaSwag set = hellaswag_open(out, 8, 100, 2757);
    assert_int_equal(set.num_examples, 2);
    hellaswag_next_batch(&set);
    assert_texts(&set, 0, "A man is sitting on a roof. he", " is using wrap.");
    assert_texts(&set, 2, "A man is sitting on a roof. he", " holds a rubik's cube.");
    assert_texts(&set, 3, "A man is sitting on a roof. he", " starts pulling up roofing on a roof.");
    assert_texts(&set, 4, "[header] Caf\u00e9s  42", " \u4f60");
    assert_texts(&set, 5, "[header] Caf\u00e9s  42", " ");
    assert_texts(&set, 6, "[header] Caf\u00e9s  42", "  two");
    assert_int_equal(set.words[set.starts[0] + 3], 3);
    assert_int_equal(set.words[set.starts[1] + 3], 0);
    hellaswag_close(&set);
}

// the script refuses bad input and leaves no file
static void test_refused_by_the_script(void **state) {
    (void)state;
    if (!python_has_regex()) { skip(); }
    static const char *const texts[] = {
        "",
        "not JSON\n",
        "[]\n",
        "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\", \"d\", \"e\"]}\n",
        "{\"ctx\": \"a\", \"label\": 4, \"endings\": [\"b\", \"c\", \"d\", \"e\"]}\n",
        "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", \"c\", \"d\"]}\n",
        "{\"ctx\": \"\", \"label\": 0, \"endings\": [\"b\", \"c\", \"d\", \"e\"]}\n",
        "{\"ctx\": 5, \"label\": 0, \"endings\": [\"b\", \"c\", \"d\", \"e\"]}\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *out = temp_path("refused.bin");
        assert_int_equal(convert(write_file("refused.jsonl", texts[i], strlen(texts[i])), out), 1);
        assert_int_equal(access(out, F_OK), -1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_example_a_batch),
        cmocka_unit_test(test_last_batch_is_not_full),
        cmocka_unit_test(test_length_normalised),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_equal_and_undefined_losses),
        cmocka_unit_test(test_batches_that_are_too_small),
        cmocka_unit_test(test_what_is_not_a_file),
        cmocka_unit_test(test_header_defects),
        cmocka_unit_test(test_example_defects),
        cmocka_unit_test(test_wrong_sizes),
        cmocka_unit_test(test_made_by_the_script),
        cmocka_unit_test(test_refused_by_the_script),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
