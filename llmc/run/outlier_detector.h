/*
Skipped updates: a loss or gradient norm that is not finite, or an outlier (-sl, -sg), changes neither weights nor
moments. The step counts, and its data is passed over. All ranks have the same loss and norm, so they skip alike. AdamW
on the device skips a step that is not finite by itself, so a GPU need not wait for the host.
An outlier is found by the z-score of x within a window of the latest 128 values, x included.
  z = (x - mean) / std, std with 1/128;  0 if std is 0
  NaN for the first 128 values: `z > threshold` is false until the window is full
  +inf for a value that is NaN, infinite or beyond the range of fp32, which is not stored
|z| is at most sqrt(127) = 11.27, since x is in the window: with a larger threshold only +inf is an outlier.
Mean and std are summed anew for each value, oldest first: rounding errors do not build up, and a resumed run gets the
same bits.
JSON: an array of at most 128 strings, oldest value first, each a double in the format %a. A JSON number would not
be exact: cJSON 1.7.15 may print only 15 digits.
defines: MAX_SKIPS, OutlierDetector, Outliers, outlier_zscore, skip_reason, outlier_detector_to_json,
         outlier_detector_from_json
*/
#pragma once
#include "llmc/run/train_args.h"
#include <cjson/cJSON.h>
#include <float.h>
#include <math.h>

enum { OUTLIER_WINDOW = 128, MAX_SKIPS = 20 };  // MAX_SKIPS skipped updates in a row end the run

// all zero: an empty window
typedef struct {
    double window[OUTLIER_WINDOW];  // a ring: value i is in slot i % 128
    int64_t count;                  // values stored so far
} OutlierDetector;

// of a run
typedef struct {
    OutlierDetector loss, norm;
    int skipped;  // updates in a row
} Outliers;

static inline bool outlier_storable(double x) { return fabs(x) <= FLT_MAX; }  // false for NaN

// Stores x in place of the oldest value and returns the z-score of x. A value that is not storable is +inf.
static inline double outlier_zscore(OutlierDetector *detector, double x) {
    if (!outlier_storable(x)) { return (double)INFINITY; }
    detector->window[detector->count++ % OUTLIER_WINDOW] = x;
    if (detector->count <= OUTLIER_WINDOW) { return (double)NAN; }
    // sums of differences to x: equal values give exactly 0
    double mean = 0, variance = 0;
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        mean += (detector->window[(detector->count + i) % OUTLIER_WINDOW] - x) / (double)OUTLIER_WINDOW;
    }
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        double deviation = detector->window[(detector->count + i) % OUTLIER_WINDOW] - x - mean;
        variance += deviation * deviation / (double)OUTLIER_WINDOW;
    }
    return variance > 0 ? -mean / sqrt(variance) : 0;
}

// Why an update is skipped, or "". The detectors store finite numbers alone.
static inline const char *skip_reason(const TrainArgs *a, Outliers *o, double loss, double norm) {
    if (!isfinite(loss)) { return "loss is not finite"; }
    if (!isfinite(norm)) { return "gradient norm is not finite"; }
    double z_loss = outlier_zscore(&o->loss, loss), z_norm = outlier_zscore(&o->norm, norm);
    if (a->skip_loss > 0 && z_loss > a->skip_loss) { return "loss is an outlier"; }
    if (a->skip_norm > 0 && z_norm > a->skip_norm) { return "gradient norm is an outlier"; }
    return "";
}

// the window, oldest value first; the caller deletes it
static inline cJSON *outlier_detector_to_json(const OutlierDetector *detector) {
    cJSON *array = cJSON_CreateArray();
    int64_t stored = detector->count < OUTLIER_WINDOW ? detector->count : (int64_t)OUTLIER_WINDOW;
    for (int64_t i = detector->count - stored; i < detector->count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%a", detector->window[i % OUTLIER_WINDOW]);
        if (!cJSON_AddItemToArray(array, cJSON_CreateString(text))) {
            run_error("out of host memory: outlier detector");
        }
    }
    return array;
}

// Restores a detector from outlier_detector_to_json: later scores have the same bits. Any other JSON returns false and
// leaves the detector as it is.
static inline bool outlier_detector_from_json(OutlierDetector *detector, const cJSON *array) {
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) > OUTLIER_WINDOW) { return false; }
    OutlierDetector loaded;
    memset(&loaded, 0, sizeof loaded);
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        const char *text = cJSON_GetStringValue(item);
        if (!text || !*text) { return false; }
        char *end;
        double x = strtod(text, &end);
        if (*end || !outlier_storable(x)) { return false; }
        loaded.window[loaded.count++] = x;
    }
    *detector = loaded;
    return true;
}
