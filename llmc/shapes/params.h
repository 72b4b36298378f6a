/*
The model's shape and its parameter tensors: a table with one row a tensor. llmc/shapes/layout.h gives their offsets.

Names       Hugging Face's, for example h.3.attn.c_attn.weight. Hugging Face's files store the four matmul weights as
            (in, out); here they are (out, in).
Init        normal 0.02; residual projections 0.02 / sqrt(2L); biases 0; layernorm weights 1 (Radford et al. 2019). A
            value depends only on the seed, the tensor and the element, so neither threads nor sharding change it.
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/common/floatx.h"  // IWYU pragma: export
#include "llmc/ops.h"
#include "llmc/common/rng.h"

typedef struct {
    int max_seq_len;        // maxT: positions, rows of wpe
    int vocab_size;         // V
    int padded_vocab_size;  // Vp: V rounded up to VOCAB_PADDING
    int num_layers;         // L
    int num_heads;          // NH
    int channels;           // C
} GPT2Config;

enum { VOCAB_PADDING = 128, GPT2_VOCAB = 50257, PARAM_ALIGN = MOMENT_BLOCK, MAX_HEAD_SIZE = 256 };
enum { MAX_CONFIG_NUMBER = 1 << 24 };  // the largest size that a file may name
#define MAX_PARAMETERS 0x1p40          // sizes in bytes still fit into size_t

static inline int config_head_size(const GPT2Config *c) { return c->channels / c->num_heads; }

static inline void config_set_vocab(GPT2Config *c, int vocab_size) {
    c->vocab_size = vocab_size;
    c->padded_vocab_size = (vocab_size + VOCAB_PADDING - 1) / VOCAB_PADDING * VOCAB_PADDING;
}

// Stops with an input error unless the shape can be built. `where` names the flag or file of the shape.
static inline void require_valid_shape(const GPT2Config *c, const char *where) {
    if (c->num_layers < 1 || c->num_heads < 1 || c->channels < 1 || c->max_seq_len < 1 || c->vocab_size < 1) {
        input_error(
            "%s: a model needs at least one layer, head, channel, position and token; found %d, %d, %d, %d and %d",
            where, c->num_layers, c->num_heads, c->channels, c->max_seq_len, c->vocab_size);
    }
    if (c->channels % c->num_heads != 0) {
        input_error("%s: %d heads do not divide %d channels; choose channels that are a multiple of the heads", where,
                    c->num_heads, c->channels);
    }
    if (config_head_size(c) > MAX_HEAD_SIZE) {
        input_error("%s: a head of %d channels is more than the %d supported; use more heads", where,
                    config_head_size(c), MAX_HEAD_SIZE);
    }
    double C = c->channels, parameters = 12 * C * C * c->num_layers + C * ((double)c->vocab_size + c->max_seq_len);
    if (parameters > MAX_PARAMETERS) {
        input_error("%s: a model of %.2g parameters is more than the %.2g supported; use fewer layers or channels",
                    where, parameters, MAX_PARAMETERS);
    }
}

// d12 24 36 48 are GPT-2's sizes, 124M 350M 774M 1558M; the other depths are llm.c's. gpt3 follows table 2.1 of Brown
// et al. 2020, as in llm.c: c384 is an addition, and the table has 24 heads for c2048 and 5140 channels for c5120.
static const struct {
    const char *name;
    int num_layers, num_heads, channels, max_seq_len;
} known_models[] = {
    {"d6", 6, 6, 384, 1024},
    {"d12", 12, 12, 768, 1024},
    {"d24", 24, 16, 1024, 1024},
    {"d36", 36, 20, 1280, 1024},
    {"d48", 48, 25, 1600, 1024},
    {"d60", 60, 30, 1920, 1024},
    {"d72", 72, 30, 2880, 1024},
    {"d84", 84, 36, 3456, 1024},
    {"gpt3:c384", 6, 6, 384, 2048},
    {"gpt3:c768", 12, 12, 768, 2048},
    {"gpt3:c1024", 24, 16, 1024, 2048},
    {"gpt3:c1536", 24, 16, 1536, 2048},
    {"gpt3:c2048", 24, 16, 2048, 2048},
    {"gpt3:c2560", 32, 32, 2560, 2048},
    {"gpt3:c4096", 32, 32, 4096, 2048},
    {"gpt3:c5120", 40, 40, 5120, 2048},
    {"gpt3:c12288", 96, 96, 12288, 2048},
};
enum { NUM_KNOWN_MODELS = sizeof known_models / sizeof known_models[0] };

// Fills *c from "d12", "gpt2:d12", "gpt3:c768" (GPT-2's vocabulary) or "l4h4c128" (data_vocab tokens, max_seq_len
// positions). Returns false if the word is no descriptor; the word may then be a path.
static inline bool config_from_descriptor(GPT2Config *c, const char *word, int data_vocab, int max_seq_len) {
    const char *name = strncmp(word, "gpt2:", 5) == 0 ? word + 5 : word;
    for (int i = 0; i < NUM_KNOWN_MODELS; i++) {
        if (strcmp(name, known_models[i].name) != 0) { continue; }
        GPT2Config known = {known_models[i].max_seq_len, 0, 0, known_models[i].num_layers, known_models[i].num_heads,
                            known_models[i].channels};
        *c = known;
        config_set_vocab(c, GPT2_VOCAB);
        return true;
    }
    int layers, heads, channels, end = 0;
    if (sscanf(word, "l%6dh%6dc%6d%n", &layers, &heads, &channels, &end) != 3 || word[end]) { return false; }
    GPT2Config described = {max_seq_len, 0, 0, layers, heads, channels};
    *c = described;
    config_set_vocab(c, data_vocab);
    return true;
}

typedef enum {
    WTE,
    WPE,
    LN1W,
    LN1B,
    QKVW,
    QKVB,
    ATTPROJW,
    ATTPROJB,
    LN2W,
    LN2B,
    FCW,
    FCB,
    FCPROJW,
    FCPROJB,
    LNFW,
    LNFB,
    NUM_PARAM_TENSORS,
    FIRST_LAYER_PARAM = LN1W,
    LAST_LAYER_PARAM = FCPROJB
} ParamId;

// the sizes of a tensor's dimensions
typedef enum { DIM_ONE, DIM_VP, DIM_MAXT, DIM_C, DIM_3C, DIM_4C } Dim;
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_NORMAL_RESIDUAL } Init;

// the dimension that tensor parallelism divides (slices.h); a bias is one row, so it is split by columns
typedef enum { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLS } SplitAxis;

static const struct {
    const char *name;  // Hugging Face's, without "h.3."
    Dim rows, cols;
    Init init;
    bool decay;       // weight decay: 2-D tensors
    bool transposed;  // in Hugging Face's files
    SplitAxis split;
} param_specs[NUM_PARAM_TENSORS] = {
    {"wte.weight", DIM_VP, DIM_C, INIT_NORMAL, true, false, SPLIT_ROWS},
    {"wpe.weight", DIM_MAXT, DIM_C, INIT_NORMAL, true, false, SPLIT_NONE},
    {"ln_1.weight", DIM_ONE, DIM_C, INIT_ONE, false, false, SPLIT_NONE},
    {"ln_1.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false, SPLIT_NONE},
    {"attn.c_attn.weight", DIM_3C, DIM_C, INIT_NORMAL, true, true, SPLIT_ROWS},
    {"attn.c_attn.bias", DIM_ONE, DIM_3C, INIT_ZERO, false, false, SPLIT_COLS},
    {"attn.c_proj.weight", DIM_C, DIM_C, INIT_NORMAL_RESIDUAL, true, true, SPLIT_COLS},
    {"attn.c_proj.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false, SPLIT_NONE},
    {"ln_2.weight", DIM_ONE, DIM_C, INIT_ONE, false, false, SPLIT_NONE},
    {"ln_2.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false, SPLIT_NONE},
    {"mlp.c_fc.weight", DIM_4C, DIM_C, INIT_NORMAL, true, true, SPLIT_ROWS},
    {"mlp.c_fc.bias", DIM_ONE, DIM_4C, INIT_ZERO, false, false, SPLIT_COLS},
    {"mlp.c_proj.weight", DIM_C, DIM_4C, INIT_NORMAL_RESIDUAL, true, true, SPLIT_COLS},
    {"mlp.c_proj.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false, SPLIT_NONE},
    {"ln_f.weight", DIM_ONE, DIM_C, INIT_ONE, false, false, SPLIT_NONE},
    {"ln_f.bias", DIM_ONE, DIM_C, INIT_ZERO, false, false, SPLIT_NONE},
};

static inline SplitAxis param_split(ParamId id) { return param_specs[id].split; }
static inline bool param_is_layered(ParamId id) { return id >= FIRST_LAYER_PARAM && id <= LAST_LAYER_PARAM; }

// number of tensors with this id
static inline int param_layers(ParamId id, const GPT2Config *c) { return param_is_layered(id) ? c->num_layers : 1; }

static inline size_t dim_size(Dim dim, const GPT2Config *c) {
    const size_t C = (size_t)c->channels, Vp = (size_t)c->padded_vocab_size, maxT = (size_t)c->max_seq_len;
    const size_t sizes[] = {1, Vp, maxT, C, 3 * C, 4 * C};
    return sizes[dim];
}

// shape in memory, padding included
static inline size_t param_rows(ParamId id, const GPT2Config *c) { return dim_size(param_specs[id].rows, c); }
static inline size_t param_cols(ParamId id, const GPT2Config *c) { return dim_size(param_specs[id].cols, c); }

// rows without the vocabulary's padding
static inline size_t param_used_rows(ParamId id, const GPT2Config *c) {
    return id == WTE ? (size_t)c->vocab_size : param_rows(id, c);
}

enum { NAME_LENGTH = 128 };

// name (size bytes) = for example "h.3.ln_1.weight" or "wte.weight"
static inline void param_name(char *name, size_t size, ParamId id, int layer) {
    if (param_is_layered(id)) {
        snprintf(name, size, "h.%d.%s", layer, param_specs[id].name);
    } else {
        snprintf(name, size, "%s", param_specs[id].name);
    }
}

// trained parameters, without the vocabulary's padding and the gaps between tensors
static inline size_t num_parameters(const GPT2Config *c) {
    size_t count = 0;
    for (int id = 0; id < NUM_PARAM_TENSORS; id++) {
        ParamId p = (ParamId)id;
        count += param_used_rows(p, c) * param_cols(p, c) * (size_t)param_layers(p, c);
    }
    return count;
}

// FLOPs of a training step per token, for MFU, which recomputation does not raise: 6 for each of the 12 L C^2 + Vp C
// weights of matmuls, and 6 L C (T + 1) of attention. A token attends to (T + 1) / 2 positions on average; forward and
// backward of attention are 2 and 4 GEMMs over the pairs of a query and a key.
static inline double model_flops_per_token(const GPT2Config *c, int T) {
    double C = c->channels, L = c->num_layers;
    return 6 * (12 * L * C * C + C * (double)c->padded_vocab_size + L * C * (T + 1.0));
}

// text = "124.4M parameters", "38K parameters" or "512 parameters"
static inline const char *parameters_text(char text[32], const GPT2Config *c) {
    double n = (double)num_parameters(c);
    bool few = n < 1000, millions = n >= 999500;
    const char *format = few ? "%.0f parameters" : millions ? "%.1fM parameters" : "%.0fK parameters";
    snprintf(text, 32, format, few ? n : n / (millions ? 1e6 : 1e3));
    return text;
}

// GPT-2's initial value of element i of a tensor
static inline real param_init_value(ParamId id, int layer, size_t i, const GPT2Config *c, uint64_t seed) {
    Init init = param_specs[id].init;
    if (init == INIT_ZERO || init == INIT_ONE) { return init == INIT_ONE; }
    double scale = init == INIT_NORMAL ? 0.02 : 0.02 / sqrt(2.0 * c->num_layers);
    return (real)(scale * rng_normal(seed, (uint64_t)layer * NUM_PARAM_TENSORS + (uint64_t)id, i));
}

enum { LAYER_PARAMS = LAST_LAYER_PARAM - FIRST_LAYER_PARAM + 1 };

static inline int num_param_tensors(int num_layers) { return NUM_PARAM_TENSORS + (num_layers - 1) * LAYER_PARAMS; }
