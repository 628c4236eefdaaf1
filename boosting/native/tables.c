/* Kernels over the rows of a table: sorting, binning, gradients, histograms, partitions. The
   Python functions of the same names say what each does and return the same bytes. */
#include "../../crypto/native/common.h"

enum { AHEAD = 16, BLOCK = 1024, UNSORTED = 1 << 14 };
#define SIGN 0x80000000u
#define INFINITE 0x7F800000u

/* ---- sorting ---- */

INLINE u4 key_of(u4 bits)
{
    u4 b = bits & ~SIGN ? bits : 0;
    return b ^ (b >> 31 ? 0xFFFFFFFFu : SIGN);
}

EXPORT i8 present_keys(const u4 *bits, i8 n, u4 *out, i8 n_out)
{
    i8 found = 0;
    (void)n_out;
    for (i8 i = 0; i < n; i++) {
        out[found] = key_of(bits[i]);
        found += (bits[i] & ~SIGN) <= INFINITE;
    }
    return found;
}

EXPORT i8 count_in_order(const u4 *above, i8 n_above, const u4 *below, i8 n_below)
{
    i8 less = 0, most = 0, twice = 0;
    for (i8 i = 0; i < n_above; i++) {
        while (less < n_below && below[less] < above[i]) less++;
        while (most < n_below && below[most] <= above[i]) most++;
        twice += less + most;
    }
    return twice;
}

EXPORT void count_below(const u4 *high, i8 n_high, const i8 *starts, i8 n_starts, const u2 *low,
                        i8 n, const i8 *keys, i8 n_keys, i8 *out, i8 n_out)
{
    (void)n_starts, (void)n, (void)n_out;
    for (i8 k = 0; k < n_keys; k++) {
        i8 half = keys[k] >> 16, first = 0, last = n_high;
        while (first < last) {
            i8 middle = (first + last) / 2;
            if ((i8)high[middle] < half) first = middle + 1;
            else last = middle;
        }
        out[k] = starts[first];
        if (first == n_high || (i8)high[first] != half) continue;
        const u2 *own = low + starts[first];
        i8 end = starts[first + 1] - starts[first], below = 0;
        u2 wanted = (u2)keys[k], some = 0;
        if (end <= UNSORTED) {
            for (i8 i = 0; i < end; i++) some += own[i] < wanted;
            end = below = some;
        }
        while (below < end) {
            i8 middle = (below + end) / 2;
            if (own[middle] < wanted) below = middle + 1;
            else end = middle;
        }
        out[k] += below;
    }
}

/* `starts` counts the keys of each upper half, then has where the next of them goes. */
EXPORT i8 halves(const u4 *bits, i8 n, u2 *low, i8 n_low, u4 *high, i8 n_high, i8 *starts,
                 i8 n_starts, u4 *room, i8 n_room)
{
    i8 found = 0, total = 0, first = 0;
    (void)n_low;
    memset(starts, 0, (size_t)n_starts * sizeof *starts);
    for (i8 i = 0; i < n; i++)
        if ((bits[i] & ~SIGN) <= INFINITE) starts[key_of(bits[i]) >> 16]++;
    for (i8 half = 0; half < n_high; half++) {
        i8 size = starts[half];
        starts[half] = total;
        total += size;
    }
    for (i8 i = 0; i < n; i++)
        if ((bits[i] & ~SIGN) <= INFINITE) low[starts[key_of(bits[i]) >> 16]++] = (u2)key_of(bits[i]);
    for (i8 half = 0; half < n_high; half++) {
        i8 end = starts[half];
        if (end == first) continue;
        if (end - first > UNSORTED) {
            u2 *next = low + first;
            memset(room, 0, (size_t)n_room * sizeof *room);
            for (i8 i = first; i < end; i++) room[low[i]]++;
            for (i8 value = 0; value < n_room; value++)
                for (u4 k = 0; k < room[value]; k++) *next++ = (u2)value;
        }
        high[found] = (u4)half;
        starts[found++] = first;
        first = end;
    }
    starts[found] = first;
    return found;
}

/* Returns whether the keys in order are in `spare`. */
EXPORT i8 radix_sort(u4 *keys, i8 n, u4 *spare, i8 n_spare)
{
    i8 counts[3][2048] = {{0}}, swapped = 0;
    (void)n_spare;
    for (i8 i = 0; i < n; i++) {
        counts[0][keys[i] & 0x7FF]++;
        counts[1][keys[i] >> 11 & 0x7FF]++;
        counts[2][keys[i] >> 22]++;
    }
    for (int p = 0; p < 3; p++) {
        i8 *at = counts[p], total = 0;
        int shift = 11 * p, alike = 0;
        for (int d = 0; d < 2048; d++) alike |= at[d] == n;
        if (alike) continue;
        for (int d = 0; d < 2048; d++) {
            i8 size = at[d];
            at[d] = total;
            total += size;
        }
        for (i8 i = 0; i < n; i++) {
            u4 key = keys[i];
            spare[at[(key >> shift) & 0x7FF]++] = key;
        }
        u4 *other = keys;
        keys = spare;
        spare = other;
        swapped = !swapped;
    }
    return swapped;
}

