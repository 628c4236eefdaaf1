/* Products of eight residues on AVX2, four at a time. Included by montgomery.h.
 *
 * AVX2 multiplies 32 bits, so a word of 52 bits is cut into two digits of 26; between products
 * residues are the words that the other vector path has. A column is a sum of at most 4 * 160
 * products of digits, below 2^62. Everything else is as there, see montgomery.h.
 */

#define TARGET_AVX2 __attribute__((target("avx2")))
#define INLINE_AVX2 TARGET_AVX2 static inline __attribute__((always_inline))
#define CUT_BITS 26
#define CUT_MASK ((INT64_C(1) << CUT_BITS) - 1)

typedef __m256i digit_t; /* one digit, or column, of four residues */

#define TIMES(a, b) _mm256_mul_epu32(a, b)
#define PLUS(a, b) _mm256_add_epi64(a, b)
#define ADD(sum, a, b) (sum = PLUS(sum, TIMES(a, b)))

/* Lanes 0 to 3 (half 0) or 4 to 7 of n words, as 2n digits. */
INLINE_AVX2 void cut_words(digit_t *d, const vector_t *words, int half, int n) {
  const digit_t mask = _mm256_set1_epi64x(CUT_MASK);
  for (int j = 0; j < n; j++) {
    const digit_t word = ((const digit_t *)&words[j])[half];
    d[2 * j] = _mm256_and_si256(word, mask);
    d[2 * j + 1] = _mm256_srli_epi64(word, CUT_BITS);
  }
}

/* 2n columns -> n words; the carry out of the last is lost. */
INLINE_AVX2 void join_words(vector_t *words, const digit_t *t, int half, int n) {
  const digit_t mask = _mm256_set1_epi64x(CUT_MASK);
  digit_t carry = _mm256_setzero_si256();
  for (int j = 0; j < n; j++) {
    const digit_t low = PLUS(t[2 * j], carry);
    const digit_t high = PLUS(t[2 * j + 1], _mm256_srli_epi64(low, CUT_BITS));
    carry = _mm256_srli_epi64(high, CUT_BITS);
    ((digit_t *)&words[j])[half] =
        _mm256_or_si256(_mm256_and_si256(low, mask),
                        _mm256_slli_epi64(_mm256_and_si256(high, mask), CUT_BITS));
  }
}

/* t[0 .. 2n) = a b, or that is added to it: n digits each, no carries. */
INLINE_AVX2 void cut_product(digit_t *t, const digit_t *a, const digit_t *b, int n, int more) {
  const digit_t zero = _mm256_setzero_si256();
  for (int i = 0; i < 2 * n && !more; i++) t[i] = zero;
  for (int k = 0; k < n; k += 4) {
    const digit_t b0 = b[k], b1 = b[k + 1], b2 = b[k + 2], b3 = b[k + 3];
    digit_t s0 = t[k], s1 = t[k + 1], s2 = t[k + 2], s3;
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) {
      const digit_t x = a[j];
      s3 = t[k + j + 3];
      ADD(s0, x, b0), ADD(s1, x, b1), ADD(s2, x, b2), ADD(s3, x, b3);
      t[k + j] = s0;
      s0 = s1, s1 = s2, s2 = s3;
    }
    t[k + n] = s0, t[k + n + 1] = s1, t[k + n + 2] = s2;
  }
}

/* t[0 .. 2n) = a^2: products off the diagonal once, doubled, then the diagonal. */
INLINE_AVX2 void cut_square(digit_t *t, const digit_t *a, int n) {
  const digit_t zero = _mm256_setzero_si256();
  for (int i = 0; i < 2 * n; i++) t[i] = zero;
  for (int k = 0; k < n; k += 4) {
    const digit_t b0 = a[k], b1 = a[k + 1], b2 = a[k + 2], b3 = a[k + 3];
    digit_t *c = t + 2 * k;
    ADD(c[1], b0, b1), ADD(c[2], b0, b2), ADD(c[3], b0, b3), ADD(c[3], b1, b2);
    digit_t s0 = c[4], s1 = c[5], s2 = c[6], s3;
    ADD(s0, b1, b3), ADD(s1, b2, b3);
#pragma GCC unroll 4
    for (int j = k + 4; j < n; j++) {
      const digit_t x = a[j];
      s3 = t[k + j + 3];
      ADD(s0, x, b0), ADD(s1, x, b1), ADD(s2, x, b2), ADD(s3, x, b3);
      t[k + j] = s0;
      s0 = s1, s1 = s2, s2 = s3;
    }
    t[k + n] = s0, t[k + n + 1] = s1, t[k + n + 2] = s2;
  }
  for (int i = 0; i < n; i++) {
    t[2 * i] = PLUS(PLUS(t[2 * i], t[2 * i]), TIMES(a[i], a[i]));
    t[2 * i + 1] = PLUS(t[2 * i + 1], t[2 * i + 1]);
  }
}

