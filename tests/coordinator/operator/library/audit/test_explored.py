"""Groups of all silos' rows, by what an explore job tells, against the rows themselves."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import hedgerow
from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.audit.explored import _step
from hedgerow.coordinator.operator.library.audit.groups import LARGEST
from hedgerow.coordinator.operator.library.exploration import Exploration
from tests.coordinator.operator.library.audit.test_groups import groups_of, tables, trained
from tests.coordinator.operator.library.tables import people


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def run_of(out: Path, parts: dict[str, Any], task: str) -> hedgerow.Run:
    job = hedgerow.Job("bagging", task=task, rounds=4, max_depth=3, min_silos=2, evaluate="none")
    return trained(out, parts, job)


def explored(out: Path, run: hedgerow.Run, test: pa.Table, task: str) -> Exploration:
    """Return what three silos that share the test rows out tell together."""
    n = test.num_rows // 3 + 1
    parts = {f"silo-{k}": run.group_table(test.slice(k * n, n), ["site"]) for k in range(3)}
    return Exploration(trained(out, parts, hedgerow.Job("explore", task=task, min_silos=3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "known"),
    [
        ("binary", {"positive rate", "label rate", "calibration"}),
        ("multiclass", {"accuracy", "calibration"}),
        ("regression", {"mean error", "mean absolute error"}),
    ],
)
def test_groups_are_those_of_all_rows(tmp_path: Path, task: str, known: set[str]) -> None:
    n = 12_000 if task == "regression" else 3_000  # a mean of few rows is told to a coarse step
    dealt = hedgerow.split(people(n, 2, task), 3, test=0.4, seed=1)
    parts = {name: pa.table(table) for name, table in dealt.items()}
    run = run_of(tmp_path / "run", parts, task)
    told = run.audit(explored=explored(tmp_path / "explored", run, parts["test"], task))
    true = groups_of(run, parts, "site")
    found = {one["group"]: one for one in told["groups"]}
    assert set(found) == {*true, "all rows"}
    assert {m for m in known if all(m in one["measures"] for one in found.values())} == known
    measured = set()
    for name in set(true) - {LARGEST}:
        assert abs(found[name]["rows"] - true[name].rows) <= 20
        for what, one in found[name]["measures"].items():
            value = true[name].measures[what].value
            assert one["low"] <= value <= one["high"]
            assert abs(one["value"] - value) < 0.09
            measured.add(what)
    assert measured >= ({*known, "auc", "true positive rate"} if task == "binary" else known)
    of_all = found["all rows"]["measures"]
    assert all(one["low"] <= one["value"] <= one["high"] for one in of_all.values())
    gap = found[LARGEST]["measures"][min(known)]
    values = [found[name]["measures"][min(known)]["value"] for name in set(true) - {LARGEST}]
    assert gap["value"] == pytest.approx(max(values) - min(values))


@pytest.mark.slow
def test_the_command_line_makes_tables_and_judges_what_was_told(tmp_path: Path) -> None:
    parts = {name: pa.table(table) for name, table in tables().items()}
    run = run_of(tmp_path / "run", parts, "binary")
    pq.write_table(parts["test"], tmp_path / "test.parquet")
    begin = ["audit", str(run.folder), "--test", str(tmp_path / "test.parquet")]
    made = tmp_path / "groups.parquet"
    wards = ["--group", "site", "--group", "age=40.0,41.0", "--to-explore", str(made)]
    assert invoke(*begin, *wards).exit_code == 0
    table = pq.read_table(made)
    assert table.equals(run.group_table(parts["test"], ["site", "age=40.0,41.0"]))
    of = run.document["model"]
    digest = hashlib.sha256((run.folder / of).read_bytes()).hexdigest()[:12]
    said = table[f"said {digest} site=hill"].to_pylist()
    at_hill = [site == "hill" for site in parts["test"]["site"].to_pylist()]
    assert [one is not None for one in said] == at_hill
    n = table.num_rows // 3
    silos = {f"silo-{k}": table.slice(k * n, n) for k in range(3)}
    explored = trained(tmp_path / "explored", silos, hedgerow.Job("explore", min_silos=3)).folder
    limits = tmp_path / "limits.toml"
    for gap, code in ((0.3, 1), (0.9, 0)):
        limits.write_text(f"[audit]\ngroup_positive_rate_gap_max = {gap}\n")
        told = invoke(
            "audit", str(run.folder), "--explored", str(explored), "--limits", str(limits)
        )
        assert told.exit_code == code, told.output
        assert "| hill" in told.output or " hill " in told.output
    # What was told of another model's predictions says nothing of this one.
    other = run_of(tmp_path / "other", {**parts, "silo-0": parts["silo-1"]}, "binary")
    with pytest.raises(FederationError, match="the exploration is of a model with"):
        other.audit(explored=Exploration(explored))


@pytest.mark.slow
def test_a_group_that_is_told_with_others_leaves_no_limit_to_hold(tmp_path: Path) -> None:
    """One ward of nearly no positive answers is told with the rows of others: no gap is known."""
    n = 600
    parts = {name: pa.table(table) for name, table in tables().items()}
    run = run_of(tmp_path / "run", parts, "binary")
    rows = {name: np.tile(parts["test"][name].to_numpy(zero_copy_only=False), 2)[: 3 * n]
            for name in ("age", "site", "dose", "label")}  # fmt: skip
    p = run.model.predictions(run.model.margins(run.model.rows(pa.table(rows))))
    ward = np.where(p < 0.5, "low", np.where(np.arange(3 * n) % 2, "b", "c"))
    ward[np.flatnonzero(p >= 0.5)[:4]] = "low"
    table = pa.table({**rows, "ward": ward})
    silos = {
        f"silo-{k}": run.group_table(table.slice(k * n, n), ["ward=low,b,c"]) for k in range(3)
    }
    folder = trained(tmp_path / "explored", silos, hedgerow.Job("explore", min_silos=3)).folder
    gap = {"group_positive_rate_gap_max": 0.5}
    told = run.audit(explored=folder, limits=gap)
    found = {one["group"]: one for one in told["groups"]}
    assert set(found) >= {"low", "b", "c"}
    rate = found["low"]["measures"].get("positive rate")
    assert rate is None or rate["high"] < 0.1
    assert not told["passed"]


@pytest.mark.slow
def test_the_positive_class_is_the_runs(tmp_path: Path) -> None:
    """An explore job has its classes in another order than a run that names the positive one."""
    parts = {name: pa.table(table) for name, table in tables().items()}
    job = hedgerow.Job("bagging", rounds=3, max_depth=3, min_silos=2, evaluate="none",
                       columns={"positive": "no"})  # fmt: skip
    run = trained(tmp_path / "run", parts, job)
    n = parts["test"].num_rows // 3
    silos = {
        f"silo-{k}": run.group_table(parts["test"].slice(k * n, n), ["site"]) for k in range(3)
    }
    told = run.audit(explored=trained(tmp_path / "explored", silos,
                                      hedgerow.Job("explore", min_silos=3)).folder)  # fmt: skip
    of_all = next(one for one in told["groups"] if one["group"] == "all rows")["measures"]
    share = np.mean([one == "no" for one in parts["test"]["label"].to_pylist()])
    assert of_all["label rate"]["low"] < share < of_all["label rate"]["high"]
    assert of_all["auc"]["value"] > 0.8
    others = hedgerow.Job("explore", label="site", task="multiclass", min_silos=3)
    of_site = trained(tmp_path / "of-site", silos_of_site(silos), others).folder
    with pytest.raises(FederationError, match="the exploration is of the label site"):
        run.audit(explored=of_site)


def silos_of_site(silos: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Return tables whose label is another one."""
    return {
        name: table.drop_columns(["label"]).append_column(
            "site", pa.array(["a", "b", "c"] * table.num_rows)[: table.num_rows]
        )
        for name, table in silos.items()
    }


