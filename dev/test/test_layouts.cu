/*
Tests of the tensor-core layouts: mma.sync and ldmatrix through the functions of cuda_common.cuh, and the tiles of
attention.cuh. Expected are the layouts of layouts.h and the results of zluda_vectors.h. No test looks inside an
instruction: the same tests check the emulator and a GPU. The emulator runs them with different warp orders, mma
roundings and completions of cp.async.
*/
#include "testing.h"
#include <limits.h>
#include "device_array.h"
#include "layouts.h"
#include "llmc/attention.cuh"
#include "zluda_vectors.h"

static_assert(std::is_same_v<floatX, bf16>, "tensor cores multiply bf16: PRECISION=bf16");

// fails with the lane and the element of a layout
static void expect(double found, double expected, const char *layout, int lane, int element) {
    if (found == expected) { return; }
    fail_msg("%s: lane %d, element %d: found %g, expected %g", layout, lane, element, found, expected);
}

// ---- mma

static __device__ uint32_t pair_of_bits(uint32_t low, uint32_t high) { return high << 16 | low; }

// Element blockIdx.x of A, counted over lanes, is 1, and all others are 0. Element i of B is i + 1, and element i of C
// is 1000 (i + 1). out (256,32,4): D.
static __global__ void multiply_one(float *out) {
    wait_for_previous_kernel();
    constexpr uint32_t ONE = 0x3f80;
    int lane = lane_id(), one = (int)blockIdx.x - lane * 8;
    uint32_t a[4], b[2];
    float d[4];
    for (int i = 0; i < 4; i++) {
        a[i] = pair_of_bits(one == 2 * i ? ONE : 0, one == 2 * i + 1 ? ONE : 0);
        d[i] = 1000.0f * (float)(lane * 4 + i + 1);
    }
    for (int i = 0; i < 2; i++) {
        float number = (float)(lane * 4 + 2 * i + 1);
        b[i] = pair_of_bits(float_to_bf16(number).bits, float_to_bf16(number + 1).bits);
    }
    mma_bf16(d, a, b[0], b[1]);
    for (int i = 0; i < 4; i++) { out[blockIdx.x * 128 + lane * 4 + i] = d[i]; }
}

// the number of B's element at a place
static int number_in_b(int row, int column) {
    for (int i = 0; i < 128; i++) {
        Place p = mma_b_place(i / 4, i % 4);
        if (p.row == row && p.column == column) { return i + 1; }
    }
    fail_msg("B: no lane has row %d, column %d", row, column);
    return 0;
}

TEST(test_mma) {
    DeviceArray<float> out(256 * 128);
    LAUNCH(multiply_one, 256, 32, 0, nullptr, out.at);
    std::vector<float> d = out.host();
    for (int one = 0; one < 256; one++) {
        Place a = mma_a_place(one / 8, one % 8);
        for (int i = 0; i < 128; i++) {
            Place p = mma_d_place(i / 4, i % 4);
            int product = p.row == a.row ? number_in_b(a.column, p.column) : 0;
            expect(d[one * 128 + i], 1000 * (i + 1) + product, "D", i / 4, i % 4);
        }
    }
}

// ---- ldmatrix

enum {
    MATRIX_BYTES = 4096,
    ELEMENT = 257
};  // ELEMENT * number: both bytes of an element differ from element to element

// A lane's row has elements ELEMENT * (8 * lane + 0..7) and begins at byte places[lane]. out (32,8)
static __global__ void load_matrices(uint16_t *out, const int *places, bool transposed) {
    wait_for_previous_kernel();
    DYNAMIC_SHARED(uint16_t, shared);
    int lane = lane_id(), place = places[lane];
    for (int i = 0; i < 8; i++) { shared[place / 2 + i] = (uint16_t)(ELEMENT * (lane * 8 + i)); }
    __syncwarp();  // the rows are complete
    uint32_t r[4];
    if (transposed) {
        ldmatrix_x4_trans(r, shared_address(shared) + (uint32_t)place);
    } else {
        ldmatrix_x4(r, shared_address(shared) + (uint32_t)place);
    }
    for (int i = 0; i < 8; i++) { out[lane * 8 + i] = (uint16_t)(r[i / 2] >> (16 * (i % 2))); }
}

