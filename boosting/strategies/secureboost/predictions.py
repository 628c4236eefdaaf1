"""The table of a prediction job, at the active party."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.strategies.secureboost.model import ActivePart
from hedgerow.boosting.tables.spreadsheet import write_rows

PREDICTIONS = "predictions.csv"
"""File of a prediction job's result, at the active party."""


def predictions(
    part: ActivePart,
    ids: NDArray[np.object_],
    rows: NDArray[np.int64],
    margins: NDArray[np.float32],
) -> bytes:
    """Return a CSV table: ``_id``, ``prediction`` and, for classes, their probabilities.

    Of two classes that of the positive one is first.

    Parameters
    ----------
    ids : ndarray of shape (n_rows,), object
    rows : ndarray of shape (n_rows,), int64
        Where they were in the party's table: the order of the result.
    """
    values = metrics.link(part.objective, margins.astype(np.float64))
    names = ["_id", "prediction"]
    if part.task == Task.REGRESSION.value:
        columns: list[list[Any]] = [values.reshape(-1).tolist()]
    elif part.task == Task.BINARY.value:
        flat = values.reshape(-1)
        columns = [_labels((flat >= 0.5).astype(int), part.classes), flat.tolist()]
        names.append("probability")
        values = np.stack([1.0 - flat, flat], axis=1)
    else:
        columns = [_labels(values.argmax(axis=1), part.classes)]
    if part.task != Task.REGRESSION.value:
        known = len(part.classes) == values.shape[1]
        labels = part.classes if known else [str(k) for k in range(values.shape[1])]
        names += [f"probability_{label}" for label in labels]
        columns += values.T.tolist()
    order = np.argsort(rows, kind="stable")
    return write_rows(names, ([ids[k], *(column[k] for column in columns)] for k in order))


def _labels(codes: NDArray[np.integer], classes: list[str]) -> list[Any]:
    return [classes[code] for code in codes] if classes else codes.tolist()
