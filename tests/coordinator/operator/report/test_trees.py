"""Trees as people see them: importance adds up, drawings say what the splits say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.coordinator.operator.report.runs import read_runs
from hedgerow.coordinator.operator.report.trees import (
    NodeNames,
    StockAsker,
    forest_of,
    importance_of,
)
from tests.coordinator.operator.report.folders import run_folder


def test_importance_is_the_share_of_gain_and_the_count_of_splits(tmp_path: Path) -> None:
    (run,) = read_runs([run_folder(tmp_path / "run")])
    forest = forest_of(run)
    assert forest is not None
    assert len(forest.names) == 2
    assert [(f.feature, f.gain, f.splits) for f in forest.importance] == [
        ("age", pytest.approx(0.75), 1),
        ("job", pytest.approx(0.25), 1),
    ]


def test_a_feature_whose_splits_lose_over_all_silos_gives_nothing() -> None:
    tree = Tree(
        feature=np.array([0, 1, 0, 0, 0], np.int32),
        threshold=np.array([1.0, 2.0, 0.1, 0.2, 0.3]),
        left=np.array([1, 3, -1, -1, -1], np.int32),
        right=np.array([2, 4, -1, -1, -1], np.int32),
        default_left=np.zeros(5, np.bool_),
        gain=np.array([9.0, -0.5, 0.0, 0.0, 0.0]),
        cover=np.ones(5),
        weight=np.zeros(5),
    )
    found = importance_of([tree], NodeNames(("age", "dose"), ((), ())))
    assert [(each.feature, each.gain) for each in found] == [("age", 1.0), ("dose", 0.0)]


def test_rows_without_a_value_are_called_missing_where_they_are_one_more_category() -> None:
    tree = Tree(
        feature=np.zeros(3, np.int32),
        threshold=np.array([0.0, 0.1, 0.2], np.float32),
        left=np.array([1, -1, -1], np.int32),
        right=np.array([2, -1, -1], np.int32),
        default_left=np.zeros(3, np.bool_),
        gain=np.zeros(3, np.float32),
        cover=np.zeros(3, np.float32),
        weight=np.zeros(3, np.float32),
        categories=((0, np.array([1, 2], np.int32)),),
    )
    for known, shown in ((("f", "m"), "is m, missing"), ((), "is 1, 2")):
        asker = StockAsker(tree, NodeNames(("sex",), (known,)))
        assert asker.question(0) == ("sex", shown, ("no", "yes"))


def test_drawings_say_conditions_answers_and_values(tmp_path: Path) -> None:
    (run,) = read_runs([run_folder(tmp_path / "run")])
    forest = forest_of(run)
    assert forest is not None
    numeric, categorical = forest.drawings
    assert numeric.lines == (
        (0, "age < 41.5: yes"),
        (1, "value -0.25"),
        (0, "age < 41.5: no"),
        (1, "value +0.5"),
    )
    # Codes 1 and 3 go right, so the left answer is no.
    assert categorical.lines[0] == (0, "job is </script><b>smith, clerk: no")
    assert [edge.text for edge in categorical.edges] == ["no", "yes"]
    assert {box.kind for box in numeric.boxes} == {"split", "leaf"}


def test_without_a_schema_features_go_by_number(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / "schema.json").unlink()
    (run,) = read_runs([folder])
    forest = forest_of(run)
    assert forest is not None
    assert [f.feature for f in forest.importance] == ["f0", "f1"]


def test_a_run_whose_trees_stay_in_the_silos_shows_those_that_local_copied(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path / "run", model="structures.json", artefacts=["structures.json"])
    model = (folder / "model.ubj").read_bytes()
    for silo in ("north", "south"):
        (folder / "silos" / silo / "model.ubj").write_bytes(model)
    (run,) = read_runs([folder])
    forest = forest_of(run)
    assert forest is not None
    assert len(forest.names) == 4
    assert forest.drawings[2].name == "south, tree 1"


def test_a_run_without_trees_has_no_forest(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", model="", artefacts=[])
    report = json.loads((folder / "report.json").read_text())
    assert report["model"] == ""
    (run,) = read_runs([folder])
    assert forest_of(run) is None


def test_trees_of_several_outputs_are_called_by_their_classes_or_labels() -> None:
    schema = Schema((Feature("age"),), "stage", Task.MULTICLASS, 2, ("early", "late"))
    told = [NodeNames.of(schema).output(k) for k in range(3)]
    assert told == ["class early", "class late", "class 2"]
    several = Schema((Feature("age"),), "height", Task.REGRESSION, 0, more_labels=("weight",))
    assert NodeNames.of(several).output(1) == "weight"
    assert NodeNames(("age",), ((),)).output(1) == "class 1"
