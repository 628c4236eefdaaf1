"""Plots of an evaluation: names, areas and numbers are there to be seen."""

from __future__ import annotations

import json

import pytest

from hedgerow.coordinator.operator.report import curves
from hedgerow.coordinator.operator.report.runs import EvaluatedTable


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
    assert f"0.800 test: {classes[0]}" in found["roc"]
    assert f'"columns": {columns}' in found["roc"]
    assert "1234" in found["confusion"]
    assert '"type": "text"' in found["confusion"]
    assert "predicted class" in found["confusion"]
