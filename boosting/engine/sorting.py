"""Columns of float32 in order, by integer keys of the same order.

A radix sort takes 4 to 8 ns a value where ``np.sort`` takes 30 and ``np.unique`` with its inverse
80 (``benchmarks.histogram_engine``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.native.kernels import kernel

Keys = NDArray[np.uint32]

_SIGN = np.uint32(1 << 31)
_ALL = np.uint32(0xFFFFFFFF)
_INFINITY = np.uint32(0x7F800000)
_UNSORTED = 1 << 14
"""Lower halves of one upper half that are counted in any order; more of them are sorted."""


def sorted_keys(x: NDArray[np.float32]) -> Keys:
    """Return the keys of a column's present values in ascending order; missing ones are left out.

    Returns
    -------
    ndarray of shape (n_present,), uint32
        ``a < b`` holds for keys exactly where it holds for the values; both zeros are one key.
    """
    keys = np.empty(x.shape[0], np.uint32)
    n = _present_keys(np.ascontiguousarray(x).view(np.uint32), keys)
    keys, spare = keys[:n], np.empty(n, np.uint32)
    return spare if _radix_sort(keys, spare) else keys


def values_of(keys: Keys) -> NDArray[np.float32]:
    """Return the values that have these keys."""
    return np.where(keys >= _SIGN, keys ^ _SIGN, ~keys).astype(np.uint32).view(np.float32)


def count_pairs(above: Keys, below: Keys) -> int:
    """Return twice how many pairs are in order, those of equal keys counted half.

    Parameters
    ----------
    above, below : ndarray of shape (n,), uint32
        Ascending; a pair is in order where the first's key is the greater one.
    """
    return int(_count_pairs(above, below))


@dataclass(frozen=True, slots=True)
class SortedColumn:
    """A column's present values by the upper halves of their keys, two bytes each."""

    high: Keys
    """Of shape (n_high,), uint32. Upper halves of the keys that occur, increasing."""
    starts: NDArray[np.int64]
    """Of shape (n_high + 1,), int64. Where the keys of each upper half start in ``low``."""
    low: NDArray[np.uint16]
    """Of shape (n_present,), uint16. Lower halves of the keys of each upper half: in order, or in
    the column's where they are few, which a count reads faster than they are sorted."""

    @classmethod
    def of(cls, x: NDArray[np.float32], into: NDArray[np.uint16] | None = None) -> SortedColumn:
        """Sort a column; missing values are left out.

        Parameters
        ----------
        into : ndarray of at least as many elements, uint16, or None
            Where lower halves are written; None for an array of their own.
        """
        low = np.empty(x.shape[0], np.uint16) if into is None else into
        if x.shape[0] <= _UNSORTED:
            keys = sorted_keys(x)
            n = keys.shape[0]
            low[:n] = keys.astype(np.uint16)
            starts = np.append(np.flatnonzero(np.diff(keys >> 16, prepend=_ALL)), n)
            return cls(keys[starts[:-1]] >> 16, starts, low[:n])
        high, room = np.empty((2, 1 << 16), np.uint32)
        starts = np.empty((1 << 16) + 1, np.int64)
        n = _halves(np.ascontiguousarray(x).view(np.uint32), low, high, starts, room)
        return cls(high[:n].copy(), starts[: n + 1].copy(), low[: starts[n]])

    def count_below(self, key: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many values are below each key."""
        out = np.empty(key.shape[0], np.int64)
        _count_below(self.high, self.starts, self.low, key, out)
        return out


@kernel("boosting/tables", "present_keys")
def _present_keys(bits, out):
    size = bits & ~_SIGN
    bits = np.where(size == 0, np.uint32(0), bits)
    keys = (bits ^ np.where(bits >= _SIGN, _ALL, _SIGN))[size <= _INFINITY]
    out[: keys.shape[0]] = keys
    return keys.shape[0]


@kernel("boosting/tables", "count_below")
def _count_below(high, starts, low, keys, out):
    for k, key in enumerate(keys):
        at = np.searchsorted(high, key >> 16)
        out[k] = starts[at]
        if at < high.shape[0] and high[at] == key >> 16:
            out[k] += np.count_nonzero(low[starts[at] : starts[at + 1]] < np.uint16(key & 0xFFFF))


@kernel("boosting/tables", "count_in_order")
def _count_pairs(above, below):
    return sum(int(np.searchsorted(below, above, side).sum()) for side in ("left", "right"))


@kernel("boosting/tables", "halves")
def _halves(bits, low, high, starts, room):
    """Write each upper half that occurs and where it starts in ``low``; return how many do."""
    keys = np.empty(bits.shape[0], np.uint32)
    keys = keys[: _present_keys(bits, keys)]
    keys = keys[np.argsort(keys >> 16, kind="stable")]
    low[: keys.shape[0]] = keys.astype(np.uint16)
    own, first = np.unique(keys >> 16, return_index=True)
    n = own.shape[0]
    high[:n], starts[:n], starts[n] = own, first, keys.shape[0]
    for k in np.flatnonzero(np.diff(starts[: n + 1]) > _UNSORTED):
        low[starts[k] : starts[k + 1]].sort()
    return n


@kernel("boosting/tables", "radix_sort")
def _radix_sort(keys, spare):
    """Sort in place, or into ``spare``; return whether it is the latter."""
    keys.sort()
    return False
