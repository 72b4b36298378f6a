/*
The sampler against a plain reference that sorts the whole vocabulary, on random rows with many ties; frequencies on an
even grid of coins and on random coins; rows of NaN, infinities and equal logits; the nucleus of --top-p.
*/
#include "testing.h"
#include "llmc/common/rng.h"
#include "llmc/run/generate.h"

// cmocka's assert_float_equal compares in single precision
#define assert_near(a, b, tolerance) assert_true(fabs((double)(a) - (double)(b)) <= (tolerance))

enum { V = 301 };

typedef struct {
    float logit;
    int id;
} Candidate;

// highest first, a lower id first among equals; NaN last
static int by_logit(const void *a, const void *b) {
    const Candidate *x = (const Candidate *)a, *y = (const Candidate *)b;
    if (isnan(x->logit) != isnan(y->logit)) { return isnan(x->logit) ? 1 : -1; }
    if (x->logit != y->logit && !isnan(x->logit)) { return x->logit < y->logit ? 1 : -1; }
    return x->id - y->id;
}

// The probability of every token, by sorting. The nucleus ends with the token whose cumulative probability reaches
// top_p. Returns the number of tokens in the nucleus.
static int plain_probabilities(double *p, const float *logits, int n, double temperature, int top_k, double top_p) {
    Candidate *sorted = (Candidate *)malloc((size_t)n * sizeof *sorted);
    for (int i = 0; i < n; i++) {
        sorted[i].logit = logits[i];
        sorted[i].id = i;
        p[i] = 0;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, by_logit);
    long double sum = 0, reached = 0;
    int kept = top_k > 0 && top_k < n ? top_k : n, nucleus = 0;
    for (int i = 0; i < kept && !isnan(sorted[i].logit); i++) {
        sum += expl(((long double)sorted[i].logit - sorted[0].logit) / temperature);
    }
    while (nucleus < kept && !isnan(sorted[nucleus].logit) && (nucleus == 0 || top_p >= 1 || reached < top_p * sum)) {
        reached += expl(((long double)sorted[nucleus++].logit - sorted[0].logit) / temperature);
    }
    for (int i = 0; i < nucleus; i++) {
        p[sorted[i].id] = (double)(expl(((long double)sorted[i].logit - sorted[0].logit) / temperature) / reached);
    }
    free(sorted);
    return nucleus;
}

// logits in steps of 1/4, so that ties are everywhere; now and then a NaN, a zero of either sign or -inf
static void random_row(float *logits, int n, uint64_t seed) {
    for (int i = 0; i < n; i++) {
        logits[i] = (float)(round(4 * 2 * rng_normal(seed, 1, (uint64_t)i)) / 4);
        switch (rng_bits(seed, 2, (uint64_t)i) % 40) {
        case 0: logits[i] = NAN; break;
        case 1: logits[i] = -INFINITY; break;
        case 2: logits[i] = -0.f; break;
        }
    }
}

// A coin in the middle of a token's interval draws that token. A token of probability 0 is never drawn.
static void check_intervals(const float *logits, double temperature, int top_k, double top_p) {
    double p[V], before = 0;
    plain_probabilities(p, logits, V, temperature, top_k, top_p);
    for (int i = 0; i < V; i++) {
        if (p[i] > 1e-12) {
            assert_int_equal(sample_token(logits, V, temperature, top_k, top_p, before + p[i] / 2), i);
        }
        before += p[i];
    }
    assert_near(before, 1, 1e-12);
}

TEST(test_intervals) {
    const int top_ks[] = {0, 1, 2, 17, 40, V - 1, V, V + 1, 1 << 30};
    const double temperatures[] = {0.3, 1, 2.5}, top_ps[] = {1, 0.9, 0.5, 0, 0.999999, 1 - 0x1p-53, 0.05, 7};
    float logits[V];
    for (uint64_t c = 0; c < 108; c++) {
        random_row(logits, V, c);
        for (int p = 0; p < 8; p++) { check_intervals(logits, temperatures[c % 3], top_ks[c / 3 % 9], top_ps[p]); }
    }
}

// the number of tokens that an even grid of coins draws; none but the first `nucleus` ids may be drawn
static void check_drawn(const float *logits, int n, int top_k, double top_p, int nucleus) {
    bool drawn[V] = {false};
    int count = 0;
    for (int i = 0; i < 4 * V; i++) { drawn[sample_token(logits, n, 1, top_k, top_p, (i + 0.5) / (4 * V))] = true; }
    for (int i = 0; i < nucleus; i++) { count += drawn[i]; }
    assert_int_equal(count, nucleus);
    for (int i = nucleus; i < n; i++) { assert_false(drawn[i]); }
}

// Equal logits: every probability is exact, and lower ids come first. The nucleus counts within the top k.
TEST(test_nucleus_of_ties) {
    float equal[V], halves[8] = {0, -0.f, 0, 0, -50, -50, -50, -50}, hostile[5] = {INFINITY, INFINITY, NAN, 1, NAN};
    const float low[3] = {-INFINITY, -INFINITY, -INFINITY}, nans[2] = {NAN, NAN};
    for (int i = 0; i < V; i++) { equal[i] = 2.5f; }
    for (int n = 1; n <= 64; n *= 2) {
        for (int kept = 1; kept <= n; kept++) {
            check_drawn(equal, n, 0, (double)kept / n, kept);
            check_drawn(equal, n, 0, (kept - 0.5) / n, kept);
            check_drawn(equal, V, n, (double)kept / n, kept);
        }
    }
    check_drawn(equal, V, 0, 0, 1);
    check_drawn(halves, 8, 0, 0.75, 3);
    check_drawn(halves, 8, 0, 0.7500001, 4);
    check_drawn(hostile, 5, 0, 0.5, 1);
    check_drawn(hostile, 5, 0, 0.51, 2);
    check_drawn(low, 3, 0, 0.5, 2);
    check_drawn(nans, 2, 0, 0.5, 1);
}