EXPORT i8 ends_of_values(const u4 *keys, i8 n, i8 most, i8 *out, i8 n_out)
{
    i8 found = 0;
    (void)n_out;
    for (i8 i = 0; i < n; i++)
        if (i + 1 == n || keys[i] != keys[i + 1]) {
            out[found++] = i;
            if (found > most) break;
        }
    return found;
}

/* ---- binning ---- */

EXPORT void count_before(const u4 *cells, i8 n_cells, u2 *out, i8 n_out)
{
    i8 start = 0;
    for (i8 k = 0; k < n_cells; k++) {
        i8 stop = (i8)cells[k] + 2;
        for (i8 i = start; i < stop && i < n_out; i++) out[i] = (u2)k;
        start = start < stop ? stop : start;
    }
    for (i8 i = start; i < n_out; i++) out[i] = (u2)n_cells;
}

WIDE static void find_cells(const u4 *bits, i8 n, u4 base, u4 shift, u4 last, u4 *out)
{
    for (i8 k = 0; k < n; k++) {
        u4 b = bits[k] == SIGN ? 0 : bits[k];
        u4 key = b ^ (b >> 31 ? 0xFFFFFFFFu : SIGN);
        u4 cell = (key - base) >> shift;
        cell = (cell < last ? cell : last) + 1;
        out[k] = key < base ? 0 : cell;
    }
}

WIDE static i8 count_odd(const f4 *x, i8 n, f4 lower, f4 upper, i8 *bad)
{
    i4 absent = 0, outside = 0;
    for (i8 i = 0; i < n; i++) {
        absent += x[i] != x[i];
        outside += (x[i] < lower) | (x[i] >= upper);
    }
    *bad += outside;
    return absent;
}

/* Returns 1 where a value is missing, plus 2 where one is outside of the fences. */
#define BIN_COLUMN(T)                                                                              \
    EXPORT i8 bin_column_##T(const f4 *x, i8 n, const f4 *inner, i8 n_inner, f4 lower, f4 upper,   \
                             u4 base, u4 shift, const u2 *first, i8 n_first, T *out, i8 n_out)     \
    {                                                                                              \
        u4 at[BLOCK], last = (u4)(n_first - 3);                                                    \
        i8 n_missing = 0, n_bad = 0;                                                               \
        (void)n_out;                                                                               \
        for (i8 start = 0; start < n; start += BLOCK) {                                            \
            i8 stop = least_of(start + BLOCK, n);                                                  \
            find_cells((const u4 *)(const void *)(x + start), stop - start, base, shift, last, at); \
            i8 absent = count_odd(x + start, stop - start, lower, upper, &n_bad);                  \
            for (i8 i = start; i < stop; i++) {                                                    \
                u4 cell = at[i - start];                                                           \
                u2 low = first[cell], high = first[cell + 1];                                      \
                u2 above = (low < high) & (x[i] >= inner[low]);                                    \
                low += above;                                                                      \
                if (above && low < high)                                                           \
                    while (low < high) {                                                           \
                        u2 middle = (u2)((low + high) >> 1);                                       \
                        if (x[i] >= inner[middle]) low = middle + 1;                               \
                        else high = middle;                                                        \
                    }                                                                              \
                out[i] = (T)low;                                                                   \
            }                                                                                      \
            if (absent) {                                                                          \
                n_missing += absent;                                                               \
                for (i8 i = start; i < stop; i++)                                                  \
                    if (x[i] != x[i]) out[i] = (T)n_inner;                                         \
            }                                                                                      \
        }                                                                                          \
        return (n_missing > 0) | (n_bad > 0) << 1;                                                 \
    }
BIN_COLUMN(u1)
BIN_COLUMN(u2)

#define COPY_CODES(T)                                                                              \
    EXPORT i8 copy_codes_##T(const f4 *x, i8 n, i8 n_bins, T *out, i8 n_out)                       \
    {                                                                                              \
        i8 missing = 0, bad = 0;                                                                   \
        (void)n_out;                                                                               \
        for (i8 i = 0; i < n; i++) {                                                               \
            if (x[i] != x[i]) {                                                                    \
                out[i] = (T)n_bins;                                                                \
                missing = 1;                                                                       \
            } else if (!(x[i] >= 0 && x[i] < (f4)n_bins) || (f4)(i8)x[i] != x[i]) {                \
                bad = 1;                                                                           \
            } else {                                                                               \
                out[i] = (T)x[i];                                                                  \
            }                                                                                      \
        }                                                                                          \
        return missing | bad << 1;                                                                 \
    }
