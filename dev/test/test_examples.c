/*
Examples of JSON lines: their tokens and targets, what is cut, how they are packed, the batches of a loader,
and bad lines.
*/
#include "testing.h"
#include "llmc/data/dataloader.h"
#include <ctype.h>

// ---- helpers

static Examples load(const char *lines, int T) {
    Tokenizer bytes = tokenizer_bytes();
    Examples e = examples_load("-i", write_file("examples.jsonl", lines, strlen(lines)), &bytes, T);
    tokenizer_free(&bytes);
    return e;
}

// the text of example i; a target is in capitals, end-of-text is '/'
static const char *shown(const Examples *e, int i) {
    static char text[4096];
    const Range r = e->ranges[i];
    for (size_t t = 0; t < r.count; t++) {
        char c = (char)e->ids[r.offset + t];
        bool target = t > 0 && e->learned[r.offset + t];
        text[t] = c == '\n' ? (target ? '|' : '/') : target ? (char)toupper(c) : c;
    }
    text[r.count] = 0;
    return text;
}

// ---- tests

TEST(test_forms) {
    Examples e = load("{\"prompt\": \"two and \", \"completion\": \"two\"}\n"
                      "\n"
                      "{\"prompt\":\"\",\"completion\":\"so\"}\n"
                      "{\"text\":\"a text\"}\n"
                      "{\"messages\":[{\"role\":\"system\",\"content\":\"be\\nbrief\"},"
                      "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"ho\"},"
                      "{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"}]}\n"
                      "{\"prompt\":\"p\",\"completion\":\"\",\"text\":\"not read\"}",
                      100);
    assert_int_equal(e.count, 5);
    assert_string_equal(shown(&e, 0), "two and TWO|");
    assert_string_equal(shown(&e, 1), "/SO|");
    assert_string_equal(shown(&e, 2), "/A TEXT|");
    assert_string_equal(shown(&e, 3), "/System: be brief/User: hi/Assistant: HO|User: x/Assistant: Y|");
    assert_string_equal(shown(&e, 4), "p|");
    assert_int_equal(e.num_cut, 0);
    assert_int_equal(e.num_left_out, 0);
    examples_free(&e);
}

// prompt and completion are encoded apart: "ab" + "c" is not the token "abc"
TEST(test_encoded_apart) {
    static const char merges[] = "a b\nab c\n", line[] = "{\"prompt\":\"ab\",\"completion\":\"c\"}";
    Tokenizer t = tokenizer_load(write_file("two.bpe", merges, strlen(merges)));
    Examples e = examples_load("-i", write_file("apart.jsonl", line, strlen(line)), &t, 8);
    assert_int_equal(e.num_tokens, 3);
    assert_int_equal(e.ids[0], 256);
    assert_int_equal(e.ids[1], t.byte_token['c']);
    assert_int_equal(e.ids[2], t.end_of_text);
    assert_false(e.learned[0]);
    assert_true(e.learned[1] && e.learned[2]);
    examples_free(&e);
    tokenizer_free(&t);
}

TEST(test_cut) {
    Examples e = load("{\"prompt\":\"abc\",\"completion\":\"defgh\"}\n"
                      "{\"prompt\":\"abcdef\",\"completion\":\"g\"}\n"
                      "{\"text\":\"abcdefghijk\"}\n"
                      "{\"prompt\":\"ab\",\"completion\":\"cd\"}\n",
                      4);
    assert_int_equal(e.count, 5);
    assert_string_equal(shown(&e, 0), "abcDE");
    assert_string_equal(shown(&e, 1), "/ABCD");  // a text's pieces: each begins with the last token before it
    assert_string_equal(shown(&e, 2), "dEFGH");
    assert_string_equal(shown(&e, 3), "hIJK|");
    assert_string_equal(shown(&e, 4), "abCD|");
    assert_int_equal(e.num_cut, 1);
    assert_int_equal(e.num_left_out, 1);
    examples_free(&e);
}

