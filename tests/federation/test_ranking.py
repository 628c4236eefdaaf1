"""Rankings: XGBoost's trees over silos, from gradients of the queries of each."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine import ranking
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.errors import DataError, InvalidJob
from hedgerow.boosting.job import Booster
from hedgerow.boosting.metric_sums import SummedMetrics
from hedgerow.boosting.queries import MOST_ROWS, query_starts
from hedgerow.boosting.registry import NAMES
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.coordinator.cli import main
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from tests import oracles
from tests.federation.test_histogram import (
    job_of,
    model_of,
    opening_of,
    pooled_of,
    run,
    same,
    silos_of,
)
from tests.federation.test_weights import given

SIZES = (520, 0, 312, 169)
"""Rows of silos: thirteen a query."""


def ranked(n_rows: int, seed: int = 0, name: str = "rank:ndcg", **more: Any) -> Dataset:
    data = oracles.generated(Task.RANKING, n_rows, seed=seed, **more)
    return relevant(data) if name == "rank:map" else data


def relevant(data: Dataset) -> Dataset:
    """Return the same rows with labels of 0 and 1."""
    return replace(data, y=np.stack([data.labels[:, 0] > 1, data.labels[:, 1]], axis=1) * 1.0)


@pytest.mark.parametrize("name", ranking.KINDS)
def test_histograms_over_silos_give_the_pooled_trees_and_xgboosts(name: str) -> None:
    data = ranked(sum(SIZES), 1, name, categories=(), missing=0.0)
    cuts = oracles.xgboost_cuts(data, 32)
    strategy = given(np.split(cuts.values, cuts.offsets[1:-1])[j][:-1] for j in range(5))
    booster = Booster(objective=name, max_depth=3, max_bin=32, lambdarank_num_pair_per_sample=8)
    job = job_of(strategy, Task.RANKING, booster)
    outcome = run(job, silos_of(data, SIZES))
    model = model_of(outcome)
    assert opening_of(outcome, data).base_score == 0.0
    assert same(model, pooled_of(job, data, outcome, SIZES))
    theirs = oracles.xgboost_trees(data, booster, name, 0.0, 2)
    assert oracles.first_difference(list(model.trees), theirs).what == ""


def test_a_silo_alone_bags_the_trees_that_xgboost_grows() -> None:
    data = ranked(650, categories=())
    booster = Booster(max_depth=3, lambdarank_num_pair_per_sample=4)
    strategy = Bagging(rounds=3, lr_mode="plain", scrub="none")
    model = model_of(run(job_of(strategy, Task.RANKING, booster), {"only": data}))
    theirs = xgb.train(
        {**booster.native(), "objective": "rank:ndcg", "base_score": 0.0},
        xgb.DMatrix(data.X, data.labels[:, 0], qid=data.labels[:, 1].astype(int)),
        3,
    )
    assert len(model.trees) == 3
    rows = xgb.DMatrix(data.X)
    ours = model.booster(n_threads=1).predict(rows, validate_features=False)
    assert np.array_equal(ours, theirs.predict(rows))


@pytest.mark.parametrize("strategy", [Histogram(rounds=12), Bagging(rounds=12)])
def test_the_order_of_rows_that_are_trained_on_gets_better(strategy: Any) -> None:
    data = ranked(1170)
    job = job_of(strategy, Task.RANKING, Booster(max_depth=3, max_bin=32))
    outcome = run(job, silos_of(data, (520, 390, 260)))
    assert outcome.error is None
    found = [one.metrics["train"]["ndcg"] for one in outcome.rounds]
    assert len(found) == 12
    assert found[-1] > found[0] + 0.02
    whole = metrics.evaluate(
        ["ndcg"], data.labels, margins_of_rows(outcome, data), objective="rank:ndcg"
    )
    assert found[-1] == pytest.approx(whole["ndcg"], abs=1e-6)


def margins_of_rows(outcome: Any, data: Dataset) -> np.ndarray[Any, Any]:
    rows = xgb.DMatrix(data.X, feature_types=data.schema.feature_types, enable_categorical=True)
    booster = model_of(outcome).booster(n_threads=1)
    return booster.predict(rows, output_margin=True, validate_features=False)


NAMES_OF_GRADES = ["ndcg", "ndcg-", "ndcg@3", "ndcg@3-", "ndcg@40"]
NAMES_OF_HITS = ["map", "map-", "map@2", "map@2-", "pre", "pre@5", "pre@40", "ndcg@1-"]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("names", [NAMES_OF_GRADES, NAMES_OF_HITS])
def test_metrics_are_xgboosts_and_add_up_over_silos(names: list[str], ties: bool) -> None:
    data = ranked(520)
    if names is NAMES_OF_HITS:
        data = relevant(data)
    y = data.labels.copy()
    y[:26, 0] = 0  # two queries without a relevant row
    margin = np.random.default_rng(0).normal(size=520).astype(np.float32)
    margin = np.round(margin) if ties else margin
    rows = xgb.DMatrix(data.X, y[:, 0], qid=y[:, 1].astype(int), base_margin=margin)
    told = {"objective": "rank:ndcg", "eval_metric": names, "base_score": 0.0}
    text = xgb.Booster(told, [rows]).eval(rows).split("\t")[1:]
    theirs = [float(part.rsplit(":", 1)[1]) for part in text]
    given: dict[str, Any] = {"objective": "rank:ndcg"}
    whole = metrics.evaluate(names, y, margin, **given)
    assert [*whole.values()] == pytest.approx(theirs, rel=1e-6)
    parts = [
        metrics.sums(names, y[at], margin[at], **given) for at in (slice(0, 130), slice(130, 520))
    ]
    assert metrics.combine(names, parts[0] + parts[1]) == pytest.approx(whole)


@pytest.mark.parametrize("name", ["ndcg@0", "ndcg@x", "ndcg@", "map@-", "pre@1.5", "ndcg@3--"])
def test_ranks_of_a_metric_are_a_number(name: str) -> None:
    with pytest.raises(InvalidJob, match="expected a whole number above 0 after the @"):
        metrics.check([name], Task.RANKING)


# --- gradients ---


@pytest.mark.parametrize("top", [1, 32, MOST_ROWS])
@pytest.mark.parametrize("name", ranking.KINDS)
def test_gradients_stay_within_the_bound_that_sums_are_quantised_by(name: str, top: int) -> None:
    booster = Booster(lambdarank_num_pair_per_sample=top)
    objective = objective_of(name, Task.RANKING, booster)
    most = objective.bound
    assert most is not None
    largest = np.zeros(2)
    rng = np.random.default_rng(0)
    for n, spread in ((2, 1e-6), (400, 1e-6), (400, 1e-3), (400, 30.0), (400, 0.0)):
        for kind in range(3):
            label = np.zeros(n) if kind else rng.integers(0, 2, n) * 1.0
            label[-1 if kind == 1 else 0] = 1.0
            score = np.sort(rng.normal(size=n)).astype(np.float32) * np.float32(spread)
            y = np.stack([label, np.zeros(n)], axis=1)
            g, h = objective.gradients(score[:, None], y)
            assert np.isfinite(g).all()
            assert (h >= 0).all()
            assert abs(float(g.astype(np.float64).sum())) < 1e-3 * max(1, np.abs(g).sum())
            largest = np.maximum(largest, [np.abs(g).max(), h.max()])
    assert (largest <= most).all()
    assert (largest > 1).all()  # it is no bound that anything keeps to


def test_gradients_are_of_a_query_alone_and_whatever_the_order_of_queries() -> None:
    data = ranked(260)
    objective = objective_of("rank:ndcg", Task.RANKING, Booster())
    margins = np.random.default_rng(1).normal(size=(260, 1)).astype(np.float32)
    whole = objective.pairs(margins, data.labels)
    starts = query_starts(data.labels[:, 1])
    assert len(starts) == 21
    for first, end in pairwise(starts):
        own = objective.pairs(margins[first:end], data.labels[first:end])
        assert np.array_equal(own, whole[first:end])


def test_rows_that_are_held_back_are_whole_queries() -> None:
    data = ranked(650)
    job = job_of(Histogram(rounds=4, validation=0.3), Task.RANKING, Booster(max_depth=3))
    outcome = run(job, silos_of(data, (325, 195, 130)))
    assert outcome.error is None
    assert 0 < outcome.rounds[-1].metrics["valid"]["ndcg"] < 1
    from hedgerow.boosting.trees.local import split_dataset

    for share in (0.0, 0.3, 0.9):
        kept, held = split_dataset(data, share, np.random.default_rng(0))
        assert sorted([*kept, *held]) == list(range(650))
        assert not set(data.labels[kept, 1]) & set(data.labels[held, 1])
        assert len(held) == round(share * 50) * 13


def test_what_queries_take_in_memory_is_forecast() -> None:
    n = 26_000
    y = np.stack([np.arange(n) % 5, np.arange(n) // 13], axis=1).astype(np.float64)
    job = job_of(Histogram(rounds=1), Task.RANKING, Booster(max_depth=3))
    schema = ranked(26).schema
    few, many = (job.strategy.memory(job.parameters, job, schema, k, 1, 1.0) for k in (n, 2 * n))
    margins = np.zeros((n, 1), np.float32)
    objective = objective_of("rank:ndcg", Task.RANKING, job.booster)
    summed = SummedMetrics(("ndcg", "map"), 1)
    for step in (
        lambda: objective.pairs(margins, y),
        lambda: summed.parts(y, margins[:, 0], objective="rank:ndcg"),
    ):
        step()
        tracemalloc.start()
        step()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak + y.nbytes + margins.nbytes < many.held - few.held


# --- from tables ---


def rows(n_queries: int, seed: int, size: int = 8) -> pd.DataFrame:
    """Return documents of queries, which one feature of two tells apart."""
    draws = np.random.default_rng(seed)
    n = n_queries * size
    a, b, of_query = draws.normal(size=(3, n))
    of_query = np.repeat(of_query[:n_queries], size)
    worth = a + 0.3 * draws.normal(size=n)
    return pd.DataFrame({
        "a": a, "b": b, "c": of_query, "grade": np.digitize(worth, [0, 1, 1.7]),
        "query": [f"q{seed}-{k // size}" for k in range(n)],
    })  # fmt: skip


def asked(strategy: str, **more: Any) -> hedgerow.Job:
    told = {"label": "grade", "task": "ranking", "qid": "query", "min_silos": 3, "rounds": 8}
    return hedgerow.Job(strategy, **told | {"max_depth": 3} | more)


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["histogram", "bagging"])
def test_simulated_silos_get_whole_queries_and_xgboost_reads_the_model(strategy: str) -> None:
    table, test = rows(150, 1), rows(60, 2)
    dealt = hedgerow.split(table, 3, group="query", test=0.2)
    owners = [set(part.column("query").to_pylist()) for part in dealt.values()]
    assert sum(map(len, owners)) == 150
    told = hedgerow.simulate(asked(strategy), table, 3, crypto=False, test=0.2)
    assert told.model.features == ("a", "b", "c")
    scores = told.model.evaluate(test, ["ndcg", "ndcg@3", "pre@2"])
    assert told.model.score(test) == scores["ndcg"]
    stock = told.model.to_xgboost()
    margins = stock.predict(xgb.DMatrix(test[["a", "b", "c"]]))
    np.testing.assert_allclose(margins, told.model.predict(test), rtol=1e-6)
    stock.set_param([("eval_metric", name) for name in scores])
    known = xgb.DMatrix(test[["a", "b", "c"]], test.grade.clip(upper=1), qid=codes(test))
    graded = told.model.evaluate(test.assign(grade=test.grade.clip(upper=1)), [*scores])
    line = [float(part.rsplit(":", 1)[1]) for part in stock.eval(known).split("\t")[1:]]
    assert [*graded.values()] == pytest.approx(line, rel=1e-5)
    older = hedgerow.simulate(
        asked(strategy, rename={"visit": "query", "worth": "grade"}),
        table.rename(columns={"query": "visit", "grade": "worth"}), 3, crypto=False, test=0.2,
    )  # fmt: skip
    assert np.array_equal(older.model.predict(test), told.model.predict(test))
    blind = hedgerow.simulate(asked(strategy, features=["b"]), table, 3, crypto=False, test=0.2)
    assert scores["ndcg"] > blind.model.evaluate(test, ["ndcg"])["ndcg"] + 0.1


def codes(table: pd.DataFrame) -> np.ndarray[Any, Any]:
    return pd.factorize(table["query"])[0]


@pytest.mark.process
def test_a_query_s_name_and_number_change_no_message() -> None:
    table = rows(60, 3)
    found = set()
    for change in (
        lambda one: one,
        lambda one: one.assign(query=codes(one) + 7),
        lambda one: one.assign(query=codes(one) * 2.5),
        lambda one: one.assign(query=one["query"].astype("category")),
    ):
        whole = change(table)
        silos = {f"s{k}": whole[k * 160 : k * 160 + 160] for k in range(3)}
        run = hedgerow.local(asked("histogram"), silos)
        found.add(bytes(run.model.to_xgboost().save_raw()))
    assert len(found) == 1


@pytest.mark.process
def test_folds_are_whole_queries() -> None:
    silos = {f"s{k}": rows(40, k) for k in range(3)}
    found = hedgerow.cv(asked("histogram"), silos, nfold=3, crypto=False)
    assert found["test-ndcg-mean"][-1] > found["test-ndcg-mean"][0] > 0.5


@pytest.mark.process
def test_the_command_line_trains_scores_and_reports(tmp_path: Path) -> None:
    for k in range(3):
        rows(40, k).to_csv(tmp_path / f"s{k}.csv", index=False)
    test = tmp_path / "test.csv"
    rows(30, 9).to_csv(test, index=False)
    (tmp_path / "job.toml").write_text(
        'strategy = "histogram"\ntask = "ranking"\nlabel = "grade"\nmin_silos = 3\n'
        '[columns]\nqid = "query"\n[histogram]\nrounds = 4\n[booster]\nmax_depth = 3\n'
    )

    def command(*arguments: Any) -> str:
        run = [sys.executable, "-m", "hedgerow", *map(str, arguments)]
        done = subprocess.run(run, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    silos = [f"s{k}={tmp_path / f's{k}.csv'}" for k in range(3)]
    flags = [part for silo in silos for part in ("--silo", silo)]
    out = tmp_path / "run"
    assert "Gradients of a ranking follow" in " ".join(
        command("plan", tmp_path / "job.toml", *flags).split()
    )
    command("local", tmp_path / "job.toml", *flags, "--test", test, "--out", out)
    report = json.loads((out / "report.json").read_text())
    told = report["rounds"][-1]["metrics"]["test"]
    assert {*told} == {"ndcg", "map"}
    (whole,) = json.loads((out / "evaluation.json").read_text())["sets"]
    assert (whole["task"], whole["groups"]) == ("ranking", [])
    scored = json.loads(command("evaluate", out, test, "--json"))
    assert scored["metrics"] == pytest.approx(told)
    bare = tmp_path / "bare.csv"
    rows(30, 9)[["a", "b", "c"]].to_csv(bare, index=False)
    for path, name in ((test, "p.csv"), (bare, "q.csv")):
        command("predict", out, path, "--out", tmp_path / name)
    found = [pd.read_csv(tmp_path / name)["prediction"].tolist() for name in ("p.csv", "q.csv")]
    assert found[0] == found[1]
    command("report", out)
    audit = CliRunner().invoke(main, ["audit", str(out), *flags, "--test", str(test)])
    assert audit.exit_code != 0
    assert "received a ranking" in audit.output
    missing = CliRunner().invoke(main, ["evaluate", str(out), str(bare)])
    assert missing.exit_code != 0
    assert "grade" in missing.output


# --- refusals ---


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.assign(query=None), "column 'query': some rows are of no query"),
        (lambda t: t.sort_values("a"), "expected the rows of a query next to each other"),
        (lambda t: t.drop(columns="query"), "no column of queries 'query'"),
        (lambda t: t.assign(grade=0.5), "some labels are no whole numbers from 0 to 31"),
        (lambda t: t.assign(grade=32), "some labels are no whole numbers from 0 to 31"),
        (lambda t: t.assign(grade=-1), "some labels are no whole numbers from 0 to 31"),
        (lambda t: t.assign(grade="x"), "expected numbers for a ranking, received text"),
    ],
)
def test_labels_and_queries_that_are_none_are_refused_without_a_value(
    change: Any, said: str
) -> None:
    from hedgerow.boosting.tables import for_job
    from hedgerow.coordinator.operator.library.frames import arrow_of

    table = change(rows(5, 0))
    with pytest.raises(DataError, match=said):
        for_job(arrow_of(table, "t.csv"), asked("bagging").parameters, "t.csv")


def test_a_query_of_too_many_rows_is_refused() -> None:
    y = np.zeros((MOST_ROWS + 1, 2))
    with pytest.raises(DataError, match="expected at most 65536 rows of a query"):
        objective_of("rank:pairwise", Task.RANKING, Booster()).check_labels(y, 0)
    y[:, 0] = 2
    with pytest.raises(DataError, match="rank:map: expected whole numbers from 0 to 1"):
        objective_of("rank:map", Task.RANKING, Booster()).check_labels(y[:5], 0)


TEXT = 'strategy = "{strategy}"\ntask = "ranking"\nmin_silos = 3\n[columns]\nqid = "q"\n'


@pytest.mark.parametrize("strategy", sorted(set(NAMES) - {"bagging", "histogram"}))
def test_other_strategies_refuse_it_by_name(strategy: str) -> None:
    needed = {"dp_tree": "[dp_tree]\nepsilon = 1.0", "secureboost": '[secureboost]\nactive = "a"',
              "private_boost": "[private_boost]\nepsilon = 1.0\ndelta = 1e-6"}  # fmt: skip
    text = TEXT.format(strategy=strategy) + needed.get(strategy, "")
    with pytest.raises(InvalidJob, match=f"task: {strategy} has no loss of the order .* bagging"):
        job_wire.decode(job_file.parse(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('task = "ranking"', r"\[columns\] qid: ranking needs the column of the query"),
        ('[columns]\nqid = "e"', r'\[columns\] qid: expected a job with task = "ranking"'),
        ('task = "ranking"\n[columns]\nqid = "label"', "qid: 'label' is the label, too"),
        (
            'task = "ranking"\n[columns]\nqid = "q"\nweight = "w"',
            r"\[columns\] weight: rows of a ranking have none",
        ),
        (
            'task = "ranking"\nfeatures = ["a", "q"]\n[columns]\nqid = "q"',
            r"\[columns\] qid: 'q' is among the job's features",
        ),
        (
            'task = "ranking"\n[columns]\nqid = "q"\nevent = "e"',
            r'\[columns\] .*: expected a job with task = "survival"',
        ),
        (
            'task = "regression"\n[booster]\nobjective = "rank:ndcg"',
            'task: expected "ranking" with rank:ndcg, received "regression"',
        ),
        (
            'task = "ranking"\n[columns]\nqid = "q"\n[booster]\nlambdarank_num_pair_per_sample = 0',
            "lambdarank_num_pair_per_sample: expected",
        ),
        (
            'task = "ranking"\nmetrics = ["rmse"]\n[columns]\nqid = "q"',
            "'rmse' does not suit a ranking job; choose from query-aucpr, ndcg, map, pre",
        ),
        (
            "[booster]\nlambdarank_num_pair_per_sample = 4",
            "lambdarank_num_pair_per_sample: it would have no effect; expected an objective",
        ),
    ],
)
@pytest.mark.parametrize("strategy", ["histogram", "bagging"])
def test_what_a_ranking_cannot_have_is_refused(strategy: str, text: str, said: str) -> None:
    whole = text if "task" in text else f'task = "binary"\n{text}'
    job = f'strategy = "{strategy}"\nmin_silos = 3\n{whole}\n'
    with pytest.raises(InvalidJob, match=said):
        checked(job)


def checked(text: str) -> None:
    job = job_wire.decode(job_file.parse(text))
    job.columns.check(job.label, job.features, job.task.value)
    metrics.check(job.metrics, job.task)
    job.parameters.validate(job)


# --- an estimator ---


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["histogram", "bagging"])
def test_the_estimator_ranks_as_the_job_does(strategy: str) -> None:
    from hedgerow.sklearn import FederatedRanker, FederatedRegressor

    table, test = rows(120, 1), rows(40, 2)
    names = ["a", "b", "c"]
    ranker = FederatedRanker(strategy, rounds=8, max_depth=3, eval_metric=["ndcg@3", "ndcg"])
    one = (test[names], test.grade)
    ranker.fit(
        table[names], table.grade, qid=table["query"], eval_set=[one], eval_qid=[test["query"]]
    )
    scores = ranker.evals_result()["validation_0"]
    assert {*scores} == {"ndcg@3", "ndcg"}
    assert scores["ndcg"][-1] > scores["ndcg"][0]
    assert ranker.score(*one, qid=test["query"]) == pytest.approx(scores["ndcg"][-1], abs=1e-6)
    stock = ranker.get_booster()
    assert stock.predict(xgb.DMatrix(test[names])) == pytest.approx(
        ranker.predict(test[names]), abs=1e-6
    )
    owners = np.repeat(["x", "y", "z"], 320)
    ranker.fit(table[names], table.grade, owners, qid=table["query"])
    assert ranker.silos_.tolist() == ["x", "y", "z"]
    with pytest.raises(ValueError, match="expected the rows of a query next to each other"):
        ranker.fit(table[names], table.grade, qid=np.arange(960) % 7)
    mixed = [f"q{k}" if k % 2 else k for k in np.arange(960) // 8]
    ranker.fit(table[names], table.grade, qid=np.array(mixed, dtype=object))
    for grade in (-1, 32, 0.5, 2000):
        with pytest.raises(ValueError, match="y beside qid: expected whole numbers from 0 to 31"):
            ranker.score(test[names], test.grade * 0.0 + grade, qid=test["query"])
    with pytest.raises(ValueError, match="eval_qid: expected 1 arrays"):
        ranker.fit(table[names], table.grade, qid=table["query"], eval_set=[one])
    with pytest.raises(InvalidJob, match="has no loss of the order"):
        FederatedRanker("simfl", rounds=2).fit(table[names], table.grade, qid=table["query"])
    with pytest.raises(InvalidJob, match="give queries to fit of FederatedRanker"):
        FederatedRegressor(strategy, settings={"qid": "query"}).fit(table[names], table.grade)
