"""Scores of histogram jobs: what stops a job early, which round is the best, whose rows count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xgboost as xgb

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.admission import Membership
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import RowsScored
from tests import oracles
from tests.federation.histograms import DATA, job_of, model_of, plain_job, run, silos_of
from tests.federation.memory import Outcome


def stock_scores(outcome: Outcome, data: Dataset, names: tuple[str, ...]) -> dict[str, float]:
    """Return what the model scores by stock XGBoost's margins."""
    assert outcome.artefact is not None
    stock = xgb.Booster(model_file=bytearray(outcome.artefact.files["model.ubj"]))
    rows = xgb.DMatrix(data.X, feature_types=data.schema.feature_types, enable_categorical=True)
    margins = stock.predict(rows, output_margin=True, validate_features=False)
    return metrics.evaluate(
        names, data.labels, margins, objective="binary:logistic", weight=data.weight
    )


def test_validation_rows_choose_the_best_round_and_stop_the_job() -> None:
    booster = Booster(max_depth=6, max_bin=16, eta=1.0, min_child_weight=0.0)
    strategy = Histogram(rounds=40, binning="summary", validation=0.3, early_stopping_rounds=3)
    job = job_of(strategy, Task.BINARY, booster, metrics=("logloss",))
    outcome = run(job, silos_of(DATA, (500, 400, 300, 300)))
    assert outcome.error is None
    assert not outcome.errors
    scores = [result.metrics["valid"]["logloss"] for result in outcome.rounds]
    last = outcome.rounds[-1]
    assert last.final
    assert last.best_round == int(np.argmin(scores))
    assert len(scores) == last.best_round + 4
    kept = model_of(outcome).trees
    assert len(kept) == last.best_round + 1, "importance counts the best round's trees only"


def test_validation_rows_alone_choose_no_round() -> None:
    booster = Booster(max_depth=6, max_bin=16, eta=1.0, min_child_weight=0.0)
    strategy = Histogram(rounds=8, binning="summary", validation=0.3)
    job = job_of(strategy, Task.BINARY, booster, metrics=("logloss",))
    outcome = run(job, silos_of(DATA, (500, 400, 300)))
    scores = [result.metrics["valid"]["logloss"] for result in outcome.rounds]
    assert int(np.argmin(scores)) < 7
    assert outcome.rounds[-1].best_round == 7 == len(model_of(outcome).trees) - 1


def test_validation_tables_score_rounds_beside_the_training_rows() -> None:
    strategy = Histogram(
        rounds=40, binning="summary", validation_tables=True, early_stopping_rounds=3
    )
    booster = Booster(max_depth=6, max_bin=16, eta=1.0, min_child_weight=0.0)
    job = job_of(strategy, Task.BINARY, booster, metrics=("logloss", "auc"))
    more = DATA.take(np.arange(1200, 1500))
    rows = silos_of(more, (150, 100, 50))
    outcome = run(job, silos_of(DATA, (500, 400, 300)), validation=rows)
    assert outcome.error is None
    assert not outcome.errors
    scores = [result.metrics["valid"]["logloss"] for result in outcome.rounds]
    last = outcome.rounds[-1]
    assert last.best_round == int(np.argmin(scores)) == len(scores) - 4
    assert len(model_of(outcome).trees) == last.best_round + 1
    best = outcome.rounds[last.best_round].metrics
    for name, data in (("valid", more), ("train", DATA.take(np.arange(1200)))):
        expected = stock_scores(outcome, data, job.metrics)
        assert best[name]["logloss"] == pytest.approx(expected["logloss"], abs=2e-6)
        assert best[name]["auc"] == pytest.approx(expected["auc"], abs=2e-3)  # of scores in bins


