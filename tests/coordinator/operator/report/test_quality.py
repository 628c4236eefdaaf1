"""Plots of scores say where chance is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hedgerow.coordinator.operator.report.runs import read_runs
from tests.coordinator.operator.report.folders import report, run_folder
from tests.late import Late

quality: Any = Late("hedgerow.coordinator.operator.report.quality")


def rules(spec: dict[str, Any]) -> int:
    return sum(layer["mark"]["type"] == "rule" for layer in spec.get("layer", ()))


@pytest.mark.parametrize(
    ("metric", "scores", "said"),
    [
        ("auc", (0.5, 0.75, 0.81), " Chance is 0.5, the grey line."),
        ("auc", (0.7, 0.75, 0.81), " Chance is 0.5, below the plot."),
        ("rmse", (0.5, 0.4, 0.3), ""),
    ],
)
def test_every_plot_of_an_auc_says_where_chance_is(
    metric: str, scores: tuple[float, ...], said: str, tmp_path: Path
) -> None:
    rounds = report(metric=metric)["rounds"]
    for each, value in zip(rounds, scores, strict=True):
        each["metrics"] = {"test": {metric: value}}
    folders = [run_folder(tmp_path / name, metric=metric, rounds=rounds) for name in "ab"]
    curve = {"kind": "federated", "who": "model", "data": "north",
             "rounds": [{metric: value} for value in scores]}  # fmt: skip
    for folder in folders:
        (folder / "baselines.json").write_text(json.dumps({"schema": 1, "curves": [curve]}))
    runs = read_runs(folders)
    at_silos = quality.quality_by_silo(runs)
    cost = quality.cost_of_quality(runs)
    assert cost is not None
    over_rounds = quality.quality(runs)
    assert at_silos
    for figure in (*at_silos, *over_rounds, cost):
        assert figure.lead.endswith(said)
        assert ("Chance" in figure.lead) == bool(said)
        assert figure.spec is not None
        assert rules(figure.spec) == said.endswith("line.")
