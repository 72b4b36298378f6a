/*
The activations of GPT-2, and what becomes of each between forward and backward: kept in a slot of its own, or rebuilt
(-r -rk -rn). Decided here once, for every tensor and layer; forward and backward look it up.
  -r    rebuilt in the backward                      kept of a block, in floatX a token
  0     nothing                                      16C
  1     GELU                                         12C
  2     and both layernorms, from their statistics   10C
  3     and the MLP's up-projection                  6C
  4     the block, from its input                    C
The statistics of the layernorms are always kept (16 bytes a token and block), attention's log-sum-exp up to level 3.
At level 4 the inputs of every k-th block are kept (-rk k): a segment of k blocks is replayed before the backward of its
last one. Of the last one the down-projection is not made again: nothing reads its value.
What is rebuilt lives in slots that all blocks share (a segment needs as many as it has blocks), or in scratch.
With tensor parallelism a rank has its own heads and units, and of layernorms and the residual stream its own rows.
Where layernorms are kept, -ra 0 keeps them as they were gathered; -ra 1 gathers them again in the backward.
defines: ActivationId, ActivationSpec, activation_specs, width_size, activation_rows, Recompute, forward_only, Place,
         Places, places_make, places_free, place_of, replay_leaves_norm
*/
#pragma once
#include "llmc/common/check.h"
#include "llmc/parallel/slices.h"

typedef enum {
    ENCODED,  // the embeddings' sum: the first block's input
    LN1,
    LN1_MEAN,
    LN1_RSTD,
    QKV,
    ATTY,
    LSE,
    RESIDUAL2,  // attention's half of a block
    LN2,
    LN2_MEAN,
    LN2_RSTD,
    FCH,
    FCH_GELU,
    RESIDUAL3,  // the MLP's half; RESIDUAL3 is the block's output
    LNF_MEAN,
    LNF_RSTD,
    LOSSES,
    NUM_ACTIVATIONS
} ActivationId;

// elements a token: one, one a head, one a channel, one a channel of attention's heads, three of those, one a unit
typedef enum { WIDTH_1, WIDTH_HEADS, WIDTH_C, WIDTH_ATTENTION, WIDTH_QKV, WIDTH_UNITS } Width;

// of a process with tensor parallelism: all rows of the micro-batch, or its own
typedef enum { ALL_ROWS, OWN_ROWS } Rows;

// the levels of -r; a model without a backward keeps nothing
enum { REBUILD_GELU = 1, REBUILD_NORMS, REBUILD_UP_PROJECTION, REBUILD_BLOCK, FORWARD_ONLY };

// where a tensor lives that is rebuilt: in slots, or in one of two scratch buffers
typedef enum { IN_SLOTS, IN_NORMED, IN_WIDE } Home;

typedef struct {
    const char *name;
    Width width;
    Rows rows;
    bool statistic;  // real, not floatX
    bool layered;
    int rebuilt_at;  // the level of -r from which it is not kept
    Home home;
} ActivationSpec;

static const ActivationSpec activation_specs[NUM_ACTIVATIONS] = {
    {"encoded", WIDTH_C, OWN_ROWS, false, false, FORWARD_ONLY + 1, IN_SLOTS},
    {"ln1", WIDTH_C, OWN_ROWS, false, true, REBUILD_NORMS, IN_NORMED},
    {"ln1_mean", WIDTH_1, OWN_ROWS, true, true, FORWARD_ONLY, IN_SLOTS},
    {"ln1_rstd", WIDTH_1, OWN_ROWS, true, true, FORWARD_ONLY, IN_SLOTS},
    {"qkv", WIDTH_QKV, ALL_ROWS, false, true, REBUILD_BLOCK, IN_SLOTS},
    {"atty", WIDTH_ATTENTION, ALL_ROWS, false, true, REBUILD_BLOCK, IN_SLOTS},
    {"lse", WIDTH_HEADS, ALL_ROWS, true, true, REBUILD_BLOCK, IN_SLOTS},
    {"residual2", WIDTH_C, OWN_ROWS, false, true, REBUILD_BLOCK, IN_SLOTS},
    {"ln2", WIDTH_C, OWN_ROWS, false, true, REBUILD_NORMS, IN_NORMED},
    {"ln2_mean", WIDTH_1, OWN_ROWS, true, true, FORWARD_ONLY, IN_SLOTS},
    {"ln2_rstd", WIDTH_1, OWN_ROWS, true, true, FORWARD_ONLY, IN_SLOTS},
    {"fch", WIDTH_UNITS, ALL_ROWS, false, true, REBUILD_UP_PROJECTION, IN_SLOTS},
    {"fch_gelu", WIDTH_UNITS, ALL_ROWS, false, true, REBUILD_GELU, IN_WIDE},
    {"residual3", WIDTH_C, OWN_ROWS, false, true, REBUILD_BLOCK, IN_SLOTS},  // but the last of a segment is kept
    {"lnf_mean", WIDTH_1, OWN_ROWS, true, false, FORWARD_ONLY + 1, IN_SLOTS},
    {"lnf_rstd", WIDTH_1, OWN_ROWS, true, false, FORWARD_ONLY + 1, IN_SLOTS},
    {"losses", WIDTH_1, ALL_ROWS, true, false, FORWARD_ONLY + 1, IN_SLOTS},
};

