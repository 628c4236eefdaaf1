/* ristretto255 (RFC 9496): decode, encode, encode doubles. Included by curve_lanes.h. */

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
KERNEL(int64_t, FN(decode), (uint64_t *out, int64_t n, const uint8_t *in), (out, n, in)) {
    int64_t bad = CURVE_DONE;
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

KERNEL(int64_t, FN(encode), (uint8_t *out, int64_t n, const uint64_t *points), (out, n, points)) {
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
    return CURVE_DONE;
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
