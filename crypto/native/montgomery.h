/* Montgomery arithmetic on many residues of one odd modulus.
 *
 * A residue is `limbs` 64-bit words, least significant first, in Montgomery form (x R mod m).
 *   portable: radix 2^64, R = 2^(64 limbs), always fully reduced;
 *   vectors:  radix 2^52, R = 2^(52 limbs), limbs a multiple of four with R >= 2^8 m. A product of
 *             a < 16 m and b < 16 m is below 2 m, so nothing is subtracted between products;
 *   root:     vectors modulo m = n^2, R of half the words. x R is kept as a0 + n a1, so that a product
 *             needs no digit above n: a0 b0 = R r - q n gives x y R = r + n (a0 b1 + a1 b0 - q)/R.
 *             That is five products of n's size where the plain form takes eight. Halves of
 *             operands are below 16 n; of a product, below 2 n and 5 n.
 * Eight residues that are worked on together lie limb by limb across the lanes of a vector; AVX-512
 * IFMA multiplies all eight, AVX2 four.
 *
 * Memory access depends on digits, exponents and row numbers, and a branch on the last subtraction:
 * no path is constant-time against someone who shares the machine's caches.
 */
#ifndef HEDGEROW_MONTGOMERY_H
#define HEDGEROW_MONTGOMERY_H

#include <stdint.h>
#include <string.h>

#ifndef __SIZEOF_INT128__
#error "the kernels need a compiler with a 128-bit integer type"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernels read and write words as little-endian bytes"
#endif

#define MAX_LIMBS 160 /* 52 * 160 = 8320 bits: n^2 of a 4096-bit key */
#define LANES 8
#define DIGIT_BITS 52
#define DIGIT_MASK ((UINT64_C(1) << DIGIT_BITS) - 1)

enum { PORTABLE, IFMA, AVX2 };

typedef struct {
  int path;           /* one of these; vectors unless portable */
  int limbs;          /* words of a residue */
  int half;           /* root: words of n; else 0 */
  int bytes;          /* bytes of a canonical residue, little-endian */
  uint64_t inverse;   /* -1/m modulo the radix; root: -1/n */
  uint64_t m[MAX_LIMBS];      /* root: n */
  uint64_t one[MAX_LIMBS];    /* R mod m */
  uint64_t square[MAX_LIMBS]; /* R^2 mod m */
  uint64_t cube[MAX_LIMBS];   /* R^3 mod m */
} modulus_t;

/* Bits of one word: 52 or 64. */
static inline int word_bits(const modulus_t *mod) { return mod->path ? DIGIT_BITS : 64; }

/* Unpack `width` little-endian bytes, below R, into words. */
static void words_from_bytes(const modulus_t *mod, uint64_t *words, const uint8_t *data, int width) {
  uint8_t padded[8 * MAX_LIMBS + 16];
  memcpy(padded, data, (size_t)width);
  memset(padded + width, 0, sizeof padded - (size_t)width);
  const int bits = word_bits(mod);
  for (int i = 0; i < mod->limbs; i++) {
    uint64_t word;
    memcpy(&word, padded + (i * bits) / 8, 8);
    /* 52 i is 0 or 4 modulo 8, and 52 + 4 < 64, so one read holds the whole digit. */
    words[i] = bits == 64 ? word : (word >> ((i * bits) % 8)) & DIGIT_MASK;
  }
}

/* Pack words of a canonical residue into mod->bytes bytes. */
static void bytes_from_words(const modulus_t *mod, uint8_t *data, const uint64_t *words) {
  uint8_t padded[8 * MAX_LIMBS + 16] = {0};
  const int bits = word_bits(mod);
  for (int i = 0; i < mod->limbs; i++) {
    uint64_t word;
    uint8_t *at = padded + (i * bits) / 8;
    memcpy(&word, at, 8);
    word |= words[i] << ((i * bits) % 8);
    memcpy(at, &word, 8);
  }
  memcpy(data, padded, (size_t)mod->bytes);
}

