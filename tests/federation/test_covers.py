"""Covers and gains of a scrubbed model, from one secure sum over all silos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.exchange import Silo, Step
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.strategies.bagging.covers import leaf_sums
from hedgerow.boosting.strategies.bagging.forecast import NO_COVERS
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.local import booster_parameters
from tests.boosting.trees.ensembles import KINDS, Kind, dataset, matrix
from tests.federation.memory import Fault, KeyedIdentity, MemoryLink, Outcome, run_in_memory
from tests.federation.test_bagging import job, model, silos

BINARY, REGRESSION, _, CLASSES, FOREST = KINDS[:5]


def run(kind: Kind, strategy: Bagging, data: Mapping[str, Dataset], **given: Any) -> Outcome:
    given = {"through_wire": True, "identities": KeyedIdentity, **given}
    asked = replace(job(kind, strategy, min_silos=2), max_close_sums=9)
    outcome = run_in_memory(asked, data, **given)
    assert outcome.error is None, outcome.error
    return outcome


def together(data: Mapping[str, Dataset]) -> Dataset:
    parts = [data[silo] for silo in sorted(data)]
    X = np.concatenate([part.X for part in parts])
    return Dataset(parts[0].schema, X, np.concatenate([part.labels for part in parts]))


def refreshed(kind: Kind, ensemble: Ensemble, rows: Dataset) -> Ensemble:
    """Return what XGBoost itself makes of all rows: every tree at the margins of those before."""
    booster = xgb.Booster(model_file=bytearray(ensemble.unnamed().save()))
    booster.set_param(
        {
            "process_type": "update",
            "updater": "refresh",
            "refresh_leaf": False,
            "min_child_weight": 0,
            "alpha": kind.extra.get("alpha", 0.0),
            "objective": kind.objective,
        }
    )
    known = matrix(rows)
    for step in range(len(ensemble.steps)):
        booster.update(known, step)
    return load(bytes(booster.save_raw("ubj")))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_covers_and_gains_are_those_of_the_joined_rows(kind: Kind) -> None:
    """One silo a round, so that XGBoost's own order of margins is the federation's."""
    data = silos(kind, 120, 90, 60)
    found = load(model(run(kind, Bagging(rounds=4, mode="cyclic", trees_per_round=2), data)))
    expected = refreshed(kind, found.scrubbed(), together(data))
    for ours, theirs in zip(found.trees, expected.trees, strict=True):
        np.testing.assert_allclose(ours.cover, theirs.cover, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ours.gain, theirs.gain, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", [BINARY, CLASSES, FOREST], ids=lambda kind: kind.name)
def test_shap_values_add_up_to_the_margin_and_predictions_are_the_same(kind: Kind) -> None:
    data = silos(kind, 120, 90, 60)
    raw = model(run(kind, Bagging(rounds=3), data))
    bare = load(model(run(kind, Bagging(rounds=3, scrub="none"), data))).scrubbed()
    assert load(raw).scrubbed().trees[-1].threshold.tolist() == bare.trees[-1].threshold.tolist()
    booster = xgb.Booster(model_file=bytearray(raw))
    rows = matrix(dataset(kind, 40, 9))
    shap = booster.predict(rows, pred_contribs=True, validate_features=False)
    margins = booster.predict(rows, output_margin=True, validate_features=False)
    np.testing.assert_allclose(shap.sum(axis=-1), margins, atol=1e-5)
    assert booster.get_score(importance_type="gain")


def test_with_two_silos_there_are_none_and_the_plan_says_so() -> None:
    data = silos(BINARY, 80, 60)
    assert not any(tree.cover.any() for tree in load(model(run(BINARY, Bagging(), data))).trees)
    two = job(BINARY, Bagging())
    schema = data["silo-0"].schema
    notes = two.strategy.forecast(two.parameters, two, schema, {"a": 80, "b": 60}).notes
    assert NO_COVERS in notes


def test_an_early_end_covers_the_rounds_that_are_kept() -> None:
    data = silos(BINARY, 120, 90, 60)
    stopping = Bagging(rounds=30, validation=0.3, early_stopping_rounds=2)
    outcome = run(BINARY, stopping, data)
    assert len(outcome.rounds) < 30
    trees = load(model(outcome)).trees
    assert trees
    assert all((tree.cover > 0).all() for tree in trees)


class Counting(MemoryLink):
    """Counts the vectors that leave."""

    sent: list[str]

    def exchange(self, step: Step[Any, Any], at: Any, offer: Any) -> Any:
        Counting.sent.append(f"{self.silo} {step.name}")
        return super().exchange(step, at, offer)


def test_each_silo_adds_one_vector() -> None:
    Counting.sent = []
    run(REGRESSION, Bagging(rounds=3), silos(REGRESSION, 80, 70, 60), make_link=Counting)
    assert sorted(name for name in Counting.sent if name.endswith("covers-sum-masked")) == [
        f"silo-{k} covers-sum-masked" for k in range(3)
    ]


@pytest.mark.parametrize("step", ["sum-keys", "covers-bound-masked", "covers-sum-masked"])
def test_a_silo_that_is_lost_at_the_sum_costs_no_model(step: str) -> None:
    data = silos(BINARY, 120, 90, 60, 80)
    fault = Fault("silo-1", step, round=3)
    outcome = run(BINARY, Bagging(rounds=3), data, faults=(fault,))
    trees = load(model(outcome)).trees
    assert len(trees) == 12
    assert all((tree.cover > 0).all() for tree in trees)


def test_with_too_few_silos_left_the_model_is_whole_without_covers() -> None:
    data = silos(BINARY, 120, 90, 60)
    gone = Fault("silo-1", "sum-keys", round=3)
    outcome = run(BINARY, Bagging(rounds=3), data, faults=(gone,), timeout_seconds=2)
    trees = load(model(outcome)).trees
    assert len(trees) == 9
    assert not any(tree.cover.any() for tree in trees)


def test_a_silo_without_rows_takes_part() -> None:
    data = silos(BINARY, 120, 90, 60)
    none = data["silo-2"].take(np.zeros(0, np.intp))
    trees = load(model(run(BINARY, Bagging(rounds=2), {**data, "silo-2": none}))).trees
    assert all((tree.cover > 0).all() for tree in trees)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_trees_of_a_round_give_the_sums_together_that_each_gives_alone(kind: Kind) -> None:
    data = silos(kind, 120, 90, 60)
    parameters = job(kind, Bagging(rounds=1), min_silos=2)
    found = load(model(run(kind, Bagging(rounds=1), data)))
    names = tuple(Silo(name) for name in sorted(data))
    start = SiloStart(parameters, "job", 1, names[0], names, data[names[0]].schema, data[names[0]])
    each = len(found.trees) // len(names)
    blocks = [(1, list(found.trees[k : k + each])) for k in range(0, len(found.trees), each)]
    native = booster_parameters(
        parameters.booster, parameters.objective, found.about.n_outputs, n_threads=1
    )
    together = leaf_sums(start, found.slice(0), [blocks], native).reshape(2, -1)
    alone = [leaf_sums(start, found.slice(0), [[block]], native).reshape(2, -1) for block in blocks]
    assert len(blocks) == 3
    assert together.tobytes() == np.concatenate(alone, axis=1).tobytes()
