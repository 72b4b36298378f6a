/*
Evaluation of a model: the validation loss, multiple-choice examples, and --eval, which scores a file.
defines: EvalModel, Validation, validate, score_hellaswag, EvalFile, eval_open, eval_run, eval_close

Text        Every token of a document is scored once. The context of the first token is end-of-text; for bytes, a
            newline. The first window predicts -t tokens, every later one --stride more, and the last one the rest. A
            window reads the -t tokens before its last token. With --stride at its default of -t, these are the windows
            of lm-eval's loglikelihood_rolling.
Documents   a file of text, a line of JSON, or a token shard. An end-of-text at the start of a shard is context only.
            Another one in a shard is scored, and counts no bytes.
Rows        Sequences of a micro-batch have the length of the longest one, rounded up to 16. Positions after the end of
            a sequence are token 0, and their losses are not used.
*/
#pragma once
#include "llmc/files/choices_bin.h"
#include "llmc/files/choices_json.h"
#include "llmc/run/data.h"
#include "llmc/run/ranks.h"
#include "llmc/run/signals.h"
#include "llmc/run/text.h"
#include <assert.h>

// a model as an evaluation sees it
typedef struct {
    void *model;
    const Groups *groups;
    int B, T;  // a micro-batch has at most B*T positions, and sequences of at most T
    int vocab_size;
    // The mean loss of the rows of a micro-batch (B,T). losses (B,T): NULL, or the loss at each position, on the host.
    real (*loss)(void *model, int B, int T, const int *inputs, const int *targets, Documents documents, real *losses);
    // logits (vocab_size), on the host: after position row * T + t of the last micro-batch
    void (*logits)(void *model, int position, float *logits);
    double (*sum)(void *model, double x);  // over the data-parallel ranks, in fp32
} EvalModel;

// ---- validation

typedef struct {
    double loss;           // nats per token
    double bits_per_byte;  // NAN without a tokenizer
} Validation;

// (V) the bytes of each token, end-of-text 0; the caller frees them. In a vocabulary of bytes every token has one.
static inline int *eval_token_bytes(const Tokenizer *tokenizer, int V) {
    int *bytes = (int *)xcalloc((size_t)V, sizeof *bytes);
    for (int id = 0; id < V; id++) {
        size_t count;
        tokenizer_decode(tokenizer, id, &count);
        bytes[id] = tokenizer->merges && id == tokenizer->end_of_text ? 0 : (int)count;
    }
    return bytes;
}

static inline double eval_bits_per_byte(double nats, double bytes) { return bytes > 0 ? nats / log(2) / bytes : NAN; }

// The loss of val_batches micro-batches of the loader for each rank, -1 for all. Ranks take the batches in turn. Every
// rank makes the same number of forwards, since -z 3 all-gathers in each; surplus losses are ignored. A row without a
// target has no loss. tokenizer: NULL if unknown.
static inline Validation validate(const EvalModel *m, DataLoader *loader, int val_batches, const Tokenizer *tokenizer) {
    int ranks = m->groups->dp->size, rank = m->groups->dp->rank, B = loader->B, T = loader->T;
    int64_t all = (int64_t)dataloader_batches(loader), wanted = (int64_t)val_batches * ranks;
    int64_t batches = wanted < 0 || wanted > all ? all : wanted;
    size_t positions = (size_t)B * (size_t)T;
    int *token_bytes = tokenizer ? eval_token_bytes(tokenizer, m->vocab_size) : NULL;
    double sum = 0, targets = 0, bytes = tokenizer ? 0 : NAN;  // targets: as a share of a micro-batch
    dataloader_seek(loader, 0);
    for (int64_t i = 0; i < batches && !agreed_signal(m->groups->world); i += ranks) {
        dataloader_next(loader);
        double loss = (double)m->loss(m->model, B, T, loader->inputs, loader->targets, loader->documents, NULL);
        if (i + rank >= batches) { continue; }
        sum += loss;
        targets += (double)loader->num_targets / (double)positions;
        for (size_t n = 0; token_bytes && n < positions; n++) {
            if (loader->targets[n] >= 0) { bytes += token_bytes[loader->targets[n]]; }
        }
    }
    free(token_bytes);
    Validation v;
    sum = m->sum(m->model, sum);
    v.loss = sum / m->sum(m->model, targets);
    v.bits_per_byte = eval_bits_per_byte(sum * (double)positions, m->sum(m->model, bytes));
    return v;
}

