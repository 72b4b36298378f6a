/*
Random numbers as a pure function of a key: threads, ranks and resuming do not change them.
The mixer is SplitMix64's finaliser (Steele, Lea, Flood 2014); the permutation is a four-round Feistel network with
cycle walking (Black, Rogaway 2002).
*/
#pragma once
#include "llmc/common/floatx.h"
#include <math.h>
#include <stdint.h>

static inline HOST_DEVICE uint64_t rng_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// 64 random bits for (seed, stream, index)
static inline HOST_DEVICE uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    return rng_mix(rng_mix(rng_mix(seed) ^ stream) ^ index);
}

// uniform in [0, 1), 53 bits
static inline HOST_DEVICE double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(rng_bits(seed, stream, index) >> 11) * 0x1.0p-53;
}

// standard normal (Box-Muller, one value per key)
static inline double rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    double u = 1.0 - rng_uniform(seed, stream, 2 * index);  // in (0, 1]: the logarithm is finite
    double v = rng_uniform(seed, stream, 2 * index + 1);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

// the numbers of a parameter that are rounded stochastically, each with its own random bits
typedef enum { ROUND_WEIGHT, ROUND_M, ROUND_V } Rounded;

// 64 random bits that round elements [4 group, 4 group + 4) of a tensor at a step, 16 each. tensor < 2^20, step < 2^40.
// The top bit of the stream separates it from the streams of initialisation and shuffling.
static inline HOST_DEVICE uint64_t group_rounding_bits(uint64_t seed, uint64_t step, uint64_t tensor, Rounded what,
                                                       uint64_t group) {
    return rng_bits(seed, 1ull << 63 | (uint64_t)what << 60 | step << 20 | tensor, group);
}

// the 16 bits of element i of a group
static inline HOST_DEVICE uint32_t element_rounding_bits(uint64_t group_bits, uint64_t i) {
    return (uint32_t)(group_bits >> (16 * i)) & 0xFFFFu;
}

// The image of index under the permutation of 0..n-1 given by `key`. n >= 1, index < n.
static inline uint64_t rng_permute(uint64_t key, uint64_t index, uint64_t n) {
    int half = 1;
    while (half < 32 && (n - 1) >> (2 * half)) { half++; }
    uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t next = left ^ (rng_bits(key, round, right) & mask);
            left = right;
            right = next;
        }
        index = (left << half) | right;
    } while (index >= n);  // walk the cycle back into range: at most 4 tries on average
    return index;
}