// examples of the given lengths, in tokens of a sequence
static Examples of_lengths(const int *lengths, int count, int T) {
    char *lines = (char *)xcalloc((size_t)count, (size_t)T + 64);
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        at += (size_t)sprintf(lines + at, "{\"prompt\":\"%.*s\",\"completion\":\"%c\"}\n", lengths[i] - 1,
                              "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq", 'A' + i % 26);
    }
    Examples e = load(lines, T);
    assert_int_equal(e.count, count);
    for (int i = 0; i < count; i++) { assert_int_equal(example_length(&e, i), lengths[i]); }
    free(lines);
    return e;
}

// The members of a sequence are those of `members` up to -1.
static void assert_members(const PackedExamples *packed, int s, const int *members) {
    for (int i = packed->first[s];; i = packed->next[i]) {
        assert_int_equal(i, *members++);
        if (i < 0) { return; }
    }
}

// The longest example comes first, and an example goes to the fullest sequence with room.
TEST(test_best_fit) {
    static const int lengths[] = {3, 7, 5, 2, 10, 3}, members[][4] = {{4, -1}, {1, 0, -1}, {2, 5, 3, -1}};
    Examples e = of_lengths(lengths, 6, 10);
    PackedExamples packed = examples_pack(&e, 0, 6);
    assert_int_equal(packed.count, 6);
    assert_int_equal(packed.num_sequences, 3);
    for (int s = 0; s < 3; s++) {
        assert_members(&packed, s, members[s]);
        assert_int_equal(packed.targets[s], 2 * (s + 1));
    }
    assert_int_equal(packed_targets(&packed), 12);
    packed_free(&packed);
    packed = examples_pack(&e, 2, 4);  // a part of the examples
    static const int part[] = {2, 3, -1};
    assert_int_equal(packed.num_sequences, 1);
    assert_members(&packed, 0, part);
    packed_free(&packed);
    examples_free(&e);
}

// inputs, targets and ranges of a sequence, and what is left of it
TEST(test_sequence) {
    Examples e = load("{\"prompt\":\"ab\",\"completion\":\"cd\"}\n{\"prompt\":\"x\",\"completion\":\"\"}\n", 8);
    PackedExamples packed = examples_pack(&e, 0, 2);
    int inputs[8], targets[8];
    Range ranges[8];
    assert_int_equal(packed.num_sequences, 1);
    assert_int_equal(packed_read(&packed, 0, inputs, targets, ranges, 16), 3);
    static const int expected_inputs[] = {'a', 'b', 'c', 'd', 'x', 0, 0, 0};
    static const int expected_targets[] = {-1, 'c', 'd', '\n', '\n', -1, -1, -1};
    static const Range expected_ranges[] = {{16, 4}, {20, 1}, {21, 3}};
    assert_memory_equal(inputs, expected_inputs, sizeof inputs);
    assert_memory_equal(targets, expected_targets, sizeof targets);
    assert_memory_equal(ranges, expected_ranges, sizeof expected_ranges);
    packed_free(&packed);
    examples_free(&e);
}

enum { MANY = 500, MANY_T = 33 };

static Examples many_examples(void) {
    int lengths[MANY];
    for (int i = 0; i < MANY; i++) { lengths[i] = 2 + (int)(rng_bits(1, 2, (uint64_t)i) % (MANY_T - 1)); }
    return of_lengths(lengths, MANY, MANY_T);
}

// Each example is in one sequence, no sequence holds more than T tokens, and few tokens are left over.
TEST(test_packing_of_many) {
    Examples e = many_examples();
    PackedExamples packed = examples_pack(&e, 0, MANY);
    int seen[MANY] = {0}, tokens = 0;
    for (int s = 0; s < packed.num_sequences; s++) {
        int length = 0;
        for (int i = packed.first[s]; i >= 0; i = packed.next[i]) {
            seen[i]++;
            length += example_length(&e, i);
        }
        assert_in_range(length, 1, MANY_T);
        tokens += length;
    }
    for (int i = 0; i < MANY; i++) { assert_int_equal(seen[i], 1); }
    assert_true(tokens > 0.95 * MANY_T * packed.num_sequences);
    packed_free(&packed);
    examples_free(&e);
}

