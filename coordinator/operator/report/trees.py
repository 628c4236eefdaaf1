"""Trees of a run for people: how much each feature gives, and drawings of single trees."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import FederationError, ModelRejected
from hedgerow.boosting.trees import loading
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.coordinator.operator.report.runs import FinishedRun, RunUnusable
from hedgerow.services.wire import schema as schema_wire

FIRST_TREES = slice(8)
"""Trees of a run that a report draws; the first ones say most."""
DRAWN_LEVELS = 3
"""Levels of a drawing; what is below is counted."""
Question = tuple[str, str, tuple[str, str]]
"""A division's feature, its condition, and the answers that lead left and right."""
_BOX = (112, 40)
_GAP = (10, 34)


@dataclass(frozen=True, slots=True)
class Importance:
    """What one feature gives to all trees of a run."""

    feature: str
    gain: float
    """Share of the total gain, 0 to 1; NaN where gains were scrubbed."""
    splits: int


@dataclass(frozen=True, slots=True)
class Box:
    """A node of a drawing; coordinates are of its upper left corner."""

    x: float
    y: float
    title: str
    detail: str
    kind: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A line from a node down to a child."""

    x1: float
    y1: float
    x2: float
    y2: float
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """One tree: a drawing, and the same as indented lines."""

    name: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    lines: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Names of features, of the categories of each, and of outputs."""

    features: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...] = ()
    """What the trees of each output are for; empty where that is not known."""

    @classmethod
    def of(cls, schema: Schema, quantiles: tuple[float, ...] = ()) -> NodeNames:
        """Return those of a schema."""
        outputs = tuple(f"class {name}" for name in schema.classes)
        if schema.more_labels:
            outputs = schema.labels
        if len(quantiles) > 1:
            outputs = tuple(f"quantile {alpha:g}" for alpha in quantiles)
        categories = tuple(tuple(f.categories or ()) for f in schema.features)
        return cls(schema.names, categories, outputs)

    def output(self, group: int) -> str:
        """Return what a tree of this output is for."""
        return self.outputs[group] if group < len(self.outputs) else f"class {group}"


@dataclass(frozen=True, slots=True)
class DrawnTrees:
    """The trees of a run."""

    names: tuple[str, ...]
    """What each tree is called."""
    importance: tuple[Importance, ...]
    drawings: tuple[Drawing, ...]
    """Those trees that were asked for."""
    note: str = ""
    """What a reader has to know of the features' names."""
    trees: tuple[Tree, ...] = ()
    """As they are in a stock model; none where each silo has models of its own."""
    feature_names: NodeNames | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Of the model file."""
    base_margins: tuple[float, ...] = ()
    """Where a row's margins start, one a class."""


class NodeQuestions(Protocol):
    """Says what the nodes of a tree mean."""

    def question(self, node: int) -> Question:
        """Return what a division asks."""

    def leaf(self, node: int) -> tuple[str, str]:
        """Return a leaf's value, and what else is known of it."""


@functools.lru_cache(maxsize=2)
def _loaded(model: bytes) -> Ensemble:
    """Return a model; who browses its trees asks for the same one again and again."""
    return loading.load(model)


def forest_of(run: FinishedRun, drawn: slice = FIRST_TREES) -> DrawnTrees | None:
    """Return the trees of a run, or None where its folder has none that can be shown.

    Parameters
    ----------
    drawn : slice
        Which of the trees are drawn.

    Raises
    ------
    RunUnusable
        A model file is damaged.
    """
    found = [path for path in _models(run) if path.is_file()]
    if not found:
        return None
    models: list[tuple[str, Ensemble]] = []
    for path in found:
        whose = f"{path.parent.name}, " if len(found) > 1 else ""
        try:
            model = _loaded(path.read_bytes())
        except OSError as error:
            raise RunUnusable(f"{path} cannot be read: {error.strerror}") from error
        except ModelRejected as error:
            raise RunUnusable(f"{path} is no XGBoost model of trees: {error}") from error
        models.append((whose, model))
    every = [tree for _, own in models for tree in own.trees]
    if not every:
        return None
    n_features = max(int(tree.feature.max(initial=0)) for tree in every) + 1
    names = _names(run, found[0], n_features, models[0][1].about.quantiles)
    trees: list[tuple[str, Tree]] = []
    for whose, own in models:
        several = any(tree.group for tree in own.trees)
        for k, tree in enumerate(own.trees):
            of = f", {names.output(tree.group)}" if several else ""
            trees.append((f"{whose}tree {k + 1}{of}", tree))
    return DrawnTrees(
        tuple(name for name, _ in trees),
        importance_of(every, names),
        tuple(
            draw(name, tree.left.tolist(), StockAsker(tree, names), tree.right.tolist())
            for name, tree in trees[drawn]
        ),
        trees=model.trees if [path.name for path in found] == ["model.ubj"] else (),
        feature_names=names,
        attributes=model.attributes,
        base_margins=tuple(model.base_margins(1).reshape(-1).tolist()),
    )


