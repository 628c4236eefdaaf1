/* Arithmetic modulo p = 2^255 - 19 in eight lanes. Included once for each backend.
 *
 * An fe8 holds eight field elements in radix 2^51, limb by limb. Two bounds matter:
 *   carried: every limb below 2^51 + 2^17; what every multiplication takes and every function
 *            gives, unless it says otherwise (IFMA multiplies the low 52 bits of a limb);
 *   wide:    every limb below 2^61; products before their carry, to be added and subtracted
 *            before they are carried once.
 * The IFMA backend multiplies eight lanes at a time, AVX2 four; the portable one lane by lane in
 * 128 bits.
 * Everything else is written once in GCC's vector extension.
 */

#define FE_P0 0x7FFFFFFFFFFEDULL /* limb 0 of p */
#define FE_P1 0x7FFFFFFFFFFFFULL /* limbs 1 to 4 of p, and the mask of a limb */

INLINE v8 FN(splat)(uint64_t x) { return (v8){x, x, x, x, x, x, x, x}; }

#ifdef CURVE_IFMA
#define LO(acc, a, b) ((v8)_mm512_madd52lo_epu64((__m512i)(acc), (__m512i)(a), (__m512i)(b)))
#define HI(acc, a, b) ((v8)_mm512_madd52hi_epu64((__m512i)(acc), (__m512i)(a), (__m512i)(b)))
#define PLUS_19(acc, c) LO(acc, c, FN(splat)(19)) /* c below 2^52 */
#else
#define PLUS_19(acc, c) ((acc) + ((c) << 4) + ((c) << 1) + (c))
#endif

/* wide -> carried */
INLINE void FN(carry)(fe8 *r, const fe8 *w) {
    const v8 m = FN(splat)(FE_P1);
    v8 c0 = w->l[0] >> 51, c1 = w->l[1] >> 51, c2 = w->l[2] >> 51, c3 = w->l[3] >> 51,
       c4 = w->l[4] >> 51;
    v8 r0 = w->l[0] & m;
    r->l[0] = PLUS_19(r0, c4);
    r->l[1] = (w->l[1] & m) + c0;
    r->l[2] = (w->l[2] & m) + c1;
    r->l[3] = (w->l[3] & m) + c2;
    r->l[4] = (w->l[4] & m) + c3;
}

#ifdef CURVE_IFMA

/* The high half of a limb product weighs 2^52 = 2 * 2^51 of its column. */
INLINE void FN(fold)(fe8 *w, const v8 *lo, const v8 *hi) {
    v8 c[10];
    c[0] = lo[0];
    UNROLL for (int i = 1; i < 9; i++) c[i] = lo[i] + (hi[i] << 1);
    c[9] = hi[9] << 1;
    UNROLL for (int i = 0; i < 5; i++)
        w->l[i] = c[i] + ((c[i + 5] << 4) + (c[i + 5] << 1)) + c[i + 5];
}

INLINE void FN(mul_wide)(fe8 *w, const fe8 *a, const fe8 *b) {
    v8 lo[9], hi[10];
    UNROLL for (int i = 0; i < 9; i++) lo[i] = FN(splat)(0);
    UNROLL for (int i = 0; i < 10; i++) hi[i] = FN(splat)(0);
    UNROLL for (int i = 0; i < 5; i++) {
        UNROLL for (int j = 0; j < 5; j++) {
            lo[i + j] = LO(lo[i + j], a->l[i], b->l[j]);
            hi[i + j + 1] = HI(hi[i + j + 1], a->l[i], b->l[j]);
        }
    }
    FN(fold)(w, lo, hi);
}

INLINE void FN(sqr_wide)(fe8 *w, const fe8 *a) {
    v8 lo[9], hi[10];
    UNROLL for (int i = 0; i < 9; i++) lo[i] = FN(splat)(0);
    UNROLL for (int i = 0; i < 10; i++) hi[i] = FN(splat)(0);
    UNROLL for (int i = 0; i < 5; i++) {
        UNROLL for (int j = i + 1; j < 5; j++) {
            lo[i + j] = LO(lo[i + j], a->l[i], a->l[j]);
            hi[i + j + 1] = HI(hi[i + j + 1], a->l[i], a->l[j]);
        }
    }
    UNROLL for (int i = 0; i < 9; i++) lo[i] = lo[i] << 1;
    UNROLL for (int i = 0; i < 10; i++) hi[i] = hi[i] << 1;
    UNROLL for (int i = 0; i < 5; i++) {
        lo[2 * i] = LO(lo[2 * i], a->l[i], a->l[i]);
        hi[2 * i + 1] = HI(hi[2 * i + 1], a->l[i], a->l[i]);
    }
    FN(fold)(w, lo, hi);
}

