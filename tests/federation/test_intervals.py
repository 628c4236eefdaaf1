"""Intervals around predictions, by errors of rows held back in all silos."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hedgerow
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.bisection import Bisector, conformal_rank, count_below
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.errors import (
    InvalidJob,
    ModelRejected,
    OfferRejected,
    PlacePassed,
)
from hedgerow.boosting.exchange import ExchangeKey, Step
from hedgerow.boosting.intervals import PredictionInterval
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.artefact import check_interval
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.steps import RowCounts
from hedgerow.boosting.strategies.histogram.stored import Interval
from hedgerow.boosting.trees.ensemble import INTERVAL
from hedgerow.boosting.trees.loading import load
from hedgerow.coordinator.operator.report.overview import overview
from hedgerow.coordinator.operator.report.runs import read_runs
from hedgerow.coordinator.operator.run_folder import as_asked
from tests import oracles
from tests.federation.memory import Fault, MemoryLink, Outcome
from tests.federation.test_histogram import job_of, model_of, run, same, silos_of

SIZES = (700, 500, 400)
ROUNDS = 12
DATA = oracles.generated(Task.REGRESSION, 4 * sum(SIZES), seed=3)


def job(**parameters: Any) -> Any:
    told = Histogram(**{"rounds": ROUNDS, "interval": 0.9, "validation": 0.3} | parameters)
    made = job_of(told, Task.REGRESSION, Booster(max_depth=3, max_bin=32), min_silos=3)
    told.validate(made)
    return made


def rows(first: int, n: int) -> Dataset:
    return DATA.take(np.arange(first, first + n))


def told(outcome: Outcome) -> dict[str, Any] | None:
    text = model_of(outcome).attributes.get(INTERVAL)
    return None if text is None else json.loads(text)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("n", [0, 5, 40, 100, 200, 900, 20000])
def test_what_is_found_covers_the_rank_and_few_rows_more(n: int, share: float) -> None:
    """And its end is among the errors, not somewhere above the last of them."""
    errors = np.abs(np.random.default_rng(n).standard_t(3, n)).astype(np.float32)
    search = Bisector(1, 2, 1e-3, 10, covers=share)
    column, asked = SortedColumn.of(errors), 0
    while not search.done:
        asked += len(search.key)
        search.take(count_below([column], search.column, search.key))
    rank = conformal_rank(n, share)
    if rank > n - 10:
        assert search.covering == [np.inf]
        return
    inside = int((errors <= search.covering[0]).sum())
    assert rank <= inside <= rank + max(9, n / 1000)
    assert search.covering[0] <= errors.max()
    assert search.n_rows == [n]
    assert asked < 400


@pytest.mark.parametrize(
    "parameters", [{}, {"secure": False}, {"validation": 0.5, "interval": 0.7}]
)
def test_new_rows_are_inside_as_often_as_the_job_asks(parameters: dict[str, Any]) -> None:
    covered = []
    for k in range(3):
        outcome = run(job(**parameters), silos_of(rows(k * sum(SIZES), sum(SIZES)), SIZES))
        assert not outcome.errors
        found = told(outcome)
        assert found is not None
        asked = job(**parameters).parameters
        assert found["share"] == asked.interval
        assert abs(found["rows"] - asked.validation * sum(SIZES)) < 3
        others = rows(3 * sum(SIZES), sum(SIZES))
        margin = model_of(outcome).booster(n_threads=1)
        import xgboost as xgb

        types = others.schema.feature_types
        matrix = xgb.DMatrix(others.X, feature_types=types, enable_categorical=True)
        errors = np.abs(margin.predict(matrix, validate_features=False) - others.labels)
        covered.append((errors <= found["width"]).mean())
    assert found["share"] - 0.03 < np.mean(covered) < found["share"] + 0.05


def test_trees_are_those_of_a_job_without_and_sums_in_clear_find_the_same() -> None:
    silos = silos_of(rows(0, sum(SIZES)), SIZES)
    with_, bare, clear = (run(job(**more), silos) for more in ({}, {"interval": 0.0},
                                                               {"secure": False}))  # fmt: skip
    assert same(model_of(with_), model_of(bare))
    assert told(bare) is None
    assert told(with_) == told(clear) is not None


def test_too_few_rows_held_back_have_no_interval() -> None:
    outcome = run(job(interval=0.99, validation=0.1), silos_of(rows(0, 300), (120, 100, 80)))
    assert not outcome.errors
    assert told(outcome) is None


@pytest.mark.parametrize("passing", [0, 1, 3])
@pytest.mark.parametrize(("n_silos", "secure"), [(3, True), (4, True), (6, True), (3, False)])
def test_a_silo_lost_while_it_is_found_leaves_the_model(
    n_silos: int, secure: bool, passing: int
) -> None:
    """Without an interval, for counts without its rows would not grow; others keep the model."""
    silos = silos_of(rows(0, 300 * n_silos), (300,) * n_silos)
    step = "errors-single" if secure else "errors-plain"
    lost = Fault(f"silo-{n_silos - 1}", step, 1, passing=passing)
    outcome = run(job(rounds=2, secure=secure), silos, faults=(lost,))
    assert outcome.error is None
    assert told(outcome) is None
    assert same(model_of(outcome), model_of(run(job(rounds=2, interval=0.0), silos)))
    assert sorted(outcome.checks) == sorted(silos)[:-1]
    for check in outcome.checks.values():
        check(outcome.artefact.files)
        noted = {INTERVAL: json.dumps({"share": 0.9, "width": 0.001, "rows": 360})}
        with pytest.raises(ModelRejected, match="the result's interval"):
            check({"model.ubj": replace(model_of(outcome), attributes=noted).save()})


def test_made_up_counts_of_errors_are_refused_by_every_silo() -> None:
    class Told(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            reply = super().exchange(step, at, offer)
            if isinstance(reply, RowCounts) and step.name.startswith("errors-"):
                return RowCounts(reply.rows + (np.arange(len(reply.rows)) == len(reply.rows) - 1))
            return reply

    silos = silos_of(rows(0, sum(SIZES)), SIZES)
    outcome = run(job(rounds=2), silos, make_link=Told, lied=True)
    assert len(outcome.errors) == len(SIZES)
    for error in outcome.errors.values():
        assert isinstance(error, OfferRejected), error
        assert "do not fit the silos' word" in str(error)


def test_a_result_with_another_interval_is_no_result() -> None:
    silos = silos_of(rows(0, sum(SIZES)), SIZES)
    outcome = run(job(rounds=2), silos)
    assert outcome.artefact is not None
    model, found = outcome.artefact.files["model.ubj"], told(outcome)
    assert found is not None
    known = Interval(found["width"], found["rows"])
    check_interval(model, 0.9, known)
    narrow = replace(known, width=known.width / 2)
    bare = replace(load(model), attributes={}).save()
    for wrong, of in ((model, narrow), (model, Interval(np.inf, 5)), (bare, known)):
        with pytest.raises(ModelRejected, match="the result's interval"):
            check_interval(wrong, 0.9, of)


def test_who_has_missed_the_search_leaves_its_end_to_others() -> None:
    """Of a job without, a made-up one is refused; who missed the search leaves it to others."""

    class Missed(MemoryLink):
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            if self.silo == "silo-3" and step.name.startswith("errors-"):
                self.loop.call_soon_threadsafe(self.hub.drop, self.silo, "late")
                self.loop.call_soon_threadsafe(self.hub.join, self.silo)
                raise PlacePassed("the others went on")
            return super().exchange(step, at, offer)

    silos = silos_of(rows(0, 1200), (300, 300, 300, 300))
    asked = replace(job(rounds=2), max_close_sums=9)
    outcome = run(asked, silos, make_link=Missed)
    assert not outcome.errors
    assert told(outcome) is None
    assert sorted(outcome.checks) == ["silo-0", "silo-1", "silo-2"]
    bare = run(job(rounds=2, interval=0.0), silos)
    assert bare.artefact is not None
    noted = {INTERVAL: json.dumps({"share": 0.9, "width": 0.001, "rows": 360})}
    lie = replace(model_of(bare), attributes=noted).save()
    for check in bare.checks.values():
        with pytest.raises(ModelRejected, match="the result's interval"):
            check({**bare.artefact.files, "model.ubj": lie})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"validation": 0.0}, "expected 0 with validation = 0, since errors of rows"),
        ({"early_stopping_rounds": 3}, "with early_stopping_rounds, since errors are of the last"),
        ({"interval": 1.0}, "interval: expected 0.0 to 0.999, received 1"),
    ],
)
def test_intervals_that_there_cannot_be_are_refused(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        job(**parameters)


def test_classes_and_quantiles_have_none() -> None:
    told = Histogram(interval=0.9, validation=0.2)
    for task, booster in (
        (Task.BINARY, Booster()),
        (Task.REGRESSION, Booster(objective="reg:quantileerror", min_child_weight=10.0)),
    ):
        with pytest.raises(InvalidJob, match=r"\[histogram\] interval: expected 0 with"):
            told.validate(job_of(told, task, booster, min_silos=3))


@pytest.mark.parametrize("text", ["", "3", '{"share": 0.9}', '{"share":2,"width":1,"rows":1}'])
def test_what_is_no_interval_is_no_model_to_score_with(text: str) -> None:
    with pytest.raises(ModelRejected, match="the model's interval"):
        PredictionInterval.of({INTERVAL: text})


@pytest.mark.process
@pytest.mark.slow
def test_quantiles_are_widened_until_as_many_rows_are_inside() -> None:
    """Where the spread differs the interval is as wide as it needs be, unlike one around a mean."""

    def table(n: int, seed: int) -> pd.DataFrame:
        draws = np.random.default_rng(seed)
        a, b = draws.normal(size=(2, n))
        return pd.DataFrame({"a": a, "b": b, "cost": a + draws.normal(size=n) * np.exp(b)})

    given = {"strategy": "histogram", "label": "cost", "task": "regression", "min_silos": 3,
             "rounds": 25, "max_depth": 4, "min_child_weight": 10.0, "validation": 0.3,
             "interval": 0.9}  # fmt: skip
    for alphas in ([0.05, 0.5, 0.95], [0.3, 0.7], None):
        own = {"objective": "reg:quantileerror", "quantile_alpha": alphas} if alphas else {}
        run = hedgerow.simulate(
            hedgerow.Job(**given, **own), table(6000, 1), 3, crypto=False, test=0.0
        )
        others = table(4000, 2)
        low, high = run.model.predict_interval(others.drop(columns="cost")).T
        inside = (low <= others.cost) & (others.cost <= high)
        assert 0.87 < inside.mean() < 0.94
        calm = others.b < 0
        if alphas and len(alphas) == 3:
            assert (high - low)[calm].mean() < 0.6 * (high - low)[~calm].mean()
            assert inside[calm].mean() > 0.8
            assert inside[~calm].mean() > 0.8


@pytest.mark.process
def test_a_job_whose_interval_was_not_found_says_so(tmp_path: Path) -> None:
    for name in ("s0", "s1", "s2"):
        pd.DataFrame({"a": range(60), "cost": range(60)}).to_csv(tmp_path / f"{name}.csv")
    job = tmp_path / "job.toml"
    job.write_text(
        'strategy = "histogram"\ntask = "regression"\nlabel = "cost"\nmin_silos = 3\n'
        "[histogram]\nrounds = 2\nvalidation = 0.3\ninterval = 0.9\n"
    )
    silos = [part for k in range(3) for part in ("--silo", f"s{k}={tmp_path / f's{k}.csv'}")]
    why = "the job asked for an interval of 0.9, and there is none"

    def command(name: str, out: str, *options: object) -> str:
        words = [sys.executable, "-m", "hedgerow", name, *map(str, options)]
        words += ["--out", str(tmp_path / out)]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        return done.stdout

    assert f"warning: {why}" in command("local", "run", job, *silos)
    dealt = (job, "--data", tmp_path / "s0.csv", "--silos", 3, "--test", 0.0)
    assert f"warning: {why}" in command("simulate", "made", *dealt)
    assert "0 of 2 runs" in command("simulate", "swept", *dealt, "--seed", "1,2")
    assert "run (no interval)" in command("compare", "beside", tmp_path / "run")
    for call in (
        partial(hedgerow.local, job, dict(pair.split("=") for pair in silos[1::2])),
        partial(hedgerow.simulate, job, tmp_path / "s0.csv", 3, test=0.0),
    ):
        with pytest.raises(hedgerow.RunFailed, match=why) as failed:
            call()
        assert failed.value.run is not None
        assert failed.value.run.state == "SUCCEEDED"
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["state"] == "SUCCEEDED"
    assert report["interval"] is None
    assert report["lacks"] == ["interval"]
    assert as_asked(report | {"lacks": []})  # whatever the words of the warnings are
    shown = dict(overview(read_runs([tmp_path / "run"]))["rows"])
    assert [cell.text for cell in shown["interval"]] == ["none was found"]


@pytest.mark.process
def test_the_command_line_predicts_and_counts_intervals(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for name, n in (("s0", 300), ("s1", 300), ("s2", 300), ("test", 400)):
        a, b = draws.normal(size=(2, n))
        table = pd.DataFrame({"a": a, "b": b, "cost": a - b * b + draws.normal(size=n)})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "job.toml").write_text(
        'strategy = "histogram"\ntask = "regression"\nlabel = "cost"\nmin_silos = 3\n'
        "[histogram]\nrounds = 8\nvalidation = 0.3\ninterval = 0.8\n"
    )

    def command(*arguments: Any) -> str:
        run = [sys.executable, "-m", "hedgerow", *map(str, arguments)]
        done = subprocess.run(run, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    silos = [part for k in range(3) for part in ("--silo", f"s{k}={tmp_path / f's{k}.csv'}")]
    out, test = tmp_path / "run", tmp_path / "test.csv"
    own = ("--test", f"s0={test}")
    command("local", tmp_path / "job.toml", *silos, *own, "--out", out)
    command("predict", out, test, "--out", tmp_path / "p.csv")
    found, labels = pd.read_csv(tmp_path / "p.csv"), pd.read_csv(test).cost
    assert (found.upper - found.prediction).round(9).nunique() == 1
    inside = ((found.lower <= labels) & (labels <= found.upper)).mean()
    scored = json.loads(command("evaluate", out, test, "--json"))["metrics"]
    assert scored["coverage"] == pytest.approx(inside)
    assert 0.72 < inside < 0.9
    last = json.loads((out / "report.json").read_text())["rounds"][-1]["metrics"]
    assert last["test@s0"]["coverage"] == pytest.approx(inside, abs=1e-4)
    assert scored["interval"] == pytest.approx(float((found.upper - found.lower).mean()))
    model = hedgerow.load(out)
    stored = json.loads((out / "report.json").read_text())["interval"]
    assert stored["share"] == model.interval.share == 0.8
    assert stored["width"] == model.interval.width
    command("report", out, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"{stored['width']:.6g} on either side: 0.8 of {stored['rows']:,} rows held back" in page
    ends = model.predict_interval(pd.read_csv(test))
    np.testing.assert_allclose(ends, found[["lower", "upper"]])


@pytest.mark.process
def test_an_estimator_s_settings_may_ask_for_one() -> None:
    from hedgerow.sklearn import FederatedRegressor

    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 2))
    y = X[:, 0] + rng.normal(size=900)
    asked = {"histogram": {"validation": 0.3, "interval": 0.9}}
    found = FederatedRegressor(rounds=3, strategy="histogram", settings=asked).fit(X, y)
    assert found.model_.interval.share == 0.9
