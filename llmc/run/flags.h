/*
Command-line flags from one table: a row per flag drives parsing, --help, the banner and config.json.
  -b 4, --micro-batch 4 and --micro-batch=4 are the same. A letter matches as a whole word: -bx is not -b x.
  A separate value may be a negative number (-x -1). Any other value with a leading dash needs the = form.
  The last occurrence wins, so flags appended to a script's command override its own. A GLOB may be given only once.
  An option takes its value joined only: --plan or --plan=json.

  type          field            accepts
  FLAG_INT      int              -?[0-9]+ within min..max
  FLAG_INT64    int64_t          the same, below 2^53
  FLAG_REAL     double           a decimal number, exponent allowed, within min..max; neither nan nor inf
  FLAG_STRING   const char *     any text; points into argv, or into the JSON it came from
  FLAG_CHOICE   int              a word of `choices`, stored as its index; "none|0 split|1": two spellings of each
  FLAG_OPTION   const char *     no value (stored as ""), =word of `choices`, or =number if min < max; absent: NULL

Every error is one sentence with the flag and the values it takes; the exit status is 2.
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "llmc/common/check.h"
#include "llmc/common/json_file.h"

typedef enum { FLAG_INT, FLAG_INT64, FLAG_REAL, FLAG_STRING, FLAG_CHOICE, FLAG_OPTION } FlagType;

typedef struct {
    const char *letter;  // "b", "nk"; NULL: none
    const char *name;    // "micro-batch"; NULL: the row is a heading, its text in `help`
    FlagType type;
    size_t offset;           // of the field in the struct of values
    double min, max;         // bounds of a number, inclusive, in the range of the type
    const char *choices;     // words separated by one space; NULL: none
    const char *value_name;  // "N", "FILE"
    const char *help;        // one line for --help; %s stands for the default
    bool not_resumed;        // the flag is for one start: flags_from_json leaves the field alone
} Flag;

enum { NOT_RESUMED = true };

#define FLAG_HEADING(text)                                                                                             \
    { NULL, NULL, FLAG_STRING, 0, 0, 0, NULL, NULL, text }

enum { FLAG_TEXT = 256 };  // bytes of a value's text

// ---- a row as text

static inline bool flag_is_number(const Flag *flag) { return flag->type <= FLAG_REAL; }

static inline bool flag_is_whole(const Flag *flag) { return flag->type == FLAG_INT || flag->type == FLAG_INT64; }

// an option with a number as value
static inline bool flag_is_amount(const Flag *flag) { return flag->type == FLAG_OPTION && flag->min < flag->max; }

// 15 digits, or as many as read back as the same double
static inline void flag_real_text(double x, char text[FLAG_TEXT]) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, FLAG_TEXT, "%.*g", digits, x);
        if (strtod(text, NULL) == x) { return; }
    }
}

// the values that a flag takes: "a whole number from 1 to 8", "one of cosine, linear, wsd"
static inline void flag_takes_text(const Flag *flag, char text[FLAG_TEXT]) {
    char low[FLAG_TEXT], high[FLAG_TEXT];
    bool is_option = flag->type == FLAG_OPTION;
    const char *joined = is_option ? "nothing, or after = " : "";
    flag_real_text(flag->min, low);
    flag_real_text(flag->max, high);
    if (flag_is_number(flag) || flag_is_amount(flag)) {
        const char *whole = flag_is_whole(flag) ? "whole " : "";
        snprintf(text, FLAG_TEXT, "%sa %snumber from %.99s to %.99s", joined, whole, low, high);
    } else if (flag->choices) {
        size_t n = (size_t)snprintf(text, FLAG_TEXT, "%sone of ", joined);
        for (const char *c = flag->choices; *c && n < FLAG_TEXT; c++) {
            n += (size_t)snprintf(text + n, FLAG_TEXT - n, *c == ' ' ? ",%c" : "%c", *c);
        }
    } else {
        snprintf(text, FLAG_TEXT, "%s", is_option ? "no value" : flag->value_name);
    }
}

// "--micro-batch N", "--plan[=json]", "--version"
static inline void flag_usage_text(const Flag *flag, char text[FLAG_TEXT]) {
    const char *value = flag->value_name;
    snprintf(text, FLAG_TEXT, "--%s", flag->name);
    if (!value) { return; }
    snprintf(text, FLAG_TEXT, flag->type == FLAG_OPTION ? "--%s[=%s]" : "--%s %s", flag->name, value);
}

// ---- the value of a row

// index of the choice spelled `text`, or -1
static inline int flag_choice_index(const char *choices, const char *text) {
    int index = 0;
    for (const char *word = choices; *word;) {
        size_t length = strcspn(word, " |");
        if (strlen(text) == length && memcmp(word, text, length) == 0) { return index; }
        word += length;
        index += *word == ' ';
        word += *word != 0;
    }
    return -1;
}

// the first spelling of choice `index`
static inline void flag_choice_text(const char *choices, int index, char text[FLAG_TEXT]) {
    for (; index > 0; index--) { choices += strcspn(choices, " ") + 1; }
    snprintf(text, FLAG_TEXT, "%.*s", (int)strcspn(choices, " |"), choices);
}

// the field as on the command line; NULL for an absent option or string
static inline const char *flag_value_text(const Flag *flag, const void *values, char text[FLAG_TEXT]) {
    const void *field = (const char *)values + flag->offset;
    switch (flag->type) {
    case FLAG_INT: snprintf(text, FLAG_TEXT, "%d", *(const int *)field); break;
    case FLAG_INT64: snprintf(text, FLAG_TEXT, "%lld", (long long)*(const int64_t *)field); break;
    case FLAG_REAL: flag_real_text(*(const double *)field, text); break;
    case FLAG_CHOICE: flag_choice_text(flag->choices, *(const int *)field, text); break;
    case FLAG_STRING:
    case FLAG_OPTION: return *(const char *const *)field;
    }
    return text;
}

// False if `text` is no decimal number within the bounds of the flag.
static inline bool flag_read_number(const Flag *flag, double *value, const char *text) {
    const char *allowed = flag_is_whole(flag) ? "-0123456789" : "+-.0123456789eE";  // strtod also takes "nan", "0x1p3"
    char *end;
    *value = strtod(text, &end);
    return *text && !text[strspn(text, allowed)] && !*end && *value >= flag->min && *value <= flag->max;
}

// False, and nothing stored, if the flag does not take `text`.
static inline bool flag_store(const Flag *flag, void *values, const char *text) {
    void *field = (char *)values + flag->offset;
    double number = 0;
    int index = flag->choices ? flag_choice_index(flag->choices, text) : -1;
    bool is_number = flag_is_number(flag) || flag_is_amount(flag);
    if (is_number ? !flag_read_number(flag, &number, text) : flag->type != FLAG_STRING && index < 0) { return false; }
    switch (flag->type) {
    case FLAG_INT: *(int *)field = (int)number; break;
    case FLAG_INT64: *(int64_t *)field = (int64_t)number; break;
    case FLAG_REAL: *(double *)field = number; break;
    case FLAG_CHOICE: *(int *)field = index; break;
    case FLAG_STRING:
    case FLAG_OPTION: *(const char **)field = text; break;
    }
    return true;
}

// ---- parsing

// the row with the first `length` characters of `word` as its name or letter, or NULL
static inline const Flag *flag_find(const Flag *table, int count, const char *word, size_t length, bool by_letter) {
    for (int i = 0; i < count; i++) {
        const char *spelling = by_letter ? table[i].letter : table[i].name;
        if (spelling && strlen(spelling) == length && memcmp(spelling, word, length) == 0) { return &table[i]; }
    }
    return NULL;
}

// Flags of earlier versions, and what does their job now.
// clang-format off
static const struct {
    const char *names, *answer;
} removed_flags[] = {
    {"eval-task stride", "the windows of --eval do not overlap; lm-evaluation-harness has tasks (doc/evaluation.md)"},
    {"prompt-file past-end chat",
     "--generate N continues --prompt TEXT or @FILE until end-of-text; llama.cpp chats with what --export gguf writes"},
    {"offload-pageable link", "--offload pins its memory (ulimit -l), and make predict times a step on each link"},
    {"separator shard-tokens", "documents end at a line that is <|endoftext|>, and shards have 100 million tokens"},
    {"skip-bad", "jq -cR 'fromjson?' FILE writes the lines that are JSON"},
    {"type", "--export keeps the type of the weights; llama.cpp's llama-quantize changes it"},
    {"save-sync strict-save", "a save ends before the next step; a failed one is a warning, and at the end status 1"},
    {"lc classifier-rows", "the number of logits computed at once follows from -b, -t and the memory"},
    {"max-skips comm-timeout", "a run ends after 20 skipped updates in a row, and when a rank is silent for 600 s"},
    {"verify-step check-replicas", "the tests prove that a step is repeatable and that ranks hold the same bits"},
    {"ps server secret-file", "start the ranks with mpirun, or with -pi fs and a shared folder of your own, -pf DIR"},
    {"threads", "OMP_NUM_THREADS=N sets the number of threads: OMP_NUM_THREADS=4 train_gpt2 ..."},
    {"manual", "--help lists the flags"},
};
// clang-format on

// True for -w fp32 of version 1.0, which an old config.json may have: it had the bits of split in twice the memory.
static inline bool flag_means_split(const Flag *flag, const char *value) {
    return strcmp(flag->name, "master") == 0 && strcmp(value, "fp32") == 0;
}

// Returns what an error adds about a value that was removed: what replaces it. "" for other values.
static inline const char *removed_value(const Flag *flag, const char *value) {
    bool all_levels = strcmp(flag->name, "recompute") == 0 && strcmp(value, "all") == 0;
    return flag_means_split(flag, value) ? ", now replaced by split"
           : all_levels                  ? "; --plan -r N prints one level"
                                         : "";
}

// Stops at an argument that is no flag. The error says what does the job of a removed one.
__attribute__((noreturn)) static inline void flag_unknown(const char *argument) {
    char name[FLAG_TEXT];
    const char *bare = argument + strspn(argument, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(bare, "="), bare);
    for (size_t i = 0; i < sizeof removed_flags / sizeof *removed_flags; i++) {
        if (flag_choice_index(removed_flags[i].names, name) < 0) { continue; }
        input_error("flag %s was removed; %s; --help lists all flags", argument, removed_flags[i].answer);
    }
    input_error("unknown flag %s; --help lists all flags", argument);
}

// Parses the flag at argv[0]; argc arguments are left. given: of each row. Returns the number of arguments read.
static inline int flag_parse(const Flag *table, int count, void *values, int argc, char **argv, bool *given) {
    const char *argument = argv[0];
    if (argument[0] != '-') {
        input_error("stray argument '%s': give a value as -x value or --name value, an optional value as --name=value; "
                    "put a pattern for several files in quotes",
                    argument);
    }
    // only a long name can be followed by =
    bool by_letter = argument[1] != '-';
    int dashes = by_letter ? 1 : 2, length = (int)(by_letter ? strlen(argument) : strcspn(argument, "="));
    const Flag *flag = flag_find(table, count, argument + dashes, (size_t)(length - dashes), by_letter);
    if (!flag) { flag_unknown(argument); }
    const char *joined = argument[length] == '=' ? argument + length + 1 : NULL;
    if (flag->type == FLAG_OPTION && !joined) {
        *(const char **)((char *)values + flag->offset) = "";
        return 1;
    }
    char takes[FLAG_TEXT];
    flag_takes_text(flag, takes);
    if (!joined && argc == 1) {
        input_error("%s takes %s; nothing follows it (--help lists all flags)", argument, takes);
    }
    const char *value = joined ? joined : argv[1];
    if (!joined && value[0] == '-' && value[1] && !strchr(".0123456789", value[1])) {
        input_error("%s takes %s; it is followed by '%s'", argument, takes, value);
    }
    if (given[flag - table] && strcmp(flag->value_name, "GLOB") == 0) {
        input_error("%.*s is given twice, the second time as '%s'; give several files as one pattern in quotes, such "
                    "as 'data/*.txt' or '[ab].txt'",
                    length, argument, value);
    }
    given[flag - table] = true;
    if (!flag_store(flag, values, value)) {
        input_error("%.*s takes %s; found '%s'%s", length, argument, takes, value, removed_value(flag, value));
    }
    return joined ? 1 : 2;
}

// Sets fields of `values`, which hold the defaults, from the arguments after argv[0].
static inline void flags_parse(const Flag *table, int count, void *values, int argc, char **argv) {
    bool *given = (bool *)xcalloc((size_t)count, sizeof *given);
    for (int i = 1; i < argc;) { i += flag_parse(table, count, values, argc - i, argv + i, given); }
    free(given);
}

// ---- help

enum { HELP_LETTERS = 2, HELP_USAGE = 20 };  // widths of the first two columns

// One line per flag: letter, name and value, and what it does. Headings separate the groups.
static inline void flags_print_help(FILE *file, const char *usage, const Flag *table, int count, const void *defaults) {
    char text[FLAG_TEXT];
    fprintf(file, "%s\n", usage);
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        if (!flag->name) {
            fprintf(file, "\n%s\n", flag->help);
            continue;
        }
        flag_usage_text(flag, text);
        fprintf(file, "  %s%-*s  %-*s  ", flag->letter ? "-" : " ", HELP_LETTERS, flag->letter ? flag->letter : "",
                HELP_USAGE, text);
        const char *place = strstr(flag->help, "%s"), *value = flag_value_text(flag, defaults, text);
        int length = place ? (int)(place - flag->help) : (int)strlen(flag->help);
        fprintf(file, "%.*s%s%s\n", length, flag->help, place && value ? value : "", place ? place + 2 : "");
    }
}

// ---- banner

// the value as text if it differs from the default, else NULL; "none" and "yes" stand for empty ones
static inline const char *flag_changed_text(const Flag *flag, const void *values, const void *defaults,
                                            char text[FLAG_TEXT]) {
    char buffer[FLAG_TEXT];
    if (!flag->name) { return NULL; }
    const char *value = flag_value_text(flag, values, text), *usual = flag_value_text(flag, defaults, buffer);
    bool same = value && usual ? strcmp(value, usual) == 0 : value == usual;
    if (same) { return NULL; }
    return value && *value ? value : flag->type == FLAG_OPTION ? "yes" : "none";
}

// Prints the flags that differ from their defaults, in one line.
static inline void flags_print_banner(FILE *file, const Flag *table, int count, const void *values,
                                      const void *defaults) {
    const char *before = "flags   ", *after = "";
    for (int i = 0; i < count; i++) {
        char text[FLAG_TEXT];
        const char *value = flag_changed_text(&table[i], values, defaults, text);
        if (!value) { continue; }
        fprintf(file, "%s  %s %s", before, table[i].name, value);
        before = "", after = "\n";
    }
    fputs(after, file);
}

// ---- config.json

// {"micro-batch": 4, "schedule": "cosine", "output": null, ...} in the order of the table, with exact numbers. A choice
// spelled in digits is a number too. An absent option is left out. The caller deletes the object.
static inline cJSON *flags_to_json(const Flag *table, int count, const void *values) {
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        char buffer[FLAG_TEXT];
        if (!flag->name) { continue; }
        const char *text = flag_value_text(flag, values, buffer);
        if (flag->type == FLAG_OPTION && !text) { continue; }
        bool digits = flag->type == FLAG_CHOICE && !text[strspn(text, "0123456789")];
        bool number = flag_is_number(flag) || digits;
        // raw text, because cJSON prints numbers without their last bits
        cJSON *item = number ? cJSON_CreateRaw(text) : text ? cJSON_CreateString(text) : cJSON_CreateNull();
        if (!cJSON_AddItemToObject(object, flag->name, item)) { run_error("out of host memory for config.json"); }
    }
    return object;
}

// The inverse of flags_to_json; flags that are not resumed keep their values. So does a flag without an item, since the
// file may be of another version. Stops at a value that the flag does not take on the command line; path: the file's.
// Strings point into `json`: delete it after the last use of `values`.
static inline void flags_from_json(const Flag *table, int count, void *values, const cJSON *json, const char *path) {
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        if (!flag->name || flag->not_resumed) { continue; }
        char number[FLAG_TEXT], takes[FLAG_TEXT];
        const cJSON *item = json_get(json, flag->name);
        bool is_text = flag->type == FLAG_STRING || flag->type == FLAG_OPTION;
        const char *text = flag_is_number(flag) ? NULL : cJSON_GetStringValue(item);
        if (!item || (is_text && cJSON_IsNull(item))) { continue; }
        if (cJSON_IsNumber(item) && !is_text) {
            flag_real_text(item->valuedouble, number);
            text = number;
        }
        if (text && flag_means_split(flag, text)) { text = "split"; }
        if (text && !*text && flag->type == FLAG_OPTION) {
            *(const char **)((char *)values + flag->offset) = text;
        } else if (!text || !flag_store(flag, values, text)) {
            flag_takes_text(flag, takes);
            input_error("'%s' has %.60s as \"%s\", which takes %s; fix the file", path, cJSON_PrintUnformatted(item),
                        flag->name, takes);
        }
    }
}
