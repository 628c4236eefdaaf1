/* Batch kernels over Curve25519 for hedgerow.crypto.curve_kernels.
 *
 * Every kernel exists twice from one source: with AVX-512 IFMA, eight lanes at a time, and
 * portable. The caller names the path; `cpu_has_ifma` says whether the first may be chosen. Both,
 * and the pure-Python kernel, give identical bytes. The GIL is released while a kernel runs.
 *
 * Constant time: field arithmetic, X25519 and decoding do not branch on secrets. Additions from
 * fixed-base tables read addresses that depend on secret digits, so someone who shares the CPU's
 * caches may learn about the randomness of a ciphertext; discrete logarithms take time that
 * depends on the result.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define CURVE_HAS_IFMA 1
#include <immintrin.h>
#endif

#if !defined(__SIZEOF_INT128__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "128-bit integers and little-endian words are needed; without the kernels Python does it"
#endif

#pragma GCC diagnostic ignored "-Wpsabi"

__extension__ typedef unsigned __int128 u128;
typedef uint64_t v8 __attribute__((vector_size(64)));
typedef struct {
    v8 l[5];
} fe8;

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 10")
#endif
#define PASTE2(a, b) curve_##a##_##b
#define PASTE(a, b) PASTE2(a, b)
#define FN(name) PASTE(name, BACKEND)
#define SELECT(mask, yes, no) (((mask) & (yes)) | (~(mask) & (no)))

#define BATCH 32               /* vectors that share one inversion; even */
#define CURVE_MAX_WINDOWS 64   /* of a fixed base: 252 bits by at least four */
#define CURVE_HITS 64
#define CURVE_HASH 0x9E3779B97F4A7C15ULL
#define CURVE_NOT_FOUND INT64_MIN

static const uint64_t FE_ZERO[5] = {0, 0, 0, 0, 0};
static const uint64_t FE_ONE[5] = {1, 0, 0, 0, 0};
static const uint64_t FE_J[5] = {486662, 0, 0, 0, 0};
static const uint64_t FE_D[5] = {0x34DCA135978A3ULL, 0x1A8283B156EBDULL, 0x5E7A26001C029ULL,
                                 0x739C663A03CBBULL, 0x52036CEE2B6FFULL};
static const uint64_t FE_2D[5] = {0x69B9426B2F159ULL, 0x35050762ADD7AULL, 0x3CF44C0038052ULL,
                                  0x6738CC7407977ULL, 0x2406D9DC56DFFULL};
static const uint64_t FE_SQRT_M1[5] = {0x61B274A0EA0B0ULL, 0xD5A5FC8F189DULL, 0x7EF5E9CBD0C60ULL,
                                       0x78595A6804C9EULL, 0x2B8324804FC1DULL};
static const uint64_t FE_MINUS_SQRT_M1[5] = {0x1E4D8B5F15F3DULL, 0x72A5A0370E762ULL,
                                             0x10A16342F39FULL, 0x7A6A597FB361ULL,
                                             0x547CDB7FB03E2ULL};
static const uint64_t FE_INVSQRT_A_MINUS_D[5] = {0xFDAA805D40EAULL, 0x2EB482E57D339ULL,
                                                 0x7610274BC58ULL, 0x6510B613DC8FFULL,
                                                 0x786C8905CFAFFULL};
/* Three niels identities, and an extended one. */
static const uint64_t IDENTITY_ROW[48] = {[0] = 1,  [5] = 1,  [16] = 1,
                                          [21] = 1, [32] = 1, [37] = 1};
static const uint64_t IDENTITY_POINT[24] = {[5] = 1, [10] = 1};

typedef struct {
    int w, windows, small_windows;
    const uint64_t *table[3]; /* of G, P1, P2 */
    const uint64_t *small;    /* of G / 2 */
} curve_bases;

typedef struct {
    int bits, w, windows;
    int64_t modulus, limit, n_steps;
    const uint64_t *table, *steps, *check;
} curve_log;

typedef struct {
    int n;
    int64_t target[CURVE_HITS], value[CURVE_HITS];
} curve_hits;

