/*
Flags, on a small table with every type: each form of a value, each error with its sentence, and help, banner and JSON
made from the table, and JSON read back.
*/
#include "testing.h"
#include "llmc/run/flags.h"
#include <fcntl.h>
#include <limits.h>
#include <math.h>

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
    {"w", "master", FLAG_CHOICE, offsetof(Values, master), 0, 0, "none|0 fp32|1 split|2", "KIND",
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
    const char *lines[] = {"-w none", "-w 0", "-w fp32", "--master=1", "-w split", "--master 2"};
    for (int i = 0; i < 6; i++) { assert_int_equal(parse(lines[i]).master, i / 2); }
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
        {"-micro-batch 4", "unknown flag -micro-batch;"},
        {"--b 4", "unknown flag --b;"},
        {"-b=4", "unknown flag -b=4;"},
        {"--ps host", "unknown flag --ps;"},
        {"--", "unknown flag --;"},
        {"-", "unknown flag -;"},
        {"--=4", "unknown flag --=4;"},
        {"--%s%n 4", "unknown flag --%s%n;"},
        // one of ours, spelled another way
        {"--micro_batch=4", "unknown flag --micro_batch=4; here it is -b or --micro-batch N; --help lists all flags"},
        {"-micro-batch 4", "unknown flag -micro-batch; here it is -b or --micro-batch N; --help lists all flags"},
        {"--b 4", "unknown flag --b; here it is -b or --micro-batch N; --help lists all flags"},
        {"-x=-1", "unknown flag -x=-1; here it is -x or --max-steps N; --help lists all flags"},
        {"-seed 4", "unknown flag -seed; here it is --seed N; --help lists all flags"},
        {"-plan", "unknown flag -plan; here it is --plan[=FORMAT]; --help lists all flags"},
        {"--check_twice", "unknown flag --check_twice; --help lists all flags"},
        // another trainer's
        {"--batch_size 4",
         "unknown flag --batch_size; here it is -b N (--micro-batch), the sequences of a micro-batch; "
         "--help lists all flags"},
        {"--per-device-train-batch-size=4", "here it is -b N (--micro-batch)"},
        {"-bs 4", "unknown flag -bs; here it is -b N"},
        {"--dropout 0.1", "unknown flag --dropout; this trainer has no dropout: leave it out; --help lists all flags"},
        {"--num_train_epochs 3", "here it is -x N (--max-steps), in updates; -x -1, the default, is one epoch"},
        {"--fp16", "the type is chosen when building, make PRECISION=bf16"},
        {"--wandb", "scripts/follow.py sends the metrics of -o"},
        {"--gradient-checkpointing", "here it is -r LEVEL (--recompute)"},
        {"--fsdp full_shard", "-z (--zero-stage) shards among them: -z 3 is FSDP"},
        {"--deepspeed ds.json", "mpirun -np N starts N ranks"},
        {"--config a.json", "flags are given on the command line; -o DIR -y 1 takes those of the run in DIR"},
        {"--compile", "unknown flag --compile; leave it out: all kernels are compiled"},
        {"--log_every=10", "unknown flag --log_every=10; leave it out: each step is printed and logged"},
        {"--num_workers 4", "and batches are read as they are needed"},
        {"--batch", "unknown flag --batch; --help lists all flags"},
        {"--bs|wd 4", "unknown flag --bs|wd; --help lists all flags"},
        // no value
        {"-b", "-b " TAKES_B "nothing follows it (--help lists all flags)"},
        {"--micro-batch", "--micro-batch " TAKES_B "nothing follows it (--help lists all flags)"},
        {"-b -d 5", "-b " TAKES_B "it is followed by '-d'"},
        {"-o --plan", "-o takes DIR; it is followed by '--plan'"},
        {"-o -dir", "-o takes DIR; it is followed by '-dir'"},
        {"-q -inf", "-q " TAKES_Q "it is followed by '-inf'"},
        // not a whole number
        {"-b many", "-b " TAKES_B "found 'many'"},
        {"--micro-batch=many", "--micro-batch " TAKES_B "found 'many'"},
        {"--micro-batch=", "--micro-batch " TAKES_B "found ''"},
        {"-b ''", "found ''"},
        {"-b 4x", "found '4x'"},
        {"-b 4.0", "found '4.0'"},
        {"-b 5e2", "found '5e2'"},
        {"-b 0x10", "found '0x10'"},
        {"-b +4", "found '+4'"},
        {"-b nan", "found 'nan'"},
        {"-x -", "found '-'"},
        {"-x=-1", "unknown flag -x=-1"},
        {"--max-steps=--1", "--max-steps takes a whole number from -1 to 2147483647; found '--1'"},
        // out of bounds
        {"-b 0", "-b " TAKES_B "found '0'"},
        {"-b -1", "-b " TAKES_B "found '-1'"},
        {"-b 65537", "found '65537'"},
        {"-b 4294967297", "found '4294967297'"},
        {"-x -2", "-x takes a whole number from -1 to 2147483647; found '-2'"},
        {"-nk 2147483648", "found '2147483648'"},
        {"-d -1", "-d takes a whole number from 0 to 1e+15; found '-1'"},
        {"-d 2000000000000000000", "found '2000000000000000000'"},
        {"--seed=1000000000000000", "found '1000000000000000'"},
        {"--seed=99999999999999999999999", "--seed takes a whole number from 0"},
        {"-l -1e-9", "-l takes a number from 0 to 1000; found '-1e-9'"},
        {"-q 1.0000001", "-q " TAKES_Q "found '1.0000001'"},
        {"-q -0.6", "-q " TAKES_Q "found '-0.6'"},
        // not a number
        {"-l nan", "-l takes a number from 0 to 1000; found 'nan'"},
        {"-l inf", "found 'inf'"},
        {"--lr=-inf", "found '-inf'"},
        {"-l 1e999", "found '1e999'"},
        {"-l 1e-4x", "found '1e-4x'"},
        {"-l 1e", "found '1e'"},
        {"-l .", "found '.'"},
        {"-l 0x1p3", "found '0x1p3'"},
        {"-l 1,5", "found '1,5'"},
        {"-l ''", "found ''"},
        // not one of the choices
        {"-k cos", "-k takes one of cosine, linear, constant, wsd; found 'cos'"},
        {"-k cosines", "found 'cosines'"},
        {"-k Cosine", "found 'Cosine'"},
        {"-k ''", "found ''"},
        {"-k 0", "found '0'"},
        {"-w 3", "-w takes one of none|0, fp32|1, split|2; found '3'"},
        {"-w none|0", "found 'none|0'"},
        {"--plan=yaml", "--plan takes nothing, or after = one of json, csv; found 'yaml'"},
        {"--plan=", "--plan takes nothing, or after = one of json, csv; found ''"},
        {"--help=me", "--help takes no value; found 'me'"},
        {"--help b", "stray argument 'b'"},
        // removed
        {"-lc 4", "unknown flag -lc; the number of logits computed at once follows from"},
        {"--verify-step", "unknown flag --verify-step; the tests prove that a step is repeatable"},
        {"--verify-step=4", "unknown flag --verify-step=4; the tests"},
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

// the text that a function prints; the caller frees it
static char *printed_help(void) {
    char *text = NULL;
    size_t size = 0;
    Values usual = default_values();
    FILE *file = open_memstream(&text, &size);
    flags_print_help(file, "usage: train_gpt2 [flags]", TABLE, ROWS, &usual);
    fclose(file);
    return text;
}

static char *printed_banner(Values values, bool explained) {
    char *text = NULL;
    size_t size = 0;
    Values usual = default_values();
    FILE *file = open_memstream(&text, &size);
    flags_print_banner(file, TABLE, ROWS, &values, &usual, explained);
    fclose(file);
    return text;
}

TEST(test_help) {
    const char *expected = "usage: train_gpt2 [flags]\n"
                           "\nData\n"
                           "  -b   --micro-batch N       sequences per micro-batch (default 4)\n"
                           "  -d   --total-tokens N      tokens per update (default 524288)\n"
                           "  -o   --output DIR          run directory\n"
                           "  -ps  --server HOST         a letter of two characters\n"
                           "\nOptimizer\n"
                           "  -x   --max-steps N         updates (default -1: one epoch)\n"
                           "  -nk  --keep N              keep the last N checkpoints (default 0: all of them)\n"
                           "  -k   --schedule NAME       schedule (default cosine)\n"
                           "  -l   --lr X                learning rate (default 0.0003)\n"
                           "  -q   --final-fraction X    final learning rate (default 0.1)\n"
                           "  -w   --master KIND         master weights (default fp32; none for none)\n"
                           "       --seed N              seed (default 42)\n"
                           "\nOther\n"
                           "       --plan[=FORMAT]       print the plan\n"
                           "  -?   --help                print this\n";
    char *text = printed_help();
    assert_string_equal(text, expected);
    free(text);
}

TEST(test_banner) {
    char *text = printed_banner(parse("-b 8 -l 0.1 -k cosine -o run --plan -w 2"), false);
    assert_string_equal(text, "flags     micro-batch 8  output run  lr 0.1  master split  plan yes\n");
    free(text);
    text = printed_banner(parse("-b 8 -o run --seed 7"), true);
    assert_string_equal(text, "          --micro-batch        8              sequences per micro-batch\n"
                              "          --output             run            run directory\n"
                              "          --seed               7              seed\n");
    free(text);
    text = printed_banner(default_values(), false);
    assert_string_equal(text, "");
    free(text);
}

// A terminal of 33 columns: the line of lr is full, and a flag that is longer than a line has one to itself.
TEST(test_the_banner_on_a_terminal) {
    Values usual = default_values(), values = parse("-b 8 -l 0.1 -k linear -w 2 --seed 123456789012345");
    values.output = "a folder in a folder in a folder";
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    struct winsize size = {24, 33, 0, 0};
    assert_int_equal(grantpt(terminal) | unlockpt(terminal) | ioctl(terminal, TIOCSWINSZ, &size), 0);
    FILE *file = fopen(ptsname(terminal), "w");
    assert_non_null(file);
    flags_print_banner(file, TABLE, ROWS, &values, &usual, false);
    fclose(file);  // then a read of the terminal ends
    char text[512] = "";
    for (ssize_t length = 0, more = 1; more > 0; length += more) {
        more = read(terminal, text + length, sizeof text - 1 - (size_t)length);
    }
    assert_string_equal(text, "flags     micro-batch 8\r\n"
                              "          output a folder in a folder in a folder\r\n"
                              "          schedule linear  lr 0.1\r\n"
                              "          master split\r\n"
                              "          seed 123456789012345\r\n");
    close(terminal);
}

TEST(test_json) {
    // numbers that cJSON itself would print without their last digits
    Values v = parse("-d 999999999999999 --seed 999999999999999 -l 0.30000000000000004 -k wsd -o a\"b --plan=json");
    char *text = json_text(v);
    assert_string_equal(text,
                        "{\"micro-batch\":4,\"total-tokens\":999999999999999,\"output\":\"a\\\"b\",\"server\":\"\","
                        "\"max-steps\":-1,\"keep\":0,\"schedule\":\"wsd\",\"lr\":0.30000000000000004,"
                        "\"final-fraction\":0.1,\"master\":\"fp32\",\"seed\":999999999999999,"
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
                       "-l 0.30000000000000004 -q -0.5 -w split --seed 999999999999999 --plan=json -?";
    Values v = parse(line);
    char *text = json_text(v);
    Values read = values_from(text);
    assert_null(read.help);  // not resumed
    read.help = v.help;
    assert_same_values(read, v);
    assert_int_equal(read.master, 2);
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
        const char *member, *words;
    } rows[] = {
        // types
        {"\"micro-batch\":\"8\"", "has \"8\" as \"micro-batch\", which takes a whole number from 1 to 65536; fix"},
        {"\"micro-batch\":true", "has true as"},
        {"\"micro-batch\":null", "has null as"},
        {"\"micro-batch\":[8]", "has [8] as"},
        {"\"micro-batch\":{\"micro-batch\":8}", "has {\"micro-batch\":8} as"},
        {"\"lr\":\"0.1\"", "as \"lr\", which takes a number"},
        {"\"lr\":false", "has false as"},
        {"\"lr\":null", "has null as"},
        {"\"lr\":[]", "has [] as"},
        {"\"output\":1", "has 1 as \"output\""},
        {"\"output\":true", "has true as"},
        {"\"output\":[\"a\"]", "has [\"a\"] as"},
        {"\"schedule\":1", "has 1 as \"schedule\""},
        {"\"schedule\":null", "has null as"},
        {"\"master\":3", "has 3 as \"master\""},
        {"\"master\":0.5", "has 0.5 as"},
        {"\"plan\":true", "has true as"},
        // numbers
        {"\"micro-batch\":0", "has 0 as"},
        {"\"micro-batch\":65537", "has 65537 as"},
        {"\"micro-batch\":-4", "has -4 as"},
        {"\"micro-batch\":8.5", "has 8.5 as"},
        {"\"micro-batch\":4294967304", "has 4294967304 as"},
        {"\"micro-batch\":1e999", "as \"micro-batch\""},
        {"\"max-steps\":-2", "has -2 as"},
        {"\"keep\":2147483648", "has 2147483648 as"},
        {"\"keep\":1e300", "as \"keep\""},
        {"\"seed\":-1", "has -1 as"},
        {"\"seed\":1e19", "as \"seed\""},
        {"\"seed\":-1e999", "as \"seed\""},
        {"\"seed\":9007199254740993", "as \"seed\""},
        {"\"total-tokens\":0.1", "has 0.1 as"},
        {"\"lr\":-1e-9", "as \"lr\""},
        {"\"lr\":1e999", "as \"lr\""},
        {"\"lr\":-1e999", "as \"lr\""},
        {"\"final-fraction\":1.0000001", "as \"final-fraction\""},
        // words
        {"\"schedule\":\"cosines\"", "has \"cosines\" as \"schedule\", which takes one of"},
        {"\"schedule\":\"\"", "has \"\" as"},
        {"\"master\":\"none|0\"", "has \"none|0\" as"},
        {"\"plan\":\"yaml\"", "has \"yaml\" as \"plan\""}};
    for (size_t i = 0; i < LEN(rows); i++) {
        char text[128];
        snprintf(text, sizeof text, "{%s}", rows[i].member);
        assert_stops(EXIT_BAD_INPUT, rows[i].words, read_text_of_flags, text);
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

static void read_number_nan(void *name) {
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, (const char *)name, NAN);
    Values v = default_values();
    flags_from_json(TABLE, ROWS, &v, json, "config.json");
}

// a cJSON number can be NaN, though the JSON text cannot
TEST(test_json_nan) {
    const char *names[] = {"micro-batch", "seed", "lr", "final-fraction"};
    for (int i = 0; i < 4; i++) { assert_stops(EXIT_BAD_INPUT, names[i], read_number_nan, (void *)names[i]); }
}

// a string longer than any buffer inside
TEST(test_json_huge_strings) {
    enum { HUGE_LENGTH = 1 << 20 };
    char *huge = (char *)malloc(HUGE_LENGTH + 1);
    memset(huge, '1', HUGE_LENGTH);
    huge[HUGE_LENGTH] = 0;
    const char *names[] = {"output", huge};
    cJSON *json = cJSON_CreateObject();
    for (int i = 0; i < 2; i++) { cJSON_AddStringToObject(json, names[i], huge); }
    Values v = default_values(), expected = default_values();
    flags_from_json(TABLE, ROWS, &v, json, "config.json");
    expected.output = huge;
    assert_same_values(v, expected);
    cJSON_Delete(json);
    free(huge);
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