// chi-squared of the counts of 20 tokens for 20000 coins from rng.h; an even grid of coins gives the exact counts
TEST(test_frequencies) {
    enum { N = 20, DRAWS = 20000 };
    float logits[N];
    double p[N], chi_squared = 0;
    for (int i = 0; i < N; i++) { logits[i] = (float)rng_normal(11, 0, (uint64_t)i); }
    plain_probabilities(p, logits, N, 0.8, 0, 1);
    int drawn[N] = {0}, even[N] = {0};
    for (int i = 0; i < DRAWS; i++) {
        drawn[sample_token(logits, N, 0.8, 0, 1, rng_uniform(12, 0, (uint64_t)i))]++;
        even[sample_token(logits, N, 0.8, 0, 1, (i + 0.5) / DRAWS)]++;
    }
    for (int i = 0; i < N; i++) {
        chi_squared += pow(drawn[i] - DRAWS * p[i], 2) / (DRAWS * p[i]);
        assert_true(fabs(even[i] - DRAWS * p[i]) <= 1);
    }
    assert_true(chi_squared < 43.8);  // 19 degrees of freedom: exceeded once in 1000
}

TEST(test_argmax) {
    const float ties[] = {-1, 3, NAN, 3, 2, 3}, zeros[] = {-1, -0.f, 0.f, -0.f}, low[] = {-INFINITY, -5, -INFINITY};
    const double coins[] = {0, 0.5, 1 - 0x1p-53};
    for (int c = 0; c < 3; c++) {
        assert_int_equal(sample_token(ties, 6, 0, 0, 1, coins[c]), 1);
        assert_int_equal(sample_token(ties, 6, 1, 1, 1, coins[c]), 1);  // top 1 is the same at any temperature
        assert_int_equal(sample_token(ties, 6, 1e-300, 2, 1, coins[c]), c == 0 ? 1 : 3);
        assert_int_equal(sample_token(zeros, 4, 0, 0, 1, coins[c]), 1);
        assert_int_equal(sample_token(zeros, 4, 1, 1, 1, coins[c]), 1);
        assert_int_equal(sample_token(low, 3, 0, 0, 1, coins[c]), 1);
        assert_int_equal(sample_token(low, 3, 1, 0, 1, coins[c]), 1);
    }
}

TEST(test_hostile_rows) {
    const float nans[] = {NAN, NAN, NAN}, minus[] = {-INFINITY, -INFINITY, NAN, -INFINITY};
    const float plus[] = {1, INFINITY, NAN, -INFINITY, INFINITY}, huge[] = {-3e38f, 3e38f, 3e38f}, one[] = {NAN};
    for (int top_k = 0; top_k < 6; top_k++) {
        int plus_hits[5] = {0}, minus_hits[4] = {0}, huge_hits[3] = {0};
        for (int i = 0; i < 60; i++) {
            double coin = (i + 0.5) / 60;
            assert_int_equal(sample_token(nans, 3, 1, top_k, 1, coin), 0);
            assert_int_equal(sample_token(one, 1, 1, top_k, 1, coin), 0);
            plus_hits[sample_token(plus, 5, 1, top_k, 1, coin)]++;
            minus_hits[sample_token(minus, 4, 1, top_k, 1, coin)]++;
            huge_hits[sample_token(huge, 3, 1, top_k, 1, coin)]++;
        }
        assert_int_equal(plus_hits[1],
                         top_k == 1 ? 60 : 30);  // one half each for the two infinities, none for the rest
        assert_int_equal(plus_hits[4], top_k == 1 ? 0 : 30);
        assert_int_equal(huge_hits[1], top_k == 1 ? 60 : 30);
        assert_int_equal(huge_hits[0], 0);
        assert_int_equal(minus_hits[2], 0);
        assert_int_equal(minus_hits[0], top_k == 1 ? 60 : top_k == 2 ? 30 : 20);
    }
}

// coins 0 and just below 1, with the whole vocabulary of GPT-2
TEST(test_ends) {
    enum { GPT2_VOCAB = 50257 };
    float *logits = (float *)malloc(GPT2_VOCAB * sizeof *logits);
    for (int i = 0; i < GPT2_VOCAB; i++) { logits[i] = i == 0 || i == GPT2_VOCAB - 1 ? -INFINITY : 0.5f; }
    assert_int_equal(sample_token(logits, GPT2_VOCAB, 1, 0, 1, 0), 1);
    assert_int_equal(sample_token(logits, GPT2_VOCAB, 1, 0, 1, 1 - 0x1p-53), GPT2_VOCAB - 2);
    assert_int_equal(sample_token(logits, GPT2_VOCAB, 1, 0, 1, 0.5), 1 + (GPT2_VOCAB - 2) / 2);
    assert_int_equal(sample_token(logits, GPT2_VOCAB, 1, 40, 1, 1 - 0x1p-53), 40);  // ties: the 40 lowest ids
    free(logits);
}

// The largest p below 1: rounded sums must not add a token below the top k.
TEST(test_nucleus_within_top_k) {
    float logits[V];
    double p[V];
    for (uint64_t row = 0; row < 100; row++) {
        for (int i = 0; i < V; i++) { logits[i] = (float)rng_normal(row, 3, (uint64_t)i); }
        plain_probabilities(p, logits, V, 0.9, 30, 1);
        for (int i = 0; i < 400; i++) {
            int drawn = sample_token(logits, V, 0.9, 30, 1 - 0x1p-53, (i + 0.5) / 400);
            assert_true(p[drawn] > 0);
        }
    }
}

int main(void) { return run_all_tests("sampler"); }
