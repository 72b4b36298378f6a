/* CRC32C: published vectors, and files whose ranges are added in any order. */
#include "dev/test/testing.h"
#include "llmc/common/crc32c.h"

// the CRC of bytes (n), in two parts
static uint32_t in_two(const void *bytes, size_t first, size_t n) {
    uint32_t second = crc32c_part((const uint8_t *)bytes + first, n - first, 0);
    return crc32c_whole(crc32c_part(bytes, first, n - first) ^ second, n);
}

static uint32_t crc32c(const void *bytes, size_t n) { return in_two(bytes, n, n); }

// RFC 3720, appendix B.4; the last is the check value of every catalogue of CRCs
TEST(test_vectors) {
    uint8_t bytes[32];
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c(bytes, 32), 0x8A9136AA);
    memset(bytes, 0xFF, sizeof bytes);
    assert_int_equal(crc32c(bytes, 32), 0x62A8AB43);
    for (int i = 0; i < 32; i++) { bytes[i] = (uint8_t)i; }
    assert_int_equal(crc32c(bytes, 32), 0x46DD794E);
    for (int i = 0; i < 32; i++) { bytes[i] = (uint8_t)(31 - i); }
    assert_int_equal(crc32c(bytes, 32), 0x113FDB5C);
    assert_int_equal(crc32c("123456789", 9), 0xE3069283);
    assert_int_equal(crc32c("", 0), 0);
}

static void fill(uint8_t *bytes, size_t n) {
    uint32_t x = 1;
    for (size_t i = 0; i < n; i++) { bytes[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24); }
}

// any split gives the CRC of the whole, also at odd addresses
TEST(test_two_parts) {
    uint8_t bytes[100];
    fill(bytes, sizeof bytes);
    uint32_t whole = crc32c(bytes, sizeof bytes);
    for (size_t at = 0; at <= sizeof bytes; at++) { assert_int_equal(in_two(bytes, at, sizeof bytes), whole); }
}

// ranges in a wrong order, of two ranks
TEST(test_any_order) {
    enum { BYTES = 100000, RANGE = 777 };
    static uint8_t bytes[BYTES];
    fill(bytes, BYTES);
    uint32_t parts[2] = {0, 0};  // of each rank
    int count = (BYTES + RANGE - 1) / RANGE;
    for (int i = 0; i < count; i++) {
        size_t at = (size_t)(i * 50 % count) * RANGE, n = BYTES - at < RANGE ? BYTES - at : (size_t)RANGE;
        parts[i % 2] ^= crc32c_part(bytes + at, n, BYTES - at - n);
    }
    assert_int_equal(crc32c_whole(parts[0] ^ parts[1], BYTES), crc32c(bytes, BYTES));
    assert_int_equal(crc32c_whole(0, 0), 0);
}

int main(void) { return run_all_tests("crc32c"); }
