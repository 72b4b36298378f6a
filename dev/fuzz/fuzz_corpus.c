// Fuzzes a corpus: JSON lines with a field, or text. Its pieces are compared with the lines of the text.
#include "dev/fuzz/fuzz.h"
#include "llmc/data/corpus.h"

// A text of `times` times the input: longer than a piece, though the input is short. The caller frees text.data.
static FuzzBytes repeat(FuzzBytes input, int times) {
    uint8_t *data = (uint8_t *)xmalloc(input.size * (size_t)times + 1);
    for (int i = 0; i < times; i++) { memcpy(data + (size_t)i * input.size, input.data, input.size); }
    FuzzBytes text = {data, input.size * (size_t)times};
    return text;
}

// the next line from *at on, without its end
static FuzzBytes next_line(FuzzBytes text, size_t *at) {
    const uint8_t *start = text.data + *at, *newline = (const uint8_t *)memchr(start, '\n', text.size - *at);
    FuzzBytes line = {start, newline ? (size_t)(newline - start) : text.size - *at};
    *at += line.size + (newline != NULL);
    return line;
}

// kept = the lines that are not <|endoftext|>. Returns the number of documents: runs of such lines that have bytes.
static int split_documents(FuzzBytes text, FuzzBytes *kept) {
    static const char separator[] = "<|endoftext|>\r";
    uint8_t *to = (uint8_t *)kept->data;
    int documents = 0;
    bool in_document = false;
    for (size_t at = 0; at < text.size;) {
        size_t begin = at;
        FuzzBytes line = next_line(text, &at);
        bool ends = (line.size == 13 || line.size == 14) && memcmp(line.data, separator, line.size) == 0;
        documents += !ends && !in_document;
        in_document = !ends;
        if (ends) { continue; }
        memcpy(to + kept->size, text.data + begin, at - begin);
        kept->size += at - begin;
    }
    return documents;
}

static void check_text(Corpus *c, FuzzBytes text) {
    FuzzBytes kept = {(uint8_t *)xmalloc(text.size + 1), 0};
    int documents = split_documents(text, &kept), ended = 0;
    size_t at = 0;
    for (CorpusPiece piece; corpus_next(c, &piece); at += piece.bytes, ended += piece.ends_document) {
        fuzz_require(piece.bytes <= kept.size - at && memcmp(piece.text, kept.data + at, piece.bytes) == 0,
                     "the pieces in their order");
    }
    fuzz_require(at == kept.size, "all bytes of the documents");
    fuzz_require(ended == documents, "the end of each document");
    free((void *)kept.data);
}

static void check_json(Corpus *c, FuzzBytes text) {
    uint64_t number = 0;
    size_t at = 0;
    if (text.size >= 3 && memcmp(text.data, "\xef\xbb\xbf", 3) == 0) { at = 3; }
    for (CorpusPiece piece; corpus_read(c, &piece);) {
        FuzzBytes line;
        do {
            fuzz_require(at < text.size, "a line for each piece");
            line = next_line(text, &at);
            number++;
            while (line.size > 0 && strchr(" \t\r", line.data[line.size - 1])) { line.size--; }
        } while (line.size == 0);
        fuzz_require(c->line == number && piece.bytes == line.size && memcmp(piece.text, line.data, line.size) == 0,
                     "the lines in their order");
        corpus_take_document(c, &piece);  // stops as --tokenize does
    }
}

static void read_corpus(FuzzBytes input) {
    bool is_json = fuzz_choice(&input, 2) == 0;
    int times = is_json ? 1 : 1 + 2 * fuzz_choice(&input, 48);
    FuzzBytes text = repeat(input, times);
    const char *path = fuzz_write(is_json ? "corpus.jsonl" : "corpus.txt", text);
    Corpus c = corpus_open("-i", path, NULL);
    if (is_json || file_kind(path) == FILE_JSON) {
        check_json(&c, text);
    } else {
        check_text(&c, text);
    }
    fuzz_require(c.bytes_read == text.size, "all bytes of the text");
    corpus_close(&c);
    free((void *)text.data);
}

FUZZ_TARGET(corpus, read_corpus)