typedef struct {
    int64_t (*x25519)(uint8_t *, const uint8_t *, int64_t, const uint8_t *);
    void (*map_to_curve)(uint8_t *, const uint8_t *, int64_t);
    int64_t (*decode)(uint64_t *, const uint8_t *, int64_t);
    void (*encode)(uint8_t *, const uint64_t *, int64_t);
    void (*sum_rows)(uint64_t *, const uint64_t *, int, const uint32_t *, const int64_t *, int64_t,
                     int64_t);
    void (*combine)(uint64_t *, const uint64_t *, int, const int64_t *, const int64_t *, int64_t,
                    int64_t);
    void (*encrypt)(uint8_t *, const curve_bases *, const uint8_t *, const int64_t *,
                    const int64_t *, int64_t);
    void (*rerandomise)(uint8_t *, const curve_bases *, const uint64_t *, const uint8_t *, int64_t);
    int (*fixed_table)(uint64_t *, const uint64_t *, int, int);
    int64_t (*decrypt)(uint64_t *, const uint8_t *, int64_t, const uint8_t *);
    int (*log_table)(uint64_t *, const uint64_t *, int);
    int (*log_steps)(uint64_t *, const uint64_t *, int64_t);
    int (*log_solve)(int64_t *, const curve_log *, const uint64_t *, int64_t);
} curve_kernels;

static void *curve_alloc(size_t n_bytes) { return aligned_alloc(64, (n_bytes + 63) / 64 * 64); }

static void curve_wipe(void *at, size_t n_bytes) {
    volatile uint8_t *p = at;
    while (n_bytes--) *p++ = 0;
}

/* Signed digits of the low 252 bits: -2^(w-1) < digit <= 2^(w-1) */
static void curve_digits(int16_t *digits, const uint8_t *scalar, int w, int windows) {
    uint8_t bytes[40] = {0};
    int carry = 0;
    memcpy(bytes, scalar, 32);
    bytes[31] &= 15;
    for (int i = 0; i < windows; i++) {
        uint32_t word;
        int bit = w * i;
        memcpy(&word, bytes + bit / 8, 4);
        int digit = (int)(word >> (bit % 8) & ((1u << w) - 1)) + carry;
        carry = digit > 1 << (w - 1);
        digits[i] = (int16_t)(digit - (carry << w));
    }
    curve_wipe(bytes, sizeof bytes);
}

static void curve_small_digits(int16_t *digits, int64_t value, int w, int windows) {
    int64_t sign = value >> 63;
    uint64_t rest = (uint64_t)((value ^ sign) - sign);
    int carry = 0;
    for (int i = 0; i < windows; i++) {
        int digit = (int)(rest & ((1u << w) - 1)) + carry;
        rest >>= w;
        carry = digit > 1 << (w - 1);
        digit -= carry << w;
        digits[i] = (int16_t)((digit ^ (int)sign) - (int)sign);
    }
}

#define BACKEND portable
#include "curve_field.h"
#include "curve_lanes.h"
#undef BACKEND
#undef PLUS_19
#undef FE_P0
#undef FE_P1

#ifdef CURVE_HAS_IFMA
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512ifma,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512ifma,bmi2")
#endif
#define CURVE_IFMA
#define BACKEND ifma
#include "curve_field.h"
#include "curve_lanes.h"
#undef BACKEND
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

/* --- Python --------------------------------------------------------------------------------- */

static int has_ifma(void) {
#ifdef CURVE_HAS_IFMA
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("bmi2");
#else
    return 0;
#endif
}

static const curve_kernels *kernels_of(int ifma) {
    if (!ifma) return &curve_kernels_portable;
#ifdef CURVE_HAS_IFMA
    if (has_ifma()) return &curve_kernels_ifma;
#endif
    PyErr_SetString(PyExc_ValueError, "this CPU has no AVX-512 IFMA");
    return NULL;
}

/* Says what was expected of a buffer, in units of `unit` bytes; returns the count or -1. */
static int64_t count_of(const Py_buffer *view, int64_t unit, const char *what) {
    if (view->len % unit) {
        PyErr_Format(PyExc_ValueError, "%s: a multiple of %lld bytes expected, got %lld", what,
                     (long long)unit, (long long)view->len);
        return -1;
    }
    return view->len / unit;
}

static int expect(const Py_buffer *view, int64_t n_bytes, const char *what) {
    if (view->len == n_bytes) return 1;
    PyErr_Format(PyExc_ValueError, "%s: %lld bytes expected, got %lld", what, (long long)n_bytes,
                 (long long)view->len);
    return 0;
}

static int aligned(const Py_buffer *view, const char *what) {
    if ((uintptr_t)view->buf % sizeof(uint64_t) == 0) return 1;
    PyErr_Format(PyExc_ValueError, "%s: words have to be aligned", what);
    return 0;
}