/* Bring `n` words of a number of at most twice m to m less, if they are not below m. */
static int subtract_once(const modulus_t *mod, uint64_t *words, int n) {
  uint64_t less[MAX_LIMBS];
  uint64_t borrow = 0;
  const uint64_t mask = mod->path ? DIGIT_MASK : UINT64_MAX;
  for (int i = 0; i < n; i++) {
    const unsigned __int128 difference = (unsigned __int128)words[i] - mod->m[i] - borrow;
    less[i] = (uint64_t)difference & mask;
    borrow = (uint64_t)(difference >> 64) & 1;
  }
  if (!borrow) memcpy(words, less, 8 * (size_t)n);
  return !borrow;
}

/* t[0 .. n) += a x; returns the word that is carried out. */
static inline uint64_t add_multiple(uint64_t *t, const uint64_t *a, uint64_t x, int n) {
  unsigned __int128 sum = 0;
#pragma GCC unroll 4
  for (int j = 0; j < n; j++) {
    sum += (unsigned __int128)a[j] * x + t[j];
    t[j] = (uint64_t)sum;
    sum >>= 64;
  }
  return (uint64_t)sum;
}

/* r = a b / R mod m, fully reduced; a < R, b < m, radix 2^64: the product, then its reduction. */
static void multiply_portable(const modulus_t *mod, uint64_t *r, const uint64_t *a,
                              const uint64_t *b) {
  const int n = mod->limbs;
  uint64_t t[2 * MAX_LIMBS], less[MAX_LIMBS];
  memset(t, 0, 8 * (size_t)n);
  for (int i = 0; i < n; i++) t[n + i] = add_multiple(t + i, a, b[i], n);
  uint64_t carry = 0;
  for (int i = 0; i < n; i++) {
    const uint64_t out = add_multiple(t + i, mod->m, t[i] * mod->inverse, n);
    const unsigned __int128 sum = (unsigned __int128)t[n + i] + out + carry;
    t[n + i] = (uint64_t)sum;
    carry = (uint64_t)(sum >> 64);
  }
  uint64_t borrow = 0;
  for (int j = 0; j < n; j++) {
    const unsigned __int128 difference = (unsigned __int128)t[n + j] - mod->m[j] - borrow;
    less[j] = (uint64_t)difference;
    borrow = (uint64_t)(difference >> 64) & 1;
  }
  memcpy(r, carry || !borrow ? less : t + n, 8 * (size_t)n);
}

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_VECTORS 1
#define TARGET_IFMA __attribute__((target("avx512f,avx512dq,avx512ifma")))
#define INLINE_IFMA TARGET_IFMA static inline __attribute__((always_inline))

typedef __m512i vector_t; /* one limb of eight residues */

#define LOW(sum, a, b) _mm512_madd52lo_epu64(sum, a, b)
#define HIGH(sum, a, b) _mm512_madd52hi_epu64(sum, a, b)

/* Add the 4 x 4 corner where rows y0..y3 meet limbs x0..x3: what lies at or above column 4. */
#define UPPER_CORNER(x0, x1, x2, x3, y0, y1, y2, y3)                                  \
  s0 = HIGH(s0, x0, y3); s0 = LOW(s0, x1, y3); s0 = HIGH(s0, x1, y2);                 \
  s0 = LOW(s0, x2, y2); s0 = HIGH(s0, x2, y1); s0 = LOW(s0, x3, y1);                  \
  s0 = HIGH(s0, x3, y0);                                                              \
  s1 = HIGH(s1, x1, y3); s1 = LOW(s1, x2, y3); s1 = HIGH(s1, x2, y2);                 \
  s1 = LOW(s1, x3, y2); s1 = HIGH(s1, x3, y1);                                        \
  s2 = HIGH(s2, x2, y3); s2 = LOW(s2, x3, y3); s2 = HIGH(s2, x3, y2);                 \
  s3 = HIGH(s3, x3, y3)

