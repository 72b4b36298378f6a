/*
Command-line flags from one table: a row a flag drives parsing, --help, the banner and the saved configuration.
  -b 4, --micro-batch 4 and --micro-batch=4 are the same. A letter is matched whole, so -bx is not -b x.
  A separate value may be a negative number (-x -1); any other text with a leading dash needs the = form.
  A flag that is given again takes the place of the one before it.
  An option's value is optional and always joined: --plan or --plan=json.

  type          field            takes
  FLAG_INT      int              -?[0-9]+ within min..max
  FLAG_INT64    int64_t          the same; a uint64_t field reads it too where min is 0
  FLAG_REAL     double           a decimal number, with an exponent or not, within min..max; no nan, no inf
  FLAG_STRING   const char *     any text; points into argv, or into the JSON it was read from
  FLAG_CHOICE   int              a word of `choices`, stored as its index; in "none|0 fp32|1" each has two spellings
  FLAG_OPTION   const char *     nothing (stored as ""), or =word of `choices` if it has any, or =number within
                                 min..max if those differ; absent: NULL
  FLAG_ABSENT   none             nothing: it names a letter of llm.c that there is not, and stops where it is given

Any fault is one sentence that names the flag and says what it takes: exit 2.
defines: FlagType, Flag, FLAG_HEADING, flags_parse, flags_print_help, flags_print_banner, flags_to_json,
         flags_from_json, FLAG_LLMC
*/
#pragma once
#include <assert.h>
#include <cjson/cJSON.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include "llmc/common/check.h"

typedef enum { FLAG_INT, FLAG_INT64, FLAG_REAL, FLAG_STRING, FLAG_CHOICE, FLAG_OPTION, FLAG_ABSENT } FlagType;

typedef struct {
    const char *letter;  // "b", "nk"; NULL: none
    const char *name;    // "micro-batch"; NULL: none. Neither: a heading, its text in `help`
    FlagType type;
    size_t offset;           // of the field in the struct of values
    double min, max;         // of a number, inclusive; -INFINITY and INFINITY: what the type holds
    const char *choices;     // words, one space between them
    const char *value_name;  // for --help and errors: "tokens", "FILE"
    const char *help;        // one line
} Flag;

#define FLAG_HEADING(text)                                                                                             \
    { NULL, NULL, FLAG_STRING, 0, 0, 0, NULL, NULL, text }

// a letter of llm.c that this trainer does not have, and what it does there
#define FLAG_LLMC(letter, meaning)                                                                                     \
    { letter, NULL, FLAG_ABSENT, 0, 0, 0, NULL, NULL, meaning }

enum { FLAG_TEXT = 256, FLAG_LINE = 110, FLAG_NAME_MAX = 63 };

// ---- one row: its text

static inline bool flag_is_heading(const Flag *flag) { return !flag->letter && !flag->name; }

// whether it is a setting, which help, banner and JSON show
static inline bool flag_has_value(const Flag *flag) { return !flag_is_heading(flag) && flag->type != FLAG_ABSENT; }

static inline bool flag_is_number(const Flag *flag) { return flag->type <= FLAG_REAL; }

// an option whose value is a number
static inline bool flag_is_amount(const Flag *flag) { return flag->type == FLAG_OPTION && flag->min < flag->max; }

static inline const char *flag_label(const Flag *flag) { return flag->name ? flag->name : flag->letter; }

// the integer nearest to a bound that the type holds
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
    // plain notation where it is no longer than people write
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
        const char *piece = *c != ' ' ? NULL : c == last ? " or " : ", ";
        length += (size_t)(piece ? snprintf(text + length, FLAG_TEXT - length, "%s", piece)
                                 : snprintf(text + length, FLAG_TEXT - length, "%c", *c));
    }
    text[length] = 0;
}

// the part of an error after "takes"
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
    case FLAG_ABSENT: return;
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

// index of the choice that TEXT spells, or -1
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

// the value as one would write it on the command line; NULL for a string that is not set
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
    case FLAG_ABSENT: break;
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
    if (!*text || text[strspn(text, "+-.0123456789eE")]) { return false; }  // strtod alone takes " 1", "nan", "0x1p3"
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

// false if TEXT is not what the flag takes
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
    case FLAG_ABSENT: return false;
    }
    flag_store_string(flag, values, text);
    return true;
}

