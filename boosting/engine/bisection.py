"""Thresholds of numeric columns, searched on summed counts of rows below keys of a coarse grid.

Silos report only how many of their values are below proposed keys, and only sums over silos are
used. A key is an integer of a float32 value's order, so a cell of keys can be halved. The search
is a function of the sums: every party runs it, and none is told what to count next.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from math import ceil, log2
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.cuts import FENCE
from hedgerow.boosting.engine.quantiles import distinct, even_ranks
from hedgerow.boosting.engine.sorting import SortedColumn, sorted_keys, values_of
from hedgerow.boosting.errors import SumCorrupt

Keys = NDArray[np.int64]

MOST_PASSES = 34
"""Exchanges of one search at most."""
MIN_CELL = 10
"""Rows that a cell has at least where it is divided, unless a job says otherwise."""
SIGNIFICANT_BITS = 16
"""Bits of a threshold's significand, the first included, that all columns are searched to."""
_GRID, _FINEST_GRID = 24 - SIGNIFICANT_BITS, 4
_BODY_BITS = 12  # the cell of a column's middle half is searched to as many, if the grid allows
_BINADE = 23  # a cell this wide has the values of one exponent
_WIDE_STEPS, _STEPS = 5, 3  # halvings of a cell in one exchange, while it is wider, and after
_KEYS_A_VALUE, _KEYS_A_BIN, _KEYS_A_COLUMN = 48, 8, 1024
# The keys of -FENCE and FENCE, without compiling a kernel while a process starts.
_LAST_KEY = int(np.float32(FENCE).view(np.uint32)) | 1 << 31
_FIRST_KEY = 0xFFFFFFFF - _LAST_KEY
_NONE = np.empty(0, np.int64)


def count_below(columns: Sequence[SortedColumn], column: Keys, key: Keys) -> Keys:
    """Return how many of a silo's present values are below each key, by ascending column."""
    ends = np.searchsorted(column, np.arange(len(columns) + 1)).tolist()
    parts = [
        own.count_below(key[start:stop])
        for own, start, stop in zip(columns, ends[:-1], ends[1:], strict=True)
        if stop > start
    ]
    return np.concatenate([_NONE, *parts])


def most_keys(max_bin: int, tolerance: float) -> int:
    """Return how many keys of a column one search proposes at most.

    It ends where it would need more, of which measured tables have no column.
    """
    finer = ceil(-log2(8 * max_bin * tolerance)) if tolerance else 0
    coarse = min(_KEYS_A_VALUE * max_bin, _KEYS_A_BIN * max_bin + _KEYS_A_COLUMN)
    return 64 + coarse + min(max(finer, 0), SIGNIFICANT_BITS) * max_bin


@dataclass(frozen=True, eq=False)
class _Pass:
    """Where searches of columns are after some sums, which it is a function of."""

    told: bytes
    """Digest of the search's arguments and all sums."""
    searches: list[_ColumnSearch]
    column: Keys
    key: Keys

    def after(self, below: Keys) -> _Pass:
        """Return where they are after another sum; parties of one process find it together."""
        told = sha256(self.told + below.tobytes()).digest()
        with _finding:
            return self._found(told, below)

    def _found(self, told: bytes, below: Keys) -> _Pass:
        found = _passes.get(told)
        if found is None:
            searches, keys = list(self.searches), [_NONE] * len(self.searches)
            bounds = np.searchsorted(self.column, np.arange(len(searches) + 1)).tolist()
            for k, (start, stop) in enumerate(pairwise(bounds)):
                if stop > start:  # a column of which nothing was asked is at its end
                    searches[k] = copy(searches[k])
                    searches[k].take(self.key[start:stop], below[start:stop])
                    keys[k] = searches[k].next_keys()
            column = np.repeat(np.arange(len(keys)), [len(own) for own in keys])
            found = _Pass(told, searches, column, np.concatenate([_NONE, *keys]))
            _passes[told] = found
        return found


_passes: WeakValueDictionary[bytes, _Pass] = WeakValueDictionary()
_finding = Lock()  # parties of a process wait for the one that searches, and take what it found


