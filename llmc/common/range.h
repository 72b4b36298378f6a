// Ranges of elements, and equal chunks of them, one a rank: the arithmetic of collectives, ZeRO and tensor parallelism.
#pragma once
#include "llmc/common/floatx.h"

// elements [offset, offset + count)
typedef struct {
    size_t offset, count;
} Range;

// Sequences of any length packed into a micro-batch, each with positions and attention of its own, as in attention with
// cu_seqlens: ranges of the B*T rows, in order and without a gap. ranges NULL: not packed.
typedef struct {
    const Range *ranges;
    int count;
} PackedSequences;

static const PackedSequences not_packed = {NULL, 0};  // each row of (B,T) is one sequence

// Intersection; count 0 if empty.
static inline Range range_intersect(Range a, Range b) {
    size_t from = a.offset > b.offset ? a.offset : b.offset;
    size_t a_end = a.offset + a.count, b_end = b.offset + b.count, end = a_end < b_end ? a_end : b_end;
    Range both = {from, from < end ? end - from : 0};
    return both;
}

// elements in each of `ranks` equal chunks that hold `count` elements: count / ranks, rounded up
static inline size_t chunk_size(size_t count, int ranks) { return (count + (size_t)ranks - 1) / (size_t)ranks; }

// the elements of `count` in the chunk of one rank; the last ranks have fewer than `chunk`, or none
static inline Range chunk_range(size_t count, size_t chunk, int rank) {
    size_t begin = (size_t)rank * chunk, left = begin < count ? count - begin : 0;
    Range range = {begin, left < chunk ? left : chunk};
    return range;
}

// Bytes that a rank sends for one all_gather or reduce_scatter of chunks; it receives as many.
static inline uint64_t all_gather_bytes(size_t chunk, DType dtype, int ranks) {
    return (uint64_t)(ranks - 1) * chunk * dtype_size(dtype);
}

// Bytes that a rank sends for one all_reduce, which is a reduce_scatter and an all_gather of its chunks. That is 2
// (ranks - 1) / ranks of the buffer, except for the size of the last chunk. A ring sends as many.
static inline uint64_t all_reduce_bytes(size_t count, DType dtype, int rank, int ranks) {
    size_t own = chunk_range(count, chunk_size(count, ranks), rank).count;
    return (count - own + (uint64_t)(ranks - 1) * own) * dtype_size(dtype);
}

// Bytes that a rank sends for one broadcast along a chain, in which the last rank sends nothing.
static inline uint64_t broadcast_bytes(size_t count, DType dtype, int root, int rank, int ranks) {
    return (rank + 1) % ranks == root ? 0 : count * dtype_size(dtype);
}
