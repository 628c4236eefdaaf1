"""Binned rows of which most are in one bin of their features: only the others are kept.

What is kept grows with the values that are not their feature's usual one (missing, or 0), and so
does the time of a histogram. Bins, sums and so models are those of the dense form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns
from hedgerow.boosting.engine.binning import (
    BinnedFeatures,
    Bins,
    bin_column,
    bin_features,
    check_columns,
    each_column,
    run_all,
)
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.crypto.ciphers.sparse_bins import SparseBins
from hedgerow.crypto.native.kernels import kernel

MOST_LISTED = 0.125
"""Share of values beside the usual ones up to which they are kept alone: a value kept takes five
times the memory and about three times the time of one in a dense table."""
_COLUMNS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, eq=False)
class SparseFeatures:
    """As :class:`~hedgerow.boosting.engine.binning.BinnedFeatures`, without a table of all bins."""

    cells: SparseBins
    """Every feature has a bin of missing values after its last."""
    n_bins: NDArray[np.int64]
    """Of shape (n_features,), int64."""

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return len(self.cells)

    def column(self, feature: int) -> NDArray[np.uint8 | np.uint16]:
        """Return the bins of a feature."""
        return self.cells.column(feature)

    def missing_in(self, n_rows: int) -> NDArray[np.bool_]:
        """Return which features have missing values in the first rows."""
        counts = self.cells.counts(np.arange(n_rows))
        return np.asarray(counts[self.cells.first[1:] - 1] > 0)

    def of(
        self,
        features: NDArray[np.integer],
        rows: NDArray[np.integer],
        n_bins: Sequence[int],
    ) -> SparseBins:
        """Return the bins of some features, of which no row is above ``n_bins``, and rows."""
        return self.cells.of_rows(rows).of_features(features, np.asarray(n_bins, np.int64))

    def recoded(self, places: Mapping[int, NDArray[np.integer]]) -> SparseFeatures:
        """Return bins that were given other numbers, by feature."""
        first, usual = self.cells.first, self.cells.usual.copy()
        old = np.arange(first[-1])
        for j, own in places.items():
            usual[j] = own[usual[j]]
            old[first[j] + own] = first[j] + np.arange(len(own))
        lengths = np.diff(self.cells.starts)[old]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        index = np.repeat(self.cells.starts[old] - starts[:-1], lengths) + np.arange(starts[-1])
        cells = replace(self.cells, usual=usual, starts=starts, rows=self.cells.rows[index])
        return replace(self, cells=cells)

    def histograms(
        self,
        nodes: Sequence[NDArray[np.integer]],
        gradients: NDArray[np.int64],
        features: NDArray[np.int64],
        n_threads: int = 1,
    ) -> NDArray[np.int64]:
        """Return the sums of nodes by bin of the features, that of missing values left out.

        Parameters
        ----------
        nodes : sequence of ndarray
            Rows of each node; no row is in two of them.
        gradients : ndarray of shape (n_samples, n_values), int64
        features : ndarray of shape (n_used,), int64
            Ascending.

        Returns
        -------
        ndarray of shape (n_nodes, n_bins, n_values), int64
        """
        first, widths = self.cells.first, self.n_bins[features] + 1
        ends = np.cumsum(widths)
        at = ends - widths
        cells = np.repeat(first[features] - at, widths) + np.arange(widths.sum())
        node_of = np.full(self.n_samples, -1, np.int32)
        totals = np.zeros((len(nodes), 1, gradients.shape[1]), np.int64)
        for k, rows in enumerate(nodes):
            node_of[rows] = k
            totals[k] = gradients[rows].sum(axis=0)
        out = np.zeros((len(nodes), len(cells), gradients.shape[1]), np.int64)
        values = np.ascontiguousarray(gradients)
        spans = np.linspace(0, len(cells), 4 * n_threads + 1 if n_threads > 1 else 2).astype(int)
        run_all(
            [
                partial(
                    _sum_cells, self.cells.starts, self.cells.rows, cells[a:b], node_of, values,
                    a, out,
                )
                for a, b in pairwise(spans.tolist())
            ],
            n_threads,
        )  # fmt: skip
        if len(cells):
            out[:, at + self.cells.usual[features]] = totals - np.add.reduceat(out, at, axis=1)
        return np.delete(out, ends - 1, axis=1)


def bin_columns(columns: Columns, cuts: Cuts, n_threads: int) -> BinnedFeatures | SparseFeatures:
    """Bin a table one column at a time, into the form that its values make the smaller one.

    Raises
    ------
    DataError
        As :func:`~hedgerow.boosting.engine.binning.bin_features`.
    """
    check_columns(columns, cuts)
    n, readers = columns.n_samples, columns.readers
    room = MOST_LISTED * n * len(readers)
    found: list[_Listed] = []
    listed = 0
    at_once = max(_COLUMNS_AT_ONCE, n_threads)
    for first in range(0, len(readers), at_once):
        of = partial(_listed, cuts, first)
        some = each_column(readers[first : first + at_once], of, n_threads)
        listed += sum(len(own.rows) for own in some)
        if listed > room or not n:
            return bin_features(columns, cuts, n_threads)
        found += some
    cells = SparseBins(
        n,
        cuts.n_bins + 1,
        np.array([own.usual for own in found], np.int64),
        np.concatenate([[0], np.cumsum(np.concatenate([own.counts for own in found]))]).astype(
            np.int64
        ),
        np.concatenate([own.rows for own in found]),
    )
    return SparseFeatures(cells, cuts.n_bins)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A feature's cells: its usual bin, the rows that are in another, by bin, and their counts."""

    usual: int
    counts: NDArray[np.int64]
    rows: NDArray[np.int32]


def _listed(cuts: Cuts, first: int, column: NDArray[np.float32], k: int) -> _Listed:
    n_bins = int(cuts.n_bins[first + k]) + 1
    bins: Bins = np.empty(len(column), np.uint8 if n_bins <= 1 << 8 else np.uint16)
    bin_column(column, cuts, first + k, bins)
    counts = np.bincount(bins, minlength=n_bins)
    usual = int(counts.argmax())
    rows = np.flatnonzero(bins != usual).astype(np.int32)
    counts[usual] = 0
    # numpy sorts keys of 16 bits and fewer by radix
    return _Listed(usual, counts, rows[np.argsort(bins[rows], kind="stable")])


@kernel("boosting/tables", "sum_cells")
def _sum_cells(starts, rows, cells, node_of, gradients, first, out):
    for c, cell in enumerate(cells):
        own = rows[starts[cell] : starts[cell + 1]]
        own = own[node_of[own] >= 0]
        np.add.at(out[:, first + c], node_of[own], gradients[own])
