/* Private set intersection: X25519 and Elligator 2. Included by curve_lanes.h. */

/* X25519 with one scalar for all; bad is a zero product */
KERNEL(int64_t, FN(x25519), (uint8_t *out, int64_t n, const uint8_t *in, const uint8_t *scalar),
       (out, n, in, scalar)) {
    uint8_t bits[32];
    int64_t bad = CURVE_DONE;
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
    return bad;
}

/* Elligator 2 of 48 big-endian bytes an element, modulo p (RFC 9380, section 6.7.1) */
KERNEL(int64_t, FN(map_to_curve), (uint8_t *out, int64_t n, const uint8_t *in), (out, n, in)) {
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
    return CURVE_DONE;
}
