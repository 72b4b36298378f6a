/*
The policy at each step, from flags and results alone: the learning rate, what is due, which updates are skipped, and
the best loss and patience of --keep-best and --patience.

Learning rate: a linear warmup, then one of four schedules. s: step from 0, W: warmup steps, N: steps of the run,
f: final fraction, P = (s - start) / (N - start), at most 1
  s < W        lr (s + 1) / W                                   for every schedule; step 0 already learns
  cosine       lr (f + (1 - f) (1 + cos(pi P)) / 2)             start = W
  linear       lr (f + (1 - f) (1 - P))                         start = W
  constant     lr
  wsd          lr (f + (1 - f) (1 - sqrt(P)))                   start = max(W, floor(0.8 N)), lr before it
From step max(W, N) on, a schedule that decays stays at lr f.
Sources: cosine, Loshchilov and Hutter 2017; warmup-stable-decay and its 1 - sqrt tail, Hagele et al. 2024.

Skipped updates: if the loss or the gradient norm is not finite, or is an outlier (-sl, -sg), weights and moments stay
as they are. The step counts, and its data is not read again. All ranks have the same loss and norm, so they skip alike.
The update on the device itself skips a step whose loss or norm is not finite, so a GPU need not wait for the host.
The z-score of x is (x - mean) / std over a window of the last 128 values, x included; 0 if std is 0.
  NaN for the first 128 values: `z > threshold` is false
  +inf for a value that is NaN, infinite or beyond the range of fp32, which is not stored
|z| is at most sqrt(127) = 11.27, since x is in the window: with a larger threshold only +inf is an outlier.
Mean and std are summed anew for each value, oldest first, so that rounding errors do not build up and a resumed run
gets the same bits.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/json_file.h"
#include "llmc/ops.h"
#include "llmc/run/train_args.h"
#include <float.h>
#include <math.h>

// from 1 at progress 0 to 0 at progress 1; a constant schedule stays at 1
static inline double schedule_decay(ScheduleKind kind, double progress) {
    switch (kind) {
    case SCHEDULE_COSINE: return 0.5 * (1 + cos(3.14159265358979323846 * progress));
    case SCHEDULE_LINEAR: return 1 - progress;
    case SCHEDULE_WSD: return 1 - sqrt(progress);
    case SCHEDULE_CONSTANT: break;
    }
    return 1;
}

// step >= 0 counts from 0; warmup >= 0; max_steps >= 1
static inline double schedule_lr(ScheduleKind kind, double lr, int64_t warmup, int64_t max_steps, double final_fraction,
                                 int64_t step) {
    if (step < warmup) { return lr * (double)(step + 1) / (double)warmup; }
    int64_t stable = max_steps / 5 * 4 + max_steps % 5 * 4 / 5;  // floor(0.8 N), without overflow
    int64_t start = kind == SCHEDULE_WSD && stable > warmup ? stable : warmup;
    double progress = step >= max_steps ? 1 : step > start ? (double)(step - start) / (double)(max_steps - start) : 0;
    return lr * (final_fraction + (1 - final_fraction) * schedule_decay(kind, progress));
}

// the hyperparameters of a step; `step` counts from 0
static inline StepHyper step_hyper(const TrainArgs *a, long long max_steps, long long step) {
    StepHyper hyper;
    hyper.learning_rate =
        (real)schedule_lr((ScheduleKind)a->schedule, a->lr, a->warmup, max_steps, a->final_fraction, step);
    hyper.beta1 = (real)a->beta1;
    hyper.beta2 = (real)a->beta2;
    hyper.epsilon = (real)a->epsilon;
    hyper.weight_decay = (real)a->weight_decay;
    hyper.clip = (real)a->clip;
    hyper.step = (int)step + 1;
    hyper.seed = (uint64_t)a->seed;
    hyper.momentum = (real)a->momentum;
    return hyper;
}

// ---- events

// True at each multiple of `every` and at the end of a run; 0 never.
static inline bool is_due(long long step, int every, bool ending) {
    return every > 0 && (ending || (step > 0 && step % every == 0));
}

// True if the loop pauses after `step` steps: for an evaluation, a sample, a checkpoint, or the end.
static inline bool pauses_after(const TrainArgs *a, long long step, long long max_steps) {
    return step >= max_steps || is_due(step, a->val_every, false) || is_due(step, a->sample_every, false) ||
           is_due(step, a->checkpoint_every, false);
}

// True if the host reads loss and norm before the update, to decide whether to skip it.
static inline bool update_waits(const TrainArgs *a) { return a->skip_loss > 0 || a->skip_norm > 0 || a->nan_check; }

// ---- skipped updates

enum { OUTLIER_WINDOW = 128, MAX_SKIPS = 20 };  // MAX_SKIPS skipped updates in a row end the run

typedef struct {
    double window[OUTLIER_WINDOW];  // ring buffer: value i is in slot i % 128
    int64_t count;                  // values stored so far; 0: empty
} OutlierDetector;

typedef struct {
    OutlierDetector loss, norm;
    int skipped;  // updates in a row
} Outliers;

// Stores x in place of the oldest value and returns its z-score, or +inf if x cannot be stored.
static inline double outlier_zscore(OutlierDetector *detector, double x) {
    if (!(fabs(x) <= FLT_MAX)) { return (double)INFINITY; }  // NaN too
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

// Returns why an update is skipped, or "".
static inline const char *skip_reason(const TrainArgs *a, Outliers *o, double loss, double norm) {
    if (!isfinite(loss)) { return "loss is not finite"; }
    if (!isfinite(norm)) { return "gradient norm is not finite"; }
    double z_loss = outlier_zscore(&o->loss, loss), z_norm = outlier_zscore(&o->norm, norm);
    if (a->skip_loss > 0 && z_loss > a->skip_loss) { return "loss is an outlier"; }
    if (a->skip_norm > 0 && z_norm > a->skip_norm) { return "gradient norm is an outlier"; }
    return "";
}

// Returns the window as strings in the format %a, oldest value first: as numbers, cJSON 1.7.15 may print only 15
// digits. The caller deletes the array.
static inline cJSON *outlier_detector_to_json(const OutlierDetector *detector) {
    cJSON *array = cJSON_CreateArray();
    int64_t stored = detector->count < OUTLIER_WINDOW ? detector->count : (int64_t)OUTLIER_WINDOW;
    for (int64_t i = detector->count - stored; i < detector->count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%a", detector->window[i % OUTLIER_WINDOW]);
        cJSON_AddItemToArray(array, cJSON_CreateString(text));
    }
    return array;
}

// Restores a detector; later scores have the same bits. False, and nothing changed, for any other JSON.
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
        if (*end || !(fabs(x) <= FLT_MAX)) { return false; }
        loaded.window[loaded.count++] = x;
    }
    *detector = loaded;
    return true;
}

// adds the detectors to state.json; "guard" is their name since the first version
static inline void outliers_add(cJSON *state, const Outliers *o) {
    cJSON_AddItemToObject(state, "loss_guard", outlier_detector_to_json(&o->loss));
    cJSON_AddItemToObject(state, "norm_guard", outlier_detector_to_json(&o->norm));
}

// file: the path of state.json, for messages
static inline void outliers_restore(Outliers *o, const cJSON *state, const char *file) {
    if (outlier_detector_from_json(&o->loss, json_get(state, "loss_guard")) &&
        outlier_detector_from_json(&o->norm, json_get(state, "norm_guard"))) {
        return;
    }
    input_error("'%s' has no loss_guard and norm_guard of at most %d numbers: it was cut short or edited; resume from "
                "an earlier checkpoint",
                file, OUTLIER_WINDOW);
}

// ---- evaluations

// Losses are compared by the 9 digits of metrics.jsonl, so that a resumed run decides as an uninterrupted one.
typedef struct {
    bool scores_hellaswag;     // -h 1, and its file is there
    long long val, hellaswag;  // the last steps with a result; -1: none
    int every;                 // -v, at least 1
    uint64_t tokens;           // of a validation; losses of other tokens are not compared
    double lowest;             // validation loss; DBL_MAX: none
    long long lowest_step;     // its step
    int since;                 // validations after lowest_step
    double best;               // validation loss of the checkpoint RUN/best; DBL_MAX: none
    char patience_over[128];   // "" or why --patience ends the run
} Evaluations;

// x as logger_val writes it
static inline double logged_loss(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.9g", x);
    return strtod(text, NULL);
}

// Sets patience_over if --patience ends the run.
static inline void evaluations_apply_patience(Evaluations *e, int patience) {
    if (patience == 0 || e->since < patience) { return; }
    snprintf(e->patience_over, sizeof e->patience_over,
             "%d validations without a loss below the %.4f of step %lld; a larger --patience goes on", e->since,
             e->lowest, e->lowest_step);
}

// Records the validation of a step. A loss that is not finite never becomes the lowest. Only validations at multiples
// of -v count: others were made because a start ended there, and a resumed run must end as an uninterrupted one does.
static inline void evaluations_add(Evaluations *e, long long step, double loss) {
    e->val = step;
    if (!isfinite(loss) || step % e->every != 0) { return; }
    e->since++;
    if (logged_loss(loss) >= e->lowest) { return; }
    e->lowest = logged_loss(loss);
    e->lowest_step = step;
    e->since = 0;
}

// True if this step's HellaSwag score is missing. The untrained model gets none.
static inline bool hellaswag_due(const Evaluations *e, long long step) {
    return e->scores_hellaswag && step > 0 && e->hellaswag < step;
}

// True if this step's evaluation is missing. Unlike samples and checkpoints, one is due at step 0 too.
static inline bool evaluation_due(const Evaluations *e, const TrainArgs *a, long long step, bool ending) {
    bool due = a->val_every > 0 && (ending || step % a->val_every == 0);
    return due && (e->val < step || hellaswag_due(e, step));
}
