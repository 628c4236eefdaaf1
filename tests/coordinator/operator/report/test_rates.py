"""Learnt rates for people: each silo's and each tree's, as the result's files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import HEAD, MANIFEST, StackedModel
from hedgerow.boosting.trees import ensemble
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.report.runs import RunUnusable, read_runs
from tests.coordinator.operator.report.folders import SCHEMA, run_folder, stump
from tests.late import Late

drawn: Any = Late("hedgerow.coordinator.operator.report.rates")

RATES = (0.5, 0.25, 1.0, 0.75)


def stacked(folder: Path, learnt: tuple[float, ...] = RATES) -> Path:
    """Write the run folder of a job that learnt one rate a tree: two silos, two trees each."""
    run_folder(folder, strategy="fedxgbllr")
    empty = ensemble.blank(SCHEMA, "binary:logistic", Booster(), 0.5)
    model = StackedModel(
        ensemble=empty.extend([stump(0), stump(1, (1, 3)), stump(0), stump(0)], n_steps=4),
        combiner="logit_ridge",
        task=Task.BINARY,
        silos=("north", "south"),
        rows=(100, 300),
        point=np.array([*learnt, 0.0]),
        head=None,
        center=0.0,
        scale=1.0,
        rates=np.array([learnt]),
    )
    for name, data in model.files({}).items():
        (folder / name).write_bytes(data)
    return folder


def test_each_tree_has_the_rate_of_the_files_in_the_order_of_boosting(tmp_path: Path) -> None:
    (run,) = read_runs([stacked(tmp_path / "run")])
    found = drawn.rates_of(run)
    assert found is not None
    assert [(t.silo, t.step, t.rate) for t in found.trees] == [
        ("north", 1, 0.5), ("north", 2, 0.25), ("south", 1, 1.0), ("south", 2, 0.75),
    ]  # fmt: skip
    assert [(s.silo, s.mean, s.least, s.largest) for s in found.silos] == [
        ("north", 0.375, 0.25, 0.5), ("south", 0.875, 0.75, 1.0),
    ]  # fmt: skip
    assert found.plain == 0.5


def test_the_tables_have_the_exact_rates_and_the_plots_all_of_them(tmp_path: Path) -> None:
    (run,) = read_runs([stacked(tmp_path / "run")])
    by_silo, by_tree = drawn.rates([run])
    assert [(row[1].text, row[5].value) for row in by_silo.rows] == [
        ("north", "0.375"),
        ("south", "0.875"),
    ]
    assert [row[-1].value for row in by_tree.rows] == [repr(rate) for rate in RATES]
    assert by_tree.spec is not None
    shown = [value["rate"] for data in by_tree.spec["datasets"].values() for value in data]
    assert shown == list(RATES)


def test_rates_that_are_all_alike_are_drawn_above_zero(tmp_path: Path) -> None:
    (run,) = read_runs([stacked(tmp_path / "run", (0.5,) * 4)])
    _, by_tree = drawn.rates([run])
    assert by_tree.spec is not None
    (scale,) = (
        layer["encoding"]["y"]["scale"]
        for layer in by_tree.spec["layer"]
        if "scale" in layer["encoding"].get("y", {})
    )
    assert scale == {"zero": True}
    assert "In a network" not in by_tree.lead


def test_a_run_of_another_strategy_has_none(tmp_path: Path) -> None:
    (run,) = read_runs([run_folder(tmp_path / "run")])
    assert drawn.rates_of(run) is None
    assert drawn.rates([run]) == ()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (MANIFEST, b"{", "expected JSON in manifest.json"),
        (MANIFEST, b'{"format": 1, "silos": []}', "do not fit together"),
        (HEAD, b"", "the learnt rates cannot be read"),
        ("ensemble.ubj", b"x", "the learnt rates cannot be read"),
    ],
)
def test_damaged_files_are_refused_by_name_and_without_a_traceback(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    folder = stacked(tmp_path / "run")
    (folder / name).write_bytes(data)
    (run,) = read_runs([folder])
    with pytest.raises(RunUnusable, match=message):
        drawn.rates_of(run)
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
