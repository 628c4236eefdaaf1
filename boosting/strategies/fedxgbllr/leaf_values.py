"""The leaf that every row reaches in every tree of an ensemble, one byte a row and tree.

A tree's output for a row is one of its leaf values. The ordinals of leaves (a byte where no tree
has more than 256 leaves) take 375 MB for 750,000 rows and 500 trees, float32 outputs 1.5 GB. The
values are looked up in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.crypto.native.kernels import kernel


@dataclass(frozen=True, slots=True)
class LeafTable:
    """The leaves of an ordered list of trees: their values, and the first one of each tree."""

    values: NDArray[np.float32]
    """Of shape (n_leaves,), float32. Leaf values (shrinkage included) tree by tree, in node order
    within a tree."""
    offsets: NDArray[np.int64]
    """Of shape (n_trees + 1,), int64. Tree ``t`` owns ``values[offsets[t]:offsets[t + 1]]``."""
    groups: NDArray[np.int64]
    """Of shape (n_trees,), int64. Output that each tree adds to; all zero unless the task is
    multiclass."""

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> LeafTable:
        """Return the table of ``trees``, in their order."""
        leaves = [tree.threshold[tree.left < 0] for tree in trees]
        return cls(
            np.concatenate([np.empty(0, np.float32), *leaves]).astype(np.float32),
            np.cumsum([0, *(len(values) for values in leaves)], dtype=np.int64),
            np.array([tree.group for tree in trees], np.int64),
        )

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.offsets) - 1

    @property
    def n_leaves(self) -> int:
        """Number of leaves of all trees."""
        return len(self.values)

    @property
    def trees(self) -> NDArray[np.int64]:
        """Tree that each leaf belongs to, shape (n_leaves,)."""
        return np.repeat(np.arange(self.n_trees), np.diff(self.offsets))


@dataclass(frozen=True, slots=True)
class LeafOrdinals:
    """The leaf that each row reaches in each tree."""

    table: LeafTable
    ordinals: NDArray[np.uint8] | NDArray[np.uint16]
    """Of shape (n_samples, n_trees), uint8 or uint16. Position of the leaf among its tree's leaves,
    in node order."""

    @classmethod
    def of(cls, trees: Sequence[Tree], X: NDArray[np.float32]) -> LeafOrdinals:
        """Walk every row of ``X`` (n_samples, n_features) down every tree."""
        table = LeafTable.of(trees)
        largest = int(np.diff(table.offsets).max(initial=1))
        if largest > 65536:
            raise ValueError(f"a tree has {largest} leaves; expected at most 65536")
        dtype: Any = np.uint8 if largest <= 256 else np.uint16
        ordinals = np.empty((len(X), table.n_trees), dtype)
        if ordinals.size:
            _walk(np.ascontiguousarray(X, np.float32), _forest(trees), ordinals)
        return cls(table, ordinals)

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return len(self.ordinals)

    def outputs(
        self, rows: NDArray[np.int64], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return each tree's output for the rows at ``rows``.

        Returns
        -------
        ndarray of shape (len(rows), n_trees), float32
            The first ``len(rows)`` rows of ``out`` where that is given.
        """
        if out is None:
            out = np.empty((len(rows), self.table.n_trees), np.float32)
        view = out[: len(rows)]
        _gather(self.ordinals, rows, self.table.values, self.table.offsets, view)
        return view

    def margins(self, values: NDArray[np.float64], n_outputs: int) -> NDArray[np.float64]:
        """Return the sum over trees of the leaf values given, by output.

        Parameters
        ----------
        values : ndarray of shape (n_leaves,), float64
            A value for each leaf of the table.

        Returns
        -------
        ndarray of shape (n_samples, n_outputs), float64
        """
        out = np.zeros((self.n_samples, n_outputs))
        _sum_leaves(self.ordinals, values, self.table.offsets, self.table.groups, out)
        return out

    def leaf_sums(self, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each leaf, the sum of ``errors`` over the rows that reach it.

        Parameters
        ----------
        errors : ndarray of shape (n_samples, n_outputs), float64
            A tree adds up the column of its group.

        Returns
        -------
        ndarray of shape (n_leaves,), float64
        """
        out = np.zeros(self.table.n_leaves)
        _sum_rows(
            self.ordinals,
            np.ascontiguousarray(errors),
            self.table.offsets,
            self.table.groups,
            out,
        )
        return out


def with_leaf_values(trees: Sequence[Tree], values: NDArray[np.float64]) -> tuple[Tree, ...]:
    """Return the trees with other leaf values, in the order of :class:`LeafTable`."""
    found, start = [], 0
    for tree in trees:
        leaves = np.flatnonzero(tree.is_leaf)
        threshold = tree.threshold.copy()
        threshold[leaves] = values[start : start + len(leaves)]
        start += len(leaves)
        found.append(replace(tree, threshold=threshold))
    return tuple(found)


class _StackedTrees(NamedTuple):
    """Nodes of all trees in one array each; children are positions in it, -1 for a leaf's.

    ``codes[begin[node]:end[node]]`` are a categorical split's categories that go right.
    """

    roots: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    ordinal: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    codes: NDArray[np.int32]


def _forest(trees: Sequence[Tree]) -> _StackedTrees:
    roots = np.cumsum([0, *(tree.n_nodes for tree in trees)], dtype=np.int64)
    left = np.concatenate(
        [np.where(t.left < 0, -1, t.left + root) for t, root in zip(trees, roots, strict=False)]
    ).astype(np.int64)
    right = np.concatenate(
        [np.where(t.left < 0, -1, t.right + root) for t, root in zip(trees, roots, strict=False)]
    ).astype(np.int64)
    ordinal = np.concatenate([np.cumsum(t.left < 0) - 1 for t in trees]).astype(np.int64)
    begin = np.full(roots[-1], -1, np.int64)
    end = np.full(roots[-1], -1, np.int64)
    codes: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    total = 0
    for tree, root in zip(trees, roots, strict=False):
        for node, right_codes in tree.categories:
            begin[root + node], end[root + node] = total, total + len(right_codes)
            codes.append(np.asarray(right_codes, np.int32))
            total += len(right_codes)
    return _StackedTrees(
        roots[:-1],
        left,
        right,
        np.concatenate([t.feature for t in trees]).astype(np.int64),
        np.concatenate([t.threshold for t in trees]).astype(np.float32),
        np.concatenate([t.default_left for t in trees]).astype(np.bool_),
        ordinal,
        begin,
        end,
        np.concatenate(codes),
    )


@kernel("boosting/trees", "walk_forest")
def _walk(X, forest, out):
    left, right, feature, begin = forest.left, forest.right, forest.feature, forest.begin
    for tree, root in enumerate(forest.roots):
        node = np.full(X.shape[0], root)
        while (inner := np.flatnonzero(left[node] >= 0)).shape[0]:
            own = node[inner]
            value = X[inner, feature[own]]
            goes_left = value < forest.threshold[own]
            for k in np.flatnonzero(begin[own] >= 0):
                codes = forest.codes[begin[own[k]] : forest.end[own[k]]]
                goes_left[k] = not (codes == value[k]).any()
            goes_left = np.where(np.isnan(value), forest.default_left[own], goes_left)
            node[inner] = np.where(goes_left, left[own], right[own])
        out[:, tree] = forest.ordinal[node]


@kernel("boosting/trees", "gather_leaves")
def _gather(ordinals, rows, values, offsets, out):
    out[:] = values[offsets[: ordinals.shape[1]] + ordinals[rows]]


@kernel("boosting/trees", "sum_leaves")
def _sum_leaves(ordinals, values, offsets, groups, out):
    for tree in range(ordinals.shape[1]):
        out[:, groups[tree]] += values[offsets[tree] + ordinals[:, tree]]


@kernel("boosting/trees", "sum_errors")
def _sum_rows(ordinals, errors, offsets, groups, out):
    for tree in range(ordinals.shape[1]):
        np.add.at(out, offsets[tree] + ordinals[:, tree], errors[:, groups[tree]])