// ---- sequences of different lengths in micro-batches

typedef struct {
    size_t start;  // in ScoreBatch.ids
    int length, scored;
    double *sum;   // the losses of the sequence's last `scored` tokens are added here
    bool *greedy;  // NULL, or: false if one of these tokens is not the likeliest
} ScoreRow;

// sequences that wait for a micro-batch
typedef struct {
    const EvalModel *m;
    int *ids;  // (B * (T + 1)) of all rows, one after the other
    ScoreRow *rows;
    int num_rows;
    int T;                  // of the micro-batch: at least length - 1 of every row
    int *inputs, *targets;  // (num_rows,T), room for B*T
    real *losses;
    float *logits;
    // progress, on a terminal
    bool live;
    double started, last_line;
    uint64_t num_scored;
} ScoreBatch;

static inline ScoreBatch score_batch_open(const EvalModel *m) {
    ScoreBatch b;
    memset(&b, 0, sizeof b);
    size_t positions = (size_t)m->B * (size_t)m->T;
    b.m = m;
    b.ids = (int *)xmalloc(2 * positions * sizeof *b.ids);
    b.rows = (ScoreRow *)xmalloc(positions * sizeof *b.rows);
    b.inputs = (int *)xmalloc(positions * sizeof *b.inputs);
    b.targets = (int *)xmalloc(positions * sizeof *b.targets);
    b.losses = (real *)xmalloc(positions * sizeof *b.losses);
    b.logits = (float *)xmalloc((size_t)m->vocab_size * sizeof *b.logits);
    b.started = b.last_line = now_seconds();
    return b;
}

static inline void score_batch_close(ScoreBatch *b) {
    if (b->live) { fputs("\r\033[K", stderr); }
    free(b->ids);
    free(b->rows);
    free(b->inputs);
    free(b->targets);
    free(b->losses);
    free(b->logits);
}

// T of the micro-batch with one more sequence of `length` tokens. With -tp, every rank needs a row of the micro-batch:
// B*T positions have been checked.
static inline int score_batch_length(const ScoreBatch *b, int length) {
    const EvalModel *m = b->m;
    int T = (length - 1 + 15) / 16 * 16, t = m->groups->tp->size;
    assert(T > 0);
    if (T > m->T || row_range(m->B * m->T / T * T, t, t - 1).count <= 0) { T = m->T; }
    return T > b->T ? T : b->T;
}

static inline bool score_batch_fits(const ScoreBatch *b, int length) {
    return (size_t)(b->num_rows + 1) * (size_t)score_batch_length(b, length) <= (size_t)b->m->B * (size_t)b->m->T;
}

// Adds a sequence of 2 to T + 1 tokens, its last `scored` tokens to be scored. score_batch_fits it. sum and greedy: see
// ScoreRow; they are written by score_batch_run.
static inline void score_batch_add(ScoreBatch *b, const int *ids, int length, int scored, double *sum, bool *greedy) {
    const ScoreRow *last = &b->rows[b->num_rows > 0 ? b->num_rows - 1 : 0];
    ScoreRow row = {b->num_rows > 0 ? last->start + (size_t)last->length : 0, length, scored, sum, greedy};
    b->T = score_batch_length(b, length);
    memcpy(b->ids + row.start, ids, (size_t)length * sizeof *ids);
    b->rows[b->num_rows++] = row;
    b->num_scored += (uint64_t)scored;
}

// inputs and targets (rows,T) = the rows, each followed by zeros
static inline void score_batch_fill(ScoreBatch *b, int rows) {
    size_t T = (size_t)b->T, bytes = (size_t)rows * T * sizeof(int);
    memset(b->inputs, 0, bytes);
    memset(b->targets, 0, bytes);
    for (int r = 0; r < b->num_rows; r++) {
        const int *ids = b->ids + b->rows[r].start;
        size_t row_bytes = (size_t)(b->rows[r].length - 1) * sizeof(int);
        memcpy(b->inputs + (size_t)r * T, ids, row_bytes);
        memcpy(b->targets + (size_t)r * T, ids + 1, row_bytes);
    }
}

