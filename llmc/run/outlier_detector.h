/*
How unusual is this step's loss or gradient norm? Its z-score among the latest 128 values, itself included.
  z = (x - mean) / std, over the window, std with 1/128;  0 where std is 0
  NaN for the first 128 values, so that `z > threshold` is false until there is a window to compare with
  +inf for a value that is NaN, infinite or beyond fp32's range; it is not stored, so the window stays usable
|z| is at most sqrt(127) = 11.27, since x is in its own window: a larger threshold skips only on +inf.
Mean and std are summed afresh each time, oldest value first: nothing drifts, and a resumed run gets the same bits.
JSON: an array of at most 128 strings, oldest first, each a double as C's %a writes it: cJSON 1.7.15 prints a number
with 15 digits when that is within an epsilon, which need not be the same double.
defines: OutlierDetector, outlier_zscore, outlier_detector_to_json, outlier_detector_from_json
*/
#pragma once
#include <cjson/cJSON.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include "llmc/common/check.h"

enum { OUTLIER_WINDOW = 128 };

// all zero: an empty window
typedef struct {
    double window[OUTLIER_WINDOW];  // a ring: value i is in slot i % 128
    int64_t count;                  // values stored so far
} OutlierDetector;

static inline bool guard_usable(double x) { return fabs(x) <= FLT_MAX; }  // false for NaN

// Stores x (unless unusable) in place of the oldest value and returns its z-score.
static inline double outlier_zscore(OutlierDetector *guard, double x) {
    if (!guard_usable(x)) { return (double)INFINITY; }
    guard->window[guard->count++ % OUTLIER_WINDOW] = x;
    if (guard->count <= OUTLIER_WINDOW) { return (double)NAN; }
    // measured from x, so that equal values give exactly 0
    double mean = 0, variance = 0;
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        mean += (guard->window[(guard->count + i) % OUTLIER_WINDOW] - x) / (double)OUTLIER_WINDOW;
    }
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        double deviation = guard->window[(guard->count + i) % OUTLIER_WINDOW] - x - mean;
        variance += deviation * deviation / (double)OUTLIER_WINDOW;
    }
    return variance > 0 ? -mean / sqrt(variance) : 0;
}

// the caller deletes it
static inline cJSON *outlier_detector_to_json(const OutlierDetector *guard) {
    cJSON *array = cJSON_CreateArray();
    int64_t stored = guard->count < OUTLIER_WINDOW ? guard->count : (int64_t)OUTLIER_WINDOW;
    for (int64_t i = guard->count - stored; i < guard->count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%a", guard->window[i % OUTLIER_WINDOW]);
        if (!cJSON_AddItemToArray(array, cJSON_CreateString(text))) { run_error("out of host memory: guard window"); }
    }
    return array;
}

// Fills GUARD from what outlier_detector_to_json made; it scores as the saved one would. False, with GUARD as it was, for any
// other JSON: the caller knows the file to name.
static inline bool outlier_detector_from_json(OutlierDetector *guard, const cJSON *array) {
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) > OUTLIER_WINDOW) { return false; }
    OutlierDetector loaded;
    memset(&loaded, 0, sizeof loaded);
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        const char *text = cJSON_GetStringValue(item);
        if (!text || !*text) { return false; }
        char *end;
        double x = strtod(text, &end);
        if (*end || !guard_usable(x)) { return false; }
        loaded.window[loaded.count++] = x;
    }
    *guard = loaded;
    return true;
}