/* One step of a sweep: limb x meets rows y0..y3; s0..s4 are columns j..j+4 of the running sum. */
#define SWEEP_STEP(x, y0, y1, y2, y3)                                                 \
  s0 = LOW(s0, x, y0);                                                                \
  s1 = HIGH(s1, x, y0); s2 = HIGH(s2, x, y1); s3 = HIGH(s3, x, y2); s4 = HIGH(s4, x, y3); \
  s1 = LOW(s1, x, y1); s2 = LOW(s2, x, y2); s3 = LOW(s3, x, y3)

/* t[0 .. 2n) = a b, or that is added to it: columns of up to 2n products each, no carries. */
INLINE_IFMA void full_product(vector_t *t, const vector_t *a, const vector_t *b, int n, int more) {
  const vector_t zero = _mm512_setzero_si512();
  for (int i = 0; i < n + 4 && !more; i++) t[i] = zero;
  for (int k = 0; k < n; k += 4) {
    const vector_t b0 = b[k], b1 = b[k + 1], b2 = b[k + 2], b3 = b[k + 3];
    vector_t s0 = t[k], s1 = t[k + 1], s2 = t[k + 2], s3 = t[k + 3], s4;
    if (!more) { /* columns from k + n on were not touched by the rows before */
      t[k + n] = zero;
      t[k + n + 1] = t[k + n + 2] = t[k + n + 3] = zero;
    }
    for (int j = 0; j < n; j++) {
      const vector_t x = a[j];
      s4 = t[k + j + 4];
      SWEEP_STEP(x, b0, b1, b2, b3);
      t[k + j] = s0;
      s0 = s1; s1 = s2; s2 = s3; s3 = s4;
    }
    t[k + n] = s0; t[k + n + 1] = s1; t[k + n + 2] = s2; t[k + n + 3] = s3;
  }
}

/* t[0 .. 2n) = a^2: products off the diagonal once, doubled, then the diagonal. */
INLINE_IFMA void full_square(vector_t *t, const vector_t *a, int n) {
  const vector_t zero = _mm512_setzero_si512();
  for (int i = 0; i < 2 * n; i++) t[i] = zero;
  for (int k = 0; k < n; k += 4) {
    const vector_t b0 = a[k], b1 = a[k + 1], b2 = a[k + 2], b3 = a[k + 3];
    vector_t *c = t + 2 * k;
    c[1] = LOW(c[1], b0, b1);
    c[2] = LOW(HIGH(c[2], b0, b1), b0, b2);
    c[3] = LOW(LOW(HIGH(c[3], b0, b2), b0, b3), b1, b2);
    vector_t s0 = LOW(HIGH(HIGH(c[4], b0, b3), b1, b2), b1, b3);
    vector_t s1 = LOW(HIGH(c[5], b1, b3), b2, b3);
    vector_t s2 = HIGH(c[6], b2, b3);
    vector_t s3 = c[7], s4;
    for (int j = k + 4; j < n; j++) {
      const vector_t x = a[j];
      s4 = t[k + j + 4];
      SWEEP_STEP(x, b0, b1, b2, b3);
      t[k + j] = s0;
      s0 = s1; s1 = s2; s2 = s3; s3 = s4;
    }
    t[k + n] = s0; t[k + n + 1] = s1; t[k + n + 2] = s2; t[k + n + 3] = s3;
  }
  for (int i = 0; i < n; i++) {
    t[2 * i] = LOW(_mm512_slli_epi64(t[2 * i], 1), a[i], a[i]);
    t[2 * i + 1] = HIGH(_mm512_slli_epi64(t[2 * i + 1], 1), a[i], a[i]);
  }
}