// the position of a row's first scored token in the micro-batch
static inline size_t score_batch_first(const ScoreBatch *b, int r) {
    return (size_t)r * (size_t)b->T + (size_t)(b->rows[r].length - 1 - b->rows[r].scored);
}

// whether each scored token of a row is the likeliest one
static inline bool score_batch_is_greedy(ScoreBatch *b, int r) {
    size_t first = score_batch_first(b, r);
    for (size_t n = first; n < first + (size_t)b->rows[r].scored; n++) {
        int best = 0;
        b->m->logits(b->m->model, (int)n, b->logits);
        for (int v = 1; v < b->m->vocab_size; v++) { best = b->logits[v] > b->logits[best] ? v : best; }
        if (best != b->targets[n]) { return false; }
    }
    return true;
}

static inline void score_batch_progress(ScoreBatch *b) {
    double now = now_seconds();
    if (!b->live || now - b->last_line < 1) { return; }
    b->last_line = now;
    fprintf(stderr, "\r\033[K%" PRIu64 " tokens scored, %.0f tok/s", b->num_scored,
            (double)b->num_scored / (now - b->started));
}

// Scores the rows that were added, and removes them. Without rows it makes a forward all the same, for -z 3. With -tp
// the micro-batch has as many rows as fit, else those that were added.
static inline void score_batch_run(ScoreBatch *b) {
    const EvalModel *m = b->m;
    if (b->T == 0) { b->T = m->T; }
    int num_rows = m->groups->tp->size > 1 ? m->B * m->T / b->T : b->num_rows > 0 ? b->num_rows : 1;
    score_batch_fill(b, num_rows);
    m->loss(m->model, num_rows, b->T, b->inputs, b->targets, no_documents, b->losses);
    for (int r = 0; r < b->num_rows; r++) {
        const ScoreRow *row = &b->rows[r];
        size_t first = score_batch_first(b, r);
        for (int i = 0; i < row->scored; i++) { *row->sum += (double)b->losses[first + (size_t)i]; }
        if (row->greedy) { *row->greedy = score_batch_is_greedy(b, r); }
    }
    b->num_rows = b->T = 0;
    score_batch_progress(b);
}

// ---- multiple choice

typedef struct {
    int row, length;
} ChoiceOrder;

// longest first
static inline int choice_order_compare(const void *a, const void *b) {
    const ChoiceOrder *x = (const ChoiceOrder *)a, *y = (const ChoiceOrder *)b;
    return x->length != y->length ? y->length - x->length : x->row - y->row;
}

// The rows of every ranks-th example from `rank` on, longest first, *count of them; the caller frees them.
static inline ChoiceOrder *choices_order(const Choices *set, int rank, int ranks, int *count) {
    ChoiceOrder *order = (ChoiceOrder *)xmalloc((size_t)set->num_rows * sizeof *order);
    *count = 0;
    for (int e = rank; e < set->num_examples; e += ranks) {
        const ChoiceExample *example = &set->examples[e];
        int firsts[] = {example->first, example->first_whole};
        for (int form = 0; form < 2; form++) {
            if (firsts[form] < 0 || (form == 1 && firsts[1] == firsts[0])) { continue; }
            for (int row = firsts[form]; row < firsts[form] + example->num_endings; row++) {
                ChoiceOrder place = {row, set->rows[row].length};
                order[(*count)++] = place;
            }
        }
    }
    qsort(order, (size_t)*count, sizeof *order, choice_order_compare);
    return order;
}

static inline void score_batch_add_row(ScoreBatch *b, const Choices *set, int r, double *sums, bool *greedy) {
    const ChoiceRow *row = &set->rows[r];
    int *ids = (int *)xmalloc((size_t)row->length * sizeof *ids);
    for (int i = 0; i < row->length; i++) { ids[i] = set->tokens[row->start + (size_t)i]; }
    score_batch_add(b, ids, row->length, row->scored, &sums[r], greedy ? &greedy[r] : NULL);
    free(ids);
}

