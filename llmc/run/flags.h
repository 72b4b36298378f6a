/*
Command-line flags from one table: one row per flag drives parsing, --help, the banner and config.json.
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
  FLAG_REMOVED  none             nothing: the flag is refused, and `help` says what does its job now

Every error is one sentence that names the flag and the values it takes, with exit status 2.
defines: FlagType, Flag, FLAG_HEADING, FLAG_WAS_REMOVED, flags_parse, flags_print_help, flag_choice_text,
         flags_print_banner, flags_to_json, flags_from_json
*/
#pragma once
#include <cjson/cJSON.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include "llmc/common/check.h"

typedef enum { FLAG_INT, FLAG_INT64, FLAG_REAL, FLAG_STRING, FLAG_CHOICE, FLAG_OPTION, FLAG_REMOVED } FlagType;

typedef struct {
    const char *letter;  // "b", "nk"; NULL: none
    const char *name;    // "micro-batch"; NULL: none. A row with neither is a heading, its text in `help`
    FlagType type;
    size_t offset;           // of the field in the struct of values
    double min, max;         // bounds of a number, inclusive; -INFINITY and INFINITY: the type's own
    const char *choices;     // words separated by one space; NULL: none
    const char *value_name;  // "N", "FILE"
    const char *help;        // one line for --help; %s stands for the default
    bool not_resumed;        // flags_from_json leaves the field alone: the flag is for one start
} Flag;

enum { NOT_RESUMED = true };

#define FLAG_HEADING(text)                                                                                             \
    { NULL, NULL, FLAG_STRING, 0, 0, 0, NULL, NULL, text }
#define FLAG_WAS_REMOVED(letter, name, instead)                                                                        \
    { letter, name, FLAG_REMOVED, 0, 0, 0, NULL, NULL, instead }

// FLAG_TEXT: bytes of a value's text; FLAG_LINE and FLAG_HELP_LINE: columns of the banner and of --help
enum { FLAG_TEXT = 256, FLAG_LINE = 110, FLAG_HELP_LINE = 100, FLAG_NAME_MAX = 63 };

// ---- one row: its text

static inline bool flag_is_heading(const Flag *flag) { return !flag->letter && !flag->name; }

// a heading or a removed flag
static inline bool flag_has_no_value(const Flag *flag) { return flag_is_heading(flag) || flag->type == FLAG_REMOVED; }

static inline bool flag_is_number(const Flag *flag) { return flag->type <= FLAG_REAL; }

// an option with a number as value
static inline bool flag_is_amount(const Flag *flag) { return flag->type == FLAG_OPTION && flag->min < flag->max; }

static inline const char *flag_label(const Flag *flag) { return flag->name ? flag->name : flag->letter; }

// `bound` as an integer, clamped to the type's range
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

// "from 1 to 8", "of at least 0.1", "of at most 1" or ""
static inline void flag_bounds_text(const Flag *flag, char text[FLAG_TEXT]) {
    if (flag->type != FLAG_REAL && flag->type != FLAG_OPTION) {
        snprintf(text, FLAG_TEXT, "from %lld to %lld", flag_whole_bound(flag, flag->min),
                 flag_whole_bound(flag, flag->max));
        return;
    }
    char low[FLAG_TEXT], high[FLAG_TEXT];
    flag_real_text(flag->min, low);
    flag_real_text(flag->max, high);
    text[0] = 0;
    if (isfinite(flag->min) && isfinite(flag->max)) {
        snprintf(text, FLAG_TEXT, "from %.99s to %.99s", low, high);
    } else if (isfinite(flag->min)) {
        snprintf(text, FLAG_TEXT, "of at least %.99s", low);
    } else if (isfinite(flag->max)) {
        snprintf(text, FLAG_TEXT, "of at most %.99s", high);
    }
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
    switch (flag->type) {
    case FLAG_INT:
    case FLAG_INT64:
    case FLAG_REAL:
        flag_bounds_text(flag, detail);
        snprintf(text, FLAG_TEXT, "a %s%s%.200s", flag->type == FLAG_REAL ? "number" : "whole number",
                 *detail ? " " : "", detail);
        return;
    case FLAG_STRING: snprintf(text, FLAG_TEXT, "%s", flag->value_name); return;
    case FLAG_CHOICE: flag_choices_text(flag->choices, text); return;
    case FLAG_REMOVED: return;
    case FLAG_OPTION:
        if (flag_is_amount(flag)) {
            flag_bounds_text(flag, detail);
            snprintf(text, FLAG_TEXT, "nothing or =a number %.200s", detail);
        } else if (!flag->choices) {
            snprintf(text, FLAG_TEXT, "no value");
        } else {
            flag_choices_text(flag->choices, detail);
            snprintf(text, FLAG_TEXT, "nothing or =%.200s", detail);
        }
    }
}

