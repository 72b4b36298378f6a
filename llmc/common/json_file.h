// Small JSON files, read and written whole.
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/create_file.h"
#include <cjson/cJSON.h>
#include <math.h>

// Writes a small JSON file: `path` holds the old file or the whole new one. Returns 0 or an errno.
static inline int write_json(const char *path, const cJSON *json) {
    char *text = cJSON_Print(json);
    if (!text) { return ENOMEM; }
    PartFile file = part_open(path);
    part_put(&file, text, strlen(text));
    part_put(&file, "\n", 1);
    cJSON_free(text);
    return part_finish(&file);
}

// Returns a file's text (caller frees), or NULL if it cannot be read, is too long, or holds a NUL, where cJSON stops.
static inline char *read_text_file(const char *path) {
    size_t bytes;
    char *text = read_whole_file(path, 256 << 20, &bytes);  // a tokenizer.json has a few MB
    if (!text || strlen(text) == bytes) { return text; }
    free(text);
    return NULL;
}

// Parses the text of a JSON object, printed by a printf format that has ' for every quote. The caller deletes it.
__attribute__((format(printf, 1, 2))) static inline cJSON *json_of(const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *quote = text; (quote = strchr(quote, '\'')) != NULL;) { *quote = '"'; }
    return cJSON_Parse(text);
}

// Returns an item of an object; if several have the key, the last one, as in Python. NULL or false: there is none, or
// json is no object.
static inline const cJSON *json_get(const cJSON *json, const char *key) {
    const cJSON *item, *last = NULL;
    cJSON_ArrayForEach(item, json) {
        if (item->string && strcmp(item->string, key) == 0) { last = item; }
    }
    return last;
}
static inline const char *json_string(const cJSON *json, const char *key) {
    return cJSON_GetStringValue(json_get(json, key));
}
static inline bool json_true(const cJSON *json, const char *key) { return cJSON_IsTrue(json_get(json, key)); }

// True if an object has a key with a value other than null, false, 0 and the empty ones.
static inline bool json_is_set(const cJSON *json, const char *key) {
    const cJSON *value = json_get(json, key);
    const char *text = cJSON_GetStringValue(value);
    bool full = (cJSON_IsArray(value) || cJSON_IsObject(value)) && value->child;
    return full || cJSON_IsTrue(value) || (cJSON_IsNumber(value) && value->valuedouble != 0) || (text && *text);
}

// text (PATH_LENGTH) = VALUE as "KEY", the value shortened
static inline void json_show(char *text, const cJSON *json, const char *key) {
    char *value = cJSON_PrintUnformatted(json_get(json, key));
    format_path(text, "%.100s as \"%s\"", value ? value : "nothing", key);
    cJSON_free(value);
}

// the JSON object in a file; NULL: the file is missing, cannot be read or holds anything but one JSON object
static inline cJSON *try_read_json(const char *path) {
    char *text = read_text_file(path);
    cJSON *json = text ? cJSON_ParseWithOpts(text, NULL, true) : NULL;
    free(text);
    if (cJSON_IsObject(json)) { return json; }
    cJSON_Delete(json);
    return NULL;
}

// the JSON object in a file; NULL: there is no such file. Stops if the file holds no JSON object.
static inline cJSON *read_json(const char *path) {
    if (access(path, F_OK) != 0) { return NULL; }
    cJSON *json = try_read_json(path);
    if (!json) {
        input_error("'%s' is not a JSON object; it may have been cut short or damaged, so copy or make it again", path);
    }
    return json;
}

// The integer called `key`. Stops unless it is there and in min..max, which are within 2^53: a double holds it exactly.
static inline int64_t json_whole(const cJSON *json, const char *key, double min, double max, const char *path) {
    double x = cJSON_GetNumberValue(json_get(json, key));  // NaN without a number
    if (!(x >= min && x <= max) || x != floor(x)) {
        char found[PATH_LENGTH];
        json_show(found, json, key);
        input_error("'%s' has %s, expected a whole number from %.0f to %.0f; copy the file again", path, found, min,
                    max);
    }
    return (int64_t)x;
}
