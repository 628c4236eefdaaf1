"""A silo's rows on its Dask cluster: workers bin, divide and sum them, the agent adds integers.

A worker has the bins of some rows; labels, margins and all that is drawn stay with the agent. Each
request carries all splits of the round so far, and a worker applies those that it has not applied
yet. So nothing follows from what a worker remembers: rows whose worker has died are sent to another
one, which divides them again, and integers have the same sum in any parts they are added.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Columns, Dataset
from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.engine.histogram import Gradients
from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.table import (
    DividedTable,
    Integers,
    Margins,
    Table,
    TreeIntegers,
    TreeValues,
)
from hedgerow.client_agent.dask_cluster import DaskCluster
from hedgerow.client_agent.dask_parts import RowParts, scatter, submit

if TYPE_CHECKING:
    import distributed

_BLOCK_BYTES = 1 << 26
"""Values that are read and sent at a time; one column where that is larger."""


class DaskTable(RowParts):
    """The :class:`~hedgerow.boosting.engine.table.PartyRows` of a table on a cluster.

    Parameters
    ----------
    dataset : Dataset
        Its columns are read again where a worker dies.

    Raises
    ------
    FederationError
        The cluster has no workers, or loses them again and again.
    """

    def __init__(
        self,
        cluster: DaskCluster,
        dataset: Dataset,
        cuts: Cuts,
        base_margin: Margins,
        n_parts: int | None = None,
    ) -> None:
        self.y, self.weight = dataset.held_labels, dataset.weight
        shape = dataset.n_samples, max(dataset.schema.n_outputs, np.size(base_margin))
        self.margins = np.full(shape, base_margin, np.float32)
        super().__init__(cluster, dataset.n_samples, n_parts)
        self._columns = dataset.columns
        self._cuts = cuts
        self.missing = np.any([own for _, own in self.each(_missing)], axis=0)

    def values(self, cuts: Cuts, rows: slice) -> NDArray[np.float32]:
        """Return a number in the bin of each value."""
        out = np.empty((len(range(*rows.indices(self.margins.shape[0]))), cuts.n_features), "f4")
        first, stop = rows.start, rows.start + out.shape[0]
        inside = {
            p: slice(max(first, span.start), min(stop, span.stop))
            for p, span in enumerate(self.spans)
            if span.start < stop and first < span.stop
        }

        def given(p: int) -> tuple[object, ...]:
            at = self.spans[p].start
            return cuts, slice(inside[p].start - at, inside[p].stop - at)

        for p, own in self.each(_values, given, inside):
            out[inside[p].start - first : inside[p].stop - first] = own
        return out

    def divide(self, sample: NDArray[np.int32], trees: Sequence[TreeIntegers]) -> DaskDivision:
        """Return the sampled rows in the roots of a round's trees."""
        return DaskDivision(self, sample, trees)

    def nodes_reached(self, tree: GrownTree) -> NDArray[Any]:
        """Return the leaf that each row reaches, in as few bytes as hold it."""
        out = np.empty(self.margins.shape[0], np.min_scalar_type(tree.n_nodes))
        for p, nodes in self.each(_nodes_reached, lambda _: ([tree],)):
            out[self.spans[p]] = nodes[0]
        return out

    def add(self, trees: Sequence[TreeValues]) -> None:
        """Add leaf values of grown trees to the margins of all rows."""
        for p, nodes in self.each(_nodes_reached, lambda _: ([tree for tree, _ in trees],)):
            margins = self.margins[self.spans[p]]
            for own, (tree, groups) in zip(nodes, trees, strict=True):
                for c, group in enumerate(groups):
                    margins[:, group] += tree.value[own, c]

    def bound(
        self, client: distributed.Client, workers: Mapping[str, int], chosen: Mapping[int, str]
    ) -> dict[int, distributed.Future]:
        """Send columns, a few at a time, and have them binned."""
        blocks: dict[int, list[distributed.Future]] = {p: [] for p in chosen}
        for block in _blocks(self._columns):
            for p in chosen:
                own = np.ascontiguousarray(block[:, self.spans[p]])
                blocks[p].append(scatter(client, own, chosen[p]))
        return {
            p: submit(client, worker, _bin, self._cuts, workers[worker], blocks[p])
            for p, worker in chosen.items()
        }


