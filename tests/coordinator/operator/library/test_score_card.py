"""Score cards: the points of a row's bins sum to an affine function of its margin."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import hedgerow
from hedgerow.boosting.errors import InvalidJob
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.operator.library.scoring import ModelUnusable
from tests.coordinator.operator.library.tables import people
from tests.coordinator.operator.library.test_models import finished

CYCLIC = {
    "trees": 12, "depth": 3, "structure": "cyclic",
    "columns": {"ranges": {"age": [0, 100], "dose": [-4, 4]},
                "levels": {"site": ["harbour", "hill", "mill", "moor"]}},
}  # fmt: skip
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("histogram", {"rounds": 8, "max_depth": 1}),
    ("bagging", {"rounds": 3, "max_depth": 1}),
    ("private_boost", CYCLIC),
)


def trained(folder: Path, strategy: str, settings: dict[str, Any], task: str = "binary") -> Path:
    return finished(folder, strategy, task, **settings)


def exact_margins(model: hedgerow.Model, X: Any) -> Any:
    """Return the sum of the leaves in double precision, tree by tree."""
    found = np.full(len(X), float(model.ensemble.base_margins(1)[0]))
    for tree in model.ensemble.trees:
        for node, rows in enumerate(tree.reached(X)):
            if tree.left[node] < 0:
                found[rows] += float(tree.threshold[node])
    return found


@pytest.mark.parametrize(("strategy", "settings"), JOBS, ids=[name for name, _ in JOBS])
def test_points_of_every_row_are_an_affine_function_of_its_margin(
    strategy: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = hedgerow.Run(trained(tmp_path / "run", strategy, settings))
    card, new = run.score_card(points_to_double=-20, base=600, odds=0.05), people(400, 33)
    new["age"][::7] = np.nan
    new["site"][::5] = "unknown"
    rows = run.model.rows(new)
    assert np.isnan(rows.X).any(axis=0).all()
    margins = exact_margins(run.model, rows.X)
    assert len(set(np.round(margins, 6))) > 3
    expected = 600 - 20 / math.log(2) * (margins - math.log(0.05))
    points = card.points(new)
    np.testing.assert_allclose(points, expected, rtol=0, atol=1e-9)
    stock = run.model.margins(rows)  # XGBoost adds them up in float32
    np.testing.assert_allclose(points, 600 - 20 / math.log(2) * (stock - math.log(0.05)), atol=1e-4)
    # Twice the odds are 20 points fewer.
    odds = np.exp(margins)
    k, j = int(odds.argmin()), int(odds.argmax())
    assert points[k] - points[j] == pytest.approx(20 * math.log2(odds[j] / odds[k]))


def test_the_command_writes_what_adds_up_by_hand(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "histogram", {"rounds": 8, "max_depth": 1})
    out = tmp_path / "points.csv"
    done = CliRunner().invoke(main, ["scorecard", str(run), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "20 points double the odds, 600 points at odds of 1" in done.output
    lines = list(csv.DictReader(io.StringIO(out.read_text())))
    assert lines[0]["bin"] == "every row"
    model, new = hedgerow.load(run), people(50, 4)
    found = np.full(50, float(lines[0]["points"]))
    values = {name: model.rows(new).X[:, k] for k, name in enumerate(model.features)}
    for line in lines[1:]:
        own = values[line["column"]]
        if line["bin"] == "missing":
            here = np.isnan(own)
        elif line["column"] == "site":
            here = np.asarray(new["site"]) == line["bin"]
        else:
            here = own >= np.float32(line["from"] or -np.inf)
            here &= own < np.float32(line["below"] or np.inf)
        found[here] += float(line["points"])
    np.testing.assert_allclose(found, model.score_card().points(new), rtol=0, atol=1e-9)
    again = CliRunner().invoke(main, ["scorecard", str(run), "--out", str(out)])
    assert again.exit_code != 0
    assert "--overwrite replaces it" in again.output
    told = json.loads(CliRunner().invoke(main, ["scorecard", str(run), "--json"]).stdout)
    assert len(told["bins"]) == len(lines)


def test_what_no_card_can_say_is_refused_in_words(tmp_path: Path) -> None:
    deep = trained(tmp_path / "deep", "histogram", {"rounds": 2, "max_depth": 3})
    with pytest.raises(ModelUnusable, match=r"tree 0 asks of (age|dose|site) and .*max_depth = 1"):
        hedgerow.Run(deep).score_card()
    done = CliRunner().invoke(main, ["scorecard", str(deep)])
    assert done.exit_code != 0
    assert "one column a tree" in done.output
    for task in ("multiclass", "regression"):
        flat = trained(tmp_path / task, "histogram", {"rounds": 2, "max_depth": 1}, task)
        with pytest.raises(ModelUnusable, match="model of two classes"):
            hedgerow.load(flat).score_card()
    stumps = trained(tmp_path / "flat", "histogram", {"rounds": 2, "max_depth": 1})
    wrong: dict[str, float]
    for wrong in ({"odds": 0.0}, {"points_to_double": 0.0}, {"base": math.inf}):
        with pytest.raises(InvalidJob, match=f"score card: {next(iter(wrong))}: expected a number"):
            hedgerow.load(stumps).score_card(**wrong)


def test_a_network_has_no_card(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    mixed = trained(tmp_path / "cnn", "fedxgbllr", {"rounds": 1, "trees": 3, "max_depth": 1})
    with pytest.raises(ModelUnusable, match="has a network"):
        hedgerow.load(mixed).score_card()


def test_trees_of_one_leaf_are_points_of_every_row(tmp_path: Path) -> None:
    settings = {"rounds": 30, "max_depth": 1, "gamma": 12.0, "eta": 0.5}
    model = hedgerow.load(trained(tmp_path / "run", "histogram", settings))
    leaves = [float(tree.threshold[0]) for tree in model.ensemble.trees if tree.n_nodes == 1]
    assert 0 < len(leaves) < 30
    assert any(leaves)
    new = people(50, 5)
    margins = exact_margins(model, model.rows(new).X)
    points = model.score_card(20, 600).points(new)
    np.testing.assert_allclose(points, 600 + 20 / math.log(2) * margins, rtol=0, atol=1e-9)