// ---- one row: its value

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

static inline const char *flag_string(const Flag *flag, const void *values) {
    const char *string;
    memcpy(&string, (const char *)values + flag->offset, sizeof string);
    return string;
}

static inline void flag_store_string(const Flag *flag, void *values, const char *string) {
    memcpy((char *)values + flag->offset, &string, sizeof string);
}

// the value as on the command line; NULL for a string that is not set
static inline const char *flag_value_text(const Flag *flag, const void *values, char text[FLAG_TEXT]) {
    const char *field = (const char *)values + flag->offset;
    int whole;
    int64_t wide;
    double real;
    switch (flag->type) {
    case FLAG_INT:
        memcpy(&whole, field, sizeof whole);
        snprintf(text, FLAG_TEXT, "%d", whole);
        return text;
    case FLAG_INT64:
        memcpy(&wide, field, sizeof wide);
        snprintf(text, FLAG_TEXT, "%lld", (long long)wide);
        return text;
    case FLAG_REAL:
        memcpy(&real, field, sizeof real);
        flag_real_text(real, text);
        return text;
    case FLAG_CHOICE:
        memcpy(&whole, field, sizeof whole);
        flag_choice_text(flag->choices, whole, text);
        return text;
    case FLAG_STRING:
    case FLAG_OPTION:
    case FLAG_REMOVED: break;
    }
    return flag_string(flag, values);
}

static inline bool flag_store_whole(const Flag *flag, char *field, const char *text) {
    const char *digits = text + (*text == '-');
    if (!*digits || digits[strspn(digits, "0123456789")]) { return false; }
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno || value < flag_whole_bound(flag, flag->min) || value > flag_whole_bound(flag, flag->max)) {
        return false;
    }
    int narrow = (int)value;
    int64_t wide = value;
    if (flag->type == FLAG_INT) {
        memcpy(field, &narrow, sizeof narrow);
    } else {
        memcpy(field, &wide, sizeof wide);
    }
    return true;
}

static inline bool flag_read_real(const Flag *flag, double *value, const char *text) {
    if (!*text || text[strspn(text, "+-.0123456789eE")]) { return false; }  // strtod also takes " 1", "nan", "0x1p3"
    char *end;
    *value = strtod(text, &end);
    return !*end && isfinite(*value) && *value >= flag->min && *value <= flag->max;
}

static inline bool flag_store_real(const Flag *flag, char *field, const char *text) {
    double value;
    if (!flag_read_real(flag, &value, text)) { return false; }
    memcpy(field, &value, sizeof value);
    return true;
}

