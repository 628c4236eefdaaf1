/* Extension module hedgerow.crypto.native._paillier: vectors of residues modulo n^2, p^2 and q^2.
 *
 * The functions know nothing of keys: they multiply, raise and gather residues of one modulus, and
 * let other Python threads run meanwhile. crypto/modular.py wraps them beside a gmpy2 twin that
 * gives the same bytes. Every length and every index is checked here, before the arithmetic.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

#include "montgomery.h"

#define CAPSULE_NAME "hedgerow.modulus"
#define WINDOW 5 /* exponent bits a table look-up in power() */

/* ---- modulus ------------------------------------------------------------------------------ */

/* The modulus may be p^2: do not leave it in freed memory. */
static void free_modulus(PyObject *capsule) {
  volatile uint8_t *bytes = PyCapsule_GetPointer(capsule, CAPSULE_NAME);
  for (size_t i = 0; i < sizeof(modulus_t); i++) bytes[i] = 0;
  free((void *)bytes);
}

static Py_ssize_t limbs_for(int ifma, Py_ssize_t bytes) {
  const Py_ssize_t bits = 8 * bytes;
  return ifma ? ((bits + 8 + DIGIT_BITS - 1) / DIGIT_BITS + 3) / 4 * 4 : (bits + 63) / 64;
}

static PyObject *radix(PyObject *self, PyObject *args) {
  (void)self;
  int ifma;
  Py_ssize_t bytes;
  if (!PyArg_ParseTuple(args, "pn", &ifma, &bytes)) return NULL;
  if (bytes < 1 || limbs_for(ifma, bytes) > MAX_LIMBS)
    return PyErr_Format(PyExc_ValueError, "no kernel for a modulus of %zd bytes", bytes);
  return Py_BuildValue("ni", limbs_for(ifma, bytes), ifma ? DIGIT_BITS : 64);
}

