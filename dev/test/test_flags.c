/*
Flags, on a small table with every type: each form of a value, each error with its sentence, and help, banner and JSON
made from the table, and JSON read back.
*/
#include "testing.h"
#include "llmc/run/flags.h"
#include <limits.h>

typedef struct {
    int micro_batch, max_steps, keep, schedule, master;
    int64_t total_tokens, seed;
    double lr, final_fraction;
    const char *output, *server, *plan, *help;
} Values;

// clang-format off
static const Flag TABLE[] = {
    FLAG_HEADING("Data"),
    {"b", "micro-batch", FLAG_INT, offsetof(Values, micro_batch), 1, 65536, NULL, "N",
     "sequences per micro-batch (default %s)"},
    {"d", "total-tokens", FLAG_INT64, offsetof(Values, total_tokens), 0, 1e15, NULL, "N",
     "tokens per update (default %s)"},
    {"o", "output", FLAG_STRING, offsetof(Values, output), 0, 0, NULL, "DIR", "run directory"},
    {"ps", "server", FLAG_STRING, offsetof(Values, server), 0, 0, NULL, "HOST", "a letter of two characters"},
    FLAG_HEADING("Optimizer"),
    {"x", "max-steps", FLAG_INT, offsetof(Values, max_steps), -1, INT_MAX, NULL, "N",
     "updates (default %s: one epoch)"},
    {"nk", "keep", FLAG_INT, offsetof(Values, keep), 0, INT_MAX, NULL, "N",
     "keep the last N checkpoints (default %s: all of them)"},
    {"k", "schedule", FLAG_CHOICE, offsetof(Values, schedule), 0, 0, "cosine linear constant wsd", "NAME",
     "schedule (default %s)"},
    {"l", "lr", FLAG_REAL, offsetof(Values, lr), 0, 1e3, NULL, "X", "learning rate (default %s)"},
    {"q", "final-fraction", FLAG_REAL, offsetof(Values, final_fraction), -0.5, 1, NULL, "X",
     "final learning rate (default %s)"},
    {"w", "master", FLAG_CHOICE, offsetof(Values, master), 0, 0, "none|0 split|1|2", "KIND",
     "master weights (default %s; none for none)"},
    {NULL, "seed", FLAG_INT64, offsetof(Values, seed), 0, 999999999999999, NULL, "N", "seed (default %s)"},
    FLAG_HEADING("Other"),
    {NULL, "plan", FLAG_OPTION, offsetof(Values, plan), 0, 0, "json csv", "FORMAT", "print the plan"},
    {"?", "help", FLAG_OPTION, offsetof(Values, help), 0, 0, NULL, NULL, "print this", NOT_RESUMED},
};
// clang-format on
enum { ROWS = LEN(TABLE), MAX_ARGUMENTS = 32 };

static Values default_values(void) {
    Values v = {4, -1, 0, 0, 1, 524288, 42, 3e-4, 0.1, NULL, "", NULL, NULL};
    return v;
}

// Splits arguments at each space; '' is an empty argument. The copy outlives the call, because strings point into it.
static int split(const char *line, char **argv) {
    static char copies[64][512];
    static int next;
    char *copy = copies[next++ % 64];
    snprintf(copy, sizeof copies[0], "train_gpt2 %s", line);
    int argc = 0;
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        assert_true(argc < MAX_ARGUMENTS);
        argv[argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
    }
    return argc;
}

static Values parse(const char *line) {
    char *argv[MAX_ARGUMENTS];
    Values v = default_values();
    int argc = split(line, argv);
    flags_parse(TABLE, ROWS, &v, argc, argv);
    return v;
}

static void parse_and_exit(void *line) { parse((const char *)line); }

static char *json_text(Values values) {
    cJSON *json = flags_to_json(TABLE, ROWS, &values);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    return text;
}

static void assert_same_values(Values a, Values b) {
    char *a_text = json_text(a), *b_text = json_text(b);
    assert_string_equal(a_text, b_text);
    free(a_text);
    free(b_text);
}

TEST(test_defaults_stay) { assert_same_values(parse(""), default_values()); }

TEST(test_three_ways_are_the_same) {
    const char *lines[] = {"-b 8", "--micro-batch 8", "--micro-batch=8"};
    for (int i = 0; i < 3; i++) {
        Values expected = default_values();
        expected.micro_batch = 8;
        assert_same_values(parse(lines[i]), expected);
    }
}

