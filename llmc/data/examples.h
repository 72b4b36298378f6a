/*
Examples to fine-tune on: prompts with completions, conversations or texts as JSON lines, packed into sequences.

A line is an object of one of these forms, or an array of turns. Tokens in [brackets] are targets of the loss.
  {"prompt": P, "completion": C}                    P, [C, end-of-text]. An empty P is one end-of-text
  {"messages": [{"role": R, "content": C}, ...]}    end-of-text, then the turns as below; of an assistant's turn
                                                    [" C", end-of-text], unless its "weight" or "train" is 0
  [{"role": R, "content": C}, ...]                  the same
  {"text": D}                                       end-of-text, [D, end-of-text]
Prompt, completion and each turn are encoded on their own, as --generate encodes a prompt. End-of-text of a byte
model is a newline, so there the content of each turn is one line (`one_line`).
Turns       as text without special tokens:
              System: CONTENT\n    User: CONTENT\n    Assistant: CONTENT[end-of-text]
            The model is given the cue "Assistant:" and learns " CONTENT" with end-of-text.
Cut         An example has at most T + 1 tokens. A longer text is cut into pieces, whose first token is the last one of
            the piece before. A longer prompt with completion or conversation is truncated.
Packing     Inputs (T) and targets (T) hold several examples one after another, each with the positions 0, 1, ... and
            attention within itself: packed_read gives the ranges. An ignored target is -1. Best fit, longest example
            first: an example goes to the fullest sequence that has room. The unused end has input 0 and target -1.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/json_file.h"
#include "llmc/common/progress.h"
#include "llmc/common/range.h"
#include "llmc/data/corpus.h"
#include "llmc/data/tokenizer.h"

// ---- conversations

#define CHAT_ANSWER_CUE "Assistant:"

// The format as a Jinja template, which transformers applies: of a tokenizer with end-of-text, and of bytes.
// It encodes the text as a whole: where a turn ends with white space, tokens can differ from the trainer's.
#define CHAT_TEMPLATE_WITH(END, CONTENT)                                                                               \
    "{{ " END " }}{% for m in messages %}{% if m['role'] == 'assistant' %}" CHAT_ANSWER_CUE " {{ " CONTENT             \
    " }}{{ " END " }}{% else %}{{ m['role'] | capitalize }}: {{ " CONTENT " }}{{ '\\n' }}{% endif %}{% endfor %}"      \
    "{% if add_generation_prompt %}" CHAT_ANSWER_CUE "{% endif %}"
#define CHAT_TEMPLATE CHAT_TEMPLATE_WITH("eos_token", "m['content']")
#define CHAT_TEMPLATE_OF_BYTES CHAT_TEMPLATE_WITH("'\\n'", "m['content'] | replace('\\n', ' ')")

// The text of a turn, which the caller frees. NULL: the role is none of system, user and assistant. The text of an
// assistant turn is " CONTENT", without the cue and the end token. one_line: newlines in the content become spaces.
static inline char *chat_turn_text(const char *role, const char *content, bool one_line) {
    bool system = strcmp(role, "system") == 0, user = strcmp(role, "user") == 0;
    if (!system && !user && strcmp(role, "assistant") != 0) { return NULL; }
    const char *before = system ? "System: " : user ? "User: " : " ";
    size_t room = strlen(before) + strlen(content) + 2;
    char *text = (char *)xmalloc(room);
    snprintf(text, room, "%s%s", before, content);
    for (char *c = text; one_line && (c = strchr(c, '\n'));) { *c = ' '; }
    if (system || user) { strcat(text, "\n"); }
    return text;
}

// ---- from lines to tokens

typedef struct {
    int T;
    uint16_t *ids;  // (num_tokens) all examples, one after another
    bool *learned;  // (num_tokens) true for a target
    size_t num_tokens;
    TokenizerEncoder encoder;  // while examples are read
    Range *ranges;             // (count) the tokens of each example
    int count;
    int num_read, num_cut, num_left_out;  // lines; truncated ones; those without a target in the first T + 1 tokens
} Examples;

// Appends a token to the example that is being read.
static inline void example_add_token(Examples *e, int token, bool learned) {
    e->ids = (uint16_t *)xgrow(e->ids, e->num_tokens, sizeof *e->ids);
    e->learned = (bool *)xgrow(e->learned, e->num_tokens, sizeof *e->learned);
    e->ids[e->num_tokens] = (uint16_t)token;
    e->learned[e->num_tokens++] = learned;
}

static inline void example_add_text(Examples *e, const Tokenizer *t, const char *text, bool learned) {
    size_t bytes = strlen(text);
    int *tokens = (int *)xmalloc(bytes * sizeof *tokens);
    size_t count = tokenizer_encode_with(t, &e->encoder, text, bytes, tokens);
    for (size_t i = 0; i < count; i++) { example_add_token(e, tokens[i], learned); }
    free(tokens);
}

// If one of these tokens is a target, adds them as an example and returns true.
static inline bool example_add_range(Examples *e, Range range) {
    bool has_target = false;
    for (size_t i = 1; i < range.count; i++) { has_target |= e->learned[range.offset + i]; }
    if (!has_target) { return false; }
    e->ranges = (Range *)xgrow(e->ranges, (size_t)e->count, sizeof *e->ranges);
    e->ranges[e->count++] = range;
    return true;
}

// Ends the example that begins at token `begin`. If it is too long, `pieces` splits it, otherwise it is truncated.
static inline void example_end(Examples *e, size_t begin, bool pieces) {
    const size_t most = (size_t)e->T + 1;
    bool cut = !pieces && e->num_tokens - begin > most, has_target = false;
    if (cut) { e->num_tokens = begin + most; }
    for (size_t from = begin; from + 1 < e->num_tokens; from += most - 1) {
        size_t left = e->num_tokens - from;
        Range piece = {from, left < most ? left : most};
        has_target |= example_add_range(e, piece);
    }
    e->num_cut += cut && has_target;
    e->num_left_out += !has_target;
    if (!has_target) { e->num_tokens = begin; }
}

// Returns the number at a key: 0 for false, 1 for true, null or a missing key, NaN for anything that is no number.
static inline double example_number(const cJSON *object, const char *key) {
    const cJSON *value = json_get(object, key);
    if (!value || cJSON_IsNull(value)) { return 1; }
    return cJSON_IsBool(value) ? cJSON_IsTrue(value) : cJSON_GetNumberValue(value);
}

// Appends a conversation. Returns "" or an error, worded to follow "line N".
static inline const char *example_add_messages(Examples *e, const Tokenizer *t, const cJSON *messages) {
    bool answered = false;
    const cJSON *message;
    example_add_token(e, t->end_of_text, false);
    cJSON_ArrayForEach(message, messages) {
        const char *role = json_string(message, "role");
        const char *content = json_string(message, "content");
        char *text = role && content ? chat_turn_text(role, content, !t->merges) : NULL;
        if (!text) { return "has a message without a content, or without a role of system, user or assistant"; }
        double weight = example_number(message, "weight"), train = example_number(message, "train");
        bool answer = strcmp(role, "assistant") == 0, learned = answer && weight != 0 && train != 0;
        bool calls = json_is_set(message, "tool_calls") || json_is_set(message, "function_call");
        if (answer && (calls || (weight != 0 && weight != 1))) {
            free(text);
            return "has an answer with tool_calls, function_call or a weight other than 0 and 1; write a call as "
                   "content";
        }
        if (answer) { example_add_text(e, t, CHAT_ANSWER_CUE, false); }
        example_add_text(e, t, text, learned);
        if (answer) { example_add_token(e, t->end_of_text, learned); }
        answered |= answer;
        free(text);
    }
    return answered ? "" : "has no message of the role assistant, so there is nothing to learn";
}

// Appends the example of a line. Returns "" or an error, worded to follow "line N".
static inline const char *example_add(Examples *e, const Tokenizer *t, const cJSON *line) {
    const cJSON *messages = cJSON_IsArray(line) ? line : json_get(line, "messages");
    const char *prompt = json_string(line, "prompt");
    const char *completion = json_string(line, "completion");
    const char *text = json_string(line, "text");
    size_t begin = e->num_tokens;
    bool pair = prompt && completion;
    bool more = json_is_set(line, "system") || json_is_set(line, "tools") || json_is_set(line, "functions");
    bool unwanted = example_number(line, "weight") != 1 || example_number(line, "label") == 0;
    if ((pair || cJSON_IsArray(messages)) && (more || unwanted)) {
        return "has a key that is not read: system, tools, functions, or a weight or label of 0; move its text into "
               "the prompt or the turns, and remove examples that should not be learned";
    }
    if (cJSON_IsArray(line) && !json_get(line->child, "role")) {
        return "is an array, but not of turns with a role and content; jq -c '.[]' FILE writes its items as lines";
    }
    if (cJSON_IsArray(messages)) {
        const char *error = example_add_messages(e, t, messages);
        if (!*error) { example_end(e, begin, false); }
        return error;
    }
    if (!pair && !text) {
        return "has none of these: strings prompt and completion, an array messages, a string text; doc/training.md "
               "has jq's commands for the forms of Alpaca and ShareGPT";
    }
    if (!pair || !*prompt) { example_add_token(e, t->end_of_text, false); }
    if (pair) { example_add_text(e, t, prompt, false); }
    example_add_text(e, t, pair ? completion : text, true);
    example_add_token(e, t->end_of_text, true);
    example_end(e, begin, !pair);
    return "";
}

static inline void examples_free(Examples *e) {
    free(e->ids);
    free(e->learned);
    free(e->ranges);
}

// The examples of the JSON lines in files that match a glob pattern, of at most T + 1 tokens each. `flag` gave the
// pattern. Stops at a line without an example, and if no example has a target. Free with examples_free.
static inline Examples examples_load(const char *flag, const char *pattern, const Tokenizer *t, int T) {
    Examples e = {T};
    Corpus corpus = corpus_open(flag, pattern, NULL);
    corpus.tokenizer = t;
    CorpusPiece piece;
    while (corpus_read(&corpus, &piece)) {
        const char *error = example_add(&e, t, corpus_value(&corpus, &piece));
        if (*error) { corpus_bad_line(&corpus, error); }
        e.num_read++;
        progress_show("reading examples", (double)corpus.bytes_read, (double)corpus.bytes);
    }
    progress_show("reading examples", -1, 0);
    corpus.specials += e.encoder.specials_as_text;
    corpus_print_notes(stdout, &corpus);
    corpus_close(&corpus);
    tokenizer_free_encoder(&e.encoder);
    if (e.count == 0) {
        input_error("%s %s holds no example with a target in its first %d tokens; give other examples or a larger -t",
                    flag, pattern, T + 1);
    }
    return e;
}

// ---- from examples to sequences of T tokens

// Examples [from, from + count) of *examples, packed into sequences. Each sequence is a linked list of examples.
typedef struct {
    const Examples *examples;
    int count, num_sequences;
    int *first;    // (num_sequences) the index of the first example
    int *targets;  // (num_sequences) number of learned tokens
    int *next;     // (examples->count) the example after each one in its sequence; -1: none
} PackedExamples;

// The tokens that an example takes in a sequence. Its last token is only a target, so it takes no room.
static inline int example_length(const Examples *e, int i) { return (int)e->ranges[i].count - 1; }

// Packs the examples [from, to), at least one. *e must outlive the result. Free with packed_free.
static inline PackedExamples examples_pack(const Examples *e, int from, int to) {
    const size_t count = (size_t)(to - from), lengths = (size_t)e->T + 1;
    PackedExamples p = {e, to - from, 0, NULL, NULL, (int *)xmalloc((size_t)e->count * sizeof(int))};
    p.first = (int *)xmalloc(count * sizeof(int));
    p.targets = (int *)xcalloc(count, sizeof(int));
    int *last = (int *)xmalloc(count * sizeof(int));         // example of each sequence
    int *below = (int *)xmalloc(count * sizeof(int));        // the next sequence with the same room
    int *with_room = (int *)xmalloc(lengths * sizeof(int));  // by room: a sequence, the others are below it; -1: none
    int *of_length = (int *)xmalloc(lengths * sizeof(int));  // by length: an example, the others are p.next; -1: none
    memset(with_room, -1, lengths * sizeof(int));
    memset(of_length, -1, lengths * sizeof(int));
    for (int i = to - 1; i >= from; i--) {
        p.next[i] = of_length[example_length(e, i)];
        of_length[example_length(e, i)] = i;
    }
    for (int length = e->T; length > 0; length--) {
        for (int i = of_length[length], next; i >= 0; i = next) {
            int room = length;
            while (room <= e->T && with_room[room] < 0) { room++; }
            bool fits = room <= e->T;
            int s = fits ? with_room[room] : p.num_sequences++, left = (fits ? room : e->T) - length;
            if (fits) {
                with_room[room] = below[s];
                p.next[last[s]] = i;
            } else {
                p.first[s] = i;
            }
            below[s] = with_room[left];
            with_room[left] = s;
            last[s] = i;
            next = p.next[i];
            p.next[i] = -1;
            for (int t = 1; t <= length; t++) { p.targets[s] += e->learned[e->ranges[i].offset + (size_t)t]; }
        }
    }
    free(last);
    free(below);
    free(with_room);
    free(of_length);
    return p;
}

static inline uint64_t packed_targets(const PackedExamples *p) {
    uint64_t sum = 0;
    for (int s = 0; s < p->num_sequences; s++) { sum += (uint64_t)p->targets[s]; }
    return sum;
}

// Reads sequence s into inputs (T) and targets (T); -1 is a sequence without examples. Appends the range of each
// example, and of the unused end, to `ranges`; the sequence begins at `offset` of its micro-batch. Returns how many
// ranges, at most T.
static inline int packed_read(const PackedExamples *p, int s, int *inputs, int *targets, Range *ranges, size_t offset) {
    const Examples *e = p->examples;
    int at = 0, count = 0;
    for (int i = s < 0 ? -1 : p->first[s]; i >= 0; i = p->next[i]) {
        int length = example_length(e, i);
        Range range = {offset + (size_t)at, (size_t)length};
        ranges[count++] = range;
        for (size_t next = e->ranges[i].offset + 1; length > 0; length--, next++, at++) {
            inputs[at] = e->ids[next - 1];
            targets[at] = e->learned[next] ? e->ids[next] : -1;
        }
    }
    Range rest = {offset + (size_t)at, (size_t)(e->T - at)};
    if (rest.count) { ranges[count++] = rest; }
    for (; at < e->T; at++) {
        inputs[at] = 0;
        targets[at] = -1;
    }
    return count;
}

static inline void packed_free(PackedExamples *p) {
    free(p->first);
    free(p->targets);
    free(p->next);
}
