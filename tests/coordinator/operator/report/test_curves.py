"""Plots of an evaluation: names, areas and numbers are there to be seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hedgerow.coordinator.operator.report import curves
from hedgerow.coordinator.operator.report.drawing import Figure
from hedgerow.coordinator.operator.report.runs import EvaluatedTable
from hedgerow.services.process.texts import told_apart


def figures(**fields: object) -> dict[str, str]:
    table = EvaluatedTable.model_validate({"data": "test", "shap": [], "rows": 100, **fields})
    found = [one for one in curves.scored_classes("test", table) if one.auc is not None]
    roc = curves._roc(found)
    drawn = {"lead": roc.lead, "roc": json.dumps(roc.spec)}
    if table.confusion:
        drawn["confusion"] = json.dumps(curves._confusion("test", table).spec)
    return drawn


def test_the_positive_class_and_the_area_are_named() -> None:
    groups = [[[0.2, 40, 10], [0.8, 10, 40]]]
    lead = figures(task="binary", classes=["bad", "good"], groups=groups)["lead"]
    assert "The positive class is good. The area (AUC) is 0.800." in lead


@pytest.mark.parametrize(("length", "columns"), [(3, 2), (40, 1)])
def test_several_classes_have_areas_numbers_and_a_legend_that_fits(
    length: int, columns: int
) -> None:
    classes = [letter * length for letter in "abc"]
    groups = [[[0.2, 40, 10], [0.8, 10, 40]]] * 3
    confusion = [[1234, 1, 2], [3, 4, 5], [6, 7, 8]]
    found = figures(task="multiclass", classes=classes, groups=groups, confusion=confusion)
    assert f"0.800 test: {classes[0][:20]}" in found["roc"]
    assert f'"columns": {columns}' in found["roc"]
    assert "1234" in found["confusion"]
    assert '"type": "text"' in found["confusion"]
    assert "predicted class" in found["confusion"]


def test_long_class_names_that_begin_alike_are_told_apart() -> None:
    begin = "chronic lymphocytic leukaemia of the older patient, "
    classes = [f"{begin}untreated", f"{begin}treated", "acute"]
    groups = [[[0.2, 40, 10], [0.8, 10, 40]]] * 3
    confusion = [[1, 1, 2], [3, 4, 5], [6, 7, 8]]
    table = EvaluatedTable.model_validate(
        {"data": "test", "shap": [], "rows": 100, "task": "multiclass", "classes": classes,
         "groups": groups, "confusion": confusion}
    )  # fmt: skip
    found = curves.scored_classes("test", table)
    for figure in (curves._roc(found), curves._calibration(found), curves._precision_recall(found)):
        of_classes = {row["series"] for row in _rows_of(figure, figure.spec["layer"][1])}
        assert len(of_classes) == 3
        assert max(map(len, of_classes)) <= 38
    matrix = curves._confusion("test", table)
    for axis in ("row", "column"):
        names = {row[axis] for row in _rows_of(matrix, matrix.spec["layer"][0])}
        assert len(names) == 3
        assert max(map(len, names)) <= 15
    assert f"{begin}treated" in str(matrix.rows)


def _rows_of(figure: Figure, layer: dict[str, Any]) -> list[dict[str, Any]]:
    data = layer.get("data") or figure.spec["data"]
    return data["values"] if "values" in data else figure.spec["datasets"][data["name"]]


@pytest.mark.parametrize("most", [4, 14, 36])
def test_no_two_names_are_shown_alike(most: int) -> None:
    names = [
        "",
        "a",
        "a" * 40,
        "a" * 40 + "b",
        "a" * 40 + "c",
        "b" * 13 + ", x",
        "b" * 60,
        "aaa (2)",
    ]
    found = told_apart(names, most)
    assert list(found) == names
    assert len(set(found.values())) == len(names)
    assert max(map(len, found.values())) <= most + 9


def test_a_name_that_another_one_begins_with_is_shown_as_it_is() -> None:
    names = ["tumour (benign)", "tumour", "tumour (2)"]
    assert told_apart(names, 36) == {name: name for name in names}
