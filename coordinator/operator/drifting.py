"""How far one table's rows are from those that an explore job has counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.strategies.explore.statistics import FORMAT
from hedgerow.boosting.tables import for_job, to_dataset
from hedgerow.boosting.tables.prepared import PreparedTable

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

HEADINGS = ("column", "psi", "by chance", "ks", "most changed", "then", "now", "")
NUMBERS = ("psi", "by chance", "ks", "then", "now")
NOTHING_BESIDE = (
    "a model has cut points, and no counts of the rows that it was trained on: compare with a "
    "table of then (--beside TABLE), its counts (hedgerow reference) or an explore job's run"
)
UNEVEN = (
    "Where DATA is a silo's table of the job, silos differ in these: trees that one silo grows "
    "(bagging, fedxgbllr) see one side of them, sums of histogram all rows: docs/which-strategy.md "
    "has figures (Silos that differ)"
)
"""What drifted columns mean for a federation."""
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnDrift:
    """One column of a table beside the counts of all silos."""

    column: str
    psi: float
    """Population stability index over the cells that were told: the sum of
    ``(now - then) * log(now / then)`` over their shares of the rows."""
    by_chance: float
    """What the index of two samples of these sizes from one population stays below, 95 of 100
    times."""
    ks: float | None
    """Kolmogorov-Smirnov distance over the cells of present numbers; None for text."""
    cell: str
    """Name of the cell whose share has changed most, with its shares ``then`` and ``now``."""
    then: float
    now: float
    unknown: int
    """Rows with a category that the job's silos did not have."""

    def verdict(self, limit: float) -> str:
        """Return what that means; nothing where chance may do it."""
        if self.psi <= self.by_chance:
            return ""
        return "drifted" if self.psi > limit else "changed" if self.psi > limit / 2 else ""


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows of a table in the cells of one column of statistics."""

    column: str
    cells: Sequence[dict[str, Any]]
    rows: Counts
    """By cell, shape (n_cells,)."""
    unknown: int
    """Rows in none of them."""
    ordered: NDArray[np.bool_] | None
    """Which cells have numbers, shape (n_cells,); None for text."""

    def and_of(self, other: Counted) -> Counted:
        """Return the counts of both tables' rows."""
        more = self.unknown + other.unknown
        return replace(self, rows=self.rows + other.rows, unknown=more)


def drift(
    statistics: dict[str, Any], data: Dataset, where: str, scores: NDArray[Any] | None = None
) -> tuple[ColumnDrift, ...]:
    """Compare a table with statistics, column by column, the label first; see :func:`counted`."""
    return compared(counted(statistics, data, where, scores))


def counted(
    statistics: dict[str, Any], data: Dataset, where: str, scores: NDArray[Any] | None = None
) -> tuple[Counted, ...]:
    """Count a table's rows in the cells of statistics, the label's first, the scores' last.

    Parameters
    ----------
    statistics : dict
        Of a run of strategy ``explore``, or a baseline.
    data : Dataset
        Rows read as the run's job reads them.
    where : str
        The table's name in messages.
    scores : ndarray of shape (n_samples,), optional
        Numbers, or names of predicted classes.

    Raises
    ------
    DataError
        There are no rows, or they lack a column.
    """
    if statistics.get("format") != FORMAT:
        raise DataError("the run's statistics are of another version: explore the tables again")
    if data.is_empty:
        raise DataError(f"{where}: expected rows, received none")
    features = {one.name: j for j, one in enumerate(data.schema.features)}
    label = statistics["label"]
    found = []
    if label["classes"] and data.y is not None and "column" not in label:
        own = data.schema.classes or tuple(map(str, range(data.schema.n_classes)))
        names = [own[int(k)] for k in data.y]
        cells = [one | {"categories": one["classes"]} for one in label["classes"]]
        found.append(_text(label["name"], cells, names))
    columns = statistics["columns"] + ([label["column"]] if "column" in label else [])
    missing = [one["name"] for one in columns if one["name"] not in {*features, label["name"]}]
    if missing:
        raise DataError(
            f"{where}: expected the columns of the run, received no {', '.join(missing)}"
        )
    for one in columns:
        name = one["name"]
        if name == label["name"]:
            if data.y is not None:
                found.append(_number(one, data.numbers.astype(np.float32)))
            continue
        values = data.columns.readers[features[name]]()
        categories = data.schema.features[features[name]].categories
        if one["kind"] == "number":
            if categories:
                raise DataError(f"{where}: column {name!r}: expected numbers, received text")
            found.append(_number(one, values))
        else:
            if categories is None and not np.isnan(values).all():
                raise DataError(f"{where}: column {name!r}: expected text, received numbers")
            known = categories or ()
            found.append(
                _text(name, one["cells"], ["" if math.isnan(v) else known[int(v)] for v in values])
            )
    if scores is not None and (one := statistics.get("score")) is not None:
        if one["kind"] == "number":
            found.append(_number(one, scores.astype(np.float32)))
        else:
            found.append(_text(one["name"], one["cells"], list(map(str, scores))))
    return tuple(found)