/* r = (t + q m) / R, digits normalised; uses up the 2n columns of t. The n digits of q, if asked. */
INLINE_IFMA void reduce(vector_t *r, vector_t *t, vector_t *q, const uint64_t *m, uint64_t inverse,
                        int n) {
  const vector_t zero = _mm512_setzero_si512();
  const vector_t inv = _mm512_set1_epi64((long long)inverse);
  const vector_t mask = _mm512_set1_epi64((long long)DIGIT_MASK);
  const vector_t m0 = _mm512_set1_epi64((long long)m[0]), m1 = _mm512_set1_epi64((long long)m[1]);
  const vector_t m2 = _mm512_set1_epi64((long long)m[2]), m3 = _mm512_set1_epi64((long long)m[3]);
  for (int k = 0; k < n; k += 4) {
    /* Four quotient digits, each needing the column below it to be final. */
    vector_t c0 = t[k], c1 = t[k + 1], c2 = t[k + 2], c3 = t[k + 3];
    const vector_t q0 = LOW(zero, c0, inv);
    c0 = LOW(c0, q0, m0);
    c1 = LOW(HIGH(c1, q0, m0), q0, m1);
    c1 = _mm512_add_epi64(c1, _mm512_srli_epi64(c0, DIGIT_BITS));
    const vector_t q1 = LOW(zero, c1, inv);
    c1 = LOW(c1, q1, m0);
    c2 = LOW(HIGH(c2, q0, m1), q0, m2);
    c2 = LOW(HIGH(c2, q1, m0), q1, m1);
    c2 = _mm512_add_epi64(c2, _mm512_srli_epi64(c1, DIGIT_BITS));
    const vector_t q2 = LOW(zero, c2, inv);
    c2 = LOW(c2, q2, m0);
    c3 = LOW(HIGH(c3, q0, m2), q0, m3);
    c3 = LOW(HIGH(c3, q1, m1), q1, m2);
    c3 = LOW(HIGH(c3, q2, m0), q2, m1);
    c3 = _mm512_add_epi64(c3, _mm512_srli_epi64(c2, DIGIT_BITS));
    const vector_t q3 = LOW(zero, c3, inv);
    c3 = LOW(c3, q3, m0);
    if (q) q[k] = q0, q[k + 1] = q1, q[k + 2] = q2, q[k + 3] = q3;
    vector_t s0 = _mm512_add_epi64(t[k + 4], _mm512_srli_epi64(c3, DIGIT_BITS));
    vector_t s1 = t[k + 5], s2 = t[k + 6], s3 = t[k + 7], s4;
    UPPER_CORNER(m0, m1, m2, m3, q0, q1, q2, q3);
    for (int j = 4; j < n; j++) {
      const vector_t x = _mm512_set1_epi64((long long)m[j]);
      s4 = t[k + j + 4];
      SWEEP_STEP(x, q0, q1, q2, q3);
      t[k + j] = s0;
      s0 = s1; s1 = s2; s2 = s3; s3 = s4;
    }
    t[k + n] = s0; t[k + n + 1] = s1; t[k + n + 2] = s2; t[k + n + 3] = s3;
  }
  vector_t carry = zero;
  for (int j = 0; j < n; j++) {
    const vector_t sum = _mm512_add_epi64(t[n + j], carry);
    r[j] = _mm512_and_si512(sum, mask);
    carry = _mm512_srli_epi64(sum, DIGIT_BITS);
  }
}

INLINE_IFMA void multiply_sized(const modulus_t *mod, vector_t *r, const vector_t *a,
                                const vector_t *b, int n) {
  vector_t t[2 * MAX_LIMBS];
  full_product(t, a, b, n, 0);
  reduce(r, t, NULL, mod->m, mod->inverse, n);
}

INLINE_IFMA void square_sized(const modulus_t *mod, vector_t *r, const vector_t *a, int n) {
  vector_t t[2 * MAX_LIMBS];
  full_square(t, a, n);
  reduce(r, t, NULL, mod->m, mod->inverse, n);
}