// flags appended to a script's command override the script's own
TEST(test_the_last_one_counts) {
    assert_int_equal(parse("-b 8 -b 4").micro_batch, 4);
    assert_int_equal(parse("-b 4 --micro-batch=8").micro_batch, 8);
    assert_string_equal(parse("--plan=json --plan").plan, "");
    assert_string_equal(parse("-o a -o -1").output, "-1");
}

// two rows that name data, as -i and -j do
static void parse_data(void *line) {
    static const Flag table[] = {
        {NULL, "data", FLAG_STRING, 0, 0, 0, NULL, "GLOB", "files"},
        {"j", "more-data", FLAG_STRING, sizeof(char *), 0, 0, NULL, "GLOB", "files"},
    };
    char *argv[MAX_ARGUMENTS];
    const char *values[2] = {"of config.json", "of config.json"};
    int argc = split((const char *)line, argv);
    flags_parse(table, 2, values, argc, argv);
    assert_string_equal(values[0], "a");
}

TEST(test_data_is_named_once) {
    char once[] = "--data a -j a", twice[] = "-j a --data a -j b", joined_twice[] = "--data=a --data=a";
    parse_data(once);
    assert_stops(EXIT_BAD_INPUT, "-j is given twice, the second time as 'b'; give several files as one pattern",
                 parse_data, twice);
    assert_stops(EXIT_BAD_INPUT, "--data is given twice, the second time as 'a'", parse_data, joined_twice);
}

TEST(test_every_type) {
    Values v = parse("-b 1 -d 1099511627776 -o out/run -k wsd -l 6e-4 -q -.5 --seed 999999999999999 -nk 5");
    assert_int_equal(v.micro_batch, 1);
    assert_true(v.total_tokens == 1099511627776);
    assert_string_equal(v.output, "out/run");
    assert_int_equal(v.schedule, 3);
    assert_true(v.lr == 6e-4 && v.final_fraction == -0.5);
    assert_true(v.seed == 999999999999999);
    assert_int_equal(v.keep, 5);
    v = parse("-x -1 -nk 2147483647 --lr=1. -q 1e-0 -b 65536 -ps '' --output=-odd=name");
    assert_int_equal(v.max_steps, -1);
    assert_int_equal(v.keep, INT_MAX);
    assert_true(v.lr == 1 && v.final_fraction == 1);
    assert_int_equal(v.micro_batch, 65536);
    assert_string_equal(v.server, "");
    assert_string_equal(v.output, "-odd=name");
    v = parse("-d 0 -q +0.25 -b 007 -o -");
    assert_true(v.total_tokens == 0 && v.final_fraction == 0.25 && v.micro_batch == 7);
    assert_string_equal(v.output, "-");
}

TEST(test_choices) {
    const char *lines[] = {"-w none", "-w 0", "-w split", "--master=1", "--master 2"};
    for (int i = 0; i < 5; i++) { assert_int_equal(parse(lines[i]).master, i >= 2); }
    assert_int_equal(parse("-k cosine").schedule, 0);
    assert_int_equal(parse("--schedule=constant").schedule, 2);
}

TEST(test_options) {
    assert_null(parse("").plan);
    assert_string_equal(parse("--plan").plan, "");
    assert_string_equal(parse("--plan=json").plan, "json");
    Values v = parse("--plan -b 2 -?");  // the value is never a separate argument
    assert_string_equal(v.plan, "");
    assert_int_equal(v.micro_batch, 2);
    assert_string_equal(v.help, "");
}

typedef struct {
    const char *line, *words;
} Refusal;

#define TAKES_B "takes a whole number from 1 to 65536; "
#define TAKES_Q "takes a number from -0.5 to 1; "

