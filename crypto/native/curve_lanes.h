/* Points and batch kernels in eight lanes. Included once for each backend, after curve_field.h.
 *
 * Storage of points, in 64-bit words, limbs carried:
 *   extended, 24 words: X, Y, Z, T (five limbs each) and four words of padding;
 *   niels, 16 words: y - x, y + x, 2dxy (five limbs each) and one word of padding.
 */

typedef struct {
    fe8 X, Y, Z, T;
} FN(ge);
typedef struct {
    fe8 ym, yp, t2d;
} FN(niels);
typedef struct {
    fe8 ym, yp, z2, t2d;
} FN(cached);

#define ge FN(ge)
#define niels FN(niels)
#define cached FN(cached)

/* --- storage -------------------------------------------------------------------------------- */

INLINE void FN(load_niels)(niels *q, const uint64_t *const rows[8]) {
    v8 w[16];
    FN(load_rows)(w, rows, 0);
    FN(load_rows)(w + 8, rows, 8);
    UNROLL for (int i = 0; i < 5; i++) {
        q->ym.l[i] = w[i];
        q->yp.l[i] = w[5 + i];
        q->t2d.l[i] = w[10 + i];
    }
}

static void FN(store_niels)(uint64_t *const rows[8], const niels *q) {
    v8 w[16];
    for (int i = 0; i < 5; i++) {
        w[i] = q->ym.l[i];
        w[5 + i] = q->yp.l[i];
        w[10 + i] = q->t2d.l[i];
    }
    w[15] = FN(splat)(0);
    FN(store_rows)(rows, 0, w);
    FN(store_rows)(rows, 8, w + 8);
}

static void FN(load_ge)(ge *p, const uint64_t *const rows[8]) {
    v8 w[24];
    for (int i = 0; i < 24; i += 8) FN(load_rows)(w + i, rows, i);
    for (int i = 0; i < 5; i++) {
        p->X.l[i] = w[i];
        p->Y.l[i] = w[5 + i];
        p->Z.l[i] = w[10 + i];
        p->T.l[i] = w[15 + i];
    }
}

static void FN(store_ge_lane)(uint64_t *row, const ge *p, int lane) {
    for (int i = 0; i < 5; i++) {
        row[i] = p->X.l[i][lane];
        row[5 + i] = p->Y.l[i][lane];
        row[10 + i] = p->Z.l[i][lane];
        row[15 + i] = p->T.l[i][lane];
    }
    memset(row + 20, 0, 32);
}

static void FN(identity)(ge *p) {
    FN(set)(&p->X, FE_ZERO);
    FN(set)(&p->Y, FE_ONE);
    FN(set)(&p->Z, FE_ONE);
    FN(set)(&p->T, FE_ZERO);
}

static void FN(identity_lane)(ge *p, int lane) {
    for (int i = 0; i < 5; i++) {
        p->X.l[i][lane] = p->T.l[i][lane] = 0;
        p->Y.l[i][lane] = p->Z.l[i][lane] = i == 0;
    }
}

/* --- group law (Hisil et al. 2008, a = -1) -------------------------------------------------- */

/* p = (E F, G H, F G, E H) */
INLINE void FN(finish)(ge *p, const fe8 *e, const fe8 *f, const fe8 *g, const fe8 *h) {
    FN(mul)(&p->X, e, f);
    FN(mul)(&p->Y, g, h);
    FN(mul)(&p->Z, f, g);
    FN(mul)(&p->T, e, h);
}

INLINE void FN(add_niels)(ge *p, const niels *q) {
    fe8 t, a, b, c, d, e, f, g, h;
    FN(sub)(&t, &p->Y, &p->X);
    FN(mul_wide)(&a, &t, &q->ym);
    FN(add)(&t, &p->Y, &p->X);
    FN(mul_wide)(&b, &t, &q->yp);
    FN(mul_wide)(&c, &p->T, &q->t2d);
    FN(sum)(&d, &p->Z, &p->Z);
    FN(sub)(&e, &b, &a);
    FN(sub)(&f, &d, &c);
    FN(add)(&g, &d, &c);
    FN(add)(&h, &b, &a);
    FN(finish)(p, &e, &f, &g, &h);
}

static void FN(add_cached)(ge *p, const cached *q) {
    fe8 t, a, b, c, d, e, f, g, h;
    FN(sub)(&t, &p->Y, &p->X);
    FN(mul_wide)(&a, &t, &q->ym);
    FN(add)(&t, &p->Y, &p->X);
    FN(mul_wide)(&b, &t, &q->yp);
    FN(mul_wide)(&c, &p->T, &q->t2d);
    FN(mul_wide)(&d, &p->Z, &q->z2);
    FN(sub)(&e, &b, &a);
    FN(sub)(&f, &d, &c);
    FN(add)(&g, &d, &c);
    FN(add)(&h, &b, &a);
    FN(finish)(p, &e, &f, &g, &h);
}