// Over an epoch, the ranks' batches hold each sequence once; ranges are in order without a gap; an update has the same
// targets with any number of ranks; another epoch has another order, and seeking finds each batch again.
TEST(test_loader) {
    enum { B = 3, RANKS = 2 };
    Examples e = many_examples();
    PackedExamples packed = examples_pack(&e, 0, MANY);
    int epoch = packed.num_sequences, batches = epoch / (B * RANKS), targets = 0, first_inputs[2][B * MANY_T];
    DataLoader loader[RANKS];
    for (int r = 0; r < RANKS; r++) { dataloader_open_examples(&loader[r], &packed, B, false, 7, r, RANKS); }
    for (int i = 0; i < batches; i++) {
        uint64_t position = loader[0].position;
        int of_update = 0;
        for (int r = 0; r < RANKS; r++) {
            dataloader_next(&loader[r]);
            size_t end = 0;
            int count = 0;
            for (int d = 0; d < loader[r].packed.count; d++) {
                assert_int_equal(loader[r].packed.ranges[d].offset, end);
                assert_true(loader[r].packed.ranges[d].count > 0);
                end += loader[r].packed.ranges[d].count;
            }
            assert_int_equal(end, B * MANY_T);
            for (int t = 0; t < B * MANY_T; t++) { count += loader[r].targets[t] >= 0; }
            of_update += count;
        }
        if (i == 0) { memcpy(first_inputs[0], loader[0].inputs, sizeof first_inputs[0]); }
        assert_int_equal(dataloader_targets(&loader[0], position, B * RANKS), of_update);
        targets += of_update;
    }
    assert_int_equal(dataloader_targets(&loader[1], 0, (uint64_t)(batches * B * RANKS)), targets);
    assert_int_equal(dataloader_targets(&loader[1], 0, (uint64_t)epoch), 2 * MANY);
    assert_int_equal(dataloader_targets(&loader[1], (uint64_t)epoch, (uint64_t)epoch), 2 * MANY);
    dataloader_seek(&loader[0], (uint64_t)epoch);
    dataloader_next(&loader[0]);
    memcpy(first_inputs[1], loader[0].inputs, sizeof first_inputs[1]);
    assert_memory_not_equal(first_inputs[0], first_inputs[1], sizeof first_inputs[0]);
    dataloader_seek(&loader[0], 0);
    dataloader_next(&loader[0]);
    assert_memory_equal(first_inputs[0], loader[0].inputs, sizeof first_inputs[0]);
    for (int r = 0; r < RANKS; r++) { dataloader_close(&loader[r]); }
    packed_free(&packed);
    examples_free(&e);
}

// A loader for validation gives each sequence once, then sequences without targets.
TEST(test_one_epoch) {
    enum { B = 7 };
    Examples e = many_examples();
    PackedExamples packed = examples_pack(&e, 0, MANY);
    assert_true(packed.num_sequences % B != 0);
    DataLoader l;
    dataloader_open_examples(&l, &packed, B, true, 0, 0, 1);
    int batches = (int)dataloader_batches(&l), targets = 0;
    assert_int_equal(batches, (packed.num_sequences + B - 1) / B);
    for (int i = 0; i < batches; i++) {
        dataloader_next(&l);
        for (int n = 0; n < B * MANY_T; n++) { targets += l.targets[n] >= 0; }
    }
    assert_int_equal(targets, 2 * MANY);
    dataloader_next(&l);
    assert_int_equal(l.packed.count, B);
    for (int n = 0; n < B * MANY_T; n++) { assert_true(l.inputs[n] == 0 && l.targets[n] == -1); }
    dataloader_close(&l);
    packed_free(&packed);
    examples_free(&e);
}