/* w = add + k * a; add wide, k below 2^17 */
INLINE void FN(mul_small_wide)(fe8 *w, const fe8 *add, const fe8 *a, uint64_t k) {
    const v8 kk = FN(splat)(k), zero = FN(splat)(0);
    v8 hi[5];
    UNROLL for (int i = 0; i < 5; i++) hi[i] = HI(zero, a->l[i], kk) << 1;
    v8 w0 = LO(add->l[0], a->l[0], kk);
    w->l[0] = PLUS_19(w0, hi[4]);
    UNROLL for (int i = 1; i < 5; i++) w->l[i] = LO(add->l[i], a->l[i], kk) + hi[i - 1];
}

/* Eight rows of eight words, transposed into vectors of one word each. */
#define TRANSPOSE(r)                                                                            \
    do {                                                                                        \
        __m512i a0 = _mm512_unpacklo_epi64(r[0], r[1]), a1 = _mm512_unpackhi_epi64(r[0], r[1]); \
        __m512i a2 = _mm512_unpacklo_epi64(r[2], r[3]), a3 = _mm512_unpackhi_epi64(r[2], r[3]); \
        __m512i a4 = _mm512_unpacklo_epi64(r[4], r[5]), a5 = _mm512_unpackhi_epi64(r[4], r[5]); \
        __m512i a6 = _mm512_unpacklo_epi64(r[6], r[7]), a7 = _mm512_unpackhi_epi64(r[6], r[7]); \
        __m512i c0 = _mm512_shuffle_i64x2(a0, a2, 0x88), c2 = _mm512_shuffle_i64x2(a0, a2, 0xdd); \
        __m512i c1 = _mm512_shuffle_i64x2(a1, a3, 0x88), c3 = _mm512_shuffle_i64x2(a1, a3, 0xdd); \
        __m512i c4 = _mm512_shuffle_i64x2(a4, a6, 0x88), c6 = _mm512_shuffle_i64x2(a4, a6, 0xdd); \
        __m512i c5 = _mm512_shuffle_i64x2(a5, a7, 0x88), c7 = _mm512_shuffle_i64x2(a5, a7, 0xdd); \
        r[0] = _mm512_shuffle_i64x2(c0, c4, 0x88);                                              \
        r[4] = _mm512_shuffle_i64x2(c0, c4, 0xdd);                                              \
        r[1] = _mm512_shuffle_i64x2(c1, c5, 0x88);                                              \
        r[5] = _mm512_shuffle_i64x2(c1, c5, 0xdd);                                              \
        r[2] = _mm512_shuffle_i64x2(c2, c6, 0x88);                                              \
        r[6] = _mm512_shuffle_i64x2(c2, c6, 0xdd);                                              \
        r[3] = _mm512_shuffle_i64x2(c3, c7, 0x88);                                              \
        r[7] = _mm512_shuffle_i64x2(c3, c7, 0xdd);                                              \
    } while (0)

INLINE void FN(load_rows)(v8 *out, const uint64_t *const rows[8], int word) {
    __m512i r[8];
    UNROLL for (int i = 0; i < 8; i++) r[i] = _mm512_loadu_si512((const void *)(rows[i] + word));
    TRANSPOSE(r);
    UNROLL for (int i = 0; i < 8; i++) out[i] = (v8)r[i];
}

INLINE void FN(store_rows)(uint64_t *const rows[8], int word, const v8 *in) {
    __m512i r[8];
    UNROLL for (int i = 0; i < 8; i++) r[i] = (__m512i)in[i];
    TRANSPOSE(r);
    UNROLL for (int i = 0; i < 8; i++) _mm512_storeu_si512((void *)(rows[i] + word), r[i]);
}

#elif defined(CURVE_AVX2)

#include "curve_avx2.h"

#else /* portable */

/* 128-bit columns of one lane -> wide limbs */
#define FOLD_LANE(w, lane, t0, t1, t2, t3, t4)                      \
    do {                                                            \
        t1 += (uint64_t)(t0 >> 51);                                 \
        t2 += (uint64_t)(t1 >> 51);                                 \
        t3 += (uint64_t)(t2 >> 51);                                 \
        t4 += (uint64_t)(t3 >> 51);                                 \
        (w)->l[0][lane] = ((uint64_t)t0 & FE_P1) + 19 * (uint64_t)(t4 >> 51); \
        (w)->l[1][lane] = (uint64_t)t1 & FE_P1;                     \
        (w)->l[2][lane] = (uint64_t)t2 & FE_P1;                     \
        (w)->l[3][lane] = (uint64_t)t3 & FE_P1;                     \
        (w)->l[4][lane] = (uint64_t)t4 & FE_P1;                     \
    } while (0)