static void check_ldmatrix(const std::vector<int> &places, bool transposed) {
    DeviceArray<int> rows(places);
    DeviceArray<uint16_t> out(256);
    LAUNCH(load_matrices, 1, 32, MATRIX_BYTES, nullptr, out.at, rows.at, transposed);
    std::vector<uint16_t> r = out.host();
    for (int i = 0; i < 256; i++) {
        MatrixSource from = transposed ? ldmatrix_trans_source(i / 8, i % 8) : ldmatrix_source(i / 8, i % 8);
        int number = from.lane * 8 + from.element;
        expect(r[i], ELEMENT * number, transposed ? "ldmatrix.trans" : "ldmatrix", i / 8, i % 8);
    }
}

TEST(test_ldmatrix) {
    std::vector<int> in_order(32), far_apart(32), backwards(32), permuted(32);
    for (int lane = 0; lane < 32; lane++) {
        in_order[lane] = lane * 16;
        far_apart[lane] = lane * 80;
        backwards[lane] = (31 - lane) * 128;
        permuted[lane] = lane * 13 % 32 * 48;
    }
    for (bool transposed : {false, true}) {
        for (const std::vector<int> &places : {in_order, far_apart, backwards, permuted}) {
            check_ldmatrix(places, transposed);
        }
    }
}

// ---- the tiles of attention.cuh, in every layout that the launchers choose

template <class Run> static void with_each_tile(Run run) {
    for (int HS : {32, 64, 80, 128}) {
        AttentionShape s = {0, 1, HS, true, 1};
        auto run_tensor_tiles = [&](auto tiles) {
            using Tiles = decltype(tiles);
            s.T = Tiles::OWN > Tiles::OTHER ? Tiles::OWN : Tiles::OTHER;
            if constexpr (requires { Tiles::CHUNKS; }) {
                run(tiles, s);
            } else {
                fail_msg("heads of %d do not use the tensor cores", HS);
            }
        };
        attention_with_tiles<bf16, false>(s, false, INT_MAX, run_tensor_tiles);
        attention_with_tiles<bf16, true>(s, false, INT_MAX, run_tensor_tiles);
    }
}

enum { A_IN_SHARED, A_IN_REGISTERS, B, B_TRANSPOSED, NUM_FRAGMENTS };
static const char *const FRAGMENT_NAMES[NUM_FRAGMENTS] = {"A in shared memory", "A in registers", "B", "B transposed"};

// out (OWN/16, HS/16, NUM_FRAGMENTS, 32, 4): the fragments of each 16 by 16 block of a matrix (OWN,HS)
template <class Tiles> static __global__ void load_fragments(uint32_t *out, const floatX *matrix, AttentionShape s) {
    wait_for_previous_kernel();
    constexpr int COLUMNS = Tiles::WIDTH / 16;
    DYNAMIC_SHARED(float, shared);
    uint32_t tile = shared_address(shared), r[NUM_FRAGMENTS][4];
    Tiles::template load<Tiles::OWN>(tile, matrix, s.HS, 0, s);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // the tile is complete
    auto in_shared = Tiles::in_shared(tile, s);
    auto in_registers = Tiles::in_registers(tile, s);
    UNROLL
    for (int m = 0; m < Tiles::WARP_ROWS / 16; m++) {
        UNROLL
        for (int k = 0; k < COLUMNS; k++) {
            int i = Tiles::first_row() / 16 + m, lane = lane_id();
            in_shared.fragment(r[A_IN_SHARED], m, k);
            in_registers.fragment(r[A_IN_REGISTERS], m, k);
            Tiles::right_factor(r[B], tile, i, k, lane);
            Tiles::right_factor_transposed(r[B_TRANSPOSED], tile, i, k, lane);
            for (int f = 0; f < NUM_FRAGMENTS; f++) {
                uint32_t *to = out + (((i * COLUMNS + k) * NUM_FRAGMENTS + f) * 32 + lane) * 4;
                for (int j = 0; j < 4; j++) { to[j] = r[f][j]; }
            }
        }
    }
}

