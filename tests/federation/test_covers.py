"""Covers and gains of a scrubbed model, from one secure sum over all silos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.exchange import Silo, Step
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.strategies.bagging.covers import (
    largest,
    leaf_sums,
    n_bounds,
    quantiser_of,
)
from hedgerow.boosting.strategies.bagging.forecast import NO_COVERS
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.loading import load
from tests.boosting.trees.ensembles import KINDS, Kind, dataset, matrix
from tests.federation.memory import Fault, KeyedIdentity, MemoryLink, Outcome, run_in_memory
from tests.federation.test_bagging import job, model, silos

BINARY, REGRESSION, _, CLASSES, FOREST = KINDS[:5]
UNBOUNDED = ("reg:squarederror", "count:poisson")

OBJECTIVES = tuple(
    replace(REGRESSION, name=objective, objective=objective)
    for objective in ("reg:absoluteerror", "reg:quantileerror", "reg:pseudohubererror")
)


def run(kind: Kind, strategy: Bagging, data: Mapping[str, Dataset], **given: Any) -> Outcome:
    given = {"through_wire": True, "identities": KeyedIdentity, **given}
    asked = replace(job(kind, strategy, min_silos=2), max_close_sums=9)
    outcome = run_in_memory(asked, data, **given)
    assert outcome.error is None, outcome.error
    return outcome


def together(data: Mapping[str, Dataset]) -> Dataset:
    parts = [data[silo] for silo in sorted(data)]
    X = np.concatenate([part.X for part in parts])
    y, weights = np.concatenate([part.labels for part in parts]), [part.weight for part in parts]
    known = [weight for weight in weights if weight is not None]
    return Dataset(parts[0].schema, X, y, np.concatenate(known) if known else None)


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
            **({"quantile_alpha": 0.5} if "quantile" in kind.objective else {}),
        }
    )
    known = matrix(rows)
    for step in range(len(ensemble.steps)):
        booster.update(known, step)
    return load(bytes(booster.save_raw("ubj")))


@pytest.mark.parametrize("kind", [*KINDS, *OBJECTIVES], ids=lambda kind: kind.name)
def test_covers_and_gains_are_those_of_the_joined_rows(kind: Kind) -> None:
    """One silo a round, so that XGBoost's own order of margins is the federation's."""
    data = silos(kind, 120, 90, 60)
    found = load(model(run(kind, Bagging(rounds=4, mode="cyclic", trees_per_round=2), data)))
    expected = refreshed(kind, found.scrubbed(), together(data))
    for ours, theirs in zip(found.trees, expected.trees, strict=True):
        np.testing.assert_allclose(ours.cover, theirs.cover, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ours.gain, theirs.gain, rtol=2e-3, atol=2e-3)
        some = theirs.cover > 1e-3  # of fewer rows rounding decides
        np.testing.assert_allclose(ours.weight[some], theirs.weight[some], rtol=2e-3, atol=2e-3)


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


@pytest.mark.parametrize(
    ("kind", "step"),
    [(BINARY, "sum-keys"), (REGRESSION, "covers-bound-masked"), (BINARY, "covers-sum-masked")],
)
def test_a_silo_that_is_lost_at_the_sum_costs_no_model(kind: Kind, step: str) -> None:
    data = silos(kind, 120, 90, 60, 80)
    fault = Fault("silo-1", step, round=3)
    outcome = run(kind, Bagging(rounds=3), data, faults=(fault,))
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


@pytest.mark.parametrize("weighs", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("kind", [*KINDS, *OBJECTIVES], ids=lambda kind: kind.name)
def test_sums_by_leaf_are_the_same_bits_however_rows_are_spread(kind: Kind, weighs: bool) -> None:
    """Two silos that exchange rows do not change a total, and it says nothing of who has them."""
    data = silos(kind, 120, 90, 60)
    if weighs:
        draw = np.random.default_rng(4)
        data = {
            silo: replace(own, weight=draw.gamma(2.0, size=own.n_samples))
            for silo, own in data.items()
        }
    columns = ColumnRules(weight="w") if weighs else ColumnRules()
    parameters = replace(job(kind, Bagging(rounds=1), min_silos=2), columns=columns)
    found = load(model(run(kind, Bagging(rounds=1), silos(kind, 120, 90, 60))))
    each = len(found.trees) // 3
    blocks = [(1, list(found.trees[k : k + each])) for k in range(0, len(found.trees), each)]
    rounds = [blocks[:2], blocks[2:]]

    def start(own: Dataset) -> SiloStart:
        return SiloStart(parameters, "job", 1, Silo("silo-0"), (Silo("silo-0"),), own.schema, own)

    whole = together(data)
    assert n_bounds(parameters) == (3 if weighs or kind.objective in UNBOUNDED else 1)
    bounds = largest(start(whole), found.slice(0), rounds)
    quantiser = quantiser_of(parameters, 3, bounds)

    def sums(own: Dataset) -> NDArray[np.int64]:
        return leaf_sums(start(own), found.slice(0), rounds, quantiser)

    order = np.random.default_rng(5).permutation(whole.n_samples)
    expected = sums(whole)
    assert expected.any()
    for parts in (np.array_split(order, 3), np.array_split(order, [7, 31])):
        assert (sum(sums(whole.take(np.sort(own))) for own in parts) == expected).all()


def test_a_row_beyond_the_bound_counts_as_the_bound() -> None:
    data = silos(REGRESSION, 120, 90, 60)
    found = load(model(run(REGRESSION, Bagging(rounds=1), data)))
    own = data["silo-0"]
    wild = replace(own, y=np.full(own.n_samples, 1e30))
    asked = job(REGRESSION, Bagging(rounds=1), min_silos=2)
    start = SiloStart(asked, "job", 1, Silo("silo-0"), (Silo("silo-0"),), own.schema, wild)
    quantiser = quantiser_of(asked, 3, (7, 2, 0))
    sums = leaf_sums(start, found.slice(0), [[(1, list(found.trees[:1]))]], quantiser)
    grad = quantiser.grad.decode(quantiser.grad.residues(sums))[: len(sums) // 2]
    assert grad.sum() == -4.0 * own.n_samples
