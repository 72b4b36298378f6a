/*
The layouts of layouts.h read from CuTe, the layout library of NVIDIA's CUTLASS. test_layouts.sh compiles this file with
g++ and -DCUTE and links it to test_layouts.cu. A file of its own, since CuTe's headers and the emulator both define
CUDA's keywords.
*/
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cstdlib>
#include "layouts.h"
using Instruction = cute::SM80_16x8x16_F32BF16BF16F32_TN;
using Mma = cute::MMA_Traits<Instruction>;

static_assert(cute::is_same_v<Mma::Shape_MNK, cute::Shape<cute::_16, cute::_8, cute::_16>>, "m16n8k16");
static_assert(cute::size(Mma::ALayout{}) == 256 && cute::size(Mma::BLayout{}) == 128 &&
                  cute::size(Mma::CLayout{}) == 128 && cute::size(Mma::ThrID{}) == 32,
              "8, 4 and 4 elements of each of 32 lanes");
static_assert(sizeof(Instruction::ARegisters) == 4 * 4 && sizeof(Instruction::BRegisters) == 2 * 4,
              "two bf16 in each register");

// A layout gives the index of an element in a matrix with M or N rows, column by column. CuTe's B is (N,K).
Place mma_a_place(int lane, int i) {
    int at = Mma::ALayout{}(lane, i);
    return {at % 16, at / 16};
}

Place mma_b_place(int lane, int i) {
    int at = Mma::BLayout{}(lane, i);
    return {at / 8, at % 8};
}

Place mma_d_place(int lane, int i) {
    int at = Mma::CLayout{}(lane, i);
    return {at % 16, at / 16};
}

// The source of one bit of a lane's four registers: 128 times the lane of the row, plus the bit of the row.
template <class Traits> static int source_of_bit(int lane, int bit) {
    typename Traits::SrcLayout from;
    typename Traits::DstLayout to;
    static_assert(cute::size(from) == 32 * 128 && cute::size(to) == 32 * 128, "32 lanes of 128 bits");
    for (int at = 0; at < 32 * 128; at++) {
        if (from(at / 128, at % 128) == to(lane, bit)) { return at; }
    }
    std::abort();  // every bit has a source
}

// CuTe maps bits. All 16 bits of an element must come from the same bits of one element.
template <class Traits> static MatrixSource source_of(int lane, int i) {
    int first = source_of_bit<Traits>(lane, i * 16);
    for (int bit = 0; bit < 16; bit++) {
        if (first % 16 != 0 || source_of_bit<Traits>(lane, i * 16 + bit) != first + bit) { std::abort(); }
    }
    return {first / 128, first % 128 / 16};
}

MatrixSource ldmatrix_source(int lane, int i) { return source_of<cute::Copy_Traits<cute::SM75_U32x4_LDSM_N>>(lane, i); }

MatrixSource ldmatrix_trans_source(int lane, int i) {
    return source_of<cute::Copy_Traits<cute::SM75_U16x8_LDSM_T>>(lane, i);
}
