// gguf.h: the bytes of a small file, and failed writes.
#include "testing.h"
#include "llmc/checkpoint/gguf.h"

// a whole file
typedef struct {
    unsigned char bytes[8192];
    size_t size, at;
} Contents;

static Contents read_contents(const char *path) {
    Contents c;
    memset(&c, 0, sizeof c);
    const char *bytes = read_file(path, &c.size);
    assert_true(c.size <= sizeof c.bytes);
    memcpy(c.bytes, bytes, c.size);
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

static void expect_tensor(Contents *c, const char *name, int num_dims, const size_t *dims, uint32_t type,
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
    const float real_number = 1e-5f;
    gguf_put_key(&w, "real", GGUF_VALUE_F32);
    part_put(&w.out, &real_number, sizeof real_number);
    gguf_put_key(&w, "flag", GGUF_VALUE_BOOL);
    part_put(&w.out, "\1", 1);
    gguf_key_array(&w, "words", GGUF_VALUE_STRING, 2);
    gguf_put_string(&w, "one", 3);
    gguf_put_string(&w, "", 0);
    gguf_declare(&w, "vector", DT_F32, 1, 1, 5);
    gguf_declare(&w, "matrix", DT_F16, 2, 2, 17);
    gguf_begin(&w);
    part_put(&w.out, bytes, 20);
    gguf_end_tensor(&w);
    part_put(&w.out, bytes, 68);
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

TEST(test_bytes_of_a_file) {
    const char *path = temp_path("small.gguf");
    const size_t vector[] = {5}, matrix[] = {17, 2};  // columns first
    GgufWriter w = write_small(path);
    assert_int_equal(access(path, F_OK), -1);  // until it is whole, the file has another name
    assert_int_equal(gguf_finish(&w), 0);
    assert_int_equal(access(w.out.part, F_OK), -1);
    Contents c = read_contents(path);
    expect_keys(&c);
    expect_tensor(&c, "vector", 1, vector, 0, 0);
    expect_tensor(&c, "matrix", 2, matrix, 1, 32);
    size_t data = (c.at + 31) / 32 * 32;
    assert_int_equal(c.size, data + 32 + 96);
    for (size_t i = c.at; i < c.size; i++) {
        bool in_vector = i >= data && i < data + 20, in_matrix = i >= data + 32 && i < data + 32 + 68;
        assert_int_equal(c.bytes[i], in_vector || in_matrix ? 7 : 0);
    }
}

TEST(test_unwritable_path) {
    GgufWriter w = write_small(temp_path("no_such_folder/small.gguf"));
    assert_int_equal(gguf_finish(&w), ENOENT);
}

// a limit of the file's size takes the place of a full disk; an older file stays as it is
TEST(test_full_disk) {
    const char *path = write_file("full.gguf", "old", 3);
    limit_files(256);
    GgufWriter w = write_small(path);
    int error = gguf_finish(&w);
    limit_files(RLIM_INFINITY);
    assert_int_equal(error, EFBIG);
    assert_int_equal(access(w.out.part, F_OK), -1);
    assert_int_equal(read_contents(path).size, 3);
}

TEST(test_discard) {
    const char *path = temp_path("discarded.gguf");
    GgufWriter w = write_small(path);
    part_discard(&w.out);
    assert_int_equal(access(w.out.part, F_OK), -1);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void) { return run_all_tests("gguf"); }