static void load_lines(void *lines) {
    Examples e = load((const char *)lines, 8);
    examples_free(&e);
}

#define TURNS(KEYS) "\"messages\":[{" KEYS "\"role\":\"assistant\",\"content\":\"a\"}]"

TEST(test_bad_lines) {
    static const char *const bad[][2] = {
        {"{\"text\":\"good\"}\n\n{\"text\":", "examples.jsonl line 3 is not a JSON object"},
        {"[1]\n", "line 1 is an array, but not of turns with a role and content: found '[1]'; jq"},
        {"1\n", "line 1 is not a JSON object"},
        {"{\"prompt\":\"a\"}\n", "line 1 has none of these: strings prompt and completion"},
        {"{\"prompt\":1,\"completion\":\"a\"}\n", "line 1 has none of these"},
        {"{\"text\":null}\n", "line 1 has none of these"},
        {"{\"messages\":\"hi\"}\n", "line 1 has none of these"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n", "line 1 has no message of the role assistant"},
        {"{\"messages\":[]}\n", "line 1 has no message of the role assistant"},
        {"{\"messages\":[{\"role\":\"robot\",\"content\":\"a\"}]}\n",
         "line 1 has a message without a content, or without a role of system, user or assistant: found"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[]}]}\n", "line 1 has a message without a content"},
        {"{\"messages\":[7]}\n", "line 1 has a message without a content"},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"}]}\n",
         "line 1 has none of these: strings prompt and completion, an array messages, a string text: found"},
        // keys of other programs that change what is learned
        {"{\"prompt\":\"a\",\"completion\":\"b\",\"label\":false}\n",
         "line 1 has a key that is not read: system, tools, functions, or a weight or label of 0: found"},
        {"{\"system\":\"a\"," TURNS("") "}\n", "line 1 has a key that is not read"},
        {"{\"weight\":0," TURNS("") "}\n", "line 1 has a key that is not read"},
        {"{\"tools\":[{\"name\":\"f\"}]," TURNS("") "}\n", "line 1 has a key that is not read"},
        {"{" TURNS("\"tool_calls\":[{}],") "}\n", "line 1 has an answer with tool_calls, function_call or a weight"},
        {"{" TURNS("\"function_call\":{\"name\":\"f\"},") "}\n",
         "line 1 has an answer with tool_calls, function_call or a weight"},
        {"{" TURNS("\"weight\":0.5,") "}\n", "line 1 has an answer with tool_calls, function_call or a weight"},
        {"{\"functions\":[{\"name\":\"f\"}]," TURNS("") "}\n", "line 1 has a key that is not read"},
        {"{" TURNS("\"train\":false,") "}\n", "holds no example with a target"},
        {"{\"prompt\":\"far too long\",\"completion\":\"a\"}\n",
         "holds no example with a target in its first 9 tokens"},
        {"\n", "holds no example with a target"},
    };
    for (size_t i = 0; i < LEN(bad); i++) { assert_stops(2, bad[i][1], load_lines, (void *)bad[i][0]); }
    static const char *const good[] = {
        "{\"prompt\":\"a\",\"completion\":\"b\",\"label\":true}\n",
        "{\"system\":\"\",\"tools\":[],\"weight\":1,\"label\":null," TURNS("\"tool_calls\":null,\"train\":true,") "}\n",
        "{\"text\":\"a\",\"label\":0}\n",  // the class of a text
        "{\"prompt\":\"a\",\"completion\":\"b\",\"label\":\"positive\",\"tools\":false}\n",
        "{\"functions\":{}," TURNS("\"function_call\":{},\"tool_calls\":false,\"weight\":1,") "}\n",
    };
    for (size_t i = 0; i < LEN(good); i++) {
        Examples e = load(good[i], 32);
        assert_int_equal(e.count, 1);
        examples_free(&e);
    }
}

int main(void) { return run_all_tests("examples"); }
