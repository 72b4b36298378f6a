/*
Tests of the tensor-core layouts: mma.sync and ldmatrix through the functions of cuda_common.cuh. Expected are the
layouts of layouts.h and the results of zluda_vectors.h. No test looks inside an instruction: the same tests check the
emulator and a GPU. The emulator runs them with different warp orders and mma roundings. The attention rows of test_ops
check the tiles of attention.cuh.
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

// ---- attention.cuh

// Every head size of the tensor cores has their tiles, for the rows of test_ops pass with plain ones too.
TEST(test_tensor_heads) {
    for (int HS : {32, 64, 80, 128}) {
        auto check = [&](auto tiles) {
            if constexpr (!requires { decltype(tiles)::CHUNKS; }) {
                fail_msg("heads of %d do not use the tensor cores", HS);
            }
        };
        attention_with_tiles<bf16, false>({0, 1, HS, true, 1}, false, INT_MAX, check);
        attention_with_tiles<bf16, true>({0, 1, HS, true, 1}, false, INT_MAX, check);
    }
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
    const char *const names[] = {"forward", "reverse, tensor-core rounding", "seeded"};
    const int orders[] = {0, 1, 7};
    int failures = 0;
    for (int run = 0; run < 3; run++) {
        simt::settings().warp_order = orders[run];
        simt::settings().mma_rounding = run == 1;
        failures += run_all_tests(names[run]);
    }
    return failures;
}
#endif
