/*
One rank's text for all ranks: of the ranks with something to report, the rank with the lowest key.
defines: NOTHING_TO_SAY, text_of_lowest
*/
#pragma once
#include "llmc/parallel/comm.h"
#include <limits.h>

#define NOTHING_TO_SAY LLONG_MAX  // the key of a rank without a text

// text (size bytes) = the text of the rank with the lowest key; of equal keys, the lowest rank. Returns the rank, or -1
// if no rank has a text. All ranks call it.
static inline int text_of_lowest(char *text, size_t size, long long key, Comm *world) {
    long long lowest = -comm_max(-key, world);
    if (lowest == NOTHING_TO_SAY) { return -1; }
    int rank = world->size - (int)comm_max(key == lowest ? world->size - world->rank : 0, world);
    comm_broadcast_host(text, size, rank, world);
    return rank;
}
