"""Leaf values that are quantiles of residuals, searched on summed counts for all leaves at once.

XGBoost's leaf of an absolute or quantile error is a quantile of its rows' residuals, label minus
margin. Silos count rows by leaf below residuals of an agreed grid, first powers of two of a step,
then even parts of the range that has the quantile, unless that has few rows. The search is a
function of the sums: every party runs it, and none is told what to count next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import SumCorrupt

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

N_PASSES = 2
_PARTS = 32  # of a range between two powers of two
_STEPS = 1024  # in the middle 90 % of the labels
_MOST_POWERS = 40


class LeafRows:
    """A silo's residuals, by leaf of one tree or several.

    Parameters
    ----------
    trees : iterable of (node, residual, leaves)
    node : ndarray of shape (n_samples,), integers
        The leaf that each row reaches.
    residual : ndarray of shape (n_samples,), float64
        Label minus margin.
    leaves : sequence of int
        Ascending.
    """

    def __init__(
        self, trees: Iterable[tuple[NDArray[np.integer], Floats, Sequence[int] | Integers]]
    ) -> None:
        self._residuals: list[Floats] = []
        for node, residual, leaves in trees:
            order = np.lexsort((residual, node))
            bounds = np.searchsorted(node[order], np.append(leaves, np.iinfo(np.int32).max))
            self._residuals += [residual[order[start:end]] for start, end in pairwise(bounds)]

    def below(self, search: LeafQuantiles) -> Integers:
        """Return how many residuals of each leaf are below what the search asks about."""
        found = [np.empty(0, np.int64)]
        for own, asked in zip(self._residuals, search.asked, strict=True):
            found.append(np.searchsorted(own, asked).astype(np.int64))
        return np.concatenate(found)


class LeafQuantiles:
    """Searches a quantile of the residuals of each leaf by sums of counts.

    Parameters
    ----------
    labels : ndarray of shape (n,), float32
        Values that labels may have, ascending, each of about as many rows.
    alphas : sequence of float
        The quantile of each leaf.
    min_rows : int
        A range of residuals with fewer rows is not divided.

    Attributes
    ----------
    asked : list of ndarrays, float64
        Of each leaf below which residuals rows are counted next; infinite for all its rows.
    """

    def __init__(self, labels: NDArray[np.float32], alphas: Sequence[float], min_rows: int) -> None:
        self._alphas, self._min_rows = alphas, min_rows
        n_leaves = len(alphas)
        self._step, n_powers = steps_of(labels)
        powers = self._step * 2.0 ** np.arange(n_powers + 1)
        start = np.concatenate([-powers[::-1], [0.0], powers, [np.inf]])
        self.asked: list[Floats] = [start] * n_leaves
        self._edges: list[Floats] = [np.empty(0)] * n_leaves
        self._below: list[Integers] = [np.empty(0, np.int64)] * n_leaves

    @property
    def begun(self) -> bool:
        """Whether counts are known."""
        return bool(self._edges[0].shape[0])

    @property
    def n_asked(self) -> int:
        """Length of the next sum; 0 at the end."""
        return sum(asked.shape[0] for asked in self.asked)

    def take(self, below: Integers) -> None:
        """Take the summed counts, leaf by leaf, and propose the next.

        Raises
        ------
        SumCorrupt
            They are not the counts of any table.
        """
        if below.shape[0] != self.n_asked:
            raise SumCorrupt(f"counts: expected {self.n_asked}, received {below.shape[0]}")
        at, first = 0, not self.begun
        for k, asked in enumerate(self.asked):
            own, at = below[at : at + asked.shape[0]], at + asked.shape[0]
            edges = np.concatenate([self._edges[k], asked])
            order = np.argsort(edges, kind="stable")
            self._edges[k] = edges[order]
            self._below[k] = np.concatenate([self._below[k], own])[order]
            if np.any(np.diff(self._below[k], prepend=0) < 0):
                raise SumCorrupt("counts: expected numbers of rows that grow with the residual")
            self.asked[k] = self._parts(k) if first else np.empty(0)

    def _parts(self, k: int) -> Floats:
        """Return what divides the range that has a leaf's quantile."""
        i = self._range_of(k)
        edges, below = self._edges[k], self._below[k]
        if not 0 <= i < edges.shape[0] - 2 or below[i + 1] - below[i] < self._min_rows:
            return np.empty(0)
        width = edges[i + 1] - edges[i]
        n_parts = int(min(_PARTS, width / self._step))
        return np.asarray(edges[i] + width / n_parts * np.arange(1, n_parts))

    def _range_of(self, k: int) -> int:
        """Return the last edge of a leaf below which there are no more rows than the rank."""
        rank = self._alphas[k] * float(self._below[k][-1])
        return int(np.searchsorted(self._below[k], rank, side="right")) - 1

    @property
    def values(self) -> Floats:
        """The quantile of each leaf, as near as it was searched; 0 before the first counts."""
        return np.array([self._value(k) for k in range(len(self._edges))])

    def _value(self, k: int) -> float:
        edges, below = self._edges[k], self._below[k]
        if not edges.shape[0] or not below[-1]:
            return 0.0
        # Past the outer powers nothing is known but the side.
        i = min(self._range_of(k), edges.shape[0] - 2)
        if i < 0 or i == edges.shape[0] - 2:
            return float(edges[max(i, 0)])
        share = (self._alphas[k] * float(below[-1]) - below[i]) / (below[i + 1] - below[i])
        return float(edges[i] + share * (edges[i + 1] - edges[i]))


def steps_of(labels: NDArray[np.float32]) -> tuple[float, int]:
    """Return the grid of residuals: its step, and the power of two by which its reach is more.

    Parameters
    ----------
    labels : ndarray of shape (n,), float32
        As of :class:`LeafQuantiles`.
    """
    last = labels.shape[0] - 1
    low, high = (float(labels[round(share * last)]) for share in (0.05, 0.95))
    whole = float(labels[-1]) - float(labels[0])
    spread = high - low or whole or max(abs(float(labels[0])), 1.0)
    step = 2.0 ** np.floor(np.log2(spread / _STEPS))
    n_powers = int(np.ceil(np.log2(max(2 * whole, spread) / step)))
    return float(step), min(n_powers, _MOST_POWERS)


def gradient_unit(labels: NDArray[np.float32]) -> float:
    """Return the unit of leaf values that follow from gradients alone, where no quantile is known.

    Gradients are between -1 and 1: it is a quarter of the labels' spread or less.
    """
    return steps_of(labels)[0] * _STEPS / 4