static void FN(mul_wide)(fe8 *w, const fe8 *a, const fe8 *b) {
    for (int lane = 0; lane < 8; lane++) {
        uint64_t a0 = a->l[0][lane], a1 = a->l[1][lane], a2 = a->l[2][lane], a3 = a->l[3][lane],
                 a4 = a->l[4][lane];
        uint64_t b0 = b->l[0][lane], b1 = b->l[1][lane], b2 = b->l[2][lane], b3 = b->l[3][lane],
                 b4 = b->l[4][lane];
        uint64_t d1 = 19 * b1, d2 = 19 * b2, d3 = 19 * b3, d4 = 19 * b4;
        u128 t0 = (u128)a0 * b0 + (u128)a1 * d4 + (u128)a2 * d3 + (u128)a3 * d2 + (u128)a4 * d1;
        u128 t1 = (u128)a0 * b1 + (u128)a1 * b0 + (u128)a2 * d4 + (u128)a3 * d3 + (u128)a4 * d2;
        u128 t2 = (u128)a0 * b2 + (u128)a1 * b1 + (u128)a2 * b0 + (u128)a3 * d4 + (u128)a4 * d3;
        u128 t3 = (u128)a0 * b3 + (u128)a1 * b2 + (u128)a2 * b1 + (u128)a3 * b0 + (u128)a4 * d4;
        u128 t4 = (u128)a0 * b4 + (u128)a1 * b3 + (u128)a2 * b2 + (u128)a3 * b1 + (u128)a4 * b0;
        FOLD_LANE(w, lane, t0, t1, t2, t3, t4);
    }
}

static void FN(sqr_wide)(fe8 *w, const fe8 *a) {
    for (int lane = 0; lane < 8; lane++) {
        uint64_t a0 = a->l[0][lane], a1 = a->l[1][lane], a2 = a->l[2][lane], a3 = a->l[3][lane],
                 a4 = a->l[4][lane];
        uint64_t e0 = 2 * a0, e1 = 2 * a1, d3 = 19 * a3, d4 = 19 * a4;
        u128 t0 = (u128)a0 * a0 + (u128)(2 * a1) * d4 + (u128)(2 * a2) * d3;
        u128 t1 = (u128)e0 * a1 + (u128)(2 * a2) * d4 + (u128)a3 * d3;
        u128 t2 = (u128)e0 * a2 + (u128)a1 * a1 + (u128)(2 * a3) * d4;
        u128 t3 = (u128)e0 * a3 + (u128)e1 * a2 + (u128)a4 * d4;
        u128 t4 = (u128)e0 * a4 + (u128)e1 * a3 + (u128)a2 * a2;
        FOLD_LANE(w, lane, t0, t1, t2, t3, t4);
    }
}

static void FN(mul_small_wide)(fe8 *w, const fe8 *add, const fe8 *a, uint64_t k) {
    for (int lane = 0; lane < 8; lane++) {
        u128 t0 = (u128)a->l[0][lane] * k + add->l[0][lane];
        u128 t1 = (u128)a->l[1][lane] * k + add->l[1][lane];
        u128 t2 = (u128)a->l[2][lane] * k + add->l[2][lane];
        u128 t3 = (u128)a->l[3][lane] * k + add->l[3][lane];
        u128 t4 = (u128)a->l[4][lane] * k + add->l[4][lane];
        FOLD_LANE(w, lane, t0, t1, t2, t3, t4);
    }
}

INLINE void FN(load_rows)(v8 *out, const uint64_t *const rows[8], int word) {
    for (int i = 0; i < 8; i++)
        for (int lane = 0; lane < 8; lane++) out[i][lane] = rows[lane][word + i];
}

INLINE void FN(store_rows)(uint64_t *const rows[8], int word, const v8 *in) {
    for (int lane = 0; lane < 8; lane++)
        for (int i = 0; i < 8; i++) rows[lane][word + i] = in[i][lane];
}

#endif

INLINE void FN(mul)(fe8 *r, const fe8 *a, const fe8 *b) {
    fe8 w;
    FN(mul_wide)(&w, a, b);
    FN(carry)(r, &w);
}

