/*
Command-line flags from one table: a row per flag drives parsing, --help, the banner and config.json.
  -b 4, --micro-batch 4 and --micro-batch=4 are the same. A letter matches as a whole word: -bx is not -b x.
  A separate value may be a negative number (-x -1). Any other value with a leading dash needs the = form.
  The last occurrence of a flag wins, so flags appended to a script's command override the script's own.
  An option takes its value joined only: --plan or --plan=json.

  type          field            accepts
  FLAG_INT      int              -?[0-9]+ within min..max
  FLAG_INT64    int64_t          the same; also fills a uint64_t field when min is 0
  FLAG_REAL     double           a decimal number, exponent allowed, within min..max; neither nan nor inf
  FLAG_STRING   const char *     any text; points into argv, or into the JSON it came from
  FLAG_CHOICE   int              a word of `choices`, stored as its index; "none|0 fp32|1" gives each word two spellings
  FLAG_OPTION   const char *     no value (stored as ""), =word of `choices`, or =number if min < max; absent: NULL
  FLAG_REMOVED  none             nothing: the error is `help`, which says what does its job now

Every error is one sentence with the flag and the values it takes; the exit status is 2.
defines: FlagType, Flag, FLAG_HEADING, FLAG_WAS_REMOVED, flag_choice_index, flag_choice_text, flags_parse,
         flags_print_help, flags_print_banner, flags_to_json, flags_from_json
*/
#pragma once
#include <cjson/cJSON.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"

typedef enum { FLAG_INT, FLAG_INT64, FLAG_REAL, FLAG_STRING, FLAG_CHOICE, FLAG_OPTION, FLAG_REMOVED } FlagType;

typedef struct {
    const char *letter;  // "b", "nk"; NULL: none
    const char *name;    // "micro-batch"; NULL: none. A row with neither is a heading, its text in `help`
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
#define FLAG_WAS_REMOVED(letter, name, instead)                                                                        \
    { letter, name, FLAG_REMOVED, 0, 0, 0, NULL, NULL, instead }

enum { FLAG_TEXT = 256, FLAG_LINE = 110 };  // bytes of a value's text; columns of the banner

// ---- a row as text

static inline bool flag_is_heading(const Flag *flag) { return !flag->letter && !flag->name; }

// a heading or a removed flag
static inline bool flag_has_no_value(const Flag *flag) { return flag_is_heading(flag) || flag->type == FLAG_REMOVED; }

static inline bool flag_is_number(const Flag *flag) { return flag->type <= FLAG_REAL; }

// an option with a number as value
static inline bool flag_is_amount(const Flag *flag) { return flag->type == FLAG_OPTION && flag->min < flag->max; }

static inline const char *flag_label(const Flag *flag) { return flag->name ? flag->name : flag->letter; }

// the fewest digits that read back as the same double
static inline void flag_real_text(double x, char text[FLAG_TEXT]) {
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, FLAG_TEXT, "%.*g", digits, x);
        if (strtod(text, NULL) == x) { break; }
    }
    // plain notation for the usual magnitudes: 0.0003 instead of 3e-04
    char plain[FLAG_TEXT];
    snprintf(plain, sizeof plain, "%.6f", x);
    if (fabs(x) < 1e-4 || fabs(x) >= 1e6 || strtod(plain, NULL) != x) { return; }
    int length = (int)strlen(plain);
    while (plain[length - 1] == '0') { length--; }
    length -= plain[length - 1] == '.';
    snprintf(text, FLAG_TEXT, "%.*s", length, plain);
}

