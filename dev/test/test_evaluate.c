/*
Evaluation with a model of this file: the windows of a text, bytes and words, batches of examples, ranks that divide
them, and the likeliest tokens.
*/
#include "testing.h"
#include "llmc/run/evaluate.h"

enum { V = 256, MAX_SCORED = 4096 };

typedef struct {
    EvalModel eval;
    Groups groups;
    int forwards, largest;  // micro-batches; positions of the largest
    int inputs[MAX_SCORED];
} FakeModel;

// the loss of a token at position t of its sequence, after `input`
static double fake_loss(int input, int t, int target) { return target + 0.25 * t + input / 4096.0; }

static real fake_losses(void *model, int B, int T, const int *inputs, const int *targets, Documents documents,
                        real *losses) {
    FakeModel *m = (FakeModel *)model;
    double sum = 0;
    (void)documents;
    m->forwards++;
    m->largest = B * T > m->largest ? B * T : m->largest;
    assert_true(B * T <= m->eval.B * m->eval.T && T <= m->eval.T);
    memcpy(m->inputs, inputs, (size_t)(B * T) * sizeof *inputs);
    for (int n = 0; n < B * T; n++) {
        double loss = fake_loss(inputs[n], n % T, targets[n]);
        if (losses) { losses[n] = (real)loss; }
        sum += loss;
    }
    return (real)(sum / (B * T));
}

// the likeliest token after 'a' is 'b', and so on
static void fake_logits(void *model, int position, float *logits) {
    const FakeModel *m = (const FakeModel *)model;
    for (int v = 0; v < V; v++) { logits[v] = v == m->inputs[position] + 1 ? 2 : (float)(v % 2); }
}

static double fake_sum(void *model, double x) {
    (void)model;
    return x;
}

static void fake_open(FakeModel *m, int B, int T, Comm *single) {
    memset(m, 0, sizeof *m);
    m->groups.world = m->groups.dp = m->groups.tp = single;
    EvalModel eval = {m, &m->groups, B, T, V, fake_losses, fake_logits, fake_sum};
    m->eval = eval;
}

// ---- texts

// The sum of the losses of a text's tokens by the definition: token i is in the window that ends at `end`, a window
// reads the T tokens before its last token, and a newline comes before the text.
static double expected_nats(const char *text, int length, int T, int stride) {
    double nats = 0;
    for (int begin = 0, end; begin < length; begin = end) {
        end = begin + (begin == 0 ? T : stride);
        end = end < length ? end : length;
        int first = end - T > 0 ? end - T : 0;  // the first token that the window predicts; its input is the one before
        for (int i = begin; i < end; i++) { nats += fake_loss(i == 0 ? '\n' : text[i - 1], i - first, text[i]); }
    }
    return nats;
}

static void check_text(int length, int B, int T, int stride, bool in_parts) {
    Comm *single = comm_single(&cpu_device);
    char text[256];
    int ids[256];
    FakeModel m;
    TextScore s;
    for (int i = 0; i < length; i++) {
        ids[i] = 'a' + i * 7 % 26;
        text[i] = (char)ids[i];
    }
    fake_open(&m, B, T, single);
    score_text_open(&s, &m.eval, stride);
    score_text_begin(&s, '\n');
    for (int i = 0, n; i < length; i += n) {
        n = in_parts && length - i > 3 ? 3 : length - i;
        score_text_tokens(&s, ids + i, (size_t)n);
    }
    score_text_window(&s);
    if (s.batch.num_rows > 0) { score_batch_run(&s.batch); }
    assert_int_equal(s.tokens, length);
    assert_float_equal(s.nats, expected_nats(text, length, T, stride), 1e-3);
    score_text_close(&s);
    comm_close(single);
}

static void test_windows(void **state) {
    (void)state;
    for (int T = 1; T <= 20; T += T < 4 ? 1 : 8) {
        const int lengths[] = {1, T, T + 1, 2 * T, 2 * T + 1, 5 * T + T / 2};
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            for (int stride = 1; stride <= T; stride++) {
                check_text(lengths[i], 1 + (int)i % 3, T, stride, i % 2 == 0);
                check_text(lengths[i], 2, T, stride, true);
            }
        }
    }
}

static void test_bytes_and_words(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t words;  // len(re.split(r"\s+", text)) in Python
    } texts[] = {{"", 1}, {"one", 1}, {" one  two\n", 4}, {"a\u2003b\x1c\x1f c\u00a0", 4}, {"\n\n", 2}};
    Comm *single = comm_single(&cpu_device);
    FakeModel m;
    TextScore s;
    fake_open(&m, 1, 4, single);
    score_text_open(&s, &m.eval, 4);
    uint64_t words = 0, bytes = 0;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        score_text_begin(&s, '\n');
        size_t length = strlen(texts[i].text), part = length / 3;
        while (((uint8_t)texts[i].text[part] & 0xC0) == 0x80) { part++; }  // a part ends where a character ends
        score_text_count(&s, texts[i].text, part);
        score_text_count(&s, texts[i].text + part, length - part);
        words += texts[i].words;
        bytes += length;
        assert_int_equal(s.words, words);
        assert_int_equal(s.bytes, bytes);
    }
    assert_int_equal(s.documents, sizeof texts / sizeof texts[0]);
    score_text_close(&s);
    comm_close(single);
}