TEST(test_refusals) {
    const Refusal refusals[] = {
        // no such flag
        {"-bx 3", "unknown flag -bx; --help lists all flags"},
        {"--micro-bach 4", "unknown flag --micro-bach; --help lists all flags"},
        {"--micro-=4", "unknown flag --micro-=4;"},
        {"--micro-batches 4", "unknown flag --micro-batches;"},
        {"-b=4", "unknown flag -b=4;"},
        {"--ps host", "flag --ps was removed; start the ranks with mpirun"},
        {"--", "unknown flag --;"},
        {"-", "unknown flag -;"},
        {"--=4", "unknown flag --=4;"},
        {"--%s%n 4", "unknown flag --%s%n;"},
        {"--micro_batch=4", "unknown flag --micro_batch=4; --help lists all flags"},
        // no value
        {"-b", "-b " TAKES_B "nothing follows it (--help lists all flags)"},
        {"--micro-batch", "--micro-batch " TAKES_B "nothing follows it (--help lists all flags)"},
        {"-b -d 5", "-b " TAKES_B "it is followed by '-d'"},
        {"-o --plan", "-o takes DIR; it is followed by '--plan'"},
        {"-o -dir", "-o takes DIR; it is followed by '-dir'"},
        {"-q -inf", "-q " TAKES_Q "it is followed by '-inf'"},
        {"--help=me", "--help takes no value; found 'me'"},
        {"--help b", "stray argument 'b'"},
        // removed
        {"-w fp32", "-w takes one of none|0, split|1|2; found 'fp32', now replaced by split"},
        {"-lc 4", "flag -lc was removed; the number of logits computed at once follows from"},
        {"--verify-step", "flag --verify-step was removed; the tests prove that a step is repeatable"},
        {"--verify-step=4", "flag --verify-step=4 was removed; the tests"},
        {"--threads 4", "flag --threads was removed; OMP_NUM_THREADS=N sets the number of threads"},
        {"--skip-bad 4", "flag --skip-bad was removed; jq -cR 'fromjson?' FILE writes the lines that are JSON"},
        {"--ps|server 4", "unknown flag --ps|server; --help lists all flags"},
        // stray
        {"out", "stray argument 'out'"},
        {"-b 4 8", "stray argument '8'"},
        {"--plan json", "stray argument 'json': give a value as"},
        {"''", "stray argument ''"},
    };
    for (size_t i = 0; i < LEN(refusals); i++) {
        char line[512];
        snprintf(line, sizeof line, "%s", refusals[i].line);
        assert_stops(2, refusals[i].words, parse_and_exit, line);
    }
}

// values that each flag refuses, with what it takes
TEST(test_refused_values) {
    static const struct {
        const char *flag, *takes, *values[12];
    } rows[] = {
        {"-b ", TAKES_B, {"many", "''", "4x", "4.0", "5e2", "0x10", "+4", "nan", "0", "-1", "65537", "4294967297"}},
        {"--micro-batch=", TAKES_B, {"many", ""}},
        {"-x ", "takes a whole number from -1 to 2147483647; ", {"-", "-2"}},
        {"--max-steps=", "takes a whole number from -1 to 2147483647; ", {"--1"}},
        {"-nk ", "takes a whole number from 0 to 2147483647; ", {"2147483648"}},
        {"-d ", "takes a whole number from 0 to 1e+15; ", {"-1", "2000000000000000000"}},
        {"--seed=", "takes a whole number from 0 to ", {"1000000000000000", "99999999999999999999999"}},
        {"-l ",
         "takes a number from 0 to 1000; ",
         {"-1e-9", "nan", "inf", "1e999", "1e-4x", "1e", ".", "0x1p3", "1,5", "''"}},
        {"--lr=", "takes a number from 0 to 1000; ", {"-inf"}},
        {"-q ", TAKES_Q, {"1.0000001", "-0.6"}},
        {"-k ", "takes one of cosine, linear, constant, wsd; ", {"cos", "cosines", "Cosine", "''", "0"}},
        {"-w ", "takes one of none|0, split|1|2; ", {"3", "none|0"}},
        {"--plan=", "takes nothing, or after = one of json, csv; ", {"yaml", ""}},
    };
    for (size_t i = 0; i < LEN(rows); i++) {
        for (int v = 0; v < 12 && rows[i].values[v]; v++) {
            const char *value = rows[i].values[v];
            char line[64], words[128];
            snprintf(line, sizeof line, "%s%s", rows[i].flag, value);
            snprintf(words, sizeof words, "%.*s %s", (int)strcspn(rows[i].flag, " ="), rows[i].flag, rows[i].takes);
            assert_stops(2, words, parse_and_exit, line);
            snprintf(words, sizeof words, "found '%s'", strcmp(value, "''") == 0 ? "" : value);
            assert_stops(2, words, parse_and_exit, line);
        }
    }
}

// an argument longer than any buffer inside
TEST(test_long_arguments) {
    char line[480] = "--";
    memset(line + 2, 'm', 400);
    assert_stops(2, "unknown flag --mmm", parse_and_exit, line);
    memcpy(line, "-b ", 3);
    assert_stops(2, TAKES_B "found 'mmm", parse_and_exit, line);
    memset(line + 3, '9', 400);
    assert_stops(2, TAKES_B "found '999", parse_and_exit, line);
    memcpy(line, "-o ", 3);
    const char *output = parse(line).output;
    assert_non_null(output);
    assert_int_equal(output ? strlen(output) : 0, 400);
}

