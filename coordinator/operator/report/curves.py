"""Plots of an evaluation: receiver operating characteristic, precision, calibration, confusion.

All are computed by scikit-learn from groups of rows (:mod:`..library.evaluation`), each of which
counts as that many rows of its mean prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray
from sklearn import calibration
from sklearn import metrics as scores

from hedgerow.coordinator.operator.report.drawing import (
    AXIS_LETTERS,
    LEGEND_LETTERS,
    PALETTE,
    PLAIN,
    Cell,
    Columns,
    Figure,
    Row,
    drawn,
    feature_bars,
    legend_of,
    line_chart,
    number,
    of_number,
    of_text,
    text,
    tips,
    values,
)
from hedgerow.coordinator.operator.report.runs import EvaluatedTable, FinishedRun
from hedgerow.services.process.texts import told_apart

_BINS = 10
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScoredClass:
    """Predictions of one class on one table."""

    name: str
    """Run, table and class, as far as they differ on the page."""
    y: NDArray[np.int64]
    """Of shape (n,), int64. Whether rows are of the class; two entries a group."""
    probability: Floats
    """Of shape (n,), float64."""
    weight: NDArray[np.int64]
    """Of shape (n,), int64. Rows that an entry is for, above 0."""
    own: str
    other: str
    """``own`` and ``other``: name of the class, and of all other classes."""

    @property
    def auc(self) -> float | None:
        """Area under the receiver operating characteristic; None where rows are of one class."""
        if len(set(self.y.tolist())) < 2:
            return None
        area: float = scores.roc_auc_score(self.y, self.probability, sample_weight=self.weight)
        return area

    @property
    def chance(self) -> float | None:
        """AUC below which a model may be no better than chance: two standard errors above half.

        References
        ----------
        Hanley and McNeil, The meaning and use of the area under a receiver operating
        characteristic (ROC) curve, 1982, for an area of one half.
        """
        n_own, n_rows = int(self.weight[self.y == 1].sum()), int(self.weight.sum())
        if n_own in (0, n_rows):
            return None
        return 0.5 + 2.0 * float(np.sqrt((n_rows + 1) / (12.0 * n_own * (n_rows - n_own))))


def evaluation(runs: Sequence[FinishedRun]) -> list[Figure]:
    """Return the plots of the runs' evaluations, where they have one."""
    tables = tables_of(runs)
    classes = [found for name, table in tables for found in scored_classes(name, table)]
    whole = [one for one in classes if one.auc is not None]
    found: list[Figure] = []
    if whole:
        found += [
            _roc(whole),
            _precision_recall(whole),
            _calibration(whole),
            *_thresholds([one for one in whole if one.other]),
        ]
    found += [_confusion(name, table) for name, table in tables if table.confusion]
    found += _regression([(name, table) for name, table in tables if table.task == "regression"])
    return [*found, *_shap([(name, table) for name, table in tables if table.shap])]


def tables_of(runs: Sequence[FinishedRun]) -> list[tuple[str, EvaluatedTable]]:
    """Return the evaluated tables with a name of each."""
    return [
        (
            ", ".join(filter(None, (run.label if len(runs) > 1 else "", table.silo, table.data))),
            table,
        )
        for run in runs
        for table in (run.evaluation.sets if run.evaluation else ())
    ]


def scored_classes(name: str, table: EvaluatedTable) -> list[ScoredClass]:
    """Return the classes of a table: of two the positive one, of several each against the rest."""
    found = []
    several = len(table.classes) > 2
    names = table.classes if several else table.classes[1:]
    for own, groups in zip(names, table.groups, strict=False):
        grid = np.asarray(groups, dtype=np.float64).reshape(-1, 3)
        counts = grid[:, 1:].astype(np.int64).ravel()
        y = np.tile([0, 1], len(grid))
        shown = f"{name}: {own}" if several else name
        kept = counts > 0
        other = "" if several else table.classes[0]
        probability = np.repeat(grid[:, 0], 2)
        found.append(ScoredClass(shown, y[kept], probability[kept], counts[kept], own, other))
    return found