// sums (num_rows) = the losses' sum of the rows of this rank's examples, those of index dp rank + i * dp size; 0 for
// others. greedy (num_rows): NULL, or whether each scored token is the likeliest one. live: shows progress on stderr.
// A signal leaves the rest unscored.
static inline void score_choices(const EvalModel *m, const Choices *set, double *sums, bool *greedy, bool live) {
    int count;
    ChoiceOrder *order = choices_order(set, m->groups->dp->rank, m->groups->dp->size, &count);
    ScoreBatch batch = score_batch_open(m);
    batch.live = live;
    for (int done = 0; comm_max(count - done, m->groups->world) > 0 && !agreed_signal(m->groups->world);) {
        for (; done < count && score_batch_fits(&batch, order[done].length); done++) {
            score_batch_add_row(&batch, set, order[done].row, sums, greedy);
        }
        score_batch_run(&batch);
    }
    score_batch_close(&batch);
    free(order);
}

// HellaSwag's accuracy in llm.c's scoring: the lowest mean loss of an ending's tokens. Ranks divide the examples.
static inline double score_hellaswag(const EvalModel *m, const Choices *set) {
    double *sums = (double *)xcalloc((size_t)set->num_rows, sizeof *sums), correct = 0;
    score_choices(m, set, sums, NULL, false);
    for (int e = m->groups->dp->rank; e < set->num_examples; e += m->groups->dp->size) {
        const ChoiceExample *example = &set->examples[e];
        correct += choices_correct(set, example, example->first, sums, CHOICE_PER_TOKEN);
    }
    free(sums);
    return m->sum(m->model, correct) / set->num_examples;
}

// ---- the losses of texts

typedef struct {
    ScoreBatch batch;
    int stride;
    int *window;        // the last tokens of the document, room for 2 * T + 1
    int held, pending;  // tokens in the window, and tokens of them that are not scored yet
    bool begun;         // the document has had a window
    double nats;
    uint64_t documents, tokens, bytes, words;
    bool in_space;  // the last character of the document was white space
} TextScore;

// *s must not move until score_text_close. stride: 1 to T.
static inline void score_text_open(TextScore *s, const EvalModel *m, int stride) {
    memset(s, 0, sizeof *s);
    s->batch = score_batch_open(m);
    s->stride = stride;
    s->window = (int *)xmalloc((2 * (size_t)m->T + 1) * sizeof *s->window);
}

static inline void score_text_close(TextScore *s) {
    score_batch_close(&s->batch);
    free(s->window);
}

// Scores the pending tokens in a window of at most T tokens before the last token. The next window reads at most the
// last T of these tokens.
static inline void score_text_window(TextScore *s) {
    int T = s->batch.m->T, length = s->held < T + 1 ? s->held : T + 1, kept = s->held < T ? s->held : T;
    if (s->pending == 0) { return; }
    if (!score_batch_fits(&s->batch, length)) { score_batch_run(&s->batch); }
    score_batch_add(&s->batch, s->window + s->held - length, length, s->pending, &s->nats, NULL);
    s->tokens += (uint64_t)s->pending;
    memmove(s->window, s->window + s->held - kept, (size_t)kept * sizeof *s->window);
    s->held = kept;
    s->pending = 0;
    s->begun = true;
}

// Begins a document with a token that is context only.
static inline void score_text_begin(TextScore *s, int context) {
    s->window[0] = context;
    s->held = 1;
    s->pending = 0;
    s->begun = s->in_space = false;
    s->documents++;
    s->words++;  // as in lm-eval: the parts between white space
}

static inline void score_text_tokens(TextScore *s, const int *ids, size_t count) {
    for (size_t i = 0; i < count; i++) {
        s->window[s->held++] = ids[i];
        s->pending++;
        if (s->pending == (s->begun ? s->stride : s->batch.m->T)) { score_text_window(s); }
    }
}

// Counts the bytes and words of a part of the document that ends where a character ends.
static inline void score_text_count(TextScore *s, const char *text, size_t bytes) {
    s->bytes += bytes;
    for (size_t at = 0, length; at < bytes; at += length) {
        tokenizer_code_point(text + at, bytes - at, &length);
        bool space = text_space(text + at, length) > 0;
        s->words += space && !s->in_space;
        s->in_space = space;
    }
}

// ---- --eval

