/*
The tensors of a file as one flat block, as tests compare them.
defines: block_load
*/
#pragma once
#include "llmc/checkpoint/model_state.h"

// block (param_layout(config).total) = the tensors prefix + name of a file, on the host
static inline void block_load(const ModelFile *file, const char *prefix, real *block) {
    ModelState s = {&file->config, &cpu_device, {0}, {0}, NULL, NULL};
    s.optimizer.params = (floatX *)xcalloc(param_layout(&file->config).total, sizeof(floatX));
    s.optimizer.master = block;
    state_load(file, prefix, &s);
    free(s.optimizer.params);
}
