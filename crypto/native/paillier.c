/* Vectors of residues modulo n^2, p^2 and q^2: a library of plain functions, for
 * hedgerow.crypto.arithmetic.modular_native, which checks every length and index before it crosses.
 *
 * The functions know nothing of keys: they multiply, raise and gather residues of one modulus.
 * A gmpy2 twin gives the same bytes.
 */
#include "montgomery.h"
#include "wipe.h"

#define WINDOW 5 /* exponent bits a table look-up in power() */
#define TABLE_BYTES (384 << 10) /* of a table of fixed bases, that stay in a cache */

/* ---- modulus ------------------------------------------------------------------------------ */

EXPORT int64_t has_ifma(void) { return cpu_has(IFMA); }
EXPORT int64_t has_avx2(void) { return cpu_has(AVX2); }

static void invert_lowest(modulus_t *mod) {
  uint64_t inverse = 1; /* Newton: each step doubles the correct low bits */
  for (int i = 0; i < 6; i++) inverse *= 2 - mod->m[0] * inverse;
  mod->inverse = mod->path ? (0 - inverse) & DIGIT_MASK : 0 - inverse;
}

/* Of `bytes` little-endian bytes, with R and R^2 modulo it; NULL where there is no memory. */
KERNEL(modulus_t *, modulus_new, (int64_t path, int64_t limbs, int64_t bytes, const uint8_t *m,
                                  const uint8_t *one, const uint8_t *square),
       (path, limbs, bytes, m, one, square)) {
  modulus_t *mod = calloc(1, sizeof *mod);
  if (mod == NULL) return NULL;
  mod->path = (int)path;
  mod->limbs = (int)limbs;
  mod->bytes = (int)bytes;
  words_from_bytes(mod, mod->m, m, mod->bytes);
  words_from_bytes(mod, mod->one, one, mod->bytes);
  words_from_bytes(mod, mod->square, square, mod->bytes);
  invert_lowest(mod);
  return mod;
}

#if HAVE_VECTORS
/* The square of `root`, which has `half` words; powers of R as residues are: twice as many. */
KERNEL(modulus_t *, modulus_squared, (int64_t path, int64_t half, int64_t bytes, const uint64_t
                                      *root, const uint64_t *powers),
       (path, half, bytes, root, powers)) {
  modulus_t *mod = calloc(1, sizeof *mod);
  if (mod == NULL) return NULL;
  mod->path = (int)path;
  mod->half = (int)half;
  mod->limbs = 2 * mod->half;
  mod->bytes = (int)bytes;
  const size_t size = 16 * (size_t)half;
  memcpy(mod->m, root, size / 2);
  memcpy(mod->one, powers, size);
  memcpy(mod->square, powers + 2 * half, size);
  memcpy(mod->cube, powers + 4 * half, size);
  invert_lowest(mod);
  return mod;
}
#endif

/* The modulus may be p^2: do not leave it in freed memory. */
EXPORT void modulus_free(modulus_t *mod) { wipe_free(mod, sizeof *mod); }

#if HAVE_VECTORS
/* Sources of up to eight residues from `at` on; past the end, the last one again. */
static void gather_run(const modulus_t *mod, vector_t *lanes, const uint64_t *from,
                                   int64_t at, int64_t n) {
  const uint64_t *rows[LANES];
  for (int l = 0; l < LANES; l++) rows[l] = from + (at + l < n ? at + l : n - 1) * mod->limbs;
  gather_lanes(mod, lanes, rows);
}

static void put_run(const modulus_t *mod, uint64_t *to, const vector_t *lanes, int64_t at,
                    int64_t n) {
  for (int l = 0; l < LANES && at + l < n; l++) put_lane(mod, to + (at + l) * mod->limbs, lanes, l);
}
#endif

/* ---- elementwise -------------------------------------------------------------------------- */