typedef struct {
    const TrainArgs *args;
    EvalTask task;  // EVAL_AUTO: token shards
    bool has_tokenizer;
    Tokenizer tokenizer;
    Choices choices;  // of EVAL_CHOICES and EVAL_LAMBADA
    TokenFiles shards;
    int stride;
} EvalFile;

// path = the first file that a pattern matches, or "-". Stops if none does.
static inline void eval_first_path(char *path, const char *pattern) {
    glob_t found;
    if (strcmp(pattern, "-") == 0) {
        format_path(path, "-");
        return;
    }
    if (glob(pattern, 0, NULL, &found) != 0) {
        input_error(
            "--eval: no file matches '%s'; give a path, a quoted pattern such as 'corpus/*.txt', or - for stdin",
            pattern);
    }
    format_path(path, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static inline const Tokenizer *eval_tokenizer(const EvalFile *f, const GPT2Config *c) {
    if (!f->has_tokenizer) {
        input_error("--eval %s is text, and a model of %d tokens needs a tokenizer: %s", f->args->eval, c->vocab_size,
                    tokenizer_advice(c->vocab_size));
    }
    return &f->tokenizer;
}

// The task of --eval-task auto. A .bin file is examples in llm.c's format, or a token shard. JSON lines with endings
// are examples. Anything else is text.
static inline EvalTask eval_task_of(const TrainArgs *a, const char *path) {
    bool bin = token_path_is_shard(path), json = corpus_is_json(path);
    if (a->eval_task == EVAL_AUTO && json && choices_is_example("--eval", path)) { return EVAL_CHOICES; }
    if (a->eval_task == EVAL_AUTO && bin) { return choices_is_bin(path) ? EVAL_CHOICES : EVAL_AUTO; }
    return a->eval_task == EVAL_AUTO ? EVAL_TEXT : (EvalTask)a->eval_task;
}

// Opens --eval for a model: reads examples whole, and checks every token shard. Stops at bad input. Close with
// eval_close.
static inline void eval_open(EvalFile *f, const TrainArgs *a, const GPT2Config *c) {
    char path[PATH_LENGTH];
    memset(f, 0, sizeof *f);
    f->args = a;
    f->stride = a->stride > 0 ? a->stride : a->T;
    if (f->stride > a->T) { input_error("--stride %d is longer than the windows of -t %d tokens", a->stride, a->T); }
    eval_first_path(path, a->eval);
    f->task = eval_task_of(a, path);
    f->has_tokenizer = find_tokenizer(&f->tokenizer, a, c->vocab_size);
    if (f->task == EVAL_CHOICES && token_path_is_shard(path)) {
        f->choices = choices_read_bin("--eval", path, a->T, c->vocab_size);
    } else if (f->task == EVAL_CHOICES) {
        f->choices = choices_read_json("--eval", a->eval, CHOICES_LLMC | CHOICES_LM_EVAL, eval_tokenizer(f, c), a->T);
    } else if (f->task == EVAL_LAMBADA) {
        f->choices = choices_read_last_words("--eval", a->eval, a->field, eval_tokenizer(f, c), a->T);
    } else if (f->task == EVAL_TEXT) {
        eval_tokenizer(f, c);
    } else {
        f->shards = token_files_open("--eval", a->eval);
        token_files_check_ids(&f->shards, c->vocab_size);
    }
}

static inline void eval_close(EvalFile *f) {
    if (f->has_tokenizer) { tokenizer_free(&f->tokenizer); }
    if (f->shards.files) { token_files_close(&f->shards); }
    choices_close(&f->choices);
}

static inline void eval_print(const char *name, double value) { printf("%-16s %.6f\n", name, value); }
static inline void eval_print_count(const char *name, uint64_t value) { printf("%-16s %" PRIu64 "\n", name, value); }

static inline void eval_print_text(const TextScore *s, bool has_words) {
    double tokens = (double)s->tokens, bytes = (double)s->bytes, words = (double)s->words;
    eval_print_count("documents", s->documents);
    eval_print_count("tokens", s->tokens);
    if (bytes > 0) { eval_print_count("bytes", s->bytes); }
    if (has_words) { eval_print_count("words", s->words); }
    eval_print("loss", s->nats / tokens);
    eval_print("perplexity", exp(s->nats / tokens));
    if (bytes > 0) { eval_print("bits_per_byte", eval_bits_per_byte(s->nats, bytes)); }
    if (bytes > 0) { eval_print("byte_perplexity", exp(s->nats / bytes)); }
    if (has_words) { eval_print("word_perplexity", exp(s->nats / words)); }
}

// Scores the tokens of a part of a document.
static inline void eval_encode(TextScore *s, const EvalFile *f, TokenizerEncoder *encoder, const char *text,
                               size_t bytes) {
    int *ids = (int *)xmalloc((bytes + 1) * sizeof *ids);
    score_text_tokens(s, ids, tokenizer_encode_with(&f->tokenizer, encoder, text, bytes, ids));
    free(ids);
}

// Stops at a line of JSON without a text. json: NULL if it is no JSON, or if --field names the text.
__attribute__((noreturn)) static inline void eval_stop_at_line(const Corpus *corpus, const CorpusPiece *piece,
                                                               const cJSON *json, const char *trouble) {
    bool example =
        cJSON_GetObjectItemCaseSensitive(json, "messages") || cJSON_GetObjectItemCaseSensitive(json, "prompt");
    if (example) {
        trouble =
            "is an example to fine-tune on, and --eval scores texts; give the file with -j in training to see the loss "
            "of its answers";
    }
    input_error("--eval %s line %" PRIu64 " %s: found '%.*s'", corpus->files[piece->file].path, piece->line, trouble,
                (int)(piece->bytes < 60 ? piece->bytes : 60), piece->text);
}

// Scores a line of JSON as one document. A line of WikiText has its page in "page": lm-eval's text of the page is
// scored, and the bytes and words are those of the page.
static inline void eval_json_line(TextScore *s, const EvalFile *f, TokenizerEncoder *encoder, const Corpus *corpus,
                                  const CorpusPiece *piece) {
    cJSON *json;
    const char *trouble;
    char *line = (char *)xmalloc(piece->bytes + 1), *page = NULL;
    memcpy(line, piece->text, piece->bytes);
    const char *text = corpus_document(line, piece->bytes, corpus->field, &json, &trouble);
    if (!text && !f->args->field) { page = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "page")); }
    if (!text && !page) { eval_stop_at_line(corpus, piece, f->args->field ? NULL : json, trouble); }
    score_text_begin(s, f->tokenizer.end_of_text);
    score_text_count(s, page ? page : text, strlen(page ? page : text));
    if (page) { wikitext_clean(page); }
    eval_encode(s, f, encoder, page ? page : text, strlen(page ? page : text));
    score_text_window(s);
    cJSON_Delete(json);
    free(line);
}

