/*
Evaluation of a model: the validation loss, HellaSwag, and --eval, which scores a file.

Text        Every token of a document is scored once. The first one is predicted from end-of-text, or from a newline in
            a byte model. A window predicts the next -t tokens, or what is left of the document, and the model reads the
            -t tokens before the last one, as in lm-eval's loglikelihood_rolling.
Documents   A document is a text file, a line of JSON or a token shard. If a shard begins with end-of-text, we only read
            that token as context. Other end-of-text tokens are scored, but have no bytes.
Batches     Sequences are packed one after another into a micro-batch, each with its own positions and attention.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/file_kind.h"
#include "llmc/common/floatx.h"
#include "llmc/common/progress.h"
#include "llmc/common/range.h"
#include "llmc/data/corpus.h"
#include "llmc/data/dataloader.h"
#include "llmc/data/hellaswag.h"
#include "llmc/data/tokenizer.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/text.h"
#include "llmc/run/train_args.h"
#include "llmc/shapes/params.h"

// A model as an evaluation sees it.
typedef struct {
    void *model;
    const Groups *groups;
    int B, T;  // a micro-batch has at most B*T positions, and sequences of at most T
    int vocab_size;
    // Returns the losses of a micro-batch (B,T) over B*T; a position without a target has none. losses (B,T), on the
    // host = the loss at each position; may be NULL.
    real (*loss)(void *model, int B, int T, const int *inputs, const int *targets, PackedSequences packed,
                 real *losses);
    double (*sum)(void *model, double x);  // sums x over the data-parallel ranks, in fp32
} EvalModel;

// ---- validation

// Returns the number of bytes of each token (V), which is 0 for special tokens. The caller frees the array.
static inline int *eval_token_bytes(const Tokenizer *tokenizer, int V) {
    int *bytes = (int *)xcalloc((size_t)V, sizeof *bytes);
    for (int id = 0; id < V; id++) {
        size_t count;
        tokenizer_decode(tokenizer, id, &count);
        bool special = tokenizer->merges && id < tokenizer->vocab_size && (tokenizer->kind[id] & TOKEN_SPECIAL);
        bytes[id] = special ? 0 : (int)count;
    }
    return bytes;
}

static inline double eval_bits_per_byte(double nats, double bytes) { return bytes > 0 ? nats / log(2) / bytes : NAN; }

typedef struct {
    double loss, bits_per_byte;  // loss: in nats per token
} Validation;

// Scores val_batches micro-batches of the loader, or all if it is -1. Ranks take turns, so the same tokens are scored
// with any number of ranks. A forward all-gathers weights with -z 3, so every rank runs the same number of forwards,
// and a rank without a micro-batch ignores its loss. If the tokenizer is NULL, bits_per_byte is NAN.
static inline Validation validate(const EvalModel *m, DataLoader *loader, int val_batches, const Tokenizer *tokenizer) {
    int ranks = m->groups->dp->size, rank = m->groups->dp->rank, B = loader->B, T = loader->T;
    int64_t all = (int64_t)dataloader_batches(loader);
    int64_t batches = val_batches < 0 || val_batches > all ? all : val_batches;
    size_t positions = (size_t)B * (size_t)T;
    int *token_bytes = tokenizer ? eval_token_bytes(tokenizer, m->vocab_size) : NULL;
    double sum = 0, targets = 0, bytes = tokenizer ? 0 : NAN;  // targets: as a share of a micro-batch
    dataloader_seek(loader, 0);
    for (int64_t i = 0; i < batches && !agreed_signal(m->groups->world); i += ranks) {
        dataloader_next(loader);
        double loss = (double)m->loss(m->model, B, T, loader->inputs, loader->targets, loader->packed, NULL);
        if (i + rank >= batches) { continue; }
        sum += loss;
        int scored = 0;
        for (size_t n = 0; n < positions; n++) {
            scored += loader->targets[n] >= 0;
            if (token_bytes && loader->targets[n] >= 0) { bytes += token_bytes[loader->targets[n]]; }
        }
        targets += (double)scored / (double)positions;
    }
    free(token_bytes);
    sum = m->sum(m->model, sum);
    targets = m->sum(m->model, targets);
    Validation v = {sum / targets, eval_bits_per_byte(sum * (double)positions, m->sum(m->model, bytes))};
    return v;
}

// ---- sequences of different lengths in micro-batches

typedef struct {
    const EvalModel *m;
    int *inputs, *targets;  // (B,T) target -1: no loss
    Range *sequences;       // (num_sequences)
    double **sums;          // (num_sequences) where to add the losses of each sequence
    int num_sequences;
    size_t used;  // positions
    real *losses;
} ScoreBatch;

static inline size_t score_batch_positions(const EvalModel *m) { return (size_t)m->B * (size_t)m->T; }

static inline ScoreBatch score_batch_open(const EvalModel *m) {
    ScoreBatch b;
    size_t positions = score_batch_positions(m);
    memset(&b, 0, sizeof b);
    b.m = m;
    b.inputs = (int *)xmalloc(positions * sizeof *b.inputs);
    b.targets = (int *)xmalloc(positions * sizeof *b.targets);
    b.sequences = (Range *)xmalloc(positions * sizeof *b.sequences);
    b.sums = (double **)xmalloc(positions * sizeof *b.sums);
    b.losses = (real *)xmalloc(positions * sizeof *b.losses);
    return b;
}

static inline void score_batch_close(ScoreBatch *b) {
    free(b->inputs);
    free(b->targets);
    free(b->sequences);
    free(b->sums);
    free(b->losses);
}

static inline bool score_batch_fits(const ScoreBatch *b, int length) {
    return b->used + (size_t)length - 1 <= score_batch_positions(b->m);
}

// Adds 2 to T + 1 tokens, which must fit. score_batch_run adds the losses of the last `scored` ones to *sum.
static inline void score_batch_add(ScoreBatch *b, const int *ids, int length, int scored, double *sum) {
    Range range = {b->used, (size_t)length - 1};
    for (int i = 1; i < length; i++, b->used++) {
        b->inputs[b->used] = ids[i - 1];
        b->targets[b->used] = i < length - scored ? -1 : ids[i];
    }
    b->sequences[b->num_sequences] = range;
    b->sums[b->num_sequences++] = sum;
}

// Scores the added sequences and empties the batch. An empty batch runs a forward too, since with -z 3 other ranks wait
// for this one. With -tp it has all B rows, since each rank needs some; otherwise just enough.
static inline void score_batch_run(ScoreBatch *b) {
    const EvalModel *m = b->m;
    size_t T = (size_t)m->T, rows = m->groups->tp->size > 1 ? (size_t)m->B : b->used ? (b->used + T - 1) / T : 1;
    int count = b->num_sequences;
    for (Range rest = {b->used, 0}; rest.offset < rows * T; rest.offset += rest.count) {  // at most T positions each
        rest.count = rows * T - rest.offset < T ? rows * T - rest.offset : T;
        b->sequences[count++] = rest;
    }
    for (; b->used < rows * T; b->used++) {
        b->inputs[b->used] = 0;
        b->targets[b->used] = -1;
    }
    PackedSequences packed = {b->sequences, count};
    m->loss(m->model, (int)rows, m->T, b->inputs, b->targets, packed, b->losses);
    for (int s = 0; s < b->num_sequences; s++) {
        const real *losses = b->losses + b->sequences[s].offset;
        for (size_t i = 0; i < b->sequences[s].count; i++) { *b->sums[s] += (double)losses[i]; }
    }
    b->num_sequences = 0;
    b->used = 0;
}

// ---- HellaSwag

// Returns the summed loss of each row's scored tokens (num_rows); the caller frees it. Data-parallel ranks take turns,
// and the rows of other ranks stay 0. If a signal arrives, the remaining rows stay 0 too.
static inline double *score_hellaswag_rows(const EvalModel *m, const HellaSwag *set) {
    double *sums = (double *)xcalloc((size_t)set->num_rows, sizeof *sums);
    ScoreBatch batch = score_batch_open(m);
    int done = 0;
    while (comm_max(set->num_rows - done, m->groups->world) > 0 && !agreed_signal(m->groups->world)) {
        for (; done < set->num_rows; done++) {
            const HellaSwagRow *row = &set->rows[done];
            if (done / HELLASWAG_ENDINGS % m->groups->dp->size != m->groups->dp->rank) { continue; }
            if (!score_batch_fits(&batch, row->length)) { break; }
            score_batch_add(&batch, set->tokens + row->start, row->length, row->scored, &sums[done]);
        }
        score_batch_run(&batch);
        progress_show("HellaSwag", done, set->num_rows);
    }
    progress_show("HellaSwag", -1, 0);
    score_batch_close(&batch);
    return sums;
}

// Returns the accuracy over all data-parallel ranks: in how many examples the true ending has the lowest mean loss.
static inline double score_hellaswag(const EvalModel *m, const HellaSwag *set) {
    double correct = 0, *sums = score_hellaswag_rows(m, set);
    for (int e = m->groups->dp->rank; e < hellaswag_examples(set); e += m->groups->dp->size) {
        correct += hellaswag_chooses_true(set, e, sums);
    }
    free(sums);
    return m->sum(m->model, correct) / hellaswag_examples(set);
}

// ---- the losses of texts

typedef struct {
    ScoreBatch batch;
    int *window;        // the last tokens of the document, room for 2 * T
    int held, pending;  // tokens in the window, and how many of them are not scored yet
    double nats;
    uint64_t documents, tokens, bytes;
} TextScore;

// *s must not move until score_text_close.
static inline void score_text_open(TextScore *s, const EvalModel *m) {
    memset(s, 0, sizeof *s);
    s->batch = score_batch_open(m);
    s->window = (int *)xmalloc(2 * (size_t)m->T * sizeof *s->window);
}

static inline void score_text_close(TextScore *s) {
    score_batch_close(&s->batch);
    free(s->window);
}

// Scores the pending tokens: the model reads at most T tokens before the last one. The last T tokens stay in the
// window, as context of the next ones.
static inline void score_text_window(TextScore *s) {
    int T = s->batch.m->T, length = s->held < T + 1 ? s->held : T + 1, kept = s->held < T ? s->held : T;
    if (s->pending == 0) { return; }
    if (!score_batch_fits(&s->batch, length)) { score_batch_run(&s->batch); }
    score_batch_add(&s->batch, s->window + s->held - length, length, s->pending, &s->nats);
    s->tokens += (uint64_t)s->pending;
    memmove(s->window, s->window + s->held - kept, (size_t)kept * sizeof *s->window);
    s->held = kept;
    s->pending = 0;
}

// Begins a document. The model reads `context`, which is not scored.
static inline void score_text_begin(TextScore *s, int context) {
    s->window[0] = context;
    s->held = 1;
    s->pending = 0;
    s->documents++;
}

static inline void score_text_tokens(TextScore *s, const int *ids, size_t count) {
    for (size_t i = 0; i < count; i++) {
        s->window[s->held++] = ids[i];
        if (++s->pending == s->batch.m->T) { score_text_window(s); }
    }
}

// ---- --eval

// The file holds HellaSwag's examples, token shards or text; the other two members are empty.
typedef struct {
    const TrainArgs *args;
    const Tokenizer *tokenizer;  // NULL: unknown
    HellaSwag hellaswag;
    TokenFiles shards;
    Corpus text;
} EvalFile;

// Opens the file of --eval, and reads HellaSwag whole. tokenizer: NULL if unknown. Close with eval_close.
static inline void eval_open(EvalFile *f, const TrainArgs *a, const GPT2Config *c, const Tokenizer *tokenizer) {
    memset(f, 0, sizeof *f);
    f->args = a;
    f->tokenizer = tokenizer;
    if (file_kind(a->eval) == FILE_HELLASWAG) {
        f->hellaswag = hellaswag_read_bin("--eval", a->eval, a->T, c->vocab_size);
        return;
    }
    if (kind_of_first(a->eval) == FILE_TOKENS) {
        f->shards = token_files_open("--eval", a->eval);
        return;
    }
    require_tokenizer(tokenizer, "--eval", a->eval, c->vocab_size);
    if (hellaswag_is_json(a->eval)) {
        f->hellaswag = hellaswag_read_json("--eval", a->eval, tokenizer, a->T);
    } else {
        f->text = corpus_open("--eval", a->eval, a->field);
        f->text.tokenizer = tokenizer;
    }
}

static inline void eval_close(EvalFile *f) {
    if (f->shards.files) { token_files_close(&f->shards); }
    if (f->text.paths) { corpus_close(&f->text); }
    hellaswag_close(&f->hellaswag);
}

static inline void eval_print(const char *name, double value) { printf("%-16s %.6f\n", name, value); }
static inline void eval_print_count(const char *name, uint64_t value) { printf("%-16s %" PRIu64 "\n", name, value); }

static inline void eval_text(TextScore *s, EvalFile *f) {
    CorpusPiece piece;
    TokenizerEncoder encoder;
    memset(&encoder, 0, sizeof encoder);
    for (bool inside = false; corpus_next(&f->text, &piece);) {
        if (!inside && (piece.bytes > 0 || piece.ends_document)) { score_text_begin(s, f->tokenizer->end_of_text); }
        int *ids = (int *)xmalloc((piece.bytes + 1) * sizeof *ids);
        score_text_tokens(s, ids, tokenizer_encode_with(f->tokenizer, &encoder, piece.text, piece.bytes, ids));
        s->bytes += piece.bytes;
        free(ids);
        if (piece.ends_document) { score_text_window(s); }
        inside = !piece.ends_document && (inside || piece.bytes > 0);
        progress_show("--eval", (double)f->text.bytes_read, (double)f->text.bytes);
    }
    progress_show("--eval", -1, 0);
    f->text.specials += encoder.specials_as_text;
    corpus_print_notes(stderr, &f->text);
    tokenizer_free_encoder(&encoder);
}

// Scores each shard as a document. If its first token is end-of-text, it is only context.
static inline void eval_shards(TextScore *s, const EvalFile *f) {
    const size_t chunk = 64 << 10;  // tokens read at once
    int V = s->batch.m->vocab_size, *token_bytes = f->tokenizer ? eval_token_bytes(f->tokenizer, V) : NULL;
    int *ids = (int *)xmalloc(chunk * sizeof *ids), end_of_text = document_start(f->tokenizer, f->shards.vocab_size);
    TokenReader reader = token_reader_open(&f->shards, chunk, V);
    for (int file = 0; file < f->shards.num_files; file++) {
        const TokenFile *shard = &f->shards.files[file];
        score_text_begin(s, end_of_text);
        for (uint64_t at = 0; at < shard->num_tokens; at += chunk) {
            size_t count = shard->num_tokens - at < chunk ? (size_t)(shard->num_tokens - at) : chunk;
            if (!token_reader_read(&reader, ids, file, shard->first_token + at, count)) { token_reader_stop(&reader); }
            size_t skipped = at == 0 && ids[0] == end_of_text;
            for (size_t i = skipped; token_bytes && i < count; i++) { s->bytes += (uint64_t)token_bytes[ids[i]]; }
            score_text_tokens(s, ids + skipped, count - skipped);
            progress_show("--eval", (double)s->tokens, (double)token_files_total(&f->shards));
        }
        score_text_window(s);
    }
    progress_show("--eval", -1, 0);
    if (vocab_differs(V, f->shards.vocab_size)) { fputs("note      " VOCAB_NOTE "\n", stderr); }
    token_reader_close(&reader);
    free(token_bytes);
    free(ids);
}

// Scores the file and prints the result: a line for each name and value.
static inline void eval_run(EvalFile *f, const EvalModel *m) {
    if (f->hellaswag.num_rows > 0) {
        eval_print_count("examples", (uint64_t)hellaswag_examples(&f->hellaswag));
        eval_print("acc_llmc", score_hellaswag(m, &f->hellaswag));
        hellaswag_print_cut(&f->hellaswag, "note             ");
        return;
    }
    TextScore s;
    score_text_open(&s, m);
    if (f->shards.files) {
        eval_shards(&s, f);
    } else {
        eval_text(&s, f);
    }
    if (s.batch.used > 0) { score_batch_run(&s.batch); }
    score_text_close(&s);
    if (s.tokens == 0) { input_error("--eval %s holds no text to score", f->args->eval); }
    eval_print_count("documents", s.documents);
    eval_print_count("tokens", s.tokens);
    if (s.bytes > 0) { eval_print_count("bytes", s.bytes); }
    eval_print("loss", s.nats / (double)s.tokens);
    eval_print("perplexity", exp(s.nats / (double)s.tokens));
    if (s.bytes > 0) { eval_print("bits_per_byte", eval_bits_per_byte(s.nats, (double)s.bytes)); }
    if (s.bytes == 0) { printf("note             without --tokenizer the bytes of the tokens are unknown\n"); }
}
