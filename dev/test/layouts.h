/*
Where the instructions of the tensor cores expect each element, as plain formulas of the PTX ISA: "Matrix Fragments for
mma.m16n8k16 with floating point type" and "Warp-level matrix load instruction: ldmatrix".
Element i of a lane is in register i/2 of A, B and ldmatrix, the lower half first, and in register i of C and D.
*/
#pragma once

typedef struct Place {
    int row, column;  // of A (16,16), B (16,8), C and D (16,8)
} Place;

typedef struct MatrixSource {
    int lane, element;  // the lane whose address begins a row, and the element of this row
} MatrixSource;

static inline Place mma_a_place(int lane, int i) {
    int group = lane >> 2, in_group = lane % 4;
    Place p = {i < 2 || (4 <= i && i < 6) ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
    return p;
}

static inline Place mma_b_place(int lane, int i) {
    int group = lane >> 2, in_group = lane % 4;
    Place p = {in_group * 2 + (i & 1) + (i < 2 ? 0 : 8), group};
    return p;
}

static inline Place mma_d_place(int lane, int i) {
    int group = lane >> 2, in_group = lane % 4;
    Place p = {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
    return p;
}

// Lanes 8m to 8m+7 have the addresses of the rows of matrix m, which arrives in register m.
static inline MatrixSource ldmatrix_source(int lane, int i) {
    MatrixSource source = {i / 2 * 8 + lane / 4, lane % 4 * 2 + i % 2};
    return source;
}

static inline MatrixSource ldmatrix_trans_source(int lane, int i) {
    MatrixSource source = {i / 2 * 8 + lane % 4 * 2 + i % 2, lane / 4};
    return source;
}
