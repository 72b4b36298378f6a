// Fuzzes the files of a run that a resumed run reads: state.json with the outlier detectors, config.json with the
// flags, metrics.jsonl. The data that state.json speaks of is fixed: seeds.py knows it too.
#include "dev/fuzz/fuzz.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/run/data.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/logger.h"
#include "llmc/run/run_dir.h"

// Reads state.json as the trainer's restore_run does for step 3. read_data_state reads the part about the data.
static void read_state_json(const char *folder) {
    TrainArgs a = default_args;
    Outliers outliers;
    cJSON *state = checkpoint_load_state(folder);
    outliers_restore(&outliers, state, "state.json");
    for (int k = 0; k < 3; k++) { skip_reason(&a, &outliers, k, k); }
    fuzz_require(resumed_step(state, &a, 3, "state.json") == 3, "the step of the folder's name");
    int64_t planned = json_whole(state, "max_steps", 1, 1e12, "state.json");
    fuzz_require(planned >= 1 && planned <= 1000000000000, "a number within its bounds");
    cJSON_Delete(state);
}

static void read_metrics(const char *folder) {
    TrainArgs a = default_args;
    Comm *world = comm_single(&cpu_device);
    a.run_dir = folder;
    Evaluations e = evaluations_read(&a, NULL, 64, 3, world);
    fuzz_require(e.val <= 3 && e.hellaswag <= 3 && e.lowest_step <= 3 && e.since >= 0, "nothing after the step");
    logger_truncate(fuzz_path("metrics.jsonl"), 3, true, true);
    comm_close(world);
}

static void read_config(const char *folder) {
    char *arguments[] = {"train_gpt2", "-y", "1", "-o", (char *)folder};
    TrainArgs a;
    cJSON *config = read_flags(&a, 5, arguments);
    require_consistent_flags(&a);
    cJSON *saved = flags_to_json(flag_table, NUM_FLAGS, &a);
    cJSON_Delete(saved);
    cJSON_Delete(config);
}

// the data of the resumed run; a stopped reader leaves its loader open
static RunData *state_data(void) {
    static RunData data;
    return &data;
}
static void close_state_data(void) { dataloader_close(&state_data()->train_loader); }

static void open_state_data(RunData *d, const TrainArgs *a) {
    fuzz_write("data_1.txt", (FuzzBytes){(const uint8_t *)"the first file of the data", 26});
    fuzz_write("data_2.txt", (FuzzBytes){(const uint8_t *)"the second file of it", 21});
    memset(d, 0, sizeof *d);
    d->train_files = token_files_open("-i", a->train_data);
    snprintf(d->fingerprint, sizeof d->fingerprint, "0123456789abcdef");
    snprintf(d->val_fingerprint, sizeof d->val_fingerprint, "fedcba9876543210");
}

// state.json of a run, and the data of a run that resumes it
static void read_data_state(const char *folder) {
    RunData *d = state_data();
    TrainArgs a = default_args;
    a.T = 4;
    a.seed = 1;
    a.train_data = fuzz_path("data_?.txt");
    cJSON *state = checkpoint_load_state(folder);
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(state, "validation_held_out"))) { a.val_data = a.train_data; }
    open_state_data(d, &a);
    require_same_data_state(state, d, &a, "state.json");
    dataloader_open(&d->train_loader, &d->train_files, 2, a.T, true, (uint64_t)a.seed, 0, 1, BYTE_VOCABULARY);
    fuzz_on_stop(close_state_data);
    data_state_seek(state, d, "state.json");
    fuzz_require(d->train_loader.position <= 1ull << 53, "a position within its bounds");
    dataloader_next(&d->train_loader);
    close_state_data();
    token_files_close(&d->train_files);
    cJSON_Delete(state);
}

static void read_state(FuzzBytes input) {
    int kind = fuzz_choice(&input, 4);
    fuzz_write(kind == 1 ? "config.json" : kind == 2 ? "metrics.jsonl" : "state.json", input);
    if (kind == 0) { read_state_json(fuzz_state()->folder); }
    if (kind == 1) { read_config(fuzz_state()->folder); }
    if (kind == 2) { read_metrics(fuzz_state()->folder); }
    if (kind == 3) { read_data_state(fuzz_state()->folder); }
}

FUZZ_TARGET(state, read_state)
