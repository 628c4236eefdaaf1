"""Survival by accelerated failure times: XGBoost's trees over silos, from labels of two columns."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.failure_times import DISTRIBUTIONS
from hedgerow.boosting.job import Booster
from hedgerow.boosting.registry import NAMES
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.coordinator.cli import main
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
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
from tests.federation.test_weights import given

SIZES = (500, 0, 300, 200)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_histograms_over_silos_give_the_pooled_trees_and_xgboosts(distribution: str) -> None:
    data = oracles.generated(Task.SURVIVAL, sum(SIZES), seed=1, categories=(), weighted=True)
    cuts = oracles.xgboost_cuts(data, 32)
    strategy = given(np.split(cuts.values, cuts.offsets[1:-1])[j][:-1] for j in range(5))
    booster = Booster(
        max_depth=3,
        max_bin=32,
        aft_loss_distribution=distribution,
        aft_loss_distribution_scale=1.2,
    )
    job = job_of(strategy, Task.SURVIVAL, booster)
    outcome = run(job, silos_of(data, SIZES))
    model = model_of(outcome)
    assert opening_of(outcome, data).base_score == 0.5
    assert same(model, pooled_of(job, data, outcome, SIZES))
    theirs = oracles.xgboost_trees(data, booster, "survival:aft", 0.5, 2)
    assert oracles.first_difference(list(model.trees), theirs).what == ""


def test_a_silo_alone_bags_the_trees_that_xgboost_grows() -> None:
    data = oracles.generated(Task.SURVIVAL, 600, categories=())
    booster = Booster(
        max_depth=3, aft_loss_distribution="logistic", aft_loss_distribution_scale=0.7
    )
    strategy = Bagging(rounds=3, lr_mode="plain", scrub="none")
    model = model_of(run(job_of(strategy, Task.SURVIVAL, booster), {"only": data}))
    theirs = xgb.train(
        {**booster.native(), "objective": "survival:aft", "base_score": 0.5},
        xgb.DMatrix(data.X, label_lower_bound=data.y[:, 0], label_upper_bound=data.y[:, 1]),
        3,
    )
    assert len(model.trees) == 3
    rows = xgb.DMatrix(data.X)
    ours = model.booster(n_threads=1).predict(rows, validate_features=False)
    assert np.array_equal(ours, theirs.predict(rows))


@pytest.mark.parametrize("strategy", [Histogram(rounds=25), Bagging(rounds=25)])
def test_the_loss_of_rows_that_are_trained_on_falls_each_round(strategy: Any) -> None:
    data = oracles.generated(Task.SURVIVAL, 900)
    job = job_of(strategy, Task.SURVIVAL, Booster(max_depth=3, max_bin=32))
    outcome = run(job, silos_of(data, (400, 300, 200)))
    assert outcome.error is None
    losses = [one.metrics["train"]["aft-nloglik"] for one in outcome.rounds]
    assert len(losses) == 25
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("scale", [1.0, 0.4])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_metrics_are_xgboosts_and_add_up_over_silos(distribution: str, scale: float) -> None:
    data = oracles.generated(Task.SURVIVAL, 500, weighted=True)
    margin = np.random.default_rng(0).normal(size=500).astype(np.float32) * 2
    rows = oracles.quantile_matrix(data, 16)
    rows.set_base_margin(margin)
    names = ["aft-nloglik", "interval-regression-accuracy"]
    told = {
        "objective": "survival:aft", "eval_metric": names, "aft_loss_distribution": distribution,
        "aft_loss_distribution_scale": scale, "base_score": 0.5,
    }  # fmt: skip
    text = xgb.Booster(told, [rows]).eval(rows).split("\t")[1:]
    theirs = [float(part.split(":")[1]) for part in text]
    ours = [f"aft-nloglik@{distribution}:{scale}", "interval-regression-accuracy"]
    given: dict[str, Any] = {"objective": "survival:aft"}
    whole = metrics.evaluate(ours, data.labels, margin, weight=data.weight, **given)
    assert [*whole.values()] == pytest.approx(theirs, rel=1e-5)
    assert data.weight is not None
    parts = [
        metrics.sums(ours, data.labels[at], margin[at], weight=data.weight[at], **given)
        for at in (slice(0, 120), slice(120, 500))
    ]
    assert metrics.combine(ours, parts[0] + parts[1]) == pytest.approx(whole)


# --- from tables ---


def rows(n: int, seed: int) -> pd.DataFrame:
    """Return times that are seen until the study ends."""
    draws = np.random.default_rng(seed)
    a, b = draws.normal(size=(2, n))
    time = np.exp(1 + a - 0.5 * (b > 0) + 0.5 * draws.normal(size=n))
    end = np.exp(0.5 + draws.normal(size=n))
    return pd.DataFrame({"a": a, "b": b, "time": np.minimum(time, end), "died": time <= end})


def bounded(table: pd.DataFrame) -> pd.DataFrame:
    """Return the same with an upper bound, which is missing of rows that are censored."""
    upper = np.where(table.died, table.time, np.nan)
    return table.drop(columns="died").assign(label_latest=upper)


def asked(strategy: str, **more: Any) -> hedgerow.Job:
    told = {"label": "time", "task": "survival", "min_silos": 3, "rounds": 20, "max_depth": 3}
    return hedgerow.Job(strategy, **told | more)


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["histogram", "bagging"])
def test_both_forms_of_the_label_give_one_model_that_xgboost_reads(strategy: str) -> None:
    table, test = rows(1500, 1), rows(400, 2)
    loss = {"aft_loss_distribution": "logistic", "aft_loss_distribution_scale": 0.6}
    found = {}
    for key, form in (
        ({"event": "died"}, lambda one: one),
        ({"event": "died"}, lambda one: one.assign(died=one.died.astype(int))),
        ({"label_upper": "label_latest"}, bounded),
        ({"label_upper": "label_latest"}, lambda one: bounded(one).fillna(np.inf)),
    ):
        told = hedgerow.simulate(
            asked(strategy, **key, **loss), form(table), 3, crypto=False, test=0.0
        )
        assert told.model.features == ("a", "b")
        scores = told.model.evaluate(form(test))
        assert [*scores] == ["aft-nloglik@logistic:0.6", "interval-regression-accuracy"]
        assert told.model.evaluate(form(test), ["aft-nloglik"]) == {
            "aft-nloglik@logistic:0.6": scores["aft-nloglik@logistic:0.6"]
        }
        found[bytes(told.model.to_xgboost().save_raw())] = told, scores
    assert len(found) == 1
    ((told, scores),) = found.values()
    stock, own = told.model.to_xgboost(), told.model.predict(test)
    features = test[["a", "b"]]
    np.testing.assert_allclose(stock.predict(xgb.DMatrix(features)), own, rtol=1e-6)
    upper = np.where(test.died, test.time, np.inf)
    known = xgb.DMatrix(features, label_lower_bound=test.time, label_upper_bound=upper)
    stock.set_param(loss | {"eval_metric": "aft-nloglik"})  # XGBoost's metric reads no model
    line = stock.eval(known)
    assert float(line.split(":")[-1]) == pytest.approx(scores["aft-nloglik@logistic:0.6"], rel=1e-5)
    # Censored rows count as what they are: near pooled training, and far from taking them as seen.
    plain = {"objective": "survival:aft", "max_depth": 3, "eval_metric": "aft-nloglik", **loss}
    seen = np.where(table.died, table.time, np.inf)
    losses = []
    for latest in (seen, table.time):
        whole = xgb.DMatrix(
            table[["a", "b"]],
            label_lower_bound=table.time, label_upper_bound=latest,
        )  # fmt: skip
        pooled = xgb.train(plain, whole, 20)
        pooled.set_param(plain)
        losses.append(float(pooled.eval(known).split(":")[-1]))
    assert abs(scores["aft-nloglik@logistic:0.6"] - losses[0]) < 0.03
    assert losses[1] - losses[0] > 0.1
    assert told.model.score(bounded(test)) == scores["interval-regression-accuracy"]


@pytest.mark.process
def test_the_command_line_trains_scores_and_reports(tmp_path: Path) -> None:
    for k in range(3):
        rows(300, k).to_csv(tmp_path / f"s{k}.csv", index=False)
    rows(200, 9).to_csv(tmp_path / "test.csv", index=False)
    (tmp_path / "job.toml").write_text(
        'strategy = "histogram"\ntask = "survival"\nlabel = "time"\nmin_silos = 3\n'
        '[columns]\nevent = "died"\n[histogram]\nrounds = 4\n[booster]\nmax_depth = 3\n'
    )

    def command(*arguments: Any) -> str:
        run = [sys.executable, "-m", "hedgerow", *map(str, arguments)]
        done = subprocess.run(run, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    silos = [f"s{k}={tmp_path / f's{k}.csv'}" for k in range(3)]
    flags = [part for silo in silos for part in ("--silo", silo)]
    out = tmp_path / "run"
    plan = ("plan", tmp_path / "job.toml", *flags, "--reveals")
    assert "every silo sees the sums" in command(*plan)
    command("local", tmp_path / "job.toml", *flags, "--test", tmp_path / "test.csv", "--out", out)
    report = json.loads((out / "report.json").read_text())
    told = report["rounds"][-1]["metrics"]["test"]
    assert [*told] == ["aft-nloglik", "interval-regression-accuracy"]
    assert told["aft-nloglik"] < report["rounds"][0]["metrics"]["test"]["aft-nloglik"]
    (whole,) = json.loads((out / "evaluation.json").read_text())["sets"]
    assert (whole["task"], whole["groups"]) == ("survival", [])
    assert {one["feature"] for one in whole["shap"]} == {"a", "b"}
    scored = json.loads(command("evaluate", out, tmp_path / "test.csv", "--json"))
    assert scored["metrics"] == pytest.approx(told)
    command("predict", out, tmp_path / "test.csv", "--out", tmp_path / "p.csv")
    times = pd.read_csv(tmp_path / "p.csv")["prediction"]
    assert (times > 0).all()
    bare = rows(200, 9)[["a", "b"]]
    bare.to_csv(tmp_path / "bare.csv", index=False)
    command("predict", out, tmp_path / "bare.csv", "--out", tmp_path / "q.csv")
    assert pd.read_csv(tmp_path / "q.csv")["prediction"].tolist() == times.tolist()
    command("report", out)
    test = str(tmp_path / "test.csv")
    audit = CliRunner().invoke(main, ["audit", str(out), *flags, "--test", test])
    assert audit.exit_code != 0
    assert "expected a run of classes or numbers, received one of survival" in audit.output
    drift = json.loads(command("drift", out, test, "--beside", tmp_path / "s0.csv", "--json"))
    assert "time" in json.dumps(drift)
    assert "died" not in json.dumps(drift)
    missing = CliRunner().invoke(main, ["evaluate", str(out), str(tmp_path / "bare.csv")])
    assert missing.exit_code != 0
    assert "time" in missing.output


def test_rows_that_are_taken_away_leave_both_bounds_with_their_features() -> None:
    table = rows(40, 3).assign(time=lambda t: t.time.where(t.index % 3 > 0))
    job = asked("histogram", event="died", missing_label="drop").parameters
    from hedgerow.boosting.tables import for_job
    from hedgerow.coordinator.operator.library.frames import arrow_of

    found = for_job(arrow_of(table, "t"), job, "t")
    kept = table[table.index % 3 > 0]
    assert (found.n_samples, found.unlabelled) == (len(kept), 40 - len(kept))
    assert found.labels[:, 0].tolist() == kept.time.tolist()
    assert found.labels[:, 1].tolist() == np.where(kept.died, kept.time, np.inf).tolist()
    assert np.array_equal(found.X[:, 0], kept.a.to_numpy(np.float32))
    assert found.schema.names == ("a", "b")
    assert sorted(found.sources) == ["a", "b", "died"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"died": 2}, r"column 'died': some values are missing, or neither 0 \(not seen\) nor 1"),
        ({"died": None}, r"column 'died': some values are missing"),
        ({"died": "yes"}, "column 'died': expected numbers, received type"),
        ({"time": -1.0}, "label column 'time': some times are negative"),
        ({"time": 0.0, "died": 1}, "label column 'time': .*events are at time 0"),
        ({"time": 1e39}, "some times are beyond float32"),
        ({"time": None}, "some labels are missing; rows without one"),
        ({"time": float("inf")}, "some labels are infinite"),
    ],
)
def test_labels_that_are_no_times_are_refused_without_a_value(
    change: dict[str, Any], said: str
) -> None:
    from hedgerow.boosting.tables import for_job
    from hedgerow.coordinator.operator.library.frames import arrow_of

    table = rows(5, 0).assign(**{key: [value] * 5 for key, value in change.items()})
    with pytest.raises(DataError, match=said):
        for_job(arrow_of(table, "t.csv"), asked("bagging", event="died").parameters, "t.csv")


def test_a_bound_below_the_label_or_no_such_column_is_refused() -> None:
    from hedgerow.boosting.tables import for_job
    from hedgerow.coordinator.operator.library.frames import arrow_of

    job = asked("bagging", label_upper="label_latest").parameters
    wrong = bounded(rows(5, 0)).assign(label_latest=1e-9)
    with pytest.raises(DataError, match="'label_latest': some upper bounds are below"):
        for_job(arrow_of(wrong, "t.csv"), job, "t.csv")
    with pytest.raises(DataError, match="no column of the label's upper bound 'label_latest'"):
        for_job(arrow_of(rows(5, 0), "t.csv"), job, "t.csv")


TEXT = 'strategy = "{strategy}"\ntask = "survival"\nmin_silos = 3\n[columns]\nevent = "died"\n'


@pytest.mark.parametrize("strategy", sorted(set(NAMES) - {"bagging", "histogram"}))
def test_other_strategies_refuse_it_by_name(strategy: str) -> None:
    needed = {"dp_tree": "[dp_tree]\nepsilon = 1.0", "secureboost": '[secureboost]\nactive = "a"',
              "private_boost": "[private_boost]\nepsilon = 1.0\ndelta = 1e-6"}  # fmt: skip
    text = TEXT.format(strategy=strategy) + needed.get(strategy, "")
    with pytest.raises(InvalidJob, match=f"task: {strategy} has no loss of times .* bagging for"):
        job_wire.decode(job_file.parse(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('task = "survival"', r"\[columns\] label_upper, event: survival needs one of them"),
        (
            'task = "survival"\n[columns]\nevent = "e"\nlabel_upper = "u"',
            "survival needs one of them, and not both",
        ),
        ('[columns]\nevent = "e"', r'\[columns\] event: expected a job with task = "survival"'),
        (
            'task = "regression"\n[columns]\nlabel_upper = "u"',
            r'\[columns\] label_upper: expected a job with task = "survival"',
        ),
        (
            'task = "survival"\n[columns]\nevent = "label"',
            r"\[columns\] event: 'label' is the label, too",
        ),
        (
            'task = "survival"\nfeatures = ["a", "e"]\n[columns]\nevent = "e"',
            r"\[columns\] event: 'e' is among the job's features",
        ),
        (
            'task = "survival"\n[columns]\nevent = "e"\ndrop = ["e"]',
            r"\[columns\] event: 'e' is in \[columns\] drop already",
        ),
        (
            'task = "survival"\n[columns]\nevent = "e"\nclass_weight = {a = 2}',
            "class_weight: expected a job with classes, not a survival",
        ),
        (
            'task = "regression"\n[booster]\nobjective = "survival:aft"',
            'task: expected "survival" with survival:aft, received "regression"',
        ),
    ],
)
def test_jobs_that_contradict_themselves_are_refused(text: str, said: str) -> None:
    for strategy in ("histogram", "bagging"):
        with pytest.raises(InvalidJob, match=said):
            job_wire.decode(job_file.parse(f'strategy = "{strategy}"\n{text}'))


@pytest.mark.parametrize("strategy", ["histogram", "bagging"])
def test_other_objectives_metrics_and_starts_are_refused(strategy: str) -> None:
    for more, said in (
        ({"objective": "survival:weibull"}, "objective: expected one of .*received 'survival:weib"),
        ({"objective": "reg:gamma"}, "objective"),
        ({"metrics": ["rmse"]}, "'rmse' does not suit a survival job; choose from aft-nloglik"),
        ({"metrics": ["aft-nloglik@weibull"]}, "expected one of normal, logistic, extreme, a"),
        ({"base_score": 0.0}, "base_score: expected a float32 above 0"),
        ({"aft_loss_distribution": "weibull"}, "aft_loss_distribution: expected one of normal"),
        ({"aft_loss_distribution_scale": 0.0}, "aft_loss_distribution_scale: expected 0.001 to"),
    ):
        with pytest.raises(InvalidJob, match=said):
            asked(strategy, event="died", **more)
    with pytest.raises(InvalidJob, match="aft_loss_distribution: it would have no effect"):
        hedgerow.Job(strategy, task="regression", aft_loss_distribution="logistic")


@pytest.mark.parametrize("strategy", ["histogram", "bagging"])
def test_a_policy_is_told_how_few_rows_a_leaf_is_of(strategy: str) -> None:
    """A row adds at most 15 to a leaf's hessians, where XGBoost clips them."""
    for least, rows_ in ((1.0, 1), (15.0, 1), (16.0, 2), (150.0, 10)):
        job = asked(strategy, event="died", min_child_weight=least).parameters
        assert job.parameters.safeguards(job).leaf_rows == rows_


def test_metrics_of_a_job_name_its_distribution() -> None:
    assert asked("bagging", event="died").parameters.metrics == (
        "aft-nloglik", "interval-regression-accuracy",
    )  # fmt: skip
    told = {"event": "died", "aft_loss_distribution": "extreme"}
    assert asked("bagging", **told, metrics=["aft_nloglik"]).parameters.metrics == (
        "aft-nloglik@extreme:1",
    )
    again = asked("bagging", **told, metrics=["aft-nloglik@normal:2"]).parameters
    assert replace(again).metrics == ("aft-nloglik@normal:2",)