def test_weights_of_validation_rows_count_whole_beside_lighter_training_rows() -> None:
    more = DATA.take(np.arange(1200, 1500))
    more = replace(more, weight=np.where(np.arange(300) % 3, 1.0, 20.0))
    strategy = Histogram(rounds=2, binning="summary", validation_tables=True)
    job = job_of(strategy, Task.BINARY, Booster(max_depth=3, max_bin=16), metrics=("f1",))
    job = replace(job, columns=replace(job.columns, weight="w"))
    light = replace(DATA, weight=np.ones(DATA.n_samples))
    outcome = run(job, silos_of(light, (500, 400, 300)), validation=silos_of(more, (150, 100, 50)))
    expected = stock_scores(outcome, more, job.metrics)
    assert outcome.rounds[-1].metrics["valid"] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        (Histogram(2, validation_tables=True), RowsScored.TRAIN),
        (Histogram(2, validation=0.2), RowsScored.BOTH),
        (Histogram(2), RowsScored.VALID),
    ],
)
def test_silos_score_no_other_rows_than_the_job_says(
    strategy: Histogram, told: RowsScored, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_in = Membership.let_in
    monkeypatch.setattr(
        Membership, "let_in", lambda self, known, scored, state: let_in(self, known, told, state)
    )
    silos = silos_of(DATA, (500, 400, 300))
    job = job_of(strategy, Task.BINARY, Booster(max_depth=2, max_bin=16))
    outcome = run(job, silos, validation=silos)
    assert len(outcome.errors) == len(silos)
    for error in outcome.errors.values():
        assert f"by the job, received {told.value} of the coordinator" in str(error)


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"validation": 0.1}, "expected 0"), ({"blind_coordinator": True}, "learns no scores")],
)
def test_validation_tables_do_not_go_with(changes: dict, why: str) -> None:
    job = job_of(Histogram(rounds=2, validation_tables=True, **changes), Task.BINARY, Booster())
    with pytest.raises(InvalidJob, match=why):
        job.parameters.validate(job)


@pytest.mark.parametrize(("share", "scored"), [(0.3, "valid"), (0.0, "train")])
@pytest.mark.parametrize("tested", [False, True])
def test_a_score_that_is_hardly_better_does_not_count(
    share: float, scored: str, tested: bool
) -> None:
    stops = {"validation": share, "early_stopping_rounds": 3}
    strategy = Histogram(rounds=60, binning="summary", tol=0.02, **stops)  # type: ignore[arg-type]
    job = job_of(strategy, Task.BINARY, Booster(max_depth=2, max_bin=16), metrics=("logloss",))
    outcome = run(job, silos_of(DATA, (500, 400, 300, 300)), test=DATA if tested else None)
    assert outcome.error is None
    assert not outcome.errors
    assert set(outcome.rounds[0].metrics) == {scored, *(["test"] * tested)}
    best, at = np.inf, 0
    scores = [result.metrics[scored]["logloss"] for result in outcome.rounds]
    for r, score in enumerate(scores):
        best, at = (score, r) if score < best - 0.02 else (best, at)
    assert at == outcome.rounds[-1].best_round == len(scores) - 4
    assert min(scores) < best, "a later round is better, by less than tol"
    assert len(model_of(outcome).trees) == at + 1


def test_without_a_defined_score_a_job_that_stops_early_keeps_all_rounds() -> None:
    strategy = Histogram(rounds=3, binning="summary", validation=0.01, early_stopping_rounds=2)
    job = job_of(strategy, Task.BINARY, Booster(max_depth=2, max_bin=16), metrics=("auc",))
    outcome = run(job, silos_of(DATA, (20, 20, 20)))  # no silo holds a row back
    assert outcome.error is None
    assert all(np.isnan(result.metrics["valid"]["auc"]) for result in outcome.rounds)
    assert [result.best_round for result in outcome.rounds] == [0, 1, 2]
    assert len(model_of(outcome).trees) == 3


def test_test_rows_of_the_coordinator_are_scored_as_stock_xgboost_scores_them() -> None:
    test = oracles.generated(Task.BINARY, 600, seed=5)
    outcome = run(plain_job(), silos_of(DATA, (500, 500, 500)), test=test)
    expected = stock_scores(outcome, test, ("auc", "logloss"))
    assert outcome.rounds[-1].metrics["test"] == pytest.approx(expected)


def test_training_rows_are_scored_by_a_sum_where_nobody_else_has_any() -> None:
    outcome = run(plain_job(), silos_of(DATA, (500, 500, 500)))
    losses = [result.metrics["train"]["logloss"] for result in outcome.rounds]
    assert losses == sorted(losses, reverse=True)