/* Offsets into an index: start at 0, never fall, end at its length. */
static int check_starts(const int64_t *starts, int64_t n, int64_t n_index) {
    int good = n >= 1 && starts[0] == 0 && starts[n - 1] == n_index;
    for (int64_t i = 1; good && i < n; i++) good = starts[i] >= starts[i - 1];
    if (!good) PyErr_SetString(PyExc_ValueError, "starts: offsets from 0 to the index's length "
                                                 "that never fall expected");
    return good;
}

static int check_window(int w) {
    if (w >= 4 && w <= 12) return 1;
    PyErr_Format(PyExc_ValueError, "window: 4 to 12 bits expected, got %d", w);
    return 0;
}

static void release_all(Py_buffer *views, int n) {
    for (int i = 0; i < n; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
}

static PyObject *new_bytes(int64_t n_bytes, void **at) {
    PyObject *out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)n_bytes);
    if (out) *at = PyBytes_AsString(out);
    return out;
}

static PyObject *py_cpu_has_ifma(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return PyBool_FromLong(has_ifma());
}

static PyObject *py_x25519(PyObject *self, PyObject *args) {
    int ifma;
    Py_buffer in[2] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n, bad;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*y*", &ifma, &in[0], &in[1])) return NULL;
    if ((kernels = kernels_of(ifma)) && (n = count_of(&in[0], 32, "points")) >= 0 &&
        expect(&in[1], 32, "scalar") && (out = new_bytes(32 * n, &at))) {
        Py_BEGIN_ALLOW_THREADS
        bad = kernels->x25519(at, in[0].buf, n, in[1].buf);
        Py_END_ALLOW_THREADS
        if (bad >= 0) {
            Py_CLEAR(out);
            PyErr_Format(PyExc_ArithmeticError, "%lld", (long long)bad);
        }
    }
    release_all(in, 2);
    return out;
}

static PyObject *py_map_to_curve(PyObject *self, PyObject *args) {
    int ifma;
    Py_buffer in[1] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*", &ifma, &in[0])) return NULL;
    if ((kernels = kernels_of(ifma)) && (n = count_of(&in[0], 48, "uniform")) >= 0 &&
        (out = new_bytes(32 * n, &at))) {
        Py_BEGIN_ALLOW_THREADS
        kernels->map_to_curve(at, in[0].buf, n);
        Py_END_ALLOW_THREADS
    }
    release_all(in, 1);
    return out;
}

static PyObject *py_decode(PyObject *self, PyObject *args) {
    int ifma;
    Py_buffer in[1] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n, bad;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*", &ifma, &in[0])) return NULL;
    if ((kernels = kernels_of(ifma)) && (n = count_of(&in[0], 32, "encodings")) >= 0 &&
        (out = new_bytes(128 * n, &at))) {
        Py_BEGIN_ALLOW_THREADS
        bad = kernels->decode(at, in[0].buf, n);
        Py_END_ALLOW_THREADS
        if (bad >= 0) {
            Py_CLEAR(out);
            PyErr_Format(PyExc_ArithmeticError, "%lld", (long long)bad);
        }
    }
    release_all(in, 1);
    return out;
}

static PyObject *py_encode(PyObject *self, PyObject *args) {
    int ifma;
    Py_buffer in[1] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*", &ifma, &in[0])) return NULL;
    if ((kernels = kernels_of(ifma)) && (n = count_of(&in[0], 192, "points")) >= 0 &&
        aligned(&in[0], "points") && (out = new_bytes(32 * n, &at))) {
        Py_BEGIN_ALLOW_THREADS
        kernels->encode(at, in[0].buf, n);
        Py_END_ALLOW_THREADS
    }
    release_all(in, 1);
    return out;
}

