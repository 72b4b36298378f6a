// Fuzzes a model in Hugging Face's files: config.json, then model.safetensors; or an index, then config.json and two
// files of tensors. An empty config.json is missing.
#include "dev/fuzz/fuzz.h"
#include "llmc/checkpoint/model_file.h"

static void write_config(FuzzBytes part) {
    const char *path = fuzz_write("config.json", part);
    if (part.size == 0) { unlink(path); }
}

static void read_model(FuzzBytes input) {
    const char *path;
    if (fuzz_choice(&input, 2) == 0) {
        write_config(fuzz_part(&input));
        path = fuzz_write("model.safetensors", input);
    } else {
        path = fuzz_write("model.safetensors.index.json", fuzz_part(&input));
        write_config(fuzz_part(&input));
        fuzz_write("a.safetensors", fuzz_part(&input));
        fuzz_write("b.safetensors", input);
    }
    ModelFile model = model_open(path);
    real first;
    safetensors_read_real(&model.file, model_find(&model, "", "wte.weight"), 0, &first, 1);
    model_close(&model);
}

FUZZ_TARGET(model, read_model)
