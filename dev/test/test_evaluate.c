/*
Evaluation with a model of this file: the windows of a text, batches of HellaSwag's rows, and ranks that divide them.
*/
#include "testing.h"
#include "llmc/run/evaluate.h"

enum { V = 256 };

typedef struct {
    EvalModel eval;
    Groups groups;
} FakeModel;

// the loss of a token at position t of its sequence, after `input`
static double fake_loss(int input, int t, int target) { return target + 0.25 * t + input / 4096.0; }

static real fake_losses(void *model, int B, int T, const int *inputs, const int *targets, PackedSequences packed,
                        real *losses) {
    FakeModel *m = (FakeModel *)model;
    double sum = 0;
    size_t n = 0;
    assert_true(B <= m->eval.B && T == m->eval.T);
    for (int s = 0; s < packed.count; s++) {
        assert_true(packed.ranges[s].offset == n && packed.ranges[s].count <= (size_t)T);
        for (int t = 0; t < (int)packed.ranges[s].count; t++, n++) {
            losses[n] = (real)(targets[n] < 0 ? 0 : fake_loss(inputs[n], t, targets[n]));
            sum += (double)losses[n];
        }
    }
    assert_int_equal(n, B * T);
    return (real)(sum / (B * T));
}

static double fake_sum(void *model, double x) {
    (void)model;
    return x;
}

static void fake_open(FakeModel *m, int B, int T, Comm *single) {
    memset(m, 0, sizeof *m);
    m->groups.world = m->groups.dp = m->groups.tp = single;
    EvalModel eval = {m, &m->groups, B, T, V, fake_losses, fake_sum};
    m->eval = eval;
}

// ---- texts

// The sum of the losses of a text's tokens by the definition: token i is in the window that ends at `end`, a window
// reads the T tokens before its last token, and a newline comes before the text.
static double expected_nats(const int *text, int length, int T) {
    double nats = 0;
    for (int begin = 0, end; begin < length; begin = end) {
        end = begin + T < length ? begin + T : length;
        int first = end - T > 0 ? end - T : 0;  // the first token that the window predicts; its input is the one before
        for (int i = begin; i < end; i++) { nats += fake_loss(i == 0 ? '\n' : text[i - 1], i - first, text[i]); }
    }
    return nats;
}

static void check_text(int length, int B, int T, bool in_parts) {
    Comm *single = comm_single(&cpu_device);
    int ids[256];
    FakeModel m;
    TextScore s;
    for (int i = 0; i < length; i++) { ids[i] = 'a' + i * 7 % 26; }
    fake_open(&m, B, T, single);
    score_text_open(&s, &m.eval);
    for (int document = 0; document < 2; document++) {
        score_text_begin(&s, '\n');
        for (int i = 0, n; i < length; i += n) {
            n = in_parts && length - i > 3 ? 3 : length - i;
            score_text_tokens(&s, ids + i, (size_t)n);
        }
        score_text_window(&s);
    }
    if (s.batch.used > 0) { score_batch_run(&s.batch); }
    assert_int_equal(s.documents, 2);
    assert_int_equal(s.tokens, 2 * length);
    assert_float_equal(s.nats, 2 * expected_nats(ids, length, T), 2e-3);
    score_text_close(&s);
    comm_close(single);
}

TEST(test_windows) {
    for (int T = 1; T <= 36; T += T < 4 ? 1 : 8) {
        const int lengths[] = {1, T, T + 1, 2 * T, 2 * T + 1, 5 * T + T / 2};
        for (size_t i = 0; i < LEN(lengths); i++) {
            check_text(lengths[i], 1 + (int)i % 3, T, i % 2 == 0);
            check_text(lengths[i], 2, T, true);
        }
    }
}

TEST(test_token_bytes) {
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

// ---- HellaSwag

// example e: a context of e % 5 + 1 tokens, and endings of different lengths
static HellaSwag some_examples(int T, int examples) {
    HellaSwag set = {"-h 1", "made", T};
    int ids[64];
    for (int e = 0; e < examples; e++) {
        for (int i = 0; i < HELLASWAG_ENDINGS; i++) {
            int context = e % 5 + 1, ending = (e + i) % 4 + 1;
            for (int t = 0; t < context + ending; t++) { ids[t] = 'a' + (e + i + t * t) % 26; }
            hellaswag_add_row(&set, ids, (size_t)context, (size_t)ending, i == 0);
        }
    }
    return set;
}

static double expected_sum(const HellaSwag *set, const HellaSwagRow *row) {
    const int *ids = set->tokens + row->start;
    double sum = 0;
    for (int i = row->length - row->scored; i < row->length; i++) { sum += fake_loss(ids[i - 1], i - 1, ids[i]); }
    return sum;
}

// Every batch gives the same sums. Of several ranks, each scores its own examples, and every row is scored once.
TEST(test_examples_in_batches) {
    Comm *single = comm_single(&cpu_device);
    HellaSwag set = some_examples(9, 50);
    for (int B = 1; B <= 40; B += 13) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            int times[200] = {0};
            for (int rank = 0; rank < ranks; rank++) {
                FakeModel m;
                fake_open(&m, B, 20, single);
                Comm dp = *single;
                dp.rank = rank;
                dp.size = ranks;
                m.groups.dp = &dp;
                double *sums = score_hellaswag_rows(&m.eval, &set);
                for (int r = 0; r < set.num_rows; r++) {
                    if (sums[r] == 0) { continue; }
                    times[r]++;
                    assert_int_equal(r / HELLASWAG_ENDINGS % ranks, rank);
                    assert_float_equal(sums[r], expected_sum(&set, &set.rows[r]), 1e-3);
                }
                free(sums);
            }
            for (int r = 0; r < set.num_rows; r++) { assert_int_equal(times[r], 1); }
        }
    }
    hellaswag_close(&set);
    comm_close(single);
}

int main(void) { return run_all_tests("evaluate"); }
