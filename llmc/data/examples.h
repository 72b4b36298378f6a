/*
Examples to fine-tune on: prompts with completions, conversations or texts as JSON lines, in packed sequences of T
tokens. The names here say row for packed sequence.
defines: chat_turn_text, CHAT_ANSWER_CUE, CHAT_TEMPLATE, CHAT_TEMPLATE_OF_BYTES, Examples,
         examples_load, examples_free, ExampleRows, example_rows_pack, example_length, example_rows_targets,
         example_row_read, example_rows_free

A line is an object of one of these forms, or an array of turns. Tokens in [brackets] are targets of the loss.
  {"prompt": P, "completion": C}                    P, [C, end-of-text]. An empty P is one end-of-text
  {"messages": [{"role": R, "content": C}, ...]}    end-of-text, then the turns as below; of an assistant's turn
                                                    [" C", end-of-text], unless its "weight" or "train" is 0
  [{"role": R, "content": C}, ...]                  the same
  {"text": D}                                       end-of-text, [D, end-of-text]
Prompt, completion and each turn are encoded on their own, as --generate encodes a prompt. End-of-text of a byte
model is a newline.
Turns       of a conversation, as text without special tokens:
              System: CONTENT\n    User: CONTENT\n    Assistant: CONTENT[end-of-text]
            An assistant's turn is encoded in two parts: the cue "Assistant:", which the model is given, and " CONTENT",
            which it learns with end-of-text. A newline ends an answer of a byte model: there, the content of each turn
            is one line (`one_line`).
Cut         An example has at most T + 1 tokens. A longer text is cut into pieces, whose first token is the last one of
            the piece before. A longer prompt with completion or conversation is truncated.
Rows        Inputs (T) and targets (T) hold several examples one after another, each with the positions 0, 1, ... and
            attention within itself: row_read gives the ranges. An ignored target is -1. Rows are packed by
            best fit, longest example first: an example goes to the fullest row that has room. The unused end of
            a row has input 0 and target -1.
Memory      3 bytes a token, and 16 an example.
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
// transformers encodes the text as a whole: where a turn's content ends with white space, BPE tokens can differ from
// the trainer's.
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
    int T, end_of_text;
    bool one_line;  // of byte models: a turn is one line
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

// Adds the example of tokens [range.offset, range.offset + range.count). Returns true if one of them is a target.
static inline bool example_add_range(Examples *e, Range range) {
    bool has_target = false;
    for (size_t i = 1; i < range.count; i++) { has_target |= e->learned[range.offset + i]; }
    if (!has_target) { return false; }
    e->ranges = (Range *)xgrow(e->ranges, (size_t)e->count, sizeof *e->ranges);
    e->ranges[e->count++] = range;
    return true;
}

// Ends the example that begins at token `begin`. pieces: splits a longer example into several.
static inline void example_end(Examples *e, size_t begin, bool pieces) {
    const size_t T = (size_t)e->T, end = e->num_tokens;
    bool longer = end - begin > T + 1;
    if (!longer || !pieces) {
        Range range = {begin, longer ? T + 1 : end - begin};
        bool has_target = example_add_range(e, range);
        e->num_left_out += !has_target;
        e->num_cut += has_target && longer;
        e->num_tokens = has_target ? begin + range.count : begin;
        return;
    }
    for (size_t from = begin; from + 1 < end; from += T) {
        Range piece = {from, end - from < T + 1 ? end - from : T + 1};
        example_add_range(e, piece);
    }
}

// True if an object has a key with a value other than null, false and the empty ones.
static inline bool example_has(const cJSON *object, const char *key) {
    const cJSON *value = json_get(object, key);
    const char *text = cJSON_GetStringValue(value);
    bool list = cJSON_IsArray(value) || cJSON_IsObject(value);
    return value && !cJSON_IsNull(value) && !cJSON_IsFalse(value) && !(list && !value->child) && !(text && !*text);
}

// The number in a key: 0 for false, 1 for true or without a value, NaN for anything else.
static inline double example_number(const cJSON *object, const char *key) {
    const cJSON *value = json_get(object, key);
    if (!value || cJSON_IsNull(value)) { return 1; }
    return cJSON_IsBool(value) ? cJSON_IsTrue(value) : cJSON_GetNumberValue(value);
}

// Appends a conversation. Returns "" or an error, worded to follow "line N".
static inline const char *example_add_messages(Examples *e, const Tokenizer *t, const cJSON *messages) {
    bool answered = false;
    const cJSON *message;
    example_add_token(e, e->end_of_text, false);
    cJSON_ArrayForEach(message, messages) {
        const char *role = json_string(message, "role");
        const char *content = json_string(message, "content");
        char *text = role && content ? chat_turn_text(role, content, e->one_line) : NULL;
        if (!text) { return "has a message without a content, or without a role of system, user or assistant"; }
        double weight = example_number(message, "weight"), train = example_number(message, "train");
        bool answer = strcmp(role, "assistant") == 0, learned = answer && weight != 0 && train != 0;
        bool calls = example_has(message, "tool_calls") || example_has(message, "function_call");
        if (answer && (calls || (weight != 0 && weight != 1))) {
            free(text);
            return "has an answer with tool_calls, function_call or a weight other than 0 and 1; write a call as "
                   "content";
        }
        if (answer) { example_add_text(e, t, CHAT_ANSWER_CUE, false); }
        example_add_text(e, t, text, learned);
        if (answer) { example_add_token(e, e->end_of_text, learned); }
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
    bool more = example_has(line, "system") || example_has(line, "tools") || example_has(line, "functions");
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
    if (!pair || !*prompt) { example_add_token(e, e->end_of_text, false); }
    if (pair) { example_add_text(e, t, prompt, false); }
    example_add_text(e, t, pair ? completion : text, true);
    example_add_token(e, e->end_of_text, true);
    example_end(e, begin, !pair);
    return "";
}

static inline void examples_free(Examples *e) {
    free(e->ids);
    free(e->learned);
    free(e->ranges);
    memset(e, 0, sizeof *e);
}

// The examples of the JSON lines in files that match a glob pattern, of at most T + 1 tokens each. `flag` gave the
// pattern. Stops at a line without an example after `skip_bad` of them, and if no example has a target. Free with
// examples_free.
static inline Examples examples_load(const char *flag, const char *pattern, const Tokenizer *t, int T, int skip_bad) {
    Examples e;
    memset(&e, 0, sizeof e);
    e.T = T;
    e.end_of_text = t->end_of_text;
    e.one_line = !t->merges;
    Corpus corpus = corpus_open(flag, pattern, NULL, skip_bad);
    corpus.tokenizer = t;
    CorpusPiece piece;
    while (corpus_read(&corpus, &piece)) {
        const cJSON *line = corpus_value(&corpus, &piece);
        size_t begin = e.num_tokens;
        const char *error = line ? example_add(&e, t, line) : "";
        e.num_read += line && !*error;
        progress_show("reading examples", (double)corpus.bytes_read, (double)corpus.bytes);
        if (!*error) { continue; }
        e.num_tokens = begin;
        corpus_bad_line(&corpus, &piece, error);
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

// ---- from examples to rows

typedef struct {
    const Examples *examples;
    int num_rows;
    int *members;  // (examples of all rows) index of each example, row by row
    int *first;    // (num_rows + 1) each row's first member
    int *targets;  // (num_rows) number of learned tokens
} ExampleRows;

// tokens that an example takes in a row: its last token is a target only
static inline int example_length(const Examples *e, int i) { return (int)e->ranges[i].count - 1; }

// indices (to - from) of the examples, the longest first, in order among equals
static inline int *examples_by_length(const Examples *e, int from, int to) {
    int *sorted = (int *)xmalloc((size_t)(to - from) * sizeof *sorted);
    int *next = (int *)xcalloc((size_t)e->T + 1, sizeof *next);  // by length: the place of the next such example
    for (int i = from; i < to; i++) { next[example_length(e, i)]++; }
    for (int length = e->T, place = 0; length > 0; length--) {
        int count = next[length];
        next[length] = place;
        place += count;
    }
    for (int i = from; i < to; i++) { sorted[next[example_length(e, i)]++] = i; }
    free(next);
    return sorted;
}

// row_of (to - from) = the row of each example of `sorted`. Returns the number of rows. Rows of equal room are a stack.
static inline int examples_best_fit(const Examples *e, const int *sorted, int count, int *row_of) {
    int num_rows = 0;
    int *below = (int *)xmalloc((size_t)count * sizeof *below);   // the row under this one in its stack
    int *top = (int *)xmalloc(((size_t)e->T + 1) * sizeof *top);  // of the rows with this room; -1: none
    for (int room = 0; room <= e->T; room++) { top[room] = -1; }
    for (int i = 0; i < count; i++) {
        int length = example_length(e, sorted[i]), room = length;
        while (room <= e->T && top[room] < 0) { room++; }
        bool fits = room <= e->T;
        int row = fits ? top[room] : num_rows++, left = (fits ? room : e->T) - length;
        if (fits) { top[room] = below[row]; }
        below[row] = top[left];
        top[left] = row;
        row_of[i] = row;
    }
    free(below);
    free(top);
    return num_rows;
}

// Packs the examples [from, to), at least one, into rows. *e must outlive the rows. Free with example_rows_free.
static inline ExampleRows example_rows_pack(const Examples *e, int from, int to) {
    int count = to - from, *sorted = examples_by_length(e, from, to);
    int *row_of = (int *)xmalloc((size_t)count * sizeof *row_of);
    ExampleRows rows;
    rows.examples = e;
    rows.num_rows = examples_best_fit(e, sorted, count, row_of);
    rows.members = (int *)xmalloc((size_t)count * sizeof *rows.members);
    rows.first = (int *)xcalloc((size_t)rows.num_rows + 2, sizeof *rows.first);
    rows.targets = (int *)xcalloc((size_t)rows.num_rows, sizeof *rows.targets);
    // first[row + 2] = members of the row, then their sums; the loop below moves first[row + 1] to the row's end
    for (int i = 0; i < count; i++) { rows.first[row_of[i] + 2]++; }
    for (int row = 0; row < rows.num_rows; row++) { rows.first[row + 2] += rows.first[row + 1]; }
    for (int i = 0; i < count; i++) {
        rows.members[rows.first[row_of[i] + 1]++] = sorted[i];
        const Range tokens = e->ranges[sorted[i]];
        for (size_t t = 1; t < tokens.count; t++) { rows.targets[row_of[i]] += e->learned[tokens.offset + t]; }
    }
    free(sorted);
    free(row_of);
    return rows;
}

// the targets of all rows
static inline uint64_t example_rows_targets(const ExampleRows *rows) {
    uint64_t sum = 0;
    for (int row = 0; row < rows->num_rows; row++) { sum += (uint64_t)rows->targets[row]; }
    return sum;
}

// inputs (T), targets (T) = a row; -1: a row without examples. Appends the range of each example, and of the unused
// end, to ranges; the row begins at `offset` of its micro-batch. Returns the number of ranges: at most T.
static inline int example_row_read(const ExampleRows *rows, int row, int *inputs, int *targets, Range *ranges,
                                   size_t offset) {
    const Examples *e = rows->examples;
    int at = 0, count = 0;
    for (int i = row < 0 ? 0 : rows->first[row]; row >= 0 && i < rows->first[row + 1]; i++) {
        int length = example_length(e, rows->members[i]);
        const size_t start = e->ranges[rows->members[i]].offset;
        Range range = {offset + (size_t)at, (size_t)length};
        ranges[count++] = range;
        for (int t = 0; t < length; t++, at++) {
            size_t next = start + (size_t)t + 1;
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

static inline void example_rows_free(ExampleRows *rows) {
    free(rows->members);
    free(rows->first);
    free(rows->targets);
    memset(rows, 0, sizeof *rows);
}
