/*
Text from a model: a scripted model in place of GPT-2. The key-value cache against a plain list of the last tokens, the
end of a text, samples, and prompts from files.
*/
#include "testing.h"
#include "llmc/common/hash.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/flag_table.h"
#include "llmc/run/generate.h"

enum { MOST_POSITIONS = 512 };
static const char *const MERGES = "dev/test/golden/gpt2_2500.bpe";

// A model without weights. It takes the next token of `script`; without a script the logits are a function of all
// tokens in the cache.
typedef struct {
    int positions, vocab_size;
    int cache[MOST_POSITIONS], cached;
    const int *script;
    int script_length, said;
    int reads;  // calls
} FakeModel;

static void fake_logits(float *logits, int vocab_size, const int *tokens, int n) {
    uint64_t key = hash_bytes(0, tokens, (size_t)n * sizeof *tokens);
    for (int v = 0; v < vocab_size; v++) { logits[v] = (float)rng_normal(key, 0, (uint64_t)v); }
}

static void fake_prefill(void *model, const int *tokens, int from, int n, float *logits) {
    FakeModel *m = (FakeModel *)model;
    assert_true(n > 0 && from + n <= m->positions);
    assert_true(from == m->cached || from == 0);
    memcpy(m->cache + from, tokens, (size_t)n * sizeof *tokens);
    m->cached = from + n;
    m->reads++;
    fake_logits(logits, m->vocab_size, m->cache, m->cached);
    if (!m->script) { return; }
    assert_true(m->said < m->script_length);
    for (int v = 0; v < m->vocab_size; v++) { logits[v] = v == m->script[m->said]; }
    m->said++;
}

static FakeModel fake_model(int positions, int vocab_size, const int *script, int script_length) {
    FakeModel m = {0};
    m.positions = positions;
    m.vocab_size = vocab_size;
    m.script = script;
    m.script_length = script_length;
    return m;
}

static TrainArgs greedy_args(int count) {
    TrainArgs a = default_args;
    a.temperature = 0;
    a.generate = count;
    return a;
}

static Generator generator(FakeModel *m, const Tokenizer *tokenizer, const TrainArgs *a, Comm *world) {
    Generator g = {m, fake_prefill, m->vocab_size, m->positions, tokenizer, a, world};
    return g;
}

// ---- what a function prints

// the content of a file, which the caller frees
static char *content(const char *path) {
    char *text = read_text_file(path);
    assert_non_null(text);
    return text;
}

static char *generated(const Generator *g, const int *prompt, size_t length, int count, int end, uint64_t stream) {
    const char *path = temp_path("generated");
    int saved = redirect(STDOUT_FILENO, path, NEW_FILE);
    generate(g, prompt, length, count, end, stream);
    restore(STDOUT_FILENO, saved);
    return content(path);
}

static char *sampled(const Generator *g, const int *prompt, size_t length) {
    const char *path = temp_path("sampled");
    int saved = redirect(STDOUT_FILENO, path, NEW_FILE);
    generate_samples(g, prompt, length, -1);
    restore(STDOUT_FILENO, saved);
    return content(path);
}

static void assert_text(char *found, const char *expected) {
    assert_string_equal(found, expected);
    free(found);
}

// ---- one text

// The tokens that the model reads are the last ones of the text, at most `positions`; a full context goes on with its
// second half.
static void check_window(int positions, int prompt_length, int count) {
    enum { VOCAB = 31 };
    int tokens[200], begin = 0, end = prompt_length;
    char expected[1000] = "", *at = expected;
    float logits[VOCAB];
    for (int i = 0; i < prompt_length; i++) { tokens[i] = i * 7 % VOCAB; }
    while (end < prompt_length + count) {
        if (end - begin > positions) { begin = end - (positions + 1) / 2; }
        fake_logits(logits, VOCAB, tokens + begin, end - begin);
        tokens[end++] = sampler_argmax(logits, VOCAB);
    }
    for (int i = 0; i < end; i++) { at += sprintf(at, "%d ", tokens[i]); }
    sprintf(at, "\n");
    FakeModel m = fake_model(positions, VOCAB, NULL, 0);
    TrainArgs a = greedy_args(count);
    Comm *alone = comm_single(NULL);
    Generator g = generator(&m, NULL, &a, alone);
    assert_text(generated(&g, tokens, (size_t)prompt_length, count, -1, 0), expected);
    assert_int_equal(m.reads, count);
    comm_close(alone);
}

