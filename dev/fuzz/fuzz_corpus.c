// Fuzzes a corpus: JSON lines with a field, or text with and without a separator. A corpus that is read again from a
// place between two pieces goes on with the same pieces. Kind 3 is OUT_tokenize.json, the place where --tokenize goes
// on in a fixed corpus with fixed shards.
#include "dev/fuzz/fuzz.h"
#include "llmc/files/corpus.h"
#include "llmc/run/tokenize.h"

// the document of a piece; stops as --tokenize does
static void read_document(const CorpusPiece *piece) {
    char *line = (char *)xmalloc(piece->bytes + 1);
    memcpy(line, piece->text, piece->bytes);
    cJSON *json;
    const char *trouble, *text = corpus_document(line, piece->bytes, CORPUS_FIELD, &json, &trouble);
    if (!text) { input_error("line %" PRIu64 " %s", piece->line, trouble); }
    cJSON_Delete(json);
    free(line);
}

static uint64_t hash_piece(uint64_t hash, const CorpusPiece *piece) {
    return hash_word(hash_bytes(hash, piece->text, piece->bytes), (uint64_t)piece->ends_document);
}

// hash of the pieces from a position on
static uint64_t hash_rest(const char *path, const char *separator, CorpusPosition at) {
    Corpus c = corpus_open(path, NULL, separator);
    CorpusPiece piece;
    uint64_t hash = 0;
    corpus_seek(&c, at);
    while (corpus_next(&c, &piece)) { hash = hash_piece(hash, &piece); }
    corpus_close(&c);
    return hash;
}

// A text of `times` times the input: longer than a piece, though the input is short. The caller frees text.data.
static FuzzBytes repeat(FuzzBytes input, int times) {
    uint8_t *data = (uint8_t *)xmalloc(input.size * (size_t)times);
    for (int i = 0; i < times; i++) { memcpy(data + (size_t)i * input.size, input.data, input.size); }
    FuzzBytes text = {data, input.size * (size_t)times};
    return text;
}

static TokenizeJob *open_tokenize_job(const char *out) {
    static TokenizeJob job;
    static const uint8_t text[] = "one\n%%\ntwo\n%%\nthree\n", shard[1024 + 2 * 40];
    memset(&job, 0, sizeof job);
    job.corpus = corpus_open(fuzz_write("corpus.txt", (FuzzBytes){text, sizeof text - 1}), NULL, "%%");
    job.writer = (ShardWriter){out, 300, 100, {{NULL, 0}, {NULL, 0}}, 0, {0, 0}};
    snprintf(job.fingerprint, sizeof job.fingerprint, "0123456789abcdef");
    fuzz_write("out_train_000001.bin", (FuzzBytes){shard, sizeof shard});
    fuzz_write("out_train_000002.bin.part", (FuzzBytes){shard, sizeof shard});
    fuzz_write("out_val_000000.bin.part", (FuzzBytes){shard, sizeof shard});
    return &job;
}

// Continues from a saved place like tokenize_corpus, but in this thread, and with zeros instead of a tokenizer's ids.
static void go_on_with_tokenize(FuzzBytes input) {
    static const uint16_t tokens[150];
    char out[PATH_LENGTH];
    CorpusPiece piece;
    fuzz_empty_folder();  // shards have other names each time
    format_path(out, "%s", fuzz_path("out"));
    TokenizeJob *job = open_tokenize_job(out);
    format_path(job->state_path, "%s", fuzz_write("out_tokenize.json", input));
    tokenize_continue(job);
    fuzz_require(job->first_byte <= corpus_bytes(&job->corpus), "a place in the corpus");
    uint64_t before = job->writer.written[SHARD_TRAIN];
    while (corpus_next(&job->corpus, &piece)) { job->documents += piece.ends_document; }
    shard_writer_append(&job->writer, SHARD_TRAIN, tokens, 150);
    shard_writer_append(&job->writer, SHARD_VAL, tokens, 5);
    shard_writer_close(&job->writer);
    fuzz_require(job->writer.written[SHARD_TRAIN] == before + 150, "tokens after those of the first run");
    corpus_close(&job->corpus);
}

static void read_corpus(FuzzBytes input) {
    int kind = fuzz_choice(&input, 4);  // 0: JSON lines, 1: text, 2: text with a separator, 3: a place
    if (kind == 3) {
        go_on_with_tokenize(input);
        return;
    }
    FuzzBytes text = repeat(input, kind == 0 ? 1 : 1 + 2 * fuzz_choice(&input, 48));
    const char *path = fuzz_write(kind == 0 ? "corpus.jsonl" : "corpus.txt", text);
    const char *separator = kind == 2 ? "%%" : NULL;
    Corpus c = corpus_open(path, NULL, separator);
    CorpusPiece piece;
    CorpusPosition at = corpus_position(&c);
    uint64_t hash = 0, bytes = 0;
    for (int pieces = 0; corpus_next(&c, &piece); pieces++) {
        if (piece.is_json) { read_document(&piece); }
        hash = hash_piece(hash, &piece);
        bytes += piece.bytes;
        if (pieces % 8 != 3) { continue; }
        at = corpus_position(&c);
        hash = 0;
    }
    fuzz_require(kind != 1 || bytes == text.size, "all bytes of a text");
    fuzz_require(hash == hash_rest(path, separator, at), "the same pieces from a place in the middle");
    corpus_close(&c);
    free((void *)text.data);
}

FUZZ_TARGET(corpus, read_corpus)
