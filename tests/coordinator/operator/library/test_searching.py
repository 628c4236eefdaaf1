"""``hedgerow search``: what is tried, on which rows it is scored, what is refused and resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import merge, recode
from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library import candidates
from hedgerow.coordinator.operator.library.searching import HeldBack
from hedgerow.coordinator.operator.tables import split_parties
from tests.coordinator.operator.library.tables import people

SILOS = {f"s{k}": people(200 + 30 * k, k) for k in range(3)}
JOB = hedgerow.Job("bagging", rounds=3, max_depth=2, min_silos=3, seed=5, metrics=["auc"])
GRID = {"booster.eta": [0.05, 0.3], "booster.max_depth": [1, 4]}


def parties() -> dict[str, pa.Table]:
    table = pa.table({**people(300, 2), "_id": np.arange(300)})
    cut = split_parties(table, "bank:label,age;insurer:site,dose", 0.0, 0)
    return {piece.name: piece.table for piece in cut}


@pytest.mark.process
def test_a_grid_tries_all_and_the_best_is_scored_on_rows_that_silos_held_back() -> None:
    found = hedgerow.search(JOB, SILOS, GRID, method="grid")
    tried = [(row["booster.eta"], row["booster.max_depth"]) for row in found.trials.rows()]
    assert sorted(tried) == [(0.05, 1), (0.05, 4), (0.3, 1), (0.3, 4)]
    scores = list(found.trials["score"])
    assert scores == sorted(scores, reverse=True)
    assert found.score == scores[0]
    eta, depth = tried[0]
    assert found.best.parameters.booster.eta == eta
    assert found.best.parameters.booster.max_depth == depth
    # The same by hand: a job over the rows that are left, its model on those held back.
    rows = HeldBack(SILOS, 0.2, 5)
    train = rows.training(JOB.parameters, 1.0)
    held, _ = rows.held(JOB.parameters)
    assert held is not None
    schema = merge({name: table.schema for name, table in train.items()})
    sites = {f.name: f.categories for f in schema.features}["site"]
    assert sites is not None

    def frame(k: str) -> dict[str, Any]:
        own = recode(train[k], schema)
        columns: dict[str, Any] = {n: own.X[:, j] for j, n in enumerate(schema.names)}
        columns["site"] = [sites[int(code)] for code in columns["site"]]
        return {**columns, "label": np.array(schema.classes)[own.labels.astype(int)]}

    run = hedgerow.local(found.best, {name: frame(name) for name in SILOS}, quiet=True)
    matrix = xgboost.DMatrix(
        held.X, feature_types=schema.feature_types, feature_names=list(schema.names),
        enable_categorical=True,
    )  # fmt: skip
    margin = run.model.to_xgboost().predict(matrix, output_margin=True)
    by_hand = metrics.evaluate(("auc",), held.labels, margin, objective="binary:logistic")
    assert by_hand["auc"] == pytest.approx(found.score, abs=1e-12)


@pytest.mark.parametrize("seed", [1 << 32, (1 << 64) - 1])
def test_a_search_takes_every_seed_of_a_job(seed: int) -> None:
    settings, space = candidates.read({"booster.eta": {"low": 0.1, "high": 0.3}, "trials": 2})
    assert len(candidates.candidates(settings, space, seed)) == 2
    job = hedgerow.Job("secureboost", active="bank", min_silos=2)
    assert HeldBack(parties(), 0.25, seed).training(job.parameters, 1.0)["bank"].n_samples


@pytest.mark.parametrize("vertical", [False, True])
def test_rows_are_held_back_once_and_smaller_shares_are_in_larger_ones(vertical: bool) -> None:
    job, silos = JOB, SILOS
    if vertical:
        job, silos = hedgerow.Job("secureboost", active="bank", min_silos=2), parties()
    rows = HeldBack(silos, 0.25, 1)
    third, whole = (rows.training(job.parameters, share) for share in (1 / 3, 1.0))
    together, own = rows.held(job.parameters)
    counts = {name: len(t["age"]) if not vertical else 300 for name, t in silos.items()}
    n_held = sum(t.n_samples for t in own.values()) if together is None else together.n_samples
    assert n_held + sum(t.n_samples for t in whole.values()) == sum(counts.values())
    assert n_held == pytest.approx(0.25 * sum(counts.values()), rel=0.3 if vertical else 0.02)
    for name in silos:
        assert third[name].n_samples == pytest.approx(whole[name].n_samples / 3, rel=0.3)
        small, large = ({row.tobytes() for row in t[name].X} for t in (third, whole))
        assert small <= large
    if vertical:
        ids = [set(t.ids) for t in whole.values() if t.ids is not None]
        assert ids[0] == ids[1]
        assert not ids[0] & set(own["bank"].ids if own["bank"].ids is not None else ())


@pytest.mark.slow
def test_halving_drops_candidates_as_their_resource_grows() -> None:
    space = {"booster.eta": {"low": 0.01, "high": 0.5, "log": True}}
    by_rows = hedgerow.search(JOB, SILOS, space, method="halving", trials=9)
    by_rounds = hedgerow.search(
        hedgerow.Job("bagging", rounds=9, min_silos=3, metrics=["auc"]), SILOS, space,
        method="halving", trials=9, resource="bagging.rounds",
    )  # fmt: skip
    for found in (by_rows, by_rounds):
        shares = [round(1 / trial["share"]) for trial in found.document["trials"]]
        assert shares == [9] * 9 + [3] * 3 + [1]
        assert found.document["best"] == found.document["trials"][-1]
        assert found.document["planned"]["trials"] == 13
        spent = sum(t["bytes_up"] for t in found.document["trials"])
        assert 0 < spent <= found.document["planned"]["bytes_up"]
        etas = [trial["settings"]["booster.eta"] for trial in found.document["trials"]]
        assert all(0.01 <= eta <= 0.5 for eta in etas)
        assert len(set(etas)) == 9
    assert [trial["rounds"] for trial in by_rounds.document["trials"]] == [1] * 9 + [3] * 3 + [9]
    assert by_rounds.best.toml.count("rounds = 9") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "settings", "key"),
    [
        ("fedga", {"generations": 1, "population": 4, "folds": 2, "metrics": ["f1"]}, "max_depth"),
        ("dp_tree", {"epsilon": 8.0, "metrics": ["auc"]}, "depth"),
        ("histogram", {"rounds": 2, "metrics": ["logloss"]}, "rounds"),
        ("secureboost", {"active": "bank", "max_depth": 2, "metrics": ["auc"]}, "rounds"),
    ],
)
def test_every_kind_of_job_is_searched(
    strategy: str, settings: Mapping[str, Any], key: str
) -> None:
    silos = parties() if strategy == "secureboost" else SILOS
    job = hedgerow.Job(strategy, min_silos=len(silos), **settings)
    found = hedgerow.search(job, silos, {f"{strategy}.{key}": [2, 3]}, method="grid")
    assert not any(trial["detail"] for trial in found.document["trials"])
    assert found.score > 0.0
    assert found.score == (min if strategy == "histogram" else max)(found.trials["score"])


@pytest.mark.parametrize(
    ("keys", "settings", "message"),
    [
        ({"booster.etaa": [0.1]}, {}, "unknown key booster.etaa; did you mean eta?"),
        ({"histogram.rounds": [3]}, {}, r"has a table \[histogram\]|a table \[bagging\] already"),
        ({"booster.max_depth": [2, -1]}, {}, "max_depth"),
        ({"booster.eta": [0.1, "fast"]}, {}, "booster.eta: expected a number, received 'fast'"),
        ({"booster.eta": []}, {}, r"\[search\] booster.eta: expected a list"),
        ({"booster.eta": {"low": 0.3, "high": 0.1}}, {}, "numbers low < high"),
        ({"booster.eta": {"low": 0.0, "high": 0.1, "log": True}}, {}, "is above 0"),
        ({"booster.eta": {"low": 0.1, "step": 0.1}}, {}, "expected low, high and perhaps log"),
        ({"booster.eta": {"low": 0.1, "high": 0.2}}, {"method": "grid"}, "a grid needs a list"),
        ({"min_silos.x": [1]}, {}, "min_silos is no table"),
        (GRID, {"trails": 3}, r"\[search\] trails: expected a list .* did you mean trials"),
        (GRID, {"trials": 0}, "trials: expected at least 1, received 0"),
        (GRID, {"trials": "3"}, "trials: expected a whole number"),
        (GRID, {"method": "bayes"}, "expected grid or random or halving"),
        (GRID, {"holdout": 1.0}, "holdout: expected a share above 0"),
        (GRID, {"factor": 1}, "factor: expected at least 2"),
        (GRID, {"metric": "aucc"}, "no metric 'aucc'; did you mean 'auc'"),
        (GRID, {"method": "halving", "resource": "bagging.round"}, "resource: expected rows"),
        ({}, {}, "no key to try"),
    ],
)
def test_what_cannot_be_tried_is_refused_by_name_before_anything_runs(
    keys: Mapping[str, Any], settings: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidJob, match=message):
        hedgerow.search(
            JOB, SILOS, keys, out=tmp_path / "out", planned=lambda plan: pytest.fail("planned"),
            **settings,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_a_search_without_any_metric_asks_for_one() -> None:
    with pytest.raises(InvalidJob, match=r"\[search\] metric: expected one"):
        hedgerow.search(hedgerow.Job("bagging", rounds=2, min_silos=3), SILOS, GRID)


@pytest.mark.slow
def test_an_interrupted_search_goes_on_with_what_is_on_disk(tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []

    def stop_after_two(trial: Mapping[str, Any]) -> None:
        seen.append(trial)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hedgerow.search(JOB, SILOS, GRID, method="grid", out=tmp_path, watch=stop_after_two)
    assert not (tmp_path / "best.toml").exists()
    # A time that no run takes shows which trials are those of before.
    path = tmp_path / "search.json"
    document = json.loads(path.read_text())
    for trial in document["trials"]:
        trial["seconds"] = -1.0
    path.write_text(json.dumps(document))
    found = hedgerow.search(JOB, SILOS, GRID, method="grid", out=tmp_path)
    assert [t["seconds"] < 0 for t in found.document["trials"]] == [True, True, False, False]
    wider = {**GRID, "booster.max_depth": [1, 2, 4]}
    found = hedgerow.search(JOB, SILOS, wider, method="grid", out=tmp_path)
    assert sum(t["seconds"] < 0 for t in found.document["trials"]) == 2
    other = {**SILOS, "s0": people(200, 77)}
    found = hedgerow.search(JOB, other, GRID, method="grid", out=tmp_path)
    assert all(t["seconds"] >= 0 for t in found.document["trials"])
    path.write_text("[]")
    with pytest.raises(hedgerow.FederationError, match="is not the file of a search"):
        hedgerow.search(JOB, SILOS, GRID, method="grid", out=tmp_path)


def test_the_command_reads_the_table_and_other_commands_refuse_it(tmp_path: Path) -> None:
    for name, table in SILOS.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    silos = [f"--silo={name}={tmp_path / name}.parquet" for name in SILOS]
    job = tmp_path / "job.toml"
    job.write_text(
        JOB.toml + '[search]\nmethod = "random"\ntrials = 3\nmetric = "logloss"\n'
        'booster.eta = { low = 0.05, high = 0.5, log = true }\n"booster.max_depth" = [1, 2]\n'
    )
    command = ["search", str(job), *silos, "--out", str(tmp_path / "out")]
    call = CliRunner().invoke(main, command)
    assert call.exit_code == 0, call.output
    assert "3 trials; between organisations they would move" in call.output
    assert "best: booster.eta = 0." in call.output
    best = hedgerow.Job.load(tmp_path / "out/best.toml")
    assert best.parameters.metrics == ("auc",)
    call = CliRunner().invoke(main, [*command, "--json"])
    document = json.loads(call.stdout)
    assert document["best"]["score"] == min(t["score"] for t in document["trials"])
    assert document["best"]["settings"]["booster.eta"] == best.parameters.booster.eta
    for other in (
        ["submit", str(job), "--coordinator", "localhost:1", "--identity", str(tmp_path)],
        ["plan", str(job), *silos],
        ["local", str(job), *silos, "--out", str(tmp_path / "run")],
    ):
        call = CliRunner().invoke(main, other)
        assert call.exit_code == 2
        assert "run `hedgerow search` with tables on one machine" in call.output
