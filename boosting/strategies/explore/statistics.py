"""The artefact: ``statistics.json``, from the table that the silos release."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task, near_names
from hedgerow.boosting.job import DatePart
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.explore.release import (
    N_MOMENTS,
    ColumnCounts,
    Release,
    columns_of,
)

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.explore.parameters import Explore

FILE = "statistics.json"
FORMAT = 1
"""Of the file."""
_DIGITS = 6
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_RANK_ERROR = 0.04
Counts = NDArray[np.int64]


def artefact(
    parameters: Explore, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return ``statistics.json``."""
    release = Release.decode(checkpoint)
    return Artefact({FILE: statistics_file(parameters, job, schema, release)}, FILE)


def statistics_file(
    parameters: Explore, job: JobParameters, schema: Schema, release: Release
) -> bytes:
    """Return the statistics as JSON, the same bytes wherever they are written."""
    parts = []
    for key, value in statistics(parameters, job, schema, release).items():
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {_json(one)}" for one in value) + "\n ]"
        else:
            text = _json(value)
        parts.append(f" {_json(key)}: {text}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)  # indents are ten times the work


def statistics(
    parameters: Explore, job: JobParameters, schema: Schema, release: Release
) -> dict[str, Any]:
    """Return all that is told of the silos' tables."""
    class_names = _class_names(schema, release)
    classes = [" or ".join(own) for own in class_names]
    days = _day_columns(job)
    columns = [
        _column(own, release, classes, _day if own.feature.name in days else _text)
        for own in release.columns(schema)
    ]
    names = [one.name for one in columns_of(schema) if not one.is_categorical]
    moments = dict(zip(names, release.moments.reshape(-1, N_MOMENTS).tolist(), strict=True))
    for one in columns:
        if one["name"] in moments and one["kind"] == "number":
            mean, deviation, skewness = moments[one["name"]]
            one |= {
                "mean": _number(mean), "deviation": _number(deviation),
                "skewness": _number(skewness),
            }  # fmt: skip
            if one["name"] in days and math.isfinite(mean):
                one["mean_date"] = _day(math.floor(mean))
    pearson = _pairs(names, release.pearson)
    texts = [one.name for one in schema.features if one.is_categorical]
    label = [one for one in columns if one["name"] == schema.label and one["kind"] == "number"]
    return {
        "format": FORMAT,
        "rows": int(release.rows[0]),
        "min_cell": parameters.min_cell,
        "label": {
            "name": schema.label,
            "task": schema.task.value,
            "classes": [
                {"name": " or ".join(own), "rows": int(n), "classes": own}
                for own, n in zip(class_names, release.class_rows.tolist(), strict=True)
            ],
            **({"column": label[0]} if label else {}),
        },
        "columns": [one for one in columns if one not in label],
        "pearson": pearson,
        "spearman": _pairs(names, release.spearman),
        "cramers_v": _pairs(texts, release.cramer),
        "variance_inflation": _inflation(
            [name for name in names if name != schema.label or not label], pearson
        ),
        "spellings": [
            {"where": where, "names": group, "differ": how}
            for where, groups, how in near_names(schema) for group in groups
        ],
    }  # fmt: skip


def _day_columns(job: JobParameters) -> set[str]:
    """Return the features that are days since 1970."""
    return {
        name
        for column, parts in job.columns.dates
        for name, part in zip(job.columns.date_features(column), parts, strict=True)
        if part is DatePart.DAYS_SINCE
    }


def _class_names(schema: Schema, release: Release) -> list[list[str]]:
    """Return the names of each group of classes that is told."""
    if schema.task is Task.REGRESSION:
        n = int(release.n_cuts[-1])
        cut = _text(release.cuts[-n:][n // 2]) if n else ""
        own: tuple[str, ...] = (f"below {cut}", f"from {cut}")
    else:
        own = schema.classes or tuple(map(str, range(schema.n_classes)))
    return [
        [own[at] for at in np.flatnonzero(release.class_of == k).tolist()]
        for k in range(len(release.class_rows))
    ]


def _column(
    own: ColumnCounts, release: Release, classes: list[str], shown: Callable[[float], str]
) -> dict[str, Any]:
    """Return what is told of one column.

    Parameters
    ----------
    shown : callable
        Returns the text of a cut point.
    """
    rows = int(release.rows[0])
    missing = 0 if own.groups[0] < 0 else None
    alone = own.groups[0] >= 0 and int((own.groups == own.groups[0]).sum()) == 1
    if alone:
        missing = int(own.rows[own.groups[0]])
    names = _cell_names(own, shown)
    found: dict[str, Any] = {
        "name": own.feature.name,
        "kind": "text" if own.feature.is_categorical else "number",
        "rows": rows,
        "missing": missing,
        "cells": [
            {"name": name, "rows": int(own.rows[k]), **_inside(own, k)}
            for k, name in enumerate(names)
        ],
    }
    if own.feature.categories is not None:
        found["distinct"] = len(own.feature.categories)
    else:
        found["quantiles"] = _quantiles(own, int(alone))
        if shown is _day:
            for quantile in found["quantiles"].values():
                quantile["date"] = _day(quantile["value"])
    if len(own.by_class):
        found["against_label"] = _against(own, names, classes)
    return found


def _inside(own: ColumnCounts, k: int) -> dict[str, Any]:
    """Return which values a group of cells has, for programs."""
    inside = np.flatnonzero(own.groups == k).tolist()
    cells = [cell - 1 for cell in inside if cell]
    found: dict[str, Any] = {"missing": True} if 0 in inside else {}
    if own.feature.categories is not None:
        return found | {"categories": [own.feature.categories[cell] for cell in cells]}
    if cells and cells[0]:
        found["from"] = float(_text(own.cuts[cells[0] - 1]))
    if cells and cells[-1] < len(own.cuts):
        found["below"] = float(_text(own.cuts[cells[-1]]))
    return found | ({} if cells else {"numbers": False})


def _cell_names(own: ColumnCounts, shown: Callable[[float], str]) -> list[str]:
    """Return what each group of cells is, in words."""
    cuts = [shown(cut) for cut in own.cuts]
    categories = own.feature.categories
    found = []
    for k in range(len(own.rows)):
        inside = np.flatnonzero(own.groups == k).tolist()
        parts = ["missing"] if 0 in inside else []
        cells = [cell - 1 for cell in inside if cell]
        if categories is not None:
            parts += [categories[cell] for cell in cells]
        elif cells:
            low = cuts[cells[0] - 1] if cells[0] else ""
            high = cuts[cells[-1]] if cells[-1] < len(cuts) else ""
            parts.append(
                f"{low} to below {high}" if low and high
                else f"from {low}" if low else f"below {high}" if high else "any number"
            )  # fmt: skip
        found.append(", ".join(parts))
    return found


def _quantiles(own: ColumnCounts, first: int) -> dict[str, dict[str, float]]:
    """Return the nearest known quantiles: a value, and the share of rows below it."""
    below = np.cumsum(own.rows[first:])
    if len(below) < 2:
        return {}
    # Each group ends at the cut point behind its last bin.
    last = [int(np.flatnonzero(own.groups == k)[-1]) for k in range(first, len(own.rows) - 1)]
    shares = below[:-1] / below[-1]
    found = {}
    for wanted in _QUANTILES:
        k = int(np.abs(shares - wanted).argmin())
        if abs(float(shares[k]) - wanted) > _RANK_ERROR:
            continue  # it is a value that many rows have
        found[f"{wanted:g}"] = {
            "value": float(_text(own.cuts[last[k] - 1])), "below": _rounded(float(shares[k])),
        }  # fmt: skip
    return found


def _against(own: ColumnCounts, names: list[str], classes: list[str]) -> dict[str, Any]:
    """Return how a column goes with the label: by group, and in all."""
    table = own.by_class
    groups = [
        {
            "name": "; ".join(names[at] for at in np.flatnonzero(own.coarse == k).tolist()),
            "rows": int(cells.sum()),
            "by_class": dict(zip(classes, cells.tolist(), strict=True)),
        }
        for k, cells in enumerate(table)
    ]
    n = table.sum()
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / n
    chi = float(((table - expected) ** 2 / expected).sum())
    found: dict[str, Any] = {
        "groups": groups,
        "chi_square": _rounded(chi),
        "degrees_of_freedom": (len(table) - 1) * (table.shape[1] - 1),
        "iv": _rounded(_information_value(table)),
    }
    if table.shape[1] == 2:
        for group, weight in zip(groups, _evidence(table), strict=True):
            group["weight_of_evidence"] = _rounded(float(weight))
        found["gain"] = _rounded(_gain(table))
        if not own.feature.is_categorical:
            found["monotone"] = _monotone(table, groups)
    return found


def _evidence(table: Counts) -> NDArray[np.float64]:
    """Return by group log(share of the last class / share of the first one)."""
    shares = table / table.sum(axis=0)
    found: NDArray[np.float64] = np.log(shares[:, 1] / shares[:, 0])
    return found


def _information_value(table: Counts) -> float:
    """Return the information value; of several classes the mean of each against the others."""
    if table.shape[1] > 2:
        n = table.sum()
        one = [np.column_stack([table.sum(axis=1) - own, own]) for own in table.T]
        return sum(float(own[:, 1].sum() / n) * _information_value(own) for own in one)
    shares = table / table.sum(axis=0)
    return float(((shares[:, 1] - shares[:, 0]) * _evidence(table)).sum())


def _gain(table: Counts) -> float:
    """Return the largest gain of one split between groups, in their order, of a first tree.

    ``G_l**2 / H_l + G_r**2 / H_r - G**2 / H`` of the logistic loss at the mean label; groups of
    categories are in the order of their labels' means.
    """
    n, ones = table.sum(axis=1), table[:, 1]
    p = float(ones.sum() / n.sum())
    order = np.argsort(ones / n, kind="stable")
    best = 0.0
    for at in (np.arange(len(n)), order):
        g, h = np.cumsum((p * n - ones)[at])[:-1], np.cumsum((p * (1 - p) * n)[at])[:-1]
        whole = p * (1 - p) * float(n.sum())
        best = max(best, float((g * g / h + g * g / (whole - h)).max(initial=0.0)))
    return best


def _monotone(table: Counts, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the groups joined until the label's mean only rises, or only falls, with the value."""
    best: tuple[float, list[list[int]]] = (-1.0, [])
    numbers = [k for k, one in enumerate(groups) if one["name"] != "missing"]
    counts = table.tolist()
    for sign in (1, -1):
        blocks: list[list[int]] = []
        sums: list[tuple[int, int]] = []
        for k in numbers:
            blocks.append([k])
            sums.append((sum(counts[k]), counts[k][1]))
            # By products: rates of whole numbers, compared exactly.
            while len(blocks) > 1 and sign * (sums[-2][1] * sums[-1][0]) >= sign * (
                sums[-1][1] * sums[-2][0]
            ):
                last, (n, ones) = blocks.pop(), sums.pop()
                blocks[-1] += last
                sums[-1] = sums[-1][0] + n, sums[-1][1] + ones
        joined = np.array([table[own].sum(axis=0) for own in blocks])
        if len(blocks) > 1 and (value := _information_value(joined)) > best[0]:
            best = (value, blocks)
    value, blocks = best
    return {
        "iv": _rounded(max(value, 0.0)),
        "groups": ["; ".join(groups[k]["name"] for k in own) for own in blocks],
    }


def _inflation(names: list[str], pearson: Mapping[str, Any]) -> dict[str, float | None]:
    """Return each numeric column's variance inflation; None unless all correlations are told."""
    known = _known(names, pearson)
    told_of = {name for a, b, _ in known for name in (a, b)}
    kept = [name for name in names if name in told_of]
    at = {name: k for k, name in enumerate(kept)}
    matrix = np.eye(len(kept))
    for a, b, r in known:
        matrix[at[a], at[b]] = matrix[at[b], at[a]] = r
    found: dict[str, float | None] = dict.fromkeys(names)
    told = 2 * len(known) == len(kept) * (len(kept) - 1)
    if kept and told and np.linalg.cond(matrix) < 1e8:  # rounded correlations tell no more
        inverse = np.diag(np.linalg.inv(matrix))
        found |= {name: float(f"{v:.3g}") for name, v in zip(kept, inverse, strict=True) if v >= 1}
    return found


def _known(names: list[str], pearson: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    wanted = set(names)
    return [
        (a, b, r) for a, row in pearson.items() for b, r in row.items()
        if r is not None and a in wanted and b in wanted
    ]  # fmt: skip


def _pairs(names: list[str], values: NDArray[np.float64]) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = {name: {} for name in names[:-1]}
    numbers = iter(values.tolist())
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            found[name][other] = _number(next(numbers))
    return found


def _text(cut: float) -> str:
    """Return the shortest text of a cut point, which is a float32."""
    return f"{float(str(np.float32(cut))):.9g}"


def _day(cut: float) -> str:
    """Return the first date that is not below a number of days since 1970; a number beyond them."""
    try:
        return (date(1970, 1, 1) + timedelta(math.ceil(float(_text(cut))))).isoformat()
    except OverflowError:
        return _text(cut)


def _number(value: float) -> float | None:
    return _rounded(value) if math.isfinite(value) else None


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