#if HAVE_VECTORS
static void multiply_vectors(const modulus_t *mod, uint64_t *r, const uint64_t *a,
                                      const uint64_t *b, int broadcast, int64_t n) {
  vector_t x[MAX_LIMBS], y[MAX_LIMBS];
  if (broadcast) gather_run(mod, y, b, 0, 1);
  for (int64_t i = 0; i < n; i += LANES) {
    gather_run(mod, x, a, i, n);
    if (!broadcast) gather_run(mod, y, b, i, n);
    multiply_lanes(mod, x, x, y);
    put_run(mod, r, x, i, n);
  }
}
#endif

static void multiply_run(const modulus_t *mod, uint64_t *r, const uint64_t *a, const uint64_t *b,
                         int broadcast, int64_t n) {
#if HAVE_VECTORS
  if (mod->path) {
    multiply_vectors(mod, r, a, b, broadcast, n);
    return;
  }
#endif
  for (int64_t i = 0; i < n; i++)
    multiply_portable(mod, r + i * mod->limbs, a + i * mod->limbs,
                      b + (broadcast ? 0 : i * mod->limbs));
}

KERNEL(void, multiply, (const modulus_t *mod, uint64_t *r, const uint64_t *a, const uint64_t *b,
                        int64_t broadcast, int64_t n), (mod, r, a, b, broadcast, n)) {
  if (n) multiply_run(mod, r, a, b, (int)broadcast, n);
}

/* r = a + b as one residue; vectors: below 4 m, which products accept, see montgomery.h. */
static void add_words(const modulus_t *mod, uint64_t *r, const uint64_t *a, const uint64_t *b) {
  const uint64_t mask = mod->path ? DIGIT_MASK : UINT64_MAX;
  const int bits = word_bits(mod);
  uint64_t carry = 0;
  for (int j = 0; j < mod->limbs; j++) {
    const unsigned __int128 sum = (unsigned __int128)a[j] + b[j] + carry;
    r[j] = (uint64_t)sum & mask;
    carry = (uint64_t)(sum >> bits);
  }
  if (mod->path) return;
  if (!carry) {
    subtract_once(mod, r, mod->limbs);
    return;
  }
  uint64_t borrow = 0;
  for (int j = 0; j < mod->limbs; j++) {
    const unsigned __int128 difference = (unsigned __int128)r[j] - mod->m[j] - borrow;
    r[j] = (uint64_t)difference;
    borrow = (uint64_t)(difference >> 64) & 1;
  }
}

KERNEL(void, add, (const modulus_t *mod, uint64_t *r, const uint64_t *a, const uint64_t *b, int64_t
                   n), (mod, r, a, b, n)) {
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = i * mod->limbs;
    add_words(mod, r + at, a + at, b + at);
  }
}

/* ---- bytes in and out --------------------------------------------------------------------- */

#if HAVE_VECTORS
static void load_root(const modulus_t *mod, uint64_t *out, int64_t n) {
  vector_t x[MAX_LIMBS], square[MAX_LIMBS], cube[MAX_LIMBS];
  gather_run(mod, square, mod->square, 0, 1);
  gather_run(mod, cube, mod->cube, 0, 1);
  for (int64_t i = 0; i < n; i += LANES) {
    gather_run(mod, x, out, i, n);
    enter_root(mod, x, x, square, cube);
    put_run(mod, out, x, i, n);
  }
}

/* Up to eight residues to canonical numbers of mod->limbs words, in place. */
static void leave_root(const modulus_t *mod, uint64_t *plain, int64_t n) {
  vector_t x[MAX_LIMBS], root[MAX_LIMBS];
  gather_run(mod, root, mod->m, 0, 1); /* half of it is used */
  for (int64_t l = 0; l < n; l++) {
    uint64_t *low = plain + l * mod->limbs, *high = low + mod->half;
    /* n less in the lower half is one more in the upper half. */
    for (int j = 0, carry = subtract_once(mod, low, mod->half); j < mod->half && carry; j++) {
      high[j] = (high[j] + 1) & DIGIT_MASK;
      carry = high[j] == 0;
    }
    while (subtract_once(mod, high, mod->half)) continue;
  }
  gather_run(mod, x, plain, 0, n);
  join_root(mod, x, x, root);
  put_run(mod, plain, x, 0, n);
}
#endif

