"""The artefact: ``statistics.json``, from the table that the silos release."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from datetime import date, timedelta
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.association import against_label, rounded
from hedgerow.boosting.job import DatePart
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.selection import FILE
from hedgerow.boosting.strategies.explore.release import (
    N_MOMENTS,
    ColumnCounts,
    Release,
    columns_of,
)
from hedgerow.boosting.unusual import near_names

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.explore.parameters import Explore

FORMAT = 1
"""Of the file."""
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_RANK_ERROR = 0.04


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
    with _writing:
        return _written(parameters.min_cell, _day_columns(job), schema, release.pack().tobytes())


_writing = Lock()  # parties of a process wait for the one that writes, and take its bytes


@lru_cache(maxsize=1)
def _written(min_cell: int, days: frozenset[str], schema: Schema, told: bytes) -> bytes:
    parts = []
    release = Release.parse(np.frombuffer(told, np.uint64), schema)
    for key, value in statistics(min_cell, days, schema, release).items():
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {_json(one)}" for one in value) + "\n ]"
        else:
            text = _json(value)
        parts.append(f" {_json(key)}: {text}")
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)  # indents are ten times the work


def statistics(
    min_cell: int, days: Collection[str], schema: Schema, release: Release
) -> dict[str, Any]:
    """Return all that is told of the silos' tables; ``days`` are features of dates."""
    class_names = _class_names(schema, release)
    classes = [" or ".join(own) for own in class_names]
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
        "min_cell": min_cell,
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


def _day_columns(job: JobParameters) -> frozenset[str]:
    """Return the features that are days since 1970."""
    return frozenset(
        name
        for column, parts in job.columns.dates
        for name, part in zip(job.columns.date_features(column), parts, strict=True)
        if part is DatePart.DAYS_SINCE
    )


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
        # Groups are of different values; that of missing ones may have no number.
        found["distinct_at_least"] = int(own.groups.max()) + int(own.groups[0] < 0)
        found["quantiles"] = _quantiles(own, int(alone))
        if shown is _day:
            for quantile in found["quantiles"].values():
                quantile["date"] = _day(quantile["value"])
    if len(own.by_class):
        joined = [
            "; ".join(names[at] for at in np.flatnonzero(own.coarse == k).tolist())
            for k in range(len(own.by_class))
        ]
        ordered = not own.feature.is_categorical
        found["against_label"] = against_label(own.by_class, joined, classes, ordered=ordered)
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
    groups = own.groups.tolist()
    last = [len(groups) - 1 - groups[::-1].index(k) for k in range(first, len(own.rows) - 1)]
    shares = below[:-1] / below[-1]
    found = {}
    for wanted in _QUANTILES:
        k = int(np.abs(shares - wanted).argmin())
        if abs(float(shares[k]) - wanted) > _RANK_ERROR:
            continue  # it is a value that many rows have
        found[f"{wanted:g}"] = {
            "value": float(_text(own.cuts[last[k] - 1])), "below": rounded(float(shares[k])),
        }  # fmt: skip
    return found


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
    return rounded(value) if math.isfinite(value) else None
