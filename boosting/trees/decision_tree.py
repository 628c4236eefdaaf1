"""One readable tree: fitted to a structure or grown by CART, drawn as text or graph, exported.

The leaf of a classification tree votes for its heaviest class, the lowest of equal ones. Its
export is a stock XGBoost model whose margins are logarithms of smoothed class shares, so that the
model votes for the same class on every row; a regression leaf is the mean of its labels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.trees.cuts import Cut, best_cut
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.genetics import LEAF, Genes, depth_of, gene_count
from hedgerow.boosting.trees.ranked import RankedTable
from hedgerow.boosting.trees.structures import f1_of

SMOOTHING = 0.5
"""Weight added to each class of a leaf before its margin is computed."""

_TIE_MARGIN = -1e-6


@dataclass(frozen=True, slots=True, eq=False)
class DecisionTree:
    """A fitted tree; nodes in pre-order, the root first.

    Parameters
    ----------
    schema : Schema
    cuts : tuple of Cut or None
        One a node; None at a leaf.
    left, right : ndarray of shape (n_nodes,), int32
        Child positions, -1 at leaves.
    level : ndarray of shape (n_nodes,), int32
        0 at the root.
    content : ndarray of shape (n_nodes, n_classes) or (n_nodes, 1), float64
        Class weights of the node's rows, or the mean of their labels.
    n_rows : ndarray of shape (n_nodes,), int64
    """

    schema: Schema
    cuts: tuple[Cut | None, ...]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    level: NDArray[np.int32]
    content: NDArray[np.float64]
    n_rows: NDArray[np.int64]

    @property
    def n_nodes(self) -> int:
        """Number of nodes, leaves included."""
        return int(self.left.shape[0])

    @property
    def n_decisions(self) -> int:
        """Number of decision nodes."""
        return int((self.left >= 0).sum())

    @property
    def values(self) -> NDArray[np.float64]:
        """Prediction of each node, a class index or a mean; shape (n_nodes,)."""
        if self.schema.task is Task.REGRESSION:
            mean: NDArray[np.float64] = self.content[:, 0]
            return mean
        return np.asarray(np.argmax(self.content, axis=1), dtype=np.float64)

    def structure(self, depth: int) -> Genes:
        """Return the features of the first ``depth`` levels, thresholds and leaves removed.

        Returns
        -------
        ndarray of shape (2**depth - 1,), int16
        """
        genes = np.full(gene_count(depth), LEAF, dtype=np.int16)
        open_nodes = [(0, 0, depth)]
        while open_nodes:
            node, position, levels = open_nodes.pop()
            cut = self.cuts[node]
            if cut is None or levels == 0:
                continue
            genes[position] = cut.feature
            open_nodes.append((int(self.left[node]), position + 1, levels - 1))
            open_nodes.append((int(self.right[node]), position + (1 << (levels - 1)), levels - 1))
        return genes

    def apply(self, X: NDArray[np.float32], depth: int | None = None) -> NDArray[np.int64]:
        """Return the node that each row ends in, at most ``depth`` levels down.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_features), float32
            NaN is missing; a categorical value is its code.

        Returns
        -------
        ndarray of shape (n_samples,), int64
        """
        node = np.zeros(X.shape[0], dtype=np.int64)
        for current, cut in enumerate(self.cuts):
            if cut is None or (depth is not None and self.level[current] >= depth):
                continue
            rows = np.flatnonzero(node == current)
            if rows.size:
                turn = _goes_left(cut, X[rows, cut.feature])
                node[rows] = np.where(turn, self.left[current], self.right[current])
        return node

    def predict(self, X: NDArray[np.float32], depth: int | None = None) -> NDArray[np.float64]:
        """Return class indices or means, shape (n_samples,), float64; see :meth:`apply`."""
        return self.values[self.apply(X, depth)]

    def margins(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what the stock XGBoost model returns as margins.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes), float32
        """
        leaves = np.stack([tree.threshold for tree in self.trees()], axis=1)
        picked = leaves[self.apply(X)]
        return picked[:, 0] if self.schema.n_outputs == 1 else picked

    def trees(self) -> tuple[Tree, ...]:
        """Return the tree in XGBoost's form: one, or one a class with the same splits."""
        if self.schema.task is Task.REGRESSION:
            outputs = self.content.astype(np.float32)
        else:
            smoothed = self.content + SMOOTHING
            outputs = np.log(smoothed / smoothed.sum(axis=1, keepdims=True)).astype(np.float32)
            if self.schema.task is Task.BINARY:
                margin = np.log(smoothed[:, 1:] / smoothed[:, :1]).astype(np.float32)
                # XGBoost assigns a margin of 0 to class 1; this tree assigns a tie to class 0.
                tied = self.content[:, 1] <= self.content[:, 0]
                margin[tied] = np.minimum(margin[tied], np.float32(_TIE_MARGIN))
                outputs = margin
        splits = np.array([cut is not None for cut in self.cuts], dtype=np.bool_)
        codes = tuple(
            (node, _codes_right(cut, self.schema))
            for node, cut in enumerate(self.cuts)
            if cut is not None and cut.left_codes is not None
        )
        feature = np.array([0 if cut is None else cut.feature for cut in self.cuts], dtype=np.int32)
        threshold = np.array([0.0 if cut is None else cut.threshold for cut in self.cuts])
        default = np.array([cut is not None and cut.missing_left for cut in self.cuts])
        nothing = np.zeros(self.n_nodes, dtype=np.float32)
        return tuple(
            Tree(
                left=self.left,
                right=self.right,
                feature=feature,
                threshold=np.where(splits, threshold, outputs[:, group]).astype(np.float32),
                default_left=default.astype(np.bool_),
                gain=nothing,
                cover=self.n_rows.astype(np.float32),
                weight=nothing,
                categories=codes,
                group=group,
            )
            for group in range(outputs.shape[1])
        )

    def draw(self, counts: bool = True) -> str:
        """Return the tree as indented text, one line a node."""
        lines: list[str] = []
        open_nodes = [(0, "", "")]
        while open_nodes:
            node, indent, mark = open_nodes.pop()
            cut = self.cuts[node]
            size = f"  ({self.n_rows[node]} rows)" if counts else ""
            if cut is None:
                lines.append(f"{indent}{mark}{self._leaf_text(node)}{size}")
                continue
            lines.append(f"{indent}{mark}{_question(cut, self.schema)}?{size}")
            below = indent + "    " if mark else indent
            open_nodes.append((int(self.right[node]), below, "no:  "))
            open_nodes.append((int(self.left[node]), below, "yes: "))
        return "\n".join(lines) + "\n"

    def graph(self) -> str:
        """Return the tree in Graphviz's dot language."""
        lines = ["digraph tree {", '  node [shape=box, fontname="Helvetica"];']
        for node, cut in enumerate(self.cuts):
            text = self._leaf_text(node) if cut is None else _question(cut, self.schema) + "?"
            style = ', style="rounded"' if cut is None else ""
            label = json.dumps(f"{text}\n{self.n_rows[node]} rows", ensure_ascii=False)
            lines.append(f"  n{node} [label={label}{style}];")
            if cut is not None:
                lines.append(f'  n{node} -> n{self.left[node]} [label="yes"];')
                lines.append(f'  n{node} -> n{self.right[node]} [label="no"];')
        return "\n".join([*lines, "}", ""])

    def document(self) -> dict[str, object]:
        """Return the tree as plain values for JSON."""
        return {
            "format": 1,
            "task": self.schema.task.value,
            "label": self.schema.label,
            "features": list(self.schema.names),
            "nodes": [
                {"rows": int(self.n_rows[node]), "content": self.content[node].tolist()}
                | ({} if cut is None else self._split_document(node, cut))
                for node, cut in enumerate(self.cuts)
            ],
        }

    def _split_document(self, node: int, cut: Cut) -> dict[str, object]:
        where: dict[str, object] = (
            {"threshold": cut.threshold}
            if cut.left_codes is None
            else {"left_codes": sorted(cut.left_codes), "unseen_left": cut.unseen_left}
        )
        return {
            "feature": cut.feature,
            **where,
            "missing_left": cut.missing_left,
            "left": int(self.left[node]),
            "right": int(self.right[node]),
        }

    def _leaf_text(self, node: int) -> str:
        if self.schema.task is Task.REGRESSION:
            return f"{self.schema.label} = {self.content[node, 0]:.6g}"
        share = self.content[node].max() / max(self.content[node].sum(), 1e-300)
        return f"{self.schema.label} = {int(self.values[node])} ({share:.0%})"