COPY_CODES(u1)
COPY_CODES(u2)

#define TRANSPOSE(T)                                                                               \
    EXPORT void transpose_##T(const T *columns, i8 n_columns, i8 n, T *rows, i8 n_rows, i8 width)  \
    {                                                                                              \
        (void)n_columns;                                                                           \
        for (i8 start = 0; start < n_rows; start += BLOCK) {                                       \
            i8 stop = least_of(start + BLOCK, n_rows);                                             \
            for (i8 j = 0; j < width; j++)                                                         \
                for (i8 i = start; i < stop; i++) rows[i * width + j] = columns[j * n + i];        \
        }                                                                                          \
    }
TRANSPOSE(u1)
TRANSPOSE(u2)
TRANSPOSE(i8)

/* ---- histograms and partitions ---- */

INLINE i8 integer_i8(i8 value, f8 unit)
{
    (void)unit;
    return value;
}
INLINE i8 integer_f4(f4 value, f8 unit) { return (i8)rint((f8)value * unit); }

typedef i8 pair __attribute__((vector_size(16), aligned(8), may_alias));

#define ADD_PAIRS(BIN)                                                                             \
    for (i8 k = 0; k < n_used; k++) {                                                              \
        pair *at = (pair *)(target + slots[k] + 2 * (u8)(BIN));                                    \
        *at += both;                                                                               \
    }

#define ACCUMULATE(B, G)                                                                           \
    EXPORT i8 accumulate_##B##_##G(                                                                \
        const B *bins, i8 n_bins, i8 stride, const i4 *order, i8 n_order, const G *gradients,      \
        i8 n_gradients, const u8 *used, i8 n_used, const u8 *offsets, i8 n_offsets, i8 n_values,   \
        i8 missing, f8 unit_g, f8 unit_h, const i8 *starts, i8 n_starts, const i8 *stops,          \
        i8 n_stops, i8 *out, i8 n_out, i8 size)                                                    \
    {                                                                                              \
        i8 room = missing ? size + n_used * n_values : 0;                                          \
        i8 *spare = malloc(8 * (size_t)(room + n_used + n_values + 1));                            \
        if (!spare) return NO_MEMORY;                                                              \
        i8 *slots = spare + room, *own = slots + n_used;                                           \
        (void)n_bins, (void)n_order, (void)n_gradients, (void)n_offsets, (void)n_stops, (void)n_out; \
        for (i8 k = 0; k < n_used; k++) slots[k] = n_values * ((i8)offsets[k] + missing * k);      \
        for (i8 s = 0; s < n_starts; s++) {                                                        \
            i8 *target = missing ? spare : out + s * size;                                         \
            memset(target, 0, 8 * (size_t)(missing ? room : size));                                \
            i8 stop = stops[s];                                                                    \
            for (i8 i = starts[s]; i < stop; i++) {                                                \
                if (i + AHEAD < stop) {                                                            \
                    u8 ahead = (u4)order[i + AHEAD];                                               \
                    PREFETCH(bins + ahead * (u8)stride);                                           \
                    PREFETCH(bins + ahead * (u8)stride + stride - 1);                              \
                    PREFETCH(gradients + ahead * (u8)n_values);                                    \
                }                                                                                  \
                u8 row = (u4)order[i];                                                             \
                const B *base = bins + row * (u8)stride;                                           \
                const G *first = gradients + row * (u8)n_values;                                   \
                if (n_values != 2) {                                                               \
                    for (i8 c = 0; c < n_values; c++)                                              \
                        own[c] = integer_##G(first[c], c & 1 ? unit_h : unit_g);                   \
                    for (i8 k = 0; k < n_used; k++) {                                              \
                        i8 *at = target + slots[k] + n_values * (i8)base[used[k]];                 \
                        for (i8 c = 0; c < n_values; c++) at[c] += own[c];                         \
                    }                                                                              \
                    continue;                                                                      \
                }                                                                                  \
                pair both = {integer_##G(first[0], unit_g), integer_##G(first[1], unit_h)};        \
                if (n_used == stride) ADD_PAIRS(base[k])                                           \
                else ADD_PAIRS(base[used[k]])                                                      \
            }                                                                                      \
            if (missing)                                                                           \
                for (i8 k = 0; k < n_used; k++)                                                    \
                    memcpy(out + s * size + n_values * (i8)offsets[k], target + slots[k],          \
                           8 * (size_t)(n_values * (i8)(offsets[k + 1] - offsets[k])));            \
        }                                                                                          \
        free(spare);                                                                               \
        return 0;                                                                                  \
    }
ACCUMULATE(u1, i8)
ACCUMULATE(u2, i8)
ACCUMULATE(u1, f4)
ACCUMULATE(u2, f4)

#define SUM_ROWS(G)                                                                                \
    EXPORT void sum_rows_##G(const i4 *order, i8 n_order, const i8 *starts, i8 n_starts,           \
                             const i8 *stops, i8 n_stops, const G *gradients, i8 n_gradients,      \
                             f8 unit_g, f8 unit_h, i8 *out, i8 n_out, i8 n_values)                 \
    {                                                                                              \
        (void)n_order, (void)n_stops, (void)n_gradients, (void)n_out;                              \
        for (i8 s = 0; s < n_starts; s++, out += n_values)                                         \
            for (i8 i = starts[s]; i < stops[s]; i++) {                                            \
                if (i + AHEAD < stops[s])                                                          \
                    PREFETCH(gradients + (u8)(u4)order[i + AHEAD] * (u8)n_values);                 \
                const G *first = gradients + (u8)(u4)order[i] * (u8)n_values;                      \
                for (i8 c = 0; c < n_values; c++)                                                  \
                    out[c] += integer_##G(first[c], c & 1 ? unit_h : unit_g);                      \
            }                                                                                      \
    }