/* r = (low + n high) / R modulo n^2, for columns of both: high gets R n - q, see above. */
INLINE_IFMA void reduce_root(const modulus_t *mod, vector_t *r, vector_t *low, vector_t *high,
                             int n) {
  const vector_t mask = _mm512_set1_epi64((long long)DIGIT_MASK), one = _mm512_set1_epi64(1);
  vector_t q[MAX_LIMBS / 2];
  reduce(r, low, q, mod->m, mod->inverse, n);
  for (int j = 0; j < n; j++) { /* (R - 1 - q) + 1 + R (n - 1) */
    high[j] = _mm512_add_epi64(high[j], _mm512_sub_epi64(mask, q[j]));
    high[n + j] = _mm512_add_epi64(high[n + j], _mm512_set1_epi64((long long)mod->m[j]));
  }
  high[0] = _mm512_add_epi64(high[0], one);
  high[n] = _mm512_sub_epi64(high[n], one);
  reduce(r + n, high, NULL, mod->m, mod->inverse, n);
}

INLINE_IFMA void multiply_root(const modulus_t *mod, vector_t *r, const vector_t *a,
                               const vector_t *b, int n) {
  vector_t low[MAX_LIMBS], high[MAX_LIMBS];
  full_product(low, a, b, n, 0);
  full_product(high, a, b + n, n, 0);
  full_product(high, a + n, b, n, 1);
  reduce_root(mod, r, low, high, n);
}

INLINE_IFMA void square_root(const modulus_t *mod, vector_t *r, const vector_t *a, int n) {
  vector_t low[MAX_LIMBS], high[MAX_LIMBS];
  full_square(low, a, n);
  full_product(high, a, a + n, n, 0);
  for (int j = 0; j < 2 * n; j++) high[j] = _mm512_slli_epi64(high[j], 1);
  reduce_root(mod, r, low, high, n);
}

/* r = v for a number of 2n words that is not in Montgomery form: v0 R^2/R + v1 R^3/R. */
TARGET_IFMA static void enter_root_ifma(const modulus_t *mod, vector_t *r, const vector_t *v,
                                        const vector_t *square, const vector_t *cube) {
  const int n = mod->half;
  vector_t low[MAX_LIMBS], high[MAX_LIMBS];
  full_product(low, v, square, n, 0);
  full_product(low, v + n, cube, n, 1);
  full_product(high, v, square + n, n, 0);
  full_product(high, v + n, cube + n, n, 1);
  reduce_root(mod, r, low, high, n);
}

/* r = a + n b, 2n words, for halves below n and the lanes of n. */
TARGET_IFMA static void join_root_ifma(const modulus_t *mod, vector_t *r, const vector_t *a,
                                       const vector_t *n) {
  const vector_t mask = _mm512_set1_epi64((long long)DIGIT_MASK);
  vector_t carry = _mm512_setzero_si512(), t[MAX_LIMBS];
  full_product(t, a + mod->half, n, mod->half, 0);
  for (int j = 0; j < mod->limbs; j++) {
    vector_t sum = _mm512_add_epi64(t[j], carry);
    if (j < mod->half) sum = _mm512_add_epi64(sum, a[j]);
    r[j] = _mm512_and_si512(sum, mask);
    carry = _mm512_srli_epi64(sum, DIGIT_BITS);
  }
}

/* The sizes of a 2048-bit key get code of their own, with the loop counts known. */
TARGET_IFMA __attribute__((noinline)) static void multiply_ifma(const modulus_t *mod, vector_t *r,
                                                                const vector_t *a,
                                                                const vector_t *b) {
  switch (mod->half) {
    case 0: multiply_sized(mod, r, a, b, mod->limbs); break;
    case 20: multiply_root(mod, r, a, b, 20); break;
    case 40: multiply_root(mod, r, a, b, 40); break;
    default: multiply_root(mod, r, a, b, mod->half);
  }
}

TARGET_IFMA __attribute__((noinline)) static void square_ifma(const modulus_t *mod, vector_t *r,
                                                              const vector_t *a) {
  switch (mod->half) {
    case 0: square_sized(mod, r, a, mod->limbs); break;
    case 20: square_root(mod, r, a, 20); break;
    case 40: square_root(mod, r, a, 40); break;
    default: square_root(mod, r, a, mod->half);
  }
}