/* t[n .. 2n) = (t + q m) / R as columns, from 2n of them; the n digits of q, if asked. */
INLINE_AVX2 void cut_reduce(digit_t *t, digit_t *q, const modulus_t *mod, int n) {
  const digit_t mask = _mm256_set1_epi64x(CUT_MASK);
  const digit_t inv = _mm256_set1_epi64x((long long)(mod->inverse & CUT_MASK));
  digit_t m[MAX_LIMBS * 2];
  for (int j = 0; j < n; j++)
    m[j] = _mm256_set1_epi64x((long long)(mod->m[j / 2] >> (j & 1) * CUT_BITS) & CUT_MASK);
  for (int k = 0; k < n; k += 4) {
    /* Four quotient digits, each needing the column below it to be final. */
    digit_t c0 = t[k], c1 = t[k + 1], c2 = t[k + 2], c3 = t[k + 3];
    const digit_t q0 = _mm256_and_si256(TIMES(c0, inv), mask);
    ADD(c0, q0, m[0]), ADD(c1, q0, m[1]), ADD(c2, q0, m[2]), ADD(c3, q0, m[3]);
    c1 = PLUS(c1, _mm256_srli_epi64(c0, CUT_BITS));
    const digit_t q1 = _mm256_and_si256(TIMES(c1, inv), mask);
    ADD(c1, q1, m[0]), ADD(c2, q1, m[1]), ADD(c3, q1, m[2]);
    c2 = PLUS(c2, _mm256_srli_epi64(c1, CUT_BITS));
    const digit_t q2 = _mm256_and_si256(TIMES(c2, inv), mask);
    ADD(c2, q2, m[0]), ADD(c3, q2, m[1]);
    c3 = PLUS(c3, _mm256_srli_epi64(c2, CUT_BITS));
    const digit_t q3 = _mm256_and_si256(TIMES(c3, inv), mask);
    ADD(c3, q3, m[0]);
    if (q) q[k] = q0, q[k + 1] = q1, q[k + 2] = q2, q[k + 3] = q3;
    digit_t s0 = PLUS(t[k + 4], _mm256_srli_epi64(c3, CUT_BITS)), s1 = t[k + 5], s2 = t[k + 6], s3;
    ADD(s0, q1, m[3]), ADD(s0, q2, m[2]), ADD(s0, q3, m[1]);
    ADD(s1, q2, m[3]), ADD(s1, q3, m[2]), ADD(s2, q3, m[3]);
#pragma GCC unroll 4
    for (int j = 4; j < n; j++) {
      const digit_t x = m[j];
      s3 = t[k + j + 3];
      ADD(s0, x, q0), ADD(s1, x, q1), ADD(s2, x, q2), ADD(s3, x, q3);
      t[k + j] = s0;
      s0 = s1, s1 = s2, s2 = s3;
    }
    t[k + n] = s0, t[k + n + 1] = s1, t[k + n + 2] = s2;
  }
}

/* As reduce_root: high gets R n - q. */
INLINE_AVX2 void cut_reduce_root(const modulus_t *mod, vector_t *r, digit_t *low, digit_t *high,
                                 int half, int n) {
  const digit_t mask = _mm256_set1_epi64x(CUT_MASK), one = _mm256_set1_epi64x(1);
  digit_t q[MAX_LIMBS];
  cut_reduce(low, q, mod, n);
  join_words(r, low + n, half, n / 2);
  for (int j = 0; j < n; j++) { /* (R - 1 - q) + 1 + R (n - 1) */
    const uint64_t digit = mod->m[j / 2] >> (j & 1) * CUT_BITS & CUT_MASK;
    high[j] = PLUS(high[j], _mm256_sub_epi64(mask, q[j]));
    high[n + j] = PLUS(high[n + j], _mm256_set1_epi64x((long long)digit));
  }
  high[0] = PLUS(high[0], one);
  high[n] = _mm256_sub_epi64(high[n], one);
  cut_reduce(high, NULL, mod, n);
  join_words(r + n / 2, high + n, half, n / 2);
}