// The place of element i of a fragment in its 16 by 16 block. B has two halves of 8 columns, 4 elements each.
static Place place_in_block(int fragment, int lane, int i) {
    if (fragment < B) { return mma_a_place(lane, i); }
    Place p = mma_b_place(lane, i % 4);
    p.column += i / 4 * 8;
    return fragment == B ? p : Place{p.column, p.row};
}

TEST(test_tile_fragments) {
    with_each_tile([](auto tiles, AttentionShape s) {
        using Tiles = decltype(tiles);
        std::vector<bf16> matrix(Tiles::OWN * s.HS);
        for (size_t i = 0; i < matrix.size(); i++) { matrix[i].bits = (uint16_t)i; }
        DeviceArray<bf16> in(matrix);
        DeviceArray<uint32_t> out(matrix.size() * NUM_FRAGMENTS / 2);
        LAUNCH((load_fragments<Tiles>), 1, Tiles::THREADS, Tiles::OWN * Tiles::ROW_BYTES, nullptr, out.at, in.at, s);
        std::vector<uint32_t> r = out.host();
        for (int at = 0; at < (int)r.size() * 2; at++) {
            int block = at / 256 / NUM_FRAGMENTS, f = at / 256 % NUM_FRAGMENTS, lane = at / 8 % 32, i = at % 8;
            Place p = place_in_block(f, lane, i);
            int row = block / (s.HS / 16) * 16 + p.row, column = block % (s.HS / 16) * 16 + p.column;
            expect(r[at / 2] >> (16 * (i % 2)) & 0xffff, row * s.HS + column, FRAGMENT_NAMES[f], lane, i);
        }
    });
}

// rows (OWN): row() of a thread's first and second row at the places of its C fragment; columns likewise
template <class Tiles> static __global__ void store_places(Place *out) {
    wait_for_previous_kernel();
    for (int i = 0; i < 4; i++) { out[threadIdx.x * 4 + i] = {Tiles::row(i / 2), Tiles::column(i % 2)}; }
}

// multiply_mma hands mma the sums of rows 0 and 1 and columns 0 and 1 as d[2 * row + column].
TEST(test_tile_places) {
    with_each_tile([](auto tiles, AttentionShape) {
        using Tiles = decltype(tiles);
        DeviceArray<Place> out(Tiles::THREADS * 4);
        LAUNCH((store_places<Tiles>), 1, Tiles::THREADS, 0, nullptr, out.at);
        std::vector<Place> places = out.host();
        for (int i = 0; i < (int)places.size(); i++) {
            Place p = mma_d_place(i / 4 % 32, i % 4);
            expect(places[i].row, i / 128 * Tiles::WARP_ROWS + p.row, "row()", i / 4, i % 4);
            expect(places[i].column, p.column, "column()", i / 4, i % 4);
        }
    });
}

// A matrix of 0 and powers of 2. Row r has its one in column_of_one, doubled for every earlier row with the same
// column. The step of 13 columns a row fills all quadrants of the 16 by 16 blocks, and exchanged quadrants differ.
static HOST_DEVICE int column_of_one(int r, int columns) { return r * 13 % columns; }
static HOST_DEVICE float one_of_row(int r, int column, int columns) {
    return column == column_of_one(r, columns) ? (float)(1 << r / columns) : 0.0f;
}