class Bisector:
    """Searches the thresholds of numeric columns by sums of counts.

    The first counts are of all present values, at the upper fence. Then a cell of keys is divided
    while the rank of a threshold is inside it, it has enough rows, and the grid has a key in it.

    Parameters
    ----------
    max_bin : int
        Bins of a column at most.
    tolerance : float
        Accepted rank error, relative to the present values of a column; 0 is an eighth of a bin.
    min_cell : int
        A cell with fewer rows is not divided, and no bin has fewer.
    median : bool
        Whether the ranks of medians are searched instead, also of fewer rows than two bins have.
    covers : float
        In place of medians, the share of rows that a value found for a column is to be above, one
        row more counted: that of a conformal interval.
    fine : bool
        Whether each float32 may divide a cell, however close values are for their size.
    """

    def __init__(
        self,
        n_columns: int,
        max_bin: int,
        tolerance: float = 0.0,
        min_cell: int = MIN_CELL,
        *,
        median: bool = False,
        covers: float = 0.0,
        fine: bool = False,
    ) -> None:
        given = (max_bin, tolerance, min_cell, median, covers, fine)
        self._pass = _Pass(
            sha256(repr((n_columns, given)).encode()).digest(),
            [_ColumnSearch(*given) for _ in range(n_columns)],
            np.arange(n_columns, dtype=np.int64),
            np.full(n_columns, _LAST_KEY, dtype=np.int64),
        )

    @property
    def column(self) -> Keys:
        """Columns of :attr:`key`."""
        return self._pass.column

    @property
    def key(self) -> Keys:
        """Where the next counts are needed, by column; empty when all thresholds are found."""
        return self._pass.key

    @property
    def _searches(self) -> list[_ColumnSearch]:
        return self._pass.searches

    @property
    def done(self) -> bool:
        """Whether all thresholds are found."""
        return not self.key.size

    def take(self, below: Keys) -> None:
        """Take the summed counts below :attr:`key` of :attr:`column`, and propose the next.

        Raises
        ------
        SumCorrupt
            They are not the counts of any table: another number of them, or negative ones, or
            smaller ones below greater keys.
        """
        if below.shape != self.key.shape:
            raise SumCorrupt(f"counts: expected {self.key.shape[0]}, received {below.shape[0]}")
        self._pass = self._pass.after(below.astype(np.int64, copy=False))

    @property
    def thresholds(self) -> list[NDArray[np.float32]]:
        """Inner thresholds of each column, increasing."""
        return [search.thresholds for search in self._searches]

    @property
    def medians(self) -> list[float]:
        """The median of each column, as near as it was searched; 0 without rows."""
        return [search.median for search in self._searches]

    @property
    def covering(self) -> list[float]:
        """The least value known of each column above which few enough rows are."""
        return [search.covering for search in self._searches]

    @property
    def n_rows(self) -> list[int]:
        """Rows of each column."""
        return [search.n_rows for search in self._searches]

    @property
    def cells(self) -> list[Cells]:
        """Of each column the cells between its :attr:`thresholds`."""
        return [search.cells for search in self._searches]


class Cells(NamedTuple):
    """Cells of a column's values between thresholds, and a value in place of those of each."""

    thresholds: NDArray[np.float32]
    """Of shape (n_cells - 1,), float32. Increasing."""
    values: NDArray[np.float32]
    """Of shape (n_cells,), float32. The middle of the narrowest keys known around a cell's median;
    in the outer cells, whose ends nobody knows, the end that is known. Values of many rows are
    their own."""
    rows: Keys
    """Of shape (n_cells,), int64."""


