/*
The number types, chosen once per build.
  floatX  storage of weights and activations
  real    arithmetic, statistics, parameter gradients and optimizer state

  PRECISION   floatX   real
  fp32        float    float
  bf16        bf16     float
  fp64        double   double     only to check gradients by finite differences
*/
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

// bfloat16: the upper half of an fp32
typedef struct bf16 {
    uint16_t bits;
} bf16;

typedef enum { DT_F64, DT_F32, DT_BF16, DT_F16, DT_I64, DT_I32, DT_I16, DT_U8, NUM_DTYPES } DType;

static inline size_t dtype_size(DType dtype) {
    static const size_t size[NUM_DTYPES] = {8, 4, 2, 2, 8, 4, 2, 1};
    return size[dtype];
}

// dtype names of the safetensors format
static inline const char *dtype_name(DType dtype) {
    static const char *const name[NUM_DTYPES] = {"F64", "F32", "BF16", "F16", "I64", "I32", "I16", "U8"};
    return name[dtype];
}

static inline HOST_DEVICE uint32_t float_to_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline HOST_DEVICE float bits_to_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline HOST_DEVICE float bf16_to_float(bf16 x) { return bits_to_float((uint32_t)x.bits << 16); }

// round to nearest, ties to even; a NaN stays a NaN
static inline HOST_DEVICE bf16 float_to_bf16(float f) {
    uint32_t bits = float_to_bits(f);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet_nan = (bits >> 16) | 0x40u;
    bf16 x = {(uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet_nan : rounded)};
    return x;
}

// Stochastic rounding: adds 16 random bits below the last kept bit and truncates. The mean is exact.
static inline HOST_DEVICE bf16 bf16_round_stochastic(float f, uint32_t random_bits) {
    uint32_t bits = float_to_bits(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) { return float_to_bf16(f); }  // NaN: the addition could change its sign
    bf16 x = {(uint16_t)((bits + (random_bits & 0xFFFFu)) >> 16)};
    return x;
}

// ---- an fp32 number as the nearest bf16, ties away from zero, and a 16-bit remainder: lossless
// bits = (weight << 16) + remainder, in two's complement and modulo 2^32. All 2^32 patterns are restored, also after a
// carry into the exponent, to infinity or through the sign. (NaNs with all upper bits set have the weight zero.)

static inline HOST_DEVICE bf16 split_weight(float f) {
    bf16 x = {(uint16_t)((float_to_bits(f) + 0x8000u) >> 16)};
    return x;
}

static inline HOST_DEVICE int16_t split_remainder(float f) { return (int16_t)(uint16_t)float_to_bits(f); }

static inline HOST_DEVICE float split_join(bf16 weight, int16_t remainder) {
    return bits_to_float(((uint32_t)weight.bits << 16) + (uint32_t)(int32_t)remainder);
}

// ---- the types of this build, and a full-precision weight r in two parts:
//   to_floatX_half_up   the weight of the forward: r rounded half up
//   remainder_of        r minus that weight, as 16 bits; 0 unless floatX is bf16
//   joined_real         r from weight and remainder

#ifdef PRECISION_BF16
typedef bf16 floatX;
typedef float real;
#define DT_FLOATX DT_BF16
#define DT_REAL DT_F32
static inline HOST_DEVICE real to_real(floatX x) { return bf16_to_float(x); }
static inline HOST_DEVICE floatX to_floatX(real r) { return float_to_bf16(r); }
static inline HOST_DEVICE floatX to_floatX_stochastic(real r, uint32_t random_bits) {
    return bf16_round_stochastic(r, random_bits);
}
static inline HOST_DEVICE floatX to_floatX_half_up(real r) { return split_weight(r); }
static inline HOST_DEVICE int16_t remainder_of(real r) { return split_remainder(r); }
static inline HOST_DEVICE real joined_real(floatX x, int16_t remainder) { return split_join(x, remainder); }
#else  // floatX is real: nothing is rounded
#ifdef PRECISION_FP64
typedef double floatX, real;
#define DT_FLOATX DT_F64
#else
typedef float floatX, real;
#define DT_FLOATX DT_F32
#endif
#define DT_REAL DT_FLOATX
static inline HOST_DEVICE real to_real(floatX x) { return x; }
static inline HOST_DEVICE floatX to_floatX(real r) { return r; }
static inline HOST_DEVICE floatX to_floatX_stochastic(real r, uint32_t random_bits) {
    (void)random_bits;
    return r;
}
static inline HOST_DEVICE floatX to_floatX_half_up(real r) { return r; }
static inline HOST_DEVICE int16_t remainder_of(real r) {
    (void)r;
    return 0;
}
static inline HOST_DEVICE real joined_real(floatX x, int16_t remainder) {
    (void)remainder;
    return x;
}
#endif

#ifdef PRECISION_FP64
#define REAL_MATH(function) function
#else
#define REAL_MATH(function) function##f
#endif

// ||a - b|| / ||b||, in double; ||a - b|| if b is zero. For the self-check and the tests
static inline double relative_error(const double *a, const double *b, size_t n) {
    double difference = 0, reference = 0;
    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        reference += b[i] * b[i];
    }
    return reference > 0 ? sqrt(difference / reference) : sqrt(difference);
}
