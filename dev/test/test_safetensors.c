// safetensors.h: the bytes of a written file; round trips; every kind of bad file.
#include "testing.h"
#include "llmc/checkpoint/safetensors.h"
#include "llmc/common/rng.h"

// NAME in temp_dir(): header length, header, then data_bytes bytes 0, 1, 2, ...
static const char *write_tensors(const char *name, const char *json, size_t data_bytes) {
    uint64_t length = strlen(json);
    size_t bytes = sizeof length + (size_t)length + data_bytes;
    unsigned char *file = (unsigned char *)xmalloc(bytes);
    memcpy(file, &length, sizeof length);
    memcpy(file + sizeof length, json, (size_t)length);
    for (size_t i = 0; i < data_bytes; i++) { file[sizeof length + length + i] = (unsigned char)i; }
    const char *path = write_file(name, file, bytes);
    free(file);
    return path;
}

static void open_or_stop(void *path) { safetensors_open((const char *)path); }

// the file is refused in one line that names it and contains WORDS
static void assert_refused(const char *path, const char *words) {
    char named[512];
    snprintf(named, sizeof named, "safetensors file '%s' ", path);
    assert_stops(EXIT_BAD_INPUT, words, open_or_stop, (void *)path);
    assert_stops(EXIT_BAD_INPUT, named, open_or_stop, (void *)path);
}

// ---- writing

TEST(test_bytes_written) {
    static const char header[] =  // 200 bytes with its padding; sorted by element size, then name
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"z\\\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[12,18]}}";
    static const unsigned char data[18] = {0, 0, 0x80, 0x3F, 0,    0, 0,    0xC0, 0,
                                           0, 0, 0x3F, 0x80, 0x3F, 0, 0x40, 0x40, 0x40};
    const char *path = temp_path("bytes");
    SafeTensorsWriter w = safetensors_create(path, false);
    int a = safetensors_declare(&w, "a", DT_BF16, 1, (const size_t[]){3});
    int z = safetensors_declare(&w, "z\"", DT_F32, 0, NULL);
    int b = safetensors_declare(&w, "b", DT_F32, 2, (const size_t[]){2, 1});
    safetensors_begin(&w);
    safetensors_write(&w, z, 0, &(float){0.5f}, 4);
    safetensors_write(&w, a, 4, &(uint16_t){0x4040}, 2);
    safetensors_write(&w, a, 0, (const uint16_t[]){0x3F80, 0x4000}, 4);
    safetensors_write(&w, b, 0, (const float[]){1.0f, -2.0f}, 8);
    assert_int_equal(safetensors_finish(&w), 0);

    unsigned char expected[512];
    size_t text = sizeof header - 1, padded = (text + 7) / 8 * 8, total = 8 + padded + sizeof data;
    assert_int_equal(padded, 200);
    assert_true(text < padded);
    memset(expected, ' ', sizeof expected);
    memcpy(expected, (const unsigned char[]){200, 0, 0, 0, 0, 0, 0, 0}, 8);
    memcpy(expected + 8, header, text);
    memcpy(expected + 8 + padded, data, sizeof data);
    size_t bytes;
    assert_memory_equal(read_file(path, &bytes), expected, total);
    assert_int_equal(bytes, total);
}