/* r = a b / R; b NULL: a^2 / R */
INLINE_AVX2 void cut_multiply(const modulus_t *mod, vector_t *r, const vector_t *a,
                              const vector_t *b, int words) {
  digit_t x[2 * MAX_LIMBS], y[2 * MAX_LIMBS], t[4 * MAX_LIMBS];
  for (int half = 0; half < 2; half++) {
    cut_words(x, a, half, words);
    if (b) {
      cut_words(y, b, half, words);
      cut_product(t, x, y, 2 * words, 0);
    } else {
      cut_square(t, x, 2 * words);
    }
    cut_reduce(t, NULL, mod, 2 * words);
    join_words(r, t + 2 * words, half, words);
  }
}

INLINE_AVX2 void cut_multiply_root(const modulus_t *mod, vector_t *r, const vector_t *a,
                                   const vector_t *b, int words) {
  const int n = 2 * words;
  digit_t x[2 * MAX_LIMBS], y[2 * MAX_LIMBS], low[2 * MAX_LIMBS], high[2 * MAX_LIMBS];
  for (int half = 0; half < 2; half++) {
    cut_words(x, a, half, n);
    if (b) {
      cut_words(y, b, half, n);
      cut_product(low, x, y, n, 0);
      cut_product(high, x, y + n, n, 0);
      cut_product(high, x + n, y, n, 1);
    } else {
      cut_square(low, x, n);
      cut_product(high, x, x + n, n, 0);
      for (int j = 0; j < 2 * n; j++) high[j] = PLUS(high[j], high[j]);
    }
    cut_reduce_root(mod, r, low, high, half, n);
  }
}

TARGET_AVX2 static void enter_root_avx2(const modulus_t *mod, vector_t *r, const vector_t *v,
                                        const vector_t *square, const vector_t *cube) {
  const int n = 2 * mod->half;
  digit_t x[2 * MAX_LIMBS], y[2 * MAX_LIMBS], z[2 * MAX_LIMBS], low[2 * MAX_LIMBS],
      high[2 * MAX_LIMBS];
  for (int half = 0; half < 2; half++) {
    cut_words(x, v, half, n);
    cut_words(y, square, half, n);
    cut_words(z, cube, half, n);
    cut_product(low, x, y, n, 0);
    cut_product(low, x + n, z, n, 1);
    cut_product(high, x, y + n, n, 0);
    cut_product(high, x + n, z + n, n, 1);
    cut_reduce_root(mod, r, low, high, half, n);
  }
}

TARGET_AVX2 static void join_root_avx2(const modulus_t *mod, vector_t *r, const vector_t *a,
                                       const vector_t *root) {
  const int n = 2 * mod->half;
  digit_t x[2 * MAX_LIMBS], y[MAX_LIMBS], t[2 * MAX_LIMBS];
  for (int half = 0; half < 2; half++) {
    cut_words(x, a, half, n);
    cut_words(y, root, half, mod->half);
    cut_product(t, x + n, y, n, 0);
    for (int j = 0; j < n; j++) t[j] = PLUS(t[j], x[j]);
    join_words(r, t, half, n);
  }
}

/* As multiply_lanes; b NULL: the square. */
TARGET_AVX2 __attribute__((noinline)) static void multiply_avx2(const modulus_t *mod, vector_t *r,
                                                                const vector_t *a,
                                                                const vector_t *b) {
  switch (mod->half) {
    case 0: cut_multiply(mod, r, a, b, mod->limbs); break;
    case 20: cut_multiply_root(mod, r, a, b, 20); break;
    case 40: cut_multiply_root(mod, r, a, b, 40); break;
    default: cut_multiply_root(mod, r, a, b, mod->half);
  }
}

/* Read eight residues into lanes, as gather_ifma. */
TARGET_AVX2 static void gather_avx2(const modulus_t *mod, vector_t *lanes,
                                    const uint64_t *const *from) {
  for (int j = 0; j < mod->limbs; j += 4) {
    for (int half = 0; half < 2; half++) {
      digit_t row[4], pair[4];
      for (int l = 0; l < 4; l++)
        row[l] = _mm256_loadu_si256((const digit_t *)(from[4 * half + l] + j));
      for (int l = 0; l < 4; l += 2) {
        pair[l] = _mm256_unpacklo_epi64(row[l], row[l + 1]);
        pair[l + 1] = _mm256_unpackhi_epi64(row[l], row[l + 1]);
      }
      for (int c = 0; c < 2; c++) {
        ((digit_t *)&lanes[j + c])[half] = _mm256_permute2x128_si256(pair[c], pair[c + 2], 0x20);
        ((digit_t *)&lanes[j + c + 2])[half] =
            _mm256_permute2x128_si256(pair[c], pair[c + 2], 0x31);
      }
    }
  }
}

#undef TIMES
#undef PLUS
#undef ADD
