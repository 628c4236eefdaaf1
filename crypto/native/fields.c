/* Kernels of `crypto.masking.fields`: vectors of fields of different widths. */
#include "common.h"

#define FIELDS(W)                                                                                  \
    EXPORT void pack_fields_##W(const i8 *rows, i8 n, i8 n_columns, const i8 *index, i8 n_index,   \
                                const i8 *more, i8 n_more, i8 more_columns, const W *widths,       \
                                i8 n_segments, i8 n_widths, const i8 *counts, i8 n_counts,         \
                                u8 *out, i8 n_out)                                                 \
    {                                                                                              \
        u8 word = 0, used = 0;                                                                     \
        (void)n_index, (void)n_more, (void)more_columns, (void)n_counts, (void)n_out;              \
        for (i8 s = 0; s < n_segments; s++, widths += n_widths)                                    \
            for (i8 k = 0; k < counts[s]; k++, index++) {                                          \
                const i8 *row = *index < n ? rows + *index * n_columns                             \
                                           : more + (*index - n) * n_columns;                      \
                for (i8 c = 0; c < n_widths; c++) {                                                \
                    u8 width = widths[c];                                                          \
                    if (!width) continue;                                                          \
                    u8 value = (u8)row[c] & ~(u8)0 >> (64 - width);                                \
                    word |= value << used;                                                         \
                    used += width;                                                                 \
                    if (used >= 64) {                                                              \
                        *out++ = word;                                                             \
                        used -= 64;                                                                \
                        word = used ? value >> (width - used) : 0;                                 \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        if (used) *out = word;                                                                     \
    }                                                                                              \
    EXPORT void unpack_fields_##W(const u8 *words, i8 n_words, const W *widths, i8 n_segments,     \
                                  i8 n_widths, const i8 *counts, i8 n_counts, const u1 *is_signed, \
                                  i8 n_signed, i8 *rows, i8 n, i8 n_columns, const i8 *index,      \
                                  i8 n_index, i8 *more, i8 n_more, i8 more_columns)                \
    {                                                                                              \
        u8 bit = 0;                                                                                \
        (void)n_words, (void)n_counts, (void)n_signed, (void)n_index, (void)n_more;                \
        (void)more_columns;                                                                        \
        for (i8 s = 0; s < n_segments; s++, widths += n_widths)                                    \
            for (i8 k = 0; k < counts[s]; k++, index++) {                                          \
                i8 *row = *index < n ? rows + *index * n_columns                                   \
                                     : more + (*index - n) * n_columns;                            \
                for (i8 c = 0; c < n_widths; c++) {                                                \
                    u8 width = widths[c], at = bit >> 6, used = bit & 63;                          \
                    if (!width) {                                                                  \
                        row[c] = 0;                                                                \
                        continue;                                                                  \
                    }                                                                              \
                    u8 value = words[at] >> used, rest = 64 - width;                               \
                    if (used + width > 64) value |= words[at + 1] << (64 - used);                  \
                    value <<= rest;                                                                \
                    row[c] = is_signed[c] ? (i8)value >> rest : (i8)(value >> rest);               \
                    bit += width;                                                                  \
                }                                                                                  \
            }                                                                                      \
    }                                                                                              \
    EXPORT void mark_fields_##W(const W *widths, i8 n_segments, i8 n_widths, const i8 *counts,     \
                                i8 n_counts, u8 *out, i8 n_out)                                    \
    {                                                                                              \
        u8 bit = 0;                                                                                \
        (void)n_counts;                                                                            \
        for (i8 s = 0; s < n_segments; s++, widths += n_widths)                                    \
            for (i8 k = 0; k < counts[s]; k++)                                                     \
                for (i8 c = 0; c < n_widths; c++) {                                                \
                    if (!widths[c]) continue;                                                      \
                    bit += widths[c];                                                              \
                    out[(bit - 1) >> 6] |= (u8)1 << ((bit - 1) & 63);                              \
                }                                                                                  \
        if (bit & 63) out[n_out - 1] |= (u8)1 << 63;                                               \
    }
FIELDS(u1)
FIELDS(u2)

EXPORT u8 add_fields(u8 *into, i8 n, const u8 *other, i8 n_other, const u8 *tops, i8 n_tops,
                     u8 carry)
{
    (void)n_other, (void)n_tops;
    for (i8 i = 0; i < n; i++) {
        u8 a = into[i], b = other[i], top = tops[i], low = a & ~top, half = low + (b & ~top);
        into[i] = (half + carry) ^ ((a ^ b) & top);
        carry = half < low;
    }
    return carry;
}

EXPORT u8 subtract_fields(u8 *into, i8 n, const u8 *other, i8 n_other, const u8 *tops, i8 n_tops,
                          u8 borrow)
{
    (void)n_other, (void)n_tops;
    for (i8 i = 0; i < n; i++) {
        u8 a = into[i], b = other[i], top = tops[i], high = a | top, low = b & ~top;
        into[i] = (high - low - borrow) ^ ((a ^ ~b) & top);
        borrow = high < low;
    }
    return borrow;
}
