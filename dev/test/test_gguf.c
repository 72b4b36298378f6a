/*
GGUF files: f16 and q8_0 against numbers worked out by hand, the bytes of a small file, and failed writes.
*/
#include "testing.h"
#include "llmc/files/gguf.h"
#include "llmc/files/safetensors.h"
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

// ---- numbers

// every number of f16 stays itself; between two neighbours, the nearer is taken, and of two equally near the even one
static void test_f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint16_t low = 0; low < 0x7BFF; low++) {
        uint16_t high = (uint16_t)(low + 1);
        float below = f16_to_float(low), above = f16_to_float(high), middle = (below + above) / 2;
        assert_int_equal(float_to_f16(below), low);
        assert_int_equal(float_to_f16(-below), 0x8000 | low);
        assert_int_equal(float_to_f16(middle), low % 2 == 0 ? low : high);
        assert_int_equal(float_to_f16(nextafterf(middle, 0)), low);
        assert_int_equal(float_to_f16(-nextafterf(middle, above)), 0x8000 | high);
    }
}

static void test_f16_overflows_to_infinity(void **state) {
    (void)state;
    const struct {
        float f;
        uint16_t half;
    } cases[] = {{65504, 0x7BFF},  {nextafterf(65520, 0), 0x7BFF},
                 {65520, 0x7C00},  {70000, 0x7C00},
                 {-1e30f, 0xFC00}, {INFINITY, 0x7C00},
                 {1e-30f, 0},      {-0.0f, 0x8000},
                 {1, 0x3C00},      {-2, 0xC000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(float_to_f16(cases[i].f), cases[i].half);
    }
    assert_int_equal(float_to_f16(NAN) & 0x7FFF, 0x7E00);
}

// 63.5 is the largest, so the scale is 0.5: 0x3800
static void test_q8_0_of_a_block(void **state) {
    (void)state;
    const real largest[GGUF_BLOCK] = {-63.5, 63.5, 0.25, 0.2, -0.25, -0.2, 10, 31.74, -31.76};
    const int8_t expected[GGUF_BLOCK] = {-127, 127, 1, 0, -1, 0, 20, 63, -64};  // a half is rounded away from zero
    unsigned char block[GGUF_BLOCK_BYTES];
    gguf_encode(block, GGUF_Q8_0, largest, GGUF_BLOCK);
    assert_int_equal(block[0], 0x00);
    assert_int_equal(block[1], 0x38);
    assert_memory_equal(block + 2, expected, GGUF_BLOCK);
}

// zeros, and numbers below the smallest scale, give a scale of 0 and no division by zero
static void test_q8_0_of_zeros(void **state) {
    (void)state;
    real x[2 * GGUF_BLOCK] = {0};
    unsigned char blocks[2 * GGUF_BLOCK_BYTES], zeros[2 * GGUF_BLOCK_BYTES] = {0};
    x[GGUF_BLOCK + 3] = (real)1e-9;
    x[GGUF_BLOCK + 4] = (real)-1e-41;
    memset(blocks, 255, sizeof blocks);
    gguf_encode(blocks, GGUF_Q8_0, x, 2 * GGUF_BLOCK);
    assert_memory_equal(blocks, zeros, sizeof zeros);
    assert_int_equal(gguf_bytes(GGUF_Q8_0, 2 * GGUF_BLOCK), sizeof blocks);
}

// each block has a scale of its own, from the numbers of that block
static void test_q8_0_of_two_blocks(void **state) {
    (void)state;
    real x[2 * GGUF_BLOCK];
    unsigned char blocks[2 * GGUF_BLOCK_BYTES];
    for (int i = 0; i < 2 * GGUF_BLOCK; i++) { x[i] = (real)(i < GGUF_BLOCK ? i : 127 * (i - GGUF_BLOCK)); }
    gguf_encode(blocks, GGUF_Q8_0, x, 2 * GGUF_BLOCK);
    for (int i = 0; i < 2 * GGUF_BLOCK; i++) {
        const unsigned char *block = blocks + i / GGUF_BLOCK * GGUF_BLOCK_BYTES;
        assert_int_equal((int8_t)block[2 + i % GGUF_BLOCK], (int)roundf((float)(i % GGUF_BLOCK) * 127 / 31));
    }
}

// the index of the first number that the type cannot hold; it is not the first of its block
static void test_finds_what_a_type_cannot_hold(void **state) {
    (void)state;
    const GgufType types[] = {GGUF_F32, GGUF_F16, GGUF_BF16, GGUF_Q8_0};
    const struct {
        float f;
        bool held[4];  // in the order of types
    } cases[] = {{65504, {true, true, true, true}},
                 {-70000, {true, false, true, true}},
                 {70000.0f * 127, {true, false, true, false}},
                 {3.4e38f, {true, false, false, false}},  // bf16 rounds it up to infinity
                 {NAN, {false, false, false, false}},
                 {-INFINITY, {false, false, false, false}}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int i = 0; i < 4; i++) {
            real x[2 * GGUF_BLOCK] = {1, 2, 3};
            x[GGUF_BLOCK + 5] = x[GGUF_BLOCK + 9] = (real)cases[c].f;
            size_t expected = cases[c].held[i] ? 2 * GGUF_BLOCK : GGUF_BLOCK + 5;
            assert_int_equal(gguf_find_unheld(types[i], x, 2 * GGUF_BLOCK), expected);
        }
    }
}

// ---- files

// a whole file
typedef struct {
    unsigned char bytes[8192];
    size_t size, at;
} Contents;

static Contents read_contents(const char *path) {
    Contents c;
    memset(&c, 0, sizeof c);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    c.size = fread(c.bytes, 1, sizeof c.bytes, file);
    assert_true(feof(file));
    fclose(file);
    return c;
}

