"""Thresholds at even ranks, found by bisecting the float32 number line on counts.

Silos report only how many of their values are below proposed keys, and only sums over silos are
used. A key is an integer of a float32 value's order, so a bracket of keys can be halved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import FENCE
from hedgerow.boosting.engine.sorting import SortedColumn, sorted_keys, values_of

Keys = NDArray[np.int64]


def _from_keys(keys: Keys) -> NDArray[np.float32]:
    """Return the values of keys; see :mod:`hedgerow.boosting.engine.sorting`."""
    return values_of(keys.astype(np.uint32))


MOST_PASSES = 34
"""Counts until every bracket is one key wide: of all values, then half of 2**32 keys each time."""
_FIRST_KEY, _LAST_KEY = sorted_keys(np.array([-FENCE, FENCE])).tolist()


def count_below(columns: Sequence[SortedColumn], column: Keys, key: Keys) -> Keys:
    """Return how many of a silo's present values are below each proposed key.

    Parameters
    ----------
    columns : sequence of SortedColumn
        Each numeric feature's present values.
    """
    out = np.empty(column.shape[0], dtype=np.int64)
    for j in np.unique(column):
        at = column == j
        out[at] = columns[int(j)].count_below(key[at])
    return out


class Bisector:
    """Searches the thresholds of numeric columns by sums of counts.

    The first counts are of all present values, at the upper fence.

    Parameters
    ----------
    n_columns : int
    max_bin : int
        Each column gets ``max_bin - 1`` thresholds before equal ones are merged.
    tolerance : float
        Accepted rank error, relative to the present values of a column.

    Attributes
    ----------
    column, key : ndarray of shape (n_proposed,), int64
        Where the next counts are needed; empty when all thresholds are found.
    """

    def __init__(self, n_columns: int, max_bin: int, tolerance: float) -> None:
        shape = (n_columns, max_bin - 1)
        self._tolerance = tolerance
        self._totals: Keys | None = None
        # Fewer values than the target are below `low`, at least as many are below `high`.
        self._low = np.full(shape, _FIRST_KEY, dtype=np.int64)
        self._high = np.full(shape, _LAST_KEY, dtype=np.int64)
        self._best = np.full(shape, _LAST_KEY, dtype=np.int64)
        self._error = np.full(shape, np.inf)
        self.column = np.arange(n_columns, dtype=np.int64)
        self.key = np.full(n_columns, _LAST_KEY, dtype=np.int64)

    @property
    def n_slots(self) -> int:
        """Most values of a column that are proposed at a time: one for each threshold."""
        return self._low.shape[1]

    @property
    def done(self) -> bool:
        """Whether all thresholds are found."""
        return self.key.shape[0] == 0

    def take(self, below: Keys) -> None:
        """Take the summed counts below :attr:`key` of :attr:`column`, and propose the next."""
        if self._totals is None:
            self._totals = below.astype(np.int64)
        else:
            self._refine(self._totals, below)
        self._propose(self._totals)

    @property
    def thresholds(self) -> list[NDArray[np.float32]]:
        """Inner thresholds of each column, increasing."""
        return [
            np.unique(_from_keys(best[np.isfinite(error)]))
            for best, error in zip(self._best, self._error, strict=True)
        ]

    def _propose(self, totals: Keys) -> None:
        open_ = (self._error > self._tolerance * totals[:, None]) & (self._high - self._low > 1)
        column, slot = np.nonzero(open_)
        low, high = self._low[column, slot], self._high[column, slot]
        # Targets that share a bracket spread over it, so that one count serves many of them.
        bracket = np.stack([column, low, high])
        first = np.ones(column.shape[0], np.bool_)
        first[1:] = np.any(np.diff(bracket, axis=1) != 0, axis=0)
        starts = np.flatnonzero(first)
        sizes = np.diff(starts, append=column.shape[0])
        size = np.repeat(sizes, sizes)
        same = np.arange(column.shape[0]) - np.repeat(starts, sizes)
        keys = low + np.maximum(1, ((high - low) * (same + 1)) // (size + 1))
        pairs = np.unique(np.stack([column, keys], axis=1), axis=0)
        self.column, self.key = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)

    def _refine(self, totals: Keys, below: Keys) -> None:
        n_slots = self._low.shape[1]
        for j in np.unique(self.column):
            at = self.column == j
            keys, counts = self.key[at], below[at]
            target = totals[j] * np.arange(1, n_slots + 1) / (n_slots + 1)
            # Counts grow with keys; the first count that reaches the target bounds it from above.
            reach = np.searchsorted(counts, target, side="left")
            above = np.minimum(reach, keys.shape[0] - 1)
            under = np.maximum(reach - 1, 0)
            has_high, has_low = reach < keys.shape[0], reach > 0
            high, low = self._high[j], self._low[j]
            self._high[j] = np.where(has_high, np.minimum(high, keys[above]), high)
            self._low[j] = np.where(has_low, np.maximum(low, keys[under]), low)
            for index, valid in ((above, has_high), (under, has_low)):
                distance = np.abs(counts[index] - target)
                better = valid & (distance < self._error[j])
                self._best[j] = np.where(better, keys[index], self._best[j])
                self._error[j] = np.where(better, distance, self._error[j])
