// Fuzzes the files of a tokenizer: vocab.bpe and merges.txt, and llm.c's gpt2_tokenizer.bin. A text that follows the
// file is encoded and decoded with the tokenizer.
#include "dev/fuzz/fuzz.h"
#include "llmc/data/tokenizer_files.h"

// the tokens of a text decode to the text
static void check_round_trip(const Tokenizer *t, FuzzBytes text) {
    int *tokens;
    size_t count = tokenizer_encode(t, (const char *)text.data, text.size, &tokens), at = 0, bytes;
    for (size_t i = 0; i < count; i++) {
        const char *token = tokenizer_decode(t, tokens[i], &bytes);
        bool same = bytes > 0 && at + bytes <= text.size && memcmp(token, text.data + at, bytes) == 0;
        fuzz_require(same, "tokens that decode to the text");
        at += bytes;
    }
    fuzz_require(at == text.size, "tokens of the whole text");
    free(tokens);
}

static void read_merges(FuzzBytes input) {
    FuzzBytes file = fuzz_part(&input);
    Tokenizer t = tokenizer_open(fuzz_write("vocab.bpe", file));
    check_round_trip(&t, input.size ? input : file);
    fuzz_require(tokenizer_write_merges(&t, fuzz_path("merges.txt")) == 0, "to write the merges");
    Tokenizer again = tokenizer_open(fuzz_path("merges.txt"));
    bool plain = memcmp(t.byte_token, again.byte_token, sizeof t.byte_token) == 0;  // gpt2_tokenizer.bin has any order
    fuzz_require(!plain || tokenizer_fingerprint(&t) == tokenizer_fingerprint(&again),
                 "the same merges when read again");
    tokenizer_free(&again);
    tokenizer_free(&t);
}

FUZZ_TARGET(merges, read_merges)
