"""Bins of which most are the same: of each feature, the rows that are not in its usual bin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.errors import HistogramRefused

_BLOCK = 1 << 22
"""Rows of cells that are looked at together, so that masks and indices stay small."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseBins:
    """Rows by feature and bin; a row that a feature does not list is in its usual bin.

    A cell is a bin of a feature; cells are numbered feature by feature. Memory and time of a node's
    sums grow with the rows listed. What the usual bin holds is the node's total less all others.
    """

    n_rows: int
    n_bins: NDArray[np.int64]
    """Of shape (n_features,), int64."""
    usual: NDArray[np.int64]
    """Of shape (n_features,), int64. The bin of the rows that are not listed; its cell lists
    none."""
    starts: NDArray[np.int64]
    """Of shape (n_cells + 1,), int64. Cell c lists ``rows[starts[c]:starts[c + 1]]``."""
    rows: NDArray[np.integer]
    """Of shape (n_listed,), int32 or uint32. Ascending in a cell."""

    def __len__(self) -> int:
        """Count the rows."""
        return self.n_rows

    def __getitem__(self, span: slice) -> SparseBins:
        """Return the bins of consecutive rows."""
        return self.of_rows(np.arange(*span.indices(self.n_rows)))

    @property
    def first(self) -> NDArray[np.int64]:
        """Each feature's first cell, and the number of cells."""
        return np.concatenate([[0], np.cumsum(self.n_bins)]).astype(np.int64)

    @property
    def usual_cells(self) -> NDArray[np.int64]:
        """The cell of each feature's usual bin."""
        return self.first[:-1] + self.usual

    def check(self, n_bins: Sequence[int]) -> None:
        """Refuse bins that are not as described above, or have other numbers than ``n_bins``.

        Raises
        ------
        HistogramRefused
        """
        shapes = self.n_bins.shape == self.usual.shape == (len(n_bins),)
        if not shapes or (self.n_bins != np.asarray(n_bins)).any() or min(n_bins, default=1) < 1:
            raise HistogramRefused(
                f"expected a positive number of bins for each of {len(n_bins)} features"
            )
        if ((self.usual < 0) | (self.usual >= self.n_bins)).any():
            raise HistogramRefused("a feature's usual bin is not below its number of bins")
        counts = np.diff(self.starts)
        rises = self.starts.shape == (int(self.n_bins.sum()) + 1,) and not (counts < 0).any()
        if not rises or self.starts[0] != 0 or self.starts[-1] != len(self.rows):
            raise HistogramRefused("expected cells that list all rows of sparse bins")
        if counts[self.usual_cells].any():
            raise HistogramRefused("a feature's usual bin lists rows")
        if len(self.rows):
            falls = np.flatnonzero(np.diff(self.rows.astype(np.int64)) < 1) + 1
            inside = self.rows.min() >= 0 and self.rows.max() < self.n_rows
            if not inside or not np.isin(falls, self.starts).all():
                raise HistogramRefused(f"expected strictly ascending row numbers below {len(self)}")

    def of_node(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the node's listed rows, cell by cell, and how many each cell lists.

        Returns
        -------
        index : ndarray of shape (n_listed,), uint32
        counts : ndarray of shape (n_cells,), int64
        """
        chosen = np.zeros(self.n_rows, np.bool_)
        chosen[rows] = True
        found, counts, before = [np.empty(0, np.uint32)], np.zeros(len(self.starts), np.int64), 0
        for at in range(0, len(self.rows), _BLOCK):
            listed = self.rows[at : at + _BLOCK]
            places = np.flatnonzero(chosen[listed])
            ends = (self.starts > at) & (self.starts <= at + len(listed))
            counts[ends] = before + np.searchsorted(places, self.starts[ends] - at)
            before += len(places)
            found.append(listed[places].astype(np.uint32))
        # Cells that end where nothing is listed yet have a count of zero, as all of them do.
        return np.concatenate(found), np.diff(counts)

    def counts(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return how many of a node's rows are in each cell, usual ones included."""
        _, counts = self.of_node(rows)
        listed = np.add.reduceat(counts, self.first[:-1]) if len(counts) else counts
        counts[self.usual_cells] = len(rows) - listed
        return counts

    def column(self, feature: int) -> NDArray[np.uint16]:
        """Return every row's bin of a feature."""
        out = np.full(self.n_rows, self.usual[feature], np.uint16)
        a, b = self.first[feature : feature + 2]
        own = self.starts[a : b + 1]
        out[self.rows[own[0] : own[-1]]] = np.repeat(np.arange(b - a), np.diff(own))
        return out

    def table(self) -> NDArray[np.uint16]:
        """Return every row's bins, shape (n_rows, n_features)."""
        return np.stack([self.column(j) for j in range(len(self.n_bins))], axis=1)

    def of_rows(self, rows: NDArray[np.integer]) -> SparseBins:
        """Return the bins of ascending rows, which are renumbered."""
        if len(rows) == self.n_rows:
            return self
        index, counts = self.of_node(rows)
        place = np.zeros(self.n_rows, np.uint32)
        place[rows] = np.arange(len(rows))
        return SparseBins(len(rows), self.n_bins, self.usual, _starts(counts), place[index])

    def of_features(self, features: NDArray[np.integer], n_bins: NDArray[np.integer]) -> SparseBins:
        """Return some features, with fewer bins where the last ones hold no row."""
        first, usual = self.first, self.usual[features].copy()
        parts, lengths = [self.rows[:0]], [np.empty(0, np.int64)]
        for k, (j, n) in enumerate(zip(features.tolist(), n_bins.tolist(), strict=True)):
            own = self.starts[first[j] : first[j] + n + 1]
            counts = np.diff(own)
            if usual[k] >= n:  # no row is in the usual bin: the fullest one takes its place
                u = usual[k] = int(counts.argmax())
                parts.append(self.rows[own[0] : own[u]])
                own, counts[u] = own[u + 1 :], 0
            parts.append(self.rows[own[0] : own[-1]])
            lengths.append(counts)
        starts = _starts(np.concatenate(lengths))
        rows = self.rows if starts[-1] == len(self.rows) else np.concatenate(parts)
        return SparseBins(self.n_rows, np.asarray(n_bins, np.int64), usual, starts, rows)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def usual_is_sent(bins: SparseBins, missing: Sequence[bool] | None) -> NDArray[np.bool_]:
    """Return which features' usual bins are summed.

    Parameters
    ----------
    missing
        For running sums, features whose last bin holds missing values, which are in none of them.
    """
    if missing is None:
        return np.ones(len(bins.n_bins), np.bool_)
    apart = np.asarray(missing, np.bool_) & (bins.usual == bins.n_bins - 1)
    return np.asarray(~apart)