static PyObject *modulus(PyObject *self, PyObject *args) {
  (void)self;
  Py_buffer m, one, square;
  int ifma;
  if (!PyArg_ParseTuple(args, "py*y*y*", &ifma, &m, &one, &square)) return NULL;
  PyObject *capsule = NULL;
  modulus_t *mod = NULL;
  const uint8_t *bytes = m.buf;
  if (m.len < 1 || one.len != m.len || square.len != m.len || !(bytes[0] & 1)) {
    PyErr_SetString(PyExc_ValueError, "expected an odd modulus and two residues of its width");
    goto done;
  }
  if (ifma && !cpu_has_ifma()) {
    PyErr_SetString(PyExc_ValueError, "this CPU has no AVX-512 IFMA");
    goto done;
  }
  const Py_ssize_t limbs = limbs_for(ifma, m.len);
  if (limbs > MAX_LIMBS) {
    PyErr_Format(PyExc_ValueError, "no kernel for a modulus of %zd bytes", m.len);
    goto done;
  }
  mod = calloc(1, sizeof *mod);
  if (mod == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  mod->ifma = ifma;
  mod->limbs = (int)limbs;
  mod->bytes = (int)m.len;
  words_from_bytes(mod, mod->m, m.buf, mod->bytes);
  words_from_bytes(mod, mod->one, one.buf, mod->bytes);
  words_from_bytes(mod, mod->square, square.buf, mod->bytes);
  uint64_t inverse = 1; /* Newton: each step doubles the correct low bits */
  for (int i = 0; i < 6; i++) inverse *= 2 - mod->m[0] * inverse;
  mod->inverse = ifma ? (0 - inverse) & DIGIT_MASK : 0 - inverse;
  capsule = PyCapsule_New(mod, CAPSULE_NAME, free_modulus);
  if (capsule == NULL) free(mod);
done:
  PyBuffer_Release(&m);
  PyBuffer_Release(&one);
  PyBuffer_Release(&square);
  return capsule;
}

static int to_modulus(PyObject *object, void *result) {
  modulus_t *mod = PyCapsule_GetPointer(object, CAPSULE_NAME);
  *(modulus_t **)result = mod;
  return mod != NULL;
}

/* ---- arguments ---------------------------------------------------------------------------- */

/* Number of items of `size` bytes in a buffer that must be aligned and hold whole items, or -1. */
static Py_ssize_t items(const Py_buffer *buffer, size_t size, size_t alignment, const char *name) {
  if (buffer->len % (Py_ssize_t)size || (uintptr_t)buffer->buf % alignment) {
    PyErr_Format(PyExc_ValueError, "%s: expected aligned whole items of %zu bytes, got %zd bytes",
                 name, size, buffer->len);
    return -1;
  }
  return buffer->len / (Py_ssize_t)size;
}

static Py_ssize_t residues(const modulus_t *mod, const Py_buffer *buffer, const char *name) {
  return items(buffer, 8 * (size_t)mod->limbs, 8, name);
}

static void release(Py_buffer *buffers, int count) {
  for (int i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
}

static PyObject *refuse(Py_buffer *buffers, int count, const char *what) {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, what);
  release(buffers, count);
  return NULL;
}

static PyObject *finish(Py_buffer *buffers, int count) {
  release(buffers, count);
  Py_RETURN_NONE;
}

#if HAVE_IFMA_PATH
/* Sources of up to eight residues from `at` on; past the end, the last one again. */
TARGET_IFMA static void gather_run(const modulus_t *mod, vector_t *lanes, const uint64_t *from,
                                   Py_ssize_t at, Py_ssize_t n) {
  const uint64_t *rows[LANES];
  for (int l = 0; l < LANES; l++) rows[l] = from + (at + l < n ? at + l : n - 1) * mod->limbs;
  gather_lanes(mod, lanes, rows);
}

static void put_run(const modulus_t *mod, uint64_t *to, const vector_t *lanes, Py_ssize_t at,
                    Py_ssize_t n) {
  for (int l = 0; l < LANES && at + l < n; l++) put_lane(mod, to + (at + l) * mod->limbs, lanes, l);
}
#endif

/* ---- elementwise -------------------------------------------------------------------------- */

#if HAVE_IFMA_PATH
TARGET_IFMA static void multiply_ifma(const modulus_t *mod, uint64_t *r, const uint64_t *a,
                                      const uint64_t *b, int broadcast, Py_ssize_t n) {
  vector_t x[MAX_LIMBS], y[MAX_LIMBS];
  if (broadcast) gather_run(mod, y, b, 0, 1);
  for (Py_ssize_t i = 0; i < n; i += LANES) {
    gather_run(mod, x, a, i, n);
    if (!broadcast) gather_run(mod, y, b, i, n);
    multiply_lanes(mod, x, x, y);
    put_run(mod, r, x, i, n);
  }
}
#endif

static void multiply_run(const modulus_t *mod, uint64_t *r, const uint64_t *a, const uint64_t *b,
                         int broadcast, Py_ssize_t n) {
#if HAVE_IFMA_PATH
  if (mod->ifma) {
    multiply_ifma(mod, r, a, b, broadcast, n);
    return;
  }
#endif
  for (Py_ssize_t i = 0; i < n; i++)
    multiply_portable(mod, r + i * mod->limbs, a + i * mod->limbs,
                      b + (broadcast ? 0 : i * mod->limbs));
}

static PyObject *multiply(PyObject *self, PyObject *args) {
  (void)self;
  modulus_t *mod;
  Py_buffer buffers[3];
  if (!PyArg_ParseTuple(args, "O&w*y*y*", to_modulus, &mod, &buffers[0], &buffers[1], &buffers[2]))
    return NULL;
  const Py_ssize_t n = residues(mod, &buffers[0], "out");
  const Py_ssize_t n_a = residues(mod, &buffers[1], "a"), n_b = residues(mod, &buffers[2], "b");
  if (n < 0 || n_a != n || (n_b != n && n_b != 1))
    return refuse(buffers, 3, "multiply: expected as many factors as results, or one for all");
  Py_BEGIN_ALLOW_THREADS;
  if (n) multiply_run(mod, buffers[0].buf, buffers[1].buf, buffers[2].buf, n_b == 1, n);
  Py_END_ALLOW_THREADS;
  return finish(buffers, 3);
}

/* r = a + b as one residue; ifma: below 4 m, which products accept, see montgomery.h. */
static void add_words(const modulus_t *mod, uint64_t *r, const uint64_t *a, const uint64_t *b) {
  const uint64_t mask = mod->ifma ? DIGIT_MASK : UINT64_MAX;
  const int bits = word_bits(mod);
  uint64_t carry = 0;
  for (int j = 0; j < mod->limbs; j++) {
    const unsigned __int128 sum = (unsigned __int128)a[j] + b[j] + carry;
    r[j] = (uint64_t)sum & mask;
    carry = (uint64_t)(sum >> bits);
  }
  if (mod->ifma) return;
  if (!carry) {
    subtract_once(mod, r);
    return;
  }
  uint64_t borrow = 0;
  for (int j = 0; j < mod->limbs; j++) {
    const unsigned __int128 difference = (unsigned __int128)r[j] - mod->m[j] - borrow;
    r[j] = (uint64_t)difference;
    borrow = (uint64_t)(difference >> 64) & 1;
  }
}

static PyObject *add(PyObject *self, PyObject *args) {
  (void)self;
  modulus_t *mod;
  Py_buffer buffers[3];
  if (!PyArg_ParseTuple(args, "O&w*y*y*", to_modulus, &mod, &buffers[0], &buffers[1], &buffers[2]))
    return NULL;
  const Py_ssize_t n = residues(mod, &buffers[0], "out");
  if (n < 0 || residues(mod, &buffers[1], "a") != n || residues(mod, &buffers[2], "b") != n)
    return refuse(buffers, 3, "add: expected as many terms as results");
  Py_BEGIN_ALLOW_THREADS;
  for (Py_ssize_t i = 0; i < n; i++) {
    const Py_ssize_t at = i * mod->limbs;
    add_words(mod, (uint64_t *)buffers[0].buf + at, (const uint64_t *)buffers[1].buf + at,
              (const uint64_t *)buffers[2].buf + at);
  }
  Py_END_ALLOW_THREADS;
  return finish(buffers, 3);
}

/* ---- bytes in and out --------------------------------------------------------------------- */

static PyObject *load(PyObject *self, PyObject *args) {
  (void)self;
  modulus_t *mod;
  Py_buffer buffers[2];
  int width;
  if (!PyArg_ParseTuple(args, "O&w*y*i", to_modulus, &mod, &buffers[0], &buffers[1], &width))
    return NULL;
  const Py_ssize_t n = residues(mod, &buffers[0], "out");
  if (n < 0 || width < 1 || 8 * width > word_bits(mod) * mod->limbs || buffers[1].len != n * width)
    return refuse(buffers, 2, "load: expected `width` bytes, below R, for every residue");
  Py_BEGIN_ALLOW_THREADS;
  uint64_t *out = buffers[0].buf;
  for (Py_ssize_t i = 0; i < n; i++)
    words_from_bytes(mod, out + i * mod->limbs, (const uint8_t *)buffers[1].buf + i * width, width);
  if (n) multiply_run(mod, out, out, mod->square, 1, n);
  Py_END_ALLOW_THREADS;
  return finish(buffers, 2);
}

static PyObject *store(PyObject *self, PyObject *args) {
  (void)self;
  modulus_t *mod;
  Py_buffer buffers[2];
  if (!PyArg_ParseTuple(args, "O&w*y*", to_modulus, &mod, &buffers[0], &buffers[1])) return NULL;
  const Py_ssize_t n = residues(mod, &buffers[1], "residues");
  if (n < 0 || buffers[0].len != n * mod->bytes)
    return refuse(buffers, 2, "store: expected room for the bytes of every residue");
  Py_BEGIN_ALLOW_THREADS;
  const uint64_t unit[MAX_LIMBS] = {1};
  uint64_t plain[LANES * MAX_LIMBS];
  for (Py_ssize_t i = 0; i < n; i += LANES) {
    const Py_ssize_t run = n - i < LANES ? n - i : LANES;
    const uint64_t *from = (const uint64_t *)buffers[1].buf + i * mod->limbs;
    multiply_run(mod, plain, from, unit, 1, run);
    for (Py_ssize_t l = 0; l < run; l++) {
      subtract_once(mod, plain + l * mod->limbs);
      bytes_from_words(mod, (uint8_t *)buffers[0].buf + (i + l) * mod->bytes,
                       plain + l * mod->limbs);
    }
  }
  Py_END_ALLOW_THREADS;
  return finish(buffers, 2);
}

/* ---- powers ------------------------------------------------------------------------------- */

#if HAVE_IFMA_PATH
TARGET_IFMA static void power_ifma(const modulus_t *mod, uint64_t *r, const uint64_t *a,
                                   const uint8_t *digits, Py_ssize_t n_digits, Py_ssize_t n,
                                   vector_t *table) {
  vector_t x[MAX_LIMBS];
  for (Py_ssize_t i = 0; i < n; i += LANES) {
    gather_run(mod, table, mod->one, 0, 1);
    gather_run(mod, table + mod->limbs, a, i, n);
    for (int k = 2; k < 1 << WINDOW; k++)
      multiply_lanes(mod, table + k * mod->limbs, table + (k - 1) * mod->limbs, table + mod->limbs);
    memcpy(x, table + digits[0] * mod->limbs, sizeof(vector_t) * (size_t)mod->limbs);
    for (Py_ssize_t d = 1; d < n_digits; d++) {
      for (int s = 0; s < WINDOW; s++) square_lanes(mod, x, x);
      multiply_lanes(mod, x, x, table + digits[d] * mod->limbs);
    }
    put_run(mod, r, x, i, n);
  }
}
#endif

static void power_portable(const modulus_t *mod, uint64_t *r, const uint64_t *a,
                           const uint8_t *digits, Py_ssize_t n_digits, Py_ssize_t n,
                           uint64_t *table) {
  const int limbs = mod->limbs;
  for (Py_ssize_t i = 0; i < n; i++) {
    uint64_t x[MAX_LIMBS];
    memcpy(table, mod->one, 8 * (size_t)limbs);
    memcpy(table + limbs, a + i * limbs, 8 * (size_t)limbs);
    for (int k = 2; k < 1 << WINDOW; k++)
      multiply_portable(mod, table + k * limbs, table + (k - 1) * limbs, table + limbs);
    memcpy(x, table + digits[0] * limbs, 8 * (size_t)limbs);
    for (Py_ssize_t d = 1; d < n_digits; d++) {
      for (int s = 0; s < WINDOW; s++) multiply_portable(mod, x, x, x);
      multiply_portable(mod, x, x, table + digits[d] * limbs);
    }
    memcpy(r + i * limbs, x, 8 * (size_t)limbs);
  }
}

/* Every residue to one power, given as base-32 digits, most significant first. */
static PyObject *power(PyObject *self, PyObject *args) {
  (void)self;
  modulus_t *mod;
  Py_buffer buffers[3];
  if (!PyArg_ParseTuple(args, "O&w*y*y*", to_modulus, &mod, &buffers[0], &buffers[1], &buffers[2]))
    return NULL;
  const Py_ssize_t n = residues(mod, &buffers[0], "out");
  if (n < 0 || residues(mod, &buffers[1], "base") != n || buffers[2].len < 1)
    return refuse(buffers, 3, "power: expected as many bases as results and an exponent");
  const uint8_t *digits = buffers[2].buf;
  for (Py_ssize_t d = 0; d < buffers[2].len; d++)
    if (digits[d] >= 1 << WINDOW) return refuse(buffers, 3, "power: digit out of range");
  const size_t lane_bytes = mod->ifma ? 64 : 8;
  void *table = NULL;
  if (posix_memalign(&table, 64, lane_bytes * (size_t)mod->limbs << WINDOW)) {
    PyErr_NoMemory();
    return refuse(buffers, 3, "");
  }
  Py_BEGIN_ALLOW_THREADS;
#if HAVE_IFMA_PATH
  if (mod->ifma)
    power_ifma(mod, buffers[0].buf, buffers[1].buf, digits, buffers[2].len, n, table);
  else
#endif
    power_portable(mod, buffers[0].buf, buffers[1].buf, digits, buffers[2].len, n, table);
  Py_END_ALLOW_THREADS;
  free(table);
  return finish(buffers, 3);
}

#if HAVE_IFMA_PATH
TARGET_IFMA static void horner_ifma(const modulus_t *mod, uint64_t *r, const uint64_t *a, int slots,
                                    int shift, Py_ssize_t n) {
  vector_t x[MAX_LIMBS], y[MAX_LIMBS];
  const uint64_t *rows[LANES];
  for (Py_ssize_t i = 0; i < n; i += LANES) {
    for (int k = 0; k < slots; k++) {
      for (int l = 0; l < LANES; l++) {
        const Py_ssize_t group = i + l < n ? i + l : n - 1;
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
static PyObject *horner(PyObject *self, PyObject *args) {
  (void)self;
  modulus_t *mod;
  Py_buffer buffers[2];
  int slots, shift;
  if (!PyArg_ParseTuple(args, "O&w*y*ii", to_modulus, &mod, &buffers[0], &buffers[1], &slots,
                        &shift))
    return NULL;
  const Py_ssize_t n = residues(mod, &buffers[0], "out");
  if (n < 0 || slots < 1 || shift < 0 || residues(mod, &buffers[1], "residues") / slots != n ||
      residues(mod, &buffers[1], "residues") % slots)
    return refuse(buffers, 2, "horner: expected `slots` residues for every result");
  Py_BEGIN_ALLOW_THREADS;
#if HAVE_IFMA_PATH
  if (mod->ifma)
    horner_ifma(mod, buffers[0].buf, buffers[1].buf, slots, shift, n);
  else
#endif
    for (Py_ssize_t i = 0; i < n; i++) {
      uint64_t x[MAX_LIMBS];
      const uint64_t *run = (const uint64_t *)buffers[1].buf + i * slots * mod->limbs;
      memcpy(x, run, 8 * (size_t)mod->limbs);
      for (int k = 1; k < slots; k++) {
        for (int s = 0; s < shift; s++) multiply_portable(mod, x, x, x);
        multiply_portable(mod, x, x, run + k * mod->limbs);
      }
      memcpy((uint64_t *)buffers[0].buf + i * mod->limbs, x, 8 * (size_t)mod->limbs);
    }
  Py_END_ALLOW_THREADS;
  return finish(buffers, 2);
}

#if HAVE_IFMA_PATH
TARGET_IFMA static void fixed_base_ifma(const modulus_t *mod, uint64_t *r, const uint64_t *table,
                                        const uint8_t *digits, Py_ssize_t rows, Py_ssize_t n) {
  vector_t x[MAX_LIMBS], y[MAX_LIMBS];
  const uint64_t *from[LANES];
  for (Py_ssize_t i = 0; i < n; i += LANES) {
    for (Py_ssize_t row = 0; row < rows; row++) {
      for (int l = 0; l < LANES; l++) {
        const uint8_t *digit = digits + (i + l < n ? i + l : n - 1) * rows + row;
        from[l] = table + (row * 256 + digit[0]) * mod->limbs;
        if (row + 1 < rows)
          prefetch_residue(mod, table + ((row + 1) * 256 + digit[1]) * mod->limbs);
      }
      if (row == 0) {
        gather_lanes(mod, x, from);
        continue;
      }
      gather_lanes(mod, y, from);
      multiply_lanes(mod, x, x, y);
    }
    put_run(mod, r, x, i, n);
  }
}
#endif

/* Products of one table entry a row: table[row][digits[i][row]], 256 entries a row. */
static PyObject *fixed_base(PyObject *self, PyObject *args) {
  (void)self;
  modulus_t *mod;
  Py_buffer buffers[3];
  if (!PyArg_ParseTuple(args, "O&w*y*y*", to_modulus, &mod, &buffers[0], &buffers[1], &buffers[2]))
    return NULL;
  const Py_ssize_t n = residues(mod, &buffers[0], "out");
  const Py_ssize_t rows = residues(mod, &buffers[1], "table") / 256;
  if (n < 0 || rows < 1 || residues(mod, &buffers[1], "table") % 256 || buffers[2].len != n * rows)
    return refuse(buffers, 3, "fixed_base: expected 256 residues a row and a digit a row each");
  const uint64_t *table = buffers[1].buf;
  const uint8_t *digits = buffers[2].buf;
  Py_BEGIN_ALLOW_THREADS;
#if HAVE_IFMA_PATH
  if (mod->ifma)
    fixed_base_ifma(mod, buffers[0].buf, table, digits, rows, n);
  else
#endif
    for (Py_ssize_t i = 0; i < n; i++) {
      uint64_t x[MAX_LIMBS];
      memcpy(x, table + digits[i * rows] * mod->limbs, 8 * (size_t)mod->limbs);
      for (Py_ssize_t row = 1; row < rows; row++)
        multiply_portable(mod, x, x, table + (row * 256 + digits[i * rows + row]) * mod->limbs);
      memcpy((uint64_t *)buffers[0].buf + i * mod->limbs, x, 8 * (size_t)mod->limbs);
    }
  Py_END_ALLOW_THREADS;
  return finish(buffers, 3);
}

/* ---- products of segments ----------------------------------------------------------------- */

#if HAVE_IFMA_PATH
/* Eight segments at a time, a lane each; a lane that is through takes the next segment. */
TARGET_IFMA static void segments_ifma(const modulus_t *mod, uint64_t *r, const uint64_t *from,
                                      const uint32_t *index, const int64_t *start,
                                      Py_ssize_t n_segments) {
  vector_t x[MAX_LIMBS], y[MAX_LIMBS];
  const uint64_t *rows[LANES];
  Py_ssize_t segment[LANES], at[LANES], end[LANES], next = 0;
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
        set_lane(mod, x, empty ? mod->one : from + (Py_ssize_t)index[at[l]] * mod->limbs, l);
        if (!empty) at[l]++;
      }
      rows[l] = mod->one;
      if (at[l] == end[l]) continue;
      busy = 1;
      rows[l] = from + (Py_ssize_t)index[at[l]++] * mod->limbs;
      if (at[l] < end[l]) prefetch_residue(mod, from + (Py_ssize_t)index[at[l]] * mod->limbs);
    }
    if (!busy) return;
    gather_lanes(mod, y, rows);
    multiply_lanes(mod, x, x, y);
  }
}
#endif

/* r[s] = product of from[index[k]] for start[s] <= k < start[s + 1]; 1 for an empty segment. */
static PyObject *segment_products(PyObject *self, PyObject *args) {
  (void)self;
  modulus_t *mod;
  Py_buffer buffers[4];
  if (!PyArg_ParseTuple(args, "O&w*y*y*y*", to_modulus, &mod, &buffers[0], &buffers[1], &buffers[2],
                        &buffers[3]))
    return NULL;
  const Py_ssize_t n = residues(mod, &buffers[0], "out");
  const Py_ssize_t n_from = residues(mod, &buffers[1], "residues");
  const Py_ssize_t n_index = items(&buffers[2], 4, 4, "index");
  const Py_ssize_t n_start = items(&buffers[3], 8, 8, "start");
  if (n < 0 || n_from < 0 || n_index < 0 || n_start != n + 1)
    return refuse(buffers, 4, "segment_products: expected one more start than results");
  const uint32_t *index = buffers[2].buf;
  const int64_t *start = buffers[3].buf;
  int sound = start[0] >= 0 && start[n] <= n_index;
  for (Py_ssize_t s = 0; s < n; s++) sound &= start[s] <= start[s + 1];
  if (!sound) return refuse(buffers, 4, "segment_products: starts must rise within the index");
  for (Py_ssize_t k = start[0]; k < start[n]; k++) sound &= index[k] < n_from;
  if (!sound) return refuse(buffers, 4, "segment_products: index out of range");
  const uint64_t *from = buffers[1].buf;
  Py_BEGIN_ALLOW_THREADS;
#if HAVE_IFMA_PATH
  if (mod->ifma)
    segments_ifma(mod, buffers[0].buf, from, index, start, n);
  else
#endif
    for (Py_ssize_t s = 0; s < n; s++) {
      uint64_t x[MAX_LIMBS];
      memcpy(x, mod->one, 8 * (size_t)mod->limbs);
      for (int64_t k = start[s]; k < start[s + 1]; k++) {
        const uint64_t *factor = from + (Py_ssize_t)index[k] * mod->limbs;
        if (k == start[s])
          memcpy(x, factor, 8 * (size_t)mod->limbs);
        else
          multiply_portable(mod, x, x, factor);
      }
      memcpy((uint64_t *)buffers[0].buf + s * mod->limbs, x, 8 * (size_t)mod->limbs);
    }
  Py_END_ALLOW_THREADS;
  return finish(buffers, 4);
}

/* ---- module ------------------------------------------------------------------------------- */

static PyObject *has_ifma(PyObject *self, PyObject *none) {
  (void)self;
  (void)none;
  return PyBool_FromLong(cpu_has_ifma());
}

static PyMethodDef methods[] = {
    {"has_ifma", has_ifma, METH_NOARGS, "Whether this CPU has what the eight-lane path needs."},
    {"modulus", modulus, METH_VARARGS, "modulus(ifma, m, R mod m, R^2 mod m) -> handle"},
    {"radix", radix, METH_VARARGS, "radix(ifma, bytes of m) -> (words of a residue, bits of one)"},
    {"load", load, METH_VARARGS, "load(modulus, out, bytes, width)"},
    {"store", store, METH_VARARGS, "store(modulus, out bytes, residues)"},
    {"multiply", multiply, METH_VARARGS, "multiply(modulus, out, a, b)"},
    {"add", add, METH_VARARGS, "add(modulus, out, a, b)"},
    {"power", power, METH_VARARGS, "power(modulus, out, bases, base-32 digits)"},
    {"horner", horner, METH_VARARGS, "horner(modulus, out, residues, slots, shift)"},
    {"fixed_base", fixed_base, METH_VARARGS, "fixed_base(modulus, out, table, digits)"},
    {"segment_products", segment_products, METH_VARARGS,
     "segment_products(modulus, out, residues, index, start)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_paillier", "Vectors of residues of one odd modulus.", -1, methods};

PyMODINIT_FUNC PyInit__paillier(void) { return PyModule_Create(&module); }