static void FN(double_point)(ge *p) {
    fe8 a, b, c, s, t, e, f, g, h;
    FN(sqr_wide)(&a, &p->X);
    FN(sqr_wide)(&b, &p->Y);
    FN(sqr_wide)(&c, &p->Z);
    FN(add)(&t, &p->X, &p->Y);
    FN(sqr_wide)(&s, &t);
    /* All four negated, which is the same point: E = A+B-(X+Y)^2, G = A-B, F = 2C+G, H = A+B. */
    FN(sum)(&t, &a, &b);
    FN(carry)(&h, &t);
    FN(sub)(&e, &t, &s);
    FN(sub)(&g, &a, &b);
    FN(sum)(&t, &c, &c);
    FN(sum)(&t, &t, &g);
    FN(carry)(&f, &t);
    FN(finish)(p, &e, &f, &g, &h);
}

static void FN(to_cached)(cached *c, const ge *p) {
    fe8 d2;
    FN(set)(&d2, FE_2D);
    FN(sub)(&c->ym, &p->Y, &p->X);
    FN(add)(&c->yp, &p->Y, &p->X);
    FN(add)(&c->z2, &p->Z, &p->Z);
    FN(mul)(&c->t2d, &p->T, &d2);
}

/* Negates in the lanes of the mask. */
INLINE void FN(negate_niels)(niels *q, const v8 *mask) {
    fe8 ym = q->ym;
    FN(choose)(&q->ym, mask, &q->yp, &ym);
    FN(choose)(&q->yp, mask, &ym, &q->yp);
    /* 2p - t: below 2^52, all that a multiplication asks of one of its operands */
    q->t2d.l[0] = SELECT(*mask, FN(splat)(2 * FE_P0) - q->t2d.l[0], q->t2d.l[0]);
    UNROLL for (int i = 1; i < 5; i++)
        q->t2d.l[i] = SELECT(*mask, FN(splat)(2 * FE_P1) - q->t2d.l[i], q->t2d.l[i]);
}

static void FN(affine_to_niels)(niels *q, const fe8 *x, const fe8 *y) {
    fe8 d2;
    FN(set)(&d2, FE_2D);
    FN(sub)(&q->ym, y, x);
    FN(add)(&q->yp, y, x);
    FN(mul)(&q->t2d, x, y);
    FN(mul)(&q->t2d, &q->t2d, &d2);
}

/* --- fixed bases: tables of |digit| * 2^(w i) * B ------------------------------------------- */

INLINE void FN(add_from_table)(ge *p, const uint64_t *table, const int16_t *digits, int stride) {
    const uint64_t *rows[8];
    int64_t signs[8];
    v8 negative;
    niels q;
    for (int lane = 0; lane < 8; lane++) {
        int digit = digits[lane * stride];
        int sign = digit >> 15;
        rows[lane] = table + 16 * (size_t)((digit ^ sign) - sign);
        signs[lane] = sign;
    }
    memcpy(&negative, signs, sizeof negative);
    FN(load_niels)(&q, rows);
    FN(negate_niels)(&q, &negative);
    FN(add_niels)(p, &q);
}

/* table: windows * (2^(w-1) + 1) niels points; base: extended */
static int FN(fixed_table)(uint64_t *table, const uint64_t *base, int w, int windows) {
    const int entries = (1 << (w - 1)) + 1;
    uint64_t *bases = curve_alloc(8 * 24 * sizeof(uint64_t));
    ge *block = curve_alloc(BATCH * sizeof(ge));
    fe8 *inverses = curve_alloc(BATCH * sizeof(fe8));
    if (!bases || !block || !inverses) {
        free(bases), free(block), free(inverses);
        return -1;
    }
    const uint64_t *rows[8];
    ge power, acc;
    for (int lane = 0; lane < 8; lane++) rows[lane] = base;
    FN(load_ge)(&power, rows);
    for (int first = 0; first < windows; first += 8) {
        for (int lane = 0; lane < 8; lane++) {
            FN(store_ge_lane)(bases + 24 * lane, &power, lane);
            for (int i = 0; i < w; i++) FN(double_point)(&power);
            rows[lane] = bases + 24 * lane;
        }
        FN(load_ge)(&acc, rows);
        cached step;
        FN(to_cached)(&step, &acc);
        FN(identity)(&acc);
        for (int start = 0; start < entries; start += BATCH) {
            int n = entries - start < BATCH ? entries - start : BATCH;
            for (int i = 0; i < n; i++) {
                block[i] = acc;
                inverses[i] = acc.Z;
                FN(add_cached)(&acc, &step);
            }
            FN(batch_invert)(inverses, n);
            for (int i = 0; i < n; i++) {
                fe8 x, y;
                niels q;
                uint64_t spare[16], *out[8];
                FN(mul)(&x, &block[i].X, &inverses[i]);
                FN(mul)(&y, &block[i].Y, &inverses[i]);
                FN(affine_to_niels)(&q, &x, &y);
                for (int lane = 0; lane < 8; lane++)
                    out[lane] = first + lane < windows
                                    ? table + 16 * ((size_t)(first + lane) * entries + start + i)
                                    : spare;
                FN(store_niels)(out, &q);
            }
        }
    }
    free(bases), free(block), free(inverses);
    return 0;
}