// ---- parsing

// Levenshtein distance; of names cut to 63 characters
static inline int flag_edit_distance(const char *a, const char *b) {
    int row[FLAG_NAME_MAX + 1];
    int length = 0;
    // cppcheck-suppress arrayIndexOutOfBoundsCond; it takes the longest name for every name
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

__attribute__((noreturn)) static inline void flag_stop_absent(const Flag *flag) {
    input_error("-%s (%s) is llm.c's; this trainer does not have it; leave it out", flag->letter, flag->help);
}

// "unknown flag", with the nearest letter or name that keeps at least one of the characters typed; no absent flag is
// suggested, but --lg or -lg=1 is taken for -lg
__attribute__((noreturn)) static inline void flag_unknown(const Flag *table, int count, const char *typed) {
    char word[FLAG_NAME_MAX + 1];
    const char *body = typed + strspn(typed, "-");
    snprintf(word, sizeof word, "%.*s", (int)strcspn(body, "="), body);
    int length = (int)strlen(word), nearest = length < 3 ? length : 3;  // a suggestion is nearer than this
    const char *dashes = "", *suggestion = NULL;
    const Flag *found = NULL;
    for (int i = 0; i < count; i++) {
        const char *spelling[2] = {table[i].name, table[i].letter};
        for (int s = 0; s < 2; s++) {
            int distance = spelling[s] ? flag_edit_distance(word, spelling[s]) : nearest;
            if (distance < nearest && (distance == 0 || table[i].type != FLAG_ABSENT)) {
                nearest = distance;
                suggestion = spelling[s];
                dashes = s == 0 ? "--" : "-";
                found = &table[i];
            }
        }
    }
    if (found && found->type == FLAG_ABSENT) { flag_stop_absent(found); }
    if (suggestion) { input_error("unknown flag %s; did you mean %s%s?", typed, dashes, suggestion); }
    input_error("unknown flag %s; --help lists the flags there are", typed);
}

// the row that the first `length` characters of an argument name, or NULL
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
    if (!next) { input_error("%s takes %s; nothing follows it", argument, takes); }
    if (next[0] == '-' && next[1] && !strchr(".0123456789", next[1])) {
        input_error("%s takes %s; it is followed by '%s'", argument, takes, next);
    }
    return next;
}

// Sets the fields of VALUES, which hold the defaults, from the arguments after argv[0]. Of a flag that is given again
// the last one counts, so that a script's flags can be changed by adding others.
static inline void flags_parse(const Flag *table, int count, void *values, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (argument[0] != '-') {
            input_error("stray argument '%s': values are given as -x value or --name value, optional ones as "
                        "--name=value; a pattern of "
                        "several files needs quotes",
                        argument);
        }
        // only a long name can be followed by =
        int length = (int)(argument[1] == '-' ? strcspn(argument, "=") : strlen(argument));
        const Flag *flag = flag_find(table, count, argument, (size_t)length);
        if (!flag) { flag_unknown(table, count, argument); }
        if (flag->type == FLAG_ABSENT) { flag_stop_absent(flag); }
        char takes[FLAG_TEXT];
        flag_takes_text(flag, takes);
        const char *value = argument[length] == '=' ? argument + length + 1 : NULL;
        if (!value && flag->type == FLAG_OPTION) {
            flag_store_string(flag, values, "");
            continue;
        }
        if (!value) { value = flag_next_value(argument, takes, ++i < argc ? argv[i] : NULL); }
        if (!flag_store(flag, values, value)) {
            input_error("%.*s takes %s; found '%s'", length, argument, takes, value);
        }
    }
}

// ---- showing

// "--micro-batch N", "--plan[=FORMAT]", "--help"
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

// what may be given, and what holds otherwise: " [from 1 to 8; default 4]"
static inline void flag_print_limits(FILE *file, const Flag *flag, const void *defaults) {
    char limits[FLAG_TEXT] = "", text[FLAG_TEXT];
    if (flag->choices) {
        flag_choices_text(flag->choices, limits);
    } else if (flag_is_number(flag) || flag_is_amount(flag)) {
        flag_bounds_text(flag, limits);
    }
    if (flag->type == FLAG_OPTION) {
        if (*limits) { fprintf(file, " [%s]", limits); }
        return;
    }
    const char *value = flag_value_text(flag, defaults, text);
    fprintf(file, " [%s%sdefault %s]", limits, *limits ? "; " : "", value && *value ? value : "none");
}

