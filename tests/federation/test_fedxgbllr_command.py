"""A FedXGBllr run from the command line, and its artefact scored from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hedgerow.boosting.strategies.fedxgbllr.stacked_model import StackedModel
from tests.federation import forked
from tests.federation.planned import plan_and_run
from tests.federation.processes import write_table

JOB = """
name = "small"
strategy = "fedxgbllr"
seed = 1
min_silos = 2
metrics = ["auc", "logloss"]
[fedxgbllr]
trees = 20
rounds = 2
epochs = 2
channels = 16
[booster]
max_depth = 3
"""


def hedgerow(*arguments: object, code: int = 0) -> str:
    done = forked.hedgerow(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fedxgbllr")
    (folder / "job.toml").write_text(JOB)
    silos = [write_table(folder / f"s{k}.parquet", 400, k) for k in range(2)]
    test = write_table(folder / "test.parquet", 300, 9)
    named = [part for k, path in enumerate(silos) for part in ("--silo", f"s{k}={path}")]
    output = hedgerow("local", folder / "job.toml", *named, "--test", test, "--out", folder / "run")
    assert "round   2/2" in output
    return folder / "run"


def test_the_artefact_scores_as_the_last_round_was_scored(run: Path) -> None:
    report = json.loads((run / "report.json").read_text())
    assert report["model"] == "ensemble.ubj"
    found = json.loads(hedgerow("evaluate", run, run.parent / "test.parquet", "--json"))
    assert found["rows"] == 300
    assert found["metrics"] == pytest.approx(report["rounds"][-1]["metrics"]["test"], rel=1e-6)
    assert found["metrics"]["auc"] > 0.6


def test_predictions_are_those_of_trees_and_head_together(run: Path) -> None:
    out = run.parent / "predicted.parquet"
    hedgerow("predict", run, run.parent / "test.parquet", "--out", out)
    table = pq.read_table(run.parent / "test.parquet")
    X = np.column_stack([table.column(f"x{j}").to_numpy() for j in range(4)])
    names = ("ensemble.ubj", "head.safetensors", "manifest.json")
    model = StackedModel.load({name: (run / name).read_bytes() for name in names})
    expected = 1 / (1 + np.exp(-model.margins(X.astype(np.float32))))
    written = pq.read_table(out)
    np.testing.assert_allclose(written.column("probability").to_numpy(), expected, rtol=1e-6)
    assert (written.column("prediction").to_numpy() == (expected >= 0.5)).all()


def test_a_head_that_is_missing_or_broken_is_one_clear_line(run: Path, tmp_path: Path) -> None:
    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    (broken / "head.safetensors").write_bytes(b"nothing of the kind")
    table = run.parent / "test.parquet"
    assert "head.safetensors" in hedgerow("evaluate", broken, table, code=2)
    (broken / "head.safetensors").unlink()
    assert "head.safetensors" in hedgerow("evaluate", broken, table, code=2)


@pytest.mark.parametrize(
    "options", ['combiner = "cnn"', 'combiner = "logit_ridge"', "validation = 0.2"]
)
def test_the_plan_of_secure_sums_is_within_a_tenth_of_what_moves(
    tmp_path: Path, options: str
) -> None:
    job = JOB.replace("min_silos = 2", "min_silos = 3").replace(
        "[fedxgbllr]", f"[fedxgbllr]\nsecure = true\n{options}"
    )
    if "ridge" in options:
        job = job.replace("epochs = 2\nchannels = 16\n", "")
    planned, report = plan_and_run(tmp_path, job)
    moved = report["bytes"]
    assert planned["bytes"]["up"] == pytest.approx(moved["up"], rel=0.1)
    assert planned["bytes"]["down"] == pytest.approx(moved["down"], rel=0.1)
    exchanges = {s["method"]: 3 * s["exchanges"] for s in planned["steps"] if s["silo"] == "s0"}
    assert exchanges == {name: step["calls"] for name, step in moved["by_step"].items()}
