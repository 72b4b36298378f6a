/*
The activations of GPT-2 and, for each tensor and layer, whether it is saved from forward to backward or recomputed
(-r -rk -rn). One table decides; plan, forward and backward read the table.
  -r    recomputed in the backward                    saved per block, in floatX elements per token
  0     nothing                                       16C
  1     GELU                                          12C
  2     GELU, layernorms                              10C
  3     GELU, layernorms, up-projection               6C
  4     the block, from its input                     C
Every level saves the layernorm statistics ln1_mean, ln1_rstd, ln2_mean and ln2_rstd: 16 bytes per token and block.
Attention's log-sum-exp (lse) is saved up to level 3. At level 4 the input of every k-th block is saved (-rk k): k
blocks are a checkpoint segment. Before the backward of a segment's last block, the forward of the segment's other
blocks runs again. The last block is recomputed within its backward. The last block's down-projection does not run: the
backward does not need its output. A recomputed tensor is in a slot that all segments share (one slot per block of a
segment), or in scratch. With tensor parallelism a rank holds its own heads and MLP channels, and its own rows of
layernorms and the residual stream. Where layernorms are saved, -ra 0 saves the all-gathered rows; -ra 1 all-gathers
them again in the backward. With --offload 4 the saved residual3 tensors take turns in two slots (activation_offload.h).
*/
#pragma once
#include "llmc/shapes/slices.h"

typedef enum {
    ENCODED,  // sum of the embeddings: the first block's input
    LN1,
    LN1_MEAN,
    LN1_RSTD,
    QKV,
    ATTY,  // attention's output
    LSE,
    RESIDUAL2,  // after attention
    LN2,
    LN2_MEAN,
    LN2_RSTD,
    FCH,  // the MLP's up-projection, before GELU
    FCH_GELU,
    RESIDUAL3,  // after the MLP: the block's output
    LNF_MEAN,
    LNF_RSTD,
    LOSSES,
    NUM_ACTIVATIONS
} ActivationId;

// elements per token: 1, heads, channels C, attn_dim, 3 attn_dim, d_ff
typedef enum { WIDTH_1, WIDTH_HEADS, WIDTH_C, WIDTH_ATTN, WIDTH_QKV, WIDTH_D_FF } Width;

// with tensor parallelism: all rows of the micro-batch, or this rank's
typedef enum { ALL_ROWS, OWN_ROWS } RowSplit;

// the levels of -r, 0 to 4; then what is beside or above them
enum {
    RECOMPUTE_NOTHING,
    RECOMPUTE_GELU,
    RECOMPUTE_LAYERNORMS,
    RECOMPUTE_UP_PROJECTION,
    RECOMPUTE_BLOCK,
    RECOMPUTE_AUTO,  // only on the command line: choose_options replaces it by a level
    FORWARD_ONLY,    // the level of a model without a backward, which saves nothing of a block
    ALWAYS_SAVED     // above every level: the table's word for a tensor that no level recomputes
};

// where a recomputed tensor is: in slots, or in one of two scratch buffers
typedef enum { IN_SLOTS, IN_NORM_SCRATCH, IN_MLP_SCRATCH } Home;

static const struct {
    const char *name;
    Width width;
    RowSplit rows;
    bool statistic;  // real, not floatX
    bool layered;
    int recomputed_at;  // the lowest level of -r that does not save it
    Home home;
} activation_specs[NUM_ACTIVATIONS] = {
    {"encoded", WIDTH_C, OWN_ROWS, false, false, ALWAYS_SAVED, IN_SLOTS},
    {"ln1", WIDTH_C, OWN_ROWS, false, true, RECOMPUTE_LAYERNORMS, IN_NORM_SCRATCH},
    {"ln1_mean", WIDTH_1, OWN_ROWS, true, true, FORWARD_ONLY, IN_SLOTS},
    {"ln1_rstd", WIDTH_1, OWN_ROWS, true, true, FORWARD_ONLY, IN_SLOTS},
    {"qkv", WIDTH_QKV, ALL_ROWS, false, true, RECOMPUTE_BLOCK, IN_SLOTS},
    {"atty", WIDTH_ATTN, ALL_ROWS, false, true, RECOMPUTE_BLOCK, IN_SLOTS},
    {"lse", WIDTH_HEADS, ALL_ROWS, true, true, RECOMPUTE_BLOCK, IN_SLOTS},
    {"residual2", WIDTH_C, OWN_ROWS, false, true, RECOMPUTE_BLOCK, IN_SLOTS},
    {"ln2", WIDTH_C, OWN_ROWS, false, true, RECOMPUTE_LAYERNORMS, IN_NORM_SCRATCH},
    {"ln2_mean", WIDTH_1, OWN_ROWS, true, true, FORWARD_ONLY, IN_SLOTS},
    {"ln2_rstd", WIDTH_1, OWN_ROWS, true, true, FORWARD_ONLY, IN_SLOTS},
    {"fch", WIDTH_D_FF, ALL_ROWS, false, true, RECOMPUTE_UP_PROJECTION, IN_SLOTS},
    {"fch_gelu", WIDTH_D_FF, ALL_ROWS, false, true, RECOMPUTE_GELU, IN_MLP_SCRATCH},
    {"residual3", WIDTH_C, OWN_ROWS, false, true, RECOMPUTE_BLOCK, IN_SLOTS},  // a segment's last one is saved
    {"lnf_mean", WIDTH_1, OWN_ROWS, true, false, ALWAYS_SAVED, IN_SLOTS},
    {"lnf_rstd", WIDTH_1, OWN_ROWS, true, false, ALWAYS_SAVED, IN_SLOTS},
    {"losses", WIDTH_1, ALL_ROWS, true, false, ALWAYS_SAVED, IN_SLOTS},
};