TEST(test_round_trip) {
    static const struct {
        const char *name;
        DType dtype;
        int num_dims;
        size_t shape[ST_MAX_DIMS], bytes;
    } cases[] = {
        {"h.0.attn.c_attn.weight", DT_F32, 2, {3, 5}, 60},
        {"scalar", DT_F64, 0, {0}, 8},
        {"empty", DT_F32, 3, {4, 0, 2}, 0},
        {"eight", DT_BF16, 8, {1, 2, 1, 2, 1, 2, 1, 2}, 32},
        {"half", DT_F16, 1, {7}, 14},
        {"odd", DT_U8, 1, {3}, 3},
        {"wide", DT_I64, 1, {2}, 16},
        {"int", DT_I32, 1, {1}, 4},
        {"short", DT_I16, 2, {1, 1}, 2},
        {"\xC3\xA9 \\ \n", DT_U8, 1, {40000}, 40000},
        {"", DT_U8, 1, {1}, 1},
    };
    enum { N = LEN(cases) };
    static unsigned char data[N][40000], got[40000];
    const char *path = temp_path("round_trip");
    SafeTensorsWriter w = safetensors_create(path, false);
    for (int i = 0; i < N; i++) {
        for (size_t j = 0; j < cases[i].bytes; j++) { data[i][j] = (unsigned char)rng_bits(1, (uint64_t)i, j); }
        assert_int_equal(safetensors_declare(&w, cases[i].name, cases[i].dtype, cases[i].num_dims, cases[i].shape), i);
    }
    safetensors_begin(&w);
    for (int i = N - 1; i >= 0; i--) {  // the second half first
        size_t half = cases[i].bytes / 2;
        safetensors_write(&w, i, half, data[i] + half, cases[i].bytes - half);
        safetensors_write(&w, i, 0, data[i], half);
    }
    assert_int_equal(safetensors_finish(&w), 0);

    SafeTensors st = safetensors_open(path);
    assert_int_equal(st.num_tensors, N);
    assert_int_equal(st.data_start % 8, 0);
    for (int i = 0; i < N; i++) {
        const SafeTensor *t = safetensors_find(&st, cases[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, cases[i].dtype);
        assert_int_equal(t->num_dims, cases[i].num_dims);
        assert_memory_equal(t->shape, cases[i].shape, sizeof t->shape);
        assert_int_equal(t->end - t->begin, cases[i].bytes);
        assert_int_equal((st.data_start + t->begin) % dtype_size(t->dtype), 0);
        safetensors_read(&st, t, 0, got, cases[i].bytes);
        assert_memory_equal(got, data[i], cases[i].bytes);
    }
    const SafeTensor *weight = safetensors_find(&st, cases[0].name);
    safetensors_read(&st, weight, 13, got, 6);  // a range
    assert_memory_equal(got, data[0] + 13, 6);
    safetensors_read(&st, weight, 60, got, 0);
    assert_null(safetensors_find(&st, "absent"));
    assert_null(safetensors_find(&st, "h.0.attn.c_attn.weigh"));
    safetensors_close(&st);
}

TEST(test_no_tensors) {
    const char *path = temp_path("none");
    SafeTensorsWriter w = safetensors_create(path, false);
    safetensors_begin(&w);
    assert_int_equal(safetensors_finish(&w), 0);
    SafeTensors st = safetensors_open(path);
    assert_int_equal(st.num_tensors, 0);
    assert_null(safetensors_find(&st, ""));
    safetensors_close(&st);
    st = safetensors_open(write_tensors("bare", "{}", 0));
    safetensors_close(&st);
}

// The sum of the writer is that of the whole file.
TEST(test_large_write) {
    enum { BYTES = (2 << 20) + 3 };
    const char *path = temp_path("pieces");
    unsigned char *data = (unsigned char *)xmalloc(BYTES), *file = (unsigned char *)xmalloc(BYTES + 1000);
    for (size_t i = 0; i < BYTES; i++) { data[i] = (unsigned char)rng_bits(2, 0, i); }
    SafeTensorsWriter w = safetensors_create(path, false);
    int large = safetensors_declare(&w, "a", DT_U8, 1, (const size_t[]){BYTES});
    safetensors_begin(&w);
    safetensors_write(&w, large, 0, data, BYTES);
    const uint64_t whole = w.bytes;
    const uint32_t crc = crc32c_whole(w.crc_parts, w.bytes);
    assert_int_equal(safetensors_finish(&w), 0);
    FILE *opened = fopen(path, "rb");
    size_t bytes = fread(file, 1, BYTES + 1000, opened);
    fclose(opened);
    assert_int_equal(bytes, whole);
    assert_memory_equal(file + bytes - BYTES, data, BYTES);
    assert_int_equal(crc32c_whole(crc32c_part(file, bytes, 0), bytes), crc);
    free(data);
    free(file);
}

// offsets beyond 32 bits, in a sparse file
TEST(test_more_than_4_gib) {
    const uint64_t large = 5ull << 30;
    const char *path = temp_path("large");
    SafeTensorsWriter w = safetensors_create(path, false);
    int before = safetensors_declare(&w, "a", DT_U8, 1, (const size_t[]){5ull << 30});
    int after = safetensors_declare(&w, "b", DT_U8, 1, (const size_t[]){4});
    safetensors_begin(&w);
    safetensors_write(&w, before, large - 3, "end", 3);
    safetensors_write(&w, after, 0, "next", 4);
    assert_int_equal(safetensors_finish(&w), 0);

    SafeTensors st = safetensors_open(path);
    char got[8] = "";
    safetensors_read(&st, safetensors_find(&st, "a"), large - 3, got, 3);
    assert_string_equal(got, "end");
    safetensors_read(&st, safetensors_find(&st, "b"), 0, got, 4);
    assert_string_equal(got, "next");
    safetensors_close(&st);
    unlink(path);
}

// ---- failures while writing: finish returns the errno, the program does not stop

static int write_kilobytes(const char *path, size_t count, size_t written) {
    static const unsigned char block[1024];
    SafeTensorsWriter w = safetensors_create(path, false);
    int index = safetensors_declare(&w, "x", DT_U8, 1, (const size_t[]){count * sizeof block});
    safetensors_begin(&w);
    for (size_t i = 0; i < written; i++) { safetensors_write(&w, index, i * sizeof block, block, sizeof block); }
    return safetensors_finish(&w);
}

// the header of a tensor of that shape and one of four bytes, and no data
static int write_shape(const char *path, int num_dims, const size_t *shape) {
    SafeTensorsWriter w = safetensors_create(path, false);
    safetensors_declare(&w, "x", DT_U8, num_dims, shape);
    safetensors_declare(&w, "y", DT_U8, 1, (const size_t[]){4});
    safetensors_begin(&w);
    return safetensors_finish(&w);
}

TEST(test_write_failures) {
    const char *path = temp_path("failing");
    assert_int_equal(write_kilobytes(path, 9, 9), 0);
    assert_int_equal(write_kilobytes("/dev/full", 9, 9), ENOSPC);
    assert_int_equal(write_kilobytes(temp_path("absent/file"), 9, 9), ENOENT);
    assert_int_equal(write_kilobytes(temp_dir(), 9, 9), EISDIR);

    assert_int_equal(write_shape(path, 2, (const size_t[]){SIZE_MAX / 2, SIZE_MAX / 2}), EOVERFLOW);
    assert_int_equal(write_shape(path, 1, (const size_t[]){SIZE_MAX - 2}), EOVERFLOW);  // the sum of both
    assert_int_equal(write_shape(temp_path("absent/file"), 1, (const size_t[]){SIZE_MAX - 2}), ENOENT);  // the first

    limit_files(4000);  // a disk that fills up within a block: the first part is written, the rest fails
    int error = write_kilobytes(path, 9, 9);
    limit_files(RLIM_INFINITY);
    assert_int_equal(error, EFBIG);
    assert_refused(path, "bytes of data, expected 9216");
}

// ---- reading

TEST(test_conversions) {
    static const struct {
        uint16_t half;
        float value;
    } halves[] = {{0x0000, 0.0f},     {0x8000, -0.0f},    {0x0001, 0x1p-24f},   {0x83FF, -0x1.ff8p-15f},
                  {0x0400, 0x1p-14f}, {0x3C00, 1.0f},     {0x3C01, 0x1.004p0f}, {0xC000, -2.0f},
                  {0x7BFF, 65504.0f}, {0x7C00, INFINITY}, {0xFC00, -INFINITY},  {0x3555, 0x1.554p-2f}};
    for (size_t i = 0; i < LEN(halves); i++) {
        float value = f16_to_float(halves[i].half);
        assert_memory_equal(&value, &halves[i].value, sizeof value);  // the sign of zero counts
    }
    assert_true(isnan(f16_to_float(0x7E00)));
    assert_true(isnan(f16_to_float(0xFC01)));
    for (int half = 0; half <= 0xFFFF; half++) { assert_int_equal(float_to_f16(f16_to_float((uint16_t)half)), half); }

    enum { COUNT = 40000 };  // longer than one read of any type
    static double f64[COUNT];
    static float f32[COUNT];
    static uint16_t f16[COUNT], b16[COUNT];
    static real got[COUNT];
    const struct {
        const char *name;
        DType dtype;
        const void *data;
    } tensors[] = {{"f64", DT_F64, f64}, {"f32", DT_F32, f32}, {"f16", DT_F16, f16}, {"bf16", DT_BF16, b16}};
    for (int i = 0; i < COUNT; i++) {  // numbers that every one of the types holds: k/32 for k in -127..127
        f64[i] = (double)((i * 37) % 255 - 127) / 32;
        f32[i] = (float)f64[i];
        b16[i] = float_to_bf16(f32[i]).bits;
        uint32_t bits;
        memcpy(&bits, &f32[i], sizeof bits);
        f16[i] = (uint16_t)(f32[i] == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 13 & 0x3FFFF) - (112 << 10)));
    }
    const char *path = temp_path("numbers");
    SafeTensorsWriter w = safetensors_create(path, false);
    for (int i = 0; i < 4; i++) {
        safetensors_declare(&w, tensors[i].name, tensors[i].dtype, 1, (const size_t[]){COUNT});
    }
    safetensors_begin(&w);
    for (int i = 0; i < 4; i++) { safetensors_write(&w, i, 0, tensors[i].data, COUNT * dtype_size(tensors[i].dtype)); }
    assert_int_equal(safetensors_finish(&w), 0);
    SafeTensors st = safetensors_open(path);
    for (int i = 0; i < 4; i++) {
        const SafeTensor *t = safetensors_find(&st, tensors[i].name);
        safetensors_read_real(&st, t, 0, got, COUNT);
        for (int j = 0; j < COUNT; j++) { assert_true((double)got[j] == f64[j]); }
        safetensors_read_real(&st, t, 39990, got, 7);
        for (int j = 0; j < 7; j++) { assert_true((double)got[j] == f64[39990 + j]); }
    }
    safetensors_close(&st);
}

