"""Thresholds at even ranks, found by bisecting the float32 number line on counts.

Silos report only how many of their values are below proposed keys, and only sums over silos are
used. A key is an integer of a float32 value's order, so a bracket of keys can be halved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import FENCE
from hedgerow.boosting.engine.sorting import SortedColumn, values_of

Keys = NDArray[np.int64]


def _from_keys(keys: Keys) -> NDArray[np.float32]:
    """Return the values of keys; see :mod:`hedgerow.boosting.engine.sorting`."""
    return values_of(keys.astype(np.uint32))


MOST_PASSES = 34
"""Steps until every bracket is one key wide: of all values, then half of 2**32 keys each time."""
_EXCHANGES = 12  # with fewer bins now and then one or two more
_MOST_STEPS = 6
MOST_KEYS = 1 << _MOST_STEPS
"""Most values a threshold that are proposed in one exchange."""
# The keys of -FENCE and FENCE, without compiling a kernel while a process starts.
_LAST_KEY = int(np.float32(FENCE).view(np.uint32)) | 1 << 31
_FIRST_KEY = 0xFFFFFFFF - _LAST_KEY


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

    The first counts are of all present values, at the upper fence. A column's search halves
    brackets; where brackets are still wide when few exchanges are left, counts are also asked for
    at the values that the next steps may need, so that one exchange serves several steps.

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
        self.n_slots = max_bin - 1
        self._searches = [_ColumnSearch(self.n_slots, tolerance) for _ in range(n_columns)]
        self._n_exchanges = 0
        self.column = np.arange(n_columns, dtype=np.int64)
        self.key = np.full(n_columns, _LAST_KEY, dtype=np.int64)

    @property
    def done(self) -> bool:
        """Whether all thresholds are found."""
        return self.key.shape[0] == 0

    def take(self, below: Keys) -> None:
        """Take the summed counts below :attr:`key` of :attr:`column`, and propose the next."""
        bounds = np.searchsorted(self.column, np.arange(len(self._searches) + 1))
        for search, start, stop in zip(self._searches, bounds[:-1], bounds[1:], strict=True):
            search.take(self.key[start:stop], below[start:stop].astype(np.int64))
        self._n_exchanges += 1
        n_bits = max((search.n_bits for search in self._searches), default=0)
        n_left = max(1, _EXCHANGES - self._n_exchanges)
        # Most columns end sooner than their brackets' width says, so wait before asking for more.
        n_steps = -(-n_bits // n_left) - min(2, max(0, n_left - 3))
        n_steps = min(max(1, n_steps), _MOST_STEPS)
        keys = [search.next_keys(n_steps) for search in self._searches]
        self.column = np.repeat(np.arange(len(keys)), [len(own) for own in keys])
        self.key = np.concatenate([np.empty(0, np.int64), *keys])

    @property
    def thresholds(self) -> list[NDArray[np.float32]]:
        """Inner thresholds of each column, increasing."""
        return [search.thresholds for search in self._searches]


class _ColumnSearch:
    """The search of one column: steps of one count a bracket, as far as the counts are known."""

    def __init__(self, n_slots: int, tolerance: float) -> None:
        self._tolerance = tolerance
        self._total: int | None = None
        # Fewer values than the target are below `low`, at least as many are below `high`.
        self._low = np.full(n_slots, _FIRST_KEY, dtype=np.int64)
        self._high = np.full(n_slots, _LAST_KEY, dtype=np.int64)
        self._best = np.full(n_slots, _LAST_KEY, dtype=np.int64)
        self._error = np.full(n_slots, np.inf)
        self._known = np.empty((2, 0), np.int64)  # keys and the counts below them

    @property
    def thresholds(self) -> NDArray[np.float32]:
        return np.unique(_from_keys(self._best[np.isfinite(self._error)]))

    @property
    def n_bits(self) -> int:
        """Halvings until all open brackets are one key wide."""
        low, high, _ = self._brackets()
        return int((high - low).max(initial=1) - 1).bit_length()

    def take(self, keys: Keys, counts: Keys) -> None:
        """Take counts, and all steps that need no others."""
        if self._total is None:
            self._total = int(counts[0])
        else:
            known = np.concatenate([self._known, np.stack([keys, counts])], axis=1)
            self._known = known[:, np.argsort(known[0])]
        while (keys := _within(*self._brackets())).shape[0]:
            if not np.isin(keys, self._known[0]).all():
                return
            self._refine(keys, self._known[1][np.searchsorted(self._known[0], keys)])

    def next_keys(self, n_steps: int) -> Keys:
        """Return the keys of the next steps, most of which will be needed."""
        low, high, size = self._brackets()
        found = [np.empty(0, np.int64)]
        depth = np.ceil(n_steps / np.log2(size + 1)).astype(np.int64)
        for step in range(int(depth.max(initial=0))):
            here = depth > step
            low, high, size, depth = low[here], high[here], size[here], depth[here]
            bracket, keys = _spread(low, high, size)
            found.append(keys)
            # All targets of a bracket are assumed to stay together; anywhere in it.
            first = np.searchsorted(bracket, np.arange(len(low)))
            after = np.searchsorted(bracket, np.arange(len(low)), side="right")
            low, high = np.insert(keys, first, low), np.insert(keys, after, high)
            parts = after - first + 1
            size, depth = np.repeat(size, parts), np.repeat(depth, parts)
            wide = high - low > 1
            low, high, size, depth = low[wide], high[wide], size[wide], depth[wide]
        return np.setdiff1d(np.concatenate(found), self._known[0])

    def _brackets(self) -> tuple[Keys, Keys, Keys]:
        """Return the open brackets and the number of targets in each."""
        least = self._tolerance * (self._total or 0)
        is_open = (self._error > least) & (self._high - self._low > 1)
        low, first, size = np.unique(self._low[is_open], return_index=True, return_counts=True)
        return low, self._high[is_open][first], size

    def _refine(self, keys: Keys, counts: Keys) -> None:
        n_slots = self._low.shape[0]
        assert self._total is not None
        target = self._total * np.arange(1, n_slots + 1) / (n_slots + 1)
        # Counts grow with keys; the first count that reaches the target bounds it from above.
        reach = np.searchsorted(counts, target, side="left")
        above = np.minimum(reach, keys.shape[0] - 1)
        under = np.maximum(reach - 1, 0)
        has_high, has_low = reach < keys.shape[0], reach > 0
        self._high = np.where(has_high, np.minimum(self._high, keys[above]), self._high)
        self._low = np.where(has_low, np.maximum(self._low, keys[under]), self._low)
        for index, valid in ((above, has_high), (under, has_low)):
            distance = np.abs(counts[index] - target)
            better = valid & (distance < self._error)
            self._best = np.where(better, keys[index], self._best)
            self._error = np.where(better, distance, self._error)


def _within(low: Keys, high: Keys, size: Keys) -> Keys:
    """Return as many keys a bracket as it has targets, spread over it; increasing."""
    return np.unique(_spread(low, high, size)[1])


def _spread(low: Keys, high: Keys, size: Keys) -> tuple[Keys, Keys]:
    """Return the brackets' keys, once each, and which bracket each is in."""
    bracket = np.repeat(np.arange(len(size)), size)
    nth = np.arange(1, len(bracket) + 1) - (np.cumsum(size) - size)[bracket]
    low, width, size = low[bracket], (high - low)[bracket], size[bracket]
    keys = low + np.maximum(1, (width * nth) // (size + 1))
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = (bracket[1:] != bracket[:-1]) | (keys[1:] != keys[:-1])
    return bracket[is_new], keys[is_new]