SUM_ROWS(i8)
SUM_ROWS(f4)

#define PARTITION(B)                                                                               \
    EXPORT void partition_rows_##B(                                                                \
        const B *bins, i8 n_bins, i8 by_feature, i8 by_row, const i8 *features, i8 n_features,     \
        const u1 *goes_left, i8 n_left_rows, i8 width, i4 *order, i8 n_order, i4 *spare,           \
        i8 n_spare, const i8 *starts, i8 n_starts, const i8 *stops, i8 n_stops, i8 *n_left,        \
        i8 n_n_left)                                                                               \
    {                                                                                              \
        (void)n_bins, (void)n_features, (void)n_left_rows, (void)n_order, (void)n_spare;           \
        (void)n_stops, (void)n_n_left;                                                             \
        for (i8 s = 0; s < n_starts; s++) {                                                        \
            i8 start = starts[s], stop = stops[s], middle = start;                                 \
            const B *column = bins + features[s] * by_feature;                                     \
            const u1 *to_left = goes_left + s * width;                                             \
            for (i8 i = start; i < stop; i++) {                                                    \
                if (i + AHEAD < stop) PREFETCH(column + (i8)(u4)order[i + AHEAD] * by_row);        \
                i4 row = order[i];                                                                 \
                i8 left = to_left[column[(i8)(u4)row * by_row]];                                   \
                order[middle] = row;                                                               \
                spare[i - middle] = row;                                                           \
                middle += left;                                                                    \
            }                                                                                      \
            memcpy(order + middle, spare, 4 * (size_t)(stop - middle));                            \
            n_left[s] = middle - start;                                                            \
        }                                                                                          \
    }
PARTITION(u1)
PARTITION(u2)

EXPORT void sum_cells(const i8 *starts, i8 n_starts, const i4 *rows, i8 n_rows, const i8 *cells,
                      i8 n_cells, const i4 *node_of, i8 n_node_of, const i8 *gradients,
                      i8 n_gradients, i8 n_values, i8 first, i8 *out, i8 n_nodes, i8 n_all_cells,
                      i8 width)
{
    (void)n_starts, (void)n_rows, (void)n_node_of, (void)n_gradients, (void)n_nodes;
    for (i8 c = 0; c < n_cells; c++)
        for (i8 e = starts[cells[c]]; e < starts[cells[c] + 1]; e++) {
            i8 row = (u4)rows[e], node = node_of[row];
            if (node < 0) continue;
            i8 *into = out + (node * n_all_cells + first + c) * width;
            for (i8 v = 0; v < n_values; v++) into[v] += gradients[row * n_values + v];
        }
}

EXPORT void add_by_span(const i4 *order, i8 n_order, const i8 *starts, i8 n_starts,
                        const i8 *stops, i8 n_stops, const f4 *values, i8 n_values_rows, i8 width,
                        const i8 *columns, i8 n_columns, f4 *margins, i8 n_rows, i8 n_outputs)
{
    (void)n_order, (void)n_stops, (void)n_values_rows, (void)n_rows;
    for (i8 s = 0; s < n_starts; s++)
        for (i8 c = 0; c < n_columns; c++) {
            f4 value = values[s * width + c];
            f4 *column = margins + columns[c];
            for (i8 i = starts[s]; i < stops[s]; i++) column[(i8)(u4)order[i] * n_outputs] += value;
        }
}