// the values that a flag takes: "a whole number from 1 to 8", "cosine, linear or wsd"
static inline void flag_takes_text(const Flag *flag, char text[FLAG_TEXT]) {
    char low[FLAG_TEXT], high[FLAG_TEXT], values[FLAG_TEXT] = "";
    const char *last = flag->choices ? strrchr(flag->choices, ' ') : NULL;
    for (const char *c = flag->choices; c && *c; c++) {
        size_t length = strlen(values);
        const char *part = *c != ' ' ? c : c == last ? " or " : ", ";
        snprintf(values + length, FLAG_TEXT - length, "%.*s", *c != ' ' ? 1 : 4, part);
    }
    flag_real_text(flag->min, low);
    flag_real_text(flag->max, high);
    switch (flag->type) {
    case FLAG_INT:
    case FLAG_INT64: snprintf(text, FLAG_TEXT, "a whole number from %.0f to %.0f", flag->min, flag->max); return;
    case FLAG_REAL: snprintf(text, FLAG_TEXT, "a number from %.99s to %.99s", low, high); return;
    case FLAG_CHOICE: snprintf(text, FLAG_TEXT, "%s", values); return;
    case FLAG_STRING: snprintf(text, FLAG_TEXT, "%s", flag->value_name); return;
    case FLAG_REMOVED: return;
    case FLAG_OPTION: break;
    }
    if (flag_is_amount(flag)) {
        snprintf(text, FLAG_TEXT, "nothing or =a number from %.99s to %.99s", low, high);
    } else {
        snprintf(text, FLAG_TEXT, flag->choices ? "nothing or =%.200s" : "no value", values);
    }
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
    case FLAG_OPTION:
    case FLAG_REMOVED: return *(const char *const *)field;
    }
    return text;
}

static inline bool flag_read_whole(const Flag *flag, long long *value, const char *text) {
    const char *digits = text + (*text == '-');
    if (!*digits || digits[strspn(digits, "0123456789")]) { return false; }
    errno = 0;
    *value = strtoll(text, NULL, 10);
    return !errno && (double)*value >= flag->min && (double)*value <= flag->max;
}

static inline bool flag_read_real(const Flag *flag, double *value, const char *text) {
    if (!*text || text[strspn(text, "+-.0123456789eE")]) { return false; }  // strtod also takes " 1", "nan", "0x1p3"
    char *end;
    *value = strtod(text, &end);
    return !*end && isfinite(*value) && *value >= flag->min && *value <= flag->max;
}

// False, and nothing stored, if the flag does not take `text`.
static inline bool flag_store(const Flag *flag, void *values, const char *text) {
    void *field = (char *)values + flag->offset;
    int index = flag->choices ? flag_choice_index(flag->choices, text) : -1;
    long long whole = 0;
    double real = 0;
    bool is_whole = flag->type == FLAG_INT || flag->type == FLAG_INT64;
    bool is_real = flag->type == FLAG_REAL || flag_is_amount(flag);
    if (is_whole && !flag_read_whole(flag, &whole, text)) { return false; }
    if (is_real && !flag_read_real(flag, &real, text)) { return false; }
    bool is_word = !is_real && (flag->type == FLAG_CHOICE || flag->type == FLAG_OPTION);
    if (is_word && index < 0) { return false; }
    switch (flag->type) {
    case FLAG_INT: *(int *)field = (int)whole; break;
    case FLAG_INT64: *(int64_t *)field = whole; break;
    case FLAG_REAL: *(double *)field = real; break;
    case FLAG_CHOICE: *(int *)field = index; break;
    case FLAG_STRING:
    case FLAG_OPTION: *(const char **)field = text; break;
    case FLAG_REMOVED: return false;
    }
    return true;
}

// ---- parsing

// Stops with "unknown flag", and the flag that has at least half of its characters in common from the start.
__attribute__((noreturn)) static inline void flag_unknown(const Flag *table, int count, const char *typed) {
    const char *word = typed + strspn(typed, "-"), *suggestion = NULL, *dashes = "";
    size_t length = strcspn(word, "="), longest = 0;
    for (int i = 0; i < count; i++) {
        const char *spelling[2] = {table[i].name, table[i].letter};
        for (int n = 0; n < 2 && table[i].type != FLAG_REMOVED; n++) {
            size_t same = 0;
            while (spelling[n] && spelling[n][same] && spelling[n][same] == word[same]) { same++; }
            if (same <= longest || 2 * same < length || 2 * same <= strlen(spelling[n])) { continue; }
            longest = same;
            suggestion = spelling[n];
            dashes = n == 0 ? "--" : "-";
        }
    }
    if (suggestion) { input_error("unknown flag %s; did you mean %s%s?", typed, dashes, suggestion); }
    input_error("unknown flag %s; --help lists all flags", typed);
}

