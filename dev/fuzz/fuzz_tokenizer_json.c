// Fuzzes tokenizer.json.
#include "dev/fuzz/fuzz.h"
#include "llmc/data/tokenizer_files.h"

static void read_tokenizer_json(FuzzBytes input) {
    const char *path = fuzz_write("tokenizer.json", input);
    bool known = tokenizer_json_is_known(path);
    Tokenizer t = tokenizer_open(path);
    fuzz_require(known, "no tokenizer of an unknown kind");
    fuzz_require(t.vocab_size >= 256, "a token for each byte");
    tokenizer_free(&t);
}

FUZZ_TARGET(tokenizer_json, read_tokenizer_json)