def _goes_left(cut: Cut, column: NDArray[np.float32]) -> NDArray[np.bool_]:
    missing = np.isnan(column)
    if cut.left_codes is None:
        left = column < np.float32(cut.threshold)
    else:
        left = np.isin(column, np.array(sorted(cut.left_codes), dtype=np.float32))
    return np.where(missing, cut.missing_left, left)


def _codes_right(cut: Cut, schema: Schema) -> NDArray[np.int32]:
    categories = schema.features[cut.feature].categories or ()
    assert cut.left_codes is not None, "a numeric split has no codes"
    right = [code for code in range(len(categories)) if code not in cut.left_codes]
    # XGBoost refuses an empty set: name a code that no row has.
    return np.array(right or [len(categories)], dtype=np.int32)


def _question(cut: Cut, schema: Schema) -> str:
    feature = schema.features[cut.feature]
    if cut.left_codes is None:
        text = f"{feature.name} < {np.float32(cut.threshold)!s}"
        if cut.threshold >= float(np.finfo(np.float32).max):
            return f"{feature.name} is known"
    else:
        names = feature.categories or ()
        chosen = ", ".join(names[code] for code in sorted(cut.left_codes))
        text = f"{feature.name} in {{{chosen}}}"
    return text + (" or missing" if cut.missing_left else "")