/* --- ristretto255 (RFC 9496) ---------------------------------------------------------------- */

/* For two vectors: r = non-negative 1/sqrt(v) or 1/sqrt(i v); masks: v is a square or zero. */
static void FN(invsqrt)(fe8 r[2], v8 square[2], const fe8 v[2]) {
    fe8 v3[2], v7[2], t[2], one, minus_one, sqrt_m1, minus_sqrt_m1;
    FN(set)(&one, FE_ONE);
    FN(neg)(&minus_one, &one);
    FN(set)(&sqrt_m1, FE_SQRT_M1);
    FN(set)(&minus_sqrt_m1, FE_MINUS_SQRT_M1);
    FN(square_times)(t, v, 1);
    FN(mul2)(v3, t, v);
    FN(square_times)(t, v3, 1);
    FN(mul2)(v7, t, v);
    FN(power_p58)(t, v7);
    FN(mul2)(r, t, v3);
    for (int k = 0; k < 2; k++) {
        fe8 check;
        FN(sqr)(&check, &r[k]);
        FN(mul)(&check, &check, &v[k]);
        v8 plus = FN(equal)(&check, &one), minus = FN(equal)(&check, &minus_one);
        v8 either = minus | FN(equal)(&check, &minus_sqrt_m1);
        FN(mul)(&t[k], &r[k], &sqrt_m1);
        FN(choose)(&r[k], &either, &t[k], &r[k]);
        FN(absolute)(&r[k], &r[k]);
        square[k] = plus | minus;
    }
}

/* Two vectors of encodings -> affine points; masks: valid. */
static void FN(decode2)(fe8 x[2], fe8 y[2], v8 valid[2], const uint8_t *const rows[2][8]) {
    fe8 one, d, s[2], u1[2], u2[2], v[2], product[2], inverse[2];
    v8 square[2];
    FN(set)(&one, FE_ONE);
    FN(set)(&d, FE_D);
    for (int k = 0; k < 2; k++) {
        fe8 ss, u2s, t, frozen;
        FN(from_bytes)(&s[k], rows[k]);
        FN(freeze)(&frozen, &s[k]);
        valid[k] = (v8)((frozen.l[0] & FN(splat)(1)) == FN(splat)(0));
        for (int i = 0; i < 5; i++) valid[k] &= (v8)(frozen.l[i] == s[k].l[i]);
        for (int lane = 0; lane < 8; lane++)
            if (rows[k][lane][31] & 0x80) valid[k][lane] = 0;
        FN(sqr)(&ss, &s[k]);
        FN(sub)(&u1[k], &one, &ss);
        FN(add)(&u2[k], &one, &ss);
        FN(sqr)(&u2s, &u2[k]);
        FN(sqr)(&t, &u1[k]);
        FN(mul)(&t, &t, &d);
        FN(add)(&t, &t, &u2s);
        FN(neg)(&v[k], &t);
        FN(mul)(&product[k], &v[k], &u2s);
    }
    FN(invsqrt)(inverse, square, product);
    for (int k = 0; k < 2; k++) {
        fe8 den_x, den_y, t;
        FN(mul)(&den_x, &inverse[k], &u2[k]);
        FN(mul)(&den_y, &inverse[k], &den_x);
        FN(mul)(&den_y, &den_y, &v[k]);
        FN(mul)(&t, &s[k], &den_x);
        FN(add)(&t, &t, &t);
        FN(absolute)(&x[k], &t);
        FN(mul)(&y[k], &u1[k], &den_y);
        FN(mul)(&t, &x[k], &y[k]);
        valid[k] &= square[k] & ~FN(is_negative)(&t) & ~FN(is_zero)(&y[k]);
    }
}

/* n encodings -> n niels points; gives the index of the first invalid one, or -1 */
static int64_t FN(decode)(uint64_t *out, const uint8_t *in, int64_t n) {
    int64_t bad = -1;
    for (int64_t start = 0; start < n; start += 16) {
        const uint8_t *rows[2][8];
        fe8 x[2], y[2];
        v8 valid[2];
        for (int i = 0; i < 16; i++)
            rows[i / 8][i % 8] = in + 32 * (start + i < n ? start + i : n - 1);
        FN(decode2)(x, y, valid, rows);
        for (int k = 0; k < 2; k++) {
            niels q;
            uint64_t spare[16], *to[8];
            FN(affine_to_niels)(&q, &x[k], &y[k]);
            for (int lane = 0; lane < 8; lane++) {
                int64_t i = start + 8 * k + lane;
                to[lane] = i < n ? out + 16 * i : spare;
                if (i < n && bad < 0 && !valid[k][lane]) bad = i;
            }
            FN(store_niels)(to, &q);
        }
    }
    return bad;
}