static inline size_t activation_width(ActivationId id, const GPT2Config *c, const LocalShape *local) {
    const size_t attn = (size_t)local->attn_dim, heads = (size_t)local->heads;
    const size_t sizes[] = {1, heads, (size_t)c->channels, attn, 3 * attn, (size_t)local->d_ff};
    return sizes[activation_specs[id].width];
}

// rows of one slot, for N rows of a micro-batch; gathered: -ra 0 saves all rows of layernorms
static inline size_t activation_rows(ActivationId id, int N, const LocalShape *local, bool gathered) {
    if (activation_specs[id].rows == ALL_ROWS) { return (size_t)N; }
    size_t chunk = chunk_size((size_t)N, local->tp_size);
    return gathered && (id == LN1 || id == LN2) ? chunk * (size_t)local->tp_size : chunk;
}

// -r -rk -rn for a model of L blocks
typedef struct {
    int level;            // of the first `layers` blocks; later blocks: level - 1, at least 0
    int every;            // blocks per checkpoint segment, at least 1
    int layers;           // 0..L
    bool offload_inputs;  // --offload 4
} Recompute;

// a model without a backward: all blocks share their slots
static inline Recompute forward_only(int L) {
    Recompute r = {FORWARD_ONLY, 1, L, false};
    return r;
}

static inline int layer_level(const Recompute *r, int layer) {
    return layer < r->layers || r->level == 0 ? r->level : r->level - 1;
}

// ---- checkpoint segments: at level 4, `every` blocks; below, every block is its own segment

// the first block of a layer's segment
static inline int segment_begin(const Recompute *r, int layer) {
    return layer_level(r, layer) < RECOMPUTE_BLOCK ? layer : layer / r->every * r->every;
}

// True if the layer is the last block of its segment.
static inline bool ends_segment(const Recompute *r, int layer) {
    return layer_level(r, layer) < RECOMPUTE_BLOCK || (layer + 1) % r->every == 0 || layer + 1 == r->layers;
}

static inline bool activation_is_saved(const Recompute *r, ActivationId id, int layer) {
    int level = layer_level(r, layer);
    if (id == RESIDUAL3 && level == RECOMPUTE_BLOCK && ends_segment(r, layer)) { return true; }
    return level < activation_specs[id].recomputed_at;
}

// Returns the block whose parameters the backward reads after those of block l, or -1. It is l - 1 or, if a segment
// ends there, the segment's first block, which is recomputed first.
static inline int backward_next(const Recompute *r, int l) {
    return l > 0 && ends_segment(r, l - 1) ? segment_begin(r, l - 1) : l - 1;
}

// ---- slots: the saved tensors of an activation have the first slots, in the order of the layers. The recomputed
// tensors share the slots behind the saved ones, one slot for each block of a segment. For 5 blocks at -r 4 -rk 2,
// whose segments are blocks 0 1, 2 3 and 4:
//   block            0   1   2   3   4
//   RESIDUAL3 slot   3   0*  3   1*  2*   * saved: the output of a segment. Four slots
//   FCH slot         0   1   0   1   0    Two slots

// saved tensors of an activation in blocks [0, layers)
static inline int num_saved(const Recompute *r, ActivationId id, int layers) {
    int saved = 0;
    for (int l = 0; l < layers; l++) { saved += activation_is_saved(r, id, l); }
    return saved;
}

// Returns the index of block l's input among the saved inputs, which --offload 4 keeps on the host, or -1 for the
// embeddings, which stay on the device.
static inline int input_of_block(const Recompute *r, int l) { return num_saved(r, RESIDUAL3, l) - 1; }

// index of block l's output, the next block's input; -1: it is not saved
static inline int output_of_block(const Recompute *r, int l) {
    return activation_is_saved(r, RESIDUAL3, l) ? input_of_block(r, l + 1) : -1;
}

static inline int index_in_segment(const Recompute *r, int layer) {
    return layer_level(r, layer) == RECOMPUTE_BLOCK ? layer % r->every : 0;
}

// slots of the saved tensors of an activation in `layers` blocks
static inline int num_saved_slots(const Recompute *r, ActivationId id, int layers) {
    int saved = num_saved(r, id, layers);
    return id == RESIDUAL3 && r->offload_inputs && saved > 2 ? 2 : saved;
}

// slots of an activation in a model of L blocks
static inline int num_activation_slots(const Recompute *r, ActivationId id, int L) {
    int layers = activation_specs[id].layered ? L : 1, shared = 0;
    for (int l = 0; l < layers && activation_specs[id].home == IN_SLOTS; l++) {
        int needed = activation_is_saved(r, id, l) ? 0 : index_in_segment(r, l) + 1;
        shared = needed > shared ? needed : shared;
    }
    return num_saved_slots(r, id, layers) + shared;
}

// the slot of one layer's tensor; a recomputed tensor may live in scratch instead
static inline int activation_slot(const Recompute *r, ActivationId id, int layer, int L) {
    if (activation_is_saved(r, id, layer)) {
        int index = num_saved(r, id, layer);
        return id == RESIDUAL3 && r->offload_inputs ? index % 2 : index;
    }
    return num_saved_slots(r, id, activation_specs[id].layered ? L : 1) + index_in_segment(r, layer);
}