// Both GEMMs of the kernels, N columns of a thread at a time: scores (OWN,OTHER) = own (OWN,HS) other (OTHER,HS)^T, and
// sums (OWN,HS) = x (OWN,OTHER) other, where x is one_of_row.
template <class Tiles, int N>
static __global__ void multiply_tiles(float *scores, float *sums_out, const floatX *own, const floatX *other,
                                      AttentionShape s) {
    wait_for_previous_kernel();
    constexpr int OTHER = Tiles::OTHER, HS = Tiles::WIDTH, ROWS = Tiles::ROWS;
    DYNAMIC_SHARED(float, shared);
    uint32_t own_tile = shared_address(shared), tile = own_tile + Tiles::OWN * Tiles::ROW_BYTES;
    Tiles::template load<Tiles::OWN>(own_tile, own, HS, 0, s);
    Tiles::template load<OTHER>(tile, other, HS, 0, s);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // the tiles are complete
    float sums[ROWS][HS / 4] = {};
    for (int first = 0; first < OTHER; first += N * 4) {
        float x[ROWS][N] = {};
        Tiles::add_scores(x, Tiles::in_shared(own_tile, s), tile, first);
        UNROLL
        for (int i = 0; i < ROWS * N; i++) {
            int row = Tiles::row(i / N), column = first + Tiles::column(i % N);
            scores[row * OTHER + column] = x[i / N][i % N];
            x[i / N][i % N] = one_of_row(row, column, OTHER);
        }
        Tiles::accumulate(sums, x, tile, first, 0);
    }
    UNROLL
    for (int i = 0; i < ROWS * HS / 4; i++) {
        sums_out[Tiles::row(i / (HS / 4)) * HS + Tiles::column(i % (HS / 4))] = sums[i / (HS / 4)][i % (HS / 4)];
    }
}

// Each product has one term: the elements of `other` are distinct and come out exactly.
template <class Tiles, int N> static void check_products(AttentionShape s) {
    constexpr int OWN = Tiles::OWN, OTHER = Tiles::OTHER, HS = Tiles::WIDTH;
    std::vector<bf16> own(OWN * HS), other(OTHER * HS);
    for (int i = 0; i < OWN * HS; i++) { own[i] = float_to_bf16(one_of_row(i / HS, i % HS, HS)); }
    for (int i = 0; i < OTHER * HS; i++) { other[i].bits = (uint16_t)(0x3000 + i); }  // 2^-31 to 2^33
    DeviceArray<bf16> own_device(own), other_device(other);
    DeviceArray<float> scores(OWN * OTHER), sums(OWN * HS);
    LAUNCH((multiply_tiles<Tiles, N>), 1, Tiles::THREADS, (OWN + OTHER) * Tiles::ROW_BYTES, nullptr, scores.at, sums.at,
           own_device.at, other_device.at, s);
    std::vector<float> x = scores.host(), y = sums.host();
    for (int i = 0; i < OWN * OTHER; i++) {
        int r = i / OTHER, term = column_of_one(r, HS);
        expect(x[i], bf16_to_float(other[i % OTHER * HS + term]) * one_of_row(r, term, HS), "scores", r, i % OTHER);
    }
    for (int i = 0; i < OWN * HS; i++) {
        int r = i / HS, term = column_of_one(r, OTHER);
        expect(y[i], bf16_to_float(other[term * HS + i % HS]) * one_of_row(r, term, OTHER), "sums", r, i % HS);
    }
}

TEST(test_tile_products) {
    with_each_tile([](auto tiles, AttentionShape s) {
        using Tiles = decltype(tiles);
        check_products<Tiles, Tiles::OTHER / 4>(s);  // as the forward
        check_products<Tiles, Tiles::STEP / 4>(s);   // as the backward
    });
}

// ---- results of an NVIDIA GPU, published with ZLUDA

