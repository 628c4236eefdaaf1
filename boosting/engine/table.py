"""One party's rows during training: bins, labels and margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.engine.binning import BinnedFeatures, bin_features
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.storage import IN_MEMORY, Storage


@dataclass(slots=True)
class Table:
    """Binned rows with labels and margins.

    A silo half updates it with trees that it receives, the pooled trainer with its own.

    Parameters
    ----------
    margins : ndarray of shape (n_samples, n_outputs), float32
        Leaf values are added in float32, tree by tree, as XGBoost does.
    """

    binned: BinnedFeatures
    y: NDArray[np.float64]
    weight: NDArray[np.float64] | None
    margins: NDArray[np.float32]
    n_threads: int = 1

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        cuts: Cuts,
        base_margin: float,
        n_threads: int,
        storage: Storage = IN_MEMORY,
    ) -> Table:
        """Bin a table and start all its margins at ``base_margin``."""
        n_outputs = dataset.schema.n_outputs
        return cls(
            bin_features(dataset.features, cuts, n_threads, storage),
            dataset.labels,
            dataset.weight,
            np.full((dataset.n_samples, n_outputs), base_margin, dtype=np.float32),
            n_threads,
        )

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


@njit(cache=True, nogil=True)
def _add_by_span(order, starts, stops, values, columns, margins):  # type: ignore[no-untyped-def]
    for s in range(starts.shape[0]):
        for c in range(columns.shape[0]):
            value, column = values[s, c], columns[c]
            for i in range(starts[s], stops[s]):
                margins[np.uint32(order[i]), column] += value


@njit(cache=True, nogil=True)
def _add_by_route(  # type: ignore[no-untyped-def]
    by_row, depth, table, is_categorical, goes_right, values, columns, margins
):
    block = 16
    at = np.zeros(block, dtype=np.int32)
    categorical = goes_right.shape[0] > 1
    for first in range(0, by_row.shape[0], block):
        size = min(block, by_row.shape[0] - first)
        at[:] = 0
        for _ in range(depth):
            for i in range(size):
                node = np.uint32(at[i])
                b = np.int32(by_row[first + i, np.uint32(table[node, 1])])
                right = np.int32(b > table[node, 2]) & np.int32(b != table[node, 3])
                if categorical and is_categorical[node]:
                    right = np.int32(goes_right[node, b])
                at[i] = table[node, 0] + right
        for i in range(size):
            for c in range(columns.shape[0]):
                margins[first + i, columns[c]] += values[at[i], c]