static uint64_t next_number(Contents *c, size_t bytes) {
    uint64_t number = 0;
    assert_true(c->at + bytes <= c->size);
    memcpy(&number, c->bytes + c->at, bytes);
    c->at += bytes;
    return number;
}

static void expect_text(Contents *c, const char *expected) {
    size_t length = (size_t)next_number(c, 8);
    assert_int_equal(length, strlen(expected));
    assert_memory_equal(c->bytes + c->at, expected, length);
    c->at += length;
}

static void expect_tensor(Contents *c, const char *name, int num_dims, const size_t *dims, GgufType type,
                          uint64_t offset) {
    expect_text(c, name);
    assert_int_equal(next_number(c, 4), num_dims);
    for (int i = 0; i < num_dims; i++) { assert_int_equal(next_number(c, 8), dims[i]); }
    assert_int_equal(next_number(c, 4), type);
    assert_int_equal(next_number(c, 8), offset);
}

// two tensors, of 20 and of 68 bytes
static GgufWriter write_small(const char *path) {
    GgufWriter w = gguf_create(part_open(path));
    unsigned char bytes[68];
    memset(bytes, 7, sizeof bytes);
    gguf_key_string(&w, "name", "value");
    gguf_key_u32(&w, "number", 50256);
    gguf_key_f32(&w, "real", 1e-5f);
    gguf_key_bool(&w, "flag", true);
    gguf_key_array(&w, "words", GGUF_VALUE_STRING, 2);
    gguf_put_string(&w, "one", 3);
    gguf_put_string(&w, "", 0);
    gguf_declare(&w, "vector", GGUF_F32, 1, 1, 5);
    gguf_declare(&w, "matrix", GGUF_Q8_0, 2, 2, 32);
    gguf_begin(&w);
    gguf_put(&w, bytes, 20);
    gguf_end_tensor(&w);
    gguf_put(&w, bytes, 68);
    gguf_end_tensor(&w);
    return w;
}

static void expect_keys(Contents *c) {
    assert_memory_equal(c->bytes, "GGUF", 4);
    c->at = 4;
    assert_int_equal(next_number(c, 4), 3);
    assert_int_equal(next_number(c, 8), 2);  // tensors
    assert_int_equal(next_number(c, 8), 5);  // keys
    expect_text(c, "name");
    assert_int_equal(next_number(c, 4), 8);
    expect_text(c, "value");
    expect_text(c, "number");
    assert_int_equal(next_number(c, 4), 4);
    assert_int_equal(next_number(c, 4), 50256);
    expect_text(c, "real");
    assert_int_equal(next_number(c, 4), 6);
    assert_int_equal(next_number(c, 4), float_to_bits(1e-5f));
    expect_text(c, "flag");
    assert_int_equal(next_number(c, 4), 7);
    assert_int_equal(next_number(c, 1), 1);
    expect_text(c, "words");
    assert_int_equal(next_number(c, 4), 9);
    assert_int_equal(next_number(c, 4), 8);
    assert_int_equal(next_number(c, 8), 2);
    expect_text(c, "one");
    expect_text(c, "");
}

static void test_bytes_of_a_file(void **state) {
    (void)state;
    const char *path = temp_path("small.gguf");
    const size_t vector[] = {5}, matrix[] = {32, 2};  // columns first
    GgufWriter w = write_small(path);
    assert_int_equal(access(path, F_OK), -1);  // until it is whole, the file has another name
    assert_int_equal(gguf_finish(&w), 0);
    assert_int_equal(access(w.out.part, F_OK), -1);
    Contents c = read_contents(path);
    expect_keys(&c);
    expect_tensor(&c, "vector", 1, vector, GGUF_F32, 0);
    expect_tensor(&c, "matrix", 2, matrix, GGUF_Q8_0, 32);
    size_t data = (c.at + 31) / 32 * 32;
    assert_int_equal(c.size, data + 32 + 96);
    for (size_t i = c.at; i < c.size; i++) {
        bool in_vector = i >= data && i < data + 20, in_matrix = i >= data + 32 && i < data + 32 + 68;
        assert_int_equal(c.bytes[i], in_vector || in_matrix ? 7 : 0);
    }
}

static void test_unwritable_path(void **state) {
    (void)state;
    GgufWriter w = write_small(temp_path("no_such_folder/small.gguf"));
    assert_int_equal(gguf_finish(&w), ENOENT);
}

// a limit of the file's size takes the place of a full disk; an older file stays as it is
static void test_full_disk(void **state) {
    (void)state;
    const char *path = write_file("full.gguf", "old", 3);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 256;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    GgufWriter w = write_small(path);
    int error = gguf_finish(&w);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(error, EFBIG);
    assert_int_equal(access(w.out.part, F_OK), -1);
    assert_int_equal(read_contents(path).size, 3);
}

static void test_discard(void **state) {
    (void)state;
    const char *path = temp_path("discarded.gguf");
    GgufWriter w = write_small(path);
    part_discard(&w.out);
    assert_int_equal(access(w.out.part, F_OK), -1);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_rounds_to_nearest_even),
        cmocka_unit_test(test_f16_overflows_to_infinity),
        cmocka_unit_test(test_q8_0_of_a_block),
        cmocka_unit_test(test_q8_0_of_zeros),
        cmocka_unit_test(test_q8_0_of_two_blocks),
        cmocka_unit_test(test_finds_what_a_type_cannot_hold),
        cmocka_unit_test(test_bytes_of_a_file),
        cmocka_unit_test(test_unwritable_path),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_discard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
