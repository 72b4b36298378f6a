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
    double min, max;         // bounds of a number, inclusive; for integers cut to the range of the type
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

static inline long long flag_whole_bound(const Flag *flag, double bound) {
    long long lowest = flag->type == FLAG_INT ? INT_MIN : LLONG_MIN;
    long long highest = flag->type == FLAG_INT ? INT_MAX : LLONG_MAX;
    if (bound <= (double)lowest) { return lowest; }
    return bound >= (double)highest ? highest : (long long)bound;
}

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
    char *end = plain + strlen(plain);
    while (end[-1] == '0') { *--end = 0; }
    if (end[-1] == '.') { end[-1] = 0; }
    snprintf(text, FLAG_TEXT, "%s", plain);
}

// "from 1 to 8"
static inline void flag_bounds_text(const Flag *flag, char text[FLAG_TEXT]) {
    if (flag->type == FLAG_INT || flag->type == FLAG_INT64) {
        snprintf(text, FLAG_TEXT, "from %lld to %lld", flag_whole_bound(flag, flag->min),
                 flag_whole_bound(flag, flag->max));
        return;
    }
    char low[FLAG_TEXT], high[FLAG_TEXT];
    flag_real_text(flag->min, low);
    flag_real_text(flag->max, high);
    snprintf(text, FLAG_TEXT, "from %.99s to %.99s", low, high);
}

// "cosine, linear or wsd"
static inline void flag_choices_text(const char *choices, char text[FLAG_TEXT]) {
    const char *last = strrchr(choices, ' ');
    size_t length = 0;
    for (const char *c = choices; *c && length < FLAG_TEXT - 8; c++) {
        const char *separator = *c != ' ' ? NULL : c == last ? " or " : ", ";
        length += (size_t)(separator ? snprintf(text + length, FLAG_TEXT - length, "%s", separator)
                                     : snprintf(text + length, FLAG_TEXT - length, "%c", *c));
    }
    text[length] = 0;
}

