"""``evaluation.json``: groups of rows, from which curves follow, and no row's value."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hedgerow
from hedgerow.coordinator.operator.library import evaluation
from hedgerow.coordinator.operator.library.running import Run
from hedgerow.coordinator.operator.report.runs import EvaluatedTable, FinishedRun, read_runs
from tests.coordinator.operator.library.tables import people
from tests.late import Late

oracle: Any = Late("sklearn.metrics")
curves: Any = Late("hedgerow.coordinator.operator.report.curves")
overview: Any = Late("hedgerow.coordinator.operator.report.overview")


def trained(task: str, folder: Path) -> Run:
    job = hedgerow.Job("bagging", rounds=3, max_depth=3, min_silos=2, task=task)
    return hedgerow.simulate(job, people(600, 0, task), 2, test=0.5, crypto=False, out=folder)


def read(run: Run) -> FinishedRun:
    return read_runs((run.folder,))[0]


def only(run: Run) -> EvaluatedTable:
    found = read(run).evaluation
    assert found is not None
    [table] = found.sets
    return table


@pytest.mark.parametrize("n_values", [1, 2, 7, 300])
@pytest.mark.parametrize("n_rows", [5, 9, 64, 1203])
def test_every_group_has_rows_enough_and_equal_values_together(n_rows: int, n_values: int) -> None:
    values = np.random.default_rng(n_rows).integers(0, n_values, n_rows) / n_values
    groups = list(evaluation._groups(values))
    assert sorted(np.concatenate(groups)) == list(range(n_rows))
    assert min(map(len, groups)) >= evaluation.LEAST_ROWS
    ends = [(values[at].min(), values[at].max()) for at in groups]
    assert all(before[1] < after[0] for before, after in pairwise(ends))


def test_curves_of_two_classes_follow_from_groups(tmp_path: Path) -> None:
    run = trained("binary", tmp_path)
    table = only(run)
    [one] = curves.scored_classes("test", table)
    assert (one.own, one.other, one.weight.sum()) == ("yes", "no", table.rows)
    assert one.auc == pytest.approx(run.metrics["test.auc"][-1], abs=0.01)
    assert overview.warnings(read(run)) == []
    said = overview.sentence(read(run))
    assert said.startswith(f"auc on test rows: federated {run.metrics['test.auc'].max():.3f}; ")
    assert said.endswith("moved.")
    age = table.shap[0]
    assert age.feature == "age"
    assert age.low < 0.0 < age.high


def test_classes_of_several_are_scored_one_by_one(tmp_path: Path) -> None:
    table = only(trained("multiclass", tmp_path))
    found = curves.scored_classes("test", table)
    assert [one.name for one in found] == ["test: low", "test: mid", "test: top"]
    assert sum(map(sum, table.confusion)) == table.rows == 300
    assert all(one.auc > 0.6 for one in found)


def test_numbers_are_means_of_groups(tmp_path: Path) -> None:
    run = trained("regression", tmp_path)
    predicted, true, rows = np.array(only(run).groups).T
    assert rows.sum() == 300
    assert np.corrcoef(predicted, true)[0, 1] > 0.9
    assert "r2 on test rows: federated" in overview.sentence(read(run))


@pytest.mark.slow
def test_a_network_over_trees_is_explained_too(tmp_path: Path) -> None:
    job = hedgerow.Job("fedxgbllr", rounds=1, trees=6, epochs=1, min_silos=3)
    run = hedgerow.simulate(job, people(600, 0), 3, test=0.5, crypto=False, out=tmp_path)
    assert not run.model.is_stock
    found = only(run).shap
    assert {each.feature for each in found} == {"age", "site", "dose"}
    assert found[0].mean > 0.0


def test_what_chance_explains_is_a_warning(tmp_path: Path) -> None:
    run = trained("binary", tmp_path)
    table = people(200, 7)
    table["label"] = np.random.default_rng(1).permutation(table["label"])
    evaluation.keep(run.folder, {"test": table, "north": people(100, 8)})
    found = read(run)
    assert [each.data for each in found.evaluation.sets] == ["test", "north"]
    y = table["label"] == "yes"
    assert oracle.roc_auc_score(y, run.model.predict_proba(table)["yes"]) < 0.6
    [warning] = overview.warnings(found)
    assert "not told apart from chance by 200 rows" in warning


def test_no_number_in_the_file_is_of_a_single_row(tmp_path: Path) -> None:
    run = trained("binary", tmp_path)
    document = json.loads((run.folder / evaluation.FILE).read_text())
    groups = document["sets"][0]["groups"][0]
    assert all(own + other >= document["least_rows"] for _, other, own in groups)
    assert set(document["sets"][0]) == {
        "data", "silo", "rows", "task", "classes", "groups", "shap",
    }  # fmt: skip
