// Fuzzes llm.c's model files.
#include "dev/fuzz/fuzz.h"
#include "llmc/checkpoint/model_file.h"

static void read_llmc(FuzzBytes input) {
    const char *path = fuzz_write(fuzz_choice(&input, 2) == 0 ? "model.bin" : "model", input);
    ModelFile model = model_open(path);
    for (int i = 0; i < model.file.num_tensors; i++) {
        real first;
        safetensors_read_real(&model.file, &model.file.tensors[i], 0, &first, 1);
    }
    model_close(&model);
}

FUZZ_TARGET(llmc, read_llmc)
