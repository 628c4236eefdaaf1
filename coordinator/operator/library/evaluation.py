"""How a run's model does on tables with labels, as counts and means of groups of rows.

``evaluation.json`` has what the curves of a report are made of, and no row's value: predictions are
grouped by size, in groups of at least :data:`LEAST_ROWS` rows, and of each group there are the
number of rows of each class and the mean prediction; of each feature there are means over rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.crypto.durable import write_atomically

if TYPE_CHECKING:
    from hedgerow.coordinator.operator.library.frames import Tabular
    from hedgerow.coordinator.operator.library.scoring import Model

FILE = "evaluation.json"
SCHEMA = 1
LEAST_ROWS = 5
"""Least rows of a group."""
MOST_GROUPS = 100
EXPLAINED_ROWS = 500
"""Rows whose SHAP values are averaged."""
ESTIMATES = 1_400
"""SHAP values of a network over trees that are estimated, at some 5 ms each."""

Floats = NDArray[np.float64]


def keep(
    folder: Path,
    tests: Mapping[str, Tabular],
    ids: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Evaluate a run's model, or each silo's own, and write ``evaluation.json`` into its folder.

    Parameters
    ----------
    tests : Mapping
        Tables with labels by name: ``test``, or a silo's. Of a vertical run the table of each
        party, which are one table together.
    ids : Mapping
        By party, its column of identifiers where that is not ``_id``.

    Raises
    ------
    FederationError
        There is no model in the folder, or a table cannot be used.
    """
    sets = [found for found in _evaluated(folder, tests, ids) if found]
    document = {"schema": SCHEMA, "least_rows": LEAST_ROWS, "sets": sets}
    write_atomically(folder / FILE, json.dumps(document, allow_nan=False).encode(), mode=0o644)


def _evaluated(
    folder: Path, tests: Mapping[str, Tabular], ids: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    from hedgerow.coordinator.operator.library import frames, models

    for silo in models.owners(folder) or ("",):
        model = models.load(folder, silo)
        if model.parties:
            table = frames.joined(tests, "", model.columns, ids)
            rows = model.coded(table, "the parties' tables", model.label)
            yield evaluated(model, rows, "test", silo)
            continue
        several = model.outputs if len(model.outputs) > 1 else ()
        for name, test in tests.items():
            table, where = frames.read(test, name, model.names)
            rows = model.coded(table, where, model.label)
            for k, label in enumerate(several):
                yield evaluated(model, rows, f"{name}, {label}", silo, k)
            if not several:
                yield evaluated(model, rows, name, silo)


def evaluated(
    model: Model, rows: Dataset, data: str, silo: str = "", output: int | None = None
) -> dict[str, Any]:
    """Return how a model does on rows; nothing of fewer than :data:`LEAST_ROWS` rows.

    Parameters
    ----------
    silo : str
        Whose own model it is, if each has one.
    output : int, optional
        Which of several labels it is about.
    """
    if rows.n_samples < LEAST_ROWS:
        return {}
    found = model.predictions(model.margins(rows))
    y, task = rows.labels, model.task
    if output is not None:
        found, y = found[:, output], y[:, output] if y.ndim == 2 else y
    document: dict[str, Any] = {
        "data": data, "silo": silo, "rows": rows.n_samples, "task": task.value, "classes": [],
    }  # fmt: skip
    if task is Task.REGRESSION:
        document["groups"] = [
            [float(found[at].mean()), float(y[at].mean()), len(at)] for at in _groups(found)
        ]
    elif not task.of_classes:  # times that are known by bounds have no mean, orders have none
        document["groups"] = []
    else:
        found = found if found.ndim == 2 else np.stack([1.0 - found, found], axis=1)
        n_classes = found.shape[1]
        known = len(model.classes) == n_classes
        document["classes"] = list(model.classes if known else map(str, range(n_classes)))
        document["groups"] = [
            _of_class(found[:, k], y == k) for k in range(n_classes) if k or task is Task.MULTICLASS
        ]
        if task is Task.MULTICLASS:
            counts = np.zeros((n_classes, n_classes), dtype=np.int64)
            np.add.at(counts, (y.astype(np.intp), found.argmax(axis=1)), 1)
            document["confusion"] = counts.tolist()
    document["shap"] = _explained(model, rows, output)
    return document


def _of_class(probability: Floats, own: NDArray[np.bool_]) -> list[list[float]]:
    """Return (mean probability, rows of other classes, rows of the class) of groups of rows."""
    return [
        [float(probability[at].mean()), int(np.count_nonzero(~own[at])), int(own[at].sum())]
        for at in _groups(probability)
    ]


def _groups(values: Floats) -> Iterator[NDArray[np.intp]]:
    """Yield rows of rising values in groups; rows of one value are in one group."""
    order = np.argsort(values, kind="stable")
    n_groups = min(MOST_GROUPS, len(values) // LEAST_ROWS)
    wanted = np.linspace(0, len(values), max(n_groups, 1) + 1).astype(np.intp)[1:-1]
    ranked, ends = values[order], [0]
    for end in np.searchsorted(ranked, ranked[wanted], side="right"):
        if end - ends[-1] >= LEAST_ROWS and len(values) - end >= LEAST_ROWS:
            ends.append(int(end))
    yield from np.split(order, ends[1:])


def _explained(model: Model, rows: Dataset, output: int | None) -> list[dict[str, Any]]:
    """Return what each feature adds to the margin: the mean size, and the mean of thirds."""
    n_rows = EXPLAINED_ROWS if model.is_stock else ESTIMATES // model.n_features
    if n_rows < LEAST_ROWS:
        return []
    every = max(rows.n_samples // n_rows, 1)
    part = rows.take(np.arange(0, rows.n_samples, every)[:n_rows])
    shap = model.contributions(part, part)[..., :-1]
    shap = shap if output is None else shap[:, output]
    found = []
    for j, feature in enumerate(part.schema.features):
        own = shap[..., j]
        third: dict[str, float | None] = {"low": None, "high": None}
        values = part.X[:, j]
        known = values[~np.isnan(values)]
        if own.ndim == 1 and not feature.is_categorical and len(known):
            least, most = np.quantile(known.astype(np.float64), (1 / 3, 2 / 3))
            for name, at in {"low": values <= least, "high": values >= most}.items():
                if least < most and np.count_nonzero(at) >= LEAST_ROWS:
                    third[name] = float(own[at].mean())
        found.append({"feature": feature.name, "mean": float(np.abs(own).mean()), **third})
    return sorted(found, key=lambda each: -float(each["mean"]))
