"""Vectors of numbers of different widths: packed bit by bit, masked and added field by field.

Field ``i`` takes the bits that follow those of field ``i - 1``, from the lowest bit of the first
little-endian 64-bit word on; a field may lie across two words, and what is left of the last word
is a field that holds 0. Each field is a ring of its own: sums are modulo ``2**width``.

Two vectors are added in one pass over words. With ``top`` the highest bit of every field, ::

    half = (a & ~top) + (b & ~top)          no field carries out of itself
    sum  = (half + carry of the word before) ^ ((a ^ b) & top)

No field is wider than a word, so each word has the highest bit of some field; there the carry of
the word before ends, and the carry out of a word does not depend on the carry into it. Subtraction
is the same with borrows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.native.kernels import kernel

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]

_ONE, _ALL, _WORD = np.uint64(1), np.uint64((1 << 64) - 1), np.uint64(64)


@dataclass(frozen=True, eq=False)
class BitFields:
    """The widths of a vector's fields: a table of integers, row by row."""

    widths: NDArray[np.uint8]
    """Of shape (n_segments, n_columns), uint8. Bits of each column in the rows of a segment, 0 to
    64. A field of 0 bits holds 0."""
    counts: Integers
    """Of shape (n_segments,), int64. Rows of each segment."""

    def __post_init__(self) -> None:
        if self.widths.shape[:1] != self.counts.shape or self.widths.ndim != 2:
            raise ValueError("expected the widths of the columns of each segment")
        if self.widths.max(initial=0) > 64 or self.counts.min(initial=0) < 0:
            raise ValueError("expected fields of 0 to 64 bits")

    @cached_property
    def n_rows(self) -> int:
        """Rows of all segments."""
        return int(self.counts.sum())

    @cached_property
    def n_words(self) -> int:
        """Words of a packed vector."""
        n_bits = int(self.widths.sum(axis=1, dtype=np.int64) @ self.counts)
        return -(-n_bits // 64)

    @cached_property
    def _tops(self) -> Words:
        out = np.zeros(self.n_words, np.uint64)
        _mark(self.widths, self.counts, out)
        return out

    def pack(self, rows: Integers, index: Integers, more: Integers) -> Words:
        """Return the fields of some rows of a table; higher bits are dropped.

        Parameters
        ----------
        rows : ndarray of shape (n, n_columns), int64
        index : ndarray of shape (n_rows,), int64
            Which of ``rows``, and of ``more`` after them.
        more : ndarray of shape (m, n_columns), int64
        """
        self._check(rows, index, more)
        out = np.zeros(self.n_words, np.uint64)
        _pack(rows, index, more, self.widths, self.counts, out)
        return out

    def unpack(
        self,
        words: Words,
        signed: NDArray[np.bool_],
        rows: Integers,
        index: Integers,
        more: Integers,
    ) -> None:
        """Write the integers of packed fields to where :meth:`pack` takes them from.

        Parameters
        ----------
        signed : ndarray of shape (n_columns,), bool
            Columns of which a field is the residue nearest to zero; the others are not negative.
        """
        self._check(rows, index, more)
        if words.shape != (self.n_words,):
            raise ValueError(f"expected {self.n_words} words, received {words.shape[0]}")
        if signed.shape != self.widths.shape[1:]:
            raise ValueError(f"expected {self.widths.shape[1]} columns, received {len(signed)}")
        _unpack(words, self.widths, self.counts, signed, rows, index, more)

    def _check(self, rows: Integers, index: Integers, more: Integers) -> None:
        if index.shape != (self.n_rows,):
            raise ValueError(f"expected {self.n_rows} rows, received {index.shape[0]}")
        n, columns = rows.shape[0] + more.shape[0], self.widths.shape[1]
        if rows.shape[1:] != (columns,) or more.shape[1:] != (columns,):
            raise ValueError(f"expected rows of {columns} columns")
        if index.min(initial=0) < 0 or index.max(initial=-1) >= n:
            raise ValueError(f"expected positions below {n}")

    def put(self, *, plus: bool) -> Callable[[Words, Words, int], None]:
        """Return what adds to (or subtracts from) the words of a vector, piece after piece.

        The pieces follow one another; the third argument is the position of a piece.
        """
        kernel, carry = _add if plus else _subtract, [np.uint64(0)]

        def run(into: Words, other: Words, start: int) -> None:
            tops = self._tops[start : start + into.shape[0]]
            if not into.shape == other.shape == tops.shape:
                raise ValueError(f"expected {len(into)} words, received {len(other)}, {len(tops)}")
            carry[0] = np.uint64(kernel(into, other, tops, carry[0]))

        return run


def _spans(widths, counts):
    """Return the number of each field that has bits, its width, its word, and the bits before."""
    width = np.repeat(widths, counts, axis=0).ravel().astype(np.uint64)
    start, field = np.cumsum(width) - width, np.flatnonzero(width)
    at = (start >> np.uint64(6)).astype(np.int64)
    return field, width[field], at[field], start[field] & np.uint64(63)


@kernel("crypto/fields", "pack_fields")
def _pack(rows, index, more, widths, counts, out):
    field, width, at, used = _spans(widths, counts)
    values = np.concatenate([rows, more])[index].astype(np.uint64).ravel()[field]
    values &= _ALL >> (_WORD - width)
    over = used + width > _WORD
    np.bitwise_or.at(out, at, values << used)
    np.bitwise_or.at(out, at[over] + 1, values[over] >> (_WORD - used[over]))


@kernel("crypto/fields", "unpack_fields")
def _unpack(words, widths, counts, signed, rows, index, more):
    field, width, at, used = _spans(widths, counts)
    value, over = words[at] >> used, used + width > _WORD
    value[over] |= words[at[over] + 1] << (_WORD - used[over])
    rest = _WORD - width
    value <<= rest
    by_sign = value.astype(np.int64) >> rest.astype(np.int64)
    found = np.zeros(index.shape[0] * signed.shape[0], np.int64)
    by_size = (value >> rest).astype(np.int64)
    found[field] = np.where(signed[field % signed.shape[0]], by_sign, by_size)
    found, n, here = found.reshape(-1, signed.shape[0]), rows.shape[0], index < rows.shape[0]
    rows[index[here]], more[index[~here] - n] = found[here], found[~here]


@kernel("crypto/fields", "mark_fields")
def _mark(widths, counts, out):
    """Set the highest bit of every field, and of what is left of the last word."""
    _, width, at, used = _spans(widths, counts)
    last = used + width - _ONE
    np.bitwise_or.at(out, at + (last >= _WORD), _ONE << (last & np.uint64(63)))
    if width.sum() & np.uint64(63):
        out[-1] |= _ONE << np.uint64(63)


@kernel("crypto/fields", "add_fields")
def _add(into, other, tops, carry):
    low, signs = into & ~tops, (into ^ other) & tops
    half = low + (other & ~tops)
    carries = np.append(carry, half < low).astype(np.uint64)
    into[:] = (half + carries[:-1]) ^ signs
    return carries[-1]


@kernel("crypto/fields", "subtract_fields")
def _subtract(into, other, tops, borrow):
    high, low, signs = into | tops, other & ~tops, (into ^ ~other) & tops
    borrows = np.append(borrow, high < low).astype(np.uint64)
    into[:] = (high - low - borrows[:-1]) ^ signs
    return borrows[-1]
