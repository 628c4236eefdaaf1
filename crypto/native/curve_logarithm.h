/* Discrete logarithms in a small range: baby steps in a hash table, giant steps in eight lanes.
 * Included once for each backend, by curve_lanes.h.
 *
 * With J = 2^bits, the table knows j B for 0 <= j <= J by its y-coordinate, which is that of -j B
 * too. A value v = k M + j with M = 2 J + 1 and |j| <= J is found as y(v B - k M B). The steps
 * k M B are affine and known, so y(T - k M B) and y(T + k M B) come from one shared product and
 * one shared inverse, and T + k M B serves k < 0.
 */

/* A slot is 32 bits of the hash and j + 1; an empty one is zero. */
INLINE v8 FN(hash_y)(const fe8 *y) {
    fe8 t;
    FN(freeze)(&t, y);
    return (t.l[0] | t.l[1] << 51) * FN(splat)(CURVE_HASH);
}

/* Eight lanes start at 0 .. 7 times (or 1 .. 8 times) the base and advance by 8 times the base. */
static int FN(eight_apart)(ge *acc, cached *step, const uint64_t *base, int from_one) {
    const uint64_t *rows[8];
    const size_t size = 9 * 24 * sizeof(uint64_t);
    uint64_t *multiples = curve_alloc(size);
    ge b, p;
    cached one;
    if (!multiples) return -1;
    for (int lane = 0; lane < 8; lane++) rows[lane] = base;
    FN(load_ge)(&b, rows);
    FN(to_cached)(&one, &b);
    FN(identity)(&p);
    for (int i = 0; i < 9; i++) {
        FN(store_ge_lane)(multiples + 24 * i, &p, 0);
        if (i < 8) FN(add_cached)(&p, &one);
    }
    FN(to_cached)(step, &p);
    for (int lane = 0; lane < 8; lane++) rows[lane] = multiples + 24 * (lane + from_one);
    FN(load_ge)(acc, rows);
    wipe_free(multiples, size);
    return 0;
}

/* table: 2^(bits + 1) slots */
KERNEL(int64_t, FN(log_table), (uint64_t *table, const uint64_t *base, int64_t bits),
       (table, base, bits)) {
    const int64_t n = ((int64_t)1 << bits) + 1;
    const int shift = (int)(64 - (bits + 1));
    const uint64_t mask = ((uint64_t)1 << (bits + 1)) - 1;
    ge acc;
    cached step;
    if (FN(eight_apart)(&acc, &step, base, 0)) return CURVE_NO_MEMORY;
    memset(table, 0, (size_t)16 << bits);
    for (int64_t start = 0; start < n; start += 8 * BATCH) {
        fe8 y[BATCH], z[BATCH];
        for (int i = 0; i < BATCH; i++) {
            y[i] = acc.Y, z[i] = acc.Z;
            FN(add_cached)(&acc, &step);
        }
        FN(batch_invert)(z, BATCH);
        for (int i = 0; i < BATCH; i++) {
            fe8 affine;
            FN(mul)(&affine, &y[i], &z[i]);
            v8 hashes = FN(hash_y)(&affine);
            for (int lane = 0; lane < 8; lane++) {
                int64_t j = start + 8 * i + lane;
                uint64_t hash = hashes[lane], slot = hash >> shift;
                if (j >= n) continue;
                while (table[slot]) slot = (slot + 1) & mask;
                table[slot] = hash << 32 | (uint64_t)(j + 1);
            }
        }
    }
    return CURVE_DONE;
}

/* steps: for every eight k, x, y and d x y of k M B, lane by lane (120 words); n a multiple of 8 */
KERNEL(int64_t, FN(log_steps), (uint64_t *steps, const uint64_t *base, int64_t n),
       (steps, base, n)) {
    fe8 d;
    ge acc;
    cached step;
    FN(set)(&d, FE_D);
    if (FN(eight_apart)(&acc, &step, base, 1)) return CURVE_NO_MEMORY;
    for (int64_t start = 0; start < n; start += 8 * BATCH) {
        fe8 z[BATCH];
        ge block[BATCH];
        int vectors = (int)((n - start) / 8 < BATCH ? (n - start) / 8 : BATCH);
        for (int i = 0; i < vectors; i++) {
            block[i] = acc, z[i] = acc.Z;
            FN(add_cached)(&acc, &step);
        }
        FN(batch_invert)(z, vectors);
        for (int i = 0; i < vectors; i++) {
            fe8 part[3];
            FN(mul)(&part[0], &block[i].X, &z[i]);
            FN(mul)(&part[1], &block[i].Y, &z[i]);
            FN(mul)(&part[2], &part[0], &part[1]);
            FN(mul)(&part[2], &part[2], &d);
            memcpy(steps + 120 * (start / 8 + i), part, sizeof part);
        }
    }
    return CURVE_DONE;
}