def _models(run: FinishedRun) -> Iterator[Path]:
    """Yield the files of a run that may hold trees: the model, or one for each silo."""
    named = [name for name in run.report.artefacts if name.endswith(".ubj")]
    own = [run.report.model] if run.report.model.endswith(".ubj") else []
    for name in dict.fromkeys([*own, *named]):
        yield run.folder / name
        return
    for silo in run.report.silos:
        yield run.folder / "silos" / silo.name / "model.ubj"


def _names(
    run: FinishedRun, model: Path, n_features: int, quantiles: tuple[float, ...]
) -> NodeNames:
    for path in (model.with_name("schema.json"), run.folder / "schema.json"):
        if path.is_file():
            try:
                schema: Schema = schema_wire.load(path.read_bytes())
            except (FederationError, OSError) as error:
                raise RunUnusable(f"{path} is damaged") from error
            if schema.n_features < n_features:
                raise RunUnusable(
                    f"{path} has {schema.n_features} features, {model.name} uses {n_features}"
                )
            return NodeNames.of(schema, quantiles)
    return NodeNames(tuple(f"f{j}" for j in range(n_features)), ((),) * n_features)


def importance_of(trees: list[Tree], names: NodeNames) -> tuple[Importance, ...]:
    """Return what each feature that divides gives, the largest first."""
    n = len(names.features)
    gain, splits = np.zeros(n), np.zeros(n, np.int64)
    for tree in trees:
        inner = ~tree.is_leaf
        np.add.at(gain, tree.feature[inner], tree.gain[inner].astype(np.float64))
        np.add.at(splits, tree.feature[inner], 1)
    # Over all silos the split that one of them chose may lose: it gives nothing, not less.
    gain = np.maximum(gain, 0.0)
    total = gain.sum()
    shares = gain / total if total > 0.0 else np.full(n, np.nan)
    order = np.lexsort((np.arange(n), -splits, -np.nan_to_num(shares)))
    return tuple(
        Importance(names.features[j], float(shares[j]), int(splits[j])) for j in order if splits[j]
    )


def draw(
    name: str, left: Sequence[int], asker: NodeQuestions, right: Sequence[int] = ()
) -> Drawing:
    """Return the drawing of a tree.

    Parameters
    ----------
    left, right : sequence of int
        Children of each node, -1 at leaves; without ``right`` the right child comes after the left.
    """

    def children(node: int) -> tuple[int, int]:
        return left[node], right[node] if right else left[node] + 1

    boxes: list[Box] = []
    edges: list[Edge] = []
    lines: list[tuple[int, str]] = []
    width, height = _BOX
    free = 0.0

    def leaves(node: int) -> int:
        return 1 if left[node] < 0 else sum(leaves(child) for child in children(node))

    def place(node: int, level: int) -> float:
        """Lay a node out under its parent; returns the middle of its box."""
        nonlocal free
        y = level * (height + _GAP[1])
        leaf = left[node] < 0
        if leaf or level == DRAWN_LEVELS:
            x, free = free, free + width + _GAP[0]
            if leaf:
                boxes.append(Box(x, y, *asker.leaf(node), "leaf"))
            else:
                boxes.append(Box(x, y, f"… {leaves(node)} leaves", "not drawn", "hidden"))
            return x + width / 2
        middles = [place(child, level + 1) for child in children(node)]
        middle = sum(middles) / 2
        title, detail, answers = asker.question(node)
        boxes.append(Box(middle - width / 2, y, title, detail, "split"))
        for child, answer in zip(middles, answers, strict=True):
            edges.append(Edge(middle, y + height, child, y + height + _GAP[1], answer))
        return middle

    def tell(node: int, level: int) -> None:
        if left[node] < 0:
            lines.append((level, f"value {asker.leaf(node)[0]}"))
            return
        title, detail, answers = asker.question(node)
        for child, answer in zip(children(node), answers, strict=True):
            lines.append((level, f"{title} {detail}: {answer}"))
            tell(child, level + 1)

    place(0, 0)
    tell(0, 0)
    bottom = max(box.y for box in boxes) + height
    return Drawing(name, free - _GAP[0], bottom, tuple(boxes), tuple(edges), tuple(lines))


class StockAsker:
    """What the nodes of a stock tree mean."""

    def __init__(self, tree: Tree, names: NodeNames) -> None:
        self._tree, self._names = tree, names

    def leaf(self, node: int) -> tuple[str, str]:
        """Return a leaf's value, and its hessian where that was not scrubbed."""
        cover = self._tree.cover[node]
        value = f"{self._tree.threshold[node] + 0.0:+.6g}"  # no -0
        return value, f"hessian {cover:.4g}" if cover > 0.0 else ""

    def question(self, node: int) -> Question:
        """Return a split's feature, its condition and the answers that lead left and right."""
        feature = int(self._tree.feature[node])
        name = self._names.features[feature]
        right = dict(self._tree.categories).get(node)
        if right is None:
            return name, f"< {self._tree.threshold[node]:.6g}", ("yes", "no")
        known = self._names.categories[feature]
        # A private tree divides rows without a value as one more category.
        other = "missing" if known else ""
        names = [known[c] if c < len(known) else other or str(c) for c in right.tolist()]
        shown = ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")
        return name, f"is {shown}", ("no", "yes")
