/* Batch kernels over Curve25519: a library of plain functions for hedgerow.crypto.arithmetic.curve_native,
 * which checks every buffer, index and range before it crosses.
 *
 * Every kernel exists three times from one source: with AVX-512 IFMA, eight lanes at a time; with
 * AVX2, four; and portable. `has_ifma` and `has_avx2` say whether the first two may be called. All,
 * and the pure-Python kernel, give identical bytes. A kernel returns CURVE_DONE, CURVE_NO_MEMORY, or the first bad element.
 *
 * Constant time: X25519, the map to the curve, encoding and decoding have no branch and no address
 * that depends on a secret, but for whether an element is refused. Everything else has:
 * additions from fixed-base tables read addresses by digits of a ciphertext's randomness and of the
 * plaintext; decryption adds to buckets by digits of the private key; sums read rows by number;
 * discrete logarithms take time that depends on the result. See docs/crypto.md.
 */

#include "wipe.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define CURVE_HAS_VECTORS 1
#include <immintrin.h>
#endif

#if !defined(__SIZEOF_INT128__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "128-bit integers and little-endian words are needed; without the kernels Python does it"
#endif

#pragma GCC diagnostic ignored "-Wpsabi"

__extension__ typedef unsigned __int128 u128;
typedef uint64_t v8 __attribute__((vector_size(64)));
typedef struct {
    v8 l[5];
} fe8;

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 10")
#endif
#define PASTE2(a, b) curve_##a##_##b
#define PASTE(a, b) PASTE2(a, b)
#define FN(name) PASTE(name, BACKEND)
#define SELECT(mask, yes, no) (((mask) & (yes)) | (~(mask) & (no)))

#define BATCH 32               /* vectors that share one inversion; even */
#define CURVE_WIDTH 3          /* points a row */
#define CURVE_MAX_WINDOWS 64   /* of a fixed base: 252 bits by at least four */
#define CURVE_HITS 64
#define CURVE_HASH 0x9E3779B97F4A7C15ULL
#define CURVE_NOT_FOUND INT64_MIN
#define CURVE_DONE (-1)
#define CURVE_NO_MEMORY (-2)

static const uint64_t FE_ZERO[5] = {0, 0, 0, 0, 0};
static const uint64_t FE_ONE[5] = {1, 0, 0, 0, 0};
static const uint64_t FE_J[5] = {486662, 0, 0, 0, 0};
static const uint64_t FE_D[5] = {0x34DCA135978A3ULL, 0x1A8283B156EBDULL, 0x5E7A26001C029ULL,
                                 0x739C663A03CBBULL, 0x52036CEE2B6FFULL};
static const uint64_t FE_2D[5] = {0x69B9426B2F159ULL, 0x35050762ADD7AULL, 0x3CF44C0038052ULL,
                                  0x6738CC7407977ULL, 0x2406D9DC56DFFULL};
static const uint64_t FE_SQRT_M1[5] = {0x61B274A0EA0B0ULL, 0xD5A5FC8F189DULL, 0x7EF5E9CBD0C60ULL,
                                       0x78595A6804C9EULL, 0x2B8324804FC1DULL};
static const uint64_t FE_MINUS_SQRT_M1[5] = {0x1E4D8B5F15F3DULL, 0x72A5A0370E762ULL,
                                             0x10A16342F39FULL, 0x7A6A597FB361ULL,
                                             0x547CDB7FB03E2ULL};
static const uint64_t FE_INVSQRT_A_MINUS_D[5] = {0xFDAA805D40EAULL, 0x2EB482E57D339ULL,
                                                 0x7610274BC58ULL, 0x6510B613DC8FFULL,
                                                 0x786C8905CFAFFULL};
/* Three niels identities, and an extended one. */
static const uint64_t IDENTITY_ROW[48] = {[0] = 1,  [5] = 1,  [16] = 1,
                                          [21] = 1, [32] = 1, [37] = 1};
static const uint64_t IDENTITY_POINT[24] = {[5] = 1, [10] = 1};

typedef struct {
    int w, windows, small_windows;
    const uint64_t *table[3]; /* of G, P1, P2 */
    const uint64_t *small;    /* of G / 2 */
} curve_bases;

#define BASES_OF(w, g, p1, p2, small) \
    {(int)(w), (int)((253 + (w) - 1) / (w)), (int)((42 + (w) - 1) / (w)), {g, p1, p2}, small}

typedef struct {
    int bits, w, windows;
    int64_t modulus, limit, n_steps;
    const uint64_t *table, *steps, *check;
} curve_log;

typedef struct {
    int n;
    int64_t target[CURVE_HITS], value[CURVE_HITS];
} curve_hits;

static void *curve_alloc(size_t n_bytes) { return aligned_alloc(64, (n_bytes + 63) / 64 * 64); }

/* Signed digits of the low 252 bits: -2^(w-1) < digit <= 2^(w-1) */
static void curve_digits(int16_t *digits, const uint8_t *scalar, int w, int windows) {
    uint8_t bytes[40] = {0};
    int carry = 0;
    memcpy(bytes, scalar, 32);
    bytes[31] &= 15;
    for (int i = 0; i < windows; i++) {
        uint32_t word;
        int bit = w * i;
        memcpy(&word, bytes + bit / 8, 4);
        int digit = (int)(word >> (bit % 8) & ((1u << w) - 1)) + carry;
        carry = digit > 1 << (w - 1);
        digits[i] = (int16_t)(digit - (carry << w));
    }
}

static void curve_small_digits(int16_t *digits, int64_t value, int w, int windows) {
    int64_t sign = value >> 63;
    uint64_t rest = (uint64_t)((value ^ sign) - sign);
    int carry = 0;
    for (int i = 0; i < windows; i++) {
        int digit = (int)(rest & ((1u << w) - 1)) + carry;
        rest >>= w;
        carry = digit > 1 << (w - 1);
        digit -= carry << w;
        digits[i] = (int16_t)((digit ^ (int)sign) - (int)sign);
    }
}

#define BACKEND portable
#include "curve_field.h"
#include "curve_lanes.h"
#undef BACKEND
#undef PLUS_19
#undef FE_P0
#undef FE_P1

#ifdef CURVE_HAS_VECTORS
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi2")
#endif
#define CURVE_AVX2
#define BACKEND avx2
#include "curve_field.h"
#include "curve_lanes.h"
#undef BACKEND
#undef CURVE_AVX2
#undef PLUS_19
#undef FE_P0
#undef FE_P1
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#ifdef CURVE_HAS_VECTORS
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512ifma,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512ifma,bmi2")
#endif
#define CURVE_IFMA
#define BACKEND ifma
#include "curve_field.h"
#include "curve_lanes.h"
#undef BACKEND
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

EXPORT int64_t has_ifma(void) {
#ifdef CURVE_HAS_VECTORS
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("bmi2");
#else
    return 0;
#endif
}

EXPORT int64_t has_avx2(void) {
#ifdef CURVE_HAS_VECTORS
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
#else
    return 0;
#endif
}