static PyObject *py_sum_rows(PyObject *self, PyObject *args) {
    int ifma, width;
    long long first, last;
    Py_buffer in[3] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n_rows, n_index, n_starts;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*iy*y*LL", &ifma, &in[0], &width, &in[1], &in[2], &first, &last))
        return NULL;
    if (width < 1 || width > 3) {
        PyErr_Format(PyExc_ValueError, "width: 1 to 3 expected, got %d", width);
    } else if ((kernels = kernels_of(ifma)) && (n_rows = count_of(&in[0], 128 * width, "rows")) >= 0 &&
               (n_index = count_of(&in[1], 4, "index")) >= 0 &&
               (n_starts = count_of(&in[2], 8, "starts")) >= 0 && aligned(&in[0], "rows") &&
               aligned(&in[2], "starts") && check_starts(in[2].buf, n_starts, n_index)) {
        const uint32_t *index = in[1].buf;
        uint32_t largest = 0;
        for (int64_t i = 0; i < n_index; i++) largest = index[i] > largest ? index[i] : largest;
        if (first < 0 || last < first || last > n_starts - 1) {
            PyErr_SetString(PyExc_ValueError, "first, last: not a range of segments");
        } else if (n_index && largest >= n_rows) {
            PyErr_Format(PyExc_ValueError, "index: row %lld of %lld", (long long)largest,
                         (long long)n_rows);
        } else if ((out = new_bytes(192 * (int64_t)width * (last - first), &at))) {
            Py_BEGIN_ALLOW_THREADS
            kernels->sum_rows((uint64_t *)at - 24 * (int64_t)width * first, in[0].buf, width, index,
                              in[2].buf, first, last);
            Py_END_ALLOW_THREADS
        }
    }
    release_all(in, 3);
    return out;
}

static PyObject *py_combine(PyObject *self, PyObject *args) {
    int ifma, width;
    Py_buffer in[3] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n_points, n_index, n_starts;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*iy*y*", &ifma, &in[0], &width, &in[1], &in[2])) return NULL;
    if (width < 1 || width > 3) {
        PyErr_Format(PyExc_ValueError, "width: 1 to 3 expected, got %d", width);
    } else if ((kernels = kernels_of(ifma)) &&
               (n_points = count_of(&in[0], 192 * width, "points")) >= 0 &&
               (n_index = count_of(&in[1], 8, "index")) >= 0 &&
               (n_starts = count_of(&in[2], 8, "starts")) >= 0 && aligned(&in[0], "points") &&
               aligned(&in[1], "index") && aligned(&in[2], "starts") &&
               check_starts(in[2].buf, n_starts, n_index)) {
        const int64_t *index = in[1].buf;
        int good = 1;
        for (int64_t i = 0; i < n_index; i++) good &= (index[i] ^ index[i] >> 63) < n_points;
        if (!good) {
            PyErr_Format(PyExc_ValueError, "index: points 0 to %lld expected",
                         (long long)n_points - 1);
        } else if ((out = new_bytes(192 * (int64_t)width * (n_starts - 1), &at))) {
            Py_BEGIN_ALLOW_THREADS
            kernels->combine(at, in[0].buf, width, index, in[2].buf, 0, n_starts - 1);
            Py_END_ALLOW_THREADS
        }
    }
    release_all(in, 3);
    return out;
}

static int64_t table_bytes(int w, int windows) { return 128LL * windows * ((1 << (w - 1)) + 1); }

static PyObject *py_fixed_table(PyObject *self, PyObject *args) {
    int ifma, w, windows, failed;
    Py_buffer in[1] = {{0}};
    PyObject *out = NULL;
    void *at;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*ii", &ifma, &in[0], &w, &windows)) return NULL;
    if (windows < 1 || windows > CURVE_MAX_WINDOWS) {
        PyErr_Format(PyExc_ValueError, "windows: 1 to %d expected, got %d", CURVE_MAX_WINDOWS,
                     windows);
    } else if ((kernels = kernels_of(ifma)) && check_window(w) && expect(&in[0], 192, "base") &&
               aligned(&in[0], "base") && (out = new_bytes(table_bytes(w, windows), &at))) {
        Py_BEGIN_ALLOW_THREADS
        failed = kernels->fixed_table(at, in[0].buf, w, windows);
        Py_END_ALLOW_THREADS
        if (failed) {
            Py_CLEAR(out);
            PyErr_NoMemory();
        }
    }
    release_all(in, 1);
    return out;
}

/* Reads w and the four tables (G, P1, P2, G / 2). */
static int bases_of(curve_bases *bases, int w, const Py_buffer *tables) {
    if (!check_window(w)) return 0;
    bases->w = w;
    bases->windows = (253 + w - 1) / w;
    bases->small_windows = (42 + w - 1) / w;
    for (int i = 0; i < 4; i++) {
        if (!expect(&tables[i], table_bytes(w, i < 3 ? bases->windows : bases->small_windows),
                    "table") ||
            !aligned(&tables[i], "table"))
            return 0;
        if (i < 3) bases->table[i] = tables[i].buf;
    }
    bases->small = tables[3].buf;
    return 1;
}

