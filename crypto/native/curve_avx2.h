/* Multiplication on AVX2, four lanes at a time. Included by curve_field.h for that backend.
 *
 * AVX2 multiplies 32 bits, so a limb of 51 bits is cut into 26 and 25 (radix 2^25.5). A product of
 * two odd parts weighs twice its column; columns from the tenth on come back times 19. Parts are
 * below 2^26, times 19 below 2^31, so a column is below 2^60.
 */

typedef __m256i v4;

#define TIMES(a, b) _mm256_mul_epu32(a, b)
#define PLUS(a, b) _mm256_add_epi64(a, b)
#define HALVES(limb) ((v4 *)&(limb))
#define CONST_HALVES(limb) ((const v4 *)&(limb))

/* Lanes 0 to 3, or 4 to 7, as ten parts. */
INLINE void FN(parts)(v4 x[10], const fe8 *a, int half) {
    const v4 low = _mm256_set1_epi64x((1 << 26) - 1);
    UNROLL for (int i = 0; i < 5; i++) {
        const v4 limb = CONST_HALVES(a->l[i])[half];
        x[2 * i] = _mm256_and_si256(limb, low);
        x[2 * i + 1] = _mm256_srli_epi64(limb, 26);
    }
}

/* Ten columns -> wide limbs, added to `add` where there is one. */
INLINE void FN(join)(fe8 *w, const v4 t[10], const fe8 *add, int half) {
    const v4 low = _mm256_set1_epi64x((1 << 25) - 1);
    v4 up = _mm256_srli_epi64(t[9], 25);
    up = PLUS(PLUS(_mm256_slli_epi64(up, 4), _mm256_slli_epi64(up, 1)), up);
    UNROLL for (int i = 0; i < 5; i++) {
        v4 limb = PLUS(t[2 * i], up);
        if (add) limb = PLUS(limb, CONST_HALVES(add->l[i])[half]);
        up = _mm256_srli_epi64(t[2 * i + 1], 25);
        HALVES(w->l[i])[half] =
            PLUS(limb, _mm256_slli_epi64(_mm256_and_si256(t[2 * i + 1], low), 26));
    }
}

static void FN(mul_wide)(fe8 *w, const fe8 *a, const fe8 *b) {
    const v4 nineteen = _mm256_set1_epi64x(19);
    for (int half = 0; half < 2; half++) {
        v4 x[10], y[10], y19[10], t[10];
        FN(parts)(x, a, half);
        FN(parts)(y, b, half);
        UNROLL for (int j = 1; j < 10; j++) y19[j] = TIMES(y[j], nineteen);
        UNROLL for (int j = 0; j < 10; j++) t[j] = TIMES(x[0], y[j]);
        UNROLL for (int i = 1; i < 10; i++) {
            const v4 twice = PLUS(x[i], x[i]);
            UNROLL for (int j = 0; j < 10; j++) {
                const v4 xi = i & j & 1 ? twice : x[i];
                const int k = i + j < 10 ? i + j : i + j - 10;
                t[k] = PLUS(t[k], TIMES(xi, i + j < 10 ? y[j] : y19[j]));
            }
        }
        FN(join)(w, t, NULL, half);
    }
}

static void FN(sqr_wide)(fe8 *w, const fe8 *a) {
    const v4 nineteen = _mm256_set1_epi64x(19), zero = _mm256_setzero_si256();
    for (int half = 0; half < 2; half++) {
        v4 x[10], x19[10], t[10];
        FN(parts)(x, a, half);
        UNROLL for (int j = 5; j < 10; j++) x19[j] = TIMES(x[j], nineteen);
        UNROLL for (int k = 0; k < 10; k++) t[k] = zero;
        UNROLL for (int i = 0; i < 10; i++) {
            const v4 twice = PLUS(x[i], x[i]), four = PLUS(twice, twice);
            UNROLL for (int j = i; j < 10; j++) {
                const v4 once = i & j & 1 ? twice : x[i], both = i & j & 1 ? four : twice;
                const int k = i + j < 10 ? i + j : i + j - 10;
                t[k] = PLUS(t[k], TIMES(i == j ? once : both, i + j < 10 ? x[j] : x19[j]));
            }
        }
        FN(join)(w, t, NULL, half);
    }
}

/* w = add + k * a; add wide, k below 2^17 */
static void FN(mul_small_wide)(fe8 *w, const fe8 *add, const fe8 *a, uint64_t k) {
    const v4 kk = _mm256_set1_epi64x((long long)k);
    for (int half = 0; half < 2; half++) {
        v4 t[10];
        FN(parts)(t, a, half);
        UNROLL for (int i = 0; i < 10; i++) t[i] = TIMES(t[i], kk);
        FN(join)(w, t, add, half);
    }
}

/* Four words of four rows, transposed. */
INLINE void FN(transpose)(v4 out[4], v4 a, v4 b, v4 c, v4 d) {
    const v4 ab0 = _mm256_unpacklo_epi64(a, b), ab1 = _mm256_unpackhi_epi64(a, b);
    const v4 cd0 = _mm256_unpacklo_epi64(c, d), cd1 = _mm256_unpackhi_epi64(c, d);
    out[0] = _mm256_permute2x128_si256(ab0, cd0, 0x20);
    out[1] = _mm256_permute2x128_si256(ab1, cd1, 0x20);
    out[2] = _mm256_permute2x128_si256(ab0, cd0, 0x31);
    out[3] = _mm256_permute2x128_si256(ab1, cd1, 0x31);
}

INLINE void FN(load_rows)(v8 *out, const uint64_t *const rows[8], int word) {
    UNROLL for (int block = 0; block < 4; block++) {
        const int half = block & 1, first = block & 2 ? 4 : 0;
        v4 r[4], columns[4];
        UNROLL for (int i = 0; i < 4; i++)
            r[i] = _mm256_loadu_si256((const v4 *)(rows[4 * half + i] + word + first));
        FN(transpose)(columns, r[0], r[1], r[2], r[3]);
        UNROLL for (int i = 0; i < 4; i++) HALVES(out[first + i])[half] = columns[i];
    }
}

INLINE void FN(store_rows)(uint64_t *const rows[8], int word, const v8 *in) {
    UNROLL for (int block = 0; block < 4; block++) {
        const int half = block & 1, first = block & 2 ? 4 : 0;
        const v8 *from = in + first;
        v4 r[4];
        FN(transpose)(r, CONST_HALVES(from[0])[half], CONST_HALVES(from[1])[half],
                      CONST_HALVES(from[2])[half], CONST_HALVES(from[3])[half]);
        UNROLL for (int i = 0; i < 4; i++)
            _mm256_storeu_si256((v4 *)(rows[4 * half + i] + word + first), r[i]);
    }
}

#undef TIMES
#undef PLUS
#undef HALVES
#undef CONST_HALVES
