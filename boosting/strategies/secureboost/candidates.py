"""A passive party's ways to divide a node, in an order that only it knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.binning import BinnedFeatures
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.histogram import Layout, build_histograms, layout_of
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.sparse import SparseFeatures
from hedgerow.boosting.strategies.secureboost.category_sets import Chain, chains_of
from hedgerow.boosting.strategies.secureboost.steps import ALL_ROWS, NO_ROWS
from hedgerow.crypto.native.kernels import kernel


@dataclass(frozen=True, slots=True)
class DivisionTable:
    """All divisions of a tree's features: ``x < threshold`` left, missing values left or right."""

    features: NDArray[np.int64]
    """Of shape (n_used,), int64. Ascending."""
    missing: NDArray[np.bool_]
    """Of shape (n_used,), bool. Which of them have missing values."""
    mirrored: NDArray[np.bool_]
    """Of shape (n_used,), bool. Which of them also divide missing from present values with the
    present ones on the right: the same rows, but not the same under a monotone constraint."""
    n_bins: tuple[int, ...]
    """Bins of each used feature, that of missing values included."""
    feature: NDArray[np.int64]
    last_left: NDArray[np.int64]
    """Of shape (n_divisions,), int64. ``feature`` and ``last_left``: feature, and last bin that
    goes left, in the order in which ties are broken."""
    default_left: NDArray[np.bool_]
    """Of shape (n_divisions,), bool."""
    at: NDArray[np.int64]
    """Of shape (n_divisions,), int64. Its number among the running sums of a node, see
    :func:`hedgerow.crypto.ciphers.ciphertext_histogram.cumulate`."""
    n_sums: int
    """Running sums of a node."""
    chained: NDArray[np.bool_]
    """Of shape (n_used,), bool. Which used features are categories that are divided into sets, or
    all where only sums are wanted: their divisions are running sums, ``last_left`` places of an
    order, and missing values go right."""

    @classmethod
    def of(
        cls,
        cuts: Cuts,
        features: NDArray[np.int64],
        has_missing: NDArray[np.bool_],
        monotone: Sequence[int] = (),
        *,
        whole: bool = False,
    ) -> DivisionTable:
        """Return the divisions of ``features``.

        Parameters
        ----------
        whole : bool
            Whether the divisions of numbers are chains too: running sums of one column, in order.
        monotone : sequence of int
            Constraint of every feature of the party; empty for none.
        """
        constrained = np.array(monotone, np.bool_) if len(monotone) else np.zeros_like(has_missing)
        mirrored = has_missing & constrained
        feature, last, default, at = [], [], [], []
        n_bins = []
        n_sums = 0
        for j in features:
            n, missing = int(cuts.n_bins[j]), bool(has_missing[j])
            n_bins.append(n + missing)
            n_right = n if missing else n - 1
            both = missing and not (cuts.categorical[j] or whole)
            right, backwards = (
                np.arange(n_right),
                np.arange(0 if mirrored[j] else 1, n)[::-1] if both else np.arange(0),
            )
            feature.append(np.full(n_right + len(backwards), j))
            last.append(np.concatenate([right, backwards - 1]))
            default.append(np.concatenate([np.zeros(n_right, bool), np.ones(len(backwards), bool)]))
            # The sum of all present values is the last one of those from the left.
            from_right = np.where(backwards > 0, n + backwards - 1, n - 1)
            at.append(n_sums + np.concatenate([right, from_right]))
            n_sums += n + (n - 1 if missing else 0)
        empty = np.empty(0, np.int64)
        chained = cuts.categorical[features]
        return cls(
            features,
            has_missing[features],
            mirrored[features],
            tuple(n_bins),
            np.concatenate([empty, *feature]),
            np.concatenate([empty, *last]),
            np.concatenate([np.empty(0, np.bool_), *default]),
            np.concatenate([empty, *at]),
            n_sums,
            chained | whole,
        )

    def __len__(self) -> int:
        """Count the divisions."""
        return len(self.feature)

    def _left(
        self, counts: NDArray[np.int64], layout: Layout
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, of a node's rows by bin, those up to each division, and all of its feature."""
        below = np.concatenate([[0], np.cumsum(counts)])
        k = np.searchsorted(self.features, self.feature)
        before = below[layout.offsets[k]]
        left = below[layout.offsets[k] + self.last_left + 1] - before
        return left, below[layout.offsets[k + 1]] - before

    def bins_left(self, division: int, n_bins: int) -> NDArray[np.bool_]:
        """Return which bins a division sends left, that of missing values at the end."""
        left: NDArray[np.bool_] = np.arange(n_bins + 1) <= self.last_left[division]
        left[-1] = self.default_left[division]
        return left

    def chains(self, order: NDArray[np.int64]) -> tuple[Chain, ...]:
        """Return the chains of sets, whose candidates are the first in an order of divisions."""
        n = int(np.isin(self.feature[order], self.features[self.chained]).sum())
        features = self.feature[order[:n]]
        first = np.flatnonzero(np.diff(features, prepend=-1))
        sizes = np.diff(np.append(first, n)).tolist()
        missing = self.missing[np.searchsorted(self.features, features[first])].tolist()
        return chains_of(sizes, missing)

    def shuffled(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the divisions in a new order: chains first, each as it is, then all others."""
        is_chained = np.isin(self.feature, self.features[self.chained])
        chains = rng.permutation(self.features[self.chained])
        return np.concatenate(
            [
                *(np.flatnonzero(self.feature == j) for j in chains),
                rng.permutation(np.flatnonzero(~is_chained)),
            ]
        ).astype(np.int64)

    def sides(
        self,
        cuts: Cuts,
        binned: BinnedFeatures | SparseFeatures,
        partition: RowPartition,
        nodes: Sequence[int],
        counted: NDArray[np.int64],
        known: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Return which sum each division of nodes has: that of the first with the same rows.

        Rows of a division are those that its sum is over. Where a node has few rows, many
        divisions are the same, and only one of them needs a ciphertext.

        Parameters
        ----------
        counted : ndarray of shape (n_samples, 2), int64
            One in both columns for rows that are summed, else zero.
        known : ndarray of shape (n_nodes, n_divisions), bool
            Divisions whose sums are sent, see :meth:`large_enough`; of the others none is.

        Returns
        -------
        ndarray of shape (n_nodes, n_divisions), int64
            A division's number, :data:`NO_ROWS`, or :data:`ALL_ROWS` of the node.
        """
        out = np.empty((len(nodes), len(self)), np.int64)
        if not len(self):
            return out
        layout = layout_of(cuts, self.features)
        bins = build_histograms(binned, partition, nodes, counted, layout)[:, :, 0]
        totals = np.array([int(counted[partition.rows(node), 0].sum()) for node in nodes])
        n_rows = np.empty_like(out)
        for k in range(len(nodes)):
            left, present = self._left(bins[k], layout)
            n_rows[k] = np.where(self.default_left, present - left, left)
        # Divisions of a feature in one direction are nested: as many rows are the same rows.
        first = np.ones(len(self), np.bool_)
        first[1:] = (np.diff(self.feature) != 0) | (np.diff(self.default_left.astype(int)) != 0)
        chain = np.cumsum(first)
        for k in range(len(nodes)):
            at = np.flatnonzero(known[k])
            fresh = np.ones(len(at), np.bool_)
            fresh[1:] = (np.diff(n_rows[k, at]) != 0) | (np.diff(chain[at]) != 0)
            out[k, at] = at[np.maximum.accumulate(np.where(fresh, np.arange(len(at)), 0))]
        out[n_rows == totals[:, None]] = ALL_ROWS
        out[(n_rows == 0) | ~known] = NO_ROWS
        return out

    def large_enough(
        self,
        cuts: Cuts,
        binned: BinnedFeatures | SparseFeatures,
        partition: RowPartition,
        nodes: tuple[int, ...],
        counted: NDArray[np.int64],
        parent: NDArray[np.bool_],
        least: int,
        least_of_sets: int,
    ) -> NDArray[np.bool_]:
        """Return the divisions of a node and its sibling whose sums separate enough rows.

        Bins with fewer than ``least`` rows are merged with those above them, so that between two
        sums of a feature, and on either end, there are no rows or at least ``least``, in both
        nodes: who knows the parent's sums and one child's has the other's by subtraction.

        Parameters
        ----------
        nodes : tuple of int
            The root, or two siblings.
        counted : ndarray of shape (n_samples, 2), int64
            One in both columns for rows that are summed, else zero.
        parent : ndarray of shape (n_divisions,), bool
            What was returned for their parent; all divisions for the root.
        least_of_sets : int
            The same as ``least`` for chains.

        Returns
        -------
        ndarray of shape (n_divisions,), bool
        """
        out = np.zeros(len(self), np.bool_)
        if not len(self):
            return out
        layout = layout_of(cuts, self.features)
        counts = build_histograms(binned, partition, nodes, counted, layout)[:, :, 0]
        totals = np.array([int(counted[partition.rows(node), 0].sum()) for node in nodes])
        starts = np.searchsorted(self.feature, self.features)
        fewest = np.where(self.chained, least_of_sets, least)
        _merge(
            layout.offsets, starts, self.missing, self.mirrored, self.chained,
            np.ascontiguousarray(counts), totals,
            parent, fewest, out,
        )  # fmt: skip
        return out

    def too_few(
        self,
        cuts: Cuts,
        binned: BinnedFeatures | SparseFeatures,
        partition: RowPartition,
        nodes: Sequence[int],
        counted: NDArray[np.int64],
        least: int,
    ) -> NDArray[np.bool_]:
        """Return which divisions leave fewer than ``least`` rows on a side; of chains none.

        Parameters
        ----------
        counted : ndarray of shape (n_samples, 2), int64
            One in both columns for rows that count, else zero.

        Returns
        -------
        ndarray of shape (n_nodes, n_divisions), bool
        """
        out = np.zeros((len(nodes), len(self)), np.bool_)
        if least <= 1 or not len(self):
            return out
        layout = layout_of(cuts, self.features)
        counts = build_histograms(binned, partition, nodes, counted, layout)[:, :, 0]
        totals = np.array([int(counted[partition.rows(node), 0].sum()) for node in nodes])
        chained = self.chained[np.searchsorted(self.features, self.feature)]
        for k, total in enumerate(totals):
            left, present = self._left(counts[k], layout)
            left += np.where(self.default_left, total - present, 0)
            out[k] = ~chained & ((left < least) | (total - left < least))
        return out


def _apart(one, other, least):
    return all(((side == 0) | (side >= least)).all() for side in (one, other))


@kernel("boosting/search", "merge_divisions")
def _merge(offsets, starts, missing, mirrored, chained, counts, totals, parent, fewest, out):
    """Fill in :meth:`DivisionTable.large_enough`: from the left, cut where enough rows are."""
    for k, (at, least) in enumerate(zip(starts, fewest, strict=True)):
        own = counts[:, offsets[k] : offsets[k + 1]]
        n, after, since = own.shape[1], own.sum(axis=1), np.zeros(own.shape[0], np.int64)
        # Missing values are a group of their own, or belong to the last one.
        apart = missing[k] and parent[at + n - 1] and _apart(totals - after, after, least)
        if not apart:
            after = totals.copy()
        elif n > 0:
            out[at + n - 1] = True
            if mirrored[k]:
                out[at + 2 * n - 1] = True
        for c in range(n - 1):
            since, after = since + own[:, c], after - own[:, c]
            if parent[at + c] and _apart(since, after, least):
                since = np.zeros_like(since)
                out[at + c] = True
                if apart and not chained[k]:
                    out[at + n + (n - 2 - c)] = True