static void test_token_bytes(void **state) {
    (void)state;
    Tokenizer bytes = tokenizer_bytes(), merges = tokenizer_load("dev/test/golden/gpt2_2500.bpe");
    int *of_bytes = eval_token_bytes(&bytes, 256), *of_merges = eval_token_bytes(&merges, 3000);
    for (int i = 0; i < 256; i++) { assert_true(of_bytes[i] == 1 && of_merges[i] == 1); }
    assert_int_equal(of_merges[256], 2);
    assert_int_equal(of_merges[merges.end_of_text], 0);
    assert_int_equal(of_merges[2999], 0);  // the model's vocabulary may be larger
    free(of_bytes);
    free(of_merges);
    tokenizer_free(&bytes);
    tokenizer_free(&merges);
}

// ---- examples

// example e: a context of e % 5 + 1 tokens, and e % 3 + 2 endings of different lengths
static Choices some_choices(int T, int examples) {
    Choices set;
    int ids[64];
    memset(&set, 0, sizeof set);
    set.T = T;
    for (int e = 0; e < examples; e++) {
        ChoiceExample *x = choices_add_example(&set, 0, e % 3 + 2);
        x->first = set.num_rows;
        for (int i = 0; i < x->num_endings; i++) {
            int context = e % 5 + 1, ending = (e + i) % 4 + 1;
            for (int t = 0; t < context + ending; t++) { ids[t] = 'a' + (e + i + t * t) % 26; }
            choices_add_row(&set, ids, (size_t)context, (size_t)ending, 1);
        }
    }
    return set;
}

static double expected_sum(const Choices *set, const ChoiceRow *row) {
    const uint16_t *ids = set->tokens + row->start;
    double sum = 0;
    for (int i = row->length - row->scored; i < row->length; i++) { sum += fake_loss(ids[i - 1], i - 1, ids[i]); }
    return sum;
}

// Every batch gives the same sums. Of several ranks, each scores its own examples, and every row is scored once.
static void test_examples_in_batches(void **state) {
    (void)state;
    Comm *single = comm_single(&cpu_device);
    for (int B = 1; B <= 40; B += 13) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            Choices set = some_choices(9, 50);
            int *times = (int *)xcalloc((size_t)set.num_rows, sizeof *times);
            for (int rank = 0; rank < ranks; rank++) {
                FakeModel m;
                fake_open(&m, B, 20, single);
                Comm dp = *single;
                dp.rank = rank;
                dp.size = ranks;
                m.groups.dp = &dp;
                double *sums = (double *)xcalloc((size_t)set.num_rows, sizeof *sums);
                score_choices(&m.eval, &set, sums, NULL, false);
                for (int r = 0; r < set.num_rows; r++) {
                    if (sums[r] == 0) { continue; }
                    times[r]++;
                    assert_float_equal(sums[r], expected_sum(&set, &set.rows[r]), 1e-3);
                }
                free(sums);
            }
            for (int r = 0; r < set.num_rows; r++) { assert_int_equal(times[r], 1); }
            free(times);
            choices_close(&set);
        }
    }
    comm_close(single);
}

static void test_greedy(void **state) {
    (void)state;
    static const struct {
        const char *row;
        int scored;
        bool greedy;
    } rows[] = {{"xab", 1, true}, {"xab", 2, false}, {"abcd", 3, true}, {"abce", 3, false}, {"axyz", 2, true}};
    Comm *single = comm_single(&cpu_device);
    FakeModel m;
    fake_open(&m, 3, 8, single);
    ScoreBatch b = score_batch_open(&m.eval);
    bool greedy[5];
    double sums[5];
    memset(sums, 0, sizeof sums);
    for (int i = 0; i < 5; i++) {
        int ids[8], length = (int)strlen(rows[i].row);
        for (int t = 0; t < length; t++) { ids[t] = (unsigned char)rows[i].row[t]; }
        if (!score_batch_fits(&b, length)) { score_batch_run(&b); }
        score_batch_add(&b, ids, length, rows[i].scored, &sums[i], &greedy[i]);
    }
    score_batch_run(&b);
    assert_int_equal(m.forwards, 2);
    for (int i = 0; i < 5; i++) { assert_int_equal(greedy[i], rows[i].greedy); }
    score_batch_close(&b);
    comm_close(single);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),     cmocka_unit_test(test_bytes_and_words),
        cmocka_unit_test(test_token_bytes), cmocka_unit_test(test_examples_in_batches),
        cmocka_unit_test(test_greedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
