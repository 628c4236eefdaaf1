"""Rows that count differently: weights of rows and of classes, over silos as in one table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task, stacked, weighed
from hedgerow.boosting.engine.start import weight_exponent
from hedgerow.boosting.job import Booster, ColumnRules
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.fedga.local_trees import LocalTrees
from hedgerow.boosting.strategies.fedga.parameters import FedGA
from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.genetics import random_structures
from hedgerow.boosting.trees.local import matrix
from tests import oracles
from tests.federation.histograms import (
    job_of,
    model_of,
    opening_of,
    pooled_of,
    run,
    same,
    silos_of,
)

SIZES = (500, 0, 300, 200)
OBJECTIVES = {
    Task.BINARY: "binary:logistic",
    Task.MULTICLASS: "multi:softprob",
    Task.REGRESSION: "reg:squarederror",
}
SMALL = Booster(max_depth=3, max_bin=32)


def given(cuts: Iterable[Any]) -> Histogram:
    """Return a job with these cut points of the numeric features."""
    told = tuple(f"n{j}: {' '.join(map(repr, own.tolist()))}" for j, own in enumerate(cuts))
    return Histogram(rounds=2, binning="given", cut_points=told)


def margins_of(model: Ensemble, data: Dataset) -> Any:
    return model.margins(matrix(data, 1), n_threads=1)


@pytest.mark.parametrize("task", OBJECTIVES)
def test_histograms_of_weighted_rows_give_the_pooled_trees_and_xgboosts(task: Task) -> None:
    data = oracles.generated(task, sum(SIZES), weighted=True)
    cuts = oracles.xgboost_cuts(data, 32)
    strategy = given(np.split(cuts.values, cuts.offsets[1:-1])[j][:-1] for j in range(5))
    booster = replace(SMALL, min_child_weight=4.0)
    job = job_of(strategy, task, booster)
    outcome = run(job, silos_of(data, SIZES))
    model, opening = model_of(outcome), opening_of(outcome, data)
    assert same(model, pooled_of(job, data, outcome, SIZES))
    assert opening.weight_exponent == weight_exponent(data.n_samples, data.weight) == 2
    theirs = oracles.xgboost_trees(data, booster, OBJECTIVES[task], opening.base_score, 2)
    assert oracles.first_difference(list(model.trees), theirs).what == ""


def coarse(task: Task) -> Dataset:
    """Return rows of few values, so that their quantiles are the values themselves."""
    data = oracles.generated(task, sum(SIZES))
    return replace(data, features=np.round(data.X.clip(-2, 11)))


def repeated(task: Task) -> tuple[dict[str, Dataset], dict[str, Dataset]]:
    """Return silos whose rows count 0 to 3, and silos that have each so many times."""
    data = coarse(task)
    times = np.random.default_rng(5).integers(0, 4, data.n_samples)
    heavy = replace(data, weight=times.astype(np.float64))
    many = data.take(np.repeat(np.arange(data.n_samples), times))
    ends = np.cumsum((0, *SIZES))
    sizes = tuple(int(times[first:last].sum()) for first, last in itertools.pairwise(ends))
    return silos_of(heavy, SIZES), silos_of(many, sizes)


STRATEGIES = {
    "histogram": given(np.arange(-1.5, 4) for _ in range(5)),
    "bagging": Bagging(rounds=2, lr_mode="uniform", evaluate="silos"),
    "fedxgbllr": FedXGBllr(trees=8, combiner="leaves", rounds=3),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("task", OBJECTIVES)
def test_a_row_of_weight_three_is_that_row_three_times(name: str, task: Task) -> None:
    heavy, many = repeated(task)
    job = job_of(STRATEGIES[name], task, SMALL)
    one, other = run(job, heavy), run(job, many)
    found = [margins_of(model_of(each), coarse(task)) for each in (one, other)]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
    told = one.rounds[-1].metrics.get("train", {}), other.rounds[-1].metrics.get("train", {})
    assert told[0] == pytest.approx(told[1], rel=1e-4)
    assert bool(told[0]) == (name != "fedxgbllr")


@pytest.mark.parametrize("task", OBJECTIVES)
def test_structures_are_scored_by_the_rows_weights(task: Task) -> None:
    heavy, many = (next(iter(silos.values())) for silos in repeated(task))
    structures = random_structures(np.random.default_rng(1), 12, 3, heavy.schema.n_features, 0.2)
    scores = [
        LocalTrees(data, FedGA(), lambda _: np.random.default_rng(0)).scores(structures)
        for data in (heavy, many)
    ]
    np.testing.assert_allclose(*scores, rtol=1e-6)


def test_a_class_of_weight_five_halves_is_scale_pos_weight() -> None:
    booster = replace(SMALL, base_score=0.5)
    silos = silos_of(oracles.generated(Task.BINARY, sum(SIZES)), SIZES)
    strategy = given(np.arange(-1.5, 4) for _ in range(5))
    heavy = {name: weighed(own, (("1", 2.5),)) for name, own in silos.items()}
    told = ColumnRules(class_weight=(("1", 2.5),))
    ours = run(job_of(strategy, Task.BINARY, booster, columns=told), heavy)
    scaled = replace(booster, scale_pos_weight=2.5)
    theirs = run(job_of(strategy, Task.BINARY, scaled), silos)
    assert same(model_of(ours), model_of(theirs))


def test_rows_held_back_count_their_weights_though_no_row_trained_on_is_as_heavy() -> None:
    strategy = Histogram(rounds=1, binning="summary", validation=0.25)
    job = job_of(
        strategy, Task.BINARY, Booster(max_depth=2, max_bin=16), metrics=("error", "logloss")
    )
    silos, held = silos_of(oracles.generated(Task.BINARY, 600), (300, 200, 100)), []
    for number, (name, data) in enumerate(silos.items()):
        rng = generator(job.seed, number, 0, Purpose.VALIDATION)
        rows = np.sort(rng.permutation(data.n_samples)[: data.n_samples // 4])
        weight = np.ones(data.n_samples)
        weight[rows] = rng.uniform(1, 60, len(rows))
        silos[name] = replace(data, weight=weight)
        held.append(silos[name].take(rows))
    found = run(job, silos)
    rows = stacked(held, held[0].schema)
    expected = metrics.evaluate(
        ("error", "logloss"),
        rows.labels,
        margins_of(model_of(found), rows),
        objective="binary:logistic",
        weight=rows.weight,
    )
    assert found.rounds[0].metrics["valid"] == pytest.approx(expected, rel=1e-6)
