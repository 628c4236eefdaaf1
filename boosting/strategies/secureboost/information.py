"""What the active party tells of each column without a tree: how far the label's classes differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.association import against_label
from hedgerow.boosting.engine.cells import class_groups, merged
from hedgerow.boosting.selection import ANONYMOUS

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.secureboost.model import ActivePart
    from hedgerow.boosting.strategies.secureboost.party import TreeSetup

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LabelClasses:
    """The classes that rows are counted by; of a number, below its median and from it."""

    names: tuple[str, ...]
    codes: NDArray[np.intp]
    """Of shape (n_rows,), intp."""

    @classmethod
    def of(cls, y: NDArray[np.float64], schema: Schema) -> LabelClasses:
        """Return the classes of the active party's labels."""
        if schema.task is Task.REGRESSION:
            middle = float(np.median(y))
            names = (f"below {middle:.9g}", f"from {middle:.9g}")
            return cls(names, (y >= middle).astype(np.intp))
        return cls(schema.classes or tuple(map(str, range(schema.n_classes))), y.astype(np.intp))

    def own_columns(
        self, setup: TreeSetup, rows: NDArray[np.integer], part: ActivePart
    ) -> list[dict[str, Any]]:
        """Return what is told of the active party's columns, with their names."""
        found, k = [], len(self.names)
        for j, name in enumerate(part.features):
            n = int(setup.binned.n_bins[j])
            bins = setup.binned.column(j)[rows].astype(np.intp)
            cells = np.bincount(bins * k + self.codes, minlength=(n + 1) * k).reshape(n + 1, k)
            texts = part.categories.get(name)
            names = texts or _intervals(setup.cuts.of(j)[: n - 1])
            kind = "number" if texts is None else "text"
            found.append(self._column(name, kind, ["missing", *names], np.roll(cells, 1, axis=0)))
        return found

    def column_of_other(self, name: str, sums: Integers) -> dict[str, Any]:
        """Return what is told of another party's column.

        Parameters
        ----------
        sums : ndarray of shape (n_groups, 2 * n_outputs), int64
            Rows of each group by class (all but the first one, where that is all) and in all,
            alternating; missing values last.
        """
        ones, n = sums[:, 0::2], sums[:, 1]
        cells = np.column_stack([n - ones[:, 0], ones]) if len(self.names) == 2 else ones
        names = ["missing", *(f"group {at + 1}" for at in range(len(sums) - 1))]
        return self._column(name, ANONYMOUS, names, np.roll(cells, 1, axis=0))

    def _column(
        self, name: str, kind: str, names: Sequence[str], cells: Integers
    ) -> dict[str, Any]:
        rows = cells.sum(axis=1)
        known = np.flatnonzero(rows)
        cells, told = cells[known], [names[at] for at in known.tolist()]
        ordered = kind != "text"
        group = class_groups(cells, 1, ordered=ordered)
        found: dict[str, Any] = {
            "name": name,
            "kind": kind,
            "rows": len(self.codes),
            "missing": int(rows[0]) if len(rows) else 0,
            "cells": [
                {"name": own, "rows": int(n)} for own, n in zip(told, rows[known], strict=True)
            ],
        }
        if (group >= 0).any():
            joined = [
                "; ".join(told[at] for at in np.flatnonzero(group == k).tolist())
                for k in range(int(group.max()) + 1)
            ]
            found["against_label"] = against_label(
                merged(cells, group), joined, self.names, ordered=kind == "number"
            )
        return found

    def file(self, job: JobParameters, least: int, columns: Sequence[dict[str, Any]]) -> bytes:
        """Return ``statistics.json``, of the form of an explore job's."""
        rows = np.bincount(self.codes, minlength=len(self.names)).tolist()
        classes = [
            {"name": name, "rows": n, "classes": [name]}
            for name, n in zip(self.names, rows, strict=True)
        ]
        label = {"name": job.label, "task": job.task.value, "classes": classes}
        told = {
            "format": 1, "rows": len(self.codes), "min_cell": least, "label": label,
            "columns": list(columns), "pearson": {}, "spearman": {}, "cramers_v": {},
            "variance_inflation": {}, "spellings": [],
        }  # fmt: skip
        return (json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _intervals(cuts: NDArray[np.float32]) -> list[str]:
    """Return the names of the bins that cut points divide numbers into."""
    ends = [f"{float(str(cut)):.9g}" for cut in cuts]
    if not ends:
        return ["any number"]
    inner = (f"{a} to below {b}" for a, b in pairwise(ends))
    return [f"below {ends[0]}", *inner, f"from {ends[-1]}"]