class DaskDivision:
    """A :class:`~hedgerow.boosting.engine.table.GrowingRows` of the rows on a cluster."""

    def __init__(
        self, table: DaskTable, sample: NDArray[np.int32], trees: Sequence[TreeIntegers]
    ) -> None:
        self._table = table
        self._sample = sample
        self._trees = trees
        self._splits: list[Sequence[Splits]] = []
        self._sent: dict[int, tuple[object, distributed.Future]] = {}

    def sums(self, requests: Sequence[Sequence[int]], *, totals: bool) -> Integers:
        """Return the histograms of the requested nodes."""
        return self._added(_sums, requests, totals)

    def node_sums(self, nodes: Sequence[Sequence[int]], *, exact: bool) -> Integers:
        """Return the sums of some nodes of each tree."""
        return self._added(_node_sums, nodes, exact)

    def split(self, splits: Sequence[Splits]) -> None:
        """Have workers move each tree's rows when they are next asked."""
        self._splits.append(splits)

    def add(self, trees: Sequence[TreeValues]) -> None:
        """Add the leaf values of the grown trees to all rows."""
        self._table.add(trees)

    def _added(self, operation: Callable[..., Integers], *given: object) -> Integers:
        total: Integers | None = None
        for _, own in self._table.each(operation, lambda p: (self._share(p), self._splits, *given)):
            total = own.copy() if total is None else np.add(total, own, out=total)
        assert total is not None
        return total

    def _share(self, p: int) -> distributed.Future:
        """Return a part's rows of the sample and their integers, where the part itself is."""
        home = self._table.home(p)
        if p not in self._sent or self._sent[p][0] is not home:
            span = self._table.spans[p]
            at = slice(*np.searchsorted(self._sample, [span.start, span.stop]).tolist())
            rows = self._sample[at]
            share = _Share(
                rows - np.int32(span.start),
                [
                    TreeIntegers(
                        tree.layout,
                        _narrow(tree.searched, rows),
                        None if tree.exact is None else _narrow(tree.exact, rows),
                        tree.units,
                    )
                    for tree in self._trees
                ],
            )
            self._sent[p] = home, self._table.send(p, share)
        return self._sent[p][1]


@dataclass(frozen=True, eq=False)
class _Share:
    """A part's sampled rows and, by tree, what is summed of these rows alone."""

    rows: NDArray[np.int32]
    trees: Sequence[TreeIntegers]


def _narrow(gradients: Gradients, rows: NDArray[np.int32]) -> NDArray[Any]:
    """Return the gradients of some rows, in four bytes each where they fit."""
    own = gradients[rows]
    if own.dtype == np.float32:
        return own
    small = np.iinfo(np.int32)
    fits = own.min(initial=0) >= small.min and own.max(initial=0) <= small.max
    return own.astype(np.int32) if fits else own


def _blocks(columns: Columns) -> Iterator[NDArray[np.float32]]:
    """Yield some columns at a time, shape (n_columns, n_samples)."""
    width = max(1, _BLOCK_BYTES // max(4 * columns.n_samples, 1))
    for first in range(0, len(columns.readers), width):
        yield np.stack([read() for read in columns.readers[first : first + width]])


# --- on a worker ---


class _Part:
    """A worker's part of the rows: their bins, and how the trees of a round divide them."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._share: _Share | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Part, (self.table,)

    def divided(self, share: _Share, splits: Sequence[Sequence[Splits]]) -> DividedTable:
        """Return the rows as the splits divide them."""
        if self._share is not share:
            self._share, self._n_splits = share, 0
            n = self.table.binned.n_samples
            trees = [
                tree._replace(
                    searched=_widened(tree.searched, share.rows, n),
                    exact=None if tree.exact is None else _widened(tree.exact, share.rows, n),
                )
                for tree in share.trees
            ]
            self._division = self.table.divide(share.rows, trees)
        for own in splits[self._n_splits :]:
            self._division.split(own)
            self._n_splits += 1
        return self._division


def _widened(own: NDArray[Any], rows: NDArray[np.int32], n: int) -> Gradients:
    kind = np.float32 if own.dtype == np.float32 else np.int64
    out: NDArray[Any] = np.empty((n, own.shape[1]), kind)
    out[rows] = own
    return out


def _bin(cuts: Cuts, n_threads: int, blocks: Sequence[NDArray[np.float32]]) -> _Part:
    # Copies, since a received array is read-only, which would compile the kernels once more.
    readers = [partial(np.copy, column) for block in blocks for column in block]
    n = blocks[0].shape[1]
    binned = bin_features(Columns(n, tuple(readers)), copy.deepcopy(cuts), n_threads)
    return _Part(Table(binned, np.empty(0), None, np.empty((n, 0), np.float32), n_threads))


def _missing(part: _Part) -> NDArray[np.bool_]:
    return part.table.missing


def _values(part: _Part, cuts: Cuts, rows: slice) -> NDArray[np.float32]:
    return part.table.values(cuts, rows)


def _nodes_reached(part: _Part, trees: Sequence[Any]) -> list[NDArray[Any]]:
    return [part.table.nodes_reached(tree) for tree in trees]


def _sums(
    part: _Part,
    share: _Share,
    splits: Sequence[Sequence[Splits]],
    requests: Sequence[Sequence[int]],
    totals: bool,
) -> Integers:
    return part.divided(share, splits).sums(requests, totals=totals)


def _node_sums(
    part: _Part,
    share: _Share,
    splits: Sequence[Sequence[Splits]],
    nodes: Sequence[Sequence[int]],
    exact: bool,
) -> Integers:
    return part.divided(share, splits).node_sums(nodes, exact=exact)