static char *printed_banner(Values values) {
    char *text = NULL;
    size_t size = 0;
    Values usual = default_values();
    FILE *file = open_memstream(&text, &size);
    flags_print_banner(file, TABLE, ROWS, &values, &usual);
    fclose(file);
    return text;
}

TEST(test_banner) {
    char *text = printed_banner(parse("-b 8 -l 0.1 -k cosine -o run --plan -w 0"));
    assert_string_equal(text, "flags     micro-batch 8  output run  lr 0.1  master none  plan yes\n");
    free(text);
    text = printed_banner(default_values());
    assert_string_equal(text, "");
    free(text);
}

TEST(test_json) {
    // numbers that cJSON itself would print without their last digits
    Values v = parse("-d 999999999999999 --seed 999999999999999 -l 0.30000000000000004 -k wsd -o a\"b --plan=json");
    char *text = json_text(v);
    assert_string_equal(text,
                        "{\"micro-batch\":4,\"total-tokens\":999999999999999,\"output\":\"a\\\"b\",\"server\":\"\","
                        "\"max-steps\":-1,\"keep\":0,\"schedule\":\"wsd\",\"lr\":0.30000000000000004,"
                        "\"final-fraction\":0.1,\"master\":\"split\",\"seed\":999999999999999,"
                        "\"plan\":\"json\"}");
    free(text);
    text = json_text(default_values());
    cJSON *json = cJSON_Parse(text);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(json, "output")));
    assert_null(cJSON_GetObjectItem(json, "plan"));
    cJSON_Delete(json);
    free(text);
}

// ---- config.json read back

// strings point into JSON that lives until the next call
static Values values_from(const char *text) {
    static cJSON *json;
    Values v = default_values();
    cJSON_Delete(json);
    json = cJSON_Parse(text);
    assert_non_null(json);
    flags_from_json(TABLE, ROWS, &v, json, "config.json");
    return v;
}

TEST(test_json_reads_back) {
    const char *line = "-b 65536 -d 999999999999999 -o a\"b\\\xc3\xa9 -ps host -x -1 -nk 2147483647 -k wsd "
                       "-l 0.30000000000000004 -q -0.5 -w none --seed 999999999999999 --plan=json -?";
    Values v = parse(line);
    char *text = json_text(v);
    Values read = values_from(text);
    assert_null(read.help);  // not resumed
    read.help = v.help;
    assert_same_values(read, v);
    assert_int_equal(read.master, 0);
    assert_int_equal(values_from("{\"master\":\"fp32\"}").master, 1);  // of an earlier version
    assert_true(read.lr == 0.30000000000000004 && read.seed == 999999999999999);
    free(text);
    text = json_text(default_values());
    read = values_from(text);
    assert_same_values(read, default_values());
    free(text);
}

// fields that the file lacks stay as they are, and so do those of flags that are not resumed
TEST(test_json_sets_no_more_than_it_names) {
    const char *text = "{\"micro-batch\":8,\"max-steps\":9,\"x\":7,\"help\":\"\",\"lr\":0.5,\"verify-step\":3}";
    Values expected = default_values();
    expected.micro_batch = 8;
    expected.max_steps = 9;
    expected.lr = 0.5;
    assert_same_values(values_from(text), expected);
    assert_same_values(values_from("{}"), default_values());
    Values v = parse("-o here -b 5");
    flags_from_json(TABLE, ROWS, &v, NULL, "config.json");  // a file that could not be read
    assert_same_values(v, parse("-o here -b 5"));
}

static void read_text_of_flags(void *text) { values_from((const char *)text); }

// Names that are no flags change nothing; neither does an absent string or option.
TEST(test_json_of_other_names) {
    const char *texts[] = {"{\"colour\":1}",
                           "{\"b\":8}",
                           "{\"Micro-Batch\":8}",
                           "{\"\":8}",
                           "{\"Data\":1}",
                           "{\"server\":null}",
                           "{\"plan\":null}",
                           "[1,\"micro-batch\"]",
                           "\"micro-batch\"",
                           "8",
                           "null"};
    for (size_t i = 0; i < LEN(texts); i++) { assert_same_values(values_from(texts[i]), default_values()); }
}