static inline void eval_corpus(TextScore *s, const EvalFile *f) {
    Corpus corpus = corpus_open_for("--eval", f->args->eval, f->args->field, f->args->separator);
    CorpusPiece piece;
    TokenizerEncoder encoder;
    memset(&encoder, 0, sizeof encoder);
    for (bool inside = false; corpus_next(&corpus, &piece);) {
        if (piece.is_json) {
            eval_json_line(s, f, &encoder, &corpus, &piece);
            continue;
        }
        if (!inside && (piece.bytes > 0 || piece.ends_document)) { score_text_begin(s, f->tokenizer.end_of_text); }
        score_text_count(s, piece.text, piece.bytes);
        eval_encode(s, f, &encoder, piece.text, piece.bytes);
        if (piece.ends_document) { score_text_window(s); }
        inside = !piece.ends_document && (inside || piece.bytes > 0);
    }
    tokenizer_free_encoder(&encoder);
    corpus_close(&corpus);
}

enum { EVAL_CHUNK_TOKENS = 64 << 10 };  // of a shard, read at once

// Scores the tokens of a file; its first token is context only if it is end-of-text.
static inline void eval_shard(TextScore *s, const EvalFile *f, TokenReader *reader, int file, const int *token_bytes) {
    const uint64_t chunk = EVAL_CHUNK_TOKENS;
    const TokenFile *shard = &f->shards.files[file];
    int *ids = (int *)xmalloc(chunk * sizeof *ids), end_of_text = f->shards.vocab_size - 1;
    for (uint64_t at = 0; at < shard->num_tokens; at += chunk) {
        size_t count = (size_t)(shard->num_tokens - at < chunk ? shard->num_tokens - at : chunk);
        if (!token_reader_read(reader, ids, file, shard->first_token + at, count)) { token_reader_stop(reader); }
        size_t skipped = at == 0 && ids[0] == end_of_text;
        if (at == 0) { score_text_begin(s, end_of_text); }
        for (size_t i = skipped; token_bytes && i < count; i++) { s->bytes += (uint64_t)token_bytes[ids[i]]; }
        score_text_tokens(s, ids + skipped, count - skipped);
    }
    score_text_window(s);
    free(ids);
}