static void read_real(void *path) {
    SafeTensors st = safetensors_open((const char *)path);
    real out[2];
    safetensors_read_real(&st, safetensors_find(&st, "a"), 0, out, 2);
}

TEST(test_other_dtypes) {
    const char *path = write_tensors("bool", "{\"a\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3);
    SafeTensors st = safetensors_open(path);
    const SafeTensor *t = safetensors_find(&st, "a");
    unsigned char got[2];
    assert_int_equal(t->dtype, NUM_DTYPES);
    safetensors_read(&st, t, 1, got, 2);
    assert_memory_equal(got, "\1\2", 2);
    safetensors_close(&st);
    assert_stops(EXIT_BAD_INPUT, "tensor 'a'", read_real, (void *)path);
    path = write_tensors("i32", "{\"a\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    assert_stops(EXIT_BAD_INPUT, "holds I32, expected F32", read_real, (void *)path);
}

static void read_shortened(void *path) {
    SafeTensors st = safetensors_open((const char *)path);
    unsigned char got[4];
    if (truncate((const char *)path, (off_t)st.data_start + 3) == 0) {
        safetensors_read(&st, &st.tensors[0], 0, got, 4);
    }
}

TEST(test_shortened_while_open) {
    const char *path = write_tensors("short", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    assert_stops(EXIT_RUN_FAILED, "the file has become shorter", read_shortened, (void *)path);
}

// good files of other programs: any order, odd spaces, metadata anywhere, empty tensors in between
TEST(test_unusual_but_good) {
    SafeTensors st =
        safetensors_open(write_tensors("unusual",
                                       "{ \"b\" : {\"shape\":[2], \"data_offsets\":[ 2,4],\"dtype\":\"U8\"},\n"
                                       "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[2,2]},"
                                       "\"__metadata__\":{},"
                                       "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}     ",
                                       4));
    unsigned char got[2];
    assert_int_equal(st.num_tensors, 3);
    safetensors_read(&st, safetensors_find(&st, "b"), 0, got, 2);
    assert_memory_equal(got, "\2\3", 2);
    assert_non_null(safetensors_find(&st, "a"));
    safetensors_close(&st);
}

// ---- bad files

#define ENTRY(shape, offsets) "{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(test_bad_headers) {
    static const struct {
        const char *json;
        size_t data_bytes;
        const char *words;
    } cases[] = {
        {"", 0, "no JSON object"},
        {"[]", 0, "no JSON object"},
        {" {}", 0, "no JSON object"},
        {"\xEF\xBB\xBF{}", 0, "no JSON object"},
        {"{", 0, "no JSON object"},
        {"{'a':1}", 0, "no JSON object"},
        {"{}}", 0, "no JSON object and spaces"},
        {"{} \n", 0, "no JSON object and spaces"},
        {"{\"a\\u0000\":1}", 0, "no JSON object"},
        {"{\"a\\n\\u001b\":1}", 0, "tensor 'a\?\?'"},
        {"{\"a\":" ENTRY("[1]", "[0,1]") ",\"b\":" ENTRY("[1]", "[1,2]") ",\"a\":" ENTRY("[1]", "[2,3]") "}", 3,
         "'a' twice"},
        // layout
        {"{\"a\":" ENTRY("[2]", "[1,3]") "}", 3, "at byte 1 of the data, expected 0 (a hole)"},
        {"{\"b\":" ENTRY("[2]", "[3,5]") ",\"a\":" ENTRY("[2]", "[0,2]") "}", 5,
         "byte 3 of the data, expected 2 (a hole)"},
        {"{\"b\":" ENTRY("[2]", "[1,3]") ",\"a\":" ENTRY("[2]", "[0,2]") "}", 3,
         "'b' at byte 1 of the data, expected 2 (an"},
        {"{\"b\":" ENTRY("[2]", "[0,2]") ",\"a\":" ENTRY("[2]", "[0,2]") "}", 2, "(an overlap)"},
        {"{\"a\":" ENTRY("[2]", "[0,2]") "}", 1, "has 1 bytes of data, expected 2"},
        {"{\"a\":" ENTRY("[2]", "[0,2]") "}", 3, "has 3 bytes of data, expected 2"},
        {"{}", 1, "has 1 bytes of data, expected 0"},
    };
    for (size_t i = 0; i < LEN(cases); i++) {
        assert_refused(write_tensors("bad", cases[i].json, cases[i].data_bytes), cases[i].words);
    }
}

TEST(test_bad_entries) {
    static const struct {
        const char *dtype, *shape, *offsets;
    } cases[] = {
        {"\"F31\"", "[1]", "[0,4]"},
        {"\"f32\"", "[1]", "[0,4]"},
        {"1", "[1]", "[0,4]"},
        {"\"U8\"", "1", "[0,1]"},
        {"\"U8\"", "[-1]", "[0,1]"},
        {"\"U8\"", "[1.5]", "[0,1]"},
        {"\"U8\"", "[\"1\"]", "[0,1]"},
        {"\"U8\"", "[9007199254740992]", "[0,1]"},
        {"\"U8\"", "[1e999]", "[0,1]"},
        {"\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"},
        {"\"U8\"", "[4294967296,4294967296]", "[0,0]"},
        {"\"F64\"", "[4294967296,536870912]", "[0,0]"},
        {"\"U8\"", "[4294967296,4294967296,0]", "[0,0]"},
        {"\"U8\"", "[1]", "1"},
        {"\"U8\"", "[1]", "[0]"},
        {"\"U8\"", "[1]", "[0,1,2]"},
        {"\"U8\"", "[1]", "[0,null]"},
        {"\"U8\"", "[1]", "[-1,0]"},
        {"\"U8\"", "[1]", "[0.5,1.5]"},
        {"\"U8\"", "[1]", "[1,0]"},
        {"\"U8\"", "[1]", "[9007199254740992,9007199254740993]"},
        {"\"F32\"", "[2]", "[0,7]"},
        {"\"F32\"", "[]", "[0,8]"},
        {"\"BOOL\"", "[2]", "[0,4]"},
        {"\"F32\"", "[0]", "[0,4]"},
        {"\"U8\"", "[1]", "[0,1],\"x\":1"},
    };
    static const char *const others[] = {"1", "[1,2,3]", "{\"dtype\":\"U8\",\"shape\":[1],\"offsets\":[0,1]}"};
    for (size_t i = 0; i < LEN(cases) + LEN(others); i++) {
        char json[256];
        if (i < LEN(cases)) {
            snprintf(json, sizeof json, "{\"a\":{\"dtype\":%s,\"shape\":%s,\"data_offsets\":%s}}", cases[i].dtype,
                     cases[i].shape, cases[i].offsets);
        } else {
            snprintf(json, sizeof json, "{\"a\":%s}", others[i - LEN(cases)]);
        }
        assert_refused(write_tensors("bad", json, 8), "tensor 'a' with a bad dtype, shape or data_offsets, expected");
    }
}

TEST(test_deep_nesting) {
    enum { DEPTH = 1000000 };
    char *json = (char *)xcalloc(DEPTH + 6, 1);
    memcpy(json, "{\"a\":", 5);
    memset(json + 5, '[', DEPTH);
    assert_refused(write_tensors("deep", json, 0), "no JSON object");
    free(json);
}

TEST(test_bad_files) {
    const struct {
        const char *path, *words;
    } cases[] = {
        {temp_path("no such file"), "could not be opened: No such file"},
        {temp_dir(), "could not be opened: it is a folder, a device or a pipe"},
        {"/dev/null", "could not be opened: it is a folder, a device or a pipe"},
        {temp_path("pipe"), "could not be opened: it is a folder, a device or a pipe"},
        {write_file("empty", "", 0), "is empty"},
        {write_file("seven", "\2\0\0\0\0\0\0", 7), "is too short for a header"},
        {write_file("long", "\3\0\0\0\0\0\0\0{}", 10), "is 10 bytes long and says that its header has 3"},
        {write_file("over", "\1\xE1\xF5\5\0\0\0\0{}", 10), "100000001, expected at most 100000000"},
        {write_file("huge", "\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10), "expected at most 100000000"},
        {write_file("nul", "\4\0\0\0\0\0\0\0{}\0 ", 12), "no JSON object"},
    };
    assert_int_equal(mkfifo(cases[3].path, 0600), 0);
    for (size_t i = 0; i < LEN(cases); i++) {
        char path[256];  // temp_path reuses its buffers
        snprintf(path, sizeof path, "%s", cases[i].path);
        assert_refused(path, cases[i].words);
    }
}

// cut anywhere, the file is refused; dev/test/test_fuzz.sh damages files in other ways
TEST(test_cut_files) {
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                 "\"\\u00e9\":{\"dtype\":\"BF16\",\"shape\":[10],\"data_offsets\":[24,44]},"
                                 "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[44,45]}}  ";
    enum { TOTAL = 8 + sizeof header - 1 + 45 };
    SafeTensors whole = safetensors_open(write_tensors("cut", header, 45));
    assert_int_equal(whole.num_tensors, 3);
    safetensors_close(&whole);
    for (off_t bytes = 0; bytes < TOTAL; bytes++) {
        const char *path = write_tensors("cut", header, 45);
        assert_int_equal(truncate(path, bytes), 0);
        assert_refused(path, "");
    }
}

int main(void) { return run_all_tests("safetensors"); }
