"""Binned rows: every value replaced by the index of its bin, once, before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns, columns_of
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.sorting import sorted_keys
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.storage import IN_MEMORY, Storage
from hedgerow.crypto.native.kernels import kernel

Bins = NDArray[np.uint8 | np.uint16]
T = TypeVar("T")

MOST_BINS = 0xFFFF
"""Bins that a feature may have."""


@dataclass(frozen=True, slots=True)
class BinnedFeatures:
    """Bin indices of a party's rows; a missing value has the index after the last bin."""

    by_row: Bins
    """Of shape (n_samples, n_features), uint8 or uint16, C order. For histograms and for routing
    rows through whole trees."""
    by_feature: Bins
    """Of shape (n_features, n_samples), same dtype. For partitioning by one feature: a copy in C
    order, or a view of ``by_row`` where memory has no room for two."""
    n_bins: NDArray[np.int64]
    """Of shape (n_features,), int64."""
    missing: NDArray[np.bool_]
    """Of shape (n_features,), bool. Which features have missing values."""

    @property
    def any_missing(self) -> bool:
        """Whether any value is missing."""
        return bool(self.missing.any())

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return int(self.by_row.shape[0])

    def column(self, feature: int) -> Bins:
        """Return the bins of a feature."""
        return np.asarray(self.by_feature[feature])

    def missing_in(self, n_rows: int) -> NDArray[np.bool_]:
        """Return which features have missing values in the first rows."""
        return np.asarray((self.by_row[:n_rows] == self.n_bins).any(axis=0))

    def of(
        self,
        features: NDArray[np.integer],
        rows: NDArray[np.integer],
        n_bins: Sequence[int],
    ) -> Bins:
        """Return the bins of some features, of which no row is above ``n_bins``, and rows.

        Returns
        -------
        ndarray of shape (n_rows, n_features), uint8 or uint16
        """
        return np.ascontiguousarray(self.by_feature[features][:, rows].T)

    def recoded(self, places: Mapping[int, NDArray[np.integer]]) -> BinnedFeatures:
        """Return bins that were given other numbers, by feature."""
        by_feature = np.array(self.by_feature)
        for j, own in places.items():
            by_feature[j] = own[by_feature[j]]
        return replace(self, by_row=np.ascontiguousarray(by_feature.T), by_feature=by_feature)

    def values(self, cuts: Cuts, rows: slice) -> NDArray[np.float32]:
        """Return a number in the bin of each value, shape (n_rows, n_features).

        A tree whose thresholds are cut points routes it as the value itself.
        """
        bins = self.by_row[rows]
        out = np.empty(bins.shape, np.float32)
        for j in range(cuts.n_features):
            own = cuts.of(j)
            least = own if cuts.categorical[j] else np.append(cuts.lower[j], own[:-1])
            out[:, j] = np.append(least, np.float32(np.nan))[bins[:, j]]
        return out


def bin_features(
    X: NDArray[np.float32] | Columns,
    cuts: Cuts,
    n_threads: int = 1,
    storage: Storage = IN_MEMORY,
) -> BinnedFeatures:
    """Bin every value of ``X`` (n_samples, n_features), one column at a time.

    Raises
    ------
    DataError
        A value at or above its feature's upper fence, below the lower one, or a categorical
        value that is no code of the feature. The message names the feature, not the value.
    """
    columns, n_bins = columns_of(X), cuts.n_bins
    n_features = cuts.n_features
    check_columns(columns, cuts)
    one_byte = n_bins.max(initial=0) <= 1 << 8
    shape = n_features, columns.n_samples
    by_feature = _columns(shape, np.uint8 if one_byte else np.uint16, storage)
    missing = np.zeros(n_features, dtype=np.bool_)

    def one(j: int) -> None:
        missing[j] = bin_column(columns.readers[j](), cuts, j, by_feature[j])

    def run(features: Sequence[int]) -> None:
        run_all([partial(one, int(j)) for j in features], n_threads)

    run(range(n_features))
    full = missing & (n_bins == 1 << 8)
    if one_byte and full.any():
        narrow, by_feature = by_feature, _columns(shape, np.uint16, storage)
        by_feature[:] = narrow
        del narrow
        run(np.flatnonzero(full).tolist())
    by_row = storage.array(shape[::-1], by_feature.dtype)
    _transpose(by_feature, by_row)
    if storage.copies(by_feature.nbytes) < 2:
        by_feature = by_row.T
    return BinnedFeatures(by_row, by_feature, n_bins, missing)