#define ADD_BY_ROUTE(B)                                                                            \
    EXPORT void add_by_route_##B(                                                                  \
        const B *by_row, i8 n, i8 stride, i8 depth, const i4 *table, i8 n_nodes, i8 four,          \
        const u1 *is_categorical, i8 n_categorical, const u1 *goes_right, i8 n_right, i8 widest,   \
        const f4 *values, i8 n_values, i8 width, const i8 *columns, i8 n_columns, f4 *margins,     \
        i8 n_margins, i8 n_outputs)                                                                \
    {                                                                                              \
        i4 at[16];                                                                                 \
        int categorical = n_right > 1;                                                             \
        (void)n_nodes, (void)four, (void)n_categorical, (void)n_values, (void)n_margins;           \
        for (i8 first = 0; first < n; first += 16) {                                               \
            i8 size = least_of(16, n - first);                                                     \
            memset(at, 0, sizeof at);                                                              \
            for (i8 d = 0; d < depth; d++)                                                         \
                for (i8 i = 0; i < size; i++) {                                                    \
                    const i4 *node = table + 4 * (i8)at[i];                                        \
                    i4 b = by_row[(first + i) * stride + node[1]];                                 \
                    i4 right = (b > node[2]) & (b != node[3]);                                     \
                    if (categorical && is_categorical[at[i]])                                      \
                        right = goes_right[(i8)at[i] * widest + b];                                \
                    at[i] = node[0] + right;                                                       \
                }                                                                                  \
            for (i8 i = 0; i < size; i++)                                                          \
                for (i8 c = 0; c < n_columns; c++)                                                 \
                    margins[(first + i) * n_outputs + columns[c]] += values[at[i] * width + c];    \
        }                                                                                          \
    }
ADD_BY_ROUTE(u1)
ADD_BY_ROUTE(u2)

/* ---- gradients; g and h may be columns of one array of pairs: their shapes and steps follow ---- */

EXPORT void logistic(const f4 *margins, i8 n, const f4 *y, i8 n_y, const f4 *weight, i8 n_weight,
                     f4 positive, f4 *g, i8 n_g, i8 g_step, f4 *h, i8 n_h, i8 h_step)
{
    const f4 least = 1e-16f;
    (void)n_y, (void)n_g, (void)n_h;
    for (i8 i = 0; i < n; i++) {
        f4 minus = -margins[i];
        f4 p = 1.0f / (expf(minus < 88.7f ? minus : (minus != minus ? minus : 88.7f)) + 1.0f + least);
        f4 w = n_weight ? weight[i] : 1.0f, pq = p * (1.0f - p);
        if (y[i] == 1.0f) w *= positive;
        g[i * g_step] = (p - y[i]) * w;
        h[i * h_step] = (pq >= least || pq != pq ? pq : least) * w;
    }
}

EXPORT void softmax(const f4 *margins, i8 n, i8 n_classes, const f4 *y, i8 n_y, const f4 *weight,
                    i8 n_weight, f4 factor, f4 *g, i8 n_g, i8 g_classes, i8 g_row, i8 g_step, f4 *h,
                    i8 n_h, i8 h_classes, i8 h_row, i8 h_step)
{
    const f4 least = 1e-16f;
    (void)n_y, (void)n_g, (void)g_classes, (void)n_h, (void)h_classes;
    for (i8 i = 0; i < n; i++, margins += n_classes, g += g_row, h += h_row) {
        f4 top = margins[0], w = n_weight ? weight[i] : 1.0f;
        f8 total = 0.0;
        for (i8 c = 1; c < n_classes; c++) top = margins[c] > top ? margins[c] : top;
        for (i8 c = 0; c < n_classes; c++) {
            f4 e = expf(margins[c] - top);
            g[c * g_step] = e;
            total += e;
        }
        for (i8 c = 0; c < n_classes; c++) {
            f4 p = g[c * g_step] / (f4)total, d = factor * p * (1.0f - p) * w;
            h[c * h_step] = d >= least || d != d ? d : least;
            g[c * g_step] = ((f4)c == y[i] ? p - 1.0f : p) * w;
        }
    }
}

enum { SQUARED = 3, LSE, LAE, HUBER, FAIR, LOG_COSH, TWEEDIE, POISSON, GAMMA, SQUARED_LOG,
       ABSOLUTE = 14, QUANTILE };

