/*
Text from a model: a scripted model in place of GPT-2. The key-value cache against a plain list of the last tokens, the
end of a text, samples, prompts from files, and conversations token by token.
*/
#include "testing.h"
#include "llmc/common/hash.h"
#include "llmc/parallel/comm.h"
#include "llmc/run/chat.h"
#include <fcntl.h>

enum { MOST_POSITIONS = 512 };
static const char *const MERGES = "dev/test/golden/gpt2_2500.bpe";

// A model without weights. It takes the next token of `script`; without a script the logits are a function of all
// tokens in the cache.
typedef struct {
    int positions, vocab_size;
    int cache[MOST_POSITIONS], cached;
    const int *script;
    int script_length, said, end;
    int reads;                                      // calls
    int question[MOST_POSITIONS], question_length;  // the cache when the last answer of the script began
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
    if (m->said == 0 || m->script[m->said - 1] == m->end) {
        memcpy(m->question, m->cache, sizeof m->cache);
        m->question_length = m->cached;
    }
    m->said++;
}

static FakeModel fake_model(int positions, int vocab_size, const int *script, int script_length) {
    FakeModel m;
    memset(&m, 0, sizeof m);
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

static int redirected(int descriptor, const char *path, int flags) {
    fflush(NULL);
    int saved = dup(descriptor), file = open(path, flags, 0666);
    assert_true(file >= 0);
    dup2(file, descriptor);
    close(file);
    return saved;
}

static void restore(int descriptor, int saved) {
    fflush(NULL);
    dup2(saved, descriptor);
    close(saved);
}

// the content of a file, which the caller frees
static char *content(const char *path) {
    char *text = read_text_file(path);
    assert_non_null(text);
    return text;
}

static char *generated(const Generator *g, const int *prompt, size_t length, int count, int end, uint64_t stream) {
    const char *path = temp_path("generated");
    int saved = redirected(STDOUT_FILENO, path, O_WRONLY | O_CREAT | O_TRUNC);
    generate(g, prompt, length, count, end, stream);
    restore(STDOUT_FILENO, saved);
    return content(path);
}

static char *sampled(const Generator *g, const int *prompt, size_t length) {
    const char *path = temp_path("sampled");
    int saved = redirected(STDOUT_FILENO, path, O_WRONLY | O_CREAT | O_TRUNC);
    generate_samples(g, prompt, length);
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

static void test_window(void **state) {
    (void)state;
    for (int positions = 1; positions < 12; positions++) {
        for (int length = 1; length < 26; length += 3) { check_window(positions, length, 40); }
    }
}

// The end token ends a text and is not printed; -1: no token does. An end token in the prompt is printed.
static void test_end(void **state) {
    (void)state;
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
static void test_document_end(void **state) {
    (void)state;
    Tokenizer bytes = tokenizer_bytes(), merges = tokenizer_load(MERGES);
    assert_int_equal(document_start(&bytes, 256), '\n');
    assert_int_equal(document_end(&bytes, 256), -1);
    assert_int_equal(document_start(&merges, 50257), 2756);
    assert_int_equal(document_end(&merges, 50257), 2756);
    assert_int_equal(document_end(NULL, 50257), 50256);

    const int script[] = {'a', '\n', 'b', 'c'}, merged[] = {64, 2756, 65, 66}, prompt[] = {77};
    TrainArgs a = greedy_args(4);
    Comm *alone = comm_single(NULL);
    for (int past = 0; past < 2; past++) {
        a.past_end = past ? "" : NULL;
        FakeModel of_bytes = fake_model(16, 256, script, 4), of_merges = fake_model(16, 2757, merged, 4);
        Generator g = generator(&of_bytes, &bytes, &a, alone), h = generator(&of_merges, &merges, &a, alone);
        assert_text(sampled(&g, prompt, 1), "Ma\nbc\n");
        assert_text(sampled(&h, prompt, 1), past ? "na<|endoftext|>bc\n" : "na\n");
    }
    tokenizer_free(&bytes);
    tokenizer_free(&merges);
    comm_close(alone);
}

// Sample i does not depend on the number of samples, and sample 0 is what `generate` prints.
static void test_samples(void **state) {
    (void)state;
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
static void test_random_numbers(void **state) {
    (void)state;
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
static void test_sampling_flags(void **state) {
    (void)state;
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

static void assert_prompt(const void *file, size_t bytes, const char *expected, size_t expected_bytes) {
    TrainArgs a = default_args;
    a.prompt_file = write_file("prompt", file, bytes);
    size_t found;
    char *text = prompt_text(&a, &found);
    assert_int_equal(found, expected_bytes);
    assert_memory_equal(text, expected, found);
    free(text);
}

static void read_prompt(void *path) {
    TrainArgs a = default_args;
    a.prompt_file = (const char *)path;
    size_t bytes;
    free(prompt_text(&a, &bytes));
}

// The prompt is the whole file, NULs too, without one newline at its end.
static void test_prompt_file(void **state) {
    (void)state;
    assert_prompt("Once\nupon\n", 10, "Once\nupon", 9);
    assert_prompt("Once\n\n", 6, "Once\n", 5);
    assert_prompt("Once", 4, "Once", 4);
    assert_prompt("\0a\0\n", 4, "\0a\0", 3);
    assert_prompt("", 0, "", 0);
    assert_prompt("\n", 1, "", 0);
    const size_t most = 16 << 20;
    char *large = (char *)calloc(most + 1, 1);
    assert_prompt(large, most, large, most);
    assert_stops(2, "larger than 16 MiB", read_prompt, (void *)write_file("large", large, most + 1));
    free(large);
    assert_stops(2, "could not be opened", read_prompt, (void *)temp_path("missing"));
    assert_stops(2, "could not be read", read_prompt, (void *)temp_dir());

    TrainArgs a = default_args;
    a.prompt_file = "-";
    size_t bytes;
    int saved = redirected(STDIN_FILENO, write_file("stdin", "from stdin\n", 11), O_RDONLY);
    assert_text(prompt_text(&a, &bytes), "from stdin");
    assert_int_equal(bytes, 10);
    restore(STDIN_FILENO, saved);
    clearerr(stdin);
}

// ---- conversations

static void test_chat_format(void **state) {
    (void)state;
    const char *const expected[][2] = {
        {"System: a\nb\n", "System: a b\n"}, {"User: a\nb\n", "User: a b\n"}, {" a\nb", " a b"}};
    for (int role = CHAT_SYSTEM; role <= CHAT_ASSISTANT; role++) {
        for (int one_line = 0; one_line < 2; one_line++) {
            size_t length;
            char *text = chat_turn_text((ChatRole)role, "a\nb", 3, one_line, &length);
            assert_int_equal(length, strlen(expected[role][one_line]));
            assert_text(text, expected[role][one_line]);
        }
    }
    assert_int_equal(chat_role("system"), CHAT_SYSTEM);
    assert_int_equal(chat_role("user"), CHAT_USER);
    assert_int_equal(chat_role("assistant"), CHAT_ASSISTANT);
    assert_int_equal(chat_role("User"), -1);
    assert_int_equal(chat_role("tool"), -1);
}

// Runs a conversation: `input` on stdin, the opening with a system message. *errors = stderr; both are freed by the
// caller. Returns stdout.
static char *conversation(const Generator *g, const char *system, const char *input, char **errors) {
    const char *out = temp_path("chat_out"), *err = temp_path("chat_err");
    int *opening;
    size_t count = chat_opening(g->tokenizer, system, strlen(system), g->vocab_size, g->positions, &opening);
    int in = redirected(STDIN_FILENO, write_file("chat_in", input, strlen(input)), O_RDONLY);
    int saved_out = redirected(STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC);
    int saved_err = redirected(STDERR_FILENO, err, O_WRONLY | O_CREAT | O_TRUNC);
    chat(g, opening, count);
    restore(STDOUT_FILENO, saved_out);
    restore(STDERR_FILENO, saved_err);
    restore(STDIN_FILENO, in);
    clearerr(stdin);
    free(opening);
    *errors = content(err);
    return content(out);
}

// script (2 * room) = the tokens of answers, one after another; "|" is the end token. Returns their number.
static int scripted(int *script, const Tokenizer *t, const char *answers) {
    int count = 0;
    for (const char *at = answers; *at;) {
        size_t length = strcspn(at, "|");
        int *tokens = NULL;
        size_t n = length ? tokenizer_encode(t, at, length, &tokens) : 0;
        for (size_t i = 0; i < n; i++) { script[count + (int)i] = tokens[i]; }
        free(tokens);
        count += (int)n;
        at += length;
        if (*at == '|') { script[count++] = t->end_of_text, at++; }
    }
    return count;
}

// the cache holds these tokens, written as parts of text: each "+" begins a part that is encoded on its own
static void assert_cache(const FakeModel *m, const Tokenizer *t, const char *parts) {
    int expected[MOST_POSITIONS], count = 0;
    char part[200];
    for (const char *at = parts; *at; at += strcspn(at, "+"), at += *at == '+') {
        snprintf(part, sizeof part, "%.*s", (int)strcspn(at, "+"), at);
        count += scripted(expected + count, t, part);
    }
    assert_int_equal(m->cached, count);
    assert_memory_equal(m->cache, expected, (size_t)count * sizeof *expected);
}

// Each turn is encoded on its own, and the model reads each token once.
static void check_conversation(const Tokenizer *t) {
    int script[100];
    TrainArgs a = greedy_args(50);
    Comm *alone = comm_single(NULL);
    FakeModel m = fake_model(300, t->vocab_size, script, scripted(script, t, " Hello there|| yes|"));
    Generator g = generator(&m, t, &a, alone);
    char *errors;
    assert_text(conversation(&g, "Be brief", "hi\r\n\nwho are you?\nreally", &errors), "Hello there\n\n\nyes\n");
    assert_text(errors, "");
    assert_cache(&m, t,
                 "|+System: Be brief\n+User: hi\n+Assistant:+ Hello there|+User: who are you?\n+Assistant:+|+User: "
                 "really\n+Assistant:+ yes");
    comm_close(alone);
}

static void test_conversation(void **state) {
    (void)state;
    Tokenizer bytes = tokenizer_bytes(), merges = tokenizer_load(MERGES);
    check_conversation(&bytes);
    check_conversation(&merges);
    tokenizer_free(&bytes);
    tokenizer_free(&merges);
}

// An answer of N tokens is cut off: the end token follows in the context, and the next turn begins. A newline in an
// answer becomes a space.
static void test_cut_answers(void **state) {
    (void)state;
    Tokenizer t = tokenizer_load(MERGES);
    int script[20];
    TrainArgs a = greedy_args(4);
    Comm *alone = comm_single(NULL);
    FakeModel m = fake_model(100, t.vocab_size, script, scripted(script, &t, "b\nb\n c|"));
    Generator g = generator(&m, &t, &a, alone);
    char *errors;
    assert_text(conversation(&g, "", "x\ny\n", &errors), "b b \nc\n");
    assert_text(errors, "");
    assert_cache(&m, &t, "|+User: x\n+Assistant:+b\nb\n|+User: y\n+Assistant:+ c");
    tokenizer_free(&t);
    comm_close(alone);
}

// A full context keeps the whole turn of the user. A longer turn is left out, and the conversation goes on.
static void test_full_context(void **state) {
    (void)state;
    Tokenizer t = tokenizer_bytes();
    int script[40];
    TrainArgs a = greedy_args(9);
    Comm *alone = comm_single(NULL);
    const int length = scripted(script, &t, " first| second|");
    // "User: ", a line of 15 characters, a newline and "Assistant:" are 32 tokens
    const char *const lines[] = {"and a long line", "and a longline", "short"};
    for (int i = 0; i < 3; i++) {
        FakeModel m = fake_model(32, 256, script, length);
        m.end = '\n';
        Generator g = generator(&m, &t, &a, alone);
        char input[100], turn[100], seen[MOST_POSITIONS], *errors;
        snprintf(input, sizeof input, "one\n0123456789abcdef\n%s\n", lines[i]);
        snprintf(turn, sizeof turn, "User: %s\nAssistant:", lines[i]);
        assert_text(conversation(&g, "", input, &errors), "first\n\nsecond\n");
        assert_non_null(strstr(errors, "line 2 is a turn of 33 tokens, more than the model's context of 32"));
        assert_true(is_one_line(errors));
        free(errors);
        for (int k = 0; k < m.question_length; k++) { seen[k] = (char)m.question[k]; }
        seen[m.question_length] = 0;
        assert_true(m.question_length >= (int)strlen(turn));
        assert_string_equal(seen + m.question_length - strlen(turn), turn);
    }
    comm_close(alone);
    tokenizer_free(&t);
}

static void open_without_tokenizer(void *unused) {
    (void)unused;
    int *tokens;
    chat_opening(NULL, "", 0, 256, 8, &tokens);
}

static void open_with_long_message(void *unused) {
    (void)unused;
    Tokenizer t = tokenizer_bytes();
    int *tokens;
    chat_opening(&t, "0123456", 7, 256, 16, &tokens);
}

static void test_chat_opening(void **state) {
    (void)state;
    Tokenizer t = tokenizer_bytes();
    int *tokens;
    assert_int_equal(chat_opening(&t, "", 0, 256, 1, &tokens), 1);
    assert_int_equal(tokens[0], '\n');
    free(tokens);
    assert_int_equal(chat_opening(&t, "012345", 6, 256, 16, &tokens), 16);
    free(tokens);
    assert_stops(2, "is a system message of 16 tokens", open_with_long_message, NULL);
    assert_stops(2, "with --tokenizer", open_without_tokenizer, NULL);
    tokenizer_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window),         cmocka_unit_test(test_end),
        cmocka_unit_test(test_document_end),   cmocka_unit_test(test_samples),
        cmocka_unit_test(test_prompt_file),    cmocka_unit_test(test_chat_format),
        cmocka_unit_test(test_sampling_flags), cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_cut_answers),    cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_chat_opening),   cmocka_unit_test(test_random_numbers),
    };
    return cmocka_run_group_tests_name("generate", tests, NULL, NULL);
}