def compared(counts: Sequence[Counted]) -> tuple[ColumnDrift, ...]:
    """Compare counts with those of the statistics that they are in the cells of."""
    return tuple(map(_drift, counts))


def rows_of(table: Any, job: JobParameters, where: str) -> Dataset:
    """Return a table as the run's job reads it; one without the label has none.

    Raises
    ------
    DataError
    """
    here = PreparedTable(table, where, job.columns, is_whole=False).column_names
    if job.label in here:
        return for_job(table, job, where)
    features = tuple(name for name in job.features if name in here)
    return to_dataset(
        table, where, task=job.task, label="", features=features, rules=job.columns, is_whole=False
    )


def worst(found: Sequence[ColumnDrift], limit: float) -> list[str]:
    """Return the columns whose index is above a limit, and above what chance may do."""
    return [one.column for one in found if one.verdict(limit) == "drifted"]


def lines(found: Sequence[ColumnDrift], limit: float) -> list[tuple[object, ...]]:
    """Return a line for each column under :data:`HEADINGS`, those that drifted most first."""
    return [
        (
            one.column,
            f"{one.psi:.3f}",
            f"{one.by_chance:.3f}",
            "" if one.ks is None else f"{one.ks:.3f}",
            one.cell,
            f"{one.then:.1%}",
            f"{one.now:.1%}",
            one.verdict(limit) + (f", {one.unknown:,} rows unknown" if one.unknown else ""),
        )
        for one in sorted(found, key=lambda one: -one.psi)
    ]


def document(found: Sequence[ColumnDrift], limit: float) -> dict[str, Any]:
    """Return the same for programs."""
    return {"limit": limit, "drifted": worst(found, limit), "columns": [asdict(f) for f in found]}


def _number(one: dict[str, Any], values: NDArray[np.float32]) -> Counted:
    cells = one["cells"]
    gone, now = np.isnan(values), np.zeros(len(cells), np.int64)
    for k, cell in enumerate(cells):
        inside = gone & bool(cell.get("missing"))
        if cell.get("numbers", True):
            low, high = cell.get("from", -math.inf), cell.get("below", math.inf)
            inside |= (values >= np.float32(low)) & (values < np.float32(high))
        now[k] = inside.sum()
    ordered = np.array([cell.get("numbers", True) for cell in cells])
    return Counted(one["name"], cells, now, int(len(values) - now.sum()), ordered)


def _text(name: str, cells: Sequence[dict[str, Any]], values: Sequence[str]) -> Counted:
    place = {value: k for k, cell in enumerate(cells) for value in cell.get("categories", ())}
    place[""] = next((k for k, cell in enumerate(cells) if cell.get("missing")), -1)
    at = np.array([place.get(value, -1) for value in values])
    now = np.bincount(at[at >= 0], minlength=len(cells))
    return Counted(name, cells, now, int((at < 0).sum()), None)


def _drift(counts: Counted) -> ColumnDrift:
    """Compare counts; rows that are in no cell are one more, of which there were none."""
    cells, unknown, ordered = counts.cells, counts.unknown, counts.ordered
    then = np.array([*(cell["rows"] for cell in cells), 0][: len(cells) + (unknown > 0)])
    now = np.append(counts.rows, unknown)[: len(then)]
    # Half a row more in each cell: none is empty, and the index stays finite.
    p, q = (then + 0.5) / (then + 0.5).sum(), (now + 0.5) / (now + 0.5).sum()
    psi = float(((q - p) * np.log(q / p)).sum())
    most = int(np.abs(q - p).argmax())
    ks = None
    if ordered is not None:
        a, b = then[: len(cells)][ordered], now[: len(cells)][ordered]
        if a.sum() and b.sum():
            ks = float(np.abs(np.cumsum(a) / a.sum() - np.cumsum(b) / b.sum()).max())
    names = [*(cell["name"] for cell in cells), "unknown"]
    chance = _chi_square(len(then) - 1) * (1 / max(then.sum(), 1) + 1 / max(now.sum(), 1))
    shares = float(p[most]), float(q[most])
    return ColumnDrift(counts.column, psi, chance, ks, names[most], *shares, unknown)


def _chi_square(degrees: int) -> float:
    """Return the 95 % quantile of chi-square (Wilson and Hilferty's approximation, to 1 %)."""
    if degrees < 1:
        return 0.0
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 1.6449 * math.sqrt(spread)) ** 3)