EXPORT void regression(i8 kind, f8 a, const f4 *margins, i8 n, const f4 *y, i8 n_y,
                       const f4 *weight, i8 n_weight, f4 *g, i8 n_g, i8 g_step, f4 *h, i8 n_h,
                       i8 h_step)
{
    (void)n_y, (void)n_g, (void)n_h;
    for (i8 i = 0; i < n; i++) {
        f8 s = margins[i], label = y[i], r = s - label, grad, hess;
        if (kind == SQUARED) {
            grad = r, hess = 1.0;
        } else if (kind == LSE) {
            grad = 2.0 * r, hess = 2.0;
        } else if (kind == LAE) {
            grad = fabs(r) < 1e-8 ? 0.0 : r > 0 ? 1.0 : -1.0, hess = 1.0;
        } else if (kind == HUBER) {
            f8 root = sqrt(1.0 + (r / a) * (r / a));
            grad = r / root, hess = 1.0 / (root * root * root);
        } else if (kind == FAIR) {
            f8 share = a / (fabs(r) + a);
            grad = a * r / (fabs(r) + a), hess = share * share;
        } else if (kind == LOG_COSH) {
            f8 t = tanh(r);
            grad = t, hess = 1.0 - t * t;
        } else if (kind == TWEEDIE) {
            f8 low = exp((1.0 - a) * s), high = exp((2.0 - a) * s);
            grad = high - label * low;
            hess = (2.0 - a) * high - label * (1.0 - a) * low;
        } else if (kind == POISSON) {
            grad = exp(s) - label, hess = exp(s + a);
        } else if (kind == GAMMA) {
            hess = label * exp(-s), grad = 1.0 - hess;
        } else if (kind == SQUARED_LOG) {
            f4 least = (f4)(-1.0 + 1e-6), p = margins[i] > least ? margins[i] : least;
            f4 more = (f4)log1p(p) - (f4)log1p(label), shifted = p + 1.0f;
            f4 curved = (1.0f - more) / (shifted * shifted);
            grad = more / shifted, hess = curved > 1e-6f ? curved : 1e-6f;
        } else if (kind == ABSOLUTE) {
            grad = (r > 0) - (r < 0), hess = 1.0;
        } else if (kind == QUANTILE) {
            grad = r >= 0 ? 1.0 - a : -a, hess = 1.0;
        } else { // hinge
            f8 sign = 2.0 * label - 1.0, within = s * sign < 1.0;
            grad = within * -sign, hess = within;
        }
        f4 w = n_weight ? weight[i] : 1.0f;
        g[i * g_step] = (f4)grad * w;
        h[i * h_step] = (f4)hess * w;
    }
}

/* ---- failure times: the density of log(time), the probability below it, and its slopes ---- */

enum { NORMAL, LOGISTIC, EXTREME };

typedef struct {
    f8 density, below, slope, curve;
} at_z;

INLINE at_z distribution(i8 kind, f8 z)
{
    if (kind == NORMAL) {
        f8 density = exp(-z * z / 2.0) / sqrt(2.0 * 3.14159265358979323846);
        return (at_z){density, 0.5 * (1.0 + erf(z / sqrt(2.0))), -z * density,
                      (z * z - 1.0) * density};
    }
    f8 w = z < 709.0 ? exp(z) : INFINITY;
    if (isinf(w)) return (at_z){0.0, 1.0, 0.0, 0.0};
    int far = isinf(w * w);
    if (kind == LOGISTIC) {
        f8 density = far ? 0.0 : w / ((1.0 + w) * (1.0 + w));
        f8 curve = far ? 0.0 : density * (w * w - 4.0 * w + 1.0) / ((1.0 + w) * (1.0 + w));
        return (at_z){density, w / (1.0 + w), density * (1.0 - w) / (1.0 + w), curve};
    }
    f8 density = w * exp(-w);
    return (at_z){density, 1.0 - exp(-w), (1.0 - w) * density,
                  far ? 0.0 : (w * w - 3.0 * w + 1.0) * density};
}

EXPORT void failure_times(i8 kind, f8 scale, const f4 *margins, i8 n, const f4 *bounds, i8 n_bounds,
                          i8 two, const f4 *weight, i8 n_weight, f4 *g, i8 n_g, i8 g_step, f4 *h,
                          i8 n_h, i8 h_step)
{
    const f8 most = 15.0, least_h = 1e-16;
    (void)n_bounds, (void)n_g, (void)n_h;
    for (i8 i = 0; i < n; i++) {
        f8 lower = bounds[i * two], upper = bounds[i * two + 1];
        f8 part, whole, bent, square;
        int left = lower <= 0.0, endless = isinf(upper);
        f8 last = endless ? 0.0 : (log(upper) - margins[i]) / scale;
        f8 first = left ? 0.0 : (log(lower) - margins[i]) / scale;
        int above = last > 0.0 || first > 0.0;
        if (lower == upper) {
            at_z at = distribution(kind, first);
            part = at.slope, whole = scale * at.density;
            square = scale * scale * at.density * at.density;
            bent = -(at.density * at.curve - at.slope * at.slope);
        } else {
            at_z end = endless ? (at_z){0.0, 1.0, 0.0, 0.0} : distribution(kind, last);
            at_z start = left ? (at_z){0.0, 0.0, 0.0, 0.0} : distribution(kind, first);
            f8 likely = end.below - start.below;
            part = end.density - start.density, whole = scale * likely, square = whole * whole;
            bent = -(likely * (end.slope - start.slope) - part * part);
        }
        f8 grad = whole != 0.0 ? part / whole : INFINITY;
        f8 hess = square != 0.0 ? bent / square : INFINITY;
        if (!isfinite(grad)) {
            grad = kind == NORMAL ? most : 1.0 / scale;
            if (above) grad = kind == LOGISTIC ? -1.0 / scale : -most;
        }
        if (!isfinite(hess))
            hess = kind == NORMAL ? 1.0 / (scale * scale) : kind == EXTREME && above ? most : 0.0;
        grad = grad > most ? most : grad < -most ? -most : grad;
        hess = hess > most ? most : hess < least_h ? least_h : hess;
        f4 w = n_weight ? weight[i] : 1.0f;
        g[i * g_step] = (f4)grad * w;
        h[i * h_step] = (f4)hess * w;
    }
}