def _lines(
    found: Sequence[ScoredClass],
    points: Callable[[ScoredClass], tuple[Any, Any]],
    chance: list[Row],
    axes: tuple[str, str],
) -> Any:
    """Return a chart of curves from 0 to 1, with the line of chance."""
    rows = [
        {"series": one.name, "x": float(x), "y": float(y), "order": k}
        for one in found
        for k, (x, y) in enumerate(zip(*points(one), strict=True))
    ]
    unit = alt.Scale(domain=[0, 1])
    axis = alt.Axis(format=".0%", tickCount=5)
    x = alt.X("x:Q", title=axes[0], scale=unit, axis=axis)
    y = alt.Y("y:Q", title=axes[1], scale=unit, axis=axis)
    names = [one.name for one in found]
    shown = tips("series:N", *(alt.Tooltip(f"{axis}:Q", format=".1%") for axis in "xy"))
    order = alt.Order("order:Q")
    lines = line_chart(rows, x, y, "series", names, 18, shown, order=order)
    line = (
        alt.Chart(values(chance))
        .mark_line(strokeDash=[6, 4], color=PLAIN, strokeWidth=1.5)
        .encode(x=x, y=y, detail=alt.Detail("series:N"))
    )
    return alt.layer(line, lines).properties(width="container", height=320)


def _roc(found: Sequence[ScoredClass]) -> Figure:
    title = "Receiver operating characteristic"
    lead = (
        "True positive rate (recall) against false positive rate, by threshold. The dashed line "
        "is chance, an area of 0.5. "
    )
    positive = sorted({one.own for one in found if one.other})
    lead += f"The positive class is {', '.join(positive)}. " if positive else ""
    areas = [f"{one.auc:.3f}" for one in found]
    lead += "Names begin with the area (AUC)." if areas[1:] else f"The area (AUC) is {areas[0]}."

    def points(one: ScoredClass) -> tuple[Any, Any]:
        false, true, _ = scores.roc_curve(one.y, one.probability, sample_weight=one.weight)
        return false, true

    chance = [{"series": "chance", "x": x, "y": x} for x in (0.0, 1.0)]
    short = told_apart([one.name for one in found], LEGEND_LETTERS - 6)
    named = [
        replace(one, name=f"{area} {short[one.name]}")
        for one, area in zip(found, areas, strict=True)
    ]
    chart = _lines(named, points, chance, ("false positive rate", "true positive rate (recall)"))
    columns: Columns = [
        ("series", lambda one: text(one.name)),
        ("rows", lambda one: _rows(one.weight)),
        ("of the class", lambda one: _rows(one.weight[one.y == 1])),
        ("area", lambda one: number(one.auc)),
        ("no better than chance below", lambda one: number(one.chance)),
    ]
    return Figure.of("roc", title, lead, chart, columns, found)


def _rows(weights: NDArray[np.int64]) -> Cell:
    return number(int(weights.sum()), f"{weights.sum():,}")


def _precision_recall(found: Sequence[ScoredClass]) -> Figure:
    title = "Precision and recall"
    lead = (
        "Precision against recall, by threshold. Dashed lines are chance, the share of the class "
        "in all rows."
    )

    def points(one: ScoredClass) -> tuple[Any, Any]:
        precision, recall, _ = scores.precision_recall_curve(
            one.y, one.probability, sample_weight=one.weight
        )
        return recall, precision

    shares = [float(np.average(one.y, weights=one.weight)) for one in found]
    chance = [
        {"series": one.name, "x": x, "y": share}
        for one, share in zip(found, shares, strict=True)
        for x in (0.0, 1.0)
    ]
    average = scores.average_precision_score
    rows = [
        {
            "series": one.name,
            "area": average(one.y, one.probability, sample_weight=one.weight),
            "chance": share,
        }
        for one, share in zip(found, shares, strict=True)
    ]
    chart = _lines(found, points, chance, ("recall", "precision"))
    columns: Columns = [
        ("series", of_text("series")),
        ("average precision", of_number("area")),
        ("chance", of_number("chance")),
    ]
    return Figure.of("precision-recall", title, lead, chart, columns, rows)


