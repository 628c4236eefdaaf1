"""Rows grouped by the node they have reached, and the splits that move them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hedgerow.boosting.engine.binning import BinnedFeatures


@dataclass(frozen=True, slots=True)
class Splits:
    """Splits decided together, in the order in which their children are numbered.

    Parameters
    ----------
    node : ndarray of shape (n_splits,), int32
        Node that is split.
    left : ndarray of shape (n_splits,), int32
        Its left child; the right child is ``left + 1``.
    feature : ndarray of shape (n_splits,), int32
    bin : ndarray of shape (n_splits,), int32
        Last bin that goes left at a numeric split, -1 when no present value does; 0 at a
        categorical split.
    default_left : ndarray of shape (n_splits,), bool
        Whether missing values go left.
    categories : tuple of (position, codes)
        For each categorical split its position here and the int32 codes that go right.
    """

    node: NDArray[np.int32]
    left: NDArray[np.int32]
    feature: NDArray[np.int32]
    bin: NDArray[np.int32]
    default_left: NDArray[np.bool_]
    categories: tuple[tuple[int, NDArray[np.int32]], ...] = ()

    @property
    def is_categorical(self) -> NDArray[np.bool_]:
        """Which splits are categorical, shape (n_splits,)."""
        out = np.zeros(self.node.shape[0], dtype=np.bool_)
        for position, _ in self.categories:
            out[position] = True
        return out

    def goes_right(self, n_codes: int) -> NDArray[np.bool_]:
        """Return for each split which codes go right, shape (n_splits or 1, n_codes)."""
        if not self.categories:
            return np.zeros((1, 1), dtype=np.bool_)
        out = np.zeros((self.node.shape[0], n_codes), dtype=np.bool_)
        for position, codes in self.categories:
            out[position, codes] = True
        return out


class RowPartition:
    """Rows of one tree, grouped by the node they have reached.

    It has the sampled rows only: others cost nothing. Rows of a node are ascending, so that memory
    is read forwards.
    """

    def __init__(self, rows: NDArray[np.int32]) -> None:
        self._order = rows.astype(np.int32, copy=True)
        self._spare = np.empty_like(self._order)
        self._spans: dict[int, tuple[int, int]] = {0: (0, rows.shape[0])}

    @property
    def nodes(self) -> tuple[int, ...]:
        """Open nodes and leaves: each row is in one of them."""
        return tuple(self._spans)

    def rows(self, node: int) -> NDArray[np.int32]:
        """Return the ascending row indices of a node (a view)."""
        start, stop = self._spans[node]
        return self._order[start:stop]

    def spans(self, nodes: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and stop positions in :attr:`order` of each node."""
        pairs = np.array([self._spans[node] for node in nodes], dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    @property
    def order(self) -> NDArray[np.int32]:
        """All rows, grouped by node."""
        return self._order

    def split_by_bins(self, binned: BinnedFeatures, splits: Splits) -> None:
        """Send the rows of each split node to its children by their bins."""
        if splits.node.shape[0] == 0:
            return
        starts, stops = self.spans([int(n) for n in splits.node])
        n_left = np.empty(starts.shape[0], dtype=np.int64)
        tests = _Tests(
            splits.feature.astype(np.int64),
            splits.bin.astype(np.int64),
            splits.default_left,
            splits.is_categorical,
            splits.goes_right(int(binned.n_bins.max())),
        )
        columns = binned.by_feature, binned.n_bins
        _partition(columns, self._order, self._spare, starts, stops, tests, n_left)
        self._record(splits, starts, stops, n_left)

    def split_by_masks(self, splits: Splits, masks: Sequence[NDArray[np.bool_]]) -> None:
        """Send rows left where the mask of their node says so (vertical parties).

        Parameters
        ----------
        masks : sequence of ndarray, bool
            One a split, aligned with :meth:`rows` of its node.
        """
        starts, stops = self.spans([int(n) for n in splits.node])
        n_left = np.empty(starts.shape[0], dtype=np.int64)
        for i, mask in enumerate(masks):
            rows = self._order[starts[i] : stops[i]]
            n_left[i] = int(mask.sum())
            self._order[starts[i] : stops[i]] = np.concatenate([rows[mask], rows[~mask]])
        self._record(splits, starts, stops, n_left)

    def _record(
        self,
        splits: Splits,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        n_left: NDArray[np.int64],
    ) -> None:
        for i in range(starts.shape[0]):
            start, stop = int(starts[i]), int(stops[i])
            middle = start + int(n_left[i])
            left = int(splits.left[i])
            del self._spans[int(splits.node[i])]
            self._spans[left] = (start, middle)
            self._spans[left + 1] = (middle, stop)


class _Tests(NamedTuple):
    """The tests of several splits, as in :class:`Splits`."""

    feature: NDArray[np.int64]
    last_left: NDArray[np.int64]
    default_left: NDArray[np.bool_]
    is_categorical: NDArray[np.bool_]
    goes_right: NDArray[np.bool_]


@njit(cache=True, nogil=True)
def _partition(columns, order, spare, starts, stops, tests, n_left):  # type: ignore[no-untyped-def]
    by_feature, n_bins = columns
    for s in range(starts.shape[0]):
        start, stop = starts[s], stops[s]
        column = by_feature[tests.feature[s]]
        missing = n_bins[tests.feature[s]]
        limit = tests.last_left[s]
        missing_left = 1 if tests.default_left[s] else 0
        n_l, n_r = start, 0
        if tests.is_categorical[s]:
            right = tests.goes_right[s]
            for i in range(start, stop):
                row = order[i]
                b = np.int64(column[np.uint32(row)])
                to_left = missing_left if b == missing else (0 if right[b] else 1)
                order[n_l] = row
                spare[n_r] = row
                n_l += to_left
                n_r += 1 - to_left
        else:
            for i in range(start, stop):
                row = order[i]
                b = np.int64(column[np.uint32(row)])
                to_left = missing_left if b == missing else (1 if b <= limit else 0)
                order[n_l] = row
                spare[n_r] = row
                n_l += to_left
                n_r += 1 - to_left
        for i in range(n_r):
            order[n_l + i] = spare[i]
        n_left[s] = n_l - start