KERNEL(void, load, (const modulus_t *mod, uint64_t *out, const uint8_t *data, int64_t width, int64_t
                    n), (mod, out, data, width, n)) {
  for (int64_t i = 0; i < n; i++)
    words_from_bytes(mod, out + i * mod->limbs, data + i * width, (int)width);
#if HAVE_VECTORS
  if (mod->half && n) {
    load_root(mod, out, n);
    return;
  }
#endif
  if (n) multiply_run(mod, out, out, mod->square, 1, n);
}

KERNEL(void, store, (const modulus_t *mod, uint8_t *out, const uint64_t *residues, int64_t n),
       (mod, out, residues, n)) {
  const uint64_t unit[MAX_LIMBS] = {1};
  uint64_t plain[LANES * MAX_LIMBS];
  for (int64_t i = 0; i < n; i += LANES) {
    const int64_t run = n - i < LANES ? n - i : LANES;
    const uint64_t *from = residues + i * mod->limbs;
    multiply_run(mod, plain, from, unit, 1, run);
#if HAVE_VECTORS
    if (mod->half) leave_root(mod, plain, run);
#endif
    for (int64_t l = 0; l < run; l++) {
      if (!mod->half) subtract_once(mod, plain + l * mod->limbs, mod->limbs);
      bytes_from_words(mod, out + (i + l) * mod->bytes,
                       plain + l * mod->limbs);
    }
  }
}

/* ---- powers ------------------------------------------------------------------------------- */

#if HAVE_VECTORS
static void power_vectors(const modulus_t *mod, uint64_t *r, const uint64_t *a,
                                   const uint8_t *digits, int64_t n_digits, int64_t n,
                                   vector_t *table) {
  vector_t x[MAX_LIMBS];
  for (int64_t i = 0; i < n; i += LANES) {
    gather_run(mod, table, mod->one, 0, 1);
    gather_run(mod, table + mod->limbs, a, i, n);
    for (int k = 2; k < 1 << WINDOW; k++)
      multiply_lanes(mod, table + k * mod->limbs, table + (k - 1) * mod->limbs, table + mod->limbs);
    memcpy(x, table + digits[0] * mod->limbs, sizeof(vector_t) * (size_t)mod->limbs);
    for (int64_t d = 1; d < n_digits; d++) {
      for (int s = 0; s < WINDOW; s++) square_lanes(mod, x, x);
      multiply_lanes(mod, x, x, table + digits[d] * mod->limbs);
    }
    put_run(mod, r, x, i, n);
  }
}
#endif

static void power_portable(const modulus_t *mod, uint64_t *r, const uint64_t *a,
                           const uint8_t *digits, int64_t n_digits, int64_t n,
                           uint64_t *table) {
  const int limbs = mod->limbs;
  for (int64_t i = 0; i < n; i++) {
    uint64_t x[MAX_LIMBS];
    memcpy(table, mod->one, 8 * (size_t)limbs);
    memcpy(table + limbs, a + i * limbs, 8 * (size_t)limbs);
    for (int k = 2; k < 1 << WINDOW; k++)
      multiply_portable(mod, table + k * limbs, table + (k - 1) * limbs, table + limbs);
    memcpy(x, table + digits[0] * limbs, 8 * (size_t)limbs);
    for (int64_t d = 1; d < n_digits; d++) {
      for (int s = 0; s < WINDOW; s++) multiply_portable(mod, x, x, x);
      multiply_portable(mod, x, x, table + digits[d] * limbs);
    }
    memcpy(r + i * limbs, x, 8 * (size_t)limbs);
  }
}

