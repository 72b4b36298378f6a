/*
CRC32C (Castagnoli's polynomial), the checksum of a checkpoint's files. Ranks write their ranges in any order.
A CRC without its first and last inversion is linear: the CRC of a file is the XOR of the CRCs of its ranges, each
followed by zeros up to the end of the file. n zero bytes multiply a CRC by x^(8n), modulo the polynomial.
Source: RFC 3720, appendix B.4, which also has the vectors of the test.
*/
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#define CRC32C_POLYNOMIAL 0x82F63B78u  // bit 31 is the coefficient of x^0
#define CRC32C_ONE 0x80000000u         // the polynomial 1

#if defined(__SSE4_2__) && !defined(__CUDA_ARCH__)
#include <nmmintrin.h>
#define CRC32C_WORD(crc, word) (uint32_t) _mm_crc32_u64(crc, word)
#define CRC32C_BYTE(crc, byte) _mm_crc32_u8(crc, byte)
#elif defined(__ARM_FEATURE_CRC32) && !defined(__CUDA_ARCH__)
#include <arm_acle.h>
#define CRC32C_WORD(crc, word) __crc32cd(crc, word)
#define CRC32C_BYTE(crc, byte) __crc32cb(crc, byte)
#endif

// the register after bytes (n), without inversions
static inline uint32_t crc32c_register(uint32_t crc, const void *bytes, size_t n) {
    const uint8_t *p = (const uint8_t *)bytes;
#ifdef CRC32C_WORD
    uint64_t word;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&word, p, 8);
        crc = CRC32C_WORD(crc, word);
    }
    for (; n > 0; n--, p++) { crc = CRC32C_BYTE(crc, *p); }
#else
    uint32_t table[256];
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) { table[i] = table[i] >> 1 ^ (table[i] & 1 ? CRC32C_POLYNOMIAL : 0); }
    }
    for (; n > 0; n--, p++) { crc = crc >> 8 ^ table[(crc ^ *p) & 255]; }
#endif
    return crc;
}

// a times b modulo the polynomial
static inline uint32_t crc32c_times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        product ^= a & CRC32C_ONE ? b : 0;
        b = b >> 1 ^ (b & 1 ? CRC32C_POLYNOMIAL : 0);
    }
    return product;
}

// the register after n zero bytes: crc times x^(8n)
static inline uint32_t crc32c_zeros(uint32_t crc, uint64_t n) {
    uint32_t power = CRC32C_ONE >> 8;  // x^8, then its square, and so on
    for (; n > 0; n >>= 1, power = crc32c_times(power, power)) {
        if (n & 1) { crc = crc32c_times(crc, power); }
    }
    return crc;
}

// Returns the part of a file's CRC that comes from bytes (n), with `after` more bytes behind them. XOR combines parts.
static inline uint32_t crc32c_part(const void *bytes, size_t n, uint64_t after) {
    return crc32c_zeros(crc32c_register(0, bytes, n), after);
}

// The CRC of a file of `bytes` bytes. parts: the XOR of the parts of ranges that cover each byte once.
static inline uint32_t crc32c_whole(uint32_t parts, uint64_t bytes) { return ~(parts ^ crc32c_zeros(~0u, bytes)); }
