"""The whole model of a vertical run, where one machine has the parts of all parties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.errors import FOREIGN, DataError
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.secureboost.divisions import restored
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart, TreeStructure
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank


def joined(active: ActivePart, passive: Mapping[str, PassivePart]) -> tuple[Ensemble, Schema]:
    """Return all trees with every party's divisions, and the columns that they divide.

    Text is divided into sets of categories, or else is numeric to the trees: the position of its
    category. Columns
    keep their names; one that several parties have is called ``party.column``.

    Raises
    ------
    DataError
        A party's part is missing, or of another model.
    """
    for party in active.parties[1:]:
        part = passive.get(party)
        if part is None:
            raise DataError(f"the part of party {party} is not there")
        if part.model != active.model or part.digest != active.digest:
            raise DataError(f"the part of party {party} is of another model than the active one")
    parts: list[ActivePart | PassivePart] = [
        active,
        *(passive[party] for party in active.parties[1:]),
    ]
    counts = Counter(name for part in parts for name in part.features)
    first = np.cumsum([0, *(len(part.features) for part in parts)])
    features = tuple(
        Feature(
            name if counts[name] == 1 else f"{part.party}.{name}",
            tuple(part.categories[name]) if name in part.categories else None,
        )
        for part in parts
        for name in part.features
    )
    task = Task(active.task)
    n_classes = {Task.BINARY: 2, Task.MULTICLASS: active.n_outputs, Task.REGRESSION: 0}[task]
    schema = Schema(features, active.label, task, n_classes, tuple(active.classes), active.numbered)
    owned = [passive[party] for party in active.parties[1:]]
    sets = any(tree.sets for tree in active.trees) or any(part.sets for part in owned)
    numeric = schema
    if not sets:
        numeric = replace(schema, features=tuple(Feature(f.name) for f in features))
    margin = np.full((1, active.n_outputs) if active.n_outputs > 1 else 1, active.base_margin)
    base = np.full(active.n_outputs, active.base_margin)
    if task is not Task.MULTICLASS:
        base = metrics.link(active.model_objective, margin)
    ensemble = blank(numeric, active.model_objective, Booster(), [float(b) for b in base])
    try:
        for number, tree in enumerate(restored(active.used_trees, dict(enumerate(owned, 1)))):
            trees = _trees(tree, number, owned, first)
            ensemble = ensemble.extend(trees, n_steps=1)
    except FOREIGN as error:
        raise DataError("a part of the model lacks a division of its party") from error
    return ensemble, schema


def _trees(
    tree: TreeStructure,
    number: int,
    parts: list[PassivePart],
    first: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> list[Tree]:
    """Return one tree for each output that a tree adds to, with the same divisions."""
    left = np.array(tree.left, np.int32)
    feature = np.zeros(len(left), np.int32)
    threshold = np.zeros(len(left), np.float32)
    default = np.zeros(len(left), np.bool_)
    sets = {int(node): codes for node, codes in tree.sets.items()}
    for node in np.flatnonzero(left >= 0).tolist():
        owner = tree.owner[node]
        own = tree.feature[node], tree.threshold[node], tree.default_left[node]
        if owner:
            part, place = parts[owner - 1], f"{number}:{node}"
            _, column, cut, missing = part.nodes[place]
            own = int(column), float(cut), bool(missing)
            if place in part.sets:
                sets[node] = part.sets[place]
        feature[node] = first[owner] + own[0]
        threshold[node], default[node] = own[1], own[2]
    return [
        Tree(
            left=left,
            right=np.where(left < 0, -1, left + 1).astype(np.int32),
            feature=feature,
            threshold=np.where(
                left < 0, np.array([value[k] for value in tree.value]), threshold
            ).astype(np.float32),
            default_left=default,
            gain=np.array(tree.gain, np.float32),
            cover=np.array(tree.cover, np.float32),
            weight=np.zeros(len(left), np.float32),
            categories=tuple((node, np.array(sets[node], np.int32)) for node in sorted(sets)),
            group=group,
        )
        for k, group in enumerate(tree.groups)
    ]
