"""One party's rows during training: bins, labels and margins, and as a round's trees divide them.

A strategy asks :class:`Rows` and :class:`Division`, for bins need not be in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Labels
from hedgerow.boosting.engine.binning import BinnedFeatures, bin_features
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.engine.histogram import (
    Gradients,
    Layout,
    Units,
    build_histograms,
    node_sums,
)
from hedgerow.boosting.engine.partition import RowPartition, Splits
from hedgerow.boosting.storage import IN_MEMORY, Storage
from hedgerow.crypto.native.kernels import kernel

Integers = NDArray[np.int64]
Margins = float | NDArray[np.float64]
"""A margin of all outputs, or one of each."""
TreeValues = tuple[GrownTree, Sequence[int]]
"""A tree, and the outputs to which its leaf values are added."""


class TreeIntegers(NamedTuple):
    """What the histograms of a tree sum, and where its bins are in them."""

    layout: Layout
    searched: Gradients
    """Of shape (n_samples, 2 * n_outputs), int64 or float32. Undefined for rows that are not in the
    sample."""
    exact: Gradients | None
    """Ndarray of the same shape, or None. Lossless ones for leaf values, where the search is
    coarse."""
    units: Units = (1.0, 1.0)
    """Of which float32 are rounded to integers."""


class GrowingRows(Protocol):
    """A table's sampled rows in the trees of a round: sums go out, splits come in."""

    def sums(self, requests: Sequence[Sequence[int]], *, totals: bool) -> Integers:
        """Return the histograms of the nodes that each tree requests, one after another.

        With ``totals`` each tree's begin with the sums of all its rows.
        """
        ...

    def node_sums(self, nodes: Sequence[Sequence[int]], *, exact: bool) -> Integers:
        """Return the sums of some nodes of each tree: ``exact`` ones, or those of the search."""
        ...

    def split(self, splits: Sequence[Splits]) -> None:
        """Move each tree's rows by its splits."""
        ...

    def add(self, trees: Sequence[TreeValues]) -> None:
        """Add the leaf values of the grown trees to the margins of all rows of the table."""
        ...


class PartyRows(Protocol):
    """A party's rows during training, wherever their bins are; see :class:`Table`."""

    y: Labels
    weight: NDArray[np.float64] | None
    margins: NDArray[np.float32]

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which features have missing values, shape (n_features,)."""
        ...

    def values(self, cuts: Cuts, rows: slice) -> NDArray[np.float32]:
        """Return a number in the bin of each value; see :meth:`BinnedFeatures.values`."""
        ...

    def nodes_reached(self, tree: GrownTree) -> NDArray[Any]:
        """Return the leaf that each row reaches, in as few bytes as hold it."""
        ...

    def divide(self, sample: NDArray[np.int32], trees: Sequence[TreeIntegers]) -> GrowingRows:
        """Return the ascending rows ``sample`` in the roots of a round's trees."""
        ...

    def add(self, trees: Sequence[TreeValues]) -> None:
        """Add leaf values of trees that were grown on other rows."""
        ...


def placed(
    dataset: Dataset, cuts: Cuts, base_margin: Margins, n_threads: int, storage: Storage
) -> PartyRows:
    """Return a table binned where the storage says, its margins all at ``base_margin``."""
    if storage.elsewhere is not None and dataset.n_samples:
        rows: PartyRows = storage.elsewhere(dataset, cuts, base_margin)
        return rows
    return Table.of(dataset, cuts, base_margin, n_threads, storage)


@dataclass(slots=True)
class Table:
    """Binned rows with labels and margins.

    A silo half updates it with trees that it receives, the pooled trainer with its own.
    """

    binned: BinnedFeatures
    y: Labels
    weight: NDArray[np.float64] | None
    margins: NDArray[np.float32]
    """Of shape (n_samples, n_outputs), float32. Leaf values are added in float32, tree by tree, as
    XGBoost does."""
    n_threads: int = 1

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        cuts: Cuts,
        base_margin: Margins,
        n_threads: int,
        storage: Storage = IN_MEMORY,
    ) -> Table:
        """Bin a table and start all its margins at ``base_margin``, or each output's at its own."""
        n_outputs = max(dataset.schema.n_outputs, np.size(base_margin))
        return cls(
            bin_features(dataset.features, cuts, n_threads, storage),
            dataset.held_labels,
            dataset.weight,
            np.full((dataset.n_samples, n_outputs), base_margin, dtype=np.float32),
            n_threads,
        )

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which features have missing values."""
        return self.binned.missing

    def values(self, cuts: Cuts, rows: slice) -> NDArray[np.float32]:
        """Return a number in the bin of each value."""
        return self.binned.values(cuts, rows)

    def divide(self, sample: NDArray[np.int32], trees: Sequence[TreeIntegers]) -> DividedTable:
        """Return the sampled rows in the roots of a round's trees."""
        return DividedTable(self, sample, trees)

    def add(self, trees: Sequence[TreeValues]) -> None:
        """Add leaf values of trees that were grown on other rows."""
        for tree, groups in trees:
            self.add_tree(tree, None, groups)

    def nodes_reached(self, tree: GrownTree) -> NDArray[Any]:
        """Return the leaf that each row reaches, in as few bytes as hold it."""
        reached = np.zeros((self.binned.n_samples, 1), np.float32)
        numbers = np.arange(tree.n_nodes, dtype=np.float32)[:, None]
        table = _routing_table(tree, self.binned.n_bins)
        _add_by_route(self.binned.by_row, *table, numbers, np.zeros(1, np.int64), reached)
        return reached[:, 0].astype(np.min_scalar_type(tree.n_nodes))

    def add_tree(
        self, tree: GrownTree, partition: RowPartition | None, groups: Sequence[int]
    ) -> None:
        """Add a tree's leaf values to the margins of all rows, sampled or not, in float32.

        Parameters
        ----------
        partition : RowPartition or None
            Of the rows that the tree was grown on; where it has all rows, none has to be routed.
        """
        leaves = tree.leaves
        columns = np.array(groups, dtype=np.int64)
        if partition is not None and partition.order.shape[0] == self.margins.shape[0]:
            starts, stops = partition.spans([int(node) for node in leaves])
            _add_by_span(partition.order, starts, stops, tree.value[leaves], columns, self.margins)
            return
        _add_by_route(
            self.binned.by_row,
            *_routing_table(tree, self.binned.n_bins),
            tree.value,
            columns,
            self.margins,
        )


