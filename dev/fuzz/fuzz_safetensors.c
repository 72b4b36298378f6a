// Fuzzes .safetensors: the header, and reading every byte and every number of the tensors.
#include "dev/fuzz/fuzz.h"
#include "llmc/checkpoint/safetensors.h"

static void read_tensor(const SafeTensors *st, const SafeTensor *t) {
    size_t bytes = (size_t)(t->end - t->begin), size = t->dtype == NUM_DTYPES ? 0 : dtype_size(t->dtype);
    char *raw = (char *)xmalloc(bytes);
    safetensors_read(st, t, 0, raw, bytes);
    free(raw);
    if (size == 0 || t->dtype == DT_U8) { return; }
    real *numbers = (real *)xmalloc(bytes / size * sizeof *numbers);
    safetensors_read_real(st, t, 0, numbers, bytes / size);
    free(numbers);
}

static void read_safetensors(FuzzBytes input) {
    SafeTensors st = safetensors_open(fuzz_write("model.safetensors", input));
    for (int i = 0; i < st.num_tensors; i++) {
        fuzz_require(safetensors_find(&st, st.tensors[i].name) == &st.tensors[i], "to find each tensor by its name");
        read_tensor(&st, &st.tensors[i]);
    }
    safetensors_close(&st);
}

FUZZ_TARGET(safetensors, read_safetensors)