// the values a flag takes, as in "-b takes a whole number from 1 to 8"
static inline void flag_takes_text(const Flag *flag, char text[FLAG_TEXT]) {
    char detail[FLAG_TEXT];
    if (flag->choices) {
        flag_choices_text(flag->choices, detail);
    } else {
        flag_bounds_text(flag, detail);
    }
    switch (flag->type) {
    case FLAG_INT:
    case FLAG_INT64: snprintf(text, FLAG_TEXT, "a whole number %.200s", detail); return;
    case FLAG_REAL: snprintf(text, FLAG_TEXT, "a number %.200s", detail); return;
    case FLAG_CHOICE: snprintf(text, FLAG_TEXT, "%s", detail); return;
    case FLAG_STRING: snprintf(text, FLAG_TEXT, "%s", flag->value_name); return;
    case FLAG_REMOVED: return;
    case FLAG_OPTION: break;
    }
    if (flag->choices || flag_is_amount(flag)) {
        snprintf(text, FLAG_TEXT, "nothing or =%s%.200s", flag->choices ? "" : "a number ", detail);
    } else {
        snprintf(text, FLAG_TEXT, "no value");
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

static inline void *flag_field(const Flag *flag, void *values) { return (char *)values + flag->offset; }

static inline const char *flag_string(const Flag *flag, const void *values) {
    const void *field = (const char *)values + flag->offset;
    return *(const char *const *)field;
}

static inline void flag_store_string(const Flag *flag, void *values, const char *string) {
    *(const char **)flag_field(flag, values) = string;
}

// the field as on the command line; NULL for an absent option or string
static inline const char *flag_value_text(const Flag *flag, const void *values, char text[FLAG_TEXT]) {
    const void *field = (const char *)values + flag->offset;
    switch (flag->type) {
    case FLAG_INT: snprintf(text, FLAG_TEXT, "%d", *(const int *)field); return text;
    case FLAG_INT64: snprintf(text, FLAG_TEXT, "%lld", (long long)*(const int64_t *)field); return text;
    case FLAG_REAL: flag_real_text(*(const double *)field, text); return text;
    case FLAG_CHOICE: flag_choice_text(flag->choices, *(const int *)field, text); return text;
    case FLAG_STRING:
    case FLAG_OPTION:
    case FLAG_REMOVED: break;
    }
    return flag_string(flag, values);
}

static inline bool flag_read_whole(const Flag *flag, long long *value, const char *text) {
    const char *digits = text + (*text == '-');
    if (!*digits || digits[strspn(digits, "0123456789")]) { return false; }
    errno = 0;
    *value = strtoll(text, NULL, 10);
    return !errno && *value >= flag_whole_bound(flag, flag->min) && *value <= flag_whole_bound(flag, flag->max);
}

static inline bool flag_read_real(const Flag *flag, double *value, const char *text) {
    if (!*text || text[strspn(text, "+-.0123456789eE")]) { return false; }  // strtod also takes " 1", "nan", "0x1p3"
    char *end;
    *value = strtod(text, &end);
    return !*end && isfinite(*value) && *value >= flag->min && *value <= flag->max;
}

// False, and nothing stored, if the flag does not take `text`.
static inline bool flag_store(const Flag *flag, void *values, const char *text) {
    void *field = flag_field(flag, values);
    int index = flag->choices ? flag_choice_index(flag->choices, text) : -1;
    long long whole;
    double real;
    bool taken = true;
    switch (flag->type) {
    case FLAG_INT:
        taken = flag_read_whole(flag, &whole, text);
        if (taken) { *(int *)field = (int)whole; }
        break;
    case FLAG_INT64:
        taken = flag_read_whole(flag, &whole, text);
        if (taken) { *(int64_t *)field = whole; }
        break;
    case FLAG_REAL:
        taken = flag_read_real(flag, &real, text);
        if (taken) { *(double *)field = real; }
        break;
    case FLAG_CHOICE:
        taken = index >= 0;
        if (taken) { *(int *)field = index; }
        break;
    case FLAG_OPTION:
        taken = index >= 0 || (flag_is_amount(flag) && flag_read_real(flag, &real, text));
        if (taken) { flag_store_string(flag, values, text); }
        break;
    case FLAG_STRING: flag_store_string(flag, values, text); break;
    case FLAG_REMOVED: return false;
    }
    return taken;
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

// the argument after a flag as its value; stops if there is none or it looks like the next flag
static inline const char *flag_next_value(const char *argument, const char *takes, const char *next) {
    if (!next) { input_error("%s takes %s; nothing follows it (--help lists all flags)", argument, takes); }
    if (next[0] == '-' && next[1] && !strchr(".0123456789", next[1])) {
        input_error("%s takes %s; it is followed by '%s'", argument, takes, next);
    }
    return next;
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
        flag_store_string(flag, values, "");
        return 1;
    }
    char takes[FLAG_TEXT];
    flag_takes_text(flag, takes);
    const char *value = joined ? joined : flag_next_value(argument, takes, argc > 1 ? argv[1] : NULL);
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

// the help line, with the default in place of %s
static inline void flag_help_text(const Flag *flag, const void *defaults, char text[2 * FLAG_TEXT]) {
    char buffer[FLAG_TEXT];
    const char *place = strstr(flag->help, "%s"), *value = flag_value_text(flag, defaults, buffer);
    int length = (int)(place ? place - flag->help : (ptrdiff_t)strlen(flag->help));
    snprintf(text, 2 * FLAG_TEXT, "%.*s%s%s", length, flag->help, place && value ? value : "", place ? place + 2 : "");
}

// One line per flag: letter, name and value, and what it does. Headings separate the groups.
static inline void flags_print_help(FILE *file, const char *usage, const Flag *table, int count, const void *defaults) {
    int width = 0, letters = 0;
    char text[2 * FLAG_TEXT];
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
        flag_help_text(flag, defaults, text);
        fprintf(file, "%s\n", text);
    }
}

// ---- banner

// Prints the settings that differ from the defaults, or those that equal them, several per line.
static inline void flags_print_settings(FILE *file, const char *title, const Flag *table, int count, const void *values,
                                        const void *defaults, bool differing) {
    int column = 0;
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        char buffer[FLAG_TEXT], default_buffer[FLAG_TEXT];
        if (flag_has_no_value(flag)) { continue; }
        const char *value = flag_value_text(flag, values, buffer);
        const char *usual = flag_value_text(flag, defaults, default_buffer);
        bool same = value && usual ? strcmp(value, usual) == 0 : value == usual;
        if (same == differing || (flag->type == FLAG_OPTION && !value)) { continue; }
        if (!value || !*value) { value = flag->type == FLAG_OPTION ? "yes" : "none"; }
        int length = (int)(strlen(flag_label(flag)) + strlen(value)) + 3;
        if (column == 0 || column + length > FLAG_LINE) {
            column = fprintf(file, "%s%-8s", column ? "\n" : "", column ? "" : title);
        }
        column += fprintf(file, "  %s %s", flag_label(flag), value);
    }
    if (column) { fputc('\n', file); }
}

// Prints the values in effect, several per line: changed values first, then the defaults.
static inline void flags_print_banner(FILE *file, const Flag *table, int count, const void *values,
                                      const void *defaults) {
    flags_print_settings(file, "changed", table, count, values, defaults, true);
    flags_print_settings(file, "default", table, count, values, defaults, false);
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
        bool bare_option = text && !*text && flag->type == FLAG_OPTION;
        if (bare_option) { flag_store_string(flag, values, text); }
        if (text && !bare_option) { flag_store(flag, values, text); }
    }
}
