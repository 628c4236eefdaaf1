/* EC-ElGamal: sums of rows, encryption, re-randomisation, decryption. Included by
 * curve_lanes.h. */

/* Sums of rows[index[starts[s] .. starts[s + 1])], s = first .. last - 1, for each component.
 * Each lane walks a segment and takes the next one when done, so that lanes stay busy. */
KERNEL(int64_t, FN(sum_rows), (uint64_t *out, const uint64_t *rows, const uint32_t *index, const
                               int64_t *starts, int64_t first, int64_t last),
       (out, rows, index, starts, first, last)) {
    const int width = CURVE_WIDTH;
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
                        FN(store_ge_lane)(out + 24 * ((segment[lane] - first) * width + c), &acc[c],
                                          lane);
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
                /* The next row, also of a segment of two: from further ahead fewer are fetched. */
                if (at[lane] < end[lane]) {
                    const char *ahead = (const char *)(rows + 16 * (size_t)width * index[at[lane]]);
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
    return CURVE_DONE;
}

/* The same over extended points; an index below zero stands for minus the point ~index. */
KERNEL(int64_t, FN(combine), (uint64_t *out, int64_t last, const uint64_t *points, const int64_t
                              *index, const int64_t *starts), (out, last, points, index, starts)) {
    const int width = CURVE_WIDTH;
    for (int64_t start = 0; start < last; start += 8) {
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
    return CURVE_DONE;
}

/* acc[c] += r * base[c] for the three bases; digits: 8 lanes of `windows` */
static void FN(add_mask)(ge acc[3], const curve_bases *bases, const int16_t *digits) {
    const size_t entries = (size_t)(1 << (bases->w - 1)) + 1;
    for (int i = 0; i < bases->windows; i++)
        for (int c = 0; c < 3; c++) {
            const uint64_t *table = bases->table[c] + 16 * entries * (size_t)i;
            for (int lane = 0; i + 1 < bases->windows && lane < 8; lane++) {
                int next = abs(digits[lane * bases->windows + i + 1]);
                const uint64_t *entry = table + 16 * (entries + (size_t)next);
                __builtin_prefetch(entry), __builtin_prefetch(entry + 8);
            }
            FN(add_from_table)(&acc[c], table, digits + i, bases->windows);
        }
}

#define ENCRYPT_VECTORS (BATCH / 4)

/* out: 96 bytes a row, the encodings of 2 (r G, g G/2 + r P1, h G/2 + r P2) */
KERNEL(int64_t, FN(encrypt), (uint8_t *out, int64_t n, const uint8_t *scalars, const int64_t *g,
                              const int64_t *h, int64_t w, const uint64_t *base, const uint64_t *p1,
                              const uint64_t *p2, const uint64_t *half),
       (out, n, scalars, g, h, w, base, p1, p2, half)) {
    const curve_bases made = BASES_OF(w, base, p1, p2, half), *bases = &made;
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
    return CURVE_DONE;
}

/* out: 96 bytes a row, the encodings of points + (r G, r P1, r P2) */
KERNEL(int64_t, FN(rerandomise), (uint8_t *out, int64_t n, const uint64_t *points, const uint8_t
                                  *scalars, int64_t w, const uint64_t *base, const uint64_t *p1,
                                  const uint64_t *p2, const uint64_t *half),
       (out, n, points, scalars, w, base, p1, p2, half)) {
    const curve_bases made = BASES_OF(w, base, p1, p2, half), *bases = &made;
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
    return CURVE_DONE;
}

/* Signed digits to base 16, -7 .. 8, of a scalar below 2^255 */
static void FN(digits16)(int8_t digits[64], const uint8_t *scalar) {
    int carry = 0;
    for (int i = 0; i < 64; i++) {
        int digit = (scalar[i / 2] >> (i & 1 ? 4 : 0) & 15) + carry;
        carry = digit > 8;
        digits[i] = (int8_t)(digit - (carry << 4));
    }
}

/* acc[c] = k[c] p for two scalars, by their digits. Both share the doublings: 16^i p is added to the
 * bucket of digit i, and the buckets are summed, each as often as its digit says (Yao 1976). */
static void FN(multiply_both)(ge acc[2], ge *p, int8_t digits[2][64], ge buckets[18]) {
    cached part[2];
    for (int i = 0; i < 18; i++) FN(identity)(&buckets[i]);
    for (int i = 0; i < 64; i++) {
        for (int k = 0; i && k < 4; k++) FN(double_point)(p);
        FN(to_cached)(&part[0], p);
        part[1].ym = part[0].yp, part[1].yp = part[0].ym, part[1].z2 = part[0].z2;
        FN(neg)(&part[1].t2d, &part[0].t2d);
        for (int c = 0; c < 2; c++) {
            int digit = digits[c][i], negative = digit < 0;
            FN(add_cached)(&buckets[9 * c + (negative ? -digit : digit)], &part[negative]);
        }
    }
    for (int c = 0; c < 2; c++) {
        ge sum = buckets[9 * c + 8];
        acc[c] = sum;
        for (int digit = 7; digit; digit--) {
            FN(to_cached)(&part[0], &buckets[9 * c + digit]);
            FN(add_cached)(&sum, &part[0]);
            FN(to_cached)(&part[0], &sum);
            FN(add_cached)(&acc[c], &part[0]);
        }
    }
}

/* out: for each row of three encodings (C, A, B) the extended points 4 (A + k0 C), 4 (B + k1 C);
 * four times, so that only the element decides, not the point that stands for it. */
KERNEL(int64_t, FN(decrypt), (uint64_t *out, int64_t n, const uint8_t *in, const uint8_t *keys),
       (out, n, in, keys)) {
    int64_t bad = CURVE_DONE;
    int8_t digits[2][64];
    ge *buckets = curve_alloc(18 * sizeof(ge));
    if (!buckets) return CURVE_NO_MEMORY;
    for (int c = 0; c < 2; c++) FN(digits16)(digits[c], keys + 32 * c);
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
        FN(multiply_both)(acc, &base, digits, buckets);
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
    wipe_free(buckets, 18 * sizeof(ge));
    return bad;
}

#undef ENCRYPT_VECTORS