/* Two vectors of points -> encodings. */
static void FN(encode2)(uint8_t *const rows[2][8], const ge p[2]) {
    fe8 u1[2], u2[2], v[2], inverse[2], sqrt_m1, magic;
    v8 square[2];
    FN(set)(&sqrt_m1, FE_SQRT_M1);
    FN(set)(&magic, FE_INVSQRT_A_MINUS_D);
    for (int k = 0; k < 2; k++) {
        fe8 s, t;
        FN(add)(&s, &p[k].Z, &p[k].Y);
        FN(sub)(&t, &p[k].Z, &p[k].Y);
        FN(mul)(&u1[k], &s, &t);
        FN(mul)(&u2[k], &p[k].X, &p[k].Y);
        FN(sqr)(&t, &u2[k]);
        FN(mul)(&v[k], &u1[k], &t);
    }
    FN(invsqrt)(inverse, square, v);
    for (int k = 0; k < 2; k++) {
        fe8 den1, den2, zinv, ix, iy, enchanted, x, y, den, t;
        FN(mul)(&den1, &inverse[k], &u1[k]);
        FN(mul)(&den2, &inverse[k], &u2[k]);
        FN(mul)(&zinv, &den1, &den2);
        FN(mul)(&zinv, &zinv, &p[k].T);
        FN(mul)(&ix, &p[k].X, &sqrt_m1);
        FN(mul)(&iy, &p[k].Y, &sqrt_m1);
        FN(mul)(&enchanted, &den1, &magic);
        FN(mul)(&t, &p[k].T, &zinv);
        v8 rotate = FN(is_negative)(&t);
        FN(choose)(&x, &rotate, &iy, &p[k].X);
        FN(choose)(&y, &rotate, &ix, &p[k].Y);
        FN(choose)(&den, &rotate, &enchanted, &den2);
        FN(mul)(&t, &x, &zinv);
        v8 flip = FN(is_negative)(&t);
        FN(neg)(&t, &y);
        FN(choose)(&y, &flip, &t, &y);
        FN(sub)(&t, &p[k].Z, &y);
        FN(mul)(&t, &t, &den);
        FN(absolute)(&t, &t);
        FN(to_bytes)(rows[k], &t);
    }
}

static void FN(encode)(uint8_t *out, const uint64_t *points, int64_t n) {
    for (int64_t start = 0; start < n; start += 16) {
        const uint64_t *from[2][8];
        uint8_t spare[32], *to[2][8];
        ge p[2];
        for (int i = 0; i < 16; i++) {
            int64_t at = start + i;
            from[i / 8][i % 8] = points + 24 * (at < n ? at : n - 1);
            to[i / 8][i % 8] = at < n ? out + 32 * at : spare;
        }
        FN(load_ge)(&p[0], from[0]);
        FN(load_ge)(&p[1], from[1]);
        FN(encode2)(to, p);
    }
}

/* Encodes 2 P for n vectors of points with one inversion for all: for a doubled point the square
 * root that RFC 9496 asks for is known. With e/f = x(2P), g/h = y(2P) from the doubling formulas,
 * 1/(fh) and 1/(eg) follow from one inverse of eg fh. A point with eg = 0 doubles to the identity's
 * coset, whose encoding is zero. */
static void FN(double_encode)(uint8_t *const (*rows)[8], const ge *p, int n) {
    fe8 e[BATCH], f[BATCH], g[BATCH], h[BATCH], inverses[BATCH], d, sqrt_m1, magic;
    FN(set)(&d, FE_D);
    FN(set)(&sqrt_m1, FE_SQRT_M1);
    FN(set)(&magic, FE_INVSQRT_A_MINUS_D);
    for (int i = 0; i < n; i++) {
        fe8 xx, yy, zz, dtt, t, s;
        FN(sqr)(&xx, &p[i].X);
        FN(sqr)(&yy, &p[i].Y);
        FN(sqr)(&zz, &p[i].Z);
        FN(sqr)(&t, &p[i].T);
        FN(mul)(&dtt, &t, &d);
        FN(add)(&t, &p[i].Y, &p[i].Y);
        FN(mul)(&e[i], &p[i].X, &t);
        FN(add)(&f[i], &zz, &dtt);
        FN(add)(&g[i], &yy, &xx);
        FN(sub)(&h[i], &zz, &dtt);
        FN(mul)(&s, &e[i], &g[i]);
        FN(mul)(&t, &f[i], &h[i]);
        FN(mul)(&inverses[i], &s, &t);
    }
    FN(batch_invert)(inverses, n);
    for (int i = 0; i < n; i++) {
        fe8 eg, fh, zinv, tinv, t, minus_e, f_i, factor, s;
        FN(mul)(&eg, &e[i], &g[i]);
        FN(mul)(&fh, &f[i], &h[i]);
        FN(mul)(&zinv, &eg, &inverses[i]);
        FN(mul)(&tinv, &fh, &inverses[i]);
        FN(mul)(&t, &eg, &zinv);
        v8 rotate = FN(is_negative)(&t);
        FN(neg)(&minus_e, &e[i]);
        FN(mul)(&f_i, &f[i], &sqrt_m1);
        FN(choose)(&e[i], &rotate, &g[i], &e[i]);
        FN(choose)(&g[i], &rotate, &minus_e, &g[i]);
        FN(choose)(&h[i], &rotate, &f_i, &h[i]);
        FN(choose)(&factor, &rotate, &sqrt_m1, &magic);
        FN(mul)(&t, &h[i], &e[i]);
        FN(mul)(&t, &t, &zinv);
        v8 flip = FN(is_negative)(&t);
        FN(neg)(&t, &g[i]);
        FN(choose)(&g[i], &flip, &t, &g[i]);
        FN(sub)(&s, &h[i], &g[i]);
        FN(mul)(&t, &g[i], &tinv);
        FN(mul)(&t, &t, &factor);
        FN(mul)(&s, &s, &t);
        FN(absolute)(&s, &s);
        FN(to_bytes)(rows[i], &s);
    }
}