/* Every residue to one power, given as base-32 digits, most significant first; -1: no memory. */
KERNEL(int64_t, power, (const modulus_t *mod, uint64_t *r, const uint64_t *a, const uint8_t *digits,
                        int64_t n_digits, int64_t n), (mod, r, a, digits, n_digits, n)) {
  const size_t size = (mod->path ? 64 : 8) * (size_t)mod->limbs << WINDOW;
  void *table = aligned_alloc(64, size);
  if (table == NULL) return -1;
#if HAVE_VECTORS
  if (mod->path)
    power_vectors(mod, r, a, digits, n_digits, n, table);
  else
#endif
    power_portable(mod, r, a, digits, n_digits, n, table);
  wipe_free(table, size);
  return 0;
}

#if HAVE_VECTORS
static void horner_vectors(const modulus_t *mod, uint64_t *r, const uint64_t *a, int slots,
                                    int shift, int64_t n) {
  vector_t x[MAX_LIMBS], y[MAX_LIMBS];
  const uint64_t *rows[LANES];
  for (int64_t i = 0; i < n; i += LANES) {
    for (int k = 0; k < slots; k++) {
      for (int l = 0; l < LANES; l++) {
        const int64_t group = i + l < n ? i + l : n - 1;
        rows[l] = a + (group * slots + k) * mod->limbs;
      }
      if (k == 0) {
        gather_lanes(mod, x, rows);
        continue;
      }
      for (int s = 0; s < shift; s++) square_lanes(mod, x, x);
      gather_lanes(mod, y, rows);
      multiply_lanes(mod, x, x, y);
    }
    put_run(mod, r, x, i, n);
  }
}
#endif

/* Each run of `slots` residues c becomes c[0]^(2^(shift (slots - 1))) ... c[slots - 1]. */
KERNEL(void, horner, (const modulus_t *mod, uint64_t *r, const uint64_t *a, int64_t slots, int64_t
                      shift, int64_t n), (mod, r, a, slots, shift, n)) {
#if HAVE_VECTORS
  if (mod->path)
    horner_vectors(mod, r, a, (int)slots, (int)shift, n);
  else
#endif
    for (int64_t i = 0; i < n; i++) {
      uint64_t x[MAX_LIMBS];
      const uint64_t *run = a + i * slots * mod->limbs;
      memcpy(x, run, 8 * (size_t)mod->limbs);
      for (int k = 1; k < slots; k++) {
        for (int s = 0; s < shift; s++) multiply_portable(mod, x, x, x);
        multiply_portable(mod, x, x, run + k * mod->limbs);
      }
      memcpy(r + i * mod->limbs, x, 8 * (size_t)mod->limbs);
    }
}

#if HAVE_VECTORS
/* Some rows of the table at a time, for all results: as many as a core's own cache holds. */
static void fixed_base_vectors(const modulus_t *mod, vector_t *x, uint64_t *r,
                                        const uint64_t *table, const uint8_t *digits, int64_t rows,
                                        int64_t n) {
  vector_t y[MAX_LIMBS];
  const uint64_t *from[LANES];
  const int64_t tile = 1 + TABLE_BYTES / (256 * 8 * mod->limbs);
  for (int64_t first = 0; first < rows; first += tile) {
    const int64_t end = first + tile < rows ? first + tile : rows;
    for (int64_t i = 0; i < n; i += LANES) {
      vector_t *product = x + i / LANES * mod->limbs;
      for (int64_t row = first; row < end; row++) {
        for (int l = 0; l < LANES; l++) {
          const uint8_t *digit = digits + (i + l < n ? i + l : n - 1) * rows + row;
          from[l] = table + (row * 256 + digit[0]) * mod->limbs;
          if (row + 1 < end)
            prefetch_residue(mod, table + ((row + 1) * 256 + digit[1]) * mod->limbs);
        }
        if (row == 0) {
          gather_lanes(mod, product, from);
          continue;
        }
        gather_lanes(mod, y, from);
        multiply_lanes(mod, product, product, y);
      }
    }
  }
  for (int64_t i = 0; i < n; i += LANES) put_run(mod, r, x + i / LANES * mod->limbs, i, n);
}
#endif