// the row named by the first `length` characters of an argument, or NULL
static inline const Flag *flag_find(const Flag *table, int count, const char *argument, size_t length) {
    bool is_name = argument[1] == '-';
    size_t dashes = is_name ? 2 : 1;
    for (int i = 0; i < count && length > dashes; i++) {
        const char *spelling = is_name ? table[i].name : table[i].letter;
        if (spelling && strlen(spelling) == length - dashes &&
            memcmp(spelling, argument + dashes, length - dashes) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

// Parses the flag at argv[0]; argc arguments are left. Returns the number of arguments read.
static inline int flag_parse(const Flag *table, int count, void *values, int argc, char **argv) {
    const char *argument = argv[0];
    if (argument[0] != '-') {
        input_error("stray argument '%s': give a value as -x value or --name value, an optional value as --name=value; "
                    "put a pattern for several files in quotes",
                    argument);
    }
    // only a long name can be followed by =
    int length = (int)(argument[1] == '-' ? strcspn(argument, "=") : strlen(argument));
    const Flag *flag = flag_find(table, count, argument, (size_t)length);
    if (!flag) { flag_unknown(table, count, argument); }
    const char *joined = argument[length] == '=' ? argument + length + 1 : NULL;
    if (flag->type == FLAG_REMOVED) { input_error("%.*s was removed: %s", length, argument, flag->help); }
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
    if (!flag_store(flag, values, value)) { input_error("%.*s takes %s; found '%s'", length, argument, takes, value); }
    return joined ? 1 : 2;
}

// Sets fields of `values`, which hold the defaults, from the arguments after argv[0].
static inline void flags_parse(const Flag *table, int count, void *values, int argc, char **argv) {
    for (int i = 1; i < argc;) { i += flag_parse(table, count, values, argc - i, argv + i); }
}

// ---- help

// "--micro-batch N", "--plan[=json]", "--version"
static inline void flag_usage_text(const Flag *flag, char text[FLAG_TEXT]) {
    const char *dashes = flag->name ? "--" : "", *name = flag->name ? flag->name : "";
    if (flag->type != FLAG_OPTION) {
        snprintf(text, FLAG_TEXT, "%s%s%s%s", dashes, name, flag->name ? " " : "", flag->value_name);
    } else if (flag->choices || flag_is_amount(flag)) {
        snprintf(text, FLAG_TEXT, "%s%s[=%s]", dashes, name, flag->value_name);
    } else {
        snprintf(text, FLAG_TEXT, "%s%s", dashes, name);
    }
}

// One line per flag: letter, name and value, and what it does. Headings separate the groups.
static inline void flags_print_help(FILE *file, const char *usage, const Flag *table, int count, const void *defaults) {
    int width = 0, letters = 0;
    char text[FLAG_TEXT];
    for (int i = 0; i < count; i++) {
        if (flag_has_no_value(&table[i])) { continue; }
        flag_usage_text(&table[i], text);
        int length = (int)strlen(text), letter = table[i].letter ? (int)strlen(table[i].letter) : 0;
        width = length > width ? length : width;
        letters = letter > letters ? letter : letters;
    }
    fprintf(file, "%s\n", usage);
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        if (flag->type == FLAG_REMOVED) { continue; }
        if (flag_is_heading(flag)) {
            fprintf(file, "\n%s\n", flag->help);
            continue;
        }
        flag_usage_text(flag, text);
        fprintf(file, "  %s%-*s  %-*s  ", flag->letter ? "-" : " ", letters, flag->letter ? flag->letter : "", width,
                text);
        const char *place = strstr(flag->help, "%s"), *value = flag_value_text(flag, defaults, text);
        int length = place ? (int)(place - flag->help) : (int)strlen(flag->help);
        fprintf(file, "%.*s%s%s\n", length, flag->help, place && value ? value : "", place ? place + 2 : "");
    }
}

// ---- banner

// Prints the values in effect, several per line: changed values first, then the defaults.
static inline void flags_print_banner(FILE *file, const Flag *table, int count, const void *values,
                                      const void *defaults) {
    for (int same = 0; same < 2; same++) {
        int column = 0;
        for (int i = 0; i < count; i++) {
            const Flag *flag = &table[i];
            char buffer[FLAG_TEXT], default_buffer[FLAG_TEXT];
            if (flag_has_no_value(flag)) { continue; }
            const char *value = flag_value_text(flag, values, buffer);
            const char *usual = flag_value_text(flag, defaults, default_buffer);
            bool is_same = value && usual ? strcmp(value, usual) == 0 : value == usual;
            if (is_same != same || (flag->type == FLAG_OPTION && !value)) { continue; }
            if (!value || !*value) { value = flag->type == FLAG_OPTION ? "yes" : "none"; }
            int length = (int)(strlen(flag_label(flag)) + strlen(value)) + 3;
            if (column == 0 || column + length > FLAG_LINE) {
                column = fprintf(file, "%s%-8s", column ? "\n" : "", column ? "" : same ? "default" : "changed");
            }
            column += fprintf(file, "  %s %s", flag_label(flag), value);
        }
        if (column) { fputc('\n', file); }
    }
}

// ---- config.json

// {"micro-batch": 4, "schedule": "cosine", "output": null, ...} in the order of the table, with exact numbers. A choice
// spelled in digits is a number too. An absent option is left out. The caller deletes the object.
static inline cJSON *flags_to_json(const Flag *table, int count, const void *values) {
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        char buffer[FLAG_TEXT];
        if (flag_has_no_value(flag)) { continue; }
        const char *text = flag_value_text(flag, values, buffer);
        if (flag->type == FLAG_OPTION && !text) { continue; }
        bool digits = flag->type == FLAG_CHOICE && !text[strspn(text, "0123456789")];
        bool number = flag_is_number(flag) || digits;
        // raw text, because cJSON prints numbers without their last bits
        cJSON *item = number ? cJSON_CreateRaw(text) : text ? cJSON_CreateString(text) : cJSON_CreateNull();
        if (!cJSON_AddItemToObject(object, flag_label(flag), item)) { run_error("out of host memory for config.json"); }
    }
    return object;
}

// The item as on the command line; NULL if its type is not the one that flags_to_json writes, or if it is an integer
// from 2^53 on, which cJSON may have read inexactly.
static inline const char *flag_item_text(const Flag *flag, const cJSON *item, char text[FLAG_TEXT]) {
    if (flag->type == FLAG_CHOICE ? !cJSON_IsNumber(item) : !flag_is_number(flag)) {
        return cJSON_GetStringValue(item);
    }
    if (!cJSON_IsNumber(item)) { return NULL; }
    double x = item->valuedouble;
    if (flag->type == FLAG_REAL) {
        flag_real_text(x, text);
        return text;
    }
    if (x != floor(x) || fabs(x) >= 9007199254740992.0) { return NULL; }
    snprintf(text, FLAG_TEXT, "%.0f", x);
    return text;
}

// The inverse of flags_to_json, but for flags that are not resumed. A missing, null or invalid item leaves its field as
// it is, since the file may be of another version. Strings point into `json`: delete it after the last use of `values`.
static inline void flags_from_json(const Flag *table, int count, void *values, const cJSON *json) {
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        if (flag_has_no_value(flag) || flag->not_resumed) { continue; }
        char buffer[FLAG_TEXT];
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, flag_label(flag));
        const char *text = flag_item_text(flag, item, buffer);
        if (text && !*text && flag->type == FLAG_OPTION) {
            *(const char **)((char *)values + flag->offset) = text;
        } else if (text) {
            flag_store(flag, values, text);
        }
    }
}