TEST(test_window) {
    for (int positions = 1; positions < 12; positions++) {
        for (int length = 1; length < 26; length += 3) { check_window(positions, length, 40); }
    }
}

// The end token ends a text and is not printed; -1: no token does. An end token in the prompt is printed.
TEST(test_end) {
    const int script[] = {'a', 'b', '\n', 'c', 'd'}, prompt[] = {'\n', 'x'};
    const int ends[] = {'\n', -1, 'a', 'z'};
    const char *const expected[] = {"\nxab\n", "\nxab\ncd\n", "\nx\n", "\nxab\ncd\n"};
    Tokenizer bytes = tokenizer_bytes();
    TrainArgs a = greedy_args(0);
    Comm *alone = comm_single(NULL);
    for (int i = 0; i < 4; i++) {
        FakeModel m = fake_model(16, 256, script, 5);
        Generator g = generator(&m, &bytes, &a, alone);
        assert_text(generated(&g, prompt, 2, 5, ends[i], 0), expected[i]);
    }
    tokenizer_free(&bytes);
    comm_close(alone);
}

// the token that ends --generate: none of bytes, end-of-text of a BPE, the last token without a tokenizer
TEST(test_document_end) {
    Tokenizer bytes = tokenizer_bytes(), merges = tokenizer_load(MERGES);
    assert_int_equal(document_start(&bytes, 256), '\n');
    assert_int_equal(document_start(&merges, 50257), 2756);
    const int of_bytes[] = {'a', '\n', 'b', 'c'}, merged[] = {64, 2756, 65, 66}, numbers[] = {1, 50256, 2, 3};
    const int *const scripts[] = {of_bytes, merged, numbers}, prompt[] = {77};
    const Tokenizer *const tokenizers[] = {&bytes, &merges, NULL};
    const char *const expected[] = {"Ma\nbc\n", "na\n", "77 1 \n"};
    TrainArgs a = greedy_args(4);
    Comm *alone = comm_single(NULL);
    for (int i = 0; i < 3; i++) {
        FakeModel m = fake_model(16, i == 0 ? 256 : i == 1 ? 2757 : 50257, scripts[i], 4);
        Generator g = generator(&m, tokenizers[i], &a, alone);
        assert_text(sampled(&g, prompt, 1), expected[i]);
    }
    tokenizer_free(&bytes);
    tokenizer_free(&merges);
    comm_close(alone);
}

// Sample i does not depend on the number of samples, and sample 0 is what `generate` prints.
TEST(test_samples) {
    const int prompt[] = {3, 4};
    TrainArgs a = default_args;
    a.generate = 12;
    Comm *alone = comm_single(NULL);
    FakeModel m = fake_model(9, 50, NULL, 0);
    Generator g = generator(&m, NULL, &a, alone);
    char *texts[4], *last = NULL;
    for (int n = 1; n <= 3; n++) {
        a.samples = n;
        texts[n] = sampled(&g, prompt, 2);
    }
    texts[0] = generated(&g, prompt, 2, 12, -1, SAMPLE_STREAM);
    assert_string_equal(texts[0], texts[1]);
    for (int n = 1; n < 3; n++) {
        size_t length = strlen(texts[n]);
        assert_memory_equal(texts[n + 1], texts[n], length);
        assert_memory_equal(texts[n + 1] + length, "---\n3 4 ", 8);
        last = texts[n + 1] + length + 4;
        assert_string_not_equal(last, texts[0]);
    }
    a.seed++;
    a.samples = 1;
    char *other = sampled(&g, prompt, 2);
    assert_string_not_equal(other, texts[1]);
    free(other);
    for (int i = 0; i < 4; i++) { free(texts[i]); }
    comm_close(alone);
}