def _calibrated(one: ScoredClass) -> tuple[Any, Any]:
    share, mean = calibration.calibration_curve(
        np.repeat(one.y, one.weight),
        np.repeat(one.probability, one.weight),
        n_bins=_BINS,
        strategy="quantile",
    )
    return mean, share


def _calibration(found: Sequence[ScoredClass]) -> Figure:
    title = "Calibration"
    lead = (
        "Share of the class among rows of about the same predicted probability, in tenths of the "
        "rows. On the dashed line probabilities are what they say."
    )
    exact = [{"series": "exact", "x": x, "y": x} for x in (0.0, 1.0)]
    chart = _lines(found, _calibrated, exact, ("predicted", "observed"))
    rows = [
        {"series": one.name, "predicted": float(mean), "observed": float(share)}
        for one in found
        for mean, share in zip(*_calibrated(one), strict=True)
    ]
    columns = [("series", of_text("series"))]
    columns += [(key, of_number(key)) for key in ("predicted", "observed")]
    return Figure.of("calibration", title, lead, chart, columns, rows)


def _thresholds(found: Sequence[ScoredClass]) -> list[Figure]:
    """Return the confusion matrices of two classes for a threshold that the reader moves."""
    if not found:
        return []
    series, table = [], []
    for one in found:
        cuts = np.unique([0.0, 0.5, *one.probability]).tolist()
        cells = [_matrix(one, cut) for cut in cuts]
        series.append(
            {"name": one.name, "own": one.own, "other": one.other, "cuts": cuts, "cells": cells,
             "start": cuts.index(0.5)}
        )  # fmt: skip
        for cut, matrix in zip(cuts, cells, strict=True):
            shown = (number(n, f"{n:,}") for n in matrix)
            table.append((text(one.name), number(cut), *shown))
    title = "Confusion matrix"
    lead = (
        "Rows by true and predicted class, where the positive class is predicted from a "
        "probability on: move the threshold."
    )
    headings = (
        "series", "threshold", "true negatives", "false positives", "false negatives",
        "true positives",
    )  # fmt: skip
    return [Figure("confusion", title, lead, None, headings, tuple(table), {"series": series})]


def _matrix(one: ScoredClass, cut: float) -> list[int]:
    """Return true negatives, false positives, false negatives and true positives."""
    found = scores.confusion_matrix(
        one.y, one.probability >= cut, labels=[0, 1], sample_weight=one.weight
    )
    return [int(n) for n in found.ravel()]


def _confusion(name: str, table: EvaluatedTable) -> Figure:
    """Return the confusion matrix of several classes, and each class's scores."""
    counts = np.asarray(table.confusion, dtype=np.int64)
    true, taken = (part.ravel() for part in np.indices(counts.shape))
    precision, recall, f1, support = scores.precision_recall_fscore_support(
        true, taken, labels=range(len(counts)), sample_weight=counts.ravel(), zero_division=np.nan
    )
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    rows = [
        {"true": table.classes[i], "predicted": table.classes[j], "rows": int(counts[i, j]),
         "share": float(share[i, j])}
        for i, j in zip(true, taken, strict=True)
    ]  # fmt: skip
    order = list(table.classes)
    short = told_apart(order, AXIS_LETTERS)
    shown = [
        row | {"row": short[str(row["true"])], "column": short[str(row["predicted"])]}
        for row in rows
    ]
    axis, sort = alt.Axis(labelLimit=110), list(short.values())
    cells = alt.Chart(values(shown)).encode(
        x=alt.X("column:N", sort=sort, title="predicted class", axis=axis),
        y=alt.Y("row:N", sort=sort, title="true class", axis=axis),
    )
    numbers = cells.mark_text(fontSize=11).encode(text=alt.Text("rows:Q", format=",d"))
    chart = cells.mark_rect().encode(
        color=alt.Color(
            "share:Q",
            title=None,
            scale=alt.Scale(domain=[0, 1], range=["#7b879422", PALETTE[0]]),
            legend=alt.Legend(format=".0%", gradientLength=120),
        ),
        tooltip=tips("true:N", "predicted:N", "rows:Q", alt.Tooltip("share:Q", format=".1%")),
    )
    whole = alt.layer(chart, numbers).properties(
        width="container", height=max(26 * len(order), 120)
    )
    title = f"Confusion matrix: {name}"
    lead = "Rows by true and predicted class; the colour is the share of the true class."

    def score(value: float) -> Cell:
        return number(None if np.isnan(value) else float(value))

    table_rows = tuple(
        (
            text(order[k]), number(int(support[k]), f"{int(support[k]):,}"), score(precision[k]),
            score(recall[k]), score(f1[k]), *(number(int(n), f"{n:,}") for n in counts[k]),
        )
        for k in range(len(order))
    )  # fmt: skip
    headings = ("class", "rows", "precision", "recall", "F1", *(f"predicted {c}" for c in order))
    key = "confusion-" + "".join(c if c.isalnum() else "-" for c in name)
    return Figure(key, title, lead, drawn(whole, title, lead), headings, table_rows)