static PyObject *py_encrypt(PyObject *self, PyObject *args) {
    int ifma, w;
    Py_buffer in[7] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n;
    curve_bases bases;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "piy*y*y*y*y*y*y*", &ifma, &w, &in[0], &in[1], &in[2], &in[3],
                          &in[4], &in[5], &in[6]))
        return NULL;
    if ((kernels = kernels_of(ifma)) && bases_of(&bases, w, in) &&
        (n = count_of(&in[4], 32, "scalars")) >= 0 && expect(&in[5], 8 * n, "g") &&
        expect(&in[6], 8 * n, "h") && aligned(&in[5], "g") && aligned(&in[6], "h")) {
        const int64_t *g = in[5].buf, *h = in[6].buf, most = (int64_t)1 << 40;
        int good = 1;
        for (int64_t i = 0; i < n; i++)
            good &= g[i] >= -most && g[i] <= most && h[i] >= -most && h[i] <= most;
        if (!good) {
            PyErr_SetString(PyExc_ValueError, "values of at most 2^40 expected");
        } else if ((out = new_bytes(96 * n, &at))) {
            Py_BEGIN_ALLOW_THREADS
            kernels->encrypt(at, &bases, in[4].buf, g, h, n);
            Py_END_ALLOW_THREADS
        }
    }
    release_all(in, 7);
    return out;
}

static PyObject *py_rerandomise(PyObject *self, PyObject *args) {
    int ifma, w;
    Py_buffer in[6] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n;
    curve_bases bases;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "piy*y*y*y*y*y*", &ifma, &w, &in[0], &in[1], &in[2], &in[3],
                          &in[4], &in[5]))
        return NULL;
    if ((kernels = kernels_of(ifma)) && bases_of(&bases, w, in) &&
        (n = count_of(&in[4], 576, "points")) >= 0 && expect(&in[5], 32 * n, "scalars") &&
        aligned(&in[4], "points") && (out = new_bytes(96 * n, &at))) {
        Py_BEGIN_ALLOW_THREADS
        kernels->rerandomise(at, &bases, in[4].buf, in[5].buf, n);
        Py_END_ALLOW_THREADS
    }
    release_all(in, 6);
    return out;
}

static PyObject *py_decrypt(PyObject *self, PyObject *args) {
    int ifma;
    Py_buffer in[2] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n, bad;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*y*", &ifma, &in[0], &in[1])) return NULL;
    if ((kernels = kernels_of(ifma)) && (n = count_of(&in[0], 96, "ciphertexts")) >= 0 &&
        expect(&in[1], 64, "keys") && (out = new_bytes(384 * n, &at))) {
        Py_BEGIN_ALLOW_THREADS
        bad = kernels->decrypt(at, in[0].buf, n, in[1].buf);
        Py_END_ALLOW_THREADS
        if (bad == -2) {
            Py_CLEAR(out);
            PyErr_NoMemory();
        } else if (bad >= 0) {
            Py_CLEAR(out);
            PyErr_Format(PyExc_ArithmeticError, "%lld", (long long)bad);
        }
    }
    release_all(in, 2);
    return out;
}

static PyObject *py_log_table(PyObject *self, PyObject *args) {
    int ifma, bits, failed;
    Py_buffer in[1] = {{0}};
    PyObject *out = NULL;
    void *at;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*i", &ifma, &in[0], &bits)) return NULL;
    if (bits < 4 || bits > 26) {
        PyErr_Format(PyExc_ValueError, "bits: 4 to 26 expected, got %d", bits);
    } else if ((kernels = kernels_of(ifma)) && expect(&in[0], 192, "base") &&
               aligned(&in[0], "base") && (out = new_bytes((int64_t)16 << bits, &at))) {
        Py_BEGIN_ALLOW_THREADS
        memset(at, 0, (size_t)16 << bits);
        failed = kernels->log_table(at, in[0].buf, bits);
        Py_END_ALLOW_THREADS
        if (failed) {
            Py_CLEAR(out);
            PyErr_NoMemory();
        }
    }
    release_all(in, 1);
    return out;
}

