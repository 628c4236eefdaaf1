"""Rows grouped by the node they have reached, and the splits that move them on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.binning import BinnedFeatures
from hedgerow.crypto.native.kernels import kernel


@dataclass(frozen=True, slots=True)
class Splits:
    """Splits decided together, in the order in which their children are numbered."""

    node: NDArray[np.int32]
    """Of shape (n_splits,), int32. Node that is split."""
    left: NDArray[np.int32]
    """Of shape (n_splits,), int32. Its left child; the right child is ``left + 1``."""
    feature: NDArray[np.int32]
    """Of shape (n_splits,), int32."""
    bin: NDArray[np.int32]
    """Of shape (n_splits,), int32. Last bin that goes left at a numeric split, -1 when no present
    value does; 0 at a categorical split."""
    default_left: NDArray[np.bool_]
    """Of shape (n_splits,), bool. Whether missing values go left."""
    categories: tuple[tuple[int, NDArray[np.int32]], ...] = ()
    """For each categorical split its position here and the int32 codes that go right."""

    def goes_left(self, n_bins: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which bins of each split's feature go left, shape (n_splits, widest + 1).

        Parameters
        ----------
        n_bins : ndarray of shape (n_features,), int64
            Missing values have the bin after a feature's last.
        """
        out = np.arange(int(n_bins.max()) + 1) <= self.bin[:, None]
        for position, codes in self.categories:
            out[position] = True
            out[position, codes] = False
        out[np.arange(out.shape[0]), n_bins[self.feature]] = self.default_left
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
        goes_left = splits.goes_left(binned.n_bins)
        features = splits.feature.astype(np.int64)
        spans = starts, stops, n_left
        bins = binned.by_feature  # flat in either order of memory
        steps = tuple(np.uint64(step // bins.itemsize) for step in bins.strides)
        flat = bins.ravel(order="K")
        _partition(flat, steps, features, goes_left, self._order, self._spare, spans)
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


@kernel("boosting/tables", "partition_rows")
def _partition(bins, steps, features, goes_left, order, spare, spans):
    """Move the rows of each node: those of the left child to the front, both in their order."""
    starts, stops, n_left = spans
    by_feature, by_row = steps
    for s in range(starts.shape[0]):
        rows = order[starts[s] : stops[s]].copy()
        at = np.uint64(features[s]) * by_feature + rows.astype(np.uint64) * by_row
        left = goes_left[s][bins[at]].astype(np.bool_)
        order[starts[s] : stops[s]] = np.concatenate([rows[left], rows[~left]])
        n_left[s] = left.sum()
