"""``hedgerow simulate``: one table, many silos, one process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.errors import DataError, FederationError, InvalidJob, ResultWarning
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.running import Run
from tests.coordinator.operator.library.tables import people
from tests.federation.processes import wait_until

JOB = hedgerow.Job("bagging", rounds=3, max_depth=3, min_silos=2, metrics=["auc"])


@pytest.mark.process
def test_the_command_gives_the_model_of_split_and_local(tmp_path: Path) -> None:
    data = tmp_path / "people.parquet"
    pq.write_table(pa.table(people(300, 0)), data)
    JOB.save(tmp_path / "job.toml")
    split = ["split", str(data), "--silos", "3", "--test", "0.2", "--seed", "4"]
    call = CliRunner().invoke(
        main, [*split, "--scheme", "label-skew:0.5", "--out", str(tmp_path / "parts")]
    )
    assert call.exit_code == 0, call.output
    parts = {f"silo-{k}": tmp_path / f"parts/silo-{k}.parquet" for k in range(3)}
    run = hedgerow.local(JOB, parts, tmp_path / "parts/test.parquet", quiet=True)
    call = CliRunner().invoke(
        main,
        ["simulate", str(tmp_path / "job.toml"), "--data", str(data), "--silos", "3", "--seed", "4",
         "--scheme", "dirichlet:0.5", "--out", str(tmp_path / "run")],
    )  # fmt: skip
    assert call.exit_code == 0, call.output
    assert "round   3  test auc" in call.output
    model = (tmp_path / "run/model.ubj").read_bytes()
    assert model == (run.folder / "model.ubj").read_bytes()
    again = Run(tmp_path / "run")
    assert list(again.metrics["test.auc"]) == list(run.metrics["test.auc"])
    assert again.report().is_file()


@pytest.mark.process
def test_a_stratified_run_is_that_of_the_tables_of_split() -> None:
    table = people(300, 5)
    parts = hedgerow.split(table, 3, test=0.2, stratify=True, seed=2)
    test = parts.pop("test")
    run = hedgerow.local(JOB, parts, test, quiet=True)
    same = hedgerow.simulate(JOB, table, 3, stratify=True, seed=2)
    assert (same.folder / "model.ubj").read_bytes() == (run.folder / "model.ubj").read_bytes()
    with pytest.raises(DataError, match="parties are cut by columns"):
        hedgerow.simulate(hedgerow.Job("secureboost", active="a"), table, 3, parties="a:label;b:*")


def test_who_is_away_follows_from_the_seed_or_a_schedule() -> None:
    runs = [
        hedgerow.simulate(JOB, people(400, 1), 6, away=0.3, seed=seed, crypto=False)
        for seed in (7, 7, 6)
    ]
    present = [[r["silos"] for r in run.document["rounds"]] for run in runs]
    assert present[0] == present[1] != present[2]
    assert len(present[0][0]) == 6
    run = hedgerow.simulate(JOB, people(400, 1), 3, away={2: ["silo-1"]}, crypto=False)
    assert run.document["rounds"][2]["silos"] == ["silo-0", "silo-2"]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"away": 1.5}, "away: expected a share"),
        ({"away": {1: ["silo-3"]}}, "no silo 'silo-3'; the silos are silo-0, silo-1, silo-2"),
        ({"away": {0: ["silo-1"]}}, "away: nobody can be away in the first round"),
        ({"away": {3: ["silo-1"]}}, "away: the job has 3 rounds, received round 4"),
        ({"late": {-1: {"silo-1": 2.0}}}, "late: the job has 3 rounds, received round 0"),
        ({"late": {1: {"silo-1": 0.0}}}, "late: silo-1: expected seconds above 0, received 0"),
        ({"late": {1: ["silo-1"]}}, "late: expected seconds by silo, by round"),
        ({"late": {1: {"silo-1": "5"}}}, "late: expected seconds by silo, by round"),
        ({"away": {"1": ["silo-1"]}}, "away: expected a share, or names of silos by round"),
        ({"away": {1.5: ["silo-1"]}}, "away: expected a share, or names of silos by round"),
        ({"away": {1: "silo-1"}}, "away: expected a share, or names of silos by round"),
        ({"away": None}, "away: expected a share, or names of silos by round"),
        ({"late": {0: {"silo-1": 1e9}}}, "in the first round, which opens the job"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(schedule: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        hedgerow.simulate(JOB, people(300, 1), 3, **schedule)


@pytest.mark.parametrize("links", [(), ("200:1000",)])
def test_the_others_wait_for_a_late_silo_until_it_misses_the_round(links: tuple[str, ...]) -> None:
    late = {1: {"silo-1": 40.0, "silo-2": 20.0}, 2: {"silo-0": 601.0}}
    run = hedgerow.simulate(JOB, people(300, 1), 3, late=late, links=links, crypto=False)
    seconds = list(run.metrics["seconds"])
    # Seconds of real work come on top.
    waited = zip(seconds, [0, 40, 600], strict=True)
    assert all(found >= least for found, least in waited)
    assert [len(done["silos"]) for done in run.document["rounds"]] == [3, 3, 2]
    away = hedgerow.simulate(JOB, people(300, 1), 3, away={2: ["silo-0"]}, crypto=False)
    assert (run.folder / "model.ubj").read_bytes() == (away.folder / "model.ubj").read_bytes()


def called(*arguments: object) -> tuple[int, str]:
    """Call a command; return its exit code and what it printed."""
    found = CliRunner().invoke(main, list(map(str, arguments)))
    return found.exit_code, found.output


@pytest.mark.process
def test_a_sweep_writes_a_run_for_each_combination_and_compare_reads_them(tmp_path: Path) -> None:
    data = tmp_path / "people.parquet"
    pq.write_table(pa.table(people(300, 0)), data)
    JOB.save(tmp_path / "job.toml")
    simulate = ["simulate", tmp_path / "job.toml", "--data", data, "--late", "silo-1@2-3:20"]
    code, said = called(
        *simulate, "--silos", "2,3", "--scheme", "iid,dirichlet:0.5", "--out", tmp_path / "runs"
    )
    assert code == 0, said
    names = [f"silos-{n}_{s}" for n in (2, 3) for s in ("dirichlet-0.5", "iid")]
    folders = [tmp_path / "runs" / name for name in names]
    assert sorted((tmp_path / "runs").iterdir()) == folders
    same = hedgerow.simulate(JOB, people(300, 0), 3, scheme="dirichlet:0.5")
    assert (folders[2] / "model.ubj").read_bytes() == (same.folder / "model.ubj").read_bytes()
    assert min(list(Run(folders[0]).metrics["seconds"])[1:]) >= 20
    code, said = called("compare", *folders, "--out", tmp_path / "compared", "--json")
    assert code == 0, said
    rows = json.loads(said)["rows"]
    assert [row["name"] for row in rows] == names
    assert rows[2]["metrics"] == {"auc": same.metrics["test.auc"][-1]}
    assert (tmp_path / "compared/report.html").is_file()


@pytest.mark.process
def test_a_sweep_goes_on_without_a_run_that_fails(tmp_path: Path) -> None:
    data = tmp_path / "people.parquet"
    pq.write_table(pa.table(people(300, 0)), data)
    JOB.save(tmp_path / "job.toml")
    code, said = called(
        "simulate", tmp_path / "job.toml", "--data", data, "--silos", 1, "--silos", 2,
        "--silos", 3, "--workers", 1, "--out", tmp_path / "runs",
    )  # fmt: skip
    assert code == 1
    assert said.count("min_silos: the job needs 2 silos and 1 are given") == 1
    assert "2 of 3 runs" in said
    made = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert made == ["silos-2", "silos-3"]
    folders = " ".join(f"{tmp_path}/runs/{name}" for name in made)
    assert f"hedgerow compare {folders} --out DIR" in " ".join(said.split("\n"))


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_ends_its_runs_and_starts_no_more(
    number: signal.Signals, tmp_path: Path
) -> None:
    data = tmp_path / "people.parquet"
    pq.write_table(pa.table(people(300, 0)), data)
    JOB.save(tmp_path / "job.toml")
    with subprocess.Popen(
        [
            sys.executable, "-m", "hedgerow", "simulate", tmp_path / "job.toml", "--data", data,
            "--silos", "2", "--seed", "0,1,2,3,4", "--workers", "1", "--out", tmp_path / "runs",
        ],
        start_new_session=True,
    ) as sweep:  # fmt: skip
        wait_until(lambda: (tmp_path / "runs/seed-0/report.json").exists(), 300, "a run")
        if number is signal.SIGINT:  # a terminal's Ctrl-C reaches all
            os.killpg(sweep.pid, number)
        else:
            sweep.send_signal(number)
        assert sweep.wait(300) != 0
    wait_until(lambda: not _has_members(sweep.pid), 100, "the end of the sweep's runs")
    assert {path.name for path in (tmp_path / "runs").iterdir()} <= {"seed-0", "seed-1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--silos 3,x", "--silos': expected whole numbers from 1, such as 10 or 10,100"),
        ("--silos 3 --away silo-1", "expected one share such as 0.1, or SILO@ROUNDS"),
        ("--silos 3 --away 0.1 --away silo-1@2", "received '0.1'"),
        ("--silos 3 --away silo-1@0-2", "rounds count from 1), received 'silo-1@0-2'"),
        ("--silos 3 --away silo-1@1-3000000", "received 'silo-1@1-3000000'"),
        ("--silos 3 --scheme iid,,linear", "between commas, received 'iid,,linear'"),
        ("--silos 3 --late silo-1@2", "late: expected SILO@ROUNDS:SECONDS"),
        ("--silos 3 --late silo-1@3-2:5", "received 'silo-1@3-2:5'"),
        ("--silos 2,3 --late silo-1@2:soon", "received 'silo-1@2:soon'"),
        ("--scheme column:a/b,column:a:b", "two schemes would have the same folder"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: str, said: str, tmp_path: Path) -> None:
    JOB.save(tmp_path / "job.toml")
    code, found = called(
        "simulate", tmp_path / "job.toml", "--data", "none.csv", *options.split(), "--out", tmp_path
    )
    assert code == 2
    assert said in found


def test_a_result_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    folder, model = tmp_path / "run", tmp_path / "run/model.ubj"
    hedgerow.simulate(JOB, people(300, 0), 3, out=folder)
    first = model.read_bytes()
    for name in ("report.html", "ledger-silo-0.jsonl", "mine.txt"):
        (folder / name).write_text("x")
    (folder / "silos/a").mkdir(parents=True)
    for name in ("table.csv", "part.json"):
        (folder / "silos/a" / name).write_text("x")
    with pytest.raises(FederationError, match=r"run has the run .* already: give --overwrite"):
        hedgerow.simulate(JOB, people(300, 1), 3, out=folder)
    job, (table,) = tmp_path / "job.toml", hedgerow.split(people(90, 1), 1).values()
    hedgerow.Job("bagging", rounds=1, min_silos=2).save(job)
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "all").mkdir()
    folder.rename(tmp_path / "all/job")
    silos = [f"--silo={name}={tmp_path / 't.parquet'}" for name in "ab"]
    arguments = [job, *silos, "--out", tmp_path / "all"]
    code, said = called("compare", *arguments)
    assert (code, "give --overwrite" in said) == (2, True)
    (tmp_path / "all/job").rename(folder)
    assert model.read_bytes() == first
    code, said = called("local", *arguments[:-1], folder)
    assert (code, "give --overwrite" in said) == (2, True)
    hedgerow.simulate(JOB, people(300, 1), 3, out=folder, overwrite=True)
    assert model.read_bytes() != first
    left = {path.name for path in folder.iterdir()}
    assert "mine.txt" in left
    assert [path.name for path in folder.glob("silos/a/*")] == ["table.csv"], "a silo's own"
    assert not left & {"report.html", "ledger-silo-0.jsonl"}


def test_run_folders_and_job_files_are_not_compared(tmp_path: Path) -> None:
    run = hedgerow.simulate(JOB, people(300, 0), 3)
    other = shutil.copytree(run.folder, tmp_path / "other")
    text = (other / "job.toml").read_text()
    (other / "job.toml").write_text('label = "other"\n' + re.sub(r"(?m)^label = .*\n", "", text))
    JOB.save(tmp_path / "job.toml")
    for arguments, said in (
        ((run.folder, tmp_path / "job.toml"), "job.toml: expected a run folder"),
        ((run.folder, "--silo", "a=b"), "run folders have run: they go without --silo"),
        ((run.folder, "--threads", "1"), "run folders have run: they go without --silo"),
        ((run.folder, other), "label is other, in"),
        ((tmp_path / "job.toml",), "job files need --silo NAME=FILE"),
        ((tmp_path, run.folder), "is no run folder"),
    ):
        code, found = called("compare", *arguments, "--out", tmp_path / "out")
        assert code == 2
        assert said in found


def test_lines_make_rounds_as_long_as_their_slowest_silo_needs() -> None:
    runs = [
        hedgerow.simulate(JOB, people(300, 3), 3, links=links)
        for links in ((), ("1000:1000",), ("1:1000", "1:1000", "4000:0.01"))
    ]
    assert len({(run.folder / "model.ubj").read_bytes() for run in runs}) == 1
    seconds = [list(run.metrics["seconds"]) for run in runs]
    moved = [r["bytes_up"] + r["bytes_down"] for r in runs[2].document["rounds"]]
    # One silo's trees and what it receives, at 10,000 bits a second, and a round trip.
    assert all(
        found > 4.0 + 8 * n / 3 / 1e4 / 2 for found, n in zip(seconds[2], moved, strict=True)
    )
    assert min(seconds[1]) > 1.0


@pytest.mark.parametrize("link", ["20", "20:0", "-1:5", "fast:slow", "1:2:3", "nan:1"])
def test_a_line_that_is_none_is_refused(link: str) -> None:
    with pytest.raises(InvalidJob, match="expected MILLISECONDS:MBIT"):
        hedgerow.simulate(JOB, people(300, 3), 3, links=[link])


@pytest.mark.parametrize("one", ["a.parquet", people(30, 1), pa.table(people(30, 1))])
def test_tables_by_name_are_not_taken_for_one(one: Any) -> None:
    for call in (lambda: hedgerow.simulate(JOB, {"a": one}), lambda: hedgerow.split({"a": one}, 3)):
        with pytest.raises(hedgerow.FederationError, match=r"one table.*hedgerow.local"):
            call()
    with pytest.raises(hedgerow.FederationError, match=r"silos: .*in Python silos=N"):
        hedgerow.simulate(JOB, people(30, 1))


def test_a_vertical_job_is_cut_by_columns() -> None:
    table = {**people(200, 2), "_id": np.arange(200)}
    job = hedgerow.Job("secureboost", active="bank", rounds=1, max_depth=2, min_silos=2)
    with pytest.raises(InvalidJob, match="parties: a vertical job needs them"):
        hedgerow.simulate(job, table, 2)
    run = hedgerow.simulate(job, table, parties="bank:label,age;insurer:site,dose", crypto=False)
    assert 0.0 < run.metrics["test.auc"][0] <= 1.0
    assert run.model.n_features == 3


@pytest.mark.parametrize(
    "names",
    [
        [-1, 1], [False, True], [1, 2, 3], [10, 2, 3],
        ["-1", "1"], ["1", "2"], ["false", "true"], ["1", "2", "3"],
    ],
    ids=str,
)  # fmt: skip
def test_predictions_are_labels_as_the_table_has_them(names: list[Any]) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, len(names), 400)
    table = pa.table({"x": codes + rng.normal(0, 0.1, 400), "label": np.array(names)[codes]})
    task = "binary" if len(names) == 2 else "multiclass"
    job = hedgerow.Job("bagging", task=task, rounds=4, max_depth=3, min_silos=2)
    run = hedgerow.simulate(job, table, 3)
    found = run.model.predict(table)
    assert {type(label) for label in found.tolist()} == {type(names[0])}
    assert np.mean(found == np.asarray(table.column("label").to_pylist())) > 0.98
    assert run.model.score(table) > 0.98
    assert len(run.model.predict_proba(table).columns) == len(names)


@pytest.mark.parametrize("names", [["1", "2", "3"], [1, 2, 3], ["false", "true"], [False, True]])
def test_a_vertical_model_predicts_labels_as_its_party_has_them(names: list[Any]) -> None:
    codes = np.arange(300) % len(names)
    table = {"x": codes * 1.0, "z": codes * 2.0, "label": np.array(names)[codes]}
    table["_id"] = np.arange(300)
    task = "binary" if len(names) == 2 else "multiclass"
    job = hedgerow.Job(
        "secureboost",
        task=task,
        classes=0 if len(names) == 2 else 3,
        active="a",
        rounds=2,
        max_depth=2,
    )
    run = hedgerow.simulate(job, pa.table(table), parties="a:label,x;b:z", crypto=False)
    assert run.model.predict(pa.table(table)).tolist() == table["label"].tolist()


def test_a_model_that_predicts_one_number_is_told() -> None:
    table = {"x": np.arange(300.0), "label": np.arange(300.0) * 1e-9}
    job = hedgerow.Job("bagging", task="regression", rounds=1, gamma=1.0, min_silos=2)
    with pytest.warns(ResultWarning, match="has the label one value only, are gamma and"):
        said = hedgerow.simulate(job, table, 2).summary()
    assert "warning: no tree divides the rows, so all predictions are one number" in said
    assert re.search(r"rmse 8\.\d+e-08", said)


def test_a_watcher_ends_training_with_the_model_so_far(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(done: Any) -> bool:
        seen.append(done.round)
        assert set(done.metrics["test"]) == {"auc"}
        assert done.bytes_up > 0 < done.bytes_down
        return done.round == 1

    job = hedgerow.Job("bagging", rounds=9, max_depth=3, metrics=["auc"])
    run = hedgerow.simulate(job, pa.table(people(200, 0)), 3, watch=watch)
    assert (run.state, seen, len(run.metrics)) == ("SUCCEEDED", [0, 1], 2)
    short = hedgerow.Job("bagging", rounds=2, max_depth=3, metrics=["auc"])
    expected = hedgerow.simulate(short, pa.table(people(200, 0)), 3)
    rows = people(50, 3)
    np.testing.assert_array_equal(
        np.asarray(run.model.predict_proba(rows)), np.asarray(expected.model.predict_proba(rows))
    )


def test_a_model_that_stays_in_silos_is_not_there_before_the_end() -> None:
    job = hedgerow.Job("fedga", generations=4, population=4)
    with pytest.raises(hedgerow.RunFailed, match="stopped after 1 rounds: a job of fedga has"):
        hedgerow.simulate(job, pa.table(people(150, 0)), 2, watch=lambda done: True)


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [("histogram", {}), ("bagging", {}), ("simfl", {}), ("fedxgbllr", {"combiner": "mean"})],
)
def test_monotone_constraints_go_by_name_in_any_strategy(
    strategy: str, keys: dict[str, Any]
) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(240, 3))
    table = {name: rows[:, k] for k, name in enumerate("bca")}
    table["label"] = np.sin(2.0 * table["a"]) + table["b"]
    line = {"b": np.zeros(50), "c": np.zeros(50), "a": np.linspace(-2, 2, 50)}

    def trained(constraints: object) -> Any:
        name = "trees" if strategy == "fedxgbllr" else "rounds"
        job = {
            "strategy": strategy, "task": "regression", name: 4, **keys,
            "booster": {"max_depth": 3, "monotone_constraints": constraints},
        }  # fmt: skip
        return hedgerow.simulate(job, table, 3, workers=1).model.predict(line)

    by_name = trained({"a": -1})
    np.testing.assert_array_equal(by_name, trained([0, 0, -1]))
    assert (np.diff(by_name) <= 1e-6).all()
    assert (np.diff(trained([])) > 0.1).any()
    with pytest.raises(InvalidJob, match="increasing, decreasing: 'aa' is no feature; did you me"):
        trained({"aa": 1})
    table["c"] = np.array(["x", "y", "z"])[rng.integers(3, size=240)]
    with pytest.raises(InvalidJob, match="'c' is text, which has no order"):
        trained({"c": 1})


@pytest.mark.parametrize("strategy", ["fedga", "dp_tree", "secureboost"])
def test_strategies_without_monotone_constraints_refuse_them_by_name(strategy: str) -> None:
    keys = {"dp_tree": {"epsilon": 1.0}, "secureboost": {"active": "a"}}.get(strategy, {})
    with pytest.raises(InvalidJob, match=r"\[booster\] increasing: "):
        hedgerow.Job(strategy, **keys, booster={"increasing": ["age"]})


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [("histogram", {}), ("bagging", {}), ("simfl", {}), ("fedxgbllr", {"combiner": "mean"})],
)
def test_interaction_constraints_go_by_name_in_any_strategy(
    strategy: str, keys: dict[str, Any]
) -> None:
    rng = np.random.default_rng(4)
    table = {name: rng.normal(size=240) for name in "dcba"}
    table["label"] = np.sin(table["a"] * table["b"]) + table["c"] * table["d"]

    def paths(groups: object) -> set[frozenset[str]]:
        name = "trees" if strategy == "fedxgbllr" else "rounds"
        job = {
            "strategy": strategy, "task": "regression", name: 4, **keys,
            "booster": {"max_depth": 3, "interaction_constraints": groups},
        }  # fmt: skip
        model = hedgerow.simulate(job, table, 3, workers=1).model
        found = set()
        rows = {(row["tree"], row["node"]): row for row in model.trees().rows()}
        for row in rows.values():
            if row["yes"] is not None:
                for child in ("yes", "no"):
                    below = rows[row["tree"], row[child]]
                    if below["yes"] is not None:
                        found.add(frozenset((row["feature"], below["feature"])))
        return found

    assert paths([["a", "b"]]) <= {frozenset(pair) for pair in ("a", "b", "c", "d", "ab")}
    assert any(len(pair & {"a", "b"}) == 1 and len(pair) == 2 for pair in paths([]))
    with pytest.raises(InvalidJob, match="interaction_constraints: 'aa' is no feature; did you me"):
        paths([["aa", "b"]])
