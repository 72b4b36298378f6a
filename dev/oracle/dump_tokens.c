/*
Prints how a tokenizer reads stdin, as JSON, for dev/oracle/tokenizer_check.py.
    dump_tokens TOKENIZER
    {"text":[ids of a training text],"prompt":[ids of a prompt],"decoded":"the prompt's bytes in hexadecimal","end":id}
*/
#include "llmc/data/tokenizer_files.h"

static void print_ids(const char *name, const int *ids, size_t count) {
    printf("\"%s\":[", name);
    for (size_t i = 0; i < count; i++) { printf("%s%d", i ? "," : "", ids[i]); }
    printf("],");
}

int main(int argc, char **argv) {
    size_t bytes;
    if (argc != 2) { input_error("dump_tokens takes the path of a tokenizer, and a text on stdin"); }
    Tokenizer t = tokenizer_open(argv[1]);
    char *text = read_whole_file("/dev/stdin", 1 << 20, &bytes);
    if (!text) { input_error("could not read stdin: %s", strerror(errno)); }
    TokenizerEncoder e;
    memset(&e, 0, sizeof e);
    int *ids = (int *)xmalloc((bytes + 1) * sizeof *ids), *prompt;
    putchar('{');
    print_ids("text", ids, tokenizer_encode_with(&t, &e, text, bytes, ids));
    size_t count = tokenizer_encode(&t, text, bytes, &prompt), length;
    print_ids("prompt", prompt, count);
    printf("\"decoded\":\"");
    for (size_t i = 0; i < count; i++) {
        const char *token = tokenizer_decode(&t, prompt[i], &length);
        for (size_t k = 0; k < length; k++) { printf("%02x", (uint8_t)token[k]); }
    }
    printf("\",\"end\":%d}\n", t.end_of_text);
    free(ids);
    free(prompt);
    free(text);
    tokenizer_free_encoder(&e);
    tokenizer_free(&t);
    return 0;
}