/* --- private set intersection --------------------------------------------------------------- */

/* X25519 with one scalar for all; gives the index of the first zero product, or -1 */
static int64_t FN(x25519)(uint8_t *out, const uint8_t *in, int64_t n, const uint8_t *scalar) {
    uint8_t bits[32];
    int64_t bad = -1;
    memcpy(bits, scalar, 32);
    bits[0] &= 248;
    bits[31] = (bits[31] & 127) | 64;
    for (int64_t start = 0; start < n; start += 8 * BATCH) {
        fe8 x[BATCH], z[BATCH];
        int vectors = (int)((n - start + 7) / 8 < BATCH ? (n - start + 7) / 8 : BATCH);
        for (int v = 0; v < vectors; v++) {
            const uint8_t *rows[8];
            fe8 x1, x2, z2, x3, z3, frozen;
            for (int lane = 0; lane < 8; lane++) {
                int64_t at = start + 8 * v + lane;
                rows[lane] = in + 32 * (at < n ? at : n - 1);
            }
            FN(from_bytes)(&frozen, rows);
            FN(freeze)(&x1, &frozen);
            FN(set)(&x2, FE_ONE);
            FN(set)(&z2, FE_ZERO);
            x3 = x1;
            FN(set)(&z3, FE_ONE);
            uint64_t swapped = 0;
            for (int i = 254; i >= 0; i--) {
                fe8 a, aa, b, bb, c, d, da, cb, e, t, u;
                uint64_t bit = bits[i >> 3] >> (i & 7) & 1;
                v8 swap = FN(splat)(0 - (bit ^ swapped));
                swapped = bit;
                for (int k = 0; k < 5; k++) {
                    v8 dx = swap & (x2.l[k] ^ x3.l[k]), dz = swap & (z2.l[k] ^ z3.l[k]);
                    x2.l[k] ^= dx, x3.l[k] ^= dx;
                    z2.l[k] ^= dz, z3.l[k] ^= dz;
                }
                FN(add)(&a, &x2, &z2);
                FN(sub)(&b, &x2, &z2);
                FN(add)(&c, &x3, &z3);
                FN(sub)(&d, &x3, &z3);
                FN(mul_wide)(&da, &d, &a);
                FN(mul_wide)(&cb, &c, &b);
                FN(sqr_wide)(&aa, &a);
                FN(sqr_wide)(&bb, &b);
                FN(add)(&t, &da, &cb);
                FN(sqr)(&x3, &t);
                FN(sub)(&t, &da, &cb);
                FN(sqr)(&u, &t);
                FN(mul)(&z3, &x1, &u);
                FN(sub)(&e, &aa, &bb);
                FN(mul_small_wide)(&u, &aa, &e, 121665);
                FN(carry)(&t, &u);
                FN(mul)(&z2, &e, &t);
                FN(carry)(&a, &aa);
                FN(carry)(&b, &bb);
                FN(mul)(&x2, &a, &b);
            }
            v8 swap = FN(splat)(0 - swapped);
            FN(choose)(&x[v], &swap, &x3, &x2);
            FN(choose)(&z[v], &swap, &z3, &z2);
        }
        FN(batch_invert)(z, vectors);
        for (int v = 0; v < vectors; v++) {
            uint8_t spare[32], *rows[8];
            FN(mul)(&x[v], &x[v], &z[v]);
            v8 zero = FN(is_zero)(&x[v]);
            for (int lane = 0; lane < 8; lane++) {
                int64_t at = start + 8 * v + lane;
                rows[lane] = at < n ? out + 32 * at : spare;
                if (at < n && bad < 0 && zero[lane]) bad = at;
            }
            FN(to_bytes)(rows, &x[v]);
        }
    }
    curve_wipe(bits, sizeof bits);
    return bad;
}

