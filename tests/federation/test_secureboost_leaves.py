"""Mode mix: of a passive party's trees the active party keeps the leaves and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.strategies.secureboost.directions import by_party
from hedgerow.boosting.strategies.secureboost.divisions import Divisions, divisions_of
from hedgerow.boosting.strategies.secureboost.joined import joined
from hedgerow.boosting.strategies.secureboost.model import WHOLE, ActivePart, PassivePart, search
from tests.federation import vertical
from tests.federation.memory import Fault
from tests.federation.test_secureboost_directions import WIDTHS, Parts
from tests.federation.test_secureboost_models import kept, predictions, run, score

MIX = {"mode": "mix", "encryption": "plain"}


def test_no_file_of_the_active_party_has_structure_or_gains_of_others_trees() -> None:
    parties = vertical.cut_by_columns(vertical.table(200, 6), [2, 2, 2])
    outcome, memories = run(vertical.job(rounds=4, **MIX), parties)
    other, others = run(vertical.job(rounds=4, passive_trees="structure", **MIX), parties)
    active, passive = vertical.parts(outcome.kept)
    whole, _ = vertical.parts(other.kept)
    assert [max(tree.owner) for tree in active.trees] == [0, 1, 2, 0]
    for tree, known in zip(active.trees, whole.trees, strict=True):
        assert tree.leaves_only == (max(tree.owner) > 0)
        assert not known.leaves_only
        if tree.leaves_only:
            n_leaves = known.left.count(-1)
            assert tree.left == [left for left, _ in search(n_leaves)]
            assert not any(tree.gain)
            assert any(known.gain)
            assert {f for f, left in zip(tree.feature, tree.left, strict=True) if left >= 0} == {
                WHOLE
            }
            values = {tuple(v) for v, left in zip(known.value, known.left, strict=True) if left < 0}
            assert values <= {tuple(value) for value in tree.value}
    assert any(a.left != b.left for a, b in zip(active.trees, whole.trees, strict=True))
    assert [list(passive[name].whole) for name in ("host-1", "host-2")] == [["1"], ["2"]]
    # A full tree has the form of the search: the order of its leaves tells nothing of it either.
    order, known = passive["host-1"].whole["1"], whole.trees[1]
    rows = _rows_of_leaves(parties["host-1"], passive["host-1"], 1)
    assert order == sorted(rows, key=lambda leaf: rows[leaf].min())
    assert order != sorted(order)
    assert sorted(order) == [node for node, left in enumerate(known.left) if left < 0]
    record = json.loads(memories["guest"]["secureboost/1"])
    assert ActivePart.load(record["part"].encode()).trees == active.trees
    assert not any(name.startswith("host") for name in active.importance())
    assert np.array_equal(
        vertical.margins(memories["guest"], 3), vertical.margins(others["guest"], 3)
    )


def _rows_of_leaves(table: Dataset, part: PassivePart, tree: int) -> dict[int, NDArray[np.int64]]:
    """Return which rows, in the order of all parties, reach which leaf of a tree."""
    X = vertical.by_id(table).X
    found: dict[int, NDArray[np.int64]] = {0: np.arange(len(X))}
    nodes = {n: division for (t, n), division in divisions_of(part, tree + 1).items() if t == tree}
    for node in sorted(nodes):
        rows, left = found.pop(node), nodes[node].left
        is_left = nodes[node].goes_left(X[rows, nodes[node].feature])
        found[left], found[left + 1] = rows[is_left], rows[~is_left]
    return found


@pytest.mark.parametrize("inference", ["standard", "eini"])
@pytest.mark.parametrize("task", [Task.BINARY, Task.MULTICLASS])
def test_scores_are_those_of_the_structures(task: Task, inference: str) -> None:
    table = vertical.table(220, 6, task, missing=0.1)
    parties = vertical.cut_by_columns(table, [3, 3])
    new = vertical.cut_by_columns(vertical.table(30, 6, task, seed=5, missing=0.1), [3, 3])
    options = {"rounds": 4, "booster": {"max_depth": 4}}
    found = {}
    for trees in ("leaves", "structure"):
        job = vertical.job(task, passive_trees=trees, **options, **MIX)
        trained, _ = run(job, parties)
        assert trained.error is None, (trained.error, trained.errors)
        hidden = {"encryption": "elgamal"} if inference == "eini" else {}
        outcome = score(job, kept(trained), new, inference=inference, **hidden)
        assert outcome.error is None, (outcome.error, outcome.errors)
        found[trees] = predictions(outcome)
    assert found["leaves"] == found["structure"]


def test_contributions_are_those_of_a_party_as_a_whole() -> None:
    parts = Parts(Task.BINARY, mode="mix")
    directions = parts.directions()
    booster, matrix = parts.booster(), xgb.DMatrix(parts.rows.X)
    margins = parts.forest.margins(directions)
    expected = booster.predict(matrix, output_margin=True)
    np.testing.assert_allclose(margins[:, 0], expected, atol=1e-6)

    sums, names = by_party(parts.forest.contributions(directions), parts.forest.players)
    shap = booster.predict(matrix, pred_contribs=True)
    edges = dict(zip(parts.active.parties, np.cumsum([0, *WIDTHS]), strict=False))
    for k, name in enumerate(names):
        columns = slice(edges[name], edges[name] + WIDTHS[parts.active.parties.index(name)])
        np.testing.assert_allclose(sums[:, 0, k], shap[:, columns].sum(axis=1), atol=2e-6)
    np.testing.assert_allclose(sums[:, 0, -1], shap[:, -1], atol=2e-6)


def test_an_answer_tells_the_leaf_and_nothing_more() -> None:
    parts = Parts(Task.BINARY, mode="mix")
    tables = parts.tables()
    for name, part in parts.passive.items():
        own = Divisions.of(part)
        answers = own.directions(tables[name].X)
        assert own.leaves is not None
        numbers = own.leaves.appended(tables[name].X)[:, own.leaves.first :]
        assert numbers.shape[1] >= 1
        rows, _ = np.unique(numbers, axis=0, return_index=True)
        assert len(np.unique(answers, axis=0)) == len(rows)


def test_training_goes_on_from_leaves_and_after_a_fault() -> None:
    parties = vertical.cut_by_columns(vertical.table(200, 6, missing=0.1), [3, 3])
    secrets = {silo: {"secureboost/secret": bytes(range(32))} for silo in parties}
    job = vertical.job(rounds=4, **MIX)
    whole, _ = run(job, parties, {s: dict(m) for s, m in secrets.items()})
    killed, memories = run(
        job, parties, secrets, faults=(Fault("host-1", "scores", round=3, level=10),)
    )
    assert "host-1" in str(killed.error)
    resumed, _ = run(
        job, parties, memories, checkpoint=killed.rounds[-1].checkpoint,
        first_round=len(killed.rounds), attempt=2,
    )  # fmt: skip
    active, passive = vertical.parts(resumed.kept)
    expected, own = vertical.parts(whole.kept)
    assert active.trees == expected.trees
    assert passive["host-1"].whole == own["host-1"].whole
    assert list(own["host-1"].whole) == ["1", "3"]
    more, later = run(
        vertical.job(rounds=1, warm_start="model", encryption="plain"), parties, kept(whole)
    )
    assert more.error is None, (more.error, more.errors)
    grown, theirs = vertical.parts(more.kept)
    assert grown.trees[:4] == expected.trees
    assert not grown.trees[4].leaves_only
    ensemble, _ = joined(grown, theirs)
    rows = vertical.by_id(vertical.table(200, 6, missing=0.1))
    booster = ensemble.booster(n_threads=1)
    booster.feature_names = None
    margins = booster.predict(xgb.DMatrix(rows.X), output_margin=True)
    assert np.abs(vertical.margins(later["guest"], 0)[:, 0] - margins).max() < 1e-6


def test_a_part_whose_whole_trees_are_none_is_refused() -> None:
    part = Parts(Task.BINARY, mode="mix").passive["host-1"]
    tree = next(iter(part.whole))
    left, *rest = part.nodes[f"{tree}:0"]
    for damage in ({f"{tree}:0": [left + 2, *rest]}, {f"{tree}:90": [91, *rest]}):
        damaged = replace(part, nodes={**part.nodes, **damage})
        with pytest.raises(DataError, match=f"tree {tree} of a model part"):
            PassivePart.load(damaged.dump())
    orders = part.whole[tree], [0, *part.whole[tree][1:]], part.whole[tree][1:]
    PassivePart.load(part.dump())
    for order in orders[1:]:
        with pytest.raises(DataError, match=f"tree {tree} of a model part"):
            PassivePart.load(replace(part, whole={**part.whole, tree: order}).dump())


def test_a_tree_of_leaves_that_is_no_search_is_refused() -> None:
    active = Parts(Task.BINARY, mode="mix").active
    k = next(k for k, tree in enumerate(active.trees) if tree.leaves_only)
    tree = active.trees[k]
    splits = [node for node, left in enumerate(tree.left) if left >= 0]
    left = list(tree.left)
    left[splits[-1]], left[splits[-2]] = left[splits[-2]], left[splits[-1]]
    owner = [0 if node == splits[0] else own for node, own in enumerate(tree.owner)]
    for damage in ({"left": left}, {"owner": owner}):
        active.trees[k] = replace(tree, **damage)
        with pytest.raises(DataError, match=f"tree {k} of a model part"):
            ActivePart.load(active.dump())
