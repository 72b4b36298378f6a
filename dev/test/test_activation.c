/*
A trainer with another activation than GELU: config.json names the activation that ran, models with another one are
refused, and no file of llm.c's or llama.cpp's is read or written, since these mean GELU. Here the other one is none.
*/
#include "llmc/activation.h"
#define MLP_ACTIVATION NO_ACTIVATION
#include "testing.h"
#include "llmc/checkpoint/hugging_face.h"
#include "llmc/run/export.h"

static const GPT2Config config = {16, 65, 128, 2, 2, 8};
static const char *folder;

static void check_config(void *config_json) { require_supported_variant((const cJSON *)config_json, "a config.json"); }

TEST(test_config_names_the_activation) {
    folder = new_folder("model");
    assert_int_equal(hugging_face_write(folder, &config, NULL), 0);
    cJSON *json = read_json(joined(folder, "config.json"));
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(json, "activation_function")), "linear");
    check_config(json);
    cJSON_ReplaceItemInObject(json, "activation_function", cJSON_CreateString("gelu_new"));
    assert_stops(2, "has \"gelu_new\" as \"activation_function\", expected \"linear\", which this trainer computes",
                 check_config, json);
    cJSON_DeleteItemFromObject(json, "activation_function");
    assert_stops(2, "has no value as \"activation_function\", expected \"linear\"", check_config, json);
    cJSON_Delete(json);
}

static void open_llmc(void *unused) {
    const int32_t header[LLMC_HEADER_INTS] = {20240326, LLMC_FP32, 16, 65, 2, 2, 8, 128};
    GPT2Config read;
    (void)unused;
    require_llmc_header(&read, header, "gpt2_124M.bin");
}

static void open_export(void *kind) {
    TrainArgs args;
    memset(&args, 0, sizeof args);
    args.run_dir = "model.gguf";
    export_open(&args, *(const int *)kind);
}

TEST(test_files_that_mean_gelu) {
    int kinds[] = {FILE_GGUF, FILE_LLMC_MODEL};
    assert_stops(2, "'gpt2_124M.bin' means a model with GELU to every program, and this trainer computes linear",
                 open_llmc, NULL);
    for (int i = 0; i < 2; i++) { assert_stops(2, "'model.gguf' means a model with GELU", open_export, &kinds[i]); }
}

int main(void) { return run_all_tests("another activation"); }
