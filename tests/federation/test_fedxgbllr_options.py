"""FedXGBllr's options: validation rows, the paper's own, fewer bytes, secure sums."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.metrics import higher_is_better
from hedgerow.boosting.strategies.fedxgbllr.agreement import validation_metrics
from hedgerow.boosting.strategies.fedxgbllr.parameters import PAPER_BOOSTERS
from tests.federation.memory import run_in_memory
from tests.federation.stacking import (
    CASES,
    job,
    margins_of,
    record_of,
    secure_run,
    silos,
    small,
    table,
    traffic,
)


@pytest.mark.parametrize(("task", "combiner"), [c for c in CASES if c[1] != "mean"])
def test_the_best_round_on_validation_rows_is_the_result(task, combiner):
    outcome = run_in_memory(
        job(task, small(combiner=combiner, validation=0.3, rounds=4)),
        silos(task, 3, n=200),
        through_wire=True,
    )
    assert outcome.error is None
    first = validation_metrics(job(task, small()))[0]
    record = record_of(job(task, small(combiner=combiner, validation=0.3, rounds=4)), outcome)
    scores = [r.metrics["valid"][first] for r in outcome.rounds[1:]]
    pick = max if higher_is_better(first) else min
    best = outcome.rounds[-1].best_round
    if best:
        assert record.best_score == pick(scores) == scores[best - 1]
    else:
        assert record.best_score == pick(record.best_score, *scores)
    names = validation_metrics(job(task, small()))
    assert set(outcome.rounds[-1].metrics["valid"]) == set(names)


@pytest.mark.parametrize("combiner", ["cnn", "conv3", "dense"])
@pytest.mark.parametrize("secure", [False, True])
def test_a_network_that_only_gets_worse_is_not_shipped(combiner, secure):
    """By default, that is with held-out rows; the mean of the same ensembles is the result."""
    given = {"combiner": combiner, "validation": None, "learning_rate": 50.0, "secure": secure}
    data, task = silos(Task.REGRESSION, 3, n=200), Task.REGRESSION
    test = table(task, 300, 91)
    run = secure_run if secure else run_in_memory
    outcome = run(job(task, small(**given), min_silos=3), data, test=test, through_wire=True)
    assert outcome.error is None
    assert outcome.rounds[-1].best_round == 0
    shipped = metrics.evaluate(
        ("rmse",), test.labels, margins_of(outcome, test.X), objective="reg:squarederror"
    )
    assert shipped["rmse"] == pytest.approx(outcome.rounds[0].metrics["test"]["rmse"], rel=1e-6)


def test_early_stopping_ends_after_the_rounds_without_progress():
    outcome = run_in_memory(
        job(
            Task.REGRESSION,
            small(
                rounds=60,
                epochs=30,
                validation=0.3,
                early_stopping_rounds=2,
                learning_rate=0.02,
                channels=16,
            ),
        ),
        silos(Task.REGRESSION, 2, n=80),
    )
    last = outcome.rounds[-1]
    assert last.final
    assert last.round < 60
    assert last.round == last.best_round + 2


def test_penalties_are_chosen_on_validation_rows():
    task = job(Task.REGRESSION, small(combiner="ridge", validation=0.3))
    data = silos(Task.REGRESSION, 2, n=200)
    outcome = run_in_memory(task, data, through_wire=True)
    record = record_of(task, outcome)
    each = [
        run_in_memory(
            job(Task.REGRESSION, small(combiner="ridge", validation=0.3, penalty=p)), data
        )
        for p in (1.0, 10.0, 100.0, 1000.0)
    ]
    scores = [o.rounds[-1].metrics["valid"]["rmse"] for o in each]
    assert record.choice == int(np.argmin(scores))
    assert outcome.rounds[-1].metrics["valid"]["rmse"] == pytest.approx(min(scores))


@pytest.mark.parametrize("paper", PAPER_BOOSTERS)
def test_a_published_job_is_one_of_its_booster_and_last_round_from_a_random_start(paper):
    data, blank = silos(Task.REGRESSION, 2), Booster()
    task = job(Task.REGRESSION, small(paper=paper, validation=None, epochs=10), booster=blank)
    like = small(epochs=100, validation=0.0)
    by_hand = job(Task.REGRESSION, like, booster=Booster(**PAPER_BOOSTERS[paper]))
    task.parameters.validate(task)
    found, other = (run_in_memory(each, data, through_wire=True) for each in (task, by_hand))
    ours, theirs = record_of(task, found), record_of(by_hand, other)
    for silo, upload in ours.uploads.items():
        np.testing.assert_array_equal(upload.trees, theirs.uploads[silo].trees)
    assert ours.best_round == ours.round - 1 == task.parameters.rounds
    head = ours.combiner.head
    start = head.arrays(ours.combiner.initial().solution)
    assert np.ptp(start["outer.weight"]) > 1.5 * np.sqrt(6 / start["outer.weight"].shape[1])
    assert not np.array_equal(ours.state.solution, theirs.state.solution)


@pytest.mark.parametrize(
    "smaller",
    [{"weight_bits": 8}, {"weight_bits": 4}, {"leaf_bits": 16}],
    ids=str,
)
def test_options_that_shrink_messages_keep_the_result_close(smaller):
    task, data = Task.REGRESSION, silos(Task.REGRESSION, 3, n=400)
    test = table(task, 500, 95)
    rest = {"metrics": ("mse",), "booster": Booster(eta=0.3, max_depth=6)}
    exact, bytes_exact = traffic(job(task, small(trees=45), **rest), data, test=test)
    small_one, bytes_small = traffic(job(task, small(trees=45, **smaller), **rest), data, test=test)
    assert small_one.error is None
    assert bytes_small < bytes_exact
    score, other = (o.rounds[-1].metrics["test"]["mse"] for o in (exact, small_one))
    assert other < 1.15 * score


def test_with_shared_cuts_every_threshold_is_a_cut_that_all_silos_know():
    task, data = Task.REGRESSION, silos(Task.REGRESSION, 3, n=200)
    with_cuts, without = (
        job(task, small(combiner="mean", **given)) for given in ({"shared_cuts": 8}, {})
    )
    record = record_of(with_cuts, run_in_memory(with_cuts, data, through_wire=True))
    plain = record_of(without, run_in_memory(without, data))
    assert record.terms.cuts is not None
    sizes = [sum(u.trees.nbytes for u in r.uploads.values()) for r in (record, plain)]
    assert sizes[0] < sizes[1]
    for tree in (tree for trees in record.trees for tree in trees):
        numeric = ~tree.is_leaf
        numeric[[node for node, _ in tree.categories]] = False
        for node in np.flatnonzero(numeric):
            assert tree.threshold[node] in record.terms.cuts[tree.feature[node]]


@pytest.mark.parametrize(
    ("task", "combiner"),
    [
        (Task.BINARY, "cnn"),
        (Task.REGRESSION, "ridge"),
        (Task.REGRESSION, "leaves"),
        (Task.MULTICLASS, "logit_ridge"),
    ],
)
def test_secure_sums_give_the_result_of_plain_sums(task, combiner):
    data = silos(task, 4)
    given = {"combiner": combiner, "validation": 0.2, "rounds": 2}
    plain = run_in_memory(job(task, small(**given), min_silos=3), data)
    secure = secure_run(
        job(task, small(**given, secure=True), min_silos=3), data, through_wire=True
    )
    assert secure.error is None
    assert not secure.errors
    X = data["s00"].X
    np.testing.assert_allclose(margins_of(secure, X), margins_of(plain, X), atol=2e-3)