static __global__ void zluda_multiply(float *out) {
    wait_for_previous_kernel();
    float x[8], d[4];
    uint32_t r[4];
    for (int i = 0; i < 8; i++) { x[i] = (float)(threadIdx.x * 8 + (unsigned)i); }
    for (int i = 0; i < 4; i++) {
        r[i] = pack_bf16(x[2 * i + 1], x[2 * i]);
        d[i] = x[i];
    }
    mma_bf16(d, r, r[0], r[1]);
    for (int i = 0; i < 4; i++) { out[threadIdx.x * 4 + (unsigned)i] = d[i]; }
}

TEST(test_zluda_mma) {
    DeviceArray<float> out(256);
    LAUNCH(zluda_multiply, 1, 64, 0, nullptr, out.at);
    std::vector<float> d = out.host();
    for (int i = 0; i < 256; i++) { expect(d[i], zluda_mma[i], "D", i / 4, i % 4); }
}

// .x2 is .x4 of which only matrices 0 and 1 count, and only the addresses of lanes 0 to 15.
static __global__ void zluda_load(uint32_t *out, uint32_t *out_trans, const uint32_t *in, const uint16_t *in_trans) {
    wait_for_previous_kernel();
    SHARED_ARRAY(uint32_t, words, 64);
    SHARED_ARRAY(uint16_t, elements, 256);
    int lane = lane_id();
    for (int i = lane; i < 64; i += 32) { words[i] = in[i]; }
    for (int i = lane; i < 256; i += 32) { elements[i] = in_trans[i]; }
    __syncwarp();  // the rows are complete
    uint32_t r[4];
    ldmatrix_x4(r, shared_address(words + lane % 16 * 4));
    for (int i = 0; i < 2; i++) { out[lane * 2 + i] = r[i]; }
    ldmatrix_x4_trans(r, shared_address(elements + lane * 8));
    for (int i = 0; i < 4; i++) { out_trans[lane * 4 + i] = r[i]; }
}

TEST(test_zluda_ldmatrix) {
    DeviceArray<uint32_t> in(std::vector<uint32_t>(zluda_ldmatrix_in, zluda_ldmatrix_in + 64));
    DeviceArray<uint16_t> in_trans(std::vector<uint16_t>(zluda_ldmatrix_trans_in, zluda_ldmatrix_trans_in + 256));
    DeviceArray<uint32_t> out(64), out_trans(128);
    LAUNCH(zluda_load, 1, 32, 0, nullptr, out.at, out_trans.at, in.at, in_trans.at);
    std::vector<uint32_t> r = out.host(), r_trans = out_trans.host();
    for (int i = 0; i < 64; i++) { expect(r[i], zluda_ldmatrix[i], "ldmatrix.x2", i / 2, i % 2); }
    for (int i = 0; i < 256; i++) {
        uint32_t element = r_trans[i / 2] >> (16 * (i % 2)) & 0xffff;
        expect(element, zluda_ldmatrix_trans[i], "ldmatrix.x4.trans", i / 8, i % 8);
    }
}

static __global__ void zluda_convert(uint32_t *out, float low, float high) {
    wait_for_previous_kernel();
    out[0] = pack_bf16(low, high);
}

TEST(test_zluda_cvt) {
    DeviceArray<uint32_t> out(1);
    LAUNCH(zluda_convert, 1, 1, 0, nullptr, out.at, ZLUDA_CVT_LOW, ZLUDA_CVT_HIGH);
    assert_int_equal(out.host()[0], ZLUDA_CVT);
}

// ---- main

#ifdef __CUDACC__
int main(void) { return run_all_tests("on the device"); }
#else
int main(void) {
    const char *const names[] = {"forward", "reverse, tensor-core rounding", "seeded, eager cp.async"};
    const int orders[] = {0, 1, 7};
    int failures = 0;
    for (int run = 0; run < 3; run++) {
        simt::settings().warp_order = orders[run];
        simt::settings().mma_rounding = run == 1;
        simt::settings().eager_async = run == 2;
        failures += run_all_tests(names[run]);
    }
    return failures;
}
#endif
