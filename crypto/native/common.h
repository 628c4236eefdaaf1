/* What all kernels share. Arrays are contiguous, in C order, and each is followed by its shape. */
#ifndef HEDGEROW_COMMON_H
#define HEDGEROW_COMMON_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define PREFETCH(address) __builtin_prefetch((address), 0, 3)

/* Loops that gain from wide vectors are compiled for several CPUs; the loader picks one. No
   product is fused with a sum (-ffp-contract=off), so all give the same floats. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDE
#endif

typedef uint8_t u1;
typedef uint16_t u2;
typedef uint32_t u4;
typedef uint64_t u8;
typedef int32_t i4;
typedef int64_t i8;
typedef float f4;
typedef double f8;

/* The return value of a kernel that found no memory for its buffers. */
#define NO_MEMORY INT64_MIN

/* Positions in the order of their values, those of equal ones as they are: a merge sort. */
#define SORT_POSITIONS(T)                                                                          \
    static inline void sort_positions_##T(const T *values, i8 n, i8 *order, i8 *spare)             \
    {                                                                                              \
        for (i8 i = 0; i < n; i++) order[i] = i;                                                   \
        for (i8 width = 1; width < n; width *= 2) {                                                \
            for (i8 low = 0; low < n; low += 2 * width) {                                          \
                i8 middle = low + width < n ? low + width : n;                                     \
                i8 high = low + 2 * width < n ? low + 2 * width : n, a = low, b = middle;          \
                for (i8 i = low; i < high; i++)                                                    \
                    spare[i] = a < middle &&                                                       \
                                       (b >= high || !(values[order[b]] < values[order[a]]))       \
                                   ? order[a++]                                                    \
                                   : order[b++];                                                   \
            }                                                                                      \
            memcpy(order, spare, 8 * (size_t)n);                                                   \
        }                                                                                          \
    }

INLINE i8 least_of(i8 a, i8 b) { return a < b ? a : b; }
INLINE i8 greatest_of(i8 a, i8 b) { return a > b ? a : b; }

#endif