/* Read eight residues into lanes: an 8 x 8 transposition for every eight limbs. */
TARGET_IFMA static void gather_ifma(const modulus_t *mod, vector_t *lanes,
                                    const uint64_t *const *from) {
  for (int j = 0; j < mod->limbs; j += 8) {
    const int count = mod->limbs - j < 8 ? 4 : 8;
    const __mmask8 keep = count == 8 ? 0xff : 0x0f;
    vector_t row[LANES], pair[LANES], quad[LANES];
    for (int l = 0; l < LANES; l++) row[l] = _mm512_maskz_loadu_epi64(keep, from[l] + j);
    for (int l = 0; l < LANES; l += 2) {
      pair[l] = _mm512_unpacklo_epi64(row[l], row[l + 1]);
      pair[l + 1] = _mm512_unpackhi_epi64(row[l], row[l + 1]);
    }
    for (int l = 0; l < LANES; l += 4) {
      for (int half = 0; half < 2; half++) {
        quad[l + half] = _mm512_shuffle_i64x2(pair[l + half], pair[l + half + 2], 0x88);
        quad[l + half + 2] = _mm512_shuffle_i64x2(pair[l + half], pair[l + half + 2], 0xdd);
      }
    }
    for (int c = 0; c < 4; c++) {
      lanes[j + c] = _mm512_shuffle_i64x2(quad[c], quad[c + 4], 0x88);
      if (count == 8) lanes[j + c + 4] = _mm512_shuffle_i64x2(quad[c], quad[c + 4], 0xdd);
    }
  }
}

#include "montgomery_avx2.h"

/* r = a b / R, r = a^2 / R, and so on, on the modulus' path. */
static void multiply_lanes(const modulus_t *mod, vector_t *r, const vector_t *a,
                           const vector_t *b) {
  (mod->path == IFMA ? multiply_ifma : multiply_avx2)(mod, r, a, b);
}

static void square_lanes(const modulus_t *mod, vector_t *r, const vector_t *a) {
  if (mod->path == IFMA)
    square_ifma(mod, r, a);
  else
    multiply_avx2(mod, r, a, NULL);
}

static void enter_root(const modulus_t *mod, vector_t *r, const vector_t *v,
                       const vector_t *square, const vector_t *cube) {
  (mod->path == IFMA ? enter_root_ifma : enter_root_avx2)(mod, r, v, square, cube);
}

static void join_root(const modulus_t *mod, vector_t *r, const vector_t *a, const vector_t *n) {
  (mod->path == IFMA ? join_root_ifma : join_root_avx2)(mod, r, a, n);
}

static void gather_lanes(const modulus_t *mod, vector_t *lanes, const uint64_t *const *from) {
  (mod->path == IFMA ? gather_ifma : gather_avx2)(mod, lanes, from);
}

/* Write, or read, the residue of one lane. */
static inline void put_lane(const modulus_t *mod, uint64_t *to, const vector_t *lanes, int lane) {
  const uint64_t *words = (const uint64_t *)lanes;
  for (int j = 0; j < mod->limbs; j++) to[j] = words[j * LANES + lane];
}

static inline void set_lane(const modulus_t *mod, vector_t *lanes, const uint64_t *from, int lane) {
  uint64_t *words = (uint64_t *)lanes;
  for (int j = 0; j < mod->limbs; j++) words[j * LANES + lane] = from[j];
}

static inline void prefetch_residue(const modulus_t *mod, const uint64_t *residue) {
  for (int j = 0; j < mod->limbs; j += 8) __builtin_prefetch(residue + j, 0, 2);
}

static int cpu_has(int path) {
  __builtin_cpu_init();
  if (path == AVX2) return __builtin_cpu_supports("avx2");
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512ifma");
}
#else
#define HAVE_VECTORS 0
static int cpu_has(int path) { return path == PORTABLE; }
#endif

#endif
