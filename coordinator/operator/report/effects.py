"""A model that is a sum of one curve a feature, as curves: what a person can apply by hand.

Any model whose trees ask of one feature each is: cyclic trees, stumps of any strategy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.coordinator.operator.report.trees import NodeNames

Floats = NDArray[np.float64]
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a feature's values within one interval, or one category, add to a margin."""

    feature: str
    group: int
    """Class whose margin it is; 0 where there is one."""
    at: str
    """``[18, 25)``, a category, or ``missing``."""
    least: float | None
    below: float | None
    """Of a number ``least`` <= value < ``below``; None where there is no end."""
    value: float
    deviation: float | None
    """About the standard deviation of it by the noise of a budget; None where there is none."""


def effects(
    trees: Sequence[Tree], names: NodeNames, attributes: Mapping[str, str] | None = None
) -> list[Effect] | None:
    """Return all steps of the curves, feature by feature; None where a tree has two features.

    Parameters
    ----------
    attributes : Mapping, optional
        Of the model file: ``privacy_account`` says how much noise there is in its leaves.
    """
    by_feature: dict[tuple[int, int], list[Tree]] = {}
    for tree in trees:
        used = set(tree.feature[~tree.is_leaf].tolist())
        if len(used) > 1:
            return None
        if used:  # a tree of one leaf belongs to no feature
            by_feature.setdefault((used.pop(), tree.group), []).append(tree)
    noise = _noise((attributes or {}).get("privacy_account", ""))
    found: list[Effect] = []
    for (feature, group), own in sorted(by_feature.items()):
        found += _curve(own, names.features[feature], names.categories[feature], group, noise)
    return found


def _noise(account: str) -> dict[str, float]:
    """Return what a model's attribute says of its leaves; nothing where it says nothing."""
    with suppress(ValueError, TypeError, KeyError):
        told = json.loads(account)
        keys = ("step", "deviation", "hessian_deviation", "added")
        return {key: float(told[key]) for key in keys}
    return {}


def _curve(
    trees: Sequence[Tree], feature: str, categories: tuple[str, ...], group: int,
    noise: Mapping[str, float],
) -> list[Effect]:  # fmt: skip
    """Return one feature's curve; neighbouring intervals of one value are one."""
    cuts = np.unique(np.concatenate([tree.threshold[~tree.is_leaf] for tree in trees]))
    points = (
        np.arange(len(categories), dtype=np.float64)
        if categories
        else np.concatenate([[-np.inf], cuts])
    )
    points = np.concatenate([points, [np.nan]])
    value, variance = np.zeros(len(points)), np.zeros(len(points))
    for tree in trees:
        rows = np.broadcast_to(points[:, None], (len(points), int(tree.feature.max()) + 1))
        leaf = np.empty(len(points), np.intp)
        for node, places in enumerate(tree.reached(rows)):
            leaf[places] = node  # children come after their parent
        value += tree.threshold[leaf]
        if noise:
            hessian = tree.cover[leaf].astype(np.float64) + noise["added"]
            of_hessian = noise["hessian_deviation"] * tree.threshold[leaf] / hessian
            variance += (noise["step"] * noise["deviation"] / hessian) ** 2 + of_hessian**2
    spread = np.sqrt(variance)
    at = [*categories, MISSING]
    ends: list[tuple[float | None, float | None]] = [(None, None)] * len(at)
    kept = np.arange(len(points))
    if not categories:
        changes = (np.diff(value[:-1]) != 0) | (np.diff(spread[:-1]) != 0)
        kept = np.concatenate([[0], np.flatnonzero(changes) + 1, [len(points) - 1]])
        starts = [None, *map(float, points[kept[1:-1]])]
        ends = [*zip(starts, [*starts[1:], None], strict=True), (None, None)]
        at = [*map(_interval, ends[:-1]), MISSING]
    return [
        Effect(feature, group, name, *end, float(value[k]), float(spread[k]) if noise else None)
        for name, end, k in zip(at, ends, kept, strict=True)
    ]


def _interval(ends: tuple[float | None, float | None]) -> str:
    least, below = ends
    if least is None:
        return "all" if below is None else f"below {_exact(below)}"
    return f"from {_exact(least)}" if below is None else f"{_exact(least)} to {_exact(below)}"


def _exact(end: float) -> str:
    """Return the shortest text that only this threshold has."""
    return np.format_float_positional(np.float32(end), unique=True, trim="-")
