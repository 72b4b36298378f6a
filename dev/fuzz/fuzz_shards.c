// Fuzzes token shards and text to train on, with the loader that reads them in a thread.
#include "dev/fuzz/fuzz.h"
#include "llmc/data/dataloader.h"
#include "llmc/common/file_kind.h"

// A stopped reader leaves the loader open, so the loader is no local variable.
static DataLoader *fuzzed_loader(void) {
    static DataLoader loader;
    return &loader;
}
static void close_fuzzed_loader(void) { dataloader_close(fuzzed_loader()); }

static void read_batches(const TokenFiles *files, int B, int T) {
    DataLoader *l = fuzzed_loader();
    dataloader_open(l, files, B, T, true, 1, 0, 1, files->vocab_size);
    fuzz_on_stop(close_fuzzed_loader);
    for (int i = 0; i < 4; i++) {
        dataloader_next(l);
        for (int t = 0; t < B * T; t++) {
            bool in_vocabulary = l->inputs[t] >= 0 && l->inputs[t] < files->vocab_size;
            fuzz_require(in_vocabulary, "ids within the vocabulary");
        }
        dataloader_seek(l, 1000 * (uint64_t)i);
    }
    dataloader_close(l);
}

static void read_shards(FuzzBytes input) {
    static const char *const names[] = {"tokens.bin", "text.txt"};
    int kind = fuzz_choice(&input, 2), T = 1 + fuzz_choice(&input, 16), B = 1 + fuzz_choice(&input, 3);
    const char *path = fuzz_write(names[kind], input);
    TokenFiles files = token_files_open("-i", path), train, val;
    if (token_files_are_text(&files)) { refuse_binary("-i", path); }
    token_files_split(&files, 0.25, &train, &val);
    token_files_fingerprint(&files, true);
    read_batches(&train, B, T);
    token_files_close(&train);
    token_files_close(&val);
    token_files_close(&files);
}

FUZZ_TARGET(shards, read_shards)
