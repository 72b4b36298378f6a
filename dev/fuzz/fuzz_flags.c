// Fuzzes the command line, an argument a line, and the descriptor of a shape.
#include "dev/fuzz/fuzz.h"
#include "llmc/run/flag_table.h"

enum { MOST_ARGUMENTS = 64 };

// the shape of -e, if it is a descriptor
static void check_shape(const TrainArgs *a) {
    GPT2Config c;
    if (!a->model || !config_from_descriptor(&c, a->model, GPT2_VOCAB, a->T)) { return; }
    require_valid_shape(&c, "-e");
    fuzz_require(num_parameters(&c) > 0 && num_parameters(&c) <= (size_t)2e12, "a number of parameters");
}

// config.json holds the same flags
static void check_saved(const TrainArgs *a) {
    TrainArgs again = default_args;
    cJSON *json = flags_to_json(flag_table, NUM_FLAGS, a);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    json = cJSON_Parse(text);
    fuzz_require(json != NULL, "flags as valid JSON");
    flags_from_json(flag_table, NUM_FLAGS, &again, json, "config.json");
    fuzz_require(again.B == a->B && again.T == a->T && again.lr == a->lr, "the same flags from config.json");
    cJSON_Delete(json);
    free(text);
}

static void read_command_line(FuzzBytes input) {
    char *text = fuzz_text(input), *arguments[MOST_ARGUMENTS + 2] = {"train_gpt2"};
    int count = 1;
    for (char *line = text; line && count <= MOST_ARGUMENTS; count++) {
        char *end = strchr(line, '\n');
        if (end) { *end++ = 0; }
        arguments[count] = line;
        line = end;
    }
    TrainArgs a;
    cJSON *config = read_flags(&a, count, arguments);
    check_shape(&a);
    require_consistent_flags(&a);
    tokens_of_update(&a);
    check_saved(&a);
    cJSON_Delete(config);
    free(text);
}

FUZZ_TARGET(flags, read_command_line)