class _Growing:
    """Nodes of a tree while it grows, parents before children."""

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
    """Return the left codes, with those that this silo has no rows of when they go left."""
    assert cut.left_codes is not None, "a numeric split has no codes"
    if not cut.unseen_left:
        return cut.left_codes
    start, stop = table.starts[cut.feature], table.starts[cut.feature + 1]
    met = set(table.values[start:stop].astype(int).tolist())
    categories = table.dataset.schema.features[cut.feature].categories or ()
    return cut.left_codes | frozenset(code for code in range(len(categories)) if code not in met)


def fit_structure(
    table: RankedTable, genes: Genes, rows: NDArray[np.int64], min_leaf: int
) -> DecisionTree:
    """Return the tree of a structure fitted to some rows.

    Parameters
    ----------
    genes : ndarray of shape (2**depth - 1,), int16
    """
    growing = _Growing(table, min_leaf)
    growing.add(rows, 0, depth_of(genes.shape[0]), 0, genes)
    return growing.tree()


def grow_cart(
    table: RankedTable, rows: NDArray[np.int64], depth: int, min_leaf: int
) -> DecisionTree:
    """Return the tree that CART grows: at each node the best cut of all features.

    The tree of a smaller depth is the same tree cut off there.
    """
    growing = _Growing(table, min_leaf)
    growing.add(rows, 0, depth, 0, None)
    return growing.tree()


def truncate(tree: DecisionTree, depth: int) -> DecisionTree:
    """Return the first ``depth`` levels of a tree, the nodes there as leaves."""
    kept = np.flatnonzero(tree.level <= depth)
    number = np.full(tree.n_nodes, -1, dtype=np.int32)
    number[kept] = np.arange(kept.shape[0], dtype=np.int32)
    inner = (tree.level[kept] < depth) & (tree.left[kept] >= 0)
    return DecisionTree(
        tree.schema,
        tuple(tree.cuts[node] if open_ else None for node, open_ in zip(kept, inner, strict=True)),
        np.where(inner, number[tree.left[kept]], -1).astype(np.int32),
        np.where(inner, number[tree.right[kept]], -1).astype(np.int32),
        tree.level[kept],
        tree.content[kept],
        tree.n_rows[kept],
    )


def score(
    table: RankedTable,
    tree: DecisionTree,
    rows: NDArray[np.int64],
    depth: int | None = None,
) -> float:
    """Return a tree's F1 (greater is better) or mean squared error (less is) on some rows."""
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
    return float(f1_of(weight @ (voted & is_class), weight @ voted, weight @ is_class))


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
) -> NDArray[np.float64]:
    """Return CART's score for each depth on each held-out fold.

    One tree a fold serves every depth, since CART's shallower trees are tops of its deeper ones.

    Returns
    -------
    ndarray of shape (len(depths), n_folds), float64
        F1, or mean squared error.
    """
    fold = fold_numbers(rng, table, n_folds)
    scores = np.empty((len(depths), n_folds))
    for k in range(n_folds):
        tree = grow_cart(table, np.flatnonzero(fold != k), depths[-1], min_leaf)
        held_out = np.flatnonzero(fold == k)
        scores[:, k] = [score(table, tree, held_out, depth) for depth in depths]
    return scores


def best_depth(scores: NDArray[np.float64], depths: range, *, higher_is_better: bool) -> int:
    """Return the depth with the best mean score, the smallest of equal ones."""
    mean = scores.mean(axis=1)
    return depths[int(np.argmax(mean) if higher_is_better else np.argmin(mean))]
