"""The model of a vertical run for people, from the parts in its folder."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.strategies.secureboost.divisions import restored
from hedgerow.boosting.strategies.secureboost.model import (
    WHOLE,
    ActivePart,
    PassivePart,
    TreeStructure,
    load_part,
)
from hedgerow.coordinator.operator.report.runs import FinishedRun, RunUnusable
from hedgerow.coordinator.operator.report.trees import (
    FIRST_TREES,
    DrawnTrees,
    Importance,
    Question,
    draw,
)

ANONYMOUS = (
    "Of the other parties' features the active party knows numbers, not names: shop #4 is one "
    "feature of shop. Where a party's own part is in the run folder, as after hedgerow local, "
    "its names are shown."
)
"""What a reader must know of the features' names."""


def forest_of_parties(run: FinishedRun) -> DrawnTrees | None:
    """Return the trees of a vertical run, or None where its folder has no active party's part.

    Raises
    ------
    RunUnusable
        A part is damaged, or the parts are of different models.
    """
    paths = [run.folder / "silos" / silo.name / "part.json" for silo in run.report.silos]
    parts = [(path, _part(path)) for path in paths if path.is_file()]
    active = next((part for _, part in parts if isinstance(part, ActivePart)), None)
    if active is None:
        return None
    passive: dict[str, PassivePart] = {}
    for path, part in parts:
        if part.model != active.model or part.digest not in ("", active.digest):
            raise RunUnusable(f"{path} is of another model than the active party's part")
        if isinstance(part, PassivePart):
            passive[part.party] = part
    try:
        known = {k: passive[p] for k, p in enumerate(active.parties) if p in passive}
        trees = restored(active.used_trees, known)
        names = tuple(f"tree {k + 1}" for k in range(len(trees)))
        drawings = tuple(
            draw(names[k], trees[k].left, _PartAsker(active, passive, trees[k], k))
            for k in range(len(trees))[FIRST_TREES]
        )
        return DrawnTrees(names, _importance(active, passive, trees), drawings, ANONYMOUS)
    except (FederationError, IndexError, KeyError, TypeError, ValueError) as error:
        raise RunUnusable(f"{run.folder}: a part of the model is damaged") from error


def _part(path: Path) -> ActivePart | PassivePart:
    try:
        return load_part(path.read_bytes())
    except (FederationError, TypeError, OSError) as error:
        raise RunUnusable(f"{path}: {error}") from error


def _name(active: ActivePart, passive: dict[str, PassivePart], owner: int, feature: int) -> str:
    """Return what a division's feature is called: of another party its number, and maybe a name."""
    if not owner:
        return active.features[feature]
    party = active.parties[owner]
    if feature == WHOLE:
        return f"{party} (leaves only)"
    part = passive.get(party)
    known = f" ({part.features[part.anonymous.index(feature)]})" if part is not None else ""
    return f"{party} #{feature}{known}"


def _importance(
    active: ActivePart, passive: dict[str, PassivePart], trees: Iterable[TreeStructure]
) -> tuple[Importance, ...]:
    gains: dict[str, float] = {}
    splits: dict[str, int] = {}
    for tree in trees:
        for owner, feature, gain in zip(tree.owner, tree.feature, tree.gain, strict=True):
            if owner >= 0:
                name = _name(active, passive, owner, feature)
                gains[name] = gains.get(name, 0.0) + gain
                splits[name] = splits.get(name, 0) + 1
    total = sum(gains.values())
    return tuple(
        Importance(name, gains[name] / total if total > 0.0 else float("nan"), splits[name])
        for name in sorted(gains, key=lambda name: (-gains[name], name))
    )


class _PartAsker:
    """What a node of a vertical tree asks, as far as the available parts show."""

    def __init__(
        self, active: ActivePart, passive: dict[str, PassivePart], tree: TreeStructure, number: int
    ) -> None:
        self._active, self._passive = active, passive
        self._tree, self._number = tree, number

    def leaf(self, node: int) -> tuple[str, str]:
        """Return the value of a leaf, and its hessian."""
        values = self._tree.value[node]
        shown = ", ".join(f"{value + 0.0:+.4g}" for value in values[:2])
        cover = self._tree.cover[node]
        more = f" +{len(values) - 2}" if len(values) > 2 else ""
        return shown + more, f"hessian {cover:.4g}" if cover > 0.0 else ""

    def question(self, node: int) -> Question:
        """Return the feature of a division, its condition and the answers."""
        owner, feature = self._tree.owner[node], self._tree.feature[node]
        party = self._active.parties[owner]
        if not owner:
            name, threshold = self._active.features[feature], float(self._tree.threshold[node])
            categories = self._active.categories.get(name, [])
            codes = self._tree.sets.get(str(node))
            return name, _condition(threshold, categories, codes), ("yes", "no")
        part = self._passive.get(party)
        if self._tree.leaves_only:
            return party, "which of its leaves", ("first ones", "last ones")
        if part is None:
            return f"{party} #{feature}", f"known to {party} only", ("left", "right")
        place = f"{self._number}:{node}"
        _, own, threshold, _ = part.nodes[place]
        name = part.features[own]
        categories = part.categories.get(name, [])
        return name, _condition(float(threshold), categories, part.sets.get(place)), ("yes", "no")


def _condition(threshold: float, categories: list[str], right: list[int] | None) -> str:
    """Return which values go left; categories without a set in the order of their list."""
    if not categories:
        return f"< {threshold:.6g}"
    away = range(math.ceil(threshold), len(categories)) if right is None else right
    left = [category for code, category in enumerate(categories) if code not in away]
    return f"is {', '.join(left[:2])}" + (f" +{len(left) - 2}" if len(left) > 2 else "")
