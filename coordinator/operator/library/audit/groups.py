"""How a model serves the groups of a column, such as sex: rates, errors, calibration, ranking.

Of two classes, for each group: ``positive rate``, the share that the model says the positive class
of, at a probability of one half; ``label rate``, the share that is of it; ``true positive rate``
and ``false positive rate``; ``calibration``, the mean probability less the label rate; ``auc``. Of
several classes ``accuracy`` and ``calibration``, the mean probability of the predicted class less
the accuracy; of numbers ``mean error`` and ``mean absolute error``.

Groups below the least size are together one group, or none if they are fewer still; what needs a
class of a group needs as many rows of it. No rate is of fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.metrics import exact_auc
from hedgerow.coordinator.operator.library.audit.membership import Estimate
from hedgerow.coordinator.operator.library.audit.subject import Audited, AuditRefused

Floats = NDArray[np.float64]
LEAST_ROWS = 20
"""Least rows of a group, and of each class where a number is of a class."""
MOST_GROUPS = 50
LARGEST = "largest difference"
"""Name of what is not a group: the difference between the groups with most and least."""
_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Group:
    """How the model does on the rows of a group."""

    column: str
    group: str
    rows: int
    measures: dict[str, Estimate]
    note: str = ""
    """Why there are none."""


def by_group(run: Audited, column: str) -> list[Group]:
    """Return how the model does on the test rows of each group of a column.

    Raises
    ------
    AuditRefused
        The test table has no such column, or it has over :data:`MOST_GROUPS` values.
    """
    names = names_of(run.test_table, column)
    n_values = len(set(names))
    if n_values > MOST_GROUPS:
        raise AuditRefused(
            f"group {column}: expected at most {MOST_GROUPS} groups, received {n_values} values"
        )
    values, place = np.unique(names, return_inverse=True)
    sizes = np.bincount(place)
    members = {str(v): np.flatnonzero(place == k) for k, v in enumerate(values)
               if sizes[k] >= LEAST_ROWS}  # fmt: skip
    small = np.flatnonzero(sizes[place] < LEAST_ROWS)
    if len(small) >= LEAST_ROWS:
        members[f"all of fewer than {LEAST_ROWS} rows"] = small
    measure = _measured(run)
    at = {name: measure(rows) for name, rows in members.items()}
    rng = np.random.default_rng(run.seed)
    drawn = [
        {name: measure(rng.choice(rows, len(rows))) for name, rows in members.items()}
        for _ in range(_RESAMPLES)
    ]
    found = [
        Group(column, name, len(rows),
              {what: _between(value, [one[name].get(what, np.nan) for one in drawn])
               for what, value in at[name].items()})
        for name, rows in members.items()
    ]  # fmt: skip
    differences = {
        what: _between(gap, [_gap(one, what) for one in drawn])
        for what in dict.fromkeys(w for of in at.values() for w in of)
        if np.isfinite(gap := _gap(at, what))
    }
    n_rows = sum(len(rows) for rows in members.values())
    return [*found, Group(column, LARGEST, n_rows, differences)] if differences else found


def _gap(of: dict[str, dict[str, float]], what: str) -> float:
    known = [one[what] for one in of.values() if what in one]
    return max(known) - min(known) if len(known) > 1 else np.nan


def _between(value: float, drawn: list[float]) -> Estimate:
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high))


def names_of(table: Any, column: str) -> NDArray[Any]:
    """Return the group that each row of a table is of; raises AuditRefused without the column."""
    if column not in table.column_names:
        raise AuditRefused(
            f"group {column}: expected a column of the test table, received one of "
            f"{', '.join(table.column_names)}"
        )
    return np.array(
        ["missing" if v is None or v != v else str(v) for v in table[column].to_pylist()]
    )


def _measured(run: Audited) -> Callable[[NDArray[np.intp]], dict[str, float]]:
    """Return what measures the model on some of the test rows."""
    predicted = run.model.predictions(run.model.margins(run.test))
    y = run.test.labels.astype(np.float64)

    def of_two(rows: NDArray[np.intp]) -> dict[str, float]:
        p, own = predicted[rows], y[rows] > 0.5
        said = p >= 0.5
        n_own, n_other = int(own.sum()), int((~own).sum())
        found = {"positive rate": float(said.mean())}
        if n_own >= LEAST_ROWS:
            found["true positive rate"] = float(said[own].mean())
        if n_other >= LEAST_ROWS:
            found["false positive rate"] = float(said[~own].mean())
        if min(n_own, n_other) >= LEAST_ROWS:
            found |= {"label rate": float(own.mean()), "calibration": float(p.mean() - own.mean()),
                      "auc": exact_auc(own, p)}  # fmt: skip
        return found

    def of_several(rows: NDArray[np.intp]) -> dict[str, float]:
        p = predicted[rows]
        right = float((p.argmax(axis=1) == y[rows]).mean())
        return {"accuracy": right, "calibration": float(p.max(axis=1).mean()) - right}

    def of_numbers(rows: NDArray[np.intp]) -> dict[str, float]:
        error = predicted[rows] - y[rows]
        return {"mean error": float(error.mean()),
                "mean absolute error": float(np.abs(error).mean())}  # fmt: skip

    if run.model.task is Task.BINARY:
        return of_two
    return of_several if run.model.task is Task.MULTICLASS else of_numbers
