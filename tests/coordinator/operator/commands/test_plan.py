"""``hedgerow plan``: what a job would cost and reveal, or why it cannot run and what could."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from hedgerow import Job
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.work import Work
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.jobs import plan_here
from hedgerow.coordinator.server.plans import bytes_of_rounds, plan_of
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file


def hedgerow(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


@pytest.fixture
def silos(tmp_path: Path) -> list[str]:
    """Options of three silos."""
    rng = np.random.default_rng(0)
    options = []
    for name in ("north", "south", "west"):
        path = tmp_path / f"{name}.parquet"
        columns = {"age": rng.normal(size=200), "wage": rng.normal(size=200)}
        label = (columns["age"] > 0).astype(np.int8)
        ids = np.arange(200).astype(str)
        pq.write_table(pa.table({**columns, "label": label, "_id": ids}), path)
        options += ["--silo", f"{name}={path}"]
    return options


def job(folder: Path, text: str) -> str:
    path = folder / "job.toml"
    path.write_text(text)
    return str(path)


def test_a_plan_has_rounds_bytes_for_each_silo_and_step_and_what_is_learnt(
    tmp_path: Path, silos: list[str]
) -> None:
    path = job(tmp_path, 'strategy = "bagging"\n[bagging]\nrounds = 7\nevaluate = "none"')
    told = json.loads(hedgerow(path, *silos, "--json").stdout)
    assert told["rounds"] == 7
    covers = ("ExchangeKeys", "ExchangeShares", "ExchangeSums")
    assert {(s["silo"], s["method"]) for s in told["steps"]} == {
        (silo, method)
        for silo in ("north", "south", "west")
        for method in ("ExchangeTrees", *covers)
    }
    assert told["bytes"]["up"] == sum(s["bytes_up"] for s in told["steps"]) > 0
    assert "learn all trees" in told["reveals"]
    assert told["cpu_class"]
    assert told["seconds"] > max(s["seconds"] for s in told["steps"]) > 0
    assert any(note.startswith("seconds: on this machine") for note in told["notes"])
    shown = hedgerow(path, *silos).stdout
    assert "7 rounds, about " in shown
    assert "What each party learns" in shown


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('strategy = "bagging"\nmin_silos = 5', "3 are given; it could run with min_silos = 3"),
        (
            'strategy = "bagging"\nsilos = ["north", "sout"]',
            "the job needs sout, which has no table here; did you mean south?",
        ),
        ('strategy = "bagging"\n[bagging]\nrounds = 0', "expected 1 to 100000, received 0"),
        ('strategy = "bagging"\nlabel = "lable"', "no label column 'lable'; did you mean 'label'"),
        ('strategy = "bagging"\nfeatures = ["wages"]', "no feature 'wages'; did you mean 'wage'"),
        ('strategy = "bagging"\nmetrics = ["rmse"]', "does not suit a binary job; choose from auc"),
        ('strategy = "dp_tree"', "parameter epsilon of dp_tree has no default"),
        (
            'strategy = "dp_tree"\n[dp_tree]\nepsilon = 1.0\nhonest = 4',
            "[dp_tree] honest: expected 0 to 3, received 4",
        ),
        (
            'strategy = "histogram"\n[histogram]\nthreshold = 9',
            "[histogram] threshold: expected more than half of 3 silos and at most all, "
            "received 9; the nearest is 3",
        ),
        ('strategy = "histogram"\n[histogram]\nthreshold = 1', "the nearest is 2"),
        (
            'strategy = "bagging"\n[booster]\nmonotone_constraints = [1]',
            "[booster] monotone_constraints: expected 2, received 1",
        ),
        (
            'strategy = "secureboost"\n[secureboost]\nactive = "norht"',
            "the active party 'norht' has no table here; did you mean north?",
        ),
        (
            'strategy = "secureboost"\n[secureboost]\nactive = "north"\nkey_bits = 1024',
            "expected one of 2048, 3072, 4096",
        ),
    ],
)
def test_an_impossible_job_says_why_and_what_would_be_possible(
    tmp_path: Path, silos: list[str], text: str, why: str
) -> None:
    done = hedgerow(job(tmp_path, text), *silos)
    assert done.exit_code == 2
    assert why in done.stderr


def test_what_a_plan_refuses_is_not_started_here_either(tmp_path: Path, silos: list[str]) -> None:
    path = job(tmp_path, 'strategy = "bagging"\nmin_silos = 5')
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["local", path, *silos, "--out", str(out)])
    assert done.exit_code == 2
    assert "3 are given; it could run with min_silos = 3" in done.stderr
    assert not out.exists()


def test_a_coordinators_plan_of_a_vertical_job_has_each_partys_own_bytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(256).astype(str)
    widths = {"bank": 2, "shop": 5, "lab": 3}
    tables = {}
    for party, width in widths.items():
        columns = {f"{party}{j}": rng.normal(size=256) for j in range(width)} | {"_id": ids}
        if party == "bank":
            columns["label"] = rng.integers(0, 2, 256)
        pq.write_table(pa.table(columns), tmp_path / f"{party}.parquet")
        tables[party] = f"{tmp_path / party}.parquet"
    text = 'strategy = "secureboost"\n[secureboost]\nactive = "bank"\nrounds = 2\n'
    spec = job_file.parse(text + "[booster]\nmax_depth = 3\nmax_bin = 16\n")
    columns = {"bank": 4, "shop": 6, "lab": 4}
    registered = {Silo(s): Registration("", "0.1.0", (), 256, n) for s, n in columns.items()}
    here, there = Counter[str](), Counter[str]()
    for step in plan_here(spec, tables).steps:
        here[step.silo] += step.bytes_up
    for step in plan_of(job_wire.decode(spec), registered).steps:
        there[step.silo] += step.bytes_up
    assert there.keys() == here.keys()
    for party, n_bytes in there.items():
        assert n_bytes == pytest.approx(here[party], rel=0.02)
    assert here["shop"] > here["lab"]
    unknown = {Silo(s): Registration("", "0.1.0", (), 256, 0) for s in columns}
    plan, blank = plan_of(job_wire.decode(spec), unknown), Counter[str]()
    for step in plan.steps:
        blank[step.silo] += step.bytes_up
    assert "10 columns are assumed of each of bank, shop, lab, which tell none" in str(plan.notes)
    assert 1 < blank["shop"] / here["shop"] < 3
    assert here["bank"] != here["shop"]


def test_silos_with_other_xgboosts_are_told_where_these_grow_the_trees() -> None:
    versions = {"a": "3.2.0", "b": "3.4.1", "c": "3.4.0", "d": ""}
    there = {Silo(s): Registration("", "0.1.0", (), 256, 5, (), v) for s, v in versions.items()}
    alike = {silo: one for silo, one in there.items() if silo in ("b", "c")}
    for strategy, warned in (("bagging", True), ("simfl", True), ("histogram", False)):
        job = job_wire.decode(job_file.parse(f'strategy = "{strategy}"\n'))
        told = [n for n in plan_of(job, there).notes if "their own XGBoost" in n]
        assert bool(told) is warned
        assert all("3.2 (a), 3.4 (b), 3.4 (c), not known (d)" in note for note in told)
        assert not any("their own XGBoost" in note for note in plan_of(job, alike).notes)


def test_a_wide_histogram_job_is_told_what_to_change_and_takes_time_for_each_column() -> None:
    rng = np.random.default_rng(0)
    rates = dict.fromkeys(Work, 1e9) | {Work.EXCHANGE: 200.0}
    seconds = {}
    for n in (100, 400, 1600):
        columns = {f"x{k}": rng.normal(size=60) for k in range(n)}
        table = {**columns, "label": np.arange(60) % 2}
        asked = Job("histogram", rounds=2, min_silos=3, silos=["a", "b", "c"])
        found = plan_here(asked.spec, dict.fromkeys("abc", table), rates)
        seconds[n] = found.seconds or 0.0
        told = [note for note in found.notes if "smaller [booster] max_bin" in note]
        assert bool(told) is (n >= 500), found.notes
        assert all(note.startswith(f"{n:,} columns: ") for note in told)
    grown = (seconds[1600] - seconds[400]) / (seconds[400] - seconds[100])
    assert 3.0 < grown < 6.0
    assert seconds[1600] > 1200 / 200.0


@pytest.mark.parametrize("strategy", ["histogram", "bagging", "fedxgbllr"])
def test_bytes_of_trees_are_no_plan_for_an_alert(strategy: str) -> None:
    job = Job(strategy, label="y", min_silos=3).parameters
    schema = Schema((Feature("x"),), "y", Task.BINARY, 2)
    once, each = bytes_of_rounds(job, schema, {Silo(name): 100 for name in "abc"}, {})
    assert bool(once or each) == (strategy == "histogram")
