"""Run folders that hold together are read; what does not is refused with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.report.runs import RunUnusable, read_runs
from tests.coordinator.operator.report.folders import METRICS, run_folder


def hedgerow(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_a_run_folder_is_read_with_its_ledgers_and_times(tmp_path: Path) -> None:
    (run,) = read_runs([run_folder(tmp_path / "run")])
    assert run.label == "run"
    assert run.report.metrics == ("auc",)
    assert run.report.data_sets == ("test", "train")
    assert [r.metrics["test"]["auc"] for r in run.report.rounds] == list(METRICS)
    assert run.report.best is not None
    assert run.report.best.round == 3  # of the first schema, which counts from 0
    assert {silo: found.sent("job-1") for silo, found in run.ledgers.items()} == {
        "north": 33,
        "south": 33,
    }
    assert run.times["north"].train == 0.5


def test_runs_are_told_apart_by_the_end_of_their_paths(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / a / "run") for a in ("first", "second")]
    assert [run.label for run in read_runs(folders)] == ["first/run", "second/run"]


Damage = Callable[[Path], object]


def rewritten(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "report.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def test_a_link_that_leads_to_itself_is_no_run_folder(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(RunUnusable, match="loop is not there"):
        read_runs([loop])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "report.json").unlink(), "is no run folder: it has no report.json"),
        (lambda f: (f / "schema.json").write_text("[]"), "has 0 features, model.ubj uses 2"),
        (lambda f: (f / "report.json").write_text("{"), "report.json cannot be read as JSON"),
        (lambda f: (f / "report.json").write_bytes(b"\xff"), "report.json cannot be read as JSON"),
        (lambda f: (f / "report.json").write_text("[" * 99999), "report.json cannot be read as"),
        (lambda f: (f / "report.json").write_text("[]"), "report.json: the document: Input"),
        (rewritten(rounds=None), "report.json: rounds: Input should be a valid tuple"),
        (rewritten(rounds=[{"round": "x"}]), "report.json: rounds.0.round: Input"),
        (rewritten(seconds=-1), "report.json: seconds: Input should be greater"),
        (rewritten(schema=99), "schema 99; this version reads up to 2"),
        (rewritten(bytes={}), "report.json: bytes.up: Field required"),
        (lambda f: (f / "model.ubj").write_bytes(b"no model"), "is no XGBoost model of trees"),
        (lambda f: (f / "schema.json").write_bytes(b"no"), "schema.json is damaged"),
        (lambda f: (f / "silos/north/times.json").write_text("{}"), "seconds: Field required"),
        (lambda f: (f / "baselines.json").write_text("7"), "baselines.json: the document"),
        (
            lambda f: (f / "ledger-north.jsonl").write_bytes(
                (f / "ledger-south.jsonl").read_bytes()
            ),
            "ledger of another silo, or damaged: ",
        ),
        (
            lambda f: (f / "ledger-north.jsonl").write_text(
                (f / "ledger-north.jsonl").read_text().replace('"bytes":11', '"bytes":12', 1)
            ),
            "line 1: the chain does not hold",
        ),
        (
            lambda f: (f / "ledger-north.jsonl").write_text(
                "".join((f / "ledger-north.jsonl").read_text().splitlines(True)[:2])
            ),
            "lines are missing: the coordinator received 33 bytes for job job-1",
        ),
    ],
)
def test_a_damaged_run_folder_is_refused_with_its_reason(
    tmp_path: Path, damage: Damage, message: str
) -> None:
    folder = run_folder(tmp_path / "run")
    damage(folder)
    done = hedgerow(folder)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "report.html").exists()


def test_a_folder_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    done = hedgerow(tmp_path / "nowhere")
    assert (done.exit_code, "nowhere is not there" in done.stderr) == (2, True)


def test_runs_without_a_common_metric_are_refused_and_their_metrics_told(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / m, metric=m) for m in ("auc", "rmse")]
    with pytest.raises(RunUnusable, match="no metric in common: auc has auc; rmse has rmse"):
        read_runs(folders)
    done = hedgerow(*folders, "--out", tmp_path / "r.html")
    assert done.exit_code == 2


def test_the_same_run_twice_and_several_runs_without_a_place_are_refused(tmp_path: Path) -> None:
    a, b = (run_folder(tmp_path / name) for name in "ab")
    assert "given twice" in hedgerow(a, a, "--out", tmp_path / "r.html").stderr
    done = hedgerow(a, b)
    assert done.exit_code == 2
    assert "say with --out" in done.stderr