/* Products of one table entry a row: table[row][digits[i][row]], 256 entries a row. */
KERNEL(void, fixed_base, (const modulus_t *mod, uint64_t *r, const uint64_t *table, const uint8_t
                          *digits, int64_t rows, int64_t n), (mod, r, table, digits, rows, n)) {
#if HAVE_VECTORS
  if (mod->path) {
    vector_t few[MAX_LIMBS]; /* where there is no memory for all at once */
    const size_t size = sizeof(vector_t) * (size_t)(mod->limbs * ((n + LANES - 1) / LANES + 1));
    vector_t *x = aligned_alloc(64, size);
    const int64_t run = x ? n : LANES;
    for (int64_t i = 0; i < n; i += run)
      fixed_base_vectors(mod, x ? x : few, r + i * mod->limbs, table, digits + i * rows, rows,
                      n - i < run ? n - i : run);
    wipe_free(x, size);
    return;
  }
#endif
  for (int64_t i = 0; i < n; i++) {
    uint64_t x[MAX_LIMBS];
    memcpy(x, table + digits[i * rows] * mod->limbs, 8 * (size_t)mod->limbs);
    for (int64_t row = 1; row < rows; row++)
      multiply_portable(mod, x, x, table + (row * 256 + digits[i * rows + row]) * mod->limbs);
    memcpy(r + i * mod->limbs, x, 8 * (size_t)mod->limbs);
  }
}

/* ---- products of segments ----------------------------------------------------------------- */

#if HAVE_VECTORS
/* Eight segments at a time, a lane each; a lane that is through takes the next segment. */
static void segments_vectors(const modulus_t *mod, uint64_t *r, const uint64_t *from,
                                      const uint32_t *index, const int64_t *start,
                                      int64_t n_segments) {
  vector_t x[MAX_LIMBS], y[MAX_LIMBS];
  const uint64_t *rows[LANES];
  int64_t segment[LANES], at[LANES], end[LANES], next = 0;
  for (int l = 0; l < LANES; l++) segment[l] = -1, at[l] = end[l] = 0;
  gather_run(mod, x, mod->one, 0, 1);
  for (;;) {
    int busy = 0;
    for (int l = 0; l < LANES; l++) {
      while (at[l] == end[l]) {
        if (segment[l] >= 0) put_lane(mod, r + segment[l] * mod->limbs, x, l);
        segment[l] = -1;
        if (next == n_segments) break;
        segment[l] = next++;
        at[l] = start[segment[l]];
        end[l] = start[segment[l] + 1];
        const int empty = at[l] == end[l];
        set_lane(mod, x, empty ? mod->one : from + (int64_t)index[at[l]] * mod->limbs, l);
        if (!empty) at[l]++;
      }
      rows[l] = mod->one;
      if (at[l] == end[l]) continue;
      busy = 1;
      rows[l] = from + (int64_t)index[at[l]++] * mod->limbs;
      if (at[l] < end[l]) prefetch_residue(mod, from + (int64_t)index[at[l]] * mod->limbs);
    }
    if (!busy) return;
    gather_lanes(mod, y, rows);
    multiply_lanes(mod, x, x, y);
  }
}
#endif

/* r[s] = product of from[index[k]] for start[s] <= k < start[s + 1]; 1 for an empty segment. */
KERNEL(void, segment_products, (const modulus_t *mod, uint64_t *r, const uint64_t *from, const
                                uint32_t *index, const int64_t *start, int64_t n),
       (mod, r, from, index, start, n)) {
#if HAVE_VECTORS
  if (mod->path)
    segments_vectors(mod, r, from, index, start, n);
  else
#endif
    for (int64_t s = 0; s < n; s++) {
      uint64_t x[MAX_LIMBS];
      memcpy(x, mod->one, 8 * (size_t)mod->limbs);
      for (int64_t k = start[s]; k < start[s + 1]; k++) {
        const uint64_t *factor = from + (int64_t)index[k] * mod->limbs;
        if (k == start[s])
          memcpy(x, factor, 8 * (size_t)mod->limbs);
        else
          multiply_portable(mod, x, x, factor);
      }
      memcpy(r + s * mod->limbs, x, 8 * (size_t)mod->limbs);
    }
}