// A value that the command line would refuse is refused by name.
TEST(test_json_that_does_not_fit) {
    static const struct {
        const char *name, *values[12];
    } rows[] = {
        {"micro-batch",
         {"\"8\"", "true", "null", "[8]", "{\"micro-batch\":8}", "0", "65537", "-4", "8.5", "4294967304"}},
        {"lr", {"\"0.1\"", "false", "null", "[]", "-1e-09"}},
        {"output", {"1", "true", "[\"a\"]"}},
        {"schedule", {"1", "null", "\"cosines\"", "\"\""}},
        {"master", {"3", "0.5", "\"none|0\""}},
        {"plan", {"true", "\"yaml\""}},
        {"max-steps", {"-2"}},
        {"keep", {"2147483648"}},
        {"seed", {"-1"}},
        {"total-tokens", {"0.1"}},
    };
    static const char *const too_large[] = {
        "micro-batch",      "1e999", "keep",  "1e300", "seed",   "1e19",           "seed",     "-1e999", "seed",
        "9007199254740993", "lr",    "1e999", "lr",    "-1e999", "final-fraction", "1.0000001"};
    char text[128], words[128];
    for (size_t i = 0; i < LEN(rows); i++) {
        for (int v = 0; v < 12 && rows[i].values[v]; v++) {
            snprintf(text, sizeof text, "{\"%s\":%s}", rows[i].name, rows[i].values[v]);
            snprintf(words, sizeof words, "has %s as \"%s\", which takes ", rows[i].values[v], rows[i].name);
            assert_stops(EXIT_BAD_INPUT, words, read_text_of_flags, text);
        }
    }
    for (size_t i = 0; i < LEN(too_large); i += 2) {  // whatever cJSON prints of these
        snprintf(text, sizeof text, "{\"%s\":%s}", too_large[i], too_large[i + 1]);
        snprintf(words, sizeof words, "as \"%s\", which takes ", too_large[i]);
        assert_stops(EXIT_BAD_INPUT, words, read_text_of_flags, text);
    }
    // flags for one start are not read
    assert_same_values(values_from("{\"help\":1}"), default_values());
    assert_same_values(values_from("{\"help\":\"me\"}"), default_values());
}

static const Flag flag_of_digits = {"r", "recompute", FLAG_CHOICE, 0, 0, 0, "0|none 1 auto", "N", ""};

static void read_choice_of_digits(void *text) {
    int value[2] = {1, 0};
    flags_from_json(&flag_of_digits, 1, value, cJSON_Parse((const char *)text), "config.json");
}

// A choice spelled in digits is a number in JSON. Both spellings read back.
TEST(test_json_choice_of_digits) {
    const Flag flag = flag_of_digits;
    const char *const texts[] = {"{\"recompute\":0}", "{\"recompute\":1}", "{\"recompute\":\"auto\"}",
                                 "{\"recompute\":\"none\"}", "{\"recompute\":\"1\"}"};
    const char *const others[] = {"{\"recompute\":2}", "{\"recompute\":0.5}", "{\"recompute\":-1}"};
    for (int i = 0; i < 5; i++) {
        int value = -1, expected[2] = {i % 3, 0};  // gcc warns of one int: another type of flag has 8 bytes
        cJSON *read = cJSON_Parse(texts[i]), *written = flags_to_json(&flag, 1, expected);
        char *text = cJSON_PrintUnformatted(written);
        assert_string_equal(text, texts[i % 3]);
        flags_from_json(&flag, 1, &value, read, "config.json");
        assert_int_equal(value, expected[0]);
        free(text);
        cJSON_Delete(read);
        cJSON_Delete(written);
    }
    for (int i = 0; i < 3; i++) {
        assert_stops(EXIT_BAD_INPUT, "which takes one of", read_choice_of_digits, (void *)others[i]);
    }
}

// the text of a number reads back as the same number
TEST(test_real_text) {
    const double numbers[] = {0, 1, 0.1, 3e-4, 1e-8, 1e6, 1. / 3, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, -2.5};
    char text[FLAG_TEXT], all[512] = "";
    for (size_t i = 0; i < LEN(numbers); i++) {
        flag_real_text(numbers[i], text);
        assert_true(strtod(text, NULL) == numbers[i]);
        strcat(strcat(all, text), " ");
    }
    assert_string_equal(all, "0 1 0.1 0.0003 1e-08 1000000 0.3333333333333333 0.30000000000000004 "
                             "4.94065645841247e-324 1.7976931348623157e+308 -2.5 ");
}

int main(void) { return run_all_tests("flags"); }
