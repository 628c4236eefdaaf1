"""Quantile bin edges from counts alone: a descent through the bits of the numbers.

A float32 has an order-preserving integer key. In each of :data:`STAGES` stages the parties count,
in every interval that still contains an edge, the rows of its :data:`CELLS` equal cells of keys;
each edge then moves into the cell where its rank falls. No value leaves a silo; with noise on the
counts the edges are differentially private, for features of any range.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.payloads import UInt32s
from hedgerow.crypto.masking.key_agreement import encode_fields

_BITS = 7
CELLS = 1 << _BITS
"""Cells of an interval."""

STAGES = 3
"""21 bits: sign, exponent and 12 bits of the fraction, so edges are right to 1 part in 4096."""

_LARGEST = np.float32(np.finfo(np.float32).max)


def keys_of(column: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return integers in the order of the numbers; NaN has no meaningful key."""
    bits = (column + np.float32(0.0)).view(np.uint32)
    negative = bits >> 31 == 1
    return np.where(negative, ~bits, bits | np.uint32(1 << 31)).astype(np.uint32)


def value_of(key: int) -> np.float32:
    """Return the number with a key, limited to finite ones."""
    bits = key & 0x7FFFFFFF if key >> 31 else ~key & 0xFFFFFFFF
    value = np.uint32(bits).view(np.float32)
    if not np.isfinite(value):
        return _LARGEST if key >> 31 else -_LARGEST
    return np.float32(value)


@dataclass(frozen=True, slots=True)
class Descent:
    """Where the edges of one feature are so far."""

    prefixes: tuple[int, ...]
    """High bits of the interval of each edge, ascending."""
    shares: tuple[float, ...]
    """Share of the interval's rows below each edge."""

    @property
    def intervals(self) -> tuple[int, ...]:
        """Distinct prefixes, ascending."""
        return tuple(sorted(set(self.prefixes)))


@dataclass(frozen=True, slots=True, eq=False)
class EdgeSearch:
    """A query of one stage: where rows are to be counted."""

    stage: int
    """Below :data:`STAGES`."""
    intervals: tuple[UInt32s, ...]
    """Tuple of ndarray, uint32. Prefixes of the intervals whose cells are counted, ascending, one
    array for each feature; empty for a categorical feature."""

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything above: identifies the query."""
        prefixes = [n for own in self.intervals for n in (len(own), *own.tolist())]
        return hashlib.sha256(encode_fields("edges", self.stage, *prefixes)).digest()


def start_descent(n_bins: int) -> Descent:
    """Return the descent of the ``n_bins - 1`` edges between bins of equal counts."""
    return Descent((0,) * (n_bins - 1), tuple(j / n_bins for j in range(1, n_bins)))


def count_cells(
    column: NDArray[np.float32], intervals: Iterable[int], stage: int
) -> NDArray[np.int64]:
    """Return the number of rows in each cell of each interval.

    Parameters
    ----------
    intervals : iterable of int
        Prefixes.

    Returns
    -------
    ndarray of shape (n_intervals, CELLS), int64
        A row counts in one cell of one interval at most; missing values do not count.
    """
    keys = keys_of(column[~np.isnan(column)]) >> np.uint32(32 - _BITS * (stage + 1))
    prefix, cell = keys >> np.uint32(_BITS), keys & np.uint32(CELLS - 1)
    return np.array(
        [np.bincount(cell[prefix == wanted], minlength=CELLS) for wanted in intervals],
        dtype=np.int64,
    ).reshape(-1, CELLS)


def descend(descent: Descent, counts: NDArray[np.int64], noise: float) -> Descent:
    """Return the descent one stage on.

    Parameters
    ----------
    counts : ndarray of shape (n_intervals, CELLS), int64
        Noisy sums over all silos.
    noise : float
        Standard deviation of a count; cells below twice that count as empty, unless all are.
    """
    prefixes, shares = [], []
    for prefix, share in zip(descent.prefixes, descent.shares, strict=True):
        row = np.maximum(counts[descent.intervals.index(prefix)], 0).astype(np.float64)
        clear = np.where(row >= 2.0 * noise, row, 0.0)
        row = clear if clear.any() else row
        if not row.any():
            row = np.ones(CELLS)
        cumulative = np.cumsum(row)
        target = share * cumulative[-1]
        cell = int(np.searchsorted(cumulative, target, side="left"))
        while row[cell] == 0.0:
            cell += 1
        below = cumulative[cell] - row[cell]
        prefixes.append(prefix << _BITS | cell)
        shares.append(float(min(max((target - below) / row[cell], 0.0), 1.0)))
    return Descent(tuple(prefixes), tuple(shares))


def edges_of(descent: Descent) -> NDArray[np.float32]:
    """Return the distinct edges at the end; a value below an edge is in a bin to its left."""
    rest = 32 - _BITS * STAGES
    ends = sorted({min((prefix + 1) << rest, 0xFFFFFFFF) for prefix in descent.prefixes})
    return np.unique(np.array([value_of(end) for end in ends], dtype=np.float32))
