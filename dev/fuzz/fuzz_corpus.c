// Fuzzes a corpus: JSON lines with a field, or text, whose pieces follow each other to its end.
#include "dev/fuzz/fuzz.h"
#include "llmc/data/corpus.h"

// the document of a piece; stops as --tokenize does
static void read_document(CorpusPiece *piece) {
    cJSON *json;
    const char *trouble, *text = corpus_document(piece->text, piece->bytes, CORPUS_FIELD, &json, &trouble);
    if (!text) { input_error("line %" PRIu64 " %s", piece->line, trouble); }
    cJSON_Delete(json);
}

// A text of `times` times the input: longer than a piece, though the input is short. The caller frees text.data.
static FuzzBytes repeat(FuzzBytes input, int times) {
    uint8_t *data = (uint8_t *)xmalloc(input.size * (size_t)times);
    for (int i = 0; i < times; i++) { memcpy(data + (size_t)i * input.size, input.data, input.size); }
    FuzzBytes text = {data, input.size * (size_t)times};
    return text;
}

static void read_corpus(FuzzBytes input) {
    bool is_json = fuzz_choice(&input, 2) == 0;
    FuzzBytes text = repeat(input, is_json ? 1 : 1 + 2 * fuzz_choice(&input, 48));
    Corpus c = corpus_open("-i", fuzz_write(is_json ? "corpus.jsonl" : "corpus.txt", text), NULL);
    CorpusPiece piece;
    for (uint64_t at = 0; corpus_next(&c, &piece); at = c.bytes_read) {
        bool same = is_json || memcmp(piece.text, text.data + at, piece.bytes) == 0;
        fuzz_require(same && piece.bytes <= c.bytes_read - at, "the pieces in their order");
        if (is_json) { read_document(&piece); }
    }
    fuzz_require(c.bytes_read == text.size, "all bytes of the text");
    corpus_close(&c);
    free((void *)text.data);
}

FUZZ_TARGET(corpus, read_corpus)