/* ---- rankings: pairs of the first rows of a query by score, and all rows below them ---- */

enum { NDCG, PAIRWISE, MAP };

INLINE f8 gain(f4 label) { return (f8)((1u << (unsigned)label) - 1u); }

EXPORT void lambdas(i8 kind, i8 top, i8 by_distance, const f4 *margins, i8 n_rows, const f4 *y,
                    i8 n_y, const i8 *starts, i8 n_starts, const i8 *ranked, i8 n_ranked,
                    const f4 *best, i8 n_best, f8 *work, i8 three, i8 most, f4 *g, i8 n_g,
                    i8 g_step, f4 *h, i8 n_h, i8 h_step)
{
    const f4 least = 1e-16f;
    f8 *discount = work, *relevant = work + most, *precise = work + 2 * most;
    (void)n_rows, (void)n_y, (void)n_ranked, (void)n_best, (void)three, (void)n_g, (void)n_h;
    for (i8 i = 0; i < most; i++) discount[i] = 1.0 / log2(i + 2.0);
    for (i8 q = 0; q + 1 < n_starts; q++) {
        i8 first = starts[q], n = starts[q + 1] - first;
        const i8 *rows = ranked + first;
        f8 ideal = 0.0, hits = 0.0, share = 0.0, total = 0.0;
        for (i8 i = 0; i < n; i++) {
            f8 label = y[rows[i]];
            g[(first + i) * g_step] = h[(first + i) * h_step] = 0.0f;
            if (i < top) ideal += discount[i] * gain(best[first + i]);
            hits += label, share += label / (i + 1.0);
            relevant[i] = hits, precise[i] = share;
        }
        f8 inverse = ideal > 0.0 ? 1.0 / ideal : 0.0;
        int spread = by_distance && margins[rows[0]] != margins[rows[n - 1]];
        for (i8 i = 0; i < n && i < top; i++)
            for (i8 j = i + 1; j < n; j++) {
                if (y[rows[i]] == y[rows[j]]) continue;
                i8 high = y[rows[i]] > y[rows[j]] ? i : j, low = high == i ? j : i;
                f8 change = 1.0;
                if (kind == NDCG) {
                    f8 gain_high = gain(y[rows[high]]), gain_low = gain(y[rows[low]]);
                    f8 now = gain_high * discount[high] + gain_low * discount[low];
                    f8 then = gain_low * discount[high] + gain_high * discount[low];
                    change = fabs((now - then) * inverse);
                } else if (kind == MAP) {
                    f8 between = precise[j - 1] - precise[i], at_i = i + 1.0, at_j = j + 1.0;
                    f8 moved = high == j
                                   ? relevant[j] / at_j - (relevant[i] + 1.0) / at_i - between
                                   : relevant[i] / at_i - relevant[j] / at_j + between;
                    change = fabs(moved / relevant[n - 1]);
                }
                f4 apart = margins[rows[high]] - margins[rows[low]];
                if (spread) change /= (f8)fabsf(apart) + 0.01;
                f4 chance_f4 = 1.0f / (expf(-apart < 88.7f ? -apart : 88.7f) + 1.0f + least);
                f8 chance = chance_f4, curve = chance * (1.0 - chance);
                f4 grad = (f4)((chance - 1.0) * change);
                f4 hess = (f4)((curve > 1e-16 ? curve : 1e-16) * change * 2.0);
                g[rows[high] * g_step] += grad, h[rows[high] * h_step] += hess;
                g[rows[low] * g_step] -= grad, h[rows[low] * h_step] += hess;
                total += -2.0 * (f8)grad;
            }
        if (total > 0.0) {
            f4 scale = (f4)(log2(1.0 + total) / total);
            for (i8 i = first; i < first + n; i++) g[i * g_step] *= scale, h[i * h_step] *= scale;
        }
    }
}

/* ---- quantising and sampling ---- */

INLINE f4 clipped(f4 value, f4 most)
{
    if (fabsf(value) <= most) return value;
    if (value > most) return most;
    return value < -most ? -most : 0.0f;
}

/* g and h with their shapes and steps. */
#define PAIRS                                                                                      \
    const f4 *g, i8 n_g, i8 n_outputs, i8 g_row, i8 g_step, const f4 *h, i8 n_h, i8 h_outputs,     \
        i8 h_row, i8 h_step