// Token i of equal logits is random number i of the stream, as a part of the vocabulary.
TEST(test_random_numbers) {
    enum { VOCAB = 64, N = 30 };
    int flat[N], prompt[] = {3};
    char expected[200] = "3 ", *at = expected + 2;
    for (int i = 0; i < N; i++) {
        flat[i] = VOCAB;  // no token: all logits of the script are 0
        at += sprintf(at, "%d ", (int)(VOCAB * rng_uniform(7, 9, (uint64_t)i)));
    }
    sprintf(at, "\n");
    Comm *alone = comm_single(NULL);
    FakeModel m = fake_model(12, VOCAB, flat, N);
    TrainArgs a = default_args;
    a.seed = 7;
    Generator g = generator(&m, NULL, &a, alone);
    assert_text(generated(&g, prompt, 1, N, -1, 9), expected);
    comm_close(alone);
}

// --temperature, --top-k and --top-p reach the sampler
TEST(test_sampling_flags) {
    const int prompt[] = {3};
    Comm *alone = comm_single(NULL);
    FakeModel m = fake_model(9, 50, NULL, 0);
    TrainArgs greedy = greedy_args(20), top_k = default_args, top_p = default_args, usual = default_args;
    top_k.top_k = 1;
    top_p.top_p = 0.001;
    const TrainArgs *const same[] = {&greedy, &top_k, &top_p};
    char *texts[4];
    for (int i = 0; i < 4; i++) {
        Generator g = generator(&m, NULL, i < 3 ? same[i] : &usual, alone);
        texts[i] = generated(&g, prompt, 1, 20, -1, 5);
    }
    assert_string_equal(texts[0], texts[1]);
    assert_string_equal(texts[0], texts[2]);
    assert_string_not_equal(texts[0], texts[3]);
    for (int i = 0; i < 4; i++) { free(texts[i]); }
    comm_close(alone);
}

// ---- prompts

static void read_prompt(void *prompt) { free(prompt_text((const char *)prompt)); }

// @FILE is the text of the file without one newline at its end.
TEST(test_prompts) {
    static const char *const files[][2] = {
        {"Once\nupon\n", "Once\nupon"}, {"Once\n\n", "Once\n"}, {"Once", "Once"}, {"", ""}, {"\n", ""}};
    char prompt[PATH_LENGTH];
    for (size_t i = 0; i < LEN(files); i++) {
        snprintf(prompt, sizeof prompt, "@%s", write_file("prompt", files[i][0], strlen(files[i][0])));
        assert_text(prompt_text(prompt), files[i][1]);
    }
    assert_text(prompt_text("plain @"), "plain @");
    assert_text(prompt_text(""), "");
    assert_text(prompt_text("@@name"), "@name");
    assert_text(prompt_text("@@"), "@");
    int saved = redirect(STDIN_FILENO, write_file("stdin", "from stdin\n", 11), O_RDONLY);
    assert_text(prompt_text("@-"), "from stdin");
    restore(STDIN_FILENO, saved);
    snprintf(prompt, sizeof prompt, "@%s", write_file("nul", "a\0b", 3));
    assert_stops(2, "nul' as a text; give a file of text, or write @@ for a prompt that begins with @", read_prompt,
                 prompt);
    assert_stops(2, "--prompt @missing: could not read 'missing' as a text", read_prompt, (void *)"@missing");
    assert_stops(2, "--prompt @/: could not read '/' as a text", read_prompt, (void *)"@/");
    assert_stops(2, "--prompt @: could not read '' as a text", read_prompt, (void *)"@");
}

int main(void) { return run_all_tests("generate"); }
