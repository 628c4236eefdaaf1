"""How many rows the sums of an answer tell apart.

Who reads two running sums of a feature knows their difference, the sum over the bins between. So an
answer shows groups of bins, and none of them may have only a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.ciphers.roles import Bins
from hedgerow.crypto.ciphers.sparse_bins import SparseBins
from hedgerow.crypto.errors import HistogramRefused


@dataclass(frozen=True, slots=True)
class SummedBins:
    """What sums of a tree's rows are over."""

    bins: Bins
    """Of shape (n_rows, n_features), or SparseBins."""
    n_bins: tuple[int, ...]
    """Bins of each feature."""
    cumulative: bool
    """Running sums instead of bins, in both directions where values are missing."""
    missing: Sequence[bool] | None = None
    """Features whose last bin holds missing values."""

    def n_sums(self, feature: int) -> int:
        """Count the sums of a feature."""
        n = self.n_bins[feature]
        apart = self.cumulative and self.missing is not None and self.missing[feature]
        return 2 * n - 3 if apart else n

    def counts(self, rows: NDArray[np.integer]) -> Iterator[NDArray[np.int64]]:
        """Yield how many of ``rows`` are in each bin, feature by feature."""
        if isinstance(self.bins, SparseBins):
            yield from np.split(self.bins.counts(rows), self.bins.first[1:-1])
            return
        for feature, n in enumerate(self.n_bins):
            yield np.bincount(self.bins[rows, feature], minlength=n)

    def groups(
        self, feature: int, counts: NDArray[np.int64], chosen: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return how many rows are in each group of bins that chosen sums tell apart.

        Without chosen sums nothing is told apart: all rows are one group, whose size is known.

        Parameters
        ----------
        counts
            Rows in each bin of the feature.
        """
        n = self.n_bins[feature]
        if not self.cumulative:
            return counts[chosen]
        absent = self.missing is not None and self.missing[feature]
        present = counts[: n - absent]
        forwards, backwards = chosen[: len(present)], chosen[len(present) :]
        cuts = forwards[:-1].copy()
        if absent:
            cuts |= backwards
        groups = np.add.reduceat(present, np.concatenate([[0], 1 + np.flatnonzero(cuts)]))
        if not absent:
            return groups[len(groups) == 1 :]
        if forwards[-1] or (forwards.any() and backwards.any()):
            return np.append(groups, counts[-1])
        groups[0 if backwards.any() else -1] += counts[-1]
        return groups[len(groups) == 1 :]


def check_groups(
    sums: SummedBins,
    nodes: Sequence[NDArray[np.integer]],
    order: NDArray[np.integer] | None,
    least: int,
) -> None:
    """Refuse an answer that tells apart fewer than ``least`` rows of a node, but more than none.

    Parameters
    ----------
    nodes
        Row numbers of each node.
    order
        Numbers of the sums that are sent, over nodes, features and sums; all when left out.

    Raises
    ------
    HistogramRefused
    """
    widths = [sums.n_sums(feature) for feature in range(len(sums.n_bins))]
    chosen = np.full(len(nodes) * sum(widths), order is None, np.bool_)
    if order is not None:
        chosen[order[(order >= 0) & (order < len(chosen))]] = True
    edges = np.cumsum([0, *widths])
    for rows, of_node in zip(nodes, chosen.reshape(len(nodes), sum(widths)), strict=True):
        for feature, counts in enumerate(sums.counts(rows)):
            at, width = edges[feature], widths[feature]
            found = sums.groups(feature, counts, of_node[at : at + width])
            if ((found > 0) & (found < least)).any():
                raise HistogramRefused(f"expected sums that differ by {least} rows, or by none")