def _regression(found: list[tuple[str, EvaluatedTable]]) -> list[Figure]:
    """Return predicted against true numbers, in groups of rows."""
    if not found:
        return []
    rows = [
        {"series": name, "predicted": group[0], "true": group[1], "rows": group[2]}
        for name, table in found
        for group in table.groups
    ]
    ends = [row[key] for row in rows for key in ("predicted", "true")]
    exact = [{"predicted": x, "true": x} for x in (min(ends), max(ends))]
    x = alt.X("predicted:Q", title="mean prediction", scale=alt.Scale(zero=False))
    y = alt.Y("true:Q", title="mean of the label", scale=alt.Scale(zero=False))
    names = [name for name, _ in found]
    line = alt.Chart(values(exact)).mark_line(strokeDash=[6, 4], color=PLAIN).encode(x=x, y=y)
    dots = (
        alt.Chart(values(rows))
        .mark_point(filled=True, size=36)
        .encode(
            x=x,
            y=y,
            color=alt.Color("series:N", sort=names, title=None, legend=legend_of(names)),
            tooltip=tips("series:N", "predicted:Q", "true:Q", "rows:Q"),
        )
    )
    title = "Predictions and labels"
    lead = "Means of groups of rows with about the same prediction; on the dashed line both agree."
    chart = alt.layer(line, dots).properties(width="container", height=320)
    columns: Columns = [
        ("series", of_text("series")),
        ("rows", of_number("rows", ",")),
        ("mean prediction", of_number("predicted")),
        ("mean of the label", of_number("true")),
    ]
    return [Figure.of("predictions", title, lead, chart, columns, rows)]


def _shap(found: list[tuple[str, EvaluatedTable]]) -> list[Figure]:
    """Return what each feature adds to the margin."""
    if not found:
        return []
    rows = [
        {"series": name, **feature.model_dump()} for name, table in found for feature in table.shap
    ]
    names, numbers = [name for name, _ in found], ("mean", "low", "high")
    x = alt.X("mean:Q", title="mean of |SHAP value|", axis=alt.Axis(tickCount=5))
    shown = (alt.Tooltip(f"{key}:Q", format=".4f") for key in numbers)
    tooltip = tips("series:N", "feature:N", *shown)
    chart, more = feature_bars(rows, x, "mean", "series", names, tooltip)
    title = "What the features add to predictions"
    lead = "Mean size of the SHAP values, which add up to the margin." + more
    columns: Columns = [
        ("series", of_text("series")),
        ("feature", of_text("feature")),
        ("mean size", of_number("mean")),
        *(
            (f"mean where it is {key}",
             lambda row, key=key: Cell("–") if row[key] is None else number(row[key]))
            for key in ("low", "high")
        ),
    ]  # fmt: skip
    return [Figure.of("shap", title, lead, chart, columns, rows)]