class _ColumnSearch:
    """The search of one column: keys asked about, in order, and how many values are below each."""

    def __init__(
        self,
        max_bin: int,
        tolerance: float,
        min_cell: int,
        median: bool,
        covers: float,
        fine: bool,
    ) -> None:
        self._fine = fine
        self._covers = covers
        self._max_bin = max_bin
        self._tolerance = tolerance
        self._min_cell = min_cell
        self._median = median or covers > 0
        self._keys = np.array([_FIRST_KEY, _LAST_KEY], np.int64)
        self._counts = np.zeros(2, np.int64)
        self._n_passes = 0
        self._n_left = 0

    @property
    def thresholds(self) -> NDArray[np.float32]:
        # Of keys with as many values below them, the one next to the values above.
        at = np.searchsorted(self._counts, self._kept(), side="right") - 1
        return _from_keys(self._keys[at])

    def _kept(self) -> Keys:
        """Return the numbers of values below the thresholds."""
        ranks, _ = self._ranks()
        cell = self._cell_of(ranks)
        nearer = ranks - self._counts[cell] > self._counts[cell + 1] - ranks
        counts = np.unique(self._counts[cell + nearer])
        return counts[_apart(counts, int(self._counts[-1]), self._min_cell)]

    @property
    def cells(self) -> Cells:
        ends = np.concatenate([[0], self._kept(), self._counts[-1:]])
        cell = self._cell_of((ends[:-1] + ends[1:]) / 2)
        low, high = (_from_keys(self._keys[cell + k]).astype(np.float64) for k in (0, 1))
        values = (low + high) / 2
        if values.shape[0] > 1:
            values[0], values[-1] = high[0], low[-1]
        # All values of a cell without keys inside are at its lower end.
        solid = ~_divisible(self._keys[:-1], self._keys[1:], self._grid())[cell]
        values = np.where(solid, low, values)
        return Cells(self.thresholds, values.astype(np.float32), np.diff(ends))

    @property
    def median(self) -> float:
        if self._counts[-1] == 0:
            return 0.0
        ranks, _ = self._ranks()
        cell = self._cell_of(ranks)
        # All values of a cell without keys inside are at its lower end.
        nearer = ranks - self._counts[cell] > self._counts[cell + 1] - ranks
        nearer &= _divisible(self._keys[:-1], self._keys[1:], self._grid())[cell]
        return float(_from_keys(self._keys[cell + nearer])[0])

    @property
    def n_rows(self) -> int:
        return int(self._counts[-1])

    @property
    def _n_beyond(self) -> int:
        """Rows above the rank that an interval is to cover."""
        return self.n_rows - conformal_rank(self.n_rows, self._covers)

    @property
    def covering(self) -> float:
        """The key above the rank; infinite where fewer rows than a cell's are beyond it.

        The last few rows are in a cell that is not divided, whose end says nothing of them.
        """
        if self._n_beyond < self._min_cell:
            return float("inf")
        ranks, _ = self._ranks()
        return float(_from_keys(self._keys[self._cell_of(ranks) + 1])[0])

    def take(self, keys: Keys, counts: Keys) -> None:
        if self._n_passes == 0:
            self._counts = np.array([0, counts[0]])
            n_bins = max(1, min(self._max_bin, int(counts[0]) // self._min_cell))
            self._n_left = most_keys(n_bins, self._tolerance)
        else:
            order = np.argsort(np.concatenate([self._keys, keys]))
            self._keys = np.concatenate([self._keys, keys])[order]
            self._counts = np.concatenate([self._counts, counts])[order]
        self._n_passes += 1
        if np.any(np.diff(self._counts) < 0):
            raise SumCorrupt("counts: expected numbers of rows that grow with the values")

    def next_keys(self) -> Keys:
        """Return keys inside the cells that have to be divided; none at the end."""
        if self._covers and self._n_beyond < self._min_cell:
            return _NONE
        low, high, rows = self._keys[:-1], self._keys[1:], np.diff(self._counts)
        ranks, mean = self._ranks()
        error = self._tolerance * float(self._counts[-1]) if self._tolerance else mean / 8
        if self._covers:  # of few rows beyond the rank a thousandth of all may be many
            error = min(error, self._n_beyond / 8)
        least = max(error, self._min_cell)
        grid = self._grid()
        divisible = _divisible(low, high, grid)
        # What looks as if it were one value: if it is, more ranks are needed elsewhere.
        around = np.pad(rows, 1)
        alone = divisible & (rows > mean) & (8 * (around[:-2] + around[2:]) <= rows)
        if not self._median and alone.any():
            solid = ~divisible | alone
            more, _ = even_ranks(rows, solid, self._max_bin, self._min_cell)
            ranks = distinct(np.concatenate([ranks, more]))
        cell = self._cell_of(ranks)
        over = self._counts[cell + 1] - ranks
        # An interval ends at the key above its rank, however near the one below is.
        far = (over if self._covers else np.minimum(ranks - self._counts[cell], over)) > error
        cell = distinct(cell[far])
        cell = cell[divisible[cell] & (rows[cell] >= least)]
        width = _bit_length(high[cell] - low[cell] - 1)
        n_steps = np.where(
            width > _BINADE,
            np.minimum(_WIDE_STEPS, width - _BINADE),
            np.clip(_bit_length(rows[cell] // int(least)) - 1, 1, _STEPS),
        )
        # A value of few digits, of which there may be many rows, is at the end of its cell.
        round_ = cell[(rows[cell] > mean) & (width <= _BINADE)]
        bits = grid[round_]
        ends = np.where(
            low[round_] >> 31,
            ((low[round_] >> bits) + 1) << bits,
            (high[round_] - 1) >> bits << bits,
        )
        halvings = _halvings(low[cell], high[cell], n_steps, grid[cell])
        found = distinct(np.concatenate([halvings, ends]))
        keys: Keys = found[self._keys[np.searchsorted(self._keys, found)] != found]
        if keys.shape[0] > self._n_left or self._n_passes >= MOST_PASSES:
            return _NONE
        self._n_left -= keys.shape[0]
        return keys

    def _ranks(self) -> tuple[NDArray[np.float64], float]:
        """Return the ranks of thresholds, as far as heavy values are known, and a bin's rows."""
        rows = np.diff(self._counts)
        if self._covers:
            rank = min(conformal_rank(int(rows.sum()), self._covers), int(rows.sum()))
            return np.array([rank - 0.5]), float(rows.sum())
        if self._median:
            return np.array([rows.sum() / 2]), float(rows.sum())
        solid = ~_divisible(self._keys[:-1], self._keys[1:], self._grid())
        return even_ranks(rows, solid, self._max_bin, self._min_cell)

    def _cell_of(self, ranks: NDArray[np.float64]) -> NDArray[np.intp]:
        cell = np.searchsorted(self._counts, ranks, side="right") - 1
        return np.minimum(cell, self._counts.shape[0] - 2)

    def _grid(self) -> Keys:
        """Return how many low bits the keys have as zeros that may divide each cell.

        Where half of all values are close to each other, their cell is divided further.
        """
        if self._fine:
            return np.zeros_like(self._keys[1:])
        first, last = self._cell_of(self._counts[-1] * np.array([0.25, 0.75]))
        low, high = self._keys[first], self._keys[last + 1] - 1
        width = int(low ^ high).bit_length()
        inside = (self._keys[:-1] >> width == low >> width) & (
            (self._keys[1:] - 1) >> width == low >> width
        )
        return np.where(inside, min(max(width - _BODY_BITS, _FINEST_GRID), _GRID), _GRID)


def conformal_rank(n_rows: int, share: float) -> int:
    """Return which of ascending residuals a new row's is below with at least that probability."""
    return ceil(Fraction(repr(share)) * (n_rows + 1))


class MinBinFilter:
    """Thresholds that one party found, without those that leave a bin with too few rows.

    As :class:`Bisector`, but of one pass: the counts are below all thresholds, and of all present
    values.

    Parameters
    ----------
    thresholds : sequence of ndarrays, float32
        Of each numeric column, increasing.
    min_cell : int
        Rows that a bin has at least.
    """

    def __init__(self, thresholds: Sequence[NDArray[np.float32]], min_cell: int) -> None:
        self.thresholds = list(thresholds)
        self._min_cell = min_cell
        keys = [np.append(sorted_keys(own).astype(np.int64), _LAST_KEY) for own in thresholds]
        self.column = np.repeat(np.arange(len(keys)), [len(own) for own in keys])
        self.key = np.concatenate([np.empty(0, np.int64), *keys])
        self.done = not self.key.size

    def take(self, below: Keys) -> None:
        """Take the summed counts; raises SumCorrupt for those of no table."""
        if below.shape != self.key.shape:
            raise SumCorrupt(f"counts: expected {self.key.shape[0]}, received {below.shape[0]}")
        for j, own in enumerate(self.thresholds):
            counts = below[self.column == j]
            if np.any(np.diff(counts, prepend=0) < 0):
                raise SumCorrupt("counts: expected numbers of rows that grow with the values")
            self.thresholds[j] = own[_apart(counts[:-1], int(counts[-1]), self._min_cell)]
        self.done = True


def _apart(counts: Keys, total: int, least: int) -> list[int]:
    """Return which of ascending counts of rows leave at least ``least`` rows in each bin."""
    kept, below = [], 0
    for k, count in enumerate(counts.tolist()):
        if min(count - below, total - count) >= least:
            kept.append(k)
            below = count
    return kept


def _from_keys(keys: Keys) -> NDArray[np.float32]:
    return values_of(keys.astype(np.uint32))


def _divisible(low: Keys, high: Keys, grid: Keys) -> NDArray[np.bool_]:
    """Return whether each cell has a key inside that ends on as many zeros as its grid says."""
    return ((high - 1) >> grid) > (low >> grid)


def _halvings(low: Keys, high: Keys, n_steps: Keys, grid: Keys) -> Keys:
    """Return the keys that halve each cell, then its halves, and so on."""
    found = [np.empty(0, np.int64)]
    while low.shape[0]:
        # The key inside the cell that ends on most zeros.
        n_zeros = _bit_length(low ^ (high - 1)) - 1
        middle = (high - 1) >> n_zeros << n_zeros
        found.append(middle)
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        n_steps, grid = np.tile(n_steps - 1, 2), np.tile(grid, 2)
        again = (n_steps > 0) & _divisible(low, high, grid)
        low, high, n_steps, grid = low[again], high[again], n_steps[again], grid[again]
    return np.concatenate(found)


def _bit_length(x: Keys) -> Keys:
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)