static inline size_t width_size(Width width, const GPT2Config *c, const LocalShape *local) {
    const size_t attention = (size_t)local->attention, heads = (size_t)local->heads;
    const size_t sizes[] = {1, heads, (size_t)c->channels, attention, 3 * attention, (size_t)local->units};
    return sizes[width];
}

static inline bool is_norm(ActivationId id) { return id == LN1 || id == LN2; }

// rows that a slot has, of N; gathered: -ra 0
static inline size_t activation_rows(ActivationId id, int N, int ranks, bool gathered) {
    if (activation_specs[id].rows == ALL_ROWS) { return (size_t)N; }
    size_t chunk = chunk_size((size_t)N, ranks);
    return gathered && is_norm(id) ? chunk * (size_t)ranks : chunk;
}

// -r -rk -rn as a model of L blocks has them
typedef struct {
    int level;   // of the first `layers` blocks; the others have the level below
    int every;   // blocks of a segment, at least 1
    int layers;  // 0..L
} Recompute;

// of a model that has no backward: every block writes where the one before it did
static inline Recompute forward_only(int L) {
    Recompute r = {FORWARD_ONLY, 1, L};
    return r;
}

// what becomes of one tensor of one block
typedef struct {
    bool kept;
    int slot;  // where it is IN_SLOTS, or kept
} Place;

typedef struct {
    int slots[NUM_ACTIVATIONS];
    int *replay_from;  // (L) blocks replay_from[l]..l are replayed before the backward of block l; none where it is l+1
    Place *places;     // (NUM_ACTIVATIONS,L)
} Places;

static inline int layer_level(const Recompute *r, int layer) {
    return layer < r->layers || r->level == 0 ? r->level : r->level - 1;
}

// the last block of `layer`'s segment; a block below level 4 is one of its own
static inline int segment_end(const Recompute *r, int layer) {
    if (layer_level(r, layer) < REBUILD_BLOCK) { return layer; }
    int end = (layer / r->every + 1) * r->every;
    return (end < r->layers ? end : r->layers) - 1;
}

static inline bool is_kept(const Recompute *r, ActivationId id, int layer) {
    int level = layer_level(r, layer);
    if (id == RESIDUAL3 && level == REBUILD_BLOCK && segment_end(r, layer) == layer) { return true; }
    return level < activation_specs[id].rebuilt_at;
}

// Kept tensors get the first slots, in the order of their layers; those rebuilt share the ones behind.
static inline void places_of_tensor(Places *p, const Recompute *r, ActivationId id, int L) {
    const ActivationSpec *spec = &activation_specs[id];
    int kept = 0, shared = 0, layers = spec->layered ? L : 1;
    for (int l = 0; l < layers; l++) { kept += is_kept(r, id, l); }
    for (int l = 0, next = 0; l < layers; l++) {
        Place *place = &p->places[id * L + l];
        int within = layer_level(r, l) == REBUILD_BLOCK ? l % r->every : 0;
        place->kept = is_kept(r, id, l);
        place->slot = place->kept ? next++ : kept + within;
        if (!place->kept && spec->home == IN_SLOTS && within >= shared) { shared = within + 1; }
    }
    p->slots[id] = kept + shared;
}

// Free with places_free.
static inline Places places_make(const Recompute *r, int L) {
    Places p;
    p.places = (Place *)xmalloc((size_t)NUM_ACTIVATIONS * (size_t)L * sizeof(Place));
    p.replay_from = (int *)xmalloc((size_t)L * sizeof(int));
    for (int id = 0; id < NUM_ACTIVATIONS; id++) { places_of_tensor(&p, r, (ActivationId)id, L); }
    for (int l = 0; l < L; l++) {
        int begin = layer_level(r, l) == REBUILD_BLOCK ? l / r->every * r->every : l;
        p.replay_from[l] = segment_end(r, l) == l ? begin : l + 1;
    }
    return p;
}

static inline void places_free(Places *p) {
    free(p->places);
    free(p->replay_from);
}

static inline Place place_of(const Places *p, ActivationId id, int layer, int L) { return p->places[id * L + layer]; }

// Where block `layer` is replayed right before its backward, LN2, which that reads first, is not made a second time.
static inline bool replay_leaves_norm(const Places *p, int layer, int L) {
    return p->replay_from[layer] <= layer && !place_of(p, FCH, layer, L).kept;
}