INLINE void FN(sqr)(fe8 *r, const fe8 *a) {
    fe8 w;
    FN(sqr_wide)(&w, a);
    FN(carry)(r, &w);
}

/* Sums and differences of wide limbs, still wide below 2^63, to be carried next. */
INLINE void FN(sum)(fe8 *w, const fe8 *a, const fe8 *b) {
    UNROLL for (int i = 0; i < 5; i++) w->l[i] = a->l[i] + b->l[i];
}

INLINE void FN(difference)(fe8 *w, const fe8 *a, const fe8 *b) {
    /* 2^11 p, each limb above any wide limb */
    w->l[0] = a->l[0] + FN(splat)(FE_P0 << 11) - b->l[0];
    UNROLL for (int i = 1; i < 5; i++) w->l[i] = a->l[i] + FN(splat)(FE_P1 << 11) - b->l[i];
}

INLINE void FN(add)(fe8 *r, const fe8 *a, const fe8 *b) {
    fe8 w;
    FN(sum)(&w, a, b);
    FN(carry)(r, &w);
}

INLINE void FN(sub)(fe8 *r, const fe8 *a, const fe8 *b) {
    fe8 w;
    FN(difference)(&w, a, b);
    FN(carry)(r, &w);
}

INLINE void FN(set)(fe8 *r, const uint64_t *limbs) {
    UNROLL for (int i = 0; i < 5; i++) r->l[i] = FN(splat)(limbs[i]);
}

INLINE void FN(neg)(fe8 *r, const fe8 *a) {
    fe8 zero;
    FN(set)(&zero, FE_ZERO);
    FN(sub)(r, &zero, a);
}

/* Lane by lane, `yes` where the mask is all ones; vectors never travel by value. */
INLINE void FN(choose)(fe8 *r, const v8 *mask, const fe8 *yes, const fe8 *no) {
    UNROLL for (int i = 0; i < 5; i++) r->l[i] = SELECT(*mask, yes->l[i], no->l[i]);
}

/* The representative in 0 .. p - 1. */
INLINE void FN(freeze)(fe8 *r, const fe8 *a) {
    const v8 m = FN(splat)(FE_P1);
    fe8 t;
    FN(carry)(&t, a);
    v8 q = (t.l[0] + FN(splat)(19)) >> 51;
    UNROLL for (int i = 1; i < 5; i++) q = (t.l[i] + q) >> 51;
    v8 c = PLUS_19(FN(splat)(0), q);
    UNROLL for (int i = 0; i < 5; i++) {
        v8 s = t.l[i] + c;
        r->l[i] = s & m;
        c = s >> 51;
    }
}

/* Masks: all ones where the statement holds. */
INLINE v8 FN(is_zero)(const fe8 *a) {
    fe8 t;
    FN(freeze)(&t, a);
    return (v8)((t.l[0] | t.l[1] | t.l[2] | t.l[3] | t.l[4]) == FN(splat)(0));
}

INLINE v8 FN(equal)(const fe8 *a, const fe8 *b) {
    fe8 d;
    FN(sub)(&d, a, b);
    return FN(is_zero)(&d);
}

INLINE v8 FN(is_negative)(const fe8 *a) {
    fe8 t;
    FN(freeze)(&t, a);
    return FN(splat)(0) - (t.l[0] & FN(splat)(1));
}

INLINE void FN(absolute)(fe8 *r, const fe8 *a) {
    fe8 minus;
    v8 negative = FN(is_negative)(a);
    FN(neg)(&minus, a);
    FN(choose)(r, &negative, &minus, a);
}

/* Rows of 32 bytes, little-endian; the top bit is dropped. */
static void FN(from_bytes)(fe8 *r, const uint8_t *const rows[8]) {
    uint64_t limbs[5][8];
    for (int lane = 0; lane < 8; lane++) {
        uint64_t w[4];
        memcpy(w, rows[lane], 32);
        limbs[0][lane] = w[0] & FE_P1;
        limbs[1][lane] = (w[0] >> 51 | w[1] << 13) & FE_P1;
        limbs[2][lane] = (w[1] >> 38 | w[2] << 26) & FE_P1;
        limbs[3][lane] = (w[2] >> 25 | w[3] << 39) & FE_P1;
        limbs[4][lane] = (w[3] >> 12) & FE_P1;
    }
    memcpy(r, limbs, sizeof limbs);
}

