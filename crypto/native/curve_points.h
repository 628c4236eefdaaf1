/* Points in eight lanes: storage, group law, tables of fixed bases. Included by curve_lanes.h.
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
KERNEL(int64_t, FN(fixed_table), (uint64_t *table, const uint64_t *base, int64_t w, int64_t
                                  windows), (table, base, w, windows)) {
    const int entries = (1 << (w - 1)) + 1;
    uint64_t *bases = curve_alloc(8 * 24 * sizeof(uint64_t));
    ge *block = curve_alloc(BATCH * sizeof(ge));
    fe8 *inverses = curve_alloc(BATCH * sizeof(fe8));
    if (!bases || !block || !inverses) {
        free(bases), free(block), free(inverses); /* nothing was written */
        return CURVE_NO_MEMORY;
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
    wipe_free(bases, 8 * 24 * sizeof(uint64_t)), wipe_free(block, BATCH * sizeof(ge));
    wipe_free(inverses, BATCH * sizeof(fe8));
    return CURVE_DONE;
}
