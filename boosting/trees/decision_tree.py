"""One readable tree: its predictions, its drawings, its export.

The leaf of a classification tree votes for its heaviest class, the lowest of equal ones. Its
export is a stock XGBoost model whose margins are logarithms of smoothed class shares, so that the
model votes for the same class on every row; a regression leaf is the mean of its labels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.boosting.trees.genetics import LEAF, Genes, gene_count
from hedgerow.boosting.trees.node_cuts import Cut

SMOOTHING = 0.5
"""Weight added to each class of a leaf before its margin is computed."""

OBJECTIVES = {
    Task.BINARY: "binary:logistic",
    Task.MULTICLASS: "multi:softprob",
    Task.REGRESSION: "reg:squarederror",
}
"""Objectives under which exported trees predict their votes; the trees are not boosted."""

MODEL_FILE = "model.ubj"

_TIE_MARGIN = -1e-6


@dataclass(frozen=True, slots=True, eq=False)
class DecisionTree:
    """A fitted tree; nodes in pre-order, the root first."""

    schema: Schema
    cuts: tuple[Cut | None, ...]
    """One a node; None at a leaf."""
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    """Of shape (n_nodes,), int32. ``left`` and ``right``: child positions, -1 at leaves."""
    level: NDArray[np.int32]
    """Of shape (n_nodes,), int32. 0 at the root."""
    content: NDArray[np.float64]
    """Of shape (n_nodes, n_classes) or (n_nodes, 1), float64. Class weights of the node's rows, or
    the mean of their labels."""
    n_rows: NDArray[np.int64]
    """Of shape (n_nodes,), int64."""

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

    def header(self) -> Ensemble:
        """Return the stock XGBoost model without the tree: a margin of 0 before it."""
        base = 0.5 if self.schema.task is Task.BINARY else 0.0
        return blank(self.schema, OBJECTIVES[self.schema.task], Booster(), base)

    def files(self) -> dict[str, bytes]:
        """Return the tree as a stock XGBoost model, a drawing, a graph and plain values."""
        return {
            MODEL_FILE: self.header()
            .extend(tuple(tree.by_level() for tree in self.trees()), n_steps=1)
            .save(),
            "tree.txt": self.draw().encode(),
            "tree.dot": self.graph().encode(),
            "tree.json": (json.dumps(self.document(), indent=1) + "\n").encode(),
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
            return f"{self.schema.label} = {self.content[node, 0] + 0.0:.6g}"
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
    # XGBoost refuses an empty set: add a code that no row has.
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