/* Elligator 2 of 48 big-endian bytes an element, modulo p (RFC 9380, section 6.7.1) */
static void FN(map_to_curve)(uint8_t *out, const uint8_t *in, int64_t n) {
    fe8 one, j;
    FN(set)(&one, FE_ONE);
    FN(set)(&j, FE_J);
    for (int64_t start = 0; start < n; start += 8 * BATCH) {
        fe8 denominators[BATCH];
        int vectors = (int)((n - start + 7) / 8 < BATCH ? (n - start + 7) / 8 : BATCH);
        vectors += vectors & 1; /* an even number: BATCH is even */
        for (int v = 0; v < vectors; v++) {
            fe8 wide, r, t;
            uint64_t limbs[5][8];
            for (int lane = 0; lane < 8; lane++) {
                int64_t at = start + 8 * v + lane;
                const uint8_t *row = in + 48 * (at < n ? at : n - 1);
                uint64_t w[6];
                for (int k = 0; k < 6; k++) {
                    w[k] = 0;
                    for (int b = 0; b < 8; b++) w[k] = w[k] << 8 | row[48 - 8 * (k + 1) + b];
                }
                /* low 255 bits + 19 times the rest */
                limbs[0][lane] = (w[0] & FE_P1) + 19 * ((w[3] >> 63 | w[4] << 1) & FE_P1);
                limbs[1][lane] = ((w[0] >> 51 | w[1] << 13) & FE_P1) +
                                  19 * ((w[4] >> 50 | w[5] << 14) & FE_P1);
                limbs[2][lane] = ((w[1] >> 38 | w[2] << 26) & FE_P1) + 19 * (w[5] >> 37);
                limbs[3][lane] = (w[2] >> 25 | w[3] << 39) & FE_P1;
                limbs[4][lane] = w[3] >> 12 & FE_P1;
            }
            memcpy(&wide, limbs, sizeof limbs);
            FN(carry)(&r, &wide);
            FN(sqr)(&t, &r);
            FN(add)(&t, &t, &t);
            FN(add)(&denominators[v], &t, &one);
        }
        FN(batch_invert)(denominators, vectors);
        for (int v = 0; v < vectors; v += 2) {
            fe8 x[2], gx[2], chi[2];
            for (int k = 0; k < 2; k++) {
                fe8 t;
                FN(mul)(&t, &denominators[v + k], &j);
                FN(neg)(&x[k], &t);
                FN(add)(&t, &x[k], &j);
                FN(mul)(&t, &t, &x[k]);
                FN(add)(&t, &t, &one);
                FN(mul)(&gx[k], &t, &x[k]);
            }
            FN(legendre)(chi, gx);
            for (int k = 0; k < 2; k++) {
                fe8 t, minus;
                uint8_t spare[32], *rows[8];
                FN(add)(&t, &chi[k], &one);
                v8 no_square = FN(is_zero)(&t);
                FN(add)(&t, &x[k], &j);
                FN(neg)(&minus, &t);
                FN(choose)(&x[k], &no_square, &minus, &x[k]);
                for (int lane = 0; lane < 8; lane++) {
                    int64_t at = start + 8 * (v + k) + lane;
                    rows[lane] = at < n ? out + 32 * at : spare;
                }
                FN(to_bytes)(rows, &x[k]);
            }
        }
    }
}

/* --- EC-ElGamal ----------------------------------------------------------------------------- */

/* out[s] = sum of rows[index[starts[s] .. starts[s + 1])] for each of `width` components.
 * Each lane walks a segment and takes the next one when done, so that lanes stay busy. */
static void FN(sum_rows)(uint64_t *out, const uint64_t *rows, int width, const uint32_t *index,
                         const int64_t *starts, int64_t first, int64_t last) {
    ge acc[3];
    int64_t segment[8], at[8], end[8], next = first;
    const uint64_t *from[8];
    for (int lane = 0; lane < 8; lane++) segment[lane] = -1, at[lane] = end[lane] = 0;
    for (int c = 0; c < width; c++) FN(identity)(&acc[c]);
    for (;;) {
        int active = 0;
        for (int lane = 0; lane < 8; lane++) {
            while (at[lane] >= end[lane]) {
                if (segment[lane] >= 0)
                    for (int c = 0; c < width; c++)
                        FN(store_ge_lane)(out + 24 * (segment[lane] * width + c), &acc[c], lane);
                segment[lane] = -1;
                if (next >= last) break;
                segment[lane] = next;
                at[lane] = starts[next];
                end[lane] = starts[next + 1];
                next++;
                for (int c = 0; c < width; c++) FN(identity_lane)(&acc[c], lane);
            }
            if (at[lane] < end[lane]) {
                from[lane] = rows + 16 * (size_t)width * index[at[lane]++];
                if (at[lane] + 2 < end[lane]) {
                    const char *ahead =
                        (const char *)(rows + 16 * (size_t)width * index[at[lane] + 2]);
                    for (int c = 0; c < 2 * width; c++) __builtin_prefetch(ahead + 64 * c);
                }
                active = 1;
            } else {
                from[lane] = IDENTITY_ROW;
            }
        }
        if (!active) break;
        for (int c = 0; c < width; c++) {
            niels q;
            const uint64_t *part[8];
            for (int lane = 0; lane < 8; lane++) part[lane] = from[lane] + 16 * c;
            FN(load_niels)(&q, part);
            FN(add_niels)(&acc[c], &q);
        }
    }
}

