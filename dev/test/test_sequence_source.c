/*
The places of sequences in the data, against the loader that reads them.
*/
#include "testing.h"
#include "llmc/files/sequence_source.h"

enum { T = 4 };

// writes NAME as a file of text: the bytes first .. first + n - 1
static void write_bytes(const char *name, int first, int n) {
    uint8_t bytes[256];
    for (int i = 0; i < n; i++) { bytes[i] = (uint8_t)(first + i); }
    write_file(name, bytes, (size_t)n);
}

// files of 5, 2 and 8 sequences, one too short for any; all bytes differ
static TokenFiles open_four_files(void) {
    write_bytes("four_a.txt", 0, T * 5 + 1);
    write_bytes("four_b.txt", 30, T);
    write_bytes("four_c.txt", 40, T * 2 + 3);
    write_bytes("four_d.txt", 60, T * 8 + 4);
    return token_files_open("-i", temp_path("four_*.txt"));
}
enum { SEQUENCES = 5 + 0 + 2 + 8 };

static double number_of(const cJSON *json, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

static const char *file_of(const cJSON *json) {
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "file"));
}

// The source of sequence s has the tokens that the loader reads.
static void check_source(DataLoader *loader, const TokenFiles *files, uint64_t s) {
    uint8_t bytes[T + 1];
    cJSON *array = cJSON_CreateArray();
    dataloader_next(loader);
    add_sequence_source(array, loader, files, s);
    assert_int_equal(cJSON_GetArraySize(array), 1);
    const cJSON *source = cJSON_GetArrayItem(array, 0);
    FILE *file = fopen(file_of(source), "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)number_of(source, "first_token"), SEEK_SET), 0);
    assert_int_equal(number_of(source, "tokens"), T + 1);
    assert_int_equal(fread(bytes, 1, T + 1, file), T + 1);
    fclose(file);
    for (int t = 0; t < T; t++) { assert_true(loader->inputs[t] == bytes[t] && loader->targets[t] == bytes[t + 1]); }
    cJSON_Delete(array);
}

// three epochs, of whole files and of the training part of files
static void test_tokens(void **state) {
    (void)state;
    TokenFiles files = open_four_files(), train, val;
    token_files_split(&files, 0.5, &train, &val);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        const TokenFiles *all[] = {&files, &train, &val};
        for (int i = 0; i < 3; i++) {
            DataLoader loader;
            dataloader_open(&loader, all[i], 1, T, shuffle, 7, 0, 1, BYTE_VOCABULARY);
            for (uint64_t s = 0; s < 3 * SEQUENCES; s++) { check_source(&loader, all[i], s); }
            dataloader_close(&loader);
        }
    }
    token_files_close(&files);
    token_files_close(&train);
    token_files_close(&val);
}

// Examples of two files: the sources of all rows of an epoch are all lines with a target, and each row names the lines
// whose text it has.
static void test_examples(void **state) {
    (void)state;
    static const char *const lines[] = {"{\"prompt\":\"a\",\"completion\":\"bc\"}\n{\"text\":\"d\"}\n",
                                        "{\"prompt\":\"e\",\"completion\":\"f\"}\n\n{\"text\":\"gh\"}\n"};
    // letters of the prompt or text, its file and its line
    static const struct {
        char first;
        int file, line;
    } expected[] = {{'a', 0, 1}, {'d', 0, 2}, {'e', 1, 1}, {'g', 1, 3}};
    write_file("ex_1.jsonl", lines[0], strlen(lines[0]));
    write_file("ex_2.jsonl", lines[1], strlen(lines[1]));
    Tokenizer bytes = tokenizer_bytes();
    TokenFiles files = token_files_open("-i", temp_path("ex_*.jsonl"));
    Examples e = examples_load("-i", temp_path("ex_*.jsonl"), &bytes, T);
    ExampleRows rows = example_rows_pack(&e, 0, e.count);
    DataLoader loader;
    dataloader_open_examples(&loader, &rows, 1, false, 3, 0, 1);
    int found[4] = {0};
    for (int s = 0; s < rows.num_rows; s++) {
        cJSON *array = cJSON_CreateArray();
        const cJSON *source;
        dataloader_next(&loader);
        add_sequence_source(array, &loader, &files, (uint64_t)s);
        cJSON_ArrayForEach(source, array) {
            for (int i = 0; i < 4; i++) {
                if (strcmp(file_of(source), files.files[expected[i].file].path) != 0 ||
                    (int)number_of(source, "line") != expected[i].line) {
                    continue;
                }
                bool in_row = false;
                for (int t = 0; t < T; t++) {
                    in_row |= loader.inputs[t] == expected[i].first || loader.targets[t] == expected[i].first;
                }
                assert_true(in_row);
                found[i]++;
            }
        }
        cJSON_Delete(array);
    }
    for (int i = 0; i < 4; i++) { assert_int_equal(found[i], 1); }
    dataloader_close(&loader);
    example_rows_free(&rows);
    examples_free(&e);
    token_files_close(&files);
    tokenizer_free(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_examples),
    };
    return cmocka_run_group_tests_name("sequence source", tests, NULL, NULL);
}
