"""What the rows were like that a model is for, as counts by the model's own bins.

A model has cut points, and no counts of the rows that it was trained on. A reference has them, of
one table: a silo's own, whose counts stay with it. It has the form of an explore job's statistics,
so the same comparison reads both.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.strategies.explore.statistics import FORMAT
from hedgerow.boosting.tables.prepared import PreparedTable
from hedgerow.coordinator.operator import drifting, exploring
from hedgerow.coordinator.operator.library import frames

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.drifting import ColumnDrift
    from hedgerow.coordinator.operator.library.frames import Tabular
    from hedgerow.coordinator.operator.library.scoring import Model

N_BINS = 20
"""Cells of a column at most, beside that of missing values."""
SCORE = "(score)"
"""Name of the model's own prediction among the columns."""
Floats = NDArray[np.float32]


def rows_of(model: Model, table: Tabular | Mapping[str, Tabular], what: str) -> Dataset:
    """Return a table as the model reads it, with labels where it has them; raises DataError."""
    if isinstance(table, Mapping) and model.parties and set(table) <= set(model.parties):
        return model.rows(table)
    arrow, where = frames.read(cast("Tabular", table), what, model.names)
    here = PreparedTable(arrow, where, model.columns, is_whole=False).column_names
    return model.coded(arrow, where, model.label if model.label in here else "")


def scores_of(model: Model, data: Dataset) -> NDArray[Any]:
    """Return probabilities of the positive class, predicted numbers, or likeliest classes."""
    found = model.predictions(model.margins(data))
    return model.decided(found) if found.ndim == 2 else found


def reference(model: Model, data: Dataset) -> dict[str, Any]:
    """Return the counts of rows by the cells of the columns that a model's trees ask of.

    Bins of numbers are between the model's own cut points, at most :data:`N_BINS`.

    Raises
    ------
    DataError
        There are no rows, or the model has several labels.
    """
    if len(model.labels) > 1:
        raise DataError(f"expected a model of one label, received one of {len(model.labels)}")
    if data.is_empty:
        raise DataError("table: expected rows, received none")
    trees = model.ensemble.trees
    columns = []
    for j in sorted({int(k) for tree in trees for k in tree.feature[~tree.is_leaf]}):
        feature, values = data.schema.features[j], data.columns.readers[j]()
        if feature.is_categorical:
            names = feature.categories or ()
            counts = Counter(names[int(v)] for v in values[~np.isnan(values)])
            columns.append(_text(feature.name, {name: counts[name] for name in names}, values))
        else:
            own = [tree.threshold[~tree.is_leaf & (tree.feature == j)] for tree in trees]
            columns.append(_number(feature.name, np.unique(np.concatenate(own)), values))
    scores = scores_of(model, data)
    if scores.dtype.kind == "f":
        score = _number(SCORE, np.unique(scores.astype(np.float32)), scores.astype(np.float32))
    else:
        score = _text(SCORE, Counter(map(str, scores)), np.zeros(0, np.float32))
    return {
        "format": FORMAT, "model": model.ensemble.digest, "rows": data.n_samples,
        "label": _label(model, data), "columns": columns, "score": score,
    }  # fmt: skip


def beside(model: Model, told: Tabular | dict[str, Any]) -> dict[str, Any]:
    """Return what a model's tables are compared with.

    Parameters
    ----------
    told : table, path or dict
        A reference or its file (``.json``), the folder of an explore job's run, or a table.

    Raises
    ------
    DataError
        It is none of these, or the reference of another model.
    """
    if isinstance(told, dict) and "format" in told:
        found = told
    elif isinstance(told, str | os.PathLike) and Path(told).is_dir():
        found, _ = exploring.read(Path(told))
    elif isinstance(told, str | os.PathLike) and Path(told).suffix == ".json":
        found = load(Path(told))
    else:
        return reference(model, rows_of(model, told, "the table beside it"))
    if found.get("model", model.ensemble.digest) != model.ensemble.digest:
        raise DataError("reference: expected counts by this model's bins, received another model's")
    known = set(model.features)
    return {**found, "columns": [one for one in found["columns"] if one["name"] in known]}


def load(path: Path) -> dict[str, Any]:
    """Return a reference of a file; raises DataError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found["label"]["classes"], [one["cells"] for one in found["columns"]], found["format"]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: expected the counts that `hedgerow reference` writes") from None
    return cast("dict[str, Any]", found)


def drift(
    model: Model, told: dict[str, Any], table: Tabular | Mapping[str, Tabular], what: str
) -> tuple[ColumnDrift, ...]:
    """Compare a table, and its scores, with what :func:`beside` returns; raises DataError."""
    data = rows_of(model, table, what)
    return drifting.drift(told, data, what, None if data.is_empty else scores_of(model, data))


def _label(model: Model, data: Dataset) -> dict[str, Any]:
    found: dict[str, Any] = {"name": model.label, "task": model.task.value, "classes": []}
    if data.y is None:
        return found
    if not model.task.of_classes:
        values = data.numbers.astype(np.float32)
        return found | {"column": _number(model.label, np.unique(values), values)}
    own = data.schema.classes or tuple(map(str, range(data.schema.n_classes)))
    rows = np.bincount(data.y.astype(np.intp), minlength=len(own))
    classes = [
        {"name": name, "rows": int(n), "classes": [name]} for name, n in zip(own, rows, strict=True)
    ]
    return found | {"classes": classes}


def _number(name: str, cuts: Floats, values: Floats) -> dict[str, Any]:
    """Return rows between cut points, of which those are kept that make bins of alike sizes."""
    gone = np.isnan(values)
    present = np.sort(values[~gone])
    if len(cuts) >= N_BINS:
        below = np.searchsorted(present, cuts, side="left")
        wanted = np.arange(1, N_BINS) * len(present) / N_BINS
        near = np.searchsorted(below, wanted).clip(0, len(cuts) - 1)
        cuts = cuts[np.unique(near)]
    ends = [-math.inf, *map(float, cuts), math.inf]
    rows = np.diff([0, *np.searchsorted(present, cuts, side="left"), len(present)])
    cells: list[dict[str, Any]] = [
        {"name": "missing", "rows": int(gone.sum()), "missing": True, "numbers": False}
    ]
    for low, high, n in zip(ends[:-1], ends[1:], rows.tolist(), strict=True):
        inside = {key: end for key, end in (("from", low), ("below", high)) if math.isfinite(end)}
        text = " ".join(f"{key} {np.float32(end):.7g}" for key, end in inside.items())
        cells.append({"name": text or "any number", "rows": n, **inside})
    return {"name": name, "kind": "number", "cells": cells}


def _text(name: str, counts: Mapping[str, int], values: Floats) -> dict[str, Any]:
    """Return rows by category; the rarest ones are one cell together."""
    order = sorted(counts, key=lambda one: (-counts[one], one))
    kept, others = order[: N_BINS - 1], order[N_BINS - 1 :]
    cells: list[dict[str, Any]] = [
        {"name": "missing", "rows": int(np.isnan(values).sum()), "missing": True}
    ]
    cells += [{"name": one, "rows": counts[one], "categories": [one]} for one in kept]
    if others:
        n = sum(counts[one] for one in others)
        cells.append({"name": "others", "rows": n, "categories": others})
    return {"name": name, "kind": "text", "cells": cells}