class DividedTable:
    """A :class:`Division` of a table in this process."""

    def __init__(
        self, table: Table, sample: NDArray[np.int32], trees: Sequence[TreeIntegers]
    ) -> None:
        self._table = table
        self._trees = [(RowPartition(sample), tree) for tree in trees]

    def sums(self, requests: Sequence[Sequence[int]], *, totals: bool) -> Integers:
        """Return the histograms of the requested nodes."""
        parts, binned = [], self._table.binned
        for (rows, tree), nodes in zip(self._trees, requests, strict=True):
            if totals:
                parts.append(node_sums(rows, [0], tree.searched, tree.units).reshape(-1))
            own = build_histograms(
                binned, rows, nodes, tree.searched, tree.layout, self._table.n_threads, tree.units
            )
            parts.append(own.reshape(-1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def node_sums(self, nodes: Sequence[Sequence[int]], *, exact: bool) -> Integers:
        """Return the sums of some nodes of each tree."""
        parts = []
        for (rows, tree), own in zip(self._trees, nodes, strict=True):
            summed = tree.exact if exact and tree.exact is not None else tree.searched
            parts.append(node_sums(rows, own, summed, tree.units).reshape(-1))
        return np.concatenate(parts)

    def split(self, splits: Sequence[Splits]) -> None:
        """Move each tree's rows by its splits."""
        for (rows, _), own in zip(self._trees, splits, strict=True):
            rows.split_by_bins(self._table.binned, own)

    def add(self, trees: Sequence[TreeValues]) -> None:
        """Add the leaf values of the grown trees to all rows."""
        for (rows, _), (tree, groups) in zip(self._trees, trees, strict=True):
            self._table.add_tree(tree, rows, groups)


def _routing_table(
    tree: GrownTree, n_bins: NDArray[np.int64]
) -> tuple[int, NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return depth, node table (left, feature, limit, exempt) and categorical tests of a tree.

    A row goes right where its bin exceeds ``limit`` and is not ``exempt`` (a missing value that
    defaults left); a leaf is its own child, so that all rows take equally many steps.
    """
    table = np.zeros((tree.n_nodes, 4), dtype=np.int32)
    is_leaf = tree.left < 0
    table[:, 0] = np.where(is_leaf, np.arange(tree.n_nodes), tree.left)
    table[:, 1] = tree.feature
    table[:, 2] = np.where(is_leaf, 1 << 30, tree.bin)
    table[:, 3] = np.where(tree.default_left & ~is_leaf, n_bins[tree.feature], -1)
    depth = np.zeros(tree.n_nodes, dtype=np.int64)
    for node in np.flatnonzero(~is_leaf).tolist():
        depth[tree.left[node] : tree.left[node] + 2] = depth[node] + 1
    is_categorical = np.zeros(tree.n_nodes, dtype=np.bool_)
    goes_right = np.zeros((1, 1), dtype=np.bool_)
    if tree.categories:
        goes_right = np.zeros((tree.n_nodes, int(n_bins.max()) + 1), dtype=np.bool_)
        for node, codes in tree.categories:
            is_categorical[node] = True
            goes_right[node, codes] = True
            goes_right[node, n_bins[tree.feature[node]]] = not tree.default_left[node]
    return int(depth.max()), table, is_categorical, goes_right


@kernel("boosting/tables", "add_by_span")
def _add_by_span(order, starts, stops, values, columns, margins):
    for s in range(starts.shape[0]):
        for value, column in zip(values[s], columns, strict=True):
            margins[order[starts[s] : stops[s]], column] += value


@kernel("boosting/tables", "add_by_route")
def _add_by_route(by_row, depth, table, is_categorical, goes_right, values, columns, margins):
    row, at = np.arange(by_row.shape[0]), np.zeros(by_row.shape[0], np.int32)
    for _ in range(depth):
        bins = by_row[row, table[at, 1]].astype(np.int32)
        right = (bins > table[at, 2]) & (bins != table[at, 3])
        if goes_right.shape[0] > 1:
            right = np.where(is_categorical[at], goes_right[at, bins], right)
        at = table[at, 0] + right
    for c, column in enumerate(columns):
        margins[:, column] += values[at, c]