// false if the flag does not take `text`
static inline bool flag_store(const Flag *flag, void *values, const char *text) {
    char *field = (char *)values + flag->offset;
    int index = flag->choices ? flag_choice_index(flag->choices, text) : -1;
    switch (flag->type) {
    case FLAG_INT:
    case FLAG_INT64: return flag_store_whole(flag, field, text);
    case FLAG_REAL: return flag_store_real(flag, field, text);
    case FLAG_CHOICE:
        if (index >= 0) { memcpy(field, &index, sizeof index); }
        return index >= 0;
    case FLAG_OPTION: {
        double amount;
        if (index < 0 && !(flag_is_amount(flag) && flag_read_real(flag, &amount, text))) { return false; }
        break;
    }
    case FLAG_STRING: break;
    case FLAG_REMOVED: return false;
    }
    flag_store_string(flag, values, text);
    return true;
}

// ---- parsing

// Levenshtein distance of the first 63 characters
static inline int flag_edit_distance(const char *a, const char *b) {
    int row[FLAG_NAME_MAX + 1];
    int length = 0;
    // cppcheck-suppress arrayIndexOutOfBoundsCond; cppcheck assumes the longest name for every name
    for (row[0] = 0; length < FLAG_NAME_MAX && b[length]; row[length] = length) { length++; }
    // cppcheck-suppress arrayIndexOutOfBoundsCond
    for (int i = 0; i < FLAG_NAME_MAX && a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 0; j < length; j++) {
            int replace = diagonal + (a[i] != b[j]);
            int add_or_drop = 1 + (row[j] < row[j + 1] ? row[j] : row[j + 1]);
            diagonal = row[j + 1];
            row[j + 1] = replace < add_or_drop ? replace : add_or_drop;
        }
    }
    return row[length];
}

// Stops with "unknown flag" and the nearest letter or name that shares a character with the flag typed.
__attribute__((noreturn)) static inline void flag_unknown(const Flag *table, int count, const char *typed) {
    char word[FLAG_NAME_MAX + 1];
    const char *body = typed + strspn(typed, "-");
    snprintf(word, sizeof word, "%.*s", (int)strcspn(body, "="), body);
    int length = (int)strlen(word);
    int nearest = length < 3 ? length : 3;  // a suggestion has a smaller distance
    const char *dashes = "", *suggestion = NULL;
    for (int i = 0; i < count; i++) {
        const char *spelling[2] = {table[i].name, table[i].letter};
        if (table[i].type == FLAG_REMOVED) { continue; }
        for (int s = 0; s < 2; s++) {
            int distance = spelling[s] ? flag_edit_distance(word, spelling[s]) : nearest;
            if (distance < nearest) {
                nearest = distance;
                suggestion = spelling[s];
                dashes = s == 0 ? "--" : "-";
            }
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

// Prints words from column `column` on; lines break at FLAG_HELP_LINE and continue at column `indent`.
static inline void flag_print_wrapped(FILE *file, const char *text, int column, int indent) {
    for (const char *separator = ""; *text; separator = " ") {
        int length = (int)strcspn(text, " ");
        if (*separator && column + 1 + length > FLAG_HELP_LINE) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
            separator = "";
        }
        column += fprintf(file, "%s%.*s", separator, length, text);
        text += length + (text[length] == ' ');
    }
    fputc('\n', file);
}

// One row per flag: letter, name and value, help with special values and default. Headings separate the groups.
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
        int column = fprintf(file, "  %s%-*s  %-*s  ", flag->letter ? "-" : " ", letters,
                             flag->letter ? flag->letter : "", width, text);
        flag_help_text(flag, defaults, text);
        flag_print_wrapped(file, text, column, column);
    }
}

// ---- banner

// the settings that differ from the defaults, or the settings that equal them, several per line
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

// {"micro-batch": 4, "schedule": "cosine", "output": null, ...} in the table's order, with exact numbers. A choice
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

// The item as on the command line; NULL if its type differs from flags_to_json's. cJSON reads numbers as doubles, so
// integers from 2^53 on may be inexact and are refused.
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

// The inverse of flags_to_json: sets the fields of `values` for which `json` holds a valid value, except those of flags
// that are not resumed. A missing, null or invalid item leaves its field as it is, because the file may be of another
// version. Strings point into `json`: delete it after the last use of `values`.
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
