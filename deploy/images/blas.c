/* The BLAS of the crypto image, in place of NumPy's OpenBLAS, which is 28 MB: its process multiplies
 * no matrices, and vectors of a few values. NumPy keeps integers to loops of its own anyway.
 *
 * CBLAS as NumPy calls it (64-bit integers), by definition, sums in order of the index. Strides may
 * be negative, then from the end, as in the reference BLAS. */
#include <complex.h>
#include <stdint.h>
#include <stdlib.h>

typedef int64_t n_t;
typedef float s_t;
typedef double d_t;
typedef float complex c_t;
typedef double complex z_t;

enum { ROWS = 101, PLAIN = 111, TRANSPOSED = 112, CONJUGATED = 113, UPPER = 121 };

#define FIRST(n, step) ((step) < 0 ? (1 - (n)) * (step) : 0)
/* Element of a matrix of ORDER that is read as TRANS says. */
#define AT(a, ld, order, trans, i, j) \
    a[((order) == ROWS) == ((trans) == PLAIN) ? (i) * (ld) + (j) : (j) * (ld) + (i)]

#define REAL(T, NAME) \
    T scipy_cblas_##NAME##dot64_(n_t n, const T *x, n_t dx, const T *y, n_t dy) { \
        T sum = 0; \
        x += FIRST(n, dx), y += FIRST(n, dy); \
        for (n_t i = 0; i < n; i++) sum += x[i * dx] * y[i * dy]; \
        return sum; \
    }

#define COMPLEX(T, NAME, SUFFIX, READ) \
    void scipy_cblas_##NAME##dot##SUFFIX##_sub64_( \
        n_t n, const T *x, n_t dx, const T *y, n_t dy, T *out) { \
        T sum = 0; \
        x += FIRST(n, dx), y += FIRST(n, dy); \
        for (n_t i = 0; i < n; i++) sum += READ(x[i * dx]) * y[i * dy]; \
        *out = sum; \
    }

/* SCALAR is how alpha and beta come: by value where real, by address where complex. */
#define BOTH(T, NAME, SCALAR, VALUE, CONJUGATE) \
    static T NAME##_read(const T *a, n_t ld, int order, int trans, n_t i, n_t j) { \
        T found = AT(a, ld, order, trans, i, j); \
        return trans == CONJUGATED ? CONJUGATE(found) : found; \
    } \
    void scipy_cblas_##NAME##axpy64_(n_t n, SCALAR alpha, const T *x, n_t dx, T *y, n_t dy) { \
        x += FIRST(n, dx), y += FIRST(n, dy); \
        for (n_t i = 0; i < n; i++) y[i * dy] += VALUE(alpha) * x[i * dx]; \
    } \
    void scipy_cblas_##NAME##gemv64_(int order, int trans, n_t m, n_t n, SCALAR alpha, const T *a, \
        n_t ld, const T *x, n_t dx, SCALAR beta, T *y, n_t dy) { \
        n_t rows = trans == PLAIN ? m : n, columns = trans == PLAIN ? n : m; \
        x += FIRST(columns, dx), y += FIRST(rows, dy); \
        for (n_t i = 0; i < rows; i++) { \
            T sum = 0, *to = y + i * dy; \
            for (n_t j = 0; j < columns; j++) \
                sum += NAME##_read(a, ld, order, trans, i, j) * x[j * dx]; \
            *to = VALUE(alpha) * sum + (VALUE(beta) == 0 ? 0 : VALUE(beta) * *to); \
        } \
    } \
    void scipy_cblas_##NAME##gemm64_(int order, int trans_a, int trans_b, n_t m, n_t n, n_t k, \
        SCALAR alpha, const T *a, n_t lda, const T *b, n_t ldb, SCALAR beta, T *c, n_t ldc) { \
        for (n_t i = 0; i < m; i++) \
            for (n_t j = 0; j < n; j++) { \
                T sum = 0, *to = &AT(c, ldc, order, PLAIN, i, j); \
                for (n_t l = 0; l < k; l++) \
                    sum += NAME##_read(a, lda, order, trans_a, i, l) \
                        * NAME##_read(b, ldb, order, trans_b, l, j); \
                *to = VALUE(alpha) * sum + (VALUE(beta) == 0 ? 0 : VALUE(beta) * *to); \
            } \
    } \
    void scipy_cblas_##NAME##syrk64_(int order, int half, int trans, n_t n, n_t k, SCALAR alpha, \
        const T *a, n_t lda, SCALAR beta, T *c, n_t ldc) { \
        int other = trans == PLAIN ? TRANSPOSED : PLAIN; \
        if (half != UPPER) abort(); /* NumPy never asks for it */ \
        for (n_t i = 0; i < n; i++) \
            for (n_t j = i; j < n; j++) { \
                T sum = 0, *to = &AT(c, ldc, order, PLAIN, i, j); \
                for (n_t l = 0; l < k; l++) \
                    sum += NAME##_read(a, lda, order, trans, i, l) \
                        * NAME##_read(a, lda, order, other, l, j); \
                *to = VALUE(alpha) * sum + (VALUE(beta) == 0 ? 0 : VALUE(beta) * *to); \
            } \
    }

#define SAME(x) (x)
#define FROM(x) (*(x))
REAL(s_t, s)
REAL(d_t, d)
COMPLEX(c_t, c, u, SAME)
COMPLEX(c_t, c, c, conjf)
COMPLEX(z_t, z, u, SAME)
COMPLEX(z_t, z, c, conj)
BOTH(s_t, s, s_t, SAME, SAME)
BOTH(d_t, d, d_t, SAME, SAME)
BOTH(c_t, c, const c_t *, FROM, conjf)
BOTH(z_t, z, const z_t *, FROM, conj)