static inline void eval_shards(TextScore *s, const EvalFile *f) {
    int V = s->batch.m->vocab_size, *token_bytes = f->has_tokenizer ? eval_token_bytes(&f->tokenizer, V) : NULL;
    TokenReader reader = token_reader_open(&f->shards, EVAL_CHUNK_TOKENS, V);
    for (int file = 0; file < f->shards.num_files; file++) { eval_shard(s, f, &reader, file, token_bytes); }
    token_reader_close(&reader);
    free(token_bytes);
}

static inline void eval_print_choices(const EvalFile *f, const double *sums) {
    const Choices *set = &f->choices;
    uint64_t sum = 0, per_character = 0, per_token = 0;
    bool lm_eval = set->examples[0].first_whole >= 0;
    for (int e = 0; e < set->num_examples; e++) {
        const ChoiceExample *x = &set->examples[e];
        per_token += choices_correct(set, x, x->first, sums, CHOICE_PER_TOKEN);
        if (!lm_eval) { continue; }
        sum += choices_correct(set, x, x->first_whole, sums, CHOICE_SUM);
        per_character += choices_correct(set, x, x->first_whole, sums, CHOICE_PER_CHARACTER);
    }
    double examples = set->num_examples;
    eval_print_count("examples", (uint64_t)set->num_examples);
    if (lm_eval) { eval_print("acc", (double)sum / examples); }
    if (lm_eval) { eval_print("acc_norm", (double)per_character / examples); }
    eval_print("acc_llmc", (double)per_token / examples);
}

static inline void eval_print_last_words(const EvalFile *f, const double *sums, const bool *greedy) {
    uint64_t correct = 0;
    double sum = 0, examples = f->choices.num_examples;
    for (int e = 0; e < f->choices.num_examples; e++) {
        correct += greedy[e];
        sum += sums[e];
    }
    eval_print_count("examples", (uint64_t)f->choices.num_examples);
    eval_print("acc", (double)correct / examples);
    eval_print("perplexity", exp(sum / examples));
}

static inline void eval_choices(const EvalFile *f, const EvalModel *m, bool live) {
    size_t rows = (size_t)f->choices.num_rows;
    double *sums = (double *)xcalloc(rows, sizeof *sums);
    bool *greedy = f->task == EVAL_LAMBADA ? (bool *)xcalloc(rows, sizeof *greedy) : NULL;
    score_choices(m, &f->choices, sums, greedy, live);
    if (greedy) {
        eval_print_last_words(f, sums, greedy);
    } else {
        eval_print_choices(f, sums);
    }
    char cut[160];
    choices_cut_words(&f->choices, cut, sizeof cut);
    if (*cut) { printf("note             %s\n", cut); }
    free(sums);
    free(greedy);
}

// Scores the file and prints the result: a line for each name and value.
static inline void eval_run(const EvalFile *f, const EvalModel *m) {
    bool live = isatty(STDERR_FILENO);
    if (f->task == EVAL_CHOICES || f->task == EVAL_LAMBADA) {
        eval_choices(f, m, live);
        return;
    }
    TextScore s;
    score_text_open(&s, m, f->stride);
    s.batch.live = live;
    if (f->task == EVAL_TEXT) {
        eval_corpus(&s, f);
    } else {
        eval_shards(&s, f);
    }
    if (s.batch.num_rows > 0) { score_batch_run(&s.batch); }
    score_text_close(&s);
    if (s.tokens == 0) { input_error("--eval %s holds no text to score", f->args->eval); }
    eval_print_text(&s, f->task == EVAL_TEXT);
    if (s.bytes == 0) { printf("note             without --tokenizer the bytes of the tokens are unknown\n"); }
}
