"""The labels of a table: one column, or several that are an output each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import LabelUnfit
from hedgerow.boosting.job import ColumnRules
from hedgerow.boosting.tables.prepared import PreparedTable, as_categories
from hedgerow.boosting.tables.values import (
    bounds_of,
    check_range,
    is_text,
    labels_of,
    queries_of,
)


class TableLabels(NamedTuple):
    """Labels of a table's rows, and what its schema says of them."""

    y: NDArray[np.float64]
    """Of shape (n_samples,); of several labels (n_samples, n_labels), of bounds, or of grade and
    query, (n_samples, 2)."""
    n_classes: int
    classes: tuple[str, ...]
    is_numbered: bool
    """Whether the classes' names stand for numbers or truth values."""


def read_labels(
    found: PreparedTable,
    where: str,
    labels: Sequence[str],
    kept: NDArray[np.bool_] | None,
    *,
    task: Task,
    classes: int,
    objective: str,
    rules: ColumnRules,
) -> TableLabels:
    """Return the labels of the rows that are ``kept``; all rows where it is None.

    Raises
    ------
    LabelUnfit
        Labels that the task or the objective cannot have: names the column.
    """
    import pyarrow as pa

    parts = []
    for label in labels:
        place, own = f"{where}: label column '{label}'", found.column(label)
        if kept is not None:
            own = own.filter(pa.array(kept))
        if rules.positive:
            own = as_categories(own, place)
        y, n_classes, names = labels_of(own, place, task, classes, rules.positive)
        for name in rules.beside_label:
            other = found.column(name)
            if kept is not None:
                other = other.filter(pa.array(kept))
            beside = f"{where}: column '{name}'"
            if rules.qid:
                y = np.stack([y, queries_of(other, beside)], axis=1)
            else:
                y = bounds_of(y, other, place, beside, bool(rules.event))
        kind = found.column(label).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if len(labels) > 1 and names and not pa.types.is_boolean(kind):
            raise LabelUnfit(f"{place}: one of several labels is 0 and 1, or true and false")
        check_range(y[:, 0] if rules.qid else y, objective, place)
        parts.append(TableLabels(y, n_classes, names, bool(names) and not is_text(kind)))
    if len(parts) == 1:
        return parts[0]
    return TableLabels(np.stack([part.y for part in parts], axis=1), parts[0].n_classes, (), False)