/* The same over extended points; an index below zero stands for minus the point ~index. */
static void FN(combine)(uint64_t *out, const uint64_t *points, int width, const int64_t *index,
                        const int64_t *starts, int64_t first, int64_t last) {
    for (int64_t start = first; start < last; start += 8) {
        ge acc[3];
        int64_t longest = 0;
        for (int lane = 0; lane < 8; lane++) {
            int64_t s = start + lane;
            if (s < last && starts[s + 1] - starts[s] > longest)
                longest = starts[s + 1] - starts[s];
        }
        for (int c = 0; c < width; c++) FN(identity)(&acc[c]);
        for (int64_t i = 0; i < longest; i++) {
            const uint64_t *from[8];
            int64_t signs[8];
            v8 negative;
            int step[8];
            for (int lane = 0; lane < 8; lane++) {
                int64_t s = start + lane;
                from[lane] = IDENTITY_POINT, step[lane] = 0, signs[lane] = 0;
                if (s < last && starts[s] + i < starts[s + 1]) {
                    int64_t which = index[starts[s] + i];
                    int64_t sign = which >> 63;
                    from[lane] = points + 24 * (size_t)width * (size_t)(which ^ sign);
                    signs[lane] = sign;
                    step[lane] = 24;
                }
            }
            memcpy(&negative, signs, sizeof negative);
            for (int c = 0; c < width; c++) {
                ge p;
                cached q;
                fe8 t;
                const uint64_t *part[8];
                for (int lane = 0; lane < 8; lane++) part[lane] = from[lane] + step[lane] * c;
                FN(load_ge)(&p, part);
                FN(neg)(&t, &p.X);
                FN(choose)(&p.X, &negative, &t, &p.X);
                FN(neg)(&t, &p.T);
                FN(choose)(&p.T, &negative, &t, &p.T);
                FN(to_cached)(&q, &p);
                FN(add_cached)(&acc[c], &q);
            }
        }
        for (int lane = 0; lane < 8; lane++)
            if (start + lane < last)
                for (int c = 0; c < width; c++)
                    FN(store_ge_lane)(out + 24 * ((start + lane) * width + c), &acc[c], lane);
    }
}

/* acc[c] += r * base[c] for the three bases; digits: 8 lanes of `windows` */
static void FN(add_mask)(ge acc[3], const curve_bases *bases, const int16_t *digits) {
    const size_t entries = (size_t)(1 << (bases->w - 1)) + 1;
    for (int i = 0; i < bases->windows; i++)
        for (int c = 0; c < 3; c++)
            FN(add_from_table)(&acc[c], bases->table[c] + 16 * entries * (size_t)i, digits + i,
                               bases->windows);
}

#define ENCRYPT_VECTORS (BATCH / 4)

/* out: 96 bytes a row, the encodings of 2 (r G, g G/2 + r P1, h G/2 + r P2) */
static void FN(encrypt)(uint8_t *out, const curve_bases *bases, const uint8_t *scalars,
                        const int64_t *g, const int64_t *h, int64_t n) {
    const size_t entries = (size_t)(1 << (bases->w - 1)) + 1;
    int16_t digits[8 * CURVE_MAX_WINDOWS];
    for (int64_t start = 0; start < n; start += 8 * ENCRYPT_VECTORS) {
        ge acc[3 * ENCRYPT_VECTORS];
        uint8_t spare[32], *rows[3 * ENCRYPT_VECTORS][8];
        int vectors = 0;
        for (int64_t at = start; at < n && vectors < ENCRYPT_VECTORS; at += 8, vectors++) {
            ge *point = acc + 3 * vectors;
            for (int c = 0; c < 3; c++) FN(identity)(&point[c]);
            for (int lane = 0; lane < 8; lane++) {
                int64_t i = at + lane < n ? at + lane : n - 1;
                curve_digits(digits + lane * bases->windows, scalars + 32 * i, bases->w,
                             bases->windows);
                for (int c = 0; c < 3; c++)
                    rows[3 * vectors + c][lane] = at + lane < n ? out + 96 * i + 32 * c : spare;
            }
            FN(add_mask)(point, bases, digits);
            for (int c = 1; c < 3; c++) {
                for (int lane = 0; lane < 8; lane++) {
                    int64_t i = at + lane < n ? at + lane : n - 1;
                    curve_small_digits(digits + lane * bases->small_windows, (c == 1 ? g : h)[i],
                                       bases->w, bases->small_windows);
                }
                for (int i = 0; i < bases->small_windows; i++)
                    FN(add_from_table)(&point[c], bases->small + 16 * entries * (size_t)i,
                                       digits + i, bases->small_windows);
            }
        }
        FN(double_encode)(rows, acc, 3 * vectors);
    }
    curve_wipe(digits, sizeof digits);
}