static void FN(to_bytes)(uint8_t *const rows[8], const fe8 *a) {
    fe8 t;
    FN(freeze)(&t, a);
    for (int lane = 0; lane < 8; lane++) {
        uint64_t x0 = t.l[0][lane], x1 = t.l[1][lane], x2 = t.l[2][lane], x3 = t.l[3][lane],
                 x4 = t.l[4][lane];
        uint64_t w[4] = {x0 | x1 << 51, x1 >> 13 | x2 << 38, x2 >> 26 | x3 << 25,
                         x3 >> 39 | x4 << 12};
        memcpy(rows[lane], w, 32);
    }
}

/* --- powers: two vectors at a time, so that one hides the other's latency ------------------- */

static void FN(square_times)(fe8 r[2], const fe8 a[2], int times) {
    fe8 s = a[0], t = a[1];
    for (int i = 0; i < times; i++) {
        FN(sqr)(&s, &s);
        FN(sqr)(&t, &t);
    }
    r[0] = s;
    r[1] = t;
}

static void FN(mul2)(fe8 r[2], const fe8 a[2], const fe8 b[2]) {
    FN(mul)(&r[0], &a[0], &b[0]);
    FN(mul)(&r[1], &a[1], &b[1]);
}

/* z^(2^250 - 1), and z^11 on the way */
static void FN(power_250)(fe8 r[2], fe8 z11[2], const fe8 z[2]) {
    fe8 t[2], z9[2], a[2], b[2], c[2];
    FN(square_times)(a, z, 1); /* z^2 */
    FN(square_times)(t, a, 2);
    FN(mul2)(z9, t, z);
    FN(mul2)(z11, z9, a);
    FN(square_times)(t, z11, 1);
    FN(mul2)(a, t, z9); /* 2^5 - 1 */
    FN(square_times)(t, a, 5);
    FN(mul2)(a, t, a); /* 2^10 - 1 */
    FN(square_times)(t, a, 10);
    FN(mul2)(b, t, a); /* 2^20 - 1 */
    FN(square_times)(t, b, 20);
    FN(mul2)(t, t, b); /* 2^40 - 1 */
    FN(square_times)(t, t, 10);
    FN(mul2)(b, t, a); /* 2^50 - 1 */
    FN(square_times)(t, b, 50);
    FN(mul2)(c, t, b); /* 2^100 - 1 */
    FN(square_times)(t, c, 100);
    FN(mul2)(t, t, c); /* 2^200 - 1 */
    FN(square_times)(t, t, 50);
    FN(mul2)(r, t, b);
}

/* z^(p - 2) */
static void FN(invert)(fe8 *r, const fe8 *z) {
    fe8 in[2] = {*z, *z}, t[2], z11[2];
    FN(power_250)(t, z11, in);
    FN(square_times)(t, t, 5);
    FN(mul)(r, &t[0], &z11[0]);
}

/* z^((p - 1) / 2): 0, 1 or p - 1 */
static void FN(legendre)(fe8 r[2], const fe8 z[2]) {
    fe8 t[2], z11[2], z2[2], z4[2];
    FN(power_250)(t, z11, z);
    FN(square_times)(t, t, 4);
    FN(square_times)(z2, z, 1);
    FN(square_times)(z4, z2, 1);
    FN(mul2)(z4, z4, z2);
    FN(mul2)(r, t, z4);
}

/* z^((p - 5) / 8) */
static void FN(power_p58)(fe8 r[2], const fe8 z[2]) {
    fe8 t[2], z11[2];
    FN(power_250)(t, z11, z);
    FN(square_times)(t, t, 2);
    FN(mul2)(r, t, z);
}

/* Inverts z[0..n), n at most BATCH; zero stays zero. */
static void FN(batch_invert)(fe8 *z, int n) {
    fe8 products[BATCH], acc, one, inverse;
    v8 zeros[BATCH];
    FN(set)(&one, FE_ONE);
    acc = one;
    for (int i = 0; i < n; i++) {
        zeros[i] = FN(is_zero)(&z[i]);
        FN(choose)(&z[i], &zeros[i], &one, &z[i]);
        products[i] = acc;
        FN(mul)(&acc, &acc, &z[i]);
    }
    FN(invert)(&inverse, &acc);
    for (int i = n - 1; i >= 0; i--) {
        fe8 t;
        FN(mul)(&t, &inverse, &products[i]);
        FN(mul)(&inverse, &inverse, &z[i]);
        for (int k = 0; k < 5; k++) z[i].l[k] = t.l[k] & ~zeros[i];
    }
}
