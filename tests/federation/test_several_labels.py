"""Rows with several labels: one model, an output each, over silos as in one table."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xgboost as xgb
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task, merge
from hedgerow.boosting.errors import InvalidJob, LabelUnfit, OfferRejected, SchemaMismatch
from hedgerow.boosting.job import Booster, ColumnRules
from hedgerow.boosting.rounds import base_score
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.tables import for_job
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.local import matrix
from hedgerow.coordinator.cli import main
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests import oracles
from tests.federation import test_warm_start as warm
from tests.federation.histograms import (
    job_of,
    model_of,
    opening_of,
    pooled_of,
    run,
    same,
    silos_of,
)

SIZES = (300, 0, 200, 100)
SMALL = Booster(max_depth=3, max_bin=32)
MORE = ("label_1", "label_2")


def rows_of(task: Task) -> Dataset:
    return oracles.several(oracles.generated(task, sum(SIZES), weighted=True))


def job(strategy: Any, task: Task, booster: Booster = SMALL) -> Any:
    name = "logloss" if task is Task.BINARY else "rmse"
    return job_of(strategy, task, booster, columns=ColumnRules(more_labels=MORE), metrics=(name,))


@pytest.mark.parametrize(
    ("task", "strategy"),
    [
        (Task.REGRESSION, Histogram(rounds=2)),
        (Task.BINARY, Histogram(rounds=2)),
        (Task.REGRESSION, Histogram(rounds=2, multi_output=True)),
        (Task.REGRESSION, Histogram(rounds=2, coarse_bits=5)),
    ],
)
def test_histograms_give_the_pooled_trees_and_scores(task: Task, strategy: Histogram) -> None:
    data, asked = rows_of(task), job(strategy, task)
    outcome = run(asked, silos_of(data, SIZES))
    model = model_of(outcome)
    assert same(model, pooled_of(asked, data, outcome, SIZES))
    assert [tree.group for tree in model.trees] == [0, 1, 2] * 2
    means = np.average(data.labels, axis=0, weights=data.weight)
    np.testing.assert_allclose(model.about.base_score, means, rtol=1e-5)
    np.testing.assert_allclose(opening_of(outcome, data).base_score, means, rtol=1e-5)
    (name,) = asked.metrics
    margins = model.margins(matrix(data, 1)).astype(np.float64)
    pooled = metrics.evaluate([name], data.labels, margins, objective=asked.objective,
                              weight=data.weight)  # fmt: skip
    assert outcome.rounds[-1].metrics["train"][name] == pytest.approx(pooled[name], rel=1e-5)


def test_a_blind_coordinators_silos_have_the_pooled_trees() -> None:
    data = rows_of(Task.REGRESSION)
    seen = job(Histogram(rounds=2), Task.REGRESSION)
    blind = job(Histogram(rounds=2, blind_coordinator=True), Task.REGRESSION)
    expected = model_of(run(seen, silos_of(data, SIZES)))
    kept = run(blind, silos_of(data, SIZES)).kept
    models = [load(own.files["model.ubj"]) for own in kept.values() if own]
    assert models
    assert all(same(own, expected) for own in models)


def test_bagging_of_one_silo_is_xgboost() -> None:
    data = rows_of(Task.REGRESSION)
    asked = job(Bagging(rounds=3, scrub="none"), Task.REGRESSION, replace(SMALL, base_score=0.5))
    model = model_of(run(asked, {"silo-0": data}))
    theirs = oracles.xgboost_trees(data, SMALL, "reg:squarederror", 0.5, 3)
    assert oracles.first_difference(list(model.trees), theirs).what == ""


@pytest.mark.parametrize("task", [Task.REGRESSION, Task.BINARY])
def test_bagging_starts_each_label_from_its_mean_and_improves(task: Task) -> None:
    data, asked = rows_of(task), job(Bagging(rounds=4, lr_mode="uniform", evaluate="silos"), task)
    outcome = run(asked, silos_of(data, SIZES))
    model, (name,) = model_of(outcome), asked.metrics
    means = np.average(data.labels, axis=0, weights=data.weight)
    expected = means if task is Task.REGRESSION else [0.5] * 3
    np.testing.assert_allclose(model.about.base_score, expected, rtol=1e-5)
    assert model.booster(n_threads=1).predict(matrix(data, 1), validate_features=False).shape == (
        data.n_samples,
        3,
    )
    scores = [one.metrics["train"][name] for one in outcome.rounds]
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] < scores[0]


@pytest.mark.parametrize("strategy", [Histogram(2), Bagging(2, scrub="none")])
def test_two_rounds_and_one_more_are_three_rounds_to_the_byte(strategy: Any) -> None:
    """Over the wire, so that base scores of all labels travel."""
    silos = silos_of(rows_of(Task.REGRESSION), SIZES)
    asked = replace(job(strategy, Task.REGRESSION), max_close_sums=9)
    first = warm.model(warm.run(asked, silos))
    one_more = replace(asked, parameters=replace(strategy, rounds=1))
    whole = replace(asked, parameters=replace(strategy, rounds=3))
    assert warm.resumed(one_more, first, silos) == warm.model(warm.run(whole, silos))


# --- what a job says ---


def spec(text: str) -> Any:
    return job_wire.decode(job_file.parse('strategy = "histogram"\n' + text))


def test_a_list_of_labels_is_kept_by_the_job_file() -> None:
    told = job_file.parse('strategy = "histogram"\nlabel = ["b", "a"]\ntask = "regression"')
    asked = job_wire.decode(told)
    assert asked.labels == ("b", "a")
    assert asked.metrics == ("rmse", "mae")
    assert job_file.parse(job_file.dump(told)) == told
    alone = job_wire.decode(job_file.parse('strategy = "histogram"\nlabel = ["b"]'))
    assert alone.labels == ("b",)
    assert alone.metrics == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('label = ["a", "b"]\ntask = "multiclass"', "expected one column of a multi-class job"),
        ('label = ["a", "a"]', "none twice, received 'a'"),
        ("label = []", "received an empty list"),
        ('label = ["a", "b"]\n[columns]\nmore_labels = ["c"]', "received columns.more_labels"),
        ('label = ["a", "b"]\nfeatures = ["b"]', "'b' is among the job's features"),
        ('label = ["a", "b"]\n[columns]\ndrop = ["b"]', "drop: 'b' is a label"),
        ('label = ["a", "b"]\n[columns]\nweight = "b"', "weight: 'b' is a label"),
        (
            'label = ["a", "b"]\n[columns]\npositive = "1"',
            "positive: expected a job with one label",
        ),
        (
            'label = ["a", "b"]\ntask = "regression"\n[booster]\nobjective = "reg:absoluteerror"',
            "reg:absoluteerror is of one label, received 2: expected reg:squarederror",
        ),
    ],
)
def test_what_several_labels_cannot_have_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidJob, match=why):
        spec(text)


def test_a_metric_that_is_no_mean_over_rows_is_refused() -> None:
    asked = spec('label = ["a", "b"]\nmetrics = ["auc"]')
    with pytest.raises(
        InvalidJob, match=r"'auc' is of one label, received 2; choose from .*logloss"
    ):
        asked.parameters.validate(asked)


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("simfl", ""), ("fedxgbllr", ""), ("fedga", ""), ("private_boost", ""), ("explore", ""),
        ("dp_tree", "epsilon = 1.0"), ("secureboost", 'active = "bank"'),
    ],
)  # fmt: skip
def test_other_strategies_refuse_in_words(strategy: str, more: str) -> None:
    text = f'strategy = "{strategy}"\nlabel = ["a", "b"]\ntask = "regression"\n[{strategy}]\n{more}'
    with pytest.raises(InvalidJob, match=f"label: {strategy} predicts one column, received 2"):
        job_wire.decode(job_file.parse(text))


# --- tables ---

TABLE = pa.table(
    {"x": [1.0, 2.0, 3.0, 4.0], "b": [1.0, None, 0.0, 1.0], "a": [0.0, 1.0, None, 1.0]}
)


def test_a_row_needs_all_labels_and_their_order_is_the_jobs() -> None:
    asked = spec('label = ["a", "b"]\n[columns]\nmissing_label = "drop"')
    found = for_job(TABLE, asked, "north.csv")
    assert found.schema.names == ("x",)
    assert found.schema.labels == ("a", "b")
    assert found.labels.tolist() == [[0.0, 1.0], [1.0, 1.0]]
    assert found.unlabelled == 2
    assert found.X[:, 0].tolist() == [1.0, 4.0]
    with pytest.raises(LabelUnfit, match="label column 'a': some labels are missing"):
        for_job(TABLE, spec('label = ["a", "b"]'), "north.csv")


def test_labels_that_are_text_or_not_there_are_refused_by_name() -> None:
    texts = TABLE.set_column(1, "b", pa.array(["yes", "no", "no", "yes"]))
    asked = spec('label = ["x", "b"]')
    with pytest.raises(LabelUnfit, match="'x': some labels are neither 0 nor 1"):
        for_job(texts, asked, "north.csv")
    asked = spec('label = ["a", "b"]\n[columns]\nmissing_label = "drop"')
    with pytest.raises(LabelUnfit, match="'b': one of several labels is 0 and 1, or true"):
        for_job(texts, asked, "north.csv")
    with pytest.raises(LabelUnfit, match="there is no label column 'c'"):
        for_job(TABLE, spec('label = ["a", "c"]'), "north.csv")


def test_silos_that_have_labels_in_another_order_do_not_agree() -> None:
    one = Schema((Feature("x"),), "a", Task.REGRESSION, 0, more_labels=("b",))
    other = replace(one, label="b", more_labels=("a",))
    with pytest.raises(SchemaMismatch, match="silo s: its label is 'b', 'a', that of silo n is"):
        merge({"n": one, "s": other})
    assert merge({"n": one, "s": one}).labels == ("a", "b")


def test_views_and_digests_of_one_label_are_those_of_earlier_versions() -> None:
    one = Schema((Feature("x"),), "a", Task.REGRESSION, 0)
    earlier = [getattr(one, field.name) for field in fields(one) if field.name != "more_labels"]
    assert state_digest(one) == state_digest(earlier)
    more = replace(one, more_labels=("b",))
    assert state_digest(more) != state_digest(one)
    assert more.digest != one.digest


def test_a_base_score_for_each_of_other_labels_is_refused() -> None:
    schema = Schema((Feature("x"),), "a", Task.REGRESSION, 0, more_labels=("b",))
    assert base_score.checked((0.5, 1.0), schema) == (0.5, 1.0)
    with pytest.raises(OfferRejected, match="one of each of 2 outputs, received 3"):
        base_score.checked((0.5, 1.0, 2.0), schema)


# --- doors ---


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    labels = {"up": 3 + X[:, 0], "down": 50 * X[:, 1]}
    return pd.DataFrame({"x": X[:, 0], "y": X[:, 1], "z": X[:, 2], **labels})


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["histogram", "bagging"])
def test_commands_train_score_and_predict_a_column_an_output(strategy: str, tmp_path: Path) -> None:
    silos = []
    for k in range(3):
        frame(120, k).to_csv(tmp_path / f"s{k}.csv", index=False)
        silos += ["--silo", f"s{k}={tmp_path / f's{k}.csv'}"]
    frame(60, 9).to_csv(tmp_path / "test.csv", index=False)
    (tmp_path / "job.toml").write_text(
        f'strategy = "{strategy}"\nlabel = ["up", "down"]\ntask = "regression"\n'
        f"[{strategy}]\nrounds = 12\n"
    )
    out, test = str(tmp_path / "run"), str(tmp_path / "test.csv")
    job_path, answers = str(tmp_path / "job.toml"), tmp_path / "answers.csv"
    run = [sys.executable, "-m", "hedgerow", "local", job_path, *silos]
    ran = subprocess.run([*run, "--test", test, "--out", out], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    said = CliRunner().invoke(main, ["predict", out, test, "--out", str(answers)])
    assert said.exit_code == 0, said.output
    rows = list(csv.DictReader(answers.open()))
    assert [*rows[0]] == ["_id", "prediction_up", "prediction_down"]
    model = hedgerow.load(out)
    found = model.predict(test)
    assert found.shape == (60, 2)
    assert model.score(test) > 0.8
    assert [float(row["prediction_down"]) for row in rows] == pytest.approx(found[:, 1].tolist())
    stock = model.to_xgboost().predict(xgb.DMatrix(frame(60, 9)[["x", "y", "z"]]))
    np.testing.assert_allclose(found, stock, rtol=1e-6)
    assert set(model.evaluate(test)) == {"rmse", "mae"}
    with pytest.raises(InvalidJob, match="'r2' is of one label"):
        model.evaluate(test, ["r2"])
    (tmp_path / "alone").mkdir()
    stock_file = tmp_path / "alone" / "model.ubj"
    model.save(stock_file)
    alone = hedgerow.load(stock_file)
    np.testing.assert_array_equal(alone.predict(test), found)
    with pytest.raises(hedgerow.FederationError, match="2 outputs, and its file no names"):
        alone.evaluate(test, ["rmse"], label="up")


@pytest.mark.process
def test_several_classes_of_a_row_have_probabilities_by_label() -> None:
    tables = {f"s{k}": frame(150, k) for k in range(3)}
    for table in tables.values():
        table["up"], table["down"] = table["up"] > 3, (table["down"] > 0).astype(int)
    asked = hedgerow.Job("histogram", label=["up", "down"], rounds=5)
    model = hedgerow.local(asked, silos=tables).model
    chances = model.predict_proba(tables["s0"])
    assert list(chances.columns) == ["up", "down"]
    found = model.predict(tables["s0"])
    truth = tables["s0"][["up", "down"]].to_numpy().astype(int)
    assert found.shape == truth.shape
    assert (found == truth).mean() > 0.9
    assert model.evaluate(tables["s0"], ["accuracy"])["accuracy"] == pytest.approx(
        (found == truth).mean()
    )