#define OF_PAIRS (void)n_g, (void)n_h, (void)h_outputs

EXPORT void largest(PAIRS, const i4 *rows, i8 n, const f4 *weight, i8 n_weight, f8 *out, i8 two)
{
    OF_PAIRS;
    f8 top_g = 0.0, top_h = 0.0;
    int weighted = n_weight == n;
    (void)two;
    for (i8 i = 0; i < n; i++) {
        f4 w = weighted ? weight[i] : 1.0f;
        for (i8 c = 0; c < n_outputs; c++) {
            f8 a = fabsf(g[(i8)rows[i] * g_row + c * g_step]) * w;
            f8 b = h[(i8)rows[i] * h_row + c * h_step] * w;
            if (!(a < INFINITY && b < INFINITY)) {
                out[0] = out[1] = INFINITY;
                return;
            }
            top_g = a > top_g ? a : top_g;
            top_h = b > top_h ? b : top_h;
        }
    }
    out[0] = top_g, out[1] = top_h;
}

EXPORT void weigh_rows(f4 *pairs, i8 n_pairs, i8 width, const i4 *rows, i8 n, const f4 *weight,
                       i8 n_weight, f4 most_g, f4 most_h)
{
    (void)n_pairs;
    for (i8 i = 0; i < n; i++) {
        f4 *own = pairs + (i8)rows[i] * width, w = n_weight ? weight[i] : 1.0f;
        for (i8 c = 0; c < width; c += 2) {
            own[c] = clipped(own[c] * w, most_g);
            own[c + 1] = clipped(own[c + 1] * w, most_h);
        }
    }
}

EXPORT void round_rows(PAIRS, const i4 *rows, i8 n, const f4 *weight, i8 n_weight, f8 scale_g,
                       f8 scale_h, f4 most_g, f4 most_h, const f4 *draws, i8 n_draws, i8 width,
                       i8 *out, i8 n_out, i8 n_values)
{
    OF_PAIRS;
    (void)n_out;
    for (i8 i = 0; i < n; i++) {
        i8 row = rows[i];
        f4 w = n_weight ? weight[i] : 1.0f;
        for (i8 c = 0; c < n_outputs; c++) {
            i8 *into = out + row * n_values + 2 * c;
            f8 a = (f8)clipped(g[row * g_row + c * g_step] * w, most_g) * scale_g;
            f8 b = (f8)clipped(h[row * h_row + c * h_step] * w, most_h) * scale_h;
            if (n_draws) {
                into[0] = (i8)floor(a + draws[i * width + 2 * c]);
                into[1] = (i8)floor(b + draws[i * width + 2 * c + 1]);
            } else {
                into[0] = (i8)rint(a);
                into[1] = (i8)rint(b);
            }
        }
    }
}

EXPORT void mvs_scores(PAIRS, f8 lam, f8 *out, i8 n_out)
{
    OF_PAIRS;
    for (i8 i = 0; i < n_out; i++) {
        f8 total = 0.0;
        for (i8 c = 0; c < n_outputs; c++) {
            f8 a = g[i * g_row + c * g_step], b = h[i * h_row + c * h_step];
            total += a * a + lam * b * b;
        }
        out[i] = sqrt(total);
    }
}

EXPORT f8 mvs_root(f8 *s, i8 n, f8 target)
{
    i8 low = 0, high = n, n_above = 0;
    f8 below = 0.0;
    while (low < high) {
        f8 pivot = s[low + (high - low) / 2], small = 0.0;
        i8 i = low, j = low, k = high;
        while (j < k) {
            f8 v = s[j];
            if (v < pivot) {
                small += v;
                s[j++] = s[i];
                s[i++] = v;
            } else if (v > pivot) {
                s[j] = s[--k];
                s[k] = v;
            } else {
                j++;
            }
        }
        f8 kept = pivot > 0 ? (below + small) / pivot + (f8)(high - i) + (f8)n_above : INFINITY;
        if (kept > target) {
            below += small + pivot * (f8)(k - i);
            low = k;
        } else {
            n_above += high - i;
            high = i;
        }
    }
    return below / (target - (f8)n_above);
}

EXPORT i8 keep_rows(const f8 *scores, i8 n, f8 mu, const f4 *draws, i8 n_draws, i4 *rows,
                    i8 n_rows, f4 *weight, i8 n_weight)
{
    i8 kept = 0;
    (void)n_draws, (void)n_rows, (void)n_weight;
    for (i8 i = 0; i < n; i++) {
        f8 p = scores[i] / mu;
        if (p >= 1.0 || draws[i] < p) {
            rows[kept] = (i4)i;
            weight[kept++] = p >= 1.0 ? 1.0f : (f4)(1.0 / p);
        }
    }
    return kept;
}