// A row a flag: letter, name and value, help, bounds or choices, default; headings between the groups.
static inline void flags_print_help(FILE *file, const char *usage, const Flag *table, int count, const void *defaults) {
    int width = 0, letters = 0;
    char text[FLAG_TEXT];
    for (int i = 0; i < count; i++) {
        if (!flag_has_value(&table[i])) { continue; }
        flag_usage_text(&table[i], text);
        int length = (int)strlen(text), letter = table[i].letter ? (int)strlen(table[i].letter) : 0;
        width = length > width ? length : width;
        letters = letter > letters ? letter : letters;
    }
    fprintf(file, "%s\n", usage);
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        if (flag_is_heading(flag)) {
            fprintf(file, "\n%s\n", flag->help);
            continue;
        }
        if (!flag_has_value(flag)) { continue; }
        flag_usage_text(flag, text);
        fprintf(file, "  %s%-*s  %-*s  %s", flag->letter ? "-" : " ", letters, flag->letter ? flag->letter : "", width,
                text, flag->help);
        flag_print_limits(file, flag, defaults);
        fputc('\n', file);
    }
}

// the settings that differ from the defaults, or those that do not, as many on a line as fit
static inline void flags_print_settings(FILE *file, const char *title, const Flag *table, int count, const void *values,
                                        const void *defaults, bool differing) {
    int column = 0;
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        char buffer[FLAG_TEXT], default_buffer[FLAG_TEXT];
        if (!flag_has_value(flag)) { continue; }
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

// The values in effect, several a line: first those that differ from the defaults, then the rest.
static inline void flags_print_banner(FILE *file, const Flag *table, int count, const void *values,
                                      const void *defaults) {
    flags_print_settings(file, "changed", table, count, values, defaults, true);
    flags_print_settings(file, "default", table, count, values, defaults, false);
}

// {"micro-batch": 4, "schedule": "cosine", "output": null, ...} in the table's order, numbers exact; an absent option
// is left out. The caller deletes it.
static inline cJSON *flags_to_json(const Flag *table, int count, const void *values) {
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        char buffer[FLAG_TEXT];
        if (!flag_has_value(flag)) { continue; }
        const char *text = flag_value_text(flag, values, buffer);
        if (flag->type == FLAG_OPTION && !text) { continue; }
        bool number = flag_is_number(flag);
        // raw: cJSON's own printing of numbers loses the last bits
        cJSON *item = number ? cJSON_CreateRaw(text) : text ? cJSON_CreateString(text) : cJSON_CreateNull();
        if (!cJSON_AddItemToObject(object, flag_label(flag), item)) { run_error("out of host memory: configuration"); }
    }
    return object;
}

// The item as one would write it on the command line; NULL if it has not the type that flags_to_json writes. cJSON
// reads numbers as doubles: a whole one from 2^53 on may have been another in the file.
static inline const char *flag_item_text(const Flag *flag, const cJSON *item, char text[FLAG_TEXT]) {
    if (!flag_is_number(flag)) { return cJSON_GetStringValue(item); }
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

// The inverse of flags_to_json: sets the fields of VALUES whose flags are in JSON, which was read from a file, with a
// value that they take. Everything else stays as it is, silently: the file may be of an older version, and its null
// means that nothing was given. The flags named in SKIP, one space between them, are never taken. Strings point
// into JSON, which the caller deletes after VALUES was last used.
static inline void flags_from_json(const Flag *table, int count, void *values, const cJSON *json, const char *skip) {
    for (int i = 0; i < count; i++) {
        const Flag *flag = &table[i];
        if (!flag_has_value(flag) || flag_choice_index(skip, flag_label(flag)) >= 0) { continue; }
        char buffer[FLAG_TEXT];
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, flag_label(flag));
        const char *text = flag_item_text(flag, item, buffer);
        bool bare_option = text && !*text && flag->type == FLAG_OPTION;
        if (bare_option) { flag_store_string(flag, values, text); }
        if (text && !bare_option) { flag_store(flag, values, text); }
    }
}