@pytest.mark.parametrize("mean", [49152.0, 3072.0, 0.123535, 0.304688, 123.438, 0.25, 1e-7])
def test_a_step_is_no_finer_than_what_was_told(mean: float) -> None:
    step = _step(mean)
    assert abs(mean - round(mean / step) * step) <= 1e-5 * mean
    assert mean * 1e-6 < step <= mean
    assert {49152.0: 16384.0, 3072.0: 1024.0, 0.25: 0.25}.get(mean, step) == step


@pytest.mark.slow
def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    parts = {name: pa.table(table) for name, table in tables().items()}
    run = run_of(tmp_path / "run", parts, "binary")
    for group, said in (
        ("age", "group age: expected a text feature of the model with at most 50 categories, or"),
        ("age=x,y", r"group age: no row is of x, y; the first is of '"),
        ("sex", "group sex: expected a column of the test table, received one of age, site"),
    ):
        with pytest.raises(FederationError, match=said):
            run.group_table(parts["test"], [group])
    plain = {name: parts[name] for name in ("silo-0", "silo-1", "silo-2")}
    others = trained(tmp_path / "plain", plain, hedgerow.Job("explore", min_silos=3))
    with pytest.raises(FederationError, match="received one of other tables"):
        run.audit(explored=Exploration(others))
    with pytest.raises(FederationError, match="test: expected rows with labels"):
        run.audit(group=["site"])
    told = invoke("audit", str(run.folder), "--to-explore", str(tmp_path / "x.csv"))
    assert told.exit_code == 2
    assert "expected --test and --group with it" in told.output