/* Checks up to eight candidates v B = T and keeps those that hold. */
static void FN(log_check)(const curve_log *log, curve_hits *hits, const uint64_t *affine,
                          int64_t *out) {
    for (int first = 0; first < hits->n; first += 8) {
        int16_t digits[8 * CURVE_MAX_WINDOWS];
        const size_t entries = (size_t)(1 << (log->w - 1)) + 1;
        uint64_t limbs[10][8];
        fe8 x, y, t;
        ge p;
        for (int lane = 0; lane < 8; lane++) {
            int at = first + lane < hits->n ? first + lane : first;
            const uint64_t *target = affine + 15 * hits->target[at];
            curve_small_digits(digits + lane * log->windows, hits->value[at], log->w,
                               log->windows);
            for (int i = 0; i < 10; i++) limbs[i][lane] = target[i];
        }
        memcpy(&x, limbs, sizeof x);
        memcpy(&y, limbs + 5, sizeof y);
        FN(identity)(&p);
        for (int i = 0; i < log->windows; i++)
            FN(add_from_table)(&p, log->check + 16 * entries * (size_t)i, digits + i,
                               log->windows);
        FN(mul)(&t, &x, &p.Z);
        v8 same = FN(equal)(&t, &p.X);
        FN(mul)(&t, &y, &p.Z);
        same &= FN(equal)(&t, &p.Y);
        for (int lane = 0; lane < 8 && first + lane < hits->n; lane++)
            if (same[lane]) out[hits->target[first + lane]] = hits->value[first + lane];
    }
    hits->n = 0;
}

/* Looks a hash up; k and the table's j give two candidates of either sign. */
INLINE void FN(log_probe)(const curve_log *log, uint64_t hash, int64_t target, int64_t k,
                          curve_hits *hits, const uint64_t *affine, int64_t *out) {
    const uint64_t mask = ((uint64_t)1 << (log->bits + 1)) - 1;
    uint64_t slot = hash >> (64 - (log->bits + 1)), entry;
    while ((entry = log->table[slot])) {
        if ((uint32_t)(entry >> 32) == (uint32_t)hash) {
            int64_t j = (int64_t)(entry & 0xFFFFFFFF) - 1, middle = k * log->modulus;
            for (int sign = 1; sign >= -1; sign -= 2) {
                int64_t value = middle + sign * j;
                if (value < -log->limit || value > log->limit) continue;
                hits->target[hits->n] = target;
                hits->value[hits->n++] = value;
                if (hits->n == CURVE_HITS) FN(log_check)(log, hits, affine, out);
            }
        }
        slot = (slot + 1) & mask;
    }
}

#define LOG_VECTORS 128

