"""Growing one tree on a silo's rows, by a structure or by CART, and judging it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.trees.decision_tree import DecisionTree
from hedgerow.boosting.trees.genetics import LEAF, Genes, depth_of
from hedgerow.boosting.trees.node_cuts import Cut, best_cut
from hedgerow.boosting.trees.ranked import RankedTable
from hedgerow.boosting.trees.structures import class_score


class _GrowingTree:
    """Nodes of a tree while it grows, in pre-order."""

    def __init__(self, table: RankedTable, min_leaf: int) -> None:
        self.table = table
        self.min_leaf = min_leaf
        self.cuts: list[Cut | None] = []
        self.children: list[list[int]] = []
        self.level: list[int] = []
        self.content: list[NDArray[np.float64]] = []
        self.n_rows: list[int] = []

    def add(
        self,
        rows: NDArray[np.int64],
        level: int,
        depth: int,
        position: int,
        genes: Genes | None,
    ) -> int:
        """Grow the subtree of some rows; return its root's number."""
        node = len(self.cuts)
        self.cuts.append(None)
        self.children.append([-1, -1])
        self.level.append(level)
        self.content.append(_content(self.table, rows))
        self.n_rows.append(rows.shape[0])
        if level == depth:
            return node
        if genes is None:
            features = np.arange(self.table.codes.shape[0], dtype=np.int64)
        else:
            gene = int(genes[position])
            features = np.array([] if gene == LEAF else [gene], dtype=np.int64)
        found = best_cut(self.table, rows, features, self.min_leaf)
        if found is not None:
            cut, left_rows, right_rows = found
            if cut.left_codes is not None:
                cut = replace(cut, left_codes=_with_unseen(self.table, cut))
            self.cuts[node] = cut
            step = 1 << (depth - level - 1)
            self.children[node] = [
                self.add(left_rows, level + 1, depth, position + 1, genes),
                self.add(right_rows, level + 1, depth, position + step, genes),
            ]
        return node

    def tree(self) -> DecisionTree:
        children = np.array(self.children, dtype=np.int32).reshape(-1, 2)
        return DecisionTree(
            self.table.dataset.schema,
            tuple(self.cuts),
            np.ascontiguousarray(children[:, 0]),
            np.ascontiguousarray(children[:, 1]),
            np.array(self.level, dtype=np.int32),
            np.array(self.content),
            np.array(self.n_rows, dtype=np.int64),
        )


def _content(table: RankedTable, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    total: NDArray[np.float64] = table.sums[rows].sum(axis=0)
    if not table.is_regression:
        return total
    weight = float(table.weight[rows].sum())
    return total / weight + table.center if weight > 0.0 else total + table.center


def _with_unseen(table: RankedTable, cut: Cut) -> frozenset[int]:
    """Return the left codes, with those that this silo's rows do not have when they go left."""
    assert cut.left_codes is not None, "a numeric split has no codes"
    if not cut.unseen_left:
        return cut.left_codes
    present = table.values_of(cut.feature).astype(int).tolist()
    categories = table.dataset.schema.features[cut.feature].categories or ()
    return cut.left_codes | frozenset(range(len(categories))).difference(present)


def fit_structure(
    table: RankedTable, genes: Genes, rows: NDArray[np.int64], min_leaf: int
) -> DecisionTree:
    """Return the tree of a structure fitted to some rows.

    Parameters
    ----------
    genes : ndarray of shape (2**depth - 1,), int16
    """
    growing = _GrowingTree(table, min_leaf)
    growing.add(rows, 0, depth_of(genes.shape[0]), 0, genes)
    return growing.tree()


def grow_cart(
    table: RankedTable, rows: NDArray[np.int64], depth: int, min_leaf: int
) -> DecisionTree:
    """Return the tree that CART grows: at each node the best cut of all features.

    The top of a tree is the tree of that smaller depth.
    """
    growing = _GrowingTree(table, min_leaf)
    growing.add(rows, 0, depth, 0, None)
    return growing.tree()


def score(
    table: RankedTable,
    tree: DecisionTree,
    rows: NDArray[np.int64],
    depth: int | None = None,
    metric: str = "f1",
) -> float:
    """Return a tree's F1 or accuracy (greater is better), or mean squared error (less is)."""
    predicted = tree.predict(table.dataset.X[rows], depth)
    weight = table.weight[rows]
    labels = table.dataset.labels[rows]
    if table.is_regression:
        total = float(weight.sum())
        return float(weight @ (predicted - labels) ** 2) / total if total > 0.0 else 0.0
    n_classes = table.sums.shape[1]
    classes = np.arange(n_classes)
    voted = predicted[:, np.newaxis] == classes
    is_class = labels[:, np.newaxis] == classes
    hits = weight @ (voted & is_class)
    return float(class_score(metric, hits, weight @ voted, weight @ is_class))


def fold_numbers(rng: np.random.Generator, table: RankedTable, n_folds: int) -> NDArray[np.int64]:
    """Return each row's fold; classes are spread evenly over the folds.

    Returns
    -------
    ndarray of shape (n_samples,), int64
    """
    shuffled = rng.permutation(table.n_samples)
    if not table.is_regression:
        shuffled = shuffled[np.argsort(table.dataset.labels[shuffled], kind="stable")]
    fold = np.empty(table.n_samples, dtype=np.int64)
    fold[shuffled] = np.arange(table.n_samples) % n_folds
    return fold


def cross_validate(
    rng: np.random.Generator,
    table: RankedTable,
    depths: range,
    n_folds: int,
    min_leaf: int,
    metric: str = "f1",
) -> NDArray[np.float64]:
    """Return CART's score for each depth on each held-out fold.

    One tree for each fold serves every depth: CART's shallower trees are tops of its deeper ones.

    Returns
    -------
    ndarray of shape (len(depths), n_folds), float64
        F1 or accuracy, or mean squared error.
    """
    fold = fold_numbers(rng, table, n_folds)
    scores = np.empty((len(depths), n_folds))
    for k in range(n_folds):
        tree = grow_cart(table, np.flatnonzero(fold != k), depths[-1], min_leaf)
        held_out = np.flatnonzero(fold == k)
        scores[:, k] = [score(table, tree, held_out, depth, metric) for depth in depths]
    return scores


def best_depth(scores: NDArray[np.float64], depths: range, *, higher_is_better: bool) -> int:
    """Return the depth with the best mean score, the smallest of equal ones."""
    mean = scores.mean(axis=1)
    return depths[int(np.argmax(mean) if higher_is_better else np.argmin(mean))]
