"""Scores and explanations from direction bits: those of XGBoost on the joined table."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np
import pytest
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.strategies.secureboost.directions import (
    ActiveTrees,
    by_party,
    packed,
    unpacked,
)
from hedgerow.boosting.strategies.secureboost.divisions import Divisions
from hedgerow.boosting.strategies.secureboost.joined import joined
from hedgerow.boosting.strategies.secureboost.model import ActivePart, PassivePart
from tests.federation import vertical
from tests.federation.test_secureboost_models import run

WIDTHS = [3, 2, 2]


class Parts:
    """A trained model, new rows, and the directions that the parties give of them."""

    def __init__(self, task: Task, **changes: object) -> None:
        whole = vertical.table(150, sum(WIDTHS), task, missing=0.1)
        self.rows = vertical.by_id(vertical.table(40, sum(WIDTHS), task, seed=8, missing=0.1))
        job = vertical.job(task, encryption="plain", rounds=4, **changes)
        outcome, _ = run(job, vertical.cut_by_columns(whole, WIDTHS))
        self.active, self.passive = vertical.parts(outcome.kept)
        self.forest = ActiveTrees.of(self.active)

    def directions(self, forest: ActiveTrees | None = None) -> NDArray[np.bool_]:
        tables = self.tables()
        others = {}
        for name, part in self.passive.items():
            given = Divisions.of(part)
            bits = given.directions(tables[name].X)
            others[name] = unpacked(packed(bits), len(bits), len(given.nodes), name)
        own = Divisions.of(self.active).directions(tables["guest"].X)
        return (forest or self.forest).joined(own, others)

    def tables(self) -> dict[str, Dataset]:
        cut = vertical.cut_by_columns(self.rows, WIDTHS)
        return {name: vertical.by_id(table) for name, table in cut.items()}

    def booster(self) -> xgb.Booster:
        booster = joined(self.active, self.passive)[0].booster(n_threads=1)
        booster.feature_names = None
        return booster

    def columns(self) -> list[int]:
        """Column of the joined table by player."""
        edges = dict(zip(self.active.parties, np.cumsum([0, *WIDTHS]), strict=False))
        found = []
        for party, number in self.forest.players:
            own = self.passive[party].anonymous.index(number) if party != "guest" else number
            found.append(int(edges[party]) + own)
        return found


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        (Task.BINARY, {}),
        (Task.MULTICLASS, {"multi_output": True}),
        (Task.REGRESSION, {"mode": "mix", "passive_trees": "structure"}),
    ],
)
def test_scores_and_contributions_are_those_of_the_joined_model(
    task: Task, changes: dict[str, object]
) -> None:
    parts = Parts(task, **changes)
    directions = parts.directions()
    margins = parts.forest.margins(directions)
    booster, matrix = parts.booster(), xgb.DMatrix(parts.rows.X)
    expected = booster.predict(matrix, output_margin=True)
    np.testing.assert_allclose(margins.reshape(expected.shape), expected, atol=1e-6)

    found = parts.forest.contributions(directions)
    np.testing.assert_allclose(found.sum(axis=2), margins, atol=1e-6)
    shap = booster.predict(matrix, pred_contribs=True).reshape(len(margins), margins.shape[1], -1)
    np.testing.assert_allclose(found[:, :, :-1], shap[:, :, parts.columns()], atol=2e-6)
    np.testing.assert_allclose(found[:, :, -1], shap[:, :, -1], atol=2e-6)
    unused = np.setdiff1d(np.arange(sum(WIDTHS)), parts.columns())
    assert not shap[:, :, unused].any()

    sums, parties = by_party(found, parts.forest.players)
    for k, party in enumerate(parties):
        of = [j for j, (owner, _) in enumerate(parts.forest.players) if owner == party]
        np.testing.assert_allclose(sums[:, :, k], found[:, :, of].sum(axis=2))
    np.testing.assert_allclose(sums.sum(axis=2), margins, atol=1e-6)


def test_contributions_are_shapley_values_by_their_definition() -> None:
    parts = Parts(Task.BINARY)
    forest, directions = parts.forest, parts.directions()[:5]
    players = range(len(forest.players))
    found = forest.contributions(directions)

    def value(row: NDArray[np.bool_], known: frozenset[int], node: int) -> float:
        left = int(forest.left[node])
        if left < 0:
            return float(forest.value[node, 0])
        if int(forest.player[forest.bit[node]]) in known:
            return value(row, known, left + (not row[forest.bit[node]]))
        return sum(float(forest.fraction[c]) * value(row, known, c) for c in (left, left + 1))

    for row, own in zip(directions, found, strict=True):
        worth = {
            frozenset(chosen): sum(value(row, frozenset(chosen), int(r)) for r in forest.roots)
            for size in range(len(players) + 1)
            for chosen in combinations(players, size)
        }
        for j in players:
            expected = sum(
                factorial(len(s)) * factorial(len(players) - len(s) - 1) / factorial(len(players))
                * (worth[s | {j}] - worth[s])
                for s in worth if j not in s
            )  # fmt: skip
            assert own[0, j] == pytest.approx(expected, abs=1e-9)
        assert own[0, -1] == pytest.approx(worth[frozenset()] + forest.base_margin, abs=1e-9)


def test_the_leading_trees_of_the_active_party_score_without_the_others() -> None:
    parts = Parts(Task.BINARY, complete_secure=2)
    own = ActiveTrees.of(parts.active, own=True)
    assert own.roots.size == 2
    assert own.n_divisions[1:] == (0, 0)
    mine = Divisions.of(parts.active).directions(parts.tables()["guest"].X)
    margins = own.margins(own.joined(mine[:, : own.n_divisions[0]], {}))
    expected = parts.booster().predict(
        xgb.DMatrix(parts.rows.X), output_margin=True, iteration_range=(0, 2)
    )
    np.testing.assert_allclose(margins[:, 0], expected, atol=1e-6)
    with pytest.raises(DataError, match="complete_secure"):
        ActiveTrees.of(Parts(Task.BINARY).active, own=True)


def test_directions_of_another_shape_are_refused() -> None:
    with pytest.raises(OfferRejected, match="host-1: expected directions of 3 rows in 6 bytes"):
        unpacked(bytes(5), 3, 9, "host-1")
    forest = Parts(Task.BINARY).forest
    own = np.zeros((2, forest.n_divisions[0]), np.bool_)
    with pytest.raises(OfferRejected, match="host-1: expected"):
        forest.joined(own, {})


def test_a_part_of_either_kind_has_its_divisions_in_the_order_of_trees_and_nodes() -> None:
    parts = Parts(Task.BINARY)
    every: list[ActivePart | PassivePart] = [parts.active, *parts.passive.values()]
    for part in every:
        nodes = Divisions.of(part).nodes
        assert list(nodes) == sorted(nodes)
    n = sum(len(Divisions.of(part).nodes) for part in every)
    assert n == sum(left >= 0 for tree in parts.active.used_trees for left in tree.left)
