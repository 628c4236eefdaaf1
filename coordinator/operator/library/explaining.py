"""Why a model says what it says: Shapley values, importance, nodes, drawings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.coordinator.operator.library.frames import Frame
from hedgerow.coordinator.operator.report.effects import Effect, effects
from hedgerow.coordinator.operator.report.trees import (
    Drawing,
    NodeNames,
    StockAsker,
    draw,
    importance_of,
)

Floats = NDArray[np.float64]

ORDERS = 32
"""Orders of features from which Shapley values are estimated, half of them reversed ones."""
_CELLS = 4_000_000
"""Values of a table that margins are asked of at once."""
_UNSEEN_ROWS = 1e-3
"""Rows that a leaf counts at least, so that no node has none."""


def of_trees(ensemble: Ensemble, rows: Dataset, background: Dataset) -> Floats:
    """Return XGBoost's exact Shapley values of rows; see ``Model.shap``."""
    import xgboost

    n_columns, n_outputs = rows.X.shape[1] + 1, ensemble.about.n_outputs
    if rows.is_empty:
        return np.zeros((0, n_outputs, n_columns) if n_outputs > 1 else (0, n_columns))
    if any(len(tree.cover) > 1 and not (tree.cover > 0.0).all() for tree in ensemble.trees):
        trees = tuple(_counted(tree, background.X) for tree in ensemble.trees)
        ensemble = replace(ensemble, trees=trees)
    else:
        ensemble = replace(ensemble, trees=tuple(map(_consistent, ensemble.trees)))
    ensemble = replace(ensemble, trees=tuple(tree.by_level() for tree in ensemble.trees))
    booster = ensemble.booster(n_threads=0)
    matrix = xgboost.DMatrix(rows.X, feature_types=booster.feature_types, enable_categorical=True)
    found = booster.predict(matrix, pred_contribs=True, validate_features=False)
    return np.asarray(found, dtype=np.float64)


def _counted(tree: Tree, X: NDArray[np.float32]) -> Tree:
    """Return a tree whose nodes' covers are the numbers of rows that reach them."""
    counts = np.array([len(rows) for rows in tree.reached(X)])
    cover = np.where(tree.is_leaf, counts + _UNSEEN_ROWS, 0.0)
    return replace(tree, cover=_summed(tree, cover))


def _consistent(tree: Tree) -> Tree:
    """Return a tree whose nodes have as much cover as their children; noisy counts have not."""
    cover = _summed(tree, tree.cover.astype(np.float64))
    return tree if np.allclose(cover, tree.cover, rtol=1e-3) else replace(tree, cover=cover)


def _summed(tree: Tree, cover: Floats) -> NDArray[np.float32]:
    """Return covers that add up from the leaves."""
    for node in range(tree.n_nodes - 1, -1, -1):  # a child is after its parent
        if tree.left[node] >= 0:
            cover[node] = cover[tree.left[node]] + cover[tree.right[node]]
    return cover.astype(np.float32)


