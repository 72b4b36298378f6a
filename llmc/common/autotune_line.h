/*
A line of the autotune cache (matmul_autotune.cuh), apart from CUDA's types.
defines: autotune_line_parse

Fields, separated by tabs: the name, which has at least two tabs itself; the fused parts as a number; the algorithm's
bytes in hex; microseconds. The file is the user's and may be of another version or damaged: any other line is refused.
*/
#pragma once
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Parses a line in place: line becomes the name, algo (bytes) the algorithm. False if the line is malformed.
static inline bool autotune_line_parse(char *line, int *fused, unsigned char *algo, size_t bytes, float *microseconds) {
    char *field[3], *end;  // from the last: microseconds, algorithm, fused
    for (int i = 0; i < 3; i++) {
        field[i] = strrchr(line, '\t');
        if (!field[i]) { return false; }
        *field[i]++ = 0;
    }
    const char *hex = field[1];
    *microseconds = strtof(field[0], &end);
    if (end == field[0] || *end != '\n' || !isfinite(*microseconds) || *microseconds < 0) { return false; }
    long parts = strtol(field[2], &end, 10);
    if (end == field[2] || *end || parts < 0 || parts > INT_MAX) { return false; }
    *fused = (int)parts;
    if (strspn(hex, "0123456789abcdef") != 2 * bytes || hex[2 * bytes]) { return false; }
    for (size_t i = 0; i < bytes; i++) { sscanf(hex + 2 * i, "%2hhx", &algo[i]); }
    char *version = strchr(line, '\t');
    return version && strchr(version + 1, '\t');
}