/* out: 96 bytes a row, the encodings of points + (r G, r P1, r P2) */
static void FN(rerandomise)(uint8_t *out, const curve_bases *bases, const uint64_t *points,
                            const uint8_t *scalars, int64_t n) {
    int16_t digits[8 * CURVE_MAX_WINDOWS];
    for (int64_t start = 0; start < n; start += 8) {
        ge acc[4];
        uint8_t spare[32], *rows[4][8];
        for (int lane = 0; lane < 8; lane++) {
            int64_t i = start + lane < n ? start + lane : n - 1;
            curve_digits(digits + lane * bases->windows, scalars + 32 * i, bases->w,
                         bases->windows);
            for (int c = 0; c < 3; c++)
                rows[c][lane] = start + lane < n ? out + 96 * i + 32 * c : spare;
            rows[3][lane] = spare;
        }
        for (int c = 0; c < 3; c++) {
            const uint64_t *from[8];
            for (int lane = 0; lane < 8; lane++)
                from[lane] = points + 24 * (3 * (start + lane < n ? start + lane : n - 1) + c);
            FN(load_ge)(&acc[c], from);
        }
        acc[3] = acc[2];
        FN(add_mask)(acc, bases, digits);
        FN(encode2)(rows, acc);
        FN(encode2)(rows + 2, acc + 2);
    }
    curve_wipe(digits, sizeof digits);
}

/* out: for each row of three encodings (C, A, B) the extended points 4 (A + k0 C), 4 (B + k1 C);
 * four times, so that only the element decides, not the point that stands for it.
 * Gives the index of the first invalid row, or -1. */
static int64_t FN(decrypt)(uint64_t *out, const uint8_t *in, int64_t n, const uint8_t *keys) {
    int64_t bad = -1;
    cached *multiples = curve_alloc(16 * sizeof(cached));
    if (!multiples) return -2;
    for (int64_t start = 0; start < n; start += 8) {
        const uint8_t *rows[2][2][8];
        fe8 x[4], y[4];
        v8 valid[4];
        ge base, acc[2];
        for (int lane = 0; lane < 8; lane++) {
            const uint8_t *row = in + 96 * (start + lane < n ? start + lane : n - 1);
            rows[0][0][lane] = row;
            rows[0][1][lane] = row + 32;
            rows[1][0][lane] = rows[1][1][lane] = row + 64;
        }
        FN(decode2)(x, y, valid, rows[0]);
        FN(decode2)(x + 2, y + 2, valid + 2, rows[1]);
        for (int lane = 0; lane < 8; lane++)
            if (start + lane < n && bad < 0 && !(valid[0][lane] & valid[1][lane] & valid[2][lane]))
                bad = start + lane;
        base.X = x[0], base.Y = y[0];
        FN(set)(&base.Z, FE_ONE);
        FN(mul)(&base.T, &x[0], &y[0]);
        FN(identity)(&acc[0]);
        FN(to_cached)(&multiples[0], &acc[0]);
        FN(to_cached)(&multiples[1], &base);
        acc[1] = base;
        for (int i = 2; i < 16; i++) {
            FN(add_cached)(&acc[1], &multiples[1]);
            FN(to_cached)(&multiples[i], &acc[1]);
        }
        acc[1] = acc[0];
        for (int digit = 63; digit >= 0; digit--) {
            for (int c = 0; c < 2; c++) {
                for (int i = 0; i < 4; i++) FN(double_point)(&acc[c]);
                int d = keys[32 * c + digit / 2] >> (digit & 1 ? 4 : 0) & 15;
                FN(add_cached)(&acc[c], &multiples[d]);
            }
        }
        for (int c = 0; c < 2; c++) {
            niels q;
            FN(affine_to_niels)(&q, &x[1 + c], &y[1 + c]);
            FN(add_niels)(&acc[c], &q);
            FN(double_point)(&acc[c]);
            FN(double_point)(&acc[c]);
            for (int lane = 0; lane < 8; lane++)
                if (start + lane < n)
                    FN(store_ge_lane)(out + 24 * (2 * (start + lane) + c), &acc[c], lane);
        }
    }
    free(multiples);
    return bad;
}

#include "curve_logarithm.h"

static const curve_kernels FN(kernels) = {
    FN(x25519), FN(map_to_curve), FN(decode),      FN(encode),     FN(sum_rows),   FN(combine),
    FN(encrypt), FN(rerandomise), FN(fixed_table), FN(decrypt),    FN(log_table), FN(log_steps),
    FN(log_solve),
};

#undef ge
#undef niels
#undef cached
#undef ENCRYPT_VECTORS