def of_margins(margins: Callable[[Dataset], Floats], rows: Dataset, background: Dataset) -> Floats:
    """Return estimates of Shapley values of any margins; each row's sum to its margin.

    A row of ``background`` becomes the row, feature by feature in a random order; what a feature
    changes is its part. Orders come in pairs, one the reverse of the other.
    """
    if background.is_empty:
        raise DataError("expected a background of at least one row")
    rng = np.random.default_rng(0)
    n_rows, n_features = rows.X.shape
    start = margins(background)
    total = np.zeros((n_rows, n_features, *start.shape[1:]))
    bias = np.zeros((n_rows, *start.shape[1:]))
    order = np.arange(n_features)
    at_once = max(_CELLS // max(n_rows * n_features, 1), 1)
    for k in range(ORDERS):
        order = order[::-1] if k % 2 else rng.permutation(n_features)
        drawn = rng.integers(background.n_samples, size=n_rows)
        X = background.X[drawn].copy()
        before = start[drawn]
        bias += before
        for first in range(0, n_features, at_once):
            steps = []
            for feature in order[first : first + at_once]:
                X[:, feature] = rows.X[:, feature]
                steps.append(X.copy())
            after = margins(replace(rows, features=np.concatenate(steps), y=None, ids=None))
            after = after.reshape(len(steps), *before.shape)
            for feature, now in zip(order[first : first + at_once], after, strict=True):
                total[:, feature] += now - before
                before = now
    found = np.concatenate([total, bias[:, None]], axis=1) / ORDERS
    return np.moveaxis(found, 1, -1)


def importance(ensemble: Ensemble, names: NodeNames) -> Frame:
    """Return each feature's share of the gain and its number of splits; see ``Model``."""
    found = importance_of(list(ensemble.trees), names)
    columns = ("feature", "gain", "splits")
    return Frame({key: [getattr(one, key) for one in found] for key in columns}, "importance")


def curves(ensemble: Ensemble, names: NodeNames) -> Frame | None:
    """Return the curves of an additive model; see ``Model``. None where it is none."""
    found = effects(ensemble.trees, names, ensemble.attributes)
    if found is None:
        return None
    rows = [
        {**asdict(one), "deviation": math.nan if one.deviation is None else one.deviation}
        for one in found
    ]
    keys = [f.name for f in fields(Effect)]
    return Frame({"class" if k == "group" else k: [row[k] for row in rows] for k in keys}, "curves")


def nodes(ensemble: Ensemble, names: NodeNames, *, numeric: bool = False) -> Frame:
    """Return all nodes of all trees; see ``Model``.

    Parameters
    ----------
    numeric : bool
        Whether text is divided by the position of its category.
    """
    rows: dict[str, list[object]] = {
        key: []
        for key in (
            "tree", "class", "node", "feature", "threshold", "categories", "yes", "no", "missing",
            "value", "gain", "cover",
        )
    }  # fmt: skip
    for number, tree in enumerate(ensemble.trees):
        right_of = dict(tree.categories)
        for node in range(tree.n_nodes):
            left, right = int(tree.left[node]), int(tree.right[node])
            feature = int(tree.feature[node])
            known = names.categories[feature] if left >= 0 else ()
            categories = None
            if node in right_of:
                away = set(right_of[node].tolist())
                categories = [name for code, name in enumerate(known) if code not in away]
            elif numeric and known:
                below = float(tree.threshold[node])
                categories = [name for code, name in enumerate(known) if code < below]
            cut = left >= 0 and categories is None
            missing = left if tree.default_left[node] else right
            for key, value in zip(
                rows,
                (
                    number, tree.group, node,
                    names.features[feature] if left >= 0 else None,
                    float(tree.threshold[node]) if cut else None,
                    categories,
                    left if left >= 0 else None,
                    right if left >= 0 else None,
                    missing if left >= 0 else None,
                    float(tree.threshold[node]) if left < 0 else None,
                    float(tree.gain[node]) if left >= 0 else None,
                    float(tree.cover[node]),
                ),
                strict=True,
            ):  # fmt: skip
                rows[key].append(value)
    return Frame(rows, "trees")


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing of a tree: notebooks show it, :meth:`save` writes an SVG file."""

    drawing: Drawing

    @property
    def text(self) -> str:
        """The tree as indented lines."""
        return "\n".join("  " * level + line for level, line in self.drawing.lines)

    def save(self, path: str | Path) -> None:
        """Write an SVG file."""
        Path(path).write_text(self._repr_svg_(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        """Return the drawing, for notebooks."""
        found, parts = self.drawing, []
        for edge in found.edges:
            x, y = 0.35 * edge.x1 + 0.65 * edge.x2, 0.42 * edge.y1 + 0.58 * edge.y2
            parts.append(
                f'<path d="M {edge.x1:.1f} {edge.y1:.1f} L {edge.x2:.1f} {edge.y2:.1f}" '
                f'stroke="#7b8794"/><text x="{x:.1f}" y="{y:.1f}">{escape(edge.text)}</text>'
            )
        for box in found.boxes:
            middle = box.x + 56
            parts.append(
                f'<g><title>{escape(f"{box.title} {box.detail}")}</title><rect x="{box.x:.1f}" '
                f'y="{box.y:.1f}" width="112" height="40" rx="6" fill="#eef2f7" stroke="#3b82c4"/>'
                f'<text x="{middle:.1f}" y="{box.y + 17:.1f}">{escape(box.title[:16])}</text>'
                f'<text x="{middle:.1f}" y="{box.y + 32:.1f}">{escape(box.detail[:20])}</text></g>'
            )
        width, height = found.width + 8, found.height + 8
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width:.0f} {height:.0f}" '
            f'width="{width:.0f}" font-family="sans-serif" font-size="11" text-anchor="middle" '
            f'fill="#1f2933" role="img" aria-label="{escape(found.name)}">{"".join(parts)}</svg>'
        )


def picture(ensemble: Ensemble, names: NodeNames, number: int) -> Picture:
    """Return the drawing of a tree; see ``Model``.

    Raises
    ------
    DataError
        There is no such tree.
    """
    if not 0 <= number < ensemble.version:
        raise DataError(f"expected a tree from 0 to {ensemble.version - 1}, received {number}")
    tree = ensemble.trees[number]
    asker = StockAsker(tree, names)
    return Picture(draw(f"tree {number + 1}", tree.left.tolist(), asker, tree.right.tolist()))