/* out: the logarithms of n extended points, CURVE_NOT_FOUND where there is none in range */
KERNEL(int64_t, FN(log_solve), (int64_t *out, int64_t n, const uint64_t *points, int64_t bits, const
                                uint64_t *table, const uint64_t *steps, int64_t n_steps, const
                                uint64_t *check, int64_t limit),
       (out, n, points, bits, table, steps, n_steps, check, limit)) {
    const curve_log made = {(int)bits, 8,     6,     2 * ((int64_t)1 << bits) + 1, limit,
                            n_steps,   table, steps, check},
                    *log = &made;
    typedef struct {
        fe8 product, denominator, plus, minus;
    } pair;
    const size_t of_affine = (size_t)(n + 8) * 15 * sizeof(uint64_t);
    const size_t of_open = (size_t)(n + 8) * sizeof(int64_t);
    const size_t of_pairs = LOG_VECTORS * sizeof(pair);
    const size_t of_hashes = LOG_VECTORS * 16 * sizeof(uint64_t);
    uint64_t *affine = curve_alloc(of_affine);
    int64_t *open = curve_alloc(of_open);
    pair *pairs = curve_alloc(of_pairs);
    uint64_t *hashes = curve_alloc(of_hashes);
    int64_t n_open = 0;
    curve_hits hits = {.n = 0};
    fe8 one;
    int64_t done = CURVE_NO_MEMORY;
    if (!affine || !open || !pairs || !hashes) goto end;
    FN(set)(&one, FE_ONE);
    for (int64_t i = 0; i < n; i++) out[i] = CURVE_NOT_FOUND;

    /* k = 0, and the affine coordinates */
    for (int64_t start = 0; start < n; start += 8 * BATCH) {
        ge p[BATCH];
        fe8 z[BATCH];
        int vectors = (int)((n - start + 7) / 8 < BATCH ? (n - start + 7) / 8 : BATCH);
        for (int v = 0; v < vectors; v++) {
            const uint64_t *rows[8];
            for (int lane = 0; lane < 8; lane++) {
                int64_t at = start + 8 * v + lane;
                rows[lane] = points + 24 * (at < n ? at : n - 1);
            }
            FN(load_ge)(&p[v], rows);
            z[v] = p[v].Z;
        }
        FN(batch_invert)(z, vectors);
        for (int v = 0; v < vectors; v++) {
            fe8 x, y, t;
            FN(mul)(&x, &p[v].X, &z[v]);
            FN(mul)(&y, &p[v].Y, &z[v]);
            FN(mul)(&t, &x, &y);
            v8 hash = FN(hash_y)(&y);
            for (int lane = 0; lane < 8; lane++) {
                int64_t at = start + 8 * v + lane;
                uint64_t *row = affine + 15 * (at < n ? at : n);
                for (int i = 0; i < 5; i++)
                    row[i] = x.l[i][lane], row[5 + i] = y.l[i][lane], row[10 + i] = t.l[i][lane];
            }
            for (int lane = 0; lane < 8 && start + 8 * v + lane < n; lane++)
                FN(log_probe)(log, hash[lane], start + 8 * v + lane, 0, &hits, affine, out);
        }
    }
    FN(log_check)(log, &hits, affine, out);
    for (int64_t i = 0; i < n; i++)
        if (out[i] == CURVE_NOT_FOUND) open[n_open++] = i;

    /* Blocks of giant steps, outwards from zero, over the targets that are still open. */
    int64_t block = 1;
    for (int64_t first = 0; first < log->n_steps / 8 && n_open; first += block) {
        if (first) block = block * 2 < 32 ? block * 2 : 32;
        if (block > log->n_steps / 8 - first) block = log->n_steps / 8 - first;
        int64_t per_chunk = LOG_VECTORS / block;
        for (int64_t chunk = 0; chunk < n_open; chunk += per_chunk) {
            int64_t targets = n_open - chunk < per_chunk ? n_open - chunk : per_chunk;
            int n_pairs = (int)(targets * block);
            fe8 product = one, inverse;
            for (int i = 0; i < n_pairs; i++) {
                const uint64_t *target = affine + 15 * open[chunk + i / block];
                const uint64_t *step = log->steps + 120 * (first + i % block);
                fe8 x1, y1, t1, x2, y2, dt2, a, b, c, s, t, u;
                FN(set)(&x1, target);
                FN(set)(&y1, target + 5);
                FN(set)(&t1, target + 10);
                memcpy(&x2, step, sizeof x2);
                memcpy(&y2, step + 40, sizeof y2);
                memcpy(&dt2, step + 80, sizeof dt2);
                FN(mul_wide)(&a, &y1, &y2);
                FN(mul_wide)(&b, &x1, &x2);
                FN(mul)(&c, &t1, &dt2);
                FN(sqr)(&s, &c);
                FN(sub)(&pairs[i].denominator, &one, &s);
                FN(add)(&t, &a, &b);
                FN(add)(&u, &one, &c);
                FN(mul)(&pairs[i].plus, &t, &u);
                FN(sub)(&t, &a, &b);
                FN(sub)(&u, &one, &c);
                FN(mul)(&pairs[i].minus, &t, &u);
                pairs[i].product = product;
                FN(mul)(&product, &product, &pairs[i].denominator);
            }
            /* d is no square, so 1 - c^2 is never zero */
            FN(invert)(&inverse, &product);
            for (int i = n_pairs - 1; i >= 0; i--) {
                fe8 z, y;
                FN(mul)(&z, &inverse, &pairs[i].product);
                FN(mul)(&inverse, &inverse, &pairs[i].denominator);
                FN(mul)(&y, &pairs[i].minus, &z);
                v8 below = FN(hash_y)(&y);
                FN(mul)(&y, &pairs[i].plus, &z);
                v8 above = FN(hash_y)(&y);
                memcpy(hashes + 16 * i, &below, sizeof below);
                memcpy(hashes + 16 * i + 8, &above, sizeof above);
                for (int k = 0; k < 16; k++)
                    __builtin_prefetch(log->table + (hashes[16 * i + k] >> (63 - log->bits)));
            }
            for (int i = 0; i < n_pairs; i++) {
                int64_t k = 8 * (first + i % block) + 1, target = open[chunk + i / block];
                for (int lane = 0; lane < 8; lane++) {
                    FN(log_probe)(log, hashes[16 * i + lane], target, k + lane, &hits, affine, out);
                    FN(log_probe)(log, hashes[16 * i + 8 + lane], target, -k - lane, &hits, affine,
                                  out);
                }
            }
            FN(log_check)(log, &hits, affine, out);
        }
        int64_t left = 0;
        for (int64_t i = 0; i < n_open; i++)
            if (out[open[i]] == CURVE_NOT_FOUND) open[left++] = open[i];
        n_open = left;
    }
    done = CURVE_DONE;
end:
    wipe_free(affine, of_affine), wipe_free(open, of_open);
    wipe_free(pairs, of_pairs), wipe_free(hashes, of_hashes);
    return done;
}

#undef LOG_VECTORS
