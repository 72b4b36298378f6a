/*
The pieces of an update. Without --offload a piece is all parameters at -z 0, and the owned chunk of a bucket from -z 1
on. With --offload a piece has at most MAX_PIECE elements.
defines: MAX_PIECE, piece_elements, UpdatePiece, update_pieces, num_update_ranges, piece_update_ranges
*/
#pragma once
#include "llmc/ops.h"
#include "llmc/shapes/layout.h"

// elements of an offloaded piece: copies of 4 MiB and more reach the rate of a PCIe link
enum { MAX_PIECE = 1 << 22, MIN_PIECES = 16 };

// The most elements of an offloaded piece: a multiple of MOMENT_BLOCK. A small model has MIN_PIECES pieces, so that
// the slots take little memory.
static inline size_t piece_elements(const ParamLayout *layout) {
    size_t updated = layout->sharding.stage == 0 ? layout->total : layout->shard;
    size_t elements = param_align((updated + MIN_PIECES - 1) / MIN_PIECES);
    return elements < MAX_PIECE ? elements : (size_t)MAX_PIECE;
}

// elements [offset, offset + count) of the flat buffer at stage 0, of the bucket's owned chunk at 1 to 3
typedef struct {
    int bucket;
    size_t offset, count;
    int first_range, num_ranges;  // of all pieces' update ranges
} UpdatePiece;

// Cuts the updated elements into pieces. pieces: NULL, or room for them. Returns the number of pieces.
static inline int update_pieces(UpdatePiece *pieces, const ParamLayout *layout) {
    bool whole = layout->sharding.stage == 0;
    size_t most = layout->sharding.offload > 0 ? piece_elements(layout) : SIZE_MAX;
    int count = 0;
    for (int b = 0; b < (whole ? 1 : num_buckets(layout)); b++) {
        size_t elements = whole ? layout->total : param_bucket(layout, b).chunk;
        for (size_t done = 0, n; done < elements; done += n) {
            n = elements - done < most ? elements - done : most;
            UpdatePiece piece = {b, done, n, 0, 0};
            if (pieces) { pieces[count] = piece; }
            count++;
        }
    }
    return count;
}

// at least the update ranges of all pieces: one a tensor, and one more for each cut
static inline size_t num_update_ranges(const ParamLayout *layout) {
    size_t tensors = LAYER_PARAMS * (size_t)layout->num_layers + NUM_PARAM_TENSORS - LAYER_PARAMS;
    return tensors + (size_t)update_pieces(NULL, layout);
}

// Writes the update ranges of a bucket that a piece reaches, with offsets from the piece's first element. Returns their
// number.
static inline int bucket_ranges_in_piece(UpdateRange *ranges, const ParamLayout *layout, const UpdatePiece *piece,
                                         int bucket) {
    UpdateRange all[LAYER_PARAMS];
    int num_all = bucket_update_ranges(all, layout, bucket), count = 0;
    const Range wanted = {piece->offset, piece->count};
    for (int i = 0; i < num_all; i++) {
        Range range = {all[i].offset, all[i].count}, both = range_intersect(range, wanted);
        if (both.count == 0) { continue; }
        ranges[count] = all[i];
        ranges[count].tensor_offset += both.offset - range.offset;
        ranges[count].offset = both.offset - wanted.offset;
        ranges[count++].count = both.count;
    }
    return count;
}

// Writes the update ranges of all pieces to `ranges`, (num_update_ranges), and each piece's place in them. Returns the
// number of ranges.
static inline int piece_update_ranges(UpdateRange *ranges, UpdatePiece *pieces, int num_pieces,
                                      const ParamLayout *layout) {
    bool whole = layout->sharding.stage == 0;
    int count = 0;
    for (int i = 0; i < num_pieces; i++) {
        UpdatePiece *piece = &pieces[i];
        int first = whole ? 0 : piece->bucket, end = whole ? num_buckets(layout) : first + 1;
        piece->first_range = count;
        for (int b = first; b < end; b++) { count += bucket_ranges_in_piece(ranges + count, layout, piece, b); }
        piece->num_ranges = count - piece->first_range;
    }
    return count;
}