static PyObject *py_log_steps(PyObject *self, PyObject *args) {
    int ifma, failed;
    long long n;
    Py_buffer in[1] = {{0}};
    PyObject *out = NULL;
    void *at;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*L", &ifma, &in[0], &n)) return NULL;
    if (n < 0 || n % 8 || n > 1 << 24) {
        PyErr_SetString(PyExc_ValueError, "n: a multiple of 8 up to 2^24 expected");
    } else if ((kernels = kernels_of(ifma)) && expect(&in[0], 192, "base") &&
               aligned(&in[0], "base") && (out = new_bytes(120 * n, &at))) {
        Py_BEGIN_ALLOW_THREADS
        failed = kernels->log_steps(at, in[0].buf, n);
        Py_END_ALLOW_THREADS
        if (failed) {
            Py_CLEAR(out);
            PyErr_NoMemory();
        }
    }
    release_all(in, 1);
    return out;
}

static PyObject *py_log_solve(PyObject *self, PyObject *args) {
    int ifma, failed;
    long long limit;
    Py_buffer in[4] = {{0}};
    PyObject *out = NULL;
    void *at;
    int64_t n;
    curve_log log;
    const curve_kernels *kernels;
    (void)self;
    if (!PyArg_ParseTuple(args, "py*iy*y*y*L", &ifma, &in[0], &log.bits, &in[1], &in[2], &in[3],
                          &limit))
        return NULL;
    if (log.bits < 4 || log.bits > 26 || limit < 0 || limit > (int64_t)1 << 41) {
        PyErr_SetString(PyExc_ValueError, "bits, limit: a range of at most 2^41 expected");
    } else if ((kernels = kernels_of(ifma)) && (n = count_of(&in[0], 192, "points")) >= 0 &&
               expect(&in[1], (int64_t)16 << log.bits, "table") &&
               (log.n_steps = count_of(&in[2], 120, "steps")) >= 0 &&
               expect(&in[3], table_bytes(8, 6), "check") && aligned(&in[0], "points") &&
               aligned(&in[1], "table") && aligned(&in[2], "steps") &&
               aligned(&in[3], "check") && (out = new_bytes(8 * n, &at))) {
        log.w = 8, log.windows = 6;
        log.modulus = 2 * ((int64_t)1 << log.bits) + 1;
        log.limit = limit;
        log.table = in[1].buf, log.steps = in[2].buf, log.check = in[3].buf;
        Py_BEGIN_ALLOW_THREADS
        failed = kernels->log_solve(at, &log, in[0].buf, n);
        Py_END_ALLOW_THREADS
        if (failed) {
            Py_CLEAR(out);
            PyErr_NoMemory();
        }
    }
    release_all(in, 4);
    return out;
}

static PyMethodDef methods[] = {
    {"cpu_has_ifma", py_cpu_has_ifma, METH_NOARGS, "Tell whether this CPU can run the IFMA path."},
    {"x25519", py_x25519, METH_VARARGS, "(ifma, points, scalar) -> products"},
    {"map_to_curve", py_map_to_curve, METH_VARARGS, "(ifma, uniform) -> u-coordinates"},
    {"decode", py_decode, METH_VARARGS, "(ifma, encodings) -> niels points"},
    {"encode", py_encode, METH_VARARGS, "(ifma, points) -> encodings"},
    {"sum_rows", py_sum_rows, METH_VARARGS,
     "(ifma, rows, width, index, starts, first, last) -> points"},
    {"combine", py_combine, METH_VARARGS, "(ifma, points, width, index, starts) -> points"},
    {"fixed_table", py_fixed_table, METH_VARARGS, "(ifma, base, window, windows) -> table"},
    {"encrypt", py_encrypt, METH_VARARGS,
     "(ifma, window, G, P1, P2, half_G, scalars, g, h) -> ciphertexts"},
    {"rerandomise", py_rerandomise, METH_VARARGS,
     "(ifma, window, G, P1, P2, half_G, points, scalars) -> ciphertexts"},
    {"decrypt", py_decrypt, METH_VARARGS, "(ifma, ciphertexts, negative_keys) -> points"},
    {"log_table", py_log_table, METH_VARARGS, "(ifma, base, bits) -> table"},
    {"log_steps", py_log_steps, METH_VARARGS, "(ifma, base, n) -> steps"},
    {"log_solve", py_log_solve, METH_VARARGS,
     "(ifma, points, bits, table, steps, check, limit) -> int64 logarithms"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_curve", "Batch kernels over Curve25519.", 0, methods,
};

PyMODINIT_FUNC PyInit__curve(void) { return PyModuleDef_Init(&module); }