def check_columns(columns: Columns, cuts: Cuts) -> None:
    """Refuse another number of columns than the cuts', or more bins than a feature may have."""
    n_features, n_bins = len(columns.readers), cuts.n_bins
    if n_features != cuts.n_features:
        raise DataError(f"table: expected {cuts.n_features} features, received {n_features}")
    if n_bins.max(initial=0) > MOST_BINS:
        j = int(np.argmax(n_bins))
        raise DataError(f"feature {j} has {n_bins[j]} bins, expected at most {MOST_BINS}")


def bin_column(column: NDArray[np.float32], cuts: Cuts, feature: int, out: Bins) -> bool:
    """Write the bins of a feature's values into ``out``; return whether any is missing.

    Raises
    ------
    DataError
        As :func:`bin_features`.
    """
    own = cuts.of(feature)
    if cuts.categorical[feature]:
        found = _copy_codes(column, own.shape[0], out)
    else:
        table = _Cells.of(own[:-1], column.shape[0])
        found = _bin_column(column, own, (cuts.lower[feature], own[-1]), table, out)
    if found & 2:
        raise DataError(f"feature {feature} has values outside its bins")
    return bool(found & 1)


def _columns(shape: tuple[int, int], dtype: type[np.uint8 | np.uint16], storage: Storage) -> Bins:
    """Return an empty array of bins by feature: in memory only where it can stay there."""
    n_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    return np.empty(shape, dtype) if storage.copies(n_bytes) == 2 else storage.mapped(shape, dtype)


class _Cells(NamedTuple):
    """The line of keys in equal cells: a value's cell tells its bin, or those to search."""

    base: np.uint32
    shift: np.uint32
    """``base`` and ``shift``: key ``k`` is in cell ``1 + ((k - base) >> shift)``, cell 0 if below
    ``base``."""
    first: NDArray[np.uint16]
    """Of shape (n_cells + 2,), uint16. Thresholds in the cells before each."""

    @classmethod
    def of(cls, inner: NDArray[np.float32], n_samples: int) -> _Cells:
        """Divide the range of a feature's thresholds, the finer the more values are binned."""
        if inner.shape[0] == 0:
            return cls(np.uint32(0), np.uint32(0), np.zeros(4, np.uint16))
        n_cells = 1 << 15 if n_samples >= 1 << 14 else 1 << 12
        keys = sorted_keys(inner)
        span = int(keys[-1] - keys[0])
        shift = max(0, span.bit_length() - n_cells.bit_length() + 1)
        first = np.empty(n_cells + 2, np.uint16)
        _count_before((keys - keys[0]) >> np.uint32(shift), first)
        return cls(keys[0], np.uint32(shift), first)


@kernel("boosting/tables", "count_before")
def _count_before(cells, out):
    out[:] = np.searchsorted(cells, np.arange(-1, out.shape[0] - 1))


@kernel("boosting/tables", "bin_column")
def _bin_column(x, inner, fences, cells, out):
    """Count the thresholds not above each value; return 1 where any is missing, + 2 where bad.

    ``inner`` has the upper fence after the thresholds; the kernel finds them by ``cells``.
    """
    missing = np.isnan(x)
    out[:] = np.where(missing, inner.shape[0], np.searchsorted(inner[:-1], x, side="right"))
    bad = (x < fences[0]) | (x >= fences[1])
    return int(missing.any()) + 2 * int(bad.any())


@kernel("boosting/tables", "copy_codes")
def _copy_codes(x, n_bins, out):
    missing = np.isnan(x)
    codes = np.where(missing, n_bins, x).astype(np.int64)
    bad = ~missing & ((codes != x) | (codes < 0) | (codes >= n_bins))
    out[~bad] = codes[~bad]
    return int(missing.any()) + 2 * int(bad.any())


@kernel("boosting/tables", "transpose")
def _transpose(columns, rows):
    rows[:] = columns.T


@lru_cache(maxsize=8)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="kernels")


def run_all(tasks: Sequence[Callable[[], None]], n_threads: int) -> None:
    """Run tasks that release the interpreter lock, in this thread or in a pool."""
    if n_threads <= 1 or len(tasks) <= 1:
        for task in tasks:
            task()
        return
    for future in [_pool(n_threads).submit(task) for task in tasks]:
        future.result()


def each_column(
    readers: Sequence[Callable[[], NDArray[np.float32]]],
    of: Callable[[NDArray[np.float32], int], T],
    n_threads: int,
) -> list[T]:
    """Return what follows from each column and its position; it is read for that alone."""
    found: dict[int, T] = {}

    def one(j: int) -> None:
        found[j] = of(readers[j](), j)

    run_all([partial(one, j) for j in range(len(readers))], n_threads)
    return [found[j] for j in range(len(readers))]
